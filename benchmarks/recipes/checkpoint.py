"""Reads a checkpoint of single_file/sac.py by the names of its tensors, without the script's own classes."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

ACTOR = "agent/actor.net."  # before the names of the actor's layers: hidden.0.0, hidden.1.0, …, out
REPLAY = "replay/rows."  # before the number of the run whose transitions a tensor holds


def actor_tensors(path: Path, run: int) -> dict[str, Tensor]:
    """`weight.0` [in, out], `bias.0` [out], `weight.1`, … of the actor of one run; the last layer is the output.

    Raises KeyError if the checkpoint has no such actor, and IndexError if it has fewer runs.
    """
    with safe_open(path, "pt") as file:
        weights = [name for name in file.keys() if re.match(rf"{ACTOR}.*\.weight$", name)]  # noqa: SIM118
        if not weights:
            raise KeyError(f"{path.name} has no tensors {ACTOR}*")
        tensors = {}
        for layer, name in enumerate(sorted(weights, key=place_of)):
            weight = file.get_tensor(name)[run]  # [in, out]
            bias = file.get_tensor(name.removesuffix("weight") + "bias")[run]  # [1, out] or [out]
            tensors[f"weight.{layer}"] = weight.contiguous()
            tensors[f"bias.{layer}"] = bias.flatten()
    return tensors


def place_of(name: str) -> tuple[bool, list[int]]:
    """The place of a layer by its name: hidden ones by their numbers, then the output."""
    return ".hidden." not in name, [int(number) for number in re.findall(r"\d+", name)]


def replay_rows(path: Path, run: int) -> NDArray[np.float32]:
    """The transitions [T, O + A + 1 + O + 1] that the replay buffer of one run holds, in the order of time."""
    with safe_open(path, "numpy") as file:
        return file.get_tensor(f"{REPLAY}{run}")
