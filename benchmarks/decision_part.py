"""The sections of a report that decide: which algorithm is better, and whether seeds or episodes are lacking."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd

from benchmarks.analysis import Results, limits
from benchmarks.decide import LEVEL, POWER, Comparison, beside_level, combined, compare, corrected
from benchmarks.parts import Part
from benchmarks.scores import LABELS, OF_TASK, family_name, label
from benchmarks.tables import Cell, Table, between, number, word

ALL_TASKS = "all tasks"
MOST_SENTENCES = 24


def comparisons(results: Results) -> list[Comparison]:
    """All pairs of algorithms on each task, and over the tasks of both, if scores are normalised.

    These are the tasks on which both have two seeds or more.
    """
    final, column = results.final, results.headline
    scores: dict[tuple[str, str], dict[int, float]] = {
        (task, name): dict(zip(rows["seed"], rows[column], strict=True))
        for (task, name), rows in final.groupby(["task", "algorithm"])
    }
    together, lost, tasks = processes(results), lost_seeds(results), results.scores.tasks
    bounds = {task: limits(results.scores, results.references, [task]) for task in tasks}
    found: list[Comparison] = []
    for a, b in combinations(results.scores.algorithms, 2):
        of_pair = []
        for task in tasks:
            if (task, a) in scores and (task, b) in scores:
                paired = bool(together.get((task, a), set()) & together.get((task, b), set()))
                if one := compare(task, a, b, scores[task, a], scores[task, b], paired):
                    least, most = bounds[task]
                    pair = len(lost.get((task, a), ())), len(lost.get((task, b), ()))
                    of_pair.append(replace(within(one, most - least), lost=pair))
        found += of_pair
        apart = not any(OF_TASK in one.task for one in of_pair)  # tasks of one environment share their policies
        if results.references is not None and apart and len(of_pair) > 1:
            every = len(of_pair) == len(tasks)
            whole = combined(ALL_TASKS if every else f"the {len(of_pair)} tasks of both", of_pair)
            found.append(within(whole, whole.most))
    return corrected(found)


def within(one: Comparison, most: float) -> Comparison:
    """A comparison of scores that can differ by so much at most, with its interval cut there."""
    return replace(one, most=most, low=max(one.low, -most), high=min(one.high, most))


def lost_seeds(results: Results) -> dict[tuple[str, str], set[int]]:
    """The seeds without a score, because they diverged before they had one, by task and algorithm."""
    final, found = results.final, {*results.scores.lost, *results.scores.diverged}
    lost: dict[tuple[str, str], set[int]] = {}
    for task, name, seed in found - set(zip(final["task"], final["algorithm"], final["seed"], strict=True)):
        lost.setdefault((task, name), set()).add(seed)
    return lost


def processes(results: Results) -> dict[tuple[str, str], set[str]]:
    """The folders of the processes that trained the settings of an algorithm on a task; other runs have none."""
    places: dict[tuple[str, str], set[str]] = {}
    for config in results.scores.sources:
        if config.get("setting"):
            key = config["task"], label(config)
            places.setdefault(key, set()).add(f"{family_name(config)} {config.get('folder', '')}")
    return places


def decision_part(results: Results, found: list[Comparison], looked: bool) -> Part:
    """A verdict for each pair of algorithms on each task; `looked` if seeds were added until a pair was decided."""
    method = (
        f"Means ({results.unit}, {LABELS[results.score]}) are compared by Welch's t-test, or by the paired t-test "
        "for settings of one process, whose runs see the same random numbers seed by seed, over the seeds that both "
        "have if these are five or more and nearly all; with fewer than five seeds, or different numbers of them, by "
        "exchanging scores between the two, and over tasks by exchanges in all of them at once if one is tested so. "
        "The intervals are Student's, for one difference, also where scores are exchanged: those of scores far from "
        "normal may hold 0 where the test decides, which a verdict in words then says. The p-values are corrected for "
        f"their number, {len(found):,}, by Holm's method, which aims at any wrong verdict in a report like this with a "
        f"probability of at most {LEVEL:.0%}. The correlation is that of scores over the seeds which both have: where "
        "it is not above 0, the same seeds make a difference no more certain. The least difference is what so many "
        f"seeds would have shown, in the hardest of these tests, with a probability of {POWER:.0%}; for exchanges of "
        "few scores it is right if they are normal and spread alike, and for exchanges over tasks it is given only "
        "where all have five seeds or more. If seeds are few and one algorithm's scores spread far more than the "
        "other's, verdicts are wrong more often than this aim, most of all if that one has fewer seeds."
    )
    if any(one.tasks > 1 and one.task != ALL_TASKS for one in found):
        method += (
            " A difference over tasks is over those on which both algorithms of its pair have seeds enough for a test: "
            "these may be others than those of another pair, and than those of the aggregates."
        )
    if any(np.isinf(one.least) for one in found):
        method += (
            " The least difference is none where it would be more than there can be between two percentages: only "
            "more seeds, or fewer comparisons, would show a difference as often."
        )
    text, best = counted(found), results.ranked[0]
    named: list[Comparison] = found
    rest: list[Comparison] = []
    if len(found) > MOST_SENTENCES:
        few = sum(one.verdict != "not decided" for one in found) <= MOST_SENTENCES

        def listed(one: Comparison) -> bool:
            return best in (one.a, one.b) or (few and one.verdict != "not decided")

        named, rest = [one for one in found if listed(one)], [one for one in found if not listed(one)]
        text += f" There are too many pairs for all of them to be listed: these are those with {best}"
        text += " and all that are decided" if few else ""
        text += f", the first {MOST_SENTENCES} in words too." if len(named) > MOST_SENTENCES else "."
        text += (
            f" The other {len(rest):,} are in verdicts.csv, and folded below the table in report.html." if rest else ""
        )
    if looked:
        text += " Seeds were added until a pair was decided, which these tests do not count: see Looks for that pair."
    digits = None if results.references is None else 3
    part = Part("Verdicts", text, tables=[("Differences of means", differences(named, digits))], method=method)
    if rest:
        part.folded = [(f"The other {len(rest):,} differences of means", differences(rest, digits))]
    first = sorted(named, key=lambda one: one.verdict == "not decided")[:MOST_SENTENCES]  # it keeps their order
    part.sentences = [one.sentence(results.unit_of(one.task), digits) for one in first]
    return part


def differences(found: list[Comparison], digits: int | None) -> Table:
    """A row for each comparison, with so many digits after the point of a difference."""
    columns = ["task", "a", "b", "a − b", "95% interval", "p (Holm)", "a is", "least difference", "correlation", "test"]
    table = Table([*columns, "seeds"], [])
    for one in found:
        seeds = f"{one.seeds[0]}" if one.seeds[0] == one.seeds[1] else f"{one.seeds[0]}, {one.seeds[1]}"
        table.rows.append(
            [
                word(one.task), word(one.a), word(one.b), number(one.difference, digits),
                between(one.low, one.high, digits), chance(one.corrected), word(one.verdict),
                ("none", np.inf) if np.isinf(one.least) else number(one.least, digits), number(one.correlation, 2),
                word(one.test),
                word(seeds),
            ]
        )  # fmt: skip
    return table


def chance(p: float) -> Cell:
    """A p-value."""
    return ("< 0.001", p) if p < 0.001 else (beside_level(p, 3, "f"), p)


def counted(found: list[Comparison]) -> str:
    """How many differences are decided."""
    decided = sum(one.verdict != "not decided" for one in found)
    if len(found) == 1:
        return f"The one difference is {'' if decided else 'not '}decided."
    return f"{decided:,} of {len(found):,} differences are decided."


def verdict_table(found: list[Comparison]) -> pd.DataFrame:
    """All comparisons as a table to store."""
    rows = [
        {"task": one.task, "a": one.a, "b": one.b, "difference": one.difference, "low": one.low, "high": one.high,
         "p": one.p, "p_corrected": one.corrected, "verdict": one.verdict, "least": one.least,
         "correlation": one.correlation, "test": one.test, "seeds_a": one.seeds[0],
         "seeds_b": one.seeds[1]}
        for one in found
    ]  # fmt: skip
    return pd.DataFrame(rows)
