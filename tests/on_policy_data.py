"""Arrays without chance, on which the code of other projects was run too, and networks with given weights."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from algos.nn import MLP


def wave(*shape: int, phase: float = 0.0) -> Tensor:
    """sin(1.7 k + phase) for k = 0, 1, ... in this shape."""
    return torch.sin(1.7 * torch.arange(math.prod(shape), dtype=torch.float64) + phase).view(*shape)


def set_layers(mlp: MLP, run: int, phase: float = 0.0) -> None:
    """Gives the networks of a run weights 0.3 wave and biases 0.1 wave, in the layout [out, in] of torch's layers."""
    with torch.no_grad():
        for number, layer in enumerate(layers(mlp)):
            size_in, size_out = layer.weight.shape[-2:]
            layer.weight[run].copy_(0.3 * wave(size_out, size_in, phase=number + phase).T)
            layer.bias[run, 0].copy_(0.1 * wave(size_out, phase=number + 2))


def tanh_layers_of(mlp: MLP, run: int) -> nn.Sequential:
    """The network of a run in torch's layers."""
    modules: list[nn.Module] = []
    for own in layers(mlp):
        layer = nn.Linear(*own.weight.shape[-2:])
        layer.weight.data, layer.bias.data = own.weight[run].T.detach().clone(), own.bias[run, 0].detach().clone()
        modules += [layer, nn.Tanh()]
    return nn.Sequential(*modules[:-1])


def assert_same_tanh(mlp: MLP, others: nn.Sequential, run: int) -> None:
    """The network of a run is the one in torch's layers."""
    for own, other in zip(layers(mlp), (layer for layer in others if isinstance(layer, nn.Linear)), strict=True):
        torch.testing.assert_close(own.weight[run].T, other.weight, atol=1e-9, rtol=0)
        torch.testing.assert_close(own.bias[run, 0], other.bias, atol=1e-9, rtol=0)


def layers(mlp: MLP) -> Iterable[Any]:
    return [*(block[0] for block in mlp.hidden), mlp.out]


def prints(mlp: MLP, run: int) -> list[float]:
    """A number for each weight and bias of a run's network, which changes with every element."""
    tensors = [x for layer in layers(mlp) for x in (layer.weight[run].T, layer.bias[run, 0])]
    return [(x.detach().flatten() * wave(x.numel(), phase=0.5)).sum().item() for x in tensors]
