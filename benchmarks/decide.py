"""Which of two algorithms is better, by their scores over seeds: a test, a verdict, and what so few seeds could show.

Where both have the same number of seeds, at least five, means are compared by Welch's t-test, as Colas et al. recommend
("A Hitchhiker's Guide to Statistical Comparisons of Reinforcement Learning Algorithms", arXiv 1904.06979). With fewer
seeds, or with different numbers of them, that test is wrong too often on lopsided scores, and its statistic is compared
with those of all exchanges of scores between the two algorithms instead (Janssen 1997), which is exact if the two are
equally good. Two settings of one process see the same random numbers, seed by seed, and are compared in pairs: by the
paired t-test, or below five seeds by exchanges within pairs. The choice follows from how the runs were made, never
from what came out.

Over all pairs and tasks of a report, p-values are corrected by Holm's method. `benchmarks.coverage` measures how often
a report has a wrong verdict.
"""

import functools
import math
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import stdtr, stdtrit

from benchmarks.tables import number

LEVEL = 0.05  # probability of any wrong verdict in a report
POWER = 0.8  # with which the least difference would have been shown
FEWEST = 2  # seeds of each side
ENOUGH = 5  # seeds from which on the t-tests are right often enough
EXCHANGES = 20_000  # of scores, where there are more
ROUNDING = 1e-9  # relative to the scores: smaller differences are none
ALL_TASKS = "all tasks"
MOST_SEEDS = 10_000  # that advice may ask for


@dataclass
class Comparison:
    """One pair on one task: a against b."""

    task: str
    a: str
    b: str
    difference: float  # of the means, a - b
    low: float  # of its 95% interval, which is not corrected
    high: float
    p: float
    test: str  # Welch, paired, exchanges or exchanges in pairs
    correlation: float  # over the seeds that both have; NaN if it is not known
    seeds: tuple[int, int]
    error: float  # standard error of the difference
    freedom: float
    corrected: float = 1.0  # p by Holm's method
    level: float = LEVEL  # of the test that is hardest to pass, with which all others are corrected

    @property
    def least(self) -> float:
        """The difference that would have been shown with a probability of 80%."""
        return least_difference(self.error, self.freedom, self.level)

    @property
    def verdict(self) -> str:
        """better, worse or not decided."""
        if not self.corrected < LEVEL:
            return "not decided"
        return "better" if self.difference > 0 else "worse"

    def sentence(self, unit: str) -> str:
        """The verdict in words."""
        where = f" on {self.task}" if self.task != ALL_TASKS else " over all tasks"
        p = "p < 0.001" if self.corrected < 0.001 else f"p = {self.corrected:.2g}"
        sign = "+" if self.difference > 0 else ""
        told = f"{sign}{number(self.difference)[0]} in {unit}, {p} after correction"
        if self.verdict != "not decided":
            return f"{self.a} is {self.verdict} than {self.b}{where} ({told})."
        known = ""
        if np.isfinite(self.least):
            known = f"; a difference of {number(self.least)[0]} would have been shown four times in five"
        return f"Between {self.a} and {self.b}{where} it is not decided ({told}{known})."


def compare(
    task: str, a: str, b: str, ours: dict[int, float], theirs: dict[int, float], paired: bool = False
) -> Comparison | None:
    """Two algorithms by their scores, seed -> score; None where one has fewer than two seeds."""
    common = sorted(set(ours) & set(theirs))
    pairs = np.array([(ours[seed], theirs[seed]) for seed in common]).reshape(-1, 2)
    correlation = np.nan
    if len(pairs) > 2 and (pairs.std(0) > 0).all():
        correlation = float(np.corrcoef(pairs.T)[0, 1])
    paired = paired and len(common) == len(ours) == len(theirs)
    x, y = (np.array(list(scores.values()), float) for scores in (ours, theirs))
    if min(len(x), len(y)) < FEWEST:
        return None
    if paired:
        x, y = pairs.T
    scale = float(np.abs([*x, *y]).max()) or 1.0  # squares of very large scores are no numbers
    error, freedom = (paired_error if paired else welch_error)(x / scale, y / scale)
    difference = float((x / scale).mean() - (y / scale).mean())
    if abs(difference) < ROUNDING:
        difference = 0.0
    test = "paired" if paired else "Welch"
    if paired and len(x) < ENOUGH:
        p, test = exchanged_pairs(x / scale, y / scale), "exchanges in pairs"
    elif not paired and (len(x) != len(y) or len(x) < ENOUGH):
        p, test = exchanged(x / scale, y / scale), "exchanges"
    elif error > ROUNDING:
        p = float(2 * stdtr(freedom, -abs(difference) / error))
    else:  # one exchange of the scores, and its mirror image, are as far apart
        p = 2 / (2 ** len(x) if paired else math.comb(2 * len(x), len(x))) if difference else 1.0
    difference, error = difference * scale, error * scale
    half = float(stdtrit(freedom, 0.975)) * error
    return Comparison(
        task, a, b, difference, difference - half, difference + half, p, test, correlation, (len(x), len(y)), error,
        freedom,
    )  # fmt: skip


