"""Minari's datasets: observations in parts, evaluation environments, downloads."""

import functools
import queue
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import minari
import numpy as np
import pytest
from dataset_files import assert_same, expected, in_minari, refused, trajectories, transitions
from minari.storage import get_dataset_path
from offline_data import record

from algos.data import load, validate
from algos.folders import alone
from algos.goal_data import load_states
from benchmarks import dataset
from envs import make_vec

pytestmark = pytest.mark.filterwarnings("ignore")  # Minari's, about authors and links


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
    """The id of `Parts`, registered with a scale of 2 and 8 steps."""
    gym.register("test/Parts-v0", f"{__name__}:Parts", max_episode_steps=8, kwargs={"scale": 2.0})
    yield "test/Parts-v0"
    del gym.registry["test/Parts-v0"]


def recorded(env_id, name, steps=8, **options) -> np.ndarray:
    """Makes a Minari dataset of one episode from seed 0; returns its actions."""
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


class Reach(Parts):
    """Observations as Gymnasium-Robotics' environments with goals have them."""

    observation_space = gym.spaces.Dict(
        {
            "observation": gym.spaces.Box(-9, 9, (3,), np.float32),
            "achieved_goal": gym.spaces.Box(-9, 9, (2,), np.float32),
            "desired_goal": gym.spaces.Box(-9, 9, (2,), np.float32),
        }
    )

    def _obs(self):
        parts = self.np_random.normal(size=7).astype(np.float32)
        return {"observation": parts[:3], "achieved_goal": parts[3:5], "desired_goal": parts[5:]}


def test_states_of_observations_with_goals_are_without_them(capsys):
    gym.register("test/Reach-v0", f"{__name__}:Reach", max_episode_steps=8)
    try:
        recorded("test/Reach-v0", "test/reach-v0")
    finally:
        del gym.registry["test/Reach-v0"]
    whole, states = load("minari/test/reach-v0"), load_states("minari/test/reach-v0")
    assert whole.parts == {"achieved_goal": 2, "desired_goal": 2, "observation": 3} and whole.obs_size == 7
    assert whole.parts_in_words == "achieved_goal (2), desired_goal (2), observation (3)"
    np.testing.assert_array_equal(states.obs, whole.obs[:, 4:])
    np.testing.assert_array_equal(states.rows[:, 3:], whole.rows[:, 7:])
    assert states.parts == {"observation": 3} and states.obs_size == 3
    dataset.main(dataset.Args("minari/test/reach-v0"))
    assert "joined from achieved_goal (2), desired_goal (2), observation (3)" in capsys.readouterr().out


class Pair(Parts):
    """A part of its observations is a number of a finite set."""

    observation_space = gym.spaces.Dict(
        {"place": gym.spaces.Box(-9, 9, (2,), np.float32), "colour": gym.spaces.Discrete(3, start=2)}
    )

    def _obs(self):
        return {"place": self.np_random.normal(size=2).astype(np.float32), "colour": self.np_random.integers(2, 5)}


def test_a_number_of_a_finite_set_is_one_hot_as_in_the_environment():
    gym.register("test/Pair-v0", f"{__name__}:Pair", max_episode_steps=8)
    try:
        actions = recorded("test/Pair-v0", "test/pair-v0")
        obs = transitions(load("minari/test/pair-v0"))[0]
        venv = make_vec("test/Pair-v0", 1)
        seen = [venv.reset(seed=0)[0][0]] + [venv.step(action[None])[0][0] for action in actions[:-1]]
        np.testing.assert_array_equal(obs, np.stack(seen))
        assert obs.shape == (8, 5) and len(np.unique(obs[:, [0, 1, 2]], axis=0)) > 1
    finally:
        del gym.registry["test/Pair-v0"]


class Whole(Parts):
    """Its actions are whole numbers in a box."""

    def __init__(self, scale=1.0, render_mode=None):
        super().__init__(scale)
        self.action_space = gym.spaces.Box(0, 4, (2,), np.int64)


def test_whole_numbers_as_actions_are_refused():
    gym.register("test/Whole-v0", f"{__name__}:Whole", max_episode_steps=8)
    try:
        recorded("test/Whole-v0", "test/whole-v0")
    finally:
        del gym.registry["test/Whole-v0"]
    assert "minari/test/whole-v0 has whole numbers as actions" in refused("minari/test/whole-v0")


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
    name = in_minari("test/scores-v0", trajectories(5, 4), eval_env=parts, ref_min_score=10.0, ref_max_score=30.0)
    data = load(name)
    assert data.env_id == parts and data.score(15.0) == 25


