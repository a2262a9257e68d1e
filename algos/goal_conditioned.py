"""The part of offline goal-conditioned scripts around their algorithm: arguments, batches, networks, and a run.

Goals are states of the data, and rewards come from goals: -1 until the goal is reached, then 0 for ever. The
networks have the form of OGBench's.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call

from algos.arguments import Count, FewOrNone, Incidental, OpenFraction, Positive, Size, Tunable, Widths, by_domain
from algos.cli import check_env_id
from algos.data import check_name, is_file, validate
from algos.data.names import GOALS
from algos.errors import UserError, warn
from algos.evaluate import Ways
from algos.film import Shot, film
from algos.goal_data import check_goals, check_maze, check_positions, load_states, sizes_of, validation_data
from algos.goals import GoalDraws, Goals, Mix, check_mix, goal_draws
from algos.nn import MLP, Glorot, Lead, gelu
from algos.offline import OfflineArgs, spaces, told_defaults
from algos.per_run import PerRun
from algos.random import Random
from algos.run import Run
from algos.run_folder import parquet_bytes
from algos.ways import order_of_values, values_table, ways_table
from envs import plain_id
from envs.goals import is_own
from envs.mazes import maze_of

Probabilities = tuple[float, float, float]
FAMILIES = ("pointmaze", "antmaze", "humanoidmaze", "antsoccer", "cube", "scene", "puzzle")
KINDS = ("navigate", "stitch", "explore", "play", "noisy")
LOG_TWO_PI = math.log(2 * math.pi)


@dataclass(kw_only=True)
class GoalArgs(OfflineArgs):
    """Arguments of every goal-conditioned script; defaults are OGBench's, and some depend on the dataset's name."""

    dataset: str = "local/pointmaze-medium-navigate-v0"
    """ogbench/…, local/… (made by `python -m benchmarks.collect`), minari/…, d4rl/…, or a .hdf5 or .npz file; rewards
    are not used. Defaults named after words, such as `antmaze` or `antmaze-explore`, hold for datasets whose names have
    these words"""
    standardise: bool = False
    """refused: goals are observations as they are"""
    validation: bool = True
    """also log losses on the dataset's validation episodes, where it has them"""
    video: Incidental[bool] = False
    """write the first seed's first episode of each task in the last evaluation to videos/<task>.mp4"""
    batch_size: Size = 1024
    """transitions per update and run"""
    lr: Tunable[Positive] = 3e-4
    """learning rate of all networks"""
    hidden: Widths = (512, 512, 512)
    """widths of the hidden layers of all networks"""
    eval_every: Count = 100_000
    """updates between evaluations, which also take place before the first update and after the last"""
    eval_episodes: FewOrNone = 50
    """episodes of each run and task at an evaluation; 0: there are no evaluations"""

    @property
    def keys(self) -> list[str]:
        """The keys of defaults that depend on the dataset: the actor's loss, family with kind, names, words.

        The stitching mazes have the defaults of OGBench's point mazes for stitching, and D4RL's maze2d those of its
        point mazes.
        """
        more = {"stitching": ("pointmaze", "stitch"), "maze2d": ("pointmaze",)}
        words = [*self.words, *(word for name, of_name in more.items() if name in self.words for word in of_name)]
        family = next((word for word in words if word in FAMILIES), "")
        kind = next((word for word in words if word in KINDS), "")
        return [getattr(self, "actor_loss", ""), f"{family}-{kind}", *super().keys, *words]

    def check_task(self) -> None:
        check_name(self.dataset, self.exact_d4rl)
        if self.dataset.startswith("ogbench/") and {"visual", "powderworld"} & set(self.words):
            raise UserError(f"--dataset {self.dataset} has images for observations, and states of numbers are needed")
        if self.env_id and self.eval_episodes:
            check_goals(self.env_id)
        elif self.env_id:
            check_env_id(self.env_id)
        self.check_apart()

    def check_ready(self) -> None:
        super().check_ready()
        if self.standardise:
            raise UserError("--standardise is not for goal-conditioned methods, whose goals are raw observations")
        if self.video and not self.eval_episodes:
            raise UserError("--video films the last evaluation, and with --eval-episodes 0 there is none")


