"""What every algorithm must keep: runs are independent, and R runs together are R runs alone.

A new algorithm joins by one line in SCRIPTS: its script and the arguments that make some 20 updates in 40 steps.
"""

import numpy as np
import pytest
import torch

from envs import SeededEnvs

SHORT = {
    "env_id": "Pendulum-v1", "total_steps": 40, "learning_starts": 20, "batch_size": 16, "hidden": (32, 32),
    "eval_every": 40, "eval_episodes": 1, "log_every": 5, "checkpoint_every": 1_000,
}  # fmt: skip
STREAM = {
    "total_steps": 40, "hidden": (16, 16), "eval_every": 40, "log_every": 5, "checkpoint_every": 1_000,
    "compile": False,
}  # fmt: skip
SCRIPTS = {
    "sac": SHORT,
    "dsac_t": SHORT,
    "stream_ac": STREAM | {"env_id": "InvertedPendulum-v5"},
    "stream_q": STREAM | {"env_id": "CartPole-v1"},
}

scripts = pytest.mark.parametrize("script", SCRIPTS)


def rows(parameters: dict[str, torch.Tensor], run: int, runs: int) -> dict[str, torch.Tensor]:
    """One run's part of every tensor that has a run axis."""
    return {name: t.reshape(runs, -1)[run] for name, t in parameters.items() if t.dim() and "agent" in name}


@scripts
def test_runs_together_equal_runs_alone(script, train, float64):
    together = train(script, out="together", seeds=("3", "7", "11"), **SCRIPTS[script]).parameters
    for run, seed in enumerate(("3", "7", "11")):
        alone = rows(train(script, out=f"alone{seed}", seeds=(seed,), **SCRIPTS[script]).parameters, 0, 1)
        assert alone
        for name, tensor in rows(together, run, 3).items():
            torch.testing.assert_close(tensor, alone[name], atol=1e-9, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@scripts
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_a_broken_run_leaves_its_neighbours_bitwise_unchanged(script, poison, train, monkeypatch):
    seeds = ("0", "1", "2")
    clean = train(script, out="clean", seeds=seeds, **SCRIPTS[script])
    receive, calls = SeededEnvs.receive, []

    def poisoned(envs):
        transition = receive(envs)
        calls.append(1)
        if len(calls) > 25:
            transition.reward[1] = poison
        return transition

    monkeypatch.setattr(SeededEnvs, "receive", poisoned)
    broken = train(script, out="broken", seeds=seeds, **SCRIPTS[script])
    assert len(calls) == 40
    for run in (0, 2):
        theirs = rows(broken.parameters, run, 3)
        for name, tensor in rows(clean.parameters, run, 3).items():
            assert torch.equal(tensor, theirs[name]), name
    changed = [
        n for n, t in rows(clean.parameters, 1, 3).items() if not torch.equal(t, rows(broken.parameters, 1, 3)[n])
    ]
    assert changed
    if not np.isfinite(poison):
        assert broken.config["status"] == "diverged"
        assert list(broken.config["diverged"]) == ["1"] and broken.code == 0


@pytest.mark.parametrize(("script", "poison"), [*((s, float("nan")) for s in SCRIPTS), ("sac", 1e30)])
def test_a_diverged_run_is_frozen(script, poison, train, monkeypatch):
    """From the log at which it is found, nothing moves; at 1e30, SAC has an infinite loss and finite parameters."""
    receive, ends = SeededEnvs.receive, []

    def poisoned(envs):
        transition = receive(envs)
        transition.reward[1] = poison
        return transition

    monkeypatch.setattr(SeededEnvs, "receive", poisoned)
    for steps in (30, 40):
        result = train(script, out=f"{steps}", seeds=("0", "1"), **SCRIPTS[script] | {"total_steps": steps})
        assert result.config["diverged"] == {"1": SCRIPTS[script].get("learning_starts", 0) + 5}
        ends.append(result.parameters)
    frozen = [rows(end, 1, 2) for end in ends]
    assert all(torch.equal(t.nan_to_num(7.0), frozen[1][n].nan_to_num(7.0)) for n, t in frozen[0].items())
    going = [rows(end, 0, 2) for end in ends]
    assert any(not torch.equal(t, going[1][n]) for n, t in going[0].items())


@scripts
def test_a_diverged_run_is_no_longer_reported(script, train, monkeypatch, capsys):
    receive = SeededEnvs.receive

    def poisoned(envs):
        transition = receive(envs)
        transition.reward[0] = float("nan")
        return transition

    monkeypatch.setattr(SeededEnvs, "receive", poisoned)
    result = train(script, seeds=("4", "5"), **SCRIPTS[script])
    import pandas as pd

    table = pd.read_parquet(result.folder / "eval.parquet")
    assert set(table[table["step"] == 40]["seed"]) == {5}
    if "eval_episodes" in SCRIPTS[script]:
        assert set(table[table["step"] == 0]["seed"]) == {4, 5}
    assert "seed 4 diverged" in capsys.readouterr().err


@scripts
def test_when_all_runs_diverge_the_exit_code_is_3(script, train, monkeypatch):
    receive = SeededEnvs.receive

    def poisoned(envs):
        transition = receive(envs)
        transition.reward[:] = float("nan")
        return transition

    monkeypatch.setattr(SeededEnvs, "receive", poisoned)
    result = train(script, seeds=("4", "5"), **SCRIPTS[script])
    assert result.code == 3 and result.config["status"] == "diverged" and result.config["step"] < 40
