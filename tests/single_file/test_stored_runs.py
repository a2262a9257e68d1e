"""Every script computes nearly what it computed when its results were stored.

tests/stored/short_runs.csv holds the tables of short runs with seeds 3 and 7. On the machine that made them, a later
rebuilding of the common part changed not a bit. Another machine adds up the terms of matrix products in another order,
and the updates of a run enlarge these differences of float32's rounding: so the test allows relative ones of 2e-3.

Whoever changes the arithmetic on purpose writes the tables again: `python tests/single_file/test_stored_runs.py` for
all scripts, or with the names of some, of which the rows are then replaced and the others stay.
"""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parents[0]), str(TESTS.parents[0] / "single_file")]

from offline_data import write_hdf5  # noqa: E402
from scripts import SCRIPTS, module_of  # noqa: E402

STORED = TESTS / "stored" / "short_runs.csv"
ARGS = json.loads(STORED.with_suffix(".json").read_text())  # script -> arguments


def tables_of(script: str, out: Path) -> pd.DataFrame:
    """All metrics but times, and the mean return at each evaluation, of a short run."""
    module = module_of(script)
    args = {name: tuple(value) if isinstance(value, list) else value for name, value in ARGS[script].items()}
    module.main(module.Args(**args, seeds=("3", "7"), quiet=True, device="cpu", out=out))
    folder = next(out.rglob("config.json")).parent
    train, scores = (pd.read_parquet(folder / f"{name}.parquet") for name in ("train", "eval"))
    means = scores.groupby(["seed", "step"])["return"].mean().rename("value").reset_index().assign(metric="return")
    parts = [part for part in (train[~train["metric"].str.endswith("seconds")], means) if len(part)]
    return pd.concat(parts)[["seed", "step", "metric", "value"]].assign(script=script)


def test_the_tables_of_every_script_are_stored():
    assert set(ARGS) == set(SCRIPTS)


@pytest.mark.parametrize("script", ARGS)
def test_a_short_run_gives_the_stored_tables(script, tmp_path, monkeypatch):
    write_hdf5(tmp_path / "data.hdf5")
    write_hdf5(tmp_path / "goals.hdf5", obs_size=2, act_size=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("algos.run_folder.versions", dict)  # which takes as long as the updates
    monkeypatch.setattr("algos.run_folder.git_commit", lambda *_: None)
    keys = ["seed", "step", "metric"]
    stored = pd.read_csv(STORED, float_precision="round_trip").query("script == @script").set_index(keys)["value"]
    now = tables_of(script, tmp_path / "out").set_index(keys)["value"]
    assert set(now.index) == set(stored.index) and len(now) == len(stored)
    pd.testing.assert_series_equal(now.sort_index(), stored.sort_index(), rtol=2e-3, atol=1e-4)


if __name__ == "__main__":
    import os
    import tempfile

    names = sys.argv[1:] or list(ARGS)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_hdf5(Path("data.hdf5"))
        write_hdf5(Path("goals.hdf5"), obs_size=2, act_size=2)
        frames = [tables_of(script, Path(folder) / script.replace(" ", "_")) for script in names]
    rows = pd.concat(frames)[["script", "seed", "step", "metric", "value"]].to_csv(index=False, header=False)
    header, *lines = STORED.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.partition(",")[0] not in names]
    STORED.write_text("".join([header, *kept]) + rows)
