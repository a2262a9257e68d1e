"""Sequential sweeps: the test against simulations and the package, and the batches that a sweep trains."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import small_suite
import synthetic

from algos.errors import UserError
from benchmarks import report, suite, sweep
from benchmarks.looks import FILE, entries_of, stored_looks, until_decided
from benchmarks.looks_part import looks_part
from benchmarks.plan import plan
from benchmarks.sequential import Sequential


def decision(a, b, batch=5, most=4, **more):
    """The decision of a test, and the look that made it."""
    test = Sequential(batch, most, **more)
    for number in range(1, most + 1):
        look = test.look(a[: number * batch], b[: number * batch])
        if look.decision != "not decided":
            return look.decision, number
    return "not decided", most


def test_equal_algorithms_are_told_apart_as_often_as_the_level_says():
    rng = np.random.default_rng(0)
    for draw in (rng.standard_normal, lambda n: rng.lognormal(size=n)):
        wrong = [decision(draw(20), draw(20), draws=2_000)[0] != "not decided" for _ in range(400)]
        assert np.mean(wrong) < 0.08


def test_a_difference_is_found_and_its_direction_right():
    rng = np.random.default_rng(0)
    found = [decision(rng.normal(1.5, 1, 20), rng.normal(0, 1, 20), draws=2_000) for _ in range(100)]
    assert np.mean([name == "better" for name, _ in found]) > 0.95
    assert 1 < np.mean([look for _, look in found]) < 3.5  # most need not go on to the end
    assert decision(np.zeros(20), np.arange(20.0) + 9)[0] == "worse"


def test_equal_scores_decide_nothing():
    assert decision(np.ones(20), np.ones(20))[0] == "not decided"
    assert decision(np.zeros(20), np.ones(20))[0] == "worse"


def test_a_look_takes_the_seeds_of_all_batches():
    test = Sequential(5, 2)
    for wrong in (np.ones(4), np.ones(10)):
        with pytest.raises(ValueError, match="needs 5 seeds"):
            test.look(wrong, wrong)


@pytest.mark.slow
def test_decisions_are_those_of_adastop_at_half_its_level():
    adastop = pytest.importorskip("adastop")
    rng = np.random.default_rng(0)
    same, of_package = [], []
    for _ in range(60):
        a, b = rng.normal(1.2, 1, 20), rng.normal(0, 1, 20)
        theirs = adastop.MultipleAgentsComparator(n=5, K=4, B=5_000, alpha=0.025, seed=1)
        for number in range(1, 5):
            theirs.partial_compare({"a": a[: 5 * number], "b": b[: 5 * number]}, verbose=False)
            if theirs.is_finished:
                break
        of_package.append(
            {"larger": "better", "smaller": "worse"}.get(next(iter(theirs.decisions.values())), "not decided")
        )
        same.append(decision(a, b)[0] == of_package[-1])
    assert np.mean(same) > 0.9 and of_package.count("better") > 40


# -- sweeps ------------------------------------------------------------------------------------------------------------

TWO = small_suite.SUITE + small_suite.SECOND


def trained(folder, gap, at_first=None):
    """A function that stores the runs of a suite's jobs, in which sac is ahead by `gap`, and notes their seeds.

    At step 0 it is ahead by `at_first`, if that is another number.
    """
    seen = []

    def train(part):
        jobs = plan(part, folder, 5, "cpu", {"threads": 1})
        for job in jobs:
            seen.append((job.args.variant, job.args.task, tuple(job.seeds)))
            rng = np.random.default_rng([*job.seeds, len(job.args.variant)])
            gaps = {0: gap if at_first is None else at_first, 1_000: gap}
            ahead = job.args.variant == "default"
            rows = [(seed, step, 0, ahead * more + rng.normal()) for seed in job.seeds for step, more in gaps.items()]
            table = pd.DataFrame(rows, columns=["seed", "step", "episode", "return"])
            if not (job.folder / "config.json").exists():
                place, variant = job.folder.parents[2], job.args.variant
                synthetic.store(place, "sac", table, job.args.task, variant, identity=job.identity)
                logged = pd.DataFrame([(job.seeds[0], 1, "x", 0.0)], columns=["seed", "step", "metric", "value"])
                logged.to_parquet(job.folder / "train.parquet", write_page_checksum=True)
        return plan(part, folder, 5, "cpu", {"threads": 1}), True

    return train, seen


@pytest.fixture
def pair(tmp_path):
    return suite.read(small_suite.write(tmp_path, TWO))


@pytest.mark.parametrize(("most_seeds", "decides"), [(29, True), (30, False)])
def test_the_first_of_many_looks_at_five_seeds_cannot_decide(most_seeds, decides):
    """As the help of `--max-seeds` says, however far apart the scores are."""
    found = Sequential(5, most_seeds // 5).look(100 + np.arange(5.0), np.arange(5.0))
    assert (found.decision == "better") == decides


def test_batches_are_added_until_it_is_clear(tmp_path, pair, capsys):
    train, seen = trained(tmp_path / "out", 30.0)
    until_decided(pair, tmp_path / "out", 5, 20, train)
    (looks,) = json.loads((tmp_path / "out" / FILE).read_text())
    taken = looks["tasks"]["InvertedPendulum-v5"]
    assert taken[-1]["decision"] == "better" and len(taken) < 4 and looks["level"] == 0.05
    assert {seeds for *_, seeds in seen} == {tuple(range(5 * i, 5 * i + 5)) for i in range(len(taken))}
    assert "sac is better than other" in capsys.readouterr().out


def test_the_budget_ends_what_is_not_decided(tmp_path, pair):
    train, _ = trained(tmp_path / "out", 0.0)
    until_decided(pair, tmp_path / "out", 5, 10, train)
    sources = [{"algorithm": "sac", "variant": variant} for variant in ("default", "other")]
    tasks = ["InvertedPendulum-v5"]
    (looks,) = stored_looks((tmp_path / "out",), SimpleNamespace(sources=sources, tasks=tasks, files={}))
    assert [look["decision"] for look in looks["tasks"]["InvertedPendulum-v5"]] == ["not decided"] * 2
    (sentence,) = looks_part([looks]).sentences
    assert sentence.endswith("nothing was decided before the budget was spent, after 10 seeds of each.")
    (tmp_path / "out" / "report").mkdir()  # a report keeps a copy
    (tmp_path / "out" / "report" / FILE).write_text(json.dumps([looks]))
    assert stored_looks((tmp_path / "out",), SimpleNamespace(sources=sources, tasks=tasks, files={})) == [looks]
    before = {task: taken[:1] for task, taken in looks["tasks"].items()}  # and one that was made before the last look
    (tmp_path / "out" / "report" / FILE).write_text(json.dumps([{**looks, "tasks": before}]))
    assert stored_looks((tmp_path / "out",), SimpleNamespace(sources=sources, tasks=tasks, files={})) == [looks]
    for fewer in ({"sources": sources[:1], "tasks": tasks}, {"sources": sources, "tasks": ["Hopper-v5"]}):
        assert not stored_looks((tmp_path / "out",), SimpleNamespace(**fewer, files={}))


def test_the_same_command_goes_on_where_it_was(tmp_path, pair):
    train, seen = trained(tmp_path / "out", 30.0)
    until_decided(pair, tmp_path / "out", 5, 20, train)
    looks, count = (tmp_path / "out" / FILE).read_text(), len(seen)
    until_decided(pair, tmp_path / "out", 5, 20, train)
    assert (tmp_path / "out" / FILE).read_text() == looks and seen[:count] == seen[count:]


def test_another_plan_is_refused(tmp_path, pair):
    train, _ = trained(tmp_path / "out", 30.0)
    tasks = 'tasks = ["InvertedPendulum-v5", "Hopper-v5"]'
    two = suite.read(small_suite.write(tmp_path, TWO.replace('tasks = ["InvertedPendulum-v5"]', tasks)))
    until_decided(two, tmp_path / "out", 5, 20, train)
    (looks,) = json.loads((tmp_path / "out" / FILE).read_text())
    assert looks["level"] == 0.025 and set(looks["tasks"]) == set(two.tasks)  # the level is that of all tasks
    for taken in looks["tasks"].values():  # a quarter of it is less than 2 / 252, and a quarter of 0.05 is more
        assert [look["decision"] for look in taken[:2]] == ["not decided", "better"]
    others = (
        (pair, 5, 20),
        (replace(two, score="best"), 5, 20),
        (two, 4, 20),
        (two, 5, 25),
        (replace(two, seeds=[9]), 5, 20),
    )
    for other, batch, most in others:
        with pytest.raises(UserError, match="another plan would look once more"):
            until_decided(other, tmp_path / "out", batch, most, train)
    del looks["first"]  # as earlier versions stored it
    (tmp_path / "out" / FILE).write_text(json.dumps([looks]))
    until_decided(two, tmp_path / "out", 5, 20, train)


def test_the_score_and_the_first_seed_are_those_of_the_suite(tmp_path, pair):
    """Here all seeds of `sac` are better at first and worse in the end."""
    train, seen = trained(tmp_path / "out", -30.0, at_first=100.0)
    until_decided(replace(pair, score="best", seeds=[7]), tmp_path / "out", 5, 20, train)
    (looks,) = json.loads((tmp_path / "out" / FILE).read_text())
    assert looks["tasks"]["InvertedPendulum-v5"][-1]["decision"] == "better"
    assert seen[0][-1] == tuple(range(7, 12))


def test_a_sweep_takes_the_numbers_of_seeds_that_it_was_given(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(sweep, "until_decided", lambda suite, out, size, most, train: given.append((size, most)))
    path = small_suite.write(tmp_path, TWO)
    for flags in ({"max_seeds": 20, "seeds_per_look": 4}, {}):
        sweep.main(sweep.Args(str(path), out=tmp_path / "out", until_decided=("sac", "other"), device="cpu", **flags))
    assert given == [(4, 20), (5, 50)]


def test_a_failed_batch_ends_the_looks(tmp_path, pair):
    until_decided(pair, tmp_path, 5, 20, lambda part: ([], False))
    assert not (tmp_path / FILE).exists()


def test_a_report_says_which_looks_were_taken_and_can_be_made_again(tmp_path, pair):
    train, _ = trained(tmp_path / "out", 30.0)
    until_decided(pair, tmp_path / "out", 5, 20, train)
    for folder, out in ((tmp_path / "out", tmp_path / "report"), (tmp_path / "report", tmp_path / "again")):
        synthetic.tabulate(report.Args((folder,), out, references="raw", formats=(), page=False, replications=50))
    page = (tmp_path / "report" / "report.md").read_text()
    assert "## Looks" in page and "sac is better than other" in page
    assert page == (tmp_path / "again" / "report.md").read_text()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("sac",), "takes the names of two algorithms"),
        (("sac", "sac"), "takes the names of two algorithms"),
        (("sac", "td3"), "has no algorithm 'td3'; it has sac, other"),
    ],
)
def test_other_names_are_refused(names, said, pair):
    with pytest.raises(UserError, match=said):
        entries_of(pair, names)


def test_settings_are_refused(tmp_path):
    varied = suite.read(small_suite.write(tmp_path, small_suite.VARIED + small_suite.SECOND))
    with pytest.raises(UserError, match="sac has several settings"):
        entries_of(varied, ("sac", "other"))
