"""Sweeps: all runs of a suite, on this machine or a cluster, whatever happens in between.

    python -m benchmarks.sweep smoke                        everything, on all cores or GPUs of this machine
    python -m benchmarks.sweep mujoco_1m --dry-run          what would be done, and how long it would take
    python -m benchmarks.sweep mujoco_1m --engine ray       on a Ray cluster
    python -m benchmarks.sweep mujoco_1m --job 3            one job and nothing else: for job arrays

A job is one process that trains a batch of seeds of one algorithm on one task. Jobs that are finished, by a hash of
what determines their results, are skipped; jobs that were interrupted go on from their checkpoint; jobs that fail are
tried again from there, their logs are kept, and the others go on. Ctrl-C ends every run with a checkpoint, and the same
command continues. A run whose tables are damaged is set aside and trained anew.

A job array of Slurm runs one job per task, on a file system that all nodes share (--dry-run says how many there are):

    sbatch --array=0-9 --gpus=1 --wrap='python -m benchmarks.sweep mujoco_1m --job $SLURM_ARRAY_TASK_ID'

Results lie in OUT/<seeds>/<task>/<algorithm>/<variant>/, logs in OUT/logs/. Exit codes: 0 all done, 1 some jobs failed,
2 bad arguments, 130 interrupted.
"""

import contextlib
import hashlib
import json
import math
import os
import queue
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from filelock import FileLock, Timeout
from tqdm import tqdm

from algos.arguments import Count, Natural, check
from algos.errors import UserError
from algos.cli import report_errors
from algos.device import choose_device
from algos.run_folder import difference, folder_of, git_commit, identity, read_table
from benchmarks.suite import ROOT, Suite, as_words, find, read

# Seeds that one thread trains together: five do 1.2 times as many steps per second as one, ten no more than five.
SEEDS_PER_CPU_JOB = 5
State = Literal["new", "started", "finished", "damaged"]


@dataclass
class Args:
    suite: Annotated[str, tyro.conf.Positional]
    """a suite of benchmarks/suites, or the path of a TOML file"""
    out: Path | None = None
    """folder of the sweep, runs/<suite> by default"""
    dry_run: bool = False
    """print the plan with an estimate of time and disk, and start nothing"""
    job: int | None = None
    """run the one job of this number, in the foreground"""
    engine: Literal["local", "ray"] = "local"
    """processes of this machine, or tasks of a Ray cluster (pip install -e '.[ray]')"""
    address: str = ""
    """address of a Ray cluster, `auto` for the one of this machine; empty starts one here"""
    workers: Natural = 0
    """jobs at a time on this machine; 0: as many as there are cores, or as the GPUs take"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto takes CUDA where there is one; for Ray say cpu or cuda"""
    per_gpu: Count = 1
    """jobs that share one GPU"""
    threads: Count = 1
    """CPU threads of a job"""
    seeds_per_job: Natural = 0
    """seeds that one process trains; 0: all on a GPU, at most 5 on a CPU, fewer if workers would be idle"""
    checkpoint_every: Natural = 0
    """environment steps between a run's checkpoints; 0: the script's default"""
    retries: Natural = 2
    """times that a failed job is tried again"""


@dataclass(frozen=True)
class Job:
    """One process: a batch of seeds of one algorithm on one task."""

    name: str
    identity: dict[str, Any]
    folder: Path
    command: list[str]
    args: Any  # the script's Args
    state: State

    @property
    def id(self) -> str:
        """A hash of what determines the results."""
        return digest(self.identity)

    @property
    def seeds(self) -> list[int]:
        return self.identity["seeds"]

    @property
    def total_steps(self) -> int:
        return self.args.total_steps


@dataclass(frozen=True)
class Outcome:
    """How a job ended: `finished`, `interrupted` or `failed`, with the log of its last attempt."""

    status: str
    attempts: int
    code: int | None = None
    log: Path | None = None


def digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10]


def seed_name(seeds: list[int]) -> str:
    """`seeds_0-4` for consecutive seeds, else all of them."""
    if len(seeds) == 1:
        return f"seed_{seeds[0]}"
    if seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds_{seeds[0]}-{seeds[-1]}"
    return "seeds_" + "_".join(map(str, seeds))


# -- the plan ---------------------------------------------------------------------------------------------------------


