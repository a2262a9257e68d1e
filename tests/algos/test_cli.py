"""Seeds, settings of a grid, and errors in one sentence."""

import contextlib
import importlib
import itertools
import re
import runpy
import sys
from pathlib import Path

import pytest
import sac
from scripts import SCRIPTS, hyperparameters

from algos.cli import RunArgs, check_clone, cli, parse_seeds, report_errors, settings, with_settings
from algos.errors import UserError
from algos.per_run import PerRun

ROOT = Path(__file__).parents[2]


def sac_args(**overrides):
    return sac.Args(**overrides)


def test_seeds_may_be_numbers_and_ranges():
    assert parse_seeds(("0:3", "7", "10:12")) == [0, 1, 2, 7, 10, 11]
    assert parse_seeds((":2",)) == [0, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("1", "2", "1"), "got 1 twice"),
        (("0:3", "2"), "got 2 twice"),
        (("-3",), "must not be negative, got -3"),
        (("0:x",), "whole numbers or a range such as 0:10, got '0:x'"),
        (("1.5",), "got '1.5'"),
        (("4:4",), "names no seed: '4:4'"),
        (("0", "5:3"), "names no seed: '5:3'"),
        ((), "names no seed"),
    ],
)
def test_words_that_are_no_seeds_are_refused(words, message):
    with pytest.raises(UserError, match=rf"^--seeds .*{message}"):
        parse_seeds(words)


def test_settings_are_all_combinations_and_the_last_hyperparameter_changes_fastest():
    args = sac_args(vary=("critic_lr=1e-4,3e-4", "tau=0.005,0.01"))
    assert settings(args) == [
        {"critic_lr": 1e-4, "tau": 0.005}, {"critic_lr": 1e-4, "tau": 0.01},
        {"critic_lr": 3e-4, "tau": 0.005}, {"critic_lr": 3e-4, "tau": 0.01},
    ]  # fmt: skip
    assert settings(sac_args()) == [{}]
    assert settings(sac_args(vary=("--critic-lr=1e-4",))) == [{"critic_lr": 1e-4}]  # as flags are written


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        (("batch_size=8,16",), "--vary: batch_size cannot differ between runs, only discount, tau, actor_lr,"),
        (("critic_rl=1e-4,1e-3",), "did you mean critic_lr?"),
        (("hidden=8,16",), "hidden cannot differ between runs"),
        (("tau",), "words such as critic_lr=1e-4,3e-4, got 'tau'"),
        (("tau=",), "got 'tau='"),
        (("tau=0.1,x",), "--vary tau takes numbers with commas between them, got '0.1,x'"),
        (("tau=0.1,",), "numbers with commas between them, got '0.1,'"),
        (("tau=0.1,0.1",), "--vary tau has the value 0.1 twice"),
        (("tau=0.1,0.10",), "has the value 0.1 twice"),
        (("tau=0.1,1.5",), r"--tau must lie in (0, 1], got 1.5"),
        (("tau=0.1,nan",), "--vary tau takes finite numbers, got '0.1,nan'"),
        (("tau=0.1", "discount=0.9", "tau=0.2"), "--vary names tau twice"),
    ],
)
def test_what_may_not_vary_is_refused_in_a_sentence(vary, message):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        settings(sac_args(vary=vary))
    assert "\n" not in str(error.value)


def test_a_script_without_such_hyperparameters_says_so():
    with pytest.raises(UserError, match="x cannot differ between runs, only nothing can"):
        settings(RunArgs(vary=("x=1,2",)))


def test_runs_are_settings_times_seeds_and_settings_vary_slowest():
    args, seeds = with_settings(sac_args(vary=("tau=0.1,0.2", "discount=0.9,0.99")), [3, 7])
    assert seeds == [3, 7] * 4
    assert isinstance(args.tau, PerRun) and args.tau.tolist() == [0.1] * 4 + [0.2] * 4
    assert args.discount.tolist() == [0.9, 0.9, 0.99, 0.99] * 2 and args.critic_lr == 1e-3
    plain, seeds = with_settings(sac_args(), [3, 7])
    assert seeds == [3, 7] and plain == sac_args()


def test_an_error_of_the_users_is_one_sentence_and_exit_code_2(capsys):
    def command():
        raise UserError("--tau must lie in (0, 1], got 7")

    with pytest.raises(SystemExit) as stop:
        report_errors(command)
    assert stop.value.code == 2 and capsys.readouterr().err == "error: --tau must lie in (0, 1], got 7\n"


def test_an_error_of_ours_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        report_errors(lambda: 1 / 0)


