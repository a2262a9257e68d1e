"""Recipes for OGBench's antmaze data, by an expert of our own that walks in any direction.

The protocol is OGBench's (see `pointmaze`), and the expert is not: it is SAC, trained in `AntDirection-v0` by this
project's own script, and its policy lies beside those of the locomotion recipes. Its deterministic action for the
direction to go gets Gaussian noise of standard deviation 0.2, or of 1 in the kind explore. The data differs from
OGBench's as far as the two experts differ in speed and gait.
"""

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from benchmarks.recipes.locomotion import TRAINED_IN, Policy, shipped_policy
from benchmarks.recipes.pointmaze import ogbench_maze
from benchmarks.recipes.trajectory import Trajectory, check

MAZES = ("medium", "large")
NOISE = {"navigate": 0.2, "stitch": 0.2, "explore": 1.0}  # standard deviation on each action dimension, by kind
SECONDS = 0.1  # the time that one step takes in the simulator


def ogbench_antmaze(
    maze: str, kind: str, seed: int, episodes: int | None = None, validation: bool = False
) -> Iterator[Trajectory]:
    """Trajectories of `antmaze-{maze}-{kind}-v0`, by default as many as OGBench has: 1,000, 5,000 or 10,000.

    See `pointmaze.ogbench_maze`. Raises ValueError for another maze or kind, and FileNotFoundError where the expert's
    policy has not been made.
    """
    task = f"antmaze-{maze}-{kind}-v0"
    check(task, "maze", maze, MAZES)
    check(task, "kind", kind, tuple(NOISE))
    expert = shipped_policy("ant-direction", "expert")

    def act(obs: NDArray, direction: NDArray) -> NDArray:
        return mode(expert, np.concatenate([obs[2:], direction]))

    return ogbench_maze("antmaze", maze, kind, NOISE[kind], act, seed, episodes, validation)


def mode(policy: Policy, obs: NDArray) -> NDArray[np.float32]:
    """The policy's deterministic action [8] for one observation of `AntDirection-v0` [29]."""
    return policy.sample(obs[None], np.zeros((1, 8)))[0]


def speed(policy: Policy, steps: int = 10_000, seed: int = 0) -> float:
    """The mean speed of a policy towards the direction that it is told, in metres per second, without noise.

    It is measured over `steps` steps in `AntDirection-v0`, in which the direction changes every 100 steps.
    """
    env = gym.make(TRAINED_IN["ant-direction"])
    obs, _ = env.reset(seed=seed)
    way = 0.0
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(mode(policy, obs))
        way += float(reward)
        if terminated or truncated:
            obs, _ = env.reset()
    env.close()
    return way / (steps * SECONDS)
