"""DSAC-T: distributional soft actor-critic with three refinements, many seeds at once.

Duan et al., "Distributional Soft Actor-Critic with Three Refinements" (arXiv 2310.05858, TPAMI 2025), as the authors'
code computed it when the paper's results were made. Each of two critics gives a Gaussian over the soft return. Its mean
learns from the mean of the target, its standard deviation from a sampled target clipped to three running standard
deviations, and both gradients are scaled by the running variance.

Where paper and code differ, the code is followed: the gradient scale omega is the square of the running mean of sigma
(the paper has the running mean of sigma squared). `--loss huber` is the loss of the authors' repository since July
2025, which came after the paper. The log temperature starts at 1, the warm-up acts with the initial policy, the target
action comes from a target policy, and actor, temperature and targets move at every second update.

`--env-steps-per-update 20` is most likely the paper's protocol, in which 1.5M updates take 30M environment steps: it is
the default of the authors' scripts. The default is 1, because other off-policy methods are compared with one update per
environment step.

Two things are ours. An update never sees the transitions that are being made while it runs, so that a GPU learns while
the CPU steps the environments. The environment steps of one update are single steps of several environments, where the
authors' code takes consecutive steps of one.

    python single_file/dsac_t.py --env-id Hopper-v5 --seeds 0:10

Results lie in runs/<env>/dsac_t/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Count, Fraction, Incidental, Positive, PositiveFraction, Size, Tunable, Widths
from algos.cli import EnvArgs, cli
from algos.errors import UserError
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
    learning_starts: Count = 10_000
    """steps with the initial policy before learning"""
    env_steps_per_update: Count = 1
    """environment steps per update, each in another environment of the same run (the authors' scripts: 20)"""
    discount: Tunable[Fraction] = 0.99
    """gamma (the authors' later script for Hopper: 0.999)"""
    tau: Tunable[PositiveFraction] = 0.005
    """step size of target networks and running statistics"""
    actor_lr: Tunable[Positive] = 1e-4
    """learning rate of the actor"""
    critic_lr: Tunable[Positive] = 1e-4
    """learning rate of the critics"""
    temperature_lr: Tunable[Positive] = 3e-4
    """learning rate of the log temperature"""
    actor_delay: Count = 2
    """actor, temperature and targets move once in this many updates"""
    loss: Literal["paper", "huber"] = "paper"
    """critic loss: that of the published results, or that of the authors' repository since July 2025"""
    hidden: Widths = (256, 256, 256)
    """widths of the hidden layers of actor and critics"""

    def check_ready(self) -> None:
        super().check_ready()
        if self.buffer_size < (least := self.env_steps_per_update):
            raise UserError(f"--buffer-size must be at least --env-steps-per-update, {least}, got {self.buffer_size}")


class Draws(NamedTuple):
    """Standard normal numbers of one update."""

    next_action: Tensor  # [R, B, A], for the target policy
    action: Tensor  # [R, B, A]
    returns: Tensor  # [R, 2, B], for a return of each critic


class Actor(nn.Module):
    """Squashed Gaussian policy: obs [R, B, O] -> mean, log_std, each [R, B, A]."""

    scale: Tensor
    bias: Tensor

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), task.obs_size, hidden, 2 * task.act_size, F.gelu)
        low, high = torch.tensor(task.low), torch.tensor(task.high)
        self.register_buffer("scale", (high - low) / 2, persistent=False)  # [A]
        self.register_buffer("bias", (high + low) / 2, persistent=False)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(obs).chunk(2, -1)
        return mean, log_std.clamp(-20, 0.5)

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised action [R, B, A] from standard normal noise [R, B, A], and its log-density [R, B]."""
        mean, log_std = self(obs)
        squashed = torch.tanh(mean + log_std.exp() * noise)
        log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_normal - torch.log(1 + 1e-6 - squashed.square()) - self.scale.log()
        return squashed * self.scale + self.bias, log_prob.sum(-1)

    def mode(self, obs: Tensor) -> Tensor:
        """Deterministic action [R, B, A]."""
        return torch.tanh(self(obs)[0]) * self.scale + self.bias


class Critic(nn.Module):
    """Twin Gaussians over the soft return: obs [R, B, O], action [R, B, A] -> mean, std, each [R, 2, B]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs, 2), task.obs_size + task.act_size, hidden, 2, F.gelu)

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw_std = self.net(torch.cat([obs, action], -1)[:, None]).unbind(-1)
        return mean, F.softplus(raw_std)


