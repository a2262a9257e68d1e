"""DQN against numbers by hand and against Stable-Baselines3's arithmetic, and what is ours."""

import json

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import torch
from dqn import DQN, Args, Draws, main
from on_policy_data import prints, set_layers, wave
from scripts import DISCRETE, agent_of, differing
from torch import nn

from algos.errors import UserError
from algos.optim import Target
from algos.random import Random
from algos.replay import Batch, ReplayBuffer
from algos.run import Run
from envs import SeededEnvs, Task

IMAGES = Task("Made-v0", (4, 10, 10), 3, True, (), (), 0)

# Six updates of stable_baselines3.DQN (2.9.2, its own `train` and `_on_step` executed in float64) on the batches of
# `batch`: the losses; a number for each weight and bias of the network, and of the target copied before updates 2, 4, 6
SB3_LOSSES = [
    0.8884190294413555, 1.141407573896037, 0.7781652825705137, 0.834228871136027, 0.6461445665323027,
    0.6861447566895189,
]  # fmt: skip
SB3_CRITIC = [
    57.856700760802816, -0.3111343115256025, 539.5805704071853, -2.2760825550974166, 1.7581145943767083,
    -0.13924986772800907,
]  # fmt: skip
SB3_TARGET = [
    57.947084651588064, -0.2999344997168867, 539.5749796870891, -2.375594451041189, 1.77815500106056,
    -0.13810832378390808,
]  # fmt: skip
# What Stable-Baselines3 does in 20 steps with train_freq 4, target_update_interval 6 and these learning_starts, and the
# probabilities of random actions with exploration_fraction 0.5 and exploration_final_eps 0.1. Its first one is 0.
SB3_EVENTS = {
    0: "update 4, target 6, update 8, target 12, update 12, update 16, target 18, update 20",
    8: "target 6, target 12, update 12, update 16, target 18, update 20",
}
SB3_EPSILON = [0.91, 0.82, 0.73, 0.64, 0.55, 0.46, 0.37, 0.28, 0.19, *[0.1] * 10]


class Chain(gym.Env):
    """Six states in a row, seen one-hot: 1 and 0 in turn lead on to a pay of 1; a wrong action ends it with 0.2."""

    observation_space = gym.spaces.Box(0, 1, (6,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def obs(self):
        return np.eye(6, dtype=np.float32)[min(self.state, 5)]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0
        return self.obs(), {}

    def step(self, action):
        right = action == (self.state + 1) % 2
        self.state += 1
        arrived = self.state == 6
        return self.obs(), (float(arrived) if right else 0.2), arrived or not right, False, {}


class Given(nn.Module):
    """A network that gives the same values [R, B, A] for all observations."""

    def __init__(self, values):
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, obs):
        return self.values


def batch(number: int, size: int = 16) -> Batch:
    """The batch of one update for one run, without chance."""
    action = torch.tensor([(5 * i + number) % 3 for i in range(size)])
    fields = (
        2 * wave(size, 7, phase=3.0 * number), action, 2 * wave(size, phase=1.0 + number),
        2 * wave(size, 7, phase=1.5 + 3.0 * number), (wave(size, phase=2.0 + number) > 0.6).double(),
    )  # fmt: skip
    return Batch(*(x[None] for x in fields))


def test_the_loss_is_the_one_by_hand():
    """Errors of -0.5, 1, 3 and -1 are worth 0.125, 0.5, 2.5 and 0.5; the second run has nothing but last steps."""
    agent = agent_of("dqn", discount=0.5)
    agent.critic = Given([[[0.0, 2.0], [1.0, 9.0], [5.0, 9.0], [9.0, -1.0]], [[0.0, 9.0]] * 4])
    agent.target_critic = Given([[[3.0, -1.0], [10.0, 9.0], [0.0, 2.0], [-4.0, -5.0]], [[7.0, 8.0]] * 4])
    reward = torch.tensor([[1.0, 0.0, 1.0, 2.0], [1.0, 2.0, -3.0, 0.5]])
    terminated = torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0] * 4])
    obs, action = torch.zeros(2, 4, 7), torch.tensor([[1, 0, 0, 1], [0] * 4])
    loss, value = agent.loss(Batch(obs, action, reward, obs, terminated))
    assert loss.tolist() == [0.90625, 1.15625] and value.tolist() == [1.75, 0.0]


