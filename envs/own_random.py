"""Environments whose episodes depend on more than the seed of their reset, and what makes them depend on it alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np


@contextmanager
def as_global(generator: np.random.RandomState) -> Iterator[None]:
    """Makes a generator NumPy's global one, from which OGBench's tasks draw, and afterwards restores the former one."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.set_state(generator.get_state())  # noqa: NPY002
    try:
        yield
    finally:
        generator.set_state(np.random.get_state())  # noqa: NPY002
        np.random.set_state(state)  # noqa: NPY002


def keep_spaces(world: Any) -> None:
    """Lets one of OGBench's environments keep its spaces: manipulation makes new ones, without a seed, each time."""
    if "action_space" not in vars(world):
        spaces = {name: getattr(world, name) for name in ("observation_space", "action_space")}
        world.__class__ = type("World", (type(world),), spaces)


class OwnRandom(gym.Wrapper):
    """One of OGBench's environments with a generator of its own, in place of NumPy's global one.

    A reset with a seed begins it anew, and the action space too, from which a reset draws its first steps.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.generator = np.random.RandomState()
        with as_global(self.generator):
            keep_spaces(env.unwrapped)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.generator.seed(seed)
            self.env.unwrapped.action_space.seed(seed)
        with as_global(self.generator):
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        with as_global(self.generator):
            return self.env.step(action)


class FreshGame(gym.Wrapper):
    """A game of MinAtar that forgets its last action, which may be repeated, at a reset with a seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            game: Any = self.env.unwrapped
            game.game.last_action = 0
        return self.env.reset(seed=seed, options=options)
