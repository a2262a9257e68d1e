"""What model-based runs watch: the values that critics promise, their spread, and how far the ensemble leads astray."""

import contextlib
import math
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from algos.data import Dataset
from algos.errors import UserError, warn
from algos.models import Learned, Simulated, StepDraws, observations, simulator_for
from algos.per_run import numbers
from algos.run import Run

WATCHED = 256  # states of a run whose values are watched
COMPARED = 32  # rollouts of a run that are compared with the simulator


class RolloutAgent(Protocol):
    """The part of an agent that rollouts and `Watch` call."""

    def act(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Sampled actions [R, B, A] from standard normal noise [R, B, A]."""

    def policy_values(self, obs: Tensor) -> Tensor:
        """Values the deterministic policy's actions by each of N critics: [R, N, B]."""


class Watch:
    """Logs what the critics of a model-based agent say; `soft` says that its values count entropy."""

    def __init__(self, run: Run[Any], data: Dataset, agent: RolloutAgent, soft: bool):
        self.run, self.data, self.agent = run, data, agent
        ends = torch.stack([torch.stack(data.reward[part].aminmax()) for part in data.index.split(1 << 16)])
        best, largest = float(ends.max()), float(ends.abs().max())
        rest = torch.tensor([max(1 - gamma, 1e-9) for gamma in numbers(run.args.discount, run.runs)], device=run.device)
        self.bound, self.room = max(best, 0.0) / rest, largest + soft * data.act_size * math.log(2) / rest
        self.draw, self.warned = run.random.integers("watched", WATCHED), set[int]()

    @torch.no_grad()
    def values(self) -> None:
        """Logs what critics say of states of the dataset; warns of values above any return that its rewards allow.

        `policy_value` is the mean over states of the value by the least of the critics. `value_bound` is
        max(0, r_max) / (1 - gamma), where r_max is the greatest reward of the dataset. The warning is for a
        `policy_value` above the threshold value_bound + max |r| + A log 2 / (1 - gamma); without `soft`, the threshold
        is value_bound + max |r|.

        The entropy term is there because a soft value counts entropy too: squashed actions lie in [-1, 1]^A, so that a
        step adds at most A log 2 while the temperature is at most 1, which RAVL's may exceed. The greatest magnitude of
        a reward, max |r|, is there because otherwise values near 0 would count as an explosion where no reward is
        above 0.
        """
        values = self.agent.policy_values(self.data.gather(self.data.choose(self.draw())).obs)
        value = values.amin(1).mean(-1)
        self.run.log({"policy_value": value, "value_bound": self.bound, "spread_start": values.std(1).mean(-1)})
        for run in (value > self.bound + self.room).nonzero().flatten().tolist():
            if run not in self.warned:
                self.warned.add(run)
                warn(
                    f"the values of {self.run.name_of(run)} explode: they are {value[run]:,.0f} on average "
                    f"in states of the dataset, whose rewards sum up to {self.bound[run]:,.0f} at most"
                )

    @torch.no_grad()
    def spread(self, obs: Tensor, reached: Tensor) -> Tensor:
        """The mean standard deviation of the critics [R] at those states obs [R, B, O] that were `reached`.

        Where none was, all count.
        """
        counted = reached | ~reached.any(1, keepdim=True)
        return sum_of(self.agent.policy_values(obs).std(1), counted) / counted.sum(1)


def truth_of(run: Run[Any], data: Dataset) -> Simulated | None:
    """The simulator, to compare an ensemble with; None where it cannot be had."""
    with contextlib.suppress(UserError):
        simulator = simulator_for(data, run.given.threads)
        try:
            return Simulated(simulator, data, "model_error_1 and so on are errors in another task")
        except UserError:
            simulator.close()
    return None


class Comparison:
    """Rollouts of an ensemble beside those of the simulator."""

    def __init__(self, run: Run[Any], data: Dataset, agent: RolloutAgent):
        self.run, self.data, self.agent, random = run, data, agent, run.random
        self.draw = random.integers("compared start", COMPARED)
        sizes = {"action": (data.act_size,), "outcome": (data.obs_size + 1,)}
        normal = [random.normal(f"compared {name}", COMPARED, *size) for name, size in sizes.items()]
        self.draws = (*normal, random.uniform("compared member", COMPARED))

    @cached_property
    def deviation(self) -> Tensor:
        """The standard deviation [O] of the dataset's observations, which only a run with a comparison needs."""
        obs = torch.cat([part.double() for part in observations(self.data)])
        return obs.std(0, correction=0).clamp(min=1e-6).to(self.data.rows.dtype)

    @torch.no_grad()
    def log(self, learned: Learned, truth: Simulated) -> None:
        """Logs how far the ensemble is from the simulator after each step of rollouts with the same actions.

        `model_error_k` is the distance after k steps. It is logged only where the ensemble alone is the model: with
        --model-mix, the ensemble's error would not be that of the model.

        The distance is a root mean square over the numbers of an observation, each in units of its standard deviation
        in the dataset. A rollout that ends counts with its last distance.
        """
        index, errors = self.data.choose(self.draw()), {}
        distance = torch.zeros_like(index, dtype=self.deviation.dtype)
        obs = true_obs = self.data.gather(index).obs
        alive = torch.ones_like(index, dtype=torch.bool)
        truth.start(index)
        for step in range(1, self.run.given.rollout_length + 1):
            draws = StepDraws(*(draw() for draw in self.draws))
            action = self.agent.act(obs, draws.action)
            predicted = learned.step(obs, action, alive, draws)
            true = truth.step(true_obs, action, alive, draws)
            apart = ((predicted.next_obs - true.next_obs) / self.deviation).square().mean(-1).sqrt()
            distance = torch.where(alive, apart, distance)
            errors[f"model_error_{step}"] = distance.mean(-1)
            obs, true_obs = predicted.next_obs, true.next_obs
            alive = alive & ~predicted.terminated & ~true.terminated
        self.run.log(errors)


def sum_of(values: Tensor, counted: Tensor) -> Tensor:
    """Sums [R] of those values [R, B] that are counted."""
    return torch.where(counted, values, 0.0).sum(1)
