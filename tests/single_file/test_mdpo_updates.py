"""Three updates of both forms of MDPO against the authors' official code.

`mdpo_updates.json` holds what that code computed in float64, from weights, batches and noise that are formulas, and
names the commits that were run. Off-policy, "strong" weights and noise make the clips of log standard deviations, the
floor of densities and the smaller action value act in some places and not in others. On-policy, the gradient's norm is
above its bound in some steps of "strong", and the clip of values acts in "strong_fast".
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mdpo_off_policy
import mdpo_on_policy
import numpy as np
import pytest
import torch
from official_updates import for_two, noted, set_weights, stored_updates, summary, transitions
from torch import Tensor

from algos.optim import BETA2, Adam
from algos.rollout import Rollout
from envs import Task

STORED = stored_updates("mdpo")
OFF, ON = STORED["off_policy"], STORED["on_policy"]
TASK = Task("made", (3,), 2, False, (-0.5, -2.0), (0.5, 2.0), 50)
ROWS, STEPS, HIDDEN = 6, 300, (8, 6)
HEADS = ("mean", "log_std")
WEIGHTS = {"equal": (0.2, 0.2), "below": (0.3, 0.5)}  # c and lambda


def networks(agent: Any) -> dict[str, Any]:
    """Our networks by the names in the file."""
    if isinstance(agent, mdpo_on_policy.MDPO):
        return {"policy": agent.actor.net, "value": agent.critic.net}
    return {
        "policy": agent.actor.net, "q1": agent.critic.twins, "q2": agent.critic.twins, "value": agent.critic.state.net,
        "target_value": agent.target_value.net.net, "old_policy": agent.old_actor.net.net,
    }  # fmt: skip


def place(agent: Any, path: str) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Our parameter for a path in the file, and what cuts the part of this path out of it, or out of its moment."""
    if path == "policy/log_std":
        return agent.actor.log_std, lambda x: x
    name, layer, kind = path.split("/")
    net = networks(agent)[name]
    found = [*(block[0] for block in net.hidden), net.out][-1 if layer in HEADS else int(layer)]
    p = found.bias if kind == "bias" else found.weight
    if layer in HEADS:  # theirs has one layer for the mean and one for the spread
        return p, lambda x: x.chunk(2, -1)[HEADS.index(layer)]
    return p, (lambda x: x[:, int(name[1]) - 1]) if name.startswith("q") else (lambda x: x)


def parameter(agent: Any, path: str) -> Tensor:
    """Our parameter of both runs for a path in the file, [2, ...]: a view."""
    p, cut = place(agent, path)
    return cut(p)


def moment(agent: Any, path: str) -> Tensor:
    """Adam's first moment of our parameter of both runs for a path in the file."""
    p, cut = place(agent, path)
    (found,) = (
        adam.get_buffer(name) for adam in (agent.actor_adam, agent.critic_adam)
        for name, variable in zip(adam.names[0], adam.variables, strict=True) if variable is p
    )  # fmt: skip
    return cut(found)


def follow_tensorflow(adam: Adam) -> None:
    """Lets this Adam add epsilon before it corrects the bias, and add nothing to norms that it bounds, as theirs do."""
    inner, eps, bound = adam.step, adam.eps, adam.max_norm

    def step(gradients: list[Tensor], active: Tensor | None = None) -> None:
        adam.eps = eps / math.sqrt(1 - BETA2 ** (adam.steps.item() + 1))
        if bound is not None:
            norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
            adam.max_norm = bound * (1 + 1e-6 / norm)
        inner(gradients, active)

    adam.step = step  # type: ignore[method-assign]


def assert_same(agent: Any, stored: dict[str, Any]) -> None:
    """All parameters and Adam's first moments are those of the file."""
    after, moments = stored["after"], stored["moments"]
    learned = sum(p.numel() for p in agent.parameters() if p.requires_grad)
    assert learned == sum(parameter(agent, path).numel() for path in moments)  # every parameter is compared
    for name, found, values in (("parameter", parameter, after), ("moment", moment, moments)):
        for path, theirs in values.items():
            assert summary(found(agent, path)[1]) == pytest.approx(theirs, rel=1e-7, abs=1e-9), f"{name} {path}"


# -- off-policy --------------------------------------------------------------------------------------------------------


def off_updated(case: str) -> tuple[mdpo_off_policy.MDPO, list[dict[str, Tensor]]]:
    """An off-policy agent of two runs after the updates, and the metrics of each of them."""
    kind, _, more = case.partition("_")
    c, entropy_weight = WEIGHTS.get(more.partition("_")[0], (1.0, 0.2))
    args = mdpo_off_policy.Args(
        hidden=HIDDEN, batch_size=ROWS, q=1.0 if kind == "kl" else 1.4, kl_weight=c, entropy_weight=entropy_weight,
        value_loss="broadcast", refresh_every=3,
    )  # fmt: skip
    agent, strong = mdpo_off_policy.MDPO(args, TASK, (0, 1)), more.endswith("strong")

    def amp(path: str) -> float:
        if not strong:
            return 1.0
        if path.startswith("policy/log_std"):
            return 16.0 if kind == "kl" else 10.0
        return 3.0 if path.startswith("old") else 4.0

    set_weights(OFF[case]["after"], partial(parameter, agent), amp)
    follow_tensorflow(agent.actor_adam)
    follow_tensorflow(agent.critic_adam)
    metrics = []
    for step in range(3):
        b, a = np.arange(ROWS)[:, None], np.arange(2)
        noise = (7.0 if strong else 1.5) * np.sin(2.1 * b + 1.4 * a + 0.3 * step + 0.3)
        batch, draws = transitions(step, ROWS, low=TASK.low, high=TASK.high), mdpo_off_policy.Draws(for_two(noise))
        metrics.append(agent.update(batch, draws, step % args.refresh_every == 0))
    return agent, metrics


