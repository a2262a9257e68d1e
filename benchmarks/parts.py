"""The sections of a report: figures with descriptions, and tables, from the numbers of `benchmarks.analysis`."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from algos.data.record import normalised
from benchmarks import estimates, figures
from benchmarks.analysis import MOST_CURVES, Results, curve_of, curves_by_task, each, efficiency
from benchmarks.protocols import protocol
from benchmarks.recipes.locomotion import TASKS
from benchmarks.scores import LABELS, OF_TASK, PERCENT, R2, family_name, label, measure_of
from benchmarks.suite import Score, published_curves, read_curves, read_published
from benchmarks.tables import Cell, Table, aggregate_rows, between, number, word

FINAL = {"return": "returns", PERCENT: "success", R2: R2, "score": "scores"}
MOST_PAIRS = 12  # pairs of algorithms that are shown one by one


@dataclass
class Part:
    """A section of the page: figures with descriptions, and tables, each with a caption."""

    title: str
    text: str
    figures: list[tuple[str, Figure, str]] = field(default_factory=list)  # file name, figure, description
    tables: list[tuple[str, Table]] = field(default_factory=list)
    legend: bool = False
    tables_in_markdown: int = 1
    figures_in_markdown: bool = False
    sentences: list[str] = field(default_factory=list)  # listed after the text
    method: str = ""  # how the sentences and tables were made, below the sentences
    folded: list[tuple[str, Table]] = field(default_factory=list)  # tables that the page shows on demand only


def aggregate_part(results: Results) -> Part:
    """Aggregates over seeds and tasks."""
    raw = results.references is None
    frame = results.aggregates
    gap = "" if raw else " The optimality gap is the mean distance to 1 of the runs below 1: less is better."
    shown = results.in_rows
    best = "" if len(shown) == len(results.ranked) else f" Figures show the best {len(shown)} of {len(results.ranked)}."
    kept = " that all algorithms have" if len(results.common) < len(results.scores.tasks) else ""
    alone = ", which with one task is its mean" if len(results.common) == 1 else ""
    where = f"{len(results.common)} task{'s' * (len(results.common) > 1)}{kept}: {', '.join(results.common)}"
    text = (
        f"Over seeds on {where}. Look first at IQM, the mean of the middle half of all runs: it is robust, and needs "
        f"few runs. The median is that over tasks of the means over seeds{alone}.{gap}{best}"
    )
    part = Part("Aggregate scores", text)
    digits = None if raw else 3
    names = [name for name in estimates.BATCHED if name in set(frame["statistic"])]
    for name in names:
        rows = frame[(frame["score"] == results.score) & (frame["statistic"] == name)]
        bars = {row.algorithm: (row.value, row.low, row.high) for row in rows.itertuples() if row.algorithm in shown}
        axis = f"{name} of {results.unit},\n{LABELS[results.score]}"
        figure = figures.intervals(bars, results.styles, axis, None, results.names, results.names_are)
        part.figures.append((f"aggregate_{name.replace(' ', '_').lower()}", figure, f"{name} with 95% intervals"))
    definitions: list[list[Score]] = []  # those of each table
    for definition in [results.score, *(s for s in results.definitions if s != results.score)]:
        header = ["algorithm", *(f"{name} [95%]" for name in names), "tasks", "seeds"]
        table = Table(header, aggregate_rows(frame[frame["score"] == definition], names, digits))
        if (same := next((i for i, (_, other) in enumerate(part.tables) if other.rows == table.rows), None)) is None:
            definitions.append([definition])
            part.tables.append(("", table))
        else:
            definitions[same].append(definition)
    for i, (first, *rest) in enumerate(definitions):
        main = "Headline score" if first == results.score else "Score"
        part.tables[i] = (f"{main}: {LABELS[first]}{the_same(rest)}", part.tables[i][1])
    return part


def the_same(definitions: Sequence[Score]) -> str:
    """The definitions of a score that give the same numbers, in words that follow another one."""
    return f" (the same by {', '.join(LABELS[one] for one in definitions)})" if definitions else ""


def course_part(results: Results) -> Part:
    """Performance profiles and sample efficiency."""
    every = np.concatenate([matrix.ravel() for matrix in results.matrices.values()])
    thresholds = np.linspace(min(0.0, np.quantile(every, 0.01)), max(every.max(), 1e-3), 101)
    profiles = {}
    for name in results.in_curves:
        matrix = results.matrices[name]
        share, band = estimates.profile(matrix, thresholds, results.replications)
        profiles[name] = (thresholds, share, band, np.empty((0, len(thresholds))))
    profile = figures.lines(profiles, results.styles, f"{results.unit} τ", "share of runs with score > τ")
    curves, x = efficiency(results)
    curve = figures.lines(curves, results.styles, x, f"IQM of {results.unit}")
    text = (
        f"Performance profiles: the share of all runs whose score ({LABELS[results.score]}) is above a threshold; a "
        "curve above another is better at that threshold. Sample efficiency: IQM over seeds and tasks while "
        f"training goes on. Bands are pointwise 95% intervals.{results.left_out}"
    )
    part = Part("Profiles and sample efficiency", text, legend=True)
    part.figures.append(("profiles", profile, "Performance profiles with 95% bands"))
    part.figures.append(("sample_efficiency", curve, "IQM over steps with 95% bands"))
    return part


def improvement_part(results: Results) -> Part:
    """The probability that one algorithm beats another, for all pairs that are shown."""
    names = [name for name in results.in_rows if name in results.matrices]
    pairs = {}
    for a, b in combinations(names, 2):
        value, low, high = estimates.improvement(results.matrices[a], results.matrices[b], results.replications)
        pairs[a, b], pairs[b, a] = (value, low, high), (1 - value, 1 - high, 1 - low)
    complete = any(value in (0.0, 1.0) and np.isfinite(low) for value, low, _ in pairs.values())
    text = (
        f"The probability that a run of one algorithm beats a run of another on a task chosen at random, by the "
        f"{LABELS[results.score]}; ties count half. It needs no normalisation. An interval that holds 0.5 leaves it "
        "open; one that does not is no verdict, as it is not corrected for the number of pairs."
    )
    if complete:
        text += (
            " Where every run of one is above every run of the other, the interval allows for scores of any kind, also "
            "for those that hardly differ on one side, and is wide for few seeds; the verdicts compare means, and may "
            "decide what it leaves open."
        )
    # each pair once, the one that is more often better first
    listed, caption = [(a, b) if pairs[a, b][0] >= 0.5 else (b, a) for a, b in combinations(names, 2)], "All pairs"
    if len(names) >= MOST_CURVES:  # all pairs would be hundreds of rows
        best = next(name for name in results.ranked if name in names)
        listed, caption = [pair for pair in pairs if pair[0] == best], f"{best} against all others"
        many = f" the best {len(names)} of" if len(names) < len(results.ranked) else ""
        text += (
            f" The figure shows each pair of{many} {len(results.ranked)} algorithms and settings, the table those "
            "with the best."
        )
    table = Table(["a", "b", "probability that a is better", "95% interval"], [])
    for a, b in listed:
        value, low, high = pairs[a, b]
        table.rows.append([word(a), word(b), number(value, 2), between(low, high, 2)])
    if len(pairs) <= MOST_PAIRS:
        short = results.names
        rows = {f"{short[a]} > {short[b]}": value for (a, b), value in pairs.items() if names.index(a) < names.index(b)}
        figure = figures.intervals(rows, None, "probability of improvement", 0.5, title=results.names_are)
    else:
        values = np.array([[pairs[a, b][0] if a != b else np.nan for b in names] for a in names])
        figure = figures.heatmap([results.names[name] for name in names], values, results.names_are)
    description = "Probability of improvement of one algorithm over another"
    return Part("Probability of improvement", text, [("improvement", figure, description)], [(caption, table)])


def curves_behind(results: Results, names: Sequence[str]) -> dict[str, dict[str, figures.Curve]]:
    """The learning curves of others by task and label, for the tasks whose name without version is theirs."""
    behind: dict[str, dict[str, figures.Curve]] = {}
    ends = results.scores.ends
    for name in names:
        for their_task, frame in read_curves(name).groupby("task"):
            for task in results.scores.tasks:
                if "/" not in task and bare_name(task) == bare_name(str(their_task)):
                    curve = curve_of(frame[frame["step"] <= ends[task]], "return")
                    if curve:
                        behind.setdefault(task, {})[published_curves()[name]["label"]] = curve
    return behind


def task_part(
    results: Results,
    panels: dict[str, dict[str, figures.Curve]],
    behind: dict[str, dict[str, figures.Curve]],
) -> Part:
    """Returns on each task, with learning curves, and those of others in grey behind them."""
    normal = results.references is not None
    columns = ["task", "algorithm", LABELS[results.score], "95% interval", "std", *(["normalised"] if normal else [])]
    means = results.tasks.pivot(index=["task", "algorithm"], columns="score", values="mean")
    same = [s for s in results.definitions if s != results.score and means[s].equals(means[results.score])]
    others = [s for s in results.definitions if s not in (results.score, *same)]
    table = Table([*columns, "seeds", "steps", *(LABELS[s] for s in others)], [])
    for task, algorithm, rows in each(results.tasks, results.scores):
        by = rows.set_index("score")
        row = by.loc[results.score]
        cells = [word(task), word(algorithm), number(row["mean"]), between(row["low"], row["high"]), number(row["std"])]
        if normal:
            final = results.final[(results.final["task"] == task) & (results.final["algorithm"] == algorithm)]
            cells.append(number(final[results.headline].mean(), 3))
        cells += [number(row["seeds"], 0), number(row["steps"], 0), *(number(by.loc[s, "mean"]) for s in others)]
        table.rows.append(cells)
    played = [config for config in results.scores.sources if measure_of(config) != R2]
    training = {protocol(config)["evaluation episodes"] == 0 for config in played}
    source = " or of ".join(
        ["the deterministic policy"] * (False in training) + ["training episodes"] * (True in training)
    )
    kinds = {
        "return": "returns",
        PERCENT: "percentage of episodes that reach their goals, over all tasks of the environment,",
    }
    measures = {results.scores.measure_of(task) for task in results.scores.tasks}
    earned = " and ".join(kinds[kind] for kind in sorted(measures - {R2}))
    measured = " and ".join([f"{earned} of {source}"] * bool(earned) + ["R² of predictions"] * (R2 in measures))
    measured = measured[0].upper() + measured[1:]
    text = (
        f"{measured}: mean over seeds of each seed's score with Student's interval, and the "
        "standard deviation over seeds (n - 1). The maximum over the last 10% is biased upwards, and the best over "
        "training, which some papers report, still more. Curves show the mean over seeds, with a 95% interval in "
        f"panels of at most {figures.MOST_BANDS} curves; thin lines are single seeds, in panels with at most "
        f"{figures.MOST_SEED_LINES} of them.{results.left_out}"
    )
    if (results.tasks["low"] == results.tasks["high"]).any():
        text += " An interval without width says that all seeds have the same score, and not that others would have it."
    if labels := {label for curves in behind.values() for label in curves}:
        told = (
            f"{said['label']} ({said['seeds']} seeds, {said['protocol']}; {said['source']}, {said['licence']})"
            for said in published_curves().values()
            if said["label"] in labels
        )
        text += f" Grey bands are learning curves of others, which were not run here: {'; '.join(told)}."
    part = Part("Tasks", text, tables=[(f"Final {FINAL[results.scores.measure]}{the_same(same)}", table)], legend=True)
    for task, curves in panels.items():
        figure = figures.lines(
            curves, results.styles, results.scores.steps, results.scores.measure_of(task), task, behind=behind.get(task)
        )
        part.figures.append((f"curve_{file_name(task)}", figure, f"Learning curves on {task}"))
    return part


def value_part(results: Results) -> Part:
    """The values that critics predict against the returns that followed."""
    values = results.scores.values.assign(bias=lambda t: t["predicted"] - t["observed"])
    late = results.scores.late(values)
    seeds = late.groupby(["task", "algorithm", "seed"])[["predicted", "observed", "bias"]].mean().reset_index()
    table = Table(
        ["task", "algorithm", "predicted", "observed", "bias", "95% interval", "bias / |observed|", "seeds"], []
    )
    for task, algorithm, frame in each(seeds, results.scores):
        low, high = estimates.task_means(frame[["bias"]].to_numpy())[:, 0]
        predicted, observed, bias = frame[["predicted", "observed", "bias"]].mean()
        cells = [word(task), word(algorithm), number(predicted), number(observed), number(bias), between(low, high)]
        table.rows.append([*cells, number(bias / max(abs(observed), 1e-9)), number(len(frame), 0)])
    text = (
        "The critics' predictions for the actions of the exploring policy against the discounted return that followed "
        "(with the entropy bonus where the value has one); a positive bias is overestimation. A state whose return is "
        "cut by the time limit counts only where what lies beyond weighs at most 5%, so that tasks with short episodes "
        "may be missing. The table has means over the last 10%, without seeds that diverged."
    )
    part = Part("Value estimates", text, tables=[("Bias of the critics", table)], legend=True)
    for task, curves in curves_by_task(results, values, "bias").items():
        figure = figures.lines(
            curves, results.styles, results.scores.steps, "predicted − observed value", task, zero=True
        )
        part.figures.append((f"value_bias_{file_name(task)}", figure, f"Bias of value estimates on {task}"))
    return part


def published_part(results: Results, paths: list[Path]) -> Part:
    """The scores of this report among published ones."""
    table = Table(["task", "algorithm", "score", "spread", "seeds", "protocol", "source"], [])
    published = pd.concat([read_published(path) for path in paths])
    groups: dict[str, list[str]] = {}
    for task in results.scores.tasks:
        groups.setdefault(bare_name(task), []).append(task)
    for tasks in groups.values():
        rows = [row for row in published.itertuples() if any(comparable(task, str(row.task)) for task in tasks)]
        for row in [*own_rows(results, tasks), *rows] if rows else []:
            cells = [word(row.task), word(row.algorithm), number(row.score), number(row.spread)]
            table.rows.append([*cells, number(row.seeds, 0), word(row.protocol), word(row.source)])
    text = (
        "The scores of this report and, below them, those of papers and other projects, which were not run here; tasks "
        "and protocols differ as stated."
    )
    if any(config.get("facts", {}).get("low") is not None for config in results.scores.sources):
        text += " Scores on datasets are D4RL's, from 0 for a random policy to 100 for an expert."
    return Part("Published scores", text, tables=[("Published scores beside those of this report", table)])


def own_rows(results: Results, tasks: list[str]) -> list[Any]:
    """The scores of this report as rows of the table of published ones, those on datasets by the data's references.

    Where an algorithm has several settings, only the best one of each grid has a row on each task.
    """
    rows = results.tasks[(results.tasks["score"] == results.score) & results.tasks["task"].isin(tasks)].copy()
    rows["note"] = ""
    for name, algorithms in results.scores.grids.items():
        settings = rows[rows["algorithm"].isin(algorithms)]
        best = settings.groupby("task")["mean"].idxmax()
        rows = rows.drop(settings.index.difference(best))
        rows.loc[best, "note"] = f"; the best of {len(algorithms)} settings of {name}"
    data = {config["task"]: config.get("facts", {}) for config in results.scores.sources}
    low, high = (rows["task"].map(lambda task, k=key: data[task].get(k)).astype(float) for key in ("low", "high"))
    given = low.notna() & high.notna()
    rows["spread"] = (100 * rows["std"] / (high - low)).where(given, rows["std"])
    rows["score"] = normalised(rows["mean"], low, high).where(given, rows["mean"])
    units = rows["task"].map(results.scores.measure_of).where(~given, "D4RL score")
    steps = rows["steps"].map(f"{{:,}} {results.scores.steps}".format)
    ran = {(config["task"], label(config)): config.get("args", {}) for config in results.scores.sources}
    sizes = [sizes_of(ran[key]) for key in zip(rows["task"], rows["algorithm"], strict=True)]
    rows["protocol"] = (
        units + f", {LABELS[results.score]}; " + steps + sizes + "; spread: std over seeds" + rows["note"]
    )
    return list(rows.assign(source="this report").itertuples())


def sizes_of(args: dict[str, Any]) -> str:
    """Evaluation episodes, batch and widths of a run in words, where its arguments have them."""
    parts = [f"{args['eval_episodes']} evaluation episodes"] if args.get("eval_episodes") else []
    parts += [f"batches of {args['batch_size']}"] if args.get("batch_size") else []
    widths = args.get("hidden")
    parts += [f"hidden layers {' x '.join(map(str, widths))}"] if widths and isinstance(widths, list) else []
    return "".join(f"; {part}" for part in parts)


def comparable(ours: str, theirs: str) -> bool:
    """Whether a published score on the task `theirs` may stand beside a score on the task `ours`.

    Two versions of a dataset of D4RL are different data. A dataset from elsewhere compares with D4RL's of the same name
    only where both were made in the same environments, which is so for locomotion.
    """
    if bare_name(ours) != bare_name(theirs):
        return False
    if theirs.startswith("d4rl/"):
        return ours == theirs if ours.startswith("d4rl/") else bare_name(ours).partition("-")[0] in TASKS
    return True


def bare_name(task: str) -> str:
    """A task's name without its version, and without the origin of data that recipes here make, too."""
    name = re.sub(r"-v\d+$", "", task)
    origin, _, rest = name.partition("/")
    return rest if origin in ("local", "ogbench", "d4rl") else name


