"""Measures the speed of environments and scripts, and compares it with other libraries, in turns.

    python -m benchmarks.throughput          scripts: sac.py against SAC of Stable-Baselines3 and SBX; dsac_t.py
    python -m benchmarks.throughput envs     batched MuJoCo against gymnasium.make_vec(..., "sync")
    python -m benchmarks.throughput streams --threads 1          stream_ac.py with 1 to 64 streaming learners
    python -m benchmarks.throughput offline                      offline scripts; iql.py against d3rlpy's IQL
    python -m benchmarks.throughput on_policy                    on-policy scripts; ppo.py against Stable-Baselines3's
    python -m benchmarks.throughput model_based                  updates and rollouts with a model; against other code
    python -m benchmarks.throughput ensembles                    epochs of an ensemble; against OfflineRL-Kit's
    python -m benchmarks.throughput goal_conditioned             goal-conditioned scripts; against OGBench's own code
    python -m benchmarks.throughput discrete                     dqn.py against Stable-Baselines3's; SQIRL and tables
    python -m benchmarks.throughput scripts --beside 1           the same, and again beside one busy process

The command prints a table and writes JSON. Every figure is in steps per second of the whole loop (acting, environment,
replay, update, logging) after a warm-up. A ratio is the median over rounds of the ratio of two figures of one round.
Where a row has several seeds, ratios to other libraries compare steps of all seeds together with those of one run of
the library, whose process has as many threads; several of its processes at once were not measured. Ensembles and
scripts with a model are compiled, and the plain code and the library beside them are not. If a peer is not installed,
it is left out and a line says so. `seconds to step …` shows what compilation costs at the start. sac.py and dsac_t.py
are measured for one seed and for four, iql.py for one and for five, and the other offline scripts for five; on CUDA,
sixteen seeds take the place of four and of five.

In the table of environments, `ratio` compares with Gymnasium's vector of the same environments, one after the other.
`physics share` is the part of its time that MuJoCo's own steps take, and `ratio's ceiling` what the ratio would be if
all cores computed these and nothing else took any time.

With `scripts --beside N`, each figure is measured a second time while N other processes compute without a pause. `kept`
is that figure divided by the one without them. Scripts take fewer threads then, and other libraries keep theirs, which
wait for each other: ratios beside busy processes are mostly those of threads.

In the table of streaming learners, `cost` is the time of a run-step divided by the shortest of those with 8 or more
seeds, and `late / early` is the rate in the last third of the steps divided by the rate in the first.

In the table of on-policy scripts, `cost` is the same over ppo.py with 8 or more seeds, and `time / sac` is the time of
a step of mdpo_off_policy.py divided by that of sac.py.

In the table of offline scripts, steps are updates with batches of 256 from random data of HalfCheetah's sizes.
`sampling alone` draws minibatches from four million transitions, and `share of iql` is its part of an update of iql.py
for one seed.

In the tables of ensembles and of scripts with a model, `ratio to plain` compares with the arithmetic of OfflineRL-Kit's
ensemble and of CORL's EDAC, written plainly in torch's modules (benchmarks/plain_models.py), and `ratio to
offlinerl_kit` with the library's own ensemble, which needs a clone of its repository: `--offlinerl-kit OfflineRL-Kit`.
An epoch of an ensemble is one over 100,000 transitions of Hopper's sizes, and an update has a batch of 256 of
HalfCheetah's; ensembles_shared_core.json is of a machine whose two threads shared the units of one core. `updates
alone` are those of an agent without the rest of its script; `ratio to sac` compares with those of sac.py on the same
data, which sample the actor once more for the temperature. `share of an epoch` is the part of rollouts in an epoch of
1,000 updates.

In the table of goal-conditioned scripts, `ratio to ogbench` compares run-updates with one run of OGBench's own code,
which needs a clone of its repository and an environment with jax, flax, optax, distrax and ml_collections:
`--ogbench ogbench/impls --ogbench-python jax/bin/python`. `share of sampling` is the time that random numbers,
goals and states of a batch take by themselves, compiled where the update is, divided by that of an update. `gcbc as
RvS` has the networks and goals of that form, and goal augmentation (see gcbc.py). goal_conditioned_avx2.json is of
another processor, one without AVX-512 and instructions for bfloat16, in a single round.

In the table of discrete actions, DQN learns on CartPole; the network form of SQIRL runs on FrozenLake, and `time / 1
seed` is the time of a step of all seeds together divided by that of one alone; its table form runs on a gate chain.

    python -m benchmarks.throughput tables --out results/throughput

writes all stored JSON as Markdown.
"""

import json
import platform
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import torch
import tyro

from algos.arguments import Count, FewOrNone, Range, Several, check
from algos.cli import check_env_id, run_command
from algos.device import choose_device, device_name
from algos.errors import UserError, describe
from algos.folders import writable
from algos.run_folder import git_commit, versions
from benchmarks.discrete_speed import measure_discrete
from benchmarks.env_speed import measure_envs
from benchmarks.goal_speed import measure_goals
from benchmarks.model_speed import measure_ensembles, measure_model_based
from benchmarks.offline_speed import measure_offline
from benchmarks.offlinerl_kit import check_code
from benchmarks.online_speed import measure_on_policy, measure_scripts, measure_streams
from benchmarks.tables import table_of
from benchmarks.timing import (
    LOG,
    check_actions,
)
from envs.cores import core_count

What = Literal[
    "scripts", "envs", "streams", "offline", "on_policy", "model_based", "ensembles", "goal_conditioned", "discrete",
    "tables",
]  # fmt: skip


