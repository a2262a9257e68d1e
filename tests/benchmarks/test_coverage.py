"""How often intervals hold, and the sections of a report that decide, from runs of which the truth is known."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import synthetic

from algos.errors import UserError
from benchmarks import analysis, coverage, interval_note
from benchmarks.decision_part import comparisons, decision_part
from benchmarks.load_scores import load
from benchmarks.variance_part import advice, costs_of, split, variance_part


def store(folder, algorithm, task, values, episodes=1, noise=0.0, variant="default"):
    """A run with one evaluation after step 0, in which each seed has its value, with noise over episodes."""
    rng = np.random.default_rng(len(values))
    rows = [
        (seed, step, episode, value * (step > 0) + noise * rng.standard_normal())
        for seed, value in enumerate(values)
        for step in (0, 100)
        for episode in range(episodes)
    ]
    table = pd.DataFrame(rows, columns=["seed", "step", "episode", "return"])
    synthetic.store(folder, algorithm, table, task, variant)


def results_of(folder):
    return analysis.compute(load([folder]), None, "last", 50)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The runs of one algorithm on a task, and a page of few repetitions."""
    folder = tmp_path_factory.mktemp("made")
    store(folder / "runs", "a", "Made-v0", np.random.default_rng(0).normal(size=60))
    coverage.main(coverage.Args((folder / "runs",), folder / "page", repetitions=10))
    return folder


def test_a_page_is_made_again_of_itself(made, tmp_path):
    coverage.main(coverage.Args((made / "page",), tmp_path / "again", repetitions=10))
    with pytest.raises(UserError, match=r"--steps is for folders of runs, and .*page has stored scores"):
        coverage.main(coverage.Args((made / "page",), tmp_path / "again", steps=(100,), repetitions=10))
    for name in ("coverage.csv", "errors.csv", "seeds.csv"):
        assert (made / "page" / name).read_text() == (tmp_path / "again" / name).read_text()


def test_a_page_is_made_of_runs(made, tmp_path):
    coverage.main(coverage.Args((made / "runs",), tmp_path / "page", repetitions=40))
    held = pd.read_csv(tmp_path / "page" / "coverage.csv")
    by = held.set_index(["seeds", "interval"])["coverage"]
    assert by[3, "Student"] > by[3, "percentile mean"] + 0.05 and by[20, "Student"] > 0.85
    decided = pd.read_csv(tmp_path / "page" / "errors.csv")
    assert decided[decided["case"] == "no difference"]["share"].max() < 0.15
    assert decided[(decided["case"] == "difference") & (decided["seeds"] == 20)]["share"].min() > 0.6
    cases = {"no difference", "other spread", "difference", "wrong way", "looks", "looks, other spread"}
    assert set(decided["case"]) == cases | {"pairs", "difference in pairs", "looks, difference"}
    by_case = decided.set_index(["case", "seeds", "others"])["share"]
    assert by_case["looks, difference", 20, 20] > 0.6 and by_case["looks", 20, 20] < 0.15
    assert by_case["pairs"].max() < 0.15 and by_case["difference in pairs", 20, 20] > 0.6
    assert not {("pairs", 3, 10), ("difference in pairs", 3, 3)} & set(by_case.index)
    said = interval_note.in_a_sentence(tmp_path / "page", 5)
    assert "1 sets of scores" in said and "percentile intervals in" in said
    shares = {n: f"from {n} of them hold the truth in {100 * by[n, 'Student']:.0f} to" for n in coverage.SIZES}
    for seeds, measured in ((2, 3), (3, 3), (9, 5), (10, 10), (100, 20)):
        said = interval_note.in_a_sentence(tmp_path / "page", seeds)
        assert shares[measured] in said and ("even from 3" in said) == (seeds == 2)
    assert "draws" in interval_note.interval_note(20, 2) and "draws" not in interval_note.interval_note(20, 1)
    assert interval_note.in_a_sentence(tmp_path, 5) == ""


