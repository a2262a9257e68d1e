"""Run folders with made-up scores, for tests of reports, and reports of tables alone."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import figures, report

FIGURES = ("intervals", "lines", "grid", "heatmap", "sensitivity", "cells")
TASKS = [f"{name}-v5" for name in ("HalfCheetah", "Hopper", "Walker2d", "Ant")]
GRID = {"expectile": [0.5, 0.7, 0.8, 0.9], "temperature": [1.0, 3.0, 10.0]}


def store(folder: Path, algorithm: str, table: pd.DataFrame, task: str, variant: str = "default", **facts: Any) -> Path:
    """A run folder with the table seed, step, episode, return."""
    place = folder / task.replace("/", "-") / algorithm.replace("/", "-") / variant.replace("/", "-")
    place.mkdir(parents=True)
    table.assign(length=10).to_parquet(place / "eval.parquet", write_page_checksum=True)
    seeds = sorted(map(int, table["seed"].unique()))
    identity = {"total_steps": int(table["step"].max()), "eval_episodes": 2, "eval_every": 10, "seeds": seeds}
    config = {
        "algorithm": algorithm, "env_id": task, "variant": variant, "status": "finished", "commit": "abc",
        "step": int(table["step"].max()), "seconds": 60.0, "diverged": {}, "device": "CPU", "identity": identity,
        "versions": {"gymnasium": "1", "mujoco": "3", "torch": "2"}, **facts,
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))
    return place


def make(
    folder: Path, algorithms: list[str], tasks: list[str], seeds: int, evaluations: int, episodes: int = 2
) -> None:
    """Learning curves that rise to a level of the algorithm's own, between the references of D4RL and above."""
    rng = np.random.default_rng(0)
    steps = np.arange(evaluations + 1) * 10
    for a, algorithm in enumerate(algorithms):
        for t, task in enumerate(tasks):
            level = (0.4 + 0.5 * (a + 1) / len(algorithms)) * 3_000 * rng.uniform(0.7, 1.3, seeds)
            rise = 1 - np.exp(-steps / steps[-1] * (2 + t % 5))
            scores = level[:, None] * rise + rng.normal(0, 60, (seeds, len(steps)))
            grid = np.stack(np.meshgrid(np.arange(seeds), steps, np.arange(episodes), indexing="ij"), -1).reshape(-1, 3)
            table = pd.DataFrame(grid, columns=["seed", "step", "episode"])
            table["return"] = np.repeat(scores.ravel(), episodes) + rng.normal(0, 30, len(table))
            place = store(folder, algorithm, table, task)
            rows = []
            for name, factor in (("value_predicted", 0.13), ("value_observed", 0.1)):
                frame = pd.DataFrame(grid[::episodes, :2], columns=["seed", "step"])
                rows.append(frame.assign(metric=name, value=factor * scores.ravel()))
            pd.concat(rows).to_parquet(place / "train.parquet", write_page_checksum=True)


def settings_of(grid: dict[str, list[float]]) -> list[dict[str, float]]:
    """Every combination of the values, the last named hyperparameter changing fastest."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def vary(
    folder: Path,
    algorithm: str,
    tasks: list[str],
    grid: dict[str, list[float]],
    seeds: int = 5,
    evaluations: int = 10,
    variant: str = "default",
    diverged: list[dict[str, float]] | None = None,
    **facts: Any,
) -> None:
    """A process for each task that varied hyperparameters, with its tables and config.json.

    The score of a setting is best in the middle of the first hyperparameter and falls with the last one; seeds differ
    by the same amount in all settings. Rows of `diverged` have seed, setting and step, after which there are none.
    """
    settings = settings_of(grid)
    steps = np.arange(evaluations + 1) * 10
    for t, task in enumerate(tasks):
        rng = np.random.default_rng(t)
        level_of_seed, frames, train = rng.normal(0, 150, seeds), [], []
        for setting in settings:
            places = [grid[name].index(value) / max(1, len(grid[name]) - 1) for name, value in setting.items()]
            level = 2_600 - 1_500 * (places[0] - 0.55) ** 2 - 700 * places[-1] * (1 + places[0]) / 2 + level_of_seed
            rise = 1 - np.exp(-steps / steps[-1] * (3 + t % 3))
            scores = level[:, None] * rise + rng.normal(0, 50, (seeds, len(steps)))
            frame = pd.DataFrame({"seed": np.repeat(np.arange(seeds), len(steps)), **setting})
            frame["step"] = np.tile(steps, seeds)
            frames.append(frame.assign(episode=0, **{"return": scores.ravel()}))
            for name, factor in (("value_predicted", 0.13), ("value_observed", 0.1)):
                train.append(frame.assign(metric=name, value=factor * scores.ravel()))
        table = pd.concat(frames, ignore_index=True)
        for row in diverged or []:
            same = np.logical_and.reduce([table[name] == row[name] for name in ("seed", *grid)])
            table = table[~(same & (table["step"] >= row["step"]))]
        words = [f"{name}={','.join(f'{value:g}' for value in values)}" for name, values in grid.items()]
        identity = {
            "total_steps": int(steps[-1]), "eval_episodes": 2, "eval_every": 10, "seeds": list(range(seeds)),
            "vary": words, **dict.fromkeys(grid, 0.25),
        }  # fmt: skip
        place = store(
            folder, algorithm, table, task, variant, varied=list(grid), settings=settings, identity=identity,
            diverged=diverged or [], status="diverged" if diverged else "finished", **facts,
        )  # fmt: skip
        pd.concat(train).to_parquet(place / "train.parquet", write_page_checksum=True)


def tabulate(args: report.Args) -> None:
    """Makes a report without files of figures and without a page, and none of the figures that it would not draw."""
    assert not args.formats and not args.page
    with pytest.MonkeyPatch.context() as patch:
        for name in FIGURES:
            patch.setattr(figures, name, lambda *_, **__: None)
        report.main(args)
