"""Maps, recorded episodes against the environments themselves, and the figures of OGBench's and Minari's data."""

import importlib.util
from itertools import islice

import gymnasium as gym
import numpy as np
import pytest

from benchmarks.recipes import pointmaze
from benchmarks.recipes.pointmaze import GYMNASIUM_MAZES, OGBENCH_MAZES, Grid, gymnasium_pointmaze, ogbench_pointmaze

ogbench = pytest.mark.skipif(importlib.util.find_spec("ogbench") is None, reason="needs the package ogbench")
robotics = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium_robotics") is None, reason="needs the package gymnasium-robotics"
)


@pytest.fixture(scope="module")
def world():
    """Makes the environment of one of OGBench's mazes."""
    importlib.import_module("ogbench.locomaze")
    return lambda maze: gym.make(f"pointmaze-{maze}-v0", terminate_at_goal=False).unwrapped


@pytest.fixture(scope="module")
def navigation():
    return list(ogbench_pointmaze("medium", "navigate", 0, episodes=12))


@pytest.fixture(scope="module")
def stitches():
    return list(ogbench_pointmaze("large", "stitch", 0, episodes=20))


@pytest.fixture(scope="module")
def run():
    return list(gymnasium_pointmaze("UMaze", False, 0, 8000))


def same(a, b) -> bool:
    """Whether two recordings are equal in all bytes."""
    arrays = [[*e[:-1], *e.infos.values()] for e in (*a, *b)]
    pairs = zip(arrays[: len(a)], arrays[len(a) :], strict=True)
    return all(x.tobytes() == y.tobytes() for one, other in pairs for x, y in zip(one, other, strict=True))


def joined(episodes, name):
    return np.concatenate([getattr(e, name) for e in episodes])


def distance(a, b):
    return np.linalg.norm(a.astype(np.float64) - b, axis=-1)


def test_shortest_ways_in_a_small_maze():
    rows = ["######", "#    #", "# ## #", "#  # #", "######"]
    grid = Grid(np.array([list(row) for row in rows]) == "#")
    assert grid.distance[3, 4] == {
        (3, 4): 0, (2, 4): 1, (1, 4): 2, (1, 3): 3, (1, 2): 4, (1, 1): 5, (2, 1): 6, (3, 1): 7, (3, 2): 8,
    }  # fmt: skip
    assert [grid.towards[3, 4][cell] for cell in ((3, 2), (1, 1), (3, 4))] == [(3, 1), (1, 2), (3, 4)]
    assert grid.vertices == [(1, 1), (1, 4), (3, 1), (3, 2), (3, 4)]


# -- OGBench -----------------------------------------------------------------------------------------------------------

GEOMETRY = {  # free cells, vertices, least, mean and most goals at distance 4, distances of the five tasks
    "medium": (26, 21, 1, 3.08, 6, [10, 10, 6, 10, 8]),
    "large": (46, 22, 1, 3.22, 6, [15, 19, 12, 14, 15]),
    "giant": (86, 46, 2, 2.74, 6, [30, 26, 30, 26, 17]),
    "teleport": (45, 24, 0, 3.11, 6, [19, 15, 10, 21, 15]),
}


@ogbench
@pytest.mark.parametrize("maze", OGBENCH_MAZES)
def test_maze_geometry(world, maze):
    env = world(maze)
    grid = Grid(env.maze_map == 1)
    fours = [sum(d == 4 for d in grid.distance[cell].values()) for cell in grid.free]
    tasks = [grid.distance[task["goal_ij"]][task["init_ij"]] for task in env.task_infos]
    counts = (len(grid.free), len(grid.vertices), min(fours), round(float(np.mean(fours)), 2), max(fours), tasks)
    assert counts == GEOMETRY[maze]


@ogbench
@pytest.mark.parametrize("maze", ["medium", "teleport"])
def test_ways_are_those_of_the_oracle(world, maze):
    env = world(maze)
    grid = Grid(env.maze_map == 1)
    for goal in grid.free:
        for cell in grid.free:
            target, _ = env.get_oracle_subgoal(env.ij_to_xy(cell), env.ij_to_xy(goal))
            assert tuple(target) == env.ij_to_xy(grid.towards[goal].get(cell, cell))


