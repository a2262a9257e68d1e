"""Continuous actions as numbered combinations of levels."""

import gymnasium as gym
import numpy as np
import pytest
import sqirl
from gymnasium.vector import AutoresetMode

from envs import SeededEnvs, make_vec
from envs.levels import Discretised


def test_combinations_are_numbered_with_the_last_dimension_fastest():
    venv = make_vec("Swimmer-v5", 2, levels=(-1, 0.5))
    assert venv.single_action_space == gym.spaces.Discrete(4) and venv.action_space.shape == (2,)
    assert venv.choices.tolist() == [[-1, -1], [-1, 0.5], [0.5, -1], [0.5, 0.5]]
    assert make_vec("Pendulum-v1", 1, levels=(-1, 0, 1)).choices.tolist() == [[-2], [0], [2]]  # its bounds are ±2


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Pendulum-v1"])
def test_a_number_does_what_its_action_does(env_id):
    plain, numbered = (make_vec(env_id, 3, AutoresetMode.SAME_STEP, levels=levels) for levels in ((), (-1, 1)))
    assert np.array_equal(plain.reset(seed=[1, 2, 3])[0], numbered.reset(seed=[1, 2, 3])[0])
    for step in range(30):
        actions = np.array([step, step + 1, 2 * step]) % len(numbered.choices)
        for ours, theirs in zip(numbered.step(actions), plain.step(numbered.choices[actions]), strict=True):
            if isinstance(ours, np.ndarray):
                np.testing.assert_array_equal(ours, theirs)


def test_batched_tasks_keep_their_state():
    envs = SeededEnvs("Hopper-v5", [0, 1], actions="discrete", levels=(-1, 1))
    assert envs.resumable and envs.act_size == 8


@pytest.mark.parametrize(
    ("env_id", "levels", "sentence"),
    [
        ("CartPole-v1", (-1, 1), "levels are for continuous actions with bounds"),
        ("Humanoid-v5", (-1, 1), "2 levels of each of 17 dimensions are 131,072 actions, and 10,000 are the most"),
        ("Hopper-v5", (-1, -1), "levels must be two or more, differ from each other"),
        ("Hopper-v5", (-1, 2), r"levels must be two or more, differ from each other and lie in \[-1, 1\], got -1, 2"),
    ],
)
def test_levels_that_cannot_be_are_refused(env_id, levels, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        Discretised(make_vec(env_id, 1), levels)


def test_sqirl_runs_on_mujoco_with_levels(tmp_path):
    flags = {"env_id": "Hopper-v5", "levels": (-1.0, 1.0), "m": 2, "total_steps": 200, "eval_every": 200}
    sqirl.main(sqirl.Args(**flags, eval_episodes=2, device="cpu", out=tmp_path, quiet=True))
    assert (tmp_path / "Hopper-v5" / "sqirl" / "default" / "eval.parquet").exists()
