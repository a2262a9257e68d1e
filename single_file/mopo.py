"""MOPO: model-based offline policy optimisation, many seeds at once.

Yu et al., "MOPO: Model-based Offline Policy Optimization" (arXiv 2005.13239), as OfflineRL-Kit computes it. An ensemble
learns the dynamics of the dataset; then SAC learns from short rollouts of this model, which begin in states of the
dataset, with the reward r - penalty_weight u(s, a). The uncertainty u is the greatest norm of the standard deviation
that a member of the ensemble predicts, over all members and all outputs, the reward included.

`--penalty-weight 0` is the offline form of MBPO (Janner et al., arXiv 1906.08253), the base of the model-based methods
here. `--form ravl` trains the ensemble and ends rollouts as RAVL's official code does.

The details are those of OfflineRL-Kit: an update moves the critics, the actor, the temperature and then the targets.
The temperature learns from the log-densities of the actor's step; in the losses of critics and actor, it is at most 1.
The actor's learning rate falls along a cosine, once an epoch.

    python single_file/mopo.py --dataset local/hopper-medium-replay-v0 --seeds 0:5

Results lie in runs/<dataset>/mopo/<variant>/, one row per run and evaluation episode in eval.parquet; the ensemble is
dynamics.safetensors there, which `--dynamics` takes.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Fraction, NotNegative, Positive, PositiveFraction, Several, Tunable, Widths, by_domain
from algos.cli import cli
from algos.model_based import ModelBasedArgs, ModelData, Prediction, model_based_run
from algos.nn import MLP
from algos.optim import Adam, Target, cosine
from algos.random import Random
from algos.replay import Batch
from envs import Task


@dataclass
class Args(ModelBasedArgs):
    rollout_length: Several = by_domain(5, **{"walker2d-medium-replay": 1, "walker2d-medium-expert": 1})
    """steps of a rollout, unless the task ends it earlier"""
    penalty_weight: Tunable[NotNegative] = by_domain(
        0.5,
        **{
            "hopper-medium": 5.0, "hopper-medium-replay": 2.5, "walker2d-medium-replay": 2.5,
            "halfcheetah-medium-expert": 2.5, "hopper-medium-expert": 5.0, "walker2d-medium-expert": 2.5,
        },
    )  # fmt: skip
    """lambda: the reward is lowered by this many times the uncertainty; 0: MBPO. The uncertainty is in the units of the
    predicted observations and rewards, so that --standardise changes it. The official code has values for the medium,
    medium-replay and medium-expert data of HalfCheetah, Hopper and Walker2d, and three of these nine are 0.5 too:
    halfcheetah-medium, walker2d-medium and halfcheetah-medium-replay. For all other datasets 0.5 is a guess.
    Without an ensemble, there is no uncertainty, and it changes nothing"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target critics"""
    actor_lr: Tunable[Positive] = 1e-4
    """learning rate of the actor, at first"""
    critic_lr: Tunable[Positive] = 3e-4
    """learning rate of the critics"""
    temperature_lr: Tunable[Positive] = 1e-4
    """learning rate of the log temperature"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of actor and critics"""


class Draws(NamedTuple):
    """Standard normal numbers of one update."""

    next_action: Tensor  # [R, B, A]
    action: Tensor  # [R, B, A]


class Actor(nn.Module):
    """Squashed Gaussian policy: obs [R, B, O] -> mean, log_std, each [R, B, A]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), task.obs_size, hidden, 2 * task.act_size)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(obs).chunk(2, -1)
        return mean, log_std.clamp(-5, 2)

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised action [R, B, A] from standard normal noise [R, B, A], and its log-density [R, B]."""
        mean, log_std = self(obs)
        action = torch.tanh(mean + log_std.exp() * noise)
        log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return action, (log_normal - torch.log(1 - action.square() + 1e-6)).sum(-1)


