"""Recipes for offline data of point mazes: OGBench's pointmaze, and D4RL's maze2d in today's environments.

In both, a controller that knows the maze follows shortest paths between free cells, with Gaussian noise of standard
deviation 0.5 on its actions. On one machine, a seed gives the same bytes each time, whatever the global state of NumPy,
which stays as it is.

`ogbench_pointmaze` follows the protocol of OGBench's pointmaze-*-navigate and -stitch. In an episode that takes L rows
of OGBench's files, L actions are played, and the observation after the last one is not stored. A trajectory has it, so
that T = L; benchmarks.collect leaves out that last step, so that learners see L - 1 transitions of an episode, as they
do in OGBench's files. The file's rows are `obs[:-1]`, `action`, `truncated` (as terminals) and, from infos,
`qpos[:-1]` and `qvel[:-1]`; OGBench's files have neither rewards nor goals. In the maze `teleport`, the observation of
a step into a teleport is that of the entry, as the environment gives it, while `qpos` of the same row is at the exit
already.

`gymnasium_pointmaze` follows D4RL's maze2d in the form that Minari gave it for Gymnasium-Robotics: one long run that is
never reset, in which a goal that is reached is replaced at random. Where D4RL and Minari differ, the recipe follows
Minari in three things: an episode ends with each goal, at a distance of 0.45 (in D4RL: where the controller stands
within 0.1 of it, or with the time limit); actions are clipped once, after the noise; and the environment's own rewards
are stored. It follows D4RL in two: paths are shortest ones, and each waypoint but the goal is off its cell's centre.
Minari's published script searches depth first, which makes detours where there are loops: Minari's 1,000,000 steps in
Medium are 4,752 episodes, the recipe's about 6,800, while in UMaze, which has no loops, they are 13,210 and about
13,100. The first row of an episode of Minari's still has the former goal, while its action is meant for the new one;
the recipe stores the new one.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.recipes.grid import Grid, pick
from benchmarks.recipes.trajectory import Tape, Trajectory, bounded, check
from envs.make import register, require
from envs.mazes import world_of
from envs.own_random import as_global
from envs.seeding import sub_seed

NOISE = 0.5  # standard deviation of the noise on each action dimension
OGBENCH_MAZES = ("medium", "large", "giant", "teleport")
OGBENCH_KINDS = ("navigate", "stitch")
GYMNASIUM_MAZES = ("Open", "UMaze", "Medium", "Large")
REDRAW = 10  # steps between new directions in OGBench's explore


# -- OGBench -----------------------------------------------------------------------------------------------------------


def ogbench_size(maze: str, kind: str) -> tuple[int, int]:
    """The number of OGBench's episodes in a maze, and the rows of each in its files."""
    usual = (500, 2001) if maze == "giant" else (1000, 1001)
    return {"stitch": (5000, 201), "explore": (10_000, 501)}.get(kind, usual)


def ogbench_pointmaze(
    maze: str, kind: str, seed: int, episodes: int | None = None, validation: bool = False
) -> Iterator[Trajectory]:
    """Trajectories of OGBench's `pointmaze-{maze}-{kind}-v0`, by default as many as OGBench has: 500, 1,000 or 5,000.

    See `ogbench_maze`. Raises ValueError for a maze or kind that OGBench does not have.
    """
    task = f"pointmaze-{maze}-{kind}-v0"
    check(task, "maze", maze, OGBENCH_MAZES)
    check(task, "kind", kind, OGBENCH_KINDS)
    return ogbench_maze("pointmaze", maze, kind, NOISE, lambda obs, direction: direction, seed, episodes, validation)


