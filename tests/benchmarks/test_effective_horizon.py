"""The page that puts sample complexities on tables beside each other."""

import json

import gorp
import numpy as np
import pandas as pd
import pytest
import sqirl

from algos.errors import UserError
from benchmarks.effective_horizon import Args, main
from benchmarks.sample_complexity import (
    Study,
    correlate,
    exact_row,
    medians_of,
    records,
    sample_complexities,
    spearman,
    steps_taken,
)
from benchmarks.scores import Scores
from envs.tabular.tasks import table_of

TASK = "tabular/gate-0.375"


def scores_of(curves):
    """Scores with one setting, `sqirl (k2)`: curves maps a seed to its returns at steps 0, 10, 20, …"""
    rows = [
        {"task": TASK, "algorithm": "sqirl (k2)", "seed": seed, "step": 10 * i, "episodes": 1, "return": value}
        for seed, values in curves.items()
        for i, value in enumerate(values)
    ]
    config = {"task": TASK, "algorithm": "sqirl", "variant": "k2", "args": {"k": 2, "total_steps": 20}, "folder": "a"}
    config |= {"seeds": list(curves), "taken": [10 * len(values) for values in curves.values()]}
    scores = Scores.__new__(Scores)
    scores.table, scores.sources = pd.DataFrame(rows), [config]
    return scores


def test_a_seed_has_solved_a_task_at_the_first_step_at_its_threshold():
    found = sample_complexities(scores_of({0: [1.0, 0.2, 0.9], 1: [0.0, 0.95, 0.1], 2: [1.0, 0.0, 0.0]}), {TASK: 0.9})
    assert found.set_index("seed")["samples"].tolist() == [20, 10, np.inf]  # step 0 does not count
    assert set(found["k"]) == {2} and set(found["steps"]) == {20}
    assert found.set_index("seed")["untrained"].tolist() == [True, False, True]


def test_what_is_solved_beyond_the_budget_is_not_solved():
    found = sample_complexities(scores_of({0: [0.0, 0.2, 0.3, 0.9], 1: [0.0, 0.2, 0.9, 0.9]}), {TASK: 0.9})
    assert found.set_index("seed")["samples"].tolist() == [np.inf, 20]


def test_a_seed_has_the_budget_of_its_own_process():
    scores = scores_of({0: [0.0, 0.2, 0.3, 0.9], 1: [0.0, 0.2, 0.3, 0.9]})
    (config,) = scores.sources
    each = [
        config | {"seeds": [seed], "identity": {"seeds": [seed]}, "taken": [30], "folder": str(seed)} for seed in (0, 1)
    ]
    each[1]["args"] = config["args"] | {"total_steps": 30}
    for order in (each, each[::-1]):
        scores.sources = order
        found = sample_complexities(scores, {TASK: 0.9}).set_index("seed")
        assert found["samples"].tolist() == [np.inf, 30] and found["steps"].tolist() == [20, 30]


def test_stored_scores_are_those_from_which_every_sample_complexity_follows():
    scores = scores_of({0: [1.0, 0.2, 0.2, 0.9, 0.5], 1: [0.0, 0.9, 0.95, 0.1, 0.1]})
    kept = records(scores.table)
    steps = {0: [0, 10, 30, 40], 1: [0, 10, 20, 40]}
    assert {seed: rows["step"].tolist() for seed, rows in kept.groupby("seed")} == steps
    scores.sources[0]["args"]["total_steps"] = 40
    for threshold in np.linspace(0, 1, 21):
        whole = sample_complexities(scores, {TASK: threshold})
        part = Scores.__new__(Scores)
        part.table, part.sources = kept, scores.sources
        pd.testing.assert_frame_equal(sample_complexities(part, {TASK: threshold}), whole)


def test_spearman_is_that_of_ranks_and_has_an_interval():
    x = np.array([1.0, 2, 3, 4, 5, 6])
    assert spearman(x, np.exp(x)) == pytest.approx((1.0, 1.0, 1.0))
    value, low, high = spearman(x, np.array([2.0, 1, 4, 3, 6, 5]))
    assert value == pytest.approx(29 / 35) and low < value <= high
    assert np.isnan(spearman(x, np.ones(6))[0]) and np.isnan(spearman(x[:3], x[:3])[0])


