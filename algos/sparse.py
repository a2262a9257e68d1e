"""Sparse networks with a run axis, as streaming algorithms use them.

Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works" (arXiv 2410.14606), the method of 2024
as its official code computes it.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algos.nn import Lead

Convolutions = tuple[tuple[int, int, int], ...]  # channels, kernel and stride of each
# For each image size, MinAtar's and Atari's: convolutions, widths of hidden layers, number of frames to stack.
IMAGES: dict[tuple[int, ...], tuple[Convolutions, tuple[int, ...], int]] = {
    (10, 10): (((16, 3, 1),), (128,), 1),
    (84, 84): (((32, 8, 5), (64, 4, 3), (64, 3, 2)), (256,), 4),
}


class SparseLinear(nn.Module):
    """Affine maps of R networks: x [R, in] -> [R, out], or x [R, B, in] -> [R, B, out].

    At the start, nine tenths of each output unit's weights are 0, the others are uniform in ±1/sqrt(in), and biases are
    0 (SparseInit). The zeros are learned like any other weight. With fewer than ten inputs, all weights are 0.
    """

    def __init__(self, runs: int, in_features: int, out_features: int):
        super().__init__()
        self.lead = (runs,)
        self.weight = nn.Parameter(torch.zeros(runs, out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(runs, out_features))

    def reset(self, network: Lead, generator: torch.Generator) -> None:
        """Draws one network's weights."""
        _, fan_out, fan_in = self.weight.shape
        bound = 1 / math.sqrt(fan_in)
        weight = torch.empty(fan_out, fan_in).uniform_(-bound, bound, generator=generator)
        order = torch.rand(fan_out, fan_in, generator=generator).argsort(1)
        zeros = math.ceil(0.9 * fan_in)
        with torch.no_grad():
            self.weight[network].copy_(weight.scatter(1, order[:, :zeros], 0.0))
            self.bias[network].zero_()

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            return torch.baddbmm(self.bias[:, None], x, self.weight.mT)
        if torch.compiler.is_compiling():  # a compiler fuses these products with their neighbours
            return (self.weight * x[:, None]).sum(-1) + self.bias
        return torch.baddbmm(self.bias[..., None], self.weight, x[..., None]).squeeze(-1)


class Conv(nn.Module):
    """Convolutions of R networks: x [R, (B,) C, H, W] -> [R, (B,) out, H', W'], a SparseLinear on every patch."""

    def __init__(self, runs: int, channels: int, out_channels: int, kernel: int, stride: int = 1):
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.linear = SparseLinear(runs, channels * kernel * kernel, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        height, width = ((size - self.kernel) // self.stride + 1 for size in x.shape[-2:])
        lead = x.shape[:-3]
        patches = F.unfold(x.flatten(0, -4), self.kernel, stride=self.stride).mT  # [R B, H' W', C k k]
        out = self.linear(patches.reshape(lead[0], -1, patches.shape[-1]))
        return out.view(*lead, height * width, -1).mT.unflatten(-1, (height, width))


def activate(x: Tensor, lead: int = 1) -> Tensor:
    """Layer normalisation over all units behind `lead` axes, without scale and bias, then LeakyReLU."""
    return F.leaky_relu(F.layer_norm(x, x.shape[lead:]))


class Network(nn.Module):
    """R networks: features [R, *shape] -> [R, out], or [R, B, *shape] -> [R, B, out].

    `shape` is (O,) for vectors or (C, H, W) for images, which go through the convolutions of IMAGES first; their hidden
    layers are those of IMAGES where `hidden` is empty.
    """

    def __init__(self, runs: int, shape: Sequence[int], hidden: Sequence[int], out: int):
        super().__init__()
        self.axes = len(shape)
        convolutions, default_hidden, _ = IMAGES[tuple(shape[1:])] if len(shape) == 3 else ((), (), 1)
        hidden = hidden or default_hidden
        self.convolutions = nn.ModuleList()
        for channels, kernel, stride in convolutions:
            self.convolutions.append(Conv(runs, shape[0], channels, kernel, stride))
            shape = (channels, *((size - kernel) // stride + 1 for size in shape[1:]))
        sizes = [math.prod(shape), *hidden]
        self.hidden = nn.ModuleList(SparseLinear(runs, i, o) for i, o in zip(sizes[:-1], sizes[1:], strict=True))
        self.out = SparseLinear(runs, sizes[-1], out)

    def forward(self, x: Tensor) -> Tensor:
        lead = x.dim() - self.axes
        for layer in self.convolutions:
            x = activate(layer(x), lead)
        x = x.flatten(lead)
        for layer in self.hidden:
            x = activate(layer(x), lead)
        return self.out(x)
