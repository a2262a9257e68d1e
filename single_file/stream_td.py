"""Stream TD(lambda): predicts discounted sums of the coming values of a time series, many seeds at once.

Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works" (arXiv 2410.14606), the method of 2024
in the form of its official code on the electricity series ETTm2: observations are bias-corrected exponential averages
of the rows, then normalised by running statistics; the cumulant, which is the series' target in the next row, scaled to
[0, 1] (see envs/series.py), is divided by the running standard deviation of its discounted sum; a sparse network with
layer normalisation learns by ObGD (algos/obgd.py) with eligibility traces, from each row once. There are no episodes
and no time feature. All seeds see the same rows and differ in their initial weights alone.

    python single_file/stream_td.py --seeds 0:10
    python single_file/stream_td.py --env-id ETTm2.csv --target-column OT --total-steps 68000 --seeds 0:10

Results lie in runs/<series>/stream_td/<variant>/. The score, in eval.parquet's column `return`, is R squared over the
last --eval-every steps: 1 - MSE / Var, where Var is the variance of the true returns in these steps, so that 0 is as
good as knowing their mean. A prediction is V(s') sqrt(var_u + 1e-8) after the update, in units of the cumulant; var_u
is the running variance of the discounted sum. It is compared with the discounted sum of the cumulants that come *after*
s'; the official plot compares it with the sum one step earlier, which includes the cumulant that came with s'.

Sums go over the whole series, also beyond --total-steps. A step near its end does not count if rows after the end would
have more than 5% of the weight of its sum (with a discount of 0.99, this is so in the last 299 steps). An interval,
also a short last one, in which fewer steps count than half of --eval-every, or than half of all if these are fewer,
repeats the score before it; so does one in which all true returns are the same.

prediction.png shows the first and the last 5,000 steps. `Learner.load` reads the learner.safetensors of a run into a
learner that goes on predicting and learning anywhere: its `start` and `step` give predictions in place of actions, and
its rewards are cumulants, scaled as series.json says.
"""

import algos.early  # a signal during the imports below ends the program in one line

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from algos.agent import Agent
from algos.arguments import Count, Fraction, Natural, Positive, Range, Tunable, check
from algos.cli import cli, env_error
from algos.errors import UserError
from algos.learner import learner_file
from algos.normalise import RewardScaler
from algos.obgd import ObGD
from algos.per_run import PerRun
from algos.plot import predictions
from algos.random import Random
from algos.run import Run
from algos.sparse import Network
from algos.stream import Features, Hidden, Step, StreamArgs
from envs import Episode, Task
from envs.series import Sample, Series, SeriesEnvs, load_series

DecayFactor = Annotated[float, Range(0, 0.99999)]  # the share of an average or a sum that a step leaves


@dataclass
class Args(StreamArgs):
    ACTIONS: ClassVar[str] = ""
    STEPS: ClassVar[str] = "steps"  # an environment has no part in them

    env_id: str = "seasons"
    """`seasons`, a series made by a recipe, or a CSV file with a header; columns without numbers are left out"""
    target_column: str = ""
    """name of the column to predict; by default the last one that has numbers"""
    env_option: tuple[str, ...] = ()
    """refused: a series has no options"""
    total_steps: Natural = 0
    """steps of each run; 0: all that the series has, which are its rows less 2 (the official script takes 68,000)"""
    eval_every: Count = 5_000
    """steps over which predictions make one score"""
    log_every: Count = 1_000
    """steps over which training metrics are averaged"""
    checkpoint_every: Count = 20_000
    """steps between checkpoints, and at most a quarter of an hour; where writing one takes over 5 seconds, they come
    less often, and take at most a twentieth of the time"""
    discount: DecayFactor = 0.99
    """gamma, the discount in the sum that is predicted"""
    trace: Tunable[Fraction] = 0.8
    """lambda: eligibility traces decay by discount times lambda"""
    observation_trace: Tunable[DecayFactor] = 0.999
    """beta: observations are exponential averages of rows with this decay; 0: the rows themselves"""
    kappa: Tunable[Positive] = 2.0
    """kappa of ObGD: a step that it bounds has a 1-norm of at most 1 / kappa"""
    hidden: Hidden = (128, 128)
    """widths of hidden layers"""

    def check_task(self) -> None:
        if self.env_option:
            raise UserError("--env-option is for environments, and a series has no options")
        read(self)


