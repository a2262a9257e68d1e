"""Whole runs of SQIRL with networks, and of GORP, against the authors' official code, on a made task.

`sqirl_updates.json` holds what that code computed in float64, from weights, observations, rewards and random numbers
that are formulas, and names the commit that was run. Episodes end by terminations and by the time limit. Of those that
are played at once, an earlier one never lasts longer, because the official code keeps episodes in the order of their
ends, and ours in that of their environments. In "strong" and "unscaled" cases, gradients are clipped in some steps and
not in others. In the "full" case, the official code never draws the step that the buffer overwrites next; ours would,
and the minibatches here leave it out. In the "idle" case, a run stops because it no longer explores, which the official
code does before the updates of the last iteration, and ours after them.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import gorp
import numpy as np
import pytest
import sqirl
import torch
from official_updates import for_two, set_weights, stored_updates, summary
from torch import Tensor

from algos.run import Run
from envs import Task

STORED = stored_updates("sqirl")
SQIRL = [case for case in STORED if not case.startswith("gorp")]
GORP = [case for case in STORED if case.startswith("gorp")]
LENGTHS = np.array([2, 5, 1, 4, 3, 3, 5, 5])  # of episodes, in turn
DIMENSIONS = np.arange(3)


class Envs:
    """The made task for two runs that do the same."""

    runs, device = 2, torch.device("cpu")

    def __init__(self, width: int, limit: int):
        self.envs_per_run, self.episodes = width, np.arange(width) - width
        self.task = Task("Made-v0", (3,), 3, True, (), (), limit)
        self.played: dict[int, str] = {}  # by the number of the episode

    @property
    def obs(self) -> Tensor:
        return for_two(
            np.sin(0.7 * self.episodes[:, None] + 0.9 * self.t + 1.1 * DIMENSIONS + 0.8 * self.last[:, None])
        )

    def restart(self) -> None:
        self.episodes, self.t, self.last = self.episodes + self.envs_per_run, 0, np.zeros(self.envs_per_run)

    def step(self, action: Tensor, counted: Tensor) -> SimpleNamespace:
        assert (action == action[:1]).all() and (counted == counted[:1]).all()
        obs, self.last, ends = self.obs, action[0].numpy(), LENGTHS[self.episodes % 8]
        for n in np.flatnonzero(counted[0]):
            self.played[self.episodes[n]] = self.played.get(self.episodes[n], "") + str(self.last[n])
        reward = np.round(8 * np.sin(1.3 * self.episodes + 0.7 * self.t + 1.1 * self.last)) / 4
        self.t += 1
        over = self.t == self.task.limit
        terminated = for_two((self.t == ends) * (1 - over))
        return SimpleNamespace(
            obs=obs, reward=for_two(reward), terminated=terminated, truncated=torch.full_like(terminated, over)
        )


def parameter(agent: Any, path: str) -> Tensor:
    """Our parameter of both runs for a path in the file."""
    number, kind = path.removeprefix("q_net/").split(".")
    found = list(agent.critic.parameters())[int(number) + (kind == "bias")]  # the official numbers count ReLU too
    return found.mT if kind == "weight" else found


class MadeRun:
    """What a script asks of its `Run`, with the file's weights and random numbers, for two runs that are the same."""

    seeds, runs, device, took = (0, 1), 2, torch.device("cpu"), Run.took

    def __init__(self, case: str, args: Any):
        self.given = self.args = args
        self.stored, self.random = STORED[case], self
        self.done, self.taken = np.zeros((2, 2), np.int64)
        self.iterations: list[dict[str, Any]] = []

    def environments(self, width: int, **_: Any) -> Envs:
        self.envs = Envs(width, self.stored["limit"])
        return self.envs

    def uniform(self, purpose: str, limit: int, envs: int) -> Any:
        assert purpose == "action"
        times = np.arange(limit)[:, None]
        return lambda: for_two(0.5 + 0.45 * np.sin(2.3 * self.envs.episodes - 1.3 * times + 0.6))

    def integers(self, purpose: str, size: int) -> Any:
        assert purpose == "minibatch"
        return partial(self.rows, size)

    def rows(self, size: int) -> Tensor:
        """Rows for a gradient step, of those that the official code may draw."""
        added, capacity = int(self.buffer.added[0]), self.buffer.capacity
        rows = np.arange(min(added, capacity))
        rows = rows[rows != added % capacity]  # once it is full, all but the one that is overwritten next
        phase = 2.3 * np.arange(size) + 1.1 * self.drawn + 0.7 * self.agent.i
        self.drawn += 1
        return torch.as_tensor(rows[(len(rows) * (0.5 + 0.49 * np.sin(phase))).astype(int)]).expand(2, -1)

    def register(self, agent: Any, buffer: Any = None) -> None:
        self.agent, self.buffer = agent, buffer
        if buffer:
            paths = self.stored["iterations"][0]["after"]
            set_weights(paths, partial(parameter, agent), lambda path: self.stored["amp"])

    def compiled(self, function: Any) -> Any:
        return function

    def log(self, metrics: dict[str, Tensor]) -> None:
        if "loss_1" in metrics:
            self.losses.append(torch.stack(list(metrics.values()), 1).tolist())

    def steps(self, policy: Any, stride: int) -> Any:
        """Begins iterations, and notes what happens in each of them."""
        while (self.done < self.given.total_steps).any():
            self.losses: list[list[list[float]]] = []
            self.drawn = 0
            self.envs.played.clear()
            yield
            self.iterations.append({"actions": list(self.envs.played.values()), "losses": self.losses})
            if self.buffer:
                paths = self.stored["iterations"][0]["after"]
                after = {path: [summary(run) for run in parameter(self.agent, path)] for path in paths}
                self.iterations[-1] |= {"after": after, "scale": self.agent.scale.tolist()}


