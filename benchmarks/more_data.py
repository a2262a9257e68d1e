"""What more episodes do to SQIRL: the share of seeds whose policy is optimal, by k and by the number of episodes.

    python -m benchmarks.sweep more_data --seeds-per-job 100
    python -m benchmarks.more_data runs/more_data --out results/more_data

With a k below min_k, the values that SQIRL estimates are right in the limit, and acting greedily on them is wrong, so
that more episodes make it fail more surely; with min_k itself, they make it succeed.

OUT gets page.md, figures/more_data.png, seeds.csv, sources.json and study.json. It can be made again from what it
stored.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pydantic import Field
from scipy.stats import binomtest

from algos.cli import run_command
from algos.errors import UserError
from algos.folders import writable
from algos.stored import Config, Stored, read_csv, read_json
from benchmarks import figures
from benchmarks.load_scores import check_arguments, load
from benchmarks.sample_complexity import known_table
from benchmarks.scores import Scores, label
from benchmarks.stored import origin, refuse_both, write_sources
from benchmarks.tables import Table, between, escape, number, purpose, word
from envs.make import TABULAR
from envs.tabular.exact import EXACT, TIE, Analysis

KINDS = {"task": "words", "k": "whole", "m": "whole", "seed": "whole", "optimal": "truth"}


@dataclass
class Args:
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """folders of sweeps of sqirl.py over tables, or the one that this command wrote"""
    out: Path
    """where the page goes"""


class SqirlArguments(Stored):
    """The arguments of a run that are read here."""

    k: Annotated[int, Field(ge=1)]
    m: Annotated[int, Field(ge=1)]


def seeds(scores: Scores) -> pd.DataFrame:
    """Whether the last policy of each seed, at the end of its own run, is optimal: task, k, m, seed, optimal."""
    known = {(c["task"], label(c)): c["args"] for c in scores.sources}
    for key, name in (("form", "--form"), ("discount", "--discount")):
        if len(kinds := {args.get(key) for args in known.values()}) > 1:
            raise UserError(f"runs differ in {name} ({', '.join(map(str, kinds))}): give those of one setting")
    last = scores.table.sort_values("step").groupby(["task", "algorithm", "seed"])["return"].last().reset_index()
    # returns have no discount
    best = {task: Analysis(known_table(task)).best_return for task in scores.tasks}
    for name in ("k", "m"):
        last[name] = [known[key][name] for key in zip(last["task"], last["algorithm"], strict=True)]
    last["optimal"] = last["return"] >= last["task"].map(best) - EXACT
    if (twice := last[last.duplicated(["task", "k", "m", "seed"])]).size:
        row = twice.iloc[0]
        raise UserError(f"seed {row['seed']} of k={row['k']}, m={row['m']} on {row['task']} is there twice")
    return last[["task", "k", "m", "seed", "optimal"]].sort_values(["task", "k", "m", "seed"])


def shares(found: pd.DataFrame) -> pd.DataFrame:
    """The share of optimal seeds with Wilson's 95% interval: task, k, m, seeds, share, low, high."""
    rows = []
    for key, group in found.groupby(["task", "k", "m"]):
        interval = binomtest(int(group["optimal"].sum()), len(group)).proportion_ci(method="wilson")
        rows.append((*key, len(group), group["optimal"].mean(), interval.low, interval.high))
    return pd.DataFrame(rows, columns=["task", "k", "m", "seeds", "share", "low", "high"])


