"""SQIRL: shallow Q-iteration by reinforcement learning, which explores with random actions only, many seeds at once.

Laidlaw, Zhu, Russell and Dragan, "The Effective Horizon Explains Deep RL Performance in Stochastic Environments"
(arXiv 2312.08369). Iteration i plays m episodes: greedily before time i, by policies that are frozen by then, and at
random from then on. From them it learns Q^1, the value of the random policy, by regression on returns, and from it
Q^2 to Q^k, by one backup each; the greedy policy of Q^k is then frozen for time i.

There are two forms. The first, `--form network`, is that of the official code, which made the published experiments:
one network with k heads, and without time or previous action among its inputs; all heads learn at once, without a
target network, from the steps of all iterations so far that came after the greedy ones; weights, Adam's moments and the
scales of the losses carry over. The number of gradient steps counts all steps of an iteration, the greedy ones too. A
time limit ends an episode like any other end. A run stops early after more than ten iterations in a row without a
random step. The second, `--form table`, is that of the paper, for tables: at each time and for each backup, means of
the iteration's own episodes; ties go to the first action, and the value of what was not tried is 0. A run stops after
one iteration without a random step. From time i on, an evaluation plays the present network's greedy actions, and with
`--form table` the choices for the last time that has any.

k counts values, not backups: with k = 1 there is no bootstrapping. Heads learn in parallel, so that a head is only as
good as the one below it was; what was frozen too early is never corrected. SQIRL's published settings are a budget of
5M steps, k and m by task, and a discount of 1; for MiniGrid with sticky actions the discount is 0.99, and for whole
games of Atari it is 0.99 with a budget of 10M steps.

Three things differ from the official code. Networks are an MLP, on MiniGrid with one-hot codes of the whole grid, where
it has an MLP on the codes themselves, and with sticky actions a convolution on the codes divided by 255; images have
MinAtar's convolution. With sticky actions, the official codes also have a channel for the time, which by a fault is 1
at the first step and 0 at all others; here the time is shown only with `--append-time`. And up to 1,024 episodes of a
table are played at once, and there at most eight. Smaller differences are that the official code evaluates within an
iteration, by the policy of the one before, learns nothing from the iteration after which a run stops early, and never
draws the step of a full buffer that is overwritten next.

    python single_file/sqirl.py --env-id tabular/frozen-lake-4x4 --seeds 0:10 --m 300 --lr 1e-3
    python single_file/sqirl.py --env-id tabular/gate-0.375 --form table --k 3 --m 512 --seeds 0:100

Results lie in runs/<env>/sqirl/<variant>/. On tables, the return in eval.parquet is exact. A run that stops early keeps
its policy to the last step; config.json has the steps that each run has really taken.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from algos.agent import Agent
from algos.arguments import Count, FractionBelowOne, Levels, Natural, Positive, PositiveFraction, Tunable, Widths, flag
from algos.cli import EnvArgs, cli
from algos.episodes import EpisodeBuffer, Episodes, Steps, collect
from algos.errors import UserError
from algos.nn import ImageMLP
from algos.optim import Adam
from algos.per_run import per_run
from algos.random import Random
from algos.run import Run
from envs import SeededEnvs, Task
from envs.make import TABULAR
from envs.tabular.vector import TabularVectorEnv

AT_ONCE = 1024  # episodes of a table that a run plays at once
EQUAL, APART = 1e-13, 1e-12  # distances of the codes of observations that are equal, and of others


@dataclass
class Args(EnvArgs):
    ACTIONS: ClassVar[str] = "discrete"

    env_id: str = "tabular/frozen-lake-4x4"
    """Gymnasium id of a task with discrete actions and a time limit; `tabular/…` is evaluated exactly"""
    levels: Levels = ()
    """levels of each dimension of continuous actions, from -1, the lower bound, to 1; every combination is an action"""
    total_steps: Count = 5_000_000
    """environment steps of each run; the iteration that reaches them is the last"""
    k: Count = 1
    """number of values: that of the random policy, and k - 1 backups of it"""
    m: Count = 1
    """episodes of an iteration"""
    form: Literal["network", "table"] = "network"
    """network: as in the official code; table: as in the paper, for tables only; of the arguments below, it uses
    --num-envs, --discount, --append-previous-action and --append-time"""
    num_envs: Natural = 0
    """environments of each run, which play episodes at once; 0: m, at most 1,024 of a table and 8 of anything else;
    a number above m counts as m"""
    discount: Tunable[PositiveFraction] = 1.0
    """gamma; the README of the official code has 0.99 for MiniGrid with sticky actions, and for whole games of Atari"""
    lr: Tunable[Positive] = 1e-4
    """learning rate"""
    batch_size: Count = 128
    """steps per gradient step and run"""
    epochs: Count = 10
    """an iteration takes epochs times its environment steps divided by --batch-size gradient steps, rounded up"""
    buffer_size: Count = 1_000_000
    """steps kept per run"""
    max_norm: Tunable[Positive] = 10.0
    """gradients of a run are scaled down to at most this norm"""
    reward_scale: Tunable[Positive] = 1.0
    """factor of rewards and returns"""
    loss_decay: Tunable[FractionBelowOne] = 0.99
    """with --scale-losses, the loss of a head is divided by a running mean of itself, which decays by this at each
    step"""
    scale_losses: bool = True
    """divide the losses of heads by these means"""
    hidden: Widths = ()
    """widths of the hidden layers; by default 64 64, and 128 for images"""
    append_previous_action: bool = False
    """show the last executed action, for tables only; without it, values above the first of sticky tasks are biased"""
    append_time: bool = False
    """show the share of the time that has passed, for tables only"""

    def check_ready(self) -> None:
        super().check_ready()
        table = self.env_id.startswith(TABULAR)
        for name in ("append_previous_action", "append_time"):
            if getattr(self, name) and not table:
                raise UserError(f"{flag(name)} works for ids {TABULAR}… only, not for {self.env_id}")
        if self.form == "table" and not table:
            raise UserError(f"--form table needs a finite number of states: take an id {TABULAR}…, not {self.env_id}")

    def without_effect(self) -> dict[str, str]:
        if self.form == "table":
            of_networks = (
                "lr", "max_norm", "reward_scale", "loss_decay", "batch_size", "epochs", "hidden", "buffer_size",
                "scale_losses",
            )  # fmt: skip
            return dict.fromkeys(of_networks, "with --form table")
        return {} if self.scale_losses else {"loss_decay": "without --scale-losses"}


class Draws(NamedTuple):
    """Random numbers of the episodes that environments play at once."""

    action: Tensor  # [R, T, N] uniform in [0, 1)


class SQIRL(Agent):
    """The part that both forms share: the time that learning has reached, and random actions from there on."""

    PATIENCE = 0  # a run stops after more iterations in a row without a random step
    iteration: Tensor  # [R], i; runs that are over stand still, and the others are at the greatest one
    idle: Tensor  # [R], such iterations so far

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        if not task.limit:
            raise UserError(f"{task.env_id} has no time limit, and SQIRL learns a policy for each time up to one")
        if args.k > task.limit:
            raise UserError(f"--k {args.k} is more than the {task.limit} steps of an episode of {task.env_id}")
        self.register_buffer("iteration", torch.zeros(self.runs, dtype=torch.int64, device=device))
        self.register_buffer("idle", torch.zeros(self.runs, dtype=torch.int64, device=device))

    @property
    def i(self) -> int:
        """The time for which a policy is learned."""
        return int(self.iteration.max())

    def policy(self, obs: Tensor, t: Tensor) -> Tensor:
        """The greedy action at time t [] for each observation: obs [R, B, O] -> [R, B]."""
        raise NotImplementedError

    def act(self, obs: Tensor, t: int, draws: Draws) -> Tensor:
        """The action of the frozen policy at time t, or from time i on a random one: obs [R, N, O] -> [R, N]."""
        if t >= self.i:
            return (draws.action[:, t] * self.task.act_size).long()
        return self.policy(obs, torch.tensor(t, device=self.device))

    def draws(self, random: Random, envs: int) -> Callable[[], Draws]:
        """The random numbers of actions, as many however long episodes are."""
        uniform = random.uniform("action", self.task.limit, envs)
        return lambda: Draws(uniform())

    @torch.no_grad()
    def advance(self, episodes: Episodes) -> Tensor:
        """Begins the next iteration; gives the runs [R] that stop because episodes end before it."""
        explored = episodes.lengths.amax(1) > self.iteration
        self.idle.copy_(torch.where(explored, 0, self.idle + 1))
        self.iteration.add_(1)
        return self.idle > self.PATIENCE


class NetworkSQIRL(SQIRL):
    """The form of the official code: one network with k heads, and a copy of it for each time that is over."""

    PATIENCE = 10
    scale: Tensor  # [R, k], running means of the heads' losses; 0 before the first

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        net = ImageMLP(self.runs, task.obs_shape, args.hidden, args.k * task.act_size)
        self.critic = self.initialise("critic", net)
        self.adam = Adam(self.critic.parameters(), lr=args.lr, max_norm=args.max_norm)
        self.register_buffer("scale", torch.zeros(self.runs, args.k, device=device))
        for name, p in self.critic.named_parameters():
            frozen = p.new_zeros(self.runs, task.limit, *p.shape[1:], requires_grad=False)
            self.register_buffer(f"frozen {name}".replace(".", " "), frozen)

    def values(self, obs: Tensor) -> Tensor:
        """Q^1 to Q^k of all actions: obs [R, B, O] -> [R, B, k, A]."""
        return self.critic(obs).unflatten(-1, (self.args.k, self.task.act_size))

    def snapshots(self) -> dict[str, Tensor]:
        """The frozen weights by name, each [R, T, ...]."""
        return {name: getattr(self, f"frozen {name}".replace(".", " ")) for name, _ in self.critic.named_parameters()}

    @torch.no_grad()
    def policy(self, obs: Tensor, t: Tensor) -> Tensor:
        place = t.clamp(max=self.task.limit - 1)
        frozen, over = self.snapshots(), t < self.iteration
        weights = {
            name: torch.where(per_run(over, now), frozen[name][:, place], now)
            for name, now in self.critic.named_parameters()
        }
        values = functional_call(self.critic, weights, obs)
        return values.unflatten(-1, (self.args.k, self.task.act_size))[..., -1, :].argmax(-1)

    def losses(self, batch: Steps) -> Tensor:
        """Mean squared errors [R, k]: of Q^1 to the return, of Q^j with j > 1 to r + gamma max_a' Q^{j-1}(s', a')."""
        args = self.args
        chosen = batch.action[..., None, None].expand(-1, -1, args.k, 1)
        value = self.values(batch.obs).gather(-1, chosen).squeeze(-1)  # [R, B, k]
        target = (args.reward_scale * batch.returns)[..., None]
        if args.k > 1:
            with torch.no_grad():
                following = self.values(batch.next_obs)[..., :-1, :].amax(-1)  # [R, B, k - 1]
            goes_on = (1 - batch.done)[..., None]
            target = torch.cat(
                [target, (args.reward_scale * batch.reward)[..., None] + args.discount * goes_on * following], -1
            )
        return (value - target).square().mean(1)

    def update(self, batch: Steps, active: Tensor) -> dict[str, Tensor]:
        """One gradient step of the runs where `active` [R] is True; gives metrics [R]."""
        losses = self.losses(batch)
        with torch.no_grad():
            decay = torch.where(self.scale > 0, self.args.loss_decay, 0.0)
            scale = decay * self.scale + (1 - decay) * losses
            self.scale.copy_(torch.where(active[:, None], scale, self.scale))
        loss = (losses / self.scale if self.args.scale_losses else losses).mean(-1)
        self.adam.minimise(loss, active)
        return {f"loss_{j + 1}": losses[:, j].detach() for j in range(self.args.k)}

    @torch.no_grad()
    def freeze(self) -> None:
        """Keeps the present weights for time i."""
        if self.i < self.task.limit:
            frozen = self.snapshots()
            for name, p in self.critic.named_parameters():
                frozen[name][:, self.i] = p


