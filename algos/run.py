"""The run: the loop around every algorithm, with evaluation, logging, checkpoints and a clean end."""

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from algos.adapted import Adapted
from algos.agent import Agent
from algos.agent_file import description
from algos.arguments import check, flag
from algos.checkpoint import Stateful, write_atomically
from algos.cli import (
    RunArgs,
    check_options,
    check_script_name,
    device_of,
    env_errors,
    parse_seeds,
    settings,
    with_settings,
)
from algos.compile import captured, compiled, multiplies_bf16, tune_cpu
from algos.device import device_name, take, wait
from algos.errors import UserError, warn
from algos.evaluate import Act, Evaluator, PredictValues, Score, TableEvaluator, maker
from algos.memory import check_room
from algos.nn import LARGE, use_bf16
from algos.per_run import PerRun, numbers
from algos.policy import FILE, check_policies, policy_file
from algos.random import Random
from algos.run_folder import RunFolder, as_json, identity, write_progress
from algos.signals import Signals, interruptible
from algos.summary import DIGITS, Summary
from algos.tables import Metrics, Tables, run_name
from algos.threads import Threads
from envs import Episode, SeededEnvs
from envs.atari import is_game
from envs.goals import make_goal_vec
from envs.make import TABULAR
from envs.tabular.tasks import table_of

Args = TypeVar("Args", bound=RunArgs)
LONGEST = 900.0  # seconds between two checkpoints, unless writing one takes more than a fiftieth of that
BRIEF = 5.0  # seconds: checkpoints that take longer are written less often
RARE = 20  # times as long as it took, the next one has to wait
RESTORED = ("seconds", "phase_seconds", "evaluation_seconds", "peak_bytes", "phases", "over")  # by a checkpoint


class Source(Stateful, Protocol):
    """The part of environments, or of a series, that a run calls."""

    @property
    def resumable(self) -> bool:
        """Whether their state can be saved."""

    def take_ended(self) -> list[Episode]:
        """The episodes that ended since this was last called."""

    def reset(self, purpose: str = ..., *numbers: int) -> None:
        """Starts new episodes, whose seeds depend on the run's seed, `purpose` and `numbers` only."""

    def close(self) -> None: ...


