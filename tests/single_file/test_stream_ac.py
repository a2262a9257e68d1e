"""Stream AC against the sheet's values and against a learner of one run written with torch's own layers."""

import gc
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import stream_ac
import torch
import torch.nn.functional as F
from scripts import DISCRETE, agent_of, agent_type, needs_compiler, state_of, stream_layers_of
from stream_ac import StreamAC
from torch import nn
from torch.distributions import Categorical, Normal

from algos.compile import compiled
from algos.errors import UserError
from algos.learner import Learner, learner_file
from algos.obgd import ObGD
from algos.policy import FILE, load_policy, policy_file
from algos.run import Run
from algos.stream import Step
from benchmarks.trained import Place, Trained
from envs import Task, make_vec

CPU = torch.device("cpu")
CONTINUOUS = Task("Made-v0", (7,), 3, False, (-1.0,) * 3, (1.0,) * 3, 50)
IMAGES = Task("Made-v0", (4, 10, 10), 3, True, (), (), 0)


def stream_of(runs: int, ticks: int, task=CONTINUOUS, seed: int = 0):
    """Yields `ticks` transitions, each reward, next_obs, done, noise and first_obs [runs, ...].

    The episodes of different runs end at different ticks.
    """
    g = torch.Generator().manual_seed(seed)
    size = math.prod(task.obs_shape)
    for _ in range(ticks):
        noise = torch.rand(runs, 3, generator=g) if task.discrete else torch.randn(runs, 3, generator=g)
        yield (
            torch.randn(runs, generator=g), 3 * torch.randn(runs, size, generator=g) + 1,
            (torch.rand(runs, generator=g) < 0.06).double(), noise, torch.randn(runs, size, generator=g),
        )  # fmt: skip


def step_of(reward, next_obs, done, noise, first, begun=None):
    """The arguments of `update`; an episode begins where one ended, or where `begun` says."""
    return Step(reward, next_obs, done, first, done if begun is None else begun), noise


class Lone:
    """Stream AC of one run, straight from the equations: torch's layers, distributions, and loops over parameters."""

    def __init__(self, agent: StreamAC, run: int, kind):
        self.kind, self.args = kind, agent.args
        self.actor, self.critic = (stream_layers_of(net, run) for net in (agent.actor, agent.critic))
        self.traces = {net: [torch.zeros_like(p) for p in net.parameters()] for net in (self.actor, self.critic)}
        self.obs, self.total = [], 0.0
        self.totals: list[float] = []

    def see(self, obs, time) -> torch.Tensor:
        """Statistics of all observations so far, computed anew."""
        self.obs.append(obs)
        all_obs = torch.stack(self.obs)
        variance = all_obs.var(0) if len(self.obs) > 1 else torch.ones_like(obs)
        return torch.cat([(obs - all_obs.mean(0)) / (variance + 1e-8).sqrt(), torch.tensor([time])])

    def start(self, obs, noise):
        self.time = 0
        self.state = self.see(obs, -0.5)
        return self.act(noise)

    def policy(self, state):
        out = self.actor(state)
        if self.kind is Categorical:
            return Categorical(logits=out)
        mean, raw = out.chunk(2)
        return Normal(mean, F.softplus(raw))

    def act(self, noise):
        policy = self.policy(self.state)
        if self.kind is Categorical:
            self.action = (policy.logits - torch.log(-torch.log(noise))).argmax()
        else:
            self.action = policy.mean + policy.stddev * noise
        self.action = self.action.detach()

    def learn(self, reward, next_obs, done):
        self.total = 0.99 * self.total * (1 - done) + reward
        self.totals.append(float(self.total))
        variance = torch.tensor(self.totals).var() if len(self.totals) > 1 else torch.tensor(1.0)
        reward = reward / (variance + 1e-8).sqrt()
        next_state = self.see(next_obs, -0.5 + self.time / 50)
        self.time += 1
        value = self.critic(self.state)[0]
        delta = (reward + 0.99 * (1 - done) * self.critic(next_state)[0] - value).detach()
        policy = self.policy(self.state)
        objective = policy.log_prob(self.action).sum() + 0.01 * torch.sign(delta) * policy.entropy().sum()
        for net, output, kappa in ((self.actor, objective, 3.0), (self.critic, value, 2.0)):
            gradients = torch.autograd.grad(output, list(net.parameters()))
            traces = self.traces[net] = [
                0.99 * 0.8 * z + g for z, g in zip(self.traces[net], gradients, strict=True)
            ]  # fmt: skip
            bound = kappa * max(abs(delta), 1) * sum(z.abs().sum() for z in traces)
            with torch.no_grad():
                for p, z in zip(net.parameters(), traces, strict=True):
                    p += min(1 / bound, 1) * delta * z
            if done:
                self.traces[net] = [torch.zeros_like(z) for z in traces]
        self.state = next_state


