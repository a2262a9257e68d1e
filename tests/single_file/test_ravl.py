"""RAVL against a plain rewrite of one run; its diversity loss; the methods that are limits of it."""

import pytest
import torch
from model_data import PlainSAC, agent_and_batch
from offline_data import at_random, batch_of
from ravl import Args
from scripts import agent_of
from torch import nn


class Plain(PlainSAC):
    """RAVL's update: temperature, actor, critics (with a double backward), targets."""

    def update(self, batch, draws, eta):
        run, count = self.run, len(self.critics)
        obs, action, reward, next_obs, ended = (x[run] for x in batch)
        with torch.no_grad():
            _, log_prob = self.sample(obs, draws.temperature_action[run])
        self.descend(self.alpha_adam, (-self.log_alpha * (log_prob + self.target_entropy)).mean())
        alpha = self.log_alpha.exp().item()
        new_action, log_prob = self.sample(obs, draws.action[run])
        value = self.values(self.critics, obs, new_action).min(0)[0]
        actor_loss = self.descend(self.actor_adam, (alpha * log_prob - value).mean())
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs, draws.next_action[run])
            soft = self.values(self.targets, next_obs, next_action).min(0)[0] - alpha * next_log_prob
            target = reward + 0.99 * (1 - ended) * soft
        q = self.values(self.critics, obs, action)
        loss = (q - target).pow(2).mean(1).sum()
        copies = [action.clone().requires_grad_() for _ in range(count)]
        values = [net(torch.cat([obs, a], -1)).sum() for net, a in zip(self.critics, copies, strict=True)]
        gradients = torch.autograd.grad(sum(values), copies, create_graph=True)
        units = [g / (g.norm(dim=-1, keepdim=True) + 1e-10) for g in gradients]
        pairs = sum((units[i] * units[j]).sum(-1) for i in range(count) for j in range(count) if i != j)
        critic_loss = self.descend(self.critic_adam, loss + eta * pairs.mean() / (count - 1))
        self.move_targets()
        self.metrics = {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "value": q.mean(), "spread": q.std(0).mean(),
            "entropy": -log_prob.mean(), "alpha": self.log_alpha.exp(),
        }  # fmt: skip


@pytest.mark.parametrize("eta", [0.0, 1.3])
def test_updates_equal_a_plain_rewrite_of_one_run(eta, float64):
    rates = {"actor_lr": 0.01, "critic_lr": 0.02, "temperature_lr": 0.03}
    agent, _, draws = agent_and_batch("ravl", critics=4, eta=eta, hidden=(8, 6, 5), **rates)
    plain = [Plain(agent, run, 4) for run in range(2)]
    for number in range(4):
        batch = batch_of(at_random(), number)
        for run in plain:
            run.update(batch, draws, eta)
        metrics = agent.update(batch, draws)
        for run in plain:
            run.assert_same(agent, metrics, batch.obs)


def diversity(*gradients):
    agent = agent_of("ravl", seeds=(0,), critics=len(gradients))
    return agent.diversity_loss(torch.tensor(gradients)[None, :, None]).item()


def test_the_diversity_loss_counts_ordered_pairs():
    """Sheet, check 3."""
    assert diversity([1.0, 0.0], [0.0, 1.0], [1.0, 1.0]) == pytest.approx(1.414214, abs=1e-6)
    for count in (2, 5):
        assert diversity(*[[0.3, 0.4]] * count) == pytest.approx(count)
    assert diversity([0.5, 0.1], [-0.5, -0.1]) == pytest.approx(-2)


def test_gradients_by_the_action_equal_those_of_autograd(float64):
    agent, batch, _ = agent_and_batch("ravl", critics=3)
    action = batch.action[:, None].repeat(1, 3, 1, 1).requires_grad_()
    inputs = torch.cat([batch.obs[:, None].expand(-1, 3, -1, -1), action], -1)
    values = agent.critic.net(inputs).squeeze(-1)
    (expected,) = torch.autograd.grad(values.sum(), action)
    value, gradient = agent.critic.with_gradient(batch.obs, batch.action)
    torch.testing.assert_close(value, values)
    torch.testing.assert_close(gradient, expected)


