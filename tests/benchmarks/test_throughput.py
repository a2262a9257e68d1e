"""The measurements of speed and their arguments; the scripts themselves do not run here."""

import importlib.util
import json
import math
import subprocess
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import h5py
import numpy as np
import pandas as pd
import psutil
import pytest
import torch

from algos.errors import UserError
from benchmarks import (
    discrete_speed,
    env_speed,
    goal_speed,
    model_speed,
    offline_speed,
    online_speed,
    peer_speed,
    throughput,
    timing,
)
from benchmarks.online_speed import busy, measure_on_policy, measure_scripts, measure_streams
from benchmarks.throughput import Args, main
from benchmarks.timing import random_file, thread_variables


def test_busy_processes_live_as_long_as_the_measurement():
    before = set(psutil.Process().children())
    with busy(2):
        assert len(set(psutil.Process().children()) - before) == 2
    assert set(psutil.Process().children()) <= before


def test_every_figure_is_measured_again_beside_busy_processes(monkeypatch):
    """Ours fall to 60 of 100 steps/s, the peers' to 20 of 50."""
    others = []

    def speed(free: float, loaded: float) -> float:
        return loaded if others else free

    class Process:
        def __init__(self, command):
            others.append(command)

        def kill(self):
            others.pop()

        def wait(self):
            pass

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(online_speed, "script_rate", lambda *args: (speed(100, 60), 7.0))
    monkeypatch.setattr(online_speed, "peer_rate", lambda *args: speed(50, 20))
    rows = {row["name"]: row for row in measure_scripts(Args(rounds=3, beside=1, device="cpu"))}
    ours = rows["sac, 1 seed"]
    assert (ours["rate"], ours["beside 1"], ours["kept"]) == (100, 60, 0.6)
    assert (ours["ratio to sbx"], ours["ratio to sbx, beside 1"]) == (2.0, 3.0)
    assert all({"beside 1", "kept"} <= set(row) for row in rows.values())
    assert rows["sb3 sac, 1 seed"]["kept"] == 0.4
    assert not others

    rows = measure_scripts(Args(rounds=1, peers=False, device="cpu"))
    assert not any({"beside 0", "kept"} & set(row) for row in rows)


def test_on_policy_figures_are_of_whole_iterations_after_the_first(monkeypatch):
    """Ours do 2,048 steps in 2 seconds with one seed, and in 2 more with each factor of 2, after a first one of 30.

    TRPO's log has a row for every 1,024 steps.
    """

    def log(script, args, seeds, *flags, warm_up):
        each = 1024 if script == "trpo" else 2048
        index = range(each, warm_up + args.steps + 1, each)
        seconds = 2 * (1 + math.log2(seeds)) * each / 2048
        return pd.Series([30 + number * seconds for number in range(len(index))], index=index)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(online_speed, "script_log", log)
    monkeypatch.setattr(online_speed, "script_rate", lambda script, *args: ({"sac": 100}.get(script, 80), 7.0))
    monkeypatch.setattr(online_speed, "peer_rate", lambda *args: 512)
    rows = {row["name"]: row for row in measure_on_policy(Args(rounds=3, steps=3_000, device="cpu"))}
    assert (rows["ppo, 1 seed"]["rate"], rows["ppo, 1 seed"]["ratio to sb3"]) == (1024, 2.0)
    assert (rows["ppo, 8 seeds"]["run-steps/s"], rows["ppo, 8 seeds"]["ratio to sb3"]) == (2048, 4.0)
    assert rows["trpo, 8 seeds"]["run-steps/s"] == 2048
    assert rows["ppo, 64 seeds"]["cost"] == 1.0
    assert rows["ppo, 8 seeds"]["cost"] == pytest.approx((64 / 7) / (8 / 4))
    assert rows["mdpo_off_policy, 1 seed"]["time / sac"] == 1.25


