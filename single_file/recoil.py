"""ReCOIL: imitation from a few expert transitions and any other data, without rewards, many seeds at once.

Sikchi et al., "Dual RL: Unification and New Methods for Reinforcement and Imitation Learning" (arXiv 2302.08560), as
its official code computes it, which differs from the paper: the labelled expert's actions have the value 200, all
others follow -2 + 0.99 V(s'), -200 for good where an episode terminates; V is the Gumbel regression of XQL (xql.py)
under the mixed data, the actor imitates the mixed data weighted by exp(temperature (Q - V)), at most 100. The paper's
mixture weight beta has no counterpart there.

`--objective paper` is the paper's chi-square objective for Q: beta (E_S,pi Q - E_E Q) + E_mix (discount V(s') - Q)^2 /
4, S being the mixed data and mix beta expert + (1 - beta) S, with V(s') = 0 after a termination, and the same V and
actor. It is the paper's as others quote it, not the authors' code, and its published settings are not known.

The mixed data is --dataset and, hidden in it, the first --expert-trajectories of --expert-dataset; the labelled expert
is the first --expert-transitions of it, so it is part of the mixed data, unless none are hidden. As in the official
code, trajectories are counted by terminations and by the task's greatest number of steps, and the transition at which
the count is reached is left out; if there are fewer, none are hidden.

    python single_file/recoil.py --dataset local/hopper-random-v0 --expert-dataset local/hopper-expert-v0 --seeds 0:10

Results lie in runs/<dataset>/recoil/<variant>/, one row per seed and evaluation episode in eval.parquet.
"""

import math
import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from algos.arguments import AUTO, AutoCount, AutoNatural, AutoRate, AutoShare, Count, Fraction, Rate, Step, Widths
from algos.data import Dataset
from algos.nn import MLP, Orthogonal
from algos.offline import MixedArgs, begin
from algos.optim import Adam, Target
from algos.run import Run, cli

# for arguments that are not given
DEFAULTS = {"temperature": 3.0, "dropout": 0.0, "expert_transitions": 1000}
DOMAINS = {
    "kitchen": {"temperature": 0.5, "dropout": 0.1, "expert_transitions": 183},
    "adroit": {"dropout": 0.1, "expert_transitions": 200},
}
TASKS = {"pen": {"expert_transitions": 100}}
EXPERT, STEP, END = 200.0, -2.0, -200.0  # values of the expert and of termination, and the reward of every other step


@dataclass
class Args(MixedArgs):
    dataset: str = "local/hopper-random-v0"
    """the data that is no expert's: d4rl/…, minari/…, local/…, or a .hdf5 or .npz file"""
    expert_dataset: str = "local/hopper-expert-v0"
    """the expert's data"""
    expert_transitions: AutoCount = AUTO
    """labelled as the expert's; by default 1,000, pen 100, door, hammer and relocate 200, kitchen 183"""
    objective: Literal["code", "paper"] = "code"
    """of the critics: as the official code has it, or as the paper states it"""
    beta: Fraction = 0.5
    """weight of the expert in the paper's mixture; the code has none"""
    batch_size: Count = 1024
    """transitions of the mixed data per update and seed, and as many of the expert"""
    discount: Fraction = 0.99
    """gamma"""
    tau: Step = 0.005
    """step size of the target critics"""
    lr: Rate = 3e-4
    """learning rate of actor, critics and value"""
    scale: Rate = 1.0
    """beta of the Gumbel distribution; to be raised (2.5, 5, 10, 20) until Q no longer diverges"""
    clip: Rate = 7.0
    """greatest (Q - V) / scale that V learns from"""
    temperature: AutoRate = AUTO
    """inverse temperature of the actor's weights; by default 3, kitchen 0.5"""
    dropout: AutoShare = AUTO
    """of the actor's hidden layers while it learns; by default none, kitchen and adroit 0.1"""
    layer_norm: Literal["auto", "on", "off"] = "auto"
    """normalise the layers of V; auto: for kitchen and adroit"""
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

    def sample(self, obs: Tensor, normal: Tensor) -> Tensor:
        return (self(obs) + self.log_std.clamp(-5, 2).exp() * normal).clamp(-1, 1)

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

    def __init__(self, runs: int, data: Dataset, hidden: tuple[int, ...], layer_norm: bool):
        super().__init__()
        eps = 1e-6 if layer_norm else None
        self.net = MLP((runs,), data.obs_size, hidden, 1, layer_norm=eps, linear=Orthogonal)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