def state_of(folder: Path) -> State:
    """What a run's folder holds, after reading its tables."""
    try:
        config = json.loads((folder / "config.json").read_text())
        finished = config["status"] in ("finished", "diverged") and bool(config["identity"])
        for name in ("eval.parquet", "train.parquet"):
            if finished or (folder / name).exists():
                read_table(folder / name)
    except FileNotFoundError:
        return "new" if not (folder / "config.json").exists() else "damaged"
    except (ValueError, KeyError, TypeError, UserError):
        return "damaged"
    return "finished" if finished else "started"


def plan(suite: Suite, out: Path, args: Args, batch: int) -> list[Job]:
    """The jobs of a suite: those that the folder holds already, and new ones for seeds that are in none of them.

    Raises UserError if a folder that a new job needs holds a run of another configuration.
    """
    device = torch.device(args.device).type
    there: dict[str, list[tuple[list[int], Path]]] = {}  # configuration without seeds -> the runs that the folder holds
    for path in sorted(out.glob("seed*/*/*/*/config.json")):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found = json.loads(path.read_text())["identity"]
            there.setdefault(digest(found | {"seeds": None}), []).append((found["seeds"], path.parent))

    jobs = []
    for task in suite.tasks:
        for entry in suite.entries:

            def job(seeds: list[int], folder: Path | None = None, entry: Any = entry, task: str = task) -> Job:
                words = as_words(entry.args[task].TASK, task)
                words += ["--seeds", *map(str, seeds), *entry.flags[task]]
                place = folder.parents[2] if folder else out / seed_name(seeds)
                script_args = replace(entry.args[task], out=place, variant=entry.variant)
                facts = identity(script_args, entry.algorithm, seeds, device)
                run = folder_of(script_args, entry.algorithm)
                more = {"device": device, "threads": args.threads, "out": place, "variant": entry.variant}
                more |= {"resume": True} | (
                    {"checkpoint_every": args.checkpoint_every} if args.checkpoint_every else {}
                )
                words += [word for name, value in more.items() for word in as_words(name, value)]
                command = [sys.executable, "-m", "benchmarks.job", str(entry.script), *words]
                name = f"{entry.name} on {task}, {seed_name(seeds).replace('_', ' ', 1)}"
                if (state := state_of(run)) in ("started", "finished"):
                    other = json.loads((run / "config.json").read_text()).get("identity", {})
                    if differs := difference(facts, other):
                        raise UserError(
                            f"--out: {run} holds a run with another configuration ({differs}): take another --out, or "
                            "remove it"
                        )
                return Job(name, facts, run, command, script_args, state)

            facts = identity(replace(entry.args[task], variant=entry.variant), entry.algorithm, [], device)
            parts = [part.tolist() for part in np.array_split(suite.seeds, math.ceil(len(suite.seeds) / batch))]
            # runs with other batches than these keep theirs; else a job's number does not depend on what is done
            others = [
                (seeds, folder)
                for seeds, folder in there.get(digest(facts | {"seeds": None}), [])
                if seeds not in parts and set(seeds) & set(suite.seeds)
            ]
            taken = {seed for seeds, _ in others for seed in seeds}
            new = [left for part in parts if (left := [seed for seed in part if seed not in taken])]
            found = [(seeds, job(seeds, folder)) for seeds, folder in others] + [(seeds, job(seeds)) for seeds in new]
            jobs += [item for _, item in sorted(found, key=lambda pair: min(pair[0]))]
    return jobs


def mend(job: Job, out: Path) -> None:
    """Sees to it that a job can start: sets its run aside if that is damaged, and removes what a kill left."""
    if job.state == "damaged":
        set_aside(job.folder, out)
    (job.folder / "progress.json").unlink(missing_ok=True)


def set_aside(run: Path, out: Path) -> None:
    """Moves a damaged run out of the way, and renames its configuration so that nothing reads it."""
    place = out / "damaged" / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6}"
    place.parent.mkdir(exist_ok=True)
    shutil.move(run, place)
    with contextlib.suppress(FileNotFoundError):
        (place / "config.json").rename(place / "config.damaged.json")
    print(f"warning: {run} is damaged: it is now {place}, and is trained anew", file=sys.stderr)


def seeds_per_job(args: Args, suite: Suite, cuda: bool, workers: int) -> int:
    """As many as is fastest: on a GPU all, on a CPU at most five, and fewer if workers would have nothing to do."""
    if args.seeds_per_job or cuda:
        return args.seeds_per_job or len(suite.seeds)
    runs = len(suite.seeds) * len(suite.tasks) * len(suite.entries)
    return max(1, min(SEEDS_PER_CPU_JOB, len(suite.seeds), math.ceil(runs / workers)))


