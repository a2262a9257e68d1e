"""Seeds for the different purposes within one run."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def sub_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed that depends only on the run's seed, the name of the purpose and `numbers`."""
    entropy = [seed, zlib.crc32(purpose.encode()), *numbers]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))


def reset_arguments(
    count: int, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
) -> tuple[list[int | None], NDArray[np.bool_]]:
    """The seeds of `count` environments, and a mask [count] of those to reset, from what a `reset` was given.

    Raises ValueError where there is not one seed for each environment, or the mask is not a boolean one with a True.
    """
    if seed is None:
        seeds: list[int | None] = [None] * count
    elif isinstance(seed, (int, np.integer)):
        seeds = [int(seed) + i for i in range(count)]
    else:
        seeds = list(seed)
    if len(seeds) != count:
        raise ValueError(f"seed needs one entry for each of the {count} environments, got {len(seeds)}")
    mask = (options or {}).get("reset_mask", np.ones(count, bool))
    if getattr(mask, "dtype", None) != np.bool_ or mask.shape != (count,) or not mask.any():
        raise ValueError(f"reset_mask must be a boolean array of shape ({count},) with a True in it")
    return seeds, mask
