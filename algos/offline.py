"""What offline scripts share around their algorithm: arguments, and a run on a dataset that was made ready."""

import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import gymnasium as gym
import numpy as np
from torch import Tensor

from algos.arguments import AUTO, AutoCount, AutoNatural, Count
from algos.data import Dataset, check_made, check_name, is_file, load, validate
from algos.errors import UserError
from algos.run import Run, RunArgs, check_env_id
from envs import d4rl, make_vec

Rewards = Literal["auto", "range", "minus_one", "none"]
T = TypeVar("T", bound="OfflineArgs")


@contextlib.contextmanager
def as_flag(flag: str) -> Iterator[None]:
    """Errors about a dataset name this flag instead of --dataset."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace("--dataset", flag, 1)) from None


@dataclass(kw_only=True)
class OfflineArgs(RunArgs):
    """Arguments of every offline script."""

    TASK: ClassVar[str] = "dataset"
    STEPS: ClassVar[str] = "gradient updates"

    dataset: str = "local/halfcheetah-medium-v0"
    """d4rl/…, minari/…, ogbench/…, local/… (made by `python -m benchmarks.collect`), or a .hdf5 or .npz file"""
    env_id: str = ""
    """Gymnasium id of the environment to evaluate in; by default the dataset's own"""
    exact_d4rl: bool = False
    """rows as D4RL's qlearning_dataset has them: none of a timeout, and the next row's observation as the next one"""
    standardise: bool = False
    """observations less their mean, by their standard deviation"""
    total_steps: Count = 1_000_000
    """gradient updates of each run"""
    eval_every: AutoCount = AUTO
    """updates between evaluations, also done at the first and the last one; by default 5,000, antmaze 100,000"""
    eval_episodes: AutoNatural = AUTO
    """episodes of an evaluation; 0: none; by default 10, antmaze 100"""
    log_every: Count = 1_000
    """updates over which training metrics are averaged"""
    checkpoint_every: Count = 50_000
    """updates between checkpoints; a kill loses no more than these"""

    def __post_init__(self) -> None:
        antmaze = self.domain == "antmaze"
        if self.eval_every is None:
            self.eval_every = 100_000 if antmaze else 5_000
        if self.eval_episodes is None:
            self.eval_episodes = 100 if antmaze else 10

    def check_task(self) -> None:
        check_name(self.dataset, self.exact_d4rl)
        if self.env_id:
            check_env_id(self.env_id)
        task = d4rl.tasks().get(self.known_as)
        if task and task.family in d4rl.APART and self.eval_episodes and not self.env_id:
            raise UserError(
                f"--dataset {self.dataset}: no environment of today has its observations ({task.note}), so give "
                "--eval-episodes 0"
            )

    def check_ready(self) -> None:
        check_made(self.dataset)

    @property
    def known_as(self) -> str:
        """The dataset's id in D4RL; if it is none of these, its name, or a file's with the environment's id."""
        if not is_file(self.dataset):
            return self.dataset.removeprefix("d4rl/")
        task = d4rl.of_file(self.dataset)
        return task.name if task else f"{Path(self.dataset).name} {self.env_id}"

    @property
    def words(self) -> set[str]:
        """Of the name by which the dataset is known, in lower case."""
        return set(re.split(r"[^a-z0-9]+", self.known_as.lower()))

    @property
    def domain(self) -> str:
        """The family of tasks that the dataset's name tells: locomotion, antmaze, kitchen, adroit, maze2d or other."""
        families = {
            "antmaze": ("antmaze",), "maze2d": ("maze2d", "pointmaze"), "kitchen": ("kitchen",),
            "locomotion": ("halfcheetah", "hopper", "walker2d"), "adroit": ("pen", "door", "hammer", "relocate"),
        }  # fmt: skip
        found = self.words
        return next((family for family, words in families.items() if found & set(words)), "other")

    def fill(self: T, *tables: dict[str, Any]) -> T:
        """The arguments with those that are None taken from the first table that has them."""
        missing = [name for name, value in vars(self).items() if value is None]
        found = {name: table[name] for table in reversed(tables) for name in missing if name in table}
        return replace(self, **found)


