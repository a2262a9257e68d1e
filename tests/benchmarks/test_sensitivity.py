"""Reports of runs that varied hyperparameters, and of environments with several tasks."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import synthetic
from synthetic import GRID, settings_of, store

from algos.errors import UserError
from benchmarks import analysis, figures, index, parts, report, scores, sensitivity, suite
from benchmarks.load_scores import load

LOST = {"seed": 1, "expectile": 0.9, "temperature": 10.0, "step": 40}


def results_of(folder, references="d4rl", replications=20) -> analysis.Results:
    rows = suite.read_references(suite.BENCHMARKS / "references" / "d4rl.csv") if references == "d4rl" else None
    return analysis.compute(load([folder]), rows, "last", replications)


def rewrite(folder, change) -> None:
    """Applies a function to the evaluations of the one run in a folder."""
    (path,) = folder.rglob("eval.parquet")
    change(pd.read_parquet(path)).to_parquet(path, write_page_checksum=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A report of 12 settings on two tasks, of which one diverged with one seed."""
    folder = tmp_path_factory.mktemp("made")
    synthetic.vary(folder / "in", "iql", ["Hopper-v5", "Ant-v5"], GRID, diverged=[LOST])
    published = (suite.BENCHMARKS / "published" / "sac_1m.csv",)
    given = {"replications": 20, "title": "T", "formats": ("png",), "page": False}
    report.main(report.Args((folder / "in",), folder / "out", "d4rl", published, **given))
    return folder


# -- scores -----------------------------------------------------------------------------------------------------------


def test_each_setting_is_an_algorithm_of_its_own_with_its_own_source(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], {"expectile": [0.7, 0.9], "temperature": [3.0, 10.0]})
    loaded = load([tmp_path])
    assert loaded.algorithms == [
        "iql (expectile=0.7, temperature=3)", "iql (expectile=0.7, temperature=10)",
        "iql (expectile=0.9, temperature=3)", "iql (expectile=0.9, temperature=10)",
    ]  # fmt: skip
    raw = pd.read_parquet(next(tmp_path.rglob("eval.parquet")))
    last = raw[(raw["expectile"] == 0.9) & (raw["temperature"] == 3) & (raw["seed"] == 2)].iloc[-1]["return"]
    final = scores.final_scores(loaded.table).set_index(["algorithm", "seed"])["last"]
    assert final["iql (expectile=0.9, temperature=3)", 2] == last
    source = loaded.sources[1]
    assert source["setting"] == {"expectile": 0.7, "temperature": 10.0}
    assert source["identity"]["temperature"] == 10.0 and "vary" not in source["identity"]
    assert "settings" not in source and "varied" not in source


def test_a_suites_name_for_a_varied_algorithm_is_in_the_report_with_that_of_the_script(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], {"lr": [1e-5, 3e-4]}, variant="tuning")
    assert load([tmp_path]).algorithms == ["iql (tuning) (lr=1e-05)", "iql (tuning) (lr=0.0003)"]


def test_only_the_setting_that_diverged_keeps_an_earlier_score(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], GRID, diverged=[LOST])
    loaded = load([tmp_path])
    name = "iql (expectile=0.9, temperature=10)"
    assert [s["diverged"] for s in loaded.sources if s["diverged"]] == [[{"seed": 1, "step": 40}]]
    assert loaded.notes[:-1] == [
        f"Seed 1 of {name} on Hopper-v5 diverged before step 40 and counts with the return of its last evaluation."
    ]
    own = loaded.table[(loaded.table["algorithm"] == name) & (loaded.table["seed"] == 1)].set_index("step")["return"]
    assert (own[40:] == own[30]).all() and len(own) == 11


def test_many_diverged_seeds_of_a_setting_are_one_note(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], GRID, diverged=[LOST | {"seed": seed} for seed in range(3)])
    note, _ = load([tmp_path]).notes  # the other one: there are few seeds
    assert note.startswith("Seeds 0, 1, 2 of iql (expectile=0.9, temperature=10) on Hopper-v5 diverged before steps 40")


def test_settings_of_two_processes_come_together_and_no_seed_occurs_twice(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], {"expectile": [0.7, 0.9]}, seeds=3)
    synthetic.vary(tmp_path / "more", "iql", ["Hopper-v5"], {"expectile": [0.7, 0.9]}, seeds=5)
    rewrite(tmp_path / "more", lambda frame: frame[frame["seed"] >= 3])
    loaded = load([tmp_path])
    assert sorted(loaded.table["seed"].unique()) == [0, 1, 2, 3, 4] and len(loaded.algorithms) == 2
    shutil.copytree(tmp_path / "Hopper-v5", tmp_path / "again" / "Hopper-v5")
    with pytest.raises(UserError, match=r"seed 0 of iql \(expectile=0.7\) on Hopper-v5 occurs twice"):
        load([tmp_path])


