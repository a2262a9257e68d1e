"""SAC: soft actor-critic, many seeds at once.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905), in the form of CleanRL's
`sac_continuous_action.py`, which differs from the paper: critics and temperature learn at 1e-3 (paper 3e-4), actor and
temperature take two steps at every second update, each with a fresh action (paper: one step at every update; that is
`--actor-delay 1`), the log standard deviation is squashed to [-5, 2] (others clamp it to [-20, 2]), and the first 5,000
actions are uniformly random.

One thing is ours: an update never sees the transition that is being made while it runs, so that a GPU learns while the
CPU steps the environments.

    python single_file/sac.py --env-id HalfCheetah-v5 --seeds 0:10

Results lie in runs/<env>/sac/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Count, Fraction, Incidental, Positive, PositiveFraction, Size, Tunable, Widths
from algos.cli import EnvArgs, cli
from algos.nn import MLP
from algos.optim import Adam, Target
from algos.random import Random
from algos.replay import Batch, ReplayBuffer
from algos.run import Run
from envs import Task


@dataclass
class Args(EnvArgs):
    buffer_size: Count = 1_000_000
    """transitions kept per run"""
    keep_replay: Incidental[bool] = False
    """leave the replay in the final checkpoint, to make a dataset of it: the rows of run N are its tensor
    replay/rows.N, with observation, action, reward, next observation and whether the task ended"""
    batch_size: Size = 256
    """transitions per update and run"""
    learning_starts: Count = 5_000
    """uniformly random steps before learning"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target critics"""
    actor_lr: Tunable[Positive] = 3e-4
    """learning rate of the actor"""
    critic_lr: Tunable[Positive] = 1e-3
    """learning rate of the critics"""
    temperature_lr: Tunable[Positive] = 1e-3
    """learning rate of the log temperature"""
    actor_delay: Count = 2
    """actor and temperature learn once in this many updates, and then take this many steps"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of actor and critics"""


class Draws(NamedTuple):
    """Standard normal numbers of one update; D is the actor's delay."""

    next_action: Tensor  # [R, B, A]
    action: Tensor  # [R, D, B, A], for the actor's steps
    temperature_action: Tensor  # [R, D, B, A], for the temperature's steps


class Actor(nn.Module):
    """Squashed Gaussian policy: obs [R, B, O] -> mean, log_std, each [R, B, A]."""

    scale: Tensor
    bias: Tensor

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), task.obs_size, hidden, 2 * task.act_size)
        low, high = torch.tensor(task.low), torch.tensor(task.high)
        self.register_buffer("scale", (high - low) / 2, persistent=False)  # [A]
        self.register_buffer("bias", (high + low) / 2, persistent=False)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(obs).chunk(2, -1)
        return mean, -5 + 0.5 * (2 + 5) * (torch.tanh(log_std) + 1)

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised action [R, B, A] from standard normal noise [R, B, A], and its log-density [R, B]."""
        mean, log_std = self(obs)
        squashed = torch.tanh(mean + log_std.exp() * noise)
        log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_normal - torch.log(self.scale * (1 - squashed.square()) + 1e-6)
        return squashed * self.scale + self.bias, log_prob.sum(-1)

    def mode(self, obs: Tensor) -> Tensor:
        """Deterministic action [R, B, A]."""
        return torch.tanh(self(obs)[0]) * self.scale + self.bias


class Critic(nn.Module):
    """Twin soft action values: obs [R, B, O], action [R, B, A] -> [R, 2, B]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs, 2), task.obs_size + task.act_size, hidden, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([obs, action], -1)[:, None]).squeeze(-1)