def test_two_critics_without_diversity_are_the_base(float64):
    """Sheet, check 7: with equal networks, temperature and actions, the gradient is MOPO's, whose penalty is none."""
    ravl, batch, draws = agent_and_batch("ravl", critics=2, eta=0.0, hidden=(8, 6))
    mopo, _, _ = agent_and_batch("mopo", hidden=(8, 6))
    for part in ("actor", "critic"):
        getattr(mopo, part).load_state_dict(getattr(ravl, part).state_dict())
    mopo.target_critic.net.load_state_dict(ravl.target_critic.net.state_dict())
    ours, theirs = ravl.critic_loss(batch, draws.next_action)[0], mopo.critic_loss(batch, draws.next_action)[0]
    gradients = [
        torch.autograd.grad(loss.sum(), agent.critic.parameters()) for loss, agent in ((ours, ravl), (theirs, mopo))
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_the_averaged_loss_of_mobile_gives_half_of_the_gradient(float64):
    """Sheet, check 7: the loss is a mean over its two critics, and MOPO's a sum; without entropy, targets are equal."""
    mobile, batch, draws = agent_and_batch("mobile", hidden=(8, 6))
    mopo, _, _ = agent_and_batch("mopo", hidden=(8, 6))
    mopo.load_state_dict(mobile.state_dict(), strict=False)
    with torch.no_grad():
        mopo.log_alpha.fill_(-100.0)
    batch = batch._replace(reward=batch.reward + 100.0)  # no target is below 0
    losses = mobile.critic_loss(batch, None, draws)[0], mopo.critic_loss(batch, draws.next_action)[0]
    halves, wholes = (
        torch.autograd.grad(loss.sum(), agent.critic.parameters())
        for loss, agent in zip(losses, (mobile, mopo), strict=True)
    )
    for half, whole in zip(halves, wholes, strict=True):
        assert whole.abs().max() > 0
        torch.testing.assert_close(2 * half, whole, atol=1e-12, rtol=1e-12)


def test_initial_weights_are_those_of_the_official_code():
    agent = agent_of("ravl", seeds=(0,), critics=10, hidden=(256, 256, 256))
    for layer in agent.critic.net.hidden:
        weight = layer[0].weight
        assert 0.98 / 16 < weight.abs().max() <= 1 / 16 and (layer[0].bias == 0.1).all()
    first = agent.actor.net.hidden[0][0]
    assert 0.95 / 7**0.5 < first.weight.abs().max() <= 1 / 7**0.5 and (first.bias == 0.1).all()
    for layer, bound in ((agent.critic.net.out, 3e-3), (agent.actor.net.out, 1e-3)):
        for tensor in (layer.weight, layer.bias):
            assert 0.5 * bound < tensor.abs().max() <= bound
    count = sum(p.numel() for p in nn.ModuleList([agent.critic]).parameters())
    assert count == 10 * ((9 + 1) * 256 + 2 * 257 * 256 + 257)


@pytest.mark.parametrize(
    ("dataset", "critics", "eta", "length"),
    [
        ("d4rl/halfcheetah-medium-v2", 10, 1.0, 5),
        ("d4rl/hopper-medium-v2", 50, 1.0, 5),
        ("d4rl/walker2d-medium-v2", 10, 1.0, 5),
        ("local/halfcheetah-medium-replay-v0", 10, 1.0, 5),
        ("local/hopper-medium-replay-v0", 50, 1.0, 5),
        ("local/walker2d-medium-replay-v0", 10, 1.0, 1),
        ("d4rl/halfcheetah-medium-expert-v2", 10, 5.0, 5),
        ("d4rl/hopper-medium-expert-v2", 50, 1.0, 5),
        ("d4rl/walker2d-medium-expert-v2", 10, 5.0, 1),
    ],
)
def test_defaults_are_those_of_the_dataset(dataset, critics, eta, length):
    """Sheet, table 4: EDAC's, and MOPO's length."""
    args = Args(dataset=dataset)
    assert (args.critics, args.eta, args.rollout_length, args.form) == (critics, eta, length, "ravl")
    assert args.hidden == (256, 256, 256)
    assert (args.actor_lr, args.critic_lr, args.temperature_lr) == (3e-4, 3e-4, 3e-4)
