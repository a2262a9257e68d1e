"""D4RL's rules on rows, against the same rules applied row by row."""

import numpy as np
import pytest
from dataset_files import flags, qlearning_rows

from algos.data.rows import kept_rows


def test_rows_of_a_toy_file():
    terminals, timeouts = flags(8, 2), flags(8, 5)
    assert kept_rows(terminals, timeouts, 0).tolist() == [0, 1, 2, 3, 4, 6]


def test_missing_timeouts_are_counted_with_the_slip_of_d4rl():
    none, terminal = np.zeros(15, bool), flags(15, 3)
    for exact in (False, True):
        assert kept_rows(none, None, 5, exact).tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13]
        skipped = sorted(set(range(14)) - set(kept_rows(terminal, None, 5, exact).tolist()))
        assert skipped == ([7, 12] if exact else [8, 13])


def test_a_row_both_terminal_and_timeout_is_skipped():
    assert kept_rows(flags(6, 2), flags(6, 2), 0).tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("recorded", [True, False])
def test_rows_of_random_files_are_those_of_d4rl(recorded):
    rng = np.random.default_rng(1)
    for _ in range(50):
        count, limit = rng.integers(1, 60), int(rng.integers(2, 9))
        terminals = rng.random(count) < rng.choice([0, 0.1, 0.4])
        timeouts = rng.random(count) < rng.choice([0, 0.1, 0.4]) if recorded else None
        kept = kept_rows(terminals, timeouts, limit, True)
        assert kept.tolist() == qlearning_rows(terminals, timeouts, limit)
