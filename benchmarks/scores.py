"""Scores of runs as one tidy table, and what must be the same before they may be compared.

A folder is a run's, any folder above some (a sweep's), or one that a report was written to: its scores.csv and
sources.json are read as the runs were.
"""

import json
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from algos.errors import UserError
from algos.run_folder import difference, read_table
from benchmarks.suite import Score

FEW_SEEDS = 5
LABELS: dict[Score, str] = {
    "last": "last evaluation",
    "mean": "mean of last 10%",
    "max": "max over last 10%",
    "best": "best over training",
}


@dataclass
class Scores:
    """What was found.

    `table`: task, algorithm, seed, step, episodes, return (mean over episodes), one row an evaluation of a seed, up to
    the step that all runs on the task have reached; a diverged seed keeps the return that it had. `values`: task,
    algorithm, seed, step, predicted, observed. `sources`: the configurations of the runs. `sweeps`: how they were
    started. `wishes`: references, score and published tables that the suites ask for. `notes`: what a reader must know,
    one sentence each.
    """

    table: pd.DataFrame
    values: pd.DataFrame
    sources: list[dict[str, Any]]
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    wishes: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def tasks(self) -> list[str]:
        return sorted(self.table["task"].unique())

    @property
    def steps(self) -> str:
        """What steps are."""
        kinds = {config.get("steps", "environment steps") for config in self.sources}
        return kinds.pop() if len(kinds) == 1 else "steps"

    @property
    def algorithms(self) -> list[str]:
        return sorted(self.table["algorithm"].unique())


def label(config: dict[str, Any]) -> str:
    """The name of an algorithm in a report: the script's, with the variant where it is not the default one."""
    algorithm, variant = config["algorithm"], config["variant"]
    if variant == "default":
        return algorithm
    return variant if variant.startswith(algorithm) else f"{algorithm} ({variant})"


def load(folders: list[Path], mix: bool = False, finished_only: bool = False) -> Scores:
    """All evaluations below some folders; with `finished_only`, without those of runs that are not finished.

    Raises UserError if there is no run, if a table is damaged, if a seed occurs twice, and, unless `mix` is set, if
    runs on one task follow different protocols.
    """
    frames: list[pd.DataFrame] = []
    values: list[pd.DataFrame] = []
    sources: list[dict[str, Any]] = []
    sweeps: list[dict[str, Any]] = []
    wishes: list[dict[str, Any]] = []
    left_out: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
        if (folder / "sources.json").exists() and (folder / "scores.csv").exists():
            _stored(folder, frames, values, sources)
            if (folder / "report.json").exists():
                facts = _json(folder / "report.json")
                sweeps += facts["sweeps"]
                wishes.append({**facts, "folder": folder})
        else:
            for path in sorted(folder.rglob("config.json")):
                left_out += _run(path, frames, values, sources, finished_only)
        for path in sorted(folder.rglob("sweep.json")):
            facts = _json(path)
            sweeps.append({name: facts[name] for name in ("suite", "purpose", "command", "commit", "date")})
        for path in sorted(folder.rglob("suite.toml")):
            try:
                wishes.append({**tomllib.loads(path.read_text()), "folder": path.parent})
            except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise UserError(f"{path} is damaged ({error})") from None
    if not frames:
        raise UserError(f"no run that has learned and been evaluated in {', '.join(map(str, folders))}")
    _no_seed_twice(sources)
    notes = _protocols(sources, mix) + left_out
    table = pd.concat(frames, ignore_index=True)
    none = [pd.DataFrame(columns=["seed", "step", "predicted", "observed", "task", "algorithm"])]
    compared = pd.concat([frame for frame in values if len(frame)] or none, ignore_index=True)
    found = Scores(table, compared, sources, sweeps, wishes, notes)
    _without_numbers(found)
    _cut(found)
    seeds = found.table.groupby(["task", "algorithm"])["seed"].nunique()
    if (few := seeds.min()) < FEW_SEEDS:
        where = "" if few == seeds.max() else " in places"
        found.notes.append(
            f"Only {few} seed{'s' if few > 1 else ''}{where}: bootstrap intervals of so few are too narrow and cover "
            "the truth less often than 95%."
        )
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error})") from None


