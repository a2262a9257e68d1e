"""The run: bad input, faults, kills and resumes, what it leaves behind."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import pandas as pd
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

import algos.run
from algos.errors import UserError
from algos.run import Run
from envs import SeededEnvs

ROOT = Path(__file__).parents[2]
TINY = {
    "env_id": "InvertedPendulum-v5", "seeds": ("0", "1"), "total_steps": 60, "learning_starts": 20, "batch_size": 8,
    "hidden": (16,), "eval_every": 20, "eval_episodes": 2, "log_every": 10, "checkpoint_every": 20,
}  # fmt: skip
FLAGS = [
    "--env-id", "InvertedPendulum-v5", "--seeds", "0:2", "--hidden", "16", "--eval-every", "70", "--log-every", "50",
    "--checkpoint-every", "100", "--device", "cpu", "--threads", "1",
]  # fmt: skip
OWN_FLAGS = {"stream_ac": ["--no-compile"]}
OFF_POLICY = ["--learning-starts", "50", "--batch-size", "8", "--eval-episodes", "2"]


def command(out: Path, *flags: str, script: str = "sac") -> list[str]:
    path, own = ROOT / "single_file" / f"{script}.py", OWN_FLAGS.get(script, OFF_POLICY)
    return [sys.executable, str(path), "--out", str(out), *FLAGS, *own, *flags]


def parameters(out: Path) -> dict[str, torch.Tensor]:
    return load_file(max(out.rglob("checkpoint/*.safetensors")))


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"env_id": "Hoper-v5"}, r"no environment 'Hoper-v5'; the closest ids are .*Hopper-v5"),
        ({"env_id": "no.such.module:Env-v0"}, "no environment 'no.such.module:Env-v0'"),
        ({"env_id": "CartPole-v1"}, "Discrete actions"),
        ({"seeds": ("1", "2", "1")}, "got 1 twice"),
        ({"seeds": ("-3",)}, "not be negative, got -3"),
        ({"seeds": ("0:x",)}, "got '0:x'"),
        ({"seeds": ("4:4",)}, "names no seed"),
        ({"total_steps": 0}, "--total-steps must be at least 1, got 0"),
        ({"eval_every": 0}, "--eval-every must be at least 1"),
        ({"device": "cuda"}, "--device cuda: this machine"),
        ({"device": "gpu"}, "--device takes auto, cpu, cuda"),
        ({"batch_size": 0}, "--batch-size must be at least 1"),
        ({"discount": 1.5}, "--discount must lie in"),
        ({"hidden": ()}, "--hidden takes at least one number"),
        ({"buffer_size": 10**12, "total_steps": 10**12}, "GiB"),
    ],
)
@pytest.mark.parametrize("script", ["sac", "dsac_t"])
def test_bad_input_is_refused_in_one_sentence_before_any_work(script, overrides, message, tmp_path):
    if overrides.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    module = __import__(script)
    with pytest.raises(UserError, match=message) as error:
        module.main(module.Args(**{**TINY, "out": tmp_path / "out", "device": "cpu", "quiet": True, **overrides}))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("eval.parquet"))


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


def test_the_command_line_says_one_sentence_and_exits_with_2(tmp_path):
    done = subprocess.run(command(tmp_path, "--total-steps", "0"), capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: --total-steps must be at least 1, got 0\n"


def test_help_explains_every_flag():
    done = subprocess.run([*command(Path("x"))[:2], "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    text = re.sub(r"[\s│]+", " ", done.stdout)
    flags = (
        "env-id seeds total-steps device compile eval-every eval-episodes out resume checkpoint-every log-every quiet"
    )
    for word in [f"--{flag}" for flag in flags.split()] + ["soft actor-critic", "a range such as 0:10"]:
        assert word in text.replace("`", ""), word


def test_a_folder_with_another_configuration_is_refused(train, tmp_path):
    train("sac", **TINY)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    import sac

    for change, message in (
        ({"discount": 0.9}, r"discount: 0.99 there, 0.9 here"),
        ({}, r"already \(finished.*--resume"),
    ):
        with pytest.raises(UserError, match=message):
            sac.main(sac.Args(**{**TINY, "out": tmp_path / "out", "quiet": True, "device": "cpu", **change}))
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}


def test_resuming_a_finished_run_changes_nothing(train, tmp_path):
    result = train("sac", **TINY)
    before = parameters(result.folder)
    again = train("sac", resume=True, **TINY)
    assert again.config["status"] == "finished"
    assert all(torch.equal(t, before[n]) for n, t in parameters(again.folder).items())


def test_an_unusable_folder_is_refused(train, tmp_path):
    import sac

    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--out: cannot use"):
        sac.main(sac.Args(**{**TINY, "out": tmp_path / "file", "quiet": True}))


def test_a_full_disk_is_refused(tmp_path, monkeypatch):
    import sac

    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(algos.run.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"GiB of disk, where 0.0 GiB are free"):
        sac.main(sac.Args(**{**TINY, "out": tmp_path, "quiet": True}))


def test_a_disk_that_fills_up_during_the_run_is_said_in_one_sentence(tmp_path, monkeypatch):
    import sac

    def full(*args):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(algos.checkpoint, "save_file", full)
    with pytest.raises(UserError, match=r"cannot write to .*No space left.*--resume goes on"):
        sac.main(sac.Args(**{**TINY, "out": tmp_path, "quiet": True}))


# -- faults ------------------------------------------------------------------------------------------------------------


def finish(out: Path, *flags: str, script: str = "sac") -> str:
    done = subprocess.run(command(out, *flags, script=script), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def kill_after_checkpoints(out: Path, number: int, *flags: str, script: str = "sac", how: int = signal.SIGKILL) -> int:
    """Starts a run, sends a signal when its checkpoint number `number` is there, and returns the exit code."""
    process = subprocess.Popen(
        command(out, *flags, script=script), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline, seen = time.monotonic() + 120, set()
    while len(seen) < number:
        seen |= set(out.rglob("checkpoint/*.json"))
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(0.05)
    process.send_signal(how)
    return process.wait()


@pytest.mark.parametrize("script", ["sac", "dsac_t", "stream_ac"])
def test_a_killed_run_resumes_to_the_bitwise_same_end(script, tmp_path):
    steps = ("--total-steps", "1500")
    finish(tmp_path / "whole", *steps, script=script)
    for kill in (2, 6):
        assert kill_after_checkpoints(tmp_path / "killed", kill, *steps, "--resume", script=script) == -signal.SIGKILL
    text = finish(tmp_path / "killed", *steps, "--resume", script=script)
    assert "resumed at step" in text
    whole, killed = parameters(tmp_path / "whole"), parameters(tmp_path / "killed")
    assert set(whole) == set(killed) and all(torch.equal(t, killed[n]) for n, t in whole.items())
    tables = [next((tmp_path / name).rglob("eval.parquet")).read_bytes() for name in ("whole", "killed")]
    assert tables[0] == tables[1]
    train = [pd.read_parquet(next((tmp_path / name).rglob("train.parquet"))) for name in ("whole", "killed")]
    train = [frame[frame["metric"] != "seconds"].reset_index(drop=True) for frame in train]
    pd.testing.assert_frame_equal(*train)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_cleanly_and_goes_on(how, tmp_path):
    assert kill_after_checkpoints(tmp_path, 2, "--total-steps", "100000", how=how) == 130
    config = json.loads(next(tmp_path.rglob("config.json")).read_text())
    assert config["status"] == "interrupted"
    newest = max(json.loads(p.read_text())["step"] for p in tmp_path.rglob("checkpoint/*.json"))
    assert newest == config["step"] > 0


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    finish(tmp_path / "whole", "--total-steps", "600")
    for damage in ("truncated", "flipped"):
        out = tmp_path / damage
        kill_after_checkpoints(out, 3, "--total-steps", "600")
        newest = max(out.rglob("*.safetensors"))
        data = bytearray(newest.read_bytes())
        data[-10] ^= 1
        newest.write_bytes(data[:-100] if damage == "truncated" else data)
        text = finish(out, "--total-steps", "600", "--resume")
        assert f"checkpoint {newest} is damaged" in text and "resumed at step" in text
        expected = parameters(tmp_path / "whole")
        assert all(torch.equal(t, expected[n]) for n, t in parameters(out).items())


def test_when_all_checkpoints_are_damaged_the_run_is_refused(tmp_path):
    kill_after_checkpoints(tmp_path, 2, "--total-steps", "100000")
    for file in tmp_path.rglob("*.safetensors"):
        file.write_bytes(b"nonsense")
    done = subprocess.run(command(tmp_path, "--total-steps", "100000", "--resume"), capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("error: all checkpoints in")


# -- results -----------------------------------------------------------------------------------------------------------


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


def test_metrics_are_means_over_the_interval(tmp_path):
    import sac

    run = algos.run.Run(sac.Args(**{**TINY, "out": tmp_path, "quiet": True, "device": "cpu"}), "sac")
    run.step = 10
    for value in (1.0, 2.0, 6.0):
        run.log({"x": torch.tensor([value, 10 * value])})
    run.log({"y": torch.tensor([1.0, 1.0])})
    run._flush()
    rows = {(seed, name): value for seed, _, name, value in run.train_rows}
    assert rows[0, "x"] == 3 and rows[1, "x"] == 30 and rows[0, "y"] == 1


def test_seeds_may_be_a_range():
    assert algos.run.parse_seeds(("0:3", "7", "10:12")) == [0, 1, 2, 7, 10, 11]


# -- ends --------------------------------------------------------------------------------------------------------------


def test_divergence_after_the_last_log_is_noticed(train, monkeypatch):
    """Also at the very end, and before an evaluation between two logs."""
    receive, calls = SeededEnvs.receive, []

    def poisoned(envs):
        transition = receive(envs)
        calls.append(1)
        if len(calls) > 42:
            transition.reward[0] = float("nan")
        return transition

    monkeypatch.setattr(SeededEnvs, "receive", poisoned)
    result = train("sac", **{**TINY, "total_steps": 58, "log_every": 50, "eval_every": 54})
    assert result.config["status"] == "diverged" and list(result.config["diverged"]) == ["0"]
    table = pd.read_parquet(result.folder / "eval.parquet")
    assert set(table[table["step"] >= 54]["seed"]) == {1}


def test_a_kill_between_the_final_checkpoint_and_its_config_is_mended(train, tmp_path, monkeypatch):
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
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    assert algos.run.choose_device("auto") == torch.device("cuda:0")
    assert chosen == [torch.device("cuda:0"), "high"]


@pytest.mark.parametrize(
    ("name", "message"), [("eval.parquet", "eval.parquet is damaged"), ("config.json", "is not a run's")]
)
def test_a_damaged_table_or_config_is_refused(name, message, tmp_path):
    kill_after_checkpoints(tmp_path, 2, "--total-steps", "100000")
    next(tmp_path.rglob(name)).write_bytes(b"{}")
    done = subprocess.run(command(tmp_path, "--total-steps", "100000", "--resume"), capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
