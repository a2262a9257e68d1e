"""Adroit's hand with the rewards under which D4RL's data was recorded."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

# where an observation tells how far the palm is from what it is to take: the door's handle, the hammer, the ball
REACH: dict[str, Callable[[NDArray], NDArray]] = {
    "AdroitHandDoor-v1": lambda obs: obs[-4:-1],
    "AdroitHandHammer-v1": lambda obs: obs[-13:-10] - obs[-10:-7],
    "AdroitHandRelocate-v1": lambda obs: obs[-9:-6],
}


class D4RLReward(gym.Wrapper):
    """Takes 0.1 times the palm's distance off the reward, to which Gymnasium-Robotics 1.4 adds it."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        assert self.spec
        return obs, float(reward) - 0.2 * float(np.linalg.norm(REACH[self.spec.id](obs))), *rest
