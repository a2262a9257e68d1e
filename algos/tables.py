"""The tables and TensorBoard files of a run, and the metrics that have not been written yet."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from algos import stored
from algos.errors import UserError
from algos.evaluate import Score
from algos.run_folder import RunFolder
from envs.cores import reserving

EPISODE = ("step", "task", "episode", "return", "length", "success")
METRIC = stored.TRAIN[1:]
OWN = ("episode_return", "episode_length", "seconds")  # metrics of the run itself


class Metrics:
    """Sums of the metrics of R runs, each [R], on the device since they were last cleared; part of the checkpoints."""

    def __init__(self, runs: int, device: torch.device):
        self.runs, self.device = runs, device
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, metrics: dict[str, Tensor]) -> None:
        """Adds metrics; raises ValueError for one that is no tensor with a number for each run, or one of OWN."""
        for name, value in metrics.items():
            if not isinstance(value, Tensor) or value.shape != (self.runs,):
                got = list(value.shape) if isinstance(value, Tensor) else repr(value)
                raise ValueError(f"the metric {name!r} must be a tensor [{self.runs}], one for each run, got {got}")
            if name in self.sums:
                self.sums[name] += value.detach()
                self.counts[name] += 1
                continue
            if name in OWN:
                raise ValueError(f"the metric {name!r} is one that every run has already: choose another name")
            kind = value.dtype if value.is_floating_point() else torch.float64  # the sum of booleans is their number
            self.sums[name], self.counts[name] = value.detach().to(kind, copy=True), 1

    def bad_runs(self) -> dict[int, str]:
        """The runs that have a metric which is not finite, each with the first one's name."""
        found: dict[int, str] = {}
        for name, metric in self.sums.items():
            for run in (~metric.isfinite()).nonzero().flatten().tolist():
                found.setdefault(run, name)
        return found

    def means(self) -> dict[str, np.ndarray]:
        """The mean [R] of each metric, on the host."""
        means = {name: (s / self.counts[name]).double().cpu().numpy() for name, s in self.sums.items()}
        return dict(sorted(means.items()))  # a checkpoint does not keep their order

    def clear(self) -> None:
        """Lets the sums start anew."""
        self.sums.clear()

    def state_dict(self) -> dict[str, Tensor]:
        return {f"{name}.{self.counts[name]}": value for name, value in self.sums.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.sums.clear()
        for key, value in state.items():
            name, _, count = key.rpartition(".")
            self.sums[name], self.counts[name] = value.to(self.device), int(count)


class Rows:
    """Rows of a table: only the newest are Python's objects, and the others in a frame, in a quarter of the memory."""

    def __init__(self, columns: list[str]):
        self.columns = columns
        self.new: list[tuple] = []
        self.before = pd.DataFrame(columns=columns)

    def __len__(self) -> int:
        return len(self.before) + len(self.new)

    def frame(self) -> pd.DataFrame:
        """All rows."""
        if self.new:
            new = pd.DataFrame(self.new, columns=self.columns)
            self.before = pd.concat([self.before, new], ignore_index=True) if len(self.before) else new
            self.new = []
        return self.before

    def replace(self, frame: pd.DataFrame) -> None:
        """Has these rows from now on."""
        self.before, self.new = frame[self.columns].reset_index(drop=True), []


class Tables:
    """eval.parquet, train.parquet and TensorBoard of R runs.

    `keys` name each run by its seed and its setting, and are the first columns of both tables. There is a
    column `task` if the environment has several tasks, and `success` if it tells success.
    """

    def __init__(self, folder: RunFolder, keys: list[dict[str, Any]]):
        self.folder, self.keys = folder, keys
        self.eval_rows, self.train_rows = (Rows([*keys[0], *columns]) for columns in (EPISODE, METRIC))
        self.phase_rows: list[tuple] = []  # those of phases that an earlier process wrote
        self.last_scores: dict[int, list[Score]] = {}  # the episodes by which each run was last scored
        self.writers: list[Any] = []

    def add_scores(self, run: int, step: int, scores: list[Score]) -> None:
        """Adds the episodes of an evaluation of one run."""
        key = tuple(self.keys[run].values())
        for number, score in enumerate(scores):
            row = (step, score.task, number, score.total, score.length, score.success)
            self.eval_rows.new.append((*key, *row))
        self.last_scores[run] = scores

    def add_metrics(self, run: int, step: int, metrics: dict[str, float], kind: str = "train") -> None:
        """Adds numbers of one run to train.parquet and, as `kind`/metric, to TensorBoard."""
        key = tuple(self.keys[run].values())
        self.train_rows.new += [(*key, step, name, value) for name, value in metrics.items()]
        self.show(run, {f"{kind}/{name}": value for name, value in metrics.items()}, step)

    def show(self, run: int, numbers: dict[str, float], step: int) -> None:
        """Adds numbers to TensorBoard only, as one record, because the file is opened anew for each.

        The first one takes away all numbers of an earlier process from its step on. Iterations of phases are steps to
        TensorBoard, so that their numbers are written once more.
        """
        with self.folder.writing():
            if not self.writers:
                self._open_writers(step)
            self.writers[run].add_summary(record(numbers), step)

    def _open_writers(self, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard.writer import FileWriter

        with reserving():  # each has a thread
            self.writers = [FileWriter(self.folder.path / "tensorboard" / folder_of_key(key)) for key in self.keys]
        for writer in self.writers:
            writer.add_event(Event(step=step, file_version="brain.Event:2"))
            writer.add_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
        places = {tuple(key.values()): writer for key, writer in zip(self.keys, self.writers, strict=True)}
        for *key, iteration, metric, number in self.phase_rows:
            if iteration >= step:
                places[tuple(key)].add_summary(record({f"train/{metric}": number}), iteration)

    def eval_frame(self) -> pd.DataFrame:
        """The evaluation episodes: seed, [hyperparameters], step, [task], episode, return, length, [success].

        Without episodes, it has all columns.
        """
        frame = self.eval_rows.frame()
        if frame.empty:
            return frame
        absent = [] if (frame["task"] != "").any() else ["task"]
        absent += [] if frame["success"].notna().any() else ["success"]
        return frame.drop(columns=absent)

    def write(self) -> None:
        """Writes both tables, and what TensorBoard still keeps in memory."""
        self.folder.write_table("eval.parquet", self.eval_frame())
        self.folder.write_table("train.parquet", self.train_rows.frame())
        for writer in self.writers:
            writer.flush()

    def read(self, done: list[int], until: int, phases: dict[str, int]) -> None:
        """Takes up the tables that an earlier process wrote, up to the iterations of each phase, and up to a step.

        Evaluations of a run are taken up to the steps that it has done [R].
        """
        varied = [name for name in self.keys[0] if name != "seed"]
        frame = self.folder.read_table("eval.parquet", (*stored.EVAL, "episode", "length"), varied)
        steps = {tuple(key.values()): step for key, step in zip(self.keys, done, strict=True)}
        of_run = list(frame[list(self.keys[0])].itertuples(index=False, name=None))
        if strange := set(of_run) - set(steps):
            key = dict(zip(self.keys[0], min(strange), strict=True))
            raise UserError(
                f"{self.folder.path / 'eval.parquet'} is damaged: it has rows of another run, {key}; remove the run's "
                "folder and start again"
            )
        frame = frame[frame["step"] <= np.array([steps[key] for key in of_run], int)]
        frame = frame.reindex(columns=self.eval_rows.columns)
        frame["task"] = frame["task"].fillna("")
        frame["success"] = frame["success"].astype(object).where(frame["success"].notna(), None)
        self.eval_rows.replace(frame)
        self._find_last_scores()
        frame = self.folder.read_table("train.parquet", stored.TRAIN, varied)
        until_of = [phases.get(name.partition("/")[0], until) for name in frame["metric"]]
        self.train_rows.replace(frame[frame["step"] <= np.array(until_of, int)])
        frame = self.train_rows.frame()
        of_phase = np.array([name.partition("/")[0] in phases for name in frame["metric"]], bool)
        self.phase_rows = list(frame[of_phase].itertuples(index=False, name=None))

    def cut(self, evaluation_rows: int | None, train_rows: int | None) -> None:
        """Keeps only the first rows of each table: so many, or all where the number is None."""
        for rows, count in ((self.eval_rows, evaluation_rows), (self.train_rows, train_rows)):
            rows.replace(rows.frame()[:count])
        self._find_last_scores()

    def _find_last_scores(self) -> None:
        frame, self.last_scores = self.eval_rows.frame(), {}
        runs = {tuple(key.values()): run for run, key in enumerate(self.keys)}
        last = frame[frame["step"] == frame.groupby(list(self.keys[0]))["step"].transform("max")]
        for *key, _, task, _, total, length, success in last.itertuples(index=False, name=None):
            self.last_scores.setdefault(runs[tuple(key)], []).append(Score(task, total, length, success))

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


def record(numbers: dict[str, float]) -> Any:
    """Numbers as TensorBoard takes them."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()])


def setting_name(key: dict[str, Any]) -> str:
    """A setting in words: `expectile=0.7, temperature=3`; empty where nothing varies."""
    return ", ".join(f"{name}={value:.12g}" for name, value in key.items() if name != "seed")


def run_name(key: dict[str, Any]) -> str:
    """A run in words: `seed 3`, or `seed 3 with tau=0.01`."""
    setting = setting_name(key)
    return f"seed {key['seed']}" + (f" with {setting}" if setting else "")


def folder_of_key(key: dict[str, Any]) -> Path:
    """The folder of one run's TensorBoard files."""
    name = setting_name(key).replace(", ", ",")
    return Path(name) / f"seed_{key['seed']}" if name else Path(f"seed_{key['seed']}")
