"""The part of on-policy scripts around their algorithm: arguments, normalised observations and rewards, advantages."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Count, Fraction, Range, Several, Tunable, Widths
from algos.cli import EnvArgs
from algos.errors import UserError
from algos.nn import MLP, Orthogonal
from algos.normalise import LIMIT, PRIOR, RewardNormaliser, Statistics
from algos.random import Random
from algos.rollout import Outcome, Rollout, gae
from envs import Task


@dataclass(kw_only=True)
class OnPolicyArgs(EnvArgs):
    """Arguments of every on-policy script."""

    TF32: ClassVar[bool] = False  # ratios of probabilities are near 1
    compile: bool = True
    """compile the parts of an iteration on a CPU too, which needs a C++ compiler and up to a minute; on CUDA that is
    always done"""
    bf16: bool = False
    """refused: it rounds too much for ratios of probabilities near 1"""
    eval_every: Count = 50_000
    """environment steps between evaluations, which also take place before the first and after the last"""
    num_envs: Several = 1
    """environments of each run"""
    horizon: Count = 2048
    """T, the steps of each environment in an iteration; a run learns in whole iterations"""
    batch_size: Annotated[int, Range(2, 1_000_000)] = 64
    """samples of a minibatch; each pass leaves out the samples that do not fill one"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    trace: Tunable[Fraction] = 0.95
    """lambda of generalised advantage estimation"""
    bootstrap_limits: bool = False
    """where a time limit ends an episode, count the value of its last observation; by default it ends like any other"""
    normalise_obs: bool = True
    """normalise observations by running statistics and clip them to +-10"""
    normalise_reward: bool = True
    """divide rewards by the standard deviation of discounted sums of rewards and clip them to +-10"""
    hidden: Widths = (64, 64)
    """widths of the hidden layers of actor and critic"""

    @property
    def stride(self) -> int:
        """Environment steps of a run in one iteration."""
        return self.horizon * self.num_envs

    @property
    def iterations(self) -> int:
        """Number of iterations; the last one may go beyond `total_steps`."""
        return math.ceil(self.total_steps / self.stride)

    @property
    def stride_in_words(self) -> str:
        """The number with its meaning, for errors."""
        return f"{self.stride}, the steps of an iteration (--horizon times --num-envs)"

    def check_batch(self) -> None:
        """Raises UserError if an iteration has fewer samples than a minibatch."""
        if self.batch_size > self.stride:
            raise UserError(f"--batch-size must be at most {self.stride_in_words}, got {self.batch_size}")

    def check_ready(self) -> None:
        super().check_ready()
        self.check_batch()
        if self.total_steps < self.stride:
            raise UserError(f"--total-steps must be at least {self.stride_in_words}, got {self.total_steps}")
        if self.bf16:
            raise UserError("--bf16 rounds too much for on-policy methods, whose ratios are near 1: leave it out")


class Choice(NamedTuple):
    """The actions that were chosen for observations."""

    obs: Tensor  # [R, N, O], normalised
    action: Tensor  # [R, N, A] as it was drawn, or [R, N] if actions are discrete
    sent: Tensor  # the same as the environments take it, clipped to their bounds


class Samples(NamedTuple):
    """The samples of an iteration, or a part of them; B = T N for the whole."""

    obs: Tensor  # [R, B, O], normalised
    action: Tensor  # [R, B, A], or [R, B] if actions are discrete
    log_prob: Tensor  # [R, B] of the action when it was drawn
    value: Tensor  # [R, B] predicted when it was drawn
    advantage: Tensor  # [R, B]
    returns: Tensor  # [R, B] advantage + value

    def normalised_advantage(self) -> Tensor:
        """Advantages [R, B] with mean 0 and standard deviation 1 over all samples of a run; equal ones become 0."""
        centred = self.advantage - self.advantage.mean(-1, keepdim=True)
        spread = self.advantage.std(-1, correction=0, keepdim=True)
        return centred / spread.clamp(min=torch.finfo(spread.dtype).tiny)


class Gaussian(nn.Module):
    """Policy whose standard deviation does not depend on the state: obs [R, B, O] -> mean [R, B, A], log_std [R, 1, A].

    Actions are neither squashed nor clipped here.
    """

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = tanh_mlp(runs, task.obs_size, hidden, task.act_size, gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(runs, 1, task.act_size))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(obs), self.log_std

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [R, B, A] from standard normal noise [R, B, A]."""
        mean, log_std = self(obs)
        return mean + log_std.exp() * noise

    def mode(self, obs: Tensor) -> Tensor:
        """The most probable actions [R, B, A]."""
        return self.net(obs)

    def log_prob_and_entropy(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-densities of actions [R, B, A], and the policy's entropies, each [R, B]."""
        mean, log_std = self(obs)
        log_prob = gaussian_log_prob(mean, log_std, action)
        return log_prob, (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1).expand_as(log_prob)


