"""The true dynamics of a task: MuJoCo's physics, stepped from given states."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from envs.mujoco.tasks import TASKS, Array, HalfCheetah, PlanarRunner
from envs.mujoco.vector import MujocoVectorEnv

LANES = 64  # states that are stepped at once
CLIPPED = 10.0  # greatest magnitude of an observed velocity of Hopper and Walker2d
ROUNDING = 1e-3  # of observations that were scaled and scaled back


class Simulator:
    """Steps a task from states [n, S], which are MuJoCo's qpos and qvel, without episodes.

    What follows from a state does not depend on the states before it: the solver always begins from rest. Raises
    ValueError for a task whose observations, rewards and terminations are not functions of a state and the one before.
    """

    def __init__(self, env_id: str, threads: int | None = None, **options: Any):
        if not issubclass(TASKS.get(env_id, object), PlanarRunner):
            known = [known for known, task in TASKS.items() if issubclass(task, PlanarRunner)]
            raise ValueError(f"there are none of {env_id}: there are of {', '.join(known)}")
        self.venv = MujocoVectorEnv(env_id, LANES, threads=threads, **options)
        self.task, self.physics = self.venv.task, self.venv.physics
        if not getattr(self.task.p, "exclude_current_positions_from_observation", False):
            self.close()
            raise ValueError(f"there are none of {env_id} where observations hold the forward position")
        self.positions = self.task.model.nq

    def step(self, states: Array, actions: Array) -> tuple[Array, Array, Array, Array]:
        """The next states [n, S], observations [n, O], rewards [n] and terminations [n] after actions [n, A].

        Where a state is not finite, what follows is NaN.
        """
        known = np.asarray(np.isfinite(states).all(1))
        given = np.where(known[:, None], states, 0.0)
        parts = [self._step(given[i : i + LANES], actions[i : i + LANES]) for i in range(0, len(states), LANES)]
        if not parts:
            return states, self.observe(states), np.zeros(0), np.zeros(0, bool)
        next_states, obs, rewards, terminated = (np.concatenate(part) for part in zip(*parts, strict=True))
        next_states[~known], obs[~known], rewards[~known] = np.nan, np.nan, np.nan
        return next_states, obs, rewards, terminated & known

    def _step(self, states: Array, actions: Array) -> tuple[Array, Array, Array, Array]:
        ids = np.arange(len(states))
        for data, state in zip(self.physics.data, states, strict=False):
            data.qpos[:], data.qvel[:] = state[: self.positions], state[self.positions :]
            data.qacc_warmstart[:] = 0
        self.physics.step(actions, ids)
        rows = self.physics.rows(ids)
        position = self.task.position(rows)
        assert position is not None  # these tasks reward movement
        rewards, terminated, _ = self.task.outcome(rows, position - states[:, 0], actions)
        return np.concatenate([rows.qpos, rows.qvel], 1), self.task.observe(rows), rewards, terminated

    def observe(self, states: Array) -> Array:
        """The observations [n, O] of states: joints without the forward position, and velocities."""
        return self.task.observe(SimpleNamespace(qpos=states[:, : self.positions], qvel=states[:, self.positions :]))

    def states_of(self, obs: Array) -> Array:
        """States [n, S] with these observations [n, O], at the forward position 0; see `is_exact`."""
        return np.concatenate([np.zeros((len(obs), 1)), obs], 1)

    def is_exact(self, obs: Array) -> Array:
        """Whether a state is known from its observation [n, O]: Hopper and Walker2d observe clipped velocities."""
        if isinstance(self.task, HalfCheetah):
            return np.ones(len(obs), bool)
        return np.all(np.abs(obs[:, self.positions - 1 :]) < CLIPPED - ROUNDING, axis=1)

    def close(self) -> None:
        """Ends the threads."""
        self.venv.close()
