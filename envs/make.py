"""One call that makes every vector environment, and one that finds every id."""

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import io
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, TransformObservation

from envs import atari
from envs.adroit import D4RLReward
from envs.cores import reserving
from envs.levels import Discretised
from envs.mujoco import TASKS, MujocoVectorEnv, quiet_mujoco
from envs.own_random import FreshGame, OwnRandom, as_global

# packages whose environments give a new array at each step
NEW_ARRAYS = ("gymnasium.", "gymnasium_robotics.", "ale_py.", "minatar.", "minigrid.", "ogbench.", "shimmy.")
OWN = ("algos", "benchmarks", "envs", "single_file")  # packages of this project
TABULAR = "tabular/"  # ids of tables by name, see `envs.tabular.tasks`
# ids of the packages Gymnasium-Robotics and OGBench
ROBOTICS = ("AntMaze_", "PointMaze_", "FrankaKitchen-", "AdroitHand", "Fetch", "HandReach", "HandManipulate")
OGBENCH = r"(visual-)?(pointmaze|antmaze|humanoidmaze|antsoccer|cube|scene|puzzle|powderworld)\b.*-v\d"

# what Python 3.13 and newer need for OGBench besides the extra: there is no labmaze for them, which nothing here uses
WITHOUT_LABMAZE = "pip install dm-env dm-tree lxml && pip install --no-deps ogbench dm_control"
# versions of MuJoCo's tasks that Gymnasium lists, and that raise an error when they are made
REMOVED = r"\w+-v[23]"


def make_vec(
    env_id: str,
    num_envs: int = 1,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    threads: int | None = None,
    levels: Sequence[float] = (),
    **kwargs: Any,
) -> VectorEnv:
    """`num_envs` environments of one task as a plain Gymnasium `VectorEnv`.

    `env_id` is Gymnasium's: in `module:Name-v0`, the module is imported first. The MuJoCo tasks are batched natively
    (`envs.mujoco`), unless a render mode is asked for; every other id becomes Gymnasium's own `SyncVectorEnv`, or the
    task's own vector environment if it has nothing else. `threads` is the number of threads that step the physics of
    batched tasks, by default as many as help. With `levels`, continuous actions become numbers (see `envs.levels`).
    Further arguments go to the task's constructor; `max_episode_steps` (-1: no limit) works for every id but tables,
    whose limit is part of their name, and `d4rl_reward` for some of Adroit's (see `envs.adroit`).

    Observations in parts, such as those of dm_control and those with goals, are flattened, whole numbers out of so many
    to vectors with a one. Games `…NoFrameskip-v4` get the usual wrappers (`envs.atari`), whose episodes are lives
    unless `episodic_life` is false. Images come channels first, [C, H, W], and with `stack` as the last so many,
    [stack C, H, W], the newest last; at the start of an episode all are the first one. Raises ValueError and
    ModuleNotFoundError as `find_spec` does.
    """
    if levels:
        return Discretised(make_vec(env_id, num_envs, autoreset_mode, threads, **kwargs), levels)
    mode = AutoresetMode(autoreset_mode)
    spec = find_spec(env_id)
    env_id = spec.id
    if is_batched(env_id) and kwargs.get("render_mode") is None:
        kwargs.pop("render_mode", None)
        return MujocoVectorEnv(env_id, num_envs, autoreset_mode=mode, threads=threads, **kwargs)
    if env_id.startswith(TABULAR):
        from envs.tabular.vector import TabularVectorEnv  # here, because tables are explored with this module

        if "max_episode_steps" in kwargs:
            raise ValueError(f"the limit of a table is part of its name, such as {TABULAR}chain-h5")
        if others := sorted(kwargs.keys() - {"previous_action", "time"}):
            raise ValueError(f"{env_id} has no option {others[0]}; it has previous_action, time")
        return TabularVectorEnv(env_id.removeprefix(TABULAR), num_envs, autoreset_mode=mode, **kwargs)
    known = str(spec.entry_point).startswith(NEW_ARRAYS)
    wrappers: list[Callable[[gym.Env], Any]] = [by_seed_alone, *([] if known else [own_arrays]), flat]
    if atari.is_game(env_id):
        options = {name: kwargs.pop(name) for name in ("max_episode_steps", "episodic_life") if name in kwargs}
        wrappers.append(partial(atari.preprocess, **options))
    else:
        wrappers.append(channels_first)
    if (stack := kwargs.pop("stack", 1)) > 1:
        wrappers.append(partial(stacked, count=stack))
    if kwargs.pop("d4rl_reward", False):
        wrappers.append(D4RLReward)
    of_ogbench = re.match(OGBENCH, env_id)
    with contextlib.ExitStack() as contexts:
        contexts.enter_context(quiet_mujoco())
        contexts.enter_context(reserving())
        if of_ogbench:  # some are reset while they are made
            contexts.enter_context(as_global(np.random.RandomState()))
        if of_ogbench or env_id.startswith(ROBOTICS):
            contexts.enter_context(tidy())
        if spec.entry_point is None:
            return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **kwargs)
        return gym.make_vec(
            env_id,
            num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": mode},
            wrappers=wrappers,
            **kwargs,
        )


