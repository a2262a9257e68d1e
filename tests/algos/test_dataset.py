"""Readers against each other and against D4RL's rules written out, what is refused, downloads, memory."""

import functools
import hashlib
import http.server
import io
import shutil
import subprocess
import sys
import threading
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
import torch
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.storage import get_dataset_path
from offline_data import record

from algos import dataset
from algos.dataset import EDGE, check_name, download, kept_rows, load, sequences, validate
from algos.errors import UserError
from envs import d4rl, make_vec

pytestmark = pytest.mark.filterwarnings("ignore")  # Minari's, about authors and links
D4RL_FOLDER = d4rl.folder()
OBS, ACT = 3, 2
BOX = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
ACTIONS = gym.spaces.Box(-1, 1, (ACT,), np.float32)


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Datasets lie in a folder of the test's own, and pieces are so small that all arrays have several."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "d4rl"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(dataset, "CHUNK", 4)


class Trajectory(NamedTuple):
    obs: np.ndarray  # [T + 1, O]
    action: np.ndarray  # [T, A]
    reward: np.ndarray  # [T]
    ends: str  # by "terminal" or by "timeout"


def trajectories(*lengths, ends="terminal timeout", seed=0) -> list[Trajectory]:
    """Random ones, which end in turn as `ends` says."""
    rng, how = np.random.default_rng(seed), ends.split()
    return [
        Trajectory(
            rng.normal(size=(n + 1, OBS)).astype(np.float32),
            rng.uniform(-1, 1, (n, ACT)).astype(np.float32),
            rng.normal(size=n).astype(np.float32),
            how[i % len(how)],
        )
        for i, n in enumerate(lengths)
    ]


def last(found, ends):
    """Flags [N] of the steps that end a trajectory in that way."""
    return np.concatenate([np.arange(len(t.reward)) == (len(t.reward) - 1 if t.ends == ends else -1) for t in found])


def columns(found, *without) -> dict[str, np.ndarray]:
    """The arrays of D4RL's layout."""
    arrays = {
        "observations": np.concatenate([t.obs[:-1] for t in found]),
        "next_observations": np.concatenate([t.obs[1:] for t in found]),
        "actions": np.concatenate([t.action for t in found]),
        "rewards": np.concatenate([t.reward for t in found]),
        "terminals": last(found, "terminal"),
        "timeouts": last(found, "timeout"),
    }
    return {key: array for key, array in arrays.items() if key not in without}


def hdf5(path, arrays) -> str:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, compression="gzip" if np.ndim(array) else None)
    return str(path)


def npz(path, arrays) -> str:
    np.savez(path, **arrays)
    return str(path)


def ogbench(found) -> dict[str, np.ndarray]:
    """The arrays of OGBench's layout: T + 1 rows of each, the last with an action that nothing follows."""
    return {
        "observations": np.concatenate([t.obs for t in found]),
        "actions": np.concatenate([np.append(t.action, t.action[-1:], 0) for t in found]),
        "rewards": np.concatenate([np.append(t.reward, 0) for t in found]).astype(np.float32),
        "terminals": np.concatenate([np.arange(len(t.obs)) == len(t.reward) for t in found]),
    }


def in_minari(name, found, obs_space=BOX, act_space=ACTIONS, **facts) -> str:
    buffers = [
        EpisodeBuffer(
            id=i, observations=t.obs, actions=t.action, rewards=t.reward, infos={},
            terminations=last([t], "terminal"), truncations=last([t], "timeout"),
        )
        for i, t in enumerate(found)
    ]  # fmt: skip
    minari.create_dataset_from_buffers(name, buffers, observation_space=obs_space, action_space=act_space, **facts)
    return f"minari/{name}"


def transitions(data) -> list[np.ndarray]:
    """All of them in order: obs, action, reward, next_obs, terminated."""
    return [part[0].numpy() for part in data.gather(torch.arange(len(data))[None])]


def expected(found) -> list[np.ndarray]:
    return [
        np.concatenate([t.obs[:-1] for t in found]),
        np.concatenate([t.action for t in found]),
        np.concatenate([t.reward for t in found]),
        np.concatenate([t.obs[1:] for t in found]),
        last(found, "terminal").astype(np.float32),
    ]


def assert_same(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def refused(name, **options) -> str:
    """The sentence with which a dataset is refused when it is loaded or validated."""
    with pytest.raises(UserError) as error:
        validate(load(name, **options))
    assert "\n" not in str(error.value)
    return str(error.value)


# -- D4RL's rules ------------------------------------------------------------------------------------------------------


def qlearning_rows(terminals, timeouts, limit, terminate_on_end):
    """Rows kept, one by one: none of a final step, where a count of steps stands in for missing timeouts.

    The count starts anew after a skipped row, and at one after any other row that ends an episode.
    """
    kept, count = [], 0
    for i in range(len(terminals) - 1):
        final = timeouts[i] if timeouts is not None else count == limit - 1
        if final and not terminate_on_end:
            count = 0
            continue
        kept.append(i)
        if terminals[i] or final:
            count = 0
        count += 1
    return kept


def flags(count, *rows):
    return np.isin(np.arange(count), rows)


def test_rows_of_a_toy_file():
    terminals, timeouts = flags(8, 2), flags(8, 5)
    assert kept_rows(terminals, timeouts, 0).tolist() == [0, 1, 2, 3, 4, 6]
    assert kept_rows(terminals, timeouts, 0, terminate_on_end=True).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert sequences(terminals, timeouts, 0) == [(0, 3), (3, 6)]


def test_a_toy_file_becomes_transitions(tmp_path):
    arrays = columns(trajectories(8), "next_observations") | {"terminals": flags(8, 2), "timeouts": flags(8, 5)}
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


def test_missing_timeouts_are_counted_with_the_slip_of_d4rl():
    none, terminal = np.zeros(15, bool), flags(15, 3)
    for exact in (False, True):
        assert kept_rows(none, None, 5, exact).tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13]
        skipped = sorted(set(range(14)) - set(kept_rows(terminal, None, 5, exact).tolist()))
        assert skipped == ([7, 12] if exact else [8, 13])
    assert sequences(none, None, 5) == [(0, 5), (5, 9), (9, 13)]


