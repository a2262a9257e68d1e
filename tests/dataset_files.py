"""Tiny datasets in files of all layouts, and what is expected of them once they are loaded."""

from typing import NamedTuple

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
import torch
from minari.data_collector.episode_buffer import EpisodeBuffer

from algos.data import load, validate
from algos.errors import UserError
from envs import d4rl

OBS, ACT = 3, 2
BOX = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
ACTIONS = gym.spaces.Box(-1, 1, (ACT,), np.float32)


class Trajectory(NamedTuple):
    obs: np.ndarray  # [T + 1, O]
    action: np.ndarray  # [T, A]
    reward: np.ndarray  # [T]
    ends: str  # "terminal" or "timeout": how it ends


def trajectories(*lengths, ends="terminal timeout", seed=0) -> list[Trajectory]:
    """Random trajectories of these lengths, which end in turn as `ends` says."""
    rng, how = np.random.default_rng(seed), ends.split()
    return [
        Trajectory(
            rng.normal(size=(n + 1, OBS)).astype(np.float32),
            rng.uniform(-1, 1, (n, ACT)).astype(np.float32),
            rng.normal(size=n).astype(np.float32),
            how[i % len(how)],
        )
        for i, n in enumerate(lengths)
    ]


def last(episodes, ends):
    """Flags [N] of the steps that end a trajectory in that way."""
    return np.concatenate([np.arange(len(t.reward)) == (len(t.reward) - 1 if t.ends == ends else -1) for t in episodes])


def d4rl_arrays(episodes, *without) -> dict[str, np.ndarray]:
    """The arrays of D4RL's layout, without those that are named."""
    arrays = {
        "observations": np.concatenate([t.obs[:-1] for t in episodes]),
        "next_observations": np.concatenate([t.obs[1:] for t in episodes]),
        "actions": np.concatenate([t.action for t in episodes]),
        "rewards": np.concatenate([t.reward for t in episodes]),
        "terminals": last(episodes, "terminal"),
        "timeouts": last(episodes, "timeout"),
    }
    return {key: array for key, array in arrays.items() if key not in without}


def ogbench_arrays(episodes) -> dict[str, np.ndarray]:
    """The arrays of OGBench's layout: T + 1 rows of each, the last with an action that nothing follows."""
    return {
        "observations": np.concatenate([t.obs for t in episodes]),
        "actions": np.concatenate([np.append(t.action, t.action[-1:], 0) for t in episodes]),
        "rewards": np.concatenate([np.append(t.reward, 0) for t in episodes]).astype(np.float32),
        "terminals": np.concatenate([np.arange(len(t.obs)) == len(t.reward) for t in episodes]),
    }


def hdf5(path, arrays) -> str:
    """Writes the arrays, and returns the path."""
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, compression="gzip" if np.ndim(array) else None)
    return str(path)


def npz(path, arrays) -> str:
    """Writes the arrays, and returns the path."""
    np.savez(path, **arrays)
    return str(path)


def in_minari(name, episodes, obs_space=BOX, act_space=ACTIONS, states=False, **metadata) -> str:
    """Makes a Minari dataset, with the observations as states of a simulator if `states`; returns its name."""
    buffers = [
        EpisodeBuffer(
            id=i, observations=t.obs, actions=t.action, rewards=t.reward,
            infos={"qpos": t.obs[:, :1], "qvel": t.obs[:, 1:]} if states else {},
            terminations=last([t], "terminal"), truncations=last([t], "timeout"),
        )
        for i, t in enumerate(episodes)
    ]  # fmt: skip
    minari.create_dataset_from_buffers(name, buffers, observation_space=obs_space, action_space=act_space, **metadata)
    return f"minari/{name}"


def put_d4rl(task, arrays) -> str:
    """Puts a file into D4RL's cache; returns the dataset's name."""
    path = d4rl.find(task).place
    path.parent.mkdir(exist_ok=True)
    hdf5(path, arrays)
    return f"d4rl/{task}"


def flags(count, *rows):
    """Flags [count] that are set in these rows."""
    return np.isin(np.arange(count), rows)


def qlearning_rows(terminals, timeouts, limit):
    """The rows that D4RL keeps, decided one by one: all but final ones.

    Where timeouts are missing, a count of steps tells final rows. It starts at zero after a row that was left out, and
    at one after any other row that ends an episode.
    """
    kept, count = [], 0
    for i in range(len(terminals) - 1):
        final = timeouts[i] if timeouts is not None else count == limit - 1
        if final:
            count = 0
            continue
        kept.append(i)
        if terminals[i]:
            count = 0
        count += 1
    return kept


def transitions(data) -> list[np.ndarray]:
    """All transitions of a dataset in order: obs, action, reward, next_obs, terminated."""
    return [part[0].numpy() for part in data.gather(torch.arange(len(data))[None])]


def expected(episodes) -> list[np.ndarray]:
    """The arrays that `transitions` should give for these trajectories."""
    return [
        np.concatenate([t.obs[:-1] for t in episodes]),
        np.concatenate([t.action for t in episodes]),
        np.concatenate([t.reward for t in episodes]),
        np.concatenate([t.obs[1:] for t in episodes]),
        last(episodes, "terminal").astype(np.float32),
    ]


def assert_same(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def refused(name, **options) -> str:
    """The sentence with which a dataset is refused when it is loaded or validated."""
    with pytest.raises(UserError) as error:
        validate(load(name, **options))
    assert "\n" not in str(error.value)
    return str(error.value)
