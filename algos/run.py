"""The run: what every script does around its algorithm. Seeds, device, folders, logging, evaluation, checkpoints."""

import contextlib
import difflib
import inspect
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, TypeVar, get_type_hints

import gymnasium as gym
import numpy as np
import pandas as pd
import torch
import tyro
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor, nn
from tqdm import tqdm

from algos.arguments import Count, Natural, check
from algos.checkpoint import Checkpoints, tensors_of, write_atomically
from algos.compile import compiled, tune_cpu
from algos.errors import UserError
from algos.evaluate import Evaluator, Foresee
from algos.nn import initialise
from algos.random import Stream, generators
from algos.threads import Threads
from envs import SeededEnvs, register

Module = TypeVar("Module", bound=nn.Module)
# Arguments that change nothing in a run but rounding: a run may be resumed with others.
FREE = ("out", "resume", "quiet", "checkpoint_every", "threads", "keep_replay")
FILES = (".csv", ".hdf5", ".h5", ".npz")
EVAL_COLUMNS = ["seed", "step", "episode", "return", "length"]
TRAIN_COLUMNS = ["seed", "step", "metric", "value"]


@dataclass(kw_only=True)
class RunArgs:
    """Arguments of every script."""

    TASK: ClassVar[str] = "env_id"  # the argument that names the task
    STEPS: ClassVar[str] = "environment steps"  # what steps are, on figures

    env_id: str = "HalfCheetah-v5"
    """Gymnasium id of a task with continuous actions"""
    seeds: tuple[str, ...] = ("0",)
    """one training run each, all at once: `0 1 2`, or a range such as `0:10` (0 to 9)"""
    total_steps: Count = 1_000_000
    """environment steps of each run"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto takes CUDA where there is one"""
    compile: bool = False
    """compile the update on a CPU too: half a minute at the start, and a C++ compiler; on CUDA it always is"""
    eager: bool = False
    """neither compile nor capture the update, on any device: for debugging"""
    threads: Natural = 0
    """CPU threads of torch and of physics; 0: one for each core that other processes leave free"""
    eval_every: Count = 10_000
    """environment steps between evaluations, which also take place at the first and the last step"""
    eval_episodes: Natural = 10
    """deterministic episodes of each seed at an evaluation; 0: the score is of the training episodes since the last"""
    log_every: Count = 1_000
    """environment steps over which training metrics are averaged"""
    checkpoint_every: Count = 50_000
    """environment steps between checkpoints; a kill loses no more than these"""
    out: Path = Path("runs")
    """results go to OUT/<task>/<algorithm>/<variant>/"""
    variant: str = "default"
    """name of this set of hyperparameters, the last part of the folder"""
    resume: bool = False
    """continue from the folder's last checkpoint, if there is one"""
    quiet: bool = False
    """print nothing but errors"""

    @property
    def task(self) -> str:
        """What is learned: the environment's id, or what `TASK` says."""
        return getattr(self, self.TASK)

    def check_task(self) -> None:
        """Raises UserError if there is no such task."""
        check_env_id(self.env_id)

    def check_ready(self) -> None:
        """Raises UserError if something has to be made before this can run."""


def parse_seeds(words: tuple[str, ...]) -> list[int]:
    """`("0", "5:8")` -> [0, 5, 6, 7]; raises UserError for what is no seed, for negative and for repeated ones."""
    seeds: list[int] = []
    for word in words:
        try:
            first, colon, last = word.partition(":")
            seeds += range(int(first or 0), int(last)) if colon else [int(word)]
        except ValueError:
            raise UserError(f"--seeds takes whole numbers or a range such as 0:10, got {word!r}") from None
    if not seeds:
        raise UserError(f"--seeds names no seed: {' '.join(words)!r}")
    if min(seeds) < 0:
        raise UserError(f"--seeds must not be negative, got {min(seeds)}")
    if repeated := sorted({s for s in seeds if seeds.count(s) > 1}):
        raise UserError(f"--seeds must differ from each other, got {repeated[0]} twice")
    return seeds


