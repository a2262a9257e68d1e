"""XQL: extreme Q-learning, many seeds at once.

Garg, Hejna, Geist and Ermon, "Extreme Q-Learning: MaxEnt RL without Entropy" (arXiv 2301.02328), as its official code
computes it: implicit Q-learning (iql.py) whose value loss is a Gumbel regression, so that V becomes beta log E exp(Q /
beta) under the data's actions. (Q - V) / beta is clipped from above, and has no gradient where it is clipped; the
snippet in the paper clips both sides. The loss is divided by exp(M), where M is the greatest of these numbers in the
batch, at least -1.

It also differs from IQL in these things: V has layer normalisation, critics learn by a Huber loss (delta 20, with a
factor 1/2 where IQL's squared error has 1), and on antmaze the actor's learning rate is constant. By default, beta,
clip, batch size and some others are those of the official scripts for each D4RL dataset of locomotion, antmaze and
kitchen, and those of the domain for other datasets of these domains; `--consistent` always takes those of the domain.
For all other tasks, Adroit's among them, no official beta, clip and batch size are known, and locomotion's are taken;
an example in the official README has a beta of 8 and one random action for pen-human. The paper's scores are those of
the best evaluation; here they are those of the last. The official gradient penalty, which is off there and penalises
one critic twice, is left out.

    python single_file/xql.py --dataset local/hopper-medium-replay-v0 --seeds 0:10

Results lie in runs/<dataset>/xql/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import (
    Count,
    FewOrNone,
    Fraction,
    FractionBelowOne,
    Positive,
    PositiveFraction,
    Size,
    Tunable,
    Widths,
    by_domain,
)
from algos.cli import cli
from algos.nn import MLP, Orthogonal, dropout_factors
from algos.offline import Decay, OfflineArgs, Rewards, offline_run, start_values
from algos.optim import Adam, Target, cosine
from algos.random import Random
from algos.replay import Batch
from envs import Task

# The official hyperparameters of each dataset: beta, and the others where they are not those of its domain.
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


def by_dataset(name: str) -> dict[str, Any]:
    """The values of one argument in `DATASETS`, by dataset."""
    return {dataset: row[name] for dataset, row in DATASETS.items() if name in row}


@dataclass
class Args(OfflineArgs):
    reward: Rewards = by_domain("none", locomotion="range", antmaze="minus_one")
    """range: rewards times 1,000 / range of returns; minus_one: rewards less 1; none: rewards as they are"""
    batch_size: Size = by_domain(256, **by_dataset("batch_size"))
    """transitions per update and run"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target critics"""
    lr: Tunable[Positive] = 3e-4
    """learning rate of actor, critics and value"""
    beta: Tunable[Positive] = by_domain(2.0, antmaze=0.6, kitchen=5.0, **by_dataset("beta"))
    """scale of the Gumbel distribution: the higher it is, the closer V is to the mean of Q"""
    clip: Tunable[Positive] = by_domain(7.0, **by_dataset("clip"))
    """greatest (Q - V) / beta that V learns from"""
    consistent: bool = False
    """take the hyperparameters of the domain, not those of the dataset"""
    random_actions: FewOrNone = by_domain(0, **by_dataset("random_actions"))
    """number of uniformly random actions that V learns from, beside each action of the data"""
    noise: Fraction = by_domain(0.0, **by_dataset("noise"))
    """standard deviation of noise, clipped at 0.5, on the actions that V learns from"""
    value_updates: Count = by_domain(1, **by_dataset("value_updates"))
    """steps of V per update, all on the same minibatch"""
    temperature: Tunable[Positive] = by_domain(3.0, antmaze=10.0, kitchen=0.5, adroit=0.5)
    """inverse temperature of the actor's weights exp(temperature (Q - V))"""
    dropout: FractionBelowOne = by_domain(0.0, kitchen=0.1, adroit=0.1)
    """share of the units that are left out in the actor's hidden layers while it learns"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of all networks"""
    decay: Decay = by_domain("cosine", antmaze="none")
    """cosine: the actor's learning rate falls to 0 along a cosine over all updates; none: it is constant"""

    @property
    def keys(self) -> list[str]:
        return [self.domain] if self.consistent else super().keys

    def without_effect(self) -> dict[str, str]:
        known = self.known_as in DATASETS
        return {} if known else {"consistent": "with a dataset that has no official hyperparameters of its own"}


class Draws(NamedTuple):
    """Random numbers of one update; None where they are not used."""

    dropout: Tensor | None  # [R, layers, B, width], uniform in [0, 1)
    noise: Tensor | None  # [R, B, A], standard normal, on the actions that V learns from
    actions: Tensor | None  # [R, random_actions, B, A], uniform in [0, 1), other actions that V learns from


