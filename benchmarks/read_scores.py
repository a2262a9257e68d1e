"""Reads the scores of runs from their folders, and those that a report stored.

A process that varied hyperparameters counts as one source for each of its settings, and a run on an environment with
several tasks as one for each task.
"""

import copy
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from algos.errors import UserError
from algos.stored import EVAL, FINISHED, TRAIN, Config, damaged, read_csv, read_json, read_table
from benchmarks.scores import OF_TASK, ORDER, SUCCESS, Unfinished, family_name, label
from benchmarks.stored import Report

# what methods with a model log of it, beside model_error_1, model_error_2, …
MODEL = ("policy_value", "value_bound", "penalty", "last_step_share", "spread_start", "spread_last")
MEANS = ("episodes", "return", "episode_std")  # of the episodes of an evaluation
KEYS = ("task", "algorithm", "seed", "step")  # of a row of scores.csv and values.csv
VALUES = ("predicted", "observed")  # by the critic, and in the episode
WATCHED = ("metric", "value")


@dataclass
class Found:
    """What has been found in folders so far; for most of it, see `Scores`."""

    tables: list[pd.DataFrame] = field(default_factory=list)
    values: list[pd.DataFrame] = field(default_factory=list)
    watched: list[pd.DataFrame] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    wishes: list[dict[str, Any]] = field(default_factory=list)
    cells: list[tuple[str, str]] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)  # tasks, and sentences on them
    unfinished: list[Unfinished] = field(default_factory=list)  # runs that are left out
    lost: list[tuple[str, str, int]] = field(default_factory=list)  # runs that diverged before they had a score


def is_report(folder: Path) -> bool:
    """Whether a report was written to a folder, even if files of it are missing."""
    return any(os.path.lexists(folder / name) for name in ("scores.csv", "report.json"))


