"""ObGD, overshooting-bounded gradient descent with eligibility traces, for R runs at once.

Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works" (arXiv 2410.14606), algorithm 3, as
the official code of 2024 computes it. Each run has its own traces, step sizes and second moments.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from algos.per_run import PerRun, per_run

EPS = 1e-8  # inside the root of the adaptive variant
BETA = 0.999  # decay of its second moments


class ObGD(nn.Module):
    """Gradient steps with eligibility traces, bounded so that they rarely overshoot (the paper's algorithm 3).

    Per run, for one network: z <- discount lambda z + g; M = lr kappa max(|delta|, 1) |z|_1 over all of its parameters;
    w <- w + lr / max(M, 1) delta z. If M > 1, the step has the length min(|delta|, 1) / kappa in the 1-norm, however
    large the network is.

    With `adaptive` z is divided by the root of the running second moment of delta z, as in Adam.
    """

    steps: Tensor

    def __init__(
        self,
        network: nn.Module,
        kappa: float | PerRun,
        trace_decay: float | PerRun,
        lr: float | PerRun = 1.0,
        adaptive: bool = False,
    ):
        super().__init__()
        self.weights = tuple(network.parameters())  # in a tuple: they are the network's, not this module's
        self.decay: Any = trace_decay
        self.kappa, self.lr, self.adaptive = kappa, lr, adaptive
        runs = len(self.weights[0])
        for i, weight in enumerate(self.weights):
            self.register_buffer(f"trace{i}", torch.zeros_like(weight, requires_grad=False))
            if adaptive:
                self.register_buffer(f"square{i}", torch.zeros_like(weight, requires_grad=False))
        if adaptive:
            self.register_buffer("steps", torch.zeros(runs, dtype=torch.float64, device=self.weights[0].device))

    def buffers_of(self, name: str) -> list[Tensor]:
        return [getattr(self, f"{name}{i}") for i in range(len(self.weights))]

    def clear(self) -> None:
        """Forgets the traces."""
        for trace in self.buffers_of("trace"):
            trace.zero_()

    def gradients(self, output: Tensor) -> list[Tensor]:
        """Gradients of outputs [R] for the weights of each run, computed from their sum: runs share no weights."""
        return list(torch.autograd.grad(output.sum(), self.weights))

    @torch.no_grad()
    def step(self, delta: Tensor, gradients: list[Tensor], reset: Tensor) -> Tensor:
        """One step with TD errors `delta` [R]; afterwards traces are cleared where `reset` [R] is 1. Gives M [R]."""
        traces = self.buffers_of("trace")
        for trace, gradient in zip(traces, gradients, strict=True):
            trace.mul_(self.decay).add_(gradient)
        directions = self._adapted(delta, traces) if self.adaptive else traces
        norm = torch.stack([direction.abs().flatten(1).sum(1) for direction in directions]).sum(0)
        bound = self.lr * self.kappa * delta.abs().clamp(min=1) * norm
        factor = self.lr / bound.clamp(min=1) * delta
        for weight, trace, direction in zip(self.weights, traces, directions, strict=True):
            weight.add_(per_run(factor, weight) * direction)
            trace.mul_(1 - per_run(reset, trace))
        return bound

    def _adapted(self, delta: Tensor, traces: list[Tensor]) -> list[Tensor]:
        self.steps.add_(1)
        correction = -torch.expm1(self.steps * math.log(BETA)).to(delta.dtype)
        directions = []
        for trace, square in zip(traces, self.buffers_of("square"), strict=True):
            moment = (per_run(delta, trace) * trace).square()
            square.mul_(BETA).add_(moment, alpha=1 - BETA)
            directions.append(trace / (square / per_run(correction, square) + EPS).sqrt())
        return directions
