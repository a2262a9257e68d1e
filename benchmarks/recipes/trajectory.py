"""The form in which a recipe gives its data: one trajectory for each episode."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Trajectory(NamedTuple):
    """T steps of one episode, on the host. In state `obs[t]`, `action[t]` leads to `obs[t + 1]` and to `reward[t]`.

    If `terminated[T - 1]`, the task itself ended the episode; otherwise it was cut there, and `truncated[T - 1]` holds.
    `infos` has further arrays by name, such as qpos and qvel: those with T + 1 rows go with `obs`, those with T rows
    with `action`.
    """

    obs: NDArray[np.float32]  # [T + 1, O], the true last observation included
    action: NDArray[np.float32]  # [T, A]
    reward: NDArray[np.float32]  # [T]
    terminated: NDArray[np.bool_]  # [T]
    truncated: NDArray[np.bool_]  # [T]
    infos: dict[str, NDArray]
