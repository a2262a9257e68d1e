"""Sample complexities of algorithms on tables, beside each other and beside what the tables say exactly.

    python -m benchmarks.sweep effective_horizon --seeds-per-job 5
    python -m benchmarks.sweep effective_horizon_minigrid --seeds-per-job 5
    python -m benchmarks.effective_horizon runs/effective_horizon* --out results/effective_horizon

`benchmarks.sample_complexity` says what counts as a solution, and which step, seed and setting count. OUT gets
page.html, page.md, figures/, samples.csv (each seed of each setting), tasks.csv, correlations.csv, and in scores.csv
and sources.json what the page is made of: such a folder can be given in place of runs, or with others, so that a page
grows task by task.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro
from matplotlib.figure import Figure

from algos.arguments import Range, check
from algos.cli import run_command
from algos.folders import writable
from algos.plot import thousands
from benchmarks import figures, report
from benchmarks.load_scores import load
from benchmarks.parts import Part
from benchmarks.sample_complexity import REPLICATIONS, Study, correlate, medians_of, records, study
from benchmarks.stored import origin, write_sources
from benchmarks.tables import Cell, Table, between, escape, number, word
from envs.make import TABULAR

STOPPED_AT = 0.05  # tolerance of --stop-when-solved


@dataclass
class Args:
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """folders of sweeps over tables"""
    out: Path
    """where the page goes"""
    tasks: tuple[str, ...] = ()
    """these tasks only"""
    tolerance: Annotated[float, Range(STOPPED_AT, 1)] = STOPPED_AT
    """share of J* - J_random that a policy may lack to count as a solution; runs stop at 0.05"""
    page: bool = True
    """write page.html, which can be made again from the other files"""


def scatter(found: Study, x: pd.Series, y: pd.Series, x_name: str, y_name: str, log_x: bool = True) -> Figure:
    """One point a task; what is not solved within the budget lies at it, as a hollow point."""
    budget = found.tasks["task"].map(found.budgets).astype(float)
    figure = figures.Figure(figsize=(4.2, 3.6))
    axes = figure.subplots()
    measured = x.notna() & y.notna()
    x, y, budget = x[measured], y[measured], budget[measured]
    solved = np.isfinite(y) & (np.isfinite(x) if log_x else True)
    u, v = (x.where(np.isfinite(x), budget) if log_x else x), y.where(np.isfinite(y), budget)
    jitter = np.random.default_rng(0).uniform(-0.12, 0.12, len(u)) if not log_x and (u % 1 == 0).all() else 0.0
    color = figures.COLORS[0]
    axes.scatter((u + jitter)[solved], v[solved], color=color, s=22)
    axes.scatter((u + jitter)[~solved], v[~solved], facecolors="none", edgecolors=color, s=22)
    if log_x:
        low, high = min(u.min(), v.min()), max(u.max(), v.max())
        axes.plot([low, high], [low, high], color="0.7", linewidth=1, zorder=0)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(thousands)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(thousands)
    axes.minorticks_off()
    axes.set(xlabel=x_name, ylabel=y_name)
    return figure


def against_gap(found: Study, y: pd.Series, y_name: str) -> Figure:
    """Steps against -log10 of the gap at k = 1, with tasks whose gap is 0 at the right end."""
    gap = found.tasks["gap at k = 1"]
    x = -np.log10(gap.where(gap > 0))
    end = float(np.ceil(x.max()) + 1) if x.notna().any() else 1.0
    figure = scatter(found, x.fillna(end), y, "-log10 of the gap at k = 1", y_name, log_x=False)
    axes = figure.axes[0]
    ticks = [tick for tick in axes.get_xticks() if 0 <= tick < end - 0.5]
    axes.set_xticks([*ticks, end], [*(f"{tick:g}" for tick in ticks), "gap 0"])
    return figure


def whole(value: float) -> Cell:
    """A number of steps, ∞, or nothing where too many seeds are left out."""
    return ("∞", np.inf) if value == np.inf else number(value, 0)


def solved_table(found: Study) -> Table:
    """How much of the tasks each algorithm solves, and what the search for settings took."""
    table = Table(
        [
            "algorithm", "tasks solved", "of", "settings", "best single setting", "it solves", "of tasks", "runs",
            "solved", "out of steps", "ended unsolved", "steps of the search for each seed",
        ],
        [],
    )  # fmt: skip
    for name in found.algorithms:
        own = found.samples[found.samples["algorithm"] == name]
        costs = found.tasks[f"N {name}"]
        medians = medians_of(own)
        solves = np.isfinite(medians["samples"]).groupby(medians["setting"]).sum()
        best = solves[solves == solves.max()].index
        covered = own[own["setting"].isin(best)].groupby("setting")["task"].nunique()
        solved, spent = np.isfinite(own["samples"]), own["taken"] >= own["steps"]
        shares = [solved, ~solved & spent, ~solved & ~spent]
        table.rows.append(
            [
                word(name), number(int(np.isfinite(costs).sum()), 0), number(int(costs.notna().sum()), 0),
                number(own["setting"].nunique(), 0), word(", ".join(best)),
                number(int(solves.max()) if len(solves) else 0, 0), word(", ".join(str(n) for n in covered)),
                number(len(own), 0), *(number(float(share.mean()), 2) for share in shares),
                number(own.groupby(["task", "setting"])["taken"].mean().sum(), 0),
            ]
        )  # fmt: skip
    return table


def settings_table(sources: list[dict[str, Any]]) -> Table:
    """The arguments in which algorithms differ most, as they were really used."""
    names = ("discount", "lr", "k", "m", "exploration", "horizon", "total_steps", "eval_every")
    table = Table(["algorithm", "seeds", *names], [])
    for algorithm in sorted({config["algorithm"] for config in sources}):
        own = [config for config in sources if config["algorithm"] == algorithm]
        seeds = sorted({len(config["seeds"]) for config in own})
        values = [{(c["args"] | c.get("setting", {})).get(name, "") for c in own} for name in names]
        ordered = [sorted(column, key=lambda v: (isinstance(v, str), v)) for column in (seeds, *values)]
        table.rows.append([word(algorithm), *(word(", ".join(f"{v}" for v in column)) for column in ordered)])
    return table


def claims_table(found: Study) -> Table:
    """What is known of the published study, and the same here."""
    tasks = found.tasks
    deep = np.isfinite(tasks[["N ppo", "N dqn"]]).any(axis=1)
    both = int((deep & np.isfinite(tasks["N sqirl"])).sum())
    first, sticky = int((tasks["min_k"] == 1).sum()), int((tasks["rho"] > 0).sum())
    table = Table(["question", "published", "here"], [])

    def add(question: str, published: str, here: str) -> None:
        table.rows.append([word(question), word(published), word(here)])

    add(
        "tasks that SQIRL solves of those that PPO or DQN solves",
        "78%, says a review of the submitted paper",
        f"{both} of {int(deep.sum())}, {both / int(deep.sum()):.0%}" if deep.any() else "neither solves any",
    )
    for name in ("ppo", "dqn"):
        rows = found.correlations.query("a in ['sqirl', @name] and b in ['sqirl', @name]")
        here = "; ".join(
            f"{row.tasks}: {number(row.value, 2)[0]} {between(row.low, row.high, 2)[0]}, n = {row.n}"
            for row in rows.itertuples()
        )
        add(f"correlation of the steps of SQIRL and {name.upper()}", "strong, says the abstract", here)
    ratio = ratios(tasks)
    add(
        "median of N(SQIRL) / N(PPO)", "not known to us",
        f"{ratio.median():.2g}, over the {len(ratio)} tasks that both solve" if len(ratio) else "no task",
    )  # fmt: skip
    add(
        "tasks with min_k = 1, by the tolerance of 1e-4",
        "about two thirds of 155, without chance, says a summary of the first paper",
        f"{first} of {len(tasks)}, {first / len(tasks):.0%}; {sticky} of all have sticky actions",
    )
    return table


def ratios(tasks: pd.DataFrame) -> pd.Series:
    """N(sqirl) / N(ppo) of the tasks that both solve."""
    return (tasks["N sqirl"] / tasks["N ppo"]).replace([np.inf, 0], np.nan).dropna()


def parts(found: Study, sources: list[dict[str, Any]], tolerance: float) -> list[Part]:
    """The sections of the page."""
    tasks, names = found.tasks, found.algorithms
    pairs = [p for p in (("sqirl", "ppo"), ("sqirl", "dqn"), ("gorp", "sqirl"), ("ppo", "dqn")) if set(p) <= set(names)]
    both = Part(
        "Sample complexities",
        f"Each point is a task: environment steps until the exact return lacks at most {tolerance:.0%} of J* - "
        "J_random, median over seeds, with the best setting of each algorithm on this task. A hollow point was not "
        "solved by one of them within the budget. The settings are chosen by the same seeds that are shown and the "
        "search is not counted, which favours algorithms with many settings; the second table shows how many there "
        "are, what one setting for all tasks solves, and how many runs ended unsolved before they had used up their "
        "steps; other unsolved runs might have solved their task with more. SQIRL and GORP learn a policy for each "
        "time, and PPO and DQN one for all times, which count the value that follows a time limit. On small tasks, "
        "a network may solve a task before it has learned anything: such seeds are left out, the first table has "
        "their share over all settings, and settings of which half of the seeds or less are left have no number. No "
        "algorithm can need fewer steps than come before its first evaluation: the interval in the table of "
        "settings, or an iteration.",
    )
    for a, b in pairs:
        figure = scatter(found, tasks[f"N {a}"], tasks[f"N {b}"], f"{a}: steps", f"{b}: steps")
        both.figures.append((f"{a}_{b}", figure, f"{b} against {a}"))
    both.tables.append(("Tasks solved", solved_table(found)))
    table = Table(["pair", "tasks", "n", "Spearman", "95% interval"], [])
    for row in found.correlations.to_dict("records"):
        cells = [word(f"{row['a']} and {row['b']}"), word(row["tasks"]), number(row["n"], 0)]
        table.rows.append([*cells, number(row["value"], 2), between(row["low"], row["high"], 2)])
    both.tables.append(("Correlations of ranks over tasks", table))
    truth = Part(
        "Against the exact numbers",
        "min_k is the smallest number of values, that of the random policy and backups of it, whose greedy policies "
        "are optimal up to 1e-4, without a discount, exactly, or up to 1e-4 with the discount of learning, which "
        "figures and correlations use; the gap is the least distance of the best action's value to that of an action "
        "which is not optimal, for k = 1 and with the discount of learning, where optimal is meant exactly. It may "
        "therefore be 0 where min_k is 1, and then ranks below all others. J_k is the undiscounted return of the "
        "greedy policy of the k-th value with the worst choice among equals. The gap and J* - J_k are shares of "
        "J* - J_random.",
    )
    for name in [n for n in ("sqirl", "ppo", "dqn") if n in names]:
        figure = scatter(
            found,
            tasks["min_k discounted"].clip(upper=12),
            tasks[f"N {name}"],
            "min_k, discounted (12: or more)",
            f"{name}: steps",
            False,
        )
        truth.figures.append((f"min_k_{name}", figure, f"{name} against min_k"))
        figure = against_gap(found, tasks[f"N {name}"], f"{name}: steps")
        truth.figures.append((f"gap_{name}", figure, f"{name} against the gap"))
    facts = [c for c in tasks if c != "task" and not c.startswith(("N ", "best ", "untrained "))]
    digits = dict.fromkeys(("S", "A", "H", "min_k", "exact min_k", "min_k discounted"), 0) | {"rho": 2, "discount": 2}
    exact = Table(["task", *facts], [])
    learned = [c for c in tasks if c.startswith(("N ", "best ", "untrained "))]
    costs = Table(["task", "budget", *learned], [])
    for row in tasks.to_dict("records"):
        task = word(row["task"].removeprefix(TABULAR))
        cells = [tiny(row[c]) if c.startswith(("gap", "J* -")) else number(row[c], digits.get(c, 4)) for c in facts]
        exact.rows.append([task, *cells])
        show = {"best": word, "N": whole, "untrained": lambda share: number(share, 2)}
        cells = [show[c.partition(" ")[0]](row[c]) for c in learned]
        costs.rows.append([task, number(found.budgets[row["task"]], 0), *cells])
    both.tables.insert(0, ("Steps to a solution", costs))
    both.tables.append(("Settings", settings_table(sources)))
    if {"sqirl", "ppo", "dqn"} <= set(names):
        both.tables.append(("The published study, of 155 other tasks with 5M steps, and this one", claims_table(found)))
    both.tables_in_markdown = len(both.tables)
    truth.tables.append(("What the tables say", exact))
    return [both, truth]


def tiny(value: float) -> Cell:
    """A number that may be far below 1."""
    return (f"{value:.2g}", float(value)) if np.isfinite(value) else ("–", np.inf)


def main(args: Args) -> None:
    check(args)
    scores = load(list(args.folders), mix=True, finished_only=True, tasks=args.tasks, cut=False)
    found = study(scores, args.tolerance)
    found.correlations = correlate(found)
    writable(args.out / "figures")
    ratio = ""
    if {"sqirl", "ppo"} <= set(found.algorithms):
        both = ratios(found.tasks)
        ratio = (
            f" Median of N(sqirl) / N(ppo) over the {len(both)} tasks that both solve: {both.median():.2g}."
            if len(both)
            else " No task is solved by both SQIRL and PPO."
        )
    purpose = (
        "Does acting greedily on the values of a random policy explain where deep RL works? "
        f"{len(found.tasks)} tables, with exact answers and exact evaluation.{ratio} This is our own set of tasks, not "
        "the 155 of the paper."
    )
    title = "The effective horizon on tables"
    with figures.style():
        sections = parts(found, scores.sources, args.tolerance)
        pages = report.drawn(sections, args.out / "figures", ("png",), page=True)
    made = origin("effective_horizon", scores.sources, scores.sweeps)
    page = report.render(
        title=title, purpose=purpose, notes=scores.notes, pages=pages, styles={}, references="raw", reference_rows=[],
        origin=made, score="exact return",
        over=" over tasks", method=f"Intervals are percentiles of {REPLICATIONS:,} bootstrap replications over tasks.",
    )  # fmt: skip
    if args.page:
        (args.out / "page.html").write_text(page, encoding="utf-8")
    lines = [f"# {title}", purpose, *(f"> {escape(note)}" for note in scores.notes)]
    lines.append(
        "Intervals are 95% percentile intervals of a bootstrap over tasks. The arguments, commits and versions of all "
        "runs are in sources.json."
    )
    for part in sections:
        lines += [f"## {part.title}", part.text]
        lines += [f"![{description}](figures/{name}.png)" for name, _, description in part.figures]
        lines += [line for caption, table in part.tables for line in (f"{caption}:", table.markdown())]
    lines.append(f"`{made['report']}`")
    (args.out / "page.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    records(scores.table).to_csv(args.out / "scores.csv", index=False)
    found.samples.to_csv(args.out / "samples.csv", index=False)
    found.tasks.to_csv(args.out / "tasks.csv", index=False)
    found.correlations.to_csv(args.out / "correlations.csv", index=False)
    write_sources(args.out, scores.sources)
    print(args.out / ("page.html" if args.page else "page.md"))


if __name__ == "__main__":
    run_command(main)
