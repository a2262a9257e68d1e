"""Four updates of TD3 and of TD3+BC against the authors' official code.

`td3_updates.json` holds what that code computed in float64, from weights, batches and noise that are formulas, and
names the commits that were run. The noise is clipped on either side and not at all, and each target critic is the
smaller one in some rows; in "strong" cases the bounds of actions clip on either side too, and values have both signs.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import td3
import td3_bc
import torch
from official_updates import for_two, set_weights, stored_updates, summary, transitions
from torch import Tensor

from envs import Task

STORED = stored_updates("td3")
ROWS = 6


def bound_of(case: str) -> float:
    """The greatest magnitude of actions."""
    return 0.4 if "bound" in case else 1.0


def noise_of(step: int) -> Tensor:
    """The noise of the file's formula."""
    b, a = np.arange(ROWS)[:, None], np.arange(2)
    return for_two(4 * np.sin(1.7 * b + 2.6 * a + 0.3 * step + 0.5))


def in_their_layout(tensors: list[Tensor], path: str) -> Tensor:
    """That of our tensors, in the order of our parameters, which has this path in theirs, for both runs: a view."""
    network, layer, kind = path.replace("/", ".").split(".")
    number = int(layer[1:]) - 1  # the second critic follows the first
    found = tensors[2 * (number % 3) + (kind == "bias")]
    found = found[:, number // 3] if "critic" in network else found
    return found.mT if kind == "weight" else found


def parameter(agent: Any, path: str) -> Tensor:
    """Our parameter of both runs for a path in the file."""
    name, _, target = path.partition("/")[0].partition("_")
    network = getattr(agent, f"target_{name}").net if target else getattr(agent, name)
    return in_their_layout(list(network.parameters()), path)


def moment(agent: Any, path: str) -> Tensor:
    """Adam's first moment of our parameter of both runs for a path in the file."""
    adam = getattr(agent, f"{path.partition('/')[0]}_adam")
    return in_their_layout([adam.get_buffer(name) for name in adam.names[0]], path)


def updated(case: str) -> tuple[Any, list[dict[str, Tensor]]]:
    """An agent of two runs after the updates, and the metrics of each of them."""
    bound = bound_of(case)
    task = Task("made", (3,), 2, False, (-bound, -bound), (bound, bound), 50)
    sizes: dict[str, Any] = {"hidden": (8, 6), "batch_size": ROWS}
    agent: Any
    if case.startswith("td3_bc"):
        alpha, draws = 0.4 if "alpha" in case else 2.5, td3_bc.Draws
        agent = td3_bc.TD3BC(td3_bc.Args(dataset="local/hopper-medium-replay-v0", alpha=alpha, **sizes), task, (0, 1))
    else:
        agent, draws = td3.TD3(td3.Args(**sizes), task, (0, 1)), td3.Draws

    def amp(path: str) -> float:
        return (3.0 if path.startswith("actor") else 4.0) if "strong" in case else 1.0

    set_weights(STORED[case]["after"], partial(parameter, agent), amp)
    due = agent.args.actor_delay
    batches = (transitions(k, ROWS, low=task.low, high=task.high) for k in range(4))
    return agent, [agent.update(batch, draws(noise_of(k)), (k + 1) % due == 0) for k, batch in enumerate(batches)]


@pytest.mark.parametrize("case", STORED)
def test_updates_are_the_official_ones(case, float64):
    agent, metrics = updated(case)
    for ours, theirs in zip(metrics, STORED[case]["updates"], strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert ours[name].tolist() == pytest.approx([value] * 2, rel=1e-7), name

    after, moments = STORED[case]["after"], STORED[case]["moments"]
    learned = sum(p.numel() for p in agent.parameters() if p.requires_grad)
    assert learned == sum(parameter(agent, path)[0].numel() for path in moments) * 2  # every parameter is compared
    assert after.keys() == moments.keys() | {path.replace("/", "_target/") for path in moments}
    for name, found, stored in (("parameter", parameter, after), ("moment", moment, moments)):
        for path, theirs in stored.items():
            for ours in found(agent, path):
                assert summary(ours) == pytest.approx(theirs, rel=1e-7, abs=1e-9), f"{name} {path}"


@pytest.mark.parametrize("case", [case for case in STORED if "strong" not in case])
def test_losses_in_float32_are_the_official_ones(case):
    _, metrics = updated(case)
    for ours, theirs in zip(metrics, STORED[case]["updates"], strict=True):
        for name in theirs.keys() & {"critic_loss", "actor_loss"}:
            assert ours[name].dtype == torch.float32
            assert ours[name].tolist() == pytest.approx([theirs[name]] * 2, rel=1e-5), name


def test_the_actor_of_td3_is_due_at_every_second_update(train, bare_runs, monkeypatch):
    """As in the official code, not at the first one; the same of TD3+BC is in `test_td3_bc.py`."""
    due = []
    monkeypatch.setattr(td3.TD3, "update", lambda agent, batch, draws, actor_due: due.append(actor_due) or {})
    train("td3", env_id="InvertedPendulum-v5", learning_starts=20, total_steps=25, eval_episodes=0, hidden=(4,))
    assert due == [False, True, False, True, False]
