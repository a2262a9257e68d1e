"""Three updates of IQL, XQL, f-DVL and ReCOIL against the official code of each.

`dual_updates.json` holds what that code computed in float64, from weights and batches that are formulas, and names the
commits that were run. "strong" weights make clips, minima and the signs of advantages fall on both sides.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripts import agent_type, module_of
from torch import Tensor

from algos.replay import Batch
from envs import Task

STORED = json.loads((Path(__file__).parent / "dual_updates.json").read_text())["cases"]
TASK = Task("made", (3,), 2, False, (-1.0, -1.0), (1.0, 1.0), 50)
LOSSES = ("value_loss", "actor_loss", "critic_loss")
# the name in the file -> script and arguments
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "iql": ("iql", {}),
    "xql": ("xql", {}),
    "xql_clipped": ("xql", {"beta": 0.5, "clip": 0.5, "value_updates": 3}),
    "f_dvl_chi2": ("f_dvl", {}),
    "f_dvl_tv": ("f_dvl", {"f": "tv"}),
    "recoil": ("recoil", {}),
    "recoil_norm": ("recoil", {"scale": 3.0, "clip": 0.5, "layer_norm": "on"}),
}
SMALL = {"dataset": "local/hopper-medium-replay-v0", "hidden": (8, 6), "total_steps": 10, "batch_size": 5}


def parameter(agent: Any, path: str) -> Tensor:
    """Our parameter of both runs, [2, ...], for the path of one of theirs."""
    top, *inner, last = path.split("/")
    if last == "log_stds":
        return agent.actor.log_std
    net = agent.target_critic.net.net if top == "target_critic" else getattr(agent, top).net
    layer, _, number = inner[-1].rpartition("_")
    is_last = inner[-1] == ("Dense_0" if top == "actor" and len(inner) == 1 else f"Dense_{len(net.hidden)}")
    block = net.out if is_last else net.hidden[int(number)][0 if layer == "Dense" else 1]
    found = block.bias if last == "bias" else block.weight
    return found[:, int(inner[0][-1])] if "critic" in top else found


def weights(path: str, shape: torch.Size, number: int, amp: float) -> Tensor:
    """Weights by the formulas that the file states, `number` being its n."""
    e, last = np.arange(shape.numel()), path.rpartition("/")[2]
    formulas = {
        "kernel": lambda: amp * np.sin(1.7 * e + 2.3 * number + 0.5) / np.sqrt(shape[-2]),
        "scale": lambda: 1 + 0.1 * np.sin(0.9 * e + number),
        "log_stds": lambda: 0.3 * np.sin(e + 1.0),
        "bias": lambda: 0.1 * amp * np.sin(1.3 * e + 0.7 * number + 0.2),
    }
    return torch.as_tensor(formulas[last]()).view(shape)


def batch_of(step: int, phase: float = 0.0) -> Batch:
    """The batch of the file's formulas, the same for two runs."""
    b, d, a, p = np.arange(5)[:, None], np.arange(3), np.arange(2), phase + 0.3 * step
    obs, kind = np.sin(0.7 * b + 1.1 * d + p), torch.get_default_dtype()
    arrays = [
        obs,
        0.9 * np.sin(1.9 * b + 0.8 * a + p),
        2 * np.sin(1.3 * b[:, 0] + p),
        obs + 0.4 * np.cos(b + 2 * d + p),
        np.where(b[:, 0] == 2, 1.0, 0.0),
    ]
    return Batch(*(torch.as_tensor(array, dtype=kind).expand(2, *array.shape).clone() for array in arrays))


def updated(case: str, strong: bool) -> tuple[Any, list[dict[str, Tensor]], dict[str, Any]]:
    """An agent of two runs after the updates, their metrics, and what is stored of the official one."""
    script, overrides = CASES[case]
    stored = STORED[case + "_strong" * strong]
    agent = agent_type(script)(module_of(script).Args(**SMALL, **overrides), TASK, (0, 1))
    with torch.no_grad():
        for i, top in enumerate(("actor", "critic", "value", "target_critic")):
            for n, path in enumerate(path for path in stored["after"] if path.startswith(f"{top}/")):
                ours = parameter(agent, path)
                ours.copy_(weights(path, ours[0].shape, 20 * i + n, 6.0 if strong else 1.0))
    draws = module_of(script).Draws(*[None] * len(module_of(script).Draws._fields))
    expert = [[batch_of(step, 1.0)] if script == "recoil" else [] for step in range(3)]
    return agent, [agent.update(batch_of(step), *expert[step], draws) for step in range(3)], stored


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_updates_are_the_official_ones(case, strong, float64):
    agent, metrics, stored = updated(case, strong)
    for ours, theirs in zip(metrics, stored["losses"], strict=True):
        for name, loss in zip(LOSSES, theirs, strict=True):
            assert ours[name].tolist() == pytest.approx([loss] * 2, rel=1e-7), name
    ours = sum(p.numel() for net in (agent.actor, agent.critic, agent.value) for p in net.parameters())
    told = [path for path in stored["after"] if not path.startswith("target")]
    assert ours == sum(parameter(agent, path).numel() for path in told)  # every parameter is compared
    for path, after in stored["after"].items():
        p = parameter(agent, path).detach()[1].flatten()
        assert [p.sum().item(), *p[:3].tolist()] == pytest.approx(after, rel=1e-7, abs=1e-8), path


@pytest.mark.parametrize("case", CASES)
def test_losses_in_float32_are_the_official_ones(case):
    _, metrics, stored = updated(case, strong=False)
    for ours, theirs in zip(metrics, stored["losses"], strict=True):
        for name, loss in zip(LOSSES, theirs, strict=True):
            assert ours[name].dtype == torch.float32
            assert ours[name].tolist() == pytest.approx([loss] * 2, rel=1e-4), name
