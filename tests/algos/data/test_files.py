"""Files of D4RL's and OGBench's layouts become datasets, and bad files are refused."""

import io
import warnings
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from dataset_files import (
    assert_same,
    d4rl_arrays,
    expected,
    flags,
    hdf5,
    in_minari,
    npz,
    ogbench_arrays,
    qlearning_rows,
    refused,
    trajectories,
    transitions,
)

from algos.data import load, validate
from algos.data.files import read


def test_a_toy_file_becomes_transitions(tmp_path):
    arrays = d4rl_arrays(trajectories(8), "next_observations") | {"terminals": flags(8, 2), "timeouts": flags(8, 5)}
    data = load(hdf5(tmp_path / "toy.hdf5", arrays))
    obs, action, reward, next_obs, terminated = transitions(data)
    rows = [0, 1, 2, 3, 4, 6]
    np.testing.assert_array_equal(obs, arrays["observations"][rows])
    np.testing.assert_array_equal(action, arrays["actions"][rows])
    np.testing.assert_array_equal(reward, arrays["rewards"][rows])
    np.testing.assert_array_equal(next_obs, arrays["observations"][[r + 1 for r in rows]])
    assert terminated.tolist() == [0, 0, 1, 0, 0, 0]
    assert data.trajectories().tolist() == [[0, 3], [3, 5], [5, 6]]
    np.testing.assert_allclose(data.returns(), [reward[:3].sum(), reward[3:5].sum(), reward[5]], rtol=1e-6)


def test_ends_of_the_task_are_kept_where_a_timeout_is_marked_too_and_at_the_end_of_a_file(tmp_path):
    """Their next observations do not count, so that the next row need not hold them; D4RL's own loader drops them."""
    arrays = d4rl_arrays(trajectories(8), "next_observations")
    arrays |= {"terminals": flags(8, 2, 7), "timeouts": flags(8, 2, 5, 7)}
    path = hdf5(tmp_path / "toy.hdf5", arrays)
    data = load(path)
    obs, _, reward, next_obs, terminated = transitions(data)
    rows = [0, 1, 2, 3, 4, 6, 7]
    np.testing.assert_array_equal(obs, arrays["observations"][rows])
    np.testing.assert_array_equal(reward, arrays["rewards"][rows])
    assert terminated.tolist() == [0, 0, 1, 0, 0, 0, 1] and np.isfinite(next_obs).all()
    assert data.trajectories().tolist() == [[0, 3], [3, 5], [5, 7]] and not validate(data)
    np.testing.assert_array_equal(next_obs[-1], obs[-1])  # any number that is like others
    assert transitions(load(path, exact_d4rl=True))[4].tolist() == [0, 0, 0, 0, 0]
    assert len(read(Path(path), "d4rl/flow-ring-random-v0")) == 5  # whose limit is not known


def test_random_files_become_the_transitions_of_d4rl(tmp_path):
    rng = np.random.default_rng(2)
    for i in range(8):
        arrays = d4rl_arrays(trajectories(23, seed=i))
        arrays |= {"terminals": rng.random(23) < 0.2, "timeouts": rng.random(23) < 0.2}
        rows = np.array(qlearning_rows(arrays["terminals"], arrays["timeouts"], 0))
        got = transitions(load(hdf5(tmp_path / "file.hdf5", arrays), exact_d4rl=True))
        wanted = [arrays[key][rows] for key in ("observations", "actions", "rewards", "terminals")]
        assert_same([*got[:3], got[4]], wanted)
        np.testing.assert_array_equal(got[3], arrays["observations"][rows + 1])


def test_an_unmarked_break_still_has_its_true_next_observation(tmp_path):
    """A dumped replay buffer does not mark all of its timeouts."""
    episodes = trajectories(5, 4, 6, ends="timeout")
    arrays = d4rl_arrays(episodes)
    arrays["timeouts"][4] = False
    arrays["next_observations"][4] = arrays["observations"][5]
    arrays["next_observations"][4, 1] += 1  # differs in no more than this
    episodes[0].obs[-1] = arrays["next_observations"][4]
    data = load(hdf5(tmp_path / "replay.hdf5", arrays))
    assert_same(transitions(data), expected(episodes))
    assert data.trajectories().tolist() == [[0, 5], [5, 9], [9, 15]]
    assert data.breaks == 1
    assert "1 transitions are not continued by the next one, though no end is marked there" in validate(data)


