"""Writes trajectories as a Minari dataset, or as files in the layouts of D4RL and OGBench."""

import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from algos.checkpoint import written_aside
from algos.data import minari_in
from benchmarks.recipes.recipe import Recipe
from benchmarks.recipes.trajectory import Trajectory
from envs import d4rl, find_spec
from envs.mujoco import quiet_mujoco


def observations(recipe: Recipe, t: Trajectory) -> dict[str, NDArray]:
    """The observations in the environment's own layout: one array, or three where it has goals."""
    if not recipe.env_id.startswith("PointMaze_"):
        return {"observation": t.obs}
    return {"achieved_goal": t.obs[:, :2], "desired_goal": t.infos["goal"], "observation": t.obs}


def write_minari(recipe: Recipe, name: str, data: list[Trajectory], description: dict[str, Any]) -> Path:
    """Writes the Minari dataset `local/<name>`; gives its folder, which appears only when the dataset is complete."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.storage import get_dataset_path

    warnings.filterwarnings("ignore", module="minari")  # missing authors and links
    warnings.filterwarnings("ignore", ".*precision lowered")  # the bounds of OGBench's actions
    env_id = find_spec(recipe.env_id).id
    place = get_dataset_path(f"local/{name}")
    with quiet_mujoco():
        env = gym.make(env_id, **recipe.env_options)
    boxes: dict[str, gym.Space] = {
        key: gym.spaces.Box(-np.inf, np.inf, part.shape[1:], np.float32)
        for key, part in observations(recipe, data[0]).items()
    }
    goals = len(boxes) > 1
    buffers = []
    for number, t in enumerate(data):
        parts: Any = observations(recipe, t) if goals else t.obs
        buffers.append(
            EpisodeBuffer(
                id=number, observations=parts, actions=t.action, rewards=t.reward, terminations=t.terminated,
                truncations=t.truncated, infos=t.infos if recipe.states else {},
            )
        )  # fmt: skip
    like = d4rl.find(recipe.like) if recipe.like else None
    root = get_dataset_path("")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".collect-") as aside:
        try:
            with quiet_mujoco(), minari_in(Path(aside)):
                minari.create_dataset_from_buffers(
                    f"local/{name}",
                    buffers,
                    env=env,
                    eval_env=env,
                    observation_space=gym.spaces.Dict(boxes) if goals else boxes["observation"],
                    action_space=env.action_space,
                    algorithm_name=description["by"],
                    author="Seedbed",
                    description=json.dumps(description),
                    ref_min_score=like.low if like else None,
                    ref_max_score=like.high if like else None,
                    data_format="hdf5",
                )
        finally:
            env.close()
        place.parent.mkdir(parents=True, exist_ok=True)
        old = Path(aside) / "old"
        try:
            if place.exists():
                place.rename(old)
            (Path(aside) / "local" / name).rename(place)
        except BaseException:
            if old.exists() and not place.exists():
                old.rename(place)
            raise
    return place


def write_d4rl(recipe: Recipe, path: Path, data: list[Trajectory]) -> None:
    """Writes a file in D4RL's layout, with true next observations and timeouts; goals are parts of observations."""
    import h5py

    obs = [np.concatenate(list(observations(recipe, t).values()), 1) for t in data]
    columns: dict[str, list[Any]] = {
        "observations": [o[:-1] for o in obs],
        "next_observations": [o[1:] for o in obs],
        "actions": [t.action for t in data],
        "rewards": [t.reward for t in data],
        "terminals": [t.terminated for t in data],
        "timeouts": [t.truncated for t in data],
    }
    for name in data[0].infos:
        columns[f"infos/{name}"] = [t.infos[name][: len(t.reward)] for t in data]
    with written_aside(path) as part, h5py.File(part, "w") as file:
        for name, arrays in columns.items():
            file.create_dataset(name, data=np.concatenate(arrays), compression="gzip", compression_opts=1)


def write_npz(path: Path, data: list[Trajectory]) -> None:
    """Writes a file in OGBench's layout, which lacks the last observation of each episode."""
    columns: dict[str, Any] = {
        "observations": np.concatenate([t.obs[:-1] for t in data]),
        "actions": np.concatenate([t.action for t in data]),
        "terminals": np.concatenate([t.truncated for t in data]),
    }
    for name in ("qpos", "qvel", "button_states"):
        if name in data[0].infos:
            columns[name] = np.concatenate([t.infos[name][:-1] for t in data])
    with written_aside(path) as part, open(part, "wb") as file:
        np.savez_compressed(file, **columns)


def without_last(t: Trajectory) -> Trajectory:
    """A trajectory without its last step, which no reader of OGBench's files sees: they lack its next observation."""
    infos = {name: values[:-1] for name, values in t.infos.items()}
    return Trajectory(t.obs[:-1], t.action[:-1], t.reward[:-1], t.terminated[1:], t.truncated[1:], infos)
