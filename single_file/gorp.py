"""GORP: greedy over random policy, which plans one action after the other by random continuations, many seeds at once.

Laidlaw, Russell and Dragan, "Bridging RL Theory and Practice with the Effective Horizon" (arXiv 2304.09853). Iteration
i tries each sequence of k actions at time i, after the i actions that are fixed by then, with m episodes whose other
actions are random. The first action of the sequence with the greatest mean return from time i on is fixed for time i;
equal ones go to the first. What is learned is one list of actions, whatever happens: for deterministic tasks, that is a
policy, and with sticky actions or chance it is played as it is. With k = 1 and from the same episodes of a
deterministic task, it chooses as `sqirl.py --form table` does.

`--score max` takes the greatest return in place of the mean, as the official code can, though with k = 1 only. A run
stops early after more than ten iterations in a row whose episodes all ended before time i, and it has learned all that
it can when i reaches the time limit. An iteration takes A^k m episodes. From time i on, an evaluation plays action 0.
The official code in Python goes on past the time limit, for nothing; that in Julia never stops early, and compares
returns of whole episodes, which in deterministic tasks without discount chooses alike.

    python single_file/gorp.py --env-id tabular/frozen-lake-4x4 --m 100 --seeds 0:10

Results lie in runs/<env>/gorp/<variant>/. On tables, the return in eval.parquet is exact.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from algos.agent import Agent
from algos.arguments import Count, Levels, Natural, PositiveFraction, Tunable
from algos.cli import EnvArgs, cli
from algos.episodes import Episodes, collect
from algos.errors import UserError
from algos.random import Random
from algos.run import Run
from envs import Task
from envs.make import TABULAR

AT_ONCE = 1024  # episodes of a table that a run plays at once
PATIENCE = 10  # a run stops after more iterations in a row whose episodes all ended before
MOST = 1_000_000  # episodes of an iteration


@dataclass
class Args(EnvArgs):
    ACTIONS: ClassVar[str] = "discrete"

    env_id: str = "tabular/frozen-lake-4x4"
    """Gymnasium id of a task with discrete actions and a time limit; `tabular/…` is evaluated exactly"""
    levels: Levels = ()
    """levels of each dimension of continuous actions, from -1, the lower bound, to 1; every combination is an action"""
    compile: bool = False
    """changes nothing: there is no update to compile"""
    total_steps: Count = 5_000_000
    """environment steps of each run; the iteration that reaches them is the last"""
    k: Count = 1
    """actions in a sequence"""
    m: Count = 1
    """episodes of each sequence"""
    score: Literal["mean", "max"] = "mean"
    """a sequence is judged by the mean or by the greatest of its returns"""
    num_envs: Natural = 0
    """environments of each run, which play episodes at once; 0: m, at most 1,024 of a table and 8 of anything else"""
    discount: Tunable[PositiveFraction] = 1.0
    """gamma"""


class Draws(NamedTuple):
    """Random numbers of the episodes that environments play at once."""

    action: Tensor  # [R, T, N] uniform in [0, 1)


class GORP(Agent):
    """The actions of R runs at each time, as far as they are fixed."""

    iteration: Tensor  # [], i
    idle: Tensor  # [R], iterations in a row whose episodes all ended before time i
    actions: Tensor  # [R, T]

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        if not task.limit:
            raise UserError(f"{task.env_id} has no time limit, and GORP plans an action for each time up to one")
        if args.k > task.limit:
            raise UserError(f"--k {args.k} is more than the {task.limit} steps of an episode of {task.env_id}")
        self.sequences = task.act_size**args.k
        if self.sequences * args.m > MOST:
            raise UserError(
                f"--k {args.k} --m {args.m} takes {task.act_size}^{args.k} x {args.m:,} episodes an iteration, and the "
                f"most are {MOST:,}: take fewer"
            )
        self.register_buffer("iteration", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("idle", torch.zeros(self.runs, dtype=torch.int64, device=device))
        self.register_buffer("actions", torch.zeros(self.runs, task.limit, dtype=torch.int64, device=device))

    def policy(self, obs: Tensor, t: Tensor) -> Tensor:
        """The fixed action at time t [] whatever is observed, and action 0 from time i on: obs [R, B, O] -> [R, B]."""
        action = self.actions[:, t.clamp(max=self.task.limit - 1)]
        return torch.where(t < self.iteration, action, 0)[:, None].expand(obs.shape[:2])

    def act(self, obs: Tensor, t: int, first: int, draws: Draws) -> Tensor:
        """The actions of episodes `first`, first + 1, … at time t: obs [R, N, O] -> [R, N].

        Episode e tries sequence number e // m, whose digits in base A are its actions.
        """
        i, args = int(self.iteration), self.args
        if t < i:
            return self.policy(obs, torch.tensor(t, device=self.device))
        if t >= i + args.k:
            return (draws.action[:, t] * self.task.act_size).long()
        episode = first + torch.arange(obs.shape[1], device=self.device)
        sequence, place = episode // args.m, i + args.k - 1 - t  # place 0 is that of the last digit
        digit = sequence // self.task.act_size**place % self.task.act_size
        return digit.expand(obs.shape[:2])

    def draws(self, random: Random, envs: int) -> Callable[[], Draws]:
        """The random numbers of actions, as many however long episodes are."""
        uniform = random.uniform("action", self.task.limit, envs)
        return lambda: Draws(uniform())

    @torch.no_grad()
    def learn(self, episodes: Episodes) -> Tensor:
        """Fixes the action at time i; gives the runs [R] that stop because episodes end before it."""
        i = int(self.iteration)
        explored = episodes.lengths.amax(1) > i
        if i < min(self.task.limit, episodes.reward.shape[-1]):
            returns = episodes.returns(self.args.discount)[..., i].unflatten(1, (self.sequences, self.args.m))
            scores = returns.mean(-1) if self.args.score == "mean" else returns.amax(-1)
            best = scores.argmax(-1)  # the first of equals
            self.actions[:, i] = best // self.task.act_size ** (self.args.k - 1)
        self.idle.copy_(torch.where(explored, 0, self.idle + 1))
        self.iteration.add_(1)
        return (self.idle > PATIENCE) | (self.iteration >= self.task.limit)


def main(args: Args) -> None:
    run = Run(args, "gorp")
    width = args.num_envs or min(args.m, AT_ONCE if args.env_id.startswith(TABULAR) else 8)
    envs = run.environments(width, timed=True, images=True, shown={"levels": args.levels})
    agent = GORP(run.args, envs.task, run.seeds, run.device)
    draws = agent.draws(run.random, width)
    run.register(agent)
    for _ in run.steps(agent.policy, 0):
        count = agent.sequences * args.m
        episodes = collect(
            envs, count, lambda first: partial(agent.act, first=first, draws=draws()), observations=False
        )
        taken = episodes.lengths.sum(1)
        stopped = agent.learn(episodes)
        run.log({"env_steps": taken.to(torch.get_default_dtype()), "return": episodes.reward.sum(-1).mean(1)})
        run.took(taken.cpu().numpy(), stopped.cpu().numpy())


if __name__ == "__main__":
    cli(main)
