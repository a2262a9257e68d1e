"""Evaluation: episodes of every run, all at once, in environments of their own."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from algos.errors import UserError, warn
from algos.signals import Signals
from envs import make_vec
from envs.make import is_batched
from envs.seeding import sub_seed
from envs.tabular import evaluate
from envs.tabular.exact import Analysis
from envs.tabular.vector import TabularVectorEnv
from envs.task import Finite, within

SUCCESS = ("success", "is_success")  # in the info of a step
LONGEST = 100_000  # steps after which an episode without a time limit is cut
LONG = 10_000  # steps after which it is named
TAIL = 0.05  # a return counts as observed if its unseen rest has at most this weight
# makes that many environments of one task or, where there are several, one for each of these names of tasks
Maker = Callable[[Any], VectorEnv]
# obs [R, episodes, O], and where there are goals, goal [R, episodes, G] -> action [R, episodes, A]
Act = Callable[..., Tensor]
# obs [R, episodes, O], noise [R, episodes, A] -> action, its predicted value, and the entropy bonus of the state
PredictValues = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class Score(NamedTuple):
    """One episode of an evaluation."""

    task: str  # empty where the environment has one task only
    total: float  # undiscounted return
    length: int
    success: bool | None  # at the last step; None where the environment does not tell


def maker(env_id: str, threads: int | None = None, **options: Any) -> Maker:
    """The maker of environments of an id. Finished MuJoCo episodes are not reset, and cost nothing more."""
    mode = AutoresetMode.DISABLED if is_batched(env_id) else AutoresetMode.SAME_STEP
    return lambda count: make_vec(env_id, count, autoreset_mode=mode, threads=threads, **options)


class Evaluator:
    """`episodes` episodes of each of R runs; each evaluation starts from fresh states that depend on seed and step.

    `make` makes the environments. With `tasks`, there are `episodes` of each task, all at once. With `goals`,
    policies get the goal that a reset tells as their second argument, and `ways` keeps the first episode of each task
    in the last evaluation. With `timed`, they get the number of steps since the episode began as their last argument.
    Episodes count from `first`. If steps tell `success`, that of an episode's last step is kept.
    """

    def __init__(
        self,
        make: Maker,
        seeds: Sequence[int],
        episodes: int,
        device: torch.device | str = "cpu",
        *,
        tasks: Sequence[str] = (),
        goals: bool = False,
        timed: bool = False,
        first: int = 0,
    ):
        self.seeds, self.device, self.goals, self.timed = list(seeds), torch.device(device), goals, timed
        self.dtype = torch.get_default_dtype()
        self.ways: Ways | None = None
        self.rewards = Finite("the environment of the evaluation", "a reward")
        self.named = False  # whether a warning named the length of episodes
        self.places = [(task, first + e) for task in tasks or [""] for e in range(episodes)]  # of one run
        self.episodes = len(self.places)
        count = len(self.seeds) * self.episodes
        self.venv = make([task for _ in self.seeds for task, _ in self.places] if tasks else count)

    @torch.no_grad()
    def __call__(self, policy: Act, step: int | Sequence[int], purpose: str = "evaluation") -> list[list[Score]]:
        """Runs the policies of a step, or of one for each run [R]: the episodes of each run, task by task.

        Another `purpose` makes other episodes.
        """
        steps = [step] * len(self.seeds) if isinstance(step, int) else step
        shape = (len(self.seeds), self.episodes)
        totals, lengths = np.zeros(shape), np.zeros(shape, int)
        success: NDArray | None = None
        first = [place for place, (_, e) in enumerate(self.places) if e == self.places[0][1]]
        way, actions = [], []
        for moment in self.play(policy, purpose, steps):
            if self.goals:
                running = moment.running[:, first, None]
                way.append(np.where(running, moment.obs[:, first], np.nan))
                actions.append(np.where(running, moment.action[:, first], np.nan))
            totals += moment.reward
            lengths += moment.running
            if moment.success is not None:
                success = np.where(moment.running, moment.success, False if success is None else success)
        if self.goals:
            tasks = [self.places[i][0] for i in first]
            e = self.places[0][1]
            seeds = [[self.seed_of(run, purpose, task, steps[run], e) for task in tasks] for run in range(shape[0])]
            self.ways = Ways(tasks, seeds, self.last_goals[:, first], np.stack(way, 2), np.stack(actions, 2))
        return [
            [
                Score(
                    task,
                    float(totals[run, i]),
                    int(lengths[run, i]),
                    None if success is None else bool(success[run, i]),
                )
                for i, (task, _) in enumerate(self.places)
            ]
            for run in range(len(self.seeds))
        ]

    @torch.no_grad()
    def values(self, predict: PredictValues, discount: NDArray, step: int) -> tuple[NDArray, NDArray]:
        """Predicted action values, and the discounted returns that followed: means over visited states, each [R].

        `predict` maps obs [R, episodes, O] and standard normal noise [R, episodes, A] to an action, the value predicted
        for it, and the bonus that the value counts at this state beside the reward (entropy, or zeros); `discount` is
        [R]. The return is r_t + discount (bonus_t+1 + r_t+1 + discount (bonus_t+2 + ...)). A state whose return is cut
        by the time limit counts only where the unseen rest weighs at most 5%; a run without such a state gets NaN.
        """
        rngs = [np.random.default_rng(sub_seed(s, "value", step)) for s in self.seeds]
        act_size = int(np.prod(self.venv.single_action_space.shape or (1,)))
        predictions = []

        def act(obs: Tensor) -> Tensor:
            noise = np.stack([rng.standard_normal((self.episodes, act_size)) for rng in rngs])
            action, *value_and_bonus = predict(obs, torch.as_tensor(noise, dtype=self.dtype).to(self.device))
            predictions.append(torch.stack(value_and_bonus))
            return action

        nothing = np.zeros(0)  # states and actions are not kept
        moments = [
            moment._replace(obs=nothing, action=nothing) for moment in self.play(act, "value", [step] * len(self.seeds))
        ]
        reward, running, terminated = (np.stack([np.asarray(m[i]) for m in moments]) for i in range(3))
        predicted, bonus = torch.stack(predictions).double().cpu().numpy().swapaxes(0, 1)  # each [T, R, episodes]
        factor = discount[:, None]
        observed, counts = np.zeros_like(reward), running.copy()
        total, tail, goes_on = np.zeros(reward.shape[1:]), np.ones(reward.shape[1:]), np.zeros(reward.shape[1:], bool)
        for t in range(len(reward) - 1, -1, -1):
            following = np.where(goes_on, bonus[t + 1] + total, 0.0) if t + 1 < len(reward) else 0.0
            observed[t] = total = reward[t] + factor * following
            tail = np.where(terminated[t], 0.0, factor * np.where(goes_on, tail, 1.0))
            counts[t] &= tail <= TAIL
            goes_on = running[t]
        means = np.full((2, len(self.seeds)), np.nan)
        for run in range(len(self.seeds)):  # one by one: the rounding of a sum over all depends on their number
            if (visited := counts[:, run]).any():
                means[:, run] = predicted[:, run][visited].mean(), observed[:, run][visited].mean()
        return means[0], means[1]

    def play(self, act: Act, purpose: str, steps: Sequence[int]) -> Iterator["Moment"]:
        """One episode in every environment, step by step; they begin as the seeds and steps [R] of the runs say."""
        venv, shape = self.venv, (len(self.seeds), self.episodes)
        runs = range(len(self.seeds))
        seeds = [self.seed_of(run, purpose, task, steps[run], e) for run in runs for task, e in self.places]
        obs, infos = venv.reset(seed=seeds)  # type: ignore[arg-type]  # vector environments take lists
        goals = [self._tensor(np.stack(list(infos["goal"])))] if self.goals else []
        if self.goals:
            self.last_goals = goals[0].double().cpu().numpy()
        running = np.ones(shape, bool)
        for t in range(LONGEST):
            Signals.tell("the end of this evaluation")
            if t == LONG and not self.named:
                self.named = True
                told = f"after {LONG:,} steps, episodes of the evaluation still go on; without a time limit of the task"
                warn(f"{told} (max_episode_steps), they are cut after {LONGEST:,}")
            time = [torch.tensor(t, device=self.device)] if self.timed else []
            action = act(self._tensor(obs), *goals, *time).cpu().numpy()
            lost = ~np.isfinite(action.reshape(*shape, -1)).all(-1)  # policies that give no number have no return
            action = np.nan_to_num(action)
            space = venv.action_space
            action = action.reshape(space.shape).astype(space.dtype, copy=False)
            if isinstance(space, gym.spaces.Box):
                action = within(action, space)
            action = action + getattr(venv.single_action_space, "start", 0)  # discrete actions count from 0 here
            before = obs.reshape(*shape, -1)
            obs, reward, terminated, truncated, infos = venv.step(action)
            terminated, truncated = terminated.reshape(shape), truncated.reshape(shape)
            success = success_of(infos, terminated | truncated)
            reward = np.where(running, np.where(lost, np.nan, reward.reshape(shape)), 0.0)
            self.rewards.check(reward[~lost])
            played = action.reshape(*shape, -1)
            yield Moment(reward, running.copy(), terminated & running, success, before, played)
            running &= ~(terminated | truncated)
            if not running.any():
                return

    def seed_of(self, run: int, purpose: str, task: str, step: int, episode: int) -> int:
        """The seed of the environment in one episode of a run at a step."""
        return sub_seed(self.seeds[run], f"{purpose} {task}".strip(), step, episode) % 2**31

    def _tensor(self, array: NDArray) -> Tensor:
        return torch.as_tensor(array.reshape(len(self.seeds), self.episodes, -1), dtype=self.dtype).to(self.device)

    def close(self) -> None:
        self.venv.close()


class TableEvaluator:
    """The exact returns of the deterministic policies of R runs in a table, in place of episodes.

    Policies get the observations of all states at once, at every decision where they are `timed` or the observations
    have the time in them.
    """

    ways: "Ways | None" = None

    def __init__(self, venv: VectorEnv, runs: int, device: torch.device | str = "cpu", *, timed: bool = False):
        assert isinstance(venv, TabularVectorEnv)
        self.venv, self.table, self.runs, self.timed = venv, venv.table, runs, timed
        self.device, self.dtype = torch.device(device), torch.get_default_dtype()

    @cached_property
    def solved(self) -> float:
        """The return at which a table counts as solved."""
        return Analysis(self.table).solved()

    @torch.no_grad()
    def __call__(self, policy: Act, step: int | Sequence[int], purpose: str = "") -> list[list[Score]]:
        """The return of each run's policy, whatever the step and the purpose; the length is the horizon."""
        chosen = []
        obs = torch.empty(0)
        for t in range(self.table.horizon if self.timed or self.venv.time else 1):
            if t == 0 or self.venv.time:  # without a time in them, observations are always the same
                obs = torch.as_tensor(self.venv.all_observations(t), dtype=self.dtype).to(self.device)  # [S, O]
            time = [torch.tensor(t, device=self.device)] if self.timed else []
            chosen.append(policy(obs.expand(self.runs, *obs.shape), *time).reshape(self.runs, -1).cpu().numpy())
        shown = self.venv.previous_action
        policies = np.stack(chosen, 1).reshape(self.runs, len(chosen), -1, *([self.table.actions + 1] * shown))
        returns = evaluate(self.table, policies, previous_action=shown)
        return [[Score("", float(total), self.table.horizon, None)] for total in returns]

    def close(self) -> None:
        self.venv.close()


