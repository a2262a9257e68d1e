"""Reports: what runs show, as interval estimates over seeds, in one page, tables and figures.

    python -m benchmarks.report runs/smoke --out runs/smoke/report
    python -m benchmarks.report runs/mujoco_short runs/mine --references raw --out runs/both

Each folder is a sweep's, a run's, any folder above some, or one that a report was written to. OUT gets report.html,
one file with the figures inside, report.md, figures/, and the tables: scores.csv (every evaluation of every seed),
final.csv (every seed's score), tasks.csv and aggregates.csv (interval estimates), values.csv and sources.json (where
each run came from). The same runs give the same bytes.

Scores are normalised by the references of the sweep's suite, or of --references; without any they are raw returns, and
there are aggregates over tasks only if there is one task. Intervals are 95% percentile intervals of a bootstrap over
seeds, stratified by task. Runs that follow different protocols are refused, or with --mix reported with a note.
"""

import hashlib
import json
import re
import shlex
import shutil
import sys
import time
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import tyro
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from algos.arguments import Count, check
from algos.errors import UserError
from algos.cli import report_errors
from benchmarks import figures, statistics
from benchmarks.recipes.locomotion import TASKS
from benchmarks.scores import LABELS, Scores, final_scores, label, load, matrices, normalise, protocol
from benchmarks.suite import HERE, SCORES, Score, read_published, read_references
from benchmarks.tables import Cell, Table, between, escape, number, word

TABLES = ("scores", "final", "tasks", "aggregates", "values")
MOST_PAIRS = 12  # pairs of algorithms that are shown one by one


@dataclass
class Args:
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """folders of sweeps or runs"""
    out: Path
    """where the report goes"""
    references: str = ""
    """d4rl, random_sac, recipes, a CSV with task, low, high, source, or raw; by default what the sweep's suite says"""
    published: tuple[Path, ...] = ()
    """published scores to show beside: corl, dsac_t, offline, sac_1m, stream_x, or CSVs"""
    score: Literal[Score, "suite"] = "suite"
    """headline score of a seed: last evaluation, mean or max of the last 10%, or best over training; `suite`: as the
    sweep's suite says"""
    title: str = ""
    """heading; by default the suite's name"""
    mix: bool = False
    """accept runs of different protocols in one report"""
    finished_only: bool = False
    """leave out runs that still train, instead of comparing at the last step that all have reached"""
    replications: Count = statistics.REPLICATIONS
    """bootstrap replications"""
    formats: tuple[Literal["png", "pdf"], ...] = ("png", "pdf")
    """files of the figures, besides the page"""


@dataclass
class Part:
    """A section of the page: figures with descriptions, and tables, each with a caption."""

    title: str
    text: str
    figures: list[tuple[str, Figure, str]] = field(default_factory=list)  # file name, figure, description
    tables: list[tuple[str, Table]] = field(default_factory=list)
    legend: bool = False


# -- what is computed -------------------------------------------------------------------------------------------------


@dataclass
class Results:
    """Everything that a report shows, as numbers."""

    scores: Scores
    references: pd.DataFrame | None
    score: Score
    final: pd.DataFrame  # task, algorithm, seed, and for each definition the return and, with references, normalised
    tasks: pd.DataFrame  # task, algorithm, score, mean, std, low, high, seeds, steps
    aggregates: pd.DataFrame  # score, algorithm, statistic, value, low, high, tasks, seeds
    common: list[str]
    matrices: dict[str, np.ndarray]  # of the headline score


