"""Fixtures that all tests of datasets use."""

import pytest
from dataset_files import d4rl_arrays, hdf5, trajectories

from algos.data import Dataset, load


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Datasets lie in a folder of the test's own, and pieces are so small that all arrays have several."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "d4rl"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("algos.data.record.CHUNK", 4)


@pytest.fixture
def data(tmp_path) -> Dataset:
    return load(hdf5(tmp_path / "data.hdf5", d4rl_arrays(trajectories(5, 4, 1, 6, 9))))
