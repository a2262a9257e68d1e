"""Runs a suite: all of its algorithms on all of its tasks with all of its seeds, on this machine or on a cluster.

    python -m benchmarks.sweep smoke                        everything, on all cores or GPUs of this machine
    python -m benchmarks.sweep mujoco_1m --dry-run          the jobs, and how long they would take
    python -m benchmarks.sweep mujoco_1m --engine ray --device cuda                  on a Ray cluster
    python -m benchmarks.sweep mujoco_1m --job 3            one job and nothing else: for job arrays
    python -m benchmarks.sweep mujoco_1m --until-decided sac td3 --max-seeds 25      batches of seeds, until it is clear

A job is one process that trains a batch of seeds of one algorithm on one task, with every setting where the suite
varies hyperparameters. A finished job is skipped; a hash of its arguments identifies it, and a warning says if its
script, the file of an environment of one's own or that of its data has changed since. An interrupted job goes on from
its checkpoint. A job that fails is tried again from there while the others go on, and its logs are kept. Ctrl-C ends
every run with a checkpoint, and the same command continues. A run whose tables are damaged is set aside and trained
anew, and so is one that ended before its first checkpoint and had other seeds in its process.

A job array of Slurm runs one job per task, on a file system that all nodes share (--dry-run with the same flags says
how many there are, and which are not finished):

    sbatch --array=0-14 --gpus=1 --cpus-per-task=8 --requeue --open-mode=append --wrap='srun --cpus-per-task=8 \\
        python -m benchmarks.sweep mujoco_1m --device cuda --threads 8 --job $SLURM_ARRAY_TASK_ID'

SIGTERM, which a preempted job gets some time before it is killed if it was started by srun, writes a checkpoint as
Ctrl-C does.

Results lie in OUT/<seeds>/<task>/<algorithm>/<variant>/, logs in OUT/logs/. Exit codes: 0 all done, 1 some jobs failed,
2 bad arguments, 130 interrupted.
"""

import contextlib
import itertools
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from filelock import FileLock, Timeout
from tqdm import tqdm

from algos.arguments import FewOrNone, Natural, Range, Several, check
from algos.cli import check_all, run_command
from algos.data.files import is_file
from algos.data.names import is_downloaded
from algos.device import choose_device
from algos.errors import UserError, warn
from algos.folders import writable
from algos.run_folder import git_commit
from benchmarks import engines
from benchmarks.display import Display, note_on_seeds, show_plan
from benchmarks.engines import Outcome
from benchmarks.looks import FEWEST, entries_of, until_decided
from benchmarks.plan import Job, clear, plan, prepare, seeds_per_job, state_of, warn_of_changes
from benchmarks.read_scores import is_report
from benchmarks.scores import family_name
from benchmarks.stored import keep, own_tables
from benchmarks.suite import Suite, find, read
from envs.cores import core_count

TOKEN = secrets.token_hex(4)  # of this process, since those in containers may share their number and host's name
MOST_SEEDS, BATCH = 50, 5  # of a sweep until it is decided


@dataclass
class Args:
    suite: Annotated[str, tyro.conf.Positional]
    """a suite of benchmarks/suites, or the path of a TOML file"""
    out: Path | None = None
    """folder of the sweep, runs/<suite> by default"""
    dry_run: bool = False
    """print the plan with an estimate of time and disk, and start nothing"""
    job: Natural | None = None
    """run the one job of this number in this process; --dry-run with the same --seeds-per-job lists the numbers"""
    engine: Literal["local", "ray"] = "local"
    """processes of this machine, or tasks of a Ray cluster (pip install -e '.[ray]')"""
    address: str = ""
    """address of a Ray cluster, `auto` for the one of this machine; empty starts a cluster on this machine"""
    workers: FewOrNone = 0
    """jobs at a time on this machine; 0: as many as there are cores for, at --threads each, or --per-gpu on each GPU"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto takes CUDA where there is one; Ray needs cpu or cuda"""
    per_gpu: Several = 1
    """jobs that share one GPU, without --workers or on Ray"""
    threads: FewOrNone = 0
    """CPU threads of a job. With 0, a job has one thread; jobs that train on the GPUs of this machine share its cores
    equally instead, since they step environments on them, unless they are started one by one with --job"""
    seeds_per_job: Natural = 0
    """seeds that one process trains; 0: all on a GPU, at most 5 on a CPU, fewer where workers would be idle (not
    with --job or --address)"""
    checkpoint_every: Natural = 0
    """environment steps or updates between a run's checkpoints; 0: the script's default"""
    retries: FewOrNone = 2
    """times that a failed job is tried again"""
    until_decided: tuple[str, ...] = ()
    """names of two algorithms of the suite: train these alone, in batches of seeds, until a test has decided which is
    better on each task, or until --max-seeds; see `benchmarks.sequential`"""
    max_seeds: Annotated[int, Range(2 * FEWEST, 1_000)] | None = None
    """with --until-decided: seeds of each algorithm at most, by default 50. The more there are, the more looks share
    the probability of a wrong decision: with batches of five on one task, the first can decide only if --max-seeds
    is below 30"""
    seeds_per_look: Annotated[int, Range(FEWEST, 100)] | None = None
    """with --until-decided: seeds of each algorithm in a batch, by default 5"""


