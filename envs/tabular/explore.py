"""Tables of environments that can be saved and restored, by trying every action in every state."""

import copy
import math
from collections.abc import Hashable, Sequence
from itertools import product
from typing import Any, Protocol

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from envs.make import register
from envs.tabular.table import Table, deterministic_table

MOST_STATES = 200_000  # of a table; a tree with as many nodes takes about a minute
REPLAYS = 20  # random episodes in which a new table is held against its environment
ROUNDING = 1e-9  # share of a reward's magnitude by which a replay may differ


class World(Protocol):
    """A deterministic environment whose states can be kept and gone back to."""

    actions: int

    def reset(self) -> Any:
        """The first state."""

    def step(self, state: Any, action: int) -> tuple[Any, float]:
        """The next state, None where the episode ends, and the reward."""

    def key(self, state: Any) -> Hashable:
        """What tells states apart that have different futures; None: every state is a new one."""

    def observe(self, state: Any) -> NDArray:
        """The observation [O] in a state."""

    def play(self, actions: Sequence[int]) -> list[tuple[float, bool, NDArray]]:
        """Plays a whole episode without going back: reward, whether the step ended the episode, next observation."""


def explore(name: str, world: World, horizon: int, **versions: str) -> Table:
    """The table of everything that can happen in `horizon` decisions.

    States that are equal by their keys are one; in a world without keys, the table is a tree, and what would follow its
    last decision is left out. The table is then held against the world in random episodes.

    Raises ValueError if there are too many states, which is estimated beforehand where the table is a tree, or if the
    world does not do the same again, because it has a state that is not saved.
    """
    first = world.reset()
    tree = world.key(first) is None
    if tree:
        nodes = sum(world.actions**t for t in range(horizon))
        if nodes > MOST_STATES:
            raise ValueError(
                f"the tree of {name} has up to {world.actions}^{horizon} ways, {world.actions} actions in each of "
                f"{horizon} decisions, and {MOST_STATES:,} nodes are the most: take fewer decisions or fewer actions"
            )
    numbers: dict[Hashable, int] = {world.key(first): 0}
    states, depths, next_state, reward = [first], [0], [], []
    with tqdm(desc=f"exploring {name}", unit=" states", delay=1, leave=False, disable=None) as bar:
        for number, state in enumerate(states):  # which grow meanwhile
            if number == MOST_STATES:
                raise ValueError(f"{name} has more than {MOST_STATES:,} states, too many for a table")
            steps = [world.step(state, action) for action in range(world.actions)]
            row = []
            for following, _ in steps:
                if following is None or (tree and depths[number] + 1 == horizon):
                    row.append(-1)
                    continue
                key = (len(states),) if tree else world.key(following)
                place = numbers.setdefault(key, len(states))
                if place == len(states):
                    states.append(following)
                    depths.append(depths[number] + 1)
                row.append(place)
            next_state.append(row)
            reward.append([gained for _, gained in steps])
            bar.update()
    obs = np.array([world.observe(state) for state in states], np.float32)
    table = deterministic_table(name, np.array(next_state), np.array(reward), horizon, obs, **versions)
    problem = replay(table, world, tree)
    if problem:
        raise ValueError(f"{name} cannot be a table: {problem}; it has a state that is not saved, or chance in it")
    return table


def replay(table: Table, world: World, tree: bool) -> str:
    """What the world does otherwise than the table says, in random episodes; an empty string if there is nothing."""
    generator = np.random.default_rng(0)
    for _ in range(REPLAYS):
        actions = generator.integers(table.actions, size=table.horizon)
        state = 0
        for t, (reward, ended, obs) in enumerate(world.play(actions.tolist())):
            expected, following = table.reward[state, actions[t], 0], int(table.next_state[state, actions[t], 0])
            where = f"in the episode {', '.join(map(str, actions[: t + 1]))}"
            if not math.isclose(reward, expected, rel_tol=ROUNDING, abs_tol=ROUNDING):
                return f"{where} the last reward is {reward:g}, and {expected:g} in the table"
            last_of_tree = tree and t + 1 == table.horizon
            if ended != (following < 0) and not last_of_tree:
                return f"{where} the last step {'ends' if ended else 'does not end'} the episode, unlike in the table"
            if following < 0:
                break
            state = following
            if table.obs is not None and not np.allclose(obs, table.obs[state], rtol=1e-5, atol=1e-6):
                return f"{where} the last observation is not that of the table"
    return ""


