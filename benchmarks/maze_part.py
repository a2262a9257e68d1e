"""The part of a report on mazes: the ways of policies through them, and maps of values."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from algos.stored import Config, checked, find, read_csv, read_json, read_parquet
from algos.ways import GOAL
from benchmarks import figures
from benchmarks.analysis import Results
from benchmarks.parts import Part, file_name
from benchmarks.read_scores import is_report
from benchmarks.scores import Scores, among, label, plain
from envs.mazes import Maze, maze_of

WAYS = ["task", "algorithm", "seed", "goal", "step", "x", "y"]
MAPS = ["task", "algorithm", "goal", "x", "y", "value"]
MOST = 10  # algorithms that a figure shows
ONE_LINE = 5.0  # inches, in which a title of ways fits
EVERY = 5  # steps of a way of which one is stored


def load(folders: Sequence[Path], scores: Scores) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The ways and maps of the seeds that have scores, from runs and reports: tables with the columns WAYS and MAPS.

    A way has one of five steps, without those at which the policy stood still, and positions have one decimal. A map is
    the mean over seeds of the values of the first task's goal; that of a report counts as often as it has seeds with
    ways. Raises UserError for damaged tables.
    """
    known = {(config["task"], label(config), seed) for config in scores.sources for seed in config["seeds"]}

    def scored(table: pd.DataFrame) -> pd.DataFrame:
        return table[among(table, known)]

    ways, values = ([pd.DataFrame(columns=columns)] for columns in (WAYS, [*MAPS, "seeds"]))
    for folder in folders:
        if is_report(folder):
            if os.path.lexists(folder / "ways.csv"):
                ways.append(scored(read(folder / "ways.csv", WAYS)))
                if os.path.lexists(folder / "maps.csv"):
                    seeds = ways[-1].groupby(["task", "algorithm"])["seed"].nunique().rename("seeds").reset_index()
                    values.append(read(folder / "maps.csv", MAPS).merge(seeds, on=["task", "algorithm"]))
            continue
        for path in find(folder, "ways.parquet"):
            if not os.path.lexists(path.with_name("config.json")):  # a damaged run that a sweep has set aside
                continue
            config = read_json(path.with_name("config.json"), Config)
            config["task"] = scores.files.get(config["task"], config["task"])
            varied = config.get("varied", [])
            way = scored(named(read(path, [*varied, "seed", "task", "step", "x", "y"]), config, varied))
            way = way[(way["step"] % EVERY == 0) | (way["step"] == GOAL)].round({"x": 1, "y": 1})
            way = way.sort_values(["algorithm", "seed", "goal", "step"])
            place = way[["algorithm", "seed", "goal", "x", "y"]]
            ways.append(way[(place != place.shift()).any(axis=1) | (way["step"] <= 0)][WAYS])
            if os.path.lexists(other := path.with_name("values.parquet")):
                table = scored(named(read(other, [*varied, "seed", "task", "x", "y", "value"]), config, varied))
                values.append(table[table["goal"] == table["goal"].min()][MAPS].assign(seeds=1))
    maps = together(values).astype({"value": float, "seeds": float})
    maps["seeds"] = maps["seeds"].where(maps["value"].notna(), 0.0)  # a mean over the seeds that have a value there
    sums = maps.assign(value=maps["value"] * maps["seeds"]).groupby(MAPS[:-1], sort=False)[["value", "seeds"]].sum()
    maps = ((sums["value"] / sums["seeds"]).round(4) + 0.0).rename("value").reset_index()  # without -0.0
    return together(ways).reset_index(drop=True), maps


def together(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """All rows of some tables, of which the first is empty."""
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)


def named(table: pd.DataFrame, config: dict[str, Any], varied: list[str]) -> pd.DataFrame:
    """A table of a run, with the columns task and algorithm, which names the setting, and goal for a task's name."""
    table = table.rename(columns={"task": "goal"})
    settings = table[varied].to_dict("records") if varied else [{}] * len(table)
    names = {key: label({**config, "setting": dict(key)}) for key in {tuple(setting.items()) for setting in settings}}
    return table.assign(task=config["task"], algorithm=[names[tuple(setting.items())] for setting in settings])


def read(path: Path, columns: list[str]) -> pd.DataFrame:
    """These columns of a table; raises UserError if it is damaged."""
    kinds = dict.fromkeys(("task", "algorithm", "goal"), "words")
    table = (
        read_csv(path, columns, kinds=kinds)
        if path.suffix == ".csv"
        else checked(path, read_parquet(path), columns, (), kinds)
    )
    return table[columns].astype({name: float for name in columns if name not in kinds})


