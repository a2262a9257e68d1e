"""The speed of offline model-based scripts; see `benchmarks.throughput`."""

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from algos.device import choose_device
from benchmarks.timing import LOG, data_file, median_ratio, named, peer_rate, random_file, script_log
from envs import make_vec

ROWS = 100_000  # transitions of the random data
GENERATIONS = 2  # epochs in the updates that are timed
ROLLOUTS, LENGTH, EPOCH = 50_000, 5, 1_000  # rollouts, their steps, and updates of an epoch in the published protocol
PLAYED = 10_000  # transitions of a random policy, for MuJoCo itself as the model
COMPARED = (  # rows, what they are divided by, and the column of the ratio
    ("ensemble: epochs", "plain ensemble: epochs", "ratio to plain"),
    ("ensemble: epochs", "offlinerl_kit ensemble: epochs", "ratio to offlinerl_kit"),
    ("mopo: updates alone", "sac: updates alone", "ratio to sac"),
    ("ravl: updates,", "plain edac: updates", "ratio to plain"),
)


def played_file(path: Path) -> Path:
    """Writes a file of D4RL's layout with transitions of random actions in HalfCheetah, from whose observations MuJoCo
    can go on."""
    count = PLAYED // 1_000
    envs, rng = make_vec("HalfCheetah-v5", count), np.random.default_rng(0)
    obs, _ = envs.reset(seed=0)
    steps = []
    for _ in range(1_000):
        action = rng.uniform(-1, 1, (count, 6))
        following, reward, *_ = envs.step(action.astype(np.float32))
        steps.append((obs.copy(), action, reward.copy()))
        obs = following
    envs.close()
    rows = [np.stack(arrays, 1) for arrays in zip(*steps, strict=True)]  # [environments, steps, ...]
    return data_file(path, *(array.reshape(PLAYED, *array.shape[2:]) for array in rows))


def measure_model_based(args: Any) -> list[dict[str, Any]]:
    """Measures the epochs of an ensemble, the updates of all methods, and rollouts, in turns with other code."""
    args = replace(args, env_id="HalfCheetah-v5")  # that of the random data of the updates
    cuda = choose_device(args.device).type == "cuda"
    peers, compiling = args.peers and not cuda, () if cuda else ("--compile",)
    if peers and args.offlinerl_kit is None:
        print("OfflineRL-Kit's own ensemble is left out: give the folder of a clone with --offlinerl-kit")
    rates: dict[str, list[float]] = {}
    seeds_of: dict[str, int] = {}
    rows_of: dict[str, list[float]] = {}  # rows of rollouts per second, of all seeds
    shares: dict[str, list[float]] = {}

    def add(name: str, seeds: int, rate: float) -> None:
        rates.setdefault(name, []).append(rate)
        seeds_of[name] = seeds
        print(f"{name}: {rate * seeds:,.1f} /s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        hopper = random_file(Path(folder) / "hopper.hdf5", ROWS, 11, 3)
        cheetah = random_file(Path(folder) / "cheetah.hdf5", ROWS, 17, 6)
        played = played_file(Path(folder) / "played_cheetah.hdf5")

        def seconds(script: str, seeds: int, *flags: str, data: Path = cheetah) -> float:
            """Seconds of 500 updates, after the first 500."""
            common = ("--dataset", str(data), "--eval-episodes", "0", *compiling)
            common += () if "--dynamics" in flags else ("--never-terminates",)
            log = script_log(script, replace(args, steps=LOG), seeds, *common, *flags, warm_up=LOG)
            return log[2 * LOG] - log[LOG]

        def add_rollouts(script: str, model: str, *flags: str, data: Path = cheetah) -> None:
            """Adds updates with a model. Its rollouts take what many of them take longer than few."""
            flags += ("--updates-per-epoch", str(LOG // GENERATIONS))
            few = seconds(script, 1, *flags, "--rollouts", "100", data=data)
            many = seconds(script, 1, *flags, "--rollouts", str(ROLLOUTS), data=data)
            generation, name = max(many - few, 1e-9) / GENERATIONS, f"{script}: updates with {model}, 1 seed"
            add(name, 1, LOG / few)
            rows_of.setdefault(name, []).append(ROLLOUTS * LENGTH / generation)
            shares.setdefault(name, []).append(generation / (generation + EPOCH * few / LOG))

        for _ in range(args.rounds):
            for seeds in (1, 5):
                flags = ("--dataset", str(hopper), "--eval-episodes", "0", "--never-terminates", *compiling)
                flags += ("--dynamics-epochs", "3", "--rollouts", "10")
                settings = replace(args, steps=0, env_id="Hopper-v5")
                log = script_log("mopo", settings, seeds, *flags, warm_up=1, metric="dynamics/seconds")
                batches = int(log.index[0])  # of an epoch
                add(named("ensemble: epochs", seeds), seeds, 2 / (log.iloc[2] - log.iloc[0]))
            if peers:
                rate = peer_rate("plain", replace(args, steps=batches), "--algorithm", "ensemble")
                add("plain ensemble: epochs, 1 seed", 1, rate / batches)
                if args.offlinerl_kit:
                    rate = peer_rate("offlinerl_kit", replace(args, steps=batches), "--code", str(args.offlinerl_kit))
                    add("offlinerl_kit ensemble: epochs, 1 seed", 1, rate / batches)
            for script in ("sac", "mopo"):
                stored = ("--algorithm", script, "--device", args.device)
                add(f"{script}: updates alone, 1 seed", 1, peer_rate("stored", args, *stored))
            for script, extra in (("mopo", ()), ("ravl", ("--critics", "10"))):
                for seeds in (1, 5):
                    add(
                        named(f"{script}: updates", seeds),
                        seeds,
                        LOG / seconds(script, seeds, "--real-ratio", "1", *extra),
                    )
            if peers:
                rate = peer_rate("plain", replace(args, steps=LOG), "--algorithm", "edac")
                add("plain edac: updates, 1 seed", 1, rate)
            for script, extra in (("mopo", ()), ("mobile", ()), ("ravl", ("--critics", "10"))):
                add_rollouts(script, "a model", *extra, "--dynamics-epochs", "1")
            add_rollouts("mopo", "MuJoCo itself", "--dynamics", "true", data=played)
    rows = []
    for name, values in rates.items():
        row: dict[str, Any] = {"name": name, "rate": statistics.median(values)}
        row["of all seeds"] = row["rate"] * seeds_of[name]
        one = f"{name.partition(',')[0]}, 1 seed"
        if seeds_of[name] > 1:
            row["ratio per seed"] = seeds_of[name] * median_ratio(values, rates[one])
        for ours, peer, column in COMPARED:
            if name.startswith(ours) and seeds_of[name] == 1 and f"{peer}, 1 seed" in rates:
                row[column] = median_ratio(values, rates[f"{peer}, 1 seed"])
        if name in shares:
            row["rows of rollouts/s"] = statistics.median(rows_of[name])
            row["share of an epoch"] = statistics.median(shares[name])
        rows.append(row)
    return rows
