"""Continuous actions as a finite number of them."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import VectorActionWrapper, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

MOST = 10_000  # combinations


class Discretised(VectorActionWrapper):
    """Numbers the combinations of levels of all dimensions of an action, the last dimension changing fastest.

    -1 is the lower bound of a dimension, and 1 the upper one. Raises ValueError if actions are not continuous and
    bounded, if there are fewer than two levels or more than 10,000 combinations, or if a level is outside [-1, 1].
    """

    def __init__(self, env: VectorEnv, levels: Sequence[float]):
        super().__init__(env)
        space = env.single_action_space
        if not isinstance(space, Box) or not space.is_bounded():
            raise ValueError(f"levels are for continuous actions with bounds, and these are {space}")
        if not 2 <= len(set(levels)) == len(levels) or not all(-1 <= level <= 1 for level in levels):
            given = ", ".join(map(str, levels))
            raise ValueError(f"levels must be two or more, differ from each other and lie in [-1, 1], got {given}")
        size = int(np.prod(space.shape))
        if len(levels) ** size > MOST:
            raise ValueError(
                f"{len(levels)} levels of each of {size} dimensions are {len(levels) ** size:,} actions, and {MOST:,} "
                "are the most: take fewer levels"
            )
        low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
        shares = np.array(list(product(levels, repeat=size)))
        self.choices = ((low + high) / 2 + (high - low) / 2 * shares).astype(space.dtype).reshape(-1, *space.shape)
        self.single_action_space = Discrete(len(self.choices))
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def actions(self, actions: NDArray) -> NDArray:
        """The continuous actions of numbers [num_envs]."""
        return self.choices[actions]
