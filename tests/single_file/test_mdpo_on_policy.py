"""On-policy MDPO. The values are those of the MDPO sheet, section 9."""

import math

import numpy as np
import pytest
import torch
from mdpo_on_policy import MDPO
from on_policy_data import assert_same_tanh, tanh_layers_of
from scripts import Feed, agent_of
from torch import Tensor, nn

from algos.on_policy import Samples, gaussian_kl
from algos.optim import Adam
from algos.per_run import PerRun
from algos.random import Random
from algos.rollout import Rollout
from envs import SeededEnvs, Task

TASK = Task("Made-v0", (1,), 1, False, (-2.0,), (2.0,), 50)
ACTIONS, ADVANTAGES = (0.5, -1.0, 0.3), (1.0, -2.0, 0.5)


class Fixed(nn.Module):
    """A Gaussian that is the same everywhere."""

    def __init__(self, mean: float, log_std: float):
        super().__init__()
        self.mean = nn.Parameter(torch.full((1, 1, 1), mean))
        self.log_std = nn.Parameter(torch.full((1, 1, 1), log_std))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean.expand(*obs.shape[:2], 1), self.log_std


def samples(advantages: tuple[float, ...] = ADVANTAGES) -> Samples:
    """Three samples of a standard normal policy, [1, 3]."""
    action = torch.tensor(ACTIONS).view(1, 3, 1)
    log_prob = (-0.5 * action.square() - 0.5 * math.log(2 * math.pi)).squeeze(-1)
    advantage = torch.tensor([advantages])
    return Samples(torch.zeros(1, 3, 1), action, log_prob, torch.zeros(1, 3), advantage, advantage)


def agent_with(actor: Fixed) -> MDPO:
    agent = agent_of("mdpo_on_policy", seeds=(0,), task=TASK, lr=3e-4)
    agent.actor = actor
    agent.actor_adam = Adam(actor.parameters(), lr=3e-4, eps=1e-5, max_norm=0.5)
    return agent


def loss_and_gradient(mean: float, log_std: float, t: float) -> tuple[float, list[float]]:
    """The policy's loss at a Gaussian whose old form is the standard normal one, and its gradient."""
    agent, given = agent_with(Fixed(mean, log_std)), samples()
    old = torch.zeros(1, 3, 1), torch.zeros(1, 1, 1)
    loss = agent.policy_loss(given, given.normalised_advantage(), old, torch.tensor([t]))
    gradient = torch.autograd.grad(loss.sum(), list(agent.actor.parameters()))
    return loss.item(), [g.item() for g in gradient]


def test_the_divergence_is_from_new_to_old(float64):
    new = torch.tensor([[[0.1, -0.2]]]), torch.tensor([[[-0.5, -0.3]]])
    old = torch.tensor([[[0.0, 0.0]]]), torch.tensor([[[0.0, -0.2]]])
    assert gaussian_kl(*new, *old).item() == pytest.approx(0.22814159, abs=1e-8)
    assert gaussian_kl(*old, *new).item() == pytest.approx(0.41987608, abs=1e-8)
    agent, given = agent_with(Fixed(0.2, -0.1)), samples()
    loss = agent.policy_loss(given, torch.zeros(1, 3), (torch.zeros(1, 3, 1), torch.zeros(1, 1, 1)), torch.ones(1))
    assert loss.item() == pytest.approx(0.02936538, abs=1e-8)


def test_advantages_are_normalised_over_the_whole_batch(float64):
    expected = [0.8890009, -1.3970014, 0.5080005]
    assert samples().normalised_advantage()[0].tolist() == pytest.approx(expected, abs=1e-7)
    equal = samples()._replace(advantage=torch.full((1, 3), 0.5))
    assert not equal.normalised_advantage().any()  # 0/0 in the official code


@pytest.mark.parametrize(
    ("t", "loss", "gradient"),
    [
        (1.0, -0.16430629, (-0.46861500, 0.59078431)),
        (0.5, -0.13494091, (-0.26861500, 0.40951506)),
        (0.1, 0.09998210, (1.33138500, -1.04063891)),
    ],
)
def test_the_policys_loss(t, loss, gradient, float64):
    ours, slope = loss_and_gradient(0.2, -0.1, t)
    assert ours == pytest.approx(loss, abs=1e-8)
    assert slope == pytest.approx(gradient, abs=1e-8)