def maze_part(results: Results, ways: pd.DataFrame, maps: pd.DataFrame) -> Part:
    """Figures of both, one of each for each task."""
    ends = results.scores.ends
    ends = ends[ends.index.isin(ways["task"])]
    cut = any(config.get("step", 0) > ends.get(config["task"], np.inf) for config in results.scores.sources)
    text = (
        "Figures show the ways of all seeds (colours) in the last evaluation"
        f"{' of their run, also where it is later than the scores' * cut}, one episode of each task from its start "
        "(a dot) towards the goal (a star)."
    )
    if len(maps):
        text += (
            f" Maps{', which may be later too,' * cut} show values of the first task's goal, as means over seeds; each "
            "map has colours of its own, from the lowest to the highest value."
        )
    titles = dict(results.names)
    if results.names_are:
        settings = results.scores.settings
        titles = {name: "\n".join(f"{key} {plain(x)}" for key, x in settings[name].items()) for name in titles}
    part = Part("Mazes", text, figures_in_markdown=True)
    envs = {config["task"]: config.get("facts", {}).get("evaluated_in", "") for config in results.scores.sources}
    for task, rows in ways.groupby("task"):
        try:
            maze = maze_of(envs[task])
        except (ModuleNotFoundError, ValueError):
            continue
        shown = [name for name in results.in_curves if name in set(rows["algorithm"])]
        if not shown:  # of many settings, figures show some
            continue
        names = shown[:MOST]
        figure = draw_ways(maze, rows, names, titles)
        after = ": " if figure.get_figwidth() > ONE_LINE else "\n"
        figure.suptitle(f"{task}{after}a colour for each seed, from its dot to its star", fontsize=8)
        part.figures.append((f"ways_{file_name(str(task))}", figure, f"Ways through {task}"))
        values = maps[maps["task"] == task]
        if len(values):
            names = [name for name in shown if name in set(values["algorithm"])][:MOST]
            if not names:
                continue
            figure = draw_maps(maze, values, rows, names, titles)
            figure.suptitle(f"{task}\nvalues of the star, from dark to bright", fontsize=8)
            part.figures.append((f"values_{file_name(str(task))}", figure, f"Values of a goal in {task}"))
    return part


def panels(maze: Maze, rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    """Small drawings of a maze."""
    height, width = np.array(maze.walls.shape) * 1.5 / max(maze.walls.shape)
    figure = Figure(figsize=(max(2.8, 0.5 + (width + 0.1) * columns), 0.7 + (height + 0.1) * rows))
    axes = figure.subplots(rows, columns, squeeze=False)
    for each in axes.flat:
        draw_walls(each, maze)
    return figure, axes


def draw_walls(axes: Axes, maze: Maze) -> None:
    """Draws the walls of a maze, without ticks."""
    half = maze.size / 2
    (left, top), (right, bottom) = maze.centre(0, 0), maze.centre(maze.walls.shape[0] - 1, maze.walls.shape[1] - 1)
    low, high = min(top, bottom) - half, max(top, bottom) + half
    shades = np.where(maze.walls, 0.55, 0.0)
    shades = shades if maze.down else shades[::-1]
    place = left - half, right + half, low, high
    axes.imshow(np.zeros_like(shades), alpha=shades, extent=place, cmap=ListedColormap([figures.GRID]), zorder=0)
    axes.set_xlim(left - half, right + half)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def draw_ways(maze: Maze, rows: pd.DataFrame, names: list[str], titles: dict[str, str]) -> Figure:
    """The ways of each algorithm, in rows, on each task, in columns."""
    goals = sorted(rows["goal"].unique())
    figure, axes = panels(maze, len(names), len(goals))
    for i, name in enumerate(names):
        axes[i, 0].set_ylabel(titles[name], fontsize=8)
        for j, goal in enumerate(goals):
            part = rows[(rows["algorithm"] == name) & (rows["goal"] == goal)]
            for number, (_, way) in enumerate(part.groupby("seed")):
                path, end = way[way["step"] >= 0], way[way["step"] == GOAL]
                color = figures.COLORS[number % len(figures.COLORS)]
                axes[i, j].plot(path["x"], path["y"], color=color, linewidth=0.7, alpha=0.8)
                axes[i, j].plot(path["x"].iloc[:1], path["y"].iloc[:1], "o", color=color, markersize=2.5)
                axes[i, j].plot(end["x"], end["y"], "*", color="#d19a0a", markersize=6, markeredgewidth=0.3)
    for j, goal in enumerate(goals):
        axes[0, j].set_title(goal, fontsize=8)
    return figure


def draw_maps(maze: Maze, values: pd.DataFrame, ways: pd.DataFrame, names: list[str], titles: dict[str, str]) -> Figure:
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
        place.set_title(titles[name], fontsize=8)
    return figure
