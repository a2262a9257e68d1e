"""Three updates of DSAC-T against the authors' official code.

`dsac_t_updates.json` holds what that code computed in float64, from weights, batches and noise that are formulas, and
names the commit that was run. In the "strong" case the clips of z and of the sampled target act on either side and not
at all, each critic has the smaller mean in some rows, and log standard deviations of actions exceed their upper bound.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from dsac_t import DSACT, Args, Draws
from official_updates import for_two, noted, set_weights, stored_updates, summary, transitions
from torch import Tensor

from envs import Task

STORED = stored_updates("dsac_t")
TASK = Task("made", (3,), 2, False, (-0.5, -2.0), (0.5, 1.0), 50)
LOSSES = ("critic_loss", "actor_loss", "alpha_loss")


def draws_of(step: int) -> Draws:
    """The noise of the file's formulas."""
    b, a, p = np.arange(5), np.arange(2), 0.3 * step
    return Draws(
        next_action=for_two(1.5 * np.cos(1.7 * b[:, None] + 2.6 * a + p)),
        action=for_two(1.5 * np.sin(2.1 * b[:, None] + 1.4 * a + p + 0.3)),
        returns=for_two(4 * np.sin(1.6 * b + 2.2 * a[:, None] + p)),
    )


def part(path: str, of_actor: list[Any], of_critic: list[Any], log_alpha: Any) -> Tensor:
    """The tensor of both runs, [2, ...], for a path in the file, out of lists in the order of our parameters."""
    if path == "log_alpha":
        return log_alpha
    network, layer, kind = path.split("/")
    i = 2 * int(layer) + (kind == "bias")
    return of_critic[i][:, int(network[-1]) - 1] if "critic" in network else of_actor[i]


def parameter(agent: DSACT, path: str) -> Tensor:
    """Our parameter of both runs for a path in the file."""
    target = path.startswith("target_")
    actor, critic = (agent.target_actor, agent.target_critic) if target else (agent.actor, agent.critic)
    return part(path, list(actor.parameters()), list(critic.parameters()), agent.log_alpha)


def moment(agent: DSACT, path: str) -> Tensor:
    """Adam's first moment of our parameter of both runs for a path in the file."""
    adams = (agent.actor_adam, agent.critic_adam, agent.alpha_adam)
    actor, critic, (alpha,) = ([adam.get_buffer(name) for name in adam.names[0]] for adam in adams)
    return part(path, actor, critic, alpha)


def updated(case: str) -> tuple[DSACT, list[dict[str, Tensor]]]:
    """An agent of two runs after the updates, and the losses and metrics of each of them."""
    agent = DSACT(Args(hidden=(8, 6), batch_size=5), TASK, (0, 1))

    def amp(path: str) -> float:
        return 1.0 if case == "moderate" else 3.0 if "actor" in path else 4.0

    set_weights(STORED[case]["after"], partial(parameter, agent), amp, first=4)
    seen, updates = noted(agent, LOSSES), []
    for step in range(3):
        metrics = agent.update(
            transitions(step, 5, low=TASK.low, high=TASK.high), draws_of(step), step % agent.args.actor_delay == 0
        )
        updates.append(
            metrics
            | {name: losses[-1] for name, losses in seen.items()}
            | {"running_stds": agent.running_std[..., 0].clone()}
        )
    return agent, updates


@pytest.mark.parametrize("case", STORED)
def test_updates_are_the_official_ones(case, float64):
    agent, updates = updated(case)
    for step, (ours, theirs) in enumerate(zip(updates, STORED[case]["updates"], strict=True)):
        # where the actor is not due, the official code computes losses that move nothing
        for name in (*LOSSES, "entropy") if step != 1 else LOSSES[:1]:
            assert ours[name].tolist() == pytest.approx([theirs[name]] * 2, rel=1e-7), name
        assert ours["running_stds"][1].tolist() == pytest.approx(theirs["running_stds"], rel=1e-7)
        assert ours["value"].tolist() == pytest.approx([np.mean(theirs["values"])] * 2, rel=1e-7)
        assert ours["std"].tolist() == pytest.approx([np.mean(theirs["stds"])] * 2, rel=1e-7)

    after, moments = STORED[case]["after"], STORED[case]["moments"]
    learned = sum(p.numel() for p in agent.parameters() if p.requires_grad)
    assert learned == sum(parameter(agent, path).numel() for path in moments)  # every parameter is compared
    assert after.keys() == moments.keys() | {f"target_{path}" for path in moments if path != "log_alpha"}
    for name, found, stored in (("parameter", parameter, after), ("moment", moment, moments)):
        for path, theirs in stored.items():
            assert summary(found(agent, path)[1]) == pytest.approx(theirs, rel=1e-7, abs=1e-8), f"{name} {path}"


def test_losses_in_float32_are_the_official_ones():
    _, updates = updated("moderate")
    for step, (ours, theirs) in enumerate(zip(updates, STORED["moderate"]["updates"], strict=True)):
        for name in LOSSES if step != 1 else LOSSES[:1]:
            assert ours[name].dtype == torch.float32
            assert ours[name].tolist() == pytest.approx([theirs[name]] * 2, rel=1e-5), name
