"""MOBILE: model-Bellman inconsistency penalised offline policy optimisation, many seeds at once.

Sun et al., "Model-Bellman Inconsistency for Model-based Offline Reinforcement Learning" (ICML 2023), as OfflineRL-Kit
computes it. An ensemble learns the dynamics of the dataset; then SAC learns from short rollouts of this model, which
begin in states of the dataset. The target of a model's step is max(0, r - penalty_weight u + discount min Q'(s', a')):
each elite of the ensemble predicts --guesses next states, the target critics value the policy's actions in them, and u
is the standard deviation over elites of the mean of these values. Steps of the dataset have no penalty.

The details are those of OfflineRL-Kit: the target has no entropy term, and 0 bounds it from below, which suits rewards
that are hardly ever negative; the critics' loss is a mean over the twins; an update moves the critics, the actor, the
temperature and then the targets; a learned temperature is at most 1 in the actor's loss; the actor's learning rate
falls along a cosine, once an epoch; the ensemble learns for at most 30 epochs. With `--dynamics true` nothing is
uncertain: there is no penalty, and the bounded targets without entropy are what is left of MOBILE.

    python single_file/mobile.py --dataset local/hopper-medium-replay-v0 --seeds 0:5

Results lie in runs/<dataset>/mobile/<variant>/, one row per run and evaluation episode in eval.parquet; the ensemble is
dynamics.safetensors there, which `--dynamics` takes.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import (
    Count,
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
from algos.errors import UserError, warn
from algos.model_based import ModelBasedArgs, ModelData, model_based_run
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
            "hopper-random": 5.0, "walker2d-random": 2.0, "hopper-medium": 1.5, "halfcheetah-medium-replay": 0.1,
            "hopper-medium-replay": 0.1, "halfcheetah-medium-expert": 2.0, "hopper-medium-expert": 1.5,
            "walker2d-medium-expert": 1.5,
        },
    )  # fmt: skip
    """beta: the reward is lowered by this many times the inconsistency. The official code has values for the random,
    medium, medium-replay and medium-expert data of HalfCheetah, Hopper and Walker2d, and four of these twelve are 0.5
    too: halfcheetah-random, halfcheetah-medium, walker2d-medium and walker2d-medium-replay. For all other datasets 0.5
    is a guess. Without an ensemble, it changes nothing"""
    dynamics_epochs: Count = 30
    """most epochs of the ensemble, which stops earlier when its holdout error falls no more; only where an ensemble is
    trained"""
    elites: Annotated[int, Range(2)] = 5
    """networks whose predictions are used: those with the least error on the holdout"""
    guesses: Count = 10
    """next states that each elite predicts for a step"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target critics"""
    actor_lr: Tunable[Positive] = 1e-4
    """learning rate of the actor, at first"""
    critic_lr: Tunable[Positive] = 3e-4
    """learning rate of the critics"""
    temperature_lr: Tunable[Positive] = 1e-4
    """learning rate of the log temperature; not used where --temperature is above 0, as on hopper-medium by default"""
    temperature: NotNegative = by_domain(0.0, **{"hopper-medium": 0.2})
    """a temperature that stays as it is; 0: it is learned"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of actor and critics"""

    def check_task(self) -> None:
        if self.model_mix or self.mix_with == "random":
            raise UserError("--model-mix is not for MOBILE, whose penalty asks each elite of the ensemble alone")
        super().check_task()

    def without_effect(self) -> dict[str, str]:
        fixed = {"temperature_lr": "with a fixed --temperature"} if self.temperature else {}
        return super().without_effect() | fixed


class Draws(NamedTuple):
    """Standard normal numbers of one update; M rows of the batch come from the model."""

    next_action: Tensor  # [R, B, A]
    action: Tensor  # [R, B, A]
    guess: Tensor | None  # [R, elites, guesses, M, O]; None without an ensemble
    guessed_action: Tensor | None  # [R, elites, guesses, M, A]; None without an ensemble


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


