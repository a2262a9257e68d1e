"""How the intervals of reports are made, in words, with what `benchmarks.coverage` measured of them."""

import os
from pathlib import Path

from algos.stored import read_csv
from benchmarks.suite import ROOT

MEASURED = ROOT / "results" / "coverage"
KINDS = {"scores": "words", "interval": "words", "seeds": "whole"}


def interval_note(replications: int, seeds: int) -> str:
    """How the intervals are made, and how often such intervals of so many seeds, or of fewer, were found to hold."""
    made = (
        "Intervals of a task's mean are Student's; others, those of aggregates too, are Student's quantile times the "
        f"standard error over {replications:,} bootstrap replications, which resample the seeds of each task, times "
        "the root of N / (N - 1), and for probabilities of improvement Wilson's with that error."
    )
    return " ".join([made, in_a_sentence(MEASURED, seeds)] if seeds > 1 else [made]).strip()


def in_a_sentence(folder: Path, seeds: int) -> str:
    """What a stored page measured for a number of seeds, or the nearest below, or the fewest; empty without a page."""
    if not os.path.lexists(folder / "coverage.csv"):
        return ""
    keys = ["scores", "seeds", "interval"]
    table = read_csv(folder / "coverage.csv", [*keys, "coverage"], keys, KINDS)
    measured = max((n for n in table["seeds"] if n <= seeds), default=table["seeds"].min())
    even = "even " if seeds < measured else ""
    rows = table[table["seeds"] == measured].groupby("interval")["coverage"]
    if not {"Student", "percentile mean"} <= set(rows.groups):
        return ""
    least, middle, most = (rows.agg(kind) for kind in ("min", "median", "max"))
    ours, theirs = (
        f"{100 * least[kind]:.0f} to {100 * most[kind]:.0f}% (median {100 * middle[kind]:.0f}%)"
        for kind in ("Student", "percentile mean")
    )
    count = table.loc[table["interval"] == "Student", "scores"].nunique()  # the others are of all of them, as tasks
    return (
        f"Measured on {count} sets of scores of a hundred seeds, intervals of means {even}from {measured} of them hold "
        f"the truth in {ours} of draws, and percentile intervals in {theirs}."
    )
