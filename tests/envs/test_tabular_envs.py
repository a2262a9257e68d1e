"""Tables: files and cache, exploration of real environments, and tables as environments with exact evaluation."""

import json
import warnings
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from algos.evaluate import TableEvaluator
from envs import make_vec
from envs.make import register
from envs.tabular import Analysis, Table, evaluate, explore, load_table, save_table, tasks
from envs.tabular.explore import MiniGrid
from envs.tabular.table import deterministic_table
from envs.tabular.tasks import FAMILIES, TORQUES, table_of
from envs.tabular.vector import TabularEnv, TabularVectorEnv


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(autouse=True)
def tables(folder, monkeypatch):
    """A cache of tables for these tests alone."""
    monkeypatch.setenv("SEEDBED_TABLES", str(folder))


def random_table(sticky=0.25, horizon=6) -> Table:
    """A table with chance in it, several first states and ends."""
    rng = np.random.default_rng(5)
    share = rng.uniform(size=(5, 3))
    return Table(
        "random",
        rng.integers(-1, 5, (5, 3, 2)),
        np.stack([share, 1 - share], -1),
        rng.normal(size=(5, 3, 2)),
        np.array([0.5, 0.2, 0, 0.3, 0]),
        horizon,
        sticky,
    )


# -- what a table may be -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"next_state": np.zeros((5, 3), int)}, "next states must be [states, actions, outcomes], and none of these 0"),
        (
            {"next_state": np.zeros((5, 0, 2), int)},
            "next states must be [states, actions, outcomes], and none of these",
        ),
        ({"reward": np.zeros((5, 3, 1))}, "next states, probabilities, rewards and starts have different numbers"),
        ({"start": np.ones(1)}, "next states, probabilities, rewards and starts have different numbers"),
        ({"next_state": np.zeros((5, 3, 2))}, "next states must be whole numbers, not float64"),
        ({"next_state": np.full((5, 3, 2), 5)}, "next states must be between -1, an episode's end, and 4"),
        ({"next_state": np.full((5, 3, 2), -2)}, "next states must be between -1, an episode's end, and 4"),
        ({"probability": np.full((5, 3, 2), 0.4)}, "probabilities must be at least 0 and sum to 1"),
        ({"probability": np.stack([np.full((5, 3), 2), np.full((5, 3), -1)], -1)}, "probabilities must be at least 0"),
        ({"probability": np.full((5, 3, 2), np.nan)}, "probabilities must be at least 0 and sum to 1"),
        ({"start": np.zeros(5)}, "starts must be at least 0 and sum to 1"),
        ({"reward": np.full((5, 3, 2), np.inf)}, "rewards must be finite"),
        ({"horizon": 0}, "an episode has 1 to 10,000 decisions, not 0"),
        ({"sticky": 1.0}, "the probability of repeating the last action must be in [0, 1), not 1"),
        ({"sticky": -0.1}, "the probability of repeating the last action must be in [0, 1), not -0.1"),
        ({"obs": np.zeros((4, 2), np.float32)}, "observations must be finite, and one for each state"),
        ({"obs": np.full((5, 2), np.nan, np.float32)}, "observations must be finite, and one for each state"),
    ],
)
def test_a_table_with_a_fault_is_refused(change, problem):
    with pytest.raises(ValueError, match=r"^table random: ") as error:
        replace(random_table(), **change)
    assert problem in str(error.value)


def test_only_a_table_without_chance_is_deterministic():
    chain = table_of("chain")
    assert chain.deterministic and not chain.with_sticky(0.25).deterministic
    assert not replace(chain, start=np.full(4, 0.25)).deterministic and not random_table(0).deterministic


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [random_table(), replace(table_of("chain"), versions={"numpy": "2"})])
def test_a_saved_table_is_the_same(table, tmp_path):
    save_table(table, tmp_path / "new" / "table.npz")
    loaded = load_table(tmp_path / "new" / "table.npz")
    assert loaded.digest() == table.digest()
    for name, value in vars(table).items():
        np.testing.assert_array_equal(getattr(loaded, name), value, strict=isinstance(value, np.ndarray))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["table.npz"]


@pytest.mark.parametrize(
    "change",
    [
        {"horizon": 7},
        {"sticky": 0.5},
        {"obs": np.eye(5, dtype=np.float32)},
        {"start": np.eye(5)[0]},
        {"reward": np.zeros((5, 3, 2))},
    ],
)
def test_everything_but_the_name_and_the_versions_changes_the_digest(change):
    table = random_table()
    assert replace(table, **change).digest() != table.digest()
    assert replace(table, name="other", versions={"numpy": "2"}).digest() == table.digest()


