"""Evaluates the trained policies of a run, many episodes at once.

    python -m benchmarks.evaluate runs/Hopper-v5/sac/default
    python -m benchmarks.evaluate runs/Hopper-v5/sac/default --seeds best 3 --episodes 500
    python -m benchmarks.evaluate runs/Hopper-v5/sac/default --env-id Hopper-v5 --env-option "healthy_z_range=[0.5,10]"

It plays episodes that training never saw, which depend on the seed of a run and on nothing else. RUN is the folder of a
run. In OUT, episodes.parquet has one row for each episode, runs.csv the table that is printed, and evaluation.json what
was evaluated. Tables (ids `tabular/…`) are evaluated exactly, without episodes.
"""

import json
import math
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro
from tqdm import tqdm

from algos.arguments import FewOrNone, Range, check
from algos.checkpoint import write_atomically
from algos.cli import run_command
from algos.errors import UserError
from algos.evaluate import Evaluator
from algos.folders import writable
from algos.run_folder import folder_name, git_commit, parquet_bytes
from algos.tables import run_name
from benchmarks.plan import digest
from benchmarks.trained import Place, Trained, check_words, episode_rows
from envs.make import TABULAR

AT_ONCE = 500  # environments


@dataclass
class Args:
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """folder of a run, such as runs/Hopper-v5/sac/default"""
    seeds: tuple[str, ...] = ()
    """seeds to evaluate: `best`, `median`, `worst` by the last 10% of training, or numbers; by default all that did not
    diverge"""
    episodes: Annotated[int, Range(1, 10_000)] = 100
    """episodes of each seed, and of each task where there are several; tables are evaluated exactly, without any"""
    setting: tuple[str, ...] = ()
    """evaluate the runs with these hyperparameters only, such as `tau=0.01`"""
    env_id: str = ""
    """Gymnasium id of the environment; by default that of the run"""
    env_option: tuple[str, ...] = ()
    """options of the environment, such as `xml_file=./other.xml` or `max_episode_steps=500`"""
    out: Path | None = None
    """folder for the tables; by default RUN/evaluation/<environment>"""
    threads: FewOrNone = 0
    """CPU threads of physics; 0: one for each core"""