def test_a_row_both_terminal_and_timeout_is_skipped():
    assert kept_rows(flags(6, 2), flags(6, 2), 0).tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("terminate_on_end", [False, True])
@pytest.mark.parametrize("recorded", [True, False])
def test_rows_of_random_files_are_those_of_d4rl(recorded, terminate_on_end):
    rng = np.random.default_rng(1)
    for _ in range(50):
        count, limit = rng.integers(1, 60), int(rng.integers(2, 9))
        terminals = rng.random(count) < rng.choice([0, 0.1, 0.4])
        timeouts = rng.random(count) < rng.choice([0, 0.1, 0.4]) if recorded else None
        kept = kept_rows(terminals, timeouts, limit, True, terminate_on_end)
        assert kept.tolist() == qlearning_rows(terminals, timeouts, limit, terminate_on_end)


def test_random_files_become_the_transitions_of_d4rl(tmp_path):
    rng = np.random.default_rng(2)
    for i in range(8):
        arrays = columns(trajectories(23, seed=i))
        arrays |= {"terminals": rng.random(23) < 0.2, "timeouts": rng.random(23) < 0.2}
        rows = np.array(qlearning_rows(arrays["terminals"], arrays["timeouts"], 0, False))
        got = transitions(load(hdf5(tmp_path / "file.hdf5", arrays), exact_d4rl=True))
        wanted = [arrays[key][rows] for key in ("observations", "actions", "rewards", "terminals")]
        assert_same([*got[:3], got[4]], wanted)
        np.testing.assert_array_equal(got[3], arrays["observations"][rows + 1])


def put_d4rl(task, arrays):
    """A file in D4RL's cache, and its name here."""
    place = d4rl.find(task).place
    place.parent.mkdir(exist_ok=True)
    hdf5(place, arrays)
    return f"d4rl/{task}"


def test_true_next_observations_where_the_file_has_them():
    found = trajectories(5, 4, 1, 6, 9)
    name = put_d4rl("hopper-medium-v2", columns(found))
    data = load(name)
    assert_same(transitions(data), expected(found))
    assert data.trajectories().tolist() == [[0, 5], [5, 9], [9, 10], [10, 16], [16, 25]]
    assert len(data.rows) == 25 + 5  # one row more for each end
    assert len(load(name, exact_d4rl=True).rows) == 25
    assert len(load(name, exact_d4rl=True)) == 25 - 2 - 1  # two timeouts, and the last row


def test_an_unmarked_break_still_has_its_true_next_observation(tmp_path):
    """A dumped replay buffer does not mark all of its timeouts."""
    found = trajectories(5, 4, 6, ends="timeout")
    arrays = columns(found)
    arrays["timeouts"][4] = False
    arrays["next_observations"][4] = arrays["observations"][5]
    arrays["next_observations"][4, 1] += 1  # differs in no more than this
    found[0].obs[-1] = arrays["next_observations"][4]
    data = load(hdf5(tmp_path / "replay.hdf5", arrays))
    assert_same(transitions(data), expected(found))
    assert data.trajectories().tolist() == [[0, 5], [5, 9], [9, 15]]
    assert data.breaks == 1
    assert "after 1 transitions the next one begins elsewhere, though no end is marked" in validate(data)


def test_marked_ends_are_no_breaks(tmp_path):
    assert load(hdf5(tmp_path / "mine.hdf5", columns(trajectories(4, 4, 5, 3, 8)))).breaks == 0  # pieces are of 4 rows


@pytest.mark.parametrize(
    ("name", "words"), [("hopper-medium-expert-v0", "replay data"), ("antmaze-large-play-v0", "v1")]
)
def test_what_is_known_to_be_wrong_with_a_file_is_said(name, words):
    assert any(words in line for line in validate(load(put_d4rl(name, columns(trajectories(5, 4))))))


def test_a_file_that_is_named_like_one_of_d4rl_is_that(tmp_path):
    """By its path, with the limit that tells episodes apart, which the file itself lacks."""
    arrays = columns(trajectories(600), "next_observations", "timeouts") | {"terminals": flags(600, 99, 599)}
    path = hdf5(tmp_path / Path(d4rl.find("kitchen-mixed-v0").file).name, arrays)
    data, same = load(path), load(put_d4rl("kitchen-mixed-v0", arrays))
    assert data.digest == same.digest and (data.limit, data.low, data.high) == (280, same.low, same.high)


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