@contextlib.contextmanager
def tidy() -> Iterator[None]:
    """Takes away the temporary file that each maze of Gymnasium-Robotics and OGBench leaves behind when it is made.

    Some stay open, and some file systems keep a file until it is closed.
    """
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def vector_of(envs: Sequence[gym.Env], autoreset_mode: AutoresetMode) -> VectorEnv:
    """A vector environment of environments that exist already, with the observations that `make_vec` gives."""
    makers = [lambda env=env: channels_first(flat(own_arrays(by_seed_alone(env)))) for env in envs]
    return SyncVectorEnv(makers, autoreset_mode=autoreset_mode)


def is_batched(env_id: str) -> bool:
    """Whether this is one of the MuJoCo tasks that are batched natively, as Gymnasium itself registered it."""
    return env_id in TASKS and str(gym.spec(env_id).entry_point).startswith("gymnasium.envs.mujoco")


def by_seed_alone(env: gym.Env) -> gym.Env:
    """Lets the episodes of an environment depend on the seed of its reset alone, where its package does not."""
    env_id = env.spec.id if env.spec else ""
    if re.match(OGBENCH, env_id):
        return OwnRandom(env)
    return FreshGame(env) if env_id.startswith("MinAtar/") else env


def own_arrays(env: gym.Env) -> gym.Env:
    """Copies observations, since an environment may write the next one, perhaps of a new episode, into its array."""
    space = env.observation_space
    return TransformObservation(env, np.array, space) if isinstance(space, spaces.Box) else env


