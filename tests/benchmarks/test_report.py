"""From run folders to the tables and the page of a report."""

import functools
import http.server
import json
import re
import shutil
import signal
import subprocess
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import synthetic
import tyro
from PIL import Image
from synthetic import TASKS, store

from algos.errors import UserError
from benchmarks import analysis, figures, index, parts, report, scores, suite
from benchmarks.decision_part import comparisons, decision_part
from benchmarks.load_scores import load
from benchmarks.protocols import package_of
from benchmarks.variants_part import variants_part

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def table(returns: dict[int, dict[int, list[float]]]) -> pd.DataFrame:
    """Evaluations returns[step][seed] = the episodes' returns."""
    rows = [
        (seed, step, episode, value)
        for step, seeds in returns.items()
        for seed, episodes in seeds.items()
        for episode, value in enumerate(episodes)
    ]
    return pd.DataFrame(rows, columns=["seed", "step", "episode", "return"])


def make(folder, out, built=False, **flags) -> analysis.Results:
    """Makes a report, and gives its numbers; figures that it does not draw are made only if they are to be `built`."""
    args = report.Args((folder,), out, replications=50, **{"formats": (), "page": False} | flags)
    made: list[analysis.Results] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "compute", lambda *given: made.append(analysis.compute(*given)) or made[0])
        (report.main if args.formats or args.page or built else synthetic.tabulate)(args)
    return made[0]


def ten(*values: float) -> dict[int, dict[int, list[float]]]:
    """Eleven evaluations of one seed, the last three as given."""
    return {step: {0: [value]} for step, value in zip(range(0, 101, 10), [*[0.0] * 8, *values], strict=True)}


# -- scores -----------------------------------------------------------------------------------------------------------


def test_the_four_final_scores():
    frame = table({step: {0: [float(step)] if step != 90 else [500.0]} for step in range(0, 201, 5)})
    frame = frame.assign(task="T", algorithm="a").drop(columns="episode")
    (row,) = scores.final_scores(frame).to_dict("records")  # the last 10%: 185, 190, 195, 200
    assert (row["last"], row["mean"], row["max"]) == (200.0, 192.5, 200.0)
    frame.loc[frame["step"] == 190, "return"] = 900.0
    frame.loc[frame["step"] == 180, "return"] = 9_000.0  # too early
    (row,) = scores.final_scores(frame).to_dict("records")
    assert (row["last"], row["max"], row["best"]) == (200.0, 900.0, 9_000.0)


def test_a_seed_without_late_evaluations_is_scored_by_its_last():
    frame = table({2_000: {0: [1.0]}, 3_500: {1: [2.0]}, 6_000: {0: [3.0]}, 7_000: {1: [4.0]}})
    frame = frame.assign(task="T", algorithm="a").drop(columns="episode")
    assert scores.final_scores(frame)["last"].tolist() == [3.0, 4.0]


def test_algorithms_on_most_tasks_come_first_and_then_those_with_the_better_ranks():
    rows = [("half", "T", 9.0), ("low", "T", 1.0), ("low", "U", 2.0), ("high", "T", 3.0), ("high", "U", 3.0)]
    tasks = pd.DataFrame(rows, columns=["algorithm", "task", "mean"]).assign(score="last")
    assert analysis.ranking(tasks, "last") == ["high", "low", "half"]


def test_an_evaluation_is_the_mean_of_its_episodes(tmp_path):
    store(tmp_path, "a", table({0: {0: [0.0]}, 10: {0: [1.0, 3.0], 1: [4.0, 8.0]}}), "Hopper-v5")
    evaluations = load([tmp_path]).table
    row = evaluations[(evaluations["step"] == 10) & (evaluations["seed"] == 1)].iloc[0]
    assert (row["return"], row["episodes"]) == (6.0, 2)


def test_a_diverged_seed_counts_with_the_score_that_it_had_and_is_listed(tmp_path):
    frame = table({0: {0: [0.0], 1: [0.0]}, 10: {0: [1.0], 1: [4.0]}, 20: {1: [8.0]}})
    store(tmp_path, "a", frame, "Hopper-v5", status="diverged", diverged={"0": 15})
    loaded = load([tmp_path])
    final = scores.final_scores(loaded.table).set_index("seed")["last"]
    assert final.to_dict() == {0: 1.0, 1: 8.0}
    assert any("Seed 0 of a on Hopper-v5 diverged before step 15" in note for note in loaded.notes)


@pytest.mark.parametrize("together", [True, False])
def test_a_seed_that_diverged_before_it_was_evaluated_is_left_out_however_seeds_were_trained(tmp_path, together):
    """It has the return of its untrained policy, before the first update."""
    frame = table({0: {s: [1_000.0] for s in range(3)}, 50: {0: [1.0], 1: [2.0]}, 100: {0: [3.0], 1: [4.0]}})
    lost = {"status": "diverged", "diverged": [{"seed": 2, "step": 4}]}
    parts = [([0, 1, 2], lost)] if together else [([0], {}), ([1], {}), ([2], lost)]
    for seeds, entries in parts:
        store(tmp_path / str(seeds), "a", frame[frame["seed"].isin(seeds)], "Hopper-v5", **entries)
    loaded = load([tmp_path])
    final = scores.final_scores(loaded.table)
    assert dict(zip(final["seed"], final["last"], strict=True)) == {0: 3.0, 1: 4.0}
    assert any("diverged before step 4" in note and "left out" in note for note in loaded.notes)


def test_seeds_without_a_score_are_named(tmp_path):
    """Seed 2 ended no episode, and seed 3 only after the step at which seed 0 was interrupted."""
    frame = table({step: {s: [float(step)] for s in (0, 1)} for step in (10, 20)})
    identity = {"total_steps": 40, "eval_episodes": 0, "eval_every": 10, "seeds": [0, 1, 2]}
    store(tmp_path / "a", "a", frame, "Hopper-v5", identity=identity)
    store(tmp_path / "b", "a", table({30: {3: [5.0]}}), "Hopper-v5", identity=identity | {"seeds": [3, 4]})
    notes = [note for note in load([tmp_path]).notes if "no score" in note]
    assert notes == [
        "Seed 2 of a on Hopper-v5 has no score by step 20, and is left out.",
        "Seeds 3, 4 of a on Hopper-v5 have no score by step 20, and are left out.",
    ]
    (alone,) = (note for note in load([tmp_path / "b"]).notes if "no score" in note)
    assert alone == "Seed 4 of a on Hopper-v5 has no score by step 30, and is left out."


def test_an_algorithm_whose_seeds_all_diverged_stays_in_the_report(tmp_path):
    whole = table({step: {0: [float(step)], 1: [2.0 * step]} for step in range(0, 101, 10)})
    store(tmp_path / "in", "a", whole, "Hopper-v5")
    identity = {"total_steps": 100, "eval_episodes": 2, "eval_every": 10}
    lost = {"status": "diverged", "diverged": {"0": 31, "1": 31}, "identity": identity}
    store(tmp_path / "in", "b", whole[whole["step"] <= 30], "Hopper-v5", **lost)
    results = make(tmp_path / "in", tmp_path / "out", references="d4rl", page=True)
    means = results.tasks.set_index(["algorithm", "score"])["mean"]
    assert means["a", "last"] == 150.0 and means["b", "last"] == 45.0 == means["b", "max"]


def test_a_verdict_says_that_runs_without_a_score_do_not_count(tmp_path):
    frame = table({step: {seed: [float(seed)] for seed in range(8)} for step in range(0, 101, 10)})
    store(tmp_path / "in", "a", frame, "Hopper-v5")
    identity = {"total_steps": 100, "eval_episodes": 2, "eval_every": 10, "seeds": list(range(8))}
    lost = {"identity": identity, "diverged": {"6": 3, "7": 5}}
    store(tmp_path / "in", "b", frame[frame["seed"] < 6].assign(**{"return": 50.0}), "Hopper-v5", **lost)
    make(tmp_path / "in", tmp_path / "out", built=True)
    said = (tmp_path / "out" / "report.md").read_text()
    assert "a is worse than b" in said and "without 2 runs of b that diverged before any score" in said
    assert "An interval without width says that all seeds have the same score" in said


def test_a_verdict_counts_processes_that_diverged_before_any_score(tmp_path):
    """A process for each seed; also in a report that is made of a report."""
    identity = {"total_steps": 100, "eval_episodes": 2, "eval_every": 10}
    for seed in range(8):
        for name in "ab":
            frame = table({step: {seed: [seed + 50.0 * (name == "b")]} for step in range(0, 101, 10)})
            lost = name == "b" and seed > 5
            how = {"status": "diverged", "diverged": {str(seed): 3}} if lost else {}
            how |= {"identity": identity | {"seeds": [seed]}}
            store(
                tmp_path / "in" / f"seed_{seed}", name, frame[frame["step"] == 0] if lost else frame, "Hopper-v5", **how
            )
    told = {"suite": "s", "purpose": "p", "command": "c", "commit": None, "date": "2026-01-01"}
    told |= {"cells": [("a", "Hopper-v5"), ("b", "Hopper-v5")], "seeds": list(range(8))}
    (tmp_path / "in" / "sweep.json").write_text(json.dumps(told))
    make(tmp_path / "in", tmp_path / "out", built=True)
    make(tmp_path / "out", tmp_path / "again")
    for folder in ("out", "again"):
        told = (tmp_path / folder / "report.md").read_text()
        assert "after correction; without 2 runs of b that diverged before any score)" in told
        assert "not finished" not in told


def test_a_return_that_is_no_number_is_a_divergence(tmp_path):
    frame = table({step: {0: [float(step)], 1: [np.nan if step >= 50 else 7.0]} for step in range(0, 101, 10)})
    store(tmp_path, "a", frame, "Hopper-v5")
    loaded = load([tmp_path])
    assert scores.final_scores(loaded.table).set_index("seed")["last"].to_dict() == {0: 100.0, 1: 7.0}
    assert any("Seed 1 of a on Hopper-v5 diverged before step 50" in note for note in loaded.notes)


def test_a_run_that_has_only_begun_is_left_out_and_that_is_said(tmp_path):
    store(tmp_path / "in", "a", table(ten(1, 2, 3)), "Hopper-v5")
    store(tmp_path / "in", "b", table({0: {0: [1.0]}}), "Hopper-v5", status="running")
    (store(tmp_path / "in", "c", table({0: {0: [1.0]}}), "Hopper-v5", status="running") / "eval.parquet").unlink()
    results = make(tmp_path / "in", tmp_path / "out", built=True, references="d4rl")
    assert set(results.tasks["algorithm"]) == {"a"}
    assert sum("no evaluation after step 0" in note for note in results.scores.notes) == 2


def test_a_setting_that_diverged_before_it_was_scored_is_said_to_have_diverged(tmp_path):
    store(tmp_path / "in", "a", table(ten(1, 2, 3)), "Hopper-v5")
    folder = store(tmp_path / "in", "b", table({0: {0: [1.0], 1: [1.0]}}), "Hopper-v5", status="diverged")
    config = json.loads((folder / "config.json").read_text())
    config["diverged"] = [{"seed": 0, "step": 40}, {"seed": 1, "step": 60}]
    (folder / "config.json").write_text(json.dumps(config))
    results = make(tmp_path / "in", tmp_path / "out", built=True, references="d4rl")
    said = "no evaluation after step 0 in .*, and is left out: seeds 0, 1 diverged before step 60"
    assert any(re.search(said, note) for note in results.scores.notes)


