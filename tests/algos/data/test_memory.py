"""The memory that loading and preparing a dataset takes."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
from dataset_files import d4rl_arrays, hdf5, npz, trajectories

from algos.data import load

MEASURE = """
import ctypes, gc, sys
from pathlib import Path
from algos.data import load, validate
from algos.goal_data import load_states
from algos.goals import Goals

def status(key):
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) * 1024

def prepare(data):
    validate(data)
    data.scale_rewards("range")
    data.standardise()
    data.transitions_of(10**6)

small, hdf5, npz = sys.argv[1:]
prepare(load(small))  # imports and other things that happen only once
for name, exact, goals in [(hdf5, False, False), (hdf5, True, False), (npz, False, False), (npz, False, True)]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    if goals:
        data = Goals(load_states(name)).data
    else:
        data = load(name, exact)
        prepare(data)
    print((status("VmHWM") - before) / (data.rows.nbytes + data.index.nbytes))
    del data
"""


def write_large(folder, count: int) -> tuple[str, str]:
    """An HDF5 file of D4RL's layout, with next observations that need rows of their own, and an npz of OGBench's."""
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.random((count, 11), np.float32),
        "actions": rng.random((count, 3), np.float32),
        "rewards": rng.random(count, np.float32),
        "terminals": np.arange(count) % 1000 == 999,
    }
    path = npz(folder / "large.npz", arrays | {"rewards": arrays["rewards"] * ~arrays["terminals"]})
    arrays["next_observations"] = np.roll(arrays["observations"], -1, 0)
    arrays["next_observations"][999::1000] += 1
    arrays["timeouts"] = np.zeros(count, bool)
    with h5py.File(folder / "large.hdf5", "w") as file:
        for key, array in arrays.items():
            file[key] = array
    return str(folder / "large.hdf5"), path


def test_a_file_is_read_in_pieces(tmp_path, monkeypatch):
    """NumPy counts the memory that is reserved: twice the rows where next observations may need rows of their own."""
    monkeypatch.setattr("algos.data.record.CHUNK", 2048)
    for path, share in zip(write_large(tmp_path, 100_000), (2, 1), strict=True):
        tracemalloc.start()
        data = load(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.2 * share * (data.rows.nbytes + data.index.nbytes)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_loading_and_preparing_takes_little_more_memory_than_the_arrays(tmp_path):
    hdf5_path, npz_path = write_large(tmp_path, 1_500_000)
    small = hdf5(tmp_path / "small.hdf5", d4rl_arrays(trajectories(5, 4)))
    command = [sys.executable, "-c", MEASURE, small, hdf5_path, npz_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    ratios = [float(line) for line in done.stdout.split()]
    assert len(ratios) == 4, done.stderr
    assert max(ratios) < 1.3, ratios
