"""The cores of this machine that are ours."""

import psutil


def own_cores() -> list[int]:
    """The cores that this process may use, by their numbers."""
    try:
        return psutil.Process().cpu_affinity()
    except AttributeError:  # macOS has no affinity
        return list(range(psutil.cpu_count() or 1))
