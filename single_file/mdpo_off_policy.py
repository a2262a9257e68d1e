"""MDPO, off-policy: mirror descent policy optimisation with the KL or a Tsallis divergence, many seeds at once.

Tomar, Shani, Efroni and Ghavamzadeh, "Mirror Descent Policy Optimization" (arXiv 2005.09814), in the form of its
official code. It is soft actor-critic with a state value and a fixed temperature, whose policy is held near an old copy
of itself: the Bregman distance to the copy has the weight c = 1/t, and the copy is made anew every 1,000 steps. With
c = lambda the copy plays no part; with q = 1 too, the rest is the first version of SAC with Q1 alone in the policy's
loss. With q above 1, logarithms are those of Tsallis, taken of the density of each dimension. The squares of mean and
log standard deviation have weights of 1e-3 in the policy's loss, as in the code; the paper does not mention them.

The official code acts with the mean action while it trains, and the value loss of its last version pairs every state
with the entropy of every other one. The published figures probably came from both; `--explore mean` and `--value-loss
broadcast` do the same. By default, actions are sampled, and each state has its own entropy. Two faults of that code are
not repeated: after a time limit it bootstraps from the next episode's first observation, and it stores the random
actions of the start in other units than those of the policy. The official Adam adds epsilon before it corrects the
bias, and ours afterwards.

    python single_file/mdpo_off_policy.py --env-id HalfCheetah-v5 --seeds 0:10

Results lie in runs/<env>/mdpo_off_policy/<variant>/. An update never sees the transition that is being made while it
runs, so that a GPU learns while the CPU steps the environments.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import (
    Count,
    Fraction,
    NotNegative,
    Positive,
    PositiveFraction,
    Range,
    Size,
    Tunable,
    Widths,
    by_domain,
    for_domain,
)
from algos.cli import EnvArgs, cli
from algos.errors import UserError
from algos.nn import MLP, Glorot
from algos.optim import Adam, Target
from algos.per_run import PerRun, numbers
from algos.random import Random
from algos.replay import Batch, ReplayBuffer
from algos.run import Run
from envs import Task, plain_id

LEAST = math.log(1e-6)  # a smaller log-density counts as this one, as in the official code
REGULARISER = 1e-3  # weight of the squares of mean and log standard deviation
EPS = 1e-6  # the official code adds this to standard deviations and inside logarithms


@dataclass
class Args(EnvArgs):
    buffer_size: Count = 1_000_000
    """transitions kept per run"""
    batch_size: Size = 256
    """transitions per update and run"""
    learning_starts: Count = 10_000
    """uniformly random steps before learning"""
    explore: Literal["sample", "mean"] = "sample"
    """the action while it trains: a sample, or the mean without any noise as in the official code"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    tau: Tunable[PositiveFraction] = 0.005
    """step size of the target value"""
    actor_lr: Tunable[Positive] = 3e-4
    """learning rate of the policy"""
    critic_lr: Tunable[Positive] = 3e-4
    """learning rate of action values and state value"""
    entropy_weight: Tunable[NotNegative] = 0.2
    """lambda, the weight of the policy's entropy"""
    kl_weight: Tunable[Positive] = by_domain(1.0, HalfCheetah=0.3)
    """c = 1/t, the weight of the distance to the old policy; it must be above half of --entropy-weight. The paper chose
    one for each task; known are 1 for Walker2d, from its code's README, and 0.3 for HalfCheetah, from an earlier
    version of the paper as a user of the code quotes it. For other tasks, 1 is a guess"""
    q: Tunable[Annotated[float, Range(1, 2)]] = 1.0
    """1: the KL divergence; up to 2: Tsallis. The paper chose q for each task; known are 1.4 for HumanoidStandup, and 2
    for Ant in the paper's minimal form"""
    refresh_every: Count = 1_000
    """environment steps between two copies of the policy into the old policy"""
    value_loss: Literal["per_state", "broadcast"] = "per_state"
    """the entropy in the target of a state's value: its own, or the mean of the batch as in the official code"""
    hidden: Widths = (256, 256)
    """widths of the hidden layers of policy, action values and state value"""

    def __post_init__(self) -> None:
        plain = plain_id(self.env_id)  # a later change of env_id does not change the defaults
        for_domain(self, [plain, plain.partition("-")[0]])


