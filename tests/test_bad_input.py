"""Bad input is refused in one sentence before anything is written."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import sac
import torch

from algos.errors import UserError
from algos.memory import is_lack_of_memory
from algos.run_folder import checked_part


class Faulty(gym.Env):
    """Raises an error of its own when it is made or reset."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, at):
        if at == "make":
            raise RuntimeError("no licence\nfor this")

    def reset(self, *, seed=None, options=None):
        raise KeyError("start")


gym.register("FaultyToMake-v0", lambda: Faulty("make"))
gym.register("FaultyToReset-v0", lambda: Faulty("reset"))


def refusal(tmp_path, **arguments):
    """The sentence by which sac.py refuses arguments, without having written anything."""
    with pytest.raises(UserError) as refused:
        sac.main(sac.Args(**{"out": tmp_path / "out", "total_steps": 10, "device": "cpu", "quiet": True, **arguments}))
    assert not (tmp_path / "out").exists()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    "name", ["../../x", "/abs", "..", ".", "", "../sac", "a/b", "a\\b", "-x", "a\nb", "a\0b", "x" * 400]
)
def test_a_variant_is_one_part_of_a_path(name, tmp_path):
    assert refusal(tmp_path, variant=name).startswith("--variant names a folder")


@pytest.mark.parametrize("name", ["default", "lr_1e-4", "é", "a b", "x" * 200, "..a", "k=1,m=2"])
def test_other_names_are_parts_of_paths(name):
    assert checked_part("--variant", name) == name


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        ("HalfCheetah-v2", "--env-id: HalfCheetah-v2 is no longer part of Gymnasium: take HalfCheetah-v5"),
        ("Humanoid-v3", "--env-id: Humanoid-v3 is no longer part of Gymnasium: take Humanoid-v5"),
        ("GymV21Environment-v0", "--env-id GymV21Environment-v0 cannot be made: its code raised ImportError, To use"),
        ("FetchReach-v4", "--env-id FetchReach-v4 cannot be made: its code raised"),
        (
            "FaultyToMake-v0",
            "--env-id FaultyToMake-v0 cannot be made: its code raised RuntimeError, no licence for this",
        ),
        ("FaultyToReset-v0", "--env-id FaultyToReset-v0 cannot be made: its code raised KeyError, 'start'"),
    ],
)
def test_an_environment_that_cannot_be_made_is_named_with_the_reason(env_id, sentence, tmp_path):
    assert refusal(tmp_path, env_id=env_id).startswith(sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"seeds": ("0:100000",)}, "--seeds takes at most 10,000 seeds"),
        ({"seeds": ("0:6000", "6000:11000")}, "--seeds takes at most 10,000 seeds"),
        ({"seeds": (str(2**63),)}, "--seeds must be below 2^63, got"),
        ({"total_steps": 2**53}, "--total-steps must be below 2^53"),
        ({"total_steps": -(2**53)}, "--total-steps must be above -2^53"),
        ({"eval_episodes": 10_001}, "--eval-episodes must lie in"),
        ({"threads": 10**6}, "--threads must lie in"),
        ({"batch_size": 10**7}, "--batch-size must lie in"),
        ({"hidden": (10**6, 10)}, "--hidden must lie in"),
    ],
)
def test_sizes_beyond_all_use_are_refused(arguments, sentence, tmp_path):
    assert refusal(tmp_path, **arguments).startswith(sentence)


@pytest.mark.slow
def test_networks_that_do_not_fit_into_memory_are_refused_before_anything_is_written(tmp_path):
    command = [
        sys.executable,
        sac.__file__,
        "--env-id",
        "Pendulum-v1",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run([*command, "--hidden", "100000", "100000"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: there is not enough memory for this")
    assert not (tmp_path / "out").exists()


def test_errors_of_memory_are_told_from_others():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**62)
    assert is_lack_of_memory(refused.value) and is_lack_of_memory(MemoryError())
    assert not is_lack_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
