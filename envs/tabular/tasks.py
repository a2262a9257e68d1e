"""Tables by name, made when they are first asked for and kept in a cache.

A name is that of a family, then `-h` and the number of decisions if it is not the family's own, then `-sticky` for
sticky actions: frozen-lake-4x4, frozen-lake-4x4-h100, minigrid-empty-5x5-sticky.
"""

import difflib
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from math import pi
from pathlib import Path
from typing import NamedTuple

import numpy as np

from envs.tabular.explore import MiniGrid, Repeated, RepeatedMujoco, World, distinct, explore
from envs.tabular.table import LONGEST, STICKINESS, Table, deterministic_table, load_table, save_table
from envs.tabular.toy_text import toy_text


class Family(NamedTuple):
    """Tables that differ in their horizon only."""

    make: Callable[[str, int], Table]  # from a name and a horizon
    horizon: int
    packages: tuple[str, ...] = ()  # those with whose releases the table may change


# -- chains ------------------------------------------------------------------------------------------------------------


def chain(name: str, horizon: int, left: float = 0.0, gate: bool = False, back: bool = False) -> Table:
    """States 0 to 3 in a row. The action R goes right, and from state 3 to the end, for a reward of 1.

    The action L goes left, or with `back` to state 0, for a reward of `left`. With `gate`, it ends the episode instead,
    and only in state 0 for a reward.
    """
    n = np.arange(4)
    to_left = np.full(4, -1) if gate else np.zeros(4, int) if back else np.maximum(n - 1, 0)
    reward = np.zeros((4, 2))
    reward[3, 1] = 1
    reward[0 if gate else slice(None), 0] = left
    next_state = np.stack([to_left, np.append(n[1:], -1)], 1)
    return deterministic_table(name, next_state, reward, horizon, np.eye(4, dtype=np.float32))


# -- explored ----------------------------------------------------------------------------------------------------------


def explored(make: Callable[[], World], packages: tuple[str, ...], name: str, horizon: int) -> Table:
    """The table of a world, with the releases of the packages behind it."""
    return explore(name, make(), horizon, **{package: version(package) for package in packages})


def minigrid(env_id: str, actions: int, shaped: str = "") -> Family:
    packages = ("minigrid", "gymnasium")

    def make(name: str, horizon: int) -> Table:
        table = explored(partial(MiniGrid, f"MiniGrid-{env_id}-v0", actions, shaped), packages, name, horizon)
        assert table.obs is not None
        return replace(table, obs=distinct(table.obs))

    return Family(make, 100, packages)


def tree(horizon: int, make: Callable[[], World], *packages: str) -> Family:
    packages = ("gymnasium", *packages)
    return Family(partial(explored, make, packages), horizon, packages)


def text(env_id: str, horizon: int, **options: object) -> Family:
    return Family(lambda name, h: toy_text(name, env_id, h, **options), horizon, ("gymnasium",))


