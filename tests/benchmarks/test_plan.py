"""The plan of a sweep: jobs, their states, estimates. Nothing is trained."""

import contextlib
import json
import os
import re
import shutil
import threading
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from filelock import FileLock
from small_suite import SECOND, SUITE, VARIED, jobs, write

from algos.cli import settings
from algos.errors import UserError
from benchmarks import display, engines, plan, sweep
from benchmarks import suite as suites
from benchmarks.load_scores import load
from benchmarks.stored import write_sources


def store(job: plan.Job, status: str, **entries) -> None:
    """The folder of a job's run, as if it had trained."""
    job.folder.mkdir(parents=True)
    runs = [{"seed": seed, **setting} for setting in settings(job.args) for seed in job.seeds]
    table = pd.DataFrame(runs).assign(step=job.total_steps)
    table.assign(episode=0, length=1, **{"return": 0.0}).to_parquet(job.folder / "eval.parquet")
    table.assign(metric="loss", value=0.0).to_parquet(job.folder / "train.parquet")
    config = {"algorithm": "sac", "env_id": job.args.env_id, "variant": job.args.variant, "identity": job.identity}
    config |= {"status": status, "step": job.total_steps, "seconds": 60.0, "settings": settings(job.args), **entries}
    config["varied"] = list(config["settings"][0])
    (job.folder / "config.json").write_text(json.dumps(config | {"evaluation_seconds": 4.0, "peak_bytes": 1_000}))


def estimate(job: plan.Job, earlier: list[dict]) -> tuple[float, float] | None:
    """What the earlier run that is most like the job tells of it."""
    best = plan.most_alike(job, earlier)
    return plan.estimate(job, best) if best else None


def test_a_job_is_a_batch_of_seeds_of_one_algorithm_on_one_task(tmp_path):
    text = SUITE.replace('"0:2"', '"0:7"').replace("Pendulum-v5", 'Pendulum-v5", "Pendulum-v1') + SECOND
    planned = jobs(write(tmp_path, text), tmp_path / "out", seeds_per_job=4)
    assert [job.seeds for job in planned] == [[0, 1, 2, 3], [4, 5, 6]] * 4  # split evenly
    assert len({job.id for job in planned}) == 8 and len({job.folder for job in planned}) == 8
    assert planned[0].folder == tmp_path / "out" / "seeds_0-3" / "InvertedPendulum-v5" / "sac" / "default"
    assert planned[2].folder.name == "other"


def test_folders_are_named_after_seeds_and_never_too_long_for_a_disk():
    assert [plan.seed_name(seeds) for seeds in ([7], [0, 1], [3, 4, 5, 9], [0, 2, 4])] == [
        "seed_7", "seeds_0-1", "seeds_3_4_5_9", "seeds_0_2_4",
    ]  # fmt: skip
    most = [[seed for seed in range(100) if seed != left_out] for left_out in (37, 38)]
    long = [plan.seed_name(seeds) for seeds in most]
    assert all(re.fullmatch("seeds_0-99_[0-9a-f]{10}", name) for name in long) and len(set(long)) == 2
    assert plan.seed_name(most[0]) == long[0]


@pytest.mark.parametrize(
    ("seeds", "cuda", "workers", "wanted", "batch"),
    [
        ("0:10", False, 1, 0, 5), ("0:10", True, 1, 0, 10), ("0:10", False, 16, 0, 2), ("0:3", False, 1, 0, 3),
        ("0:10", True, 4, 3, 3),
    ],
)  # fmt: skip
def test_a_process_trains_the_number_of_seeds_that_is_fastest(tmp_path, seeds, cuda, workers, wanted, batch):
    text = SUITE.replace('"0:2"', f'"{seeds}"').replace("Pendulum-v5", 'Pendulum-v5", "Pendulum-v1')
    assert plan.seeds_per_job(suites.read(write(tmp_path, text)), wanted, cuda, workers) == batch


