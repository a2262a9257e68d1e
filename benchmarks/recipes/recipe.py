"""What is known of a dataset before it is made."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.recipes.trajectory import Trajectory


@dataclass(frozen=True)
class Recipe:
    """A dataset that can be made.

    `data` is called with seed and steps; if the dataset is one of OGBench's, with seed, episodes and whether they are
    those of its validation dataset, which is made too.
    """

    name: str
    env_id: str
    steps: int
    about: str  # one phrase on the data, for lists and for the dataset's own description
    data: Callable[..., Iterator[Trajectory]]
    by: str  # who acts in the data, for the dataset's description
    takes: str = ""  # the time it takes, where that is more than a few minutes
    policies: tuple[tuple[str, str], ...] = ()  # task and quality of the shipped policies that act
    ogbench_rows: int = 0  # the rows of an episode in OGBench's files; 0: the dataset is none of OGBench's
    env_options: dict[str, Any] = field(default_factory=dict)  # arguments of the environment that evaluates methods
    states: bool = False  # the simulator's states are stored too, as observations do not have all of them
    like: str | None = None  # the task of D4RL whose reference scores the dataset takes

    @property
    def datasets(self) -> tuple[str, ...]:
        """The names of the datasets that are made: OGBench's validation episodes are a dataset of their own."""
        return (self.name, self.name.replace("-v0", "-val-v0")) if self.ogbench_rows else (self.name,)

    def trajectories(self, seed: int, steps: int, validation: bool = False) -> Iterator[Trajectory]:
        """The data; with `validation`, that of OGBench's validation dataset."""
        if self.ogbench_rows:
            return self.data(seed, max(steps // (self.ogbench_rows - 1), 1), validation)
        return self.data(seed, steps)
