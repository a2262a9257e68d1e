"""Batches of environments with goals: each environment is begun and stepped on its own, its neighbours as they are.

All of them begin an episode with the reset of the original environment. What they give equals bit for bit what the
original gives that is reset with the same seed (see `begin`) and gets the same actions.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from envs.mazes import ogbench_maze, world_of
from envs.mujoco.physics import Physics
from envs.mujoco.tasks import norm
from envs.own_random import as_global

RADIUS = 0.7 + 1e-6  # of OGBench's point, and room for rounding
REACHED = 0.45  # distance to the goal at which Gymnasium-Robotics' mazes are solved


class Outcome(NamedTuple):
    """One step of k environments."""

    obs: NDArray  # [k, O]
    reward: NDArray  # [k]
    terminated: NDArray[np.bool_]  # [k]
    success: NDArray[np.bool_]  # [k]


class Worlds(Protocol):
    """n environments of the same id."""

    observation_space: gym.spaces.Box
    action_space: gym.spaces.Box

    def reset(self, i: int, seed: int, task: Any) -> tuple[NDArray, NDArray]:
        """Begins an episode of a task in environment i: the observation [O] and the goal [G]."""

    def step(self, actions: NDArray, ids: NDArray) -> Outcome:
        """Steps the environments `ids` with their rows of actions [n, A]."""

    def close(self) -> None:
        """Ends threads."""


# -- OGBench -----------------------------------------------------------------------------------------------------------


def begin(world: Any, seed: int, task: int) -> tuple[NDArray, dict[str, Any], np.random.RandomState]:
    """Resets one of OGBench's environments: the observation [O], its info, and the generator of later teleports.

    The seed is that of all three generators from which OGBench draws: the environment's own, that of its action space,
    and NumPy's global one, which has its former state afterwards.
    """
    generator = np.random.RandomState(seed)
    world.action_space.seed(seed)
    with as_global(generator):
        obs, info = world.reset(seed=seed, options={"task_id": task})
    return obs, info, generator


class OGBenchMazes:
    """OGBench's point and ant mazes, with the physics on a pool of threads.

    A step puts a point where its action says and lets the physics push it out of walls. Without a wall in reach, that
    changes nothing, so that only points near walls need physics.
    """

    def __init__(self, env_id: str, num_envs: int, threads: int):
        self.world = world_of(env_id)
        self.observation_space, self.action_space = self.world.observation_space, self.world.action_space
        self.maze, self.is_point = ogbench_maze(self.world), env_id.startswith("point")
        fields = ("qpos",) if self.is_point else ("qpos", "qvel")
        self.physics = Physics(self.world.model, num_envs, fields, self.world.frame_skip, threads)
        self.still = np.zeros((num_envs, self.world.model.nu))
        self.goal = np.zeros((num_envs, 2))
        self.generators: list[np.random.RandomState] = [None] * num_envs  # type: ignore[list-item]
        self.teleports = self.world._teleport_info

    def reset(self, i: int, seed: int, task: int) -> tuple[NDArray, NDArray]:
        obs, info, self.generators[i] = begin(self.world, seed, task)
        self.physics.reset(i, self.world.data.qpos, self.world.data.qvel)
        self.physics.read(np.array([i]))
        self.goal[i] = self.world.cur_goal_xy
        return obs, info["goal"]

    def step(self, actions: NDArray, ids: NDArray) -> Outcome:
        if self.is_point:
            self._move(actions, ids)
        else:
            self.physics.step(actions, ids)
        obs = np.concatenate([array[ids] for array in vars(self.physics.fields).values()], axis=1)
        success = norm(obs[:, :2] - self.goal[ids]) <= self.world._goal_tol
        if self.teleports:
            self._teleport(obs[:, :2], ids)
        return Outcome(obs, success.astype(float), success.copy(), success)

    def _move(self, actions: NDArray, ids: NDArray) -> None:
        """Moves points by 0.2 times their actions, and steps the physics of those near walls."""
        qpos, data = self.physics.fields.qpos, self.physics.data
        qpos[ids] += 0.2 * actions[ids]
        near = ids[self.maze.near_wall(qpos[ids], RADIUS)]
        for i in near:
            data[i].qpos[:], data[i].qvel[:] = qpos[i], 0
        self.physics.step(self.still, near)

    def _teleport(self, xy: NDArray, ids: NDArray) -> None:
        """Sends those at an entry to an exit; the observation of this step is still that of the entry."""
        exits, reach = self.teleports["teleport_out_xys"], 1.5 * self.teleports["teleport_radius"]
        entered = [norm(xy - entry) <= reach for entry in self.teleports["teleport_in_xys"]]
        for i in ids[np.any(entered, axis=0)]:
            data = self.physics.data[i]
            data.qpos[:2] = self.physics.fields.qpos[i, :2] = exits[self.generators[i].randint(len(exits))]
            mujoco.mj_forward(self.physics.model, data)

    def close(self) -> None:
        self.physics.close()


class OGBenchTwins:
    """OGBench's other environments, stepped one after another by its own code.

    They are copies of one environment that share its model, which takes up to two seconds and 60 MB.
    """

    def __init__(self, env_id: str, num_envs: int, **options: Any):
        world = world_of(env_id, **options)
        self.observation_space, self.action_space = world.observation_space, world.action_space
        self.worlds = [self._twin(world) for _ in range(num_envs)]
        self.teleports = getattr(world, "_teleport_info", None)
        self.generators: list[np.random.RandomState] = [None] * num_envs  # type: ignore[list-item]

    @staticmethod
    def _twin(world: Any) -> Any:
        """A copy with data of its own; all else that changes, a reset replaces."""
        twin = object.__new__(type(world))  # copy.copy would make it anew, because it is an EzPickle
        for name, value in vars(world).items():
            setattr(twin, name, mujoco.MjData(world.model) if isinstance(value, mujoco.MjData) else value)
        return twin

    def reset(self, i: int, seed: int, task: int) -> tuple[NDArray, NDArray]:
        obs, info, self.generators[i] = begin(self.worlds[i], seed, task)
        return obs, info["goal"]

    def step(self, actions: NDArray, ids: NDArray) -> Outcome:
        steps = [self._step(i, actions[i]) for i in ids]
        obs, reward, terminated, _, info = zip(*steps, strict=True)
        success = np.array([told["success"] for told in info], bool)
        return Outcome(np.array(obs), np.array(reward, float), np.array(terminated, bool), success)

    def _step(self, i: int, action: NDArray) -> Any:
        world = self.worlds[i]
        if hasattr(world, "_apply_button_states"):
            world._apply_button_states()  # buttons lock drawers in the model, which is shared
        with as_global(self.generators[i]) if self.teleports else nullcontext():
            return world.step(action)

    def close(self) -> None:
        """There are no threads."""


# -- environments of one's own -----------------------------------------------------------------------------------------


def own_env(env_id: str, **options: Any) -> gym.Env:
    """An environment as Gymnasium makes it, without its time limit."""
    return gym.make(env_id, disable_env_checker=True, **options | {"max_episode_steps": -1})


def own_tasks(env_id: str, **options: Any) -> list[str]:
    """The names of an environment's tasks, if it has `task_infos` as OGBench's have, a dictionary for each task.

    A task without a `task_name` of its own is named by its number. The list is empty for other environments.
    """
    env = own_env(env_id, **options)
    infos = getattr(env.unwrapped, "task_infos", None) or ()
    env.close()
    names = [str(info.get("task_name", f"task{k}")) for k, info in enumerate(infos, 1)]
    return names if len(set(names)) == len(names) else [f"task{k}" for k in range(1, len(names) + 1)]


class OwnWorlds:
    """Environments with OGBench's protocol for goals, one for each, stepped one after another.

    `reset(options={"task_id": k})` begins task k, counted from 1, and its info has the `goal`, a vector; the info of a
    step has `success`, which ends an episode, as whatever else ends it there. Raises ValueError for an environment that
    has not, or whose observations or actions are no vectors of real numbers.
    """

    def __init__(self, env_id: str, num_envs: int, **options: Any):
        self.env_id = env_id
        self.worlds = [own_env(env_id, **options) for _ in range(num_envs)]
        spaces = {"observations": self.worlds[0].observation_space, "actions": self.worlds[0].action_space}
        for name, space in spaces.items():
            if not (isinstance(space, gym.spaces.Box) and len(space.shape) == 1):
                raise ValueError(f"{env_id} has {name} {space}, where a Box of one axis is needed")
        self.observation_space: Any = spaces["observations"]
        self.action_space: Any = spaces["actions"]
        self.generators = [np.random.RandomState(0)] * num_envs
        self.reset(0, 0, 1)  # to see at once whether a step says what it has to
        self.step(np.stack([self.action_space.sample()] * num_envs), np.array([0]))

    def reset(self, i: int, seed: int, task: int) -> tuple[NDArray, NDArray]:
        obs, info, self.generators[i] = begin(self.worlds[i], seed, task)
        if "goal" not in info:
            raise ValueError(f"{self.env_id} has no 'goal' in the info of its reset")
        return obs, np.asarray(info["goal"], float)

    def step(self, actions: NDArray, ids: NDArray) -> Outcome:
        steps = []
        for i in ids:
            with as_global(self.generators[i]):
                steps.append(self.worlds[i].step(actions[i]))
        obs, reward, terminated, truncated, info = zip(*steps, strict=True)
        if any("success" not in told for told in info):
            raise ValueError(f"{self.env_id} has no 'success' in the info of its steps")
        success = np.array([told["success"] for told in info], bool)
        ended = np.array(terminated, bool) | np.array(truncated, bool) | success
        return Outcome(np.array(obs), np.array(reward, float), ended, success)

    def close(self) -> None:
        for world in self.worlds:
            world.close()


# -- Gymnasium-Robotics ------------------------------------------------------------------------------------------------


class PointMazes:
    """Gymnasium-Robotics' sparse `PointMaze_…-v3` that end at the goal, with the physics on a pool of threads.

    Observations are x, y and the velocities, goals x and y. A task is a pair of cells: start and goal. `options` are
    those of rendering.
    """

    def __init__(self, env_id: str, num_envs: int, threads: int, **options: Any):
        self.world = world_of(env_id, continuing_task=False, **options)
        self.metadata = self.world.metadata
        self.observation_space = self.world.observation_space["observation"]
        self.action_space = self.world.action_space
        self.physics = Physics(self.world.model, num_envs, ("qpos", "qvel"), 1, threads)
        self.goal = np.zeros((num_envs, 2))

    def reset(self, i: int, seed: int, task: tuple[tuple[int, int], tuple[int, int]]) -> tuple[NDArray, NDArray]:
        start, goal = (np.array(cell) for cell in task)
        obs, _ = self.world.reset(seed=seed, options={"reset_cell": start, "goal_cell": goal})
        self.physics.reset(i, self.world.data.qpos, self.world.data.qvel)
        self.physics.read(np.array([i]))
        self.goal[i] = obs["desired_goal"]
        return obs["observation"], obs["desired_goal"]

    def step(self, actions: NDArray, ids: NDArray) -> Outcome:
        fields, data = self.physics.fields, self.physics.data
        for i in ids[np.any(np.abs(fields.qvel[ids]) > 5, axis=1)]:
            data[i].qvel[:] = np.clip(fields.qvel[i], -5, 5)
        self.physics.step(np.clip(actions, -1, 1), ids)
        away = fields.qpos[ids] - self.goal[ids]
        success = norm(away) <= REACHED
        # the original's reward takes the norm in another way than its success
        reward = (np.linalg.norm(away, axis=-1) <= REACHED).astype(float)
        return Outcome(np.concatenate([fields.qpos[ids], fields.qvel[ids]], axis=1), reward, success.copy(), success)

    def render(self) -> NDArray:
        """The picture [H, W, 3] of the only environment."""
        self.world.data.qpos[:] = self.physics.fields.qpos[0]
        mujoco.mj_forward(self.world.model, self.world.data)
        return self.world.render()

    def close(self) -> None:
        self.physics.close()
