"""Sweeps that train, and that go on after every kind of failure."""

import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import pandas as pd
import psutil
import pytest
import torch
import tyro
from filelock import FileLock
from small_suite import SECOND, SUITE, jobs, write

from algos.errors import UserError
from benchmarks import engines, sweep
from benchmarks.engines import run_job
from benchmarks.suite import ROOT

STEPS = 600


def command(suite: Path, out: Path, *flags: str) -> list[str]:
    fixed = ["--out", str(out), "--device", "cpu", "--seeds-per-job", "2"]
    return [sys.executable, "-m", "benchmarks.sweep", str(suite), *fixed, *flags]


def start(suite: Path, out: Path, *flags: str) -> subprocess.Popen:
    return subprocess.Popen(command(suite, out, *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def do(suite: Path, out: Path, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(suite, out, *flags), capture_output=True, text=True, timeout=300)


def do_here(suite: Path, out: Path, *flags: str) -> None:
    """The command in this process; its jobs are processes of their own."""
    sweep.main(tyro.cli(sweep.Args, args=command(suite, out, *flags)[3:]))


def wait_for_steps(out: Path, least: int, seconds: float = 300) -> Path:
    """The folder of the run that first reports so many steps."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for path in out.rglob("checkpoint/*.json"):
            if int(path.stem) >= least:
                return path.parents[1]
        time.sleep(0.02)
    raise AssertionError("no checkpoint in time")


def scripts_of(out: Path) -> list[psutil.Process]:
    """The processes that train in a sweep's folder."""
    scripts = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "benchmarks.job" in words and any(str(out) in word for word in words):
            scripts.append(process)
    return scripts


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep that nothing has disturbed; the log of its job lists what was imported."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPROFILEIMPORTTIME", "1")
        do_here(write(folder, steps=STEPS), folder / "out")
    return folder / "out"


def change_a_value(path: Path) -> None:
    """Changes one byte of a table, by which it is another table unless its checksums are verified."""
    data, whole = path.read_bytes(), pd.read_parquet(path)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 255
        with contextlib.suppress(Exception):  # most of such tables cannot be read
            found = pd.read_parquet(io.BytesIO(changed))
            if found.columns.equals(whole.columns) and len(found) == len(whole) and not found.equals(whole):
                path.write_bytes(changed)
                return
    raise AssertionError(f"no byte of {path} changes a value alone")


def same_tables(ours: Path, theirs: Path) -> None:
    paths = sorted(path.relative_to(theirs) for path in theirs.rglob("eval.parquet"))
    assert paths
    for path in paths:
        pd.testing.assert_frame_equal(pd.read_parquet(ours / path), pd.read_parquet(theirs / path))


def test_a_run_that_does_not_compile_leaves_out_what_takes_seconds_to_import(whole):
    (log,) = (whole / "logs").glob("*.log")
    imported = log.read_text()
    assert "algos.plot" in imported and "matplotlib.figure" in imported and list(whole.rglob("policy.safetensors"))
    assert "matplotlib.pyplot" not in imported and not re.search(r"\| +torch\._dynamo\n", imported)


def test_finished_jobs_are_skipped(tmp_path, whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.parquet")}
    do_here(write(tmp_path, steps=STEPS), whole)
    assert "1 finished before, of 1 jobs" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*.parquet")}


def test_a_job_that_fails_is_tried_again_and_does_not_stop_the_others(tmp_path, capsys):
    (tmp_path / "broken.py").write_text(
        "import sys\nfrom dataclasses import dataclass\n\nif __name__ == '__main__':\n"
        "    print('this is broken')\n    sys.exit(5)\n\n"
        "from algos.run import RunArgs\n\n\n@dataclass\nclass Args(RunArgs):\n    pass\n"
    )
    broken = '[algorithms.broken]\nscript = "broken.py"\nflags = {}\n'
    text = SUITE.replace("hidden = [8]\nbatch_size = 8\nlearning_starts = 200", "")
    small = "flags = { hidden = [8], batch_size = 8, learning_starts = 200 }\n"
    suite = write(tmp_path, text.replace("[algorithms.sac]", broken + "[algorithms.sac]\n" + small), 400)
    with pytest.raises(SystemExit) as stop:
        do_here(suite, tmp_path / "out", "--retries", "1")
    said = capsys.readouterr().out
    assert stop.value.code == 1 and "1 finished, 1 failed, of 2 jobs" in said
    assert "after 2 attempts" in said
    logs = sorted((tmp_path / "out" / "logs").glob("*.log"))
    assert sum("this is broken" in path.read_text() for path in logs) == 2
    assert len(list((tmp_path / "out").rglob("eval.parquet"))) == 1


@pytest.mark.parametrize(("state", "attempts"), [("new", 1), ("started", 3), ("damaged", 1)])
def test_what_a_job_refuses_at_first_it_is_not_asked_again(tmp_path, monkeypatch, state, attempts):
    """A run that had begun may have lacked memory, which others used."""
    monkeypatch.setattr("benchmarks.engines.state_of", lambda folder: state)
    refuses = [sys.executable, "-c", "raise SystemExit(2)"]
    outcome = run_job(refuses, tmp_path / "run", tmp_path / "job", tmp_path / "stop", {}, retries=2)
    assert (outcome.status, outcome.attempts) == ("failed", attempts)


def test_a_run_that_finished_while_the_sweep_was_asked_to_end_is_finished(tmp_path, monkeypatch):
    """A process may be ended after its last step, when it frees its memory."""
    monkeypatch.setattr("benchmarks.engines.state_of", lambda folder: "finished")
    ended = [sys.executable, "-c", f"open({str(tmp_path / 'stop')!r}, 'w'); raise SystemExit(130)"]
    outcome = run_job(ended, tmp_path / "run", tmp_path / "job", tmp_path / "stop", {}, retries=2)
    assert (outcome.status, outcome.attempts) == ("finished", 1)


def test_a_job_waits_while_another_process_trains_in_its_folder(tmp_path, monkeypatch, capsys):
    """However long that takes, and without an attempt."""
    monkeypatch.setattr("benchmarks.engines.PATIENCE", 0)
    monkeypatch.setattr("benchmarks.engines.state_of", lambda folder: "finished")
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", ""]
    with ThreadPoolExecutor(1) as pool:
        with FileLock(tmp_path / "run" / ".lock"):
            job = pool.submit(run_job, command, tmp_path / "run", tmp_path / "job", tmp_path / "stop", {}, 0)
            until = time.monotonic() + 60
            while not (said := capsys.readouterr().err) and time.monotonic() < until:
                time.sleep(0.05)
            assert "another process is training in" in said and not job.done()
        assert job.result(60).status == "finished"


def test_a_sweep_that_is_stopped_says_so_even_if_all_its_jobs_have_finished(tmp_path, monkeypatch):
    """So that no further batch of seeds is begun, and `stop` is there until the last job has ended."""
    there = []

    def job(command, folder, log, stop, environment):
        stop.touch()
        return engines.Outcome("finished", 1, 0, log)

    @contextlib.contextmanager
    def engine(*_):
        with ThreadPoolExecutor(1) as pool:
            yield engines.Engine(lambda *given: pool.submit(job, *given), lambda future: False)
        there.append(sweep.stop_file(out).exists())

    monkeypatch.setattr(engines, "local", engine)
    suite, out = write(tmp_path, SUITE + SECOND), tmp_path / "out"
    out.mkdir()
    args = tyro.cli(sweep.Args, args=[str(suite), "--out", str(out), "--device", "cpu"])
    outcomes, stopped = sweep.sweep(args, jobs(suite, out), out, 1, [])
    assert {outcome.status for outcome in outcomes.values()} == {"finished"} and len(outcomes) == 2
    assert stopped and there == [True] and not sweep.stop_file(out).exists()


@pytest.mark.slow
def test_a_script_that_stores_its_run_elsewhere_has_failed(tmp_path):
    script, run = (ROOT / "single_file" / "sac.py").read_text(), 'args.out /= "mine"\n    run = Run(args, "mine")'
    (tmp_path / "mine.py").write_text(script.replace('run = Run(args, "sac")', run))
    suite = write(tmp_path, SUITE.replace("[algorithms.sac]", '[algorithms.mine]\nscript = "mine.py"'), 400)
    done = do(suite, tmp_path / "out")
    assert done.returncode == 1 and "there is no finished run in" in done.stdout


@pytest.mark.slow
def test_a_killed_worker_is_resumed_and_ends_where_it_would_have(tmp_path, whole):
    running = start(write(tmp_path, steps=STEPS), tmp_path / "out", "--checkpoint-every", "250")
    wait_for_steps(tmp_path / "out", 250)
    (script,) = scripts_of(tmp_path / "out")
    script.kill()
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 0 and "after 2 attempts" in said
    first, second = sorted((tmp_path / "out" / "logs").glob("*.log"))
    assert "resumed at step" not in first.read_text() and "resumed at step" in second.read_text()
    same_tables(tmp_path / "out", whole)


@pytest.mark.slow
def test_a_killed_sweep_takes_its_jobs_along_and_continues(tmp_path, whole):
    suite = write(tmp_path, steps=STEPS)
    running = start(suite, tmp_path / "out", "--checkpoint-every", "250")
    wait_for_steps(tmp_path / "out", 250)
    assert len(scripts_of(tmp_path / "out")) == 1
    running.kill()
    running.wait()
    done = do(suite, tmp_path / "out")  # at once: the lock of a dead process does not count
    assert done.returncode == 0, done.stderr
    assert "resumed at step" in max((tmp_path / "out" / "logs").glob("*.log")).read_text()
    assert not scripts_of(tmp_path / "out")
    same_tables(tmp_path / "out", whole)


@pytest.mark.slow
def test_the_jobs_of_a_killed_sweep_write_a_checkpoint_and_end(tmp_path):
    running = start(write(tmp_path, steps=100_000), tmp_path / "out", "--checkpoint-every", "250")
    run = wait_for_steps(tmp_path / "out", 250)
    running.kill()
    running.wait()
    until = time.monotonic() + 30
    while scripts_of(tmp_path / "out") and time.monotonic() < until:
        time.sleep(0.1)
    assert not scripts_of(tmp_path / "out")
    assert json.loads((run / "config.json").read_text())["status"] == "interrupted"


def test_ctrl_c_ends_cleanly_and_the_same_command_continues(tmp_path, whole):
    suite = write(tmp_path, steps=STEPS)
    running = start(suite, tmp_path / "out", "--checkpoint-every", "100")
    run = wait_for_steps(tmp_path / "out", 100)
    running.send_signal(signal.SIGINT)
    said, errors = running.communicate(timeout=60)
    assert running.returncode == 130 and "1 interrupted, of 1 jobs" in said and "Traceback" not in errors
    assert json.loads((run / "config.json").read_text())["status"] == "interrupted"
    assert not list((tmp_path / "out").glob("stop*")) and not scripts_of(tmp_path / "out")
    do_here(suite, tmp_path / "out")
    same_tables(tmp_path / "out", whole)


@pytest.mark.slow
def test_a_second_sweep_on_the_folder_is_refused(tmp_path):
    suite = write(tmp_path, steps=100_000)
    running = start(suite, tmp_path / "out", "--checkpoint-every", "500")
    try:
        wait_for_steps(tmp_path / "out", 500)
        second = do(suite, tmp_path / "out")
        assert second.returncode == 2 and second.stderr.count("\n") == 1
        assert f"another sweep is at work in {tmp_path / 'out'} (process {running.pid} on" in second.stderr
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)


@pytest.mark.slow
def test_a_damaged_table_is_set_aside_and_its_run_trained_anew(tmp_path, whole):
    suite = write(tmp_path, steps=STEPS)
    out = tmp_path / "out"
    subprocess.run(["cp", "-r", str(whole), str(out)], check=True)
    (table,) = out.rglob("eval.parquet")
    change_a_value(table)
    (job,) = jobs(suite, out)
    assert job.state == "damaged" and table.exists()  # a plan changes nothing
    done = do(suite, out)
    assert done.returncode == 0 and "is damaged" in done.stderr and "1 finished, of 1 jobs" in done.stdout
    same_tables(out, whole)
    assert len(list(out.rglob("config.json"))) == 1 and len(list((out / "damaged").iterdir())) == 1


def test_a_changed_value_of_a_table_is_seen(tmp_path, whole):
    out = tmp_path / "out"
    subprocess.run(["cp", "-r", str(whole), str(out)], check=True)
    (table,) = out.rglob("eval.parquet")
    change_a_value(table)
    (job,) = jobs(write(tmp_path, steps=STEPS), out)
    assert job.state == "damaged"


@pytest.mark.parametrize("harm", [b"", b"{", b"[]", b'{"status": "finished"}'])
def test_a_damaged_configuration_is_seen(tmp_path, whole, harm):
    out = tmp_path / "out"
    subprocess.run(["cp", "-r", str(whole), str(out)], check=True)
    (config,) = out.rglob("config.json")
    config.write_bytes(harm)
    (job,) = jobs(write(tmp_path, steps=STEPS), out)
    assert job.state == "damaged"


@pytest.mark.slow
def test_one_job_of_an_array(tmp_path, whole):
    suite = write(tmp_path, SUITE + SECOND)
    done = do(suite, tmp_path / "out", "--job", "1")
    assert done.returncode == 0 and "other on InvertedPendulum-v5, seeds 0-1" in done.stdout
    assert [path.parent.name for path in (tmp_path / "out").rglob("eval.parquet")] == ["other"]
    assert "finished already" in do(suite, tmp_path / "out", "--job", "1").stdout
    refused = do(suite, tmp_path / "out", "--job", "2")
    assert refused.returncode == 2 and "--job takes 0 to 1" in refused.stderr


@pytest.mark.parametrize("flags", [(), ("--job", "0")], ids=["all", "one"])
def test_jobs_begin_where_the_sweep_does_and_find_tasks_and_files_of_ones_own_there(tmp_path, monkeypatch, flags):
    """One job is that of a command in a process of its own, which finds what lies there by itself."""
    (tmp_path / "tasks_of_mine.py").write_text(
        "import gymnasium as gym\n"
        "def make(path, **kwargs):\n"
        "    assert open(path).read() == 'mine'\n"
        "    return gym.make('InvertedPendulum-v5').unwrapped\n"
        "gym.register('Mine-v0', make, max_episode_steps=50)\n"
    )
    (tmp_path / "model.txt").write_text("mine")
    suite = write(tmp_path, SUITE.replace("InvertedPendulum-v5", "tasks_of_mine:Mine-v0"), steps=200)
    suite.write_text(suite.read_text().replace("[flags]", '[flags]\nenv_option = ["path=model.txt"]'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if flags:
        done = do(Path(suite.name), Path("out"), *flags)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        monkeypatch.syspath_prepend(tmp_path)
        try:
            do_here(Path(suite.name), Path("out"))
        finally:
            gym.registry.pop("Mine-v0", None)
            sys.modules.pop("tasks_of_mine", None)
    assert pd.read_parquet(next(tmp_path.rglob("eval.parquet")))["length"].max() <= 50


def test_a_suite_may_lie_in_its_own_folder_beside_its_references(tmp_path, monkeypatch):
    """As the copies do that a sweep keeps."""
    started = []
    monkeypatch.setattr(sweep, "check_all", lambda args: None)
    monkeypatch.setattr(sweep, "sweep", lambda args, jobs, *_: started.extend(jobs) or ({}, False))
    (tmp_path / "refs.csv").write_text("task,low,high,source\nInvertedPendulum-v5,0,1000,me\n")
    suite = write(tmp_path, SUITE.replace("[flags]", 'references = "refs.csv"\n[flags]'))
    sweep.main(tyro.cli(sweep.Args, args=[str(suite), "--out", str(tmp_path), "--device", "cpu"]))
    assert started and (tmp_path / "sweep.json").exists()
    (tmp_path / "scores.csv").write_text((tmp_path / "refs.csv").read_text())
    suite = write(tmp_path, suite.read_text().replace("refs.csv", "scores.csv"))
    with pytest.raises(UserError, match=r"scores.csv has the name of a table that reports write"):
        sweep.main(tyro.cli(sweep.Args, args=[str(suite), "--out", str(tmp_path / "out"), "--device", "cpu"]))


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        ("", 8), ("--per-gpu 3", 2), ("--workers 16", 1), ("--threads 5", 5), ("--device cuda:1", 8),
        ("--device cpu", 1), ("--device cuda --engine ray", 1), ("--job 0", 1), ("--job 0 --threads 8", 8),
    ],
)  # fmt: skip
def test_jobs_on_gpus_share_the_cores_of_their_machine(flags, threads, tmp_path, monkeypatch):
    """Environments are stepped on the cores, and with one thread an evaluation takes longer than the training."""
    started = []
    monkeypatch.setattr(sweep, "choose_device", lambda name: torch.device("cpu" if name == "cpu" else "cuda:0"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        sweep, "run_one", lambda args, suite, out, job, gpus: started.extend([args.threads, job.command])
    )
    monkeypatch.setattr(sweep, "core_count", lambda: 16)
    monkeypatch.setattr(sweep, "check_all", lambda args: None)
    monkeypatch.setattr(
        sweep, "sweep", lambda args, jobs, *_: started.extend([args.threads, jobs[0].command]) or ({}, False)
    )
    sweep.main(tyro.cli(sweep.Args, args=[str(write(tmp_path)), "--out", str(tmp_path / "out"), *flags.split()]))
    assert started[0] == threads and started[1][started[1].index("--threads") + 1] == str(threads)


def test_a_suite_for_gpus_on_ray_may_leave_compile_out(tmp_path, monkeypatch):
    """This machine, which may have no GPU, checks its jobs; on CUDA updates are always compiled."""
    monkeypatch.setattr(sweep, "sweep", lambda *_: ({}, False))
    suite = str(write(tmp_path, SUITE.replace("[8]", "[64, 64]\nbf16 = true")))
    for device in ("cuda", "cpu"):
        args = tyro.cli(sweep.Args, args=[suite, "--out", str(tmp_path / "out"), "--engine", "ray", "--device", device])
        with contextlib.nullcontext() if device == "cuda" else pytest.raises(UserError, match="add --compile"):
            sweep.main(args)


def test_a_plan_says_what_the_sweep_would_refuse(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep, "sweep", lambda *_: pytest.fail("it trained"))
    suite = str(write(tmp_path, SUITE.replace("[8]", "[64, 64]\nbf16 = true")))
    sweep.main(tyro.cli(sweep.Args, args=[suite, "--out", str(tmp_path / "out"), "--device", "cpu", "--dry-run"]))
    said = capsys.readouterr()
    assert "as an array of jobs" in said.out
    assert re.search(r"warning: this would be refused on this machine: .*--compile", said.err)


def test_a_plan_names_what_is_not_finished_what_is_running_and_data_that_is_not_here(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    text = SUITE.replace('"InvertedPendulum-v5"', '"d4rl/hopper-random-v2"').replace("algorithms.sac", "algorithms.bc")
    suite, out = write(tmp_path, text.replace("learning_starts = 200\n", "")), tmp_path / "out"

    def planned() -> str:
        words = [str(suite), "--out", str(out), "--device", "cpu", "--dry-run", "--seeds-per-job", "1"]
        sweep.main(tyro.cli(sweep.Args, args=words))
        return capsys.readouterr().out

    said = planned()
    assert "data that is not here yet: d4rl/hopper-random-v2; `python -m benchmarks.dataset NAME` downloads it" in said
    assert "--job 0 to --job 1" in said and "not finished" not in said
    first, second = jobs(suite, out, seeds_per_job=1)
    for job, status in ((first, "finished"), (second, "running")):
        job.folder.mkdir(parents=True)
        config = {"algorithm": "bc", "env_id": "", "variant": "default", "identity": job.identity, "status": status}
        (job.folder / "config.json").write_text(json.dumps(config | {"step": 0, "task": job.args.task}))
        for name, column in (("eval", "episode"), ("train", "metric")):
            table = pd.DataFrame({"seed": job.seeds, "step": 1, column: 0, "return": 0.0, "length": 1, "value": 0.0})
            table.astype({"metric": str} if name == "train" else {}).to_parquet(job.folder / f"{name}.parquet")
    with FileLock(second.folder / ".lock"):
        assert re.search(r"seed 0 .*finished.*\n.*seed 1 .*running", planned())
    (tmp_path / "hopper_random-v2.hdf5").touch()
    said = planned()
    assert "those that are not finished: 1\n" in said and "to be continued" in said and "not here yet" not in said


@pytest.mark.slow
def test_ray_does_the_same(tmp_path, whole):
    pytest.importorskip("ray")
    done = do(write(tmp_path, steps=STEPS), tmp_path / "out", "--engine", "ray", "--workers", "1")
    assert done.returncode == 0, done.stderr
    same_tables(tmp_path / "out", whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ray_stops_cleanly(tmp_path, number):
    pytest.importorskip("ray")
    suite = write(tmp_path, SUITE + SECOND, 100_000)
    running = start(suite, tmp_path / "out", "--engine", "ray", "--workers", "1", "--checkpoint-every", "250")
    run = wait_for_steps(tmp_path / "out", 250)
    running.send_signal(number)
    said, errors = running.communicate(timeout=60)
    assert running.returncode == 130 and "1 interrupted, 1 not begun, of 2 jobs" in said, errors
    assert json.loads((run / "config.json").read_text())["status"] == "interrupted"
    assert not scripts_of(tmp_path / "out")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--device", "tpu"), "--device takes"),
        (("--engine", "ray", "--device", "auto"), "--device takes cpu or cuda"),
        (("--per-gpu", "0"), "--per-gpu must lie in"),
        (("--engine", "ray", "--device", "cpu", "--job", "0"), "--job runs one job here, and --engine ray all"),
        (("--address", "auto"), "--address is that of a Ray cluster: add --engine ray"),
        (("--workers", "-1"), "--workers must lie in"), (("--out", "/dev/null/x"), "--out: cannot use /dev/null/x"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_in_a_sentence(tmp_path, flags, message):
    words = command(write(tmp_path), tmp_path / "out", *flags)[3:]
    with pytest.raises(UserError, match=message) as error:
        sweep.main(tyro.cli(sweep.Args, args=words))
    assert "\n" not in str(error.value)
