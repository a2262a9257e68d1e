"""Names of datasets, and which of them are refused."""

import hashlib

import pytest
from dataset_files import d4rl_arrays, hdf5, refused, trajectories

from algos.data import check_name, load
from algos.errors import UserError


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("minari/mujoco/hopper/medium", "has no version"),
        ("ogbench/pointmaze-medium-navigate-singletask-v0", "rewards of single tasks from goals"),
        ("local/hopper-medium", "--list names all recipes"),
    ],
)
def test_a_name_that_is_nearly_right_is_refused_in_a_sentence(name, words):
    assert words in refused(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hopper-medium-v2", "takes d4rl/…"),
        ("minari/", "takes d4rl/…"),
        ("d4rl/hopper-medum-v2", "hopper-medium-v2"),
        ("d4rl/flow-merge-v0", "D4RL has no data for flow-merge-v0"),
        ("data/mine.npz", "there is no file data/mine.npz"),
        (".hdf5", "takes d4rl/…"),
    ],
)
def test_a_bad_name_is_refused_before_work_starts(name, words):
    with pytest.raises(UserError, match=words):
        check_name(name)


def test_the_digest_is_of_content(tmp_path):
    arrays = d4rl_arrays(trajectories(5, 4))
    first = load(hdf5(tmp_path / "a.hdf5", arrays))
    assert first.digest == load(hdf5(tmp_path / "b.hdf5", arrays)).digest
    plain = hashlib.sha256(first.rows.numpy().tobytes() + first.index.numpy().tobytes())
    assert first.digest == plain.hexdigest()
    arrays["rewards"][3] += 1
    assert first.digest != load(hdf5(tmp_path / "b.hdf5", arrays)).digest
