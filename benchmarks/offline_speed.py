"""The speed of scripts that learn from a dataset; see `benchmarks.throughput`."""

import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from algos.data import Dataset
from algos.device import choose_device, take, wait
from algos.random import Random
from benchmarks.timing import LOG, named, peer_rate, peers, random_file, script_log


def measure_offline(args: Any) -> list[dict[str, Any]]:
    """Measures IQL for one seed, ours and theirs, in every round, and many seeds and the other scripts once."""
    cuda = choose_device(args.device).type == "cuda"
    with_peer = peers(args, "d3rlpy")
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
            if with_peer:
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
        if name.startswith("iql") and seeds == 1 and with_peer:
            pairs = zip(values, rates["d3rlpy iql, 1 seed"], strict=True)
            row["ratio to d3rlpy"] = statistics.median(ours / theirs for ours, theirs in pairs)
        row[f"seconds to step {LOG}"] = startup
        rows.append(row)
    rate = sampling_rate(args)
    rows.append(
        {"name": "sampling alone, 1 seed", "rate": rate, "run-updates/s": rate, "share of iql": rows[0]["rate"] / rate}
    )
    return rows


def sampling_rate(args: Any, count: int = 4_000_000) -> float:
    """Minibatches of 256 per second from `count` transitions of HalfCheetah's sizes."""
    if args.threads:
        torch.set_num_threads(args.threads)
    device = take(choose_device(args.device))
    data = Dataset("random", torch.rand(count + 1, 17 + 6 + 2), torch.arange(count), 17, 6).to(device)
    choice = Random([0], device).integers("minibatch", 256)
    rates = []
    for _ in range(args.rounds + 1):  # the first is a warm-up
        started = time.perf_counter()
        for _ in range(args.steps):
            data.gather(data.choose(choice()))
        wait(device)
        rates.append(args.steps / (time.perf_counter() - started))
    return statistics.median(rates[1:])
