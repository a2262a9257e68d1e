"""Reads files of D4RL's and OGBench's layouts, HDF5 or npz."""

import zipfile
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from algos.data.build import Builder
from algos.data.record import Dataset, slices
from algos.data.rows import kept_rows
from algos.errors import UserError
from envs.cores import free_memory

KEYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations", "valids")  # all layouts
FEW = 16 << 20  # bytes of an array that need no check
MOST_DEFLATED = 1_100  # bytes that one byte becomes at most: deflate's limit is 1,032
STATES = ("infos/qpos", "infos/qvel")  # D4RL's


class Array(NamedTuple):
    """An array of a file. `pieces()` reads some rows of it at a time, since the whole may be as large as the memory."""

    shape: tuple[int, ...]
    dtype: np.dtype
    pieces: Callable[[], Iterator[NDArray]]


def is_file(name: str) -> bool:
    """Whether a dataset's name is the path of a file."""
    return Path(name).suffix in (".hdf5", ".h5", ".npz")


def read(
    path: Path, name: str, exact: bool = False, limit: int = 0, states: bool = False, own: bool = False
) -> Dataset:
    """The dataset in a file, which is one of D4RL's unless it is the user's `own`.

    See `names.load` for `exact` and `states`, and `rows.kept_rows` for `limit`, which is 0 if unknown.
    """
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
            arrays = {key: _npz_array(archive, key) for key in KEYS if f"{key}.npy" in members}
            return _dataset(path, name, arrays, exact, limit, own)
    import h5py

    with h5py.File(path, rdcc_nbytes=1 << 21) as file:  # its default of 1 MiB would decompress some pieces repeatedly
        keys = (*KEYS, *(STATES if states else ()))
        arrays = {key: _hdf5_array(file[key], file) for key in keys if isinstance(file.get(key), h5py.Dataset)}
        return _dataset(path, name, arrays, exact, limit, own)


def _hdf5_array(array: Any, file: Any) -> Array:
    check_stored(array, file)
    return Array(array.shape, array.dtype, lambda: (array[part] for part in slices(len(array))))


def check_stored(array: Any, file: Any) -> None:
    """Raises ValueError if an array of an HDF5 file lies in another file, or if the file has far less than it says."""
    if array.file.filename != file.filename or array.external or array.is_virtual:
        raise ValueError(f"{array.name} lies in another file, and is not followed")
    stored = array.id.get_storage_size()
    chunk = array.dtype.itemsize * prod(array.chunks or ())  # is read as a whole
    if max(array.nbytes, chunk) > max(FEW, MOST_DEFLATED * stored):
        raise ValueError(f"{array.name} has {array.nbytes:,} bytes, of which the file stores {stored:,}")


def _npz_array(archive: zipfile.ZipFile, key: str) -> Array:
    with archive.open(f"{key}.npy") as file:
        shape, dtype = _npy_header(file, key)
        left = archive.getinfo(f"{key}.npy").file_size - file.tell()
    numbers = dtype.kind != "O"  # `_check` refuses objects
    if numbers and (min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != left):
        raise ValueError(f"{key} has the shape {shape}, for which it stores {left:,} bytes")

    def pieces() -> Iterator[NDArray]:
        with archive.open(f"{key}.npy") as file:
            _npy_header(file, key)
            row_bytes = int(np.prod(shape[1:])) * dtype.itemsize
            for part in slices(shape[0]):
                count = part.stop - part.start
                yield np.frombuffer(file.read(count * row_bytes), dtype).reshape(count, *shape[1:])

    return Array(shape, dtype, pieces)


def _npy_header(file: Any, key: str) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if fortran and len(shape) > 1:
        raise ValueError(f"{key} is stored column by column: save np.ascontiguousarray({key})")
    return shape, dtype


