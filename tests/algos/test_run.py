"""The run: bad input, faults, kills and resumes, what it leaves behind."""

import contextlib
import hashlib
import importlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import torch
from filelock import SoftFileLock
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.envs.registration import EnvSpec
from safetensors import SafetensorError
from safetensors.torch import load_file

import algos.device
import algos.run
import algos.run_folder
from algos import plot, stored
from algos.agent import Agent
from algos.arguments import Positive, Tunable
from algos.checkpoint import Checkpoints
from algos.cli import RunArgs, cli, device_of
from algos.errors import UserError
from algos.folders import holder
from algos.nn import MLP
from algos.optim import Adam, Target
from algos.policy import PolicyFile
from algos.random import Random
from algos.run import Run, without_bf16
from algos.run_folder import differing, digest_of_file, folder_of, git_commit, script_of, told
from algos.summary import Summary
from algos.tables import Rows, Tables
from benchmarks.plan import state_of
from envs import Episode, SeededEnvs, Task
from envs.mujoco import MujocoVectorEnv

ROOT = Path(__file__).parents[2]
TINY = {
    "env_id": "InvertedPendulum-v5", "seeds": ("0", "1"), "total_steps": 60, "learning_starts": 20, "batch_size": 8,
    "hidden": (16,), "eval_every": 20, "eval_episodes": 2, "log_every": 10, "checkpoint_every": 20,
}  # fmt: skip
FLAGS = [
    "--env-id", "InvertedPendulum-v5", "--seeds", "0:2", "--hidden", "16", "--eval-every", "70", "--log-every", "50",
    "--checkpoint-every", "100", "--device", "cpu", "--threads", "1",
]  # fmt: skip
SCRIPT_FLAGS = {"stream_ac": ["--no-compile"]}
OFF_POLICY = ["--learning-starts", "50", "--batch-size", "8", "--eval-episodes", "2"]


def command(out: Path, *flags: str, script: str = "sac") -> list[str]:
    path = ROOT / "single_file" / f"{script}.py"
    return [sys.executable, str(path), "--out", str(out), *FLAGS, *SCRIPT_FLAGS.get(script, OFF_POLICY), *flags]


def parameters(out: Path) -> dict[str, torch.Tensor]:
    return load_file(max(out.rglob("checkpoint/*.safetensors")))


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"env_id": "Hoper-v5"}, r"no environment 'Hoper-v5'; the closest ids are .*Hopper-v5"),
        ({"env_id": "no.such.module:Env-v0"}, "there is no module 'no.such.module'"),
        ({"env_id": "CartPole-v1"}, "Discrete actions"),
        ({"seeds": ("1", "2", "1")}, "got 1 twice"),
        ({"total_steps": 0}, "--total-steps must be at least 1, got 0"),
        ({"eval_every": 0}, "--eval-every must be at least 1"),
        ({"device": "cuda"}, "--device cuda: this machine"),
        ({"device": "gpu"}, "--device takes auto, cpu, cuda"),
        ({"bf16": True}, "--bf16 works only in updates that are compiled: add --compile"),
        (
            {"bf16": True, "compile": True, "eager": True},
            "--bf16 works only in updates that are compiled: leave out --e",
        ),
        ({"bf16": True, "compile": True, "device": "cpu"}, "no hidden layer of an MLP has 4,096 weights"),
        ({"batch_size": 0}, "--batch-size must lie in"),
        ({"discount": 1.5}, "--discount must lie in"),
        ({"hidden": ()}, "--hidden takes at least one number"),
        ({"buffer_size": 10**12, "total_steps": 10**12}, "GiB"),
    ],
)
def test_bad_input_is_refused_in_one_sentence_before_any_work(overrides, message, tmp_path):
    import sac

    if overrides.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(UserError, match=message) as error:
        sac.main(sac.Args(**{**TINY, "out": tmp_path / "out", "device": "cpu", "quiet": True, **overrides}))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()  # nothing is left behind


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"observation_space": gym.spaces.Text(3)}, "Text observations"),
        ({"action_space": gym.spaces.Box(-float("inf"), float("inf"), (2,))}, "unbounded action space"),
    ],
)
def test_unfit_spaces_are_refused(space, message, tmp_path):
    import sac

    spaces = {"observation_space": gym.spaces.Box(-1, 1, (2,)), "action_space": gym.spaces.Box(-1, 1, (2,))} | space
    gym.register("Unfit-v0", entry_point=type("Unfit", (gym.Env,), spaces))
    try:
        with pytest.raises(UserError, match=message):
            sac.main(sac.Args(**{**TINY, "env_id": "Unfit-v0", "out": tmp_path, "quiet": True}))
    finally:
        del gym.registry["Unfit-v0"]


def times_of(folder: Path) -> dict[Path, int]:
    """When each file below a folder was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_folder_with_another_configuration_is_refused(train, tmp_path):
    train("sac", **TINY)
    before = times_of(tmp_path)
    import sac

    for change, message in (
        ({"discount": 0.9}, r"discount: 0.99 there, 0.9 here"),
        ({"vary": ("tau=0.005,0.01",)}, r"vary: \[\] there, \['tau=0.005,0.01'\] here"),
        ({}, r"already \(finished.*--resume"),
    ):
        with pytest.raises(UserError, match=message):
            sac.main(sac.Args(**{**TINY, "out": tmp_path / "out", "quiet": True, "device": "cpu", **change}))
    assert before == times_of(tmp_path)


def test_resuming_a_finished_run_changes_nothing(train):
    result = train("sac", **TINY)
    before = times_of(result.folder)
    again = train("sac", resume=True, **TINY)
    assert again.config["status"] == "finished" and times_of(result.folder) == before and len(before) > 5


def test_a_run_that_goes_on_by_a_changed_script_says_so(train, tmp_path, capsys):
    result = train("sac", **TINY)
    config = json.loads((result.folder / "config.json").read_text())
    assert config["script_digest"] == hashlib.sha256((ROOT / "single_file" / "sac.py").read_bytes()).hexdigest()[:16]
    assert digest_of_file(script_of(int)) is None and digest_of_file(tmp_path / "none.py") is None
    for change, said in (({}, False), ({"script_digest": "0" * 16}, True), ({"script_digest": None}, False)):
        for status, then in (("interrupted", "the run goes on"), ("finished", "its results stay those of the file")):
            (result.folder / "config.json").write_text(json.dumps(config | change | {"status": status}))
            train("sac", resume=True, **TINY)
            err = capsys.readouterr().err
            assert ("sac.py has changed since" in err) == said and (then in err) == said


def test_a_run_keeps_the_origins_of_what_earlier_processes_did(train, killed_at, tmp_path, monkeypatch, capsys):
    """And says that the file of an environment of one's own has changed."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "worlds.py"
    code = "import gymnasium as gym\nfrom gymnasium.envs.classic_control.pendulum import PendulumEnv\n"
    code += "class Own(PendulumEnv): pass\ngym.register('Own-v0', Own, max_episode_steps=30)\n"
    path.write_text(code)
    flags = TINY | {"env_id": "worlds:Own-v0", "checkpoint_every": 4}
    monkeypatch.setattr("algos.run_folder.git_commit", lambda *_: "first")
    with killed_at(14):
        train("sac", **flags)
    assert "worlds" not in capsys.readouterr().err
    path.write_text(code + "# another line\n")
    monkeypatch.setattr("algos.run_folder.git_commit", lambda *_: "second")
    config = train("sac", resume=True, **flags).config
    assert "the file of worlds:Own-v0 has changed since" in capsys.readouterr().err
    (before,) = config["before"]
    assert (before["commit"], before["until"], config["commit"]) == ("first", 12, "second")
    assert before["environment_digest"] != config["environment_digest"] == digest_of_file(path)
    assert before["versions"] == config["versions"] and before["script_digest"] == config["script_digest"]


@pytest.mark.parametrize(("script", "warns"), [("ppo", True), ("dqn", False)])
def test_images_are_told_where_a_script_takes_them_as_plain_numbers(train, capsys, script, warns):
    def ended(run, envs):
        raise KeyboardInterrupt  # before anything is learned

    pytest.importorskip("minatar")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "learn_from", ended)
        with pytest.raises(KeyboardInterrupt):
            train(script, env_id="MinAtar/Breakout-v1", seeds=("0",), total_steps=2_048)
    told = "MinAtar/Breakout-v1 shows images [4, 10, 10], which this script takes as 400 unscaled numbers"
    assert (told in capsys.readouterr().err) == warns


def test_a_package_of_the_same_name_is_told(tmp_path):
    """Where Python starts, a folder hides what is installed."""
    for name in ("envs", "envs.py", "envs/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch() if name.endswith(".py") else (tmp_path / name).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", "import algos"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True,
        )  # fmt: skip
        hidden = f"the package envs of {ROOT} is hidden by one of the same name, {tmp_path / 'envs'}"
        assert (hidden in done.stderr) == (name != "envs")  # a folder alone is no package


