"""Gradient steps and target networks with a run axis."""

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Adam:
    """`torch.optim.Adam` by a direct call of its fused kernel; elementwise, so that one optimiser serves all runs.

    It costs a quarter of the original's Python per step, and a compiler can trace it. With `decay_steps`, the learning
    rate falls to 0 within so many steps, along half a cosine.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        decay_steps: int = 0,
    ):
        self.parameters = list(parameters)
        self.lr, self.betas, self.eps, self.decay_steps = lr, betas, eps, decay_steps
        self.means = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.squares = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Moves the parameters against `gradients`, one for each."""
        rate = self.rate()
        torch._foreach_add_(self.steps, 1)
        if torch.compiler.is_compiling():
            self._formula(gradients, rate)
            return
        torch._fused_adam_(
            self.parameters, gradients, self.means, self.squares, [], self.steps,
            lr=rate, beta1=self.betas[0], beta2=self.betas[1], weight_decay=0.0, eps=self.eps, amsgrad=False,
            maximize=False,
        )  # fmt: skip

    def rate(self) -> Any:
        """The learning rate of the next step: a number, or a tensor if it falls."""
        if not self.decay_steps:
            return self.lr
        share = (self.steps[0] / self.decay_steps).clamp(max=1.0)
        return 0.5 * self.lr * (1 + torch.cos(math.pi * share))

    def _formula(self, gradients: list[Tensor], lr: Any) -> None:
        """The same in single operations, for a compiler to fuse; it cannot trace the fused kernel."""
        beta1, beta2 = self.betas
        for p, g, mean, square, step in zip(
            self.parameters, gradients, self.means, self.squares, self.steps, strict=True
        ):
            mean.lerp_(g, 1 - beta1)
            square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            step = step.to(p.dtype)  # -expm1(step log beta) is 1 - beta^step with all its digits
            rate = lr / -torch.expm1(step * math.log(beta1))
            p.sub_(rate * mean / ((square / -torch.expm1(step * math.log(beta2))).sqrt() + self.eps))

    def minimise(self, loss: Tensor) -> None:
        """One step on the losses [R] of all runs."""
        self.step(self.gradients(loss))

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients of the losses [R] with respect to this optimiser's parameters only.

        The losses are summed, so every run gets exactly the gradient that it would have alone.
        """
        return [g.contiguous() for g in torch.autograd.grad(loss.sum(), self.parameters)]  # the kernel takes no other

    def state_dict(self) -> dict[str, Tensor]:
        parts = {"mean": self.means, "square": self.squares, "step": self.steps}
        return {f"{name}.{i}": tensor for name, tensors in parts.items() for i, tensor in enumerate(tensors)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


class Target(nn.Module):
    """A target network: `net`, a frozen copy of `online` that follows it by Polyak averaging."""

    net: Any

    def __init__(self, online: nn.Module, tau: float):
        super().__init__()
        self.net = copy.deepcopy(online).requires_grad_(False)
        self.frozen: list[Tensor] = list(self.net.parameters())
        self.online: list[Tensor] = list(online.parameters())
        self.tau = tau

    def forward(self, *inputs: Tensor):
        return self.net(*inputs)

    @torch.no_grad()
    def update(self) -> None:
        """target <- (1 - tau) target + tau online"""
        torch._foreach_lerp_(self.frozen, self.online, self.tau)
