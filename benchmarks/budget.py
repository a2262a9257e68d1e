"""What choosing among offline-trained policies costs: the return against the number of episodes played to choose.

    python single_file/iql.py --dataset local/hopper-medium-replay-v0 --seeds 0:5 --vary expectile=0.5,0.7,0.9
    python -m benchmarks.evaluate runs/local-hopper-medium-replay-v0/iql/default
    python -m benchmarks.budget runs/local-hopper-medium-replay-v0/iql/default --out runs/budget

An offline method is trained with many hyperparameters, and someone has to choose. As in unifloral (Jackson et al. 2025,
arXiv 2504.11453), a few policies of random hyperparameters and seeds are drawn again and again, and a bandit (UCB)
plays episodes of them; after each episode, the true mean return of the policy that looks best is noted. The bonus of an
arm is in units of the spread of returns, and every arm is played once before any is played twice; in unifloral's code
the bonus has the scale of scores, and arms without an episode count as 0. Beside it stand, for each number k of
policies, the expected best of k random ones (Dodge et al. 2019 and Kurenkov and Kolesnikov 2022, arXiv 2110.04156),
which is what an endless budget finds, and, where a run logged it, that one of the k to which the critic gives the
highest value on the first states of the data (methods with a model: on all of its states), which needs no episode.

A policy's episodes are those of `benchmarks.evaluate` in the run's folder, or else of its last evaluation. OUT gets
page.md, figures/, curves.csv, best_of.csv, episodes.csv and sources.json. It can be made again from what it stored.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from scipy.special import comb

from algos.arguments import Range, check
from algos.cli import run_command
from algos.errors import UserError
from algos.folders import check_usable, writable
from algos.stored import EVAL, FINISHED, TRAIN, Config, find, read_csv, read_json, read_table
from benchmarks import figures
from benchmarks.load_scores import no_seed_twice
from benchmarks.parts import file_name
from benchmarks.read_scores import part_of
from benchmarks.scores import family_name, label, measure_of
from benchmarks.stored import origin, write_sources
from benchmarks.tables import Table, between, escape, number, purpose, word

BONUS = 2.0  # alpha of UCB: the bonus is sqrt(alpha ln n / plays), times the spread
VALUES = ("start_value", "policy_value")  # of a policy by its critic, as runs log it
KINDS = {"task": "words", "algorithm": "words", "policy": "whole", "episode": "whole"}
BUDGETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)


@dataclass
class Args:
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """folders of runs or sweeps, or what this command wrote"""
    out: Path
    """where the page goes"""
    policies: Annotated[int, Range(2, 1_000)] = 8
    """policies among which the bandit chooses; all, where there are fewer"""
    plays: Annotated[int, Range(1, 10_000)] = 200
    """episodes that it may play"""
    repetitions: Annotated[int, Range(10, 100_000)] = 1_000
    """draws of policies and games of the bandit"""


def episodes_of(folders: tuple[Path, ...]) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """The episodes of all policies: task, algorithm, policy, episode, return, value; and where they come from.

    Policies of one algorithm count from 0 on each task; `value` is the critic's, NaN where none is logged.
    """
    parts: list[pd.DataFrame] = []
    sources: list[dict[str, Any]] = []
    for folder in folders:
        if os.path.lexists(folder / "episodes.csv"):
            keys = ["task", "algorithm", "policy", "episode"]
            parts.append(
                read_csv(folder / "episodes.csv", [*keys, "return", "value"], keys, KINDS).assign(source=str(folder))
            )
            sources += read_json(folder / "sources.json", list[Config])
            continue
        for path in find(folder, "config.json"):
            config = {"folder": str(path.parent), **read_json(path, Config)}
            parts.append(of_run(path.parent, config))
            config.get("args", {}).pop("out", None)
            sources.append(config)
    if not parts:
        raise UserError(f"no run in {', '.join(map(str, folders))}" if folders else "name at least one folder of runs")
    check_once(sources)
    whole = pd.concat(parts, ignore_index=True)
    if lost := whole.loc[~np.isfinite(whole["return"]), ["algorithm", "task"]].drop_duplicates().to_numpy().tolist():
        raise UserError(f"{lost[0][0]} on {lost[0][1]} has returns that are no finite numbers: leave its folder out")
    counted = [
        rows.assign(policy=rows.groupby(["source", "policy"], sort=False).ngroup())
        for _, rows in whole.groupby(["task", "algorithm"], sort=True)
    ]
    table = pd.concat(counted, ignore_index=True)
    return table[["task", "algorithm", "policy", "episode", "return", "value"]], sources


def check_once(sources: list[dict[str, Any]]) -> None:
    """Raises UserError if a policy is given twice; runs of one name with other arguments have other policies."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for part in (part for config in sources for part in settings_of(config)):
        identity = {name: value for name, value in part.get("identity", {}).items() if name != "seeds"}
        alike.setdefault(json.dumps(identity, sort_keys=True), []).append(part)
    for parts in alike.values():
        no_seed_twice(parts)