class Draws(NamedTuple):
    """Standard normal numbers of one update."""

    action: Tensor  # [R, B, A]


class Gaussian(NamedTuple):
    """A diagonal Gaussian before squashing, each [R, B, A]."""

    mean: Tensor
    log_std: Tensor

    def log_density(self, x: Tensor, action: Tensor) -> Tensor:
        """The log-density of each dimension [R, B, A] of action = tanh(x), in (-1, 1)."""
        normal = ((x - self.mean) / (self.log_std.exp() + EPS)).square() + 2 * self.log_std + math.log(2 * math.pi)
        return -0.5 * normal - torch.log(1 - action.square() + EPS)


class Actor(nn.Module):
    """Squashed Gaussian policy: obs [R, B, O] -> mean, log_std, each [R, B, A]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), task.obs_size, hidden, 2 * task.act_size, linear=Glorot, last=partial(Glorot, heads=2))

    def forward(self, obs: Tensor) -> Gaussian:
        mean, log_std = self.net(obs).chunk(2, -1)
        return Gaussian(mean, log_std.clamp(-20, 2))


class Value(nn.Module):
    """State value: obs [R, B, O] -> [R, B]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = MLP((runs,), task.obs_size, hidden, 1, linear=Glorot)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


class Critic(nn.Module):
    """Twin action values and a state value."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.twins = MLP((runs, 2), task.obs_size + task.act_size, hidden, 1, linear=Glorot)
        self.state = Value(runs, task, hidden)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Action values [R, 2, B] of obs [R, B, O] and action [R, B, A] in (-1, 1)."""
        return self.twins(torch.cat([obs, action], -1)[:, None]).squeeze(-1)


def log_q(log_p: Tensor, q: float | PerRun) -> Tensor:
    """The q-logarithm (p^(q-1) - 1) / (q - 1) of densities p, from their logarithms; it is log p for q = 1.

    Densities below 1e-6 count as 1e-6 and have no gradient.
    """
    exponent = (q - 1) * log_p.clamp(min=LEAST)
    small = exponent.abs() < 1e-6  # there expm1(x) / x is 1 + x / 2, which unlike 0 / 0 has a gradient
    factor = torch.where(small, 1 + exponent / 2, torch.expm1(exponent) / torch.where(small, 1.0, exponent))
    return log_p.clamp(min=LEAST) * factor