def test_the_number_of_a_job_does_not_depend_on_what_is_done(tmp_path):
    suite, out = write(tmp_path, SUITE.replace('"0:2"', '"0:15"')), tmp_path / "out"
    before = jobs(suite, out)
    assert [job.seeds[0] for job in before] == [0, 5, 10]
    for number in (2, 1):
        store(before[number], "running")
        assert [job.id for job in jobs(suite, out)] == [job.id for job in before]
    assert [job.state for job in jobs(suite, out)] == ["new", "started", "started"]


@pytest.mark.parametrize("text", [SUITE, VARIED])
def test_new_seeds_of_a_suite_are_new_jobs_and_the_old_ones_stay(tmp_path, text):
    out = tmp_path / "out"
    (first,) = jobs(write(tmp_path, text), out)
    store(first, "finished")
    planned = jobs(write(tmp_path, text.replace('"0:2"', '"0:4"')), out, seeds_per_job=4)
    assert [(job.seeds, job.state) for job in planned] == [([0, 1], "finished"), ([2, 3], "new")]


@pytest.mark.parametrize("left", ["nothing", "a checkpoint", "a lock"])
def test_a_run_that_left_nothing_does_not_keep_its_seeds_together(tmp_path, left):
    """As one that took too much memory, and is asked for again with fewer seeds per job."""
    suite, out = write(tmp_path, SUITE.replace('"0:2"', '"0:4"')), tmp_path / "out"
    (whole,) = jobs(suite, out, seeds_per_job=4)
    store(whole, "running", step=0)
    with contextlib.ExitStack() as stack:
        if left == "a checkpoint":
            (whole.folder / "checkpoint").mkdir()
            (whole.folder / "checkpoint" / "0.safetensors").write_bytes(b"")
        if left == "a lock":
            stack.enter_context(FileLock(whole.folder / ".lock"))
        seeds = [job.seeds for job in jobs(suite, out, seeds_per_job=2)]
        assert plan.is_running(whole.folder) == (left == "a lock")
    assert seeds == ([[0, 1], [2, 3]] if left == "nothing" else [[0, 1, 2, 3]])
    planned = jobs(suite, out, seeds_per_job=2)
    plan.clear([replace(job, state="finished") for job in planned], out)  # these have no need of its seeds
    assert whole.folder.exists()
    plan.clear(planned, out)
    assert whole.folder.exists() == (left == "a checkpoint") and not list(out.glob("damaged/*/config.json"))


def test_files_that_have_changed_since_jobs_were_finished_are_named(tmp_path, capsys):
    text = SUITE.replace("[algorithms.sac]", '[algorithms.mine]\nscript = "mine.py"')
    script = plan.ROOT / "single_file" / "sac.py"
    (tmp_path / "mine.py").write_text(script.read_text().replace('Run(args, "sac")', 'Run(args, "mine")'))
    suite, out = write(tmp_path, text), tmp_path / "out"
    for job, status in zip(jobs(suite, out, seeds_per_job=1), ("finished", "interrupted"), strict=True):
        store(job, status, script_digest=plan.digest_of_file(tmp_path / "mine.py"))
    assert [job.changed for job in jobs(suite, out, seeds_per_job=1)] == [(), ()]
    with (tmp_path / "mine.py").open("a") as file:
        file.write("# changed\n")
    planned = jobs(suite, out, seeds_per_job=1)
    assert [job.changed for job in planned] == [(tmp_path / "mine.py",), ()]
    plan.warn_of_changes(planned * 2)
    err = capsys.readouterr().err
    assert (
        f"{tmp_path / 'mine.py'} has changed or moved since 2 of these jobs were finished" in err
        and err.count("\n") == 1
    )
    data, path = tmp_path / "data.hdf5", planned[0].folder / "config.json"
    for seconds, found in ((-9.0, ()), (9.0, (data,))):
        data.touch()
        os.utime(data, times=(0, path.stat().st_mtime + seconds))
        assert plan.changes({}, path, script, str(data)) == found