def test_a_marked_timeout_ends_a_trajectory_even_if_the_observations_go_on(tmp_path):
    for row in (2, 3):  # within a piece, and at its end
        arrays = columns(trajectories(9))
        arrays["timeouts"][row] = True
        data = load(hdf5(tmp_path / "mine.hdf5", arrays))
        assert data.trajectories().tolist() == [[0, row + 1], [row + 1, 9]]
        np.testing.assert_array_equal(transitions(data)[3], arrays["next_observations"])


def test_antmaze_keeps_runs_of_terminal_rows_each_with_the_next_row():
    arrays = columns(trajectories(12), "next_observations")
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
    arrays = columns(trajectories(600), "next_observations", "timeouts") | {"terminals": flags(600, 99, 599)}
    data = load(put_d4rl("kitchen-mixed-v0", arrays))
    # the row before 280 steps after the terminal at 99; D4RL's count starts at one there. 280 on is beyond the end
    for found, skipped in ((data, 379), (load(data.name, exact_d4rl=True), 378)):
        kept = sorted(set(range(599)) - {skipped})
        np.testing.assert_array_equal(transitions(found)[0], arrays["observations"][kept])


def test_rewards_may_be_a_column_and_flags_of_any_type(tmp_path):
    found = trajectories(5, 4, 6)
    arrays = columns(found)
    arrays["rewards"] = arrays["rewards"][:, None]
    arrays["terminals"] = arrays["terminals"].astype(np.float32)[:, None]
    arrays["timeouts"] = arrays["timeouts"].astype(np.int64)
    assert_same(transitions(load(hdf5(tmp_path / "file.h5", arrays))), expected(found))


def test_what_a_d4rl_dataset_tells():
    data = load(put_d4rl("hopper-medium-v2", columns(trajectories(5, 4))))
    assert (data.env_id, data.limit) == ("Hopper-v4", 1000)
    assert data.source == "http://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5"
    assert "v5" in data.note and data.rewarded
    assert data.score(1000.0) == pytest.approx(31.3489, abs=1e-4)
    np.testing.assert_allclose(data.score(np.array([0.0, 3234.3])), [0.6229, 100], atol=1e-4)


# -- the same from all formats -----------------------------------------------------------------------------------------


def test_the_same_trajectories_from_all_formats(tmp_path):
    found = trajectories(5, 4, 1, 6)
    arrays = columns(found)
    true = [
        load(hdf5(tmp_path / "d4rl.hdf5", arrays)),
        load(npz(tmp_path / "d4rl.npz", arrays)),
        load(in_minari("test/same-v0", found)),
    ]
    for data in true:
        assert_same(transitions(data), expected(found))
        assert data.rows.dtype == torch.float32 and data.digest == true[0].digest
        np.testing.assert_allclose(data.returns(), [t.reward.sum() for t in found], rtol=1e-5)
    exact = [load(tmp_path.joinpath(f).as_posix(), exact_d4rl=True) for f in ("d4rl.hdf5", "d4rl.npz")]
    kept = ~(arrays["timeouts"] | flags(16, 15))
    for data in exact:
        obs, action, reward, next_obs, terminated = transitions(data)
        assert_same([obs, action, reward, terminated], [x[kept] for i, x in enumerate(expected(found)) if i != 3])
        own = terminated == 0  # after a terminal, D4RL's next observation is the next episode's first
        np.testing.assert_array_equal(next_obs[own], arrays["next_observations"][kept][own])


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("validation", ["", "-val"])
def test_ogbench(tmp_path, validation, cut):
    found = trajectories(5, 4, 6, ends="timeout")
    arrays = ogbench(found)
    if cut:
        arrays["terminals"][-1] = False
    folder = tmp_path / ".ogbench" / "data"
    folder.mkdir(parents=True)
    npz(folder / f"pointmaze-medium-navigate-v0{validation}.npz", arrays | {"qpos": np.zeros((18, 2))})
    data = load(f"ogbench/pointmaze-medium-navigate-v0{validation}")
    assert_same(transitions(data), expected(found))
    assert "each episode has a goal there" in data.note
    assert data.env_id == "pointmaze-medium-v0" and data.source.endswith(f"navigate-v0{validation}.npz")
    assert data.trajectories().tolist() == [[0, 5], [5, 9], [9, 15]]


def test_ogbench_without_rewards(tmp_path):
    arrays = ogbench(trajectories(5, 4, ends="timeout"))
    del arrays["rewards"]
    data = load(npz(tmp_path / "file.npz", arrays))
    assert not data.rewarded and (transitions(data)[2] == 0).all()
    assert validate(data) == ["there are no rewards"]


# -- Minari ------------------------------------------------------------------------------------------------------------


class Parts(gym.Env):
    """Observations in nested parts, of which none is in alphabetical order."""

    observation_space = gym.spaces.Dict(
        {
            "target": gym.spaces.Box(-9, 9, (2,)),
            "agent": gym.spaces.Tuple((gym.spaces.Box(-9, 9, (2, 2), np.float32), gym.spaces.Box(-9, 9, ()))),
        }
    )

    def __init__(self, scale=1.0, render_mode=None):
        self.scale = scale
        self.action_space = gym.spaces.Box(-2 * scale, scale, (1,))

    def _obs(self):
        parts = self.np_random.normal(size=7).astype(np.float32)
        return {"target": parts[:2], "agent": (parts[2:6].reshape(2, 2), parts[6])}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action):
        return self._obs(), self.scale, False, False, {}


