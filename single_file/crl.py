"""CRL: contrastive reinforcement learning, many seeds at once.

Eysenbach, Zhang, Levine and Salakhutdinov, "Contrastive Learning as Goal-Conditioned Reinforcement Learning" (arXiv
2206.07568), as OGBench's official code computes it (Park, Frans, Eysenbach and Levine, arXiv 2410.20092): twin critics
phi(s, a)·psi(g)/sqrt(d) learn to tell the goals that a state and action led to from those of others in the batch, and
the actor climbs the critics while it imitates the data (DDPG+BC).

The details are those of the code: goals of the critics come from the future of a transition at a geometric distance;
the critic's output, which the actor climbs, is the logit of the classifier and not its exponential; there are neither
targets nor rewards; the discount only decides how far goals lie ahead. `--actor-loss awr` learns a value of the same
form, by networks of its own, in the same way, and weights the data's actions by exp(alpha (Q - V)), at most 100. Alpha,
the discount and the actor's goals depend on the dataset, as in the official commands.

    python single_file/crl.py --dataset local/pointmaze-medium-navigate-v0 --seeds 0:8

Results lie in runs/<dataset>/crl/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Count, NotNegative, Tunable, by_domain
from algos.cli import cli
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
from algos.nn import Lead
from algos.optim import Adam
from algos.random import Random
from envs import Task

# weights of the official commands, by actor loss, by family and kind of dataset, or by family: the first key that fits
ALPHAS = {
    "awr": 3.0, "pointmaze": 0.03, "antmaze": 0.1, "antmaze-explore": 0.003, "humanoidmaze": 0.1, "antsoccer": 0.3,
    "cube-noisy": 0.1, "scene-noisy": 0.1, "puzzle-noisy": 0.1,
}  # fmt: skip


@dataclass
class Args(ValueArgs):
    value_goals: Probabilities = (0.0, 1.0, 0.0)
    """goals of the critics: probabilities of the current state, a later state of the trajectory, and a random state"""
    latent_size: Count = 512
    """d, the size of phi and psi"""
    actor_loss: Literal["ddpg_bc", "awr"] = "ddpg_bc"
    """ddpg_bc: the actor climbs the critics and imitates the data; awr: it imitates the data by weights"""
    alpha: Tunable[NotNegative] = by_domain(3.0, **ALPHAS)
    """weight of imitation, or with awr the inverse temperature of the weights"""

    def without_effect(self) -> dict[str, str]:
        idle = {} if self.geometric else {"discount": "where no goal lies at a geometric distance"}
        return super().without_effect() | idle


class Bilinear(nn.Module):
    """phi(x)·psi(g)/sqrt(d) of all networks: inputs x [R, B, ...], which are joined, and goals [R, B, O]."""

    def __init__(self, lead: Lead, in_size: int, goal_size: int, hidden: Sequence[int], latent_size: int):
        super().__init__()
        self.phi = network(lead, in_size, hidden, latent_size)
        self.psi = network(lead, goal_size, hidden, latent_size)
        self.has_members = len(lead) > 1

    def latents(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """phi and psi/sqrt(d), each [R, B, d] or [R, E, B, d]; the last input is the goal."""
        x, goal = torch.cat(inputs[:-1], -1), inputs[-1]
        if self.has_members:
            x, goal = x[:, None], goal[:, None]
        phi = self.phi(x)
        return phi, self.psi(goal) / math.sqrt(phi.shape[-1])

    def forward(self, *inputs: Tensor) -> Tensor:
        """The values of inputs with their own goals: [R, B] or [R, E, B]."""
        phi, psi = self.latents(*inputs)
        return (phi * psi).sum(-1)

    def contrast(self, *inputs: Tensor) -> Tensor:
        """Mean binary cross-entropy of telling each input's own goal from those of the others: losses [R]."""
        phi, psi = self.latents(*inputs)
        logits = phi @ psi.mT
        own = torch.eye(logits.shape[-1], dtype=logits.dtype, device=logits.device).expand_as(logits)
        return F.binary_cross_entropy_with_logits(logits, own, reduction="none").flatten(1).mean(1)


class CRL(Agent):
    """Actor and twin critics of R runs, and for AWR values."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        size, sizes = task.obs_size, (args.hidden, args.latent_size)
        self.critic = self.initialise("critic", Bilinear((self.runs, 2), size + task.act_size, size, *sizes))
        self.actor = self.initialise("actor", Actor(self.runs, size, size, args.hidden, task.act_size))
        if args.actor_loss == "awr":
            self.value = self.initialise("value", Bilinear((self.runs,), size, size, *sizes))
        self.adam = Adam(self.parameters(), lr=args.lr)

    @torch.no_grad()
    def policy(self, obs: Tensor, goal: Tensor) -> Tensor:
        """The mean action: obs and goal [R, N, O] -> [R, N, A]."""
        return self.actor(obs, goal)

    def value_of(self, obs: Tensor, goal: Tensor) -> Tensor:
        """The smaller critic's value of the policy's action: obs and goal [R, N, O] -> [R, N]."""
        return self.critic(obs, self.actor(obs, goal).clamp(-1, 1), goal).amin(1)

    def actor_loss(self, batch: Transitions) -> Tensor:
        """DDPG+BC: -Q(s, a', g) in units of its magnitude - alpha log pi(a|s, g); or AWR: losses [R]."""
        mean = self.actor(batch.obs, batch.goal)
        imitation = log_prob(mean, batch.action)
        if self.args.actor_loss == "ddpg_bc":
            q = frozen(self.critic)(batch.obs, mean.clamp(-1, 1), batch.goal).amin(1)
            return ddpg_loss(q) - self.args.alpha * imitation.mean(-1)
        with torch.no_grad():
            q = self.critic(batch.obs, batch.action, batch.goal).amin(1)
            weight = advantage_weight(q - self.value(batch.obs, batch.goal), self.args.alpha)
        return -(weight * imitation).mean(-1)

    def losses(self, batch: Transitions) -> dict[str, Tensor]:
        """The losses [R] by name."""
        losses = {"critic_loss": self.critic.contrast(batch.obs, batch.action, batch.value_goal)}
        if self.args.actor_loss == "awr":
            losses["value_loss"] = self.value.contrast(batch.obs, batch.value_goal)
        return losses | {"actor_loss": self.actor_loss(batch)}

    def batch(self, goals: Goals, draws: Draws) -> Transitions:
        """Transitions with goals."""
        return transitions(goals, self.args, draws)

    def draws(self, random: Random, name: str = "") -> Callable[[], Draws]:
        """The random numbers of batches."""
        return transition_draws(random, self.args.batch_size, name)

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """One update of all networks; gives metrics [R]."""
        losses = self.losses(batch)
        self.adam.minimise(torch.stack(list(losses.values())).sum(0))
        return {name: loss.detach() for name, loss in losses.items()}


def main(args: Args) -> None:
    run, goals, held_out = goal_run(args, "crl")
    agent = CRL(run.args, goals.data.task, run.seeds, run.device)
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