@pytest.mark.parametrize(("task", "kind"), [(CONTINUOUS, Normal), (DISCRETE, Categorical)])
def test_many_runs_are_what_each_would_be_alone(task, kind, float64):
    runs, ticks = 3, 100
    agent = agent_of("stream_ac", range(runs), task, hidden=(16, 16))
    lone = [Lone(agent, run, kind) for run in range(runs)]
    (_, _, _, noise, first), *rest = stream_of(runs, ticks + 1, task)
    agent.restart(first, noise)
    for run in range(runs):
        lone[run].start(first[run], noise[run])
    ends = 0
    for reward, next_obs, done, noise, first in rest:
        agent.update(*step_of(reward, next_obs, done, noise, first))
        ends += int(done.sum())
        for run in range(runs):
            one = lone[run]
            one.learn(reward[run], next_obs[run], done[run])
            if done[run]:
                one.start(first[run], noise[run])
            else:
                one.act(noise[run])
            torch.testing.assert_close(agent.state[run], one.state, atol=1e-9, rtol=0)
            torch.testing.assert_close(agent.action[run], one.action, atol=1e-9, rtol=0)
    assert ends > 15
    for run, one in enumerate(lone):
        for ours, theirs in ((agent.actor, one.actor), (agent.critic, one.critic)):
            flat = torch.cat([p[run].flatten() for p in ours.parameters()])
            torch.testing.assert_close(flat, nn.utils.parameters_to_vector(theirs.parameters()), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("task", "adaptive"), [(CONTINUOUS, False), (CONTINUOUS, True), (DISCRETE, False), (IMAGES, False)]
)
def test_a_run_is_not_touched_by_its_neighbours_bit_for_bit(task, adaptive):
    ticks = 60 if task == IMAGES else 100

    def run_all(change=None, order=(0, 1, 2, 3)):
        agent = agent_of("stream_ac", order, task, adaptive=adaptive, hidden=(16,))
        order = list(order)
        (_, _, _, noise, first), *rest = stream_of(4, ticks + 1, task)
        agent.restart(first[order], noise[order])
        for tick, parts in enumerate(rest):
            reward, next_obs, done, noise, first = (part[order].clone() for part in parts)
            if change is not None and tick == ticks // 2:
                reward[1], next_obs[1], done[1] = change, change, 1 - done[1]
            agent.update(*step_of(reward, next_obs, done, noise, first))
        return state_of(agent)

    clean, permuted = run_all(), run_all(order=(2, 0, 3, 1))
    for name, tensor in clean.items():
        assert torch.equal(tensor[[2, 0, 3, 1]], permuted[name]), name
    for change in (math.nan, 1e9):
        changed = run_all(change)
        assert not torch.equal(changed["critic.out.weight"][1], clean["critic.out.weight"][1])
        for name, tensor in changed.items():
            assert torch.equal(tensor[[0, 2, 3]], clean[name][[0, 2, 3]]), name


def objective_of(agent, out, action, sign):
    out = torch.tensor([out], requires_grad=True)
    log_prob, entropy = agent.log_prob_and_entropy(out, torch.tensor([action]))
    objective = log_prob + 0.01 * sign * entropy
    return log_prob.item(), entropy.item(), objective.item(), torch.autograd.grad(objective.sum(), out)[0][0].tolist()


