"""Suites: which algorithms on which tasks with which seeds, as data. Everything is checked before anything starts.

A suite is a TOML file, in `benchmarks/suites/` or anywhere else:

    purpose = "one line"
    tasks = ["HalfCheetah-v5", "Hopper-v5"]
    seeds = "0:5"                   # or a list such as [0, 1, 2]
    total_steps = 50_000
    eval_every = 2_500
    eval_episodes = 10
    score = "last"                  # headline score of a seed: "last" evaluation, "mean" or "max" of the last 10%,
                                    # mean of the last "three" evaluations, or "best" over training
    references = "d4rl"             # optional: a table of benchmarks/references, or a CSV with task, low, high, source
    published = ["dsac_t"]          # optional: tables of benchmarks/published, or CSVs, shown beside the results
    curves = ["sac_simba_v2"]       # optional: learning curves of benchmarks/published/curves, drawn in grey

    [flags]                         # optional: flags for every algorithm, named as in --help with _ for -
    batch_size = 256

    [algorithms.sac]                # one table an algorithm; its name is the script's unless `script` says another
    [algorithms.sac_slow]
    script = "sac"                  # a script of single_file/, or the path of a file, which `evaluate` does not find
    flags = { critic_lr = 1e-4 }
    tasks.Hopper-v5 = { discount = 0.999 }      # flags for one task only
    [algorithms.sac_grid]
    script = "sac"
    vary = { critic_lr = [1e-4, 1e-3], tau = [0.005, 0.01] }    # every combination trains with every seed
"""

import difflib
import functools
import importlib.util
import inspect
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
from pydantic import PydanticUserError

from algos.arguments import check
from algos.cli import RunArgs, check_options, check_script_name, env_errors, parse_seeds, settings
from algos.env_options import options_of
from algos.errors import UserError
from algos.run_folder import checked_part, folder_name
from algos.stored import check as check_schema
from benchmarks.recipes.locomotion import QUALITIES, TASKS
from envs import d4rl
from envs.make import TABULAR
from envs.seeded import SeededEnvs