def test_what_is_not_solved_counts_at_the_budget_or_not_at_all():
    tasks = pd.DataFrame({"task": list("abcdef"), "N ppo": [10.0, 20, 30, 40, 50, np.inf]})
    tasks["N dqn"] = [1.0, 2, 3, 4, np.inf, 5]
    tasks["J* - J_1"] = [0, 0, 0, 0, 0.5, 1]
    tasks["min_k discounted"], tasks["gap at k = 1"] = [1.0, 1, 1, 1, 2, 3], [0.5, 0.4, 0.3, 0.2, 0, 0]
    table = correlate(Study(pd.DataFrame(), tasks, dict.fromkeys("abcdef", 100), ["dqn", "ppo"]))
    rows = table[(table["a"] == "dqn") & (table["b"] == "ppo")].set_index("tasks")
    assert rows["n"].to_dict() == {"solved": 4, "unsolved at the budget": 6}
    assert rows.loc["solved", "value"] == 1
    assert rows.loc["unsolved at the budget", "value"] == pytest.approx(1 - 6 * (1 + 1) / (6 * 35))


def test_a_page_is_made_of_runs_on_tables(tmp_path):
    common = {"quiet": True, "device": "cpu", "out": tmp_path / "runs", "seeds": ("0:3",), "eval_every": 200}
    common |= {"stop_when_solved": True}
    for d in ("0.0625", "0.375"):
        task = {"env_id": f"tabular/gate-{d}", "total_steps": 5_000}
        sqirl.main(sqirl.Args(**common, **task, form="table", k=3, m=64, variant="k3_m64"))
        sqirl.main(sqirl.Args(**common, **task, form="table", k=1, m=64, variant="k1_m64"))
        gorp.main(gorp.Args(**common, **task, k=1, m=128, variant="k1_m128"))
    main(Args((tmp_path / "runs",), tmp_path / "page"))
    tasks = pd.read_csv(tmp_path / "page" / "tasks.csv").set_index("task")
    assert tasks["min_k"].tolist() == [1, 3]
    assert np.isfinite(tasks["N sqirl"]).all()
    assert tasks["N sqirl, k = 1"].tolist()[1] == np.inf  # more data do not help where k is too small
    assert np.isfinite(tasks.loc["tabular/gate-0.0625", "N gorp"])
    text = (tmp_path / "page" / "page.md").read_text()
    assert "| gate-0.375 |" in text and "∞" in text
    assert "at most 5% of J* - J_random" in text and "| gorp | 3 | 1.0 |" in text
    assert "bootstrap replications over tasks" in (tmp_path / "page" / "page.html").read_text()
    assert (tmp_path / "page" / "figures" / "gorp_sqirl.png").exists()
    main(Args((tmp_path / "page",), tmp_path / "again"))  # from what is stored
    for name in ("tasks.csv", "samples.csv", "correlations.csv", "scores.csv", "page.md"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "page" / name).read_text()


def test_runs_that_stopped_at_a_tolerance_know_nothing_of_a_smaller_one(tmp_path):
    with pytest.raises(UserError, match=r"--tolerance must lie in \[0\.05, 1\]"):
        main(Args((tmp_path / "runs",), tmp_path / "page", tolerance=0.01))


def test_seeds_that_solve_a_task_untrained_are_left_out():
    lucky, slow, never = [1.0, 0.9], [0.0, 0.2, 0.9], [0.0, 0.2, 0.2]
    cases = [([lucky, slow, never, slow, slow], 20), ([lucky, slow, never, never, slow], np.inf)]
    for curves, median in [*cases, ([lucky, lucky, slow], None)]:
        samples = sample_complexities(scores_of(dict(enumerate(curves))), {TASK: 0.9})
        assert medians_of(samples)["samples"].tolist() == ([] if median is None else [median])