def planned(args: Args, suite: Suite, out: Path, batch: int) -> list[Job]:
    """The jobs of the suite with the flags that the sweep gives to each of them.

    One job of an array reads its own tables only, later: all jobs together would read those of all again and again.
    """
    flags = {"threads": args.threads}
    flags |= {"checkpoint_every": args.checkpoint_every} if args.checkpoint_every else {}
    return plan(suite, out, batch, torch.device(args.device).type, flags, tables=args.job is None or args.dry_run)


def sweep(args: Args, jobs: list[Job], out: Path, workers: int, gpus: list[str]) -> tuple[dict[str, Outcome], bool]:
    """Runs all jobs that are not finished: how each of them ended, and whether a signal asked the sweep to end."""
    stop, logs = stop_file(out), out / "logs"
    logs.mkdir(exist_ok=True)
    clear(jobs, out)
    for job in jobs:
        prepare(job, out)
    environment = {"OMP_NUM_THREADS": str(args.threads)}
    if args.engine == "ray":
        gpu = 1 / args.per_gpu if args.device == "cuda" else 0
        context = engines.ray(args.address, workers, args.threads, gpu, args.retries)
    else:
        context = engines.local(workers, gpus, args.retries)
    outcomes: dict[str, Outcome] = {}
    # signals come after the engine, as Ray has handlers of its own, and `stop` stays until its last job has ended
    with absent(stop), context as engine, stopped_by_signals(stop):
        display = Display(jobs, workers)
        todo = [job for job in jobs if job.state != "finished"]
        pending = {engine.submit(job.command, job.folder, logs / job.id, stop, environment): job for job in todo}

        def end(future: Future, outcome: Outcome) -> None:
            job = pending.pop(future)
            outcomes[job.id] = outcome
            display.finish(job, outcome)

        try:
            while pending:
                done, _ = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
                for future in done:
                    if error := future.exception():
                        print(f"error: {pending[future].name}: {type(error).__name__}: {error}", file=sys.stderr)
                    end(future, Outcome("failed", 0) if error else future.result())
                if stop.exists():
                    for future in list(pending):
                        if engine.cancel(future):
                            end(future, Outcome(engines.left(pending[future].folder), 0))
                display.update()
        except BaseException:
            stop.touch()
            for future in pending:
                engine.cancel(future)
            wait(pending, timeout=300)
            raise
        finally:
            display.close()
        return outcomes, stop.exists()


def check_jobs(jobs: list[Job], device: str, elsewhere: bool, cuda: bool) -> None:
    """Raises UserError for the first argument of a job to be done that its script would refuse.

    `elsewhere` is whether the jobs train on other machines, whose device this one may lack.
    """
    for job in jobs:
        if job.state != "finished":
            seeds = tuple(map(str, job.identity["seeds"]))
            compiles = job.args.compile or (elsewhere and cuda)
            check_all(replace(job.args, seeds=seeds, device="cpu" if elsewhere else device, compile=compiles))


