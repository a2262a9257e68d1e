"""What a recipe for an offline dataset makes."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Episode(NamedTuple):
    """T steps of one episode on the host. The step from `obs[t]` by `action[t]` leads to `obs[t + 1]` and `reward[t]`.

    The task itself ended it if `terminated[T - 1]`, else it was cut there: `truncated[T - 1]`. What is known besides
    observations is in `infos` by name; an array of T + 1 rows is in step with `obs`, one of T rows with `action`.
    """

    obs: NDArray[np.float32]  # [T + 1, O], the true last observation included
    action: NDArray[np.float32]  # [T, A]
    reward: NDArray[np.float32]  # [T]
    terminated: NDArray[np.bool_]  # [T]
    truncated: NDArray[np.bool_]  # [T]
    infos: dict[str, NDArray]  # such as qpos and qvel
