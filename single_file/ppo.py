"""PPO: proximal policy optimisation with a clipped objective, many seeds at once.

Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), in the form of CleanRL's
`ppo_continuous_action.py`: advantages are normalised in each minibatch, the value's loss is clipped too, the learning
rate falls linearly to 0, observations and rewards are normalised and clipped, and a time limit ends an episode like
any other end, without bootstrapping; `--bootstrap-limits` counts the value of the last observation instead. Discrete
actions are drawn from a softmax.

Three things differ from CleanRL. Running statistics are those of Stable-Baselines: they are over all environments of a
run, do not count the observation at which an episode ends, and start the sum by which rewards are normalised anew after
an episode's last reward. Where the number of steps is not a multiple of an iteration's, the last iteration is a whole
one, and counts in the learning rate's fall; CleanRL leaves it out. A last minibatch that is not full is left out, and
CleanRL takes it.

    python single_file/ppo.py --env-id HalfCheetah-v5 --seeds 0:10

Results lie in runs/<env>/ppo/<variant>/. Evaluations use the most probable actions; the returns of the training
episodes, which papers report, are in train.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from algos.arguments import Count, Levels, NotNegative, Positive, Tunable
from algos.cli import cli
from algos.on_policy import OnPolicyAgent, OnPolicyArgs, Samples, tanh_mlp
from algos.optim import Adam, linear
from algos.random import Random
from algos.rollout import Means, Rollout, minibatches
from algos.run import Run
from envs import Task


@dataclass
class Args(OnPolicyArgs):
    ACTIONS: ClassVar[str] = "any"

    env_id: str = "HalfCheetah-v5"
    """Gymnasium id of a task with continuous or discrete actions; `module:Name-v0` imports a module first"""
    levels: Levels = ()
    """levels of each dimension of continuous actions, from -1, the lower bound, to 1; every combination is an action"""
    epochs: Count = 10
    """passes through the samples of an iteration"""
    lr: Tunable[Positive] = 3e-4
    """learning rate of actor and critic"""
    anneal: bool = True
    """let the learning rate fall linearly to 0"""
    clip: Tunable[Positive] = 0.2
    """epsilon: a probability ratio may move this far from 1, and a value this far from what it was"""
    clip_value: bool = True
    """limit values like ratios, as CleanRL does; Stable-Baselines3 does not, where rewards are not normalised"""
    value_weight: Tunable[NotNegative] = 0.5
    """weight of the value's loss"""
    entropy_weight: Tunable[NotNegative] = 0.0
    """weight of the policy's entropy"""
    max_norm: Tunable[Positive] = 0.5
    """gradients of a run are scaled down to at most this norm"""


class Softmax(nn.Module):
    """Policy over discrete actions: obs [R, B, O] -> logits [R, B, A]."""

    def __init__(self, runs: int, task: Task, hidden: tuple[int, ...]):
        super().__init__()
        self.net = tanh_mlp(runs, task.obs_size, hidden, task.act_size, gain=0.01)

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [R, B] from uniform noise [R, B, A]: the largest of Gumbel-perturbed logits."""
        return (self.net(obs) - torch.log(-torch.log(noise))).argmax(-1)

    def mode(self, obs: Tensor) -> Tensor:
        """The most probable actions [R, B]."""
        return self.net(obs).argmax(-1)

    def log_prob_and_entropy(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of actions [R, B], and the policy's entropies, each [R, B]."""
        log_p = self.net(obs).log_softmax(-1)
        return log_p.gather(-1, action[..., None]).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


