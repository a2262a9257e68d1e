"""The speed of scripts that act in environments, with and without replay; see `benchmarks.throughput`."""

import contextlib
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from algos.device import choose_device
from benchmarks.timing import (
    LOG,
    WARM_UP,
    median_ratio,
    named,
    peer_rate,
    peers,
    script_log,
    script_rate,
    ways_of_updates,
)  # fmt: skip


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keeps this many other processes computing."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure_scripts(args: Any) -> list[dict[str, Any]]:
    """Measures SAC for one seed, ours and theirs, in every round, and many seeds and DSAC-T once."""
    cuda = choose_device(args.device).type == "cuda"
    libraries = [name for name, package in (("sb3", "stable_baselines3"), ("sbx", "sbx")) if peers(args, package)]
    kinds = [("".join(f" {flag}" for flag in flags), flags) for flags in ways_of_updates(cuda)]
    many = 16 if cuda else 4
    free: dict[str, list[float]] = {}  # rates in each round
    beside: dict[str, list[float]] = {}  # the same beside busy processes
    seeds_of: dict[str, int] = {}
    startups: dict[str, float] = {}

    def measure(name: str, rate: Callable[[], float]) -> None:
        for rates, others in ((free, 0), (beside, args.beside))[: 2 if args.beside else 1]:
            with busy(others):
                rates.setdefault(name, []).append(rate())
            print(f"{name}{f', beside {others}' * (others > 0)}: {rates[name][-1]:.0f} steps/s", flush=True)

    def measure_script(script: str, kind: str, flags: tuple[str, ...], seeds: int) -> None:
        name = named(script + kind, seeds)

        def rate() -> float:
            steps_per_second, startup = script_rate(script, args, seeds, *flags)
            startups[name] = min(startup, startups.get(name, math.inf))
            return steps_per_second

        seeds_of[name] = seeds
        measure(name, rate)

    for round_number in range(args.rounds):
        for kind, flags in kinds:
            measure_script("sac", kind, flags, 1)
        for library in libraries:
            measure(f"{library} sac, 1 seed", partial(peer_rate, library, args))
        if round_number == 0:
            for kind, flags in kinds:
                measure_script("sac", kind, flags, many)
                measure_script("dsac_t", kind, flags, 1)
                measure_script("dsac_t", kind, flags, many)
    rows = []
    for name in free:
        rate = statistics.median(free[name])
        row: dict[str, Any] = {"name": name, "rate": rate, "run-steps/s": rate * seeds_of.get(name, 1)}
        ours = name.startswith("sac") and name.endswith(" 1 seed")
        if args.beside:
            row[f"beside {args.beside}"] = statistics.median(beside[name])
            row["kept"] = median_ratio(beside[name], free[name])
        for library in libraries if ours else []:
            row[f"ratio to {library}"] = median_ratio(free[name], free[f"{library} sac, 1 seed"])
            if args.beside:
                theirs = beside[f"{library} sac, 1 seed"]
                row[f"ratio to {library}, beside {args.beside}"] = median_ratio(beside[name], theirs)
        row["seconds to step 2,000"] = startups.get(name, math.nan)
        rows.append(row)
    return rows