def settings_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The configuration of each setting of a run, as if a process had trained it alone."""
    named = {"task": config.get("task") or config["env_id"], "seeds": seeds_of(config)}
    varied, settings = config.get("varied", []), config.get("settings") or [{}]
    return [part_of(config | named, {name: setting[name] for name in varied}) for setting in settings]


def seeds_of(config: dict[str, Any]) -> list[int]:
    """The seeds of a run."""
    return config.get("seeds") or config.get("identity", {}).get("seeds", [])


def notes_of(sources: list[dict[str, Any]]) -> list[str]:
    """A sentence on each setting of which seeds diverged."""
    notes = []
    for part in (part for config in sources for part in settings_of(config)):
        if lost := part["diverged"]:
            seeds = ", ".join(f"{row['seed']} (before step {row['step']:,})" for row in lost)
            notes.append(
                f"Seed{'s' * (len(lost) > 1)} {seeds} of {label(part)} on {part['task']} diverged; a policy that did "
                "counts with the episodes of its last evaluation, if there was one after it began to learn."
            )
    ends: dict[tuple[str, str], dict[str, set[int]]] = {}
    for config in sources:
        state = "" if config.get("status") in FINISHED else " (not finished)"
        key = config.get("task") or config["env_id"], family_name(config)
        ends.setdefault(key, {}).setdefault(f"{config.get('step', 0):,}{state}", set()).update(seeds_of(config))
    for (task, name), steps in ends.items():
        if len(steps) > 1 or any("not" in step for step in steps):
            of_each = "; ".join(
                f"step {step}: seed{'s' * (len(s) > 1)} {', '.join(map(str, sorted(s)))}" for step, s in steps.items()
            )
            notes.append(f"Policies of {name} on {task} are those of different steps, or not of the last: {of_each}.")
    return notes


def of_run(folder: Path, config: dict[str, Any]) -> pd.DataFrame:
    """The episodes of a run's policies: of `benchmarks.evaluate` if it played all, otherwise of their last evaluation.

    A policy that diverged has its last evaluation, repeated until there are about as many episodes as others have; one
    that diverged before it was evaluated is left out.
    """
    varied = config.get("varied", [])
    keys = ["seed", *varied]
    stored = sorted((folder / "evaluation").glob("*/episodes.parquet"))
    told = [(path, path.with_name("evaluation.json")) for path in stored]
    said = [(path, read_json(about, dict)) for path, about in told if os.path.lexists(about)]  # which is written last
    whole = len(seeds_of(config)) * len(config.get("settings") or [{}]) - len(config.get("diverged", []))
    own = [
        path for path, made in said
        if made.get("own", True) and made.get("step") == config.get("step") and len(made.get("runs", [])) >= whole
    ]  # fmt: skip
    success = ["task", "success"] if config.get("score") == "success" else []
    table = read_table(folder / "eval.parquet", [*EVAL, *success], varied)
    if table.empty:
        raise UserError(f"{folder} has no evaluations, and its policies have no scores")
    end = table.groupby(keys)["step"].transform("max")
    table = table[(table["step"] == end) & ((end > 0) | (end.max() == 0))]
    if own:
        played = max((read_table(path, [EVAL[0], "return", *success], varied) for path in own), key=len)
        there = set(played[keys].itertuples(index=False, name=None))
        lost = table[[key not in there for key in table[keys].itertuples(index=False, name=None)]]
        each = int(played.groupby(keys).size().iloc[0])
        again = [pd.concat([rows] * max(each // len(rows), 1)) for _, rows in lost.groupby(keys)]
        table = pd.concat([played, *again], ignore_index=True)
    of_each, when = int(table.groupby(keys).size().min()), "after training" if own else "of its last evaluation"
    print(f"{folder}: {of_each} episode{'s' * (of_each != 1)} of each policy, {when}")
    returns = 100.0 * table["success"].astype(float) if success else table["return"]
    rows = table[keys].assign(**{"return": returns})
    rows["policy"] = rows.groupby(keys, sort=True).ngroup()
    if success:  # one episode to each goal after the other, so that the first ones of a policy are to all goals alike
        rows["turn"] = table.groupby([*keys, "task"]).cumcount()
        rows = rows.sort_values(["policy", "turn"], kind="stable").drop(columns="turn")
    rows["episode"] = rows.groupby("policy").cumcount()
    logged = pd.DataFrame(columns=[*keys, "metric", "value", "step"])
    if os.path.lexists(folder / "train.parquet"):
        logged = read_table(folder / "train.parquet", TRAIN, varied)
    name = next((name for name in VALUES if (logged["metric"] == name).any()), VALUES[0])
    last = logged[logged["metric"] == name].sort_values("step").groupby(keys)["value"].last()
    known = {key if isinstance(key, tuple) else (key,): value for key, value in last.items()}
    rows["value"] = [known.get(tuple(key), np.nan) for key in rows[keys].itertuples(index=False, name=None)]
    name_of = label({**config, "setting": {}})
    return rows.assign(task=config.get("task") or config["env_id"], algorithm=name_of, source=str(folder))


def matrix(rows: pd.DataFrame) -> tuple[NDArray, NDArray]:
    """The returns [policies, episodes] and the critic's values [policies]; all have as many episodes as the fewest."""
    fewest = int(rows.groupby("policy").size().min())
    wide = rows[rows["episode"] < fewest].pivot(index="policy", columns="episode", values="return").dropna()
    return wide.to_numpy(), rows.groupby("policy")["value"].first().loc[wide.index].to_numpy(float)


