"""BC: behaviour cloning, many seeds at once; with `--top-fraction 0.1` the baseline called 10%BC.

The actor is that of iql.py and maximises the likelihood of the data's actions, as those of iql.py, xql.py and f_dvl.py
do where all weights are 1. `--top-fraction` keeps only the trajectories with the highest returns, each as a whole,
until they make up that share of all transitions. CORL's BC differs: its actor is deterministic and learns by squared
errors, its observations are standardised (--standardise), its learning rate is constant (--decay none), it has no
dropout (--dropout 0), its initial weights are those of `nn.Linear`, and it keeps that share of the number of
trajectories, those with the highest discounted returns, where a trajectory ends at a termination or after 1,000 steps.

    python single_file/bc.py --dataset local/hopper-medium-replay-v0 --seeds 0:10
    python single_file/bc.py --dataset local/hopper-medium-replay-v0 --top-fraction 0.1 --variant top10
    python single_file/bc.py --dataset local/hopper-random-v0 --expert-dataset local/hopper-expert-v0

Results lie in runs/<dataset>/bc/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import FractionBelowOne, Positive, PositiveFraction, Size, Tunable, Widths, by_domain
from algos.cli import cli
from algos.errors import UserError
from algos.nn import MLP, Orthogonal, dropout_factors
from algos.offline import Decay, MixedArgs, Rewards, offline_run
from algos.optim import Adam, cosine
from algos.random import Random
from algos.replay import Batch
from envs import Task


@dataclass
class Args(MixedArgs):
    top_fraction: PositiveFraction = 1.0
    """share of all transitions that is kept: those of the trajectories with the highest returns"""
    batch_size: Size = 256
    """transitions per update and run"""
    lr: Tunable[Positive] = 3e-4
    """learning rate"""
    dropout: FractionBelowOne = by_domain(0.0, kitchen=0.1, adroit=0.1)
    """share of the units that are left out in the hidden layers during training"""
    hidden: Widths = (256, 256)
    """widths of hidden layers"""
    decay: Decay = "cosine"
    """cosine: the learning rate falls to 0 along a cosine over all updates; none: it is constant"""


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


class BC(Agent):
    """Actors of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.actor = self.initialise("actor", Actor(self.runs, task, args.hidden))
        schedule = cosine(args.total_steps) if args.decay == "cosine" else None
        self.actor_adam = Adam(self.actor.parameters(), lr=args.lr, schedule=schedule)

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """The mean action for each observation: obs [R, N, O] -> [R, N, A]."""
        return self.actor(obs)

    def actor_loss(self, obs: Tensor, action: Tensor, factors: list[Tensor] | None) -> Tensor:
        """-log pi(a|s): losses [R]."""
        return -self.actor.log_prob(obs, action, factors).mean(-1)

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of updates."""
        args = self.args
        if not args.dropout:
            return lambda: Draws(None)
        uniform = random.uniform("dropout", len(args.hidden), args.batch_size, max(args.hidden))
        return lambda: Draws(uniform())

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """One update; gives metrics [R]."""
        factors = dropout_factors(draws.dropout, self.args.dropout)
        actor_loss = self.actor_loss(batch.obs, batch.action, factors)
        self.actor_adam.minimise(actor_loss)
        return {"actor_loss": actor_loss.detach()}


def main(args: Args) -> None:
    expert, hidden_expert = None, 0
    if args.expert_dataset:
        source = args.load_expert()
        hidden_expert = source.transitions_of(args.expert_trajectories)
        if not hidden_expert:
            raise UserError(f"--expert-trajectories: {source.name} has fewer than {args.expert_trajectories:,}")
        expert = source.first(hidden_expert)
    # --top-fraction chooses trajectories by unchanged rewards; without it, data need no rewards
    reward: Rewards | None = "none" if args.top_fraction < 1 else None
    run, data = offline_run(args, "bc", reward, expert=expert, top=args.top_fraction, hidden_expert=hidden_expert)
    if hidden_expert and args.top_fraction == 1:
        run.say(f"{hidden_expert:,} transitions of the data are the expert's, {hidden_expert / len(data):.1%}")
    agent = BC(run.args, data.task, run.seeds, run.device)
    choice, draws = run.random.integers("minibatch", args.batch_size), agent.draws(run.random)
    update = run.compiled(lambda indices, draws: agent.update(data.gather(indices), draws))

    run.register(agent)
    for _ in run.steps(data.adapt(agent.policy)):
        run.log(update(data.choose(choice()), draws()))


if __name__ == "__main__":
    cli(main)
