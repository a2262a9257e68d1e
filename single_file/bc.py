"""BC: behaviour cloning, many seeds at once; with `--top-fraction 0.1` the baseline called 10%BC.

The actor of iql.py maximises the likelihood of the data's actions: it is what the implicit methods are with a
temperature of 0. `--top-fraction` keeps the trajectories of highest return only, whole, until they make up that share
of all transitions. CORL's BC differs: a deterministic actor, squared errors, standardised observations
(--standardise), a constant learning rate (--decay-steps 0).

    python single_file/bc.py --dataset local/hopper-medium-replay-v0 --seeds 0:10
    python single_file/bc.py --dataset local/hopper-medium-replay-v0 --top-fraction 0.1 --variant top10
    python single_file/bc.py --dataset local/hopper-random-v0 --expert-dataset local/hopper-expert-v0

Results lie in runs/<dataset>/bc/<variant>/, one row per seed and evaluation episode in eval.parquet.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algos.arguments import AUTO, AutoNatural, AutoShare, Count, Rate, Step, Widths
from algos.data import Dataset
from algos.errors import UserError
from algos.nn import MLP, Orthogonal
from algos.offline import MixedArgs, Rewards, begin
from algos.optim import Adam
from algos.run import Run, cli

# for arguments that are not given
DEFAULTS = {"dropout": 0.0}
DOMAINS = {"kitchen": {"dropout": 0.1}, "adroit": {"dropout": 0.1}}


@dataclass
class Args(MixedArgs):
    top_fraction: Step = 1.0
    """share of transitions that is kept, those of the trajectories with the highest returns"""
    batch_size: Count = 256
    """transitions per update and seed"""
    lr: Rate = 3e-4
    """learning rate"""
    dropout: AutoShare = AUTO
    """of the hidden layers while they learn; by default none, kitchen and adroit 0.1"""
    hidden: Widths = (256, 256)
    """widths of hidden layers"""
    decay_steps: AutoNatural = AUTO
    """updates within which the learning rate falls to 0, along a cosine; by default all; 0: it does not"""


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


class BC:
    """Actors of R runs."""

    def __init__(self, args: Args, run: Run, data: Dataset):
        self.args, self.data = args, data
        self.actor = run.initialise("actor", Actor(run.runs, data, args.hidden))
        self.actor_adam = Adam(self.actor.parameters(), lr=args.lr, decay_steps=args.decay_steps)

    def actor_loss(self, obs: Tensor, action: Tensor, factors: list[Tensor] | None = None) -> Tensor:
        """-log pi(a|s): losses [R]."""
        return -self.actor.log_prob(obs, action, factors).mean(-1)

    def update(self, integers: Tensor, uniform: Tensor | None = None) -> dict[str, Tensor]:
        """One update from the minibatch of integers [R, B]; uniform [R, layers, B, H] in [0, 1) for dropout."""
        batch = self.data.gather(self.data.choose(integers))
        rate = self.args.dropout
        factors = None if uniform is None else [(u >= rate) / (1 - rate) for u in uniform.unbind(1)]
        actor_loss = self.actor_loss(batch.obs, batch.action, factors)
        self.actor_adam.minimise(actor_loss)
        return {"actor_loss": actor_loss.detach()}


def main(args: Args) -> None:
    settings = args.fill(DOMAINS.get(args.domain, {}), DEFAULTS, {"decay_steps": args.total_steps})
    more, hidden = None, 0
    if args.expert_dataset:
        expert = args.load_expert()
        hidden = expert.transitions_of(args.expert_trajectories)
        if not hidden:
            raise UserError(f"--expert-trajectories: {expert.name} has fewer than {args.expert_trajectories:,}")
        more = expert.first(hidden)
    reward: Rewards | None = "none" if args.top_fraction < 1 else None
    run, data = begin(args, "bc", reward, settings=settings, more=more, hidden_expert=hidden)
    if hidden:
        run.say(f"{hidden:,} transitions of the data are the expert's, {hidden / len(data):.1%}")
    if args.top_fraction < 1:
        data = data.best(args.top_fraction)
        run.say(f"{len(data):,} transitions are kept, those of the trajectories with the highest returns")
    args, agent = settings, BC(settings, run, data)
    update = run.fast(agent.update)

    choice = run.stream("minibatch", args.batch_size, kind="integer")
    widest, dropped = max(args.hidden), args.dropout > 0
    uniform = run.stream("dropout", len(args.hidden), args.batch_size, widest, kind="uniform", used=dropped)
    for _ in run.steps(data.adapt(agent.actor), agent=agent):
        run.log(update(choice(), uniform()))


if __name__ == "__main__":
    cli(main)
