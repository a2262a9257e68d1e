"""Checkpoints that survive a kill at any time: safetensors files with a digest, written aside and renamed.

A checkpoint `<step>.safetensors` counts only with its `<step>.json`, which is written last and holds the file's digest.
The newest two are kept, so that a damaged one can be refused and the one before it used.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from algos.errors import UserError


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file so that a reader, or a kill, finds either the old or the new one."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


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
        part = path.with_name(path.name + ".part")
        tensors = {f"{name}/{key}": t.contiguous() for name, p in parts.items() for key, t in p.state_dict().items()}
        save_file(tensors, part)
        with open(part, "rb+") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        os.replace(part, path)
        write_atomically(path.with_suffix(".json"), json.dumps({"sha256": digest, "step": step, **values}).encode())
        kept = {name for path in self._newest_first()[:keep] for name in (path.name, path.stem + ".safetensors")}
        for other in self.folder.iterdir():  # older checkpoints, and files that a kill left behind
            if other.name not in kept:
                other.unlink()

    def load(self, parts: dict[str, Stateful]) -> tuple[dict[str, Any] | None, list[str]]:
        """Restores the newest sound checkpoint; gives its values, and a sentence for each damaged one that it removes.

        The values are None if there is no checkpoint at all. Raises UserError if there are only damaged ones, or if one
        has other tensors than the parts, and ValueError if one has the state of something that is not among the parts.
        """
        complaints = []
        for path in self._newest_first():
            file = path.with_suffix(".safetensors")
            try:
                values = json.loads(path.read_text())
                with open(file, "rb") as data:
                    if hashlib.file_digest(data, "sha256").hexdigest() != values["sha256"]:
                        raise ValueError("its digest does not match")
                state = load_file(file)
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                complaints.append(f"checkpoint {file} is damaged ({error}) and was passed over")
                continue
            if not values["final"] and (late := {key.partition("/")[0] for key in state} - set(parts)):
                raise ValueError(
                    f"{file} has the state of {min(late)!r}: hand it to the run before the training begins"
                )
            for name, part in parts.items():
                tensors = {k[len(name) + 1 :]: v for k, v in state.items() if k.startswith(name + "/")}
                if tensors or not values["final"]:
                    try:
                        part.load_state_dict(tensors)
                    except (RuntimeError, KeyError):  # other names or shapes
                        raise UserError(
                            f"{file} was written by another version of this code, whose {name} held other tensors: "
                            "choose another --out or --variant"
                        ) from None
            for damaged in self._newest_first():
                if damaged > path:
                    damaged.unlink()
            return values, complaints
        if complaints:
            raise UserError(f"all checkpoints in {self.folder} are damaged: remove the run's folder and start again")
        return None, []

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"), reverse=True)