def test_updates_are_those_of_stable_baselines(float64):
    """All but the last of the six gradients are longer than their bound; the second run has other weights and data."""
    agent = agent_of("dqn", lr=0.01, discount=0.9, max_norm=1.5, hidden=(64, 64))
    for run, phase in enumerate((0.0, 7.0)):
        set_layers(agent.critic.net, run, phase)
        set_layers(agent.target_critic.net.net, run, phase)
    losses = []
    for number in range(6):
        if number % 2:
            agent.target_critic.update()
        both = Batch(*map(torch.cat, zip(batch(number), batch(number + 10), strict=True)))
        losses.append(agent.update(both)["loss"][0].item())
    assert losses == pytest.approx(SB3_LOSSES, abs=1e-9)
    assert prints(agent.critic.net, 0) == pytest.approx(SB3_CRITIC, abs=1e-6)
    assert prints(agent.target_critic.net.net, 0) == pytest.approx(SB3_TARGET, abs=1e-6)


def test_networks_begin_as_torchs_layers_would_and_targets_as_their_copies():
    agent = DQN(Args(), DISCRETE, [3, 7])
    layers = [*(block[0] for block in agent.critic.net.hidden), agent.critic.net.out]
    assert [tuple(layer.weight.shape) for layer in layers] == [(2, 7, 64), (2, 64, 64), (2, 64, 3)]
    for layer in layers:
        bound = layer.weight.shape[1] ** -0.5
        assert 0.95 * bound < layer.weight.abs().max() <= bound and 0.5 * bound < layer.bias.abs().max() <= bound
    assert all(map(torch.equal, agent.critic.parameters(), agent.target_critic.parameters()))


@pytest.mark.parametrize("learning_starts", [0, 8])
def test_epsilon_falls_as_in_stable_baselines(learning_starts):
    flags = {"total_steps": 20, "exploration": 0.5, "epsilon_end": 0.1, "learning_starts": learning_starts}
    agent, epsilons = agent_of("dqn", **flags), []
    draws = agent.draws(Random(agent.seeds))
    for _ in range(20):
        epsilons.append(agent.epsilon())
        agent.act(torch.zeros(2, 1, 7), draws())
    first = max(learning_starts, 1)
    expected = [1.0] * first + SB3_EPSILON[first - 1 :]
    assert torch.stack(epsilons, 1).tolist() == [pytest.approx(expected)] * 2


def test_actions_are_random_below_epsilon_and_greedy_above():
    agent = agent_of("dqn", epsilon_start=0.5, epsilon_end=0.5)
    obs = wave(2, 4, 7).float()
    explore, uniform = torch.tensor([[0.49, 0.51, 0.49, 0.99]] * 2), torch.tensor([[0.0, 0.0, 0.999, 0.5]] * 2)
    best = agent.critic(obs).argmax(-1)
    expected = torch.tensor([[0, 0, 2, 0]] * 2)
    expected[:, [1, 3]] = best[:, [1, 3]]
    assert torch.equal(agent.act(obs, Draws(explore, uniform)), expected)
    assert torch.equal(agent.policy(obs), best) and agent.drawn.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("learning_starts", [0, 8])
def test_updates_and_copies_come_when_stable_baselines_makes_them(learning_starts, train_short, monkeypatch):
    """An update sees all transitions up to its step, and comes after the copy of the same step."""
    events, filled = [], []
    copy, update, add, choose = Target.update, DQN.update, ReplayBuffer.add, ReplayBuffer.choose

    def noted_copy(target):
        events.append(f"target {filled[-1]}")
        copy(target)
        assert all(map(torch.equal, target.frozen, target.online))

    def noted_update(agent, batch):
        events.append(f"update {filled[-1]}")
        before = [p.clone() for p in agent.target_critic.frozen]
        metrics = update(agent, batch)
        assert all(map(torch.equal, before, agent.target_critic.frozen))
        assert not any(map(torch.equal, agent.target_critic.frozen, agent.target_critic.online))
        return metrics

    def noted_add(replay, step):
        add(replay, step)
        filled.append(int(replay.added[0]))

    def noted_choose(replay, integers):
        indices = choose(replay, integers)
        assert indices.min() >= 0 and indices.max() < filled[-1]
        return indices

    for owner, name, function in (
        (Target, "update", noted_copy), (DQN, "update", noted_update),
        (ReplayBuffer, "add", noted_add), (ReplayBuffer, "choose", noted_choose),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, function)
    train_short("dqn", total_steps=20, train_every=4, target_every=6, learning_starts=learning_starts)
    assert ", ".join(events) == SB3_EVENTS[learning_starts] and filled == list(range(1, 21))


