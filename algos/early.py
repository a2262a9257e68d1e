"""Programs of this repository import this first: a signal during their other imports then ends them in one line.

In other programs, it changes nothing.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType


def end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


started_by_m = sys.argv[0] == "-m"  # `python -m` replaces it when the packages of a command have been imported
is_script = Path(sys.argv[0]).absolute().parent.name == "single_file"
if (started_by_m or is_script) and threading.current_thread() is threading.main_thread():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