def test_a_file_of_data_that_has_moved_is_the_same_one(tmp_path):
    """Its digest tells whether it is; a file of that name beside the first is another."""
    first, second = tmp_path / "a" / "mine.hdf5", tmp_path / "b" / "mine.hdf5"
    ours, theirs = {"dataset": str(second), "tau": 1}, {"dataset": str(first), "tau": 1}
    assert not differing(ours, theirs, {})
    assert differing(ours, theirs | {"tau": 2}, {}) == [("tau", 2, 1)]
    assert differing(ours, theirs | {"dataset": "mine"}, {}) == [("dataset", "mine", str(second))]
    first.parent.mkdir()
    first.touch()
    assert differing(ours, theirs, {}) == [("dataset", str(first), str(second))]


def test_a_lock_that_is_a_file_names_its_process_and_its_machine(tmp_path, monkeypatch):
    """As on file systems without locks, where a killed process leaves it behind."""
    import sac

    monkeypatch.setattr("algos.run_folder.FileLock", SoftFileLock)
    args = sac.Args(**{**TINY, "out": tmp_path})
    folder = folder_of(args, "sac")
    folder.mkdir(parents=True)
    (folder / ".lock").write_text("77\nelsewhere\n")
    with pytest.raises(UserError, match=r"end it \(process 77 on elsewhere; if that one is gone, remove .*\.lock\)"):
        Run(args, "sac")
    (folder / ".lock").unlink()
    assert not holder(folder / ".lock")


def test_a_commit_without_the_script_is_marked(tmp_path, monkeypatch):
    """Also where nothing else was changed, whatever the state of this checkout."""
    git_commit.cache_clear()
    if git_commit() is None:
        pytest.skip("no checkout of git")
    git_commit.cache_clear()
    run, clean = subprocess.run, subprocess.CompletedProcess("", 0, "abc\n")
    monkeypatch.setattr(
        algos.run_folder.subprocess, "run", lambda words, **how: clean if "describe" in words else run(words, **how)
    )
    (tmp_path / "mine.py").write_text("")
    assert git_commit() == git_commit(ROOT / "single_file" / "sac.py") == "abc"
    assert git_commit(tmp_path / "mine.py") == "abc+"
    git_commit.cache_clear()


def test_uncommitted_changes_are_told_apart_and_no_other_checkout_is_named(git, tmp_path, monkeypatch):
    """A copy of the package, as in a folder of installed packages, lies in a checkout of its own here."""
    file = tmp_path / "algos" / "run_folder.py"
    file.parent.mkdir()
    file.write_text("first")
    other = tmp_path / "other.py"
    other.write_text("")
    git("init", "-q")
    git("add", "other.py")
    git("commit", "-qm", "other")
    monkeypatch.setattr(algos.run_folder, "__file__", str(file))

    def found() -> str | None:
        git_commit.cache_clear()
        return git_commit()

    assert found() is None
    git("add", "algos")
    git("commit", "-qm", "own")
    clean = found()
    file.write_text("second")
    changed = found()
    file.write_text("third")
    assert clean and changed and re.fullmatch(rf"{clean}\+[0-9a-f]{{6}}", changed)
    assert found() != changed and found().startswith(f"{clean}+")
    file.write_text("second")
    other.write_bytes(b"x = '\xff'")  # beside the package
    assert found() != changed
    git_commit.cache_clear()


def test_an_unusable_folder_is_refused(tmp_path):
    import sac

    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--out: cannot use"):
        sac.main(sac.Args(**{**TINY, "out": tmp_path / "file", "quiet": True}))


def test_a_full_disk_is_refused(tmp_path, monkeypatch):
    import sac

    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(algos.run_folder.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"GiB of disk, where 0.0 GiB are free"):
        sac.main(sac.Args(**{**TINY, "out": tmp_path, "quiet": True}))


def test_checkpoints_that_are_there_already_need_no_more_room(loop, monkeypatch):
    """A resumed run fits on a disk on which a new one would not."""
    folder = broken_off(loop)
    there = sum(path.stat().st_size for path in folder.glob("checkpoint/*"))
    resumed, new = (loop(**kind)[0].folder for kind in ({"resume": True}, {"variant": "new"}))
    need, usage = 3 * 10_000 + algos.run_folder.MARGIN, shutil.disk_usage(folder)
    for free, fit in ((need, [resumed, new]), (need - 1, [resumed]), (need - there, [resumed]), (need - there - 1, [])):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        for place in (resumed, new):
            with contextlib.nullcontext() if place in fit else pytest.raises(UserError, match="GiB of disk, where"):
                place.check_space(10_000)


def test_a_disk_that_fills_up_during_the_run_is_said_in_one_sentence(tmp_path, monkeypatch):
    import sac

    def full(*args):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(algos.checkpoint, "save_file", full)
    with pytest.raises(UserError, match=r"cannot write to .*No space left.*--resume goes on"):
        sac.main(sac.Args(**{**TINY, "out": tmp_path, "quiet": True}))


# -- faults ------------------------------------------------------------------------------------------------------------


def kill_after_a_checkpoint(out: Path, *flags: str, script: str = "sac", how: int = signal.SIGKILL) -> int:
    """Starts a run, sends a signal when it has written a checkpoint, and returns the exit code."""
    before = set(out.rglob("checkpoint/*.json"))
    process = subprocess.Popen(
        command(out, *flags, script=script), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not set(out.rglob("checkpoint/*.json")) - before:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(0.05)
    process.send_signal(how)
    return process.wait()


@pytest.mark.parametrize("script", ["sac", pytest.param("stream_ac", marks=pytest.mark.slow)])
def test_a_killed_and_a_stopped_run_resume_to_the_bitwise_same_end(script, tmp_path, monkeypatch, capsys):
    """A kill leaves no word; a signal to end gives the exit code 130.

    `test_a_signal_ends_the_run_after_the_step_in_hand` sends both signals in this process.
    """
    steps, killed = ("--total-steps", "400", "--resume"), tmp_path / "killed"
    assert kill_after_a_checkpoint(killed, *steps, script=script) == -signal.SIGKILL
    assert kill_after_a_checkpoint(killed, *steps, script=script, how=signal.SIGTERM) == 130
    config = json.loads(next(killed.rglob("config.json")).read_text())
    assert config["status"] == "interrupted"
    newest = max(int(path.stem) for path in killed.rglob("checkpoint/*.json"))
    assert 100 < newest == config["step"] < 400
    for name in ("whole", "killed"):
        monkeypatch.setattr(sys, "argv", command(tmp_path / name, *steps, script=script)[1:])
        cli(importlib.import_module(script).main)
        assert ("resumed at step" in capsys.readouterr().out) == (name == "killed")
    whole, killed = parameters(tmp_path / "whole"), parameters(tmp_path / "killed")
    assert set(whole) == set(killed) and all(torch.equal(t, killed[n]) for n, t in whole.items())
    tables = [next((tmp_path / name).rglob("eval.parquet")).read_bytes() for name in ("whole", "killed")]
    assert tables[0] == tables[1]
    train = [pd.read_parquet(next((tmp_path / name).rglob("train.parquet"))) for name in ("whole", "killed")]
    train = [frame[frame["metric"] != "seconds"].reset_index(drop=True) for frame in train]
    pd.testing.assert_frame_equal(*train)


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["sac", "ppo", "dqn", "stream_ac"])
def test_options_hold_where_an_environment_is_learned_and_evaluated_in(train_short, script, monkeypatch):
    made = []
    monkeypatch.setattr(MujocoVectorEnv, "__init__", kept(made, MujocoVectorEnv.__init__))
    words = ("max_episode_steps=3", *(["sutton_barto_reward=true"] if script == "dqn" else ["reset_noise_scale=0.02"]))
    result = train_short(script, env_option=words, log_every=20)
    lengths = pd.read_parquet(result.folder / "eval.parquet")["length"]
    assert lengths.max() == 3
    log = pd.read_parquet(result.folder / "train.parquet")
    assert log[log["metric"] == "episode_length"]["value"].max() == 3
    options = PolicyFile(result.folder).environment["options"]
    assert options["max_episode_steps"] == 3 and len({*options} & {"sutton_barto_reward", "reset_noise_scale"}) == 1
    if script == "sac":  # tried out, to learn in, to evaluate in, and to observe values in
        assert [given["reset_noise_scale"] for given in made] == [0.02] * 4
    config = result.config["identity"]
    assert config["env_option"] == list(words)


