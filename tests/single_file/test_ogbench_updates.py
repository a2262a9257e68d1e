"""One whole update of each goal-conditioned method against OGBench's official code, and OTA's.

`ogbench_updates.json` holds what the official classes computed in float64, from weights and batches that are formulas:
losses, sums and first elements of each gradient, of each parameter after the step, and of each target. It names the
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

from envs import Task

STORED = json.loads((Path(__file__).parent / "ogbench_updates.json").read_text())
TASK = Task("made", (3,), 2, False, (-1.0, -1.0), (1.0, 1.0), 0)
SMALL: dict[str, Any] = {"hidden": (8, 8), "dataset": "local/pointmaze-medium-navigate-v0"}
# the name in the file -> script and arguments
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "gcbc": ("gcbc", {}),
    "gcivl": ("gcivl", {}),
    "gciql_ddpgbc": ("gciql", {}),
    "gciql_awr": ("gciql", {"actor_loss": "awr", "alpha": 3.0}),
    "crl_ddpgbc": ("crl", {"latent_size": 6}),
    "crl_awr": ("crl", {"latent_size": 6, "actor_loss": "awr", "alpha": 3.0}),
    "qrl_iqe_ddpgbc": ("qrl", {"latent_size": 16}),
    "qrl_iqe_awr": ("qrl", {"latent_size": 16, "actor_loss": "awr", "alpha": 3.0}),
    "qrl_mrn_ddpgbc": ("qrl", {"latent_size": 16, "quasimetric": "mrn"}),
    "hiql": ("hiql", {"representation_size": 4}),
    "ota": ("ota", {"representation_size": 4}),
}
# ours -> theirs, by the name of the loss
LOSSES = {
    "gcbc": {"actor_loss": "actor/actor_loss"},
    "gcivl": {"value_loss": "value/value_loss", "actor_loss": "actor/actor_loss"},
    "gciql": {"value_loss": "value/value_loss", "critic_loss": "critic/critic_loss", "actor_loss": "actor/actor_loss"},
    "crl": {"critic_loss": "critic/contrastive_loss", "actor_loss": "actor/actor_loss"},
    "qrl": {"distance_loss": "value/total_loss", "violation": "value/d_pos_loss", "actor_loss": "actor/actor_loss"},
    "hiql": {
        "value_loss": "value/value_loss", "low_loss": "low_actor/actor_loss", "high_loss": "high_actor/actor_loss",
    },
    "ota": {
        "value_loss": "low_value/low_value_loss", "high_value_loss": "high_value/high_value_loss",
        "low_loss": "low_actor/actor_loss", "high_loss": "high_actor/actor_loss",
    },
}  # fmt: skip
MODULES = {"goal_rep": "phi", "low_actor": "low", "high_actor": "high", "low_value": "value"}


def parameter(agent: Any, path: str) -> Tensor:
    """Our parameter [R, ...] for the path of one of theirs; targets have theirs."""
    top, *inner, last = path.removeprefix("modules_").split("/")
    if top == "lam":
        return agent.log_multiplier
    target = top.startswith("target_")
    name = MODULES.get(top.removeprefix("target_"), top.removeprefix("target_"))
    if hasattr(agent, "distance") and name == "value":
        name = "distance"
    module = getattr(agent, f"target_{name}").net if target else getattr(agent, name)
    if inner[0] == "alpha":
        return module.raw_kappa
    net = getattr(module, inner[0] if inner[0] in ("phi", "psi") else "net")
    layer, _, number = inner[-1].rpartition("_")
    if inner[-1] == "mean_net" or (layer == "Dense" and int(number) == len(net.hidden)):
        found = net.out
    else:
        found = net.hidden[int(number)][0] if layer == "Dense" else net.norms[int(number)]
    return found.bias if last == "bias" else found.weight


def reordered(method: str, x: Tensor, back: bool = False) -> Tensor:
    """A tensor of theirs with the latents in our order, or the other way round.

    The eight dimensions of one of IQE's two components are neighbours there, and every second one here.
    """
    for dim, size in enumerate(x.shape):
        if "iqe" in method and size >= 16:  # the 16 latents, which actions may follow
            order = torch.cat([torch.arange(16).view(2, 8).T.flatten(), torch.arange(16, size)])
            x = x.index_select(dim, order.argsort() if back else order)
    return x


def values(kind: str, shape: list[int], n: int, weights: dict[str, Any]) -> Tensor:
    """Weights by the formulas that the file states."""
    e, n = np.arange(int(np.prod(shape))), n + weights["n_offset"]
    formulas = {
        "kernel": lambda: weights["kernel_amp"] * np.sin(1.7 * e + 2.3 * n + 0.5) / np.sqrt(shape[-2]),
        "bias": lambda: weights["bias_amp"] * np.sin(1.3 * e + 0.7 * n + 0.2),
        "ln_scale": lambda: 1 + 0.1 * np.sin(0.9 * e + n),
        "ln_bias": lambda: 0.05 * np.sin(1.1 * e + n),
        "scalar": lambda: np.array([0.1 * np.sin(n + 1)]),
    }
    return torch.as_tensor(formulas[kind]())


def batch_of(script: str, strong: bool) -> Any:
    """The batch of the file's formulas, the same for two runs."""
    b, d, a = np.arange(5)[:, None], np.arange(3), np.arange(2)
    obs = np.sin(0.7 * b + 1.1 * d)
    arrays = {
        "obs": obs,
        "action": 0.9 * np.sin(1.9 * b + 0.8 * a),
        "next_obs": obs + (1.5 if strong else 0.1) * np.cos(b + 2 * d),
        "value_goal": np.cos(0.9 * b + 0.6 * d),
        "goal": np.cos(0.5 * b + 1.3 * d + 0.4),
        "subgoal": np.sin(0.3 * b + 1.7 * d),
        "high_goal": np.cos(1.1 * b + 0.2 * d),
        "target": np.sin(1.3 * b + 0.4 * d + 0.1),
        "reward": np.where(b[:, 0] == 2, 0.0, -1.0),
        "mask": np.where(b[:, 0] == 2, 0.0, 1.0),
        "high_value_goal": np.sin(0.6 * b + 0.9 * d + 0.3),
        "option_end": obs + 0.4 * np.cos(0.8 * b + 1.5 * d + 0.2),
        "high_reward": np.where(b[:, 0] == 1, 0.0, -1.0),
        "high_mask": np.where(b[:, 0] == 1, 0.0, 1.0),
    }
    kind = torch.get_default_dtype()
    x = {n: torch.as_tensor(array, dtype=kind).expand(2, *array.shape).clone() for n, array in arrays.items()}
    module = module_of(script)
    if script in ("hiql", "ota"):
        value = module.Goal(x["value_goal"], x["reward"], x["mask"])
        options = [x["option_end"], module.Goal(x["high_value_goal"], x["high_reward"], x["high_mask"])]
        ways = [x["subgoal"], x["high_goal"], x["target"]]
        return module.Batch(x["obs"], x["action"], x["next_obs"], value, *(options if script == "ota" else []), *ways)
    if script == "gcbc":
        return module.Batch(x["obs"], x["action"], x["goal"])
    return module.Transitions(*(x[field] for field in module.Transitions._fields))


