"""Reports: the scores of runs as interval estimates over seeds, in one page, tables and figures.

    python -m benchmarks.report runs/smoke --out runs/smoke/report
    python -m benchmarks.report runs/mujoco_short runs/mine --references raw --out runs/both

Each folder is that of a sweep or a run, any folder above runs, or one that a report was written to. OUT gets
report.html, one file with the figures inside, report.md, figures/, and the tables: scores.csv (every evaluation of
every seed), final.csv (every seed's score), tasks.csv and aggregates.csv (interval estimates), verdicts.csv (which of
two algorithms is better; a least difference is inf where it would be more than there can be), values.csv, watched.csv
(what is logged besides), ways.csv and maps.csv (of mazes), looks.json (of a sweep until something is decided),
sources.json (the origin of each run) and report.json (that of the report). The same runs give the same bytes.

Where hyperparameters were varied (--vary), each setting counts as an algorithm, the tables have a column for each
hyperparameter, and a section shows the score against each of them and ranks the settings.

Scores are normalised by the references of the sweep's suite, or of --references; without any they are raw returns, and
there are aggregates over tasks only if there is one task. 95% intervals of a task's mean are Student's, and others,
those of aggregates too, have the standard error of a bootstrap over seeds, stratified by task. Runs that follow
different protocols are refused, or with --mix reported with a note.
"""

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
import tyro
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from algos.arguments import Range, check
from algos.checkpoint import write_atomically
from algos.cli import run_command
from algos.errors import UserError
from algos.folders import writable
from algos.stored import find
from benchmarks import estimates, figures, maze_part, parts
from benchmarks.analysis import Results, compute, curves_by_task
from benchmarks.decision_part import comparisons, decision_part, verdict_table
from benchmarks.goal_part import goal_part
from benchmarks.interval_note import interval_note
from benchmarks.load_scores import load
from benchmarks.looks import FILE as LOOKS
from benchmarks.looks import stored_looks
from benchmarks.looks_part import looks_part
from benchmarks.model_part import model_part
from benchmarks.parts import Part
from benchmarks.read_scores import KEYS, MEANS, VALUES, WATCHED
from benchmarks.scores import LABELS, ORDER, PERCENT, SUCCESS, Scores, reference_of
from benchmarks.sensitivity import sensitivity_part
from benchmarks.stored import OWN, TABLES, VERDICTS, keep, keep_suites, origin, own_tables, processes_of, write_sources
from benchmarks.suite import BENCHMARKS, Score, find_table, published_curves, read_published, read_references
from benchmarks.tables import escape
from benchmarks.variance_part import variance_part
from benchmarks.variants_part import variants_part


@dataclass
class Args:
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """folders of sweeps or runs"""
    out: Path
    """where the report goes"""
    references: str = ""
    """d4rl, random_sac, recipes, success, a CSV with task, low, high, source, or raw; by default those of the sweep's
    suite"""
    published: tuple[Path, ...] = ()
    """published scores to show beside these: corl, dsac_t, goal_conditioned, mdpo_off_policy, offline,
    offline_model_based, on_policy, recoil, sac_1m, stream_x, or CSVs"""
    curves: tuple[str, ...] = ()
    """learning curves of others to draw in grey: sac_simba_v2, td3_authors, ppo_tianshou, sac_tianshou, td3_tianshou"""
    tasks: tuple[str, ...] = ()
    """report these tasks only"""
    algorithms: tuple[str, ...] = ()
    """report these algorithms only, named as in a report: sac, `iql (bf16)`; iql stands for all of its settings"""
    score: Literal[Score, "suite"] = "suite"
    """headline score of a seed: last evaluation, mean or max of the last 10%, mean of the last three, or best over
    training; `suite`: the one that the sweep's suite names"""
    title: str = ""
    """heading; by default the suite's name"""
    purpose: str = ""
    """sentences below the heading; by default the suite's purpose"""
    mix: bool = False
    """accept runs of different protocols in one report"""
    finished_only: bool = False
    """leave out runs that are not finished; without this, all are compared at the last step that all have reached"""
    precision: Annotated[float, Range(0, 1, above=True)] = 0.05
    """half width of an interval, as a share of the mean, for which the report says how many seeds and episodes are
    needed"""
    replications: Annotated[int, Range(20, 1_000_000, why="few tell no interval")] = estimates.REPLICATIONS
    """bootstrap replications"""
    formats: tuple[Literal["png", "pdf"], ...] = ("png", "pdf")
    """files of the figures, besides the page; without png, report.md has no figures, nor sections that only explain
    some"""
    page: bool = True
    """write report.html and its figures, which can be made again from the other files; without it, only the figures
    that report.md shows are written"""


