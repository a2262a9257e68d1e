"""PPO against CleanRL's arithmetic, and what is ours."""

import math

import mdpo_off_policy
import mdpo_on_policy
import pandas as pd
import pytest
import torch
import trpo
from on_policy_data import prints, set_layers, wave
from ppo import PPO, Args, Softmax, main
from scripts import DISCRETE, agent_of
from torch import nn

from algos.errors import UserError
from algos.on_policy import Gaussian, Samples
from algos.rollout import Outcome, Rollout
from envs import Task

TASK = Task("Made-v0", (3,), 2, False, (-2.0, -2.0), (2.0, 2.0), 50)
T, N = 8, 2
# The result of one update of CleanRL's ppo_continuous_action.py (commit fe8d8a0, its own text executed) on these
# arrays: a number for each weight and bias of actor and critic, and the log standard deviations.
CLEANRL_ACTOR = [
    23.229116110726814, 1.7320096033014019, 539.1013442479448, -2.095832453279196, 1.3648715319966942,
    -0.13194312793618926,
]  # fmt: skip
CLEANRL_CRITIC = [
    -6.009311805769132, -0.10400473047063113, 436.00365359980077, -1.0772482438973707, 8.872291854668443,
    -0.020983362113745196,
]  # fmt: skip
CLEANRL_LOG_STD = (-0.2606564828338612, 0.253356204661259)

# The same of one update of stable_baselines3.PPO (2.9.2, its own `train` executed in float64) with three actions and
# its default weight of 0.5 for the value's loss, which is the whole squared error there.
SB3_ACTOR = [
    25.118116930725204, 1.6730894727787389, 539.480975894807, -2.9621422365767414, 2.5545395110737004,
    -0.1700552817274657,
]  # fmt: skip
SB3_CRITIC = [
    -5.9486918024587325, -0.570403902728225, 436.2342689650262, -1.2178437298900957, 8.720029567591421,
    -0.02329331093975022,
]  # fmt: skip


def update(runs: tuple[int, ...] = (0, 1)) -> tuple[PPO, dict[str, torch.Tensor]]:
    """One update of two runs, of which the first has the arrays of the oracle, or of one of them alone."""
    agent = agent_of(
        "ppo", seeds=runs, task=TASK, lr=0.01, entropy_weight=0.01, discount=0.9, trace=0.8, horizon=T, num_envs=N,
        batch_size=4, epochs=2, hidden=(64, 64), anneal=False, normalise_obs=False,
    )  # fmt: skip
    rollout = Rollout(len(runs), T, N, TASK)
    order = torch.zeros(len(runs), 2, T * N)
    for place, run in enumerate(runs):
        set_layers(agent.actor.net, place, run)
        set_layers(agent.critic.net, place, 5 + run)
        agent.actor.log_std.data[place] = torch.tensor([[-0.3, 0.2]])
        rollout.obs[place] = 2 * wave(T, N, 3, phase=run)
        rollout.action[place] = wave(T, N, 2, phase=1.0 + run)
        reward, ended = wave(T, N, phase=2.0 + run), (wave(T, N, phase=3.0 + run) > 0.8).double()
        next_obs = torch.zeros(T, N, 3)  # the last one alone is looked at
        next_obs[-1] = 2 * wave(N, 3, phase=4.0 + run)
        for ours, given in zip(rollout.outcome, Outcome(reward, ended, 0 * ended, next_obs), strict=True):
            ours[place] = given
        for epoch, (factor, shift) in enumerate([(5, 3), (7, 1)]):
            chosen = torch.tensor([(factor * i + shift + 4 * run) % 16 for i in range(16)])
            order[place, epoch, chosen] = torch.arange(16) / 16
    return agent, agent.update(rollout, order)


def test_an_update_is_cleanrls(float64):
    agent, _ = update()
    assert prints(agent.actor.net, 0) == pytest.approx(CLEANRL_ACTOR, abs=1e-9)
    assert prints(agent.critic.net, 0) == pytest.approx(CLEANRL_CRITIC, abs=1e-9)
    assert agent.actor.log_std[0, 0].tolist() == pytest.approx(CLEANRL_LOG_STD, abs=1e-9)