def test_model_based_figures_are_of_epochs_updates_and_rollouts(monkeypatch):
    """An epoch takes 10 seconds for each seed, the plain one 20 and OfflineRL-Kit's 40.

    500 updates take 2 seconds, and a generation 3.
    """

    def log(script, args, seeds, *flags, warm_up, metric="seconds"):
        assert Path(flags[flags.index("--dataset") + 1]).stem.split("_")[-1] in args.env_id.lower()
        assert ("--never-terminates" in flags) != ("true" in flags)
        if metric == "dynamics/seconds":
            return pd.Series([10.0 * seeds * epoch for epoch in (1, 2, 3)], index=[387, 774, 1161])
        rollouts = int(flags[flags.index("--rollouts") + 1]) if "--rollouts" in flags else 0
        generations = 2 * 3 * (rollouts > 1_000)
        return pd.Series([7.0, 9.0 + generations], index=[500, 1_000])

    monkeypatch.setattr(model_speed, "script_log", log)
    rates = {"ensemble": 387 / 20, "kit": 387 / 40, "edac": 125.0, "mopo": 250.0, "sac": 200.0}
    monkeypatch.setattr(model_speed, "peer_rate", lambda library, args, flag, name, *more: rates[name])
    given = Args(rounds=1, device="cpu", offlinerl_kit=Path("kit"))
    rows = {row["name"]: row for row in model_speed.measure_ensembles(given) + model_speed.measure_model_based(given)}
    assert rows["ensemble: epochs, 1 seed"]["ratio to plain"] == pytest.approx(2.0)
    assert rows["ensemble: epochs, 1 seed"]["ratio to offlinerl_kit"] == pytest.approx(4.0)
    assert rows["ensemble: epochs, 5 seeds"]["ratio per seed"] == pytest.approx(1.0)
    assert rows["mopo: updates alone, 1 seed"]["ratio to sac"] == pytest.approx(250 / 200)
    assert rows["ravl: updates, 1 seed"]["ratio to plain"] == pytest.approx(2.0)
    with_model = rows["mobile: updates with a model, 1 seed"]
    assert with_model["rows of rollouts/s"] == pytest.approx(250_000 / 3)
    assert with_model["share of an epoch"] == pytest.approx(3 / (3 + 4))
    assert rows["mopo: updates with MuJoCo itself, 1 seed"]["share of an epoch"] == pytest.approx(3 / (3 + 4))


def test_the_state_of_played_transitions_is_in_their_observations(tmp_path):
    """MuJoCo, set to the observation of a row, makes the next one, up to the rounding of stored numbers."""
    with h5py.File(model_speed.played_file(tmp_path / "played.hdf5")) as file:
        rows = {name: file[name][:50].astype(float) for name in file}
    env = gym.make("HalfCheetah-v5").unwrapped
    for step in (10, 40):
        obs = rows["observations"][step]
        env.reset(seed=0)
        env.set_state(np.concatenate([[0.0], obs[:8]]), obs[8:])
        following, reward, *_ = env.step(rows["actions"][step])
        assert following == pytest.approx(rows["observations"][step + 1], abs=1e-3)
        assert reward == pytest.approx(rows["rewards"][step], abs=1e-3)


@pytest.mark.parametrize("algorithm", ["sac", "mopo"])
def test_updates_alone_are_those_of_an_agent(algorithm, monkeypatch):
    monkeypatch.setattr(peer_speed, "compiled", lambda function, *args, **more: function)
    assert peer_speed.stored_seconds(peer_speed.Args("stored", algorithm=algorithm, warm_up=1, steps=2)) > 0


@pytest.mark.parametrize("able", [True, False])
def test_bfloat16_is_measured_where_the_processor_has_it(able, monkeypatch, capsys):
    """Elsewhere, its figures would be those of float32."""
    monkeypatch.setattr(timing, "multiplies_bf16", lambda: able)
    assert timing.ways_of_updates(True) == [()] and not capsys.readouterr().out
    assert timing.ways_of_updates(False) == [(), ("--compile",), ("--compile", "--bf16")][: 2 + able]
    assert ("bfloat16 is left out" in capsys.readouterr().out) == (not able)


