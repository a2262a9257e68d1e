"""XQL: extreme Q-learning, many seeds at once.

Garg, Hejna, Geist and Ermon, "Extreme Q-Learning: MaxEnt RL without Entropy" (arXiv 2301.02328), as its official code
computes it: implicit Q-learning (iql.py) whose value loss is a Gumbel regression, so that V becomes beta log E exp(Q /
beta) under the data's actions. (Q - V) / beta is clipped from above, where it then has no gradient; the snippet in the
paper clips both sides. The loss is divided by exp of the greatest of these numbers in the batch, at least exp(-1).

Other than in IQL, V has layer normalisation and critics learn by a Huber loss (delta 20; its half replaces IQL's 1).
Beta, clip, batch size and more are by default those of the official scripts for each D4RL dataset, else those of its
domain; `--consistent` takes the latter always. The paper's scores are of the best evaluation, here it is the last.
Left out is the official gradient penalty, which is off there and penalises one critic twice.

    python single_file/xql.py --dataset local/hopper-medium-replay-v0 --seeds 0:10

Results lie in runs/<dataset>/xql/<variant>/, one row per seed and evaluation episode in eval.parquet.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algos.arguments import (
    AUTO,
    AutoCount,
    AutoFraction,
    AutoNatural,
    AutoRate,
    AutoShare,
    Fraction,
    Rate,
    Step,
    Widths,
)
from algos.data import Dataset
from algos.nn import MLP, Orthogonal
from algos.offline import OfflineArgs, Rewards, begin
from algos.optim import Adam, Target
from algos.run import Run, cli

# for arguments that are not given
DEFAULTS = {
    "beta": 2.0, "clip": 7.0, "batch_size": 256, "random_actions": 0, "noise": 0.0, "value_updates": 1,
    "temperature": 3.0, "dropout": 0.0,
}  # fmt: skip
DOMAINS = {
    "antmaze": {"beta": 0.6, "temperature": 10.0, "decay_steps": 0},
    "kitchen": {"beta": 5.0, "temperature": 0.5, "dropout": 0.1},
    "adroit": {"temperature": 0.5, "dropout": 0.1},
}
DATASETS: dict[str, dict[str, Any]] = {
    "halfcheetah-medium-v2": {"beta": 1.0, "batch_size": 1024, "noise": 0.1},
    "hopper-medium-v2": {"beta": 5.0, "batch_size": 1024},
    "walker2d-medium-v2": {"beta": 10.0, "batch_size": 1024},
    "halfcheetah-medium-replay-v2": {"beta": 1.0, "clip": 5.0},
    "hopper-medium-replay-v2": {"beta": 2.0},
    "walker2d-medium-replay-v2": {"beta": 5.0, "clip": 5.0, "batch_size": 1024},
    "halfcheetah-medium-expert-v2": {"beta": 1.0, "clip": 5.0, "batch_size": 1024},
    "hopper-medium-expert-v2": {"beta": 2.0, "batch_size": 1024, "random_actions": 1},
    "walker2d-medium-expert-v2": {"beta": 2.0, "clip": 5.0},
    "antmaze-umaze-v0": {"beta": 2.0},
    "antmaze-umaze-diverse-v0": {"beta": 5.0, "random_actions": 1},
    "antmaze-medium-play-v0": {"beta": 0.8, "clip": 5.0},
    "antmaze-medium-diverse-v0": {"beta": 0.6, "value_updates": 4},
    "antmaze-large-play-v0": {"beta": 0.6, "clip": 5.0, "batch_size": 1024},
    "antmaze-large-diverse-v0": {"beta": 0.55, "clip": 5.0, "batch_size": 1024},
    "kitchen-complete-v0": {"beta": 2.0, "batch_size": 1024},
    "kitchen-partial-v0": {"beta": 5.0, "batch_size": 1024},
    "kitchen-mixed-v0": {"beta": 8.0, "batch_size": 1024},
}


@dataclass
class Args(OfflineArgs):
    reward: Rewards = "auto"
    """how rewards are changed: range (of returns, to 1,000), minus_one, none; auto: range for locomotion, minus_one for
    antmaze, else none"""
    batch_size: AutoCount = AUTO
    """transitions per update and seed; by default 256, or 1,024 by the dataset of D4RL"""
    discount: Fraction = 0.99
    """gamma"""
    tau: Step = 0.005
    """step size of the target critics"""
    lr: Rate = 3e-4
    """learning rate of actor, critics and value"""
    beta: AutoRate = AUTO
    """of the Gumbel distribution: the higher, the closer V is to the mean of Q; by default 0.55 to 10 by the dataset of
    D4RL, for others 2, antmaze 0.6, kitchen 5"""
    clip: AutoRate = AUTO
    """greatest (Q - V) / beta that V learns from; by default 7, or 5 by the dataset of D4RL"""
    consistent: bool = False
    """settings by the domain, not by the dataset"""
    random_actions: AutoNatural = AUTO
    """V also learns from so many uniformly random actions for each of the data's; by default 0, or by the dataset"""
    noise: AutoFraction = AUTO
    """standard deviation of noise, clipped at 0.5, on the actions that V learns from; by default by the dataset"""
    value_updates: AutoCount = AUTO
    """steps of V per update, all on the same minibatch; by default 1, or 4 by the dataset"""
    temperature: AutoRate = AUTO
    """inverse temperature of the actor's weights; by default 3, antmaze 10, kitchen and adroit 0.5"""
    dropout: AutoShare = AUTO
    """of the actor's hidden layers while it learns; by default none, kitchen and adroit 0.1"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of all networks"""
    decay_steps: AutoNatural = AUTO
    """updates within which the actor's learning rate falls to 0, along a cosine; by default all, antmaze 0: never"""


