"""Trained policies for the commands that use them: which runs are meant, and the environment in which they act."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from algos.cli import env_errors, parse_seeds
from algos.env_options import options_of, pairs_of
from algos.errors import UserError, describe, warn
from algos.evaluate import Evaluator, Score, TableEvaluator, maker
from algos.goal_data import check_goals
from algos.policy import FILE, Policy, PolicyFile
from algos.stored import EVAL, Config, read_json, read_table
from envs.atari import is_game
from envs.goals import make_goal_vec
from envs.make import TABULAR, plain_id

RANKS = ("best", "median", "worst")


class Trained:
    """A run's policies, and the score by which its runs are ranked.

    `scores` [R] are the means over the evaluations after 90% of the steps, of returns, or in percent of successes where
    these are the score; a run without one is scored by its last evaluation. They are NaN for runs that diverged, or
    were scored only before they learned. The path of the folder's policy.safetensors stands for the folder.
    Raises UserError if the folder is no run's, or has no policies.
    """

    def __init__(self, folder: Path):
        folder = folder.parent if folder.name == FILE else folder
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder} is no run's folder: give one such as runs/Hopper-v5/sac/default")
        self.folder, self.file = folder, PolicyFile(folder)
        self.config: dict[str, Any] = read_json(folder / "config.json", Config)
        self.measure = "success" if self.config.get("score") == "success" else "return"
        varied = self.config.get("varied", [])
        success = ["success"] * (self.measure == "success")
        table = read_table(folder / "eval.parquet", [*EVAL, *success], varied)
        end, keys = table["step"].max(), ["seed", *varied]
        self.scored_until = end
        late = table[(table["step"] > 0.9 * end) | (table["step"] == table.groupby(keys)["step"].transform("max"))]
        if self.file.step:  # policies that were scored at step 0 had not learned
            late = late[late["step"] > 0]
        value = 100.0 * late["success"].astype(float) if success else late["return"]
        means = value.groupby([late[name] for name in keys]).mean()
        known = {key if isinstance(key, tuple) else (key,): mean for key, mean in means.items()}
        self.scores = np.array([known.get(tuple(key[name] for name in keys), np.nan) for key in self.file.runs])
        self.scores[self.file.diverged] = np.nan

    def numbers(self, words: Sequence[str], setting: Sequence[str] = (), flag: str = "--seeds") -> list[int]:
        """The numbers of the runs that words such as "best", "0" and "3:5" name, in their order; without words, all.

        Words of `setting`, such as "tau=0.01", leave the runs with these hyperparameters only. Runs that diverged are
        left out, and a seed of which all have is refused. Raises UserError for other words, seeds and settings; `flag`
        is the argument that has the words.
        """
        known = self._with(setting)
        alive = [number for number in known if number not in self.file.diverged]
        if not alive:
            raise UserError(f"all runs in {self.folder}{' with ' if setting else ''}{' '.join(setting)} diverged")
        if not words:
            return alive
        if twice := [word for number, word in enumerate(words) if word in words[:number]]:
            raise UserError(f"{flag} has {twice[0]} twice")
        ranks = self.ranks(alive)
        found: list[int] = []
        if ranks and set(words) & set(RANKS):
            if self.config.get("args", {}).get("eval_episodes") == 0:
                print("note: the run had no evaluations: seeds are ranked by the episodes that they learned from")
            if others := self._elsewhere():
                more = f"there are more of them in {', '.join(others)}"
                print(f"note: seeds are ranked among those of this folder, and {more}")
            last = min(self.file.step, self.config.get("args", {}).get("total_steps", self.file.step))
            if self.scored_until < 0.9 * last:
                steps = f"{self.scored_until:,}, and the policies are those of step {last:,}"
                print(f"note: seeds are ranked by their scores up to step {steps}")
        for word in words:
            if word in RANKS:
                if not ranks:
                    raise UserError(
                        f"{flag} {word}: {self.folder} has no run that was scored after it began to learn; name a seed"
                    )
                found.append(ranks[word])
                continue
            try:
                seeds = parse_seeds((word,))
            except UserError as error:
                said = str(error).replace("takes whole numbers", f"takes {', '.join(RANKS)}, whole numbers")
                raise UserError(said.replace("--seeds", flag)) from None
            for seed in seeds:
                own = [number for number in known if self.file.runs[number]["seed"] == seed]
                if not own:
                    there = ", ".join(map(str, dict.fromkeys(self.file.runs[number]["seed"] for number in known)))
                    raise UserError(f"{flag}: {self.folder} has no seed {seed}; it has {there}")
                if not set(own) & set(alive):
                    raise UserError(f"{flag}: seed {seed} in {self.folder} diverged")
                found += [number for number in own if number in alive]
        return list(dict.fromkeys(found))

    def left_out(self, words: Sequence[str], setting: Sequence[str] = ()) -> list[int]:
        """The numbers of the runs that these words name and `numbers` leaves out, because they diverged."""
        lost = [number for number in self._with(setting) if number in self.file.diverged]
        if not words or set(words) & set(RANKS):  # a rank is one among all
            return lost
        named = {seed for word in words for seed in parse_seeds((word,))}
        return [number for number in lost if self.file.runs[number]["seed"] in named]

    def _elsewhere(self) -> list[str]:
        """The names of other parts of a sweep's folder, seeds_5-9 beside seeds_0-4, that hold the same algorithm."""
        folder = self.folder.absolute()
        if len(folder.parents) < 3 or not (place := folder.parents[2]).name.startswith("seed"):
            return []
        rest = folder.relative_to(place)
        return [path.name for path in sorted(place.parent.glob("seed*")) if path != place and (path / rest).is_dir()]

    def _with(self, setting: Sequence[str]) -> list[int]:
        wanted = pairs_of(setting, "--setting", "tau=0.01")
        known = [number for number, key in enumerate(self.file.runs) if wanted.items() <= key.items()]
        if not known:
            there = {name: dict.fromkeys(key[name] for key in self.file.runs) for name in self.file.runs[0]}
            told = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in there.items())
            raise UserError(f"--setting: {self.folder} has no run with {' '.join(setting)}; its runs have {told}")
        return known

    def ranks(self, numbers: Sequence[int]) -> dict[str, int]:
        """Which of these runs is the best, the median and the worst; none where no run has a score."""
        ranked = sorted((i for i in numbers if np.isfinite(self.scores[i])), key=lambda i: -self.scores[i])
        return {"best": ranked[0], "median": ranked[len(ranked) // 2], "worst": ranked[-1]} if ranked else {}


def check_words(args: Any) -> None:
    """Raises UserError if --seeds or --setting is on the command line without a word, which does not mean all runs."""
    for name in ("seeds", "setting"):
        if f"--{name}" in sys.argv and not getattr(args, name):
            raise UserError(f"--{name} names nothing: leave it out for all runs")


class Place:
    """The environment in which policies act: the run's own, or another id, or one with other options."""

    def __init__(self, trained: Trained, env_id: str = "", options: Sequence[str] = ()):
        own = trained.file.environment
        self.env_id = env_id or own["env_id"]
        if not self.env_id:
            raise UserError(f"{trained.folder} learned without an environment: name one with --env-id")
        kept: dict[str, Any] = own["options"]
        same = plain_id(self.env_id) == plain_id(own["env_id"])
        if not same:  # the options of games hold for all of them, levels are the policy's
            names = ("levels", *(("stack", "episodic_life") if is_game(env_id) else ()))
            kept = {name: kept[name] for name in names if kept.get(name) not in (None, [])}
        self.options = kept | options_of(options)
        self.changed = bool(options)
        self.tasks: list[str] = own["tasks"]
        if trained.measure == "success" and not (same and self.tasks):
            self.tasks = check_goals(self.env_id, options=self.options)
        self.warned = False
        self.is_own = same and self.options == own["options"]

    def try_out(self, policy: Policy) -> None:
        """Raises UserError if the environment cannot be made or begun, or if the policy does not fit it."""
        evaluator = self.evaluator(policy, 1)
        try:
            if isinstance(evaluator, Evaluator):
                next(evaluator.play(policy.act, "trial", [0] * policy.agent.runs))
        except Exception as error:  # an environment's own code may raise anything
            options = " with these options" if self.options else ""
            raise UserError(f"{self.env_id} cannot begin an episode{options} ({describe(error)})") from None
        evaluator.close()

    def evaluator(
        self, policy: Policy, episodes: int, threads: int | None = None, first: int = 0
    ) -> Evaluator | TableEvaluator:
        """The evaluator of `episodes` episodes, which count from `first`.

        Raises UserError if the policy does not fit the environment.
        """
        seeds = policy.agent.seeds
        with env_errors(self.env_id, self.changed):
            if self.env_id.startswith(TABULAR):
                table = maker(self.env_id, threads, **self.options)(1)
                self._check(policy, table)
                return TableEvaluator(table, len(seeds), policy.agent.device, timed=policy.timed)
            goals = policy.with_goals
            make = partial(make_goal_vec, self.env_id, threads=threads, **self.options) if goals else None
            tasks = self.tasks if goals else ()
            evaluator = Evaluator(
                make or maker(self.env_id, threads, **self.options), seeds, episodes, policy.agent.device,
                tasks=tasks, goals=goals, timed=policy.timed, first=first,
            )  # fmt: skip
            self._check(policy, evaluator.venv)
        return evaluator

    def _check(self, policy: Policy, venv: Any) -> None:
        """Raises UserError where the policy does not fit the environment, and warns of other bounds of actions."""
        task = policy.task
        size = int(np.prod(venv.single_observation_space.shape))
        space = venv.single_action_space
        acts = int(space.n) if hasattr(space, "n") else int(np.prod(space.shape))
        kind = "discrete" if hasattr(space, "n") else "continuous"
        for ours, theirs, what in (
            (task.obs_size, size, "numbers in an observation"),
            ("discrete" if task.discrete else "continuous", kind, "actions"),
            (task.act_size, acts, "actions" if task.discrete else "numbers in an action"),
        ):
            if ours != theirs:
                raise UserError(f"--env-id {self.env_id} has {theirs} {what}, and the policies were made for {ours}")
        if not (task.discrete or self.is_own or self.warned):
            bounds = np.array([task.low, task.high]), np.array([space.low.ravel(), space.high.ravel()])
            if not np.allclose(*bounds):
                self.warned = True
                told = ", and those of ".join(
                    f"{name} are from {low.min():g} to {high.max():g}"
                    for name, (low, high) in zip(("the policies", self.env_id), bounds, strict=True)
                )
                warn(f"actions of {told}")


def episode_rows(
    scores: list[list[Score]], keys: list[dict[str, Any]], episodes: Sequence[int]
) -> list[dict[str, Any]]:
    """A row for each episode of each run: seed, setting, task, episode, return, length, success."""
    return [
        {**key, "task": score.task, "episode": number, "return": score.total, "length": score.length,
         "success": score.success}
        for key, of_run in zip(keys, scores, strict=True) for number, score in zip(episodes, of_run, strict=True)
    ]  # fmt: skip
