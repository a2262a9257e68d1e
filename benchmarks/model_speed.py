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


class Rates:
    """What was measured in several rounds, by name."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {}
        self.seeds: dict[str, int] = {}
        self.more: dict[str, list[dict[str, float]]] = {}  # other columns

    def add(self, name: str, seeds: int, rate: float, **more: float) -> None:
        """Adds what a round found: a rate of each of some seeds, and other columns."""
        self.rates.setdefault(name, []).append(rate)
        self.seeds[name] = seeds
        self.more.setdefault(name, []).append(more)
        total = rate * seeds
        print(f"{name}: {total:,.{1 if total >= 1 else 3}f} /s", flush=True)

    def rows(self) -> list[dict[str, Any]]:
        """Medians over rounds, and medians of ratios within rounds."""
        rows = []
        for name, values in self.rates.items():
            row: dict[str, Any] = {"name": name, "rate": statistics.median(values)}
            row["of all seeds"] = row["rate"] * self.seeds[name]
            one = f"{name.partition(',')[0]}, 1 seed"
            if self.seeds[name] > 1:
                row["ratio per seed"] = self.seeds[name] * median_ratio(values, self.rates[one])
            for ours, peer, column in COMPARED:
                if name.startswith(ours) and self.seeds[name] == 1 and f"{peer}, 1 seed" in self.rates:
                    row[column] = median_ratio(values, self.rates[f"{peer}, 1 seed"])
            for column in self.more[name][0]:
                row[column] = statistics.median(found[column] for found in self.more[name])
            rows.append(row)
        return rows


def peers_and_flags(args: Any) -> tuple[bool, tuple[str, ...]]:
    """Whether other code is measured too, and the flags by which scripts are compiled."""
    cuda = choose_device(args.device).type == "cuda"
    return args.peers and not cuda, () if cuda else ("--compile",)


def measure_ensembles(args: Any) -> list[dict[str, Any]]:
    """Measures the epochs of an ensemble, in turns with other code."""
    peers, compiling = peers_and_flags(args)
    args = replace(args, env_id="Hopper-v5")
    if peers and args.offlinerl_kit is None:
        print("OfflineRL-Kit's own ensemble is left out: give the folder of a clone with --offlinerl-kit")
    rates = Rates()
    with tempfile.TemporaryDirectory() as folder:
        hopper = random_file(Path(folder) / "hopper.hdf5", ROWS, 11, 3)
        for _ in range(args.rounds):
            for seeds in (1, 5):
                flags = ("--dataset", str(hopper), "--eval-episodes", "0", "--never-terminates", *compiling)
                flags += ("--dynamics-epochs", "3", "--rollouts", "10")
                log = script_log("mopo", replace(args, steps=0), seeds, *flags, warm_up=1, metric="dynamics/seconds")
                batches = int(log.index[0])  # of an epoch
                rates.add(named("ensemble: epochs", seeds), seeds, 2 / (log.iloc[2] - log.iloc[0]))
            if peers:
                rate = peer_rate("plain", replace(args, steps=batches), "--algorithm", "ensemble")
                rates.add("plain ensemble: epochs, 1 seed", 1, rate / batches)
                if args.offlinerl_kit:
                    rate = peer_rate("offlinerl_kit", replace(args, steps=batches), "--code", str(args.offlinerl_kit))
                    rates.add("offlinerl_kit ensemble: epochs, 1 seed", 1, rate / batches)
    return rates.rows()


def measure_model_based(args: Any) -> list[dict[str, Any]]:
    """Measures the updates of all methods, and rollouts, in turns with other code."""
    args = replace(args, env_id="HalfCheetah-v5")  # that of the random data of the updates
    peers, compiling = peers_and_flags(args)
    rates = Rates()
    with tempfile.TemporaryDirectory() as folder:
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
            rows, share = ROLLOUTS * LENGTH / generation, generation / (generation + EPOCH * few / LOG)
            rates.add(name, 1, LOG / few, **{"rows of rollouts/s": rows, "share of an epoch": share})

        for _ in range(args.rounds):
            for script in ("sac", "mopo"):
                stored = ("--algorithm", script, "--device", args.device)
                rates.add(f"{script}: updates alone, 1 seed", 1, peer_rate("stored", args, *stored))
            for script, extra in (("mopo", ()), ("ravl", ("--critics", "10"))):
                for seeds in (1, 5):
                    rates.add(
                        named(f"{script}: updates", seeds),
                        seeds,
                        LOG / seconds(script, seeds, "--real-ratio", "1", *extra),
                    )
            if peers:
                rate = peer_rate("plain", replace(args, steps=LOG), "--algorithm", "edac")
                rates.add("plain edac: updates, 1 seed", 1, rate)
            for script, extra in (("mopo", ()), ("mobile", ()), ("ravl", ("--critics", "10"))):
                add_rollouts(script, "a model", *extra, "--dynamics-epochs", "1")
            add_rollouts("mopo", "MuJoCo itself", "--dynamics", "true", data=played)
    return rates.rows()
