"""Models that predict the steps of rollouts: a learned ensemble, the true simulator, and mixtures of two."""

from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from algos.data import Dataset
from algos.data.record import CHUNK
from algos.dynamics import Ensemble
from algos.errors import UserError, warn
from algos.terminations import Termination
from envs import plain_id
from envs.mujoco import Simulator

TOLERANCE = 1e-3  # greatest difference between a stored observation and that of its stored state or of a step
CHECKED = 200  # steps of the dataset that are compared with the simulator's


class Prediction(NamedTuple):
    """What a model says of a step."""

    next_obs: Tensor  # [R, B, O]
    reward: Tensor  # [R, B]
    terminated: Tensor  # [R, B] of bool
    std: Tensor  # [R, E, B, O + 1] of each member of an ensemble; without one, zeros [R, 1, B, 1]


class StepDraws(NamedTuple):
    """Random numbers of one step of rollouts."""

    action: Tensor  # [R, B, A], standard normal
    outcome: Tensor  # [R, B, O + 1], standard normal
    member: Tensor  # [R, B], uniform in [0, 1)


class Model(Protocol):
    """Predicts steps. `on_host` says whether it computes outside torch, so that it cannot be compiled."""

    on_host: bool

    def start(self, index: Tensor) -> None:
        """Begins rollouts in the states of the transitions `index` [R, B]."""

    def step(self, obs: Tensor, action: Tensor, alive: Tensor, draws: StepDraws) -> Prediction:
        """The step from obs [R, B, O] with actions [R, B, A]; the rows that are not `alive` do not matter."""


