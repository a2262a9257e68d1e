"""The speed of batched environments; see `benchmarks.throughput`."""

import statistics
import time
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np

from envs import make_vec
from envs.cores import core_count
from envs.mujoco import quiet_mujoco


def env_rate(env: gym.vector.VectorEnv, seconds: float) -> float:
    """Environment steps per second with random actions."""
    env.reset(seed=0)
    shape = (64, env.num_envs, *(env.single_action_space.shape or ()))
    actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    for action in actions[:20]:
        env.step(action)
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for action in actions:
            env.step(action)
        steps += len(actions)
    return steps * env.num_envs / (time.perf_counter() - started)


def physics_share(env: gym.vector.VectorEnv) -> float:
    """The share of a vector environment's time that is spent inside MuJoCo's `mj_step`."""
    step, inside = mujoco.mj_step, 0.0

    def timed(*args: Any, **kwargs: Any) -> None:
        nonlocal inside
        started = time.perf_counter()
        step(*args, **kwargs)
        inside += time.perf_counter() - started

    started = time.perf_counter()
    mujoco.mj_step = timed
    try:
        env_rate(env, 0.5)
    finally:
        mujoco.mj_step = step
    return inside / (time.perf_counter() - started)


def measure_envs(args: Any) -> list[dict[str, Any]]:
    """Ratios, and their ceiling, which is reached if all cores compute physics and nothing else takes any time."""
    rows = []
    for env_id in args.env_ids:
        with quiet_mujoco():
            theirs = gym.make_vec(env_id, args.num_envs, vectorization_mode="sync")
        ours = make_vec(env_id, args.num_envs)
        rates = [(env_rate(ours, 1.0), env_rate(theirs, 1.0)) for _ in range(args.rounds)]
        share = physics_share(theirs)
        row = {"name": env_id, "rate": statistics.median(r[0] for r in rates)}
        row["gymnasium sync"] = statistics.median(r[1] for r in rates)
        row["ratio"] = statistics.median(a / b for a, b in rates)
        row["physics share"] = share
        row["ratio's ceiling"] = min(core_count(), args.num_envs) / share
        rows.append(row)
        ours.close()
        theirs.close()
    return rows
