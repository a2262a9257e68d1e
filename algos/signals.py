"""A clean end on SIGINT and SIGTERM: at once and in one line, or in the loop of a run after a checkpoint."""

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import ClassVar, NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM)
SOON = 2.0  # seconds after a signal until a message says what is waited for


class Signals:
    """While it is entered, the first SIGINT or SIGTERM only sets `came`; a second SIGINT ends the process."""

    present: ClassVar["Signals | None"] = None  # the one that is entered
    at_once: ClassVar[bool] = False  # see `interruptible`

    def __init__(self) -> None:
        self.came = False
        self.tell_at = math.inf  # when to say what is waited for

    def __enter__(self) -> "Signals":
        self.before = {}
        if in_main_thread():
            Signals.present = self
            self.before = {number: signal.signal(number, self._note) for number in NUMBERS}
        return self

    def __exit__(self, *error: object) -> None:
        if self.before:
            Signals.present = None
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came, self.tell_at = True, time.monotonic() + SOON
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if Signals.at_once:
            self.interrupt()

    @classmethod
    def tell(cls, end: str) -> None:
        """If a signal came a while ago, says once that the program goes on until the `end` of something."""
        if (signals := cls.present) and signals.came and time.monotonic() > signals.tell_at:
            signals.tell_at = math.inf
            print(f"interrupted: this waits for {end}; Ctrl-C again ends at once", file=sys.stderr)

    def interrupt(self) -> NoReturn:
        """Ends the program without a checkpoint."""
        raise KeyboardInterrupt("interrupted; --resume goes on from the last checkpoint, if there is one")


def in_main_thread() -> bool:
    """Whether signals arrive here."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A long task inside of an iteration, such as to compile: a signal does not wait for its end."""
    if not in_main_thread():
        yield
        return
    before, Signals.at_once = Signals.at_once, True
    try:
        if Signals.present and Signals.present.came:
            Signals.present.interrupt()
        yield
    finally:
        Signals.at_once = before


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """While it is entered, SIGTERM does what SIGINT does: it raises KeyboardInterrupt."""
    before = {n: signal.signal(n, signal.default_int_handler) for n in (NUMBERS if in_main_thread() else ())}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
