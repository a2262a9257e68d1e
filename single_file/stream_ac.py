"""Stream AC(lambda): an actor-critic that learns from each transition once and forgets it, many seeds at once.

Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works" (arXiv 2410.14606), the method of 2024
in the form of its official code, whose hyperparameters are the same for all tasks: one gradient step per transition by
ObGD with eligibility traces, sparse initialisation, layer normalisation, and running statistics of observations and
rewards. ObGD (algos/obgd.py) moves the weights of a network by lr / max(M, 1) delta z, where delta is the TD error, z
the traces (z <- discount lambda z + gradient), and M = lr kappa max(|delta|, 1) |z|_1. With continuous actions the
policy is a Gaussian whose samples are clipped to the task's bounds; with discrete ones it is a softmax. A time limit
ends an episode like any other end, without bootstrapping; in return, the time in the episode is a feature where the
task has a limit and no images. As in the official scripts, CartPole, MountainCar and Acrobot run up to 10,000 steps:
returns there do not compare with those under the usual limits. Three things differ here: statistics are float64 on all
tasks, a time limit of an Atari game ends it like any other limit, and games are prepared as envs/atari.py says, with
other roundings of pixels and without a second action after FIRE.

    python single_file/stream_ac.py --env-id HalfCheetah-v5 --seeds 0:10

Results lie in runs/<env>/stream_ac/<variant>/. The score is the return of the training episodes, as in the paper;
eval.parquet has them at the next multiple of --eval-every. `Learner.load` reads the learner.safetensors of a run into a
learner that goes on learning anywhere, without the task.
"""

import algos.early  # a signal during the imports below ends the program in one line

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algos.agent import Agent
from algos.arguments import Count, Fraction, Natural, Positive, Tunable
from algos.cli import cli
from algos.learner import learner_file
from algos.normalise import RewardScaler
from algos.obgd import ObGD
from algos.per_run import per_run
from algos.random import Random, RandomSequence
from algos.run import Run
from algos.sparse import Network
from algos.stream import Features, Hidden, Step, StreamArgs, time_limit
from envs import Task


@dataclass
class Args(StreamArgs):
    ACTIONS: ClassVar[str] = "any"

    env_id: str = "HalfCheetah-v5"
    """Gymnasium id of a task with continuous or discrete actions"""
    total_steps: Count = 2_000_000
    """environment steps of each run; official: 2M with continuous actions, 500k with discrete ones, 10M with images"""
    eval_every: Count = 50_000
    """environment steps over which the returns of training episodes make one score"""
    kappa_critic: Tunable[Positive] = 2.0
    """kappa of ObGD for the critic: a step that it bounds has a 1-norm of at most 1 / kappa"""
    kappa_actor: Tunable[Positive] = 3.0
    """the same for the actor"""
    entropy: Tunable[Fraction] = 0.01
    """tau, the weight of the policy's entropy"""
    hidden: Hidden = ()
    """widths of hidden layers; by default 128 128, with discrete actions 32 32, MinAtar 128, Atari 256"""
    max_episode_steps: Natural = 0
    """time limit of an episode; 0: the task's own, but 10,000 for CartPole, MountainCar and Acrobot"""


