"""The speed of scripts for discrete actions and of exact answers; see `benchmarks.throughput`."""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from algos.device import choose_device
from benchmarks.timing import SCRIPTS, median_ratio, named, output_of, peer_rate, peers, script_rate, thread_variables
from envs.tabular.exact import Analysis
from envs.tabular.tasks import FAMILIES, STICKINESS

TASK = "CartPole-v1"
KINDS = (("", ()), (" --compile", ("--compile",)))
GRIDS = [
    name for name in FAMILIES if name.startswith("minigrid-") and not name.endswith(("-doors", "-pickup", "-lava"))
]


def measure_discrete(args: Any) -> list[dict[str, Any]]:
    """Measures DQN on CartPole against Stable-Baselines3's, SQIRL for one and ten seeds, and the tables of MiniGrid."""
    cuda = choose_device(args.device).type == "cuda"
    with_peer = peers(args, "stable_baselines3")
    settings, peer = replace(args, env_id=TASK), "sb3 dqn, 1 seed"
    rates: dict[str, list[float]] = {}
    seeds_of: dict[str, int] = {peer: 1}

    def add(name: str, seeds: int, rate: float) -> None:
        rates.setdefault(name, []).append(rate)
        seeds_of[name] = seeds
        print(f"{name}: {rate * seeds:,.0f} run-steps/s", flush=True)

    for _ in range(args.rounds):
        for kind, flags in KINDS[:1] if cuda else KINDS:
            for seeds in (1, 8):
                rate, _ = script_rate("dqn", settings, seeds, "--eval-episodes", "0", *flags)
                add(named(f"dqn{kind}", seeds), seeds, rate)
        if with_peer:
            add(peer, 1, peer_rate("sb3", settings, "--algorithm", "dqn"))
        for form, seeds in (("network", 1), ("network", 10), ("table", 100)):
            add(named(f"sqirl --form {form}", seeds), seeds, sqirl_rate(settings, form, seeds))
    rows = []
    for name, values in rates.items():
        row: dict[str, Any] = {"name": name, "rate": statistics.median(values)}
        row["run-steps/s"] = row["rate"] * seeds_of[name]
        if with_peer and name.startswith("dqn"):
            row["ratio to sb3"] = seeds_of[name] * median_ratio(values, rates[peer])
        if name == named("sqirl --form network", 10):
            row["time / 1 seed"] = median_ratio(rates[named("sqirl --form network", 1)], values)
        rows.append(row)
    return [*rows, *table_rows()]


def sqirl_rate(args: Any, form: str, seeds: int) -> float:
    """Steps per second of each seed, over a whole run: FrozenLake with the network, a gate with the table."""
    if form == "table":
        flags = ["--env-id", "tabular/gate-0.375", "--form", "table", "--k", "3", "--m", "512"]
    else:
        flags = ["--env-id", "tabular/frozen-lake-4x4", "--m", "300", "--lr", "1e-3", "--total-steps", "30000"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(SCRIPTS / "sqirl.py"), *flags, "--seeds", f"0:{seeds}", "--out", folder]
        command += ["--eval-every", "1000000", "--device", args.device, "--threads", str(args.threads), "--quiet"]
        output_of(command, thread_variables(args))
        config = json.loads(next(Path(folder).rglob("config.json")).read_text(encoding="utf-8"))
    return statistics.mean(config["taken"]) / config["seconds"]


def table_rows() -> list[dict[str, Any]]:
    """Seconds in which the tables of MiniGrid are made and analysed, with and without sticky actions, on one core."""
    rows, total = [], 0.0
    for name in GRIDS:
        started = time.perf_counter()
        table = FAMILIES[name].make(name, FAMILIES[name].horizon)
        made = time.perf_counter()
        analysis = Analysis(table)
        analysis.q(5)
        layers = time.perf_counter()
        for sticky in (0.0, STICKINESS):
            whole = Analysis(table.with_sticky(sticky))
            whole.min_k(), whole.planning_window(), [whole.greedy_return(k) for k in range(1, 6)]
        done = time.perf_counter()
        total += done - started
        if table.states > 1_000:
            rows.append({"name": f"{name}, {table.states:,} states: table", "seconds": made - started})
            rows.append({"name": f"{name}: Q^1 to Q^5", "seconds": layers - made})
    return [*rows, {"name": f"{len(GRIDS)} tables of MiniGrid with their analysis", "seconds": total}]
