"""ReCOIL: imitation from a few expert transitions and any other data, without rewards, many seeds at once.

Sikchi et al., "Dual RL: Unification and New Methods for Reinforcement and Imitation Learning" (arXiv 2302.08560), as
its official code computes it, which differs from the paper. In the code, the labelled expert's actions have the value
200, and those of the mixed data, hidden ones of the expert included, follow -2 + discount V(s'), where V(s') is -200
after a termination. V learns from the mixed data by the Gumbel regression of XQL (xql.py), and the actor imitates the
mixed data, weighted by exp(temperature (Q - V)), at most 100. The paper's mixture weight beta has no counterpart there.

`--objective paper` takes the paper's chi-square objective for Q, with the same V and actor: beta (E_S,pi Q - E_E Q) +
E_mix (discount V(s') - Q)^2 / 4. E is the expert's data, S the mixed data, and mix is beta E + (1 - beta) S; V(s') is 0
after a termination. The factor 1/4 is missing from the paper's derivation, as a reviewer noted, and others quote the
objective with a weight in its place. Its published hyperparameters are not known.

The mixed data is --dataset with the first --expert-trajectories of --expert-dataset hidden in it. The labelled data is
the first --expert-transitions of --expert-dataset, so those of them that are hidden are part of the mixed data too. As
in the official code, a trajectory ends at a termination or after the task's greatest number of steps, the last
transition of the last trajectory is left out, and if there are fewer trajectories, none is hidden. Where that number of
steps is not known, a trajectory ends where the data says.

    python single_file/recoil.py --dataset local/hopper-random-v0 --expert-dataset local/hopper-expert-v0 --seeds 0:10

Results lie in runs/<dataset>/recoil/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import (
    Count,
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
from algos.errors import warn
from algos.nn import MLP, Orthogonal, dropout_factors
from algos.offline import Decay, MixedArgs, offline_run
from algos.optim import Adam, Target, cosine
from algos.random import Random
from algos.replay import Batch
from envs import Task

EXPERT, STEP, END = 200.0, -2.0, -200.0  # the expert's value, the reward of other steps, a termination's value


@dataclass
class Args(MixedArgs):
    dataset: str = "local/hopper-random-v0"
    """the data that is not the expert's: d4rl/…, minari/…, ogbench/…, local/…, or a .hdf5 or .npz file"""
    expert_dataset: str = "local/hopper-expert-v0"
    """the expert's data"""
    expert_transitions: Count = by_domain(1000, pen=100, adroit=200, kitchen=183)
    """number of transitions that are labelled as the expert's"""
    objective: Literal["code", "paper"] = "code"
    """objective of the critics: that of the official code, or that of the paper"""
    beta: Tunable[Fraction] = 0.5
    """weight of the expert in the mixture of --objective paper; with code, it changes nothing"""
    batch_size: Size = 1024
    """transitions per update and run from the mixed data, and as many from the expert's"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target critics"""
    lr: Tunable[Positive] = 3e-4
    """learning rate of actor, critics and value"""
    scale: Tunable[Positive] = 1.0
    """beta of the Gumbel distribution; raise it (2.5, 5, 10, 20) until Q no longer diverges"""
    clip: Tunable[Positive] = 7.0
    """greatest (Q - V) / scale that V learns from"""
    temperature: Tunable[Positive] = by_domain(3.0, kitchen=0.5)
    """inverse temperature of the actor's weights exp(temperature (Q - V))"""
    dropout: FractionBelowOne = by_domain(0.0, kitchen=0.1, adroit=0.1)
    """share of the units that are left out in the actor's hidden layers while it learns"""
    layer_norm: Literal["on", "off"] = by_domain("off", kitchen="on", adroit="on")
    """normalise the layers of V"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of all networks"""
    decay: Decay = "cosine"
    """cosine: the actor's learning rate falls to 0 along a cosine over all updates; none: it is constant"""

    def without_effect(self) -> dict[str, str]:
        idle = {} if self.objective == "paper" else {"beta": "with --objective code"}
        return super().without_effect() | idle


