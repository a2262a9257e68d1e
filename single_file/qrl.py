"""QRL: quasimetric reinforcement learning, many seeds at once.

Wang, Torralba, Isola and Zhang, "Optimal Goal-Reaching Reinforcement Learning via Quasimetric Learning" (arXiv
2304.01203), as OGBench's official code computes it (Park, Frans, Eysenbach and Levine, arXiv 2410.20092): a quasimetric
d(s, g) on latents phi grows for random pairs while that of neighbouring states is held at 1 by a multiplier; a model of
the latents' dynamics tells the actor where actions lead, and the actor shortens the distance to the goal while it
imitates the data (DDPG+BC).

The details are those of the code: the quasimetric is IQE (`--quasimetric mrn` takes MRN); distances of random pairs
pass through 100 softplus(5 - d/100); there are neither targets nor rewards nor a discount, which only decides how far
geometric goals lie ahead where goals of the trajectory are asked for. `--actor-loss awr` weights the data's actions by
exp(alpha (d(s, g) - d(s', g))), at most 100, and needs no dynamics. Alpha and the actor's goals depend on the dataset,
as in the official commands.

    python single_file/qrl.py --dataset local/pointmaze-medium-navigate-v0 --seeds 0:8

Results lie in runs/<dataset>/qrl/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Count, NotNegative, Positive, Tunable, by_domain
from algos.cli import cli
from algos.errors import UserError
from algos.goal_conditioned import (
    Actor,
    Draws,
    Probabilities,
    Transitions,
    ValueArgs,
    advantage_weight,
    ddpg_loss,
    frozen,
    goal_run,
    log_prob,
    network,
    transition_draws,
    transitions,
    validation_losses,
    watch_goals,
)
from algos.goals import Goals
from algos.optim import Adam
from algos.random import Random
from envs import Task

INTERVALS = 8  # one component of IQE has as many
# weights of the official commands, by actor loss, by family and kind of dataset, or by family: the first key that fits
ALPHAS = {
    "awr": 3.0, "pointmaze": 0.0003, "antmaze": 0.003, "antmaze-explore": 0.001, "humanoidmaze": 0.001,
    "antsoccer": 0.003, "cube-noisy": 0.03, "scene-noisy": 0.03, "puzzle-noisy": 0.03,
}  # fmt: skip


@dataclass
class Args(ValueArgs):
    value_goals: Probabilities = (0.0, 0.0, 1.0)
    """goals to which distances are made long: probabilities of the current state, of a later one of the trajectory, and
    of a random one"""
    latent_size: Count = 512
    """size of phi: a multiple of 8 for IQE, and of 2 for MRN"""
    quasimetric: Literal["iqe", "mrn"] = "iqe"
    """iqe: lengths of unions of intervals; mrn: a symmetric and an asymmetric part"""
    eps: Tunable[Positive] = 0.05
    """squared violation of the constraint that the multiplier tolerates"""
    actor_loss: Literal["ddpg_bc", "awr"] = "ddpg_bc"
    """ddpg_bc: the actor shortens distances and imitates the data; awr: it imitates the data by weights"""
    alpha: Tunable[NotNegative] = by_domain(0.3, **ALPHAS)
    """weight of imitation, or with awr the inverse temperature of the weights"""

    def without_effect(self) -> dict[str, str]:
        idle = {} if self.geometric else {"discount": "where no goal lies at a geometric distance"}
        return super().without_effect() | idle

    def check_ready(self) -> None:
        super().check_ready()
        if self.latent_size % (parts := INTERVALS if self.quasimetric == "iqe" else 2):
            asked = f"--latent-size must be a multiple of {parts} for {self.quasimetric}"
            raise UserError(f"{asked}, got {self.latent_size}")


def iqe(x: Tensor, y: Tensor, kappa: Tensor) -> Tensor:
    """Interval quasimetric embedding: latents x and y [R, B, d] -> distances from x to y [R, B], with kappa [R, 1].

    A component of 8 dimensions gives the length of the union of its intervals [x_k, y_k], where x_k < y_k. The distance
    is kappa times the mean plus 1 - kappa times the maximum of all components. The dimensions of a component lie d / 8
    apart, where those of the official code are neighbours: the same but for the order of the latents' dimensions.
    """
    low, high = (latent.unflatten(-1, (INTERVALS, -1)) for latent in (x, y))
    length = (union_of_pairs if torch.compiler.is_compiling() else union)(low, high)
    return kappa * length.mean(-1) + (1 - kappa) * length.amax(-1)


def union(low: Tensor, high: Tensor) -> Tensor:
    """Lengths [R, B, C] of the unions of intervals from `low` to `high` [R, B, 8, C], those with low < high."""
    low, order = low.sort(-2)
    high = torch.maximum(high.gather(-2, order), low)
    covered = torch.cat([low[..., :1, :], high.cummax(-2).values[..., :-1, :]], -2)  # how far earlier intervals reach
    return (high - torch.maximum(low, covered)).relu().sum(-2)


def union_of_pairs(low: Tensor, high: Tensor) -> Tensor:
    """The same by comparing all pairs of intervals, which tells which bounds are those of the union.

    Compiled, it takes a tenth of the time of sorting, and twice as long otherwise. Where several intervals have the
    same bound, each gets an equal part of its gradient.
    """
    with torch.no_grad():
        empty = high <= low
        start, end = torch.where(empty, inf, low), torch.where(empty, -inf, high)
        start_i, end_i, start_j, end_j = start.unsqueeze(-2), end.unsqueeze(-2), start.unsqueeze(-3), end.unsqueeze(-3)
        first = torch.where(end_i >= start_j, start_i, inf).amin(-3)  # the least start among those that reach start j
        last = torch.where(start_i <= end_j, end_i, -inf).amax(-3)
        starts = torch.where(empty | (first < start), 0.0, 1 / (start_i == start_j).to(low.dtype).sum(-3))
        ends = torch.where(empty | (last > end), 0.0, 1 / (end_i == end_j).to(low.dtype).sum(-3))
    return (ends * high - starts * low).sum(-2)


def mrn(x: Tensor, y: Tensor) -> Tensor:
    """Metric residual network: latents x and y [R, B, d] -> distances from x to y [R, B].

    The first half of the latent gives a Euclidean distance, the second half the greatest positive difference.
    """
    (sym_x, asym_x), (sym_y, asym_y) = x.chunk(2, -1), y.chunk(2, -1)
    return (sym_x - sym_y).square().sum(-1).clamp(min=1e-12).sqrt() + (asym_x - asym_y).amax(-1).relu()


class Distance(nn.Module):
    """The encoder phi and the quasimetric on its latents, of R runs."""

    def __init__(self, runs: int, size: int, hidden: Sequence[int], latent_size: int, quasimetric: str):
        super().__init__()
        self.phi = network((runs,), size, hidden, latent_size)
        self.raw_kappa = nn.Parameter(torch.zeros(runs, 1)) if quasimetric == "iqe" else None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances [R, B] from latents x to latents y [R, B, d]."""
        return mrn(x, y) if self.raw_kappa is None else iqe(x, y, self.raw_kappa.sigmoid())


