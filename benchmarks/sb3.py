r"""Stable-Baselines3's SAC and TD3 as peers: trained and evaluated under this project's protocol, stored in its tables.

    for task in HalfCheetah-v5 Hopper-v5; do
      python -m benchmarks.sb3 sac --env-id $task
      python single_file/sac.py --env-id $task --seeds 0:3 --total-steps 50000 --critic-lr 3e-4 --temperature-lr 3e-4 \
        --actor-delay 1 --eval-every 5000 --threads 1 --variant sb3_settings --out runs/proof
    done
    python -m benchmarks.report runs/peers runs/proof --references d4rl --out results/sac_vs_sb3

    python -m benchmarks.sb3 td3 --env-id HalfCheetah-v5 --total-steps 20000 --learning-starts 2500 \
      --eval-every 2500 --out runs/td3_vs_sb3
    python single_file/td3.py --env-id HalfCheetah-v5 --seeds 0:3 --total-steps 20000 --learning-starts 2500 \
      --eval-every 2500 --threads 1 --out runs/td3_vs_sb3
    python -m benchmarks.report runs/td3_vs_sb3 --references d4rl --formats png \
      --title "TD3 beside Stable-Baselines3's" --out results/td3_vs_sb3

One process trains the seeds one after the other, as the library does.

Hyperparameters of SAC are the library's defaults (networks 2 x 256, batch 256, replay 1M, learning rate 3e-4 for all
three parts, one update per step) except for the random start, which is that of `single_file/sac.py`. The runs of
`single_file/sac.py` take the same values, and two differences remain: sac.py squashes the log standard deviation, as
CleanRL does, and draws an action for the temperature; Stable-Baselines3 clamps it and uses the action that was drawn
for the actor.

Hyperparameters of TD3 are the defaults of `single_file/td3.py`. They replace the library's own learning rate of 1e-3,
its networks of 400 and 300 units, and its lack of exploration noise. Two differences remain: the library also adds the
exploration noise to the actions of the random start, and its critics see actions scaled to [-1, 1].
"""

import json
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import pandas as pd
import torch
import tyro

RANDOM_START = {"sac": 5_000, "td3": 25_000}  # steps, as in single_file/


@dataclass
class Args:
    algorithm: Annotated[Literal["sac", "td3"], tyro.conf.Positional]
    """the algorithm"""
    env_id: str = "HalfCheetah-v5"
    """Gymnasium id"""
    seeds: tuple[int, ...] = (0, 1, 2)
    """seeds, each of which is a training run"""
    total_steps: int = 50_000
    """environment steps of each seed"""
    eval_every: int = 5_000
    """environment steps between evaluations"""
    eval_episodes: int = 10
    """deterministic episodes per evaluation"""
    learning_starts: int | None = None
    """uniformly random steps before learning; as in this project's script if not given: 5000 for sac, 25000 for td3"""
    threads: int = 1
    """threads for torch"""
    out: Path = Path("runs/peers")
    """results go to OUT/<env>/sb3_<algorithm>/default/"""


def evaluate(model, env_id: str, seed: int, episodes: int) -> list[tuple[float, int]]:
    """(return, length) of `episodes` deterministic episodes, reset from `seed`, `seed + 1`, ..."""
    env = gym.make(env_id)
    rows = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        total, length, done = 0.0, 0, False
        while not done:
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, length, done = total + float(reward), length + 1, terminated or truncated
        rows.append((total, length))
    env.close()
    return rows


def make_model(args: Args, seed: int) -> Any:
    """The library's agent, which has not learned yet."""
    try:
        from stable_baselines3 import SAC, TD3
        from stable_baselines3.common.noise import NormalActionNoise
    except ImportError:
        raise SystemExit("stable_baselines3 is missing: pip install -e '.[peers]'") from None

    env = gym.make(args.env_id)
    if args.algorithm == "sac":
        return SAC("MlpPolicy", env, learning_starts=args.learning_starts, seed=seed)
    (size,) = env.action_space.shape or (1,)
    return TD3(
        "MlpPolicy", env, learning_rate=3e-4, batch_size=256, train_freq=1, gradient_steps=1, seed=seed,
        learning_starts=args.learning_starts, action_noise=NormalActionNoise(np.zeros(size), np.full(size, 0.1)),
        policy_kwargs={"net_arch": [256, 256]},
    )  # fmt: skip


def main(args: Args) -> None:
    if args.learning_starts is None:
        args.learning_starts = RANDOM_START[args.algorithm]
    torch.set_num_threads(args.threads)
    algorithm = f"sb3_{args.algorithm}"
    folder = args.out / args.env_id / algorithm / "default"
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in args.seeds:
        started, evaluating = time.perf_counter(), 0.0
        model = make_model(args, seed)
        for step in range(0, args.total_steps + 1, args.eval_every):
            if step:
                model.learn(args.eval_every, reset_num_timesteps=False)
            before = time.perf_counter()
            results = evaluate(model, args.env_id, 1_000_000 + 1_000 * seed, args.eval_episodes)
            evaluating += time.perf_counter() - before
            seconds = time.perf_counter() - started - evaluating
            rows += [(seed, step, i, ret, length, seconds) for i, (ret, length) in enumerate(results)]
            mean = np.mean([ret for ret, _ in results])
            print(f"{args.env_id} seed {seed} step {step} return {mean:.1f} {seconds:.0f} s", flush=True)
        table = pd.DataFrame(rows, columns=["seed", "step", "episode", "return", "length", "seconds"])
        table.to_parquet(folder / "eval.parquet", index=False)
        config = {
            "algorithm": algorithm,
            "env_id": args.env_id,
            "variant": "default",
            "status": "finished",
            "step": args.total_steps,
            "args": {**vars(args), "out": str(args.out)},
            "versions": {p: version(p) for p in ("stable_baselines3", "torch", "gymnasium", "mujoco")},
            "device": platform.processor() or platform.machine(),
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
