"""Loads scores of runs and checks that the runs may be compared.

A folder is that of a run, any folder above runs (that of a sweep), or one that a report was written to: its scores.csv
and sources.json are read like the runs themselves, see `benchmarks.read_scores`.
"""

import itertools
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from algos.errors import UserError
from algos.stored import check, damaged, find, read_json
from benchmarks.protocols import differences, options_in_words, protocol
from benchmarks.read_scores import KEYS, MEANS, VALUES, WATCHED, Found, is_report, read_report, read_run
from benchmarks.scores import OF_TASK, Scores, Unfinished, among, family_name, label, missing_cells
from benchmarks.stored import Sweep, processes_of, read_wishes, without_place

FEW_SEEDS = 10
NOT_EVALUATED = "{} no evaluation after step 0, and {} left out"
CODE = ("commit", "script", "environment", "torch")  # which may change between processes
LARGEST = 1e100  # sums of squares of greater numbers are no numbers


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
    unless `mix` is set, if runs on one task follow different protocols. It also raises UserError if a folder holds both
    a report and runs.
    """
    found, asked = Found(), []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
        if is_report(folder):
            if runs := find(folder, "config.json"):
                raise UserError(
                    f"{folder} holds a report, and also {runs[0].parent}: move the runs, or the report's files, to a "
                    "folder of their own"
                )
            read_report(folder, found)
        else:
            for path in find(folder, "config.json"):
                read_run(path, found, finished_only)
        for path in find(folder, "sweep.json"):
            sweep = read_json(path, Sweep)
            found.sweeps.append({name: sweep[name] for name in ("suite", "purpose", "command", "commit", "date")})
            found.cells += map(tuple, sweep.get("cells", []))
            asked += [(*cell, sweep.get("seeds", [])) for cell in sweep.get("cells", [])]
        for path in find(folder, "suite.toml"):
            found.wishes.append({**read_wishes(path), "folder": path.parent})
    if not found.tables:
        if not folders:
            raise UserError("name at least one folder of runs")
        kind = "finished run" if found.unfinished else "run that has learned and been evaluated"
        raise UserError(f"no {kind} in {', '.join(map(str, folders))}")
    files = _name_files(found)
    asked = [(name, files.get(task, task), seeds) for name, task, seeds in asked]
    begun: dict[tuple[str, str], set[int]] = defaultdict(set)
    for _, name, task, seeds in found.unfinished:
        begun[name, task.partition(OF_TASK)[0]] |= set(seeds)
    for config, (name, task, seeds) in itertools.product(found.sources, asked):  # jobs that have not begun
        if (family_name(config), config["task"].partition(OF_TASK)[0]) == (name, task):
            found.unfinished.append((label(config), name, config["task"], sorted({*seeds} - begun[name, task])))
    sources = _chosen(found.sources, tasks, algorithms)
    no_seed_twice(sources)
    notes = [f"Differs between runs: {sentence}." for sentence in _differences(sources, mix)]
    left_out = [(task, note) for task, note in dict.fromkeys(found.left_out) if not tasks or task in tasks]
    notes += [note for _, note in left_out]
    unfinished = _unfinished(found.unfinished, sources, found.lost, tasks, algorithms)
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
    notes += _of_other_code(sources) + _without_bf16(sources) + _with_options(sources)
    notes += _other_parts(sources) + _other_ensembles(sources)
    frames = (
        _together(found.tables, MEANS, sources),
        _together(found.values, VALUES, sources),
        _together(found.watched, WATCHED, sources),
    )
    told = [sweep | {"command": without_place(sweep["command"])} for sweep in found.sweeps]
    sweeps = [sweep for i, sweep in enumerate(told) if sweep not in told[:i]]
    scores = Scores(*frames, sources, sweeps, found.wishes, cells, notes, left_out, unfinished, found.lost, files)
    _without_numbers(scores)
    if cut:
        _without_learning(scores)
    if scores.table.empty:
        raise UserError(f"no run in {', '.join(map(str, folders))} has a return that is a finite number")
    _align(scores, cut)
    scores.notes += _without_scores(scores)
    seeds = scores.table.groupby(["task", "algorithm"])["seed"].nunique()
    if cut and (few := seeds.min()) < FEW_SEEDS:
        where = "" if few == seeds.max() else " in places"
        scores.notes.append(
            f"Only {few} seeds{where}: intervals of so few hold if scores are nearly normal, and are too narrow if not."
            if few > 1
            else f"Only 1 seed{where}, which has no interval."
        )
    return scores


def _name_files(found: Found) -> dict[str, str]:
    """Lets the name of a file of data stand for its whole path, if no other file has it; gives these names by paths.

    Files with the same digest are the same one, each on a machine of its own.
    """
    digests: dict[str, set[str]] = defaultdict(set)
    for config in found.sources:
        facts = config.get("facts", {})
        digests[config["task"]].add(facts.get("dataset_digest") or facts.get("digest") or config["task"])
    tasks = digests.keys() | {task for _, task in found.cells} | {task for task, _ in found.left_out}
    paths = [task for task in tasks if os.path.isabs(task)]
    alike: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        alike[Path(path).name].append(path)
    same = {
        name: len(own) == 1 or len(set().union(*(digests.get(p) or {p} for p in own))) == 1
        for name, own in alike.items()
    }
    files = {path: name for path in paths if same[name := Path(path).name]}
    for frame in (*found.tables, *found.values, *found.watched):
        frame["task"] = frame["task"].replace(files)
    for config in found.sources:
        config["task"] = files.get(config["task"], config["task"])
    found.cells = [(name, files.get(task, task)) for name, task in found.cells]
    found.left_out = [
        (files.get(task, task), note.replace(task, files.get(task, task))) for task, note in found.left_out
    ]
    found.unfinished = [(name, family, files.get(task, task), own) for name, family, task, own in found.unfinished]
    found.lost = [(files.get(task, task), name, seed) for task, name, seed in found.lost]
    return files


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
    runs: list[Unfinished],
    sources: list[dict[str, Any]],
    lost: list[tuple[str, str, int]],
    tasks: Sequence[str],
    algorithms: Sequence[str],
) -> list[Unfinished]:
    """Those of some unfinished runs that are asked for, each with the seeds that are in no source and not lost."""
    known: dict[tuple[str, str], set[int]] = defaultdict(set)
    for config in sources:
        known[label(config), config["task"]] |= {*config["seeds"], *config.get("identity", {}).get("seeds", [])}
    for task, name, seed in lost:  # it diverged, and its process is at its end
        known[name, task].add(seed)
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


def _of_other_code(sources: list[dict[str, Any]]) -> list[str]:
    """Sentences on algorithms whose seeds on a task were not all trained by the same code."""
    trained: dict[tuple[str, str], list[tuple[list[int], list[dict[str, Any]]]]] = defaultdict(list)
    for config in sources:
        trained[label(config), config["task"]].append((config["seeds"], processes_of([config])))
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for key, parts in trained.items():
        codes = [process for own, processes in parts for process in processes if own]
        told = [name for name in CODE if len({code_of(code)[name] for code in codes} - {None}) > 1]
        seeds: dict[str, list[int]] = defaultdict(list)
        for own, processes in parts:
            words: list[tuple[str, str]] = []  # of each code, with where it ended
            for code in processes:
                end = f" until step {code['until']:,}" if "until" in code else ""
                by = " and ".join(f"{name} {code_of(code)[name] or 'unknown'}" for name in told)
                words = [*words[: -1 if words and words[-1][0] == by else None], (by, end)]
            seeds[", then by ".join(map("".join, words))] += own
        if told:
            of_each = [f"seed{'s' * (len(own) > 1)} {in_words(own)} by {by}" for by, own in seeds.items() if own]
            found["; ".join(of_each)].append(key)
    return [f"Not all of {_named(pairs)} was trained by the same code: {how}." for how, pairs in found.items()]


def code_of(process: dict[str, Any]) -> dict[str, str | None]:
    """What identifies the code of a process, by the name that a sentence gives it."""
    names = "commit", "script_digest", "environment_digest"
    return dict(zip(CODE, [*map(process.get, names), (process.get("versions") or {}).get("torch")], strict=True))


def in_words(seeds: list[int]) -> str:
    """`0-4` for consecutive seeds, else all of them."""
    ordered = sorted(seeds)
    consecutive = len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1))
    return f"{ordered[0]}-{ordered[-1]}" if consecutive else ", ".join(map(str, ordered))


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


def _with_options(sources: list[dict[str, Any]]) -> list[str]:
    """Sentences on runs whose environment had options of --env-option, one for each set of them."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for config in sources:
        if words := options_in_words(config):
            found[words].append((label(config), config["task"]))
    return [
        f"In environments with other options, for which no references and published scores were made: {_named(pairs)} "
        f"({words})."
        for words, pairs in found.items()
    ]


