"""The figures of a report. Each is a matplotlib figure, saved as PNG and PDF and put into the page as SVG.

The same input gives the same bytes: no dates, and identifiers that depend on the content only. In the SVG, ink and grid
take the page's colours, so that they suit light and dark.
"""

import html
import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator
from matplotlib.transforms import ScaledTranslation
from PIL import Image

from algos.plot import PALETTE, bound_percentages, thousands
from benchmarks.scores import plain
from benchmarks.tables import number

DPI = 160  # of layouts too: at another one, letters are a little wider or narrower
INK, GRID = "#1b2330", "#8d96a3"
COLORS = [*PALETTE, "#b5651d", "#c2528b", "#6b7a3a", "#5b6ee1"]
DASHES: Any = ["-", "--", ":"]
# Hues in an order that the eye follows, all readable on white and on black: for values of one hyperparameter.
RAMP = LinearSegmentedColormap.from_list("ramp", ["#3b5bdb", "#1a8fb5", "#2f9e44", "#d19a0a", "#e0602c", "#c2255c"])
MARKERS = "os^Dv*"
WIDE = 7.0  # inches from which on a figure gets a row of the page to itself
MOST_SEED_LINES = 20  # lines of single seeds that a figure still shows
MOST_TIPS = 25  # places of a curve that show their value
LINEAR = 10.0  # up to which an axis with values on both sides of 0 is linear
MOST_BANDS = 10  # curves that a figure still shows with bands

Curve = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # steps [T], centre [T], interval [2, T], seeds [N, T]
Points = tuple[np.ndarray, ...]  # value of a hyperparameter, mean, low and high end of the interval, [V] each
Styles = dict[str, dict[str, str]]  # colour and line style by algorithm


