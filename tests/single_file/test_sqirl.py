"""SQIRL: numbers by hand, its limits against exact values, runs of different lengths, and what it learns."""

import json
from math import comb, prod
from types import SimpleNamespace

import gorp
import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import sqirl
import torch
from gorp import GORP
from gorp import Args as GorpArgs
from on_policy_data import wave
from scripts import DISCRETE, agent_of, assert_same, differing, layers_of, needs_compiler
from sqirl import Args, NetworkSQIRL, TabularSQIRL, main
from torch import nn

from algos.episodes import EpisodeBuffer, Episodes, Steps, collect
from algos.errors import UserError
from algos.optim import Adam
from algos.random import Random
from algos.run import Run
from envs import SeededEnvs, Task
from envs.tabular import Table
from envs.tabular.exact import Analysis, evaluate
from envs.tabular.table import deterministic_table
from envs.tabular.tasks import table_of
from envs.tabular.vector import TabularVectorEnv

QUICK = {"eval_every": 10**9, "threads": 1}
FORMS = ("network", "table")


class Given(nn.Module):
    """A network that gives values [R, B, k A] for observations 0, and others for observations 1."""

    def __init__(self, now, following):
        super().__init__()
        self.now, self.following = (nn.Parameter(torch.tensor(x)[None].flatten(2)) for x in (now, following))

    def forward(self, obs):
        return self.now if obs[0, 0, 0] == 0 else self.following


BY_HAND = Steps(
    obs=torch.zeros(1, 2, 1), action=torch.tensor([[1, 0]]), reward=torch.tensor([[1.0, 2.0]]),
    next_obs=torch.ones(1, 2, 1), done=torch.tensor([[0.0, 1.0]]), returns=torch.tensor([[3.0, 2.0]]),
)  # fmt: skip
NOW = [[[1.0, 2.0], [3.0, 4.0]], [[0.0, 1.0], [2.0, 0.0]]]  # [B, k, A]
FOLLOWING = [[[0.5, 1.5], [50.0, 60.0]], [[7.0, 8.0], [70.0, 80.0]]]


def by_hand(now=NOW, following=FOLLOWING, **args) -> NetworkSQIRL:
    task = Task("Made-v0", (1,), 2, True, (), (), 6)
    agent = NetworkSQIRL(Args(**{"k": 2, **args}), task, [0])
    agent.critic = Given(now, following)
    return agent


@pytest.fixture
def seen(monkeypatch):
    """The losses [R] that optimisers get, which make no step."""
    losses: list = []
    monkeypatch.setattr(Adam, "minimise", lambda adam, loss, active: losses.append(loss))
    return losses


# -- the loss ----------------------------------------------------------------------------------------------------------


def test_losses_are_those_by_hand(seen):
    """Head 1 errs by -1 and -2, and head 2 by 1.5 and 0."""
    agent, active = by_hand(), torch.tensor([True])
    assert agent.losses(BY_HAND).tolist() == [[2.5, 1.125]]
    metrics = agent.update(BY_HAND, active)
    assert {name: value.tolist() for name, value in metrics.items()} == {"loss_1": [2.5], "loss_2": [1.125]}
    assert seen[0].tolist() == [1.0] and agent.scale.tolist() == [[2.5, 1.125]]
    root = 2**0.5
    doubled = [[[1.0, 3 - root], [3.0, 2.5 + 1.5 * root]], [[2 - 2 * root, 1.0], [2.0, 0.0]]]
    agent.critic = Given(doubled, FOLLOWING)
    agent.update(BY_HAND, active)
    assert agent.scale[0].tolist() == pytest.approx([2.525, 1.13625])
    assert seen[1].item() == pytest.approx(1.9801980, abs=1e-6)


def test_losses_need_not_be_scaled(seen):
    by_hand(scale_losses=False).update(BY_HAND, torch.tensor([True]))
    assert seen[0].tolist() == [1.8125]


def test_scaling_divides_the_gradients_of_a_head_and_none_goes_through_the_next_values(seen):
    agent = by_hand(scale_losses=True)
    agent.scale[:] = torch.tensor([[4.0, 0.5]])
    (plain,) = torch.autograd.grad(agent.losses(BY_HAND).mean(-1).sum(), agent.critic.now)
    agent.update(BY_HAND, torch.tensor([True]))
    scaled, none = torch.autograd.grad(
        seen[0].sum(), (agent.critic.now, agent.critic.following), allow_unused=True, materialize_grads=False
    )
    assert none is None
    assert agent.scale[0].tolist() == pytest.approx([0.99 * 4 + 0.025, 0.495 + 0.01125])
    torch.testing.assert_close(scaled.view(1, 2, 2, 2), plain.view(1, 2, 2, 2) / agent.scale[:, None, :, None])
    chosen = plain.view(2, 2, 2) != 0
    assert chosen.tolist() == [[[False, True], [False, True]], [[True, False], [False, False]]]


def test_rewards_and_returns_are_scaled_and_values_are_not():
    """Targets are 6 and 4 for head 1, and 2 + 0.5 x 1.5 and 4 for head 2."""
    losses = by_hand(reward_scale=2.0, discount=0.5).losses(BY_HAND)
    assert losses.tolist() == [[(16 + 16) / 2, (1.25**2 + 4) / 2]]