@pytest.mark.parametrize("limit", [3, 6, 10])
def test_a_truncated_step_bootstraps_and_a_terminated_one_does_not(limit):
    """An episode that goes on is cut after three steps or over after six, whether or not that is also its limit."""
    envs = SeededEnvs([gym.wrappers.TimeLimit(Chain(), limit)], [0], actions="discrete")
    agent = agent_of("dqn", seeds=(0,), task=envs.task)
    replay = ReplayBuffer(1, 10, envs.task)
    last = min(limit, 6)
    for number in range(last):
        replay.add(envs.step(torch.tensor([[(number + 1) % 2]])))
    assert [episode.length for episode in envs.take_ended()] == [last]
    rows = replay.gather(torch.tensor([[last - 1]]))
    next_obs = torch.eye(6)[min(last, 5)].view(1, 1, 6)
    value = agent.critic(torch.eye(6)[last - 1].view(1, 1, 6))[..., last % 2]
    target = float(last == 6) + 0.99 * agent.target_critic(next_obs).amax(-1) * (last < 6)
    loss, _ = agent.loss(rows)
    torch.testing.assert_close(loss, nn.functional.smooth_l1_loss(value, target)[None])


@pytest.mark.parametrize("word", ["tau=0.3,1", "exploration=0.1,1", "epsilon_start=0.2,1", "epsilon_end=0.01,0.9"])
def test_what_acts_outside_updates_may_differ_between_runs(word, train_short, float64):
    name, _, values = word.partition("=")
    grid, states = train_short("dqn", out="grid", seeds=("3", "7"), vary=(word,)).agent, []
    for number, value in enumerate(values.split(",")):
        alone = train_short("dqn", out=f"alone{number}", seeds=("3", "7"), **{name: float(value)}).agent
        for key, tensor in alone.items():
            ours = grid[key][2 * number : 2 * number + 2] if tensor.dim() else grid[key]
            torch.testing.assert_close(ours, tensor, atol=1e-9, rtol=0)
        states.append(alone["critic.net.out.weight"])
    assert not torch.equal(*states)


def test_images_go_through_the_convolution_of_torch(float64):
    agent = agent_of("dqn", task=IMAGES, hidden=())
    obs = wave(2, 5, 400)
    values = agent.critic(obs)
    assert values.shape == (2, 5, 3) and [len(x[0].bias[0, 0]) for x in agent.critic.net.hidden] == [128]
    for run in range(2):
        conv = nn.Conv2d(4, 16, 3)
        conv.weight.data = agent.critic.conv.weight[run].T.reshape(16, 4, 3, 3).detach()
        conv.bias.data = agent.critic.conv.bias[run, 0].detach()
        features = conv(obs[run].view(5, 4, 10, 10)).relu().permute(0, 2, 3, 1)  # its channels come last here
        hidden, out = agent.critic.net.hidden[0][0], agent.critic.net.out
        x = (features.reshape(5, -1) @ hidden.weight[run] + hidden.bias[run]).relu()
        torch.testing.assert_close(values[run], x @ out.weight[run] + out.bias[run])


def test_runs_with_images_are_apart(float64):
    def learned(seeds):
        agent = agent_of("dqn", task=IMAGES, seeds=seeds, hidden=(8,), max_norm=0.01)
        for number in range(3):
            rows = []
            for seed in seeds:
                phase = 10 * seed + number
                action, terminated = torch.arange(4)[None] % 3, torch.tensor([[0.0, 1.0, 0.0, 0.0]])
                images = wave(1, 4, 400, phase=phase), wave(1, 4, 400, phase=phase + 5)
                rows.append(Batch(images[0], action, wave(1, 4, phase=phase), images[1], terminated))
            agent.update(Batch(*map(torch.cat, zip(*rows, strict=True))))
        return agent.state_dict()

    together, alone = learned((3, 7)), learned((7,))
    for name, tensor in alone.items():
        ours = together[name][1:] if tensor.dim() else together[name]
        torch.testing.assert_close(ours, tensor, atol=1e-9, rtol=0)


@pytest.mark.parametrize("shape", [(), (4, 3), (5, 2, 2)])
def test_other_shapes_are_vectors(shape):
    task = Task("Made-v0", shape, 3, True, (), (), 0)
    assert agent_of("dqn", task=task).policy(torch.zeros(2, 6, task.obs_size)).shape == (2, 6)


def test_it_plays_minatar(train):
    pytest.importorskip("minatar")
    short = {"total_steps": 40, "eval_every": 40, "eval_episodes": 1, "log_every": 10, "target_every": 10}
    result = train("dqn", env_id="MinAtar/Breakout-v1", seeds=("0", "1"), threads=1, **short)
    assert result.config["status"] == "finished" and result.agent["critic.conv.weight"].shape == (2, 36, 16)
    assert {"loss", "value"} <= set(result.log["metric"]) and np.isfinite(result.log["value"]).all()


def test_continuous_actions_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(UserError) as error:
        main(Args(env_id="Pendulum-v1", out=tmp_path, quiet=True, device="cpu"))
    asked = "this needs a finite number of them (Discrete), which levels make, such as --levels -1 0 1"
    assert str(error.value) == f"--env-id: Pendulum-v1 has Box actions; {asked}"