@pytest.fixture
def parts():
    """The id of `Parts`, with a standard scale of 2 and 8 steps."""
    gym.register("test/Parts-v0", f"{__name__}:Parts", max_episode_steps=8, kwargs={"scale": 2.0})
    yield "test/Parts-v0"
    del gym.registry["test/Parts-v0"]


def recorded(env_id, name, steps=8, **options) -> np.ndarray:
    """A Minari dataset of one episode from seed 0, and the actions that it took."""
    return record(env_id, name, steps, **options)[0]


def test_parts_of_observations_are_in_the_order_of_the_evaluation_environment(parts):
    actions = recorded(parts, "test/parts-v0")
    data = load("minari/test/parts-v0")
    venv = make_vec(data.env_id, 1, **data.env_options)
    seen = [venv.reset(seed=0)[0][0]] + [venv.step(action[None])[0][0] for action in actions[:-1]]
    np.testing.assert_array_equal(transitions(data)[0], np.stack(seen))
    np.testing.assert_array_equal(transitions(data)[1], actions)
    validate(data, venv.single_observation_space, venv.single_action_space)
    np.testing.assert_array_equal(data.bounds, [[-4], [2]])


def test_the_evaluation_environment_is_made_as_the_recorded_one(parts):
    recorded(parts, "test/own-v0", steps=5, scale=3.0, max_episode_steps=5, render_mode=None)
    data = load("minari/test/own-v0")
    assert data.env_options == {"scale": 3.0, "max_episode_steps": 5} and data.limit == 5
    venv = make_vec(data.env_id, 1, **data.env_options)
    venv.reset(seed=0)
    ends = [venv.step(np.zeros((1, 1)))[3][0] for _ in range(5)]
    assert ends == [False] * 4 + [True] and venv.single_action_space.low == -6
    recorded(parts, "test/standard-v0")
    assert load("minari/test/standard-v0").env_options == {}


def test_a_recorded_renderer_is_no_option_of_the_batched_environments():
    recorded("Hopper-v5", "test/hopper-v0", steps=3, reset_noise_scale=0.01, width=64)
    data = load("minari/test/hopper-v0")
    assert data.env_options == {"reset_noise_scale": 0.01}
    make_vec(data.env_id, 1, **data.env_options).close()


def test_reference_scores_and_evaluation_environment_of_minari(parts):
    name = in_minari("test/facts-v0", trajectories(5, 4), eval_env=parts, ref_min_score=10.0, ref_max_score=30.0)
    data = load(name)
    assert data.env_id == parts and data.score(15.0) == 25


@pytest.mark.parametrize("description", ["made by hand", "[1]", None])
def test_a_minari_dataset_of_ones_own_may_be_local(description):
    in_minari("local/mine-v0", trajectories(5, 4), description=description)
    assert len(load("local/mine-v0")) == 9 and not load("local/mine-v0").made


def test_minari_without_an_environment():
    data = load(in_minari("test/bare-v0", trajectories(5, 4)))
    assert data.env_id is None and data.score(15.0) == 15


def test_discrete_actions_and_images_of_minari_are_refused():
    found = [t._replace(action=np.zeros(len(t.reward), np.int64)) for t in trajectories(3)]
    name = in_minari("test/discrete-v0", found, act_space=gym.spaces.Discrete(2))
    assert "Discrete actions" in refused(name)
    images = gym.spaces.Box(0, 255, (4, 4, 3), np.uint8)
    found = [t._replace(obs=np.zeros((4, 4, 4, 3), np.uint8)) for t in trajectories(3)]
    assert "images" in refused(in_minari("test/images-v0", found, images))


def test_a_missing_minari_dataset(monkeypatch):
    def no_network(name, force_download):
        raise ConnectionError("no network")

    monkeypatch.setattr(minari, "download_dataset", no_network)
    sentence = refused("minari/mujoco/hopper/medium-v0")
    assert "no network" in sentence and "minari download mujoco/hopper/medium-v0" in sentence
    assert "python -m benchmarks.collect hopper-medium-v0" in refused("local/hopper-medium-v0")


def test_a_minari_download_goes_on_aside_until_all_of_it_is_there(tmp_path, monkeypatch):
    found = trajectories(5, 4)
    in_minari("test/far-v0", found)
    root, far = tmp_path / "minari", tmp_path / "far"
    root.rename(far)
    asked = []

    def transport(name, force_download):
        """As Minari: it writes into the folder of datasets, and does nothing where one is, unless forced."""
        place = get_dataset_path(name)
        asked.append((name, force_download))
        (place / "data").mkdir(parents=True, exist_ok=True)
        if len(asked) == 1:
            (place / "data" / "main_data.hdf5").write_bytes(b"half")
            raise ConnectionError("cut off")
        shutil.copytree(far / name, place, dirs_exist_ok=True)
        (place.parent / "namespace_metadata.json").write_text("{}")

    other = root / ".downloads" / "test-far-v0" / "test" / "half-v0" / "data"
    other.mkdir(parents=True)
    (other / "metadata.json").write_text("{}")  # half of a dataset of which this one was made
    monkeypatch.setattr(minari, "download_dataset", transport)
    assert "downloading it failed (cut off)" in refused("minari/test/far-v0")
    assert not (root / "test").exists() and minari.list_local_datasets() == {}
    assert_same(transitions(load("minari/test/far-v0")), expected(found))
    load("minari/test/far-v0")
    assert asked == [("test/far-v0", False), ("test/far-v0", True)]
    assert list(minari.list_local_datasets()) == ["test/far-v0"]
    assert (root / "test" / "namespace_metadata.json").exists()