def drawn(policies: int, count: int, repetitions: int) -> NDArray:
    """`count` of so many policies for each repetition [repetitions, count], without replacement."""
    rng = np.random.default_rng(1)
    return rng.permuted(np.tile(np.arange(policies), (repetitions, 1)), axis=1)[:, :count]


def bandit(returns: NDArray, policies: int, plays: int, repetitions: int) -> NDArray:
    """The true mean return of the policy that looks best after each play [repetitions, plays]."""
    rng = np.random.default_rng(0)
    truth, spread = returns.mean(1), returns.std() or 1.0
    count = min(policies, len(returns))
    arms = drawn(len(returns), count, repetitions)
    sums, pulls = np.zeros((repetitions, count)), np.zeros((repetitions, count))
    every = np.arange(repetitions)
    chosen = np.zeros((repetitions, plays))
    for play in range(plays):
        if play < count:
            arm = np.full(repetitions, play)
        else:
            score = sums / pulls + spread * np.sqrt(BONUS * np.log(play + 1) / pulls)
            arm = (score + 1e-9 * rng.random(score.shape)).argmax(1)
        episode = rng.integers(returns.shape[1], size=repetitions)
        sums[every, arm] += returns[arms[every, arm], episode]
        pulls[every, arm] += 1
        means = np.where(pulls > 0, sums / np.maximum(pulls, 1), -np.inf)
        chosen[:, play] = truth[arms[every, means.argmax(1)]]
    return chosen


def best_of(truth: NDArray, most: int, by: NDArray | None = None) -> NDArray:
    """The expected mean return of the one chosen among k policies, drawn without replacement, for k = 1 to `most`.

    It is the best, or the one that is greatest `by` other values of them; all NaN if one of these is missing.
    """
    by = truth if by is None else by
    if not np.isfinite(by).all():
        return np.full(most, np.nan)
    places = np.unique(by, return_inverse=True)[1]  # of those that tie, each is chosen as often as the others
    ordered, ranks = (np.bincount(places, truth) / np.bincount(places))[np.sort(places)], np.arange(len(truth))
    return np.array([(ordered * comb(ranks, k - 1) / comb(len(truth), k)).sum() for k in range(1, most + 1)])


def draw(found: dict[str, dict[str, Any]], title: str, unit: str) -> Figure:
    """Scores against episodes, a curve for each algorithm, with the middle 80% of games; and against policies."""
    figure = figures.Drawing(figsize=(9.2, 3.8), layout="constrained")
    axes, beside = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    styles = figures.styles_of(list(found))
    for name, one in found.items():
        color, steps = styles[name]["color"], np.arange(1, one["chosen"].shape[1] + 1)
        middle = one["chosen"].mean(0)
        low, high = np.quantile(one["chosen"], [0.1, 0.9], axis=0)
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(steps, middle, color=color, linewidth=1.7, label=name)
        axes.axhline(one["best"][-1], color=color, linewidth=0.8, linestyle=":")
        axes.axhline(one["truth"].mean(), color=color, linewidth=0.8, linestyle="--")
        counts = np.arange(1, len(one["best"]) + 1)
        beside.plot(counts, one["best"], color=color, linestyle=":", marker=".")
        beside.plot(counts, one["by_value"], color=color, linewidth=0.8, marker="D", markersize=4)  # NaN: nothing
    figures.make_log(axes, "x")
    axes.set(xlabel="episodes played to choose", ylabel=f"true mean {unit} of the chosen policy", title=title)
    beside.set(xlabel="policies among which is chosen", title="without a bandit")
    beside.xaxis.get_major_locator().set_params(integer=True)
    handles, labels = axes.get_legend_handles_labels()
    ink: Any = {"color": figures.INK, "linewidth": 0.8}
    axes.legend(
        [*handles, Line2D([], [], linestyle=":", **ink), Line2D([], [], linestyle="--", **ink)],
        [*labels, "expected best of as many policies", "a random policy"],
        frameon=False, fontsize=8,
    )  # fmt: skip
    kinds = [Line2D([], [], linestyle=":", marker=".", **ink)]
    if any(np.isfinite(one["by_value"]).all() for one in found.values()):
        kinds.append(Line2D([], [], marker="D", markersize=4, **ink))
    beside.legend(kinds, ["expected best of them", "the critic's choice"][: len(kinds)], frameon=False, fontsize=8)
    return figure