def test_two_processes_may_write_the_same_table(tmp_path, monkeypatch):
    table, path, write = random_table(), tmp_path / "table.npz", np.savez_compressed

    def interrupted(file, **arrays):
        monkeypatch.setattr("numpy.savez_compressed", write)
        monkeypatch.setattr("os.getpid", lambda: -1)
        save_table(table, path)
        write(file, **arrays)

    monkeypatch.setattr("numpy.savez_compressed", interrupted)
    save_table(table, path)
    assert load_table(path).digest() == table.digest()


def test_files_of_bridge_need_a_horizon(tmp_path):
    path = tmp_path / "maze.npz"
    np.savez(path, transitions=np.array([[1, -1], [0, 1]]), rewards=np.array([[0, 0.5], [1, 0]], np.float32))
    table = load_table(path, horizon=3)
    assert (table.name, table.states, table.actions, table.horizon) == ("maze", 2, 2, 3)
    assert table.deterministic and Analysis(table).best_return == 1.5
    with pytest.raises(ValueError, match=r"maze\.npz has a table that cannot be used: .* give a horizon$"):
        load_table(path)


def test_a_saved_deterministic_table_has_the_arrays_of_bridge(tmp_path):
    table = table_of("lure-0.1")
    save_table(table, tmp_path / "table.npz")
    with np.load(tmp_path / "table.npz") as file:
        np.savez(tmp_path / "bridge.npz", transitions=file["transitions"], rewards=file["rewards"])
        assert file["transitions"].dtype == np.int64 and file["rewards"].dtype == np.float32
    again = load_table(tmp_path / "bridge.npz", horizon=8)
    np.testing.assert_array_equal(again.next_state, table.next_state)
    np.testing.assert_allclose(again.reward, table.reward, rtol=1e-7)
    assert load_table(tmp_path / "table.npz", horizon=3).horizon == 3
    save_table(random_table(), tmp_path / "table.npz")
    with np.load(tmp_path / "table.npz") as file:
        assert "transitions" not in file.files


def test_a_damaged_file_is_refused_or_means_the_same(tmp_path):
    table, path = random_table(), tmp_path / "table.npz"
    save_table(table, path)
    whole = path.read_bytes()
    rng, found = np.random.default_rng(0), []
    for number in range(300):
        place = int(rng.integers(len(whole)))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged[:place] if number % 10 == 0 else damaged)
        try:
            found.append(load_table(path).digest())
        except ValueError as error:
            found.append(str(error))
    assert all(text == table.digest() or str(path) in text for text in found)
    assert 0 < found.count(table.digest()) < 150


def test_files_that_hold_no_table_are_refused(tmp_path):
    path = tmp_path / "table.npz"
    with pytest.raises(ValueError, match=r"^there is no table .*table\.npz$"):
        load_table(path)
    with pytest.raises(ValueError, match=r"is no \.npz file of arrays: "):
        load_table(tmp_path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(ValueError, match=r"has neither the arrays of this project \(facts, .*\) nor those of BRIDGE$"):
        load_table(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"is no \.npz file of arrays: "):
        load_table(path)
    for transitions in (np.array([1, 2]), np.array([[1, 7]]), np.zeros((0, 2), int), np.array([["a", "b"]])):
        np.savez(path, transitions=transitions, rewards=np.zeros(transitions.shape))
        with pytest.raises(ValueError, match="has a table that cannot be used: "):
            load_table(path, horizon=2)


def test_a_pickle_is_not_opened(tmp_path):
    path, opened = tmp_path / "table.npz", tmp_path / "opened"

    class Trap:
        def __reduce__(self):
            return Path.touch, (opened,)

    trap = np.array([[Trap()]], object)
    np.savez(path, transitions=trap, rewards=np.zeros((1, 1)))
    with pytest.raises(ValueError, match=r"is no \.npz file of arrays: .*allow_pickle=False"):
        load_table(path, horizon=2)
    assert not opened.exists()


def test_changed_contents_do_not_go_unseen(tmp_path):
    path = tmp_path / "table.npz"
    save_table(random_table(), path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"reward": arrays["reward"] + 1})
    with pytest.raises(ValueError, match=r"its contents are not those that were written$"):
        load_table(path)
    facts = json.loads(str(arrays["facts"]))
    np.savez(path, **arrays | {"facts": np.array(json.dumps(facts | {"colour": 1}))})
    with pytest.raises(ValueError, match="has a table that cannot be used: "):
        load_table(path)


# -- tables by name ----------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The names of tables that are made from now on, with a cache that is empty at first."""
    names: list[str] = []
    monkeypatch.setenv("SEEDBED_TABLES", str(tmp_path))
    for name in ("chain", "frozen-lake-4x4"):
        family = FAMILIES[name]

        def make(name, horizon, family=family):
            names.append(name)
            return family.make(name, horizon)

        monkeypatch.setitem(FAMILIES, name, family._replace(make=make))
    return names


