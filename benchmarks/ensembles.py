"""How well ensembles predict transitions that are held out from their training, while they train and afterwards.

    python -m benchmarks.sweep dynamics --seeds-per-job 5
    python -m benchmarks.ensembles runs/dynamics --out results/ensembles

For each output (the change of each number of an observation, and the reward), an error is the mean squared distance
between what a member of the ensemble predicts and what came. `unexplained` is the error divided by the variance of the
output in the dataset, 1 minus R squared: 1 is no better than a constant. The table has its mean over outputs, and the
worst one. `inside 50%` and `inside 90%` are shares of what came that lie inside the member's own intervals: less than
50 and 90% mean that it is too sure. `spread` is the standard deviation of the errors of an ensemble's elites divided by
their mean. `epochs` are those after which the seeds stopped, and `still falling` says in how many of the first ten
steps from one epoch to the next the error fell, for the seed with the fewest. All but these two are means over the
elites and seeds. The transitions are those of the holdout, which also decided when to stop, which weights to keep and
which members are elites, so that errors are a little too small.

OUT gets page.md, figures/ensembles.png, ensembles.csv, curves.csv and sources.json.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro
from matplotlib.figure import Figure

from algos.cli import run_command
from algos.data import load as load_dataset
from algos.dynamics import learnable, output_names, targets
from algos.errors import UserError
from algos.folders import writable
from algos.stored import FINISHED, KINDS, TRAIN, Config, find, read_csv, read_json, read_table
from benchmarks import figures
from benchmarks.stored import Sweep, origin, without_place, write_sources
from benchmarks.tables import Table, number, purpose, word

KEYS = ("seed", "member", "output")
MEASURED = ("error", "inside_50", "inside_90")
ERROR = "dynamics/holdout_error"
FIRST = 10  # steps from one epoch to the next, in which errors should fall


@dataclass
class Args:
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """folders of runs that trained ensembles, or any folder above them"""
    out: Path
    """where the page goes"""


def load(folders: tuple[Path, ...]) -> tuple[pd.DataFrame, pd.DataFrame, list[dict[str, Any]]]:
    """The summaries of all finished ensembles, their errors by epoch and seed, and the runs.

    Seeds whose ensembles diverged are left out, and named as `lost` by the runs. Raises UserError if no ensemble is
    left, or two of one dataset, and if a file is damaged.
    """
    tables: list[pd.DataFrame] = []
    curves: list[pd.DataFrame] = []
    runs: list[dict[str, Any]] = []
    kinds = KINDS | {"member": "whole", "output": "words", "elite": "truth"}
    for folder in folders:
        for path in find(folder, "dynamics.csv"):
            if not os.path.lexists(path.with_name("config.json")):  # a damaged run that a sweep has set aside
                continue
            config = read_json(path.with_name("config.json"), Config)
            if config["status"] not in FINISHED:
                continue
            if twice := next((run for run in runs if run["task"] == config["task"]), None):
                raise UserError(f"{path.parent} and {twice['folder']} have ensembles of {config['task']}: give one")
            table = read_csv(path, [*KEYS, "elite", *MEASURED], KEYS, kinds)
            table["variance"] = table["output"].map(variances(config, path.parent))
            log = read_table(path.with_name("train.parquet"), TRAIN, config.get("varied", []))
            # settings of a seed share its ensemble
            log = log[log["metric"] == ERROR].sort_values("step").drop_duplicates(["seed", "step"])
            curve = log[["seed", "value"]].rename(columns={"value": "error"})
            curve["epoch"] = curve.groupby("seed").cumcount() + 1
            lost = set(table.loc[~np.isfinite(table["error"]), "seed"].tolist())
            tables.append(table[~table["seed"].isin(lost)].assign(task=config["task"]))
            curves.append(curve[~curve["seed"].isin(lost)].assign(task=config["task"]))
            config.get("args", {}).pop("out", None)  # a place on somebody's machine
            runs.append(config | {"folder": str(path.parent), "lost": sorted(lost)})
    if not folders:
        raise UserError("name at least one folder of ensembles")
    if not any(len(table) for table in tables):
        raise UserError(f"there is no finished ensemble (dynamics.csv) in {', '.join(map(str, folders))}")
    return pd.concat(tables, ignore_index=True), pd.concat(curves, ignore_index=True), runs


def variances(config: dict[str, Any], folder: Path) -> dict[str, float]:
    """The variance of each output in the dataset of a run; raises UserError if this has changed, or is not there."""
    args = config.get("args", {})
    data = load_dataset(config["task"], args.get("exact_d4rl", False))
    if data.digest != config.get("facts", {}).get("digest"):
        raise UserError(f"{config['task']} is not what the ensembles in {folder} were trained on")
    if args.get("standardise"):
        data.standardise()
    rows = data.gather(learnable(data))
    found = targets(rows.obs, rows.reward, rows.next_obs).double().var(0, correction=0).tolist()
    return dict(zip(output_names(data.obs_size), found, strict=True))


def trained(errors: pd.DataFrame) -> pd.Series:
    """The epochs after which each seed of one dataset stopped: from then on, its error stands still."""
    wide = errors.pivot(index="epoch", columns="seed", values="error")
    return wide.ne(wide.iloc[-1]).sum() + 1


def falling(errors: pd.DataFrame) -> tuple[int, int]:
    """In how many of the first steps between epochs the error falls, the least over seeds, and how many there are."""
    wide = errors.pivot(index="epoch", columns="seed", values="error").loc[: FIRST + 1]
    return int((wide.diff().iloc[1:] < 0).sum().min()), len(wide) - 1


def listing(table: pd.DataFrame, curves: pd.DataFrame) -> Table:
    """One row a dataset."""
    columns = ["dataset", "seeds", "epochs", "unexplained", "most unexplained", "inside 50%", "inside 90%"]
    listed = Table([*columns, "spread", "still falling"], [])
    elites = table[table["elite"]].assign(unexplained=lambda t: t["error"] / t["variance"].where(t["variance"] > 0))
    for task, own in elites.groupby("task"):
        by_output = own.groupby("output", sort=False)["unexplained"].mean()
        worst = str(by_output.idxmax())
        errors = own.groupby(["seed", "member"])["error"].mean().groupby("seed")
        own_curves = curves[curves["task"] == task]
        epochs, (fell, of) = trained(own_curves), falling(own_curves)
        listed.rows.append(
            [
                word(task),
                number(own["seed"].nunique(), 0),
                (f"{epochs.min():,} to {epochs.max():,}", float(epochs.min())),
                number(by_output.mean(), 4),
                (f"{by_output[worst]:.4f} ({worst})", float(by_output[worst])),
                number(100 * own["inside_50"].mean(), 0),
                number(100 * own["inside_90"].mean(), 0),
                number((errors.std(ddof=0) / errors.mean()).mean(), 3),
                (f"{fell} of {of}", float(fell)),
            ]
        )
    return listed


def draw(curves: pd.DataFrame) -> Figure:
    """One panel a dataset: the error of each seed, the mean over its members, by epoch."""
    tasks = sorted(curves["task"].unique())
    figure = Figure(figsize=(1 + 2.9 * len(tasks), 3.2))
    for axes, task in zip(np.atleast_1d(figure.subplots(1, len(tasks))), tasks, strict=True):
        own = curves[curves["task"] == task]
        for seed, ended in trained(own).items():
            rows = own[(own["seed"] == seed) & (own["epoch"] <= ended)]
            axes.plot(rows["epoch"], rows["error"], color=figures.COLORS[0], linewidth=0.9, alpha=0.7)
        figures.make_log(axes, "x")
        figures.make_log(axes, "y")
        axes.set(title=task, xlabel="epoch")
    figure.axes[0].set_ylabel("error on the holdout")
    return figure


def main(args: Args) -> None:
    table, curves, runs = load(args.folders)
    writable(args.out / "figures")
    with figures.style():
        figures.save(draw(curves), args.out / "figures" / "ensembles", ("png",))
    about = purpose(__doc__)
    title = "# Ensembles of the dynamics, on transitions that were held out"
    lines = [title, about, "![error on the holdout, one line a seed](figures/ensembles.png)"]
    sweeps = [
        without_place(read_json(path, Sweep)["command"])
        for folder in args.folders
        for path in find(folder, "sweep.json")
    ]
    lines.append(listing(table, curves).markdown())
    for run in runs:
        if run["lost"]:
            lines.append(f"Left out, as they diverged: seeds {', '.join(map(str, run['lost']))} of {run['task']}.")
    lines += [f"`{told}`" for told in dict.fromkeys(sweeps)]
    made = origin("ensembles", runs)
    lines.append(f"`{made['report']}`, commit {', '.join(made['commits']) or 'unknown'}")
    (args.out / "page.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    for name, frame in {"ensembles": table, "curves": curves}.items():
        frame[["task", *(column for column in frame if column != "task")]].to_csv(args.out / f"{name}.csv", index=False)
    write_sources(args.out, runs)
    print(args.out / "page.md")


if __name__ == "__main__":
    run_command(main)