def test_what_is_not_finished_can_be_left_out(tmp_path):
    store(tmp_path, "a", table(ten(1, 2, 3)), "Hopper-v5")
    store(tmp_path, "b", table({0: {0: [1.0]}, 10: {0: [2.0]}}), "Hopper-v5", status="interrupted")
    assert load([tmp_path], mix=True).table["step"].max() == 10
    loaded = load([tmp_path], finished_only=True)
    assert loaded.table["step"].max() == 100 and loaded.algorithms == ["a"]
    assert "b on Hopper-v5 is not finished, and is left out." in loaded.notes
    for name, task in (("b", "Ant-v5"), ("a", "Ant-v5"), ("c", "Ant-v5"), ("c", "Hopper-v5")):
        store(tmp_path, name, table({0: {0: [1.0]}, 10: {0: [2.0]}}), task, status="interrupted")
    (note,) = [note for note in load([tmp_path], finished_only=True).notes if "left out" in note]
    assert note == "a on Ant-v5; b, c on Ant-v5, Hopper-v5 are not finished, and are left out."
    (note,) = [note for note in load([tmp_path], finished_only=True, algorithms=["a"]).notes if "left out" in note]
    assert note == "a on Ant-v5 is not finished, and is left out."
    store(tmp_path, "d", table({0: {0: [1.0]}}), "Ant-v5", status="interrupted")  # also before its first evaluation
    (note,) = [note for note in load([tmp_path], finished_only=True).notes if "left out" in note]
    assert note == "a, d on Ant-v5; b, c on Ant-v5, Hopper-v5 are not finished, and are left out."


def test_a_report_names_its_code_and_keeps_the_suites_that_are_not_shipped(tmp_path, monkeypatch):
    rows = table({step: {0: [1.0], 1: [2.0]} for step in (0, 100)})
    for name, content in (("mine", "a = 1"), ("other", "a = 2"), ("smoke", None)):
        place = tmp_path / name
        versions = {"gymnasium": "1", "mujoco": "3"}
        early = {"until": 5, "commit": "early", "versions": {"torch": "1"}, "device": "GPU"}
        before = [early, {"until": 9, "commit": "early", "versions": None}] if name == "mine" else []
        origin = {"commit": name, "versions": versions, "device": "CPU", "before": before}
        store(place / "seeds_0-1", name, rows, "Hopper-v5", **origin)
        shipped = (suite.BENCHMARKS / "suites" / "smoke.toml").read_text()
        (place / "suite.toml").write_text(content or shipped)
        said = {
            "suite": "smoke" if name == "smoke" else "mine",
            "purpose": "",
            "command": "c",
            "commit": None,
            "date": "",
        }
        (place / "sweep.json").write_text(json.dumps(said))
    out, again = tmp_path / "out", tmp_path / "again"

    def suites(to: Path, *folders: str) -> dict[str, str]:
        words = [*(str(tmp_path / name) for name in folders), "--out", str(to), "--no-page", "--references", "raw"]
        report.main(tyro.cli(report.Args, args=[*words, "--replications", "50", "--formats"]))
        last = (to / "report.md").read_text().splitlines()[-1]
        assert last == "Trained by commits early, mine, other, smoke, with gymnasium 1, mujoco 3, torch 1, on CPU; GPU."
        return {path.name: path.read_text() for path in to.glob("suites/*")}

    both = {"mine.toml": "a = 1", "mine_2.toml": "a = 2"}
    assert suites(out, "mine", "other", "smoke") == suites(again, "out") == both
    (tmp_path / "mine" / "suite.toml").write_text("a = 3")  # that of the earlier report is not kept
    assert suites(out, "mine", "other", "smoke") == both | {"mine.toml": "a = 3"}


def test_one_file_of_data_on_two_machines_is_one_task(tmp_path):
    rows = table({step: {0: [1.0]} for step in (0, 100)})
    for number, (folder, digest) in enumerate((("/a", "1"), ("/b", "1"), ("/c", "2"))):
        path = f"{folder}/mine.hdf5"
        own = rows.assign(seed=number)
        identity = {"dataset": path, "seeds": [number]}
        facts = {"dataset_digest": digest, "digest": folder}  # the latter with an expert's data
        place = store(tmp_path / folder[1:], folder[1:], own, "data", facts=facts, identity=identity)
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps(config | {"task": path, "env_id": ""}))
    assert load([tmp_path / "a", tmp_path / "b"]).table["task"].unique() == ["mine.hdf5"]
    assert load([tmp_path]).table["task"].nunique() == 3  # another file of that name keeps all apart


def test_seeds_that_other_code_trained_are_told_apart(tmp_path):
    """Of one algorithm on one task, also where a process went on with other code than it began with."""

    def trained(seed: int, name: str = "a", **origin: Any) -> list[str]:
        rows = table({step: {seed: [1.0]} for step in (0, 100)})
        store(tmp_path / f"{name}{seed}", name, rows, "Hopper-v5", **origin)
        return [note for note in load([tmp_path]).notes if "same code" in note]

    first = {"commit": "x+", "script_digest": "1"}
    for seed in range(3):
        assert not trained(seed, **first)
    assert not trained(0, "b", commit="y", script_digest="2")  # another algorithm
    (note,) = trained(3, commit="y", script_digest="1", versions={"gymnasium": "1", "mujoco": "3", "torch": "2.13"})
    how = "seeds 0-2 by commit x+ and torch 2; seed 3 by commit y and torch 2.13"
    assert note == f"Not all of a on Hopper-v5 was trained by the same code: {how}."
    shutil.rmtree(tmp_path / "a3")
    early = {"until": 50_000, "commit": "x+", "script_digest": "2"}
    back = first | {"until": 70_000}
    (note,) = trained(4, **first | {"script_digest": "2"}, before=[early, early | {"until": 60_000}, back])
    after = "seed 4 by script 2 until step 60,000, then by script 1 until step 70,000, then by script 2."
    assert f"seeds 0-2 by script 1; {after}" in note


def test_a_file_of_data_is_named_without_its_folder(tmp_path):
    file = tmp_path / "data" / "mine.hdf5"
    store(tmp_path / "in", "a", table(ten(1, 2, 3)), str(file))
    references = tmp_path / "mine.csv"
    for name in (file, "mine.hdf5"):
        references.write_text(f"task,low,high,source\n{name},0,10,me\n")
        results = make(tmp_path / "in", tmp_path / "out", references=str(references))
        assert results.scores.tasks == ["mine.hdf5"] and results.tasks["mean"].iloc[0] == pytest.approx(3.0)
        assert results.final["last_normalised"].iloc[0] == pytest.approx(0.3)
    assert str(tmp_path / "data") not in (tmp_path / "out" / "report.md").read_text()
    with pytest.raises(UserError, match=r"there are mine\.hdf5$"):
        load([tmp_path / "in"], tasks=[str(file)])
    assert "mine.csv): mine.hdf5 0 to 10." in (tmp_path / "out" / "report.md").read_text()
    store(tmp_path / "more", "b", table(ten(1, 2, 3)), str(file))  # the first report knows the file by its name
    assert load([tmp_path / "out", tmp_path / "more"]).tasks == ["mine.hdf5"]
    for name in ("scores.csv", "sources.json"):  # as in reports of earlier versions
        path = tmp_path / "out" / name
        path.write_text(path.read_text().replace("mine.hdf5", str(file)))
    assert load([tmp_path / "out", tmp_path / "more"]).tasks == ["mine.hdf5"]
    other = tmp_path / "other" / "mine.hdf5"
    store(tmp_path / "in", "a", table(ten(1, 2, 3)), str(other), variant="low")
    assert load([tmp_path / "in"]).tasks == sorted([str(file), str(other)])  # two files of one name keep their folders


def test_a_report_says_which_cells_of_its_sweeps_are_missing(tmp_path):
    """Also one that is made of a report, and more runs; of what is left out by name, it says nothing."""
    hopper, local, file = "Hopper-v5", "local/a-v0", str(tmp_path / "mine.hdf5")
    cells = [(name, task) for task in (hopper, local, file) for name in ("iql (grid)", "sac", "sac (low)")]
    told = {"suite": "s", "purpose": "p", "command": "c", "commit": None, "date": "2026-01-01", "cells": cells}
    synthetic.make(tmp_path / "in", ["sac"], [f"{hopper} · one", f"{hopper} · two"], 5, 20)
    (tmp_path / "in" / "sweep.json").write_text(json.dumps(told))
    make(tmp_path / "in", tmp_path / "out")
    part = "of the 9 cells that were asked for, each an algorithm on a task,"
    others = f"iql (grid), sac (low) on {hopper}, {local}, mine.hdf5; sac on {local}, mine.hdf5."
    first = f"Only 1 {part} is here; the rest are {others}"
    for folder in ("in", "out"):
        assert [note for note in load([tmp_path / folder]).notes if "cells" in note] == [first]
    assert index.part_of_suite(tmp_path / "out") == "1 of 9 cells"
    (note,) = [note for note in load([tmp_path / "in"], algorithms=["sac"]).notes if "cells" in note]
    assert note.startswith("Only 1 of the 3 cells") and note.endswith(f"the rest are sac on {local}, mine.hdf5.")
    one = load([tmp_path / "in"], algorithms=["sac"], tasks=[f"{hopper} · one"])
    assert not any("cells" in note for note in one.notes) and one.cells == [("sac", hopper)]

    more = tmp_path / "more"
    for task in (local, hopper, file):
        store(more / Path(task).stem, "sac", table(ten(1, 2, 3)), task, "low")
    synthetic.vary(more, "iql", [local, hopper], {"tau": [0.1, 0.2]}, variant="grid")
    (note,) = [note for note in load([tmp_path / "out", more], mix=True).notes if "cells" in note]
    assert note == f"Only 6 {part} are here; the rest are iql (grid) on mine.hdf5; sac on {local}, mine.hdf5."
    grid = load([tmp_path / "out", more], mix=True, algorithms=["iql (grid) (tau=0.1)"])
    assert grid.cells == [("iql (grid)", task) for task in (hopper, local, "mine.hdf5")]
    synthetic.vary(more / "file", "iql", [file], {"tau": [0.1, 0.2]}, variant="grid")
    store(more / "file", "sac", table(ten(1, 2, 3)), file)
    store(more / "local", "sac", table(ten(1, 2, 3)), local)
    synthetic.tabulate(report.Args((tmp_path / "out", more), tmp_path / "whole", mix=True, formats=(), page=False))
    assert not any("cells" in note for note in load([tmp_path / "whole"], mix=True).notes)
    assert index.part_of_suite(tmp_path / "whole") == ""
    assert set(load([tmp_path / "whole"], mix=True).tasks) == {
        hopper,
        local,
        "mine.hdf5",
        *(f"{hopper} · {n}" for n in ("one", "two")),
    }
    assert str(tmp_path) not in (tmp_path / "whole" / "tasks.csv").read_text()


