"""Measures the return of the uniformly random policy, which scores 0 beside a published return that scores 1.

    python -m benchmarks.random_policy --out benchmarks/references/random_sac.csv
    python -m benchmarks.random_policy --experts --out benchmarks/references/recipes.csv

The random policy plays the v5 form of every task in a table of published scores. With `--experts`, the returns of this
project's own expert policies score 1 instead; the recipes of datasets use these policies.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from algos.arguments import Several, check
from algos.cli import check_env_id, run_command
from algos.evaluate import Evaluator, maker
from algos.folders import writable
from benchmarks.recipes.locomotion import POLICIES, TASKS, Policy
from benchmarks.suite import BENCHMARKS, read_published
from envs.seeding import sub_seed


@dataclass
class Args:
    published: Path = BENCHMARKS / "published" / "sac_1m.csv"
    """table of published returns, which score 1"""
    experts: bool = False
    """let the returns of the expert policies in benchmarks/recipes/policies score 1; --published is not read"""
    episodes: Several = 100
    """number of episodes that the random policy plays"""
    out: Path | None = None
    """table to write: task, low, high, source; by default runs/random_sac.csv, or runs/recipes.csv with --experts"""


def random_return(env_id: str, episodes: int) -> float:
    """Mean return of the uniformly random policy."""
    evaluator = Evaluator(maker(env_id), [0], episodes)
    space = evaluator.venv.single_action_space
    rng = np.random.default_rng(sub_seed(0, "random policy"))

    def policy(obs: Tensor) -> Tensor:
        return torch.as_tensor(rng.uniform(space.low, space.high, (1, episodes, *space.shape)))  # type: ignore[attr-defined,misc]

    (scores,) = evaluator(policy, 0)
    evaluator.close()
    return float(np.mean([score.total for score in scores]))


def published(path: Path) -> Iterator[tuple[str, float, str]]:
    """The v5 id, score and source of each task in a table."""
    for row in read_published(path).itertuples():
        yield f"{row.task.rpartition('-')[0]}-v5", row.score, f"{row.algorithm} on {row.task}, {row.source}"


def own_experts() -> Iterator[tuple[str, float, str]]:
    """The task's id, the return and the source of each expert policy of this project."""
    for task, env_id in TASKS.items():
        if not (path := POLICIES / f"{task}-expert.safetensors").exists():
            continue
        training = Policy(path).training
        about = f"{task}-expert of benchmarks/recipes/policies, SAC after {training['steps']:,} steps"
        yield env_id, training["return"], f"{about}, {training['episodes']} episodes"


def main(args: Args) -> None:
    check(args)
    tasks = list(own_experts() if args.experts else published(args.published))
    for env_id, *_ in tasks:
        check_env_id(env_id)
    out = args.out or Path("runs") / ("recipes.csv" if args.experts else "random_sac.csv")
    writable(out.parent)
    rows = []
    for env_id, high, source in tasks:
        low = round(random_return(env_id, args.episodes), 3)
        source = f"low: random policy, {args.episodes} episodes; high: {source}"
        rows.append({"task": env_id, "low": low, "high": high, "source": source})
        print(f"{env_id:<26} {low:>10.2f} {high:>10.2f}")
    pd.DataFrame(rows).to_csv(out, index=False)


if __name__ == "__main__":
    run_command(main)
