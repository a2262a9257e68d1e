"""GCIVL: goal-conditioned implicit value learning, many seeds at once.

Park, Frans, Eysenbach and Levine, "OGBench: Benchmarking Offline Goal-Conditioned RL" (arXiv 2410.20092), as its
official code computes it: twin values V(s, g) follow an upper expectile of r + discount V(s', g) without any action,
and the actor imitates the data's actions, weighted by exp(alpha (V(s', g) - V(s, g))), at most 100.

The details are those of the code: rewards are -1 until the state is the goal; the expectile's weight comes from the
target networks alone, of which the smaller one at s' makes the target, and their mean at s is subtracted; each value
follows its own target network; the actor's advantage has neither reward nor discount; the targets move towards the
values as they were before the step. The discount and the actor's goals depend on the dataset, as in the official
commands, where alpha is 10 for all.

    python single_file/gcivl.py --dataset local/pointmaze-medium-navigate-v0 --seeds 0:8

Results lie in runs/<dataset>/gcivl/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algos.agent import Agent
from algos.arguments import Fraction, Positive, PositiveFraction, Tunable
from algos.cli import cli
from algos.goal_conditioned import (
    Actor,
    Draws,
    Transitions,
    TwinValue,
    ValueArgs,
    advantage_weight,
    goal_run,
    log_prob,
    transition_draws,
    transitions,
    twin_value_loss,
    validation_losses,
    watch_goals,
)
from algos.goals import Goals
from algos.optim import Adam, Target
from algos.random import Random
from envs import Task


@dataclass
class Args(ValueArgs):
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target values"""
    expectile: Tunable[Fraction] = 0.9
    """tau of the paper: 0.5 makes V the value of the data's behaviour, 1 that of the best outcomes in the data"""
    alpha: Tunable[Positive] = 10.0
    """inverse temperature of the actor's weights"""


class GCIVL(Agent):
    """Actor and twin values of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        size = task.obs_size
        self.value = self.initialise("value", TwinValue(self.runs, 2 * size, args.hidden))
        self.actor = self.initialise("actor", Actor(self.runs, size, size, args.hidden, task.act_size))
        self.adam = Adam(self.parameters(), lr=args.lr)
        self.target_value = Target(self.value, args.tau)

    @torch.no_grad()
    def policy(self, obs: Tensor, goal: Tensor) -> Tensor:
        """The mean action: obs and goal [R, N, O] -> [R, N, A]."""
        return self.actor(obs, goal)

    def value_of(self, obs: Tensor, goal: Tensor) -> Tensor:
        """V(s, g), the mean of the twins: obs and goal [R, N, O] -> [R, N]."""
        return self.value(obs, goal).mean(1)

    def value_loss(self, batch: Transitions) -> Tensor:
        """Each twin follows an expectile of its own target's r + discount V'(s', g): losses [R]."""
        states, goals = torch.cat([batch.next_obs, batch.obs], 1), batch.value_goal.repeat(1, 2, 1)
        with torch.no_grad():
            next_value, old_value = self.target_value(states, goals).chunk(2, -1)
        backup = batch.reward[:, None] + (self.args.discount * batch.mask)[:, None] * next_value
        return twin_value_loss(self.value(batch.obs, batch.value_goal), backup, old_value, self.args.expectile)

    def actor_loss(self, batch: Transitions) -> Tensor:
        """-w log pi(a|s, g) with the weight w of V(s', g) - V(s, g): losses [R]."""
        states, goals = torch.cat([batch.next_obs, batch.obs], 1), batch.goal.repeat(1, 2, 1)
        with torch.no_grad():
            next_value, value = self.value(states, goals).mean(1).chunk(2, -1)
            weight = advantage_weight(next_value - value, self.args.alpha)
        return -(weight * log_prob(self.actor(batch.obs, batch.goal), batch.action)).mean(-1)

    def losses(self, batch: Transitions) -> dict[str, Tensor]:
        """The losses [R] by name."""
        return {"value_loss": self.value_loss(batch), "actor_loss": self.actor_loss(batch)}

    def batch(self, goals: Goals, draws: Draws) -> Transitions:
        """Transitions with goals."""
        return transitions(goals, self.args, draws)

    def draws(self, random: Random, name: str = "") -> Callable[[], Draws]:
        """The random numbers of batches."""
        return transition_draws(random, self.args.batch_size, name)

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """One update of all networks, and of the targets towards the values before it; gives metrics [R]."""
        losses = self.losses(batch)
        gradients = self.adam.gradients(losses["value_loss"] + losses["actor_loss"])
        self.target_value.update()
        self.adam.step(gradients)
        return {name: loss.detach() for name, loss in losses.items()}


def main(args: Args) -> None:
    run, goals, held_out = goal_run(args, "gcivl")
    agent = GCIVL(run.args, goals.data.task, run.seeds, run.device)
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