class ObservationAverage(nn.Module):
    """Exponential averages of observations [R, C] over time: e <- beta e + (1 - beta) x, given as e / (1 - beta^k)."""

    average: Tensor
    weight: Tensor

    def __init__(self, runs: int, size: int, beta: float | PerRun):
        super().__init__()
        self.beta: Any = beta
        self.register_buffer("average", torch.zeros(runs, size, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros(runs, 1, dtype=torch.float64))  # 1 - beta^k after k observations

    def clear(self, where: Tensor) -> None:
        """Forgets all where `where` [R] is 1."""
        for buffer in (self.average, self.weight):
            buffer.mul_(1 - where[:, None])

    def forward(self, x: Tensor) -> Tensor:
        self.average.mul_(self.beta).add_((1 - self.beta) * x)
        self.weight.mul_(self.beta).add_(1 - self.beta)
        return self.average / self.weight


class StreamTD(Agent):
    """Predictors of R runs, with all that a streaming learner remembers of the past."""

    state: Tensor  # [R, features], of the current row
    output: Tensor  # [R], the prediction

    def __init__(self, args: Args, task: Task, seeds: Sequence[int], device: torch.device | str = "cpu"):
        super().__init__(args, task, seeds, device)
        average = ObservationAverage(self.runs, task.obs_shape[0], args.observation_trace)
        self.observation_average = average.to(device)
        self.features = Features(self.runs, task).to(device)
        self.reward_scaler = RewardScaler(self.runs, args.discount).to(device)
        self.critic = self.initialise("critic", Network(self.runs, self.features.out_shape, args.hidden, 1))
        self.obgd = ObGD(self.critic, args.kappa, args.discount * args.trace, args.lr, args.adaptive)
        self.register_buffer("state", torch.zeros(self.runs, *self.features.out_shape, device=device))
        self.register_buffer("output", torch.zeros(self.runs, dtype=torch.float64, device=device))

    @torch.no_grad()
    def predict(self) -> Tensor:
        """The discounted sum of the cumulants to come, in their own units: [R]."""
        self.output.copy_(self.critic(self.state).squeeze(-1) * self.reward_scaler.scale())
        return self.output

    @torch.no_grad()
    def start(self, obs: Tensor, where: Tensor) -> None:
        """Begins a series with obs [R, C] in all runs; `where` [R] is 1, as a series has no episodes."""
        self.observation_average.clear(where)
        self.state.copy_(self.features.start(self.observation_average(obs), where))

    def learn(self, cumulant: Tensor, next_obs: Tensor, done: Tensor) -> dict[str, Tensor]:
        """Learns from the step to next_obs [R, C], with the cumulant [R] that came with it."""
        reward = self.reward_scaler(cumulant, done)
        next_state, done = self.features(self.observation_average(next_obs)), done.to(reward.dtype)
        value = self.critic(self.state).squeeze(-1)
        with torch.no_grad():
            next_value = self.critic(next_state).squeeze(-1)
            delta = reward + self.args.discount * (1 - done) * next_value - value
        bound = self.obgd.step(delta, self.obgd.gradients(value), done)
        self.state.copy_(next_state)
        return {"value": value.detach(), "td_error": delta.abs(), "bound": bound}

    def restart(self, obs: Tensor, noise: None = None) -> None:
        """Begins a series in all runs, with clear traces, and predicts: obs [R, C]."""
        self.obgd.clear()
        self.start(obs, torch.ones(len(obs), dtype=obs.dtype, device=obs.device))
        self.predict()

    def update(self, step: Step, noise: None = None) -> dict[str, Tensor]:
        """Learns from a step, whose reward is the cumulant [R] that came with next_obs [R, C], and predicts."""
        metrics = self.learn(step.reward, step.next_obs, step.done)
        self.predict()
        return metrics

    def draws(self, random: Random) -> Callable[[], None]:
        """A prediction takes no random numbers."""
        return lambda: None


class Score(nn.Module):
    """Squared errors [R] since the last score; predictions of the first and last steps, NaN until they are made."""

    WINDOW = 5_000  # steps at either end that are kept for the figure
    squares: Tensor
    first: Tensor
    last: Tensor

    def __init__(self, runs: int, total_steps: int):
        super().__init__()
        self.total_steps, self.window = total_steps, min(self.WINDOW, max(total_steps // 2, 1))
        self.register_buffer("squares", torch.zeros(runs, dtype=torch.float64))
        for name in ("first", "last"):
            self.register_buffer(name, torch.full((runs, self.window), torch.nan, dtype=torch.float64))

    def add(self, prediction: Tensor, sample: Sample) -> Tensor:
        """Takes a step's predictions [R]; gives their absolute errors [R], 0 where the true return is not known."""
        error = (prediction - sample.future) * sample.known
        self.squares.add_(error.square())
        return error.abs()

    def keep(self, step: int, prediction: Tensor) -> None:
        """Keeps the predictions [R] of a step, if it is one of the figure's."""
        if step <= self.window:
            self.first[:, step - 1].copy_(prediction)
        if step > self.total_steps - self.window:
            self.last[:, step - 1 - self.total_steps].copy_(prediction)

    def take(self, returns: np.ndarray, least: int) -> list[Episode]:
        """R squared of each run over the steps since the last score that count; `returns` [n] are their true returns.

        The list is empty if fewer than `least` steps count or if their returns are all the same.
        """
        squares = self.squares.tolist()
        self.squares.zero_()
        if len(returns) < max(least, 2) or returns.var() == 0:
            return []
        return [Episode(r, 1 - s / len(returns) / float(returns.var()), len(returns)) for r, s in enumerate(squares)]


def read(args: Args) -> Series:
    """The series that the arguments name; raises UserError if there is none, or if it has too few steps."""
    check(args)
    try:
        series = load_series(args.env_id, args.target_column)
        SeriesEnvs(series, [0], "cpu", args.discount)  # which refuses a series that is too short
    except ValueError as error:
        raise env_error(error) from None
    if args.total_steps > series.steps:
        raise UserError(
            f"--total-steps {args.total_steps:,} is more than {series.name} has: its {len(series.rows):,} rows "
            f"make {series.steps:,} steps"
        )
    return series


def main(args: Args) -> None:
    series = read(args)
    if series.left_out and not args.quiet:
        print(f"{series.name}: left out for want of numbers or a name: {', '.join(series.left_out)}")
    args = replace(args, total_steps=args.total_steps or series.steps)
    identity = {"series_digest": series.digest(), "target_column": series.target}
    run = Run(args, "stream_td", score="R²", facts=identity)
    envs = SeriesEnvs(series, run.seeds, run.device, args.discount)
    run.learn_from(envs)
    agent = StreamTD(run.args, envs.task, run.seeds, run.device)
    score = Score(run.runs, args.total_steps).to(run.device)
    never = torch.zeros(run.runs, dtype=torch.float64, device=run.device)

    @run.compiled
    def learn(sample: Sample) -> dict[str, Tensor]:
        metrics = agent.update(Step(sample.cumulant, sample.obs, never))
        return metrics | {"absolute_error": score.add(agent.output, sample)}

    run.export("learner.safetensors", lambda: learner_file(agent))
    low, high = series.bounds()
    scales = {"columns": series.columns, "target": series.target, "low": low, "high": high, "rows": len(series.rows)}
    run.export("series.json", lambda: json.dumps(scales, indent=2).encode())

    def figure() -> bytes:
        truth = np.where(np.arange(len(envs.returns)) < envs.known, envs.returns, np.nan)[: args.total_steps + 1]
        panels = [
            (1, truth[1 : score.window + 1], score.first.cpu().numpy()),
            (args.total_steps - score.window + 1, truth[-score.window :], score.last.cpu().numpy()),
        ]
        return predictions(panels, f"{args.env_id}: discounted sum of {series.target}")

    run.export("prediction.png", figure)
    run.register(agent, keep=("score",), score=score)
    for step in run.steps():
        if envs.restarted:
            agent.start(envs.obs, torch.ones_like(never))
        metrics = learn(envs.receive())
        score.keep(step, agent.output)
        run.log({n: m for n, m in metrics.items() if n != "absolute_error" or step < envs.known})
        if step % args.eval_every == 0 or step == args.total_steps:
            first = (step - 1) // args.eval_every * args.eval_every + 1
            truth = envs.returns[first : min(step + 1, envs.known)]
            envs.add_ended(score.take(truth, min(args.eval_every, args.total_steps, envs.known) // 2))


if __name__ == "__main__":
    cli(main)
