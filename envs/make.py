"""One call for every vector environment."""

import contextlib
import importlib
import importlib.util
import io
import re
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import FlattenObservation, TransformObservation

from envs import atari
from envs.adroit import D4RLReward
from envs.mujoco import TASKS, MujocoVectorEnv, quiet_mujoco

ROBOTICS = ("AntMaze_", "PointMaze_", "FrankaKitchen-", "AdroitHand", "Fetch", "HandReach", "HandManipulate")
OGBENCH = r"(visual-)?(pointmaze|antmaze|humanoidmaze|antsoccer|cube|scene|puzzle|powderworld)\b.*-v\d"


def make_vec(
    env_id: str,
    num_envs: int = 1,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    threads: int | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """`num_envs` environments of one task as a plain Gymnasium `VectorEnv`.

    The MuJoCo tasks are batched natively (`envs.mujoco`), unless a render mode is asked for; every other id
    is Gymnasium's own `SyncVectorEnv`, or the task's own vector environment where that is all it has. `threads` is the
    number of threads at physics in the first case, at most as many as pay by default. Further arguments go to the
    task's constructor; `max_episode_steps` (-1: none) works for every id, `d4rl_reward` for some of Adroit's (see
    `envs.adroit`).

    Observations in parts, such as those of dm_control and those with goals, are flattened, `…NoFrameskip-v4` get the
    usual wrappers (`envs.atari`), and images come channels first, [C, H, W]. Raises ModuleNotFoundError as `register`
    does.
    """
    mode = AutoresetMode(autoreset_mode)
    if env_id in TASKS and kwargs.get("render_mode") is None:
        kwargs.pop("render_mode", None)
        return MujocoVectorEnv(env_id, num_envs, autoreset_mode=mode, threads=threads, **kwargs)
    register(env_id)
    wrappers: list[Callable[[gym.Env], Any]] = [flat]
    if atari.is_game(env_id):
        own = {name: kwargs.pop(name) for name in ("max_episode_steps", "episodic_life") if name in kwargs}
        wrappers.append(partial(atari.preprocess, **own))
    else:
        wrappers.append(channels_first)
    if kwargs.pop("d4rl_reward", False):
        wrappers.append(D4RLReward)
    with quiet_mujoco():
        if gym.spec(env_id).entry_point is None:
            return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **kwargs)
        return gym.make_vec(
            env_id,
            num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": mode},
            wrappers=[*wrappers, *kwargs.pop("wrappers", ())],
            **kwargs,
        )


def flat(env: gym.Env) -> gym.Env:
    """Observations in parts, such as those with goals, become one vector, in the order of Gymnasium's spaces."""
    return FlattenObservation(env) if isinstance(env.observation_space, gym.spaces.Dict) else env


def channels_first(env: gym.Env) -> gym.Env:
    """Images [H, W, C], Gymnasium's layout, become [C, H, W], and bool becomes float; all else stays as it is."""
    space = env.observation_space
    if not (isinstance(space, gym.spaces.Box) and len(space.shape) == 3 and space.dtype in (np.bool_, np.uint8)):
        return env
    dtype = np.dtype(np.float32) if space.dtype == np.bool_ else space.dtype
    low, high = (bound.transpose(2, 0, 1).astype(dtype) for bound in (space.low, space.high))
    new = gym.spaces.Box(low, high, dtype=dtype.type)  # type: ignore[union-attr]
    return TransformObservation(env, lambda obs: obs.transpose(2, 0, 1).astype(dtype), new)


def register(env_id: str) -> None:
    """Makes the ids of `env_id`'s namespace known to Gymnasium, which no longer looks for plugins by itself.

    Raises ModuleNotFoundError, in one sentence that names the extra of this package, where something is not installed.
    """
    if env_id.startswith("MinAtar/"):
        require(env_id, "minatar", minatar="minatar")
        if not any(known.startswith("MinAtar/") for known in gym.registry):
            importlib.import_module("minatar.gym").register_envs()
    elif env_id.startswith("dm_control/"):
        require(env_id, "dm_control", dm_control="dm_control", shimmy="shimmy")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without a display, about rendering, which nobody asked for
            importlib.import_module("shimmy")  # registers its ids
            sizes = importlib.import_module("dm_control.mujoco.wrapper.mjbindings.sizes").array_sizes
        # dm_control indexes all fields of MuJoCo's structures by name, so a MuJoCo that dropped one does not work
        structures = {"mjmodel": mujoco.MjModel, "mjdata": mujoco.MjData}
        if any(not hasattr(structures[name], field) for name in structures for field in sizes[name]):
            ours, theirs = version("dm_control"), mujoco.__version__
            raise ModuleNotFoundError(
                f"{env_id} needs another MuJoCo, because dm_control {ours} does not work with mujoco {theirs}: "
                "pip install -e '.[dm_control]'"
            )
    elif env_id.startswith(ROBOTICS):
        require(env_id, "mazes", gymnasium_robotics="gymnasium-robotics")
        with contextlib.redirect_stderr(io.StringIO()):  # about the rewards of hands
            gym.register_envs(importlib.import_module("gymnasium_robotics"))
    elif re.match(OGBENCH, env_id):
        require(env_id, "mazes", ogbench="ogbench")
        importlib.import_module("ogbench")  # registers its ids
    elif env_id.startswith("ALE/") or atari.is_game(env_id):
        needs = {"ale_py": "ale-py"} | ({"cv2": "opencv-python-headless"} if atari.is_game(env_id) else {})
        require(env_id, "atari", **needs)
        ale_py = importlib.import_module("ale_py")  # registers its ids
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else a banner for every environment


def require(env_id: str, extra: str, **packages: str) -> None:
    """Raises ModuleNotFoundError if one of the modules `packages`, each with its package's name, is not there."""
    for module, package in packages.items():
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"{env_id} needs the package {package}: pip install -e '.[{extra}]'")
