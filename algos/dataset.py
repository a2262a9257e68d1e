"""Offline datasets: one record for all formats, found by name.

| name | what |
|---|---|
| `d4rl/hopper-medium-v2` | D4RL's HDF5, in $D4RL_DATASET_DIR or ~/.d4rl/datasets; downloaded if missing |
| `minari/mujoco/hopper/medium-v0` | Minari's, in $MINARI_DATASETS_PATH or ~/.minari/datasets; downloaded if missing |
| `ogbench/pointmaze-medium-navigate-v0` | OGBench's npz, in ~/.ogbench/data; downloaded if missing |
| `local/hopper-medium-v0` | made by `python -m benchmarks.collect`, kept as a Minari dataset |
| `data/mine.hdf5`, `data/mine.npz` | a file with D4RL's or OGBench's keys |

Observations are stored once: row i holds observation, action, reward and `terminated` of a transition, and row i + 1
its next observation, whether that row begins a transition or, after an episode's last, only holds this observation.
"""

import contextlib
import hashlib
import os
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces.utils import flatten_space
from numpy.typing import NDArray
from torch import Tensor

from algos.errors import UserError
from algos.replay import Batch
from envs import d4rl, register

CHUNK = 1 << 16  # rows read at a time
EDGE = 1e-5  # by which actions stay inside of [-1, 1], as in IQL's code
OGBENCH = "https://rail.eecs.berkeley.edu/datasets/ogbench/"


@dataclass
class Dataset:
    """An immutable set of transitions, shared by all runs.

    `rows` [M, O + A + 2] float32: observation, action, reward, terminated; `index` [N]: rows that begin transitions.
    `env_id` with `env_options` is what it is evaluated on, None if there is nothing; `note` says what differs there
    from where the data comes from. Returns `low` and `high` score 0 and 100. `limit`: most steps of an episode, 0 if
    unknown. `rewarded`: whether it has rewards. `source`: where it came from; `digest`: SHA-256 of rows and index.

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
    rewarded: bool = True
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
        ends = np.flatnonzero((np.diff(index) != 1) | (terminated[index[:-1]] > 0)) + 1
        return np.stack([np.append(0, ends), np.append(ends, len(index))], 1)

    def returns(self) -> NDArray[np.float64]:
        """Undiscounted return of each trajectory: [K]."""
        reward = self.reward[self.index].double().cpu().numpy()
        return np.add.reduceat(reward, self.trajectories()[:, 0])

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

    def best(self, fraction: float) -> "Dataset":
        """The whole trajectories of highest return, as few as make up that share of all transitions."""
        bounds = self.trajectories()
        order = np.argsort(-self.returns(), kind="stable")
        covered = np.cumsum((bounds[:, 1] - bounds[:, 0])[order])
        chosen = np.sort(order[: np.searchsorted(covered, fraction * len(self)) + 1])
        return self.part(np.concatenate([np.arange(*bounds[i]) for i in chosen]))

    def joined(self, other: "Dataset") -> "Dataset":
        """The transitions of both, on the host."""
        if (self.obs_size, self.act_size) != (other.obs_size, other.act_size):
            raise UserError(f"--dataset {self.name} and {other.name} are not of the same sizes")
        rows, index = torch.cat([self.rows, other.rows]), torch.cat([self.index, other.index + len(self.rows)])
        digest = hashlib.sha256((self.digest + other.digest).encode()).hexdigest()
        return replace(self, rows=rows, index=index, digest=digest)

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
        """Maps actions from an environment's bounds [A] to [-1, 1], and clips them a little inside, both in place."""
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
    check_name(name)
    kind, _, rest = name.partition("/")
    try:
        if Path(name).suffix == ".npz":
            found = _read_npz(Path(name), name)
        elif Path(name).suffix in (".hdf5", ".h5"):
            found = _read_hdf5(Path(name), name, exact_d4rl, 0)
        elif kind == "d4rl":
            found = _load_d4rl(rest, exact_d4rl)
        elif kind == "ogbench":
            found = _load_ogbench(rest)
        else:
            found = _load_minari(name, rest if kind == "minari" else name)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"--dataset {name} is damaged or is not of this kind: {error}") from None
    digest = hashlib.sha256(found.rows.numpy().data)
    digest.update(found.index.numpy().data)
    return replace(found, digest=digest.hexdigest())


def check_name(name: str) -> None:
    """Raises UserError if no dataset can have that name, or if it is that of a file which is not there."""
    kind, _, rest = name.partition("/")
    if Path(name).suffix in (".hdf5", ".h5", ".npz"):
        if not Path(name).is_file():
            raise UserError(f"--dataset: there is no file {name}")
    elif kind == "d4rl":
        try:
            task = d4rl.find(rest)
        except ValueError as error:
            raise UserError(f"--dataset: {error}") from None
        if not task.file:
            raise UserError(f"--dataset: D4RL has no data of {rest}")
    elif kind not in ("minari", "ogbench", "local") or not rest:
        raise UserError(
            f"--dataset takes d4rl/…, minari/…, ogbench/…, local/…, or the path of a .hdf5 or .npz file, got {name!r}"
        )