def test_options_may_have_any_names_and_faults_of_the_task_are_not_theirs(train_short, monkeypatch):
    class Own(PendulumEnv):
        def __init__(self, timed=0, tasks=(), broken=False, **kwargs):
            super().__init__()
            self.given = timed, tasks
            if broken:
                self.action_space = gym.spaces.MultiDiscrete([2])

    monkeypatch.setitem(gym.registry, "Own-v0", EnvSpec("Own-v0", entry_point=Own, max_episode_steps=5))
    result = train_short("sac", env_id="Own-v0", env_option=("timed=True", "tasks=[3]"))
    environment = PolicyFile(result.folder).environment
    assert environment == {"env_id": "Own-v0", "options": {"timed": True, "tasks": [3]}, "tasks": []}
    with pytest.raises(UserError, match=r"^--env-id: Own-v0 has MultiDiscrete actions"):
        train_short("sac", out="other", env_id="Own-v0", env_option=("broken=True",))
    monkeypatch.setattr(Own, "reset", lambda *_, **__: 1 / 0)
    with pytest.raises(UserError, match=r"^--env-id Own-v0 cannot be made: its code raised ZeroDivisionError"):
        train_short("sac", out="third", env_id="Own-v0", env_option=("timed=1",))


def kept(calls: list[dict], function):
    """The same function, which keeps the named arguments of its calls."""

    def call(*args, **kwargs):
        calls.append(kwargs)
        return function(*args, **kwargs)

    return call


@pytest.mark.usefixtures("curves", "tensorboard")
def test_tables_have_a_row_per_fact(train):
    result = train("sac", **TINY)
    table = pd.read_parquet(result.folder / "eval.parquet")
    assert list(table.columns) == ["seed", "step", "episode", "return", "length"]
    assert len(table) == 2 * 4 * 2  # seeds x evaluations (0, 20, 40, 60) x episodes
    assert (table["return"] == table["length"]).mean() < 1 and (table["length"] - table["return"]).between(0, 1).all()
    log = pd.read_parquet(result.folder / "train.parquet")
    assert {"critic_loss", "actor_loss", "alpha", "entropy", "value", "seconds"} <= set(log["metric"])
    assert set(log["seed"]) == {0, 1} and log["value"].notna().all()
    assert (result.folder / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert len(list((result.folder / "tensorboard").glob("seed_*/events*"))) == 2


@pytest.mark.parametrize("episodes", [0, 2])
def test_a_run_without_evaluations_tells_no_scores(train_short, capsys, episodes):
    result = train_short("sac", quiet=False, eval_episodes=episodes, total_steps=5)
    said = capsys.readouterr().out
    assert ("final return" in said) == ("tables, curve and checkpoint in" in said) == (result.eval.size > 0)
    assert ("tables and checkpoint in" in said) == (episodes == 0)


def test_the_scores_that_a_run_prints_are_those_of_its_last_evaluation(train_short, capsys):
    result = train_short(
        "sac", quiet=False, env_id="Pendulum-v1", seeds=("0", "1"), eval_episodes=2, eval_every=2, total_steps=5
    )
    said = capsys.readouterr().out
    returns = result.eval.query("step == 5").groupby("seed")["return"]
    means = returns.mean()
    assert re.findall(r"^ +(\d)  +(\S+)  +(\S+)  +5$", said, re.M) == [
        (str(seed), f"{means[seed]:.1f}", f"{returns.std()[seed]:.1f}") for seed in (0, 1)
    ]
    shown = tuple(f"{value:.1f}" for value in (means.mean(), means.min(), means.max()))
    assert re.search(r"step +5  return +(\S+) \(2 seeds: (\S+) to (\S+)\)", said).groups() == shown
    assert len({f"{mean:.1f}" for mean in result.eval.groupby(["seed", "step"])["return"].mean()}) > 2


def test_metrics_are_means_over_the_interval(tmp_path):
    import sac

    run = algos.run.Run(sac.Args(**{**TINY, "out": tmp_path, "quiet": True, "device": "cpu"}), "sac")
    run.step = 10
    for value in (1.0, 2.0, 6.0):
        run.log({"x": torch.tensor([value, 10 * value])})
    run.log({"y": torch.tensor([1.0, 1.0])})
    run._flush(run.step)
    logged = run.tables.train_rows.frame()
    rows = {(seed, name): value for seed, _, name, value in logged.itertuples(index=False, name=None)}
    assert rows[0, "x"] == 3 and rows[1, "x"] == 30 and rows[0, "y"] == 1
    for other in (torch.ones(3), torch.tensor(1.0), torch.ones(2, 3), 1.0):  # 2 runs
        for name in ("x", "z"):
            with pytest.raises(ValueError, match=rf"the metric '{name}' must be a tensor \[2\], one for each run, got"):
                run.log({name: other})
        run.log({"x": torch.ones(2)})


# -- ends --------------------------------------------------------------------------------------------------------------


def test_divergence_after_the_last_log_is_noticed(train, monkeypatch, capsys):
    """It is noticed before an evaluation between two logs, by the losses and not only by the scores."""
    receive, calls = SeededEnvs.receive, []

    def poisoned(envs):
        transition = receive(envs)
        calls.append(1)
        if len(calls) > 42:
            transition.reward[0] = float("nan")
        return transition

    monkeypatch.setattr(SeededEnvs, "receive", poisoned)
    result = train("sac", **{**TINY, "total_steps": 58, "log_every": 40, "eval_every": 54})
    assert result.config["status"] == "diverged" and result.config["diverged"] == [{"seed": 0, "step": 54}]
    assert "seed 0 diverged before step 54: critic_loss is not finite" in capsys.readouterr().err
    assert set(result.eval.query("step >= 54")["seed"]) == {1}


def test_a_kill_between_the_final_checkpoint_and_its_config_is_mended(train, curves, monkeypatch):
    write = Run._write_config

    def killed(run, status):
        if status == "finished":
            raise KeyboardInterrupt
        write(run, status)

    whole = train("sac", out="whole", **TINY)
    monkeypatch.setattr(Run, "_write_config", killed)
    with pytest.raises(KeyboardInterrupt):
        train("sac", **TINY)
    monkeypatch.setattr(Run, "_write_config", write)
    mended = train("sac", resume=True, **TINY)
    assert mended.config["status"] == "finished" and (mended.folder / "curve.png").exists()
    assert all(torch.equal(t, mended.parameters[n]) for n, t in whole.parameters.items())
    assert (mended.folder / "eval.parquet").read_bytes() == (whole.folder / "eval.parquet").read_bytes()


def test_checkpoints_leave_nothing_behind(train, tmp_path):
    (leftover := tmp_path / "out" / "InvertedPendulum-v5" / "sac" / "default" / "checkpoint").mkdir(parents=True)
    (leftover / ".tmpXYZ").write_bytes(b"what a killed process was writing")
    result = train("sac", **TINY)
    assert len(list((result.folder / "checkpoint").iterdir())) == 2


def test_learning_may_start_within_one_step_of_many_environments(train):
    result = train("dsac_t", **{**TINY, "env_steps_per_update": 20, "learning_starts": 5})
    assert result.config["status"] == "finished" and result.parameters["agent/updates"].item() == 2


def test_cuda_without_an_index_is_the_first_gpu(monkeypatch):
    import ppo

    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    gpu = torch.device("cuda:0")
    assert algos.device.choose_device("auto") == device_of(ppo.Args(device="cuda")) == gpu
    assert not chosen  # a process that only checks its arguments takes nothing of a GPU
    assert algos.device.take(gpu) == gpu and chosen == [gpu, "high"]
    algos.device.take(gpu, ppo.Args().TF32)  # PPO's ratios of probabilities are near 1
    assert chosen[2:] == [gpu, "highest"]


def test_a_checkpoint_of_a_gpu_must_fit_into_the_memory_of_the_cpu(loop, monkeypatch):
    run, agent = loop()
    monkeypatch.setattr("algos.memory.free_memory", lambda: 8)
    run.register(agent)  # on a CPU, it is written from where it is
    run.device = torch.device("cuda")
    with pytest.raises(UserError, match="a checkpoint, which is copied to the CPU's memory, needs"):
        run.register(agent)


def test_a_run_that_goes_on_on_another_gpu_says_that_it_ends_otherwise(loop, monkeypatch, capsys):
    monkeypatch.setattr("algos.run.device_name", lambda device, threads: "GPU of one kind")
    run, _ = loop(checkpoint_every=5, total_steps=20)
    for step in run.steps(lambda obs: obs):
        if step == 10:
            break
    for name, warned in (("GPU of one kind", False), ("GPU of another kind", True)):
        monkeypatch.setattr("algos.run.device_name", lambda device, threads, name=name: name)
        run, _ = loop(checkpoint_every=5, total_steps=20, resume=True)
        run.device = torch.device("cuda")
        next(run.steps(lambda obs: obs))
        told = "warning: the run was on GPU of one kind until now: on GPU of another kind, it ends otherwise"
        assert (told in capsys.readouterr().err) is warned


# -- what a script of one's own may get wrong --------------------------------------------------------------------------


def test_an_agent_must_have_the_run_s_own_arguments_and_seeds(loop):
    run, _ = loop(vary=("rate=1,2",), seeds=("7", "8"))
    assert run.runs == 4
    for seeds, args in ((run.seeds, run.given), (range(4), run.args)):
        agent = Counter(seeds, SimpleNamespace())
        agent.args = args
        with pytest.raises(ValueError, match=r"must be made with run\.args and run\.seeds"):
            run.register(agent)


def test_a_script_with_the_arguments_of_another_is_known_by_its_own_file(loop, tmp_path, monkeypatch):
    (tmp_path / "counter.py").write_text("from single_file.sac import Args")
    monkeypatch.setattr("algos.cli.script", tmp_path / "counter.py")
    run, _ = loop()
    assert run.folder.script_digest == digest_of_file(tmp_path / "counter.py")


def test_state_without_the_run_axis_is_named(loop):
    run, agent = loop(seeds=("0", "1"))
    agent.net = torch.nn.Linear(3, 5)
    with pytest.raises(ValueError, match=re.escape("net.weight is [5, 3]: all that 2 runs learn has them first")):
        run.register(agent)


@pytest.mark.parametrize(
    ("lost", "kept"),
    [
        (lambda agent: torch.zeros(2), lambda agent: agent.number),
        (lambda agent: {"a": [torch.zeros(2)]}, lambda agent: [agent.number]),
        (lambda agent: torch.optim.SGD([agent.number]), lambda agent: 3),
        (lambda agent: (torch.nn.Identity(),), lambda agent: (agent,)),
    ],
)
def test_state_that_no_checkpoint_holds_is_warned_of(loop, capsys, lost, kept):
    run, agent = loop(seeds=("0", "1"))
    agent.thing = kept(agent)
    run.register(agent)
    assert "warning" not in capsys.readouterr().err
    agent.thing = lost(agent)
    run.register(agent)
    assert "warning: no checkpoint will hold thing of the agent: register" in capsys.readouterr().err


def test_weights_that_were_never_drawn_are_warned_of(loop, capsys):
    run, agent = loop(seeds=("0", "1"))
    agent.net = agent.initialise("net", MLP((2,), 3, (4,), 1))
    agent.target = Target(agent.net, 0.1)
    agent.reset = lambda: None  # as an agent may have it
    run.register(agent)
    assert "warning" not in capsys.readouterr().err
    agent.other = MLP((2,), 3, (4,), 1)
    run.register(agent)
    assert "warning: the weights of other.hidden.0.0, other.out were never drawn: unless" in capsys.readouterr().err


def test_optimisers_that_share_parameters_or_leave_some_out_are_warned_of(loop, capsys):
    run, agent = loop(seeds=("0", "1"))
    agent.net = agent.initialise("net", MLP((2,), 3, (4,), 1))
    run.register(agent)  # one that no optimiser moves may be moved otherwise
    agent.adam = Adam(agent.net.parameters(), lr=0.1)
    run.register(agent)
    assert "warning" not in capsys.readouterr().err
    agent.adam = Adam(agent.net.out.parameters(), lr=0.1)
    run.register(agent)
    agent.second = Adam([agent.net.out.bias], lr=0.1)
    run.register(agent)
    said = capsys.readouterr().err
    assert "warning: no optimiser moves net.hidden.0.0.bias, net.hidden.0.0.weight, though one moves the rest" in said
    assert said.count("warning") == 2 and "warning: two optimisers move net.out.bias" in said


def change_number(agent):
    agent.updates += 1


def change_fraction(agent):
    agent.share = 0.5


def gain_tensor(agent):
    agent.seen = torch.zeros(2)


def draw(agent):
    torch.rand(1)


@pytest.mark.parametrize(
    ("learn", "told"),
    [
        (lambda agent: None, None),
        (change_number, "no checkpoint holds plain numbers of the agent, of which these have changed: updates; unless"),
        (change_fraction, "no checkpoint holds plain numbers of the agent, of which these have changed: share;"),
        (gain_tensor, "no checkpoint will hold seen of the agent"),
        (draw, "something draws from torch's own generator"),
    ],
)
def test_what_learning_changes_and_no_checkpoint_holds_is_told_once(loop, capsys, learn, told):
    run, agent = loop(seeds=("0", "1"), checkpoint_every=5)
    agent.updates, agent.unknown = 3, float("nan")
    run.register(agent)
    for _ in run.steps():
        learn(agent)
    said = capsys.readouterr().err
    assert said.count("warning") == (told is not None) and (told or "") in said


def test_an_argument_that_no_policy_s_file_can_hold_is_refused_before_the_run(loop):
    run, agent = loop()
    run.args.odd = len
    with pytest.raises(ValueError, match="a policy's file cannot hold <built-in function len> as JSON"):
        run.register(agent)


def test_a_policy_for_prepared_data_is_refused(loop):
    run, agent = loop()
    run.adapts, agent.policy = True, lambda obs: obs
    for policy in (agent.policy, None):  # which would be written as it is
        with pytest.raises(ValueError, match=r"as data\.adapt makes it"):
            next(run.steps(policy))


def test_an_agent_without_a_policy_is_warned_of_where_one_is_evaluated(loop, capsys):
    run, _ = loop()
    next(run.steps(lambda obs: obs))
    assert "the agent has no method named policy, so that no policy.safetensors is written" in capsys.readouterr().err


def test_metrics_may_be_booleans_and_need_no_detaching_and_have_names_of_their_own(loop):
    run, _ = loop(seeds=("0", "1"))
    weight = torch.ones(2, requires_grad=True)
    for truth in (True, True, False, True):
        run.log({"truth": torch.tensor([truth, True]), "loss": 2 * weight})
    assert not run.metrics.sums["loss"].requires_grad
    means = run.metrics.means()
    assert means["truth"].tolist() == [0.75, 1.0] and means["loss"].tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match="'seconds' is one that every run has already"):
        run.log({"seconds": torch.zeros(2)})


