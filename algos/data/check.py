"""Checks a dataset before training."""

import gymnasium as gym
import numpy as np
import pandas as pd
import torch

from algos.data.record import Dataset, slices
from algos.errors import UserError

MANY = 10  # episodes that do not end after the same number of steps by chance


def validate(data: Dataset, obs_space: gym.Space | None = None, act_space: gym.Space | None = None) -> list[str]:
    """Sentences about what looks wrong in a dataset; raises UserError if nothing can be trained on it.

    The spaces are those of the evaluation environment; the dataset must have their sizes, and the actions' bounds.
    """
    _check_finite(data)
    _check_size(data, "observations", data.obs_size, obs_space)
    _check_size(data, "actions", data.act_size, act_space)
    warnings = []
    if isinstance(act_space, gym.spaces.Box) and (outside := _actions_outside(data, act_space)):
        warnings.append(f"{outside / len(data):.1%} of actions lie out of bounds, and are clipped")
    least, greatest = data.reward[data.index].aminmax()
    if not data.rewarded:
        warnings.append("there are no rewards")
    elif least == greatest:
        warnings.append(f"all rewards are {least.item() + 0.0:g}")
    trajectories = data.trajectories()
    if len(trajectories) == 1 and not data.terminated[data.index[-1]]:
        warnings.append(f"no episode ends within its {len(data):,} transitions")
    elif data.limit and (longest := int(np.diff(trajectories).max())) > data.limit:
        warnings.append(f"an episode has {longest:,} steps, more than the {data.limit:,} of the task")
    lengths, ended = np.diff(trajectories).ravel(), int(data.terminated[data.index].sum())
    if len(trajectories) >= MANY and ended == len(trajectories) and lengths.max() == lengths.min() > 1:
        warnings.append(
            f"all {ended:,} episodes are stored as ended by their goal or failure, each after {lengths[0]:,} steps: if "
            "that is a time limit, values are wrong: such ends are timeouts or truncations"
        )
    if data.fault:
        warnings.append(data.fault)
    if data.breaks:
        warnings.append(f"{data.breaks:,} transitions are not continued by the next one, though no end is marked there")
    if repeated := _repeated(data):
        warnings.append(f"{repeated:,} transitions ({repeated / len(data):.1%}) occur more than once")
    return warnings


def action_box(data: Dataset) -> gym.spaces.Box:
    """The space of the data's actions: the bounds that the format has, or else -1 and 1."""
    low, high = data.bounds or (-np.ones(data.act_size), np.ones(data.act_size))
    return gym.spaces.Box(low.astype(np.float64), high.astype(np.float64), dtype=np.float64)


def _check_finite(data: Dataset) -> None:
    """Raises UserError, with the first place, if a number is infinite or not a number."""
    names = ["observation"] * data.obs_size + ["action"] * data.act_size + ["reward", "terminated"]
    for part in slices(len(data)):
        rows = data.index[part]
        for which, numbers in (("", data.rows[rows]), ("next ", data.obs[rows + 1])):
            if not (finite := numbers.isfinite()).all():
                row, dimension = (~finite).nonzero()[0].tolist()
                raise UserError(
                    f"--dataset {data.name}: the {which}{names[dimension]} of transition {part.start + row:,} is not a "
                    "finite number"
                )


def _check_size(data: Dataset, what: str, size: int, space: gym.Space | None) -> None:
    """Raises UserError if observations or actions do not have the size of the environment's."""
    if space is None:
        return
    is_box = isinstance(space, gym.spaces.Box)
    needed = int(np.prod(space.shape or ()))
    if not is_box or size != needed:
        note = f" ({data.note})" if data.note else ""
        raise UserError(
            f"--dataset {data.name} has {size} numbers in its {what}, where {data.env_id} has "
            f"{needed if is_box else type(space).__name__}{note}; name another environment with --env-id, or train "
            "without one: leave --env-id out and give --eval-episodes 0"
        )


def _actions_outside(data: Dataset, space: gym.spaces.Box) -> int:
    """The number of actions that lie outside of the space's bounds."""
    low, high = (torch.as_tensor(bound.ravel()) for bound in (space.low, space.high))
    outside = 0
    for part in slices(len(data)):
        action = data.action[data.index[part]]
        outside += int(((action < low - 1e-6) | (action > high + 1e-6)).any(1).sum())
    return outside


def _repeated(data: Dataset) -> int:
    """The number of transitions that equal an earlier one."""
    prints = np.empty(len(data), np.uint64)  # hashes, which different transitions almost never share
    for part in slices(len(data)):
        rows = data.index[part]
        numbers = torch.cat([data.rows[rows], data.obs[rows + 1]], 1) + 0.0  # without negative zeros
        prints[part] = pd.util.hash_pandas_object(pd.DataFrame(numbers.numpy()), index=False)
    prints.sort()
    return int(np.count_nonzero(prints[1:] == prints[:-1]))
