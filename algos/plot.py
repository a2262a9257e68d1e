"""Learning curves: the mean over seeds with a 95% band."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from algos.checkpoint import written_aside

PALETTE = ["#1f6feb", "#d1495b", "#2e933c", "#8a4fbe", "#e08e0b", "#3a9ea5"]


def band(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Student's 95% interval of the mean over seeds: scores [seeds, steps] -> low, high, each [steps]."""
    half = stdtrit(len(scores) - 1, 0.975) * scores.std(0, ddof=1) / np.sqrt(len(scores))
    return scores.mean(0) - half, scores.mean(0) + half


def carry_forward(frame: pd.DataFrame, diverged: Iterable[int]) -> pd.DataFrame:
    """Gives diverged seeds the rows of their last evaluation at all later steps: they count with the score they had."""
    frames = [frame]
    for seed in diverged:
        rows = frame[frame["seed"] == seed]
        last = rows[rows["step"] == rows["step"].max()]
        frames += [last.assign(step=step) for step in frame["step"].unique() if step > rows["step"].max()]
    return pd.concat(frames, ignore_index=True)


def bound_percentages(axes: Any, label: str) -> None:
    """Ends the vertical axis at 0 and 100 if its label says that it shows percentages, even where a band does not."""
    if label.endswith("(%)"):
        axes.set_ylim(-3, 103)


def thousands(number: float, _: object = None) -> str:
    """A number of steps for an axis: `250k`, `1.5M`."""
    return f"{number / 1e6:g}M" if abs(number) >= 1e6 else f"{number / 1e3:g}k" if abs(number) >= 1e3 else f"{number:g}"


def noted(width: float, height: float, note: str) -> Any:
    """An empty figure of this size in inches, with a note below."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(rect=(0, 0.045, 1, 0.955))  # room for the note
    figure = Figure(figsize=(width, height), dpi=150, layout=layout)
    figure.text(0.99, 0.012, note, ha="right", fontsize=7, color="#666")
    return figure


def curves(frames: dict[str, pd.DataFrame], path: Path, title: str, label: str, steps_are: str = "environment steps"):
    """Writes a PNG with one curve for each name; each frame is an eval table (seed, step, episode, return, …).

    A seed keeps its score between its own steps, and after the last of them.
    """
    figure = noted(7, 4.2, "mean over seeds with its 95% interval; thin lines are seeds")
    axes = figure.subplots()
    for color, (name, frame) in zip(PALETTE * len(frames), frames.items(), strict=False):
        table = frame.groupby(["seed", "step"])["return"].mean().unstack().ffill(axis=1).dropna(axis=1)
        steps, scores = table.columns.to_numpy(), table.to_numpy()
        seeds = f"{len(scores)} seed{'s' if len(scores) > 1 else ''}"
        axes.plot(steps, scores.T, color=color, alpha=0.18, linewidth=0.7)
        if len(scores) > 1:
            axes.fill_between(steps, *band(scores), color=color, alpha=0.22, linewidth=0)
        axes.plot(steps, scores.mean(0), color=color, linewidth=2, label=f"{name}, {seeds}")
    axes.set_title(title, parse_math=False)
    axes.set(xlabel=steps_are, ylabel=label)
    bound_percentages(axes, label)
    axes.xaxis.set_major_formatter(thousands)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    with written_aside(path) as part:
        figure.savefig(part, format="png")


def predictions(panels: list[tuple[int, np.ndarray, np.ndarray]], title: str) -> bytes:
    """A PNG of predicted against true returns, side by side over stretches of a series.

    Each panel has the number of its first step, the true returns [n], NaN where they are not known, and predictions
    [seeds, n]. It leaves out the seeds with a prediction that is not finite.
    """
    note = "predictions: mean of seeds with one standard deviation; true sums end where the series' end cuts them"
    figure = noted(11, 4, note)
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axes, (start, truth, predicted) in zip(row[0], panels, strict=True):
        steps = start + np.arange(len(truth))
        predicted = predicted[np.isfinite(predicted).all(1)]
        axes.plot(steps, truth, color="#222", linewidth=1.4, label="true")
        if len(predicted):
            mean, std = predicted.mean(0), predicted.std(0)
            seeds = f"{len(predicted)} seed{'s' if len(predicted) > 1 else ''}"
            axes.fill_between(steps, mean - std, mean + std, color=PALETTE[0], alpha=0.25, linewidth=0)
            axes.plot(steps, mean, color=PALETTE[0], linewidth=1.2, label=f"predicted, {seeds}")
        axes.set(xlabel="steps")
        axes.xaxis.set_major_formatter(thousands)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    row[0][0].set(ylabel="discounted sum of cumulants to come")
    row[0][-1].legend(frameon=False, loc="best")
    figure.suptitle(title, parse_math=False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
