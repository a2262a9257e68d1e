"""Interval estimates for scores of several runs on several tasks: rliable's statistics with this module's bootstrap.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264). Point
estimates are rliable's. Its bootstrap calls a Python function for each replication and ignores the random state that it
is given; this one resamples the runs of each task in the same way, but does all replications at once and from a fixed
seed. Tests compare the two.

Scores are [N, M] for N runs on each of M tasks, normalised so that 0 and 1 mean the same on all tasks.
"""

from collections.abc import Callable

import numpy as np
from rliable import metrics

REPLICATIONS = 2_000
CHUNK = 4_000_000  # numbers that are resampled at a time


def middle_half(x: np.ndarray) -> np.ndarray:
    """Mean of the middle half along the last axis: scipy's trim_mean, several times faster."""
    cut = int(0.25 * x.shape[-1])
    return np.sort(x, -1)[..., cut : x.shape[-1] - cut].mean(-1)


POINTS: dict[str, Callable[[np.ndarray], float]] = {
    "IQM": metrics.aggregate_iqm,
    "median": metrics.aggregate_median,
    "mean": metrics.aggregate_mean,
    "optimality gap": metrics.aggregate_optimality_gap,
}
# the same for all replications at once: [B, N, M] -> [B]
BATCHED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "IQM": lambda x: middle_half(x.reshape(len(x), -1)),
    "median": lambda x: np.median(x.mean(1), 1),
    "mean": lambda x: x.mean((1, 2)),
    "optimality gap": lambda x: (1 - np.minimum(x, 1)).mean((1, 2)),
}


def bootstrap(
    scores: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], replications: int = REPLICATIONS
) -> np.ndarray:
    """Values of a statistic over resamples in which the runs of each task are drawn with replacement.

    scores [N, M, ...]; the statistic maps [B, N, M, ...] to [B, ...]. The further axes of a run stay together.
    """
    rng = np.random.default_rng(0)
    n, m = scores.shape[:2]
    index = rng.integers(n, size=(replications, n, m), dtype=np.int32)
    size = max(1, CHUNK // scores.size)
    parts = [statistic(scores[index[i : i + size], np.arange(m)]) for i in range(0, replications, size)]
    return np.concatenate(parts)


def interval(values: np.ndarray) -> np.ndarray:
    """95% percentile interval over replications: [B, ...] -> [2, ...]."""
    return np.percentile(values, [2.5, 97.5], axis=0)


def aggregates(scores: np.ndarray, replications: int = REPLICATIONS) -> dict[str, tuple[float, float, float]]:
    """IQM, median, mean and optimality gap: point estimate, low and high end of the 95% interval of each."""
    names = list(BATCHED)
    values = bootstrap(scores, lambda x: np.stack([BATCHED[name](x) for name in names], 1), replications)
    low, high = interval(values)
    return {name: (float(POINTS[name](scores)), float(low[i]), float(high[i])) for i, name in enumerate(names)}


def task_means(scores: np.ndarray, replications: int = REPLICATIONS) -> np.ndarray:
    """95% interval of the mean over runs, for each task: [N, M, ...] -> [2, M, ...]."""
    return interval(bootstrap(scores, lambda x: x.mean(1), replications))


def profile(
    scores: np.ndarray, thresholds: np.ndarray, replications: int = REPLICATIONS
) -> tuple[np.ndarray, np.ndarray]:
    """Share of all runs above each threshold, [T], and its 95% interval, [2, T]: rliable's run-score distribution."""

    def share(x: np.ndarray) -> np.ndarray:
        flat = np.sort(x.reshape(len(x), -1), 1)
        return 1 - np.stack([np.searchsorted(row, thresholds, "right") for row in flat]) / flat.shape[1]

    return share(scores[None])[0], interval(bootstrap(scores, share, replications))


def iqm_curve(scores: np.ndarray, replications: int = REPLICATIONS) -> tuple[np.ndarray, np.ndarray]:
    """IQM over training, [T], with pointwise 95% intervals, [2, T]: scores [N, M, T]."""

    def iqm(x: np.ndarray) -> np.ndarray:
        return middle_half(x.reshape(len(x), -1, x.shape[-1]).swapaxes(1, 2))

    return iqm(scores[None])[0], interval(bootstrap(scores, iqm, replications))


def improvement(x: np.ndarray, y: np.ndarray, replications: int = REPLICATIONS) -> tuple[float, float, float]:
    """Probability that a run of x beats a run of y on a task chosen at random, and its 95% interval; ties count half.

    x [N, M] and y [K, M] are resampled independently. A resample is a count for each run, so that all pairs of runs are
    compared only once.
    """
    wins = (x.T[:, :, None] > y.T[:, None, :]) + 0.5 * (x.T[:, :, None] == y.T[:, None, :])  # [M, N, K]
    rng = np.random.default_rng(0)
    m, n, k = wins.shape
    ours = rng.multinomial(n, [1 / n] * n, (replications, m)) / n  # [B, M, N]
    theirs = rng.multinomial(k, [1 / k] * k, (replications, m)) / k
    values = (np.matmul(ours.swapaxes(0, 1), wins).swapaxes(0, 1) * theirs).sum(-1).mean(-1)
    low, high = interval(values)
    return float(wins.mean()), float(low), float(high)