def estimate(job: Job, earlier: list[dict[str, Any]]) -> tuple[float, float] | None:
    """Seconds left and bytes on disk, from the earlier run that is most like the job; None if there is none.

    Time is scaled by steps, and on a CPU by seeds; disk by seeds and by the transitions that a replay buffer can hold.
    """
    ours = job.identity

    def likeness(config: dict[str, Any]) -> tuple:
        theirs = config["identity"]
        other = {name for name in set(ours) | set(theirs) if ours.get(name) != theirs.get(name)}
        return theirs["env_id"] == ours["env_id"], -len(other), -abs(len(theirs["seeds"]) - len(ours["seeds"]))

    similar = [c for c in earlier if all(c["identity"].get(k) == ours[k] for k in ("algorithm", "device"))]
    if not similar:
        return None
    best = max(similar, key=likeness)
    theirs = best["identity"]
    done = json.loads((job.folder / "config.json").read_text())["step"] if job.state == "started" else 0
    runs = len(job.seeds) / len(theirs["seeds"])
    seconds = (best["seconds"] + best["evaluation_seconds"]) / best["step"] * (job.total_steps - done)
    kept, theirs_kept = (min(i.get("buffer_size", i["total_steps"]), i["total_steps"]) for i in (ours, theirs))
    return seconds * (runs if ours["device"] == "cpu" else 1), best["peak_bytes"] * runs * kept / theirs_kept


def earlier_runs(folder: Path) -> list[dict[str, Any]]:
    """The configurations of all runs and sweeps in a folder that have done something."""
    found = []
    for path in sorted([*folder.glob("*/*/*/config.json"), *folder.glob("*/seed*/*/*/*/config.json")]):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            config = json.loads(path.read_text())
            if config.get("step") and {"identity", "seconds", "evaluation_seconds", "peak_bytes"} <= set(config):
                found.append(config)
    return found


def show_plan(suite: Suite, jobs: list[Job], args: Args, out: Path, workers: int) -> None:
    """Prints the plan with an estimate of time and disk."""
    earlier = earlier_runs(out.parent)
    width = max(len(job.name) for job in jobs)
    times, disk, unknown = [], 0.0, 0
    print(f"{suite.name}: {suite.purpose}\n")
    for number, job in enumerate(jobs):
        guess = estimate(job, earlier) if job.state != "finished" else (0.0, 0.0)
        if guess:
            times.append(guess[0])
            disk += guess[1]
        else:
            unknown += 1
        note = {"new": "to do", "started": "to be continued", "finished": "finished", "damaged": "damaged: anew"}[
            job.state
        ]
        about = "" if job.state == "finished" else f"about {clock(guess[0])}" if guess else "no earlier run to tell"
        print(f"{number:>4}  {job.id}  {job.name:<{width}}  {job.total_steps:>11,} steps  {note:<15}  {about}")
    counts = Counter(job.state for job in jobs)
    print(f"\n{len(jobs)} jobs, {counts['finished']} finished; {workers} at a time, with {args.engine}; folder {out}")
    if len(times) > counts["finished"]:
        longest = max(sum(times) / workers, max(times))
        more = f", and {unknown} jobs of which no earlier run tells" if unknown else ""
        print(f"time about {clock(longest)}, disk at most about {disk / 2**30:.2f} GiB (from earlier runs){more}")
    elif unknown:
        print("time and disk unknown: there is no earlier run of these algorithms to tell")
    size = max(len(job.seeds) for job in jobs)
    print(f"as an array of jobs: --seeds-per-job {size} --job 0 to --job {len(jobs) - 1}")


