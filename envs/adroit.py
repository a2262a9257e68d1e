"""Adroit's hand with the rewards under which D4RL's data was recorded."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

# the vector, from an observation, between the palm and the thing that it should take: door handle, hammer, ball
REACH: dict[str, Callable[[NDArray], NDArray]] = {
    "AdroitHandDoor-v1": lambda obs: obs[-4:-1],
    "AdroitHandHammer-v1": lambda obs: obs[-13:-10] - obs[-10:-7],
    "AdroitHandRelocate-v1": lambda obs: obs[-9:-6],
}


class D4RLReward(gym.Wrapper):
    """Subtracts 0.1 times the palm's distance from the reward, where Gymnasium-Robotics 1.4 adds it instead."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        assert self.spec
        return obs, float(reward) - 0.2 * float(np.linalg.norm(REACH[self.spec.id](obs))), *rest
