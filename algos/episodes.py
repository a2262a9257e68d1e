"""Whole episodes of R runs: collected from a common start, and kept in a buffer."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from algos.memory import check_room
from algos.per_run import PerRun
from envs import SeededEnvs, Task


class Episodes(NamedTuple):
    """E episodes of each run, of up to T steps; all entries after an episode's end are 0."""

    obs: Tensor  # [R, E, T, O]
    action: Tensor  # [R, E, T]
    reward: Tensor  # [R, E, T]
    running: Tensor  # [R, E, T], whether the episode had this step

    @property
    def lengths(self) -> Tensor:
        """Steps of each episode [R, E]."""
        return self.running.sum(-1)

    @property
    def done(self) -> Tensor:
        """1.0 at the last step of an episode [R, E, T], whether the task or a time limit ended it."""
        steps = torch.arange(self.running.shape[-1], device=self.running.device)
        return (steps == self.lengths[..., None] - 1).to(self.reward.dtype)

    def returns(self, discount: float | PerRun) -> Tensor:
        """The discounted sum of rewards from each step on [R, E, T]."""
        returns = torch.zeros_like(self.reward)
        following = torch.zeros_like(self.reward[..., 0])
        for t in range(self.reward.shape[-1] - 1, -1, -1):
            following = self.reward[..., t] + discount * following
            returns[..., t] = following
        return returns


def collect(
    envs: SeededEnvs,
    episodes: int,
    begin: Callable[[int], Callable[[Tensor, int], Tensor]],
    observations: bool = True,
) -> Episodes:
    """Plays `episodes` episodes of each run, as many at once as a run has environments.

    They begin together, and an environment whose episode has ended waits for the others. For each such set of N
    episodes, `begin` maps the number of its first one to the function that acts in it, which maps obs [R, N, O] and the
    time in the episode to actions [R, N]. That function is called until the longest episode of all runs has ended: it
    must not draw random numbers, or those of a run would depend on its neighbours. Without `observations`, which take
    most of the memory, those of the result have no numbers (O = 0).
    """
    parts: list[Episodes] = []
    width = envs.envs_per_run
    for first in range(0, episodes, width):
        envs.restart()
        act = begin(first)
        running = torch.ones(envs.runs, width, dtype=torch.bool, device=envs.device)
        running[:, episodes - first :] = False
        steps: list[tuple[Tensor, ...]] = []
        while running.any():
            action = torch.where(running, act(envs.obs, len(steps)), 0)
            t = envs.step(action, counted=running)
            live = running.to(t.reward.dtype)
            obs = t.obs if observations else t.obs[..., :0]
            steps.append((obs * live[..., None], action, t.reward * live, running))
            running = running & (t.terminated + t.truncated == 0)
        parts.append(Episodes(*(torch.stack(tensors, 2) for tensors in zip(*steps, strict=True))))
    longest = max(part.reward.shape[2] for part in parts)
    whole = (torch.cat([padded(x, longest) for x in tensors], 1) for tensors in zip(*parts, strict=True))
    return Episodes(*(x[:, :episodes] for x in whole))


def padded(x: Tensor, length: int) -> Tensor:
    """x [R, E, T, ...] with zeros after its last step."""
    return torch.cat([x, x.new_zeros(*x.shape[:2], length - x.shape[2], *x.shape[3:])], 2)


class Steps(NamedTuple):
    """Steps of episodes."""

    obs: Tensor  # [R, B, O]
    action: Tensor  # [R, B]
    reward: Tensor  # [R, B]
    next_obs: Tensor  # [R, B, O], anything after an episode's end
    done: Tensor  # [R, B], 1.0 where the episode ended, whether by the task or by a time limit
    returns: Tensor  # [R, B], the sum of rewards from this step on


class EpisodeBuffer:
    """The last `capacity` steps of each run, in the order of their episodes: the next observation is in the next row.

    Raises UserError if the device has not enough free memory.
    """

    def __init__(self, runs: int, capacity: int, task: Task, device: torch.device | str = "cpu"):
        self.capacity, self.obs_size, self.device = capacity, task.obs_size, torch.device(device)
        width = task.obs_size + 4
        self.nbytes = runs * capacity * width * torch.get_default_dtype().itemsize
        check_room(self.nbytes, f"a buffer of {capacity:,} steps", runs, self.device)
        self.rows = torch.zeros(runs, capacity, width, device=self.device)
        self.added = np.zeros(runs, np.int64)  # steps ever added, per run
        self.sizes = torch.ones(runs, 1, dtype=torch.int64, device=self.device)  # rows to choose from

    def add(self, episodes: Episodes, returns: Tensor, first: int = 0) -> None:
        """Adds the steps of episodes from time `first` on, with their returns [R, E, T]."""
        parts = [episodes.action[..., None], episodes.reward[..., None], episodes.done[..., None], returns[..., None]]
        rows = torch.cat([episodes.obs, *(part.to(self.rows.dtype) for part in parts)], -1)[:, :, first:]
        kept = episodes.running[:, :, first:]
        for run, (new, mask) in enumerate(zip(rows, kept, strict=True)):
            new = new[mask]
            start = int(self.added[run]) + max(len(new) - self.capacity, 0)
            self.added[run] += len(new)
            new = new[-self.capacity :]
            places = (start + torch.arange(len(new), device=self.device)) % self.capacity
            self.rows[run, places] = new
        self._count()

    def _count(self) -> None:
        sizes = np.minimum(self.added, self.capacity).clip(min=1)
        self.sizes.copy_(torch.from_numpy(sizes)[:, None])

    def choose(self, integers: Tensor) -> Tensor:
        """Rows [R, B] by random integers [R, B], uniformly and with replacement; row 0 where a run has none yet."""
        return integers % self.sizes

    def gather(self, rows: Tensor) -> Steps:
        """The steps in rows [R, B]."""
        flat = self.rows.view(-1, self.rows.shape[-1])
        first = torch.arange(len(self.rows), device=self.device)[:, None] * self.capacity
        now, following = (
            flat[:, :width].index_select(0, (first + (rows + step) % self.capacity).view(-1)).view(*rows.shape, width)
            for step, width in ((0, self.rows.shape[-1]), (1, self.obs_size))
        )
        obs, (action, reward, done, returns) = now[..., : self.obs_size], now[..., self.obs_size :].unbind(-1)
        return Steps(obs, action.long(), reward, following, done, returns)

    def state_dict(self) -> dict[str, Tensor]:
        """The rows that are in use: those of a run are one piece of memory, which is not copied."""
        filled = np.minimum(self.added, self.capacity)
        rows = {f"rows.{run}": self.rows[run, :n] for run, n in enumerate(filled)}
        return {"added": torch.from_numpy(self.added), **rows}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.added[:] = state["added"].numpy()
        filled = np.minimum(self.added, self.capacity)
        if "rows" in state:  # an earlier version saved it; `restore` compares the names, so they change in place
            table = state.pop("rows")
            state |= {f"rows.{run}": table[run, :n] for run, n in enumerate(filled)}
        for run, n in enumerate(filled):
            self.rows[run, :n] = state[f"rows.{run}"]
        self._count()