def test_it_learns_to_go_to_the_end_of_a_chain(train, bare_runs):
    """The end pays 1 where every other way pays 0.2; random actions come there once in 64 times."""
    gym.register("Chain-v0", Chain)
    try:
        flags = {"lr": 3e-3, "target_every": 50, "train_every": 1, "exploration": 1.0, "eval_episodes": 1, "threads": 1}
        result = train("dqn", env_id="Chain-v0", seeds=("0:8",), total_steps=2_000, eval_every=2_000, **flags)
    finally:
        gym.registry.pop("Chain-v0")
    solved = (result.eval.set_index(["seed", "step"])["return"] == 1).unstack()
    assert solved[0].sum() <= 1 and solved[2_000].sum() >= 7
    assert len(solved) == 8


@pytest.mark.slow
def test_it_learns_to_balance(train, bare_runs):
    flags = {"lr": 1e-3, "train_every": 1, "target_every": 250, "batch_size": 64, "exploration": 0.4, "threads": 1}
    result = train("dqn", env_id="CartPole-v1", seeds=("0:4",), total_steps=10_000, eval_every=2_500, **flags)
    means = result.eval.groupby(["seed", "step"])["return"].mean().unstack()
    assert means[0].mean() < 30
    assert (means.drop(columns=0).mean(axis=1) > 80).sum() >= 3


@pytest.mark.slow
def test_runs_stop_when_they_have_solved_a_table(tmp_path):
    common = {"env_id": "tabular/gate-0.1875-sticky", "seeds": ("0:3",), "total_steps": 5_000, "eval_every": 500}
    common |= {"discount": 1.0, "quiet": True, "device": "cpu", "out": tmp_path}
    for variant in ("stops", "goes_on"):
        main(Args(**common, variant=variant, stop_when_solved=variant == "stops"))
    folder = tmp_path / "tabular-gate-0.1875-sticky" / "dqn"
    short, whole = (pd.read_parquet(folder / name / "eval.parquet") for name in ("stops", "goes_on"))
    taken = json.loads((folder / "stops" / "config.json").read_text())["taken"]
    for seed in range(3):
        own, all_of_it = (frame[frame["seed"] == seed].set_index("step")["return"] for frame in (short, whole))
        solved = all_of_it[all_of_it >= 0.96].index[0]  # 0.9607910: 95% of the way to 1
        assert taken[seed] == solved < 5_000
        assert own.index.tolist() == [*range(0, solved + 1, 500), 5_000]
        assert own.loc[:solved].equals(all_of_it.loc[:solved])  # a run that has stopped moves no other
        assert own[5_000] == own[solved]


LAKE = {"env_id": "tabular/frozen-lake-4x4-sticky"}
STOPS_EARLY = {  # seeds that stop at different times
    "dqn": {"env_id": "tabular/gate-0.1875-sticky", "seeds": ("0", "5", "6")},
    "ppo": LAKE | {"seeds": ("0:3",), "num_envs": 2, "horizon": 32, "batch_size": 32, "compile": False},
    "sqirl": LAKE | {"seeds": ("0", "1", "4"), "m": 20, "k": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("script", STOPS_EARLY)
def test_runs_that_stop_when_solved_resume_to_the_bitwise_same_end(script, train, bare_runs, monkeypatch):
    """Broken off in the second iteration after none, one and two of three runs have stopped."""
    flags = {"total_steps": 20_000, "eval_every": 100, "discount": 1.0, "stop_when_solved": True, "threads": 1}
    flags |= {"log_every": 100, "checkpoint_every": 200} | STOPS_EARLY[script]
    whole = train(script, out="whole", **flags)
    assert len(set(whole.config["taken"])) == 3 and max(whole.config["taken"]) < 20_000

    report = Run._report_progress
    for after in range(3):
        seen = []

        def broken(run, after=after, seen=seen):
            report(run)
            seen.append(int((run.done >= 20_000).sum()))
            if seen.count(after) == 2:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Run, "_report_progress", broken)
            with pytest.raises(KeyboardInterrupt):
                train(script, out=f"broken{after}", **flags)
        result = train(script, out=f"broken{after}", resume=True, **flags)
        assert seen[-1] == after
        assert result.config["taken"] == whole.config["taken"]
        assert not differing(whole.parameters, result.parameters)
        for table in ("eval", "log"):
            pd.testing.assert_frame_equal(getattr(whole, table), getattr(result, table), check_exact=True)


@pytest.mark.parametrize("arguments", [{"env_id": "CartPole-v1"}, {"env_id": "tabular/gate-0.375", "eval_episodes": 0}])
def test_only_tables_that_are_evaluated_are_known_to_be_solved(arguments, tmp_path):
    with pytest.raises(UserError, match="--stop-when-solved works for ids tabular/… only"):
        main(Args(**arguments, stop_when_solved=True, out=tmp_path))
