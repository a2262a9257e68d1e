"""The plan of a sweep: its jobs, how far each of them is, and estimates of time and disk."""

import contextlib
import hashlib
import json
import math
import os
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout

from algos.cli import RunArgs, settings
from algos.errors import UserError, warn
from algos.run_folder import defaults, differing, digest_of_file, folder_name, folder_of, identity, told
from algos.stored import EVAL, FINISHED, TRAIN, Config, read_json, read_table
from benchmarks.suite import ROOT, Entry, Suite, as_words
from envs.make import source_of

RESULTS = ROOT / "results"  # of reports, which store how long their runs took
# Five seeds in one thread do 1.2 times as many steps per second as one seed does; ten seeds do no more than five.
SEEDS_PER_CPU_JOB = 5
SIZES = ("hidden", "batch_size")
LONGEST_NAME = 200  # characters of the seeds in the name of a folder
LONGEST = 100  # times the steps of an earlier run for which it tells how long a job takes
State = Literal["new", "started", "finished", "damaged"]


@dataclass(frozen=True)
class Job:
    """One process: a batch of seeds of one algorithm on one task, with every setting of the hyperparameters."""

    name: str
    identity: dict[str, Any]
    folder: Path
    command: list[str]
    args: RunArgs  # the arguments of the script, of a class that the script defines
    state: State
    changed: tuple[Path, ...] = ()  # files that have changed since it was finished: its script, environment, dataset

    @property
    def id(self) -> str:
        """A hash of everything that determines the results."""
        return digest(self.identity)

    @property
    def seeds(self) -> list[int]:
        return self.identity["seeds"]

    @property
    def runs(self) -> int:
        """The number of runs that the process trains together: settings times seeds."""
        return len(settings(self.args)) * len(self.seeds)

    @property
    def total_steps(self) -> int:
        return self.args.total_steps


