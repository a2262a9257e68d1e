"""Recipes for offline data of point mazes: OGBench's pointmaze, and D4RL's maze2d in today's environments.

In both, a controller that knows the maze follows shortest paths between free cells, with Gaussian noise of standard
deviation 0.5 on its actions. On one machine, a seed gives the same bytes each time, whatever the global state of NumPy,
which stays as it is.

`ogbench_pointmaze` follows the protocol of OGBench's pointmaze-*-navigate and -stitch. In an episode that takes L rows
of OGBench's files, L actions are played, and the observation after the last one is not stored. A trajectory has it, so
that T = L, and the file's rows are `obs[:-1]`, `action`, `truncated` (as terminals) and, from infos, `qpos[:-1]` and
`qvel[:-1]`; OGBench's files have neither rewards nor goals. In the maze `teleport`, the observation of a step into a
teleport is that of the entry, as the environment gives it, while `qpos` of the same row is at the exit already.

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
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from benchmarks.recipes.trajectory import Trajectory
from envs.make import require
from envs.seeding import sub_seed

NOISE = 0.5  # standard deviation of the noise on each action dimension
MOVES = ((-1, 0), (0, -1), (1, 0), (0, 1))  # up, left, down, right: the first one on a shortest way is taken
OGBENCH_MAZES = ("medium", "large", "giant", "teleport")
OGBENCH_KINDS = ("navigate", "stitch")
GYMNASIUM_MAZES = ("Open", "UMaze", "Medium", "Large")

Cell = tuple[int, int]  # row, column


class Grid:
    """The free cells of a maze and the shortest ways between all of them; `walls` is [rows, columns].

    `vertices` are the free cells that are no corridor; in a corridor, the only way is straight on.
    `distance[goal][cell]` is the number of steps from cell to goal, and `towards[goal][cell]` the next cell on the way,
    which at the goal is the goal itself. Both lack the cells from which there is no way to the goal.
    """

    def __init__(self, walls: NDArray[np.bool_]):
        self.free: list[Cell] = [(int(i), int(j)) for i, j in np.argwhere(~walls)]
        free = set(self.free)
        near = {(i, j): [(i + di, j + dj) for di, dj in MOVES if (i + di, j + dj) in free] for i, j in self.free}
        self.vertices = [
            (i, j) for i, j in self.free if set(near[i, j]) not in ({(i - 1, j), (i + 1, j)}, {(i, j - 1), (i, j + 1)})
        ]
        self.distance: dict[Cell, dict[Cell, int]] = {}
        self.towards: dict[Cell, dict[Cell, Cell]] = {}
        for goal in self.free:
            distance, queue = {goal: 0}, [goal]
            for cell in queue:  # breadth first: the queue grows
                new = [neighbour for neighbour in near[cell] if neighbour not in distance]
                distance |= dict.fromkeys(new, distance[cell] + 1)
                queue += new
            self.distance[goal] = distance
            self.towards[goal] = {cell: min([cell, *near[cell]], key=distance.__getitem__) for cell in queue}


# -- OGBench -----------------------------------------------------------------------------------------------------------


def ogbench_pointmaze(
    maze: str, kind: str, seed: int, episodes: int | None = None, validation: bool = False
) -> Iterator[Trajectory]:
    """Trajectories of OGBench's `pointmaze-{maze}-{kind}-v0`, by default as many as OGBench has: 500, 1,000 or 5,000.

    With `validation`, they are other ones, a tenth of that number and at least one. A trajectory depends only on the
    seed and on its place in the sequence: if fewer are asked for, they are the first of the same ones. The reward is 1
    where a goal is reached, otherwise 0; infos has `qpos`, `qvel` and the place to go to, `goal`, each [T + 1, 2].
    Raises ValueError for a maze or kind that OGBench does not have, and ModuleNotFoundError where OGBench is not
    installed.
    """
    task = f"pointmaze-{maze}-{kind}-v0"
    check(task, "maze", maze, OGBENCH_MAZES)
    check(task, "kind", kind, OGBENCH_KINDS)
    require(task, "mazes", ogbench="ogbench")
    importlib.import_module("ogbench.locomaze")  # registers its ids
    # its wrappers only cut episodes and check calls
    world: Any = gym.make(f"pointmaze-{maze}-v0", terminate_at_goal=False).unwrapped
    os.remove(world.fullpath)  # a temporary file that each environment leaves behind
    grid = Grid(world.maze_map == 1)
    usual, rows = (5000, 201) if kind == "stitch" else (500, 2001) if maze == "giant" else (1000, 1001)
    number = usual if episodes is None else episodes
    purpose = f"{task} {'validation' if validation else 'train'}"
    numbers = range(max(number // 10, 1) if validation else number)
    return (ogbench_episode(world, grid, kind, rows, sub_seed(seed, purpose, i)) for i in numbers)


def ogbench_episode(world: Any, grid: Grid, kind: str, rows: int, seed: int) -> Trajectory:
    """One episode from a random cell: to one goal after another (navigate), or to one 4 cells away to stay (stitch)."""
    rng = np.random.default_rng(seed)
    start = pick(rng, grid.free)
    near = [cell for cell, distance in grid.distance[start].items() if distance == 4]
    goal = pick(rng, grid.vertices if kind == "navigate" else near or [start])
    noise = rng.normal(0, NOISE, (rows, 2))
    tape = Tape()
    env_seed = int(rng.integers(2**32))
    with global_numpy(env_seed):
        obs, _ = world.reset(seed=env_seed, options={"task_info": {"init_ij": start, "goal_ij": goal}})
        tape.see(obs, world.data, world.cur_goal_xy)
        for disturbance in noise:
            xy = world.get_xy()
            cell = world.xy_to_ij(xy)
            way = np.subtract(world.ij_to_xy(grid.towards[goal].get(cell, cell)), xy)
            action = bounded(way / (np.sqrt(way @ way) + 1e-6) + disturbance)
            obs, reward, _, _, info = world.step(action)
            if kind == "navigate" and info["success"]:
                goal = pick(rng, grid.vertices)
                world.set_goal(goal_xy=world.add_noise(world.ij_to_xy(goal)))
            tape.do(action, reward)
            tape.see(obs, world.data, world.cur_goal_xy)
    return tape.trajectory()


@contextmanager
def global_numpy(seed: int) -> Iterator[None]:
    """Seeds NumPy's global generator, from which OGBench's mazes draw, and afterwards restores its state."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


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
    require(task, "mazes", gymnasium_robotics="gymnasium-robotics")
    with redirect_stderr(io.StringIO()):  # a notice about other tasks
        importlib.import_module("gymnasium_robotics")  # registers its ids
    world: Any = gym.make(task, continuing_task=True, reset_target=True).unwrapped
    os.remove(world.tmp_xml_file_path)  # a temporary file that each environment leaves behind
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
        tape.see(np.append(qpos, qvel), world.data, goal)
        while steps > 0 and not success:
            if cell != last and np.linalg.norm(target - qpos) <= 0.1:
                cell = grid.towards[last][cell]
                target = goal if cell == last else maze.cell_rowcol_to_xy(cell) - 0.2 * rng.random(2)
            action = bounded(10 * (target - qpos) - qvel + rng.normal(0, NOISE, 2))
            obs, reward, _, _, info = world.step(action)
            success = info["success"]
            tape.do(action, reward)
            tape.see(obs["observation"], world.data, goal)
            steps -= 1
        yield tape.trajectory()