ROOT = Path(__file__).parents[1]
BENCHMARKS = Path(__file__).parent
CURVES = BENCHMARKS / "published" / "curves"
Score = Literal["last", "mean", "max", "three", "best"]
SCORES: tuple[Score, ...] = get_args(Score)
LARGEST = 1 << 20  # characters of a suite
# Flags that a suite has other keys for, or that the sweep chooses.
TAKEN = (
    "seeds", "vary", "total_steps", "eval_every", "eval_episodes", "device", "threads", "out", "variant",
    "resume", "quiet", "checkpoint_every",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One algorithm of a suite: its name, its script, and the script's arguments on each task.

    `args` has the arguments of each task as an object, `flags` the same arguments as words of a command line.
    """

    name: str
    script: Path
    args: dict[str, RunArgs]
    flags: dict[str, list[str]]

    @property
    def algorithm(self) -> str:
        return self.script.stem

    @property
    def variant(self) -> str:
        return "default" if self.name == self.algorithm else self.name


@dataclass(frozen=True)
class Suite:
    name: str
    path: Path
    purpose: str
    tasks: list[str]
    seeds: list[int]
    total_steps: int
    eval_every: int
    eval_episodes: int
    score: Score
    references: Path | None
    published: list[Path]
    entries: list[Entry] = field(default_factory=list)


def find(name: str) -> Path:
    """The file of a suite, from the suite's name or path."""
    shipped = {path.stem: path for path in sorted((BENCHMARKS / "suites").glob("*.toml"))}
    path = shipped.get(name, Path(name))
    if not os.path.isfile(path):
        close = difflib.get_close_matches(name, shipped, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"there is no suite {name!r}: give the path of a file, or one of {', '.join(shipped)}{hint}")
    return path


def read(path: Path) -> Suite:
    """Reads and checks a suite; raises UserError, naming file and key, for the first thing that is wrong."""
    try:
        text = path.read_bytes().decode()
        # a key of very many parts would take hours to read
        if len(text) > LARGEST or any(part.count(".") >= 1000 for part in re.split(r"[,=\[\]{}\n]", text)):
            raise RecursionError
        table = tomllib.loads(text)
        for number in _numbers(table):
            if not -(2**63) <= number < 2**63:
                raise ValueError("whole numbers have 64 bits in TOML")
    except (OSError, ValueError) as error:  # ValueError: also text that is not UTF-8
        raise UserError(f"{path}: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is too large, or its tables or lists are nested too deeply") from None
    types: dict[str, Any] = {
        "purpose": str, "tasks": list[str], "seeds": str | list[int], "total_steps": int, "eval_every": int,
        "eval_episodes": int, "score": Score, "references": str, "published": list[str], "curves": list[str],
        "flags": dict[str, Any], "algorithms": dict[str, dict[str, Any]],
    }  # fmt: skip
    optional = ("score", "references", "published", "curves", "flags")
    _known(path, table, types)
    for key, kind in types.items():
        if key in table:
            _typed(path, key, table[key], kind)
        elif key not in optional:
            raise UserError(f"{path}: {key} is missing")
    for key in ("tasks", "algorithms"):
        if not table[key]:
            raise UserError(f"{path}: {key} names no {key.removesuffix('s')}")
    if table["total_steps"] < 1:
        raise UserError(f"{path}: total_steps must be at least 1, got {table['total_steps']}")
    seeds = table["seeds"]
    try:
        seeds = parse_seeds(tuple(seeds.split()) if isinstance(seeds, str) else tuple(map(str, seeds)))
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix('--')}") from None
    # a relative path is one of this working directory, and a job of an array may begin in another
    table["tasks"] = [str(Path(task).resolve()) if os.path.isfile(task) else task for task in table["tasks"]]
    for key, parts in (("tasks", list(map(folder_name, table["tasks"]))), ("published", table.get("published", []))):
        for number, part in enumerate(parts):
            if part in parts[:number]:
                raise UserError(f"{path}: {key}[{number}]: {table[key][number]} occurs twice, or shares a folder")

    def table_of(kind: str, name: str) -> Path:
        return find_table(f"{path}: {kind}", kind, name, [path.parent / name], "; for raw scores, leave references out")

    suite = Suite(
        path.stem, path, table["purpose"], table["tasks"], seeds, table["total_steps"], table["eval_every"],
        table["eval_episodes"], table.get("score", "last"),
        table_of("references", table["references"]) if "references" in table else None,
        [table_of("published", name) for name in table.get("published", [])],
    )  # fmt: skip
    for curve in table.get("curves", []):
        if curve not in published_curves():
            raise UserError(f"{path}: curves: there are no curves {curve!r}; there are {', '.join(published_curves())}")
    places: dict[tuple[str, str], str] = {}
    for name, entry in table["algorithms"].items():
        suite.entries.append(new := _entry(suite, name, entry, table.get("flags", {})))
        if (other := places.setdefault((new.algorithm, new.variant), name)) != name:
            raise UserError(
                f"{path}: algorithms.{name} and algorithms.{other} would share a folder: rename one of them"
            )
    if suite.references:
        known = set(read_references(suite.references)["task"])
        for task in suite.tasks:
            if task not in known:
                raise UserError(f"{path}: references: {suite.references} has no row for {task}")
    for published in suite.published:
        read_published(published)
    return suite


def read_references(path: Path, files: dict[str, str] | None = None) -> pd.DataFrame:
    """The returns that become 0 and 1 by normalisation: task, low, high, source.

    `files` has the names that stand for whole paths of files of data.
    The tables of this repository also get rows for datasets.
    """
    frame = _csv(path, ["task", "low", "high", "source"])
    frame["task"] = frame["task"].replace(files or {})
    if path.resolve() == BENCHMARKS / "references" / "d4rl.csv":
        frame = pd.concat([frame, pd.DataFrame(d4rl_references())], ignore_index=True)
    elif path.parent.resolve() == BENCHMARKS / "references":
        recipes = [
            frame[frame["task"] == env_id].assign(task=f"local/{task}-{quality}-v0")
            for task, env_id in TASKS.items()
            for quality in QUALITIES
        ]
        frame = pd.concat([frame, *recipes], ignore_index=True)
    wrong = frame[~(frame["low"] < frame["high"])]
    if len(wrong):
        raise UserError(f"{path}: low is not below high for {wrong['task'].iloc[0]}")
    if frame["task"].duplicated().any():
        raise UserError(f"{path}: {frame['task'][frame['task'].duplicated()].iloc[0]} occurs twice")
    return frame


def d4rl_references() -> Iterator[dict[str, Any]]:
    """D4RL's reference scores for its own datasets and for the datasets that recipes make like them."""
    for task in d4rl.tasks().values():
        if task.low is not None:
            row = {"task": f"d4rl/{task.name}", "low": task.low, "high": task.high, "source": f"D4RL {task.family}"}
            yield row
            quality = task.name.removeprefix(f"{task.family}-").removesuffix("-v2")
            if task.family in TASKS and quality in QUALITIES:
                yield row | {"task": f"local/{task.family}-{quality}-v0"}


def read_published(path: Path) -> pd.DataFrame:
    """Published scores: task, algorithm, score, spread, seeds, protocol, source; spread and seeds may be empty."""
    return _csv(path, ["task", "algorithm", "score", "spread", "seeds", "protocol", "source"])