def test_one_value_knows_no_bootstrapping():
    now, following = [[[1.0, 2.0]], [[0.0, 1.0]]], [[[9.0, 9.0]], [[9.0, 9.0]]]
    for discount in (1.0, 0.5):
        agent = by_hand(now, following, k=1, discount=discount)
        assert agent.losses(BY_HAND).tolist() == [[2.5]]
        assert agent.losses(BY_HAND._replace(reward=BY_HAND.reward * 7, done=1 - BY_HAND.done)).tolist() == [[2.5]]


def samples(number: int, runs: int = 2, size: int = 16) -> Steps:
    """The steps of one update, without chance."""
    phases = [10.0 * run + number for run in range(runs)]
    obs, next_obs = (torch.cat([2 * wave(1, size, 7, phase=phase + shift) for phase in phases]) for shift in (0.0, 1.5))
    reward, returns, end = (
        torch.cat([2 * wave(1, size, phase=phase + shift) for phase in phases]) for shift in (1.0, 2.0, 3.0)
    )
    action = torch.stack([torch.arange(size) * 5 + number + run for run in range(runs)]) % 3
    return Steps(obs, action, reward, next_obs, (end > 1.2).double(), returns)


@pytest.mark.parametrize(("k", "bound"), [(1, 0.13), (3, 0.08)])
def test_updates_are_those_of_one_plain_run(k, bound, float64):
    """Clipping, torch's Adam and the scales of the losses; some gradients are longer than their bound."""
    flags = {"discount": 0.9, "reward_scale": 2.0, "max_norm": bound, "lr": 0.01, "loss_decay": 0.8, "k": k}
    agent = agent_of("sqirl", **flags)
    nets = [layers_of(agent.critic.net, run) for run in range(2)]
    adams, scales = [torch.optim.Adam(net.parameters(), lr=0.01) for net in nets], [[None] * k, [None] * k]
    clipped = 0
    for number in range(8):
        batch = samples(number)
        losses = agent.update(batch, torch.tensor([True, True]))
        for run, (net, adam, scale) in enumerate(zip(nets, adams, scales, strict=True)):
            obs, action, reward, next_obs, done, returns = (x[run] for x in batch)
            values, after = net(obs).view(16, k, 3), net(next_obs).view(16, k, 3).detach()
            loss = torch.zeros(())
            for j in range(k):
                target = 2 * returns if j == 0 else 2 * reward + 0.9 * (1 - done) * after[:, j - 1].max(-1).values
                error = (values[range(16), j, action] - target).square()
                mean = error.mean().item()
                assert losses[f"loss_{j + 1}"][run].item() == pytest.approx(mean, abs=1e-9)
                scale[j] = mean if scale[j] is None else 0.8 * scale[j] + 0.2 * mean
                loss = loss + error.mean() / scale[j] / k
            adam.zero_grad()
            loss.backward()
            clipped += int(nn.utils.clip_grad_norm_(net.parameters(), bound) > bound)
            adam.step()
    assert 4 <= clipped < 16
    for run in range(2):
        assert_same(agent.critic.net, nets[run], run)
        assert agent.scale[run].tolist() == pytest.approx(scales[run], abs=1e-9)


def test_runs_that_are_not_active_stand_still():
    agent = agent_of("sqirl", seeds=(0, 1, 2))
    before = {name: tensor.clone() for name, tensor in agent.state_dict().items()}
    agent.update(
        Steps(*(x.float() if x.is_floating_point() else x for x in samples(0, 3))), torch.tensor([0, 1, 0]) > 0
    )
    after = agent.state_dict()
    changed = [name for name in before if before[name].dim() and not torch.equal(before[name][1], after[name][1])]
    assert {"critic.net.out.weight", "scale"} <= set(changed)
    for run in (0, 2):
        assert not [n for n in before if before[n].dim() and not torch.equal(before[n][run], after[n][run])]
    assert after["adam.steps"].tolist() == [0, 1, 0]


# -- what is learned from, and how often -------------------------------------------------------------------------------