def test_rows_of_a_setting_that_the_configuration_lacks_are_damage(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], {"lr": [1e-4, 1e-3]})
    rewrite(tmp_path, lambda frame: frame.replace({"lr": {1e-3: 2e-3}}))
    with pytest.raises(UserError, match=r"eval.parquet is damaged: it has rows of settings"):
        load([tmp_path])
    rewrite(tmp_path, lambda frame: frame.drop(columns="lr"))
    with pytest.raises(UserError, match=r"eval.parquet is damaged: it has no column 'lr'"):
        load([tmp_path])


def test_other_protocols_are_told_by_algorithm_and_not_by_setting(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], GRID)
    synthetic.make(tmp_path, ["bc"], ["Hopper-v5"], 5, 10)
    assert len(load([tmp_path]).algorithms) == 13
    (config,) = tmp_path.rglob("bc/default/config.json")
    config.write_text(config.read_text().replace('"eval_episodes": 2', '"eval_episodes": 5'))
    with pytest.raises(UserError, match=r"evaluation episodes on Hopper-v5: 5 \(bc\) but 2 \(iql\)\. Report"):
        load([tmp_path])


@pytest.mark.parametrize("form", [{"1": 40}, [{"seed": 1, "step": 40}]])
def test_diverged_seeds_are_read_as_runs_wrote_them_before_and_now(tmp_path, form):
    rows = [(seed, step, 0, 1.0 + step) for seed in (0, 1) for step in range(0, 101, 10) if seed == 0 or step < 40]
    frame = pd.DataFrame(rows, columns=["seed", "step", "episode", "return"])
    place = store(tmp_path, "a", frame, "Hopper-v5", diverged=form, varied=[], settings=[{}])
    config = json.loads((place / "config.json").read_text())
    config["identity"]["total_steps"] = 100
    (place / "config.json").write_text(json.dumps(config))
    loaded = load([tmp_path])
    assert loaded.algorithms == ["a"] and loaded.sources[0]["diverged"] == [{"seed": 1, "step": 40}]
    assert scores.final_scores(loaded.table).set_index("seed")["last"].to_dict() == {0: 101.0, 1: 31.0}


def test_tasks_of_one_environment_are_reported_one_by_one(tmp_path):
    synthetic.vary(tmp_path / "in", "gcbc", ["Hopper-v5"], {"lr": [1e-4, 1e-3]})
    rewrite(
        tmp_path / "in",
        lambda frame: pd.concat(
            [frame.assign(task=f"task{i}", success=True, **{"return": frame["return"] + i}) for i in (1, 2)]
        ),
    )
    args = report.Args((tmp_path / "in",), tmp_path / "out", "d4rl", replications=20, formats=(), page=False)
    report.main(args)
    table = pd.read_csv(tmp_path / "out" / "scores.csv")
    assert sorted(table["task"].unique()) == ["Hopper-v5 · task1", "Hopper-v5 · task2"]
    means = table.groupby("task")["return"].mean()
    assert means["Hopper-v5 · task2"] - means["Hopper-v5 · task1"] == pytest.approx(1.0)
    loaded = load([tmp_path / "out"])
    ((_, runs),) = parts.source_part(results_of(tmp_path / "out")).tables
    assert [row[0][0] for row in runs.rows] == ["Hopper-v5, 2 tasks"] and len(loaded.sources) == 4


def test_a_task_column_with_one_task_and_success_change_nothing(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], {"lr": [1e-4, 1e-3]})
    before = load([tmp_path]).table
    rewrite(tmp_path, lambda frame: frame.assign(task="only", success=False))
    pd.testing.assert_frame_equal(load([tmp_path]).table, before)


# -- what is computed -------------------------------------------------------------------------------------------------


def test_a_line_fixes_the_other_hyperparameters_and_the_mean_is_over_them(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], GRID)
    results = results_of(tmp_path, "raw")
    grid = sensitivity.grid_of(results, results.scores.grids["iql"], "Hopper-v5")
    raw = pd.read_parquet(next(tmp_path.rglob("eval.parquet")))
    raw = raw[raw["step"] == 100]
    values, means, low, high = grid.points("expectile", [{"temperature": 3.0}])
    assert list(values) == GRID["expectile"]
    np.testing.assert_allclose(means, raw[raw["temperature"] == 3].groupby("expectile")["return"].mean())
    assert (low < means).all() and (means < high).all()
    np.testing.assert_allclose(
        grid.points("expectile", grid.shared("expectile"))[1], raw.groupby("expectile")["return"].mean()
    )


