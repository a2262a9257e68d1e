"""The walls of OGBench's and Gymnasium-Robotics' mazes, for drawing and for telling who is near one."""

import re
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envs.make import find_spec, tidy
from envs.mujoco import quiet_mujoco
from envs.own_random import keep_spaces

OGBENCH_MAZE = r"(pointmaze|antmaze|humanoidmaze|antsoccer)-"


@dataclass(frozen=True, eq=False)
class Maze:
    """Square cells, of which some are walls; rows lie along y, columns along x."""

    walls: NDArray[np.bool_]  # [rows, columns]
    size: float  # the edge of a cell
    first: tuple[float, float]  # x and y of the centre of the cell in row 0 and column 0
    down: bool  # whether y falls from one row to the next; otherwise it rises

    def centre(self, row: int, column: int) -> tuple[float, float]:
        """x and y of the centre of a cell."""
        return self.first[0] + self.size * column, self.first[1] + (-self.size if self.down else self.size) * row

    def cell(self, xy: NDArray) -> tuple[int, int]:
        """Row and column of the cell that holds a point."""
        column, row = np.floor((xy - self.first) * (1, -1 if self.down else 1) / self.size + 0.5).astype(int)
        return int(row), int(column)

    def way(self, start: NDArray, goal: NDArray, pace: float) -> NDArray[np.float64]:
        """Points [T, 2] on a shortest way from cell to cell between two points, `pace` apart; one if there is none."""
        first, last = self.cell(start), self.cell(goal)
        towards, queue = {last: last}, [last]
        for row, column in queue:  # breadth first from the goal: the queue grows
            for cell in ((row - 1, column), (row, column - 1), (row + 1, column), (row, column + 1)):
                if not self.walls[cell] and cell not in towards:
                    towards[cell] = (row, column)
                    queue.append(cell)
        if first not in towards:
            return start[None].astype(float)
        cells = [first]
        while cells[-1] != last:
            cells.append(towards[cells[-1]])
        corners = np.array([start, *(self.centre(*cell) for cell in cells[1:-1]), goal])
        reached = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(corners, axis=0), axis=1))])
        places = np.arange(0, reached[-1], pace)
        return np.stack([np.interp(places, reached, corners[:, axis]) for axis in range(2)], 1)

    def points(self, count: int) -> NDArray[np.float64]:
        """x and y of points in all free cells [n, 2], `count` along each edge of a cell."""
        offsets = ((np.arange(count) + 0.5) / count - 0.5) * self.size
        around = np.stack(np.meshgrid(offsets, offsets), -1).reshape(-1, 2)
        centres = [self.centre(row, column) for row, column in np.argwhere(~self.walls)]
        return (np.array(centres)[:, None] + around).reshape(-1, 2)

    def near_wall(self, xy: NDArray, distance: float) -> NDArray[np.bool_]:
        """Whether a wall may be as close as `distance`, less than `size`, to each of the points [n, 2].

        It is True wherever one is as close as that, and outside of the maze, whose outermost cells are walls.
        """
        last = self.walls.shape[1] - 1, self.walls.shape[0] - 1
        cells = (xy - self.first) * (1, -1 if self.down else 1) / self.size + 0.5  # column and row
        reach = distance / self.size
        left, low = np.clip(np.floor(cells - reach).astype(int), 0, last).T
        right, high = np.clip(np.floor(cells + reach).astype(int), 0, last).T
        return self.walls[low, left] | self.walls[low, right] | self.walls[high, left] | self.walls[high, right]


@cache
def maze_of(env_id: str) -> Maze:
    """The maze of an id: OGBench's point, ant and humanoid mazes and antsoccer, and Gymnasium-Robotics' `PointMaze_…`.

    Raises ValueError for other ids, and the errors of `find_spec`.
    """
    spec = find_spec(env_id)
    if spec.id.startswith("PointMaze_"):
        # cells of some mazes are letters, which say where episodes start or end
        walls = np.array([[cell == 1 for cell in row] for row in spec.kwargs["maze_map"]])
        rows, columns = walls.shape
        return Maze(walls, 1.0, (0.5 - columns / 2, rows / 2 - 0.5), down=True)
    if not re.match(OGBENCH_MAZE, spec.id):
        raise ValueError(f"{spec.id} is none of the mazes whose walls are known: OGBench's and PointMaze_…")
    return ogbench_maze(world_of(spec.id))


def ogbench_maze(world: Any) -> Maze:
    """The maze of one of OGBench's environments, unwrapped."""
    x, y = world.ij_to_xy((0, 0))
    return Maze(world.maze_map == 1, world._maze_unit, (x, y), down=False)


def world_of(env_id: str, **options: Any) -> Any:
    """An environment without Gymnasium's wrappers, and without the temporary file that each maze leaves behind."""
    with quiet_mujoco(), tidy(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glfw misses a display, and Gymnasium dislikes the precision of bounds
        world: Any = gym.make(env_id, disable_env_checker=True, **options).unwrapped
        keep_spaces(world)
    return world