def test_a_table_is_made_once(made, tmp_path):
    first = table_of("frozen-lake-4x4")
    again, sticky = table_of("frozen-lake-4x4-h20"), table_of("frozen-lake-4x4-sticky")
    assert made == ["frozen-lake-4x4-h20"] and first.digest() == again.digest()
    assert (sticky.sticky, sticky.name, sticky.horizon) == (0.25, "frozen-lake-4x4-h20-sticky", 20)
    assert table_of("frozen-lake-4x4-h7").horizon == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frozen-lake-4x4-h20.npz", "frozen-lake-4x4-h7.npz"]


def test_a_table_of_another_release_is_made_anew(made, monkeypatch):
    first = table_of("frozen-lake-4x4")
    assert first.versions == {"gymnasium": gym.__version__, **tasks.RELEASE}
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "version", lambda package: "0.0.1")
        table_of("chain"), table_of("chain"), table_of("frozen-lake-4x4")
    assert made == ["frozen-lake-4x4-h20", "chain-h8", "frozen-lake-4x4-h20"]
    monkeypatch.setattr(tasks, "RELEASE", {"tables": "0"})  # of this project itself
    table_of("chain"), table_of("chain")
    assert made[3:] == ["chain-h8"]


def test_a_cached_table_of_a_package_that_is_missing_is_not_used(made, monkeypatch):
    def missing(package):
        raise PackageNotFoundError(package)

    table_of("frozen-lake-4x4")
    monkeypatch.setattr(tasks, "version", missing)
    table_of("frozen-lake-4x4")
    assert len(made) == 2


def test_a_damaged_table_is_made_anew(made, tmp_path):
    first = table_of("chain")
    whole = (tmp_path / "chain-h8.npz").read_bytes()
    (tmp_path / "chain-h8.npz").write_bytes(whole[: len(whole) // 2])
    assert table_of("chain").digest() == first.digest() and len(made) == 2
    table_of("chain")
    assert len(made) == 2


def test_tables_lie_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("SEEDBED_TABLES")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tasks.cache() == tmp_path / "seedbed" / "tables"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tasks.cache() == Path.home() / ".cache" / "seedbed" / "tables"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("frozen-lake", r"^there is no table 'frozen-lake'; the closest names are .*frozen-lake-[48]x[48].* -sticky$"),
        ("minigrid-emty-5x5-sticky", r"the closest names are minigrid-empty-5x5, .* -sticky$"),
        ("???", r"^there is no table '\?\?\?'; names are chain, gate-0.0625, "),
        ("", r"^there is no table ''; names are chain, "),
        ("chain-h0", r"^table 'chain-h0': an episode has 1 to 10,000 decisions, not 0$"),
        ("chain-h10001", r"an episode has 1 to 10,000 decisions, not 10,001$"),
    ],
)
def test_a_name_that_is_none_is_refused(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        table_of(name)
    with pytest.raises(ValueError, match=sentence):
        make_vec(f"tabular/{name}")


# -- exploration -------------------------------------------------------------------------------------------------------


class Counter:
    """A world whose states are 0, 1, 2, …; what `effect` returns is added to the reward."""

    actions = 2

    def __init__(self, effect=lambda world: 0.0, most=6, tree=False):
        self.effect, self.most, self.tree, self.steps = effect, most, tree, 0

    def reset(self):
        return 0

    def step(self, state, action):
        self.steps += 1
        following = state + action
        return (None if following == self.most else following), action + self.effect(self)

    def key(self, state):
        return None if self.tree else state

    def observe(self, state):
        return np.array([state])

    def play(self, actions):
        state, played = self.reset(), []
        for action in actions:
            state, reward = self.step(state, action)
            played.append((reward, state is None, self.observe(state or 0)))
            if state is None:
                break
        return played


def test_a_world_is_explored():
    table = explore.explore("counter", Counter(), 8, counter="1")
    np.testing.assert_array_equal(table.next_state[..., 0], [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, -1]])
    np.testing.assert_array_equal(table.reward[..., 0], [[0, 1]] * 6)
    np.testing.assert_array_equal(table.obs[:, 0], range(6))
    assert table.versions == {"counter": "1"} and table.horizon == 8


def test_a_tree_ends_with_its_last_decision():
    table = explore.explore("counter", Counter(tree=True), 3)
    np.testing.assert_array_equal(table.next_state[..., 0], [[1, 2], [3, 4], [5, 6], *[[-1, -1]] * 4])
    np.testing.assert_array_equal(table.obs[:, 0], [0, 0, 1, 0, 1, 1, 2])