def test_a_report_tells_no_place_on_somebodys_machine(tmp_path):
    synthetic.make(tmp_path / "in", ["a"], ["Hopper-v5"], 5, 10)
    command = "python -m benchmarks.sweep s --seeds-per-job 2"
    for number, place in enumerate(("/home/me/s", "'/home/me/my runs'")):
        told = {"suite": "s", "purpose": "p", "commit": None, "date": "2026-01-01"}
        told["command"] = f"{command} --job {number} --out {place} --threads 1"
        (folder := tmp_path / "in" / str(number)).mkdir()
        (folder / "sweep.json").write_text(json.dumps(told))
    make(tmp_path / "in", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["commands"] == [f"{command} --threads 1"]


def test_seeds_that_are_not_finished_are_named_where_others_are(tmp_path):
    for seed, status in ((0, "finished"), (1, "interrupted"), (2, "running")):
        rows = table({step: {seed: [1.0]} for step in (0, 100)})
        store(tmp_path / f"seed{seed}", "a", rows, "Hopper-v5", status=status, identity={"seeds": [seed]})
    (note,) = [note for note in load([tmp_path], finished_only=True).notes if "left out" in note]
    assert note == "a (seeds 1, 2) on Hopper-v5 is not finished, and is left out."


def test_an_unfinished_run_counts_as_long_as_its_tables_are(tmp_path):
    """A checkpoint of a run that was killed is older than its tables, and its times with it."""
    store(tmp_path, "a", table(ten(1, 2, 3)), "Hopper-v5", status="running", step=30, seconds=9.0)
    store(tmp_path, "b", table(ten(1, 2, 3)), "Hopper-v5", status="interrupted", step=100, seconds=9.0)
    assert [(s["step"], s["seconds"]) for s in load([tmp_path]).sources] == [(100, None), (100, 9.0)]


def test_the_shortest_runs_are_named_by_their_algorithm_if_they_are_all_of_its_seeds(tmp_path):
    """Where b has one seed only, the name alone would not tell it from others that may come."""
    store(tmp_path, "a", table(ten(1, 2, 3)), "Hopper-v5")
    early = {0: {0: [1.0], 1: [1.0]}, 10: {0: [2.0], 1: [3.0]}}
    for name, rows in (("b", {step: {0: seeds[0]} for step, seeds in early.items()}), ("c", early)):
        store(tmp_path, name, table(rows), "Hopper-v5", status="interrupted")
    (note,) = [note for note in load([tmp_path], mix=True).notes if "the shortest" in note]
    assert note.endswith("that all runs have reached; the shortest are b (seed 0), c.")
    report.main(report.Args((tmp_path,), tmp_path / "report", mix=True, replications=20, formats=(), page=False))
    assert note in load([tmp_path / "report"], mix=True).notes


def test_evaluations_after_the_last_iteration_count_where_other_runs_end_at_the_total(tmp_path):
    """A seed that stopped when its task was solved has the total, and an iteration ends where it ends."""
    rows = table({0: {0: [0.0], 1: [0.0], 2: [0.0]}, 60: {0: [1.0], 1: [0.0], 2: [0.0]}, 90: {0: [1.0]}})
    late = [table({96: {1: [1.0]}}), table({99: {2: [4.0]}})]
    identity = {"total_steps": 90, "eval_episodes": 1, "eval_every": 60, "seeds": [0, 1, 2]}
    store(tmp_path, "a", pd.concat([rows, *late]), "Hopper-v5", identity=identity)
    loaded = load([tmp_path])
    assert loaded.table.groupby("seed")[["step", "return"]].last().values.tolist() == [[90, 1], [90, 1], [90, 4]]
    assert not any("compared at step" in note for note in loaded.notes)
    for name, last in (("c", 90), ("d", 99)):  # of runs that do not say how long they were to be, the longer one is cut
        store(tmp_path / "in", name, table({step: {0: [step]} for step in (0, 60, last)}), "Ant-v5", identity={})
    assert load([tmp_path / "in"]).table.groupby("algorithm")["return"].last().tolist() == [90, 60]


def test_seeds_whose_job_has_not_begun_are_named(tmp_path):
    """Also in a report that is made of a report, and no longer when they are there."""
    told = {"suite": "s", "purpose": "p", "command": "c", "commit": None, "date": "2026-01-01"}
    told |= {"cells": [("a", "Hopper-v5"), ("b", "Hopper-v5")], "seeds": [0, 1, 2, 3]}
    rows = {seeds: table({step: {seed: [1.0] for seed in seeds} for step in (0, 100)}) for seeds in ((0, 1), (2, 3))}
    store(tmp_path / "in", "a", rows[0, 1], "Hopper-v5")
    synthetic.vary(tmp_path / "in", "b", ["Hopper-v5"], {"tau": [0.1, 0.2]}, seeds=4)
    (tmp_path / "in" / "sweep.json").write_text(json.dumps(told))
    make(tmp_path / "in", tmp_path / "out", mix=True)
    note = "a (seeds 2, 3) on Hopper-v5 is not finished, and is left out."
    assert all([n for n in load([tmp_path / name], mix=True).notes if "left" in n] == [note] for name in ("in", "out"))
    synthetic.vary(tmp_path / "in" / "late", "b", ["Ant-v5"], {"tau": [0.1, 0.2]}, seeds=2)
    told["cells"].append(("b", "Ant-v5"))
    (tmp_path / "in" / "sweep.json").write_text(json.dumps(told))
    later = table({step: {seed: [1.0] for seed in (2, 3)} for step in (0, 100)})
    place = tmp_path / "in" / "later"
    synthetic.vary(place, "b", ["Ant-v5"], {"tau": [0.1, 0.2]}, seeds=2)
    (path,) = place.glob("*/*/*/config.json")
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"status": "running", "identity": config["identity"] | {"seeds": [2, 3]}}))
    (told_of,) = [
        n for n in load([tmp_path / "in"], mix=True, finished_only=True, tasks=["Ant-v5"]).notes if "left" in n
    ]
    assert told_of == "b on Ant-v5 is not finished, and is left out."  # once, by the name of its process
    shutil.rmtree(place)
    shutil.rmtree(tmp_path / "in" / "late")
    diverged = {"identity": {"total_steps": 100, "seeds": [2, 3]}, "diverged": [{"seed": 3, "step": 5}]}
    lost = store(tmp_path / "in" / "more", "a", later.query("seed == 2"), "Hopper-v5", **diverged)
    assert not any("not finished" in n for n in load([tmp_path / "in"], mix=True, tasks=["Hopper-v5"]).notes)
    shutil.rmtree(lost)
    store(tmp_path / "in" / "more", "a", rows[2, 3], "Hopper-v5", identity={"total_steps": 100})
    for folders in ([tmp_path / "in"], [tmp_path / "out", tmp_path / "in" / "more"]):
        assert not any("left out" in note for note in load(folders, mix=True).notes)


def test_two_scripts_with_the_same_variant_and_settings_are_two_algorithms(tmp_path):
    for script in ("ppo", "dqn"):
        synthetic.vary(tmp_path, script, ["CartPole-v1"], {"lr": [0.1, 0.2]}, variant="grid")
    loaded = load([tmp_path])
    assert loaded.grids == {name: [f"{name} (lr={lr})" for lr in (0.1, 0.2)] for name in ("dqn (grid)", "ppo (grid)")}


def test_scores_of_predictions_are_no_returns(tmp_path):
    rows = table({step: {seed: [0.5 + seed / 10] for seed in range(5)} for step in (0, 10)})
    identity = {"total_steps": 10, "eval_episodes": 0}
    store(tmp_path / "in", "stream_td", rows, "seasons", score="R²", steps="steps", identity=identity)
    store(tmp_path / "in", "other", rows, "seasons", score="R²", steps="steps", identity=identity)
    made = make(tmp_path / "in", tmp_path / "out" / "it", built=True)
    assert analysis.limits(made.scores, None, ["seasons"]) == (-np.inf, np.inf)
    page = (tmp_path / "out" / "it" / "report.md").read_text()
    assert "R² of predictions: mean over seeds" in page and "Final R²" in page and "in R²" in page
    assert "returns of" not in page.lower() and "environment" not in page and "training episodes" not in page
    assert "R², last evaluation" in index.section(tmp_path / "out" / "it")


def test_runs_that_are_not_cut_keep_all_that_they_have(tmp_path):
    """A seed that diverged is not continued, and nothing is said of intervals."""
    rows = {0: [1.0], 10: [5.0], 20: [6.0]}
    long = {step: {0: value, 1: value} for step, value in rows.items()}
    store(tmp_path, "a", table({**long, 20: {0: [6.0]}}), "Hopper-v5", diverged=[{"seed": 1, "step": 15}])
    store(tmp_path, "b", table({0: {0: [0.0]}, 10: {0: [2.0]}}), "Hopper-v5")
    scores = load([tmp_path], mix=True, cut=False)
    last = scores.table.groupby(["algorithm", "seed"])[["step", "return"]].last()
    assert last.values.tolist() == [[20, 6], [10, 5], [10, 2]]
    assert not [note for note in scores.notes if "compared at step" in note or "intervals" in note]
    assert [note for note in scores.notes if "Seed 1 of a on Hopper-v5 diverged before step 15" in note]


def test_a_report_can_be_of_some_tasks_and_algorithms_only(tmp_path):
    for name, task in (("a", "Hopper-v5"), ("b", "Hopper-v5"), ("b", "Ant-v5")):
        store(tmp_path, name, table({0: {0: [0.0]}, 10: {0: [1.0]}}), task)
    store(tmp_path, "a", table({0: {0: [0.0]}, 20: {0: [1.0]}}), "Ant-v5")  # of another length: refused with the others
    with pytest.raises(UserError, match="differ"):
        load([tmp_path])
    loaded = load([tmp_path], algorithms=["b"])
    assert (loaded.tasks, loaded.algorithms, len(loaded.sources)) == (["Ant-v5", "Hopper-v5"], ["b"], 2)
    store(tmp_path, "c", table({0: {0: [1.0]}}), "Ant-v5", status="running")  # left out with a sentence
    loaded = load([tmp_path], tasks=["Hopper-v5"])
    assert (loaded.tasks, loaded.algorithms) == (["Hopper-v5"], ["a", "b"])
    assert not any("left out" in note for note in loaded.notes)
    with pytest.raises(UserError, match="--tasks: no run is named 'Walker2d-v5'; there are Ant-v5, Hopper-v5"):
        load([tmp_path], tasks=["Walker2d-v5"])
    with pytest.raises(UserError, match="--algorithms: no run is named 'c'; there are a, b"):
        load([tmp_path], algorithms=["c"])


def test_a_sweep_is_told_once_however_often_its_cells_are_added(tmp_path):
    told = {"suite": "s", "purpose": "p", "command": "c", "commit": None, "date": "2026-01-01"}
    for name in ("a", "b"):
        store(tmp_path / name, name, table({0: {0: [0.0]}, 10: {0: [1.0]}}), "Hopper-v5")
        (tmp_path / name / "sweep.json").write_text(json.dumps(told))
    make(tmp_path / "a", tmp_path / "out")
    assert load([tmp_path / "out", tmp_path / "b"]).sweeps == [told]
    (tmp_path / "b" / "sweep.json").write_text(json.dumps(told | {"commit": "abc"}))
    assert load([tmp_path / "out", tmp_path / "b"]).sweeps == [told, told | {"commit": "abc"}]


def test_with_mixed_grids_no_algorithm_is_lost(tmp_path):
    often = table({step: {0: [float(step)]} for step in range(0, 96, 5)})
    store(tmp_path, "a", table({0: {0: [0.0]}, 50: {0: [5.0]}, 100: {0: [10.0]}}), "Hopper-v5")
    store(tmp_path, "b", often, "Hopper-v5", identity={"total_steps": 100, "eval_episodes": 2, "eval_every": 5})
    final = scores.final_scores(load([tmp_path], mix=True).table).set_index("algorithm")["last"]
    assert final.to_dict() == {"a": 5.0, "b": 95.0}
    assert any(
        "compared at step 95 of 100" in note and note.endswith(" The last evaluations of a up to there are at step 50.")
        for note in load([tmp_path], mix=True).notes
    )


def test_a_seed_without_an_evaluation_after_step_0_does_not_hold_up_the_others(tmp_path):
    """Seeds of one process may do different numbers of steps."""
    frame = table({0: {0: [0.0], 1: [0.0]}, 50: {0: [5.0]}, 100: {0: [7.0]}})
    identity = {"total_steps": 100, "eval_episodes": 2, "eval_every": 10, "seeds": [0, 1]}
    store(tmp_path, "a", frame, "Hopper-v5", identity=identity, status="running")
    loaded = load([tmp_path])
    assert scores.final_scores(loaded.table)["last"].tolist() == [7.0]
    assert "Seed 1 of a on Hopper-v5 has no score by step 100, and is left out." in loaded.notes


