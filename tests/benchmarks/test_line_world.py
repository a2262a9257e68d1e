"""D0 of the sheet, 5.2: all of its numbers."""

import numpy as np
import pytest

from benchmarks import line_world
from benchmarks.line_world import STATES, learn, least_of, table, true_values


def test_true_values():
    values = dict(zip(STATES.tolist(), true_values(STATES), strict=True))
    assert values[0] == pytest.approx(97.031355, abs=1e-6)
    assert values[6] == pytest.approx(100)
    assert values[10] == pytest.approx(98.819953, abs=1e-6)


@pytest.mark.parametrize("edge", [-50.0, 0.0, 100.0])
def test_a_low_value_at_the_edge_harms_nothing(edge):
    outcome = learn(edge)
    assert outcome.path[6:] == [6] * 25 and outcome.total == pytest.approx(26.9930, abs=1e-4)


@pytest.mark.parametrize(("edge", "value"), [(110, 104.184750), (200, 185.579137), (1000, 909.084797)])
def test_a_high_one_spreads_to_the_start_and_the_policy_walks_out(edge, value):
    """The sheet has 909.084897; the sum of the discounted rewards of the way out and of its end is 909.084797."""
    outcome = learn(float(edge))
    assert outcome.value_at_start == pytest.approx(value, abs=1e-6)
    assert outcome.path == list(range(31)) and outcome.total == pytest.approx(4.9996, abs=1e-4)


def test_the_switch_is_where_walking_out_is_worth_as_much():
    assert learn(102.090295 - 1e-4).total > 20 > learn(102.090295 + 1e-4).total


def test_true_values_at_the_edge_mend_it():
    outcome = learn(1000.0, true_values(STATES))
    assert outcome.value_at_start == pytest.approx(97.031355, abs=1e-6)
    assert outcome.total == pytest.approx(26.9930, abs=1e-4)


def test_the_least_of_many_critics_mends_it():
    rng = np.random.default_rng(0)
    totals = [learn(least_of(critics, rng)).total for critics in (1, 2, 10, 50)]
    assert totals == pytest.approx([0.003, 5.0, 26.993, 26.993], abs=1e-3)


def test_a_value_at_the_edge_spreads_by_the_discount_alone_where_nothing_is_paid(monkeypatch):
    """Check 6, the chain."""
    monkeypatch.setattr(line_world, "reward", lambda x: np.zeros(x.shape))
    best = dict(zip(STATES.tolist(), learn(10.0).values.max(1), strict=True))
    assert [best[x] for x in (7, 8, 9)] == pytest.approx([9.70299, 9.801, 9.9])


def test_the_table_has_all_arms():
    rows = table()
    assert len(rows) == 11 and {tuple(row) for row in rows} == {("begins with", "value of 0", "return")}
    by_name = {row["begins with"]: (row["value of 0"], row["return"]) for row in rows}
    paid = np.exp(-((np.arange(1, 31) - 6) ** 2) / 8)  # on the way out
    worth = 0.99 ** np.arange(10) @ paid[:10] + 0.99**10 * 1000
    assert by_name["edge worth 1,000"] == pytest.approx((worth, paid.sum()))
    paid[6:] = 1.0  # at the goal
    best = 0.99 ** np.arange(6) @ paid[:6] + 0.99**6 * 100
    assert by_name["the best policy"] == pytest.approx((best, paid.sum()))