def ogbench_maze(
    body: str,
    maze: str,
    kind: str,
    noise: float,
    act: Callable[[NDArray, NDArray], NDArray],
    seed: int,
    episodes: int | None = None,
    validation: bool = False,
) -> Iterator[Trajectory]:
    """Trajectories of OGBench's `{body}-{maze}-{kind}-v0`, by default as many as OGBench has.

    `act` gives the action [A] for an observation [O] and a direction [2] of length 1, and `noise` is the standard
    deviation of the noise on it. With `validation`, the trajectories are other ones, a tenth of that number and at
    least one. A trajectory depends only on the seed and on its place in the sequence: if fewer are asked for, they are
    the first of the same ones. The reward is 1 where a goal is reached, otherwise 0; infos has `qpos`, `qvel` and the
    place to go to, `goal`, each with T + 1 rows. Raises ModuleNotFoundError where OGBench is not installed.
    """
    task = f"{body}-{maze}-{kind}-v0"
    require(task, "mazes", ogbench="ogbench")
    importlib.import_module("ogbench.locomaze")  # registers its ids
    world = world_of(f"{body}-{maze}-v0", terminate_at_goal=False)  # its wrappers only cut episodes and check calls
    grid = Grid(world.maze_map == 1)
    usual, rows = ogbench_size(maze, kind)
    number = usual if episodes is None else episodes
    purpose = f"{task} {'validation' if validation else 'train'}"
    numbers = range(max(number // 10, 1) if validation else number)
    return (ogbench_episode(world, grid, kind, rows, noise, act, sub_seed(seed, purpose, i)) for i in numbers)


def ogbench_episode(
    world: Any,
    grid: Grid,
    kind: str,
    rows: int,
    noise: float,
    act: Callable[[NDArray, NDArray], NDArray],
    seed: int,
) -> Trajectory:
    """One episode from a random cell, of one of three kinds.

    It goes to one goal after another (navigate), to one goal 4 cells away to stay there (stitch), or in a random
    direction, which changes every 10 steps, whatever the goal (explore).
    """
    rng = np.random.default_rng(seed)
    start = pick(rng, grid.free)
    near = [cell for cell, distance in grid.distance[start].items() if distance == 4]
    goal = pick(rng, (near or [start]) if kind == "stitch" else grid.vertices)
    disturbances = rng.normal(0, noise, (rows, *world.action_space.shape))
    env_seed = int(rng.integers(2**32))
    wanderings = rng.standard_normal((-(-rows // REDRAW), 2)) if kind == "explore" else None
    tape = Tape()

    def see(obs: NDArray) -> None:
        tape.see(obs, qpos=world.data.qpos, qvel=world.data.qvel, goal=world.cur_goal_xy)

    with as_global(np.random.RandomState(env_seed)):
        obs, _ = world.reset(seed=env_seed, options={"task_info": {"init_ij": start, "goal_ij": goal}})
        see(obs)
        for step, disturbance in enumerate(disturbances):
            if wanderings is not None:
                way = wanderings[step // REDRAW]
            else:
                xy = world.get_xy()
                cell = world.xy_to_ij(xy)
                way = np.subtract(world.ij_to_xy(grid.towards[goal].get(cell, cell)), xy)
            action = bounded(act(obs, way / (np.sqrt(way @ way) + 1e-6)) + disturbance)
            obs, reward, _, _, info = world.step(action)
            if kind == "navigate" and info["success"]:
                goal = pick(rng, grid.vertices)
                world.set_goal(goal_xy=world.add_noise(world.ij_to_xy(goal)))
            tape.do(action, reward)
            see(obs)
    return tape.trajectory()


# -- Gymnasium-Robotics ------------------------------------------------------------------------------------------------


def gymnasium_pointmaze(maze: str, dense: bool, seed: int, steps: int = 1_000_000) -> Iterator[Trajectory]:
    """A run of `steps` in `PointMaze_{maze}-v3` or, with rewards exp(-distance), in `PointMaze_{maze}Dense-v3`.

    Observations are position and velocity [4], as in D4RL's maze2d. Infos has `qpos`, `qvel` and the place to go to,
    `goal`, each [T + 1, 2]; the goal is the same in all rows of an episode. An episode is truncated where the goal is
    reached, with reward 1 in the sparse task, and the next one begins in the state in which it ended; the number of
    steps cuts the last one. Raises ValueError for another maze, and ModuleNotFoundError where Gymnasium-Robotics is not
    installed.
    """
    task = f"PointMaze_{maze}{'Dense' if dense else ''}-v3"
    check(task, "maze", maze, GYMNASIUM_MAZES)
    world = world_of(register(task), continuing_task=True, reset_target=True)
    return continuing_run(world, np.random.default_rng(sub_seed(seed, task)), steps)


def continuing_run(world: Any, rng: np.random.Generator, steps: int) -> Iterator[Trajectory]:
    """Runs a PD controller with gains 10 and -1, which turns to the next waypoint within 0.1 of the present one."""
    maze = world.maze
    grid = Grid(np.array(maze.maze_map) == 1)
    world.reset(seed=int(rng.integers(2**32)))
    qpos, qvel = world.data.qpos, world.data.qvel  # views
    while steps > 0:
        goal = world.goal.copy()
        cell, last = (tuple(maze.cell_xy_to_rowcol(xy).tolist()) for xy in (qpos, goal))
        target = goal if cell == last else qpos.copy()
        tape, success = Tape(), False
        tape.see(np.append(qpos, qvel), qpos=qpos, qvel=qvel, goal=goal)
        while steps > 0 and not success:
            if cell != last and np.linalg.norm(target - qpos) <= 0.1:
                cell = grid.towards[last][cell]
                target = goal if cell == last else maze.cell_rowcol_to_xy(cell) - 0.2 * rng.random(2)
            action = bounded(10 * (target - qpos) - qvel + rng.normal(0, NOISE, 2))
            obs, reward, _, _, info = world.step(action)
            success = info["success"]
            tape.do(action, reward)
            tape.see(obs["observation"], qpos=qpos, qvel=qvel, goal=goal)
            steps -= 1
        yield tape.trajectory()