def test_unfinished_runs_are_compared_at_the_last_common_step_and_that_is_said(tmp_path):
    identity = {"total_steps": 30, "eval_episodes": 1, "eval_every": 10}
    whole = table({step: {0: [float(step)]} for step in (0, 10, 20, 30)})
    store(tmp_path, "a", whole, "Hopper-v5", identity=identity)
    store(tmp_path, "b", whole[whole["step"] <= 20], "Hopper-v5", identity=identity, status="interrupted")
    loaded = load([tmp_path])
    assert scores.final_scores(loaded.table).set_index("algorithm")["last"].to_dict() == {"a": 20.0, "b": 20.0}
    assert any("compared at step 20 of 30" in note and "b (seed 0)" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"eval_episodes": 5}, "evaluation episodes on Hopper-v5: 2 (a) but 5 (b)"),
        ({"eval_every": 5}, "steps between evaluations on Hopper-v5: 10 (a) but 5 (b)"),
        ({"total_steps": 99}, "steps on Hopper-v5: 100 (a) but 99 (b)"),
        ({"env_option": ["x=1", "y=2"]}, "options of the environment on Hopper-v5: None (a) but x=1 y=2 (b)"),
    ],
)
def test_protocols_are_not_mixed_silently(tmp_path, change, said):
    identity = {"total_steps": 100, "eval_episodes": 2, "eval_every": 10}
    store(tmp_path, "a", table(ten(1, 2, 3)), "Hopper-v5", identity=identity)
    store(tmp_path, "b", table(ten(1, 2, 3)), "Hopper-v5", identity=identity | change)
    with pytest.raises(UserError, match=re.escape(said)):
        load([tmp_path])
    assert any(said in note for note in load([tmp_path], mix=True).notes)


@pytest.mark.parametrize(
    ("env_id", "limit", "words"),
    [
        ("CartPole-v1", 0, "max_episode_steps=10000"),  # the default of streaming scripts there
        ("CartPole-v1", 500, ""),  # that of the task
        ("CartPole-v1", 200, "max_episode_steps=200"),
        ("Hopper-v5", 0, ""),
    ],
)
def test_time_limits_of_streaming_scripts_are_part_of_the_protocol(tmp_path, env_id, limit, words):
    identity = {"total_steps": 100, "eval_episodes": 2, "eval_every": 10}
    store(tmp_path, "dqn", table(ten(1, 2, 3)), env_id, identity=identity)
    store(tmp_path, "stream_q", table(ten(1, 2, 3)), env_id, identity=identity | {"max_episode_steps": limit})
    if words:
        said = f"options of the environment on {env_id}: None (dqn) but {words} (stream_q)"
        with pytest.raises(UserError, match=re.escape(said)):
            load([tmp_path])
    else:
        assert len(load([tmp_path]).sources) == 2


@pytest.mark.parametrize("env_id", ["MinAtar/Breakout-v1", "Hopper-v5"])
def test_the_version_of_the_tasks_own_package_is_part_of_the_protocol(tmp_path, env_id):
    versions = {"gymnasium": "1", "mujoco": "3", "minatar": "1.0"}
    for name, own in (("a", "1.0"), ("b", "1.1")):
        store(tmp_path, name, table(ten(1, 2, 3)), env_id, versions=versions | {"minatar": own})
    if env_id == "Hopper-v5":
        assert len(load([tmp_path]).sources) == 2
    else:
        with pytest.raises(UserError, match=r"minatar on MinAtar/Breakout-v1: 1.0 \(a\) but 1.1 \(b\)"):
            load([tmp_path])


@pytest.mark.parametrize(
    ("env_id", "package"),
    [
        ("MinAtar/Breakout-v1", "minatar"), ("BreakoutNoFrameskip-v4", "ale-py"), ("ALE/Pong-v5", "ale-py"),
        ("mine:MiniGrid-Empty-5x5-v0", "minigrid"), ("pointmaze-medium-v0", "ogbench"),
        ("PointMaze_UMaze-v3", "gymnasium-robotics"), ("Hopper-v5", ""), ("", ""),
    ],
)  # fmt: skip
def test_the_package_that_makes_a_task_is_known(env_id, package):
    assert package_of(env_id) == package


def test_runs_of_earlier_versions_do_not_tell_the_package(tmp_path):
    versions = {"gymnasium": "1", "mujoco": "3"}
    for name, own in (("a", {}), ("b", {"minatar": "1.0"})):
        store(tmp_path, name, table(ten(1, 2, 3)), "MinAtar/Breakout-v1", versions=versions | own)
    assert len(load([tmp_path]).sources) == 2


def test_a_curve_has_all_steps_and_a_seed_keeps_its_score_between_its_own():
    """Runs that stop when they have solved a table, or that count their own steps."""
    frame = table({0: {0: [0.0], 1: [0.0]}, 5: {0: [4.0]}, 7: {1: [2.0]}, 10: {1: [6.0]}, 20: {0: [4.0], 1: [6.0]}})
    steps, means, _, values = analysis.curve_of(frame, "return")
    assert steps.tolist() == [0, 5, 7, 10, 20] and means.tolist() == [0, 2, 3, 5, 5]
    assert values.tolist() == [[0, 4, 4, 4, 4], [0, 0, 2, 6, 6]]
    steps, *_ = analysis.curve_of(frame.rename(columns={"return": "bias"}), "bias")  # is no score
    assert steps.tolist() == [0, 20]


def test_options_of_environments_are_told(tmp_path):
    for name, words in (("a", ["x=1", "y=2"]), ("b", []), ("c", ["x=1", "y=2"])):
        store(tmp_path, name, table(ten(1, 2, 3)), f"{name}-v0", identity={"env_option": words})
    (told,) = (note for note in load([tmp_path]).notes if "other options" in note)
    assert told.endswith("were made: a on a-v0; c on c-v0 (x=1 y=2).")


def test_other_ensembles_on_a_task_are_told(tmp_path):
    frame = table(ten(1, 2, 3))
    for name, digest in (("a", "1" * 12), ("b", "2" * 12), ("c", "1" * 12), ("d", None)):
        store(tmp_path, name, frame, "Made-v0", facts={"dynamics_digest": digest} if digest else {})
    (told,) = (note for note in load([tmp_path]).notes if "ensembles" in note)
    assert told == (
        "On Made-v0, not all runs have the same ensembles, and verdicts compare these too: 11111111 (a, c), 22222222 "
        "(b)."
    )
    assert not any("ensembles" in note for note in load([tmp_path], algorithms=["a", "c", "d"]).notes)


def test_other_transitions_beside_a_dataset_are_told(tmp_path):
    for name, count in (("a", 10), ("b", 1_010), ("c", 10)):
        more = {"dataset_digest": "whole", "digest": "both"} if count > 10 else {"digest": "whole"}
        facts = {"transitions": count} | more
        store(tmp_path, name, table(ten(1, 2, 3)), "Hopper-v5", facts=facts)
    (told,) = (note for note in load([tmp_path]).notes if "the same transitions" in note)
    assert told.endswith("and verdicts compare these too: 10 (a, c), 1,010 (b).")
    assert not any("same transitions" in note for note in load([tmp_path], algorithms=["a", "c"]).notes)


def test_an_argument_that_an_earlier_version_lacked_had_its_default(tmp_path):
    identity = {"total_steps": 30, "eval_episodes": 2, "eval_every": 10}
    for seed, more in enumerate([{}, {"stop_when_solved": False}, {"tau": 0.005}]):
        rows = table(ten(1, 2, 3)).assign(seed=seed)
        store(tmp_path / str(seed), "sac", rows, "Hopper-v5", identity=identity | more)
    assert not any("Differs" in note for note in load([tmp_path]).notes)
    rows = table(ten(1, 2, 3)).assign(seed=3)
    store(tmp_path / "3", "sac", rows, "Hopper-v5", identity=identity | {"tau": 0.1})
    with pytest.raises(UserError, match=r"tau: 0.005 but 0.1"):
        load([tmp_path])


def test_other_versions_of_the_environments_are_another_protocol(tmp_path):
    store(tmp_path, "a", table(ten(1, 2, 3)), "Hopper-v5")
    store(tmp_path, "b", table(ten(1, 2, 3)), "Hopper-v5", versions={"gymnasium": "2", "mujoco": "3"})
    with pytest.raises(UserError, match=r"Gymnasium on Hopper-v5: 1 \(a\) but 2 \(b\)"):
        load([tmp_path])


def test_other_data_under_one_name_are_refused_but_not_what_an_algorithm_adds(tmp_path):
    task = "local/hopper-medium-v0"
    store(tmp_path, "a", table(ten(1, 2, 3)), task, facts={"digest": "x"})
    store(tmp_path, "b", table(ten(1, 2, 3)), task, facts={"digest": "x and more", "dataset_digest": "x"})
    load([tmp_path])
    store(tmp_path, "c", table(ten(1, 2, 3)), task, facts={"digest": "y"})
    with pytest.raises(UserError, match=r"data on local/hopper-medium-v0: x \(a, b\) but y \(c\)"):
        load([tmp_path])


def test_other_hyperparameters_under_one_name_are_refused(tmp_path):
    identity = {"total_steps": 100, "eval_episodes": 2, "eval_every": 10}
    frame = table(ten(1, 2, 3))
    store(tmp_path / "x", "a", frame, "Hopper-v5", identity=identity | {"tau": 1})
    store(tmp_path / "y", "a", frame.assign(seed=1), "Hopper-v5", identity=identity | {"tau": 2})
    with pytest.raises(UserError, match=r"a on Hopper-v5: tau"):
        load([tmp_path])


def test_a_seed_that_occurs_twice_is_refused(tmp_path):
    store(tmp_path / "x", "a", table(ten(1, 2, 3)), "Hopper-v5")
    store(tmp_path / "y", "a", table(ten(1, 2, 3)), "Hopper-v5")
    with pytest.raises(UserError, match="seed 0 of a on Hopper-v5 occurs twice"):
        load([tmp_path])