def digest(configuration: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()[:10]


def seed_name(seeds: list[int]) -> str:
    """`seeds_0-4` for consecutive seeds, else all of them, or a digest where that would be too long for a folder."""
    if len(seeds) == 1:
        return f"seed_{seeds[0]}"
    span = f"seeds_{seeds[0]}-{seeds[-1]}"
    if seeds == list(range(seeds[0], seeds[-1] + 1)):
        return span
    name = "seeds_" + "_".join(map(str, seeds))
    return name if len(name) <= LONGEST_NAME else f"{span}_{digest({'seeds': seeds})}"


def state_of(folder: Path, tables: bool = True) -> State:
    """How far the run in a folder is; with `tables`, they are read as a check."""
    if not os.path.lexists(folder / "config.json"):
        strange = os.path.lexists(folder) and not folder.is_dir()
        return "damaged" if strange or any(folder.glob("checkpoint/[!.]*")) else "new"
    try:
        config = read_json(folder / "config.json", Config)
        finished = config["status"] in FINISHED and bool(config.get("identity"))
        for name, columns in (("eval.parquet", EVAL), ("train.parquet", TRAIN)) if tables else ():
            if finished or config.get("step") or os.path.lexists(folder / name):
                read_table(folder / name, columns, config.get("varied", []))
    except UserError:
        return "damaged"
    return "finished" if finished else "started"


def plan(suite: Suite, out: Path, batch: int, device: str, flags: dict[str, Any], tables: bool = True) -> list[Job]:
    """The jobs of a suite: those that the folder holds already, and new ones for the seeds that no run there has.

    A new job trains up to `batch` seeds on `device` (cpu or cuda); `flags` go to every script as they are. The state of
    a job tells damaged tables only if `tables` are read.

    Raises UserError if `out` holds a run of an entry on a task with another configuration, whatever its seeds, that no
    report would take beside them.
    """
    batches = [part.tolist() for part in np.array_split(suite.seeds, math.ceil(len(suite.seeds) / batch))]
    stored = stored_runs(out)
    jobs = []
    for task in suite.tasks:
        for entry in suite.entries:
            args = replace(entry.args[task], variant=entry.variant)
            configuration, absent = identity(args, entry.algorithm, [], device), defaults(type(args))
            runs = stored.get((folder_name(task), entry.algorithm, entry.variant), [])
            for seeds, place, theirs in runs:
                # reports take both of other devices and grids, but no seed of a setting twice
                twice = set(seeds) & set(suite.seeds) and share_settings(args, theirs)
                same = {name: configuration.get(name) for name in (["seeds"] if twice else ["seeds", "device", "vary"])}
                if entries := differing(configuration, theirs | same, absent):
                    folder = place / folder_name(task) / entry.algorithm / entry.variant
                    raise UserError(
                        f"--out: {folder} holds a run with another configuration ({told(entries)}): take another "
                        "--out, or remove it"
                    )
            # If the seeds of a stored run are not a batch of this plan, the run is a job of its own, and the batches
            # lose its seeds. If they are a batch, the job is the same before and after it has trained, so that all jobs
            # keep their numbers while a sweep goes on.
            # A run that ended before its first checkpoint, such as one that took too much memory, leaves nothing.
            kept = [
                (seeds, place)
                for seeds, place, theirs in runs
                if seeds not in batches
                and set(seeds) & set(suite.seeds)
                and not differing(configuration, theirs | {"seeds": []}, absent)
                and not is_empty(place / folder_name(task) / entry.algorithm / entry.variant)
            ]
            taken = {seed for seeds, _ in kept for seed in seeds}
            left = [[seed for seed in seeds if seed not in taken] for seeds in batches]
            placed = kept + [(seeds, out / seed_name(seeds)) for seeds in left if seeds]
            placed.sort(key=lambda pair: min(pair[0]))
            jobs += [make_job(entry, task, seeds, place, device, flags, tables) for seeds, place in placed]
    return jobs


def is_empty(folder: Path) -> bool:
    """Whether the run in a folder has done no step and has no checkpoint, and no process is training there."""
    try:
        config = read_json(folder / "config.json", Config)
    except UserError:
        return False
    begun = config["status"] in FINISHED or config.get("step") or any(folder.glob("checkpoint/[!.]*"))
    return not begun and not is_running(folder)


def is_running(folder: Path) -> bool:
    """Whether a process is training in a folder, perhaps one of another machine."""
    with contextlib.suppress(OSError, NotImplementedError):
        if (folder / ".lock").exists():
            try:
                with FileLock(folder / ".lock", timeout=0):
                    return False
            except Timeout:
                return True
    return False


def share_settings(args: RunArgs, theirs: dict[str, Any]) -> bool:
    """Whether the grid of a stored run has a setting that these arguments have too."""
    try:
        stored = settings(replace(args, vary=tuple(theirs.get("vary", ()))))
    except UserError:  # a hyperparameter that the script no longer has
        return False
    return any(setting in stored for setting in settings(args))


def stored_runs(out: Path) -> dict[tuple[str, ...], list[tuple[list[int], Path, dict[str, Any]]]]:
    """Seeds, place (out/seeds_0-4) and identity of every run in a sweep's folder, by task, algorithm and variant."""
    runs: dict[tuple[str, ...], list[tuple[list[int], Path, dict[str, Any]]]] = {}
    for path in sorted(out.glob("seed*/*/*/*/config.json")):
        with contextlib.suppress(UserError):
            configuration = read_json(path, Config).get("identity", {})
            if seeds := configuration.get("seeds"):
                runs.setdefault(path.parts[-4:-1], []).append((seeds, path.parents[3], configuration))
    return runs


def make_job(
    entry: Entry, task: str, seeds: list[int], place: Path, device: str, flags: dict[str, Any], tables: bool
) -> Job:
    """The job that trains these seeds below `place`; raises UserError if another configuration has its folder."""
    args = replace(entry.args[task], out=place, variant=entry.variant)
    configuration = identity(args, entry.algorithm, seeds, device)
    folder = folder_of(args, entry.algorithm)
    changed: tuple[Path, ...] = ()
    if (state := state_of(folder, tables)) in ("started", "finished"):
        stored = read_json(folder / "config.json", Config)
        changed = changes(stored, folder / "config.json", entry.script, task) if state == "finished" else ()
        if entries := differing(configuration, stored.get("identity", {}), defaults(type(args))):
            raise UserError(
                f"--out: {folder} holds a run with another configuration ({told(entries)}): take another --out, or "
                "remove it"
            )
    words = [*as_words(args.TASK, task), "--seeds", *map(str, seeds), *entry.flags[task]]
    options = {"device": device, "out": place, "variant": entry.variant, "resume": True}
    for name, value in (options | flags).items():
        words += as_words(name, value)
    count = len(settings(args))
    name = f"{entry.name} on {task}, {seed_name(seeds).replace('_', ' ', 1)}"
    name += f", {count} settings" if count > 1 else ""
    command = [sys.executable, "-m", "benchmarks.job", str(entry.script), *words]
    return Job(name, configuration, folder, command, args, state, changed)


def changes(config: dict[str, Any], path: Path, script: Path, task: str) -> tuple[Path, ...]:
    """Files of a finished run that have changed: its script, that of an environment of one's own, that of its data.

    `path` is that of its configuration. Data that lay elsewhere then may have changed, too.
    """
    files = {"script_digest": script, "environment_digest": source_of(config.get("env_id", ""))}
    found = [
        file for name, file in files.items() if file and (then := config.get(name)) and then != digest_of_file(file)
    ]
    with contextlib.suppress(OSError):
        then = config.get("task") or task
        if os.path.isfile(task) and (then != task or os.path.getmtime(task) > os.path.getmtime(path)):
            found.append(Path(task))
    return tuple(found)


def warn_of_changes(jobs: list[Job]) -> None:
    """Warns of files that have changed since jobs were finished, which are not trained again."""
    counts = Counter(path for job in jobs for path in job.changed)
    for path, count in counts.items():
        these = "1 of these jobs was" if count == 1 else f"{count} of these jobs were"
        again = "to train again, take another --out, or remove their folders"
        warn(f"{path} has changed or moved since {these} finished; {again}")


def prepare(job: Job, out: Path) -> None:
    """Makes a job ready to start: sets its run aside if that is damaged, and removes the file of its progress."""
    if job.state == "damaged":
        set_aside(job.folder, out)
    (job.folder / "progress.json").unlink(missing_ok=True)


def clear(jobs: list[Job], out: Path) -> None:
    """Sets runs aside that left nothing and have seeds of jobs that are still to be done, in other batches."""
    wanted: dict[tuple[str, ...], set[int]] = {}
    for job in jobs:
        if job.state == "finished":
            continue
        wanted.setdefault(job.folder.parts[-3:], set()).update(job.seeds)
    for (task, algorithm, variant), runs in stored_runs(out).items():
        for seeds, place, _ in runs:
            folder = place / task / algorithm / variant
            own = wanted.get((task, algorithm, variant), set()) & set(seeds)
            with contextlib.suppress(FileNotFoundError):  # another job of an array has done so
                if own and folder not in [job.folder for job in jobs] and is_empty(folder):
                    set_aside(folder, out, "left nothing")


def set_aside(run: Path, out: Path, what: str = "is damaged") -> None:
    """Moves a run to out/damaged, and renames its configuration so that nothing reads it."""
    place = out / "damaged" / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6}"
    place.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (run / "config.json").rename(run / "config.damaged.json")
    shutil.move(run, place)
    warn(f"{run} {what}: it is now {place}, and is trained anew")