def test_figures_with_goals_are_of_updates_and_their_sampling(monkeypatch):
    """Ten updates a second, twenty with RvS; OGBench makes five; a batch takes 10 ms, and 20 with RvS."""
    monkeypatch.setattr(goal_speed, "ours", lambda *args: 20.0 if "mse" in args else 10.0)
    monkeypatch.setattr(goal_speed, "theirs", lambda *args: 5.0)
    monkeypatch.setattr(goal_speed, "sampling_seconds", lambda *args: 0.02 if "mse" in args[3] else 0.01)
    rows = {row["name"]: row for row in goal_speed.measure_goals(Args(rounds=1, device="cpu", ogbench=Path("impls")))}
    published, small = rows["hiql --compile 512 x 3, batch 1024, 1 seed"], rows["hiql 256 x 3, batch 256, 5 seeds"]
    assert (published["ratio to ogbench"], published["share of sampling"]) == (2.0, pytest.approx(0.1))
    assert (small["ratio to ogbench"], "share of sampling" in small) == (10.0, False)
    assert rows["gcbc --compile 512 x 3, batch 1024, 1 seed"]["share of sampling"] == pytest.approx(0.1)
    assert rows["gcbc as RvS --compile 1024 x 2, batch 1024, 1 seed"]["share of sampling"] == pytest.approx(0.4)
    assert {"crl", "qrl", "ota"} <= {name.split()[0] for name in rows}


def test_sampling_is_timed_for_every_method_with_goals(tmp_path, monkeypatch):
    """With the flags of RvS, goals are replaced too."""
    file = random_file(tmp_path / "random.hdf5", 2_000, 2, 2)
    monkeypatch.setattr(goal_speed, "compiled", lambda function, *args, **more: function)
    methods = (*goal_speed.METHODS, *goal_speed.OTHERS)
    for method, flags in [*((method, ("--compile",)) for method in methods), ("gcbc", goal_speed.RVS)]:
        assert goal_speed.sampling_seconds(Args(device="cpu", threads=0), file, method, flags, count=1) > 0


@pytest.mark.parametrize(("threads", "variables"), [(0, {}), (2, {"OMP_NUM_THREADS": "2"})])
def test_scripts_and_peers_choose_their_threads_unless_told(threads, variables):
    assert thread_variables(Args(threads=threads)) == variables


def test_the_cost_of_a_stream_is_told_from_8_seeds_on(monkeypatch):
    """Two seeds or eight take twice or four times as long as one, and the last third twice as long as the first."""

    def log(script, args, seeds, *flags):
        factor = {1: 1, 2: 2, 8: 4}[seeds]
        return pd.Series({step: factor * (step + max(step - 4_000, 0)) for step in range(0, 5_001, 500)})

    monkeypatch.setattr(online_speed, "script_log", log)
    few = measure_streams(Args("streams", stream_seeds=(1, 2), rounds=1))
    assert [row["rate"] for row in few] == [0.75, 0.375, 0.75] and all(math.isnan(row["cost"]) for row in few)
    assert [row["run-steps/s"] for row in few] == [0.75] * 3 and [row["late / early"] for row in few] == [0.5] * 3
    assert [row["seconds to step 2,000"] for row in few] == [2_000, 4_000, 2_000]
    rows = measure_streams(Args("streams", stream_seeds=(1, 8), rounds=1))
    assert rows[1]["cost"] == 1.0 and math.isnan(rows[0]["cost"])


