"""SAC: soft actor-critic, many seeds at once.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905), in the form of CleanRL's
`sac_continuous_action.py`, which differs from the paper: critic and temperature learn at 1e-3 (paper 3e-4), actor and
temperature take two steps at every second update, each with a fresh action (paper: one step at every update; that is
`--actor-delay 1`), the log standard deviation is squashed to [-5, 2] (others clamp it to [-20, 2]), and the first 5,000
actions are uniformly random.

One thing is ours: an update never sees the transition that is being made while it runs, so that a GPU learns while the
CPU steps the environments.

    python single_file/sac.py --env-id HalfCheetah-v5 --seeds 0:10

Results lie in runs/<env>/sac/<variant>/, one row per seed and evaluation episode in eval.parquet.
"""

import math
from dataclasses import dataclass

import torch
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
    learning_starts: Count = 5_000
    """uniformly random steps before learning"""
    discount: Fraction = 0.99
    """gamma"""
    tau: Step = 0.005
    """step size of the target critics"""
    actor_lr: Rate = 3e-4
    """learning rate of the actor"""
    critic_lr: Rate = 1e-3
    """learning rate of the critics"""
    temperature_lr: Rate = 1e-3
    """learning rate of the log temperature"""
    actor_delay: Count = 2
    """every so many updates, actor and temperature take so many steps"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of actor and critics"""


class Actor(nn.Module):
    """Squashed Gaussian policy: obs [R, B, O] -> mean, log_std, each [R, B, A]."""

    def __init__(self, runs: int, envs: SeededEnvs, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), envs.obs_size, hidden, 2 * envs.act_size)
        self.scale = (envs.action_high - envs.action_low) / 2  # [A]
        self.bias = (envs.action_high + envs.action_low) / 2

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

    def __init__(self, runs: int, envs: SeededEnvs, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs, 2), envs.obs_size + envs.act_size, hidden, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([obs, action], -1)[:, None]).squeeze(-1)


class SAC:
    """Actor, twin critics and temperature of R runs."""

    def __init__(self, args: Args, run: Run, replay: ReplayBuffer):
        self.args, self.replay = args, replay
        self.target_entropy = -float(run.envs.act_size)
        self.actor = run.initialise("actor", Actor(run.runs, run.envs, args.hidden))
        self.critic = run.initialise("critic", Critic(run.runs, run.envs, args.hidden))
        self.log_alpha = torch.zeros(run.runs, device=run.device, requires_grad=True)

        self.actor_adam = Adam(self.actor.parameters(), lr=args.actor_lr)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.critic_lr)
        self.alpha_adam = Adam([self.log_alpha], lr=args.temperature_lr)
        self.target_critic = Target(self.critic, args.tau)

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
        return action, self.critic(obs, action).amin(1), -self.log_alpha.exp()[:, None] * log_prob

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over the twins of the mean squared error to the soft target: losses [R], mean values [R]."""
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(batch.next_obs, noise)
            next_value = self.target_critic(batch.next_obs, next_action).amin(1)
            next_value = next_value - self.log_alpha.exp()[:, None] * next_log_prob
            target = batch.reward + (1 - batch.terminated) * self.args.discount * next_value
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

    def update(self, indices: Tensor, noise: Tensor, actor_due: bool) -> dict[str, Tensor]:
        """One update from the minibatch at `indices` [R, B] with `noise` [R, 1 + 2 actor_delay, B, A]."""
        batch = self.replay.gather(indices)
        critic_loss, value = self.critic_loss(batch, noise[:, 0])
        self.critic_adam.minimise(critic_loss)
        metrics = {"critic_loss": critic_loss.detach(), "value": value}

        if actor_due:
            for i in range(self.args.actor_delay):
                actor_loss, entropy = self.actor_loss(batch.obs, noise[:, 1 + 2 * i])
                self.actor_adam.minimise(actor_loss)
                alpha_loss = self.alpha_loss(batch.obs, noise[:, 2 + 2 * i])
                self.alpha_adam.minimise(alpha_loss)
            metrics |= {"actor_loss": actor_loss.detach(), "entropy": entropy, "alpha": self.log_alpha.detach().exp()}

        self.target_critic.update()
        return metrics


def main(args: Args) -> None:
    run = Run(args, "sac")
    envs = run.envs
    replay = ReplayBuffer(run.runs, min(args.buffer_size, args.total_steps), envs.obs_size, envs.act_size, run.device)
    agent = SAC(args, run, replay)
    act, update = run.fast(agent.explore), run.fast(agent.update)

    uniform = run.stream("random_action", 1, envs.act_size, kind="uniform")
    action_noise = run.stream("action", 1, envs.act_size)
    choice = run.stream("minibatch", args.batch_size, kind="integer")
    noise = run.stream("update", 1 + 2 * args.actor_delay, args.batch_size, envs.act_size)

    run.compare_values(agent.foresee, args.discount)
    for step in run.steps(agent.exploit, agent=agent, replay=replay):
        if step <= args.learning_starts:
            envs.send(torch.lerp(envs.action_low, envs.action_high, uniform()))
        else:
            envs.send(act(envs.obs, action_noise()))
            run.log(update(replay.indices(choice()), noise(), step % args.actor_delay == 0))
        replay.add(envs.receive())


if __name__ == "__main__":
    cli(main)