def paper_loss(mean: Tensor, std: Tensor, mean_target: Tensor, sample_target: Tensor, running_std: Tensor) -> Tensor:
    """The critics' loss [R, 2], of which only the gradient counts: it follows the paper's eqs. 12, 18-20, 23 and 26-27.

    mean, std: [R, 2, B]; targets: [R, 1, B]; running_std: [R, 2, 1]. The three numbers 0.1 are the code's epsilons.
    """
    q, sigma = mean.detach(), std.detach()
    clipped = q + torch.clamp(sample_target - q, -3 * running_std, 3 * running_std)  # eq. 23 gives the width
    mean_gradient = (mean_target - q) / (sigma.square() + 0.1)  # the mean of the target, not a sample
    std_gradient = ((clipped - q).square() - sigma.square()) / (sigma.pow(3) + 0.1)
    scale = running_std.square() + 0.1  # the code's omega; eqs. 24-25 have the running mean of sigma squared
    return -(scale * (mean_gradient * mean + std_gradient * std)).mean(-1)


def huber_loss(mean: Tensor, std: Tensor, mean_target: Tensor, sample_target: Tensor, running_std: Tensor) -> Tensor:
    """The critics' loss [R, 2] of the authors' repository since July 2025; arguments as in `paper_loss`.

    The Huber function is half the squared error, so sigma is too small: it is 0.68 of the standard deviation without
    bootstrapping, and 0.38 of it in a state that leads to itself with a discount of 0.9.
    """
    q, sigma = mean.detach(), std.detach()
    clipped = q + torch.clamp(sample_target - q, -3 * running_std, 3 * running_std)
    ratio = (running_std.square() / (sigma.square() + 0.1)).clamp(0.1, 10)
    error = F.huber_loss(mean, mean_target.expand_as(mean), reduction="none", delta=50.0)
    sample_error = F.huber_loss(q, clipped, reduction="none", delta=50.0)
    std_gradient = (sigma.square() - sample_error) / (sigma + 0.1)
    return (ratio * (error + std_gradient * std)).mean(-1)