def test_a_tree_that_is_too_large_is_refused_before_it_is_explored():
    world = Counter(tree=True)
    with pytest.raises(ValueError, match=r"^the tree of big has up to 2\^18 ways, 2 actions in each of 18 decisions"):
        explore.explore("big", world, 18)
    assert world.steps == 0
    with pytest.raises(ValueError, match=r"the tree of cart-pole-h18 has up to 2\^18 ways"):
        table_of("cart-pole-h18")


def test_too_many_states_are_refused(monkeypatch):
    monkeypatch.setattr(explore, "MOST_STATES", 5)
    with pytest.raises(ValueError, match=r"^counter has more than 5 states, too many for a table$"):
        explore.explore("counter", Counter(most=6), 3)
    assert explore.explore("counter", Counter(most=5), 3).states == 5


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize(
    "effect",
    [lambda world: float(world.steps % 3 == 0), lambda world: float(world.steps > 40)],
    ids=["hidden state", "another time"],
)
def test_a_world_with_hidden_state_is_found(tree, effect):
    with pytest.raises(ValueError, match=r"^odd cannot be a table: in the episode [\d, ]+ the last reward is") as error:
        explore.explore("odd", Counter(effect, tree=tree), 5)
    assert str(error.value).endswith("; it has a state that is not saved, or chance in it")


def test_a_world_with_chance_is_found():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"^odd cannot be a table: .*, or chance in it$"):
        explore.explore("odd", Counter(lambda world: rng.normal()), 5)


def test_another_end_is_found():
    class Sudden(Counter):
        def play(self, actions):
            return [(reward, ended or t == 3, obs) for t, (reward, ended, obs) in enumerate(super().play(actions))]

    with pytest.raises(ValueError, match=r"the last step ends the episode, unlike in the table; it has a state"):
        explore.explore("odd", Sudden(most=9), 6)


def test_another_state_without_any_reward_is_found():
    class Moved(Counter):
        def play(self, actions):
            return [(reward, ended, obs + (t == 3)) for t, (reward, ended, obs) in enumerate(super().play(actions))]

    with pytest.raises(ValueError, match=r"the last observation is not that of the table; it has a state that is not"):
        explore.explore("odd", Moved(most=9), 6)


# -- round trips -------------------------------------------------------------------------------------------------------


def walks(table: Table, episodes: int, seed: int = 0):
    """Action sequences that are random in part, and for the rest lead to the reward."""
    rng, best = np.random.default_rng(seed), Analysis(table, discount=0.9).best.argmax(-1)
    for episode in range(episodes):
        state, actions = 0, []
        for t in range(table.horizon):
            by_chance = episode % 2 == 0 or rng.random() < 0.4
            actions.append(int(rng.integers(table.actions)) if by_chance else int(best[t, state]))
            state = int(table.next_state[state, actions[-1], 0])
            if state < 0:
                break
        yield actions


def followed(table: Table, actions: list[int]):
    """The table's own states before each action and after it, and rewards."""
    state = 0
    for action in actions:
        following = int(table.next_state[state, action, 0])
        yield state, action, following, float(table.reward[state, action, 0])
        state = following


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("chain", [(0, 0, 0), (1, 0, 1), (1, 0, 2), (0, 0, 1), (1, 0, 2), (1, 0, 3), (1, 1, -1)]),
        ("gate-0.375", [(1, 0, 1), (1, 0, 2), (0, 0, -1)]),
        ("gate-0.375", [(0, 0.375, -1)]),
        ("gate-0.375", [(1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 1, -1)]),
        ("lure-0.1", [(0, 0.1, 0), (1, 0, 1), (1, 0, 2), (0, 0.1, 0), (1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 1, -1)]),
    ],
)
def test_chains_by_hand(name, steps):
    table = table_of(name)
    found = followed(table, [action for action, *_ in steps])
    assert [(action, reward, following) for _, action, following, reward in found] == steps


TEXT = ["frozen-lake-4x4", "frozen-lake-8x8-slippery", "cliff-walking", "taxi"]


@pytest.mark.parametrize("name", TEXT)
def test_toy_text_does_as_its_table(name):
    table, world = table_of(name), FAMILIES[name].make.__closure__
    env_id, options = (cell.cell_contents for cell in world)
    env, rng, seen = gym.make(env_id, **options).unwrapped, np.random.default_rng(0), set()
    for episode in range(60):
        state, _ = env.reset(seed=episode)
        assert table.start[state] > 0
        for _ in range(table.horizon):
            action = int(rng.integers(table.actions))
            following, reward, terminated, _, info = env.step(action)
            outcomes = zip(table.next_state[state, action], table.reward[state, action], strict=True)
            place = list(outcomes).index((-1 if terminated else following, reward))
            assert table.probability[state, action, place] >= info["prob"] - 1e-12 > 0
            seen.add((state, action, place))
            state = following
            if terminated:
                break
    assert len(seen) > 30


