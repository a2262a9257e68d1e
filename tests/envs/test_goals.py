"""Environments with goals against the original ones, bit for bit, and what all of them have in common."""

import tempfile
from dataclasses import replace
from functools import cache

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from gymnasium.vector import AutoresetMode

import algos.goal_conditioned
from algos.errors import UserError
from benchmarks import evaluate
from envs.goals import PAIRS, goal_tasks, make_goal_vec
from envs.make import make_vec
from envs.mazes import maze_of, world_of
from envs.worlds import RADIUS, OGBenchMazes, OGBenchTwins, PointMazes

pytest.importorskip("ogbench")
pytest.importorskip("gymnasium_robotics")

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered")
POINT_MAZES = [f"pointmaze-{maze}-v0" for maze in ("medium", "large", "giant", "teleport")]
SEEDS = [3, 2**31 - 1, 11, 12, 3]  # one for each task of OGBench; equal seeds are no trouble


@pytest.fixture(autouse=True)
def global_numpy(tmp_path, monkeypatch):
    """Each test leaves NumPy's global generator as it was."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    state = np.random.get_state()  # noqa: NPY002
    yield
    np.random.set_state(state)  # noqa: NPY002


def pushes(env_id: str, steps: int, seed: int, bias: float = 1.5) -> np.ndarray:
    """Actions [steps, 5 tasks, A] that keep a direction for 15 steps, and so go far and push against walls."""
    rng = np.random.default_rng(seed)
    size = world_of(env_id).action_space.shape[0]
    directions = np.repeat(rng.uniform(-bias, bias, (steps // 15 + 1, len(goal_tasks(env_id)), size)), 15, axis=0)
    noise = rng.normal(0, 0.3, (steps, *directions.shape[1:]))
    return np.clip(directions[:steps] + noise, -1, 1).astype(np.float32)


@cache
def made(env_id: str, **options) -> gym.Env:
    """An original environment, whose action space can be seeded, which manipulation otherwise makes anew each time."""
    env = gym.make(env_id, **options)
    world = env.unwrapped
    world.__class__ = type("Seedable", (type(world),), {"action_space": world.action_space})
    return env


def original(env_id: str, task: int, seed: int, actions: np.ndarray, start: list[float] | None = None, **options):
    """An episode of the original environment: obs and goal at reset, and every step until it ends.

    `start` is a state in which it is put after the reset, first qpos and then qvel.
    """
    if env_id in PAIRS:
        env = made(env_id, continuing_task=False)
        cells = dict(zip(("reset_cell", "goal_cell"), map(np.array, PAIRS[env_id][task]), strict=True))
        first, _ = env.reset(seed=seed, options=cells)
        obs, goal = first["observation"], first["desired_goal"]
    else:
        env = made(env_id, **options)
        np.random.seed(seed)  # noqa: NPY002
        env.unwrapped.action_space.seed(seed)
        obs, info = env.reset(seed=seed, options={"task_id": task + 1})
        goal = info["goal"]
    if start is not None:
        env.unwrapped.set_state(*np.split(np.array(start), [env.unwrapped.model.nq]))
    steps = []
    for action in actions:
        now, reward, terminated, truncated, info = env.step(action)
        now = now["observation"] if env_id in PAIRS else now
        steps.append((now, reward, terminated, truncated, bool(info["success"])))
        if terminated or truncated:
            break
    return obs, goal, steps


def assert_equal_to_original(env_id: str, actions: np.ndarray, seeds: list[int] = SEEDS, **options) -> np.ndarray:
    """Compares the episodes of all tasks with the original ones, and returns the observations [steps, tasks, O]."""
    tasks = goal_tasks(env_id)
    venv = make_goal_vec(env_id, tasks, threads=2, **options)
    assert venv.metadata["autoreset_mode"] == AutoresetMode.DISABLED
    obs, infos = venv.reset(seed=seeds[: len(tasks)])
    steps = [venv.step(action) for action in actions]
    for task, name in enumerate(tasks):
        first, goal, theirs = original(env_id, task, seeds[task], actions[:, task], **options)
        np.testing.assert_array_equal(obs[task], first, f"{name}: obs at reset", strict=True)
        np.testing.assert_array_equal(infos["goal"][task], goal, f"{name}: goal", strict=True)
        for t, (their_obs, *rest) in enumerate(theirs):
            ours = [column[task] for column in (*steps[t][1:4], steps[t][4]["success"])]
            np.testing.assert_array_equal(steps[t][0][task], their_obs, f"{name}: obs at step {t}", strict=True)
            assert ours == rest, f"{name}: step {t}"
    venv.close()
    return np.array([step[0] for step in steps])


# -- equal to the original ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", POINT_MAZES)
def test_ogbench_point_mazes_equal_the_original_bitwise(env_id):
    assert isinstance(make_goal_vec(env_id, ["task1"]).worlds, OGBenchMazes)
    for seed in range(2):
        obs = assert_equal_to_original(env_id, pushes(env_id, 300, seed), [s + seed for s in SEEDS[:-1]] + [5])
        assert 0.1 < maze_of(env_id).near_wall(obs.reshape(-1, 2), RADIUS).mean() < 0.9


@pytest.mark.parametrize("options", [{}, {"terminate_at_goal": False}])  # with options, OGBench's own code steps
def test_points_are_teleported_as_in_the_original(options):
    env_id = "pointmaze-teleport-v0"
    actions = pushes(env_id, 100, seed=0)
    actions[:, 2] = actions[:, 4] = (0, -1)  # the tasks that start in the cell before an entry
    obs = assert_equal_to_original(env_id, actions, **options)
    assert (np.abs(np.diff(obs, axis=0)).max(axis=(0, 2))[[2, 4]] > 3).all()


@pytest.mark.parametrize("env_id", PAIRS)
def test_robotics_point_mazes_equal_the_original_bitwise(env_id):
    assert isinstance(make_goal_vec(env_id, goal_tasks(env_id)[:1]).worlds, PointMazes)
    seeds = list(range(20, 27))
    obs = assert_equal_to_original(env_id, pushes(env_id, 200, seed=0), seeds)
    assert (np.abs(obs[..., 2:]) > 5).any()  # where the velocity is clipped
    assert maze_of(env_id).near_wall(obs[..., :2].reshape(-1, 2), 0.1).any()


def test_velocities_along_one_axis_are_clipped():
    actions = np.zeros((100, 7, 2), np.float32)
    actions[:, :, 1] = 1
    obs = assert_equal_to_original("PointMaze_Large-v3", actions, list(range(7)))
    assert (obs[..., 3] > 5).any() and (np.abs(obs[..., 2]) < 5).all()


def test_ant_mazes_equal_the_original_bitwise():
    env_id = "antmaze-medium-v0"
    assert isinstance(make_goal_vec(env_id, ["task1"]).worlds, OGBenchMazes)
    assert_equal_to_original(env_id, pushes(env_id, 40, seed=0))


@pytest.mark.parametrize(
    ("env_id", "outside", "inside"), [("antmaze-medium-v0", 0.7, 0.3), ("pointmaze-medium-v0", 1.1, 0.9)]
)
def test_a_goal_is_reached_within_its_radius(env_id, outside, inside):
    """OGBench's are 0.5 for ants and 1 for points."""
    venv = make_goal_vec(env_id, ["task1", "task1"])
    venv.reset(seed=[0, 0])
    worlds = venv.worlds
    for i, distance in enumerate((outside, inside)):
        qpos, qvel = (getattr(worlds.physics.data[i], name).copy() for name in ("qpos", "qvel"))
        qpos[:2] = worlds.goal[i] + (distance, 0)
        worlds.physics.reset(i, qpos, 0 * qvel)
    worlds.physics.read(np.arange(2))
    _, _, terminated, *_ = venv.step(np.zeros((2, *venv.single_action_space.shape), np.float32))
    assert terminated.tolist() == [False, True]


