"""Makes a dataset's card, which describes the data in words and in a figure.

    python -m benchmarks.dataset local/hopper-medium-replay-v0
    python -m benchmarks.dataset d4rl/antmaze-umaze-v2 --out cards

Prints the sizes, the returns with their scores, the lengths, the source of the data, and notes on what looks wrong.
Writes a PNG with the distributions of returns, lengths, rewards and actions, with the returns in the order of the data,
and with the coverage of states: positions in a maze, and the first two principal components in other tasks.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from algos.cli import run_command
from algos.data import Dataset, action_box, load, validate
from algos.data.record import normalised
from algos.folders import writable
from algos.plot import PALETTE, thousands
from algos.run_folder import folder_name
from benchmarks.figures import style
from benchmarks.suite import BENCHMARKS, read_references

MAZES = ("maze2d", "antmaze", "pointmaze", "stitching")
SHOWN = 100_000  # the most transitions from which actions and coverage are drawn


@dataclass
class Args:
    name: tyro.conf.Positional[str]
    """d4rl/…, minari/…, ogbench/…, local/…, or a .hdf5 or .npz file"""
    exact_d4rl: bool = False
    """take the transitions of D4RL's own qlearning_dataset"""
    out: Path = Path("runs/datasets")
    """the folder for the PNG"""


def card(data: Dataset) -> dict[str, str]:
    """The lines of the card by their names."""
    returns, lengths = data.returns(), np.diff(data.trajectories())[:, 0]
    action, reward = data.action[data.index], data.reward[data.index]
    terminated = int(data.terminated[data.index].sum())
    lines = {
        "transitions": f"{len(data):,}, {data.obs_size} observations, {data.act_size} actions",
        **({"observations": f"joined from {data.parts_in_words}"} if data.parts else {}),
        "trajectories": f"{len(returns):,}, of which the task ended {terminated:,}",
        "lengths": summary(lengths),
    }
    if data.rewarded:
        lines["returns"] = summary(returns)
        if data.low is not None and data.high is not None:
            lines["scores"] = (
                f"{summary(data.score(returns))}; {data.low:,.1f} scores 0 and {data.high:,.1f} scores 100"
            )
        if data.name in (own := read_references(BENCHMARKS / "references" / "recipes.csv").set_index("task")).index:
            low, high = own.loc[data.name, ["low", "high"]]
            scores = summary(normalised(returns, low, high))
            lines["own scores"] = (
                f"{scores}; a random policy's {low:,.1f} scores 0 and our expert's {high:,.1f} scores 100"
            )
        lines["rewards"] = summary(reward.double().numpy(), 3)
    edge = float((action.abs() > 1 - 1e-3).float().mean())
    whose = "" if known_bounds(data) else "; their bounds are those of the environment with which you train"
    lines["actions"] = f"{action.min():.3f} to {action.max():.3f}; {edge:.1%} at or beyond -1 and 1{whose}"
    lines["evaluated in"] = (data.env_id or "no environment") + (f"; {data.note}" if data.note else "")
    lines["source"] = data.source
    for name, policy in data.recipe.get("policies", {}).items():
        total, steps, score = policy["return"], policy["steps"], data.score(policy["return"])
        lines[name] = (
            f"a policy that returns {total:,.0f} (score {score:.1f}) after {steps:,} steps: {policy['command']}"
        )
    lines["SHA-256"] = data.digest
    return lines


def known_bounds(data: Dataset) -> bool:
    """Whether the bounds of actions are known: the format tells them, or they are -1 and 1 as D4RL's."""
    return data.bounds is not None or bool(data.env_id)


def summary(values: NDArray, digits: int = 1) -> str:
    """The mean, spread, range and median of values in words."""
    low, middle, high = np.percentile(values, [0, 50, 100])
    mean, spread, low, middle, high = (f"{v:,.{digits}f}" for v in (values.mean(), values.std(), low, middle, high))
    return f"mean {mean}, std {spread}, {low} to {high}, median {middle}"


