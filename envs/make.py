"""One call for every vector environment."""

from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv

from envs.mujoco import TASKS, MujocoVectorEnv, quiet_mujoco


def make_vec(
    env_id: str,
    num_envs: int = 1,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    threads: int | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """`num_envs` environments of one task as a plain Gymnasium `VectorEnv`.

    The eleven MuJoCo v5 tasks are batched natively (`envs.mujoco`), unless a render mode is asked for; every other id
    is Gymnasium's own `SyncVectorEnv`, or the task's own vector environment where that is all it has. `threads` is the
    number of threads at physics in the first case, at most as many as pay by default. Further arguments go to the
    task's constructor.
    """
    mode = AutoresetMode(autoreset_mode)
    if env_id in TASKS and kwargs.get("render_mode") is None:
        kwargs.pop("render_mode", None)
        return MujocoVectorEnv(env_id, num_envs, autoreset_mode=mode, threads=threads, **kwargs)
    with quiet_mujoco():
        if gym.spec(env_id).entry_point is None:
            return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **kwargs)
        return gym.make_vec(
            env_id, num_envs, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **kwargs
        )
