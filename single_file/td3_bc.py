"""TD3+BC: TD3 with a behaviour cloning term, many seeds at once.

Fujimoto and Gu, "A Minimalist Approach to Offline Reinforcement Learning" (arXiv 2106.06860), as its official code
computes it: twin critics follow the smaller target value of the target actor's action with clipped noise; at every
second update the actor maximises lambda Q1(s, pi(s)) - (pi(s) - a)^2, lambda = alpha / mean |Q1|, and all targets move.
Observations are standardised with the dataset's statistics; rewards are as they are, but less 1 on antmaze (CORL's
setting there).

    python single_file/td3_bc.py --dataset local/hopper-medium-replay-v0 --seeds 0:10

Results lie in runs/<dataset>/td3_bc/<variant>/, one row per seed and evaluation episode in eval.parquet.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algos.arguments import Count, Fraction, Rate, Step, Widths
from algos.data import Dataset
from algos.nn import MLP
from algos.offline import OfflineArgs, Rewards, begin
from algos.optim import Adam, Target
from algos.run import Run, cli


@dataclass
class Args(OfflineArgs):
    reward: Rewards = "auto"
    """how rewards are changed: range (of returns, to 1,000), minus_one, none; auto: none, but minus_one for antmaze"""
    standardise: bool = True
    """observations less their mean, by their standard deviation"""
    batch_size: Count = 256
    """transitions per update and seed"""
    discount: Fraction = 0.99
    """gamma"""
    tau: Step = 0.005
    """step size of the targets"""
    lr: Rate = 3e-4
    """learning rate of actor and critics"""
    alpha: Rate = 2.5
    """weight of the critic against cloning"""
    policy_noise: Fraction = 0.2
    """standard deviation of the target actions' noise"""
    noise_clip: Fraction = 0.5
    """bound of this noise"""
    actor_delay: Count = 2
    """updates between those of actor and targets"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of actor and critics"""


class Actor(nn.Module):
    """Deterministic policy: obs [R, B, O] -> action in [-1, 1] [R, B, A]."""

    def __init__(self, runs: int, data: Dataset, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), data.obs_size, hidden, data.act_size)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.net(obs))


class Critic(nn.Module):
    """Twin action values: obs [R, B, O], action [R, B, A] -> [R, 2, B]."""

    def __init__(self, runs: int, data: Dataset, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs, 2), data.obs_size + data.act_size, hidden, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([obs, action], -1)[:, None]).squeeze(-1)


class TD3BC:
    """Actor and twin critics of R runs."""

    def __init__(self, args: Args, run: Run, data: Dataset):
        self.args, self.data = args, data
        self.actor = run.initialise("actor", Actor(run.runs, data, args.hidden))
        self.critic = run.initialise("critic", Critic(run.runs, data, args.hidden))
        self.actor_adam = Adam(self.actor.parameters(), lr=args.lr)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.lr)
        self.target_actor = Target(self.actor, args.tau)
        self.target_critic = Target(self.critic, args.tau)

    @torch.no_grad()
    def target(self, reward: Tensor, terminated: Tensor, next_obs: Tensor, normal: Tensor) -> Tensor:
        """What the critics follow [R, B], with standard normal noise [R, B, A]."""
        noise = (self.args.policy_noise * normal).clamp(-self.args.noise_clip, self.args.noise_clip)
        next_action = (self.target_actor(next_obs) + noise).clamp(-1, 1)
        next_value = self.target_critic(next_obs, next_action).amin(1)
        return reward + self.args.discount * (1 - terminated) * next_value

    def critic_loss(self, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Sum over the twins of the mean squared error to target [R, B]: losses [R]."""
        return (self.critic(obs, action) - target[:, None]).square().mean(-1).sum(-1)

    def actor_loss(self, obs: Tensor, action: Tensor) -> Tensor:
        """-lambda mean Q1(s, pi(s)) + mean squared difference of pi(s) and a: losses [R]."""
        own = self.actor(obs)
        value = self.critic(obs, own)[:, 0]
        weight = self.args.alpha / value.detach().abs().mean(-1)
        return -weight * value.mean(-1) + (own - action).square().mean((1, 2))

    def update(self, integers: Tensor, normal: Tensor, actor_due: bool) -> dict[str, Tensor]:
        """One update from the minibatch that integers [R, B] choose, with standard normal noise [R, B, A]."""
        batch = self.data.gather(self.data.choose(integers))
        target = self.target(batch.reward, batch.terminated, batch.next_obs, normal)
        critic_loss = self.critic_loss(batch.obs, batch.action, target)
        self.critic_adam.minimise(critic_loss)
        metrics = {"critic_loss": critic_loss.detach(), "target": target.mean(-1)}

        if actor_due:
            actor_loss = self.actor_loss(batch.obs, batch.action)
            self.actor_adam.minimise(actor_loss)
            self.target_critic.update()
            self.target_actor.update()
            metrics["actor_loss"] = actor_loss.detach()
        return metrics


def main(args: Args) -> None:
    reward: Rewards = args.reward if args.reward != "auto" else "minus_one" if args.domain == "antmaze" else "none"
    run, data = begin(args, "td3_bc", reward)
    agent = TD3BC(args, run, data)
    update = run.fast(agent.update)

    choice = run.stream("minibatch", args.batch_size, kind="integer")
    normal = run.stream("action", args.batch_size, data.act_size)
    for step in run.steps(data.adapt(agent.actor), agent=agent):
        run.log(update(choice(), normal(), step % args.actor_delay == 0))


if __name__ == "__main__":
    cli(main)