def test_runs_of_a_version_that_lacked_an_argument_are_those_of_the_suite(tmp_path):
    out = tmp_path / "out"
    (first,) = jobs(write(tmp_path), out)
    store(first, "finished", identity={k: v for k, v in first.identity.items() if k != "stop_when_solved"})
    planned = jobs(write(tmp_path, SUITE.replace('"0:2"', '"0:4"')), out, seeds_per_job=4)
    assert [(job.seeds, job.state) for job in planned] == [([0, 1], "finished"), ([2, 3], "new")]


def test_another_configuration_in_the_folder_is_refused(tmp_path):
    (job,) = jobs(write(tmp_path, steps=4_000), tmp_path / "out")
    store(job, "finished")
    with pytest.raises(UserError, match=r"another configuration \(total_steps: 4000 there, 900 here\)"):
        jobs(write(tmp_path, steps=900), tmp_path / "out")
    for seeds in ("0:5", "2:4"):  # in other folders than the one that is there, but in the same report
        other = SUITE.replace('"0:2"', f'"{seeds}"')
        with pytest.raises(UserError, match=r"out/seeds_0-1/\S+/sac/default holds .* \(total_steps: 4000 there"):
            jobs(write(tmp_path, other, steps=900), tmp_path / "out")
        assert len(jobs(write(tmp_path, other, steps=4_000), tmp_path / "out")) > 0


@pytest.mark.parametrize(("seeds", "refused"), [("0:4", True), ("2:6", False)])
def test_seeds_that_were_trained_on_another_device_are_not_trained_again(tmp_path, seeds, refused):
    """No report would take a seed twice, and others than these go on in jobs of their own."""
    text = SUITE.replace('"0:2"', f'"{seeds}"')
    (job,) = jobs(write(tmp_path), tmp_path / "out")
    store(job, "finished", identity=job.identity | {"device": "cuda"})
    if refused:
        with pytest.raises(UserError, match=r"another configuration \(device: cuda there, cpu here\)"):
            jobs(write(tmp_path, text), tmp_path / "out", seeds_per_job=4)
    else:
        assert [job.seeds for job in jobs(write(tmp_path, text), tmp_path / "out", seeds_per_job=4)] == [[2, 3, 4, 5]]


@pytest.mark.parametrize(("taus", "refused"), [("0.01, 0.02", True), ("0.02, 0.03", False)])
def test_grids_that_share_a_setting_are_not_trained_twice(tmp_path, taus, refused):
    text = SUITE + "vary = { tau = [0.005, 0.01] }\n"
    (job,) = jobs(write(tmp_path, text), tmp_path / "out")
    store(job, "finished")
    other = text.replace("0.005, 0.01", taus).replace('"0:2"', '"0:4"')
    if refused:
        with pytest.raises(UserError, match=r"another configuration \(vary: \["):
            jobs(write(tmp_path, other), tmp_path / "out", seeds_per_job=4)
    else:
        assert [job.seeds for job in jobs(write(tmp_path, other), tmp_path / "out", seeds_per_job=4)] == [[0, 1, 2, 3]]
        config = json.loads((path := job.folder / "config.json").read_text())
        path.write_text(json.dumps(config | {"identity": job.identity | {"device": "cuda"}}))
        assert [job.seeds for job in jobs(write(tmp_path, other), tmp_path / "out", seeds_per_job=4)] == [[0, 1, 2, 3]]


def test_a_job_of_an_array_reads_no_table_but_its_own(tmp_path, monkeypatch, capsys):
    """Its plan would read those of all jobs each time."""
    path, out = write(tmp_path, SUITE), tmp_path / "out"
    for job in (planned := jobs(path, out, seeds_per_job=1)):
        store(job, "finished", script_digest="another")
        (job.folder / "eval.parquet").write_bytes(b"no table")
    read, seen, reading = [], [], plan.read_table
    monkeypatch.setattr(plan, "read_table", lambda path, *more: read.append(path.parent) or reading(path, *more))
    monkeypatch.setattr(sweep, "run_one", lambda args, suite, out, job, gpus: seen.append(job.state))
    sweep.main(sweep.Args(str(path), out=out, seeds_per_job=1, job=1, device="cpu"))
    assert seen == ["damaged"] and read == [planned[1].folder]
    assert "has changed" not in capsys.readouterr().err  # it is trained anew


