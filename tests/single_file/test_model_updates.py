"""Three updates of the agents of RAVL, MOPO and MOBILE against the official code of each.

`model_updates.json` holds what that code computed in float64, from weights, batches and noise that are formulas, and
names the commits that were run. The models of the dynamics have no part in it: the next states of MOBILE's penalty are
formulas too. "strong" weights make clips, minima and the bound of MOBILE's targets fall on both sides; with "bound" the
temperature wants to be above 1; with "schedule" the actor's learning rate falls after each update.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from official_updates import bias, for_two, kernel, set_weights, stored_updates, summary, transitions
from scripts import agent_type, module_of
from torch import Tensor

from algos.replay import Batch
from envs import Task

STORED = stored_updates("model")
TASK = Task("made", (3,), 2, False, (-1.0, -1.0), (1.0, 1.0), 50)
ROWS, REAL, ELITES, GUESSES = 6, 2, 3, 5
RAVL = {"hidden": (8, 8, 8), "critics": 4, "eta": 1.0}
TWINS = {"critics": 2, "eta": 5.0}
FAST: dict[str, Any] = {"temperature_lr": 0.1}
FALLING: dict[str, Any] = FAST | {"actor_lr": 0.01, "total_steps": 4, "updates_per_epoch": 1}
# the name in the file -> arguments; the script is the first word of the name
CASES: dict[str, dict[str, Any]] = {
    "ravl": RAVL,
    "ravl_strong": RAVL,
    "ravl_no_eta": RAVL | {"eta": 0.0},
    "ravl_no_eta_strong": RAVL | FAST | {"eta": 0.0},
    "ravl_twin": RAVL | FAST | TWINS,
    "ravl_twin_strong": RAVL | TWINS,
    "mopo": {},
    "mopo_strong": FAST,
    "mopo_bound": FAST,
    "mopo_schedule": FALLING,
    "mobile": {"penalty_weight": 0.5},
    "mobile_strong": FAST | {"penalty_weight": 0.5},
    "mobile_bound": FAST | {"penalty_weight": 5.0},
    "mobile_fixed": {"penalty_weight": 1.5, "temperature": 0.2},
    "mobile_schedule": FALLING | {"penalty_weight": 0.5},
}
SMALL: dict[str, Any] = {
    "dataset": "local/hopper-medium-replay-v0", "hidden": (8, 6), "total_steps": 10, "batch_size": ROWS,
}  # fmt: skip


def network(agent: Any, path: str) -> Any:
    """Our network for the path of a parameter of theirs."""
    top = path.partition("/")[0]
    return {"actor": agent.actor, "critic": agent.critic, "critics": agent.critic}.get(top, agent.target_critic.net)


def parameter(agent: Any, path: str) -> Tensor:
    """Our parameter of both runs in the layout of theirs with this path, [2, ...]: a view."""
    if path == "log_alpha":
        return agent.log_alpha
    top, _, name = path.partition("/")
    *inner, layer, kind = name.split(".")
    net = network(agent, path).net
    layers = [*(block[0] for block in net.hidden), net.out]
    found = getattr(layers[int(layer) // 2 if layer.isdigit() else -1], kind)
    if top == "actor" and not layer.isdigit():  # theirs has one layer for the mean and one for the spread
        found = found.chunk(2, -1)[0 if layer == "mu" else 1]
    if "critics" in top:
        found = found[:, int(inner[0])]
    return found if top.endswith("critic") or kind == "bias" else found.mT


def weights_of(path: str, shape: torch.Size, number: int, amp: float, lower: float) -> Tensor:
    """Weights by the formulas that the file states, `number` being its n."""
    if path.endswith("weight"):
        inputs = shape[-2 if path.partition("/")[0].endswith("critic") else -1]
        return kernel(shape, number, amp, inputs)
    return bias(shape, number, amp) - lower * ("sigma" in path)


def guesses_of(batch: Batch, step: int) -> Tensor:
    """The next states of the model's rows [2, elites, guesses, M, O] by the file's formula."""
    m, s, b, d = np.ogrid[:ELITES, :GUESSES, REAL:ROWS, :3]
    wave = 0.5 * np.sin(0.6 * s + 1.4 * m + 0.9 * b + 1.1 * d + 0.3 * step)
    return batch.obs[:, None, None, REAL:] + for_two(wave)


def noise(number: int, *shape: int) -> np.ndarray:
    """The official code's draw with this number."""
    return 1.5 * np.sin(2.1 * np.arange(int(np.prod(shape))) + 1.9 * number + 0.4).reshape(shape)


def draws_of(script: str, step: int) -> Any:
    """The draws of an update, each in the place that it has in the official code."""
    draws = module_of(script).Draws
    if script == "mobile":
        guessed = noise(3 * step, GUESSES, ELITES, ROWS, 2).swapaxes(0, 1)[:, :, REAL:]
        next_action, action = (for_two(noise(3 * step + i, ROWS, 2)) for i in (1, 2))
        return draws(next_action=next_action, action=action, guess=None, guessed_action=for_two(guessed))
    names = ("next_action", "action") if script == "mopo" else ("temperature_action", "action", "next_action")
    return draws(**{name: for_two(noise(len(names) * step + i, ROWS, 2)) for i, name in enumerate(names)})


def updated(case: str) -> tuple[Any, list[dict[str, Tensor]], dict[str, Any]]:
    """An agent of two runs after the updates, their metrics, and what is stored of the official one."""
    script, stored = case.partition("_")[0], STORED[case]
    more = {"elites": ELITES, "guesses": GUESSES} if script == "mobile" else {}
    agent = agent_type(script)(module_of(script).Args(**SMALL | CASES[case] | more), TASK, (0, 1))
    amp, lower = (6.0 if script == "ravl" else 4.0) if "strong" in case else 1.0, 3.0 if "bound" in case else 0.0
    values = partial(weights_of, lower=lower)
    set_weights(stored["after"], partial(parameter, agent), lambda path: amp, values=values)
    metrics = []
    for step in range(3):
        batch, draws = transitions(step, ROWS), draws_of(script, step)
        guesses = [guesses_of(batch, step)] if script == "mobile" else []
        metrics.append(agent.update(batch, *guesses, draws))
    return agent, metrics, stored


@pytest.mark.parametrize("case", CASES)
def test_updates_are_the_official_ones(case, float64):
    agent, metrics, stored = updated(case)
    for ours, theirs in zip(metrics, stored["losses"], strict=True):
        for name, value in theirs.items():
            assert ours[name].tolist() == pytest.approx([value] * 2, rel=1e-7), name
    for net in (agent.actor, agent.critic, agent.target_critic.net):  # every parameter is compared
        compared = [parameter(agent, path) for path in stored["after"] if "/" in path and network(agent, path) is net]
        assert sum(p.numel() for p in compared) == sum(p.numel() for p in net.parameters())
    for path, after in stored["after"].items():
        assert summary(parameter(agent, path)[1]) == pytest.approx(after, rel=1e-7, abs=1e-8), path


@pytest.mark.parametrize("case", [case for case in CASES if "strong" not in case])
def test_metrics_in_float32_are_the_official_ones(case):
    _, metrics, stored = updated(case)
    for ours, theirs in zip(metrics, stored["losses"], strict=True):
        for name, value in theirs.items():
            assert ours[name].dtype == torch.float32
            assert ours[name].tolist() == pytest.approx([value] * 2, rel=1e-5), name