def compute(scores: Scores, references: pd.DataFrame | None, score: Score, replications: int) -> Results:
    """All tables of a report."""
    scores.table["normalised"] = normalise(scores.table, references)
    final = final_scores(scores.table)
    normal = final_scores(scores.table, "normalised")
    if references is not None:
        final = final.merge(normal, on=["task", "algorithm", "seed"], suffixes=("", "_normalised"))
    steps = scores.table.groupby("task")["step"].max()
    rows = []
    for (task, algorithm), frame in final.groupby(["task", "algorithm"]):
        for definition in SCORES:
            values = frame[definition].to_numpy()
            low, high = statistics.task_means(values[:, None], replications)[:, 0]
            facts = {"task": task, "algorithm": algorithm, "score": definition, "mean": values.mean()}
            facts |= {"std": values.std(ddof=1) if len(values) > 1 else np.nan, "low": low, "high": high}
            rows.append(facts | {"seeds": len(values), "steps": steps[task]})
    tasks = pd.DataFrame(rows)

    rows = []
    common: list[str] = []
    headline: dict[str, np.ndarray] = {}
    for definition in SCORES:
        found, common, notes = matrices(normal, definition)
        if definition == score:
            headline = found
            scores.notes += notes
        if references is None and len(common) > 1:
            continue
        for algorithm, matrix in found.items():
            for name, (value, low, high) in statistics.aggregates(matrix, replications).items():
                if name == "optimality gap" and references is None:
                    continue
                row = {"score": definition, "algorithm": algorithm, "statistic": name, "value": value}
                rows.append(row | {"low": low, "high": high, "tasks": len(common), "seeds": len(matrix)})
    if references is None and len(common) > 1:
        scores.notes.append("Scores are raw returns, which differ in scale between tasks: there are no aggregates.")
    columns = ["score", "algorithm", "statistic", "value", "low", "high", "tasks", "seeds"]
    return Results(scores, references, score, final, tasks, pd.DataFrame(rows, columns=columns), common, headline)


def curve_of(frame: pd.DataFrame, column: str, replications: int) -> figures.Curve | None:
    """Mean over seeds with its interval, at the steps that all seeds have."""
    wide = frame.pivot(index="seed", columns="step", values=column).dropna(axis=1)
    if wide.empty:
        return None
    values = wide.to_numpy()
    band = statistics.task_means(values[:, None], replications)[:, 0]
    return wide.columns.to_numpy(), values.mean(0), band, values


def efficiency(results: Results, replications: int) -> tuple[dict[str, figures.Curve], str]:
    """IQM over training of each algorithm on the common tasks, and what the horizontal axis is."""
    table = results.scores.table
    grids = {}
    for (task, algorithm), frame in table[table["task"].isin(results.common)].groupby(["task", "algorithm"]):
        grids[task, algorithm] = frame.pivot(index="seed", columns="step", values="normalised").dropna(axis=1)
    same = len({tuple(wide.columns) for wide in grids.values()}) == 1
    curves = {}
    for algorithm, matrix in results.matrices.items():
        wides = [grids[task, algorithm].iloc[: len(matrix)] for task in results.common]
        if same:
            x = wides[0].columns.to_numpy()
            values = np.stack([wide.to_numpy() for wide in wides], 1)
        else:
            x = np.linspace(0, 1, 51)
            ends = [table.loc[table["task"] == task, "step"].max() for task in results.common]
            places = [
                np.clip(np.searchsorted(wide.columns.to_numpy(), x * end * (1 + 1e-9), "right") - 1, 0, None)
                for wide, end in zip(wides, ends, strict=True)
            ]
            values = np.stack([wide.to_numpy()[:, p] for wide, p in zip(wides, places, strict=True)], 1)
        centre, band = statistics.iqm_curve(values, replications)
        curves[algorithm] = (x, centre, band, np.empty((0, len(x))))
    return curves, results.scores.steps if same else "share of the steps of each task"


# -- the parts of the page --------------------------------------------------------------------------------------------


