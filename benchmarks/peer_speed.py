"""Steps per second of another library's SAC, printed as one number; `benchmarks.throughput` runs it as a process.

python -m benchmarks.peer_speed sb3 --env-id HalfCheetah-v5 --threads 2
"""

import importlib
import time
from dataclasses import dataclass
from typing import Annotated, Literal

import gymnasium as gym
import torch
import tyro


@dataclass
class Args:
    library: Annotated[Literal["sb3", "sbx"], tyro.conf.Positional]
    """Stable-Baselines3 (PyTorch) or SBX (JAX)"""
    env_id: str = "HalfCheetah-v5"
    """Gymnasium id"""
    threads: int = 2
    """CPU threads for torch"""
    warm_up: int = 1_500
    """steps before the clock starts, 500 of them with learning"""
    steps: int = 3_000
    """steps that are timed"""
    device: str = "cpu"
    """torch device"""


def main(args: Args) -> None:
    torch.set_num_threads(args.threads)
    library = importlib.import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[args.library])
    device = {"device": args.device} if args.library == "sb3" else {}
    model = library.SAC("MlpPolicy", gym.make(args.env_id), learning_starts=1_000, seed=0, **device)
    model.learn(args.warm_up)
    started = time.perf_counter()
    model.learn(args.steps, reset_num_timesteps=False)
    print(args.steps / (time.perf_counter() - started))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