class Builder:
    """Rows that are appended to, without ever holding them twice: memory is taken as it is filled."""

    def __init__(self, capacity: int, obs_size: int, act_size: int):
        self.obs_size, self.act_size, self.filled = obs_size, act_size, 0
        self.rows = np.empty((capacity, obs_size + act_size + 2), np.float32)
        self.index: list[NDArray[np.int64]] = []

    def add(
        self, obs: NDArray, action: NDArray, reward: NDArray, terminated: NDArray, keep: NDArray | None = None
    ) -> None:
        """Appends rows: obs [n, O], the others of the first n or n - 1 rows, which are transitions where `keep`."""
        start, count = self.filled, len(action)
        rows = self.rows[start : start + len(obs)]
        rows[:, : self.obs_size] = obs
        rows[count:, self.obs_size :] = 0
        rows[:count, self.obs_size : -2] = action
        rows[:count, -2], rows[:count, -1] = reward, terminated
        self.index.append(start + (np.arange(count) if keep is None else np.flatnonzero(keep)))
        self.filled += len(obs)

    def finish(self, name: str, **facts: Any) -> Dataset:
        index = np.concatenate(self.index) if self.index else np.zeros(0, np.int64)
        if not len(index):
            raise UserError(f"--dataset {name} has no transition")
        rows = self.rows[: self.filled]
        return Dataset(name, torch.from_numpy(rows), torch.from_numpy(index), self.obs_size, self.act_size, **facts)


# -- D4RL --------------------------------------------------------------------------------------------------------------