def aggregate_part(results: Results, looks: dict[str, dict[str, str]]) -> Part:
    raw = results.references is None
    frame = results.aggregates
    where = f"{len(results.common)} task{'s' * (len(results.common) > 1)}: {', '.join(results.common)}"
    gap = "" if raw else " The optimality gap is what is missing to 1, less is better."
    text = (
        f"Over seeds on {where}. IQM, the mean of the middle half of all runs, is the one to look at first: it is "
        f"robust like the median and needs fewer runs.{gap}"
    )
    part = Part("Aggregate scores", text, legend=False)
    digits = None if raw else 3
    names = [name for name in statistics.BATCHED if name in set(frame["statistic"])]
    for name in names:
        rows = frame[(frame["score"] == results.score) & (frame["statistic"] == name)]
        bars = {row.algorithm: (row.value, row.low, row.high) for row in rows.itertuples()}
        axis = f"{name} of {'return' if raw else 'normalised score'}, {LABELS[results.score]}"
        figure = figures.intervals(bars, looks, axis, None)
        part.figures.append((f"aggregate_{name.replace(' ', '_').lower()}", figure, f"{name} with 95% intervals"))
    for definition in [results.score, *(s for s in SCORES if s != results.score)]:
        table = Table(["algorithm", *(f"{name} [95%]" for name in names), "tasks", "seeds"], [])
        for algorithm, rows in frame[frame["score"] == definition].groupby("algorithm"):
            by = rows.set_index("statistic")
            cells = [word(algorithm)]
            for name in names:
                value, low, high = by.loc[name, ["value", "low", "high"]]
                cells.append((f"{number(value, digits)[0]} {between(low, high, digits)[0]}", float(value)))
            table.rows.append([*cells, number(by["tasks"].iloc[0], 0), number(by["seeds"].iloc[0], 0)])
        main = "Headline score" if definition == results.score else "Score"
        part.tables.append((f"{main}: {LABELS[definition]}", table))
    return part


def course_part(results: Results, looks: dict[str, dict[str, str]], replications: int) -> Part:
    """Performance profiles and sample efficiency."""
    every = np.concatenate([matrix.ravel() for matrix in results.matrices.values()])
    thresholds = np.linspace(min(0.0, np.quantile(every, 0.01)), max(every.max(), 1e-3), 101)
    profiles = {}
    for name, matrix in results.matrices.items():
        share, band = statistics.profile(matrix, thresholds, replications)
        profiles[name] = (thresholds, share, band, np.empty((0, len(thresholds))))
    unit = "return" if results.references is None else "normalised score"
    profile = figures.lines(profiles, looks, f"{unit} τ", "share of runs with score > τ")
    curves, x = efficiency(results, replications)
    curve = figures.lines(curves, looks, x, f"IQM of {unit}")
    text = (
        f"Performance profiles: the share of all runs whose score ({LABELS[results.score]}) is above a threshold; a "
        "curve above another is better at that threshold. Sample efficiency: IQM over seeds and tasks while "
        "training goes on. Bands are pointwise 95% intervals."
    )
    part = Part("Profiles and sample efficiency", text, legend=True)
    part.figures.append(("profiles", profile, "Performance profiles with 95% bands"))
    part.figures.append(("sample_efficiency", curve, "IQM over steps with 95% bands"))
    return part


def improvement_part(results: Results, replications: int) -> Part:
    names = list(results.matrices)
    found = {}
    for a, b in combinations(names, 2):
        value, low, high = statistics.improvement(results.matrices[a], results.matrices[b], replications)
        found[a, b], found[b, a] = (value, low, high), (1 - value, 1 - high, 1 - low)
    text = (
        f"The probability that a run of one algorithm beats a run of another on a task chosen at random, by the "
        f"{LABELS[results.score]}; ties count half. It needs no normalisation. An interval that holds 0.5 leaves it "
        "open."
    )
    table = Table(["better", "than", "probability", "95% interval"], [])
    for (a, b), (value, low, high) in found.items():
        table.rows.append([word(a), word(b), number(value, 2), between(low, high, 2)])
    if len(found) <= MOST_PAIRS:
        rows = {f"{a} > {b}": value for (a, b), value in found.items() if names.index(a) < names.index(b)}
        figure = figures.intervals(rows, None, "probability of improvement", 0.5)
    else:
        values = np.array([[found[a, b][0] if a != b else np.nan for b in names] for a in names])
        figure = figures.heatmap(names, values)
    description = "Probability of improvement of one algorithm over another"
    return Part("Probability of improvement", text, [("improvement", figure, description)], [("All pairs", table)])


