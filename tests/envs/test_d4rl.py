"""D4RL's table: ids, files, scores and today's environments."""

from pathlib import Path

import numpy as np
import pytest

from algos.data.record import normalised
from envs import make_vec
from envs.d4rl import find, folder, tasks


def score(name, returns):
    task = find(name)
    return normalised(returns, task.low, task.high)


@pytest.mark.parametrize(
    ("name", "returns", "expected"),
    [
        ("halfcheetah-medium-v2", 5000, 42.530),
        ("hopper-medium-v2", 1000, 31.3489),
        ("hopper-medium-replay-v0", 0, 0.6229),
        ("walker2d-expert-v1", 3000, 65.3144),
        ("ant-medium-v2", 0, 7.7426),
        ("pen-human-v1", 0, -3.2297),
        ("maze2d-umaze-v1", 0, -17.2814),
        ("antmaze-large-play-v2", 0.25, 25),
        ("kitchen-mixed-v0", 1, 25),
    ],
)
def test_scores(name, returns, expected):
    assert score(name, returns) == pytest.approx(expected, abs=5e-4)


def test_scores_of_arrays_are_linear():
    returns = np.array([0.0, 1.0, 3234.3])
    np.testing.assert_allclose(score("hopper-medium-v2", returns), [0.622887, 0.622887 + 0.030726, 100], atol=1e-5)
    assert score("walker2d-medium-v2", 1.0) - score("walker2d-medium-v2", 0.0) == pytest.approx(0.021783, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("halfcheetah-random-v0", -280.178953, 12135.0),
        ("door-cloned-v1", -56.512833, 2880.5693087298737),
        ("hammer-expert-v0", -274.856578, 12794.134825156867),
        ("relocate-human-v1", -6.425911, 4233.877797728884),
        ("maze2d-open-dense-v0", 11.17817, 27.166538620695782),
        ("maze2d-medium-dense-v1", 44.264742, 297.4552547777125),
        ("maze2d-large-v1", 6.7, 273.99),
        ("ant-random-expert-v0", -325.6, 3879.7),  # known from its registration only
        ("maze2d-eval-large-dense-v1", 56.95455, 326.09647655082637),
    ],
)
def test_reference_scores(name, low, high):
    assert (find(name).low, find(name).high) == (low, high)


def test_the_table_is_whole():
    families = {}
    for task in tasks().values():
        families[task.family] = families.get(task.family, 0) + 1
    assert families == {
        "ant": 18, "antmaze": 24, "bullet": 24, "carla": 5, "door": 8, "flow": 8, "halfcheetah": 17, "hammer": 8,
        "hopper": 17, "kitchen": 3, "maze2d": 20, "minigrid": 2, "pen": 8, "relocate": 8, "walker2d": 17,
    }  # fmt: skip
    assert sum(t.file is None for t in tasks().values()) == 4
    assert all(t.low < t.high for t in tasks().values() if t.low is not None and t.high is not None)
    assert all((t.low is None) == (t.high is None) for t in tasks().values())
    files = [t.place for t in tasks().values() if t.place]
    assert all(place.suffix == ".hdf5" for place in files)