def test_marked_ends_are_no_breaks(tmp_path):
    assert (
        load(hdf5(tmp_path / "mine.hdf5", d4rl_arrays(trajectories(4, 4, 5, 3, 8)))).breaks == 0
    )  # pieces are of 4 rows


def test_a_marked_timeout_ends_a_trajectory_even_if_the_observations_go_on(tmp_path):
    for row in (2, 3):  # within a piece, and at its end
        arrays = d4rl_arrays(trajectories(9))
        arrays["timeouts"][row] = True
        data = load(hdf5(tmp_path / "mine.hdf5", arrays))
        assert data.trajectories().tolist() == [[0, row + 1], [row + 1, 9]]
        np.testing.assert_array_equal(transitions(data)[3], arrays["next_observations"])


def test_rewards_may_have_a_second_axis_and_flags_any_type(tmp_path):
    episodes = trajectories(5, 4, 6)
    arrays = d4rl_arrays(episodes)
    arrays["rewards"] = arrays["rewards"][:, None]
    arrays["terminals"] = arrays["terminals"].astype(np.float32)[:, None]
    arrays["timeouts"] = arrays["timeouts"].astype(np.int64)
    assert_same(transitions(load(hdf5(tmp_path / "file.h5", arrays))), expected(episodes))


@pytest.mark.filterwarnings("ignore::UserWarning:minari")  # about authors and links
def test_the_same_trajectories_from_all_formats(tmp_path):
    episodes = trajectories(5, 4, 1, 6)
    arrays = d4rl_arrays(episodes)
    true = [
        load(hdf5(tmp_path / "d4rl.hdf5", arrays)),
        load(npz(tmp_path / "d4rl.npz", arrays)),
        load(in_minari("test/same-v0", episodes)),
    ]
    for data in true:
        assert_same(transitions(data), expected(episodes))
        assert data.rows.dtype == torch.float32 and data.digest == true[0].digest
        np.testing.assert_allclose(data.returns(), [t.reward.sum() for t in episodes], rtol=1e-5)
    exact = [load(tmp_path.joinpath(f).as_posix(), exact_d4rl=True) for f in ("d4rl.hdf5", "d4rl.npz")]
    kept = ~(arrays["timeouts"] | flags(16, 15))
    for data in exact:
        obs, action, reward, next_obs, terminated = transitions(data)
        assert_same([obs, action, reward, terminated], [x[kept] for i, x in enumerate(expected(episodes)) if i != 3])
        own = terminated == 0  # after a terminal, D4RL's next observation is the next episode's first
        np.testing.assert_array_equal(next_obs[own], arrays["next_observations"][kept][own])


def test_ogbenchs_compact_form_has_the_same_transitions(tmp_path):
    """Its `valids` are 0 at last rows alone, while its `terminals` also mark the rows before them."""
    arrays = ogbench_arrays(trajectories(5, 4, ends="timeout"))
    compact = arrays | {"valids": 1.0 - arrays["terminals"]}
    compact["terminals"] = np.maximum(arrays["terminals"], np.append(arrays["terminals"][1:], 1.0))
    plain, data = (load(npz(tmp_path / f"{number}.npz", form)) for number, form in enumerate((arrays, compact)))
    assert len(plain) == 9
    assert_same(transitions(data), transitions(plain))