def test_steps_are_those_that_were_really_done():
    source = {"task": TASK, "algorithm": "dqn", "variant": "default", "folder": "a", "seeds": [3, 5]}
    source |= {"taken": [10, 20, 30, 40]}
    first, second = source | {"setting": {"lr": 0.1}}, source | {"setting": {"lr": 0.2}}
    taken = steps_taken([first, source | {"folder": "b", "variant": "b"}, second])
    assert [*taken.values()] == [{3: 10, 5: 20}, {3: 10, 5: 20}, {3: 30, 5: 40}]
    disordered = source | {"identity": {"seeds": [5, 3]}, "taken": [10, 20]}
    assert [*steps_taken([disordered]).values()] == [{5: 10, 3: 20}]
    with pytest.raises(UserError, match=r"^b: its configuration does not say the steps"):
        steps_taken([source | {"folder": "b", "taken": [10]}])


def test_runs_in_another_table_are_refused(tmp_path):
    common = {"quiet": True, "device": "cpu", "out": tmp_path, "total_steps": 100, "eval_every": 100}
    gorp.main(gorp.Args(**common, env_id=TASK, stop_when_solved=True))
    (path,) = tmp_path.rglob("config.json")
    config = json.loads(path.read_text())
    assert config["facts"] == {"table": table_of("gate-0.375").digest()}
    config["facts"]["table"] = "0123456789abcdef"
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"learned in another table tabular/gate-0\.375 \(0123456789abcdef\)"):
        main(Args((tmp_path,), tmp_path / "page"))
    again = gorp.Args(**common, env_id=TASK, stop_when_solved=True, resume=True)
    with pytest.raises(UserError, match=r"another configuration \(table: 0123456789abcdef there"):
        gorp.main(again)
    path.write_text(json.dumps(config | {"facts": {}}))
    gorp.main(again)  # early runs do not say it


def test_tables_whose_policies_are_all_equal_are_refused():
    with pytest.raises(UserError, match="the best policy is not better than random actions"):
        exact_row("tabular/chain-h3", 1.0)


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    common = {"quiet": True, "device": "cpu", "total_steps": 100, "eval_every": 100}
    gorp.main(gorp.Args(**common, env_id=TASK, out=tmp_path / "all steps"))
    with pytest.raises(UserError, match="this compares runs with --stop-when-solved"):
        main(Args((tmp_path / "all steps",), tmp_path / "page"))
    common |= {"out": tmp_path / "runs", "stop_when_solved": True}
    gorp.main(gorp.Args(**common, env_id=TASK, variant="a"))
    gorp.main(gorp.Args(**common, env_id=TASK, variant="b", discount=0.9))
    with pytest.raises(UserError, match=r"have different discounts: 0\.9, 1\.0"):
        main(Args((tmp_path / "runs",), tmp_path / "page"))
    common |= {"out": tmp_path / "other", "stop_when_solved": False}
    gorp.main(gorp.Args(**common, env_id="CartPole-v1"))
    with pytest.raises(UserError, match="CartPole-v1 is no table"):
        main(Args((tmp_path / "other",), tmp_path / "page"))
    assert not (tmp_path / "page").exists()


def test_runs_with_fewer_steps_do_not_change_what_the_others_needed(tmp_path):
    common = {"quiet": True, "device": "cpu", "out": tmp_path / "runs", "stop_when_solved": True, "env_id": TASK}
    long = {"seeds": ("0:3",), "form": "table", "k": 3, "m": 64, "total_steps": 5_000, "eval_every": 200}
    sqirl.main(sqirl.Args(**common, **long))
    main(Args((tmp_path / "runs",), tmp_path / "alone"))
    gorp.main(gorp.Args(**common, seeds=("0",), total_steps=100, eval_every=50))
    main(Args((tmp_path / "runs",), tmp_path / "both", tasks=(TASK,)))
    alone, both = (pd.read_csv(tmp_path / name / "samples.csv") for name in ("alone", "both"))
    assert np.isfinite(alone["samples"]).all()
    pd.testing.assert_frame_equal(both[both["algorithm"] == "sqirl"].reset_index(drop=True), alone)
    main(Args((tmp_path / "both",), tmp_path / "again"))
    assert (tmp_path / "again" / "samples.csv").read_text() == (tmp_path / "both" / "samples.csv").read_text()
    assert "intervals of so few" not in (tmp_path / "both" / "page.md").read_text()
    with pytest.raises(UserError, match=r"--tasks: no run is named 'tabular/gate'"):
        main(Args((tmp_path / "runs",), tmp_path / "page", tasks=("tabular/gate",)))
