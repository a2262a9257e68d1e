"""Stream Q(lambda) and stream SARSA(lambda): action values learned from each transition once, many seeds at once.

Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works" (arXiv 2410.14606), the method of 2024
in the form of its official code: ObGD with eligibility traces, sparse initialisation, layer normalisation, running
statistics of observations and rewards, and epsilon-greedy exploration that falls linearly. ObGD (algos/obgd.py) moves
the weights by lr / max(M, 1) delta z, where delta is the TD error, z the traces (z <- discount lambda z + gradient),
and M = lr kappa max(|delta|, 1) |z|_1. After it has learned from an action that was not greedy, Q(lambda) clears its
traces. A time limit ends an episode like any other end, without bootstrapping; in return, the time in the episode is a
feature where a task has a limit and no images. As in the official scripts, CartPole, MountainCar and Acrobot run up to
10,000 steps: returns there do not compare with those under the usual limits.

Five things differ from the official scripts. The official SARSA begins an episode with the action that it drew at the
last observation of the episode before; here that action is drawn anew. The official SARSA script for MinAtar always
takes 1M as the number of steps, so its exploration ends after 50,000. Here, statistics are float64 on all tasks, a time
limit of an Atari game ends it like any other limit, and games are prepared as envs/atari.py says, with other roundings
of pixels and without a second action after FIRE.

    python single_file/stream_q.py --env-id MinAtar/Breakout-v1 --seeds 0:5 --total-steps 5000000 --exploration 0.2
    python single_file/stream_q.py --env-id CartPole-v1 --target sarsa --variant sarsa

Results lie in runs/<env>/stream_q/<variant>/. The score is the return of the training episodes, as in the paper;
eval.parquet has them at the next multiple of --eval-every.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from algos.agent import Agent
from algos.arguments import Count, Fraction, Natural, Positive, PositiveFraction, Tunable
from algos.cli import cli
from algos.learner import learner_file
from algos.normalise import RewardScaler
from algos.obgd import ObGD
from algos.per_run import per_run
from algos.random import Random
from algos.run import Run
from algos.sparse import Network
from algos.stream import Features, Hidden, Step, StreamArgs, time_limit
from envs import Task


@dataclass
class Args(StreamArgs):
    ACTIONS: ClassVar[str] = "discrete"

    env_id: str = "CartPole-v1"
    """Gymnasium id of a task with discrete actions"""
    total_steps: Count = 500_000
    """environment steps of each run; officially 5M for Q on MinAtar, 10M for SARSA on MinAtar and for both on Atari"""
    eval_every: Count = 25_000
    """environment steps over which the returns of training episodes make one score"""
    target: Literal["q", "sarsa"] = "q"
    """value of the next state: that of its greedy action (q), or that of the action that will be taken (sarsa)"""
    kappa: Tunable[Positive] = 2.0
    """kappa of ObGD: a step that it bounds has a 1-norm of at most 1 / kappa"""
    epsilon_start: Tunable[Fraction] = 1.0
    """probability of a uniformly random action at the first step"""
    epsilon_end: Tunable[Fraction] = 0.01
    """the same probability from the end of exploration on; if it is above --epsilon-start, it holds from the first step
    on, and the probability rises above it after exploration, as in the official code"""
    exploration: Tunable[PositiveFraction] = 0.05
    """share of all steps after which exploration has ended; officially 0.2 for Q on MinAtar and 0.05 elsewhere"""
    hidden: Hidden = ()
    """widths of hidden layers; by default 32 32, MinAtar 128, Atari 256"""
    max_episode_steps: Natural = 0
    """time limit of an episode; 0: the task's own, but 10,000 for CartPole, MountainCar and Acrobot"""


class Draws(NamedTuple):
    """Random numbers of one step, uniform in [0, 1)."""

    explore: Tensor  # [R], below epsilon where the action is a random one
    action: Tensor  # [R], which one that is


