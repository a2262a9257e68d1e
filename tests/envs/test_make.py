"""Tasks of other packages, and of a user's own modules, behind one call."""

import itertools
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import flatten
from gymnasium.vector import AutoresetMode

import envs.make
from algos.cli import check_env_id
from algos.errors import UserError
from algos.evaluate import Evaluator, maker
from envs import SeededEnvs, find_spec, make_vec, register
from envs.make import ids_of, is_batched, source_of
from envs.seeded import limit_of


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("MinAtar/Breakout-v1", "minatar", "minatar"),
        ("dm_control/dog-run-v0", "dm_control", "dm_control"),
        ("ALE/Pong-v5", "ale-py", "atari"),
        ("PongNoFrameskip-v4", "ale-py", "atari"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, env_id, package, extra):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    sentence = f"{env_id} needs the package {package}: pip install -e '.[{extra}]'"
    with pytest.raises(ModuleNotFoundError) as error:
        make_vec(env_id)
    assert str(error.value) == sentence
    with pytest.raises(UserError) as refusal:
        check_env_id(env_id)
    assert str(refusal.value) == f"--env-id: {sentence}"


@pytest.mark.parametrize(
    ("python", "more"),
    [
        ((3, 12), ""),
        ((3, 13), " && pip install dm-env dm-tree lxml && pip install --no-deps ogbench dm_control"),
    ],
)
def test_without_a_wheel_of_labmaze_two_more_commands_install_ogbench(monkeypatch, python, more):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.version_info", (*python, 0, "final", 0))
    with pytest.raises(ModuleNotFoundError) as error:
        register("cube-single-v0")
    assert str(error.value) == f"cube-single-v0 needs the package ogbench: pip install -e '.[mazes]'{more}"


def test_ids_without_a_package_of_their_own_need_no_registration():
    check_env_id("Pendulum-v1")
    with pytest.raises(UserError, match="no environment 'MinAtaxi/Breakout-v1'"):
        check_env_id("MinAtaxi/Breakout-v1")


def test_an_unknown_game_gets_the_closest_names():
    pytest.importorskip("minatar")
    with pytest.raises(
        UserError, match=r"no environment 'MinAtar/Breakot-v1'; the closest ids are MinAtar/Breakout-v1"
    ):
        check_env_id("MinAtar/Breakot-v1")


@pytest.mark.parametrize("env_id", ["MinAtar/Breakout-v1", "MinAtar/Seaquest-v1"])
def test_minatar_is_the_original_with_channels_first(env_id):
    pytest.importorskip("minatar")
    venv = make_vec(env_id, 1, autoreset_mode=AutoresetMode.SAME_STEP)
    env = gym.make(env_id)
    (height, width, channels), actions = env.observation_space.shape, env.action_space.n
    assert venv.single_observation_space.shape == (channels, height, width)
    assert venv.single_observation_space.dtype == np.float32
    ours, _ = venv.reset(seed=[3])
    theirs, _ = env.reset(seed=3)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(80):
        assert np.array_equal(ours[0], theirs.transpose(2, 0, 1))
        action = rng.integers(actions, size=1)
        ours, reward, terminated, _, infos = venv.step(action)
        theirs, their_reward, their_end, _, _ = env.step(action[0])
        assert (reward[0], terminated[0]) == (their_reward, their_end)
        if their_end:
            ends += 1
            assert np.array_equal(infos["final_obs"][0], theirs.transpose(2, 0, 1))
            theirs, _ = env.reset()
    assert ends


def test_a_game_of_minatar_forgets_its_last_action_at_a_reset_with_a_seed_only():
    """A sticky action of one evaluation's last step was the first action of the next one's."""
    pytest.importorskip("minatar")
    venv = make_vec("MinAtar/Breakout-v1", 1, autoreset_mode=AutoresetMode.SAME_STEP)
    game = venv.envs[0].unwrapped.game
    for seed, left in ((None, 3), ([3], 0)):
        game.last_action = 3
        venv.reset(seed=seed)
        assert game.last_action == left


@pytest.mark.parametrize(
    "env_id", ["pointmaze-medium-v0", "antmaze-medium-singletask-v0", "cube-single-v0", "pointmaze-teleport-v0"]
)
def test_episodes_of_ogbench_depend_on_the_seed_of_their_environment_alone(env_id):
    """OGBench draws from NumPy's global generator, and manipulation from a space that it makes anew each time."""
    pytest.importorskip("ogbench")

    def begun(seeds, before=0):
        venv = make_vec(env_id, len(seeds), autoreset_mode=AutoresetMode.SAME_STEP)
        for _ in range(before):
            venv.reset()
        obs, _ = venv.reset(seed=list(seeds))
        venv.step(np.zeros(venv.action_space.shape, venv.action_space.dtype))
        again, _ = venv.reset()
        return np.stack([obs, again], 1)

    before = np.random.get_state()  # noqa: NPY002
    try:
        whole = begun([3, 7, 3])
        assert str(np.random.get_state()) == str(before)  # noqa: NPY002
        np.random.seed(5)  # noqa: NPY002
        np.testing.assert_array_equal(begun([7], before=2)[0], whole[1])
    finally:
        np.random.set_state(before)  # noqa: NPY002
    np.testing.assert_array_equal(whole[0], whole[2])
    assert not np.array_equal(whole[0], whole[1]) and not np.array_equal(whole[0, 0], whole[0, 1])