GRID_TABLES = [name for name in FAMILIES if name.startswith("minigrid-")]
QUICK = (
    "minigrid-empty-5x5",
    "minigrid-lavagaps5-lava",
    "minigrid-multiroom-n2-s4-doors",
    "minigrid-doorkey-5x5-pickup",
)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in GRID_TABLES]
)
def test_minigrid_does_as_its_table(name):
    pytest.importorskip("minigrid")
    table, make = table_of(name), FAMILIES[name].make
    cells = dict(zip(make.__code__.co_freevars, (cell.cell_contents for cell in make.__closure__), strict=True))
    env = gym.make(f"MiniGrid-{cells['env_id']}-v0").unwrapped
    shown: dict[int, bytes] = {}
    events = 0

    def look() -> bytes:
        image = env.grid.encode()
        image[tuple(env.agent_pos)] = 10, 0, env.agent_dir
        return image.tobytes()

    def open_doors() -> int:
        return sum(thing is not None and thing.type == "door" and thing.is_open for thing in env.grid.grid)

    for actions in walks(table, 12):
        env.reset(seed=0)
        picked: set[int] = set()
        for state, action, following, expected in followed(table, actions):
            now = look()
            assert shown.setdefault(state, now) == now
            doors = open_doors()
            _, reward, ended, _, _ = env.step(action)
            env.step_count = 0
            gained = float(reward > 0)
            if cells["shaped"] == "doors":
                gained += 0.2 * (open_doors() - doors)
            if cells["shaped"] == "pickup" and env.carrying is not None:
                gained += 0.2 * (id(env.carrying) not in picked)
                picked.add(id(env.carrying))
            if cells["shaped"] == "lava" and ended and not reward:
                gained -= 1
            assert ended == (following < 0) and gained == pytest.approx(expected, abs=1e-12)
            events += gained != 0
    assert events > 3
    images, rows = (np.unique(group, axis=0, return_inverse=True)[1] for group in (
        np.array([np.frombuffer(image, np.uint8) for image in shown.values()]), table.obs[list(shown)]
    ))  # fmt: skip
    same = [a[:, None] == a for a in (images, rows)]
    np.testing.assert_array_equal(*same)  # observations differ where the whole grid does


def test_minigrid_goes_back_to_any_state():
    """Door, key and what is carried come back, whatever was done since."""
    pytest.importorskip("minigrid")
    world = MiniGrid("MiniGrid-DoorKey-5x5-v0", 6)
    states = [world.reset()]
    rng = np.random.default_rng(0)
    for _ in range(300):
        following, _ = world.step(states[-1], int(rng.integers(6)))
        states.append(following if following is not None else states[0])
    keys = [world.key(state) for state in states]
    assert keys == [world.key(state) for state in reversed(states)][::-1] and len(set(keys)) > 20


TREES = {  # name -> environment, actions, repeat, first state
    "cart-pole": ("CartPole-v1", (0, 1), 5, (0, 0, 0.05, 0)),
    "pendulum-h5": ("Pendulum-v1", TORQUES, 5, (np.pi, 0)),
    "pendulum-60-h5": ("Pendulum-v1", TORQUES, 5, (np.pi / 3, 0)),
    "mountain-car-h4": ("MountainCar-v0", (0, 1, 2), 20, None),
    "inverted-pendulum-h5": ("InvertedPendulum-v5", [(-1.0,), (0.0,), (1.0,)], 2, None),
    "hopper-h3": ("Hopper-v5", np.array(np.meshgrid(*[(-1.0, 1.0)] * 3, indexing="ij")).reshape(3, -1).T, 8, None),
    "swimmer-h3": ("Swimmer-v5", [(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)], 10, None),
    "reacher-h2": ("Reacher-v5", [(a, b) for a in (-1.0, 0.0, 1.0) for b in (-1.0, 0.0, 1.0)], 5, None),
}


@pytest.mark.parametrize("name", TREES)
def test_trees_do_as_their_environments(name):
    env_id, choices, repeat, start = TREES[name]
    table, env = table_of(name), gym.make(env_id).unwrapped
    reached = set()
    for actions in walks(table, 30):
        obs, _ = env.reset(seed=0)
        if start is not None:
            env.state = np.array(start)
            obs = None
        for state, action, following, expected in followed(table, actions):
            reached.add(state)
            if obs is not None:
                np.testing.assert_allclose(table.obs[state], obs, rtol=1e-6, atol=1e-7)
            total, ended = 0.0, False
            for _ in range(repeat):
                obs, reward, ended, *_ = env.step(np.array(choices[action]) if env_id != "CartPole-v1" else action)
                total += float(reward)
                if ended:
                    break
            assert total == pytest.approx(expected, rel=1e-12, abs=1e-12)
            assert ended <= (following < 0)
            if following < 0:
                break
    assert len(reached) > min(20, table.states / 3)


