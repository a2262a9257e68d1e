"""The files that runs store, each with one schema, by which it is checked wherever it is read.

A JSON file may have more entries than its schema, and a table more columns; those with a default may be absent, as they
are in files of earlier versions. `benchmarks.stored` has the files of sweeps and reports.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import pyarrow
from pyarrow.parquet import ParquetFile
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import from_json
from safetensors import SafetensorError

from algos.errors import UserError

Whole = Annotated[int, Field(ge=0, lt=2**63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Status = Literal["running", "interrupted", "finished", "diverged"]
FINISHED = ("finished", "diverged")


# -- JSON --------------------------------------------------------------------------------------------------------------


class Stored(BaseModel):
    """The entries of a JSON file that are read."""

    model_config = ConfigDict(extra="allow", strict=True)


class Arguments(Stored):
    """The arguments of a run that reports show or compare."""

    env_option: list[str] = []
    total_steps: Whole | None = None
    eval_episodes: Whole | None = None
    eval_every: Whole | None = None


class Identity(Arguments):
    """Everything that determines the results of a run."""

    seeds: list[Whole] = []
    buffer_size: Annotated[int, Field(ge=1)] = 1


class Facts(Stored):
    """Facts that determine the results besides the arguments."""

    evaluated_in: str | None = None
    digest: str | None = None
    table: str | None = None
    dataset_digest: str | None = None
    transitions: Whole = 0
    low: Finite | None = None
    high: Finite | None = None


class Divergence(Stored):
    """The seed, the setting and the step of a run that diverged."""

    seed: Whole
    step: Whole


class Origin(Stored):
    """Where the first steps of a run come from, which a process with other code or on another machine continued."""

    until: Whole
    commit: str | None = None
    script_digest: str | None = None
    environment_digest: str | None = None
    versions: dict[str, str] | None = None
    device: str | None = None


class Config(Stored):
    """config.json of a run, and each of a report's sources.json."""

    algorithm: str
    env_id: str
    variant: str
    status: Status
    task: str = ""  # early runs have none
    score: str = "return"
    steps: str = "environment steps"
    step: Whole = 0
    seeds: list[Whole] = []
    taken: list[Whole] = []  # steps of each run
    seconds: Finite | None = None
    phase_seconds: Finite = 0.0  # early runs count them with the others
    evaluation_seconds: Finite = 0.0
    peak_bytes: Finite = 0.0
    varied: list[str] = []
    settings: list[dict[str, Finite]] | None = None
    setting: dict[str, Finite] = {}
    # early runs have the step of each seed
    diverged: list[Divergence] | dict[Annotated[str, Field(pattern=r"^\d{1,18}$")], Whole] = []
    identity: Identity = Identity()
    args: Arguments = Arguments()
    facts: Facts = Facts()
    versions: dict[str, str] = {}
    folder: str = ""
    in_bf16: bool | None = None  # whether hidden layers were in bfloat16; early runs do not tell
    device: str | None = None
    commit: str | None = None
    script_digest: str | None = None
    environment_digest: str | None = None
    before: list[Origin] = []
    date: str = ""

    @model_validator(mode="after")
    def names_fit(self) -> "Config":
        rows = [*(self.settings or [{}]), *(row.model_dump() for row in self.diverged if isinstance(row, Divergence))]
        if lacking := next((name for row in rows for name in self.varied if name not in row), None):
            raise ValueError(f"{lacking!r} varies, and has no value in settings or diverged")
        return self


class CheckpointValues(Stored):
    """The JSON file of a checkpoint."""

    sha256: str
    final: bool
    done: list[Whole]
    taken: list[Whole]
    seconds: Finite
    phase_seconds: Finite = 0.0
    evaluation_seconds: Finite
    peak_bytes: Whole
    diverged: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Whole]
    episodes: list[tuple[Whole, float, Whole]]
    scored: list[tuple[Whole, float, Whole]]
    phases: dict[str, Whole]
    over: list[str]
    evaluation_rows: Whole | None = None  # earlier checkpoints do not count rows
    train_rows: Whole | None = None

    @model_validator(mode="after")
    def numbers_fit(self) -> "CheckpointValues":
        runs = len(self.done)
        known = [*map(int, self.diverged), *(episode[0] for episode in (*self.episodes, *self.scored))]
        if not runs or len(self.taken) != runs or max(known, default=0) >= runs:
            raise ValueError("done, taken, diverged, episodes and scored are not of the same runs")
        return self


class Progress(Stored):
    """progress.json of a run that goes on."""

    step: Whole
    score: str  # name and mean over runs at the last evaluation, or nothing
    phase: str = ""  # what goes on while no steps are done