# -- any environment ---------------------------------------------------------------------------------------------------


class Repeated:
    """An environment whose first state is fixed and whose actions are numbered and repeated; its table is a tree.

    `actions` are the environment's own, in the order of their numbers. An episode begins as `reset(seed=0)` does, but
    in the state `start` if that is given, for the environments of classic control. States are copies of the whole
    environment.
    """

    def __init__(self, env_id: str, actions: Sequence[Any], repeat: int, start: Sequence[float] | None = None):
        self.env: Any = gym.make(env_id).unwrapped
        self.choices, self.repeat, self.start = list(actions), repeat, start
        self.actions = len(self.choices)

    def begin(self) -> NDArray:
        """Begins an episode in the environment, and gives its observation."""
        obs, _ = self.env.reset(seed=0)
        if self.start is None:
            return obs
        self.env.state = np.array(self.start, dtype=np.float64)
        return self.env._get_obs() if hasattr(self.env, "_get_obs") else self.env.state.astype(np.float32)

    def save(self) -> Any:
        return copy.deepcopy(self.env)

    def restore(self, saved: Any) -> None:
        self.env = copy.deepcopy(saved)

    def reset(self) -> Any:
        obs = self.begin()
        return self.save(), obs

    def step(self, state: Any, action: int) -> tuple[Any, float]:
        self.restore(state[0])
        obs, reward, ended = self.repeated(action)
        return (None if ended else (self.save(), obs)), reward

    def repeated(self, action: int) -> tuple[NDArray, float, bool]:
        """Repeats an action until the episode ends: the last observation, the sum of rewards, whether it ended."""
        total = 0.0
        for _ in range(self.repeat):
            obs, reward, ended, *_ = self.env.step(self.choices[action])
            total += float(reward)
            if ended:
                break
        return obs, total, bool(ended)

    def key(self, state: Any) -> None:
        return None

    def observe(self, state: Any) -> NDArray:
        return np.asarray(state[1]).ravel()

    def play(self, actions: Sequence[int]) -> list[tuple[float, bool, NDArray]]:
        self.begin()
        played = []
        for action in actions:
            obs, reward, ended = self.repeated(action)
            played.append((reward, ended, np.ravel(obs)))
            if ended:
                break
        return played


