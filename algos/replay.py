"""Replay memory with a run axis, on the training device."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from algos.errors import UserError
from algos.memory import check_room
from envs import Task, Transition


class Batch(NamedTuple):
    """Transitions of every run; next_obs is the true next observation, never the one after a reset."""

    obs: Tensor  # [R, B, O]
    action: Tensor  # [R, B, A], or int64 [R, B] if actions are discrete
    reward: Tensor  # [R, B]
    next_obs: Tensor  # [R, B, O]
    terminated: Tensor  # [R, B], 1.0 where the task ended the episode; a time limit does not count


class ReplayBuffer:
    """The last `capacity` transitions of each run, one row for each transition: [R, capacity, O + A + 1 + O + 1].

    A row is one piece of memory, so a minibatch is one gather. Sampling is uniform with replacement, per run.
    Raises UserError if the device has not enough free memory for all of it.
    """

    def __init__(self, runs: int, capacity: int, task: Task, device: torch.device | str = "cpu", spare: int = 0):
        self.runs, self.capacity, self.discrete = runs, capacity, task.discrete
        self.widths = (task.obs_size, 1 if task.discrete else task.act_size, 1, task.obs_size, 1)
        width = sum(self.widths)
        self.nbytes = runs * capacity * width * torch.get_default_dtype().itemsize
        device = torch.device(device)
        check_room(self.nbytes, f"a replay buffer of {capacity:,} transitions", runs, device)
        self.rows = torch.empty(runs, capacity + spare, width, device=device)  # the spare ones are never sampled
        self.added = np.zeros(runs, np.int64)  # transitions ever added, per run
        self.offsets = torch.arange(runs, device=device)[:, None] * (capacity + spare)

    def add(self, batch: Transition | Batch) -> None:
        """Adds transitions [R, N, ...]: all, or those that the batch marks as `valid` [R, N], as environments do."""
        valid = getattr(batch, "valid", None)
        new_rows = self.packed(batch)
        count = new_rows.shape[1]
        if count > self.capacity:
            raise UserError(
                f"a replay buffer of {self.capacity} transitions cannot take a step of {count} environments"
            )
        start = int(self.added[0]) % self.capacity
        if valid is None and (self.added == self.added[0]).all() and start + count <= self.capacity:
            self.rows[:, start : start + count] = new_rows
            self.added += count
            return
        valid = np.ones((self.runs, count), bool) if valid is None else valid
        run, place = np.nonzero(valid)
        slot = (self.added[run] + (np.cumsum(valid, 1) - 1)[run, place]) % self.capacity
        r, p, s = (torch.from_numpy(i).to(self.rows.device) for i in (run, place, slot))
        self.rows[r, s] = new_rows[r, p]
        self.added += valid.sum(1)

    def packed(self, batch: Transition | Batch) -> Tensor:
        """Transitions [R, N, ...] as rows [R, N, W]."""
        action = batch.action.reshape(*batch.reward.shape, -1)
        parts = [batch.obs, action, batch.reward[..., None], batch.next_obs, batch.terminated[..., None]]
        return torch.cat([part.to(self.rows.dtype) for part in parts], -1)

    def choose(self, integers: Tensor) -> Tensor:
        """Turns random integers [R, B] from [0, 2^63) into indices [R, B] of filled rows.

        Raises ValueError if a run has none.
        """
        filled = np.minimum(self.added, self.capacity)
        if not filled.all():
            raise ValueError("a run has no transition in the replay buffer yet")
        if (filled == filled[0]).all():
            return integers % int(filled[0])
        return integers % torch.from_numpy(filled).to(integers.device)[:, None]

    def gather(self, indices: Tensor) -> Batch:
        """The transitions at `indices` [R, B] of each run."""
        rows = self.rows.view(-1, self.rows.shape[-1]).index_select(0, (indices + self.offsets).view(-1))
        obs, action, reward, next_obs, terminated = rows.view(*indices.shape, -1).split(self.widths, -1)
        if self.discrete:
            action = action.squeeze(-1).long()
        return Batch(obs, action, reward.squeeze(-1), next_obs, terminated.squeeze(-1))

    def state_dict(self) -> dict[str, Tensor]:
        filled = np.minimum(self.added, self.capacity)
        rows = {f"rows.{run}": self.rows[run, :n] for run, n in enumerate(filled)}
        return {"added": torch.from_numpy(self.added), **rows}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.added[:] = state["added"].numpy()
        for run in range(self.runs):
            saved = state[f"rows.{run}"]
            self.rows[run, : len(saved)] = saved
