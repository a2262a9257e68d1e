"""Tests that every script must pass: agents stand alone, runs and settings are independent, a kill costs nothing.

A new script joins by one line in the table of scripts.py.
"""

import contextlib
import copy
import functools
import math
import pickle
import re
from collections import deque
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sac
import torch
from scripts import (
    CONTINUOUS,
    EVALUATED,
    EVALUATED_WITH_GOALS,
    SCRIPTS,
    UNEVEN_SCRIPTS,
    UPDATED,
    Feed,
    agent_of,
    agent_type,
    breaking_off,
    differing,
    hyperparameters,
    is_goal_batch,
    is_goals,
    is_model_based,
    is_offline,
    is_on_policy,
    is_stream,
    learn,
    module_of,
    needs_compiler,
    same,
    short,
    state_of,
    stride_of,
)
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import algos.random
import algos.run
from algos.agent import Agent
from algos.arguments import tunable
from algos.compile import WARM_UP, captured, compiled
from algos.data import Dataset
from algos.errors import UserError
from algos.goals import Goals
from algos.nn import MLP
from algos.optim import Adam
from algos.replay import ReplayBuffer
from algos.run import Run
from envs import SeededEnvs
from envs.series import SeriesEnvs

scripts = pytest.mark.parametrize("script", UPDATED)


@pytest.fixture(autouse=True)
def few_random_numbers(monkeypatch):
    """Drawn at once: short runs need few, and begin more than one block of them."""
    monkeypatch.setattr(algos.random, "BLOCK", 1 << 12)


def variants_slow(cases: list[tuple[str, ...]]) -> list[Any]:
    """Cases (script, …) of which those of a script's variants, such as "ppo discrete", are left to the slow tests."""
    return [pytest.param(*case, marks=pytest.mark.slow if " " in case[0] else ()) for case in cases]


whole_runs = pytest.mark.parametrize(
    "script", variants_slow([(script,) for script in SCRIPTS if script not in UNEVEN_SCRIPTS])
)


def few(script: str) -> int:
    """Updates in which all parts of a script take part, also the ends of a stream's episodes and of exploration."""
    return 20 if is_stream(script) else 8


def test_every_script_is_in_the_table():
    assert {script.split()[0] for script in SCRIPTS} == {path.stem for path in Path(sac.__file__).parent.glob("*.py")}


# -- what a GPU would refuse, shown without one ------------------------------------------------------------------------


class Mode(TorchDispatchMode):
    """A mode without the wrapper that hides it from torch's compiler, which would take most of its time."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False


class OneDevice(Mode):
    """Refuses tensors on the CPU."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(isinstance(x, Tensor) and x.device.type == "cpu" for x in tree_leaves((args, kwargs))):
            raise AssertionError(f"{function} takes a tensor on the CPU")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("varied", [pytest.param(False, marks=pytest.mark.slow), True])
@scripts
def test_an_update_stays_on_its_device(script, varied, monkeypatch):
    """On the meta device no number can be read, and no tensor of an update may be on the CPU, as in a CUDA graph.

    Once with the numbers of a script, and once with a value per run for each hyperparameter.
    """
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)  # Adam's own formula, as a compiler traces it
    make = algos.random.generators
    monkeypatch.setattr(algos.random, "generators", lambda seeds, name, device: make(seeds, name))
    defaults = module_of(script).Args(**short(script))
    vary = tuple(f"{name}={getattr(defaults, name)!r}" for name in hyperparameters(script)) if varied else ()
    agent = agent_of(script, device="meta", vary=vary)
    feed = Feed(agent)
    feed.restart()
    updates = short(script).get("refresh_every", getattr(agent.args, "actor_delay", 1))  # what is delayed works once
    for arguments in islice(feed, updates):
        with OneDevice():
            metrics = agent.update(*arguments)
    assert metrics and {x.device.type for x in [*metrics.values(), *agent.state_dict().values()]} == {"meta"}