def test_a_run_that_diverges_says_what_was_not_finite(loop, capsys):
    run, agent = loop(seeds=("0", "1"), log_every=5)
    for step in run.steps(lambda obs: obs):
        run.log(agent.update() | {"zeal": torch.tensor([1.0, np.nan if step == 7 else 1.0])})
    assert "warning: seed 1 diverged before step 10: zeal is not finite" in capsys.readouterr().err


def test_divergence_in_the_last_steps_is_noticed_at_the_end(loop):
    run, agent = loop(log_every=50)
    for step in run.steps():
        run.log(agent.update() | {"zeal": torch.tensor([1.0, np.nan if step == 23 else 1.0])})
    assert run.diverged == {1: 24} and config_of(run)["status"] == "diverged"


def test_no_run_waits_for_one_that_diverged(loop):
    """Where runs do different numbers of steps; also after a run was resumed."""

    def work(run, agent, iterations):
        done = 0
        for _ in run.steps(stride=0):
            run.log(agent.update() | {"zeal": torch.tensor([1.0, np.nan])})
            run.took(np.array([3, 1]), np.array([False, False]))
            if (done := done + 1) == iterations:
                raise KeyboardInterrupt
        return done

    run, agent = loop(log_every=3, checkpoint_every=3)
    with pytest.raises(KeyboardInterrupt):
        work(run, agent, 5)
    assert list(run.diverged) == [1] and run.step == 12
    run, agent = loop(resume=True, log_every=3, checkpoint_every=3)
    assert work(run, agent, 100) <= 8
    assert config_of(run)["status"] == "diverged" and config_of(run)["step"] == 24
    assert config_of(run)["taken"][0] == 24 > config_of(run)["taken"][1]


@pytest.mark.parametrize("every", [3, 5])
def test_a_run_at_its_end_has_no_more_metrics_and_does_not_diverge(every, loop):
    """What it does until the others are at theirs is undone, also before the next metrics are written."""

    def work(run, agent, iterations):
        for count, _ in enumerate(run.steps(stride=0)):
            if count == iterations:
                raise KeyboardInterrupt
            run.log(agent.update() | {"zeal": torch.tensor([1.0 if run.done[0] < 24 else np.nan, 1.0])})
            run.took(np.array([2, 1]), np.array([False, False]))

    with pytest.raises(KeyboardInterrupt):
        work(*loop(log_every=every, checkpoint_every=3), 17)
    run, agent = loop(resume=True, log_every=every, checkpoint_every=3)
    work(run, agent, 100)
    log = pd.read_parquet(run.folder.path / "train.parquet").query("metric == 'zeal'")
    assert log[log["seed"] == 0]["step"].tolist() == [*range(every, 12, every), 12]  # its end is that of 12 iterations
    assert log[log["seed"] == 1]["step"].tolist() == [*range(every, 24, every), 24]
    assert config_of(run)["status"] == "finished" and (log["value"] == 1).all()


def test_a_run_that_diverges_after_others_came_to_their_end_leaves_the_steps_as_they_are(loop):
    run, agent = loop(log_every=3)
    for _ in run.steps(stride=0):
        run.log(agent.update() | {"zeal": torch.tensor([1.0, 1.0 if run.done[1] < 15 else np.nan])})
        run.took(np.array([8, 1]), np.array([False, False]))
    assert list(run.diverged) == [1] and config_of(run)["step"] == 24 and config_of(run)["taken"] == [24, 18]


