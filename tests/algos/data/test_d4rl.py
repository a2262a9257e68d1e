"""D4RL's datasets, by their names and by their files' names."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from dataset_files import assert_same, d4rl_arrays, expected, flags, hdf5, put_d4rl, trajectories, transitions

from algos.data import load, validate
from algos.errors import UserError
from envs import d4rl

D4RL_FOLDER = d4rl.folder()  # the user's own, before each test gets another one


def test_true_next_observations_where_the_file_has_them():
    episodes = trajectories(5, 4, 1, 6, 9)
    name = put_d4rl("hopper-medium-v2", d4rl_arrays(episodes))
    data = load(name)
    assert_same(transitions(data), expected(episodes))
    assert data.trajectories().tolist() == [[0, 5], [5, 9], [9, 10], [10, 16], [16, 25]]
    assert len(data.rows) == 25 + 5  # one row more for each end
    assert len(load(name, exact_d4rl=True).rows) == 25
    assert len(load(name, exact_d4rl=True)) == 25 - 2 - 1  # two timeouts, and the last row


@pytest.mark.parametrize(
    ("name", "words"), [("hopper-medium-expert-v0", "replay data"), ("antmaze-large-play-v0", "v1")]
)
def test_a_known_fault_of_a_file_is_reported(name, words):
    assert any(words in line for line in validate(load(put_d4rl(name, d4rl_arrays(trajectories(5, 4))))))


def test_a_file_with_the_name_of_one_of_d4rls_has_its_limit_and_scores(tmp_path):
    """The limit tells episodes apart where the file has no timeouts."""
    arrays = d4rl_arrays(trajectories(600), "next_observations", "timeouts") | {"terminals": flags(600, 99, 599)}
    path = hdf5(tmp_path / Path(d4rl.find("kitchen-mixed-v0").file).name, arrays)
    data, same = load(path), load(put_d4rl("kitchen-mixed-v0", arrays))
    assert data.digest == same.digest and (data.limit, data.low, data.high) == (280, same.low, same.high)


def test_a_user_without_a_home_is_told_what_to_set_where_no_file_is_named(monkeypatch, tmp_path):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("D4RL_DATASET_DIR", raising=False)
    path = hdf5(tmp_path / Path(d4rl.find("hopper-medium-v2").file).name, d4rl_arrays(trajectories(5, 4)))
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(UserError, match=r"^--dataset d4rl/hopper-medium-v2: .* set D4RL_DATASET_DIR to another$"):
        load("d4rl/hopper-medium-v2")
    assert len(load(path)) == 9


@pytest.mark.skipif(not any(t.place and t.place.exists() for t in d4rl.tasks().values()), reason="needs D4RL's files")
@pytest.mark.parametrize("name", [t.name for t in d4rl.tasks().values() if t.place and t.place.exists()])
def test_real_files_of_d4rl(name, monkeypatch):
    """By D4RL's rules no row of a timeout is kept, and all rows of terminals but for one at the very end."""
    task = d4rl.find(name)
    monkeypatch.setenv("D4RL_DATASET_DIR", str(D4RL_FOLDER))
    data = load(f"d4rl/{name}", exact_d4rl=True)
    with h5py.File(D4RL_FOLDER / Path(task.file).name) as file:
        terminals = file["terminals"][:].astype(bool).ravel()
        timeouts = file["timeouts"][:].astype(bool).ravel() if "timeouts" in file else np.zeros_like(terminals)
    assert not timeouts[data.index].any()
    assert data.terminated[data.index].sum() == (terminals & ~timeouts)[:-1].sum()


def test_antmaze_keeps_runs_of_terminal_rows_each_with_the_next_row():
    arrays = d4rl_arrays(trajectories(12), "next_observations")
    arrays |= {"terminals": flags(12, 4, 5, 6).astype(np.float32), "timeouts": flags(12, 7)}
    arrays["rewards"] = arrays["terminals"].copy()
    data = load(put_d4rl("antmaze-umaze-v2", arrays))
    obs, _, reward, next_obs, terminated = transitions(data)
    rows = [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]
    np.testing.assert_array_equal(obs, arrays["observations"][rows])
    np.testing.assert_array_equal(next_obs, arrays["observations"][[r + 1 for r in rows]])
    assert reward.tolist() == terminated.tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert data.limit == 700 and data.score(0.5) == 50


def test_kitchen_without_timeouts_counts_to_280():
    arrays = d4rl_arrays(trajectories(600), "next_observations", "timeouts") | {"terminals": flags(600, 99, 599)}
    data = load(put_d4rl("kitchen-mixed-v0", arrays))
    # the 280th step after the terminal at 99 is left out; D4RL's count starts at one there
    for loaded, skipped in ((data, 379), (load(data.name, exact_d4rl=True), 378)):
        kept = sorted(set(range(599)) - {skipped})
        np.testing.assert_array_equal(transitions(loaded)[0], arrays["observations"][kept])


def test_a_d4rl_dataset_knows_its_environment_and_scores():
    data = load(put_d4rl("hopper-medium-v2", d4rl_arrays(trajectories(5, 4))))
    assert (data.env_id, data.limit) == ("Hopper-v4", 1000)
    assert data.source == "http://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5"
    assert "v5" in data.note and data.rewarded
    assert data.score(1000.0) == pytest.approx(31.3489, abs=1e-4)
    np.testing.assert_allclose(data.score(np.array([0.0, 3234.3])), [0.6229, 100], atol=1e-4)


def test_a_file_of_ones_own_may_lie_in_a_folder_named_d4rl(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put_d4rl("hopper-medium-v2", d4rl_arrays(trajectories(5, 4)))
    hdf5(tmp_path / "d4rl" / "mine.hdf5", d4rl_arrays(trajectories(5, 4)))
    assert len(load("d4rl/mine.hdf5")) == 9 and load("d4rl/hopper_medium-v2.hdf5").limit == 1000
