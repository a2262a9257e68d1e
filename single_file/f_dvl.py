"""f-DVL: dual value learning with chi-square or total variation, many seeds at once.

Sikchi et al., "Dual RL: Unification and New Methods for Reinforcement and Imitation Learning" (arXiv 2302.08560), as
its official code computes it: implicit Q-learning (iql.py) whose value loss is lambda f*(d) - (1 - lambda) d of d = Q -
V, with f* the positive part of a conjugate: max(d + d^2 / 4, 0) for chi-square, max(d, 0) for total variation. The
former is a surrogate of the true conjugate, which is -1 below d = -2: where V is more than 4 above Q, it pulls V down
ever harder, so that this loss depends on the scale of rewards. With reverse KL the method is XQL (xql.py).

Other than in IQL, V has layer normalisation, critics learn by a Huber loss (delta 20; its half replaces IQL's 1), and a
batch has 1,024 transitions. The paper's lambda for each dataset is not known, and the code's default, 1, takes away the
term that holds V down. The default here, 0.8, comes from a sweep (results/f_dvl_lambda) that is short: 10,000 updates
with batches of 256 on one dataset, HalfCheetah's medium-replay. There 0.6 is worst for both divergences and 0.7 worse
than 0.8 and 0.9 for total variation; between 0.8 and 0.9 it leaves the choice open, for chi-square from 0.7 on. Values
still grew then, the faster the higher lambda was, so that it may favour what learns fast over what ends best.

    python single_file/f_dvl.py --dataset local/hopper-medium-replay-v0 --seeds 0:10
    python single_file/f_dvl.py --dataset local/hopper-medium-replay-v0 --f tv --optimism 0.7 --variant tv

Results lie in runs/<dataset>/f_dvl/<variant>/, one row per seed and evaluation episode in eval.parquet.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algos.arguments import (
    AUTO,
    AutoNatural,
    AutoRate,
    AutoShare,
    Count,
    Fraction,
    Natural,
    Range,
    Rate,
    Step,
    Widths,
)
from algos.data import Dataset
from algos.nn import MLP, Orthogonal
from algos.offline import OfflineArgs, Rewards, begin
from algos.optim import Adam, Target
from algos.run import Run, cli

Weight = Annotated[float, Range(0.5, 1, above=True)]  # of f*; total variation has no minimum below 0.5 and above 1
# for arguments that are not given
DEFAULTS = {"temperature": 3.0, "dropout": 0.0}
DOMAINS = {
    "antmaze": {"temperature": 10.0, "decay_steps": 0},
    "kitchen": {"temperature": 0.5, "dropout": 0.1},
    "adroit": {"temperature": 0.5, "dropout": 0.1},
}


@dataclass
class Args(OfflineArgs):
    reward: Rewards = "auto"
    """how rewards are changed: range (of returns, to 1,000), minus_one, none; auto: range for locomotion, minus_one for
    antmaze, else none"""
    batch_size: Count = 1024
    """transitions per update and seed"""
    discount: Fraction = 0.99
    """gamma"""
    tau: Step = 0.005
    """step size of the target critics"""
    lr: Rate = 3e-4
    """learning rate of actor, critics and value"""
    f: Literal["chi2", "tv"] = "chi2"
    """the divergence: chi-square, or total variation"""
    optimism: Weight = 0.8
    """lambda of the paper: the higher, the closer V comes to the greatest Q; useful from 0.6 to below 1"""
    random_actions: Natural = 0
    """V also learns from so many uniformly random actions for each of the data's"""
    noise: Fraction = 0.0
    """standard deviation of noise, clipped at 0.5, on the actions that V learns from; the official flag sets 0.1"""
    value_updates: Count = 1
    """steps of V per update, all on the same minibatch"""
    temperature: AutoRate = AUTO
    """inverse temperature of the actor's weights; by default 3, antmaze 10, kitchen and adroit 0.5"""
    dropout: AutoShare = AUTO
    """of the actor's hidden layers while it learns; by default none, kitchen and adroit 0.1"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of all networks"""
    decay_steps: AutoNatural = AUTO
    """updates within which the actor's learning rate falls to 0, along a cosine; by default all, antmaze 0: never"""


class Actor(nn.Module):
    """Gaussian policy: obs [R, B, O] -> mean in [-1, 1] [R, B, A]; one standard deviation for all states."""

    def __init__(self, runs: int, data: Dataset, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), data.obs_size, hidden, data.act_size, linear=Orthogonal)
        self.log_std = nn.Parameter(torch.zeros(runs, 1, data.act_size))

    def forward(self, obs: Tensor, factors: list[Tensor] | None = None) -> Tensor:
        return torch.tanh(self.net(obs, factors))

    def log_prob(self, obs: Tensor, action: Tensor, factors: list[Tensor] | None = None) -> Tensor:
        """Log-density [R, B] of actions [R, B, A], which are not squashed."""
        log_std = self.log_std.clamp(-5, 2)
        scaled = (action - self(obs, factors)) * (-log_std).exp()
        return (-0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


class Critic(nn.Module):
    """Twin action values: obs [R, B, O], action [R, B, A] -> [R, 2, B]."""

    def __init__(self, runs: int, data: Dataset, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs, 2), data.obs_size + data.act_size, hidden, 1, linear=Orthogonal)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([obs, action], -1)[:, None]).squeeze(-1)