@pytest.mark.parametrize("description", ["made by hand", "[1]", None])
def test_a_minari_dataset_of_ones_own_may_be_local(description):
    in_minari("local/mine-v0", trajectories(5, 4), description=description)
    assert len(load("local/mine-v0")) == 9 and not load("local/mine-v0").recipe


def test_minari_without_an_environment():
    data = load(in_minari("test/bare-v0", trajectories(5, 4)))
    assert data.env_id is None and data.score(15.0) == 15


def test_discrete_actions_and_images_of_minari_are_refused():
    episodes = [t._replace(action=np.zeros(len(t.reward), np.int64)) for t in trajectories(3)]
    name = in_minari("test/discrete-v0", episodes, act_space=gym.spaces.Discrete(2))
    assert "Discrete actions" in refused(name)
    images = gym.spaces.Box(0, 255, (4, 4, 3), np.uint8)
    episodes = [t._replace(obs=np.zeros((4, 4, 4, 3), np.uint8)) for t in trajectories(3)]
    assert "images" in refused(in_minari("test/images-v0", episodes, images))


def test_a_missing_minari_dataset(monkeypatch):
    def no_network(name, force_download):
        raise ConnectionError("no network")

    monkeypatch.setattr(minari, "download_dataset", no_network)
    sentence = refused("minari/mujoco/hopper/medium-v0")
    assert "no network" in sentence and "minari download mujoco/hopper/medium-v0" in sentence
    assert "python -m benchmarks.collect hopper-medium-v0" in refused("local/hopper-medium-v0")


def test_a_minari_download_is_continued_aside_until_it_is_complete(tmp_path, monkeypatch):
    episodes = trajectories(5, 4)
    in_minari("test/far-v0", episodes)
    root, far = tmp_path / "minari", tmp_path / "far"
    root.rename(far)
    asked = []

    def transport(name, force_download):
        """Writes into the folder of datasets as Minari does, and breaks off at the first call."""
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
    (other / "metadata.json").write_text("{}")  # half of a dataset that this one is combined from
    monkeypatch.setattr(minari, "download_dataset", transport)
    said = refused("minari/test/far-v0")
    assert "downloading it failed (cut off)" in said and "closest" not in said
    assert not (root / "test").exists() and minari.list_local_datasets() == {}
    assert_same(transitions(load("minari/test/far-v0")), expected(episodes))
    load("minari/test/far-v0")
    assert asked == [("test/far-v0", False), ("test/far-v0", True)]
    assert list(minari.list_local_datasets()) == ["test/far-v0"]
    assert refused("minari/test/fair-v0").endswith("the closest names of those that are there: test/far-v0")
    assert (root / "test" / "namespace_metadata.json").exists()


def test_a_damaged_minari_dataset(tmp_path):
    name = in_minari("test/damaged-v0", trajectories(5, 4))
    file = tmp_path / name / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:1000])
    assert "damaged" in refused(name)
    file.unlink()
    assert "damaged" in refused(name)


@pytest.mark.parametrize("linked", [False, True])
def test_files_of_minari_are_checked_also_in_a_folder_that_is_a_link(linked, monkeypatch):
    name, place = in_minari("test/linked-v0", trajectories(5, 4)), get_dataset_path("test/linked-v0") / "data"
    if linked:
        place.rename(get_dataset_path() / ".elsewhere")
        place.symlink_to(get_dataset_path() / ".elsewhere")

    def refuse(*_):
        raise ValueError("it was checked")

    monkeypatch.setattr("algos.data.minari.check_stored", refuse)
    assert "it was checked" in refused(name)


@pytest.fixture
def many(monkeypatch) -> list[int]:
    """Three episodes count as many here; the list grows by one whenever a dataset is read."""
    readings: list[int] = []
    read = minari.MinariDataset.iterate_episodes

    def noted(data):
        readings.append(data.total_episodes)
        return read(data)

    monkeypatch.setattr("algos.data.minari.MANY", 3)
    monkeypatch.setattr(minari.MinariDataset, "iterate_episodes", noted)
    return readings


