"""Layers with a run axis: one module holds the weights of R independent runs, or of R runs with E members each.

A module with lead axes `(R,)` or `(R, E)` keeps parameters [R, ...] or [R, E, ...], and every product is one batched
matrix product over all of its networks. Initial weights of `Linear` follow `torch.nn.Linear` exactly: the weights of a
run are those that this layer would draw from a generator with the run's seed, whatever the other runs are.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from algos.threads import thread_count

Lead = tuple[int, ...]  # (R,) or (R, E)
LARGE = 4096  # least weights of a layer that is worth computing in bfloat16


def flat(x: Tensor, lead: Lead) -> Tensor:
    """Parameters [*lead, ...] as [L, ...]."""
    return x.flatten(0, 1) if len(lead) > 1 else x


class Linear(nn.Module):
    """Affine maps of all networks: x [L, B, in] -> [L, B, out], where L is R or R·E."""

    def __init__(self, lead: Lead, in_features: int, out_features: int):
        super().__init__()
        self.lead = lead
        self.bf16 = False  # whether compiled products round their factors and their result to bfloat16
        self.weight = nn.Parameter(torch.empty(*lead, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(*lead, 1, out_features))

    def draw(self, fan_in: int, fan_out: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Initial weights [in, out] and biases [out] of one network, those that `torch.nn.Linear` would draw."""
        weight = torch.empty(fan_out, fan_in)
        nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
        bound = 1 / math.sqrt(fan_in)
        return weight.T, torch.empty(fan_out).uniform_(-bound, bound, generator=generator)

    def reset(self, network: Lead, generator: torch.Generator) -> None:
        """Draws the initial weights of one network."""
        fan_in, fan_out = self.weight.shape[-2:]
        weight, bias = self.draw(fan_in, fan_out, generator)
        with torch.no_grad():
            self.weight[network].copy_(weight)
            self.bias[network][0].copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = flat(self.weight, self.lead), flat(self.bias, self.lead)
        if torch.compiler.is_compiling():
            return self.product(x, weight) + bias  # a compiler fuses the sum with the operations that follow
        return torch.baddbmm(bias, x, weight)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """x times the weights of all networks: [L, B, in], [L, in, out] -> [L, B, out]."""
        if self.bf16 and torch.compiler.is_compiling():
            return torch.bmm(x.bfloat16(), weight.bfloat16()).float()
        return torch.bmm(x, weight)

    def rounded(self, x: Tensor) -> Tensor:
        """An input as this layer's product takes it.

        ReLU of the rounded is the rounded ReLU, and its derivative then needs nothing but what the product keeps.
        """
        return x.bfloat16() if self.bf16 and torch.compiler.is_compiling() else x