@ogbench
@pytest.mark.parametrize(
    ("maze", "kind", "episodes", "rows"),
    [(maze, "navigate", 1000, 1001) for maze in ("medium", "large", "teleport")]
    + [("giant", "navigate", 500, 2001)]
    + [(maze, "stitch", 5000, 201) for maze in OGBENCH_MAZES],
)
def test_as_many_episodes_and_rows_as_published(monkeypatch, maze, kind, episodes, rows):
    (episode,) = ogbench_pointmaze(maze, kind, 0, episodes=1)
    assert [len(part) for part in episode[:-1]] == [rows + 1, rows, rows, rows, rows]
    assert all(part.dtype == np.float32 for part in (*episode[:3], *episode.infos.values()))
    assert {name: part.shape for name, part in episode.infos.items()} == dict.fromkeys(
        ("qpos", "qvel", "goal"), (rows + 1, 2)
    )
    assert not episode.terminated.any() and np.flatnonzero(episode.truncated).tolist() == [rows - 1]

    monkeypatch.setattr(pointmaze, "ogbench_episode", lambda *args: args[-1])  # its seed
    train, validation = (list(ogbench_pointmaze(maze, kind, 0, validation=v)) for v in (False, True))
    assert (len(train), len(validation)) == (episodes, episodes // 10)
    assert len({*train, *validation}) == episodes + episodes // 10


@ogbench
def test_ogbench_loads_the_rows(tmp_path, stitches):
    from ogbench.utils import load_dataset

    rows = {
        "observations": np.concatenate([e.obs[:-1] for e in stitches]),
        "actions": joined(stitches, "action"),
        "terminals": joined(stitches, "truncated"),
        **{name: np.concatenate([e.infos[name][:-1] for e in stitches]) for name in ("qpos", "qvel")},
    }
    np.savez(tmp_path / "data.npz", **rows)
    assert {len(values) for values in rows.values()} == {20 * 201}
    regular = load_dataset(tmp_path / "data.npz", compact_dataset=False)
    assert len(regular["observations"]) == 20 * 200 and regular["terminals"].sum() == 20
    np.testing.assert_array_equal(regular["next_observations"], np.concatenate([e.obs[1:-1] for e in stitches]))
    assert load_dataset(tmp_path / "data.npz", compact_dataset=True)["terminals"].sum() == 2 * 20


@ogbench
def test_ogbench_seed_decides_alone(navigation):
    state = np.random.get_state()  # noqa: NPY002
    again = []
    for i, episode in enumerate(ogbench_pointmaze("medium", "navigate", 0, episodes=2)):
        assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), state, strict=True))  # noqa: NPY002
        again.append(episode)
        np.random.seed(i)  # noqa: NPY002
        state = np.random.get_state()  # noqa: NPY002
    assert same(navigation[:2], again)
    assert not same(navigation[:1], list(islice(ogbench_pointmaze("medium", "navigate", 1), 1)))
    teleports = [list(ogbench_pointmaze("teleport", "stitch", 0, episodes=6)) for _ in range(2)]
    assert same(*teleports)


@ogbench
def test_ogbench_figures(navigation):
    steps = np.concatenate([distance(e.obs[1:], e.obs[:-1]) for e in navigation])
    actions = joined(navigation, "action")
    xy = np.concatenate([e.obs[:-1] for e in navigation])
    assert steps.mean() == pytest.approx(0.19, abs=0.01) and 0.27 < steps.max() < 0.30
    assert np.mean(np.abs(actions) == 1) == pytest.approx(0.27, abs=0.02)
    np.testing.assert_allclose(actions.std(0), 0.70, atol=0.04)
    # an episode's mean has a standard deviation of 2, so that of 12 episodes has one of 0.6
    np.testing.assert_allclose(xy.mean(0), (10.1, 9.8), atol=1.5)
    np.testing.assert_allclose(xy.std(0), (5.8, 5.2), atol=0.9)
    goals = np.unique(np.concatenate([e.infos["goal"] for e in navigation]), axis=0)
    jitter = (goals + 2) % 4 - 2  # off the cell's centre
    assert 0.9 < np.abs(jitter).max() <= 1 and jitter.std() == pytest.approx(3**-0.5, abs=0.1) and len(goals) > 50


@ogbench
@pytest.mark.parametrize("maze", ["medium", "teleport"])
def test_ogbench_rows_follow_the_dynamics(world, maze):
    env = world(maze)
    env.set_goal(goal_xy=(0.0, 0.0))
    for episode in ogbench_pointmaze(maze, "stitch", 3, episodes=3):
        qpos, qvel = episode.infos["qpos"], episode.infos["qvel"]
        for t, action in enumerate(episode.action):
            env.set_state(qpos[t], qvel[t])
            obs, *_, info = env.step(action)
            np.testing.assert_allclose(obs, episode.obs[t + 1], atol=1e-5)
            if (env.get_xy() == info["qpos"]).all():  # no teleport, whose exit is random
                np.testing.assert_allclose(env.data.qpos, qpos[t + 1], atol=1e-5)
                np.testing.assert_allclose(env.data.qvel, qvel[t + 1], atol=1e-4)


@ogbench
def test_teleports_show_a_row_later(world):
    env = world("teleport")
    jumps = 0
    for episode in ogbench_pointmaze("teleport", "stitch", 3, episodes=12):
        moved = distance(episode.infos["qpos"], episode.obs) > 0
        entries, exits = (np.array(env._teleport_info[f"teleport_{way}_xys"]) for way in ("in", "out"))
        near = distance(episode.obs[1:, None], entries).min(1) <= 1.5
        assert (moved[1:] == near).all()
        assert (distance(episode.infos["qpos"][moved][:, None], exits).min(1) == 0).all()
        jumps += moved.sum()
    assert jumps > 0


