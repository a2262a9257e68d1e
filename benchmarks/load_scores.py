"""Reads the scores of runs from their folders, and checks that the runs may be compared.

A folder is that of a run, any folder above runs (that of a sweep), or one that a report was written to: its scores.csv
and sources.json are read like the runs themselves. A process that varied hyperparameters counts as one source for each
of its settings, and a run on an environment with several tasks as one for each task.
"""

import copy
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from algos.errors import UserError
from algos.stored import EVAL, FINISHED, TRAIN, Config, check, damaged, find, read_csv, read_json, read_table
from benchmarks.protocols import differences, protocol
from benchmarks.scores import OF_TASK, ORDER, SUCCESS, Scores, Unfinished, family_name, label, missing_cells
from benchmarks.stored import Report, Sweep, read_wishes

FEW_SEEDS = 10
# what methods with a model log of it, beside model_error_1, model_error_2, …
MODEL = ("policy_value", "value_bound", "penalty", "last_step_share", "spread_start", "spread_last")
MEANS = ("episodes", "return", "episode_std")  # of the episodes of an evaluation
KEYS = ("task", "algorithm", "seed", "step")  # of a row of scores.csv and values.csv
VALUES = ("predicted", "observed")  # by the critic, and in the episode
WATCHED = ("metric", "value")
LARGEST = 1e100  # sums of squares of greater numbers are no numbers


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


def load(
    folders: list[Path],
    mix: bool = False,
    finished_only: bool = False,
    tasks: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    cut: bool = True,
) -> Scores:
    """All evaluations below some folders; with `finished_only`, without those of runs that are not finished.

    With `tasks` and `algorithms`, all others are left out; the name of an algorithm stands for all of its settings too.
    Runs on one task are cut at the last step that all have reached. Without `cut`, for studies of what each run came to
    by itself, they keep all evaluations, and there is no note on how few the seeds are for the intervals of reports.
    Raises UserError if there is no run, or none of those names, if a table is damaged, if a seed occurs twice, and,
    unless `mix` is set, if runs on one task follow different protocols.
    """
    found = Found()
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
        if is_report(folder):
            _stored(folder, found)
        else:
            for path in find(folder, "config.json"):
                _run(path, found, finished_only)
        for path in find(folder, "sweep.json"):
            sweep = read_json(path, Sweep)
            found.sweeps.append({name: sweep[name] for name in ("suite", "purpose", "command", "commit", "date")})
            found.cells += map(tuple, sweep.get("cells", []))
        for path in find(folder, "suite.toml"):
            found.wishes.append({**read_wishes(path), "folder": path.parent})
    if not found.tables:
        kind = "finished run" if found.unfinished else "run that has learned and been evaluated"
        raise UserError(f"no {kind} in {', '.join(map(str, folders))}")
    sources = _chosen(found.sources, tasks, algorithms)
    _no_seed_twice(sources)
    notes = [f"Differs between runs: {sentence}." for sentence in _differences(sources, mix)]
    left_out = [(task, note) for task, note in dict.fromkeys(found.left_out) if not tasks or task in tasks]
    notes += [note for _, note in left_out]
    unfinished = _unfinished(found.unfinished, sources, tasks, algorithms)
    notes += _not_finished(unfinished, sources)
    names, places = {family_name(config) for config in sources}, {task.partition(OF_TASK)[0] for task in tasks}
    wanted = dict.fromkeys(found.cells)
    cells = [(n, t) for n, t in wanted if (not algorithms or n in names) and (not tasks or t in places)]
    if missing := missing_cells(cells, sources):
        is_here, is_not = ("is" if n == 1 else "are" for n in (len(cells) - len(missing), len(missing)))
        notes.append(
            f"Only {len(cells) - len(missing)} of the {len(cells)} cells that were asked for, each an algorithm on a "
            f"task, {is_here} here; the rest {is_not} {_named(missing)}."
        )
    notes += _without_bf16(sources)
    frames = (
        _together(found.tables, MEANS, sources),
        _together(found.values, VALUES, sources),
        _together(found.watched, WATCHED, sources),
    )
    sweeps = [sweep for i, sweep in enumerate(found.sweeps) if sweep not in found.sweeps[:i]]
    scores = Scores(*frames, sources, sweeps, found.wishes, cells, notes, left_out, unfinished)
    _without_numbers(scores)
    if scores.table.empty:
        raise UserError(f"no run in {', '.join(map(str, folders))} has a return that is a finite number")
    _cut(scores, cut)
    seeds = scores.table.groupby(["task", "algorithm"])["seed"].nunique()
    if cut and (few := seeds.min()) < FEW_SEEDS:
        where = "" if few == seeds.max() else " in places"
        scores.notes.append(
            f"Only {few} seeds{where}: intervals of so few hold if scores are nearly normal, and are too narrow if not."
            if few > 1
            else f"Only 1 seed{where}, which has no interval."
        )
    return scores


