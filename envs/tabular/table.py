"""A decision process with finitely many states and a horizon, as arrays."""

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LONGEST = 10_000  # decisions in an episode
STICKINESS = 0.25  # of BRIDGE's stochastic tasks and of full-length Atari


@dataclass(frozen=True, eq=False)
class Table:
    """S states, A actions, K outcomes of each action, and H decisions in an episode.

    With sticky actions, every decision but the first of an episode is ignored with probability `sticky`: the action
    that was executed before is executed again. The table has what executing an action does, and no stickiness in it.
    """

    name: str
    next_state: NDArray[np.int64]  # [S, A, K], -1 where the episode ends
    probability: NDArray[np.float64]  # [S, A, K], which sum to 1 over K; 0 for outcomes that are not there
    reward: NDArray[np.float64]  # [S, A, K]
    start: NDArray[np.float64]  # [S], probability of each state to be the first of an episode
    horizon: int
    sticky: float = 0.0
    obs: NDArray[np.float32] | None = field(default=None, repr=False)  # [S, O], what the task shows; None: its index
    versions: dict[str, str] = field(default_factory=dict)  # of the packages with which the table was made

    @property
    def states(self) -> int:
        return len(self.next_state)

    @property
    def actions(self) -> int:
        return self.next_state.shape[1]

    @property
    def deterministic(self) -> bool:
        """Whether each action does one thing only, whatever was done before, and episodes begin in one state."""
        return self.next_state.shape[2] == 1 and not self.sticky and bool((self.start == 1).any())

    def with_sticky(self, sticky: float) -> "Table":
        """The same table with another probability of repeating the last action."""
        return replace(self, sticky=sticky, name=f"{self.name}-sticky" if sticky else self.name)

    def digest(self) -> str:
        """The first 16 hexadecimal digits of a SHA-256 of everything but the name and the versions."""
        sha = hashlib.sha256(repr((self.next_state.shape, self.horizon, float(self.sticky))).encode())
        for array in (self.next_state, self.probability, self.reward, self.start, self.obs):
            sha.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()[:16]

    def __post_init__(self) -> None:
        problem = fault(self)
        if problem:
            raise ValueError(f"table {self.name}: {problem}")


def fault(table: Table) -> str:
    """What is wrong with a table, or an empty string."""
    shape = table.next_state.shape
    if len(shape) != 3 or 0 in shape:
        return f"next states must be [states, actions, outcomes], and none of these 0, not {list(shape)}"
    if table.probability.shape != shape or table.reward.shape != shape or table.start.shape != shape[:1]:
        return "next states, probabilities, rewards and starts have different numbers of states, actions or outcomes"
    if not np.issubdtype(table.next_state.dtype, np.integer):
        return f"next states must be whole numbers, not {table.next_state.dtype}"
    if table.next_state.min() < -1 or table.next_state.max() >= shape[0]:
        return f"next states must be between -1, an episode's end, and {shape[0] - 1}"
    for what, given in (("probabilities", table.probability), ("starts", table.start)):
        if not (given >= 0).all() or not np.allclose(given.sum(-1), 1, rtol=0, atol=1e-9):
            return f"{what} must be at least 0 and sum to 1"
    if not np.isfinite(table.reward).all():
        return "rewards must be finite"
    if type(table.horizon) is not int or not 1 <= table.horizon <= LONGEST:
        return f"an episode has 1 to {LONGEST:,} decisions, not {table.horizon}"
    if not 0 <= table.sticky < 1:
        return f"the probability of repeating the last action must be in [0, 1), not {table.sticky:g}"
    if table.obs is not None and (len(table.obs) != shape[0] or not np.isfinite(table.obs).all()):
        return "observations must be finite, and one for each state"
    return ""


def deterministic_table(
    name: str, next_state: NDArray, reward: NDArray, horizon: int, obs: NDArray | None = None, **versions: str
) -> Table:
    """A table from next states [S, A], -1 where an episode ends, and rewards [S, A]; state 0 is the first."""
    next_state = np.asarray(next_state, np.int64)[..., None]
    reward = np.asarray(reward, np.float64)[..., None]
    start = np.zeros(len(next_state))
    start[0] = 1
    return Table(name, next_state, np.ones(next_state.shape), reward, start, horizon, obs=obs, versions=versions)


# -- files -------------------------------------------------------------------------------------------------------------

OURS = {"next_state", "probability", "reward", "start", "facts"}
BRIDGES = {"transitions", "rewards"}


def save_table(table: Table, path: Path) -> None:
    """Writes a table as `.npz`, whole or not at all.

    A deterministic table whose first state is 0 also has the arrays `transitions` and `rewards` of BRIDGE's files.
    """
    facts = {
        "name": table.name,
        "horizon": table.horizon,
        "sticky": table.sticky,
        "versions": table.versions,
        "digest": table.digest(),
    }
    arrays = {name: getattr(table, name) for name in OURS - {"facts"}}
    if table.obs is not None:
        arrays["obs"] = table.obs
    if table.next_state.shape[2] == 1 and table.start[0] == 1:
        arrays |= {"transitions": table.next_state[..., 0], "rewards": table.reward[..., 0].astype(np.float32)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # other processes may write the same table
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, facts=np.array(json.dumps(facts)), **arrays)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)  # a full disk leaves a part of it


def load_table(path: Path, horizon: int | None = None) -> Table:
    """Reads a table that `save_table` wrote, or one of BRIDGE's, which needs `horizon` because the file has none.

    Raises ValueError, in one sentence that names the file, where it is none of both or has been damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise ValueError(f"there is no table {path}") from None
    except Exception as error:  # NumPy and zipfile have many kinds for a damaged file
        raise ValueError(f"{path} is no .npz file of arrays: {error}") from None
    try:
        if set(arrays) >= OURS:
            facts = json.loads(str(arrays["facts"]))
            if not isinstance(facts["name"], str) or not isinstance(facts["versions"], dict):
                raise TypeError("its name must be a word, and its versions those of packages")
            digest = facts.pop("digest")
            table = Table(obs=arrays.get("obs"), **{n: arrays[n] for n in OURS - {"facts"}}, **facts)
            if table.digest() != digest:
                raise ValueError("its contents are not those that were written")
            return table if horizon is None else replace(table, horizon=horizon)
        if set(arrays) >= BRIDGES:
            if horizon is None:
                raise ValueError("BRIDGE's files do not say how many decisions an episode has: give a horizon")
            return deterministic_table(path.stem, arrays["transitions"], arrays["rewards"], horizon)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path} has a table that cannot be used: {error}") from None
    raise ValueError(f"{path} has neither the arrays of this project ({', '.join(sorted(OURS))}) nor those of BRIDGE")