def _run(
    path: Path,
    frames: list[pd.DataFrame],
    values: list[pd.DataFrame],
    sources: list[dict[str, Any]],
    finished_only: bool,
) -> list[str]:
    """Adds a run to what was found, or gives a note why it is left out."""
    try:
        config = _json(path)
        config.setdefault("task", config["env_id"])  # as runs had it once
        name, task = label(config), config["task"]
        config = {"folder": str(path.parent), **config, "status": config["status"]}
        config.get("args", {}).pop("out", None)  # a place on somebody's machine
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error})") from None
    table = path.with_name("eval.parquet")
    frame = read_table(table) if table.exists() else pd.DataFrame()
    if frame.empty or frame["step"].max() == 0:
        return [f"{name} on {task} has no evaluation after step 0 in {path.parent}, and is left out."]
    if finished_only and config["status"] not in ("finished", "diverged"):
        return [f"{name} on {task} is not finished, and is left out."]
    config["seeds"] = sorted(map(int, frame["seed"].unique()))
    mean = frame.groupby(["seed", "step"])["return"].agg(["size", "mean"]).reset_index()
    mean.columns = ["seed", "step", "episodes", "return"]
    frames.append(mean.assign(task=task, algorithm=name))
    sources.append(config)
    if path.with_name("train.parquet").exists():
        train = read_table(path.with_name("train.parquet"))
        train = train[train["metric"].isin(["value_predicted", "value_observed"])]
        if len(train):
            wide = train.pivot(index=["seed", "step"], columns="metric", values="value")
            wide = wide.reindex(columns=["value_predicted", "value_observed"]).dropna().reset_index()
            wide.columns = ["seed", "step", "predicted", "observed"]
            values.append(wide.assign(task=task, algorithm=name))
    return []


def _stored(
    folder: Path, frames: list[pd.DataFrame], values: list[pd.DataFrame], sources: list[dict[str, Any]]
) -> None:
    """Adds what a report stored."""
    try:
        frame = pd.read_csv(folder / "scores.csv", float_precision="round_trip")
        if "episode" in frame:
            frame = frame.groupby(["task", "algorithm", "seed", "step"])["return"].agg(["size", "mean"]).reset_index()
            frame.columns = ["task", "algorithm", "seed", "step", "episodes", "return"]
        frames.append(frame[["task", "algorithm", "seed", "step", "episodes", "return"]])
        if (folder / "values.csv").exists():
            frame_of_values = pd.read_csv(folder / "values.csv", float_precision="round_trip")
            values.append(frame_of_values[["task", "algorithm", "seed", "step", "predicted", "observed"]])
        for config in _json(folder / "sources.json"):
            config.setdefault("task", config["env_id"])
            own = frame[(frame["task"] == config["task"]) & (frame["algorithm"] == label(config))]
            sources.append({**config, "seeds": sorted(map(int, own["seed"].unique()))})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"the stored report in {folder} is damaged ({type(error).__name__}: {error})") from None


def _no_seed_twice(sources: list[dict[str, Any]]) -> None:
    seen: dict[tuple[str, str, int], str] = {}
    for config in sources:
        for seed in config["seeds"]:
            key = (config["task"], label(config), seed)
            if key in seen:
                raise UserError(
                    f"seed {seed} of {key[1]} on {key[0]} occurs twice, in {seen[key]} and in {config.get('folder')}"
                )
            seen[key] = str(config.get("folder"))


