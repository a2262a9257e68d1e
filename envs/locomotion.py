"""Recipes for offline data of MuJoCo's locomotion tasks, with D4RL's definitions on Gymnasium's v5 environments.

| quality | what |
|---|---|
| random | actions that are uniformly random (D4RL: of an untrained policy) |
| medium | sampled actions of a policy that was stopped at about a third of the return of D4RL's expert |
| expert | sampled actions of a policy trained for long |
| medium-expert | medium, then expert, as much of each (where D4RL's medium ends with an episode, ours is cut) |
| medium-replay | all that the training of the medium policy saw until it was stopped |

The policies are this project's own (SAC), in `policies/`, each with the command that trained it. They are not D4RL's,
and neither is the data, whose returns stand on its card: HalfCheetah's expert is weak, so that medium is no third of it
(`python -m benchmarks.collect --list`). A seed gives the same bytes each time on one machine.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from envs.make import make_vec
from envs.recorded import Episode
from envs.seeding import sub_seed

TASKS = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "walker2d": "Walker2d-v5"}
QUALITIES = ("random", "medium", "medium-replay", "medium-expert", "expert")
POLICIES = Path(__file__).with_name("policies")
STREAMS = 10  # environments that are stepped at once, each of which makes its share of the data


class Policy:
    """A trained SAC actor: squashed Gaussian actions in an environment's bounds.

    `facts` say how it was trained: command, seed, steps, commit, and the mean return of its deterministic actions.
    """

    def __init__(self, path: Path):
        with safe_open(path, "pt") as file:
            self.facts: dict[str, Any] = json.loads(file.metadata()["facts"])
            self.tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118

    @torch.no_grad()
    def sample(self, obs: NDArray, noise: NDArray) -> NDArray[np.float32]:
        """Actions [N, A] for obs [N, O] by standard normal noise [N, A]."""
        x, t = torch.as_tensor(obs, dtype=torch.float32), self.tensors
        for layer in range(len(t) // 2 - 2):
            x = torch.relu(x @ t[f"weight.{layer}"] + t[f"bias.{layer}"])
        mean, log_std = (x @ t[f"weight.{layer + 1}"] + t[f"bias.{layer + 1}"]).chunk(2, -1)
        std = (-5 + 3.5 * (torch.tanh(log_std) + 1)).exp()
        action: Tensor = torch.tanh(mean + std * torch.as_tensor(noise, dtype=torch.float32))
        return (action * t["scale"] + t["mean"]).numpy()


def policy_of(task: str, quality: str) -> Policy:
    """The policy that ships, of quality medium or expert."""
    return Policy(POLICIES / f"{task}-{quality}.safetensors")


def locomotion(task: str, quality: str, seed: int, steps: int) -> Iterator[Episode]:
    """Episodes with `steps` steps in all; those in hand when these are made are cut. Not for medium-replay.

    Raises ValueError for a name that is none.
    """
    if task not in TASKS or quality not in QUALITIES or quality == "medium-replay":
        raise ValueError(f"there is no such recipe: {task}-{quality}")
    if quality == "medium-expert" and steps > 1:
        first = locomotion(task, "medium", seed, steps - steps // 2)
        return (episode for part in (first, locomotion(task, "expert", seed, steps // 2)) for episode in part)
    policy = None if quality == "random" else policy_of(task, quality)
    return rollouts(TASKS[task], policy, f"{task}-{quality}", seed, steps)


def rollouts(env_id: str, policy: Policy | None, purpose: str, seed: int, steps: int) -> Iterator[Episode]:
    """Episodes of a policy, or of uniformly random actions without one, in the order in which they begin.

    In the order in which they end, the first ones would be the shortest of those that begin together.
    """
    streams = min(STREAMS, steps)
    venv = make_vec(env_id, streams, autoreset_mode=AutoresetMode.SAME_STEP)
    low, high = venv.single_action_space.low, venv.single_action_space.high  # type: ignore[attr-defined]
    rng = np.random.default_rng(sub_seed(seed, f"{purpose} actions"))
    quota = np.full(streams, steps // streams) + (np.arange(streams) < steps % streams)
    seeds: Any = [sub_seed(seed, f"{purpose} resets", i) % 2**31 for i in range(streams)]
    obs, _ = venv.reset(seed=seeds)
    tapes: list[list[tuple]] = [[] for _ in range(streams)]
    begun: dict[tuple[int, int], Episode | None] = {(0, i): None for i in range(streams)}  # first step, stream
    try:
        for step in range(1, int(quota.max()) + 1):
            if policy:
                action = policy.sample(obs, rng.standard_normal((streams, len(low))))
            else:
                action = rng.uniform(low, high, (streams, len(low))).astype(np.float32)
            after, reward, terminated, truncated, infos = venv.step(action)
            for i in np.flatnonzero(quota >= step).tolist():
                ended = terminated[i] or truncated[i]
                tapes[i].append((obs[i], action[i], reward[i]))
                if ended or step == quota[i]:
                    last = infos["final_obs"][i] if ended else after[i]
                    begun[step - len(tapes[i]), i] = episode_of(tapes[i], last, bool(terminated[i]))
                    tapes[i] = []
                    if step < quota[i]:
                        begun[step, i] = None
            for first, episode in list(begun.items()):
                if episode is None:
                    break
                del begun[first]
                yield episode
            obs = after
    finally:
        venv.close()


def episode_of(tape: list[tuple], last: NDArray, terminated: bool) -> Episode:
    obs, action, reward = (np.array(column, np.float32) for column in zip(*tape, strict=True))
    end = np.zeros(len(reward), bool)
    end[-1] = True
    obs = np.concatenate([obs, np.asarray(last, np.float32)[None]])
    return Episode(obs, action, reward, end & terminated, end & (not terminated), {})


def replayed(rows: NDArray[np.float32], obs_size: int, act_size: int) -> Iterator[Episode]:
    """The episodes of a replay buffer's rows [T, O + A + 1 + O + 1], which must be in the order of time.

    An episode was cut where a row does not begin with the next observation of the row before.
    """
    bounds = np.cumsum([obs_size, act_size, 1, obs_size])
    obs, action, reward, after, terminated = np.split(rows, bounds, 1)
    cut = np.append((after[:-1] != obs[1:]).any(1), True)
    first = 0
    for last in np.flatnonzero(cut | (terminated[:, 0] > 0)).tolist():
        part = slice(first, last + 1)
        end = np.zeros(last + 1 - first, bool)
        end[-1] = True
        done = bool(terminated[last, 0])
        states = np.concatenate([obs[part], after[last : last + 1]])
        yield Episode(states, action[part], reward[part, 0], end & done, end & (not done), {})
        first = last + 1
