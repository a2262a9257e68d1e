"""The figures of a report. Each is a matplotlib figure, saved as PNG and PDF and put into the page as SVG.

The same input gives the same bytes: no dates, and identifiers that depend on the content only. In the SVG, ink and grid
take the page's colours, so that they suit light and dark.
"""

import html
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from algos.plot import PALETTE, thousands

INK, GRID = "#1b2330", "#8d96a3"
COLORS = [*PALETTE, "#b5651d", "#c2528b", "#6b7a3a", "#5b6ee1"]
DASHES = ["-", "--", ":"]
MOST_SEED_LINES = 30  # lines of single seeds that a figure still shows
MOST_BANDS = 10  # curves that a figure still shows with bands

Curve = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # steps [T], centre [T], interval [2, T], seeds [N, T]


@contextmanager
def style() -> Iterator[None]:
    """Settings for all figures."""
    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "seedbed", "text.parse_math": False, "font.size": 9.5,
        "axes.titlesize": 10.5, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.alpha": 0.3, "grid.color": GRID, "grid.linewidth": 0.6, "text.color": INK, "axes.labelcolor": INK,
        "axes.edgecolor": INK, "axes.titlecolor": INK, "xtick.color": INK, "ytick.color": INK, "legend.frameon": False,
        "figure.constrained_layout.use": True, "pdf.fonttype": 42,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        yield


def look(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Colour and line style of each algorithm, the same in all figures."""
    return {
        name: {"color": COLORS[i % len(COLORS)], "linestyle": DASHES[i // len(COLORS) % len(DASHES)]}
        for i, name in enumerate(names)
    }


def intervals(
    rows: dict[str, tuple[float, float, float]],
    looks: dict[str, dict[str, str]] | None,
    label: str,
    middle: float | None,
) -> Figure:
    """A row with point and 95% interval for each name; `middle` draws a line to compare with."""
    figure = Figure(figsize=(4.3, 0.75 + 0.3 * len(rows)))
    axes = figure.subplots()
    for place, (name, (point, low, high)) in enumerate(rows.items()):
        color = looks[name]["color"] if looks else INK
        axes.plot([low, high], [place, place], color=color, linewidth=7, alpha=0.35, solid_capstyle="butt")
        axes.plot([point], [place], color=color, marker="|", markersize=13, markeredgewidth=2.2)
    if middle is not None:
        axes.axvline(middle, color=INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(label)
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=6)
    return figure


def lines(
    curves: dict[str, Curve], looks: dict[str, dict[str, str]], x: str, y: str, title: str = "", zero: bool = False
) -> Figure:
    """Curves with 95% bands."""
    figure = Figure(figsize=(4.3, 3.1))
    axes = figure.subplots()
    draw_lines(axes, curves, looks)
    axes.set(xlabel=x, ylabel=y, title=title)
    if zero:
        axes.axhline(0, color=INK, linewidth=0.8, linestyle=":")
    return figure


def draw_lines(axes: Axes, curves: dict[str, Curve], looks: dict[str, dict[str, str]]) -> None:
    seed_lines = sum(len(seeds) for *_, seeds in curves.values()) <= MOST_SEED_LINES
    for name, (steps, centre, (low, high), seeds) in curves.items():
        color = looks[name]["color"]
        if seed_lines and len(seeds) > 1:
            axes.plot(steps, seeds.T, color=color, alpha=0.2, linewidth=0.6)
        if len(curves) <= MOST_BANDS:
            axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
        axes.plot(steps, centre, linewidth=1.7, **looks[name])  # type: ignore[arg-type]
    axes.margins(x=0.02)
    if max(steps.max() for steps, *_ in curves.values()) > 1:
        axes.xaxis.set_major_formatter(thousands)


def grid(panels: dict[str, dict[str, Curve]], looks: dict[str, dict[str, str]], x: str, y: str, note: str) -> Figure:
    """All tasks in one figure with one legend, for documents."""
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    names = [name for name in looks if any(name in curves for curves in panels.values())]
    width = 3.7 * columns + 0.3
    entry = 0.6 + 0.08 * max(map(len, names))  # inches of one in the legend
    legend_columns = max(1, min(4, len(names), int(width / entry)))
    legend_rows = -(-len(names) // legend_columns)
    figure = Figure(figsize=(width, 2.8 * rows + 0.45 + 0.22 * legend_rows))
    note_height = 0.2 / figure.get_figheight()
    layout = figure.get_layout_engine()
    layout.set(rect=(0, note_height, 1, 1 - note_height))  # type: ignore[union-attr, call-arg]
    all_axes = figure.subplots(rows, columns, squeeze=False)
    for axes, (task, curves) in zip(all_axes.flat, panels.items(), strict=False):
        draw_lines(axes, curves, looks)
        axes.set(title=task, xlabel=x)
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel(y)
    for axes in all_axes.flat[len(panels) :]:
        axes.set_visible(False)
    handles = [Line2D([], [], linewidth=1.7, **looks[name]) for name in names]  # type: ignore[arg-type]
    # its distance to the edge is in font sizes, and leaves room for the note
    figure.legend(handles, names, loc="outside lower center", ncols=legend_columns, borderaxespad=1.9)
    figure.text(0.995, 0.05 / figure.get_figheight(), note, ha="right", va="bottom", fontsize=7, color=GRID)
    return figure


def heatmap(names: Sequence[str], values: np.ndarray) -> Figure:
    """Probability that the algorithm of the row beats the one of the column."""
    size = 1.6 + 0.34 * len(names)
    figure = Figure(figsize=(size, size))
    axes = figure.subplots()
    axes.imshow(values, vmin=0, vmax=1, cmap="RdBu")
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    for i in range(len(names)):
        for j in range(len(names)):
            if i != j:
                dark = abs(values[i, j] - 0.5) > 0.3
                text = f"{values[i, j]:.2f}".lstrip("0")
                axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color="white" if dark else "#111111")
    return figure


def lay_out(figure: Figure) -> None:
    """Computes the layout once, for all formats."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def save(figure: Figure, path: Path, formats: Sequence[str]) -> None:
    """Writes a figure in each of the formats, `path` without its ending."""
    for kind in formats:
        metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None, "Creator": None}}[kind]
        figure.savefig(path.with_name(f"{path.name}.{kind}"), format=kind, dpi=160, metadata=metadata)


def svg(figure: Figure, description: str) -> str:
    """A figure as an element of a page, in the page's colours."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    head, view, width = (
        re.search(pattern, text)[0]  # type: ignore[index]
        for pattern in (r"<svg[^>]*>", r'viewBox="[^"]*"', r'(?<=width=")[\d.]+pt')
    )
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    label = html.escape(description, quote=True)
    return text.replace(head, f'<svg role="img" aria-label="{label}" {view} style="width: {width}" {spaces}>', 1)
