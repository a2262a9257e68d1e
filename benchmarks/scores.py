"""Scores of runs as one tidy table, the names of algorithms in it, and what is computed for each seed."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from algos.errors import UserError
from benchmarks.suite import SCORES, Score

ORDER = ("order_of_values", "order_of_low_values")  # see algos.ways
PERCENT = "success (%)"  # the measure of goals that are reached
R2 = "R²"  # that of predictions
SUCCESS = "success/"  # before the name of one of the environment's tasks
OF_TASK = " · "  # between the name of an environment and that of one of its tasks
LABELS: dict[Score, str] = {
    "last": "last evaluation",
    "mean": "mean of last 10%",
    "max": "max over last 10%",
    "three": "mean of last three evaluations",
    "best": "best over training",
}

Unfinished = tuple[str, str, str, list[int]]  # name and family of an algorithm, task, seeds


@dataclass
class Scores:
    """The evaluations of all runs, and where they come from.

    `table`: task, algorithm, seed, step, episodes, return (mean over episodes), episode_std (their standard deviation,
    n - 1; NaN if it is not known), one row for each evaluation of a seed, up to the step that all runs on the task have
    reached; a diverged seed keeps the return that it had. A setting of varied hyperparameters is an algorithm of its
    own. `values`: task, algorithm, seed, step, predicted, observed.
    `watched`: task, algorithm, seed, step, metric, value, at the steps of evaluations: what methods with a model log of
    it, the order of values, and where the score is success, that of each of the environment's tasks (success/…, in
    percent).
    `sources`: the configurations of the runs. `sweeps`: how they were started. `wishes`: references, score and
    published tables that the suites ask for. `cells`: the pairs of an algorithm and a task that sweeps were to train.
    `notes`: sentences that a reader must know. `left_out`: those on runs without evaluations; and `unfinished`, the
    other runs that are left out. `lost`: task, algorithm and seed of runs that diverged before they had a score.
    `files`: whole paths of files of data, and the names that stand for them as tasks.
    """

    table: pd.DataFrame
    values: pd.DataFrame
    watched: pd.DataFrame
    sources: list[dict[str, Any]]
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    wishes: list[dict[str, Any]] = field(default_factory=list)
    cells: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)  # tasks, and sentences on them
    unfinished: list[Unfinished] = field(default_factory=list)
    lost: list[tuple[str, str, int]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def tasks(self) -> list[str]:
        return sorted(self.table["task"].unique())

    @property
    def measure(self) -> str:
        """What the scores are: returns, percentages of episodes that reach their goals, R², or scores for several."""
        kinds = {self.measure_of(task) for task in self.tasks}
        return kinds.pop() if len(kinds) == 1 else "score"

    def measure_of(self, task: str) -> str:
        """What the scores on one task are."""
        kinds = {measure_of(config) for config in self.sources if config["task"] == task}
        return kinds.pop() if len(kinds) == 1 else "return"

    @property
    def ends(self) -> pd.Series:
        """The last step of each task."""
        return self.table.groupby("task")["step"].max()

    @property
    def diverged(self) -> dict[tuple[str, str, int], int]:
        """The step at which each diverged seed was noticed, by task, algorithm and seed."""
        return {(c["task"], label(c), row["seed"]): row["step"] for c in self.sources for row in c["diverged"]}

    def late(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table in the last 10% of the steps of their task."""
        return frame[frame["step"] > 0.9 * frame["task"].map(self.ends)]

    @property
    def steps(self) -> str:
        """The unit of steps."""
        kinds = {config.get("steps", "environment steps") for config in self.sources}
        return kinds.pop() if len(kinds) == 1 else "steps"

    @property
    def algorithms(self) -> list[str]:
        """All algorithms, sorted by name; the settings of one algorithm are sorted by their values."""
        keys = {label(c): (family_name(c), tuple(c.get("setting", {}).values())) for c in self.sources}
        return sorted(self.table["algorithm"].unique(), key=lambda name: keys[name])

    @property
    def settings(self) -> dict[str, dict[str, float]]:
        """The varied hyperparameters of each algorithm that has some."""
        return {label(config): config["setting"] for config in self.sources if config.get("setting")}

    @property
    def varied(self) -> list[str]:
        """The names of all varied hyperparameters."""
        return list(dict.fromkeys(name for setting in self.settings.values() for name in setting))

    @property
    def grids(self) -> dict[str, list[str]]:
        """The algorithms that are settings of one, by its name, and by what varies where its grids differ in that."""
        kinds = {
            label(config): (family_name(config), ", ".join(sorted(config["setting"])))
            for config in self.sources if config.get("setting")
        }  # fmt: skip
        families = [family for family, _ in set(kinds.values())]
        grids: dict[str, list[str]] = {}
        for name in self.algorithms:
            if name in kinds:
                family, varied = kinds[name]
                grids.setdefault(family if families.count(family) == 1 else f"{family} by {varied}", []).append(name)
        return grids

    def with_settings(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A table with a column for each varied hyperparameter after the column `algorithm`."""
        frame = frame.copy()
        settings = self.settings
        for name in reversed(self.varied):
            values = [settings.get(algorithm, {}).get(name, np.nan) for algorithm in frame["algorithm"]]
            frame.insert(frame.columns.get_loc("algorithm") + 1, name, np.array(values, float))  # type: ignore[arg-type]
        return frame


def among(frame: pd.DataFrame, runs: Container[tuple[str, str, int]]) -> np.ndarray:
    """Which rows of a table are of some runs: task, algorithm and seed."""
    return np.array([key in runs for key in zip(frame["task"], frame["algorithm"], frame["seed"], strict=True)], bool)


def measure_of(config: Mapping[str, Any]) -> str:
    """What the scores of a run are."""
    return {"success": PERCENT, R2: R2}.get(config.get("score", ""), "return")


def label(config: dict[str, Any]) -> str:
    """The name of an algorithm in a report, with the variant where that is not the default one, and the setting.

    `sac`, `sac (slow)`, `iql (expectile=0.7, temperature=3)`.
    """
    setting = config.get("setting")
    return family_name(config) + (f" ({spoken(setting)})" if setting else "")


def family_name(config: dict[str, Any]) -> str:
    """The name that all settings of an algorithm share: the script's, with the variant where it is not the default one.

    A variant that begins with the script's name stands for both.
    """
    algorithm, variant = config["algorithm"], config["variant"]
    if variant == "default":
        return algorithm
    return variant if variant.startswith(algorithm) else f"{algorithm} ({variant})"


def missing_cells(cells: list[tuple[str, str]], sources: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The pairs of an algorithm, by its family's name, and a task that no source is of."""
    found = {(family_name(config), config["task"].partition(OF_TASK)[0]) for config in sources}
    return [cell for cell in cells if cell not in found]


def spoken(setting: dict[str, float]) -> str:
    """`expectile=0.7, temperature=3`."""
    return ", ".join(f"{name}={plain(value)}" for name, value in setting.items())


def plain(value: float) -> str:
    """A number in as few digits as are exact."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))


def final_scores(table: pd.DataFrame, column: str = "return") -> pd.DataFrame:
    """The score of each seed by each definition: task, algorithm, seed, last, mean, max, three, best.

    The last 10% are the evaluations after 90% of the steps of the task, ten of a hundred; a seed that has none there is
    scored by its last one. Three is the mean of the last three evaluations, by which OGBench scores, NaN if there are
    fewer after the first step, and best is over all evaluations.
    """
    end = table.groupby("task")["step"].transform("max")
    keys = ["task", "algorithm", "seed"]
    last = table.groupby(keys)["step"].transform("max")
    late = table[(table["step"] > 0.9 * end) | (table["step"] == last)]
    scores = late.sort_values("step").groupby(keys)[column].agg(["last", "mean", "max"])
    learned = table[table["step"] > 0].sort_values("step")
    scores["three"] = learned.groupby(keys)[column].apply(
        lambda values: values.tail(3).mean() if len(values) >= 3 else np.nan
    )
    scores["best"] = table.groupby(keys)[column].max()
    return scores.reset_index()


def known_definitions(final: pd.DataFrame, headline: Score) -> list[Score]:
    """The definitions of a score that all seeds have evaluations for; raises UserError if the headline's is not one."""
    known = [one for one in SCORES if one != "three" or final[one].notna().all()]
    if headline not in known:
        few = final[final[headline].isna()].iloc[0]
        raise UserError(
            f"the score {headline!r} needs three evaluations after the first step, and seed {few['seed']} of "
            f"{few['algorithm']} on {few['task']} has fewer: choose another score, or leave out what is not finished"
        )
    return known


def normalise(table: pd.DataFrame, references: pd.DataFrame | None) -> pd.Series:
    """(return - low) / (high - low) by the references of the task; without references the returns as they are."""
    if references is None:
        return table["return"]
    tasks = table["task"].map({task: reference_of(task, references) for task in table["task"].unique()})
    low, high = (tasks.map(references.set_index("task")[name]) for name in ("low", "high"))
    if low.isna().any():
        raise UserError(f"--references: there is no row for {table['task'][low.isna()].iloc[0]}")
    return (table["return"] - low) / (high - low)


def reference_of(task: str, references: pd.DataFrame) -> str:
    """The row of the references for a task; a task of an environment with several may have that of the environment."""
    return task if task in set(references["task"]) else task.partition(OF_TASK)[0]


def matrices(
    scores: pd.DataFrame, column: str, normalised: bool = True
) -> tuple[dict[str, np.ndarray], list[str], list[str]]:
    """Scores [N, M] of each algorithm on the tasks that all have in common; these tasks; notes on tasks left out.

    Scores on several tasks that are not normalised have no aggregates, but probabilities of improvement.
    """
    notes = []
    counts = scores.groupby(["algorithm", "task"])["seed"].nunique().unstack()
    tasks = list(counts.columns[counts.notna().all()])
    if not tasks:
        return {}, [], ["There is no task that all algorithms have in common, and so there are no aggregates."]
    use = "aggregates" if normalised or len(tasks) == 1 else "probabilities of improvement"
    if left := [task for task in counts.columns if task not in tasks]:
        notes.append(
            f"{use.capitalize()} are over the tasks that all algorithms have in common, without {', '.join(left)}."
        )
    scores_of = {}
    for name, frame in scores.groupby("algorithm"):
        wide = {task: rows.sort_values("seed")[column].to_numpy() for task, rows in frame.groupby("task")}
        least = min(len(wide[task]) for task in tasks)
        if any(len(wide[task]) > least for task in tasks):
            notes.append(
                f"{name} has more seeds on some tasks than on others; {use} use the {least} lowest seeds of each."
            )
        scores_of[str(name)] = np.stack([wide[task][:least] for task in tasks], 1)
    return scores_of, tasks, notes
