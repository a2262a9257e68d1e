"""Reference scores for normalisation: 0 is the uniformly random policy, measured here, 1 is a published score.

    python -m benchmarks.random_policy --out benchmarks/references/random_sac.csv
    python -m benchmarks.random_policy --experts --out benchmarks/references/recipes.csv

For every task of a table of published scores, the task's v5 form is played by the random policy. With `--experts`, 1 is
what this project's own experts return, whose policies the recipes of datasets use.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import tyro
from torch import Tensor

from algos.errors import UserError
from algos.evaluate import Evaluator
from algos.run import report_errors
from benchmarks.suite import HERE, read_published
from envs.locomotion import POLICIES, TASKS, Policy
from envs.seeding import sub_seed


@dataclass
class Args:
    published: Path = HERE / "published" / "sac_1m.csv"
    """table of the scores that become 1"""
    experts: bool = False
    """the returns of the expert policies that ship (envs/policies) become 1, and --published is not read"""
    episodes: int = 100
    """episodes of the random policy"""
    out: Path | None = None
    """the table of references: task, low, high, source; by default runs/random_sac.csv, of experts runs/recipes.csv"""


def random_return(env_id: str, episodes: int) -> float:
    """Mean return of the uniformly random policy."""
    evaluator = Evaluator(env_id, [0], episodes, torch.device("cpu"))
    space = evaluator.venv.single_action_space
    rng = np.random.default_rng(sub_seed(0, "random policy"))

    def policy(obs: Tensor) -> Tensor:
        return torch.as_tensor(rng.uniform(space.low, space.high, (1, episodes, *space.shape)))  # type: ignore[attr-defined,misc]

    returns, _ = evaluator(policy, 0)
    evaluator.close()
    return float(returns.mean())


def published(path: Path) -> Iterator[tuple[str, float, str]]:
    """v5 id, score and source of each task of a table."""
    for row in read_published(path).itertuples():
        yield f"{row.task.rpartition('-')[0]}-v5", row.score, f"{row.algorithm} on {row.task}, {row.source}"


def own_experts() -> Iterator[tuple[str, float, str]]:
    """Id, return and source of each expert policy that ships."""
    for task, env_id in TASKS.items():
        if not (path := POLICIES / f"{task}-expert.safetensors").exists():
            continue
        facts = Policy(path).facts
        about = f"{task}-expert of envs/policies, SAC after {facts['steps']:,} steps, {facts['episodes']} episodes"
        yield env_id, facts["return"], about


def main(args: Args) -> None:
    if args.episodes < 1:
        raise UserError(f"--episodes must be at least 1, got {args.episodes}")
    rows = []
    for env_id, high, source in own_experts() if args.experts else published(args.published):
        low = round(random_return(env_id, args.episodes), 3)
        source = f"low: random policy, {args.episodes} episodes; high: {source}"
        rows.append({"task": env_id, "low": low, "high": high, "source": source})
        print(f"{env_id:<26} {low:>10.2f} {high:>10.2f}")
    out = args.out or Path("runs") / ("recipes.csv" if args.experts else "random_sac.csv")
    out.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(out, index=False)


if __name__ == "__main__":
    report_errors(lambda: main(tyro.cli(Args, description=__doc__)))
