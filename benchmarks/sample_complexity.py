"""Sample complexities of runs on tables, and what the tables say exactly.

The sample complexity of a run is its number of steps at the first evaluation at which its deterministic policy's exact
return is at least J* - 0.05 (J* - J_random); an evaluation follows the iteration that reaches a multiple of the
interval. That of a setting is the median over its seeds, infinite where the median seed does not get there within its
steps. Seeds whose untrained networks solve the task already are left out, and a setting counts where most seeds are
left. That of an algorithm is the least over its settings: the search for settings is free, and a table shows its cost.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field
from scipy.stats import rankdata, spearmanr

from algos.errors import UserError
from algos.stored import Stored, Whole
from benchmarks.load_scores import check_arguments
from benchmarks.scores import Scores, label
from envs.make import TABULAR
from envs.tabular import Table as FiniteTable
from envs.tabular.exact import EXACT, TIE, Analysis
from envs.tabular.tasks import table_of

REPLICATIONS = 2_000
LOSSES = range(1, 6)  # values whose greedy policies' losses are in the table


class TableArguments(Stored):
    """The arguments of a run that are read here."""

    discount: Annotated[float, Field(ge=0, le=1)]
    total_steps: Whole
    eval_every: Whole
    stop_when_solved: bool = False
    k: Whole = 0


@dataclass
class Study:
    """What was found, by task."""

    samples: pd.DataFrame  # task, algorithm, setting, k, untrained, seed, samples (inf: never), steps, taken
    tasks: pd.DataFrame  # one row a task; N is infinite where it is not solved, NaN where too many seeds are left out
    budgets: dict[str, int]  # steps of each task
    algorithms: list[str]
    correlations: pd.DataFrame = field(default_factory=pd.DataFrame)


def steps_taken(sources: list[dict[str, Any]]) -> dict[tuple[str, str], dict[int, int]]:
    """The steps that each seed of each setting, by task and label, has really done.

    Each source has those of its own seeds, in the order of its command; in earlier results, each of several settings
    has those of all, one setting after the other. Raises UserError if one does not say them.
    """
    taken: dict[tuple[str, str], dict[int, int]] = {}
    numbers: Counter[str] = Counter()  # of settings so far, by folder
    for config in sources:
        seeds, steps = config.get("identity", {}).get("seeds") or config["seeds"], config.get("taken", [])
        first = len(seeds) * numbers[config["folder"]] if len(steps) > len(seeds) else 0
        numbers[config["folder"]] += 1
        steps = steps[first : first + len(seeds)]
        if len(steps) < len(seeds):
            raise UserError(f"{config['folder']}: its configuration does not say the steps that each seed has done")
        taken.setdefault((config["task"], label(config)), {}).update(zip(seeds, steps, strict=True))
    return taken


def sample_complexities(scores: Scores, thresholds: dict[str, float]) -> pd.DataFrame:
    """The first step at which each seed of each setting solves its task, and whether it does so untrained."""
    known = {(c["task"], label(c), seed): c for c in scores.sources for seed in c["seeds"]}
    taken = steps_taken(scores.sources)
    rows = []
    for (task, setting, seed), curve in scores.table.groupby(["task", "algorithm", "seed"]):
        config = known[task, setting, seed]
        later = curve[curve["step"] > 0].sort_values("step")
        limit, budget = thresholds[str(task)], int(config["args"]["total_steps"])
        solved = later[(later["return"] >= limit) & (later["step"] <= budget)]["step"]
        untrained = curve[curve["step"] == 0]["return"]
        row = {"task": task, "algorithm": config["algorithm"], "setting": setting, "k": config["args"].get("k", 0)}
        first = float(solved.iloc[0]) if len(solved) else np.inf
        row |= {"untrained": bool((untrained >= limit).any()), "seed": seed, "samples": first, "steps": budget}
        rows.append(row | {"taken": taken[task, setting][seed]})
    return pd.DataFrame(rows)


def medians_of(samples: pd.DataFrame) -> pd.DataFrame:
    """The sample complexity of each setting on each task, where most seeds do not solve the task untrained."""
    keys = ["task", "algorithm", "setting", "k"]
    learned = samples[~samples["untrained"]].groupby(keys)["samples"]
    medians = learned.median()[2 * learned.size() > samples.groupby(keys).size()[learned.size().index]]
    return medians.reset_index()


def records(table: pd.DataFrame) -> pd.DataFrame:
    """The evaluations at which a seed was better than ever before, from which all sample complexities follow.

    The first and the last evaluation of each seed are kept too.
    """
    learned = table[table["step"] > 0].sort_values(["task", "algorithm", "seed", "step"])
    by_seed = learned.groupby(["task", "algorithm", "seed"])
    before = by_seed["return"].cummax().groupby(by_seed.ngroup()).shift(fill_value=-np.inf)
    kept = learned[(learned["return"] > before) | (learned["step"] == by_seed["step"].transform("max"))]
    kept = pd.concat([table[table["step"] == 0], kept]).sort_values(["task", "algorithm", "seed", "step"])
    return kept[["task", "algorithm", "seed", "step", "episodes", "return"]]


@cache
def known_table(task: str) -> FiniteTable:
    """The table of a task; raises UserError if it is none."""
    if not task.startswith(TABULAR):
        raise UserError(f"{task} is no table: this compares runs on ids {TABULAR}…")
    try:
        return table_of(task.removeprefix(TABULAR))
    except (ValueError, ModuleNotFoundError) as error:
        raise UserError(f"{task}: {error}") from None


def exact_row(task: str, discount: float) -> dict[str, Any]:
    """What the table of a task says, with the discount with which algorithms learned in it."""
    table = known_table(task)
    plain, learned = Analysis(table), Analysis(table, discount)
    first, scale = learned.greedy(learned.q(1), TIE, EXACT), plain.best_return - plain.random_return
    if not scale:
        raise UserError(f"{task}: the best policy is not better than random actions, so every policy solves it")
    row = {"task": task, "S": table.states, "A": table.actions, "H": table.horizon, "rho": table.sticky}
    row |= {"discount": discount, "J*": plain.best_return, "J_random": plain.random_return}
    row |= {"min_k": plain.min_k() or np.inf, "exact min_k": plain.min_k(TIE, EXACT) or np.inf}
    row |= {"min_k discounted": learned.min_k() or np.inf, "gap at k = 1": first.gap / scale}
    return row | {f"J* - J_{k}": round((plain.best_return - plain.greedy_return(k)) / scale, 9) for k in LOSSES}


@cache
def digest_of(task: str) -> str:
    """The digest of the table that this machine makes of a task."""
    return known_table(task).digest()


def check_table(config: dict[str, Any]) -> None:
    """Raises UserError if a run learned in another table than the one that is made now; early runs do not say."""
    here, there = digest_of(config["task"]), config["facts"].get("table")
    if there not in (None, here):
        raise UserError(
            f"{config['folder']} learned in another table {config['task']} ({there}) than the one that this machine "
            f"makes ({here}): the versions of libraries or the kind of processor differ; --tasks can leave it out"
        )


def study(scores: Scores, tolerance: float) -> Study:
    """Puts everything together; raises UserError for runs that cannot be compared."""
    discounts: dict[str, set[float]] = {}
    for config in scores.sources:
        known_table(config["task"])  # or this is no table
        check_arguments(config, TableArguments)
        if not config["args"].get("stop_when_solved"):
            raise UserError(
                f"{config['folder']}: this compares runs with --stop-when-solved, whose evaluations are recorded at "
                "the steps that were really done"
            )
        check_table(config)
        discounts.setdefault(config["task"], set()).add(config["args"]["discount"])
    for task, found in discounts.items():
        if len(found) > 1:
            raise UserError(f"runs on {task} have different discounts: {', '.join(map(str, sorted(found)))}")
    tasks = pd.DataFrame([exact_row(task, discounts[task].pop()) for task in scores.tasks])
    limits = {task: Analysis(known_table(task)).solved(tolerance) for task in scores.tasks}
    samples = sample_complexities(scores, limits)
    medians = medians_of(samples)
    algorithms = sorted(samples["algorithm"].unique())
    lucky = samples.groupby(["task", "algorithm"])["untrained"].mean().unstack()
    for name in algorithms:
        own = medians[medians["algorithm"] == name]
        tasks[f"N {name}"] = tasks["task"].map(own.groupby("task")["samples"].min())
        tasks[f"untrained {name}"] = tasks["task"].map(lucky[name])
        best = own.loc[own.groupby("task")["samples"].idxmin()].set_index("task")["setting"]
        tasks[f"best {name}"] = tasks["task"].map(best).where(np.isfinite(tasks[f"N {name}"]), "")
        if name == "sqirl":
            tasks["N sqirl, k = 1"] = tasks["task"].map(own[own["k"] == 1].groupby("task")["samples"].min())
    budgets = samples.groupby("task")["steps"].max().to_dict()
    return Study(samples, tasks, budgets, algorithms)


def correlate(found: Study) -> pd.DataFrame:
    """Spearman's correlations over tasks, of those that are solved, and of all with unsolved ones at the budget.

    That is the greatest budget of all tasks. The intervals are those of a bootstrap over tasks.
    """
    tasks, budget = found.tasks, float(max(found.budgets.values()))
    facts = {
        "min_k discounted": tasks["min_k discounted"],
        "-log gap": -np.log(tasks["gap at k = 1"].clip(lower=1e-300)),
    }
    facts["loss of J_1"] = tasks["J* - J_1"]
    costs = {name: tasks[f"N {name}"] for name in found.algorithms}
    if "sqirl" in costs:
        costs["sqirl, k = 1"] = tasks["N sqirl, k = 1"]
    pairs = [(a, b, costs[a], costs[b]) for a, b in combinations(costs, 2) if {a, b} != {"sqirl", "sqirl, k = 1"}]
    pairs += [(a, b, facts[a], costs[b]) for a in facts for b in costs]
    rows = []
    for a, b, x, y in pairs:
        measured = x.notna() & y.notna()
        x, y = x[measured], y[measured]
        solved = np.isfinite(y) & (np.isfinite(x) | (a in facts))  # a fact may be infinite, which has a rank
        at_budget = x if a in facts else x.where(np.isfinite(x), budget), y.where(np.isfinite(y), budget)
        for which, u, v in (("solved", x[solved], y[solved]), ("unsolved at the budget", *at_budget)):
            value, low, high = spearman(u.to_numpy(float), v.to_numpy(float))
            rows.append({"a": a, "b": b, "tasks": which, "n": len(u), "value": value, "low": low, "high": high})
    return pd.DataFrame(rows)


def spearman(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """The correlation of ranks with a 95% percentile interval; NaN for fewer than four tasks or without variation."""
    if len(x) < 4 or len(set(x)) == 1 or len(set(y)) == 1:
        return np.nan, np.nan, np.nan
    generator = np.random.default_rng(0)
    drawn = generator.integers(len(x), size=(REPLICATIONS, len(x)))
    ranks = [rankdata(values[drawn], axis=1) for values in (x, y)]
    u, v = (r - r.mean(1, keepdims=True) for r in ranks)
    norms = np.sqrt((u**2).sum(1) * (v**2).sum(1))
    low, high = np.percentile((u * v).sum(1)[norms > 0] / norms[norms > 0], [2.5, 97.5])
    return float(spearmanr(x, y).statistic), float(low), float(high)
