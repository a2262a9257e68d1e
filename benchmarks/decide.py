"""Which of two algorithms is better, by their scores over seeds: a test, a verdict, and what so few seeds could show.

Where both have the same number of seeds, at least five, means are compared by Welch's t-test, as Colas et al. recommend
("A Hitchhiker's Guide to Statistical Comparisons of Reinforcement Learning Algorithms", arXiv 1904.06979). With fewer
seeds, or with different numbers of them, that test is wrong too often on lopsided scores, and its statistic is compared
with those of all exchanges of scores between the two algorithms instead (Janssen 1997), which is exact if the scores of
both have the same distribution. Where means are equal and one algorithm's scores spread far more than the other's, each
of these tests is wrong more often than it says if seeds are few. Two settings of one process see the same random
numbers, seed by seed, and are compared in pairs: by the paired t-test, or below five seeds by exchanges within pairs.
Where one lacks a seed of the other, the pairs of the seeds that both have are compared, if these are five or more and
nearly all.
The choice follows from how the runs were made, and from what came out only where neither side's scores differ at all,
which leaves a t-test without a p.

The mean over tasks is tested by exchanges in all tasks at once if one of its tasks is tested by exchanges.

Over all pairs and tasks of a report, p-values are corrected by Holm's method. `benchmarks.coverage` measures how often
a report has a wrong verdict.
"""

import bisect
import functools
import math
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from scipy.special import nctdtrinc, stdtr, stdtrit

from benchmarks.tables import number

LEVEL = 0.05  # probability of any wrong verdict in a report
POWER = 0.8  # with which the least difference would have been shown
FEWEST = 2  # seeds of each side
ENOUGH = 5  # seeds from which on the t-tests are right often enough
NEARLY = 0.8  # share of the seeds that both have, from which on pairs are compared
EXACT = 10  # most digits of a p-value
EXCHANGES = 20_000  # of scores, where there are more
ROUNDING = 1e-9  # relative to the scores: smaller differences are none
PAIRED = ("paired", "exchanges in pairs")  # tests
SIMULATED = 300  # samples of normal scores


@dataclass
class Comparison:
    """One pair on one task, or over several: a against b."""

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
    ours: NDArray  # scores of a over seeds
    theirs: NDArray  # of b; in the order of the same seeds if they are paired
    smallest: float = 0.0  # p that so many seeds could give
    corrected: float = 1.0  # p by Holm's method
    decidable: bool = True  # whether so many seeds could decide it among so many comparisons
    tasks: int = 1  # over which the difference is a mean
    # difference that would have been shown with a probability of 80%; NaN if it is not known, infinite if there is none
    least: float = np.nan
    most: float = np.inf  # difference that there can be
    lost: tuple[int, int] = (0, 0)  # runs that diverged before they had a score
    of_both: bool = False  # whether only seeds that both have are compared, and one has others too

    @property
    def verdict(self) -> str:
        """better, worse or not decided."""
        if not self.corrected < LEVEL:
            return "not decided"
        return "better" if self.difference > 0 else "worse"

    def sentence(self, unit: str, digits: int | None = None) -> str:
        """The verdict in words, with so many digits after the point of a difference."""
        where = f" {'over' if self.tasks > 1 else 'on'} {self.task}"
        p = "p < 0.001" if self.corrected < 0.001 else f"p = {beside_level(self.corrected, 2, 'g')}"
        size = number(self.difference, digits)[0]
        sign = "+" if self.difference > 0 and size.strip("0.") else ""
        told = f"{sign}{size} in {unit}, {p} after correction"
        told += f"; over the {self.seeds[0]} seeds that both have" if self.of_both else ""
        for name, lost in zip((self.a, self.b), self.lost, strict=True):
            told += f"; without {lost} run{'s' * (lost > 1)} of {name} that diverged before any score" if lost else ""
        if self.verdict != "not decided":
            doubt = "; Student's interval, which fits such scores badly, holds 0" if self.low < 0 < self.high else ""
            return f"{self.a} is {self.verdict} than {self.b}{where} ({told}{doubt})."
        known, few = "", f"{min(self.seeds)} seeds"
        if self.smallest >= LEVEL:
            known = f"; {few} cannot decide a difference, however large it is"
        elif not self.decidable:
            few = few if self.smallest > 1 / EXCHANGES else f"{EXCHANGES:,} exchanges"
            known = f"; among so many differences, {few} cannot decide one, however large it is"
        elif np.isinf(self.least):
            known = "; no difference, however large, would have been shown four times in five"
        elif np.isfinite(self.least):
            known = f"; a difference of {number(self.least, digits)[0]} would have been shown four times in five"
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
    whole = len(common) == len(ours) == len(theirs)
    nearly = len(common) >= max(ENOUGH, NEARLY * max(len(ours), len(theirs)))
    paired = paired and (whole or nearly)
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
    test, smallest = "paired" if paired else "Welch", 0.0
    if len(x) != len(y) or len(x) < ENOUGH:
        test = "exchanges in pairs" if paired else "exchanges"
        p, smallest = extreme(*exchanged(x / scale, y / scale, paired)), smallest_p([(len(x), len(y))], [paired])
    elif error > ROUNDING:
        p = float(2 * stdtr(freedom, -abs(difference) / error))
    elif difference:  # without any spread, a t-test knows no p
        test = "exchanges in pairs" if paired else "exchanges"
        p = smallest = smallest_p([(len(x), len(y))], [paired])
    else:
        p = 1.0
    difference, error = difference * scale, error * scale
    half = float(stdtrit(freedom, 0.975)) * error
    return Comparison(
        task, a, b, difference, difference - half, difference + half, p, test, correlation, (len(x), len(y)), error,
        freedom, x, y, smallest, of_both=paired and not whole,
    )  # fmt: skip


