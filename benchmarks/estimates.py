"""Interval estimates for scores of several runs on several tasks: rliable's statistics with wider intervals.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264). Point
estimates are rliable's. Its percentile intervals cover the truth too rarely where there are few seeds. Those here do so
about nineteen times in twenty for scores that are nearly normal, and over several tasks, and mostly more often than
percentiles for others (`python -m benchmarks.coverage` measures it). Here, the interval of a task's mean is Student's,
and that of any other statistic, of a mean over tasks too, is Student's quantile times the standard error that a
bootstrap over runs, stratified by task, finds, times sqrt(N / (N - 1)) because a resample varies less than new runs
would. A single run has no interval.

rliable's bootstrap calls a Python function for each replication and ignores the random state that it is given; this one
resamples the runs of each task in the same way, but does all replications at once and from a fixed seed. Tests compare
the two.

Scores are [N, M] for N runs on each of M tasks, normalised so that 0 and 1 mean the same on all tasks.
"""

from collections.abc import Callable

import numpy as np
from rliable import metrics
from scipy.special import stdtrit

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


def percentiles(values: np.ndarray) -> np.ndarray:
    """rliable's interval, the 95% percentile interval over replications: [B, ...] -> [2, ...]."""
    return np.percentile(values, [2.5, 97.5], axis=0)


def quantile(freedom: np.ndarray | float) -> np.ndarray | float:
    """Student's 97.5% quantile; NaN without a degree of freedom."""
    return np.where(np.asarray(freedom) > 0, stdtrit(np.maximum(freedom, 1e-9), 0.975), np.nan)


def interval(point: np.ndarray | float, values: np.ndarray, runs: int, freedom: np.ndarray | float) -> np.ndarray:
    """95% interval [2, ...] of a statistic [...] from its values over replications [B, ...]; NaN for a single run.

    `runs` are those of a task, and `freedom` the degrees of freedom.
    """
    half = quantile(freedom) * values.std(0) * (np.sqrt(runs / (runs - 1)) if runs > 1 else np.nan)
    return np.stack([point - half, point + half])


def aggregates(scores: np.ndarray, replications: int = REPLICATIONS) -> dict[str, tuple[float, float, float]]:
    """IQM, median, mean and optimality gap: point estimate, low and high end of the 95% interval of each."""
    names = list(BATCHED)
    values = bootstrap(scores, lambda x: np.stack([BATCHED[name](x) for name in names], 1), replications)
    points = np.array([POINTS[name](scores) for name in names])
    low, high = interval(points, values, *freedom_of(scores))
    low[names.index("optimality gap")] = max(low[names.index("optimality gap")], 0.0)
    return {name: (float(points[i]), float(low[i]), float(high[i])) for i, name in enumerate(names)}


def freedom_of(scores: np.ndarray) -> tuple[int, np.ndarray]:
    """The runs of each task, and the degrees of freedom [...] of a mean over tasks, by Satterthwaite's formula.

    scores [N, M, ...]; tasks whose scores vary more count for more.
    """
    runs, tasks = scores.shape[:2]
    variances = scores.var(0, ddof=1) if runs > 1 else np.zeros(scores.shape[1:])
    weights = (variances**2).sum(0)
    even = np.full(weights.shape, float(tasks))
    return runs, (runs - 1) * np.divide(variances.sum(0) ** 2, weights, out=even, where=weights > 0)


def task_means(scores: np.ndarray) -> np.ndarray:
    """Student's 95% interval of the mean over runs, for each task: [N, M, ...] -> [2, M, ...]; NaN for a single run."""
    runs = len(scores)
    error = scores.std(0, ddof=1) / np.sqrt(runs) if runs > 1 else np.full(scores.shape[1:], np.nan)
    half = quantile(runs - 1) * error
    return np.stack([scores.mean(0) - half, scores.mean(0) + half])


def profile(
    scores: np.ndarray, thresholds: np.ndarray, replications: int = REPLICATIONS
) -> tuple[np.ndarray, np.ndarray]:
    """Share of all runs above each threshold, [T], and its 95% interval, [2, T]: rliable's run-score distribution."""

    def share(x: np.ndarray) -> np.ndarray:
        flat = np.sort(x.reshape(len(x), -1), 1)
        return 1 - np.stack([np.searchsorted(row, thresholds, "right") for row in flat]) / flat.shape[1]

    point = share(scores[None])[0]
    return point, interval(point, bootstrap(scores, share, replications), *freedom_of(scores)).clip(0, 1)


def iqm_curve(scores: np.ndarray, replications: int = REPLICATIONS) -> tuple[np.ndarray, np.ndarray]:
    """IQM over training, [T], with pointwise 95% intervals, [2, T]: scores [N, M, T]."""

    def iqm(x: np.ndarray) -> np.ndarray:
        return middle_half(x.reshape(len(x), -1, x.shape[-1]).swapaxes(1, 2))

    point = iqm(scores[None])[0]
    return point, interval(point, bootstrap(scores, iqm, replications), *freedom_of(scores))


def improvement(x: np.ndarray, y: np.ndarray, replications: int = REPLICATIONS) -> tuple[float, float, float]:
    """Probability that a run of x beats a run of y on a task chosen at random, and its 95% interval; ties count half.

    x [N, M] and y [K, M] are resampled independently. A resample is a count for each run, so that all pairs of runs are
    compared only once.
    """
    wins = (x.T[:, :, None] > y.T[:, None, :]) + 0.5 * (x.T[:, :, None] == y.T[:, None, :])  # [M, N, K]
    values = improvements(wins, replications)
    m, n, k = wins.shape
    share, fewest = float(wins.mean()), min(n, k)
    if fewest < 2:
        return share, np.nan, np.nan
    # Wilson's interval of as many independent games as would have this standard error: never without a width. Where no
    # run of one side reaches the other's, there are as few as if the scores of one side were all alike: with more, it
    # holds too rarely where spreads differ much.
    variance = float(values.var()) * fewest / (fewest - 1)
    games = min(share * (1 - share) / variance, m * n * k) if variance > 0 and 0 < share < 1 else float(m * fewest)
    square = float(quantile(m * (n + k - 2))) ** 2
    centre = (share + square / (2 * games)) / (1 + square / games)
    half = np.sqrt(square * (share * (1 - share) / games + square / (4 * games**2))) / (1 + square / games)
    return share, max(float(centre - half), 0.0), min(float(centre + half), 1.0)


def improvements(wins: np.ndarray, replications: int) -> np.ndarray:
    """Probabilities of improvement [B] over resamples, from what each run wins against each other one [M, N, K]."""
    rng = np.random.default_rng(0)
    m, n, k = wins.shape
    ours = rng.multinomial(n, [1 / n] * n, (replications, m)) / n  # [B, M, N]
    theirs = rng.multinomial(k, [1 / k] * k, (replications, m)) / k
    return (np.matmul(ours.swapaxes(0, 1), wins).swapaxes(0, 1) * theirs).sum(-1).mean(-1)