def clock(seconds: float) -> str:
    """`3 h 20 min`, `12 min`, `40 s`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


# -- one job ----------------------------------------------------------------------------------------------------------


def run_job(
    command: list[str], folder: Path, log: Path | None, stop: Path, environment: dict[str, str], retries: int
) -> Outcome:
    """Runs a job, again if it fails, until it is done or the file `stop` appears; then it ends with a checkpoint.

    Each attempt has a log of its own, `log` with a number, or, without one, this process's own output.
    """
    path, attempt = log, 0
    for attempt in range(1, retries + 2):
        wait_for_lock(folder, stop)
        if stop.exists():
            return Outcome("interrupted", attempt - 1, None, path)
        with contextlib.ExitStack() as stack:
            stream = None
            if log:
                path = log.with_name(f"{log.name}.{logs_of(log) + 1}.log")
                stream = stack.enter_context(open(path, "wb"))
            # a session of its own: a Ctrl-C of the terminal reaches the sweep, which then asks the jobs to end
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=stream, stderr=subprocess.STDOUT if stream else None,
                env=os.environ | environment, cwd=ROOT, start_new_session=True,
            )  # fmt: skip
            asked = False
            while process.poll() is None:
                if stop.exists() and not asked:
                    asked = True
                    process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
            assert process.stdin
            process.stdin.close()
        code = process.returncode
        if code in (0, 3) and state_of(folder) == "finished":  # 3: all seeds diverged, which is a result
            return Outcome("finished", attempt, code, path)
        if stop.exists():
            return Outcome("interrupted", attempt, code, path)
        if code in (0, 2):  # it did not store its run where it should, or was refused: and would be again
            break
    return Outcome("failed", attempt, code, path)


def logs_of(log: Path) -> int:
    """The number of attempts that have a log."""
    return len(list(log.parent.glob(f"{log.name}.*.log")))


def wait_for_lock(folder: Path, stop: Path, seconds: float = 120) -> None:
    """Waits until no process trains in a folder: after a kill of the sweep, its jobs still write their checkpoints."""
    until = time.monotonic() + seconds
    while (folder / ".lock").exists() and time.monotonic() < until and not stop.exists():
        try:
            with FileLock(folder / ".lock", timeout=0.5):
                return
        except Timeout:
            pass


# -- engines ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """Takes the arguments of `run_job` and gives a future; takes back a future that nothing works on yet."""

    submit: Callable[..., Future]
    cancel: Callable[[Future], Any]


@contextlib.contextmanager
def local(args: Args, workers: int, gpus: list[str]) -> Iterator[Engine]:
    """Threads of this process, each at one job at a time; a job on a GPU sees no other."""
    slots: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    for number in range(workers):
        slots.put({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {})

    def work(command: list[str], folder: Path, log: Path, stop: Path, environment: dict[str, str]) -> Outcome:
        slot = slots.get()
        try:
            return run_job(command, folder, log, stop, environment | slot, args.retries)
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(workers) as pool:
        yield Engine(lambda *job: pool.submit(work, *job), Future.cancel)


@contextlib.contextmanager
def ray(args: Args, workers: int, gpus: list[str]) -> Iterator[Engine]:
    """Tasks of a Ray cluster, whose nodes share the sweep's folder; Ray gives a job its GPU."""
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install -e '.[ray]'") from None
    try:
        ray.init(
            address=args.address or "local",
            num_cpus=None if args.address else workers * args.threads,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}},
            include_dashboard=None if args.address else False,
            log_to_driver=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"--address {args.address}: cannot reach a Ray cluster: {error}") from None
    gpu = 1 / args.per_gpu if args.device == "cuda" else 0
    if gpu and not ray.cluster_resources().get("GPU"):
        print("warning: the Ray cluster has no GPU now: jobs wait until it has one", file=sys.stderr)
    task: Any = ray.remote(run_job).options(num_cpus=args.threads, num_gpus=gpu, max_retries=args.retries)
    sent = {}

    def submit(command: list[str], folder: Path, log: Path, stop: Path, environment: dict[str, str]) -> Future:
        reference = task.remote(command, folder, log, stop, environment, args.retries)
        future = reference.future()
        sent[future] = reference, log, logs_of(log)
        return future

    def cancel(future: Future) -> bool:
        reference, log, logs = sent[future]
        if waiting := logs_of(log) == logs:  # a job that has begun ends by itself, with a checkpoint
            ray.cancel(reference)
        return waiting

    try:
        yield Engine(submit, cancel)
    finally:
        ray.shutdown()


# -- the sweep --------------------------------------------------------------------------------------------------------


