"""MDPO, on-policy: mirror descent policy optimisation, many seeds at once.

Tomar, Shani, Efroni and Ghavamzadeh, "Mirror Descent Policy Optimization" (arXiv 2005.09814), in the form of its
official code as its README calls it. In each iteration, the policy takes m gradient steps on all samples towards
more advantage and against KL(new || old) / t_k, where old is the policy at the iteration's start; then the critic
learns from minibatches with an optimiser of its own. t_k falls linearly from 1 + 1/n, where n is the number of whole
iterations in all steps, to 1/n, or to 2/n if nothing is left over (paper: from 1 to 0). The learning rates are constant
(paper: annealed).

A time limit ends an episode like any other end, without bootstrapping; `--bootstrap-limits` counts the value of the
last observation instead. The official code differs in five things: it always trains for ten million steps, in its
first iteration the policy that acts is not the one that learns, the first action of every later iteration is drawn by
the policy of the one before it, its Adam adds epsilon before it corrects the bias, and it adds no 1e-6 to the norm by
which it divides a gradient. Discrete actions are not supported.

    python single_file/mdpo_on_policy.py --env-id HalfCheetah-v5 --seeds 0:10

Results lie in runs/<env>/mdpo_on_policy/<variant>/. Evaluations use the mean action; the returns of the training
episodes, which the paper reports, are in train.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algos.arguments import Count, Positive, Size, Tunable
from algos.cli import cli
from algos.on_policy import OnPolicyAgent, OnPolicyArgs, Samples, gaussian_kl, gaussian_log_prob
from algos.optim import Adam
from algos.random import Random
from algos.rollout import Means, Rollout, minibatches
from algos.run import Run
from envs import Task


@dataclass
class Args(OnPolicyArgs):
    batch_size: Size = 128
    """samples of a minibatch of the critic; samples that do not fill one are left out of a pass"""
    policy_steps: Count = 10
    """m, gradient steps of the policy in an iteration, each on all samples; 1 is the plain policy gradient"""
    step_size: Tunable[Positive] = 1.0
    """factor of the step size t_k: the KL divergence from the old policy weighs 1/t_k"""
    lr: Tunable[Positive] = 3e-4
    """learning rate of the policy"""
    max_norm: Tunable[Positive] = 0.5
    """gradients of a run's policy are scaled down to at most this norm"""
    critic_lr: Tunable[Positive] = 3e-4
    """learning rate of the critic"""
    critic_epochs: Count = 5
    """passes of the critic through the samples of an iteration"""
    clip: Tunable[Positive] = 0.2
    """how far a value may move from the one at the iteration's start"""


class MDPO(OnPolicyAgent):
    """Actor and critic of R runs, which share nothing."""

    iteration: Tensor  # k, the number of iterations done

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.actor_adam = Adam(self.actor.parameters(), lr=args.lr, eps=1e-5, max_norm=args.max_norm)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.critic_lr)
        self.register_buffer("iteration", torch.tensor(0.0, device=device))

    def step_size(self) -> Tensor:
        """t_k [R] = step_size (1 - (k - 1) / n), where n is the number of whole iterations in all steps.

        If steps are left after n iterations, one more has the step size of the n-th, step_size / n.
        """
        n = max(self.args.total_steps // self.args.stride, 1)
        share = (1 - (self.iteration - 1) / n).clamp(min=1 / n)
        return self.args.step_size * share.expand(self.runs)

    @torch.no_grad()
    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [R, B, A] and log standard deviation [R, 1, A] of the present policy, untouched by later steps."""
        mean, log_std = self.actor(obs)
        return mean, log_std.clone()

    def policy_loss(self, samples: Samples, advantage: Tensor, old: tuple[Tensor, Tensor], step_size: Tensor) -> Tensor:
        """Mean of -rho A + KL(new || old) / t_k: losses [R]."""
        mean, log_std = self.actor(samples.obs)
        ratio = (gaussian_log_prob(mean, log_std, samples.action) - samples.log_prob).exp()
        return gaussian_kl(mean, log_std, *old).mean(-1) / step_size - (ratio * advantage).mean(-1)

    def value_loss(self, batch: Samples) -> Tensor:
        """Mean of max((V - R)^2, (V_old + clip(V - V_old) - R)^2): losses [R]."""
        value, clip = self.critic(batch.obs), self.args.clip
        near = batch.value + (value - batch.value).clamp(-clip, clip)
        return torch.maximum((value - batch.returns).square(), (near - batch.returns).square()).mean(-1)

    def policy_step(
        self, samples: Samples, advantage: Tensor, old: tuple[Tensor, Tensor], step_size: Tensor
    ) -> dict[str, Tensor]:
        """One gradient step of the policy on all samples; gives metrics [R]."""
        loss = self.policy_loss(samples, advantage, old, step_size)
        self.actor_adam.minimise(loss)
        return {"policy_loss": loss.detach()}

    def value_step(self, batch: Samples) -> dict[str, Tensor]:
        """One gradient step of the critic on a minibatch; gives metrics [R]."""
        loss = self.value_loss(batch)
        self.critic_adam.minimise(loss)
        return {"value_loss": loss.detach(), "value": batch.value.mean(-1)}

    def draws(self, random: Random) -> Callable[[], Tensor]:
        """Random numbers [R, epochs, T N] of the orders in which the critic goes through the samples."""
        return random.uniform("order", self.args.critic_epochs, self.args.stride)

    def update(self, rollout: Rollout, draws: Tensor) -> dict[str, Tensor]:
        """Learns from the steps of an iteration; gives metrics [R], those of the critic of its last epoch."""
        samples = self.samples(rollout)  # values, and advantages by GAE: see algos/on_policy.py
        advantage, step_size = samples.normalised_advantage(), self.step_size()
        old = self.distribution(samples.obs)
        for _ in range(self.args.policy_steps):
            metrics = self.policy_step(samples, advantage, old, step_size)
        metrics = metrics | {"kl": gaussian_kl(*self.distribution(samples.obs), *old).mean(-1), "step_size": step_size}
        means = Means()
        for epoch, order in enumerate(draws.unbind(1), 1):
            for batch in minibatches(samples, order, self.args.batch_size):
                values = self.value_step(batch)
                if epoch == draws.shape[1]:
                    means.add(values)
        self.iteration += 1
        return metrics | means.take()


def main(args: Args) -> None:
    run = Run(args, "mdpo_on_policy")
    envs = run.environments(args.num_envs, every_step_valid=True)
    agent = MDPO(run.args, envs.task, run.seeds, run.device)
    rollout = Rollout(run.runs, args.horizon, args.num_envs, envs.task, run.device)
    noise, draws = agent.noise(run.random), agent.draws(run.random)

    act, observe = run.compiled(agent.act), run.compiled(agent.observe)
    run.compile_methods(agent, "policy_step", "value_step")
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
