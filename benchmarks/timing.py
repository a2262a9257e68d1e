"""Speeds of scripts and of other libraries, each measured in a process of its own."""

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pandas as pd

from algos.cli import env_errors
from algos.compile import multiplies_bf16
from algos.device import choose_device
from algos.errors import UserError
from envs import make_vec

SCRIPTS = Path(__file__).parents[1] / "single_file"
WARM_UP = 2_000  # steps before the clock starts
LOG = 500  # steps between two readings of the clock


def check_actions(env_id: str, kind: str = "continuous") -> None:
    """Raises UserError if an environment cannot be made, or if its actions are not `continuous`, or `discrete`."""
    with env_errors(env_id):
        venv = make_vec(env_id, 1)
    venv.close()
    if not isinstance(venv.single_action_space, gym.spaces.Box if kind == "continuous" else gym.spaces.Discrete):
        raise UserError(f"{env_id} has {type(venv.single_action_space).__name__} actions, where {kind} ones are needed")


def thread_variables(args: Any) -> dict[str, str]:
    """Environment variables of a measured process; none if it chooses its number of threads itself."""
    return {"OMP_NUM_THREADS": str(args.threads)} if args.threads else {}


def random_file(path: Path, count: int = 100_000, obs_size: int = 17, act_size: int = 6) -> Path:
    """Writes a file of D4RL's layout with random numbers, in episodes of 1,000 steps."""
    rng = np.random.default_rng(0)
    obs, action = rng.standard_normal((count, obs_size), np.float32), rng.uniform(-1, 1, (count, act_size))
    return data_file(path, obs, action, rng.standard_normal(count, np.float32))


def data_file(path: Path, obs: np.ndarray, action: np.ndarray, reward: np.ndarray) -> Path:
    """Writes a file of D4RL's layout with these transitions, in episodes of 1,000 steps without an end."""
    with h5py.File(path, "w") as file:
        for name, rows in {"observations": obs, "actions": action, "rewards": reward}.items():
            file[name] = rows.astype(np.float32)
        file["terminals"] = np.zeros(len(obs), bool)
        file["timeouts"] = np.arange(1, len(obs) + 1) % 1000 == 0
    return path


def output_of(command: list[str], environment: dict[str, str], folder: Path | None = None) -> str:
    """What a process in a folder prints; raises UserError, with its last words, if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ | environment)
    if done.returncode:
        _, _, last = done.stderr.strip().rpartition("\n")
        raise UserError(
            f"{Path(command[1]).name if command[1] != '-m' else command[2]} ended with exit code {done.returncode}: "
            f"{last.removeprefix('error: ')}"
        )
    return done.stdout


def script_log(
    script: str,
    args: Any,
    seeds: int,
    *flags: str,
    warm_up: int = WARM_UP,
    metric: str = "seconds",
    log_every: int = LOG,
) -> pd.Series:
    """The seconds of training in the script's own log, by step. Evaluation does not count."""
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable, str(SCRIPTS / f"{script}.py"), "--env-id", args.env_id, "--seeds", f"0:{seeds}",
            "--total-steps", str(warm_up + args.steps), "--log-every", str(log_every), "--eval-every", "1000000",
            "--device", args.device, "--threads", str(args.threads), "--out", out, "--quiet", *flags,
        ]  # fmt: skip
        cold = {"TORCHINDUCTOR_CACHE_DIR": f"{out}/compiled"}  # nothing compiled by an earlier run
        output_of(command, cold | thread_variables(args))
        log = pd.read_parquet(next(Path(out).rglob("train.parquet")))
    return log[(log["metric"] == metric) & (log["seed"] == 0)].set_index("step")["value"]


def script_rate(script: str, args: Any, seeds: int, *flags: str) -> tuple[float, float]:
    """Steps per second of each seed, and the seconds before: 1,000 steps without updates and 1,000 with them."""
    seconds = script_log(script, args, seeds, "--learning-starts", "1000", "--eval-episodes", "1", *flags)
    return args.steps / (seconds[WARM_UP + args.steps] - seconds[WARM_UP]), seconds[WARM_UP]


def peers(args: Any, package: str) -> bool:
    """Whether this other library is measured too: where it is wanted and installed, and not beside scripts on CUDA."""
    wanted = choose_device(args.device).type != "cuda" and args.peers
    if wanted and importlib.util.find_spec(package) is None:
        print(f"{package} is not installed and left out: pip install -e '.[peers]'")
        return False
    return wanted


def peer_rate(library: str, args: Any, *flags: str) -> float:
    command = [sys.executable, "-m", "benchmarks.peer_speed", library, "--env-id", args.env_id, *flags]
    command += ["--threads", str(args.threads), "--steps", str(args.steps)]
    return float(output_of(command, thread_variables(args), SCRIPTS.parent).split()[-1])


def ways_of_updates(cuda: bool) -> list[tuple[str, ...]]:
    """Flags of each way in which updates are computed; on CUDA they are compiled and captured anyway."""
    if cuda:
        return [()]
    ways: list[tuple[str, ...]] = [(), ("--compile",)]
    if multiplies_bf16():
        return [*ways, ("--compile", "--bf16")]
    print("bfloat16 is left out: this processor has no instructions for it")
    return ways


def named(script: str, seeds: int) -> str:
    """`sac, 1 seed` or `sac, 4 seeds`."""
    return f"{script}, {seeds} seed{'s' * (seeds > 1)}"


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios of each round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