def test_ants_are_teleported_as_in_the_original():
    env_id = "antmaze-teleport-v0"
    (actions,) = (pushes(env_id, 30, seed=0)[:, :1],)
    state = np.concatenate([[20 + 1.8, 12, 0.55, 1, 0, 0, 0, 0, 1, 0, -1, 0, -1, 0, 1], [-4], np.zeros(13)])
    venv = make_goal_vec(env_id, ["task1"])
    venv.reset(seed=4)
    venv.worlds.physics.reset(0, state[:15], state[15:])
    ours = np.array([venv.step(action)[0][0] for action in actions])
    np.random.seed(4)  # noqa: NPY002
    theirs = np.array([obs for obs, *_ in original(env_id, 0, 4, actions[:, 0], list(state))[2]])
    assert np.abs(np.diff(ours[:, :2], axis=0)).max() > 3
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("env_id", ["humanoidmaze-medium-v0", "antsoccer-arena-v0"])
def test_other_locomotion_equals_the_original_bitwise(env_id):
    assert isinstance(make_goal_vec(env_id, ["task1"]).worlds, OGBenchTwins)
    assert_equal_to_original(env_id, pushes(env_id, 20, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["cube-double-v0", "scene-v0", "puzzle-3x3-v0"])
def test_manipulation_equals_the_original_bitwise(env_id):
    assert_equal_to_original(env_id, pushes(env_id, 20, seed=0))


@pytest.mark.slow
def test_locks_of_a_scene_are_its_own():
    tasks = ["task1", "task2"]
    venv = make_goal_vec("scene-v0", tasks)
    venv.reset(seed=0)
    for world, states in zip(venv.worlds.worlds, ([1, 1], [0, 0]), strict=True):
        world._cur_button_states[:] = states
        world.data.joint("drawer_slide").qpos[0] = -0.1
        world.data.joint("drawer_slide").qvel[0] = 0.5
    venv.step(np.zeros((2, 5), np.float32))
    free, locked = (world.data.joint("drawer_slide").qpos[0] for world in venv.worlds.worlds)
    assert abs(locked + 0.1) < 1e-3 < abs(free + 0.1)


def test_options_reach_the_original():
    env_id = "pointmaze-medium-v0"
    actions = np.zeros((3, 5, 2), np.float32)
    assert_equal_to_original(env_id, actions, add_noise_to_goal=False, terminate_at_goal=False)
    goal = make_goal_vec(env_id, ["task1"], add_noise_to_goal=False).reset(seed=0)[1]["goal"]
    assert goal.tolist() == [[20, 20]]


# -- seeds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["pointmaze-teleport-v0", "PointMaze_UMaze-v3", "humanoidmaze-medium-v0"])
def test_an_episode_does_not_depend_on_its_neighbours(env_id):
    tasks, seeds = (goal_tasks(env_id) * 3)[:5], [5, 6, 7, 5, 9]
    venv, alone = make_goal_vec(env_id, tasks), make_goal_vec(env_id, [tasks[2]])
    actions = np.tile(np.linspace(-1, 1, venv.single_action_space.shape[0], dtype=np.float32), (5, 1))
    for _ in range(2):  # a second episode is not affected by the first one
        (obs, infos), (own_obs, own_infos) = venv.reset(seed=seeds), alone.reset(seed=[seeds[2]])
        np.testing.assert_array_equal(obs[2], own_obs[0])
        np.testing.assert_array_equal(infos["goal"][2], own_infos["goal"][0])
        for _ in range(15):
            np.testing.assert_array_equal(venv.step(actions)[0][2], alone.step(actions[2:3])[0][0])
    assert np.unique(venv.reset(seed=seeds)[1]["goal"], axis=0).shape[0] == 5


def test_resets_without_a_seed_follow_from_the_last_one():
    venv = make_goal_vec("pointmaze-medium-v0", ["task1", "task1"])
    histories = []
    for _ in range(2):
        first = venv.reset(seed=[1, 2])[0]
        histories.append([first, venv.reset()[0], venv.reset(seed=[None, 2])[0]])
    np.testing.assert_array_equal(histories[0], histories[1])
    first, second, third = histories[0]
    assert not np.isin(second, first).any()
    assert not np.isin(third[0], second).any()
    np.testing.assert_array_equal(third[1], first[1])


@pytest.mark.parametrize("options", [{}, {"terminate_at_goal": False}])
def test_numpys_global_generator_stays_as_it_is(options):
    np.random.seed(8)  # noqa: NPY002
    np.random.standard_normal()  # noqa: NPY002  # the second one of the pair is kept in the state
    before = np.random.get_state()  # noqa: NPY002
    venv = make_goal_vec("pointmaze-teleport-v0", ["task3"], **options)
    venv.reset(seed=3)
    for _ in range(60):
        venv.step(np.array([[0, -1]], np.float32))
    for a, b in zip(before, np.random.get_state(), strict=True):  # noqa: NPY002
        np.testing.assert_array_equal(a, b)


# -- the end of an episode ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["pointmaze-medium-v0", "PointMaze_UMaze-v3"])
def test_a_finished_environment_stays_as_it_is_until_it_is_reset(env_id):
    task = goal_tasks(env_id)[0]
    venv = make_goal_vec(env_id, [task, task])
    _, infos = venv.reset(seed=0)
    physics = venv.worlds.physics
    physics.reset(1, infos["goal"][1], np.zeros(2))
    physics.read(np.array([1]))
    still, push = np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)
    final, reward, terminated, truncated, infos = venv.step(still)
    assert reward.tolist() == [0, 1]
    assert terminated.tolist() == infos["success"].tolist() == [False, True]
    assert not truncated.any()
    assert infos["_success"].all()

    for _ in range(2):
        obs, reward, terminated, truncated, infos = venv.step(push)
        np.testing.assert_array_equal(obs[1], final[1])
        assert (obs[0] != final[0]).all()
        assert not (reward.any() or terminated.any() or truncated.any() or infos["success"].any())
        assert infos["_success"].tolist() == [True, False]

    begun, infos = venv.reset(seed=[0, 5], options={"reset_mask": np.array([False, True])})
    np.testing.assert_array_equal(begun[0], obs[0])
    assert (begun[1] != final[1]).any()
    assert infos["_goal"].tolist() == [False, True]
    assert (infos["goal"][0] == 0).all() and (infos["goal"][1] != 0).all()
    assert (venv.step(push)[0] != begun).all()


