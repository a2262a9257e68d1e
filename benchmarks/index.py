"""The README of the committed results, made from the reports and measurements that lie beside it.

It writes results/README.md, and the lengths of runs in results/findings.md:

    python -m benchmarks.index
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from algos.cli import run_command
from algos.errors import UserError
from algos.stored import Config, damaged, read_csv, read_json, regular
from benchmarks import scores
from benchmarks.scores import LABELS, missing_cells
from benchmarks.stored import Report
from benchmarks.tables import Table, aggregate_rows, between, escape, number, word

INTRODUCTION = """# Results

Every table and figure here is written by a command of this repository, from its own runs and measurements and from
published tables; this page is written by `python -m benchmarks.index`. Intervals are 95% intervals over seeds, and
in the study of the effective horizon over tasks. The folder of a report holds its tables as CSV, its figures, and in
`sources.json` the arguments, versions and device of every run, and of our own runs the commit, with a + if the code
had been changed since that commit. From these files, `python -m benchmarks.report results/NAME --out runs/NAME/report`
makes the report again, with `--mix` where its notes say what differs between runs, as one page with sortable tables and
figures that tell their values (`runs/NAME/report/report.html`). Runs of other code have no commit there. The release of
Stable-Baselines3 or d3rlpy is among their versions, and `sb3.py` and `d3rlpy_peer.py` in `benchmarks/` say how they
were made; for the others, `dsac_peer.py`, `dual_peer.py`, `stream_peer.py`, `ogbench_peer.py` and `offlinerl_kit.py`
there also name the commit of the other code. Studies have a `page.md` instead, which names its command."""

SHORT = 200  # letters of a sentence in the list of contents
FINDING = re.compile(r"^### (.*)\n\n\*.*\*$", re.MULTILINE)  # a heading that links reports, and below it their length


@dataclass
class Args:
    folder: Path = Path("results")
    """folder of the results"""


def aggregate_table(folder: Path, score: str) -> Table | None:
    """IQM, median, mean and optimality gap by the headline score; None if there are no aggregates."""
    path = folder / "aggregates.csv"
    if not os.path.lexists(path):
        return None
    keys = ["score", "algorithm", "statistic"]
    frame = read_csv(path, [*keys, "value", "low", "high", "tasks", "seeds"], keys)
    frame = frame[frame["score"] == score]
    names = list(dict.fromkeys(frame["statistic"]))
    return Table(["algorithm", *names, "tasks", "seeds"], aggregate_rows(frame, names, 3))


def task_table(folder: Path, score: str) -> Table:
    """Mean return with its interval on every task by the headline score."""
    keys = ["task", "algorithm", "score"]
    frame = read_csv(folder / "tasks.csv", [*keys, "mean", "low", "high", "std", "seeds", "steps"], keys)
    table = Table(["task", "algorithm", measure_of(folder), "95% interval", "std", "seeds", "steps"], [])
    for row in frame[frame["score"] == score].itertuples():
        cells = [word(row.task), word(row.algorithm), number(row.mean), between(row.low, row.high)]
        table.rows.append([*cells, number(row.std), number(row.seeds, 0), number(row.steps, 0)])
    return table


def measure_of(folder: Path) -> str:
    """What the scores of a report are."""
    sources = read_json(folder / "sources.json", list[Config])
    kinds = {scores.measure_of(config) for config in sources}
    return kinds.pop() if len(kinds) == 1 else "score"


def section(folder: Path) -> str:
    """The section of one report: commands, figures, tables."""
    report = read_json(folder / "report.json", Report)
    score = report["score"]
    made = "; ".join(", ".join(report[key]) for key in ("commits", "devices", "dates") if report[key])
    lines = [f"## {escape(report['title'])}", escape(report["purpose"])]
    lines.append(f"[The whole report]({folder.name}/report.md)")
    lines += [f"Command: `{command}`" for command in report["commands"]]
    lines += [f"Report: `{report['report']}`", f"Commit, device, date: {made}"]
    lines += [f"> {escape(note)}" for note in report["notes"]]
    if (folder / "figures" / "learning_curves.png").exists():
        lines.append(f"![learning curves]({folder.name}/figures/learning_curves.png)")
    for path in sorted([*folder.glob("figures/settings_*.png"), *folder.glob("figures/sensitivity_*.png")]):
        lines.append(f"![{path.stem.replace('_', ' ')}]({folder.name}/figures/{path.name})")
    aggregates = aggregate_table(folder, score) if report["references"] != "raw" else None
    if aggregates:
        lines += [f"Normalised by {report['references']}, {LABELS[score]}:", aggregates.markdown()]
    lines += [f"{measure_of(folder).capitalize()}, {LABELS[score]}:", task_table(folder, score).markdown()]
    if (folder / "check.md").exists():
        text = text_of(folder / "check.md").replace("# ", "### ", 1).replace("\n## ", "\n#### ")
        lines.append(text.replace("](figures/", f"]({folder.name}/figures/").strip())
    return "\n\n".join(line for line in lines if line)


def study(folder: Path) -> str:
    """The section of a study that is no report: its title, what it says first, and its first figure."""
    text = text_of(folder / "page.md")
    title, _, more = text.partition("\n\n")
    lines = [f"#{title}", more.partition("\n\n")[0], f"[The whole study]({folder.name}/page.md)"]
    if figure := re.search(r"!\[[^]]*\]\(figures/[^)]*\)", text):
        lines.append(figure[0].replace("](", f"]({folder.name}/"))
    return "\n\n".join(lines)


def entry(part: str) -> str:
    """The line of a section in the list of contents: its heading, and what is below if that is a short sentence."""
    heading, _, rest = part.removeprefix("## ").partition("\n\n")
    place = re.sub(r"[^\w -]", "", heading.replace("\\", "")).lower().replace(" ", "-")
    below = rest.partition("\n\n")[0]
    short = below[0].isalpha() and len(below) < SHORT and "\n" not in below
    return f"- [{heading}](#{place}){f': {below}' if short else ''}"


def text_of(path: Path) -> str:
    """The text of a file; raises UserError if there is none."""
    try:
        return regular(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise damaged(path, error) from None


def length(folders: list[Path]) -> str:
    """Steps of the runs in these reports, their numbers of seeds, and how many cells of its suite the first has."""
    steps: dict[str, None] = {}
    seeds, units = set(), set()
    for folder in folders:
        keys = ["task", "algorithm", "score"]
        frame = read_csv(folder / "tasks.csv", [*keys, "seeds", "steps"], keys)
        steps |= {f"{count:,}": None for count in frame["steps"]}
        seeds |= set(frame["seeds"])
        runs = read_json(folder / "sources.json", list[Config])
        units |= {config.get("steps", "environment steps") for config in runs}
    counts = " or ".join(map(str, sorted(seeds, reverse=True)))
    parts = [f"{' and '.join(steps)} {' or '.join(sorted(units))}", f"{counts} seeds", part_of_suite(folders[0])]
    return ", ".join(filter(None, parts))


def part_of_suite(folder: Path) -> str:
    """How many cells a report has of those that its sweeps were to train; empty if it has all."""
    cells = [(name, task) for name, task in read_json(folder / "report.json", Report).get("cells", [])]
    if not cells:
        return ""
    missing = missing_cells(cells, read_json(folder / "sources.json", list[Config]))
    return f"{len(cells) - len(missing)} of {len(cells)} cells" if missing else ""


def with_lengths(text: str, folder: Path) -> str:
    """The text on findings, in which the lengths of the runs behind them are those of the reports in a folder.

    Those of studies, in which each run may have another length, stay as they are.
    """

    def lines(match: re.Match[str]) -> str:
        folders = [folder / name for name in re.findall(r"\]\((\w+)/", match[1])]
        return (
            match[0] if not folders or (folders[0] / "page.md").exists() else f"### {match[1]}\n\n*{length(folders)}*"
        )

    return FINDING.sub(lines, text)


def contents(folder: Path) -> str:
    """The text of the page on all that lies in a folder of results; raises UserError if there is no report."""
    reports = sorted(path for path in folder.glob("*") if os.path.lexists(path / "report.json"))
    if not reports:
        raise UserError(f"there is no report in {folder}")
    studies = sorted(path.parent for path in folder.glob("*/page.md"))
    parts = [*map(section, reports), *map(study, studies)]
    for path in sorted(folder.glob("*/README.md")):
        parts.append(text_of(path).replace("# ", "## ", 1).strip())
    told = "[What came out](findings.md) says in words what they show." if (folder / "findings.md").exists() else ""
    return "\n\n".join(filter(None, [INTRODUCTION, told, "\n".join(map(entry, parts)), *parts])) + "\n"


def main(args: Args) -> None:
    text = contents(args.folder)
    (args.folder / "README.md").write_text(text, encoding="utf-8")
    print(args.folder / "README.md")
    if os.path.lexists(findings := args.folder / "findings.md"):
        findings.write_text(with_lengths(text_of(findings), args.folder), encoding="utf-8")
        print(findings)


if __name__ == "__main__":
    run_command(main)