def gaussian_log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Log-density [R, B] of actions [R, B, A] under a diagonal Gaussian."""
    return (-0.5 * ((action - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def gaussian_kl(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """KL(p || q) [R, B] of diagonal Gaussians, of which p comes first."""
    squares = (2 * log_std).exp() + (mean - other_mean).square()
    return (other_log_std - log_std + squares / (2 * (2 * other_log_std).exp()) - 0.5).sum(-1)


class Critic(nn.Module):
    """State values: obs [R, B, O] -> [R, B]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = tanh_mlp(runs, task.obs_size, hidden, 1, gain=1.0)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


def tanh_mlp(runs: int, in_features: int, hidden: tuple[int, ...], out_features: int, gain: float) -> MLP:
    """Networks with orthogonal weights: times sqrt(2) in hidden layers, and times `gain` in the last one."""
    last = partial(Orthogonal, gain=gain)
    return MLP((runs,), in_features, hidden, out_features, torch.tanh_, linear=Orthogonal, last=last)


class OnPolicyAgent(Agent):
    """Actor and critic of R runs with the running statistics that normalise what they see.

    Each observation is counted once, when it comes. The first one of an episode is counted; the last one is not,
    because nothing acts on it. The deterministic policy uses the statistics as they are. Raises UserError where an
    iteration has fewer samples than a minibatch.
    """

    actor: Any
    low: Tensor  # [A]
    high: Tensor  # [A]

    def __init__(self, args: Any, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        args.check_batch()
        self.obs_statistics = Statistics(self.runs, task.obs_size, prior=PRIOR).to(device)
        self.reward_normaliser = RewardNormaliser(self.runs, args.num_envs, args.discount).to(device)
        self.actor = self.initialise("actor", self.make_actor())
        self.critic = self.initialise("critic", Critic(self.runs, task, args.hidden))
        for name, bound in (("low", task.low), ("high", task.high)):
            self.register_buffer(name, torch.tensor(bound, device=device), persistent=False)

    def make_actor(self) -> nn.Module:
        """The policy's network."""
        return Gaussian(self.runs, self.task, self.args.hidden)

    def normalise(self, obs: Tensor) -> Tensor:
        """Observations [R, N, O] as networks see them."""
        return self.obs_statistics.normalise(obs).clamp(-LIMIT, LIMIT) if self.args.normalise_obs else obs

    def start(self, obs: Tensor) -> None:
        """Counts the first observations [R, N, O] after all environments were reset."""
        self.reward_normaliser.total.zero_()
        self.count(obs)

    def count(self, obs: Tensor) -> None:
        """Counts the observations [R, N, O] to act on next."""
        if self.args.normalise_obs:
            self.obs_statistics.update(obs)

    @torch.no_grad()
    def act(self, obs: Tensor, noise: Tensor) -> Choice:
        """Draws actions for obs [R, N, O]; noise [R, N, A] is normal, or uniform if actions are discrete."""
        x = self.normalise(obs)
        action = self.actor.sample(x, noise)
        return Choice(x, action, self.bounded(action))

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """The most probable action for each observation: obs [R, N, O] -> [R, N, A], or [R, N] if discrete."""
        return self.bounded(self.actor.mode(self.normalise(obs)))

    def bounded(self, action: Tensor) -> Tensor:
        """Actions clipped to the task's bounds."""
        return action if self.task.discrete else action.clamp(self.low, self.high)

    @torch.no_grad()
    def observe(self, reward: Tensor, terminated: Tensor, truncated: Tensor, next_obs: Tensor, obs: Tensor) -> Outcome:
        """Counts the rewards [R, N] of a step, and the observations `obs` [R, N, O] to act on next; gives the outcome.

        `next_obs` [R, N, O] has the true last observation where an episode ended. The reward is normalised, and so is
        `next_obs` where its values count at every step.
        """
        ended = torch.maximum(terminated, truncated)
        if self.args.normalise_reward:
            reward = self.reward_normaliser(reward, ended)
        self.count(obs)
        return Outcome(reward, ended, terminated, self.normalise(next_obs) if self.args.bootstrap_limits else next_obs)

    @torch.no_grad()
    def samples(self, rollout: Rollout) -> Samples:
        """Turns the steps of a rollout into the samples [R, T N] of an iteration."""
        outcome, flat = rollout.outcome, partial(torch.flatten, start_dim=1, end_dim=2)
        value = self.critic(flat(rollout.obs)).view(outcome.reward.shape)
        if self.args.bootstrap_limits:
            next_value = self.critic(flat(outcome.next_obs)).view(outcome.reward.shape)
        else:  # the value after the end of an episode counts for nothing
            final = self.normalise(outcome.next_obs[:, -1])  # by the statistics of its time: none came after it
            next_value = torch.cat([value[:, 1:], self.critic(final)[:, None]], 1)
        advantage = gae(
            outcome, value, next_value, self.args.discount, self.args.trace, limits=self.args.bootstrap_limits
        )
        log_prob, _ = self.actor.log_prob_and_entropy(flat(rollout.obs), flat(rollout.action))
        return Samples(
            flat(rollout.obs), flat(rollout.action), log_prob, flat(value), flat(advantage), flat(advantage + value)
        )

    def noise(self, random: Random) -> Callable[[], Tensor]:
        """The random numbers of actions."""
        draw = random.uniform if self.task.discrete else random.normal
        return draw("action", self.args.num_envs, self.task.act_size)
