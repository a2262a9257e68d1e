"""D4RL's datasets: files in D4RL's own cache, or anywhere under their own names."""

from dataclasses import replace
from pathlib import Path

from algos.data.download import download
from algos.data.files import is_file, read
from algos.data.record import Dataset
from algos.errors import UserError
from envs import d4rl


def load_d4rl(name: str, exact: bool, states: bool = False) -> Dataset:
    """One of D4RL's datasets, given by its name or by the path of its file; a missing file is downloaded."""
    task = d4rl.of_file(name) if is_file(name) else d4rl.find(name.removeprefix("d4rl/"))
    assert task and task.url  # see `check_name`
    try:
        path = Path(name) if is_file(name) else task.place
    except RuntimeError:
        raise UserError(f"--dataset {name}: this user has no home folder; set D4RL_DATASET_DIR to another") from None
    assert path
    if not path.exists():
        download(task.url, path, name)
    return replace(
        read(path, name, exact, task.limit, states),
        env_id=None if task.family in d4rl.APART else task.env_id,
        env_options=task.env_options,
        note=task.note,
        low=task.low,
        high=task.high,
        limit=task.limit,
        fault=task.fault,
        source=task.url,
    )
