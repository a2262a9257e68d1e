"""Stream Q(lambda) and stream SARSA(lambda): action values learned from each transition once, many seeds at once.

Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works" (arXiv 2410.14606), the method of 2024
in the form of its official code: ObGD with eligibility traces, sparse initialisation, layer normalisation, running
statistics of observations and rewards, and epsilon-greedy exploration that falls linearly. Q(lambda) clears its traces
after the update by an exploratory action that is not the greedy one. A time limit ends an episode like any other end,
without bootstrapping; in return, the time in the episode is a feature where a task has a limit and no images. As in
the official scripts, CartPole, MountainCar and Acrobot run up to 10,000 steps: returns there do not compare with those
under the usual limits.

What differs: the official SARSA begins an episode with the action that it drew at the last observation of the episode
before, here that action is drawn anew; its MinAtar script ends exploration after 50,000 steps whatever is asked for;
statistics are float64 on all tasks; the time limit of an Atari game ends it like any other.

    python single_file/stream_q.py --env-id MinAtar/Breakout-v1 --seeds 0:5 --total-steps 5000000 --exploration 0.2
    python single_file/stream_q.py --env-id CartPole-v1 --target sarsa --variant sarsa

Results lie in runs/<env>/stream_q/<variant>/. The score is the return of the training episodes, as in
the paper: in eval.parquet, those that ended since the last multiple of --eval-every.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from algos.arguments import Count, Fraction, Natural, Rate
from algos.nn import initialise
from algos.random import generators
from algos.run import Run, cli
from algos.stream import Features, Hidden, Network, ObGD, RewardScaler, StreamArgs, column, packed, time_limit
from envs import Task


@dataclass
class Args(StreamArgs):
    env_id: str = "CartPole-v1"
    """Gymnasium id of a task with discrete actions"""
    total_steps: Count = 500_000
    """environment steps of each run; officially 5M on MinAtar and 10M on Atari"""
    eval_every: Count = 25_000
    """environment steps over which the returns of training episodes make one score"""
    target: Literal["q", "sarsa"] = "q"
    """the value of the next state: of its greedy action (Q), or of the action that will be taken (SARSA)"""
    kappa: Rate = 2.0
    """kappa of ObGD, the bound of the steps"""
    epsilon_start: Fraction = 1.0
    """probability of a uniformly random action at the first step"""
    epsilon_end: Fraction = 0.01
    """that probability from the end of exploration on"""
    exploration: Fraction = 0.05
    """share of all steps after which exploration has ended; the paper's for MinAtar is 0.2"""
    hidden: Hidden = ()
    """widths of hidden layers; by default 32 32, MinAtar 128, Atari 256"""
    max_episode_steps: Natural = 0
    """time limit of an episode; 0: the task's own, but 10,000 for CartPole, MountainCar and Acrobot"""


