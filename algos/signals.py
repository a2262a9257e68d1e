"""A clean end on SIGINT and SIGTERM."""

import signal
import threading
from types import FrameType


class Signals:
    """While it is entered, the first SIGINT or SIGTERM only sets `came`; a second SIGINT ends the process."""

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> None:
        self.came = False
        own = threading.current_thread() is threading.main_thread()  # only there do signals arrive
        numbers = (signal.SIGINT, signal.SIGTERM) if own else ()
        self.before = {number: signal.signal(number, self._note) for number in numbers}

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