def draw(table: pd.DataFrame, least: dict[str, int]) -> Figure:
    """One panel a task, one line a k; dashed lines are those of a k below min_k."""
    tasks = sorted(table["task"].unique())
    figure = Figure(figsize=(1 + 2.9 * len(tasks), 3.5))
    colors = dict(zip(sorted(table["k"].unique()), figures.ramp(table["k"].nunique()), strict=True))
    for axes, task in zip(np.atleast_1d(figure.subplots(1, len(tasks), sharey=True)), tasks, strict=True):
        for k, rows in table[table["task"] == task].groupby("k"):
            style = "--" if k < least[task] else "-"
            axes.plot(rows["m"], rows["share"], style, color=colors[k], marker="o", markersize=3.5)
            axes.fill_between(rows["m"], rows["low"], rows["high"], color=colors[k], alpha=0.15, linewidth=0)
        axes.set_xscale("log")
        axes.set_xticks(sorted(table["m"].unique()), [f"{m:,}" for m in sorted(table["m"].unique())])
        axes.minorticks_off()
        axes.set(title=f"{task.removeprefix(TABULAR)}: min_k = {least[task]}", xlabel="episodes of an iteration")
    figure.axes[0].set_ylabel("share of optimal seeds")
    handles = [Line2D([], [], color=color) for color in colors.values()]
    handles.append(Line2D([], [], color=figures.INK, linestyle="--"))
    labels = [*(f"k = {k}" for k in colors), "a k below min_k"]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


class Said(Stored):
    """What a page says of its runs, beside the table."""

    sweeps: list[dict[str, Any]]
    notes: list[str]


@dataclass
class Study:
    """What the page is made of."""

    seeds: pd.DataFrame  # task, k, m, seed, optimal
    sources: list[dict[str, Any]]
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def study(folders: Sequence[Path]) -> Study:
    """Reads runs, or what this command stored of them; raises UserError for other runs."""
    if len(folders) == 1 and os.path.lexists(folders[0] / "seeds.csv"):
        refuse_both(folders)
        found = read_csv(folders[0] / "seeds.csv", list(KINDS), ["task", "k", "m", "seed"], KINDS)
        said = read_json(folders[0] / "study.json", Said) if os.path.lexists(folders[0] / "study.json") else {}
        return Study(found, read_json(folders[0] / "sources.json", list[Config]), **said)
    scores = load(list(folders), mix=True, finished_only=True, cut=False)
    strange = next((c for c in scores.sources if c["algorithm"] != "sqirl" or not c["task"].startswith(TABULAR)), None)
    if strange:
        raise UserError(f"{strange['algorithm']} on {strange['task']} is no run of sqirl.py on a table {TABULAR}…")
    for config in scores.sources:
        check_arguments(config, SqirlArguments)
    return Study(seeds(scores), scores.sources, scores.sweeps, scores.notes)


def main(args: Args) -> None:
    found = study(args.folders)
    table = shares(found.seeds)
    discount = float(found.sources[0]["args"].get("discount", 1.0)) if found.sources else 1.0  # that of all runs
    analyses = {task: Analysis(known_table(task), discount) for task in found.seeds["task"].unique()}
    least = {task: analysis.min_k(TIE, EXACT) or 0 for task, analysis in analyses.items()}
    writable(args.out / "figures")
    with figures.style():
        figures.save(draw(table, least), args.out / "figures" / "more_data", ("png",))
    listing = Table(["task", "min_k", "k", "episodes", "optimal seeds", "95% interval", "seeds"], [])
    for row in table.to_dict("records"):
        cells = [word(row["task"].removeprefix(TABULAR)), number(least[row["task"]], 0)]
        cells += [number(row["k"], 0), number(row["m"], 0), number(row["share"], 2)]
        listing.rows.append([*cells, between(row["low"], row["high"], 2), number(row["seeds"], 0)])
    made = origin("more_data", found.sources, found.sweeps)
    about = purpose(__doc__)
    lines = ["# What more episodes do to SQIRL", about, "![share of optimal seeds](figures/more_data.png)"]
    lines += [f"> {escape(note)}" for note in found.notes]
    lines.append(listing.markdown())
    lines += [
        *(f"`{command}`" for command in made["commands"]),
        f"`{made['report']}`, commit {', '.join(made['commits']) or 'unknown'}",
    ]
    (args.out / "page.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    found.seeds.to_csv(args.out / "seeds.csv", index=False)
    write_sources(args.out, found.sources)
    (args.out / "study.json").write_text(
        json.dumps({"sweeps": found.sweeps, "notes": found.notes}, indent=2) + "\n", encoding="utf-8"
    )
    print(args.out / "page.md")


if __name__ == "__main__":
    run_command(main)
