"""Environments for evaluating policies with goals: the episodes of all tasks and seeds at once."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.cores import core_count
from envs.make import OGBENCH, find_spec, plain_id
from envs.seeding import reset_arguments
from envs.worlds import OGBenchMazes, OGBenchTwins, OwnWorlds, PointMazes, Worlds, own_tasks

NATIVE = r"(pointmaze|antmaze)-(medium|large|giant|teleport)-v0"
RENDERING = ("render_mode", "width", "height")
# start and goal cells, (row, column), of the test tasks of Ghugare et al., "Closing the Gap between TD Learning and
# Supervised Learning", https://arxiv.org/abs/2401.11237
PAIRS: dict[str, list[tuple[tuple[int, int], tuple[int, int]]]] = {
    "PointMaze_UMaze-v3": [((3, 1), (1, 1)), ((1, 1), (3, 1))],
    "PointMaze_Medium-v3": [
        ((6, 6), (6, 3)),
        ((6, 6), (6, 1)),
        ((6, 5), (6, 3)),
        ((6, 5), (6, 1)),
        ((1, 1), (6, 5)),
        ((1, 6), (6, 6)),
    ],
    "PointMaze_Large-v3": [
        ((7, 1), (7, 4)),
        ((7, 1), (7, 10)),
        ((7, 1), (1, 10)),
        ((7, 4), (7, 1)),
        ((7, 4), (7, 10)),
        ((7, 4), (1, 1)),
        ((7, 10), (7, 1)),
    ],
}


def goal_tasks(env_id: str, **options: Any) -> list[str]:
    """The names of an id's tasks: "task1" to "task5" in OGBench, pairs of cells like "(3,1)->(1,1)" in `PAIRS`.

    Other environments, which `options` make, have tasks if they have OGBench's protocol, see `envs.worlds.OwnWorlds`.
    Raises ValueError, in one sentence, for an id without such tasks, and the errors of `find_spec`.
    """
    return list(tasks_of(find_spec(env_id), options))


def tasks_of(spec: EnvSpec, options: dict[str, Any]) -> dict[str, Any]:
    """What a reset is told for each task."""
    if spec.id in PAIRS:
        return {f"({a},{b})->({c},{d})": ((a, b), (c, d)) for (a, b), (c, d) in PAIRS[spec.id]}
    if re.match(OGBENCH, spec.id):
        if "-singletask" in spec.id:
            several = re.sub("-single.*-", "-", spec.id)
            raise ValueError(f"{spec.id} has one fixed goal; the id with several is {several}")
        if spec.id.startswith("powderworld"):
            raise ValueError(
                f"{spec.id} has images for observations, and only ids with observations of numbers have tasks here"
            )
        return {f"task{k}": k for k in range(1, 6)}
    if spec.max_episode_steps and (names := own_tasks(spec.id, **options)):
        return {name: k for k, name in enumerate(names, 1)}
    raise ValueError(
        f"{spec.id} has no tasks with goals; OGBench's ids have some, and {', '.join(PAIRS)}; an environment of your "
        "own has them if it has a time limit, task_infos, reset(options={'task_id': 1}), info['goal'] of a reset and "
        "info['success'] of a step, as OGBench's"
    )


def is_own(env_id: str) -> bool:
    """Whether an id with goals is another one than those of `PAIRS` and of OGBench."""
    return plain_id(env_id) not in PAIRS and not re.match(OGBENCH, env_id)


def make_goal_vec(env_id: str, tasks: Sequence[str], threads: int | None = None, **options: Any) -> VectorEnv:
    """One environment for each entry of `tasks`, which always plays the task of that name; see `GoalVectorEnv`.

    `max_episode_steps` (-1: no limit) replaces the time limit with which the id is registered, and `RENDERING` are
    options of a picture. OGBench's ids take its constructor's other options, too, but with any of these, OGBench's own
    code steps them. Otherwise, point and ant mazes are stepped as a batch, on `threads` threads, by default one for
    each core and at most one for every two environments.

    Raises ValueError where `goal_tasks` does, and for a task or an option that the id does not have.
    """
    spec = find_spec(env_id)
    known = tasks_of(spec, options)
    if not tasks:
        raise ValueError(f"tasks must name one of {', '.join(known)} for each environment, and it is empty")
    if unknown := [task for task in tasks if task not in known]:
        raise ValueError(f"{spec.id} has no task {unknown[0]!r}; it has {', '.join(known)}")
    limit = options.pop("max_episode_steps", spec.max_episode_steps)
    if limit < 1 and limit != -1:
        raise ValueError(f"max_episode_steps must be at least 1, or -1 for no limit, got {limit}")
    if spec.id in PAIRS and (others := [name for name in options if name not in RENDERING]):
        raise ValueError(f"{spec.id} has no option {others[0]} here; it has max_episode_steps, {', '.join(RENDERING)}")
    threads = max(1, min(threads or core_count(), len(tasks) // 2))
    worlds: Worlds
    if spec.id in PAIRS:
        worlds = PointMazes(spec.id, len(tasks), threads, **options)
    elif re.fullmatch(NATIVE, spec.id) and not options:
        worlds = OGBenchMazes(spec.id, len(tasks), threads)
    else:
        kind: Callable[..., Worlds] = OGBenchTwins if re.match(OGBENCH, spec.id) else OwnWorlds
        try:
            worlds = kind(spec.id, len(tasks), **options)
        except TypeError as error:
            if not options:
                raise
            raise ValueError(f"{spec.id} does not take {', '.join(options)} ({error})") from None
    return GoalVectorEnv(spec, worlds, [known[task] for task in tasks], np.inf if limit == -1 else limit)


class GoalVectorEnv(VectorEnv):
    """A `gymnasium.vector.VectorEnv` of environments with goals, each with a task of its own.

    A reset gives the goals as `infos["goal"]` [n, G], and a step says in `infos["success"]` [n] whether they are
    reached, which ends an episode. Nothing resets by itself (`AutoresetMode.DISABLED`): a finished environment may be
    stepped with the others, costs nothing, and stays as it is, with reward 0, until it is reset.

    An environment's episode depends on its own seed and actions only. A reset without a seed draws one from a generator
    that the last seed began.
    """

    def __init__(self, spec: EnvSpec, worlds: Worlds, tasks: Sequence[Any], max_episode_steps: float):
        self.spec, self.worlds, self.tasks = spec, worlds, list(tasks)
        self.num_envs, self.max_episode_steps = len(tasks), max_episode_steps
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space, self.single_action_space = worlds.observation_space, worlds.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.generators = [np.random.default_rng() for _ in tasks]
        self.obs: NDArray = np.zeros((self.num_envs, *worlds.observation_space.shape), worlds.observation_space.dtype)
        self.elapsed = np.zeros(self.num_envs, np.int64)
        self.done = np.ones(self.num_envs, bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray, dict[str, Any]]:
        """Starts new episodes, everywhere or where `options["reset_mask"]` [num_envs] is True."""
        seeds, mask = reset_arguments(self.num_envs, seed, options)
        goals: dict[int, NDArray] = {}
        for i in np.flatnonzero(mask).tolist():
            own = seeds[i]
            if own is None:
                own = int(self.generators[i].integers(2**31))
            else:
                self.generators[i] = np.random.default_rng(own)
            self.obs[i], goals[i] = self.worlds.reset(i, own, self.tasks[i])
        self.elapsed[mask], self.done[mask] = 0, False
        goal = np.zeros((self.num_envs, *next(iter(goals.values())).shape))
        goal[mask] = list(goals.values())
        return self.obs.copy(), {"goal": goal, "_goal": mask.copy()}

    def step(self, actions: NDArray) -> tuple[NDArray, NDArray, NDArray, NDArray, dict[str, Any]]:
        """Steps all environments with actions [num_envs, A]; raises ValueError for another shape."""
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise ValueError(f"actions must have shape {self.action_space.shape}, got {actions.shape}")
        rewards = np.zeros(self.num_envs)
        terminated, truncated, success = np.zeros((3, self.num_envs), bool)
        active = ~self.done
        ids = np.flatnonzero(active)
        if len(ids):
            self.obs[ids], rewards[ids], terminated[ids], success[ids] = self.worlds.step(actions, ids)
            self.elapsed[ids] += 1
            truncated[ids] = self.elapsed[ids] >= self.max_episode_steps
        self.done = self.done | terminated | truncated
        return self.obs.copy(), rewards, terminated, truncated, {"success": success, "_success": active}

    def close_extras(self, **kwargs: Any) -> None:
        self.worlds.close()