@pytest.mark.parametrize(
    ("script", "task", "widths"),
    [
        ("stream_ac", CONTINUOUS, [128, 128]),
        ("stream_ac", DISCRETE, [32, 32]),
        ("stream_ac", replace(DISCRETE, obs_shape=(4, 10, 10)), [128]),  # MinAtar
        ("stream_q", DISCRETE, [32, 32]),
        ("stream_q", replace(DISCRETE, obs_shape=(4, 10, 10)), [128]),
    ],
)
def test_hidden_layers_depend_on_the_task(script, task, widths):
    agent = agent_of(script, [0], task, hidden=())
    assert [layer.weight.shape[-2] for layer in agent.critic.hidden] == widths


def test_policy_gradient_of_continuous_actions(float64):
    agent = agent_of("stream_ac", [0], CONTINUOUS)
    log_prob, entropy, objective, gradient = objective_of(agent, (0.1, -0.3, 0.0, 0.5), (0.4, -1.0), -1)
    assert (log_prob, entropy, -objective) == pytest.approx((-1.796974653, 2.445099207, 1.821425645))
    assert gradient == pytest.approx([0.624411, -0.737754, -0.593436, -0.315405], abs=1e-6)  # the sheet: -0.737755


def test_policy_gradient_of_discrete_actions(float64):
    agent = agent_of("stream_ac", [0], DISCRETE)
    _, entropy, objective, gradient = objective_of(agent, (0.2, -0.1, 0.5), 1, 1)
    assert (entropy, objective) == pytest.approx((1.069272969, -1.417697440))
    assert gradient == pytest.approx([-0.323362, 0.761166, -0.437804], abs=1e-6)


@pytest.mark.parametrize("entropy", [0.0, 0.01])
def test_the_sign_of_delta_is_in_the_entropys_term_alone(entropy):
    """Sheet, check 10. At first, values are 0, and rewards of 1 and -1 are not scaled."""
    traces = []
    for reward in (1.0, -1.0):
        agent = agent_of("stream_ac", [0], CONTINUOUS, entropy=entropy)
        agent.restart(torch.zeros(1, 7), torch.ones(1, 3))
        zero = torch.zeros(1, dtype=torch.float64)
        agent.update(Step(torch.full_like(zero, reward), torch.ones(1, 7), zero), torch.zeros(1, 3))
        traces.append(torch.cat([trace.flatten() for trace in agent.actor_obgd.buffers()]))
    assert traces[0].any() and torch.equal(*traces) == (entropy == 0)


def test_discrete_actions_are_drawn_by_their_probabilities():
    agent = agent_of("stream_ac", range(500), DISCRETE)
    agent.restart(torch.zeros(500, 7), torch.rand(500, 3))
    with torch.no_grad():
        agent.actor.out.weight.zero_()
        agent.actor.out.bias.copy_(torch.tensor([0.1, 0.2, 0.7]).log())
    drawn = []
    for uniform in torch.rand(8, 500, 3, generator=torch.Generator().manual_seed(0)):
        agent.act(uniform)
        drawn.append(agent.output.clone())
    shares = torch.bincount(torch.cat(drawn), minlength=3) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.2, 0.7]), atol=0.03, rtol=0)


def test_an_action_is_clipped_for_the_task_and_learned_from_as_it_was_drawn():
    agent = agent_of("stream_ac", [0], CONTINUOUS)
    agent.restart(torch.zeros(1, 7), torch.tensor([[9.0, -9.0, 0.0]]))
    assert agent.output[0, :2].tolist() == [1, -1]
    assert agent.action[0, 0] > 1 and agent.action[0, 1] < -1


def after_a_step(done, next_obs=None):
    agent = agent_of("stream_ac", (0, 1), CONTINUOUS)
    torch.manual_seed(0)
    nn.init.normal_(agent.critic.hidden[0].weight)  # with so few inputs it starts from 0, and values are all the same
    (_, _, _, noise, first), (reward, following, _, more, again) = stream_of(2, 2)
    agent.restart(first, noise)
    done = torch.tensor(done, dtype=torch.float64)
    metrics = agent.update(*step_of(reward, following if next_obs is None else next_obs, done, more, again))
    return agent, metrics


def test_an_ended_episode_is_not_bootstrapped():
    elsewhere = torch.full((2, 7), 5.0)
    errors = [after_a_step([1.0, 0.0], obs)[1]["td_error"] for obs in (None, elsewhere)]
    assert errors[0][0] == errors[1][0] and errors[0][1] != errors[1][1]