@pytest.mark.parametrize("last", [0, 1])  # the times that the file is looked at before it is gone
def test_the_size_of_a_folder_is_told_while_other_commands_take_files_away(last, loop, monkeypatch):
    run, _ = loop()
    run.folder.path.mkdir(parents=True)
    for name in ("file", "gone"):
        (run.folder.path / name).write_bytes(b"12345")
    seen, stat = [], os.stat

    def vanishing(path, *rest, **flags):
        if str(path).endswith("gone"):
            seen.append(path)
            if len(seen) > last:
                raise FileNotFoundError(path)
        return stat(path, *rest, **flags)

    monkeypatch.setattr(os, "stat", vanishing)
    assert run.folder.size() == 5 * (1 + last)


# -- the loop ----------------------------------------------------------------------------------------------------------


TASK = Task("Made-v0", (3,), 2, False, (-1.0,) * 2, (1.0,) * 2, 0)


class Counter(Agent):
    """Counts its updates."""

    def __init__(self, seeds, args):
        super().__init__(args, TASK, seeds)
        self.register_buffer("number", torch.zeros(len(seeds)))

    def update(self):
        self.number += 1
        return {"number": self.number.clone()}


class Bell:
    """A source in which an episode of each run ends at every `every` of its own steps, with the step as its return."""

    resumable = True

    def __init__(self, runs: int = 2, every: int = 3):
        self.runs, self.every, self.step, self.ended = runs, every, 0, []

    def ring(self):
        self.step += 1
        if self.step % self.every == 0:
            self.ended += [Episode(run, float(self.step), self.every) for run in range(self.runs)]

    def take_ended(self):
        ended, self.ended = self.ended, []
        return ended

    def reset(self, purpose="train", *more):
        pass

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state):
        self.step = int(state["step"])

    def close(self):
        pass


@dataclass
class LoopArgs(RunArgs):
    rate: Tunable[Positive] = 1.0
    """a hyperparameter"""


LOOP = {"env_id": "Pendulum-v1", "seeds": ("0", "1"), "total_steps": 24, "eval_every": 12, "eval_episodes": 0,
        "log_every": 6, "checkpoint_every": 8, "quiet": True, "device": "cpu"}  # fmt: skip


@pytest.fixture
def loop(tmp_path, bare_runs):
    """Makes a run with an agent that counts: loop(total_steps=…) -> run, agent."""

    def make(source=None, **overrides):
        run = Run(LoopArgs(**{**LOOP, "out": tmp_path / "out", **overrides}), "counter")
        agent = Counter(run.seeds, run.args)
        if source:
            run.learn_from(source)
        run.register(agent)
        return run, agent

    return make


def config_of(run):
    return json.loads((run.folder.path / "config.json").read_text())


@pytest.mark.parametrize("stride", [1, 4, 5, 24])
def test_no_episode_is_lost_whatever_the_stride(loop, stride):
    """All episodes of a rollout count, in the metrics of training and, without evaluation, as scores."""
    bell = Bell()
    run, _ = loop(bell)
    seen = []
    for step in run.steps(stride=stride):
        seen.append(step)
        for _ in range(stride):
            bell.ring()
    assert seen == list(range(stride, 24 + stride, stride))
    last = seen[-1]
    assert config_of(run)["status"] == "finished" and config_of(run)["step"] == last
    table = pd.read_parquet(run.folder.path / "eval.parquet")
    for seed in (0, 1):
        assert table[table["seed"] == seed]["return"].tolist() == list(range(3, last + 1, 3))
    assert table["step"].isin([12, 24]).all()  # the steps at which evaluations are due
    log = pd.read_parquet(run.folder.path / "train.parquet").query("metric == 'episode_return' and seed == 0")
    logged = [step for step in seen if step // 6 > (step - stride) // 6 or step == last]
    intervals = zip([0, *logged[:-1]], logged, strict=True)
    ends = [[end for end in range(3, last + 1, 3) if low < end <= high] for low, high in intervals]
    assert log["value"].tolist() == [np.mean(totals) for totals in ends if totals]
    lengths = pd.read_parquet(run.folder.path / "train.parquet").query("metric == 'episode_length' and seed == 0")
    assert lengths["value"].unique().tolist() == [3.0] and len(lengths) == len(log)


@pytest.mark.parametrize(
    ("stride", "every", "episodes", "warnings"),
    [
        (
            7,
            12,
            0,
            ["an iteration has 7 steps, and the last one ends at 28: the scores there count as those of step 24"],
        ),
        (8, 5, 1, ["an iteration has 8 steps, and policies are scored after one, not every 5 steps"]),
        (8, 5, 0, []),
        (8, 8, 1, []),
    ],
)
def test_scores_that_come_later_than_their_steps_are_told(stride, every, episodes, warnings, loop, capsys):
    run, _ = loop(Bell(every=30), eval_every=every, eval_episodes=episodes, quiet=False)
    if episodes:
        run.evaluate_in("Pendulum-v1", {})
    for _ in run.steps(lambda obs: torch.zeros(*obs.shape[:2], 1), stride=stride):
        pass
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if "iteration" in line] == [f"warning: {line}" for line in warnings]
    assert ("no episode ended, so that there is no score" in said.out) == (not episodes)


def test_where_the_steps_are_those_really_done_nothing_is_told(capsys):
    for exact in (True, False):
        given = SimpleNamespace(total_steps=24, eval_every=12, stop_when_solved=exact)
        Run._warn_of_iterations(SimpleNamespace(given=given, evaluator=None), 7)
        assert ("the last one ends at 28" in capsys.readouterr().err) == (not exact)


def test_checkpoints_fall_between_iterations_of_any_stride(loop, monkeypatch):
    saved = []
    monkeypatch.setattr(Run, "_save", lambda run, status, final=False: saved.append((run.step, final)))
    run, _ = loop()
    for _ in run.steps(stride=5):
        pass
    assert saved == [(10, False), (20, False), (25, True)]


@pytest.mark.parametrize(("writing", "steps"), [(0, [3, 6, 9, 12]), (30, [3, 7, 11, 12])])
def test_a_checkpoint_is_written_every_quarter_of_an_hour(loop, monkeypatch, writing, steps):
    """A step takes 400 seconds here. Checkpoints that take long to write come less often."""
    now, saved = [0.0], []
    monkeypatch.setattr(algos.run, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter))
    run, _ = loop(total_steps=12, checkpoint_every=1_000)
    save = run.folder.checkpoints.save

    def written(step, *rest):
        now[0] += writing
        saved.append(step)
        save(step, *rest)

    monkeypatch.setattr(run.folder.checkpoints, "save", written)
    for _ in run.steps():
        now[0] += 400
    assert saved == steps


def test_a_phase_has_checkpoints_every_quarter_of_an_hour_too(loop, monkeypatch):
    now, saved = [0.0], []
    monkeypatch.setattr(algos.run, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter))
    run, _ = loop()
    monkeypatch.setattr(run.folder.checkpoints, "save", lambda step, *rest: saved.append(step))
    for _ in run.phase("first", 8, checkpoint_every=100):
        now[0] += 400
    assert saved == [3, 6, 8]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_all_files_of_a_run_may_be_read_by_those_whom_the_user_allows(loop, mask):
    before = os.umask(mask)
    try:
        run, _ = loop()
        for _ in run.steps():
            pass
    finally:
        os.umask(before)
    files = [path for path in run.folder.path.rglob("*") if path.is_file()]
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in files}
    assert any(name.endswith(".safetensors") for name in modes)
    assert set(modes.values()) == {oct(0o666 & ~mask)}, modes


def phases(run, agent, stop=None, count=10):
    """A phase, the steps and another phase; `stop` raises at that count of updates."""

    def learn():
        run.log(agent.update())
        if stop and agent.number[0] == stop:
            raise ZeroDivisionError

    for _ in run.phase("first", count, log_every=2, checkpoint_every=3):
        learn()
    for _ in run.steps():
        learn()


def test_a_phase_has_its_own_clock_and_metrics(loop):
    run, agent = loop()
    phases(run, agent)
    assert agent.number.tolist() == [34, 34] and run.phases == {"first": 10} and run.step == 24
    log = pd.read_parquet(run.folder.path / "train.parquet").query("seed == 0")
    first = log[log["metric"] == "first/number"]
    assert first["step"].tolist() == [2, 4, 6, 8, 10] and first["value"].tolist() == [1.5, 3.5, 5.5, 7.5, 9.5]
    assert log[log["metric"] == "number"]["step"].tolist() == [6, 12, 18, 24]
    assert {"first/seconds", "seconds"} <= set(log["metric"])