def seeds_per_job(suite: Suite, wanted: int, cuda: bool, workers: int) -> int:
    """The number of seeds that one process trains: `wanted`, or if that is 0 the fastest number.

    The fastest is all seeds on a GPU, and at most five on a CPU, or fewer if workers would be idle otherwise.
    """
    if wanted or cuda:
        return wanted or len(suite.seeds)
    runs = len(suite.seeds) * len(suite.tasks) * len(suite.entries)
    return max(1, min(SEEDS_PER_CPU_JOB, len(suite.seeds), math.ceil(runs / workers)))


def estimate(job: Job, earlier: dict[str, Any]) -> tuple[float, float]:
    """Seconds left and bytes on disk, from the configuration of an earlier run, as `most_alike` finds it.

    Time is scaled by steps, and on a CPU by the number of runs (settings times seeds); what came before the steps takes
    as long again. Disk is scaled by the number of runs and by the number of transitions that a replay buffer can hold.
    """
    ours, theirs = job.identity, earlier["identity"]
    done = read_json(job.folder / "config.json", Config).get("step", 0) if job.state == "started" else 0
    runs = job.runs / runs_of(earlier)
    seconds = (earlier["seconds"] + earlier["evaluation_seconds"]) / earlier["step"] * (job.total_steps - done)
    seconds += 0.0 if done else earlier.get("phase_seconds", 0.0)
    kept, theirs_kept = (min(i.get("buffer_size", i["total_steps"]), i["total_steps"]) for i in (ours, theirs))
    return seconds * (runs if ours["device"] == "cpu" else 1), earlier["peak_bytes"] * runs * kept / theirs_kept