def test_ogbench_without_rewards(tmp_path):
    arrays = ogbench_arrays(trajectories(5, 4, ends="timeout"))
    del arrays["rewards"]
    data = load(npz(tmp_path / "file.npz", arrays))
    assert not data.rewarded and (transitions(data)[2] == 0).all()
    assert validate(data) == ["there are no rewards"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("actions"), "no array 'actions'"),
        (lambda a: a.pop("terminals"), "no array 'terminals'"),
        (lambda a: a.update(rewards=a["rewards"][:-1]), "rewards of shape (14,), and observations of (15, 3)"),
        (lambda a: a.update(terminals=a["terminals"][:1]), "terminals of shape (1,)"),
        (lambda a: a.update(timeouts=np.append(a["timeouts"], False)), "timeouts of shape (16,)"),
        (lambda a: a.update(observations=np.zeros((15, 2, 2), np.float32)), "observations of shape (15, 2, 2)"),
        (lambda a: a.update(next_observations=a["next_observations"][:, :1]), "another shape"),
        (lambda a: a.update(actions=np.zeros(15, np.int64)), "discrete"),
        (lambda a: a.update(actions=np.zeros((15, 1), np.int32)), "discrete"),
        (
            lambda a: a.update(observations=np.zeros((15, 2, 2, 3), np.float32)),
            "observations of shape (15, 2, 2, 3), where two axes are needed: images cannot be learned from",
        ),
        (lambda a: a.update(actions=a["actions"][:, 0]), "actions of shape (15,)"),
        (lambda a: a.update(rewards=np.zeros((15, 2), np.float32)), "rewards of shape (15, 2)"),
        (lambda a: a.update(rewards=np.array([b"x"] * 15)), "not numbers"),
        (lambda a: a.update(valids=np.zeros((15, 2))), "valids of shape (15, 2)"),
        (lambda a: a.update(rewards=np.float32(1)), "rewards of shape ()"),
        (lambda a: a.update({k: v[:0] for k, v in a.items()}), "no transition"),
        (lambda a: a["terminals"].__setitem__(3, 0.5), "numbers in terminals that are neither 0 nor 1"),
        (lambda a: a["terminals"].__setitem__(3, np.nan), "numbers in terminals that are neither 0 nor 1"),
        (lambda a: a["rewards"].__setitem__(7, np.nan), "the reward of transition 7 is not a finite number"),
        (lambda a: a["rewards"].__setitem__(7, 1e300), "the reward of transition 7 is not a finite number"),
        (lambda a: a["observations"].__setitem__((8, 1), np.inf), "the observation of transition 8 is"),
        (lambda a: a["actions"].__setitem__((14, 1), -np.inf), "the action of transition 14 is"),
        (lambda a: a["next_observations"].__setitem__((4, 0), np.nan), "the next observation of transition 4 is"),
    ],
)
@pytest.mark.parametrize("form", [hdf5, npz])
def test_a_bad_file_is_refused_in_a_sentence(tmp_path, form, change, words):
    arrays = d4rl_arrays(trajectories(5, 4, 6))
    arrays["terminals"] = arrays["terminals"].astype(np.float32)
    arrays["rewards"] = arrays["rewards"].astype(np.float64)
    change(arrays)
    path = form(tmp_path / f"bad.{form.__name__}", arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a sentence and nothing else
        assert words in refused(path)


def test_a_row_that_is_left_out_may_hold_anything(tmp_path):
    arrays = d4rl_arrays(trajectories(5, 4, 6, ends="timeout"))
    del arrays["next_observations"]
    arrays["rewards"][4] = np.nan  # of a timeout, where D4RL's rules have no transition
    assert "not a finite number" not in "".join(validate(load(hdf5(tmp_path / "a.hdf5", arrays))))
    arrays["observations"][4, 1] = np.nan
    assert "the next observation of transition 3 is" in refused(hdf5(tmp_path / "b.hdf5", arrays))


def test_arrays_of_neither_layout_are_refused_in_both_formats(tmp_path):
    arrays = {k: v for k, v in d4rl_arrays(trajectories(5, 4)).items() if k not in ("timeouts", "next_observations")}
    arrays["terminals"][[4, 8]] = True
    assert "has neither 'timeouts' nor 'next_observations'" in refused(hdf5(tmp_path / "a.hdf5", arrays))
    assert "has rewards at 'terminals'" in refused(npz(tmp_path / "a.npz", arrays))
    whole = d4rl_arrays(trajectories(5, 4))
    del whole["timeouts"]
    assert "has no 'timeouts' to tell" in refused(hdf5(tmp_path / "b.hdf5", whole), exact_d4rl=True)
    ogbench = npz(tmp_path / "c.npz", ogbench_arrays(trajectories(5)))
    assert "--exact-d4rl is for files of D4RL's layout" in refused(ogbench, exact_d4rl=True)


def test_empty_files_of_all_layouts_are_refused(tmp_path):
    empty = {key: array[:0] for key, array in d4rl_arrays(trajectories(3)).items()}
    assert "no transition" in refused(hdf5(tmp_path / "a.hdf5", empty), exact_d4rl=True)
    assert "no transition" in refused(
        npz(tmp_path / "a.npz", {k: v[:0] for k, v in ogbench_arrays(trajectories(3)).items()})
    )
    assert "no array" in refused(hdf5(tmp_path / "b.hdf5", {}))
    assert "no transition" in refused(
        npz(tmp_path / "c.npz", {k: v[:1] for k, v in ogbench_arrays(trajectories(3)).items()})
    )


@pytest.mark.parametrize("form", [hdf5, npz])
@pytest.mark.parametrize("share", [0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path, form, share):
    path = Path(form(tmp_path / f"cut.{form.__name__}", d4rl_arrays(trajectories(300, 300))))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert "damaged" in refused(str(path))


def test_an_array_shorter_than_it_says_is_refused(tmp_path):
    path = tmp_path / "short.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key, array in d4rl_arrays(trajectories(5, 4)).items():
            file = io.BytesIO()
            np.save(file, array)
            content = file.getvalue()
            archive.writestr(f"{key}.npy", content[:-7] if key == "rewards" else content)
    assert "damaged" in refused(str(path))


def test_damaged_pieces_of_a_file_are_refused(tmp_path):
    path = tmp_path / "flipped.npz"
    np.savez_compressed(path, **d4rl_arrays(trajectories(300, 300)))
    whole = path.read_bytes()
    for start in range(200, len(whole) - 1000, len(whole) // 20):  # some are wrong checksums, some no deflate streams
        path.write_bytes(whole[:start] + b"\xff" * 60 + whole[start + 60 :])
        assert "damaged" in refused(str(path))


def test_arrays_beyond_all_memory_are_refused(tmp_path):
    path = tmp_path / "vast.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("observations", (10, 10**14), np.float32, chunks=(1, 1000))  # none of it is stored
        file["actions"], file["terminals"] = np.zeros((10, 2), np.float32), np.zeros(10, bool)
        file["timeouts"] = np.zeros(10, bool)
    assert "has 4,000,000,000,000,000 bytes, of which the file stores 0" in refused(str(path))


def test_no_pickle_is_loaded(tmp_path):
    ran = tmp_path / "ran"

    class Harmful:
        def __reduce__(self):
            return ran.touch, ()

    arrays = d4rl_arrays(trajectories(5, 4, 6))
    rewards = np.array([Harmful()] * 15, object)
    assert "not numbers" in refused(npz(tmp_path / "pickle.npz", arrays | {"rewards": rewards}))
    load(npz(tmp_path / "beside.npz", arrays | {"about": rewards}))  # is not read at all
    assert not ran.exists()


def test_an_array_by_columns_is_refused(tmp_path):
    arrays = d4rl_arrays(trajectories(5, 4))
    arrays["observations"] = np.asfortranarray(arrays["observations"])
    assert "column by column" in refused(npz(tmp_path / "file.npz", arrays))


def test_a_file_without_ends_of_episodes_is_refused(tmp_path):
    arrays = d4rl_arrays(trajectories(5, 4, 6), "timeouts", "next_observations")
    assert "to tell episodes apart" in refused(hdf5(tmp_path / "file.hdf5", arrays))


def test_other_kinds_of_files_are_refused(tmp_path):
    for suffix in ("hdf5", "h5", "npz"):
        path = tmp_path / f"text.{suffix}"
        path.write_text("a,b\n1,2\n")
        assert "damaged" in refused(str(path))
    with h5py.File(tmp_path / "group.hdf5", "w") as file:
        file.create_group("observations")
    assert "no array 'observations'" in refused(str(tmp_path / "group.hdf5"))
