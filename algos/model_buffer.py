"""Replay memory for the steps of a model: on the device, without a copy to the host."""

import numpy as np
import torch
from torch import Tensor

from algos.replay import Batch, ReplayBuffer
from envs import Task


class ModelBuffer(ReplayBuffer):
    """The last `capacity` steps that were put in for each run; rows of a batch that are not alive are left out.

    How many a run has is known on the device alone, so that `put` copies nothing to the host.
    """

    def __init__(self, runs: int, capacity: int, task: Task, device: torch.device | str = "cpu"):
        super().__init__(runs, capacity, task, device, spare=1)  # the spare row takes the steps that do not count
        self.count = torch.zeros(runs, dtype=torch.int64, device=device)  # rows ever added

    @torch.no_grad()
    def put(self, batch: Batch, alive: Tensor) -> None:
        """Adds those steps [R, B, ...] that are `alive` [R, B]; they take the places of the oldest ones."""
        rows = self.packed(batch)
        order = alive.long().cumsum(1)
        places = (self.count[:, None] + order - 1) % self.capacity
        places = torch.where(alive, places, self.capacity) + self.offsets
        self.rows.view(-1, rows.shape[-1]).index_copy_(0, places.view(-1), rows.view(-1, rows.shape[-1]))
        self.count += order[:, -1]

    def choose(self, integers: Tensor) -> Tensor:
        """Turns random integers [R, B] from [0, 2^63) into indices [R, B] of filled rows."""
        return integers % self.count.clamp(1, self.capacity)[:, None]

    def state_dict(self) -> dict[str, Tensor]:
        self.added[:] = self.count.cpu().numpy()
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.count.copy_(torch.from_numpy(np.asarray(self.added)))
