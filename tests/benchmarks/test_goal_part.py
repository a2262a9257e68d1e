"""Reports on runs that are scored by success."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from synthetic import tabulate

from algos.errors import UserError
from benchmarks import report
from benchmarks.analysis import compute
from benchmarks.decision_part import comparisons
from benchmarks.load_scores import load
from benchmarks.maze_part import MAPS, WAYS, maze_part
from benchmarks.suite import BENCHMARKS, read_references


@pytest.fixture
def runs(tmp_path):
    """Two algorithms, two seeds, two tasks: `good` reaches the first goal always, and the second from step 20 on."""
    for algorithm in ("good", "bad"):
        folder = tmp_path / "runs" / "maze" / algorithm / "default"
        folder.mkdir(parents=True)
        rows = [
            (seed, step, task, episode, -5.0, 5, algorithm == "good" and (task == "task1" or step >= 20))
            for seed in (0, 1) for step in (0, 10, 20, 30) for task in ("task1", "task2") for episode in (0, 1)
        ]  # fmt: skip
        columns = ["seed", "step", "task", "episode", "return", "length", "success"]
        pd.DataFrame(rows, columns=columns).to_parquet(folder / "eval.parquet")
        config = {
            "algorithm": algorithm, "task": "local/pointmaze-medium-navigate-v0", "env_id": "", "variant": "default",
            "status": "finished", "score": "success", "seeds": [0, 1], "args": {"eval_episodes": 2},
            "facts": {"evaluated_in": "pointmaze-medium-v0"},
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
    return tmp_path / "runs"


def made(folders, out, built=False, **choices):
    """Makes a report; figures that it does not draw are not made either, unless they are to be `built`."""
    choices = {"formats": (), "page": False} | choices
    folders = folders if isinstance(folders, tuple) else (folders,)
    args = report.Args(folders=folders, out=out, replications=20, **choices)
    (report.main if args.formats or args.page or built else tabulate)(args)
    return pd.read_csv(out / "final.csv").set_index(["algorithm", "seed"])


def test_the_score_is_the_share_of_episodes_over_all_tasks(runs, tmp_path):
    final = made(runs, tmp_path / "out")
    assert final.loc[("good", 0), "last"] == 100 and final.loc[("bad", 1), "last"] == 0
    assert final.loc[("good", 0), "three"] == pytest.approx((50 + 100 + 100) / 3)
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Final success" in text and "| good | 100.0 | 100.0 | 2 |" in text and "returns" not in text.lower()
    assert "![" not in text and not list((tmp_path / "out" / "figures").iterdir())  # as no format is asked for


def test_success_on_each_task_is_kept_and_a_report_can_be_made_again(runs, tmp_path):
    made(runs, tmp_path / "out")
    watched = pd.read_csv(tmp_path / "out" / "watched.csv")
    values = watched.pivot_table(index=["algorithm", "step"], columns="metric", values="value")
    assert values.loc[("good", 10)].tolist() == [100, 0] and list(values) == ["success/task1", "success/task2"]
    assert np.all(values.loc["bad"] == 0)
    made(tmp_path / "out", tmp_path / "again")
    for name in ("watched.csv", "scores.csv", "final.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_intervals_of_percentages_end_where_percentages_do(runs, tmp_path):
    table = pd.read_parquet(runs / "maze" / "good" / "default" / "eval.parquet")
    table["success"] &= (table["seed"] == 0) | (table["task"] == "task1")  # 100 and 50: [-243, 393]
    table.to_parquet(runs / "maze" / "good" / "default" / "eval.parquet")
    made(runs, tmp_path / "out", built=True)
    tasks = pd.read_csv(tmp_path / "out" / "tasks.csv").set_index(["algorithm", "score"])
    assert tasks.loc[("good", "last"), ["mean", "low", "high"]].tolist() == [75, 0, 100]


@pytest.mark.parametrize(("references", "ends"), [("raw", (0, 100)), ("success", (0, 1)), ("half.csv", (-1, 1))])
def test_aggregates_and_differences_of_percentages_end_where_percentages_do(references, ends, runs, tmp_path):
    low, high = ends
    (tmp_path / "half.csv").write_text("task,low,high,source\nlocal/pointmaze-medium-navigate-v0,50,100,made up\n")
    table = pd.read_parquet(runs / "maze" / "good" / "default" / "eval.parquet")
    table["success"] &= (table["seed"] == 0) | (table["task"] == "task1")
    table.to_parquet(runs / "maze" / "good" / "default" / "eval.parquet")
    made(runs, tmp_path / "out", references=str(tmp_path / references) if "." in references else references)
    found = pd.read_csv(tmp_path / "out" / "aggregates.csv")
    found = found[(found["algorithm"] == "good") & (found["score"] == "last")].set_index("statistic")
    assert found.loc["IQM", ["low", "high"]].tolist() == [low, high]
    if references != "raw":
        assert found.loc["optimality gap", ["low", "high"]].tolist() == [0, 1 - low]
    folder = tmp_path if "." in references else BENCHMARKS / "references"
    chosen = None if references == "raw" else read_references((folder / references).with_suffix(".csv"))
    (one,) = comparisons(compute(load([runs]), chosen, "last", 20))
    assert one.most == high - low
    assert (one.low, one.high) == (low - high, high - low)  # of 0 and 75, from two seeds
    assert one.difference == pytest.approx(-0.75 * (high - low))
    assert (one.a, one.b) == ("bad", "good")


def test_the_mean_of_three_is_of_no_fewer(runs, tmp_path):
    for place in runs.glob("maze/*/default/eval.parquet"):
        table = pd.read_parquet(place)
        table[table["step"] <= 20].to_parquet(place)
    final = made(runs, tmp_path / "out", built=True)
    assert final["three"].isna().all() and final.loc[("good", 0), "best"] == 100
    assert "three" not in set(pd.read_csv(tmp_path / "out" / "tasks.csv")["score"])
    assert "three" not in (tmp_path / "out" / "report.md").read_text()
    with pytest.raises(UserError, match="needs three evaluations"):
        made(runs, tmp_path / "again", score="three")


def test_success_is_normalised_by_its_own_references(runs, tmp_path):
    final = made(runs, tmp_path / "out", references="success", score="three")
    assert final.loc[("good", 0), "three_normalised"] == pytest.approx(250 / 300)


def test_ways_and_maps_are_drawn_and_stored(runs, tmp_path):
    folder = runs / "maze" / "good" / "default"
    ways = [(seed, "task1", step, 0.2 * max(step, 0), 0.0) for seed in (0, 1) for step in range(-1, 41)]
    ways += [(seed, "task1", step, 8.0, 0.0) for seed in (0, 1) for step in range(41, 200)]  # it stands still
    pd.DataFrame(ways, columns=["seed", "task", "step", "x", "y"]).to_parquet(folder / "ways.parquet")
    values = [(seed, "task1", x, y, seed + x) for seed in (0, 1) for x in (0.0, 1.0) for y in (0.0, 1.0)]
    pd.DataFrame(values, columns=["seed", "task", "x", "y", "value"]).to_parquet(folder / "values.parquet")
    made(runs, tmp_path / "out", formats=("png",), page=True)
    stored = pd.read_csv(tmp_path / "out" / "ways.csv")
    assert stored["step"].tolist() == [-1, 0, 5, 10, 15, 20, 25, 30, 35, 40] * 2
    assert pd.read_csv(tmp_path / "out" / "maps.csv")["value"].tolist() == [0.5, 0.5, 1.5, 1.5]
    names = {path.name.partition("_")[0] for path in (tmp_path / "out" / "figures").iterdir()}
    assert {"ways", "values", "goals"} <= names and "Each goal" in (tmp_path / "out" / "report.html").read_text()
    assert "Maps show values" in (tmp_path / "out" / "report.md").read_text()
    made(tmp_path / "out", tmp_path / "again")
    for name in ("ways.csv", "maps.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    made(tmp_path / "again", tmp_path / "again")  # in its own place
    for name in ("ways.csv", "maps.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_ways_on_a_file_of_data_are_drawn_and_those_of_a_damaged_run_are_not_read(runs, tmp_path):
    """A suite makes the path of a file absolute, and a report names the file alone."""
    folder = runs / "maze" / "good" / "default"
    ways = [(seed, "task1", step, 0.2 * max(step, 0), 0.0) for seed in (0, 1) for step in range(-1, 41)]
    pd.DataFrame(ways, columns=["seed", "task", "step", "x", "y"]).to_parquet(folder / "ways.parquet")
    for path in runs.rglob("config.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"task": str(tmp_path / "mine.npz")}))
    shutil.copytree(folder, runs / "damaged" / "20260101-000000-1")
    (runs / "damaged" / "20260101-000000-1" / "config.json").rename(runs / "damaged" / "config.damaged.json")
    made(runs, tmp_path / "out", formats=("png",))
    assert set(pd.read_csv(tmp_path / "out" / "ways.csv")["task"]) == {"mine.npz"}
    assert "## Mazes" in (tmp_path / "out" / "report.md").read_text()


def test_ways_without_values_come_without_maps(runs, tmp_path):
    ways = [(0, "task1", step, 0.2 * max(step, 0), 0.0) for step in range(-1, 41)]
    table = pd.DataFrame(ways, columns=["seed", "task", "step", "x", "y"])
    table.to_parquet(runs / "maze" / "good" / "default" / "ways.parquet")
    made(runs, tmp_path / "out", formats=("png",))
    text = (tmp_path / "out" / "report.md").read_text()
    assert "in the last evaluation, one episode" in text and "Maps show values" not in text
    config = json.loads((path := runs / "maze" / "good" / "default" / "config.json").read_text())
    path.write_text(json.dumps(config | {"step": 40}))  # as if another run had stopped halfway
    made(runs, tmp_path / "out", formats=("png",))
    text = (tmp_path / "out" / "report.md").read_text()
    assert "in the last evaluation of their run, also where it is later than the scores, one episode" in text


def ways_of(tasks, task="t"):
    """The figure of the ways of one setting on some tasks."""
    part = maze_part(
        SimpleNamespace(
            names={"a": "0.5, 3"}, names_are="p, k", in_curves=["a"],
            scores=SimpleNamespace(
                ends=pd.Series({task: 1}), settings={"a": {"p": 0.5, "k": 3}},
                sources=[{"task": task, "facts": {"evaluated_in": "pointmaze-medium-v0"}}],
            ),
        ),
        pd.DataFrame([(task, "a", 0, f"task{k}", 0, 0.0, 0.0) for k in range(tasks)], columns=WAYS),
        pd.DataFrame(columns=MAPS),
    )  # fmt: skip
    return part.figures[0][1]


def test_figures_of_a_maze_are_of_the_algorithms_that_have_something_to_show():
    """Of eleven the first ten without values, and of a maze on which no setting is among those of figures."""
    names = [*(f"a{k}" for k in range(11)), "b"]
    found = [("t", name, 0, "task1", 0, 0.0, 0.0) for name in names[:-1]] + [("u", "b", 0, "task1", 0, 0.0, 0.0)]
    values = pd.DataFrame([("t", "a10", "task1", 0.0, 0.0, 1.0), ("u", "b", "task1", 0.0, 0.0, 1.0)], columns=MAPS)
    sources = [{"task": task, "facts": {"evaluated_in": "pointmaze-medium-v0"}} for task in "tu"]
    ends = pd.Series({"t": 1, "u": 1})
    results = SimpleNamespace(
        names={name: name for name in names}, names_are="", in_curves=names[:-1],
        scores=SimpleNamespace(ends=ends, settings={}, sources=sources),
    )  # fmt: skip
    part = maze_part(results, pd.DataFrame(found, columns=WAYS), values)
    assert [name for name, *_ in part.figures] == ["ways_t", "values_t"]


def test_rows_of_ways_name_each_hyperparameter_of_a_setting():
    assert ways_of(1).axes[0].get_ylabel() == "p 0.5\nk 3"


@pytest.mark.parametrize("tasks", [1, 2, 3, 5])
def test_titles_of_ways_are_not_cut(tasks):
    figure = ways_of(tasks, "local/pointmaze-teleport-navigate-v0")
    title = figure.texts[0].get_window_extent(FigureCanvasAgg(figure).get_renderer())
    assert title.x0 >= 0 and title.x1 <= figure.bbox.x1 and figure.texts[0].get_text().count("\n") == (tasks < 3)


def split(runs, seeds):
    """Gives each seed of `good` a folder of its own with ways and values; returns the folder of the algorithm."""
    good = runs / "maze" / "good"
    table = pd.read_parquet(good / "default" / "eval.parquet")
    config = json.loads((good / "default" / "config.json").read_text())
    shutil.rmtree(good / "default")
    for seed in seeds:
        (folder := good / f"seed{seed}").mkdir()
        (folder / "config.json").write_text(json.dumps(config | {"seeds": [seed]}))
        table[table["seed"] == 0].assign(seed=seed).to_parquet(folder / "eval.parquet")
        ways = [(seed, "task1", step, 0.2 * max(step, 0), 0.0) for step in range(-1, 9)]
        pd.DataFrame(ways, columns=["seed", "task", "step", "x", "y"]).to_parquet(folder / "ways.parquet")
        values = [(seed, "task1", x, y, seed + x) for x in (0.0, 1.0) for y in (0.0, 1.0)]
        pd.DataFrame(values, columns=["seed", "task", "x", "y", "value"]).to_parquet(folder / "values.parquet")
    return good


def test_the_seeds_of_two_processes_make_one_map(runs, tmp_path):
    split(runs, (0, 1))
    made(runs, tmp_path / "out")
    assert pd.read_csv(tmp_path / "out" / "maps.csv")["value"].tolist() == [0.5, 0.5, 1.5, 1.5]
    text = (tmp_path / "out" / "report.md").read_text()
    assert "![" not in text and "## Mazes" not in text  # without PNG
    shutil.rmtree(runs)  # a report is made again from its own tables
    made(tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "again" / "ways.csv").read_bytes() == (tmp_path / "out" / "ways.csv").read_bytes()


def test_the_map_of_a_report_and_of_a_further_seed_is_the_mean_over_all_seeds(runs, tmp_path):
    good = split(runs, (0, 1, 5))
    shutil.move(good / "seed5", tmp_path / "later" / "maze" / "good" / "seed5")
    made(runs, tmp_path / "out")
    made((tmp_path / "out", tmp_path / "later"), tmp_path / "out", formats=("png",))
    assert pd.read_csv(tmp_path / "out" / "maps.csv")["value"].tolist() == [2.0, 2.0, 3.0, 3.0]
    assert any((tmp_path / "out" / "figures").glob("values_*"))


def test_seeds_that_are_left_out_have_no_ways_and_values(runs, tmp_path):
    config = json.loads((path := split(runs, (0, 1)) / "seed1" / "config.json").read_text())
    path.write_text(json.dumps(config | {"status": "running"}))
    made(runs, tmp_path / "out", finished_only=True)
    assert set(pd.read_csv(tmp_path / "out" / "ways.csv")["seed"]) == {0}
    assert pd.read_csv(tmp_path / "out" / "maps.csv")["value"].tolist() == [0, 0, 1, 1]


def test_a_map_made_again_has_no_negative_zero(runs, tmp_path):
    good = split(runs, (0,))
    values = pd.read_parquet(path := good / "seed0" / "values.parquet")
    values.assign(value=-0.00003).to_parquet(path)
    made(runs, tmp_path / "out")
    made(tmp_path / "out", tmp_path / "again")
    text = (tmp_path / "out" / "maps.csv").read_text()
    assert "-0.0" not in text and text == (tmp_path / "again" / "maps.csv").read_text()


def test_where_a_seed_has_no_value_a_map_is_the_mean_over_the_others(runs, tmp_path):
    good = split(runs, (0, 1))
    for seed, nowhere in ((0, (0.0, 0.0)), (0, (1.0, 0.0)), (1, (1.0, 0.0))):
        values = pd.read_parquet(path := good / f"seed{seed}" / "values.parquet")
        values.loc[(values["x"] == nowhere[0]) & (values["y"] == nowhere[1]), "value"] = np.nan
        values.to_parquet(path)
    made(runs, tmp_path / "out", formats=("png",))
    found = pd.read_csv(tmp_path / "out" / "maps.csv")["value"]
    assert found.tolist() == pytest.approx([1, 0.5, np.nan, 1.5], nan_ok=True)


def test_damaged_ways_are_refused(runs, tmp_path):
    (runs / "maze" / "good" / "default" / "ways.parquet").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"ways\.parquet"):
        made(runs, tmp_path / "out")


def test_success_and_returns_are_not_compared(runs, tmp_path):
    config = json.loads((runs / "maze" / "bad" / "default" / "config.json").read_text())
    config["score"] = "return"
    (runs / "maze" / "bad" / "default" / "config.json").write_text(json.dumps(config))
    table = pd.read_parquet(runs / "maze" / "bad" / "default" / "eval.parquet").drop(columns="task")
    table.drop_duplicates(["seed", "step", "episode"]).to_parquet(runs / "maze" / "bad" / "default" / "eval.parquet")
    with pytest.raises(UserError, match="differ in score"):
        made(runs, tmp_path / "out")