class DSACT(Agent):
    """Actor, twin critics, their targets, temperature and running statistics of R runs."""

    running_std: Tensor  # [R, 2, 1]
    updates: Tensor  # number of updates

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.distributional_loss = {"paper": paper_loss, "huber": huber_loss}[args.loss]
        self.target_entropy = -float(task.act_size)
        self.actor = self.initialise("actor", Actor(self.runs, task, args.hidden))
        self.critic = self.initialise("critic", Critic(self.runs, task, args.hidden))
        self.log_alpha = nn.Parameter(torch.ones(self.runs, device=device))  # 1: alpha starts at e

        self.actor_adam = Adam(self.actor.parameters(), lr=args.actor_lr)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.critic_lr)
        self.alpha_adam = Adam([self.log_alpha], lr=args.temperature_lr)
        self.target_actor = Target(self.actor, args.tau)
        self.target_critic = Target(self.critic, args.tau)

        self.register_buffer("running_std", torch.zeros(self.runs, 2, 1, device=device))
        self.register_buffer("updates", torch.zeros((), device=device))

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
        return action, self.critic(obs, action)[0].amin(1), -self.log_alpha.exp()[:, None] * log_prob

    @torch.no_grad()
    def targets(self, batch: Batch, noise: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Mean target and sampled target, each [R, 1, B], from the target critic with the smaller mean.

        noise: standard normal [R, B, A] for the target policy's action; z: standard normal [R, 2, B] for the returns.
        """
        next_action, next_log_prob = self.target_actor.net.sample(batch.next_obs, noise)
        mean, std = self.target_critic(batch.next_obs, next_action)
        sample = mean + z.clamp(-3, 3) * std  # the clip is the code's
        first_is_smaller = mean[:, 0] < mean[:, 1]  # [R, B]
        bonus = -self.log_alpha.exp()[:, None] * next_log_prob
        discount = self.args.discount * (1 - batch.terminated)
        mean_target = batch.reward + discount * (mean.amin(1) + bonus)
        sample_target = batch.reward + discount * (torch.where(first_is_smaller, sample[:, 0], sample[:, 1]) + bonus)
        return mean_target[:, None], sample_target[:, None]

    def critic_loss(self, batch: Batch, noise: Tensor, z: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum of the twins' losses [R], and metrics [R].

        It also moves the running standard deviations, by which the losses are then scaled, and counts the update.
        """
        mean_target, sample_target = self.targets(batch, noise, z)
        mean, std = self.critic(batch.obs, batch.action)
        with torch.no_grad():
            batch_std, tau = std.mean(-1, keepdim=True), self.args.tau
            moved = (1 - tau) * self.running_std + tau * batch_std
            self.running_std.copy_(torch.where(self.updates == 0, batch_std, moved))  # the first update sets it
            self.updates.add_(1)
        loss = self.distributional_loss(mean, std, mean_target, sample_target, self.running_std)
        metrics = {
            "value": mean.detach().mean((1, 2)),
            "std": std.detach().mean((1, 2)),
            "td_error": (mean.detach() - mean_target).abs().mean((1, 2)),
        }
        return loss.sum(-1), metrics

    def actor_loss(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of alpha log pi(a|s) - min_i Q_i(s, a): losses [R]; and mean log-densities [R]."""
        action, log_prob = self.actor.sample(obs, noise)
        value = self.critic(obs, action)[0].amin(1)
        loss = (self.log_alpha.detach().exp()[:, None] * log_prob - value).mean(-1)
        return loss, log_prob.detach().mean(-1)

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """-log alpha (log pi(a|s) + target entropy): losses [R]."""
        return -self.log_alpha * (log_prob + self.target_entropy)

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of updates."""
        batch_size = self.args.batch_size
        actions = random.normal("update", 2, batch_size, self.task.act_size)
        returns = random.normal("return", 2, batch_size)

        def draw() -> Draws:
            next_action, action = actions().unbind(1)
            return Draws(next_action, action, returns())

        return draw

    def update(self, batch: Batch, draws: Draws, actor_due: bool) -> dict[str, Tensor]:
        """One update, whose gradients are all taken with the parameters from before it; gives metrics [R].

        Where the actor is due, temperature and targets move too.
        """
        critic_loss, metrics = self.critic_loss(batch, draws.next_action, draws.returns)
        critic_gradients = self.critic_adam.gradients(critic_loss)
        if actor_due:
            actor_loss, log_prob = self.actor_loss(batch.obs, draws.action)
            self.actor_adam.minimise(actor_loss)
            self.alpha_adam.minimise(self.alpha_loss(log_prob))
            metrics |= {"actor_loss": actor_loss.detach(), "entropy": -log_prob}

        self.critic_adam.step(critic_gradients)
        if actor_due:
            self.target_critic.update()
            self.target_actor.update()
            metrics["alpha"] = self.log_alpha.detach().exp()
        return metrics


def main(args: Args) -> None:
    run = Run(args, "dsac_t")
    per_update = args.env_steps_per_update
    envs = run.environments(per_update)
    agent = DSACT(run.args, envs.task, run.seeds, run.device)
    replay = ReplayBuffer(run.runs, min(args.buffer_size, max(args.total_steps, per_update)), envs.task, run.device)
    noise = run.random.normal("action", per_update, envs.act_size)
    choice, draws = run.random.integers("minibatch", args.batch_size), agent.draws(run.random)

    act = run.compiled(agent.act)
    update = run.compiled(lambda indices, *rest: agent.update(replay.gather(indices), *rest))
    run.compare_values(agent.predict_values, run.args.discount)
    run.register(agent, replay=replay, keep=("replay",) if args.keep_replay else ())
    for step in run.steps(agent.policy, stride=per_update):
        envs.send(act(envs.obs, noise()))
        if (stored := step - per_update) >= args.learning_starts:
            k = (stored - args.learning_starts) // per_update  # updates done before this one
            run.log(update(replay.choose(choice()), draws(), k % args.actor_delay == 0))
        replay.add(envs.receive())


if __name__ == "__main__":
    cli(main)