@pytest.fixture
def shell(monkeypatch, capsys):
    """Runs a script by its command line, in this process; gives the exit code, and what it prints and complains."""

    def run(script: str, *flags: str):
        monkeypatch.setattr(sys, "argv", [script, *flags])
        with pytest.raises(SystemExit) as stop:
            cli(importlib.import_module(script).main)
        return stop.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("script", "flags", "message"),
    [
        ("sac", "--total-steps 0", "--total-steps must be at least 1, got 0\n"),
        ("sac", "--vary hidden=8,16", "--vary: hidden cannot differ between runs, only"),
        ("sac", "--env-id Hoper-v5", "--env-id: Gymnasium has no environment 'Hoper-v5'; the closest ids are"),
        ("sac", "--env-id Hoper-v5 --see 3", "Unrecognized options: --see, 3; Perhaps you meant: --seeds; --help"),
        ("sac", "--total-steps 1e5", "Error parsing --total-steps: '1e5' is no whole number in digits; --help"),
        ("sac", "--discount x", "Error parsing --discount: 'x' is no number; --help"),
        ("sac", "--hidden 8,x", "Error parsing --hidden: '8,x' does not fit; spaces separate values; --help"),
        ("sac", "--hidden 8 x", "Error parsing --hidden: '8', 'x' does not fit; spaces separate values; --help"),
        ("sac", "--vary tau=0.01,0.02 --vary lr=1,2", "--vary is given twice, and only the last would count: give all"),
        ("sac", "--seeds 0 --total-steps 9 --seeds=1", "--seeds is given twice"),
        ("sac", "--tau 0 --tau 0.1 --total-steps 9 --total_steps=0", "--total-steps must be at least 1, got 0\n"),
        ("iql", "--seeds x", "--seeds takes whole numbers or a range such as 0:10, got 'x'\n"),
        ("stream_q", "--eval-episodes 1", "--eval-episodes must be 0, got 1: the score of a streaming algorithm is"),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_the_command_line_says_one_sentence_before_any_work(
    script, flags, message, terminal, shell, tmp_path, monkeypatch
):
    """Also on a terminal, for which tyro colours what it says."""
    if terminal:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
    code, out, err = shell(script, *flags.split(), "--out", str(tmp_path / "out"))
    assert code == 2 and out == "" and err.startswith(f"error: {message}") and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_script_calls_its_run_by_the_name_of_its_file(tmp_path, monkeypatch, capsys):
    """A copy that keeps the name of its origin would be taken for it, by later runs and where policies are used."""
    script = (Path(sac.__file__).read_text()).replace('Run(args, "sac")', 'Run(args, "{}")')
    for name in ("sac", "mine"):
        (tmp_path / "mine.py").write_text(script.replace('"{}"', repr(name)))
        flags = ["--env-id", "Pendulum-v1", "--total-steps", "9", "--eval-episodes", "0", "--out", str(tmp_path / name)]
        monkeypatch.setattr(sys, "argv", [str(tmp_path / "mine.py"), *flags])
        with pytest.raises(SystemExit) if name == "sac" else contextlib.nullcontext() as stop:
            runpy.run_path(sys.argv[0], run_name="__main__")
        assert (tmp_path / name).exists() == (name == "mine")
        if name == "sac":
            assert stop.value.code == 2
            assert "mine.py calls its run 'sac', and results are stored" in capsys.readouterr().err


def test_arguments_without_the_decorator_are_refused(tmp_path, monkeypatch, capsys):
    """They would have the flags of their base alone, and other defaults than they state."""
    text = (ROOT / "single_file" / "td3.py").read_text()
    assert "@dataclass\nclass Args(" in text
    (tmp_path / "plain.py").write_text(text.replace("@dataclass\nclass Args(", "class Args("))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "plain.py")])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(sys.argv[0], run_name="__main__")
    said = capsys.readouterr().err
    assert (
        stop.value.code == 2 and "plain.py: Args lacks @dataclass, without which its own arguments do not count" in said
    )


def test_a_script_of_another_clone_than_the_packages_is_warned_of(tmp_path, capsys):
    script = tmp_path / "single_file" / "mine.py"
    for there in (False, True):
        if there:
            (tmp_path / "algos").mkdir()
            (tmp_path / "algos" / "cli.py").write_text("")
        check_clone(script)
        assert (f"not with that of {tmp_path}: pip install -e {tmp_path}" in capsys.readouterr().err) == there
    check_clone(Path(sac.__file__))
    assert not capsys.readouterr().err


FLAGS = "dataset env-id seeds vary total-steps device compile eval-every out resume log-every expectile"


def test_help_explains_every_flag_and_defaults_by_domain(shell):
    code, out, _ = shell("iql", "--help")
    text = re.sub(r"[\s│]+", " ", out).replace("`", "")
    assert code == 0 and all(f"--{flag}" in text for flag in FLAGS.split())
    for words in ("implicit Q-learning", "a range such as 0:10", "every combination of values", "0.7, antmaze 0.9"):
        assert words in text, words
    assert "--vary STR … hyperparameters" in text and "...]" not in text and "(default: )" not in text


@pytest.mark.parametrize("columns", [80, 100])
def test_help_fills_the_lines_of_the_terminal(shell, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = shell("mopo", "-h")
    lines = [line.replace("│", " ") for line in out.splitlines()]
    assert lines[0].startswith("MOPO: ") and "    python single_file/mopo.py" in out
    assert max(len(line) for line in lines if not line.startswith("    python ")) == columns
    pairs = 0
    for line, after in itertools.pairwise(lines):
        indents = {len(one) - len(one.lstrip()) for one in (line, after) if one.strip()}
        if line.strip() and after.strip() and indents in ({0}, {22}):
            room = columns - 24 if indents == {22} else columns
            assert len(line.strip()) + 1 + len(after.split()[0]) > room, (line, after)  # the first word found no room
            pairs += 1
    assert pairs > 40


@pytest.mark.parametrize("script", sorted({name.split()[0] for name in SCRIPTS}))
def test_no_default_is_taken_for_another(shell, monkeypatch, script):
    monkeypatch.setattr("random.random", lambda: 0.0)  # tyro, in tests, then looks at all that it remembers
    assert shell(script, "-h")[0] == 0


@pytest.mark.parametrize("script", sorted({name.split()[0] for name in SCRIPTS}))
def test_every_script_has_hyperparameters_that_may_vary(script):
    assert hyperparameters(script)


def test_a_script_that_runs_is_imported_again_without_training(monkeypatch):
    """As its policies are read; it may lack the guard `if __name__ == "__main__"`."""
    monkeypatch.setattr("algos.cli.script", Path("own.py"))
    cli(lambda args: pytest.fail("it trained"))