@dataclass(kw_only=True)
class ValueArgs(GoalArgs):
    """Arguments of the methods that learn values of goals."""

    discount: Tunable[OpenFraction] = by_domain(0.99, giant=0.995, humanoidmaze=0.995)
    """gamma, where the method has one; it also decides how far geometric goals lie ahead"""
    value_goals: Probabilities = (0.2, 0.5, 0.3)
    """goals of values: probabilities of the current state, a later state of the trajectory, and a random state"""
    value_geometric: bool = True
    """goals of values in the trajectory lie at a geometric distance; otherwise they are drawn uniformly"""
    actor_goals: Probabilities = by_domain((0.0, 1.0, 0.0), stitch=(0.0, 0.5, 0.5), explore=(0.0, 0.0, 1.0))
    """goals of the actor: the same three probabilities; 0 0.5 0.5 for stitch data, 0 0 1 for explore data. In HIQL and
    OTA, they are goals of the high policy, and the first probability has to be 0"""
    actor_geometric: bool = False
    """goals of the actor in the trajectory lie at a geometric distance; otherwise they are drawn uniformly"""

    @property
    def geometric(self) -> bool:
        """Whether any goal lies at a geometric distance."""
        return any(mix.geometric and mix.trajectory for mix in (self.value_mix, self.actor_mix))

    @property
    def value_mix(self) -> Mix:
        """Where goals of values come from."""
        return Mix(*self.value_goals, geometric=self.value_geometric)

    @property
    def actor_mix(self) -> Mix:
        """Where goals of the actor come from."""
        return Mix(*self.actor_goals, geometric=self.actor_geometric)

    def without_effect(self) -> dict[str, str]:
        mixes = {"value_geometric": self.value_mix, "actor_geometric": self.actor_mix}
        return {name: "where no goal is a later state" for name, mix in mixes.items() if not mix.trajectory}

    def check_task(self) -> None:
        super().check_task()
        check_mix("--value-goals", self.value_goals)
        check_mix("--actor-goals", self.actor_goals)


# -- batches -----------------------------------------------------------------------------------------------------------


class Transitions(NamedTuple):
    """Transitions of every run, each with a goal of the values and one of the actor."""

    obs: Tensor  # [R, B, O]
    action: Tensor  # [R, B, A]
    next_obs: Tensor  # [R, B, O]
    value_goal: Tensor  # [R, B, O]
    reward: Tensor  # [R, B], 0 where the state is the value's goal, otherwise -1
    mask: Tensor  # [R, B], 0 where the state is the value's goal, otherwise 1
    goal: Tensor  # [R, B, O], the actor's


class Draws(NamedTuple):
    """Random numbers of a batch of transitions."""

    row: Tensor  # [R, B] integers in [0, 2^63)
    value: GoalDraws
    actor: GoalDraws


def transition_draws(random: Random, batch_size: int, name: str = "") -> Callable[[], Draws]:
    """Endless random numbers for batches of transitions."""
    row = random.integers(f"{name}minibatch", batch_size)
    value, actor = (goal_draws(random, name + kind, batch_size) for kind in ("value", "actor"))
    return lambda: Draws(row(), value(), actor())


def transitions(goals: Goals, args: ValueArgs, draws: Draws) -> Transitions:
    """A batch of transitions with goals of both kinds."""
    row = goals.anywhere(draws.row)
    value_row = goals.mixed(row, args.value_mix, draws.value, args.discount)
    actor_row = goals.mixed(row, args.actor_mix, draws.actor, args.discount)
    obs, next_obs, value_goal, goal = goals.states(row, row + 1, value_row, actor_row)
    mask = (value_row != row).to(obs.dtype)
    return Transitions(obs, goals.actions(row), next_obs, value_goal, -mask, mask, goal)


# -- networks ----------------------------------------------------------------------------------------------------------


def network(lead: Lead, in_size: int, hidden: Sequence[int], out_size: int) -> MLP:
    """OGBench's MLP for values and representations: GELU, then layer normalisation, after each hidden layer."""
    return MLP(lead, in_size, hidden, out_size, gelu, linear=Glorot, norm_after=1e-6)


class Actor(nn.Module):
    """Gaussian policy of standard deviation 1: state [R, B, O], goal [R, B, G] -> mean [R, B, A], not squashed."""

    def __init__(self, runs: int, obs_size: int, goal_size: int, hidden: Sequence[int], act_size: int):
        super().__init__()
        last = partial(Glorot, gain=0.1)  # variance scaling with 0.01
        self.net = MLP((runs,), obs_size + goal_size, hidden, act_size, gelu, linear=Glorot, last=last)

    def forward(self, obs: Tensor, goal: Tensor) -> Tensor:
        return self.net(torch.cat([obs, goal], -1))


def log_prob(mean: Tensor, x: Tensor) -> Tensor:
    """Log-density [R, B] of points [R, B, n] under Gaussians with means [R, B, n] and standard deviation 1."""
    return -0.5 * ((x - mean).square() + LOG_TWO_PI).sum(-1)


class TwinValue(nn.Module):
    """Twin values: any inputs [R, B, ...], which are joined -> [R, 2, B]."""

    def __init__(self, runs: int, in_size: int, hidden: Sequence[int]):
        super().__init__()
        self.net = network((runs, 2), in_size, hidden, 1)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.net(torch.cat(inputs, -1)[:, None]).squeeze(-1)


