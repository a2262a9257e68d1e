"""What the streaming algorithms share: sparse networks, ObGD, running statistics, and a learner that needs no task.

Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works" (arXiv 2410.14606), the method of 2024
as its official code computes it. Everything has the run axis first and is computed for each run by itself: traces, step
sizes, statistics and clocks. Nothing is kept of a transition but what these hold.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from algos.arguments import Count, Fraction, Range, Rate
from algos.checkpoint import load_tensors, tensors_of, write_atomically
from algos.errors import UserError
from algos.run import RunArgs
from envs.seeded import Task
from envs.seeding import sub_seed

EPS = 1e-8  # of the running statistics, inside the root
Hidden = Annotated[tuple[int, ...], Range(10)]  # widths; SparseInit leaves a layer with fewer inputs without any weight
# By the size of images, MinAtar's and Atari's: convolutions (channels, kernel, stride), hidden layers, frames to stack.
Convolutions = tuple[tuple[int, int, int], ...]
IMAGES: dict[tuple[int, ...], tuple[Convolutions, tuple[int, ...], int]] = {
    (10, 10): (((16, 3, 1),), (128,), 1),
    (84, 84): (((32, 8, 5), (64, 4, 3), (64, 3, 2)), (256,), 4),
}


@dataclass(kw_only=True)
class StreamArgs(RunArgs):
    """Arguments of every streaming script, with the values that the paper has for all tasks."""

    compile: bool = True
    """compile the update on a CPU too: half a minute at the start, and a C++ compiler; on CUDA it always is"""
    eval_episodes: Annotated[int, Range(0, 0)] = 0
    """always 0: the score is that of the stream itself"""
    log_every: Count = 10_000
    """environment steps over which training metrics are averaged"""
    checkpoint_every: Count = 100_000
    """environment steps between checkpoints; a kill loses no more than these"""
    lr: Rate = 1.0
    """alpha, the step size, which ObGD bounds"""
    discount: Fraction = 0.99
    """gamma"""
    trace: Fraction = 0.8
    """lambda: traces decay by discount times lambda"""
    adaptive: bool = False
    """AdaptiveObGD: traces divided by the root of their second moment"""


def column(x: Tensor, like: Tensor) -> Tensor:
    """[R] -> [R, 1, ...] with as many axes as `like`."""
    return x.view(-1, *[1] * (like.dim() - 1))


class SparseLinear(nn.Module):
    """Affine maps of R networks: x [R, in] -> [R, out], or x [R, B, in] -> [R, B, out].

    At the start each output unit has all but a tenth of its weights 0, the others uniform in ±1/sqrt(in), and no bias
    (SparseInit). The zeros are learned like any other weight. With fewer than ten inputs there are only zeros.
    """

    def __init__(self, runs: int, in_features: int, out_features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(runs, out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(runs, out_features))

    def reset_row(self, row: int, generator: torch.Generator) -> None:
        """Draws one network's weights."""
        _, fan_out, fan_in = self.weight.shape
        bound = 1 / math.sqrt(fan_in)
        weight = torch.empty(fan_out, fan_in).uniform_(-bound, bound, generator=generator)
        order = torch.rand(fan_out, fan_in, generator=generator).argsort(1)
        zeros = math.ceil(0.9 * fan_in)
        with torch.no_grad():
            self.weight[row].copy_(weight.scatter(1, order[:, :zeros], 0.0))
            self.bias[row].zero_()

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            return torch.baddbmm(self.bias[:, None], x, self.weight.mT)
        if torch.compiler.is_compiling():  # products that a compiler fuses with what is before and behind
            return (self.weight * x[:, None]).sum(-1) + self.bias
        return torch.baddbmm(self.bias[..., None], self.weight, x[..., None]).squeeze(-1)


