"""D0: states on a line, with known dynamics, where values explode at the edge of reach although the model is perfect.

The dataset has one state, 0. Actions move by -1, 0 or 1, and a move to x pays exp(-(x - 6)^2 / 8). Rollouts of ten
steps reach the states up to 9 from 0 as states, and those at 10 only as next states: no value is ever learned for
them, so they keep what they began with, and every target takes it for granted. Evaluation lasts 30 steps; it takes the
best action up to 9, the first of equals, and goes on outwards beyond, where nothing was learned. Of random critics, a
row is a single draw.

It is this project's own stand-in for the experiment of Sims et al. (arXiv 2402.12527, section on a simple environment),
whose reward and sizes are not public: in its spirit, not a replication.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LENGTH, HORIZON, DISCOUNT, GOAL = 10, 30, 0.99, 6
STATES = np.arange(-LENGTH, LENGTH + 1)
ACTIONS = np.array([-1, 0, 1])
WITHIN = np.abs(STATES) < LENGTH  # the states that rollouts reach as states

Values = NDArray[np.float64]


def reward(x: NDArray) -> Values:
    """The reward of a move to x."""
    return np.exp(-((x - GOAL) ** 2) / 8)


def true_values(x: NDArray) -> Values:
    """The values of the best policy: straight to the goal, where it stays."""
    by_distance = [1 / (1 - DISCOUNT)]
    for distance in range(int(np.abs(x - GOAL).max())):  # the step that ends at this distance
        by_distance.append(float(np.exp(-(distance**2) / 8)) + DISCOUNT * by_distance[-1])
    return np.array(by_distance)[np.abs(x - GOAL)]


@dataclass
class Outcome:
    """What value iteration on rollouts leads to."""

    values: Values  # [21, 3], by state and action
    path: list[int]  # the states of an evaluation
    total: float  # its return

    @property
    def value_at_start(self) -> float:
        """The greatest value at the dataset's state."""
        return float(self.values[LENGTH].max())


def learn(initial: Values | float, patch: Values | None = None) -> Outcome:
    """Iterates values [21, 3] from `initial` until they stay; those at the edge of reach are never learned.

    With `patch` [21], targets take these values at the edge instead.
    """
    values = np.broadcast_to(np.asarray(initial, float), (len(STATES), len(ACTIONS))).copy()
    after = np.clip(STATES[:, None] + ACTIONS, -LENGTH, LENGTH)  # [21, 3]
    paid, at = reward(after), after + LENGTH
    while True:
        best = values.max(1)
        if patch is not None:
            best = np.where(WITHIN, best, patch)
        new = np.where(WITHIN[:, None], paid + DISCOUNT * best[at], values)
        if np.abs(new - values).max() < 1e-12:
            break
        values = new
    path = [0]
    for _ in range(HORIZON):
        x = path[-1]
        path.append(x + (int(ACTIONS[values[x + LENGTH].argmax()]) if abs(x) < LENGTH else int(np.sign(x))))
    return Outcome(values, path, float(reward(np.array(path[1:])).sum()))


def least_of(critics: int, rng: np.random.Generator) -> Values:
    """Initial values [21, 3]: in each state and action, the least of N numbers from -200 to 400, as N critics give."""
    shape = (len(STATES), len(ACTIONS), critics)
    return rng.uniform(-200, 400, shape).min(-1)


def table() -> list[dict[str, object]]:
    """The rows of the results page: each way to begin, what it values the dataset's state at, and its return."""
    rng = np.random.default_rng(0)
    ways: list[tuple[str, Callable[[], Outcome]]] = [
        *((f"edge worth {c:,}", lambda c=c: learn(float(c))) for c in (0, 100, 110, 200, 1000)),
        ("edge worth 1,000, true values there in targets", lambda: learn(1000.0, true_values(STATES))),
        *((f"least of {n} random critics", lambda n=n: learn(least_of(n, rng))) for n in (1, 2, 10, 50)),
    ]
    rows: list[dict[str, object]] = []
    for name, way in ways:
        outcome = way()
        rows.append({"begins with": name, "value of 0": outcome.value_at_start, "return": outcome.total})
    true = {"begins with": "the best policy", "value of 0": float(true_values(np.array([0]))[0])}
    return [*rows, true | {"return": learn(0.0).total}]