def main(args: Args) -> None:
    check(args)
    check_usable(args.out)
    table, sources = episodes_of(args.folders)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for (task, name), rows in table.groupby(["task", "algorithm"]):
        if rows["policy"].nunique() < 2:
            print(f"note: {name} on {task} has one policy, and is left out: there is no choice")
            continue
        if len(counts := rows.groupby("policy").size().unique()) > 1:
            fewest, most = counts.min(), counts.max()
            print(f"note: policies of {name} on {task} have {fewest} to {most} episodes, of which {fewest} count")
        returns, values = matrix(rows)
        truth = returns.mean(1)
        count = min(args.policies, len(returns))
        if count < args.policies:
            print(f"note: {name} on {task} has {count} policies only: the bandit chooses among these")
        found.setdefault(str(task), {})[str(name)] = {
            "chosen": bandit(returns, count, args.plays, args.repetitions), "best": best_of(truth, count),
            "by_value": best_of(truth, count, values), "truth": truth,
            "episodes": returns.shape[1], "policies": count,
        }  # fmt: skip
    if not found:
        raise UserError("no algorithm has two policies on a task, among which one could choose")
    writable(args.out / "figures")
    shown = [budget for budget in BUDGETS if budget <= args.plays]
    listing = Table(
        ["task", "algorithm", "policies", "of", "episodes of each", *(f"{n} episode{'s' * (n > 1)}" for n in shown),
         "best of them", "a random one", "the critic's choice", "10 to 90% of games at the end"], [],
    )  # fmt: skip
    lines = ["# Choosing among policies", purpose(__doc__), *(f"> {escape(note)}" for note in notes_of(sources))]
    curves, best = [], []
    for task, algorithms in found.items():
        units = {measure_of(part) for config in sources for part in settings_of(config) if part["task"] == task}
        unit = units.pop() if len(units) == 1 else "score"
        with figures.style():
            name = f"budget_{file_name(task)}"
            figures.save(draw(algorithms, task, unit), args.out / "figures" / name, ("png",))
        lines.append(f"![{unit} of the chosen policy on {task}](figures/{name}.png)")
        for algorithm, one in algorithms.items():
            means = one["chosen"].mean(0)
            low, high = np.quantile(one["chosen"][:, -1], [0.1, 0.9])
            listing.rows.append(
                [word(task), word(algorithm), number(one["policies"], 0), number(len(one["truth"]), 0),
                 number(one["episodes"], 0), *(number(means[n - 1]) for n in shown), number(one["best"][-1]),
                 number(one["truth"].mean()),
                 number(one["by_value"][-1]), between(low, high)]
            )  # fmt: skip
            curves += [(task, algorithm, n + 1, mean) for n, mean in enumerate(means)]
            pairs = zip(one["best"], one["by_value"], strict=True)
            best += [(task, algorithm, k + 1, *pair) for k, pair in enumerate(pairs)]
    lines += [
        "Bands hold the middle 80% of games. The true mean of a policy is that of the "
        "episodes it has here: with few of them, the best looks better than it is.",
        listing.markdown(),
    ]
    made = origin("budget", sources)
    lines.append(f"`{made['report']}`, commit {', '.join(made['commits']) or 'unknown'}")
    (args.out / "page.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    for name, columns, rows_of in (
        ("curves", ["task", "algorithm", "episodes", "return"], curves),
        ("best_of", ["task", "algorithm", "policies", "best", "by_value"], best),
    ):
        pd.DataFrame(rows_of, columns=columns).to_csv(args.out / f"{name}.csv", index=False, float_format="%.6g")
    table.to_csv(args.out / "episodes.csv", index=False)
    write_sources(args.out, sources)
    print(listing.markdown(), args.out / "page.md", sep="\n\n")


if __name__ == "__main__":
    run_command(main)
