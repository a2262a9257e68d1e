"""Goals for offline goal-conditioned methods: the states of the data that a transition is asked to reach.

States are named by their rows in the dataset, in which the rows of a trajectory follow each other. As in OGBench's
code, the last goal that a trajectory has to offer is the last of its states that has an action; the state after it is
only ever a next state, unless `Goals` is told to offer it too. All samplers work on the device, for all runs at once.
"""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from algos.data import Dataset
from algos.errors import UserError
from algos.per_run import PerRun
from algos.random import Random

FITTED = 100_000  # states from which groups are found


class Mix(NamedTuple):
    """Where goals come from: the probabilities of three sources, which sum to 1, and the law of later states."""

    current: float  # the transition's own state
    trajectory: float  # a later state of its trajectory
    random: float  # the state before any transition of the data
    geometric: bool = False  # a later state is at a geometric distance; otherwise it is drawn uniformly

    @property
    def trajectory_share(self) -> float:
        """The probability of a later state, given that the goal is not the current one."""
        return self.trajectory / (1 - self.current) if self.current < 1 else 0.0


class GoalDraws(NamedTuple):
    """Random numbers of one draw of goals, each [R, B]."""

    place: Tensor  # uniform in [0, 1): where the later state lies in the trajectory
    source: Tensor  # uniform in [0, 1): decides between a later state and a random one
    current: Tensor  # uniform in [0, 1): decides whether the goal is the current state
    random: Tensor  # integers in [0, 2^63): the random state


def goal_draws(random: Random, name: str, batch_size: int) -> Callable[[], GoalDraws]:
    """Endless random numbers for draws of goals, under a name of their own."""
    uniform = random.uniform(f"{name} goals", 3, batch_size)
    integers = random.integers(f"{name} random goals", batch_size)

    def draw() -> GoalDraws:
        place, source, current = uniform().unbind(1)
        return GoalDraws(place, source, current, integers())

    return draw


