"""RAVL: reach-aware value learning, many seeds at once.

Sims et al., "The Edge-of-Reach Problem in Offline Model-Based Reinforcement Learning" (arXiv 2402.12527), as its
official code computes it. An ensemble learns the dynamics of the dataset; then SAC learns from short rollouts of this
model, which begin in states of the dataset. States that only the last step of a rollout can reach occur in targets, but
no value is ever learned for them; an error there spreads. RAVL therefore trains N critics, uses the least of their
values, and drives their gradients by the action apart, as in EDAC (An et al., arXiv 2110.01548).

`--real-ratio 1` uses no model and is EDAC as CORL writes it; with `--eta 0` too it is SAC-N, which has numbers of
critics of its own. With a model, `--critics 2 --eta 0` has the losses of the base method, `mopo.py --penalty-weight 0`,
which differs in networks, learning rates, order, the bound of the temperature and the actions that it learns from, and
without `--form offlinerl_kit` in the ensemble and in when episodes end. The paper's N, eta and length of rollouts are
not known for most datasets. For medium, medium-replay and medium-expert data of HalfCheetah, Hopper and Walker2d, N and
eta are therefore those of EDAC, and the length is MOPO's; for halfcheetah-medium, these are also the values of the one
example in RAVL's official code. All other datasets get guesses: eta is 1, rollouts have 5 steps, and N is 10, or 50 for
Hopper.

The details are those of the official code: an update moves the temperature, the actor and the critics, each with fresh
actions, and then the targets; the loss is a sum over critics; learning rates stay constant. These differ: states, and
rows of a batch, are drawn with replacement; the ensemble learns from true next observations; its elites are chosen by
the holdout of its training; every seed has initial weights of its own, and every evaluation start states of its own.

    python single_file/ravl.py --dataset local/hopper-medium-replay-v0 --seeds 0:5

Results lie in runs/<dataset>/ravl/<variant>/, one row per run and evaluation episode in eval.parquet; the ensemble is
dynamics.safetensors there, which `--dynamics` takes.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import (
    Fraction,
    NotNegative,
    Positive,
    PositiveFraction,
    Range,
    Several,
    Tunable,
    Widths,
    by_domain,
)
from algos.cli import cli
from algos.dynamics import FormName
from algos.model_based import ModelBasedArgs, ModelData, model_based_run
from algos.nn import MLP, Uniform
from algos.optim import Adam, Target
from algos.per_run import PerRun
from algos.random import Random
from algos.replay import Batch
from envs import Task


@dataclass
class Args(ModelBasedArgs):
    rollout_length: Several = by_domain(5, **{"walker2d-medium-replay": 1, "walker2d-medium-expert": 1})
    """steps of a rollout, unless the task ends it earlier"""
    form: FormName = "ravl"
    """official code that decides how the ensemble is trained and when a predicted state ends an episode; with
    --dynamics FILE it decides only when episodes end, and with --dynamics true nothing"""
    critics: Annotated[int, Range(2)] = by_domain(10, hopper=50)
    """N: number of critics"""
    eta: Tunable[NotNegative] = by_domain(1.0, **{"halfcheetah-medium-expert": 5.0, "walker2d-medium-expert": 5.0})
    """weight of the loss that drives the critics' gradients apart"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target critics"""
    actor_lr: Tunable[Positive] = 3e-4
    """learning rate of the actor"""
    critic_lr: Tunable[Positive] = 3e-4
    """learning rate of the critics"""
    temperature_lr: Tunable[Positive] = 3e-4
    """learning rate of the log temperature"""
    hidden: Widths = (256, 256, 256)
    """widths of the hidden layers of actor and critics"""


class Draws(NamedTuple):
    """Standard normal numbers of one update."""

    temperature_action: Tensor  # [R, B, A]
    action: Tensor  # [R, B, A]
    next_action: Tensor  # [R, B, A]


class Actor(nn.Module):
    """Squashed Gaussian policy: obs [R, B, O] -> mean, log_std, each [R, B, A]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        linear, last = partial(Uniform, bias=0.1), partial(Uniform, bound=1e-3)
        self.net = MLP((runs,), task.obs_size, hidden, 2 * task.act_size, linear=linear, last=last)

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
    """N action values: obs [R, B, O], action [R, B, A] -> [R, N, B]."""

    def __init__(self, runs: int, critics: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.act_size = task.act_size
        linear, last = partial(Uniform, fan="out", bias=0.1), partial(Uniform, bound=3e-3)
        self.net = MLP((runs, critics), task.obs_size + task.act_size, hidden, 1, linear=linear, last=last)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([obs, action], -1)[:, None]).squeeze(-1)

    def with_gradient(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Values [R, N, B] and their gradients by the action [R, N, B, A], which can be differentiated themselves."""
        return self.net.with_gradient(torch.cat([obs, action], -1)[:, None], self.act_size)