class Learned:
    """The ensembles of R runs, of which the first `elites` members predict."""

    on_host = False

    def __init__(self, ensemble: Ensemble, elites: int, terminated: Termination):
        self.ensemble, self.elites, self.terminated = ensemble, elites, terminated

    def start(self, index: Tensor) -> None:
        """It needs nothing but observations."""

    @torch.no_grad()
    def step(self, obs: Tensor, action: Tensor, alive: Tensor, draws: StepDraws) -> Prediction:
        """A random elite in each row; its Gaussian prediction is sampled, the reward included."""
        mean, log_var = self.ensemble(obs, action)
        std = (0.5 * log_var).exp()
        member = (draws.member * self.elites).long().clamp(max=self.elites - 1)
        index = member[:, None, :, None].expand(-1, 1, -1, mean.shape[-1])
        outcome = mean.gather(1, index)[:, 0] + std.gather(1, index)[:, 0] * draws.outcome
        next_obs = obs + outcome[..., :-1]
        return Prediction(next_obs, outcome[..., -1], self.terminated(next_obs), std)

    @torch.no_grad()
    def guesses(self, obs: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        """Next observations by each elite, with standard normal noise [R, elites, S, B, O]: in the same shape."""
        mean, log_var = (x[:, : self.elites, None, :, :-1] for x in self.ensemble(obs, action))
        return obs[:, None, None] + mean + (0.5 * log_var).exp() * noise


class Simulated:
    """MuJoCo itself: it steps the simulator's states, from those of the dataset."""

    on_host = True

    def __init__(self, simulator: Simulator, data: Dataset, consequence: str = "policies learn in another task"):
        self.simulator, self.data, self.states = simulator, data, start_states(simulator, data)
        self.consequence = consequence  # of steps that are not those of the dataset
        self._check()

    def _check(self) -> None:
        """Warns if MuJoCo's steps are not those of the dataset, as in other versions of the task or of MuJoCo."""
        index = torch.linspace(0, len(self.data) - 1, min(CHECKED, len(self.data)), dtype=torch.float64).long()[None]
        batch, rows = self.data.gather(index.to(self.data.index.device)), index[0].numpy()
        sent = self.data.raw_action(batch.action)[0].double().cpu().numpy()
        _, obs, reward, _ = self.simulator.step(self.states[rows], sent)
        stored = self.data.raw_obs(batch.next_obs)[0].double().cpu().numpy()
        apart = float(np.median(np.abs(obs - stored).max(-1)))
        in_reward = float(np.median(np.abs(reward - batch.reward[0].double().cpu().numpy())))
        if not max(apart, in_reward) <= TOLERANCE:
            warn(
                f"steps of {self.data.env_id} are not those of {self.data.name}: half of them differ by more "
                f"than {apart:.2g} in an observation or {in_reward:.2g} in the reward, so {self.consequence}"
            )

    def start(self, index: Tensor) -> None:
        self.now = self.states[index.cpu().numpy()]  # [R, B, S]

    @torch.no_grad()
    def step(self, obs: Tensor, action: Tensor, alive: Tensor, draws: StepDraws) -> Prediction:
        """The true step; rows that are not alive stay as they are."""
        rows = alive.cpu().numpy()
        sent = self.data.raw_action(action).double().cpu().numpy()[rows]
        states, true_obs, true_reward, ended = self.simulator.step(self.now[rows], np.nan_to_num(sent))
        self.now[rows] = states
        next_obs, reward, terminated = obs.clone(), torch.zeros_like(obs[..., 0]), torch.zeros_like(alive)
        next_obs[alive] = self.data.prepared_obs(torch.from_numpy(true_obs).to(obs))
        reward[alive] = torch.from_numpy(true_reward).to(reward)
        terminated[alive] = torch.from_numpy(ended).to(terminated.device)
        return Prediction(next_obs, reward, terminated, torch.zeros_like(obs[:, None, :, :1]))

    def mixed(self, predicted: Tensor, alive: Tensor, weight: float) -> Tensor:
        """Moves the present states towards predicted observations [R, B, O], of which they keep the share `weight`.

        Gives their observations [R, B, O].
        """
        rows = alive.cpu().numpy()
        states = self.simulator.states_of(self.data.raw_obs(predicted).double().cpu().numpy()[rows])
        states[:, 0] = self.now[rows][:, 0]  # nothing is predicted of the forward position
        self.now[rows] = (1 - weight) * states + weight * self.now[rows]
        next_obs = predicted.clone()
        next_obs[alive] = self.data.prepared_obs(torch.from_numpy(self.simulator.observe(self.now[rows])).to(predicted))
        return next_obs


class Mixed:
    """(1 - weight) of a learned model's next observation and reward, + weight of another's.

    The other is learned too, or simulated: then the simulator's state is mixed, in which velocities are not clipped.
    """

    def __init__(self, learned: Learned, other: Learned | Simulated, weight: float):
        self.learned, self.other, self.weight = learned, other, weight
        self.on_host = other.on_host

    def start(self, index: Tensor) -> None:
        self.other.start(index)

    @torch.no_grad()
    def step(self, obs: Tensor, action: Tensor, alive: Tensor, draws: StepDraws) -> Prediction:
        one, two = self.learned.step(obs, action, alive, draws), self.other.step(obs, action, alive, draws)
        if isinstance(self.other, Simulated):  # it has no doubt
            next_obs, std = self.other.mixed(one.next_obs, alive, self.weight), (1 - self.weight) * one.std
        else:
            next_obs, std = torch.lerp(one.next_obs, two.next_obs, self.weight), one.std
        reward = torch.lerp(one.reward, two.reward, self.weight)
        return Prediction(next_obs, reward, self.learned.terminated(next_obs), std)


def start_states(simulator: Simulator, data: Dataset) -> NDArray[np.float64]:
    """The simulator's state before each transition: [N, S].

    They are stored with the data, or follow from the observations. Raises UserError if the stored ones do not fit, or
    if observations do not tell the state.
    """
    obs = np.concatenate([data.raw_obs(part).double().cpu().numpy() for part in observations(data)])
    if obs.shape[1] + 1 != (size := simulator.task.model.nq + simulator.task.model.nv):
        raise UserError(
            f"true dynamics: --dataset {data.name} has observations of {obs.shape[1]} numbers, where those of "
            f"{data.env_id} have {size - 1}"
        )
    if data.states is not None:
        if data.states.shape[1] != obs.shape[1] + 1:
            raise UserError(
                f"--dataset {data.name} has states of the simulator of {data.states.shape[1]} numbers, where "
                f"{obs.shape[1] + 1} are needed: take data of the same task"
            )
        if not np.abs(simulator.observe(data.states) - obs).max() <= TOLERANCE:
            raise UserError(
                f"--dataset {data.name} has states of the simulator that do not fit its observations: take data in "
                "which infos/qpos and infos/qvel belong to the same step as the observation"
            )
        return data.states
    if not (exact := simulator.is_exact(obs)).all():
        share = 100 * (~exact).mean()
        raise UserError(
            f"true dynamics: --dataset {data.name} has no states of the simulator, and {share:.1f}% of its "
            "observations have clipped velocities, from which the state cannot be known: take data with infos/qpos and "
            "infos/qvel, such as `python -m benchmarks.collect` makes"
        )
    return simulator.states_of(obs)


def observations(data: Dataset) -> list[Tensor]:
    """The observations of all transitions, in pieces [n, O]."""
    return [data.obs[part] for part in data.index.split(CHUNK)]


def simulator_for(data: Dataset, threads: int) -> Simulator:
    """The simulator of the environment in which a dataset's policies are evaluated; raises UserError without one."""
    if not data.env_id:
        raise UserError(f"true dynamics: --dataset {data.name} names no environment: give --env-id")
    try:
        return Simulator(plain_id(data.env_id), threads or None, **data.env_options)
    except ValueError as error:
        raise UserError(f"true dynamics: {error}") from None
