"""Features, clocks and time limits. The values are those of the stream-x sheet, section 9, in float64."""

import pytest
import torch

from algos.errors import UserError
from algos.stream import Clock, Features, time_limit
from envs import Task

D = torch.float64


def test_time_begins_with_the_first_step():
    clock = Clock(2, 4)
    for _ in range(2):
        clock.start(torch.tensor([1.0, 0.0]))
        assert clock.time[0] == -0.5
        assert [clock.tick()[0].item() for _ in range(4)] == [-0.5, -0.25, 0.0, 0.25]
    assert clock.time[1] == 1.5  # of the run that did not begin anew


def test_features_of_the_first_observation_are_zero_and_the_time():
    features = Features(2, Task("Made-v0", (3,), 1, False, (-1.0,), (1.0,), 10))
    first = features.start(torch.randn(2, 3, dtype=D), torch.ones(2))
    assert first.tolist() == [[0, 0, 0, -0.5]] * 2


def test_frames_are_stacked_as_they_were_normalised_and_the_first_fills_the_stack():
    features = Features(2, Task("Made-v0", (1, 84, 84), 3, True, (), (), 0))
    assert features.out_shape == (4, 84, 84)
    obs = torch.randn(4, 2, 84 * 84, dtype=D)
    assert (features.start(obs[0], torch.ones(2)) == 0).all()
    one, two = features(obs[1]).clone(), features(obs[2]).clone()
    assert torch.equal(two[:, 2], one[:, 3]) and (two[:, :2] == 0).all() and (two[:, 3] != 0).any()
    again = features.start(obs[3], torch.tensor([0.0, 1.0]))
    assert torch.equal(features.frames[0], two[0]) and torch.equal(features.frames[1], again[1])
    assert torch.equal(again[1, 0], again[1, 3])


def test_images_of_another_size_are_refused():
    with pytest.raises(UserError, match="images of 64x64; this needs 10x10 or 84x84"):
        Features(1, Task("Made-v0", (3, 64, 64), 3, True, (), (), 0))


@pytest.mark.parametrize(
    ("env_id", "wanted", "limit"),
    [
        ("CartPole-v0", 0, 10_000), ("CartPole-v1", 0, 10_000), ("MountainCar-v0", 0, 10_000),
        ("gymnasium:CartPole-v1", 0, 10_000),
        ("Acrobot-v1", 0, 10_000), ("Hopper-v5", 0, None), ("CartPole-v1", 500, 500), ("Hopper-v5", 7, 7),
    ],
)  # fmt: skip
def test_classic_control_runs_longer(env_id, wanted, limit):
    assert time_limit(env_id, wanted).get("max_episode_steps") == limit


def test_images_have_no_clock():
    assert Features(1, Task("Made-v0", (4, 10, 10), 3, True, (), (), 500)).out_shape == (4, 10, 10)
