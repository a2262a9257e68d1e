"""A streaming learner that needs no environment: it goes on learning in any loop, such as a robot's."""

import json
import math
import os
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from algos.agent_file import check_values, checked, chosen, contents, description
from algos.checkpoint import write_atomically
from algos.errors import UserError, describe
from algos.random import Random
from algos.stream import Step
from envs import Task
from envs.seeding import sub_seed

FILE = "learner.safetensors"


class Learner:
    """One streaming learner by itself, for a loop of your own, such as a robot's; it takes and gives NumPy arrays.

        learner = Learner.load("runs/Hopper-v5/stream_ac/default/learner.safetensors", StreamAC, seed=3)
        action = learner.start(first_obs)
        while True:
            obs, reward, done = robot.step(action)
            action = learner.step(obs, reward, done)
            if done:
                action = learner.start(robot.reset())
        learner.save("robot.safetensors")

    It goes on learning, with its normalisers, where the run left off. `agent` has one run.
    """

    def __init__(self, agent: Any):
        self.agent = agent
        self.setting: dict[str, Any] = {}  # of a run that was one of several
        self.ended = True  # whether the next call has to be `start`
        self.random = Random([sub_seed(agent.seeds[0], "learner")])
        self.draws = agent.draws(self.random)

    @staticmethod
    def load(path: str | Path, kind: type, seed: int | None = None, **setting: float) -> "Learner":
        """The learner of one run in a file that a run or `save` wrote; `kind` is its class, such as StreamAC.

        `path` may also be the folder of a run.

        `seed` and `setting` (values of the hyperparameters that vary) choose among the runs in the file. Raises
        UserError if the file is damaged or is another algorithm's, if not exactly one run is chosen, or if that run has
        diverged.
        """
        path = Path(path) / FILE if os.path.isdir(path) else Path(path)
        try:
            state, said = contents(path)
            if "environment" in said:
                beside = path.with_name(FILE)
                instead = f": take {beside}" if beside.exists() else ", and no streaming learner"
                raise UserError(f"{path} holds policies{instead}")
            if said["algorithm"] != kind.__name__:
                raise UserError(f"{path} holds a learner of {said['algorithm']}, not of {kind.__name__}")
            runs = said["runs"]
            run = chosen(path, runs, ({} if seed is None else {"seed": seed}) | setting)
            key = runs[run]
            values = said["args"] | {name: value for name, value in key.items() if name != "seed"}
            args = checked(get_type_hints(kind.__init__)["args"], values)  # type: ignore[misc]
            task = checked(Task, said["task"])
            check_values(args, task, [key["seed"]], state)
            learner = Learner(kind(args, task, [key["seed"]]))
            learner.setting = {name: value for name, value in key.items() if name != "seed"}
            learner.ended = bool(said.get("ended", False))  # that of a run goes on
            drawn = {name: state.pop(name) for name in list(state) if name.startswith("random/")}
            chosen_state = {name: tensor[run : run + 1].clone() for name, tensor in state.items()}
            for name, tensor in learner.agent.state_dict().items():
                if chosen_state[name].dtype != tensor.dtype:
                    raise TypeError(f"{name} has numbers of type {chosen_state[name].dtype}")
            learner.agent.load_state_dict(chosen_state)
            if drawn:
                learner.random.load_state_dict({name.removeprefix("random/"): t for name, t in drawn.items()})
        except UserError:
            raise
        except FileNotFoundError:
            raise UserError(f"there is no file {path}") from None
        except Exception as error:  # from sizes and arguments that are no learner's, an agent may raise anything
            raise UserError(f"{path} is no streaming learner's file ({describe(error)})") from None
        if not all(tensor.isfinite().all() for tensor in chosen_state.values()):
            raise UserError(f"seed {key['seed']} in {path} has diverged")
        return learner

    def save(self, path: str | Path) -> None:
        """Writes the learner with its normalisers, traces, clock and random numbers to one file."""
        random = {f"random/{name}": tensor for name, tensor in self.random.state_dict().items()}
        write_atomically(Path(path), learner_file(self.agent, random, self.setting, self.ended))

    def start(self, obs: Any) -> NDArray:
        """Takes the first observation of an episode; gives the action [A], or the number of a discrete one, from 0."""
        self.agent.restart(self._obs(obs), self.draws())
        self.ended = False
        return self.agent.output[0].numpy().copy()

    def step(self, obs: Any, reward: float, done: bool) -> NDArray | None:
        """Learns from the outcome of the last action, and gives the next one; None after an episode's last step.

        Raises ValueError for what is no observation or no number, and if no episode is going on.
        """
        if self.ended:
            raise ValueError("no episode is going on: begin one with start(obs)")
        numbers = []
        for name, value in (("reward", reward), ("done", done)):
            number = array_of(value)
            if number.size != 1 or not np.isfinite(number).all():
                raise ValueError(f"{name} must be a finite number, got {value}")
            numbers.append(torch.as_tensor(number.reshape(1)))
        self.agent.update(Step(numbers[0], self._obs(obs), numbers[1]), self.draws())
        self.ended = bool(done)
        return None if done else self.agent.output[0].numpy().copy()

    def _obs(self, obs: Any) -> Tensor:
        obs = array_of(obs)
        if math.prod(self.agent.task.lead_of(obs.shape)) != 1:
            raise ValueError(f"this takes one observation, got the shape {obs.shape}")
        flat = torch.as_tensor(obs.reshape(1, -1))
        if not flat.isfinite().all():
            raise ValueError("an observation must have finite numbers, got NaN or infinity")
        return flat


def array_of(x: Any) -> NDArray:
    """Numbers, an array or a tensor of any device as an array of float64."""
    return np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x, np.float64)


def learner_file(
    agent: Any,
    random: dict[str, Tensor] | None = None,
    setting: dict[str, Any] | None = None,
    ended: bool = False,
) -> bytes:
    """The bytes of a file with a streaming agent, from which `Learner.load` makes the learner of each run.

    `setting` names an agent of one run that was one of several settings, and `ended` says that its next call has to be
    `start`.
    """
    tensors = {name: tensor.contiguous() for name, tensor in (agent.state_dict() | (random or {})).items()}
    said = description(agent)
    said["runs"] = [key | (setting or {}) for key in said["runs"]]
    said["ended"] = ended
    return save(tensors, {name: json.dumps(value) for name, value in said.items()})
