"""What a report shows of methods with a model."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from synthetic import make

from benchmarks.figures import grid, make_log, style
from benchmarks.read_scores import watched_of
from benchmarks.report import Args, main


def metrics_of(seeds: int, steps: np.ndarray, values: dict[str, float]) -> pd.DataFrame:
    """Metrics that grow with the step, at twice as many steps as there are evaluations."""
    rows = [
        {"seed": seed, "step": int(step), "metric": name, "value": value * (1 + step / 50)}
        for seed in range(seeds)
        for step in np.arange(0, steps[-1] + 1, 5)
        for name, value in values.items()
    ]
    return pd.DataFrame(rows)


def made(folder: Path) -> Path:
    make(folder / "runs", ["mopo", "sac"], ["Hopper-v5"], 5, 10)
    values = {"policy_value": 100.0, "value_bound": 250.0, "model_error_1": 0.1, "model_error_10": 0.4, "loss": 1.0}
    table = metrics_of(5, np.arange(11) * 10, values)
    table.to_parquet(folder / "runs" / "Hopper-v5" / "mopo" / "default" / "train.parquet", write_page_checksum=True)
    return folder / "runs"


def test_values_and_errors_of_the_model_are_shown_and_stored(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.figures.svg", lambda *_: "")  # the page's figures are looked at as PNGs
    out = tmp_path / "out"
    main(Args((made(tmp_path),), out=out, formats=("png",), replications=50))
    table = pd.read_csv(out / "watched.csv")
    assert set(table["algorithm"]) == {"mopo"} and set(table["step"]) == set(range(0, 101, 10))
    assert set(table["metric"]) == {"policy_value", "value_bound", "model_error_1", "model_error_10"}
    text = (out / "report.md").read_text()
    header, row = (
        line for line in text.splitlines() if "model error 1" in line or line.startswith("| Hopper-v5 | mopo | 300.0")
    )
    assert [cell.strip() for cell in header.split("|")][3:-1] == [
        "policy value", "return", "value bound", "model error 1", "model error 10", "seeds",
    ]  # fmt: skip
    scores = pd.read_csv(out / "scores.csv").query("algorithm == 'mopo' and step == 100")["return"].mean()
    assert [cell.strip() for cell in row.split("|")][3:-1] == ["300.0", f"{scores:,.1f}", "750.0", "0.30", "1.20", "5"]
    again = tmp_path / "again"
    main(Args((out,), out=again, formats=("png",), replications=50, page=False))
    assert (again / "watched.csv").read_bytes() == (out / "watched.csv").read_bytes()
    assert (again / "report.md").read_text() == text
    # without a page, the figures that report.md shows and no others
    shown = {Path(name).stem for name in re.findall(r"\]\((figures/[^)]*)\)", text)}
    assert {path.stem for path in again.glob("figures/*")} == shown == {"learning_curves", "policy_values"}
    assert {path.stem for path in out.glob("figures/*")} > shown


def test_between_two_evaluations_the_last_that_was_logged_counts(tmp_path):
    log = pd.DataFrame({"seed": 0, "step": [0, 5, 8, 25, 45], "metric": "policy_value", "value": range(5)})
    watched = watched_of(log, pd.DataFrame({"step": [0, 10, 20, 30, 40]}), [])
    assert watched[["step", "value"]].to_numpy().tolist() == [[0, 0], [10, 2], [30, 3]]


def test_without_a_model_there_is_no_such_part(tmp_path):
    make(tmp_path / "runs", ["sac"], ["Hopper-v5"], 5, 10)
    main(Args((tmp_path / "runs",), out=tmp_path / "out", formats=(), page=False, replications=50))
    assert not (tmp_path / "out" / "watched.csv").exists()
    assert "Values and the model" not in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(("high", "shown"), [(700, ["200", "500"]), (300_000, ["1000", "10000", "100000"])])
def test_a_logarithmic_axis_has_several_numbers(high, shown):
    axes = Figure().subplots()
    axes.plot([1, 2], [90, high])
    make_log(axes, "y")
    low, top = axes.get_ylim()
    labels = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    assert [label.get_text() for place, label in labels if low < place < top and place > 150] == shown


def test_an_axis_of_values_on_both_sides_of_zero_shows_all_of_them():
    axes = Figure().subplots()
    axes.plot([1, 2, 3], [-300.0, 5.0, 4_000.0])
    make_log(axes, "y")
    low, top = axes.get_ylim()
    labels = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    shown = [label.get_text() for place, label in labels if low < place < top]
    assert shown == ["\N{MINUS SIGN}100", "\N{MINUS SIGN}10", "0", "10", "100", "1000"]
    height = [axes.transData.transform((1, value))[1] for value in (-300.0, -10.0, 0.0, 10.0, 100.0, 1_000.0)]
    assert height == sorted(height)
    assert height[3] - height[2] == pytest.approx(height[2] - height[1])
    assert height[5] - height[4] == pytest.approx(height[4] - height[3])


def test_the_numbers_of_an_axis_count_the_bound():
    steps, values = np.arange(3), np.array([90.0, 120.0, 150.0])
    curves = {"mopo": (steps, values, np.stack([values, values]), values[None])}
    bounds = "bound", {"Hopper-v5": 3e5}
    with style():
        figure = grid({"Hopper-v5": curves}, {"mopo": {"color": "k"}}, "updates", "value", "", bounds=bounds)
    (axes,) = figure.axes
    low, top = axes.get_ylim()
    assert [place for place in axes.get_yticks() if low < place < top] == [100, 1_000, 10_000, 100_000]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mopo", "bound"]