def measure_streams(args: Any) -> list[dict[str, Any]]:
    """Speed of many streaming learners on the same threads, how long they take to start, and whether they slow down."""
    kinds: list[tuple[str, int, tuple[str, ...]]]
    kinds = [(named("stream_ac", n), n, ()) for n in args.stream_seeds]
    if choose_device(args.device).type == "cpu":  # a GPU compiles always
        kinds.append(("stream_ac --no-compile, 1 seed", 1, ("--no-compile",)))
    logs: dict[str, list[pd.Series]] = {name: [] for name, *_ in kinds}
    third = max(args.steps // 3 // LOG, 1) * LOG
    for _ in range(args.rounds):
        for name, seeds, flags in kinds:
            logs[name].append(script_log("stream_ac", args, seeds, *flags))
            rate = args.steps / (logs[name][-1][WARM_UP + args.steps] - logs[name][-1][WARM_UP])
            print(f"{name}: {rate * seeds:,.0f} run-steps/s", flush=True)
    rows = []
    for name, seeds, _ in kinds:
        seconds = [log[WARM_UP + args.steps] - log[WARM_UP] for log in logs[name]]
        early = [log[WARM_UP + third] - log[WARM_UP] for log in logs[name]]
        late = [log[WARM_UP + args.steps] - log[WARM_UP + args.steps - third] for log in logs[name]]
        row: dict[str, Any] = {"name": name, "rate": args.steps / statistics.median(seconds)}
        row["run-steps/s"] = row["rate"] * seeds
        row["late / early"] = statistics.median(first / last for first, last in zip(early, late, strict=True))
        row["seconds to step 2,000"] = statistics.median(log[WARM_UP] for log in logs[name])
        rows.append(row)
    speeds = [row["run-steps/s"] for row, (_, seeds, _) in zip(rows, kinds, strict=True) if seeds >= 8]
    for row, (_, seeds, _) in zip(rows, kinds, strict=True):
        row["cost"] = max(speeds) / row["run-steps/s"] if seeds >= 8 else math.nan
    return rows


def measure_on_policy(args: Any) -> list[dict[str, Any]]:
    """Measures PPO for 1 to 64 seeds against Stable-Baselines3's, and the other scripts for eight seeds.

    Figures are over whole iterations of 2,048 steps, so `steps` is rounded up to them; the first one does not count.
    """
    with_peer = peers(args, "stable_baselines3")
    horizon, iterations = 2048, math.ceil(args.steps / 2048)
    kinds: list[tuple[str, str, int, tuple[str, ...]]] = []
    kinds += [(named("ppo", n), "ppo", n, ()) for n in (1, 8, 16, 32, 64)]
    eager = (1, 8) if choose_device(args.device).type == "cpu" else ()  # a GPU compiles always
    kinds += [(named("ppo --no-compile", n), "ppo", n, ("--no-compile",)) for n in eager]
    kinds += [(named(script, 8), script, 8, ()) for script in ("mdpo_on_policy", "trpo")]
    rates: dict[str, list[float]] = {}
    pairs = [(script, f"{script}, 1 seed") for script in ("sac", "mdpo_off_policy")]
    for _ in range(args.rounds):
        for name, script, seeds, flags in kinds:
            timed = replace(args, steps=horizon * iterations)
            log = script_log(script, timed, seeds, "--eval-episodes", "0", *flags, warm_up=horizon)
            log = log[log.index >= horizon]
            rates.setdefault(name, []).append((log.index[-1] - log.index[0]) / (log.iloc[-1] - log.iloc[0]))
            print(f"{name}: {rates[name][-1] * seeds:,.0f} run-steps/s", flush=True)
        if with_peer:
            rate = peer_rate("sb3", replace(args, steps=horizon * iterations), "--algorithm", "ppo")
            rates.setdefault("sb3 ppo, 1 seed", []).append(rate)
            print(f"sb3 ppo, 1 seed: {rate:,.0f} steps/s", flush=True)
        for script, name in pairs:
            rates.setdefault(name, []).append(script_rate(script, replace(args, steps=1_000), 1)[0])
            print(f"{name}: {rates[name][-1]:,.0f} steps/s", flush=True)
    seeds_of = {name: seeds for name, _, seeds, _ in kinds}
    sweep = [name for name in rates if name.startswith("ppo, ") and seeds_of[name] >= 8]
    fastest = max(statistics.median(rates[name]) * seeds_of[name] for name in sweep)
    rows = []
    for name, values in rates.items():
        seeds = seeds_of.get(name, 1)
        row: dict[str, Any] = {"name": name, "rate": statistics.median(values)}
        row["run-steps/s"] = row["rate"] * seeds
        if with_peer and name.startswith("ppo"):
            row["ratio to sb3"] = seeds * median_ratio(values, rates["sb3 ppo, 1 seed"])
        if name in sweep:
            row["cost"] = fastest / row["run-steps/s"]
        if name == pairs[1][1]:
            row["time / sac"] = median_ratio(rates[pairs[0][1]], values)
        rows.append(row)
    return rows