class Five(gym.Env):
    """Every episode has five steps, seen one-hot, which pay 1, 2, 4, 8 and 16."""

    observation_space = gym.spaces.Box(0, 1, (6,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def obs(self):
        return np.eye(6, dtype=np.float32)[self.time]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.obs(), {}

    def step(self, action):
        self.time += 1
        return self.obs(), 2.0 ** (self.time - 1), self.time == 5, False, {}


@pytest.fixture
def five():
    gym.register("Five-v0", Five, max_episode_steps=5)
    yield "Five-v0"
    gym.registry.pop("Five-v0")


def test_what_an_iteration_keeps_and_how_many_updates_it_makes(five, train_short, monkeypatch):
    """Ten episodes of five steps: from iteration i, the steps from time i on; always ceil(50 x 10 / 128) updates."""
    events, add, update = [], EpisodeBuffer.add, NetworkSQIRL.update

    def noted_add(buffer, episodes, returns, first):
        before = buffer.added.copy()
        add(buffer, episodes, returns, first)
        assert episodes.lengths.tolist() == [[5] * 10] * 2
        if first == 0:  # the last two of ten, of which eight are played at once, have random numbers of their own
            assert not torch.equal(episodes.action[:, 8:], episodes.action[:, :2])
        new = buffer.rows[0, before[0] : buffer.added[0]]
        expected = [sum(0.5 ** (u - t) * 2.0**u for u in range(t, 5)) for t in range(first, 5)]
        assert new[:, -1].tolist() == expected * 10  # the last column has the returns
        events.append(((buffer.added - before).tolist(), first))

    def noted_update(agent, batch, active):
        events.append("update")
        assert active.all()
        return update(agent, batch, active)

    monkeypatch.setattr(EpisodeBuffer, "add", noted_add)
    monkeypatch.setattr(NetworkSQIRL, "update", noted_update)
    flags = {"env_id": five, "m": 10, "batch_size": 128, "epochs": 10, "discount": 0.5, "total_steps": 301}
    result = train_short("sqirl", seeds=("0", "1"), eval_episodes=1, **flags)
    added = [[50, 40, 30, 20, 10, 0, 0][i] for i in range(7)]
    assert events == [event for i in range(7) for event in [([added[i]] * 2, i), *["update"] * 4]]
    assert result.config["taken"] == [350, 350]


def test_every_step_is_kept_where_the_last_iteration_goes_beyond_the_budget(five, train_short, monkeypatch):
    sizes, add = [], EpisodeBuffer.add

    def noted(buffer, *rest):
        add(buffer, *rest)
        sizes.append((int(buffer.added[0]), buffer.capacity))

    monkeypatch.setattr(EpisodeBuffer, "add", noted)
    train_short("sqirl", env_id=five, m=10, total_steps=60, eval_episodes=1)
    assert [added for added, _ in sizes] == [50, 90] and all(added <= capacity for added, capacity in sizes)


@pytest.mark.parametrize(("flags", "capacity", "width"), [({"buffer_size": 7, "num_envs": 2}, 7, 2), ({}, 110, 8)])
def test_the_buffer_and_the_environments_are_as_many_as_asked_for(
    five, train_short, monkeypatch, flags, capacity, width
):
    """By default the buffer has room for the budget and one more iteration, and at most eight episodes are at once."""
    found, add, collect = set(), EpisodeBuffer.add, sqirl.collect
    monkeypatch.setattr(EpisodeBuffer, "add", lambda buffer, *rest: found.add(buffer.capacity) or add(buffer, *rest))
    monkeypatch.setattr(sqirl, "collect", lambda envs, *rest: found.add(-envs.envs_per_run) or collect(envs, *rest))
    train_short("sqirl", env_id=five, m=10, total_steps=60, eval_episodes=1, **flags)
    assert found == {capacity, -width}


def test_defaults_are_published_ones():
    args = sqirl.Args()
    assert (args.total_steps, args.buffer_size, args.batch_size, args.epochs) == (5_000_000, 1_000_000, 128, 10)
    assert (args.lr, args.max_norm, args.reward_scale, args.discount) == (1e-4, 10.0, 1.0, 1.0)
    assert (args.k, args.m) == (1, 1)


# -- frozen policies ---------------------------------------------------------------------------------------------------


def test_policies_are_frozen_one_by_one_and_the_present_one_serves_all_later_times():
    """Run 0 is at iteration 1, where it was stopped, and run 1 at iteration 2."""
    agent, obs, expected = agent_of("sqirl"), wave(2, 40, 7).float(), []
    for _ in range(2):
        agent.freeze()
        expected.append(agent.critic(obs).view(2, 40, 2, 3)[:, :, -1].argmax(-1))
        agent.iteration += 1
        with torch.no_grad():
            for p in agent.critic.parameters():
                p.copy_(p.flip(-1) + 0.1 * wave(*p.shape))
    agent.iteration[0] = 1
    now = agent.critic(obs).view(2, 40, 2, 3)[:, :, -1].argmax(-1)
    assert not torch.equal(expected[0], expected[1]) and not torch.equal(expected[1], now)
    choice = [agent.policy(obs, torch.tensor(t)) for t in range(4)] + [agent.policy(obs, torch.tensor(99))]
    assert torch.equal(choice[0], expected[0])
    assert torch.equal(choice[1][0], now[0]) and torch.equal(choice[1][1], expected[1][1])
    assert all(torch.equal(x, now) for x in choice[2:])
    draws = agent.draws(Random([0, 1]), 40)()
    assert torch.equal(agent.act(obs, 0, draws), expected[0])
    for t in (2, 3):
        assert torch.equal(agent.act(obs, t, draws), (3 * draws.action[:, t]).long())


def test_nothing_is_frozen_after_the_time_limit():
    agent = agent_of("sqirl", task=SimpleNamespace(**{**vars(DISCRETE), "limit": 3, "obs_size": 7}))
    for _ in range(3):
        agent.freeze()
        agent.iteration += 1
    before = {name: tensor.clone() for name, tensor in agent.snapshots().items()}
    with torch.no_grad():
        for p in agent.critic.parameters():
            p += 1
    agent.freeze()
    assert all(torch.equal(tensor, before[name]) for name, tensor in agent.snapshots().items())


def choices_of(agent: TabularSQIRL, table: Table, run: int = 0) -> torch.Tensor:
    """The choices [T, S] of a run, in the order of the states."""
    return agent.choices[run][:, agent.number(torch.eye(table.states))]


def tabular(table: Table, seeds=(0,), **args) -> TabularSQIRL:
    task = Task(table.name, (table.states,), table.actions, True, (), (), table.horizon)
    return TabularSQIRL(Args(form="table", **args), task, seeds, torch.eye(table.states))


def test_a_table_keeps_the_choices_of_each_time_and_the_last_ones_serve_all_later_times():
    agent = tabular(table_of("chain"), (0, 1))
    agent.choices[:, :, agent.number(torch.eye(4))] = torch.arange(8)[:, None] + 10 * torch.arange(4)
    agent.iteration[:] = torch.tensor([2, 20])
    obs = torch.eye(4)[[2, 0]].expand(2, 2, 4)
    for t, times in ((0, (0, 0)), (1, (1, 1)), (2, (1, 2)), (7, (1, 7)), (50, (1, 7))):
        assert agent.policy(obs, torch.tensor(t)).tolist() == [[20 + time, time] for time in times]


# -- limits ------------------------------------------------------------------------------------------------------------


def all_ways(table: Table) -> Episodes:
    """An episode of each sequence of actions of a deterministic table, from state 0."""
    count, horizon = table.actions**table.horizon, table.horizon
    action = torch.cartesian_prod(*[torch.arange(table.actions)] * horizon)
    states, rewards = torch.full((count, horizon), -1), torch.zeros(count, horizon)
    state = np.zeros(count, int)
    for t in range(horizon):
        alive = state >= 0
        states[:, t] = torch.as_tensor(state)
        rewards[:, t] = torch.as_tensor(np.where(alive, table.reward[state, action[:, t], 0], 0.0))
        state = np.where(alive, table.next_state[state, action[:, t], 0], -1)
    running = states >= 0
    obs = torch.eye(table.states)[states.clamp(min=0)] * running[..., None]
    return Episodes(*(x[None] for x in (obs, action * running, rewards, running)))


@pytest.mark.parametrize("k", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("discount", [1.0, 0.7])
def test_means_over_all_ways_give_the_exact_greedy_policies(k, discount):
    """Those of Q^k wherever an episode comes by; with k = H they are backward induction, and optimal."""
    rng, horizon = np.random.default_rng(0), 6
    next_state = rng.integers(-1, 5, (5, 3))
    next_state[0] = [1, 2, 3]
    table = deterministic_table("random", next_state, rng.normal(size=(5, 3)), horizon)
    analysis, ways, agent = Analysis(table, discount), all_ways(table), tabular(table, k=k, discount=discount)
    visited = 0
    for i in range(horizon):
        agent.learn(ways)
        states = torch.unique(ways.obs[0, :, i][ways.running[0, :, i]].argmax(-1))
        visited += len(states)
        assert choices_of(agent, table)[i, states].tolist() == analysis.q(k)[i].argmax(-1)[states.numpy()].tolist()
        agent.advance(ways)
    assert visited > 15
    if k == horizon:
        assert evaluate(table, choices_of(agent, table).numpy(), discount) == pytest.approx(analysis.best_return)


@pytest.mark.parametrize(("name", "m"), [("frozen-lake-4x4", 40), ("chain", 6), ("lure-0.1", 6), ("cliff-walking", 5)])
def test_a_table_chooses_as_gorp_from_the_same_episodes(name, m):
    """With k = 1 and without chance, each iteration has one state at time i, and means are those of GORP."""
    table, seeds = table_of(name), [3, 7]
    envs = SeededEnvs(f"tabular/{name}", seeds, m, actions="discrete")
    agent = TabularSQIRL(Args(form="table", m=m), envs.task, seeds, torch.as_tensor(envs.venv.all_observations(0)))
    gorp = GORP(GorpArgs(m=m), envs.task, seeds)
    draws, chosen = gorp.draws(Random(seeds), m), []
    for i in range(table.horizon):

        def begin(first):
            numbers = draws()
            return lambda obs, t: gorp.act(obs, t, first, numbers)

        episodes = collect(envs, m * table.actions, begin)
        there = episodes.obs[:, 0, i : i + 1] if episodes.lengths.max() > i else None
        agent.learn(episodes)
        gorp.learn(episodes)
        agent.advance(episodes)
        if there is not None and (episodes.lengths.amax(1) > i).all():
            ours = agent.policy(there, torch.tensor(i))[:, 0]
            assert torch.equal(ours, gorp.actions[:, i])
            chosen.append(ours)
    assert len(chosen) >= 4


def test_values_that_were_not_tried_are_0_and_ties_go_to_the_first_action():
    table = deterministic_table("made", [[1, 1, 1], [-1, -1, -1]], [[0.0, 0.0, 0.0]] * 2, 2)
    agent = tabular(table, k=1)
    ways = all_ways(table)

    def choice(rewards):
        """The choice at the first time, where action e of those tried has a return."""
        tried = torch.tensor(list(rewards))
        few = Episodes(*(x[:, : len(tried)].clone() for x in ways))
        few.action[0, :, 0] = tried
        few.reward[0] = 0
        few.reward[0, :, 0] = torch.tensor(list(rewards.values()))
        agent.learn(few)
        return choices_of(agent, table)[0, 0].item()

    assert [choice({0: 1.0, 1: 1.0}), choice({2: 0.0}), choice({2: 1.0}), choice({0: -1.0, 2: 0.0})] == [0, 0, 2, 1]


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("previous", "time"), [(True, False), (False, True), (True, True)])
def test_the_previous_action_and_the_time_can_be_shown(form, previous, time, train, bare_runs, monkeypatch):
    widths, kinds, act = set(), [], {"network": NetworkSQIRL, "table": TabularSQIRL}[form]
    policy = act.policy

    def noted(agent, obs, t):
        widths.add(obs.shape[-1])
        kinds.append(agent)
        if time:
            assert obs[..., -1].max() == (t / 6).float()  # environments that wait may show an earlier time
        if form == "table":
            everything = [agent.number(torch.as_tensor(part)) for part in shown(agent)]
            assert (
                len(torch.unique(torch.cat(everything)))
                == len(agent.codes)
                == 4 * (3 if previous else 1) * (6 if time else 1)
            )
        return policy(agent, obs, t)

    def shown(agent):
        envs = SeededEnvs("tabular/gate-0.1875-sticky", [0], actions="discrete", previous_action=previous, time=time)
        return [envs.venv.all_observations(t) for t in range(6 if time else 1)]

    monkeypatch.setattr(act, "policy", noted)
    flags = {"form": form, "append_previous_action": previous, "append_time": time, "m": 20, "hidden": (8,)}
    result = train("sqirl", env_id="tabular/gate-0.1875-sticky", seeds=("0", "1"), total_steps=200, **QUICK, **flags)
    assert result.config["status"] == "finished" and widths == {4 + 2 * previous + time}
    assert result.eval["return"].between(1 / 64 - 1e-12, 1).all()


# -- runs of different lengths -----------------------------------------------------------------------------------------


def test_runs_stop_after_too_many_iterations_in_a_row_without_a_random_step():
    def episodes(*lengths):
        running = torch.arange(30) < torch.tensor(lengths)[:, None, None]
        return Episodes(torch.zeros(3, 1, 30, 1), *(torch.zeros(3, 1, 30),) * 2, running)

    network, table = agent_of("sqirl", seeds=(0, 1, 2)), tabular(table_of("chain"), (0, 1, 2))
    for agent, patience in ((network, 10), (table, 0)):
        agent.iteration[:] = 5
        assert not agent.advance(episodes(6, 6, 6)).any() and agent.idle.tolist() == [0, 0, 0]
        for number in range(1, patience + 1):
            assert not agent.advance(episodes(5, 30, 6)).any()
            assert agent.idle.tolist() == [number, 0, number]
        last = agent.i + 1
        assert agent.advance(episodes(5, 30, last)).tolist() == [True, False, False]
        assert agent.idle.tolist() == [patience + 1, 0, 0] and agent.iteration.tolist() == [last] * 3


@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_stops_is_over_and_its_steps_are_those_that_it_took(form, train, bare_runs):
    """The gate pays more at once than Q^1 thinks of the end, so that all episodes end with their first step."""
    flags = {"form": form, "m": 100, "lr": 1e-2, "hidden": (16,), "log_every": 1}
    result = train("sqirl", env_id="tabular/gate-0.75", seeds=("0:3",), total_steps=100_000, **QUICK, **flags)
    steps = result.log[result.log["metric"] == "env_steps"]
    assert result.config["status"] == "finished" and result.config["step"] == 100_000
    first = steps.groupby("seed")["value"].first()
    assert len(set(first)) == 3  # they took different numbers
    idle = 11 if form == "network" else 1
    assert result.config["taken"] == [int(value) + idle * 100 for value in first]
    assert set(result.eval["step"]) == {0, 100_000}
    assert (result.eval.query("step > 0")["return"] == 0.75).all()


UNEVEN = {
    "network": {"m": 3, "lr": 1e-2, "hidden": (8,), "k": 2, "batch_size": 8, "epochs": 2},
    "table": {"form": "table", "m": 3, "k": 2},
}


@pytest.mark.parametrize("env_id", ["tabular/chain", "tabular/gate-0.1875-sticky", "CartPole-v1"])
@pytest.mark.parametrize("form", FORMS)
def test_a_seed_is_the_same_experiment_among_others_that_end_earlier_or_later(env_id, form, train, bare_runs, float64):
    if form == "table" and env_id == "CartPole-v1":
        pytest.skip("it has no table")
    flags = UNEVEN[form] | {"env_id": env_id, "total_steps": 120, "eval_every": 10, "eval_episodes": 1, "threads": 1}
    together = train("sqirl", out="together", seeds=("0:8",), **flags)
    alone = train("sqirl", out="alone", seeds=("3",), **flags)
    taken = together.config["taken"]
    assert taken[3:4] == alone.config["taken"] and len(set(taken)) > 2
    assert len(set(together.agent["iteration"].tolist())) > 1  # and different numbers of iterations
    ours = together.eval.query("seed == 3").reset_index(drop=True)
    pd.testing.assert_frame_equal(ours, alone.eval)
    for name, tensor in alone.agent.items():
        if tensor.dim():
            torch.testing.assert_close(together.agent[name][3:4], tensor, atol=1e-9, rtol=0)


def broken_off(monkeypatch, train, at, **overrides):
    """A process that breaks off in its iteration `at`, once and again, without a word, and goes on from its checkpoint.

    Gives the result, and how many runs were over at each checkpoint that was taken up.
    """
    report, over = Run._report_progress, []
    for last in at:
        counts = [0]

        def broken(run, last=last, counts=counts):
            report(run)
            counts.append(int((run.done >= run.given.total_steps).sum()))
            if len(counts) > last:
                over.append(counts[-2])
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Run, "_report_progress", broken)
            with pytest.raises(KeyboardInterrupt):
                train("sqirl", out="broken", resume=True, **overrides)
    return train("sqirl", out="broken", resume=True, **overrides), over


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("env_id", ["tabular/chain-sticky", "tabular/gate-0.1875"])
def test_runs_that_have_done_different_numbers_of_steps_resume_to_the_bitwise_same_end(
    env_id, form, train, bare_runs, monkeypatch
):
    """Also after some of them are over."""
    flags = UNEVEN[form] | {"env_id": env_id, "total_steps": 120, "seeds": ("0:16",), "threads": 1}
    flags |= {"eval_every": 10, "log_every": 5, "checkpoint_every": 2}
    whole = train("sqirl", out="whole", **flags)
    iterations = int(whole.agent["iteration"].max())
    result, over = broken_off(monkeypatch, train, (2, iterations - 1), **flags)
    assert over[0] == 0 and 1 <= over[1] <= 15
    assert not differing(whole.parameters, result.parameters)
    assert result.config["taken"] == whole.config["taken"] and len(set(whole.config["taken"])) > 2
    for table in ("eval", "log"):
        ours, theirs = getattr(whole, table), getattr(result, table)
        order = [name for name in ours.columns if name not in ("value", "return", "length")]
        ours, theirs = (frame.sort_values(order, ignore_index=True) for frame in (ours, theirs))
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    assert len(whole.log) and whole.eval.groupby("seed").size().min() >= 2


@pytest.mark.parametrize("seen", [{}, {"append_time": True}])
def test_choices_that_are_remembered_are_those_of_the_policy(seen, train, bare_runs, monkeypatch):
    """Among runs that end at different times."""
    flags = UNEVEN["network"] | {
        "env_id": "tabular/chain-sticky",
        "total_steps": 120,
        "seeds": ("0:8",),
        "eval_every": 5,
    }
    remembered = train("sqirl", out="remembered", **flags, **seen)
    calls = []
    monkeypatch.setattr("sqirl.Remembered", lambda agent: lambda obs, t: calls.append(t) or agent.policy(obs, t))
    plain = train("sqirl", out="plain", **flags, **seen)
    assert calls and len(set(plain.config["taken"])) > 2 and plain.eval["return"].nunique() > 2
    pd.testing.assert_frame_equal(remembered.eval, plain.eval, check_exact=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_diverged_run_leaves_its_neighbours_as_they_are(form, train, bare_runs, monkeypatch, capsys):
    receive = SeededEnvs.receive
    flags = UNEVEN[form] | {"env_id": "tabular/chain-sticky", "total_steps": 120, "seeds": ("4:7",), "log_every": 5}
    whole = train("sqirl", out="whole", threads=1, **flags)

    broken = [0]

    def poisoned(envs, *counted):
        step = receive(envs, *counted)
        step.reward[broken] = float("nan")
        return step

    monkeypatch.setattr(SeededEnvs, "receive", poisoned)
    result = train("sqirl", threads=1, **flags)
    assert [row["seed"] for row in result.config["diverged"]] == [4] and result.code == 0
    assert "seed 4 diverged" in capsys.readouterr().err
    atol = 0 if form == "table" else 1e-7  # Adam's kernel takes other runs together, and rounds otherwise
    for name, tensor in whole.agent.items():
        if tensor.dim():
            torch.testing.assert_close(result.agent[name][1:], tensor[1:], atol=atol, rtol=0)
    assert result.config["taken"][1:] == whole.config["taken"][1:]
    broken += [1, 2]
    none = train("sqirl", out="none", threads=1, **flags)
    assert none.code == 3 and [row["seed"] for row in none.config["diverged"]] == [4, 5, 6]
    monkeypatch.setattr(SeededEnvs, "receive", receive)


def test_a_grid_is_its_settings_alone(train, bare_runs, float64):
    flags = UNEVEN["network"] | {"env_id": "tabular/gate-0.1875", "total_steps": 60, "seeds": ("3", "7"), "threads": 1}
    grid = train("sqirl", out="grid", vary=("discount=0.5,1",), **flags)
    assert list(grid.eval.columns) == ["seed", "discount", "step", "episode", "return", "length"]
    for number, discount in enumerate((0.5, 1.0)):
        alone = train("sqirl", out=f"alone{number}", discount=discount, **flags)
        for name, tensor in alone.agent.items():
            if tensor.dim():
                ours = grid.agent[name][2 * number : 2 * number + 2]
                torch.testing.assert_close(ours, tensor, atol=1e-9, rtol=0)
    table = {"form": "table", "env_id": "tabular/gate-0.1875", "total_steps": 2_000, "seeds": ("3", "7"), "threads": 1}
    table |= {"m": 64, "k": 2}  # so that the first choice depends on the discount
    choices = train("sqirl", out="table", vary=("discount=0.5,1",), **table).agent["choices"]
    for number, discount in enumerate((0.5, 1.0)):
        alone = train("sqirl", out=f"table{number}", discount=discount, **table).agent["choices"]
        assert torch.equal(choices[2 * number : 2 * number + 2], alone)
    assert not torch.equal(choices[:2], choices[2:])


@pytest.mark.slow
@needs_compiler
def test_compiled_updates_equal_eager_ones(train, bare_runs, float64):
    flags = UNEVEN["network"] | {"env_id": "tabular/chain", "total_steps": 120, "seeds": ("0:4",), "threads": 1}
    eager, compiled = (train("sqirl", out=str(on), compile=on, **flags) for on in (False, True))
    for name, tensor in eager.agent.items():
        torch.testing.assert_close(compiled.agent[name], tensor, atol=1e-9, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"k": 7}, r"--k 7 is more than the 6 steps of an episode of tabular/gate-0\.375"),
        ({"form": "table", "k": 7}, "--k 7 is more than the 6 steps"),
        ({"env_id": "Unlimited-v0"}, "Unlimited-v0 has no time limit"),
        ({"env_id": "Pendulum-v1"}, "Pendulum-v1 has Box actions"),
        ({"env_id": "CartPole-v1", "form": "table"}, "--form table needs a finite number of states"),
        ({"env_id": "CartPole-v1", "append_time": True}, "--append-time works for ids tabular/"),
        ({"env_id": "CartPole-v1", "append_previous_action": True}, "--append-previous-action works for ids tabular/"),
        ({"vary": ("k=1,2",)}, "--vary: k cannot differ between runs"),
        ({"vary": ("m=1,2",)}, "--vary: m cannot differ between runs"),
        ({"form": "table", "vary": ("lr=1e-4,1e-3",)}, "--vary: lr changes nothing with --form table"),
        ({"scale_losses": False, "vary": ("loss_decay=0.9,0.99",)}, "loss_decay changes nothing without --scale-l"),
        ({"m": 0}, "--m must be at least 1"),
        ({"env_id": "tabular/gate-0.4"}, "no table 'gate-0.4'; the closest names are"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(overrides, message, tmp_path):
    gym.register("Unlimited-v0", Five)
    try:
        with pytest.raises(UserError, match=message) as error:
            main(Args(**{"env_id": "tabular/gate-0.375", "out": tmp_path / "out", "quiet": True, **overrides}))
    finally:
        gym.registry.pop("Unlimited-v0")
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


# -- learning ----------------------------------------------------------------------------------------------------------


def binomial(n: int, hits: int, p: float) -> float:
    return comb(n, hits) * p**hits * (1 - p) ** (n - hits)


def chance(d: float, k: int, m: int) -> float:
    """The probability that m episodes make Q^k prefer to go right in the first state of the gate chain.

    n of them go right k times. From there, the way to the end is random, and their mean return must be above d.
    """
    ahead = 2.0 ** -(4 - k)
    return sum(
        binomial(m, n, 2.0**-k) * sum(binomial(n, hits, ahead) for hits in range(n + 1) if hits > d * n)
        for n in range(1, m + 1)
        if binomial(m, n, 2.0**-k) > 1e-12
    )


GATES = [  # pay of the gate, k, m, share of 100 seeds that found the best policy in an independent program
    (3 / 16, 1, 128, 0.07), (3 / 16, 1, 512, 0.00), (3 / 16, 2, 32, 0.61), (3 / 16, 2, 128, 0.77),
    (3 / 16, 2, 512, 0.97), (3 / 16, 3, 32, 0.84), (3 / 16, 3, 128, 1.00), (3 / 8, 2, 512, 0.00),
    (3 / 8, 3, 32, 0.64), (3 / 8, 3, 128, 0.84), (3 / 8, 3, 512, 1.00), (3 / 8, 4, 128, 1.00),
    (3 / 4, 3, 512, 0.00), (3 / 4, 4, 32, 0.86), (3 / 4, 4, 128, 1.00),
]  # fmt: skip


@pytest.mark.parametrize(
    ("d", "k", "m", "share"),
    [pytest.param(*gate, marks=pytest.mark.slow if gate[2] != 32 or gate[1] == 3 else ()) for gate in GATES],
)
def test_a_table_solves_the_gate_chain_as_often_as_it_should(d, k, m, share, train, bare_runs):
    """With k too small, more data makes it fail more surely."""
    flags = {"form": "table", "k": k, "m": m, "seeds": ("0:100",)}
    result = train("sqirl", env_id=f"tabular/gate-{d:g}", **QUICK, **flags)
    last = result.eval.query("step > 0")["return"]
    assert len(last) == 100 and set(last) <= {d, 1.0, 0.0}
    exact = chance(d, k, m)
    assert (last == 1).mean() == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 100) ** 0.5 + 0.01)
    assert (last == 1).mean() == pytest.approx(share, abs=0.2 if 0.01 < exact < 0.99 else 0.03)


