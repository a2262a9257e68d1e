"""TD3+BC: TD3 with a behaviour cloning term, many seeds at once.

Fujimoto and Gu, "A Minimalist Approach to Offline Reinforcement Learning" (arXiv 2106.06860), as its official code
computes it: twin critics follow r + discount min Q', where min Q' is the smaller value that the target critics give to
the target actor's action plus clipped noise; at every second update the actor maximises lambda Q1(s, pi(s)) -
(pi(s) - a)^2, lambda = alpha / mean |Q1|, and all targets move. Observations are standardised with the dataset's
statistics. Rewards are as they are, except that CORL subtracts 1 from those of antmaze, and so does this script. As in
all offline scripts here, the data's actions are clipped to ±0.99999, which IQL's official code does.

    python single_file/td3_bc.py --dataset local/hopper-medium-replay-v0 --seeds 0:10

Results lie in runs/<dataset>/td3_bc/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Count, Fraction, NotNegative, Positive, PositiveFraction, Size, Tunable, Widths, by_domain
from algos.cli import cli
from algos.nn import MLP
from algos.offline import OfflineArgs, Rewards, offline_run, start_values
from algos.optim import Adam, Target
from algos.random import Random
from algos.replay import Batch
from envs import Task


@dataclass
class Args(OfflineArgs):
    reward: Rewards = by_domain("none", antmaze="minus_one")
    """range: rewards times 1,000 / range of returns; minus_one: rewards less 1; none: rewards as they are"""
    standardise: bool = True
    """subtract the mean from observations and divide them by their standard deviation"""
    batch_size: Size = 256
    """transitions per update and run"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target networks"""
    lr: Tunable[Positive] = 3e-4
    """learning rate of actor and critics"""
    alpha: Tunable[Positive] = 2.5
    """weight of the critic against cloning"""
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
    """Deterministic policy: obs [R, B, O] -> action in [-1, 1] [R, B, A]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), task.obs_size, hidden, task.act_size)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.net(obs))


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


class TD3BC(Agent):
    """Actor and twin critics of R runs."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.actor = self.initialise("actor", Actor(self.runs, task, args.hidden))
        self.critic = self.initialise("critic", Critic(self.runs, task, args.hidden))
        self.actor_adam = Adam(self.actor.parameters(), lr=args.lr)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.lr)
        self.target_actor = Target(self.actor, args.tau)
        self.target_critic = Target(self.critic, args.tau)

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """The action for each observation: obs [R, N, O] -> [R, N, A]."""
        return self.actor(obs)

    @torch.no_grad()
    def target(self, batch: Batch, noise: Tensor) -> Tensor:
        """The target values of the critics [R, B], with standard normal noise [R, B, A]."""
        clip = self.args.noise_clip
        smoothing = torch.clamp(self.args.policy_noise * noise, -clip, clip)
        next_action = (self.target_actor(batch.next_obs) + smoothing).clamp(-1, 1)
        next_value = self.target_critic(batch.next_obs, next_action).amin(1)
        return batch.reward + self.args.discount * (1 - batch.terminated) * next_value

    def critic_loss(self, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Sum over the twins of the mean squared error to target [R, B]: losses [R]."""
        return (self.critic(obs, action) - target[:, None]).square().mean(-1).sum(-1)

    def actor_loss(self, obs: Tensor, action: Tensor) -> Tensor:
        """-lambda mean Q1(s, pi(s)) + mean squared difference of pi(s) and a: losses [R]."""
        policy_action = self.actor(obs)
        value = self.critic.first(obs, policy_action)
        weight = self.args.alpha / value.detach().abs().mean(-1)
        return -weight * value.mean(-1) + (policy_action - action).square().mean((1, 2))

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of updates."""
        normal = random.normal("action", self.args.batch_size, self.task.act_size)
        return lambda: Draws(normal())

    def update(self, batch: Batch, draws: Draws, actor_due: bool) -> dict[str, Tensor]:
        """One update of the critics and, where they are due, of actor and targets; gives metrics [R]."""
        target = self.target(batch, draws.next_action)
        critic_loss = self.critic_loss(batch.obs, batch.action, target)
        self.critic_adam.minimise(critic_loss)
        metrics = {"critic_loss": critic_loss.detach(), "target": target.mean(-1)}

        if actor_due:
            actor_loss = self.actor_loss(batch.obs, batch.action)
            self.actor_adam.minimise(actor_loss)
            metrics["actor_loss"] = actor_loss.detach()
            self.target_actor.update()
            self.target_critic.update()
        return metrics


def main(args: Args) -> None:
    run, data = offline_run(args, "td3_bc", args.reward)
    agent = TD3BC(run.args, data.task, run.seeds, run.device)
    choice, draws = run.random.integers("minibatch", args.batch_size), agent.draws(run.random)
    update = run.compiled(lambda indices, *rest: agent.update(data.gather(indices), *rest))

    run.watch(start_values(data, run.runs, lambda obs: agent.critic(obs, agent.policy(obs)).amin(1)))
    run.register(agent)
    for step in run.steps(data.adapt(agent.policy)):
        run.log(update(data.choose(choice()), draws(), step % args.actor_delay == 0))


if __name__ == "__main__":
    cli(main)