def test_a_side_with_a_tenth_of_the_spread_misleads_verdicts_on_lopsided_scores(monkeypatch):
    """One seed in twenty scores about 1, and the others about 0: five draws seldom have the mean."""
    monkeypatch.setattr(coverage, "SEEDS", ((5, 5),))
    truth = np.arange(60) * 1e-5 + (np.arange(60) >= 57)
    shares = {case: share for *_, case, share in coverage.errors("lopsided", truth, 20)}
    assert shares["no difference"] < 0.25 < 0.75 < shares["other spread"]
    assert shares["looks"] < 0.25 < 0.4 < shares["looks, other spread"]
    assert shares["wrong way"] < 0.1 and shares["difference"] > 0.5


def test_verdicts_are_counted_by_their_kind_and_direction(monkeypatch):
    """Reports have eight verdicts without a difference: one is decided in every second report on the same scores, and
    in three of four against a steady side. Of four verdicts on a difference, one is right and two are wrong."""
    counts = dict.fromkeys(("same", "steady", "apart"), 0)
    said = {
        "same": ["not decided"] * 15 + ["worse"],
        "steady": (["not decided"] * 7 + ["better"]) * 3 + ["not decided"] * 8,
        "apart": ["worse", "better", "not decided", "worse"],
    }

    def drawn(rng, truth, n, m, shift, reliable=False):
        kind = "apart" if shift else "steady" if reliable else "same"
        counts[kind] += 1
        return SimpleNamespace(verdict=said[kind][(counts[kind] - 1) % len(said[kind])])

    monkeypatch.setattr(coverage, "SEEDS", ((3, 10),))
    monkeypatch.setattr(coverage, "drawn", drawn)
    monkeypatch.setattr(coverage, "corrected", lambda pairs: pairs)
    still = SimpleNamespace(look=lambda a, b: SimpleNamespace(decision="not decided"))
    monkeypatch.setattr(coverage, "Sequential", lambda *_, **__: still)
    shares = {case: share for *_, case, share in coverage.errors("made", np.arange(60.0), 8)}
    expected = {"no difference": 0.5, "other spread": 0.75, "difference": 0.25, "wrong way": 0.5}
    assert shares == expected | {"looks": 0.0, "looks, other spread": 0.0, "looks, difference": 0.0}


def test_scores_of_training_up_to_a_step_are_those_of_that_step(tmp_path):
    rows = [(seed, step, 0, seed + 1000.0 * (step == 100)) for seed in range(60) for step in (0, 50, 100)]
    synthetic.store(tmp_path, "a", pd.DataFrame(rows, columns=["seed", "step", "episode", "return"]), "Made-v0")
    table, *_ = coverage.truths((tmp_path,), (50, 100))
    for step, more in ((50, 0.0), (100, 1000.0)):
        assert table[table["step"] == step]["score"].tolist() == [seed + more for seed in range(60)]
    for step in (5, 1_000):
        with pytest.raises(UserError, match=f"--steps: a on Made-v0 is evaluated from step 50 to 100, and {step:,} is"):
            coverage.main(coverage.Args((tmp_path,), tmp_path / "page", (50, step)))
    assert not (tmp_path / "page").exists()


def test_a_shorter_run_beside_it_does_not_cut_another(tmp_path):
    for name, last in (("a", 1000), ("b", 50)):
        rows = [(seed, step, 0, float(seed + step)) for seed in range(60) for step in (0, last)]
        synthetic.store(tmp_path, name, pd.DataFrame(rows, columns=["seed", "step", "episode", "return"]), "Made-v0")
    table, *_ = coverage.truths((tmp_path,), ())
    assert table.groupby("algorithm")[["step", "score"]].max().values.tolist() == [[1000, 1059], [50, 109]]
    with pytest.raises(UserError, match="--steps: b on Made-v0 is evaluated from step 50 to 50, and 1,000 is outside"):
        coverage.truths((tmp_path,), (1000,))


