"""OTA: option-aware temporally abstracted values, many seeds at once.

Ahn and others, "Option-aware Temporally Abstracted Value for Offline Goal-Conditioned Reinforcement Learning" (arXiv
2505.12737), as its official code computes it: HIQL (see single_file/hiql.py) with a second twin value, from which the
high policy's weights come. This high value learns from the state n steps ahead, with one reward and one discount for
the whole option, so that goals are n times closer for it. An option ends earlier at a goal that was drawn as a later
state of the trajectory, and at the end of the trajectory, but not at a random goal.

The details are those of the code: both values share phi, and both train it; the reward of an option depends on whether
it ends at the goal, while the low value's depends on where the step begins; where the goal would be the current state,
it is the end of the option instead; the distance of geometric goals is counted in steps, with the same discount as for
the low value. All else is HIQL's.

    python single_file/ota.py --dataset local/pointmaze-medium-navigate-v0 --seeds 0:8

Results lie in runs/<dataset>/ota/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Count, Fraction, Positive, PositiveFraction, Tunable, by_domain
from algos.cli import cli
from algos.errors import UserError, warn
from algos.goal_conditioned import (
    Actor,
    Representation,
    TwinValue,
    ValueArgs,
    advantage_weight,
    goal_run,
    log_prob,
    sphere,
    twin_value_loss,
    validation_losses,
    watch_goals,
)
from algos.goals import GoalDraws, Goals, goal_draws
from algos.optim import Adam, Target
from algos.random import Random
from envs import Task


@dataclass
class Args(ValueArgs):
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target values"""
    expectile: Tunable[Fraction] = 0.7
    """tau of the paper: 0.5 makes V the value of the data's behaviour, 1 that of the best outcomes in the data"""
    subgoal_steps: Count = by_domain(25, humanoidmaze=100, cube=10, scene=10, puzzle=10)
    """k: how many steps ahead the high policy's subgoals lie"""
    option_steps: Count = 5
    """n: steps of one option, over which the high value looks ahead; 5 is the default of the official code, and our
    advice is about a fifth of k"""
    high_alpha: Tunable[Positive] = by_domain(3.0, explore=10.0)
    """inverse temperature of the high policy's weights"""
    low_alpha: Tunable[Positive] = by_domain(3.0, explore=10.0)
    """inverse temperature of the low policy's weights"""
    representation_size: Count = 10
    """size of phi"""

    def check_task(self) -> None:
        super().check_task()
        if self.actor_goals[0]:
            raise UserError("--actor-goals must begin with 0: the high policy has no share of current states as goals")


class Goal(NamedTuple):
    """The goal of a value in each transition."""

    obs: Tensor  # [R, B, O]
    reward: Tensor  # [R, B], 0 where the goal is reached, otherwise -1
    mask: Tensor  # [R, B], 0 where the goal is reached, otherwise 1


class Batch(NamedTuple):
    """Transitions of every run, each with a goal of the values and subgoals."""

    obs: Tensor  # [R, B, O]
    action: Tensor  # [R, B, A]
    next_obs: Tensor  # [R, B, O]
    value_goal: Goal  # reached if the state is the goal
    option_end: Tensor  # [R, B, O], the state n steps ahead, or an earlier one where the option ends
    high_value_goal: Goal  # reached if the option's end is the goal
    subgoal: Tensor  # [R, B, O], the state k steps ahead, for the low policy
    goal: Tensor  # [R, B, O], of the high policy
    high_target: Tensor  # [R, B, O], the state k steps ahead on the way to the high policy's goal


class Draws(NamedTuple):
    """Random numbers of a batch."""

    row: Tensor  # [R, B] integers in [0, 2^63)
    value: GoalDraws
    high_value: GoalDraws
    high: GoalDraws