def regular(path: Path) -> Path:
    """Gives back a path; raises ValueError for anything but a file, such as a pipe, whose end would never come."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a file")
    return path


def parsed(path: Path, kind: Any) -> Any:
    """The content of a JSON file as it is; raises ValueError, with the first fault, if it does not fit a schema."""
    data = regular(path).read_bytes()
    with first_fault():
        TypeAdapter(kind).validate_json(data, strict=True)
    return from_json(data)


def check(content: Any, kind: Any) -> None:
    """Raises ValueError, with the first fault, if what was read from JSON or TOML does not fit a schema."""
    with first_fault():
        TypeAdapter(kind).validate_python(content, strict=True)


@contextlib.contextmanager
def first_fault() -> Iterator[None]:
    """Turns all that a schema finds into a ValueError of the first fault."""
    try:
        yield
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise ValueError(f"{place}: {fault['msg']}" if place else fault["msg"]) from None


def read_json(path: Path, kind: Any) -> Any:
    """The content of a JSON file as it is; raises UserError if it cannot be read or does not fit a schema."""
    try:
        return parsed(path, kind)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from None


def find(folder: Path, name: str) -> list[Path]:
    """All files and links of this name in a folder and below it, in order, even links to nowhere.

    The folders `checkpoint` and `tensorboard` of a run, where nothing that is looked for lies, are passed over.
    """
    found = []
    for place, folders, files in os.walk(folder):
        if name in (*folders, *files):
            found.append(Path(place, name))
        if "config.json" in files:
            folders[:] = [own for own in folders if own not in ("checkpoint", "tensorboard")]
    return sorted(found)


def damaged(path: Path, reason: object) -> UserError:
    if isinstance(reason, FileNotFoundError):
        return UserError(f"{path} is missing")
    return UserError(f"{path} is damaged: {reason}")


# -- tables ------------------------------------------------------------------------------------------------------------

KEYS = ("seed", "step", "episode", "task", "metric")  # name a row of eval.parquet or train.parquet, where they exist
KINDS = {
    "seed": "whole", "step": "whole", "episode": "whole", "episodes": "whole", "length": "whole",
    "task": "words", "algorithm": "words", "metric": "words", "goal": "words", "score": "words", "statistic": "words",
    "success": "truth",
}  # fmt: skip
EVAL = ("seed", "step", "return")
TRAIN = ("seed", "step", "metric", "value")
RULES = {"whole": "whole numbers from 0", "numbers": "numbers", "words": "words", "truth": "True or False"}


def fits(column: pd.Series, kind: str) -> bool:
    """Whether a column has values of one kind only; numbers may be NaN."""
    if kind == "words":
        return pd.api.types.infer_dtype(column, skipna=False) == "string" and bool((column != "").all())
    if kind == "truth":
        return bool(column.map(lambda value: value is None or isinstance(value, bool | np.bool_)).all())
    plain = isinstance(column.dtype, np.dtype)
    if kind == "numbers":
        return plain and column.dtype.kind in "iuf"
    return plain and column.dtype.kind in "iu" and bool(column.between(0, 2**63 - 1).all())


def checked(
    path: Path, table: pd.DataFrame, columns: Sequence[str], keys: Sequence[str], kinds: Mapping[str, str] = KINDS
) -> pd.DataFrame:
    """A table with its rows numbered anew.

    Raises UserError if it lacks one of these columns, if a value is not of its column's kind, or if two rows have the
    same `keys`, as far as the table has these. Columns without a kind hold numbers.
    """
    if not table.columns.is_unique:
        raise damaged(path, "two columns have the same name")
    if missing := [name for name in columns if name not in table]:
        raise damaged(path, f"it has no column {missing[0]!r}")
    for name in table:
        kind = kinds.get(name, "numbers" if name in columns else "")
        if kind and len(table) and not fits(table[name], kind):
            raise damaged(path, f"{name} must hold {RULES[kind]} only")
    known = [name for name in keys if name in table]
    if known and len(twice := table[table.duplicated(known)]):
        row = ", ".join(f"{name} {twice[name].iloc[0]}" for name in known)
        raise damaged(path, f"there are two rows for {row}")
    return table.reset_index(drop=True)


def read_parquet(path: Path) -> pd.DataFrame:
    """A table of a run as it is; raises UserError if it is damaged, for which each of its pages has a checksum."""
    try:
        data = pyarrow.BufferReader(regular(path).read_bytes())
        # Arrow's threads may abort or hold up a program when it ends (github.com/apache/arrow, issues 34314 and 50482)
        file = ParquetFile(data, pre_buffer=False, page_checksum_verification=True)
        return file.read(use_threads=False).to_pandas(use_threads=False)
    except Exception as error:  # pyarrow has many kinds for a damaged file
        raise damaged(path, error) from None


def read_table(path: Path, columns: Sequence[str], varied: Sequence[str] = ()) -> pd.DataFrame:
    """eval.parquet or train.parquet of a run, which has the columns EVAL or TRAIN and the varied hyperparameters.

    Raises UserError if it cannot be read or is damaged, and as `checked` does: KEYS name a row.
    """
    return checked(path, read_parquet(path), [*columns, *varied], [*varied, *KEYS])


def read_csv(
    path: Path, columns: Sequence[str], keys: Sequence[str] = (), kinds: Mapping[str, str] = KINDS
) -> pd.DataFrame:
    """A table of a report; raises UserError if it cannot be read, and as `checked` does."""
    words = [name for name, kind in kinds.items() if kind == "words"]  # a task may be called 7, or nan
    numbers = [name for name in columns if name not in words]
    missing = {name: ["", "nan", "NaN"] for name in numbers}
    try:
        table = pd.read_csv(
            regular(path),
            float_precision="round_trip",
            dtype=dict.fromkeys(words, str),
            keep_default_na=False,
            na_values=missing,
        )
    except (OSError, ValueError, OverflowError) as error:  # pandas' errors of parsing are ValueErrors
        raise damaged(path, error) from None
    if not isinstance(table.index, pd.RangeIndex):
        raise damaged(path, "rows have more values than there are columns")
    return checked(path, table, columns, keys, kinds)


# -- writing -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(place: str | Path, advice: str = "") -> Iterator[None]:
    """Turns an error of writing to a place into a UserError, to which `advice` is added."""
    try:
        yield
    except BrokenPipeError:  # of the terminal
        raise
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write to {place} ({error}){advice}") from None