@pytest.mark.parametrize(("m", "least"), [(100, 6), (400, 10)])
def test_a_table_crosses_the_frozen_lake(m, least, train, bare_runs):
    result = train("sqirl", env_id="tabular/frozen-lake-4x4", form="table", m=m, seeds=("0:10",), **QUICK)
    assert (result.eval.query("step > 0")["return"] == 1).sum() >= least
    assert (result.eval.query("step == 0")["return"] == 0).all()


def test_sticky_actions_hide_the_way_over_the_frozen_lake(train, bare_runs):
    """The gap between the best actions is 3e-4 there."""
    result = train("sqirl", env_id="tabular/frozen-lake-4x4-sticky", form="table", m=400, seeds=("0:10",), **QUICK)
    last = result.eval.query("step > 0")["return"]
    assert last.max() < 0.99 and last.std() > 0.1


def network(train, seeds, **flags):
    result = train("sqirl", seeds=seeds, lr=1e-3, **QUICK, **flags)
    return result.eval.query("step > 0")["return"]


FEW = [(0.375, 2), (0.75, 3)]  # in 20 seeds of ours, one of 1,000 episodes passes with k = 2


@pytest.mark.parametrize(("d", "k"), [(0.375, 1), *(pytest.param(*gate, marks=pytest.mark.slow) for gate in FEW)])
def test_a_network_is_content_with_the_gate_if_it_sees_too_few_steps(d, k, train, bare_runs):
    m = 1_000 if k == 1 else 3_000
    last = network(train, ("0:4",), env_id=f"tabular/gate-{d}", k=k, m=m, total_steps=12 * m)
    assert last.tolist() == [d] * 4


