"""Recipes for OGBench's manipulation data (…-play-v0), made by OGBench's own scripted oracles.

An oracle makes a plan for one task (to move a cube, to press a button, to slide the drawer or the window), with
temporally correlated noise on it, and follows it step by step without looking at what happens; then the environment
draws the next task. Episodes have the 1,001 rows of OGBench's files, so 1,001 actions are played; a trajectory also has
the observation after the last one, which OGBench's files lack. The reward is 1 where the present task is done, and 0
elsewhere; OGBench's files have no rewards. In the scene, an episode in which the cube gets out of sight is made anew,
as OGBench does.

OGBench's script sets no seed. Here, an episode depends only on the seed and on its number, and a seed gives the same
bytes each time on one machine, whatever the global state of NumPy, which stays as it is.
"""

import importlib
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.recipes.trajectory import Tape, Trajectory, bounded, check
from envs.make import require
from envs.own_random import as_global
from envs.seeding import sub_seed

NOISE, SMOOTHING = 0.1, 0.5  # of the plan, before it is scaled to the bounds of actions, and in steps
ROWS = 1001  # of one episode in OGBench's files
EPISODES = 1000
ORACLES = {
    "cube-single": ("cube",),
    "cube-double": ("cube",),
    "scene": ("cube", "button", "drawer", "window"),
    "puzzle-3x3": ("button",),
}
STACKED = {"cube-double": 0.25}  # the highest probability of a target on top of the other cube, drawn for each episode


def ogbench_play(
    task: str, seed: int, episodes: int = EPISODES, validation: bool = False, rows: int = ROWS
) -> Iterator[Trajectory]:
    """Trajectories of OGBench's `{task}-play-v0`, by default as many as OGBench has.

    With `validation`, they are other ones, a tenth of that number and at least one. Infos has `qpos` and `qvel` and,
    where there are buttons, the integers `button_states`, each with T + 1 rows. Raises ValueError for a task that is
    not one of ORACLES, and ModuleNotFoundError where OGBench is not installed.
    """
    name = f"{task}-play-v0"
    check(name, "task", task, tuple(ORACLES))
    require(name, "mazes", ogbench="ogbench")
    world, oracles = world_and_oracles(task)
    purpose = f"{name} {'validation' if validation else 'train'}"
    numbers = range(max(episodes // 10, 1) if validation else episodes)
    return (episode(world, oracles, task, rows, sub_seed(seed, purpose, i)) for i in numbers)


@cache  # its model takes seconds to compile, and every episode begins with a reset
def world_and_oracles(task: str) -> tuple[Any, dict[str, Any]]:
    """An environment that draws tasks, and OGBench's oracles that follow plans for them, by the kinds of tasks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a missing display and the precision of bounds
        importlib.import_module("ogbench.manipspace")  # registers its ids
        # its wrappers only cut episodes and check calls
        world = gym.make(f"{task}-v0", terminate_at_goal=False, mode="data_collection").unwrapped
    options = {"env": world, "noise": NOISE, "noise_smoothing": SMOOTHING}
    if task.startswith("puzzle"):
        options["gripper_always_closed"] = True
    oracles = {}
    for kind in ORACLES[task]:
        module = importlib.import_module(f"ogbench.manipspace.oracles.plan.{kind}_plan")
        oracles[kind] = getattr(module, f"{kind.capitalize()}PlanOracle")(**options)
    return world, oracles


def episode(world: Any, oracles: dict[str, Any], task: str, rows: int, seed: int) -> Trajectory:
    """One episode of as many actions as it has rows in OGBench's files."""
    rng = np.random.default_rng(seed)
    while True:
        stacked = rng.uniform(0, STACKED.get(task, 0))
        trajectory = play(world, oracles, stacked, rows, int(rng.integers(2**32)))
        if task != "scene" or cube_in_sight(trajectory):
            return trajectory


def play(world: Any, oracles: dict[str, Any], stacked: float, rows: int, seed: int) -> Trajectory:
    """One episode, in which a target is on top of another cube with probability `stacked`."""
    tape = Tape()

    def see(obs: Any) -> None:
        buttons = {"button_states": world._cur_button_states} if hasattr(world, "_cur_button_states") else {}
        tape.see(obs, qpos=world.data.qpos, qvel=world.data.qvel, **buttons)

    with as_global(np.random.RandomState(seed)):
        obs, info = world.reset(seed=seed)
        oracle = oracles[info["privileged/target_task"]]
        oracle.reset(obs, info)
        see(obs)
        for _ in range(rows):
            action = bounded(oracle.select_action(obs, info))
            obs, reward, _, _, info = world.step(action)
            tape.do(action, reward)
            see(obs)
            if oracle.done:
                target = world.set_new_target(p_stack=stacked)  # an observation and what is known beside it
                oracle = oracles[target[1]["privileged/target_task"]]
                oracle.reset(*target)
    return tape.trajectory()


def cube_in_sight(trajectory: Trajectory) -> bool:
    """Whether the scene's cube stays where OGBench's camera sees it, or in the drawer; numbers are OGBench's."""
    _, y, z = trajectory.infos["qpos"][:-1, 14:17].T
    lost = (y >= 0.29) | ((y <= -0.3) & ((z < 0.06) | (z > 0.08)))
    return not bool(lost.any())
