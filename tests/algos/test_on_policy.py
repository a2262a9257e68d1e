"""The common part of on-policy agents: running statistics, segments, and what evaluation sees."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers.utils import RunningMeanStd
from scripts import agent_of, differing, state_of

from algos.random import Random
from algos.rollout import Rollout
from envs import SeededEnvs, Task


class Walk(gym.Env):
    """Three steps up, then the end or a time limit; rewards are 1, 2 and 3."""

    observation_space = gym.spaces.Box(-99, 99, (1,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, terminates: bool = True):
        self.terminates, self.number, self.episode = terminates, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.episode = 0, self.episode + 1
        return np.float32([10 * self.episode]), {}

    def step(self, action):
        self.number += 1
        obs, over = np.float32([10 * self.episode + self.number]), self.number == 3
        return obs, float(self.number), over and self.terminates, over and not self.terminates, {}


def walked(steps: int, terminates: bool = True, **overrides):
    """An agent that has collected a segment in two environments of one run, and its rollout."""
    envs = SeededEnvs([Walk(terminates), Walk(terminates)], seeds=[0], envs_per_run=2)
    agent = agent_of("ppo", seeds=(0,), task=envs.task, num_envs=2, horizon=steps, batch_size=2, **overrides)
    rollout, noise = Rollout(1, steps, 2, envs.task), agent.noise(Random([0]))
    agent.start(envs.obs)
    for _ in range(steps):
        obs, action, sent = agent.act(envs.obs, noise())
        t = envs.step(sent)
        rollout.add(obs, action, agent.observe(t.reward, t.terminated, t.truncated, t.next_obs, envs.obs))
    return agent, rollout


def test_statistics_count_the_observations_that_are_acted_on():
    """The first one of an episode counts, and the one at which it ends does not."""
    agent, _ = walked(5)
    own = RunningMeanStd(shape=(1,))
    for obs in (10, 11, 12, 20, 21, 22):
        own.update(np.array([[obs], [obs]], float))
    assert agent.obs_statistics.count.item() == pytest.approx(own.count)
    assert agent.obs_statistics.mean.item() == pytest.approx(own.mean[0])
    assert agent.obs_statistics.variance().item() == pytest.approx(own.var[0])


def test_observations_are_normalised_by_the_statistics_of_their_time():
    _, rollout = walked(5)
    own = RunningMeanStd(shape=(1,))
    for t, obs in enumerate((10, 11, 12, 20, 21)):
        own.update(np.array([[obs], [obs]], float))
        expected = np.clip((obs - own.mean[0]) / np.sqrt(own.var[0] + 1e-8), -10, 10)
        assert rollout.obs[0, t].flatten().tolist() == pytest.approx([expected] * 2, rel=1e-5)


def test_far_observations_are_clipped():
    agent, _ = walked(5)
    assert agent.normalise(torch.tensor([[[1e6]], [[-1e6]]])).flatten().tolist() == [10.0, -10.0]


def test_networks_begin_orthogonal_with_a_small_last_layer_of_the_policy():
    task = Task("Made-v0", (17,), 6, False, (-1.0,) * 6, (1.0,) * 6, 50)
    agent = agent_of("mdpo_on_policy", seeds=(0,), task=task, hidden=(64, 64))
    for net, gain in ((agent.actor.net, 0.01), (agent.critic.net, 1.0)):
        values = [torch.linalg.svdvals(layer.weight[0]) for layer in (net.hidden[0][0], net.hidden[1][0], net.out)]
        for found, expected in zip(values, (2**0.5, 2**0.5, gain), strict=True):
            torch.testing.assert_close(found, torch.full_like(found, expected))
    assert not agent.actor.log_std.any()
    sizes = [sum(p.numel() for p in net.parameters()) for net in (agent.actor, agent.critic)]
    assert sizes == [5_708, 5_377]  # those of the sheet for HalfCheetah


def test_evaluation_changes_nothing_and_uses_the_statistics_as_they_are():
    agent, _ = walked(5)
    before = state_of(agent)
    action = agent.policy(torch.tensor([[[15.0]]]))
    assert not differing(before, state_of(agent))
    agent.obs_statistics.update(torch.tensor([[[500.0]]]))
    assert not torch.equal(action, agent.policy(torch.tensor([[[15.0]]])))


def test_statistics_are_part_of_the_state():
    agent, _ = walked(5)
    names = ("obs_statistics.mean", "reward_normaliser.total", "reward_normaliser.statistics.count")
    assert set(names) <= set(agent.state_dict())


@pytest.mark.parametrize(("obs", "reward"), [(False, True), (True, False), (False, False)])
def test_normalisers_can_be_left_out(obs, reward):
    _, rollout = walked(4, normalise_obs=obs, normalise_reward=reward)
    seen, given = rollout.obs[0, :, 0, 0].tolist(), rollout.outcome.reward[0, :, 0].tolist()
    assert (seen == [10, 11, 12, 20]) == (not obs)
    assert (given == [1, 2, 3, 1]) == (not reward)


@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("limits", [False, True])
def test_a_time_limit_bootstraps_from_the_true_last_observation_where_that_is_asked(terminates, limits, float64):
    overrides = {"normalise_obs": False, "normalise_reward": False, "discount": 0.9, "trace": 0.0}
    agent, rollout = walked(4, terminates, bootstrap_limits=limits, **overrides)
    samples = agent.samples(rollout)
    value = {obs: agent.critic(torch.tensor([[[float(obs)]]])).item() for obs in (10, 11, 12, 13, 20, 21)}
    following = [value[11], value[12], value[13] if limits and not terminates else 0.0, value[21]]
    returns = [reward + 0.9 * v for reward, v in zip((1, 2, 3, 1), following, strict=True)]
    assert samples.returns.view(1, 4, 2)[0, :, 0].tolist() == pytest.approx(returns)
    assert samples.value.view(1, 4, 2)[0, :, 1].tolist() == pytest.approx([value[obs] for obs in (10, 11, 12, 20)])


def test_actions_are_kept_as_drawn_and_sent_within_bounds():
    agent, _ = walked(2)
    agent.actor.log_std.data.fill_(2.0)
    _, action, sent = agent.act(torch.zeros(1, 2, 1), torch.tensor([[[1.0], [-1.0]]]))
    assert action.abs().min() > 5
    assert sent.flatten().tolist() == [1.0, -1.0]
    agent.actor.net.out.bias.data.fill_(0.5)
    assert agent.policy(torch.zeros(1, 1, 1)).item() == pytest.approx(0.5, abs=0.1)
    agent.actor.net.out.bias.data.fill_(3.0)
    assert agent.policy(torch.zeros(1, 1, 1)).item() == 1.0


def test_the_value_after_the_last_step_is_that_of_the_normalised_observation(float64):
    agent, rollout = walked(4, normalise_reward=False, discount=0.9, trace=0.0)
    final = agent.critic(agent.normalise(torch.tensor([[[21.0]]]))).item()
    assert abs(agent.normalise(torch.tensor([[[21.0]]])).item()) < 10
    assert agent.samples(rollout).returns.view(1, 4, 2)[0, -1].tolist() == pytest.approx([1 + 0.9 * final] * 2)
