"""Datasets for methods with goals: their states, their validation episodes, and whether an environment fits them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algos.cli import env_errors
from algos.data import Dataset, is_file, load
from algos.data.ogbench import cached
from algos.errors import UserError, warn
from envs import d4rl, plain_id
from envs.goals import goal_tasks, make_goal_vec
from envs.mazes import maze_of

WITH_GOALS = r"(AntMaze_|Fetch|Hand(Reach|Manipulate)|FrankaKitchen)"  # Gymnasium-Robotics' other ids with goals
GOAL_PARTS = {"observation", "achieved_goal", "desired_goal"}
MOST_INSIDE = 0.1  # share of positions that may lie inside the walls of a maze


def load_states(name: str, exact_d4rl: bool = False, env_id: str = "") -> Dataset:
    """A dataset whose observations are states alone, without the goals that Gymnasium-Robotics puts before them.

    Where observations have the parts of its environments with goals, states are the part `observation`.
    `env_id` says of which environment they are where the dataset does not. Where the next states of terminal
    transitions are unknown, such transitions are left out; in D4RL's antmaze none is terminal, as its episodes go on
    where the goal of their rewards is reached. Raises UserError where goals cannot be told from states.
    """
    data = load(name, exact_d4rl)
    if re.match(WITH_GOALS, plain_id(data.env_id or "")):
        raise UserError(f"--dataset {name} has observations of {data.env_id}, in which goals and states are not apart")
    if family_in_d4rl(name) == "antmaze":
        data.terminated.zero_()
    elif not data.true_ends:
        data = data.where((data.terminated[data.index] == 0).numpy())
        if not len(data):
            raise UserError(f"--dataset {name} has no transition whose next state is known")
    if set(data.parts) >= GOAL_PARTS:
        names, size = list(data.parts), data.parts["observation"]
        start = sum(data.parts[name] for name in names[: names.index("observation")])
    elif plain_id(data.env_id or env_id).startswith("PointMaze_") and data.obs_size == 8:
        start = size = 4
    else:
        return data
    rows = torch.cat([data.rows[:, start : start + size], data.rows[:, data.obs_size :]], 1)
    return replace(data, rows=rows, obs_size=size, parts={"observation": size})


def validation_data(name: str, exact_d4rl: bool = False, env_id: str = "") -> Dataset | None:
    """The validation episodes of a dataset, as `load_states` gives them; None if there are none on this machine."""
    from minari.storage import get_dataset_path

    if is_file(name):
        path = Path(name)
        other = str(path.with_name(f"{path.stem}-val{path.suffix}"))
        return load_states(other, exact_d4rl, env_id) if Path(other).is_file() else None
    if name.startswith("ogbench/"):  # it is downloaded with the dataset, but never later
        return load_states(f"{name}-val") if cached(f"{name}-val").exists() or not cached(name).exists() else None
    other = "-val-v".join(name.rsplit("-v", 1))
    there = name.startswith("local/") and get_dataset_path(other).exists()
    return load_states(other, env_id=env_id) if there else None


def family_in_d4rl(name: str) -> str:
    """The family of a dataset of D4RL, such as antmaze; empty for others."""
    task = d4rl.of_file(name) if is_file(name) else d4rl.tasks().get(name.removeprefix("d4rl/"))
    return task.family if task else ""


def has_maze(env_id: str) -> bool:
    """Whether an environment is a maze whose states begin with a position; UserError if a package is missing."""
    try:
        maze_of(env_id)
    except ModuleNotFoundError as error:
        raise UserError(str(error)) from None
    except ValueError:
        return False
    return True


def check_maze(data: Dataset, env_id: str) -> None:
    """Raises UserError for an environment with another maze than the dataset's, by its environment or its positions."""
    named = bool(data.env_id) and has_maze(str(data.env_id))
    if not has_maze(env_id):
        if named:
            raise UserError(f"--env-id {env_id} is no maze, and --dataset {data.name} is that of {data.env_id}")
        return
    maze = maze_of(env_id)
    if named and not np.array_equal(maze_of(str(data.env_id)).walls, maze.walls):
        raise UserError(f"--env-id {env_id} is not the maze of --dataset {data.name}, which is that of {data.env_id}")
    inside = maze.near_wall(data.obs[:, :2].double().cpu().numpy(), 0.0).mean()
    if inside > MOST_INSIDE:
        raise UserError(
            f"--env-id {env_id} is not the maze of --dataset {data.name}: {inside:.0%} of its states lie inside walls"
        )


def check_positions(data: Dataset, name: str, instead: str) -> None:
    """Raises UserError if the states of the dataset of that name do not begin with a position; `instead` is advice."""
    if data.obs_size < 2:
        raise UserError(f"--dataset {data.name} has states of one number, which is no position: {instead}")
    family = family_in_d4rl(name)
    known = family in ("antmaze", "maze2d")
    if not (family or data.env_id):
        warn(f"nothing tells whether states of --dataset {data.name} begin with a position: --env-id would")
    elif not known and (family or not has_maze(str(data.env_id))):
        raise UserError(
            f"--dataset {data.name} has states of {family or data.env_id}, whose first two numbers are no position: "
            f"{instead}"
        )
    elif "antsoccer" in (data.env_id or ""):
        raise UserError(
            f"--dataset {data.name}: a state begins with the ant's position, and its goal is the ball's: {instead}"
        )


def check_goals(env_id: str, dataset: str = "", options: dict[str, Any] | None = None) -> list[str]:
    """The names of an environment's tasks; raises UserError if it has no goals."""
    with env_errors(env_id):
        try:
            return goal_tasks(env_id, **options or {})
        except (ModuleNotFoundError, ValueError) as error:
            place = f"--dataset {dataset} is evaluated in {env_id}" if dataset else f"--env-id {env_id}"
            raise UserError(f"{place}: {error}") from None


def sizes_of(env_id: str, tasks: list[str], options: dict[str, Any]) -> tuple[Any, int]:
    """The space of an environment's observations, and the size of its goals."""
    with env_errors(env_id):
        venv = make_goal_vec(env_id, tasks[:1], **options)
        size = venv.reset(seed=0)[1]["goal"].shape[-1]
        venv.close()
    return venv.single_observation_space, size
