"""Minari's datasets, and those that recipes of this project stored in Minari's format."""

import contextlib
import difflib
import json
import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces.utils import flatdim, flatten_space
from numpy.typing import NDArray
from tqdm import tqdm

from algos.data.build import Builder
from algos.data.files import check_stored
from algos.data.kept import read_once
from algos.data.record import Dataset
from algos.errors import UserError
from algos.folders import alone
from envs import register
from envs.mujoco import RENDERING

MANY = 2_000  # episodes, which take seconds to read


def load_minari(name: str, states: bool = False) -> Dataset:
    """The dataset `minari/…` or `local/…`; one of Minari's is downloaded if it is missing. See `names.load`."""
    import minari
    from minari.storage import get_dataset_path

    minari_id = name.removeprefix("minari/")
    path = get_dataset_path(minari_id)
    if not path.exists():
        try:
            _download(minari_id, get_dataset_path())
        except Exception as error:  # each transport that Minari uses has its own errors
            folders = [folder.parent.relative_to(get_dataset_path()) for folder in get_dataset_path().rglob("data")]
            there = [folder.as_posix() for folder in folders if not str(folder).startswith(".")]  # no downloads
            close = difflib.get_close_matches(minari_id, there)
            alike = f"; the closest names of those that are there: {', '.join(close)}" if close else ""
            raise UserError(
                f"--dataset: {name} is not in {path}, and downloading it failed ({error}): minari download "
                f"{minari_id}{alike}"
            ) from None
    _check_files(path)
    data = minari.load_dataset(minari_id)
    if not isinstance(data.action_space, gym.spaces.Box):
        kind = type(data.action_space).__name__
        raise UserError(f"--dataset: {name} has {kind} actions, where continuous ones (a Box) are needed")
    if not np.issubdtype(data.action_space.dtype, np.floating):
        raise UserError(f"--dataset: {name} has whole numbers as actions ({data.action_space}), not continuous ones")
    if len(data.observation_space.shape or ()) > 2:
        raise UserError(f"--dataset: {name} has images, {data.observation_space.shape}, where vectors are needed")
    space = flatten_space(data.observation_space)
    obs_size, act_size = int(np.prod(space.shape or ())), int(np.prod(data.action_space.shape or ()))
    low, high = (_score(data.storage.metadata, key) for key in ("ref_min_score", "ref_max_score"))
    builder = Builder(int(data.total_steps + data.total_episodes), obs_size, act_size)
    read = partial(_read, data, builder, states)
    if data.total_episodes < MANY:
        read()
    else:
        kept = f"{minari_id}-states" if states else minari_id
        read_once(builder, read, path, get_dataset_path() / ".read" / f"{kept}.npz")
    of_parts = data.observation_space.spaces.items() if isinstance(data.observation_space, gym.spaces.Dict) else ()
    metadata = data.storage.metadata
    recipe = recipe_of(metadata.get("description")) if name.startswith("local/") else {}
    spec: EnvSpec | None = data._eval_env_spec or data.env_spec  # Minari corrects what older versions of it wrote
    return builder.finish(
        name,
        env_id=spec.id if spec else None,
        env_options=_options(spec) if spec else {},
        low=low,
        high=high,
        parts={name: flatdim(part) for name, part in of_parts},
        limit=(spec.max_episode_steps or 0) if spec else 0,
        bounds=(data.action_space.low.ravel(), data.action_space.high.ravel()),
        source=str(recipe.get("command") or metadata.get("code_permalink") or minari_id),
        recipe=recipe,
    )


def _read(data: Any, builder: Builder, states: bool) -> None:
    """Adds all episodes of a dataset, with a bar in a terminal where there are many."""
    style = {"desc": data.id, "unit": " episodes", "leave": False, "disable": data.total_episodes < MANY or None}
    for episode in tqdm(data.iterate_episodes(), total=data.total_episodes, **style):
        steps = len(episode.rewards)
        obs = _flat(data.observation_space, episode.observations, steps + 1)
        builder.add(obs, episode.actions.reshape(len(episode.actions), -1), episode.rewards, episode.terminations)
        infos = episode.infos or {}
        if states and {"qpos", "qvel"} <= set(infos):
            builder.add_states(infos["qpos"][:steps], infos["qvel"][:steps])