class RepeatedMujoco(Repeated):
    """The same for MuJoCo's tasks, where every joint has the same levels, in the task's own unit of actions."""

    def __init__(self, env_id: str, levels: Sequence[float], repeat: int):
        super().__init__(env_id, (), repeat)
        self.choices = [np.array(choice, float) for choice in product(levels, repeat=self.env.action_space.shape[0])]
        self.actions = len(self.choices)

    def save(self) -> NDArray:
        model, data = self.env.model, self.env.data
        state = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
        mujoco.mj_getState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        return state

    def restore(self, saved: NDArray) -> None:
        model, data = self.env.model, self.env.data
        mujoco.mj_setState(model, data, saved, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(model, data)  # rewards use positions of bodies, which follow from the state
        mujoco.mj_setState(model, data, saved, mujoco.mjtState.mjSTATE_INTEGRATION)  # forward may change the warm start


# -- MiniGrid ----------------------------------------------------------------------------------------------------------


class MiniGrid:
    """A task of MiniGrid as BRIDGE has it: always the layout of seed 0, a reward of 1 for success, no count of steps.

    Observations are those of the whole grid with its three codes for each cell, one-hot, without those numbers that are
    the same in all states (`distinct`). `shaped` adds 0.2 times the change in the number of open doors (doors), 0.2 for
    each object that is picked up for the first time (pickup), or -1 for a death in lava (lava).
    """

    CODES = (11, 6, 4)  # objects, colours, and states of doors or directions of the agent

    def __init__(self, env_id: str, actions: int, shaped: str = ""):
        env: Any = gym.make(register(env_id))
        self.env: Any = env.unwrapped
        self.env.gen_obs = dict  # an empty one: what the agent itself would see is not used, and takes most of the time
        self.actions, self.shaped = actions, shaped

    def reset(self) -> Any:
        self.env.reset(seed=0)
        self.objects = self.things()
        self.known: dict[Hashable, NDArray] = {}
        self.picked: frozenset[int] = frozenset()
        return self.save()

    def things(self) -> list[Any]:
        """All objects that can change: those of the grid but walls and the like, and what boxes contain."""
        found = [
            thing for thing in self.env.grid.grid if thing is not None and thing.type in ("door", "key", "ball", "box")
        ]
        for thing in found:
            if thing.contains is not None:
                found.append(thing.contains)
        return list({id(thing): thing for thing in found}.values())

    def save(self) -> Any:
        env = self.env
        plain = int | float | str | tuple | np.generic | np.ndarray | None
        kept = {name: copy.copy(value) for name, value in vars(env).items() if isinstance(value, plain)}
        kept |= {"carrying": env.carrying, "step_count": 0}
        return kept, tuple(env.grid.grid), [dict(vars(thing)) for thing in self.objects], self.picked

    def restore(self, state: Any) -> None:
        kept, cells, things, self.picked = state
        vars(self.env).update((name, copy.copy(value)) for name, value in kept.items() if name != "carrying")
        self.env.carrying = kept["carrying"]
        self.env.grid.grid[:] = cells
        for thing, attributes in zip(self.objects, things, strict=True):
            vars(thing).update(attributes)

    def step(self, state: Any, action: int) -> tuple[Any, float]:
        self.restore(state)
        reward, ended = self.moved(action)
        return (None if ended else self.save()), reward

    def moved(self, action: int) -> tuple[float, bool]:
        """Takes an action in the environment's present state: the reward, and whether the episode ended."""
        doors = self.open_doors()
        _, reward, ended, _, _ = self.env.step(action)
        self.env.step_count = 0
        gained = float(reward > 0)
        if self.shaped == "doors":
            gained += 0.2 * (self.open_doors() - doors)
        elif self.shaped == "pickup" and self.env.carrying is not None:
            number = next(i for i, thing in enumerate(self.objects) if thing is self.env.carrying)
            gained += 0.2 * (number not in self.picked)
            self.picked |= {number}
        elif self.shaped == "lava" and ended and not reward:
            gained -= 1
        return gained, bool(ended)

    def open_doors(self) -> int:
        return sum(thing.type == "door" and thing.is_open for thing in self.objects)

    def key(self, state: Any) -> Hashable:
        self.restore(state)
        env = self.env
        inside = tuple(None if o.contains is None else self.objects.index(o.contains) for o in self.objects)
        carried = None if env.carrying is None else self.objects.index(env.carrying)
        return self.codes().tobytes(), tuple(env.agent_pos), env.agent_dir, carried, inside, self.picked

    def codes(self) -> NDArray:
        """The three codes of each cell, [W, H, 3], which the task itself takes long to tell."""
        grid = self.env.grid
        now = (tuple(map(id, grid.grid)), tuple(thing.encode() for thing in self.objects))
        if now not in self.known:
            self.known[now] = grid.encode()
        return self.known[now]

    def observe(self, state: Any) -> NDArray:
        self.restore(state)
        return self.seen()

    def seen(self) -> NDArray:
        """The observation in the environment's present state."""
        codes = self.codes().astype(np.int64)
        codes[tuple(self.env.agent_pos)] = 10, 0, self.env.agent_dir
        hot = [np.eye(size, dtype=np.float32)[codes[..., c]].ravel() for c, size in enumerate(self.CODES)]
        return np.concatenate(hot)

    def play(self, actions: Sequence[int]) -> list[tuple[float, bool, NDArray]]:
        self.reset()
        played = []
        for action in actions:
            reward, ended = self.moved(action)
            played.append((reward, ended, self.seen()))
            if ended:
                break
        return played


def distinct(obs: NDArray) -> NDArray:
    """Observations [S, O] without the numbers that are the same in all states."""
    kept = obs[:, (obs != obs[0]).any(0)]
    return kept if kept.shape[1] else obs[:, :1]
