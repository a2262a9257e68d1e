"""D4RL's rules on which rows of a file are transitions, and which are episodes."""

import numpy as np
from numpy.typing import NDArray


def kept_rows(
    terminals: NDArray[np.bool_],
    timeouts: NDArray[np.bool_] | None,
    limit: int,
    exact: bool = False,
) -> NDArray[np.int64]:
    """The rows that D4RL's `qlearning_dataset` keeps as transitions.

    It leaves out the last row and the rows of timeouts. If timeouts were not recorded, it counts steps up to `limit`
    instead; its count is one too high after a terminal, a fault that only `exact` repeats.
    """
    count = len(terminals) - 1
    if timeouts is not None:
        return np.flatnonzero(~timeouts[:count])
    keep, step = np.ones(count, bool), 0
    for row, terminal in enumerate(terminals[:count].tolist()):
        if step == limit - 1:
            keep[row], step = False, 0
        else:
            step = int(exact) if terminal else step + 1
    return np.flatnonzero(keep)
