"""What stands in for a whole run in tests of an agent."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import nn

from algos.nn import initialise
from algos.random import generators
from algos.replay import ReplayBuffer


class FakeRun:
    """What an agent asks of a run."""

    def __init__(self, seeds: Sequence[int] = (0, 1), obs_size: int = 3, act_size: int = 2, high: float = 1.0):
        self.seeds, self.runs, self.device = list(seeds), len(seeds), torch.device("cpu")
        bound = torch.full((act_size,), high)
        self.envs = SimpleNamespace(obs_size=obs_size, act_size=act_size, action_low=-bound, action_high=bound)

    def initialise(self, name: str, module: nn.Module) -> nn.Module:
        initialise(module, self.runs, generators(self.seeds, name))
        return module

    def replay(self, capacity: int = 64) -> ReplayBuffer:
        """A full buffer of standard normal numbers, about every sixth transition terminal."""
        buffer = ReplayBuffer(self.runs, capacity, self.envs.obs_size, self.envs.act_size)
        buffer.rows.copy_(torch.randn(buffer.rows.shape, generator=torch.Generator().manual_seed(0)))
        buffer.rows[..., -1] = (buffer.rows[..., -1] > 1).to(buffer.rows.dtype)
        buffer.added[:] = capacity
        return buffer
