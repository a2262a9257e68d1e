"""Time series for prediction: the series `seasons`, series in CSV files, and R runs that go through one of them.

The task is the electricity task of the streaming paper. The observation is a row of all columns as they are. Row i
comes with the cumulant, which is the target column of row i + 1, scaled to [0, 1] by the extremes of the whole series
(which uses knowledge of the future, as the official code does). So the prediction in row i is of a discounted sum that
begins with row i + 2: cumulant(i + 1) + discount cumulant(i + 2) + …, where cumulant(i) is the scaled target of row
i + 1.
"""

import csv
import io
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.task import Episode, Task

LARGEST = 1e150  # greatest magnitude of a cell, so that the sum of many squares is finite
UNSEEN = 0.05  # a true return counts as known if rows after the series' end would have at most this share of its weight


@dataclass(frozen=True)
class Series:
    """Rows of numbers at equal distances in time. One of the columns is to be predicted."""

    name: str
    columns: tuple[str, ...]
    rows: NDArray[np.float64]  # [T, C]
    target: str
    left_out: tuple[str, ...] = ()  # columns of the file that are not in `columns`, for lack of numbers or a name

    @property
    def steps(self) -> int:
        """The number of steps from row 0 on: the row that a step leads to must have another one after it."""
        return len(self.rows) - 2

    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value of the target, in its own units."""
        target = self.rows[:, self.columns.index(self.target)]
        return float(target.min()), float(target.max())

    def digest(self) -> int:
        """A checksum of the rows, the columns' names and the target, to tell series apart."""
        header = repr((self.columns, self.target, self.rows.shape))
        return zlib.crc32(self.rows.tobytes(), zlib.crc32(header.encode()))

    def cumulants(self) -> NDArray[np.float64]:
        """The cumulants [T - 1] that come with rows 0 to T - 2, in [0, 1]."""
        low, high = self.bounds()
        return (self.rows[1:, self.columns.index(self.target)] - low) / (high - low)

    def returns(self, discount: float) -> NDArray[np.float64]:
        """The true returns [T - 1] in rows 0 to T - 2, summed to the end of the series, in units of the cumulant.

        The return in row i is cumulant(i + 1) + discount cumulant(i + 2) + …; the last one is 0. From row `known` on,
        the rows after the end would have more than 5% of the weight.
        """
        from scipy.signal import lfilter

        following = np.append(self.cumulants()[1:], 0.0)
        return lfilter([1.0], [1.0, -discount], following[::-1])[::-1].copy()

    def known(self, discount: float) -> int:
        """The number of rows, from row 0 on, whose true returns lack at most 5% of the weight, discount^(T - 2 - i)."""
        return max(len(self.rows) - 1 - seen(discount), 0)


def seen(discount: float) -> int:
    """The number of terms of a discounted sum after which all later ones have at most 5% of the weight.

    `discount` is below 1.
    """
    return max(math.ceil(math.log(UNSEEN) / math.log(discount)), 1) if discount else 1


# -- the series that ships ---------------------------------------------------------------------------------------------

SEASONS_ROWS = 69_680
SEASONS_HOURS = 0.25  # between rows
# base [MW], daily and weekly amplitude [MW], hour of the daily and day of the four-weekly peak, std of the noise [MW]
SEASONS_LOADS = (
    (24.0, 6.0, 2.0, 11.0, 6.0, 1.0),
    (18.0, 5.0, 1.5, 19.0, 9.0, 0.8),
    (14.0, 3.0, 2.5, 13.0, 3.0, 0.8),
    (10.0, 4.0, 0.5, 20.0, 12.0, 0.6),
    (8.0, 1.0, 1.0, 9.0, 20.0, 0.5),
    (6.0, 2.0, 0.5, 7.0, 26.0, 0.4),
)


