"""The files that sweeps and reports store, each with one schema; see `algos.stored`, which has those of runs."""

import itertools
import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from algos.checkpoint import write_atomically
from algos.errors import UserError
from algos.stored import Stored, check, damaged, find, read_json, regular
from benchmarks.suite import BENCHMARKS, Score

TABLES = ("scores", "final", "tasks", "aggregates", "values", "watched", "ways", "maps")  # of a report
VERDICTS = "verdicts"
OWN = [f"{name}.csv" for name in (*TABLES, VERDICTS, "model")]


class Sweep(Stored):
    """sweep.json."""

    suite: str
    purpose: str
    command: str
    commit: str | None
    date: str
    cells: list[tuple[str, str]] = Field(default_factory=list)  # of algorithm and task; earlier sweeps have none
    seeds: list[int] = Field(default_factory=list)  # of each cell; earlier sweeps have none


class Wishes(Stored):
    """The keys of a suite that say what a report of it shows."""

    title: str = ""
    purpose: str = ""
    references: str = "raw"
    score: Score = "last"
    published: list[str] = Field(default_factory=list)
    curves: list[str] = Field(default_factory=list)


class Report(Wishes):
    """report.json."""

    title: str
    purpose: str
    references: str
    score: Score
    published: list[str]
    cells: list[tuple[str, str]] = Field(default_factory=list)  # earlier reports have none
    notes: list[str]
    left_out: list[tuple[str, str]] = Field(default_factory=list)  # tasks and notes; earlier reports have none
    unfinished: list[tuple[str, str, str, list[int]]] = Field(default_factory=list)
    lost: list[tuple[str, str, int]] = Field(default_factory=list)
    sweeps: list[Sweep]
    commands: list[str]
    report: str
    commits: list[str]
    devices: list[str]
    dates: list[str]


def refuse_both(folders: Iterable[Path]) -> None:
    """Raises UserError for a folder of stored scores in which runs lie too, which the scores would hide."""
    for folder in folders:
        if runs := find(folder, "config.json"):
            raise UserError(
                f"{folder} holds seeds.csv, which this command stored, and also {runs[0].parent}: move the runs to a "
                "folder of their own"
            )


def without_place(command: str) -> str:
    """A sweep's command without a place on somebody's machine, and without the number of one of its jobs."""
    return re.sub(r" --(out|job)[ =]('[^']*'|\S+)", "", command)


def write_sources(folder: Path, sources: list[dict[str, Any]]) -> None:
    """Writes sources.json, where each run has a line."""
    lines = ",\n".join(json.dumps(config, separators=(",", ":")) for config in sources)
    write_atomically(folder / "sources.json", f"[\n{lines}\n]\n".encode())


def read_wishes(path: Path) -> dict[str, Any]:
    """The content of a suite's file as it is; raises UserError if it cannot be read or does not fit `Wishes`."""
    try:
        content = tomllib.loads(regular(path).read_text(encoding="utf-8"))
        check(content, Wishes)
    except (OSError, ValueError, RecursionError) as error:  # tomllib's errors are ValueErrors
        raise damaged(path, error) from None
    return content


def own_tables(tables: Iterable[Path]) -> list[Path]:
    """Those of some references and published tables that are not shipped, of which sweeps and reports keep copies.

    Raises UserError where one has the name of a table that reports write, or two different ones have the same name.
    """
    own = {path.resolve(): path for path in tables if BENCHMARKS not in path.parents}
    names: dict[str, Path] = {}
    for path in own.values():
        if path.name in OWN:
            raise UserError(f"{path} has the name of a table that reports write themselves: give it another name")
        if (other := names.get(path.name)) and other.read_bytes() != path.read_bytes():
            raise UserError(f"{other} and {path} have the same name, and are kept side by side: rename one of them")
        names[path.name] = path
    return list(own.values())


def keep(tables: Iterable[Path], out: Path) -> None:
    """Copies the tables of a user to a folder, so that a report can be made again there."""
    for table in own_tables(tables):
        if table.parent.resolve() != out.resolve():
            shutil.copy(table, out / table.name)


def keep_suites(folders: Sequence[Path], out: Path, again: bool) -> None:
    """Keeps the suites of sweeps in out/suites, except for those that are shipped; scripts and tables are not copied.

    Suites that a report in one of the folders has kept are kept too; with `again`, others of an earlier report in `out`
    are not.
    """
    found: dict[str, bytes] = {}
    for folder in folders:
        suites = [(path.stem, path) for path in sorted((folder / "suites").glob("*.toml"))]
        for path in find(folder, "suite.toml"):
            about = path.with_name("sweep.json")
            suites.append((read_json(about, Sweep)["suite"] if about.is_file() else path.parent.name, path))
        for name, path in suites:
            content, shipped = path.read_bytes(), BENCHMARKS / "suites" / f"{name}.toml"
            if shipped.is_file() and shipped.read_bytes() == content:
                continue
            numbered = (f"{name}_{n}" if n > 1 else name for n in itertools.count(1))
            found[next(own for own in numbered if found.get(own, content) == content)] = content
    for path in (out / "suites").glob("*.toml") if again else []:
        path.unlink()
    for name, content in found.items():
        (out / "suites").mkdir(exist_ok=True)
        (out / "suites" / f"{name}.toml").write_bytes(content)


def processes_of(sources: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What trained some runs: of each its own entries, and those of earlier processes that it went on from."""
    return [process for config in sources for process in [*config.get("before", []), config]]


def origin(command: str, sources: list[dict[str, Any]], sweeps: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The commands, commits, devices and dates of the runs, and the command of the report."""
    processes = processes_of(sources)
    return {
        "commands": list(dict.fromkeys(sweep["command"] for sweep in sweeps)),
        "report": f"python -m benchmarks.{command} {shlex.join(sys.argv[1:])}",
        "commits": sorted({process["commit"] for process in processes if process.get("commit")}),
        "devices": sorted({process["device"] for process in processes if process.get("device")}),
        "dates": sorted({config["date"] for config in sources if "date" in config})
        or sorted({sweep["date"] for sweep in sweeps}),
    }