def test_the_interval_of_a_mean_over_settings_is_over_seeds_and_not_over_runs():
    settings = settings_of({"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0, 4.0]})
    of_seed = np.array([0.0, 10.0, 20.0, 30.0])
    grid = sensitivity.Grid(settings, pd.DataFrame(dict.fromkeys(range(8), of_seed)))  # settings make no difference
    _, _, low, high = grid.points("a", grid.shared("a"))
    _, _, one_low, one_high = grid.points("a", [{"b": 1.0}])
    np.testing.assert_allclose([low, high], [one_low, one_high])  # with runs as units it would be half as wide


def test_a_mean_over_settings_uses_the_seeds_that_all_of_them_have():
    grid = sensitivity.Grid(
        settings_of({"a": [1.0], "b": [1.0, 2.0]}), pd.DataFrame({0: [1.0, 2.0, 9.0], 1: [3.0, 4.0, np.nan]})
    )
    assert list(grid.mean_over(grid.settings)) == [2.0, 3.0]


def test_a_mean_over_settings_holds_those_alone_that_all_values_have(tmp_path):
    grid = sensitivity.Grid(
        [{"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0}, {"a": 2.0, "b": 2.0}, {"a": 3.0, "b": 1.0}],
        pd.DataFrame({0: [1.0, 3.0], 1: [2.0, 4.0], 2: [5.0, 7.0], 3: [6.0, 8.0], 4: [900.0, 900.0]}),
    )
    assert grid.shared("b") == [{"a": 1.0}, {"a": 2.0}] and grid.shared("a") == [{"b": 1.0}]
    assert grid.points("b", grid.shared("b"))[1].tolist() == [4.0, 5.0]  # a = 3 is there with one value of b only
    single = sensitivity.Grid(
        [{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 2.0}], pd.DataFrame({0: [1.0, 3.0], 1: [2.0, 4.0]})
    )
    assert single.shared("a") == []


def test_a_figure_says_that_settings_differ_where_no_setting_is_shared(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], GRID)
    results = results_of(tmp_path, "raw")
    settings = [{"a": float(i), "b": float(i)} for i in range(2)]
    grid = sensitivity.Grid(settings, pd.DataFrame({i: [1.0, 3.0] for i in range(2)}))
    figure = sensitivity.sensitivity_figure(results, grid, "a", "a title", "return")
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "mean over settings of b that differ"
    whole = sensitivity.Grid(
        settings_of({"a": [1.0, 2.0], "b": [1.0, 2.0]}), pd.DataFrame({key: [1.0] for key in range(4)})
    )
    figure = sensitivity.sensitivity_figure(results, whole, "a", "a title", "return")
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "mean over 2 settings of b"


def test_grids_of_one_name_that_vary_other_hyperparameters_are_grids_of_their_own(tmp_path):
    for name, task, grid in (("one", "Hopper-v5", {"lr": [1.0, 2.0]}), ("two", "Ant-v5", {"tau": [1.0, 2.0]})):
        synthetic.vary(tmp_path / name, "iql", [task], grid)
    results = results_of(tmp_path, "raw")
    assert sorted(results.scores.grids) == ["iql by lr", "iql by tau"]
    part = sensitivity.sensitivity_part(results)
    assert len(part.figures) == 2 and {table.columns[1] for _, table in part.tables} == {"lr", "tau"}


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1e-4, 3e-4, 1e-3], "log"), ([1.0, 3.0, 10.0], "log"), ([0.5, 0.7, 0.9], "linear"),
        ([0.0, 0.5, 1.0], "linear"), ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "linear"), ([-1.0, 1.0, 10.0], "linear"),
        ([0.1], "linear"), ([0.0, 1e-4, 1e-3, 1e-2], "symlog"), ([0.005, 0.01], "linear"), ([0.0], "linear"),
    ],
)  # fmt: skip
def test_an_axis_is_logarithmic_where_its_values_are(values, scale):
    assert figures.scale_of(values)[0] == scale


