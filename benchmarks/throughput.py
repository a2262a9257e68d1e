"""Measures the speed of environments and scripts, and compares it with other libraries, in turns.

    python -m benchmarks.throughput          scripts: sac.py against SAC of Stable-Baselines3 and SBX; dsac_t.py
    python -m benchmarks.throughput envs     batched MuJoCo against gymnasium.make_vec(..., "sync")
    python -m benchmarks.throughput streams --threads 1          stream_ac.py with 1 to 64 streaming learners
    python -m benchmarks.throughput offline                      offline scripts; iql.py against d3rlpy's IQL
    python -m benchmarks.throughput on_policy                    on-policy scripts; ppo.py against Stable-Baselines3's
    python -m benchmarks.throughput model_based                  dynamics, updates and rollouts; against plain code
    python -m benchmarks.throughput goal_conditioned             goal-conditioned scripts; against OGBench's own code
    python -m benchmarks.throughput discrete                     dqn.py against Stable-Baselines3's; SQIRL and tables
    python -m benchmarks.throughput scripts --beside 1           the same, and again beside one busy process

It prints a table and writes JSON. Every figure is in steps per second of the whole loop (acting, environment, replay,
update, logging) after a warm-up. A ratio is the median over rounds of the ratio of two figures of one round. If a peer
is not installed, it is left out and a line says so. `seconds to step …` shows what compilation costs at the start.
sac.py and dsac_t.py are measured for one seed and for four, iql.py for one and for five, and the other offline scripts
for five; on CUDA, sixteen seeds take the place of four and of five.

With `scripts --beside N`, each figure is measured a second time while N other processes compute without a pause. `kept`
is that figure divided by the one without them.

In the table of streaming learners, `cost` is the time of a run-step divided by the shortest of those with 8 or more
seeds, and `late / early` is the rate in the last third of the steps divided by the rate in the first.

In the table of on-policy scripts, `cost` is the same over ppo.py with 8 or more seeds, and `time / sac` is the time of
a step of mdpo_off_policy.py divided by that of sac.py.

In the table of offline scripts, steps are updates with batches of 256 from random data of HalfCheetah's sizes. `ratio
to CORL` compares with 103 updates/s, the speed of CORL's iql.py in PyTorch on two cores of this kind. `sampling alone`
draws minibatches from four million transitions, and `share of iql` is its part of an update of iql.py for one seed.

In the table of model-based scripts, `ratio to plain` compares with the arithmetic of OfflineRL-Kit's ensemble and of
CORL's EDAC, written plainly in torch's modules (benchmarks/plain_models.py). An epoch of an ensemble is one over
100,000 transitions of Hopper's sizes, and an update has a batch of 256 of HalfCheetah's. `share of an epoch` is the
part of rollouts in an epoch of 1,000 updates.

In the table of goal-conditioned scripts, `ratio to ogbench` compares run-updates with one run of OGBench's own code,
which needs a clone of its repository and an environment with jax, flax, optax, distrax and ml_collections:
`--ogbench ogbench/impls --ogbench-python jax/bin/python`. `share of sampling` is the part of an update in which goals
are drawn and states gathered.

In the table of discrete actions, DQN learns on CartPole; the network form of SQIRL runs on FrozenLake, and `time / 1
seed` is the time of a step of all seeds together divided by that of one alone; its table form runs on a gate chain.

    python -m benchmarks.throughput tables --out results/throughput

writes all stored JSON as Markdown.
"""

import contextlib
import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium as gym
import mujoco
import numpy as np
import pandas as pd
import torch
import tyro

from algos.arguments import Count, FewOrNone, Range, Several, check
from algos.cli import check_env_id, run_command
from algos.data import Dataset
from algos.device import choose_device, device_name
from algos.errors import UserError, describe
from algos.folders import writable
from algos.random import Random
from algos.run_folder import git_commit, versions
from benchmarks.discrete_speed import measure_discrete
from benchmarks.goal_speed import measure_goals
from benchmarks.model_speed import measure_model_based
from benchmarks.tables import table_of
from benchmarks.timing import (
    LOG,
    WARM_UP,
    check_continuous,
    median_ratio,
    named,
    peer_rate,
    random_file,
    script_log,
    script_rate,
)
from envs import make_vec
from envs.cores import own_cores
from envs.mujoco import quiet_mujoco

CORL = 103  # updates per second of CORL's iql.py, measured once with two threads

What = Literal[
    "scripts", "envs", "streams", "offline", "on_policy", "model_based", "goal_conditioned", "discrete", "tables"
]


