"""Interval estimates against rliable's own and against what can be computed by hand."""

import numpy as np
import pytest
from rliable import library as rly
from rliable import metrics
from scipy import stats

from benchmarks import estimates

REPLICATIONS = 4_000


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(3)
    return rng.gamma(2.0, 0.3, (7, 5)), rng.gamma(2.0, 0.35, (7, 5))


def test_point_estimates_are_rliables(scores):
    x, _ = scores
    found = estimates.aggregates(x, 10)
    assert found["IQM"][0] == metrics.aggregate_iqm(x) and found["median"][0] == metrics.aggregate_median(x)
    assert found["mean"][0] == metrics.aggregate_mean(x)
    assert found["optimality gap"][0] == metrics.aggregate_optimality_gap(x)
    for name, batched in estimates.BATCHED.items():
        assert batched(x[None])[0] == pytest.approx(found[name][0], rel=1e-12)


def test_percentiles_are_rliables_within_the_error_of_the_bootstrap(scores):
    x, _ = scores
    functions = [
        metrics.aggregate_iqm, metrics.aggregate_median, metrics.aggregate_mean, metrics.aggregate_optimality_gap
    ]  # fmt: skip
    np.random.seed(0)  # noqa: NPY002  # rliable draws from the global generator
    _, theirs = rly.get_interval_estimates({"x": x}, lambda s: np.array([f(s) for f in functions]), reps=REPLICATIONS)
    drawn = estimates.bootstrap(x, lambda s: np.stack([f(s) for f in estimates.BATCHED.values()], 1), REPLICATIONS)
    ours = estimates.percentiles(drawn)
    width = theirs["x"][1] - theirs["x"][0]
    assert (np.abs(ours - theirs["x"]) < 0.06 * width).all()


def test_profiles_are_rliables(scores):
    x, _ = scores
    thresholds = np.linspace(0, 2, 9)
    thresholds[3] = x[2, 2]  # a tie: only scores above count
    np.random.seed(0)  # noqa: NPY002
    points, theirs = rly.create_performance_profile({"x": x}, thresholds, reps=REPLICATIONS)
    share, band = estimates.profile(x, thresholds, REPLICATIONS)
    assert share == pytest.approx(points["x"])
    widths, theirs_are = np.diff(band, axis=0)[0], np.diff(theirs["x"], axis=0)[0]
    inner = (share > 0.1) & (share < 0.9)  # at the ends, percentiles are lopsided
    freedom = stats.t.ppf(0.975, 5 * 6) / 1.96 * np.sqrt(7 / 6)
    np.testing.assert_allclose(widths[inner], freedom * theirs_are[inner], rtol=0.12)


def test_the_band_of_a_profile_is_students_quantile_of_its_standard_error():
    """Of a task's three runs, a share p is above the threshold, and its squared standard error is p (1 - p) / 2."""
    x, thresholds = np.random.default_rng(4).gamma(2.0, 0.3, (3, 8)), np.array([0.4, 0.6, 0.8])
    point, band = estimates.profile(x, thresholds, 20_000)
    shares = (x[..., None] > thresholds).mean(0)
    error = np.sqrt((shares * (1 - shares) / 2).sum(0)) / 8
    variances = x.var(0, ddof=1)
    half = stats.t.ppf(0.975, 2 * variances.sum() ** 2 / (variances**2).sum()) * error
    assert point == pytest.approx(shares.mean(0)) and (abs(point - 0.5) + half < 0.5).all()
    np.testing.assert_allclose(band, [point - half, point + half], rtol=0, atol=0.02 * half.min())


def test_the_probability_of_improvement_is_rliables(scores):
    x, y = scores[0].round(1), scores[1].round(1)  # with ties
    np.random.seed(0)  # noqa: NPY002
    points, theirs = rly.get_interval_estimates({"p": [x, y]}, metrics.probability_of_improvement, reps=400)
    value, low, high = estimates.improvement(x, y, REPLICATIONS)
    assert value == pytest.approx(float(points["p"]), abs=1e-12)
    wider = stats.t.ppf(0.975, 5 * 12) / 1.96 * np.sqrt(7 / 6)
    assert high - low == pytest.approx(wider * np.diff(theirs["p"].ravel())[0], rel=0.1)


@pytest.mark.parametrize("apart", [0.3, 10.0])
def test_the_interval_of_an_improvement_is_wilsons(apart):
    """Its ends p solve (p - share)^2 = t^2 p (1 - p) / games, as many games as have the bootstrap's standard error.

    Where no run of one side reaches the other's, there is one game for each run of the smaller side on each task.
    """
    rng = np.random.default_rng(3)
    (n, k, m), x, y = (4, 7, 2), rng.normal(apart, 1, (4, 2)), rng.normal(0, 1, (7, 2))
    share, low, high = estimates.improvement(x, y)
    wins = (x.T[:, :, None] > y.T[:, None, :]).astype(float)
    variance = estimates.improvements(wins, estimates.REPLICATIONS).var() * n / (n - 1)
    games = share * (1 - share) / variance if apart < 1 else m * n
    square = stats.t.ppf(0.975, m * (n + k - 2)) ** 2
    assert wins.mean() == share and low < share and (share == 1.0) == (apart > 1)
    for end in (low, high):
        assert (end - share) ** 2 == pytest.approx(square * end * (1 - end) / games)


