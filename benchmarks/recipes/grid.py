"""The free cells of a maze, and the shortest ways between them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Cell = tuple[int, int]  # row, column

MOVES = ((-1, 0), (0, -1), (1, 0), (0, 1))  # up, left, down, right: OGBench's order


class Grid:
    """The free cells of a maze and the shortest ways between all of them; `walls` is [rows, columns].

    `near[cell]` are the free neighbours of a cell, in the order of `moves`. `vertices` are the free cells that are no
    corridor; in a corridor, the only way is straight on. `distance[goal][cell]` is the number of steps from cell to
    goal, and `towards[goal][cell]` the next cell on the way, which at the goal is the goal itself; of several shortest
    ways, it is the one whose move comes first in `moves`. Both lack the cells from which there is no way to the goal.
    """

    def __init__(self, walls: NDArray[np.bool_], moves: Sequence[tuple[int, int]] = MOVES):
        self.free: list[Cell] = [(int(i), int(j)) for i, j in np.argwhere(~walls)]
        free = set(self.free)
        near = {(i, j): [(i + di, j + dj) for di, dj in moves if (i + di, j + dj) in free] for i, j in self.free}
        self.near: dict[Cell, list[Cell]] = near
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


def pick(rng: np.random.Generator, cells: Sequence[Cell]) -> Cell:
    """A random cell."""
    return cells[int(rng.integers(len(cells)))]
