"""Three updates of IQL, XQL, f-DVL and ReCOIL against the official code of each.

`dual_updates.json` holds what that code computed in float64, from weights and batches that are formulas, and names the
commits that were run. "strong" weights make clips, minima and the signs of advantages fall on both sides.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from official_updates import set_weights, stored_updates, summary, transitions, weights
from scripts import agent_type, module_of
from torch import Tensor

from envs import Task

STORED = stored_updates("dual")
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


def weights_of(path: str, shape: torch.Size, number: int, amp: float) -> Tensor:
    """The weights, scales and log standard deviations by the formulas that the file states."""
    e, last = np.arange(shape.numel()), path.rpartition("/")[2]
    if last in ("kernel", "bias"):
        return weights(path, shape, number, amp)
    return torch.as_tensor(1 + 0.1 * np.sin(0.9 * e + number) if last == "scale" else 0.3 * np.sin(e + 1.0)).view(shape)


def updated(case: str, strong: bool) -> tuple[Any, list[dict[str, Tensor]], dict[str, Any]]:
    """An agent of two runs after the updates, their metrics, and what is stored of the official one."""
    script, overrides = CASES[case]
    stored = STORED[case + "_strong" * strong]
    agent = agent_type(script)(module_of(script).Args(**SMALL, **overrides), TASK, (0, 1))
    set_weights(stored["after"], partial(parameter, agent), lambda path: 6.0 if strong else 1.0, values=weights_of)
    draws = module_of(script).Draws(*[None] * len(module_of(script).Draws._fields))
    expert = [[transitions(step, 5, phase=1.0)] if script == "recoil" else [] for step in range(3)]
    return agent, [agent.update(transitions(step, 5), *expert[step], draws) for step in range(3)], stored


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_updates_are_the_official_ones(case, strong, float64):
    agent, metrics, stored = updated(case, strong)
    for ours, theirs in zip(metrics, stored["losses"], strict=True):
        for name, loss in zip(LOSSES, theirs, strict=True):
            assert ours[name].tolist() == pytest.approx([loss] * 2, rel=1e-7), name
    ours = sum(p.numel() for net in (agent.actor, agent.critic, agent.value) for p in net.parameters())
    compared = [path for path in stored["after"] if not path.startswith("target")]
    assert ours == sum(parameter(agent, path).numel() for path in compared)  # every parameter is compared
    for path, after in stored["after"].items():
        assert summary(parameter(agent, path)[1]) == pytest.approx(after, rel=1e-7, abs=1e-8), path


@pytest.mark.parametrize("case", CASES)
def test_losses_in_float32_are_the_official_ones(case):
    _, metrics, stored = updated(case, strong=False)
    for ours, theirs in zip(metrics, stored["losses"], strict=True):
        for name, loss in zip(LOSSES, theirs, strict=True):
            assert ours[name].dtype == torch.float32
            assert ours[name].tolist() == pytest.approx([loss] * 2, rel=1e-4), name