class Value(nn.Module):
    """State values: obs [R, B, O] -> [R, B]."""

    def __init__(self, runs: int, data: Dataset, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), data.obs_size, hidden, 1, layer_norm=1e-6, linear=Orthogonal)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


class FDVL:
    """Actor, twin critics and value of R runs."""

    def __init__(self, args: Args, run: Run, data: Dataset):
        self.args, self.data = args, data
        self.actor = run.initialise("actor", Actor(run.runs, data, args.hidden))
        self.critic = run.initialise("critic", Critic(run.runs, data, args.hidden))
        self.value = run.initialise("value", Value(run.runs, data, args.hidden))

        self.actor_adam = Adam(self.actor.parameters(), lr=args.lr, decay_steps=args.decay_steps)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.lr)
        self.value_adam = Adam(self.value.parameters(), lr=args.lr)
        self.target_critic = Target(self.critic, args.tau)

    def value_loss(self, advantage: Tensor) -> Tensor:
        """lambda max(d + d^2 / 4, 0) - (1 - lambda) d of d = Q - V; for total variation, with max(d, 0)."""
        conjugate = advantage + advantage.square() / 4 if self.args.f == "chi2" else advantage
        return self.args.optimism * conjugate.relu() - (1 - self.args.optimism) * advantage

    def actor_loss(self, obs: Tensor, action: Tensor, advantage: Tensor, factors: list[Tensor] | None) -> Tensor:
        """-exp(temperature (Q - V)) log pi(a|s), the weight at most 100: losses [R]."""
        weight = (self.args.temperature * advantage).exp().clamp(max=100.0)
        return -(weight * self.actor.log_prob(obs, action, factors)).mean(-1)

    def critic_loss(self, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Sum over the twins of the mean Huber loss, with delta 20, to target [R, B]: losses [R]."""
        q = self.critic(obs, action)
        return F.huber_loss(q, target[:, None].expand_as(q), reduction="none", delta=20.0).mean(-1).sum(-1)

    def values(self, obs: Tensor, action: Tensor, q: Tensor, normal: Tensor | None, other: Tensor | None) -> Tensor:
        """Target values q [R, B] of the data's actions, and what V learns from: [R, 1 + random_actions, B].

        With normal [R, B, A] the actions have noise there, with other [R, k, B, A], in [0, 1), k random ones stand by.
        """
        if normal is not None:
            action = (action + (self.args.noise * normal).clamp(-0.5, 0.5)).clamp(-1, 1)
            q = self.target_critic(obs, action).amin(1)
        if other is None:
            return q[:, None]
        runs, k, batch, size = other.shape
        at_random = self.target_critic(obs.repeat(1, k, 1), (2 * other - 1).reshape(runs, k * batch, size)).amin(1)
        return torch.cat([q[:, None], at_random.view(runs, k, batch)], 1)

    def update(
        self,
        integers: Tensor,
        uniform: Tensor | None = None,
        normal: Tensor | None = None,
        other: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """One update from the minibatch that integers [R, B] choose.

        uniform [R, layers, B, H], in [0, 1), is for dropout; for the others see `values`.
        """
        batch = self.data.gather(self.data.choose(integers))
        with torch.no_grad():
            q = self.target_critic(batch.obs, batch.action).amin(1)
            q_of_value = self.values(batch.obs, batch.action, q, normal, other)

        for _ in range(self.args.value_updates):
            advantage = q_of_value - self.value(batch.obs)[:, None]
            value_loss = self.value_loss(advantage.flatten(1)).mean(-1)
            self.value_adam.minimise(value_loss)

        with torch.no_grad():
            value, next_value = self.value(torch.cat([batch.obs, batch.next_obs], 1)).chunk(2, 1)
            target = batch.reward + self.args.discount * (1 - batch.terminated) * next_value
        rate = self.args.dropout
        factors = None if uniform is None else [(u >= rate) / (1 - rate) for u in uniform.unbind(1)]
        actor_loss = self.actor_loss(batch.obs, batch.action, q - value, factors)
        self.actor_adam.minimise(actor_loss)

        critic_loss = self.critic_loss(batch.obs, batch.action, target)
        self.critic_adam.minimise(critic_loss)

        self.target_critic.update()
        return {
            "value_loss": value_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "value": value.mean(-1),
            "advantage": (q - value).mean(-1),
        }


def main(args: Args) -> None:
    settings = args.fill(DOMAINS.get(args.domain, {}), DEFAULTS, {"decay_steps": args.total_steps})
    run, data = begin(args, "f_dvl", args.reward, settings=settings)
    args, agent = settings, FDVL(settings, run, data)
    update = run.fast(agent.update)

    choice = run.stream("minibatch", args.batch_size, kind="integer")
    widest, dropped = max(args.hidden), args.dropout > 0
    uniform = run.stream("dropout", len(args.hidden), args.batch_size, widest, kind="uniform", used=dropped)
    normal = run.stream("noise", args.batch_size, data.act_size, used=args.noise > 0)
    k = args.random_actions
    other = run.stream("action", k, args.batch_size, data.act_size, kind="uniform", used=k > 0)
    for _ in run.steps(data.adapt(agent.actor), agent=agent):
        run.log(update(choice(), uniform(), normal(), other()))


if __name__ == "__main__":
    cli(main)
