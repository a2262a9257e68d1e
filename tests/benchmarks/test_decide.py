"""Tests of two algorithms against scipy's, corrections against numbers by hand, and the split of variance."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from benchmarks import decide, report
from benchmarks.decide import (
    Comparison,
    combined,
    compare,
    corrected,
    least_by_exchanges,
    least_difference,
)
from benchmarks.decision_part import decision_part, differences, verdict_table
from benchmarks.tables import number
from benchmarks.variance_part import Split, advice, split

NONE = np.array([])


def scores(values, first=0):
    return dict(enumerate(values, first))


def test_two_algorithms_are_compared_as_welch_does():
    x, y = [3.0, 5.0, 4.0, 8.0, 6.0], [1.0, 2.5, 4.0, 2.0, 3.0]
    one = compare("T", "a", "b", scores(x), scores(y))
    theirs = stats.ttest_ind(x, y, equal_var=False)
    assert (one.difference, one.p, one.freedom) == pytest.approx((5.2 - 2.5, theirs.pvalue, theirs.df))
    assert (one.low, one.high) == pytest.approx(tuple(theirs.confidence_interval()))
    assert one.correlation == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert (one.test, one.smallest) == ("Welch", 0.0)
    # two seeds always lie on a line, and scores that are all alike on none
    assert np.isnan(compare("T", "a", "b", scores(x[:2]), scores(y[:2])).correlation)
    assert np.isnan(compare("T", "a", "b", scores(x), scores([1.0] * 5)).correlation)


@pytest.mark.parametrize("sizes", [(3, 3), (4, 2), (3, 10), (5, 20)])
def test_few_or_different_numbers_of_seeds_are_exchanged(sizes):
    rng = np.random.default_rng(1)
    x, y = rng.lognormal(size=sizes[0]) + 1.0, rng.lognormal(size=sizes[1])
    theirs = stats.permutation_test(
        (x, y), lambda a, b, axis: stats.ttest_ind(a, b, axis=axis, equal_var=False).statistic, vectorized=True,
        n_resamples=20_000 if sum(sizes) > 20 else np.inf, rng=rng,
    )  # fmt: skip
    share = (np.abs(theirs.null_distribution) >= abs(theirs.statistic) * (1 - 1e-9)).mean()
    one = compare("T", "a", "b", scores(x), scores(y))
    assert one.test == "exchanges" and one.p == pytest.approx(share, abs=0.015)


@pytest.mark.parametrize(
    "sizes",
    [
        (2, 2),
        pytest.param((3, 3), marks=pytest.mark.slow),
        (3, 10),
        (5, 5),
        pytest.param((5, 20), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", ["lopsided", "two-valued", "normal"])
def test_nothing_is_found_where_nothing_is(kind, sizes):
    draw = {
        "lopsided": lambda rng, n: np.minimum(rng.normal(1.0, 1.0, n), 1.0),
        "two-valued": lambda rng, n: 100.0 * (rng.random(n) < 0.7),
        "normal": lambda rng, n: rng.normal(size=n),
    }[kind]
    rng, wrong, repetitions = np.random.default_rng(0), 0, 150
    for _ in range(repetitions):
        pairs = [compare("T", "a", "b", *(scores(draw(rng, n)) for n in sizes)) for _ in range(4)]
        wrong += any(one.verdict != "not decided" for one in corrected(pairs))
    assert wrong / repetitions < 0.09


def test_settings_of_one_process_are_compared_in_pairs():
    x, y = [3.0, 5.0, 4.0, 8.0, 7.0], [2.0, 4.5, 3.0, 6.0, 5.5]
    one, unpaired = (compare("T", "a", "b", scores(x), scores(y), paired) for paired in (True, False))
    theirs = stats.ttest_rel(x, y)
    assert one.test == "paired" and one.p == pytest.approx(theirs.pvalue) and one.freedom == 4
    assert (one.low, one.high) == pytest.approx(tuple(theirs.confidence_interval()))
    assert one.p < unpaired.p  # the seeds are alike
    other_seeds = compare("T", "a", "b", scores(x), scores(y, first=1), True)
    assert other_seeds.test == "Welch"
    six = compare("T", "a", "b", scores([*x, 6.0]), scores(y), True)  # one lacks a seed: the pairs of both remain
    assert (six.test, six.p, six.seeds) == ("paired", one.p, (5, 5)) and six.difference == one.difference
    assert "; over the 5 seeds that both have" in six.sentence("return") and "both" not in one.sentence("return")
    assert (
        compare("T", "a", "b", scores([*x, 6.0, 7.0]), scores(y), True).test == "exchanges"
    )  # of too many, one is alone
    assert compare("T", "a", "b", scores(x), scores(y[:4]), True).test == "exchanges"  # four pairs could decide nothing
    three = compare("T", "a", "b", scores(x[:3]), scores(y[:3]), True)
    assert three.test == "exchanges in pairs" and three.p == 2 / 2**3  # all differences have one sign


def test_pairs_without_spread_and_single_seeds():
    assert compare("T", "a", "b", scores([1.0]), scores([2.0, 3.0])) is None
    same, apart = (compare("T", "a", "b", scores([5.0, 5.0]), scores([y, y])) for y in (5.0, 6.0))
    assert same.p == 1.0 and apart.p == pytest.approx(2 / 6)  # of six exchanges, two are as far apart
    assert corrected([apart])[0].verdict == "not decided"
    five = compare("T", "a", "b", scores([5.0] * 5), scores([6.0] * 5))
    assert five.p == pytest.approx(2 / 252) and corrected([five])[0].verdict == "worse"
    for value in (0.1, 0.3, 1e-9, 1e90):
        equal = compare("T", "a", "b", scores([value] * 2), scores([value] * 14))
        assert equal.p == 1.0 and equal.difference == 0.0
    several = corrected([compare("T", "a", "b", scores([100.0] * 5), scores([0.0] * 5)) for _ in range(8)])
    assert {(one.test, one.decidable, one.verdict) for one in several} == {("exchanges", False, "not decided")}
    assert "among so many differences, 5 seeds cannot decide one" in several[0].sentence("success")
    nearly = compare("T", "a", "b", scores([0.1] * 10), scores([0.1 + 1e-16] * 10))
    assert nearly.p == 1.0


def of_p(p, difference=1.0):
    return Comparison("T", "a", "b", difference, 0, 0, p, "Welch", np.nan, (5, 5), 1.0, 8.0, NONE, NONE)


def test_holm_by_hand():
    found = corrected([of_p(0.01), of_p(0.04), of_p(0.03), of_p(0.005, -1.0)])
    assert [one.corrected for one in found] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [one.verdict for one in found] == ["better", "not decided", "not decided", "worse"]


def test_the_least_difference_is_found_four_times_in_five():
    rng, n = np.random.default_rng(0), 5
    error, freedom = np.sqrt(2 / n), 2 * n - 2
    least = least_difference(error, freedom, 0.05)
    x, y = rng.normal(least, 1, (20_000, n)), rng.normal(0, 1, (20_000, n))
    assert (stats.ttest_ind(x, y, axis=1).pvalue < 0.05).mean() == pytest.approx(0.8, abs=0.01)
    assert least_difference(error, freedom, 0.01) > least
    assert np.isnan(least_difference(0.0, freedom, 0.05)) and np.isnan(least_difference(1.0, 2.9, 0.05))


@pytest.mark.parametrize("freedom", [3, 4, 8])
@pytest.mark.parametrize("count", [1, 6, 100, 408])
def test_the_least_difference_holds_for_many_comparisons_and_few_seeds(freedom, count):
    rng, level = np.random.default_rng(0), 0.05 / count
    least = least_difference(2.0, freedom, level) / 2.0
    statistic = (rng.standard_normal(100_000) + least) / np.sqrt(rng.chisquare(freedom, 100_000) / freedom)
    assert (statistic > stats.t.ppf(1 - level / 2, freedom)).mean() == pytest.approx(0.8, abs=0.006)


def test_exchanges_find_the_least_difference_as_often():
    rng, (n, m) = np.random.default_rng(0), (5, 10)
    least = least_difference(math.sqrt(1 / n + 1 / m), 8.2, 0.05)  # 8.2: what such scores have as a rule
    found = [
        compare("T", "a", "b", scores(rng.normal(least, 1, n)), scores(rng.normal(0, 1, m))).p < 0.05
        for _ in range(500)
    ]
    assert 0.74 < np.mean(found) < 0.87
    one, other = (compare("T", "a", "b", scores(np.arange(n) * 1.0), scores(np.arange(m) * 1.0)) for _ in range(2))
    corrected([one])
    assert one.test == "exchanges" and one.least == pytest.approx(least_difference(one.error, one.freedom, 0.05))
    corrected([other, *(of_p(0.5) for _ in range(40))])  # exchanges have p-values of 1 / 3,003 and more
    assert other.least > one.least
    last = compare("T", "a", "b", scores(np.arange(n) * 1.0), scores(np.arange(m) * 1.0))
    corrected([last, *(of_p(0.5) for _ in range(200))])  # none is below 0.05 / 201
    assert np.isnan(last.least)


@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 10)])
def test_exchanges_of_few_scores_find_their_least_difference_as_often(n, m):
    rng, level = np.random.default_rng(7), 0.05
    least = least_by_exchanges(n, m, level) * math.sqrt(1 / n + 1 / m)
    found = [
        compare("T", "a", "b", scores(rng.normal(least, 1, n)), scores(rng.normal(0, 1, m))).p < level
        for _ in range(800)
    ]
    assert np.mean(found) == pytest.approx(0.8, abs=0.06)
    one = compare("T", "a", "b", scores(rng.normal(0, 5, n)), scores(rng.normal(0, 5, m)))
    corrected([one])
    assert one.least == pytest.approx(one.error * least_by_exchanges(n, m, level))
    assert "would have been shown four times in five" in one.sentence("return")
    assert least_by_exchanges(3, 3, 0.05) == np.inf  # their p-values are 0.1 and more


def test_so_few_seeds_cannot_decide():
    three, four, ten = (
        compare("T", "a", "b", scores(np.arange(n) + 100.0), scores(np.arange(m) * 1.0))
        for n, m in ((3, 3), (4, 4), (3, 10))
    )
    assert (three.smallest, four.smallest, ten.smallest) == pytest.approx((2 / 20, 2 / 70, 1 / 286))
    assert (three.p, four.p, ten.p) == pytest.approx((2 / 20, 2 / 70, 1 / 286))
    (alone,) = corrected([three])
    assert not alone.decidable and "; 3 seeds cannot decide a difference" in alone.sentence("return")
    assert [one.verdict for one in corrected([four])] == ["better"] and four.decidable
    two = [compare("T", "a", "b", scores(np.arange(4) + 100.0), scores(np.arange(4) * 1.0)) for _ in range(2)]
    assert {(one.verdict, one.decidable) for one in corrected(two)} == {("not decided", False)}
    assert decide.too_few(4, 1, 0) == decide.too_few(5, 100, 100) == decide.too_few(3, 0, 0) == ""
    assert decide.too_few(4, 2, 0).startswith("4 seeds cannot decide any of the 2 differences on single tasks")
    assert decide.too_few(4, 0, 1).startswith("4 seeds cannot decide the difference on single tasks")  # pairs: 2 / 16
    with_more = corrected([four, ten])  # the one with more seeds comes first, and leaves the whole level
    assert all(one.decidable for one in with_more) and with_more[0].corrected == pytest.approx(2 / 70)
    assert four.least < 100 and "would have been shown" not in two[0].sentence("return")
    assert corrected([of_p(0.5)])[0].least == pytest.approx(least_difference(1.0, 8.0, 0.05))
    assert corrected([of_p(0.5), of_p(0.6)])[0].least == pytest.approx(least_difference(1.0, 8.0, 0.025))


def test_the_difference_over_tasks_is_the_mean_over_them():
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(2_000):
        parts = [
            compare(str(task), "a", "b", scores(rng.normal(1.0, spread, 5)), scores(rng.normal(0.0, spread, 5)))
            for task, spread in enumerate((1.0, 3.0))
        ]
        whole = combined("both", parts)
        assert whole.difference == pytest.approx((parts[0].difference + parts[1].difference) / 2)
        hits.append(whole.low <= 1.0 <= whole.high)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)


def test_over_tasks_exchanges_test_the_mean_difference():
    """A difference on one task does not decide for the wrong side over all of them, and the level is kept."""
    first = compare("t1", "a", "b", scores(0.5 + 0.01 * np.arange(5)), scores(0.4 + 0.005 * np.arange(6)))
    second = compare("t2", "a", "b", scores([0.0, 0.4, 0.2, 0.5, 0.1]), scores([0.5, 0.1, 0.9, 0.2, 0.8, 0.5]))
    assert first.p < 0.005 and first.difference > 0 > second.difference
    whole = combined("both", [first, second])
    assert whole.difference < 0 and whole.p > 0.2 and corrected([whole])[0].verdict == "not decided"
    rng, small, found = np.random.default_rng(0), 0, 0
    for _ in range(300):
        parts = [
            compare(str(task), "a", "b", scores(rng.normal(0, spread, 3)), scores(rng.normal(0, spread, n)))
            for task, (spread, n) in enumerate([(1.0, 3), (3.0, 3), (1.0, 4)])
        ]
        small += combined("all", parts).p < 0.05
        parts = [
            compare(str(task), "a", "b", scores(rng.normal(4, 1, 3)), scores(rng.normal(0, 1, 3))) for task in range(3)
        ]
        whole = combined("all", parts)
        found += whole.p < 0.05
    assert small / 300 < 0.085 and found / 300 > 0.95
    assert whole.smallest == pytest.approx(2 / 20**3)


def test_sentences_say_who_is_better_or_what_could_have_been_shown():
    better, worse, neither = corrected([of_p(1e-6), of_p(1e-5, -2.0), of_p(0.5)])
    assert better.sentence("return") == "a is better than b on T (+1.00 in return, p < 0.001 after correction)."
    assert worse.sentence("return").startswith("a is worse than b on T (-2.00 in return")
    assert neither.sentence("return").startswith("Between a and b on T it is not decided (+1.00 in return, p = 0.5")
    assert "would have been shown four times in five" in neither.sentence("return")
    large = of_p(1e-6, -1820.4)
    assert "(-1,820.4 in return" in corrected([large])[0].sentence("return")
    assert "(+0.0014 in normalised score" not in (small := of_p(1e-6, 0.0014)).sentence("normalised score")
    assert "(+0.001 in normalised score" in small.sentence("normalised score", 3)


def test_sentences_say_what_a_verdict_does_not_rest_on():
    lost = replace(of_p(1e-6), lost=(6, 1)).sentence("return")
    told = "without 6 runs of a that diverged before any score; without 1 run of b that diverged before any score)."
    assert lost.endswith(told)
    x, y = [1000.0, 2000.0, 3000.0, 30000.0], [0.0, 1.0, 2.0, 500.0]
    (one,) = corrected([compare("T", "a", "b", scores(x), scores(y))])
    assert one.verdict == "better" and one.low < 0 < one.high
    doubt = "; Student's interval, which fits such scores badly, holds 0)."
    assert one.sentence("return").endswith(doubt)
    assert "Student" not in of_p(1e-6).sentence("return") and "Student" not in of_p(0.5).sentence("return")
    both = combined("both", [replace(one, lost=(1, 0)), replace(one, lost=(2, 0))])
    assert both.lost == (3, 0)


@pytest.mark.parametrize(
    ("p", "said", "cell"),
    [
        (0.0496, "0.0496", "0.0496"), (0.0504, "0.0504", "0.0504"), (0.05, "0.05", "0.050"),
        (0.0437, "0.044", "0.044"), (0.049996, "0.049996", "0.049996"),
    ],
)  # fmt: skip
def test_a_p_value_shows_on_which_side_of_the_level_it_is(p, said, cell):
    assert f"p = {said} after" in corrected([one := of_p(p)])[0].sentence("return")
    assert differences([one], None).rows[0][5] == (cell, p)


def test_a_comparison_has_its_numbers_in_their_columns():
    one = replace(
        of_p(0.01, -2.0), low=-3.0, high=-1.0, corrected=0.04, seeds=(5, 7), least=1.5, correlation=0.3, smallest=0.001
    )
    table, (row,) = differences([one], 1), differences([one], 1).rows
    assert dict(zip(table.columns, [cell[0] for cell in row], strict=True)) == {
        "task": "T", "a": "a", "b": "b", "a − b": "-2.0", "95% interval": "[-3.0, -1.0]", "p (Holm)": "0.040",
        "a is": "worse", "least difference": "1.5", "correlation": "0.30", "test": "Welch", "seeds": "5, 7",
    }  # fmt: skip
    assert verdict_table([one]).iloc[0].to_dict() == {
        "task": "T", "a": "a", "b": "b", "difference": -2.0, "low": -3.0, "high": -1.0, "p": 0.01, "p_corrected": 0.04,
        "verdict": "worse", "least": 1.5, "correlation": 0.3, "test": "Welch", "seeds_a": 5, "seeds_b": 7,
    }  # fmt: skip


def test_a_difference_beyond_what_there_can_be_is_never_the_least():
    least = least_difference(1.0, 8.0, 0.025)
    wide, narrow = (replace(of_p(0.5), most=share * least) for share in (1.001, 0.999))
    corrected([wide, narrow])
    assert wide.least == pytest.approx(least) and narrow.least == np.inf
    assert "no difference, however large, would have been shown four times in five" in narrow.sentence("success")
    both = combined("both", [compare(t, "a", "b", scores([1.0, 2.0]), scores([2.0, 4.0])) for t in "tu"])
    assert both.most == np.inf
    parts = [compare(t, "a", "b", scores([1.0, 2.0]), scores([2.0, 4.0])) for t in "tu"]
    assert combined("both", [replace(parts[0], most=1.0), replace(parts[1], most=3.0)]).most == 2.0
    results = SimpleNamespace(
        unit="success (%)", unit_of=lambda task: "success (%)", score="last", ranked=["a"], references=None
    )
    part = decision_part(results, [wide, narrow], looked=False)
    place = part.tables[0][1].columns.index("least difference")
    assert [row[place][0] for row in part.tables[0][1].rows] == [f"{wide.least:.2f}", "none"]
    assert "is none where" in part.method
    assert "is none where" not in decision_part(results, corrected([of_p(0.5)]), looked=False).method


def test_where_not_all_exchanges_are_made_their_number_is_the_limit():
    assert decide.smallest_p([(7, 7)], [False]) == pytest.approx(2 / 3_432)
    assert decide.smallest_p([(10, 10)], [False]) == 1 / decide.EXCHANGES  # the mirror image is hardly ever among them
    many = replace(of_p(1e-4), smallest=1 / decide.EXCHANGES, decidable=False, corrected=1.0)
    assert "20,000 exchanges cannot decide one" in many.sentence("return")


@pytest.mark.parametrize(("decided", "listed"), [(3, 13), (30, 10)])
def test_of_many_pairs_a_few_that_are_decided_are_told_first(decided, listed):
    """Ten pairs with the best algorithm, of which none is decided, and forty others."""
    found = [replace(of_p(0.5), a="best", b=f"b{i}") for i in range(10)]
    found += [replace(of_p(1e-9 if i < decided else 0.5), a="a", b=f"c{i}") for i in range(40)]
    results = SimpleNamespace(
        unit="return", unit_of=lambda task: "return", score="last", ranked=["best"], references=None
    )
    part = decision_part(results, corrected(found), looked=False)
    ((_, table),) = part.tables
    assert len(table.rows) == len(part.sentences) == listed
    assert f"{decided} of 50 differences are decided" in part.text
    told = ["a is better than" in sentence for sentence in part.sentences]
    assert told == sorted(told, reverse=True) and sum(told) == listed - 10
    assert ("and all that are decided" in part.text) == (listed > 10)
    ((caption, others),) = part.folded
    assert len(others.rows) == 50 - listed and caption == f"The other {50 - listed} differences of means"
    assert f"The other {50 - listed} are in verdicts.csv" in part.text
    pairs = [tuple(cell[0] for cell in row[1:3]) for row in table.rows + others.rows]
    assert sorted(pairs) == sorted((one.a, one.b) for one in found)


def test_verdicts_come_before_their_method_and_every_row_is_on_the_page():
    found = [replace(of_p(0.5), a="best", b=f"b{i}") for i in range(3)] + [
        replace(of_p(0.5), a="a", b=f"c{i}") for i in range(30)
    ]
    results = SimpleNamespace(
        unit="return", unit_of=lambda task: "return", score="last", ranked=["best"], references=None
    )
    part = decision_part(results, corrected(found), looked=False)
    assert len(part.text.split()) < 50 and "Welch's t-test" in part.method
    page = report.render(
        title="t", purpose="", notes=[], pages=[(part, [])], styles={}, references="raw", reference_rows=[], over="",
        score="last", method="", origin={"commands": [], "report": "", "commits": [], "devices": [], "dates": []},
    )  # fmt: skip
    shown, folded = page.split("<details>")
    assert shown.index("33 differences are decided") < shown.index("<li>Between best") < shown.index("by Welch")
    assert (shown.count("<tr><td"), folded.split("</details>")[0].count("<tr><td")) == (3, 30)
    scores_of = SimpleNamespace(notes=[], sources=[])
    of_page = SimpleNamespace(scores=scores_of, references=None, fewest=5, replications=10)
    text = report.markdown("t", "", of_page, [part], "raw")
    assert (
        text.index("- Between best") < text.index("by Welch") < text.index("| task |") and text.count("| T | a |") == 0
    )
    part.figures, part.figures_in_markdown = [("f", None, "a figure")], True
    one, none = (report.markdown("t", "", of_page, [part], "raw", images) for images in (True, False))
    assert "![a figure](figures/f.png)" in one and "![" not in none and "| task |" in none
    few = decision_part(results, corrected(found[:4]), looked=False)
    assert not few.folded and "verdicts.csv" not in few.text


def test_a_difference_that_is_rounded_to_0_has_no_sign():
    for difference in (-0.0001, 0.0001, 0.0):
        assert "(0.000 in normalised score" in of_p(0.5, difference).sentence("normalised score", 3)
    assert number(-0.004)[0] == "0.00" and number(-0.006)[0] == "-0.01" and number(-0.0004, 3) == ("0.000", -0.0004)


# -- variance ----------------------------------------------------------------------------------------------------------


def test_the_sources_of_variance_are_found():
    rng = np.random.default_rng(0)
    seeds, evaluations, episodes = 400, 6, 20
    truth = (4.0, 2.25, 9.0)
    returns = 50.0 + sum(
        np.sqrt(variance) * rng.standard_normal(shape)
        for variance, shape in zip(
            truth, [(seeds, 1, 1), (seeds, evaluations, 1), (seeds, evaluations, episodes)], strict=True
        )
    )
    found = split(returns.mean(2), returns.var(2, ddof=1), episodes)
    assert (found.seeds, found.checkpoints, found.episodes) == pytest.approx(truth, rel=0.15)
    spread = returns.mean((1, 2)).std(ddof=1)
    assert np.sqrt(found.parts(episodes).sum()) == pytest.approx(spread, rel=0.02)


def test_what_all_seeds_learn_is_no_chance():
    rng = np.random.default_rng(0)
    seeds, evaluations = 5, 4
    found = []
    for _ in range(300):
        means = (
            rng.standard_normal((seeds, 1)) * 3
            + np.linspace(-15, 15, evaluations)
            + rng.normal(0, 2, (seeds, evaluations))
        )
        found.append(split(means, np.zeros_like(means), 10))
    assert np.mean([one.checkpoints for one in found]) == pytest.approx(4.0, rel=0.06)
    assert np.mean([one.seeds for one in found]) == pytest.approx(9.0, rel=0.15)


def test_a_source_below_zero_counts_as_none():
    found = split(np.array([[1.0, 1.0], [1.0, 1.0]]), np.full((2, 2), 4.0), 10)
    assert (found.seeds, found.checkpoints, found.episodes) == (0.0, 0.0, 4.0)
    single = split(np.array([[1.0], [3.0]]), np.array([[0.0], [0.0]]), 10)
    assert (single.seeds, single.checkpoints) == (2.0, 0.0)


def test_advice_buys_what_lacks():
    noisy_episodes = Split(0.01, 0.0, 100.0, 1, 50.0)
    noisy_seeds = Split(100.0, 0.0, 0.01, 1, 50.0)
    assert advice(noisy_episodes, 1.0, 100.0, 1.0)[1] > advice(noisy_seeds, 1.0, 100.0, 1.0)[1] == 1
    for found in (noisy_episodes, noisy_seeds):
        seeds, episodes = advice(found, 2.0, 100.0, 1.0)
        assert stats.t.ppf(0.975, seeds - 1) * np.sqrt(found.parts(episodes).sum() / seeds) <= 2.0
    assert advice(Split(0.0, 0.0, 2.5e5, 1, 50.0), 5.0, 1.0, 50.0)[1] > 1  # one episode is never enough
    assert advice(Split(1e9, 0.0, 0.0, 1, 50.0), 1.0, 1.0, 1.0) is None
    dear, cheap = (advice(noisy_episodes, 1.0, 100.0, cost)[1] for cost in (10.0, 0.001))
    assert dear < cheap


def test_all_exchanges_over_tasks_are_made_where_there_are_few():
    """Three seeds against three on two tasks have 20 x 20 exchanges, of which two are the most extreme."""
    parts = [compare(task, "a", "b", dict(enumerate([5.0, 6, 7])), dict(enumerate([0.0, 1, 2]))) for task in "xy"]
    assert combined("both", parts).p == pytest.approx(2 / 400) == pytest.approx(combined("both", parts).smallest)
