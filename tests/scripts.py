"""The one table of all scripts, for tests of what every script must keep: short arguments, agents, and their updates.

A new script joins by one line in SCRIPTS. A name may have a second word where a script has several forms. Below are
the copies in torch's own layers that tests of single scripts compare networks with.
"""

import contextlib
import importlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import tunable
from algos.cli import with_settings
from algos.compile import can_compile
from algos.episodes import Steps
from algos.goal_conditioned import GoalArgs
from algos.random import Random
from algos.replay import Batch
from algos.rollout import Outcome, Rollout
from algos.run import Run
from algos.stream import Step
from envs import Task
from envs.make import TABULAR

ALL = {"total_steps": 40, "log_every": 5, "checkpoint_every": 1_000, "eval_every": 40, "threads": 1}
ONLINE = {
    "env_id": "InvertedPendulum-v5", "learning_starts": 20, "batch_size": 16, "hidden": (16, 12), "eval_episodes": 1,
}  # fmt: skip
Q_LEARNING = ONLINE | {
    "env_id": "CartPole-v1", "learning_starts": 0, "train_every": 2, "target_every": 6, "lr": 0.003, "max_norm": 0.1,
    "exploration": 0.5,
}  # fmt: skip
ON_POLICY = {
    "env_id": "InvertedPendulum-v5", "horizon": 3, "num_envs": 2, "batch_size": 3, "hidden": (16, 12),
    "eval_episodes": 1, "compile": False,
}  # fmt: skip
STREAM = {"hidden": (16, 12), "compile": False}
# the files are those that the fixture `train_short` makes
OFFLINE = {"dataset": "data.hdf5", "total_steps": 20, "batch_size": 16, "hidden": (8, 6), "eval_episodes": 0}
IMITATION = {"expert_dataset": "data.hdf5", "expert_trajectories": 2, "expert_transitions": 12, "dropout": 0.3}
MODEL = OFFLINE | {
    "rollouts": 40, "rollout_length": 2, "updates_per_epoch": 5, "real_ratio": 0.25, "never_terminates": True,
    "members": 3, "elites": 2, "dynamics_hidden": (8,), "dynamics_batch_size": 64, "dynamics_epochs": 2,
}  # fmt: skip

# iterations of one to six steps, which some runs make more of than others
UNEVEN = {"env_id": "tabular/gate-0.375", "m": 2, "k": 2, "eval_every": 20, "discount": 0.9}
GOALS = {"dataset": "goals.hdf5", "total_steps": 20, "batch_size": 16, "hidden": (8, 6), "eval_episodes": 0}