class Display:
    """A progress line for every job that is at work and one for all; on a terminal bars, else a line now and then."""

    def __init__(self, jobs: list[Job], workers: int):
        self.jobs, self.terminal = jobs, sys.stderr.isatty()
        self.all = sum(job.total_steps * len(job.seeds) for job in jobs)
        self.done = {job.id: job.total_steps * len(job.seeds) for job in jobs if job.state == "finished"}
        self.bars: dict[str, tqdm] = {}
        self.finished = set(self.done)
        self.free = list(range(max(workers, 1), 0, -1))
        style = {"dynamic_ncols": True, "disable": not self.terminal}
        self.style = style | {
            "leave": False,
            "bar_format": "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {postfix}",
        }
        start = sum(self.done.values())
        self.total = tqdm(
            total=self.all, initial=start, desc="all", unit=" steps", unit_scale=True, position=0, **style
        )
        self.said = time.monotonic()

    def update(self) -> None:
        """Shows what the running jobs have written down of their progress."""
        lines = []
        for job in self.jobs:
            if job.id in self.finished:
                continue
            try:
                progress = json.loads((job.folder / "progress.json").read_text())
            except (OSError, ValueError):
                continue
            self.done[job.id] = progress["step"] * len(job.seeds)
            score = "" if progress["score"] is None else f"return {progress['score']:.1f}"
            lines.append(f"  {job.name}: {progress['step']:,} of {job.total_steps:,} steps, {score}")
            if job.id not in self.bars and self.free:
                self.bars[job.id] = tqdm(
                    total=job.total_steps, desc=job.name, position=self.free[-1], unit_scale=True, **self.style
                )
                self.bars[job.id].place = self.free.pop()  # type: ignore[attr-defined]
            if bar := self.bars.get(job.id):
                bar.n = progress["step"]
                bar.set_postfix_str(score)
        done = sum(self.done.values())
        self.total.n = done
        self.total.refresh()
        if not self.terminal and time.monotonic() - self.said > 60:
            self.said = time.monotonic()
            print("\n".join([*lines, f"all: {done / self.all:.0%}"]), flush=True)

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Takes a job's line away and says how it ended."""
        if bar := self.bars.pop(job.id, None):
            self.free.append(bar.place)  # type: ignore[attr-defined]
            bar.close()
        self.finished.add(job.id)
        if outcome.status == "finished":
            self.done[job.id] = job.total_steps * len(job.seeds)
        again = f" after {outcome.attempts} attempts" if outcome.attempts > 1 else ""
        note = {3: " (all seeds diverged)"}.get(outcome.code or 0, "")
        if outcome.status == "failed" and outcome.code == 0:
            note = f" (it ended well, but there is no finished run in {job.folder})"
        where = f": see {outcome.log}" if outcome.status == "failed" else ""
        tqdm.write(f"{outcome.status:<11} {job.name}{note}{again}{where}", file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        for bar in [*self.bars.values(), self.total]:
            bar.close()


@contextlib.contextmanager
def stopped_by_signals(stop: Path) -> Iterator[None]:
    """SIGINT and SIGTERM make the file `stop`; a second SIGINT ends this process, after which its jobs end."""

    def note(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stop.touch()
        tqdm.write("stopping: every run writes a checkpoint; the same command continues", file=sys.stderr)

    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    stop.unlink(missing_ok=True)
    try:
        yield
    finally:
        stop.unlink(missing_ok=True)
        for number, handler in old.items():
            signal.signal(number, handler)


def sweep(args: Args, suite: Suite, jobs: list[Job], out: Path, workers: int, gpus: list[str]) -> dict[str, Outcome]:
    """Runs all jobs that are not finished; gives how each of them ended."""
    stop, logs = out / "stop", out / "logs"
    logs.mkdir(exist_ok=True)
    for job in jobs:
        mend(job, out)
    environment = {"OMP_NUM_THREADS": str(args.threads)}
    engine = {"local": local, "ray": ray}[args.engine]
    outcomes: dict[str, Outcome] = {}
    # signals come second: Ray has handlers of its own
    with engine(args, workers, gpus) as run, stopped_by_signals(stop):
        display = Display(jobs, workers)
        todo = [job for job in jobs if job.state != "finished"]
        pending = {run.submit(job.command, job.folder, logs / job.id, stop, environment): job for job in todo}

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
                        if run.cancel(future):
                            end(future, Outcome("interrupted", 0))
                display.update()
        except BaseException:
            stop.touch()
            for future in pending:
                run.cancel(future)
            wait(pending, timeout=300)
            raise
        finally:
            display.close()
    return outcomes


def main(args: Args) -> None:
    check(args)
    suite = read(find(args.suite))
    out = (args.out or Path("runs") / suite.name).absolute()
    if args.engine == "ray" and args.device not in ("cpu", "cuda"):
        raise UserError(
            f"--device takes cpu or cuda with --engine ray, got {args.device!r}: nodes may differ from this one"
        )
    elsewhere = args.engine == "ray" or (args.dry_run and args.device == "cuda")
    cuda = args.device == "cuda" if elsewhere else choose_device(args.device).type == "cuda"
    gpus = visible_gpus(args.device) if cuda and args.engine == "local" else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = args.workers or (len(gpus) * args.per_gpu if gpus else max(1, cores // args.threads))
    args = replace(args, device="cuda" if cuda else "cpu")
    here = args.job is None and not args.address  # else the number of workers is not this machine's to say
    batch = seeds_per_job(args, suite, cuda, workers if here else 1)

    if args.dry_run:
        show_plan(suite, plan(suite, out, args, batch), args, out, workers)
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out).free
    except OSError as error:
        raise UserError(f"--out: cannot use {out}: {error}") from None
    if free < 64 << 20:
        raise UserError(f"--out: only {free >> 20} MiB are free on the disk of {out}")
    if args.job is not None:
        run_one(args, suite, out, batch, gpus)
        return
    try:
        with FileLock(out / ".sweep.lock", timeout=0):  # the system drops it when this process ends, however it ends
            jobs = plan(suite, out, args, batch)
            for job in jobs:
                if job.state != "finished":
                    job.args.check_ready()
            describe(suite, out)
            outcomes = sweep(args, suite, jobs, out, workers, gpus)
    except Timeout:
        who = json.loads((out / "sweep.json").read_text()) if (out / "sweep.json").exists() else {}
        holder = f" (process {who['pid']} on {who['host']})" if who else ""
        raise UserError(f"--out: another sweep is at work in {out}{holder}: wait for it, or end it") from None

    counts = Counter(outcome.status for outcome in outcomes.values())
    skipped = len(jobs) - len(outcomes)
    words = [f"{counts[s]} {s}" for s in ("finished", "interrupted", "failed") if counts[s]]
    print(", ".join([*words, *([f"{skipped} finished before"] if skipped else [])]) + f", of {len(jobs)} jobs in {out}")
    if counts["interrupted"]:
        raise SystemExit(130)
    if counts["failed"]:
        raise SystemExit(1)


def run_one(args: Args, suite: Suite, out: Path, batch: int, gpus: list[str]) -> None:
    """One job of an array, in the foreground; other jobs of the sweep may run elsewhere at the same time."""
    jobs = plan(suite, out, args, batch)
    if not 0 <= (args.job or 0) < len(jobs):
        raise UserError(f"--job takes 0 to {len(jobs) - 1} with these seeds per job, got {args.job}")
    if not (out / "sweep.json").exists():
        describe(suite, out)
    job = jobs[args.job or 0]
    if job.state == "finished":
        print(f"finished already: {job.name}")
        return
    job.args.check_ready()
    print(f"{job.name}, {job.total_steps:,} steps", flush=True)
    mend(job, out)
    stop = out / f"stop.{job.id}"
    with stopped_by_signals(stop):
        environment = {"OMP_NUM_THREADS": str(args.threads)} | ({"CUDA_VISIBLE_DEVICES": gpus[0]} if gpus else {})
        outcome = run_job(job.command, job.folder, None, stop, environment, args.retries)
    if outcome.status != "finished":
        raise SystemExit(130 if outcome.status == "interrupted" else 1)


def visible_gpus(device: str) -> list[str]:
    """The GPUs that jobs may use, as CUDA_VISIBLE_DEVICES names them."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if "CUDA_VISIBLE_DEVICES" in os.environ else None
    gpus = names or [str(number) for number in range(torch.cuda.device_count())]
    _, colon, index = device.partition(":")
    return [gpus[int(index)]] if colon else gpus


def describe(suite: Suite, out: Path) -> None:
    """Writes down what the sweep is, for reports and for whoever finds the folder locked."""
    facts = {
        "suite": suite.name,
        "purpose": suite.purpose,
        "command": "python -m benchmarks.sweep " + shlex.join(sys.argv[1:]),
        "commit": git_commit(),
        "date": time.strftime("%Y-%m-%d"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    for table in filter(None, [suite.references, *suite.published]):
        if ROOT / "benchmarks" not in table.parents:
            shutil.copy(table, out / table.name)  # for the report
    for name, data in (("suite.toml", suite.path.read_bytes()), ("sweep.json", json.dumps(facts, indent=2).encode())):
        part = out / f".{name}.{socket.gethostname()}.{os.getpid()}"  # jobs of an array may write at the same time
        part.write_bytes(data)
        os.replace(part, out / name)


if __name__ == "__main__":
    report_errors(lambda: main(tyro.cli(Args, description=__doc__)))