class Conv(nn.Module):
    """Convolutions of R networks: x [R, C, H, W] -> [R, out, H', W'], a SparseLinear on every patch."""

    def __init__(self, runs: int, channels: int, out_channels: int, kernel: int, stride: int = 1):
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.linear = SparseLinear(runs, channels * kernel * kernel, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        height, width = ((size - self.kernel) // self.stride + 1 for size in x.shape[-2:])
        patches = F.unfold(x, self.kernel, stride=self.stride)  # [R, C k k, H' W']
        return self.linear(patches.mT).mT.unflatten(-1, (height, width))


def activate(x: Tensor) -> Tensor:
    """Layer normalisation without scale and bias over all that belongs to a run, then LeakyReLU: [R, ...] -> same."""
    return F.leaky_relu(F.layer_norm(x, x.shape[1:]))


class Network(nn.Module):
    """R networks: features [R, *shape] -> [R, out].

    `shape` is (O,) for vectors or (C, H, W) for images, which go through the convolutions of IMAGES first; their hidden
    layers are those of IMAGES where `hidden` is empty.
    """

    def __init__(self, runs: int, shape: Sequence[int], hidden: Sequence[int], out: int):
        super().__init__()
        convolutions, usual, _ = IMAGES[tuple(shape[1:])] if len(shape) == 3 else ((), (), 1)
        hidden = hidden or usual
        self.convolutions = nn.ModuleList()
        for channels, kernel, stride in convolutions:
            self.convolutions.append(Conv(runs, shape[0], channels, kernel, stride))
            shape = (channels, *((size - kernel) // stride + 1 for size in shape[1:]))
        sizes = [math.prod(shape), *hidden]
        self.hidden = nn.ModuleList(SparseLinear(runs, i, o) for i, o in zip(sizes[:-1], sizes[1:], strict=True))
        self.out = SparseLinear(runs, sizes[-1], out)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.convolutions:
            x = activate(layer(x))
        x = x.flatten(1)
        for layer in self.hidden:
            x = activate(layer(x))
        return self.out(x)


class ObGD(nn.Module):
    """Gradient steps with eligibility traces, bounded so that they do not overshoot (the paper's algorithm 3).

    Per run, for one network: z <- discount lambda z + g; M = lr kappa max(|delta|, 1) |z|_1 over all of its parameters;
    w <- w + lr / max(M, 1) delta z. With M > 1 the step is min(|delta|, 1) / kappa long in the 1-norm, however large
    the network is.

    With `adaptive` z is divided by the root of the running second moment of delta z, as in Adam (beta 0.999).
    """

    steps: Tensor

    def __init__(
        self,
        network: nn.Module,
        kappa: float,
        trace_decay: float,
        lr: float = 1.0,
        adaptive: bool = False,
        beta: float = 0.999,
    ):
        super().__init__()
        self.parameters_of = [list(network.parameters())]  # in a list: they are the network's, not this module's
        self.kappa, self.decay, self.lr, self.adaptive, self.beta = kappa, trace_decay, lr, adaptive, beta
        runs = len(self.weights[0])
        for i, weight in enumerate(self.weights):
            self.register_buffer(f"trace{i}", torch.zeros_like(weight, requires_grad=False))
            if adaptive:
                self.register_buffer(f"square{i}", torch.zeros_like(weight, requires_grad=False))
        if adaptive:
            self.register_buffer("steps", torch.zeros(runs, dtype=torch.float64, device=self.weights[0].device))

    @property
    def weights(self) -> list[nn.Parameter]:
        return self.parameters_of[0]

    def buffers_of(self, name: str) -> list[Tensor]:
        return [getattr(self, f"{name}{i}") for i in range(len(self.weights))]

    def clear(self) -> None:
        """Forgets the traces."""
        for trace in self.buffers_of("trace"):
            trace.zero_()

    def gradients(self, output: Tensor) -> list[Tensor]:
        """Gradients of outputs [R]: their sum gives each run the gradient of its own."""
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
        length = self.lr / bound.clamp(min=1) * delta
        for weight, trace, direction in zip(self.weights, traces, directions, strict=True):
            weight.add_(column(length, weight) * direction)
            trace.mul_(1 - column(reset, trace))
        return bound

    def _adapted(self, delta: Tensor, traces: list[Tensor]) -> list[Tensor]:
        self.steps.add_(1)
        correction = -torch.expm1(self.steps * math.log(self.beta)).to(delta.dtype)
        directions = []
        for trace, square in zip(traces, self.buffers_of("square"), strict=True):
            moment = (column(delta, trace) * trace).square()
            square.mul_(self.beta).add_(moment, alpha=1 - self.beta)
            directions.append(trace / (square / column(correction, square) + EPS).sqrt())
        return directions


class Statistics(nn.Module):
    """Running mean and variance of samples [R, n] in float64, by Welford's recursion; they never decay."""

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, runs: int, size: int):
        super().__init__()
        self.register_buffer("count", torch.zeros(runs, 1, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(runs, size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(runs, size, dtype=torch.float64))

    @torch.no_grad()
    def update(self, x: Tensor, here: Tensor | None = None) -> None:
        """Takes a sample, only for the runs where `here` [R] is 1 if that is given."""
        count = self.count + 1
        mean = self.mean + (x - self.mean) / count
        squares = self.squares + (x - self.mean) * (x - mean)
        for buffer, value in ((self.count, count), (self.mean, mean), (self.squares, squares)):
            buffer.copy_(value if here is None else torch.where(here[:, None] > 0, value, buffer))

    def variance(self) -> Tensor:
        """Unbiased [R, n]; 1 before the second sample."""
        return torch.where(self.count > 1, self.squares / (self.count - 1).clamp(min=1), 1.0)

    def normalise(self, x: Tensor) -> Tensor:
        """x [R, n] with the statistics of this moment, in the precision of networks."""
        return ((x - self.mean) / (self.variance() + EPS).sqrt()).to(torch.get_default_dtype())


class RewardScaler(nn.Module):
    """Divides rewards [R] by the running standard deviation of the discounted sum of rewards.

    The sum starts anew *before* the reward of an episode's last step is added, as in the official code, so that reward
    leaks into the next episode's sum.
    """

    total: Tensor

    def __init__(self, runs: int, discount: float):
        super().__init__()
        self.discount = discount
        self.statistics = Statistics(runs, 1)
        self.register_buffer("total", torch.zeros(runs, dtype=torch.float64))

    @torch.no_grad()
    def forward(self, reward: Tensor, done: Tensor) -> Tensor:
        self.total.mul_(self.discount * (1 - done)).add_(reward)
        self.statistics.update(self.total[:, None])
        return (reward / self.scale()).to(torch.get_default_dtype())

    def scale(self) -> Tensor:
        """The standard deviation [R] that rewards are divided by."""
        return (self.statistics.variance()[:, 0] + EPS).sqrt()


class Clock(nn.Module):
    """Time in an episode as a feature: -0.5 at its reset and its first step, then 1/limit more at each step."""

    time: Tensor

    def __init__(self, runs: int, limit: int):
        super().__init__()
        self.limit = limit
        self.register_buffer("time", torch.full((runs,), -0.5, dtype=torch.float64))

    def start(self, here: Tensor) -> None:
        """Sets the clock back where `here` [R] is 1."""
        self.time.copy_(torch.where(here > 0, -0.5, self.time))

    def tick(self) -> Tensor:
        """The feature [R] of the step that has been made."""
        now = self.time.clone()
        self.time.add_(1 / self.limit)
        return now


class Features(nn.Module):
    """What networks see of raw observations [R, O]: normalised by running statistics, then the time, [R, O + 1].

    Images [C, H, W] have no time; where IMAGES says so, the last frames are stacked, each as it was normalised when it
    came, and the first one of an episode fills the stack. Without a time limit there is no time either.
    """

    frames: Tensor

    def __init__(self, runs: int, task: Task):
        super().__init__()
        self.shape, self.stack, images = task.obs_shape, 1, len(task.obs_shape) == 3
        if images and self.shape[1:] not in IMAGES:
            sizes = " or ".join(f"{height}x{width}" for height, width in IMAGES)
            size = "x".join(map(str, self.shape[1:]))
            raise UserError(f"--env-id: {task.env_id} has images of {size}; this needs {sizes}, or vectors")
        self.statistics = Statistics(runs, math.prod(self.shape))
        self.clock = Clock(runs, task.limit) if task.limit and not images else None
        self.out_shape: tuple[int, ...] = self.shape
        if images and (stack := IMAGES[self.shape[1:]][2]) > 1:
            self.stack, self.out_shape = stack, (stack * self.shape[0], *self.shape[1:])
            self.register_buffer("frames", torch.zeros(runs, *self.out_shape))
        elif self.clock:
            self.out_shape = (math.prod(self.shape) + 1,)

    @torch.no_grad()
    def start(self, obs: Tensor, here: Tensor) -> Tensor:
        """Features of the first observations of episodes, where `here` [R] is 1; elsewhere nothing changes."""
        self.statistics.update(obs, here)
        x = self.statistics.normalise(obs)
        if self.clock:
            self.clock.start(here)
            return self._with_time(x, self.clock.time)
        x = x.view(len(x), *self.shape)
        if self.stack > 1:
            x = x.repeat(1, self.stack, 1, 1)
            self.frames.copy_(torch.where(column(here, x) > 0, x, self.frames))
        return x

    @torch.no_grad()
    def forward(self, obs: Tensor) -> Tensor:
        """Features of the observations after a step."""
        self.statistics.update(obs)
        x = self.statistics.normalise(obs)
        if self.clock:
            return self._with_time(x, self.clock.tick())
        x = x.view(len(x), *self.shape)
        if self.stack > 1:
            x = torch.cat([self.frames[:, self.shape[0] :], x], 1)
            self.frames.copy_(x)
        return x

    def _with_time(self, x: Tensor, time: Tensor) -> Tensor:
        return torch.cat([x, time.to(x.dtype)[:, None]], 1)


class Learner:
    """One streaming learner by itself, for a loop that is not ours, a robot's: NumPy in, NumPy out, no task.

        learner = Learner.load("runs/Hopper-v5/stream_ac/default/learner.safetensors", StreamAC, seed=3)
        action = learner.start(first_obs)
        while True:
            obs, reward, done = robot.step(action)
            action = learner.step(obs, reward, done)
            if done:
                action = learner.start(robot.reset())
        learner.save("robot.safetensors")

    It goes on learning with its normalisers where the run left off. `agent` is that of one run.
    """

    def __init__(self, agent: Any, generator: torch.Generator):
        self.agent, self.generator = agent, generator

    @staticmethod
    def load(path: str | Path, kind: type, seed: int | None = None) -> "Learner":
        """The learner of one seed in a file that a run or `save` wrote; `kind` is its class, such as StreamAC.

        Raises UserError if the file is damaged, is another algorithm's, has not just one seed and none is named, or if
        that seed has diverged.
        """
        try:
            with safe_open(path, "pt") as file:
                facts = {name: json.loads(text) for name, text in (file.metadata() or {}).items()}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dictionary
            found, seeds = facts["algorithm"], facts["seeds"]
            if found != kind.__name__:
                raise UserError(f"{path} holds a learner of {found}, not of {kind.__name__}")
            if seed is None and len(seeds) > 1:
                raise UserError(f"{path} holds the seeds {', '.join(map(str, seeds))}: say which")
            seed = seeds[0] if seed is None else seed
            if seed not in seeds:
                raise UserError(f"{path} has no seed {seed}, it holds {', '.join(map(str, seeds))}")
            args = get_type_hints(kind.__init__)["args"](**tuples(facts["args"]))  # type: ignore[misc]
            agent = kind(args, Task(**tuples(facts["task"])), [seed], torch.device("cpu"))
            generator = torch.Generator().manual_seed(sub_seed(seed, "learner"))
            if (drawn := state.pop("generator", None)) is not None:
                generator.set_state(drawn)
            row = seeds.index(seed)
            own = {name: tensor[row : row + 1].clone() for name, tensor in state.items()}
            load_tensors(agent, own)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise UserError(f"{path} is no streaming learner's file ({error})") from None
        if not all(tensor.isfinite().all() for tensor in own.values()):
            raise UserError(f"seed {seed} in {path} has diverged")
        return Learner(agent, generator)

    def save(self, path: str | Path) -> None:
        """Writes the learner with its normalisers, traces, clock and random numbers to one file."""
        write_atomically(Path(path), packed(self.agent, generator=self.generator.get_state()))

    def start(self, obs: Any) -> NDArray:
        """The first observation of an episode; gives the action [A], or the number of a discrete one, from 0."""
        return self.agent.restart(self._obs(obs), self._noise())[0].numpy()

    def step(self, obs: Any, reward: float, done: bool) -> NDArray | None:
        """Learns from what the last action led to, and gives the next one; None after an episode's last step."""
        numbers = torch.tensor([[reward], [done]], dtype=torch.float64)
        if not numbers.isfinite().all():
            raise ValueError(f"the reward must be a finite number, got {reward}")
        action, _ = self.agent.step(numbers[0], self._obs(obs), numbers[1], self._noise())
        return None if done else action[0].numpy()

    def _obs(self, obs: Any) -> Tensor:
        flat = torch.as_tensor(np.asarray(obs, np.float64).reshape(1, -1))
        if flat.shape[1] != (size := math.prod(self.agent.task.obs_shape)):
            raise ValueError(f"an observation has {size} numbers, got {flat.shape[1]}")
        if not flat.isfinite().all():
            raise ValueError("an observation must have finite numbers, got NaN or infinity")
        return flat

    def _noise(self) -> Tensor:
        return self.agent.draw(self.agent.task, self.generator)


def tuples(facts: dict[str, Any]) -> dict[str, Any]:
    """JSON's lists as the tuples that they were."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}


def packed(agent: Any, **more: Tensor) -> bytes:
    """A streaming agent as a safetensors file, from which `Learner.load` makes it again."""
    facts = {
        "algorithm": type(agent).__name__,
        "seeds": agent.seeds,
        "task": asdict(agent.task),
        "args": {k: v for k, v in asdict(agent.args).items() if not isinstance(v, Path)},
    }
    tensors = {name: tensor.contiguous() for name, tensor in (tensors_of(agent) | more).items()}
    return save(tensors, {name: json.dumps(fact) for name, fact in facts.items()})


# Tasks of Gymnasium whose episodes the official scripts let run up to 10,000 steps.
CLASSIC = ("CartPole-v0", "CartPole-v1", "MountainCar-v0", "Acrobot-v1")


def time_limit(env_id: str, wanted: int) -> dict[str, Any]:
    """The option of the environments that sets their time limit, where it is not the task's own."""
    limit = wanted or (10_000 if env_id in CLASSIC else 0)
    return {"max_episode_steps": limit} if limit else {}