# script -> arguments that make some 20 updates in which all of its parts work
SCRIPTS: dict[str, dict[str, Any]] = {
    "sac": ONLINE,
    "td3": ONLINE,
    "dsac_t": ONLINE,
    "dsac_t huber": ONLINE | {"loss": "huber"},
    "dqn": Q_LEARNING,
    "sqirl": UNEVEN | {"lr": 0.003, "max_norm": 0.1, "batch_size": 8, "hidden": (16, 12), "reward_scale": 2.0},
    "sqirl table": UNEVEN | {"form": "table"},
    "gorp": UNEVEN | {"env_id": "tabular/lure-0.1"},
    "mdpo_off_policy": ONLINE,
    "mdpo_off_policy tsallis": ONLINE | {"q": 1.4, "refresh_every": 4, "value_loss": "broadcast"},
    "mdpo_on_policy": ON_POLICY | {"lr": 0.003, "critic_lr": 0.02, "policy_steps": 4},
    "ppo": ON_POLICY | {"lr": 0.02, "entropy_weight": 0.01, "epochs": 4},
    "ppo discrete": ON_POLICY
    | {"lr": 0.02, "entropy_weight": 0.01, "epochs": 4, "env_id": "CartPole-v1", "bootstrap_limits": True},
    "trpo": ON_POLICY | {"cg_steps": 4},  # more would enlarge differences of rounding
    "stream_ac": STREAM | {"env_id": "InvertedPendulum-v5"},
    "stream_ac adaptive": STREAM | {"env_id": "InvertedPendulum-v5", "adaptive": True},
    "stream_ac discrete": STREAM | {"env_id": "CartPole-v1"},
    "stream_q": STREAM | {"env_id": "CartPole-v1", "exploration": 0.5},
    "stream_q sarsa": STREAM | {"env_id": "CartPole-v1", "exploration": 0.5, "target": "sarsa"},
    "stream_td": STREAM | {"env_id": "series.csv"},
    "bc": OFFLINE | {"dropout": 0.3},
    "td3_bc": OFFLINE,
    "iql": OFFLINE | {"dropout": 0.3},
    "xql": OFFLINE | {"dropout": 0.3, "noise": 0.1, "random_actions": 1, "value_updates": 2},
    "f_dvl": OFFLINE | {"dropout": 0.3},
    "f_dvl tv": OFFLINE | {"dropout": 0.3, "f": "tv"},
    "recoil": OFFLINE | IMITATION,
    "mopo": MODEL,
    "mobile": MODEL | {"guesses": 3},
    "mobile fixed": MODEL | {"guesses": 3, "temperature": 0.2},
    "ravl": MODEL | {"critics": 3},
    "ravl edac": MODEL | {"critics": 3, "real_ratio": 1.0},
    "gcbc": GOALS,
    "gcbc rvs": GOALS
    | {
        "anchors": "trajectories",
        "goal": "position",
        "loss": "mse",
        "max_norm": 0.25,
        "augment": 0.5,
        "clusters": 5,
    },
    "gcivl": GOALS,
    "gciql": GOALS,
    "gciql awr": GOALS | {"actor_loss": "awr", "alpha": 3.0},
    "crl": GOALS | {"latent_size": 6},
    "crl awr": GOALS | {"latent_size": 6, "actor_loss": "awr"},
    "qrl": GOALS | {"latent_size": 16},
    "qrl mrn": GOALS | {"latent_size": 6, "quasimetric": "mrn"},
    "qrl awr": GOALS | {"latent_size": 16, "actor_loss": "awr"},
    "hiql": GOALS | {"subgoal_steps": 3, "representation_size": 4},
    "ota": GOALS | {"subgoal_steps": 3, "option_steps": 2, "representation_size": 4},
    "recoil paper": OFFLINE | IMITATION | {"objective": "paper"},
}
# whole runs of these are tested in their own files: the runs make different numbers of steps
UNEVEN_SCRIPTS = tuple(script for script in SCRIPTS if script.split()[0] in ("sqirl", "gorp"))
UPDATED = [script for script in SCRIPTS if script not in ("sqirl table", "gorp")]  # those whose agents have an update
EVALUATED = {"eval_episodes": 1, "env_id": "InvertedPendulum-v5"}  # for the file of `write_hdf5`
EVALUATED_WITH_GOALS = {"eval_episodes": 1, "env_id": "pointmaze-medium-v0"}
CONTINUOUS = Task("Made-v0", (7,), 2, False, (-2.0, -2.0), (2.0, 2.0), 50)
DISCRETE = Task("Made-v0", (7,), 3, True, (), (), 50)
SERIES = Task("made", (7,), 0, False, (), (), 0)

needs_compiler = pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler and Python's headers")


def module_of(script: str) -> ModuleType:
    return importlib.import_module(script.split()[0])


def short(script: str, **overrides: Any) -> dict[str, Any]:
    """The arguments of a short run."""
    return ALL | SCRIPTS[script] | overrides


def is_offline(script: str) -> bool:
    return "dataset" in SCRIPTS[script]


def is_stream(script: str) -> bool:
    return script.startswith("stream_")


def is_on_policy(script: str) -> bool:
    return "horizon" in SCRIPTS[script]