def test_a_damaged_minari_dataset(tmp_path):
    name = in_minari("test/damaged-v0", trajectories(5, 4))
    file = tmp_path / name / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:1000])
    assert "damaged" in refused(name)
    file.unlink()
    assert "damaged" in refused(name)


# -- bad input ---------------------------------------------------------------------------------------------------------


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
        (lambda a: a.update(actions=a["actions"][:, 0]), "actions of shape (15,)"),
        (lambda a: a.update(rewards=np.zeros((15, 2), np.float32)), "rewards of shape (15, 2)"),
        (lambda a: a.update(rewards=np.array([b"x"] * 15)), "not numbers"),
        (lambda a: a.update(rewards=np.float32(1)), "rewards of shape ()"),
        (lambda a: a.update({k: v[:0] for k, v in a.items()}), "no transition"),
        (lambda a: a["terminals"].__setitem__(3, 0.5), "terminals other than 0 and 1"),
        (lambda a: a["terminals"].__setitem__(3, np.nan), "terminals other than 0 and 1"),
        (lambda a: a["rewards"].__setitem__(7, np.nan), "the reward of transition 7 is not a finite number"),
        (lambda a: a["rewards"].__setitem__(7, 1e300), "the reward of transition 7 is not a finite number"),
        (lambda a: a["observations"].__setitem__((8, 1), np.inf), "the observation of transition 8 is"),
        (lambda a: a["actions"].__setitem__((14, 1), -np.inf), "the action of transition 14 is"),
        (lambda a: a["next_observations"].__setitem__((4, 0), np.nan), "the next observation of transition 4 is"),
    ],
)
@pytest.mark.parametrize("form", [hdf5, npz])
def test_a_bad_file_is_refused_in_a_sentence(tmp_path, form, change, words):
    arrays = columns(trajectories(5, 4, 6))
    arrays["terminals"] = arrays["terminals"].astype(np.float32)
    arrays["rewards"] = arrays["rewards"].astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a sentence and nothing else
        change(arrays)
    assert words in refused(form(tmp_path / ("bad.hdf5" if form is hdf5 else "bad.npz"), arrays))


def test_what_is_never_read_may_be_anything(tmp_path):
    arrays = columns(trajectories(5, 4, 6, ends="timeout"))
    del arrays["next_observations"]
    arrays["rewards"][4] = np.nan  # of a timeout, where D4RL's rules have no transition
    assert "not a finite number" not in "".join(validate(load(hdf5(tmp_path / "a.hdf5", arrays))))
    arrays["observations"][4, 1] = np.nan
    assert "the next observation of transition 3 is" in refused(hdf5(tmp_path / "b.hdf5", arrays))


def test_arrays_of_neither_layout_are_refused_in_both_formats(tmp_path):
    arrays = {k: v for k, v in columns(trajectories(5, 4)).items() if k not in ("timeouts", "next_observations")}
    arrays["terminals"][[4, 8]] = True
    assert "has neither 'timeouts' nor 'next_observations'" in refused(hdf5(tmp_path / "a.hdf5", arrays))
    assert "has rewards at 'terminals'" in refused(npz(tmp_path / "a.npz", arrays))
    whole = columns(trajectories(5, 4))
    del whole["timeouts"]
    assert "has no 'timeouts' to tell" in refused(hdf5(tmp_path / "b.hdf5", whole), exact_d4rl=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("minari/mujoco/hopper/medium", "lacks the version"),
        ("ogbench/pointmaze-medium-navigate-singletask-v0", "rewards of single tasks from goals"),
        ("local/hopper-medium", "--list names all"),
    ],
)
def test_names_that_nearly_are_some_are_refused_in_a_sentence(name, words):
    assert words in refused(name)


def test_empty_files_of_all_layouts_are_refused(tmp_path):
    empty = {key: array[:0] for key, array in columns(trajectories(3)).items()}
    assert "no transition" in refused(hdf5(tmp_path / "a.hdf5", empty), exact_d4rl=True)
    assert "no transition" in refused(npz(tmp_path / "a.npz", {k: v[:0] for k, v in ogbench(trajectories(3)).items()}))
    assert "no array" in refused(hdf5(tmp_path / "b.hdf5", {}))
    assert "no transition" in refused(npz(tmp_path / "c.npz", {k: v[:1] for k, v in ogbench(trajectories(3)).items()}))


