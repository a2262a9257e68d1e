"""The cores and the memory of this machine that are ours: a container or a cluster may leave less than there is."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")  # of the file system; tests have another one


def own_cores() -> list[int]:
    """The cores that this process may use, by their numbers."""
    try:
        return psutil.Process().cpu_affinity()
    except AttributeError:  # macOS has no affinity
        return list(range(psutil.cpu_count() or 1))


def core_count() -> int:
    """How many cores this process may keep busy: its own ones, unless control groups give it less time than these."""
    shares = [float(len(own_cores()))]
    for folder in _groups("cpu"):
        with contextlib.suppress(OSError, ValueError):  # a group without a limit
            if (folder / "cpu.max").exists():
                quota, period = _text(folder / "cpu.max").split()
            else:
                quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
            if int(quota) > 0:
                shares.append(int(quota) / int(period))
    return max(1, math.ceil(min(shares)))


def free_memory(swap: bool = False) -> int:
    """Bytes that this process can still get, on request with `swap`: what is free, unless control groups leave less."""
    free = [psutil.virtual_memory().available + (psutil.swap_memory().free if swap else 0)]
    for folder in _groups("memory"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            new = (folder / "memory.max").exists()
            most, used = ("memory.max", "memory.current") if new else ("memory.limit_in_bytes", "memory.usage_in_bytes")
            facts = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
            names = (f"{'' if new else 'total_'}{kind}_file" for kind in ("active", "inactive"))
            cached = sum(int(facts[name]) for name in names)  # pages of files, which are given back where it is needed
            free.append(int(_text(folder / most)) - int(_text(folder / used)) + cached)
    return max(0, min(free))


@contextlib.contextmanager
def reserving() -> Iterator[None]:
    """Lifts this process's limit on memory while something is reserved that is hardly ever used.

    Linux counts what is reserved, such as the megabytes of an MjData that uses some kilobytes, the stack of a thread,
    or a file that is mapped. What is still reserved at the end, and not used, is added to the limit.
    """
    try:
        import resource  # not on Windows

        before = _unused()  # not on macOS
        limit, most = resource.getrlimit(resource.RLIMIT_DATA)
    except (ImportError, AttributeError):
        limit = most = 0
    if limit == most:
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        yield
    finally:
        limit += max(0, _unused() - before)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _unused() -> int:
    """Bytes that this process has reserved and not used."""
    found = psutil.Process().memory_info()
    return found.data - found.rss


def _groups(controller: str) -> Iterator[Path]:
    """The folders of the control groups that hold this process, of Linux's version 2 or 1; none on other systems."""
    try:
        lines = _text(ROOT / "proc/self/cgroup").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            base = ROOT / "sys/fs/cgroup" / (controller if controllers else "")
            group = base / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(base))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