def _other_parts(sources: list[dict[str, Any]]) -> list[str]:
    """Sentences on datasets beside which runs had other data, or none."""
    found: dict[tuple[str, str], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for config in sources:
        facts = config.get("facts", {})
        whole = facts.get("dataset_digest") or facts.get("digest")
        if whole and "transitions" in facts:
            found[config["task"], whole][facts["transitions"]].add(label(config))
    parts = {key: {f"{count:,}": names for count, names in sorted(counts.items())} for key, counts in found.items()}
    return [
        _differing(task, "learned from the same transitions", counts)
        for (task, _), counts in sorted(parts.items())
        if len(counts) > 1
    ]


def _other_ensembles(sources: list[dict[str, Any]]) -> list[str]:
    """Sentences on tasks on which runs loaded different ensembles of learned dynamics."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for config in sources:
        if digest := config.get("facts", {}).get("dynamics_digest"):
            found[config["task"]][digest].add(label(config))
    return [
        _differing(task, "have the same ensembles", {digest[:8]: digests[digest] for digest in sorted(digests)})
        for task, digests in sorted(found.items())
        if len(digests) > 1
    ]


def _differing(task: str, what: str, names: dict[str, set[str]]) -> str:
    """A sentence on a task whose runs do not all do `what`, with the names of those that share a value."""
    values = ", ".join(f"{value} ({', '.join(sorted(own))})" for value, own in names.items())
    return f"On {task}, not all runs {what}, and verdicts compare these too: {values}."


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


def check_arguments(config: dict[str, Any], kind: type) -> None:
    """Raises UserError if the arguments of a run do not fit a schema."""
    try:
        check(config.get("args", {}), kind)
    except ValueError as error:
        name = f"{label(config)} on {config['task']}"
        raise damaged(Path(config.get("folder", "")), f"the arguments of {name}: {error}") from None


def no_seed_twice(sources: list[dict[str, Any]]) -> None:
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


def _without_numbers(scores: Scores) -> None:
    """Marks a seed as diverged from the first step on at which its return is not a finite number, or beyond all use.

    Rows of values and of watched metrics with such numbers are left out.
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


def _without_learning(scores: Scores) -> None:
    """Leaves out seeds without an evaluation after step 0: they have only the return of an untrained policy."""
    table = scores.table
    ends = table.groupby(["task", "algorithm", "seed"])["step"].transform("max")
    scores.table = table[ends > 0]
    for task in sorted({config["task"] for config in scores.sources} - set(scores.table["task"])):
        scores.notes.append(f"No run on {task} has an evaluation after step 0, and all are left out.")


def _align(scores: Scores, cut: bool) -> None:
    """Lets diverged seeds keep the return that they had, and with `cut` cuts each task where its shortest run ends."""
    parts = []
    diverged = scores.diverged
    done = {(c["task"], label(c), seed): c.get("step") for c in scores.sources for seed in c["seeds"]}
    for task, frame in scores.table.groupby("task", sort=True):
        last = frame.groupby(["algorithm", "seed"])["step"].max()
        alive = last[[(task, *key) not in diverged for key in last.index]]
        end = int(alive.min()) if len(alive) and cut else int(last.max())
        wanted = max(protocol(config)["steps"] or 0 for config in scores.sources if config["task"] == task)
        if cut and 0 < wanted <= end:  # all are at their end, which the last iteration of some lies beyond
            frame = frame.assign(step=frame["step"].clip(upper=end))
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
                + "".join(
                    f" The last evaluations of {name} up to there are at step{where}."
                    for name, where in _behind(frame, list(alive.index), end).items()
                )
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
    ends = scores.ends
    for name in ("values", "watched"):
        frame = getattr(scores, name)
        frame = frame[frame["step"] <= frame["task"].map(ends)]
        frame = frame[~among(frame, diverged)]
        setattr(
            scores, name, frame.sort_values(["task", "algorithm", "seed", "step"], ignore_index=True, kind="stable")
        )


def _behind(frame: pd.DataFrame, alive: list[tuple[str, int]], end: int) -> dict[str, str]:
    """The steps of the last evaluations of an algorithm's seeds until a step, in words, where they lie before it."""
    last = frame[frame["step"] <= end].groupby(["algorithm", "seed"])["step"].max().reindex(alive).dropna()
    ends = last.groupby("algorithm").agg(["min", "max"]).astype(int)
    return {
        str(name): f" {first:,}" if first == final else f"s {first:,} to {final:,}"
        for name, first, final in ends.itertuples()
        if first < end
    }


def _without_scores(scores: Scores) -> list[str]:
    """Sentences on seeds of runs that have no score although they did not diverge, such as one without an episode."""
    table, diverged = scores.table, scores.diverged
    there = set(zip(table["task"], table["algorithm"], table["seed"], strict=True))
    known, ends = there | diverged.keys(), scores.ends
    found = []
    for config in scores.sources:
        task, name = config["task"], label(config)
        seeds = config.get("identity", {}).get("seeds", [])
        if task in ends and (gone := [seed for seed in seeds if (task, name, seed) not in known]):
            one, numbers = len(gone) == 1, ", ".join(map(str, gone))
            found.append(
                f"Seed{'' if one else 's'} {numbers} of {name} on {task} {'has' if one else 'have'} no score by step "
                f"{ends[task]:,}, and {'is' if one else 'are'} left out."
            )
    return found


def _fate(name: str, task: str, seeds: list[tuple[int, int]], evaluated: bool) -> str:
    """A sentence on the seeds of an algorithm that diverged on a task: (seed, step at which that was noticed)."""
    numbers = ", ".join(str(seed) for seed, _ in seeds)
    steps = ", ".join(f"{step:,}" for _, step in seeds)
    if len(seeds) == 1:
        fate = "counts with the return of its last evaluation" if evaluated else NOT_EVALUATED.format("has", "is")
        return f"Seed {numbers} of {name} on {task} diverged before step {steps} and {fate}."
    fate = "count with the returns of their last evaluations" if evaluated else NOT_EVALUATED.format("have", "are")
    return f"Seeds {numbers} of {name} on {task} diverged before steps {steps} and {fate}."
