"""Programs end on signals with one line and exit code 130, wherever they are."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from scripts import needs_compiler
from torch._inductor.async_compile import AsyncCompile

from algos.cli import report_errors
from algos.compile import compiled, compiled_at_first
from algos.signals import Signals, interruptible

NUMBERS = [signal.SIGINT, signal.SIGTERM]
SCRIPTS = sorted((Path(__file__).parents[1] / "single_file").glob("*.py"))


def ended(number, before=""):
    """Exit code and error output of a program that gets a signal while it imports; `before` comes first in it."""
    program = (
        f"import os, signal, sys\n{before}\nimport algos.early\nos.kill(os.getpid(), {int(number)})\nprint('went on')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=SCRIPTS[0].parents[1])
    assert done.stdout == ""
    return done.returncode, done.stderr


SCRIPT = f"sys.argv[0] = {str(SCRIPTS[0])!r}"
RELATIVE = f"sys.argv[0] = {os.path.join('..', SCRIPTS[0].parents[1].name, 'single_file', SCRIPTS[0].name)!r}"
COMMAND = "sys.argv[0] = '-m'; sys.orig_argv = ['python', '-m', 'benchmarks.sweep', 'smoke']"
THEIRS = {  # programs of others, which may import this repository
    "a file": "",
    "a script of a folder of the same name": "sys.argv[0] = '/home/me/single_file/mine.py'",
    "a command": "sys.argv[0] = '-m'; sys.orig_argv = ['python', '-m', 'mine.train']",
    "a process of multiprocessing": f"{SCRIPT}; import multiprocessing; multiprocessing.parent_process = lambda: 1",
    "a handler of its own": f"{SCRIPT}; signal.signal(signal.SIGTERM, lambda *_: os._exit(-signal.SIGTERM % 256))",
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("program", [SCRIPT, RELATIVE, COMMAND])
def test_a_signal_during_the_imports_ends_a_program_of_this_repository_in_one_line(number, program):
    assert ended(number, program) == (130, "interrupted\n")


@pytest.mark.parametrize("program", THEIRS)
def test_programs_of_others_keep_what_they_do_on_signals(program):
    code, said = ended(signal.SIGTERM, THEIRS[program])
    assert code % 256 == -signal.SIGTERM % 256 and said == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_is_ready_for_signals_before_its_other_imports(script):
    first = re.search(r"^(import|from) .*", script.read_text(), re.M)
    assert first and first[0].startswith("import algos.early")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_command_ends_on_a_signal_in_one_line(number, capsys):
    before = [signal.getsignal(n) for n in NUMBERS]
    with pytest.raises(SystemExit) as end:
        report_errors(lambda: os.kill(os.getpid(), number))
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert [signal.getsignal(n) for n in NUMBERS] == before


@pytest.mark.parametrize("number", NUMBERS)
def test_a_run_does_not_wait_for_the_end_of_what_takes_long(number):
    with Signals() as signals:
        with interruptible():
            pass
        with pytest.raises(KeyboardInterrupt, match="--resume goes on from the last checkpoint"), interruptible():
            os.kill(os.getpid(), number)
        assert signals.came


def test_a_signal_that_came_before_ends_it_too():
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.came
        with pytest.raises(KeyboardInterrupt), interruptible():
            pytest.fail("it began")


def test_what_is_waited_for_is_said_once_and_not_at_once(capsys, monkeypatch):
    Signals.tell("the end")
    with Signals() as signals:
        Signals.tell("the end")
        os.kill(os.getpid(), signal.SIGTERM)
        Signals.tell("the end")
        assert capsys.readouterr().err == "" and signals.came
        monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 3)
        Signals.tell("the end of this")
        Signals.tell("the end of this")
    assert capsys.readouterr().err == "interrupted: this waits for the end of this; Ctrl-C again ends at once\n"


def test_a_second_thread_leaves_signals_to_the_main_one():
    def enter():
        with Signals(), interruptible():
            seen.append((Signals.present, Signals.at_once))

    seen = []
    with Signals() as signals:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert seen == [(signals, False)] and Signals.present is signals


@pytest.mark.parametrize("threads", [1, 2])
def test_only_compilers_are_ended_with_a_compilation(threads, monkeypatch):
    """The compiler stands for what a compilation starts; the other process was there before."""
    monkeypatch.setattr("torch._inductor.async_compile.get_compile_threads", lambda: threads)
    AsyncCompile.pool.cache_clear()
    pool = AsyncCompile.pool() if threads > 1 else None  # on a single core, torch makes none
    other = subprocess.Popen(["sleep", "60"])
    compilers = []

    def compile_long():
        compilers.append(subprocess.Popen(["sleep", "60"]))
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            compiled_at_first(compile_long)()
        assert compilers[0].wait(10) == -signal.SIGKILL and other.poll() is None
    finally:
        other.kill()
        other.wait()
    if pool:
        assert AsyncCompile.pool() is not pool
        assert AsyncCompile.pool().submit(int).result() == 0  # others can be compiled


def test_only_the_first_call_of_a_compiled_function_compiles():
    hasty = []
    function = compiled_at_first(lambda x, y=0: hasty.append(Signals.at_once) or x + y)
    assert [function(1), function(1, y=2)] == [1, 3]
    assert hasty == [True, False]


@needs_compiler
def test_no_compilation_makes_a_signal_wait(monkeypatch):
    hasty = []

    def compile_fx(graph, inputs, **options):
        hasty.append(Signals.at_once)
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    function = compiled(lambda x, twice: 2 * x if twice else x + 1, torch.device("cpu"), compile_on_cpu=True)
    one = torch.ones(2)
    assert [function(one, twice)[0].item() for twice in (True, False, True)] == [2, 2, 2]
    assert hasty == [True, True] and not Signals.at_once
