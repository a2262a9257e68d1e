"""The end of a run: a curve, and one line for each run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from algos.tables import setting_name

DIGITS = {"R²": 3}  # after the decimal point, by the name of the score; 1 for others
Key = dict[str, Any]  # seed and varied hyperparameters of a run


@dataclass
class Summary:
    """Shows the table of evaluation episodes to a person.

    `score` is the name of the score, and `show` computes it from returns; `steps` are the units of steps.
    """

    algorithm: str
    task: str
    steps: str
    score: str
    show: Callable[[Any], Any]

    def scores(self, rows: pd.DataFrame) -> pd.Series:
        """The score of each episode."""
        return 100.0 * rows["success"].astype(bool) if self.score == "success" else self.show(rows["return"])

    def draw(self, frame: pd.DataFrame, keys: list[Key], diverged: dict[int, int], label: str, path: Path) -> None:
        """Draws the learning curve of each setting, in which a diverged run keeps its last score."""
        from algos.plot import carry_forward, curves  # they take a second to import

        labels = {"return": label, "score": "normalised score", "success": "episodes that reach their goal (%)"}
        curve = {}
        for name in dict.fromkeys(setting_name(key) for key in keys):
            runs = [run for run, key in enumerate(keys) if setting_name(key) == name]
            rows = pd.concat([rows_of(frame, keys[run]) for run in runs])
            if len(rows):
                rows = rows.assign(**{"return": self.scores(rows)})
                lost = [keys[run]["seed"] for run in runs if run in diverged]
                curve[name or self.algorithm] = carry_forward(rows, lost)
        curves(curve, path, self.task, labels.get(self.score, self.score), self.steps)

    def lines(self, frame: pd.DataFrame, keys: list[Key], taken: list[int], diverged: dict[int, int]) -> Iterator[str]:
        """The final score of each run in words, and the steps that it has taken; nothing if there were no evaluations.

        A diverged run has the step of its last evaluation.
        """
        if frame.empty:
            return
        digits = DIGITS.get(self.score, 1)
        yield f"\n{self.algorithm}\n{'seed':>6}  {f'final {self.score}':>12}  {'std of episodes':>15}  {'steps':>10}"
        for run, key in enumerate(keys):
            rows = rows_of(frame, key)
            if rows.empty:
                continue
            rows = rows[rows["step"] == rows["step"].max()]
            scores, steps = self.scores(rows), rows["step"].iloc[0] if run in diverged else taken[run]
            spread = f"{scores.std(ddof=1):.{digits}f}" if len(scores) > 1 else "–"
            line = f"{key['seed']:>6}  {scores.mean():>12.{digits}f}  {spread:>15}  {steps:>10,}"
            line += f"  {setting_name(key)}" if len(key) > 1 else ""
            yield line + (f"  diverged before step {diverged[run]:,}" if run in diverged else "")


def rows_of(frame: pd.DataFrame, key: Key) -> pd.DataFrame:
    """The rows of one run."""
    return frame[(frame[list(key)] == pd.Series(key)).all(axis=1)]