def test_a_reset_of_one_leaves_the_time_of_others_as_it_is():
    venv = make_goal_vec("pointmaze-medium-v0", ["task1"] * 3, max_episode_steps=3)
    venv.reset(seed=0)
    still, second = np.zeros((3, 2), np.float32), {"reset_mask": np.array([False, True, False])}
    venv.step(still)
    venv.reset(options=second)
    assert [venv.step(still)[3].tolist() for _ in range(2)] == [[False] * 3, [True, False, True]]
    venv.reset(options=second)
    assert venv.step(still)[4]["_success"].tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("env_id", "options", "limit"),
    [
        ("pointmaze-giant-v0", {}, 1000),
        ("PointMaze_UMaze-v3", {}, 300),
        ("PointMaze_Medium-v3", {}, 600),
        ("PointMaze_Large-v3", {}, 800),
        ("pointmaze-medium-v0", {"max_episode_steps": 7}, 7),
        ("antsoccer-arena-v0", {"max_episode_steps": 2}, 2),
        ("PointMaze_UMaze-v3", {"max_episode_steps": -1}, np.inf),
    ],
)
def test_time_limits_are_the_registered_ones_or_the_given_one(env_id, options, limit):
    venv = make_goal_vec(env_id, goal_tasks(env_id)[:1], **options)
    venv.reset(seed=0)
    still = np.zeros(venv.action_space.shape, np.float32)
    steps = [venv.step(still)[3][0] for _ in range(int(min(limit, 400)))]
    if limit <= 400:
        assert steps == [False] * (limit - 1) + [True]
    else:
        assert not any(steps)
        assert venv.max_episode_steps == limit


