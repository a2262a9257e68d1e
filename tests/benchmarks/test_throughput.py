"""What the comparison of scripts measures, and beside what; the scripts themselves do not run here."""

import importlib.util
import subprocess

import psutil
import pytest

from benchmarks import throughput
from benchmarks.throughput import Args, busy, measure_scripts


def test_busy_processes_live_as_long_as_the_measurement():
    before = set(psutil.Process().children())
    with busy(2):
        assert len(set(psutil.Process().children()) - before) == 2
    assert set(psutil.Process().children()) <= before


def test_every_figure_is_measured_again_beside_busy_processes(monkeypatch):
    """Ours fall to 60 of 100 steps/s, the peers' to 20 of 50."""
    others = []

    def speed(free: float, loaded: float) -> float:
        return loaded if others else free

    class Process:
        def __init__(self, command):
            others.append(command)

        def kill(self):
            others.pop()

        def wait(self):
            pass

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(throughput, "script_rate", lambda *args: (speed(100, 60), 7.0))
    monkeypatch.setattr(throughput, "peer_rate", lambda *args: speed(50, 20))
    rows = {row["name"]: row for row in measure_scripts(Args(rounds=3, beside=1, device="cpu"))}
    ours = rows["sac, 1 seed"]
    assert (ours["rate"], ours["beside 1"], ours["kept"]) == (100, 60, 0.6)
    assert (ours["ratio to sbx"], ours["ratio to sbx, beside 1"]) == (2.0, 3.0)
    assert all({"beside 1", "kept"} <= set(row) for row in rows.values())
    assert rows["sb3 sac, 1 seed"]["kept"] == 0.4
    assert not others

    rows = measure_scripts(Args(rounds=1, peers=False, device="cpu"))
    assert not any({"beside 0", "kept"} & set(row) for row in rows)


@pytest.mark.parametrize(("threads", "variables"), [(0, {}), (2, {"OMP_NUM_THREADS": "2"})])
def test_scripts_and_peers_choose_their_threads_unless_told(threads, variables):
    assert throughput.thread_variables(Args(threads=threads)) == variables