def whole(case: str, monkeypatch: Any) -> MadeRun:
    """Our run of a case, after its end."""
    module: Any = gorp if case in GORP else sqirl
    runs: list[MadeRun] = []

    def made(args: Any, name: str) -> MadeRun:
        runs.append(MadeRun(case, args))
        return runs[0]

    monkeypatch.setattr(module, "Run", made)
    more = {} if case in GORP else {"hidden": (8, 6)}
    module.main(module.Args(env_id="Made-v0", **STORED[case]["settings"], **more))
    return runs[0]


@pytest.mark.parametrize("case", SQIRL)
def test_runs_are_the_official_ones(case, float64, monkeypatch):
    run, stored = whole(case, monkeypatch), STORED[case]
    assert run.taken.tolist() == [stored["taken"]] * 2
    assert sum(p.numel() for p in run.agent.parameters()) == 2 * sum(
        parameter(run.agent, path)[0].numel() for path in stored["iterations"][0]["after"]
    )  # every parameter is compared
    if "last" in stored:  # an iteration from which the official code learns nothing
        assert run.iterations.pop()["actions"] == stored["last"]
    for i, (ours, theirs) in enumerate(zip(run.iterations, stored["iterations"], strict=True)):
        assert ours["actions"] == theirs["actions"], i
        assert len(ours["losses"]) == len(theirs["losses"]), i
        for step, (losses, expected) in enumerate(zip(ours["losses"], theirs["losses"], strict=True)):
            for found in losses:
                assert found == pytest.approx(expected, rel=1e-9), f"losses of step {step} of iteration {i}"
        for found in ours["scale"] if "scale" in theirs else ():
            assert found == pytest.approx(theirs["scale"], rel=1e-9), i
        for path, after in theirs["after"].items():
            for found in ours["after"][path]:
                assert found == pytest.approx(after, rel=1e-9, abs=1e-10), f"{path} after iteration {i}"

    kept = stored["buffer"]
    for run_rows in run.buffer.rows[:, : len(kept["reward"])]:
        action, reward, done, returns = run_rows[:, 3:].mT.tolist()
        assert "".join(f"{a:.0f}" for a in action) == kept["action"]
        assert "".join(f"{d:.0f}" for d in done) == kept["done"]
        assert reward == kept["reward"] and returns == pytest.approx(kept["returns"], rel=1e-12)

    probes = for_two(np.sin(0.7 * np.arange(12)[:, None] + 1.1 * DIMENSIONS))
    for t, choices in enumerate(stored["choices"]):
        for found in run.agent.policy(probes, torch.tensor(t)).tolist():
            assert "".join(map(str, found)) == choices, t


@pytest.mark.parametrize("case", ["k1", "k2", "k3"])
def test_losses_in_float32_are_the_official_ones(case, monkeypatch):
    run = whole(case, monkeypatch)
    assert run.agent.scale.dtype == torch.float32
    for ours, theirs in zip(run.iterations, STORED[case]["iterations"], strict=True):
        for losses, expected in zip(ours["losses"], theirs["losses"], strict=True):
            assert losses == [pytest.approx(expected, rel=1e-5)] * 2


@pytest.mark.parametrize("case", GORP)
def test_gorp_plans_as_the_official_code(case, float64, monkeypatch):
    """Ours stops at the time limit, and the official code goes on, with actions for times that no episode reaches."""
    run, stored = whole(case, monkeypatch), STORED[case]
    assert [ours["actions"] for ours in run.iterations] == stored["iterations"]
    for found in run.agent.actions.tolist():
        assert "".join(map(str, found)) == stored["actions"][:5]