class MOBILE(Agent):
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
        """The temperature [R], at most 1 if it is learned."""
        if self.args.temperature:
            return torch.full_like(self.log_alpha, self.args.temperature, requires_grad=False)
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

    @torch.no_grad()
    def inconsistency(self, guesses: Tensor, noise: Tensor) -> Tensor:
        """u [R, M] of next states [R, elites, guesses, M, O], with standard normal noise [R, elites, guesses, M, A]."""
        obs, shape = guesses.flatten(1, 3), guesses.shape[:-1]
        action = self.actor.sample(obs, noise.flatten(1, 3))[0]
        value = self.target_critic(obs, action).amin(1).view(shape)
        return value.mean(2).std(1)

    def critic_loss(self, batch: Batch, guesses: Tensor | None, draws: Draws) -> tuple[Tensor, ...]:
        """Mean over twins of the squared error to the penalised target: losses, mean values, mean penalties, each [R].

        `guesses` belong to the last rows of the batch, which come from the model, and of which the penalty is a mean.
        """
        with torch.no_grad():
            next_action, _ = self.actor.sample(batch.next_obs, draws.next_action)
            next_value = self.target_critic(batch.next_obs, next_action).amin(1)
            reward, penalty = batch.reward, torch.zeros_like(batch.reward[:, :1])
            if guesses is not None and draws.guessed_action is not None:
                penalty = self.args.penalty_weight * self.inconsistency(guesses, draws.guessed_action)
                real = batch.reward.shape[1] - penalty.shape[1]
                reward = torch.cat([reward[:, :real], reward[:, real:] - penalty], 1)
            target = (reward + self.args.discount * (1 - batch.terminated) * next_value).clamp(min=0.0)
        q = self.critic(batch.obs, batch.action)
        return (q - target[:, None]).square().mean((1, 2)), q.detach().mean((1, 2)), penalty.mean(-1)

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
        args, size, none = self.args, self.task.act_size, lambda: None
        normal = random.normal("update", 2, args.batch_size, size)
        rows = 0 if args.dynamics == "true" else args.batch_size - args.real
        shape = (args.elites, args.guesses, rows)
        guess = random.normal("guess", *shape, self.task.obs_size) if rows else none
        guessed_action = random.normal("guessed action", *shape, size) if rows else none

        def draw() -> Draws:
            noise = normal()
            return Draws(noise[:, 0], noise[:, 1], guess(), guessed_action())

        return draw

    def update(self, batch: Batch, guesses: Tensor | None, draws: Draws) -> dict[str, Tensor]:
        """One update of critics, actor, temperature and targets, in this order; gives metrics [R].

        The last rows of the batch come from the model: `guesses` [R, elites, guesses, M, O] are their next states.
        """
        critic_loss, value, penalty = self.critic_loss(batch, guesses, draws)
        self.critic_adam.minimise(critic_loss)

        actor_loss, log_prob = self.actor_loss(batch.obs, draws.action)
        self.actor_adam.minimise(actor_loss)

        if not self.args.temperature:
            self.alpha_adam.minimise(self.alpha_loss(log_prob))
        self.target_critic.update()
        return {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "value": value,
            "penalty": penalty,
            "entropy": -log_prob,
            "alpha": self.alpha,
        }


def main(args: Args) -> None:
    run, data = model_based_run(args, "mobile")
    if data.reward[data.index].mean() < 0:
        warn(f"rewards of {data.name} are negative on average, and targets of MOBILE are never below 0")
    agent = MOBILE(run.args, data.task, run.seeds, run.device)
    source, draws = ModelData(run, data, agent, penalty=None, soft=False), agent.draws(run.random)

    def update_on(chosen: tuple[Tensor, ...], draws: Draws) -> dict[str, Tensor]:
        batch, guesses = source.gather(chosen), None
        if draws.guess is not None:  # next states that each elite predicts for the rows of the model
            obs, action = batch.obs[:, source.real :], batch.action[:, source.real :]
            guesses = source.learned.guesses(obs, action, draws.guess)
        return agent.update(batch, guesses, draws)

    update = run.compiled(update_on)
    run.register(agent, **source.memory)
    source.fit(members=args.elites)
    for step in run.steps(data.adapt(agent.policy)):
        if (step - 1) % args.updates_per_epoch == 0:
            source.generate()
        run.log(update(source.choose(), draws()))


if __name__ == "__main__":
    cli(main)