def test_truths_are_of_finished_runs_and_no_stored_ones_hide_runs(tmp_path):
    rows = [(seed, step, 0, float(seed + step)) for seed in range(120) for step in (0, 10, 100)]
    table = pd.DataFrame(rows, columns=["seed", "step", "episode", "return"])
    late = (table["seed"] >= 60) & (table["step"] > 10)
    synthetic.store(tmp_path / "a", "a", table[table["seed"] < 60], "A-v0")
    synthetic.store(tmp_path / "b", "a", table[~late & (table["seed"] >= 60)], "A-v0", status="interrupted")
    found, *_ = coverage.truths((tmp_path,), ())
    assert found["seed"].tolist() == list(range(60))
    (tmp_path / "seeds.csv").write_text("task,algorithm,step,seed,score\n")
    with pytest.raises(UserError, match=r"holds seeds.csv, which this command stored, and also .*A-v0"):
        coverage.truths((tmp_path,), ())


def test_scores_are_named_by_the_steps_of_their_own_task(tmp_path):
    for task, last in (("A-v0", 100), ("B-v0", 300)):
        rows = [(seed, step, 0, float(seed + step)) for seed in range(60) for step in (0, last)]
        synthetic.store(tmp_path / task, "a", pd.DataFrame(rows, columns=["seed", "step", "episode", "return"]), task)
    table, *_ = coverage.truths((tmp_path,), ())
    assert table.groupby("task")["step"].unique().map(list).to_dict() == {"A-v0": [100], "B-v0": [300]}


def test_pairs_are_draws_of_the_scores_that_go_together():
    truth = np.random.default_rng(0).exponential(size=80)
    x, y = coverage.in_pairs(np.random.default_rng(1), truth, 40_000)
    for drawn in (x, y):
        assert set(drawn) == set(truth)
        np.testing.assert_allclose(np.quantile(drawn, [0.2, 0.5, 0.8]), np.quantile(truth, [0.2, 0.5, 0.8]), rtol=0.1)
    ranks = [np.searchsorted(np.sort(truth), drawn) for drawn in (x, y)]
    assert np.corrcoef(ranks)[0, 1] == pytest.approx(6 / np.pi * np.arcsin(0.25), abs=0.02)  # Spearman's, if normal


@pytest.mark.slow
def test_verdicts_over_tasks_are_rarely_wrong_and_find_what_is_there_in_four_of_five():
    rng = np.random.default_rng(0)
    rows = coverage.over_tasks([10 * rng.normal(size=100), 5 + rng.normal(size=80), rng.normal(size=60)], 200)
    share = {(n, m, case): found for name, n, m, case, found in rows if name == "all 3, as tasks"}
    assert len(share) == len(rows) == 5 * len(coverage.SEEDS)
    for n, m in coverage.SEEDS:
        assert share[n, m, "over tasks"] < 0.12 and share[n, m, "difference over tasks"] > 0.6
        assert share[n, m, "over tasks, other spread"] < 0.12 and share[n, m, "difference over tasks"] < 0.9
        assert share[n, m, "over tasks, one wide"] < 0.12  # of normal scores
    lopsided = [np.append(rng.normal(size=95), 20 + rng.normal(size=5)) for _ in range(2)]
    share = {(n, m, case): found for _, n, m, case, found in coverage.over_tasks(lopsided, 200)}
    assert share[3, 10, "over tasks, other spread"] > share[3, 10, "over tasks"] + 0.2
    assert share[20, 20, "over tasks, one wide, other spread"] > share[20, 20, "over tasks, one wide"]


@pytest.mark.slow
def test_intervals_of_aggregates_hold_what_they_should_over_tasks_of_normal_scores():
    rng = np.random.default_rng(0)
    rows = coverage.coverage_over_tasks([10 * rng.normal(size=100), 5 + rng.normal(size=80)], 200)
    held = {(n, kind): share for name, n, kind, share, _ in rows if name == "all 2, as tasks"}
    assert len(held) == len(rows) == len(coverage.SIZES) * len(coverage.AGGREGATES)
    for n in (10, 20):
        assert all(0.9 < held[n, kind] <= 1 for kind in coverage.AGGREGATES)
    widths = {(n, kind): width for _, n, kind, _, width in rows}
    assert all(widths[20, kind] < widths[5, kind] for kind in coverage.AGGREGATES)