def welch_error(x: NDArray, y: NDArray) -> tuple[float, float]:
    """The standard error of the difference of means, and its degrees of freedom."""
    variances = np.array([x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)])
    weights = (variances**2 / [len(x) - 1, len(y) - 1]).sum()
    freedom = float(variances.sum() ** 2 / weights) if weights > 0 else float(len(x) + len(y) - 2)
    return float(np.sqrt(variances.sum())), freedom


def paired_error(x: NDArray, y: NDArray) -> tuple[float, float]:
    """The standard error of the mean difference within pairs, and its degrees of freedom."""
    return float((x - y).std(ddof=1) / np.sqrt(len(x))), float(len(x) - 1)


def exchanged(x: NDArray, y: NDArray) -> float:
    """The share of exchanges between x and y whose Welch statistic is at least as far from 0: a p-value."""
    both, n, m = np.concatenate([x, y]), len(x), len(y)
    both = both - both.mean()
    chosen = exchanges(n, m)
    sums, squares = chosen @ both, chosen @ both**2
    ours, theirs = sums / n, (both.sum() - sums) / m
    spread = (squares / n - ours**2) / (n - 1), ((both**2).sum() - squares) / m / (m - 1) - theirs**2 / (m - 1)
    error = np.sqrt(np.maximum(spread[0], 0) + np.maximum(spread[1], 0))
    return extreme(ours - theirs, error, ours[0] - theirs[0], error[0])


@functools.cache
def exchanges(n: int, m: int) -> NDArray:
    """Which n of n + m scores are the first algorithm's, 1.0 or 0.0, in each exchange; the first changes none."""
    count = math.comb(n + m, n)
    if count > EXCHANGES:
        chosen = np.random.default_rng(0).permuted(np.tile(np.arange(n + m) < n, (EXCHANGES, 1)), axis=1)
        chosen[0] = np.arange(n + m) < n
        return chosen.astype(float)
    chosen = np.zeros((count, n + m))
    for row, places in enumerate(combinations(range(n + m), n)):
        chosen[row, list(places)] = 1.0
    return chosen


def exchanged_pairs(x: NDArray, y: NDArray) -> float:
    """The share of exchanges within pairs whose paired statistic is at least as far from 0: a p-value."""
    gaps = (x - y) * np.array(list(product((1, -1), repeat=len(x))))
    return extreme(gaps.mean(1), gaps.std(1, ddof=1) / np.sqrt(len(x)), (x - y).mean(), paired_error(x, y)[0])


def extreme(differences: NDArray, errors: NDArray, difference: float, error: float) -> float:
    """The share of statistics that are at least as large as the one that was found; equal scores have none."""

    def size(gap: NDArray, spread: NDArray) -> NDArray:
        gap = np.where(np.abs(gap) < ROUNDING, 0.0, np.abs(gap))
        return np.where(gap > 0, gap / np.maximum(spread, np.sqrt(ROUNDING)), 0.0)

    found = size(np.array(difference), np.array(error))
    return float((size(differences, errors) >= found * (1 - 1e-6)).mean())