@pytest.mark.slow
def test_a_network_crosses_the_frozen_lake(train, bare_runs):
    last = network(train, ("0:4",), env_id="tabular/frozen-lake-4x4", m=300, total_steps=60_000)
    assert (last == 1).sum() >= 3 and prod(last.shape) == 4


@pytest.mark.slow
def test_a_network_passes_the_gate_if_it_looks_far_enough(train, bare_runs):
    last = network(train, ("0:4",), env_id="tabular/gate-0.375", k=3, m=3_000, total_steps=40_000)
    assert (last == 1).sum() >= 3


def test_many_observations_are_told_apart():
    """175,000 of them, with the previous action and the time."""
    venv = TabularVectorEnv("taxi-h50", 1, previous_action=True, time=True)
    shown = torch.as_tensor(np.concatenate([venv.all_observations(t) for t in range(50)]))
    task = Task("tabular/taxi-h50", shown.shape[1:], 6, True, (), (), 50)
    agent = TabularSQIRL(Args(env_id=task.env_id), task, [0], shown)
    assert len(agent.number(shown).unique()) == len(shown) == 175_000


def test_short_runs_of_the_table_of_scripts_work(train_short):
    for script in ("sqirl", "sqirl table"):
        assert train_short(script, out=script).config["status"] == "finished"