def test_damage_and_nothing_are_refused(tmp_path):
    with pytest.raises(UserError, match="no run that has learned"):
        load([tmp_path])
    with pytest.raises(UserError, match="there is no folder"):
        load([tmp_path / "none"])
    place = store(tmp_path, "a", table(ten(1, 2, 3)), "Hopper-v5")
    data = bytearray((place / "eval.parquet").read_bytes())
    data[len(data) // 8] ^= 255
    (place / "eval.parquet").write_bytes(data)
    with pytest.raises(UserError, match=r"eval.parquet is damaged"):
        load([tmp_path])
    (place / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config.json is damaged"):
        load([tmp_path])


@pytest.mark.parametrize("name", ["scores.csv", "sources.json", "report.json", "values.csv"])
def test_a_damaged_report_is_refused(made, tmp_path, name):
    shutil.copytree(made / "out", tmp_path / "out")
    (tmp_path / "out" / name).write_text("{,")
    with pytest.raises(UserError, match="damaged"):
        load([tmp_path / "out"])


def test_few_seeds_are_warned_of(tmp_path):
    synthetic.make(tmp_path / "few", ["a"], ["Hopper-v5"], 4, 10)
    synthetic.make(tmp_path / "many", ["a"], ["Hopper-v5"], 10, 10)
    assert any("Only 4 seeds" in note for note in load([tmp_path / "few"]).notes)
    assert not load([tmp_path / "many"]).notes


def test_aggregates_are_of_common_tasks_and_equal_numbers_of_seeds(tmp_path):
    for algorithm, task, seeds in (("a", "T1", 3), ("a", "T2", 2), ("b", "T1", 3), ("b", "T2", 3), ("b", "T3", 3)):
        frame = pd.concat([table(ten(1, 2, float(seed))).assign(seed=seed) for seed in range(seeds)])
        store(tmp_path, algorithm, frame, task)
    loaded = load([tmp_path])
    matrices, tasks, notes = scores.matrices(scores.final_scores(loaded.table), "last")
    assert tasks == ["T1", "T2"] and matrices["a"].shape == (2, 2) and matrices["b"].shape == (3, 2)
    assert any("without T3" in note for note in notes) and any("2 lowest" in note for note in notes)


# -- reports ----------------------------------------------------------------------------------------------------------


def test_scores_are_normalised_by_references(tmp_path):
    store(tmp_path / "in", "a", table(ten(0, 0, 3234.3)), "Hopper-v5")
    store(tmp_path / "in", "b", table(ten(0, 0, -20.272305)), "Hopper-v5")
    results = make(tmp_path / "in", tmp_path / "out", references="d4rl")
    values = results.aggregates[results.aggregates["score"] == "last"].set_index(["algorithm", "statistic"])["value"]
    assert values["a", "mean"] == pytest.approx(1.0) and values["b", "mean"] == pytest.approx(0.0)
    assert values["b", "optimality gap"] == pytest.approx(1.0)
    with pytest.raises(UserError, match=r"no table 'd5rl': .* d4rl, random_sac, recipes, success, or raw"):
        make(tmp_path / "in", tmp_path / "out", references="d5rl")
    store(tmp_path / "in", "a", table(ten(0, 0, 1)), "Mine-v0")
    with pytest.raises(UserError, match="no row for Mine-v0"):
        make(tmp_path / "in", tmp_path / "out", references="d4rl")


def test_raw_scores_of_several_tasks_have_no_aggregates(tmp_path):
    synthetic.make(tmp_path / "in", ["a", "b"], ["Hopper-v5", "Ant-v5"], 5, 10)
    results = make(tmp_path / "in", tmp_path / "out", references="raw", page=True)
    assert results.aggregates.empty and "no aggregates" in (tmp_path / "out" / "report.html").read_text()
    assert set(pd.read_csv(tmp_path / "out" / "verdicts.csv")["task"]) == {"Hopper-v5", "Ant-v5"}
    assert "Probability of improvement" in (tmp_path / "out" / "report.html").read_text()  # that needs no scale


def test_what_a_suite_says_is_the_default(tmp_path):
    synthetic.make(tmp_path / "in", ["a"], ["Hopper-v5"], 5, 20)
    (tmp_path / "in" / "suite.toml").write_text('references = "d4rl"\nscore = "max"\npublished = ["dsac_t"]\n')
    results = make(tmp_path / "in", tmp_path / "out", page=True)
    assert results.score == "max" and results.references is not None
    page = (tmp_path / "out" / "report.html").read_text()
    assert "max over last 10%" in page and "arXiv 2310.05858" in page and "not run here" in page


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ("local/hopper-medium-v0", "d4rl/hopper-medium-v2", True),
        ("d4rl/hopper-medium-v2", "d4rl/hopper-medium-v2", True),
        ("d4rl/hopper-medium-v0", "d4rl/hopper-medium-v2", False),
        ("d4rl/maze2d-umaze-v1", "d4rl/maze2d-umaze-v1", True),
        ("local/maze2d-umaze-v0", "d4rl/maze2d-umaze-v1", False),
        ("Hopper-v5", "Hopper-v4", True),
        ("Hopper-v5", "Walker2d-v5", False),
        ("minari/mujoco/hopper/medium-v0", "minari/mujoco/walker2d/medium-v0", False),
        ("local/pointmaze-medium-stitch-v0", "ogbench/pointmaze-medium-stitch-v0", True),
        ("mine:Walk", "Other", False),
        ("ALE/Breakout-v5", "MinAtar/Breakout-v1", False),
        ("tabular/cliff-walking", "tabular/cliff-jumping", False),
        ("tabular/frozen-lake-4x4-h100", "tabular/frozen-lake-4x4-sticky", False),
    ],
)
def test_published_scores_stand_beside_what_they_say_something_about(ours, theirs, expected):
    assert parts.comparable(ours, theirs) == expected


@pytest.mark.parametrize(
    ("group", "count", "means"),
    [  # of BC, 10% BC, TD3+BC, AWAC, CQL, IQL, ReBRAC, SAC-N, EDAC, DT, as CORL's README gives them
        ("(halfcheetah|hopper|walker2d)", 9, (50.40, 69.29, 76.45, 79.39, 78.28, 81.63, 89.74, 83.52, 92.92, 73.84)),
        ("maze2d", 3, (1.13, 12.58, 61.99, 121.92, 33.65, 46.23, 96.77, 141.32, 82.64, 28.48)),
        ("antmaze", 6, (17.21, 19.71, 19.33, 18.58, 50.71, 57.17, 78.42, 0.00, 0.00, 18.12)),
        ("(pen|door|hammer|relocate)", 12, (48.18, 42.69, 10.40, 55.71, 1.53, 53.43, 59.39, 12.43, 18.78, 49.21)),
    ],
)
def test_the_means_of_corls_table_are_those_that_it_gives(group, count, means):
    rows = suite.read_published(suite.BENCHMARKS / "published" / "corl.csv")
    rows = rows[rows["task"].str.match(f"d4rl/{group}-")]
    by_algorithm = rows.groupby("algorithm", sort=False)["score"].agg(["size", "mean"])
    assert (by_algorithm["size"] == count).all()
    np.testing.assert_allclose(by_algorithm["mean"], means, atol=0.0101)


def test_our_scores_stand_above_published_ones_of_the_same_data_in_their_unit(tmp_path):
    for task in ("d4rl/hopper-medium-v2", "local/hopper-medium-v0", "d4rl/antmaze-umaze-v0", "Hopper-v5"):
        facts = {} if task == "Hopper-v5" else {"low": -20.0, "high": 180.0}
        store(tmp_path / "in", "iql", table(ten(1, 2, 80)), task, facts=facts)
    args = {"references": "raw", "published": (Path("corl"), Path("sac_1m"))}
    results = make(tmp_path / "in", tmp_path / "out", built=True, **args)
    chosen = [suite.BENCHMARKS / "published" / f"{name}.csv" for name in ("corl", "sac_1m")]
    ((_, shown),) = parts.published_part(results, chosen).tables
    rows = [(row[0][0], row[1][0], row[2][0]) for row in shown.rows]
    assert rows[0] == ("Hopper-v5", "iql", "80.00") and rows[1][:2] == ("Hopper-v3", "SAC")
    data = rows[2:]
    assert data[:2] == [("d4rl/hopper-medium-v2", "iql", "50.00"), ("local/hopper-medium-v0", "iql", "50.00")]
    assert ("d4rl/hopper-medium-v2", "BC", "53.51") in data
    assert not any("antmaze" in task for task, *_ in rows)  # v0 and v2 are different data


def test_our_scores_name_the_sizes_of_their_own_runs(tmp_path):
    for algorithm, size in (("ppo", 64), ("trpo", 128)):
        store(tmp_path / "in", algorithm, table(ten(1, 2, 3)), "Hopper-v5", args={"batch_size": size})
    rows = parts.own_rows(make(tmp_path / "in", tmp_path / "out"), ["Hopper-v5"])
    assert {row.algorithm: "batches of 64" in row.protocol for row in rows} == {"ppo": True, "trpo": False}


def test_tables_of_ones_own_are_found_again(tmp_path, monkeypatch):
    synthetic.make(tmp_path / "in", ["a"], ["Mine-v0"], 5, 10)
    (tmp_path / "in" / "suite.toml").write_text('references = "tables/mine.csv"\n')
    (tmp_path / "in" / "mine.csv").write_text("task,low,high,source\nMine-v0,0,1000,me\n")  # as a sweep copies it
    first = make(tmp_path / "in", tmp_path / "out")
    again = make(tmp_path / "out", tmp_path / "again")
    assert first.references is not None and again.aggregates.equals(first.aggregates)
    monkeypatch.chdir(tmp_path / "in")
    assert make(Path(), tmp_path / "from here").aggregates.equals(first.aggregates)


def test_the_copy_of_a_table_comes_before_a_file_of_its_name_elsewhere(tmp_path, monkeypatch):
    synthetic.make(tmp_path / "in", ["a"], ["Mine-v0"], 5, 10)
    (tmp_path / "in" / "suite.toml").write_text('references = "mine.csv"\npublished = ["theirs.csv"]\n')
    row = "task,algorithm,score,spread,seeds,protocol,source\nMine-v0,a,{},,,theirs,me\n"
    for place, high in ((tmp_path / "in", 1000), (tmp_path, 10)):
        (place / "mine.csv").write_text(f"task,low,high,source\nMine-v0,0,{high},me\n")
        (place / "theirs.csv").write_text(row.format(high))
    monkeypatch.chdir(tmp_path)
    for before, after in (("in", "out"), ("out", "again")):
        made = make(tmp_path / before, tmp_path / after)
        assert made.references is not None and made.references["high"].tolist() == [1000]
        for name in ("mine.csv", "theirs.csv"):
            assert (tmp_path / after / name).read_bytes() == (tmp_path / "in" / name).read_bytes()
    assert make(tmp_path / "in", tmp_path / "other", references="mine.csv").references["high"].tolist() == [10]


@pytest.mark.parametrize("name", ["references", "published"])
def test_sources_with_different_tables_of_one_name_are_refused(tmp_path, name):
    more = "algorithm,score,spread,seeds,protocol,source\nHopper-v5,a,{},,,theirs,me\n"
    for folder, algorithm, high in (("one", "a", 1000), ("two", "b", 10)):
        synthetic.make(tmp_path / folder, [algorithm], ["Hopper-v5"], 5, 10)
        wish = "'mine.csv'" if name == "references" else "['mine.csv']"
        (tmp_path / folder / "suite.toml").write_text(f"{name} = {wish}\n")
        rows = "low,high,source\nHopper-v5,0,{},me\n" if name == "references" else more
        (tmp_path / folder / "mine.csv").write_text(f"task,{rows.format(high)}")
    args = report.Args((tmp_path / "one", tmp_path / "two"), tmp_path / "out", formats=(), page=False)
    with pytest.raises(UserError, match=r"one/mine.csv and .*two/mine.csv have the same name"):
        synthetic.tabulate(args)
    assert not (tmp_path / "out").exists()
    (tmp_path / "two" / "mine.csv").write_bytes((tmp_path / "one" / "mine.csv").read_bytes())
    synthetic.tabulate(args)
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.count("| theirs |") == (name == "published")


def test_what_was_left_out_is_told_by_reports_of_reports(tmp_path):
    store(tmp_path / "in", "a", table(ten(1, 2, 3)), "Hopper-v5")
    store(tmp_path / "in", "a", table(ten(1, 2, 3)), "Ant-v5")
    store(tmp_path / "in", "b", table(ten(1, 2, 3)), "Hopper-v5", status="interrupted")
    store(tmp_path / "in", "c", table({0: {0: [1.0]}}), "Ant-v5")
    said = [note for note in make(tmp_path / "in", tmp_path / "out", finished_only=True).scores.notes if "left" in note]
    assert len(said) == 2
    for before, after in (("out", "again"), ("again", "third")):
        again = make(tmp_path / before, tmp_path / after).scores.notes
        assert [note for note in again if "left" in note] == said
    for chosen, kept in (
        ({"tasks": ["Hopper-v5"]}, [said[1]]),
        ({"tasks": ["Ant-v5"]}, [said[0]]),
        ({"algorithms": ["a"]}, [said[0]]),
    ):
        assert [note for note in load([tmp_path / "again"], **chosen).notes if "left" in note] == kept
    assert said[1] == "b on Hopper-v5 is not finished, and is left out."
    store(tmp_path / "later", "b", table(ten(1, 2, 3)), "Hopper-v5")
    both = load([tmp_path / "again", tmp_path / "later"]).notes
    assert [note for note in both if "left" in note] == [said[0]]


def test_only_unfinished_runs_are_no_finished_ones(tmp_path):
    store(tmp_path, "a", table(ten(1, 2, 3)), "Hopper-v5", status="interrupted")
    with pytest.raises(UserError, match="no finished run in"):
        load([tmp_path], finished_only=True)


def test_success_and_returns_are_told_apart_in_one_report(tmp_path):
    rows = table({0: {0: [0.0], 1: [0.0]}, 10: {0: [1.0], 1: [0.0]}})
    goals = rows.assign(task="task1", success=rows["return"] > 0)
    store(tmp_path / "in", "a", goals, "pointmaze-medium-v0", score="success")
    for name, gain in (("a", 0), ("b", 500)):
        frame = table({0: {0: [1.0], 1: [2.0]}, 10: {0: [150.0 + gain], 1: [151.0 + gain]}})
        store(tmp_path / "in", name, frame, "Hopper-v5")
    made = make(tmp_path / "in", tmp_path / "out", built=True)
    assert made.scores.measure == "score" and made.unit_of("pointmaze-medium-v0") == "success (%)"
    ends = made.tasks.query("score == 'last'").set_index(["task", "algorithm"])
    assert tuple(ends.loc[("pointmaze-medium-v0", "a"), ["low", "high"]]) == (0, 100)
    assert ends.loc[("Hopper-v5", "b"), "high"] > 651
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Returns and percentage of episodes that reach their goals, over all tasks of the environment, of" in text
    assert "Between a and b on Hopper-v5 it is not decided (-500.0 in return" in text