def heading(args: Args, scores: Scores) -> tuple[str, str]:
    """Title and the line below it."""
    titles = [wish["title"] for wish in scores.wishes if "title" in wish] or [sweep["suite"] for sweep in scores.sweeps]
    title = args.title or ", ".join(dict.fromkeys(titles)) or ", ".join(folder.name for folder in args.folders)
    told = [wish["purpose"] for wish in scores.wishes if wish.get("purpose")]
    return title, args.purpose or " ".join(dict.fromkeys(told or [sweep["purpose"] for sweep in scores.sweeps]))


@dataclass
class Chosen:
    """References, headline score and published tables of a report."""

    references: pd.DataFrame | None
    name: str  # the references, or raw
    score: Score
    published: list[Path]
    curves: list[str]  # of others
    tables: list[Path]  # files of references and published scores


def from_suites(args: Args, scores: Scores) -> Chosen:
    """The choices of the arguments, or of the suites where the arguments make none."""
    names = (
        {args.references} if args.references else {wish.get("references", "raw") for wish in scores.wishes} or {"raw"}
    )
    headlines = {wish.get("score", "last") for wish in scores.wishes} or {"last"}
    if len(names) > 1:
        raise UserError(f"the suites have different references ({', '.join(sorted(names))}): choose with --references")
    if len(headlines) > 1 and args.score == "suite":
        raise UserError(
            f"the suites have different headline scores ({', '.join(sorted(headlines))}): choose with --score"
        )
    folders = [wish["folder"] for wish in scores.wishes]
    (name,) = names
    if name == "raw":
        tables = []
    elif args.references:
        tables = [table_or_copy("references", name, [None, *folders])]
    else:  # each has its own, and those of one name must be one
        tables = [table_or_copy("references", name, [folder, None]) for folder in folders]
    references = read_references(tables[0], scores.files) if tables else None
    found = [
        table_or_copy("published", table, [wish["folder"], None])
        for wish in scores.wishes
        for table in wish.get("published", [])
    ]
    found += [table_or_copy("published", str(table), [None, *folders]) for table in args.published]
    published = {(table.name, BENCHMARKS in table.parents): table for table in found}
    for table in published.values():
        read_published(table)  # which refuses what is no such table
    curves = list(dict.fromkeys([curve for wish in scores.wishes for curve in wish.get("curves", [])] + [*args.curves]))
    if unknown := [curve for curve in curves if curve not in published_curves()]:
        raise UserError(f"--curves takes {', '.join(published_curves())}, got {unknown[0]!r}")
    score = headlines.pop() if args.score == "suite" else args.score
    own_tables([*tables, *found])  # which refuses names that two would have
    return Chosen(references, name, score, list(published.values()), curves, [*tables, *found])


def table_or_copy(kind: str, name: str, folders: Sequence[Path | None]) -> Path:
    """A table that is shipped, or the first there is of copies in folders and, for None, of the path itself."""
    places = [folder / Path(name).name if folder else Path(name) for folder in folders]
    return find_table(f"--{kind}", kind, name, places, ", or raw")


def fitting(scores: Scores) -> list[str]:
    """The shipped references that have all tasks; those of success are for success only."""
    paths = sorted((BENCHMARKS / "references").glob("*.csv"))
    wanted = [path for path in paths if (path.stem == "success") == (scores.measure == PERCENT)]
    known = {path.stem: read_references(path) for path in wanted}
    return [name for name, t in known.items() if all(reference_of(task, t) in set(t["task"]) for task in scores.tasks)]


