"""Recipes for the point mazes of Ghugare et al., "Closing the Gap between TD Learning and Supervised Learning - A
Generalisation Point of View" (arXiv 2401.11237), in which a method has to stitch.

Episodes belong to groups of cells, one group after the other, and each goes from a random cell of its group to a random
one, which may be the same. No episode goes from the start of a test to its goal, but groups share cells, where the ways
of two episodes can be put together. `large-sl` is a control set with one group, in which nothing has to be stitched.

A controller that knows the maze follows a shortest path. It aims at the centre of the next cell, and turns to the cell
after it within 0.1 of that point; every later point but the goal is off its cell's centre by up to 0.2. Its action is
clipped, gets Gaussian noise of standard deviation 0.5 and is clipped again. There is no time limit: each episode ends
at a distance of 0.45 from the goal, with reward 1. Where start and goal are in the same cell, the path goes to a
neighbour and back, unless the episode ends in its first step.

Three things differ from the paper's script. A seed here decides everything, where the script leaves the places within
the cells of start and goal to chance. An episode depends only on the seed and on its number, not on the ones before it.
And the last episode is left out if it does not fit, where the script stores its beginning and its loader skips it.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.recipes.grid import Cell, Grid, pick
from benchmarks.recipes.pointmaze import NOISE
from benchmarks.recipes.trajectory import Tape, Trajectory, bounded, check
from envs.make import register
from envs.mazes import world_of
from envs.seeding import sub_seed

MOVES = ((0, 1), (0, -1), (-1, 0), (1, 0))  # right, left, up, down: the first one on a shortest way is taken
ENVS = {"umaze": "PointMaze_UMaze-v3", "medium": "PointMaze_Medium-v3", "large": "PointMaze_Large-v3"}
ENVS["large-sl"] = ENVS["large"]
OPTIONS = {"continuing_task": False}  # an episode ends at the goal, also where methods are evaluated

Group = tuple[Sequence[Cell], Sequence[Cell]]  # cells of starts and of goals


def alike(*cells: Cell) -> Group:
    """A group whose starts are its goals."""
    return cells, cells


# fmt: off
RIGHT = (
    (1, 6), (1, 7), (1, 8), (1, 9), (1, 10), (2, 10), (3, 10), (3, 9), (3, 8), (2, 8), (4, 10), (5, 10), (5, 9), (5, 8),
    (5, 7), (5, 6), (6, 8), (7, 8), (7, 9), (7, 10),
)
GROUPS: dict[str, list[Group]] = {
    "umaze": [
        alike((1, 1), (1, 2), (1, 3)),
        alike((3, 1), (3, 2), (3, 3)),
        alike((1, 3), (2, 3)),
        alike((3, 3), (2, 3)),
    ],
    "medium": [
        alike((6, 5), (6, 6), (5, 6), (4, 6)),
        alike((4, 1), (4, 2), (5, 1), (6, 1), (6, 2), (6, 3), (5, 3)),
        alike((1, 5), (1, 6), (2, 4), (2, 5), (2, 6)),
        alike((1, 1), (1, 2), (2, 1), (2, 2)),
        alike((5, 3), (5, 4), (4, 2), (4, 4), (4, 5), (4, 6), (3, 2), (3, 3), (3, 4), (2, 2), (2, 4)),
    ],
    "large": [
        alike(
            (1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 4), (3, 1), (3, 2), (3, 3), (3, 4), (4, 1), (5, 1), (5, 2),
            (6, 2), (7, 1), (7, 2),
        ),
        alike(
            (3, 4), (3, 5), (1, 6), (2, 6), (3, 6), (4, 6), (5, 6), (6, 6), (7, 6), (7, 5), (7, 4), (6, 4), (5, 4),
        ),
        ([cell for cell in RIGHT if cell not in ((1, 6), (5, 6))], RIGHT),
    ],
    "large-sl": [([(7, 1)], [(5, 4), (1, 10), (7, 10)])],
}
# fmt: on


def stitching(maze: str, seed: int, steps: int = 1_000_000) -> Iterator[Trajectory]:
    """Whole episodes in the mazes umaze, medium, large and large-sl, as many as fit, and at least one.

    As in the paper, `steps` counts the observations, of which an episode has one more than actions. Observations are
    position and velocity [4]; infos has `qpos`, `qvel` and the place to go to, `goal`, each [T + 1, 2]. Raises
    ValueError for another maze, and ModuleNotFoundError where Gymnasium-Robotics is not installed.
    """
    check(f"stitching-{maze}-v0", "maze", maze, tuple(GROUPS))
    world = world_of(register(ENVS[maze]), **OPTIONS)
    return episodes(world, maze, seed, steps)


def episodes(world: Any, maze: str, seed: int, steps: int) -> Iterator[Trajectory]:
    """The episodes of all groups in turn, until the next one does not fit."""
    grid, groups = Grid(np.array(world.maze.maze_map) == 1, MOVES), GROUPS[maze]
    for number in itertools.count():
        trajectory = episode(world, grid, groups[number % len(groups)], sub_seed(seed, f"stitching {maze}", number))
        steps -= len(trajectory.obs)
        if steps < 0 and number:
            return
        yield trajectory


def episode(world: Any, grid: Grid, group: Group, seed: int) -> Trajectory:
    """One episode from a cell of the group to one of its cells, with a PD controller that has gains 10 and -1."""
    rng = np.random.default_rng(seed)
    start, last = (pick(rng, cells) for cells in group)
    world.reset(seed=int(rng.integers(2**32)), options={"reset_cell": np.array(start), "goal_cell": np.array(last)})
    qpos, qvel, goal = world.data.qpos, world.data.qvel, world.goal.copy()  # the first two are views
    cell = grid.towards[last][start] if start != last else grid.near[start][0]
    target = world.maze.cell_rowcol_to_xy(cell)
    tape, terminated = Tape(), False
    tape.see(np.append(qpos, qvel), qpos=qpos, qvel=qvel, goal=goal)
    while not terminated:
        if cell != last and np.linalg.norm(target - qpos) <= 0.1:
            cell = grid.towards[last][cell]
            target = goal if cell == last else world.maze.cell_rowcol_to_xy(cell) - 0.2 * rng.random(2)
        push = np.clip(10 * (target - qpos) - qvel, -1, 1)
        action = bounded(push + rng.normal(0, NOISE, 2))
        obs, reward, terminated, _, _ = world.step(action)
        tape.do(action, reward)
        tape.see(obs["observation"], qpos=qpos, qvel=qvel, goal=goal)
    return tape.trajectory(terminated=True)