def test_an_update_with_discrete_actions_is_stable_baselines(float64):
    task = Task("Made-v0", (3,), 3, True, (), (), 50)
    agent = agent_of(
        "ppo", seeds=(0,), task=task, lr=0.01, entropy_weight=0.01, discount=0.9, trace=0.8, horizon=T, num_envs=N,
        batch_size=4, epochs=2, hidden=(64, 64), anneal=False, normalise_obs=False, clip_value=False, value_weight=1.0,
    )  # fmt: skip
    set_layers(agent.actor.net, 0)
    set_layers(agent.critic.net, 0, 5)
    rollout = Rollout(1, T, N, task)
    rollout.obs[0] = 2 * wave(T, N, 3)
    rollout.action[0] = ((wave(T, N, phase=1.0) + 1) * 1.5).long().clamp(max=2)
    next_obs = torch.zeros(T, N, 3)
    next_obs[-1] = 2 * wave(N, 3, phase=4.0)
    ended = (wave(T, N, phase=3.0) > 0.8).double()
    for ours, given in zip(rollout.outcome, Outcome(wave(T, N, phase=2.0), ended, 0 * ended, next_obs), strict=True):
        ours[0] = given
    order = torch.zeros(1, 2, T * N)
    for epoch, (factor, shift) in enumerate([(5, 3), (7, 1)]):
        order[0, epoch, torch.tensor([(factor * i + shift) % 16 for i in range(16)])] = torch.arange(16) / 16
    agent.update(rollout, order)
    assert prints(agent.actor.net, 0) == pytest.approx(SB3_ACTOR, abs=1e-9)
    assert prints(agent.critic.net, 0) == pytest.approx(SB3_CRITIC, abs=1e-9)


def test_runs_are_clipped_and_shuffled_apart(float64):
    together, metrics = update((0, 1))
    for run in (0, 1):
        alone, own = update((run,))
        assert prints(together.actor.net, run) == pytest.approx(prints(alone.actor.net, 0), abs=1e-12)
        assert metrics["clipped"][run].item() == pytest.approx(own["clipped"][0].item())
    assert metrics["clipped"].min() > 0  # the clip plays a part in both


def test_the_learning_rate_falls_by_iterations_to_zero():
    agent = agent_of("ppo", task=TASK, lr=0.5, horizon=8, num_envs=2, batch_size=4, epochs=3, total_steps=60)
    rates = []
    for _ in range(4):  # the last iteration goes beyond the 60 steps
        for _ in range(12):
            rates.append(float(agent.adam.rate()))
            agent.adam.count += 1
    assert rates == [0.5] * 12 + [0.375] * 12 + [0.25] * 12 + [0.125] * 12
    assert float(agent.adam.rate()) == 0.0
    assert agent_of("ppo", task=TASK, anneal=False).adam.rate() == 0.02


@pytest.mark.slow
def test_it_learns_to_balance_with_two_actions(train):
    flags = {"env_id": "CartPole-v1", "num_envs": 4, "horizon": 128, "entropy_weight": 0.01, "lr": 1e-3}
    result = train("ppo", seeds=("0:4",), total_steps=40_960, eval_every=40_960, compile=False, threads=1, **flags)
    means = pd.read_parquet(result.folder / "eval.parquet").groupby(["seed", "step"])["return"].mean().unstack()
    assert means[0].mean() < 200
    assert (means[40_960] > 400).sum() >= 3


@pytest.mark.parametrize(
    ("advantage", "ratio", "moves"), [(1, 1.3, False), (1, 0.7, True), (-1, 1.3, True), (-1, 0.7, False)]
)
def test_a_ratio_that_has_gone_far_enough_has_no_gradient(advantage, ratio, moves, float64):
    agent = agent_of("ppo", seeds=(0,), task=TASK, entropy_weight=0.0)
    log_prob = torch.tensor([[math.log(ratio), 0.0]], requires_grad=True)
    agent.actor = nn.Module()
    agent.actor.log_prob_and_entropy = lambda obs, action: (log_prob, torch.zeros(1, 2))
    zeros, advantages = torch.zeros(1, 2), torch.tensor([[advantage, -advantage]]).double()
    loss, _ = agent.policy_loss(Samples(zeros, zeros, zeros, zeros, advantages, zeros))
    (slope,) = torch.autograd.grad(loss.sum(), log_prob)
    assert bool(slope[0, 0]) == moves


def test_the_softmax_draws_by_its_probabilities_and_knows_them():
    policy = Softmax(2, DISCRETE, (16,))
    for p in policy.parameters():
        nn.init.zeros_(p)
    policy.net.out.bias.data[1, 0] = torch.tensor([0.0, 1.0, 2.0])
    obs, noise = torch.zeros(2, 20_000, 7), torch.rand(2, 20_000, 3, generator=torch.Generator().manual_seed(0))
    action = policy.sample(obs, noise)
    expected = torch.tensor([[1 / 3] * 3, torch.tensor([0.0, 1.0, 2.0]).softmax(0).tolist()])
    shares = torch.stack([(action == a).float().mean(1) for a in range(3)], 1)
    torch.testing.assert_close(shares, expected, atol=0.02, rtol=0)
    log_prob, entropy = policy.log_prob_and_entropy(obs, action)
    torch.testing.assert_close(log_prob.exp(), expected.gather(1, action))
    torch.testing.assert_close(entropy[:, 0], -(expected * expected.log()).sum(1))
    assert policy.mode(obs)[1].unique().tolist() == [2]


