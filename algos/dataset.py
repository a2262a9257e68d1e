"""Offline datasets: one record for all formats, found by name.

| name | what |
|---|---|
| `d4rl/hopper-medium-v2` | D4RL's HDF5, in $D4RL_DATASET_DIR or ~/.d4rl/datasets; downloaded if missing |
| `minari/mujoco/hopper/medium-v0` | Minari's, in $MINARI_DATASETS_PATH or ~/.minari/datasets; downloaded if missing |
| `ogbench/pointmaze-medium-navigate-v0` | OGBench's npz, in ~/.ogbench/data; downloaded if missing |
| `local/hopper-medium-v0` | made by `python -m benchmarks.collect`, kept as a Minari dataset |
| `data/mine.hdf5`, `data/mine.npz` | a file with D4RL's keys; npz without `timeouts`, with OGBench's |

A file that is named like one of D4RL's is taken for it: `data/hopper_medium-v2.hdf5` is `d4rl/hopper-medium-v2`.

Observations are stored once: row i holds observation, action, reward and `terminated` of a transition, and row i + 1
its next observation, whether that row begins a transition or, after an episode's last, only holds this observation.
"""

import contextlib
import hashlib
import json
import os
import re
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from filelock import FileLock
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces.utils import flatten_space
from numpy.typing import NDArray
from torch import Tensor

from algos.errors import UserError
from algos.replay import Batch
from envs import d4rl, register
from envs.make import OGBENCH as OGBENCH_IDS
from envs.mujoco import RENDERING

CHUNK = 1 << 13  # rows worked on at a time
KEYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")  # D4RL's and OGBench's
# what reading a damaged file raises in h5py, zipfile, NumPy and Minari
DAMAGED = (OSError, EOFError, LookupError, TypeError, ValueError, AssertionError, MemoryError, RuntimeError,
           zipfile.BadZipFile, zlib.error)  # fmt: skip
EDGE = 1e-5  # by which actions stay inside of [-1, 1], as in IQL's code
OGBENCH = "https://rail.eecs.berkeley.edu/datasets/ogbench/"
GOALS = "each episode has a goal there, of which observations say nothing"


