r"""GCBC: goal-conditioned behaviour cloning, with temporal goal augmentation, many seeds at once.

Behaviour cloning with goals from the future of each transition, as OGBench's official code computes it (Park, Frans,
Eysenbach and Levine, arXiv 2410.20092): -log pi(a|s, g) for a Gaussian policy of standard deviation 1 and goals that
are uniform over the rest of the trajectory.

`--augment p` is the temporal goal augmentation of Ghugare, Geist, Berseth and Eysenbach, "Closing the Gap between TD
Learning and Supervised Learning" (arXiv 2401.11237): with probability p, a goal is replaced by a state from the future
of any trajectory that passes near it, where near means in the same group, of those that k-means finds (`--clusters`).
The groups are those of positions, the first two numbers of a state; the official code of its MLPs groups whole states,
in which velocities count at least as much as places (`--cluster-by state`), and augments nothing by default. All runs
share the groups, which k-means finds from at most 100,000 states, in 30 iterations that begin with the same random
numbers, so that intervals over seeds leave out the chance in them. Validation losses are those of goals that are not
replaced.

That paper has a Decision Transformer, which is not here, and RvS with positions as goals: each trajectory counts alike
however long it is (the official code takes them in shuffled passes, and here each is drawn by itself), all later states
alike and the last one too, and an MLP with tanh at its end is fitted by squared errors:

    python single_file/gcbc.py --dataset local/stitching-medium-v0 --anchors trajectories --goal position --loss mse \
      --hidden 1024 1024 --lr 1e-3 --batch-size 256 --max-norm 0.25 --augment 0.5 \
      --eval-every 40_000 --eval-episodes 10 --seeds 0:5

OGBench's form is the default:

    python single_file/gcbc.py --dataset local/pointmaze-medium-navigate-v0 --seeds 0:8

Results lie in runs/<dataset>/gcbc/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Fraction, Natural, NotNegative, Tunable, by_domain
from algos.cli import cli
from algos.errors import UserError
from algos.goal_conditioned import Actor, GoalArgs, goal_run, log_prob, validation_losses, watch_goals
from algos.goals import Clusters, Goals
from algos.nn import MLP
from algos.optim import Adam
from algos.random import Random
from envs import Task


@dataclass
class Args(GoalArgs):
    anchors: Literal["transitions", "trajectories"] = "transitions"
    """transitions: each has the same weight, as in OGBench; trajectories: each trajectory has the same weight, and all
    later states of it are equally likely goals, its last one too"""
    goal: Literal["state", "position"] = "state"
    """goals are whole states, or positions, which are the first two numbers of a state"""
    loss: Literal["likelihood", "mse"] = "likelihood"
    """likelihood: of a Gaussian; mse: squared error of an MLP with ReLU and tanh at its end"""
    augment: Tunable[Fraction] = 0.0
    """probability that a goal is replaced by a state from the future of any trajectory that passes near it"""
    clusters: Natural = by_domain(40, umaze=20, large=80, giant=160)
    """with --augment: number of groups of states that are near each other; 160 for giant mazes is a guess"""
    cluster_by: Literal["position", "state"] = "position"
    """with --augment: groups are of states with similar positions, or of similar whole states"""
    max_norm: NotNegative = 0.0
    """gradients of a run are scaled down to this norm; 0: they are not"""

    @property
    def augments(self) -> bool:
        """Whether any run replaces goals."""
        return self.augment > 0 or any(word.startswith(("augment=", "--augment=")) for word in self.vary)

    def check_ready(self) -> None:
        super().check_ready()
        if self.augments and not self.clusters:
            raise UserError("--clusters must be at least 1 where goals are replaced (--augment)")

    def without_effect(self) -> dict[str, str]:
        return {} if self.augments else dict.fromkeys(("clusters", "cluster_by"), "without --augment")


class Batch(NamedTuple):
    """State, action and goal of every run."""

    obs: Tensor  # [R, B, O]
    action: Tensor  # [R, B, A]
    goal: Tensor  # [R, B, G]
    augmented: Tensor | None = None  # [R, B], 1 where the goal was replaced


class Draws(NamedTuple):
    """Random numbers of a batch, uniform in [0, 1) but for the first."""

    row: Tensor  # [R, B] integers in [0, 2^63): the transition, or the trajectory
    step: Tensor  # [R, B]: the transition in the trajectory
    place: Tensor  # [R, B]: the goal in the rest of the trajectory
    augment: Tensor  # [R, B]: decides whether the goal is replaced
    neighbour: Tensor  # [R, B]: the state near the goal
    after: Tensor  # [R, B]: the goal in the future of that state


class Regressor(nn.Module):
    """The policy of RvS: state [R, B, O], goal [R, B, G] -> action [R, B, A] in [-1, 1]."""

    def __init__(self, runs: int, obs_size: int, goal_size: int, hidden: Sequence[int], act_size: int):
        super().__init__()
        self.net = MLP((runs,), obs_size + goal_size, hidden, act_size)

    def forward(self, obs: Tensor, goal: Tensor) -> Tensor:
        return torch.tanh(self.net(torch.cat([obs, goal], -1)))


class GCBC(Agent):
    """Actors of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.goal_size = task.obs_size if args.goal == "state" else 2
        kind = Actor if args.loss == "likelihood" else Regressor
        sizes = (task.obs_size, self.goal_size, args.hidden, task.act_size)
        self.actor = self.initialise("actor", kind(self.runs, *sizes))
        self.adam = Adam(self.actor.parameters(), lr=args.lr, max_norm=args.max_norm or None)

    @torch.no_grad()
    def policy(self, obs: Tensor, goal: Tensor) -> Tensor:
        """The mean action: obs [R, N, O], goal [R, N, G or more] -> [R, N, A]."""
        return self.actor(obs, goal[..., : self.goal_size])

    def rows(self, goals: Goals, clusters: Clusters | None, draws: Draws) -> tuple[Tensor, Tensor, Tensor | None]:
        """The rows of states and of their goals [R, B], and which goals were replaced [R, B]."""
        if self.args.anchors == "transitions":
            row = goals.anywhere(draws.row)
            goal = goals.uniform(row, draws.place)
        else:
            row = goals.in_trajectory(draws.row, draws.step)
            goal = goals.evenly(row, draws.place)
        if clusters is None:
            return row, goal, None
        elsewhere, replaced = clusters.elsewhere(goal, draws.neighbour, draws.after), draws.augment < self.args.augment
        return row, torch.where(replaced, elsewhere, goal), replaced.to(goals.data.obs.dtype)

    def batch(self, goals: Goals, clusters: Clusters | None, draws: Draws) -> Batch:
        """States, actions and goals."""
        row, goal, augmented = self.rows(goals, clusters, draws)
        obs, target = goals.states(row, goal)
        return Batch(obs, goals.actions(row), target[..., : self.goal_size], augmented)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """-log pi(a|s, g), or the mean squared error of actions: losses [R]."""
        action = self.actor(batch.obs, batch.goal)
        if self.args.loss == "mse":
            return {"actor_loss": (action - batch.action).square().mean((1, 2))}
        return {"actor_loss": -log_prob(action, batch.action).mean(-1)}

    def draws(self, random: Random, name: str = "") -> Callable[[], Draws]:
        """The random numbers of batches."""
        row = random.integers(f"{name}minibatch", self.args.batch_size)
        uniform = random.uniform(f"{name}goals", 5, self.args.batch_size)
        return lambda: Draws(row(), *uniform().unbind(1))

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One update; gives metrics [R]."""
        losses = self.losses(batch)
        self.adam.minimise(losses["actor_loss"])
        if batch.augmented is not None:
            losses["augmented"] = batch.augmented.mean(-1)
        return {name: loss.detach() for name, loss in losses.items()}


def main(args: Args) -> None:
    run, goals, held_out = goal_run(
        args,
        "gcbc",
        positions=args.goal == "position",
        places=args.augments and args.cluster_by == "position",
        final_states=args.anchors == "trajectories",
    )
    agent = GCBC(run.args, goals.data.task, run.seeds, run.device)
    clusters = None
    if args.augments:
        clusters = Clusters(goals, args.clusters, 2 if args.cluster_by == "position" else goals.data.obs_size)
        run.say(f"goals are replaced within {int((clusters.size > 0).sum())} groups of states")
    draws, validation_draws = agent.draws(run.random), agent.draws(run.random, "validation ")
    update = run.compiled(lambda draws: agent.update(agent.batch(goals, clusters, draws)))

    run.register(agent)
    watch_goals(run, agent, goals.data.env_id)
    for step in run.steps(goals.data.adapt(agent.policy)):
        run.log(update(draws()))
        if held_out and (step % args.log_every == 0 or step == args.total_steps):
            run.log(validation_losses(agent.losses, agent.batch(held_out, None, validation_draws())))


if __name__ == "__main__":
    cli(main)
