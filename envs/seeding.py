"""Seeds for the different purposes within one run."""

import zlib

import numpy as np


def sub_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed that depends only on the run's seed, the name of the purpose and `numbers`."""
    entropy = [seed, zlib.crc32(purpose.encode()), *numbers]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))