class OTA(Agent):
    """Representation, twin values of both levels, and high and low policy of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        obs, rep = task.obs_size, args.representation_size
        self.phi = self.initialise("phi", Representation(self.runs, obs, args.hidden, rep))
        self.value = self.initialise("value", TwinValue(self.runs, obs + rep, args.hidden))
        self.high_value = self.initialise("high value", TwinValue(self.runs, obs + rep, args.hidden))
        self.low = self.initialise("low", Actor(self.runs, obs, rep, args.hidden, task.act_size))
        self.high = self.initialise("high", Actor(self.runs, obs, obs, args.hidden, rep))
        self.adam = Adam(self.parameters(), lr=args.lr)
        self.target_value = Target(self.value, args.tau)
        self.target_high_value = Target(self.high_value, args.tau)

    @torch.no_grad()
    def policy(self, obs: Tensor, goal: Tensor) -> Tensor:
        """The mean action of the low policy for the high policy's mean: obs and goal [R, N, O] -> [R, N, A]."""
        return self.low(obs, sphere(self.high(obs, goal)))

    def value_of(self, obs: Tensor, goal: Tensor) -> Tensor:
        """The value behind the high policy, the mean of the twins: obs and goal [R, N, O] -> [R, N]."""
        return self.high_value(obs, self.phi(obs, goal)).mean(1)

    def low_value_of(self, obs: Tensor, goal: Tensor) -> Tensor:
        """The value behind the low policy, the mean of the twins: obs and goal [R, N, O] -> [R, N]."""
        return self.value(obs, self.phi(obs, goal)).mean(1)

    def option(self, goals: Goals, row: Tensor, draws: GoalDraws) -> tuple[Tensor, Tensor]:
        """The ends of options and the goals of the high value, as rows [R, B]."""
        args = self.args
        mix = args.value_mix
        later = goals.later(row, draws.place, mix.geometric, args.discount)
        ahead = goals.ahead(row, args.option_steps)
        in_trajectory = draws.source < mix.trajectory_share
        end = torch.where(in_trajectory, torch.minimum(ahead, later), ahead)
        goal = torch.where(in_trajectory, later, goals.anywhere(draws.random))
        return end, torch.where(draws.current < mix.current, end, goal)

    def batch(self, goals: Goals, draws: Draws) -> Batch:
        """Transitions with goals and subgoals; until they are looked up, all are rows of the data [R, B]."""
        args = self.args
        row = goals.anywhere(draws.row)
        value_row = goals.mixed(row, args.value_mix, draws.value, args.discount)
        end_row, high_value_row = self.option(goals, row, draws.high_value)
        ahead_row = goals.ahead(row, args.subgoal_steps)
        later_row = goals.later(row, draws.high.place, args.actor_mix.geometric, args.discount)
        random = draws.high.source < args.actor_mix.random
        goal_row = torch.where(random, goals.anywhere(draws.high.random), later_row)
        target_row = torch.where(random, ahead_row, torch.minimum(ahead_row, later_row))
        obs, next_obs, value_goal, option_end, high_value_goal, subgoal, goal, high_target = goals.states(
            row, row + 1, value_row, end_row, high_value_row, ahead_row, goal_row, target_row
        )
        mask, high_mask = (value_row != row).to(obs.dtype), (high_value_row != end_row).to(obs.dtype)
        return Batch(
            obs,
            goals.actions(row),
            next_obs,
            Goal(value_goal, -mask, mask),
            option_end,
            Goal(high_value_goal, -high_mask, high_mask),
            subgoal,
            goal,
            high_target,
        )

    def value_loss(self, value: nn.Module, target: nn.Module, obs: Tensor, next_obs: Tensor, goal: Goal) -> Tensor:
        """Each twin follows an expectile of its own target's r + discount V'(s', phi(s', g)): losses [R]."""
        rep = self.phi(obs, goal.obs)
        with torch.no_grad():
            next_value = target(next_obs, self.phi(next_obs, goal.obs))
            old_value = target(obs, rep)
        backup = goal.reward[:, None] + (self.args.discount * goal.mask)[:, None] * next_value
        return twin_value_loss(value(obs, rep), backup, old_value, self.args.expectile)

    def gain(self, value: nn.Module, before: Tensor, after: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """V(after, g) - V(before, g), means of the twins [R, B], and phi(before, g): states and goals [R, B, O]."""
        states, goals = torch.cat([after, before], 1), goal.repeat(1, 2, 1)
        with torch.no_grad():
            rep = self.phi(states, goals)
            later, now = value(states, rep).mean(1).chunk(2, -1)
        return later - now, rep.chunk(2, 1)[1]

    def low_loss(self, batch: Batch) -> Tensor:
        """-w log pi(a|s, phi(s, subgoal)), with the gain of one step towards the subgoal: losses [R]."""
        gain, rep = self.gain(self.value, batch.obs, batch.next_obs, batch.subgoal)
        weight = advantage_weight(gain, self.args.low_alpha)
        return -(weight * log_prob(self.low(batch.obs, rep), batch.action)).mean(-1)

    def high_loss(self, batch: Batch) -> Tensor:
        """-w log pi(phi(s, target)|s, g), with the gain of the way to the target: losses [R]."""
        gain, _ = self.gain(self.high_value, batch.obs, batch.high_target, batch.goal)
        weight = advantage_weight(gain, self.args.high_alpha)
        with torch.no_grad():
            rep = self.phi(batch.obs, batch.high_target)
        return -(weight * log_prob(self.high(batch.obs, batch.goal), rep)).mean(-1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The losses [R] by name."""
        value, target = self.high_value, self.target_high_value
        return {
            "value_loss": self.value_loss(self.value, self.target_value, batch.obs, batch.next_obs, batch.value_goal),
            "high_value_loss": self.value_loss(value, target, batch.obs, batch.option_end, batch.high_value_goal),
            "low_loss": self.low_loss(batch),
            "high_loss": self.high_loss(batch),
        }

    def draws(self, random: Random, name: str = "") -> Callable[[], Draws]:
        """The random numbers of batches."""
        row = random.integers(f"{name}minibatch", self.args.batch_size)
        kinds = ("value", "high value", "high")
        value, high_value, high = (goal_draws(random, name + kind, self.args.batch_size) for kind in kinds)
        return lambda: Draws(row(), value(), high_value(), high())

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One update of all networks, and of the targets towards the values before it; gives metrics [R]."""
        losses = self.losses(batch)
        gradients = self.adam.gradients(torch.stack(list(losses.values())).sum(0))
        self.target_value.update()
        self.target_high_value.update()
        self.adam.step(gradients)
        return {name: loss.detach() for name, loss in losses.items()}


def main(args: Args) -> None:
    if args.option_steps > args.subgoal_steps:
        warning = f"--option-steps {args.option_steps} is more than --subgoal-steps {args.subgoal_steps}"
        warn(f"{warning}, so that one option spans the high policy's advantage")
    run, goals, held_out = goal_run(args, "ota")
    agent = OTA(run.args, goals.data.task, run.seeds, run.device)
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