class RAVL(Agent):
    """Actor, N critics and temperature of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.target_entropy = -float(task.act_size)
        self.actor = self.initialise("actor", Actor(self.runs, task, args.hidden))
        self.critic = self.initialise("critic", Critic(self.runs, args.critics, task, args.hidden))
        self.log_alpha = nn.Parameter(torch.zeros(self.runs, device=device))

        self.actor_adam = Adam(self.actor.parameters(), lr=args.actor_lr)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.critic_lr)
        self.alpha_adam = Adam([self.log_alpha], lr=args.temperature_lr)
        self.target_critic = Target(self.critic, args.tau)

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

    def alpha_loss(self, obs: Tensor, noise: Tensor) -> Tensor:
        """-log alpha (log pi(a|s) + target entropy): losses [R]."""
        with torch.no_grad():
            _, log_prob = self.actor.sample(obs, noise)
        return -self.log_alpha * (log_prob.mean(-1) + self.target_entropy)

    def actor_loss(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of alpha log pi(a|s) - min_n Q_n(s, a): losses [R], entropies [R]."""
        action, log_prob = self.actor.sample(obs, noise)
        value = self.critic(obs, action).amin(1)
        loss = (self.log_alpha.detach().exp()[:, None] * log_prob - value).mean(-1)
        return loss, -log_prob.detach().mean(-1)

    def diversity_loss(self, gradient: Tensor) -> Tensor:
        """Mean inner product of unit gradients, summed over ordered pairs, / (N - 1): [R, N, B, A] -> [R]."""
        unit = gradient / (gradient.norm(dim=-1, keepdim=True) + 1e-10)
        # the sum over all pairs is the square of the sum; the pairs of a critic with itself are left out
        pairs = unit.sum(1).square().sum(-1) - unit.square().sum((1, 3))
        return pairs.mean(-1) / (self.args.critics - 1)

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum over critics of the mean squared error to the soft target, plus eta times the diversity loss.

        Gives losses, mean values, and mean standard deviations of the critics, each [R].
        """
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(batch.next_obs, noise)
            next_value = self.target_critic(batch.next_obs, next_action).amin(1)
            next_value = next_value - self.log_alpha.exp()[:, None] * next_log_prob
            target = batch.reward + self.args.discount * (1 - batch.terminated) * next_value
        if isinstance(self.args.eta, PerRun) or self.args.eta > 0:
            q, gradient = self.critic.with_gradient(batch.obs, batch.action)
            diversity = self.args.eta * self.diversity_loss(gradient)
        else:
            q, diversity = self.critic(batch.obs, batch.action), 0.0
        loss = (q - target[:, None]).square().mean(-1).sum(-1) + diversity
        return loss, q.detach().mean((1, 2)), q.detach().std(1).mean(-1)

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of updates."""
        normal = random.normal("update", 3, self.args.batch_size, self.task.act_size)
        return lambda: Draws(*normal().unbind(1))

    def update(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """One update of temperature, actor, critics and targets, in this order; gives metrics [R]."""
        self.alpha_adam.minimise(self.alpha_loss(batch.obs, draws.temperature_action))

        actor_loss, entropy = self.actor_loss(batch.obs, draws.action)
        self.actor_adam.minimise(actor_loss)

        critic_loss, value, spread = self.critic_loss(batch, draws.next_action)
        self.critic_adam.minimise(critic_loss)

        self.target_critic.update()
        return {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "value": value,
            "spread": spread,
            "entropy": entropy,
            "alpha": self.log_alpha.detach().exp(),
        }


def main(args: Args) -> None:
    run, data = model_based_run(args, "ravl")
    agent = RAVL(run.args, data.task, run.seeds, run.device)
    source, draws = ModelData(run, data, agent, penalty=None), agent.draws(run.random)
    update = run.compiled(lambda chosen, draws: agent.update(source.gather(chosen), draws))

    run.register(agent, **source.memory)
    source.fit(members=args.elites)
    for step in run.steps(data.adapt(agent.policy)):
        if (step - 1) % args.updates_per_epoch == 0:
            source.generate()
        run.log(update(source.choose(), draws()))


if __name__ == "__main__":
    cli(main)