@pytest.mark.parametrize("form", [hdf5, npz])
@pytest.mark.parametrize("share", [0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path, form, share):
    path = Path(form(tmp_path / f"cut.{form.__name__}", columns(trajectories(300, 300))))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert "damaged" in refused(str(path))


def test_an_array_shorter_than_it_says_is_refused(tmp_path):
    path = tmp_path / "short.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key, array in columns(trajectories(5, 4)).items():
            file = io.BytesIO()
            np.save(file, array)
            content = file.getvalue()
            archive.writestr(f"{key}.npy", content[:-7] if key == "rewards" else content)
    assert "damaged" in refused(str(path))


def test_damaged_pieces_of_a_file_are_refused(tmp_path):
    path = tmp_path / "flipped.npz"
    np.savez_compressed(path, **columns(trajectories(300, 300)))
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
    assert "damaged" in refused(str(path)) and "allocate" in refused(str(path))


def test_no_pickle_is_loaded(tmp_path):
    ran = tmp_path / "ran"

    class Harmful:
        def __reduce__(self):
            return ran.touch, ()

    arrays = columns(trajectories(5, 4, 6))
    rewards = np.array([Harmful()] * 15, object)
    assert "not numbers" in refused(npz(tmp_path / "pickle.npz", arrays | {"rewards": rewards}))
    load(npz(tmp_path / "beside.npz", arrays | {"about": rewards}))  # is not read at all
    assert not ran.exists()


def test_an_array_by_columns_is_refused(tmp_path):
    arrays = columns(trajectories(5, 4))
    arrays["observations"] = np.asfortranarray(arrays["observations"])
    assert "column by column" in refused(npz(tmp_path / "file.npz", arrays))


def test_a_file_without_ends_of_episodes_is_refused(tmp_path):
    arrays = columns(trajectories(5, 4, 6), "timeouts", "next_observations")
    assert "to tell episodes apart" in refused(hdf5(tmp_path / "file.hdf5", arrays))


def test_other_kinds_of_files_are_refused(tmp_path):
    for suffix in ("hdf5", "h5", "npz"):
        path = tmp_path / f"text.{suffix}"
        path.write_text("a,b\n1,2\n")
        assert "damaged" in refused(str(path))
    with h5py.File(tmp_path / "group.hdf5", "w") as file:
        file.create_group("observations")
    assert "no array 'observations'" in refused(str(tmp_path / "group.hdf5"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hopper-medium-v2", "takes d4rl/…"),
        ("minari/", "takes d4rl/…"),
        ("d4rl/hopper-medum-v2", "hopper-medium-v2"),
        ("d4rl/flow-merge-v0", "D4RL has no data of flow-merge-v0"),
        ("data/mine.npz", "there is no file data/mine.npz"),
        (".hdf5", "takes d4rl/…"),
    ],
)
def test_a_bad_name_is_refused_before_work_starts(name, words):
    with pytest.raises(UserError, match=words):
        check_name(name)


# -- use ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    return load(hdf5(tmp_path / "data.hdf5", columns(trajectories(5, 4, 1, 6, 9))))


def test_gather_gives_each_run_its_own_transitions(data):
    integers = torch.randint(2**63 - 1, (3, 7), generator=torch.Generator().manual_seed(0))
    batch, wanted = data.gather(integers), expected(trajectories(5, 4, 1, 6, 9))
    for r in range(3):
        for b in range(7):
            number = int(integers[r, b]) % 25
            for got, all_of_them in zip(batch, wanted, strict=True):
                np.testing.assert_array_equal(got[r, b], all_of_them[number])
    assert batch.obs.shape == (3, 7, OBS) and batch.reward.shape == (3, 7)


def test_data_stays_in_place_on_its_own_device(data):
    moved = data.to(torch.device("cpu"))
    assert moved.rows.data_ptr() == data.rows.data_ptr()  # not copied


def test_float64_where_torch_is_told_so(data, float64):
    data.standardise()
    moved = data.to(torch.device("cpu"))
    assert moved.rows.dtype == moved.obs_scaling[0].dtype == torch.float64


def test_part_and_best(data):
    returns = np.array([t.reward.astype(float).sum() for t in trajectories(5, 4, 1, 6, 9)])
    order = np.argsort(-returns)
    lengths, starts = np.array([5, 4, 1, 6, 9]), np.array([0, 5, 9, 10, 16])
    for fraction in (0.04, 0.3, 0.5, 1.0):
        share, chosen = 0, []
        for i in order:
            chosen.append(i)
            share += lengths[i]
            if share >= fraction * 25:
                break
        rows = np.concatenate([np.arange(starts[i], starts[i] + lengths[i]) for i in sorted(chosen)])
        best = data.best(fraction)
        assert_same(transitions(best), [x[rows] for x in transitions(data)])
        np.testing.assert_allclose(best.returns(), returns[sorted(chosen)], rtol=1e-6)
        assert best.digest != data.digest and best.rows is data.rows
    assert data.best(0.3).digest != data.best(1.0).digest


def test_joined(data, tmp_path):
    arrays = ogbench(trajectories(3, 4, seed=1))
    other = load(npz(tmp_path / "other.npz", {k: v for k, v in arrays.items() if k != "rewards"}))
    both = data.joined(other)
    assert_same(transitions(both), [np.concatenate(x) for x in zip(transitions(data), transitions(other), strict=True)])
    assert len(both.trajectories()) == 7 and not both.rewarded and data.rewarded
    assert both.digest not in (data.digest, other.digest, other.joined(data).digest)


def test_standardise(data):
    obs, _, _, next_obs, _ = transitions(data)
    mean, scale = obs.astype(float).mean(0), obs.astype(float).std(0) + 1e-3
    data.standardise()
    np.testing.assert_allclose(transitions(data)[0], (obs - mean) / scale, atol=1e-6)
    np.testing.assert_allclose(transitions(data)[3], (next_obs - mean) / scale, atol=1e-6)
    seen = []
    act = data.actor(lambda o: seen.append(o) or torch.zeros(*o.shape[:-1], ACT))
    act(torch.from_numpy(obs))
    np.testing.assert_allclose(seen[0], (obs - mean) / scale, atol=1e-6)


def test_scale_rewards(data, tmp_path):
    before = transitions(data)[2]
    returns = np.array([t.reward.astype(float).sum() for t in trajectories(5, 4, 1, 6, 9)])
    factor = 1000 / (returns.max() - returns.min())
    assert f"{factor:.4g}" in data.scale_rewards("range")
    np.testing.assert_allclose(transitions(data)[2], before * factor, rtol=1e-5)
    assert np.ptp(data.returns()) == pytest.approx(1000, rel=1e-5)
    data.scale_rewards("minus_one")
    np.testing.assert_allclose(transitions(data)[2], before * factor - 1, rtol=1e-5)
    data.scale_rewards("none")
    np.testing.assert_allclose(transitions(data)[2], before * factor - 1, rtol=1e-5)
    same = load(hdf5(tmp_path / "same.hdf5", columns(trajectories(5, 5)) | {"rewards": np.ones(10, np.float32)}))
    with pytest.raises(UserError, match="same return"):
        same.scale_rewards("range")


def test_fit_actions(data):
    before = transitions(data)[1]
    low, high = np.array([-2, -0.5], np.float32), np.array([1, 0.5], np.float32)
    data.fit_actions(low, high)
    wanted = np.clip((before - (low + high) / 2) / ((high - low) / 2), EDGE - 1, 1 - EDGE)
    np.testing.assert_allclose(transitions(data)[1], wanted, atol=1e-6)
    act = data.actor(lambda obs: torch.tensor([[0.5, -7.0]]))
    np.testing.assert_allclose(act(torch.zeros(1, OBS)), [[0.25, -0.5]], atol=1e-6)


def test_actions_within_one_are_only_clipped(data):
    before = transitions(data)[1]
    data.fit_actions(-np.ones(ACT), np.ones(ACT))
    assert_same([transitions(data)[1]], [before.clip(-1 + EDGE, 1 - EDGE)])
    assert data.action_scaling is None
    with pytest.raises(UserError, match="without bounds"):
        data.fit_actions(-np.ones(ACT), np.full(ACT, np.inf))


def test_the_digest_is_of_content(tmp_path):
    arrays = columns(trajectories(5, 4))
    first = load(hdf5(tmp_path / "a.hdf5", arrays))
    assert first.digest == load(hdf5(tmp_path / "b.hdf5", arrays)).digest
    plain = hashlib.sha256(first.rows.numpy().tobytes() + first.index.numpy().tobytes())
    assert first.digest == plain.hexdigest()
    arrays["rewards"][3] += 1
    assert first.digest != load(hdf5(tmp_path / "b.hdf5", arrays)).digest


# -- validation --------------------------------------------------------------------------------------------------------


def test_nothing_to_say_about_sound_data(data):
    assert validate(data, BOX, ACTIONS) == []


@pytest.mark.parametrize(
    ("spaces", "words"),
    [
        ((gym.spaces.Box(-1, 1, (5,)), ACTIONS), "has 3 numbers in its observations, where Hopper-v4 has 5"),
        ((BOX, gym.spaces.Box(-1, 1, (4,))), "has 2 numbers in its actions, where Hopper-v4 has 4"),
        ((BOX, gym.spaces.Discrete(4)), "has 2 numbers in its actions, where Hopper-v4 has Discrete"),
        ((gym.spaces.Discrete(3), ACTIONS), "has 3 numbers in its observations, where Hopper-v4 has Discrete"),
    ],
)
def test_an_environment_of_other_shapes_is_refused(data, spaces, words):
    with pytest.raises(UserError, match=words):
        validate(replace(data, env_id="Hopper-v4"), *spaces)


def test_warnings_one_by_one(data):
    inside = gym.spaces.Box(np.float32(-1), np.float32([1, 0]), (ACT,))
    share = (transitions(data)[1][:, 1] > 0).mean()
    assert validate(data, None, inside) == [f"{share:.1%} of actions lie out of bounds, and are clipped"]
    assert validate(replace(data, limit=8)) == ["an episode has 9 steps, more than the 8 of the task"]
    data.reward.fill_(-1)
    assert validate(data) == ["all rewards are -1"]


def test_an_endless_episode_and_repeated_rows_are_said(tmp_path):
    endless = load(hdf5(tmp_path / "endless.hdf5", columns(trajectories(9)) | {"terminals": np.zeros(9)}))
    assert validate(endless) == ["no episode ends within its 9 transitions"]
    found = trajectories(5, 4)
    repeated = load(hdf5(tmp_path / "twice.hdf5", columns([*found, found[1]])))
    assert validate(repeated) == ["4 transitions (30.8%) occur more than once"]
    arrays = columns([*found, found[1]])
    arrays["next_observations"][-1, 0] += 1  # differs in no more than this
    assert validate(load(hdf5(tmp_path / "almost.hdf5", arrays))) == ["3 transitions (23.1%) occur more than once"]
    arrays["rewards"][-2] += 1
    assert validate(load(hdf5(tmp_path / "almost.hdf5", arrays))) == ["2 transitions (15.4%) occur more than once"]


# -- downloads ---------------------------------------------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    """Gives one file, as its class says."""

    content = b""
    ranges = True
    cut: int | None = None  # bytes after which a connection ends
    length = True
    asked: list  # ranges

    def do_GET(self):
        asked = self.headers.get("Range")
        self.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if start >= len(self.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(self.content)}")
            self.end_headers()
            return
        self.send_response(206 if asked and self.ranges else 200)
        if self.length:
            self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start:][: self.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    """The server's class to change, its content a file of D4RL's layout; `url` is where it is."""
    content = Path(hdf5(tmp_path / "served.hdf5", columns(trajectories(50, 50)))).read_bytes()
    handler = type("Handler", (Server,), {"content": content, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as it:
        threading.Thread(target=functools.partial(it.serve_forever, poll_interval=0.01), daemon=True).start()
        handler.url = f"http://127.0.0.1:{it.server_port}/"
        yield handler
        it.shutdown()


def test_a_missing_file_is_downloaded(server, monkeypatch, tmp_path):
    monkeypatch.setattr(d4rl, "SERVER", server.url)
    assert_same(transitions(load("d4rl/hopper-medium-v2")), expected(trajectories(50, 50)))
    assert (tmp_path / "d4rl" / "hopper_medium-v2.hdf5").read_bytes() == server.content
    load("d4rl/hopper-medium-v2")
    assert server.asked == [None]  # once


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_cut_in_the_middle_is_taken_up_again(server, tmp_path, ranges):
    place = tmp_path / "new" / "file.hdf5"
    server.cut, server.ranges = 1000, ranges
    with pytest.raises(UserError, match=f"1,000 of {len(server.content):,} bytes came") as error:
        download(server.url, place, "d4rl/x")
    assert f"curl -L -C - -o {place} {server.url}" in str(error.value) and not place.exists()
    server.cut = None
    download(server.url, place, "d4rl/x")
    assert place.read_bytes() == server.content and server.asked == [None, "bytes=1000-"]
    assert not (tmp_path / "new" / "file.hdf5.part").exists()


def test_a_part_that_is_whole_or_too_long_does_not_block(server, tmp_path):
    place, part = tmp_path / "file.hdf5", tmp_path / "file.hdf5.part"
    part.write_bytes(server.content)
    download(server.url, place, "d4rl/x")
    assert place.read_bytes() == server.content and server.asked == [f"bytes={len(server.content)}-"]
    place.unlink()
    part.write_bytes(server.content + b"more")
    download(server.url, place, "d4rl/x")
    assert place.read_bytes() == server.content


def test_what_is_no_dataset_is_not_kept(server, tmp_path):
    server.content = b"<html>Sign in to this network</html>"
    with pytest.raises(UserError, match="neither HDF5 nor npz"):
        download(server.url, tmp_path / "file.hdf5", "d4rl/x")
    assert not list(tmp_path.glob("file.hdf5*.part")) and not (tmp_path / "file.hdf5").exists()
    server.length = False
    with pytest.raises(UserError, match="how long"):
        download(server.url, tmp_path / "file.hdf5", "d4rl/x")


def test_two_processes_do_not_disturb_each_other(server, tmp_path):
    place = tmp_path / "file.hdf5"
    threads = [threading.Thread(target=download, args=(server.url, place, "d4rl/x")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.read_bytes() == server.content and server.asked == [None]


def test_without_a_network_a_sentence_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(d4rl, "SERVER", "http://127.0.0.1:1/")
    monkeypatch.setattr(dataset, "OGBENCH", "http://127.0.0.1:1/")
    sentence = refused("d4rl/hopper-medium-v2")
    for words in ("hopper_medium-v2.hdf5", str(tmp_path / "d4rl"), "curl -L -C - -o", "http://127.0.0.1:1/gym_mujoco"):
        assert words in sentence
    assert "pointmaze-medium-navigate-v0.npz" in refused("ogbench/pointmaze-medium-navigate-v0")


# -- memory ------------------------------------------------------------------------------------------------------------

MEASURE = """
import ctypes, gc, sys
from pathlib import Path
from algos.dataset import load, validate

def status(key):
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) * 1024

def prepare(data):
    validate(data)
    data.scale_rewards("range")
    data.standardise()
    data.transitions_of(10**6)

small, hdf5, npz = sys.argv[1:]
prepare(load(small))  # what is imported and made only once
for name, exact in [(hdf5, False), (hdf5, True), (npz, False)]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    data = load(name, exact)
    prepare(data)
    print((status("VmHWM") - before) / (data.rows.nbytes + data.index.nbytes))
    del data
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_loading_takes_little_more_memory_than_the_arrays(tmp_path):
    count, rng = 1_500_000, np.random.default_rng(0)
    arrays = {
        "observations": rng.random((count, 11), np.float32),
        "actions": rng.random((count, 3), np.float32),
        "rewards": rng.random(count, np.float32),
        "terminals": np.arange(count) % 1000 == 999,
    }
    path = npz(tmp_path / "large.npz", arrays | {"rewards": arrays["rewards"] * ~arrays["terminals"]})
    arrays["next_observations"] = np.roll(arrays["observations"], -1, 0)
    arrays["next_observations"][999::1000] += 1
    arrays["timeouts"] = np.zeros(count, bool)
    with h5py.File(tmp_path / "large.hdf5", "w") as file:
        for key, array in arrays.items():
            file[key] = array
    small = hdf5(tmp_path / "small.hdf5", columns(trajectories(5, 4)))
    command = [sys.executable, "-c", MEASURE, small, str(tmp_path / "large.hdf5"), path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    ratios = [float(line) for line in done.stdout.split()]
    assert len(ratios) == 3, done.stderr
    assert max(ratios) < 1.3, ratios
