"""Recorded episodes of OGBench's manipulation tasks: what was recorded, who acts, and the seed."""

import importlib.util
from itertools import islice

import numpy as np
import pytest

from benchmarks.recipes import manipulation
from benchmarks.recipes.manipulation import ORACLES, ogbench_play

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ogbench") is None, reason="needs the package ogbench")

SIZES = {"cube-single": (28, 21, 20), "cube-double": (37, 28, 26), "scene": (40, 25, 24), "puzzle-3x3": (55, 23, 23)}


ROWS = {"cube-single": 40, "cube-double": 15, "scene": 15, "puzzle-3x3": 140}  # as many as tests look at


@pytest.fixture(scope="module")
def data():
    return {task: list(ogbench_play(task, 0, 2, rows=ROWS[task])) for task in ORACLES}


def same(a, b) -> bool:
    """Whether two recordings are equal in all bytes."""
    return all(
        x.tobytes() == y.tobytes()
        for one, other in zip(a, b, strict=True)
        for x, y in zip((*one[:-1], *one.infos.values()), (*other[:-1], *other.infos.values()), strict=True)
    )


@pytest.mark.parametrize("task", ORACLES)
def test_rows_have_the_sizes_and_types_of_ogbenchs_files(data, task):
    for e in data[task]:
        rows, (size, positions, velocities) = len(e.reward), SIZES[task]
        shapes = {"qpos": (rows + 1, positions), "qvel": (rows + 1, velocities)}
        if task in ("scene", "puzzle-3x3"):
            shapes["button_states"] = (rows + 1, 9 if task == "puzzle-3x3" else 2)
            assert e.infos["button_states"].dtype == np.int64
        assert {name: part.shape for name, part in e.infos.items()} == shapes
        assert e.obs.shape == (rows + 1, size) and e.action.shape == (rows, 5)
        assert e.obs.dtype == e.action.dtype == e.reward.dtype == e.infos["qpos"].dtype == np.float32
        assert np.abs(e.action).max() <= 1 and np.flatnonzero(e.truncated).tolist() == [rows - 1]
        assert not e.terminated.any()
        np.testing.assert_array_equal(e.obs[:, :6], e.infos["qpos"][:, :6])  # the arm's joints, of the same row
        np.testing.assert_array_equal(e.obs[:, 6:12], e.infos["qvel"][:, :6])


def test_there_are_as_many_episodes_and_rows_as_published(monkeypatch):
    monkeypatch.setattr(manipulation, "episode", lambda *args: args[-2:])  # rows and seed
    train, validation = (list(ogbench_play("cube-single", 0, validation=v)) for v in (False, True))
    assert (len(train), len(validation)) == (1000, 100) and {rows for rows, _ in train + validation} == {1001}
    assert len({*train, *validation}) == 1100


def test_buttons_are_those_that_are_observed_and_a_press_turns_a_cross(data):
    cross = {frozenset(3 * x + y for x, y in ((i, j), (i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1))
                       if 0 <= x < 3 and 0 <= y < 3) for i in range(3) for j in range(3)}  # fmt: skip
    presses = 0
    for e in data["puzzle-3x3"]:
        states = e.infos["button_states"]
        np.testing.assert_array_equal(e.obs[:, 19:].reshape(len(states), 9, 4)[:, :, 1], states)
        for turned in np.diff(states, axis=0):
            if turned.any():
                presses += 1
                assert frozenset(np.flatnonzero(turned).tolist()) in cross
    assert presses > 3


def test_a_task_that_is_done_is_rewarded_and_a_new_one_drawn(data):
    ends = sum((np.diff(e.reward) < 0).sum() for e in data["puzzle-3x3"])
    assert ends >= 4  # rewards end with a new target only, as a pressed button stays pressed until another press


def test_actions_lead_from_row_to_row(data):
    world, _ = manipulation.world_and_oracles("cube-single")
    world.reset(seed=0)
    (e, *_) = data["cube-single"]
    for t in range(0, 40, 5):
        world.set_state(e.infos["qpos"][t], e.infos["qvel"][t])
        obs = world.step(e.action[t])[0]
        np.testing.assert_allclose(obs[:6], e.obs[t + 1, :6], atol=2e-3)  # the arm's joints
        assert np.abs(e.obs[t + 1, :6] - e.obs[t, :6]).max() > 2e-3


@pytest.mark.parametrize("task", ["cube-double", "scene"])
def test_the_seed_and_the_number_decide_alone(data, task):
    np.random.seed(3)  # noqa: NPY002
    state = np.random.get_state()[1].tobytes()  # noqa: NPY002
    assert same(data[task], list(ogbench_play(task, 0, 2, rows=ROWS[task])))
    assert np.random.get_state()[1].tobytes() == state  # noqa: NPY002
    later = list(islice(ogbench_play(task, 0, 3, rows=3), 3))
    assert same(later[1:2], [cut(data[task][1], 3)])  # whatever the length of the episode before it
    assert not same([cut(data[task][0], 3)], list(ogbench_play(task, 1, 1, rows=3)))
    assert not same([cut(data[task][0], 3)], list(ogbench_play(task, 0, 10, validation=True, rows=3)))


def cut(e, rows):
    """The first steps of an episode."""
    infos = {name: values[: rows + 1] for name, values in e.infos.items()}
    truncated = np.arange(rows) == rows - 1
    return e._replace(
        obs=e.obs[: rows + 1], action=e.action[:rows], reward=e.reward[:rows], terminated=e.terminated[:rows],
        truncated=truncated, infos=infos,
    )  # fmt: skip


def test_an_episode_of_the_scene_is_made_anew_if_the_cube_is_lost(monkeypatch, data):
    verdicts = iter([False, True])
    monkeypatch.setattr(manipulation, "cube_in_sight", lambda trajectory: next(verdicts))
    (second,) = ogbench_play("scene", 0, 1, rows=5)
    assert not same([second], [cut(data["scene"][0], 5)])
    assert next(verdicts, None) is None


@pytest.mark.parametrize(
    ("y", "z", "seen"),
    [(0.0, 0.02, True), (0.3, 0.02, False), (-0.31, 0.07, True), (-0.31, 0.02, False), (-0.31, 0.09, False)],
)
def test_a_cube_is_in_sight_between_bounds_or_in_the_drawer(data, y, z, seen):
    e = data["scene"][0]
    qpos = e.infos["qpos"].copy()
    qpos[:, 15:17] = 0.0, 0.02
    qpos[7, 15:17] = y, z
    assert manipulation.cube_in_sight(e._replace(infos={"qpos": qpos})) is seen


def test_unknown_tasks_are_refused_at_once():
    with pytest.raises(ValueError, match="task must be one of cube-single, cube-double, scene, puzzle-3x3, not 'cube'"):
        ogbench_play("cube", 0)