def test_qualities_and_versions_of_a_task_share_their_references():
    for family in ("halfcheetah", "hopper", "walker2d", "ant", "pen", "door", "hammer", "relocate", "antmaze"):
        assert len({(t.low, t.high) for t in tasks().values() if t.family == family}) == 1


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("hopper-medium-replay-v2", "gym_mujoco_v2/hopper_medium_replay-v2.hdf5"),
        ("hopper-medium-replay-v0", "gym_mujoco/hopper_mixed.hdf5"),
        (
            "antmaze-large-play-v2",
            "ant_maze_v2/Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5",
        ),
        ("kitchen-complete-v0", None),
        ("maze2d-umaze-v1", None),
    ],
)
def test_files_and_where_they_lie(name, file, monkeypatch, tmp_path):
    task = find(name)
    assert file is None or task.file == file
    assert task.url == f"http://rail.eecs.berkeley.edu/datasets/offline_rl/{task.file}"
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "mine"))
    assert task.place == tmp_path / "mine" / task.file.split("/")[1]
    monkeypatch.delenv("D4RL_DATASET_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder() == tmp_path / ".d4rl" / "datasets"
    monkeypatch.setenv("D4RL_DATASET_DIR", "~/elsewhere")
    assert folder() == Path(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("hopper-medium-v2", 1000),
        ("antmaze-umaze-diverse-v2", 700),
        ("antmaze-medium-play-v2", 1000),
        ("kitchen-partial-v0", 280),
        ("pen-cloned-v1", 100),
        ("door-human-v1", 200),
        ("maze2d-open-v0", 150),
        ("maze2d-umaze-dense-v1", 300),
        ("maze2d-medium-v1", 600),
        ("maze2d-large-v1", 800),
        ("maze2d-umaze-v0", 150),
        ("maze2d-medium-dense-v0", 250),
        ("maze2d-large-v0", 600),
        ("maze2d-eval-umaze-v1", 300),
        ("maze2d-eval-large-dense-v1", 800),
        ("antmaze-eval-umaze-diverse-v0", 700),
        ("antmaze-eval-large-play-v0", 1000),
        ("bullet-maze2d-umaze-v0", 300),
        ("bullet-maze2d-large-v0", 800),
        ("bullet-ant-medium-replay-v0", 1000),
        ("flow-ring-random-v0", 0),
    ],
)
def test_limits_of_episodes(name, limit):
    assert find(name).limit == limit


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("hammer-human-longhorizon-v1", 600), ("pen-human-longhorizon-v0", 200),
        ("relocate-human-longhorizon-v1", 500), ("door-human-longhorizon-v0", 300),
    ],
)  # fmt: skip
def test_long_horizons_are_those_of_evaluations_too(name, limit):
    task, short = find(name), find(name.replace("-longhorizon", ""))
    assert (task.limit, task.env_options) == (limit, short.env_options | {"max_episode_steps": limit})
    assert short.limit < limit


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("halfcheetah-medium-v2", (17, 6)),
        ("hopper-medium-v2", (11, 3)),
        ("walker2d-medium-v2", (17, 6)),
        ("ant-medium-v2", (111, 8)),
    ],
)
def test_environments_of_today_have_the_sizes_of_the_data(name, sizes):
    task = find(name)
    venv = make_vec(task.env_id, 1, **task.env_options)
    assert (*venv.single_observation_space.shape, *venv.single_action_space.shape) == sizes
    venv.close()
    assert task.note


def test_the_pen_gets_the_time_that_it_had():
    pytest.importorskip("gymnasium_robotics")
    task = find("pen-human-v1")
    venv = make_vec(task.env_id, 1, **task.env_options)
    venv.reset(seed=0)
    ends = [venv.step(venv.action_space.sample() * 0)[3][0] for _ in range(100)]
    assert venv.single_observation_space.shape == (45,)
    assert ends == [False] * 99 + [True]
    venv.close()


@pytest.mark.parametrize(("options", "difference"), [({}, 1.0), ({"max_episode_steps": 3}, 0.0)])
def test_hopper_of_v5_withholds_the_reward_of_a_fall(options, difference):
    """This is the reason to evaluate in v4. Standing still ends in a fall, unless three steps end the episode."""
    totals = []
    for env_id in (find("hopper-medium-v2").env_id, "Hopper-v5"):
        venv = make_vec(env_id, 1, **options)
        venv.reset(seed=3)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = venv.step(np.zeros((1, 3)))
            total += reward[0]
            over = terminated[0] or truncated[0]
        totals.append(total)
        assert terminated[0] == (not options)
        venv.close()
    assert totals[0] - totals[1] == pytest.approx(difference, abs=1e-9)


def test_unknown_ids_are_refused_with_the_closest_ones():
    with pytest.raises(ValueError, match="hopper-medium-v2"):
        find("hopper-medium-v3")
    with pytest.raises(ValueError, match="no task"):
        find("")


@pytest.mark.parametrize(
    ("name", "kind", "palm", "thing"),
    [
        ("door-human-v1", "site", "S_grasp", "S_handle"),
        ("hammer-cloned-v1", "body", "S_grasp", "Object"),
        ("relocate-expert-v1", "body", "S_grasp", "Object"),
    ],
)
def test_in_adroit_the_palms_distance_is_taken_off_the_reward(name, kind, palm, thing):
    pytest.importorskip("gymnasium_robotics")
    task = find(name)
    ours, theirs = (make_vec(task.env_id, 1, **options) for options in (task.env_options, {}))
    for venv in (ours, theirs):
        venv.reset(seed=0)
        venv.action_space.seed(0)
    for _ in range(3):
        action = ours.action_space.sample()
        (_, reward, *_), (_, raw, *_) = ours.step(action), theirs.step(action)
        env = theirs.envs[0].unwrapped
        place = env.data.site(thing).xpos if kind == "site" else env.data.body(thing).xpos
        distance = np.linalg.norm(env.data.site(palm).xpos - place)
        assert distance > 0.05
        np.testing.assert_allclose(reward, raw - 0.2 * distance, rtol=1e-6)
    ours.close(), theirs.close()