@pytest.mark.parametrize("flag", ["references", "published"])
@pytest.mark.parametrize("name", ["scores", "final", "verdicts"])
def test_a_table_with_the_name_of_a_reports_own_is_refused(tmp_path, flag, name):
    """A copy of it would take the place of the report's."""
    synthetic.make(tmp_path / "in", ["a"], ["Mine-v0"], 5, 10)
    path = tmp_path / f"{name}.csv"
    row = "low,high,source\nMine-v0,0,1000,me\n"
    more = "algorithm,score,spread,seeds,protocol,source\nMine-v0,a,1,,,theirs,me\n"
    path.write_text(f"task,{row if flag == 'references' else more}")
    given = str(path) if flag == "references" else (path,)
    with pytest.raises(UserError, match=f"{name}.csv has the name of a table that reports write themselves"):
        make(tmp_path / "in", tmp_path / "out", **{flag: given})


def test_two_tables_of_one_name_are_refused(tmp_path):
    synthetic.make(tmp_path / "in", ["a"], ["Mine-v0"], 5, 10)
    for folder, score in (("one", 1), ("two", 2), ("three", 1)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.csv").write_text(
            f"task,algorithm,score,spread,seeds,protocol,source\nMine-v0,a,{score},,,theirs,me\n"
        )
    paths = tuple(tmp_path / folder / "mine.csv" for folder in ("one", "two"))
    with pytest.raises(UserError, match=r"one/mine.csv and .*two/mine.csv have the same name"):
        make(tmp_path / "in", tmp_path / "out", published=paths)
    for same in (paths[0], tmp_path / "three" / "mine.csv"):  # which the other one is, or equals
        make(tmp_path / "in", tmp_path / "out", published=(paths[0], same))
    assert (tmp_path / "out" / "mine.csv").read_bytes() == paths[0].read_bytes()


def test_nothing_of_an_earlier_report_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.figures.svg", lambda *_: "")  # the files of figures are looked at
    for task in ("Hopper-v5", "Ant-v5"):
        store(tmp_path / "in", "a", table(ten(1, 2, 3)), task)
    make(tmp_path / "in", tmp_path / "out", references="d4rl", page=True, formats=("png",))
    assert list((tmp_path / "out" / "figures").glob("aggregate*")) and (tmp_path / "out" / "report.html").exists()
    make(tmp_path / "in", tmp_path / "out", references="raw", formats=("png",))
    assert not (tmp_path / "out" / "aggregates.csv").exists() and not (tmp_path / "out" / "report.html").exists()
    assert not list((tmp_path / "out" / "figures").glob("aggregate*"))


