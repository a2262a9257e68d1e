"""Tasks, as algorithms see them."""

from envs import Task


def test_the_size_of_an_observation_is_that_of_its_shape():
    assert Task("Pendulum-v1", (3,), 1, False, (-2.0,), (2.0,), 200).obs_size == 3
    assert Task("MinAtar/Breakout-v1", (4, 10, 10), 6, True, (), (), 0).obs_size == 400