def test_the_probability_of_improvement_takes_different_numbers_of_runs():
    x, y = np.array([[1.0], [3.0]]), np.array([[0.0], [2.0], [3.0]])
    assert estimates.improvement(x, y)[0] == pytest.approx((1 + 0 + 0 + 1 + 1 + 0.5) / 6)
    value, low, high = estimates.improvement(x + 10, y)
    assert (value, high) == (1.0, 1.0) and low < 0.5  # two and three runs cannot decide
    assert 0.5 < estimates.improvement(np.arange(10.0)[:, None] + 10, np.arange(10.0)[:, None])[1] < 1.0


def test_iqm_over_training_is_rliables_at_every_step(scores):
    x, y = scores
    curve = np.stack([x, y, x + y], -1)
    centre, band = estimates.iqm_curve(curve, REPLICATIONS)
    for t in range(3):
        assert centre[t] == pytest.approx(metrics.aggregate_iqm(curve[..., t]))
        low, high = estimates.aggregates(curve[..., t], REPLICATIONS)["IQM"][1:]
        assert band[:, t] == pytest.approx([low, high])


def test_a_resample_is_stratified_by_task_and_keeps_a_runs_steps_together():
    n = 4
    scores = np.arange(n)[:, None, None] + 100 * np.arange(3)[None, :, None] + 1_000 * np.arange(2)
    drawn = estimates.bootstrap(scores.astype(float), lambda x: x, 500)
    assert drawn.shape == (500, n, 3, 2)
    assert (drawn[..., 1] - drawn[..., 0] == 1_000).all()
    for task in range(3):
        runs = drawn[:, :, task, 0] - 100 * task
        assert set(np.unique(runs)) == set(range(n))
        assert runs.mean() == pytest.approx(1.5, abs=0.1)
    assert not (drawn[:, :, 0, 0] == drawn[:, :, 1, 0] - 100).all()  # tasks on their own


def test_the_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for runs in (3, 5, 20):
        low, high = estimates.task_means(rng.normal(3.0, 1.0, (runs, 4_000)))
        assert ((low <= 3.0) & (high >= 3.0)).mean() == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize("statistic", ["IQM", "mean", "median"])
def test_intervals_of_aggregates_hold_for_few_runs_where_percentiles_do_not(statistic):
    rng = np.random.default_rng(1)
    hits = {"ours": 0, "percentiles": 0}
    for _ in range(300):
        x = rng.normal(3.0, 1.0, (5, 2))
        _, low, high = estimates.aggregates(x, 300)[statistic]
        hits["ours"] += low <= 3.0 <= high
        low, high = estimates.percentiles(estimates.bootstrap(x, estimates.BATCHED[statistic], 300))
        hits["percentiles"] += low <= 3.0 <= high
    assert 0.915 <= hits["ours"] / 300 <= 0.985 and hits["percentiles"] / 300 < 0.915


def test_the_interval_of_a_mean_is_students(scores):
    x, _ = scores
    low, high = stats.t.interval(0.95, 6, x.mean(0), x.std(0, ddof=1) / np.sqrt(7))
    np.testing.assert_allclose(estimates.task_means(x), [low, high])
    of_bootstrap = estimates.aggregates(x[:, :1], 20_000)["mean"]
    assert of_bootstrap[1:] == pytest.approx((low[0], high[0]), rel=0.02)


def test_intervals_hold_where_one_task_varies_most():
    rng, hits = np.random.default_rng(2), 0
    for _ in range(400):
        x = 3.0 + rng.normal(size=(4, 4)) * [1.0, 0.1, 0.1, 0.1]
        _, low, high = estimates.aggregates(x, 300)["mean"]
        hits += low <= 3.0 <= high
    assert 0.92 <= hits / 400 <= 0.98


def test_a_single_run_has_no_interval():
    assert np.isnan(estimates.task_means(np.ones((1, 2)))).all()
    assert np.isnan(estimates.aggregates(np.ones((1, 2)), 10)["IQM"][1:]).all()


def test_the_same_scores_give_the_same_intervals(scores):
    x, _ = scores
    before = estimates.aggregates(x, 200)
    np.random.seed(5)  # noqa: NPY002
    assert estimates.aggregates(x, 200) == before


def test_chunks_change_nothing(scores, monkeypatch):
    x, _ = scores
    before = estimates.aggregates(x, 200)
    monkeypatch.setattr(estimates, "CHUNK", 3 * x.size)
    assert estimates.aggregates(x, 200) == before