def test_offline_figures_are_of_updates_and_their_sampling(monkeypatch):
    """In three rounds, iql.py makes 200, 100 and 300 updates a second with one seed, and d3rlpy 50, 80 and 100.

    iql.py makes twice as many if it is compiled, other rows have half of 200, and sampling alone does 1,000.
    """
    rounds, theirs = {(): iter((200, 100, 300)), ("--compile",): iter((400, 200, 600))}, iter((50, 80, 100))

    def log(script, args, seeds, *flags, warm_up):
        kind = ("--compile",) if "--compile" in flags else ()
        rate = next(rounds[kind]) if (script, seeds) == ("iql", 1) else 100
        return pd.Series({step: 7 + (step - 500) / rate for step in range(500, warm_up + args.steps + 1, 500)})

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(offline_speed, "random_file", lambda file: file)
    monkeypatch.setattr(offline_speed, "script_log", log)
    monkeypatch.setattr(offline_speed, "peer_rate", lambda *args: next(theirs))
    monkeypatch.setattr(offline_speed, "sampling_rate", lambda args: 1_000)
    found = offline_speed.measure_offline(Args("offline", rounds=3, threads=2, device="cpu"))
    rows = {row["name"]: row for row in found}
    assert rows["iql, 1 seed"] == {
        "name": "iql, 1 seed", "rate": pytest.approx(200), "run-updates/s": pytest.approx(200),
        "ratio to d3rlpy": pytest.approx(3.0), "seconds to step 500": 7,
    }  # fmt: skip
    assert rows["iql --compile, 1 seed"]["ratio to d3rlpy"] == pytest.approx(6.0)
    assert rows["d3rlpy iql, 1 seed"]["rate"] == 80
    assert rows["recoil, 5 seeds"]["run-updates/s"] == rows["iql, 5 seeds"]["run-updates/s"] == pytest.approx(500)
    assert "ratio to d3rlpy" not in rows["iql, 5 seeds"]
    assert rows["sampling alone, 1 seed"]["share of iql"] == pytest.approx(0.2)


def test_figures_with_discrete_actions_are_of_all_seeds_together(monkeypatch):
    """dqn.py makes 100, 40 and 90 steps a second with one seed, and half with eight; the library 20, 10 and 15."""
    ours, theirs = ([100, 40, 90], [20, 10, 15])

    def script_rate(script, args, seeds, *flags):
        assert (script, args.env_id) == ("dqn", "CartPole-v1")
        played = rates.setdefault((seeds, "--compile" in flags), iter(ours))
        return next(played) / (1 if seeds == 1 else 2) * (1 + ("--compile" in flags)), 7.0

    rates, given = {}, iter(theirs)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(discrete_speed, "script_rate", script_rate)
    monkeypatch.setattr(discrete_speed, "peer_rate", lambda *args: next(given))
    monkeypatch.setattr(discrete_speed, "sqirl_rate", lambda args, form, seeds: {1: 30.0, 10: 6.0, 100: 2.0}[seeds])
    monkeypatch.setattr(discrete_speed, "table_rows", lambda: [{"name": "tables", "seconds": 4.0}])
    found = discrete_speed.measure_discrete(Args("discrete", rounds=3, device="cpu"))
    rows = {row["name"]: row for row in found}
    assert rows["dqn, 1 seed"] == {"name": "dqn, 1 seed", "rate": 90, "run-steps/s": 90, "ratio to sb3": 5.0}
    assert (rows["dqn, 8 seeds"]["run-steps/s"], rows["dqn, 8 seeds"]["ratio to sb3"]) == (360, 20.0)
    assert rows["dqn --compile, 1 seed"]["ratio to sb3"] == 10.0 and "ratio to sb3" not in rows["sb3 dqn, 1 seed"]
    assert (rows["sb3 dqn, 1 seed"]["rate"], rows["sb3 dqn, 1 seed"]["run-steps/s"]) == (15, 15)
    ten = {"name": "sqirl --form network, 10 seeds", "rate": 6.0, "run-steps/s": 60.0, "time / 1 seed": 5.0}
    assert rows[ten["name"]] == ten and rows["sqirl --form table, 100 seeds"]["run-steps/s"] == 200
    assert found[-1] == {"name": "tables", "seconds": 4.0}


@pytest.mark.parametrize("form", ["network", "table"])
def test_the_rate_of_sqirl_is_of_the_steps_that_its_runs_took(form, monkeypatch):
    """Two runs took 100 and 300 steps in four seconds."""

    def run(command, environment):
        word = {name: command[command.index(name) + 1] for name in ("--env-id", "--seeds", "--out", "--device")}
        assert (word["--seeds"], word["--device"], environment) == ("0:2", "cpu", {"OMP_NUM_THREADS": "1"})
        assert ("--form" in command) == word["--env-id"].startswith("tabular/gate") == (form == "table")
        folder = Path(word["--out"]) / "run"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"taken": [100, 300], "seconds": 4.0}))

    monkeypatch.setattr(discrete_speed, "output_of", run)
    assert discrete_speed.sqirl_rate(Args("discrete", threads=1, device="cpu"), form, 2) == 50.0


