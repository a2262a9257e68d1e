"""Every script computes what it computed when its results were stored, to the rounding of float32.

tests/stored/short_runs.csv holds the tables of short runs, seeds 3 and 7, made before the common part was rebuilt; on
the machine that made them, the tables were the same to the last bit after it. Whoever changes the arithmetic on purpose
writes them again: `python tests/single_file/test_stored_runs.py`.
"""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parents[0]), str(TESTS.parents[0] / "single_file")]

from offline_data import write_hdf5  # noqa: E402
from scripts import module_of  # noqa: E402

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
    parts = [part for part in (train[train["metric"] != "seconds"], means) if len(part)]
    return pd.concat(parts)[["seed", "step", "metric", "value"]].assign(script=script)


@pytest.mark.parametrize("script", ARGS)
def test_a_short_run_gives_the_stored_tables(script, tmp_path, monkeypatch):
    write_hdf5(tmp_path / "data.hdf5")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("algos.run_folder.versions", dict)  # which takes as long as the updates
    monkeypatch.setattr("algos.run_folder.git_commit", lambda: None)
    keys = ["seed", "step", "metric"]
    stored = pd.read_csv(STORED, float_precision="round_trip").query("script == @script").set_index(keys)["value"]
    now = tables_of(script, tmp_path / "out").set_index(keys)["value"]
    assert set(now.index) == set(stored.index) and len(now) == len(stored)
    pd.testing.assert_series_equal(now.sort_index(), stored.sort_index(), rtol=2e-3, atol=1e-4)


if __name__ == "__main__":
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_hdf5(Path("data.hdf5"))
        frames = [tables_of(script, Path(folder) / script.replace(" ", "_")) for script in ARGS]
    pd.concat(frames)[["script", "seed", "step", "metric", "value"]].to_csv(STORED, index=False)
