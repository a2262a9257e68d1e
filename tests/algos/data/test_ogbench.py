"""OGBench's datasets."""

from pathlib import Path

import numpy as np
import pytest
from dataset_files import assert_same, expected, npz, ogbench_arrays, trajectories, transitions

from algos.data import load
from algos.data.ogbench import cached
from algos.errors import UserError


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("validation", ["", "-val"])
def test_ogbench(tmp_path, validation, cut):
    episodes = trajectories(5, 4, 6, ends="timeout")
    arrays = ogbench_arrays(episodes)
    if cut:
        arrays["terminals"][-1] = False
    folder = tmp_path / ".ogbench" / "data"
    folder.mkdir(parents=True)
    npz(folder / f"pointmaze-medium-navigate-v0{validation}.npz", arrays | {"qpos": np.zeros((18, 2))})
    data = load(f"ogbench/pointmaze-medium-navigate-v0{validation}")
    assert_same(transitions(data), expected(episodes))
    assert "each episode has a goal there" in data.note
    assert data.env_id == "pointmaze-medium-v0" and data.source.endswith(f"navigate-v0{validation}.npz")
    assert data.trajectories().tolist() == [[0, 5], [5, 9], [9, 15]]


def test_the_folder_may_be_another(monkeypatch, tmp_path):
    monkeypatch.setenv("OGBENCH_DATASET_DIR", str(tmp_path / "other"))
    assert cached("ogbench/scene-play-v0") == tmp_path / "other" / "scene-play-v0.npz"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(UserError, match=r"--dataset ogbench/scene-play-v0: .* set OGBENCH_DATASET_DIR to another"):
        cached("ogbench/scene-play-v0")