class Actor(nn.Module):
    """Gaussian policy: obs [R, B, O] -> mean in [-1, 1] [R, B, A]; one standard deviation for all states."""

    def __init__(self, runs: int, data: Dataset, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), data.obs_size, hidden, data.act_size, linear=Orthogonal)
        self.log_std = nn.Parameter(torch.zeros(runs, 1, data.act_size))

    def forward(self, obs: Tensor, factors: list[Tensor] | None = None) -> Tensor:
        return torch.tanh(self.net(obs, factors))

    def log_prob(self, obs: Tensor, action: Tensor, factors: list[Tensor] | None = None) -> Tensor:
        """Log-density [R, B] of actions [R, B, A], which are not squashed."""
        log_std = self.log_std.clamp(-5, 2)
        scaled = (action - self(obs, factors)) * (-log_std).exp()
        return (-0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


class Critic(nn.Module):
    """Twin action values: obs [R, B, O], action [R, B, A] -> [R, 2, B]."""

    def __init__(self, runs: int, data: Dataset, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs, 2), data.obs_size + data.act_size, hidden, 1, linear=Orthogonal)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([obs, action], -1)[:, None]).squeeze(-1)


class Value(nn.Module):
    """State values: obs [R, B, O] -> [R, B]."""

    def __init__(self, runs: int, data: Dataset, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), data.obs_size, hidden, 1, layer_norm=1e-6, linear=Orthogonal)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


