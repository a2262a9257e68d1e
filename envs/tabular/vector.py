"""Tables as environments: one, or many at once."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.seeding import reset_arguments
from envs.tabular.table import Table
from envs.tabular.tasks import table_of

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the step of SplitMix64


class Uniform:
    """Uniform random numbers of n generators at once: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

    The state of a generator is one number, and each of them advances as if it was alone.
    """

    def __init__(self, count: int):
        self.state = np.zeros(count, np.uint64)
        self.origin = self.state.copy()  # the states from which `leap` goes on

    def seed(self, ids: NDArray[np.intp], seeds: Sequence[int | None]) -> None:
        """Sets the generators `ids`; None takes a seed from the system."""
        for i, seed in zip(ids, seeds, strict=True):
            self.state[i] = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        self.origin[ids] = self.state[ids]

    def leap(self) -> None:
        """Goes on 2^32 numbers after the last seed or leap, so that the numbers drawn since then play no part."""
        self.origin += GOLDEN << np.uint64(32)
        self.state[:] = self.origin

    def draw(self, ids: NDArray[np.intp] | slice = slice(None)) -> NDArray[np.float64]:
        """One number in [0, 1) from each of the generators `ids`."""
        self.state[ids] += GOLDEN
        z = self.state[ids]
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53


class TabularVectorEnv(VectorEnv):
    """A `gymnasium.vector.VectorEnv` of a table, or of the name of one.

    Observations are those of the table, or where it has none, one-hot states. With `previous_action`, the last executed
    action is appended, one-hot, and zeros at the first decision; with `time`, the share of the horizon that has passed.
    The last decision of an episode is truncated unless the table itself ends the episode there, as it does in trees.
    After such an end, the observation is zeros. Sticky actions repeat the action that was executed last, and the first
    of an episode is always as chosen.

    Infos have `state` [num_envs], the numbers of the states, -1 after an end, and `executed` [num_envs], the actions.
    """

    def __init__(
        self,
        table: Table | str,
        num_envs: int = 1,
        *,
        previous_action: bool = False,
        time: bool = False,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ):
        self.table = table = table_of(table) if isinstance(table, str) else table
        self.num_envs, self.previous_action, self.time = num_envs, previous_action, time
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"autoreset_mode": self.autoreset_mode}
        shown = np.eye(table.states, dtype=np.float32) if table.obs is None else table.obs.reshape(table.states, -1)
        # [S + 1, O], the observations of all states; those after an end, in the last row, are zeros
        self.features = np.append(shown, np.zeros((1, shown.shape[1]), np.float32), axis=0)
        low, high = self.features.min(0), self.features.max(0)
        extra = table.actions * previous_action + time
        low, high = np.append(low, np.zeros(extra)), np.append(high, np.ones(extra))
        self.single_observation_space = gym.spaces.Box(
            low.astype(np.float32), high.astype(np.float32), dtype=np.float32
        )
        self.single_action_space = gym.spaces.Discrete(table.actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

        self.random = Uniform(num_envs)
        self.seeded = np.zeros(num_envs, bool)
        self.cumulated, self.starts = table.probability.cumsum(-1), table.start.cumsum()
        self.one_outcome = table.next_state.shape[2] == 1
        self.state, self.elapsed = np.zeros((2, num_envs), np.int64)
        self.last = np.full(num_envs, table.actions)  # the number of actions where there was none
        self.done = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray, dict[str, Any]]:
        """Starts new episodes, everywhere or where `options["reset_mask"]` [num_envs] is True, as Gymnasium does."""
        seeds, mask = reset_arguments(self.num_envs, seed, options)
        ids = np.flatnonzero(mask)
        new = [i for i in ids if seeds[i] is not None or not self.seeded[i]]
        self.random.seed(np.array(new, np.intp), [seeds[i] for i in new])
        self.seeded[ids] = True
        self.start(ids)
        return self.observe(), {"state": self.state.copy()}

    def start(self, ids: NDArray) -> None:
        """Starts new episodes in the environments `ids`."""
        drawn = self.random.draw(ids)
        self.state[ids] = np.minimum(np.searchsorted(self.starts, drawn, "right"), self.table.states - 1)
        self.elapsed[ids], self.last[ids], self.done[ids] = 0, self.table.actions, False

    def step(self, actions: NDArray) -> tuple[NDArray, NDArray, NDArray, NDArray, dict[str, Any]]:
        """Steps all environments with actions [num_envs]; raises ValueError for another shape or unknown actions."""
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or not ((actions >= 0) & (actions < self.table.actions)).all():
            raise ValueError(f"actions must have shape {(self.num_envs,)} and be 0 to {self.table.actions - 1}")
        table, idle = self.table, self.done.copy()
        repeated = self.random.draw() < table.sticky
        executed = np.where(repeated & (self.elapsed > 0), np.minimum(self.last, table.actions - 1), actions)
        state = np.maximum(self.state, 0)
        outcome = 0
        if not self.one_outcome:
            outcome = (self.random.draw()[:, None] >= self.cumulated[state, executed]).sum(-1)
            outcome = np.minimum(outcome, table.next_state.shape[2] - 1)
        reward = np.where(idle, 0.0, table.reward[state, executed, outcome])
        self.state = np.where(idle, self.state, table.next_state[state, executed, outcome])
        self.last = np.where(idle, self.last, executed)
        self.elapsed += ~idle
        terminated = (self.state < 0) & ~idle
        truncated = (self.elapsed >= table.horizon) & ~terminated & ~idle
        done = terminated | truncated
        infos: dict[str, Any] = {"state": self.state.copy(), "executed": executed}

        if self.autoreset_mode == AutoresetMode.SAME_STEP and done.any():
            ids = np.flatnonzero(done)
            infos["final_obs"] = np.full(self.num_envs, None, object)
            for i, obs in zip(ids, self.observe(ids), strict=True):
                infos["final_obs"][i] = obs
            infos["_final_obs"] = done
            self.start(ids)
            self.done[:] = False
        elif self.autoreset_mode == AutoresetMode.NEXT_STEP:
            if idle.any():
                self.start(np.flatnonzero(idle))
                infos["state"] = self.state.copy()
            self.done = done
        else:
            self.done = done | idle
        return self.observe(), reward, terminated, truncated, infos

    def observe(self, ids: NDArray | slice = slice(None)) -> NDArray[np.float32]:
        """What the environments `ids` show, [n, O]."""
        return self.shown(self.state[ids], self.elapsed[ids], self.last[ids])

    def all_observations(self, t: int) -> NDArray[np.float32]:
        """What is shown in all states at decision t, [S, O], or with the previous action [S (A + 1), O]."""
        seen = self.table.actions + 1 if self.previous_action else 1
        state, last = np.repeat(np.arange(self.table.states), seen), np.tile(np.arange(seen), self.table.states)
        return self.shown(state, np.full(len(state), t), last)

    def shown(self, state: NDArray, elapsed: NDArray, last: NDArray) -> NDArray[np.float32]:
        """What is shown [n, O] in states [n], after `elapsed` decisions and the executed actions `last`.

        The number of actions stands for no last action.
        """
        obs, table = self.features[state], self.table
        if self.previous_action:
            obs = np.append(obs, np.eye(table.actions + 1, table.actions, dtype=np.float32)[last], axis=1)
        if self.time:
            obs = np.append(obs, (elapsed / table.horizon).astype(np.float32)[:, None], axis=1)
        return obs

    def get_state(self) -> dict[str, NDArray]:
        """Everything that a bitwise continuation needs, as arrays; see `set_state`."""
        arrays = {name: getattr(self, name).copy() for name in ("state", "elapsed", "last", "done", "seeded")}
        return arrays | {
            "random": self.random.state.view(np.int64).copy(),
            "origin": self.random.origin.view(np.int64).copy(),
        }

    def set_state(self, state: dict[str, NDArray]) -> None:
        """Continues from a state that `get_state` gave in an environment made with the same arguments."""
        self.random.state, self.random.origin = (state[name].view(np.uint64).copy() for name in ("random", "origin"))
        for name in ("state", "elapsed", "last", "done", "seeded"):
            setattr(self, name, state[name].copy())


class TabularEnv(gym.Env):
    """The same as a single `gymnasium.Env`."""

    def __init__(self, table: Table | str, **options: Any):
        self.envs = TabularVectorEnv(table, 1, autoreset_mode=AutoresetMode.DISABLED, **options)
        self.table = self.envs.table
        self.observation_space = self.envs.single_observation_space
        self.action_space = self.envs.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray, dict[str, Any]]:
        super().reset(seed=seed)
        obs, infos = self.envs.reset(seed=[seed])
        return obs[0], {"state": int(infos["state"][0])}

    def step(self, action: Any) -> tuple[NDArray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, infos = self.envs.step(np.array([action]))
        info = {name: int(infos[name][0]) for name in ("state", "executed")}
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), info