def task_part(results: Results, looks: dict[str, dict[str, str]], panels: dict[str, dict[str, figures.Curve]]) -> Part:
    normal = results.references is not None
    columns = ["task", "algorithm", LABELS[results.score], "95% interval", "std", *(["normalised"] if normal else [])]
    others = [s for s in SCORES if s != results.score]
    table = Table([*columns, "seeds", "steps", *(LABELS[s] for s in others)], [])
    for (task, algorithm), rows in results.tasks.groupby(["task", "algorithm"]):
        by = rows.set_index("score")
        row = by.loc[results.score]
        cells = [word(task), word(algorithm), number(row["mean"]), between(row["low"], row["high"]), number(row["std"])]
        if normal:
            own = results.final[(results.final["task"] == task) & (results.final["algorithm"] == algorithm)]
            cells.append(number(own[f"{results.score}_normalised"].mean(), 3))
        cells += [number(row["seeds"], 0), number(row["steps"], 0), *(number(by.loc[s, "mean"]) for s in others)]
        table.rows.append(cells)
    training = {protocol(config)["evaluation episodes"] == 0 for config in results.scores.sources}
    whose = " or of ".join(
        ["the deterministic policy"] * (False in training) + ["training episodes"] * (True in training)
    )
    text = (
        f"Returns of {whose}: mean over seeds of each seed's score with a bootstrap interval, and the "
        "standard deviation over seeds (n - 1). The maximum over the last 10% is biased upwards, and the best over "
        "training, which some papers report, still more. Curves show the mean over seeds, with a 95% interval where "
        f"there are at most {figures.MOST_BANDS} of them."
    )
    part = Part("Tasks", text, tables=[("Final returns", table)], legend=True)
    for task, curves in panels.items():
        figure = figures.lines(curves, looks, results.scores.steps, "return", task)
        part.figures.append((f"curve_{file_name(task)}", figure, f"Learning curves on {task}"))
    return part


def curves_by_task(table: pd.DataFrame, column: str, replications: int) -> dict[str, dict[str, figures.Curve]]:
    panels: dict[str, dict[str, figures.Curve]] = {}
    for (task, algorithm), frame in table.groupby(["task", "algorithm"]):
        if curve := curve_of(frame, column, replications):
            panels.setdefault(str(task), {})[str(algorithm)] = curve
    return panels


def value_part(results: Results, looks: dict[str, dict[str, str]], replications: int) -> Part:
    values = results.scores.values.assign(bias=lambda t: t["predicted"] - t["observed"])
    ends = results.scores.table.groupby("task")["step"].max()
    late = values[values["step"] > 0.9 * values["task"].map(ends)]
    seeds = late.groupby(["task", "algorithm", "seed"])[["predicted", "observed", "bias"]].mean().reset_index()
    table = Table(
        ["task", "algorithm", "predicted", "observed", "bias", "95% interval", "bias / |observed|", "seeds"], []
    )
    for (task, algorithm), frame in seeds.groupby(["task", "algorithm"]):
        low, high = statistics.task_means(frame[["bias"]].to_numpy(), replications)[:, 0]
        predicted, observed, bias = frame[["predicted", "observed", "bias"]].mean()
        cells = [word(task), word(algorithm), number(predicted), number(observed), number(bias), between(low, high)]
        table.rows.append([*cells, number(bias / max(abs(observed), 1e-9)), number(len(frame), 0)])
    text = (
        "What the critics predict for the actions of the exploring policy, against the discounted return that followed "
        "(entropy bonus included where the value has one); a positive bias is overestimation. Means of the last 10%, "
        "of seeds that did not diverge."
    )
    part = Part("Value estimates", text, tables=[("Bias of the critics", table)], legend=True)
    for task, curves in curves_by_task(values, "bias", replications).items():
        figure = figures.lines(curves, looks, results.scores.steps, "predicted − observed value", task, zero=True)
        part.figures.append((f"value_bias_{file_name(task)}", figure, f"Bias of value estimates on {task}"))
    return part


