"""A test of two algorithms that looks again after every batch of seeds, and is wrong no more often for it.

It is AdaStop for two algorithms (Mathieu et al. 2023, arXiv 2306.10882): a group-sequential permutation test. After
look k of K, the sum over batches of the differences of means is compared with what it is when the scores of each batch
are exchanged between the two algorithms at random; the level alpha k / K may have been spent by then. Nothing is
assumed of the scores but that they would be exchangeable if the algorithms were equally good. The package `adastop`
compares the size of the difference with the quantile of the signed difference, so that its level of two-sided tests is
twice what it says; a test holds this module to it with half its level.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

DRAWS = 20_000  # exchanges, the first of which changes nothing


@dataclass
class Look:
    """What was found after a batch."""

    number: int  # from 1
    seeds: int  # of each algorithm so far
    means: tuple[float, float]
    statistic: float  # size of the sum of differences
    boundary: float  # above which it decides
    decision: str  # better, worse (a against b) or not decided


@dataclass
class Sequential:
    """The test: `batch` seeds of each algorithm for each of at most `most` looks, wrong with probability `alpha`."""

    batch: int
    most: int
    alpha: float = 0.05
    draws: int = DRAWS
    looks: list[Look] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.alive = np.ones(self.draws, bool)  # exchanges that no look has decided
        self.sums = np.zeros(self.draws)
        self.spent = 0.0

    def look(self, a: NDArray, b: NDArray) -> Look:
        """Looks at the scores of all seeds so far, batch by batch, each [number of looks · batch]."""
        number = len(self.looks) + 1
        if number > self.most or len(a) != len(b) or len(a) != number * self.batch:
            raise ValueError(f"look {number} needs {number * self.batch} seeds of each, got {len(a)} and {len(b)}")
        both = np.concatenate([x[-self.batch :] for x in (a, b)])
        rng = np.random.default_rng([number, self.batch])
        exchanged = rng.permuted(np.tile(both, (self.draws, 1)), axis=1)
        exchanged[0] = both
        self.sums += exchanged[:, : self.batch].mean(1) - exchanged[:, self.batch :].mean(1)
        sizes = np.sort(np.abs(self.sums[self.alive]))
        most = int(np.floor((self.alpha * number / self.most - self.spent) * self.draws + 1e-9))  # that may lie above
        boundary = float(sizes[-most - 1]) if most < len(sizes) else 0.0
        # values that differ by rounding are the same value
        above = self.alive & (np.abs(self.sums) > boundary * (1 + 1e-9) + 1e-12)
        self.spent += above.sum() / self.draws
        self.alive &= ~above
        statistic = float(abs(self.sums[0]))
        decision = ("better" if self.sums[0] > 0 else "worse") if above[0] else "not decided"
        found = Look(number, len(a), (float(np.mean(a)), float(np.mean(b))), statistic, boundary, decision)
        self.looks.append(found)
        return found
