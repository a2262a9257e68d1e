"""Keeps the arrays of datasets with many episodes, of which Minari's format makes some take minutes to read."""

import contextlib
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from algos.checkpoint import write_atomically
from algos.data.build import Builder
from algos.stored import regular

FORM = "1"  # to be changed when other rows are read from the same files


def read_once(builder: Builder, read: Callable[[], None], folder: Path, place: Path) -> None:
    """Fills a builder by `read`, which reads the files in `folder`, or from `place` if these are as they were then.

    One of several processes reads, and the others wait for it. A warning says so if nothing can be kept at `place`.
    """
    source, lost = _state_of(folder), None  # why nothing can be kept
    with contextlib.ExitStack() as stack:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(f"{place}.lock"))
        except (OSError, NotImplementedError) as error:  # the latter where the file system has no locks
            lost = error
        if _restore(builder, place, source):
            return
        read()
        try:
            if not lost:
                _keep(builder, place, source)
        except OSError as error:
            lost = error
    if lost:
        warnings.warn(f"what was read of {folder} cannot be kept ({lost}) and is read anew each time", stacklevel=2)


def _state_of(folder: Path) -> str:
    """A digest of the names, sizes and times of all files in a folder."""
    digest = hashlib.sha256(FORM.encode())
    for path in sorted(folder.rglob("*")):
        stat = path.stat()
        digest.update(f"{path.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _keep(builder: Builder, place: Path, source: str) -> None:
    """Writes all that a builder was given."""
    arrays = {"rows": builder.rows[: builder.filled], "index": builder.index[: builder.count]}
    if builder.states:
        arrays["states"] = np.concatenate(builder.states)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    write_atomically(place, save(tensors, {"source": source}))


def _restore(builder: Builder, place: Path, source: str) -> bool:
    """Whether a builder has what was kept; False if nothing was, if it is damaged, or if it came from other files."""
    try:
        with safe_open(regular(place), "pt") as file:
            if (file.metadata() or {}).get("source") != source:
                return False
            arrays = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118  no mapping
        rows, index = arrays["rows"], arrays["index"]
    except (OSError, ValueError, LookupError, SafetensorError):
        return False
    if rows.shape[1:] != builder.rows.shape[1:]:
        return False
    builder.rows, builder.index, builder.filled, builder.count = rows, index, len(rows), len(index)
    builder.states = [arrays["states"]] if "states" in arrays else []
    return True