class Remembered:
    """The policy in all states of a table, at one time after the other: choices that are final are computed once.

    Those before time i are frozen, or of runs that are over; those from time i on differ by the time in `obs` only.
    """

    def __init__(self, agent: NetworkSQIRL):
        self.agent, self.i = agent, 0
        self.final: dict[int, Tensor] = {}  # by time
        self.present: dict[int, Tensor] = {}

    def __call__(self, obs: Tensor, t: Tensor) -> Tensor:
        """The greedy actions at time t []: obs [R, S, O] -> [R, S]."""
        time, i = int(t), self.agent.i
        if i > self.i:
            self.i, self.present = i, {}
        kept = self.final if time < i else self.present
        key = time if time < i or self.agent.args.append_time else i
        if key not in kept:
            kept[key] = self.agent.policy(obs, t)
        return kept[key]


class TabularSQIRL(SQIRL):
    """The form of the paper, for tables: means for each observation, action and time, of one iteration's episodes."""

    mix: Tensor  # [O], whose product with an observation is its code
    codes: Tensor  # [S], one for each observation
    choices: Tensor  # [R, T, S], greedy actions, of observations in the order of their codes

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], shown: Tensor, device: torch.device | str = "cpu"):
        """`shown` [S, O] are all observations."""
        super().__init__(args, task, seeds, device)
        self.made_with = {"shown": shown}
        mix = torch.rand(task.obs_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.register_buffer("mix", mix.to(device), persistent=False)
        self.register_buffer("codes", torch.unique(shown.to(device, torch.float64) @ self.mix), persistent=False)
        scale, steps = float(self.codes.abs().max().clamp(min=1)), self.codes.diff()
        self.apart = APART * scale
        if ((steps > EQUAL * scale) & (steps < 2 * self.apart)).any():  # sums in another order are equal
            raise UserError(f"--form table cannot tell the {len(self.codes):,} observations of {task.env_id} apart")
        choices = torch.zeros(self.runs, task.limit, len(self.codes), dtype=torch.int64, device=device)
        self.register_buffer("choices", choices)

    def number(self, obs: Tensor) -> Tensor:
        """The number of each observation: obs [..., O] -> [...]."""
        codes = obs.to(torch.float64) @ self.mix
        if torch.compiler.is_exporting():  # ONNX knows no search; all comparisons need more memory
            return (self.codes < (codes - self.apart)[..., None]).sum(-1).clamp(max=len(self.codes) - 1)
        return torch.searchsorted(self.codes, codes - self.apart).clamp(max=len(self.codes) - 1)

    @torch.no_grad()
    def policy(self, obs: Tensor, t: Tensor) -> Tensor:
        last = self.iteration.clamp(min=1, max=self.task.limit) - 1  # the last time for which there are choices
        choices = self.choices[torch.arange(self.runs, device=self.device), torch.minimum(t, last)]
        return choices.gather(1, self.number(obs))

    @torch.no_grad()
    def learn(self, episodes: Episodes) -> None:
        """Fits the values at times i to i + k - 1, the last of them to returns, and freezes the choices at time i."""
        i, args = self.i, self.args
        if i >= min(self.task.limit, episodes.reward.shape[-1]):
            return
        state, actions = self.number(episodes.obs), self.task.act_size
        returns, last = episodes.returns(args.discount), min(i + args.k, episodes.reward.shape[-1]) - 1
        value = torch.zeros(self.runs, len(self.codes), actions, dtype=torch.float64, device=self.device)
        for t in range(last, i - 1, -1):
            target = returns[..., t]
            if t < last:
                following = value.amax(-1).gather(1, state[..., t + 1])  # the value of the last time
                target = episodes.reward[..., t] + args.discount * episodes.running[..., t + 1] * following
            place = state[..., t] * actions + episodes.action[..., t]
            there = episodes.running[..., t].to(value.dtype)
            sums, counts = (
                torch.zeros_like(value).flatten(1).scatter_add_(1, place, x.to(value.dtype))
                for x in (there * target, there)
            )
            value = (sums / counts.clamp(min=1)).view_as(value)
        self.choices[:, i] = value.argmax(-1)  # the first of equals


def main(args: Args) -> None:
    run = Run(args, "sqirl")
    table = args.env_id.startswith(TABULAR)
    width = min(args.num_envs or (AT_ONCE if table else 8), args.m)
    shown: dict[str, Any] = {"levels": args.levels}
    if table:
        shown |= {"previous_action": args.append_previous_action, "time": args.append_time}
    envs = run.environments(width, timed=True, images=True, shown=shown)
    train = with_table if args.form == "table" else with_network
    train(run, envs)


def with_network(run: Run[Args], envs: SeededEnvs) -> None:
    """Learns in the form of the official code."""
    args = run.given
    agent = NetworkSQIRL(run.args, envs.task, run.seeds, run.device)
    longest = args.m * envs.task.limit  # the most steps of an iteration
    most = math.ceil(args.epochs * longest / args.batch_size)  # updates
    buffer = EpisodeBuffer(run.runs, min(args.buffer_size, args.total_steps + longest), envs.task, run.device)
    draws, choice = agent.draws(run.random, envs.envs_per_run), run.random.integers("minibatch", args.batch_size)
    update = run.compiled(lambda rows, active: agent.update(buffer.gather(rows), active))
    run.register(agent, buffer=buffer)
    policy = Remembered(agent) if args.env_id.startswith(TABULAR) else agent.policy
    for _ in run.steps(policy, 0):
        episodes = collect(envs, args.m, lambda _: partial(agent.act, draws=draws()))
        buffer.add(episodes, episodes.returns(run.args.discount), agent.i)
        # [R], rounded up
        updates = (args.epochs * episodes.lengths.sum(1) + args.batch_size - 1) // args.batch_size
        learns = (buffer.added > 0) & (run.done < args.total_steps)
        updates = torch.where(torch.as_tensor(learns, device=run.device), updates, 0)
        last = int(updates.max())
        for number in range(most):
            integers = choice()  # as often in each iteration, so that no run depends on its neighbours
            if number < last:
                run.log(update(buffer.choose(integers), updates > number))
        agent.freeze()
        finish(run, agent, episodes)


def with_table(run: Run[Args], envs: SeededEnvs) -> None:
    """Learns in the form of the paper."""
    venv = envs.venv
    assert isinstance(venv, TabularVectorEnv)
    shown = np.concatenate([venv.all_observations(t) for t in range(venv.table.horizon if venv.time else 1)])
    agent = TabularSQIRL(run.args, envs.task, run.seeds, torch.as_tensor(shown), run.device)
    draws = agent.draws(run.random, envs.envs_per_run)
    run.register(agent)
    for _ in run.steps(agent.policy, 0):
        episodes = collect(envs, run.given.m, lambda _: partial(agent.act, draws=draws()))
        agent.learn(episodes)
        finish(run, agent, episodes)


def finish(run: Run[Args], agent: SQIRL, episodes: Episodes) -> None:
    """Ends an iteration: counts its steps, and stops runs that no longer explore."""
    taken = episodes.lengths.sum(1)
    run.log({"env_steps": taken.to(torch.get_default_dtype()), "return": episodes.reward.sum((1, 2)) / run.given.m})
    stopped = agent.advance(episodes)
    run.took(taken.cpu().numpy(), stopped.cpu().numpy())


if __name__ == "__main__":
    cli(main)