@dataclass
class Args:
    what: Annotated[What, tyro.conf.Positional] = "scripts"
    """the measurement; `tables` writes the stored ones as Markdown"""
    rounds: Several = 3
    """every figure is measured this many times, in turns"""
    beside: Annotated[int, Range(0, 1_000)] = 0
    """measure again while this many other processes compute without a pause (scripts)"""
    stream_seeds: Annotated[tuple[int, ...], Range(1, 10_000)] = (1, 8, 16, 32, 64)
    """numbers of seeds (streams)"""
    num_envs: Several = 16
    """environments of a batch (envs)"""
    env_ids: tuple[str, ...] = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
    """tasks (envs)"""
    env_id: str = "HalfCheetah-v5"
    """task (scripts, streams, on_policy)"""
    threads: FewOrNone = 0
    """CPU threads of torch (all but envs); 0: the default of each script and library"""
    steps: Count = 3_000
    """environment steps or updates that are timed, in multiples of 500 (scripts, streams, offline, on_policy, DQN; for
    goal_conditioned a fixed part of it); other rows have lengths of their own"""
    device: str = "auto"
    """device on which scripts train: cpu, cuda or auto"""
    peers: bool = True
    """measure the other libraries too (scripts, offline, on_policy, model_based, ensembles, discrete, on a CPU)"""
    ogbench: Path | None = None
    """folder `impls` of a clone of OGBench's repository, as a peer of the goal-conditioned scripts; it runs on the
    CPU"""
    ogbench_python: Path | None = None
    """the Python that runs it; this one if not given"""
    offlinerl_kit: Path | None = None
    """folder of a clone of OfflineRL-Kit, as a peer (ensembles, on a CPU)"""
    out: Path = Path("runs/throughput")
    """the JSON goes to OUT/<measurement>.json"""


def rounded(rate: float) -> str:
    """A rate in whole numbers, or with three digits if it is small."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def portable(word: str) -> str:
    """A word of a command line, without the folders of an absolute path, which say nothing on another machine."""
    return Path(word).name if Path(word).is_absolute() else word


def definitions() -> str:
    """What the columns of the tables mean: the paragraphs of this module's text but for its commands."""
    text = (__doc__ or "").partition("writes JSON. ")[2].rpartition("\n\n    ")[0]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def write_tables(folder: Path) -> None:
    """Writes README.md with a table for each stored measurement; raises UserError if there is none."""
    parts = ["# Throughput", definitions()]
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UserError(f"--out: there is no measurement in {folder}")
    for path in paths:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            table = pd.DataFrame(record["rows"]).rename(columns={"rate": "steps/s"})
            origin = f"{record['date']}, commit {record['commit']}, {record['device']}, {record['machine']}"
            parts.append(f"`{record['command']}` ({origin}):\n\n{table_of(table).markdown()}")
        except (OSError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"--out: {path} holds no measurement of this command ({describe(error)})") from None
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(folder / "README.md")


def main(args: Args) -> None:
    check(args)
    if args.ogbench is not None and not (args.ogbench / "agents" / "gcivl.py").is_file():
        raise UserError(f"--ogbench takes the folder impls of a clone of OGBench's repository, got {args.ogbench}")
    if args.ogbench_python is not None and args.ogbench is None:
        raise UserError("--ogbench-python runs the code of --ogbench: give that too")
    if args.offlinerl_kit is not None:
        check_code("--offlinerl-kit", args.offlinerl_kit)
    if args.beside and args.what != "scripts":
        raise UserError(f"--beside is for scripts only, got {args.beside} with {args.what}")
    if args.what == "tables":
        write_tables(args.out)
        return
    if args.what != "envs":
        choose_device(args.device)
    if args.what == "envs" and not args.env_ids:
        raise UserError("--env-ids names no environment")
    for env_id in args.env_ids if args.what == "envs" else (args.env_id,):
        check_env_id(env_id, "--env-ids" if args.what == "envs" else "--env-id")
        if args.what in ("envs", "scripts", "on_policy"):
            check_actions(env_id)
    writable(args.out)
    args = replace(args, steps=max(args.steps // LOG, 1) * LOG)
    measurements = {
        "envs": measure_envs, "scripts": measure_scripts, "streams": measure_streams, "offline": measure_offline,
        "on_policy": measure_on_policy, "model_based": measure_model_based, "ensembles": measure_ensembles,
        "goal_conditioned": measure_goals, "discrete": measure_discrete,
    }  # fmt: skip
    rows = measurements[args.what](args)
    table = pd.DataFrame(rows).set_index("name").rename(columns={"rate": "steps/s"})
    fine = ("ratio", "physics", "share", "late", "cost", "kept", "time")
    shown = table.apply(lambda c: c.map("{:.2f}".format if str(c.name).startswith(fine) else rounded))
    print(shown.replace("nan", "").to_string())
    if args.what != "envs" and args.threads:
        torch.set_num_threads(args.threads)  # as in the scripts, for the device's name
    device = torch.device("cpu") if args.what == "envs" else choose_device(args.device)
    record = {
        "command": " ".join(["python -m benchmarks.throughput", *map(portable, sys.argv[1:])]),
        "commit": git_commit(),
        "date": time.strftime("%Y-%m-%d"),
        "device": device_name(device),
        "machine": f"{platform.machine()} with {torch.backends.cpu.get_cpu_capability()}, {core_count()} cores",
        "versions": versions(),
        "arguments": {k: portable(str(v)) for k, v in vars(args).items()},
        "rows": rows,
    }
    path = args.out / f"{args.what}.json"
    path.write_text(json.dumps(record, indent=2), encoding="utf-8")
    print(f"written to {path}")


if __name__ == "__main__":
    run_command(main)