class Actor(nn.Module):
    """Gaussian policy: obs [R, B, O] -> mean in [-1, 1] [R, B, A]; one standard deviation for all states.

    `factors` of dropout multiply the units of each hidden layer, each [R, B, width]; see `dropout_factors`.
    """

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), task.obs_size, hidden, task.act_size, linear=Orthogonal)
        self.log_std = nn.Parameter(torch.zeros(runs, 1, task.act_size))

    def forward(self, obs: Tensor, factors: list[Tensor] | None = None) -> Tensor:
        return torch.tanh(self.net(obs, factors))

    def log_prob(self, obs: Tensor, action: Tensor, factors: list[Tensor] | None = None) -> Tensor:
        """Log-density [R, B] of actions [R, B, A], which are not squashed."""
        log_std = self.log_std.clamp(-5, 2)
        scaled = (action - self(obs, factors)) * (-log_std).exp()
        return (-0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


class Critic(nn.Module):
    """Twin action values: obs [R, B, O], action [R, B, A] -> [R, 2, B]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs, 2), task.obs_size + task.act_size, hidden, 1, linear=Orthogonal)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([obs, action], -1)[:, None]).squeeze(-1)


class Value(nn.Module):
    """State values: obs [R, B, O] -> [R, B]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), task.obs_size, hidden, 1, layer_norm=1e-6, linear=Orthogonal)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


class XQL(Agent):
    """Actor, twin critics and value of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.actor = self.initialise("actor", Actor(self.runs, task, args.hidden))
        self.critic = self.initialise("critic", Critic(self.runs, task, args.hidden))
        self.value = self.initialise("value", Value(self.runs, task, args.hidden))

        schedule = cosine(args.total_steps) if args.decay == "cosine" else None
        self.actor_adam = Adam(self.actor.parameters(), lr=args.lr, schedule=schedule)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.lr)
        self.value_adam = Adam(self.value.parameters(), lr=args.lr)
        self.target_critic = Target(self.critic, args.tau)

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """The mean action for each observation: obs [R, N, O] -> [R, N, A]."""
        return self.actor(obs)

    def value_loss(self, advantage: Tensor) -> Tensor:
        """exp(z - M) - z exp(-M) - exp(-M) with z = (Q - V) / beta, at most `clip`; M = max z, at least -1: [R, n]."""
        z = (advantage / self.args.beta).clamp(max=self.args.clip)
        highest = z.detach().amax(-1, keepdim=True).clamp(min=-1)
        return (z - highest).exp() - (z + 1) * (-highest).exp()

    def actor_loss(self, obs: Tensor, action: Tensor, advantage: Tensor, factors: list[Tensor] | None) -> Tensor:
        """-w log pi(a|s) with the weight w = exp(temperature (Q - V)), at most 100: losses [R]."""
        weight = (self.args.temperature * advantage).exp().clamp(max=100.0)
        return -(weight * self.actor.log_prob(obs, action, factors)).mean(-1)

    def critic_loss(self, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Sum over the twins of the mean Huber loss, with delta 20, to target [R, B]: losses [R]."""
        q = self.critic(obs, action)
        return F.huber_loss(q, target[:, None].expand_as(q), reduction="none", delta=20.0).mean(-1).sum(-1)

    def augmented(self, batch: Batch, q: Tensor, draws: Draws) -> Tensor:
        """The target values that V learns from: q [R, B] of the data's actions -> [R, 1 + random_actions, B].

        Noise may be added to the data's actions, and the values of random actions may follow.
        """
        if draws.noise is not None:
            action = (batch.action + (self.args.noise * draws.noise).clamp(-0.5, 0.5)).clamp(-1, 1)
            q = self.target_critic(batch.obs, action).amin(1)
        if draws.actions is None:
            return q[:, None]
        runs, k, size, _ = draws.actions.shape
        others = self.target_critic(batch.obs.repeat(1, k, 1), (2 * draws.actions - 1).flatten(1, 2)).amin(1)
        return torch.cat([q[:, None], others.view(runs, k, size)], 1)

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of updates."""
        args, none = self.args, lambda: None
        layers, shape = (len(args.hidden), args.batch_size, max(args.hidden)), (args.batch_size, self.task.act_size)
        dropout = random.uniform("dropout", *layers) if args.dropout else none
        noise = random.normal("noise", *shape) if args.noise else none
        actions = random.uniform("action", args.random_actions, *shape) if args.random_actions else none
        return lambda: Draws(dropout(), noise(), actions())

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """One update of value, actor, critics and targets, in this order; gives metrics [R]."""
        with torch.no_grad():
            q = self.target_critic(batch.obs, batch.action).amin(1)
            augmented_q = self.augmented(batch, q, draws)

        for _ in range(self.args.value_updates):
            advantage = augmented_q - self.value(batch.obs)[:, None]
            value_loss = self.value_loss(advantage.flatten(1)).mean(-1)
            self.value_adam.minimise(value_loss)

        with torch.no_grad():
            value, next_value = self.value(torch.cat([batch.obs, batch.next_obs], 1)).chunk(2, 1)
            target = batch.reward + self.args.discount * (1 - batch.terminated) * next_value
        factors = dropout_factors(draws.dropout, self.args.dropout)
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
    run, data = offline_run(args, "xql", args.reward)
    agent = XQL(run.args, data.task, run.seeds, run.device)
    choice, draws = run.random.integers("minibatch", args.batch_size), agent.draws(run.random)
    update = run.compiled(lambda indices, draws: agent.update(data.gather(indices), draws))

    run.watch(start_values(data, run.runs, lambda obs: agent.critic(obs, agent.policy(obs)).amin(1)))
    run.register(agent)
    for _ in run.steps(data.adapt(agent.policy)):
        run.log(update(data.choose(choice()), draws()))


if __name__ == "__main__":
    cli(main)
