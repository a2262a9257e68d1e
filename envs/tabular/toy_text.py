"""Tables of Gymnasium's toy-text tasks, which come with their own transitions."""

from typing import Any

import gymnasium as gym
import numpy as np

from envs.tabular.table import Table


def toy_text(name: str, env_id: str, horizon: int, **options: Any) -> Table:
    """The table of a toy-text task with `horizon` decisions; observations are one-hot states.

    Outcomes that are the same are one. Probabilities, which the task gives as 0.33333333333333337 and the like, are
    divided by their sum.
    """
    env: Any = gym.make(env_id, **options).unwrapped
    transitions = env.P
    merged = [[merge(transitions[s][a]) for a in range(len(transitions[s]))] for s in range(len(transitions))]
    width = max(len(outcomes) for row in merged for outcomes in row)
    shape = (len(merged), len(merged[0]), width)
    next_state, probability, reward = np.full(shape, -1), np.zeros(shape), np.zeros(shape)
    for s, row in enumerate(merged):
        for a, outcomes in enumerate(row):
            for k, ((following, gained), share) in enumerate(outcomes.items()):
                next_state[s, a, k], probability[s, a, k], reward[s, a, k] = following, share, gained
    start = np.asarray(env.initial_state_distrib, np.float64)
    return Table(
        name,
        next_state,
        probability / probability.sum(-1, keepdims=True),
        reward,
        start / start.sum(),
        horizon,
        obs=np.eye(len(merged), dtype=np.float32),
        versions={"gymnasium": gym.__version__},
    )


def merge(outcomes: list[tuple[float, int, float, bool]]) -> dict[tuple[int, float], float]:
    """Probabilities of what can follow: the next state, -1 where the episode ends, and the reward."""
    merged: dict[tuple[int, float], float] = {}
    for share, following, gained, ended in outcomes:
        key = (-1 if ended else int(following), float(gained))
        merged[key] = merged.get(key, 0.0) + share
    return merged
