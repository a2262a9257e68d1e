"""The learning check, throughput, and the help of every command."""

import functools
import json
import runpy
import sys
import time

import pandas as pd
import pytest
import synthetic

from algos.errors import UserError
from benchmarks import env_speed, offline_speed, pendulum_check, throughput, timing
from benchmarks.load_scores import load
from benchmarks.suite import BENCHMARKS

COMMANDS = [path for path in sorted(BENCHMARKS.glob("*.py")) if "run_command(main)" in path.read_text()]


def store(folder, returns):
    """The run of one seed whose evaluation at each step is as given."""
    rows = [(0, step, 0, value) for step, value in returns.items()]
    synthetic.store(folder, "dsac_t", pd.DataFrame(rows, columns=["seed", "step", "episode", "return"]), "Pendulum-v1")


@pytest.mark.parametrize(("dip", "passed"), [(-200.0, "yes"), (-1_500.0, "no")])
def test_the_learning_check_sees_a_late_dip(tmp_path, dip, passed):
    steps = range(0, 250_001, 2_000)
    store(tmp_path, {s: -1_200.0 if s < 120_000 else dip if s == 200_000 else -150.0 for s in steps})
    assert list(pendulum_check.check(load([tmp_path]).table)["above -250"]) == [passed]


def test_the_learning_check_refuses_a_short_run(tmp_path):
    store(tmp_path, dict.fromkeys(range(0, 100_000, 2_000), -150.0))
    with pytest.raises(UserError, match=r"ends before update 7,000"):
        pendulum_check.check(load([tmp_path]).table)


def test_environments_are_measured(tmp_path, monkeypatch, capsys):
    real = env_speed.env_rate
    monkeypatch.setattr(env_speed, "env_rate", lambda env, seconds: real(env, 0.05))
    throughput.main(throughput.Args("envs", rounds=1, num_envs=4, env_ids=("Hopper-v5",), out=tmp_path))
    (row,) = json.loads((tmp_path / "envs.json").read_text())["rows"]
    assert row["rate"] > 0 and row["ratio"] == pytest.approx(row["rate"] / row["gymnasium sync"])
    assert 0.1 < row["physics share"] < 1
    assert "Hopper-v5" in capsys.readouterr().out


def test_scripts_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "WARM_UP", 1_000)  # no updates before the clock starts
    monkeypatch.setattr(timing, "script_log", functools.partial(timing.script_log, warm_up=1_000))
    args = throughput.Args(env_id="InvertedPendulum-v5", threads=1, steps=200, out=tmp_path, device="cpu")
    started = time.monotonic()
    rate, start = timing.script_rate("sac", args, 1, "--hidden", "8", "--batch-size", "8")
    passed = time.monotonic() - started
    assert rate > 0 and 0 < start < passed  # neither depends on what else the machine does
    assert 0 < args.steps / rate <= passed - start


def test_sampling_is_measured():
    args = throughput.Args("offline", threads=1, steps=50, rounds=1, device="cpu")
    assert offline_speed.sampling_rate(args, count=1_000) > 100


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_every_command_explains_itself(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(path), run_name="__main__")
    assert not stop.value.code and "usage" in capsys.readouterr().out