def _together(frames: list[pd.DataFrame], columns: Sequence[str], sources: list[dict[str, Any]]) -> pd.DataFrame:
    """One table of many, with the rows of some sources only."""
    filled = [frame for frame in frames if len(frame)] or [pd.DataFrame(columns=[*KEYS, *columns])]
    table = pd.concat(filled, ignore_index=True)
    kept = {(config["task"], label(config)) for config in sources}
    return table[np.array([key in kept for key in zip(table["task"], table["algorithm"], strict=True)], bool)]


def _differences(sources: list[dict[str, Any]], mix: bool) -> list[str]:
    """How runs that are to be compared differ; raises UserError for any difference unless `mix`."""
    found = differences(sources)
    if found and not mix:
        raise UserError(
            f"runs that are to be compared differ in {'; '.join(found)}. Report them apart, or together with "
            "`benchmarks.report --mix`, which says so"
        )
    return found


def _unfinished(
    runs: list[Unfinished], sources: list[dict[str, Any]], tasks: Sequence[str], algorithms: Sequence[str]
) -> list[Unfinished]:
    """Those of some unfinished runs that are asked for, each with the seeds that no source has."""
    known: dict[tuple[str, str], set[int]] = defaultdict(set)
    for config in sources:
        known[label(config), config["task"]] |= set(config["seeds"])
    seeds: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for name, family, task, own in runs:
        if (not algorithms or {name, family} & set(algorithms)) and (not tasks or task in tasks):
            seeds[name, family, task] |= set(own) - known[name, task]
    return [(*key, sorted(own)) for key, own in seeds.items() if own or not known[key[0], key[2]]]


def _not_finished(runs: list[Unfinished], sources: list[dict[str, Any]]) -> list[str]:
    """A sentence on the runs that are left out, with their seeds where other seeds are not; none without such runs."""
    kept = {(label(config), config["task"]) for config in sources}
    pairs = [
        (f"{name} (seeds {', '.join(map(str, own))})" if (name, task) in kept else name, task)
        for name, _, task, own in runs
    ]
    verb = "is" if len(pairs) == 1 else "are"
    return [f"{_named(pairs)} {verb} not finished, and {verb} left out."] if pairs else []


def _named(pairs: list[tuple[str, str]]) -> str:
    """Algorithms and the tasks that they are on, in words; those on the same tasks are named together."""
    tasks: dict[str, list[str]] = defaultdict(list)
    for name, task in sorted(set(pairs)):
        tasks[name].append(task)
    names: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in tasks:
        names[tuple(tasks[name])].append(name)
    return "; ".join(f"{', '.join(alike)} on {', '.join(where)}" for where, alike in names.items())


def _without_bf16(sources: list[dict[str, Any]]) -> list[str]:
    """Sentences on runs with --bf16 whose processor or GPU made them do without it, if there are any."""
    kinds: dict[tuple[str, str], set[str]] = {}
    for config in sources:
        if config.get("identity", {}).get("bf16"):
            key, without = (label(config), config["task"]), config.get("in_bf16") is False
            kinds.setdefault(key, set()).add(config["identity"].get("device", "cpu") if without else "")
    notes = []
    for device, told in (
        ("cpu", "In float32, as the processor has no instructions for bfloat16 (--bf16 was given)"),
        (
            "cuda",
            "On a GPU, which may round factors of products to TF32, and where --bf16 changes nothing (it was given)",
        ),
    ):
        found = [
            (f"{name}{' (some runs)' * (len(kind) > 1)}", task)
            for (name, task), kind in kinds.items() if device in kind
        ]  # fmt: skip
        notes += [f"{told}: {_named(found)}."] if found else []
    return notes


