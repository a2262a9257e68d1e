"""Gradient steps and target networks with a run axis."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Adam(torch.optim.Adam):
    """`torch.optim.Adam` in its fused form; elementwise, so that one optimiser serves all runs."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, betas: tuple[float, float] = (0.9, 0.999)):
        parameters = list(parameters)
        super().__init__(parameters, lr=lr, betas=betas, fused=True, capturable=parameters[0].is_cuda)


def backward(loss: Tensor, optimiser: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Sets the gradients of the optimiser's own parameters, and of no others, from the losses [R] of all runs.

    The losses are summed, so every run gets exactly the gradient that it would have alone.
    """
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss.sum(), parameters), strict=True):
        parameter.grad = gradient
    return optimiser


class Target(nn.Module):
    """A target network: a frozen copy of `online` that follows it by Polyak averaging."""

    def __init__(self, online: nn.Module, tau: float):
        super().__init__()
        self.net = copy.deepcopy(online).requires_grad_(False)
        self.online, self.tau = list(online.parameters()), tau

    def forward(self, *inputs: Tensor):
        return self.net(*inputs)

    @torch.no_grad()
    def update(self) -> None:
        """target <- (1 - tau) target + tau online"""
        torch._foreach_lerp_(list(self.net.parameters()), self.online, self.tau)