def combined(name: str, parts: list[Comparison]) -> Comparison:
    """The mean difference over tasks, from comparisons of the same pair on each of them."""
    count = len(parts)
    variances = np.array([one.error**2 for one in parts]) / count**2
    error = float(np.sqrt(variances.sum()))
    weights = sum(variance**2 / one.freedom for variance, one in zip(variances, parts, strict=True))
    freedom = float(variances.sum() ** 2 / weights) if weights > 0 else sum(one.freedom for one in parts)
    difference = float(np.mean([one.difference for one in parts]))
    p = float(2 * stdtr(freedom, -abs(difference) / error)) if error > 0 else max(one.p for one in parts)
    if any("exchanges" in one.test for one in parts):
        p = min(1.0, count * min(one.p for one in parts))  # Bonferroni: no task alone is wrong too often
    half = float(stdtrit(freedom, 0.975)) * error
    seeds = min(one.seeds[0] for one in parts), min(one.seeds[1] for one in parts)
    return Comparison(
        name, parts[0].a, parts[0].b, difference, difference - half, difference + half, p,
        " and ".join(dict.fromkeys(one.test for one in parts)), np.nan, seeds, error, freedom,
    )  # fmt: skip


def corrected(comparisons: list[Comparison]) -> list[Comparison]:
    """The same comparisons with p-values by Holm's method over all of them, and the least difference for each."""
    order = sorted(comparisons, key=lambda one: one.p)
    highest = 0.0
    for place, one in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * one.p))
        one.corrected = highest
        one.level = LEVEL / len(order)
    return comparisons


def least_difference(error: float, freedom: float, level: float) -> float:
    """The difference that a two-sided t-test of this level finds with a probability of 80%, if the error is right.

    The power is that of the noncentral t-distribution; below three degrees of freedom there is no number.
    """
    if not (error > 0 and 3 <= freedom < np.inf):
        return np.nan
    edge = float(stdtrit(freedom, 1 - level / 2))
    low, high = 0.0, 4 * edge + 40.0
    for _ in range(60):
        middle = (low + high) / 2
        power = float(stats.nct.sf(edge, freedom, middle) + stats.nct.cdf(-edge, freedom, middle))
        low, high = (middle, high) if power < POWER else (low, middle)
    return high * error


# -- where the variance comes from -------------------------------------------------------------------------------------


@dataclass
class Split:
    """Variance of the score of one episode, by its sources: random effects of seeds, checkpoints and episodes."""

    seeds: float
    checkpoints: float  # evaluations of one seed, late in training
    episodes: float
    evaluations: int  # of each seed
    episodes_each: int  # of each evaluation
    mean: float

    def error(self, seeds: int, evaluations: int, episodes: int) -> float:
        """The standard error of the mean over seeds."""
        return float(
            np.sqrt((self.seeds + self.checkpoints / evaluations + self.episodes / (evaluations * episodes)) / seeds)
        )


def split(means: np.ndarray, variances: np.ndarray, episodes: int) -> Split:
    """The random effects, by the method of moments: means and variances over episodes [seeds, evaluations] (n - 1).

    An estimate below 0 counts as 0.
    """
    seeds, evaluations = means.shape
    within = float(variances.mean())
    between = float(means.var(1, ddof=1).mean()) if evaluations > 1 else 0.0
    checkpoints = max(0.0, between - within / episodes) if evaluations > 1 else 0.0
    of_seeds = float(means.mean(1).var(ddof=1)) if seeds > 1 else 0.0
    rest = max(0.0, of_seeds - checkpoints / evaluations - within / (evaluations * episodes))
    return Split(rest, checkpoints, within, evaluations, episodes, float(means.mean()))


def advice(found: Split, half_width: float, seed_cost: float, episode_cost: float) -> tuple[int, int] | None:
    """The seeds, and the episodes of each evaluation, by which the 95% interval has this half width at least cost.

    None if 10,000 seeds are too few. A seed costs its training, and each of its evaluations the episodes.
    """
    best: tuple[float, int, int] | None = None
    for episodes in (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000):
        variance = found.error(1, found.evaluations, episodes) ** 2
        seeds = 2
        while float(stdtrit(seeds - 1, 0.975)) * np.sqrt(variance / seeds) > half_width and seeds < MOST_SEEDS:
            seeds += 1
        if seeds == MOST_SEEDS:
            continue
        cost = seeds * (seed_cost + found.evaluations * episodes * episode_cost)
        if best is None or cost < best[0]:
            best = cost, seeds, episodes
    return (best[1], best[2]) if best else None