def published_part(results: Results, paths: list[Path]) -> Part:
    table = Table(["task", "algorithm", "score", "spread", "seeds", "protocol", "source"], [])
    published = pd.concat([read_published(path) for path in paths])
    families: dict[str, list[str]] = {}
    for task in results.scores.tasks:
        families.setdefault(family(task), []).append(task)
    for tasks in families.values():
        rows = [row for row in published.itertuples() if any(comparable(task, str(row.task)) for task in tasks)]
        for row in [*own_rows(results, tasks), *rows] if rows else []:
            cells = [word(row.task), word(row.algorithm), number(row.score), number(row.spread)]
            table.rows.append([*cells, number(row.seeds, 0), word(row.protocol), word(row.source)])
    text = (
        "Ours, and beside them what papers and other projects report, which was not run here; tasks and protocols "
        "differ as stated. Scores on datasets are D4RL's, from 0 for a random policy to 100 for an expert."
    )
    return Part("Published scores", text, tables=[("Published scores, to put ours into perspective", table)])


def own_rows(results: Results, tasks: list[str]) -> list[Any]:
    """Our scores as rows of the table of published ones, those on datasets by the references of the datasets."""
    found = results.tasks[(results.tasks["score"] == results.score) & results.tasks["task"].isin(tasks)].copy()
    facts = {config["task"]: config.get("facts", {}) for config in results.scores.sources}
    low, high = (found["task"].map(lambda task, k=key: facts[task].get(k)).astype(float) for key in ("low", "high"))
    given = low.notna() & high.notna()
    found["spread"] = (100 * found["std"] / (high - low)).where(given, found["std"])
    found["score"] = (100 * (found["mean"] - low) / (high - low)).where(given, found["mean"])
    units = given.map({True: "D4RL score", False: "return"})
    steps = found["steps"].map(f"{{:,}} {results.scores.steps}".format)
    found["protocol"] = units + f", {LABELS[results.score]}; " + steps + "; spread: std over seeds"
    return list(found.assign(source="this report").itertuples())


def comparable(ours: str, theirs: str) -> bool:
    """Whether a published score says something about a task.

    D4RL's versions are different data, and of the environments in which other data was made only those of locomotion
    are D4RL's still.
    """
    if theirs.startswith("d4rl/"):
        alike = family(ours) == family(theirs) and family(ours).partition("-")[0] in TASKS
        return ours == theirs if ours.startswith("d4rl/") else alike
    return family(ours) == family(theirs)


def family(task: str) -> str:
    """A task without its version, a dataset also without where it is from."""
    return task.partition("/")[2].rpartition("-")[0] or task.rpartition("-")[0]


def source_part(results: Results) -> Part:
    columns = ["task", "algorithm", "seeds", "status", "steps", "episodes", "commit"]
    table = Table([*columns, "Gymnasium, MuJoCo, torch", "device", "training"], [])
    for config in sorted(results.scores.sources, key=lambda c: (c["task"], label(c), c["seeds"])):
        facts, versions = protocol(config), config.get("versions", {})
        seeds = config["seeds"]
        spoken = f"{seeds[0]}–{seeds[-1]}" if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)) else ""
        packages = ", ".join(str(versions.get(name, "–")) for name in ("gymnasium", "mujoco", "torch"))
        seconds = config.get("seconds")
        minutes: Cell = (f"{seconds / 60:,.0f} min", float(seconds)) if seconds else ("–", -1.0)
        place = config.get("facts", {}).get("evaluated_in")
        task = config["task"] + (f", evaluated in {place}" if place else "")
        cells = [word(task), word(label(config)), word(spoken or ", ".join(map(str, seeds)))]
        cells += [word(config["status"]), number(config.get("step", facts["steps"] or 0), 0)]
        cells += [number(facts["evaluation episodes"] or np.nan, 0), word(config.get("commit") or "–")]
        table.rows.append([*cells, word(packages), word(config.get("device", "–")), minutes])
    text = "One process each. Everything that determined a run is in sources.json."
    return Part("Runs", text, tables=[("Where the scores come from", table)])


