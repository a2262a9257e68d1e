r"""DSAC-T's learning check on Pendulum-v1 under the paper's protocol of 20 environment steps per update.

    python single_file/dsac_t.py --env-id Pendulum-v1 --seeds 0:5 --total-steps 250000 --env-steps-per-update 20 \
        --eval-every 2000 --eval-episodes 5 --variant paper_protocol
    python -m benchmarks.pendulum_check runs/Pendulum-v1/dsac_t/paper_protocol --out results/pendulum

From update 7,000 on, the mean of any 10 consecutive evaluations (100 updates apart) must be above -250 for every seed;
the authors' own log of one seed has -147 to -175 there. Writes check.md and exits with 1 if the check fails.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
import tyro

from algos.cli import run_command
from algos.errors import UserError
from algos.folders import writable
from benchmarks.load_scores import load
from benchmarks.tables import table_of

WARM_UP, PER_UPDATE, FIRST, LIMIT = 10_000, 20, 7_000, -250.0


@dataclass
class Args:
    folder: Annotated[Path, tyro.conf.Positional]
    """the run's folder"""
    out: Path = Path("runs/compared")
    """where check.md goes"""


def check(scores: pd.DataFrame) -> pd.DataFrame:
    """The lowest mean of 10 consecutive evaluations from update 7,000 on, and the last such mean, for each seed."""
    rows = []
    for seed, frame in scores.groupby("seed"):
        means = frame.set_index("step")["return"].rolling(10).mean()
        means.index = (means.index - WARM_UP) // PER_UPDATE
        late = means[means.index >= FIRST]
        if late.empty:
            raise UserError(f"the run of seed {seed} ends before update {FIRST:,}")
        lowest, last = float(late.min()), float(late.iloc[-1])
        passed = "yes" if lowest > LIMIT else "no"
        rows.append({"seed": seed, "lowest mean of 10": lowest, "last mean of 10": last, "above -250": passed})
    return pd.DataFrame(rows)


def main(args: Args) -> None:
    table = check(load([args.folder]).table)
    writable(args.out)
    first, *_ = (__doc__ or "").splitlines()
    command = f"python -m benchmarks.pendulum_check {shlex.join([str(args.folder), '--out', str(args.out)])}"
    lines = [f"# {first}", f"`{command}`", table_of(table).markdown()]
    (args.out / "check.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    print(table.to_string(index=False, float_format="{:.1f}".format))
    if "no" in set(table["above -250"]):
        raise SystemExit(1)


if __name__ == "__main__":
    run_command(main)