class SAC(Agent):
    """Actor, twin critics and temperature of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.target_entropy = -float(task.act_size)
        self.actor = self.initialise("actor", Actor(self.runs, task, args.hidden))
        self.critic = self.initialise("critic", Critic(self.runs, task, args.hidden))
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
        return self.actor.mode(obs)

    def predict_values(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For logs only: a sampled action [R, N, A], its predicted soft value and the entropy bonus, each [R, N]."""
        action, log_prob = self.actor.sample(obs, noise)
        return action, self.critic(obs, action).amin(1), -self.log_alpha.exp()[:, None] * log_prob

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over the twins of the mean squared error to the soft target: losses [R], mean values [R]."""
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(batch.next_obs, noise)
            next_value = self.target_critic(batch.next_obs, next_action).amin(1)
            next_value = next_value - self.log_alpha.exp()[:, None] * next_log_prob
            target = batch.reward + self.args.discount * (1 - batch.terminated) * next_value
        q = self.critic(batch.obs, batch.action)
        return (q - target[:, None]).square().mean(-1).sum(-1), q.detach().mean((1, 2))

    def actor_loss(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of alpha log pi(a|s) - min_i Q_i(s, a): losses [R], entropies [R]."""
        action, log_prob = self.actor.sample(obs, noise)
        value = self.critic(obs, action).amin(1)
        loss = (self.log_alpha.detach().exp()[:, None] * log_prob - value).mean(-1)
        return loss, -log_prob.detach().mean(-1)

    def alpha_loss(self, obs: Tensor, noise: Tensor) -> Tensor:
        """-alpha (log pi(a|s) + target entropy): losses [R]."""
        with torch.no_grad():
            _, log_prob = self.actor.sample(obs, noise)
        return -self.log_alpha.exp() * (log_prob.mean(-1) + self.target_entropy)

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of updates."""
        normal = random.normal("update", 1 + 2 * self.args.actor_delay, self.args.batch_size, self.task.act_size)

        def draw() -> Draws:
            noise = normal()
            return Draws(noise[:, 0], noise[:, 1::2], noise[:, 2::2])

        return draw

    def update(self, batch: Batch, draws: Draws, actor_due: bool) -> dict[str, Tensor]:
        """One update of the critics and, where they are due, of actor and temperature; gives metrics [R]."""
        critic_loss, value = self.critic_loss(batch, draws.next_action)
        self.critic_adam.minimise(critic_loss)
        metrics = {"critic_loss": critic_loss.detach(), "value": value}

        if actor_due:
            for i in range(self.args.actor_delay):
                actor_loss, entropy = self.actor_loss(batch.obs, draws.action[:, i])
                self.actor_adam.minimise(actor_loss)
                alpha_loss = self.alpha_loss(batch.obs, draws.temperature_action[:, i])
                self.alpha_adam.minimise(alpha_loss)
            metrics |= {"actor_loss": actor_loss.detach(), "entropy": entropy, "alpha": self.log_alpha.detach().exp()}

        self.target_critic.update()
        return metrics


def main(args: Args) -> None:
    run = Run(args, "sac")
    envs = run.environments()
    agent = SAC(run.args, envs.task, run.seeds, run.device)
    replay = ReplayBuffer(run.runs, min(args.buffer_size, args.total_steps), envs.task, run.device)
    uniform = run.random.uniform("random_action", 1, envs.act_size)
    noise = run.random.normal("action", 1, envs.act_size)
    choice, draws = run.random.integers("minibatch", args.batch_size), agent.draws(run.random)

    act = run.compiled(agent.act)
    update = run.compiled(lambda indices, *rest: agent.update(replay.gather(indices), *rest))
    run.compare_values(agent.predict_values, run.args.discount)
    run.register(agent, replay=replay, keep=("replay",) if args.keep_replay else ())
    for step in run.steps(agent.policy):
        if step <= args.learning_starts:
            envs.send(torch.lerp(envs.action_low, envs.action_high, uniform()))
        else:
            envs.send(act(envs.obs, noise()))
            run.log(update(replay.choose(choice()), draws(), step % args.actor_delay == 0))
        replay.add(envs.receive())


if __name__ == "__main__":
    cli(main)
