"""A leaderboard of offline goal-conditioned methods: published success beside that of the stored results.

    python -m benchmarks.leaderboard results --out results/leaderboard

Each row is a set of published runs, or of runs of this repository with the same length and the same networks. Success
is the percentage of episodes that reach their goal, over all tasks of a dataset. Our data is made by our own recipes:
for point mazes and manipulation by OGBench's controllers and scripted oracles, for ant mazes by another ant than
OGBench's. Published numbers are means over seeds with their standard deviation, by the protocols that are named below;
ours have a 95% interval over seeds, and say how many episodes of each task an evaluation has and which evaluations
count.

OUT gets page.md and success.csv.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import tyro

from algos.cli import run_command
from algos.errors import UserError
from algos.folders import writable
from algos.stored import Config, read_csv, read_json
from benchmarks.scores import LABELS
from benchmarks.stored import Report
from benchmarks.suite import ROOT, read_published
from benchmarks.tables import Table, escape, word

METHODS = ("GCBC", "GCIVL", "GCIQL", "QRL", "CRL", "HIQL", "OTA")
PUBLISHED = ROOT / "benchmarks" / "published" / "goal_conditioned.csv"
KEYS = ["dataset", "runs", "method"]


@dataclass
class Args:
    folder: Annotated[Path, tyro.conf.Positional] = Path("results")
    """folder of stored reports"""
    out: Path = Path("results/leaderboard")
    """where the page goes"""


def published() -> pd.DataFrame:
    """Published success: dataset, runs, method, text, mean, and the place of the row, which is 0."""
    table = read_published(PUBLISHED)
    text = [f"{row.score:g}" + (f" ± {row.spread:g}" if row.spread == row.spread else "") for row in table.itertuples()]
    found = {"dataset": table["task"].str.partition("/")[2], "runs": "published", "method": table["algorithm"]}
    return pd.DataFrame(found | {"text": text, "mean": table["score"], "steps": 0})


def stored(folder: Path) -> pd.DataFrame:
    """The same of stored runs in the form and with the settings of OGBench's code, by each report's headline score."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*/report.json")):
        sources = read_json(path.parent / "sources.json", list[Config])
        ours = {(c["task"], c["algorithm"]): c["args"] for c in sources if c["variant"] == "default"}
        score = read_json(path, Report)["score"]
        keys = ["task", "algorithm", "score"]
        table = read_csv(path.parent / "tasks.csv", [*keys, "mean", "low", "high", "seeds", "steps"], keys)
        for row in table[table["score"] == score].itertuples():
            args = ours.get((row.task, row.algorithm), {})
            method = str(row.algorithm).upper()
            if method not in METHODS or not args or args.get("anchors", "transitions") != "transitions":
                continue  # other methods, variants, and GCBC in the form of RvS
            widths = args["hidden"]
            networks = f"{len(widths)} × {widths[0]}" if len(set(widths)) == 1 else " × ".join(map(str, widths))
            runs = (
                f"ours ({path.parent.name}): {row.steps:,} updates of batches of {args['batch_size']:,}, "
                f"networks {networks}; {row.seeds} seeds, {args['eval_episodes']} episodes, {LABELS[score]}"
            )
            text = f"{row.mean:.0f} [{row.low:.0f}, {row.high:.0f}]"
            found = {"dataset": str(row.task).partition("/")[2], "runs": runs, "method": method}
            rows.append(found | {"text": text, "mean": row.mean, "steps": row.steps})
    return pd.DataFrame(rows, columns=[*KEYS, "text", "mean", "steps"])


def tables(success: pd.DataFrame) -> dict[str, Table]:
    """A table for each family of datasets, those with stored runs first."""
    own = set(success.loc[success["steps"] > 0, "dataset"])
    families = success["dataset"].str.partition("-")[0]
    order = sorted(dict.fromkeys(families), key=lambda family: not any(name.startswith(family) for name in own))
    made = {}
    for family in order:
        table = made[family] = Table(["dataset", "runs", *METHODS], [])
        mine = success[families == family]
        for (dataset, _, runs), group in mine.groupby(["dataset", "steps", "runs"], sort=False):
            text = group.set_index("method")["text"]
            table.rows.append([word(dataset), word(runs), *(word(text.get(method, "–")) for method in METHODS)])
    return made


def main(args: Args) -> None:
    own = stored(args.folder)
    if own.empty:
        raise UserError(f"there is no report on methods with goals in {args.folder}")
    success = pd.concat([published(), own]).sort_values(["dataset", "steps"], kind="stable")
    about = [" ".join(text.split()) for text in (__doc__ or "").split("\n\n")]
    lines = ["# Offline goal-conditioned methods: published and ours", about[2]]
    for family, table in tables(success).items():
        lines += [f"## {family}", table.markdown()]
    source = read_published(PUBLISHED)
    lines.append("Published numbers come from " + "; ".join(escape(text) for text in source["source"].unique()) + ".")
    lines += [f"> {escape(text)}" for text in source["protocol"].unique()]
    reports = own["runs"].str.extract(r"\((\w+)\)")[0].unique()
    lines.append("Reports on ours: " + ", ".join(f"[{name}](../{name}/report.md)" for name in reports) + ".")
    lines.append(
        f"`{shlex.join(['python', '-m', 'benchmarks.leaderboard', str(args.folder), '--out', str(args.out)])}`"
    )
    writable(args.out)
    (args.out / "page.md").write_text("\n\n".join(lines) + "\n")
    success.drop(columns="text").to_csv(args.out / "success.csv", index=False)
    print(args.out / "page.md")


if __name__ == "__main__":
    run_command(main)