@dataclass
class Args:
    what: Annotated[What, tyro.conf.Positional] = "scripts"
    """the measurement; `tables` writes the stored ones as Markdown"""
    rounds: Several = 3
    """every figure is measured this many times, in turns"""
    beside: Annotated[int, Range(0, 1_000)] = 0
    """measure again while this many other processes compute without a pause (scripts)"""
    stream_seeds: Annotated[tuple[int, ...], Range(1, 10_000)] = (1, 8, 16, 32, 64)
    """numbers of seeds (streams)"""
    num_envs: Several = 16
    """environments of a batch (envs)"""
    env_ids: tuple[str, ...] = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
    """tasks (envs)"""
    env_id: str = "HalfCheetah-v5"
    """task (scripts, streams, on_policy)"""
    threads: FewOrNone = 0
    """CPU threads of torch (all but envs); 0: the default of each script and library"""
    steps: Count = 3_000
    """number of environment steps or updates that are timed (all but envs); rounded up to iterations (on_policy)"""
    device: str = "auto"
    """device on which scripts train: cpu, cuda or auto"""
    peers: bool = True
    """measure the other libraries too (scripts, offline, on_policy, model_based, on a CPU)"""
    ogbench: Path | None = None
    """folder `impls` of a clone of OGBench's repository, as a peer of the goal-conditioned scripts"""
    ogbench_python: Path | None = None
    """the Python that runs it; this one if not given"""
    out: Path = Path("runs/throughput")
    """the JSON goes to OUT/<measurement>.json"""


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keeps this many other processes computing."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def env_rate(env: gym.vector.VectorEnv, seconds: float) -> float:
    """Environment steps per second with random actions."""
    env.reset(seed=0)
    shape = (64, env.num_envs, *(env.single_action_space.shape or ()))
    actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    for action in actions[:20]:
        env.step(action)
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for action in actions:
            env.step(action)
        steps += len(actions)
    return steps * env.num_envs / (time.perf_counter() - started)


def physics_share(env: gym.vector.VectorEnv) -> float:
    """The share of a vector environment's time that is spent inside MuJoCo's `mj_step`."""
    step, inside = mujoco.mj_step, 0.0

    def timed(*args: Any, **kwargs: Any) -> None:
        nonlocal inside
        started = time.perf_counter()
        step(*args, **kwargs)
        inside += time.perf_counter() - started

    started = time.perf_counter()
    mujoco.mj_step = timed
    try:
        env_rate(env, 0.5)
    finally:
        mujoco.mj_step = step
    return inside / (time.perf_counter() - started)


def measure_envs(args: Args) -> list[dict[str, Any]]:
    """Ratios, and their ceiling, which is reached if all cores compute physics and nothing else takes any time."""
    rows = []
    for env_id in args.env_ids:
        with quiet_mujoco():
            theirs = gym.make_vec(env_id, args.num_envs, vectorization_mode="sync")
        ours = make_vec(env_id, args.num_envs)
        rates = [(env_rate(ours, 1.0), env_rate(theirs, 1.0)) for _ in range(args.rounds)]
        share = physics_share(theirs)
        row = {"name": env_id, "rate": statistics.median(r[0] for r in rates)}
        row["gymnasium sync"] = statistics.median(r[1] for r in rates)
        row["ratio"] = statistics.median(a / b for a, b in rates)
        row["physics share"] = share
        row["ratio's ceiling"] = min(len(own_cores()), args.num_envs) / share
        rows.append(row)
        ours.close()
        theirs.close()
    return rows


