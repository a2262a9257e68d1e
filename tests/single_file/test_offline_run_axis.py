"""What every offline algorithm must keep: runs are independent, R runs together are R runs alone, a kill costs nothing.

A new algorithm joins by one line in SCRIPTS: its script and the arguments that make all of its parts work.
"""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from offline_data import write_hdf5

from algos.data import Dataset
from algos.optim import Adam
from algos.run import Run

ROOT = Path(__file__).parents[2]
SHORT = {
    "total_steps": 20, "batch_size": 16, "hidden": (8, 8), "eval_every": 20, "eval_episodes": 0, "log_every": 5,
    "checkpoint_every": 1_000,
}  # fmt: skip
AUGMENTED = {"dropout": 0.3, "noise": 0.1, "random_actions": 1, "value_updates": 2}
IMITATION = {"expert_dataset": "data.hdf5", "expert_trajectories": 2, "expert_transitions": 12, "dropout": 0.3}
SCRIPTS = {
    "bc": {"dropout": 0.3},
    "td3_bc": {},
    "iql": {"dropout": 0.3},
    "xql": AUGMENTED,
    "f_dvl": AUGMENTED,
    "recoil": IMITATION,
    "recoil paper": IMITATION | {"objective": "paper"},
}
EVALUATED = {"eval_episodes": 1, "env_id": "InvertedPendulum-v5"}

scripts = pytest.mark.parametrize("script", SCRIPTS)


@pytest.fixture
def learn(train, tmp_path, monkeypatch):
    """Runs a script of SCRIPTS on a tiny file: learn("bc", seeds=("0",), …) -> Result."""
    write_hdf5(tmp_path / "data.hdf5")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("algos.run.versions", dict)  # which takes as long as the updates
    monkeypatch.setattr("algos.run.git_commit", lambda: None)

    def run(script: str, **overrides):
        return train(script.split()[0], dataset="data.hdf5", **SHORT | SCRIPTS[script] | overrides)

    return run


def rows(parameters: dict[str, torch.Tensor], run: int, runs: int) -> dict[str, torch.Tensor]:
    """One run's part of every tensor that has a run axis."""
    return {name: t.reshape(runs, -1)[run] for name, t in parameters.items() if t.dim() and "agent" in name}


def differing(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, tensor in a.items() if not torch.equal(tensor, b[name])]


@scripts
def test_runs_together_equal_runs_alone(script, learn, float64):
    together = learn(script, out="together", seeds=("3", "7", "11")).parameters
    for run, seed in enumerate(("3", "7", "11")):
        alone = rows(learn(script, out=f"alone{seed}", seeds=(seed,)).parameters, 0, 1)
        assert len(alone) >= 14
        for name, tensor in rows(together, run, 3).items():
            torch.testing.assert_close(tensor, alone[name], atol=1e-9, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@scripts
def test_a_broken_run_leaves_its_neighbours_bitwise_unchanged(script, learn, monkeypatch):
    """A bad value in all gradients, or all parameters, or all data that run 1 gets at one step."""
    step, gather = Adam.step, Dataset.gather
    clean = learn(script, out="clean", seeds=("0", "1", "2")).parameters
    for place, poison in (("gradients", math.nan), ("parameters", 1e30), ("data", math.nan), ("data", 1e30)):
        calls = []

        def poisoned(adam, gradients, place=place, poison=poison, calls=calls):
            calls.append(1)
            if 10 < len(calls) < 16:
                for tensor in gradients if place == "gradients" else adam.parameters:
                    tensor.data.view(3, -1)[1] = poison
            step(adam, gradients)

        def poisoned_batch(data, integers, poison=poison, calls=calls):
            calls.append(1)
            batch = gather(data, integers)
            if 10 < len(calls) < 16:
                for tensor in batch:
                    tensor[1] = poison
            return batch

        with monkeypatch.context() as patch:
            if place == "data":
                patch.setattr(Dataset, "gather", poisoned_batch)
            else:
                patch.setattr(Adam, "step", poisoned)
            broken = learn(script, out=f"{place}{poison}", seeds=("0", "1", "2")).parameters
        assert len(calls) >= 20
        for run in (0, 2):
            assert not differing(rows(clean, run, 3), rows(broken, run, 3))
        assert differing(rows(clean, 1, 3), rows(broken, 1, 3))


@scripts
def test_a_diverged_run_is_marked_frozen_and_no_longer_reported(script, learn, monkeypatch):
    gather, ends = Dataset.gather, []

    def poisoned(data, integers):
        batch = gather(data, integers)
        batch.obs[1], batch.reward[1] = math.nan, math.nan
        return batch

    monkeypatch.setattr(Dataset, "gather", poisoned)
    for steps in (10, 20):
        result = learn(script, out=f"{steps}", seeds=("4", "5"), total_steps=steps, **EVALUATED)
        assert result.code == 0 and result.config["status"] == "diverged" and result.config["diverged"] == {"5": 5}
        ends.append(result.parameters)
    table = pd.read_parquet(result.folder / "eval.parquet")
    assert set(table[table["step"] == 20]["seed"]) == {4} and set(table[table["step"] == 0]["seed"]) == {4, 5}
    frozen, going = ([rows(end, run, 2) for end in ends] for run in (1, 0))
    assert all(torch.equal(t.nan_to_num(7.0), frozen[1][n].nan_to_num(7.0)) for n, t in frozen[0].items())
    assert differing(*going)


@scripts
def test_a_run_that_breaks_off_resumes_to_the_bitwise_same_end(script, learn, monkeypatch):
    """It breaks off twice, between checkpoints, each time without a word."""
    settings = {"seeds": ("0", "1"), "checkpoint_every": 4, "eval_every": 6, "log_every": 3, "resume": True}
    whole = learn(script, out="whole", **settings)
    report = Run._report_progress
    for last in (7, 14):

        def broken(run, last=last):
            report(run)
            if run.step == last:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Run, "_report_progress", broken)
            with pytest.raises(KeyboardInterrupt):
                learn(script, out="broken", **settings)
    broken = learn(script, out="broken", **settings)
    assert whole.parameters.keys() == broken.parameters.keys() and not differing(whole.parameters, broken.parameters)
    tables = [pd.read_parquet(result.folder / "train.parquet") for result in (whole, broken)]
    order = ["step", "seed", "metric"]
    tables = [table[table["metric"] != "seconds"].sort_values(order, ignore_index=True) for table in tables]
    pd.testing.assert_frame_equal(*tables)
    assert len(tables[0])


def test_a_killed_run_resumes_to_the_bitwise_same_end(learn, tmp_path):
    """With kill -9, and with evaluations."""
    settings = SHORT | AUGMENTED | EVALUATED | {"total_steps": 300, "checkpoint_every": 25, "eval_every": 75}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items() if name != "hidden"]
    command = [sys.executable, str(ROOT / "single_file" / "xql.py"), "--out=killed", "--dataset=data.hdf5", *flags]
    process = subprocess.Popen([*command, "--hidden", "8", "8", "--device", "cpu", "--threads", "1", "--quiet"])
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "killed").rglob("checkpoint/*.json"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    killed, whole = (learn("xql", out=out, resume=True, **settings) for out in ("killed", "whole"))
    assert killed.config["step"] == 300 and killed.parameters.keys() == whole.parameters.keys()
    assert not differing(killed.parameters, whole.parameters)
    tables = [(result.folder / "eval.parquet").read_bytes() for result in (killed, whole)]
    assert tables[0] == tables[1]
