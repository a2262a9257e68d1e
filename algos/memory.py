"""Keeps a process to the memory that is free: asking for more is an error, and does not end it."""

import contextlib
import re

import psutil
import torch

from algos.errors import UserError
from envs.cores import free_memory

# what torch and CUDA say of memory that they could not get, or of sizes that nothing could hold
WORDS = (
    "can't allocate memory|Cannot allocate memory|out of memory|size calculation overflowed|"
    "numel: integer multiplication overflow|CUBLAS_STATUS_ALLOC_FAILED"
)


def limit_memory() -> None:
    """Lets this process have no more memory than is free now, on systems that can limit it.

    Without a limit, Linux promises memory that it does not have, and ends a process when it is used.
    """
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
        import resource  # not on Windows

        here = psutil.Process().memory_info().data
        free = free_memory(swap=True)
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = here + free if most == resource.RLIM_INFINITY else min(here + free, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def check_room(nbytes: int, what: str, runs: int, device: torch.device) -> None:
    """Raises UserError if a buffer needs more than nine tenths of the memory that a device has free."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
    if nbytes > 0.9 * free:
        raise UserError(
            f"{what} needs {nbytes / 2**30:.1f} GiB for {runs} runs on {device}, where {free / 2**30:.1f} GiB are "
            "free: take a smaller buffer or fewer seeds"
        )


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be had."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(re.search(WORDS, str(error))))