def test_stored_scores_stand_beside_new_runs(made, tmp_path):
    store(tmp_path / "b", "b", "Made-v0", np.random.default_rng(1).normal(size=60))
    coverage.main(coverage.Args((made / "page", tmp_path / "b"), tmp_path / "both", repetitions=10))
    assert "on 2 sets of scores" in interval_note.in_a_sentence(tmp_path / "both", 5)  # and not on both as tasks
    table = pd.read_csv(tmp_path / "both" / "seeds.csv")
    assert table.groupby("algorithm").size().to_dict() == {"a": 60, "b": 60}
    sources = json.loads((tmp_path / "both" / "sources.json").read_text())
    assert {config["algorithm"] for config in sources} == {"a", "b"}
    with pytest.raises(UserError, match="seed 0 of a on Made-v0 occurs twice at step 100"):
        coverage.main(coverage.Args((made / "page", made / "runs"), tmp_path / "page", repetitions=10))


@pytest.mark.parametrize(("values", "said"), [(range(9), "there are 9 seeds"), ([1.0] * 60, "the same score")])
def test_scores_that_tell_nothing_are_refused(values, said, tmp_path):
    store(tmp_path / "runs", "a", "Made-v0", list(values))
    with pytest.raises(UserError, match=said):
        coverage.main(coverage.Args((tmp_path / "runs",), tmp_path / "page"))


def test_settings_of_one_process_are_paired_in_a_report(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], {"tau": [0.1, 0.2]})
    results = results_of(tmp_path)
    (one,) = comparisons(results)
    assert one.test == "paired" and one.a != one.b
    part = decision_part(results, [one], False)
    assert "see Looks" in decision_part(results, [one], True).text and "see Looks" not in part.text
    (_, table), *_ = part.tables
    assert table.rows[0][table.columns.index("test")][0] == "paired"


def test_other_algorithms_are_not(tmp_path):
    for name in ("a", "b"):
        store(tmp_path, name, "Made-v0", np.arange(5.0))
    (one,) = comparisons(results_of(tmp_path))
    assert one.test == "Welch" and one.correlation == pytest.approx(1.0) and one.p == 1.0


def test_only_settings_of_the_same_process_are_paired(tmp_path):
    synthetic.vary(tmp_path / "one", "iql", ["Hopper-v5"], {"tau": [0.1, 0.2]})
    synthetic.vary(tmp_path / "two", "iql", ["Hopper-v5"], {"tau": [0.3, 0.4]})
    store(tmp_path, "bc", "Hopper-v5", np.arange(5.0) * 100)
    results = analysis.compute(load([tmp_path], mix=True), None, "last", 50)
    tests = {frozenset({one.a[-4:-1], one.b[-4:-1]}): one.test for one in comparisons(results)}
    together = {frozenset({"0.1", "0.2"}), frozenset({"0.3", "0.4"})}
    assert {pair for pair, test in tests.items() if test == "paired"} == together
    assert {test for pair, test in tests.items() if pair not in together} == {"Welch"}


def test_shares_and_advice_are_those_of_the_variances(tmp_path):
    """Three evaluations count, of two episodes each; seconds are those of a run, and of one more episode in each."""
    rng, rows = np.random.default_rng(0), []
    for seed in range(5):
        for step in (0, 60, 95, 98, 100):
            level = 100 + 20 * rng.normal()
            rows += [(seed, step, episode, level + 10 * rng.normal()) for episode in range(2)]
    table = pd.DataFrame(rows, columns=["seed", "step", "episode", "return"])
    synthetic.store(tmp_path, "a", table, "Made-v0", evaluation_seconds=20.0)
    results = results_of(tmp_path)
    late = results.scores.table.query("step > 90")
    means, spreads = (late.pivot(index="seed", columns="step", values=n).to_numpy() for n in ("return", "episode_std"))
    found = split(means, spreads**2, 2)
    variances = np.array([found.seeds, found.checkpoints / 3, found.episodes / 6])
    (row,) = variance_part(results, 0.05).tables[0][1].rows
    for cell, share in zip(row[2:5], 100 * variances / variances.sum(), strict=True):
        assert cell[0] == f"{share:.0f}"
    tasks = results.tasks.query("score == 'mean'").iloc[0]
    assert row[5][1] == pytest.approx(tasks["high"] - tasks["mean"])
    assert costs_of(results)["Made-v0", "a"] == (12.0, 2.0)
    seeds, episodes = advice(found, 0.05 * found.mean, 12.0, 2.0)
    assert [cell[0] for cell in row[6:]] == [f"{seeds:,} × {episodes:,}", "5", "3 × 2"]
    wide, most = variance_part(results, 0.125), advice(found, 0.125 * found.mean, 12.0, 2.0)
    assert wide.tables[0][1].rows[0][6][0] == f"{most[0]:,} × {most[1]:,}" and most[0] < seeds
    assert "an interval of ±12.5% of the mean" in wide.text