# -- names and errors --------------------------------------------------------------------------------------------------


def test_tasks_have_names():
    assert goal_tasks("cube-single-v0") == ["task1", "task2", "task3", "task4", "task5"]
    assert goal_tasks("PointMaze_UMaze-v3") == ["(3,1)->(1,1)", "(1,1)->(3,1)"]


@pytest.mark.parametrize("env_id", [*POINT_MAZES, *PAIRS])
def test_episodes_start_and_end_in_the_cells_of_their_tasks(env_id):
    tasks, maze = goal_tasks(env_id), maze_of(env_id)
    obs, infos = make_goal_vec(env_id, tasks).reset(seed=0)
    world = world_of(env_id)
    for i, start, goal in zip(range(len(tasks)), obs[:, :2], infos["goal"], strict=True):
        cells = PAIRS[env_id][i] if env_id in PAIRS else [world.task_infos[i][k] for k in ("init_ij", "goal_ij")]
        for xy, cell in zip((start, goal), cells, strict=True):
            assert not maze.walls[cell]
            assert (np.abs(xy - maze.centre(*cell)) <= maze.size / 4).all()


@pytest.mark.parametrize(
    ("env_id", "problem"),
    [
        ("visual-antmaze-medium-v0", "has images for observations"),
        ("powderworld-easy-v0", "has images for observations"),
        ("pointmaze-medium-singletask-task1-v0", "one fixed goal; the id with several is pointmaze-medium-v0$"),
        ("HalfCheetah-v5", "has no tasks with goals"),
        ("PointMaze_Open-v3", "has no tasks with goals"),
        ("pointmaze-huge-v0", "the closest ids are .*pointmaze-large-v0"),
    ],
)
def test_ids_without_goals_are_refused(env_id, problem):
    for function in (goal_tasks, lambda env_id: make_goal_vec(env_id, ["task1"])):
        with pytest.raises(ValueError, match=problem):
            function(env_id)


