"""Gradient steps and target networks with a run axis."""

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from algos.per_run import PerRun, numbers, per_run

BETA1, BETA2 = 0.9, 0.999  # Adam's decays of the means of gradients and of their squares
Schedule = Callable[[Tensor], Tensor]  # number of steps done -> factor of the learning rate


def cosine(total: int, every: int = 1) -> Schedule:
    """A factor that falls from 1 to 0 along half a cosine, after each `every` steps, and is 0 after total·every."""
    return lambda steps: 0.5 * (1 + torch.cos(math.pi * (steps // every / total).clamp(max=1.0)))


def linear(total: int, every: int = 1) -> Schedule:
    """A factor that falls from 1 towards 0 by 1/total after each `every` steps, and reaches 0 after total·every."""
    return lambda steps: (1 - steps // every / total).clamp(min=0.0)


class Adam(nn.Module):
    """`torch.optim.Adam` for parameters [R, ...], with a state for each run.

    The learning rate `lr` is a number or differs between runs (PerRun), and is multiplied by a `schedule` of the run's
    number of steps. With `max_norm`, the gradients of a run are scaled down to at most that norm over all parameters.

    It calls torch's fused kernel directly, which takes a quarter of the time that `torch.optim.Adam` spends in Python.
    Where runs differ, it calls the kernel once for each group of neighbours that are alike. A compiler traces the
    formula instead.
    """

    steps: Tensor
    count: Tensor  # the same for the schedule, in whole numbers: float32, which the kernel wants, ends at 2^24

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float | PerRun,
        *,
        eps: float = 1e-8,
        schedule: Schedule | None = None,
        max_norm: float | PerRun | None = None,
    ):
        super().__init__()
        self.variables = tuple(parameters)  # in a tuple: they are their network's, not this module's
        self.lr, self.eps, self.schedule, self.max_norm = lr, eps, schedule, max_norm
        # one number of steps as long as all runs make the same ones: a run that diverges and is frozen must not stop it
        shape = (len(self.variables[0]),) if isinstance(lr, PerRun) else ()
        device = self.variables[0].device
        self.register_buffer("steps", torch.zeros(shape, dtype=torch.float32, device=device))
        if schedule:
            self.register_buffer("count", torch.zeros(shape, dtype=torch.int64, device=device))
        indices = range(len(self.variables))
        self.names = [f"mean{i}" for i in indices], [f"square{i}" for i in indices]
        for names in self.names:
            for name, p in zip(names, self.variables, strict=True):
                self.register_buffer(name, torch.zeros_like(p, requires_grad=False))

    @property
    def alike(self) -> bool:
        """Whether all runs make the same steps, so that one call of the kernel serves them all."""
        return self.steps.dim() == 0

    def _part(self) -> None:
        """Counts the steps of each run apart from now on."""
        if self.alike:
            self.steps = self.steps.repeat(len(self.variables[0]))
            if self.schedule:
                self.count = self.count.repeat(len(self.variables[0]))

    def minimise(self, loss: Tensor, active: Tensor | None = None) -> None:
        """One step on the losses [R] of all runs, or of those where `active` [R] is True."""
        self.step(self.gradients(loss), active)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients of the losses [R] with respect to this optimiser's parameters only.

        The losses are summed, so every run gets the gradient that it would have alone, up to rounding. Raises
        ValueError for losses of another shape, and for losses that do not depend on one of them.
        """
        if loss.shape != self.variables[0].shape[:1]:
            runs = len(self.variables[0])
            raise ValueError(f"there must be one loss for each of {runs} runs, [{runs}], got {list(loss.shape)}")
        eager = not torch.compiler.is_compiling()
        gradients = torch.autograd.grad(loss.sum(), self.variables, allow_unused=eager)
        if eager and (unused := [tuple(p.shape) for p, g in zip(self.variables, gradients, strict=True) if g is None]):
            all_of_them = f"{len(unused)} of the {len(gradients)} parameters of this optimiser"
            raise ValueError(f"the loss does not depend on {all_of_them}, the first of them of the shape {unused[0]}")
        return [g.contiguous() for g in gradients]  # the kernel takes only contiguous ones

    @torch.no_grad()
    def step(self, gradients: list[Tensor], active: Tensor | None = None) -> None:
        """Moves the parameters against their `gradients`; runs where `active` [R] is False stand still."""
        if self.max_norm is not None:
            gradients = self._clipped(gradients)
        if active is not None:
            self._part()
        buffers: Any = self._buffers  # a module's attributes take ten times as long
        means, squares = ([buffers[name] for name in names] for names in self.names)
        rates = self.rate()
        self._count(active)
        if torch.compiler.is_compiling():
            self._formula(gradients, means, squares, rates, active)
            return
        if self.alike:
            self._kernel(self.variables, gradients, means, squares, self.steps, rates)
            return
        runs = len(self.steps)
        moving = [True] * runs if active is None else active.tolist()
        steps = zip(numbers(rates, runs), self.steps.tolist(), moving, strict=True)
        first = 0
        for (rate, _, moves), alike in itertools.groupby(steps):
            last = first + len(list(alike))
            if moves:
                p, g, mean, square = ([x[first:last] for x in xs] for xs in (self.variables, gradients, means, squares))
                self._kernel(p, g, mean, square, self.steps[first], rate)
            first = last

    def rate(self) -> Any:
        """The learning rate of the next step: a number or a tensor, or one for each run where runs differ."""
        if self.schedule is None:
            return self.lr
        rate = self.lr * self.schedule(self.count)  # type: ignore[operator]
        return rate.to(self.steps.dtype)  # CUDA's kernel takes no other

    def _count(self, active: Tensor | None) -> None:
        """Counts a step of all runs, or of those where `active` [R] is True."""
        self.steps.add_(1 if active is None else active.to(self.steps.dtype))
        if self.schedule:
            self.count.add_(1 if active is None else active.to(self.count.dtype))

    def _kernel(self, variables: Any, gradients: Any, means: Any, squares: Any, step: Tensor, rate: Any) -> None:
        torch._fused_adam_(
            variables, gradients, means, squares, [], [step] * len(variables), lr=rate, beta1=BETA1, beta2=BETA2,
            weight_decay=0.0, eps=self.eps, amsgrad=False, maximize=False,
        )  # fmt: skip

    def _formula(
        self, gradients: list[Tensor], means: list[Tensor], squares: list[Tensor], rate: Any, active: Tensor | None
    ) -> None:
        """The same step in single operations, which a compiler can fuse; it cannot trace the fused kernel."""
        steps = self.steps.to(self.variables[0].dtype)
        # -expm1(step log beta) is 1 - beta^step with all its digits
        first, second = (-torch.expm1(steps * math.log(beta)) for beta in (BETA1, BETA2))
        # a compiler for CPUs keeps what is stacked, and would compute the rest again for every few weights
        factors = torch.stack([rate / first, second]).unbind()
        for p, g, mean, square in zip(self.variables, gradients, means, squares, strict=True):
            step_size, correction = factors if self.alike else (per_run(factor, p) for factor in factors)
            old = (p.clone(), mean.clone(), square.clone()) if active is not None else ()
            mean.lerp_(g, 1 - BETA1)
            square.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            p.sub_(step_size * mean / ((square / correction).sqrt() + self.eps))
            if active is not None:
                for new, before in zip((p, mean, square), old, strict=True):
                    new.copy_(torch.where(per_run(active, new), new, before))

    def _clipped(self, gradients: list[Tensor]) -> list[Tensor]:
        """Gradients scaled so that the norm of each run is at most `max_norm`, as `clip_grad_norm_` does it."""
        assert self.max_norm is not None
        # in two steps, so that the rounding does not depend on the number of threads
        squares = [g.square().sum(-1).reshape(len(g), -1).sum(1) if g.dim() > 1 else g.square() for g in gradients]
        norm = torch.stack(squares).sum(0).sqrt()
        factor = (self.max_norm / (norm + 1e-6)).clamp(max=1.0)  # type: ignore[operator]
        return [g * per_run(factor, g) for g in gradients]

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *more: Any) -> None:
        if (steps := state.get(prefix + "steps")) is not None:
            if steps.dim():
                self._part()
            if self.schedule:  # earlier checkpoints have no count
                state.setdefault(prefix + "count", steps.long())
        super()._load_from_state_dict(state, prefix, *more)


class Target(nn.Module):
    """A target network: `net`, a frozen copy of `online` that follows it by Polyak averaging.

    Calling it calls `net`, whose other methods are there too: `target.net.sample(obs, noise)`.
    """

    net: Any

    def __init__(self, online: nn.Module, tau: float | PerRun):
        super().__init__()
        self.net = copy.deepcopy(online).requires_grad_(False)
        self.online = tuple(online.parameters())  # in a tuple: they are not this module's
        self.frozen = tuple(self.net.parameters())
        self.tau = tau

    def forward(self, *inputs: Tensor) -> Any:
        return self.net(*inputs)

    @torch.no_grad()
    def update(self) -> None:
        """target <- (1 - tau) target + tau online"""
        tau: Any = self.tau
        if isinstance(tau, PerRun):
            tau = [per_run(tau.values.to(p.dtype), p) for p in self.frozen]
        torch._foreach_lerp_(self.frozen, self.online, tau)
