"""Exact answers about tables: values of the best and the random policy, and the effective horizon.

    python -m benchmarks.horizon minigrid-empty-5x5 minigrid-empty-5x5-sticky frozen-lake-4x4-h100
    python -m benchmarks.horizon maze.npz --horizon 30 --out runs/horizon

A table has S states and A actions, an episode has H decisions, and rho is the probability that the last action is
repeated. J* and J_rand are the returns of the best and of the random policy. J_k is the return of the greedy policy on
Q^k that breaks its ties worst; Q^1 is the value of the random policy, and each further one is a backup of Bellman's
optimality operator. min_k is the least k for which every greedy policy is optimal up to rounding; official is the same
up to 1e-4, as in the authors' code, and lucky_k the least k for which one greedy policy is. The gap is the least
distance in Q^k, for k = min_k, from the greatest value to that of the best action that is not optimal, over all states
that greedy policies reach. epw, the effective planning window, is the same as min_k, but begins from the reward of one
step. H_simple is the simple bound on the effective horizon, for tables without chance only.

With --out, a folder gets all of this as horizon.csv and horizon.md, with a figure for each table.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro
from matplotlib.figure import Figure
from numpy.typing import NDArray

from algos.arguments import FewOrNone, PositiveFraction, check
from algos.cli import run_command
from algos.errors import UserError
from algos.folders import writable
from algos.run_folder import folder_name
from benchmarks import figures
from benchmarks.tables import Cell, Table, purpose
from envs.make import TABULAR
from envs.tabular import Analysis, load_table
from envs.tabular import Table as FiniteTable
from envs.tabular.exact import EXACT, TIE
from envs.tabular.tasks import FAMILIES, horizon_of, table_of

SHOWN = 5  # the k up to which returns and gaps are shown
LINES = (("S", "A", "H", "rho", "discount", "digest"), ("J*", "J_rand", *(f"J_{k}" for k in range(1, SHOWN + 1))),
         ("min_k", "official", "lucky_k", "gap", "epw", "H_simple"))  # fmt: skip


@dataclass
class Args:
    tasks: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """names of tables, with or without tabular/, and .npz files of this project or of BRIDGE"""
    all_of: str = ""
    """also take all tables whose names begin with this, without and with sticky actions"""
    horizon: FewOrNone = 0
    """decisions of an episode for .npz files, which those of BRIDGE need; 0: as the file says"""
    discount: PositiveFraction = 1.0
    """gamma of all values; published analyses have 1"""
    out: Path | None = None
    """folder for a card of the tables"""


def table(task: str, horizon: int) -> FiniteTable:
    """The table of a name or in a file."""
    return load_table(Path(task), horizon or None) if task.endswith(".npz") else table_of(task)


def row(task: str, analysis: Analysis) -> dict[str, Any]:
    """All columns; None where there is no value."""
    table, best = analysis.table, analysis.best_return
    min_k = analysis.min_k(TIE, EXACT)
    returns = {f"J_{k}": analysis.greedy_return(k) if k <= table.horizon else None for k in range(1, SHOWN + 1)}
    lucky = (k for k in range(1, (min_k or SHOWN) + 1) if best - analysis.greedy_return(k, lucky=True) <= EXACT)
    return {
        "task": task, "S": table.states, "A": table.actions, "H": table.horizon, "rho": table.sticky,
        "discount": analysis.discount, "J*": best, "J_rand": analysis.random_return, **returns, "min_k": min_k,
        "official": analysis.min_k(), "lucky_k": next(lucky, None),
        "gap": analysis.greedy(analysis.q(min_k), TIE, EXACT).gap if min_k else None,
        "epw": analysis.planning_window(TIE, EXACT),
        "H_simple": analysis.effective_horizon() if table.deterministic else None, "digest": table.digest(),
    }  # fmt: skip


def shown(value: Any) -> str:
    """A value as the terminal and the card show it."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def gaps(analysis: Analysis, ks: range) -> NDArray[np.float64]:
    """The least gap of Q^k at each decision [k, H] over all states that the random policy can reach.

    It is 0 where an action that is not optimal is greedy, and NaN where all actions are optimal.
    """
    table = analysis.table
    least = np.full((len(ks), table.horizon), math.nan)
    reached = np.zeros((table.states, table.actions + 1), bool)
    reached[table.start > 0, -1] = True
    for t in range(table.horizon):
        lacking = analysis.lacking(t, EXACT)
        here = reached.any(1) & lacking.any(1)
        for row, k in zip(least, ks, strict=True):
            q = analysis.q(k)
            gap = (q[t].max(-1) - np.where(lacking, q[t], -math.inf).max(-1))[here] * analysis.influence(t)
            if gap.size:
                row[t] = gap.min() if gap.min() > TIE * max(np.abs(q).max(), 1.0) else 0.0
        reached = analysis.successors(analysis.executed(t, reached, np.ones(lacking.shape, bool)))
    return least


