"""Beside a report on the edge of reach: the line world, and the base method with models from a random to a true one.

    python -m benchmarks.report runs/edge_of_reach runs/edge_of_reach_mix --out runs/mixtures
    python -m benchmarks.edge_of_reach runs/mixtures

It reads the report's stored scores, and writes check.md and figures/mixtures.png beside them.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro

from algos.cli import run_command
from algos.errors import UserError
from algos.stored import Finite, Stored
from benchmarks import estimates, figures, line_world
from benchmarks.load_scores import check_arguments, load
from benchmarks.scores import Scores, final_scores, label
from benchmarks.tables import escape, table_of


@dataclass
class Args:
    folder: Annotated[Path, tyro.conf.Positional]
    """folder of the report"""


class ModelArguments(Stored):
    """The arguments of a run with a model that are read here."""

    penalty_weight: Finite
    real_ratio: Finite
    dynamics: str
    model_mix: Finite
    mix_with: str


def place(args: dict[str, Any]) -> float | None:
    """Where a run's model lies: -1 for a random one, 0 for the learned one, 1 for the simulator; None for no mixture.

    Only the base method counts: MOPO without a penalty.
    """
    if args.get("penalty_weight") != 0 or args.get("real_ratio") == 1:
        return None
    if args["dynamics"] == "true":
        return 1.0
    return args["model_mix"] * (1.0 if args["mix_with"] == "true" else -1.0)


def mixtures(scores: Scores) -> pd.DataFrame:
    """The last return and the last value of the policy of each seed: task, place, seed, return, policy_value.

    A seed that diverged has no value.
    """
    own = [config for config in scores.sources if config["algorithm"] == "mopo"]
    for config in own:
        check_arguments(config, ModelArguments)
    places = {(config["task"], label(config)): place(config["args"]) for config in own}
    final = final_scores(scores.table).rename(columns={"last": "return"})
    values = scores.watched[scores.watched["metric"] == "policy_value"].sort_values("step")
    if values.empty:
        raise UserError("no run has logged the value of its policy (policy_value in watched.csv)")
    values = values.groupby(["task", "algorithm", "seed"])["value"].last().rename("policy_value").reset_index()
    table = final.merge(values, how="left", on=["task", "algorithm", "seed"])
    table["place"] = [places.get(key) for key in zip(table["task"], table["algorithm"], strict=True)]
    table = table.dropna(subset=["place"])
    for (task, where), rows in table.groupby(["task", "place"]):
        if rows["algorithm"].nunique() > 1:
            names = " and ".join(rows["algorithm"].unique())
            raise UserError(
                f"{names} have the same model on {task} (place {where:g}) and cannot be one point: keep one"
            )
    return table[["task", "place", "seed", "return", "policy_value"]]


def draw(table: pd.DataFrame, task: str, bound: float) -> Any:
    """Return and value of the policy by the place of the model, with 95% intervals over seeds; `bound` is of values."""
    figure = figures.Figure(figsize=(7.4, 3.3))
    figure.suptitle(task)
    titles = {"return": "return, undiscounted", "policy_value": "discounted value of the policy"}
    for axes, (name, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        known = table.dropna(subset=[name])
        places = sorted(known["place"].unique())
        groups = [known.loc[known["place"] == where, name].to_numpy() for where in places]
        low, high = np.array([estimates.task_means(v[:, None])[:, 0] for v in groups]).T
        axes.fill_between(places, low, high, color=figures.COLORS[0], alpha=0.2, linewidth=0)
        axes.plot(places, [v.mean() for v in groups], color=figures.COLORS[0], marker="o", markersize=4)
        axes.set(title=title, xlabel="model", xticks=[-1, 0, 1], xticklabels=["random", "learned", "true"])
        if name == "policy_value":
            if np.isfinite(bound):
                axes.axhline(
                    bound, color=figures.INK, linewidth=0.9, linestyle=":", label="bound by the data's rewards"
                )
                axes.legend(loc="lower right", fontsize=7)
            figures.make_log(axes, "y")
    return figure


def main(args: Args) -> None:
    scores = load([args.folder])
    table = mixtures(scores)
    several = table.groupby("task")["place"].nunique()
    tasks = [task for task, count in several.items() if count > 2]
    if not tasks:
        raise UserError(f"{args.folder} has no task with the base method by three models or more")
    lines = ["# The base method with other models, and the line world"]
    lines.append(f"`python -m benchmarks.edge_of_reach {shlex.quote(str(args.folder))}`")
    lines += [f"> {escape(n)}" for n in scores.notes]
    with figures.style():
        for number, task in enumerate(tasks):
            own = table[table["task"] == task]
            name = "mixtures" if number == 0 else f"mixtures_{number + 1}"
            bound = scores.watched.query("task == @task and metric == 'value_bound'")["value"].max()
            figure = draw(own, str(task), bound)
            figures.save(figure, args.folder / "figures" / name, ("png",))
            lines.append(f"![{task}: the base method by its model](figures/{name}.png)")
            means = own.groupby("place")[["return", "policy_value"]].mean().reset_index()
            counts = own.groupby("place")[["return", "policy_value"]].count()
            means["seeds"] = counts["return"].to_numpy()
            if (counts["policy_value"] < counts["return"]).any():
                means["seeds with a value"] = counts["policy_value"].to_numpy()
            places = "-1: an ensemble with random weights, 0: the trained one, 1: MuJoCo itself"
            lines += [f"{task}, {places}:", table_of(means).markdown()]
    about = (line_world.__doc__ or "").split("\n\n")
    lines += ["## The line world", *(" ".join(part.split()) for part in about)]
    lines.append(table_of(pd.DataFrame(line_world.table())).markdown())
    (args.folder / "check.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    print(args.folder / "check.md")


if __name__ == "__main__":
    run_command(main)