def kept_rows(
    terminals: NDArray[np.bool_],
    timeouts: NDArray[np.bool_] | None,
    limit: int,
    terminate_on_end: bool = False,
) -> NDArray[np.int64]:
    """The rows that D4RL's `qlearning_dataset` keeps: neither the last one nor, by default, those of timeouts.

    Without recorded timeouts these are counted, and the count is one too high after a terminal, as it is there.
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
        step = 1 if terminal or final else step + 1
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
    task = d4rl.find(name)
    assert task.place and task.url  # see check_name
    if not task.place.exists():
        download(task.url, task.place, f"d4rl/{name}")
    found = _read_hdf5(task.place, f"d4rl/{name}", exact, task.limit)
    return replace(
        found, env_id=task.env_id, note=task.note, low=task.low, high=task.high, limit=task.limit, source=task.url
    )


def _read_hdf5(path: Path, name: str, exact: bool, limit: int) -> Dataset:
    import h5py

    with h5py.File(path) as file:
        for key in ("observations", "actions", "rewards", "terminals"):
            if key not in file:
                raise UserError(f"--dataset: {path} has no {key!r}, so it is not of D4RL's layout")
        obs, action = file["observations"], file["actions"]
        count = len(obs)
        for key in ("actions", "rewards", "terminals", "timeouts", "next_observations"):
            if key in file and len(file[key]) != count:
                raise UserError(f"--dataset: {path} has {count:,} observations and {len(file[key]):,} {key}")
        if obs.ndim != 2 or action.ndim != 2:
            raise UserError(f"--dataset: {path} has observations {obs.shape} and actions {action.shape}, not two axes")
        reward = file["rewards"][:].reshape(count)
        terminals = file["terminals"][:].reshape(count) > 0.5
        timeouts = file["timeouts"][:].reshape(count) > 0.5 if "timeouts" in file else None
        true = not exact and "next_observations" in file
        if not true and timeouts is None and not limit:
            raise UserError(f"--dataset: {path} has neither 'timeouts' nor 'next_observations' to tell episodes apart")
        build = Builder(2 * count if true else count, obs.shape[1], action.shape[1])
        keep = np.zeros(count, bool)
        keep[np.arange(count) if true else kept_rows(terminals, timeouts, limit)] = True
        for start in range(0, count, CHUNK):
            part = slice(start, min(start + CHUNK, count))
            here, act = obs[part], action[part]
            if not true:
                build.add(here, act, reward[part], terminals[part], keep[part])
                continue
            following = file["next_observations"][part]
            later = np.concatenate([here[1:], obs[part.stop : part.stop + 1]])
            gaps = np.ones(len(here), bool)  # where the next row does not hold the next observation
            gaps[: len(later)] = (following[: len(later)] != later).any(1)
            if timeouts is not None:
                gaps |= timeouts[part]
            slots = np.arange(len(here)) + np.append(0, np.cumsum(gaps)[:-1])
            rows = np.empty((len(here) + gaps.sum(), obs.shape[1]), np.float32)
            rows[slots], rows[slots[gaps] + 1] = here, following[gaps]
            columns = np.zeros((len(rows), action.shape[1] + 2), np.float32)
            columns[slots, :-2], columns[slots, -2], columns[slots, -1] = act, reward[part], terminals[part]
            own = np.zeros(len(rows), bool)
            own[slots] = True
            build.add(rows, columns[:, :-2], columns[:, -2], columns[:, -1], own)
    return build.finish(name, limit=limit, source=path.name)


# -- Minari ------------------------------------------------------------------------------------------------------------


def _load_minari(name: str, minari_id: str) -> Dataset:
    import minari
    from minari.storage import get_dataset_path

    place = get_dataset_path(minari_id)
    if not place.exists():
        if name.startswith("local/"):
            recipe = minari_id.removeprefix("local/")
            raise UserError(f"--dataset: {name} is not in {place}; make it: python -m benchmarks.collect {recipe}")
        try:
            minari.download_dataset(minari_id)
        except Exception as error:  # of whatever transport Minari uses
            raise UserError(
                f"--dataset: {name} is not in {place}, and downloading it failed ({error}): minari download {minari_id}"
            ) from None
    data = minari.load_dataset(minari_id)
    space = flatten_space(data.observation_space)
    obs_size, act_size = int(np.prod(space.shape or ())), int(np.prod(data.action_space.shape or ()))
    if not isinstance(data.action_space, gym.spaces.Box):
        raise UserError(f"--dataset: {name} has {type(data.action_space).__name__} actions; this needs numbers (a Box)")
    build = Builder(int(data.total_steps + data.total_episodes), obs_size, act_size)
    for episode in data.iterate_episodes():
        steps = len(episode.rewards)
        obs = _flat(data.observation_space, episode.observations, steps + 1)
        build.add(obs, episode.actions.reshape(steps, -1), episode.rewards, episode.terminations)
    meta = data.storage.metadata
    text = meta.get("eval_env_spec") or meta.get("env_spec")
    spec = EnvSpec.from_json(text) if text else None
    return build.finish(
        name,
        env_id=spec.id if spec else None,
        env_options=_options(spec) if spec else {},
        low=meta.get("ref_min_score"),
        high=meta.get("ref_max_score"),
        limit=(spec.max_episode_steps or 0) if spec else 0,
        source=str(meta.get("code_permalink") or minari_id),
    )


def _options(spec: EnvSpec) -> dict[str, Any]:
    """What a recorded environment has besides its id's own arguments."""
    options = dict(spec.kwargs)
    with contextlib.suppress(ModuleNotFoundError):  # said when it is made
        register(spec.id)
    if spec.id in gym.registry:
        standard = gym.registry[spec.id]
        options = {k: v for k, v in options.items() if standard.kwargs.get(k, ...) != v}
        if spec.max_episode_steps != standard.max_episode_steps:
            options["max_episode_steps"] = spec.max_episode_steps
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
    words = name.split("-")
    env_id = "-".join([*words[:-2], words[-1]]) if len(words) > 2 else None  # without navigate, stitch, play, ...
    return replace(_read_npz(place, f"ogbench/{name}"), env_id=env_id, source=f"{OGBENCH}{name}.npz")


def _read_npz(path: Path, name: str) -> Dataset:
    """A file of OGBench's keys, or of D4RL's; read in pieces, since a whole array may be as large as all rows."""
    with zipfile.ZipFile(path) as archive:
        there = {member.removesuffix(".npy") for member in archive.namelist()}
        for key in ("observations", "actions", "terminals"):
            if key not in there:
                raise UserError(f"--dataset: {path} has no {key!r}, so it is not of OGBench's layout")
        shapes = {key: _npy_shape(archive, key) for key in ("observations", "actions")}
        count = shapes["observations"][0]
        build = Builder(count, *(int(np.prod(shapes[key][1:])) for key in ("observations", "actions")))
        columns = [_pieces(archive, key) for key in ("observations", "actions", "terminals")]
        rewards = _pieces(archive, "rewards") if "rewards" in there else None
        for obs, action, ends in zip(*columns, strict=True):
            reward = np.zeros(len(obs)) if rewards is None else next(rewards)
            # the last row of an episode leads nowhere, and nothing there says that a task ended it
            build.add(obs.reshape(len(obs), -1), action.reshape(len(obs), -1), reward, ends * 0, ends == 0)
    last = build.index[-1]
    if len(last) and last[-1] == count - 1:  # an episode that was cut: its last row has no next one
        build.index[-1] = last[:-1]
    return build.finish(name, rewarded=rewards is not None, source=path.name)