def draw(task: str, analysis: Analysis, min_k: int | None) -> Figure:
    """The gaps of Q^k over time, and the returns of greedy policies by k."""
    horizon = analysis.table.horizon
    ks, more = (range(1, min(most, horizon) + 1) for most in (SHOWN, max(SHOWN, min_k or 0)))
    figure = Figure(figsize=(9.2, 4.0))
    left, right = figure.subplots(1, 2)
    least = gaps(analysis, ks)
    positive = least[least > 0]
    note = "crosses: 0, a greedy action is not optimal" if (least == 0).any() else "no line: all actions are optimal"
    left.set(title="Gaps of the values Q^k", xlabel=f"decision ({note})", ylabel="least gap", yticks=[])
    left.set_xlim(-0.5, horizon - 0.5)
    for k, color, row in zip(ks, figures.ramp(SHOWN), least, strict=False):
        look: Any = {"color": color, "zorder": 2 + k, "linewidth": 5 - 0.8 * k}  # lines on each other are all seen
        left.plot(np.where(row > 0, row, math.nan), ".-", markersize=8 - k, label=f"k = {k}", **look)
        wrong = np.where(row == 0, 0.20 - 0.035 * k, math.nan)
        left.plot(wrong, "x", color=color, markersize=4, transform=left.get_xaxis_transform())
    if positive.size:
        low, high = np.log10([positive.min(), positive.max()])
        margin = max(high - low, 0.5)
        left.set(yscale="log", ylim=(10 ** (low - 0.4 * margin), 10 ** (high + 0.1 * margin)))
        left.yaxis.set_major_formatter(lambda gap, _: f"{gap:g}" if gap > positive.min() / 2 else "")
        left.minorticks_off()
    right.axhline(analysis.best_return, color=figures.INK, label="J*, the best policy")
    right.axhline(analysis.random_return, color=figures.INK, linestyle=":", label="J_rand, the random policy")
    for lucky, color, size, name in ((True, figures.COLORS[2], 3.5, "best"), (False, figures.COLORS[0], 1.5, "worst")):
        values = [analysis.greedy_return(k, lucky=lucky) for k in more]
        right.plot(more, values, "o-", color=color, ms=3 + size, linewidth=size, label=f"J_k, ties broken {name}")
    right.set(title="Returns of greedy policies", xlabel="k", ylabel="return")
    for axes, columns in ((left, SHOWN), (right, 2)):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, fontsize=8, handlelength=1.5)
    figure.suptitle(task)
    return figure


def card(rows: list[dict[str, Any]], images: list[str]) -> str:
    """The rows and figures as Markdown."""
    cells: list[list[Cell]] = [[(shown(v), v if isinstance(v, str) else 0.0) for v in row.values()] for row in rows]
    plots = [f"![{row['task']}: gaps and returns]({image}.png)" for row, image in zip(rows, images, strict=True)]
    table = Table(list(rows[0]), cells).markdown().replace("J*", r"J\*")
    return "\n\n".join(["# Exact answers about tables", table, purpose(__doc__), *plots]) + "\n"


def run(args: Args) -> None:
    found = [name for name in FAMILIES if args.all_of and name.startswith(args.all_of)]
    if args.all_of and not found:
        raise UserError(f"--all-of {args.all_of}: no table has a name that begins so; names are {', '.join(FAMILIES)}")
    given = [task if task.endswith(".npz") else task.removeprefix(TABULAR) for task in args.tasks]
    tasks = list(dict.fromkeys([*given, *(name + kind for name in found for kind in ("", "-sticky"))]))
    if not tasks:
        raise UserError("name at least one table, such as minigrid-empty-5x5-sticky, or an .npz file")
    if args.horizon and not any(task.endswith(".npz") for task in tasks):
        raise UserError(f"--horizon is for .npz files: write chain-h{args.horizon} for a table by name")
    for task in tasks:  # before the work begins
        table(task, args.horizon) if task.endswith(".npz") else horizon_of(task)
    for task in tasks:
        table(task, args.horizon)  # makes those that are not in the cache
    rows, images = [], []
    if args.out is not None:
        writable(args.out)
    for number, task in enumerate(tasks, 1):
        print(f"{task} ({number} of {len(tasks)})", flush=True)
        analysis = Analysis(table(task, args.horizon), args.discount)
        rows.append(row(task, analysis))
        for names in LINES:
            print("   " + "".join(f" {name} {shown(rows[-1][name])}  " for name in names).rstrip(), flush=True)
        if args.out is not None:
            image = folder_name(task)
            images.append(f"{image}-{number}" if image in images else image)
            with figures.style():
                figures.save(draw(task, analysis, rows[-1]["min_k"]), args.out / images[-1], ("png",))
    if args.out is not None:
        pd.DataFrame(rows, dtype=object).to_csv(args.out / "horizon.csv", index=False)
        (args.out / "horizon.md").write_text(card(rows, images), encoding="utf-8")
        print(args.out / "horizon.md")


def main(args: Args) -> None:
    check(args)
    try:
        run(args)
    except (ValueError, ModuleNotFoundError) as error:  # what tables raise
        raise UserError(str(error)) from None


if __name__ == "__main__":
    run_command(main)