def test_the_plan_of_an_array_tells_how_all_jobs_are(tmp_path, capsys):
    path, out = write(tmp_path, SUITE), tmp_path / "out"
    for job in jobs(path, out, seeds_per_job=1):
        store(job, "finished")
        (job.folder / "eval.parquet").write_bytes(b"no table")
    sweep.main(sweep.Args(str(path), out=out, seeds_per_job=1, job=1, device="cpu", dry_run=True))
    assert "2 jobs, 0 finished" in capsys.readouterr().out


def test_an_array_keeps_the_suite_as_it_is_now(tmp_path, monkeypatch, capsys):
    """And says that its numbers may be those of other jobs, and that a job takes one GPU of several."""
    environments = []
    monkeypatch.setattr(engines, "run_job", lambda *job: environments.append(job[4]) or engines.Outcome("finished", 1))
    out, args = tmp_path / "out", SimpleNamespace(job=0, threads=1, retries=0)
    out.mkdir()
    for text in (SUITE, SUITE.replace('"0:2"', '"0:4"')):
        assert "suite.toml has changed" not in capsys.readouterr().err
        path = write(tmp_path, text)
        sweep.run_one(args, suites.read(path), out, jobs(path, out)[0], [])
        assert (out / "suite.toml").read_bytes() == path.read_bytes()
    assert "suite.toml has changed since" in capsys.readouterr().err
    for gpus, said in ((["3"], False), (["3", "5"], True)):
        sweep.run_one(args, suites.read(path), out, jobs(path, out)[0], gpus)
        assert environments[-1]["CUDA_VISIBLE_DEVICES"] == "3"
        assert ("warning: of 2 GPUs, the job takes the first" in capsys.readouterr().err) == said
    assert json.loads((out / "sweep.json").read_text())["seeds"] == [0, 1, 2, 3]


def test_a_folder_with_a_report_takes_no_sweep(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "scores.csv").write_text("")
    with pytest.raises(UserError, match="out holds a report, which would hide the runs: choose another folder"):
        sweep.main(sweep.Args(str(write(tmp_path)), out=tmp_path / "out", device="cpu"))


def test_a_job_of_a_varied_algorithm_trains_every_setting_with_its_seeds(tmp_path):
    (job,) = jobs(write(tmp_path, VARIED), tmp_path / "out")
    place = job.command.index("--vary")
    assert job.command[place : place + 3] == ["--vary", "critic_lr=0.0001,0.0003,0.001", "tau=0.005,0.01"]
    assert job.identity["vary"] == ["critic_lr=0.0001,0.0003,0.001", "tau=0.005,0.01"]
    assert (job.seeds, job.runs) == ([0, 1], 12) and job.name.endswith("seeds 0-1, 6 settings")
    (plain,) = jobs(write(tmp_path), tmp_path / "other")
    assert "--vary" not in plain.command and plain.runs == 2 and plain.id != job.id


def test_a_varied_job_is_resumed_with_its_settings_only(tmp_path):
    suite, out = write(tmp_path, VARIED), tmp_path / "out"
    (job,) = jobs(suite, out)
    store(job, "interrupted")
    assert [job.state for job in jobs(suite, out)] == ["started"]
    for text in (SUITE, VARIED.replace("0.01]", "0.02]")):
        with pytest.raises(UserError, match=r"another configuration \(vary: \["):
            jobs(write(tmp_path, text), out)


