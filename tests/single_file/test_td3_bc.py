"""TD3+BC against the formulas in their plainest form."""

import pytest
import td3_bc
import torch
from offline_data import BATCH, at_random, batch_of, offline_agent, write_hdf5
from scripts import assert_same, layers_of

from algos.replay import Batch


def test_four_updates_equal_the_algorithm_written_for_one_run(float64):
    """Critics move at every update; the actor, and then all targets, at the second and the fourth."""
    data, one = at_random(), offline_agent("td3_bc", lr=0.01, tau=0.1)
    actor, critics = layers_of(one.actor.net, 1), [layers_of(one.critic.net, 1, e) for e in range(2)]
    target_actor, target_critics = layers_of(one.actor.net, 1), [layers_of(one.critic.net, 1, e) for e in range(2)]
    actor_adam = torch.optim.Adam(actor.parameters(), lr=0.01)
    critic_adam = torch.optim.Adam([p for net in critics for p in net.parameters()], lr=0.01)

    def q(net, obs, action):
        return net(torch.cat([obs, action], -1)).squeeze(-1)

    def step(adam, loss):
        adam.zero_grad()
        loss.backward()
        adam.step()

    for k in range(1, 5):
        torch.manual_seed(k)
        batch, normal = batch_of(data, k), 2 * torch.randn(2, BATCH, 2)
        obs, action, reward, next_obs, terminated = (x[1] for x in batch)
        with torch.no_grad():
            noise = (0.2 * normal[1]).clamp(-0.5, 0.5)
            assert k > 1 or noise.abs().max() == 0.5
            following = (torch.tanh(target_actor(next_obs)) + noise).clamp(-1, 1)
            value = torch.minimum(*(q(net, next_obs, following) for net in target_critics))
            y = reward + 0.99 * (1 - terminated) * value
        step(critic_adam, sum(((q(net, obs, action) - y) ** 2).mean() for net in critics))
        if k % 2 == 0:
            own = torch.tanh(actor(obs))
            value = q(critics[0], obs, own)
            weight = 2.5 / value.abs().mean().item()
            step(actor_adam, -weight * value.mean() + ((own - action) ** 2).mean())
            for online, target in zip([actor, *critics], [target_actor, *target_critics], strict=True):
                for a, b in zip(online.parameters(), target.parameters(), strict=True):
                    b.data.mul_(0.9).add_(0.1 * a.data)
        one.update(batch, td3_bc.Draws(normal), k % 2 == 0)
        assert_same(one.actor.net, actor, 1)
        assert_same(one.target_actor.net.net, target_actor, 1)
        for e in range(2):
            assert_same(one.critic.net, critics[e], 1, e)
            assert_same(one.target_critic.net.net, target_critics[e], 1, e)


def test_actor_loss_by_hand():
    """lambda = 2.5 / 2; -1.25 mean(1, -3) + mean(0.04, 0.04, 0, 0.16)."""
    one = offline_agent("td3_bc")
    one.actor.forward = lambda obs: torch.tensor([[[0.2, 0.0], [0.0, 0.4]]]).expand(2, 2, 2)
    one.critic.first = lambda obs, action: torch.tensor([[1.0, -3.0]]).expand(2, 2)
    action = torch.tensor([[[0.0, 0.2], [0.0, 0.0]]]).expand(2, 2, 2)
    torch.testing.assert_close(one.actor_loss(None, action), torch.full((2,), 1.25 + 0.06))


def test_target_by_hand():
    one = offline_agent("td3_bc", discount=0.9)
    seen = []
    one.target_actor.forward = lambda obs: torch.tensor([[[0.8, -0.1]]]).expand(2, 1, 2)
    one.target_critic.forward = lambda obs, action: (
        seen.append(action) or torch.tensor([[[3.0], [2.0]]]).expand(2, 2, 1)
    )
    normal = torch.tensor([[[1.5, -9.0]]]).expand(2, 1, 2)
    batch = Batch(None, None, torch.ones(2, 1), None, torch.tensor([[0.0], [1.0]]))
    y = one.target(batch, normal)
    torch.testing.assert_close(y, torch.tensor([[2.8], [1.0]]))
    torch.testing.assert_close(seen[0], torch.tensor([[[1.0, -0.6]]]).expand(2, 1, 2))


def test_defaults_are_those_of_the_paper():
    args = td3_bc.Args()
    assert (args.alpha, args.policy_noise, args.noise_clip, args.actor_delay) == (2.5, 0.2, 0.5, 2)
    assert (args.tau, args.discount, args.lr, args.batch_size, args.hidden) == (0.005, 0.99, 3e-4, 256, (256, 256))


@pytest.mark.parametrize(
    ("dataset", "given", "reward", "standardise"),
    [
        ("d4rl/hopper-medium-v2", {}, "none", True),
        ("d4rl/antmaze-umaze-v2", {}, "minus_one", True),
        ("d4rl/hopper-medium-v2", {"reward": "range", "standardise": False}, "range", False),
    ],
)
def test_rewards_and_observations_depend_on_the_domain(dataset, given, reward, standardise):
    args = td3_bc.Args(dataset=dataset, **given)
    assert (args.reward, args.standardise) == (reward, standardise)


def test_the_actor_is_due_at_every_second_update(train, tmp_path, monkeypatch):
    due = []
    monkeypatch.setattr(td3_bc.TD3BC, "update", lambda agent, batch, noise, actor_due: due.append(actor_due) or {})
    path = write_hdf5(tmp_path / "x.hdf5")
    train("td3_bc", dataset=str(path), total_steps=5, eval_episodes=0, hidden=(4,))
    assert due == [False, True, False, True, False]
