"""Builds a dataset from rows that are read some at a time."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from algos.data.record import Dataset
from algos.errors import UserError


class Builder:
    """Appends rows to arrays that are never held twice; the system gives memory to them as they fill."""

    def __init__(self, capacity: int, obs_size: int, act_size: int):
        self.obs_size, self.act_size, self.filled, self.count = obs_size, act_size, 0, 0
        self.rows = np.empty((capacity, obs_size + act_size + 2), np.float32)
        self.index = np.empty(capacity, np.int64)
        self.states: list[NDArray[np.float64]] = []

    def add(self, obs: NDArray, action: NDArray, reward: Any, terminated: Any, keep: NDArray | None = None) -> None:
        """Appends n rows with the observations [n, O].

        The other arrays belong to the first n or n - 1 rows; these are transitions where `keep` is True, or all of them
        if it is None.
        """
        start, count = self.filled, len(action)
        if (obs.shape[1:], action.shape[1:]) != ((self.obs_size,), (self.act_size,)) or len(obs) - count not in (0, 1):
            raise ValueError(f"observations of shape {obs.shape} do not fit actions of shape {action.shape}")
        if {np.shape(reward), np.shape(terminated)} - {(), (count,)}:
            raise ValueError(f"rewards or terminations are not those of {count} steps")
        rows = self.rows[start : start + len(obs)]
        rows[:, : self.obs_size] = obs
        rows[count:, self.obs_size :] = 0
        rows[:count, self.obs_size : -2] = action
        with np.errstate(over="ignore"):  # numbers too large for float32 become infinite, which `validate` refuses
            rows[:count, -2], rows[:count, -1] = reward, terminated
        index = start + (np.arange(count) if keep is None else np.flatnonzero(keep))
        self.index[self.count : self.count + len(index)] = index
        self.filled, self.count = start + len(obs), self.count + len(index)

    def add_states(self, qpos: NDArray, qvel: NDArray) -> None:
        """Appends the simulator's states [n, S] before n transitions."""
        self.states.append(np.concatenate([qpos, qvel], 1, dtype=np.float64))

    def finish(self, name: str, **fields: Any) -> Dataset:
        """The dataset with all rows, and with these fields; raises UserError if it has no transition."""
        if not self.count:
            raise UserError(f"--dataset {name} has no transition")
        rows, index = torch.from_numpy(self.rows[: self.filled]), torch.from_numpy(self.index[: self.count])
        if sum(map(len, self.states)) == self.count:  # else some episodes have none
            fields["states"] = np.concatenate(self.states)
        return Dataset(name, rows, index, self.obs_size, self.act_size, **fields)
