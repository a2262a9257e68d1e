"""The section of a report on varied hyperparameters: the score against each of them, and a ranking of all settings."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks import estimates, figures
from benchmarks.analysis import Results
from benchmarks.figures import Points
from benchmarks.parts import Part, file_name
from benchmarks.scores import LABELS, plain, spoken
from benchmarks.tables import Cell, Table, between, number

MOST_LINES = 6  # combinations of the other hyperparameters that a figure still shows one by one


@dataclass(frozen=True)
class Grid:
    """The settings of one algorithm on one task, and the headline score of each seed with each of them.

    `scores` has a row for each seed and a column for each setting, NaN where a setting lacks the seed.
    """

    settings: list[dict[str, float]]
    scores: pd.DataFrame

    @property
    def names(self) -> list[str]:
        """The hyperparameters."""
        return list(self.settings[0])

    def values(self, name: str) -> list[float]:
        """The values of a hyperparameter, from low to high."""
        return sorted({setting[name] for setting in self.settings})

    def others(self, name: str) -> list[dict[str, float]]:
        """The combinations of the other hyperparameters."""
        rest = [{key: value for key, value in setting.items() if key != name} for setting in self.settings]
        return [setting for place, setting in enumerate(rest) if setting not in rest[:place]]

    def shared(self, name: str) -> list[dict[str, float]]:
        """The combinations of the others that are there with every value of a hyperparameter."""
        values = self.values(name)
        return [rest for rest in self.others(name) if all(rest | {name: value} in self.settings for value in values)]

    def mean_over(self, settings: list[dict[str, float]]) -> np.ndarray:
        """The mean score of each seed over some settings, for the seeds that all of these have.

        If there is no such seed, each seed counts with the settings that it has.
        """
        columns = self.scores.iloc[:, [place for place, setting in enumerate(self.settings) if setting in settings]]
        return (columns.dropna() if len(columns.dropna()) else columns.dropna(how="all")).mean(axis=1).to_numpy()

    def points(self, name: str, others: list[dict[str, float]]) -> Points:
        """Mean score and interval against a hyperparameter, as a mean over these combinations of the others."""
        rows = []
        for value in self.values(name):
            settings = [setting for rest in others if (setting := rest | {name: value}) in self.settings]
            if settings and len(seeds := self.mean_over(settings)):
                rows.append((value, seeds.mean(), *estimates.task_means(seeds[:, None])[:, 0]))
        return tuple(np.array(rows).reshape(-1, 4).T)


def grid_of(results: Results, algorithms: list[str], task: str) -> Grid:
    """The grid of an algorithm on a task, from the names of its settings, without those that have no score there."""
    final = results.final[(results.final["task"] == task) & results.final["algorithm"].isin(algorithms)]
    scores = final.pivot(index="seed", columns="algorithm", values=results.headline)
    scores = scores[[name for name in algorithms if name in scores]]
    settings = results.scores.settings
    return Grid([settings[name] for name in scores], scores)


def sensitivity_part(results: Results) -> Part:
    """The section on all algorithms whose hyperparameters were varied."""
    text = (
        f"The {results.unit} ({LABELS[results.score]}) against each hyperparameter, with 95% intervals over "
        f"seeds. Thin lines, where there are at most {MOST_LINES} of them, hold the other hyperparameters fixed; the "
        "thick line is the mean over those of their settings that all values have, if there are any. All settings of a "
        "seed see the same random numbers. The best of many settings looks better than it is: its score on new seeds "
        "will be lower."
    )
    part = Part("Sensitivity", text, figures_in_markdown=True)
    for family, algorithms in results.scores.grids.items():
        for task in results.scores.tasks:
            grid = grid_of(results, algorithms, task)
            if not grid.settings:
                continue
            unit = results.unit_of(task)
            for name in grid.names:
                figure = sensitivity_figure(results, grid, name, f"{family} on {task}", unit)
                place = f"sensitivity_{file_name(family)}_{name}_{file_name(task)}"
                part.figures.append((place, figure, f"{unit} of {family} on {task} against {name}"))
            if len(grid.names) == 2:
                figure = settings_figure(results, grid, f"{family} on {task}", unit)
                place = f"settings_{file_name(family)}_{file_name(task)}"
                part.figures.append((place, figure, f"Mean {unit} of {family} on {task} with each setting"))
        part.tables += ranking_tables(results, family, algorithms)
    part.tables_in_markdown = len(part.tables)
    return part


def sensitivity_figure(results: Results, grid: Grid, name: str, title: str, unit: str) -> Figure:
    """The score against one hyperparameter."""
    others, shared = grid.others(name), grid.shared(name)
    lines = {}
    if len(others) <= MOST_LINES:
        lines = {spoken(fixed): grid.points(name, [fixed]) for fixed in others if fixed}
    same = len(lines) > 1 and len(shared) == 1  # a line that is there already
    mean = grid.points(name, shared or others) if not same and (len(others) > 1 or not lines) else None
    rest = ", ".join(key for key in grid.names if key != name)
    label = f"mean over {len(shared)} settings of {rest}" if shared else f"mean over settings of {rest} that differ"
    if len(others) == 1:
        label = spoken(others[0]) or "mean over seeds"
    axis = f"{unit}, {LABELS[results.score]}"
    return figures.sensitivity(lines, (label, mean) if mean else None, grid.values(name), name, axis, title)


def settings_figure(results: Results, grid: Grid, title: str, unit: str) -> Figure:
    """The mean score with each combination of two hyperparameters."""
    first, second = grid.names
    rows, columns = grid.values(first), grid.values(second)
    cells = np.full((len(rows), len(columns)), np.nan)
    for setting in grid.settings:
        mean = grid.mean_over([setting]).mean()
        cells[rows.index(setting[first]), columns.index(setting[second])] = mean
    return figures.cells(
        cells, [plain(value) for value in rows], [plain(value) for value in columns], first, second,
        f"{title}\nmean {unit}, {LABELS[results.score]}", digits=None if results.references is None else 3,
    )  # fmt: skip


def ranking_tables(results: Results, family: str, algorithms: list[str]) -> list[tuple[str, Table]]:
    """All settings by their headline score: over the common tasks if scores of tasks have one scale, else for each."""
    if len(results.aggregates):
        frame = results.aggregates[(results.aggregates["score"] == results.score)]
        frame = frame[frame["statistic"] == "mean"].rename(columns={"value": "mean"})
        digits = None if results.references is None else 3
        where = f"on {results.common[0]}" if len(results.common) == 1 else f"over {len(results.common)} tasks"
        how = f"{results.unit}, {LABELS[results.score]}"
        return [(f"Settings of {family} ranked {where}: {how}", ranking_table(results, frame, algorithms, digits))]
    frame = results.tasks[results.tasks["score"] == results.score]
    return [
        (
            f"Settings of {family} ranked on {task}: {results.scores.measure_of(str(task))}, {LABELS[results.score]}",
            ranking_table(results, rows, algorithms, None),
        )
        for task, rows in frame.groupby("task")
        if rows["algorithm"].isin(algorithms).any()
    ]


def ranking_table(results: Results, frame: pd.DataFrame, algorithms: list[str], digits: int | None) -> Table:
    """The settings among some rows with algorithm, mean, low, high and seeds, the best first."""
    frame = frame[frame["algorithm"].isin(algorithms)].sort_values("mean", ascending=False, kind="stable")
    settings = results.scores.settings
    names = list(settings[algorithms[0]])
    table = Table(["rank", *names, "mean", "95% interval", "seeds"], [])
    for place, row in enumerate(frame.itertuples(), 1):
        values: list[Cell] = [(plain(settings[row.algorithm][name]), settings[row.algorithm][name]) for name in names]
        score = [number(row.mean, digits), between(row.low, row.high, digits), number(row.seeds, 0)]
        table.rows.append([number(place, 0), *values, *score])
    return table