def file_name(task: str) -> str:
    """A task's name as part of a file's; where it had to be changed, with a hash, so that no two are the same."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", task)
    return name if name == task else f"{name}_{hashlib.sha256(task.encode()).hexdigest()[:6]}"


# -- putting it together ----------------------------------------------------------------------------------------------


def heading(args: Args, scores: Scores) -> tuple[str, str]:
    """Title and the line below it."""
    titles = [wish["title"] for wish in scores.wishes if "title" in wish] or [sweep["suite"] for sweep in scores.sweeps]
    title = args.title or ", ".join(dict.fromkeys(titles)) or ", ".join(folder.name for folder in args.folders)
    return title, " ".join(dict.fromkeys(sweep["purpose"] for sweep in scores.sweeps))


@dataclass
class Chosen:
    """What the arguments or the suites ask for."""

    references: pd.DataFrame | None
    name: str  # of the references, or raw
    score: Score
    published: list[Path]
    tables: list[Path]  # files of references and published scores


def from_suites(args: Args, scores: Scores) -> Chosen:
    """What the arguments ask for, else what the suites do."""
    names = {wish.get("references", "raw") for wish in scores.wishes} or {"raw"}
    wanted = {wish.get("score", "last") for wish in scores.wishes} or {"last"}
    if len(names) > 1 and not args.references:
        raise UserError(f"the suites have different references ({', '.join(sorted(names))}): choose with --references")
    if len(wanted) > 1 and args.score == "suite":
        raise UserError(f"the suites have different headline scores ({', '.join(sorted(wanted))}): choose with --score")
    folders = [wish["folder"] for wish in scores.wishes]
    name = args.references or names.pop()
    tables = [] if name == "raw" else [find_table("references", name, folders)]
    references = read_references(tables[0]) if tables else None
    wished = [published for wish in scores.wishes for published in wish.get("published", [])]
    published = [find_table("published", table, folders) for table in [*wished, *map(str, args.published)]]
    score = wanted.pop() if args.score == "suite" else args.score
    return Chosen(references, name, score, list(dict.fromkeys(published)), [*tables, *published])


def find_table(kind: str, name: str, folders: list[Path]) -> Path:
    """A table that is shipped, or a file, or a copy of one that lies in the folder of a sweep or report."""
    places = [HERE / kind / f"{name}.csv", Path(name), *(folder / Path(name).name for folder in folders)]
    for place in places:
        if place.is_file():
            return place
    known = ", ".join(sorted(path.stem for path in (HERE / kind).glob("*.csv")))
    raise UserError(f"--{kind} takes {known}{', raw' * (kind == 'references')} or the path of a CSV, got {name!r}")


def facts_of(args: Args, scores: Scores) -> dict[str, Any]:
    """What was run, when, with which code, on what."""
    return {
        "commands": [sweep["command"] for sweep in scores.sweeps],
        "report": "python -m benchmarks.report " + shlex.join(sys.argv[1:]),
        "commits": sorted({config["commit"] for config in scores.sources if config.get("commit")}),
        "devices": sorted({config["device"] for config in scores.sources if config.get("device")}),
        "dates": sorted({config["date"] for config in scores.sources if "date" in config})
        or sorted({sweep["date"] for sweep in scores.sweeps}),
    }


def write(args: Args, results: Results, chosen: Chosen) -> None:
    """Writes the whole report."""
    scores, out, replications = results.scores, args.out, args.replications
    looks = figures.look(scores.algorithms)
    title, purpose = heading(args, scores)
    if (out / "report.json").exists():  # nothing of an earlier report may stay
        for path in [*out.glob("figures/*.p[nd][gf]"), *(out / f"{name}.csv" for name in TABLES)]:
            path.unlink(missing_ok=True)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    with figures.style():
        parts = []
        if len(results.aggregates):
            parts.append(aggregate_part(results, looks))
            parts.append(course_part(results, looks, replications))
        if len(results.matrices) > 1:
            parts.append(improvement_part(results, replications))
        panels = curves_by_task(scores.table, "return", replications)
        parts.append(task_part(results, looks, panels))
        if len(scores.values):
            parts.append(value_part(results, looks, replications))
        if chosen.published:
            parts.append(published_part(results, chosen.published))
        parts.append(source_part(results))
        pages = []
        for part in parts:
            drawn = []
            for name, figure, description in part.figures:
                figures.lay_out(figure)
                figures.save(figure, out / "figures" / name, args.formats)
                drawn.append((figures.svg(figure, description), description))
            pages.append((part, drawn))
        note = "mean over seeds with 95% bootstrap intervals"
        together = figures.grid(panels, looks, results.scores.steps, "return", note)
        figures.save(together, out / "figures" / "learning_curves", args.formats)

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("report.html").render(
        title=title, purpose=purpose, notes=scores.notes, pages=pages, looks=looks, facts=facts_of(args, scores),
        references=chosen.name, reference_rows=references_of(results), score=LABELS[results.score],
        replications=replications,
    )  # fmt: skip
    (out / "report.html").write_text(page)
    (out / "report.md").write_text(markdown(title, purpose, results, parts, chosen.name))
    columns = ["task", "algorithm", "seed", "step", "episodes", "return"]
    more = ["normalised"] if results.references is not None else []
    values = scores.values[["task", "algorithm", "seed", "step", "predicted", "observed"]]
    tables = (scores.table[columns + more], results.final, results.tasks, results.aggregates, values)
    for name, table in zip(TABLES, tables, strict=True):
        if len(table):
            exact = name in ("scores", "values")  # what a report can be made from again
            table.to_csv(out / f"{name}.csv", index=False, float_format=None if exact else "%.6g")
    (out / "sources.json").write_text(json.dumps(scores.sources, indent=1) + "\n")
    facts: dict[str, Any] = {"title": title, "purpose": purpose, "references": chosen.name, "score": results.score}
    facts["published"] = [t.stem if HERE in t.parents else t.name for t in chosen.published]
    for table in chosen.tables:  # so that the report can be made again
        if HERE not in table.parents and table.parent.resolve() != out.resolve():
            shutil.copy(table, out / table.name)
    facts |= {"notes": scores.notes, "sweeps": scores.sweeps}
    (out / "report.json").write_text(json.dumps(facts | facts_of(args, scores), indent=2) + "\n")


def references_of(results: Results) -> list[dict[str, Any]]:
    """The references of the tasks in the report."""
    if results.references is None:
        return []
    rows = results.references[results.references["task"].isin(results.scores.tasks)]
    return rows.to_dict("records")


def markdown(title: str, purpose: str, results: Results, parts: list[Part], references: str) -> str:
    """The tables of a report for a README, the learning curves above them."""
    lines = [f"# {escape(title)}", escape(purpose), "![learning curves](figures/learning_curves.png)"]
    lines += [f"> {escape(note)}" for note in results.scores.notes]
    if results.references is not None:
        how = "; ".join(f"{r['task']} {r['low']:g} to {r['high']:g}" for r in references_of(results))
        lines.append(escape(f"Normalised scores are 0 and 1 at the references ({references}): {how}."))
    for part in parts:
        if part.tables and part.title != "Runs":
            caption, table = part.tables[0]
            lines += [f"## {part.title}", escape(part.text), f"{escape(caption)}:", table.markdown()]
    return "\n\n".join(line for line in lines if line) + "\n"


def main(args: Args) -> None:
    started = time.monotonic()
    check(args)
    if not args.folders:
        raise UserError("name at least one folder of runs")
    scores = load(list(args.folders), args.mix, args.finished_only)
    chosen = from_suites(args, scores)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out: cannot use {args.out}: {error}") from None
    results = compute(scores, chosen.references, chosen.score, args.replications)
    write(args, results, chosen)

    for note in scores.notes:
        print(f"note: {note}")
    print(f"\n{LABELS[results.score]}, mean over seeds [95% interval]:\n")
    print(
        results.tasks[results.tasks["score"] == results.score]
        .drop(columns="score")
        .to_string(index=False, float_format="{:,.1f}".format)
    )
    aggregates = results.aggregates[results.aggregates["score"] == results.score]
    iqm = aggregates[aggregates["statistic"] == "IQM"]
    if len(iqm):
        unit = "returns" if chosen.references is None else f"scores normalised by {chosen.name}"
        print(f"\nIQM of {unit} over {', '.join(results.common)}:\n")
        print(iqm[["algorithm", "value", "low", "high", "seeds"]].to_string(index=False, float_format="{:,.3f}".format))
    print(f"\n{(args.out / 'report.html').resolve()}  ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    report_errors(lambda: main(tyro.cli(Args, description=__doc__)))
