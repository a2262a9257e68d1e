"""The numbers of a report: tables of interval estimates, curves, and an order of the algorithms."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from benchmarks import estimates
from benchmarks.figures import Curve, Styles, styles_of
from benchmarks.scores import LABELS, PERCENT, Scores, final_scores, known_definitions, matrices, normalise, plain
from benchmarks.suite import Score

MOST_STEPS = 200  # steps of a curve of IQMs, evenly spread with the first and the last, as each takes a bootstrap
MOST_CURVES = 12  # algorithms in a figure of curves, where some of them are settings
MOST_ROWS = 30  # algorithms in a figure with a row for each


@dataclass
class Results:
    """Everything that a report shows, as numbers.

    `definitions`: those of scores that all seeds have evaluations enough for; `score` is the headline's.
    `final`: task, algorithm, seed, and for each definition the return and, with references, the normalised score.
    `tasks`: task, algorithm, score, mean, std, low, high, seeds, steps. `aggregates`: score, algorithm, statistic,
    value, low, high, tasks, seeds. `matrices`: the headline scores [seeds, tasks] of each algorithm on the tasks that
    all algorithms have in `common`. `ranked`: all algorithms, the best by the headline score first.
    """

    scores: Scores
    references: pd.DataFrame | None
    score: Score
    definitions: list[Score]
    final: pd.DataFrame
    tasks: pd.DataFrame
    aggregates: pd.DataFrame
    common: list[str]
    matrices: dict[str, np.ndarray]
    ranked: list[str]
    replications: int
    names: dict[str, str] = field(init=False)
    """the name of each algorithm in figures: the values of its setting if all are settings of one, otherwise its own"""
    names_are: str = field(init=False, default="")
    """the hyperparameters whose values serve as names; empty otherwise"""

    def __post_init__(self) -> None:
        algorithms = self.scores.algorithms
        self.names = {name: name for name in algorithms}
        if list(self.scores.grids.values()) == [algorithms]:
            settings = self.scores.settings
            self.names = {name: ", ".join(map(plain, settings[name].values())) for name in algorithms}
            self.names_are = ", ".join(self.scores.varied)

    @cached_property
    def styles(self) -> Styles:
        """Colour and line style of each algorithm in curves, the same in all figures."""
        return styles_of(self.in_curves, self.scores.settings)

    @property
    def unit(self) -> str:
        return self.scores.measure if self.references is None else "normalised score"

    def unit_of(self, task: str) -> str:
        """The unit on one task, or over all of them."""
        known = self.references is None and task in self.scores.tasks
        return self.scores.measure_of(task) if known else self.unit

    @property
    def headline(self) -> str:
        """The column of `final` that holds the headline score, normalised where there are references."""
        return self.score if self.references is None else f"{self.score}_normalised"

    @property
    def fewest(self) -> int:
        """The fewest seeds behind an interval; 0 if there is none."""
        counts = self.tasks["seeds"]
        return int(counts[counts > 1].min()) if (counts > 1).any() else 0

    @property
    def in_curves(self) -> list[str]:
        """The algorithms that figures of curves show: all of them, or without the worst settings if they are many."""
        algorithms, settings = self.scores.algorithms, self.scores.settings
        if not settings or len(algorithms) <= MOST_CURVES:
            return algorithms
        others = [name for name in algorithms if name not in settings]
        best = [name for name in self.ranked if name in settings][: max(MOST_CURVES - len(others), 4)]
        return [name for name in algorithms if name in (*others, *best)]

    @property
    def in_rows(self) -> list[str]:
        """The algorithms that figures with a row for each show: all of them, or the best if they are many."""
        best = self.ranked[:MOST_ROWS]
        return [name for name in self.scores.algorithms if name in best]

    @property
    def left_out(self) -> str:
        """A sentence on the algorithms that no curve shows, to follow another one."""
        shown, algorithms = len(self.in_curves), len(self.scores.algorithms)
        if shown == algorithms:
            return ""
        return (
            f" Figures show {shown} of the {algorithms} algorithms and settings: the best settings by the "
            f"{LABELS[self.score]}."
        )


def compute(scores: Scores, references: pd.DataFrame | None, score: Score, replications: int) -> Results:
    """All tables of a report."""
    scores.table["normalised"] = normalise(scores.table, references)
    final = final_scores(scores.table)
    normal = final_scores(scores.table, "normalised")
    if references is not None:
        final = final.merge(normal, on=["task", "algorithm", "seed"], suffixes=("", "_normalised"))
    steps = scores.ends
    definitions = known_definitions(final, score)
    rows = []
    for task, algorithm, frame in each(final, scores):
        least, most = limits(scores, None, [task])
        for definition in definitions:
            values = frame[definition].to_numpy()
            low, high = estimates.task_means(values[:, None])[:, 0]
            low, high = max(low, least), min(high, most)
            row = {"task": task, "algorithm": algorithm, "score": definition, "mean": values.mean()}
            row |= {"std": values.std(ddof=1) if len(values) > 1 else np.nan, "low": low, "high": high}
            rows.append(row | {"seeds": len(values), "steps": steps[task]})
    tasks = pd.DataFrame(rows)

    rows = []
    common: list[str] = []
    headline: dict[str, np.ndarray] = {}
    for definition in definitions:
        by_algorithm, common, notes = matrices(normal, definition, references is not None)
        by_algorithm = {name: by_algorithm[name] for name in scores.algorithms if name in by_algorithm}
        if definition == score:
            headline = by_algorithm
            scores.notes += notes
        if references is None and len(common) > 1:
            continue
        least, most = limits(scores, references, common)
        for algorithm, matrix in by_algorithm.items():
            for name, (value, low, high) in estimates.aggregates(matrix, replications).items():
                if name == "optimality gap" and references is None:
                    continue
                if name == "optimality gap":
                    high = min(high, 1 - least)
                else:
                    low, high = max(low, least), min(high, most)
                row = {"score": definition, "algorithm": algorithm, "statistic": name, "value": value}
                rows.append(row | {"low": low, "high": high, "tasks": len(common), "seeds": len(matrix)})
    if references is None and len(common) > 1:
        scores.notes.append("Scores are raw returns, which differ in scale between tasks: there are no aggregates.")
    columns = ["score", "algorithm", "statistic", "value", "low", "high", "tasks", "seeds"]
    aggregates = pd.DataFrame(rows, columns=columns)
    return Results(
        scores, references, score, definitions, final, tasks, aggregates, common, headline, ranking(tasks, score),
        replications,
    )  # fmt: skip


def limits(scores: Scores, references: pd.DataFrame | None, tasks: list[str]) -> tuple[float, float]:
    """The least and the greatest score that there can be on these tasks, normalised if there are references.

    Percentages have limits, and others have none.
    """
    if any(scores.measure_of(task) != PERCENT for task in tasks):
        return -np.inf, np.inf
    ends = pd.DataFrame({"task": tasks * 2, "return": [0.0] * len(tasks) + [100.0] * len(tasks)})
    normal = normalise(ends, references)
    return float(normal.min()), float(normal.max())


def each(frame: pd.DataFrame, scores: Scores) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """The rows of each task and algorithm: tasks by name, algorithms in the order of the report."""
    place = {name: number for number, name in enumerate(scores.algorithms)}
    groups = {(str(task), str(algorithm)): rows for (task, algorithm), rows in frame.groupby(["task", "algorithm"])}
    for task, algorithm in sorted(groups, key=lambda key: (key[0], place[key[1]])):
        yield task, algorithm, groups[task, algorithm]


def ranking(tasks: pd.DataFrame, score: Score) -> list[str]:
    """All algorithms, those on most tasks first, then by their mean rank: returns of tasks may differ in scale."""
    means = tasks[tasks["score"] == score].pivot(index="algorithm", columns="task", values="mean")
    order = pd.DataFrame(
        {"missing": means.isna().sum(axis=1), "rank": means.rank(ascending=False, pct=True).mean(axis=1)}
    )
    return [str(name) for name in order.sort_values(["missing", "rank"], kind="stable").index]


def by_step(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Values of each seed at each step that any seed has, from the first on at which all have one: [seeds, steps].

    Between its own steps, and after the last of them, a seed keeps its score. Of what is no score, only the steps that
    all seeds have are there.
    """
    wide = frame.pivot(index="seed", columns="step", values=column)
    return (wide.ffill(axis=1) if column in ("return", "normalised") else wide).dropna(axis=1)


