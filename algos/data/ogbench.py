"""OGBench's datasets: npz files in OGBench's own cache, or in another folder."""

import os
from dataclasses import replace
from pathlib import Path

from algos.data.download import download
from algos.data.files import read
from algos.data.record import Dataset
from algos.errors import UserError

SERVER = "https://rail.eecs.berkeley.edu/datasets/ogbench/"


def cached(name: str) -> Path:
    """The place of the file of the dataset `ogbench/…`: in OGBENCH_DATASET_DIR, or in OGBench's cache."""
    folder = os.environ.get("OGBENCH_DATASET_DIR") or "~/.ogbench/data"
    try:
        place = Path(folder).expanduser()
    except RuntimeError:
        raise UserError(f"--dataset {name}: this user has no home folder; set OGBENCH_DATASET_DIR to another") from None
    return place / f"{name.removeprefix('ogbench/')}.npz"


def load_ogbench(name: str) -> Dataset:
    """The dataset `ogbench/…`; a missing file is downloaded."""
    stem = name.removeprefix("ogbench/")
    path, url = cached(name), f"{SERVER}{stem}.npz"
    if not path.exists():
        download(url, path, name)
    words = stem.removesuffix("-val").split("-")
    env_id = "-".join([*words[:-2], words[-1]]) if len(words) > 2 else None  # without navigate, stitch, play, ...
    return replace(read(path, name), env_id=env_id, source=url)
