"""The part of offline scripts around their algorithm: arguments, and a run on a dataset that is ready to learn from."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from algos.arguments import Count, FewOrNone, by_domain, decided, flag, for_domain
from algos.cli import RunArgs, check_env_id
from algos.data import Dataset, action_box, check_made, check_name, is_file, load, validate
from algos.data.record import normalised
from algos.errors import UserError, warn
from algos.run import Run
from envs import d4rl, make_vec, plain_id
from envs.task import check_bounds

Rewards = Literal["range", "minus_one", "none"]
Decay = Literal["cosine", "none"]
Args = TypeVar("Args", bound="OfflineArgs")
MOST_BEYOND = 0.01  # share of actions beyond bounds that nobody named, such as those of noise
STARTS = 256  # first states of trajectories by which a policy is valued
FORMATS = ("local", "minari", "mujoco", "ogbench", "d4rl")  # words of names that say where a dataset comes from
LOCOMOTION = ("halfcheetah", "hopper", "walker2d")
QUALITIES = ("medium-replay", "medium-expert", "full-replay", "medium", "random", "expert")


@contextlib.contextmanager
def as_flag(flag: str) -> Iterator[None]:
    """Errors about a dataset name this flag instead of --dataset."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace("--dataset", flag, 1)) from None


def words_of(name: str) -> list[str]:
    """The words of a name, in lower case."""
    return re.findall(r"[a-z0-9]+", name.lower())


@dataclass(kw_only=True)
class OfflineArgs(RunArgs):
    """Arguments of every offline script; defaults may depend on the dataset's name, see `keys`."""

    TASK: ClassVar[str] = "dataset"
    STEPS: ClassVar[str] = "gradient updates"

    dataset: str = "local/halfcheetah-medium-v0"
    """d4rl/…, minari/…, ogbench/…, local/… (made by `python -m benchmarks.collect`), or a .hdf5 or .npz file"""
    env_id: str = ""
    """Gymnasium id of the environment to evaluate in; by default the dataset's own"""
    exact_d4rl: bool = False
    """take D4RL's qlearning_dataset: no timeouts and no last row, and the next observation is the next row's"""
    standardise: bool = False
    """subtract the mean from observations and divide them by their standard deviation"""
    total_steps: Count = 1_000_000
    """gradient updates of each run"""
    eval_every: Count = by_domain(5_000, antmaze=100_000)
    """updates between evaluations, which also take place before the first and after the last"""
    eval_episodes: FewOrNone = by_domain(10, antmaze=100)
    """episodes of each run at an evaluation; 0: there are no evaluations"""
    log_every: Count = 1_000
    """updates over which training metrics are averaged"""
    checkpoint_every: Count = 50_000
    """updates between checkpoints, and at most a quarter of an hour; where writing one takes over 5 seconds, they come
    less often, and take at most a twentieth of the time"""

    def __post_init__(self) -> None:
        for_domain(self, self.keys)

    def check_task(self) -> None:
        check_name(self.dataset, self.exact_d4rl)
        if self.env_id:
            check_env_id(self.env_id)
        self.check_apart()

    def check_apart(self) -> None:
        """Raises UserError for data of D4RL whose observations no environment of today has, if one is needed."""
        task = d4rl.tasks().get(self.known_as)
        if task and task.family in d4rl.APART and self.eval_episodes and not self.env_id:
            raise UserError(
                f"--dataset {self.dataset}: no environment of today has its observations, so give --eval-episodes 0 "
                f"({task.note})"
            )

    def check_ready(self) -> None:
        super().check_ready()
        check_made(self.dataset)

    @property
    def known_as(self) -> str:
        """The dataset's id in D4RL if it has one; otherwise its name, or a file's name and the environment's id."""
        if not is_file(self.dataset):
            return self.dataset.removeprefix("d4rl/")
        task = d4rl.of_file(self.dataset)
        return task.name if task else f"{Path(self.dataset).stem} {self.env_id}"

    @property
    def words(self) -> list[str]:
        """The words of the name by which the dataset is known, in lower case; AdroitHandPen is also three of them."""
        apart = re.sub("(?<=[a-z])(?=[A-Z])", " ", self.known_as)
        return list(dict.fromkeys(words_of(f"{self.known_as} {apart}")))

    @property
    def keys(self) -> list[str]:
        """The keys of defaults that depend on the dataset: its names, such as hopper-medium, its words, its domain.

        The name of a locomotion dataset is also made of the words that say which it is.
        """
        words = words_of(self.known_as.removesuffix(f" {self.env_id}"))  # of a file without the environment's
        name = "-".join(word for word in words if word not in FORMATS and not re.fullmatch(r"v\d+", word))
        body = next((word for word in self.words if word in LOCOMOTION), "")
        known = {part for kind in QUALITIES for part in kind.split("-")}
        runs = ["-".join(run) for is_kind, run in groupby(words_of(self.known_as), known.__contains__) if is_kind]
        quality = runs[-1] if runs and runs[-1] in QUALITIES else ""  # unknown mixtures have none
        others = [word for word in self.words if word != self.domain]
        return [self.known_as, name, f"{body}-{quality}", *others, self.domain]

    @property
    def domain(self) -> str:
        """The family of tasks, by the dataset's name: locomotion, antmaze, kitchen, adroit, maze2d or other."""
        families = {
            "antmaze": ("antmaze",), "maze2d": ("maze2d", "pointmaze"), "kitchen": ("kitchen",),
            "locomotion": LOCOMOTION, "adroit": ("pen", "door", "hammer", "relocate"),
        }  # fmt: skip
        return next((family for family, words in families.items() if set(self.words) & set(words)), "other")