class StreamAC(Agent):
    """Actor and critic of R runs, with all that a streaming learner remembers of the past."""

    state: Tensor  # [R, features], from which the action was drawn
    action: Tensor  # [R, A] as it was drawn, or [R] if actions are discrete
    output: Tensor  # the same as the task takes it, clipped to its bounds
    low: Tensor  # [A]
    high: Tensor  # [A]

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        images = len(task.obs_shape) == 3
        hidden = args.hidden or (() if images else (32, 32) if task.discrete else (128, 128))
        size = task.act_size if task.discrete else 2 * task.act_size  # logits, or means and raw standard deviations

        self.features = Features(self.runs, task).to(device)
        self.reward_scaler = RewardScaler(self.runs, args.discount).to(device)
        self.actor = self.initialise("actor", Network(self.runs, self.features.out_shape, hidden, size))
        self.critic = self.initialise("critic", Network(self.runs, self.features.out_shape, hidden, 1))
        decay = args.discount * args.trace
        self.actor_obgd = ObGD(self.actor, args.kappa_actor, decay, args.lr, args.adaptive)
        self.critic_obgd = ObGD(self.critic, args.kappa_critic, decay, args.lr, args.adaptive)

        self.register_buffer("state", torch.zeros(self.runs, *self.features.out_shape, device=device))
        shape, dtype = ((), torch.int64) if task.discrete else ((task.act_size,), self.state.dtype)
        self.register_buffer("action", torch.zeros(self.runs, *shape, dtype=dtype, device=device))
        self.register_buffer("output", self.action.clone())
        for name, bound in (("low", task.low), ("high", task.high)):
            self.register_buffer(name, torch.tensor(bound, dtype=dtype, device=device), persistent=False)

    def gaussian(self, distribution: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, each [R, A], from what the actor gives [R, 2 A]."""
        mean, raw_std = distribution.chunk(2, -1)
        return mean, F.softplus(raw_std)

    def log_prob_and_entropy(self, distribution: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The action's log-density [R] and the policy's entropy [R].

        distribution: what the actor gives, [R, 2 A], or logits [R, A] if actions are discrete.
        """
        if self.task.discrete:
            log_p = distribution.log_softmax(-1)
            return log_p.gather(1, action[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)
        mean, std = self.gaussian(distribution)
        log_prob = -0.5 * ((action - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
        return log_prob.sum(-1), (std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    @torch.no_grad()
    def act(self, noise: Tensor) -> None:
        """Draws the next action, [R, A] or [R], from noise [R, A]: normal, or uniform if actions are discrete."""
        distribution = self.actor(self.state)
        if self.task.discrete:
            action = (distribution - torch.log(-torch.log(noise))).argmax(-1)  # the largest of Gumbel-perturbed logits
            clipped = action
        else:
            mean, std = self.gaussian(distribution)
            action = mean + std * noise
            clipped = action.clamp(self.low, self.high)
        self.action.copy_(action)
        self.output.copy_(clipped)

    @property
    def policy_task(self) -> Task:
        return self.features.policy_task

    @torch.no_grad()
    def policy(self, obs: Tensor, t: Tensor) -> Tensor:
        """The most probable action after t [] steps of an episode: obs [R, B, O] -> [R, B, A], or numbers [R, B]."""
        distribution = self.actor(self.features.seen(obs, t))
        if self.task.discrete:
            return distribution.argmax(-1)
        return self.gaussian(distribution)[0].to(self.low).clamp(self.low, self.high)

    def start(self, obs: Tensor, where: Tensor) -> None:
        """Begins an episode with obs [R, O] in the runs where `where` [R] is 1."""
        first = self.features.start(obs, where)
        self.state.copy_(torch.where(per_run(where, first) > 0, first, self.state))

    def learn(self, reward: Tensor, next_obs: Tensor, done: Tensor) -> dict[str, Tensor]:
        """Learns from the outcome of the current action, by delta and the gradients of V and log pi, without losses.

        reward and done: [R]; next_obs: [R, O].
        """
        reward = self.reward_scaler(reward, done)
        next_state, done = self.features(next_obs), done.to(reward.dtype)
        value = self.critic(self.state).squeeze(-1)
        distribution = self.actor(self.state)
        log_prob, entropy = self.log_prob_and_entropy(distribution, self.action)
        with torch.no_grad():
            next_value = self.critic(next_state).squeeze(-1)
            delta = reward + self.args.discount * (1 - done) * next_value - value
        # ObGD multiplies by delta; with delta's sign here, this step's own entropy term always increases the entropy,
        # while those of earlier steps, which are in the trace, may not
        objective = log_prob + self.args.entropy * delta.sign() * entropy

        actor_bound = self.actor_obgd.step(delta, self.actor_obgd.gradients(objective), done)
        critic_bound = self.critic_obgd.step(delta, self.critic_obgd.gradients(value), done)
        self.state.copy_(next_state)
        metrics = {"value": value, "td_error": delta.abs(), "entropy": entropy}
        metrics |= {"actor_bound": actor_bound, "critic_bound": critic_bound}
        if not self.task.discrete:
            metrics["least_std"] = self.gaussian(distribution)[1].amin(-1)  # nothing keeps it from 0
        return {name: metric.detach() for name, metric in metrics.items()}

    def update(self, step: Step, noise: Tensor) -> dict[str, Tensor]:
        """Learns from the outcome of the last action, begins the next episodes, and draws the next action."""
        metrics = self.learn(step.reward, step.next_obs, step.done)
        if step.obs is not None and step.begun is not None:
            self.start(step.obs, step.begun)
        self.act(noise)
        return metrics

    def restart(self, obs: Tensor, noise: Tensor) -> None:
        """Begins an episode in all runs, with clear traces, and draws an action: obs [R, O], noise as in `act`."""
        self.actor_obgd.clear()
        self.critic_obgd.clear()
        self.start(obs, torch.ones(len(obs), dtype=obs.dtype, device=obs.device))
        self.act(noise)

    def draws(self, random: Random) -> RandomSequence:
        """The noise of actions."""
        kind = random.uniform if self.task.discrete else random.normal
        return kind("action", self.task.act_size)


def main(args: Args) -> None:
    run = Run(args, "stream_ac")
    options = time_limit(args.env_id, args.max_episode_steps)
    envs = run.environments(dtype=torch.float64, images=True, every_step_valid=True, **options)
    agent = StreamAC(run.args, envs.task, run.seeds, run.device)
    noise, update = agent.draws(run.random), run.compiled(agent.update)

    run.export("learner.safetensors", lambda: learner_file(agent))
    run.register(agent)
    for _ in run.steps():
        if envs.restarted:
            agent.restart(envs.obs[:, 0], noise())
        envs.send(agent.output[:, None])
        t = envs.receive()
        done = torch.maximum(t.terminated, t.truncated)[:, 0]
        step = Step(t.reward[:, 0], t.next_obs[:, 0], done, envs.obs[:, 0], t.begun[:, 0])
        run.log(update(step, noise()))


if __name__ == "__main__":
    cli(main)
