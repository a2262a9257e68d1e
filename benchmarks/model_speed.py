"""The speed of offline model-based scripts; see `benchmarks.throughput`."""

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from algos.device import choose_device
from benchmarks.timing import LOG, median_ratio, named, peer_rate, random_file, script_log, script_rate

ROWS = 100_000  # transitions of the random data
GENERATIONS = 2  # epochs in the updates that are timed
ROLLOUTS, LENGTH, EPOCH = 50_000, 5, 1_000  # rollouts, their steps, and updates of an epoch in the published protocol


def measure_model_based(args: Any) -> list[dict[str, Any]]:
    """Measures the epochs of an ensemble, the updates of all methods, and rollouts, in turns with plain code."""
    args = replace(args, env_id="HalfCheetah-v5")  # that of the random data of the updates
    cuda = choose_device(args.device).type == "cuda"
    peers, compiling = args.peers and not cuda, () if cuda else ("--compile",)
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

        def seconds(script: str, seeds: int, *flags: str) -> float:
            """Seconds of 500 updates, after the first 500."""
            common = ("--dataset", str(cheetah), "--eval-episodes", "0", "--never-terminates", *compiling)
            log = script_log(script, replace(args, steps=LOG), seeds, *common, *flags, warm_up=LOG)
            return log[2 * LOG] - log[LOG]

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
            sac, _ = script_rate("sac", replace(args, steps=LOG), 1, "--actor-delay", "1", *compiling)
            add("sac: updates, 1 seed", 1, sac)
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
                flags = (*extra, "--dynamics-epochs", "1", "--updates-per-epoch", str(LOG // GENERATIONS))
                few = seconds(script, 1, *flags, "--rollouts", "100")
                many = seconds(script, 1, *flags, "--rollouts", str(ROLLOUTS))
                generation, name = max(many - few, 1e-9) / GENERATIONS, f"{script}: updates with a model, 1 seed"
                add(name, 1, LOG / few)
                rows_of.setdefault(name, []).append(ROLLOUTS * LENGTH / generation)
                shares.setdefault(name, []).append(generation / (generation + EPOCH * few / LOG))
    rows = []
    for name, values in rates.items():
        row: dict[str, Any] = {"name": name, "rate": statistics.median(values)}
        row["of all seeds"] = row["rate"] * seeds_of[name]
        one = f"{name.partition(',')[0]}, 1 seed"
        if seeds_of[name] > 1:
            row["ratio per seed"] = seeds_of[name] * median_ratio(values, rates[one])
        plain = {"ensemble": "plain ensemble", "ravl": "plain edac", "mopo": "sac"}.get(name.partition(":")[0], "")
        beside = f"{plain}:{name.partition(':')[2]}"
        if beside in rates:
            row["ratio to sac" if plain == "sac" else "ratio to plain"] = median_ratio(values, rates[beside])
        if name in shares:
            row["rows of rollouts/s"] = statistics.median(rows_of[name])
            row["share of an epoch"] = statistics.median(shares[name])
        rows.append(row)
    return rows