@pytest.mark.parametrize("script", [sqirl, gorp])
def test_a_run_stops_by_its_own_evaluations_only(script, tmp_path):
    """Seeds reach an evaluation at different times, and the untrained policies of some solve the task already."""
    common = {"env_id": "tabular/gate-0.75-sticky", "total_steps": 2_000, "eval_every": 500, "m": 40, "k": 1}
    common |= {"quiet": True, "device": "cpu", "stop_when_solved": True, "log_every": 500}

    def trained(variant, *seeds):
        script.main(script.Args(**common, seeds=seeds, variant=variant, out=tmp_path))
        folder = tmp_path / "tabular-gate-0.75-sticky" / script.__name__ / variant
        taken = json.loads((folder / "config.json").read_text())["taken"]
        return pd.read_parquet(folder / "eval.parquet"), dict(zip(map(int, seeds), taken, strict=True))

    together, taken = trained("together", *map(str, range(4)))
    assert len(set(taken.values())) > 1
    for seed in range(4):
        alone, own_taken = trained(f"alone_{seed}", str(seed))
        own = together[together["seed"] == seed].reset_index(drop=True)
        pd.testing.assert_frame_equal(own, alone)
        assert taken[seed] == own_taken[seed]
        steps = own["step"].tolist()
        assert steps == sorted(steps) and min(taken[seed], 2_000) in steps  # it is evaluated where it ends
