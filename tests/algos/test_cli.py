"""Seeds, settings of a grid, and errors in one sentence."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import SCRIPTS

from algos.cli import RunArgs, parse_seeds, report_errors, settings, with_settings
from algos.errors import UserError
from algos.per_run import PerRun

ROOT = Path(__file__).parents[2]


def sac_args(**overrides):
    import sac

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
        (("tau=0.1,nan",), r"--tau must lie in (0, 1], got nan"),
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


def shell(script: str, *flags: str):
    path = ROOT / "single_file" / f"{script}.py"
    return subprocess.run([sys.executable, str(path), *flags], capture_output=True, text=True)


def test_the_command_line_says_one_sentence_before_any_work(tmp_path):
    done = shell("sac", "--total-steps", "0", "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: --total-steps must be at least 1, got 0\n"
    done = shell("iql", "--vary", "hidden=8,16", "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and done.stderr.startswith("error: --vary: hidden cannot differ between runs")
    assert not (tmp_path / "out").exists()


def test_help_explains_every_flag_and_defaults_by_domain():
    done = shell("iql", "--help")
    assert done.returncode == 0
    text = re.sub(r"[\s│]+", " ", done.stdout).replace("`", "")
    for flag in [
        "dataset",
        "env-id",
        "seeds",
        "vary",
        "total-steps",
        "device",
        "compile",
        "eval-every",
        "out",
        "resume",
        "log-every",
        "expectile",
    ]:
        assert f"--{flag}" in text, flag
    for words in ("implicit Q-learning", "a range such as 0:10", "every combination of values", "0.7, antmaze 0.9"):
        assert words in text, words


def test_the_sentence_about_evaluation_in_streaming_scripts_says_why():
    import stream_ac

    from algos.arguments import check

    with pytest.raises(UserError, match="must be 0, got 1: the score of a streaming algorithm is the return of its"):
        check(stream_ac.Args(eval_episodes=1))


@pytest.mark.parametrize("script", sorted({name.split()[0] for name in SCRIPTS}))
def test_every_script_has_hyperparameters_that_may_vary(script):
    from scripts import hyperparameters, module_of

    names = hyperparameters(script)
    assert names and all(hasattr(module_of(script).Args(), name) for name in names)
