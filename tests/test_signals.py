"""Programs end on signals with one line and exit code 130, wherever they are."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from algos.cli import report_errors
from algos.compile import compiled_at_first
from algos.signals import Signals, interruptible

NUMBERS = [signal.SIGINT, signal.SIGTERM]
SCRIPTS = sorted((Path(__file__).parents[1] / "single_file").glob("*.py"))


def ended(folder, number):
    """Exit code and error output of a program in a folder of this name, which gets a signal while it imports."""
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(f"import algos.early\nimport os\nos.kill(os.getpid(), {int(number)})\nprint('went on')\n")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, cwd=SCRIPTS[0].parents[1])
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_during_the_imports_ends_a_script_in_one_line(number, tmp_path):
    assert ended(tmp_path / "single_file", number) == (130, "interrupted\n")


def test_programs_of_others_keep_what_they_do_on_signals(tmp_path):
    assert ended(tmp_path / "theirs", signal.SIGTERM) == (-signal.SIGTERM, "")


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


def test_only_the_first_call_of_a_compiled_function_compiles():
    hasty = []
    function = compiled_at_first(lambda x, y=0: hasty.append(Signals.at_once) or x + y)
    assert [function(1), function(1, y=2)] == [1, 3]
    assert hasty == [True, False]
