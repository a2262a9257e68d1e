"""Finds a dataset by its name."""

import contextlib
import difflib
import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path

from algos.data.d4rl import load_d4rl
from algos.data.files import is_file, read
from algos.data.minari import load_minari
from algos.data.ogbench import cached, load_ogbench
from algos.data.record import Dataset
from algos.errors import UserError, describe
from envs import d4rl
from envs.make import OGBENCH

GOALS = "each episode has a goal there, which observations do not contain"


def load(name: str, exact_d4rl: bool = False, states: bool = False) -> Dataset:
    """The dataset with that name or path; raises UserError if there is none, or if it is damaged.

    Transitions have the true next observations if a file of D4RL's layout stores them. `exact_d4rl` gives the
    transitions of D4RL's own `qlearning_dataset` instead: their next observation is the next row's, and timeouts are
    left out. With `states`, the dataset has the simulator's states if an HDF5 file or Minari's infos store them
    (qpos and qvel).
    """
    check_name(name, exact_d4rl)
    check_made(name)
    kind = name.partition("/")[0]
    try:
        if d4rl.of_file(name) if is_file(name) else kind == "d4rl":
            data = load_d4rl(name, exact_d4rl, states)
        elif is_file(name):
            data = read(Path(name), name, exact_d4rl, states=states, own=True)
        elif kind == "ogbench":
            data = load_ogbench(name)
        else:
            data = load_minari(name, states)
    except UserError:
        raise
    except Exception as error:  # h5py, zipfile, NumPy and Minari have many kinds for a damaged file
        raise UserError(
            f"--dataset {name} cannot be read: it is damaged, has another format or does not fit into memory "
            f"({describe(error)})"
        ) from None
    digest = hashlib.sha256(data.rows.numpy().data)
    digest.update(data.index.numpy().data)
    note = GOALS if re.match(OGBENCH, data.env_id or "") else data.note
    return replace(data, digest=digest.hexdigest(), note=note)


def check_name(name: str, exact_d4rl: bool = False) -> None:
    """Raises UserError if no dataset can have that name, or if it is the path of a file that does not exist."""
    kind, _, rest = name.partition("/")
    if exact_d4rl and not (is_file(name) or kind == "d4rl"):
        raise UserError(f"--exact-d4rl is for files of D4RL's layout, which {name} is not")
    if is_file(name):
        if not os.path.isfile(name):
            raise UserError(f"--dataset: there is no file {name}")
    elif kind == "d4rl":
        try:
            task = d4rl.find(rest)
        except ValueError as error:
            raise UserError(f"--dataset: {error}") from None
        if not task.file:
            raise UserError(f"--dataset: D4RL has no data for {rest}")
    elif kind in ("minari", "ogbench", "local") and rest and not re.fullmatch(r"\w[\w.+-]*(/\w[\w.+-]*)*", rest):
        raise UserError(f"--dataset: {name!r} is no dataset's name; they look like {kind}/hopper-medium-v0")
    elif kind == "minari" and rest and not re.search(r"-v\d+$", rest):
        raise UserError(f"--dataset: {name} has no version; it should end like minari/mujoco/hopper/medium-v0")
    elif kind == "ogbench" and "singletask" in rest:
        raise UserError(
            f"--dataset: {name} is not supported: OGBench computes the rewards of single tasks from goals, and its "
            "files do not have them"
        )
    elif kind not in ("minari", "ogbench", "local") or not rest:
        known = re.fullmatch(r"\w[\w.+-]*", name) and os.path.exists(place_of(name))
        hint = f"; did you mean local/{name}?" if known else ""
        raise UserError(
            "--dataset takes d4rl/…, minari/…, ogbench/…, local/…, or the path of a .hdf5 or .npz file, got "
            f"{name!r}{hint}"
        )


def place_of(name: str) -> Path:
    """The folder of the dataset local/<name>, which may not have been made."""
    from minari.storage import get_dataset_path

    try:
        return Path(get_dataset_path(f"local/{name}"))
    except OSError as error:  # it makes the folder of all datasets
        raise UserError(f"MINARI_DATASETS_PATH: {error}") from None


def is_downloaded(name: str) -> bool:
    """Whether nothing of a dataset has to be downloaded before it is loaded; True too for names that are refused."""
    from minari.storage import get_dataset_path

    kind, _, rest = name.partition("/")
    with contextlib.suppress(UserError, ValueError, RuntimeError, OSError):  # no such name, or no folder for data
        if kind == "d4rl":
            place = d4rl.find(rest).place
            return place is None or place.exists()
        if kind == "ogbench":
            return cached(name).exists()
        if kind == "minari":
            return Path(get_dataset_path(rest)).exists()
    return True


def check_made(name: str) -> None:
    """Raises UserError if the name is `local/…` and this dataset has not been made yet."""
    if name.startswith("local/") and not (path := place_of(name.removeprefix("local/"))).exists():
        recipe = name.removeprefix("local/").replace("-val-v", "-v")
        there = [found.name for found in path.parent.glob("*-v*")]
        close = difflib.get_close_matches(path.name, there, n=1, cutoff=0.9)
        hint = f"; or did you mean {name.rpartition('/')[0]}/{close[0]}?" if close else ""
        raise UserError(
            f"--dataset: {name} is not in {path}; if there is a recipe of it, make it: python -m benchmarks.collect "
            f"{recipe} (--list names all recipes){hint}"
        )