@ogbench
def test_rewards_are_for_the_goal_of_the_moment(navigation, stitches):
    for episode in (*navigation, *stitches):
        goal = episode.infos["goal"]
        np.testing.assert_array_equal(episode.reward, distance(episode.obs[1:], goal[:-1]) <= 1)
        changed = (goal[1:] != goal[:-1]).any(1)
        if len(goal) == 1002:
            np.testing.assert_array_equal(changed, episode.reward == 1)
        else:
            assert not changed.any()


@ogbench
def test_ogbench_controller_gets_there(navigation, stitches):
    # a goal may lie out of reach of a centre, 1, until noise leads there
    assert min(e.reward.sum() for e in navigation) >= 1 and np.mean([e.reward.sum() for e in navigation]) > 5
    # it stays at the centre of the goal's cell, at most sqrt(2) from the goal, and the noise moves it by up to 0.3
    assert max(distance(e.obs[-20:], e.infos["goal"][-1]).max() for e in stitches) < 2**0.5 + 0.3
    assert np.mean([e.reward.any() for e in stitches]) > 0.8


@ogbench
def test_stitch_goals_are_four_cells_away(world, stitches):
    env = world("large")
    grid = Grid(env.maze_map == 1)
    pairs = [(env.xy_to_ij(e.infos["goal"][0]), env.xy_to_ij(e.obs[0])) for e in stitches]
    assert {grid.distance[goal][start] for goal, start in pairs} == {4}
    assert len(set(pairs)) > 12


# -- Gymnasium-Robotics ------------------------------------------------------------------------------------------------


@robotics
@pytest.mark.parametrize("maze", GYMNASIUM_MAZES)
def test_run_is_cut_at_each_goal_and_goes_on(maze):
    episodes = list(gymnasium_pointmaze(maze, False, 1, 1500))
    assert sum(len(e.action) for e in episodes) == 1500
    for episode in episodes:
        goal = episode.infos["goal"]
        reached = distance(episode.obs[1:, :2], goal[1:]) <= 0.45
        assert (goal == goal[0]).all() and not reached[:-1].any() and not episode.terminated.any()
        np.testing.assert_array_equal(episode.reward, reached)
        np.testing.assert_array_equal(episode.truncated, np.arange(len(reached)) == len(reached) - 1)
        np.testing.assert_array_equal(episode.obs, np.hstack([episode.infos["qpos"], episode.infos["qvel"]]))
    assert all(e.reward[-1] == 1 for e in episodes[:-1]) and len(episodes) > 3
    for episode, following in zip(episodes[:-1], episodes[1:], strict=True):
        np.testing.assert_array_equal(following.obs[0], episode.obs[-1])


@robotics
def test_run_has_as_many_episodes_as_minaris(run):
    assert np.mean([len(e.action) for e in run[:-1]]) == pytest.approx(1_000_000 / 13_210, abs=12)  # std of the mean: 4


@robotics
def test_run_follows_the_dynamics(run):
    importlib.import_module("gymnasium_robotics")
    env = gym.make("PointMaze_UMaze-v3").unwrapped
    env.reset(seed=0)
    for episode in run[:10]:
        for t, action in enumerate(episode.action):
            env.point_env.set_state(episode.infos["qpos"][t], episode.infos["qvel"][t])
            np.testing.assert_allclose(env.step(action)[0]["observation"], episode.obs[t + 1], atol=1e-4)


@robotics
def test_dense_rewards():
    dense = list(islice(gymnasium_pointmaze("UMaze", True, 0, 8000), 5))
    for episode in dense:
        assert np.allclose(episode.reward, np.exp(-distance(episode.obs[1:, :2], episode.infos["goal"][1:])), atol=1e-6)
        assert (episode.reward > np.exp(-0.45)).sum() == 1


@robotics
def test_gymnasium_seed_decides_alone(run):
    np.random.seed(3)  # noqa: NPY002
    assert same(run[:5], list(islice(gymnasium_pointmaze("UMaze", False, 0, 8000), 5)))
    assert not same(run[:1], list(islice(gymnasium_pointmaze("UMaze", False, 1, 20_000), 1)))


# -- bad names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ogbench_pointmaze("arena", "navigate", 0),
            "maze must be one of medium, large, giant, teleport, not",
        ),
        (lambda: ogbench_pointmaze("medium", "explore", 0), "kind must be one of navigate, stitch, not"),
        (
            lambda: gymnasium_pointmaze("medium", False, 0),
            "maze must be one of Open, UMaze, Medium, Large, not",
        ),
    ],
)
def test_unknown_names_are_refused_at_once(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pointmaze-medium-stitch-v0 needs the package ogbench: .*\[mazes\]"):
        ogbench_pointmaze("medium", "stitch", 0)
    with pytest.raises(ModuleNotFoundError, match="PointMaze_OpenDense-v3 needs the package gymnasium-robotics: "):
        gymnasium_pointmaze("Open", True, 0)