def beside_level(p: float, digits: int, kind: str) -> str:
    """A p-value with so many digits, in format's kind g or f, or with more where rounding would make it the level."""
    while float(f"{p:.{digits}{kind}}") == LEVEL != p and digits < EXACT:
        digits += 1
    return f"{p:.{digits}{kind}}"


def welch_error(x: NDArray, y: NDArray) -> tuple[float, float]:
    """The standard error of the difference of means, and its degrees of freedom."""
    variances = np.array([x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)])
    weights = (variances**2 / [len(x) - 1, len(y) - 1]).sum()
    freedom = float(variances.sum() ** 2 / weights) if weights > 0 else float(len(x) + len(y) - 2)
    return float(np.sqrt(variances.sum())), freedom


def paired_error(x: NDArray, y: NDArray) -> tuple[float, float]:
    """The standard error of the mean difference within pairs, and its degrees of freedom."""
    return float((x - y).std(ddof=1) / np.sqrt(len(x))), float(len(x) - 1)


def exchanged(x: NDArray, y: NDArray, paired: bool) -> tuple[NDArray, NDArray]:
    """The difference of means and its standard error after each exchange between x and y, as they are first of all."""
    n, m = len(x), len(y)
    if paired:
        gaps = (x - y) * flips(n)
        return gaps.mean(1), gaps.std(1, ddof=1) / np.sqrt(n)
    both = np.concatenate([x, y])
    both = both - both.mean()
    chosen = exchanges(n, m)
    sums, squares = chosen @ both, chosen @ both**2
    ours, theirs = sums / n, (both.sum() - sums) / m
    spread = (squares / n - ours**2) / (n - 1), ((both**2).sum() - squares) / m / (m - 1) - theirs**2 / (m - 1)
    return ours - theirs, np.sqrt(np.maximum(spread[0], 0) + np.maximum(spread[1], 0))


def smallest_p(seeds: list[tuple[int, int]], paired: list[bool]) -> float:
    """The smallest p-value of exchanges on tasks with these numbers of seeds.

    Where both sides have as many, one exchange and its mirror image are as far apart, if all exchanges are made.
    """
    counts = [2**n if pairs else math.comb(n + m, n) for (n, m), pairs in zip(seeds, paired, strict=True)]
    mirrored = all(n == m for n, m in seeds) and math.prod(counts) <= EXCHANGES
    return (2 if mirrored else 1) / min(math.prod(counts), EXCHANGES)


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


@functools.cache
def flips(n: int) -> NDArray:
    """Which of n pairs are exchanged, -1.0 or 1.0, in each exchange; the first changes none."""
    if 2**n > EXCHANGES:
        signs = np.random.default_rng(0).choice([1.0, -1.0], (EXCHANGES, n))
        signs[0] = 1.0
        return signs
    return np.array(list(product((1.0, -1.0), repeat=n)))


def extreme(differences: NDArray, errors: NDArray) -> float:
    """The share of statistics that are at least as far from 0 as the first, a p-value; equal scores have none."""
    gaps = np.where(np.abs(differences) < ROUNDING, 0.0, np.abs(differences))
    sizes = np.where(gaps > 0, gaps / np.maximum(errors, np.sqrt(ROUNDING)), 0.0)
    return float((sizes >= sizes[0] * (1 - 1e-6)).mean())


def exchanged_everywhere(parts: list[Comparison]) -> tuple[NDArray, NDArray]:
    """The mean difference over tasks and its standard error after exchanges in each task.

    All of them if these are at most 20,000, and else so many random ones; the first changes none.
    """
    rng, count = np.random.default_rng(0), len(parts)
    scale = max(float(np.abs([*one.ours, *one.theirs]).max()) for one in parts) or 1.0
    each = [exchanged(one.ours / scale, one.theirs / scale, one.test in PAIRED) for one in parts]
    sizes = [len(gaps) for gaps, _ in each]
    if math.prod(sizes) <= EXCHANGES:
        places = np.indices(sizes).reshape(count, -1)
    else:
        places = np.stack([rng.integers(size, size=EXCHANGES) for size in sizes])
        places[:, 0] = 0
    gap, variance = np.zeros(places.shape[1]), np.zeros(places.shape[1])
    for (gaps, errors), chosen in zip(each, places, strict=True):
        gap += gaps[chosen] / count
        variance += errors[chosen] ** 2 / count**2
    return gap, np.sqrt(variance)


