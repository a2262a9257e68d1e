"""Running statistics of observations and rewards, for each run by itself."""

import torch
from torch import Tensor, nn

from algos.per_run import PerRun

EPS = 1e-8  # inside the root
PRIOR = 1e-4  # samples with mean 0 and variance 1 with which Gymnasium's wrappers begin
LIMIT = 10.0  # normalised observations and rewards are clipped to this absolute value


class Statistics(nn.Module):
    """Running mean and variance of samples [R, n], or of batches [R, N, n], in float64; they never decay.

    The mean and the sum of squared deviations of a batch are joined with those so far (Chan et al., "Algorithms for
    computing the sample variance", 1983); for a single sample this is Welford's recursion, as in stream-x.

    With a `prior`, the statistics begin as those of that many samples with mean 0 and variance 1, and the variance is
    divided by the number of samples instead of one less. With 1e-4 it is Gymnasium's `RunningMeanStd`, which its
    wrappers of observations and rewards use.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, runs: int, size: int, prior: float = 0.0):
        super().__init__()
        self.prior = prior
        self.register_buffer("count", torch.full((runs, 1), prior, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(runs, size, dtype=torch.float64))
        self.register_buffer("squares", torch.full((runs, size), prior, dtype=torch.float64))

    @torch.no_grad()
    def update(self, x: Tensor, where: Tensor | None = None) -> None:
        """Takes the samples of each run, or only of the runs where `where` [R] is 1."""
        added = 1 if x.dim() == 2 else x.shape[1]
        centre = x if x.dim() == 2 else x.double().mean(1)
        count = self.count + added
        mean = self.mean + added * (centre - self.mean) / count
        squares = self.squares + added * (centre - self.mean) * (centre - mean)
        if x.dim() > 2:
            squares = squares + (x - centre[:, None]).square().sum(1)
        for buffer, value in ((self.count, count), (self.mean, mean), (self.squares, squares)):
            buffer.copy_(value if where is None else torch.where(where[:, None] > 0, value, buffer))

    def variance(self) -> Tensor:
        """The variance [R, n]; without a prior it is the unbiased one, and 1 before the second sample."""
        if self.prior:
            return self.squares / self.count
        return torch.where(self.count > 1, self.squares / (self.count - 1).clamp(min=1), 1.0)

    def normalise(self, x: Tensor) -> Tensor:
        """x [R, n] or [R, N, n], normalised by the present statistics, in the precision of networks."""
        mean, scale = self.mean, (self.variance() + EPS).sqrt()
        if x.dim() > 2:
            mean, scale = mean[:, None], scale[:, None]
        return ((x - mean) / scale).to(torch.get_default_dtype())


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


class RewardNormaliser(nn.Module):
    """Divides rewards [R, N] by the running standard deviation of the discounted sums of rewards, and clips to +-10.

    It is `VecNormalize` of Stable-Baselines: each of the N environments has a sum, which starts anew after the last
    reward of an episode. Gymnasium's `NormalizeReward` does not clip, and differs at the ends of episodes: where the
    task ends one, it drops the sum before the last reward, and it keeps the sum after a time limit, except in vector
    environments that reset in the same step.
    """

    total: Tensor

    def __init__(self, runs: int, envs_per_run: int, discount: float | PerRun):
        super().__init__()
        self.discount = discount
        self.statistics = Statistics(runs, 1, prior=PRIOR)
        self.register_buffer("total", torch.zeros(runs, envs_per_run, dtype=torch.float64))

    @torch.no_grad()
    def forward(self, reward: Tensor, ended: Tensor) -> Tensor:
        total = self.discount * self.total + reward
        self.statistics.update(total[..., None])
        self.total.copy_(total * (1 - ended))
        scale = (self.statistics.variance() + EPS).sqrt()
        return (reward / scale).clamp(-LIMIT, LIMIT).to(torch.get_default_dtype())
