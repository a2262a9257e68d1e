"""OGBench's datasets: npz files in OGBench's own cache."""

from dataclasses import replace
from pathlib import Path

from algos.data.download import download
from algos.data.files import read
from algos.data.record import Dataset

SERVER = "https://rail.eecs.berkeley.edu/datasets/ogbench/"


def cached(name: str) -> Path:
    """The place of the file of the dataset `ogbench/…` in OGBench's cache."""
    return Path.home() / ".ogbench" / "data" / f"{name.removeprefix('ogbench/')}.npz"


def load_ogbench(name: str) -> Dataset:
    """The dataset `ogbench/…`; a missing file is downloaded."""
    stem = name.removeprefix("ogbench/")
    path, url = cached(name), f"{SERVER}{stem}.npz"
    if not path.exists():
        download(url, path, name)
    words = stem.removesuffix("-val").split("-")
    env_id = "-".join([*words[:-2], words[-1]]) if len(words) > 2 else None  # without navigate, stitch, play, ...
    return replace(read(path, name), env_id=env_id, source=url)
