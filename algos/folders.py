"""Folders that commands write to."""

import contextlib
import os
import tempfile
from pathlib import Path

from algos.errors import UserError


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