class PPO(OnPolicyAgent):
    """Actor and critic of R runs, which share one optimiser."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        updates = args.epochs * (args.stride // args.batch_size)  # in an iteration
        schedule = linear(args.iterations, updates) if args.anneal else None
        self.adam = Adam(self.parameters(), lr=args.lr, eps=1e-5, max_norm=args.max_norm, schedule=schedule)

    def make_actor(self) -> nn.Module:
        """Softmax for discrete actions, and otherwise the Gaussian of algos/on_policy.py."""
        return Softmax(self.runs, self.task, self.args.hidden) if self.task.discrete else super().make_actor()

    def policy_loss(self, batch: Samples) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean of max(-A rho, -A clip(rho)) minus the weighted entropy: losses [R], and metrics [R]."""
        log_prob, entropy = self.actor.log_prob_and_entropy(batch.obs, batch.action)
        advantage = batch.advantage - batch.advantage.mean(-1, keepdim=True)
        advantage = advantage / (batch.advantage.std(-1, keepdim=True) + 1e-8)
        log_ratio, clip = log_prob - batch.log_prob, self.args.clip
        ratio = log_ratio.exp()
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).mean(-1)
        with torch.no_grad():
            metrics = {
                "policy_loss": loss.detach(),
                "entropy": entropy.mean(-1),
                "kl": (ratio - 1 - log_ratio).mean(-1),  # an unbiased estimate that is never negative
                "clipped": ((ratio - 1).abs() > clip).to(ratio.dtype).mean(-1),
            }
        return loss - self.args.entropy_weight * entropy.mean(-1), metrics

    def value_loss(self, batch: Samples) -> Tensor:
        """Half the mean of max((V - R)^2, (V_old + clip(V - V_old) - R)^2), or of the former alone: losses [R]."""
        value, clip = self.critic(batch.obs), self.args.clip
        distance = (value - batch.returns).square()
        if self.args.clip_value:
            near = batch.value + (value - batch.value).clamp(-clip, clip)
            distance = torch.maximum(distance, (near - batch.returns).square())
        return 0.5 * distance.mean(-1)

    def step(self, batch: Samples) -> dict[str, Tensor]:
        """One gradient step on a minibatch; gives metrics [R]."""
        policy_loss, metrics = self.policy_loss(batch)
        value_loss = self.value_loss(batch)
        self.adam.minimise(policy_loss + self.args.value_weight * value_loss)
        return metrics | {"value_loss": value_loss.detach(), "value": batch.value.mean(-1)}

    def draws(self, random: Random) -> Callable[[], Tensor]:
        """Random numbers [R, epochs, T N] of the orders in which an update goes through its samples."""
        return random.uniform("order", self.args.epochs, self.args.stride)

    def update(self, rollout: Rollout, draws: Tensor) -> dict[str, Tensor]:
        """Learns from the steps of an iteration; gives mean metrics [R] over the minibatches of the last epoch."""
        samples = self.samples(rollout)  # values, and advantages by GAE: see algos/on_policy.py
        means = Means()
        for epoch, order in enumerate(draws.unbind(1), 1):
            for batch in minibatches(samples, order, self.args.batch_size):
                metrics = self.step(batch)
                if epoch == draws.shape[1]:
                    means.add(metrics)
        return means.take()


def main(args: Args) -> None:
    run = Run(args, "ppo")
    envs = run.environments(args.num_envs, shown={"levels": args.levels}, every_step_valid=True)
    agent = PPO(run.args, envs.task, run.seeds, run.device)
    rollout = Rollout(run.runs, args.horizon, args.num_envs, envs.task, run.device)
    noise, draws = agent.noise(run.random), agent.draws(run.random)

    act, observe = run.compiled(agent.act), run.compiled(agent.observe)
    run.compile_methods(agent, "step")
    run.capture_methods(agent, "samples")
    run.register(agent)
    for _ in run.steps(agent.policy, args.stride):
        if envs.restarted:
            agent.start(envs.obs)
        for _ in range(args.horizon):
            obs, action, sent = act(envs.obs, noise())
            envs.send(sent)
            t = envs.receive()
            rollout.add(obs, action, observe(t.reward, t.terminated, t.truncated, t.next_obs, envs.obs))
        run.log(agent.update(rollout, draws()))


if __name__ == "__main__":
    cli(main)