class Line(gym.Env):
    """A point on a line, which noise from two generators moves too; a task is the place of the goal."""

    task_infos = ({"task_name": "near"}, {"task_name": "far"})
    act_shape = (1,)

    def __init__(self, step=1.0, render_mode=None):
        self.step_size, self.render_mode = step, render_mode
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, self.act_shape, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = np.full(2, 2.0 if options["task_id"] == 1 else 50.0)
        self.place = self.np_random.normal(0, 0.01, 2).astype(np.float32)
        return self.place.copy(), {"goal": self.goal}

    def step(self, action):
        noise = self.np_random.normal(0, 0.01) + np.random.normal(0, 0.01)  # noqa: NPY002
        self.place = self.place + np.float32(self.step_size * action[0] + noise)
        reached = bool(self.place[0] >= self.goal[0])
        return self.place.copy(), -1.0, reached, False, {"success": float(reached)}


@pytest.fixture
def line():
    """Registers an environment of one's own, with other attributes if wanted, and forgets it afterwards."""

    def register(limit=10, **attributes):
        gym.registry.pop("Line-v0", None)
        gym.register("Line-v0", type("Line", (Line,), attributes), max_episode_steps=limit)
        return "Line-v0"

    yield register
    gym.registry.pop("Line-v0", None)


