"""Recorded episodes of OGBench's antmaze: where the expert is told to go, its noise, the seed, and its speed."""

import importlib.util
import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.recipes import antmaze, locomotion, pointmaze
from benchmarks.recipes.antmaze import ogbench_antmaze, speed
from benchmarks.recipes.grid import Grid
from benchmarks.recipes.locomotion import Policy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ogbench") is None, reason="needs the package ogbench")


class Still:
    """A policy that does nothing, and remembers what it saw."""

    def __init__(self):
        self.seen = []

    def sample(self, obs, noise):
        assert obs.shape == (1, 29) and not noise.any()
        self.seen.append(obs[0])
        return np.zeros((1, 8), np.float32)


class Forward(gym.Env):
    """Stands for the ant: it moves by the first action along the direction, and falls in every third step."""

    def reset(self, **_):
        self.steps = 0
        return np.full(29, 0.1), {}

    def step(self, action):
        self.steps += 1
        return np.full(29, 0.1), float(action[0]), self.steps == 3, False, {}


@pytest.fixture
def still(monkeypatch):
    policy = Still()
    monkeypatch.setattr(antmaze, "shipped_policy", lambda *_: policy)
    return policy


def same(a, b) -> bool:
    """Whether two recordings are equal in all bytes."""
    return all(
        x.tobytes() == y.tobytes()
        for one, other in zip(a, b, strict=True)
        for x, y in zip((*one[:-1], *one.infos.values()), (*other[:-1], *other.infos.values()), strict=True)
    )


def save(path, training, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    tensors = {"weight.0": torch.randn(29, 8, generator=generator), "bias.0": torch.zeros(8)}
    tensors |= {"weight.1": torch.randn(8, 16, generator=generator), "bias.1": torch.zeros(16)}
    tensors |= {"mean": torch.zeros(8), "scale": torch.full((8,), scale)}
    save_file(tensors, path, {"facts": json.dumps(training)})


@pytest.mark.parametrize(
    ("kind", "episodes", "rows", "noise"),
    [("navigate", 1000, 1001, 0.2), ("stitch", 5000, 201, 0.2), ("explore", 10_000, 501, 1.0)],
)
def test_as_many_episodes_and_rows_as_published_with_the_noise_of_the_kind(
    still, monkeypatch, kind, episodes, rows, noise
):
    (e,) = ogbench_antmaze("medium", kind, 0, episodes=1)
    assert [part.shape for part in e[:-1]] == [(rows + 1, 29), (rows, 8), (rows,), (rows,), (rows,)]
    shapes = {"qpos": (rows + 1, 15), "qvel": (rows + 1, 14), "goal": (rows + 1, 2)}
    assert {name: part.shape for name, part in e.infos.items()} == shapes
    np.testing.assert_array_equal(e.obs, np.hstack([e.infos["qpos"], e.infos["qvel"]]))
    clipped = np.clip(np.random.default_rng(0).normal(0, noise, 100_000), -1, 1)
    assert e.action.std() == pytest.approx(clipped.std(), rel=0.06) and np.abs(e.action).max() <= 1

    monkeypatch.setattr(pointmaze, "ogbench_episode", lambda *args: args[-1])  # its seed
    train, validation = (list(ogbench_antmaze("large", kind, 0, validation=v)) for v in (False, True))
    assert (len(train), len(validation)) == (episodes, episodes // 10)
    assert len({*train, *validation}) == episodes + episodes // 10


def test_the_expert_sees_its_body_and_the_way_to_the_next_cell(still):
    (e,) = ogbench_antmaze("large", "stitch", 1, episodes=1)
    world = gym.make("antmaze-large-v0").unwrapped
    grid = Grid(world.maze_map == 1)
    goal = world.xy_to_ij(e.infos["goal"][0])
    np.testing.assert_allclose([seen[:27] for seen in still.seen], e.obs[:-1, 2:], rtol=1e-6)
    for seen, obs in zip(still.seen, e.obs[:-1], strict=True):
        way = np.array(world.ij_to_xy(grid.towards[goal][world.xy_to_ij(obs[:2])])) - obs[:2]
        np.testing.assert_allclose(seen[27:], way / np.linalg.norm(way), atol=1e-4)
    assert grid.distance[goal][world.xy_to_ij(e.obs[0])] == 4


def test_explore_goes_in_random_directions_that_change_every_ten_steps(still):
    list(ogbench_antmaze("medium", "explore", 0, episodes=1))
    directions = np.array([seen[27:] for seen in still.seen])
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, atol=1e-4)
    changes = np.flatnonzero((np.diff(directions, axis=0) != 0).any(1)) + 1
    assert changes.tolist() == list(range(10, 501, 10))
    assert np.abs(directions[::10].mean(0)).max() < 0.4


def test_the_seed_and_the_number_decide_alone(tmp_path, monkeypatch):
    save(tmp_path / "ant-direction-expert.safetensors", {"steps": 1})
    monkeypatch.setattr(locomotion, "POLICIES", tmp_path)
    first = list(ogbench_antmaze("medium", "stitch", 0, episodes=2))
    np.random.seed(3)  # noqa: NPY002
    assert same(first, list(ogbench_antmaze("medium", "stitch", 0, episodes=2)))
    (validation,) = ogbench_antmaze("medium", "stitch", 0, episodes=2, validation=True)
    (other,) = ogbench_antmaze("medium", "stitch", 1, episodes=1)
    assert len({e.obs[0].tobytes() for e in (*first, validation, other)}) == 4
    seeds = [pointmaze.sub_seed(0, "antmaze-medium-stitch-v0 train", i) for i in range(2)]
    monkeypatch.setattr(pointmaze, "sub_seed", lambda *_: seeds[1])
    assert same(first[1:], list(ogbench_antmaze("medium", "stitch", 0, episodes=1)))  # whatever came before it


def test_speed_is_the_way_towards_the_direction_in_a_second(tmp_path, monkeypatch):
    save(tmp_path / "p.safetensors", {})
    policy = Policy(tmp_path / "p.safetensors")
    monkeypatch.setattr(antmaze.gym, "make", lambda _: Forward())
    step = antmaze.mode(policy, np.full(29, 0.1))[0]
    assert speed(policy, 7) == pytest.approx(step / 0.1) and step != 0


def test_a_policy_without_effect_has_no_speed(tmp_path):
    save(tmp_path / "p.safetensors", {}, scale=0.0)
    assert abs(speed(Policy(tmp_path / "p.safetensors"), 300)) < 0.2


def test_a_missing_policy_is_reported_with_the_commands_that_make_it(tmp_path, monkeypatch):
    monkeypatch.setattr(locomotion, "POLICIES", tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no policy ant-direction-expert yet; make it: python single"):
        ogbench_antmaze("medium", "stitch", 0)


@pytest.mark.parametrize("path", sorted(locomotion.POLICIES.glob("ant-direction-*")), ids=lambda path: path.stem)
def test_the_expert_that_ships_is_small_and_as_fast_as_it_says(path):
    policy = Policy(path)
    assert path.stat().st_size <= 400_000
    assert policy.training["env_id"] == locomotion.TRAINED_IN["ant-direction"]
    assert speed(policy, 2_000) > 0.8 * policy.training["speed"] > 0


@pytest.mark.parametrize(
    ("maze", "kind", "message"),
    [("giant", "stitch", "maze must be one of medium, large, not"), ("large", "play", "kind must be one of navigate,")],
)
def test_unknown_names_are_refused_at_once(maze, kind, message):
    with pytest.raises(ValueError, match=message):
        ogbench_antmaze(maze, kind, 0)