class ReCOIL:
    """Actor, twin critics and value of R runs, with the mixed and the expert's data."""

    def __init__(self, args: Args, run: Run, mixed: Dataset, expert: Dataset):
        self.args, self.mixed, self.expert = args, mixed, expert
        self.actor = run.initialise("actor", Actor(run.runs, mixed, args.hidden))
        self.critic = run.initialise("critic", Critic(run.runs, mixed, args.hidden))
        layer_norm = args.layer_norm == "on" or (args.layer_norm == "auto" and args.domain in ("kitchen", "adroit"))
        self.value = run.initialise("value", Value(run.runs, mixed, args.hidden, layer_norm))
        self.actor_adam = Adam(self.actor.parameters(), lr=args.lr, decay_steps=args.decay_steps)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.lr)
        self.value_adam = Adam(self.value.parameters(), lr=args.lr)
        self.target_critic = Target(self.critic, args.tau)

    def value_loss(self, advantage: Tensor) -> Tensor:
        """exp(z - M) - z exp(-M) - exp(-M) of the first half of z = (Q - V) / scale, at most `clip`: losses [R].

        d = Q - V [R, 2 B] of the mixed data, then the expert's; M = max z of both, at least -1.
        """
        z = (advantage / self.args.scale).clamp(max=self.args.clip)
        highest = z.detach().amax(-1, keepdim=True).clamp(min=-1)
        z = z.chunk(2, -1)[0]
        return ((z - highest).exp() - (z + 1) * (-highest).exp()).mean(-1)

    def actor_loss(self, obs: Tensor, action: Tensor, advantage: Tensor, factors: list[Tensor] | None) -> Tensor:
        """-exp(temperature (Q - V)) log pi(a|s), the weight at most 100: losses [R]."""
        weight = (self.args.temperature * advantage).exp().clamp(max=100.0)
        return -(weight * self.actor.log_prob(obs, action, factors)).mean(-1)

    def critic_loss(self, q: Tensor, next_value: Tensor, terminated: Tensor) -> Tensor:
        """Half mean squared errors of q [R, 2, 2 B], of the mixed data, then the expert's, summed over the twins: [R].

        The expert's follow 200, those of the mixed data -2 + discount V(s'), or -200 where an episode terminated.
        """
        of_mixed, of_expert = q.chunk(2, -1)
        target = STEP + self.args.discount * torch.where(terminated > 0, END, next_value)
        losses = 0.5 * (of_mixed - target[:, None]).square() + 0.5 * (of_expert - EXPERT).square()
        return losses.mean(-1).sum(-1)

    def paper_loss(self, q: Tensor, next_value: Tensor, q_of_policy: Tensor) -> Tensor:
        """beta (E_S,pi Q - E_E Q) + E_mix (discount V(s') - Q)^2 / 4, summed over the twins: losses [R].

        q [R, 2, 2 B] and V(s') [R, 2 B], 0 after a termination, of the mixed data, then the expert's; Q of the policy's
        actions [R, 2, B].
        """
        beta = self.args.beta
        residual = (self.args.discount * next_value[:, None] - q).square() / 4
        of_mixed, of_expert = (half.mean(-1) for half in residual.chunk(2, -1))
        contrast = q_of_policy.mean(-1) - q.chunk(2, -1)[1].mean(-1)
        return (beta * contrast + beta * of_expert + (1 - beta) * of_mixed).sum(-1)

    def update(
        self, integers: Tensor, uniform: Tensor | None = None, normal: Tensor | None = None
    ) -> dict[str, Tensor]:
        """One update from the minibatches that integers [R, 2, B] choose, of the mixed data and of the expert's.

        uniform [R, layers, B, H], in [0, 1), is for dropout; normal [R, B, A] for the policy's actions of the paper.
        """
        mixed = self.mixed.gather(self.mixed.choose(integers[:, 0]))
        expert = self.expert.gather(self.expert.choose(integers[:, 1]))
        obs, action = torch.cat([mixed.obs, expert.obs], 1), torch.cat([mixed.action, expert.action], 1)
        with torch.no_grad():
            q = self.target_critic(obs, action).amin(1)

        value_loss = self.value_loss(q - self.value(obs))
        self.value_adam.minimise(value_loss)

        states = [mixed.obs, mixed.next_obs] if normal is None else [mixed.obs, mixed.next_obs, expert.next_obs]
        with torch.no_grad():
            value, *next_values = self.value(torch.cat(states, 1)).chunk(len(states), 1)
        advantage = q.chunk(2, 1)[0] - value
        rate = self.args.dropout
        factors = None if uniform is None else [(u >= rate) / (1 - rate) for u in uniform.unbind(1)]
        actor_loss = self.actor_loss(mixed.obs, mixed.action, advantage, factors)
        self.actor_adam.minimise(actor_loss)

        online = self.critic(obs, action)
        if normal is None:
            critic_loss = self.critic_loss(online, next_values[0], mixed.terminated)
        else:
            with torch.no_grad():
                own = self.actor.sample(mixed.obs, normal)
            goes_on = 1 - torch.cat([mixed.terminated, expert.terminated], 1)
            critic_loss = self.paper_loss(online, goes_on * torch.cat(next_values, 1), self.critic(mixed.obs, own))
        self.critic_adam.minimise(critic_loss)

        self.target_critic.update()
        of_mixed, of_expert = online.detach().mean(1).chunk(2, -1)
        return {
            "value_loss": value_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "value": value.mean(-1),
            "q_mixed": of_mixed.mean(-1),
            "q_expert": of_expert.mean(-1),
        }