class StreamQ(Agent):
    """Action values of R runs, with all that a streaming learner remembers of the past."""

    state: Tensor  # [R, features], from which the action was drawn
    output: Tensor  # [R], the action
    greedy: Tensor  # [R], whether the action is a greedy one
    drawn: Tensor  # [R], number of actions drawn

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.features = Features(self.runs, task).to(device)
        self.reward_scaler = RewardScaler(self.runs, args.discount).to(device)
        hidden = args.hidden or (() if len(task.obs_shape) == 3 else (32, 32))
        self.critic = self.initialise("critic", Network(self.runs, self.features.out_shape, hidden, task.act_size))
        self.obgd = ObGD(self.critic, args.kappa, args.discount * args.trace, args.lr, args.adaptive)

        self.register_buffer("state", torch.zeros(self.runs, *self.features.out_shape, device=device))
        self.register_buffer("output", torch.zeros(self.runs, dtype=torch.int64, device=device))
        self.register_buffer("greedy", torch.ones(self.runs, dtype=torch.bool, device=device))
        self.register_buffer("drawn", torch.zeros(self.runs, dtype=torch.float64, device=device))

    def epsilon(self) -> Tensor:
        """Probability [R] of a random action, which falls linearly with the number of actions drawn, to epsilon_end."""
        args = self.args
        share = self.drawn / (args.exploration * args.total_steps)
        return (args.epsilon_start + (args.epsilon_end - args.epsilon_start) * share).clamp(min=args.epsilon_end)

    @torch.no_grad()
    def choose(self, state: Tensor, draws: Draws, where: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        """Epsilon-greedy actions [R], and whether each is greedy [R]; an action is counted where `where` [R] is 1."""
        self.drawn.add_(where)
        best = self.critic(state).argmax(-1)
        random_action = (draws.action * self.task.act_size).long()
        action = torch.where(draws.explore < self.epsilon(), random_action, best)
        return action, action == best

    def take(self, action: Tensor, greedy: Tensor) -> None:
        """Makes these actions [R] the next ones."""
        self.output.copy_(action)
        self.greedy.copy_(greedy)

    def act(self, draws: Draws, where: Tensor | float = 1.0) -> None:
        """Draws the next action [R], and counts it where `where` [R] is 1."""
        self.take(*self.choose(self.state, draws, where))

    @property
    def policy_task(self) -> Task:
        return self.features.policy_task

    @torch.no_grad()
    def policy(self, obs: Tensor, t: Tensor) -> Tensor:
        """The greedy action after t [] steps of an episode: obs [R, B, O] -> [R, B]."""
        return self.critic(self.features.seen(obs, t)).argmax(-1)

    def start(self, obs: Tensor, where: Tensor) -> None:
        """Begins an episode with obs [R, O] in the runs where `where` [R] is 1."""
        first = self.features.start(obs, where)
        self.state.copy_(torch.where(per_run(where, first) > 0, first, self.state))

    def learn(
        self, reward: Tensor, next_state: Tensor, done: Tensor, next_action: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Learns from the outcome of the current action: reward and done [R], next_state [R, features].

        The target contains the value of `next_action` [R], or without it that of the greedy action.
        """
        reward, done = self.reward_scaler(reward, done), done.to(next_state.dtype)
        value = self.critic(self.state).gather(1, self.output[:, None]).squeeze(1)
        with torch.no_grad():
            next_values = self.critic(next_state)
            best = next_values.amax(-1)
            next_value = best if next_action is None else next_values.gather(1, next_action[:, None]).squeeze(1)
            delta = reward + self.args.discount * (1 - done) * next_value - value
        # after it has learned from an action that was not greedy, Q(lambda) clears its traces
        reset = torch.maximum(done, (~self.greedy).to(done.dtype)) if next_action is None else done
        bound = self.obgd.step(delta, self.obgd.gradients(value), reset)
        self.state.copy_(next_state)
        return {"value": value.detach(), "td_error": delta.abs(), "bound": bound}

    def update(self, step: Step, draws: Draws) -> dict[str, Tensor]:
        """Learns from the outcome of the last action, begins the next episodes, and draws the next action.

        SARSA draws an action after each step, also after the last of an episode, and another where an episode begins;
        epsilon counts both.
        """
        next_state = self.features(step.next_obs)
        if self.args.target == "q":
            metrics = self.learn(step.reward, next_state, step.done)
            if step.obs is not None and step.begun is not None:
                self.start(step.obs, step.begun)
            # without `begun`, it is `restart` that draws the first action of the next episode
            self.act(draws, 1.0 if step.begun is not None else 1 - step.done)
            return metrics

        action, greedy = self.choose(next_state, draws)  # by the values before the update
        metrics = self.learn(step.reward, next_state, step.done, action)
        if step.obs is not None and step.begun is not None:
            self.start(step.obs, step.begun)
            first_action, first_greedy = self.choose(self.state, draws, step.begun)
            first = step.begun > 0
            action, greedy = torch.where(first, first_action, action), torch.where(first, first_greedy, greedy)
        self.take(action, greedy)
        return metrics

    def restart(self, obs: Tensor, draws: Draws) -> None:
        """Begins an episode in all runs, with clear traces, and draws an action: obs [R, O]."""
        self.obgd.clear()
        self.start(obs, torch.ones(len(obs), dtype=obs.dtype, device=obs.device))
        self.act(draws)

    def draws(self, random: Random) -> Callable[[], Draws]:
        """The random numbers of actions."""
        uniform = random.uniform("action", 2)
        return lambda: Draws(*uniform().unbind(1))


def main(args: Args) -> None:
    run = Run(args, "stream_q")
    options = time_limit(args.env_id, args.max_episode_steps)
    envs = run.environments(dtype=torch.float64, images=True, every_step_valid=True, **options)
    agent = StreamQ(run.args, envs.task, run.seeds, run.device)
    draws, update = agent.draws(run.random), run.compiled(agent.update)

    run.export("learner.safetensors", lambda: learner_file(agent))
    run.register(agent)
    for _ in run.steps():
        if envs.restarted:
            agent.restart(envs.obs[:, 0], draws())
        envs.send(agent.output[:, None])
        t = envs.receive()
        done = torch.maximum(t.terminated, t.truncated)[:, 0]
        step = Step(t.reward[:, 0], t.next_obs[:, 0], done, envs.obs[:, 0], t.begun[:, 0])
        run.log(update(step, draws()))


if __name__ == "__main__":
    cli(main)
