"""Keeps what was read of Minari's datasets with many episodes, which can take minutes."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

from algos.checkpoint import written_aside
from algos.data.build import Builder
from algos.errors import warn
from algos.folders import alone
from algos.stored import regular

FORM = 1  # change it whenever other rows come of the same files


def read_once(builder: Builder, read: Callable[[], None], folder: Path, file: Path) -> None:
    """Fills a builder by `read`, which reads a dataset's folder, or by what `file` keeps of the same state of it.

    One of several processes reads, and the others wait for it. A warning says so if nothing can be kept.
    """
    source = ""
    failure: Exception | None = None
    with contextlib.ExitStack() as stack:
        try:
            source = _state_of(folder)
            file.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(alone(Path(f"{file}.lock"), f"reads {folder}"))
        except (OSError, NotImplementedError) as error:  # the latter where the file system has no locks
            failure = error
        if source and _restore(builder, file, source):
            return
        read()
        try:
            if not failure:
                _keep(builder, file, source)
        except OSError as error:
            failure = error
    if failure:
        warn(f"what was read of {folder} was not kept for the next run ({failure})")


def _state_of(folder: Path) -> str:
    """A digest of the names, sizes and times of all files in a folder, and of the versions of what reads them."""
    digest = hashlib.sha256(f"{FORM} {version('minari')} {version('gymnasium')}\n".encode())
    for place, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for path in (Path(place, name) for name in sorted(names)):
            stat = path.stat()
            digest.update(f"{path.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _keep(builder: Builder, file: Path, source: str) -> None:
    """Writes all that a builder was given."""
    rows, index = builder.rows[: builder.filled], builder.index[: builder.count]
    states = np.concatenate(builder.states or [np.zeros((0, 0))])
    with written_aside(file) as part, open(part, "wb") as stream:
        np.savez(stream, source=np.array(source), rows=rows, index=index, states=states)


def _restore(builder: Builder, file: Path, source: str) -> bool:
    """Fills a builder with what was kept; False, and nothing else, if that is missing, damaged, or of another state."""
    try:
        with np.load(regular(file), allow_pickle=False) as kept:
            if str(kept["source"]) != source:
                return False
            rows, index, states = kept["rows"], kept["index"], kept["states"]
    except Exception:  # NumPy and zipfile, which checks its sums, have many kinds for a damaged file
        return False
    builder.rows, builder.index, builder.states = rows, index, [states] if len(states) else []
    builder.filled, builder.count = len(rows), len(index)
    return True