def _chosen(sources: list[dict[str, Any]], tasks: Sequence[str], algorithms: Sequence[str]) -> list[dict[str, Any]]:
    """The sources on some tasks and of some algorithms, or all; raises UserError for a name that none has."""
    for flag, wanted, names_of in (
        ("--tasks", tasks, lambda config: {config["task"]}),
        ("--algorithms", algorithms, lambda config: {label(config), family_name(config)}),
    ):
        known = set().union(*map(names_of, sources))
        if unknown := [name for name in wanted if name not in known]:
            raise UserError(f"{flag}: no run is named {unknown[0]!r}; there are {', '.join(sorted(known))}")
        sources = [config for config in sources if not wanted or names_of(config) & set(wanted)]
    if not sources:
        raise UserError("no run is of one of the --algorithms on one of the --tasks")
    return sources


def is_report(folder: Path) -> bool:
    """Whether a report was written to a folder, even if files of it are missing."""
    return any(os.path.lexists(folder / name) for name in ("scores.csv", "report.json"))


def check_arguments(config: dict[str, Any], kind: type) -> None:
    """Raises UserError if the arguments of a run do not fit a schema."""
    try:
        check(config.get("args", {}), kind)
    except ValueError as error:
        name = f"{label(config)} on {config['task']}"
        raise damaged(Path(config.get("folder", "")), f"the arguments of {name}: {error}") from None


def _run(path: Path, found: Found, finished_only: bool) -> None:
    """Adds the scores of a process, a source for each setting and task, and notes those that are left out."""
    config = read_json(path, Config)
    config.setdefault("task", config["env_id"])  # early runs had no `task`
    config = {"folder": str(path.parent), **config, "status": config["status"]}
    config.get("args", {}).pop("out", None)  # a place on somebody's machine
    varied = config.pop("varied", [])
    settings = config.pop("settings", None) or [{}]
    parts = [part_of(config, {name: setting[name] for name in varied}) for setting in settings]
    whole = label(parts[0] if len(parts) == 1 else config)
    table = path.with_name("eval.parquet")
    success = ["task", "success"] if config.get("score") == "success" else []
    there = os.path.lexists(table) or config.get("step", 0) > 0
    frame = read_table(table, [*EVAL, *success], varied) if there else pd.DataFrame()
    if frame.empty or frame["step"].max() == 0:
        note = f"{whole} on {config['task']} has no evaluation after step 0 in {path.parent}, and is left out."
        found.left_out.append((config["task"], note))
        return
    if finished_only and config["status"] not in FINISHED:
        run = parts[0] if len(parts) == 1 else config
        seeds = config.get("identity", {}).get("seeds", [])
        found.unfinished.append((label(run), family_name(run), config["task"], seeds))
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
    compared, long = _values(log, varied), _watched(log, frame, varied)
    rows_used = 0
    several = "task" in frame and frame["task"].nunique() > 1
    for part in parts:
        own = _rows_of(frame, part["setting"])
        rows_used += len(own)
        for task, rows in own.groupby("task") if several else [(None, own)]:
            source = copy.deepcopy(part)
            if task is not None:
                source["task"] = f"{config['task']}{OF_TASK}{task}"
            if not source["setting"]:
                del source["setting"]
            name = label(source)
            if rows.empty or rows["step"].max() == 0:
                note = f"{name} on {source['task']} has no evaluation after step 0, and is left out."
                found.left_out.append((source["task"], note))
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
            if len(wide := _rows_of(compared, part["setting"])):
                wide = wide[["seed", "step", *VALUES]]
                found.values.append(wide.assign(task=source["task"], algorithm=name))
            if len(rows := _rows_of(long, part["setting"])):
                rows = rows[["seed", "step", *WATCHED]]
                found.watched.append(rows.assign(task=source["task"], algorithm=name))
    if rows_used < len(frame):
        raise UserError(f"{table} is damaged: it has rows of settings that are not in config.json")


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


def _rows_of(frame: pd.DataFrame, setting: dict[str, float]) -> pd.DataFrame:
    """The rows of one setting."""
    for name, value in setting.items() if len(frame) else ():
        frame = frame[frame[name] == value]
    return frame


