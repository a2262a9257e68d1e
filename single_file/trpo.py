"""TRPO: trust region policy optimisation, many seeds at once.

Schulman et al., "Trust Region Policy Optimization" (arXiv 1502.05477) with generalised advantage estimation, in the
form of Stable-Baselines' `trpo_mpi` with the numbers of its MuJoCo script: the natural gradient comes from conjugate
gradients with the curvature of KL(old || new) on every fifth step, and a line search takes the longest step, halved
at most nine times, whose KL divergence is at most 1.5 delta (the paper's constraint is `--slack 1`) and whose surrogate
is not worse. A time limit ends an episode like any other end, without bootstrapping; `--bootstrap-limits` counts the
value of the last observation instead. Discrete actions are not supported.

That script does not normalise observations and rewards. Here they are normalised by default, because the MDPO paper
compares methods with the same tricks. Two of these, a clipped loss of the critic and a learning rate that falls, are in
neither that script nor here.

    python single_file/trpo.py --env-id HalfCheetah-v5 --seeds 0:10

Results lie in runs/<env>/trpo/<variant>/. Evaluations use the mean action; the returns of the training episodes,
which papers report, are in train.parquet.
"""

import algos.early  # a signal during the imports below ends the program in one line

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algos.arguments import Count, Fraction, NotNegative, Positive, Size, Tunable
from algos.cli import cli
from algos.on_policy import OnPolicyAgent, OnPolicyArgs, Samples, gaussian_kl, gaussian_log_prob
from algos.optim import Adam
from algos.random import Random
from algos.rollout import Means, Rollout, minibatches
from algos.run import Run
from envs import Task

TRIALS = 10  # steps that the line search tries
CONVERGED = 1e-10  # squared norm of the residual at which conjugate gradients stop


@dataclass
class Args(OnPolicyArgs):
    horizon: Count = 1024
    """T, the steps of each environment in an iteration; a run learns in whole iterations"""
    trace: Tunable[Fraction] = 0.98
    """lambda of generalised advantage estimation"""
    batch_size: Size = 128
    """samples of a minibatch of the critic; samples that do not fill one are left out of a pass"""
    delta: Tunable[Positive] = 0.01
    """size of the trust region, a mean KL divergence"""
    slack: Tunable[Positive] = 1.5
    """multiple of delta up to which the line search accepts a KL divergence"""
    damping: Tunable[NotNegative] = 0.1
    """multiple of the identity that is added to the curvature"""
    cg_steps: Count = 10
    """iterations of conjugate gradients"""
    curvature_every: Count = 5
    """n: the curvature is computed from every n-th step"""
    critic_lr: Tunable[Positive] = 1e-3
    """learning rate of the critic"""
    critic_epochs: Count = 5
    """passes of the critic through the samples of an iteration"""


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors [R, ...] as one [R, P]."""
    return torch.cat([x.flatten(1) for x in tensors], 1)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products [R, 1] of vectors [R, P]."""
    return (a * b).sum(1, keepdim=True)


def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, steps: int) -> Tensor:
    """Solves H x = b for vectors [R, P], where `product` is v -> H v; a run that has converged stops."""
    x, residual, direction = torch.zeros_like(b), b, b
    square = dot(b, b)
    for _ in range(steps):
        image = product(direction)
        going = square > CONVERGED
        length = torch.where(going, square / dot(direction, image), 0.0)
        x, residual = x + length * direction, residual - length * image
        square, before = dot(residual, residual), square
        direction = residual + torch.where(going, square / before, 0.0) * direction
    return x


