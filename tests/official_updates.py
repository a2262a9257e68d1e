"""What tests of updates against stored numbers of official code share: the formulas of weights and batches."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algos.replay import Batch


def stored_updates(name: str) -> dict[str, Any]:
    """The cases in a file, which also states the formulas and the commits that were run."""
    return json.loads((Path(__file__).parent / "single_file" / f"{name}_updates.json").read_text())["cases"]


def for_two(array: np.ndarray) -> Tensor:
    """An array for two runs: [...] -> [2, ...]."""
    return torch.as_tensor(array, dtype=torch.get_default_dtype()).expand(2, *array.shape).clone()


def transitions(
    step: int, rows: int, phase: float = 0.0, low: Sequence[float] = (-1, -1), high: Sequence[float] = (1, 1)
) -> Batch:
    """The batch of an update for two runs; the third transition is terminal."""
    b, d, a, p = np.arange(rows)[:, None], np.arange(3), np.arange(2), phase + 0.3 * step
    centre, half = (np.array(high) + low) / 2, (np.array(high) - low) / 2
    obs, action = np.sin(0.7 * b + 1.1 * d + p), centre + 0.9 * half * np.sin(1.9 * b + 0.8 * a + p)
    reward, terminated = 2 * np.sin(1.3 * b[:, 0] + p), np.where(b[:, 0] == 2, 1.0, 0.0)
    return Batch(*map(for_two, (obs, action, reward, obs + 0.4 * np.cos(b + 2 * d + p), terminated)))


def kernel(shape: torch.Size, number: int, amp: float, inputs: int) -> Tensor:
    """The weights of a layer with so many inputs, the parameter with this number in its network."""
    e = np.arange(shape.numel())
    return torch.as_tensor(amp * np.sin(1.7 * e + 2.3 * number + 0.5) / np.sqrt(inputs)).view(shape)


def bias(shape: torch.Size, number: int, amp: float) -> Tensor:
    """The biases of a layer, the parameter with this number in its network."""
    e = np.arange(shape.numel())
    return torch.as_tensor(0.1 * amp * np.sin(1.3 * e + 0.7 * number + 0.2)).view(shape)


def told(x: Tensor) -> list[float]:
    """What is stored of a tensor: its sum and its first three elements."""
    x = x.detach().flatten()
    return [x.sum().item(), *x[:3].tolist()]
