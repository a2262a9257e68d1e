"""When a predicted observation ends an episode: functions [..., O] -> [...] of bool, by environment.

A model predicts the next observation and the reward; whether the task ends there follows from the task's rule. The two
official codes of offline model-based methods write these rules differently: `ravl` is anyasims/edge-of-reach,
`offlinerl_kit` is yihaosun1124/OfflineRL-Kit. Observations must be those of Gymnasium's default layout, without the
forward position.
"""

import importlib
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from algos.dynamics import FormName
from algos.errors import UserError
from envs import plain_id

Termination = Callable[[Tensor], Tensor]
LIMIT = 100.0  # greatest magnitude of a healthy state's numbers


def never(obs: Tensor) -> Tensor:
    """The task has no end but a time limit."""
    return torch.zeros(obs.shape[:-1], dtype=torch.bool, device=obs.device)


def within(obs: Tensor) -> Tensor:
    """All numbers lie between -100 and 100; NaN does not."""
    return (obs.abs() < LIMIT).all(-1)


def cheetah_kit(obs: Tensor) -> Tensor:
    return ~within(obs)


def hopper_ravl(obs: Tensor) -> Tensor:
    z, angle = obs[..., 0], obs[..., 1]
    return ~(obs.isfinite().all(-1) & (obs[..., 1:].abs() < LIMIT).all(-1) & (z > 0.7) & (angle.abs() < 0.2))


def hopper_kit(obs: Tensor) -> Tensor:
    """Large negative numbers are healthy here: the code takes the magnitude of a truth value."""
    z, angle = obs[..., 0], obs[..., 1]
    return ~(obs.isfinite().all(-1) & (obs[..., 1:] < LIMIT).all(-1) & (z > 0.7) & (angle.abs() < 0.2))


def walker_ravl(obs: Tensor) -> Tensor:
    z, angle = obs[..., 0], obs[..., 1]
    return ~((z > 0.8) & (z < 2.0) & (angle > -1.0) & (angle < 1.0))


def walker_kit(obs: Tensor) -> Tensor:
    return walker_ravl(obs) | ~within(obs)


def ant(obs: Tensor) -> Tensor:
    z = obs[..., 0]
    return ~(obs.isfinite().all(-1) & (z >= 0.2) & (z <= 1.0))


def humanoid(obs: Tensor) -> Tensor:
    """NaN ends an episode here; OfflineRL-Kit's code asks whether z < 1 or z > 2, so that NaN goes on there."""
    z = obs[..., 0]
    return ~((z >= 1.0) & (z <= 2.0))


def pen(obs: Tensor) -> Tensor:
    """NaN ends an episode here; OfflineRL-Kit's code asks whether the pen is below 0.075, so that NaN goes on there."""
    return ~(obs[..., 26] >= 0.075)


# task -> number of values in an observation, rule of ravl, rule of offlinerl_kit
RULES: dict[str, tuple[tuple[int, ...], Termination, Termination]] = {
    "HalfCheetah": ((17,), never, cheetah_kit),
    "Hopper": ((11,), hopper_ravl, hopper_kit),
    "Walker2d": ((17,), walker_ravl, walker_kit),
    "Ant": ((27, 105, 111), ant, ant),
    "Humanoid": ((45, 348, 376), humanoid, humanoid),
    "AdroitHandPen": ((45,), pen, pen),
    "AdroitHandDoor": ((39,), never, never),
    "Pendulum": ((3,), never, never),
    "Reacher": ((10, 11), never, never),
    "Pusher": ((23,), never, never),
    "Swimmer": ((8,), never, never),
    "HumanoidStandup": ((45, 348, 376), never, never),
}


def termination(env_id: str | None, obs_size: int, rules: FormName) -> Termination:
    """The rule of an environment; raises UserError if there is none, or if observations have another layout."""
    name = plain_id(env_id or "").rpartition("/")[2].partition("-")[0]
    ways = "--never-terminates, or a function of your own with --terminates module:function"
    hint = f"give {ways}" if env_id else f"give --env-id, {ways}"
    if name not in RULES:
        named = env_id or "a dataset without an environment"
        raise UserError(f"nothing is known of when a predicted state of {named} ends an episode: {hint}")
    sizes, ravl, offlinerl_kit = RULES[name]
    if obs_size not in sizes:
        usual = " or ".join(map(str, sizes))
        raise UserError(
            f"observations of {env_id} have {obs_size} numbers here, and the rule of when a predicted state ends an "
            f"episode is for {usual}: {hint}"
        )
    return offlinerl_kit if rules == "offlinerl_kit" else ravl


def tried(rule: Termination, obs: Tensor) -> Termination:
    """The rule, if it gives truth values [..., B] for copies of obs [1, O]; raises UserError otherwise."""
    obs = obs.expand(2, obs.shape[1] + 1, -1)  # as in rollouts of two runs, of a number unlike the size
    try:
        ended = rule(obs)
    except Exception as error:  # the user's own code may raise anything
        raise UserError(f"--terminates: the function fails on observations of the dataset ({error})") from None
    if not isinstance(ended, Tensor) or ended.dtype != torch.bool or ended.shape != obs.shape[:-1]:
        raise UserError(
            "--terminates: the function must turn a tensor of observations [..., O] into truth values [...]"
        )
    return rule


def own_termination(name: str) -> Termination:
    """The function `module:function`, of a module that is installed or lies in the working directory.

    Raises UserError if there is none.
    """
    module, _, function = name.partition(":")
    if "" not in sys.path:  # a script has its own folder there instead
        sys.path.append("")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # the module's own code may raise anything
        raise UserError(
            f"--terminates takes module:function, a function of observations [..., O] that gives truth values [...]; "
            f"{name!r} cannot be had ({error})"
        ) from None
    if not callable(found):
        raise UserError(f"--terminates {name} is not a function")
    return found