def seasons() -> Series:
    """A synthetic series like that of electricity transformers (ETTm2): a row every 15 minutes, from noon of 1 July on.

    There are six loads in MW. Each is the sum of a base, a daily cycle with a second harmonic, a weekly cycle, and
    noise that is correlated over 3 hours. The base wanders by 8% of itself, correlated over 60 days, and has a cycle of
    four weeks (25%, the rota of the consumers); the amplitude of the daily cycle wanders by 30%, over 30 days.

    The seventh column is the target, the temperature of the oil in degrees Celsius. It follows, with a lag of 12 hours,
    the surroundings plus 0.4 for each MW of all loads, and is measured with an error of 0.2. The surroundings have 15
    degrees, a yearly cycle of 8, a daily one of 4, and weather of 1.5, correlated over 30 days. Noise is Gaussian, from
    first-order autoregressions of a generator with a fixed seed. The slow part of the target can be predicted from the
    phases of the cycles, which averages over days, such as those of stream TD, show.
    """
    random = np.random.RandomState(2016)  # its sequence is the same in all releases of NumPy
    hours = np.arange(SEASONS_ROWS) * SEASONS_HOURS

    def wander(correlation: float) -> NDArray[np.float64]:
        return autoregression(random, SEASONS_ROWS, correlation / SEASONS_HOURS)

    def cycle(period: float, peak: float) -> NDArray[np.float64]:
        return np.cos(2 * np.pi * (hours + 12 - peak) / period)

    loads = []
    for base, daily, weekly, hour, day, noise in SEASONS_LOADS:
        level = base * (1 + 0.08 * wander(60 * 24) + 0.25 * cycle(28 * 24, day * 24))
        amplitude = daily * (1 + 0.3 * wander(30 * 24))
        shape = cycle(24, hour) + 0.4 * cycle(12, hour - 3)
        loads.append(level + amplitude * shape + weekly * cycle(7 * 24, 60) + noise * wander(3))
    surroundings = 15 + 8 * cycle(365.25 * 24, 21 * 24) + 4 * cycle(24, 15) + 1.5 * wander(30 * 24)
    heat = surroundings + 0.4 * np.sum(loads, 0)
    oil = lagged(heat, 12 / SEASONS_HOURS) + 0.2 * random.standard_normal(SEASONS_ROWS)
    names = (*(f"load_{i + 1}" for i in range(len(loads))), "oil_temperature")
    return Series("seasons", names, np.stack([*loads, oil], 1), names[-1])


def autoregression(random: np.random.RandomState, rows: int, correlation: float) -> NDArray[np.float64]:
    """Gaussian noise [rows] of variance 1, whose autocorrelation falls to 1/e in `correlation` rows."""
    from scipy.signal import lfilter

    decay = math.exp(-1 / correlation)
    noise = random.standard_normal(rows)
    noise[1:] *= math.sqrt(1 - decay**2)
    return lfilter([1.0], [1.0, -decay], noise)


def lagged(signal: NDArray[np.float64], lag: float) -> NDArray[np.float64]:
    """A signal [T] that follows another one like a body that warms up, with a time constant of `lag` rows."""
    from scipy.signal import lfilter

    share = 1 - math.exp(-1 / lag)
    return lfilter([share], [1.0, share - 1], signal, zi=[(1 - share) * signal[0]])[0]


# -- series in files ---------------------------------------------------------------------------------------------------


def load_series(name: str, target: str = "") -> Series:
    """Loads the series of that name, or one from a CSV file with a header.

    `target` is by default the last column that has numbers. Columns are left out if less than half of their cells are
    numbers, such as dates, or if they have no name, such as the row numbers that pandas writes. In the other columns,
    every cell must be a finite number within ±1e150: if one is not, this raises ValueError, in a sentence with file,
    row (the first one below the header is 1) and column. It raises ValueError, too, for a file, a header or a target
    that it cannot use.
    """
    if name == "seasons":
        series = seasons()
        return replace(series, target=checked_target(name, target or series.target, series.columns, series.rows))
    if not name.endswith(".csv"):
        raise ValueError(f"{name!r} is neither a series made here (seasons) nor a file whose name ends in .csv")
    frame = read_csv(Path(name))
    kept = [column for column in frame if has_numbers(frame[column]) and not column.startswith(UNNAMED)]
    if not kept:
        raise ValueError(f"{name} has no column of numbers: cells must be separated by commas, with a decimal point")
    left_out = tuple(column for column in frame if column not in kept)
    if target in left_out:
        raise ValueError(f"--target-column: column {target} of {name} has no numbers or no name")
    columns = [pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64) for column in kept]
    rows = np.stack(columns, 1)
    bad = np.argwhere(~(np.abs(rows) <= LARGEST))  # NaN too
    if len(bad):
        row, column = bad[0]
        cell = frame[kept[column]].iloc[row]
        fault = "is empty or NA" if pd.isna(cell) else f"is no finite number within ±{LARGEST:g}: {cell}"
        others = f" ({len(bad) - 1:,} more)" if len(bad) > 1 else ""
        raise ValueError(
            f"{name}, row {row + 1:,}, column {kept[column]} {fault}; fill or remove such cells first{others}"
        )
    return Series(name, tuple(kept), rows, checked_target(name, target or kept[-1], tuple(kept), rows), left_out)


UNNAMED = "Unnamed: "  # pandas' names for columns without a name begin with this


