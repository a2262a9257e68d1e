"""Arguments and features of the streaming algorithms.

Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works" (arXiv 2410.14606), the method of 2024
as its official code computes it. Each run keeps traces, statistics and a clock, but no transition.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from algos.arguments import Count, FewOrNone, Fraction, Positive, Range, Tunable
from algos.cli import EnvArgs
from algos.errors import UserError
from algos.normalise import Statistics
from algos.per_run import per_run
from algos.sparse import IMAGES
from envs import Task, plain_id

Hidden = Annotated[tuple[int, ...], Range(10)]  # widths; SparseInit leaves a layer with fewer inputs without any weight
OWN_SCORE = "the score of a streaming algorithm is taken while it learns"
# Tasks of Gymnasium whose episodes the official scripts let run up to 10,000 steps.
CLASSIC = ("CartPole-v0", "CartPole-v1", "MountainCar-v0", "Acrobot-v1")


@dataclass(kw_only=True)
class StreamArgs(EnvArgs):
    """Arguments of every streaming script, with the values that the paper has for all tasks."""

    compile: bool = True
    """compile the update on a CPU too, which needs a C++ compiler and up to a minute; on CUDA it is always compiled"""
    bf16: bool = False
    """refused: networks are sparse, and are computed in float32"""
    threads: FewOrNone = 1
    """CPU threads of torch and of physics; 0: one for each core that other processes leave free, so that numbers differ
    from run to run. With any number but 1, sums are rounded in another way"""
    eval_episodes: Annotated[int, Range(0, 0, why=OWN_SCORE)] = 0
    """always 0: the score is taken while the algorithm learns"""
    log_every: Count = 10_000
    """environment steps over which training metrics are averaged"""
    checkpoint_every: Count = 100_000
    """environment steps between checkpoints, and at most a quarter of an hour; where writing one takes over 5 seconds,
    they come less often, and take at most a twentieth of the time"""
    lr: Tunable[Positive] = 1.0
    """alpha, the step size; it cancels wherever the bound M of ObGD is above 1, as it nearly always is"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    trace: Tunable[Fraction] = 0.8
    """lambda: traces decay by discount times lambda"""
    adaptive: bool = False
    """AdaptiveObGD: traces are divided by the root of the running second moment of delta times trace"""

    def check_ready(self) -> None:
        super().check_ready()
        if self.bf16:
            raise UserError("--bf16 is not for streaming methods, whose sparse networks are computed in float32")


class Step(NamedTuple):
    """A step of the task, from which a streaming agent learns once."""

    reward: Tensor  # [R]
    next_obs: Tensor  # [R, O], the true last one where an episode ended
    done: Tensor  # [R], 1.0 where the episode was terminated or truncated
    obs: Tensor | None = None  # [R, O] to act on next, the first of an episode where one began; None: none begins
    begun: Tensor | None = None  # [R], 1.0 where `obs` is the first of an episode


class Clock(nn.Module):
    """Time in an episode as a feature: -0.5 at the reset and at the first step, then 1/limit more at each step."""

    time: Tensor

    def __init__(self, runs: int, limit: int):
        super().__init__()
        self.limit = limit
        self.register_buffer("time", torch.full((runs,), -0.5, dtype=torch.float64))

    def start(self, where: Tensor) -> None:
        """Sets the clock back where `where` [R] is 1."""
        self.time.copy_(torch.where(where > 0, -0.5, self.time))

    def tick(self) -> Tensor:
        """The feature [R] of the step that has been made."""
        now = self.time.clone()
        self.time.add_(1 / self.limit)
        return now


class Features(nn.Module):
    """Turns raw observations [R, O] into the features of networks: normalised by running statistics, with the time.

    Vectors become [R, O + 1] where the task has a time limit, the time being the last number, and [R, O] elsewhere.

    Images [C, H, W] have no time; where IMAGES says so, the last frames are stacked, each as it was normalised when it
    came, and the first one of an episode fills the stack. Policies see such stacks of raw frames (`policy_task`),
    which a lost life does not begin anew where whole games are played.
    """

    frames: Tensor

    def __init__(self, runs: int, task: Task):
        super().__init__()
        self.policy_task, self.shape, self.stack = task, task.obs_shape, 1
        images = len(self.shape) == 3
        if images and self.shape[1:] not in IMAGES:
            sizes = " or ".join(f"{height}x{width}" for height, width in IMAGES)
            size = "x".join(map(str, self.shape[1:]))
            raise UserError(f"--env-id: {task.env_id} has images of {size}; this needs {sizes}, or vectors")
        self.statistics = Statistics(runs, math.prod(self.shape))
        self.clock = Clock(runs, task.limit) if task.limit and not images else None
        self.out_shape: tuple[int, ...] = self.shape
        if images and (stack := IMAGES[self.shape[1:]][2]) > 1:
            self.stack, self.out_shape = stack, (stack * self.shape[0], *self.shape[1:])
            self.policy_task = replace(task, obs_shape=self.out_shape)
            self.register_buffer("frames", torch.zeros(runs, *self.out_shape))
        elif self.clock:
            self.out_shape = (math.prod(self.shape) + 1,)

    @torch.no_grad()
    def start(self, obs: Tensor, where: Tensor) -> Tensor:
        """Features of the first observations of episodes, where `where` [R] is 1; elsewhere nothing changes."""
        self.statistics.update(obs, where)
        x = self.statistics.normalise(obs)
        if self.clock:
            self.clock.start(where)
            return self._with_time(x, self.clock.time)
        x = x.view(len(x), *self.shape)
        if self.stack > 1:
            x = x.repeat(1, self.stack, 1, 1)
            self.frames.copy_(torch.where(per_run(where, x) > 0, x, self.frames))
        return x

    @torch.no_grad()
    def forward(self, obs: Tensor) -> Tensor:
        """Features of the observations after a step."""
        self.statistics.update(obs)
        x = self.statistics.normalise(obs)
        if self.clock:
            return self._with_time(x, self.clock.tick())
        x = x.view(len(x), *self.shape)
        if self.stack > 1:
            x = torch.cat([self.frames[:, self.shape[0] :], x], 1)
            self.frames.copy_(x)
        return x

    @torch.no_grad()
    def seen(self, obs: Tensor, t: Tensor) -> Tensor:
        """Features [R, B, ...] of observations [R, B, O] after t [] steps of an episode; no statistic changes.

        Where frames are stacked, observations are stacks of them, [R, B, stack O].
        """
        x = self.statistics.normalise(obs.reshape(len(obs), -1, math.prod(self.shape)))
        if self.clock:
            time = -0.5 + (t - 1).clamp(min=0) / self.clock.limit
            return torch.cat([x, time.to(x.dtype).expand(*x.shape[:-1], 1)], -1)
        return x.view(*obs.shape[:2], *self.out_shape)

    def _with_time(self, x: Tensor, time: Tensor) -> Tensor:
        return torch.cat([x, time.to(x.dtype)[:, None]], 1)


def time_limit(env_id: str, wanted: int) -> dict[str, Any]:
    """The option for environments with a time limit other than the task's own; empty if they keep that."""
    limit = wanted or (10_000 if plain_id(env_id) in CLASSIC else 0)
    return {"max_episode_steps": limit} if limit else {}
