"""The vector environment of the batched MuJoCo tasks."""

import inspect
import json
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.cores import core_count
from envs.mujoco.physics import Physics, quiet_mujoco
from envs.mujoco.tasks import TASKS, Array, Info
from envs.seeding import reset_arguments

# arguments of Gymnasium's constructors that matter for rendering only
RENDERING = {
    "render_mode", "width", "height", "camera_id", "camera_name", "default_camera_config", "max_geom",
    "visual_options",
}  # fmt: skip
# the part of MuJoCo's state that an exact continuation needs; all else is computed anew in every step
STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)


class MujocoVectorEnv(VectorEnv):
    """A `gymnasium.vector.VectorEnv` of one of `TASKS`.

    It takes the options of the task's class in Gymnasium (`ctrl_cost_weight`, `reset_noise_scale`, `xml_file`, …) and
    `max_episode_steps` (-1: no limit). It refuses to render; Gymnasium's own environments do that well.

    All three autoreset modes behave as in `gymnasium.vector.SyncVectorEnv`, with one exception: with DISABLED, a
    finished environment may be stepped with the others; it then stays as it is, with reward 0, until it is reset.

    `threads` is the number of threads that step the physics: by default one for each core, at most one for every two
    environments. Raises ValueError for a task that is not in `TASKS`, for fewer than one environment, and for an option
    that the task does not have.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        threads: int | None = None,
        **options: Any,
    ):
        if env_id not in TASKS:
            raise ValueError(f"{env_id} has no batched version; there is one for {', '.join(TASKS)}")
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if refused := sorted(RENDERING & set(options)):
            raise ValueError(f"{refused[0]} is not supported by the batched {env_id}: render with gymnasium.make")
        constructor = inspect.signature(load_env_creator(str(gym.spec(env_id).entry_point)))
        defaults = {n: p.default for n, p in constructor.parameters.items() if p.kind is not p.VAR_KEYWORD}
        if unknown := sorted(set(options) - set(defaults)):
            raise ValueError(
                f"{env_id} has no option {unknown[0]}; it has {', '.join(sorted(set(defaults) - RENDERING))}"
            )
        with quiet_mujoco(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # v4 is deprecated
            env: Any = gym.make(env_id, max_episode_steps=max_episode_steps, **options).unwrapped
        limit = gym.spec(env_id).max_episode_steps if max_episode_steps is None else max_episode_steps
        self.max_episode_steps = np.inf if limit in (None, -1) else limit

        self.spec, self.num_envs = gym.spec(env_id), num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**env.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

        self.task = TASKS[env_id](env, defaults | options)
        threads = max(1, min(threads or core_count(), num_envs // 2))
        self.physics = Physics(env.model, num_envs, self.task.fields, env.frame_skip, threads)
        self.generators: list[np.random.Generator] = [None] * num_envs  # type: ignore[list-item]
        self.elapsed = np.zeros(num_envs, np.int64)
        self.done = np.zeros(num_envs, bool)
        self.before = self.task.position(self.physics.fields)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Starts new episodes, everywhere or where `options["reset_mask"]` [num_envs] is True, as Gymnasium does."""
        seeds, mask = reset_arguments(self.num_envs, seed, options)
        ids = np.flatnonzero(mask)
        for i in ids:
            if seeds[i] is not None or self.generators[i] is None:
                self.generators[i] = seeding.np_random(seeds[i])[0]
        self._start_episodes(ids)
        infos: dict[str, Any] = {}
        self._scatter(infos, self.task.reset_info(self.physics.rows(ids)), ids)
        return self.task.observe(self.physics.fields), infos

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Steps all environments with actions [num_envs, A]; raises ValueError for another shape."""
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise ValueError(f"actions must have shape {self.action_space.shape}, got {actions.shape}")
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        resetting = self.done
        active = np.flatnonzero(~resetting)

        infos: dict[str, Any] = {}
        info: Info = {}
        if len(active):
            self.physics.step(actions, active)
            rows = self.physics.rows(active)
            move = None
            if self.before is not None:
                after = self.task.position(rows)
                move = after - self.before[active]
                self.before[active] = after
            rewards[active], terminated[active], info = self.task.outcome(rows, move, actions[active])
            self.elapsed[active] += 1
            truncated[active] = self.elapsed[active] >= self.max_episode_steps
        done = terminated | truncated

        if self.autoreset_mode == AutoresetMode.SAME_STEP and done.any():
            ids = np.flatnonzero(done)
            final = self.task.observe(self.physics.rows(ids))
            infos["final_obs"] = np.full(self.num_envs, None, object)
            for i, obs in zip(ids, final, strict=True):
                infos["final_obs"][i] = obs
            infos["_final_obs"], infos["_final_info"] = done.copy(), done.copy()
            infos["final_info"] = {}
            self._scatter(infos["final_info"], {key: value[ids] for key, value in info.items()}, ids)
            going = np.flatnonzero(~done)
            self._scatter(infos, {key: value[going] for key, value in info.items()}, going)
            self._start_episodes(ids)
            self._scatter(infos, self.task.reset_info(self.physics.rows(ids)), ids)
            self.done[:] = False
        else:
            self._scatter(infos, info, active)
            if self.autoreset_mode == AutoresetMode.NEXT_STEP and len(active) < self.num_envs:
                ids = np.flatnonzero(resetting)
                self._start_episodes(ids)
                self._scatter(infos, self.task.reset_info(self.physics.rows(ids)), ids)
            self.done = done | resetting if self.autoreset_mode == AutoresetMode.DISABLED else done
        return self.task.observe(self.physics.fields), rewards, terminated, truncated, infos

    def _start_episodes(self, ids: Array) -> None:
        """Starts a new episode in each of the environments `ids`."""
        for i in ids:
            self.physics.reset(i, *self.task.initial_state(self.generators[i]))
        self.physics.read(ids)
        self.elapsed[ids], self.done[ids] = 0, False
        if self.before is not None:
            self.before[ids] = self.task.position(self.physics.rows(ids))

    def _scatter(self, infos: dict[str, Any], values: Info, ids: Array) -> None:
        """Puts values [n, …] of the environments `ids` into the infos of all, in Gymnasium's layout."""
        if not len(ids):
            return
        for key, value in values.items():
            if len(ids) == self.num_envs:
                infos[key], infos[f"_{key}"] = value, np.ones(self.num_envs, bool)
                continue
            if key not in infos:
                infos[key] = np.zeros((self.num_envs, *value.shape[1:]), value.dtype)
                infos[f"_{key}"] = np.zeros(self.num_envs, bool)
            infos[key][ids], infos[f"_{key}"][ids] = value, True

    def get_state(self) -> dict[str, Array]:
        """Everything that a bitwise continuation needs, as arrays; see `set_state`."""
        size = mujoco.mj_stateSize(self.physics.model, STATE)
        physics = np.empty((self.num_envs, size))
        for row, data in zip(physics, self.physics.data, strict=True):
            mujoco.mj_getState(self.physics.model, data, row, STATE)
        generators = json.dumps([g and g.bit_generator.state for g in self.generators])
        state = {f"field_{name}": array.copy() for name, array in vars(self.physics.fields).items()}
        state |= {"physics": physics, "elapsed": self.elapsed.copy(), "done": self.done.copy()}
        state["generators"] = np.frombuffer(generators.encode(), np.uint8).copy()
        return state

    def set_state(self, state: dict[str, Array]) -> None:
        """Continues from a state that `get_state` gave in an environment made with the same arguments."""
        for row, data in zip(state["physics"], self.physics.data, strict=True):
            mujoco.mj_setState(self.physics.model, data, row, STATE)
        for name, array in vars(self.physics.fields).items():
            array[...] = state[f"field_{name}"]
        self.elapsed[:], self.done = state["elapsed"], state["done"].copy()
        self.before = self.task.position(self.physics.fields)
        for i, saved in enumerate(json.loads(state["generators"].tobytes().decode())):
            if saved is not None:
                self.generators[i] = np.random.Generator(np.random.PCG64())
                self.generators[i].bit_generator.state = saved

    def close_extras(self, **kwargs: Any) -> None:
        self.physics.close()