def test_the_plan_estimates_time_and_disk_from_earlier_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(display, "RESULTS", tmp_path / "none")
    (trained,) = jobs(write(tmp_path, steps=4_000), tmp_path / "runs")
    store(trained, "finished")
    earlier = plan.earlier_runs(tmp_path)
    second = '[algorithms.dsac_t]\n[algorithms."2x"]\nscript = "sac"'
    suite = write(tmp_path, SUITE.replace("[algorithms.sac]", second), 8_000)
    sweep.main(sweep.Args(str(suite), tmp_path / "elsewhere", True, device="cpu", seeds_per_job=2))
    said = capsys.readouterr().out
    assert "no earlier run to tell" in said and "2 jobs, 0 finished" in said and "about 2 min" in said
    assert "of other sizes" not in said
    assert not (tmp_path / "elsewhere").exists()
    _, longer = jobs(suite, tmp_path / "elsewhere")
    assert estimate(longer, earlier) == pytest.approx((2 * 64.0, 2 * 1_000))
    (wider,) = jobs(write(tmp_path, SUITE.replace('"0:2"', '"0:4"'), 4_000), tmp_path / "x")
    assert estimate(wider, earlier) == pytest.approx((2 * 64.0, 2 * 1_000))
    larger = write(tmp_path, SUITE.replace("[algorithms.sac]", "[algorithms.sac.flags]\nhidden = [32, 32]"), 8_000)
    sweep.main(sweep.Args(str(larger), tmp_path / "elsewhere", True, device="cpu", seeds_per_job=2))
    assert "results/; some have networks or batches of other sizes, and tell little)" in capsys.readouterr().out


def test_without_earlier_runs_the_plan_estimates_from_stored_reports(tmp_path, capsys, monkeypatch):
    (plain,) = jobs(write(tmp_path), tmp_path / "runs")
    (varied,) = jobs(write(tmp_path, VARIED), tmp_path / "varied")
    for job, seconds in ((plain, 596.0), (varied, 1_196.0)):
        store(job, "finished", seconds=seconds)
        (tmp_path / "results" / job.folder.parents[3].name).mkdir(parents=True)
        write_sources(tmp_path / "results" / job.folder.parents[3].name, load([job.folder]).sources)
        shutil.rmtree(job.folder)
    (tmp_path / "results" / "damaged").mkdir()
    (tmp_path / "results" / "damaged" / "sources.json").write_text("[")
    stored = sorted(plan.earlier_runs(tmp_path, tmp_path / "results"), key=plan.runs_of)
    assert list(map(plan.runs_of, stored)) == [2, 12] and not plan.earlier_runs(tmp_path)
    assert estimate(plain, stored[:1]) == pytest.approx((600.0, 1_000))
    assert estimate(varied, stored[1:]) == pytest.approx((1_200.0, 1_000))
    monkeypatch.setattr(display, "RESULTS", tmp_path / "results")
    sweep.main(sweep.Args(str(write(tmp_path)), tmp_path / "new" / "out", True, device="cpu", seeds_per_job=2))
    assert "time about 10 min, disk at most about 0.00 GiB (from earlier runs here" in capsys.readouterr().out
    (own,) = jobs(write(tmp_path, SUITE.replace('"0:2"', '"2:4"'), steps=2_000), tmp_path / "own")  # less like it
    store(own, "finished")
    assert estimate(plain, plan.earlier_runs(tmp_path, tmp_path / "results"))[0] == pytest.approx(32.0)


def test_stored_reports_of_this_project_tell_how_long_its_suites_take(tmp_path):
    stored = plan.earlier_runs(tmp_path, plan.RESULTS)
    suite = suites.read(suites.find("mujoco_short"))
    planned = plan.plan(suite, tmp_path / "out", 5, "cpu", {})
    assert len(stored) > 100 and all(estimate(job, stored) for job in planned)


def test_what_comes_before_the_steps_is_no_part_of_their_speed(tmp_path):
    (trained,) = jobs(write(tmp_path, steps=4_000), tmp_path / "runs")
    store(trained, "finished", phase_seconds=3_000.0)
    (longer,) = jobs(write(tmp_path, steps=8_000), tmp_path / "longer")
    assert estimate(longer, plan.earlier_runs(tmp_path))[0] == pytest.approx(2 * 64.0 + 3_000.0)


def test_a_run_of_a_few_steps_does_not_tell_how_long_others_take(tmp_path):
    (trained,) = jobs(write(tmp_path, steps=1), tmp_path / "runs")
    store(trained, "finished")
    (longer,) = jobs(write(tmp_path, steps=4_000), tmp_path / "longer")
    assert estimate(longer, plan.earlier_runs(tmp_path)) is None


