"""DSAC-T: distributional soft actor-critic with three refinements, many seeds at once.

Duan et al., "Distributional Soft Actor-Critic with Three Refinements" (arXiv 2310.05858, TPAMI 2025), as the authors'
code computed it when the paper's results were made. Each of two critics gives a Gaussian over the soft return. Its mean
learns from the mean of the target, its standard deviation from a sampled target clipped to three running standard
deviations, and both gradients are scaled by the running variance.

Where paper and code differ, the code is followed: the gradient scale omega is the square of the running mean of sigma
(the paper has the running mean of sigma squared). `--loss huber` is the loss of the authors' repository since July
2025, which came after the paper. The log temperature starts at 1, the warm-up acts with the initial policy, the target
action comes from a target policy, and actor, temperature and targets move at every second update.

`--env-steps-per-update 20` is the paper's protocol (1.5M updates are 30M environment steps), as so many environments of
each seed stepped once between two updates. The default here is 1, as other off-policy methods are compared: one update
per environment step.

Two things are ours: an update never sees the transitions that are being made while it runs, so that a GPU learns while
the CPU steps the environments; and with more than one environment step per update, these are single steps of as many
environments, not consecutive steps of one.

    python single_file/dsac_t.py --env-id Hopper-v5 --seeds 0:10

Results lie in runs/<env>/dsac_t/<variant>/, one row per seed and evaluation episode in eval.parquet.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algos.arguments import Count, Fraction, Rate, Step, Widths
from algos.nn import MLP
from algos.optim import Adam, Target
from algos.replay import Batch, ReplayBuffer
from algos.run import Run, RunArgs, cli
from envs import SeededEnvs


@dataclass
class Args(RunArgs):
    buffer_size: Count = 1_000_000
    """transitions kept per seed"""
    keep_replay: bool = False
    """leave the replay in the final checkpoint, to make a dataset of it"""
    batch_size: Count = 256
    """transitions per update and seed"""
    learning_starts: Count = 10_000
    """steps with the initial policy before learning"""
    env_steps_per_update: Count = 1
    """environment steps per update, as environments of each seed (paper: 20)"""
    discount: Fraction = 0.99
    """gamma (the authors' later script for Hopper: 0.999)"""
    tau: Step = 0.005
    """step size of target networks and running statistics"""
    actor_lr: Rate = 1e-4
    """learning rate of the actor"""
    critic_lr: Rate = 1e-4
    """learning rate of the critics"""
    temperature_lr: Rate = 3e-4
    """learning rate of the log temperature"""
    actor_delay: Count = 2
    """actor, temperature and targets move at every so many updates"""
    loss: Literal["paper", "huber"] = "paper"
    """critic loss: the one of the published results, or the repository's since July 2025"""
    hidden: Widths = (256, 256, 256)
    """widths of the hidden layers of actor and critics"""


class Actor(nn.Module):
    """Squashed Gaussian policy: obs [R, B, O] -> mean, log_std, each [R, B, A]."""

    def __init__(self, runs: int, envs: SeededEnvs, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), envs.obs_size, hidden, 2 * envs.act_size, F.gelu)
        self.scale = (envs.action_high - envs.action_low) / 2  # [A]
        self.bias = (envs.action_high + envs.action_low) / 2

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

    def __init__(self, runs: int, envs: SeededEnvs, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs, 2), envs.obs_size + envs.act_size, hidden, 2, F.gelu)

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw_std = self.net(torch.cat([obs, action], -1)[:, None]).unbind(-1)
        return mean, F.softplus(raw_std)


def paper_loss(mean: Tensor, std: Tensor, mean_target: Tensor, sample_target: Tensor, running_std: Tensor) -> Tensor:
    """The critics' loss [R, 2] of the paper (eqs. 12, 18-20, 23, 26-27); only its gradient has a meaning.

    mean, std: [R, 2, B]; targets: [R, 1, B]; running_std: [R, 2, 1]. The 0.1 are the code's eps, three times.
    """
    q, sigma = mean.detach(), std.detach()
    clipped = q + torch.clamp(sample_target - q, -3 * running_std, 3 * running_std)
    mean_gradient = (mean_target - q) / (sigma.square() + 0.1)
    std_gradient = ((clipped - q).square() - sigma.square()) / (sigma.pow(3) + 0.1)
    scale = running_std.square() + 0.1
    return -(scale * (mean_gradient * mean + std_gradient * std)).mean(-1)


def huber_loss(mean: Tensor, std: Tensor, mean_target: Tensor, sample_target: Tensor, running_std: Tensor) -> Tensor:
    """The critics' loss [R, 2] of the authors' repository since July 2025; arguments as in `paper_loss`.

    The Huber function is half the squared error, so sigma settles at 1/sqrt(2) of the standard deviation.
    """
    q, sigma = mean.detach(), std.detach()
    clipped = q + torch.clamp(sample_target - q, -3 * running_std, 3 * running_std)
    ratio = (running_std.square() / (sigma.square() + 0.1)).clamp(0.1, 10)
    error = F.huber_loss(mean, mean_target.expand_as(mean), reduction="none", delta=50.0)
    sample_error = F.huber_loss(q, clipped, reduction="none", delta=50.0)
    std_gradient = (sigma.square() - sample_error) / (sigma + 0.1)
    return (ratio * (error + std_gradient * std)).mean(-1)