def read_csv(path: Path) -> pd.DataFrame:
    """The table in a file, with the types that pandas guesses; raises ValueError if it is no table with a header.

    Blank lines do not count, except between the rows of a single column, where they are missing values.
    """
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
        header = next(csv.reader(io.StringIO(text), skipinitialspace=True), [])
        frame = pd.read_csv(
            io.StringIO(text),
            float_precision="round_trip",
            low_memory=False,
            skipinitialspace=True,
            skip_blank_lines=len(header) > 1,
        )
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, csv.Error) as error:  # pandas' own errors are ValueErrors
        raise ValueError(f"{path} is no CSV file: {str(error).strip()}") from None
    numbers = [word for word in header if is_number(word)]
    # a name may be a number only if all such names count the columns, from 0 or 1
    if numbers not in ([str(i + first) for i in range(len(numbers))] for first in (0, 1)):
        raise ValueError(f"{path} has no header: its first line must name the columns, but holds numbers")
    if repeated := [word for word in header if word and header.count(word) > 1]:
        raise ValueError(f"{path} has two columns named {repeated[0]!r}")
    if not isinstance(frame.index, pd.RangeIndex):
        raise ValueError(f"{path} has more cells in a row than names in its header")
    return frame


def is_number(word: str) -> bool:
    """Whether a word is a finite number."""
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def has_numbers(column: pd.Series) -> bool:
    """Whether a column is made of numbers; up to half of them may be missing or misspelt."""
    return column.dtype != bool and pd.to_numeric(column, errors="coerce").notna().mean() >= 0.5


def checked_target(name: str, target: str, columns: Sequence[str], rows: NDArray[np.float64]) -> str:
    """Gives the target back; raises ValueError if it is not there, or if there is nothing to predict."""
    if target not in columns:
        raise ValueError(
            f"--target-column: {name} has no column {target!r}; its columns of numbers are {', '.join(columns)}"
        )
    if len(rows) < 5:
        raise ValueError(f"{name} has {len(rows)} rows, too few to predict anything; it takes at least 5")
    values = rows[3:, columns.index(target)]  # the first step comes to row 1, whose return begins with row 3
    if values.min() == values.max():
        raise ValueError(
            f"column {target} of {name}, the target, is {values[0]:g} in all rows from the fourth on: there is nothing "
            "to predict"
        )
    return target


# -- runs --------------------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """The data of one step, which is the same for all runs."""

    obs: Tensor  # [R, C] the row that the step led to
    cumulant: Tensor  # [R] the cumulant that comes with this row
    future: Tensor  # [R] the true return in this row; 0 where it is not known
    known: Tensor  # [R] 1 where the true return is known, else 0


class SeriesEnvs:
    """Takes the place of environments where R runs go through one series together, from its first row on.

    All tensors are made on the device beforehand, so that a step only selects the next ones. Raises ValueError if the
    series is too short for any true return to be known.
    """

    resumable = True

    def __init__(
        self, series: Series, seeds: Sequence[int], device: torch.device | str = "cpu", discount: float = 0.99
    ):
        self.runs = len(seeds)
        self.device = torch.device(device)
        self.task = Task(series.name, (series.rows.shape[1],), 0, False, (), (), 0)
        self.known = series.known(discount)  # the true return is known in all rows before this one
        if self.known < 3:
            raise ValueError(
                f"{series.name} has {len(series.rows):,} rows, too few for sums with --discount {discount:g}, "
                f"which take {seen(discount) + 4:,}"
            )
        self.returns = series.returns(discount)  # [T - 1], on the host
        known = np.arange(len(self.returns)) < self.known
        self.tables = [self._table(a) for a in (series.rows, series.cumulants(), self.returns * known, known)]
        self.position = 0
        self._ended: list[Episode] = []
        self.reset()

    def _table(self, array: NDArray) -> Tensor:
        """Expands [T, …] to [T, R, …] on the device, without a copy for each run."""
        table = torch.as_tensor(array, dtype=torch.float64).to(self.device)
        return table[:, None].expand(len(table), self.runs, *table.shape[1:])

    def reset(self, purpose: str = "train", *numbers: int) -> None:
        """Goes back to the first row, whatever the purpose."""
        self.position, self.restarted = 0, True
        self.obs = self.tables[0][0]

    def receive(self) -> Sample:
        """Goes to the next row."""
        self.position += 1
        self.restarted = False
        sample = Sample(*(table[self.position] for table in self.tables))
        self.obs = sample.obs
        return sample

    def add_ended(self, episodes: Iterable[Episode]) -> None:
        """Adds scores of a stretch of the series, which has no episodes itself: `take_ended` gives them."""
        self._ended += episodes

    def take_ended(self) -> list[Episode]:
        """All that was added since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that `load_state_dict` needs, but for scores that were added: take these before it is saved."""
        return {"position": torch.tensor(self.position)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continues where `state_dict` was taken. Scores that were not taken yet are dropped."""
        self.position = int(state["position"])
        self.obs = self.tables[0][self.position]
        self.restarted, self._ended = False, []

    def close(self) -> None:
        """There is nothing to close."""