def assert_same_off_metrics(metrics: list[dict[str, Tensor]], case: str, rel: float) -> None:
    for ours, theirs in zip(metrics, OFF[case]["updates"], strict=True):
        for name in ("policy_loss", "value_loss", "value"):
            assert ours[name].dtype == torch.get_default_dtype()
            assert ours[name].tolist() == pytest.approx([theirs[name]] * 2, rel=rel), name
        assert ours["action_loss"].tolist() == pytest.approx([sum(theirs["action_losses"])] * 2, rel=rel)


@pytest.mark.parametrize("case", OFF)
def test_off_policy_updates_are_the_official_ones(case, float64):
    agent, metrics = off_updated(case)
    assert_same_off_metrics(metrics, case, 1e-7)
    assert_same(agent, OFF[case])


@pytest.mark.parametrize("case", ["kl", "tsallis"])
def test_off_policy_losses_in_float32_are_the_official_ones(case):
    assert_same_off_metrics(off_updated(case)[1], case, 1e-5)


# -- on-policy ---------------------------------------------------------------------------------------------------------


def fill(rollout: Rollout, number: int) -> None:
    """Puts the steps of an iteration into a rollout, by the file's formulas."""
    i, d, a = np.arange(STEPS * number, STEPS * (number + 1))[:, None, None], np.arange(3), np.arange(2)
    ended = np.where(i[..., 0] % 23 == 0, 1.0, 0.0)
    rollout.obs.copy_(for_two(np.sin(0.7 * i + 1.1 * d)))
    rollout.action.copy_(for_two(1.5 * np.sin(1.9 * i + 0.8 * a)))
    outcome = (2 * np.sin(1.3 * i[..., 0]), ended, ended, np.sin(0.7 * (i + 1) + 1.1 * d))
    for part, array in zip(rollout.outcome, outcome, strict=True):
        part.copy_(for_two(array))


def on_updated(case: str) -> tuple[mdpo_on_policy.MDPO, list[dict[str, Any]]]:
    """An on-policy agent of two runs after the updates, and the losses and metrics of each of them."""
    rate, strong = 0.03 if case.endswith("fast") else 3e-4, case.startswith("strong")
    args = mdpo_on_policy.Args(
        hidden=HIDDEN, batch_size=128, horizon=STEPS, total_steps=1_000, policy_steps=4, critic_epochs=2, lr=rate,
        critic_lr=rate, normalise_obs=False, normalise_reward=False,
    )  # fmt: skip
    agent = mdpo_on_policy.MDPO(args, TASK, (0, 1))

    def amp(path: str) -> float:
        return (2.0 if path.startswith("policy") else 4.0) if strong else 1.0

    set_weights(ON[case]["after"], partial(parameter, agent), amp)
    seen = noted(agent, ("policy_loss", "value_loss"))
    for adam in (agent.actor_adam, agent.critic_adam):
        follow_tensorflow(adam)
    rollout, updates = Rollout(2, STEPS, 1, TASK), []
    for number in range(3):
        for losses in seen.values():
            losses.clear()
        fill(rollout, number)
        e, m = np.arange(STEPS), np.arange(2 * number, 2 * number + 2)[:, None]
        metrics = agent.update(rollout, for_two(np.sin(2.3 * e + 1.7 * m)))
        updates.append({"kl": metrics["kl"], "step_size": metrics["step_size"]} | {k: [*v] for k, v in seen.items()})
    return agent, updates


def assert_same_on_losses(updates: list[dict[str, Any]], case: str, rel: float, tiny: float) -> None:
    for ours, theirs in zip(updates, ON[case]["updates"], strict=True):
        for name in ("policy_loss", "value_loss"):
            for loss, their_loss in zip(ours[name], theirs[f"{name[:-4]}losses"], strict=True):
                assert loss.dtype == torch.get_default_dtype()
                assert loss.tolist() == pytest.approx([their_loss] * 2, rel=rel, abs=tiny), name


@pytest.mark.parametrize("case", ON)
def test_on_policy_updates_are_the_official_ones(case, float64):
    agent, updates = on_updated(case)
    assert_same_on_losses(updates, case, 1e-7, 1e-12)
    for ours, theirs in zip(updates, ON[case]["updates"], strict=True):
        for name in ("kl", "step_size"):
            assert ours[name].tolist() == pytest.approx([theirs[name]] * 2, rel=1e-7), name
    assert_same(agent, ON[case])


def test_on_policy_losses_in_float32_are_the_official_ones():
    assert_same_on_losses(on_updated("moderate")[1], "moderate", 1e-5, 1e-6)
