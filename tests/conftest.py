"""Fixtures and settings that several tests use."""

import functools
import gc
import os
import shutil
import subprocess

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test processes share two cores

import importlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from algos.policy import check_policies
from algos.run_folder import folder_of, versions
from algos.summary import Summary
from algos.tables import Tables

gc.disable()  # until all tests are imported, see `pytest_runtestloop`
torch.set_num_threads(1)
DRAW, SHOW = Summary.draw, Tables.show
WITH_GPU = torch.cuda.is_available()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    """What has been imported stays, so that no search for what is left over need look at it."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def tables(tmp_path_factory):
    """Keeps the tables that tests make in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEEDBED_TABLES", str(tmp_path_factory.mktemp("tables")))
        yield


@pytest.fixture(scope="session", autouse=True)
def quick():
    """Runs in this process leave out what takes longer than they do, but where it is looked at.

    They draw no curve, write nothing for TensorBoard, try no policies, do not wait for the disk, as tests end processes
    and not the system, and read the versions of packages once. This process may use all memory.
    """
    found = functools.cache(versions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Summary, "draw", lambda *_: None)
        patch.setattr(Tables, "show", lambda *_: None)
        patch.setattr("os.fsync", lambda file: None)
        patch.setattr("algos.run.check_policies", lambda *_: None)
        patch.setattr("algos.run_folder.versions", lambda: dict(found()))
        patch.setattr("algos.cli.limit_memory", lambda: None)
        yield


@pytest.fixture
def curves(monkeypatch):
    """Runs draw their curves."""
    monkeypatch.setattr(Summary, "draw", DRAW)


@pytest.fixture
def policies_are_tried(monkeypatch):
    """Runs try their policies before they learn."""
    monkeypatch.setattr("algos.run.check_policies", check_policies)


@pytest.fixture
def tensorboard(monkeypatch):
    """Runs write for TensorBoard."""
    monkeypatch.setattr(Tables, "show", SHOW)


@pytest.fixture(autouse=True)
def same_numbers():
    """A test draws the same numbers from torch whichever ran before it."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes milliseconds, for kinds of device that are absent
    if WITH_GPU:
        torch.cuda.manual_seed_all(0)


@pytest.fixture
def float64():
    """Everything in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def train(tmp_path):
    """Runs a script's main in this process: train("sac", seeds=("0",), …) -> Result."""

    def run(script: str, out: str = "out", **overrides) -> "Result":
        module = importlib.import_module(script)
        args = module.Args(**{"quiet": True, "out": tmp_path / out, "device": "cpu", **overrides})
        code = 0
        try:
            module.main(args)
        except SystemExit as stop:
            code = stop.code
        return Result(folder_of(args, script), code)

    return run


@pytest.fixture
def killed_at(monkeypatch):
    """A context in which a run breaks off after a step, as by a kill: killed_at(14)."""
    from scripts import breaking_off

    return functools.partial(breaking_off, monkeypatch)


@pytest.fixture
def git(tmp_path):
    """A function that runs git in the folder of the test, whatever the user's settings, and gives what it prints."""
    if not shutil.which("git"):
        pytest.skip("needs git")

    def run(*words: str) -> str:
        settings = ("user.name=a", "user.email=a@b", "commit.gpgsign=false", "core.hooksPath=/dev/null")
        given = [word for setting in settings for word in ("-c", setting)]
        command = ["git", *given, *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    return run


@pytest.fixture
def bare_runs(monkeypatch):
    """Runs without versions and commit, which take longer than a few updates."""
    monkeypatch.setattr("algos.run_folder.versions", dict)
    monkeypatch.setattr("algos.run_folder.git_commit", lambda *_: None)


@pytest.fixture
def train_short(train, bare_runs, tmp_path, monkeypatch):
    """Runs a script of scripts.py with its short arguments: train_short("iql", seeds=("0",), …) -> Result."""
    from offline_data import write_hdf5
    from scripts import short

    write_hdf5(tmp_path / "data.hdf5")
    write_hdf5(tmp_path / "goals.hdf5", obs_size=2, act_size=2)
    waves = {name: np.sin(np.arange(600) / period) for name, period in (("a", 9), ("b", 17), ("c", 50))}
    pd.DataFrame(waves).to_csv(tmp_path / "series.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stream_td.predictions", lambda *_: b"")

    def run(script: str, **overrides) -> "Result":
        return train(script.split()[0], **short(script, **overrides))

    return run


@pytest.fixture
def short_ways_to_goals(monkeypatch):
    """Episodes with goals have 1,000 steps by themselves, of which the first show all that is looked at."""
    from scripts import EVALUATED_WITH_GOALS

    from envs.make import find_spec

    monkeypatch.setattr(find_spec(EVALUATED_WITH_GOALS["env_id"]), "max_episode_steps", 20)


class Result:
    """The files that a run left in its folder."""

    def __init__(self, folder: Path, code: int):
        self.folder, self.code = folder, code
        self.config = json.loads((folder / "config.json").read_text())

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The tensors of the last checkpoint."""
        return load_file(max((self.folder / "checkpoint").glob("*.safetensors")))

    @property
    def agent(self) -> dict[str, torch.Tensor]:
        """The agent's tensors in the last checkpoint."""
        return {n.removeprefix("agent/"): t for n, t in self.parameters.items() if n.startswith("agent/")}

    @property
    def eval(self) -> pd.DataFrame:
        return pd.read_parquet(self.folder / "eval.parquet")

    @property
    def log(self) -> pd.DataFrame:
        """train.parquet without seconds."""
        table = pd.read_parquet(self.folder / "train.parquet")
        return table[~table["metric"].str.endswith("seconds")].reset_index(drop=True)