class Drawing(Figure):
    """A figure in whose SVG some places show a text where the pointer rests."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.hovers: list[tuple[Axes, float, float, str]] = []

    def tell(self, axes: Axes, x: float, y: float, text: str) -> None:
        """Gives a place of the axes, in their own units, a text."""
        self.hovers.append((axes, float(x), float(y), text))

    def circles(self) -> str:
        """The places with a text as elements of the SVG, whose units are points."""
        points = 72 / self.dpi
        elements = []
        for axes, x, y, text in self.hovers:
            across, up = axes.transData.transform((x, y)) * points
            if np.isfinite([across, up]).all():
                place = f'cx="{across:.1f}" cy="{self.get_figheight() * 72 - up:.1f}"'
                elements.append(f'<circle class="tip" {place} r="5"><title>{html.escape(text)}</title></circle>')
        return "".join(elements)


def told(name: str, value: float, low: float, high: float) -> str:
    """A value with its interval in words."""
    interval = "" if np.isnan(low) else f" [{number(low)[0]}, {number(high)[0]}]"
    return f"{name}: {number(value)[0]}{interval}"


@contextmanager
def style() -> Iterator[None]:
    """Settings for all figures."""
    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "seedbed", "text.parse_math": False, "font.size": 9.5,
        "axes.titlesize": 10.5, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.alpha": 0.3, "grid.color": GRID, "grid.linewidth": 0.6, "text.color": INK, "axes.labelcolor": INK,
        "axes.edgecolor": INK, "axes.titlecolor": INK, "xtick.color": INK, "ytick.color": INK, "legend.frameon": False,
        "figure.constrained_layout.use": True, "pdf.fonttype": 42, "figure.dpi": DPI,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        yield


def styles_of(names: Sequence[str], settings: dict[str, dict[str, float]] | None = None) -> Styles:
    """Colour and line style of each algorithm, the same in all figures.

    If all are settings of the same hyperparameters, the colour tells the first one's value and the line style the
    values of the others, as long as there are line styles enough and this tells all of them apart.
    """
    grid = [(settings or {}).get(name, {}) for name in names]
    firsts = sorted({next(iter(setting.values())) for setting in grid if setting})
    others = list(dict.fromkeys(tuple(setting.values())[1:] for setting in grid))
    if len({tuple(setting) for setting in grid}) == 1 and all(grid) and len(others) <= len(DASHES):
        colors = dict(zip(firsts, ramp(len(firsts)), strict=True))
        styles = {
            name: {"color": colors[first], "linestyle": DASHES[others.index(tuple(rest))]}
            for name, (first, *rest) in zip(names, (setting.values() for setting in grid), strict=True)
        }
        if len({tuple(style.values()) for style in styles.values()}) == len(names):
            return styles
    return {
        name: {"color": COLORS[i % len(COLORS)], "linestyle": DASHES[i // len(COLORS) % len(DASHES)]}
        for i, name in enumerate(names)
    }


def ramp(count: int) -> list[str]:
    """Colours for values from low to high."""
    return [to_hex(RAMP(place)) for place in (np.linspace(0, 1, count) if count > 1 else [0.0])]


def intervals(
    rows: dict[str, tuple[float, float, float]],
    styles: Styles | None,
    label: str,
    middle: float | None,
    names: dict[str, str] | None = None,
    title: str = "",
) -> Figure:
    """A row with point and 95% interval for each algorithm, which `names` may give another name.

    `middle` draws a line to compare with. `title` says what the names are. Rows that have no look are drawn in ink.
    """
    shown = [(names or {}).get(name, name) for name in rows]
    figure = Drawing(
        figsize=(max(4.3, 3.3 + 0.08 * max(map(len, shown))), 0.75 + 0.3 * len(rows) + 0.17 * label.count("\n"))
    )
    axes = figure.subplots()
    for place, (name, (point, low, high)) in enumerate(rows.items()):
        color = styles[name]["color"] if styles and name in styles else INK
        axes.plot([low, high], [place, place], color=color, linewidth=7, alpha=0.35, solid_capstyle="butt")
        axes.plot([point], [place], color=color, marker="|", markersize=13, markeredgewidth=2.2)
        figure.tell(axes, point, place, told(shown[place], point, low, high))
    if middle is not None:
        axes.axvline(middle, color=INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), shown)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set(xlabel=label, ylabel=title)
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=6)
    return figure


def lines(
    curves: dict[str, Curve],
    styles: Styles,
    x: str,
    y: str,
    title: str = "",
    zero: bool = False,
    behind: dict[str, Curve] | None = None,
) -> Figure:
    """Curves with 95% bands, others in grey `behind` them, and a line at 0."""
    figure = Drawing(figsize=(4.3, 3.1))
    axes = figure.subplots()
    others = sorted(behind or {})
    draw_behind(axes, behind or {}, others)
    draw_lines(axes, curves, styles)
    if others:
        axes.legend(grey_lines(others), others, fontsize=7, loc="best")
    axes.set(xlabel=x, ylabel=y, title=title)
    bound_percentages(axes, y)
    if zero:
        axes.axhline(0, color=INK, linewidth=0.8, linestyle=":")
    return figure


def make_log(axes: Axes, which: Literal["x", "y"]) -> None:
    """Makes an axis logarithmic, with plain numbers, because mathematical text is shown as it is written.

    An axis whose data are not all positive is linear around 0, where it is shaded, and logarithmic beyond `LINEAR` on
    either side.
    """
    axis, set_scale = (axes.xaxis, axes.set_xscale) if which == "x" else (axes.yaxis, axes.set_yscale)
    if axis.get_data_interval()[0] > 0:
        set_scale("log")
        low, high = axis.get_view_interval()
        if high < 100 * low:  # powers of ten alone would be one number or two
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        set_scale("symlog", linthresh=LINEAR)
        low, high = axis.get_view_interval()
        span = axes.axvspan if which == "x" else axes.axhspan
        span(-LINEAR, LINEAR, color=GRID, alpha=0.08, linewidth=0, zorder=0)
        (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def draw_behind(axes: Axes, curves: dict[str, Curve], names: Sequence[str]) -> None:
    """Curves of others, in grey; their place among `names` decides their dashes."""
    for name, (steps, centre, (low, high), _) in curves.items():
        dashes = DASHES[names.index(name) % len(DASHES)]
        axes.fill_between(steps, low, high, color=GRID, alpha=0.16, linewidth=0, zorder=0.5)
        axes.plot(steps, centre, linewidth=1.1, color=GRID, linestyle=dashes, zorder=0.6)
        for i in {len(steps) // 2, len(steps) - 1}:
            axes.figure.tell(axes, steps[i], centre[i], told(name, centre[i], low[i], high[i]))  # type: ignore[union-attr]


def grey_lines(names: Sequence[str]) -> list[Line2D]:
    """The lines of curves of others in a legend."""
    return [Line2D([], [], linewidth=1.1, color=GRID, linestyle=DASHES[i % len(DASHES)]) for i in range(len(names))]


def draw_lines(axes: Axes, curves: dict[str, Curve], styles: Styles) -> None:
    seed_lines = sum(len(seeds) for *_, seeds in curves.values()) <= MOST_SEED_LINES
    for name, (steps, centre, (low, high), seeds) in curves.items():
        color = styles[name]["color"]
        if seed_lines and len(seeds) > 1:
            axes.plot(steps, seeds.T, color=color, alpha=0.2, linewidth=0.6)
        if len(curves) <= MOST_BANDS:
            axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
        axes.plot(steps, centre, linewidth=1.7, **styles[name])  # type: ignore[arg-type]
        for i in np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_TIPS)).astype(int)):
            at = f"{steps[i]:,.0f}" if steps[-1] > 1 else f"{steps[i]:.2f}"
            axes.figure.tell(axes, steps[i], centre[i], f"{told(name, centre[i], low[i], high[i])} at {at}")  # type: ignore[union-attr]
    axes.margins(x=0.02)
    if max(steps.max() for steps, *_ in curves.values()) > 1:
        axes.xaxis.set_major_formatter(thousands)


def grid(
    panels: dict[str, dict[str, Curve]],
    styles: Styles,
    x: str,
    y: str,
    note: str,
    names: dict[str, str] | None = None,
    title: str = "",
    behind: dict[str, dict[str, Curve]] | None = None,
    bounds: tuple[str, dict[str, float]] | None = None,
) -> Figure:
    """All tasks in one figure with one legend, for documents; the legend has `names`, and `title` above them.

    With `bounds`, a name and a value for each task, the vertical axes are logarithmic, with a line at each value.
    """
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    keys = [name for name in styles if any(name in curves for curves in panels.values())]
    others = sorted({name for curves in (behind or {}).values() for name in curves})
    shown = [*((names or {}).get(name, name) for name in keys), *others, *([bounds[0]] if bounds else [])]
    width = 3.7 * columns + 0.3
    entry = 0.6 + 0.08 * max(map(len, shown))  # inches of one in the legend
    legend_columns = max(1, min(4, len(shown), int(width / entry)))
    legend_rows = -(-len(shown) // legend_columns) + bool(title)
    figure = Drawing(figsize=(width, 2.8 * rows + 0.45 + 0.22 * legend_rows))
    note_height = 0.2 / figure.get_figheight()
    layout = figure.get_layout_engine()
    layout.set(rect=(0, note_height, 1, 1 - note_height))  # type: ignore[union-attr, call-arg]
    all_axes = figure.subplots(rows, columns, squeeze=False)
    edge: Any = {"color": INK, "linewidth": 0.8, "linestyle": ":"}
    for axes, (task, curves) in zip(all_axes.flat, panels.items(), strict=False):
        draw_behind(axes, (behind or {}).get(task, {}), others)
        draw_lines(axes, curves, styles)
        axes.set(title=task, xlabel=x)
        bound_percentages(axes, y)
        if bounds:
            axes.axhline(bounds[1].get(task, np.nan), **edge)
            make_log(axes, "y")  # last: its numbers depend on the range of the axis
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel(y)
    for axes in all_axes.flat[len(panels) :]:
        axes.set_visible(False)
    handles = [Line2D([], [], linewidth=1.7, **styles[name]) for name in keys]  # type: ignore[arg-type]
    handles += grey_lines(others) + [Line2D([], [], **edge)] * bool(bounds)
    # its distance to the edge is in font sizes, and leaves room for the note
    figure.legend(
        handles, shown, loc="outside lower center", ncols=legend_columns, borderaxespad=1.9, handlelength=2.6,
        title=title or None,
    )  # fmt: skip
    figure.text(0.995, 0.05 / figure.get_figheight(), note, ha="right", va="bottom", fontsize=7, color=GRID)
    return figure


def heatmap(names: Sequence[str], values: np.ndarray, title: str = "") -> Figure:
    """Probability that the algorithm of the row beats the one of the column; `title` says what the names are."""
    size = 0.7 + 0.36 * len(names) + 0.075 * max(map(len, names))
    figure = Drawing(figsize=(size, size))
    axes = figure.subplots()
    axes.imshow(values, vmin=0, vmax=1, cmap="RdBu")
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel=f"beats this: {title}" if title else "", ylabel=f"this: {title}" if title else "")
    axes.grid(visible=False)
    for i in range(len(names)):
        for j in range(len(names)):
            if i != j:
                dark = abs(values[i, j] - 0.5) > 0.3
                text = f"{values[i, j]:.2f}".removeprefix("0")
                axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color="white" if dark else "#111111")
    return figure


def sensitivity(
    lines: dict[str, Points],
    mean: tuple[str, Points] | None,
    ticks: Sequence[float],
    x: str,
    y: str,
    title: str,
) -> Figure:
    """A score with 95% intervals against a hyperparameter: a thin line for each of `lines`, a thick one for `mean`."""
    figure = Drawing(figsize=(4.3, 3.2 + 0.19 * (len(lines) + 1)))
    axes = figure.subplots()
    drawn = [(label, points, color, marker, 1.3) for (label, points), color, marker in
             zip(lines.items(), ramp(len(lines)), MARKERS, strict=False)]  # fmt: skip
    if mean:
        drawn.append((*mean, INK, "o", 2.6))
    scale, options = scale_of(ticks)
    axes.set_xscale(scale, **options)
    axes.margins(x=0.09)
    for place, (label, (values, means, low, high), color, marker, width) in enumerate(drawn):
        # beside each other, a few points apart, so that intervals do not hide each other
        aside = ScaledTranslation(2.6 * (place - (len(drawn) - 1) / 2) / 72, 0, figure.dpi_scale_trans)
        moved = axes.transData + aside
        # thin lines are on top
        how: Any = {"color": color, "linewidth": width, "transform": moved, "zorder": 3 - width / 10}
        axes.vlines(values, low, high, alpha=0.55, **how)
        axes.plot(values, means, marker=marker, markersize=2.5 + width, **how)
        ends = [(v, y) for bound in (low, high) for v, y in zip(values, bound, strict=True) if np.isfinite(y)]
        axes.update_datalim([*ends, *zip(values, means, strict=True)])  # not seen if moved
        for value, middle, *ends_of in zip(values, means, low, high, strict=True):
            figure.tell(axes, value, middle, told(f"{label}, {plain(value)}", middle, *ends_of))
    axes.autoscale_view()
    axes.set_xticks(ticks, [plain(value) for value in ticks], rotation=45 if len(ticks) > 7 else 0)
    axes.minorticks_off()
    axes.set(xlabel=x, ylabel=y)
    axes.set_title("\n".join(textwrap.wrap(title, 48)))
    if len(drawn) > 1:
        handles = [
            Line2D([], [], color=color, marker=marker, markersize=2.5 + width, linewidth=width)
            for _, _, color, marker, width in drawn
        ]
        figure.legend(handles, [label for label, *_ in drawn], loc="outside lower center", fontsize=8, ncols=1)
    else:
        axes.set_title("\n".join([*textwrap.wrap(title, 54), *textwrap.wrap(drawn[0][0], 54)]), fontsize=9.5)
    return figure


def scale_of(values: Sequence[float]) -> tuple[str, dict[str, float]]:
    """The scale of an axis for the values of a hyperparameter, from low to high, with options for `set_xscale`.

    It is logarithmic for positive values that spread over a factor of 5 or more with steps more even in their ratios
    than in their differences, and linear otherwise. A 0 below such values stands one step left of the lowest.
    """
    positive = np.array(values[1:] if values[0] == 0 else values, float)
    if len(positive) > 1 and positive[0] > 0 and positive[-1] >= 5 * positive[0]:
        ratios, differences = np.diff(np.log(positive)), np.diff(positive)
        if ratios.std() / ratios.mean() <= differences.std() / differences.mean():
            return ("symlog", {"linthresh": positive[0], "linscale": 0.5}) if values[0] == 0 else ("log", {})
    return "linear", {}


def cells(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    row_label: str,
    column_label: str,
    title: str,
    digits: int | None,
) -> Figure:
    """Values written into the cells of a table, NaN for none, with colours from the lowest to the highest."""
    shown = [[number(value, digits)[0] if np.isfinite(value) else "" for value in row] for row in values]
    width = 0.35 + 0.075 * max(len(text) for row in [*shown, columns] for text in row)
    size = 0.9 + 0.07 * max(map(len, rows)) + width * len(columns), 1.1 + 0.4 * len(rows)
    figure = Drawing(figsize=(max(size[0], 4.3), size[1]))
    axes = figure.subplots()
    axes.imshow(values, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=column_label, ylabel=row_label)
    axes.set_title(title, fontsize=9.5)
    axes.grid(visible=False)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for i, row in enumerate(shown):
        for j, text in enumerate(row):
            axes.text(
                j, i, text, ha="center", va="center", fontsize=9, color="white" if values[i, j] < middle else "black"
            )
    return figure


def lay_out(figure: Figure) -> None:
    """Computes the layout once, for all formats."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def save(figure: Figure, path: Path, formats: Sequence[str]) -> None:
    """Writes a figure in each of the formats, `path` without its ending.

    A PNG has a palette of 256 colours, which nobody sees, and a third of the size.
    """
    for kind in formats:
        file = path.with_name(f"{path.name}.{kind}")
        if kind == "png":
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=DPI)
            image = Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE)
            image.save(file, optimize=True)
        else:
            metadata = {"CreationDate": None, "Producer": None, "Creator": None}
            figure.savefig(file, format=kind, dpi=DPI, metadata=metadata)


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
    if isinstance(figure, Drawing):
        text = text.replace("</svg>", f"{figure.circles()}</svg>")
    return text.replace(head, f'<svg role="img" aria-label="{label}" {view} style="width: {width}" {spaces}>', 1)