class Run:
    """R runs of one algorithm, trained together.

    Checks every argument before anything is done, and raises UserError for what is wrong. Offers `seeds`, `runs` (R),
    `device`, `envs` (the environments to train in) and the folder, and drives the loop: see `steps`.

    `env_options` go to the environments; `make_envs` makes others than those of --env-id, and `eval_env` names another
    one to evaluate in, with its options. `facts` (JSON) are what else determines the results, such as the digest of
    data: a run does not go on where they differ. With 0 evaluation episodes the score is that of the training episodes
    that ended since the last evaluation; a seed of which none did keeps the one it had. For the terminal and the curve,
    `score` names it where it is no return, and `show` makes it of returns.
    """

    def __init__(
        self,
        args: RunArgs,
        algorithm: str,
        envs_per_run: int = 1,
        *,
        make_envs: Callable[[list[int], torch.device], Any] | None = None,
        eval_env: tuple[str, dict[str, Any]] | None = None,
        score: str = "return",
        show: Callable[[Any], Any] = lambda returns: returns,
        facts: dict[str, Any] | None = None,
        **env_options: Any,
    ):
        self.args, self.algorithm, self.envs_per_run, self.facts = args, algorithm, envs_per_run, facts or {}
        self.score_name, self.show, self.digits = score, show, 3 if score == "R²" else 1
        check(args)
        self.seeds = parse_seeds(args.seeds)
        self.runs = len(self.seeds)
        self.device = choose_device(args.device)
        self.threads = Threads(args.threads)
        if self.device.type == "cpu":
            tune_cpu()
        env_options |= {"threads": args.threads or None}
        try:
            if make_envs:
                self.envs = make_envs(self.seeds, self.device)
            else:
                check_env_id(args.env_id)
                self.envs = SeededEnvs(args.env_id, self.seeds, envs_per_run, self.device, **env_options)
        except ValueError as error:
            raise UserError(f"--env-id: {error}") from None
        except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise UserError(f"--env-id {args.env_id} needs a package that is not installed: {error}") from None
        self.evaluator: Evaluator | None = None
        if args.eval_episodes:
            env_id, options = eval_env or (args.env_id, {})
            options = options | {"threads": args.threads or None}
            self.evaluator = Evaluator(env_id, self.seeds, args.eval_episodes, self.device, **options)

        self.step = 0  # environment steps done, of each run
        self.diverged: dict[int, int] = {}  # seed -> step at which it was noticed
        self.frozen: list[tuple[Tensor, Tensor]] = []  # what diverged runs have learned, in place, and as it was then
        self.seconds = 0.0  # spent in training, evaluation not counted
        self.evaluation_seconds = 0.0
        self.peak_bytes = 0  # of the folder, when a checkpoint was written
        self.reported = 0.0  # when the progress was last written down
        self.score: float | None = None  # mean return over seeds at the last evaluation
        self.eval_rows: list[tuple] = []
        self.train_rows: list[tuple] = []
        self.sums: dict[str, Tensor] = {}  # metric -> sum since the last log [R]
        self.counts: dict[str, int] = {}
        self.episodes: list[tuple[int, float, int]] = []  # that ended since the last log
        self.scored: list[tuple[int, float, int]] = []  # that ended since the last evaluation, where they are the score
        self.exports: dict[str, Callable[[], bytes]] = {}
        self.foresee: Foresee | None = None  # see compare_values
        self.signal = 0
        self.finished = False  # by an earlier process
        self.parts: dict[str, Any] = {}
        self.writers: list[Any] = []
        self.folder = folder_of(args, algorithm)
        self.identity = identity(args, algorithm, self.seeds, self.device.type)
        self.checkpoints = Checkpoints(self.folder / "checkpoint")
        self._claim_folder()

    # -- what scripts ask for -----------------------------------------------------------------------------------------

    def initialise(self, name: str, module: Module) -> Module:
        """Draws a module's weights, each run's from its own seed, and moves it to the device."""
        initialise(module, self.runs, generators(self.seeds, name))
        return module.to(self.device)

    def stream(self, name: str, *shape: int, kind: str = "normal", used: bool = True) -> Callable[[], Any]:
        """An endless sequence of random draws [R, *shape], part of the checkpoints; see `algos.random.Stream`.

        One that is not `used` gives None.
        """
        if not used:
            return lambda: None
        self.parts[f"stream.{name}"] = stream = Stream(self.seeds, name, shape, kind, self.device)
        return stream

    def fast(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The fast form of a function of tensors; see `algos.compile`."""
        return compiled(function, self.device, self.args.compile, self.args.eager)

    def log(self, metrics: dict[str, Tensor]) -> None:
        """Adds up metrics [R] on the device; their means are read and written every `log_every` steps."""
        for name, value in metrics.items():
            if name in self.sums:
                self.sums[name] += value
                self.counts[name] += 1
            else:
                self.sums[name], self.counts[name] = value.clone(), 1

    def compare_values(self, foresee: Foresee, discount: float) -> None:
        """From now on, logs `value_predicted` and `value_observed` at every evaluation: see `Evaluator.values`.

        One episode of each seed with the exploring policy; their difference is the critic's bias.
        """
        self.foresee, self.discount = foresee, discount
        self.value_evaluator = Evaluator(self.args.env_id, self.seeds, 1, self.device, self.args.threads or None)

    def export(self, name: str, content: Callable[[], bytes]) -> None:
        """With every checkpoint, also writes this file of the run's folder."""
        self.exports[name] = content

    def steps(self, policy: Callable[[Tensor], Tensor] | None = None, **parts: Any) -> Iterator[int]:
        """Yields the number of environment steps done by each run after the iteration that it begins.

        Around the iterations: evaluation of `policy` (obs [R, B, O] -> action [R, B, A]), logging, checkpoints of all
        `parts` (see `algos.checkpoint.tensors_of`), resuming, a clean end on SIGINT and SIGTERM (exit code 130), and an
        end with exit code 3 when all runs have diverged.
        """
        if self.finished:
            self.say(f"{self.folder} is finished already")
            if len(self.diverged) == self.runs:
                raise SystemExit(3)
            return
        self.parts |= parts
        if self.envs.resumable:
            self.parts["envs"] = self.envs
        self._restore()
        with self._signals(), self._progress() as progress:
            if self.step == 0 and self.evaluator:
                self._evaluate(policy)
            while self.step < self.args.total_steps and len(self.diverged) < self.runs:
                before, started = self.step, time.perf_counter()
                self.threads.poll()
                yield before + self.envs_per_run
                for tensor, value in self.frozen:
                    tensor.copy_(value)
                self.step += self.envs_per_run
                self.episodes += self.envs.ended
                if not self.evaluator:
                    self.scored += self.envs.ended
                if self._due(self.args.log_every, before) or self.step >= self.args.total_steps:
                    self._flush()
                self.seconds += time.perf_counter() - started
                progress.update(self.envs_per_run)
                self._report_progress()
                if self._due(self.args.eval_every, before) or self.step >= self.args.total_steps:
                    self._evaluate(policy)
                if self.signal:
                    self._save("interrupted")
                    self.say(f"interrupted at step {self.step:,}; continue with --resume")
                    raise SystemExit(130)
                if self._due(self.args.checkpoint_every, before) and self.step < self.args.total_steps:
                    self._save("running")
            self._finish()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _due(self, every: int, before: int) -> bool:
        return self.step // every > before // every

    def _claim_folder(self) -> None:
        """Makes the run's folder, or refuses it if it holds another configuration or cannot be written."""
        config = self.folder / "config.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(self.folder / ".lock")  # the system drops it when the process ends, however it ends
            self.lock.acquire(timeout=0)
            if config.exists():
                self._compare(json.loads(config.read_text()))
            write_atomically(self.folder / ".writable", b"")
            (self.folder / ".writable").unlink()
            free = shutil.disk_usage(self.folder).free
        except Timeout:
            raise UserError(f"--out: another process is training in {self.folder}; wait for it, or end it") from None
        except OSError as error:
            raise UserError(f"--out: cannot use {self.folder}: {error}") from None
        except (json.JSONDecodeError, KeyError):
            raise UserError(f"--out: {config} is not a run's; choose another --out or --variant") from None
        size = getattr(self.args, "buffer_size", 0)
        row = 4 * (2 * self.envs.obs_size + self.envs.act_size + 2)
        there = sum(path.stat().st_size for path in self.checkpoints.folder.glob("*"))
        need = 3 * self.runs * min(size, self.args.total_steps) * row + (64 << 20) - there
        if need > free:
            raise UserError(
                f"--out: checkpoints in {self.folder} need {need / 2**30:.1f} GiB of disk, where {free / 2**30:.1f} "
                "GiB are free: take a smaller --buffer-size or fewer seeds"
            )

    def _compare(self, config: dict[str, Any]) -> None:
        if differs := difference(self.identity | self.facts, config["identity"] | config.get("facts", {})):
            raise UserError(
                f"--out: {self.folder} holds a run with another configuration ({differs}); choose another --out or "
                "--variant"
            )
        self.finished = config["status"] in ("finished", "diverged")
        self.diverged = {int(seed): step for seed, step in config["diverged"].items()}
        if not self.args.resume:
            raise UserError(
                f"--out: {self.folder} holds this run already ({config['status']}): continue it with --resume, or "
                "choose another --out or --variant"
            )

    def _write_config(self, status: str) -> None:
        config = {
            "algorithm": self.algorithm,
            "task": self.args.task,
            "env_id": self.args.env_id,
            "variant": self.args.variant,
            "steps": self.args.STEPS,
            "status": status,
            "step": self.step,
            "seconds": round(self.seconds, 3),
            "evaluation_seconds": round(self.evaluation_seconds, 3),
            "peak_bytes": self.peak_bytes,
            "diverged": {str(seed): step for seed, step in self.diverged.items()},
            "identity": self.identity,
            "facts": self.facts,
            "args": json.loads(json.dumps(asdict(self.args), default=str)),
            "versions": versions(),
            "commit": git_commit(),
            "date": time.strftime("%Y-%m-%d"),
            "device": device_name(self.device),
        }
        write_atomically(self.folder / "config.json", json.dumps(config, indent=2).encode())

    def _restore(self) -> None:
        facts, complaints = self.checkpoints.load(self.parts | {"run": self}) if self.args.resume else (None, [])
        for complaint in complaints:
            print(f"warning: {complaint}", file=sys.stderr)
        if facts:
            self.step, self.seconds = facts["step"], facts["seconds"]
            self.evaluation_seconds, self.peak_bytes = facts["evaluation_seconds"], facts["peak_bytes"]
            self.diverged = {int(seed): step for seed, step in facts["diverged"].items()}
            for seed in self.diverged:
                self._freeze(self.seeds.index(seed))
            self.episodes, self.scored = ([tuple(e) for e in facts.get(name, [])] for name in ("episodes", "scored"))
            self.eval_rows = self._read("eval.parquet", EVAL_COLUMNS)
            self.train_rows = self._read("train.parquet", TRAIN_COLUMNS)
            if not self.envs.resumable and not facts["final"]:
                self.envs.reset("resume", self.step)
                self.say(f"the state of {self.args.env_id} cannot be saved: its episodes start anew")
            self.say(f"resumed at step {self.step:,}")
        with self._writing():
            self._write_config("running")

    def _read(self, name: str, columns: list[str]) -> list[tuple]:
        """The rows of a table up to the step of the checkpoint."""
        path = self.folder / name
        if not path.exists():
            return []
        frame = read_table(path)[columns]
        return list(frame[frame["step"] <= self.step].itertuples(index=False, name=None))

    def state_dict(self) -> dict[str, Tensor]:
        """The metrics that are not yet logged."""
        return {f"{name}.{self.counts[name]}": value for name, value in self.sums.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for key, value in state.items():
            name, _, count = key.rpartition(".")
            self.sums[name], self.counts[name] = value.to(self.device), int(count)

    def _save(self, status: str, final: bool = False) -> None:
        """Writes tables, checkpoint and configuration; a final checkpoint holds what was learned and nothing else."""
        parts, keep = self.parts | {"run": self}, 2
        if final:
            replay = {"replay": self.parts["replay"]} if getattr(self.args, "keep_replay", False) else {}
            parts, keep = self._learned() | replay, 1
        names = ("seconds", "evaluation_seconds", "peak_bytes", "diverged", "episodes", "scored")
        facts = {name: getattr(self, name) for name in names} | {"final": final}
        with self._writing():
            self._write_tables()
            self.checkpoints.save(self.step, parts, facts, keep)
            for name, content in self.exports.items():
                write_atomically(self.folder / name, content())
            self.peak_bytes = max(self.peak_bytes, sum(f.stat().st_size for f in self.folder.rglob("*") if f.is_file()))
            self._write_config(status)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"cannot write to {self.folder} ({error}); --resume goes on from the last checkpoint"
            ) from None

    def _write_tables(self) -> None:
        for name, rows, columns in (
            ("eval.parquet", self.eval_rows, EVAL_COLUMNS),
            ("train.parquet", self.train_rows, TRAIN_COLUMNS),
        ):
            frame = pd.DataFrame(rows, columns=columns)
            write_atomically(self.folder / name, frame.to_parquet(None, index=False, write_page_checksum=True))

    def _flush(self) -> None:
        """Reads the metrics from the device and writes them down."""
        self._find_diverged(self.sums)
        values = {n: (s / self.counts[n]).double().cpu().numpy() for n, s in self.sums.items()}
        self.sums.clear()
        for run, seed in enumerate(self.seeds):
            if seed in self.diverged:
                continue
            rows = {name: float(values[name][run]) for name in sorted(values)}  # their order is lost in a checkpoint
            if totals := [total for r, total, _ in self.episodes if r == run]:
                rows["episode_return"] = float(np.mean(totals))
            rows["seconds"] = self.seconds
            self.train_rows += [(seed, self.step, name, value) for name, value in rows.items()]
            for name, value in rows.items():
                self._writer(run).add_scalar(f"train/{name}", value, self.step)
        self.episodes.clear()

    def _find_diverged(self, metrics: dict[str, Tensor]) -> None:
        """Marks the runs that have a metric which is not finite."""
        for metric in metrics.values():
            for run in (~metric.isfinite()).nonzero().flatten().tolist():
                seed = self.seeds[run]
                if seed not in self.diverged:
                    self.diverged[seed] = self.step
                    self._freeze(run)
                    print(f"warning: seed {seed} diverged before step {self.step:,}", file=sys.stderr)

    def _learned(self) -> dict[str, Any]:
        """The parts that hold what was learned."""
        passing = ("replay", "envs")
        return {n: p for n, p in self.parts.items() if n not in passing and not n.startswith("stream.")}

    def _freeze(self, run: int) -> None:
        """Keeps a run's part of all that is learned as it is now; the run axis comes first in each such tensor."""
        for part in self._learned().values():
            for tensor in tensors_of(part).values():
                if tensor.dim():
                    own = tensor.view(self.runs, -1)[run]
                    self.frozen.append((own, own.clone()))

    def _report_progress(self) -> None:
        """Writes down, every other second, how far the run is, for whoever started it."""
        if (now := time.monotonic()) - self.reported > 2:
            self.reported = now
            part = self.folder / "progress.json.part"
            with contextlib.suppress(OSError):  # a full disk is the checkpoint's to report
                part.write_text(json.dumps({"step": self.step, "total": self.args.total_steps, "score": self.score}))
                os.replace(part, self.folder / "progress.json")

    def _evaluate(self, policy: Callable[[Tensor], Tensor] | None) -> None:
        started = time.perf_counter()
        self._find_diverged(self.sums)
        found: dict[int, list[tuple[float, int]]] = {}  # (return, length) of each run's episodes
        if self.evaluator and policy:
            returns, lengths = self.evaluator(policy, self.step)
            found = {r: list(zip(returns[r].tolist(), lengths[r].tolist(), strict=True)) for r in range(self.runs)}
        else:
            for r, total, length in self.scored:
                found.setdefault(r, []).append((total, length))
            self.scored.clear()
        scores = []
        for run, seed in enumerate(self.seeds):
            if seed in self.diverged:
                continue
            rows = found.get(run) or self._rows_before(seed)
            if not rows:
                continue
            self.eval_rows += [(seed, self.step, episode, *row) for episode, row in enumerate(rows)]
            scores.append(float(np.mean([total for total, _ in rows])))
            self._writer(run).add_scalar("eval/return", scores[-1], self.step)
            if self.score_name == "score":
                self._writer(run).add_scalar("eval/score", self.show(scores[-1]), self.step)
        if self.foresee:
            predicted, observed = self.value_evaluator.values(self.foresee, self.discount, self.step)
            for name, means in (("value_predicted", predicted), ("value_observed", observed)):
                for run, seed in enumerate(self.seeds):
                    if seed not in self.diverged and np.isfinite(means[run]):
                        self.train_rows.append((seed, self.step, name, float(means[run])))
                        self._writer(run).add_scalar(f"eval/{name}", means[run], self.step)
        with self._writing():
            self._write_tables()
        if scores:
            self.score = float(np.mean(scores))
            name, digits = self.score_name, self.digits
            mean, low, high = (f"{self.show(value):.{digits}f}" for value in (self.score, min(scores), max(scores)))
            self.progress.set_postfix_str(f"{name} {mean}")
            spread = f" ({low} to {high} over {len(scores)} seeds)" if len(scores) > 1 else ""
            self.say(f"{self.algorithm:<7} step {self.step:>9,}  {name} {mean:>9}{spread}")
        self.evaluation_seconds += time.perf_counter() - started

    def _rows_before(self, seed: int) -> list[tuple[float, int]]:
        """What a seed was last scored by."""
        own = [row for row in self.eval_rows if row[0] == seed]
        return [(total, length) for _, step, _, total, length in own if step == own[-1][1]]

    def _finish(self) -> None:
        """Final checkpoint, curve, and one line per seed."""
        self._save("diverged" if self.diverged else "finished", final=True)
        (self.folder / "progress.json").unlink(missing_ok=True)
        for writer in self.writers:
            writer.close()
        self.envs.close()
        if self.evaluator:
            self.evaluator.close()
        if self.foresee:
            self.value_evaluator.close()
        frame = pd.DataFrame(self.eval_rows, columns=EVAL_COLUMNS)
        if len(frame):
            from algos.plot import carry_forward, curves

            label = "return of the deterministic policy" if self.evaluator else "return of training episodes"
            label = label if self.score_name == "return" else self.score_name
            label = "normalised score" if self.score_name == "score" else label
            shown = frame.assign(**{"return": self.show(frame["return"])})
            scores = {self.algorithm: carry_forward(shown, self.diverged)}
            curves(scores, self.folder / "curve.png", self.args.task, label, self.args.STEPS)
        final = frame[frame["step"] == frame.groupby("seed")["step"].transform("max")]
        heading, digits = f"final {self.score_name}", self.digits
        self.say(f"\n{self.algorithm}\n{'seed':>6}  {heading:>12}  {'std':>8}  {'steps':>10}")
        for seed, rows in final.groupby("seed"):
            note = f"  diverged before step {self.diverged[seed]:,}" if seed in self.diverged else ""
            scores = self.show(rows["return"])
            self.say(
                f"{seed:>6}  {scores.mean():>12.{digits}f}  {scores.std(ddof=0):>8.{digits}f}  "
                f"{rows['step'].iloc[0]:>10,}{note}"
            )
        rate = self.step / max(self.seconds, 1e-9)
        self.say(f"{rate:,.0f} steps/s for each of {self.runs} seeds; tables, curve and checkpoint in {self.folder}")
        if len(self.diverged) == self.runs:
            print("error: all runs diverged", file=sys.stderr)
            raise SystemExit(3)

    def _writer(self, run: int) -> Any:
        """The TensorBoard writer of one seed."""
        if not self.writers:
            from torch.utils.tensorboard import SummaryWriter

            place = self.folder / "tensorboard"
            self.writers = [SummaryWriter(str(place / f"seed_{s}"), purge_step=self.step) for s in self.seeds]
        return self.writers[run]

    def say(self, line: str) -> None:
        if not self.args.quiet:
            tqdm.write(line)

    @contextlib.contextmanager
    def _progress(self) -> Iterator[tqdm]:
        hidden = self.args.quiet or not sys.stderr.isatty()
        with tqdm(
            total=self.args.total_steps,
            initial=self.step,
            unit=" steps",
            disable=hidden,
            smoothing=0.05,
            mininterval=0.5,
        ) as self.progress:
            yield self.progress

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the run after the step in hand; a second SIGINT ends it at once."""

        def note(number: int, frame: FrameType | None) -> None:
            self.signal = number
            signal.signal(signal.SIGINT, signal.default_int_handler)

        old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            self.lock.release()
            for number, handler in old.items():
                signal.signal(number, handler)


def read_table(path: Path) -> pd.DataFrame:
    """A table of a run; raises UserError if it is damaged: each of its pages has a checksum."""
    try:
        return pd.read_parquet(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # pyarrow has many kinds for a damaged file
        raise UserError(f"{path} is damaged ({error}): remove the run's folder and start again") from None


def folder_of(args: RunArgs, algorithm: str) -> Path:
    """The folder of a run."""
    return Path(args.out) / folder_name(args.task) / algorithm / args.variant


def folder_name(task: str) -> str:
    """A task as a part of a path; one that is a file goes by the file's name."""
    return Path(task).stem if Path(task).suffix in FILES else task.replace("/", "-").replace(":", "-")


def identity(args: RunArgs, algorithm: str, seeds: list[int], device: str) -> dict[str, Any]:
    """What determines the results of a run, as JSON has it."""
    facts = {name: value for name, value in asdict(args).items() if name not in FREE}
    facts |= {"seeds": seeds, "device": device, "algorithm": algorithm}
    return json.loads(json.dumps(facts, default=str))


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """The first thing in which two identities differ, in words; nothing if they are the same."""
    for name in sorted(set(ours) | set(theirs)):
        if ours.get(name) != theirs.get(name):
            return f"{name}: {theirs.get(name)} there, {ours.get(name)} here"
    return ""


def choose_device(name: str) -> torch.device:
    """The device of that name; raises UserError if it is none or is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device takes auto, cpu, cuda or cuda:N, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device takes auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: this machine or this build of torch has no such GPU; --device cpu works")
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")  # TF32 products
    return device


def check_env_id(env_id: str) -> None:
    """Raises UserError, with the closest names, if Gymnasium does not know the id, or if it needs another package."""
    try:
        register(env_id)
    except ModuleNotFoundError as error:
        raise UserError(f"--env-id: {error}") from None
    try:
        gym.spec(env_id)
    except (gym.error.Error, ModuleNotFoundError, ValueError):
        close = difflib.get_close_matches(env_id, gym.registry, n=3, cutoff=0.4)
        hint = f"; the closest ids are {', '.join(close)}" if close else ""
        raise UserError(f"--env-id: Gymnasium has no environment {env_id!r}{hint}") from None


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    packages = ("torch", "gymnasium", "mujoco", "numpy", "seedbed", "dm_control", "shimmy", "minatar", "ale-py")
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def git_commit() -> str | None:
    """The commit of this code, with a + if it was changed since; None outside a checkout."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--abbrev=12",
        "--dirty=+",
        "--exclude=*",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads of {os.cpu_count()} cores"


def cli(main: Callable[[Any], None]) -> None:
    """Runs a script's `main(args)` with arguments from the command line; its module's docstring is the help text."""
    args_type = get_type_hints(main)["args"]
    args = tyro.cli(args_type, description=inspect.getmodule(main).__doc__)  # type: ignore[union-attr]

    def checked() -> None:
        check(args)  # before data is loaded, which may take long
        parse_seeds(args.seeds)
        choose_device(args.device)
        args.check_task()
        args.check_ready()
        main(args)

    report_errors(checked)


def report_errors(command: Callable[[], None]) -> None:
    """Runs a command; an error that is the user's to mend becomes one sentence and exit code 2."""
    try:
        command()
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # who reads the output, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