@pytest.mark.parametrize("t", [1.0, 0.5, 1e-6])
def test_the_first_step_is_the_plain_policy_gradient_for_every_step_size(t, float64):
    _, slope = loss_and_gradient(0.0, 0.0, t)
    assert slope == pytest.approx((-0.66463400, 0.37634371), abs=1e-8)  # the sheet has 0.37634374


def steps(t: float, advantage: Tensor) -> list[float]:
    """Mean and log standard deviation after ten gradient steps from the old policy."""
    agent, given = agent_with(Fixed(0.0, 0.0)), samples()
    old = torch.zeros(1, 3, 1), torch.zeros(1, 1, 1)
    for _ in range(10):
        agent.policy_step(given, advantage, old, torch.tensor([t]))
    return [p.item() for p in agent.actor.parameters()]


def test_a_small_step_size_turns_the_steps_back_to_the_old_policy(float64):
    advantage = samples().normalised_advantage()
    assert steps(1.0, advantage) == pytest.approx((0.0030, -0.0030), abs=5e-5)
    assert all(abs(value) < 4e-4 for value in steps(1e-6, advantage))
    assert steps(1.0, torch.zeros(1, 3)) == [0.0, 0.0]


def test_the_values_loss_is_clipped(float64):
    agent = agent_of("mdpo_on_policy", seeds=(0,), task=TASK)
    value = torch.tensor([[1.0, 0.5, 2.0]], requires_grad=True)
    agent.critic.forward = lambda obs: value
    batch = samples()._replace(value=torch.tensor([[0.6, 0.4, 2.0]]), returns=torch.tensor([[2.0, 1.0, 3.0]]))
    loss = agent.value_loss(batch)
    assert loss.item() == pytest.approx(0.89666667, abs=1e-8)
    (gradient,) = torch.autograd.grad(loss.sum(), value)
    assert gradient[0, 0] == 0
    agent.args.clip = 100.0
    assert agent.value_loss(batch).item() == pytest.approx(0.75)


@pytest.mark.parametrize(("iteration", "expected"), [(0, 1.00020483), (1, 1.0), (2441, 0.50020483), (4882, 0.00020483)])
def test_the_step_size_falls_from_iteration_to_iteration(iteration, expected, float64):
    agent = agent_of("mdpo_on_policy", task=TASK, total_steps=10_000_000, horizon=2048, num_envs=1)
    agent.iteration.fill_(iteration)
    assert agent.step_size().tolist() == pytest.approx([expected] * 2, abs=1e-8)
    agent.args.step_size = PerRun([1.0, 2.0])
    assert agent.step_size().tolist() == pytest.approx([expected, 2 * expected], abs=1e-8)


def test_the_step_size_stays_positive_after_the_last_iteration():
    agent = agent_of("mdpo_on_policy", task=TASK, total_steps=80, horizon=8, num_envs=1)
    agent.iteration.fill_(15)
    assert agent.step_size().tolist() == pytest.approx([0.1, 0.1])


