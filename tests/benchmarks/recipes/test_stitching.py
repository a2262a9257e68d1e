"""Groups, tests that have to be stitched, recorded episodes against the environment, and the figures of the paper's."""

import importlib.util
import itertools

import numpy as np
import pytest

from benchmarks.recipes.grid import Grid
from benchmarks.recipes.stitching import ENVS, GROUPS, MOVES, OPTIONS, alike, episode, stitching
from envs import goals
from envs.make import register
from envs.mazes import world_of

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium_robotics") is None, reason="needs the package gymnasium-robotics"
)

# start and goal of the paper's tests
PAIRS = {
    "umaze": [((3, 1), (1, 1)), ((1, 1), (3, 1))],
    "medium": [
        ((6, 6), (6, 3)), ((6, 6), (6, 1)), ((6, 5), (6, 3)), ((6, 5), (6, 1)), ((1, 1), (6, 5)), ((1, 6), (6, 6)),
    ],
    "large": [
        ((7, 1), (7, 4)), ((7, 1), (7, 10)), ((7, 1), (1, 10)), ((7, 4), (7, 1)), ((7, 4), (7, 10)), ((7, 4), (1, 1)),
        ((7, 10), (7, 1)),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return {maze: list(stitching(maze, 1, 12_000 if maze == "umaze" else 6_000)) for maze in GROUPS}


@pytest.fixture(scope="module")
def worlds():
    return {maze: world_of(register(env_id), **OPTIONS) for maze, env_id in ENVS.items()}


def cells(world, xy):
    return [tuple(world.maze.cell_xy_to_rowcol(place).tolist()) for place in xy]


def lengths(episodes):
    return np.array([len(e.reward) for e in episodes])


def same(a, b) -> bool:
    """Whether two recordings are equal in all bytes."""
    return all(
        x.tobytes() == y.tobytes()
        for one, other in zip(a, b, strict=True)
        for x, y in zip((*one[:-1], *one.infos.values()), (*other[:-1], *other.infos.values()), strict=True)
    )


def test_evaluations_have_the_tests_of_the_paper():
    assert {maze: goals.PAIRS[ENVS[maze]] for maze in PAIRS} == PAIRS


# the paper's groups, as cells rc
CELLS = {
    "umaze": ["11 12 13", "31 32 33", "13 23", "33 23"],
    "medium": ["65 66 56 46", "41 42 51 61 62 63 53", "15 16 24 25 26", "11 12 21 22",
               "53 54 42 44 45 46 32 33 34 22 24"],
    "large": ["11 12 13 14 21 24 31 32 33 34 41 51 52 62 71 72", "34 35 16 26 36 46 56 66 76 75 74 64 54",
              "16 17 18 19 1a 2a 3a 39 38 28 4a 5a 59 58 57 56 68 78 79 7a"],
}  # fmt: skip


@pytest.mark.parametrize("maze", CELLS)
def test_groups_have_the_papers_cells(maze):
    wanted = [sorted((int(cell[0]), int(cell[1], 16)) for cell in group.split()) for group in CELLS[maze]]
    assert [sorted(ends) for _, ends in GROUPS[maze]] == wanted
    if maze == "large":
        wanted[2] = [cell for cell in wanted[2] if cell not in ((1, 6), (5, 6))]
    assert [sorted(starts) for starts, _ in GROUPS[maze]] == wanted
    assert GROUPS["large-sl"] == [([(7, 1)], [(5, 4), (1, 10), (7, 10)])]


@pytest.mark.parametrize("maze", PAIRS)
def test_no_way_of_any_group_goes_from_the_start_of_a_test_to_its_goal(worlds, maze):
    grid = Grid(np.array(worlds[maze].maze.maze_map) == 1, MOVES)
    for starts, ends in GROUPS[maze]:
        for start, end in itertools.product(starts, ends):
            way = [start]
            while way[-1] != end:
                way.append(grid.towards[end][way[-1]])
            assert not any(a in way and b in way[way.index(a) :] for a, b in PAIRS[maze]), way


@pytest.mark.parametrize("maze", GROUPS)
def test_groups_have_free_cells_and_meet(worlds, maze):
    free = set(Grid(np.array(worlds[maze].maze.maze_map) == 1).free)
    groups = [set(starts) | set(goals) for starts, goals in GROUPS[maze]]
    assert all(group <= free for group in groups)
    assert all(len(set(part)) == len(part) for group in GROUPS[maze] for part in group)
    if len(groups) > 1 and maze != "medium":
        assert all(any(group & other for other in groups if other is not group) for group in groups)


@pytest.mark.parametrize("maze", PAIRS)
def test_no_episode_goes_from_the_start_of_a_test_to_its_goal(data, worlds, maze):
    for e in data[maze]:
        visited = cells(worlds[maze], e.obs[:, :2])
        (goal,) = cells(worlds[maze], e.infos["goal"][:1])
        for start, end in PAIRS[maze]:
            assert (visited[0], goal) != (start, end)
            assert start not in visited or end not in visited[visited.index(start) :]


def test_the_control_set_goes_from_the_start_of_tests_to_their_goals(data, worlds):
    ways = {(cells(worlds["large-sl"], e.obs[:1, :2])[0], cells(worlds["large-sl"], e.infos["goal"][:1])[0])
            for e in data["large-sl"]}  # fmt: skip
    assert ways == {((7, 1), goal) for goal in ((5, 4), (1, 10), (7, 10))}


@pytest.mark.parametrize("maze", GROUPS)
def test_groups_take_turns_and_every_episode_ends_at_its_goal(data, worlds, maze):
    groups = GROUPS[maze]
    for number, e in enumerate(data[maze]):
        starts, goals = groups[number % len(groups)]
        goal = e.infos["goal"]
        assert cells(worlds[maze], e.obs[:1, :2])[0] in starts and cells(worlds[maze], goal[:1])[0] in goals
        assert (goal == goal[0]).all() and len(goal) == len(e.obs) == len(e.action) + 1
        reached = np.linalg.norm(e.obs[1:, :2] - goal[1:], axis=1) <= 0.45
        assert np.flatnonzero(reached).tolist() == [len(e.reward) - 1]
        np.testing.assert_array_equal(e.reward, reached)
        np.testing.assert_array_equal(e.terminated, reached)
        assert not e.truncated.any()


def test_lengths_are_those_of_the_papers_script(data):
    umaze = data["umaze"]
    assert np.median(lengths(umaze)) == pytest.approx(22, abs=3)
    assert np.mean(lengths(umaze) == 1) == pytest.approx(0.39, abs=0.05)  # std of the mean: 0.02
    # half of the last two groups' episodes have one step, so that a median says little; the script's mean is 13.4
    short = lengths(umaze[2::4] + umaze[3::4])
    assert short.mean() == pytest.approx(13.7, abs=3) and short.max() < 85
    assert np.median(lengths(data["medium"])) == pytest.approx(30, abs=8)
    assert np.median(lengths(data["large"])) == pytest.approx(111, abs=30)
    obs = np.concatenate([e.obs for e in umaze])
    assert obs[:, :2].std(0) == pytest.approx([0.7, 0.9], abs=0.1) and 1.5 < obs[:, 2].std() < 2.6
    assert 4.9 < max(np.abs(e.obs[:, 2:]).max() for e in umaze) < 5.3


def test_a_start_in_the_goals_cell_leads_to_the_first_neighbour(worlds):
    world = worlds["umaze"]
    grid = Grid(np.array(world.maze.maze_map) == 1, MOVES)
    for cell, neighbours, way in (((3, 2), [(3, 3), (3, 1)], (1, 0)), ((2, 3), [(1, 3), (3, 3)], (0, 1))):
        assert grid.near[cell] == neighbours
        episodes = [episode(world, grid, alike(cell), seed) for seed in range(40)]
        first = np.mean([e.action[0] for e in episodes if len(e.reward) > 1], 0)
        assert first @ np.array(way) > 0.6


def test_the_first_of_several_shortest_ways_goes_right_and_then_left():
    grid = Grid(np.zeros((3, 3), bool), MOVES)
    assert grid.towards[2, 2][1, 1] == (1, 2) and grid.towards[2, 0][1, 1] == (1, 0)
    assert grid.towards[0, 1][1, 1] == (0, 1) and grid.towards[2, 2][0, 0] == (0, 1)


def test_rows_follow_the_dynamics(data, worlds):
    world = worlds["medium"]
    world.reset(seed=0)
    for e in data["medium"][:8]:
        assert e.obs.shape[1] == 4
        for t, action in enumerate(e.action):
            world.point_env.set_state(e.infos["qpos"][t], e.infos["qvel"][t])
            np.testing.assert_allclose(world.step(action)[0]["observation"], e.obs[t + 1], atol=1e-4)


def test_whole_episodes_fill_the_steps(data):
    rows = sum(len(e.obs) for e in data["umaze"])
    assert 12_000 - 90 < rows <= 12_000
    assert len(list(stitching("large", 1, 1))) == 1  # at least one
    fewer = list(stitching("umaze", 1, 2_000))
    assert len(fewer) < len(data["umaze"]) and same(fewer, data["umaze"][: len(fewer)])


def test_the_seed_decides_alone(data):
    np.random.seed(7)  # noqa: NPY002
    assert same(itertools.islice(stitching("large", 1), 3), data["large"][:3])
    assert not same(itertools.islice(stitching("large", 2), 3), data["large"][:3])


def test_unknown_mazes_are_refused_at_once():
    with pytest.raises(ValueError, match="maze must be one of umaze, medium, large, large-sl, not 'giant'"):
        stitching("giant", 0)