def flat(env: gym.Env) -> gym.Env:
    """Turns observations in parts, such as those with goals, into one vector, in the order of Gymnasium's spaces.

    A whole number out of so many becomes a vector with a one at its place. Raises ValueError for parts that are no
    numbers, such as MiniGrid's missions.
    """
    space = env.observation_space
    if not isinstance(space, (spaces.Dict, spaces.Tuple, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return env
    for name, part in space.items() if isinstance(space, spaces.Dict) else []:
        if not is_vector(part):
            told = f"a part {name!r} ({type(part).__name__}) that is no vector of numbers"
            own = "register an environment of your own without it"
            raise ValueError(f"{env.spec.id if env.spec else env}: observations have {told}; {own}")
    return FlattenObservation(env) if is_vector(space) else env


def is_vector(space: gym.Space) -> bool:
    """Whether Gymnasium can flatten a space to numbers of a fixed count."""
    with contextlib.suppress(NotImplementedError):
        return isinstance(spaces.flatten_space(space), spaces.Box)
    return False


def channels_first(env: gym.Env) -> gym.Env:
    """Turns images [H, W, C], Gymnasium's layout, into [C, H, W], and bool into float; leaves all else as it is."""
    space = env.observation_space
    if not (isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype in (np.bool_, np.uint8)):
        return env
    dtype = np.dtype(np.float32) if space.dtype == np.bool_ else space.dtype
    low, high = (bound.transpose(2, 0, 1).astype(dtype) for bound in (space.low, space.high))
    new = spaces.Box(low, high, dtype=dtype.type)  # type: ignore[union-attr]
    return TransformObservation(env, lambda obs: obs.transpose(2, 0, 1).astype(dtype), new)


def stacked(env: gym.Env, count: int) -> gym.Env:
    """Joins the last `count` images [C, H, W] to one, [count C, H, W], the newest last."""
    env = FrameStackObservation(env, count)
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    low, high = (bound.reshape(-1, *bound.shape[2:]) for bound in (space.low, space.high))
    joined = spaces.Box(low, high, dtype=space.dtype.type)  # type: ignore[union-attr]
    return TransformObservation(env, lambda obs: obs.reshape(joined.shape), joined)


def find_spec(env_id: str) -> EnvSpec:
    """Gymnasium's specification of an id, after `register`.

    Raises ValueError, in one sentence with the closest ids, if there is no such id or if it shows images, and the
    errors of `register`.
    """
    plain = register(env_id)
    with contextlib.suppress(gym.error.Error):
        spec = gym.spec(plain)
        if re.fullmatch(REMOVED, plain) and f"{spec.name}-v5" in gym.registry:
            raise ValueError(f"{plain} is no longer part of Gymnasium: take {spec.name}-v5")
        if spec.kwargs.get("ob_type") == "pixels":  # OGBench's; to make one ends the process where nothing can draw
            raise ValueError(f"{plain} has images for observations, and this needs states: take an id without visual-")
        return spec
    module = env_id.removesuffix(plain).removesuffix(":")
    known = ids_of(module) if module else ()
    close = difflib.get_close_matches(plain, known or gym.registry, n=3, cutoff=0.4)
    hint = f"; the closest ids are {', '.join(close)}" if close else ""
    if known:
        hint = hint or f"; it registers {', '.join(known[:10])}" + (", …" if len(known) > 10 else "")
        raise ValueError(f"the module {module!r} registers no environment {plain!r}{hint}")
    after = f", even after the module {module!r} was imported" if module else ""
    own = "" if module else "; one of your own needs the name of its module too, as in my_module:Task-v0"
    raise ValueError(f"Gymnasium has no environment {plain!r}{after}{hint}{own}")


@cache
def ids_of(module: str) -> tuple[str, ...]:
    """Imports a module, with the current directory on the path, and gives the ids that this registers with Gymnasium.

    Raises ModuleNotFoundError if there is no such module, or if it needs one that is not installed, and ValueError if
    the name is not that of a module or the module raises an error.
    """
    if not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{module!r} is not the name of a module: write package.module:Name-v0")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())  # `python -m` does the same
    importlib.invalidate_caches()
    before = set(gym.registry)
    try:
        importlib.import_module(module)
    except Exception as error:  # the user's code may raise anything
        reason = (str(error).strip().splitlines() or [""])[0]
        if not isinstance(error, ModuleNotFoundError):
            raise ValueError(f"importing the module {module!r} failed: {type(error).__name__}: {reason}") from error
        if error.name and f"{module}.".startswith(f"{error.name}."):
            first = module.partition(".")[0]
            taken = f"; {first!r} is the name of a package of this project, which hides another" if first in OWN else ""
            raise ModuleNotFoundError(
                f"there is no module {module!r}, neither in {os.getcwd()} nor among the installed packages{taken}"
            ) from None
        raise ModuleNotFoundError(f"the module {module!r} cannot be imported: {reason}") from error
    return tuple(env_id for env_id in gym.registry if env_id not in before)


def source_of(env_id: str) -> Path | None:
    """The file that defines a task of one's own, `module:Name-v0`; None for other ids, and where there is no file."""
    if ":" not in env_id:
        return None
    with contextlib.suppress(Exception):  # the user's code may raise anything, and is told so where it is run
        spec = find_spec(env_id)
        entry: Any = spec.entry_point or spec.vector_entry_point
        made_by = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
        return Path(inspect.getfile(made_by))
    return None


def plain_id(env_id: str) -> str:
    """An id without the module that registers it: Name-v0 of `module:Name-v0`."""
    return env_id.rpartition(":")[2]


def register(env_id: str) -> str:
    """Makes an id known to Gymnasium, which no longer looks for plugins by itself, and gives the id without its module.

    In `module:Name-v0`, the module is imported, with the current directory on the path. Otherwise, the ids of the
    packages in this project's extras are registered when they are needed. Raises ModuleNotFoundError, in one sentence
    that names the module or the extra, if something is not installed, and ValueError if the module cannot be imported.
    """
    module, colon, plain = env_id.rpartition(":")
    if colon:
        if not plain:
            raise ValueError(f"{env_id!r} names no environment of the module: write {env_id}Name-v0")
        ids_of(module)
        return plain
    if env_id.startswith("MinAtar/"):
        require(env_id, "minatar", minatar="minatar")
        if not any(known.startswith("MinAtar/") for known in gym.registry):
            importlib.import_module("minatar.gym").register_envs()
    elif env_id.startswith("dm_control/"):
        require(env_id, "dm_control", dm_control="dm_control", shimmy="shimmy")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without a display, it warns about rendering, which nobody asked for
            importlib.import_module("shimmy")  # registers its ids
            sizes = importlib.import_module("dm_control.mujoco.wrapper.mjbindings.sizes").array_sizes
        # dm_control indexes all fields of MuJoCo's structures by name, so it fails with a MuJoCo that dropped one
        structures = {"mjmodel": mujoco.MjModel, "mjdata": mujoco.MjData}
        if any(not hasattr(structures[name], field) for name in structures for field in sizes[name]):
            ours, theirs = version("dm_control"), mujoco.__version__
            raise ModuleNotFoundError(
                f"{env_id} needs another MuJoCo, because dm_control {ours} does not work with mujoco {theirs}: "
                "pip install -e '.[dm_control]'"
            )
    elif env_id.startswith(ROBOTICS):
        require(env_id, "mazes", gymnasium_robotics="gymnasium-robotics")
        with contextlib.redirect_stderr(io.StringIO()):  # a notice about the rewards of hands
            gym.register_envs(importlib.import_module("gymnasium_robotics"))
    elif re.match(OGBENCH, env_id):
        require(env_id, "mazes", ogbench="ogbench")
        importlib.import_module("ogbench")  # registers its ids
    elif env_id.startswith(TABULAR):
        from envs.tabular.tasks import horizon_of

        if env_id not in gym.registry:
            name = env_id.removeprefix(TABULAR)
            entry, limit = "envs.tabular.vector:TabularEnv", horizon_of(name)
            gym.register(env_id, entry, kwargs={"table": name}, max_episode_steps=limit, disable_env_checker=True)
    elif env_id.startswith("MiniGrid-"):
        require(env_id, "minigrid", minigrid="minigrid")
        importlib.import_module("minigrid")  # registers its ids
    elif env_id.startswith("ALE/") or atari.is_game(env_id):
        needs = {"ale_py": "ale-py"} | ({"cv2": "opencv-python-headless"} if atari.is_game(env_id) else {})
        require(env_id, "atari", **needs)
        ale_py = importlib.import_module("ale_py")  # registers its ids
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # otherwise, each environment prints a banner
    return env_id


def require(env_id: str, extra: str, **packages: str) -> None:
    """Raises ModuleNotFoundError if a module is not installed; `packages` maps each module to its package."""
    for module, package in packages.items():
        if importlib.util.find_spec(module) is None:
            how = f"pip install -e '.[{extra}]'"
            if module == "ogbench" and sys.version_info >= (3, 13):
                how += f" && {WITHOUT_LABMAZE}"
            raise ModuleNotFoundError(f"{env_id} needs the package {package}: {how}")