@dataclass(kw_only=True)
class MixedArgs(OfflineArgs):
    """Arguments of scripts that can mix an expert's data into the dataset."""

    expert_dataset: str = ""
    """an expert's data to mix in"""
    expert_trajectories: AutoCount = AUTO
    """of the expert's, hidden in the other data; by default 200, walker2d 100, kitchen 1"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expert_trajectories is None:
            self.expert_trajectories = 1 if self.domain == "kitchen" else 100 if "walker2d" in self.words else 200

    def check_task(self) -> None:
        super().check_task()
        if self.expert_dataset:
            with as_flag("--expert-dataset"):
                check_name(self.expert_dataset, self.exact_d4rl)

    def check_ready(self) -> None:
        super().check_ready()
        if self.expert_dataset:
            with as_flag("--expert-dataset"):
                check_made(self.expert_dataset)

    def load_expert(self) -> Dataset:
        with as_flag("--expert-dataset"):
            return load(self.expert_dataset, self.exact_d4rl)


class NoEnvs:
    """Stands in for the environments that a run asks for, where there is only data."""

    ended = ()
    resumable = True

    def __init__(self, data: Dataset):
        self.data, self.obs_size, self.act_size = data, data.obs_size, data.act_size

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        pass

    def close(self) -> None:
        pass


def begin(
    args: OfflineArgs,
    algorithm: str,
    reward: Rewards | None = None,
    settings: OfflineArgs | None = None,
    more: Dataset | None = None,
    **facts: Any,
) -> tuple[Run, Dataset]:
    """A run on the dataset that the arguments name, and this dataset on the run's device.

    Actions are mapped to [-1, 1] from the environment's bounds, without one from those that the data tells, if it does.
    `reward` says how rewards are changed (see `Dataset.scale_rewards`), "auto" being IQL's way: "minus_one" for
    antmaze, "range" for locomotion; None says that the method uses none. `settings` are the arguments after `fill`;
    what they add is stored with the results, as are `facts`. The transitions of `more`, of --expert-dataset, follow the
    dataset's.
    """
    data = load(args.dataset, args.exact_d4rl)
    if more is not None and (data.obs_size, data.act_size) != (more.obs_size, more.act_size):
        raise UserError(f"--dataset {data.name} and {more.name} are not of the same sizes")
    if args.env_id and args.env_id != data.env_id:
        note = f"its scores are meant for {data.env_id}" if data.env_id and data.low is not None else ""
        data = replace(data, env_id=args.env_id, env_options={}, note=note)
    obs_space: gym.Space | None = None
    low, high = data.bounds or (-np.ones(data.act_size), np.ones(data.act_size))
    act_space: Any = gym.spaces.Box(low.astype(np.float64), high.astype(np.float64), dtype=np.float64)
    if args.eval_episodes and not data.env_id:
        raise UserError(
            f"--dataset {data.name} names no environment to evaluate in: give --env-id, or --eval-episodes 0"
        )
    if data.env_id and (args.eval_episodes or args.env_id):
        check_env_id(data.env_id)
        try:
            venv = make_vec(data.env_id, 1, **data.env_options)
        except Exception as error:  # whatever the environment's own code raises
            raise UserError(
                f"--dataset {data.name} is evaluated in {data.env_id}, which cannot be made here "
                f"({type(error).__name__}: {error}); name another one with --env-id, or give --eval-episodes 0"
            ) from None
        obs_space, act_space = venv.single_observation_space, venv.single_action_space
        venv.close()
    warnings = [f"{data.name}: {warning}" for warning in validate(data, obs_space, act_space)]
    if more is not None:
        with as_flag("--expert-dataset"):
            warnings += [f"{more.name}: {warning}" for warning in validate(more, obs_space, act_space)]
        facts |= {"dataset_digest": data.digest}  # what follows is of both
        data = data.joined(more)
    if reward and not data.rewarded:
        raise UserError(f"--dataset {data.name} has no rewards, which {algorithm} learns from")
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    data.fit_actions(act_space.low, act_space.high)
    done = [f"{len(data):,} transitions"]
    if reward == "auto":
        reward = {"antmaze": "minus_one", "locomotion": "range"}.get(args.domain, "none")  # type: ignore[assignment]
    if reward:
        done.append(data.scale_rewards(reward))
    if args.standardise:
        data.standardise()
        done.append("observations standardised")
    facts |= {"digest": data.digest, "transitions": len(data), "source": data.source, "note": data.note}
    facts |= {"low": data.low, "high": data.high, "evaluated_in": data.env_id, "env_options": data.env_options}
    facts |= {name: value for name, value in vars(settings or args).items() if value != getattr(args, name)}
    run = Run(
        args,
        algorithm,
        make_envs=lambda seeds, device: NoEnvs(data.to(device)),
        eval_env=(data.env_id, data.env_options) if data.env_id else None,
        score="return" if data.low is None else "score",
        show=lambda returns: run.envs.data.score(returns),  # data.score would keep what is not on the device
        facts=facts,
    )
    place = f", evaluated in {data.env_id}" + (f" ({data.note})" if data.note else "") if run.evaluator else ""
    run.say(f"{data.name}: {', '.join(done)}{place}")
    return run, run.envs.data