def source_part(results: Results) -> Part:
    """One row for each process."""
    columns = ["task", "algorithm", "seeds", "status", "steps", "episodes", "commit"]
    table = Table([*columns, "Gymnasium, MuJoCo, torch", "device", "training"], [])
    processes: dict[tuple, list[dict[str, Any]]] = {}
    for config in results.scores.sources:
        shared = "setting" in config or OF_TASK in config["task"]
        task = config["task"].partition(OF_TASK)[0]
        rest = config.get("folder") if shared else len(processes)  # settings and tasks of one process share its folder
        processes.setdefault((task, family_name(config), rest), []).append(config)
    ordered = sorted(processes.items(), key=lambda item: (*item[0][:2], item[1][0]["seeds"]))
    for (task, algorithm, _), configs in ordered:
        config = configs[0]
        arguments, versions = protocol(config), config.get("versions", {})
        seeds = sorted({seed for part in configs for seed in part["seeds"]})
        spoken = f"{seeds[0]}–{seeds[-1]}" if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)) else ""
        packages = ", ".join(str(versions.get(name, "–")) for name in ("gymnasium", "mujoco", "torch"))
        seconds = (config.get("seconds") or 0.0) + config.get("phase_seconds", 0.0)
        minutes: Cell = (f"{seconds / 60:,.0f} min", float(seconds)) if seconds else ("–", -1.0)
        place = config.get("facts", {}).get("evaluated_in")
        tasks = len({part["task"] for part in configs})
        task += f", {tasks} tasks" if tasks > 1 else ""
        task += f", evaluated in {place}" if place else ""
        settings = len({label(part) for part in configs})
        name = f"{algorithm}, {settings} settings" if settings > 1 else label(config)
        cells = [word(task), word(name), word(spoken or ", ".join(map(str, seeds)))]
        cells += [word(config["status"]), number(config.get("step", arguments["steps"] or 0), 0)]
        cells += [number(arguments["evaluation episodes"] or np.nan, 0), word(config.get("commit") or "–")]
        table.rows.append([*cells, word(packages), word(config.get("device", "–")), minutes])
    text = "Each row is one process. Everything that determined a run is in sources.json."
    return Part("Runs", text, tables=[("Where the scores come from", table)])


def file_name(name: str) -> str:
    """A name as part of a file's name: with a hash where characters had to change, so that no two are the same."""
    safe = re.sub(r"[^A-Za-z0-9.-]+", "_", name)
    return safe if safe == name else f"{safe}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"