def test_the_command_of_an_array_makes_the_plan_that_is_shown(tmp_path, capsys):
    """A stored run of five seeds stays a job of its own beside batches of two."""
    suite, out = write(tmp_path, SUITE.replace('"0:2"', '"0:5"')), tmp_path / "out"
    (first,) = jobs(suite, out, seeds_per_job=5)
    store(first, "finished")
    write(tmp_path, SUITE.replace('"0:2"', '"0:10"'))
    sweep.main(sweep.Args(str(suite), out, True, device="cpu", seeds_per_job=2))
    assert "--seeds-per-job 2 --job 0 to --job 3\n" in capsys.readouterr().out
    assert [job.seeds for job in jobs(suite, out, seeds_per_job=2)] == [[0, 1, 2, 3, 4], [5], [6, 7], [8, 9]]


def test_progress_is_one_line_a_job_with_the_score_where_there_is_one(tmp_path, monkeypatch, capsys):
    both = [jobs(write(tmp_path), tmp_path / name)[0] for name in ("a", "b")]
    for job, score in zip(both, ("", "success 7.0"), strict=True):
        job.folder.mkdir(parents=True)
        (job.folder / "progress.json").write_text(json.dumps({"step": 500, "score": score}))
    (early,) = jobs(write(tmp_path), tmp_path / "c")
    early.folder.mkdir(parents=True)
    progress = {"step": 0, "score": "", "phase": "dynamics, iteration 1,200"}
    (early.folder / "progress.json").write_text(json.dumps(progress))
    both.append(early)
    (later,) = jobs(write(tmp_path), tmp_path / "d")
    later.folder.mkdir(parents=True)
    progress = {"step": 500, "score": "success 7.0", "phase": "evaluating"}
    (later.folder / "progress.json").write_text(json.dumps(progress))
    both.append(later)
    shown = display.Display(both, 1)
    shown.terminal, shown.said = False, -1_000.0  # a minute and more ago
    shown.update()
    shown.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": 500 of 1,000 steps") and lines[1].endswith(": 500 of 1,000 steps, success 7.0")
    assert lines[2].endswith(": dynamics, iteration 1,200")
    assert lines[3].endswith(": 500 of 1,000 steps, evaluating")


def test_on_a_cpu_the_time_grows_with_the_number_of_settings(tmp_path):
    (plain,) = jobs(write(tmp_path), tmp_path / "plain")
    (varied,) = jobs(write(tmp_path, VARIED), tmp_path / "varied")
    store(plain, "finished")
    assert estimate(varied, plan.earlier_runs(tmp_path)) == pytest.approx((6 * 64.0, 6 * 1_000))
    store(varied, "finished")
    (config,) = [config for config in plan.earlier_runs(tmp_path) if config["varied"]]
    assert estimate(plain, [config])[0] == pytest.approx(64.0 / 6)


def test_a_run_is_like_a_job_by_its_arguments_but_not_by_the_numbers_of_its_seeds(tmp_path):
    """Where an earlier version lacks an argument, its default counts; `removed` is an argument that there was."""
    (job,) = jobs(
        write(tmp_path, SUITE.replace("[algorithms.sac]", "[algorithms.sac]\nflags = { tau = 0.5 }")), tmp_path / "a"
    )
    store(job, "finished", seconds=100.0)
    (alike,) = plan.earlier_runs(tmp_path)
    identity = alike["identity"] | {"seeds": [8, 9], "removed": 1}
    alike["identity"] = {name: value for name, value in identity.items() if name != "log_every"}
    earlier = {name: value for name, value in job.identity.items() if name != "tau"}
    other = alike | {"identity": earlier, "seconds": 500.0}
    assert estimate(job, [other, alike])[0] == estimate(job, [alike])[0] == pytest.approx(104.0, abs=10)


