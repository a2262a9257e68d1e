"""Stream Q and SARSA against the sheet's values and against a learner of one run written with torch's own layers."""

import math

import pandas as pd
import pytest
import torch
from scripts import DISCRETE, agent_of, state_of, stream_layers_of
from stream_q import Args, Draws, StreamQ
from torch import nn

from algos.learner import Learner
from algos.stream import Step
from envs import Task

IMAGES = Task("Made-v0", (4, 10, 10), 3, True, (), (), 0)


def stream_of(runs: int, ticks: int, task=DISCRETE):
    """Yields `ticks` transitions, each reward, next_obs, done, noise and first_obs [runs, ...].

    The episodes of different runs end at different ticks.
    """
    g = torch.Generator().manual_seed(0)
    size = math.prod(task.obs_shape)
    for _ in range(ticks):
        yield (
            torch.randn(runs, generator=g), 3 * torch.randn(runs, size, generator=g) + 1,
            (torch.rand(runs, generator=g) < 0.06).double(), torch.rand(runs, 2, generator=g),
            torch.randn(runs, size, generator=g),
        )  # fmt: skip


def draws_of(noise):
    return Draws(*noise.unbind(1))


def step_of(reward, next_obs, done, noise, first, begun=None):
    """The arguments of `update`; an episode begins where one ended, or where `begun` says."""
    return Step(reward, next_obs, done, first, done if begun is None else begun), draws_of(noise)


class Lone:
    """Stream Q or SARSA of one run, straight from the equations."""

    def __init__(self, agent: StreamQ, run: int):
        self.args = agent.args
        self.net = stream_layers_of(agent.critic, run)
        self.traces = [torch.zeros_like(p) for p in self.net.parameters()]
        self.obs: list[torch.Tensor] = []
        self.totals: list[float] = []
        self.total, self.drawn = 0.0, 0

    def see(self, obs, time):
        self.obs.append(obs)
        seen = torch.stack(self.obs)
        variance = seen.var(0) if len(seen) > 1 else torch.ones_like(obs)
        return torch.cat([(obs - seen.mean(0)) / (variance + 1e-8).sqrt(), torch.tensor([time])])

    def start(self, obs, noise):
        self.time = 0
        self.state = self.see(obs, -0.5)
        self.action, self.greedy = self.choose(self.state, noise)

    def choose(self, state, noise):
        self.drawn += 1
        epsilon = max(0.01, 1 - 0.99 * self.drawn / (0.5 * self.args.total_steps))
        best = int(self.net(state).argmax())
        action = int(noise[1] * 3) if noise[0] < epsilon else best
        return action, action == best

    def learn(self, reward, next_obs, done, noise):
        self.total = 0.99 * self.total * (1 - done) + reward
        self.totals.append(float(self.total))
        variance = torch.tensor(self.totals).var() if len(self.totals) > 1 else torch.tensor(1.0)
        reward = reward / (variance + 1e-8).sqrt()
        next_state = self.see(next_obs, -0.5 + self.time / 50)
        self.time += 1
        if self.args.target == "sarsa":
            following = self.choose(next_state, noise)
            next_value = self.net(next_state)[following[0]]
        else:
            next_value = self.net(next_state).max()
        value = self.net(self.state)[self.action]
        delta = (reward + 0.99 * (1 - done) * next_value - value).detach()
        gradients = torch.autograd.grad(value, list(self.net.parameters()))
        self.traces = [0.99 * 0.8 * z + g for z, g in zip(self.traces, gradients, strict=True)]
        bound = 2.0 * max(abs(delta), 1) * sum(z.abs().sum() for z in self.traces)
        with torch.no_grad():
            for p, z in zip(self.net.parameters(), self.traces, strict=True):
                p += min(1 / bound, 1) * delta * z
        if done or (self.args.target == "q" and not self.greedy):
            self.traces = [torch.zeros_like(z) for z in self.traces]
        self.state = next_state
        if not done:
            self.action, self.greedy = following if self.args.target == "sarsa" else self.choose(next_state, noise)


@pytest.mark.parametrize("target", ["q", "sarsa"])
def test_many_runs_are_what_each_would_be_alone(target, float64):
    runs = 3
    agent = agent_of("stream_q", range(runs), target=target, total_steps=150, hidden=(16, 16))
    lone = [Lone(agent, run) for run in range(runs)]
    (_, _, _, noise, first), *rest = stream_of(runs, 151)
    agent.restart(first, draws_of(noise))
    for run in range(runs):
        lone[run].start(first[run], noise[run])
    for reward, next_obs, done, noise, first in rest:
        agent.update(*step_of(reward, next_obs, done, noise, first))
        for run, one in enumerate(lone):
            one.learn(reward[run], next_obs[run], done[run], noise[run])
            if done[run]:
                one.start(first[run], noise[run])
            torch.testing.assert_close(agent.state[run], one.state, atol=1e-9, rtol=0)
            assert agent.output[run] == one.action
            assert agent.drawn[run] == one.drawn
    for run, one in enumerate(lone):
        flat = torch.cat([p[run].flatten() for p in agent.critic.parameters()])
        torch.testing.assert_close(flat, nn.utils.parameters_to_vector(one.net.parameters()), atol=1e-9, rtol=0)