class XQL:
    """Actor, twin critics and value of R runs."""

    def __init__(self, args: Args, run: Run, data: Dataset):
        self.args, self.data = args, data
        self.actor = run.initialise("actor", Actor(run.runs, data, args.hidden))
        self.critic = run.initialise("critic", Critic(run.runs, data, args.hidden))
        self.value = run.initialise("value", Value(run.runs, data, args.hidden))

        self.actor_adam = Adam(self.actor.parameters(), lr=args.lr, decay_steps=args.decay_steps)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.lr)
        self.value_adam = Adam(self.value.parameters(), lr=args.lr)
        self.target_critic = Target(self.critic, args.tau)

    def value_loss(self, advantage: Tensor) -> Tensor:
        """exp(z - M) - z exp(-M) - exp(-M) of z = (Q - V) / beta, at most `clip`; M = max z, at least -1: [R, n]."""
        z = (advantage / self.args.beta).clamp(max=self.args.clip)
        highest = z.detach().amax(-1, keepdim=True).clamp(min=-1)
        return (z - highest).exp() - (z + 1) * (-highest).exp()

    def actor_loss(self, obs: Tensor, action: Tensor, advantage: Tensor, factors: list[Tensor] | None) -> Tensor:
        """-exp(temperature (Q - V)) log pi(a|s), the weight at most 100: losses [R]."""
        weight = (self.args.temperature * advantage).exp().clamp(max=100.0)
        return -(weight * self.actor.log_prob(obs, action, factors)).mean(-1)

    def critic_loss(self, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Sum over the twins of the mean Huber loss, with delta 20, to target [R, B]: losses [R]."""
        q = self.critic(obs, action)
        return F.huber_loss(q, target[:, None].expand_as(q), reduction="none", delta=20.0).mean(-1).sum(-1)

    def values(self, obs: Tensor, action: Tensor, q: Tensor, normal: Tensor | None, other: Tensor | None) -> Tensor:
        """Target values q [R, B] of the data's actions, and what V learns from: [R, 1 + random_actions, B].

        With normal [R, B, A] the actions have noise there, with other [R, k, B, A], in [0, 1), k random ones stand by.
        """
        if normal is not None:
            action = (action + (self.args.noise * normal).clamp(-0.5, 0.5)).clamp(-1, 1)
            q = self.target_critic(obs, action).amin(1)
        if other is None:
            return q[:, None]
        runs, k, batch, size = other.shape
        at_random = self.target_critic(obs.repeat(1, k, 1), (2 * other - 1).reshape(runs, k * batch, size)).amin(1)
        return torch.cat([q[:, None], at_random.view(runs, k, batch)], 1)

    def update(
        self,
        integers: Tensor,
        uniform: Tensor | None = None,
        normal: Tensor | None = None,
        other: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """One update from the minibatch that integers [R, B] choose.

        uniform [R, layers, B, H], in [0, 1), is for dropout; for the others see `values`.
        """
        batch = self.data.gather(self.data.choose(integers))
        with torch.no_grad():
            q = self.target_critic(batch.obs, batch.action).amin(1)
            q_of_value = self.values(batch.obs, batch.action, q, normal, other)

        for _ in range(self.args.value_updates):
            advantage = q_of_value - self.value(batch.obs)[:, None]
            value_loss = self.value_loss(advantage.flatten(1)).mean(-1)
            self.value_adam.minimise(value_loss)

        with torch.no_grad():
            value, next_value = self.value(torch.cat([batch.obs, batch.next_obs], 1)).chunk(2, 1)
            target = batch.reward + self.args.discount * (1 - batch.terminated) * next_value
        rate = self.args.dropout
        factors = None if uniform is None else [(u >= rate) / (1 - rate) for u in uniform.unbind(1)]
        actor_loss = self.actor_loss(batch.obs, batch.action, q - value, factors)
        self.actor_adam.minimise(actor_loss)

        critic_loss = self.critic_loss(batch.obs, batch.action, target)
        self.critic_adam.minimise(critic_loss)

        self.target_critic.update()
        return {
            "value_loss": value_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "value": value.mean(-1),
            "advantage": (q - value).mean(-1),
        }


def main(args: Args) -> None:
    own = {} if args.consistent else DATASETS.get(args.known_as, {})
    settings = args.fill(own, DOMAINS.get(args.domain, {}), DEFAULTS, {"decay_steps": args.total_steps})
    run, data = begin(args, "xql", args.reward, settings=settings)
    args, agent = settings, XQL(settings, run, data)
    update = run.fast(agent.update)

    choice = run.stream("minibatch", args.batch_size, kind="integer")
    widest, dropped = max(args.hidden), args.dropout > 0
    uniform = run.stream("dropout", len(args.hidden), args.batch_size, widest, kind="uniform", used=dropped)
    normal = run.stream("noise", args.batch_size, data.act_size, used=args.noise > 0)
    k = args.random_actions
    other = run.stream("action", k, args.batch_size, data.act_size, kind="uniform", used=k > 0)
    for _ in run.steps(data.adapt(agent.actor), agent=agent):
        run.log(update(choice(), uniform(), normal(), other()))


if __name__ == "__main__":
    cli(main)