class Run(Generic[Args]):
    """R runs of one algorithm, trained together: every setting of the grid in `--vary` with every seed.

    It checks every argument before anything is done, and raises UserError for a wrong one. It offers `seeds` (one for
    each run, R), `args` (in which hyperparameters that vary are a PerRun), `device`, `random` and the folder, and
    drives the loop: see `steps`.

    `facts` (JSON) determine the results besides the arguments, such as the digest of a dataset; the run adds that of
    its table, if it has one. A run with other facts is not resumed.

    With 0 evaluation episodes, the score is that of the training episodes that ended since the last evaluation; a run
    in which none ended keeps the score it had. For the terminal and the curve, `score` names a score that is not the
    return, and `show` computes it from returns; the score "success" is the percentage of episodes that succeed.
    """

    def __init__(
        self,
        args: Args,
        algorithm: str,
        *,
        score: str = "return",
        show: Callable[[Any], Any] = lambda returns: returns,
        facts: dict[str, Any] | None = None,
    ):
        check(args)
        args.check_ready()
        check_script_name(algorithm)
        self.algorithm, self.given = algorithm, args
        self.facts = as_json(facts or {})
        if args.task.startswith(TABULAR):
            with env_errors(args.task):
                self.facts["table"] = table_of(args.task.removeprefix(TABULAR)).digest()
        if args.eval_episodes and is_game(args.task):
            self.facts["episodes"] = "whole games"  # those of evaluations in earlier versions ended with a life
        self.score_name, self.show = score, show
        self.device = take(device_of(args), args.TF32)
        self.in_bf16 = args.bf16 and not without_bf16(self.device)  # whether hidden layers are in bfloat16
        self.threads = Threads(args.threads)
        if self.device.type == "cpu":
            tune_cpu()
        self.settings, chosen = settings(args), parse_seeds(args.seeds)
        self.args, self.seeds = with_settings(args, chosen, self.device)
        self.runs = len(self.seeds)
        self.keys = [{"seed": seed, **setting} for setting in self.settings for seed in chosen]  # by run
        self.random = Random(self.seeds, self.device)

        self.done = np.zeros(self.runs, np.int64)  # steps that each run has done
        self.taken = np.zeros(self.runs, np.int64)  # the same, without what runs that stopped early left out
        self.step = 0  # steps of the run that has done fewest
        self.phases: dict[str, int] = {}  # iterations that each phase has done
        self.over: list[str] = []  # phases that have ended
        self.diverged: dict[int, int] = {}  # run -> step at which it was noticed
        self.closed: set[int] = set()  # runs at their end, while others go on
        self.frozen: list[Tensor] = []  # tensors of diverged runs
        self.frozen_values: list[Tensor] = []  # their values when they were frozen
        self.seconds = 0.0  # spent in steps, without evaluation
        self.phase_seconds = 0.0  # spent in phases before them
        self.evaluation_seconds = 0.0
        self.peak_bytes = 0  # the folder's greatest size when a checkpoint was written
        self.reported = 0.0  # when the progress was last written down
        self.save_by = math.inf  # when the next checkpoint is due, however few steps have been done
        self.save_from = -math.inf  # from when on reaching its steps makes one due
        self.save_waits = False  # whether its steps were reached before that
        self.write_from = -math.inf  # from when on evaluations write the tables; before, only checkpoints do
        self.signals = Signals()
        self.progress = tqdm(disable=True)  # the bar, while there is one
        self.shown = ""  # what it says while steps are done: the mean score at the last evaluation
        self.episodes: list[Episode] = []  # those that ended since the last log
        self.scored: list[Episode] = []  # those since the last evaluation, if they are the score

        self.source: Source | None = None
        self.evaluator: Evaluator | TableEvaluator | None = None
        self.value_evaluator: Evaluator | None = None
        self.metrics = Metrics(len(self.seeds), self.device)
        self.exports: dict[str, Callable[[], bytes | None]] = {}
        self.environment: dict[str, Any] = {"env_id": "", "options": {}, "tasks": []}  # in which the policies act
        self.watched: Callable[[int], dict[str, np.ndarray]] | None = None
        self.afterwards: Callable[[], None] | None = None  # what is left to do when the run is finished
        self.agent: Agent | None = None
        self.looked_at: tuple[dict[str, float], Tensor] | None = None  # what may not change until the first checkpoint
        self.adapts = False  # whether the policy learns from prepared data, and `Dataset.adapt` must adapt it
        self.memory: dict[str, Stateful] = {}
        self.kept: tuple[str, ...] = ()
        self.restored = False
        self.final = False  # whether the checkpoint that was restored is a final one

        self.folder = RunFolder(args, algorithm, identity(args, algorithm, chosen, self.device.type), self.facts)
        self.tables = Tables(self.folder, self.keys)

    # -- for scripts --------------------------------------------------------------------------------------------------

    def environments(
        self,
        envs_per_run: int = 1,
        *,
        timed: bool = False,
        images: bool = False,
        shown: dict[str, Any] | None = None,
        **options: Any,
    ) -> SeededEnvs:
        """`envs_per_run` environments of --env-id for each run to learn in; it is evaluated in others of this id.

        Both are made with the options of --env-option. The policy that is evaluated also gets the time in the episode
        if it is `timed`. `shown` are options of the environment that change what it shows, and hold in evaluations too,
        which play whole games of Atari. A warning says if observations are images, unless the script takes `images`.
        """
        env_id, chosen, shown = self.given.env_id, self.given.env_options, shown or {}
        options |= shown
        if twice := next((name for name in chosen if name in options), None):
            raise UserError(f"--env-option {twice}: another argument of this script sets it, see --help")
        limit = {name: options[name] for name in ("max_episode_steps",) if name in options}
        whole: dict[str, Any] = {"episodic_life": False} if is_game(env_id) else {}
        same = shown | chosen | whole
        options |= chosen | {"actions": self.given.ACTIONS, "threads": self.given.threads or None}
        check_options(env_id, chosen)
        with env_errors(env_id):
            envs = SeededEnvs(env_id, self.seeds, envs_per_run, self.device, **options)
        if len(shape := envs.task.obs_shape) == 3 and not images:
            warn(f"{env_id} shows images {list(shape)}, which this script takes as {envs.obs_size:,} unscaled numbers")
        self.learn_from(envs)
        if self.given.eval_episodes:
            self.evaluate_in(env_id, same, timed)
        else:
            self.acts_in(env_id, limit | same)
        return envs

    def learn_from(self, source: Source) -> None:
        """Counts the episodes of environments or a series, and makes their state a part of the checkpoints."""
        self.source = source

    def acts_in(self, env_id: str, options: dict[str, Any], tasks: Sequence[str] = ()) -> None:
        """Notes the environment in which the policies act, for those who use them after training."""
        self.environment = as_json({"env_id": env_id, "options": options, "tasks": tasks})

    def evaluate_in(self, env_id: str, options: dict[str, Any], timed: bool = False) -> None:
        """Makes the environments to evaluate in; policies for tables are evaluated exactly, without episodes."""
        self.acts_in(env_id, options)
        with env_errors(env_id):
            make = maker(env_id, self.given.threads or None, **options)
            if env_id.startswith(TABULAR):
                self.evaluator = TableEvaluator(make(1), self.runs, self.device, timed=timed)
            else:
                self.evaluator = Evaluator(make, self.seeds, self.given.eval_episodes, self.device, timed=timed)

    def evaluate_goals(self, env_id: str, tasks: Sequence[str], options: dict[str, Any]) -> None:
        """Makes the environments of all tasks of an id with goals, for the score "success"."""
        self.acts_in(env_id, options, tasks)
        with env_errors(env_id):
            make = partial(make_goal_vec, env_id, threads=self.given.threads or None, **options)
            episodes = self.given.eval_episodes
            self.evaluator = Evaluator(make, self.seeds, episodes, self.device, tasks=tasks, goals=True)

    def watch(self, values: Callable[[int], dict[str, np.ndarray]]) -> None:
        """From now on, logs what a function of the step gives, values [R] or NaN, at every evaluation."""
        self.watched = values

    def compare_values(self, predict: PredictValues, discount: float | PerRun) -> None:
        """From now on, logs `value_predicted` and `value_observed` at every evaluation: see `Evaluator.values`.

        They come from one episode of each run with the exploring policy; their difference is the critic's bias. For
        each observation, `predict` gives an action, its predicted value, and the bonus that the value counts at this
        state besides the reward, which is 0 without an entropy term. Without evaluations, there is no such episode.
        """
        if not self.given.eval_episodes:
            return
        discounts = np.array(numbers(discount, self.runs))
        make = maker(self.given.env_id, self.given.threads or None, **self.given.env_options)
        self.value_evaluator = evaluator = Evaluator(make, self.seeds, 1, self.device)
        names = ("value_predicted", "value_observed")
        self.watch(lambda step: dict(zip(names, evaluator.values(predict, discounts, step), strict=True)))

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The fast form of a function of tensors; see `algos.compile`."""
        return compiled(function, self.device, self.given.compile, self.given.eager, lambda: self._busy("compiling"))

    def compile_methods(self, agent: Agent, *names: str) -> None:
        """Replaces methods by their fast form, for an agent whose update calls them many times."""
        for name in names:
            setattr(agent, name, self.compiled(getattr(agent, name)))

    def capture_methods(self, agent: Agent, *names: str) -> None:
        """Replaces methods by a CUDA graph of what they do; without CUDA, nothing changes."""
        for name in names:
            setattr(agent, name, captured(getattr(agent, name), self.device, self.given.eager))

    def log(self, metrics: dict[str, Tensor]) -> None:
        """Adds up metrics [R] on the device; their means are read and written every `log_every` steps."""
        self.metrics.add(metrics)

    def export(self, name: str, content: Callable[[], bytes | None]) -> None:
        """Writes a file in the run's folder with every checkpoint, unless its content is None."""
        self.exports[name] = content

    def register(self, agent: Agent, *, keep: tuple[str, ...] = (), **memory: Stateful) -> None:
        """Registers what checkpoints hold: the agent, and `memory`, which is all else that has to go on after a kill.

        The final checkpoint holds the agent and those parts of the memory that `keep` names. Raises UserError if the
        disk, or on CUDA the CPU's memory, lacks room for checkpoints, or if no layer is large enough for bfloat16, and
        ValueError for an agent of other arguments or seeds than the run's, or of arguments that cannot be stored.
        """
        if agent.args is not self.args or agent.seeds != list(self.seeds):
            raise ValueError("the agent must be made with run.args and run.seeds, in which each run has its own values")
        agent.check()
        self.looked_at = plain_numbers(agent), torch.get_rng_state()
        for name, value in description(agent)["args"].items():
            try:
                json.dumps(value)
            except TypeError:
                raise ValueError(f"{flag(name)}: a policy's file cannot hold {value!r} as JSON") from None
        self.agent, self.memory, self.kept = agent, memory, keep
        if self.given.bf16:
            if not use_bf16(agent, self.in_bf16):
                raise UserError(f"--bf16 would change nothing: no hidden layer of an MLP has {LARGE:,} weights or more")
            if not self.in_bf16:
                warn(f"--bf16 changes nothing here: {without_bf16(self.device)}")
        if idle := self.given.without_effect():
            default: dict[str, Any] = {f.name: f.default for f in fields(self.given) if f.name in idle}
            plain = replace(self.given, **default)
            for name in (name for name in idle if getattr(self.given, name) != getattr(plain, name)):
                warn(f"{flag(name)} changes nothing {idle[name]}")
        size = sum(tensor.nbytes for tensor in agent.state_dict().values())
        size += sum(getattr(part, "nbytes", 0) for part in memory.values())
        self.folder.check_space(size)
        if self.device.type == "cuda":
            check_room(size, "a checkpoint, which is copied to the CPU's memory,", self.runs, torch.device("cpu"))
        if (before := getattr(self.given, "learning_starts", 0)) and before >= self.given.total_steps:
            total = f"--total-steps {self.given.total_steps:,} ends before --learning-starts {before:,}"
            warn(f"{total}, so nothing is learned")

    def took(self, steps: np.ndarray, stopped: np.ndarray) -> None:
        """Counts steps [R] of an iteration in which runs do different numbers of them; see `steps`.

        Runs that have `stopped` [R] do no more, and count as if they had done all.
        """
        going = self.done < self.given.total_steps
        self.taken += np.where(going, steps, 0)
        self.done += np.where(going, steps, 0)
        self.done[stopped] = np.maximum(self.done[stopped], self.given.total_steps)

    def steps(self, policy: Act | None = None, stride: int = 1) -> Iterator[int]:
        """Begins each iteration by yielding the number of steps that each run will have done after it, `stride` more.

        With a stride of 0, runs do different numbers of steps, which the script counts with `took`; a run that has done
        all of them is frozen, and the others go on.

        Around the iterations, it evaluates `policy` (obs [R, B, O] -> action [R, B, A]), logs, writes checkpoints,
        resumes, and ends the run: after the last step, on SIGINT and SIGTERM (exit code 130), and when all runs have
        diverged (exit code 3). An evaluation takes place after the iteration that reaches its step, and is recorded at
        that step, even if an iteration of many steps goes beyond it; with --stop-when-solved, where the number of steps
        to a solution is what is asked for, at the step that the run has really done.
        """
        if self.evaluator and policy is None:
            raise ValueError("give run.steps the policy to evaluate, or take --eval-episodes 0")
        if self.adapts and hasattr(self.agent, "policy") and not isinstance(policy, Adapted):
            raise ValueError("give run.steps the policy as data.adapt makes it: it learned from prepared data")
        self._export_policy(policy)
        if self.folder.finished:
            self.threads.restore()
            self.tables.read(self.done.tolist(), self.step, self.phases)  # refuses damaged tables
            self.say(f"{self.folder.path} is finished already")
            if self.afterwards:
                self.say(f"no video is made any more: python -m benchmarks.watch {self.folder.path} films its policies")
            if FILE in self.exports and not (self.folder.path / FILE).exists():  # its run was of an earlier version
                self._export_late()
            if len(self.folder.earlier["diverged"]) == self.runs:
                raise SystemExit(3)
            return
        args = self.given
        self._warn_of_iterations(stride)
        with self._working(args.total_steps, self.step) as progress:
            progress.update(self.step - progress.n)
            if self.step == 0 and self.evaluator and not self.tables.eval_rows:
                self._evaluate(policy, [0] * self.runs)
            while self.step < args.total_steps and len(self.diverged) < self.runs:
                before, done, started = self.step, self.done.copy(), time.perf_counter()
                yield before + stride
                going = done < args.total_steps
                self.done[going] += stride
                self.taken[going] += stride
                self.step = self._slowest()
                last = self.step >= args.total_steps
                self._after_iteration()
                if logs := last or due(args.log_every, before, self.step):
                    wait(self.device)  # what it has been told to do belongs to these steps
                started = self._count_seconds(started)
                self._close(done)
                if logs:
                    self._flush(self.step)
                    self.step = self._slowest()  # for a run that was just seen to diverge, nobody waits
                self._count_seconds(started)
                progress.update(self.step - before)
                self._report_progress()
                reached = self._reached(done)
                if any(reached):
                    self._evaluate(policy, reached)
                    if args.stop_when_solved:
                        self._stop_solved(reached)
                        self._close(done)
                        if self.step >= args.total_steps and not last:
                            self._flush(self.step)
                self._freeze_finished(done)
                self._pause(not last and self._save_due(due(args.checkpoint_every, before, self.step)))
            self._finish(policy)

    def _warn_of_iterations(self, stride: int) -> None:
        """Warns where evaluations come later than at the steps by which they are recorded."""
        total, every = self.given.total_steps, self.given.eval_every
        beyond = -total % max(stride, 1)
        if beyond > 0.01 * total and not self.given.stop_when_solved:  # with it, steps are those really done
            end = f"the last one ends at {total + beyond:,}"
            warn(f"an iteration has {stride:,} steps, and {end}: the scores there count as those of step {total:,}")
        if self.evaluator and every < stride:
            warn(f"an iteration has {stride:,} steps, and policies are scored after one, not every {every:,} steps")

    def phase(self, name: str, total: int, log_every: int = 1, checkpoint_every: int = 10) -> Iterator[int]:
        """Works like `steps`, but counts iterations, for a part of the training before the steps.

        It has a clock, a progress bar and metrics of its own (`name/metric` in train.parquet, where steps are these
        iterations), and no evaluation. It ends after `total` iterations, or by `end_phase`; a run that is resumed goes
        on in the phase in which it stopped.
        """
        if self.folder.finished:
            return
        with self._working(total, self.phases.get(name, 0), name) as progress:
            done = self.phases.setdefault(name, 0)
            progress.update(done - progress.n)
            while done < total and name not in self.over and len(self.diverged) < self.runs:
                started = time.perf_counter()
                yield done + 1
                done = self.phases[name] = done + 1
                if done >= total and name not in self.over:
                    self.over.append(name)
                self._after_iteration()
                started = self._count_seconds(started, "phase_seconds")
                if name in self.over or done % log_every == 0:
                    self._flush(done, f"{name}/")
                self._count_seconds(started, "phase_seconds")
                progress.update(1)
                self._tell_progress(f"{name}, iteration {done:,}")
                self._pause(self._save_due(done % checkpoint_every == 0, at_once=name in self.over))

    def end_phase(self, name: str) -> None:
        """Ends the present phase, the one of this name, after this iteration."""
        if name not in self.phases:
            raise ValueError(f"there is no phase {name!r} to end")
        self.over.append(name)

    def say(self, line: str) -> None:
        """Prints a line, unless the run is quiet."""
        if not self.given.quiet:
            tqdm.write(line)

    # -- the loop -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _working(self, total: int, done: int, unit: str = "steps") -> Iterator[tqdm]:
        """Claims the folder, takes signals, and loads the last checkpoint."""
        hidden = self.given.quiet or not sys.stderr.isatty()
        style: dict[str, Any] = {"disable": hidden, "smoothing": 0.05, "mininterval": 0.5}
        with (
            self.folder.claimed(),
            self.signals,
            self.threads,
            tqdm(total=total, initial=done, unit=f" {unit}", **style) as self.progress,
        ):
            if not self.restored:
                self.folder.earlier = self.folder.configuration()
                self._restore()
                self.restored = True
                self.save_by = time.monotonic() + LONGEST
            yield self.progress

    def _after_iteration(self) -> None:
        if self.device.type == "cpu":
            self.threads.poll()
        if self.frozen:
            torch._foreach_copy_(self.frozen, self.frozen_values)
        if self.source:
            ended = self.source.take_ended()
            self.episodes += ended
            if not self.evaluator:
                self.scored += ended

    def _count_seconds(self, since: float, clock: str = "seconds") -> float:
        """Adds the time since then to a clock; gives the present time."""
        now = time.perf_counter()
        setattr(self, clock, getattr(self, clock) + now - since)
        return now

    def _save_due(self, reached: bool, at_once: bool = False) -> bool:
        """Whether to write a checkpoint: its steps are `reached`, the last one is too old, or it comes `at_once`."""
        now, waits = time.monotonic(), self.save_waits or reached
        due_now = at_once or now > self.save_by or (waits and now >= self.save_from)
        self.save_waits = waits and not due_now
        return due_now

    def _pause(self, checkpoint: bool) -> None:
        """Between two iterations: writes a checkpoint if one is due, and ends if a signal came."""
        if self.signals.came:
            self._save("interrupted")
            self.say(f"interrupted at step {self.step:,}; continue with --resume")
            raise SystemExit(130)
        if checkpoint:
            self._save("running")

    def _flush(self, step: int, prefix: str = "") -> None:
        """Reads the metrics from the device and writes them down."""
        self._find_diverged()
        self._add_metrics(range(self.runs), self.metrics.means(), step, prefix)
        self.metrics.clear()
        self.episodes.clear()

    def _close(self, before: np.ndarray) -> None:
        """Writes down the last metrics of the runs that came to their end in this iteration, if others have not.

        What they do from now on is undone after each iteration.
        """
        total = self.given.total_steps
        ended = [int(run) for run in np.flatnonzero((before < total) & (self.done >= total)) if run not in self.closed]
        if ended and self.step < total:
            self._find_diverged()
            if self.metrics.sums or self.episodes:  # otherwise they were written down in this iteration
                self._add_metrics(ended, self.metrics.means(), self.step)
            self.closed |= set(ended)

    def _add_metrics(self, runs: Iterable[int], means: dict[str, np.ndarray], step: int, prefix: str = "") -> None:
        """Adds the means of some runs, and those of the episodes that ended, to the table."""
        ended: list[list[Episode]] = [[] for _ in self.seeds]
        for episode in self.episodes:
            ended[episode.run].append(episode)
        for run in runs:
            if run in self.diverged or run in self.closed:
                continue
            row = {prefix + name: float(values[run]) for name, values in means.items()}
            if ended[run]:
                row[f"{prefix}episode_return"] = float(np.mean([episode.total for episode in ended[run]]))
                row[f"{prefix}episode_length"] = float(np.mean([episode.length for episode in ended[run]]))
            row[f"{prefix}seconds"] = self.phase_seconds if prefix else self.seconds
            self.tables.add_metrics(run, step, row)

    def _find_diverged(self) -> None:
        """Marks and freezes the runs that have a metric which is not finite, unless they had come to their end."""
        for run, metric in self.metrics.bad_runs().items():
            if run not in self.diverged and run not in self.closed:
                self._mark_diverged(run, self.step, metric)

    def _mark_diverged(self, run: int, step: int, what: str) -> None:
        """Notes the step at which a divergence was noticed, by something that was not finite, and freezes the run."""
        self.diverged[run] = step
        self._freeze(run)
        warn(f"{self.name_of(run)} diverged before step {step:,}: {what} is not finite")

    def _freeze(self, run: int) -> None:
        """Keeps a run's part of the agent as it is now; the run axis comes first in each of its tensors."""
        assert self.agent
        for tensor in self.agent.state_dict().values():
            if tensor.dim():
                self.frozen.append(tensor[run])
                self.frozen_values.append(tensor[run].clone())

    def _reached(self, before: np.ndarray) -> list[int | None]:
        """The step at which each run is to be evaluated now, None for none, after it had done `before` [R] steps."""
        total, every = self.given.total_steps, self.given.eval_every
        exact = self.given.stop_when_solved
        reached: list[int | None] = []
        for was, now, taken in zip(before.tolist(), self.done.tolist(), self.taken.tolist(), strict=True):
            if was >= total or not (now >= total or due(every, was, now)):
                reached.append(None)
            else:
                reached.append(taken if exact else total if now >= total else now // every * every)
        return reached

    def _stop_solved(self, reached: Sequence[int | None]) -> None:
        """With --stop-when-solved, ends the runs that solve the table by the scores that they `reached` just now.

        They count as if they had done all steps, and these scores are recorded at the last step, too.
        """
        total = self.given.total_steps
        assert isinstance(self.evaluator, TableEvaluator)
        for run, step in enumerate(reached):
            if step is None or run in self.diverged:
                continue
            scores = self.tables.last_scores[run]
            if scores[0].total >= self.evaluator.solved:
                self.done[run] = max(self.done[run], total)
            if self.done[run] >= total > step:
                self.tables.add_scores(run, total, scores)
        self.step = self._slowest()

    def _slowest(self) -> int:
        """The steps of the run that has done the fewest, diverged ones aside, for which no others wait."""
        if 0 < len(self.diverged) < self.runs:
            return int(np.delete(self.done, list(self.diverged)).min())
        return int(self.done.min())

    def _freeze_finished(self, before: np.ndarray) -> None:
        """Freezes the runs that have done all their steps, if others have not."""
        total = self.given.total_steps
        if self.step < total:
            for run in np.flatnonzero((before < total) & (self.done >= total)):
                self._freeze(int(run))

    def _evaluate(self, policy: Act | None, steps: Sequence[int | None]) -> None:
        """Evaluates a policy, and records the scores of each run at its step, or not at all where that is None.

        A run with a return that is not finite has diverged.
        """
        started = time.perf_counter()
        self._find_diverged()
        scores: list[list[Score]] = [[] for _ in self.seeds]
        if self.evaluator and policy:
            with self._busy("evaluating"):
                scores = self.evaluator(policy, [step or 0 for step in steps])
        else:
            for episode in self.scored:
                scores[episode.run].append(Score("", episode.total, episode.length, None))
            self.scored = [e for e in self.scored if steps[e.run] is None and e.run not in self.closed]
        means = []
        for run, step in enumerate(steps):
            episodes = scores[run] or self.tables.last_scores.get(run)
            if step is None or run in self.diverged or not episodes:
                continue
            if not np.isfinite([score.total for score in episodes]).all():
                self._mark_diverged(run, step, "a return")
                continue
            self.tables.add_scores(run, step, episodes)
            means.append(float(np.mean([self._value(score) for score in episodes])))
            numbers = {"eval/return": float(np.mean([score.total for score in episodes]))}
            if self.score_name != "return":
                numbers[f"eval/{self.score_name}"] = self.show(means[-1])
            self.tables.show(run, numbers, step)
        at = max(step or 0 for step in steps)
        for name, values in (self.watched(at) if self.watched else {}).items():
            for run, (value, step) in enumerate(zip(values, steps, strict=True)):
                if step is not None and run not in self.diverged and np.isfinite(value):
                    self.tables.add_metrics(run, step, {name: float(value)}, "eval")
        self._write_tables()
        if means:
            self._say_score(means, at)
        self.evaluation_seconds += time.perf_counter() - started

    def _write_tables(self) -> None:
        """Writes the tables after an evaluation, but not after each if this takes over a second; checkpoints do too."""
        if (began := time.monotonic()) >= self.write_from:
            with self.folder.writing():
                self.tables.write()
            took = (now := time.monotonic()) - began
            self.write_from = now + (RARE * took if took > 1 else 0.0)

    def _value(self, score: Score) -> float:
        """What an episode counts in means over episodes: its return, or 100 for success and 0 for failure."""
        return 100.0 * bool(score.success) if self.score_name == "success" else score.total

    def _say_score(self, means: list[float], step: int) -> None:
        """Prints the mean score over runs, and the range."""
        digits = DIGITS.get(self.score_name, 1)
        mean, low, high = (f"{self.show(v):.{digits}f}" for v in (np.mean(means), min(means), max(means)))
        self.shown = f"{self.score_name} {mean}"
        self.progress.set_postfix_str(self.shown)
        runs = "seeds" if len(self.settings) == 1 else "runs"
        spread = f" ({len(means)} {runs}: {low} to {high})" if len(means) > 1 else ""
        self.say(f"{self.algorithm:<7} step {step:>9,}  {self.score_name} {mean:>9}{spread}")

    def _finish(self, policy: Act | None) -> None:
        """Writes the final checkpoint, and then what can be made from it again: a kill in between loses nothing."""
        if self.final:  # it is the one that was restored
            self.folder.checkpoints.prune(1)
            self.peak_bytes = max(self.peak_bytes, self.folder.size())
        else:
            self._save("running", final=True)
        summary = Summary(self.algorithm, self.given.task, self.given.STEPS, self.score_name, self.show)
        frame = self.tables.eval_frame()
        label = "the deterministic policy" if self.evaluator else "training episodes"
        if self.afterwards and self.evaluator and policy and not self.evaluator.ways:  # none since the restart
            self.evaluator(policy, [self.given.total_steps] * self.runs)
        with self.folder.writing():
            if len(frame):
                curve = self.folder.path / "curve.png"
                summary.draw(frame, self.tables.keys, self.diverged, f"return of {label}", curve)
            if self.afterwards:
                with interruptible():
                    self.afterwards()
            (self.folder.path / "progress.json").unlink(missing_ok=True)
            for part in (self.tables, self.source, self.evaluator, self.value_evaluator):
                if part:
                    part.close()
            self._write_config("diverged" if self.diverged else "finished")  # last: nothing is left to do then
        for line in summary.lines(frame, self.tables.keys, self.taken.tolist(), self.diverged):
            self.say(line)
        if self.source and not self.evaluator and not len(frame):
            self.say("no episode ended, so that there is no score")
        rate, runs = self.taken.mean() / max(self.seconds, 1e-9), "seeds" if len(self.settings) == 1 else "runs"
        each = f" for each of {self.runs} {runs}" if self.runs > 1 else ""
        made = "tables, curve and checkpoint" if len(frame) else "tables and checkpoint"
        self.say(f"{rate:,.0f} steps/s{each}; {made} in {self.folder.path}")
        if len(self.diverged) == self.runs:
            print("error: all runs diverged", file=sys.stderr)
            raise SystemExit(3)

    def name_of(self, run: int) -> str:
        """A run in words: `seed 3`, or `seed 3 with tau=0.01`."""
        return run_name(self.keys[run])

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Stateful]:
        """All that has to go on after a kill."""
        assert self.agent, "register what checkpoints hold with run.register(agent) first"
        source: dict[str, Stateful] = {"envs": self.source} if self.source and self.source.resumable else {}
        return {"agent": self.agent, **self.memory, "random": self.random, "metrics": self.metrics, **source}

    def _save(self, status: str, final: bool = False) -> None:
        """Writes tables, checkpoint and configuration; a final checkpoint has only the agent and the parts to keep.

        Tables and exports come first: they are complete where a final checkpoint is.
        """
        started, parts = time.monotonic(), self._parts()
        if final:
            parts = {name: part for name, part in parts.items() if name in ("agent", *self.kept)}
        names = ("diverged", "episodes", "scored", *RESTORED)
        values = {name: getattr(self, name) for name in names}
        values |= {"final": final, "done": self.done.tolist(), "taken": self.taken.tolist()}
        values |= {"evaluation_rows": len(self.tables.eval_rows), "train_rows": len(self.tables.train_rows)}
        with self.folder.writing():
            self.tables.write()
            self._write_exports()
            self.folder.checkpoints.save(self.step + sum(self.phases.values()), parts, values, 1 if final else 2)
            self.peak_bytes = max(self.peak_bytes, self.folder.size())
            self._write_config(status)
        self._look_again()
        took = (now := time.monotonic()) - started
        self.save_by = now + max(LONGEST, 50 * took)
        self.save_from = now + (RARE * took if took > BRIEF else 0.0)

    def _look_again(self) -> None:
        """Warns at the first checkpoint of what learning has changed and none holds."""
        if not (self.agent and self.looked_at):
            return
        (numbers, state), self.looked_at = self.looked_at, None
        self.agent.check()
        now = plain_numbers(self.agent)
        if changed := sorted(name for name, value in now.items() if str(numbers.get(name)) != str(value)):
            warn(
                f"no checkpoint holds plain numbers of the agent, of which these have changed: {', '.join(changed)}; "
                "unless they follow from the step, register them as buffers"
            )
        if not torch.equal(state, torch.get_rng_state()):
            warn(
                "something draws from torch's own generator, whose state no checkpoint holds and which all runs share: "
                "take random numbers from run.random"
            )

    def _export_policy(self, policy: Act | None) -> None:
        """From now on, writes the policies of an agent that has some with every checkpoint."""
        agent: Any = self.agent
        folder = self.folder
        learned_by = folder.earlier.get("script_digest") if folder.finished else folder.script_digest
        if policy and not hasattr(agent, "policy"):
            warn(f"the agent has no method named policy, so that no {FILE} is written for use after training")
        if hasattr(agent, "policy"):
            place = self.environment
            if (seen := agent.policy_task) is not agent.task:
                place = place | {"options": place["options"] | {"stack": seen.obs_size // agent.task.obs_size}}

            def content() -> bytes:
                acts = policy or agent.policy
                return policy_file(agent, acts, self.algorithm, place, self.step, list(self.diverged), learned_by)

            self.export(FILE, content)
            if not (folder.finished or self.diverged):
                with torch.random.fork_rng([]):  # as if nothing had been tried
                    check_policies(agent, content())

    def _export_late(self) -> None:
        """Writes the exports of a finished run from its checkpoint."""
        with self.folder.claimed(), self.folder.writing():
            values, _ = self.folder.checkpoints.load(self._parts(), self.runs)
            if not values:
                lost = ", ".join(self.exports)
                warn(f"{self.folder.path} has lost its checkpoint, so that {lost} cannot be made; its tables are whole")
                return
            self.diverged = {int(run): step for run, step in values["diverged"].items()}
            self.done[:] = values["done"]
            self.step = self._slowest()
            self._write_exports()
            self.say(f"wrote {', '.join(self.exports)} from its checkpoint")

    def _write_exports(self) -> None:
        for name, content in self.exports.items():
            if (found := content()) is not None:
                write_atomically(self.folder.path / name, found)

    def _restore(self) -> None:
        """Goes on from the last checkpoint, if there is one and --resume asks for it."""
        values, complaints = self.folder.checkpoints.load(self._parts(), self.runs) if self.given.resume else (None, [])
        for complaint in complaints:
            warn(complaint)
        if not values and (step := self.folder.earlier.get("step")):
            raise UserError(
                f"{self.folder.path} has come to step {step:,} and has no checkpoint: remove it and start again"
            )
        if values:
            self.final = values["final"]
            for name in RESTORED:
                setattr(self, name, values.get(name, 0.0))  # earlier checkpoints have no phase_seconds
            self.done[:], self.taken[:] = values["done"], values["taken"]
            self.diverged = {int(run): step for run, step in values["diverged"].items()}
            self.step = self._slowest()
            self.closed = set(map(int, np.flatnonzero(self.done >= self.given.total_steps)))
            for run in self.diverged:
                self._freeze(run)
            self.episodes, self.scored = ([Episode(*e) for e in values[name]] for name in ("episodes", "scored"))
            self._freeze_finished(np.zeros_like(self.done))
            self.tables.read(self.done.tolist(), self.step, self.phases)
            kept = values.get("evaluation_rows")
            if self.step == 0:  # the first evaluation follows the phases, and is made again
                self.tables.cut(kept, values.get("train_rows"))
            if kept is not None and kept != len(self.tables.eval_rows):
                raise UserError(
                    f"{self.folder.path / 'eval.parquet'} is damaged: it has {len(self.tables.eval_rows)} rows up to "
                    f"the last checkpoint instead of {kept}; remove the run's folder and start again"
                )
            if self.source and not self.source.resumable and not values["final"]:
                self.source.reset("resume", self.step)
                warn(
                    f"the state of {self.given.env_id} cannot be saved: its episodes start anew, and the run "
                    "ends otherwise than without the interruption"
                )
            now, before = device_name(self.device, self.threads.most), self.folder.earlier.get("device")
            if self.device.type == "cuda" and before and now != before and not self.final:
                warn(f"the run was on {before} until now: on {now}, it ends otherwise than it would have there")
            self.say(f"resumed at step {self.step:,}")
        with self.folder.writing():
            self._write_config("running")

    def _write_config(self, status: str) -> None:
        args = self.given
        config = {
            "task": args.task,
            "env_id": args.env_id,
            "score": self.score_name,
            "variant": args.variant,
            "steps": args.STEPS,
            "status": status,
            "step": self.step,
            "taken": self.taken.tolist(),
            "seconds": round(self.seconds, 3),
            "phase_seconds": round(self.phase_seconds, 3),
            "evaluation_seconds": round(self.evaluation_seconds, 3),
            "peak_bytes": self.peak_bytes,
            "varied": list(self.settings[0]),
            "settings": self.settings,
            "diverged": [self.keys[run] | {"step": step} for run, step in self.diverged.items()],
            "args": as_json(asdict(args)),
            "in_bf16": self.in_bf16,
            "device": device_name(self.device, self.threads.most),
        }
        self.folder.write_config(config)

    def _report_progress(self) -> None:
        """Tells how far the steps are."""
        self._tell_progress("")

    def _tell_progress(self, phase: str) -> None:
        """Writes every two seconds how far the run is, for the process that started it."""
        if (now := time.monotonic()) - self.reported > 2:
            self.reported = now
            self._write_progress(phase)

    def _write_progress(self, phase: str) -> None:
        progress = {"step": self.step, "total": self.given.total_steps, "score": self.shown, "phase": phase}
        write_progress(self.folder.path, progress)

    @contextlib.contextmanager
    def _busy(self, what: str) -> Iterator[None]:
        """Says on the bar, and to the process that started the run, why no steps are done for a while."""
        self.progress.set_postfix_str(what)
        self._write_progress(what)
        yield
        self.progress.set_postfix_str(self.shown)


def without_bf16(device: torch.device) -> str:
    """Why hidden layers stay in float32 on a device in spite of --bf16; empty if they do not."""
    if device.type != "cpu":
        return "it is for CPUs, and a GPU may round factors of products to TF32 with it and without"
    return "" if multiplies_bf16() else "this processor has no instructions for bfloat16, so all layers stay in float32"


def plain_numbers(agent: Agent) -> dict[str, float]:
    """The numbers of Python among an agent's attributes."""
    return {name: value for name, value in vars(agent).items() if type(value) in (int, float)}


def due(every: int, before: int, now: int) -> bool:
    """Whether there is a multiple of `every` above `before` and up to `now`."""
    return now // every > before // every
