"""How often the intervals and verdicts of reports are right, measured on runs with very many seeds.

    python single_file/ppo.py --env-id InvertedPendulum-v5 --seeds 0:100 --out runs/coverage
    python -m benchmarks.coverage runs/coverage --out results/coverage

The scores of all seeds of a run are taken as the truth. A few of them are drawn again and again, with replacement, as
if they were all that had been trained: how often does the interval from these few hold the true mean or the true IQM,
how often does a report find a difference between two draws of the same scores, and how often one that is there? A
verdict on eight comparisons of the same scores is wrong if any of them is decided. The same is asked where the second
side has normal scores with the same mean and a tenth of the spread: so unlike are algorithms of which one is reliable.
Pairs are two draws of the same scores whose ranks go together, as runs of one seed do that share random numbers: they
come from normal numbers with a correlation of 0.5. A verdict over tasks is one over all sets of scores, if there are
several: each counts as a task, in units of its spread. Where one task dominates, its spread is so much larger that it
makes 90% of the variance of the mean, and each is this one in turn. Intervals of aggregates are over these tasks, with
means between 0.3 and 0.9 and a spread of 0.15, and of the probability that a run of one draw beats one of another.

OUT gets page.md, figures/coverage.png, coverage.csv, errors.csv, seeds.csv and sources.json. It can be made again from
what it stored.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import tyro
from matplotlib.figure import Figure
from scipy.special import ndtr

from algos.arguments import Range, check
from algos.cli import run_command
from algos.errors import UserError
from algos.folders import writable
from algos.stored import Config, read_csv, read_json
from benchmarks import estimates, figures
from benchmarks.decide import LEVEL, Comparison, combined, compare, corrected, least_difference
from benchmarks.load_scores import load
from benchmarks.scores import final_scores
from benchmarks.sequential import Sequential
from benchmarks.stored import origin, refuse_both, write_sources
from benchmarks.tables import Table, escape, number, purpose, word

SIZES = (3, 5, 10, 20)  # seeds
SEEDS = ((3, 3), (5, 5), (10, 10), (20, 20), (3, 10), (5, 20))  # of the two sides of a verdict
FEWEST = 50  # seeds that may count as the truth
KINDS = dict.fromkeys(("task", "algorithm", "scores", "interval"), "words") | dict.fromkeys(
    ("seed", "seeds", "step"), "whole"
)
PAIRS = 8  # comparisons in a report
TOGETHER = 0.5  # correlation of the normal numbers from which pairs come
DOMINANT = 0.9  # share of a mean's variance that comes from one task
INTERVALS = {
    "Student": "Student's interval of the mean, as in reports",
    "percentile mean": "percentile interval of the mean",
    "IQM": "interval of the IQM, as in reports",
    "percentile IQM": "percentile interval of the IQM",
}
AGGREGATES = (*estimates.BATCHED, "probability of improvement")  # over tasks


@dataclass
class Args:
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """folders of runs with at least 50 seeds, and those that this command wrote"""
    out: Path
    """where the page goes"""
    steps: Annotated[tuple[int, ...], Range(1)] = ()
    """take the scores of training up to each of these steps as truths, each by itself, instead of those of all of it;
    for runs"""
    repetitions: Annotated[int, Range(10, 100_000)] = 1_000
    """draws of each number of seeds"""


def truths(folders: tuple[Path, ...], steps: tuple[int, ...]) -> tuple[pd.DataFrame, list[dict], list[str]]:
    """The score of each seed (task, algorithm, step, seed, score), mean of last 10%, the runs, and notes on them."""
    if not folders:
        raise UserError("name at least one folder of runs")
    notes: list[str] = []
    keys = ["task", "algorithm", "step", "seed"]
    stored = [folder for folder in folders if os.path.lexists(folder / "seeds.csv")]
    refuse_both(stored)
    parts = [read_csv(folder / "seeds.csv", [*keys, "score"], keys, KINDS) for folder in stored]
    sources = [config for folder in stored for config in read_json(folder / "sources.json", list[Config])]
    if runs := [folder for folder in folders if folder not in stored]:
        scores = load(runs, mix=True, finished_only=True, cut=False)  # they are not compared
        for (_, rows), step in itertools.product(scores.table.groupby(["task", "algorithm"]), steps or (None,)):
            parts.append(scored(rows, step))
        sources += scores.sources
        notes += scores.notes
    elif steps:
        raise UserError(f"--steps is for folders of runs, and {stored[0]} has stored scores: leave it out")
    table = pd.concat(parts)[[*keys, "score"]]
    if (twice := table[table.duplicated(keys)]).size:
        row = twice.iloc[0]
        name = f"seed {row['seed']} of {row['algorithm']} on {row['task']}"
        raise UserError(f"{name} occurs twice at step {row['step']:,}")
    return table, sources, notes


def scored(rows: pd.DataFrame, step: int | None) -> pd.DataFrame:
    """The scores of an algorithm on a task up to a step, or of all of it; raises UserError for a step outside of it."""
    name, steps = f"{rows['algorithm'].iloc[0]} on {rows['task'].iloc[0]}", rows.loc[rows["step"] > 0, "step"]
    if steps.empty:
        raise UserError(f"{name} has no return that is a finite number after step 0")
    step = int(steps.max()) if step is None else step
    if not steps.min() <= step <= steps.max():
        span = f"from step {steps.min():,} to {steps.max():,}"
        raise UserError(f"--steps: {name} is evaluated {span}, and {step:,} is outside")
    return final_scores(rows[rows["step"] <= step]).rename(columns={"mean": "score"}).assign(step=step)


def populations(table: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    """The scores of each algorithm on each task at each step; raises UserError where there are too few or all alike."""
    for (task, algorithm, step), rows in table.groupby(["task", "algorithm", "step"]):
        name = f"{algorithm} on {task}, {step:,} steps"
        if len(rows) < FEWEST:
            raise UserError(f"{name}: there are {len(rows)} seeds, and {FEWEST} are needed to count as the truth")
        if rows["score"].nunique() < 2:
            raise UserError(f"{name}: all seeds have the same score, of which nothing can be learned: see --steps")
        yield name, rows["score"].to_numpy(float)


def coverage(name: str, truth: np.ndarray, repetitions: int) -> list[tuple]:
    """How often each interval holds its truth, and its mean width: name, seeds, interval, share, width."""
    rng = np.random.default_rng(0)
    mean, iqm = truth.mean(), estimates.middle_half(truth)
    rows = []
    for n in SIZES:
        drawn = rng.choice(truth, (repetitions, n))
        ends: dict[str, list[tuple[float, float]]] = {kind: [] for kind in INTERVALS}
        for x in drawn[:, :, None]:
            low, high = estimates.task_means(x)[:, 0]
            ends["Student"].append((low, high))
            values = estimates.bootstrap(
                x, lambda s: np.stack([estimates.BATCHED[k](s) for k in ("mean", "IQM")], 1), 500
            )
            low, high = estimates.percentiles(values)
            ends["percentile mean"].append((low[0], high[0]))
            ends["percentile IQM"].append((low[1], high[1]))
            low, high = estimates.interval(estimates.middle_half(x[:, 0]), values[:, 1], n, n - 1)
            ends["IQM"].append((float(low), float(high)))
        for kind, found in ends.items():
            low, high = np.array(found).T
            aim = iqm if "IQM" in kind else mean
            rows.append((name, n, kind, float(((low <= aim) & (aim <= high)).mean()), float((high - low).mean())))
    return rows


def coverage_over_tasks(truths: list[np.ndarray], repetitions: int) -> list[tuple]:
    """The same as `coverage`, for intervals of aggregates over several sets of scores, each a task."""
    rng, count = np.random.default_rng(6), len(truths)
    centres = np.linspace(0.3, 0.9, count)
    scaled = [c + 0.15 * (truth - truth.mean()) / truth.std() for c, truth in zip(centres, truths, strict=True)]
    places = (np.arange(1_000) + 0.5) / 1_000
    whole = np.stack([np.quantile(truth, places, method="inverted_cdf") for truth in scaled], 1)
    aims = {name: estimates.POINTS[name](whole) for name in estimates.BATCHED} | {AGGREGATES[-1]: 0.5}
    rows = []
    for n in SIZES:
        ends: dict[str, list[tuple[float, float]]] = {kind: [] for kind in AGGREGATES}
        for _ in range(repetitions):
            x, y = (np.stack([rng.choice(truth, n) for truth in scaled], 1) for _ in range(2))
            for kind, (_, low, high) in estimates.aggregates(x, 500).items():
                ends[kind].append((low, high))
            ends[AGGREGATES[-1]].append(estimates.improvement(x, y, 500)[1:])
        for kind, found in ends.items():
            low, high = np.array(found).T
            held = ((low <= aims[kind]) & (aims[kind] <= high)).mean()
            rows.append((f"all {count}, as tasks", n, kind, float(held), float((high - low).mean())))
    return rows


def errors(name: str, truth: np.ndarray, repetitions: int) -> list[tuple]:
    """How often verdicts are wrong, and how often they find what is there: name, seeds, others, case, share.

    In "no difference", any of eight comparisons of the same scores is decided, and in "other spread" of them with
    normal scores of the same mean and a tenth of the standard deviation; in "difference", one is decided rightly
    between scores that differ by what would be found four times in five if the scores were normal; in "looks", a sweep
    that looks after each of four batches of five decides between the same scores, and in "looks, other spread" between
    scores and such normal ones; in "looks, difference" it decides rightly between scores that differ by what all 20
    would show four times in five. In "pairs" and "difference in pairs", the same is asked of paired verdicts.
    """
    rng, other, third, fourth = (np.random.default_rng(seed) for seed in (1, 2, 3, 4))
    rows: list[tuple] = []
    x, y = in_pairs(third, truth, 100_000)
    apart = float((x - y).std())
    for n, m in SEEDS:
        error, freedom = truth.std() * np.sqrt(1 / n + 1 / m), n + m - 2
        shift = least_difference(error, freedom, LEVEL)
        invented, spread, found, wrong_way = 0, 0, 0, 0
        for _ in range(repetitions):
            pairs = [one for _ in range(PAIRS) if (one := drawn(rng, truth, n, m, 0.0))]
            invented += any(one.verdict != "not decided" for one in corrected(pairs))
            pairs = [one for _ in range(PAIRS) if (one := drawn(other, truth, n, m, 0.0, reliable=True))]
            spread += any(one.verdict != "not decided" for one in corrected(pairs))
            if one := drawn(rng, truth, n, m, shift):
                verdict = corrected([one])[0].verdict
                found += verdict == "better"
                wrong_way += verdict == "worse"
        shares = {"no difference": invented, "other spread": spread, "difference": found, "wrong way": wrong_way}
        if n == m:
            shift, invented, found = least_difference(apart / np.sqrt(n), n - 1, LEVEL), 0, 0  # NaN for three seeds
            for _ in range(repetitions):
                pairs = [one for _ in range(PAIRS) if (one := drawn_in_pairs(third, truth, n, 0.0))]
                invented += any(one.verdict != "not decided" for one in corrected(pairs))
                if not np.isnan(shift) and (one := drawn_in_pairs(third, truth, n, shift)):
                    found += corrected([one])[0].verdict == "better"
            shares |= {"pairs": invented} | ({} if np.isnan(shift) else {"difference in pairs": found})
        rows += [(name, n, m, case, count / repetitions) for case, count in shares.items()]
    shift = least_difference(truth.std() * np.sqrt(2 / 20), 38, LEVEL)
    for case in ("looks", "looks, other spread", "looks, difference"):
        decided = 0
        for _ in range(repetitions):
            test = Sequential(5, 4, LEVEL, draws=2_000)
            a, b = (fourth if case == "looks, difference" else rng).choice(truth, (2, 20))
            if case == "looks, other spread":
                b = other.normal(truth.mean(), truth.std() / 10, 20)
            if case == "looks, difference":
                a = a + shift
            said = (test.look(a[: 5 * k], b[: 5 * k]).decision for k in range(1, 5))
            first = next((one for one in said if one != "not decided"), "")  # it looks no further
            decided += first == "better" if case == "looks, difference" else bool(first)
        rows.append((name, 20, 20, case, decided / repetitions))
    return rows


def over_tasks(truths: list[np.ndarray], repetitions: int) -> list[tuple]:
    """How often a verdict over several sets of scores, each a task, is wrong or finds what is there; see `errors`."""
    rng, other = np.random.default_rng(5), np.random.default_rng(7)
    scaled = [(truth - truth.mean()) / truth.std() for truth in truths]
    wide = np.sqrt(DOMINANT / (1 - DOMINANT) * (len(scaled) - 1))
    rows = []
    for n, m in SEEDS:
        error, freedom = np.sqrt((1 / n + 1 / m) / len(scaled)), (n + m - 2) * len(scaled)
        shift = least_difference(error, freedom, LEVEL)
        for case, apart, reliable in (
            ("over tasks", 0.0, False), ("over tasks, other spread", 0.0, True),
            ("difference over tasks", shift, False),
            ("over tasks, one wide", 0.0, False), ("over tasks, one wide, other spread", 0.0, True),
        ):  # fmt: skip
            count, one_is_wide = 0, "one wide" in case
            for repetition in range(repetitions):
                tasks = [t * wide if one_is_wide and i == repetition % len(scaled) else t for i, t in enumerate(scaled)]
                source = other if one_is_wide else rng
                parts = [one for truth in tasks if (one := drawn(source, truth, n, m, apart, reliable))]
                verdict = corrected([combined("", parts)])[0].verdict
                count += verdict == "better" if apart else verdict != "not decided"
            rows.append((f"all {len(scaled)}, as tasks", n, m, case, count / repetitions))
    return rows


def drawn(
    rng: np.random.Generator, truth: np.ndarray, n: int, m: int, shift: float, reliable: bool = False
) -> Comparison | None:
    """A comparison of n scores, shifted, with m others, or with m normal ones of a tenth of the spread."""
    x = rng.choice(truth, n) + shift
    y = rng.normal(truth.mean(), truth.std() / 10, m) if reliable else rng.choice(truth, m)
    return compare("", "a", "b", dict(enumerate(x.tolist())), dict(enumerate(y.tolist())))


def in_pairs(rng: np.random.Generator, truth: np.ndarray, n: int) -> np.ndarray:
    """Two draws of n scores whose ranks go together: [2, n]."""
    first, rest = rng.standard_normal((2, n))
    places = ndtr(np.stack([first, TOGETHER * first + np.sqrt(1 - TOGETHER**2) * rest]))
    return np.sort(truth)[np.minimum((places * len(truth)).astype(int), len(truth) - 1)]


def drawn_in_pairs(rng: np.random.Generator, truth: np.ndarray, n: int, shift: float) -> Comparison | None:
    """A comparison of n scores, shifted, with those that belong to them."""
    x, y = in_pairs(rng, truth, n)
    return compare("", "a", "b", dict(enumerate((x + shift).tolist())), dict(enumerate(y.tolist())), paired=True)


def draw(table: pd.DataFrame) -> Figure:
    """Coverage against the number of seeds, a panel for each run."""
    names = list(dict.fromkeys(table["scores"]))
    columns = 2 if len(names) == 4 else min(3, len(names))
    rows_of = -(-len(names) // columns)
    figure = Figure(figsize=(1 + 3.3 * columns, 0.8 + 2.6 * rows_of))
    styles = {"Student": ("#1f6feb", "-"), "percentile mean": ("#1f6feb", ":"), "IQM": ("#d1495b", "-"),
             "percentile IQM": ("#d1495b", ":")}  # fmt: skip
    every = figure.subplots(rows_of, columns, sharey=True, squeeze=False).flat
    for axes in every[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(every, names, strict=False):
        for kind, (color, style) in styles.items():
            rows = table[(table["scores"] == name) & (table["interval"] == kind)]
            axes.plot(rows["seeds"], 100 * rows["coverage"], style, color=color, marker="o", markersize=3.5,
                      label=INTERVALS[kind])  # fmt: skip
        axes.axhline(95, color=figures.INK, linewidth=0.8, label="what 95% intervals should hold")
        axes.set_xscale("log")
        axes.set_xticks(SIZES, list(map(str, SIZES)))
        axes.minorticks_off()
        axes.set(xlabel="seeds")
        axes.set_title(name, fontsize=9)
    for axes in every[: len(names) : columns]:
        axes.set_ylabel("intervals that hold\nthe truth (%)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def main(args: Args) -> None:
    check(args)
    table, sources, notes = truths(args.folders, args.steps)
    known = list(populations(table))
    writable(args.out / "figures")
    held = pd.DataFrame(
        [row for name, truth in known for row in coverage(name, truth, args.repetitions)],
        columns=["scores", "seeds", "interval", "coverage", "width"],
    )
    rates = [row for name, truth in known for row in errors(name, truth, args.repetitions)]
    together = []
    if len(known) > 1:
        rates += over_tasks([truth for _, truth in known], args.repetitions)
        together = coverage_over_tasks([truth for _, truth in known], args.repetitions)
    aggregates = pd.DataFrame(together, columns=held.columns)
    decided = pd.DataFrame(rates, columns=["scores", "seeds", "others", "case", "share"])
    with figures.style():
        figures.save(draw(held), args.out / "figures" / "coverage", ("png",))
    about = purpose(__doc__)
    lines = ["# How often intervals and verdicts are right", about, *(f"> {escape(note)}" for note in notes)]
    lines += [
        "![coverage of intervals](figures/coverage.png)",
        "The intervals, and the percentage of draws that hold the truth:",
    ]
    shown = Table(["scores", "seeds", *INTERVALS.values()], [])
    for (name, n), rows in held.groupby(["scores", "seeds"], sort=False):
        by = rows.set_index("interval")["coverage"]
        shown.rows.append([word(name), number(n, 0), *(number(100 * by[kind], 1) for kind in INTERVALS)])
    lines.append(shown.markdown())
    if together:
        over = Table(["scores", "seeds", *AGGREGATES], [])
        for (name, n), rows in aggregates.groupby(["scores", "seeds"], sort=False):
            by = rows.set_index("interval")["coverage"]
            over.rows.append([word(name), number(n, 0), *(number(100 * by[kind], 1) for kind in AGGREGATES)])
        lines += ["The same for intervals of aggregates over tasks, as in reports:", over.markdown()]
    columns = ["no difference: any of 8 decided (%)", "the same, with a tenth of the spread on one side (%)",
               "difference: found (%)", "wrong way (%)", "no difference in pairs: any of 8 decided (%)",
               "difference in pairs: found (%)"]  # fmt: skip
    verdicts = Table(["scores", "seeds", *columns], [])
    apart = decided["case"].str.contains("looks|over tasks")
    for (name, n, m), rows in decided[~apart].groupby(["scores", "seeds", "others"], sort=False):
        by = rows.set_index("case")["share"]
        cases = ("no difference", "other spread", "difference", "wrong way", "pairs", "difference in pairs")
        size = word(f"{n}" if n == m else f"{n} against {m}")
        verdicts.rows.append([word(name), size, *(number(100 * by.get(case, np.nan), 1) for case in cases)])
    aims = (
        f"Verdicts; if scores were normal, {100 * LEVEL:.0f}% or less were expected in the first column and where "
        "pairs do not differ, also in the second where both sides have as many seeds, and 80% where a difference is "
        "there; by three seeds 0%, which can decide nothing:"
    )
    told = [
        ", ".join(
            f"{100 * row['share']:.1f}% ({row['scores']})"
            for row in decided[decided["case"] == case].to_dict("records")
        )
        for case in ("looks", "looks, other spread", "looks, difference")
    ]
    lines += [
        aims,
        verdicts.markdown(),
        f"A sweep that looks after each of four batches of five seeds, at the same scores, decides in {told[0]}; with "
        f"a tenth of the spread on one side, in {told[1]}. A difference that all 20 seeds would show four times in "
        f"five if scores were normal, it finds in {told[2]}.",
    ]
    if len(known) > 1:
        columns = ["no difference: decided (%)", "the same, with a tenth of the spread on one side (%)",
                   "difference: found (%)", "no difference, one task dominates: decided (%)",
                   "the same, with a tenth of the spread on one side (%)"]  # fmt: skip
        several = Table(["scores", "seeds", *columns], [])
        for (name, n, m), rows in decided[decided["case"].str.contains("over tasks")].groupby(
            ["scores", "seeds", "others"], sort=False
        ):
            shares = [number(100 * share, 1) for share in rows["share"]]
            several.rows.append([word(name), word(f"{n}" if n == m else f"{n} against {m}"), *shares])
        lines += [
            f"Verdicts over tasks, one in each report; {100 * LEVEL:.0f}% or less are expected without a difference, "
            "and 80% with one if scores were normal:",
            several.markdown(),
        ]
    spread = Table(["scores", "seeds", "mean", "std", "min", "max"], [])
    for name, truth in known:
        cells = [number(x) for x in (truth.mean(), truth.std(ddof=1), truth.min(), truth.max())]
        spread.rows.append([word(name), number(len(truth), 0), *cells])
    lines += ["The scores that count as the truth (mean of last 10% of each seed):", spread.markdown()]
    made = origin("coverage", sources)
    lines += [f"`{made['report']}`, commit {', '.join(made['commits']) or 'unknown'}, {args.repetitions:,} draws"]
    (args.out / "page.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    intervals = pd.concat([held, aggregates]) if together else held
    intervals.to_csv(args.out / "coverage.csv", index=False, float_format="%.6g")
    decided.to_csv(args.out / "errors.csv", index=False, float_format="%.6g")
    table.to_csv(args.out / "seeds.csv", index=False)
    write_sources(args.out, sources)
    print(shown.markdown(), verdicts.markdown(), args.out / "page.md", sep="\n\n")


if __name__ == "__main__":
    run_command(main)