def run_one(args: Args, suite: Suite, out: Path, job: Job, gpus: list[str]) -> None:
    """Runs one job of an array in the foreground; other jobs of the sweep may run elsewhere at the same time."""
    copy = out / "suite.toml"
    if changed := copy.exists() and copy.read_bytes() != suite.path.read_bytes():
        warn(f"{suite.path} has changed since {copy} was written: --job {args.job} is that of the suite as it is now")
    if changed or not ((out / "sweep.json").exists() and copy.exists()):
        describe(suite, out)
    if len(gpus) > 1:
        warn(f"of {len(gpus)} GPUs, the job takes the first; --device cuda:N names one, and a sweep without --job all")
    if job.state == "finished":
        print(f"finished already: {job.name}")
        return
    print(f"{job.name}, {job.total_steps:,} steps", flush=True)
    clear([job], out)
    prepare(job, out)
    stop = stop_file(out)
    with absent(stop), stopped_by_signals(stop):
        environment = {"OMP_NUM_THREADS": str(args.threads)} | ({"CUDA_VISIBLE_DEVICES": gpus[0]} if gpus else {})
        outcome = engines.run_job(job.command, job.folder, None, stop, environment, args.retries)
    if outcome.status != "finished":
        raise SystemExit(130 if outcome.status in ("interrupted", "not begun") else 1)


def stop_file(out: Path) -> Path:
    """The file that asks the jobs of this process to end, and no other's."""
    return out / f"stop.{socket.gethostname()}.{os.getpid()}.{TOKEN}"


@contextlib.contextmanager
def absent(stop: Path) -> Iterator[None]:
    """Removes the file `stop` now and at the end."""
    stop.unlink(missing_ok=True)
    try:
        yield
    finally:
        stop.unlink(missing_ok=True)


