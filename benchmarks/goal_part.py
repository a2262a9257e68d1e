"""The part of a report on methods with goals: success on each task of the environment."""

import numpy as np

from benchmarks import figures
from benchmarks.analysis import Results, each
from benchmarks.parts import Part, file_name
from benchmarks.scores import SUCCESS
from benchmarks.tables import Table, number, word


def goal_part(results: Results) -> Part:
    """Mean success on each task over the last 10% of the training, by algorithm."""
    long = results.scores.watched
    long = long[long["metric"].str.startswith(SUCCESS)]
    ends = results.scores.table.groupby("task")["step"].max()
    late = long[long["step"] > 0.9 * long["task"].map(ends)]
    text = (
        "Percentage of episodes that reach the goal of each task, mean over seeds and over the last 10% of the "
        "training, without seeds that diverged. Starts and goals of a task are the same places with some noise, and "
        "policies are deterministic, so that a seed often reaches a goal always or never."
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
    return part
