"""TD3 against the formulas in their plainest form."""

import gymnasium as gym
import numpy as np
import pytest
import td3
import torch
from scripts import Feed, agent_of, assert_same, differing, layers_of, state_of
from torch import nn

from algos.replay import Batch, ReplayBuffer
from envs import SeededEnvs, Task

TASK = Task("Made-v0", (3,), 2, False, (-2.0, -1.0), (2.0, 3.0), 50)  # two dimensions with bounds of their own
SCALE, MIDDLE, LOW, HIGH = (torch.tensor(x) for x in ((2.0, 2.0), (0.0, 1.0), (-2.0, -1.0), (2.0, 3.0)))


def constant(actor: td3.Actor, action: float) -> None:
    """Makes an actor answer the same everywhere: `action` in units from -1 to 1."""
    for p in actor.net.out.parameters():
        nn.init.zeros_(p)
    nn.init.constant_(actor.net.out.bias, float(np.arctanh(action)))


def test_four_updates_equal_the_algorithm_written_for_one_run(float64):
    """Critics move at every update; the actor with the new critics, then all targets, at the second and the fourth."""
    agent, run = agent_of("td3", task=TASK, actor_lr=0.01, critic_lr=0.02, tau=0.1), 1
    feed = Feed(agent)
    actor, critics = layers_of(agent.actor.net, run), [layers_of(agent.critic.net, run, e) for e in (0, 1)]
    target_actor = layers_of(agent.actor.net, run)
    target_critics = [layers_of(agent.critic.net, run, e) for e in (0, 1)]
    actor_adam = torch.optim.Adam(actor.parameters(), lr=0.01)
    critic_adam = torch.optim.Adam([p for net in critics for p in net.parameters()], lr=0.02)

    def q(net, obs, action):
        return net(torch.cat([obs, action], -1)).squeeze(-1)

    def step(adam, loss):
        adam.zero_grad()
        loss.backward()
        adam.step()

    for k in range(1, 5):
        batch, draws, due = next(feed)
        assert due == (k % 2 == 0)
        obs, action, reward, next_obs, terminated = (x[run] for x in batch)
        with torch.no_grad():
            noise = SCALE * (0.2 * draws.next_action[run]).clamp(-0.5, 0.5)
            following = torch.tanh(target_actor(next_obs)) * SCALE + MIDDLE + noise
            following = torch.minimum(torch.maximum(following, LOW), HIGH)
            value = torch.minimum(*(q(net, next_obs, following) for net in target_critics))
            y = reward + 0.99 * (1 - terminated) * value
        step(critic_adam, sum(((q(net, obs, action) - y) ** 2).mean() for net in critics))
        if due:
            step(actor_adam, -q(critics[0], obs, torch.tanh(actor(obs)) * SCALE + MIDDLE).mean())
            for online, target in zip([actor, *critics], [target_actor, *target_critics], strict=True):
                for a, b in zip(online.parameters(), target.parameters(), strict=True):
                    b.data.mul_(0.9).add_(0.1 * a.data)
        agent.update(batch, draws, due)
        assert_same(agent.actor.net, actor, run)
        assert_same(agent.target_actor.net.net, target_actor, run)
        for e in (0, 1):
            assert_same(agent.critic.net, critics[e], run, e)
            assert_same(agent.target_critic.net.net, target_critics[e], run, e)


def test_actor_and_targets_move_only_when_due_and_critics_always():
    agent = agent_of("td3")
    for _, (batch, draws, due) in zip(range(4), Feed(agent), strict=False):
        before = state_of(agent)
        agent.update(batch, draws, due)
        moved = {name.partition(".")[0] for name in differing(before, state_of(agent))}
        late = {"actor", "actor_adam", "target_actor", "target_critic"}
        assert moved == {"critic", "critic_adam"} | (late if due else set())


