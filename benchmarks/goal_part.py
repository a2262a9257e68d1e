"""The part of a report on methods with goals: success on each task of the environment."""

import numpy as np
import pandas as pd

from benchmarks import figures
from benchmarks.analysis import Results, each
from benchmarks.parts import Part, file_name
from benchmarks.scores import LABELS, ORDER, SUCCESS, final_scores
from benchmarks.tables import Table, number, word


def goal_part(results: Results) -> Part:
    """Mean success on each task by the headline score, and the order of values."""
    late = scored(results, results.scores.watched["metric"].str.startswith(SUCCESS))
    text = (
        f"Percentage of episodes that reach the goal of each task, {LABELS[results.score]}, mean over seeds without "
        "those that diverged. Starts and goals of a task are the same places with some noise, and policies are "
        "deterministic, so that a seed often reaches a goal always or never."
    )
    part = Part("Each goal", text)
    for task in results.scores.tasks:
        means = late[late["task"] == task].pivot_table(index="algorithm", columns="metric", values="value")
        if means.empty:
            continue
        goals = [str(name).removeprefix(SUCCESS) for name in means]
        table = Table(["algorithm", *goals, "seeds"], [])
        names = []
        for _, algorithm, rows in each(late[late["task"] == task], results.scores):
            names.append(algorithm)
            cells = [number(value) for value in means.loc[algorithm]]
            table.rows.append([word(algorithm), *cells, number(rows["seed"].nunique(), 0)])
        part.tables.append((f"Success on each task of {task} (%)", table))
        short = [results.names.get(name, name) for name in names]
        figure = figures.cells(np.array(means.loc[names]), short, goals, "", "success (%)", task, digits=0)
        part.figures.append((f"goals_{file_name(task)}", figure, f"Success on each task of {task}"))
    orders = scored(results, results.scores.watched["metric"].isin(ORDER))
    if len(orders):
        part.text += (
            " Order of values: the share of points on shortest ways whose value is higher k steps later, which "
            "would be 1 for a value that leads to the goal; of the value behind the high policy and, for OTA, of the "
            "one behind the low policy."
        )
        table = Table(["task", "algorithm", "order of values", "order of low values", "seeds"], [])
        for task, algorithm, rows in each(orders, results.scores):
            means = rows.groupby("metric")["value"].mean()
            cells = [number(means.get(name, np.nan), 3) for name in ORDER]
            table.rows.append([word(task), word(algorithm), *cells, number(rows["seed"].nunique(), 0)])
        part.tables.append(("Order of values along shortest ways", table))
    part.tables_in_markdown = len(part.tables)
    return part


def scored(results: Results, chosen: pd.Series) -> pd.DataFrame:
    """The chosen rows of what is watched, by the headline score: task, algorithm, seed, metric, value."""
    parts = []
    for metric, rows in results.scores.watched[chosen].groupby("metric"):
        final = final_scores(rows, "value").rename(columns={results.score: "value"})
        parts.append(final[["task", "algorithm", "seed", "value"]].assign(metric=metric))
    columns = ["task", "algorithm", "seed", "value", "metric"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