def write(args: Args, results: Results, chosen: Chosen) -> None:
    """Writes the whole report."""
    scores, out = results.scores, args.out
    title, purpose = heading(args, scores)
    taken = stored_looks(args.folders, scores)
    ways, maps = maze_part.load(args.folders, scores)
    again = (out / "report.json").exists()  # nothing of an earlier report may stay, and its tables may be the input
    fresh = out / "figures.part"  # a fault leaves the earlier report as it was
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    with figures.style():
        sections = []
        if variants := variants_part(results):
            sections.append(variants)
        if scores.grids:
            sections.append(sensitivity_part(results))
        if len(results.aggregates):
            sections.append(parts.aggregate_part(results))
            sections.append(parts.course_part(results))
        if len(results.matrices) > 1:
            sections.append(parts.improvement_part(results))
        found = comparisons(results)
        if found:
            sections.append(decision_part(results, found, bool(taken)))
        if taken:
            sections.append(looks_part(taken))
        panels = curves_by_task(results, scores.table, "return")
        behind = parts.curves_behind(results, chosen.curves)
        sections.append(parts.task_part(results, panels, behind))
        if variance := variance_part(results, args.precision):
            sections.append(variance)
        if len(scores.values):
            sections.append(parts.value_part(results))
        if scores.watched["metric"].str.startswith(SUCCESS).any():
            sections.append(goal_part(results))
        if (~scores.watched["metric"].str.startswith((SUCCESS, *ORDER))).any():
            sections.append(model_part(results))
        if len(ways):
            sections.append(maze_part.maze_part(results, ways, maps))
        if chosen.published:
            sections.append(parts.published_part(results, chosen.published))
        sections.append(parts.source_part(results))
        pages = drawn(sections, fresh, args.formats, args.page)
        bands = "" if max(map(len, panels.values())) > figures.MOST_BANDS else " with 95% intervals"
        shown, all_of_them = len(results.in_curves), len(scores.algorithms)
        some = f"; {shown} of {all_of_them} algorithms and settings" if shown < all_of_them else ""
        note = f"mean over seeds{bands}{some}"
        together = figures.grid(
            panels,
            results.styles,
            results.scores.steps,
            results.scores.measure,
            note,
            results.names,
            results.names_are,
            behind,
        )
        figures.save(together, fresh / "learning_curves", args.formats)

    made = origin("report", scores.sources, scores.sweeps)
    if args.page:
        page = render(
            title=title, purpose=purpose, notes=scores.notes, pages=pages, styles=results.styles, origin=made,
            references=chosen.name, reference_rows=references_of(results), score=LABELS[results.score],
            over=" over seeds", method=interval_note(results.replications, results.fewest),
        )  # fmt: skip
    text = markdown(title, purpose, results, sections, chosen.name, "png" in args.formats)
    (out / "figures").mkdir(exist_ok=True)
    if again:
        for path in [*out.glob("figures/*.p[nd][gf]"), out / "report.html"]:
            path.unlink(missing_ok=True)
    for path in fresh.iterdir():
        path.replace(out / "figures" / path.name)
    fresh.rmdir()
    if args.page:
        (out / "report.html").write_text(page, encoding="utf-8")
    (out / "report.md").write_text(text, encoding="utf-8")
    columns = [*KEYS, *MEANS, *(["normalised"] if results.references is not None else [])]
    values, watched = scores.values[[*KEYS, *VALUES]], scores.watched[[*KEYS, *WATCHED]]
    tables = (scores.table[columns], results.final, results.tasks, results.aggregates, values, watched, ways, maps)
    contents: dict[str, str] = {}
    for name, table in zip(TABLES, tables, strict=True):
        if len(table):
            exact = name in ("scores", "values", "watched", "ways", "maps")  # a report can be made again from these
            text = scores.with_settings(table).to_csv(index=False, float_format=None if exact else "%.6g")
            contents[f"{name}.csv"] = text
    if taken:
        contents[LOOKS] = json.dumps(taken, indent=1) + "\n"
    if found:
        contents[f"{VERDICTS}.csv"] = verdict_table(found).to_csv(index=False, float_format="%.6g")
    for name, text in contents.items():
        write_atomically(out / name, text.encode())
    if again:
        for name in {*OWN, LOOKS} - set(contents):
            (out / name).unlink(missing_ok=True)
    write_sources(out, scores.sources)
    keep(chosen.tables, out)
    keep_suites(args.folders, out, again)
    summary = {
        "title": title,
        "purpose": purpose,
        "references": chosen.name,
        "score": results.score,
        "published": [t.stem if BENCHMARKS in t.parents else t.name for t in chosen.published],
        "curves": chosen.curves,
        "cells": scores.cells,
        "notes": scores.notes,
        "left_out": scores.left_out,
        "unfinished": scores.unfinished,
        "lost": scores.lost,
        "sweeps": scores.sweeps,
    }
    write_atomically(out / "report.json", (json.dumps(summary | made, indent=2) + "\n").encode())


def drawn(
    sections: list[Part], folder: Path, formats: Sequence[str], page: bool
) -> list[tuple[Part, list[tuple[str, str, bool]]]]:
    """Writes the figures of sections to a folder, and gives a page the SVG, the description, and whether it is wide.

    Without a page, figures that report.md does not show are left out.
    """
    pages = []
    for section in sections:
        made = []
        for name, figure, description in section.figures if page or (formats and section.figures_in_markdown) else []:
            figures.lay_out(figure)
            figures.save(figure, folder / name, formats)
            if page:
                made.append((figures.svg(figure, description), description, figure.get_figwidth() > figures.WIDE))
        pages.append((section, made))
    return pages