def next_actions(agent, noise: float) -> torch.Tensor:
    """The next actions whose values are a target, for a constant draw of noise."""
    seen = []
    forward = agent.target_critic.forward
    agent.target_critic.forward = lambda obs, action: seen.append(action) or forward(obs, action)
    batch, draws, _ = next(Feed(agent))
    agent.critic_loss(batch, torch.full_like(draws.next_action, noise))
    return seen[0]


@pytest.mark.parametrize(("draw", "expected"), [(1.0, 0.2), (-2.0, -0.4), (3.0, 0.5), (-9.0, -0.5)])
def test_noise_on_target_actions_is_scaled_and_clipped(draw, expected):
    """In units of half the distance of the bounds, around the target actor's action and not the actor's."""
    agent = agent_of("td3", task=TASK)
    constant(agent.actor, 0.9)
    constant(agent.target_actor.net, 0.1)
    action = next_actions(agent, draw)
    torch.testing.assert_close(action, (MIDDLE + SCALE * (0.1 + expected)).expand_as(action))


@pytest.mark.parametrize(("draw", "bound"), [(9.0, HIGH), (-9.0, LOW)])
def test_noisy_actions_are_clipped_to_the_bounds_of_their_dimension(draw, bound):
    agent = agent_of("td3", task=TASK)
    constant(agent.target_actor.net, 0.8 if draw > 0 else -0.8)
    constant(agent.actor, 0.5 if draw > 0 else -0.5)
    action = next_actions(agent, draw)
    torch.testing.assert_close(action, bound.expand_as(action))
    obs = torch.zeros(2, 1, 3)
    action = agent.act(obs, torch.full((2, 1, 2), draw))
    torch.testing.assert_close(action, bound.expand_as(action))
    action = agent.act(obs, torch.ones(2, 1, 2))
    torch.testing.assert_close(action, agent.policy(obs) + 0.1 * SCALE)


def test_exploring_actions_have_the_noise_of_their_run():
    agent = agent_of("td3", task=TASK, vary=("exploration_noise=0.1,0.5",))  # runs 2 and 3 have the larger one
    obs, noise = torch.randn(4, 6, 3), 0.5 * torch.randn(4, 6, 2).clamp(-1, 1)
    constant(agent.actor, 0.3)  # so far within the bounds that none is clipped
    amount = torch.tensor([0.1, 0.1, 0.5, 0.5])[:, None, None]
    torch.testing.assert_close(agent.act(obs, noise) - agent.policy(obs), amount * noise * SCALE)


class Ending(gym.Env):
    """An episode of two steps, which ends in the way that it is told."""

    observation_space = gym.spaces.Box(-9, 9, (3,))
    action_space = gym.spaces.Box(np.float32([-2, -1]), np.float32([2, 3]))

    def __init__(self, terminates: bool):
        self.terminates, self.number = terminates, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.number += 1
        over = self.number == 2
        return np.full(3, self.number, np.float32), 1.0, over and self.terminates, over and not self.terminates, {}


@pytest.mark.parametrize("terminates", [True, False])
def test_a_terminal_transition_does_not_bootstrap_and_a_truncated_one_does(terminates):
    """From environments through the replay to the loss."""
    envs = SeededEnvs([Ending(terminates), Ending(terminates)], seeds=[0, 1])
    agent, replay = agent_of("td3", task=envs.task), ReplayBuffer(2, 10, envs.task)
    for _ in range(2):
        envs.send(torch.zeros(2, 1, 2))
        replay.add(envs.receive())
    batch: Batch = replay.gather(torch.tensor([[0, 1], [0, 1]]))
    assert batch.next_obs[0, 1].tolist() == [2.0, 2.0, 2.0]
    loss, _ = agent.critic_loss(batch, torch.zeros(2, 2, 2))
    following = agent.target_critic(batch.next_obs, agent.target_actor(batch.next_obs)).amin(1)
    bootstraps = torch.tensor([1.0, 0.0 if terminates else 1.0])
    error = agent.critic(batch.obs, batch.action) - (1 + 0.99 * bootstraps * following)[:, None]
    torch.testing.assert_close(loss, error.square().mean(-1).sum(-1))