def published_curves() -> dict[str, dict[str, str]]:
    """The learning curves of others that are shipped: what sources.csv says of each, by name."""
    table = pd.read_csv(CURVES / "sources.csv", dtype=str).set_index("curve")
    return {str(name): {str(k): str(v) for k, v in row.items()} for name, row in table.iterrows()}


def read_curves(name: str) -> pd.DataFrame:
    """Learning curves of others: task, algorithm, seed, step, return."""
    return pd.read_csv(CURVES / f"{name}.csv")


def _csv(path: Path, columns: list[str]) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if missing := [column for column in columns if column not in frame]:
        raise UserError(f"{path} has no column {missing[0]!r}; it needs {', '.join(columns)}")
    for column in columns:
        if column in ("low", "high", "score", "spread", "seeds"):
            fine = pd.api.types.is_numeric_dtype(frame[column]) and (
                column in ("spread", "seeds") or np.isfinite(frame[column]).all()
            )
            if not fine:
                raise UserError(f"{path}: {column} must hold numbers only")
        elif column in ("task", "algorithm") and not frame[column].map(lambda cell: isinstance(cell, str)).all():
            raise UserError(f"{path}: {column} must hold words only")
    return frame


def find_table(where: str, kind: str, name: str, places: Sequence[Path], without: str) -> Path:
    """The references or published table of that name: one that is shipped, or the first of these places that exists.

    `without` ends the error's sentence for references, which may be absent.
    """
    for place in (BENCHMARKS / kind / f"{name}.csv", *places):
        if os.path.isfile(place):
            return place
    names = ", ".join(sorted(path.stem for path in (BENCHMARKS / kind).glob("*.csv")))
    end = without * (kind == "references")
    raise UserError(f"{where}: there is no table {name!r}: give the path of a CSV, or one of {names}{end}")


def _entry(suite: Suite, name: str, table: dict[str, Any], common: dict[str, Any]) -> Entry:
    path, where = suite.path, f"algorithms.{name}"
    checked_part(f"{path}: {where}", name)
    types = {
        "script": str, "flags": dict[str, Any], "tasks": dict[str, dict[str, Any]],
        "vary": dict[str, list[int | float]],
    }  # fmt: skip
    _known(path, table, types, f"{where}.")
    for key, value in table.items():
        _typed(path, f"{where}.{key}", value, types[key])
    for task in table.get("tasks", {}):
        if task not in suite.tasks:
            raise UserError(f"{path}: {where}.tasks: {task} is not among the suite's tasks")
    script = _script(path, where, table.get("script", name), "script" in table)
    args_type = load_args(script)
    _check_name(script)
    vary = _vary(path, f"{where}.vary", script, args_type, table["vary"]) if "vary" in table else ()
    args, words = {}, {}
    for task in suite.tasks:
        sources = {
            "flags": common,
            f"{where}.flags": table.get("flags", {}),
            f"{where}.tasks.{task}": table.get("tasks", {}).get(task, {}),
        }
        flags: dict[str, Any] = {}
        for key, values in sources.items():
            for flag, value in values.items():
                flags[flag] = _flag(path, f"{key}.{flag}", script, args_type, flag, value)
                if flag in table.get("vary", {}):
                    raise UserError(f"{path}: {where}.vary.{flag}: {key}.{flag} sets it too: keep one of them")
        protocol = {name: getattr(suite, name) for name in ("total_steps", "eval_every", "eval_episodes")}
        protocol |= {"vary": vary} if vary else {}
        task_argument: dict[str, Any] = {args_type.TASK: task}
        try:
            args[task] = args_type(**task_argument, **protocol, **flags)
            check(args[task])
            settings(args[task])
            args[task].check_task()
            if args_type.TASK == "env_id" and args_type.ACTIONS:
                alike = f"{TABULAR}chain" if task.startswith(TABULAR) else task  # other tables take longer to make
                levels, options = (getattr(args[task], name, ()) for name in ("levels", "env_option"))
                check_environment(alike, args_type.ACTIONS, levels, options)
        except (UserError, TypeError, ValueError) as error:  # those of Python are raised by a script of one's own
            raise UserError(f"{path}: {where} on {task}: {error}") from None
        words[task] = [word for flag, value in {**protocol, **flags}.items() for word in as_words(flag, value)]
    return Entry(name, script, args, words)


@functools.cache
def check_environment(env_id: str, actions: str, levels: tuple[float, ...], options: tuple[str, ...]) -> None:
    """Raises UserError, as scripts do, if an algorithm cannot learn in an environment with these words as options."""
    chosen = options_of(options)
    check_options(env_id, chosen)
    with env_errors(env_id):
        SeededEnvs(env_id, [0], actions=actions, levels=levels, **chosen).close()


