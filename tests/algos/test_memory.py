"""Limits on memory: what is reserved, and hardly used, is not refused."""

import contextlib
import mmap

import numpy as np
import psutil
import pytest
import torch
from torch.utils.tensorboard.writer import FileWriter

from algos.checkpoint import Checkpoints
from algos.cli import RunArgs, cli
from algos.episodes import EpisodeBuffer
from algos.memory import limit_memory
from algos.replay import ReplayBuffer
from envs import make_vec
from envs.cores import reserving
from envs.task import Task

TASK = Task("HalfCheetah-v5", (17,), 6, False, (-1.0,) * 6, (1.0,) * 6, 1_000)
resource = pytest.importorskip("resource")
if not hasattr(psutil.Process().memory_info(), "data"):
    pytest.skip("this system does not count reserved memory", allow_module_level=True)


@contextlib.contextmanager
def limited(mebibytes: int):
    """Leaves this process so much memory more than it has; gives a function that tells the limit."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + (mebibytes << 20), before[1]))
    try:
        yield lambda: resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def reserved(mebibytes: int) -> mmap.mmap:
    return mmap.mmap(-1, mebibytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def test_what_is_reserved_is_added_to_a_limit():
    with limited(100) as limit:
        before = limit()
        with pytest.raises(OSError, match="Cannot allocate memory"):
            reserved(300)
        with reserving():
            kept, passing = reserved(300), reserved(300)
            passing.close()
        assert 295 < limit() - before < 310
        with pytest.raises(OSError, match="Cannot allocate memory"):
            reserved(300)
        kept.close()
        assert len(reserved(300)) == 300 << 20  # what is given back may be taken again


def test_without_a_limit_nothing_is_limited():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if before[0] != before[1]:
        pytest.skip("the limit of this process is not that of the system")
    try:
        with reserving():
            kept = reserved(300)
        assert resource.getrlimit(resource.RLIMIT_DATA) == before and len(kept) == 300 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_memory_that_is_used_is_not_added_to_a_limit():
    with limited(400) as limit:
        before = limit()
        with reserving():
            used = torch.ones(300 << 18)
        assert limit() - before < 30 and len(used) == 300 << 18


def test_a_process_is_limited_to_the_memory_that_is_free(monkeypatch):
    """Memory that can be swapped out is free too, and a limit of the system stays one."""
    monkeypatch.setattr("algos.memory.free_memory", lambda swap: (200 if swap else 50) << 20)
    with limited(10_000) as limit:
        here = psutil.Process().memory_info().data >> 20
        limit_memory()
        assert 195 < limit() - here < 205
        with pytest.raises(OSError, match="Cannot allocate memory"):
            reserved(300)
        assert len(reserved(100)) == 100 << 20
    hard, chosen = psutil.Process().memory_info().data + (20 << 20), []
    with monkeypatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda kind: (hard, hard))
        patch.setattr(resource, "setrlimit", lambda *given: chosen.append(given))
        limit_memory()
    assert chosen == [(resource.RLIMIT_DATA, (hard, hard))]


@pytest.mark.parametrize(("device", "done"), [("cpu", ["limited", "trained"]), ("cuda", ["trained"])])
def test_a_script_limits_its_memory_before_it_trains_on_a_cpu(monkeypatch, device, done):
    """On a GPU, CUDA reserves more than there is."""
    found = []

    def main(args: RunArgs):
        found.append("trained")

    monkeypatch.setattr("algos.cli.limit_memory", lambda: found.append("limited"))
    monkeypatch.setattr("algos.cli.device_of", lambda args: torch.device(device))
    monkeypatch.setattr("algos.cli.check_all", lambda args: None)
    monkeypatch.setattr("sys.argv", ["own.py"])
    cli(main)
    assert found == done


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "InvertedPendulum-v4"])
def test_environments_of_mujoco_that_use_little_memory_are_made_below_a_limit(env_id):
    """Each MjData reserves several megabytes."""
    make_vec(env_id, 1).close()
    with limited(60):
        envs = make_vec(env_id, 60, threads=1)  # further threads would reserve their stacks
    envs.close()
    assert envs.num_envs == 60


@pytest.mark.usefixtures("tensorboard")
def test_writers_of_tensorboard_are_made_below_a_limit(train_short, monkeypatch):
    """Each has a thread, which reserves its stack."""
    begin, left = FileWriter.__init__, []

    def noted(writer, *args, **kwargs):
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        left.append(soft == hard)
        begin(writer, *args, **kwargs)

    monkeypatch.setattr(FileWriter, "__init__", noted)
    with limited(4_000):
        train_short("td3_bc", seeds=("0", "1"))
    assert left == [True, True]


def test_a_checkpoint_is_read_beside_its_buffer_below_a_limit(tmp_path):
    old, new = (ReplayBuffer(1, 400_000, TASK) for _ in range(2))
    old.added[:] = 400_000
    old.rows[:] = 1.5
    new.rows[:] = 0.0
    numbers = dict.fromkeys(("seconds", "evaluation_seconds", "peak_bytes"), 0)
    values = {"final": False, "done": [1], "taken": [1], "diverged": {}, "phases": {}, **numbers}
    values |= {"episodes": [], "scored": [], "over": []}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"replay": old}, values)
    with limited(30):
        found, complaints = checkpoints.load({"replay": new}, 1)
    assert found["done"] == [1] and not complaints and torch.equal(old.rows, new.rows)


def test_episodes_are_saved_without_a_copy():
    buffer = EpisodeBuffer(2, 100, TASK)
    buffer.added[:] = 60, 20
    state = buffer.state_dict()
    for run, n in enumerate((60, 20)):
        rows = state[f"rows.{run}"]
        assert len(rows) == n and rows.data_ptr() == buffer.rows[run].data_ptr() and rows.is_contiguous()
    assert np.array_equal(state["added"], [60, 20])