def _npy_shape(archive: zipfile.ZipFile, key: str) -> tuple[int, ...]:
    with archive.open(f"{key}.npy") as file:
        return _header(file)[0]


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if fortran or dtype.hasobject:
        raise ValueError("an array is stored column by column, or holds objects")
    return shape, dtype


def _pieces(archive: zipfile.ZipFile, key: str) -> Iterator[NDArray]:
    """An array of an npz file, some rows at a time."""
    with archive.open(f"{key}.npy") as file:
        shape, dtype = _header(file)
        row = int(np.prod(shape[1:])) * dtype.itemsize
        for start in range(0, shape[0], CHUNK):
            count = min(CHUNK, shape[0] - start)
            data = file.read(count * row)
            if len(data) != count * row:
                raise ValueError(f"{key} is cut")
            yield np.frombuffer(data, dtype).reshape(count, *shape[1:])


# -- files that are missing --------------------------------------------------------------------------------------------


def download(url: str, place: Path, name: str) -> None:
    """Fetches a file, going on where an earlier try ended; `place` appears when all of it is there.

    Raises UserError, in a sentence with the file, its folder and a command, if that is not possible.
    """
    from tqdm import tqdm

    part = place.with_name(place.name + ".part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        have = part.stat().st_size if part.exists() else 0
        request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
        with urllib.request.urlopen(request, timeout=30) as reply:
            have = have if reply.status == 206 else 0  # the server may send all of it again
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
        if part.stat().st_size != total:
            raise OSError(f"{part.stat().st_size:,} of {total:,} bytes came")
        os.replace(part, place)
    except (OSError, TypeError, ValueError) as error:  # urllib's errors are OSErrors
        raise UserError(
            f"--dataset: {name} needs the file {place.name} in {place.parent}, and downloading it failed ({error}): "
            f"curl -L -C - -o {place} {url}"
        ) from None


# -- before training ---------------------------------------------------------------------------------------------------


def validate(data: Dataset, obs_space: gym.Space | None = None, act_space: gym.Space | None = None) -> list[str]:
    """Sentences on what looks wrong in a dataset; raises UserError for what cannot be trained on.

    The spaces are those of the evaluation environment, whose actions bound the dataset's.
    """
    where = f"--dataset {data.name}"
    names = ["observation"] * data.obs_size + ["action"] * data.act_size + ["reward", "terminated"]
    for start in range(0, len(data.rows), CHUNK):
        bad = ~data.rows[start : start + CHUNK].isfinite()
        if bad.any():
            row, column = bad.nonzero()[0].tolist()
            raise UserError(f"{where}: the {names[column]} of row {start + row:,} is not a finite number")
    flags = data.terminated[data.index]
    if ((flags != 0) & (flags != 1)).any():
        raise UserError(f"{where}: terminals must be 0 or 1")
    if isinstance(obs_space, gym.spaces.Box):
        for what, size, space in (("observations", data.obs_size, obs_space), ("actions", data.act_size, act_space)):
            expected = int(np.prod(space.shape or ())) if isinstance(space, gym.spaces.Box) else None
            if size != expected:
                note = f" ({data.note})" if data.note else ""
                raise UserError(
                    f"{where} has {size} numbers in its {what}, where {data.env_id} has {expected}{note}; name another "
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
            found.append(f"{outside / len(data):.1%} of actions lie out of the environment's bounds, and are clipped")
    reward = data.reward[data.index]
    if not data.rewarded:
        found.append("there are no rewards")
    elif reward.min() == reward.max():
        found.append(f"all rewards are {reward[0].item():g}")
    trajectories = data.trajectories()
    if len(trajectories) == 1:
        found.append(f"no episode ends within its {len(data):,} transitions")
    elif data.limit and (longest := int(np.diff(trajectories).max())) > data.limit:
        found.append(f"an episode has {longest:,} steps, more than the {data.limit:,} of the task")
    repeated = len(data) - len(np.unique(_fingerprints(data)))
    if repeated:
        found.append(f"{repeated:,} transitions ({repeated / len(data):.1%}) occur more than once")
    return found


def _fingerprints(data: Dataset) -> NDArray[np.uint64]:
    """A number for each transition that two different ones hardly share."""
    weights = np.random.default_rng(0).integers(1, 2**63, data.rows.shape[1] + data.obs_size, dtype=np.uint64) | 1
    found = []
    for part in data.index.split(CHUNK):
        both = torch.cat([data.rows[part], data.obs[part + 1]], 1) + 0.0  # no negative zeros
        bits = both.contiguous().numpy().view(np.uint32).astype(np.uint64)
        mixed = (bits ^ (bits << np.uint64(29))) * weights  # modulo 2^64
        found.append((mixed ^ (mixed >> np.uint64(31))).sum(1, dtype=np.uint64))
    return np.concatenate(found)
