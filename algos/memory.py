"""Limits a process to the memory that is free, so that asking for more is an error and ends no process."""

import contextlib
import re

import psutil

# what torch and CUDA say of memory that they could not get, or of sizes that nothing could hold
WORDS = r"can't allocate memory|out of memory|size calculation overflowed|numel: integer multiplication overflow"


def limit_memory() -> None:
    """Lets this process have no more memory than is free now, on systems that can limit it.

    Without a limit, Linux promises memory that it does not have, and ends a process when it is used.
    """
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
        import resource  # not on Windows

        here = psutil.Process().memory_info().data
        free = psutil.virtual_memory().available + psutil.swap_memory().free
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = here + free if most == resource.RLIM_INFINITY else min(here + free, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be had."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(re.search(WORDS, str(error))))
