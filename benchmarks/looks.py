"""Sweeps that add batches of seeds until two algorithms are told apart."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from algos.checkpoint import write_atomically
from algos.cli import settings
from algos.errors import UserError
from algos.stored import Finite, Stored, Whole, find, read_json
from benchmarks.load_scores import load
from benchmarks.plan import Job
from benchmarks.scores import Scores, final_scores, known_definitions
from benchmarks.sequential import Sequential
from benchmarks.suite import Entry, Suite

FILE = "looks.json"
FEWEST = 3  # seeds of a batch
LEVEL = 0.05  # probability of any wrong decision on a pair, over all tasks


class StoredLook(Stored):
    """One look at one task: a `Look`."""

    number: Annotated[int, Field(ge=1)]
    seeds: Whole
    means: tuple[Finite, Finite]
    statistic: Finite
    boundary: Finite
    decision: str


class Looks(Stored):
    """One pair of algorithms in looks.json of a sweep or a report."""

    a: str
    b: str
    score: str
    batch: Whole
    most: Whole
    first: int | None = None  # seed; not stored by earlier versions
    level: Finite
    tasks: dict[str, list[StoredLook]]


def entries_of(suite: Suite, names: tuple[str, ...]) -> list[Entry]:
    """The two algorithms that are to be told apart; raises UserError for others."""
    known = {entry.name: entry for entry in suite.entries}
    if len(names) != 2 or names[0] == names[1]:
        raise UserError(f"--until-decided takes the names of two algorithms, got {' '.join(names) or 'none'}")
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"--until-decided: {suite.name} has no algorithm {unknown[0]!r}; it has {', '.join(known)}")
    for name in names:
        if any(len(settings(args)) > 1 for args in known[name].args.values()):
            raise UserError(f"--until-decided: {name} has several settings, and one can be compared")
    return [known[name] for name in names]


def until_decided(
    suite: Suite,
    out: Path,
    batch: int,
    most_seeds: int,
    train: Callable[[Suite], tuple[list[Job], bool]],
) -> None:
    """Trains batches of seeds of a suite's two algorithms, up to `most_seeds` of each, on tasks that are not decided.

    `train` runs a suite, and gives its jobs and whether to go on; if not, the looks end. Over all tasks, a decision is
    wrong with a probability of at most `LEVEL`, if the scores of both spread alike. Seeds count from the suite's first
    one, and looks.json in `out` has what was found at each look.
    """
    names = tuple(entry.name for entry in suite.entries)
    most = most_seeds // batch
    first = suite.seeds[0]
    stored = read_json(out / FILE, list[Looks]) if (out / FILE).exists() else []
    others = [looks for looks in stored if {looks["a"], looks["b"]} != set(names)]
    for looks in stored:
        began = first if looks.get("first") is None else looks["first"]
        plan = looks["a"], looks["batch"], looks["most"], began, looks["score"], set(looks["tasks"])
        if looks not in others and plan != (names[0], batch, most, first, suite.score, set(suite.tasks)):
            raise UserError(
                f"--until-decided: {out} has looks at {looks['a']} and {looks['b']} in {looks['most']} batches of "
                f"{looks['batch']} seeds from {began} on, by the score {looks['score']} on "
                f"{', '.join(looks['tasks'])}, and another plan would look once more: keep to it, or take another --out"
            )
    level = LEVEL / len(suite.tasks)
    tests = {task: Sequential(batch, most, level) for task in suite.tasks}
    for look in range(1, most + 1):
        open_tasks = [task for task, test in tests.items() if not decided(test)]
        if not open_tasks:
            break
        seeds = list(range(first, first + look * batch))
        jobs, go_on = train(replace(suite, tasks=open_tasks, seeds=seeds))
        if not go_on:
            return
        for task in open_tasks:
            a, b = (scores_of(suite, seeds, [j for j in jobs if of(j, entry, task)]) for entry in suite.entries)
            found = tests[task].look(a, b)
            told = f"{names[0]} {found.means[0]:,.1f}, {names[1]} {found.means[1]:,.1f}"
            verdict = f"{names[0]} is {found.decision} than {names[1]}" if found.decision != "not decided" else "open"
            print(f"look {look} of {most} at {task}: {told} with {found.seeds} seeds each: {verdict}", flush=True)
        content: dict[str, Any] = {"a": names[0], "b": names[1], "score": suite.score, "batch": batch, "most": most}
        content |= {
            "first": first,
            "level": level,
            "tasks": {task: [asdict(one) for one in t.looks] for task, t in tests.items()},
        }
        write_atomically(out / FILE, json.dumps([*others, content], indent=1).encode())


def decided(test: Sequential) -> bool:
    return bool(test.looks) and test.looks[-1].decision != "not decided"


def of(job: Job, entry: Entry, task: str) -> bool:
    """Whether a job trains an algorithm of a suite on a task."""
    return job.args.task == task and (job.identity["algorithm"], job.args.variant) == (entry.algorithm, entry.variant)


def scores_of(suite: Suite, seeds: list[int], jobs: list[Job]) -> np.ndarray:
    """The suite's score of each of these seeds; their jobs may have trained more."""
    final = final_scores(load([job.folder for job in jobs]).table)
    if final["task"].nunique() > 1:
        raise UserError(f"--until-decided: {jobs[0].name} has several scores, one for each task of its environment")
    known_definitions(final, suite.score)
    by_seed = final.set_index("seed")[suite.score]
    if lost := [seed for seed in seeds if seed not in by_seed.index]:
        raise UserError(f"--until-decided: seed {lost[0]} of {jobs[0].name} has no score, and nothing can be compared")
    return by_seed.loc[seeds].to_numpy(float)


def stored_looks(folders: tuple[Path, ...], scores: Scores) -> list[dict[str, Any]]:
    """The looks of the sweeps in some folders, each once, at two algorithms and at tasks of which there are scores.

    Where a sweep and reports of it store the same looks, the longest list is taken.
    """
    paths = [path for folder in folders for path in find(folder, FILE)]
    names = {c["algorithm"] if c["variant"] == "default" else c["variant"] for c in scores.sources}  # of a suite
    every: dict[tuple, dict[str, Any]] = {}
    for looks in (looks for path in paths for looks in read_json(path, list[Looks])):
        named = {scores.files.get(task, task): taken for task, taken in looks["tasks"].items()}
        tasks = {task: taken for task, taken in named.items() if task in scores.tasks}
        if tasks and {looks["a"], looks["b"]} <= names:
            plan = tuple(looks.get(name) for name in ("a", "b", "score", "batch", "most", "first", "level"))
            known = every.setdefault(plan, {**looks, "tasks": {}})["tasks"]
            for task, taken in tasks.items():
                known[task] = max(known.get(task, []), taken, key=len)
    return list(every.values())
