"""Tables as documents show them."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

Cell = tuple[str, float | str]  # the text, and the key that it sorts by


@dataclass
class Table:
    """Rows of cells."""

    columns: list[str]
    rows: list[list[Cell]]

    def markdown(self) -> str:
        """As Markdown; names cannot break it."""
        first = self.rows[0] if self.rows else [("", "")] * len(self.columns)
        lines = [self.columns, ["---" if isinstance(key, str) else "---:" for _, key in first]]
        lines += [[escape(text) for text, _ in row] for row in self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def word(text: Any) -> Cell:
    return str(text), str(text).lower()


def number(value: float, digits: int | None = None) -> Cell:
    """A number with one decimal from 100 up and with two below, or with `digits` decimals; 0 has no sign."""
    if not np.isfinite(value):
        return "–", -np.inf
    return f"{value:z,.{(1 if abs(value) >= 100 else 2) if digits is None else digits}f}", float(value)


def between(low: float, high: float, digits: int | None = None) -> Cell:
    """An interval, which sorts by its lower end; a dash if there is none."""
    if np.isnan(low) and np.isnan(high):
        return number(low)
    return f"[{number(low, digits)[0]}, {number(high, digits)[0]}]", float(low)


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\|*_<>`\[\]$~#&])", r"\\\1", " ".join(text.split()))


def purpose(doc: str | None) -> str:
    """The third paragraph of a command's docstring on one line: its page begins with it."""
    return " ".join((doc or "").split("\n\n")[2].split())


def aggregate_rows(frame: pd.DataFrame, statistics: list[str], digits: int | None) -> list[list[Cell]]:
    """A row for each algorithm: its statistics with their intervals, and the numbers of its tasks and seeds.

    `frame` has the columns algorithm, statistic, value, low, high, tasks and seeds, and one score.
    """
    table = []
    for algorithm, rows in frame.groupby("algorithm", sort=False):
        by, cells = rows.set_index("statistic").reindex(statistics), [word(algorithm)]
        for name in statistics:
            value, low, high = by.loc[name, ["value", "low", "high"]]
            cells.append((f"{number(value, digits)[0]} {between(low, high, digits)[0]}", float(value)))
        table.append([*cells, number(rows["tasks"].iloc[0], 0), number(rows["seeds"].iloc[0], 0)])
    return table


def table_of(frame: pd.DataFrame) -> Table:
    """A data frame with its numbers made readable."""

    def cell(value: Any) -> Cell:
        if isinstance(value, float):
            return ("", -np.inf) if np.isnan(value) else number(value)
        return number(value, 0) if isinstance(value, int) else word(value)

    return Table(list(frame.columns), [[cell(v) for v in row] for row in frame.astype(object).to_numpy().tolist()])