def test_only_jobs_that_will_run_need_their_datasets(tmp_path, monkeypatch):
    text = """
purpose = "a test"
tasks = ["local/a-v0", "local/b-v0"]
seeds = "0:2"
total_steps = 1_000
eval_every = 500
eval_episodes = 1
[algorithms.bc]
"""
    suite, out, ran = write(tmp_path, text), tmp_path / "out", []
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    finished = engines.Outcome("finished", 1, 0)
    monkeypatch.setattr(engines, "run_job", lambda command, *rest: ran.append(command) or finished)
    (tmp_path / "local" / "a-v0").mkdir(parents=True)

    def run(**flags) -> None:
        sweep.main(sweep.Args(str(suite), out, device="cpu", workers=1, **flags))

    run(job=0)
    for flags in ({"job": 1}, {}):
        with pytest.raises(UserError, match=r"^--dataset: local/b-v0 is not in .*make it: .*collect b-v0 "):
            run(**flags)
    assert len(ran) == 1
    _, second = jobs(suite, out)
    store(second, "finished")
    run()
    assert len(ran) == 2 and all("local/a-v0" in command for command in ran)


@pytest.mark.parametrize(
    ("gpus", "expected"), [(["3", "5"], ["3", "3", "5", "5"]), (["GPU-a"], ["GPU-a"] * 4), ([], [])]
)
def test_jobs_at_the_same_time_are_spread_evenly_over_gpus(tmp_path, monkeypatch, gpus, expected):
    """Four workers train at the same time; a fifth job gets the GPU of the one that ends first."""
    seen, together, fifth = {}, threading.Barrier(4), threading.Event()

    def run_job(command, folder, log, stop, environment, retries):
        (name,) = command
        seen[name] = environment
        if name == "fifth":
            fifth.set()
        else:
            together.wait(10)
            assert name == "third" or fifth.wait(10)
        return engines.Outcome("finished", 1)

    monkeypatch.setattr(engines, "run_job", run_job)
    with engines.local(4, gpus, 0) as engine:
        given = (tmp_path, tmp_path, tmp_path, {"OMP_NUM_THREADS": "2"})
        jobs = [engine.submit([name], *given) for name in ("first", "second", "third", "fourth", "fifth")]
        assert [job.result(10).status for job in jobs] == ["finished"] * 5
    assert {environment["OMP_NUM_THREADS"] for environment in seen.values()} == {"2"}
    names = {name: environment.get("CUDA_VISIBLE_DEVICES") for name, environment in seen.items()}
    assert names["fifth"] == names["third"] and (names.pop("fifth") in gpus) == bool(gpus)
    assert sorted(filter(None, names.values())) == expected


