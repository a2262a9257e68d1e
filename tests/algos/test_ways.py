"""Tables of ways and values in a maze, and the order of values along shortest ways."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algos.evaluate import Ways
from algos.goal_conditioned import film_of, watch_goals
from algos.ways import order_of_values, values_table, ways_table
from envs.mazes import Maze

# a free cell, a corridor of eight, and a dead end
MAZE = Maze(
    np.array([[1] * 11, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [1, 0] + [1] * 9, [1] * 11], bool), 4.0, (-4.0, -4.0), False
)
KEYS = [{"seed": 3}, {"seed": 7}]


def ways() -> Ways:
    """Two runs on one task, of which the second one ends after a step."""
    obs = np.array([[[[0.0, 0.0], [0.2, 0.0], [0.4, 0.0]]], [[[0.1, 0.0], [np.nan, np.nan], [np.nan, np.nan]]]])
    goals = np.array([[[32.0, 0.0]], [[32.0, 1.0]]])
    return Ways(["task1"], [[1], [2]], goals, obs, np.zeros((2, 1, 3, 2)))


def test_a_way_leads_from_centre_to_centre():
    way = MAZE.way(np.array([0.0, 4.0]), np.array([31.0, 1.0]), 0.2)
    steps = np.linalg.norm(np.diff(way, axis=0), axis=1)
    assert way[0].tolist() == [0.0, 4.0] and np.abs(steps - 0.2).max() < 0.06  # less at corners
    assert way[20].tolist() == pytest.approx([0.0, 0.0], abs=1e-9)
    assert np.linalg.norm(way[-1] - [31.0, 1.0]) <= 0.2
    assert MAZE.cell(np.array([1.9, 2.1])) == (2, 1) and not MAZE.walls[2, 1]


def test_the_table_of_ways_begins_with_the_goal():
    table = ways_table(ways(), KEYS)
    assert table.groupby("seed")["step"].apply(list).to_dict() == {3: [-1, 0, 1, 2], 7: [-1, 0]}
    assert table[table["step"] == -1]["x"].tolist() == [32.0, 32.0]


class Distance(torch.nn.Module):
    """Minus the distance to the goal for the first run, and plus for the second."""

    def __init__(self):
        super().__init__()
        self.sign = torch.nn.Parameter(torch.tensor([-1.0, 1.0]))

    def value_of(self, obs: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        return self.sign[:, None] * (obs - goal).norm(dim=-1)


def test_the_table_of_values_covers_the_free_cells():
    """Each run, task and cell has the value of that run's goal in that task."""
    one = ways()
    goals = np.concatenate([one.goals, [[[0.0, 4.0]], [[3.0, 0.0]]]], axis=1)
    both = Ways(["task1", "task2"], [[1, 3], [2, 4]], goals, one.obs.repeat(2, 1), np.zeros((2, 2, 3, 2)))
    table = values_table(both, KEYS, Distance(), MAZE)
    assert len(table) == 2 * 2 * 10 * 16 and set(table["seed"]) == {3, 7}
    here = table[(table["x"] == 0.5) & (table["y"] == 0.5)].set_index(["seed", "task"])["value"]
    for seed, task, distance in (
        (3, "task1", -np.hypot(31.5, 0.5)), (7, "task1", np.hypot(31.5, 0.5)),
        (3, "task2", -np.hypot(0.5, 3.5)), (7, "task2", np.hypot(2.5, 0.5)),
    ):  # fmt: skip
        assert here[seed, task] == pytest.approx(distance)


def test_the_order_of_values_is_1_where_they_rise_on_the_way_and_0_where_they_fall():
    agent = Distance()
    found = order_of_values(ways(), agent.value_of, MAZE, 25, agent.sign)
    assert found.tolist() == [1.0, 0.0]
    assert np.isnan(order_of_values(ways(), agent.value_of, MAZE, 500, agent.sign)).all()


def test_a_film_has_the_first_runs_episode_of_each_task(monkeypatch, tmp_path):
    """With the seeds of the resets, and with actions up to the episode's end."""
    shape, films = (2, 2, 3, 2), {}
    actions = np.arange(24.0).reshape(shape)
    actions[0, 1, 1:] = np.nan
    filmed = Ways(["task1", "task2"], [[11, 12], [21, 22]], np.zeros((2, 2, 2)), np.zeros(shape), actions)
    monkeypatch.setattr("algos.goal_conditioned.film", lambda shots, **speed: films.update(shots))
    place = {"env_id": "maze-v0", "options": {"wide": True}, "tasks": ["task1", "task2"]}
    assert film_of(filmed, place, tmp_path) == f"videos of the first seed in {tmp_path}"
    for task, seed, played in (("task1", 11, [[0, 1], [2, 3], [4, 5]]), ("task2", 12, [[6, 7]])):
        (shot,) = films.pop(tmp_path / f"{task}.mp4")
        assert (shot.env_id, shot.seed, shot.task, shot.options) == ("maze-v0", seed, task, {"wide": True})
        assert shot.actions.tolist() == played
    assert not films and film_of(None, place, tmp_path) == "there is nothing to film"


def by_point(*formulas):
    """Values of the points of a way by their numbers: a formula for each run."""
    like = torch.zeros(())
    return lambda obs, goal: torch.stack([formula(torch.arange(obs.shape[1]) + like) for formula in formulas])


def test_the_order_of_values_is_that_of_means_over_thirty_points():
    """A ripple of period 30 has no mean; without the mean, about half of the values would be lower 25 points later."""

    def wave(number):
        return 0.01 * number + 5 * torch.sin(2 * math.pi * number / 30)

    found = order_of_values(ways(), by_point(wave, lambda number: -wave(number)), MAZE, 25, torch.zeros(()))
    assert found.tolist() == [1.0, 0.0]


def test_the_order_of_values_counts_points_that_lie_ahead():
    """Values rise to the 60th point of the way, and then fall."""
    one = ways()
    length = len(MAZE.way(one.obs[0, 0, 0], one.goals[0, 0], 0.2))
    peak = [-abs(number - 60) for number in range(length)]
    for ahead in (3, 25):
        means = [sum(peak[i : i + 30]) / 30 for i in range(length - 29)]
        rising = [means[i + ahead] > means[i] for i in range(len(means) - ahead)]
        found = order_of_values(one, by_point(*[lambda n: -(n - 60).abs()] * 2), MAZE, ahead, torch.zeros(()))
        assert found[0] == pytest.approx(np.mean(rising)) and 0.2 < found[0] < 0.5


def test_a_run_logs_the_order_of_both_values_where_there_are_two():
    """Of the first run, the value rises and the low value falls; of the second, the other way round."""
    agent = Distance()
    agent.low_value_of = lambda obs, goal: -agent.value_of(obs, goal)
    agent.task, agent.args = SimpleNamespace(obs_size=2), SimpleNamespace(subgoal_steps=25)
    watched = []
    run = SimpleNamespace(
        evaluator=SimpleNamespace(ways=ways()), given=SimpleNamespace(video=False), keys=KEYS,
        export=lambda *_: None, watch=watched.append,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("algos.goal_conditioned.maze_of", lambda env_id: MAZE)
        watch_goals(run, agent, "maze")
    found = watched[0](0)
    assert found["order_of_values"].tolist() == [1, 0] and found["order_of_low_values"].tolist() == [0, 1]