def test_two_iterations_equal_the_algorithm_written_for_one_run(float64):
    """The policy first, in steps against the one policy of the start; then the critic; t_k falls; Adams go on."""
    sizes = {"horizon": 4, "num_envs": 2, "batch_size": 4, "total_steps": 40, "normalise_obs": False}
    agent, run = agent_of("mdpo_on_policy", policy_steps=3, critic_epochs=2, **sizes), 1
    feed = Feed(agent)
    actor, critic = tanh_layers_of(agent.actor.net, run), tanh_layers_of(agent.critic.net, run)
    log_std = agent.actor.log_std[run].detach().clone().requires_grad_()
    policy = [*actor.parameters(), log_std]
    actor_adam = torch.optim.Adam(policy, lr=0.003, eps=1e-5)
    critic_adam = torch.optim.Adam(critic.parameters(), lr=0.02)
    for k in range(2):
        rollout, order = next(feed)
        with torch.no_grad():
            obs, action = (x[run].flatten(0, 1) for x in (rollout.obs, rollout.action))
            value, t = critic(obs).squeeze(-1), 1 - (k - 1) / 5
            final = critic(rollout.outcome.next_obs[run, -1]).squeeze(-1)
            advantage = plain_gae(*(x[run] for x in rollout.outcome[:2]), value.view(4, 2), final).flatten()
            returns, normalised = advantage + value, (advantage - advantage.mean()) / advantage.std(correction=0)
            old = torch.distributions.Normal(actor(obs), log_std.detach().exp())
        for _ in range(3):
            new = torch.distributions.Normal(actor(obs), log_std.exp())
            ratio = (new.log_prob(action) - old.log_prob(action)).sum(-1).exp()
            kl = torch.distributions.kl_divergence(new, old).sum(-1)
            actor_adam.zero_grad()
            (kl.mean() / t - (ratio * normalised).mean()).backward()
            nn.utils.clip_grad_norm_(policy, 0.5)
            actor_adam.step()
        for epoch in order[run]:
            for rows in epoch.argsort().split(4):
                prediction = critic(obs[rows]).squeeze(-1)
                near = value[rows] + (prediction - value[rows]).clamp(-0.2, 0.2)
                errors = torch.maximum((prediction - returns[rows]) ** 2, (near - returns[rows]) ** 2)
                critic_adam.zero_grad()
                errors.mean().backward()
                critic_adam.step()
        metrics = agent.update(rollout, order)
        new = torch.distributions.Normal(actor(obs), log_std.exp())
        kl = torch.distributions.kl_divergence(new, old).sum(-1).mean()
        assert metrics["kl"][run].item() == pytest.approx(kl.item(), abs=1e-9)
        assert metrics["step_size"][run].item() == pytest.approx(t)
        assert_same_tanh(agent.actor.net, actor, run)
        assert_same_tanh(agent.critic.net, critic, run)
        torch.testing.assert_close(agent.actor.log_std[run], log_std, atol=1e-9, rtol=0)


def plain_gae(reward: Tensor, ended: Tensor, value: Tensor, final: Tensor) -> Tensor:
    """Advantages [T, N] by the recursion, with a discount of 0.99 and a trace of 0.95."""
    advantage, later = torch.zeros_like(value), torch.zeros_like(final)
    for t in reversed(range(len(value))):
        following = value[t + 1] if t + 1 < len(value) else final
        later = reward[t] + 0.99 * (1 - ended[t]) * following - value[t] + 0.99 * 0.95 * (1 - ended[t]) * later
        advantage[t] = later
    return advantage


@pytest.mark.slow
def test_it_learns_to_balance_a_pole():
    """The sheet's check: 555 to 640 in the last 40 training episodes, and a KL divergence that rises and falls."""
    seeds, iterations = list(range(10)), 30
    envs = SeededEnvs("InvertedPendulum-v5", seeds)
    agent = agent_of(
        "mdpo_on_policy", seeds, envs.task, horizon=2048, num_envs=1, batch_size=128, hidden=(64, 64), lr=3e-4,
        critic_lr=3e-4, policy_steps=10, total_steps=iterations * 2048,
    )  # fmt: skip
    random, rollout = Random(seeds), Rollout(10, 2048, 1, envs.task)
    noise, draws = agent.noise(random), agent.draws(random)
    agent.start(envs.obs)
    episodes, divergences = [], []
    for _ in range(iterations):
        for _ in range(2048):
            obs, action, sent = agent.act(envs.obs, noise())
            t = envs.step(sent)
            rollout.add(obs, action, agent.observe(t.reward, t.terminated, t.truncated, t.next_obs, envs.obs))
        divergences.append(agent.update(rollout, draws())["kl"].mean().item())
        episodes += envs.take_ended()
    last = [np.mean([episode.total for episode in episodes if episode.run == run][-40:]) for run in range(10)]
    assert 450 < np.mean(last) < 750
    assert 0.005 < max(divergences[5:15]) < 0.01
    assert divergences[-1] < 6e-5
