"""Layers with a run axis: one module holds the weights of R independent runs, or of R runs with E members each.

A module with lead shape `(R,)` or `(R, E)` keeps one row of parameters for each of its L = R or R·E networks, and every
product is one batched matrix product over the L rows. Initial weights of `Linear` follow `torch.nn.Linear` exactly: the
row of a run is what that layer would draw from a generator with the run's seed, whoever the neighbours are.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """Affine maps of L networks: x [L, B, in] -> [L, B, out]."""

    def __init__(self, lead: tuple[int, ...], in_features: int, out_features: int):
        super().__init__()
        rows = math.prod(lead)
        self.weight = nn.Parameter(torch.empty(rows, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(rows, 1, out_features))

    def reset_row(self, row: int, generator: torch.Generator) -> None:
        """Draws one network's weights as `torch.nn.Linear` does: uniform in ±1/sqrt(fan_in), weight before bias."""
        _, fan_in, fan_out = self.weight.shape
        weight = torch.empty(fan_out, fan_in)
        nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
        bound = 1 / math.sqrt(fan_in)
        bias = torch.empty(fan_out).uniform_(-bound, bound, generator=generator)
        with torch.no_grad():
            self.weight[row].copy_(weight.T)
            self.bias[row, 0].copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return torch.bmm(x, self.weight) + self.bias  # a compiler fuses the sum with what follows
        return torch.baddbmm(self.bias, x, self.weight)


class Orthogonal(Linear):
    """Affine maps that begin as orthogonal matrices times sqrt(2), without bias, as in JAX implementations of IQL."""

    def reset_row(self, row: int, generator: torch.Generator) -> None:
        weight = torch.empty(self.weight.shape[1:])
        nn.init.orthogonal_(weight, math.sqrt(2), generator=generator)
        with torch.no_grad():
            self.weight[row].copy_(weight)
            self.bias[row].fill_(0.0)


class LayerNorm(nn.Module):
    """Layer normalisation of L networks over the last axis: x [L, B, n] -> [L, B, n]."""

    def __init__(self, lead: tuple[int, ...], features: int, eps: float = 1e-5):
        super().__init__()
        rows = math.prod(lead)
        self.weight = nn.Parameter(torch.ones(rows, 1, features))
        self.bias = nn.Parameter(torch.zeros(rows, 1, features))
        self.eps = eps

    def reset_row(self, row: int, generator: torch.Generator) -> None:
        with torch.no_grad():
            self.weight[row].fill_(1.0)
            self.bias[row].fill_(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, F.layer_norm(x, x.shape[-1:], eps=self.eps), self.weight)


class MLP(nn.Module):
    """Multilayer perceptrons with lead shape `(R,)` or `(R, E)`: x [*lead, B, in] -> [*lead, B, out].

    The lead axes of `x` may be 1 where the networks share their input (x [R, 1, B, in] feeds all E members).
    With `layer_norm`, each hidden layer is normalised before its activation, with that epsilon. `linear` is the kind of
    layers, which differ in how they begin.
    """

    def __init__(
        self,
        lead: tuple[int, ...],
        in_features: int,
        hidden: Sequence[int],
        out_features: int,
        activation: Callable[[Tensor], Tensor] = torch.relu_,  # in place, on what the layer has just made
        layer_norm: float | None = None,
        linear: type[Linear] = Linear,
    ):
        super().__init__()
        self.lead, self.rows, self.activation = lead, math.prod(lead), activation
        sizes = [in_features, *hidden]
        self.hidden = nn.ModuleList(
            nn.Sequential(linear(lead, i, o), *([LayerNorm(lead, o, layer_norm)] if layer_norm else []))
            for i, o in zip(sizes[:-1], sizes[1:], strict=True)
        )
        self.out = linear(lead, sizes[-1], out_features)

    def forward(self, x: Tensor, factors: Sequence[Tensor] | None = None) -> Tensor:
        """`factors` [rows, B, width or more], one tensor a hidden layer, multiply its activations: dropout."""
        x = x.expand(*self.lead, *x.shape[-2:]).reshape(self.rows, *x.shape[-2:])
        for i, layer in enumerate(self.hidden):
            x = self.activation(layer(x))
            if factors is not None:
                x = x * factors[i][..., : x.shape[-1]]
        x = self.out(x)
        return x.view(*self.lead, *x.shape[-2:])


def initialise(module: nn.Module, runs: int, generators: Sequence[torch.Generator]) -> None:
    """Draws the weights of every network in `module`, each run from its own generator, network by network."""
    layers: list[Any] = [m for m in module.modules() if hasattr(m, "reset_row")]
    members = next(module.parameters()).shape[0] // runs
    for run, generator in enumerate(generators):
        for member in range(members):
            for layer in layers:
                layer.reset_row(run * members + member, generator)