# -- both --------------------------------------------------------------------------------------------------------------


class Tape:
    """Records an episode: `see` an observation, `do` an action, `see` the next observation, …"""

    def __init__(self) -> None:
        self.obs: list[Any] = []
        self.action: list[Any] = []
        self.reward: list[float] = []
        self.infos: dict[str, list[Any]] = {"qpos": [], "qvel": [], "goal": []}

    def see(self, obs: NDArray, data: Any, goal: Sequence[float] | NDArray) -> None:
        self.obs.append(obs)
        for info, value in zip(self.infos.values(), (data.qpos.copy(), data.qvel.copy(), goal), strict=True):
            info.append(value)

    def do(self, action: NDArray[np.float32], reward: float) -> None:
        self.action.append(action)
        self.reward.append(reward)

    def trajectory(self) -> Trajectory:
        """The whole recording, truncated at its end."""
        obs, action, reward = (np.array(values, np.float32) for values in (self.obs, self.action, self.reward))
        terminated, truncated = np.zeros((2, len(reward)), np.bool_)
        truncated[-1] = True
        infos = {name: np.array(values, np.float32) for name, values in self.infos.items()}
        return Trajectory(obs, action, reward, terminated, truncated, infos)


def bounded(action: NDArray) -> NDArray[np.float32]:
    """Clips an action to the bounds, in the precision in which it is stored, so that the stored action was played."""
    return np.clip(action, -1, 1).astype(np.float32)


def pick(rng: np.random.Generator, cells: Sequence[Cell]) -> Cell:
    """A random cell."""
    return cells[int(rng.integers(len(cells)))]


def check(task: str, argument: str, value: str, known: Sequence[str]) -> None:
    """Raises ValueError if `value` is not one of `known`."""
    if value not in known:
        raise ValueError(f"there is no recipe for {task}: {argument} must be one of {', '.join(known)}, not {value!r}")