def test_the_seconds_of_tables_are_of_making_them_their_layers_and_all_of_it(monkeypatch):
    """A table takes 3 seconds, its layers 5, and what is found out with and without sticky actions 1 + 2 + 5 each."""
    clock = SimpleNamespace(now=100.0)

    def takes(seconds, result=None):
        def call(*_):
            clock.now += seconds
            return result

        return call

    def family(states):
        table = SimpleNamespace(states=states, with_sticky=lambda sticky: table)
        return SimpleNamespace(make=takes(3, table), horizon=7)

    answers = {"q": takes(5), "min_k": takes(1), "planning_window": takes(2), "greedy_return": takes(1)}
    monkeypatch.setattr(discrete_speed, "GRIDS", ["large", "small"])
    monkeypatch.setattr(discrete_speed, "FAMILIES", {"large": family(1_001), "small": family(1_000)})
    monkeypatch.setattr(discrete_speed, "Analysis", lambda table: SimpleNamespace(**answers))
    monkeypatch.setattr(discrete_speed, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    assert [tuple(row.values()) for row in discrete_speed.table_rows()] == [
        ("large, 1,001 states: table", 3.0), ("large: Q^1 to Q^5", 5.0),
        ("2 tables of MiniGrid with their analysis", 2 * (3 + 5 + 2 * 8)),
    ]  # fmt: skip


def test_figures_of_environments_are_beside_gymnasium_s(monkeypatch):
    """Ours make 300, 100 and 200 steps a second, theirs 50, 40 and 25; half of their time is the physics' own."""
    rates = iter((300, 50, 100, 40, 200, 25))
    monkeypatch.setattr(env_speed, "env_rate", lambda env, seconds: next(rates))
    monkeypatch.setattr(env_speed, "physics_share", lambda env: 0.5)
    monkeypatch.setattr(env_speed, "core_count", lambda: 3)
    given = Args("envs", rounds=3, num_envs=2, env_ids=("InvertedPendulum-v5",))
    (row,) = env_speed.measure_envs(given)
    assert (row["rate"], row["gymnasium sync"], row["ratio"], row["ratio's ceiling"]) == (200, 40, 6.0, 4.0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rounds": 0}, "--rounds must lie in "),
        ({"beside": -1}, "--beside must lie in "),
        ({"stream_seeds": (0,)}, "--stream-seeds must lie in "),
        ({"what": "streams", "beside": 1}, "--beside is for scripts only, got 1 with streams"),
        ({"env_id": "Hoper-v5"}, "--env-id: .*Hopper"),
        ({"what": "ensembles", "offlinerl_kit": Path("no")}, "--offlinerl-kit takes the folder of a clone of Off"),
        ({"what": "tables"}, "--out: there is no measurement in"),
        pytest.param(
            {"device": "cuda"}, "no such GPU", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
        ),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_measured(overrides, message, tmp_path, monkeypatch):
    monkeypatch.setattr(throughput, "measure_scripts", None)
    with pytest.raises(UserError, match=message) as error:
        main(Args(**{"out": tmp_path, **overrides}))
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_a_record_says_its_command_without_folders_of_the_machine(monkeypatch, tmp_path):
    (tmp_path / "impls" / "agents").mkdir(parents=True)
    (tmp_path / "impls" / "agents" / "gcivl.py").touch()
    monkeypatch.setattr(throughput, "measure_goals", lambda args: [{"name": "gcivl, 1 seed", "rate": 2.0}])
    monkeypatch.setattr("sys.argv", ["throughput.py", "goal_conditioned", "--ogbench", str(tmp_path / "impls")])
    main(Args("goal_conditioned", ogbench=tmp_path / "impls", out=tmp_path, device="cpu"))
    record = json.loads((tmp_path / "goal_conditioned.json").read_text())
    assert record["command"] == "python -m benchmarks.throughput goal_conditioned --ogbench impls"
    assert str(tmp_path) not in json.dumps(record)
    assert f"with {torch.backends.cpu.get_cpu_capability()}, " in record["machine"]  # rates depend on it
