"""Tables for figures of a maze: the ways of a policy, and the values of goals over the maze."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from algos.evaluate import Ways
from envs.mazes import Maze

POINTS = 4  # along the edge of a cell, in maps of values
PACE = 0.2  # the length of a point's step
SMOOTH = 30  # points over which values are averaged
GOAL = -1  # the step of the row that holds a goal


def ways_table(ways: Ways, keys: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The first episode of each task in an evaluation, and before it the goal: [seed, …], task, step, x, y.

    `keys` name each run by its seed and varied hyperparameters.
    """
    frames = []
    for run, key in enumerate(keys):
        for task, goal, way in zip(ways.tasks, ways.goals[run], ways.obs[run], strict=True):
            xy = np.concatenate([goal[None, :2], way[np.isfinite(way[:, 0]), :2]])
            step = np.arange(len(xy)) + GOAL
            frames.append(pd.DataFrame({**key, "task": task, "step": step, "x": xy[:, 0], "y": xy[:, 1]}))
    return pd.concat(frames, ignore_index=True)


@torch.no_grad()
def values_table(ways: Ways, keys: Sequence[dict[str, Any]], agent: Any, maze: Maze) -> pd.DataFrame:
    """The agent's `value_of` for the goal of each task, over the free cells of the maze: [seed, …], task, x, y, value.

    All numbers of a state but its position are those of the first state of the task's episode.
    """
    frames = []
    like, xy = next(agent.parameters()), maze.points(POINTS)
    for number, task in enumerate(ways.tasks):
        obs = np.repeat(ways.obs[:, number, :1], len(xy), 1)
        obs[..., :2] = xy
        goal = np.repeat(ways.goals[:, number, None], len(xy), 1)
        values = agent.value_of(*(torch.as_tensor(x).to(like) for x in (obs, goal))).double().cpu().numpy()
        for key, value in zip(keys, values, strict=True):
            frames.append(pd.DataFrame({**key, "task": task, "x": xy[:, 0], "y": xy[:, 1], "value": value}))
    return pd.concat(frames, ignore_index=True)


@torch.no_grad()
def order_of_values(
    ways: Ways, value_of: Callable[[Tensor, Tensor], Tensor], maze: Maze, ahead: int, like: Tensor
) -> NDArray[np.float64]:
    """The share of points on shortest ways to the goals whose value is higher `ahead` steps later: [R].

    Ways go from the starts of the tasks in the last evaluation, at the pace of a point; values are means over the last
    30 points, as in OTA's diagnostic. It is NaN for a run whose ways have at most 30 + `ahead` points.
    """
    rising: list[list[float]] = [[] for _ in ways.obs]
    for run, task in np.ndindex(ways.obs.shape[:2]):
        way = maze.way(ways.obs[run, task, 0, :2], ways.goals[run, task, :2], PACE)
        if len(way) <= ahead + SMOOTH:
            continue
        obs = torch.as_tensor(way).to(like).expand(len(ways.obs), -1, -1)
        goal = torch.as_tensor(ways.goals[run, task]).to(like).expand_as(obs)
        values = value_of(obs, goal)[run].double().cpu().numpy()
        smooth = np.convolve(values, np.full(SMOOTH, 1 / SMOOTH), "valid")
        rising[run] += (smooth[ahead:] > smooth[:-ahead]).tolist()
    return np.array([np.mean(flags) if flags else np.nan for flags in rising])