def has_sizes_of(job: Job, config: dict[str, Any]) -> bool:
    """Whether a run's networks and batches are as large as the job's."""
    absent = defaults(type(job.args))
    pairs = [(job.identity.get(name), config["identity"].get(name, absent.get(name))) for name in SIZES]
    return all(ours == theirs for ours, theirs in pairs)


def most_alike(job: Job, earlier: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The configuration of the earlier run that tells how long a job takes; None if there is none.

    A run is like a job if few of its arguments differ, where those that it lacks count as defaults and the numbers of
    seeds do not count. Of runs in the same environment, those of this folder come before those of stored reports, which
    may be another machine's. Runs of less than a hundredth of the steps tell nothing.
    """
    ours, absent = job.identity, defaults(type(job.args))

    def likeness(config: dict[str, Any]) -> tuple:
        theirs = config["identity"]
        unlike = [name for name in ours if name != "seeds" and ours[name] != theirs.get(name, absent.get(name))]
        place = theirs["env_id"] == ours["env_id"], not config.get("reported")
        return *place, -len(unlike), -abs(runs_of(config) - job.runs)

    alike = [c for c in earlier if all(c["identity"].get(k) == ours[k] for k in ("algorithm", "device"))]
    similar = [c for c in alike if LONGEST * c["step"] >= job.total_steps]
    return max(similar, key=likeness) if similar else None


def runs_of(config: dict[str, Any]) -> int:
    """The number of runs that a process trained together, from its config.json."""
    return len(config.get("settings") or [{}]) * len(config["identity"]["seeds"])


def earlier_runs(folder: Path, results: Path | None = None) -> list[dict[str, Any]]:
    """The configurations of the runs and of the sweeps' runs in a folder, where they have come past step 0.

    Those that the reports in `results` store come last, one for each process, and are marked as `reported`.
    """
    configs: list[dict[str, Any]] = []
    for path in sorted([*folder.glob("*/*/*/config.json"), *folder.glob("*/seed*/*/*/*/config.json")]):
        with contextlib.suppress(UserError):
            configs.append(read_json(path, Config))
    for path in sorted(results.glob("*/sources.json")) if results else []:
        processes: dict[str, dict[str, Any]] = {}  # settings and tasks of one process share its folder
        with contextlib.suppress(UserError):
            for source in read_json(path, list[Config]):
                first = processes.setdefault(source.get("folder") or str(len(processes)), source | {"reported": True})
                if (setting := source.get("setting")) and setting not in first.setdefault("settings", []):
                    first["settings"].append(setting)
        configs += processes.values()
    return [config for config in configs if is_measured(config)]


def is_measured(config: dict[str, Any]) -> bool:
    """Whether a run's configuration tells how long other runs take."""
    known = config.get("identity", {})
    measured = config.get("step") and config.get("seconds") and {"evaluation_seconds", "peak_bytes"} <= set(config)
    return bool(measured and "env_id" in known and known.get("total_steps") and known.get("seeds"))