@pytest.mark.parametrize("stop", [2, 5, 10, 11, 12, 27])
def test_a_run_is_resumed_in_the_phase_in_which_it_stopped(loop, stop):
    whole, agent = loop(variant="whole")
    phases(whole, agent)
    run, agent = loop(resume=True)
    with pytest.raises(ZeroDivisionError):
        phases(run, agent, stop)
    run, agent = loop(resume=True)
    phases(run, agent)
    assert agent.number.tolist() == [34, 34] and run.phases == {"first": 10} and run.over == ["first"]
    tables = [pd.read_parquet(r.folder.path / "train.parquet") for r in (whole, run)]
    tables = [t[~t["metric"].str.endswith("seconds")].reset_index(drop=True) for t in tables]
    pd.testing.assert_frame_equal(*tables)


def evaluated(run, agent, stop=False):
    """A phase, and steps with evaluations; `stop` raises in the first step, after the evaluation before it."""
    run.evaluate_in("Pendulum-v1", {})
    run.watch(lambda step: {"watched": np.full(run.runs, step)})
    for _ in run.phase("first", 4):
        run.log(agent.update())
    for _ in run.steps(lambda obs: obs[..., :1]):
        if stop:
            raise ZeroDivisionError
        run.log(agent.update())


def test_the_bar_and_progress_json_say_why_no_steps_are_done(loop, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    told = []
    monkeypatch.setattr("algos.run.write_progress", lambda folder, progress: told.append(progress))
    run, agent = loop(eval_episodes=2, quiet=False)
    evaluated(run, agent)
    assert [(line["step"], line["score"].partition(" ")[0]) for line in told if line["phase"] == "evaluating"] == [
        (0, ""), (12, "return"), (24, "return"),
    ]  # fmt: skip
    bars = [line for line in capsys.readouterr().err.split("\r") if " steps" in line]
    texts = [re.search(r", (evaluating|return) ?[^,]*\]", line) for line in bars]
    assert [text[1] for text in texts if text][:2] == ["evaluating", "return"]
    assert "24/24" in bars[-1] and "evaluating" not in bars[-1]


@pytest.mark.parametrize("counted", [True, False])
def test_the_evaluation_before_the_first_step_is_made_again_where_the_last_checkpoint_is_of_a_phase(loop, counted):
    """A checkpoint of an earlier version does not count rows of train.parquet: watched ones are there twice, then."""
    whole, agent = loop(variant="whole", eval_episodes=2)
    evaluated(whole, agent)
    run, agent = loop(eval_episodes=2)
    with pytest.raises(ZeroDivisionError):
        evaluated(run, agent, stop=True)
    assert len(pd.read_parquet(run.folder.path / "eval.parquet")) == 4  # it was written
    for path in () if counted else (run.folder.path / "checkpoint").glob("*.json"):
        values = json.loads(path.read_text())
        del values["train_rows"]
        path.write_text(json.dumps(values))
    run, agent = loop(eval_episodes=2, resume=True)
    evaluated(run, agent)
    tables = [pd.read_parquet(r.folder.path / "eval.parquet") for r in (whole, run)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert len(tables[0]) == 12
    tables = [pd.read_parquet(r.folder.path / "train.parquet") for r in (whole, run)]
    tables = [table[~table["metric"].str.endswith("seconds")].reset_index(drop=True) for table in tables]
    assert [(table["metric"] == "watched").sum() for table in tables] == [6, 6 if counted else 8]
    tables = tables if counted else [table.drop_duplicates(ignore_index=True) for table in tables]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert tables[0]["metric"].str.startswith("first/").any()


def test_a_signal_during_the_last_checkpoint_of_a_phase_is_not_lost(loop, monkeypatch):
    run, agent = loop()
    save = Run._save

    def interrupted(run, *args, **kwargs):
        save(run, *args, **kwargs)
        if run.over and run.step == 0:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Run, "_save", interrupted)
    with pytest.raises(SystemExit, match="130"):
        phases(run, agent)
    assert config_of(run)["status"] == "interrupted" and run.step < 24


def test_clocks_and_the_greatest_size_go_on_after_a_resume(loop):
    folder = broken_off(loop)
    for path in folder.glob("checkpoint/*.json"):
        values = json.loads(path.read_text())
        assert 0 < values["seconds"] < 1e3 and values["peak_bytes"] < 10**9
        path.write_text(
            json.dumps(values | {"seconds": 1e3, "phase_seconds": 2e3, "evaluation_seconds": 3e3, "peak_bytes": 10**9})
        )
    run, agent = loop(resume=True)
    phases(run, agent, count=0)
    config = config_of(run)
    assert 1e3 < config["seconds"] < 2e3 and config["phase_seconds"] == 2e3 and 3e3 < config["evaluation_seconds"] < 4e3
    assert config["peak_bytes"] == 10**9
    seconds = pd.read_parquet(folder / "train.parquet").query("metric == 'seconds' and seed == 0")["value"]
    assert (seconds > 1e3).tolist() == [False, False, True, True]  # the checkpoint is of step 16


@pytest.fixture
def clock(monkeypatch):
    """A clock of runs that only a test moves: a list with the present second."""
    now = [0.0]
    monkeypatch.setattr("algos.run.time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter))
    return now


@pytest.mark.parametrize(("takes", "saved"), [(4, [8, 16, 24]), (6, [8, 20, 24])])
def test_checkpoints_that_take_long_are_written_less_often(loop, clock, monkeypatch, takes, saved):
    """Steps take ten seconds; after a checkpoint of six, one that is due has to wait for two minutes."""
    run, agent = loop(Bell())
    save, at = Checkpoints.save, []

    def slow(checkpoints, step, *more):
        at.append(step)
        clock[0] += takes
        save(checkpoints, step, *more)

    monkeypatch.setattr(Checkpoints, "save", slow)
    for _ in run.steps():
        run.source.ring()
        run.log(agent.update())
        clock[0] += 10
    assert at == saved


def test_a_checkpoint_that_waits_at_the_end_of_a_phase_is_that_of_its_end(loop, clock, monkeypatch):
    """After that of iteration 2, that of iteration 4 has to wait, and the phase ends before."""
    run, agent = loop(checkpoint_every=100)
    save, at = Checkpoints.save, []

    def slow(checkpoints, step, *more):
        at.append(step)
        clock[0] += 6
        save(checkpoints, step, *more)

    monkeypatch.setattr(Checkpoints, "save", slow)
    for _ in run.phase("first", 5, checkpoint_every=2):
        run.log(agent.update())
        clock[0] += 10
    for _ in run.steps():
        run.log(agent.update())
        clock[0] += 10
    assert at == [2, 5, 29]


def test_the_folders_of_a_run_are_passed_over_where_nothing_that_is_looked_for_lies(tmp_path):
    for place in ("a", "a/inner", "a/checkpoint", "a/tensorboard/seed_0", "checkpoint"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "config.json").write_text("{}")
    found = stored.find(tmp_path, "config.json")
    assert [path.parent.relative_to(tmp_path).as_posix() for path in found] == ["a", "a/inner", "checkpoint"]


@pytest.mark.parametrize(("takes", "written"), [(1, [2, 4, 6, 8, 8, 10, 12]), (2, [2, 6, 8, 10])])
def test_tables_that_take_long_are_written_less_often(loop, clock, monkeypatch, takes, written):
    """Steps take ten seconds; after tables of two, evaluations write none for forty, and checkpoints always."""
    run, agent = loop(Bell(every=1), total_steps=12, eval_every=2)
    write, at = Tables.write, []

    def slow(tables):
        at.append(run.step)
        clock[0] += takes
        write(tables)

    monkeypatch.setattr(Tables, "write", slow)
    for _ in run.steps():
        run.source.ring()
        run.log(agent.update())
        clock[0] += 10
    assert at == [*written, 12]
    assert pd.read_parquet(run.folder.path / "eval.parquet")["step"].unique().tolist() == [2, 4, 6, 8, 10, 12]


def test_rows_are_the_same_however_often_they_are_taken():
    rows, whole = Rows(["seed", "success", "task"]), Rows(["seed", "success", "task"])
    for seed in range(4):
        for one in (rows, whole):
            one.new += [(seed, None, ""), (seed, True, "a")]
        rows.frame()
    assert len(rows) == len(whole) == 8
    pd.testing.assert_frame_equal(rows.frame(), whole.frame())


def in_a_minute(monkeypatch):
    """Files of TensorBoard that are made from now on are later ones: they are read in the order of their seconds."""
    later = SimpleNamespace(time=lambda: time.time() + 60)
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time", later)


def shown(run, seed: int) -> dict[str, list[tuple[int, float]]]:
    """The steps and values that TensorBoard shows of a run, by their tags."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.folder.path / "tensorboard" / f"seed_{seed}")).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.usefixtures("tensorboard")
def test_tensorboard_has_each_number_once_though_the_run_was_resumed(loop, monkeypatch):
    """A process is killed after step 20, and the next one goes on from step 16: both write the numbers of step 18."""

    def learn(run, agent, stop=None):
        run.score_name, run.show = "half", lambda total: total / 2
        for step in run.steps():
            run.source.ring()
            run.log(agent.update())
            if step == stop:
                raise ZeroDivisionError

    run, agent = loop(Bell())
    with pytest.raises(ZeroDivisionError):
        learn(run, agent, 20)
    for writer in run.tables.writers:
        writer.flush()
    in_a_minute(monkeypatch)
    learn(*loop(Bell(), resume=True))
    for seed in (0, 1):
        found = shown(run, seed)
        assert [step for step, _ in found.pop("train/seconds")] == [6, 12, 18, 24]
        assert found == {
            "train/number": [(6, 3.5), (12, 9.5), (18, 15.5), (24, 21.5)],
            "train/episode_return": [(6, 4.5), (12, 10.5), (18, 16.5), (24, 22.5)],
            "train/episode_length": [(step, 3.0) for step in (6, 12, 18, 24)],
            "eval/return": [(12, 7.5), (24, 19.5)],
            "eval/half": [(12, 3.75), (24, 9.75)],
        }


@pytest.mark.usefixtures("tensorboard")
@pytest.mark.parametrize("stop", [5, 15, 22])
def test_tensorboard_keeps_the_numbers_of_a_phase_though_the_run_was_resumed(loop, monkeypatch, stop):
    """The run goes on in the phase, after it from step 0, and from step 8."""
    run, agent = loop()
    with pytest.raises(ZeroDivisionError):
        phases(run, agent, stop)
    for writer in run.tables.writers:
        writer.flush()
    in_a_minute(monkeypatch)
    phases(*loop(resume=True))
    for seed in (0, 1):
        found = shown(run, seed)
        assert found["train/first/number"] == [(2, 1.5), (4, 3.5), (6, 5.5), (8, 7.5), (10, 9.5)]
        assert [step for step, _ in found["train/number"]] == [6, 12, 18, 24]


def test_values_are_compared_with_the_returns_of_each_settings_own_discount(loop, monkeypatch):
    """Rewards are 1, 2 and 3: the returns of the three states are 1 + 2 d + 3 d^2, 2 + 3 d and 3."""

    class Counting(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 9, (1,)), gym.spaces.Box(-1, 1, (1,))

        def reset(self, *, seed=None, options=None):
            self.count = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.count += 1
            return np.full(1, self.count, np.float32), float(self.count), self.count == 3, False, {}

    monkeypatch.setitem(gym.registry, "Counting-v0", EnvSpec("Counting-v0", entry_point=Counting))
    run, agent = loop(env_id="Counting-v0", vary=("rate=0.5,0.9",), eval_episodes=1)
    run.evaluate_in("Counting-v0", {})
    run.compare_values(lambda obs, noise: (noise, obs[..., 0], torch.zeros(obs.shape[:2])), run.args.rate)
    for _ in run.steps(lambda obs: torch.zeros_like(obs)):
        run.log(agent.update())
    log = pd.read_parquet(run.folder.path / "train.parquet")
    log = log.set_index(["metric", "rate", "seed", "step"]).sort_index()["value"]
    for rate, observed in ((0.5, (2.75 + 3.5 + 3) / 3), (0.9, (5.23 + 4.7 + 3) / 3)):
        for seed in (0, 1):
            assert log["value_predicted", rate, seed].to_dict() == {0: 1.0, 12: 1.0, 24: 1.0}
            assert log["value_observed", rate, seed].tolist() == pytest.approx([observed] * 3)


def test_checkpoints_that_nothing_tells_of_are_refused(loop):
    broken_off(loop)
    path = loop(resume=True)[0].folder.path
    (path / "config.json").unlink()
    for resume in (False, True):
        with pytest.raises(UserError, match=r"has checkpoints and no config\.json"):
            loop(resume=resume)
    assert state_of(path) == "damaged"


def test_a_run_that_ends_before_it_learns_says_so(train, bare_runs, capsys):
    train("sac", **TINY | {"learning_starts": 60})
    assert "warning: --total-steps 60 ends before --learning-starts 60" in capsys.readouterr().err
    train("sac", **TINY, out="learns")
    assert "ends before" not in capsys.readouterr().err


def test_a_suite_for_cpus_with_bfloat16_is_taken_on_a_gpu_too(monkeypatch):
    import sac

    gpu = torch.device("cuda", 0)
    monkeypatch.setattr("algos.cli.choose_device", lambda name: gpu)
    assert device_of(sac.Args(bf16=True)) == device_of(sac.Args(bf16=True, compile=True)) == gpu
    monkeypatch.setattr("algos.run.multiplies_bf16", lambda: True)
    assert "it is for CPUs" in without_bf16(gpu) and not without_bf16(torch.device("cpu"))


@pytest.mark.parametrize("able", [True, False])
def test_a_processor_without_bfloat16_stays_in_float32_and_says_so(train, bare_runs, monkeypatch, capsys, able):
    """Before updates begin, and in config.json; nothing is compiled here, so that both compute the same."""
    monkeypatch.setattr("algos.run.multiplies_bf16", lambda: able)
    monkeypatch.setattr("algos.run.Run.compiled", lambda self, function: function)
    flags = TINY | {"hidden": (64, 64), "compile": True, "device": "cpu"}
    result = train("sac", **flags, bf16=True)
    warned = "warning: --bf16 changes nothing here: this processor has no instructions for bfloat16"
    assert (warned in capsys.readouterr().err) == (not able)
    assert result.config["in_bf16"] == able and result.config["identity"]["bf16"]
    assert not train("sac", **flags, out="exact").config["in_bf16"] and not capsys.readouterr().err


def test_an_argument_that_an_earlier_version_lacked_had_its_default(loop):
    broken_off(loop)
    path = loop(resume=True)[0].folder.path / "config.json"
    config = json.loads(path.read_text())
    del config["identity"]["stop_when_solved"], config["identity"]["rate"]
    path.write_text(json.dumps(config))
    run, _ = loop(resume=True)
    assert run.folder.earlier
    with pytest.raises(UserError, match=r"another configuration \(rate: 1.0 there, 2.0 here\)"):
        loop(resume=True, rate=2.0)
    with pytest.raises(UserError, match=r"\(rate: 1.0 there, 2.0 here; total_steps: \d+ there, 900 here\); choose"):
        loop(resume=True, rate=2.0, total_steps=900)
    with pytest.raises(UserError, match=r"900 here\); a run keeps the length that it began with; choose another --out"):
        loop(resume=True, total_steps=900)


def test_only_the_first_entries_in_which_runs_differ_are_told():
    ours, theirs = dict.fromkeys("abcdef", 1) | {"digest": 1}, dict.fromkeys("abcdef", 2) | {"digest": 2}
    found = differing(ours, theirs, {})
    assert [name for name, *_ in found] == list("abcdef") and told(found).endswith("d: 2 there, 1 here; and 2 more")
    assert differing({"digest": 1, "a": 1}, {"digest": 2}, {"a": 1}) == [("digest", 2, 1)]


def test_files_that_are_not_its_own_stay_in_the_folder_of_checkpoints(loop):
    mine = broken_off(loop) / "checkpoint" / "mine"
    mine.mkdir()
    (mine / "kept").write_text("")
    left = mine.with_name("000000000001.safetensors.part")
    left.write_text("")
    phases(*loop(resume=True))
    assert (mine / "kept").exists() and not left.exists()


def broken_off(loop):
    """Stops a run after 20 steps, whose last checkpoint is of step 16."""
    run, agent = loop()
    with pytest.raises(ZeroDivisionError):
        phases(run, agent, stop=20, count=0)
    return run.folder.path


def test_a_checkpoint_of_an_agent_with_other_tensors_is_refused(loop):
    broken_off(loop)
    run, agent = loop(resume=True)
    agent.register_buffer("more", torch.zeros(2))
    with pytest.raises(UserError, match="does not fit the agent of this version of the code"):
        next(run.steps())


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_checkpoint_is_left_out_and_said_to_be(loop, damage, capsys):
    newest = max((folder := broken_off(loop)).rglob("*.safetensors"))
    data = bytearray(newest.read_bytes())
    data[-3] ^= 1
    newest.write_bytes(data[:-2] if damage == "truncated" else data)
    run, agent = loop(resume=True)
    seen = []
    for step in run.steps():
        seen.append(step)
        run.log(agent.update())
    assert seen[0] == 9 and agent.number[0] == 24
    assert f"warning: checkpoint {newest} is damaged" in capsys.readouterr().err
    log = pd.read_parquet(folder / "train.parquet").query("metric == 'number' and seed == 0")
    assert log["step"].tolist() == [6, 12, 18, 24] and log["value"].tolist() == [3.5, 9.5, 15.5, 21.5]


@pytest.mark.parametrize(
    ("name", "message"),
    [("*.safetensors", "all checkpoints in .* are damaged"), ("eval.parquet", "eval.parquet is damaged"),
     ("config.json", "is not a run's")],
)  # fmt: skip
def test_damage_that_cannot_be_passed_over_is_said_in_a_sentence(loop, name, message):
    for file in broken_off(loop).rglob(name):
        file.write_bytes(b"{}")

    def resume():
        run, _ = loop(resume=True)
        next(run.steps())

    with pytest.raises(UserError, match=message) as error:
        resume()
    assert "\n" not in str(error.value)


def test_a_phase_may_be_ended_early_and_stays_ended(loop):
    run, agent = loop(resume=True)
    for number in run.phase("dynamics", 1_000, checkpoint_every=2):
        run.log(agent.update())
        if number == 5:
            with pytest.raises(ValueError, match="no phase 'dynamic' to end"):
                run.end_phase("dynamic")
            run.end_phase("dynamics")
    assert run.phases == {"dynamics": 5} and agent.number[0] == 5
    run, agent = loop(resume=True)
    assert list(run.phase("dynamics", 1_000)) == []
    assert agent.number[0] == 5
    for _ in run.steps():
        run.log(agent.update())
    assert agent.number[0] == 29 and config_of(run)["status"] == "finished"


def test_state_that_nothing_takes_up_is_refused(loop):
    run, agent = loop()
    run.register(agent, more=Random([0]))
    run.memory["more"].normal("noise", 2)
    with pytest.raises(ZeroDivisionError):
        phases(run, agent, stop=20, count=0)
    run, agent = loop(resume=True)
    with pytest.raises(UserError, match="has the state of 'more': hand it to the run before the training begins"):
        next(run.steps())


def test_a_divergence_in_a_phase_is_told_by_the_steps_of_the_run(loop):
    run, _ = loop()
    for _ in run.phase("first", 4, log_every=1):
        run.log({"number": torch.tensor([0.0, math.nan])})
    assert run.diverged == {1: 0}


def test_a_finished_run_has_no_phases_and_no_steps(loop):
    run, agent = loop()
    phases(run, agent)
    run, agent = loop(resume=True)
    assert list(run.phase("first", 10)) == [] and list(run.steps()) == []


def is_free(run) -> bool:
    try:
        with run.folder.claimed():
            return True
    except UserError:
        return False


def test_another_process_is_refused_while_a_run_goes_on(loop):
    run, _ = loop()
    other, _ = loop()
    for _ in run.steps():
        with pytest.raises(UserError, match=r"^--out: another process is training in .*; wait for it, or end it$"):
            next(other.steps())
        break


def end_with_an_error(run):
    for _ in run.steps():
        assert not is_free(run)
        raise ZeroDivisionError


def end_with_break(run):
    for _ in run.steps():
        assert not is_free(run)
        break


def end_with_return(run):
    for _ in run.steps():
        return


def drop_the_generator(run):
    steps = run.steps()
    next(steps)
    assert not is_free(run)
    del steps


def end_in_a_phase(run):
    for _ in run.phase("first", 10):
        raise ZeroDivisionError


def end_by_interruption(run):
    for _ in run.steps():
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "way", [end_with_an_error, end_with_break, end_with_return, drop_the_generator, end_in_a_phase, end_by_interruption]
)
def test_the_lock_and_signals_are_given_back_however_a_cell_ends(loop, way):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run, _ = loop()
    with contextlib.suppress(ZeroDivisionError, KeyboardInterrupt):
        way(run)
    assert is_free(run)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_step_in_hand(loop, number):
    run, agent = loop()

    def train():
        for step in run.steps():
            if step == 5:
                os.kill(os.getpid(), number)
            run.log(agent.update())

    with pytest.raises(SystemExit) as stop:
        train()
    assert stop.value.code == 130 and agent.number[0] == 5
    config = config_of(run)
    assert (config["status"], config["step"]) == ("interrupted", 5) and is_free(run)
    run, agent = loop(resume=True)
    for _ in run.steps():
        run.log(agent.update())
    assert agent.number[0] == 24 and config_of(run)["status"] == "finished"


def test_a_signal_ends_a_phase_too(loop):
    run, agent = loop()

    def train():
        for number in run.phase("first", 10):
            run.log(agent.update())
            if number == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as stop:
        train()
    assert stop.value.code == 130 and config_of(run)["status"] == "interrupted"
    assert agent.number[0] == 4 and run.phases == {"first": 4}
    run, agent = loop(resume=True)
    phases(run, agent)
    assert agent.number[0] == 34


def test_a_second_interruption_ends_the_run_at_once(loop):
    run, agent = loop()

    def train():
        for step in run.steps():
            if step == 5:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            run.log(agent.update())

    with pytest.raises(KeyboardInterrupt):
        train()
    assert agent.number[0] == 4 and is_free(run)
    assert not list(run.folder.path.glob("checkpoint/*"))


@pytest.mark.usefixtures("tensorboard")
def test_runs_are_settings_times_seeds_in_all_that_a_run_says(loop, capsys):
    run, agent = loop(vary=("rate=1,2",), quiet=False)
    assert run.runs == 4 and run.seeds == [0, 1, 0, 1] and run.args.rate.tolist() == [1, 1, 2, 2]
    for step in run.steps():
        metrics = agent.update()
        if step > 7:
            metrics["number"][3] = torch.nan
        run.log(metrics)
    assert config_of(run)["diverged"] == [{"seed": 1, "rate": 2.0, "step": 12}]
    out, err = capsys.readouterr()
    assert "seed 1 with rate=2 diverged before step 12" in err and "for each of 4 runs" in out
    assert (run.folder.path / "tensorboard" / "rate=2" / "seed_0").is_dir()


def test_the_table_at_the_end_has_the_steps_that_each_run_took():
    """One that stopped early has an evaluation at the total, and one that diverged the step of its last one."""
    rows = [(seed, step, 1.0) for seed in (0, 1, 2) for step in (0, 50, 100) if seed < 2 or step < 100]
    frame = pd.DataFrame(rows, columns=["seed", "step", "return"])
    summary = Summary("sac", "Made-v0", "steps", "return", lambda returns: returns)
    lines = list(summary.lines(frame, [{"seed": seed} for seed in (0, 1, 2)], [37, 100, 90], {2: 60}))[1:]
    assert [line.split()[3] for line in lines] == ["37", "100", "50"] and lines[2].endswith("diverged before step 60")


def test_the_band_of_a_curve_is_students_interval_of_the_mean():
    """Half of it is t s / sqrt(n), where the 0.975 quantile t is 4.302653 for three seeds, and 12.706205 for two."""
    low, high = plot.band(np.array([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0]]))
    half = 4.302653 * np.sqrt(13 / 3)  # the squares (9 + 1 + 16) / 2 are 13
    assert low == pytest.approx([4 - half, 5]) and high == pytest.approx([4 + half, 5])
    low, high = plot.band(np.array([[0.0], [2.0]]))
    assert low == pytest.approx([1 - 12.706205]) and high == pytest.approx([1 + 12.706205])


def test_a_curve_has_the_steps_of_all_seeds(tmp_path, monkeypatch):
    """Each of them may have been evaluated at steps of its own."""
    figures = []
    noted = plot.noted
    monkeypatch.setattr(plot, "noted", lambda *size: figures.append(noted(*size)) or figures[-1])
    rows = [(0, 0, 0.0), (1, 0, 0.0), (0, 5, 4.0), (1, 7, 2.0), (0, 20, 4.0), (1, 20, 6.0)]
    plot.curves({"a": pd.DataFrame(rows, columns=["seed", "step", "return"])}, tmp_path / "curve.png", "", "return")
    first, _, mean = figures[0].axes[0].lines
    assert mean.get_xdata().tolist() == [0, 5, 7, 20] and mean.get_ydata().tolist() == [0, 2, 3, 5]
    assert first.get_ydata().tolist() == [0, 4, 4, 4]


def test_a_curve_is_drawn_for_each_setting_and_a_diverged_run_keeps_its_last_score(curves, tmp_path, monkeypatch):
    from algos import plot

    rows = [
        (seed, rate, step, 0, seed + rate * step)
        for rate in (1.0, 2.0) for seed in (0, 1) for step in (0, 50, 100) if (seed, rate) != (1, 2) or step < 100
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["seed", "rate", "step", "episode", "return"])
    keys = [{"seed": seed, "rate": rate} for rate in (1.0, 2.0) for seed in (0, 1)]
    drawn, draw = {}, plot.curves
    monkeypatch.setattr(plot, "curves", lambda curve, *more: drawn.update(curve) or draw(curve, *more))
    summary = Summary("sac", "Made-v0", "steps", "return", lambda returns: returns)
    summary.draw(frame, keys, {3: 60}, "return of a policy", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG") and list(drawn) == ["rate=1", "rate=2"]
    (last,) = drawn["rate=2"].query("seed == 1 and step == 100")["return"]
    assert last == 101 and len(drawn["rate=1"]) == len(drawn["rate=2"]) == 6
