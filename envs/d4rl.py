"""D4RL's tasks as facts: files, reference scores and what to evaluate on today. The package `d4rl` is not needed.

From D4RL's registrations (Fu et al., "D4RL: Datasets for Deep Data-Driven Reinforcement Learning", arXiv 2004.07219):
187 ids, those that it registers without a file or without reference scores included.
"""

import csv
import difflib
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

SERVER = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
# what differs between the environment in which a dataset was made and the closest one of today, by the task's family
NOTES = {
    "halfcheetah": "the data is of Gym's v2 task with MuJoCo 2; nothing but the engine's version differs",
    "hopper": "the data is of Gym's v2 task with MuJoCo 2; v5 would also withhold the reward of 1 of a fall's step",
    "walker2d": "the data is of Gym's v2 task with MuJoCo 2; v5 would also change the friction of one foot",
    "ant": "the data is of Gym's v2 task with MuJoCo 2, which is said to have left all contact forces at 0",
    "antmaze": "not equivalent: torques, time step, goal radius, starts and goals differ from those of the data",
    "maze2d": "not equivalent: the point's model, observations and the goal's radius differ from those of the data",
    "kitchen": "not equivalent: 59 observations and goals apart, where the data has 60 in one, and sensor noise",
    "pen": "no end where the pen falls, with which the data was made",
    "door": "the data is of MuJoCo 2; the palm's distance counts in the dense reward as it does in the data",
    "hammer": "the data is of MuJoCo 2; the palm's distance counts in the dense reward as it does in the data",
    "relocate": "the data is of MuJoCo 2; the palm's distance counts in the dense reward as it does in the data",
}
# families whose data has other observations than today's environment, so that nothing can be evaluated there
APART = ("antmaze", "maze2d", "kitchen")
# what is known to be wrong with a file
FAULTS = {
    "hopper-medium-expert-v0": "its first half is replay data, not of the medium policy; v2 is right",
    **{
        f"antmaze-{kind}-v0": "its timeouts miss the resets, so some transitions lead elsewhere; v1 and v2 are right"
        for kind in ("umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
    },
}
# arguments with which that environment comes closest
OPTIONS: dict[str, dict[str, Any]] = {
    "ant": {"use_contact_forces": True}, "pen": {"max_episode_steps": 100},
    "door": {"d4rl_reward": True}, "hammer": {"d4rl_reward": True}, "relocate": {"d4rl_reward": True},
}  # fmt: skip
LIMITS = {
    "halfcheetah": 1000, "hopper": 1000, "walker2d": 1000, "ant": 1000, "antmaze": 1000, "antmaze-umaze": 700,
    "kitchen": 280, "pen": 100, "door": 200, "hammer": 200, "relocate": 200, "maze2d-open": 150, "maze2d-umaze": 300,
    "maze2d-medium": 600, "maze2d-large": 800,
}  # fmt: skip
Returns = TypeVar("Returns", float, NDArray[np.float64])


class Task(NamedTuple):
    """One id of D4RL. `file` is below the server's folder, `limit` the most steps of an episode, 0 if not known.

    `note` says what differs in the environment of today, `fault` what is wrong with the file.
    """

    name: str
    file: str | None
    env_id: str | None  # the closest environment of today
    env_options: dict[str, Any]  # what it is made with
    low: float | None  # mean return of a random policy, which scores 0
    high: float | None  # mean return of an expert, which scores 100
    limit: int
    note: str
    fault: str

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]

    @property
    def url(self) -> str | None:
        return SERVER + self.file if self.file else None

    @property
    def place(self) -> Path | None:
        """Where D4RL keeps the file."""
        return folder() / Path(self.file).name if self.file else None


def folder() -> Path:
    """$D4RL_DATASET_DIR, or D4RL's own cache."""
    return Path(os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets").expanduser()


@cache
def tasks() -> dict[str, Task]:
    """All of them by name."""
    with open(Path(__file__).with_name("d4rl.csv"), newline="") as file:
        return {row["task"]: _task(row) for row in csv.DictReader(file)}


def _task(row: dict[str, str]) -> Task:
    name = row["task"]
    family, _, rest = name.partition("-")
    limit = LIMITS.get(f"{family}-{rest.partition('-')[0]}", LIMITS.get(family, 0))
    low, high = (float(row[key]) if row[key] else None for key in ("low", "high"))
    env_id, options, note = row["env_id"] or None, OPTIONS.get(family, {}), NOTES.get(family, "")
    return Task(name, row["file"] or None, env_id, options, low, high, limit, note, FAULTS.get(name, ""))


def find(name: str) -> Task:
    """The task of that name; raises ValueError, with the closest names, if there is none."""
    if name not in tasks():
        close = difflib.get_close_matches(name, tasks(), n=3, cutoff=0.4)
        hint = f"; the closest names are {', '.join(close)}" if close else ""
        raise ValueError(f"D4RL has no task {name!r}{hint}")
    return tasks()[name]


def of_file(path: str) -> Task | None:
    """The task whose file has that name, wherever it lies; of several, the one with the shortest name."""
    found = [task for task in tasks().values() if task.file and Path(task.file).name == Path(path).name]
    return min(found, key=lambda task: len(task.name), default=None)


def score(name: str, returns: Returns) -> Returns:
    """Normalised scores of mean undiscounted returns: 0 is a random policy, 100 an expert.

    Raises ValueError if D4RL has no such task, or no reference scores of it.
    """
    task = find(name)
    if task.low is None or task.high is None:
        raise ValueError(f"D4RL has no reference scores of {name}")
    return 100 * (returns - task.low) / (task.high - task.low)