def measure_streams(args: Args) -> list[dict[str, Any]]:
    """Speed of many streaming learners on the same threads, how long they take to start, and whether they slow down."""
    kinds: list[tuple[str, int, tuple[str, ...]]]
    kinds = [(named("stream_ac", n), n, ()) for n in args.stream_seeds]
    kinds.append(("stream_ac --no-compile, 1 seed", 1, ("--no-compile",)))
    logs: dict[str, list[pd.Series]] = {name: [] for name, *_ in kinds}
    third = max(args.steps // 3 // LOG, 1) * LOG
    for _ in range(args.rounds):
        for name, seeds, flags in kinds:
            logs[name].append(script_log("stream_ac", args, seeds, *flags))
            rate = args.steps / (logs[name][-1][WARM_UP + args.steps] - logs[name][-1][WARM_UP])
            print(f"{name}: {rate * seeds:,.0f} run-steps/s", flush=True)
    rows = []
    for name, seeds, _ in kinds:
        seconds = [log[WARM_UP + args.steps] - log[WARM_UP] for log in logs[name]]
        early = [log[WARM_UP + third] - log[WARM_UP] for log in logs[name]]
        late = [log[WARM_UP + args.steps] - log[WARM_UP + args.steps - third] for log in logs[name]]
        row: dict[str, Any] = {"name": name, "rate": args.steps / statistics.median(seconds)}
        row["run-steps/s"] = row["rate"] * seeds
        row["late / early"] = statistics.median(first / last for first, last in zip(early, late, strict=True))
        row["seconds to step 2,000"] = statistics.median(log[WARM_UP] for log in logs[name])
        rows.append(row)
    speeds = [row["run-steps/s"] for row, (_, seeds, _) in zip(rows, kinds, strict=True) if seeds >= 8]
    for row, (_, seeds, _) in zip(rows, kinds, strict=True):
        row["cost"] = max(speeds) / row["run-steps/s"] if seeds >= 8 else math.nan
    return rows


def measure_offline(args: Args) -> list[dict[str, Any]]:
    """Measures IQL for one seed, ours and theirs, in every round, and many seeds and the other scripts once."""
    cuda = choose_device(args.device).type == "cuda"
    peers = args.peers and not cuda and importlib.util.find_spec("d3rlpy") is not None
    if args.peers and not cuda and not peers:
        print("d3rlpy is not installed and left out: pip install -e '.[peers]'")
    kinds: list[tuple[str, tuple[str, ...]]] = [("", ())] if cuda else [("", ()), (" --compile", ("--compile",))]
    many = 16 if cuda else 5
    rates: dict[str, list[float]] = {}
    details: dict[str, tuple[int, float]] = {}  # number of seeds, seconds until the clock starts
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "random.hdf5"
        random_file(file)
        data = ("--dataset", str(file), "--eval-episodes", "0", "--batch-size", "256")

        def measure(script: str, kind: str, flags: tuple[str, ...], seeds: int, *extra: str) -> None:
            seconds = script_log(script, args, seeds, *data, *flags, *extra, warm_up=LOG)
            rate = args.steps / (seconds[LOG + args.steps] - seconds[LOG])
            name = named(script + kind, seeds)
            rates.setdefault(name, []).append(rate)
            details[name] = seeds, seconds[LOG]
            print(f"{name}: {rate:.0f} updates/s", flush=True)

        for round_number in range(args.rounds):
            for kind, flags in kinds:
                measure("iql", kind, flags, 1)
            if peers:
                rates.setdefault("d3rlpy iql, 1 seed", []).append(peer_rate("d3rlpy", args, "--dataset", str(file)))
                print(f"d3rlpy iql, 1 seed: {rates['d3rlpy iql, 1 seed'][-1]:.0f} updates/s", flush=True)
            if round_number == 0:
                for kind, flags in kinds:
                    measure("iql", kind, flags, many)
                for script in ("bc", "td3_bc", "xql", "f_dvl"):
                    measure(script, *kinds[0], many)
                measure("recoil", *kinds[0], many, "--expert-dataset", str(file), "--expert-trajectories", "10")
    rows = []
    for name, values in rates.items():
        seeds, startup = details.get(name, (1, math.nan))
        row: dict[str, Any] = {"name": name, "rate": statistics.median(values)}
        row["run-updates/s"] = row["rate"] * seeds
        if name.startswith("iql") and seeds == 1:
            if peers:
                pairs = zip(values, rates["d3rlpy iql, 1 seed"], strict=True)
                row["ratio to d3rlpy"] = statistics.median(ours / theirs for ours, theirs in pairs)
            if not cuda and (args.threads or os.cpu_count()) == 2:
                row["ratio to CORL"] = row["rate"] / CORL
        row[f"seconds to step {LOG}"] = startup
        rows.append(row)
    rate = sampling_rate(args)
    rows.append(
        {"name": "sampling alone, 1 seed", "rate": rate, "run-updates/s": rate, "share of iql": rows[0]["rate"] / rate}
    )
    return rows


def sampling_rate(args: Args, count: int = 4_000_000) -> float:
    """Minibatches of 256 per second from `count` transitions of HalfCheetah's sizes."""
    if args.threads:
        torch.set_num_threads(args.threads)
    device = choose_device(args.device)
    data = Dataset("random", torch.rand(count + 1, 17 + 6 + 2), torch.arange(count), 17, 6).to(device)
    choice = Random([0], device).integers("minibatch", 256)
    rates = []
    for _ in range(args.rounds + 1):  # the first is a warm-up
        started = time.perf_counter()
        for _ in range(args.steps):
            data.gather(data.choose(choice()))
        if device.type == "cuda":
            torch.cuda.synchronize()
        rates.append(args.steps / (time.perf_counter() - started))
    return statistics.median(rates[1:])


def measure_scripts(args: Args) -> list[dict[str, Any]]:
    """Measures SAC for one seed, ours and theirs, in every round, and many seeds and DSAC-T once."""
    cuda = choose_device(args.device).type == "cuda"
    peers = []
    if args.peers and not cuda:
        for library, module in (("sb3", "stable_baselines3"), ("sbx", "sbx")):
            if importlib.util.find_spec(module):
                peers.append(library)
            else:
                print(f"{module} is not installed and left out: pip install -e '.[peers]'")
    # on CUDA, updates are compiled and captured anyway
    kinds: list[tuple[str, tuple[str, ...]]] = [("", ())]
    if not cuda:
        kinds += [(" --compile", ("--compile",)), (" --compile --bf16", ("--compile", "--bf16"))]
    many = 16 if cuda else 4
    free: dict[str, list[float]] = {}  # rates in each round
    beside: dict[str, list[float]] = {}  # the same beside busy processes
    seeds_of: dict[str, int] = {}
    startups: dict[str, float] = {}

    def measure(name: str, rate: Callable[[], float]) -> None:
        for rates, others in ((free, 0), (beside, args.beside))[: 2 if args.beside else 1]:
            with busy(others):
                rates.setdefault(name, []).append(rate())
            print(f"{name}{f', beside {others}' * (others > 0)}: {rates[name][-1]:.0f} steps/s", flush=True)

    def measure_script(script: str, kind: str, flags: tuple[str, ...], seeds: int) -> None:
        name = named(script + kind, seeds)

        def rate() -> float:
            steps_per_second, startup = script_rate(script, args, seeds, *flags)
            startups[name] = min(startup, startups.get(name, math.inf))
            return steps_per_second

        seeds_of[name] = seeds
        measure(name, rate)

    for round_number in range(args.rounds):
        for kind, flags in kinds:
            measure_script("sac", kind, flags, 1)
        for library in peers:
            measure(f"{library} sac, 1 seed", partial(peer_rate, library, args))
        if round_number == 0:
            for kind, flags in kinds:
                measure_script("sac", kind, flags, many)
                measure_script("dsac_t", kind, flags, 1)
                measure_script("dsac_t", kind, flags, many)
    rows = []
    for name in free:
        rate = statistics.median(free[name])
        row: dict[str, Any] = {"name": name, "rate": rate, "run-steps/s": rate * seeds_of.get(name, 1)}
        ours = name.startswith("sac") and name.endswith(" 1 seed")
        if args.beside:
            row[f"beside {args.beside}"] = statistics.median(beside[name])
            row["kept"] = median_ratio(beside[name], free[name])
        for library in peers if ours else []:
            row[f"ratio to {library}"] = median_ratio(free[name], free[f"{library} sac, 1 seed"])
            if args.beside:
                theirs = beside[f"{library} sac, 1 seed"]
                row[f"ratio to {library}, beside {args.beside}"] = median_ratio(beside[name], theirs)
        row["seconds to step 2,000"] = startups.get(name, math.nan)
        rows.append(row)
    return rows


def measure_on_policy(args: Args) -> list[dict[str, Any]]:
    """Measures PPO for 1 to 64 seeds against Stable-Baselines3's, and the other scripts for eight seeds.

    Figures are over whole iterations of 2,048 steps, so `steps` is rounded up to them; the first one does not count.
    """
    cuda = choose_device(args.device).type == "cuda"
    peers = args.peers and not cuda and importlib.util.find_spec("stable_baselines3") is not None
    if args.peers and not cuda and not peers:
        print("stable_baselines3 is not installed and left out: pip install -e '.[peers]'")
    horizon, iterations = 2048, math.ceil(args.steps / 2048)
    kinds: list[tuple[str, str, int, tuple[str, ...]]] = []
    kinds += [(named("ppo", n), "ppo", n, ()) for n in (1, 8, 16, 32, 64)]
    kinds += [(named("ppo --no-compile", n), "ppo", n, ("--no-compile",)) for n in (1, 8)]
    kinds += [(named(script, 8), script, 8, ()) for script in ("mdpo_on_policy", "trpo")]
    rates: dict[str, list[float]] = {}
    pairs = [(script, f"{script}, 1 seed") for script in ("sac", "mdpo_off_policy")]
    for _ in range(args.rounds):
        for name, script, seeds, flags in kinds:
            timed = replace(args, steps=horizon * iterations)
            log = script_log(script, timed, seeds, "--eval-episodes", "0", *flags, warm_up=horizon)
            log = log[log.index >= horizon]
            rates.setdefault(name, []).append((log.index[-1] - log.index[0]) / (log.iloc[-1] - log.iloc[0]))
            print(f"{name}: {rates[name][-1] * seeds:,.0f} run-steps/s", flush=True)
        if peers:
            rate = peer_rate("sb3", replace(args, steps=horizon * iterations), "--algorithm", "ppo")
            rates.setdefault("sb3 ppo, 1 seed", []).append(rate)
            print(f"sb3 ppo, 1 seed: {rate:,.0f} steps/s", flush=True)
        for script, name in pairs:
            rates.setdefault(name, []).append(script_rate(script, replace(args, steps=1_000), 1)[0])
            print(f"{name}: {rates[name][-1]:,.0f} steps/s", flush=True)
    seeds_of = {name: seeds for name, _, seeds, _ in kinds}
    sweep = [name for name in rates if name.startswith("ppo, ") and seeds_of[name] >= 8]
    fastest = max(statistics.median(rates[name]) * seeds_of[name] for name in sweep)
    rows = []
    for name, values in rates.items():
        seeds = seeds_of.get(name, 1)
        row: dict[str, Any] = {"name": name, "rate": statistics.median(values)}
        row["run-steps/s"] = row["rate"] * seeds
        if peers and name in seeds_of:
            row["ratio to sb3"] = seeds * median_ratio(values, rates["sb3 ppo, 1 seed"])
        if name in sweep:
            row["cost"] = fastest / row["run-steps/s"]
        if name == pairs[1][1]:
            row["time / sac"] = median_ratio(rates[pairs[0][1]], values)
        rows.append(row)
    return rows


def rounded(rate: float) -> str:
    """A rate in whole numbers, or with three digits if it is small."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def write_tables(folder: Path) -> None:
    """Writes README.md with a table for each stored measurement; raises UserError if there is none."""
    parts = ["# Throughput"]
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UserError(f"--out: there is no measurement in {folder}")
    for path in paths:
        try:
            record = json.loads(path.read_text())
            table = pd.DataFrame(record["rows"]).rename(columns={"rate": "steps/s"})
            origin = f"{record['date']}, commit {record['commit']}, {record['device']}, {record['machine']}"
            parts.append(f"`{record['command']}` ({origin}):\n\n{table_of(table).markdown()}")
        except (OSError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"--out: {path} holds no measurement of this command ({describe(error)})") from None
    (folder / "README.md").write_text("\n\n".join(parts) + "\n")


def main(args: Args) -> None:
    check(args)
    if args.ogbench is not None and not (args.ogbench / "agents" / "gcivl.py").is_file():
        raise UserError(f"--ogbench takes the folder impls of a clone of OGBench's repository, got {args.ogbench}")
    if args.beside and args.what != "scripts":
        raise UserError(f"--beside is for scripts only, got {args.beside} with {args.what}")
    if args.what == "tables":
        write_tables(args.out)
        return
    if args.what != "envs":
        choose_device(args.device)
    if args.what == "envs" and not args.env_ids:
        raise UserError("--env-ids names no environment")
    for env_id in args.env_ids if args.what == "envs" else (args.env_id,):
        check_env_id(env_id)
        if args.what in ("envs", "scripts", "on_policy"):
            check_continuous(env_id)
    writable(args.out)
    args = replace(args, steps=max(args.steps // LOG, 1) * LOG)
    measurements = {
        "envs": measure_envs, "scripts": measure_scripts, "streams": measure_streams, "offline": measure_offline,
        "on_policy": measure_on_policy, "model_based": measure_model_based,
        "goal_conditioned": measure_goals, "discrete": measure_discrete,
    }  # fmt: skip
    rows = measurements[args.what](args)
    table = pd.DataFrame(rows).set_index("name").rename(columns={"rate": "steps/s"})
    fine = ("ratio", "physics", "share", "late", "cost", "kept", "time")
    shown = table.apply(lambda c: c.map("{:.2f}".format if str(c.name).startswith(fine) else rounded))
    print(shown.replace("nan", "").to_string())
    if args.what != "envs" and args.threads:
        torch.set_num_threads(args.threads)  # as in the scripts, for the device's name
    device = torch.device("cpu") if args.what == "envs" else choose_device(args.device)
    record = {
        "command": " ".join(["python -m benchmarks.throughput", *sys.argv[1:]]),
        "commit": git_commit(),
        "date": time.strftime("%Y-%m-%d"),
        "device": device_name(device),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions(),
        "arguments": {k: str(v) for k, v in vars(args).items()},
        "rows": rows,
    }
    path = args.out / f"{args.what}.json"
    path.write_text(json.dumps(record, indent=2))
    print(f"written to {path}")


if __name__ == "__main__":
    run_command(main)