def with_stored_weights(method: str, stored: dict[str, Any]) -> Any:
    """An agent of two runs whose weights are the official ones."""
    script, overrides = METHODS[method]
    agent = agent_type(script)(module_of(script).Args(**SMALL, **overrides), TASK, (0, 1))
    kinds = {leaf["path"]: leaf for leaf in stored["leaves"]}
    with torch.no_grad():
        for leaf in stored["leaves"] + stored["target_leaves"]:
            like = kinds[leaf["path"].replace("modules_target_", "modules_")]
            ours = parameter(agent, leaf["path"])
            assert ours[0].numel() == int(np.prod(like["shape"])), leaf["path"]
            theirs = values(like["kind"], like["shape"], leaf["n"], stored["weights"]).view(like["shape"])
            ours.copy_(reordered(method, theirs).view(ours[0].shape))
    return agent


@pytest.mark.parametrize("method", METHODS)
def test_losses_in_float32_are_the_official_ones(method):
    script, stored = METHODS[method][0], STORED["agents"][method]
    agent = with_stored_weights(method, stored)
    metrics = agent.update(batch_of(script, False))
    for ours, theirs in LOSSES[script].items():
        assert metrics[ours].dtype == torch.float32
        assert metrics[ours].tolist() == pytest.approx([stored["losses"][theirs]] * 2, rel=3e-6)  # CRL's needs it


@pytest.mark.parametrize("setting", ["agents", "strong"])
@pytest.mark.parametrize("method", METHODS)
def test_an_update_is_the_official_one(method, setting, float64):
    script = METHODS[method][0]
    stored = STORED["agents"][method] | STORED[setting][method]
    agent = with_stored_weights(method, stored)
    seen: dict[int, Tensor] = {}
    step = agent.adam.step

    def noted(gradients, active=None):
        seen.update({id(p): g for p, g in zip(agent.adam.variables, gradients, strict=True)})
        step(gradients, active)

    agent.adam.step = noted
    metrics = agent.update(batch_of(script, setting == "strong"))

    for ours, theirs in LOSSES[script].items():
        assert metrics[ours].tolist() == pytest.approx([stored["losses"][theirs]] * 2, rel=1e-8)
    assert len(seen) == len(stored["leaves"])
    for leaf, gradient, after in zip(stored["leaves"], stored["gradients"], stored["after"], strict=True):
        ours = parameter(agent, leaf["path"])
        g = reordered(method, seen[id(ours)][1], back=True).flatten()
        found = [g.sum().item(), g.square().sum().item(), *g[:4].tolist()]
        assert found == pytest.approx(gradient, rel=1e-6, abs=1e-8), leaf["path"]
        p = reordered(method, ours.detach()[1], back=True).flatten()
        assert [p.sum().item(), *p[:4].tolist()] == pytest.approx(after, rel=1e-7, abs=1e-7), leaf["path"]
    for leaf, after in zip(stored["target_leaves"], stored["target_after"], strict=True):
        p = parameter(agent, leaf["path"])[1].flatten()
        assert [p.sum().item(), *p[:4].tolist()] == pytest.approx(after, rel=1e-8, abs=1e-8), leaf["path"]
