"""TD3: twin delayed deep deterministic policy gradient, many seeds at once.

Fujimoto, van Hoof and Meger, "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv 1802.09477), in
the form of the authors' current code `sfujim/TD3`, which differs from the paper and its code of 2018: all networks have
two hidden layers of 256 and learn at 3e-4 from batches of 256 (2018: 400 and 300, 1e-3, 100), every task begins with
25,000 uniformly random steps without learning (2018: 10,000 or 1,000, with learning), an update follows each later step
(2018: after each episode, as many updates as it had steps), and noise and its clip are scaled by the largest action
(2018: not scaled). For InvertedPendulum, InvertedDoublePendulum and Reacher the authors take `--learning-starts 1000`.

Two things are ours. An update never sees the transition that is being made while it runs, so that a GPU learns while
the CPU steps the environments. Every dimension of an action has its own bounds, and its noise is in units of half the
distance between them; the authors' code takes one symmetric bound for all.

    python single_file/td3.py --env-id HalfCheetah-v5 --seeds 0:10

Results lie in runs/<env>/td3/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Count, Fraction, Incidental, NotNegative, Positive, PositiveFraction, Size, Tunable, Widths
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
    learning_starts: Count = 25_000
    """uniformly random steps before learning"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target networks"""
    actor_lr: Tunable[Positive] = 3e-4
    """learning rate of the actor"""
    critic_lr: Tunable[Positive] = 3e-4
    """learning rate of the critics"""
    exploration_noise: Tunable[Fraction] = 0.1
    """standard deviation of the noise on actions, in units of half the distance between their bounds"""
    policy_noise: Tunable[Fraction] = 0.2
    """standard deviation of the noise on the target actor's actions, in units of half the distance between bounds"""
    noise_clip: Tunable[NotNegative] = 0.5
    """greatest magnitude of the noise on the target actor's actions, in the same units"""
    actor_delay: Count = 2
    """the actor learns and the targets move once in this many updates"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of actor and critics"""

    def without_effect(self) -> dict[str, str]:
        idle = {} if self.policy_noise else {"noise_clip": "with --policy-noise 0"}
        return idle if self.noise_clip else idle | {"policy_noise": "with --noise-clip 0"}


class Draws(NamedTuple):
    """Standard normal numbers of one update."""

    next_action: Tensor  # [R, B, A], for the noise on the target actor's actions


class Actor(nn.Module):
    """Deterministic policy within the bounds of actions: obs [R, B, O] -> [R, B, A]."""

    low: Tensor
    high: Tensor
    scale: Tensor

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), task.obs_size, hidden, task.act_size)
        low, high = torch.tensor(task.low), torch.tensor(task.high)
        self.register_buffer("low", low, persistent=False)  # [A]
        self.register_buffer("high", high, persistent=False)
        self.register_buffer("scale", (high - low) / 2, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.net(obs)) * self.scale + (self.high + self.low) / 2

    def noisy(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions with noise [R, B, A] in units of half the distance between their bounds, clipped to these."""
        return (self(obs) + noise * self.scale).clamp(self.low, self.high)


class Critic(nn.Module):
    """Twin action values: obs [R, B, O], action [R, B, A] -> [R, 2, B]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs, 2), task.obs_size + task.act_size, hidden, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([obs, action], -1)[:, None]).squeeze(-1)

    def first(self, obs: Tensor, action: Tensor) -> Tensor:
        """The first twin's values alone: [R, B]."""
        return self.net.first(torch.cat([obs, action], -1)).squeeze(-1)


class TD3(Agent):
    """Actor and twin critics of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.actor = self.initialise("actor", Actor(self.runs, task, args.hidden))
        self.critic = self.initialise("critic", Critic(self.runs, task, args.hidden))

        self.actor_adam = Adam(self.actor.parameters(), lr=args.actor_lr)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.critic_lr)
        self.target_actor = Target(self.actor, args.tau)
        self.target_critic = Target(self.critic, args.tau)

    @torch.no_grad()
    def act(self, obs: Tensor, noise: Tensor) -> Tensor:
        """A noisy action for each observation: obs [R, N, O], noise [R, N, A] -> [R, N, A]."""
        return self.actor.noisy(obs, self.args.exploration_noise * noise)

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """The deterministic action for each observation: obs [R, N, O] -> [R, N, A]."""
        return self.actor(obs)

    def predict_values(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For logs only: a noisy action [R, N, A], the value predicted for it [R, N], and a bonus of 0 [R, N]."""
        action = self.act(obs, noise)
        value = self.critic(obs, action).amin(1)
        return action, value, torch.zeros_like(value)

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over the twins of the mean squared error to the smoothed target: losses [R], mean values [R]."""
        with torch.no_grad():
            clip = self.args.noise_clip
            smoothing = torch.clamp(self.args.policy_noise * noise, -clip, clip)
            next_action = self.target_actor.net.noisy(batch.next_obs, smoothing)
            next_value = self.target_critic(batch.next_obs, next_action).amin(1)
            target = batch.reward + self.args.discount * (1 - batch.terminated) * next_value
        q = self.critic(batch.obs, batch.action)
        return (q - target[:, None]).square().mean(-1).sum(-1), q.detach().mean((1, 2))

    def actor_loss(self, obs: Tensor) -> Tensor:
        """Mean of -Q_1(s, pi(s)): losses [R]."""
        return -self.critic.first(obs, self.actor(obs)).mean(-1)

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of updates."""
        normal = random.normal("update", self.args.batch_size, self.task.act_size)
        return lambda: Draws(normal())

    def update(self, batch: Batch, draws: Draws, actor_due: bool) -> dict[str, Tensor]:
        """One update of the critics and, where they are due, of the actor and then all targets; gives metrics [R]."""
        critic_loss, value = self.critic_loss(batch, draws.next_action)
        self.critic_adam.minimise(critic_loss)
        metrics = {"critic_loss": critic_loss.detach(), "value": value}

        if actor_due:
            actor_loss = self.actor_loss(batch.obs)
            self.actor_adam.minimise(actor_loss)
            metrics["actor_loss"] = actor_loss.detach()
            self.target_actor.update()
            self.target_critic.update()
        return metrics


def main(args: Args) -> None:
    run = Run(args, "td3")
    envs = run.environments()
    agent = TD3(run.args, envs.task, run.seeds, run.device)
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