class Orthogonal(Linear):
    """Affine maps that begin as orthogonal matrices times `gain`, with biases of 0, as in IQL's JAX code and in PPO."""

    def __init__(self, lead: Lead, in_features: int, out_features: int, gain: float = math.sqrt(2)):
        super().__init__(lead, in_features, out_features)
        self.gain = gain

    def draw(self, fan_in: int, fan_out: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        with thread_count(1):
            weight = nn.init.orthogonal_(torch.empty(fan_in, fan_out), self.gain, generator=generator)
        return weight, torch.zeros(fan_out)


class Glorot(Linear):
    """Affine maps with weights uniform in +-gain sqrt(6 / (fan_in + fan_out)) and biases of 0, as TensorFlow's `dense`.

    A layer that holds `heads` layers side by side begins as these would.
    """

    def __init__(self, lead: Lead, in_features: int, out_features: int, heads: int = 1, gain: float = 1.0):
        super().__init__(lead, in_features, out_features)
        self.heads, self.gain = heads, gain

    def draw(self, fan_in: int, fan_out: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        bound = self.gain * math.sqrt(6 / (fan_in + fan_out / self.heads))
        return torch.empty(fan_in, fan_out).uniform_(-bound, bound, generator=generator), torch.zeros(fan_out)


class Uniform(Linear):
    """Affine maps with weights uniform in ±`bound`, or in ±1/sqrt(n) without one, as in the official code of EDAC.

    n is the number of inputs, or with `fan="out"` that of outputs. Biases are `bias`, or as the weights if it is None.
    """

    def __init__(
        self,
        lead: Lead,
        in_features: int,
        out_features: int,
        bound: float | None = None,
        fan: Literal["in", "out"] = "in",
        bias: float | None = None,
    ):
        super().__init__(lead, in_features, out_features)
        self.start = bias
        self.bound = bound or 1 / math.sqrt(in_features if fan == "in" else out_features)

    def draw(self, fan_in: int, fan_out: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        weight = torch.empty(fan_in, fan_out).uniform_(-self.bound, self.bound, generator=generator)
        bias = torch.empty(fan_out).uniform_(-self.bound, self.bound, generator=generator)
        return weight, bias if self.start is None else torch.full_like(bias, self.start)


class TruncatedNormal(Linear):
    """Affine maps with normal weights of standard deviation 1 / (2 sqrt(fan_in)) and biases of 0, as in PETS and MBPO.

    Weights are at most `cut` in magnitude, or two standard deviations if it is None.
    """

    def __init__(self, lead: Lead, in_features: int, out_features: int, cut: float | None = None):
        super().__init__(lead, in_features, out_features)
        self.std = 1 / (2 * math.sqrt(in_features))
        self.cut = 2 * self.std if cut is None else cut

    def draw(self, fan_in: int, fan_out: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        weight = torch.empty(fan_in, fan_out)
        nn.init.trunc_normal_(weight, std=self.std, a=-self.cut, b=self.cut, generator=generator)
        return weight, torch.zeros(fan_out)


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form, x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x³).

    Where it is compiled, it is written as x sigmoid(2u), which is the same and takes a third of the time on a CPU.
    """
    if torch.compiler.is_compiling():
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    return F.gelu(x, approximate="tanh")


class LayerNorm(nn.Module):
    """Layer normalisation of all networks over the last axis: x [L, B, n] -> [L, B, n]."""

    def __init__(self, lead: Lead, features: int, eps: float = 1e-5):
        super().__init__()
        self.lead, self.eps = lead, eps
        self.weight = nn.Parameter(torch.ones(*lead, 1, features))
        self.bias = nn.Parameter(torch.zeros(*lead, 1, features))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = flat(self.weight, self.lead), flat(self.bias, self.lead)
        return torch.addcmul(bias, F.layer_norm(x, x.shape[-1:], eps=self.eps), weight)


class MLP(nn.Module):
    """Multilayer perceptrons with lead axes `(R,)` or `(R, E)`: x [*lead, B, in] -> [*lead, B, out].

    The lead axes of `x` may be 1 where the networks share their input (x [R, 1, B, in] feeds all E members).
    With `layer_norm`, which is the epsilon, each hidden layer is normalised before its activation, or with `norm_after`
    after it. `linear` is the kind of layer, which decides how weights begin, and `last` that of the last layer if it is
    another one.
    """

    def __init__(
        self,
        lead: Lead,
        in_features: int,
        hidden: Sequence[int],
        out_features: int,
        activation: Callable[[Tensor], Tensor] = torch.relu_,  # in place, on the tensor that the layer has just made
        layer_norm: float | None = None,
        linear: Callable[[Lead, int, int], Linear] = Linear,
        last: Callable[[Lead, int, int], Linear] | None = None,
        norm_after: float | None = None,
    ):
        super().__init__()
        self.lead, self.activation = lead, activation
        sizes = [in_features, *hidden]
        self.hidden = nn.ModuleList(
            nn.Sequential(linear(lead, i, o), *([LayerNorm(lead, o, layer_norm)] if layer_norm else []))
            for i, o in zip(sizes[:-1], sizes[1:], strict=True)
        )
        self.norms = nn.ModuleList(LayerNorm(lead, size, norm_after) for size in hidden) if norm_after else None
        self.out = (last or linear)(lead, sizes[-1], out_features)

    def forward(self, x: Tensor, factors: Sequence[Tensor] | None = None) -> Tensor:
        """`factors`, one tensor [R·E, B, width or more] for each hidden layer, multiply its activations: dropout."""
        lead = self.out.weight.shape[: len(self.lead)]  # in `first`, the weights are those of one member
        x = x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
        blocks: list[Any] = list(self.hidden)
        # with nothing between ReLU and the next layer, rounding may come first
        direct = self.activation is torch.relu_ and self.norms is None and factors is None
        for i, block in enumerate(blocks):
            x = block(x)
            if direct and i + 1 < len(blocks):
                x = blocks[i + 1][0].rounded(x)
            x = self.activation(x)
            if self.norms is not None:
                x = self.norms[i](x)
            if factors is not None:
                x = x * factors[i][..., : x.shape[-1]]
        x = self.out(x)
        return x.view(*lead, *x.shape[-2:])

    def first(self, x: Tensor) -> Tensor:
        """The output of the first of each run's members alone, for lead axes `(R, E)`: x [R, B, in] -> [R, B, out]."""
        return functional_call(self, {name: p[:, :1] for name, p in self.named_parameters()}, x[:, None]).squeeze(1)

    def with_gradient(self, x: Tensor, last: int) -> tuple[Tensor, Tensor]:
        """The one output [*lead, B] of networks with ReLU, and its gradients by the last inputs [*lead, B, last].

        The gradients are an expression of the weights, so that a loss of them can be differentiated once more.
        """
        x = x.expand(*self.lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
        layers: list[Any] = [block[0] for block in self.hidden]  # type: ignore[index]
        active = []
        for layer, following in zip(layers, [*layers[1:], self.out], strict=True):
            x = torch.relu(following.rounded(layer(x)))
            active.append(x > 0)
        value = self.out(x)
        gradient = flat(self.out.weight, self.lead).mT.expand(-1, x.shape[1], -1)
        for layer, passes in zip(reversed(layers[1:]), reversed(active[1:]), strict=True):
            gradient = layer.product(gradient * passes, flat(layer.weight, self.lead).mT)
        gradient = torch.bmm(gradient * active[0], flat(layers[0].weight, self.lead)[:, -last:].mT)
        return value.view(*self.lead, -1), gradient.view(*self.lead, *gradient.shape[-2:])


class ImageMLP(nn.Module):
    """An MLP with lead axis (R,) on vectors [R, B, O], or on images [C, H, W] after the convolution of MinAtar's DQN.

    The hidden layers are by default two of 64, and one of 128 on images.
    """

    CHANNELS, KERNEL = 16, 3

    def __init__(self, runs: int, obs_shape: Sequence[int], hidden: Sequence[int], out_features: int):
        super().__init__()
        self.shape, self.conv, size = tuple(obs_shape), None, math.prod(obs_shape)
        if len(self.shape) == 3 and min(self.shape[1:]) >= self.KERNEL:
            self.conv = Linear((runs,), self.shape[0] * self.KERNEL**2, self.CHANNELS)  # on every patch
            size = self.CHANNELS * math.prod(side - self.KERNEL + 1 for side in self.shape[1:])
        self.net = MLP((runs,), size, hidden or ((64, 64) if self.conv is None else (128,)), out_features)

    def forward(self, obs: Tensor) -> Tensor:
        if self.conv is None:
            return self.net(obs)
        patches = F.unfold(obs.reshape(-1, *self.shape), self.KERNEL).mT  # [R B, H' W', C 3 3]
        features = self.conv(patches.reshape(len(obs), -1, patches.shape[-1])).relu()  # [R, B H' W', channels]
        return self.net(features.view(*obs.shape[:2], -1))


def dropout_factors(uniform: Tensor | None, rate: float) -> list[Tensor] | None:
    """The factors of dropout for an `MLP`, from uniform numbers [R, layers, B, width]; None for None.

    A unit is left out with probability `rate`, and the others are divided by 1 - rate.
    """
    return None if uniform is None else [(u >= rate) / (1 - rate) for u in uniform.unbind(1)]


def use_bf16(module: nn.Module, use: bool = True) -> bool:
    """Sets whether compiled functions compute the hidden layers of all MLPs in bfloat16, forwards and backwards.

    The factors of a matrix product are rounded to bfloat16, its sums are float32, and its result is rounded again.
    Weights, optimizers, last layers and everything else stay in float32, and so do layers with fewer weights than
    `LARGE`, where rounding takes longer than it saves. Returns whether any layer has as many, also if `use` is false.
    """
    blocks: list[Any] = [block for mlp in module.modules() if isinstance(mlp, MLP) for block in mlp.hidden]
    layers = [block[0] for block in blocks]
    large = [layer.weight.shape[-2:].numel() >= LARGE for layer in layers]
    for layer, is_large in zip(layers, large, strict=True):
        layer.bf16 = use and is_large
    return any(large)


def initialise(module: nn.Module, generators: Sequence[torch.Generator]) -> None:
    """Draws the weights of every network in `module`, those of each run from its own generator, network by network."""
    layers: list[Any] = [layer for layer in module.modules() if hasattr(layer, "reset")]
    for layer in layers:
        layer.drawn = True  # which an agent looks for
    for run, generator in enumerate(generators):
        for lead in dict.fromkeys(layer.lead for layer in layers):
            for member in itertools.product(*map(range, lead[1:])):
                for layer in layers:
                    if layer.lead == lead:
                        layer.reset((run, *member), generator)