def main(args: Args) -> None:
    own = next((table for task, table in TASKS.items() if task in args.words), {})
    settings = args.fill(own, DOMAINS.get(args.domain, {}), DEFAULTS, {"decay_steps": args.total_steps})
    source = args.load_expert()
    hidden = source.transitions_of(settings.expert_trajectories)
    labelled = min(settings.expert_transitions, len(source))
    source = source.first(max(hidden, labelled))
    run, both = begin(args, "recoil", settings=settings, more=source, hidden_expert=hidden, labelled_expert=labelled)
    others = len(both) - len(source)
    if not hidden:
        few = f"fewer than {settings.expert_trajectories:,} trajectories"
        print(f"warning: {args.expert_dataset} has {few}, so nothing of it is in the mixed data", file=sys.stderr)
    mixed, expert = both.part(np.arange(others + hidden)), both.part(np.arange(others, others + labelled))
    run.say(
        f"{hidden:,} transitions of the mixed data are the expert's, {hidden / len(mixed):.1%}; {labelled:,} labelled"
    )
    args, agent = settings, ReCOIL(settings, run, mixed, expert)
    update = run.fast(agent.update)

    choice = run.stream("minibatch", 2, args.batch_size, kind="integer")
    widest, dropped = max(args.hidden), args.dropout > 0
    uniform = run.stream("dropout", len(args.hidden), args.batch_size, widest, kind="uniform", used=dropped)
    normal = run.stream("action", args.batch_size, mixed.act_size, used=args.objective == "paper")
    for _ in run.steps(mixed.adapt(agent.actor), agent=agent):
        run.log(update(choice(), uniform(), normal()))


if __name__ == "__main__":
    cli(main)
