"""The section of a report on where the variance of scores comes from: would more seeds or more episodes help?"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from benchmarks.analysis import Results, each
from benchmarks.parts import Part
from benchmarks.scores import among, label
from benchmarks.tables import Table, number, word

MOST_SEEDS = 10_000  # that advice may ask for


def variance_part(results: Results, precision: float) -> Part | None:
    """Where the variance of scores comes from, and what would make an interval narrower; None if nothing tells.

    `precision` is the half width of the intervals that advice is for, as a share of the mean.
    """
    late = results.scores.late(results.scores.table)
    late = late[late["episode_std"].notna() & (late["episodes"] > 1)]
    late = late[~among(late, results.scores.diverged)]  # these repeat the score that they had
    costs = costs_of(results)
    columns = ["task", "algorithm", "seeds", "checkpoints", "episodes", "half width of the interval"]
    columns += ["seeds × episodes of an evaluation needed", "seeds now", "evaluations × episodes now"]
    shown = Table(columns, [])
    by_seeds = 0
    for task, algorithm, rows in each(late, results.scores):
        means, spreads = (
            rows.pivot(index="seed", columns="step", values=name).dropna(axis=1) for name in ("return", "episode_std")
        )
        if means.shape[0] < 2 or not means.shape[1] or rows["episodes"].nunique() > 1:
            continue
        episodes = int(rows["episodes"].iloc[0])
        found = split(means.to_numpy(), spreads.to_numpy() ** 2, episodes)
        count, parts = found.evaluations, found.parts(episodes)
        whole = parts.sum()
        if not whole > 0:
            continue
        shares = [number(100 * part / whole, 0) for part in parts]
        if count == 1:  # one evaluation cannot tell a seed from a checkpoint
            shares[1] = word("–")
        by_seeds += parts[0] > whole / 2
        seeds = len(means)
        final = results.tasks.query("task == @task and algorithm == @algorithm and score == 'mean'").iloc[0]
        half = max(final["high"] - final["mean"], final["mean"] - final["low"])  # percentages may end at one side
        wanted = precision * abs(found.mean)
        words = "–"
        if wanted > 0 and (cost := costs.get((task, algorithm))):
            need = advice(found, wanted, *cost)
            words = f"{need[0]:,} × {need[1]:,}" if need else "over 10,000 seeds"
        shown.rows.append(
            [word(task), word(algorithm), *shares, number(half), word(words), number(seeds, 0),
             word(f"{count} × {episodes}")]
        )  # fmt: skip
    if not shown.rows:
        return None
    text = (
        "Shares, in percent, of the variance of a seed's score (mean of last 10%) that are due to seeds, to the "
        "checkpoints of a seed that are evaluated, and to episodes: random effects, by the method of moments. More "
        "episodes reduce the last part only, and more evaluations the last two. One evaluation cannot tell seeds from "
        "checkpoints: seeds then count for both. The column before the last two says how many seeds, and how many "
        f"episodes in each evaluation, would give an interval of ±{100 * precision:.3g}% of the mean at least cost, "
        "with as many evaluations as now, by the seconds that training and evaluation took here; the estimates rest on "
        "few seeds, so take them as a rough guide."
        + " Where the episodes are those of training, their number is no choice, and there is no advice."
        * any(map(of_training, results.scores.sources))
        + " Seeds that diverged are left out, but for the half width, which is that of the report."
        * bool(results.scores.diverged)
    )
    part = Part("Seeds or episodes", text, tables=[("Where the variance comes from", shown)])
    if by_seeds:
        part.sentences = [
            f"In {by_seeds} of {len(shown.rows)} rows, most of the variance is in the column of seeds: there, more "
            "episodes would make an interval little narrower, and more seeds would."
        ]
    return part


def of_training(config: dict[str, Any]) -> bool:
    """Whether the scores of a run are the returns of its episodes of training."""
    return (config.get("identity") or config.get("args", {})).get("eval_episodes") == 0


def costs_of(results: Results) -> dict[tuple[str, str], tuple[float, float]]:
    """Seconds of training of one run, and of one episode in each of its evaluations, by task and algorithm."""
    costs: dict[tuple[str, str], tuple[float, float]] = {}
    trained: dict[str, set[tuple[str, int]]] = {}  # the runs of each process
    for config in results.scores.sources:
        place = str(config.get("folder") or id(config))
        runs = {(str(config.get("setting")), seed) for seed in config["seeds"]}
        trained[place] = trained.get(place, set()) | runs
    episodes = results.scores.table.groupby(["task", "algorithm"])["episodes"].mean()  # of one evaluation
    for config in results.scores.sources:
        key = config["task"], label(config)
        count = len(trained[str(config.get("folder") or id(config))])
        seconds: Any = config.get("seconds")
        if seconds and key in episodes.index and not of_training(config):
            costs[key] = (
                (seconds + config.get("phase_seconds", 0.0)) / count,
                max(config.get("evaluation_seconds", 0.0) / count / float(episodes[key]), 1e-6),
            )
    return costs


@dataclass
class Split:
    """Variance of the score of one episode, by its sources: random effects of seeds, checkpoints and episodes."""

    seeds: float
    checkpoints: float  # evaluations of one seed, late in training
    episodes: float
    evaluations: int  # of each seed
    mean: float

    def parts(self, episodes: int) -> np.ndarray:
        """The variance of a seed's score by its sources, with so many episodes in each of its evaluations."""
        return np.array(
            [self.seeds, self.checkpoints / self.evaluations, self.episodes / (self.evaluations * episodes)]
        )


def split(means: np.ndarray, variances: np.ndarray, episodes: int) -> Split:
    """The random effects, by the method of moments: means and variances over episodes [seeds, evaluations] (n - 1).

    It takes two seeds or more. An estimate below 0 counts as 0.
    """
    seeds, evaluations = means.shape
    within, checkpoints = float(variances.mean()), 0.0
    if evaluations > 1:  # what all seeds learn between two evaluations is no chance
        apart = means - means.mean(1, keepdims=True) - means.mean(0) + means.mean()
        between = float((apart**2).sum() / ((seeds - 1) * (evaluations - 1)))
        checkpoints = max(0.0, between - within / episodes)
    of_seeds = float(means.mean(1).var(ddof=1))
    rest = max(0.0, of_seeds - checkpoints / evaluations - within / (evaluations * episodes))
    return Split(rest, checkpoints, within, evaluations, float(means.mean()))


def advice(found: Split, half_width: float, seed_cost: float, episode_cost: float) -> tuple[int, int] | None:
    """The seeds, and the episodes of each evaluation, by which the 95% interval has this half width at least cost.

    None if 10,000 seeds are too few. `seed_cost` is that of a seed's training, and `episode_cost` that of one more
    episode in each of its evaluations.
    """
    best: tuple[float, int, int] | None = None
    for episodes in (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000):
        variance = found.parts(episodes).sum()
        seeds = 2
        while float(stdtrit(seeds - 1, 0.975)) * np.sqrt(variance / seeds) > half_width and seeds < MOST_SEEDS:
            seeds += 1
        if seeds == MOST_SEEDS:
            continue
        cost = seeds * (seed_cost + episodes * episode_cost)
        if best is None or cost < best[0]:
            best = cost, seeds, episodes
    return (best[1], best[2]) if best else None