class Moment(NamedTuple):
    """One step of all environments, each [R, episodes]."""

    reward: NDArray  # 0 after an episode's end
    running: NDArray[np.bool_]  # whether the episode was going on
    terminated: NDArray[np.bool_]
    success: NDArray | None  # None where the environment does not tell
    obs: NDArray  # [R, episodes, O], before the step
    action: NDArray  # [R, episodes, A]


class Ways(NamedTuple):
    """The first episode of each task in an evaluation."""

    tasks: list[str]
    seeds: list[list[int]]  # [R, tasks], of the environments
    goals: NDArray  # [R, tasks, G]
    obs: NDArray  # [R, tasks, T, O], NaN after an episode's end
    actions: NDArray  # [R, tasks, T, A], NaN after an episode's end


def success_of(infos: dict[str, Any], done: NDArray[np.bool_]) -> NDArray | None:
    """Whether each environment [R, episodes] tells success; for an ended episode, its last step tells."""
    last = infos.get("final_info", {})
    name = next((name for name in SUCCESS if name in infos or name in last), None)
    if name is None:
        return None
    found = []
    for told in (infos, last):
        values = told.get(name, np.zeros(done.size))
        try:  # an environment that does not tell it at this step is None in an array of objects
            found.append(np.nan_to_num(np.asarray(values, float)).reshape(done.shape))
        except (TypeError, ValueError):
            raise UserError(f"the environment's info[{name!r}] must be true or false, got {values!r}") from None
    now, at_end = found
    return np.where(done, at_end, now) if name in last else now