class Critic(nn.Module):
    """Twin action values: obs [R, B, O], action [R, B, A] -> [R, 2, B]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs, 2), task.obs_size + task.act_size, hidden, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([obs, action], -1)[:, None]).squeeze(-1)


class MOPO(Agent):
    """Actor, twin critics and temperature of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.target_entropy = -float(task.act_size)
        self.actor = self.initialise("actor", Actor(self.runs, task, args.hidden))
        self.critic = self.initialise("critic", Critic(self.runs, task, args.hidden))
        self.log_alpha = nn.Parameter(torch.zeros(self.runs, device=device))

        epochs = math.ceil(args.total_steps / args.updates_per_epoch)
        schedule = cosine(epochs, every=args.updates_per_epoch)
        self.actor_adam = Adam(self.actor.parameters(), lr=args.actor_lr, schedule=schedule)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.critic_lr)
        self.alpha_adam = Adam([self.log_alpha], lr=args.temperature_lr)
        self.target_critic = Target(self.critic, args.tau)

    @property
    def alpha(self) -> Tensor:
        """The temperature [R], at most 1."""
        return self.log_alpha.detach().exp().clamp(max=1.0)

    @torch.no_grad()
    def act(self, obs: Tensor, noise: Tensor) -> Tensor:
        """A sampled action for each observation: obs [R, N, O], noise [R, N, A] -> [R, N, A]."""
        return self.actor.sample(obs, noise)[0]

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """The deterministic action for each observation: obs [R, N, O] -> [R, N, A]."""
        return torch.tanh(self.actor(obs)[0])

    @torch.no_grad()
    def policy_values(self, obs: Tensor) -> Tensor:
        """Values of the deterministic actions by each critic, for logs only: obs [R, B, O] -> [R, critics, B]."""
        return self.critic(obs, self.policy(obs))

    def penalty(self, prediction: Prediction) -> Tensor:
        """penalty_weight u(s, a), where u is the greatest norm of a member's standard deviation: [R, B]."""
        return self.args.penalty_weight * prediction.std.norm(dim=-1).amax(1)

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over the twins of the mean squared error to the soft target: losses [R], mean values [R]."""
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(batch.next_obs, noise)
            next_value = self.target_critic(batch.next_obs, next_action).amin(1) - self.alpha[:, None] * next_log_prob
            target = batch.reward + self.args.discount * (1 - batch.terminated) * next_value
        q = self.critic(batch.obs, batch.action)
        return (q - target[:, None]).square().mean(-1).sum(-1), q.detach().mean((1, 2))

    def actor_loss(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of alpha log pi(a|s) - min_i Q_i(s, a): losses [R], log-densities [R]."""
        action, log_prob = self.actor.sample(obs, noise)
        value = self.critic(obs, action).amin(1)
        return (self.alpha[:, None] * log_prob - value).mean(-1), log_prob.detach().mean(-1)

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """-log alpha (log pi(a|s) + target entropy), from mean log-densities [R]: losses [R]."""
        return -self.log_alpha * (log_prob + self.target_entropy)

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of updates."""
        normal = random.normal("update", 2, self.args.batch_size, self.task.act_size)
        return lambda: Draws(*normal().unbind(1))

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """One update of critics, actor, temperature and targets, in this order; gives metrics [R]."""
        critic_loss, value = self.critic_loss(batch, draws.next_action)
        self.critic_adam.minimise(critic_loss)

        actor_loss, log_prob = self.actor_loss(batch.obs, draws.action)
        self.actor_adam.minimise(actor_loss)

        self.alpha_adam.minimise(self.alpha_loss(log_prob))
        self.target_critic.update()
        return {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "value": value,
            "entropy": -log_prob,
            "alpha": self.alpha,
        }


def main(args: Args) -> None:
    run, data = model_based_run(args, "mopo")
    agent = MOPO(run.args, data.task, run.seeds, run.device)
    source, draws = ModelData(run, data, agent, agent.penalty), agent.draws(run.random)
    update = run.compiled(lambda chosen, draws: agent.update(source.gather(chosen), draws))

    run.register(agent, **source.memory)
    source.fit(members=args.members)  # all of them, not only the elites: the penalty is over all
    for step in run.steps(data.adapt(agent.policy)):
        if (step - 1) % args.updates_per_epoch == 0:
            source.generate()
        run.log(update(source.choose(), draws()))


if __name__ == "__main__":
    cli(main)