def test_a_report_that_fails_leaves_the_earlier_one(tmp_path, monkeypatch):
    """Also its figures, which another report of these tasks would replace."""
    monkeypatch.setattr("benchmarks.figures.svg", lambda *_: "")  # the files of figures are looked at
    for name, scale in (("first", 1), ("second", 5)):
        for task in ("Hopper-v5", "Ant-v5"):
            store(tmp_path / name, "a", table(ten(scale, 2 * scale, 3)), task)
    make(tmp_path / "first", tmp_path / "out", references="raw", page=True, formats=("png",))
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}

    def fails(*_, **__):
        raise KeyError("a fault")

    for part in ("curves_by_task", "render", "markdown"):
        with monkeypatch.context() as patch:
            patch.setattr(f"benchmarks.report.{part}", fails)
            with pytest.raises(KeyError):
                make(tmp_path / "second", tmp_path / "out", references="raw", page=part == "render", formats=("png",))
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "out" / "figures.part").iterdir()}
    old = {path.name: data for path, data in before.items() if path.name in drawn}
    assert drawn.keys() == old.keys() and drawn != old
    shutil.rmtree(tmp_path / "out" / "figures.part")
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_a_report_that_is_killed_while_it_is_made_again_keeps_its_scores(tmp_path, monkeypatch):
    synthetic.make(tmp_path / "in", ["a", "b"], ["Hopper-v5"], 5, 10)
    make(tmp_path / "in", tmp_path / "out")
    kept = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.csv")}
    with monkeypatch.context() as patch:
        patch.setattr("benchmarks.report.drawn", lambda *_: signal.default_int_handler(signal.SIGINT, None))
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "out", tmp_path / "out")
    make(tmp_path / "out", tmp_path / "out")
    assert kept.keys() >= {"scores.csv", "final.csv", "tasks.csv"}
    assert kept == {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.csv")}


def test_names_of_tasks_and_algorithms_may_be_anything(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.figures.svg", lambda *_: "")  # the files of figures are looked at
    synthetic.make(tmp_path / "x", ["_a"], ["n/E-v0"], 5, 10)
    synthetic.make(tmp_path / "y", ["_a"], ["n:E-v0"], 5, 10)
    report.main(report.Args((tmp_path / "x", tmp_path / "y"), tmp_path / "out", replications=20, formats=("png",)))
    figures = list((tmp_path / "out" / "figures").glob("curve_n_E-v0*.png"))
    assert len(figures) == 2 and all(Image.open(path).mode == "P" for path in figures)  # small files, with a palette


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A report of two algorithms on two tasks."""
    folder = tmp_path_factory.mktemp("made")
    synthetic.make(folder / "in", ["a", "b"], ["Hopper-v5", "Ant-v5"], 5, 20)
    report.main(report.Args((folder / "in",), folder / "out", "d4rl", replications=50, title="T", formats=("png",)))
    return folder


@pytest.mark.slow  # `test_a_report_can_be_made_again_from_what_it_stored` compares bytes, too, of all but PDFs
def test_the_same_runs_give_the_same_bytes(made, tmp_path):
    args = report.Args((made / "in",), tmp_path / "out", "d4rl", replications=50, title="T")
    report.main(args)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "out").rglob("*")) if path.is_file()}
    assert len(before) > 20
    time.sleep(1.1)  # no time of day in any of them
    report.main(args)
    assert {path: path.read_bytes() for path in before} == before


def test_figures_are_drawn_to_the_same_bytes(tmp_path, monkeypatch):
    """Also on another day, which a PDF would tell; a report has both formats, unless others are asked for."""
    assert report.Args((tmp_path,), tmp_path).formats == ("png", "pdf")
    drawn = []
    for seconds in ("0", "1000000000"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", seconds)  # the time that matplotlib would write
        with figures.style():
            figure = figures.heatmap(["a"], np.full((1, 1), 0.7))
            figures.lay_out(figure)
            figures.save(figure, tmp_path / "heat", ("png", "pdf"))
        drawn.append([(tmp_path / f"heat.{name}").read_bytes() for name in ("png", "pdf")])
    assert drawn[0] == drawn[1] and drawn[0][1].startswith(b"%PDF")


def test_a_report_can_be_made_again_from_what_it_stored(made):
    report.main(report.Args((made / "out",), made / "again", replications=50, formats=("png",)))
    for path in sorted((made / "out").rglob("*")):
        if path.is_file() and path.name != "report.json":
            assert path.read_bytes() == (made / "again" / path.relative_to(made / "out")).read_bytes(), path.name


def test_the_tables_are_tidy(made):
    evaluations = pd.read_csv(made / "out" / "scores.csv")
    assert list(evaluations.columns) == [
        "task",
        "algorithm",
        "seed",
        "step",
        "episodes",
        "return",
        "episode_std",
        "normalised",
    ]
    assert len(evaluations) == 2 * 2 * 5 * 21 and not evaluations.isna().any().any()
    tasks = pd.read_csv(made / "out" / "tasks.csv")
    last = evaluations[evaluations["step"] == 200]
    rows = last[(last["task"] == "Ant-v5") & (last["algorithm"] == "a")]["return"]
    row = tasks[(tasks["task"] == "Ant-v5") & (tasks["algorithm"] == "a") & (tasks["score"] == "last")].iloc[0]
    assert row["mean"] == pytest.approx(rows.mean(), rel=1e-5) and row["std"] == pytest.approx(rows.std(), rel=1e-5)
    assert row["low"] < row["mean"] < row["high"] and row["seeds"] == 5


def test_the_bias_of_values_is_predicted_minus_observed(made):
    values = pd.read_csv(made / "out" / "values.csv")
    assert np.allclose(values["predicted"], 1.3 * values["observed"])
    page = (made / "out" / "report.html").read_text()
    assert "Bias of the critics" in page and page.count('data-key="0.3') >= 4  # relative to what was observed


class Sound(HTMLParser):
    """Sees to it that elements are closed in order, and collects identifiers and links."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href"):
                self.links.append(value)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_sound_and_needs_nothing_from_elsewhere(made):
    page = Sound()
    page.feed((made / "out" / "report.html").read_text())
    assert not page.open
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert all(link[1:] in page.ids for link in page.links if link.startswith("#"))


EVIL = '<script>alert("x")</script>|a_b* $x$ `'


def test_names_are_escaped_everywhere(tmp_path):
    synthetic.make(tmp_path / "in", [EVIL, "b"], ["Hopper-v5"], 5, 10)
    make(tmp_path / "in", tmp_path / "out", references="d4rl", title=EVIL, page=True)
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<script>") == 1 and "&lt;script&gt;alert(" in page
    Sound().feed(page)
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "<script>" not in markdown.replace("\\<script\\>", "")
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == len(re.findall(r"(?<!\\)\|", rows[0])) for row in rows[:4])


def browse(folder, script: str, width: int = 1200) -> dict:
    """Runs a script in the report's page, in a real browser, and returns its result; the page must have no errors."""
    harness = """<!doctype html><title>waiting</title>
<iframe src="report.html" style="width:WIDTHpx;height:900px"></iframe>
<script>
const frame = document.querySelector("iframe"), errors = [];
frame.contentWindow.addEventListener("error", e => errors.push(e.message));
frame.onload = () => {
  frame.contentWindow.addEventListener("error", e => errors.push(e.message));
  let result;
  try { result = (function (page) { SCRIPT })(frame.contentDocument); } catch (e) { errors.push(String(e)); }
  const out = document.createElement("pre");
  out.id = "result"; out.textContent = JSON.stringify({result, errors}); document.body.append(out);
};
</script>"""
    (folder / "harness.html").write_text(harness.replace("WIDTH", str(width)).replace("SCRIPT", script))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=20000",
            f"--user-data-dir={folder / 'profile'}", "--dump-dom",
        ]  # fmt: skip
        url = f"http://127.0.0.1:{server.server_address[1]}/harness.html"
        page, log = folder / "page.txt", folder / "log.txt"  # no pipes, which helpers of a killed browser keep open
        try:
            with page.open("w") as out, log.open("w") as err:
                subprocess.run([str(CHROMIUM), *flags, url], stdout=out, stderr=err, timeout=120)
        finally:
            server.shutdown()
    text, errors = re.search(r'<pre id="result">(.*?)</pre>', page.read_text(), re.DOTALL), log.read_text()
    assert text, errors[-2_000:]
    answer = json.loads(text[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    said = [line for line in errors.splitlines() if "CONSOLE" in line and "favicon" not in line]
    assert not answer["errors"] and not said, (answer["errors"], said)
    return answer["result"]


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
@pytest.mark.parametrize("width", [1300, 375])
def test_in_a_browser_all_figures_are_visible_and_nothing_is_wider_than_the_page(made, width):
    script = """
      const boxes = [...page.querySelectorAll("figure svg")].map(s => s.getBoundingClientRect());
      const drawn = [...page.querySelectorAll("figure svg")].map(s => s.querySelectorAll("path").length);
      return {boxes: boxes.map(b => [b.left, b.right, b.width, b.height]), drawn,
              page: page.documentElement.scrollWidth, tables: page.querySelectorAll("table").length};
    """
    seen = browse(made / "out", script, width)
    assert len(seen["boxes"]) == 4 + 2 + 1 + 2 + 2  # aggregates, courses, improvement, tasks, values
    assert all(w > 250 and h > 50 for _, _, w, h in seen["boxes"]) and all(n > 5 for n in seen["drawn"])
    assert all(left >= 0 and right <= width for left, right, *_ in seen["boxes"])
    assert seen["page"] <= width


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_in_a_browser_contents_stay_colours_follow_the_reader_and_folded_tables_are_printed(made):
    script = """
      const view = page.defaultView, nav = page.querySelector("nav"), paper = () => view.getComputedStyle(page.body);
      view.scrollTo(0, 3000);
      const links = [...nav.querySelectorAll("a")].map(a => page.querySelector(a.getAttribute("href")) !== null);
      const dark = [...page.styleSheets[0].cssRules].find(r => (r.conditionText || "").includes("dark"));
      const before = paper().backgroundColor;
      dark.media.mediaText = "all";  // as if the reader's system were dark
      const fold = page.createElement("details");
      page.body.append(fold);
      view.dispatchEvent(new Event("beforeprint"));
      return {top: nav.getBoundingClientRect().top, scrolled: view.scrollY, links, open: fold.open, before,
              after: paper().backgroundColor, ink: paper().color};
    """
    seen = browse(made / "out", script)
    assert seen["scrolled"] > 1000 and seen["top"] >= 0 and seen["top"] < 60  # where it was, and in view
    assert len(seen["links"]) > 5 and all(seen["links"]) and seen["open"]
    before, after, ink = (sum(map(int, re.findall(r"\d+", seen[name])[:3])) for name in ("before", "after", "ink"))
    assert before > 700 > 300 > after and ink > 500


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_in_a_browser_tables_sort_by_number_and_by_word_both_ways(made):
    script = """
      const table = [...page.querySelectorAll("table")].find(t => t.caption.textContent == "Final returns");
      const column = i => [...table.tBodies[0].rows].map(r => r.cells[i].textContent);
      const click = i => table.tHead.rows[0].cells[i].querySelector("button").click();
      const seen = [];
      for (const i of [2, 2, 0, 0]) { click(i); seen.push([column(i), table.tHead.rows[0].cells[i].ariaSort]); }
      return seen;
    """
    down, up, words, back = browse(made / "out", script)
    numbers = [float(text.replace(",", "")) for text in down[0]]
    assert numbers == sorted(numbers, reverse=True) and down[1] == "descending" and len(set(numbers)) == 4
    assert up[0] == down[0][::-1] and up[1] == "ascending"
    assert words[0] == sorted(words[0]) and back[0] == sorted(words[0], reverse=True)


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_in_a_browser_a_table_is_copied_with_tabs(made):
    script = """
      let text = null;
      page.execCommand = () => { text = page.activeElement.value; return true; };
      const table = [...page.querySelectorAll("table")].find(t => t.caption.textContent == "Final returns");
      table.previousElementSibling.click();
      return [text, table.previousElementSibling.textContent, page.querySelectorAll("textarea").length];
    """
    text, said, areas = browse(made / "out", script)
    lines = [line.split("\t") for line in text.splitlines()]
    assert (said, areas) == ("Copied", 0) and lines[0][:2] == ["task", "algorithm"]
    assert len(lines) == 5 and lines[1][:2] == ["Ant-v5", "a"] and {len(line) for line in lines} == {len(lines[0])}


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_in_a_browser_evil_names_do_nothing(tmp_path):
    synthetic.make(tmp_path / "in", [EVIL], ["Hopper-v5"], 5, 10)
    make(tmp_path / "in", tmp_path / "out", references="d4rl", title=EVIL, page=True)
    script = "return [page.title, page.querySelectorAll('script').length, page.body.innerText.includes('alert')];"
    title, scripts, shown = browse(tmp_path / "out", script)
    assert (title, scripts, shown) == (EVIL, 1, True)


@pytest.mark.slow
def test_a_large_report_is_quick(tmp_path):
    """10 algorithms x 10 tasks x 10 seeds x 100 evaluations, 2,000 replications: below 20 s on two cores."""
    algorithms, tasks = [f"algorithm {i}" for i in range(10)], [f"Task{i}-v5" for i in range(10)]
    synthetic.make(tmp_path / "in", algorithms, tasks, 10, 100, 1)
    references = pd.DataFrame({"task": tasks, "low": 0.0, "high": 3_000.0, "source": "made up"})
    references.to_csv(tmp_path / "references.csv", index=False)
    started = time.process_time()  # of a busy machine, too
    report.main(report.Args((tmp_path / "in",), tmp_path / "out", str(tmp_path / "references.csv")))
    print(f"{time.process_time() - started:.0f} s")
    assert time.process_time() - started < 80  # four times as much, for slower machines
    assert len(pd.read_csv(tmp_path / "out" / "scores.csv")) == 10 * 10 * 10 * 101


def test_a_purpose_of_its_own_stays_with_a_report(made, tmp_path):
    given = {"references": "d4rl", "replications": 50, "formats": (), "page": False}
    synthetic.tabulate(report.Args((made / "in",), tmp_path / "one", purpose="Which one learns?", **given))
    synthetic.tabulate(report.Args((tmp_path / "one",), tmp_path / "two", **given))
    for folder in ("one", "two"):
        assert (tmp_path / folder / "report.md").read_text().split("\n\n")[1] == "Which one learns?"
        assert json.loads((tmp_path / folder / "report.json").read_text())["purpose"] == "Which one learns?"


def test_the_index_shows_every_report(made, tmp_path):
    shutil.copytree(made / "out", tmp_path / "one")
    (tmp_path / "speed").mkdir()
    (tmp_path / "speed" / "README.md").write_text("# Throughput\n\nfast\n")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "page.md").write_text("# A study\n\nIts purpose.\n\nMore.\n\n![a curve](figures/a.png)\n")
    index.main(index.Args(tmp_path))
    text = (tmp_path / "README.md").read_text()
    assert "## A study\n\nIts purpose." in text and "![a curve](study/figures/a.png)" in text and "More" not in text
    assert "## T\n" in text and "one/figures/learning_curves.png" in text and "## Throughput" in text
    assert (
        "- [T](#t)" in text
        and "- [A study](#a-study): Its purpose." in text
        and "- [Throughput](#throughput): fast" in text
    )
    tasks = pd.read_csv(tmp_path / "one" / "tasks.csv")
    for value in tasks[tasks["score"] == "last"]["mean"]:
        assert f"{value:,.1f}" in text
    with pytest.raises(UserError, match="no report"):
        index.main(index.Args(tmp_path / "speed"))


@pytest.mark.parametrize(("panels", "names"), [(1, 8), (1, 1), (3, 5)])
def test_the_legend_fits_the_figure(panels, names):
    styles = figures.styles_of([f"algorithm (variant_{i})" for i in range(names)])
    line = np.arange(3), np.arange(3.0), np.zeros((2, 3)), np.zeros((1, 3))
    with figures.style():
        figure = figures.grid(
            {f"task {i}": dict.fromkeys(styles, line) for i in range(panels)}, styles, "x", "y", "note"
        )
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1


def test_long_names_are_not_cut(tmp_path):
    names = ["grid (critic_lr=0.0001, tau=0.005)", "sac", "grid (critic_lr=0.001, tau=0.01)"]
    with figures.style():
        figure = figures.heatmap(names, np.full((3, 3), 0.7))
        figures.lay_out(figure)
        figures.save(figure, tmp_path / "heat", ("png",))
    pixels = np.array(Image.open(tmp_path / "heat.png").convert("L"))
    assert pixels[:, :3].min() == pixels[-3:].min() == 255 and pixels.min() < 100


@pytest.mark.parametrize(("label", "ends"), [("success (%)", (-3, 103)), ("return", (-99, 220))])
def test_percentages_end_at_0_and_100(label, ends):
    """Even where an interval does not."""
    curves = {"a": (np.arange(2), np.array([50.0, 80.0]), (np.full(2, -99.0), np.full(2, 220.0)), np.zeros((1, 2)))}
    with figures.style():
        drawn = [
            figures.lines(curves, figures.styles_of(["a"]), "x", label),
            figures.grid({"task": curves}, figures.styles_of(["a"]), "x", label, "note"),
        ]
    for figure in drawn:
        low, high = figure.axes[0].get_ylim()
        assert (low, high) == ends if label == "success (%)" else low < ends[0] and high > ends[1]


def test_curves_of_others_are_drawn_in_grey_with_their_source(tmp_path):
    synthetic.make(tmp_path / "runs", ["a", "b"], ["Ant-v5", "Made-v0"], 3, 20)
    results = analysis.compute(load([tmp_path / "runs"]), None, "last", 20)
    end = results.scores.table["step"].max()
    behind = parts.curves_behind(results, ["sac_simba_v2", "td3_authors"])
    assert list(behind) == ["Ant-v5"] and set(behind["Ant-v5"]) == {"SAC of SimbaV2's baselines", "TD3 by its authors"}
    assert all(steps.max() <= end for steps, *_ in behind["Ant-v5"].values())
    report.main(
        report.Args((tmp_path / "runs",), tmp_path / "out", curves=("td3_authors",), formats=("png",), page=False)
    )
    text = (tmp_path / "out" / "report.md").read_text()
    assert "sfujim/TD3, learning" in text and "MIT" in text and "SimbaV2" not in text
    assert not (tmp_path / "out" / "report.html").exists()
    with pytest.raises(UserError, match=r"--curves takes sac_simba_v2, td3_authors, .*, got 'x'"):
        report.main(report.Args((tmp_path / "runs",), tmp_path / "new", curves=("x",)))


def test_curves_of_others_are_what_their_source_says():
    for name, said in suite.published_curves().items():
        table = suite.read_curves(name)
        assert list(table) == ["task", "algorithm", "seed", "step", "return"] and np.isfinite(table["return"]).all()
        assert (table.groupby("task")["seed"].nunique() == int(said["seeds"])).all()
        assert not table.duplicated(["task", "seed", "step"]).any() and said["licence"]
    td3 = suite.read_curves("td3_authors")
    last = td3[(td3["task"] == "HalfCheetah-v1") & (td3["step"] > 900_000)]["return"]
    assert 9_000 < last.mean() < 10_000  # the paper says 9636.95 for the best of these


def test_what_differs_is_said_and_equal_tables_are_one(tmp_path):
    synthetic.make(tmp_path / "runs", ["a", "b"], ["Ant-v5"], 5, 2)  # one evaluation after the first
    report.main(report.Args((tmp_path / "runs",), tmp_path / "out", references="raw", formats=()))
    page = (tmp_path / "out" / "report.html").read_text()
    assert "(the same by mean of last 10%, max over last 10%" in page
    assert page.count("Score: ") < 4
    verdicts = pd.read_csv(tmp_path / "out" / "verdicts.csv")
    assert verdicts[["task", "a", "b", "test"]].to_numpy().tolist() == [["Ant-v5", "a", "b", "Welch"]]
    assert 'class="tip"' in page and "<title>a: " in page


def test_runs_that_stayed_in_float32_in_spite_of_a_flag_are_named(tmp_path):
    """Those of earlier versions do not tell, and are not named."""
    synthetic.make(tmp_path / "runs", ["a", "b", "c", "d", "e", "f"], ["Ant-v5"], 5, 2)
    kinds = [("a", True, False), ("b", True, True), ("c", True, None), ("d", False, False)]
    kinds += [("e", True, False), ("f", True, False)]
    for name, given, done in kinds:
        (path,) = (tmp_path / "runs").glob(f"*/{name}/**/config.json")
        config = json.loads(path.read_text())
        config["identity"] = config.get("identity", {}) | {"bf16": given, "device": "cuda" if name in "ef" else "cpu"}
        path.write_text(json.dumps(config | {"in_bf16": done}))
    notes = make(tmp_path / "runs", tmp_path / "out").scores.notes
    assert [note for note in notes if "bf16" in note] == [
        "In float32, as the processor has no instructions for bfloat16 (--bf16 was given): a on Ant-v5.",
        "On a GPU, which may round factors of products to TF32, and where --bf16 changes nothing (it was given): "
        "e, f on Ant-v5.",
    ]
    for seed in (0, 1):
        identity = {"bf16": True, "device": "cuda", "seeds": [seed]}
        rows = table({9: {seed: [1.0]}})
        store(tmp_path / "more" / f"seed{seed}", "f", rows, "Ant-v5", in_bf16=seed > 0, identity=identity)
    assert sum(note.endswith(": f (some runs) on Ant-v5.") for note in load([tmp_path / "more"]).notes) == 1


def test_names_of_variants_are_explained_by_the_arguments_in_which_they_differ(tmp_path):
    """Penalties differ between variants; a learned model differs between tasks only, and a default may be absent."""
    for task, weight in (("Ant-v5", 0.5), ("Hopper-v5", 2.5)):
        general = {"seeds": ["0"], "env_id": task, "hidden": [4, 4]}
        for variant, args in (
            ("default", {"dynamics": f"runs/a/long/way/of/{task}/model.safetensors", "penalty_weight": weight}),
            ("base", {"dynamics": f"runs/a/long/way/of/{task}/model.safetensors", "penalty_weight": 0.0}),
            ("true", {"dynamics": "true, or a long way/of/saying so", "penalty_weight": 0.0, "elites": 5}),
        ):
            store(tmp_path / "runs", "mopo", table({9: {0: [1.0], 1: [2.0]}}), task, variant, args=general | args)
        store(tmp_path / "runs", "ravl", table({9: {0: [1.0], 1: [2.0]}}), task, args=general)
    part = variants_part(make(tmp_path / "runs", tmp_path / "out"))
    assert [[cell[0] for cell in row] for row in part.tables[0][1].rows] == [
        ["mopo", "mopo", "dynamics: several; penalty_weight=0.5 or 2.5"],
        ["mopo (base)", "mopo", "dynamics: several; penalty_weight=0"],
        ["mopo (true)", "mopo", "dynamics=…/saying so; penalty_weight=0"],
    ]
    assert (
        "| mopo (base) | mopo | dynamics: several; penalty\\_weight=0 |" in (tmp_path / "out" / "report.md").read_text()
    )


def test_arguments_that_are_no_defaults_are_told(tmp_path):
    """Some defaults depend on the dataset; what a run did not store, or its script does not know, is no news."""
    maze, walk = "local/pointmaze-large-stitch-v0", "local/hopper-medium-v0"
    scores_of_two = table({9: {0: [1.0], 1: [2.0]}})
    for name, task, args in (
        ("gcbc", maze, {"goal": "state", "lr": 3e-4, "hidden": [64, 64]}),
        ("gciql", maze, {"actor_goals": [0.0, 0.5, 0.5], "alpha": 0.003, "bf16": True}),  # the defaults for stitch data
        ("gcivl", maze, {"actor_goals": [0.0, 1.0, 0.0], "gone": 5}),  # those for navigate data
        ("iql", walk, {"lr": 3e-4}),
        ("of_others", walk, {"lr": 1.0}),
    ):
        store(tmp_path / "runs", name, scores_of_two, task, args={"dataset": task, "seeds": ["0", "1"], **args})
    part = variants_part(make(tmp_path / "runs", tmp_path / "out"))
    assert part.title == "Arguments" and "one script" not in part.text
    assert [[cell[0] for cell in row] for row in part.tables[0][1].rows] == [
        ["gcbc", "gcbc", "hidden=64 64"],
        ["gciql", "gciql", "bf16=true"],
        ["gcivl", "gcivl", "actor_goals=0 1 0"],
    ]
    assert "hidden=64 64" in (tmp_path / "out" / "report.md").read_text()


def test_a_report_does_not_hide_the_runs_of_its_folder(tmp_path):
    synthetic.make(tmp_path / "runs", ["a"], ["Hopper-v5"], 2, 3)
    for out in (tmp_path / "runs", tmp_path, tmp_path / "runs" / "Hopper-v5" / "a" / "default"):
        with pytest.raises(UserError, match="which a report would hide: choose a folder without runs"):
            make(tmp_path / "runs", out)
    assert not list(tmp_path.rglob("report.json"))
    make(tmp_path / "runs", tmp_path / "runs" / "report")
    synthetic.make(tmp_path / "runs", ["b"], ["Hopper-v5"], 2, 3)
    assert make(tmp_path / "runs", tmp_path / "runs" / "report").scores.algorithms == ["a", "b"]


def test_spreads_beside_a_missing_one_are_read_bit_for_bit(tmp_path):
    synthetic.make(tmp_path / "runs", ["a"], ["Hopper-v5"], 20, 20)
    make(tmp_path / "runs", tmp_path / "out")
    path = tmp_path / "out" / "scores.csv"
    stored = pd.read_csv(path, float_precision="round_trip")
    stored.loc[0, "episode_std"] = np.nan
    stored.to_csv(path, index=False)
    found = load([tmp_path / "out"]).table["episode_std"]
    assert found.isna().sum() == 1 and (found[1:] == stored["episode_std"][1:]).all()
    path.write_text(path.read_text().replace(str(stored["episode_std"][1]), "much"))
    with pytest.raises(UserError, match=r"scores.csv is damaged: could not convert string to float: 'much'"):
        load([tmp_path / "out"])


def test_runs_in_the_folder_of_a_report_are_not_passed_over(tmp_path):
    synthetic.make(tmp_path / "runs", ["a"], ["Hopper-v5"], 2, 3)
    make(tmp_path / "runs", tmp_path / "again")
    synthetic.make(tmp_path / "again" / "seeds_0-1", ["b"], ["Hopper-v5"], 2, 3)
    with pytest.raises(UserError, match=r"again holds a report, and also \S+/b/default: move the runs"):
        load([tmp_path / "again"])
    shutil.rmtree(tmp_path / "again" / "seeds_0-1")
    assert len(load([tmp_path / "again"]).sources) == 1


def test_references_that_would_fit_are_named(tmp_path, capsys):
    synthetic.make(tmp_path / "known", ["a"], ["Hopper-v5"], 2, 3)
    synthetic.make(tmp_path / "unknown", ["a"], ["Hopper-v5", "Mine-v0"], 2, 3)
    for folder, references, said in (
        ("known", "", "note: scores are not normalised, which --references d4rl or random_sac or recipes would do"),
        ("known", "d4rl", ""),
        ("known", "raw", ""),
        ("unknown", "", ""),
    ):
        make(tmp_path / folder, tmp_path / "out", references=references)
        out = capsys.readouterr().out
        assert said in out and ("not normalised" in out) == bool(said)


def normalised(folder):
    return analysis.compute(
        load([folder]), suite.read_references(suite.BENCHMARKS / "references" / "d4rl.csv"), "last", 20
    )


def test_aggregates_say_on_which_tasks_they_are(tmp_path):
    synthetic.make(tmp_path, ["a", "b"], TASKS[:3], 5, 3)
    for lacking, said in ((0, "Over seeds on 3 tasks: "), (1, "Over seeds on 2 tasks that all algorithms have: ")):
        if lacking:
            shutil.rmtree(tmp_path / TASKS[0] / "b")
        results = normalised(tmp_path)
        assert said in parts.aggregate_part(results).text


def test_a_verdict_over_tasks_is_over_those_of_both(tmp_path):
    """`a` and `c` have all three; `b` lacks the first, or has one seed there: of its pairs it is the mean of two."""

    def verdicts():
        results = normalised(tmp_path)
        found = comparisons(results)
        over = {(one.a, one.b): one for one in found if one.tasks > 1}
        return {(one.a, one.b, one.task): one for one in found}, over, decision_part(results, found, False)

    synthetic.make(tmp_path, ["a", "b", "c"], TASKS[:3], 5, 3)
    single, every, part = verdicts()
    assert {one.task for one in every.values()} == {"all tasks"} and len(every) == 3
    assert "than those of another pair" not in part.method
    results = normalised(tmp_path)
    assert results.headline != results.score
    means = results.final.groupby(["task", "algorithm"])[results.headline].mean()
    for (a, b, task), one in single.items():
        if one.tasks == 1:
            assert one.difference == pytest.approx(means[task, a] - means[task, b])
    whole, highest = sorted(single.values(), key=lambda one: one.p), 0.0  # Holm's correction is for the whole report
    assert len(whole) == 12 and any(one.verdict != "not decided" for one in whole)
    for place, one in enumerate(whole):
        highest = max(highest, min(1.0, (len(whole) - place) * one.p))
        assert one.corrected == pytest.approx(highest)
    shutil.rmtree(tmp_path / TASKS[0] / "b")
    for seeds in range(2):
        if seeds:
            synthetic.make(tmp_path, ["b"], TASKS[:1], seeds, 3)
        _, over, part = verdicts()
        two, names = "the 2 tasks of both", {pair: one.task for pair, one in over.items()}
        assert names == {("a", "b"): two, ("a", "c"): "all tasks", ("b", "c"): two}
        for pair in (("a", "b"), ("b", "c")):
            mean = sum(single[*pair, task].difference for task in TASKS[1:3]) / 2
            assert over[pair].difference == pytest.approx(mean)
        assert over["a", "c"].difference == every["a", "c"].difference
        assert "than those of another pair" in part.method and any(f" over {two}" in line for line in part.sentences)


def efficiency_of(folder, returns, every, high):
    """Sample efficiency of an algorithm, from the returns [seeds, evaluations] of each task and the steps between."""
    for task, of_task in returns.items():
        rows = [(s, every[task] * i, 0, x) for s, of_seed in enumerate(of_task) for i, x in enumerate(of_seed)]
        table = pd.DataFrame(rows, columns=["seed", "step", "episode", "return"]).astype({"return": float})
        store(folder, "a", table, task)
    references = pd.DataFrame({"task": list(returns), "low": 0.0, "high": high, "source": "made up"})
    curves, label = analysis.efficiency(analysis.compute(load([folder]), references, "last", 20))
    places, centre, (least, most), _ = curves["a"]
    assert (least <= centre).all() and (centre <= most).all()
    return dict(zip(places.round(2).tolist(), centre.tolist(), strict=True)), label


def test_sample_efficiency_is_over_the_shares_of_steps_where_tasks_differ_in_them(tmp_path):
    """One task has evaluations at steps 0, 10 and 20, and one at 0, 40, 80, 120 and 160, of two seeds.

    A seed keeps its score until its next evaluation, and the IQM of four scores is the mean of the middle two.
    """
    returns = {"Short-v0": [[0, 2, 4], [1, 3, 5]], "Long-v0": [[10, 11, 12, 13, 14], [20, 21, 22, 23, 24]]}
    found, label = efficiency_of(tmp_path, returns, {"Short-v0": 10, "Long-v0": 40}, 1.0)
    assert label == "share of the steps of each task" and len(found) == 51
    expected = {0.0: (1 + 10) / 2, 0.24: (1 + 10) / 2, 0.26: (1 + 11) / 2, 0.48: (1 + 11) / 2, 0.5: (3 + 12) / 2}
    expected |= {0.74: (3 + 12) / 2, 0.76: (3 + 13) / 2, 0.98: (3 + 13) / 2, 1.0: (5 + 14) / 2}
    assert {share: found[share] for share in expected} == pytest.approx(expected)


def test_sample_efficiency_is_over_some_of_many_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "MOST_STEPS", 3)
    found, _ = efficiency_of(tmp_path, {"One-v0": [range(7), range(7)]}, {"One-v0": 10}, 1.0)
    assert found == {0: 0, 30: 3, 60: 6}


def test_sample_efficiency_is_over_steps_where_all_tasks_have_the_same(tmp_path):
    returns = {"One-v0": [[0, 2], [1, 3]], "Other-v0": [[10, 11], [20, 21]]}
    found, label = efficiency_of(tmp_path, returns, {"One-v0": 10, "Other-v0": 10}, 2.0)
    assert label == "environment steps" and found == pytest.approx({0: (1 + 10) / 4, 10: (3 + 11) / 4})
