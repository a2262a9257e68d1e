"""IQL: implicit Q-learning, many seeds at once.

Kostrikov, Nair and Levine, "Offline Reinforcement Learning with Implicit Q-Learning" (arXiv 2110.06169), as its
official code computes it: a state value V follows an upper expectile of target critics, the twin critics follow r +
discount V, and the actor imitates the data's actions, weighted by exp(temperature (Q - V)), at most 100. An update
moves V, then the actor (by the new V and the old target critics), then the critics, then the target critics.

The details are those of the code (and with `--exact-d4rl` also the transitions of D4RL's files): rewards are scaled to
a range of returns of 1,000 (locomotion) or reduced by 1 (antmaze), observations are raw, no layer is normalised,
initial weights are orthogonal times sqrt(2) everywhere, the policy's standard deviation is learned and does not depend
on the state, its mean is squashed by tanh while samples are not, the actor's learning rate falls along a cosine, and
the last actor is scored. Expectile, temperature and dropout depend on the domain, as in the paper. CORL's figures have
other hyperparameters, --standardise and, mostly, --reward none, and its code takes the next values and the advantages
before V moves, halves the critics' loss, and draws initial weights as `nn.Linear` does.

    python single_file/iql.py --dataset local/hopper-medium-replay-v0 --seeds 0:10

Results lie in runs/<dataset>/iql/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Fraction, FractionBelowOne, Positive, PositiveFraction, Size, Tunable, Widths, by_domain
from algos.cli import cli
from algos.nn import MLP, Orthogonal, dropout_factors
from algos.offline import Decay, OfflineArgs, Rewards, offline_run, start_values
from algos.optim import Adam, Target, cosine
from algos.random import Random
from algos.replay import Batch
from envs import Task


@dataclass
class Args(OfflineArgs):
    reward: Rewards = by_domain("none", locomotion="range", antmaze="minus_one")
    """range: rewards times 1,000 / range of returns; minus_one: rewards less 1; none: rewards as they are"""
    batch_size: Size = 256
    """transitions per update and run"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target critics"""
    lr: Tunable[Positive] = 3e-4
    """learning rate of actor, critics and value"""
    expectile: Tunable[Fraction] = by_domain(0.7, antmaze=0.9)
    """tau of the paper: 0.5 makes V the mean of Q over the data's actions, 1 its maximum"""
    temperature: Tunable[Positive] = by_domain(3.0, antmaze=10.0, kitchen=0.5, adroit=0.5)
    """inverse temperature of the actor's weights exp(temperature (Q - V))"""
    dropout: FractionBelowOne = by_domain(0.0, kitchen=0.1, adroit=0.1)
    """share of the units that are left out in the actor's hidden layers while it learns"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of all networks"""
    decay: Decay = "cosine"
    """cosine: the actor's learning rate falls to 0 along a cosine over all updates; none: it is constant"""


class Draws(NamedTuple):
    """Random numbers of one update."""

    dropout: Tensor | None  # [R, layers, B, width], uniform in [0, 1); None without dropout


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
        self.net = MLP((runs,), task.obs_size, hidden, 1, linear=Orthogonal)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


class IQL(Agent):
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
        """|expectile - 1(d <= 0)| d^2 with d = Q - V: [R, B] -> [R, B]."""
        expectile = self.args.expectile
        return torch.where(advantage > 0, expectile, 1 - expectile) * advantage.square()

    def actor_loss(self, obs: Tensor, action: Tensor, advantage: Tensor, factors: list[Tensor] | None) -> Tensor:
        """-w log pi(a|s) with the weight w = exp(temperature (Q - V)), at most 100: losses [R]."""
        weight = (self.args.temperature * advantage).exp().clamp(max=100.0)
        return -(weight * self.actor.log_prob(obs, action, factors)).mean(-1)

    def critic_loss(self, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Sum over the twins of the mean squared error to target [R, B]: losses [R]."""
        return (self.critic(obs, action) - target[:, None]).square().mean(-1).sum(-1)

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of updates."""
        args = self.args
        if not args.dropout:
            return lambda: Draws(None)
        uniform = random.uniform("dropout", len(args.hidden), args.batch_size, max(args.hidden))
        return lambda: Draws(uniform())

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """One update of value, actor, critics and targets, in this order; gives metrics [R]."""
        with torch.no_grad():
            q = self.target_critic(batch.obs, batch.action).amin(1)

        value = self.value(batch.obs)
        value_loss = self.value_loss(q - value).mean(-1)
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
    run, data = offline_run(args, "iql", args.reward)
    agent = IQL(run.args, data.task, run.seeds, run.device)
    choice, draws = run.random.integers("minibatch", args.batch_size), agent.draws(run.random)
    update = run.compiled(lambda indices, draws: agent.update(data.gather(indices), draws))

    run.watch(start_values(data, run.runs, lambda obs: agent.critic(obs, agent.policy(obs)).amin(1)))
    run.register(agent)
    for _ in run.steps(data.adapt(agent.policy)):
        run.log(update(data.choose(choice()), draws()))


if __name__ == "__main__":
    cli(main)