@pytest.mark.parametrize("references", ["d4rl", "raw"])
def test_settings_are_ranked_by_the_headline_score(tmp_path, references):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5", "Ant-v5"], GRID)
    results = results_of(tmp_path, references)
    tables = sensitivity.ranking_tables(results, "iql", results.scores.grids["iql"])
    assert len(tables) == (1 if references == "d4rl" else 2)  # raw returns of two tasks have no common scale
    _, table = tables[-1]
    assert table.columns == ["rank", "expectile", "temperature", "mean", "95% interval", "seeds"]
    assert len(table.rows) == 12 and [row[0][0] for row in table.rows] == [str(n) for n in range(1, 13)]
    means = [float(row[3][1]) for row in table.rows]
    assert means == sorted(means, reverse=True)
    final = results.final if references == "d4rl" else results.final[results.final["task"] == "Hopper-v5"]
    best = final.groupby("algorithm")[results.headline].mean()
    assert means[0] == pytest.approx(best.max())
    assert best.idxmax() == f"iql (expectile={table.rows[0][1][0]}, temperature={table.rows[0][2][0]})"


def test_rankings_by_returns_say_so_where_no_task_is_common_to_all(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], GRID)
    synthetic.vary(tmp_path, "bc", ["Ant-v5"], {"lr": [1.0, 2.0]})
    results = results_of(tmp_path, "d4rl")
    ((title, table),) = sensitivity.ranking_tables(results, "iql", results.scores.grids["iql"])
    assert title.startswith("Settings of iql ranked on Hopper-v5: return, ") and float(table.rows[0][3][1]) > 10


def test_few_combinations_are_lines_and_many_are_one_mean(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], {"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0], "c": [1.0, 2.0, 3.0]})
    results = results_of(tmp_path)
    grid = sensitivity.grid_of(results, results.scores.grids["iql"], "Hopper-v5")
    with figures.style():
        drawn = {name: sensitivity.sensitivity_figure(results, grid, name, "T", "return") for name in "abc"}
    assert [len(figure.axes[0].lines) for figure in drawn.values()] == [1, 7, 7]  # 9 combinations; 6 and their mean
    widths = [line.get_linewidth() for line in drawn["b"].axes[0].lines]
    assert widths[-1] > max(widths[:-1])


@pytest.mark.parametrize("combinations", [1, 3, 6])
def test_the_legend_and_the_lines_do_not_meet_and_all_points_are_inside(combinations):
    values = np.array([1e-4, 3e-4, 1e-3])
    points = values, np.array([0.1, 0.5, 0.9]), np.array([0.0, 0.4, 0.8]), np.array([0.2, 0.6, 1.0])
    lines = {f"other={i}, another=0.{i}": points for i in range(combinations)}
    with figures.style():
        figure = figures.sensitivity(lines, ("mean over others", points), values, "critic_lr", "score", "T")
        figure.draw_without_rendering()
        (axes,), (legend,) = figure.axes, figure.legends
        box, inside = legend.get_window_extent(), axes.get_window_extent()
    assert not box.overlaps(inside) and figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
    assert axes.get_xscale() == "log" and axes.get_ylim()[0] < 0.0 and axes.get_ylim()[1] > 1.0
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.0001", "0.0003", "0.001"]


def test_the_cells_of_two_hyperparameters_hold_the_mean_scores(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], GRID)
    results = results_of(tmp_path)
    grid = sensitivity.grid_of(results, results.scores.grids["iql"], "Hopper-v5")
    with figures.style():
        (axes,) = sensitivity.settings_figure(results, grid, "T", "return").axes
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    mean = results.final.groupby("algorithm")[results.headline].mean()
    assert len(cells) == 12 and cells[2, 0] == f"{mean['iql (expectile=0.5, temperature=10)']:.3f}"
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("expectile", "temperature")


