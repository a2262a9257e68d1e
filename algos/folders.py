"""Folders that scripts and commands write to."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from algos.errors import UserError, warn

LONGEST = 200  # bytes of a part of a path; most file systems take 255


def writable(folder: Path, flag: str = "--out") -> Path:
    """The folder, which is made if it is missing; raises UserError if no file can be written there."""
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise UserError(f"{flag}: cannot write to {folder}: {error.strerror or error}") from None
    return folder


@contextlib.contextmanager
def alone(lock: Path, does: str, patience: float = 1) -> Iterator[None]:
    """Within this context, no other process has the same lock; a warning says that another `does` what takes long.

    The warning comes after seconds of `patience`. Raises OSError if the file cannot be made or opened, and
    NotImplementedError where the file system has no locks.
    """
    held = FileLock(lock)
    try:
        until_done = held.acquire(timeout=patience)
    except Timeout:
        warn(f"another process {does}, and this one waits for it")
        until_done = held.acquire()
    with until_done:
        yield


def holder(lock: Path) -> str:
    """Who holds a lock, and what to do if it was left behind, in brackets; empty where the system drops locks itself.

    Where a file system has no locks, the lock is a file with the number of its process and the name of the machine.
    """
    with contextlib.suppress(OSError):
        words = lock.read_text(encoding="utf-8", errors="replace").split()
        if len(words) > 1:
            return f" (process {words[0]} on {words[1]}; if that one is gone, remove {lock})"
    return ""


def nearest(path: Path) -> Path:
    """The part of a path that is there: itself, or before it is made the nearest one above it."""
    return next(part for part in (path, *path.absolute().parents) if os.path.lexists(part))


def check_path(path: Path, flag: str = "--out") -> None:
    """Raises UserError if there can be no file or folder of that name, such as one that is too long."""
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{flag}: cannot use {path}: {getattr(error, 'strerror', error)}") from None


def check_usable(folder: Path, flag: str = "--out") -> None:
    """Raises UserError if a folder is not there and cannot be made, or cannot be written to; nothing is made."""
    check_path(folder, flag)
    place = nearest(folder)
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise UserError(f"{flag}: cannot use {folder}: {place} is not a folder that can be written to")


def check_file(path: Path, flag: str = "--out") -> None:
    """Raises UserError if a file cannot be written; nothing is made."""
    check_usable(path.parent, flag)
    for name in (path, path.with_name(f"{path.name}.part")):  # the latter while it is written
        check_path(name, flag)
    if path.is_dir():
        raise UserError(f"{flag}: {path} is a folder")


def checked_part(option: str, name: str) -> str:
    """Gives back a name that can be one part of a path; raises UserError, with the option, for any other."""
    wrong = name in ("", ".", "..") or name.startswith("-") or len(name.encode(errors="replace")) > LONGEST
    if wrong or "/" in name or "\\" in name or not name.isprintable():
        shown = name if len(name) <= 40 else f"{name[:40]}…"
        raise UserError(
            f"{option} names a folder, so it takes 1 to {LONGEST} printable characters without slashes, not a dot "
            f"or two alone, and no - at the beginning; got {shown!r}"
        )
    return name