def test_many_episodes_are_read_once(many):
    name = in_minari("test/many-v0", episodes := trajectories(5, 4, 3))
    first = load(name)
    for _ in range(2):
        data = load(name)
        assert data.digest == first.digest and data.env_id == first.env_id
        assert_same(transitions(data), expected(episodes))
        data.scale_rewards("range")  # in place, which changes nothing of what is kept
    assert many == [3] and list(minari.list_local_datasets()) == ["test/many-v0"]
    few = in_minari("test/few-v0", trajectories(5, 4))
    load(few), load(few)
    assert many == [3, 2, 2]


def test_what_is_kept_of_many_episodes_has_states_if_they_were_asked_for(many):
    name = in_minari("test/states-v0", trajectories(5, 4, 3), states=True)
    for states in (False, True, False, True):
        data = load(name, states=states)
        assert (data.states is not None) == states
        if states:
            np.testing.assert_array_equal(data.states, data.obs[data.index].double())
    assert many == [3, 3]


@pytest.mark.parametrize("fault", ["other", "linked", "half", "empty", "folder", "a bit", "no rows", "other source"])
def test_many_episodes_are_read_again_if_files_changed_or_what_was_kept_is_damaged(fault, many, capsys):
    name = in_minari("test/many-v0", episodes := trajectories(5, 4, 3))
    place = get_dataset_path("test/many-v0")
    if fault == "linked":
        (place / "data").rename(get_dataset_path() / ".elsewhere")
        (place / "data").symlink_to(get_dataset_path() / ".elsewhere")
    load(name)
    kept = get_dataset_path() / ".read" / "test" / "many-v0.npz"
    content = kept.read_bytes()
    if fault in ("other", "linked"):
        other = in_minari("test/other-v0", episodes := trajectories(5, 4, 3, seed=1)).removeprefix("minari/")
        main = "data/main_data.hdf5"
        (place / main).write_bytes((get_dataset_path(other) / main).read_bytes())
    elif fault in ("half", "empty"):
        kept.write_bytes(content[: len(content) // 2] if fault == "half" else b"")
    elif fault == "folder":
        kept.unlink()
        kept.mkdir()
    elif fault == "a bit":
        middle = len(content) // 2
        kept.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        with np.load(kept) as arrays:
            changed = {**arrays, "source": "another"} if fault == "other source" else {**arrays}
        if fault == "no rows":
            del changed["rows"]
        np.savez(kept, **changed)
    for _ in range(2):
        assert_same(transitions(load(name)), expected(episodes))
        assert ("was not kept" in capsys.readouterr().err) == (fault == "folder")
    assert many == ([3, 3, 3] if fault == "folder" else [3, 3])


@pytest.mark.parametrize("full", [False, True])
def test_many_episodes_are_read_where_nothing_can_be_kept(full, many, monkeypatch, capsys):
    name = in_minari("test/many-v0", episodes := trajectories(5, 4, 3))
    if full:

        def no_space(*_, **__):
            raise OSError("No space left on device")

        monkeypatch.setattr(np, "savez", no_space)
    else:
        (get_dataset_path() / ".read").write_text("")
    assert_same(transitions(load(name)), expected(episodes))
    said = r"warning: what was read of .*many-v0 was not kept for the next run \(.*\)"
    assert re.search(said, capsys.readouterr().err)


def test_one_of_several_that_ask_at_once_reads_many_episodes(many, monkeypatch):
    name = in_minari("test/many-v0", episodes := trajectories(5, 4, 3))
    place = get_dataset_path("test/many-v0")
    read, told = minari.MinariDataset.iterate_episodes, queue.Queue()

    def slow(data):
        assert told.get(timeout=60) == f"another process reads {place}, and this one waits for it"
        return read(data)

    monkeypatch.setattr("algos.folders.warn", told.put)
    monkeypatch.setattr(minari.MinariDataset, "iterate_episodes", slow)
    monkeypatch.setattr("algos.data.kept.alone", functools.partial(alone, patience=0.01))
    with ThreadPoolExecutor(3) as pool:
        for data in pool.map(load, [name] * 3):
            assert_same(transitions(data), expected(episodes))
    assert many == [3]


def test_many_episodes_are_read_where_a_file_of_the_dataset_is_a_link_to_nowhere(many, capsys):
    name = in_minari("test/many-v0", episodes := trajectories(5, 4, 3))
    (get_dataset_path(name.removeprefix("minari/")) / "data" / "lost").symlink_to("nowhere")
    assert_same(transitions(load(name)), expected(episodes))
    assert "was not kept" in capsys.readouterr().err