class Goals:
    """Draws goals from a dataset that all runs share. Every argument and result that names states is rows [R, B].

    With `final_states`, the state after the last action of a trajectory is a goal too. Raises UserError if most
    transitions are trajectories of their own, so that no later state of theirs can be a goal.
    """

    def __init__(self, data: Dataset, final_states: bool = False):
        self.data = data
        bounds = torch.as_tensor(data.trajectories(), device=data.index.device)
        if 2 * int((bounds.diff() == 1).sum()) > len(data):
            raise UserError(
                f"in {data.name}, most transitions are trajectories of their own, and goals are later states of a "
                "trajectory: timeouts and terminations, at both of which one ends, must not be at every step"
            )
        self.starts = data.index[bounds[:, 0]]  # [K]: the first row of each trajectory
        self.final = data.index[bounds[:, 1] - 1]  # [K]: the row of its last transition
        self.ends = self.final + final_states  # [K]: the row of its last goal

    def last(self, row: Tensor) -> Tensor:
        """The last goal in the trajectory of each state."""
        return self.ends[torch.searchsorted(self.starts, row, right=True) - 1]

    def ahead(self, row: Tensor, steps: int | Tensor) -> Tensor:
        """The state some steps ahead, or the last goal of the trajectory if that comes first."""
        return torch.minimum(row + steps, self.last(row))

    def uniform(self, row: Tensor, place: Tensor) -> Tensor:
        """A later state by OGBench's law, which rounds: the first and the last have half the weight of the others.

        At the end of its trajectory, it is the current state.
        """
        last = self.last(row)
        reach = last - torch.minimum(row + 1, last)
        return last - (place.double() * reach).round().long()

    def evenly(self, row: Tensor, place: Tensor) -> Tensor:
        """A later state, where all have the same weight; at the end of its trajectory, the current state."""
        last = self.last(row)
        return torch.minimum(row + 1 + (place.double() * (last - row)).long(), last)

    def geometric(self, row: Tensor, place: Tensor, discount: float | PerRun) -> Tensor:
        """The state D steps ahead, or the trajectory's last goal, where P(D > d) = discount^d for d = 0, 1, …"""
        rate = torch.log(discount) if isinstance(discount, PerRun) else math.log(discount)  # type: ignore[arg-type]
        return self.ahead(row, 1 + (torch.log1p(-place.double()) / rate).long())

    def later(self, row: Tensor, place: Tensor, geometric: bool, discount: float | PerRun) -> Tensor:
        """A later state of the trajectory, by the geometric law or by OGBench's uniform one."""
        return self.geometric(row, place, discount) if geometric else self.uniform(row, place)

    def anywhere(self, integers: Tensor) -> Tensor:
        """The state before any transition of the data, by random integers [R, B] from [0, 2^63)."""
        return self.data.index[self.data.choose(integers)]

    def in_trajectory(self, integers: Tensor, step: Tensor) -> Tensor:
        """The state before any transition, where trajectories have the same weight however long they are.

        `integers` [R, B] from [0, 2^63) choose the trajectory, and `step` [R, B] in [0, 1) the transition.
        """
        trajectory = integers % len(self.starts)
        first = self.starts[trajectory]
        return first + (step.double() * (self.final[trajectory] - first + 1)).long()

    def mixed(self, row: Tensor, mix: Mix, draws: GoalDraws, discount: float | PerRun) -> Tensor:
        """Goals from the sources of a mix."""
        later = self.later(row, draws.place, mix.geometric, discount)
        goal = torch.where(draws.source < mix.trajectory_share, later, self.anywhere(draws.random))
        return torch.where(draws.current < mix.current, row, goal)

    def states(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """The observations of these states, each [R, B, O], by one gather."""
        obs = self.data.obs.index_select(0, torch.cat([row.reshape(-1) for row in rows]))
        return tuple(obs.view(len(rows), *rows[0].shape, -1).unbind())

    def actions(self, row: Tensor) -> Tensor:
        """The actions [R, B, A] that were taken in these states."""
        return self.data.action.index_select(0, row.reshape(-1)).view(*row.shape, -1)


class Clusters:
    """Groups of neighbouring states, for temporal goal augmentation (arXiv 2401.11237): goals of near trajectories.

    K-means finds `count` groups by the first `size` numbers of states, in raw units, from at most FITTED of them; then
    each state that is a goal or has an action joins the nearest group. All runs share the groups, which depend on the
    data alone. Raises UserError if there are fewer states than groups.
    """

    def __init__(self, goals: Goals, count: int, size: int):
        from scipy.cluster.vq import kmeans2, vq

        self.goals = goals
        starts, ends = goals.starts.cpu().numpy(), goals.ends.cpu().numpy()
        rows = np.concatenate([np.arange(first, last + 1) for first, last in zip(starts, ends, strict=True)])
        if count > (most := min(len(rows), FITTED)):
            raise UserError(f"--clusters {count:,} is more than the {most:,} states from which groups are found")
        points = goals.data.obs[torch.as_tensor(rows, device=goals.data.obs.device), :size].double().cpu().numpy()
        rng = np.random.default_rng(0)
        fitted = points[rng.choice(len(points), FITTED, replace=False)] if len(points) > FITTED else points
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a group may stay empty
            centres = kmeans2(fitted, count, iter=30, minit="++", rng=rng, missing="warn")[0]
        labels = np.concatenate([vq(part, centres)[0] for part in np.array_split(points, len(points) // FITTED + 1)])
        self.set(rows, labels)

    def set(self, rows: "np.ndarray", labels: "np.ndarray") -> None:
        """Takes rows [S] and the number of each one's group [S]."""
        device = self.goals.ends.device
        order = np.argsort(labels, kind="stable")
        sizes = np.bincount(labels)
        self.members = torch.as_tensor(rows[order].astype(np.int32), device=device)  # [S]: rows, group by group
        label = np.zeros(int(rows.max()) + 1, np.int32)
        label[rows] = labels
        self.label = torch.as_tensor(label, device=device)  # [M]: the group of each row
        self.first = torch.as_tensor(np.cumsum(sizes) - sizes, device=device)  # [K]: where a group's members begin
        self.size = torch.as_tensor(sizes, device=device)  # [K]

    def elsewhere(self, goal: Tensor, neighbour: Tensor, place: Tensor) -> Tensor:
        """Replaces goals [R, B] by a state from a neighbour's future, the neighbour itself included.

        `neighbour` and `place` [R, B] are uniform in [0, 1): which member of the goal's group, and where after it.
        """
        group = self.label[goal]
        near = self.members[self.first[group] + (neighbour.double() * self.size[group]).long()]
        return near + (place.double() * (self.goals.last(near) - near + 1)).long()


def check_mix(flag: str, mix: tuple[float, ...]) -> None:
    """Raises UserError unless three probabilities sum to 1."""
    if len(mix) != 3 or min(mix) < 0 or not math.isclose(sum(mix), 1, abs_tol=1e-6):
        raise UserError(
            f"{flag} takes three probabilities that sum to 1, those of the current state, a later state of the "
            f"trajectory and a random state; got {' '.join(f'{p:g}' for p in mix)}"
        )