def _dataset(path: Path, name: str, arrays: dict[str, Array], exact: bool, limit: int, own: bool) -> Dataset:
    """The transitions of a file, by the rules of its layout."""
    _check(path, arrays)
    _check_memory(path, arrays)
    (count, obs_size), act_size = arrays["observations"].shape, arrays["actions"].shape[1]
    terminals, timeouts = (_flags(path, key, arrays) for key in ("terminals", "timeouts"))
    assert terminals is not None  # see `_check`
    valids = _flags(path, "valids", arrays)
    if valids is not None and _is_ogbench(path, arrays, timeouts):  # its compact form, which marks two last rows
        terminals = ~valids
    breaks, keep = 0, np.ones(count, bool)
    true_ends = "next_observations" in arrays and not exact
    if true_ends:
        builder = Builder(2 * count, obs_size, act_size)
        breaks = _add_true_successors(builder, arrays, terminals, timeouts)
    else:
        keep = _kept(path, arrays, terminals, timeouts, exact, limit, own)
        builder = Builder(count + 1, obs_size, act_size)
        for rows, obs, action, reward in _pieces(arrays):
            builder.add(obs, action, reward, terminals[rows], keep[rows])
        if keep[-1:].any():  # a row for its next observation, which does not count after the end of a task
            builder.add(obs[-1:], np.empty((0, act_size)), 0, 0)
    if set(STATES) <= set(arrays):
        builder.add_states(*(np.concatenate(list(arrays[key].pieces()))[keep] for key in STATES))
    facts: dict[str, Any] = {"rewarded": "rewards" in arrays, "true_ends": true_ends, "breaks": breaks}
    if facts["rewarded"] and _is_ogbench(path, arrays, timeouts):
        facts["fault"] = "its layout is OGBench's, in which no transition counts as an end of the task"
    return builder.finish(name, limit=limit, source=path.name, **facts)


def _is_ogbench(path: Path, arrays: dict[str, Array], timeouts: NDArray[np.bool_] | None) -> bool:
    """Whether a file has OGBench's layout, in which a terminal row only holds an episode's last observation."""
    return path.suffix == ".npz" and timeouts is None and "next_observations" not in arrays


def _pieces(arrays: dict[str, Array]) -> Iterator[tuple[slice, NDArray, NDArray, Any]]:
    """Yields some rows at a time: which they are, their observations, actions and rewards (0 if the file has none)."""
    rewards = arrays["rewards"].pieces() if "rewards" in arrays else None
    start = 0
    for obs, action in zip(arrays["observations"].pieces(), arrays["actions"].pieces(), strict=True):
        yield slice(start, start + len(obs)), obs, action, next(rewards).reshape(-1) if rewards else 0
        start += len(obs)


def _kept(
    path: Path,
    arrays: dict[str, Array],
    terminals: NDArray[np.bool_],
    timeouts: NDArray[np.bool_] | None,
    exact: bool,
    limit: int,
    own: bool,
) -> NDArray[np.bool_]:
    """Which rows [N] are transitions, if the next observation is the next row's; raises UserError if none can tell.

    In a user's `own` file, unless `exact`, a row that ends the task is one of them wherever it stands, as its next
    observation does not count.
    """
    keep = np.zeros(len(terminals), bool)
    if _is_ogbench(path, arrays, timeouts):  # nothing says whether the task ended an episode
        if exact:
            raise UserError(f"--exact-d4rl is for files of D4RL's layout, and {path} has OGBench's")
        paid = [piece.reshape(-1) != 0 for piece in arrays["rewards"].pieces()] if "rewards" in arrays else []
        if paid and (np.concatenate(paid) & terminals).any():
            raise UserError(
                f"--dataset: {path} has rewards at 'terminals', where files of OGBench's layout have nothing but last "
                "observations; files of D4RL's layout also have 'timeouts' or 'next_observations'"
            )
        keep[:-1] = ~terminals[:-1]
        return keep
    if timeouts is None and not limit:
        lacks = "no 'timeouts'" if "next_observations" in arrays else "neither 'timeouts' nor 'next_observations'"
        raise UserError(f"--dataset: {path} has {lacks} to tell episodes apart")
    keep[kept_rows(terminals, timeouts, limit, exact)] = True
    return keep | terminals if own and not exact else keep