def test_settings_of_one_grid_are_told_apart_by_colour_and_line_style():
    settings = {str(i): setting for i, setting in enumerate(settings_of(GRID))}
    styles = figures.styles_of(list(settings), settings)
    assert len({tuple(look.values()) for look in styles.values()}) == 12
    assert styles["0"]["color"] == styles["1"]["color"] != styles["3"]["color"]  # as the first value is
    assert styles["0"]["linestyle"] == styles["3"]["linestyle"] != styles["1"]["linestyle"]  # as the second is
    wide = {str(i): s for i, s in enumerate(settings_of({"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}))}
    assert len({tuple(look.values()) for look in figures.styles_of(list(wide), wide).values()}) == 12
    both = {f"{name} ({value})": {"temperature": value} for name in ("iql", "xql") for value in (0.5, 1.0, 3.0)}
    assert len({tuple(look.values()) for look in figures.styles_of(list(both), both).values()}) == 6


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_the_section(tmp_path):
    grid = {"expectile": [0.5, 0.9], "temperature": [1.0, 3.0]}
    synthetic.vary(tmp_path / "in", "iql", ["Hopper-v5", "Ant-v5"], grid, seeds=2, evaluations=2)
    report.main(report.Args((tmp_path / "in",), tmp_path / "out", "d4rl", replications=20, formats=()))
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<h2>Sensitivity</h2>" in page and "Settings of iql ranked over 2 tasks" in page


def test_figures_and_tables_have_the_hyperparameters(made):
    names = {path.name for path in (made / "out" / "figures").glob("*.png")}
    assert {"sensitivity_iql_expectile_Ant-v5.png", "settings_iql_Hopper-v5.png"} <= names
    for name in ("scores", "final", "tasks", "aggregates", "values"):
        columns = list(pd.read_csv(made / "out" / f"{name}.csv").columns)
        place = columns.index("algorithm")
        assert columns[place + 1 : place + 3] == ["expectile", "temperature"], name
    table = pd.read_csv(made / "out" / "scores.csv")
    assert len(table) == 2 * 12 * 5 * 11 and set(table["expectile"]) == set(GRID["expectile"])
    text = (made / "out" / "report.md").read_text()
    assert "figures/settings_iql_Ant-v5.png" in text and "| rank | expectile | temperature |" in text


@pytest.mark.slow
def test_a_report_of_settings_can_be_made_again_from_what_it_stored(made, tmp_path):
    for before, after in ((made / "out", tmp_path / "out"), (tmp_path / "out", tmp_path / "again")):
        report.main(report.Args((before,), after, replications=20, formats=("png",)))
    assert (tmp_path / "out" / "report.html").exists()
    for path in sorted((tmp_path / "out").rglob("*")):
        if path.is_file() and path.name not in ("report.json", "README.md"):
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(tmp_path / "out")).read_bytes(), (
                path.name
            )


def test_the_runs_of_one_process_are_one_row_and_only_the_best_setting_stands_beside_published_scores(made):
    results = results_of(made / "out")
    ((_, runs),) = parts.source_part(results).tables
    assert [(row[0][0], row[1][0], row[2][0]) for row in runs.rows] == [
        ("Ant-v5", "iql, 12 settings", "0–4"), ("Hopper-v5", "iql, 12 settings", "0–4")
    ]  # fmt: skip
    rows = parts.own_rows(results, ["Hopper-v5"])
    means = results.tasks[(results.tasks["score"] == "last") & (results.tasks["task"] == "Hopper-v5")]
    assert [row.score for row in rows] == [means["mean"].max()]
    assert rows[0].protocol.endswith("the best of 12 settings of iql")


def test_the_index_shows_the_sensitivity(made, tmp_path):
    shutil.copytree(made / "out", tmp_path / "one")
    index.main(index.Args(tmp_path))
    assert "(one/figures/settings_iql_Ant-v5.png)" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(("count", "curves", "rows"), [(12, 12, 12), (30, 12, 30), (60, 12, 30)])
def test_many_settings_stay_readable(tmp_path, count, curves, rows):
    grid = {"expectile": [0.5, 0.7, 0.9], "lr": list(np.geomspace(1e-5, 1e-2, count // 6)), "tau": [0.005, 0.01]}
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], grid, evaluations=2)
    results = results_of(tmp_path)
    assert (len(results.in_curves), len(results.in_rows)) == (curves, rows)
    assert set(results.ranked[:12]) == set(results.in_curves)
    means = results.tasks[results.tasks["score"] == "last"].set_index("algorithm")["mean"]
    assert list(means.sort_values(ascending=False).index) == results.ranked
    assert bool(results.left_out) == (count > 12)
    with figures.style():
        part = parts.improvement_part(results)
    ((_, figure, _),), ((caption, table),) = part.figures, part.tables
    assert caption == f"{results.ranked[0]} against all others" and len(table.rows) == rows - 1
    assert len(figure.axes[0].texts) == rows * (rows - 1)


def test_algorithms_that_do_not_vary_stay_beside_many_settings(tmp_path):
    synthetic.vary(tmp_path, "iql", ["Hopper-v5"], GRID)
    synthetic.make(tmp_path, ["bc", "td3_bc"], ["Hopper-v5"], 5, 10)
    results = results_of(tmp_path)
    assert {"bc", "td3_bc"} < set(results.in_curves) and len(results.in_curves) == 12
    table = results.scores.with_settings(results.tasks)
    assert table[table["algorithm"] == "bc"][["expectile", "temperature"]].isna().all().all()
    assert results.names["bc"] == "bc" and results.names_are == ""
