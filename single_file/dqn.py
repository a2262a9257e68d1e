"""DQN: deep Q-learning from a replay with a target network, many seeds at once.

Mnih et al., "Human-level control through deep reinforcement learning" (Nature 518, 2015), in the form of
Stable-Baselines3, which differs from the paper: Adam (paper: RMSProp), a smooth L1 loss and gradients clipped to a norm
of 10 in each run (paper: errors clipped to 1), and plain vectors feed two layers of 64. There is no double Q-learning.
A time limit ends an episode, and the value of its last observation still counts in the target.

The defaults are those of the comparison with SQIRL (Laidlaw et al., arXiv 2312.08369): a replay of 100,000, a new
target every 1,000 steps, epsilon down to 0.01, learning from the first steps on. That comparison trains for 5M steps
and tunes `--exploration` over 0.1 and 1, with a discount of 1 except on MiniGrid with sticky actions and whole games of
Atari; its code also has `--learning-starts 100000`. The defaults of Stable-Baselines3 2.9 are `--buffer-size 1000000
--target-every 10000 --epsilon-end 0.05 --learning-starts 100`.

Two things differ from Stable-Baselines3. Without `--learning-starts`, its first action is always greedy; here, it is
random with the first epsilon. Images go through the one convolution of MinAtar's DQN, in the units in which they come;
there, they go through three larger ones and bytes are divided by 255.

    python single_file/dqn.py --env-id MinAtar/Breakout-v1 --seeds 0:5 --total-steps 5000000
    python single_file/dqn.py --env-id CartPole-v1 --seeds 0:10 --vary exploration=0.1,1

Results lie in runs/<env>/dqn/<variant>/, one row per run and evaluation episode in eval.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from algos.agent import Agent
from algos.arguments import Count, Fraction, Levels, Natural, Positive, PositiveFraction, Size, Tunable, Widths
from algos.cli import EnvArgs, cli
from algos.nn import ImageMLP
from algos.optim import Adam, Target
from algos.random import Random
from algos.replay import Batch, ReplayBuffer
from algos.run import Run
from envs import Task


@dataclass
class Args(EnvArgs):
    ACTIONS: ClassVar[str] = "discrete"

    env_id: str = "CartPole-v1"
    """Gymnasium id of a task with discrete actions; `module:Name-v0` imports a module first"""
    levels: Levels = ()
    """levels of each dimension of continuous actions, from -1, the lower bound, to 1; every combination is an action"""
    total_steps: Count = 500_000
    """environment steps of each run"""
    buffer_size: Count = 100_000
    """transitions kept per run"""
    batch_size: Size = 32
    """transitions per update and run"""
    learning_starts: Natural = 0
    """uniformly random steps before learning"""
    train_every: Count = 4
    """environment steps per update"""
    target_every: Count = 1_000
    """environment steps after which the target network follows the online one"""
    tau: Tunable[PositiveFraction] = 1.0
    """how far the target network then goes; 1: it becomes a copy"""
    discount: Tunable[Fraction] = 0.99
    """gamma"""
    lr: Tunable[Positive] = 1e-4
    """learning rate"""
    max_norm: Tunable[Positive] = 10.0
    """gradients of a run are scaled down to at most this norm"""
    epsilon_start: Tunable[Fraction] = 1.0
    """probability of a uniformly random action at the first step"""
    epsilon_end: Tunable[Fraction] = 0.01
    """the same probability from the end of exploration on"""
    exploration: Tunable[PositiveFraction] = 0.1
    """share of all steps over which that probability changes linearly"""
    hidden: Widths = ()
    """widths of the hidden layers; by default 64 64, and 128 for images"""


class Draws(NamedTuple):
    """Random numbers of one step, uniform in [0, 1)."""

    explore: Tensor  # [R, N], below epsilon where the action is a random one
    action: Tensor  # [R, N], which one that is


class DQN(Agent):
    """Action values of R runs, their target network, and the number of actions that were drawn."""

    drawn: Tensor  # [R]

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.critic = self.initialise("critic", ImageMLP(self.runs, task.obs_shape, args.hidden, task.act_size))
        self.adam = Adam(self.critic.parameters(), lr=args.lr, max_norm=args.max_norm)
        self.target_critic = Target(self.critic, args.tau)
        self.register_buffer("drawn", torch.zeros(self.runs, dtype=torch.float64, device=device))

    def epsilon(self) -> Tensor:
        """Probability [R] that the next action is a random one."""
        args = self.args
        share = (self.drawn / (args.exploration * args.total_steps)).clamp(max=1.0)
        epsilon = args.epsilon_start + (args.epsilon_end - args.epsilon_start) * share
        return torch.where(self.drawn < args.learning_starts, 1.0, epsilon)

    @torch.no_grad()
    def act(self, obs: Tensor, draws: Draws) -> Tensor:
        """An epsilon-greedy action for each observation, which counts as drawn: obs [R, N, O] -> [R, N]."""
        random_action = (draws.action * self.task.act_size).long()
        action = torch.where(draws.explore < self.epsilon()[:, None], random_action, self.policy(obs))
        self.drawn.add_(obs.shape[1])
        return action

    @torch.no_grad()
    def policy(self, obs: Tensor) -> Tensor:
        """The greedy action for each observation: obs [R, N, O] -> [R, N]."""
        return self.critic(obs).argmax(-1)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean smooth L1 distance of Q(s, a) to r + gamma max_a' Q_target(s', a'): losses [R], mean values [R]."""
        with torch.no_grad():
            next_value = self.target_critic(batch.next_obs).amax(-1)
            target = batch.reward + self.args.discount * (1 - batch.terminated) * next_value
        value = self.critic(batch.obs).gather(-1, batch.action[..., None]).squeeze(-1)
        return F.smooth_l1_loss(value, target, reduction="none").mean(-1), value.detach().mean(-1)

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of actions, one in each run."""
        uniform = random.uniform("action", 2, 1)
        return lambda: Draws(*uniform().unbind(1))

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step; gives metrics [R]. The target network moves by `target_critic.update()`, at its time."""
        loss, value = self.loss(batch)
        self.adam.minimise(loss)
        return {"loss": loss.detach(), "value": value}


def main(args: Args) -> None:
    run = Run(args, "dqn")
    envs = run.environments(images=True, shown={"levels": args.levels})
    agent = DQN(run.args, envs.task, run.seeds, run.device)
    replay = ReplayBuffer(run.runs, min(args.buffer_size, args.total_steps), envs.task, run.device)
    draws, choice = agent.draws(run.random), run.random.integers("minibatch", args.batch_size)

    act = run.compiled(agent.act)
    update = run.compiled(lambda indices: agent.update(replay.gather(indices)))
    run.register(agent, replay=replay)
    for step in run.steps(agent.policy):
        envs.send(act(envs.obs, draws()))
        replay.add(envs.receive())
        if step % args.target_every == 0:
            agent.target_critic.update()
        if step > args.learning_starts and step % args.train_every == 0:
            run.log(update(replay.choose(choice())))


if __name__ == "__main__":
    cli(main)