def test_densities_are_those_of_torchs_normal_distribution(float64):
    policy = Gaussian(2, TASK, (16,))
    for p in policy.parameters():
        nn.init.normal_(p)
    obs, action = wave(2, 5, 3), wave(2, 5, 2)
    mean, log_std = policy(obs)
    normal = torch.distributions.Normal(mean, log_std.exp())
    log_prob, entropy = policy.log_prob_and_entropy(obs, action)
    torch.testing.assert_close(log_prob, normal.log_prob(action).sum(-1))
    torch.testing.assert_close(entropy, normal.entropy().sum(-1).expand(2, 5))
    torch.testing.assert_close(policy.sample(obs, action), mean + normal.stddev * action)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batch_size": 100, "horizon": 32, "num_envs": 3}, "--batch-size must be at most 96, the steps"),
        ({"total_steps": 2_000}, "--total-steps must be at least 2048, the steps of an iteration"),
        ({"batch_size": 1}, "--batch-size must lie in"),
        ({"clip": 0.0}, "--clip must be above 0"),
        ({"num_envs": 0}, "--num-envs must lie in"),
        ({"compile": True, "bf16": True}, "--bf16 rounds too much"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(flags, message, tmp_path):
    with pytest.raises(UserError, match=message):
        main(Args(**{"env_id": "Pendulum-v1", "out": tmp_path / "out", "device": "cpu", "quiet": True, **flags}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("script", [trpo, mdpo_on_policy, mdpo_off_policy])
def test_discrete_actions_are_refused_where_there_is_no_softmax(script, tmp_path):
    with pytest.raises(UserError, match="CartPole-v1 has Discrete actions; this needs continuous ones"):
        script.main(script.Args(env_id="CartPole-v1", out=tmp_path / "out", device="cpu", quiet=True))
    assert not (tmp_path / "out").exists()


def test_an_agent_that_is_loaded_acts_as_in_evaluation():
    """Statistics are a part of its state."""
    sizes = {"task": TASK, "horizon": T, "num_envs": N}
    agent, other = agent_of("ppo", seeds=(0, 1), **sizes), agent_of("ppo", seeds=(5, 6), **sizes)
    agent.start(torch.randn(2, 2, 3))
    other.load_state_dict(agent.state_dict())
    obs = torch.randn(2, 4, 3)
    assert torch.equal(agent.policy(obs), other.policy(obs))


def test_metrics_of_a_minibatch_by_hand(float64):
    """Ratios 1.5, 0.6, 1 and 1.1 of which two leave 0.8 to 1.2; the estimate of the divergence is ratio - 1 - log."""
    agent = agent_of("ppo", seeds=(0, 1), task=TASK, clip=0.2)
    ratio, entropy = torch.tensor([[1.5, 0.6, 1.0, 1.1]] * 2), torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 2)
    old = torch.tensor([[0.5, -0.5, 0.0, 1.0]] * 2)
    agent.actor.log_prob_and_entropy = lambda obs, action: (old + ratio.log(), entropy)
    value, advantage = torch.tensor([[1.0, 2.0, 3.0, 6.0]] * 2), torch.tensor([[1.0, -1.0, 2.0, 0.0]] * 2)
    batch = Samples(torch.randn(2, 4, 3), torch.zeros(2, 4, 2), old, value, advantage, value + advantage)
    loss, metrics = agent.policy_loss(batch)
    divergence = sum(r - 1 - math.log(r) for r in (1.5, 0.6, 1.0, 1.1)) / 4
    for name, expected in (("kl", divergence), ("clipped", 0.5), ("entropy", 2.5)):
        assert metrics[name].tolist() == pytest.approx([expected] * 2)
    torch.testing.assert_close(loss, metrics["policy_loss"] - agent.args.entropy_weight * 2.5)
    agent.adam.minimise = lambda loss: None
    assert agent.step(batch)["value"].tolist() == [3.0, 3.0]


class Values(nn.Module):
    def forward(self, obs):
        return torch.tensor([[2.0, 1.1]])


def test_values_may_move_as_far_as_they_want_without_clipping():
    """Two samples: returns 3 and 1, values then 1 and 1, now 2 and 1.1; clipped at 0.2, the first counts as 1.2."""
    ones = torch.ones(1, 2)
    for clip_value, expected in ((True, 0.5 * (1.8**2 + 0.1**2) / 2), (False, 0.5 * (1.0 + 0.1**2) / 2)):
        agent = agent_of("ppo", task=TASK, clip=0.2, clip_value=clip_value)
        agent.critic = Values()
        batch = Samples(ones, ones, ones, ones, ones, torch.tensor([[3.0, 1.0]]))
        assert agent.value_loss(batch).item() == pytest.approx(expected)


@pytest.mark.parametrize(("env_id", "actions"), [("InvertedPendulum-v5", 3), ("Reacher-v5", 9)])
def test_levels_make_a_softmax_over_their_combinations(env_id, actions, train_short):
    result = train_short("ppo", env_id=env_id, levels=(-1.0, 0.0, 1.0))
    assert result.agent["actor.net.out.weight"].shape[-1] == actions
    assert result.code == 0 and set(result.eval["step"]) == {0, 40}
