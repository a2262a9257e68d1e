"""The speed of offline goal-conditioned scripts; see `benchmarks.throughput`."""

import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro

from algos.compile import compiled
from algos.data import load
from algos.device import choose_device, take, wait
from algos.goals import Clusters, Goals
from algos.random import Random
from benchmarks.timing import median_ratio, named, output_of, random_file, script_log, thread_variables, ways_of_updates

ROWS = 100_000  # transitions of the random data
SIZES = ((512, 1024, 1), (256, 256, 5))  # width of the layers, batch size, seeds
METHODS = ("gcivl", "gciql", "hiql")
OTHERS = ("gcbc", "crl", "qrl", "ota")  # with published sizes alone
RVS = (
    "--goal", "position", "--anchors", "trajectories", "--loss", "mse", "--augment", "0.5", "--hidden", "1024", "1024",
)  # fmt: skip


def measure_goals(args: Any) -> list[dict[str, Any]]:
    """Measures all methods with published sizes, and some with small ones, in turns with OGBench's own code."""
    cuda = choose_device(args.device).type == "cuda"
    flags_of = ways_of_updates(cuda)
    fast = () if cuda else ("--compile",)
    if args.ogbench is None:
        print("OGBench's own code is left out: give its folder with --ogbench, and a Python with jax")
    rates: dict[str, list[float]] = {}
    seeds_of: dict[str, int] = {}
    sampled: dict[str, tuple[str, tuple[str, ...]]] = {}  # rows of one seed: method and flags of their batches

    def add(name: str, seeds: int, rate: float) -> None:
        rates.setdefault(name, []).append(rate)
        seeds_of[name] = seeds
        print(f"{name}: {rate * seeds:,.2f} updates/s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        file = random_file(Path(folder) / "random.hdf5", ROWS, 2, 2)
        for _ in range(args.rounds):
            for method in METHODS:
                for hidden, batch, seeds in SIZES:
                    updates = max(args.steps * 256 // batch // 10, 10)
                    size = f" {hidden} x 3, batch {batch}"
                    if args.ogbench is not None:
                        add(f"ogbench {method}{size}, 1 seed", 1, theirs(args, method, hidden, batch, updates))
                    for flags in flags_of:
                        name = named(" ".join([method, *flags]) + size, seeds)
                        add(name, seeds, ours(args, file, method, batch, seeds, updates, *widths(hidden), *flags))
                        if seeds == 1:
                            sampled[name] = method, flags
            updates = max(args.steps // 40, 10)
            for title, method, size, flags in (
                *((method, method, "512 x 3", widths(512)) for method in OTHERS),
                ("gcbc as RvS", "gcbc", "1024 x 2", RVS),
            ):
                name = " ".join([title, *fast, f"{size}, batch 1024, 1 seed"])
                add(name, 1, ours(args, file, method, 1_024, 1, updates, *flags, *fast))
                sampled[name] = method, (*flags, *fast)
        sampling = {name: sampling_seconds(args, file, *known) for name, known in sampled.items()}
    rows = []
    for name, values in rates.items():
        row: dict[str, Any] = {"name": name, "rate": statistics.median(values)}
        row["run-updates/s"] = row["rate"] * seeds_of[name]
        method, size = name.split()[0], name.partition(" x ")[0].split()[-1]
        peer = next((n for n in rates if n.startswith(f"ogbench {method} {size} ")), "")
        if peer and peer != name:
            row["ratio to ogbench"] = seeds_of[name] * median_ratio(values, rates[peer])
        if name in sampling:
            row["share of sampling"] = sampling[name] * row["rate"]
        rows.append(row)
    return rows


def widths(hidden: int) -> tuple[str, ...]:
    """Flags of three layers of this width."""
    return ("--hidden", *[str(hidden)] * 3)


def ours(args: Any, file: Path, method: str, batch: int, seeds: int, updates: int, *flags: str) -> float:
    """Updates per second of each seed."""
    data = ("--dataset", str(file), "--eval-episodes", "0", "--batch-size", str(batch))
    settings = replace(args, steps=updates, env_id="pointmaze-medium-v0")
    seconds = script_log(method, settings, seeds, *data, *flags, warm_up=updates, log_every=updates)
    return updates / (seconds[2 * updates] - seconds[updates])


def theirs(args: Any, method: str, hidden: int, batch: int, updates: int) -> float:
    """Updates per second of OGBench's own code."""
    script = Path(__file__).with_name("ogbench_speed.py")
    python = str(args.ogbench_python or sys.executable)
    command = [python, str(script), method, "--hidden", str(hidden), "--batch-size", str(batch)]
    environment = thread_variables(args) | {"PYTHONPATH": str(args.ogbench), "JAX_PLATFORMS": "cpu"}
    if args.threads == 1:
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    return float(output_of([*command, "--updates", str(updates)], environment).split()[-1])


def sampling_seconds(args: Any, file: Path, method: str, flags: Sequence[str] = (), count: int = 200) -> float:
    """Seconds of one published batch of a method for one seed, with goals and random numbers, as updates make it."""
    if args.threads:
        torch.set_num_threads(args.threads)
    device, script = take(choose_device(args.device)), importlib.import_module(f"single_file.{method}")
    settings = tyro.cli(script.Args, args=["--dataset", str(file), "--batch-size", "1024", *flags])
    goals = Goals(load(str(file)).to(device), final_states=getattr(settings, "anchors", "") == "trajectories")
    agent = getattr(script, method.upper())(settings, goals.data.task, [0], device)
    draws = agent.draws(Random([0], device))
    if method == "gcbc":
        groups = Clusters(goals, settings.clusters, 2) if settings.augments else None
        batch: Callable[..., Any] = partial(agent.batch, goals, groups)
    else:
        batch = partial(agent.batch, goals)
    batch = compiled(batch, device, "--compile" in flags)
    for number in range(2 * count):
        if number == count:
            wait(device)
            started = time.perf_counter()
        batch(draws())
    wait(device)
    return (time.perf_counter() - started) / count
