"""Measures the speed of another library and prints one number; `benchmarks.throughput` runs it as a process.

It is called in these ways:

    python -m benchmarks.peer_speed sb3 --env-id HalfCheetah-v5      steps per second of SAC
    python -m benchmarks.peer_speed sb3 --algorithm ppo              steps per second of PPO
    python -m benchmarks.peer_speed sb3 --algorithm dqn --env-id CartPole-v1         steps per second of DQN
    python -m benchmarks.peer_speed d3rlpy --dataset FILE.hdf5       updates per second of IQL with batches of 256
    python -m benchmarks.peer_speed plain --algorithm edac           updates per second of EDAC, or of an ensemble,
                                                                     written plainly (benchmarks/plain_models.py)
    python -m benchmarks.peer_speed offlinerl_kit --code FOLDER      steps per second of OfflineRL-Kit's ensemble
    python -m benchmarks.peer_speed stored --algorithm mopo          updates per second of this project's MOPO or SAC on
                                                                     batches of stored data, with nothing around them
"""

import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import gymnasium as gym
import h5py
import torch
import tyro

from algos.arguments import Count, FewOrNone, Natural, check
from algos.cli import check_env_id, run_command
from algos.compile import compiled, tune_cpu
from algos.data import check_name
from algos.device import choose_device, take, wait
from algos.errors import UserError
from algos.random import Random
from benchmarks.offlinerl_kit import check_code, ensemble_rate
from benchmarks.plain_models import CHEETAH, random_data, rate


@dataclass
class Args:
    library: Annotated[Literal["sb3", "sbx", "d3rlpy", "offlinerl_kit", "plain", "stored"], tyro.conf.Positional]
    """Stable-Baselines3 (PyTorch), SBX (JAX), d3rlpy (PyTorch), OfflineRL-Kit (PyTorch), or code of this project:
    plain is written without its common parts, and stored is a script's agent without what is around its updates"""
    env_id: str = "HalfCheetah-v5"
    """Gymnasium id"""
    dataset: Path | None = None
    """file of D4RL's layout (d3rlpy)"""
    code: Path | None = None
    """folder of a clone of OfflineRL-Kit (offlinerl_kit)"""
    threads: FewOrNone = 0
    """CPU threads of torch; 0: the library's default"""
    warm_up: Natural = 1_500
    """number of steps before the clock starts (d3rlpy, stored, and sac and dqn, of which the last 500 learn)"""
    steps: Count = 3_000
    """number of steps that are timed"""
    device: str = "cpu"
    """torch device"""
    algorithm: Literal["sac", "mopo", "ppo", "dqn", "edac", "ensemble"] = "sac"
    """the algorithm (sb3: sac, ppo or dqn; plain: edac or ensemble; stored: sac or mopo)"""


def d3rlpy_seconds(args: Args) -> float:
    """Seconds of `steps` updates of IQL, minibatches included."""
    d3rlpy = importlib.import_module("d3rlpy")
    with h5py.File(args.dataset) as file:
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        data = d3rlpy.dataset.MDPDataset(*(file[name][:].astype("float32") for name in names))
    iql = d3rlpy.algos.IQLConfig(batch_size=256).create(device="cpu:0" if args.device == "cpu" else args.device)
    iql.build_with_dataset(data)
    started = 0.0
    for step in range(args.warm_up + args.steps):
        if step == args.warm_up:
            started = time.perf_counter()
        iql.update(data.sample_transition_batch(256))
    return time.perf_counter() - started


def stored_seconds(args: Args) -> float:
    """Seconds of `steps` compiled updates of SAC or MOPO with one seed, batches of random stored data included.

    SAC's actor learns at every update, as MOPO's does.
    """
    script, device = importlib.import_module(f"single_file.{args.algorithm}"), take(choose_device(args.device))
    settings, more = (script.Args(actor_delay=1), (True,)) if args.algorithm == "sac" else (script.Args(), ())
    data, random = random_data(CHEETAH).to(device), Random([0], device)
    agent = getattr(script, args.algorithm.upper())(settings, data.task, [0], device)
    choice, draws = random.integers("minibatch", settings.batch_size), agent.draws(random)
    update = compiled(lambda rows, *rest: agent.update(data.gather(rows), *rest), device, compile_on_cpu=True)
    started = 0.0
    for step in range(args.warm_up + args.steps):
        if step == args.warm_up:
            wait(device)
            started = time.perf_counter()
        update(data.choose(choice()), draws(), *more)
    wait(device)
    return time.perf_counter() - started


def check_peer(args: Args) -> None:
    """Raises UserError if a library is missing, or if arguments do not fit it."""
    check(args)
    module, algorithms = {
        "sb3": ("stable_baselines3", ("sac", "ppo", "dqn")),
        "sbx": ("sbx", ("sac", "dqn")),
        "d3rlpy": ("d3rlpy", ("sac",)),  # the default, which it has no use for
        "offlinerl_kit": ("torch", ("sac",)),  # likewise
        "plain": ("torch", ("edac", "ensemble")),
        "stored": ("torch", ("sac", "mopo")),
    }[args.library]
    if args.algorithm not in algorithms:
        raise UserError(f"--algorithm of {args.library} takes {', '.join(algorithms)}, got {args.algorithm}")
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{module} is missing: pip install -e '.[peers]'")
    if args.library == "d3rlpy" and args.dataset is None:
        raise UserError("d3rlpy needs --dataset, a file of D4RL's layout")
    if args.library == "d3rlpy":
        check_name(str(args.dataset))
    if args.library == "offlinerl_kit":
        check_code("--code", args.code)
    if args.library in ("sb3", "sbx"):
        check_env_id(args.env_id)
    choose_device(args.device)


def main(args: Args) -> None:
    check_peer(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.library == "d3rlpy":
        print(args.steps / d3rlpy_seconds(args))
        return
    if args.library == "stored":
        tune_cpu()
        print(args.steps / stored_seconds(args))
        return
    if args.library == "offlinerl_kit":
        assert args.code
        print(ensemble_rate(args.code, args.steps))
        return
    if args.library == "plain":
        print(rate(args.algorithm, args.steps))
        return
    library = importlib.import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[args.library])
    device = {"device": args.device} if args.library == "sb3" else {}
    if args.algorithm == "ppo" and args.library == "sb3":
        from benchmarks.sb3 import make_ppo  # with the normalisers that this project's script has

        model, args.warm_up = make_ppo(args.env_id, 0), 2_048
    elif args.algorithm == "dqn":  # with the settings that this project's script has
        settings = {"buffer_size": 100_000, "target_update_interval": 1_000, "exploration_final_eps": 0.01}
        model = library.DQN("MlpPolicy", gym.make(args.env_id), learning_starts=1_000, seed=0, **settings, **device)
    else:
        model = library.SAC("MlpPolicy", gym.make(args.env_id), learning_starts=1_000, seed=0, **device)
    model.learn(args.warm_up)
    started = time.perf_counter()
    model.learn(args.steps, reset_num_timesteps=False)
    print(args.steps / (time.perf_counter() - started))


if __name__ == "__main__":
    run_command(main)
