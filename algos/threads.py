"""The number of CPU threads of a run, which follows the load of the machine."""

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator

import psutil
import torch

from envs.cores import core_count, own_cores

INTERVAL = 1.0  # least seconds between two measurements of the load
LONGEST = 60.0
SHARE = 0.02  # most of the time that measuring may take, which looks at every process of the machine
MEMORY = 3  # number of measurements, of which the heaviest counts
NOISE = 0.25  # cores that others may use without taking a thread from the run


class Threads:
    """Keeps torch at one thread for each core that other processes leave to the run.

    The threads of an operation wait for each other at its end, and they wait by spinning. One thread that shares its
    core with another process holds up the whole run: on two cores beside one busy process, two threads are three times
    slower than one. So the run gives up a thread within a second, or an iteration if that is longer, after a process
    starts to use a core, and takes it back three seconds after that process ends. No result depends on it: scripts that
    follow the load compute the same with any number of threads, and the streaming ones, in which one sum does not, keep
    to a fixed number. Where there are so many processes that looking at them takes long, all of this takes longer.

    `fixed` is the number of threads to keep; 0 follows the load, with at most as many threads as torch has now, and no
    more than there is CPU time for where a control group limits that.
    `measure` gives CPU seconds used so far by all processes on our cores, and by this one.
    """

    def __init__(
        self,
        fixed: int = 0,
        measure: Callable[[], tuple[float, float]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.measure, self.clock = measure or cpu_seconds, clock
        self.before_run = torch.get_num_threads()
        if fixed:
            torch.set_num_threads(fixed)
        elif self.before_run > core_count():
            torch.set_num_threads(core_count())
        self.most = torch.get_num_threads()
        self.follows = not fixed and self.most > 1
        self.cores = len(own_cores())
        self.loads: deque[float] = deque(maxlen=MEMORY)  # cores that others used
        self.time, self.interval = clock(), INTERVAL
        self.before = self.measure() if self.follows else (0.0, 0.0)

    def poll(self) -> None:
        """Call this at every iteration; it measures the load once a second, or more rarely if that takes long."""
        if not self.follows or (now := self.clock()) - self.time < self.interval:
            return
        total, ours = self.measure()
        self.interval = min(LONGEST, max(INTERVAL, (self.clock() - now) / SHARE))
        others = (total - self.before[0]) - (ours - self.before[1])
        self.loads.append(others / (now - self.time))
        self.time, self.before = now, (total, ours)
        threads = self.cores - math.ceil(max(self.loads) - NOISE)
        threads = max(1, min(threads, self.most))
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def __enter__(self) -> None:
        torch.set_num_threads(self.most)

    def __exit__(self, *error: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Gives back the number of threads that torch had before."""
        torch.set_num_threads(self.before_run)


def cpu_seconds() -> tuple[float, float]:
    """CPU seconds used so far by all processes on our cores, and by this process with its compilers."""
    busy = ("user", "nice", "system", "irq", "softirq", "steal")  # a guest's time is part of user's
    cores = psutil.cpu_times(percpu=True)
    total = sum(getattr(cores[i], name, 0.0) for i in own_cores() if i < len(cores) for name in busy)
    times = os.times()
    mine = time.process_time() + times.children_user + times.children_system
    for child in children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            t = child.cpu_times()
            mine += t.user + t.system + t.children_user + t.children_system
    return total, mine


def children() -> set[psutil.Process]:
    """The processes that this one has started, and theirs; none where a system lets nobody look for them."""
    with contextlib.suppress(psutil.Error):
        return set(psutil.Process().children(recursive=True))
    return set()


@contextlib.contextmanager
def thread_count(number: int) -> Iterator[None]:
    """Computes on so many threads: on one, where rounding depends on their number, as in LAPACK's factorisations."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