def test_an_end_clears_the_traces_and_the_clock():
    agent, _ = after_a_step([1.0, 0.0])
    for obgd in (agent.actor_obgd, agent.critic_obgd):
        traces = torch.cat([t.flatten(1) for t in obgd.buffers()], 1)
        assert (traces[0] == 0).all() and (traces[1] != 0).any()
    assert agent.features.clock.time.tolist() == pytest.approx([-0.5, -0.48])


def test_a_restart_clears_the_traces():
    agent, _ = after_a_step([0.0, 0.0])
    agent.restart(torch.zeros(2, 7), torch.zeros(2, 3))
    for obgd in (agent.actor_obgd, agent.critic_obgd):
        assert all((trace == 0).all() for trace in obgd.buffers())


def test_a_lost_life_ends_the_traces_but_begins_nothing():
    agent = agent_of("stream_ac", (0, 1), CONTINUOUS)
    (_, _, _, noise, first), (reward, next_obs, _, more, again) = stream_of(2, 2)
    agent.restart(first, noise)
    lost, begun = torch.ones(2, dtype=torch.float64), torch.tensor([0.0, 1.0])
    agent.update(*step_of(reward, next_obs, lost, more, again, begun))
    assert agent.features.statistics.count.flatten().tolist() == [2, 3]
    assert all((trace == 0).all() for trace in agent.critic_obgd.buffers())


SHORT = {"env_id": "InvertedPendulum-v5", "compile": False, "threads": 1, "eval_every": 1300, "log_every": 1300}


@pytest.mark.slow
def test_inverted_pendulum_is_solved(train):
    result = train("stream_ac", seeds=("0:4",), total_steps=9_100, **SHORT)
    means = pd.read_parquet(result.folder / "eval.parquet").groupby(["seed", "step"])["return"].mean().unstack()
    assert (means[1300] < 200).all()
    assert (means.max(1) > 900).sum() >= 3  # of 20 seeds, 19 reach 1,000 by step 7,800 and all by step 9,100


def test_memory_does_not_grow_and_there_is_no_buffer():
    agent = agent_of("stream_ac", range(4), CONTINUOUS)
    (_, _, _, noise, first), *rest = stream_of(4, 60)
    agent.restart(first, noise)

    def size() -> int:
        gc.collect()
        return sum(o.numel() for o in gc.get_objects() if type(o) in (torch.Tensor, nn.Parameter))

    sizes = []
    for tick, parts in enumerate(rest):
        agent.update(*step_of(*parts))
        if tick in (9, 49):
            sizes.append(size())
    assert sizes[0] == sizes[1]
    kept = sum(t.numel() for t in [*agent.actor.parameters(), *agent.critic.parameters()])
    everything = len(learner_file(agent)) / 4
    assert everything < 2 * kept + 4_000  # parameters and traces, and a few numbers


def test_a_learner_goes_on_by_itself_where_its_run_was(tmp_path):
    together = agent_of("stream_ac", (5, 6), CONTINUOUS)
    (_, _, _, noise, first), *rest = stream_of(2, 60)
    together.restart(first, noise)
    for parts in rest[:30]:
        together.update(*step_of(*parts))
    (tmp_path / "learner.safetensors").write_bytes(learner_file(together))
    learner = Learner.load(tmp_path / "learner.safetensors", StreamAC, seed=6)
    assert learner.agent.args.hidden == together.args.hidden
    drawn = []
    learner.draws = lambda: drawn.pop()
    for tick, (reward, next_obs, done, noise, first) in enumerate(rest[30:]):
        together.update(*step_of(reward, next_obs, done, noise, first))
        drawn[:] = [noise[1:], noise[1:]]
        action = learner.step(next_obs[1].numpy(), float(reward[1]), bool(done[1]))
        if done[1]:
            assert action is None
            action = learner.start(first[1].numpy())
        torch.testing.assert_close(torch.from_numpy(action), together.output[1], atol=1e-5, rtol=0)
        if tick == 15:
            learner.save(tmp_path / "robot.safetensors")
            learner = Learner.load(tmp_path / "robot.safetensors", StreamAC)
            learner.draws = lambda: drawn.pop()
    assert any(parts[2][1] for parts in rest[30:])


