"""Run folders with made-up scores, for tests of reports."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TASKS = [f"{name}-v5" for name in ("HalfCheetah", "Hopper", "Walker2d", "Ant")]


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