@pytest.mark.parametrize(("name", "states"), [("swimmer-h3", 21), ("reacher-h2", 10), ("pendulum-h5", 121)])
def test_a_tree_without_ends_is_full(name, states):
    assert table_of(name).states == states


@pytest.mark.parametrize("name", ["cart-pole", "inverted-pendulum-h5", "hopper-h3"])
def test_each_state_of_a_tree_is_reached_in_one_way(name):
    table = table_of(name)
    following = table.next_state[table.next_state >= 0]
    np.testing.assert_array_equal(np.sort(following), np.arange(1, table.states))
    assert table.states < sum(table.actions**t for t in range(table.horizon))  # some episodes end early


# -- as environments ---------------------------------------------------------------------------------------------------


def play(venv: TabularVectorEnv, steps: int, seed: int = 0):
    """All that random actions show in so many steps."""
    rng = np.random.default_rng(seed)
    return [venv.step(rng.integers(venv.table.actions, size=venv.num_envs)) for _ in range(steps)]


def assert_same(some, others):
    for a, b in zip(some, others, strict=True):
        for x, y in zip(a[:4], b[:4], strict=True):
            np.testing.assert_array_equal(x, y, strict=True)
        assert a[4].keys() == b[4].keys()
        np.testing.assert_array_equal(a[4]["state"], b[4]["state"])


def test_episodes_end_at_the_horizon_or_where_the_table_ends_them():
    venv = TabularVectorEnv("chain", 2, autoreset_mode="Disabled")
    venv.reset(seed=0)
    ends = [venv.step(np.array([0, 1]))[2:4] for _ in range(9)]
    terminated, truncated = (np.array([end[i] for end in ends]) for i in (0, 1))
    np.testing.assert_array_equal(np.argwhere(truncated), [[7, 0]])  # after eight decisions, once
    np.testing.assert_array_equal(np.argwhere(terminated), [[3, 1]])


def test_the_last_decision_may_terminate():
    venv = TabularVectorEnv("chain-h4", 1)
    venv.reset(seed=0)
    *_, (_, reward, terminated, truncated, _) = [venv.step(np.array([1])) for _ in range(4)]
    assert (reward[0], terminated[0], truncated[0]) == (1, True, False)