class MDPO(Agent):
    """Policy, its old copy, twin action values, state value and its target of R runs."""

    scale: Tensor
    bias: Tensor

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        weights = zip(numbers(args.kl_weight, self.runs), numbers(args.entropy_weight, self.runs), strict=True)
        for kl_weight, entropy_weight in weights:
            if kl_weight <= entropy_weight / 2:
                raise UserError(
                    "--kl-weight must be above half of --entropy-weight, or the policies do not converge; "
                    f"got {kl_weight:g} and {entropy_weight:g}"
                )
        low, high = torch.tensor(task.low, device=device), torch.tensor(task.high, device=device)
        self.register_buffer("scale", (high - low) / 2, persistent=False)  # [A]
        self.register_buffer("bias", (high + low) / 2, persistent=False)
        self.actor = self.initialise("actor", Actor(self.runs, task, args.hidden))
        self.critic = self.initialise("critic", Critic(self.runs, task, args.hidden))
        self.old_actor = Target(self.actor, 1.0)
        self.target_value = Target(self.critic.state, args.tau)

        self.actor_adam = Adam(self.actor.parameters(), lr=args.actor_lr)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.critic_lr)

    @torch.no_grad()
    def act(self, obs: Tensor, noise: Tensor) -> Tensor:
        """An action to train with for each observation: obs [R, N, O], noise [R, N, A] -> [R, N, A]."""
        mean, log_std = self.actor(obs)
        x = mean if self.args.explore == "mean" else mean + log_std.exp() * noise
        return torch.tanh(x) * self.scale + self.bias

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """The deterministic action for each observation: obs [R, N, O] -> [R, N, A]."""
        return torch.tanh(self.actor(obs).mean) * self.scale + self.bias

    def policy_loss(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Mean of c log_q pi + q (lambda - c) log_q pi_old - Q1 with the regularisers: losses [R].

        It also gives log_q pi and the smaller value of the same actions, each [R, B], and metrics [R].
        """
        new, old = self.actor(obs), self.old_actor(obs)
        x = new.mean + new.log_std.exp() * noise
        action = torch.tanh(x)
        ours, q, c = new.log_density(x, action), self.args.q, self.args.kl_weight
        log_new, log_old = log_q(ours, q).sum(-1), log_q(old.log_density(x, action), q).sum(-1)
        values = self.critic(obs, action)
        bregman = c * log_new + q * (self.args.entropy_weight - c) * log_old
        regulariser = REGULARISER * (new.mean.square().mean((1, 2)) + new.log_std.square().mean((1, 2)))
        loss = (bregman - values[:, 0]).mean(-1) + regulariser
        entropy = -ours.detach().sum(-1).mean(-1)
        metrics = {"policy_loss": loss.detach(), "entropy": entropy, "std": new.log_std.detach().exp().mean((1, 2))}
        return loss, log_new.detach(), values.detach().amin(1), metrics

    def critic_loss(self, batch: Batch, log_new: Tensor, min_value: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Half the mean squared errors of Q1, Q2 and V, added up: losses [R], and metrics [R]."""
        with torch.no_grad():
            target = batch.reward + self.args.discount * (1 - batch.terminated) * self.target_value(batch.next_obs)
        values = self.critic(batch.obs, (batch.action - self.bias) / self.scale)
        action_loss = 0.5 * (values - target[:, None]).square().mean(-1).sum(-1)
        value = self.critic.state(batch.obs)
        penalty = self.args.entropy_weight * log_new
        if self.args.value_loss == "per_state":
            value_loss = 0.5 * (value - min_value + penalty).square().mean(-1)
        else:  # the mean over all pairs of a value and a penalty, which is this sum
            shared = penalty.mean(-1, keepdim=True)
            value_loss = 0.5 * ((value - min_value + shared).square().mean(-1) + penalty.var(-1, correction=0))
        metrics = {"action_loss": action_loss, "value_loss": value_loss, "value": value.mean(-1)}
        return action_loss + value_loss, {name: metric.detach() for name, metric in metrics.items()}

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of updates."""
        normal = random.normal("update", self.args.batch_size, self.task.act_size)
        return lambda: Draws(normal())

    def update(self, batch: Batch, draws: Draws, refresh_due: bool) -> dict[str, Tensor]:
        """One update of policy and values, and of the old policy where it is due; gives metrics [R].

        The policy's loss and the value's target have the same actions, drawn before the policy moves.
        """
        policy_loss, log_new, min_value, metrics = self.policy_loss(batch.obs, draws.action)
        critic_loss, more = self.critic_loss(batch, log_new, min_value)
        self.actor_adam.minimise(policy_loss)
        self.critic_adam.minimise(critic_loss)
        self.target_value.update()
        if refresh_due:
            self.old_actor.update()
        return metrics | more


def main(args: Args) -> None:
    run = Run(args, "mdpo_off_policy")
    envs = run.environments()
    agent = MDPO(run.args, envs.task, run.seeds, run.device)
    replay = ReplayBuffer(run.runs, min(args.buffer_size, args.total_steps), envs.task, run.device)
    uniform = run.random.uniform("random_action", 1, envs.act_size)
    noise = run.random.normal("action", 1, envs.act_size)
    choice, draws = run.random.integers("minibatch", args.batch_size), agent.draws(run.random)

    act = run.compiled(agent.act)
    update = run.compiled(lambda indices, *rest: agent.update(replay.gather(indices), *rest))
    run.register(agent, replay=replay)
    for step in run.steps(agent.policy):
        if step <= args.learning_starts:
            envs.send(torch.lerp(envs.action_low, envs.action_high, uniform()))
        else:
            envs.send(act(envs.obs, noise()))
            run.log(update(replay.choose(choice()), draws(), (step - 1) % args.refresh_every == 0))
        replay.add(envs.receive())


if __name__ == "__main__":
    cli(main)
