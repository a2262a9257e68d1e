"""Atari games as agents are trained on them: the usual stack of wrappers around `…NoFrameskip-v4`.

A reset begins with up to 30 no-ops and, in games that have it, FIRE. Every action is repeated for 4 frames; the
observation is the maximum of the last two, grey and of size 84 x 84. An episode ends with a life. Rewards are not
clipped, and frames are not stacked here: a learner that normalises pixels does so on single frames before it stacks.

The stack differs from that of Stable-Baselines3, which much of the literature uses, in the rounding of two steps, which
are those of Gymnasium's `AtariPreprocessing`: frames turn grey by the emulator's own palette, and they do so before the
maximum and the resizing instead of after. Besides, Stable-Baselines3 takes a second action after FIRE, and a no-op and
FIRE again after a lost life.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, RecordEpisodeStatistics, TimeLimit, TransformObservation


def is_game(env_id: str) -> bool:
    """Whether this is the id of a game that needs `preprocess`."""
    return env_id.endswith("NoFrameskip-v4")


def preprocess(env: gym.Env, max_episode_steps: int | None = None, episodic_life: bool = True) -> gym.Env:
    """Applies the whole stack: observations are uint8 [1, 84, 84].

    `max_episode_steps` limits one game, in steps of 4 frames.
    """
    frames = RecordEpisodeStatistics(env)
    env = AtariPreprocessing(frames, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)
    if max_episode_steps is not None and max_episode_steps > 0:
        env = TimeLimit(env, max_episode_steps)
    env = Games(env, frames, episodic_life)
    return TransformObservation(env, lambda obs: obs[None], gym.spaces.Box(0, 255, (1, 84, 84), np.uint8))


class Games(gym.Wrapper):
    """Ends an episode with each life, but starts a new game only after a whole one, with FIRE where the game has it.

    A reset after a lost life changes nothing: no step is taken, and it gives the last observation once more. Where an
    episode ends, info has `game_return`: the undiscounted return of the whole game, including all frames since the
    emulator's reset, or NaN if the game goes on with another life.
    """

    def __init__(self, env: gym.Env, frames: RecordEpisodeStatistics, episodic_life: bool):
        super().__init__(env)
        self.frames, self.episodic_life = frames, episodic_life
        self.ale: Any = env.unwrapped.ale  # type: ignore[attr-defined]
        meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        self.fire = meanings.index("FIRE") if "FIRE" in meanings else None
        self.life_lost, self.lives = False, 0
        self.obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        goes_on = self.life_lost and seed is None
        self.life_lost = False
        if goes_on:
            return self.obs, {}
        self.obs, info = self.env.reset(seed=seed, options=options)
        if self.fire is not None:
            self.obs, _, terminated, truncated, info = self.env.step(self.fire)
            if terminated or truncated:
                self.obs, info = self.env.reset(options=options)
        self.lives = self.ale.lives()
        return self.obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.obs, reward, terminated, truncated, info = self.env.step(action)
        info.pop("episode", None)  # counted in frames, and missing where a time limit ended the game
        over = terminated or truncated
        lives = self.ale.lives()
        # some games show no lives at all for a few frames before they end
        self.life_lost = self.episodic_life and not over and 0 < lives < self.lives
        self.lives = lives
        if over or self.life_lost:
            info["game_return"] = float(self.frames.episode_returns) if over else float("nan")
        return self.obs, reward, terminated or self.life_lost, truncated, info
