"""D4RL's rules on which rows of a file are transitions, and which are episodes."""

import numpy as np
from numpy.typing import NDArray


def kept_rows(
    terminals: NDArray[np.bool_],
    timeouts: NDArray[np.bool_] | None,
    limit: int,
    exact: bool = False,
    terminate_on_end: bool = False,
) -> NDArray[np.int64]:
    """The rows that D4RL's `qlearning_dataset` keeps as transitions.

    It leaves out the last row and, unless `terminate_on_end`, the rows of timeouts. If timeouts were not recorded, it
    counts steps up to `limit` instead; its count is one too high after a terminal, a fault that only `exact` repeats.
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
    """The episodes of D4RL's `sequence_dataset`: the first row of each and the one after its last.

    An unfinished episode at the end is left out. If timeouts were not recorded, all episodes but the first are counted
    one step short, as D4RL does.
    """
    episodes, start, step = [], 0, 0
    for row in range(len(terminals)):
        final = bool(timeouts[row]) if timeouts is not None else step == limit - 1
        if terminals[row] or final:
            episodes.append((start, row + 1))
            start, step = row + 1, 0
        step += 1
    return episodes