def stride_of(script: str) -> int:
    """The environment steps of an iteration."""
    return SCRIPTS[script].get("horizon", 1) * SCRIPTS[script].get("num_envs", 1)


def is_model_based(script: str) -> bool:
    return "rollouts" in SCRIPTS[script]


def is_goals(script: str) -> bool:
    return issubclass(module_of(script).Args, GoalArgs)


def is_goal_batch(kind: Any) -> bool:
    """Whether a type is a batch, or a part of one, of a goal-conditioned method."""
    return any(field in getattr(kind, "_fields", ()) for field in ("goal", "value_goal", "mask")) and kind is not Batch


def agent_type(script: str) -> type[Agent]:
    """The one kind of agent with an update that a script defines."""
    module = module_of(script)
    (kind,) = (
        kind for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Agent) and kind.__module__ == module.__name__
        and hasattr(kind, "update")
    )  # fmt: skip
    return kind


def task_of(script: str) -> Task:
    """A task without environments that suits a script."""
    if script == "stream_td":
        return SERIES
    task = DISCRETE if SCRIPTS[script].get("env_id", "").startswith(("CartPole-v1", TABULAR)) else CONTINUOUS
    return replace(task, low=(-1.0,) * 2, high=(1.0,) * 2) if is_offline(script) else task


def agent_of(
    script: str, seeds: Sequence[int] = (0, 1), task: Task | None = None, device: str = "cpu", **overrides: Any
) -> Any:
    """An agent with short arguments, on a made task. With `vary`, every setting is made with every seed."""
    if is_on_policy(script):
        overrides.setdefault("total_steps", 400)  # or its schedules would be at their end
    args, seeds = with_settings(module_of(script).Args(**short(script, **overrides)), list(seeds))
    return agent_type(script)(args, task or task_of(script), seeds, device)


def hyperparameters(script: str) -> list[str]:
    """Those that may differ between runs, and then make a difference."""
    args = module_of(script).Args
    return [name for name in tunable(args) if name not in args(**short(script)).without_effect()]