def test_an_environment_of_ones_own_has_tasks_by_the_protocol_of_ogbench(line):
    assert goal_tasks(line()) == ["near", "far"]
    plays = []
    for others in (1, 3):  # an episode depends on its own seed alone
        venv = make_goal_vec("Line-v0", ["near", "far"] * others)
        obs, info = venv.reset(seed=[3, 4] * others)
        steps = [obs[:2]]
        assert info["goal"].tolist() == [[2.0, 2.0], [50.0, 50.0]] * others
        for step in range(10):
            obs, _, terminated, truncated, info = venv.step(np.ones((2 * others, 1), np.float32))
            steps.append(obs[:2])
            assert truncated[1] == (step == 9) and not terminated[1] and not info["success"][1]
            assert terminated[0] == info["success"][0] == (steps[-2][0, 0] < 2.0 <= obs[0, 0])
        venv.close()
        plays.append(np.array(steps))
    assert np.array_equal(*plays) and np.isclose(plays[0][-1, 1, 0], 10.0, atol=0.5)
    twice = make_goal_vec("Line-v0", ["near"], step=2.0)
    twice.reset(seed=0)
    assert twice.step(np.ones((1, 1), np.float32))[0][0, 0] > 1.5


def test_methods_with_goals_are_evaluated_in_an_environment_of_ones_own(line, train_short):
    result = train_short("gcivl", env_id=line(act_shape=(2,)), eval_episodes=2)
    table = pd.read_parquet(result.folder / "eval.parquet")
    assert table.groupby(["seed", "step", "task"]).size().unique().tolist() == [2]
    assert set(table["task"]) == {"near", "far"} and table["length"].max() == 10


def test_options_of_a_recorded_environment_of_ones_own_are_kept(line, train_short, monkeypatch):
    line(act_shape=(2,), __init__=lambda self, *, step, **_: Line.__init__(self, step))
    known = algos.goal_conditioned.load_states  # the environment cannot be made without its option
    options = {"step": 4.0, "max_episode_steps": 5}
    monkeypatch.setattr(
        algos.goal_conditioned,
        "load_states",
        lambda *_: replace(known("goals.hdf5"), env_id="Line-v0", env_options=options),
    )
    result = train_short("gcivl", eval_episodes=2)
    table = pd.read_parquet(result.folder / "eval.parquet")
    assert table["length"].max() == 5 and set(table["task"]) == {"near", "far"}
    evaluate.main(evaluate.Args(result.folder, episodes=2))
    assert pd.read_parquet(next(result.folder.glob("evaluation/*/episodes.parquet")))["length"].max() == 5


def test_tasks_of_ones_own_without_names_have_numbers(line):
    assert goal_tasks(line(task_infos=[{}, {}])) == ["task1", "task2"]
    assert goal_tasks(line(task_infos=[{"task_name": "a"}] * 3)) == ["task1", "task2", "task3"]


@pytest.mark.parametrize(
    ("limit", "attributes", "problem"),
    [
        (None, {}, "has no tasks with goals; .* has them if it has a time limit"),
        (10, {"task_infos": ()}, "has no tasks with goals"),
        (10, {"reset": lambda self, **_: (np.zeros(2, np.float32), {})}, "no 'goal' in the info of its reset"),
        (10, {"step": lambda self, _: (np.zeros(2, np.float32), 0.0, False, False, {})}, "no 'success' in the info"),
        (10, {"act_shape": (1, 1)}, "has actions Box.*, where a Box of one axis is needed"),
    ],
)
def test_environments_of_ones_own_that_lack_something_are_refused(limit, attributes, problem, line):
    with pytest.raises(ValueError, match=problem):
        make_goal_vec(line(limit, **attributes), ["near"])