def test_only_images_are_turned():
    venv = make_vec("Pendulum-v1", 1)
    assert venv.single_observation_space == gym.make("Pendulum-v1").observation_space


@pytest.mark.parametrize(("env_id", "action"), [("MountainCar-v0", 1), ("HalfCheetah-v5", np.zeros(6, np.float32))])
@pytest.mark.parametrize("limit", [3, 1100])
def test_another_time_limit_shorter_or_longer_than_the_tasks_own(env_id, action, limit):
    venv = make_vec(env_id, 1, max_episode_steps=limit)
    venv.reset(seed=0)
    ends = []
    for _ in range(limit):
        _, _, terminated, truncated, _ = venv.step(np.stack([action]))
        ends.append((bool(terminated[0]), bool(truncated[0])))
    assert ends == [(False, False)] * (limit - 1) + [(False, True)]


@pytest.fixture
def dm_control():
    pytest.importorskip("dm_control")
    pytest.importorskip("shimmy")
    try:
        register("dm_control/cartpole-swingup-v0")
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("env_id", ["dm_control/cartpole-swingup-v0", "dm_control/humanoid-run-v0"])
def test_dm_control_is_the_original_with_flat_observations(dm_control, env_id):
    venv, env = make_vec(env_id, 1), gym.make(env_id)
    ours, _ = venv.reset(seed=[3])
    theirs, _ = env.reset(seed=3)
    assert isinstance(theirs, dict)
    rng = np.random.default_rng(0)
    for _ in range(5):
        assert np.array_equal(ours[0], flatten(env.observation_space, theirs))
        action = rng.uniform(-1, 1, venv.action_space.shape)
        ours, reward, *_ = venv.step(action)
        theirs, their_reward, *_ = env.step(action[0])
        assert reward[0] == their_reward


def test_a_mujoco_that_dm_control_cannot_read_is_refused(monkeypatch):
    pytest.importorskip("dm_control")
    pytest.importorskip("shimmy")
    monkeypatch.setattr(envs.make, "mujoco", SimpleNamespace(MjModel=object, MjData=object, __version__="99"))
    with pytest.raises(ModuleNotFoundError, match=r"does not work with mujoco 99: pip install -e '.\[dm_control\]'"):
        register("dm_control/dog-run-v0")


