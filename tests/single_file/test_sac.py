"""SAC against the formulas in their plainest form."""

import copy
import math

import pytest
import torch
from scripts import agent_of, batch_and_draws, needs_compiler
from torch.distributions import Normal


def test_log_density_is_that_of_the_squashed_gaussian(float64):
    agent = agent_of("sac")
    obs, noise = torch.randn(2, 16, 7), torch.randn(2, 16, 2)
    action, log_prob = agent.actor.sample(obs, noise)
    mean, log_std = agent.actor(obs)
    assert log_std.min() > -5 and log_std.max() < 2
    u = mean + log_std.exp() * noise
    jacobian = torch.log(2 * (1 - torch.tanh(u) ** 2) + 1e-6)
    torch.testing.assert_close(action, 2 * torch.tanh(u))
    torch.testing.assert_close(log_prob, (Normal(mean, log_std.exp()).log_prob(u) - jacobian).sum(-1))


def test_one_update_equals_the_algorithm_written_for_one_run(float64):
    """First the critic; then actor and temperature twice, with fresh actions and the new critic; then the targets."""
    agent = agent_of("sac", actor_lr=0.01, critic_lr=0.02, temperature_lr=0.03)
    batch, draws = batch_and_draws(agent)
    run = 1  # the plain version trains this one alone

    def flat(parameter):  # [R, ...] or [R, 2, ...] -> [R * members, ...]
        return parameter.view(-1, *parameter.shape[-2:])

    def net(mlp, row, x):
        for layer in mlp.hidden:
            x = torch.relu(x @ flat(layer[0].weight)[row] + flat(layer[0].bias)[row])
        return x @ flat(mlp.out.weight)[row] + flat(mlp.out.bias)[row]

    plain = copy.deepcopy(agent)
    rows = {"obs": batch.obs[run], "action": batch.action[run], "next_obs": batch.next_obs[run]}
    actor_params, critic_params = list(plain.actor.parameters()), list(plain.critic.parameters())
    actor_adam, critic_adam = torch.optim.Adam(actor_params, lr=0.01), torch.optim.Adam(critic_params, lr=0.02)
    alpha_adam = torch.optim.Adam([plain.log_alpha], lr=0.03)

    def policy(obs, eps):
        mean, log_std = net(plain.actor.net, run, obs).chunk(2, -1)
        log_std = -5 + 3.5 * (torch.tanh(log_std) + 1)
        u = mean + log_std.exp() * eps
        log_prob = Normal(mean, log_std.exp()).log_prob(u) - torch.log(2 * (1 - torch.tanh(u) ** 2) + 1e-6)
        return 2 * torch.tanh(u), log_prob.sum(-1)

    def q(critic, obs, action):
        return [net(critic.net, 2 * run + e, torch.cat([obs, action], -1)).squeeze(-1) for e in range(2)]

    def step(adam, loss):
        adam.zero_grad()
        loss.backward()
        adam.step()

    alpha = plain.log_alpha[run].exp().item()
    with torch.no_grad():
        next_action, next_log_prob = policy(rows["next_obs"], draws.next_action[run])
        value = torch.minimum(*q(plain.target_critic.net, rows["next_obs"], next_action)) - alpha * next_log_prob
        y = batch.reward[run] + 0.99 * (1 - batch.terminated[run]) * value
    step(critic_adam, sum(((value - y) ** 2).mean() for value in q(plain.critic, rows["obs"], rows["action"])))
    for i in range(2):
        action, log_prob = policy(rows["obs"], draws.action[run, i])
        alpha = plain.log_alpha[run].exp().item()
        step(actor_adam, (alpha * log_prob - torch.minimum(*q(plain.critic, rows["obs"], action))).mean())
        with torch.no_grad():
            log_prob = policy(rows["obs"], draws.temperature_action[run, i])[1]
        step(alpha_adam, (-plain.log_alpha[run].exp() * (log_prob - 2)).mean())
    online = dict(plain.critic.named_parameters())
    expected = {n: 0.995 * p + 0.005 * online[n] for n, p in plain.target_critic.net.named_parameters()}

    agent.update(batch, draws, True)
    for ours, theirs in zip(agent.actor.parameters(), actor_params, strict=True):
        torch.testing.assert_close(ours[run], theirs[run], atol=1e-9, rtol=0)
    for ours, theirs in zip(agent.critic.parameters(), critic_params, strict=True):
        torch.testing.assert_close(ours[1], theirs[1], atol=1e-9, rtol=0)
    torch.testing.assert_close(agent.log_alpha[run], plain.log_alpha[run], atol=1e-12, rtol=0)
    for name, ours in agent.target_critic.net.named_parameters():
        torch.testing.assert_close(ours[1], expected[name][1], atol=1e-9, rtol=0)


def test_actor_moves_only_when_due_and_targets_always():
    agent = agent_of("sac")
    for k in range(4):
        before = [p.detach().clone() for p in agent.actor.parameters()]
        target = [p.detach().clone() for p in agent.target_critic.parameters()]
        agent.update(*batch_and_draws(agent, k), k % 2 == 0)
        moved = [not torch.equal(a, b) for a, b in zip(before, agent.actor.parameters(), strict=True)]
        assert all(moved) if k % 2 == 0 else not any(moved)
        assert all(not torch.equal(a, b) for a, b in zip(target, agent.target_critic.parameters(), strict=True))


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_the_actor_makes_up_for_its_delay(delay):
    """With a delay of 1, as in the paper, actor and temperature take one step at every update."""
    agent = agent_of("sac", actor_delay=delay)
    for number in range(2):
        agent.update(*batch_and_draws(agent, number), True)
    counts = [int(adam.steps) for adam in (agent.critic_adam, agent.actor_adam, agent.alpha_adam)]
    assert counts == [2, 2 * delay, 2 * delay]


def test_a_terminal_transition_does_not_bootstrap():
    agent = agent_of("sac")
    batch, draws = batch_and_draws(agent)
    batch = batch._replace(terminated=torch.ones(2, 16))
    q = agent.critic(batch.obs, batch.action)
    loss, _ = agent.critic_loss(batch, draws.next_action)
    torch.testing.assert_close(loss, (q - batch.reward[:, None]).square().mean(-1).sum(-1))


def test_temperature_rises_when_entropy_is_short():
    agent = agent_of("sac")
    agent.target_entropy = 1e3
    before = agent.log_alpha.detach().clone()
    agent.update(*batch_and_draws(agent), True)
    assert (agent.log_alpha > before).all() and math.isclose(before[0].item(), 0.0)


@pytest.mark.slow
@needs_compiler
def test_a_run_in_bfloat16_differs_by_its_rounding_only(train_short, monkeypatch):
    monkeypatch.setattr("algos.run.multiplies_bf16", lambda: True)  # slowly, where it has to be emulated
    exact = train_short("sac", out="exact", hidden=(64, 64)).agent
    rounded = train_short("sac", out="rounded", hidden=(64, 64), compile=True, bf16=True).agent
    weight = "critic.net.hidden.1.0.weight"
    assert (rounded[weight] - exact[weight]).abs().max() > 5e-4  # where compiling alone changes 2e-5
    for name, tensor in exact.items():
        if name.startswith(("actor.", "critic.")):
            torch.testing.assert_close(rounded[name], tensor, atol=0.01, rtol=0)