def test_what_the_code_of_ones_own_environment_raises_is_told(line, train_short):
    def broken(self, **_):
        raise RuntimeError("no ground")

    with pytest.raises(UserError, match="--env-id Line-v0 cannot be made: its code raised RuntimeError, no ground"):
        train_short("gcivl", env_id=line(act_shape=(2,), reset=broken), eval_episodes=2)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="no task 'task6'; it has task1, task2"):
        make_goal_vec("pointmaze-medium-v0", ["task1", "task6"])
    with pytest.raises(ValueError, match=r"tasks must name one of task1, .* empty"):
        make_goal_vec("pointmaze-medium-v0", [])
    with pytest.raises(ValueError, match="pointmaze-medium-v0 does not take nonsense"):
        make_goal_vec("pointmaze-medium-v0", ["task1"], nonsense=1)
    with pytest.raises(ValueError, match="max_episode_steps must be at least 1, or -1 for no limit, got 0"):
        make_goal_vec("pointmaze-medium-v0", ["task1"], max_episode_steps=0)
    with pytest.raises(ValueError, match="has no option reward_type here"):
        make_goal_vec("PointMaze_UMaze-v3", ["(3,1)->(1,1)"], reward_type="dense")
    venv = make_goal_vec("PointMaze_UMaze-v3", ["(3,1)->(1,1)"] * 2)
    with pytest.raises(ValueError, match="seed needs one entry for each of the 2 environments, got 3"):
        venv.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match="reset_mask must be"):
        venv.reset(options={"reset_mask": np.zeros(2, bool)})
    with pytest.raises(ValueError, match=r"actions must have shape \(2, 2\), got \(2, 3\)"):
        venv.step(np.zeros((2, 3)))


def test_no_files_are_left_behind(tmp_path):
    maze_of.cache_clear()
    for env_id in ("pointmaze-medium-v0", "PointMaze_UMaze-v3", "humanoidmaze-medium-v0"):
        maze_of(env_id)
        make_goal_vec(env_id, goal_tasks(env_id)[:1]).close()
    for env_id in ("AntMaze_UMaze-v4", "antmaze-medium-v0"):
        make_vec(env_id, 2).close()
    assert not list(tmp_path.iterdir())


# -- walls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["pointmaze-giant-v0", "antmaze-large-v0", "humanoidmaze-medium-v0"])
def test_walls_are_those_of_the_physics(env_id):
    maze, world = maze_of(env_id), world_of(env_id)
    for row, column in np.ndindex(maze.walls.shape):
        if not maze.walls[row, column]:
            continue
        block = world.model.geom(f"block_{row}_{column}")
        assert tuple(block.pos[:2]) == maze.centre(row, column)
        assert (block.size[:2] == maze.size / 2).all()
    assert maze.walls.sum() == sum(world.model.geom(i).name.startswith("block") for i in range(world.model.ngeom))


def test_walls_of_robotics_mazes_are_those_of_the_physics():
    for env_id in ("PointMaze_Large-v3", "PointMaze_Open_Diverse_GR-v3"):  # the latter has letters for free cells
        maze, model = maze_of(env_id), world_of(env_id).model
        blocks = {model.geom(i).name: model.geom(i) for i in range(model.ngeom) if "block" in model.geom(i).name}
        # a name has the numbers of row and column, from 0 or from 1 on
        centres = {tuple(block.pos[:2]) for block in blocks.values()}
        assert centres == {maze.centre(*cell) for cell in np.argwhere(maze.walls)}
        assert all((block.size[:2] == maze.size / 2).all() for block in blocks.values())


def test_mazes_of_other_ids_are_refused():
    with pytest.raises(ValueError, match="none of the mazes whose walls are known"):
        maze_of("cube-single-v0")


@pytest.mark.parametrize("env_id", ["pointmaze-medium-v0", "PointMaze_Medium-v3"])
def test_no_wall_is_missed(env_id):
    maze, rng = maze_of(env_id), np.random.default_rng(0)
    corners = np.array([maze.centre(0, 0), maze.centre(*np.subtract(maze.walls.shape, 1))])
    xy = rng.uniform(corners.min(axis=0), corners.max(axis=0), (3000, 2))
    centres = np.array([maze.centre(*cell) for cell in np.argwhere(maze.walls)])
    gaps = np.maximum(np.abs(xy[:, None] - centres) - maze.size / 2, 0)  # [points, walls, 2]
    distance = np.sqrt((gaps**2).sum(axis=2)).min(axis=1)
    reach = 0.175 * maze.size
    near = maze.near_wall(xy, reach)
    assert near[distance <= reach].all()
    assert not near[distance > 1.42 * reach].any()
    assert maze.near_wall(np.array([[1e6, -1e6]]), reach).all()