OWN = """
import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Walk(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        return self.place.copy(), {}

    def step(self, action):
        self.place[0] += action[0]
        return self.place.copy(), -abs(self.place[0]), False, False, {}


def walks(num_envs, max_episode_steps=5):
    limited = lambda: gym.wrappers.TimeLimit(Walk(), max_episode_steps)
    return SyncVectorEnv([limited] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def silent(num_envs):
    venv = SyncVectorEnv([Walk] * num_envs)
    venv.metadata = {}
    return venv


gym.register("Walk-v0", entry_point=Walk, max_episode_steps=7)
gym.register("own/Walks-v3", vector_entry_point=walks, max_episode_steps=5)
gym.register("Silent-v0", vector_entry_point=silent)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A function that writes a module into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before, modules = dict(gym.registry), set(sys.modules)

    def write(text: str = OWN, name: str = "walks") -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    gym.registry.clear()
    gym.registry.update(before)
    ids_of.cache_clear()
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("body", ["raise KeyError", "class Own: pass", "1 +"])
def test_the_file_of_an_environment_of_ones_own_is_found_if_it_can_be_imported(own, tmp_path, body):
    """Its errors are told where it is made."""
    own("import gymnasium as gym\ngym.register('Own-v0', 'holds_own:Own')\n", "registers_own")
    own(body, "holds_own")
    assert source_of("registers_own:Own-v0") == (tmp_path / "holds_own.py" if "class" in body else None)
    assert source_of("Hopper-v5") is None


@pytest.mark.parametrize(
    "env_id",
    [
        "MinAtar/Breakout-v1",
        "MiniGrid-Empty-5x5-v0",
        "ALE/Pong-v5",
        "cube-single-v0",
        "pointmaze-medium-v0",
        "Pendulum-v1",
    ],
)
def test_environments_of_known_packages_give_a_new_array_at_each_step(env_id):
    """Others are copied."""
    try:
        register(env_id)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    env = gym.make(env_id, disable_env_checker=True).unwrapped
    assert str(gym.spec(env_id).entry_point).startswith(envs.make.NEW_ARRAYS)
    before, _ = env.reset(seed=0)
    shown = [before, *(env.step(env.action_space.sample())[0] for _ in range(3))]
    shown = [obs["image"] if isinstance(obs, dict) else obs for obs in shown]
    assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(shown, 2))


@pytest.mark.parametrize(("env_id", "limit"), [("Walk-v0", 7), ("own/Walks-v3", 5)])
def test_an_environment_of_a_users_own_module(own, env_id, limit):
    own()
    full = f"walks:{env_id}"
    check_env_id(full)
    assert register(full) == find_spec(full).id == env_id and not is_batched(full)
    assert limit_of(full) == limit and limit_of(full, 3) == 3
    envs = SeededEnvs(full, [0, 4], 2)
    assert envs.task.limit == limit and envs.task.env_id == full and envs.task.obs_shape == (2,)
    for _ in range(limit):
        step = envs.step(torch.ones(2, 2, 1))
    assert step.truncated.all() and [e.length for e in envs.take_ended()] == [limit] * 4
    scores = Evaluator(maker(full), [0, 4], 3)(lambda obs: torch.zeros(2, 3, 1), 0)
    assert [[score.length for score in episodes] for episodes in scores] == [[limit] * 3] * 2


def test_a_script_trains_in_an_environment_of_a_users_own_module(own, train):
    own()
    tiny = {"total_steps": 20, "learning_starts": 10, "eval_every": 10, "eval_episodes": 1, "hidden": (8,)}
    run = train("sac", env_id="walks:Walk-v0", buffer_size=100, batch_size=4, **tiny)
    assert run.code == 0 and run.config["env_id"] == "walks:Walk-v0" and run.folder.parts[-3] == "walks-Walk-v0"


def test_observations_with_a_part_that_is_no_vector_are_refused_in_a_sentence():
    pytest.importorskip("minigrid")
    told = r"^MiniGrid-Empty-5x5-v0: observations have a part 'mission' \(MissionSpace\) that is no vector of"
    with pytest.raises(ValueError, match=told):
        make_vec("MiniGrid-Empty-5x5-v0", 1)


def test_a_task_that_a_module_registers_anew_is_the_modules(own):
    own(OWN + 'gym.register("Hopper-v5", entry_point=Walk, max_episode_steps=7)\n', "anew")
    assert make_vec("Hopper-v5").single_observation_space.shape == (11,)
    with pytest.warns(UserWarning, match="Overriding environment Hopper-v5"):
        assert make_vec("anew:Hopper-v5").single_observation_space.shape == (2,)


@pytest.mark.parametrize(
    ("env_id", "error", "message"),
    [
        ("walks:Walk-v1", ValueError, "'walks' registers no environment 'Walk-v1'; the closest ids are Walk-v0"),
        ("walks:Xyz", ValueError, r"registers no environment 'Xyz'; it registers Walk-v0, own/Walks-v3, Silent-v0$"),
        ("wolks:Walk-v0", ModuleNotFoundError, "there is no module 'wolks', neither in .* nor among the installed"),
        (
            "envs.walk:Walk-v0",
            ModuleNotFoundError,
            "'envs' is the name of a package of this project",
        ),
        ("walks.more:Walk-v0", ModuleNotFoundError, "there is no module 'walks.more', neither in "),
        ("needy:Walk-v0", ModuleNotFoundError, r"the module 'needy' cannot be imported: No module named 'not_there'$"),
        ("broken:Walk-v0", ValueError, "importing the module 'broken' failed: NameError: name 'gym' is not defined$"),
        ("bad:Walk-v0", ValueError, "importing the module 'bad' failed: SyntaxError: "),
        ("empty:HalfChetah-v5", ValueError, "'HalfChetah-v5', even after the module 'empty' was imported; the closest"),
        ("walks.py:Walk-v0", ModuleNotFoundError, "there is no module 'walks.py'"),
        ("a/walks:Walk-v0", ValueError, "'a/walks' is not the name of a module: write package.module:Name-v0"),
        ("walks:", ValueError, "'walks:' names no environment of the module: write walks:Name-v0"),
        (":Walk-v0", ValueError, "'' is not the name of a module"),
        ("a:b:Walk-v0", ValueError, "'a:b' is not the name of a module"),
    ],
)
def test_a_module_or_an_id_that_is_not_there_is_refused_in_a_sentence(own, env_id, error, message):
    own()
    own("import not_there\n", "needy")
    own("gym.register('Walk-v0')\n", "broken")
    own("gym register\n", "bad")
    own("", "empty")
    for _ in range(2):
        with pytest.raises(error, match=message) as refused:
            find_spec(env_id)
        assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match=message) as refusal:
        check_env_id(env_id)
    assert str(refusal.value).startswith("--env-id: ")


def test_a_vector_environment_that_does_not_say_how_it_resets_is_refused(own):
    own()
    message = r"walks:Silent-v0 must say how it resets: set metadata\['autoreset_mode'\]"
    with pytest.warns(UserWarning, match="missing AutoresetMode"), pytest.raises(ValueError, match=message):
        SeededEnvs("walks:Silent-v0", [0])
