"""The form in which a recipe gives its data, one trajectory for each episode, and how it is recorded."""

from collections.abc import Sequence
from typing import Any, NamedTuple

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


class Tape:
    """Records an episode: `see` an observation, `do` an action, `see` the next observation, …"""

    def __init__(self) -> None:
        self.obs: list[Any] = []
        self.action: list[Any] = []
        self.reward: list[float] = []
        self.infos: dict[str, list[Any]] = {}

    def see(self, obs: NDArray, **infos: Any) -> None:
        """Records an observation, and copies of what is known beside it, under the same names each time."""
        self.obs.append(obs)
        for name, value in infos.items():
            self.infos.setdefault(name, []).append(np.array(value))

    def do(self, action: NDArray[np.float32], reward: float) -> None:
        self.action.append(action)
        self.reward.append(reward)

    def trajectory(self, terminated: bool = False) -> Trajectory:
        """The whole recording, which the task itself ended if `terminated`; otherwise it is truncated at its end."""
        obs, action, reward = (np.array(values, np.float32) for values in (self.obs, self.action, self.reward))
        end = np.zeros(len(reward), np.bool_)
        end[-1] = True
        infos = {name: np.array(values) for name, values in self.infos.items()}
        infos = {name: v.astype(np.float32) if v.dtype.kind == "f" else v for name, v in infos.items()}
        return Trajectory(obs, action, reward, end & terminated, end & (not terminated), infos)


def bounded(action: NDArray) -> NDArray[np.float32]:
    """Clips an action to [-1, 1], in the precision in which it is stored, so that the stored action was played."""
    return np.clip(action, -1, 1).astype(np.float32)


def check(task: str, argument: str, value: str, known: Sequence[str]) -> None:
    """Raises ValueError if `value` is not one of `known`."""
    if value not in known:
        raise ValueError(f"there is no recipe for {task}: {argument} must be one of {', '.join(known)}, not {value!r}")