@dataclass(kw_only=True)
class MixedArgs(OfflineArgs):
    """Arguments of scripts that can mix an expert's data into the dataset."""

    expert_dataset: str = ""
    """an expert's data to mix in"""
    expert_trajectories: Count = by_domain(200, walker2d=100, kitchen=1)
    """number of trajectories of --expert-dataset that are hidden in the other data"""

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

    def without_effect(self) -> dict[str, str]:
        return {} if self.expert_dataset else {"expert_trajectories": "without --expert-dataset"}

    def load_expert(self) -> Dataset:
        with as_flag("--expert-dataset"):
            return load(self.expert_dataset, self.exact_d4rl)


def offline_run(
    args: Args,
    algorithm: str,
    reward: Rewards | None = None,
    *,
    expert: Dataset | None = None,
    states: bool = False,
    top: float = 1.0,
    **facts: Any,
) -> tuple[Run[Args], Dataset]:
    """A run on the dataset that the arguments name, and this dataset on the run's device.

    Actions are mapped to [-1, 1] from the environment's bounds, or, without an environment, from those that the format
    stores; files of D4RL's layout store none, and nearly all of their actions have to lie within -1 and 1 then.
    `reward` says how rewards are changed (see `Dataset.scale_rewards`); it is None if the method uses none. Transitions
    of `expert`, from --expert-dataset, follow the dataset's. With `states`, the dataset has the simulator's states if
    they are stored. With `top`, only the trajectories with the highest returns are kept, this fraction of all
    transitions. `facts` are stored with the results. Raises UserError for data that cannot be trained on, and prints
    warnings about what looks wrong.
    """
    data = load(args.dataset, args.exact_d4rl, states)
    if expert is not None and (data.obs_size, data.act_size) != (expert.obs_size, expert.act_size):
        raise UserError(f"--dataset {data.name} and {expert.name} are not of the same sizes")
    if args.env_id and plain_id(args.env_id) != plain_id(data.env_id or ""):
        note = f"its scores are meant for {data.env_id}" if data.env_id and data.low is not None else ""
        data = replace(data, env_id=args.env_id, env_options={}, note=note)
    needs = "--top-fraction needs" if top < 1 else f"{algorithm} learns from"
    obs_space, act_space = spaces(args, data)
    warnings = [f"{data.name}: {warning}" for warning in validate(data, obs_space, act_space)]
    if expert is not None:
        with as_flag("--expert-dataset"):
            if obs_space is None and not data.bounds:
                check_within_one(expert)
            warnings += [f"{expert.name}: {warning}" for warning in validate(expert, obs_space, act_space)]
        facts |= {"dataset_digest": data.digest}  # the digest below is that of both together
        unpaid = reward and data.rewarded and not expert.rewarded
        data = data.joined(expert)
        if unpaid:
            raise UserError(f"--expert-dataset {expert.name} has no rewards, which {needs}")
    if reward and not data.rewarded:
        raise UserError(f"--dataset {data.name} has no rewards, which {needs}")
    for warning in warnings:
        warn(warning)
    data.fit_actions(act_space.low, act_space.high)
    done = [f"{len(data):,} transitions"]
    if data.parts:
        done.append(f"observations joined from {data.parts_in_words}")
    if reward:
        done.append(data.scale_rewards(reward))
    facts |= {"digest": data.digest, "transitions": len(data), "source": data.source, "note": data.note}
    if top < 1:
        data = data.best(top)
        done.append(f"{len(data):,} kept, of the trajectories with the highest returns")
    if args.standardise:
        data.standardise()
        done.append("observations standardised")
    facts |= {"low": data.low, "high": data.high, "evaluated_in": data.env_id, "env_options": data.env_options}
    low, high = data.low, data.high
    show = partial(normalised, low=low, high=high)  # data.score would keep the host's copy of the data
    run = Run(args, algorithm, score="return" if low is None else "score", show=show, facts=facts)
    run.adapts = data.is_prepared
    place = ""
    env_id = args.env_id or data.env_id  # the former may have a module, which others need to make it
    if env_id and not args.eval_episodes:
        run.acts_in(env_id, data.env_options)
    elif env_id:
        run.evaluate_in(env_id, data.env_options)
        place = f", evaluated in {data.env_id}" + (f" ({data.note})" if data.note else "")
        if low is not None and high is not None:
            form = ",.0f" if high - low > 10 else ".3g"
            place += f"; its returns of {low:{form}} and {high:{form}} are scores of 0 and 100"
    run.say(f"{data.name}: {', '.join(done)}{place}")
    if told := told_defaults(args):
        run.say(told)
    return run, data.to(run.device)


