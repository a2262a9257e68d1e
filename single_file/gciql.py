"""GCIQL: goal-conditioned implicit Q-learning, many seeds at once.

Kostrikov, Nair and Levine's IQL (arXiv 2110.06169) with goals, as OGBench's official code computes it (Park, Frans,
Eysenbach and Levine, arXiv 2410.20092): V(s, g) follows an upper expectile of target critics, the twin critics follow
r + discount V(s', g), and the actor climbs the critics while it imitates the data (DDPG+BC).

The details are those of the code: rewards are -1 until the state is the goal; the actor's action is its mean, clipped
to [-1, 1]; the critics' values of it are divided by their mean magnitude; the targets move towards the critics as they
were before the step. `--actor-loss awr` weights the data's actions by exp(alpha (Q - V)), at most 100, instead. Alpha,
the discount and the actor's goals depend on the dataset, as in the official commands.

    python single_file/gciql.py --dataset local/pointmaze-medium-navigate-v0 --seeds 0:8

Results lie in runs/<dataset>/gciql/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Fraction, NotNegative, PositiveFraction, Tunable, by_domain
from algos.cli import cli
from algos.goal_conditioned import (
    Actor,
    Draws,
    Transitions,
    TwinValue,
    ValueArgs,
    advantage_weight,
    ddpg_loss,
    expectile_loss,
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
from algos.optim import Adam, Target
from algos.random import Random
from envs import Task

# weights of the official commands, by actor loss, by family and kind of dataset, or by family: the first key that fits
ALPHAS = {
    "awr": 3.0, "pointmaze": 0.003, "antmaze": 0.3, "antmaze-explore": 0.01, "humanoidmaze": 0.1, "antsoccer": 0.1,
    "cube-noisy": 0.03, "scene-noisy": 0.03, "puzzle-noisy": 0.03,
}  # fmt: skip


@dataclass
class Args(ValueArgs):
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target critics"""
    expectile: Tunable[Fraction] = 0.9
    """tau of the paper: 0.5 makes V the mean of Q over the data's actions, 1 its maximum"""
    actor_loss: Literal["ddpg_bc", "awr"] = "ddpg_bc"
    """ddpg_bc: the actor climbs the critics and imitates the data; awr: it imitates the data by weights"""
    alpha: Tunable[NotNegative] = by_domain(1.0, **ALPHAS)
    """weight of imitation, or with awr the inverse temperature of the weights"""


class Value(nn.Module):
    """State values: states and goals [R, B, O] -> [R, B]."""

    def __init__(self, runs: int, task: Task, hidden: Sequence[int]):
        super().__init__()
        self.net = network((runs,), 2 * task.obs_size, hidden, 1)

    def forward(self, obs: Tensor, goal: Tensor) -> Tensor:
        return self.net(torch.cat([obs, goal], -1)).squeeze(-1)


class GCIQL(Agent):
    """Actor, twin critics and value of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        size = task.obs_size
        self.critic = self.initialise("critic", TwinValue(self.runs, 2 * size + task.act_size, args.hidden))
        self.value = self.initialise("value", Value(self.runs, task, args.hidden))
        self.actor = self.initialise("actor", Actor(self.runs, size, size, args.hidden, task.act_size))
        self.adam = Adam(self.parameters(), lr=args.lr)
        self.target_critic = Target(self.critic, args.tau)

    @torch.no_grad()
    def policy(self, obs: Tensor, goal: Tensor) -> Tensor:
        """The mean action: obs and goal [R, N, O] -> [R, N, A]."""
        return self.actor(obs, goal)

    def value_of(self, obs: Tensor, goal: Tensor) -> Tensor:
        """V(s, g): obs and goal [R, N, O] -> [R, N]."""
        return self.value(obs, goal)

    def value_loss(self, batch: Transitions) -> Tensor:
        """V follows an expectile of the smaller target critic: losses [R]."""
        with torch.no_grad():
            q = self.target_critic(batch.obs, batch.value_goal, batch.action).amin(1)
        advantage = q - self.value(batch.obs, batch.value_goal)
        return expectile_loss(advantage, advantage, self.args.expectile).mean(-1)

    def critic_loss(self, batch: Transitions) -> Tensor:
        """Sum over the twins of the mean squared error to r + discount V(s', g): losses [R]."""
        with torch.no_grad():
            target = batch.reward + self.args.discount * batch.mask * self.value(batch.next_obs, batch.value_goal)
        q = self.critic(batch.obs, batch.value_goal, batch.action)
        return (q - target[:, None]).square().mean(-1).sum(-1)

    def actor_loss(self, batch: Transitions) -> Tensor:
        """DDPG+BC: -Q(s, a', g) in units of its magnitude - alpha log pi(a|s, g); or AWR: losses [R]."""
        mean = self.actor(batch.obs, batch.goal)
        imitation = log_prob(mean, batch.action)
        if self.args.actor_loss == "ddpg_bc":
            q = frozen(self.critic)(batch.obs, batch.goal, mean.clamp(-1, 1)).amin(1)
            return ddpg_loss(q) - self.args.alpha * imitation.mean(-1)
        with torch.no_grad():
            q = self.critic(batch.obs, batch.goal, batch.action).amin(1)
            weight = advantage_weight(q - self.value(batch.obs, batch.goal), self.args.alpha)
        return -(weight * imitation).mean(-1)

    def losses(self, batch: Transitions) -> dict[str, Tensor]:
        """The losses [R] by name."""
        return {
            "value_loss": self.value_loss(batch),
            "critic_loss": self.critic_loss(batch),
            "actor_loss": self.actor_loss(batch),
        }

    def batch(self, goals: Goals, draws: Draws) -> Transitions:
        """Transitions with goals."""
        return transitions(goals, self.args, draws)

    def draws(self, random: Random, name: str = "") -> Callable[[], Draws]:
        """The random numbers of batches."""
        return transition_draws(random, self.args.batch_size, name)

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """One update of all networks, and of the targets towards the critics before it; gives metrics [R]."""
        losses = self.losses(batch)
        gradients = self.adam.gradients(losses["value_loss"] + losses["critic_loss"] + losses["actor_loss"])
        self.target_critic.update()
        self.adam.step(gradients)
        return {name: loss.detach() for name, loss in losses.items()}


def main(args: Args) -> None:
    run, goals, held_out = goal_run(args, "gciql")
    agent = GCIQL(run.args, goals.data.task, run.seeds, run.device)
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
