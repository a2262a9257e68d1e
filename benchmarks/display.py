"""The output of a sweep: the plan with its estimates, and the progress of the jobs."""

import contextlib
import math
import sys
import time
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from algos.cli import settings
from algos.stored import Progress, parsed
from benchmarks.decide import too_few
from benchmarks.engines import Outcome
from benchmarks.plan import RESULTS, Job, earlier_runs, estimate, has_sizes_of, is_running, most_alike
from benchmarks.suite import Suite

NOTES = {"new": "to do", "started": "to be continued", "finished": "finished", "damaged": "damaged: anew"}


def show_plan(suite: Suite, jobs: list[Job], out: Path, workers: int, engine: str) -> None:
    """Prints the plan, with an estimate of time and disk."""
    earlier = earlier_runs(out.parent, RESULTS)
    width = max(len(job.name) for job in jobs)
    times, disk, unknown, unlike = [], 0.0, 0, False
    print(f"{suite.name}: {suite.purpose}\n")
    for number, job in enumerate(jobs):
        best = most_alike(job, earlier) if job.state != "finished" else None
        unlike |= best is not None and not has_sizes_of(job, best)
        guess = estimate(job, best) if best else (0.0, 0.0) if job.state == "finished" else None
        if guess:
            times.append(guess[0])
            disk += guess[1]
        else:
            unknown += 1
        about = "" if job.state == "finished" else f"about {clock(guess[0])}" if guess else "no earlier run to tell"
        steps = f"{job.total_steps:>11,} steps"
        state = "running" if job.state == "started" and is_running(job.folder) else NOTES[job.state]
        print(f"{number:>4}  {job.id}  {job.name:<{width}}  {steps}  {state:<15}  {about}")
    counts = Counter(job.state for job in jobs)
    print(f"\n{len(jobs)} jobs, {counts['finished']} finished; {workers} at a time, with {engine}; folder {out}")
    if len(times) > counts["finished"]:
        longest = max(sum(times) / workers, max(times))
        rest = f", and {unknown} jobs for which there is no earlier run" if unknown else ""
        about = f"time about {clock(longest)}, disk at most about {disk / 2**30:.2f} GiB"
        sizes = "; some have networks or batches of other sizes, and tell little" if unlike else ""
        print(f"{about} (from earlier runs here and in results/{sizes}){rest}")
    elif unknown:
        print(
            "time and disk unknown: there is no earlier run of these algorithms to tell; one of a hundredth of the "
            f"steps tells, on the same kind of device and with --out {out.parent}"
        )


def note_on_seeds(suite: Suite) -> None:
    """Says if the suite has too few seeds for any verdict on a task."""
    pairs = in_pairs = 0
    for task in suite.tasks:
        counts = [len(settings(entry.args[task])) for entry in suite.entries]
        own = sum(math.comb(count, 2) for count in counts)
        pairs, in_pairs = pairs + math.comb(sum(counts), 2) - own, in_pairs + own
    if said := too_few(len(suite.seeds), pairs, in_pairs):
        print(f"note: {said}")


def clock(seconds: float) -> str:
    """`3 h 20 min`, `12 min`, `40 s`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


class Display:
    """The progress of every running job and of the whole sweep: bars on a terminal, else lines once a minute."""

    def __init__(self, jobs: list[Job], workers: int):
        self.jobs, self.terminal = jobs, sys.stderr.isatty()
        self.all = sum(job.total_steps * job.runs for job in jobs)
        self.done = {job.id: job.total_steps * job.runs for job in jobs if job.state == "finished"}
        self.bars: dict[str, tqdm] = {}
        self.finished = set(self.done)
        self.free = list(range(max(workers, 1), 0, -1))
        style = {"dynamic_ncols": True, "disable": not self.terminal}
        self.style = style | {
            "leave": False,
            "bar_format": "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {postfix}",
        }
        start = sum(self.done.values())
        self.total = tqdm(
            total=self.all, initial=start, desc="all", unit=" steps", unit_scale=True, position=0, **style
        )
        self.said = time.monotonic()

    def update(self) -> None:
        """Shows the progress that the running jobs have written to their folders."""
        lines = []
        for job in self.jobs:
            if job.id in self.finished:
                continue
            try:
                progress = parsed(job.folder / "progress.json", Progress)
            except (OSError, ValueError):
                continue
            self.done[job.id] = progress["step"] * job.runs
            phase = progress.get("phase", "")
            steps = "" if phase and not progress["step"] else f"{progress['step']:,} of {job.total_steps:,} steps"
            lines.append(f"  {job.name}: {', '.join(filter(None, [steps, phase or progress['score']]))}")
            if job.id not in self.bars and self.free:
                self.bars[job.id] = tqdm(
                    total=job.total_steps, desc=job.name, position=self.free[-1], unit_scale=True, **self.style
                )
                self.bars[job.id].place = self.free.pop()  # type: ignore[attr-defined]
            if bar := self.bars.get(job.id):
                bar.n = progress["step"]
                bar.set_postfix_str(phase or progress["score"])
        done = sum(self.done.values())
        self.total.n = done
        self.total.refresh()
        if not self.terminal and time.monotonic() - self.said > 60:
            self.said = time.monotonic()
            print("\n".join([*lines, f"all: {done / self.all:.0%}"]), flush=True)

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Removes a job's bar and prints how the job ended."""
        if bar := self.bars.pop(job.id, None):
            self.free.append(bar.place)  # type: ignore[attr-defined]
            bar.close()
        self.finished.add(job.id)
        if outcome.status == "finished":
            self.done[job.id] = job.total_steps * job.runs
        attempts = f" after {outcome.attempts} attempts" if outcome.attempts > 1 else ""
        note = {3: " (all runs diverged)"}.get(outcome.code or 0, "")
        if outcome.status == "failed" and outcome.code == 0:
            note = f" (it ended without an error, but there is no finished run in {job.folder})"
        if outcome.status == "failed" and outcome.code == 2 and outcome.log:  # the script refused its arguments
            with contextlib.suppress(OSError):  # another machine's log may come late
                lines = outcome.log.read_text(errors="replace", encoding="utf-8").splitlines()
                note = next((f" ({line})" for line in reversed(lines) if line.startswith("error: ")), "")
        where = f": see {outcome.log}" if outcome.status == "failed" and outcome.log else ""
        tqdm.write(f"{outcome.status:<11} {job.name}{note}{attempts}{where}", file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        for bar in [*self.bars.values(), self.total]:
            bar.close()
