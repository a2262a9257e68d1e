"""The ant on a plane: its steps are those of OGBench's own ant, and a seed decides everything."""

import importlib
import importlib.util

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from envs import find_spec, make_vec

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ogbench") is None, reason="needs the package ogbench")

NAME = "envs.ant_direction:AntDirection-v0"


@pytest.fixture
def env():
    env = gym.make(NAME)
    yield env
    env.close()


def actions(count):
    return np.random.default_rng(0).uniform(-1.5, 1.5, (count, 8))  # MuJoCo clips them


def test_steps_are_those_of_ogbench(env):
    theirs = importlib.import_module("ogbench.online_locomotion.ant").AntEnv()
    env.reset(seed=3)
    theirs.reset(seed=0)
    ant = env.unwrapped
    theirs.set_state(ant.data.qpos, ant.data.qvel)
    for action in actions(120):  # the direction changes once
        before, direction = ant.data.qpos[:2].copy(), ant.direction
        obs, reward, terminated, truncated, _ = env.step(action)
        expected, _, fallen, _, _ = theirs.step(action)
        np.testing.assert_array_equal(obs[:27], expected)
        assert reward == pytest.approx((theirs.data.qpos[:2] - before) @ direction, abs=1e-12)
        assert (terminated, truncated) == (fallen, False)


def test_resets_are_those_of_ogbench(env):
    theirs = importlib.import_module("ogbench.online_locomotion.ant").AntEnv()
    np.testing.assert_array_equal(env.reset(seed=5)[0][:27], theirs.reset(seed=5)[0])
    env.step(actions(1)[0])
    np.testing.assert_array_equal(env.reset(seed=5)[0][:27], theirs.reset(seed=5)[0])


def test_the_camera_goes_along():
    """Pictures need a renderer, which not every machine has."""
    env = gym.make(NAME, render_mode="rgb_array")
    env.reset(seed=0)
    ant = env.unwrapped
    assert ant.render_mode in env.metadata["render_modes"]
    before = ant.data.camera("track").xpos.copy()
    ant.data.qpos[:2] += (5, -3)
    mujoco.mj_forward(ant.model, ant.data)
    np.testing.assert_allclose(ant.data.camera("track").xpos - before, (5, -3, 0), atol=1e-9)
    env.close()


def test_a_unit_direction_changes_every_100_steps(env):
    obs, _ = env.reset(seed=0)
    directions = [obs[27:]]
    for _ in range(250):
        directions.append(env.step(np.zeros(8))[0][27:])
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
    changes = np.flatnonzero((np.diff(directions, axis=0) != 0).any(1)) + 1
    assert changes.tolist() == [100, 200]
    env.reset()
    later = [env.step(np.zeros(8))[0][27:] for _ in range(100)]
    assert np.flatnonzero((np.diff(later, axis=0) != 0).any(1)).tolist() == [98]  # 100 steps after the reset


@pytest.mark.parametrize(("height", "over"), [(0.15, True), (0.6, False), (1.1, True), (np.nan, True)])
def test_an_episode_ends_where_the_torso_is_too_low_or_too_high(env, height, over, monkeypatch):
    env.reset(seed=0)
    ant = env.unwrapped
    monkeypatch.setattr("envs.ant_direction.mujoco.mj_step", lambda *_: ant.data.qpos.__setitem__(2, height))
    assert env.step(np.zeros(8))[2] is over


def test_an_episode_has_1000_steps():
    assert find_spec(NAME).max_episode_steps == 1000


def test_the_seed_decides_alone():
    def play(seed):
        venv = make_vec(NAME, 2)
        rows = [venv.reset(seed=seed)[0], *(venv.step(np.stack([a, a]))[0] for a in actions(110))]
        venv.close()
        return np.array(rows)

    first, again, other = (play(seed) for seed in (0, 0, 1))
    assert first.shape == (111, 2, 29) and first.tobytes() == again.tobytes()
    assert not np.array_equal(first[0], other[0]) and not np.array_equal(first[:, 0], first[:, 1])