def figure(data: Dataset) -> Figure:
    """The figure of six panels that the module's docstring describes."""
    returns, lengths = data.returns(), np.diff(data.trajectories())[:, 0]
    chosen = data.index[torch.from_numpy(np.linspace(0, len(data) - 1, min(SHOWN, len(data))).astype(np.int64))]
    action, reward = data.action[chosen].numpy(), data.reward[data.index].numpy()
    plot = Figure(figsize=(11, 6.2), dpi=150)
    axes = plot.subplots(2, 3)
    color = PALETTE[0]

    def histogram(where: Axes, values: NDArray, title: str, label: str, least: float | None = None) -> None:
        low, high = values.min() if least is None else least, values.max()
        where.hist(values, bins=60, range=(low, high + 0.02 * (high - low or 1)), color=color, alpha=0.85)
        where.set(title=title, xlabel=label, ylabel="number")
        where.yaxis.set_major_formatter(thousands)

    if data.rewarded:
        histogram(axes[0, 0], returns, "Returns", "return of a trajectory")
        if data.low is not None and data.high is not None:
            low, high = data.low, data.high
            scores = (data.score, lambda s: low + s * (high - low) / 100)
            axes[0, 0].secondary_xaxis("top", functions=scores).tick_params(labelsize=7, pad=0)
            axes[0, 0].set_title("Returns (above: scores)", y=1.08)
        ends = data.trajectories()[:, 1]
        axes[0, 1].plot(ends, returns, ".", color=color, alpha=0.35, markersize=2.5, rasterized=True)
        axes[0, 1].set(title="Returns in the order of the data", xlabel="transition", ylabel="return")
        axes[0, 1].xaxis.set_major_formatter(thousands)
        histogram(axes[1, 0], reward, "Rewards", "reward of a step")
        axes[1, 0].set_yscale("log")
        axes[1, 0].yaxis.set_major_formatter(thousands)
    else:
        for where in (axes[0, 0], axes[0, 1], axes[1, 0]):
            where.text(0.5, 0.5, "no rewards", ha="center", va="center", transform=where.transAxes)
            where.set_axis_off()
    histogram(axes[0, 2], lengths, "Lengths", "steps of a trajectory", 0)
    parts = axes[1, 1].violinplot(list(action.T), showextrema=False, widths=0.85)
    for body in parts["bodies"]:
        body.set(facecolor=color, alpha=0.75)
    axes[1, 1].set(title="Actions", xlabel="dimension", ylabel="action", xticks=range(1, data.act_size + 1))
    xy, names = coverage(data, chosen)
    bins = axes[1, 2].hexbin(*xy.T, gridsize=60, bins="log", cmap="viridis", mincnt=1, linewidths=0)
    axes[1, 2].set(title="Coverage of states", xlabel=names[0], ylabel=names[1])
    plot.colorbar(bins, ax=axes[1, 2], label="number").ax.yaxis.set_major_formatter(thousands)
    plot.suptitle(f"{data.name}: {len(data):,} transitions")
    return plot


def coverage(data: Dataset, chosen: torch.Tensor) -> tuple[NDArray, tuple[str, str]]:
    """Two coordinates [n, 2] of the chosen states, and the names of these coordinates."""
    obs = data.obs[chosen].double().numpy()
    if any(name in data.name for name in MAZES):
        return obs[:, :2], ("x", "y")
    scaled = (obs - obs.mean(0)) / (obs.std(0) + 1e-8)
    _, values, axes = np.linalg.svd(scaled[:: max(len(scaled) // 20_000, 1)], full_matrices=False)
    # the largest weight of an axis becomes positive: without this, its sign would be arbitrary
    axes *= np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])[:, None]
    share = np.pad(values**2 / (values**2).sum(), (0, 1))
    axes = np.vstack([axes, np.zeros_like(axes[:1])])[:2]
    return scaled @ axes.T, (f"1st component ({share[0]:.0%} of variance)", f"2nd component ({share[1]:.0%})")


def main(args: Args) -> None:
    data = load(args.name, args.exact_d4rl)
    path = writable(args.out) / f"{folder_name(data.name)}.png"
    notes = validate(data, act_space=action_box(data) if known_bounds(data) else None)
    for name, line in card(data).items():
        print(f"{name:<14} {line}")
    for note in notes:
        print(f"{'note':<14} {note}")
    with style():
        figure(data).savefig(path)
    print(f"{'figure':<14} {path}")


if __name__ == "__main__":
    run_command(main)
