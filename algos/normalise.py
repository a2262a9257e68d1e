"""Running statistics of observations and rewards, for each run by itself."""

import torch
from torch import Tensor, nn

from algos.per_run import PerRun

EPS = 1e-8  # inside the root


class Statistics(nn.Module):
    """Running mean and variance of samples [R, n] in float64, by Welford's recursion; they never decay."""

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, runs: int, size: int):
        super().__init__()
        self.register_buffer("count", torch.zeros(runs, 1, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(runs, size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(runs, size, dtype=torch.float64))

    @torch.no_grad()
    def update(self, x: Tensor, where: Tensor | None = None) -> None:
        """Takes a sample of each run, or only of the runs where `where` [R] is 1."""
        count = self.count + 1
        mean = self.mean + (x - self.mean) / count
        squares = self.squares + (x - self.mean) * (x - mean)
        for buffer, value in ((self.count, count), (self.mean, mean), (self.squares, squares)):
            buffer.copy_(value if where is None else torch.where(where[:, None] > 0, value, buffer))

    def variance(self) -> Tensor:
        """The unbiased variance [R, n]; 1 before the second sample."""
        return torch.where(self.count > 1, self.squares / (self.count - 1).clamp(min=1), 1.0)

    def normalise(self, x: Tensor) -> Tensor:
        """x [R, n], normalised by the present statistics, in the precision of networks."""
        return ((x - self.mean) / (self.variance() + EPS).sqrt()).to(torch.get_default_dtype())


class RewardScaler(nn.Module):
    """Divides rewards [R] by the running standard deviation of the discounted sum of rewards.

    The sum starts anew *before* the reward of an episode's last step is added, as in the official code, so that reward
    leaks into the next episode's sum.
    """

    total: Tensor

    def __init__(self, runs: int, discount: float | PerRun):
        super().__init__()
        self.discount = discount
        self.statistics = Statistics(runs, 1)
        self.register_buffer("total", torch.zeros(runs, dtype=torch.float64))

    @torch.no_grad()
    def forward(self, reward: Tensor, done: Tensor) -> Tensor:
        self.total.mul_(self.discount * (1 - done)).add_(reward)
        self.statistics.update(self.total[:, None])
        return (reward / self.scale()).to(torch.get_default_dtype())

    def scale(self) -> Tensor:
        """The standard deviation [R] that rewards are divided by."""
        return (self.statistics.variance()[:, 0] + EPS).sqrt()
