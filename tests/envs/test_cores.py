"""The limits of control groups, in a file system of the test's own."""

from types import SimpleNamespace

import psutil
import pytest

from envs import cores

GIB = 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with eight cores and 64 GiB; gives a function that writes files of the groups."""
    monkeypatch.setattr(cores, "ROOT", tmp_path)
    monkeypatch.setattr(cores, "own_cores", lambda: list(range(8)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(free=GIB))

    def write(**files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return write


def found() -> tuple[int, float]:
    return cores.core_count(), cores.free_memory() / GIB


def test_without_control_groups_the_whole_machine_is_there(machine):
    assert found() == (8, 64) and cores.free_memory(swap=True) == 65 * GIB


def test_groups_without_limits_change_nothing(machine):
    machine(**{
        "proc/self/cgroup": "0::/user\n",
        "sys/fs/cgroup/user/cpu.max": "max 100000\n",
        "sys/fs/cgroup/user/memory.max": "max\n",
        "sys/fs/cgroup/user/memory.current": "5\n",
        "sys/fs/cgroup/user/memory.stat": "active_file 1\ninactive_file 1\n",
    })  # fmt: skip
    assert found() == (8, 64)


def test_the_least_limit_of_all_groups_around_a_process_counts(machine):
    machine(**{
        "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
        "sys/fs/cgroup/job/cpu.max": "250000 100000\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/job/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/job/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/job/memory.stat": f"anon {GIB}\nactive_file {GIB // 2}\ninactive_file {GIB // 2}\n",
    })  # fmt: skip
    assert found() == (3, 6) and cores.free_memory(swap=True) == 6 * GIB  # 2.5 cores keep three threads busy


def test_a_container_sees_its_own_limits_at_the_root_whatever_its_path_is_called(machine):
    machine(**{
        "proc/self/cgroup": "4:memory:/docker/12ab\n3:cpu,cpuacct:/docker/12ab\n0::/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": "total_active_file 0\ntotal_inactive_file 0\n",
    })  # fmt: skip
    assert found() == (2, 1)
    machine(
        **{"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63}\n"}
    )
    assert found() == (8, 64)


def test_there_is_always_a_core_and_never_less_than_no_memory(machine):
    machine(**{
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": "1000 100000\n",
        "sys/fs/cgroup/memory.max": "10\n",
        "sys/fs/cgroup/memory.current": "20\n",
        "sys/fs/cgroup/memory.stat": "active_file 0\ninactive_file 0\n",
    })  # fmt: skip
    assert found() == (1, 0)