def recipe_of(description: Any) -> dict[str, Any]:
    """The values that a recipe wrote into a dataset's description; an empty dict if another program wrote it."""
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        recipe = json.loads(description)
        policies = recipe.get("policies", {}) if isinstance(recipe, dict) else None
        if isinstance(policies, dict) and all(map(_is_training, policies.values())):
            return recipe
    return {}


def _is_training(policy: Any) -> bool:
    """Whether this says how a policy was trained."""
    return (
        isinstance(policy, dict)
        and "command" in policy
        and all(isinstance(policy.get(key), int | float) for key in ("return", "steps"))
    )


def _score(metadata: dict[str, Any], key: str) -> float | None:
    """A reference score, if there is one; raises ValueError if it is no finite number."""
    if (score := metadata.get(key)) is not None and not math.isfinite(score):
        raise ValueError(f"{key} must be a finite number, got {score}")
    return score


def _check_files(path: Path) -> None:
    """Raises ValueError if HDF5 files of a dataset have links to others, or claim far more than they store.

    Large files take long to walk through, and are not checked.
    """
    for part in (path / "data").glob("*.hdf5"):  # also where this folder is a link
        if part.stat().st_size < 16 << 20:
            with h5py.File(part) as file:
                file.visititems(lambda _, item: check_stored(item, file) if isinstance(item, h5py.Dataset) else None)


@contextlib.contextmanager
def minari_in(folder: Path) -> Iterator[None]:
    """Within this context, Minari keeps its datasets in another folder."""
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before


def _download(minari_id: str, root: Path) -> None:
    """Downloads a dataset into a folder aside, where the next try continues, and moves it when it is complete."""
    import minari

    aside = root / ".downloads" / minari_id.replace("/", "-")
    with alone(root / ".downloads.lock", "downloads a dataset of Minari's"):
        if (root / minari_id).exists():  # another process was faster
            return
        with minari_in(aside):
            minari.download_dataset(minari_id, force_download=(aside / minari_id).exists())
        # A combined dataset holds all data of its parts. Parts that lie beside it may be halves of an earlier try, so
        # they are not moved.
        for part in [*aside.rglob("namespace_metadata.json"), aside / minari_id]:
            target = root / part.relative_to(aside)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                part.rename(target)


def _options(spec: EnvSpec) -> dict[str, Any]:
    """The arguments of a recorded environment that differ from those registered with its id."""
    options = {k: v for k, v in spec.kwargs.items() if k not in RENDERING}
    with contextlib.suppress(ModuleNotFoundError):  # this is reported when the environment is made
        register(spec.id)
    if spec.id in gym.registry:
        standard = gym.registry[spec.id]
        options = {k: v for k, v in options.items() if standard.kwargs.get(k, ...) != v}
        if spec.max_episode_steps != standard.max_episode_steps:
            options["max_episode_steps"] = spec.max_episode_steps or -1
    return options


def _flat(space: gym.Space, values: Any, count: int) -> NDArray:
    """Observations [count, O] in the order of Gymnasium's FlattenObservation."""
    if isinstance(space, gym.spaces.Dict):
        return np.concatenate([_flat(part, values[key], count) for key, part in space.spaces.items()], 1)
    if isinstance(space, gym.spaces.Tuple):
        return np.concatenate([_flat(part, v, count) for part, v in zip(space.spaces, values, strict=True)], 1)
    if not isinstance(space, gym.spaces.Box | gym.spaces.Discrete):
        raise UserError(f"--dataset: a part of the observations is {space}, where boxes of numbers are needed")
    if len(values) != count:
        raise ValueError(f"an episode has {len(values)} observations, where {count} are needed")
    if isinstance(space, gym.spaces.Discrete):
        numbers = np.asarray(values).reshape(count) - space.start
        if not ((numbers >= 0) & (numbers < space.n)).all():
            raise ValueError(f"an episode has observations that are not in {space}")
        return np.eye(int(space.n))[numbers]
    return np.asarray(values).reshape(count, -1)