def combined(name: str, parts: list[Comparison]) -> Comparison:
    """The mean difference over tasks, from comparisons of the same pair on each of them."""
    count = len(parts)
    variances = np.array([one.error**2 for one in parts]) / count**2
    error = float(np.sqrt(variances.sum()))
    weights = sum(variance**2 / one.freedom for variance, one in zip(variances, parts, strict=True))
    freedom = float(variances.sum() ** 2 / weights) if weights > 0 else sum(one.freedom for one in parts)
    difference = float(np.mean([one.difference for one in parts]))
    smallest = 0.0
    if any("exchanges" in one.test for one in parts) or error <= ROUNDING * abs(difference):
        p = extreme(*exchanged_everywhere(parts))
        smallest = smallest_p([one.seeds for one in parts], [one.test in PAIRED for one in parts])
    else:
        p = float(2 * stdtr(freedom, -abs(difference) / error))
    half = float(stdtrit(freedom, 0.975)) * error
    seeds = min(one.seeds[0] for one in parts), min(one.seeds[1] for one in parts)
    return Comparison(
        name, parts[0].a, parts[0].b, difference, difference - half, difference + half, p,
        " and ".join(dict.fromkeys(one.test for one in parts)), np.nan, seeds, error, freedom,
        np.array([]), np.array([]), smallest, tasks=count, most=float(np.mean([one.most for one in parts])),
        lost=(sum(one.lost[0] for one in parts), sum(one.lost[1] for one in parts)),
    )  # fmt: skip


def corrected(comparisons: list[Comparison]) -> list[Comparison]:
    """The same comparisons with p-values by Holm's method over all of them, and the least difference for each."""
    order = sorted(comparisons, key=lambda one: one.p)
    possible = decidable([one.smallest for one in order])
    highest = 0.0
    for place, one in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * one.p))
        one.corrected = highest
        one.decidable = possible[place]
        # exchanges find what a t-test finds where seeds are enough and allow for p-values far below the level
        if 5 * one.smallest <= LEVEL / len(order) and min(one.seeds) >= ENOUGH:
            one.least = least_difference(one.error, one.freedom, LEVEL / len(order))
        elif one.tasks == 1 and one.test == "exchanges" and one.smallest < LEVEL / len(order) and one.error > 0:
            one.least = one.error * least_by_exchanges(*one.seeds, LEVEL / len(order))
        if one.least > one.most:
            one.least = np.inf
    return comparisons


def decidable(smallest: list[float]) -> list[bool]:
    """Which of the comparisons with these smallest p-values Holm's method can decide, among all of them."""
    limits = sorted(smallest)
    # at best, all that can have a smaller p come before it
    return [(len(limits) - bisect.bisect_left(limits, p)) * p < LEVEL for p in smallest]


def too_few(seeds: int, pairs: int, in_pairs: int) -> str:
    """A sentence on a plan whose seeds can decide none of its comparisons, however far apart; otherwise empty.

    `pairs` are those of algorithms, and `in_pairs` those of the settings of one process, over all tasks.
    """
    if seeds >= ENOUGH or not pairs + in_pairs:
        return ""
    smallest = [smallest_p([(seeds, seeds)], [False])] * pairs + [smallest_p([(seeds, seeds)], [True])] * in_pairs
    if any(decidable(smallest)):
        return ""
    among = f"any of the {len(smallest)} differences" if len(smallest) > 1 else "the difference"
    count = f"{seeds} seed{'s' * (seeds > 1)}"
    return f"{count} cannot decide {among} on single tasks, however large: with {ENOUGH} or more, tests can"


def least_difference(error: float, freedom: float, level: float) -> float:
    """The difference that a two-sided t-test of this level finds with a probability of 80%, if the error is right.

    The power is that of the noncentral t-distribution; below three degrees of freedom there is no number.
    """
    if not (error > 0 and 3 <= freedom < np.inf):
        return np.nan
    edge = float(stdtrit(freedom, 1 - level / 2))  # beyond its negative, nothing is found at such a difference
    return float(nctdtrinc(freedom, 1 - POWER, edge)) * error


@functools.cache
def least_by_exchanges(n: int, m: int, level: float) -> float:
    """The difference, in standard errors, that exchanges of normal scores find with a probability of 80%: simulated.

    Infinite if no difference gives a p-value below the level.
    """
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((SIMULATED, n)), rng.standard_normal((SIMULATED, m))
    error = np.sqrt(1 / n + 1 / m)

    def lacking(size: float) -> float:
        found = [extreme(*exchanged(a + size * error, b, False)) < level for a, b in zip(x, y, strict=True)]
        return float(np.mean(found)) - POWER

    most = next((size for size in (5.0, 10.0, 100.0) if lacking(size) > 0), None)
    return float(optimize.bisect(lacking, 0.0, most, xtol=0.05)) if most else np.inf