def _vary(path: Path, where: str, script: Path, args_type: type[RunArgs], table: dict[str, Any]) -> tuple[str, ...]:
    """The words of --vary for a table of hyperparameters and their values, each of which is checked."""
    if not table:
        raise UserError(f"{path}: {where} names no hyperparameter")
    words = []
    for name, values in table.items():
        key = f"{where}.{name}"
        _check_flag(path, key, script, args_type, name)
        if not values:
            raise UserError(f"{path}: {key} has no value")
        if repeated := [value for value, count in Counter(values).items() if count > 1]:
            raise UserError(f"{path}: {key} has {repeated[0]} twice")
        words.append(f"{name}={','.join(map(str, values))}")
        try:
            settings(args_type(vary=(words[-1],)))
        except UserError as error:
            raise UserError(f"{path}: {key}: {error}") from None
    return tuple(words)


def _script(path: Path, where: str, name: str, given: bool) -> Path:
    shipped = {p.stem: p for p in sorted((ROOT / "single_file").glob("*.py"))}
    if name in shipped:
        return shipped[name]
    if name.endswith(".py") and os.path.isfile(path.parent / name):
        return (path.parent / name).resolve()
    close = difflib.get_close_matches(name, shipped, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(shipped)}"
    key = f"{where}.script" if given else where
    raise UserError(f"{path}: {key}: there is no script {name!r}{hint}")


def load_args(script: Path) -> type[RunArgs]:
    """The class of a script's arguments."""
    name = f"seedbed_script_{script.stem}"
    spec = importlib.util.spec_from_file_location(name, script)
    assert spec and spec.loader
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(script.parent))  # as Python does for a script that it runs
    try:
        spec.loader.exec_module(module)
        if not issubclass(module.Args, RunArgs):
            raise TypeError("its Args are not RunArgs")
        return module.Args
    except (Exception, SystemExit) as error:
        raise UserError(f"{script} cannot be loaded as a script: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(str(script.parent))


def _check_name(script: Path) -> None:
    """Raises UserError if a script, which has been loaded, calls its run by the name of another one.

    The run itself would refuse this too, perhaps hours after others have begun.
    """
    main = getattr(sys.modules[f"seedbed_script_{script.stem}"], "main", None)
    words = set(main.__code__.co_consts) if inspect.isfunction(main) else set()
    others = words & {path.stem for path in (ROOT / "single_file").glob("*.py")}
    if others and script.stem not in words:
        check_script_name(min(others), script)


def _check_flag(path: Path, key: str, script: Path, args_type: type[RunArgs], flag: str) -> None:
    """Raises UserError if a script has no such flag, or if a suite may not set it."""
    if flag in (*TAKEN, args_type.TASK):
        raise UserError(f"{path}: {key}: {flag} is not set by flags: it has its own key, or the sweep chooses it")
    names = [f.name for f in fields(args_type)]
    if flag not in names:
        close = difflib.get_close_matches(flag, names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"{path}: {key}: {script.stem} has no flag {flag!r}{hint}")


def _flag(path: Path, key: str, script: Path, args_type: type[RunArgs], flag: str, value: Any) -> Any:
    """A flag's value as the script's arguments hold it."""
    _check_flag(path, key, script, args_type, flag)
    kind = get_type_hints(args_type)[flag]
    value = tuple(value) if isinstance(value, list) else value
    _typed(path, key, value, kind)
    return float(value) if kind is float else value


def _numbers(value: Any) -> Iterator[int]:
    """All whole numbers in a table."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)
    elif isinstance(value, int):
        yield value


def _known(path: Path, table: dict[str, Any], names: Iterable[str], where: str = "") -> None:
    for key in table:
        if key not in names:
            close = difflib.get_close_matches(key, names, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"
            raise UserError(f"{path}: unknown key {where}{key}{hint}")


def _typed(path: Path, key: str, value: Any, kind: Any) -> None:
    try:
        check_schema(value, kind)
        if get_origin(kind) is Literal and type(value) not in map(type, get_args(kind)):  # 1.0 and True equal 1
            raise ValueError
    except (ValueError, PydanticUserError):
        name = getattr(kind, "__name__", "") if isinstance(kind, type) and not get_args(kind) else str(kind)
        shown = repr(value) if len(repr(value)) <= 100 else f"{repr(value)[:100]}…"
        raise UserError(f"{path}: {key} must be {name.replace('typing.', '')}, got {shown}") from None


def as_words(flag: str, value: Any) -> list[str]:
    """A flag and its value as words of a command line."""
    name = flag.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", *map(str, value if isinstance(value, tuple) else [value])]
