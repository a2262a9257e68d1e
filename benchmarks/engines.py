"""The engines of a sweep: they run jobs as processes of this machine or as tasks of a Ray cluster."""

import contextlib
import math
import os
import queue
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from algos.errors import UserError, warn
from algos.folders import holder
from benchmarks.plan import state_of
from benchmarks.suite import ROOT

PATIENCE = 10  # seconds after which a job says that it waits for another process


@dataclass(frozen=True)
class Outcome:
    """How a job ended, with the log of its last attempt: `finished`, `interrupted`, `not begun` or `failed`."""

    status: str
    attempts: int
    code: int | None = None
    log: Path | None = None


@dataclass(frozen=True)
class Engine:
    """`submit` takes the arguments of `run_job`, without the retries, and returns a future.

    `cancel` takes such a future. It cancels a job that has not started and returns True; otherwise it returns False.
    """

    submit: Callable[..., Future]
    cancel: Callable[[Future], bool]


@contextlib.contextmanager
def local(workers: int, gpus: list[str], retries: int) -> Iterator[Engine]:
    """Threads of this process, each of which runs one job at a time; a job on a GPU sees no other GPU."""
    slots: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    for number in range(workers):
        slots.put({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {})

    def work(command: list[str], folder: Path, log: Path, stop: Path, environment: dict[str, str]) -> Outcome:
        slot = slots.get()
        try:
            return run_job(command, folder, log, stop, environment | slot, retries)
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(workers) as pool:
        yield Engine(lambda *job: pool.submit(work, *job), Future.cancel)


@contextlib.contextmanager
def ray(address: str, workers: int, threads: int, gpu: float, retries: int) -> Iterator[Engine]:
    """Tasks of a Ray cluster, whose nodes share the sweep's folder.

    Each job gets `threads` CPUs and the share `gpu` of a GPU. Without an address, a cluster for that many workers is
    started on this machine.
    """
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install -e '.[ray]'") from None
    try:
        ray.init(
            address=address or "local",
            num_cpus=None if address else workers * threads,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}},
            include_dashboard=None if address else False,
            log_to_driver=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"--address {address}: cannot reach a Ray cluster: {error}") from None
    if gpu and not ray.cluster_resources().get("GPU"):
        warn("the Ray cluster has no GPU now: jobs wait until it has one")
    task: Any = ray.remote(run_job).options(num_cpus=threads, num_gpus=gpu, max_retries=retries)
    sent, place = {}, Path.cwd()

    def submit(command: list[str], folder: Path, log: Path, stop: Path, environment: dict[str, str]) -> Future:
        reference = task.remote(command, folder, log, stop, environment, retries, place)
        future = reference.future()
        sent[future] = reference, log, logs_of(log)
        return future

    def cancel(future: Future) -> bool:
        reference, log, logs = sent[future]
        if waiting := logs_of(log) == logs:  # a job that has started ends by itself, with a checkpoint
            ray.cancel(reference)
        return waiting

    try:
        yield Engine(submit, cancel)
    finally:
        ray.shutdown()


def run_job(
    command: list[str], folder: Path, log: Path | None, stop: Path, environment: dict[str, str], retries: int,
    place: Path | None = None,
) -> Outcome:  # fmt: skip
    """Runs a job, and again if it fails, until it is done or the file `stop` appears; then it ends with a checkpoint.

    Each attempt has a log of its own, whose name is `log` with a number. Without `log`, the job prints to this
    process's output. The job begins in the folder `place` if this machine has it, or else in this process's: relative
    paths and modules of the user's own lie there.
    """
    path, attempt = log, 0
    packages = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for attempt in range(1, retries + 2):
        wait_for_lock(folder, stop)
        if stop.exists():
            return Outcome(left(folder), attempt - 1, None, path)
        with contextlib.ExitStack() as stack:
            output = None
            if log:
                path = log.with_name(f"{log.name}.{logs_of(log) + 1}.log")
                output = stack.enter_context(open(path, "wb"))
            # a session of its own: a Ctrl-C of the terminal reaches the sweep, which then asks the jobs to end
            here = place if place and place.is_dir() else None
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT if output else None,
                env=os.environ | environment | {"PYTHONPATH": packages}, cwd=here, start_new_session=True,
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
        # 3: all runs diverged, which is a result; what asks a process to end may come after its last step
        if (code in (0, 3) or stop.exists()) and state_of(folder) == "finished":
            return Outcome("finished", attempt, code, path)
        if stop.exists():
            return Outcome("interrupted", attempt, code, path)
        # no retry helps: its run is in another folder (0), or its arguments were refused (2); a run that had begun may
        # have lacked memory or room on the disk, which others used
        if code == 0 or (code == 2 and state_of(folder) != "started"):
            break
    return Outcome("failed", attempt, code, path)


def left(folder: Path) -> str:
    """The status of a job whose turn does not come any more."""
    return "interrupted" if state_of(folder) == "started" else "not begun"


def logs_of(log: Path) -> int:
    """The number of attempts that have a log."""
    return len(list(log.parent.glob(f"{log.name}.*.log")))


def wait_for_lock(folder: Path, stop: Path) -> None:
    """Waits until no process trains in a folder: after a kill of the sweep, its jobs still write their checkpoints."""
    warn_at = time.monotonic() + PATIENCE
    while (folder / ".lock").exists() and not stop.exists():
        try:
            with FileLock(folder / ".lock", timeout=0.5):
                return
        except Timeout:
            if time.monotonic() > warn_at:
                who = holder(folder / ".lock")
                warn(f"another process is training in {folder}, and a job waits until it ends{who}")
                warn_at = math.inf
