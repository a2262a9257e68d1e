"""Runs side by side: one figure a task, one table, from the tables that the runs stored.

    python -m benchmarks.compare runs/HalfCheetah-v5/sac/default runs/HalfCheetah-v5/dsac_t/default --out runs/compared

Each argument is a run's folder, or any folder above some. Writes <task>.png, scores.csv (every evaluation episode),
summary.csv and summary.md (the last evaluation: mean over seeds with a 95% bootstrap interval) and sources.json (where
each run came from: arguments, commit, versions, device). A diverged seed keeps the score of its last evaluation.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
import tyro

from algos.errors import UserError
from algos.plot import band, carry_forward, curves
from algos.run import report_errors


@dataclass
class Args:
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """folders of runs, or above them"""
    out: Path = Path("runs/compared")
    """where figures and tables go"""
    title: str = ""
    """heading of summary.md"""


def load(folders: tuple[Path, ...]) -> tuple[pd.DataFrame, list[dict]]:
    """All evaluation rows with task and algorithm, and the configurations; raises UserError if there are none."""
    frames, configs = [], []
    for config_path in sorted({path for folder in folders for path in folder.rglob("config.json")}):
        config = json.loads(config_path.read_text())
        frame = pd.read_parquet(config_path.with_name("eval.parquet"))
        frame = carry_forward(frame, [int(seed) for seed in config.get("diverged", {})])
        variant = "" if config["variant"] == "default" else f" ({config['variant']})"
        frames.append(frame.assign(task=config["env_id"], algorithm=config["algorithm"] + variant))
        configs.append({"folder": config_path.parent.name, **config})
    if not frames:
        raise UserError(f"no finished or running run in {', '.join(map(str, folders))}")
    return pd.concat(frames, ignore_index=True), configs


def summarise(scores: pd.DataFrame) -> pd.DataFrame:
    """The last evaluation of every algorithm on every task: mean over seeds of a seed's mean, with its interval."""
    rows = []
    for (task, algorithm), frame in scores.groupby(["task", "algorithm"]):
        step = frame.groupby("seed")["step"].max().min()
        seeds = frame[frame["step"] == step].groupby("seed")["return"].mean().to_numpy()
        low, high = band(seeds[:, None])
        row = {"task": task, "algorithm": algorithm, "seeds": len(seeds), "steps": step, "mean return": seeds.mean()}
        rows.append(row | {"95% low": low[0], "95% high": high[0], "worst seed": seeds.min(), "best seed": seeds.max()})
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame) -> str:
    """A Markdown table; numbers from 100 up with one decimal, smaller ones with two."""

    def show(value: object) -> str:
        if isinstance(value, float):
            return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.2f}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    cells = [[show(value) for value in row] for row in table.astype(object).to_numpy().tolist()]
    lines = [list(table.columns), ["---"] * len(table.columns), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(args: Args) -> None:
    scores, configs = load(args.folders)
    args.out.mkdir(parents=True, exist_ok=True)
    for task, frame in scores.groupby("task"):
        frames = {str(name): rows for name, rows in frame.groupby("algorithm")}
        curves(frames, args.out / f"{str(task).replace('/', '-')}.png", str(task))
    table = summarise(scores)
    scores.to_csv(args.out / "scores.csv", index=False, float_format="%.6g")
    table.to_csv(args.out / "summary.csv", index=False, float_format="%.6g")
    heading = f"# {args.title}\n\n" if args.title else ""
    note = "Mean over seeds of the last evaluation, with a 95% bootstrap interval; raw returns."
    (args.out / "summary.md").write_text(f"{heading}{note}\n\n{markdown(table)}\n")
    (args.out / "sources.json").write_text(json.dumps(configs, indent=2) + "\n")
    print(table.to_string(index=False, float_format="{:,.1f}".format))
    print(f"figures and tables in {args.out}")


if __name__ == "__main__":
    report_errors(lambda: main(tyro.cli(Args, description=__doc__)))
