"""Eight steps of Stream AC, Q and SARSA against the authors' official code.

`stream_updates.json` holds what that code, in its own wrappers, computed in float64 from weights, observations, rewards
and random numbers that are formulas, and names the commit that was run. The observations and rewards that our agents
take are raw. Two episodes end, by a termination and by a time limit; actions are clipped on either side and not at all,
and Q takes actions that are greedy, random but greedy, and not greedy. The first action of an episode is drawn for it,
as here, where the official SARSA keeps the one that it drew for the last observation of the episode before. In "strong"
and "adaptive" cases the bound of ObGD acts in some steps of each network and not in others.
"""

from typing import Any

import numpy as np
import pytest
import stream_ac
import stream_q
import torch
from official_updates import assert_step, for_two, stored_updates, summary, weights
from torch import Tensor

from algos.stream import Step
from envs import Task

STORED = stored_updates("stream")
CONTINUOUS = Task("made", (3,), 2, False, (-0.1875, -0.625), (0.5, 1.0), 50)
DISCRETE = Task("made", (3,), 3, True, (), (), 50)
SETTINGS = {"lr": "lr", "kappa_policy": "kappa_actor"}  # names there and here; all others are the defaults of both
TOTAL_STEPS = {"q": 15, "sarsa": 24}
ENDS = (2, 5)  # steps that end an episode
LAYERS = {"fc_layer": 0, "fc1_v": 0, "hidden_layer": 1, "hidden_v": 1}  # all others are the last ones
DIMENSIONS = np.arange(3)


def raw(array: Any) -> Tensor:
    """What the task gives to two runs, in float64 as in the scripts: [...] -> [2, ...]."""
    return torch.as_tensor(array, dtype=torch.float64).expand(2, *np.shape(array)).clone()


def first_obs(step: int) -> Tensor:
    """The first observation of an episode, before this step."""
    return raw((1 + DIMENSIONS) * np.cos(0.7 * step + 2 * DIMENSIONS) - DIMENSIONS)


def outcome(step: int) -> Step:
    """What the task gives in this step."""
    obs = raw((1 + DIMENSIONS) * np.sin(1.9 * step + 1.1 * DIMENSIONS + 0.2) + DIMENSIONS)
    ended = step in ENDS
    done = raw(float(ended))
    following = first_obs(step + 1) if ended else obs.clone()
    return Step(raw(2 * np.sin(1.3 * step + 0.4) + 0.5), obs, done, following, done.clone())


def draws_of(agent: Any, step: int) -> Any:
    """The random numbers of the action of this step."""
    if agent.task is CONTINUOUS:
        return for_two(1.5 * np.sin(2.1 * step + 1.4 * np.arange(2) + 0.3))
    uniform = for_two(0.5 + 0.45 * np.sin(2.3 * step - 1.3 * DIMENSIONS + 0.6))
    return uniform if hasattr(agent, "actor") else stream_q.Draws(uniform[:, 0], uniform[:, 1])


def part(agent: Any, path: str, kind: str) -> Tensor:
    """Our weights of both runs for a path in the file, or what ObGD has in their place: traces or squares."""
    network, _, inner = path.rpartition("/")
    layer, _, name = inner.partition(".")
    obgd = agent.actor_obgd if network == "policy_net" else agent.critic_obgd if network else agent.obgd
    tensors = list(obgd.weights) if kind == "weight" else obgd.buffers_of(kind)
    found = tensors[2 * LAYERS.get(layer, 2) + (name == "bias")]
    return found[:, :2] if layer == "linear_mu" else found[:, 2:] if layer == "linear_std" else found


def made(case: str) -> Any:
    """An agent of two runs with the file's weights."""
    form, stored = case.split("_")[0], STORED[case]
    settings = {SETTINGS[name]: value for name, value in stored["settings"].items()}
    common: dict[str, Any] = {"hidden": (10, 10), "adaptive": "adaptive" in case}
    agent: Any
    if form == "ac":
        task = DISCRETE if "discrete" in case else CONTINUOUS
        agent = stream_ac.StreamAC(stream_ac.Args(**common, **settings), task, (0, 1))
    else:
        exploring: dict[str, Any] = {"target": form, "exploration": 0.5, "total_steps": TOTAL_STEPS[form]}
        agent = stream_q.StreamQ(stream_q.Args(**common, **exploring, **settings), DISCRETE, (0, 1))
    amp = 3.0 if "strong" in case else 1.0
    with torch.no_grad():
        for i, network in enumerate(("policy_net/", "value_net/") if form == "ac" else ("",)):
            for n, path in enumerate(path for path in stored["after"] if path.startswith(network)):
                ours = part(agent, path, "weight")
                ours.copy_(weights(path, ours[0].shape, 20 * i + n, amp))
    return agent


def stepped(case: str) -> tuple[Any, list[dict[str, Tensor]]]:
    """An agent of two runs after the steps, and what it had before each of them and the metrics."""
    agent, rows = made(case), []
    agent.restart(first_obs(0), draws_of(agent, 0))
    for step in range(8):
        before = {"state": agent.state.clone(), "action": agent.output.clone()}
        if hasattr(agent, "greedy"):
            before |= {"epsilon": agent.epsilon(), "nongreedy": ~agent.greedy}
        rows.append(before | agent.update(outcome(step), draws_of(agent, step + 1)))
    return agent, rows


@pytest.mark.parametrize("case", STORED)
def test_steps_are_the_official_ones(case, float64):
    agent, rows = stepped(case)
    for step, (ours, theirs) in enumerate(zip(rows, STORED[case]["steps"], strict=True)):
        assert ours.keys() - theirs.keys() <= {"nongreedy"}  # the official SARSA does not know whether it was
        assert_step(ours, theirs, step, rel=1e-7)

    after, traces, squares = (STORED[case].get(kind, {}) for kind in ("after", "traces", "squares"))
    compared = sum(part(agent, path, "weight").numel() for path in after)
    assert compared == sum(p.numel() for p in agent.parameters())  # every parameter is compared
    assert after.keys() == traces.keys() and set(squares) == (set(after) if agent.args.adaptive else set())
    for kind, stored, sign in (("weight", after, 1), ("trace", traces, -1), ("square", squares, 1)):
        for path, theirs in stored.items():
            for ours in part(agent, path, kind):
                assert summary(sign * ours) == pytest.approx(theirs, rel=1e-7, abs=1e-9), f"{kind} {path}"


@pytest.mark.parametrize("case", STORED)
def test_td_errors_in_float32_are_the_official_ones(case):
    _, rows = stepped(case)
    for ours, theirs in zip(rows, STORED[case]["steps"], strict=True):
        assert ours["td_error"].dtype == torch.float32
        assert ours["td_error"].tolist() == pytest.approx([abs(theirs["td_error"])] * 2, rel=1e-5, abs=1e-6)
