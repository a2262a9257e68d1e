"""D4RL's tasks: their files, their reference scores, and the environment of today in which to evaluate.

The table has all 187 ids that D4RL registers (Fu et al., "D4RL: Datasets for Deep Data-Driven Reinforcement Learning",
arXiv 2004.07219), including those without a file or without reference scores. The package `d4rl` is not needed.
"""

import csv
import difflib
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

SERVER = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
# how the environment of a dataset differs from the closest one of today, by the task's family
NOTES = {
    "halfcheetah": "the data is of Gym's v2 task with MuJoCo 2; nothing but the engine's version differs",
    "hopper": "the data is of Gym's v2 task with MuJoCo 2; v5 would also withhold the reward of 1 where it falls",
    "walker2d": "the data is of Gym's v2 task with MuJoCo 2; v5 would also change the friction of one foot",
    "ant": "the data is of Gym's v2 task with MuJoCo 2, which is said to have left all contact forces at 0",
    "antmaze": "not equivalent: torques, time step, goal radius, starts and goals differ from those of the data",
    "maze2d": "not equivalent: the point's model, observations and the goal's radius differ from those of the data",
    "kitchen": "not equivalent: it has 59 observations, goals apart and sensor noise; the data has 60 observations",
    "pen": "an episode does not end where the pen falls, as it did when the data was made",
    "door": "the data is of MuJoCo 2; the palm's distance counts in the dense reward as it does in the data",
    "hammer": "the data is of MuJoCo 2; the palm's distance counts in the dense reward as it does in the data",
    "relocate": "the data is of MuJoCo 2; the palm's distance counts in the dense reward as it does in the data",
}
# families whose observations differ from those of today's environment, so that no policy can be evaluated there
APART = ("antmaze", "maze2d", "kitchen")
# known faults of files
FAULTS = {
    "hopper-medium-expert-v0": "its first half is replay data and not data of the medium policy; v2 is right",
    **{
        f"antmaze-{kind}-v0": "its timeouts miss the resets, so some transitions lead elsewhere; v1 and v2 are right"
        for kind in ("umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
    },
}
# the arguments with which today's environment comes closest
OPTIONS: dict[str, dict[str, Any]] = {
    "ant": {"use_contact_forces": True}, "pen": {"max_episode_steps": 100},
    "door": {"d4rl_reward": True}, "hammer": {"d4rl_reward": True}, "relocate": {"d4rl_reward": True},
}  # fmt: skip
LIMITS = {
    "halfcheetah": 1000, "hopper": 1000, "walker2d": 1000, "ant": 1000, "antmaze": 1000, "antmaze-umaze": 700,
    "kitchen": 280, "pen": 100, "door": 200, "hammer": 200, "relocate": 200, "maze2d-open": 150, "maze2d-umaze": 300,
    "maze2d-medium": 600, "maze2d-large": 800,
    "maze2d-umaze-v0": 150, "maze2d-medium-v0": 250, "maze2d-large-v0": 600,
    "bullet-halfcheetah": 1000, "bullet-hopper": 1000, "bullet-walker2d": 1000, "bullet-ant": 1000,
}  # fmt: skip
LONG_HORIZONS = {"hammer": 600, "pen": 200, "relocate": 500, "door": 300}  # of Adroit's …-human-longhorizon-…


class D4RLTask(NamedTuple):
    """One id of D4RL, with its dataset and the environment of today that comes closest."""

    name: str
    file: str | None  # below the server's folder
    env_id: str | None  # the closest environment of today
    env_options: dict[str, Any]  # the arguments that make it
    low: float | None  # mean return of a random policy, which scores 0
    high: float | None  # mean return of an expert, which scores 100
    limit: int  # the greatest number of steps in an episode; 0 if it is not known
    note: str  # how today's environment differs
    fault: str  # a known fault of the file; empty if there is none

    @property
    def family(self) -> str:
        """The first part of the name, such as hopper."""
        return self.name.partition("-")[0]

    @property
    def url(self) -> str | None:
        """The address from which the file can be downloaded."""
        return SERVER + self.file if self.file else None

    @property
    def place(self) -> Path | None:
        """Where D4RL keeps the file."""
        return folder() / Path(self.file).name if self.file else None


def folder() -> Path:
    """The folder of D4RL's files: $D4RL_DATASET_DIR, or D4RL's own cache.

    Raises RuntimeError for a user without a home.
    """
    return Path(os.environ.get("D4RL_DATASET_DIR") or "~/.d4rl/datasets").expanduser()


@cache
def tasks() -> dict[str, D4RLTask]:
    """All tasks by name."""
    with open(Path(__file__).with_name("d4rl.csv"), encoding="utf-8", newline="") as file:
        return {row["task"]: _task(row) for row in csv.DictReader(file)}


def _task(row: dict[str, str]) -> D4RLTask:
    """The task of one row of the table."""
    name = row["task"]
    family, _, rest = name.partition("-")
    place = f"{family}-{rest.removeprefix('eval-').partition('-')[0]}"
    if family == "bullet" and rest.startswith("maze2d-"):
        place = rest.removesuffix("-v0")
    versioned = f"{place}-{name.rpartition('-')[2]}" if family == "maze2d" else place
    limit = LIMITS.get(versioned, LIMITS.get(place, LIMITS.get(family, 0)))
    options = OPTIONS.get(family, {})
    if "-longhorizon-" in name:
        limit = LONG_HORIZONS[family]
        options = options | {"max_episode_steps": limit}
    low, high = (float(row[key]) if row[key] else None for key in ("low", "high"))
    env_id, note = row["env_id"] or None, NOTES.get(family, "")
    return D4RLTask(name, row["file"] or None, env_id, options, low, high, limit, note, FAULTS.get(name, ""))


def find(name: str) -> D4RLTask:
    """The task of that name; raises ValueError, with the closest names, if there is none."""
    if name not in tasks():
        close = difflib.get_close_matches(name, tasks(), n=3, cutoff=0.4)
        hint = f"; the closest names are {', '.join(close)}" if close else ""
        raise ValueError(f"D4RL has no task {name!r}{hint}")
    return tasks()[name]


def of_file(path: str) -> D4RLTask | None:
    """The task whose file has the same name as this one, in any folder; the shortest if several tasks have it."""
    return _tasks_by_file().get(Path(path).name)


@cache
def _tasks_by_file() -> dict[str, D4RLTask]:
    """The tasks by the name of their file, whose last task by this order, the shortest, stays."""
    longest_first = sorted(tasks().values(), key=lambda task: len(task.name), reverse=True)
    return {Path(task.file).name: task for task in longest_first if task.file}
