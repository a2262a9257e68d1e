"""The page beside the report on the edge of reach."""

import numpy as np
import pandas as pd
import pytest
from synthetic import store, tabulate

from algos.errors import UserError
from benchmarks import report
from benchmarks.edge_of_reach import Args, draw, main, mixtures, place
from benchmarks.load_scores import load

BASE = {"penalty_weight": 0.0, "real_ratio": 0.05, "dynamics": "", "model_mix": 0.0, "mix_with": "true"}
UNDRAWN = {"formats": (), "page": False}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 0.0),
        ({"dynamics": "runs/dynamics.safetensors"}, 0.0),
        ({"dynamics": "true"}, 1.0),
        ({"model_mix": 0.25}, 0.25),
        ({"model_mix": 0.1, "mix_with": "random"}, -0.1),
        ({"penalty_weight": 0.5}, None),
        ({"real_ratio": 1}, None),
    ],
)
def test_a_run_has_its_place_between_a_random_and_a_true_model(change, expected):
    assert place(BASE | change) == expected


def run(folder, variant, level, diverged=(), **change):
    steps = np.arange(11) * 10
    rows = [(seed, step, 0, level + seed + step) for seed in range(3) for step in steps]
    table = pd.DataFrame(rows, columns=["seed", "step", "episode", "return"])
    lost = [{"seed": seed, "step": 100} for seed in diverged]
    path = store(folder, "mopo", table, "Walker2d-v5", variant, args=BASE | change, diverged=lost)
    train = table.rename(columns={"return": "value"}).assign(metric="policy_value", value=lambda t: 10 * t["value"] + 1)
    train[["seed", "step", "metric", "value"]].to_parquet(path / "train.parquet", write_page_checksum=True)


def test_the_page_has_each_mixture_and_the_line_world(tmp_path):
    run(tmp_path / "runs", "learned", 0)
    run(tmp_path / "runs", "half", 20, model_mix=0.5)
    run(tmp_path / "runs", "true", 50, dynamics="true")
    run(tmp_path / "runs", "penalised", 90, penalty_weight=1.0)
    tabulate(report.Args((tmp_path / "runs",), tmp_path / "out", replications=50, **UNDRAWN, mix=True))
    main(Args(tmp_path / "out"))
    text = (tmp_path / "out" / "check.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert rows[2:5] == [
        ["0.00", "101.0", "1,011.0", "3"], ["0.50", "121.0", "1,211.0", "3"], ["1.00", "151.0", "1,511.0", "3"],
    ]  # fmt: skip
    assert "| edge worth 1,000 | 909.1 | 5.00 |" in text
    assert f"`python -m benchmarks.edge_of_reach {tmp_path / 'out'}`" in text
    assert (tmp_path / "out" / "figures" / "mixtures.png").stat().st_size > 5_000


def test_a_seed_that_diverged_has_no_value(tmp_path):
    run(tmp_path / "runs", "learned", 0)
    run(tmp_path / "runs", "half", 20, model_mix=0.5)
    run(tmp_path / "runs", "true", 50, dynamics="true", diverged=[2])
    report.main(report.Args((tmp_path / "runs",), tmp_path / "out", replications=50, **UNDRAWN, mix=True))
    main(Args(tmp_path / "out"))
    text = (tmp_path / "out" / "check.md").read_text()
    assert "| 1.00 | 151.0 | 1,506.0 | 3 | 2 |" in text and "| 0.50 | 121.0 | 1,211.0 | 3 | 3 |" in text
    assert "> Seed 2 of mopo" in text
    table = mixtures(load([tmp_path / "out"]))
    line, bound = draw(table, "Walker2d-v5", 2_000.0).axes[1].lines
    assert set(bound.get_ydata()) == {2_000.0}
    assert line.get_ydata().tolist() == pytest.approx([1011, 1211, 1506])
    table.loc[table["place"] == 0.5, "policy_value"] = np.nan
    assert draw(table, "Walker2d-v5", 2_000.0).axes[1].lines[0].get_xdata().tolist() == [0, 1]


def test_two_settings_with_one_model_are_no_point(tmp_path):
    for variant in ("learned", "longer"):
        run(tmp_path / "runs", variant, 0)
    run(tmp_path / "runs", "half", 20, model_mix=0.5)
    run(tmp_path / "runs", "true", 50, dynamics="true")
    tabulate(report.Args((tmp_path / "runs",), tmp_path / "out", replications=50, **UNDRAWN, mix=True))
    with pytest.raises(UserError, match=r"mopo \(learned\) and mopo \(longer\) have the same model on Walker2d-v5"):
        main(Args(tmp_path / "out"))


def test_a_report_without_mixtures_is_refused(tmp_path):
    run(tmp_path / "runs", "learned", 0)
    tabulate(report.Args((tmp_path / "runs",), tmp_path / "out", replications=50, **UNDRAWN))
    with pytest.raises(UserError, match="no task with the base method by three models or more"):
        main(Args(tmp_path / "out"))