class StreamQ:
    """Action values of R runs, with all that a streaming learner remembers of its stream."""

    def __init__(self, args: Args, task: Task, seeds: list[int], device: torch.device):
        self.args, self.task, self.seeds, runs = args, task, seeds, len(seeds)
        self.features = Features(runs, task).to(device)
        self.reward_scaler = RewardScaler(runs, args.discount).to(device)
        hidden = args.hidden or (() if len(task.obs_shape) == 3 else (32, 32))
        self.critic = Network(runs, self.features.out_shape, hidden, task.act_size)
        initialise(self.critic, runs, generators(seeds, "critic"))
        self.critic.to(device)
        self.obgd = ObGD(self.critic, args.kappa, args.discount * args.trace, args.lr, args.adaptive)

        self.state = torch.zeros(runs, *self.features.out_shape, device=device)
        self.action = torch.zeros(runs, dtype=torch.int64, device=device)
        self.greedy = torch.ones(runs, dtype=torch.bool, device=device)  # whether the action is a greedy one
        self.drawn = torch.zeros(runs, dtype=torch.float64, device=device)  # number of actions

    def epsilon(self) -> Tensor:
        """Probability [R] of a random action, which falls linearly with the number of actions drawn."""
        a = self.args
        share = self.drawn / max(a.exploration * a.total_steps, 1)
        return (a.epsilon_start + (a.epsilon_end - a.epsilon_start) * share).clamp(min=a.epsilon_end)

    @torch.no_grad()
    def choose(self, state: Tensor, noise: Tensor, here: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        """Epsilon-greedy actions [R] by uniform noise [R, 2], and whether they are greedy; counts those `here`."""
        self.drawn.add_(here)
        best = self.critic(state).argmax(-1)
        random_action = (noise[:, 1] * self.task.act_size).long()
        action = torch.where(noise[:, 0] < self.epsilon(), random_action, best)
        return action, action == best

    def take(self, action: Tensor, greedy: Tensor) -> Tensor:
        """Makes these actions [R] the next ones."""
        self.action.copy_(action)
        self.greedy.copy_(greedy)
        return action

    def act(self, noise: Tensor, here: Tensor | float = 1.0) -> Tensor:
        """Draws the next action [R] by uniform noise [R, 2], counted where `here` is 1."""
        return self.take(*self.choose(self.state, noise, here))

    def start(self, obs: Tensor, here: Tensor) -> None:
        """Begins an episode with obs [R, O] in the runs where `here` [R] is 1."""
        first = self.features.start(obs, here)
        self.state.copy_(torch.where(column(here, first) > 0, first, self.state))

    def learn(
        self, reward: Tensor, next_state: Tensor, done: Tensor, next_action: Tensor | None = None
    ) -> dict[str, Tensor]:
        """One step from the state and action in hand; the greedy next action, or `next_action` [R], is valued."""
        reward, done = self.reward_scaler(reward, done), done.to(next_state.dtype)
        value = self.critic(self.state).gather(1, self.action[:, None]).squeeze(1)
        with torch.no_grad():
            next_values = self.critic(next_state)
            best = next_values.amax(-1)
            next_value = best if next_action is None else next_values.gather(1, next_action[:, None]).squeeze(1)
            delta = reward + self.args.discount * (1 - done) * next_value - value
        # the traces of Q end with an exploratory action, after the update that it has a part in
        reset = torch.maximum(done, (~self.greedy).to(done.dtype)) if next_action is None else done
        bound = self.obgd.step(delta, self.obgd.gradients(value), reset)
        self.state.copy_(next_state)
        return {"value": value.detach(), "td_error": delta.abs(), "bound": bound}

    def step(
        self, reward: Tensor, next_obs: Tensor, done: Tensor, noise: Tensor, *begun: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Learns from what the last action led to, begins the next episodes, and acts.

        reward [R], next_obs [R, O], done [R] (terminated or truncated), uniform noise [R, 2]; `begun` are the first
        observations [R, O] of episodes and where [R] they begin -> action [R], metrics [R].
        """
        next_state = self.features(next_obs)
        if self.args.target == "q":
            metrics = self.learn(reward, next_state, done)
            if begun:
                self.start(*begun)
            return self.act(noise, 1.0 if begun else 1 - done), metrics

        following = self.choose(next_state, noise, 1.0 if begun else 1 - done)  # by the values before the update
        metrics = self.learn(reward, next_state, done, following[0])
        if begun:
            self.start(*begun)
            first, here = self.choose(self.state, noise, begun[1]), begun[1] > 0
            following = torch.where(here, first[0], following[0]), torch.where(here, first[1], following[1])
        return self.take(*following), metrics

    def restart(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Begins an episode in all runs, with clear traces, and acts: obs [R, O], noise [R, 2] -> action [R]."""
        self.obgd.clear()
        self.start(obs, torch.ones(len(obs), dtype=obs.dtype, device=obs.device))
        return self.act(noise)

    @staticmethod
    def draw(task: Task, generator: torch.Generator) -> Tensor:
        """The noise of one action of a single run."""
        return torch.rand(1, 2, generator=generator)


def main(args: Args) -> None:
    limit = time_limit(args.env_id, args.max_episode_steps)
    run = Run(args, "stream_q", actions="discrete", dtype=torch.float64, **limit)
    envs = run.envs
    agent = StreamQ(args, envs.task, run.seeds, run.device)
    step = run.fast(agent.step)
    noise = run.stream("action", 2, kind="uniform")

    run.export("learner.safetensors", lambda: packed(agent))
    for _ in run.steps(agent=agent):
        if envs.restarted:
            agent.restart(envs.obs[:, 0], noise())
        envs.send(agent.action[:, None])
        t = envs.receive()
        done = torch.maximum(t.terminated, t.truncated)[:, 0]
        _, metrics = step(t.reward[:, 0], t.next_obs[:, 0], done, noise(), envs.obs[:, 0], t.begun[:, 0])
        run.log(metrics)


if __name__ == "__main__":
    cli(main)