def evaluated(trained: Trained, place: Place, numbers: list[int], episodes: int, threads: int | None) -> pd.DataFrame:
    """The episodes of the runs with these numbers: seed, setting, [task], episode, return, length, [success]."""
    tasks = max(1, len(place.tasks))
    rows: list[dict[str, Any]] = []
    exact = place.env_id.startswith(TABULAR)
    most = max(1, AT_ONCE // tasks)
    counts = [1] if exact else [min(most, episodes - done) for done in range(0, episodes, most)]
    together = max(1, AT_ONCE // (counts[0] * tasks))  # runs; one, if its episodes do not fit
    with tqdm(
        total=len(numbers) * len(counts), unit=" parts", disable=not sys.stderr.isatty(), leave=False
    ) as progress:
        for start in range(0, len(numbers), together):
            part = numbers[start : start + together]
            policy = trained.file.policy(part)
            first = 0
            for count in counts:
                evaluator = place.evaluator(policy, count, threads, first)
                numbered = [e for _, e in evaluator.places] if isinstance(evaluator, Evaluator) else [0]
                scores = evaluator(policy.act, 0, "after training")
                rows += episode_rows(scores, [trained.file.runs[number] for number in part], numbered)
                evaluator.close()
                first += count
                progress.update(len(part))
    frame = pd.DataFrame(rows)
    there = {"task": (frame["task"] != "").any(), "success": frame["success"].notna().any()}
    return frame.drop(columns=[name for name, is_there in there.items() if not is_there])


def summary(frame: pd.DataFrame, varied: list[str]) -> pd.DataFrame:
    """One row for each run and task: episodes, mean, its standard error, std, min, median and max of returns, …

    Where an episode had an action or a reward that is no finite number, mean, std, min, median, max and success are
    NaN.
    """
    keys = ["seed", *varied, *(["task"] if "task" in frame else [])]
    columns: dict[str, Any] = {
        "episodes": ("return", "size"), "mean": ("return", "mean"), "std": ("return", "std"), "min": ("return", "min"),
        "median": ("return", "median"), "max": ("return", "max"), "length": ("length", "mean"),
    }  # fmt: skip
    groups = frame.groupby(keys, sort=False)
    table = groups.agg(**columns)
    broken = groups["return"].agg(lambda values: not np.isfinite(values).all()).astype(bool)
    table.loc[broken, ["mean", "std", "min", "median", "max"]] = np.nan
    table.insert(2, "standard_error", table["std"] / np.sqrt(table["episodes"]))
    if "success" in frame:
        table["success"] = (
            100.0 * frame.assign(success=frame["success"].astype(float)).groupby(keys, sort=False)["success"].mean()
        )
        table.loc[broken, "success"] = np.nan
    return table.reset_index()


def check_earlier(out: Path, said: dict[str, Any]) -> None:
    """Raises UserError if a folder has an evaluation of the same policies with more of them or with more episodes.

    `said` is what the new evaluation.json will say.
    """
    try:
        earlier = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
        alike = all(earlier[name] == said[name] for name in ("algorithm", "variant", "step", "env_id", "options"))
        there = [*said["runs"], *said["diverged"]]
        fewer = not all(run in there for run in earlier["runs"]) or earlier["episodes"] > said["episodes"]
    except (OSError, ValueError, KeyError, TypeError):  # none, or a damaged one
        return
    if alike and fewer:
        raise UserError(
            f"{out} has {earlier['episodes']:,} episodes of {len(earlier['runs'])} runs already, which "
            f"{said['episodes']:,} of {len(said['runs'])} would replace: take as many, or another --out"
        )


def main(args: Args) -> None:
    check(args)
    check_words(args)
    trained = Trained(args.run)
    place = Place(trained, args.env_id, args.env_option)
    numbers = trained.numbers(args.seeds, args.setting)
    lost = [trained.file.runs[number] for number in trained.left_out(args.seeds, args.setting)]
    own = trained.file.environment["options"]
    nothing: tuple[Any, ...] = ([], None)
    other = {
        n: value
        for n, value in place.options.items()
        if own.get(n, []) != value and not (value in nothing and own.get(n) in nothing)
    }
    options = "".join(f"-{name}-{value}" for name, value in other.items()) if not place.is_own else ""
    name = "".join(
        c if c.isalnum() or c in "-._" else "_"
        for c in folder_name(place.env_id) + options + "".join(f"-{word}" for word in (*args.seeds, *args.setting))
    )
    out = args.out or trained.folder / "evaluation" / (
        name if len(name) <= 150 else f"{name[:130]}-{digest({'name': name})}"
    )
    every = trained.config.get("taken", [])
    taken = [every[number] for number in numbers] if every else []
    said = {
        "command": f"python -m benchmarks.evaluate {shlex.join(sys.argv[1:])}",
        "algorithm": trained.config["algorithm"], "variant": trained.config["variant"], "step": trained.file.step,
        "taken": taken,
        "own": place.is_own,
        "env_id": place.env_id, "options": place.options, "tasks": place.tasks,
        "episodes": 1 if place.env_id.startswith(TABULAR) else args.episodes,
        "runs": [trained.file.runs[number] for number in numbers],
        "diverged": lost,
        "commit": git_commit(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    check_earlier(out, said)
    place.try_out(trained.file.policy(numbers))  # before anything is written
    writable(out)
    started = time.monotonic()
    frame = evaluated(trained, place, numbers, args.episodes, args.threads or None)
    varied = trained.config.get("varied", [])
    table = summary(frame, varied)
    write_atomically(out / "episodes.parquet", parquet_bytes(frame))
    write_atomically(out / "runs.csv", table.to_csv(index=False).encode())
    write_atomically(out / "evaluation.json", json.dumps(said, indent=2).encode())

    set_to = {n: value for n, value in place.options.items() if n in other or value not in ([], False, None)}
    where = place.env_id + (f" with {set_to}" if set_to else "")
    least, most = (min(taken), max(taken)) if taken else (trained.file.step, trained.file.step)
    after = f"{most:,}" if least == most else f"{least:,} to {most:,}"  # some stopped early
    print(f"{trained.config['algorithm']} after {after} steps in {where}:\n")
    shown = table.dropna(axis=1, how="all").astype(dict.fromkeys(varied, str))
    print(shown.to_string(index=False, float_format=lambda v: f"{v:,.1f}" if abs(v) >= 100 else f"{v:.4g}"))
    if lost:
        print(f"\nleft out, because they diverged: {'; '.join(map(run_name, lost))}")
    column = "success" if trained.measure == "success" else "mean"
    means = table.groupby(["seed", *varied], sort=False)[column].agg(lambda values: values.mean(skipna=False))
    keys = [trained.file.runs[number] for number in numbers]
    broken = means.isna()
    if broken.any():
        names = "; ".join(run_name(key) for key, is_so in zip(keys, broken, strict=True) if is_so)
        print(f"\nno finite action or reward in some episodes, and so no mean: {names}")
    spread = ""
    if (count := means.count()) > 1:
        best = run_name(keys[int(np.nanargmax(means))])
        settings = {tuple(key[name] for name in varied) for key in keys}
        over = f"mean over {count} runs {means.mean():,.4g}, std over them {means.std():,.4g}, "
        spread = f"; {over if len(settings) == 1 else ''}best {best}"  # runs of different settings have no common mean
    seconds = math.ceil(time.monotonic() - started)
    print(f"\n{len(frame):,} episode{'s' * (len(frame) != 1)} in {seconds} s{spread}; tables in {out}")


if __name__ == "__main__":
    run_command(main)
