"""Agents of offline model-based scripts, and SAC's parts written once more, for one run, in torch's own layers."""

import math
from typing import Any

import torch
from offline_data import at_random, batch_of, draws_of, offline_agent
from scripts import assert_same, layers_of
from torch import Tensor, nn

from algos.replay import Batch

__all__ = ["PlainSAC", "agent_and_batch"]


def agent_and_batch(script: str, **overrides: Any) -> tuple[Any, Batch, Any]:
    """An agent of two runs in double precision, a batch [2, 8, ...] and the draws of one update.

    Its actor's logarithms of standard deviations lie beyond their bounds, -5 and 2, in some states.
    """
    agent, batch = offline_agent(script, at_random(), **{"real_ratio": 0.25, **overrides}), batch_of(at_random())
    with torch.no_grad():
        agent.actor.net.out.weight.normal_(0, 10, generator=torch.Generator().manual_seed(0))
        agent.actor.net.out.bias[..., agent.task.act_size :] = -1.5
        log_std = agent.actor.net(batch.obs).chunk(2, -1)[1]
    assert log_std.min() < -5 and log_std.max() > 2
    return agent, batch, draws_of(agent)


class PlainSAC:
    """Run `run` of an agent with a squashed Gaussian actor, N critics and a temperature; `metrics` of its update."""

    metrics: dict[str, Tensor]

    def __init__(self, agent: Any, run: int, critics: int):
        self.args, self.run = agent.args, run
        self.log_alpha = agent.log_alpha[run].detach().clone().requires_grad_()
        self.target_entropy = -float(agent.task.act_size)
        self.actor = layers_of(agent.actor.net, run)
        self.critics, self.targets = ([layers_of(agent.critic.net, run, n) for n in range(critics)] for _ in range(2))
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=agent.args.actor_lr)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=agent.args.temperature_lr)
        self.critic_adam = torch.optim.Adam(
            [p for net in self.critics for p in net.parameters()], lr=agent.args.critic_lr
        )

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = mean + normal.stddev * noise
        action = torch.tanh(raw)
        return action, (normal.log_prob(raw) - torch.log(1 - action**2 + 1e-6)).sum(-1)

    def values(self, nets: list[nn.Sequential], obs: Tensor, action: Tensor) -> Tensor:
        """[N, B]"""
        return torch.stack([net(torch.cat([obs, action], -1)).squeeze(-1) for net in nets])

    def move_targets(self) -> None:
        for online, target in zip(self.critics, self.targets, strict=True):
            for a, b in zip(online.parameters(), target.parameters(), strict=True):
                b.data.copy_(0.995 * b.data + 0.005 * a.data)

    def descend(self, adam: torch.optim.Adam, loss: Tensor) -> Tensor:
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss.detach()

    def assert_same(self, agent: Any, metrics: dict[str, Tensor], obs: Tensor) -> None:
        """Compares networks, metrics of the last update, and deterministic actions for obs [R, B, O]."""
        assert metrics.keys() == self.metrics.keys()
        for name, value in self.metrics.items():
            torch.testing.assert_close(metrics[name][self.run], value.detach(), atol=1e-9, rtol=1e-9)
        mean = self.actor(obs[self.run]).chunk(2, -1)[0]
        torch.testing.assert_close(agent.policy(obs)[self.run], torch.tanh(mean), atol=1e-9, rtol=0)
        assert_same(agent.actor.net, self.actor, self.run)
        assert math.isclose(agent.log_alpha[self.run].item(), self.log_alpha.item(), abs_tol=1e-9)
        for n, (online, target) in enumerate(zip(self.critics, self.targets, strict=True)):
            assert_same(agent.critic.net, online, self.run, n)
            assert_same(agent.target_critic.net.net, target, self.run, n)
