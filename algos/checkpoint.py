"""Checkpoints that survive a kill at any time: safetensors files with a digest, written aside and renamed.

A checkpoint `<step>.safetensors` counts only with its `<step>.json`, which is written last and holds the file's digest.
The newest two are kept, so that a damaged one can be passed over and the one before it used.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from algos.errors import UserError, describe
from algos.memory import is_lack_of_memory
from algos.stored import CheckpointValues, parsed, regular
from envs.cores import reserving


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file so that a reader, or a kill, finds either the old or the new one."""
    with written_aside(path) as part, open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Gives a path to write a file at, which then replaces `path`; an error leaves nothing there, and names `path`."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    except Exception as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (part, str(part)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


BEFORE = ".before"  # ends the name of a file that a new one of its step is about to replace
# names of all files that are written here, the last of them by safetensors while it saves
OWN = re.compile(r"\d{12}\.(json|safetensors|before)(\.part)?|\.tmp\w+")


class Stateful(Protocol):
    """Something with a state of tensors: a module, random numbers, a replay buffer, environments."""

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor], /) -> Any: ...


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def save(self, step: int, parts: dict[str, Stateful], values: dict[str, Any], keep: int = 2) -> None:
        """Writes the state of all parts, and `values` as JSON; removes all checkpoints but the newest `keep`."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{step:012d}.safetensors"
        tensors = {f"{name}/{key}": t.contiguous() for name, p in parts.items() for key, t in p.state_dict().items()}
        with written_aside(path) as part:
            part.touch()
            mode = part.stat().st_mode
            save_file(tensors, part)
            with contextlib.suppress(OSError):
                part.chmod(mode)  # safetensors lets nobody else read it
            with open(part, "rb+") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            if path.exists():  # an earlier one of this step counts until its .json is replaced
                os.replace(path, path.with_suffix(BEFORE))
        write_atomically(path.with_suffix(".json"), json.dumps({"sha256": digest, **values}).encode())
        self.prune(keep)

    def prune(self, keep: int) -> None:
        """Removes all checkpoints but the newest `keep`, and files that a kill left behind."""
        kept = {name for path in self._newest_first()[:keep] for name in (path.name, path.stem + ".safetensors")}
        for other in self.folder.iterdir():
            if other.name not in kept and OWN.fullmatch(other.name):
                remove(other)

    @reserving()  # a file that is read is mapped
    def load(self, parts: dict[str, Stateful], runs: int) -> tuple[dict[str, Any] | None, list[str]]:
        """Restores the newest checkpoint of so many runs that is sound and has the tensors that the parts take.

        Gives its values, and a sentence for each one that it passed over and removed. The values are None if there is
        no checkpoint at all. Raises UserError if there is none that is sound and fits.
        """
        complaints = []
        for path in self._newest_first():
            file = path.with_suffix(".safetensors")
            try:
                values = parsed(path, CheckpointValues)
                if len(values["done"]) != runs:
                    raise ValueError(f"{path.name} is not of {runs} runs")
                if (before := path.with_suffix(BEFORE)).exists() and digest_of(before) == values["sha256"]:
                    os.replace(before, file)
                if digest_of(file) != values["sha256"]:
                    raise ValueError("its digest does not match")
                state = load_file(file)
            except (OSError, ValueError, SafetensorError) as error:
                complaints.append(f"checkpoint {file} is damaged ({error}) and was passed over")
                continue
            try:
                restore(parts, state, values["final"])
            except Unfit as error:
                complaints.append(f"checkpoint {file} {error} and was passed over")
                continue
            for other in self._newest_first():
                if other > path:
                    remove(other)
            return values, complaints
        if complaints:
            raise UserError(
                f"all checkpoints in {self.folder} are damaged or do not fit this run, such as this one: "
                f"{complaints[0].removesuffix(' and was passed over')}; remove the run's folder and start again, or "
                "choose another --out or --variant"
            )
        return None, []

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.json"), reverse=True)


def remove(path: Path) -> None:
    """Removes whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def digest_of(file: Path) -> str:
    """The digest of a file's bytes."""
    with open(regular(file), "rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


class Unfit(Exception):
    """A checkpoint has other tensors than the run: the message says which, as the end of a sentence."""


def restore(parts: dict[str, Stateful], state: dict[str, Tensor], final: bool) -> None:
    """Gives each part its tensors; a final checkpoint need not have all parts.

    Raises Unfit if there are tensors for no part, or others than a part takes.
    """
    if not final and (late := {key.partition("/")[0] for key in state} - set(parts)):
        raise Unfit(f"has the state of {min(late)!r}: hand it to the run before the training begins")
    for name, part in parts.items():
        tensors = {k[len(name) + 1 :]: v for k, v in state.items() if k.startswith(name + "/")}
        if final and not tensors:
            continue
        try:
            part.load_state_dict(tensors)
            # checkpoints of earlier versions may lack some
            if not forms(tensors).items() <= forms(part.state_dict()).items():
                raise ValueError("other shapes or types")
        except Exception as error:  # each part raises its own kinds for tensors of other names, shapes or types
            if is_lack_of_memory(error) or isinstance(error, torch.AcceleratorError):
                raise
            raise Unfit(f"does not fit the {name} of this version of the code ({describe(error)})") from error


def forms(tensors: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    """The shape and the type of each tensor."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
