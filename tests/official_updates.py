"""Formulas of weights and batches, for tests of updates against stored numbers of official code."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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


def weights(path: str, shape: torch.Size, number: int, amp: float) -> Tensor:
    """The parameter with this number and path: a kernel is [inputs, outputs], and a weight [outputs, inputs]."""
    if path.endswith(("kernel", "weight")):
        return kernel(shape, number, amp, inputs=shape[-2 if path.endswith("kernel") else -1])
    return bias(shape, number, amp)


@torch.no_grad()
def set_weights(
    paths: Iterable[str],
    parameter: Callable[[str], Tensor],
    amp: Callable[[str], float],
    first: int = 0,
    values: Callable[[str, torch.Size, int, float], Tensor] = weights,
) -> None:
    """Gives an agent of two runs its weights, network by network in the order of the paths.

    `parameter` gives the place of a path, [2, ...]. Numbers begin with `first` in the first network, and 20 higher in
    each of the next.
    """
    networks: dict[str, list[str]] = {}
    for path in paths:
        if "/" in path:
            networks.setdefault(path.partition("/")[0], []).append(path)
    for i, network in enumerate(networks.values()):
        for n, path in enumerate(network):
            ours = parameter(path)
            ours.copy_(values(path, ours[0].shape, first + 20 * i + n, amp(path)))


def noted(agent: Any, names: Iterable[str]) -> dict[str, list[Tensor]]:
    """Lists that grow by what methods of an agent give, or the first part of it, whenever these are called."""
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    for name, values in seen.items():
        setattr(agent, name, noting(getattr(agent, name), values))
    return seen


def noting(method: Callable[..., Any], values: list[Tensor]) -> Callable[..., Any]:
    """A method that adds what it gives to the values."""

    def called(*inputs: Any) -> Any:
        found = method(*inputs)
        values.append((found[0] if isinstance(found, tuple) else found).detach())
        return found

    return called


def assert_step(ours: dict[str, Tensor], theirs: dict[str, float], step: int, rel: float) -> None:
    """What a step of a stream gave is the stored, with both runs; ours knows the size of the TD error only."""
    for name, stored in theirs.items():
        wanted = abs(stored) if name == "td_error" else stored
        for run in ours[name].tolist():
            assert run == pytest.approx(wanted, rel=rel, abs=1e-9), f"{name} of step {step}"


def summary(x: Tensor) -> list[float]:
    """The numbers that are stored of a tensor: its sum and its first three elements."""
    x = x.detach().flatten()
    return [x.sum().item(), *x[:3].tolist()]