def start_values(
    data: Dataset, runs: int, values: Callable[[Tensor], Tensor]
) -> Callable[[int], dict[str, np.ndarray]]:
    """For `Run.watch`: the mean value [R] of a policy on the first states of trajectories, as `start_value`.

    `values` gives the critic's value of the policy's actions: obs [R, B, O] -> [R, B]. It is how policies can be chosen
    without playing; see `benchmarks.budget`.
    """
    rows = data.index[torch.from_numpy(data.trajectories()[:STARTS, 0].copy()).to(data.index.device)]
    obs = data.obs[rows].expand(runs, -1, -1)

    @torch.no_grad()
    def watched(_: int) -> dict[str, np.ndarray]:
        return {"start_value": values(obs).mean(-1).double().cpu().numpy()}

    return watched


def check_within_one(data: Dataset) -> None:
    """Raises UserError if many actions lie beyond -1 and 1, but for rounding."""
    share = float((data.action[data.index].abs() > 1.001).any(-1).float().mean())
    if share > MOST_BEYOND:
        raise UserError(
            f"--dataset {data.name}: {share:.0%} of actions lie beyond -1 and 1, and no environment tells bounds: "
            "name it with --env-id, which counts with --eval-episodes 0 too, or bring actions to -1 and 1"
        )


def told_defaults(args: OfflineArgs) -> str:
    """Which defaults the words in names of one's own decided on, in a sentence; empty where there are none."""
    loss = getattr(args, "actor_loss", None)  # decides on defaults too, and is given by a flag
    words = {name: word for name, word in decided(args, args.keys).items() if word != loss}
    if not (is_file(args.dataset) and words):
        return ""
    values = {name: getattr(args, name) for name in words}
    told = {name: " ".join(map(str, v)) if isinstance(v, tuple) else str(v) for name, v in values.items()}
    named = ", ".join(f"{flag(name)} {told[name]} (as for {word})" for name, word in words.items())
    return f"by words in the names of the file and of --env-id: {named}"


def spaces(args: OfflineArgs, data: Dataset) -> tuple[gym.Space | None, Any]:
    """The spaces of the environment to evaluate in; without one, None and the bounds of the data's actions.

    Raises UserError if an environment is needed and there is none, or if it cannot be made.
    """
    if args.eval_episodes and not data.env_id:
        raise UserError(
            f"--dataset {data.name} names no environment to evaluate in: give --env-id, or --eval-episodes 0"
        )
    if not data.env_id or not (args.eval_episodes or args.env_id):
        if not data.bounds:
            check_within_one(data)
        return None, action_box(data)
    try:
        check_env_id(data.env_id)
    except UserError as error:
        if args.env_id:
            raise
        raise UserError(
            f"--dataset {data.name} is evaluated in {data.env_id}, which cannot be found here "
            f"({str(error).removeprefix('--env-id: ')}): name the environment with --env-id, or give --eval-episodes 0"
        ) from None
    try:
        venv = make_vec(data.env_id, 1, **data.env_options)
    except Exception as error:  # the environment's own code may raise anything
        raise UserError(
            f"--dataset {data.name} is evaluated in {data.env_id}, which cannot be made here "
            f"({type(error).__name__}: {error}); name another one with --env-id, or leave it out and give "
            "--eval-episodes 0"
        ) from None
    venv.close()
    if isinstance(venv.single_action_space, gym.spaces.Box):
        try:
            check_bounds(data.env_id, venv.single_action_space)
        except ValueError as error:
            raise UserError(f"--dataset {data.name} cannot be evaluated in its environment: {error}") from None
    return venv.single_observation_space, venv.single_action_space
