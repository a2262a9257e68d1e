"""The speed of offline goal-conditioned scripts; see `benchmarks.throughput`."""

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from algos.data import load
from algos.device import choose_device
from algos.goal_conditioned import ValueArgs, transition_draws, transitions
from algos.goals import Goals
from algos.random import Random
from benchmarks.timing import median_ratio, named, output_of, random_file, script_log, thread_variables

ROWS = 100_000  # transitions of the random data
SIZES = ((512, 1024, 1), (256, 256, 5))  # width of the layers, batch size, seeds
METHODS = ("gcivl", "gciql", "hiql")


def measure_goals(args: Any) -> list[dict[str, Any]]:
    """Measures three methods with published sizes and with small ones, in turns with OGBench's own code."""
    cuda = choose_device(args.device).type == "cuda"
    flags_of: list[tuple[str, ...]] = [()] if cuda else [(), ("--compile",), ("--compile", "--bf16")]
    if args.ogbench is None:
        print("OGBench's own code is left out: give its folder with --ogbench, and a Python with jax")
    rates: dict[str, list[float]] = {}
    seeds_of: dict[str, int] = {}

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
                        add(name, seeds, ours(args, file, method, hidden, batch, seeds, updates, flags))
        share = sampling_seconds(args, file)
    rows = []
    for name, values in rates.items():
        row: dict[str, Any] = {"name": name, "rate": statistics.median(values)}
        row["run-updates/s"] = row["rate"] * seeds_of[name]
        method, size = name.split()[0], name.partition(" x ")[0].split()[-1]
        peer = next((n for n in rates if n.startswith(f"ogbench {method} {size} ")), "")
        if peer and peer != name:
            row["ratio to ogbench"] = seeds_of[name] * median_ratio(values, rates[peer])
        if name.startswith("gcivl") and seeds_of[name] == 1:
            row["share of sampling"] = share * row["rate"]
        rows.append(row)
    return rows


def ours(
    args: Any, file: Path, method: str, hidden: int, batch: int, seeds: int, updates: int, flags: tuple[str, ...]
) -> float:
    """Updates per second of each seed."""
    data = ("--dataset", str(file), "--eval-episodes", "0", "--batch-size", str(batch))
    widths = ("--hidden", *[str(hidden)] * 3)
    settings = replace(args, steps=updates, env_id="pointmaze-medium-v0")
    seconds = script_log(method, settings, seeds, *data, *widths, *flags, warm_up=updates, log_every=updates)
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


def sampling_seconds(args: Any, file: Path, batch: int = 1024, count: int = 200) -> float:
    """Seconds of one batch of transitions with goals."""
    if args.threads:
        torch.set_num_threads(args.threads)
    device = choose_device(args.device)
    goals = Goals(load(str(file)).to(device))
    settings, draws = ValueArgs(dataset=str(file)), transition_draws(Random([0], device), batch)
    for number in range(2 * count):
        if number == count:
            started = time.perf_counter()
        transitions(goals, settings, draws())
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / count