def _values(log: pd.DataFrame, varied: list[str]) -> pd.DataFrame:
    """Predicted and observed values of a run: seed, the varied hyperparameters, step, predicted, observed."""
    rows = log[log["metric"].isin(["value_predicted", "value_observed"])]
    if rows.empty:
        return pd.DataFrame()
    wide = rows.pivot(index=["seed", *varied, "step"], columns="metric", values="value")
    wide = wide.reindex(columns=["value_predicted", "value_observed"]).dropna().reset_index()
    wide.columns = ["seed", *varied, "step", "predicted", "observed"]
    return wide


def _watched(log: pd.DataFrame, scores: pd.DataFrame, varied: list[str]) -> pd.DataFrame:
    """What is watched besides the score: seed, the varied hyperparameters, step, metric, value.

    It is what a run logged last of its model or of its values between one evaluation of `scores` and the next, and
    where the score is success, that on each task.
    """
    found = [pd.DataFrame()]
    if "goal" in scores:
        keys = ["seed", *varied, "step", "goal"]
        mean = scores.groupby(keys)["return"].mean().rename("value").reset_index()
        found.append(mean.assign(metric=SUCCESS + mean["goal"]).drop(columns="goal"))
    wanted = log["metric"].isin([*MODEL, *ORDER]) | log["metric"].astype(str).str.startswith("model_error_")
    steps, own = np.unique(scores["step"]), log[wanted].sort_values("step", kind="stable")
    own = own[own["step"] <= steps[-1]]
    own = own.assign(step=steps[np.searchsorted(steps, own["step"])])  # that of the evaluation which follows
    found.append(own.groupby(["seed", *varied, "step", "metric"], sort=False).tail(1))
    return pd.concat([frame for frame in found if len(frame)] or found[:1], ignore_index=True)


def _stored(folder: Path, found: Found) -> None:
    """Adds the scores and sources that a report stored, and how its runs were started."""
    path = folder / "scores.csv"
    tables = []
    frame = read_csv(path, [*KEYS, "return"], [*KEYS, "episode"])
    if "episode" in frame:
        frame = frame.groupby(list(KEYS))["return"].agg(["size", "mean", "std"]).reset_index()
        frame.columns = [*KEYS, *MEANS]
    elif "episodes" not in frame:
        raise damaged(path, "it has no column 'episodes'")
    known = frame.get("episode_std", "")  # earlier reports have none
    frame["episode_std"] = pd.to_numeric(pd.Series(known, frame.index), errors="coerce")
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


def _no_seed_twice(sources: list[dict[str, Any]]) -> None:
    """Raises UserError if two sources have the same seed of an algorithm, in one setting, on a task."""
    seen: dict[tuple[str, str, int], str] = {}
    for config in sources:
        for seed in config["seeds"]:
            key = (config["task"], label(config), seed)
            if key in seen:
                here = config.get("folder")
                where = f", in {seen[key]} and in {here}"
                if seen[key] == str(here):
                    where = f": {here} is read twice, from folders or reports that overlap"
                raise UserError(f"seed {seed} of {key[1]} on {key[0]} occurs twice{where}")
            seen[key] = str(config.get("folder"))


def _diverged(scores: Scores) -> dict[tuple[str, str, int], int]:
    """The step at which each diverged seed was noticed, by task, algorithm and seed."""
    return {
        (config["task"], label(config), row["seed"]): row["step"]
        for config in scores.sources
        for row in config["diverged"]
    }


def _without_numbers(scores: Scores) -> None:
    """Marks a seed as diverged from the first step on at which its return is not a finite number, or beyond all use.

    Other numbers of that kind are left out.
    """
    for name, columns in (("values", list(VALUES)), ("watched", ["value"])):
        frame = getattr(scores, name)
        setattr(scores, name, frame[(frame[columns].astype(float).abs() < LARGEST).all(axis=1)])
    table = scores.table
    for row in table[~(table["return"].abs() < LARGEST)].sort_values("step", ascending=False).itertuples():
        for config in scores.sources:
            if (config["task"], label(config)) == (row.task, row.algorithm) and row.seed in config["seeds"]:
                others = [other for other in config["diverged"] if other["seed"] != row.seed]
                config["diverged"] = [*others, {"seed": int(row.seed), "step": int(row.step)}]  # type: ignore[arg-type]
        own = (table["task"] == row.task) & (table["algorithm"] == row.algorithm) & (table["seed"] == row.seed)
        table = table[~(own & (table["step"] >= row.step))]
    scores.table = table