def test_same_step_reset_gives_the_final_observation():
    venv = TabularVectorEnv("gate-0.375", 2, autoreset_mode="SameStep")
    first, _ = venv.reset(seed=0)
    obs, reward, terminated, _, infos = venv.step(np.array([0, 1]))
    np.testing.assert_array_equal(terminated, [True, False])
    np.testing.assert_array_equal(reward, [0.375, 0])
    np.testing.assert_array_equal(obs, [first[0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(infos["final_obs"][0], np.zeros(4))
    assert infos["final_obs"][1] is None and infos["_final_obs"].tolist() == [True, False]
    assert venv.step(np.array([0, 1]))[1].tolist() == [0.375, 0]


def test_next_step_reset_ignores_the_action_after_an_end():
    venv = TabularVectorEnv("gate-0.375", 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    first, _ = venv.reset(seed=0)
    obs, _, terminated, _, infos = venv.step(np.array([0, 1]))
    assert terminated.tolist() == [True, False] and not obs[0].any() and infos["state"].tolist() == [-1, 1]
    obs, reward, terminated, truncated, infos = venv.step(np.array([0, 1]))
    np.testing.assert_array_equal(obs[0], first[0])
    assert reward[0] == 0 and not (terminated | truncated).any() and infos["state"].tolist() == [0, 2]
    assert venv.step(np.array([0, 1]))[1].tolist() == [0.375, 0]


def test_without_resets_an_ended_episode_stays_ended():
    venv = TabularVectorEnv("gate-0.375", 2, autoreset_mode="Disabled")
    first, _ = venv.reset(seed=0)
    venv.step(np.array([0, 1]))
    for _ in range(2):
        obs, reward, terminated, truncated, infos = venv.step(np.array([1, 1]))
        assert not obs[0].any() and reward[0] == 0 and not terminated[0] and not truncated[0]
        assert infos["state"][0] == -1
    obs, infos = venv.reset(options={"reset_mask": np.array([True, False])})
    np.testing.assert_array_equal(obs[0], first[0])
    assert infos["state"].tolist() == [0, 3]
    with pytest.raises(ValueError, match="reset_mask must be a boolean array"):
        venv.reset(options={"reset_mask": [True, False]})


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_environment_depends_on_its_own_seed_only(mode):
    three = TabularVectorEnv(random_table(), 3, autoreset_mode=mode)
    alone = TabularVectorEnv(random_table(), 1, autoreset_mode=mode)
    together, _ = three.reset(seed=[5, 7, 9])
    single, _ = alone.reset(seed=7)
    np.testing.assert_array_equal(together[1:2], single)
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(3, size=3)
        ours, theirs = three.step(actions), alone.step(actions[1:2])
        for x, y in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(x[1:2], y)
        if mode == AutoresetMode.DISABLED and (ours[2] | ours[3]).any():
            done = ours[2] | ours[3]
            three.reset(options={"reset_mask": done})
            if done[1]:
                alone.reset()


def test_seeds_differ_and_repeat():
    venv = TabularVectorEnv(random_table(), 400)
    venv.reset(seed=3)
    first = play(venv, 10)
    venv.reset(seed=3)
    assert_same(first, play(venv, 10))
    venv.reset(seed=4)
    moved = play(venv, 10)
    assert (first[2][1] != moved[2][1]).any()
    venv.reset(seed=0)
    starts = np.bincount(venv.state, minlength=5) / 400
    np.testing.assert_allclose(starts, random_table().start, atol=4 * np.sqrt(0.25 / 400))


def test_a_reset_without_a_seed_goes_on():
    venv = TabularVectorEnv(random_table(), 200)
    venv.reset(seed=3)
    first = venv.state.copy()
    venv.reset()
    assert (first != venv.state).any()
    with pytest.raises(ValueError, match=r"^seed needs one entry for each of the 200 environments, got 2$"):
        venv.reset(seed=[1, 2])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_kept_state_continues_bitwise(mode):
    options = {"previous_action": True, "time": True, "autoreset_mode": mode}
    venv = TabularVectorEnv(random_table(), 5, **options)
    venv.reset(seed=0)
    play(venv, 9)
    kept = venv.get_state()
    expected = play(venv, 30, seed=1)
    for other in (venv, TabularVectorEnv(random_table(), 5, **options)):
        other.set_state(kept)
        assert_same(play(other, 30, seed=1), expected)


@pytest.mark.parametrize("actions", [np.zeros(2, int), np.array([0, 1, 3]), np.array([0, 1, -1])])
def test_other_actions_are_refused(actions):
    venv = TabularVectorEnv(random_table(), 3)
    venv.reset(seed=0)
    with pytest.raises(ValueError, match=r"^actions must have shape \(3,\) and be 0 to 2$"):
        venv.step(actions)


def test_previous_action_and_time_are_seen():
    venv = TabularVectorEnv(table_of("chain").with_sticky(0.25), 2, previous_action=True, time=True)
    obs, _ = venv.reset(seed=0)
    np.testing.assert_array_equal(obs, [[1, 0, 0, 0, 0, 0, 0]] * 2)
    obs, *_ = venv.step(np.array([0, 1]))
    np.testing.assert_array_equal(obs, [[1, 0, 0, 0, 1, 0, 1 / 8], [0, 1, 0, 0, 0, 1, 1 / 8]])
    for _ in range(4):
        obs, *_, infos = venv.step(np.array([1, 0]))
        np.testing.assert_array_equal(obs[:, 4:6].argmax(1), infos["executed"])
        assert venv.observation_space.contains(obs)


def test_all_observations_are_those_that_are_seen():
    for options in ({}, {"time": True}, {"previous_action": True}, {"previous_action": True, "time": True}):
        venv = TabularVectorEnv(random_table(), 50, autoreset_mode="Disabled", **options)
        venv.reset(seed=0)
        for t in range(3):
            expected = venv.all_observations(t)
            place = venv.state * 4 + venv.last if venv.previous_action else venv.state
            going = venv.state >= 0
            np.testing.assert_array_equal(venv.observe()[going], expected[place[going]])
            play(venv, 1, seed=t)


def test_ids_of_tables():
    venv = make_vec("tabular/frozen-lake-4x4-sticky", 3, autoreset_mode="SameStep", time=True)
    assert isinstance(venv, TabularVectorEnv) and venv.table.sticky == 0.25
    assert venv.observation_space.shape == (3, 17) and venv.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    env = gym.make(register("tabular/cliff-walking-h7"))
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(7)]
    assert ends == [(False, False)] * 6 + [(False, True)]
    assert env.spec.max_episode_steps == 7


@pytest.mark.parametrize("name", ["frozen-lake-4x4-slippery-sticky", "taxi", "cart-pole"])
def test_a_table_is_a_correct_gymnasium_environment(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*alternative render modes.*")
        check_env(TabularEnv(name, previous_action=True, time=True))


# -- sticky actions ----------------------------------------------------------------------------------------------------


def test_sticky_actions_repeat_what_was_executed():
    loop = deterministic_table("loop", np.zeros((1, 4), int), np.zeros((1, 4)), 1000).with_sticky(0.25)
    venv = TabularVectorEnv(loop, 100, autoreset_mode="Disabled")
    venv.reset(seed=0)
    rng = np.random.default_rng(0)
    chosen, executed = np.zeros((2, 1000, 100), int)
    for t in range(1000):
        chosen[t] = rng.integers(4, size=100)
        executed[t] = venv.step(chosen[t])[4]["executed"]
    np.testing.assert_array_equal(executed[0], chosen[0])
    other = executed[1:] != chosen[1:]
    np.testing.assert_array_equal(executed[1:][other], executed[:-1][other])
    share, expected = (executed[1:] == executed[:-1]).mean(), 0.25 + 0.75 / 4
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / executed[1:].size)


def test_nothing_sticks_across_episodes():
    venv = TabularVectorEnv(replace(random_table(), sticky=0.9, horizon=2), 500, autoreset_mode="SameStep")
    venv.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(6):
        first, chosen = venv.elapsed == 0, rng.integers(3, size=500)
        executed = venv.step(chosen)[4]["executed"]
        np.testing.assert_array_equal(executed[first], chosen[first])


# -- exact evaluation --------------------------------------------------------------------------------------------------


def simulated(table: Table, choose, episodes: int = 40_000) -> tuple[float, float]:
    """Mean and standard error of the returns of a policy: choose(t, state, last executed action) -> actions."""
    venv = TabularVectorEnv(table, episodes, autoreset_mode="Disabled")
    venv.reset(seed=0)
    total, last = np.zeros(episodes), np.full(episodes, table.actions)
    for t in range(table.horizon):
        _, reward, *_, infos = venv.step(choose(t, np.maximum(venv.state, 0), last))
        total, last = total + reward, infos["executed"]
    return total.mean(), total.std() / np.sqrt(episodes)


@pytest.mark.parametrize("kind", ["stationary", "by time", "by time and previous action", "by previous action"])
@pytest.mark.parametrize("sticky", [0, 0.4])
def test_exact_returns_are_those_of_episodes(kind, sticky):
    table, rng = random_table(sticky), np.random.default_rng(1)
    times = table.horizon if "time" in kind else 1
    policy = rng.integers(3, size=(times, 5, 4) if "previous" in kind else (times, 5))
    exact = evaluate(table, policy[None], previous_action="previous" in kind)[0]

    def choose(t, state, last):
        here = policy[t if times > 1 else 0]
        return here[state, last] if "previous" in kind else here[state]

    mean, error = simulated(table, choose)
    assert abs(mean - exact) < 4 * error < 0.1


def test_the_random_policy_returns_what_its_values_say():
    table, rng = random_table(), np.random.default_rng(1)
    mean, error = simulated(table, lambda t, state, last: rng.integers(3, size=len(state)))
    assert abs(mean - Analysis(table).random_return) < 4 * error < 0.1


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(
    "shown", [{}, {"time": True}, {"previous_action": True}, {"previous_action": True, "time": True}]
)
def test_evaluations_of_tables_are_exact(shown, timed):
    table = replace(random_table(), obs=np.arange(5, dtype=np.float32)[:, None])
    venv = TabularVectorEnv(table, 2, **shown)
    rng = np.random.default_rng(2)
    chosen = rng.integers(3, size=(2, 6, 5, 4))  # runs, times, states, last executed actions

    def policy(obs, *time):
        assert len(time) == timed
        state = obs[..., 0].long().numpy()
        last = obs[..., 1:4].numpy()
        last = np.where(last.any(-1), last.argmax(-1), 3) if "previous_action" in shown else 3
        now = int(time[0]) if timed else (obs[..., -1] * 6).round().long().numpy() if "time" in shown else 0
        return torch.as_tensor(chosen[np.arange(2)[:, None], now, state, last])

    scores = TableEvaluator(venv, 2, timed=timed)(policy, 0)
    by_time = chosen if timed or "time" in shown else chosen[:, :1]
    by_time = by_time if "previous_action" in shown else by_time[..., 3]
    expected = evaluate(table, by_time, previous_action="previous_action" in shown)
    assert [run[0].total for run in scores] == expected.tolist() and expected[0] != expected[1]
    assert [(run[0].length, run[0].success) for run in scores] == [(6, None)] * 2
