"""A leaderboard of offline goal-conditioned methods: published success beside that of the stored results.

    python -m benchmarks.leaderboard results --out results/leaderboard

The numbers are the percentage of episodes that reach their goal, over all tasks of a dataset: means of the last three
evaluations. Published ones have the standard deviation over seeds where it is known, and come from longer runs of
larger networks, see the end; ours have a 95% interval over seeds. There is a row for each report and size of runs of
ours; a run may be in two reports, after different numbers of updates. Their data is made by our own recipes, for point
mazes by OGBench's controller, and for ant mazes by another ant than OGBench's.

OUT gets page.md and success.csv.
"""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro

from algos.cli import run_command
from algos.errors import UserError
from algos.folders import writable
from algos.stored import Config, read_csv, read_json
from benchmarks.suite import ROOT, read_published
from benchmarks.tables import Table, escape, purpose, word

METHODS = ("GCBC", "GCIVL", "GCIQL", "QRL", "CRL", "HIQL", "OTA")
PUBLISHED = ROOT / "benchmarks" / "published" / "goal_conditioned.csv"
THEIRS = "published"
FORM = {"anchors": "transitions", "goal": "state", "loss": "likelihood", "augment": 0.0}  # of GCBC
SCORE = "three"  # the mean of the last three evaluations
COLUMNS = ["dataset", "runs", "method", "text", "mean", "low", "high", "std", "seeds", "updates", "report"]


@dataclass
class Args:
    folder: Annotated[Path, tyro.conf.Positional] = Path("results")
    """folder of stored reports"""
    out: Path = Path("results/leaderboard")
    """where the page goes"""


def published() -> pd.DataFrame:
    """Published success, a row for each dataset and method: COLUMNS."""
    table = read_published(PUBLISHED)
    table["text"] = [
        f"{row.score:g}" + (f" ± {row.spread:g}" if row.spread == row.spread else "") for row in table.itertuples()
    ]
    table["dataset"], table["runs"] = table["task"].str.partition("/")[2], THEIRS
    table["updates"] = np.where(table["protocol"].str.contains("1M updates"), 1_000_000, np.nan)
    names = {"algorithm": "method", "score": "mean", "spread": "std"}
    return table.rename(columns=names).reindex(columns=COLUMNS)


def stored(folder: Path) -> pd.DataFrame:
    """The same of stored runs whose method has the form of OGBench's code, without variants: COLUMNS."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*/report.json")):
        sources = read_json(path.parent / "sources.json", list[Config])
        ours = {(c["task"], c["algorithm"]): c["args"] for c in sources if c["variant"] == "default"}
        keys = ["task", "algorithm", "score"]
        table = read_csv(path.parent / "tasks.csv", [*keys, "mean", "low", "high", "std", "seeds", "steps"], keys)
        mazes = {task for task, algorithm in ours if algorithm.upper() in METHODS}
        others = sorted({algorithm for task, algorithm in ours if task in mazes and algorithm.upper() not in METHODS})
        if others:
            print(f"note: {', '.join(others)} of {path.parent} are no columns of this table, and are left out")
        for row in table[table["score"] == SCORE].itertuples():
            args = ours.get((row.task, row.algorithm), {})
            method = str(row.algorithm).upper()
            if method not in METHODS or not args or any(args.get(name, value) != value for name, value in FORM.items()):
                continue
            origin, _, dataset = str(row.task).partition("/")
            widths = args["hidden"]
            networks = f"{len(widths)} × {widths[0]}" if len(set(widths)) == 1 else " × ".join(map(str, widths))
            name = path.parent.name + (f", {origin}'s data" if origin != "local" else "")
            runs = (
                f"ours ({name}): {row.steps:,} updates of batches of {args['batch_size']:,}, networks "
                f"{networks}; {row.seeds} seed{'s' * (row.seeds > 1)}, {args['eval_episodes']} episodes"
            )
            found = {"dataset": dataset, "runs": runs, "method": method, "mean": row.mean}
            found |= {"low": row.low, "high": row.high, "std": row.std, "seeds": row.seeds, "updates": row.steps}
            interval = f" [{row.low:.0f}, {row.high:.0f}]" if row.seeds > 1 else ""
            found["report"] = path.parent.name
            rows.append(found | {"text": f"{row.mean:.0f}{interval}"})
    return pd.DataFrame(rows, columns=COLUMNS)


def tables(success: pd.DataFrame) -> dict[str, Table]:
    """A table for each family of datasets; families of which there are runs of ours come first."""
    own = set(success.loc[success["runs"] != THEIRS, "dataset"])
    families = success["dataset"].str.partition("-")[0]
    order = sorted(dict.fromkeys(families), key=lambda family: not any(name.startswith(family) for name in own))
    made = {}
    for family in order:
        table = made[family] = Table(["dataset", "runs", *METHODS], [])
        mine = success[families == family]
        for (dataset, runs), group in mine.groupby(["dataset", "runs"], sort=False):
            text = group.set_index("method")["text"]
            table.rows.append([word(dataset), word(runs), *(word(text.get(method, "–")) for method in METHODS)])
    return made


def main(args: Args) -> None:
    own = stored(args.folder)
    if own.empty:
        raise UserError(f"there is no report on methods with goals in {args.folder}")
    success = pd.concat([published(), own.sort_values("updates", kind="stable")]).sort_values("dataset", kind="stable")
    lines = ["# Offline goal-conditioned methods: published and ours", purpose(__doc__)]
    for family, table in tables(success).items():
        lines += [f"## {family}", table.markdown()]
    for (source, protocol), rows in read_published(PUBLISHED).groupby(["source", "protocol"], sort=False):
        lines.append(f"> {escape(f'{len(rows)} published numbers, from {source}: {protocol}')}")
    there = Path(os.path.relpath(args.folder, args.out)).as_posix()
    links = (f"[{name}]({there}/{name}/report.md)" for name in own["report"].unique())
    lines.append(f"Reports on ours: {', '.join(links)}.")
    lines.append(
        f"`{shlex.join(['python', '-m', 'benchmarks.leaderboard', str(args.folder), '--out', str(args.out)])}`"
    )
    writable(args.out)
    (args.out / "page.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    success.drop(columns="text").to_csv(args.out / "success.csv", index=False)
    print(args.out / "page.md")


if __name__ == "__main__":
    run_command(main)