class Dynamics(nn.Module):
    """The model of the latents: phi(s) [R, B, d], action [R, B, A] -> the latent of the next state [R, B, d]."""

    def __init__(self, runs: int, latent_size: int, act_size: int, hidden: Sequence[int]):
        super().__init__()
        self.net = network((runs,), latent_size + act_size, hidden, latent_size)

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        return latent + self.net(torch.cat([latent, action], -1))


class QRL(Agent):
    """Actor, distance, multiplier and, for DDPG+BC, dynamics of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        size, latent = task.obs_size, args.latent_size
        self.distance = self.initialise("distance", Distance(self.runs, size, args.hidden, latent, args.quasimetric))
        self.actor = self.initialise("actor", Actor(self.runs, size, size, args.hidden, task.act_size))
        self.log_multiplier = nn.Parameter(torch.zeros(self.runs, device=self.device))
        nets: list[nn.Module] = [self.distance, self.actor]
        if args.actor_loss == "ddpg_bc":
            self.dynamics = self.initialise("dynamics", Dynamics(self.runs, latent, task.act_size, args.hidden))
            nets.append(self.dynamics)
        self.adam = Adam([*(p for net in nets for p in net.parameters()), self.log_multiplier], lr=args.lr)

    @torch.no_grad()
    def policy(self, obs: Tensor, goal: Tensor) -> Tensor:
        """The mean action: obs and goal [R, N, O] -> [R, N, A]."""
        return self.actor(obs, goal)

    def value_of(self, obs: Tensor, goal: Tensor) -> Tensor:
        """-d(s, g): obs and goal [R, N, O] -> [R, N]."""
        return -self.distance(self.distance.phi(obs), self.distance.phi(goal))

    def distance_loss(self, far: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        """Distances of random pairs `far` and of neighbours `near` [R, B]: the loss [R] and the violation [R].

        100 softplus(5 - far/100) + lambda v + lambda (eps - v), where the violation v is the mean of
        max(near - 1, 0)^2. In the second term lambda is a constant, and in the third v is, whose gradient raises lambda
        while v is above eps. The value of the sum is thus that of the first term plus lambda eps.
        """
        violation = (near - 1).relu().square().mean(-1)
        multiplier = self.log_multiplier.exp()
        loss = 100 * F.softplus(5 - far / 100).mean(-1) + multiplier.detach() * violation
        return loss + multiplier * (self.args.eps - violation.detach()), violation.detach()

    def actor_loss(self, batch: Transitions, latent: Tensor, following: Tensor) -> Tensor:
        """DDPG+BC with Q = -d(model of s and a', g), or AWR with the advantage d(s, g) - d(s', g): losses [R].

        The latents of the states and the next states [R, B, d] are constants.
        """
        mean = self.actor(batch.obs, batch.goal)
        imitation = log_prob(mean, batch.action)
        with torch.no_grad():
            goal = self.distance.phi(batch.goal)
        if self.args.actor_loss == "ddpg_bc":
            reached = frozen(self.dynamics)(latent, mean.clamp(-1, 1))
            return ddpg_loss(-frozen(self.distance)(reached, goal)) - self.args.alpha * imitation.mean(-1)
        with torch.no_grad():
            closer = self.distance(latent, goal) - self.distance(following, goal)
        return -(advantage_weight(closer, self.args.alpha) * imitation).mean(-1)

    def losses(self, batch: Transitions) -> dict[str, Tensor]:
        """The losses [R] by name, and the violation of the constraint."""
        states = torch.cat([batch.obs, batch.next_obs, batch.value_goal], 1)
        latent, following, goal = self.distance.phi(states).chunk(3, 1)
        guess = self.dynamics(latent, batch.action) if self.args.actor_loss == "ddpg_bc" else None
        starts = [latent, latent] if guess is None else [latent, latent, following, guess]
        ends = [goal, following] if guess is None else [goal, following, guess, following]
        far, near, *errors = self.distance(torch.cat(starts, 1), torch.cat(ends, 1)).chunk(len(starts), 1)
        distance_loss, violation = self.distance_loss(far, near)
        losses = {"distance_loss": distance_loss, "violation": violation}
        if errors:
            losses["dynamics_loss"] = (errors[0] + errors[1]).mean(-1) / 2
        return losses | {"actor_loss": self.actor_loss(batch, latent.detach(), following.detach())}

    def batch(self, goals: Goals, draws: Draws) -> Transitions:
        """Transitions with goals."""
        return transitions(goals, self.args, draws)

    def draws(self, random: Random, name: str = "") -> Callable[[], Draws]:
        """The random numbers of batches."""
        return transition_draws(random, self.args.batch_size, name)

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """One update of all networks and of the multiplier; gives metrics [R]."""
        losses = self.losses(batch)
        total = losses["distance_loss"] + losses["actor_loss"]
        self.adam.minimise(total + losses["dynamics_loss"] if "dynamics_loss" in losses else total)
        losses["multiplier"] = self.log_multiplier.exp()
        return {name: loss.detach() for name, loss in losses.items()}


def main(args: Args) -> None:
    run, goals, held_out = goal_run(args, "qrl")
    agent = QRL(run.args, goals.data.task, run.seeds, run.device)
    draws, validation_draws = agent.draws(run.random), agent.draws(run.random, "validation ")
    update = run.compiled(lambda draws: agent.update(agent.batch(goals, draws)))

    run.register(agent)
    watch_goals(run, agent, goals.data.env_id)
    for step in run.steps(goals.data.adapt(agent.policy)):
        run.log(update(draws()))
        if held_out and (step % args.log_every == 0 or step == args.total_steps):
            run.log(validation_losses(agent.losses, agent.batch(held_out, validation_draws())))


if __name__ == "__main__":
    cli(main)