def test_a_seed_that_diverged_tells_nothing_of_variance(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        (seed, step, episode, 100 + 10 * rng.normal())
        for seed in range(6) for step in (0, 92, 94, 96, 98, 100) for episode in range(2)
        if seed < 5 or step <= 92
    ]  # fmt: skip
    table, lost = pd.DataFrame(rows, columns=["seed", "step", "episode", "return"]), [{"seed": 5, "step": 93}]
    synthetic.store(tmp_path / "with", "a", table, "Made-v0", diverged=lost)
    synthetic.store(tmp_path / "without", "a", table[table["seed"] < 5], "Made-v0")
    found, wanted = (variance_part(results_of(tmp_path / name), 0.05) for name in ("with", "without"))
    assert found.tables[0][1].rows[0][2:5] == wanted.tables[0][1].rows[0][2:5]
    assert "Seeds that diverged are left out" in found.text and "diverged" not in wanted.text


def test_where_scores_are_of_training_there_is_no_advice_on_episodes(tmp_path):
    """Their number is that of the episodes which end between two evaluations."""
    rng = np.random.default_rng(0)
    rows = [(s, step, e, 100 + 10 * rng.normal()) for s in range(5) for step in (0, 95, 100) for e in range(3)]
    table = pd.DataFrame(rows, columns=["seed", "step", "episode", "return"])
    for count in (0, 3):
        identity = {"total_steps": 100, "eval_episodes": count, "eval_every": 10, "seeds": list(range(5))}
        synthetic.store(tmp_path / str(count), "a", table, "Made-v0", identity=identity, evaluation_seconds=20.0)
    trained, played = (variance_part(results_of(tmp_path / name), 0.05) for name in ("0", "3"))
    assert trained.tables[0][1].rows[0][6][0] == "–" and "those of training" in trained.text
    assert "×" in played.tables[0][1].rows[0][6][0] and "those of training" not in played.text


def test_seconds_are_shared_by_all_settings_of_a_process(tmp_path):
    grid = {"tau": [0.1, 0.2]}
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], grid, evaluation_seconds=20.0, phase_seconds=10.0)
    assert list(costs_of(results_of(tmp_path)).values()) == [(7.0, 2.0)] * 2


def test_a_report_says_what_lacks(tmp_path):
    rng = np.random.default_rng(0)
    store(tmp_path / "seeds", "a", "Made-v0", 100 + 30 * rng.normal(size=6), episodes=10, noise=1.0)
    store(tmp_path / "episodes", "a", "Made-v0", [100.0] * 6, episodes=10, noise=60.0)
    shares = {}
    for name in ("seeds", "episodes"):
        results = results_of(tmp_path / name)
        part = variance_part(results, 0.05)
        row = dict(zip(part.tables[0][1].columns, part.tables[0][1].rows[0], strict=True))
        shares[name] = float(row["seeds"][1]), float(row["episodes"][1])
        said = ["In 1 of 1 rows, most of the variance is in the column"] * (name == "seeds")
        assert [sentence[: len(said[0])] for sentence in part.sentences] == said
        assert row["checkpoints"][0] == ("–" if row["evaluations × episodes now"][0].startswith("1 ×") else "0")
        assert re.fullmatch(r"\d+ × [\d,]+", row["seeds × episodes of an evaluation needed"][0])
        assert costs_of(results)["Made-v0", "a"][0] == 10.0
    assert shares["seeds"][0] > 95 and shares["episodes"][1] > 60


def test_without_single_episodes_nothing_is_said(tmp_path):
    store(tmp_path, "a", "Made-v0", range(6))
    assert variance_part(results_of(tmp_path), 0.05) is None