# those of on-policy scripts are captured in parts; SQIRL's reads on the host which runs go on, unless it is compiled
CAPTURED = [script for script in UPDATED if not is_on_policy(script) and script != "sqirl"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("script", CAPTURED)
def test_an_update_is_captured_on_cuda_and_does_what_it_does_on_a_cpu(script, float64):
    """Not compiled here, which takes minutes for all scripts: what is captured is what is written."""
    plain, agent = agent_of(script), agent_of(script, device="cuda")
    update = captured(agent.update, torch.device("cuda"))
    feed = Feed(plain)
    feed.restart()
    agent.load_state_dict(plain.state_dict())
    close = functools.partial(torch.testing.assert_close, atol=1e-8, rtol=1e-5, check_device=False)
    for arguments in islice(feed, 12):
        wanted = plain.update(*arguments)
        found = update(*tree_map(lambda x: x.to("cuda") if isinstance(x, Tensor) else x, arguments))
        close(found, wanted)
    assert any(variant.calls > WARM_UP for variant in update.variants.values())
    close(dict(agent.state_dict()), dict(plain.state_dict()))


READING = (
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "allclose", "_unique2", "unique_dim",
    "unique_consecutive", "bincount", "repeat_interleave", "_linalg_check_errors", "lift_fresh",
)  # fmt: skip


class Unread(Mode):
    """Refuses what makes the host wait for a GPU: numbers that it reads, and sizes that depend on numbers."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        packet, name = function.overloadpacket, function.overloadpacket.__name__
        masks = args[1] if packet in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_) else ()
        if name in READING or any(mask is not None and mask.dtype in (torch.bool, torch.uint8) for mask in masks):
            raise AssertionError(f"the host waits for {name}")
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def unread():
    """Here, runs fail if a function that would be compiled on a GPU, and be captured there, makes the host wait."""

    def watched(function, *_):
        def call(*args):
            with Unread():
                return function(*args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algos.run, "compiled", watched)
        patch.setattr(algos.run, "captured", watched)
        yield


# -- an agent stands alone ---------------------------------------------------------------------------------------------


def assert_stands_alone(agent: Any, fresh: Any, feed: Any, updates: int = 20) -> None:
    """An agent that takes up the state of another goes on exactly like it."""
    for arguments, _ in zip(feed, range(updates), strict=False):
        agent.update(*arguments)
    for tensor in fresh.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape) + 1)  # which the state must replace
    fresh.load_state_dict(state_of(agent))
    for arguments, _ in zip(feed, range(6), strict=False):
        metrics, again = agent.update(*arguments), fresh.update(*arguments)
        assert all(same(metric, again[name]) for name, metric in metrics.items())
    assert not differing(state_of(agent), state_of(fresh))


def unsaved(agent: nn.Module) -> dict[str, Any]:
    """Copies of all that can be reached from an agent and is not in its `state_dict`, by path.

    These are tensors, arrays, numbers, texts, sets and the states of random generators.
    """
    saved = {id(tensor) for tensor in agent.state_dict(keep_vars=True).values()}
    values: dict[str, Any] = {}
    seen: set[int] = set()

    def walk(path: str, value: Any) -> None:
        if isinstance(value, Tensor):
            if id(value) not in saved:
                values[path] = value.detach().clone()
        elif value is None or isinstance(value, int | float | str | bytes | np.generic):
            values[path] = value
        elif isinstance(value, np.ndarray):
            values[path] = (value.dtype, value.shape, value.tobytes())
        elif isinstance(value, set | frozenset):
            values[path] = frozenset(value)
        elif isinstance(value, torch.Generator):
            values[path] = value.get_state()
        elif isinstance(value, np.random.Generator):
            values[path] = pickle.dumps(value.bit_generator.state)
        elif id(value) not in seen and not isinstance(value, type):
            seen.add(id(value))
            if isinstance(value, dict):
                parts = list(value.items())
            elif isinstance(value, list | tuple | deque):
                parts = list(enumerate(value))
            else:
                parts = list(getattr(value, "__dict__", {}).items())
            for name, part in parts:
                walk(f"{path}.{name}", part)

    walk("agent", agent)
    return values


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The paths of what is new or changed."""

    def equal(a: Any, b: Any) -> bool:
        return same(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else type(a) is type(b) and a == b

    return [path for path, value in after.items() if path not in before or not equal(before[path], value)]


@scripts
def test_an_agent_stands_alone(script):
    """It needs no run, and a fresh one that loads its state goes on bitwise the same."""
    agent, fresh = agent_of(script), agent_of(script)
    feed = Feed(agent)
    feed.restart()
    assert_stands_alone(agent, fresh, feed)


@scripts
def test_nothing_changes_that_is_not_saved(script):
    agent = agent_of(script)
    before = unsaved(agent)
    learn(agent)
    assert not changes(before, unsaved(agent))


@scripts
def test_the_run_axis_comes_first_in_all_that_is_saved(script):
    agent = agent_of(script, seeds=(1, 2, 3, 4, 5))
    learn(agent, 3)
    assert {tensor.shape[0] for tensor in agent.state_dict().values() if tensor.dim()} == {5}


class Small(Agent):
    """One layer for each run, which learns to answer 0; the forms below it forget to register something."""

    def __init__(self):
        super().__init__(SimpleNamespace(), CONTINUOUS, [0, 1])
        self.net = self.initialise("net", MLP((2,), 3, (4,), 1))
        self.adam = Adam(self.net.parameters(), lr=0.1)

    def loss(self, x: Tensor) -> Tensor:
        return self.net(x).square().mean((1, 2))

    def update(self, x: Tensor) -> dict[str, Tensor]:
        loss = self.loss(x)
        self.adam.minimise(loss)
        return {"loss": loss.detach()}


class WithList(Small):
    def __init__(self):
        super().__init__()
        self.nets = [self.initialise("other", MLP((2,), 3, (4,), 1))]
        self.other_adam = Adam(self.nets[0].parameters(), lr=0.1)

    def loss(self, x: Tensor) -> Tensor:
        return (self.net(x) - self.nets[0](x)).square().mean((1, 2))

    def update(self, x: Tensor) -> dict[str, Tensor]:
        self.other_adam.minimise(self.loss(x))
        return super().update(x)


class WithCounter(Small):
    number = 0

    def loss(self, x: Tensor) -> Tensor:
        self.number += 1
        return super().loss(x) * self.number


class WithArray(Small):
    def __init__(self):
        super().__init__()
        self.factors = np.zeros(2, np.float32)

    def loss(self, x: Tensor) -> Tensor:
        self.factors += 1
        return super().loss(x) * torch.from_numpy(self.factors.copy())


class WithSet(Small):
    def __init__(self):
        super().__init__()
        self.numbers: set[int] = set()

    def loss(self, x: Tensor) -> Tensor:
        self.numbers.add(len(self.numbers))
        return super().loss(x) * len(self.numbers)


class WithDeque(Small):
    def __init__(self):
        super().__init__()
        self.numbers: deque[int] = deque([0], maxlen=1)

    def loss(self, x: Tensor) -> Tensor:
        self.numbers.append(self.numbers[-1] + 1)
        return super().loss(x) * self.numbers[-1]


class WithTorchGenerator(Small):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def loss(self, x: Tensor) -> Tensor:
        return super().loss(x) * torch.rand(2, generator=self.generator)


class WithNumpyGenerator(Small):
    def __init__(self):
        super().__init__()
        self.generator = np.random.default_rng(0)

    def loss(self, x: Tensor) -> Tensor:
        return super().loss(x) * self.generator.random()


class WithTorchOptimiser(Small):
    def __init__(self):
        super().__init__()
        self.torch_adam = torch.optim.Adam(self.net.parameters(), lr=0.1)

    def update(self, x: Tensor) -> dict[str, Tensor]:
        loss = self.loss(x)
        self.torch_adam.zero_grad()
        loss.sum().backward()
        self.torch_adam.step()
        return {"loss": loss.detach()}


@pytest.mark.parametrize(
    "kind",
    [
        Small,
        WithList,
        WithCounter,
        WithArray,
        WithSet,
        WithDeque,
        WithTorchGenerator,
        WithNumpyGenerator,
        WithTorchOptimiser,
    ],
)
def test_an_agent_that_forgets_to_register_something_is_caught(kind):
    generator = torch.Generator().manual_seed(0)
    feed = ([torch.randn(2, 5, 3, generator=generator)] for _ in range(1_000))
    agent, fresh = kind(), kind()
    before = unsaved(agent)
    if kind is Small:
        assert_stands_alone(agent, fresh, feed)
    else:
        with pytest.raises(AssertionError):
            assert_stands_alone(agent, fresh, feed)
    assert bool(changes(before, unsaved(agent))) == (kind is not Small)


# -- runs and settings are independent ---------------------------------------------------------------------------------


def assert_close(state: dict[str, Tensor], runs: slice, alone: dict[str, Tensor]) -> None:
    for name, tensor in state.items():
        ours = tensor[runs] if tensor.dim() else tensor
        theirs = alone[name].expand_as(ours)  # a number that all runs share where they are alike
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@scripts
def test_runs_together_equal_runs_alone(script, float64):
    together = agent_of(script, seeds=(3, 7, 11))
    metrics = learn(together, few(script))
    for run, seed in enumerate((3, 7, 11)):
        alone = agent_of(script, seeds=(seed,))
        own = learn(alone, few(script))
        assert_close(state_of(together), slice(run, run + 1), state_of(alone))
        for ours, theirs in zip(metrics, own, strict=True):
            assert_close(ours, slice(run, run + 1), theirs)


# Where values near the default change nothing in so few updates, because they bound what stays far within the bound.
VALUES = {
    "clip": (0.1, 0.3),
    "lr of streams": (1e-4, 1e-3),
    "epsilon_end": (0.3, 0.6),
    "q": (1.2, 1.6),
    "augment": (0.2, 0.6),
}
# TD3's noise and DQN's epsilon are for actions in the environment, and DQN moves the target network by tau between
# updates. The penalty of MOPO is in the rewards of rollouts. Some decide about goals only.
UNUSED = {
    ("td3", "exploration_noise"), ("mopo", "penalty_weight"), ("gcbc", "augment"), ("gcbc rvs", "augment"),
    ("dqn", "tau"), ("dqn", "epsilon_start"), ("dqn", "epsilon_end"), ("dqn", "exploration"),
    ("crl", "discount"), ("crl awr", "discount"),
}  # fmt: skip
GRIDS = [(script, name) for script in UPDATED for name in hyperparameters(script)]


@functools.lru_cache(maxsize=2)  # the default is used again and again
def learned_alone(script: str, *setting: tuple[str, float]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What two seeds have learned with a setting, plain numbers: the metrics of the last update, and the state."""
    agent = agent_of(script, seeds=(3, 7), **dict(setting))
    return learn(agent, few(script))[-1], state_of(agent)


@pytest.mark.parametrize(("script", "name"), variants_slow(GRIDS))
def test_a_setting_of_a_grid_equals_that_setting_alone(script, name, float64):
    """Two values, by default the script's own and 0.8 of it, with two seeds each, against plain numbers."""
    default = getattr(module_of(script).Args(**short(script)), name)
    key = "lr of streams" if is_stream(script) and name == "lr" else name
    values = VALUES.get(key, (default, 0.8 * default))
    grid = agent_of(script, seeds=(3, 7), vary=(f"{name}={values[0]!r},{values[1]!r}",))
    metrics, states = learn(grid, few(script))[-1], []
    for number, value in enumerate(values):
        own, state = learned_alone(script, *[(name, value)] * (value != default))
        runs = slice(2 * number, 2 * number + 2)
        assert_close(state_of(grid), runs, state)
        assert_close(metrics, runs, own)
        states.append(state)
    apart = max(float((states[0][key].double() - tensor.double()).abs().max()) for key, tensor in states[1].items())
    if (script, name) in UNUSED:
        assert not differing(*states)
    else:
        assert apart > 1e-8  # ten times what is equal above


@pytest.mark.parametrize(
    ("script", "name"),
    [(script, name) for script in UPDATED for name in module_of(script).Args(**short(script)).without_effect()
     if name in tunable(module_of(script).Args)],
)  # fmt: skip
def test_what_changes_nothing_may_not_vary(script, name, float64):
    default = getattr(module_of(script).Args(**short(script)), name)
    other = agent_of(script, seeds=(3, 7), **{name: 0.8 * default})
    learn(other, few(script))
    assert not differing(state_of(other), learned_alone(script)[1])
    with pytest.raises(UserError, match=f"--vary: {name} changes nothing w"):
        agent_of(script, vary=(f"{name}=0.5,0.6",))


KEPT = ("real_ratio", "policy_noise")  # arguments because of which others change nothing


@pytest.mark.parametrize(
    ("script", "flags", "warned"),
    [
        ("gcbc", {"clusters": 3, "cluster_by": "state"}, [
            "--clusters changes nothing without --augment", "--cluster-by changes nothing without --augment"]),
        ("gcbc", {"clusters": 3, "augment": 0.5}, []),
        ("qrl", {"discount": 0.9}, ["--discount changes nothing where no goal lies at a geometric distance"]),
        ("qrl", {"discount": 0.99}, []),  # the default
        ("gcbc", {"env_id": "pointmaze-large-v0"}, []),  # for which it has another default
        ("qrl", {"value_geometric": False}, ["--value-geometric changes nothing where no goal is a later state"]),
        ("td3_bc", {"policy_noise": 0.0, "noise_clip": 0.3}, ["--noise-clip changes nothing with --policy-noise 0"]),
        ("bc", {"expert_trajectories": 3}, ["--expert-trajectories changes nothing without --expert-dataset"]),
        ("recoil", {"beta": 0.3}, ["--beta changes nothing with --objective code"]),
        ("mopo", {"penalty_weight": 0.7, "real_ratio": 1.0}, [
            "--penalty-weight changes nothing without a share of an ensemble, which alone is uncertain"]),
        ("ravl edac", {}, []),  # which has none
        ("sqirl table", {"epochs": 3, "hidden": (8,), "buffer_size": 7, "scale_losses": False}, [
            f"--{name} changes nothing with --form table"
            for name in ("epochs", "hidden", "buffer-size", "scale-losses")
        ]),
    ],
)  # fmt: skip
def test_a_run_warns_of_arguments_that_change_nothing(script, flags, warned, train_short, capsys):
    result = train_short(script, **flags)
    said = re.findall("warning: (.* changes nothing .*)", capsys.readouterr().err)
    of_models = [line for line in said if "without a model" in line]  # of arguments that make ensembles of tests small
    assert [line for line in said if line not in of_models] == warned
    assert bool(of_models) == (script == "ravl edac" or "real_ratio" in flags)
    if warned and "qrl" not in script:
        plain = train_short(script, out="plain", **{name: x for name, x in flags.items() if name in KEPT})
        assert not differing(result.parameters, plain.parameters)


def test_settings_of_one_seed_begin_alike_and_see_the_same_numbers():
    agent = agent_of("sac", seeds=(3, 7), vary=("critic_lr=1e-3,1e-4", "tau=0.1,0.2"))
    assert agent.seeds == [3, 7] * 4
    state = state_of(agent)
    assert all(torch.equal(t[:2], t[2 * k : 2 * k + 2]) for t in state.values() if t.dim() for k in range(4))
    batch, draws, _ = next(Feed(agent))
    assert all(torch.equal(x[:2], x[6:]) and not torch.equal(x[0], x[1]) for x in (*batch, *draws))


# -- a broken run ------------------------------------------------------------------------------------------------------


def poison(arguments: list[Any], run: int, value: float, observations: bool) -> None:
    """Puts a value in one run's rewards, or in its observations."""
    for part in arguments:
        if is_goal_batch(type(part)):
            (part.obs if observations else part.reward)[run] = value
            continue
        part = getattr(part, "outcome", part)  # in a rollout
        if hasattr(part, "reward"):
            (part.next_obs if observations else part.reward)[run] = value
            if observations and hasattr(part, "action"):
                part.obs[run] = value


def without_rewards(script: str) -> bool:
    return script.split()[0] in ("bc", "recoil", "gcbc", "crl", "qrl", "hiql", "ota")


def broken(script: str, value: float, *runs: int) -> dict[str, Tensor]:
    """The state after updates, some in the middle with that value in the data of `runs`; some episodes end then."""
    updates, first, last = (20, 10, 14) if is_stream(script) else (12, 5, 8)
    agent = agent_of(script, seeds=(0, 1, 2, 3))
    feed = Feed(agent)
    feed.restart()
    for number, arguments in zip(range(updates), feed, strict=False):
        for run in runs if first <= number <= last else ():
            poison(arguments, run, value, without_rewards(script))
        agent.update(*arguments)
    return state_of(agent)


@functools.cache
def clean(script: str) -> dict[str, Tensor]:
    return broken(script, 0.0)


@scripts
@pytest.mark.parametrize("value", [math.nan, pytest.param(math.inf, marks=pytest.mark.slow), 1e30])
def test_broken_runs_leave_their_neighbours_bitwise_unchanged(script, value):
    """Run 0, which is the first, and run 2, which has neighbours on both sides, are broken."""
    state = broken(script, value, 0, 2)
    assert not differing(clean(script), state, [1, 3])
    assert differing(clean(script), state, 0) and differing(clean(script), state, 2)


@pytest.fixture
def poisoned(monkeypatch):
    """Breaks some runs from now on.

    Rewards, and actions of a dataset, become so large that losses overflow in float32 while most of the state stays
    finite and moves on unless it is frozen. Some scripts scale or clip such numbers, so theirs become NaN.
    """
    receive, gather, receive_sample = SeededEnvs.receive, Dataset.gather, SeriesEnvs.receive
    goal_actions = Goals.actions

    def of(script: str, *runs: int) -> None:
        scaled = is_stream(script) or is_on_policy(script) or script.startswith(("dsac_t", "dqn"))
        value = math.nan if scaled else 1e30

        def transition(envs):
            step = receive(envs)
            step.reward[list(runs)] = value
            return step

        def sample(envs):
            step = receive_sample(envs)
            cumulant = step.cumulant.clone()
            cumulant[list(runs)] = value
            return step._replace(cumulant=cumulant)

        def batch(data, indices):
            rows = gather(data, indices)
            for tensor in (rows.action, rows.reward):
                tensor[list(runs)] = value
            return rows

        monkeypatch.setattr(SeededEnvs, "receive", transition)
        monkeypatch.setattr(SeriesEnvs, "receive", sample)

        def actions(goals, rows):
            found = goal_actions(goals, rows)
            found[list(runs)] = value
            return found

        monkeypatch.setattr(Dataset, "gather", batch)
        monkeypatch.setattr(Goals, "actions", actions)

    return of


# one of each kind; that broken runs leave their neighbours alone, and that all end, is shown with every script
FROZEN = ("sac", "dqn", "ppo", "stream_ac", "stream_td", "iql", "recoil", "mopo", "gcivl")


def evaluated(script: str) -> dict[str, Any]:
    return EVALUATED_WITH_GOALS if is_goals(script) else EVALUATED if is_offline(script) else {}


@pytest.mark.parametrize(
    "script",
    [
        script if script in FROZEN else pytest.param(script, marks=pytest.mark.slow)
        for script in SCRIPTS
        if script not in UNEVEN_SCRIPTS
    ],
)
@pytest.mark.usefixtures("short_ways_to_goals")
def test_a_diverged_run_is_marked_frozen_and_no_longer_reported(script, train_short, poisoned, monkeypatch, capsys):
    """From the log at which it is noticed, nothing of it moves; its neighbour goes on as if nothing had happened."""
    report, states = Run._report_progress, {}

    def noted(run):
        report(run)
        states[run.step] = state_of(run.agent)

    overrides = {"seeds": ("4", "5"), "eval_every": 10, **evaluated(script)}
    whole = train_short(script, out="whole", **overrides)
    poisoned(script, 0)
    monkeypatch.setattr(Run, "_report_progress", noted)
    result = train_short(script, **overrides)
    last, stride = result.config["step"], stride_of(script)
    log = max(short(script).get("learning_starts", 0) + 5, stride)
    if is_model_based(script) and short(script)["real_ratio"] < 1:
        log = 0  # its ensemble diverges
    assert result.code == 0 and result.config["status"] == "diverged"
    assert result.config["diverged"] == [{"seed": 4, "step": log}]
    assert "seed 4 diverged" in capsys.readouterr().err

    table = result.eval
    assert set(table[table["step"] > log]["seed"]) == {5}
    assert set(result.log[result.log["step"] > log]["seed"]) == {5}
    first = max(log, 1)
    assert {step for step in states if step >= log} == set(range(first, last + 1, stride))
    for step in range(first, last + 1, stride):
        assert not differing(states[first], states[step], 0)
    assert differing(states[first], states[last], 1)
    assert not differing(result.agent, whole.agent, 1)


@whole_runs
def test_when_all_runs_diverge_the_exit_code_is_3(script, train_short, poisoned):
    poisoned(script, 0, 1)
    result = train_short(script, seeds=("4", "5"))
    assert result.code == 3 and result.config["status"] == "diverged"
    assert result.config["step"] < short(script)["total_steps"]
    assert [row["seed"] for row in result.config["diverged"]] == [4, 5]
    assert train_short(script, seeds=("4", "5"), resume=True).code == 3


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved_envs(monkeypatch):
    """Makes the state of Gymnasium's own environments a part of the checkpoints, by copies within this process."""
    copies: list[Any] = []

    def state_dict(envs):
        copies.append(copy.deepcopy({name: vars(envs)[name] for name in ("venv", "totals", "lengths", "done", "obs")}))
        return {"number": torch.tensor(len(copies) - 1)}

    def load_state_dict(envs, state):
        vars(envs).update(copy.deepcopy(copies[int(state["number"])]), restarted=False, _ended=[])

    monkeypatch.setattr(SeededEnvs, "resumable", True)
    monkeypatch.setattr(SeededEnvs, "state_dict", state_dict)
    monkeypatch.setattr(SeededEnvs, "load_state_dict", load_state_dict)


def break_off(monkeypatch, train, script: str, at: tuple[int, ...], **overrides):
    """A run that breaks off after these steps, each time without a word, and goes on from its last checkpoint."""
    restore = Run._restore
    taken_up: list[int] = []

    def restored(run):
        restore(run)
        taken_up.append(run.step + sum(run.phases.values()))

    for last in at:
        with breaking_off(monkeypatch, last):
            train(script, out="broken", resume=True, **overrides)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_restore", restored)
        result = train(script, out="broken", resume=True, **overrides)
    assert taken_up[0] > short(script, **overrides).get("learning_starts", 0)  # in the midst of learning
    return result


@pytest.mark.parametrize("script", ["sac", "td3", "dsac_t", "mdpo_off_policy", "dqn"])
def test_a_replay_that_is_smaller_than_the_run_holds_the_last_steps(script, train_short, monkeypatch):
    replays, rows, init, add = [], [], ReplayBuffer.__init__, ReplayBuffer.add

    def added(replay, step):
        rows.append(replay.packed(step)[0, slice(None) if step.valid is None else torch.from_numpy(step.valid[0])])
        add(replay, step)

    monkeypatch.setattr(ReplayBuffer, "__init__", lambda own, *given: replays.append(own) or init(own, *given))
    monkeypatch.setattr(ReplayBuffer, "add", added)
    result = train_short(script, buffer_size=13, eval_episodes=0)
    (replay,), steps = replays, torch.cat(rows)
    assert result.code == 0 and replay.capacity == replay.rows.shape[1] == 13 and len(steps) > 30
    assert torch.equal(replay.rows[0, torch.arange(len(steps) - 13, len(steps)) % 13], steps[-13:])


DELAYED = {
    "sac with 3": ({"actor_delay": 3}, [6, 9, 12]),
    "td3": ({}, [6, 8, 10, 12]),
    "dsac_t": ({}, [6, 8, 10, 12]),
    "dsac_t with 4 steps": ({"env_steps_per_update": 4, "learning_starts": 8, "total_steps": 28}, [12, 20, 28]),
    "mdpo_off_policy with 3": ({"refresh_every": 3}, [7, 10]),
}


@pytest.mark.parametrize("case", DELAYED)
def test_what_is_delayed_comes_at_its_steps(case, train_short, monkeypatch):
    """SAC and TD3 count environment steps as their models do, MDPO counts them from 0, and DSAC-T counts updates."""
    flags, expected = DELAYED[case]
    script, due, steps, report = case.split()[0], [], [], Run._report_progress
    monkeypatch.setattr(agent_type(script), "update", lambda *given: due.append(given[-1]) or {})
    monkeypatch.setattr(Run, "_report_progress", lambda run: steps.append(run.step) or report(run))
    train_short(script, **{"learning_starts": 5, "total_steps": 12, "eval_episodes": 0} | flags)
    assert [step for step, is_due in zip(steps[-len(due) :], due, strict=True) if is_due] == expected


def assert_same_end(one, other) -> None:
    assert not differing(one.parameters, other.parameters)
    for table in ("eval", "log"):
        ours, theirs = getattr(one, table), getattr(other, table)
        order = [name for name in ours.columns if name not in ("value", "return", "length")]
        ours, theirs = (frame.sort_values(order, ignore_index=True) for frame in (ours, theirs))
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    assert len(one.log)


@pytest.mark.usefixtures("tensorboard", "policies_are_tried")
@whole_runs
def test_a_run_that_breaks_off_resumes_to_the_bitwise_same_end(script, train_short, monkeypatch, request, capsys):
    """And nothing is said of state that a checkpoint would lose, or of policies that could not be loaded."""
    if short(script).get("env_id") == "CartPole-v1":
        request.getfixturevalue("saved_envs")
    overrides = {"seeds": ("0", "1"), "checkpoint_every": 8, "eval_every": 10, "log_every": 3}
    overrides |= {"checkpoint_every": 4, "eval_every": 6} if is_offline(script) else {}
    at = (7, 14) if is_offline(script) else (24, 36) if is_on_policy(script) else (23, 34)
    if SCRIPTS[script].get("learning_starts"):
        overrides |= {"checkpoint_every": 9}  # resumes at step 27, after an odd number of updates
        at = at if script == "sac" else at[1:]
    elif script not in ("ppo", "iql", "stream_ac"):
        at = at[:1]  # once is enough for what a script itself saves
    with unread():
        whole = train_short(script, out="whole", **overrides)
    assert_same_end(whole, break_off(monkeypatch, train_short, script, at, **overrides))
    assert not re.search("warning: .*(polic|checkpoint|optimiser|buffer)", capsys.readouterr().err)


@pytest.mark.usefixtures("short_ways_to_goals")
@pytest.mark.parametrize("script", ["gcbc", "qrl", "ota"])
def test_a_run_with_goals_resumes_to_the_same_evaluations_and_tables_of_its_maze(script, train_short, monkeypatch):
    overrides = {"seeds": ("0", "1"), "checkpoint_every": 4, "eval_every": 6, "log_every": 3, **EVALUATED_WITH_GOALS}
    whole = train_short(script, out="whole", **overrides)
    resumed = break_off(monkeypatch, train_short, script, (14,), **overrides)
    assert_same_end(whole, resumed)
    assert set(whole.eval["step"]) == {0, 6, 12, 18, 20} and whole.eval["task"].nunique() == 5
    orders = {"gcbc": 0, "qrl": 1, "ota": 2}[script]  # of values
    logged = whole.log[whole.log["metric"].str.startswith("order_of_")]
    assert logged["metric"].nunique() == orders and logged["value"].between(0, 1).all()
    for name in ("ways", "values")[: 1 + (orders > 0)]:
        ours, theirs = (pd.read_parquet(run.folder / f"{name}.parquet") for run in (whole, resumed))
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
        assert set(ours["seed"]) == {0, 1} and len(ours) > 100


@pytest.mark.parametrize("script", ["sac", "stream_ac", "iql"])
def test_a_run_with_a_diverged_neighbour_resumes_to_the_bitwise_same_end(script, train_short, monkeypatch, poisoned):
    """Run 0 is frozen; its optimiser's number of steps is no longer that of the others."""
    poisoned(script, 0)
    overrides = {"seeds": ("0", "1"), "checkpoint_every": 4, "log_every": 3}
    at = (7, 14) if is_offline(script) else (27, 34)
    whole = train_short(script, out="whole", **overrides)
    assert_same_end(whole, break_off(monkeypatch, train_short, script, at, **overrides))


GRID = {
    "sac": ("critic_lr=1e-3,1e-4", "tau=0.005,0.5"),
    "stream_td": ("kappa=2,3",),
    "iql": ("expectile=0.7,0.9", "lr=1e-3,1e-4"),
    "ppo": ("clip=0.1,0.3", "discount=0.9,0.99"),
    "ravl": ("eta=0,1", "discount=0.9,0.99"),
    "mobile": ("penalty_weight=0.5,1",),
}


@pytest.mark.parametrize(
    "script", [pytest.param(script, marks=pytest.mark.slow) if script == "mobile" else script for script in GRID]
)
def test_a_grid_leaves_tables_with_a_column_for_each_hyperparameter_and_resumes(script, train_short, monkeypatch):
    names = [word.partition("=")[0] for word in GRID[script]]
    overrides = {"seeds": ("0", "1"), "vary": GRID[script], "checkpoint_every": 4, "eval_every": 20}
    at = (7,) if is_offline(script) else (24,) if is_on_policy(script) else (27,)
    overrides |= evaluated(script)
    whole = train_short(script, out="whole", **overrides)
    result = break_off(monkeypatch, train_short, script, at, **overrides)
    assert_same_end(whole, result)

    runs = 2 ** len(names) * 2
    assert result.config["varied"] == names and result.config["diverged"] == []
    assert len(result.config["settings"]) == runs / 2
    last = {name: float(word.split(",")[-1]) for name, word in zip(names, GRID[script], strict=True)}
    assert result.config["settings"][-1] == last
    assert list(result.eval.columns) == ["seed", *names, "step", "episode", "return", "length"]
    assert list(result.log.columns) == ["seed", *names, "step", "metric", "value"]
    for frame in (result.eval, result.log):
        assert len(frame[["seed", *names]].drop_duplicates()) == runs
    assert all(tensor.shape[0] == runs for tensor in result.agent.values() if tensor.dim())
    key = "critic.out.weight" if "critic.out.weight" in result.agent else "critic.net.out.weight"
    trained = result.agent[key]
    assert all(not torch.equal(trained[0], other) for other in trained[1:])


def test_a_setting_in_a_grid_is_that_setting_alone_through_whole_runs(train_short, float64):
    for script, word in (("iql", "temperature=1.0,3.0"), ("sac", "discount=0.9,0.99")):
        name, _, values = word.partition("=")
        grid = train_short(script, out="grid", seeds=("3", "7"), vary=(word,))
        for number, value in enumerate(values.split(",")):
            alone = train_short(script, out=f"alone{number}", seeds=("7",), **{name: float(value)})
            assert_close(grid.agent, slice(2 * number + 1, 2 * number + 2), alone.agent)


@pytest.mark.parametrize("script", ["sac", "iql"])
def test_a_run_without_a_grid_leaves_the_columns_of_the_contract(script, train_short):
    result = train_short(script, seeds=("0", "1"), **evaluated(script))
    assert list(result.eval.columns) == ["seed", "step", "episode", "return", "length"]
    assert list(result.log.columns) == ["seed", "step", "metric", "value"]
    assert (result.config["varied"], result.config["settings"], result.config["diverged"]) == ([], [{}], [])
    assert result.config["identity"]["vary"] == [] and result.config["status"] == "finished"


def test_a_setting_that_diverges_is_named(train_short, poisoned, capsys):
    poisoned("iql", 3)
    result = train_short("iql", seeds=("4", "5"), vary=("expectile=0.7,0.9",))
    assert result.config["diverged"] == [{"seed": 5, "expectile": 0.9, "step": 5}]
    assert "seed 5 with expectile=0.9 diverged before step 5" in capsys.readouterr().err


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("script", ["iql", "ppo", "ravl", "mobile"])
def test_a_compiled_grid_equals_an_eager_one(script, train_short, request):
    """They are equal to rounding, which float32 enlarges where a gradient changes at kinks of ReLU, as with models."""
    overrides = {"seeds": ("0", "1"), "vary": GRID[script]}
    if script in ("ravl", "mobile"):
        request.getfixturevalue("float64")
        overrides |= {"dynamics_batch_size": 56}  # batches of one size, because each size is compiled
    eager = train_short(script, out="eager", **overrides)
    if script == "ravl":  # where mobile compiles the training of the ensemble
        overrides |= {"dynamics": str(eager.folder / "dynamics.safetensors")}
    compiled = train_short(script, out="compiled", compile=True, **overrides).agent
    for name, tensor in eager.agent.items():
        if "adam" not in name:
            torch.testing.assert_close(tensor, compiled[name], atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


# that others do the same is shown by whole runs, and by updates in their own files
COMPILED = [
    script for script in UPDATED
    if script not in ("sqirl", "dsac_t", "stream_ac", "iql", "xql", "ravl", "mobile") and " " not in script
    and not is_on_policy(script)
]  # fmt: skip


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("script", COMPILED)
def test_a_compiled_update_equals_an_eager_one(script, float64):
    """Stored runs are compiled; eager updates are held to official code and plain rewrites elsewhere."""
    eager, fast = agent_of(script), agent_of(script)
    update, feeds = compiled(fast.update, torch.device("cpu"), compile_on_cpu=True), (Feed(eager), Feed(fast))
    for feed in feeds:
        feed.restart()
    for one, other in islice(zip(*feeds, strict=True), 4):
        wanted, found = eager.update(*one), update(*other)
        assert_close(found, slice(None), wanted)
    assert_close(state_of(fast), slice(None), state_of(eager))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("script", ["trpo", "mdpo_on_policy"])
def test_a_compiled_run_equals_an_eager_one(script, train_short, float64):
    """Their updates are compiled in parts."""
    eager, fast = (train_short(script, out=str(on), seeds=("0", "1"), compile=on) for on in (False, True))
    assert_close(fast.agent, slice(None), eager.agent)


# -- means over the batch ----------------------------------------------------------------------------------------------


def of_rows(script: str) -> bool:
    """Whether an update is of a batch whose rows count on their own.

    In CRL each row is a negative example for the others, and MOBILE knows rows of the model by their places.
    """
    return not (is_on_policy(script) or is_stream(script) or script.split()[0] in ("crl", "mobile"))


@pytest.mark.parametrize("script", [script for script in UPDATED if of_rows(script)])
def test_an_update_with_every_row_twice_is_the_same(script, float64):
    """Losses and metrics are means over the batch, and not sums."""
    one, other = agent_of(script), agent_of(script)

    def twice(x: Any) -> Any:
        axes = [axis for axis, size in enumerate(getattr(x, "shape", ())) if size == one.args.batch_size]
        return torch.cat([x, x], axes[0]) if axes else x

    for arguments in islice(Feed(one), 3):
        ours, theirs = one.update(*arguments), other.update(*tree_map(twice, arguments))
        assert ours.keys() == theirs.keys()
        assert_close(ours, slice(None), theirs)
    assert_close(state_of(one), slice(None), state_of(other))