@pytest.mark.parametrize("task", [DISCRETE, IMAGES])
@pytest.mark.parametrize("target", ["q", "sarsa"])
def test_a_run_is_not_touched_by_its_neighbours_bit_for_bit(target, task):
    def run_all(change=None, order=(0, 1, 2, 3)):
        agent = agent_of("stream_q", order, task, target=target, total_steps=400, hidden=(16,))
        (_, _, _, noise, first), *rest = stream_of(4, 61, task)
        agent.restart(first[list(order)], draws_of(noise[list(order)]))
        for tick, parts in enumerate(rest):
            reward, next_obs, done, noise, first = (part[list(order)].clone() for part in parts)
            if change is not None and tick == 30:
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


def test_epsilon_falls_with_the_actions_drawn():
    agent = agent_of("stream_q", [0], total_steps=500_000, exploration=0.05)
    for drawn, epsilon in ((1, 0.9999604), (12_500, 0.505), (25_000, 0.01), (400_000, 0.01)):
        agent.drawn.fill_(drawn)
        assert agent.epsilon().item() == pytest.approx(epsilon)


def test_an_exploratory_action_ends_the_traces_of_q_but_not_of_sarsa():
    for target, cleared in (("q", True), ("sarsa", False)):
        agent = agent_of("stream_q", target=target)
        (_, _, _, noise, first), (reward, next_obs, _, more, again) = stream_of(2, 2)
        agent.restart(first, draws_of(noise))
        agent.greedy.copy_(torch.tensor([False, True]))
        before = agent.critic.out.bias.detach().clone()
        never = torch.zeros(2, dtype=torch.float64)
        agent.update(*step_of(reward, next_obs, never, more, again))
        traces = torch.cat([t.flatten(1) for t in agent.obgd.buffers()], 1)
        assert (traces[0] == 0).all() == cleared and (traces[1] != 0).any()
        assert (agent.critic.out.bias != before).any(1).all()  # both have learned from the step first


@pytest.mark.parametrize(("target", "drawn"), [("q", [2, 2]), ("sarsa", [2, 3])])
def test_a_lost_life_ends_the_traces_but_begins_nothing(target, drawn):
    """SARSA draws anew where an episode begins."""
    agent = agent_of("stream_q", (0, 1), target=target)
    (_, _, _, noise, first), (reward, next_obs, _, more, again) = stream_of(2, 2)
    agent.restart(first, draws_of(noise))
    agent.greedy.fill_(True)
    lost, begun = torch.ones(2, dtype=torch.float64), torch.tensor([0.0, 1.0])
    agent.update(*step_of(reward, next_obs, lost, more, again, begun))
    assert agent.features.statistics.count.flatten().tolist() == [2, 3]
    assert agent.drawn.tolist() == drawn
    assert all((trace == 0).all() for trace in agent.obgd.buffers())
    assert agent.features.clock.time.tolist() == pytest.approx([-0.48, -0.5])


@pytest.mark.parametrize(("target", "drawn"), [("q", 3), ("sarsa", 4)])
def test_a_learner_counts_its_actions_as_a_run_does(target, drawn):
    """SARSA draws one at the end of an episode too, and another at the beginning of the next."""
    run, learner = agent_of("stream_q", [0], target=target), Learner(agent_of("stream_q", [0], target=target))
    (_, _, _, noise, first), (reward, next_obs, _, more, again) = stream_of(1, 2)
    run.restart(first, draws_of(noise))
    learner.start(first[0])
    for done in (1.0, 0.0):
        run.update(*step_of(reward, next_obs, torch.tensor([done], dtype=torch.float64), more, again))
        learner.step(next_obs[0], float(reward), bool(done))
        if done:
            learner.start(again[0])
    assert run.drawn.tolist() == learner.agent.drawn.tolist() == [drawn]


def test_defaults_are_those_of_the_paper():
    args = Args()
    assert (args.epsilon_start, args.epsilon_end, args.exploration) == (1.0, 0.01, 0.05)
    assert (args.lr, args.discount, args.trace, args.kappa) == (1.0, 0.99, 0.8, 2.0)


SHORT = {"compile": False, "threads": 1, "log_every": 2_000}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["q", "sarsa"])
def test_cart_pole_is_learned(target, train):
    result = train("stream_q", env_id="CartPole-v1", seeds=("0:4",), target=target, total_steps=4_000,
                   exploration=0.9, eval_every=1_000, **SHORT)  # fmt: skip
    means = pd.read_parquet(result.folder / "eval.parquet").groupby(["seed", "step"])["return"].mean().unstack()
    assert means[1_000].mean() < 35  # 22 is a random policy's
    assert means[4_000].mean() > 60


def test_a_learner_takes_and_gives_numbers(train):
    result = train("stream_q", env_id="CartPole-v1", total_steps=200, eval_every=100, **SHORT)
    learner = Learner.load(result.folder / "learner.safetensors", StreamQ)
    assert learner.start([0.0] * 4) in (0, 1)
    drawn = learner.agent.drawn.item()
    assert learner.step([0.1] * 4, 1.0, False) in (0, 1)
    assert learner.step([0.1] * 4, 1.0, True) is None
    assert learner.agent.drawn.item() == drawn + 1


def test_images_go_through_a_convolution(train):
    pytest.importorskip("minatar")
    result = train("stream_q", env_id="MinAtar/Breakout-v1", seeds=("0", "1"), total_steps=60, eval_every=30, **SHORT)
    assert result.parameters["agent/critic.convolutions.0.linear.weight"].shape == (2, 16, 4 * 9)