@dataclass
class Dataset:
    """An immutable set of transitions, shared by all runs.

    `rows` [M, O + A + 2] float32: observation, action, reward, terminated; `index` [N]: rows that begin transitions.
    `env_id` with `env_options` is what it is evaluated on, None if there is nothing; `note` says what differs there
    from where the data comes from. Returns `low` and `high` score 0 and 100. `limit`: most steps of an episode, 0 if
    unknown. `bounds`: of actions, least and greatest [A], where the format tells them. `rewarded`: whether it has
    rewards. `breaks`: how many of its transitions lead elsewhere than the next one begins, where no end is marked.
    `fault`: what is known to be wrong with the file. `made`: what its recipe says of it, if it has one. `source`: where
    it came from; `digest`: SHA-256 of rows and index.

    Policies act in [-1, 1]: `fit_actions` makes the data's so, and `actor` turns a policy into one for the environment.
    """

    name: str
    rows: Tensor
    index: Tensor
    obs_size: int
    act_size: int
    env_id: str | None = None
    env_options: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    low: float | None = None
    high: float | None = None
    limit: int = 0
    bounds: tuple[NDArray, NDArray] | None = None
    rewarded: bool = True
    breaks: int = 0
    fault: str = ""
    made: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    digest: str = ""
    # what was subtracted from observations [O] and actions [A], and by what they were divided then; None: nothing
    obs_scaling: tuple[Tensor, Tensor] | None = None
    action_scaling: tuple[Tensor, Tensor] | None = None

    # what a run asks of its environments
    ended = ()
    resumable = True

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        pass

    def close(self) -> None:
        pass

    # -- parts --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.index)

    @property
    def obs(self) -> Tensor:
        """A view of the observations of all rows: [M, O]."""
        return self.rows[:, : self.obs_size]

    @property
    def action(self) -> Tensor:
        return self.rows[:, self.obs_size : -2]

    @property
    def reward(self) -> Tensor:
        return self.rows[:, -2]

    @property
    def terminated(self) -> Tensor:
        return self.rows[:, -1]

    def trajectories(self) -> NDArray[np.int64]:
        """First transition of each and the one after its last, [K, 2]: split at terminations and missing rows."""
        index, terminated = self.index.cpu().numpy(), self.terminated.cpu().numpy()
        found = []
        for start in range(0, len(index) - 1, CHUNK):
            at = index[start : start + CHUNK + 1]
            found.append(start + 1 + np.flatnonzero((np.diff(at) != 1) | (terminated[at[:-1]] > 0)))
        ends = np.concatenate([np.zeros(0, np.int64), *found])
        return np.stack([np.append(0, ends), np.append(ends, len(index))], 1)

    def returns(self) -> NDArray[np.float64]:
        """Undiscounted return of each trajectory: [K]."""
        starts = self.trajectories()[:, 0]
        found = np.zeros(len(starts))
        for number, part in enumerate(self.index.split(CHUNK)):
            reward = self.reward[part].double().cpu().numpy()
            of = np.searchsorted(starts, number * CHUNK + np.arange(len(reward)), side="right") - 1
            np.add.at(found, of, reward)
        return found

    def score(self, returns: Any) -> Any:
        """Normalised scores of returns, 0 to 100 from `low` to `high`; where these are unknown, the returns."""
        if self.low is None or self.high is None:
            return returns
        return 100 * (returns - self.low) / (self.high - self.low)

    # -- use ----------------------------------------------------------------------------------------------------------

    def gather(self, integers: Tensor) -> Batch:
        """Transitions chosen by random integers [R, B] from [0, 2^63): a batch [R, B, ...]."""
        shape, at = integers.shape, self.index[integers.reshape(-1) % len(self.index)]
        rows = self.rows.index_select(0, torch.cat([at, at + 1]))
        now, after = rows.view(2, *shape, -1)
        obs, action, reward, terminated = now.split((self.obs_size, self.act_size, 1, 1), -1)
        return Batch(obs, action, reward.squeeze(-1), after[..., : self.obs_size], terminated.squeeze(-1))

    def to(self, device: torch.device) -> "Dataset":
        """The same on another device, in torch's default precision."""
        dtype = torch.get_default_dtype()
        moved = replace(self)
        moved.rows, moved.index = self.rows.to(device, dtype), self.index.to(device)
        for name in ("obs_scaling", "action_scaling"):
            if pair := getattr(self, name):
                setattr(moved, name, tuple(tensor.to(device, dtype) for tensor in pair))
        return moved

    def actor(self, policy: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Of a policy for the data as it was prepared, one for the environment: obs [..., O] -> action [..., A]."""

        def act(obs: Tensor) -> Tensor:
            if self.obs_scaling:
                obs = (obs - self.obs_scaling[0]) / self.obs_scaling[1]
            action = policy(obs).clamp(-1, 1)
            return action * self.action_scaling[1] + self.action_scaling[0] if self.action_scaling else action

        return act

    def part(self, keep: NDArray[np.int64]) -> "Dataset":
        """The transitions of these numbers only; the rows are shared."""
        index = self.index[torch.as_tensor(keep, device=self.index.device)]
        return replace(self, index=index, digest=hashlib.sha256(self.digest.encode() + keep.tobytes()).hexdigest())

    def first(self, transitions: int) -> "Dataset":
        """The first transitions, and no more rows than they need."""
        part = self.part(np.arange(transitions))
        return replace(part, rows=self.rows[: int(part.index[-1]) + 2 if transitions else 0])

    def transitions_of(self, trajectories: int) -> int:
        """How many the first trajectories have, as ReCOIL's official code counts: the last one of the last is left out.

        A trajectory is over after `limit` transitions, 1,000 if there is none; 0 if there are fewer trajectories.
        """
        step = count = row = 0
        for part in self.index.split(CHUNK):
            for end in self.terminated[part].tolist():
                step += 1
                if end or step == (self.limit or 1000):
                    count, step = count + 1, 0
                if count == trajectories:
                    return row
                row += 1
        return 0

    def best(self, fraction: float) -> "Dataset":
        """The whole trajectories of highest return, as few as make up that share of all transitions."""
        bounds = self.trajectories()
        order = np.argsort(-self.returns(), kind="stable")
        covered = np.cumsum((bounds[:, 1] - bounds[:, 0])[order])
        chosen = np.sort(order[: np.searchsorted(covered, fraction * len(self)) + 1])
        return self.part(np.concatenate([np.arange(*bounds[i]) for i in chosen]))

    def joined(self, other: "Dataset") -> "Dataset":
        """The transitions of both, on the host."""
        rows, index = torch.cat([self.rows, other.rows]), torch.cat([self.index, other.index + len(self.rows)])
        digest = hashlib.sha256((self.digest + other.digest).encode()).hexdigest()
        return replace(self, rows=rows, index=index, digest=digest, rewarded=self.rewarded and other.rewarded)

    def scale_rewards(self, how: str) -> str:
        """Changes the rewards in place, and says how in words.

        "range": times 1000 / (greatest - least return of a trajectory); "minus_one": less 1; "none".
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

    def standardise(self, eps: float = 1e-3) -> None:
        """Observations less their mean, divided by their standard deviation + eps, in place.

        Statistics are over the observations of the transitions, next ones not counted.
        """
        total, squares = (torch.zeros(self.obs_size, dtype=torch.float64, device=self.rows.device) for _ in range(2))
        for part in self.index.split(CHUNK):
            total += self.obs[part].double().sum(0)
        mean = total / len(self)
        for part in self.index.split(CHUNK):
            squares += (self.obs[part].double() - mean).square().sum(0)
        mean, scale = mean.to(self.rows.dtype), ((squares / len(self)).sqrt() + eps).to(self.rows.dtype)
        self.obs.sub_(mean).div_(scale)
        self.obs_scaling = mean, scale

    def fit_actions(self, low: NDArray, high: NDArray) -> None:
        """Maps actions from bounds [A] to [-1, 1], and clips them a little inside, both in place.

        Raises UserError if there is an action without a bound.
        """
        if not np.isfinite([low, high]).all():
            raise UserError(f"--dataset {self.name} has actions without bounds, where policies act within bounds")
        if (low != -1).any() or (high != 1).any():
            mean, scale = (
                torch.as_tensor(x.ravel(), dtype=torch.float32) for x in ((high + low) / 2, (high - low) / 2)
            )
            self.action.sub_(mean).div_(scale)
            self.action_scaling = mean, scale
        self.action.clamp_(-1 + EDGE, 1 - EDGE)


# -- by name -----------------------------------------------------------------------------------------------------------


def load(name: str, exact_d4rl: bool = False) -> Dataset:
    """The dataset of that name or path; raises UserError if there is none, or if it is damaged.

    D4RL's files have true next observations where they have them at all; `exact_d4rl` gives the rows and next
    observations of D4RL's own `qlearning_dataset` instead: the observation of the next row, and no row of a timeout.
    """
    check_name(name, exact_d4rl)
    check_made(name)
    kind, _, rest = name.partition("/")
    try:
        if kind == "d4rl" or (is_file(name) and d4rl.of_file(name)):
            found = _load_d4rl(name, exact_d4rl)
        elif is_file(name):
            found = _read(Path(name), name, exact_d4rl)
        elif kind == "ogbench":
            found = _load_ogbench(rest)
        else:
            found = _load_minari(name, rest if kind == "minari" else name)
    except DAMAGED as error:
        raise UserError(f"--dataset {name} is damaged, not of this kind, or beyond all memory: {error}") from None
    digest = hashlib.sha256(found.rows.numpy().data)
    digest.update(found.index.numpy().data)
    note = GOALS if re.match(OGBENCH_IDS, found.env_id or "") else found.note
    return replace(found, digest=digest.hexdigest(), note=note)


def is_file(name: str) -> bool:
    """Whether a dataset's name is the path of a file."""
    return Path(name).suffix in (".hdf5", ".h5", ".npz")


def check_name(name: str, exact_d4rl: bool = False) -> None:
    """Raises UserError if no dataset can have that name, or if it is that of a file which is not there."""
    kind, _, rest = name.partition("/")
    if exact_d4rl and not (is_file(name) or kind == "d4rl"):
        raise UserError(f"--exact-d4rl is for files of D4RL's layout, which {name} is not")
    if is_file(name):
        if not Path(name).is_file():
            raise UserError(f"--dataset: there is no file {name}")
    elif kind == "d4rl":
        try:
            task = d4rl.find(rest)
        except ValueError as error:
            raise UserError(f"--dataset: {error}") from None
        if not task.file:
            raise UserError(f"--dataset: D4RL has no data of {rest}")
    elif kind == "minari" and rest and not re.search(r"-v\d+$", rest):
        raise UserError(f"--dataset: {name} lacks the version, as in minari/mujoco/hopper/medium-v0")
    elif kind == "ogbench" and "singletask" in rest:
        raise UserError(f"--dataset: {name}: OGBench makes the rewards of single tasks from goals, which this does not")
    elif kind not in ("minari", "ogbench", "local") or not rest:
        raise UserError(
            f"--dataset takes d4rl/…, minari/…, ogbench/…, local/…, or the path of a .hdf5 or .npz file, got {name!r}"
        )


def check_made(name: str) -> None:
    """Raises UserError if it is the name of a dataset that has to be made here first."""
    from minari.storage import get_dataset_path

    if name.startswith("local/") and not (place := get_dataset_path(name)).exists():
        recipe = name.removeprefix("local/").replace("-val-v", "-v")
        raise UserError(
            f"--dataset: {name} is not in {place}; make it: python -m benchmarks.collect {recipe} (--list names all "
            "that can be made)"
        )


class Builder:
    """Rows that are appended to, without ever holding them twice: memory is taken as it is filled."""

    def __init__(self, capacity: int, obs_size: int, act_size: int):
        self.obs_size, self.act_size, self.filled, self.count = obs_size, act_size, 0, 0
        self.rows = np.empty((capacity, obs_size + act_size + 2), np.float32)
        self.index = np.empty(capacity, np.int64)

    def add(self, obs: NDArray, action: NDArray, reward: Any, terminated: Any, keep: NDArray | None = None) -> None:
        """Appends rows: obs [n, O], the others of the first n or n - 1 rows, which are transitions where `keep`."""
        start, count = self.filled, len(action)
        rows = self.rows[start : start + len(obs)]
        rows[:, : self.obs_size] = obs
        rows[count:, self.obs_size :] = 0
        rows[:count, self.obs_size : -2] = action
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which `validate` refuses
            rows[:count, -2], rows[:count, -1] = reward, terminated
        index = start + (np.arange(count) if keep is None else np.flatnonzero(keep))
        self.index[self.count : self.count + len(index)] = index
        self.filled, self.count = start + len(obs), self.count + len(index)

    def finish(self, name: str, **facts: Any) -> Dataset:
        if not self.count:
            raise UserError(f"--dataset {name} has no transition")
        rows, index = torch.from_numpy(self.rows[: self.filled]), torch.from_numpy(self.index[: self.count])
        return Dataset(name, rows, index, self.obs_size, self.act_size, **facts)


# -- D4RL --------------------------------------------------------------------------------------------------------------


def kept_rows(
    terminals: NDArray[np.bool_],
    timeouts: NDArray[np.bool_] | None,
    limit: int,
    exact: bool = False,
    terminate_on_end: bool = False,
) -> NDArray[np.int64]:
    """The rows that D4RL's `qlearning_dataset` keeps: neither the last one nor, by default, those of timeouts.

    Without recorded timeouts these are counted; if `exact`, the count is one too high after a terminal, as it is there.
    """
    count = len(terminals) - 1
    if timeouts is not None:
        return np.flatnonzero(~timeouts[:count] | terminate_on_end)
    keep, step = np.ones(count, bool), 0
    for row, terminal in enumerate(terminals[:count].tolist()):
        final = step == limit - 1
        if final and not terminate_on_end:
            keep[row], step = False, 0
            continue
        step = int(exact) if terminal or final else step + 1
    return np.flatnonzero(keep)


def sequences(terminals: NDArray[np.bool_], timeouts: NDArray[np.bool_] | None, limit: int) -> list[tuple[int, int]]:
    """The episodes of D4RL's `sequence_dataset`: first and last row, last excluded; an unfinished one is left out.

    Without recorded timeouts, all episodes but the first are counted one step short, as they are there.
    """
    found, start, step = [], 0, 0
    for row in range(len(terminals)):
        final = bool(timeouts[row]) if timeouts is not None else step == limit - 1
        if terminals[row] or final:
            found.append((start, row + 1))
            start, step = row + 1, 0
        step += 1
    return found


def _load_d4rl(name: str, exact: bool) -> Dataset:
    """One of D4RL's, by its name or by the path of its file."""
    task = d4rl.of_file(name) if is_file(name) else d4rl.find(name.partition("/")[2])
    assert task and task.place and task.url  # see check_name
    place = Path(name) if is_file(name) else task.place
    if not place.exists():
        download(task.url, place, name)
    found = _read(place, name, exact, task.limit)
    return replace(
        found,
        env_id=None if task.family in d4rl.APART else task.env_id,
        env_options=task.env_options,
        note=task.note,
        low=task.low,
        high=task.high,
        limit=task.limit,
        fault=task.fault,
        source=task.url,
    )


# -- Minari ------------------------------------------------------------------------------------------------------------


def _load_minari(name: str, minari_id: str) -> Dataset:
    import minari
    from minari.storage import get_dataset_path

    place = get_dataset_path(minari_id)
    if not place.exists():
        try:
            _download_minari(minari_id, get_dataset_path())
        except Exception as error:  # of whatever transport Minari uses
            raise UserError(
                f"--dataset: {name} is not in {place}, and downloading it failed ({error}): minari download {minari_id}"
            ) from None
    data = minari.load_dataset(minari_id)
    if not isinstance(data.action_space, gym.spaces.Box):
        raise UserError(f"--dataset: {name} has {type(data.action_space).__name__} actions; this needs numbers (a Box)")
    if len(data.observation_space.shape or ()) > 2:
        raise UserError(f"--dataset: {name} has images, {data.observation_space.shape}; this needs vectors")
    space = flatten_space(data.observation_space)
    obs_size, act_size = int(np.prod(space.shape or ())), int(np.prod(data.action_space.shape or ()))
    build = Builder(int(data.total_steps + data.total_episodes), obs_size, act_size)
    for episode in data.iterate_episodes():
        steps = len(episode.rewards)
        obs = _flat(data.observation_space, episode.observations, steps + 1)
        build.add(obs, episode.actions.reshape(steps, -1), episode.rewards, episode.terminations)
    meta = data.storage.metadata
    made = recipe_of(meta.get("description")) if name.startswith("local/") else {}
    spec: EnvSpec | None = data._eval_env_spec or data.env_spec  # Minari mends what older versions wrote
    return build.finish(
        name,
        env_id=spec.id if spec else None,
        env_options=_options(spec) if spec else {},
        low=meta.get("ref_min_score"),
        high=meta.get("ref_max_score"),
        limit=(spec.max_episode_steps or 0) if spec else 0,
        bounds=(data.action_space.low.ravel(), data.action_space.high.ravel()),
        source=str(made.get("command") or meta.get("code_permalink") or minari_id),
        made=made,
    )


def recipe_of(description: Any) -> dict[str, Any]:
    """What a recipe wrote of its dataset; nothing if another program made it."""
    with contextlib.suppress(TypeError, ValueError):
        if isinstance(found := json.loads(description), dict):
            return found
    return {}


@contextlib.contextmanager
def minari_in(folder: Path) -> Iterator[None]:
    """Lets Minari keep its datasets in another folder meanwhile."""
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before


def _download_minari(minari_id: str, root: Path) -> None:
    """Fetches a dataset aside, where the next try goes on, and moves it to its place when all of it is there."""
    import minari

    aside = root / ".downloads" / minari_id.replace("/", "-")
    with FileLock(root / ".downloads.lock"):
        if (root / minari_id).exists():  # another process was faster
            return
        with minari_in(aside):
            minari.download_dataset(minari_id, force_download=(aside / minari_id).exists())
        # a combined dataset holds what its parts do; parts that came along may be halves of an earlier try
        for part in [*aside.rglob("namespace_metadata.json"), aside / minari_id]:
            place = root / part.relative_to(aside)
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                part.rename(place)


def _options(spec: EnvSpec) -> dict[str, Any]:
    """What a recorded environment has besides its id's own arguments."""
    options = {k: v for k, v in spec.kwargs.items() if k not in RENDERING}
    with contextlib.suppress(ModuleNotFoundError):  # said when it is made
        register(spec.id)
    if spec.id in gym.registry:
        standard = gym.registry[spec.id]
        options = {k: v for k, v in options.items() if standard.kwargs.get(k, ...) != v}
        if spec.max_episode_steps != standard.max_episode_steps:
            options["max_episode_steps"] = spec.max_episode_steps or -1
    return options


def _flat(space: gym.Space, values: Any, count: int) -> NDArray:
    """Observations [count, O] in the order of Gymnasium's FlattenObservation."""
    if isinstance(space, gym.spaces.Dict):
        return np.concatenate([_flat(part, values[key], count) for key, part in space.spaces.items()], 1)
    if isinstance(space, gym.spaces.Tuple):
        return np.concatenate([_flat(part, v, count) for part, v in zip(space.spaces, values, strict=True)], 1)
    if not isinstance(space, gym.spaces.Box):
        raise UserError(f"--dataset: observations have a {type(space).__name__}; this needs boxes of numbers")
    return np.asarray(values).reshape(count, -1)


# -- OGBench -----------------------------------------------------------------------------------------------------------


def _load_ogbench(name: str) -> Dataset:
    place = Path.home() / ".ogbench" / "data" / f"{name}.npz"
    if not place.exists():
        download(f"{OGBENCH}{name}.npz", place, f"ogbench/{name}")
    words = name.removesuffix("-val").split("-")
    env_id = "-".join([*words[:-2], words[-1]]) if len(words) > 2 else None  # without navigate, stitch, play, ...
    return replace(_read(place, f"ogbench/{name}"), env_id=env_id, source=f"{OGBENCH}{name}.npz")


# -- files of D4RL's and OGBench's layouts -----------------------------------------------------------------------------


class Column(NamedTuple):
    """An array of a file, whose rows `pieces()` reads some at a time: a whole one may be as large as all rows."""

    shape: tuple[int, ...]
    dtype: np.dtype
    pieces: Callable[[], Iterator[NDArray]]


def _read(path: Path, name: str, exact: bool = False, limit: int = 0) -> Dataset:
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
            columns = {key: _npz_column(archive, key) for key in KEYS if f"{key}.npy" in members}
            return _dataset(path, name, columns, exact, limit)
    import h5py

    with h5py.File(path, rdcc_nbytes=1 << 21) as file:  # its default of 1 MiB would decompress some pieces repeatedly
        columns = {key: _hdf5_column(file[key]) for key in KEYS if isinstance(file.get(key), h5py.Dataset)}
        return _dataset(path, name, columns, exact, limit)


def _hdf5_column(array: Any) -> Column:
    def pieces() -> Iterator[NDArray]:
        for start in range(0, len(array), CHUNK):
            yield array[start : start + CHUNK]

    return Column(array.shape, array.dtype, pieces)


def _npz_column(archive: zipfile.ZipFile, key: str) -> Column:
    with archive.open(f"{key}.npy") as file:
        shape, dtype = _npy_header(file, key)

    def pieces() -> Iterator[NDArray]:
        with archive.open(f"{key}.npy") as file:
            _npy_header(file, key)
            row = int(np.prod(shape[1:])) * dtype.itemsize
            for start in range(0, shape[0], CHUNK):
                count = min(CHUNK, shape[0] - start)
                yield np.frombuffer(file.read(count * row), dtype).reshape(count, *shape[1:])

    return Column(shape, dtype, pieces)


def _npy_header(file: Any, key: str) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if fortran and len(shape) > 1:
        raise ValueError(f"{key} is stored column by column")
    return shape, dtype


def _dataset(path: Path, name: str, columns: dict[str, Column], exact: bool, limit: int) -> Dataset:
    """The transitions of a file, by the rules of its layout."""
    _check_columns(path, columns)
    (count, obs_size), act_size = columns["observations"].shape, columns["actions"].shape[1]
    terminals, timeouts = (_flags(path, key, columns) for key in ("terminals", "timeouts"))
    assert terminals is not None  # see _check_columns
    true = not exact and "next_observations" in columns
    keep = np.zeros(count, bool)
    if path.suffix == ".npz" and timeouts is None and "next_observations" not in columns:
        # OGBench's: a terminal row only holds an episode's last observation, and nothing says whether the task ended it
        paid = [piece.reshape(-1) != 0 for piece in columns["rewards"].pieces()] if "rewards" in columns else []
        if paid and (np.concatenate(paid) & terminals).any():
            raise UserError(
                f"--dataset: {path} has rewards at 'terminals', where OGBench's layout only has last observations, and "
                "for D4RL's it lacks 'timeouts' or 'next_observations'"
            )
        keep[:-1] = ~terminals[:-1]
    elif not true and timeouts is None and not limit:
        lacks = "no 'timeouts'" if "next_observations" in columns else "neither 'timeouts' nor 'next_observations'"
        raise UserError(f"--dataset: {path} has {lacks} to tell episodes apart")
    else:
        keep[np.arange(count) if true else kept_rows(terminals, timeouts, limit, exact)] = True

    build = Builder(2 * count if true else count, obs_size, act_size)
    rewards = columns["rewards"].pieces() if "rewards" in columns else None
    following = columns["next_observations"].pieces() if true else None
    ended = terminals if timeouts is None else terminals | timeouts
    last, part, cut, breaks = np.empty((0, obs_size)), slice(0, 0), False, 0
    for obs, action in zip(columns["observations"].pieces(), columns["actions"].pieces(), strict=True):
        part = slice(part.stop, part.stop + len(obs))
        reward = next(rewards).reshape(-1) if rewards else 0
        if following is None:
            build.add(obs, action, reward, terminals[part], keep[part])
            continue
        # a next observation that the row after it does not hold gets a row of its own
        after = next(following)
        before = np.concatenate([last if len(last) else obs[:1], after[:-1]])
        apart = (before != obs).any(1)
        breaks += int((apart & ~np.append(part.start > 0 and ended[part.start - 1], ended[part])[:-1]).sum())
        if timeouts is not None:
            apart |= np.append(cut, timeouts[part])[:-1]
            cut = timeouts[part.stop - 1]
        own = np.arange(len(obs)) + np.cumsum(apart)
        rows = np.zeros((len(obs) + int(apart.sum()), obs_size + act_size + 2), np.float32)
        rows[own, :obs_size], rows[own[apart] - 1, :obs_size] = obs, before[apart]
        rows[own, obs_size:-2], rows[own, -2], rows[own, -1] = action, reward, terminals[part]
        begins = np.zeros(len(rows), bool)
        begins[own] = True
        build.add(rows[:, :obs_size], rows[:, obs_size:-2], rows[:, -2], rows[:, -1], begins)
        last = after[-1:]
    build.add(last, np.empty((0, act_size)), 0, 0)  # the last row's next observation
    return build.finish(name, limit=limit, rewarded=rewards is not None, breaks=breaks, source=path.name)


def _check_columns(path: Path, columns: dict[str, Column]) -> None:
    """Raises UserError if something is missing, is not of numbers, or has another length or another shape."""
    for key in ("observations", "actions", "terminals"):
        if key not in columns:
            raise UserError(f"--dataset: {path} has no array {key!r}, so it is not of D4RL's or OGBench's layout")
    shapes = {key: column.shape for key, column in columns.items()}
    for key, column in columns.items():
        if column.dtype.kind not in "fiub":
            raise UserError(f"--dataset: {path} has {key} of {column.dtype}, which are not numbers")
        if not column.shape or column.shape[0] != shapes["observations"][0]:
            raise UserError(
                f"--dataset: {path} has {key} of shape {column.shape}, and observations of {shapes['observations']}"
            )
    if columns["actions"].dtype.kind != "f":
        raise UserError(f"--dataset: {path} has actions of {columns['actions'].dtype}; discrete ones are not for this")
    for key in ("observations", "actions"):
        if len(shapes[key]) != 2:
            raise UserError(f"--dataset: {path} has {key} of shape {shapes[key]}; this needs two axes, rows of numbers")
    if shapes.get("next_observations", shapes["observations"]) != shapes["observations"]:
        raise UserError(f"--dataset: {path} has next_observations of another shape than observations")
    for key in ("rewards", "terminals", "timeouts"):
        if key in shapes and shapes[key][1:] not in ((), (1,)):
            raise UserError(f"--dataset: {path} has {key} of shape {shapes[key]}; this needs a number for each row")


def _flags(path: Path, key: str, columns: dict[str, Column]) -> NDArray[np.bool_] | None:
    """An array of truth values [N], or None if there is none; raises UserError if it has other numbers than 0 and 1."""
    if key not in columns:
        return None
    found = []
    for piece in columns[key].pieces():
        found.append((flags := piece.reshape(-1)) != 0)
        if (found[-1] & (flags != 1)).any():
            raise UserError(f"--dataset: {path} has {key} other than 0 and 1")
    return np.concatenate([np.zeros(0, bool), *found])


# -- files that are missing --------------------------------------------------------------------------------------------


def download(url: str, place: Path, name: str) -> None:
    """Fetches a file, going on where an earlier try ended; `place` appears when all of it is there.

    Of several processes one fetches it, and the others wait. Raises UserError, in a sentence with the file, its folder
    and a command, if that is not possible.
    """
    part = place.with_name(place.name + ".part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_name(place.name + ".lock")):
            if place.exists():
                return
            _fetch(url, part, name)
            with open(part, "rb") as file:
                magic = file.read(8)
            if not magic.startswith((b"\x89HDF\r\n\x1a\n", b"PK\x03\x04")):
                part.unlink()
                raise OSError("what came is neither HDF5 nor npz")
            os.replace(part, place)
    except (OSError, HTTPException, ValueError) as error:  # urllib's errors are OSErrors
        raise UserError(
            f"--dataset: {name} needs the file {place.name} in {place.parent}, and downloading it failed ({error}): "
            f"curl -L -C - -o {place} {url}"
        ) from None


def _fetch(url: str, part: Path, name: str) -> None:
    """Appends to a file what it lacks of a URL; raises OSError if not all of it came."""
    from tqdm import tqdm

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        reply = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if not have or error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":  # nothing is lacking
            return
        part.unlink()
        return _fetch(url, part, name)
    with reply:
        have = have if reply.status == 206 else 0  # the server may send all of it again
        if "Content-Length" not in reply.headers:
            raise OSError("the server does not say how long it is")
        total = have + int(reply.headers["Content-Length"])
        with (
            open(part, "ab" if have else "wb") as file,
            tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=name, disable=None) as progress,
        ):
            while block := reply.read(1 << 20):
                file.write(block)
                progress.update(len(block))
            file.flush()
            os.fsync(file.fileno())
    if (came := part.stat().st_size) != total:
        raise OSError(f"{came:,} of {total:,} bytes came; the next try goes on from there")


# -- before training ---------------------------------------------------------------------------------------------------


def validate(data: Dataset, obs_space: gym.Space | None = None, act_space: gym.Space | None = None) -> list[str]:
    """Sentences on what looks wrong in a dataset; raises UserError for what cannot be trained on.

    The spaces are those of the evaluation environment, whose actions bound the dataset's.
    """
    where = f"--dataset {data.name}"
    names = ["observation"] * data.obs_size + ["action"] * data.act_size + ["reward", "terminated"]
    for number, part in enumerate(data.index.split(CHUNK)):
        for what, rows in (("", data.rows[part]), ("next ", data.obs[part + 1])):
            if not (good := rows.isfinite()).all():
                row, column = (~good).nonzero()[0].tolist()
                raise UserError(
                    f"{where}: the {what}{names[column]} of transition {number * CHUNK + row:,} is not a finite number"
                )
    for what, size, space in (("observations", data.obs_size, obs_space), ("actions", data.act_size, act_space)):
        if space is None:
            continue
        box = isinstance(space, gym.spaces.Box)
        if not box or size != int(np.prod(space.shape or ())):
            has = int(np.prod(space.shape or ())) if box else type(space).__name__
            note = f" ({data.note})" if data.note else ""
            raise UserError(
                f"{where} has {size} numbers in its {what}, where {data.env_id} has {has}{note}; name another "
                "environment with --env-id, or train without one: --eval-episodes 0"
            )
    found = []
    if isinstance(act_space, gym.spaces.Box):
        low, high = (torch.as_tensor(bound.ravel()) for bound in (act_space.low, act_space.high))
        outside = 0
        for part in data.index.split(CHUNK):
            action = data.action[part]
            outside += int(((action < low - 1e-6) | (action > high + 1e-6)).any(1).sum())
        if outside:
            found.append(f"{outside / len(data):.1%} of actions lie out of bounds, and are clipped")
    least, greatest = data.reward[data.index].aminmax()
    if not data.rewarded:
        found.append("there are no rewards")
    elif least == greatest:
        found.append(f"all rewards are {least.item():g}")
    trajectories = data.trajectories()
    if len(trajectories) == 1:
        found.append(f"no episode ends within its {len(data):,} transitions")
    elif data.limit and (longest := int(np.diff(trajectories).max())) > data.limit:
        found.append(f"an episode has {longest:,} steps, more than the {data.limit:,} of the task")
    if data.fault:
        found.append(data.fault)
    if data.breaks:
        found.append(f"after {data.breaks:,} transitions the next one begins elsewhere, though no end is marked")
    prints = _fingerprints(data)
    prints.sort()
    repeated = np.count_nonzero(prints[1:] == prints[:-1])
    if repeated:
        found.append(f"{repeated:,} transitions ({repeated / len(data):.1%}) occur more than once")
    return found


def _fingerprints(data: Dataset) -> NDArray[np.uint64]:
    """A number for each transition that two different ones hardly share."""
    weights = np.random.default_rng(0).integers(1, 2**63, data.rows.shape[1] + data.obs_size, dtype=np.uint64) | 1
    found = np.empty(len(data), np.uint64)
    for number, part in enumerate(data.index.split(CHUNK)):
        both = torch.cat([data.rows[part], data.obs[part + 1]], 1) + 0.0  # no negative zeros
        bits = both.numpy().view(np.uint32).astype(np.uint64)
        bits ^= bits << np.uint64(29)
        bits *= weights  # modulo 2^64
        bits ^= bits >> np.uint64(31)
        found[number * CHUNK : number * CHUNK + len(part)] = bits.sum(1)
    return found