class Representation(nn.Module):
    """phi of HIQL: state and goal [R, B, O] -> [R, B, n], of length sqrt(n)."""

    def __init__(self, runs: int, size: int, hidden: Sequence[int], out_size: int):
        super().__init__()
        self.net = network((runs,), 2 * size, hidden, out_size)

    def forward(self, obs: Tensor, goal: Tensor) -> Tensor:
        return sphere(self.net(torch.cat([obs, goal], -1)))


def sphere(x: Tensor) -> Tensor:
    """Vectors [..., n], brought to the length sqrt(n)."""
    return x * (math.sqrt(x.shape[-1]) / x.norm(dim=-1, keepdim=True))


# -- losses that several methods share ---------------------------------------------------------------------------------


def expectile_loss(advantage: Tensor, error: Tensor, expectile: float | PerRun) -> Tensor:
    """|expectile - 1(A < 0)| e^2, elementwise."""
    return torch.where(advantage >= 0, expectile, 1 - expectile) * error.square()  # type: ignore[operator, arg-type]


def twin_value_loss(value: Tensor, backup: Tensor, old_value: Tensor, expectile: float | PerRun) -> Tensor:
    """Each value V_i [R, 2, B] follows an expectile of its own backup [R, 2, B], made by its target: losses [R].

    The weight is that of the advantage min_i backup_i - mean_i V'_i, where the old values V' [R, 2, B] are those of the
    targets at the same state.
    """
    advantage = backup.amin(1) - old_value.mean(1)
    return expectile_loss(advantage[:, None], backup - value, expectile).mean(-1).sum(-1)


def advantage_weight(advantage: Tensor, alpha: float | PerRun) -> Tensor:
    """exp(alpha A), at most 100."""
    return (alpha * advantage).exp().clamp(max=100.0)


def frozen(module: nn.Module) -> Callable[..., Tensor]:
    """A module as a function in which its parameters are constants: gradients pass to its inputs only."""
    constants = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return lambda *inputs: functional_call(module, constants, inputs)


def ddpg_loss(q: Tensor) -> Tensor:
    """-Q of the policy's actions [R, B], divided by its mean magnitude, which is a constant: losses [R]."""
    return -q.mean(-1) / (q.detach().abs().mean(-1) + 1e-6)


# -- a run -------------------------------------------------------------------------------------------------------------

Args = TypeVar("Args", bound=GoalArgs)


def goal_run(
    args: Args, algorithm: str, *, positions: bool = False, places: bool = False, final_states: bool = False
) -> tuple[Run[Args], Goals, Goals | None]:
    """A run on the dataset that the arguments name, its goals, and those of its validation episodes if it has any.

    The run is scored by the percentage of episodes that reach their goals, over all tasks of the environment. Goals are
    whole states, or positions; `places` says that the method needs positions in states. Raises UserError for data that
    cannot be trained on, and for an environment that has no goals or other ones.
    """
    held_out = None
    if args.validation:  # first: it is downloaded where the dataset is not
        held_out = validation_data(args.dataset, args.exact_d4rl, args.env_id)
    data = load_states(args.dataset, args.exact_d4rl, args.env_id)
    if isinstance(args, ValueArgs) and is_file(args.dataset):
        if not set(args.words) & {*KINDS, "stitching"}:
            warn(
                f"the name of --dataset {data.name} has none of the words {', '.join(KINDS)}, so goals have the "
                "defaults of navigate data"
            )
        if not set(args.words) & {*FAMILIES, "stitching", "maze2d"}:
            warn(
                f"--dataset {data.name} and --env-id have none of the words {', '.join(FAMILIES)} in their names, so "
                "weights and distances of goals have the first of the defaults that --help names"
            )
    if args.env_id and plain_id(args.env_id) != plain_id(data.env_id or ""):
        check_maze(data, args.env_id)
        data = replace(data, env_id=args.env_id, env_options={})
    if positions or places:
        check_positions(data, args.dataset, f"take {'--goal' if positions else '--cluster-by'} state")
    obs_space, act_space = spaces(args, data)
    tasks, options = [], data.env_options if is_own(data.env_id or "") else {}
    if args.eval_episodes:
        assert data.env_id  # `spaces` requires it
        tasks = check_goals(data.env_id, args.dataset, options)
        obs_space, size = sizes_of(data.env_id, tasks, options)
        if size != data.obs_size and not positions:
            raise UserError(
                f"--dataset {data.name} has states of {data.obs_size} numbers, and the goals of {data.env_id} have "
                f"{size}: take a method whose goals are positions (gcbc.py --goal position), or another --env-id"
            )
    elif plain_id(data.env_id or "").startswith("PointMaze_"):
        obs_space = None  # its observations hold goals too
    if held_out and (held_out.obs_size, held_out.act_size) != (data.obs_size, data.act_size):
        raise UserError(
            f"--dataset {data.name} and its validation episodes, {held_out.name}, are not of the same sizes"
        )
    for part in filter(None, (data, held_out)):
        for warning in validate(part, obs_space, act_space):
            # goals give rewards, and the episodes of some mazes are longer than those of their evaluation
            if not any(words in warning for words in ("rewards", "of the task", "values are wrong")):
                warn(f"{part.name}: {warning}")
    note = "" if data.note == GOALS else data.note
    if note and tasks:
        warn(f"{data.name} and {data.env_id}: {note}")
    for part in filter(None, (data, held_out)):
        part.fit_actions(act_space.low, act_space.high, edge=0.0)
    facts: dict[str, Any] = {"digest": data.digest, "transitions": len(data), "source": data.source, "note": note}
    facts |= {"low": None, "high": None, "evaluated_in": data.env_id, "env_options": data.env_options}
    facts |= {"validation_digest": held_out.digest if held_out else None}
    run = Run(args, algorithm, score="success", facts=facts)
    run.adapts = data.is_prepared
    done = [f"{len(data):,} transitions"]
    if data.parts:
        done.append(f"states are {data.parts_in_words}")
    if held_out:
        done.append(f"{len(held_out):,} more for validation")
    env_id = args.env_id or data.env_id  # the former may have a module, which others need to make it
    if tasks:
        run.evaluate_goals(str(env_id), tasks, options)
        done.append(f"evaluated on {len(tasks)} tasks of {data.env_id}")
    elif env_id:  # for those who evaluate the policies later
        with contextlib.suppress(UserError):
            run.acts_in(env_id, options, check_goals(env_id, options=options))
    run.say(f"{data.name}: {', '.join(done)}")
    if told := told_defaults(args):
        run.say(told)
    goals = Goals(data.to(run.device), final_states)
    return run, goals, Goals(held_out.to(run.device), final_states) if held_out else None


