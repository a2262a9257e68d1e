"""The number of threads follows the load: no clock and no real load here."""

import psutil
import pytest
import torch

from algos import threads
from algos.threads import Threads, children, cpu_seconds, thread_count


class Machine:
    """Four cores on which this process uses all that others leave."""

    def __init__(self, monkeypatch):
        self.time, self.total, self.own, self.set = 0.0, 100.0, 10.0, 4
        monkeypatch.setattr(threads, "own_cores", lambda: [0, 1, 2, 3])
        monkeypatch.setattr(threads, "core_count", lambda: 4)
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.set)
        monkeypatch.setattr(torch, "set_num_threads", lambda number: setattr(self, "set", number))

    def measure(self) -> tuple[float, float]:
        return self.total, self.own

    def after(self, run: Threads, others: float, seconds: float = 1.0) -> int:
        """The number of threads after others have used that many cores."""
        self.time += seconds
        self.total += 4 * seconds
        self.own += (4 - others) * seconds
        run.poll()
        return self.set

    def run(self, fixed: int = 0) -> Threads:
        return Threads(fixed, self.measure, lambda: self.time)


@pytest.fixture
def machine(monkeypatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(("others", "left"), [(0.0, 4), (0.2, 4), (0.3, 3), (1.1, 3), (2.0, 2), (4.0, 1), (9.0, 1)])
def test_each_busy_core_takes_one_thread(machine, others, left):
    assert machine.after(machine.run(), others) == left


def test_threads_go_at_once_and_come_back_after_three_quiet_seconds(machine):
    run = machine.run()
    assert machine.after(run, 2.0) == 2
    assert [machine.after(run, 0.0) for _ in range(3)] == [2, 2, 4]


def test_the_load_is_measured_once_a_second(machine):
    run = machine.run()
    assert [machine.after(run, 4.0, seconds=0.3) for _ in range(4)] == [4, 4, 4, 1]


def test_a_given_number_of_threads_is_kept(machine):
    run = machine.run(fixed=2)
    assert machine.set == 2 and machine.after(run, 4.0) == 2


def test_a_run_never_has_more_threads_than_torch_began_with(machine):
    machine.set = 2  # as OMP_NUM_THREADS=2 does
    run = machine.run()
    assert [machine.after(run, others) for others in (0.0, 3.0, 0.0, 0.0, 0.0)] == [2, 1, 1, 1, 2]


def test_cpu_seconds_count_this_process():
    total, own = cpu_seconds()
    sum(range(300_000))
    total_after, own_after = cpu_seconds()
    assert own_after > own > 0 and total_after >= total > 0


def test_a_number_of_threads_is_for_a_while_only(machine):
    with thread_count(1):
        assert machine.set == 1
    assert machine.set == 4


def test_a_given_number_holds_in_each_of_several_parts(machine):
    run = machine.run(fixed=2)
    for _ in range(2):
        with run:
            assert machine.set == 2
        assert machine.set == 4


def test_a_run_has_no_more_threads_than_a_control_group_gives_time_for(machine, monkeypatch):
    monkeypatch.setattr(threads, "core_count", lambda: 2)
    assert machine.run().most == 2 and machine.set == 2
    machine.set = 4
    assert machine.run(fixed=3).most == 3


def test_measuring_takes_a_fiftieth_of_the_time_at_most(machine):
    run = machine.run()
    quick, run.measure = run.measure, lambda: (setattr(machine, "time", machine.time + 0.1), machine.measure())[1]
    assert machine.after(run, 0.0) == 4 and run.interval == pytest.approx(5.0)
    assert machine.after(run, 4.0, seconds=4.8) == 4  # not yet
    run.measure = quick
    assert machine.after(run, 4.0, seconds=0.2) == 1 and run.interval == 1.0


@pytest.mark.parametrize(("fixed", "cores"), [(1, 4), (3, 4), (0, 1)])
def test_a_run_that_does_not_follow_the_load_never_looks_at_other_processes(machine, monkeypatch, fixed, cores):
    machine.set = cores
    monkeypatch.setattr(machine, "measure", lambda: pytest.fail("it looked"))
    assert machine.after(machine.run(fixed), 4.0) == (fixed or cores)


def test_a_system_that_hides_processes_lets_a_run_go_on(monkeypatch):
    def hidden(self, recursive):
        raise psutil.AccessDenied(1)

    monkeypatch.setattr(psutil.Process, "children", hidden)
    assert children() == set()
    total, own = cpu_seconds()
    assert total >= 0 and own > 0
