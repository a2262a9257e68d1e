"""A task, as an algorithm sees it, and an episode that ended."""

import math
import sys
from dataclasses import dataclass
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Task:
    """The sizes and bounds that an agent needs before it sees an observation."""

    env_id: str
    obs_shape: tuple[int, ...]
    act_size: int  # dimensions of an action, or the number of actions if they are discrete
    discrete: bool
    low: tuple[float, ...]  # bounds of each action dimension; empty if discrete
    high: tuple[float, ...]
    limit: int  # number of steps after which an episode is cut; 0: never

    @property
    def obs_size(self) -> int:
        """The number of values in one observation."""
        return math.prod(self.obs_shape)

    def lead_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes of an array of observations before those of one, which may also be flat.

        Raises ValueError for an array of another shape.
        """
        for own in (self.obs_shape, (self.obs_size,)):
            lead = shape[: len(shape) - len(own)]
            if lead + own == shape:
                return lead
        told = f"{self.obs_size} numbers" + (f" or the shape {self.obs_shape}" if len(self.obs_shape) > 1 else "")
        told += ", the channels first" * (len(self.obs_shape) == 3)
        raise ValueError(f"an observation has {told}, got the shape {shape}")


def check_bounds(name: str, space: gym.spaces.Box) -> None:
    """Raises ValueError unless actions are real numbers between bounds that differ."""
    if not np.issubdtype(space.dtype, np.floating):
        raise ValueError(f"{name} has whole numbers as actions ({space}); this needs continuous ones")
    if not space.is_bounded():
        raise ValueError(f"{name} has an unbounded action space; rescale it to bounds with a Gymnasium wrapper")
    if not (space.low < space.high).all():
        raise ValueError(
            f"{name} has actions of which a lower bound is not below the upper one ({space}): leave out numbers that "
            "never change, with a Gymnasium wrapper"
        )


def within(action: NDArray, space: gym.spaces.Box) -> NDArray:
    """Actions within their bounds, out of which rounding may have taken them; `np.clip` takes three times as long."""
    return np.minimum(np.maximum(action, space.low), space.high)


class Episode(NamedTuple):
    """One episode that ended. In an Atari game, an episode is a whole game and not one life."""

    run: int
    total: float  # undiscounted return
    length: int  # in steps


class Finite:
    """Says once that an environment gives something of which nothing can be learned, because it is NaN or infinite.

    `what` names it: "a reward".
    """

    def __init__(self, env: str, what: str):
        self.env, self.what, self.told = env, what, False

    def check(self, numbers: NDArray) -> None:
        if not self.told and numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            self.told = True
            print(f"warning: {self.env} gave {self.what} that is not a finite number", file=sys.stderr)