class Draws(NamedTuple):
    """Random numbers of one update; None where they are not used."""

    dropout: Tensor | None  # [R, layers, B, width], uniform in [0, 1)
    action: Tensor | None  # [R, B, A], standard normal, for the policy's actions in the paper's objective


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

    def sample(self, obs: Tensor, normal: Tensor) -> Tensor:
        """An action [R, B, A] within the bounds, from standard normal noise [R, B, A]."""
        return (self(obs) + self.log_std.clamp(-5, 2).exp() * normal).clamp(-1, 1)

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

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...], layer_norm: bool):
        super().__init__()
        eps = 1e-6 if layer_norm else None
        self.net = MLP((runs,), task.obs_size, hidden, 1, layer_norm=eps, linear=Orthogonal)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


class ReCOIL(Agent):
    """Actor, twin critics and value of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.actor = self.initialise("actor", Actor(self.runs, task, args.hidden))
        self.critic = self.initialise("critic", Critic(self.runs, task, args.hidden))
        self.value = self.initialise("value", Value(self.runs, task, args.hidden, args.layer_norm == "on"))

        schedule = cosine(args.total_steps) if args.decay == "cosine" else None
        self.actor_adam = Adam(self.actor.parameters(), lr=args.lr, schedule=schedule)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.lr)
        self.value_adam = Adam(self.value.parameters(), lr=args.lr)
        self.target_critic = Target(self.critic, args.tau)

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """The mean action for each observation: obs [R, N, O] -> [R, N, A]."""
        return self.actor(obs)

    def value_loss(self, advantage: Tensor, expert_advantage: Tensor) -> Tensor:
        """exp(z - M) - z exp(-M) - exp(-M) with z = (Q - V) / scale, at most `clip`: losses [R].

        V learns from Q - V on the mixed data [R, B]. That on the expert's [R, B] only counts in M, a constant: the
        greatest z of both, at least -1.
        """
        z, expert_z = ((a / self.args.scale).clamp(max=self.args.clip) for a in (advantage, expert_advantage))
        highest = torch.cat([z, expert_z], -1).detach().amax(-1, keepdim=True).clamp(min=-1)
        return ((z - highest).exp() - (z + 1) * (-highest).exp()).mean(-1)

    def actor_loss(self, obs: Tensor, action: Tensor, advantage: Tensor, factors: list[Tensor] | None) -> Tensor:
        """-w log pi(a|s) with the weight w = exp(temperature (Q - V)), at most 100: losses [R]."""
        weight = (self.args.temperature * advantage).exp().clamp(max=100.0)
        return -(weight * self.actor.log_prob(obs, action, factors)).mean(-1)

    def critic_loss(self, q: Tensor, next_value: Tensor, terminated: Tensor) -> Tensor:
        """Half the mean squared errors, summed over the twins: losses [R].

        q [R, 2, 2 B] has first the mixed data's values, whose target is -2 + discount V(s') with V(s') = -200 after a
        termination, and then the expert's, whose target is 200.
        """
        of_mixed, of_expert = q.chunk(2, -1)
        target = STEP + self.args.discount * torch.where(terminated > 0, END, next_value)
        losses = 0.5 * (of_mixed - target[:, None]).square() + 0.5 * (of_expert - EXPERT).square()
        return losses.mean(-1).sum(-1)

    def paper_loss(self, q: Tensor, next_value: Tensor, q_of_policy: Tensor) -> Tensor:
        """beta (E_S,pi Q - E_E Q) + E_mix (discount V(s') - Q)^2 / 4, summed over the twins: losses [R].

        q [R, 2, 2 B] and next_value [R, 2 B], which is V(s') or 0 after a termination, have first the mixed data's
        numbers, then the expert's; q_of_policy [R, 2, B] has the values of the policy's actions on the mixed data.
        """
        beta = self.args.beta
        residual = (self.args.discount * next_value[:, None] - q).square() / 4
        of_mixed, of_expert = (half.mean(-1) for half in residual.chunk(2, -1))
        contrast = q_of_policy.mean(-1) - q.chunk(2, -1)[1].mean(-1)
        return (beta * contrast + beta * of_expert + (1 - beta) * of_mixed).sum(-1)

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of updates."""
        args, none = self.args, lambda: None
        layers = (len(args.hidden), args.batch_size, max(args.hidden))
        dropout = random.uniform("dropout", *layers) if args.dropout else none
        paper = args.objective == "paper"
        action = random.normal("action", args.batch_size, self.task.act_size) if paper else none
        return lambda: Draws(dropout(), action())

    def update(self, mixed: Batch, expert: Batch, draws: Draws) -> dict[str, Tensor]:
        """One update from minibatches of the mixed data and of the expert's; gives metrics [R]."""
        obs, action = torch.cat([mixed.obs, expert.obs], 1), torch.cat([mixed.action, expert.action], 1)
        with torch.no_grad():
            q, expert_q = self.target_critic(obs, action).amin(1).chunk(2, 1)
            expert_advantage = expert_q - self.value(expert.obs)

        value_loss = self.value_loss(q - self.value(mixed.obs), expert_advantage)
        self.value_adam.minimise(value_loss)

        with torch.no_grad():
            value, next_value = self.value(torch.cat([mixed.obs, mixed.next_obs], 1)).chunk(2, 1)
        factors = dropout_factors(draws.dropout, self.args.dropout)
        actor_loss = self.actor_loss(mixed.obs, mixed.action, q - value, factors)
        self.actor_adam.minimise(actor_loss)

        online = self.critic(obs, action)
        if draws.action is None:
            critic_loss = self.critic_loss(online, next_value, mixed.terminated)
        else:
            with torch.no_grad():
                sampled = self.actor.sample(mixed.obs, draws.action)
                next_value = torch.cat([next_value, self.value(expert.next_obs)], 1)
            goes_on = 1 - torch.cat([mixed.terminated, expert.terminated], 1)
            critic_loss = self.paper_loss(online, goes_on * next_value, self.critic(mixed.obs, sampled))
        self.critic_adam.minimise(critic_loss)

        self.target_critic.update()
        of_mixed, of_expert = online.detach().mean(1).chunk(2, -1)
        return {
            "value_loss": value_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "value": value.mean(-1),
            "q_mixed": of_mixed.mean(-1),
            "q_expert": of_expert.mean(-1),
        }


def main(args: Args) -> None:
    source = args.load_expert()
    hidden_expert = source.transitions_of(args.expert_trajectories)
    labelled_expert = min(args.expert_transitions, len(source))
    source = source.first(max(hidden_expert, labelled_expert))
    run, both = offline_run(args, "recoil", expert=source, hidden_expert=hidden_expert, labelled_expert=labelled_expert)
    others = len(both) - len(source)
    if not hidden_expert:
        few = f"fewer than {args.expert_trajectories:,} trajectories"
        warn(f"{args.expert_dataset} has {few}, so nothing of it is in the mixed data")
    mixed, expert = both.part(np.arange(others + hidden_expert)), both.part(np.arange(others, others + labelled_expert))
    run.say(
        f"{hidden_expert:,} transitions of the mixed data are the expert's, {hidden_expert / len(mixed):.1%}; "
        f"{labelled_expert:,} labelled"
    )
    agent = ReCOIL(run.args, mixed.task, run.seeds, run.device)
    choice, draws = run.random.integers("minibatch", 2, args.batch_size), agent.draws(run.random)
    update = run.compiled(lambda i, j, draws: agent.update(mixed.gather(i), expert.gather(j), draws))

    run.register(agent)
    for _ in run.steps(mixed.adapt(agent.policy)):
        integers = choice()
        run.log(update(mixed.choose(integers[:, 0]), expert.choose(integers[:, 1]), draws()))


if __name__ == "__main__":
    cli(main)