def watch_goals(run: Run[Any], agent: Any, env_id: str | None) -> None:
    """In a maze, lets a run store what figures of it need; if asked, lets it write videos.

    With every checkpoint, these are ways.parquet and values.parquet, see `algos.ways`. Where states are positions, an
    evaluation also logs `order_of_values`.
    """
    evaluator = run.evaluator
    if evaluator is None or env_id is None:
        return
    if run.given.video:
        run.afterwards = lambda: run.say(film_of(evaluator.ways, run.environment, run.folder.path / "videos"))
    try:
        maze = maze_of(env_id)
    except ValueError:
        return

    def of_ways(table: Callable[..., pd.DataFrame], *more: Any) -> Callable[[], bytes | None]:
        """A table of the last evaluation; None if there was none since the run was resumed."""
        return lambda: parquet_bytes(table(evaluator.ways, run.keys, *more)) if evaluator.ways else None

    run.export("ways.parquet", of_ways(ways_table))
    if not hasattr(agent, "value_of"):
        return
    run.export("values.parquet", of_ways(values_table, agent, maze))
    if agent.task.obs_size != 2:
        return
    ahead, like = getattr(run.given, "subgoal_steps", 25), next(agent.parameters())  # states are positions

    def orders(_: int) -> dict[str, Any]:
        kinds = {"order_of_values": "value_of", "order_of_low_values": "low_value_of"}
        known = {name: getattr(agent, kind) for name, kind in kinds.items() if hasattr(agent, kind)}
        assert evaluator.ways  # it is called after an evaluation
        return {name: order_of_values(evaluator.ways, value, maze, ahead, like) for name, value in known.items()}

    run.watch(orders)


def film_of(ways: Ways | None, place: dict[str, Any], folder: Path) -> str:
    """Writes videos of the first run's ways in an environment, see `algos.film` and `Run.acts_in`."""
    if not ways:
        return "there is nothing to film"
    shots = {
        folder / f"{task}.mp4": [
            Shot(place["env_id"], seed, actions[np.isfinite(actions[:, 0])], task, place["options"])
        ]
        for task, seed, actions in zip(ways.tasks, ways.seeds[0], ways.actions[0], strict=True)
    }
    # without a GPU, a frame takes a tenth of a second
    return film(shots, every=8, fps=15) or f"videos of the first seed in {folder}"


def validation_losses(losses: Callable[[Any], dict[str, Tensor]], batch: Any) -> dict[str, Tensor]:
    """The losses [R] on a batch of validation episodes, by the names under which they are logged."""
    with torch.no_grad():
        return {f"validation/{name}": value for name, value in losses(batch).items()}
