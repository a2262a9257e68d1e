"""Programs of this repository import this first: a signal during their other imports then ends them in one line.

In other programs, in processes that Python's multiprocessing starts, and for signals that somebody handles already, it
changes nothing.
"""

import itertools
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType


def end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


def is_program() -> bool:
    """Whether a script or a command of this repository was started."""
    if multiprocessing.parent_process() or threading.current_thread() is not threading.main_thread():
        return False
    if sys.argv[0] == "-m":  # `python -m` replaces it when the packages of a command have been imported
        pairs = itertools.pairwise(sys.orig_argv)
        return any(word == "-m" and after.startswith("benchmarks.") for word, after in pairs)
    return Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parents[1] / "single_file"


if is_program():
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(number, end)