@pytest.mark.parametrize(
    ("visible", "device", "expected"),
    [
        (None, "cuda", ["0", "1"]), ("", "cuda", ["0", "1"]), ("5,7,9", "cuda", ["5", "7", "9"]),
        ("5,7,9", "cuda:1", ["7"]), (None, "cuda:1", ["1"]), ("GPU-a,GPU-b", "auto", ["GPU-a", "GPU-b"]),
    ],
)  # fmt: skip
def test_the_gpus_of_a_sweep_are_those_that_it_may_see(monkeypatch, visible, device, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert sweep.visible_gpus(device) == expected


@pytest.mark.parametrize(("gpus", "expected"), [(["7", "5"], {"CUDA_VISIBLE_DEVICES": "7"}), ([], {})])
def test_a_job_of_an_array_sees_the_first_gpu_alone(tmp_path, monkeypatch, gpus, expected):
    seen, path = [], write(tmp_path)
    finished = engines.Outcome("finished", 1)
    monkeypatch.setattr(engines, "run_job", lambda *job: seen.append(job[4]) or finished)
    (tmp_path / "out").mkdir()
    (job,) = jobs(path, tmp_path / "out", seeds_per_job=2)
    sweep.run_one(SimpleNamespace(threads=3, retries=0), suites.read(path), tmp_path / "out", job, gpus)
    assert seen == [{"OMP_NUM_THREADS": "3"} | expected]


@pytest.mark.parametrize("visible", [None, ""])
def test_a_plan_for_gpus_that_are_elsewhere_is_one_for_a_single_gpu(tmp_path, monkeypatch, capsys, visible):
    """The machine that plans has none, and as many cores as it likes."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sweep, "core_count", lambda: 64)
    suite = write(tmp_path, SUITE.replace('"0:2"', '"0:200"'))
    for per_gpu in (1, 3):
        sweep.main(sweep.Args(str(suite), tmp_path / "out", True, device="cuda", per_gpu=per_gpu))
        assert f" finished; {per_gpu} at a time, with local;" in capsys.readouterr().out


def test_a_job_that_failed_without_a_log_says_no_place(tmp_path, capsys):
    (job,) = jobs(write(tmp_path, SUITE), tmp_path / "out", seeds_per_job=2)
    shown = display.Display([job], 1)
    shown.finish(job, engines.Outcome("failed", 0))
    shown.finish(job, engines.Outcome("failed", 1, 1, tmp_path / "log"))
    shown.close()
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"failed      {job.name}" and second == f"{first}: see {tmp_path / 'log'}"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(40, "40 s"), (720, "12 min"), (12_000, "3 h 20 min"), (5_370, "1 h 30 min")]
)
def test_durations_are_shown_in_the_unit_that_fits(seconds, shown):
    assert display.clock(seconds) == shown


@pytest.mark.parametrize(
    ("seeds", "entries", "count"),
    [
        (4, "", 0),
        (4, "[algorithms.td3]", 2),
        (5, "[algorithms.td3]", 0),
        (2, "[algorithms.sac.vary]\ntau = [0.1, 0.2]", 2),
    ],
)
def test_a_plan_says_if_its_seeds_can_decide_nothing(seeds, entries, count, tmp_path, capsys):
    text = SUITE.replace('"0:2"', f'"0:{seeds}"').replace(
        '["InvertedPendulum-v5"]', '["InvertedPendulum-v5", "Hopper-v5"]'
    )
    suite = write(tmp_path, f"{text}\n{entries}\n")
    sweep.main(sweep.Args(str(suite), tmp_path / "out", True, device="cpu"))
    said = capsys.readouterr().out
    assert ("note:" in said) == bool(count)
    assert not count or f"note: {seeds} seeds cannot decide any of the {count} differences on single tasks" in said


def test_a_sweep_until_it_is_decided_plans_the_most_seeds_that_it_can_take(tmp_path, capsys):
    suite = write(
        tmp_path, SUITE.replace("[algorithms.sac]", "[algorithms.dsac_t]\n[algorithms.td3]\n[algorithms.sac]")
    )
    look = {"until_decided": ("sac", "td3"), "max_seeds": 23, "seeds_per_look": 5}
    sweep.main(sweep.Args(str(suite), tmp_path / "out", True, device="cpu", **look))
    said = capsys.readouterr().out
    assert "sac on InvertedPendulum-v5, seeds 15-19" in said and "dsac_t" not in said and "8 jobs" in said
    with pytest.raises(UserError, match="--max-seeds must be at least 10, two batches of --seeds-per-look; got 9"):
        sweep.main(sweep.Args(str(suite), tmp_path / "out", True, device="cpu", **look | {"max_seeds": 9}))
    assert said.endswith("this is the most that it can take: 5 seeds are added at a time, until the pair is decided\n")
    assert not (tmp_path / "out").exists()


def test_a_damaged_run_that_a_kill_left_half_set_aside_is_found_by_no_report(tmp_path, monkeypatch):
    run = tmp_path / "seeds_0-1" / "Hopper-v5" / "sac" / "default"
    (run / "checkpoint").mkdir(parents=True)
    (run / "checkpoint" / "000000000010.json").write_text("{}")
    (run / "config.json").write_text("{")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "move", killed)
        with pytest.raises(KeyboardInterrupt):
            plan.set_aside(run, tmp_path)
    assert not list(tmp_path.rglob("config.json")) and plan.state_of(run) == "damaged"
    plan.set_aside(run, tmp_path)
    assert not run.exists() and len(list((tmp_path / "damaged").rglob("config.damaged.json"))) == 1