class TRPO(OnPolicyAgent):
    """Actor and critic of R runs, which share nothing."""

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        self.critic_adam = Adam(self.critic.parameters(), lr=args.critic_lr)

    def surrogate(self, new: tuple[Tensor, Tensor], samples: Samples, advantage: Tensor) -> Tensor:
        """Mean of rho A: [R], for means and log standard deviations at samples.obs."""
        return ((gaussian_log_prob(*new, samples.action) - samples.log_prob).exp() * advantage).mean(-1)

    def divergence(self, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> Tensor:
        """Mean of KL(old || new): [R]."""
        return gaussian_kl(*old, *new).mean(-1)

    def natural_step(self, samples: Samples, advantage: Tensor) -> Tensor:
        """The step [R, P] along the natural gradient to the border of the trust region."""
        parameters = tuple(self.actor.parameters())
        surrogate = self.surrogate(self.actor(samples.obs), samples, advantage)
        gradient = flat(torch.autograd.grad(surrogate.sum(), parameters))
        steps = samples.obs.unflatten(1, (-1, self.args.num_envs))  # [R, T, N, O]
        obs = steps[:, :: self.args.curvature_every].flatten(1, 2)
        mean, log_std = self.actor(obs)
        kl = self.divergence((mean.detach(), log_std.detach()), (mean, log_std))
        slope = flat(torch.autograd.grad(kl.sum(), parameters, create_graph=True))

        def product(v: Tensor) -> Tensor:
            curved = torch.autograd.grad((slope * v).sum(), parameters, retain_graph=True)
            return flat(curved) + self.args.damping * v

        direction = conjugate_gradients(product, gradient, self.args.cg_steps)
        curvature = dot(direction, product(direction))
        return direction * (2 * self.args.delta / curvature.clamp(min=1e-12)).sqrt()

    @torch.no_grad()
    def move(self, start: list[Tensor], step: Tensor) -> None:
        """Puts the actor's parameters at `start` plus a step [R, P]."""
        sizes = [p[0].numel() for p in start]
        for p, before, part in zip(self.actor.parameters(), start, step.split(sizes, 1), strict=True):
            p.copy_(before + part.view_as(p))

    def policy_step(self, samples: Samples, advantage: Tensor) -> dict[str, Tensor]:
        """One natural gradient step with a line search for each run; gives metrics [R]."""
        step = self.natural_step(samples, advantage)
        with torch.no_grad():
            start = [p.clone() for p in self.actor.parameters()]
            mean, log_std = self.actor(samples.obs)
            old = mean, log_std.clone()
            before = self.surrogate(old, samples, advantage)
            length = torch.zeros_like(before)  # 0 until a run has found its step
            for trial in range(TRIALS):
                self.move(start, 0.5**trial * step)
                new = self.actor(samples.obs)
                kl, surrogate = self.divergence(old, new), self.surrogate(new, samples, advantage)
                accepted = (kl <= self.args.slack * self.args.delta) & (surrogate >= before) & (length == 0)
                length = torch.where(accepted, 0.5**trial, length)
            self.move(start, torch.where(length[:, None] > 0, length[:, None] * step, 0.0))
            new = self.actor(samples.obs)
            kl, surrogate = self.divergence(old, new), self.surrogate(new, samples, advantage)
            _, entropy = self.actor.log_prob_and_entropy(samples.obs, samples.action)
        return {"surrogate": surrogate, "kl": kl, "step_length": length, "entropy": entropy.mean(-1)}

    def value_step(self, batch: Samples) -> dict[str, Tensor]:
        """One gradient step of the critic on the mean squared error of a minibatch; gives metrics [R]."""
        loss = (self.critic(batch.obs) - batch.returns).square().mean(-1)
        self.critic_adam.minimise(loss)
        return {"value_loss": loss.detach(), "value": batch.value.mean(-1)}

    def draws(self, random: Random) -> Callable[[], Tensor]:
        """Random numbers [R, epochs, T N] of the orders in which the critic goes through the samples."""
        return random.uniform("order", self.args.critic_epochs, self.args.stride)

    def update(self, rollout: Rollout, draws: Tensor) -> dict[str, Tensor]:
        """Learns from the steps of an iteration; gives metrics [R] of the policy's step and the critic's last epoch."""
        samples = self.samples(rollout)  # values, and advantages by GAE: see algos/on_policy.py
        metrics = self.policy_step(samples, samples.normalised_advantage())
        means = Means()
        for epoch, order in enumerate(draws.unbind(1), 1):
            for batch in minibatches(samples, order, self.args.batch_size):
                values = self.value_step(batch)
                if epoch == draws.shape[1]:
                    means.add(values)
        return metrics | means.take()


def main(args: Args) -> None:
    run = Run(args, "trpo")
    envs = run.environments(args.num_envs, every_step_valid=True)
    agent = TRPO(run.args, envs.task, run.seeds, run.device)
    rollout = Rollout(run.runs, args.horizon, args.num_envs, envs.task, run.device)
    noise, draws = agent.noise(run.random), agent.draws(run.random)

    act, observe = run.compiled(agent.act), run.compiled(agent.observe)
    run.compile_methods(agent, "value_step")
    run.capture_methods(agent, "samples", "policy_step")
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
