"""How fast: environments and scripts, as ratios against peers that are measured in the same run, alternating.

    python -m benchmarks.throughput          scripts: sac.py against SAC of Stable-Baselines3 and SBX; dsac_t.py
    python -m benchmarks.throughput envs     batched MuJoCo against gymnasium.make_vec(..., "sync")

Prints a table and writes JSON. Every figure is steps per second of the whole loop (acting, environment, replay, update,
logging), after a warm-up; a ratio is the median over rounds of the two figures of one round. A peer that is not
installed is left out and said so. On CUDA, scripts are measured for one seed and for sixteen.
"""

import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import pandas as pd
import torch
import tyro

from algos.run import device_name, git_commit, versions
from envs import make_vec
from envs.mujoco import quiet_mujoco

SCRIPTS = Path(__file__).parents[1] / "single_file"


@dataclass
class Args:
    what: Annotated[Literal["scripts", "envs"], tyro.conf.Positional] = "scripts"
    """what to measure"""
    rounds: int = 3
    """times that every figure is measured, in turns"""
    num_envs: int = 16
    """environments of a batch (envs)"""
    env_ids: tuple[str, ...] = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
    """tasks (envs)"""
    env_id: str = "HalfCheetah-v5"
    """task (scripts)"""
    threads: int = 2
    """CPU threads of torch (scripts)"""
    steps: int = 3_000
    """environment steps that are timed (scripts)"""
    device: str = "auto"
    """where scripts train: cpu, cuda or auto"""
    peers: bool = True
    """measure the other libraries too (scripts, on a CPU)"""
    out: Path = Path("runs/throughput")
    """the JSON goes to OUT/<what>.json"""


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


def measure_envs(args: Args) -> list[dict[str, Any]]:
    rows = []
    for env_id in args.env_ids:
        with quiet_mujoco():
            theirs = gym.make_vec(env_id, args.num_envs, vectorization_mode="sync")
        ours = make_vec(env_id, args.num_envs)
        rates = [(env_rate(ours, 1.0), env_rate(theirs, 1.0)) for _ in range(args.rounds)]
        row = {"name": env_id, "rate": statistics.median(r[0] for r in rates)}
        row["gymnasium sync"] = statistics.median(r[1] for r in rates)
        row["ratio to gymnasium sync"] = statistics.median(a / b for a, b in rates)
        rows.append(row)
        ours.close()
        theirs.close()
    return rows


def script_rate(script: str, args: Args, seeds: int, *flags: str) -> float:
    """Steps per second and seed of a script, from the seconds in its own log; evaluation is not counted."""
    warm_up = 2_000
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable, str(SCRIPTS / f"{script}.py"), "--env-id", args.env_id, "--seeds", f"0:{seeds}",
            "--learning-starts", "1000", "--total-steps", str(warm_up + args.steps), "--log-every", "500",
            "--eval-every", "1000000", "--eval-episodes", "1", "--device", args.device, "--threads", str(args.threads),
            "--out", out, "--quiet", *flags,
        ]  # fmt: skip
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": str(args.threads)})
        log = pd.read_parquet(next(Path(out).rglob("train.parquet")))
    seconds = log[(log["metric"] == "seconds") & (log["seed"] == 0)].set_index("step")["value"]
    return args.steps / (seconds[warm_up + args.steps] - seconds[warm_up])


def peer_rate(library: str, args: Args) -> float:
    command = [sys.executable, "-m", "benchmarks.peer_speed", library, "--env-id", args.env_id]
    command += ["--threads", str(args.threads), "--steps", str(args.steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=SCRIPTS.parent)
    return float(done.stdout.split()[-1])


def measure_scripts(args: Args) -> list[dict[str, Any]]:
    on_gpu = torch.device(
        "cuda" if args.device == "auto" and torch.cuda.is_available() else args.device.replace("auto", "cpu")
    )
    peers = {}
    if args.peers and on_gpu.type == "cpu":
        for library, module in (("sb3", "stable_baselines3"), ("sbx", "sbx")):
            if importlib.util.find_spec(module):
                peers[library] = module
            else:
                print(f"{module} is not installed and left out: pip install -e '.[peers]'")
    seeds = (1, 16) if on_gpu.type == "cuda" else (1, 4)
    rounds = []
    for i in range(args.rounds):
        figures = {"sac, 1 seed": script_rate("sac", args, 1)}
        figures |= {f"{library} sac, 1 seed": peer_rate(library, args) for library in peers}
        if i == 0:
            figures |= {f"sac, {seeds[1]} seeds": script_rate("sac", args, seeds[1])}
            figures |= {f"dsac_t, {n} seed{'s' * (n > 1)}": script_rate("dsac_t", args, n) for n in seeds}
        rounds.append(figures)
        print(f"round {i + 1}: " + "; ".join(f"{name} {rate:.0f}" for name, rate in figures.items()), flush=True)
    rows = []
    for name in rounds[0]:
        rates = [r[name] for r in rounds if name in r]
        count = int(name.split(", ")[1].split()[0])
        row: dict[str, Any] = {
            "name": name,
            "rate": statistics.median(rates),
            "run-steps/s": count * statistics.median(rates),
        }
        if name == "sac, 1 seed":
            for library in peers:
                row[f"ratio to {library}"] = statistics.median(r[name] / r[f"{library} sac, 1 seed"] for r in rounds)
        rows.append(row)
    return rows


def main(args: Args) -> None:
    rows = measure_envs(args) if args.what == "envs" else measure_scripts(args)
    table = pd.DataFrame(rows).set_index("name").rename(columns={"rate": "steps/s"})
    shown = table.apply(lambda c: c.map("{:.2f}".format if "ratio" in str(c.name) else "{:,.0f}".format))
    print(shown.replace("nan", "").to_string())
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() and args.device != "cpu" else "cpu")
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
    main(tyro.cli(Args, description=__doc__))