def protocol(config: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for scores on a task to be compared."""
    facts = config.get("identity") or config.get("args", {})
    versions, found = config.get("versions", {}), config.get("facts", {})
    return {
        "steps": facts.get("total_steps"),
        "evaluation episodes": facts.get("eval_episodes"),
        "steps between evaluations": facts.get("eval_every"),
        "Gymnasium": versions.get("gymnasium"),
        "MuJoCo": versions.get("mujoco"),
        "environment": found.get("evaluated_in"),
        "data": found.get("dataset_digest", found.get("digest")),
    }


def _protocols(sources: list[dict[str, Any]], mix: bool) -> list[str]:
    """Sentences on what differs between runs that are to be compared; raises UserError unless that is wanted."""
    found = []
    by_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for config in sources:
        by_task[config["task"]].append(config)
    for task, configs in sorted(by_task.items()):
        for name in protocol(configs[0]):
            groups: dict[Any, set[str]] = defaultdict(set)
            for config in configs:
                groups[protocol(config)[name]].add(label(config))
            if len(groups) > 1:
                parts = [f"{value} ({', '.join(sorted(names))})" for value, names in groups.items()]
                found.append(f"{name} on {task}: {' but '.join(parts)}")
        same: dict[str, dict[str, Any]] = {}
        for config in configs:
            facts = {k: v for k, v in config.get("identity", {}).items() if k not in ("seeds", "device", *_PROTOCOL)}
            facts |= config.get("facts", {})  # such as a dataset's digest
            first = same.setdefault(label(config), facts)
            if differs := difference(facts, first):
                found.append(f"{label(config)} on {task}: {differs.replace(' there', '').replace(' here', '')}")
    if found and not mix:
        raise UserError(
            f"runs that are to be compared differ in {'; '.join(found)}. Report them apart, or pass --mix to have them "
            "in one report that says so"
        )
    return [f"Differs between runs: {what}." for what in found]


_PROTOCOL = ("total_steps", "eval_episodes", "eval_every")


def _diverged(found: Scores) -> dict[tuple[str, str, int], int]:
    """The step at which each diverged seed was noticed, by task, algorithm and seed."""
    return {
        (config["task"], label(config), int(seed)): step
        for config in found.sources
        for seed, step in config.get("diverged", {}).items()
    }


def _without_numbers(found: Scores) -> None:
    """A seed whose return is not a finite number has diverged there."""
    table = found.table
    for row in table[~np.isfinite(table["return"])].sort_values("step", ascending=False).itertuples():
        for config in found.sources:
            if (config["task"], label(config)) == (row.task, row.algorithm) and row.seed in config["seeds"]:
                config["diverged"] = config.get("diverged", {}) | {str(row.seed): int(row.step)}
        own = (table["task"] == row.task) & (table["algorithm"] == row.algorithm) & (table["seed"] == row.seed)
        table = table[~(own & (table["step"] >= row.step))]
    found.table = table


def _cut(found: Scores) -> None:
    """Cuts every task at the last step that all its runs have reached, and gives diverged seeds the return they had."""
    parts = []
    diverged = _diverged(found)
    for task, frame in found.table.groupby("task", sort=True):
        last = frame.groupby(["algorithm", "seed"])["step"].max()
        alive = last[[(task, *key) not in diverged for key in last.index]]
        end = int(alive.min()) if len(alive) else int(last.max())
        wanted = max(protocol(config)["steps"] or 0 for config in found.sources if config["task"] == task)
        if len(alive) and end < wanted:
            names = ", ".join(f"{name} (seed {seed})" for (name, seed), step in alive.items() if step == end)
            found.notes.append(
                f"{task} is compared at step {end:,} of {wanted:,}, the last that all runs have reached; there stands "
                f"{names}."
            )
        parts.append(frame[frame["step"] <= end])
        steps = np.unique([*frame["step"], end])
        for (where, name, seed), noticed in sorted(diverged.items()):
            if where != task:
                continue
            own = frame[(frame["algorithm"] == name) & (frame["seed"] == seed)].sort_values("step")
            fate = "was never evaluated, and is left out"
            if len(own):
                more = [step for step in steps if own["step"].max() < step <= end]
                parts += [pd.concat([own.tail(1)] * len(more)).assign(step=more)] if more else []
                fate = "counts with the return of its last evaluation"
            found.notes.append(f"Seed {seed} of {name} on {task} diverged before step {noticed:,} and {fate}.")
    found.table = pd.concat(parts).sort_values(["task", "algorithm", "seed", "step"], ignore_index=True)
    values = found.values[found.values["step"] <= found.values["task"].map(found.table.groupby("task")["step"].max())]
    lost = [key in diverged for key in zip(values["task"], values["algorithm"], values["seed"], strict=True)]
    values = values[~np.array(lost, bool)]
    found.values = values.sort_values(["task", "algorithm", "seed", "step"], ignore_index=True)


def final_scores(table: pd.DataFrame, column: str = "return") -> pd.DataFrame:
    """Each seed's score by each definition: task, algorithm, seed, last, mean, max, best.

    The last 10% are the evaluations after 90% of the steps of the task, ten of a hundred; where an algorithm has none
    there, its last one. Best is over all evaluations.
    """
    end = table.groupby("task")["step"].transform("max")
    last = table.groupby(["task", "algorithm"])["step"].transform("max")
    late = table[(table["step"] > 0.9 * end) | (table["step"] == last)]
    keys = ["task", "algorithm", "seed"]
    scores = late.sort_values("step").groupby(keys)[column].agg(["last", "mean", "max"])
    scores["best"] = table.groupby(keys)[column].max()
    return scores.reset_index()


def normalise(table: pd.DataFrame, references: pd.DataFrame | None) -> pd.Series:
    """Returns as (return - low) / (high - low) of the task's references; as they are without references."""
    if references is None:
        return table["return"]
    low, high = (table["task"].map(references.set_index("task")[name]) for name in ("low", "high"))
    if low.isna().any():
        raise UserError(f"--references: there is no row for {table['task'][low.isna()].iloc[0]}")
    return (table["return"] - low) / (high - low)


def matrices(scores: pd.DataFrame, column: str) -> tuple[dict[str, np.ndarray], list[str], list[str]]:
    """Scores [N, M] of each algorithm on the tasks that all have in common; these tasks; notes on what is left out."""
    notes = []
    counts = scores.groupby(["algorithm", "task"])["seed"].nunique().unstack()
    tasks = list(counts.columns[counts.notna().all()])
    if not tasks:
        return {}, [], ["There is no task that all algorithms have in common, and so there are no aggregates."]
    if left := [task for task in counts.columns if task not in tasks]:
        notes.append(f"Aggregates are over the tasks that all algorithms have in common, without {', '.join(left)}.")
    found = {}
    for name, frame in scores.groupby("algorithm"):
        wide = {task: rows.sort_values("seed")[column].to_numpy() for task, rows in frame.groupby("task")}
        least = min(len(wide[task]) for task in tasks)
        if any(len(wide[task]) > least for task in tasks):
            notes.append(
                f"{name} has more seeds on some tasks than on others; aggregates are of the {least} lowest of each."
            )
        found[str(name)] = np.stack([wide[task][:least] for task in tasks], 1)
    return found, tasks, notes
