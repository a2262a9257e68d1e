"""The part of a report on mazes: the ways of policies through them, and maps of values."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from algos.errors import UserError
from algos.run_folder import read_table
from algos.ways import GOAL
from benchmarks import figures
from benchmarks.analysis import Results
from benchmarks.parts import Part, file_name
from benchmarks.scores import Scores, label
from envs.mazes import Maze, maze_of

WAYS = ["task", "algorithm", "seed", "goal", "step", "x", "y"]
MAPS = ["task", "algorithm", "goal", "x", "y", "value"]
EVERY = 5  # steps of a way of which one is stored


def load(folders: Sequence[Path], scores: Scores) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The ways and maps of the runs and reports in some folders: tables with the columns WAYS and MAPS.

    A way has one of five steps, without those at which the policy stood still, and positions have one decimal. A map is
    the mean over seeds of the values of the first task's goal. Algorithms with varied hyperparameters have neither.
    Raises UserError for damaged tables.
    """
    ways, maps = [pd.DataFrame(columns=WAYS)], [pd.DataFrame(columns=MAPS)]
    for folder in folders:
        if (folder / "ways.csv").exists():
            ways.append(read(folder / "ways.csv", WAYS))
            maps.append(read(folder / "maps.csv", MAPS) if (folder / "maps.csv").exists() else maps[0])
    for config in scores.sources:
        folder = Path(config.get("folder", ""))
        names = {"task": config["task"], "algorithm": label(config)}
        if config.get("setting") or not (folder / "ways.parquet").exists():
            continue
        way = read(folder / "ways.parquet", ["seed", "task", "step", "x", "y"]).rename(columns={"task": "goal"})
        way = way[(way["step"] % EVERY == 0) | (way["step"] == GOAL)].round(1)
        way = way.sort_values(["seed", "goal", "step"])
        place = way[["seed", "goal", "x", "y"]]
        ways.append(way[(place != place.shift()).any(axis=1) | (way["step"] <= 0)].assign(**names)[WAYS])
        if (folder / "values.parquet").exists():
            table = read(folder / "values.parquet", ["seed", "task", "x", "y", "value"]).rename(
                columns={"task": "goal"}
            )
            first = table[table["goal"] == table["goal"].min()]
            mean = first.groupby(["goal", "x", "y"])["value"].mean().reset_index()
            maps.append(mean.assign(**names)[MAPS].round(4))
    known = {(config["task"], label(config)) for config in scores.sources}
    found = []
    for frames in (ways, maps):
        table = pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
        kept = [key in known for key in zip(table["task"], table["algorithm"], strict=True)]
        found.append(table[np.array(kept, bool)].drop_duplicates(ignore_index=True))
    return found[0], found[1]


def read(path: Path, columns: list[str]) -> pd.DataFrame:
    """A table with these columns."""
    table = pd.read_csv(path) if path.suffix == ".csv" else read_table(path)
    if missing := [name for name in columns if name not in table]:
        raise UserError(f"{path} is damaged: it has no column {missing[0]!r}")
    return table[columns]


def maze_part(results: Results, ways: pd.DataFrame, maps: pd.DataFrame) -> Part:
    """Figures of both, one of each for each task."""
    text = (
        "Ways of all seeds (colours) in the last evaluation, one episode of each task from its start (a dot) towards "
        "the goal (a star), and maps of values of the first task's goal, mean over seeds. Each map has colours of its "
        "own, from the lowest to the highest value."
    )
    part = Part("Mazes", text)
    envs = {config["task"]: config.get("facts", {}).get("evaluated_in", "") for config in results.scores.sources}
    for task, rows in ways.groupby("task"):
        try:
            maze = maze_of(envs[task])
        except (ModuleNotFoundError, ValueError):
            continue
        names = [name for name in results.scores.algorithms if name in set(rows["algorithm"])]
        figure = draw_ways(maze, rows, names, results.names)
        part.figures.append((f"ways_{file_name(str(task))}", figure, f"Ways through {task}"))
        values = maps[maps["task"] == task]
        if len(values):
            names = [name for name in names if name in set(values["algorithm"])]
            figure = draw_maps(maze, values, rows, names, results.names)
            part.figures.append((f"values_{file_name(str(task))}", figure, f"Values of a goal in {task}"))
    return part


def panels(maze: Maze, rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    """Small drawings of a maze."""
    height, width = np.array(maze.walls.shape) * 1.5 / max(maze.walls.shape)
    figure = Figure(figsize=(0.5 + (width + 0.1) * columns, 0.5 + (height + 0.1) * rows))
    axes = figure.subplots(rows, columns, squeeze=False)
    for each in axes.flat:
        draw_walls(each, maze)
    return figure, axes


def draw_walls(axes: Axes, maze: Maze) -> None:
    """Draws the walls of a maze, without ticks."""
    half = maze.size / 2
    for row, column in np.argwhere(maze.walls):
        x, y = maze.centre(row, column)
        axes.add_patch(
            Rectangle((x - half, y - half), maze.size, maze.size, color=figures.GRID, alpha=0.55, linewidth=0)
        )
    (left, top), (right, bottom) = maze.centre(0, 0), maze.centre(maze.walls.shape[0] - 1, maze.walls.shape[1] - 1)
    axes.set_xlim(left - half, right + half)
    axes.set_ylim(min(top, bottom) - half, max(top, bottom) + half)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def draw_ways(maze: Maze, rows: pd.DataFrame, names: list[str], short: dict[str, str]) -> Figure:
    """The ways of each algorithm, in columns, on each task, in rows."""
    goals = sorted(rows["goal"].unique())
    figure, axes = panels(maze, len(goals), len(names))
    for j, name in enumerate(names):
        axes[0, j].set_title(short.get(name, name), fontsize=8)
        for i, goal in enumerate(goals):
            part = rows[(rows["algorithm"] == name) & (rows["goal"] == goal)]
            for number, (_, way) in enumerate(part.groupby("seed")):
                path, end = way[way["step"] >= 0], way[way["step"] == GOAL]
                color = figures.COLORS[number % len(figures.COLORS)]
                axes[i, j].plot(path["x"], path["y"], color=color, linewidth=0.7, alpha=0.8)
                axes[i, j].plot(path["x"].iloc[:1], path["y"].iloc[:1], "o", color=color, markersize=2.5)
                axes[i, j].plot(end["x"], end["y"], "*", color="#d19a0a", markersize=6, markeredgewidth=0.3)
    for i, goal in enumerate(goals):
        axes[i, 0].set_ylabel(goal, fontsize=7)
    return figure


def draw_maps(maze: Maze, values: pd.DataFrame, ways: pd.DataFrame, names: list[str], short: dict[str, str]) -> Figure:
    """The values of one goal, for each algorithm."""
    figure, axes = panels(maze, 1, len(names))
    goal = values["goal"].iloc[0]
    ends = ways[(ways["goal"] == goal) & (ways["step"] == GOAL)]
    for place, name in zip(axes[0], names, strict=True):
        rows = values[values["algorithm"] == name]
        grid = rows.pivot(index="y", columns="x", values="value")
        place.pcolormesh(grid.columns, grid.index, np.ma.masked_invalid(grid), cmap="viridis", rasterized=True)
        own = ends[ends["algorithm"] == name]
        place.plot(own["x"], own["y"], "*", color="#d1495b", markersize=6, markeredgewidth=0.3)
        place.set_title(short.get(name, name), fontsize=8)
    return figure
