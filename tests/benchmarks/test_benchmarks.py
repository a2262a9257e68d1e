"""Comparison tables, the learning check, throughput."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from algos.errors import UserError
from algos.plot import band
from benchmarks import compare, pendulum_check, throughput


def store(folder, algorithm, returns, variant="default", task="Hopper-v5", **facts):
    """A run folder whose evaluations are returns[step][seed] = the episodes' returns."""
    place = folder / task / algorithm / variant
    place.mkdir(parents=True)
    rows = [
        (seed, step, episode, value, 10)
        for step, seeds in returns.items()
        for seed, episodes in seeds.items()
        for episode, value in enumerate(episodes)
    ]
    pd.DataFrame(rows, columns=["seed", "step", "episode", "return", "length"]).to_parquet(place / "eval.parquet")
    config = {"algorithm": algorithm, "env_id": task, "variant": variant, "status": "finished", **facts}
    (place / "config.json").write_text(json.dumps(config))


def test_the_summary_is_of_the_last_step_that_all_seeds_reached(tmp_path):
    store(tmp_path, "a", {0: {0: [0.0], 1: [0.0]}, 10: {0: [1.0, 3.0], 1: [4.0, 8.0]}, 20: {0: [100.0]}})
    store(tmp_path, "b", {10: {0: [5.0]}}, variant="other")
    compare.main(compare.Args((tmp_path,), tmp_path / "out", "Title"))
    table = pd.read_csv(tmp_path / "out" / "summary.csv").set_index("algorithm")
    assert list(table.index) == ["a", "b (other)"]
    row = table.loc["a"]
    assert (row["seeds"], row["steps"], row["mean return"]) == (2, 10, 4.0)
    assert (row["95% low"], row["95% high"], row["worst seed"], row["best seed"]) == (2.0, 6.0, 2.0, 6.0)
    assert "| Hopper-v5 | a | 2 | 10 | 4.00 | 2.00 | 6.00 |" in (tmp_path / "out" / "summary.md").read_text()
    assert (tmp_path / "out" / "Hopper-v5.png").read_bytes()[:4] == b"\x89PNG"
    assert len(json.loads((tmp_path / "out" / "sources.json").read_text())) == 2


def test_a_diverged_seed_counts_with_the_score_that_it_had(tmp_path):
    store(tmp_path, "a", {0: {0: [0.0], 1: [0.0]}, 10: {0: [1.0], 1: [4.0]}, 20: {1: [8.0]}}, diverged={"0": 15})
    (row,) = compare.summarise(compare.load((tmp_path,))[0]).to_dict("records")
    assert (row["seeds"], row["steps"], row["mean return"], row["worst seed"]) == (2, 20, 4.5, 1.0)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="no finished or running run in"):
        compare.main(compare.Args((tmp_path,), tmp_path))


def test_the_band_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        low, high = band(rng.normal(3.0, 1.0, (20, 1)), 500)
        hits += low[0] <= 3.0 <= high[0]
    assert 0.88 < hits / 300 < 0.98


@pytest.mark.parametrize(("dip", "passed"), [(-200.0, "yes"), (-1_500.0, "no")])
def test_the_learning_check_sees_a_late_dip(tmp_path, dip, passed):
    steps = range(0, 250_001, 2_000)
    store(tmp_path, "dsac_t", {s: {0: [-1_200.0 if s < 120_000 else dip if s == 200_000 else -150.0]} for s in steps})
    scores, _ = compare.load((tmp_path,))
    assert list(pendulum_check.check(scores)["above -250"]) == [passed]


def test_the_learning_check_refuses_a_short_run(tmp_path):
    store(tmp_path, "dsac_t", {s: {0: [-150.0]} for s in range(0, 100_000, 2_000)})
    with pytest.raises(UserError, match=r"ends before update 7,000"):
        pendulum_check.check(compare.load((tmp_path,))[0])


def test_environments_are_measured(tmp_path, monkeypatch, capsys):
    real = throughput.env_rate
    monkeypatch.setattr(throughput, "env_rate", lambda env, seconds: real(env, 0.05))
    throughput.main(throughput.Args("envs", rounds=1, num_envs=4, env_ids=("Hopper-v5",), out=tmp_path))
    (row,) = json.loads((tmp_path / "envs.json").read_text())["rows"]
    assert row["rate"] > 0 and row["ratio"] == pytest.approx(row["rate"] / row["gymnasium sync"])
    assert 0.1 < row["physics share"] < 1
    assert "Hopper-v5" in capsys.readouterr().out


def test_scripts_are_measured(tmp_path):
    args = throughput.Args(env_id="InvertedPendulum-v5", threads=1, steps=500, out=tmp_path, device="cpu")
    rate, start = throughput.script_rate("sac", args, 1, "--hidden", "8", "--batch-size", "8")
    assert rate > 50 and 0 < start < 60


@pytest.mark.parametrize("module", ["compare", "pendulum_check", "throughput", "peer_speed", "sb3_sac"])
def test_every_command_explains_itself(module):
    done = subprocess.run([sys.executable, "-m", f"benchmarks.{module}", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "usage" in done.stdout
