"""The checks of a dataset before training, and their sentences."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from dataset_files import ACT, ACTIONS, BOX, d4rl_arrays, hdf5, npz, ogbench_arrays, trajectories, transitions

from algos.data import load, validate
from algos.errors import UserError


def test_sound_data_has_no_warnings(data):
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


def test_an_endless_episode_and_repeated_transitions_are_reported(tmp_path):
    endless = load(hdf5(tmp_path / "endless.hdf5", d4rl_arrays(trajectories(9)) | {"terminals": np.zeros(9)}))
    assert validate(endless) == ["no episode ends within its 9 transitions"]
    episodes = trajectories(5, 4)
    repeated = load(hdf5(tmp_path / "twice.hdf5", d4rl_arrays([*episodes, episodes[1]])))
    assert validate(repeated) == ["4 transitions (30.8%) occur more than once"]
    arrays = d4rl_arrays([*episodes, episodes[1]])
    arrays["next_observations"][-1, 0] += 1  # differs in no more than this
    assert validate(load(hdf5(tmp_path / "almost.hdf5", arrays))) == ["3 transitions (23.1%) occur more than once"]
    arrays["rewards"][-2] += 1
    assert validate(load(hdf5(tmp_path / "almost.hdf5", arrays))) == ["2 transitions (15.4%) occur more than once"]


def test_a_time_limit_that_is_stored_as_an_end_of_the_task_is_told(tmp_path):
    arrays, said = d4rl_arrays(trajectories(*[5] * 10)), "all 10 episodes are stored as ended"
    arrays["terminals"] = arrays["terminals"] | arrays["timeouts"]
    del arrays["timeouts"]
    assert any(said in warning for warning in validate(load(hdf5(tmp_path / "ends.hdf5", arrays))))
    for lengths in ([5] * 9, [5] * 9 + [6], [1] * 10):
        other = d4rl_arrays(trajectories(*lengths))
        other["terminals"] = other["terminals"] | other.pop("timeouts")
        assert not any("are stored as ended" in warning for warning in validate(load(hdf5(tmp_path / "o.hdf5", other))))
    assert not any(said in w for w in validate(load(hdf5(tmp_path / "t.hdf5", d4rl_arrays(trajectories(*[5] * 10))))))


def test_that_no_transition_ends_the_task_is_told_of_rewarded_files_of_ogbenchs_layout(tmp_path):
    arrays = ogbench_arrays(trajectories(5, 4))
    said = "its layout is OGBench's, in which no transition counts as an end of the task"
    assert said in validate(load(npz(tmp_path / "rewarded.npz", arrays | {"rewards": arrays["rewards"] * 0})))
    del arrays["rewards"]
    assert said not in validate(load(npz(tmp_path / "plain.npz", arrays)))