def render(**content: Any) -> str:
    """A page with this content."""
    environment = Environment(
        loader=FileSystemLoader(BENCHMARKS), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("report.html").render(**content)


def references_of(results: Results) -> list[dict[str, Any]]:
    """The references of the tasks in the report."""
    if results.references is None:
        return []
    tasks = {reference_of(task, results.references) for task in results.scores.tasks}
    rows = results.references[results.references["task"].isin(tasks)]
    return rows.to_dict("records")


def markdown(
    title: str,
    purpose: str,
    results: Results,
    sections: list[Part],
    references: str,
    images: bool = True,
) -> str:
    """The tables of a report as Markdown; with `images`, also its learning curves and other figures."""
    lines = [f"# {escape(title)}", escape(purpose)]
    if images:
        lines.append("![learning curves](figures/learning_curves.png)")
    lines += [f"> {escape(note)}" for note in results.scores.notes]
    if results.references is not None:
        how = "; ".join(f"{r['task']} {r['low']:g} to {r['high']:g}" for r in references_of(results))
        lines.append(escape(f"Normalised scores are 0 and 1 at the references ({references}): {how}."))
    for part in sections:
        if (part.tables or (images and part.figures_in_markdown)) and part.title != "Runs":
            lines += [f"## {part.title}", escape(part.text)]
            lines += ["\n".join(f"- {escape(sentence)}" for sentence in part.sentences), escape(part.method)]
            if images and part.figures_in_markdown:
                lines += [f"![{escape(description)}](figures/{name}.png)" for name, _, description in part.figures]
            for caption, table in part.tables[: part.tables_in_markdown]:
                lines += [f"{escape(caption)}:", table.markdown()]
    lines += [escape(interval_note(results.replications, results.fewest)), escape(code_and_machines(results))]
    return "\n\n".join(line for line in lines if line) + "\n"


def code_and_machines(results: Results) -> str:
    """What the runs were trained by and on, in a sentence; empty where nothing is known."""
    sources = results.scores.sources
    made = origin("report", sources)
    packages: dict[str, set[str]] = defaultdict(set)
    for process in processes_of(sources):
        for name, number in (process.get("versions") or {}).items():
            packages[name].add(number)
    told = [" ".join([name, " and ".join(sorted(numbers))]) for name, numbers in sorted(packages.items())]
    commits = made["commits"]
    parts = [f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}"] if commits else []
    parts += [f"with {', '.join(told)}"] if told else []
    parts += [f"on {'; '.join(made['devices'])}"] if made["devices"] else []
    return f"Trained by {', '.join(parts)}." if parts else ""


def main(args: Args) -> None:
    started = time.monotonic()
    check(args)
    if not args.folders:
        raise UserError("name at least one folder of runs")
    if find(args.out, "config.json"):  # later reports would read what is stored there, and no run
        raise UserError(f"--out: there are runs in {args.out}, which a report would hide: choose a folder without runs")
    scores = load(list(args.folders), args.mix, args.finished_only, args.tasks, args.algorithms)
    chosen = from_suites(args, scores)
    writable(args.out)
    results = compute(scores, chosen.references, chosen.score, args.replications)
    write(args, results, chosen)

    for note in scores.notes:
        print(f"note: {note}")
    if not args.references and chosen.references is None and (tables := fitting(scores)):
        print(f"note: scores are not normalised, which --references {' or '.join(tables)} would do")
    print(f"\n{LABELS[results.score]}, mean over seeds [95% interval]:\n")
    print(
        results.tasks[results.tasks["score"] == results.score]
        .drop(columns="score")
        .to_string(index=False, float_format="{:,.1f}".format)
    )
    aggregates = results.aggregates[results.aggregates["score"] == results.score]
    iqm = aggregates[aggregates["statistic"] == "IQM"]
    if len(iqm):
        raw = parts.FINAL[scores.measure_of(results.common[0])]  # there is one common task
        unit = raw if chosen.references is None else f"scores normalised by {chosen.name}"
        print(f"\nIQM of {unit} over {', '.join(results.common)}:\n")
        print(iqm[["algorithm", "value", "low", "high", "seeds"]].to_string(index=False, float_format="{:,.3f}".format))
    made = (args.out / ("report.html" if args.page else "report.md")).resolve()
    print(f"\n{made}  ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    run_command(main)
