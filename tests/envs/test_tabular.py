"""Exact answers about tables against closed forms, exact rationals and numbers of two independent programs."""

import math
import tempfile
from fractions import Fraction as F
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from envs.tabular import Analysis, Table, evaluate
from envs.tabular.table import deterministic_table
from envs.tabular.tasks import FAMILIES, GRIDS, table_of
from envs.tabular.tasks import cache as cache_folder

EXACT = {"tie": 1e-12, "tolerance": 1e-9}
CHAINS = [name for name in FAMILIES if name.startswith(("chain", "gate", "lure"))]


@pytest.fixture(scope="module", autouse=True)
def tables(tmp_path_factory):
    """A cache of tables for these tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEEDBED_TABLES", str(tmp_path_factory.mktemp("tables")))
        yield


@cache
def analysis(name: str) -> Analysis:
    return Analysis(table_of(name))


def random_table(seed: int, states=4, actions=3, horizon=4, sticky=0.0) -> Table:
    """A table whose numbers are exact in binary, with ends, ties and several first states."""
    rng = np.random.default_rng(seed)
    shape = states, actions, 2
    share = rng.integers(0, 5, shape[:2]) / 4
    start = rng.permutation([0.5, 0.25, 0.25, *[0.0] * (states - 3)])
    return Table(
        f"random-{seed}",
        rng.integers(-1, states, shape),
        np.stack([share, 1 - share], -1),
        rng.integers(-2, 4, shape) / 4,
        start,
        horizon,
        sticky,
    )


# -- exact rationals ---------------------------------------------------------------------------------------------------


class Rational:
    """The definitions, written for one state, last executed action p, and decision at a time, without rounding."""

    def __init__(self, table: Table):
        self.A, self.H, self.rho = table.actions, table.horizon, F(table.sticky)

        def exact(x: float) -> F:
            return F(float(x)).limit_denominator(1000)

        triples = np.stack([table.probability, table.next_state, table.reward], -1).tolist()  # [S, A, K, 3]
        self.outcomes = [[[(exact(p), int(n), exact(r)) for p, n, r in two if p] for two in row] for row in triples]
        self.start = {s: exact(p) for s, p in enumerate(table.start) if p}
        self.Q, self.V = cache(self.Q), cache(self.V)

    def Q(self, kind, t, s, p, a):
        """The value of choosing an action: kind is best, worst, k for Q^k, or ("window", k)."""

        def executing(b):
            return sum(share * (r + self.V(kind, t + 1, n, b)) for share, n, r in self.outcomes[s][b])

        return executing(a) if t == 0 else (1 - self.rho) * executing(a) + self.rho * executing(p)

    def V(self, kind, t, s, p):
        """The value of what follows under Q of this kind."""
        if s < 0 or t == self.H or kind == ("window", 1):
            return F(0)
        if isinstance(kind, tuple):
            below = ("window", kind[1] - 1)
        else:
            below = kind if kind in ("best", "worst", 1) else kind - 1
        values = [self.Q(below, t, s, p, a) for a in range(self.A)]
        return sum(values) / self.A if kind == 1 else min(values) if kind == "worst" else max(values)

    def outset(self, value):
        return sum(share * value(s) for s, share in self.start.items())

    def total(self, kind, choose):
        return self.outset(lambda s: choose([self.Q(kind, 0, s, None, a) for a in range(self.A)]))

    def tied(self, kind, t, s, p):
        values = [self.Q(kind, t, s, p, a) for a in range(self.A)]
        return [a for a in range(self.A) if values[a] == max(values)]

    def greedy(self, kind):
        """Whether all greedy policies are optimal, and the least gap."""
        here, solves, gap = {(s, None) for s in self.start}, True, math.inf
        for t in range(self.H):
            after = set()
            for s, p in here:
                best = [self.Q("best", t, s, p, a) for a in range(self.A)]
                values = [self.Q(kind, t, s, p, a) for a in range(self.A)]
                lacking = [values[a] for a in range(self.A) if best[a] < max(best)]
                gap = min([gap, *(max(values) - value for value in lacking)])
                tied = self.tied(kind, t, s, p)
                solves &= all(best[a] == max(best) for a in tied)
                executed = {*tied, p} if t and self.rho else set(tied)
                after |= {(n, b) for b in executed for _, n, _ in self.outcomes[s][b] if n >= 0}
            here = after
        return solves, gap

    def greedy_return(self, k, pick):
        """The return of the greedy policy whose ties are broken by `pick`, min or max."""

        @cache
        def value(t, s, p):
            if s < 0 or t == self.H:
                return F(0)

            def executing(b):
                return sum(share * (r + value(t + 1, n, b)) for share, n, r in self.outcomes[s][b])

            stays = self.rho * executing(p) if t and self.rho else 0
            share = 1 - self.rho if t else 1
            return pick(share * executing(a) + stays for a in self.tied(k, t, s, p))

        return self.outset(lambda s: value(0, s, None))

    def first_solved(self, kinds):
        return next(number + 1 for number, kind in enumerate(kinds) if self.greedy(kind)[0])


@pytest.mark.parametrize("sticky", [0, 0.25])
@pytest.mark.parametrize("name", [*CHAINS, *range(8)])
def test_analysis_equals_exact_rationals(name, sticky):
    table = (random_table(name) if isinstance(name, int) else table_of(name)).with_sticky(sticky)
    ours, theirs = Analysis(table), Rational(table)
    for total, kind, choose in (
        (ours.best_return, "best", max),
        (ours.worst_return, "worst", min),
        (ours.random_return, 1, lambda values: sum(values) / len(values)),
    ):
        assert total == pytest.approx(float(theirs.total(kind, choose)), abs=1e-12)
    for kind, q in (("best", ours.best), ("worst", ours.worst), *((k, ours.q(k)) for k in range(1, table.horizon + 1))):
        values = [[float(theirs.Q(kind, 0, s, None, a)) for a in range(table.actions)] for s in range(table.states)]
        np.testing.assert_allclose(q[0], values, rtol=0, atol=1e-12)
    for k in range(1, table.horizon + 1):
        solves, gap = theirs.greedy(k)
        found = ours.greedy(ours.q(k), **EXACT)
        assert found.solves == solves and found.gap == pytest.approx(float(gap), abs=1e-12)
        assert ours.greedy_return(k) == pytest.approx(float(theirs.greedy_return(k, min)), abs=1e-12)
        assert ours.greedy_return(k, lucky=True) == pytest.approx(float(theirs.greedy_return(k, max)), abs=1e-12)
    assert ours.min_k(**EXACT) == theirs.first_solved(range(1, table.horizon + 1))
    assert ours.planning_window(**EXACT) == theirs.first_solved(("window", k) for k in range(1, table.horizon + 1))


# -- closed forms ------------------------------------------------------------------------------------------------------


def test_plain_chain():
    chain = analysis("chain")
    q = [[0.1953125, 0.3046875], [0.1953125, 0.4609375], [0.3046875, 0.7265625], [0.4609375, 1]]
    np.testing.assert_array_equal(chain.q(1)[0], q)
    assert (chain.best_return, chain.random_return, chain.worst_return) == (1, 0.25, 0)
    assert (chain.min_k(), chain.planning_window(), chain.effective_horizon()) == (1, 4, 4)
    m = [chain.samples(k) for k in (1, 2, 3, 4)]
    assert m == [444, 267, 156, 1]
    assert list(chain.horizons()) == pytest.approx([k + math.log2(m[k - 1]) for k in (1, 2, 3, 4)])


@pytest.mark.parametrize(
    ("d", "min_k", "lucky", "random", "gap"),
    [
        ("1/16", 1, 1, "3/32", "1/16"),
        ("1/8", 2, 1, "1/8", "1/8"),
        ("3/16", 2, 2, "5/32", "1/16"),
        ("1/4", 3, 2, "3/16", "1/4"),
        ("3/8", 3, 3, "1/4", "1/8"),
        ("3/4", 4, 4, "7/16", "1/4"),
    ],
)
def test_gate_chain(d, min_k, lucky, random, gap):
    d, gate = float(F(d)), analysis(f"gate-{float(F(d)):g}")
    np.testing.assert_array_equal(gate.q(1)[0], [[d, 1 / 8], [0, 1 / 4], [0, 1 / 2], [0, 1]])
    assert [gate.q(k)[0, 0, 1] for k in range(1, 7)] == [1 / 8, 1 / 4, 1 / 2, 1, 1, 1]
    assert (gate.best_return, gate.random_return) == (1, float(F(random)))
    assert gate.min_k() == gate.min_k(**EXACT) == min_k
    assert [gate.greedy_return(k) for k in range(1, 7)] == [d if k < min_k else 1 for k in range(1, 7)]
    assert [gate.greedy_return(k, lucky=True) for k in range(1, 7)] == [d if k < lucky else 1 for k in range(1, 7)]
    assert gate.greedy(gate.q(min_k)).gap == float(F(gap))
    assert gate.planning_window() == 4


@pytest.mark.parametrize(("d", "bounds"), [("3/16", [None, 3965, 374, 1]), ("3/8", [None, None, 2337, 1])])
def test_simple_bound_of_gates(d, bounds):
    gate = analysis(f"gate-{float(F(d)):g}")
    assert [gate.samples(k) for k in (1, 2, 3, 4)] == bounds
    assert gate.effective_horizon() == 4


@pytest.mark.parametrize(
    ("d", "min_k", "random", "gap"),
    [("3/16", 1, "221/1024", "29/512"), ("3/8", 2, "317/1024", "1/64"), ("3/4", 4, "509/1024", None)],
)
def test_sticky_gate_chain(d, min_k, random, gap):
    gate = analysis(f"gate-{float(F(d)):g}-sticky")
    assert (gate.best_return, gate.worst_return, gate.random_return) == (1, 1 / 64, float(F(random)))
    assert gate.min_k() == min_k
    assert gap is None or gate.greedy(gate.q(min_k)).gap == float(F(gap))
    with pytest.raises(ValueError, match=r"^table gate-0\.\d+-h6-sticky: .* for deterministic tables only$"):
        gate.samples(1)


@pytest.mark.parametrize(
    ("reward", "best", "random", "min_k", "greedy"),
    [
        (0.05, 6 / 5, "241/640", 5, [1, 1, 1, 1]),
        (0.1, 7 / 5, "181/320", 1, []),
        (0.2, 9 / 5, "151/160", 5, [8 / 5, 8 / 5, 8 / 5, 7 / 5]),
    ],
)
def test_lure_chain(reward, best, random, min_k, greedy):
    lure = analysis(f"lure-{reward:g}")
    assert lure.best_return == pytest.approx(best, abs=1e-14)
    assert lure.random_return == pytest.approx(float(F(random)), abs=1e-14)
    assert lure.min_k(**EXACT) == min_k
    assert [lure.greedy_return(k) for k in range(1, len(greedy) + 1)] == pytest.approx(greedy, abs=1e-14)


def test_discount_is_that_of_later_rewards():
    chain = Analysis(table_of("chain"), discount=0.5)
    assert chain.best_return == 1 / 8
    slow = Analysis(table_of("gate-0.0625"), discount=0.25)  # 1/64 after four steps, and 1/16 at once
    assert slow.best_return == 1 / 16 and slow.min_k() == 1


def test_values_that_differ_by_rounding_are_equal():
    """0.1 + 0.2 of the better way is 0.3 of the worse one, by the random policy."""
    tie = deterministic_table(
        "tie", np.array([[1, 2], [-1, -1], [-1, -1]]), np.array([[0.1, 0], [0, 0.4], [0.3, 0.3]]), 2
    )
    task = Analysis(tie)
    assert task.q(1)[0, 0, 0] > task.q(1)[0, 0, 1]
    assert (task.min_k(), task.min_k(**EXACT)) == (1, 2)
    assert [task.greedy_return(1), task.greedy_return(1, lucky=True), task.greedy_return(1, tie=0)] == [0.3, 0.5, 0.5]


# -- toy text ----------------------------------------------------------------------------------------------------------

SLIPPERY = [0.1991326578, 0.181853, 0.181452, *[0.181168] * 4, 0.191235, 0.198168, 0.199076]
# name: J*, J_rand, min_k, gap at min_k, epw, J_k worst, best-tie k
TOY_TEXT = {
    "frozen-lake-4x4": (1, 0.0124448242923, 1, 0.033897, 6, {1: 1.0}, 1),
    "frozen-lake-4x4-sticky": (0.9996373812, 0.0194306393935, 1, 0.000315428, None, {1: 0.9996373812}, 1),
    "frozen-lake-4x4-slippery": (0.1991327008, 0.0124448242923, 11, 2.68139e-5, 12, dict(enumerate(SLIPPERY, 1)), 11),
    "frozen-lake-4x4-slippery-sticky": (
        0.1173073820, 0.0136624141, 12, 2.702e-6, 14, {1: 0.1046436137, 4: 0.093654}, None,
    ),
    "cliff-walking": (-13, -273.555053, 13, 1, 14, {1: -20.0}, 8),
    "cliff-walking-h50": (-13, -579.158846, 11, 1, None, {1: -50.0}, 7),
    "taxi": (7.93, -78.783461, 17, 1, None, {1: -20.0}, 5),
}  # fmt: skip
SLOW_TOY_TEXT = {
    "frozen-lake-4x4-h100": (1, 0.0139397959592, 1, None, None, {1: 1.0}, 1),
    "frozen-lake-4x4-h100-sticky": (1.0, 0.0230744533, 1, None, None, {1: 1.0}, 1),
    "frozen-lake-4x4-slippery-h100": (
        0.7441902878, 0.0139397960, 37, 3.136e-5, None, {1: 0.7299241668, 2: 0.510921, 5: 0.446599, 10: 0.729878}, None,
    ),
    "frozen-lake-4x4-slippery-h100-sticky": (
        0.2866091658, 0.0153791850, 43, None, None, {1: 0.15817, 6: 0.282373}, None,
    ),
    "frozen-lake-8x8": (1, 0.000872107711, 1, None, None, {1: 1.0}, 1),
    "frozen-lake-8x8-sticky": (1.0, 0.005137717, 1, None, None, {1: 1.0}, 1),
    "frozen-lake-8x8-slippery": (0.2283512366, 0.000872107711, 34, 6.27e-7, None, {1: 0.222543, 2: 0.228308}, None),
    "cliff-walking-h100": (-13, -1083.003084, 10, 1, None, {1: -100.0}, 6),
    "cliff-walking-h50-sticky": (
        -13.9791667, -601.368999, 14, None, None, {1: -50.0, 7: -17.777344, 10: -13.979167}, None,
    ),
    "taxi-h50": (7.93, -196.616832, 14, 1, None, {1: -31.176667}, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", [*TOY_TEXT, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_TOY_TEXT)])
def test_toy_text(name):
    best, random, min_k, gap, window, greedy, lucky = (TOY_TEXT | SLOW_TOY_TEXT)[name]
    task = Analysis(table_of(name))
    assert task.best_return == pytest.approx(best, abs=6e-8 if name.startswith("cliff") else 6e-11)
    assert task.random_return == pytest.approx(random, abs=6e-7 if abs(random) > 1 else 6e-10)
    assert task.min_k(**EXACT) == min_k
    assert gap is None or task.greedy(task.q(min_k), **EXACT).gap == pytest.approx(gap, rel=2e-3)
    assert window is None or task.planning_window(**EXACT) == window
    assert {k: task.greedy_return(k) for k in greedy} == pytest.approx(greedy, abs=6e-7 if min_k > 1 else 6e-11)
    if lucky:
        returns = [task.greedy_return(k, lucky=True) for k in range(1, lucky + 1)]
        assert [total > task.best_return - 1e-9 for total in returns] == [*[False] * (lucky - 1), True]


def test_toy_text_by_the_official_tolerance():
    assert analysis("frozen-lake-4x4-slippery").min_k() == 1
    assert analysis("frozen-lake-4x4-slippery-sticky").min_k() == 10


def test_first_values_of_frozen_lake():
    plain, slippery = analysis("frozen-lake-4x4"), analysis("frozen-lake-4x4-slippery")
    expected = [0.0121375926, 0.0151437056, 0.0103604064, 0.0121375926]
    np.testing.assert_allclose(plain.q(1)[0, 0], expected, rtol=0, atol=6e-11)
    expected = [0.0131396303, 0.0125472349, 0.0125472349, 0.0115451972]
    np.testing.assert_allclose(slippery.q(1)[0, 0], expected, rtol=0, atol=6e-11)
    expected = [0.1991327008, 0.1902894939, 0.1902894939, 0.1737579418]
    np.testing.assert_allclose(slippery.best[0, 0], expected, rtol=0, atol=6e-11)


def test_effective_horizon_of_frozen_lake():
    lake = analysis("frozen-lake-4x4")
    assert lake.samples(1) == 41576
    assert lake.effective_horizon() == pytest.approx(8.671732, abs=1e-6)


@pytest.mark.parametrize("size", ["4x4", "8x8"])
def test_slipping_does_not_change_what_random_actions_are_worth(size):
    plain, slippery = analysis(f"frozen-lake-{size}-h20"), analysis(f"frozen-lake-{size}-slippery-h20")
    np.testing.assert_allclose(plain.random.mean(-1), slippery.random.mean(-1), rtol=1e-12, atol=1e-15)


@pytest.mark.slow
def test_a_long_slippery_lake_is_as_hard_by_the_official_tolerance():
    assert analysis("frozen-lake-4x4-slippery-h100").min_k() == 37


def test_cliff_walking_at_its_worst_and_by_its_best_ties():
    task = analysis("cliff-walking")
    assert task.worst_return == -2000
    assert [task.greedy_return(k, lucky=True) for k in (6, 7, 8)] == pytest.approx([-17, -15, -13])


def test_a_table_with_one_action_has_an_effective_horizon_of_one():
    table = deterministic_table("one way", np.array([[1], [-1]]), np.array([[0.0], [1.0]]), 2)
    assert Analysis(table).effective_horizon() == 1


# -- MiniGrid ----------------------------------------------------------------------------------------------------------

# states, actions, J_rand, J_rand with sticky actions, gap at k = 1 with sticky actions
MINIGRID = {
    "Empty-5x5": (32, 3, 0.762009595, 0.725821657, 0.0293),
    "Empty-6x6": (60, 3, 0.499280511, 0.505653755, 0.01465),
    "Empty-8x8": (140, 3, 0.178443442, 0.215110817, 0.00366),
    "Empty-16x16": (780, 3, 0.000460406, 0.002123031, 2.9e-6),
    "DoorKey-5x5": (260, 6, 0.008625588, 0.006245117, 3.2e-8),
    "KeyCorridorS3R1": (156, 6, 0.003235713, 0.001006889, 8.7e-11),
    "LavaGapS5": (16, 6, 0.074766134, 0.091125574, 7.7e-5),
    "LavaCrossingS9N1": (168, 6, 0.003743000, 0.007564408, None),
    "SimpleCrossingS9N1": (168, 6, 0.005260772, 0.009310274, None),
    "MultiRoom-N2-S4": (60, 6, 0.090507495, 0.068957680, None),
    "Unlock": (1024, 6, 0.001609252, 0.001496146, None),
    "FourRooms": (1036, 6, 0.000488921, 0.001486684, None),
}
LARGE = ("Empty-16x16", "DoorKey-5x5", "Unlock", "FourRooms")


@pytest.mark.parametrize("env_id", [pytest.param(e, marks=pytest.mark.slow) if e in LARGE else e for e in MINIGRID])
def test_minigrid(env_id):
    pytest.importorskip("minigrid")
    states, actions, plain, sticky, gap = MINIGRID[env_id]
    table = table_of(f"minigrid-{env_id.lower()}")
    assert (table.states, table.actions, table.horizon) == (states, actions, 100)
    for own, random in ((table, plain), (table.with_sticky(0.25), sticky)):
        task = Analysis(own)
        assert task.random_return == pytest.approx(random, abs=6e-10)
        assert task.best_return == pytest.approx(1, abs=1e-8)
        assert task.min_k() == (9 if env_id == "FourRooms" and own.sticky else 1)
        assert task.best_return - task.greedy_return(1) < 1e-8
    assert gap is None or task.greedy(task.q(1)).gap == pytest.approx(gap, rel=2e-2)


@pytest.mark.slow
def test_official_tolerance_hides_a_large_min_k():
    """With sticky actions, it is 13 in exact rationals too, though k = 1 loses less than 1e-15 of the return."""
    pytest.importorskip("minigrid")
    task = analysis("minigrid-empty-16x16-sticky")
    assert (task.min_k(**EXACT), task.min_k()) == (13, 1)
    assert task.best_return - task.greedy_return(1) < 1e-15


def test_every_minigrid_of_the_tables_is_tested():
    assert set(MINIGRID) == set(GRIDS)


def test_key_corridor_as_published():
    """Simple bound and planning windows of the official analysis files."""
    pytest.importorskip("minigrid")
    task = analysis("minigrid-keycorridors3r1")
    assert (task.effective_horizon(), task.planning_window()) == (16, 15)
    assert analysis("minigrid-keycorridors3r1-sticky").planning_window() == 16
    assert [task.samples(k) for k in (1, 2)] == [6667295335345, 1392035355359]


# -- trees -------------------------------------------------------------------------------------------------------------


def test_cart_pole():
    table = table_of("cart-pole")
    assert table.states == 22
    plain, sticky = Analysis(table), Analysis(table.with_sticky(0.25))
    assert (plain.best_return, plain.random_return, plain.worst_return) == (50, 12.931640625, 8)
    assert sticky.best_return == 31.3173828125
    assert sticky.random_return == pytest.approx(12.1150045693, abs=6e-11)
    assert plain.min_k(**EXACT) == sticky.min_k(**EXACT) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "best", "random", "min_k", "greedy", "sticky_best", "sticky_min_k"),
    [
        ("pendulum", -243.432528, -328.677517, 2, {1: -258.136285}, -248.701668, 1),
        ("pendulum-60", -120.810830, -226.775918, 6, {1: -126.8751, 3: -123.6336}, -143.562059, 3),
    ],
)
def test_pendulum(name, best, random, min_k, greedy, sticky_best, sticky_min_k):
    table = table_of(name)
    assert table.states == 3280
    plain, sticky = Analysis(table), Analysis(table.with_sticky(0.25))
    assert [plain.best_return, plain.random_return] == pytest.approx([best, random], abs=6e-7)
    assert {k: plain.greedy_return(k) for k in greedy} == pytest.approx(greedy, abs=6e-5)
    assert sticky.best_return == pytest.approx(sticky_best, abs=6e-7)
    assert (plain.min_k(**EXACT), sticky.min_k(**EXACT)) == (min_k, sticky_min_k)
    if name == "pendulum":
        assert sticky.random_return == pytest.approx(-321.240936, abs=6e-7)
    else:  # k = 3 and k = 5 are enough, and k = 4 is not
        assert sticky.greedy_return(4) == pytest.approx(-146.136953, abs=6e-7)
        assert sticky.greedy_return(5) == pytest.approx(sticky_best, abs=6e-7)


# -- sticky actions ----------------------------------------------------------------------------------------------------


def augmented(table: Table) -> Table:
    """The same task without stickiness of its own: its states are (state, last executed action), A for none."""
    S, A, _ = table.next_state.shape
    seen = A + 1
    state, last = np.divmod(np.arange(S * seen), seen)
    again = np.minimum(last, A - 1)
    repeats = np.where(last < A, table.sticky, 0.0)[:, None, None]

    def outcomes(executed: np.ndarray) -> np.ndarray:
        following = table.next_state[state[:, None], executed]
        return np.where(following < 0, -1, following * seen + executed[..., None])

    chosen, repeated = np.tile(np.arange(A), (S * seen, 1)), np.tile(again[:, None], (1, A))
    parts = [(chosen, 1 - repeats), (repeated, repeats)]
    start = np.zeros(S * seen)
    start[A::seen] = table.start
    return Table(
        "augmented",
        np.concatenate([outcomes(executed) for executed, _ in parts], -1),
        np.concatenate([share * table.probability[state[:, None], executed] for executed, share in parts], -1),
        np.concatenate([table.reward[state[:, None], executed] for executed, _ in parts], -1),
        start,
        table.horizon,
    )


STICKY = [
    *(random_table(seed, horizon=5, sticky=0.25) for seed in (1, 2)),
    random_table(3, states=6, sticky=0.6),
]


@pytest.mark.parametrize("table", STICKY, ids=lambda table: table.name)
def test_sticky_values_are_those_of_the_augmented_task(table):
    ours, theirs, seen = Analysis(table), Analysis(augmented(table)), table.actions + 1
    for name in ("best_return", "random_return", "worst_return"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1e-12)
    for k in range(1, table.horizon + 1):
        q = ours.q(k)  # of executing; below, of choosing
        augmented_q = theirs.q(k).reshape(table.horizon, table.states, seen, table.actions)
        np.testing.assert_allclose(augmented_q[0, :, -1], q[0], rtol=0, atol=1e-12)
        expected = (1 - table.sticky) * q[1:, :, None] + table.sticky * q[1:, :, :, None]
        np.testing.assert_allclose(augmented_q[1:, :, :-1], expected, rtol=0, atol=1e-12)
        assert ours.greedy_return(k) == pytest.approx(theirs.greedy_return(k), abs=1e-12)
        own, other = ours.greedy(ours.q(k), **EXACT), theirs.greedy(theirs.q(k), **EXACT)
        assert own.solves == other.solves and own.gap == pytest.approx(other.gap, abs=1e-12)


@pytest.mark.parametrize("table", STICKY, ids=lambda table: table.name)
def test_advantages_do_not_depend_on_the_previous_action(table):
    q = Analysis(augmented(table)).q(2).reshape(table.horizon, table.states, table.actions + 1, table.actions)
    advantage = q - q.max(-1, keepdims=True)
    np.testing.assert_allclose(advantage[1:, :, :-1], advantage[1:, :, :1].repeat(table.actions, 2), rtol=0, atol=1e-12)
    assert np.ptp(advantage) > 0.1


# -- policies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", STICKY, ids=lambda table: table.name)
def test_policies_with_the_previous_action_are_those_of_the_augmented_task(table):
    rng = np.random.default_rng(0)
    policy = rng.integers(table.actions, size=(7, table.horizon, table.states, table.actions + 1))
    expected = evaluate(augmented(table), policy.reshape(7, table.horizon, -1))
    returns = evaluate(table, policy, previous_action=True)
    np.testing.assert_allclose(returns, expected, rtol=0, atol=1e-12)
    assert np.ptp(expected) > 0.1
    blind = np.repeat(policy[..., :1], table.actions + 1, -1)
    returns = evaluate(table, blind, previous_action=True)
    np.testing.assert_allclose(returns, evaluate(table, policy[..., 0]), rtol=0, atol=1e-12)


def test_the_greedy_policy_of_the_best_values_returns_the_best():
    for name in ("taxi", "frozen-lake-4x4-slippery-sticky", "lure-0.2"):
        task = analysis(name)
        assert evaluate(task.table, task.best.argmax(-1)) == pytest.approx(task.best_return, abs=1e-12)


def test_evaluation_discounts():
    always_right = np.ones((1, 4), int)
    assert evaluate(table_of("chain"), always_right, discount=0.5) == 1 / 8


def test_a_policy_of_another_shape_is_refused():
    for shape in ((2, 1, 5), (2, 3, 4), (3, 4, 3), (1, 1, 4, 1), (4,)):
        with pytest.raises(ValueError, match=r"^a policy of shape \[.*\] does not fit table chain-h8$"):
            evaluate(table_of("chain"), np.zeros(shape, int), previous_action=len(shape) == 4)


def test_a_table_that_cannot_be_kept_is_made_each_time_with_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SEEDBED_TABLES", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"the table chain-h\d+ cannot be kept \(.*\).*: set SEEDBED_TABLES to"):
        assert table_of("chain").digest() == table_of("chain").digest()


def test_a_user_without_a_home_has_a_cache(monkeypatch):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    for name in ("SEEDBED_TABLES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert cache_folder() == Path(tempfile.gettempdir()) / "seedbed" / "tables"