@contextlib.contextmanager
def stopped_by_signals(stop: Path) -> Iterator[None]:
    """SIGINT and SIGTERM make the file `stop`; a second SIGINT ends this process, after which its jobs end."""

    def note(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stop.touch()
        tqdm.write("stopping: every run writes a checkpoint; the same command continues", file=sys.stderr)

    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def visible_gpus(device: str) -> list[str]:
    """The GPUs that jobs may use, as CUDA_VISIBLE_DEVICES names them; one where a plan is made on a machine without."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus = list(filter(None, names)) or [str(number) for number in range(max(torch.cuda.device_count(), 1))]
    _, colon, index = device.partition(":")
    return [gpus[int(index)]] if colon else gpus


def describe(suite: Suite, out: Path) -> None:
    """Writes sweep.json, which reports read, and which names the process that locks the folder; copies the suite."""
    names = [family_name({"algorithm": entry.algorithm, "variant": entry.variant}) for entry in suite.entries]
    description = {
        "suite": suite.name,
        "purpose": suite.purpose,
        "command": "python -m benchmarks.sweep " + shlex.join(sys.argv[1:]),
        "commit": git_commit(),
        "date": time.strftime("%Y-%m-%d"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "cells": list(itertools.product(names, suite.tasks)),
        "seeds": suite.seeds,
    }
    keep(filter(None, [suite.references, *suite.published]), out)
    contents = {"suite.toml": suite.path.read_bytes(), "sweep.json": json.dumps(description, indent=2).encode()}
    for name, content in contents.items():
        part = out / f".{name}.{socket.gethostname()}.{os.getpid()}"  # jobs of an array may write at the same time
        part.write_bytes(content)
        os.replace(part, out / name)


def main(args: Args) -> None:
    check(args)
    suite = read(find(args.suite))
    out = (args.out or Path("runs") / suite.name).absolute()
    if args.engine == "ray" and args.device not in ("cpu", "cuda"):
        raise UserError(
            f"--device takes cpu or cuda with --engine ray, got {args.device!r}: nodes may differ from this one"
        )
    own_tables(filter(None, [suite.references, *suite.published]))  # which refuses names that two would have
    if args.engine == "ray" and args.job is not None:
        raise UserError("--job runs one job here, and --engine ray all of them on a cluster: leave one of them out")
    if args.address and args.engine != "ray":
        raise UserError("--address is that of a Ray cluster: add --engine ray")
    elsewhere = args.engine == "ray" or (args.dry_run and args.device == "cuda")
    cuda = args.device == "cuda" if elsewhere else choose_device(args.device).type == "cuda"
    gpus = visible_gpus(args.device) if cuda and args.engine == "local" else []
    cores = core_count()
    threads = args.threads or 1
    workers = args.workers or (len(gpus) * args.per_gpu if gpus else max(1, cores // threads))
    if gpus and args.job is None and not args.threads:
        threads = max(1, cores * len(gpus) // (workers * len(visible_gpus("cuda"))))
    args = replace(args, device="cuda" if cuda else "cpu", threads=threads)
    # for an array or a cluster, the size of this machine says nothing about the number of workers
    known_workers = workers if args.job is None and not args.address else 1
    batch = seeds_per_job(suite, args.seeds_per_job, cuda, known_workers)
    if args.until_decided or "--until-decided" in sys.argv:
        pair = entries_of(suite, args.until_decided)
        if args.job is not None:
            raise UserError("--until-decided runs all of its jobs itself: leave --job out")
        size, most = args.seeds_per_look or BATCH, args.max_seeds or MOST_SEEDS
        if most < 2 * size:
            raise UserError(f"--max-seeds must be at least {2 * size}, two batches of --seeds-per-look; got {most}")
        count = most // size * size if args.dry_run else size  # the most, or those of the first look
        suite = replace(suite, entries=pair, seeds=list(range(suite.seeds[0], suite.seeds[0] + count)))
        batch = min(args.seeds_per_job or size, size)
    elif args.max_seeds or args.seeds_per_look:
        raise UserError(f"{'--max-seeds' if args.max_seeds else '--seeds-per-look'} is for --until-decided only")

    if is_report(out):
        raise UserError(f"--out: {out} holds a report, which would hide the runs: choose another folder")
    jobs = planned(args, suite, out, batch)
    chosen = jobs
    if args.job is not None:
        states = [(job, state_of(job.folder)) for job in jobs[args.job : args.job + 1]]
        chosen = [replace(j, state=s, changed=j.changed if s == "finished" else ()) for j, s in states]
    warn_of_changes(chosen)
    if args.job is None and not args.until_decided:
        note_on_seeds(suite)
    if args.dry_run:
        show_plan(suite, jobs, out, workers, args.engine)
        if lacking := [task for task in suite.tasks if not (is_file(task) or is_downloaded(task))]:
            print(f"data that is not here yet: {', '.join(lacking)}; `python -m benchmarks.dataset NAME` downloads it")
        if args.until_decided:
            print(f"this is the most that it can take: {size} seeds are added at a time, until the pair is decided")
        else:
            print(f"as an array of jobs: --seeds-per-job {batch} --job 0 to --job {len(jobs) - 1}")
            left = [str(number) for number, job in enumerate(jobs) if job.state != "finished"]
            if 0 < len(left) < len(jobs):
                print(f"those that are not finished: {','.join(left)}")
        try:
            check_jobs(chosen, args.device, elsewhere, cuda)
        except UserError as error:  # perhaps only here: the machine that trains may have data that this one lacks
            warn(f"this would be refused on this machine: {error}")
        return
    if not chosen:
        raise UserError(f"--job takes 0 to {len(jobs) - 1} with these seeds per job, got {args.job}")
    check_jobs(chosen, args.device, elsewhere, cuda)
    if (free := shutil.disk_usage(writable(out)).free) < 64 << 20:
        raise UserError(f"--out: only {free >> 20} MiB are free on the disk of {out}")
    if args.job is not None:
        run_one(args, suite, out, chosen[0], gpus)
        return
    try:
        with FileLock(out / ".sweep.lock", timeout=0):  # the system drops it when this process ends, however it ends
            jobs = planned(args, suite, out, batch)  # again, since another sweep may have ended meanwhile
            describe(suite, out)
            outcomes: dict[str, Outcome] = {}
            stopped = False
            if not args.until_decided:
                outcomes, _ = sweep(args, jobs, out, workers, gpus)
            else:

                def train(part: Suite) -> tuple[list[Job], bool]:
                    nonlocal jobs, stopped
                    jobs = planned(args, part, out, batch)
                    ended, stopped = sweep(args, jobs, out, workers, gpus)
                    outcomes.update(ended)
                    return jobs, not stopped and all(outcome.status == "finished" for outcome in ended.values())

                until_decided(suite, out, size, most, train)
    except Timeout:
        holder = ""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            other = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
            holder = f" (process {other['pid']} on {other['host']})"
        raise UserError(f"--out: another sweep is at work in {out}{holder}: wait for it, or end it") from None

    counts = Counter(outcome.status for outcome in outcomes.values())
    skipped = max(len(jobs) - len(outcomes), 0)
    words = [f"{counts[s]} {s}" for s in ("finished", "interrupted", "not begun", "failed") if counts[s]]
    print(
        ", ".join([*words, *([f"{skipped} finished before"] if skipped else [])])
        + f", of {max(len(jobs), len(outcomes))} jobs in {out}"
    )
    if counts["interrupted"] or counts["not begun"] or stopped:
        raise SystemExit(130)
    if counts["failed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    run_command(main)
