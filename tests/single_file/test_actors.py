"""What scripts with an actor and a replay buffer have in common: bounds of actions, predicted values, metrics."""

from dataclasses import replace

import pytest
import torch
from scripts import CONTINUOUS, agent_of, batch_and_draws

ACTORS = ("sac", "td3", "dsac_t", "mdpo_off_policy")


def means(q):
    """The twins' values [R, 2, B] of a critic that may give standard deviations too."""
    return q[0] if isinstance(q, tuple) else q


@pytest.mark.parametrize("script", ACTORS)
def test_actions_follow_bounds_that_are_not_symmetric(script):
    """With the same weights, actions within other bounds are the symmetric ones, stretched and moved."""
    symmetric = agent_of(script)
    moved = agent_of(script, task=replace(CONTINUOUS, low=(-1.0, -6.0), high=(3.0, 2.0)))
    moved.load_state_dict(symmetric.state_dict())
    obs, noise = torch.randn(2, 16, 7), torch.randn(2, 16, 2)
    stretch, move = torch.tensor([1.0, 2.0]), torch.tensor([1.0, -2.0])
    torch.testing.assert_close(moved.policy(obs), symmetric.policy(obs) * stretch + move)
    torch.testing.assert_close(moved.act(obs, noise), symmetric.act(obs, noise) * stretch + move)


@pytest.mark.parametrize("script", ACTORS)
def test_the_deterministic_action_is_that_without_noise_and_within_bounds(script):
    agent = agent_of(script)
    obs = torch.randn(2, 16, 7)
    torch.testing.assert_close(agent.policy(obs), agent.act(obs, torch.zeros(2, 16, 2)))
    far = agent.policy(1e4 * obs)
    assert far.abs().max() <= 2 and (far.abs() > 1.9).any()


@pytest.mark.parametrize("script", ["sac", "td3", "dsac_t"])
def test_predicted_values_are_the_smaller_ones_of_exploring_actions(script):
    """The bonus is the entropy's, with the temperature of each run; TD3 has none."""
    agent = agent_of(script)
    obs, noise = torch.randn(2, 16, 7), torch.randn(2, 16, 2)
    if script != "td3":
        agent.log_alpha.data = torch.tensor([0.1, 3.0]).log()
    action, value, bonus = agent.predict_values(obs, noise)
    torch.testing.assert_close(action, agent.act(obs, noise))
    torch.testing.assert_close(value, torch.minimum(*means(agent.critic(obs, action)).unbind(1)))
    assert not torch.equal(value, means(agent.critic(obs, action))[:, 0])
    if script == "td3":
        assert (bonus == 0).all() and bonus.shape == (2, 16)
    else:
        log_prob = agent.actor.sample(obs, noise)[1]
        torch.testing.assert_close(bonus, torch.stack([-0.1 * log_prob[0], -3.0 * log_prob[1]]))


@pytest.mark.parametrize("script", ["sac", "td3", "dsac_t"])
def test_metrics_are_means_over_the_batch_of_each_run(script):
    """The twins' values before the update; the entropy of the actor's last step, and the temperature after its own.

    Of DSAC-T also standard deviations and errors, before the update. Actors do not move here.
    """
    agent = agent_of(script, actor_lr=0.0, **({} if script == "td3" else {"temperature_lr": 0.1}))
    batch, draws = batch_and_draws(agent)
    if script != "td3":
        agent.log_alpha.data = torch.tensor([0.1, 3.0]).log()
    q = means(agent.critic(batch.obs, batch.action)).detach()
    if script == "dsac_t":
        std = agent.critic(batch.obs, batch.action)[1].detach()
        error = (q - agent.targets(batch, draws.next_action, draws.returns)[0]).abs()
    metrics = agent.update(batch, draws, True)
    torch.testing.assert_close(metrics["value"], q.mean((1, 2)))
    if script != "td3":
        noise = draws.action[:, -1] if script == "sac" else draws.action
        torch.testing.assert_close(metrics["entropy"], -agent.actor.sample(batch.obs, noise)[1].detach().mean(-1))
        torch.testing.assert_close(metrics["alpha"], agent.log_alpha.detach().exp())
        assert not torch.allclose(metrics["alpha"], torch.tensor([0.1, 3.0]))
    if script == "dsac_t":
        torch.testing.assert_close(metrics["std"], std.mean((1, 2)))
        torch.testing.assert_close(metrics["td_error"], error.mean((1, 2)))


@pytest.mark.parametrize("script", ["sac", "td3", "dsac_t"])
def test_a_replay_is_left_in_the_final_checkpoint_where_it_is_asked_for(script, train_short):
    for kept in (False, True):
        tensors = train_short(script, out=f"{kept}", keep_replay=kept, eval_episodes=0).parameters
        rows = [tensor for name, tensor in tensors.items() if name.startswith("replay/rows.")]
        assert [len(of_run) for of_run in rows] == [40] * kept
