"""IQL: implicit Q-learning, many seeds at once.

Kostrikov, Nair and Levine, "Offline Reinforcement Learning with Implicit Q-Learning" (arXiv 2110.06169), as its
official code computes it: a state value V follows an upper expectile of target critics, the twin critics follow r +
discount V, and the actor imitates the data's actions, weighted by exp(temperature (Q - V)), at most 100. An update goes
V, actor (with the new V and the target critics before they move), critics, target critics.

Faithful are: rewards scaled to a range of returns of 1,000 (locomotion) or less 1 (antmaze), raw observations, no layer
normalisation, orthogonal initial weights times sqrt(2) everywhere, a learned standard deviation that does not depend on
the state, a mean squashed by tanh while samples are not, a learning rate of the actor that falls along a cosine, and
the score of the last actor. Expectile, temperature and dropout depend on the domain as the paper's do. CORL's figures
come from other settings: --standardise and, mostly, --reward none.

    python single_file/iql.py --dataset local/hopper-medium-replay-v0 --seeds 0:10

Results lie in runs/<dataset>/iql/<variant>/, one row per seed and evaluation episode in eval.parquet.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algos.arguments import AUTO, AutoFraction, AutoNatural, AutoRate, AutoShare, Count, Fraction, Rate, Step, Widths
from algos.data import Dataset
from algos.nn import MLP, Orthogonal
from algos.offline import OfflineArgs, Rewards, begin
from algos.optim import Adam, Target
from algos.run import Run, cli

# for arguments that are not given
DEFAULTS = {"expectile": 0.7, "temperature": 3.0, "dropout": 0.0}
DOMAINS = {
    "antmaze": {"expectile": 0.9, "temperature": 10.0},
    "kitchen": {"temperature": 0.5, "dropout": 0.1},
    "adroit": {"temperature": 0.5, "dropout": 0.1},
}


@dataclass
class Args(OfflineArgs):
    reward: Rewards = "auto"
    """how rewards are changed: range (of returns, to 1,000), minus_one, none; auto: range for locomotion, minus_one for
    antmaze, else none"""
    batch_size: Count = 256
    """transitions per update and seed"""
    discount: Fraction = 0.99
    """gamma"""
    tau: Step = 0.005
    """step size of the target critics"""
    lr: Rate = 3e-4
    """learning rate of actor, critics and value"""
    expectile: AutoFraction = AUTO
    """tau of the paper: 0.5 is the mean of the critics' values, 1 their maximum; by default 0.7, antmaze 0.9"""
    temperature: AutoRate = AUTO
    """inverse temperature of the actor's weights; by default 3, antmaze 10, kitchen and adroit 0.5"""
    dropout: AutoShare = AUTO
    """of the actor's hidden layers while it learns; by default none, kitchen and adroit 0.1"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of all networks"""
    decay_steps: AutoNatural = AUTO
    """updates within which the actor's learning rate falls to 0, along a cosine; by default all; 0: it does not"""


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
        self.net = MLP((runs,), data.obs_size, hidden, 1, linear=Orthogonal)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


class IQL:
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
        """|expectile - 1(d < 0)| d^2 of d = Q - V, elementwise."""
        expectile = self.args.expectile
        return torch.where(advantage > 0, expectile, 1 - expectile) * advantage.square()

    def actor_loss(self, obs: Tensor, action: Tensor, advantage: Tensor, factors: list[Tensor] | None) -> Tensor:
        """-exp(temperature (Q - V)) log pi(a|s), the weight at most 100: losses [R]."""
        weight = (self.args.temperature * advantage).exp().clamp(max=100.0)
        return -(weight * self.actor.log_prob(obs, action, factors)).mean(-1)

    def critic_loss(self, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """Sum over the twins of the mean squared error to target [R, B]: losses [R]."""
        return (self.critic(obs, action) - target[:, None]).square().mean(-1).sum(-1)

    def update(self, integers: Tensor, uniform: Tensor | None = None) -> dict[str, Tensor]:
        """One update from the minibatch of integers [R, B]; uniform [R, layers, B, H] in [0, 1) for dropout."""
        batch = self.data.gather(self.data.choose(integers))
        with torch.no_grad():
            q = self.target_critic(batch.obs, batch.action).amin(1)

        value = self.value(batch.obs)
        value_loss = self.value_loss(q - value).mean(-1)
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
    run, data = begin(args, "iql", args.reward, settings=settings)
    args, agent = settings, IQL(settings, run, data)
    update = run.fast(agent.update)

    choice = run.stream("minibatch", args.batch_size, kind="integer")
    widest, dropped = max(args.hidden), args.dropout > 0
    uniform = run.stream("dropout", len(args.hidden), args.batch_size, widest, kind="uniform", used=dropped)
    for _ in run.steps(data.adapt(agent.actor), agent=agent):
        run.log(update(choice(), uniform()))


if __name__ == "__main__":
    cli(main)
