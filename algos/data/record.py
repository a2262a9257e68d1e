"""The record that datasets of all formats become, and that all runs sample from.

Observations are stored once: row i holds the observation, action, reward and `terminated` of a transition, and row
i + 1 holds its next observation. That row begins a transition too, and then has the next action, or it ends an episode,
and then its other numbers are 0; `index` has the rows that begin transitions.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from algos.adapted import Adapted, prepared_obs, raw_action
from algos.errors import UserError
from algos.replay import Batch
from envs import Task

CHUNK = 1 << 13  # rows that are worked on at a time
EDGE = 1e-5  # distance that actions keep from -1 and 1, as in IQL's code


def slices(count: int) -> Iterator[slice]:
    """Yields slices of at most `CHUNK` rows, which together are `count` rows."""
    for start in range(0, count, CHUNK):
        yield slice(start, min(start + CHUNK, count))


def normalised(returns: Any, low: float | None, high: float | None) -> Any:
    """Scores of returns, 0 for `low` and 100 for `high`; the returns if these two are unknown."""
    return returns if low is None or high is None else 100 * (returns - low) / (high - low)


@dataclass
class Dataset:
    """N transitions that all runs share, with what is known about them.

    Rewards, observations and actions are prepared in place before training, and nothing changes them after that.
    Policies act in [-1, 1]: `fit_actions` maps the data's actions there, and `adapt` maps a policy's actions back.
    """

    name: str
    rows: Tensor  # [M, O + A + 2]: observation, action, reward, terminated; float32 when loaded
    index: Tensor  # [N]: the rows that begin transitions
    obs_size: int
    act_size: int
    env_id: str | None = None  # the environment to evaluate in; None if there is none
    env_options: dict[str, Any] = field(default_factory=dict)  # the arguments that make it
    note: str = ""  # how that environment differs from the one in which the data was collected
    low: float | None = None  # the return that scores 0
    high: float | None = None  # the return that scores 100
    parts: dict[str, int] = field(default_factory=dict)  # sizes of the named parts of observations, in their order
    limit: int = 0  # the most steps of an episode; 0 if unknown
    bounds: tuple[NDArray, NDArray] | None = None  # the least and the greatest action [A], if the format has them
    rewarded: bool = True  # whether there are rewards
    true_ends: bool = True  # whether terminal transitions have true next observations; else those of other episodes
    breaks: int = 0  # transitions that the following one does not continue, though no end is marked
    fault: str = ""  # a known fault of the file
    recipe: dict[str, Any] = field(default_factory=dict)  # the values that a recipe stored with its data
    source: str = ""  # where the data comes from: a URL, a file or a command
    digest: str = ""  # SHA-256 of rows and index
    states: NDArray[np.float64] | None = None  # [N, S]: the simulator's qpos and qvel before each transition
    # the numbers subtracted from observations [O] and actions [A], and those they were then divided by; None: unchanged
    obs_scaling: tuple[Tensor, Tensor] | None = None
    action_scaling: tuple[Tensor, Tensor] | None = None

    @property
    def parts_in_words(self) -> str:
        """`achieved_goal (2), observation (4)`; empty if observations have no named parts."""
        return ", ".join(f"{name} ({size})" for name, size in self.parts.items())

    @classmethod
    def of(
        cls,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: Any,
        name: str = "arrays",
        *,
        last: Any = None,
    ) -> "Dataset":
        """A dataset of N transitions in arrays: obs and next_obs [N, O], action [N, A], reward and terminated [N].

        `last` [N] is true for the last transition of each trajectory, whose transitions follow each other; without it,
        each transition counts as a trajectory by itself. Where actions have other bounds than -1 and 1, `fit_actions`
        maps them there. Raises ValueError for arrays that are empty, do not fit each other, or have numbers that are
        not finite in float32, for `terminated` other than 0 or 1, and for transitions of a trajectory that do not
        follow each other up to rounding.
        """
        named = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "terminated": terminated}
        named |= {} if last is None else {"last": last}
        arrays = {key: np.asarray(array) for key, array in named.items()}
        shapes = ", ".join(f"{key} {list(array.shape)}" for key, array in arrays.items())
        if [array.ndim for array in arrays.values()] != [2, 2, 1, 2, 1, 1][: len(arrays)]:
            raise ValueError(f"shapes must be [N, O], [N, A], [N], [N, O] and [N], got {shapes}")
        if len({len(array) for array in arrays.values()}) > 1 or not len(arrays["obs"]):
            raise ValueError(f"all arrays must have the same length, at least 1, got {shapes}")
        if arrays["obs"].shape != arrays["next_obs"].shape:
            raise ValueError(f"obs and next_obs must have the same shape, got {shapes}")
        with np.errstate(over="ignore"):
            strange = [key for key, array in arrays.items() if not np.isfinite(array.astype(np.float32)).all()]
        if strange:
            raise ValueError(f"{strange[0]} has numbers that are not finite in float32")
        if not np.isin(arrays["terminated"], (0, 1)).all():
            raise ValueError("terminated must be 0 or 1, or False or True")
        (count, obs_size), act_size = arrays["obs"].shape, arrays["action"].shape[1]
        ends = arrays.get("last", np.ones(count)).astype(bool) | arrays["terminated"].astype(bool)
        ends[-1] = True
        inner = np.flatnonzero(~ends)  # transitions that another one follows
        follows = np.isclose(arrays["next_obs"][inner], arrays["obs"][inner + 1], rtol=1e-5, atol=1e-6).all(1)
        if len(broken := inner[~follows]):
            raise ValueError(f"obs {broken[0] + 1} is not next_obs {broken[0]}, though `last` has no end between them")
        index = np.arange(count) + np.cumsum(ends) - ends  # a row more after each trajectory
        rows = torch.zeros(count + int(ends.sum()), obs_size + act_size + 2)
        array = rows.numpy()
        array[index, :obs_size], array[index, obs_size:-2] = arrays["obs"], arrays["action"]
        array[index, -2], array[index, -1] = arrays["reward"], arrays["terminated"]
        array[index[ends] + 1, :obs_size] = arrays["next_obs"][ends]
        return cls(name, rows, torch.as_tensor(index), obs_size, act_size)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def task(self) -> Task:
        """The sizes and bounds that an agent needs; its policy acts in [-1, 1], see `adapt`.

        Raises ValueError if actions lie elsewhere.
        """
        ends = torch.stack([torch.stack(self.action[self.index[part]].aminmax()) for part in slices(len(self))])
        least, greatest = ends[:, 0].min().item(), ends[:, 1].max().item()
        if not -1 <= least <= greatest <= 1:
            told = f"from {least:g} to {greatest:g}, and policies act in [-1, 1]"
            raise ValueError(f"the actions of {self.name} are {told}: call fit_actions(low, high) first")
        low, high = (-1.0,) * self.act_size, (1.0,) * self.act_size
        return Task(self.name, (self.obs_size,), self.act_size, False, low, high, self.limit)

    # -- sampling -----------------------------------------------------------------------------------------------------

    def choose(self, integers: Tensor) -> Tensor:
        """Turns random integers [R, B] from [0, 2^63) into the numbers of transitions [R, B]."""
        return integers % len(self.index)

    def gather(self, indices: Tensor) -> Batch:
        """The transitions with the numbers `indices` [R, B]: a batch [R, B, ...]."""
        shape, at = indices.shape, self.index[indices.reshape(-1)]
        rows = self.rows.index_select(0, torch.cat([at, at + 1]))
        now, after = rows.view(2, *shape, -1)
        obs, action, reward, terminated = now.split((self.obs_size, self.act_size, 1, 1), -1)
        return Batch(obs, action, reward.squeeze(-1), after[..., : self.obs_size], terminated.squeeze(-1))

    # -- views of all rows --------------------------------------------------------------------------------------------

    @property
    def obs(self) -> Tensor:
        """A view of the observations of all rows: [M, O]."""
        return self.rows[:, : self.obs_size]

    @property
    def action(self) -> Tensor:
        """A view of the actions of all rows: [M, A]."""
        return self.rows[:, self.obs_size : -2]

    @property
    def reward(self) -> Tensor:
        """A view of the rewards of all rows: [M]."""
        return self.rows[:, -2]

    @property
    def terminated(self) -> Tensor:
        """A view of the flags of all rows, 1.0 where the task ended the episode: [M]."""
        return self.rows[:, -1]

    # -- trajectories and scores --------------------------------------------------------------------------------------

    def trajectories(self) -> NDArray[np.int64]:
        """The first transition of each trajectory and the one after its last: [K, 2].

        A trajectory ends at a termination, and where rows are missing.
        """
        index, terminated = self.index.cpu().numpy(), self.terminated.cpu().numpy()
        ends = [np.zeros(0, np.int64)]
        for part in slices(len(index) - 1):
            rows = index[part.start : part.stop + 1]
            ends.append(part.start + 1 + np.flatnonzero((np.diff(rows) != 1) | (terminated[rows[:-1]] > 0)))
        borders = np.concatenate(ends)
        return np.stack([np.append(0, borders), np.append(borders, len(index))], 1)

    def returns(self) -> NDArray[np.float64]:
        """The undiscounted return of each trajectory: [K]."""
        starts = self.trajectories()[:, 0]
        returns = np.zeros(len(starts))
        for part in slices(len(self)):
            reward = self.reward[self.index[part]].double().cpu().numpy()
            trajectory = np.searchsorted(starts, np.arange(part.start, part.stop), side="right") - 1
            np.add.at(returns, trajectory, reward)
        return returns

    def score(self, returns: Any) -> Any:
        """Normalised scores of returns, 0 for `low` and 100 for `high`; the returns if these two are unknown."""
        return normalised(returns, self.low, self.high)

    def transitions_of(self, trajectories: int) -> int:
        """Counts the transitions of the first trajectories without the very last one, as ReCOIL's official code does.

        A trajectory ends at a termination or after `limit` transitions. Where the limit is unknown, it ends as the data
        says, or after 1,000 transitions if no end is marked. The count is 0 if there are fewer trajectories.
        """
        if not self.limit and len(bounds := self.trajectories()) > 1:
            return int(bounds[trajectories - 1, 1]) - 1 if trajectories <= len(bounds) else 0
        step = ended = number = 0
        for part in slices(len(self)):
            for terminated in self.terminated[self.index[part]].tolist():
                step += 1
                if terminated or step == (self.limit or 1000):
                    ended, step = ended + 1, 0
                if ended == trajectories:
                    return number
                number += 1
        return 0

    # -- other transitions --------------------------------------------------------------------------------------------

    def part(self, numbers: NDArray[np.int64]) -> "Dataset":
        """Only the transitions with these numbers; the rows are shared."""
        digest = hashlib.sha256(self.digest.encode())
        digest.update(np.ascontiguousarray(numbers).data)
        return self._with(self.index[torch.as_tensor(numbers, device=self.index.device)], digest.hexdigest(), numbers)

    def where(self, kept: NDArray[np.bool_]) -> "Dataset":
        """The part with the transitions for which `kept` [N] is true, without an array of all their numbers."""
        digest = hashlib.sha256(self.digest.encode())
        for part in slices(len(self)):
            digest.update((part.start + np.flatnonzero(kept[part])).data)
        index = torch.as_tensor(self.index.cpu().numpy()[kept], device=self.index.device)
        return self._with(index, digest.hexdigest(), kept)

    def _with(self, index: Tensor, digest: str, kept: NDArray) -> "Dataset":
        return replace(self, index=index, digest=digest, states=None if self.states is None else self.states[kept])

    def first(self, transitions: int) -> "Dataset":
        """The first transitions, with no more rows than they need."""
        part = self.part(np.arange(transitions))
        return replace(part, rows=self.rows[: int(part.index[-1]) + 2 if transitions else 0].clone())

    def best(self, fraction: float) -> "Dataset":
        """The fewest whole trajectories with the highest returns that have this fraction of all transitions."""
        bounds = self.trajectories()
        order = np.argsort(-self.returns(), kind="stable")
        covered = np.cumsum((bounds[:, 1] - bounds[:, 0])[order])
        chosen = np.sort(order[: np.searchsorted(covered, fraction * len(self)) + 1])
        return self.part(np.concatenate([np.arange(*bounds[i]) for i in chosen]))

    def joined(self, other: "Dataset") -> "Dataset":
        """The transitions of both datasets, on the host."""
        rows, index = torch.cat([self.rows, other.rows]), torch.cat([self.index, other.index + len(self.rows)])
        digest = hashlib.sha256((self.digest + other.digest).encode()).hexdigest()
        rewarded = self.rewarded and other.rewarded
        true_ends = self.true_ends and other.true_ends
        return replace(self, rows=rows, index=index, digest=digest, rewarded=rewarded, true_ends=true_ends, states=None)

    def to(self, device: torch.device) -> "Dataset":
        """The same dataset on another device, in torch's default precision."""
        dtype = torch.get_default_dtype()
        moved = replace(self)
        moved.rows, moved.index = self.rows.to(device, dtype), self.index.to(device)
        for name in ("obs_scaling", "action_scaling"):
            if pair := getattr(self, name):
                setattr(moved, name, tuple(tensor.to(device, dtype) for tensor in pair))
        return moved

    # -- preparation, in place ----------------------------------------------------------------------------------------

    def scale_rewards(self, how: str) -> str:
        """Changes the rewards in place, and describes the change in words.

        "range" multiplies them by 1000 / (greatest - least return of a trajectory), "minus_one" subtracts 1, and "none"
        leaves them as they are. Raises UserError if all trajectories have the same return, which has no range.
        """
        if how == "range":
            returns = self.returns()
            spread = float(returns.max() - returns.min())
            if not spread > 0:
                raise UserError(f"--reward range: all trajectories of {self.name} have the same return; take none")
            self.reward.mul_(1000 / spread)
            return f"rewards times {1000 / spread:.4g}, for a range of returns of 1,000"
        if how == "minus_one":
            self.reward.sub_(1)
            return "rewards less 1"
        return "rewards as they are"

    def standardise(self) -> None:
        """Subtracts the mean from observations and divides them by their standard deviation + 0.001, in place.

        The statistics are those of the transitions' observations; next observations do not count. Raises ValueError if
        they are standardised already.
        """
        if self.obs_scaling:
            raise ValueError(f"the observations of {self.name} are standardised already")
        total, squares = (torch.zeros(self.obs_size, dtype=torch.float64, device=self.rows.device) for _ in range(2))
        for part in slices(len(self)):
            total += self.obs[self.index[part]].double().sum(0)
        mean = total / len(self)
        for part in slices(len(self)):
            squares += (self.obs[self.index[part]].double() - mean).square().sum(0)
        mean, scale = mean.to(self.rows.dtype), ((squares / len(self)).sqrt() + 1e-3).to(self.rows.dtype)
        self.obs.sub_(mean).div_(scale)
        self.obs_scaling = mean, scale

    def fit_actions(self, low: ArrayLike, high: ArrayLike, edge: float = EDGE) -> None:
        """Maps actions from bounds, [A] or one for all, to [-1, 1], and clips them to less by `edge`, both in place.

        Raises UserError if a bound is not finite or a lower one not below its upper one, and ValueError if there are
        more or fewer than actions have numbers, or if the actions were mapped already.
        """
        low, high = (np.asarray(x).ravel() for x in (low, high))
        if {len(low), len(high)} - {1, self.act_size}:
            raise ValueError(f"actions have {self.act_size} numbers, got {len(low)} and {len(high)} bounds")
        low, high = (np.broadcast_to(x, self.act_size).astype(np.float64) for x in (low, high))
        if not np.isfinite([low, high]).all():
            raise UserError(f"--dataset {self.name} has actions without bounds; policies need a bounded range of them")
        middle = ((high + low) / 2).astype(np.float32)
        exact = np.minimum(high - middle, middle - low)  # so that no action goes back beyond a bound
        half_range = exact.astype(np.float32)
        half_range = np.where(half_range > exact, np.nextafter(half_range, np.float32(0)), half_range)
        if not (half_range > 0).all():
            raise UserError(
                f"--dataset {self.name} has actions of which a lower bound is not below the upper one: leave out "
                "numbers that never change"
            )
        if (low != -1).any() or (high != 1).any():
            if self.action_scaling:
                raise ValueError(f"the actions of {self.name} were mapped to [-1, 1] already")
            shift, scale = self.action_scaling = torch.from_numpy(middle), torch.from_numpy(half_range)
            self.action.sub_(shift).div_(scale)
        self.action.clamp_(-1 + edge, 1 - edge)

    def prepared_obs(self, obs: Tensor) -> Tensor:
        """The environment's observations [..., O] as the prepared data has them."""
        return prepared_obs(obs, self.obs_scaling)

    def raw_obs(self, obs: Tensor) -> Tensor:
        """Observations [..., O] of the prepared data as the environment has them."""
        return obs * self.obs_scaling[1] + self.obs_scaling[0] if self.obs_scaling else obs

    def raw_action(self, action: Tensor) -> Tensor:
        """Actions [..., A] of a policy for the prepared data as the environment takes them."""
        return raw_action(action, self.action_scaling)

    @property
    def is_prepared(self) -> bool:
        """Whether observations or actions are others than the environment's."""
        return self.obs_scaling is not None or self.action_scaling is not None

    def adapt(self, policy: Callable[..., Tensor]) -> Adapted:
        """Turns a policy for the prepared data into one for the environment."""
        return Adapted(policy, self.obs_scaling, self.action_scaling)