@contextlib.contextmanager
def breaking_off(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """A context in which a run breaks off after a step, as by a kill."""
    report = Run._report_progress

    def killed(run: Run) -> None:
        report(run)
        if run.step == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_report_progress", killed)
        with pytest.raises(KeyboardInterrupt):
            yield


class Feed:
    """An endless sequence of arguments for an agent's `update`; those of a run depend on its seed alone.

    They are chosen by the type of a parameter (Batch, Steps, Step, Rollout) or by its name (draws, noise, actor_due,
    refresh_due, and active, which leaves out every third update of a run). About every sixth transition is terminal,
    and every tenth step of a stream ends an episode. `restart` begins the episodes of a streaming agent, and does
    nothing for others.
    """

    def __init__(self, agent: Any):
        self.agent, self.random, self.number = agent, Random(agent.seeds, agent.device), 0
        self.draws = agent.draws(self.random, *([1] if "envs" in inspect.signature(agent.draws).parameters else []))
        self.parameters = inspect.signature(agent.update).parameters
        size = getattr(agent.args, "batch_size", 1)
        self.normal, self.uniform = {}, {}
        for name, parameter in self.parameters.items():
            if hasattr(parameter.annotation, "_fields") and is_goal_batch(parameter.annotation):
                self.normal[name] = self.random.normal(f"test {name}", 40, size, agent.task.obs_size)
                self.uniform[name] = self.random.uniform(f"test {name} uniform", 40, size, 1)
            if parameter.annotation is Rollout:
                size = agent.args.stride
            if parameter.annotation in (Batch, Steps, Step, Rollout):
                self.normal[name] = self.random.normal(f"test {name}", 2 * agent.task.obs_size + 1, size)
                self.uniform[name] = self.random.uniform(f"test {name} uniform", agent.task.act_size + 1, size)
            if name == "guesses":
                args = agent.args
                shape = (args.elites, args.guesses, args.batch_size - args.real, agent.task.obs_size)
                self.guesses = self.random.normal("test guesses", *shape)

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        self.number += 1
        return [self._argument(name, parameter.annotation) for name, parameter in self.parameters.items()]

    def _argument(self, name: str, kind: Any) -> Any:
        if kind is Batch:
            return self._batch(name)
        if kind is Steps:
            batch = self._batch(name)
            return Steps(*batch, returns=batch.reward + batch.obs[..., 0])
        if name == "active":
            moves = [(self.number + seed) % 3 != 0 for seed in self.agent.seeds]
            return torch.tensor(moves, device=self.agent.device)
        if kind is Step:
            return self._step(name)
        if is_goal_batch(kind):
            normal, uniform = (iter(x[name]().unbind(1)) for x in (self.normal, self.uniform))
            return self._goal_batch(kind, normal, uniform)
        if kind is Rollout:
            return self._rollout(name)
        if name == "refresh_due":
            return self.number % self.agent.args.refresh_every == 0
        if name == "actor_due":
            return self.number % self.agent.args.actor_delay == 0
        if name in ("draws", "noise"):
            return self.draws()
        if name == "guesses":
            return self.guesses()
        raise TypeError(
            f"{type(self.agent).__name__}.update takes {name!r}, for which this feed has nothing: it knows parameters "
            "of the types Batch, Steps, Step and Rollout, and those named draws, noise, guesses, actor_due, "
            "refresh_due and active"
        )

    def _batch(self, name: str) -> Batch:
        task, normal, uniform = self.agent.task, self.normal[name]().mT, self.uniform[name]().mT
        obs, next_obs, reward = normal.split((task.obs_size, task.obs_size, 1), -1)
        bounds = ((task.low, 0.0), (task.high, 1.0))
        low, high = (torch.tensor(bound or default, device=self.agent.device) for bound, default in bounds)
        action = low + (high - low) * uniform[..., :-1]
        if task.discrete:
            action = (action[..., 0] * task.act_size).long()
        return Batch(obs, action, reward[..., 0].clone(), next_obs, (uniform[..., -1] < 1 / 6).to(obs.dtype))

    def _goal_batch(self, kind: Any, normal: Iterator[Tensor], uniform: Iterator[Tensor]) -> Any:
        """Fields by their names; about every sixth goal is reached."""
        reached = (next(uniform)[..., 0] < 1 / 6).to(torch.get_default_dtype())
        known = {"reward": reached - 1, "mask": 1 - reached, "augmented": reached}
        fields = []
        for field in kind._fields:
            inner = kind.__annotations__[field]
            if is_goal_batch(inner):
                fields.append(self._goal_batch(inner, normal, uniform))
            elif field == "action":
                fields.append(torch.cat([2 * next(uniform) - 1 for _ in range(self.agent.task.act_size)], -1))
            elif field == "goal" and hasattr(self.agent, "goal_size"):
                fields.append(next(normal)[..., : self.agent.goal_size])
            else:
                fields.append(known[field] if field in known else next(normal))
        return kind(*fields)

    def _rollout(self, name: str) -> Rollout:
        """A segment in which about every sixth step ends an episode, half of them by a time limit."""
        task, args, batch = self.agent.task, self.agent.args, self._batch(name)
        rollout = Rollout(self.agent.runs, args.horizon, args.num_envs, task, self.agent.device)
        chance = self.uniform[name]().mT[..., -1]
        ended, terminated = (chance < 1 / 6).to(batch.obs.dtype), (chance < 1 / 12).to(batch.obs.dtype)
        fields = (batch.obs, batch.action, batch.reward, ended, terminated, batch.next_obs)
        for t in range(args.horizon):
            rows = [x.unflatten(1, (args.horizon, args.num_envs))[:, t] for x in fields]
            rollout.add(rows[0], rows[1], Outcome(*rows[2:]))
        return rollout

    def _step(self, name: str) -> Step:
        size, normal = self.agent.task.obs_size, self.normal[name]()[..., 0].double()
        done = (self.uniform[name]()[:, -1, 0] < 0.1).double()
        return Step(normal[:, -1].clone(), 3 * normal[:, :size] + 1, done, normal[:, size:-1], done)

    def restart(self) -> None:
        """Begins the episodes of a streaming agent."""
        for name, parameter in self.parameters.items():
            if parameter.annotation is Step:
                self.agent.restart(self._step(name).next_obs, self.draws())


def learn(agent: Any, updates: int = 20) -> list[dict[str, Tensor]]:
    """Makes updates from the start; gives their metrics."""
    feed = Feed(agent)
    feed.restart()
    return [agent.update(*arguments) for arguments, _ in zip(feed, range(updates), strict=False)]


def batch_and_draws(agent: Any, number: int = 0) -> tuple[Batch, Any]:
    """The batch and the random numbers of one update, counted from 0, of an agent that learns from batches."""
    batch, draws, *_ = next(islice(Feed(agent), number, None))
    return batch, draws


def state_of(agent: Any) -> dict[str, Tensor]:
    """A copy of all that an agent has learned."""
    return {name: tensor.clone() for name, tensor in agent.state_dict().items()}


def differing(a: dict[str, Tensor], b: dict[str, Tensor], rows: Any = slice(None)) -> list[str]:
    """The names of the tensors that are not the same, bit for bit, in all runs or in those of `rows`.

    A number that all runs share counts unless `rows` is one run.
    """
    assert a.keys() == b.keys()
    pairs = {name: (x[rows], b[name][rows]) if x.dim() else (x, b[name]) for name, x in a.items()}
    return [name for name, (x, y) in pairs.items() if not same(x, y) and (a[name].dim() or not isinstance(rows, int))]


def same(x: Tensor, y: Tensor) -> bool:
    """True for equal tensors, which may have NaN at equal places."""
    return x.shape == y.shape and torch.equal(x.isnan(), y.isnan()) and torch.equal(x.nan_to_num(), y.nan_to_num())


# -- networks of one run in torch's own layers -------------------------------------------------------------------------


def layers_of(mlp: Any, *network: int) -> nn.Sequential:
    """The network of a run, or of one of its members, of an MLP in torch's layers."""

    def linear(own: Any) -> nn.Linear:
        layer = nn.Linear(*own.weight.shape[-2:])
        layer.weight.data.copy_(own.weight[network].T.detach())
        layer.bias.data.copy_(own.bias[network][0].detach())
        return layer

    layers: list[nn.Module] = []
    for first, *norm in mlp.hidden:
        layers.append(linear(first))
        layers += [nn.LayerNorm(first.weight.shape[-1], eps=1e-6)] if norm else []
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, linear(mlp.out))


def stream_layers_of(network: Any, run: int) -> nn.Sequential:
    """The network of a run of a streaming agent, without convolutions, in torch's layers."""
    layers: list[nn.Module] = []
    for own in [*network.hidden, network.out]:
        layer = nn.Linear(*own.weight.shape[:0:-1])
        layer.weight.data, layer.bias.data = own.weight[run].detach().clone(), own.bias[run].detach().clone()
        layers += [layer, nn.LayerNorm(layer.out_features, elementwise_affine=False), nn.LeakyReLU()]
    return nn.Sequential(*layers[:-2])


def assert_same(mlp: Any, layers: nn.Sequential, *network: int) -> None:
    """The network of a run, or of one of its members, is the one in torch's layers."""
    ours = [layer for block in [*mlp.hidden, [mlp.out]] for layer in block]
    theirs = [layer for layer in layers if not isinstance(layer, nn.ReLU)]
    for a, b in zip(ours, theirs, strict=True):
        weight = b.weight.T if isinstance(b, nn.Linear) else b.weight[None]
        torch.testing.assert_close(a.weight[network], weight, atol=1e-9, rtol=0)
        torch.testing.assert_close(a.bias[network][0], b.bias, atol=1e-9, rtol=0)