def _add_true_successors(
    builder: Builder, arrays: dict[str, Array], terminals: NDArray[np.bool_], timeouts: NDArray[np.bool_] | None
) -> int:
    """Adds all rows as transitions to the next observations that the file has; returns the number of unmarked breaks.

    A next observation gets a row of its own if the following row does not hold it, or if a timeout lies between.
    """
    obs_size, act_size = builder.obs_size, builder.act_size
    ended = terminals if timeouts is None else terminals | timeouts
    following = arrays["next_observations"].pieces()
    last, cut, breaks = np.empty((0, obs_size)), False, 0  # `last` and `cut` come from the piece before
    for part, obs, action, reward in _pieces(arrays):
        after = next(following)
        before = np.concatenate([last if len(last) else obs[:1], after[:-1]])  # row i should follow before[i]
        apart = (before.astype(np.float32) != obs.astype(np.float32)).any(1)  # as rows are stored
        breaks += int((apart & ~np.append(part.start > 0 and ended[part.start - 1], ended[part])[:-1]).sum())
        if timeouts is not None:
            apart |= np.append(cut, timeouts[part])[:-1]
            cut = timeouts[part.stop - 1]
        places = np.arange(len(obs)) + np.cumsum(apart)
        rows = np.zeros((len(obs) + int(apart.sum()), obs_size + act_size + 2), np.float32)
        with np.errstate(over="ignore"):  # see `Builder.add`
            rows[places, :obs_size], rows[places[apart] - 1, :obs_size] = obs, before[apart]
            rows[places, obs_size:-2], rows[places, -2], rows[places, -1] = action, reward, terminals[part]
        begins = np.zeros(len(rows), bool)
        begins[places] = True
        builder.add(rows[:, :obs_size], rows[:, obs_size:-2], rows[:, -2], rows[:, -1], begins)
        last = after[-1:]
    builder.add(last, np.empty((0, act_size)), 0, 0)  # the next observation of the last row
    return breaks


def _check(path: Path, arrays: dict[str, Array]) -> None:
    """Raises UserError if an array is missing, has no numbers, or has another length or shape than it should."""
    for key in ("observations", "actions", "terminals"):
        if key not in arrays:
            raise UserError(f"--dataset: {path} has no array {key!r}, so it has neither D4RL's nor OGBench's layout")
    shapes = {key: array.shape for key, array in arrays.items()}
    for key, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise UserError(f"--dataset: {path} has {key} of type {array.dtype}, which are not numbers")
        if not array.shape or array.shape[0] != shapes["observations"][0]:
            raise UserError(
                f"--dataset: {path} has {key} of shape {array.shape}, and observations of {shapes['observations']}"
            )
    if arrays["actions"].dtype.kind != "f":
        raise UserError(
            f"--dataset: {path} has actions of type {arrays['actions'].dtype}, which look discrete; continuous ones "
            "(floats) are needed"
        )
    for key in ("observations", "actions", *STATES):
        if len(shapes.get(key, (1, 1))) != 2 or 0 in shapes.get(key, ())[1:]:
            images = ": images cannot be learned from" if len(shapes.get(key, ())) > 3 else ""
            raise UserError(f"--dataset: {path} has {key} of shape {shapes[key]}, where two axes are needed{images}")
    if shapes.get("next_observations", shapes["observations"]) != shapes["observations"]:
        raise UserError(f"--dataset: {path} has next_observations of another shape than observations")
    for key in ("rewards", "terminals", "timeouts", "valids"):
        if key in shapes and shapes[key][1:] not in ((), (1,)):
            raise UserError(f"--dataset: {path} has {key} of shape {shapes[key]}, where each row needs one number")


def _check_memory(path: Path, arrays: dict[str, Array]) -> None:
    """Raises UserError if the transitions would not fit into the memory that is free."""
    count = arrays["observations"].shape[0]
    need = 4 * sum(count * prod(arrays[key].shape[1:]) for key in ("observations", "actions")) + 20 * count
    if need > (free := free_memory()):
        raise UserError(
            f"--dataset: {path} has {count:,} rows, which take {need / 2**30:.1f} GiB of memory, where "
            f"{free / 2**30:.1f} GiB are free"
        )


def _flags(path: Path, key: str, arrays: dict[str, Array]) -> NDArray[np.bool_] | None:
    """An array of truth values [N], or None if the file lacks it; raises UserError for numbers that are not 0 or 1."""
    if key not in arrays:
        return None
    flags = [np.zeros(0, bool)]
    for piece in arrays[key].pieces():
        numbers = piece.reshape(-1)
        flags.append(numbers != 0)
        if (flags[-1] & (numbers != 1)).any():
            raise UserError(f"--dataset: {path} has numbers in {key} that are neither 0 nor 1")
    return np.concatenate(flags)