def curve_of(frame: pd.DataFrame, column: str) -> Curve | None:
    """Mean over seeds with its interval, at all steps of `by_step`."""
    wide = by_step(frame, column)
    if wide.empty:
        return None
    values = wide.to_numpy()
    band = estimates.task_means(values[:, None])[:, 0]
    return wide.columns.to_numpy(), values.mean(0), band, values


def curves_by_task(results: Results, table: pd.DataFrame, column: str) -> dict[str, dict[str, Curve]]:
    """The learning curves of the algorithms that figures show, by task."""
    panels: dict[str, dict[str, Curve]] = {}
    shown = results.in_curves
    for task, algorithm, frame in each(table[table["algorithm"].isin(shown)], results.scores):
        if curve := curve_of(frame, column):
            panels.setdefault(task, {})[algorithm] = curve
    return panels


def efficiency(results: Results) -> tuple[dict[str, Curve], str]:
    """IQM over training of each algorithm on the common tasks, and the label of the horizontal axis."""
    table = results.scores.table
    grids = {}
    for (task, algorithm), frame in table[table["task"].isin(results.common)].groupby(["task", "algorithm"]):
        grids[task, algorithm] = by_step(frame, "normalised")
    same = len({tuple(wide.columns) for wide in grids.values()}) == 1
    curves = {}
    for algorithm in results.in_curves:
        seeds = len(results.matrices[algorithm])
        wides = [grids[task, algorithm].iloc[:seeds] for task in results.common]
        if same:
            steps = wides[0].columns.to_numpy()
            shown = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_STEPS)).astype(int))
            x, values = steps[shown], np.stack([wide.to_numpy()[:, shown] for wide in wides], 1)
        else:
            x = np.linspace(0, 1, 51)
            ends = results.scores.ends[results.common]
            places = [
                np.clip(np.searchsorted(wide.columns.to_numpy(), x * end * (1 + 1e-9), "right") - 1, 0, None)
                for wide, end in zip(wides, ends, strict=True)
            ]
            values = np.stack([wide.to_numpy()[:, p] for wide, p in zip(wides, places, strict=True)], 1)
        centre, band = estimates.iqm_curve(values, results.replications)
        band = band.clip(*limits(results.scores, results.references, results.common))
        curves[algorithm] = (x, centre, band, np.empty((0, len(x))))
    return curves, results.scores.steps if same else "share of the steps of each task"
