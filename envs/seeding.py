"""Seeds for the purposes of one run."""

import zlib

import numpy as np


def sub_seed(seed: int, purpose: str, *more: int) -> int:
    """A 63-bit seed that depends on a run's seed, the purpose's name and further integers, and on nothing else."""
    entropy = [seed, zlib.crc32(purpose.encode()), *more]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))