GRIDS = {  # env id: number of actions
    "Empty-5x5": 3,
    "Empty-6x6": 3,
    "Empty-8x8": 3,
    "Empty-16x16": 3,
    "DoorKey-5x5": 6,
    "KeyCorridorS3R1": 6,
    "LavaGapS5": 6,
    "LavaCrossingS9N1": 6,
    "SimpleCrossingS9N1": 6,
    "MultiRoom-N2-S4": 6,
    "Unlock": 6,
    "FourRooms": 6,
}
TORQUES = ([-2.0], [0.0], [2.0])
FAMILIES: dict[str, Family] = {
    "chain": Family(chain, 8),
    **{
        f"gate-{d:g}": Family(partial(chain, left=d, gate=True), 6)
        for d in (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 3 / 4)
    },
    **{f"lure-{r:g}": Family(partial(chain, left=r, back=True), 8) for r in (0.05, 0.1, 0.2)},
    "frozen-lake-4x4": text("FrozenLake-v1", 20, is_slippery=False),
    "frozen-lake-4x4-slippery": text("FrozenLake-v1", 20, is_slippery=True),
    "frozen-lake-8x8": text("FrozenLake-v1", 50, map_name="8x8", is_slippery=False),
    "frozen-lake-8x8-slippery": text("FrozenLake-v1", 50, map_name="8x8", is_slippery=True),
    "cliff-walking": text("CliffWalking-v1", 20),
    "taxi": text("Taxi-v4", 20),
    **{f"minigrid-{env_id.lower()}": minigrid(env_id, actions) for env_id, actions in GRIDS.items()},
    **{
        f"minigrid-{env_id.lower()}-{shaped}": minigrid(env_id, GRIDS[env_id], shaped)
        for shaped, env_ids in {
            "doors": ("DoorKey-5x5", "KeyCorridorS3R1", "MultiRoom-N2-S4", "Unlock"),
            "pickup": ("DoorKey-5x5", "KeyCorridorS3R1", "Unlock"),
            "lava": ("LavaGapS5", "LavaCrossingS9N1"),
        }.items()
        for env_id in env_ids
    },
    "cart-pole": tree(10, lambda: Repeated("CartPole-v1", (0, 1), 5, (0, 0, 0.05, 0))),
    "pendulum": tree(8, lambda: Repeated("Pendulum-v1", TORQUES, 5, (pi, 0))),
    "pendulum-60": tree(8, lambda: Repeated("Pendulum-v1", TORQUES, 5, (pi / 3, 0))),
    "mountain-car": tree(7, lambda: Repeated("MountainCar-v0", (0, 1, 2), 20)),
    "inverted-pendulum": tree(7, lambda: RepeatedMujoco("InvertedPendulum-v5", (-1, 0, 1), 2), "mujoco"),
    "hopper": tree(4, lambda: RepeatedMujoco("Hopper-v5", (-1, 1), 8), "mujoco"),
    "swimmer": tree(6, lambda: RepeatedMujoco("Swimmer-v5", (-1, 1), 10), "mujoco"),
    "reacher": tree(4, lambda: RepeatedMujoco("Reacher-v5", (-1, 0, 1), 5), "mujoco"),
}
RELEASE = {"tables": "1"}  # to be raised when this project makes other tables under the same names
NAME = re.compile(r"(?P<family>.+?)(-h(?P<horizon>\d+))?(?P<sticky>-sticky)?")


def parsed(name: str) -> tuple[Family, str, int, bool]:
    """The family of a name, the name without stickiness, the horizon, and whether actions are sticky.

    Raises ValueError, in one sentence, if there is no such family or the horizon cannot be.
    """
    match = NAME.fullmatch(name)
    family = FAMILIES.get(match["family"]) if match else None
    if match is None or family is None:
        close = difflib.get_close_matches(name, FAMILIES, n=3, cutoff=0.4)
        hint = f"the closest names are {', '.join(close)}" if close else f"names are {', '.join(FAMILIES)}"
        raise ValueError(f"there is no table {name!r}; {hint}, each with or without -h<decisions> and -sticky")
    horizon = int(match["horizon"]) if match["horizon"] else family.horizon
    if not 1 <= horizon <= LONGEST:
        raise ValueError(f"table {name!r}: an episode has 1 to {LONGEST:,} decisions, not {horizon:,}")
    return family, f"{match['family']}-h{horizon}", horizon, bool(match["sticky"])


def horizon_of(name: str) -> int:
    """The number of decisions in an episode of the table of that name; raises ValueError as `table_of` does."""
    return parsed(name)[2]


def table_of(name: str) -> Table:
    """The table of that name, from the cache if it is there and was made with the packages that are installed.

    Raises ValueError, in one sentence, if there is no such name or the table cannot be made.
    """
    family, plain, horizon, sticky = parsed(name)
    path = cache() / f"{plain}.npz"
    table = cached(path, family.packages)
    if table is None:
        table = family.make(plain, horizon)
        table = replace(table, versions=table.versions | RELEASE)
        try:
            save_table(table, path)
        except OSError as error:
            lost = f"the table {plain} cannot be kept ({error}) and is made anew each time"
            warnings.warn(f"{lost}: set SEEDBED_TABLES to a folder that can be written to", stacklevel=2)
    return table.with_sticky(STICKINESS) if sticky else table


def cached(path: Path, packages: tuple[str, ...]) -> Table | None:
    """The table in a file; None if there is none that can be used, or if it was made with other releases."""
    try:
        table = load_table(path)
        return table if table.versions == {package: version(package) for package in packages} | RELEASE else None
    except (ValueError, PackageNotFoundError):
        return None


def cache() -> Path:
    """The folder of tables: SEEDBED_TABLES, or `seedbed/tables` in the cache of the user, or of one without a home."""
    if given := os.environ.get("SEEDBED_TABLES"):
        return Path(given).expanduser()
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # a container's user may have none
        home = Path(tempfile.gettempdir())
    return home / "seedbed" / "tables"