class DSACT:
    """Actor, twin critics, their targets, temperature and running statistics of R runs."""

    def __init__(self, args: Args, run: Run, replay: ReplayBuffer):
        self.args, self.replay = args, replay
        self.distributional_loss = {"paper": paper_loss, "huber": huber_loss}[args.loss]
        self.target_entropy = -float(run.envs.act_size)
        self.actor = run.initialise("actor", Actor(run.runs, run.envs, args.hidden))
        self.critic = run.initialise("critic", Critic(run.runs, run.envs, args.hidden))
        self.log_alpha = torch.ones(run.runs, device=run.device, requires_grad=True)  # 1: alpha starts at e

        self.actor_adam = Adam(self.actor.parameters(), lr=args.actor_lr)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.critic_lr)
        self.alpha_adam = Adam([self.log_alpha], lr=args.temperature_lr)
        self.target_actor = Target(self.actor, args.tau)
        self.target_critic = Target(self.critic, args.tau)

        self.running_std = torch.zeros(run.runs, 2, 1, device=run.device)
        self.updates = torch.zeros((), device=run.device)

    @torch.no_grad()
    def explore(self, obs: Tensor, noise: Tensor) -> Tensor:
        """A sampled action for each observation: obs [R, N, O], noise [R, N, A] -> [R, N, A]."""
        return self.actor.sample(obs, noise)[0]

    def exploit(self, obs: Tensor) -> Tensor:
        """The deterministic action for each observation."""
        return self.actor.mode(obs)

    def foresee(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A sampled action [R, N, A], the soft value predicted for it, and the entropy bonus, each [R, N]."""
        action, log_prob = self.actor.sample(obs, noise)
        return action, self.critic(obs, action)[0].amin(1), -self.log_alpha.exp()[:, None] * log_prob

    @torch.no_grad()
    def targets(self, batch: Batch, noise: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Mean target and sampled target, each [R, 1, B], from the target critic with the smaller mean.

        noise: standard normal [R, B, A] for the target policy's action; z: standard normal [R, 2, B] for the returns.
        """
        next_action, next_log_prob = self.target_actor.net.sample(batch.next_obs, noise)
        mean, std = self.target_critic(batch.next_obs, next_action)
        sample = mean + z.clamp(-3, 3) * std
        first = mean[:, 0] < mean[:, 1]
        entropy = -self.log_alpha.exp()[:, None] * next_log_prob
        going = (1 - batch.terminated) * self.args.discount
        mean_target = batch.reward + going * (mean.amin(1) + entropy)
        sample_target = batch.reward + going * (torch.where(first, sample[:, 0], sample[:, 1]) + entropy)
        return mean_target[:, None], sample_target[:, None]

    def critic_loss(self, batch: Batch, noise: Tensor, z: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum of the twins' losses [R] after the running standard deviations have moved; and metrics [R]."""
        mean_target, sample_target = self.targets(batch, noise, z)
        mean, std = self.critic(batch.obs, batch.action)
        with torch.no_grad():
            batch_std = std.mean(-1, keepdim=True)
            tau = torch.where(self.updates == 0, 1.0, self.args.tau)  # the first update sets it
            self.running_std.copy_((1 - tau) * self.running_std + tau * batch_std)
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

    def update(self, indices: Tensor, noise: Tensor, z: Tensor, actor_due: bool) -> dict[str, Tensor]:
        """One update from the minibatch at `indices` [R, B] with `noise` [R, 2, B, A] and `z` [R, 2, B].

        All gradients are taken at the parameters from before the update; where the actor is due, targets move too.
        """
        batch = self.replay.gather(indices)
        critic_loss, metrics = self.critic_loss(batch, noise[:, 0], z)
        critic_gradients = self.critic_adam.gradients(critic_loss)
        if actor_due:
            actor_loss, log_prob = self.actor_loss(batch.obs, noise[:, 1])
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
    run = Run(args, "dsac_t", envs_per_run=args.env_steps_per_update)
    envs, per_update = run.envs, args.env_steps_per_update
    replay = ReplayBuffer(run.runs, min(args.buffer_size, args.total_steps), envs.obs_size, envs.act_size, run.device)
    agent = DSACT(args, run, replay)
    act, update = run.fast(agent.explore), run.fast(agent.update)

    action_noise = run.stream("action", per_update, envs.act_size)
    choice = run.stream("minibatch", args.batch_size, kind="integer")
    noise = run.stream("update", 2, args.batch_size, envs.act_size)
    z = run.stream("return", 2, args.batch_size)

    run.compare_values(agent.foresee, args.discount)
    for step in run.steps(agent.exploit, agent=agent, replay=replay):
        envs.send(act(envs.obs, action_noise()))
        if (stored := step - per_update) >= args.learning_starts:
            k = (stored - args.learning_starts) // per_update  # updates done before this one
            run.log(update(replay.indices(choice()), noise(), z(), k % args.actor_delay == 0))
        replay.add(envs.receive())


if __name__ == "__main__":
    cli(main)
