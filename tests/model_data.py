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
    """An agent of two runs in double precision, a batch [2, 8, ...] and the draws of one update."""
    agent = offline_agent(script, at_random(), **{"real_ratio": 0.25, **overrides})
    return agent, batch_of(at_random()), draws_of(agent)


class PlainSAC:
    """Run `run` of an agent with a squashed Gaussian actor, N critics and a temperature."""

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

    def descend(self, adam: torch.optim.Adam, loss: Tensor) -> None:
        adam.zero_grad()
        loss.backward()
        adam.step()

    def assert_same(self, agent: Any) -> None:
        assert_same(agent.actor.net, self.actor, self.run)
        assert math.isclose(agent.log_alpha[self.run].item(), self.log_alpha.item(), abs_tol=1e-9)
        for n, (online, target) in enumerate(zip(self.critics, self.targets, strict=True)):
            assert_same(agent.critic.net, online, self.run, n)
            assert_same(agent.target_critic.net.net, target, self.run, n)