def read_run(path: Path, found: Found, finished_only: bool) -> None:
    """Adds the scores of a process, a source for each setting and task, and notes those that are left out."""
    config = read_json(path, Config)
    config.setdefault("task", config["env_id"])  # early runs had no `task`
    config = {"folder": str(path.parent), **config, "status": config["status"]}
    config.get("args", {}).pop("out", None)  # a place on somebody's machine
    varied = config.pop("varied", [])
    settings = config.pop("settings", None) or [{}]
    parts = [part_of(config, {name: setting[name] for name in varied}) for setting in settings]
    for number, part in enumerate(parts):
        if taken := config.get("taken"):  # the steps of each run, one setting after the other
            part["taken"] = taken[number * len(taken) // len(parts) : (number + 1) * len(taken) // len(parts)]
    run = parts[0] if len(parts) == 1 else config
    if finished_only and config["status"] not in FINISHED:
        seeds = config.get("identity", {}).get("seeds", [])
        found.unfinished.append((label(run), family_name(run), config["task"], seeds))
        return
    table = path.with_name("eval.parquet")
    success = ["task", "success"] if config.get("score") == "success" else []
    there = os.path.lexists(table) or config.get("step", 0) > 0
    frame = read_table(table, [*EVAL, *success], varied) if there else pd.DataFrame()
    if frame.empty or frame["step"].max() == 0:
        diverged = [row for part in parts for row in part["diverged"]]
        where = f"{config['task']} has no evaluation after step 0 in {path.parent}"
        note = f"{label(run)} on {where}, and is left out{because(diverged)}."
        found.left_out.append((config["task"], note))
        found.lost += [(config["task"], label(part), row["seed"]) for part in parts for row in part["diverged"]]
        return
    if config["status"] not in FINISHED:  # its checkpoint may be older than its tables
        last = int(frame["step"].max())
        for part in parts:
            part |= {"step": last} | ({} if config.get("step") == last else {"seconds": None})
    identity = config.get("identity", {})
    if strange := set(frame["seed"]) - set(identity.get("seeds") or frame["seed"]):
        raise damaged(table, f"it has rows of seed {min(strange)}, which is not in config.json")
    if success:  # the mean over all tasks is the score, and each one is watched
        if frame["success"].isna().any():
            raise damaged(table, "success must be True or False")
        frame = frame.rename(columns={"task": "goal"})
        frame["return"] = 100.0 * frame["success"].astype(float)
    train = path.with_name("train.parquet")
    log = read_table(train, TRAIN, varied) if os.path.lexists(train) else pd.DataFrame(columns=[*TRAIN, *varied])
    compared, long = values_of(log, varied), watched_of(log, frame, varied)
    rows_used = 0
    several = "task" in frame and frame["task"].nunique() > 1
    for part in parts:
        own = rows_of(frame, part["setting"])
        rows_used += len(own)
        for task, rows in own.groupby("task") if several else [(None, own)]:
            source = copy.deepcopy(part)
            if task is not None:
                source["task"] = f"{config['task']}{OF_TASK}{task}"
            if not source["setting"]:
                del source["setting"]
            name = label(source)
            if rows.empty or rows["step"].max() == 0:
                why = because(part["diverged"])
                note = f"{name} on {source['task']} has no evaluation after step 0, and is left out{why}."
                found.left_out.append((source["task"], note))
                found.lost += [(source["task"], name, row["seed"]) for row in part["diverged"]]
                continue
            source["seeds"] = sorted(map(int, rows["seed"].unique()))
            mean = rows.groupby(["seed", "step"])["return"].agg(["size", "mean", "std"]).reset_index()
            mean.columns = ["seed", "step", *MEANS]
            if "goal" in rows:  # goals are fixed: what differs between them is no noise of episodes
                spread = rows.groupby(["seed", "step", "goal"])["return"].var().groupby(["seed", "step"]).mean()
                mean["episode_std"] = np.sqrt(spread.to_numpy())
            found.tables.append(mean.assign(task=source["task"], algorithm=name))
            found.sources.append(source)
            if several:  # the rest are means over all tasks
                continue
            if len(wide := rows_of(compared, part["setting"])):
                wide = wide[["seed", "step", *VALUES]]
                found.values.append(wide.assign(task=source["task"], algorithm=name))
            if len(rows := rows_of(long, part["setting"])):
                rows = rows[["seed", "step", *WATCHED]]
                found.watched.append(rows.assign(task=source["task"], algorithm=name))
    if rows_used < len(frame):
        raise UserError(f"{table} is damaged: it has rows of settings that are not in config.json")


def because(diverged: list[dict[str, Any]]) -> str:
    """Which seeds diverged, as the end of a sentence; empty if none did."""
    if not diverged:
        return ""
    seeds, last = sorted({row["seed"] for row in diverged}), max(row["step"] for row in diverged)
    return f": seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))} diverged before step {last:,}"


def part_of(config: dict[str, Any], setting: dict[str, float]) -> dict[str, Any]:
    """The configuration of one setting, as if a process had trained it alone."""
    part = {**config, "setting": setting, "diverged": []}
    diverged = config.get("diverged", [])
    if isinstance(diverged, dict):  # as runs had it before hyperparameters could vary
        diverged = [{"seed": int(seed), "step": step} for seed, step in diverged.items()]
    for row in diverged:
        if all(row[name] == value for name, value in setting.items()):
            part["diverged"].append({"seed": row["seed"], "step": row["step"]})
    for key in ("identity", "args"):
        if key in config:
            part[key] = {name: value for name, value in config[key].items() if name != "vary"} | setting
    return part


def rows_of(frame: pd.DataFrame, setting: dict[str, float]) -> pd.DataFrame:
    """The rows of one setting."""
    for name, value in setting.items() if len(frame) else ():
        frame = frame[frame[name] == value]
    return frame


def values_of(log: pd.DataFrame, varied: list[str]) -> pd.DataFrame:
    """Predicted and observed values of a run: seed, the varied hyperparameters, step, predicted, observed."""
    rows = log[log["metric"].isin(["value_predicted", "value_observed"])]
    if rows.empty:
        return pd.DataFrame()
    wide = rows.pivot(index=["seed", *varied, "step"], columns="metric", values="value")
    wide = wide.reindex(columns=["value_predicted", "value_observed"]).dropna().reset_index()
    wide.columns = ["seed", *varied, "step", "predicted", "observed"]
    return wide


def watched_of(log: pd.DataFrame, scores: pd.DataFrame, varied: list[str]) -> pd.DataFrame:
    """What is watched besides the score: seed, the varied hyperparameters, step, metric, value.

    It is what a run logged last of its model or of its values between one evaluation of `scores` and the next, and
    where the score is success, that on each task.
    """
    found = [pd.DataFrame()]
    if "goal" in scores:
        keys = ["seed", *varied, "step", "goal"]
        mean = scores.groupby(keys)["return"].mean().rename("value").reset_index()
        found.append(mean.assign(metric=SUCCESS + mean["goal"]).drop(columns="goal"))
    names = [
        name for name in log["metric"].unique() if name in (*MODEL, *ORDER) or str(name).startswith("model_error_")
    ]
    wanted = log["metric"].isin(names)
    steps, own = np.unique(scores["step"]), log[wanted].sort_values("step", kind="stable")
    own = own[own["step"] <= steps[-1]]
    own = own.assign(step=steps[np.searchsorted(steps, own["step"])])  # that of the evaluation which follows
    found.append(own.groupby(["seed", *varied, "step", "metric"], sort=False).tail(1))
    return pd.concat([frame for frame in found if len(frame)] or found[:1], ignore_index=True)


def read_report(folder: Path, found: Found) -> None:
    """Adds the scores and sources that a report stored, and how its runs were started."""
    path = folder / "scores.csv"
    tables = []
    frame = read_csv(path, [*KEYS, "return"], [*KEYS, "episode"])
    if "episode" in frame:
        frame = frame.groupby(list(KEYS))["return"].agg(["size", "mean", "std"]).reset_index()
        frame.columns = [*KEYS, *MEANS]
    elif "episodes" not in frame:
        raise damaged(path, "it has no column 'episodes'")
    known = pd.Series(frame.get("episode_std", ""), frame.index)  # earlier reports have none
    try:
        frame["episode_std"] = known.replace("", "nan").astype(float)  # pandas' to_numeric rounds
    except ValueError as error:
        raise damaged(path, error) from None
    found.tables.append(frame[[*KEYS, *MEANS]])
    if os.path.lexists(path := folder / "values.csv"):
        columns = [*KEYS, *VALUES]
        tables.append((path, read_csv(path, columns, KEYS)[columns], found.values))
    logged = [folder / name for name in ("watched.csv", "model.csv")]  # the latter in earlier reports
    if present := [path for path in logged if os.path.lexists(path)]:
        columns = [*KEYS, *WATCHED]
        tables.append((present[0], read_csv(present[0], columns, [*KEYS, "metric"])[columns], found.watched))
    path = folder / "sources.json"
    of_source = dict(list(frame.groupby(["task", "algorithm"])["seed"]))
    for other, table, kept in tables:
        if strange := set(zip(table["task"], table["algorithm"], strict=True)) - set(of_source):
            task, name = min(strange)
            raise damaged(other, f"{name} on {task} is not in scores.csv")
        kept.append(table)
    sources = []
    for config in read_json(path, list[Config]):
        config.setdefault("task", config["env_id"])
        if isinstance(config.get("diverged", {}), dict):
            config = part_of(config, {})
            del config["setting"]
        own = of_source.get((config["task"], label(config)), pd.Series(dtype=int))
        known = set(map(int, own.unique()))  # of all processes with this name; a source has its own seeds
        sources.append({**config, "seeds": sorted(known & set(config.get("seeds", known)))})
    held = {(config["task"], label(config), seed) for config in sources for seed in config["seeds"]}
    for task, name in of_source:
        if lost := {seed for seed in of_source[task, name] if (task, name, seed) not in held}:
            raise damaged(path, f"seed {min(lost)} of {name} on {task} is in scores.csv, and not here")
    found.sources += sources
    if os.path.lexists(folder / "report.json"):
        report = read_json(folder / "report.json", Report)
        found.sweeps += report["sweeps"]
        found.wishes.append({**report, "folder": folder})
        found.cells += map(tuple, report.get("cells", []))
        found.left_out += map(tuple, report.get("left_out", []))
        found.unfinished += map(tuple, report.get("unfinished", []))
        found.lost += map(tuple, report.get("lost", []))
