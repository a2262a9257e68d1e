"""Tasks of other packages behind one call."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import flatten
from gymnasium.vector import AutoresetMode

import envs.make
from algos.errors import UserError
from algos.run import check_env_id
from envs import make_vec, register


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("MinAtar/Breakout-v1", "minatar", "minatar"),
        ("dm_control/dog-run-v0", "dm_control", "dm_control"),
        ("ALE/Pong-v5", "ale-py", "atari"),
        ("PongNoFrameskip-v4", "ale-py", "atari"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, env_id, package, extra):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    sentence = f"{env_id} needs the package {package}: pip install -e '.[{extra}]'"
    with pytest.raises(ModuleNotFoundError) as error:
        make_vec(env_id)
    assert str(error.value) == sentence
    with pytest.raises(UserError) as refusal:
        check_env_id(env_id)
    assert str(refusal.value) == f"--env-id: {sentence}"


def test_ids_without_a_package_of_their_own_need_no_registration():
    check_env_id("Pendulum-v1")
    with pytest.raises(UserError, match="no environment 'MinAtaxi/Breakout-v1'"):
        check_env_id("MinAtaxi/Breakout-v1")


def test_an_unknown_game_gets_the_closest_names():
    pytest.importorskip("minatar")
    with pytest.raises(
        UserError, match=r"no environment 'MinAtar/Breakot-v1'; the closest ids are MinAtar/Breakout-v1"
    ):
        check_env_id("MinAtar/Breakot-v1")


@pytest.mark.parametrize("env_id", ["MinAtar/Breakout-v1", "MinAtar/Seaquest-v1"])
def test_minatar_is_the_original_with_channels_first(env_id):
    pytest.importorskip("minatar")
    venv = make_vec(env_id, 1, autoreset_mode=AutoresetMode.SAME_STEP)
    env = gym.make(env_id)
    (height, width, channels), actions = env.observation_space.shape, env.action_space.n
    assert venv.single_observation_space.shape == (channels, height, width)
    assert venv.single_observation_space.dtype == np.float32
    ours, _ = venv.reset(seed=[3])
    theirs, _ = env.reset(seed=3)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(80):
        assert np.array_equal(ours[0], theirs.transpose(2, 0, 1))
        action = rng.integers(actions, size=1)
        ours, reward, terminated, _, infos = venv.step(action)
        theirs, their_reward, their_end, _, _ = env.step(action[0])
        assert (reward[0], terminated[0]) == (their_reward, their_end)
        if their_end:
            ends += 1
            assert np.array_equal(infos["final_obs"][0], theirs.transpose(2, 0, 1))
            theirs, _ = env.reset()
    assert ends


def test_only_images_are_turned():
    venv = make_vec("Pendulum-v1", 1)
    assert venv.single_observation_space == gym.make("Pendulum-v1").observation_space


@pytest.mark.parametrize(("env_id", "action"), [("MountainCar-v0", 1), ("HalfCheetah-v5", np.zeros(6, np.float32))])
@pytest.mark.parametrize("limit", [3, 1100])
def test_another_time_limit_shorter_or_longer_than_the_tasks_own(env_id, action, limit):
    venv = make_vec(env_id, 1, max_episode_steps=limit)
    venv.reset(seed=0)
    ends = []
    for _ in range(limit):
        _, _, terminated, truncated, _ = venv.step(np.stack([action]))
        ends.append((bool(terminated[0]), bool(truncated[0])))
    assert ends == [(False, False)] * (limit - 1) + [(False, True)]


@pytest.fixture
def dm_control():
    pytest.importorskip("dm_control")
    pytest.importorskip("shimmy")
    try:
        register("dm_control/cartpole-swingup-v0")
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("env_id", ["dm_control/cartpole-swingup-v0", "dm_control/humanoid-run-v0"])
def test_dm_control_is_the_original_with_flat_observations(dm_control, env_id):
    venv, env = make_vec(env_id, 1), gym.make(env_id)
    ours, _ = venv.reset(seed=[3])
    theirs, _ = env.reset(seed=3)
    assert isinstance(theirs, dict)
    rng = np.random.default_rng(0)
    for _ in range(5):
        assert np.array_equal(ours[0], flatten(env.observation_space, theirs))
        action = rng.uniform(-1, 1, venv.action_space.shape)
        ours, reward, *_ = venv.step(action)
        theirs, their_reward, *_ = env.step(action[0])
        assert reward[0] == their_reward


def test_a_mujoco_that_dm_control_cannot_read_is_refused(monkeypatch):
    pytest.importorskip("dm_control")
    pytest.importorskip("shimmy")
    monkeypatch.setattr(envs.make, "mujoco", SimpleNamespace(MjModel=object, MjData=object, __version__="99"))
    with pytest.raises(ModuleNotFoundError, match=r"does not work with mujoco 99: pip install -e '.\[dm_control\]'"):
        register("dm_control/dog-run-v0")