def test_a_run_leaves_a_learner(train):
    result = train("stream_ac", seeds=("0", "1"), total_steps=60, **{**SHORT, "eval_every": 60})
    learner = Learner.load(result.folder / "learner.safetensors", StreamAC, seed=1)
    assert learner.start([0.0, 0.1, 0.0, 0.0]).shape == (1,)
    ours = {f"agent/{n}": t for n, t in learner.agent.critic.named_parameters("critic")}
    for name, tensor in ours.items():
        assert torch.equal(tensor[0].detach(), result.parameters[name][1])


def test_what_a_learner_cannot_take_is_said_in_a_sentence():
    learner = Learner(agent_of("stream_ac", [0], CONTINUOUS))
    with pytest.raises(ValueError, match=r"an observation has 7 numbers, got the shape \(3,\)"):
        learner.start([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="finite"):
        learner.start([math.nan] * 7)
    learner.start([0.0] * 7)
    with pytest.raises(ValueError, match="reward must be a finite number"):
        learner.step([0.0] * 7, math.inf, False)


def test_the_readmes_loop_works(train, tmp_path, monkeypatch):
    text = (Path(stream_ac.__file__).parents[1] / "README.md").read_text()
    code = next(part for part in text.split("```python\n")[1:] if "Learner.load" in part).split("```")[0]
    flags = {**SHORT, "env_id": "HalfCheetah-v5", "eval_every": 100}
    result = train("stream_ac", seeds=("3", "4"), total_steps=20, **flags)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(result.folder.parents[2])
    taken = []

    class Robot:
        def reset(self):
            return [0.0] * 17

        def step(self, action):
            taken.append(action)
            return [float(len(taken))] * 17, 1.0, len(taken) % 7 == 0

    exec(code.replace("100_000", "20"), {"robot": Robot()})
    assert len(taken) == 20 and all(action.shape == (6,) for action in taken)
    saved = Learner.load("robot.safetensors", StreamAC)
    assert saved.agent.features.statistics.count.item() == 20 + 1 + 20 + 1 + 2


@pytest.mark.parametrize(
    ("script", "env_id", "message"),
    [("stream_q", "HalfCheetah-v5", "Box actions"), ("stream_ac", "MiniGrid-Empty-5x5-v0", "observations")],
)
def test_unfit_tasks_are_refused_in_a_sentence(script, env_id, message, train):
    if env_id.startswith("MiniGrid"):
        pytest.importorskip("minigrid")
    with pytest.raises(UserError, match=message):
        train(script, env_id=env_id, total_steps=10, compile=False)


@pytest.mark.parametrize(("script", "task"), [("stream_ac", CONTINUOUS), ("stream_q", DISCRETE)])
def test_a_start_without_an_end_forgets_the_traces_of_before(script, task):
    learner = Learner(agent_of(script, [0], task))
    obgds = [module for module in learner.agent.modules() if isinstance(module, ObGD)]
    learner.start([0.0] * 7)
    if script == "stream_q":  # after another action, it has no traces
        learner.agent.greedy.fill_(True)
    learner.step([1.0] * 7, 1.0, False)
    assert obgds and all(any((trace != 0).any() for trace in obgd.buffers()) for obgd in obgds)
    learner.start([0.0] * 7)
    assert all((trace == 0).all() for obgd in obgds for trace in obgd.buffers())


@pytest.mark.parametrize(("script", "target"), [("stream_ac", None), ("stream_q", "q"), ("stream_q", "sarsa")])
def test_a_time_limit_ends_an_episode(script, target, train):
    """At the limit, which the user chose, traces end; a step later, those of the next episode have begun."""
    flags = {"env_id": "InvertedPendulum-v5"} if target is None else {"env_id": "CartPole-v1", "target": target}
    flags |= {"max_episode_steps": 2, "eval_every": 2, "compile": False, "threads": 1, "seeds": ("0:4",)}
    traces = {}
    for steps in (2, 3):
        agent = train(script, **flags, total_steps=steps, out=f"{steps}").agent
        traces[steps] = [tensor for name, tensor in agent.items() if ".trace" in name]
    assert traces[2] and all((trace == 0).all() for trace in traces[2])
    assert any((trace != 0).any() for trace in traces[3])


@pytest.mark.parametrize("script", ["stream_ac", "stream_q", "stream_td"])
def test_adaptive_steps_are_taken_where_they_are_asked_for(script):
    for adaptive in (False, True):
        names = [name.rpartition("obgd.")[2] for name, _ in agent_of(script, adaptive=adaptive).named_buffers()]
        assert ("square0" in names) == ("steps" in names) == adaptive


def test_a_policy_takes_the_most_probable_action_within_its_bounds():
    task = replace(CONTINUOUS, low=(-1.0, -1.0, -2.0), high=(1.0, 0.5, 3.0))
    obs, t = torch.zeros(2, 4, 7), torch.tensor(0)
    for kind, outputs, expected in (
        (task, [0.3, 9.0, -9.0, 0.0, 0.0, 0.0], [0.3, 0.5, -2.0]),
        (DISCRETE, [0.0, 2.0, 1.0], 1),
    ):
        agent = agent_of("stream_ac", (0, 1), kind)
        with torch.no_grad():
            agent.actor.out.weight.zero_()
            agent.actor.out.bias.copy_(torch.tensor(outputs))
        wanted = torch.tensor(expected).expand(2, 4, *torch.tensor(expected).shape)
        torch.testing.assert_close(agent.policy(obs, t).to(wanted.dtype), wanted)


@pytest.mark.parametrize("script", ["stream_ac", "stream_q"])
def test_a_policy_of_frames_acts_on_the_stack_that_its_learner_saw(script, tmp_path):
    """With statistics that stand still: a learner's older frames are normalised by earlier ones."""
    agent = agent_of(script, (3, 8), replace(DISCRETE, obs_shape=(1, 84, 84)), hidden=())
    net = agent.actor if script == "stream_ac" else agent.critic
    frames = torch.randint(0, 256, (6, 2, 84 * 84)).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
        for obs in frames[:2]:
            agent.features(obs)
        agent.features.statistics.update = lambda *_: None
        agent.features.start(frames[2], torch.ones(2))
        for obs in frames[3:]:
            learned_from = agent.features(obs)
    assert not torch.equal(learned_from[:, 0], learned_from[:, 3])
    stack = frames[2:].transpose(0, 1).reshape(2, 1, -1)  # the oldest first
    seen = agent.features.seen(stack, torch.tensor(3))
    assert torch.equal(seen[:, 0], learned_from)
    action = agent.policy(stack, torch.tensor(3))
    assert torch.equal(action[:, 0], net(learned_from).argmax(-1))
    backwards = stack.view(2, 4, -1).flip(1).reshape(2, 1, -1)
    assert not torch.equal(agent.features.seen(backwards, torch.tensor(3)), seen)

    (tmp_path / FILE).write_bytes(policy_file(agent, agent.policy, script, {}, 0))
    policy = load_policy(tmp_path, seed=8)
    assert policy.task.obs_shape == (4, 84, 84) and agent.task.obs_shape == (1, 84, 84)
    assert policy(stack[1].view(4, 84, 84), t=3) == policy(stack[1, 0], t=3) == action[1, 0]
    with pytest.raises(ValueError, match="an observation has 28224 numbers"):
        policy(frames[0, 0], t=3)


def test_observations_that_are_whole_are_not_stacked():
    for shape in ((4, 10, 10), (7,)):
        agent = agent_of("stream_q", [0], replace(DISCRETE, obs_shape=shape), hidden=())
        assert agent.policy_task is agent.task


class Pictures(gym.Env):
    """Shows random pictures of the size of Atari's frames, with the channels last."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.picture(), {}

    def picture(self):
        return self.np_random.integers(0, 256, (84, 84, 3), np.uint8)

    def step(self, action):
        return self.picture(), float(action), False, False, {}


@pytest.mark.parametrize("script", ["stream_ac", "stream_q"])
def test_policies_of_stacked_pictures_are_evaluated_where_they_learned(script, train, bare_runs):
    gym.register("Pictures-v0", entry_point=Pictures, max_episode_steps=6)
    try:
        flags = {"total_steps": 15, "eval_every": 15, "compile": False, "seeds": ("0", "2")}
        trained = Trained(train(script, env_id="Pictures-v0", **flags).folder)
        assert trained.file.environment["options"] == {"stack": 4}
        policy, place = trained.file.policy(), Place(trained)
        assert policy.task.obs_shape == (12, 84, 84)
        scores = place.evaluator(policy, 2)(policy.act, 0)
        assert [[score.length for score in of_run] for of_run in scores] == [[6, 6]] * 2
        venv = make_vec("Pictures-v0", 1, stack=4)
        obs = [venv.reset(seed=1)[0][0], *(venv.step(np.zeros(1, int))[0][0] for _ in range(5))]
        assert all(np.array_equal(new[:9], old[3:]) for old, new in zip(obs, obs[1:], strict=False))
        assert np.array_equal(obs[0][:3], obs[0][9:]) and not np.array_equal(obs[5][:3], obs[5][9:])
    finally:
        del gym.registry["Pictures-v0"]


@pytest.mark.parametrize("script", ["stream_ac", "stream_q"])
def test_policies_for_games_are_evaluated_on_whole_games(script, train, bare_runs):
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    flags = {"total_steps": 30, "eval_every": 30, "compile": False, "max_episode_steps": 200, "seeds": ("0", "2")}
    trained = Trained(train(script, env_id="BreakoutNoFrameskip-v4", **flags).folder)
    options = {"max_episode_steps": 200, "episodic_life": False, "stack": 4}
    assert trained.file.environment["options"] == options
    policy = trained.file.policy()
    place = Place(trained)
    place.try_out(policy)
    evaluator = place.evaluator(policy, 2)
    assert place.is_own and not any(evaluator.venv.get_attr("episodic_life"))
    assert {score.length <= 199 for of_run in evaluator(policy.act, 0) for score in of_run} == {True}  # FIRE is a step


@pytest.mark.parametrize("script", ["stream_ac", "stream_q"])
def test_a_task_that_cannot_be_saved_begins_anew_when_resumed(script, train, monkeypatch, capsys):
    kind: Any = agent_type(script)
    seen, restart = [], kind.restart
    monkeypatch.setattr(kind, "restart", lambda agent, obs, noise: seen.append(obs) or restart(agent, obs, noise))
    flags = {"env_id": "CartPole-v1", "total_steps": 60, "compile": False, "checkpoint_every": 20, "eval_every": 20}
    steps = Run.steps

    def interrupted(run, *args, **parts):
        for step in steps(run, *args, **parts):
            yield step
            if step == 30:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Run, "steps", interrupted)
    assert train(script, **flags).code == 130
    monkeypatch.setattr(Run, "steps", steps)
    result = train(script, **flags, resume=True)
    assert result.code == 0 and len(seen) == 2
    assert "warning: the state of CartPole-v1 cannot be saved: its episodes start anew" in capsys.readouterr().err
    assert not torch.equal(seen[0], seen[1])


@needs_compiler
@pytest.mark.parametrize("double", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", [CONTINUOUS, pytest.param(DISCRETE, marks=pytest.mark.slow)])
def test_the_compiled_step_is_the_step(task, double, request):
    """In double precision all of its state; otherwise, rounding shows in traces, which are large."""
    if double:
        request.getfixturevalue("float64")
    agents = [agent_of("stream_ac", (0, 1), task) for _ in range(2)]
    updates = [agents[0].update, compiled(agents[1].update, CPU, compile_on_cpu=True)]
    (_, _, _, noise, first), *rest = stream_of(2, 31, task)
    for agent, update in zip(agents, updates, strict=True):
        agent.restart(first, noise)
        for parts in rest:
            update(*step_of(*parts))
    if double:
        torch.testing.assert_close(state_of(agents[1]), state_of(agents[0]), atol=1e-9, rtol=0)
    torch.testing.assert_close(agents[1].critic.out.weight, agents[0].critic.out.weight, atol=1e-5, rtol=0)
    torch.testing.assert_close(agents[1].features.statistics.mean, agents[0].features.statistics.mean)
