"""Segments of experience [R, T, N] for on-policy learning, advantages, and minibatches."""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from algos.per_run import PerRun
from envs import Task

Rows = TypeVar("Rows", bound=tuple)  # a NamedTuple of tensors [R, B, ...]


class Outcome(NamedTuple):
    """The outcome of one step of all environments, as the algorithm sees it."""

    reward: Tensor  # [R, N]
    ended: Tensor  # [R, N] 1.0 where an episode ended for any reason
    terminated: Tensor  # [R, N] 1.0 where the task ended it
    next_obs: Tensor  # [R, N, O], the true last observation where an episode ended; see `OnPolicyAgent.observe`


class Rollout:
    """The last T steps of N environments in each of R runs; the next T steps replace them."""

    def __init__(self, runs: int, horizon: int, envs_per_run: int, task: Task, device: torch.device | str = "cpu"):
        def zeros(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
            return torch.zeros(runs, horizon, envs_per_run, *shape, dtype=dtype, device=device)

        self.used = 0
        self.obs = zeros(task.obs_size)
        self.action = zeros(dtype=torch.int64) if task.discrete else zeros(task.act_size)
        self.outcome = Outcome(zeros(), zeros(), zeros(), zeros(task.obs_size))

    def add(self, obs: Tensor, action: Tensor, outcome: Outcome) -> None:
        """Keeps one step: obs [R, N, O] and action [R, N, A], or [R, N] if it is discrete, with their outcome."""
        t = self.used = self.used % self.obs.shape[1]
        for place, value in zip((self.obs, self.action, *self.outcome), (obs, action, *outcome), strict=True):
            place[:, t].copy_(value)
        self.used += 1


def discounted_sums(x: Tensor, factor: Tensor) -> Tensor:
    """y_t = x_t + factor_t y_t+1 along the second axis of x [R, T, N], with y_T = 0.

    It takes log2(T) operations on whole segments: after each, a sum reaches twice as far.
    """
    reach, length = 1, x.shape[1]
    while reach < length:
        x = torch.cat([x[:, :-reach] + factor[:, :-reach] * x[:, reach:], x[:, -reach:]], 1)
        factor = torch.cat([factor[:, :-reach] * factor[:, reach:], factor[:, -reach:]], 1)
        reach *= 2
    return x


def gae(
    outcome: Outcome, value: Tensor, next_value: Tensor, discount: float | PerRun, trace: float | PerRun, limits: bool
) -> Tensor:
    """Generalised advantage estimates [R, T, N] (Schulman et al., arXiv 1506.02438).

    delta_t = r_t + discount n_t V(s_t+1) - V(s_t) and A_t = delta_t + discount trace n_t A_t+1, where n_t is 0 if the
    step ended an episode. With `limits`, delta_t counts the value of the last observation where a time limit ended the
    episode, and the sum still stops there.
    """
    ended = outcome.terminated if limits else outcome.ended
    delta = outcome.reward + discount * (1 - ended) * next_value - value
    return discounted_sums(delta, discount * trace * (1 - outcome.ended))


def minibatches(rows: Rows, order: Tensor, size: int) -> Iterator[Rows]:
    """Minibatches of `size` rows of each run, in the order of the random numbers `order` [R, B].

    Rows that do not fill a minibatch are left out.
    """
    runs, count = order.shape
    chosen = order.argsort(stable=True, dim=-1) + count * torch.arange(runs, device=order.device)[:, None]
    kind: Any = type(rows)
    shuffled = [x.reshape(runs * count, *x.shape[2:])[chosen] for x in rows]
    for first in range(0, count - size + 1, size):
        yield kind(*(x[:, first : first + size] for x in shuffled))


class Means:
    """Means of metrics [R] over the minibatches of an update."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count = 0

    def add(self, metrics: dict[str, Tensor]) -> None:
        self.sums = {name: self.sums[name] + x if self.count else x.clone() for name, x in metrics.items()}
        self.count += 1

    def take(self) -> dict[str, Tensor]:
        return {name: total / self.count for name, total in self.sums.items()}