def _cut(scores: Scores, cut: bool) -> None:
    """Cuts every task at the last step that all its runs have reached; diverged seeds keep the return that they had.

    Without `cut`, every run keeps all of its evaluations.
    """
    parts = []
    diverged = _diverged(scores)
    done = {(c["task"], label(c), seed): c.get("step") for c in scores.sources for seed in c["seeds"]}
    for task, frame in scores.table.groupby("task", sort=True):
        last = frame.groupby(["algorithm", "seed"])["step"].max()
        alive = last[[(task, *key) not in diverged for key in last.index]]
        end = int(alive.min()) if len(alive) and cut else int(last.max())
        wanted = max(protocol(config)["steps"] or 0 for config in scores.sources if config["task"] == task)
        if cut and len(alive) and end < wanted:
            steps_done = alive
            if (alive == end).all():  # a report's tables were cut: its sources say which runs went no further
                steps_done = pd.Series([max(done[task, *key] or 0, end) for key in alive.index], alive.index)
            least = steps_done.min()
            shortest: list[str] = []
            for name, steps_of in steps_done.groupby("algorithm"):
                seeds_of = [f"{name} (seed {seed})" for (_, seed), step in steps_of.items() if step == least]
                shortest += [name] if len(seeds_of) == len(steps_of) > 1 else seeds_of
            names = ", ".join(shortest[:6]) + (f" and {len(shortest) - 6} more" if len(shortest) > 6 else "")
            scores.notes.append(
                f"{task} is compared at step {end:,} of {wanted:,}, the last that all runs have reached; the shortest "
                f"{'is' if len(shortest) == 1 else 'are'} {names}."
            )
        parts.append(frame[frame["step"] <= end])
        steps = np.unique([*frame["step"], end])
        fates: dict[tuple[str, bool], list[tuple[int, int]]] = defaultdict(list)  # name, evaluated -> seed, step
        for (where, name, seed), noticed in sorted(diverged.items()):
            if where != task:
                continue
            own = frame[(frame["algorithm"] == name) & (frame["seed"] == seed)].sort_values("step")
            if len(own) and cut:
                later = [step for step in steps if own["step"].max() < step <= end]
                parts += [pd.concat([own.tail(1)] * len(later)).assign(step=later)] if later else []
            fates[name, len(own) > 0].append((seed, noticed))
        for (name, evaluated), seeds in fates.items():
            scores.notes.append(_fate(name, task, seeds, evaluated))
    scores.table = pd.concat(parts).sort_values(["task", "algorithm", "seed", "step"], ignore_index=True)
    ends = scores.table.groupby("task")["step"].max()
    for name in ("values", "watched"):
        frame = getattr(scores, name)
        frame = frame[frame["step"] <= frame["task"].map(ends)]
        lost = [key in diverged for key in zip(frame["task"], frame["algorithm"], frame["seed"], strict=True)]
        frame = frame[~np.array(lost, bool)]
        setattr(
            scores, name, frame.sort_values(["task", "algorithm", "seed", "step"], ignore_index=True, kind="stable")
        )


def _fate(name: str, task: str, seeds: list[tuple[int, int]], evaluated: bool) -> str:
    """A sentence on the seeds of an algorithm that diverged on a task: (seed, step at which that was noticed)."""
    numbers = ", ".join(str(seed) for seed, _ in seeds)
    steps = ", ".join(f"{step:,}" for _, step in seeds)
    if len(seeds) == 1:
        fate = "counts with the return of its last evaluation" if evaluated else "was never evaluated, and is left out"
        return f"Seed {numbers} of {name} on {task} diverged before step {steps} and {fate}."
    fate = "count with the returns of their last evaluations" if evaluated else "were never evaluated, and are left out"
    return f"Seeds {numbers} of {name} on {task} diverged before steps {steps} and {fate}."
