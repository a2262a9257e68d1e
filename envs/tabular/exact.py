"""Exact answers about a table: values of the random and the optimal policy, and the effective horizon.

Laidlaw, Russell and Dragan, "Bridging RL Theory and Practice with the Effective Horizon" (arXiv 2304.09853), and
Laidlaw, Zhu, Russell and Dragan, "The Effective Horizon Explains Deep RL Performance in Stochastic Environments"
(arXiv 2312.08369). Q^1 is the value of the uniformly random policy, and Q^{k+1} one more backup of Bellman's optimality
operator, so that k counts from 1. The smallest k for which every greedy policy of Q^k is optimal is `min_k`.

With sticky actions, the last executed action p belongs to the state. With q_t(s, b), the value of *executing* b, the
value of choosing a is (1 - rho) q_t(s, a) + rho q_t(s, p) from the second decision on, and q_0(s, a) at the first. So
all that is stored is q, [H, S, A], and which actions are greedy does not depend on p.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from envs.tabular.table import Table

PRECISION = 1e-4  # an action is optimal up to this, in the official test
EXACT = 1e-9  # the same, where values are known to rounding
TIE = 1e-12  # values are equal up to this share of the greatest magnitude

Values = NDArray[np.float64]  # [H, S, A] of executing an action
Backup = Callable[[int, Values], Values]  # decision t and q_t [S, A] -> the value of choosing [S]


@dataclass(frozen=True)
class Greedy:
    """What the greedy policies of some values are worth."""

    solves: bool  # whether all of them are optimal, in all states that one of them can reach
    gap: float  # least distance from the greatest value to that of the best action that is not optimal


class Analysis:
    """The exact values of a table. Everything is computed when it is first asked for.

    `discount` is 1 in all published analyses; experiments with another one are described by that one.
    """

    def __init__(self, table: Table, discount: float = 1.0):
        self.table, self.discount = table, discount
        self.expected = (table.probability * table.reward).sum(-1)  # [S, A]
        alive, repeated = table.next_state >= 0, np.arange(table.actions)[:, None]
        # [S, A, K], the indices of what follows in values [S], and in values [S A] of executing the same action again;
        # the end of an episode has the last index
        self.following = np.where(alive, table.next_state, table.states)
        self.following_again = np.where(
            alive, table.next_state * table.actions + repeated, table.states * table.actions
        )
        self.layers: list[Values] = []

    # -- values --------------------------------------------------------------------------------------------------------

    def after(self, q: Values, chosen: NDArray) -> Values:
        """The value [S, A] of what follows the execution of each action.

        `q` [S, A] and `chosen` [S] are the values of executing an action and of choosing freely in the next state.
        """
        value = np.append((1 - self.table.sticky) * chosen, 0.0)[self.following]
        if self.table.sticky:
            value += self.table.sticky * np.append(q.ravel(), 0.0)[self.following_again]
        return self.discount * (value[..., 0] if value.shape[-1] == 1 else (self.table.probability * value).sum(-1))

    def recursion(self, backup: Backup) -> Values:
        """The values [H, S, A] of a policy, given by the value of its choice."""
        q = np.empty((self.table.horizon, *self.expected.shape))
        q[-1] = self.expected
        for t in range(len(q) - 2, -1, -1):
            q[t] = self.expected + self.after(q[t + 1], backup(t + 1, q[t + 1]))
        return q

    @cached_property
    def random(self) -> Values:
        """q of the uniformly random policy."""
        return self.recursion(lambda t, q: q.mean(-1))

    @cached_property
    def best(self) -> Values:
        """q of the optimal policy."""
        return self.recursion(lambda t, q: q.max(-1))

    @cached_property
    def worst(self) -> Values:
        """q of the policy that does worst."""
        return self.recursion(lambda t, q: q.min(-1))

    def q(self, k: int) -> Values:
        """Q^k: k - 1 backups of the random policy's values."""
        while len(self.layers) < k:
            self.layers.append(self.backed_up(self.layers[-1]) if self.layers else self.random)
        return self.layers[k - 1]

    def backed_up(self, q: Values) -> Values:
        """One backup of Bellman's optimality operator."""
        new = np.empty_like(q)
        new[-1] = self.expected
        for t in range(len(q) - 1):
            new[t] = self.expected + self.after(q[t + 1], q[t + 1].max(-1))
        return new

    def outset(self, chosen: NDArray) -> float:
        """The mean over first states of values [S]."""
        return float(self.table.start @ chosen)

    @property
    def random_return(self) -> float:
        return self.outset(self.random[0].mean(-1))

    @property
    def best_return(self) -> float:
        return self.outset(self.best[0].max(-1))

    def solved(self, tolerance: float = 0.05) -> float:
        """The return that lacks this share of the difference between the best policy and random actions."""
        return self.best_return - tolerance * (self.best_return - self.random_return)

    @property
    def worst_return(self) -> float:
        return self.outset(self.worst[0].min(-1))

    # -- greedy policies -----------------------------------------------------------------------------------------------

    def influence(self, t: int) -> float:
        """The probability that a choice is carried out: values of choosing differ by this share of those of q."""
        return 1 - self.table.sticky if t else 1.0

    def lacking(self, t: int, tolerance: float) -> NDArray:
        """Which actions [S, A] are not optimal at decision t."""
        best = self.best[t]
        return self.influence(t) * (best.max(-1, keepdims=True) - best) > tolerance

    def greedy(self, q: Values, tie: float = 0.0, tolerance: float = PRECISION) -> Greedy:
        """Whether all greedy policies of values q [H, S, A] are optimal, and by what distance.

        Every action whose value equals the greatest, up to `tie` times the greatest magnitude, is followed from the
        first state on, with all its outcomes, however improbable. One that is worse than the optimum by more than
        `tolerance` anywhere on these ways fails. The official test has no tie and a tolerance of 1e-4.
        """
        table, margin = self.table, tie * max(np.abs(q).max(), 1.0)
        solves, gap = True, math.inf
        reached = np.zeros((table.states, table.actions + 1), bool)  # [S, last executed action; none is the last]
        reached[table.start > 0, -1] = True
        for t in range(table.horizon):
            here = reached.any(1)
            if not here.any():
                break
            tied = q[t] >= q[t].max(-1, keepdims=True) - margin
            lacking = self.lacking(t, tolerance)
            solves &= not np.any(tied[here] & lacking[here])
            best_lacking = np.where(lacking, q[t], -math.inf).max(-1)[here]
            gap = min(gap, self.influence(t) * float((q[t].max(-1)[here] - best_lacking).min()))
            reached = self.successors(self.executed(t, reached, tied))
        return Greedy(solves, gap)

    def executed(self, t: int, reached: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which actions [S, A] may be executed where `chosen` [S, A] may be chosen."""
        executed = reached.max(1)[:, None] & chosen
        return executed | reached[:, :-1] if self.table.sticky and t else executed

    def successors(self, executed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The states, with the last executed action, [S, A + 1], to which executing these [S, A] may lead."""
        table = self.table
        possible = executed[..., None] & (table.probability > 0) & (table.next_state >= 0)
        reached = np.zeros((table.states, table.actions + 1), bool)
        reached[table.next_state[possible], np.nonzero(possible)[1]] = True
        return reached

    def min_k(self, tie: float = 0.0, tolerance: float = PRECISION) -> int | None:
        """The smallest k for which every greedy policy of Q^k is optimal.

        k = H always suffices, up to rounding: Q^H is the optimum. None if no k does.
        """
        return self.first_solved(self.q, tie, tolerance)

    def planning_window(self, tie: float = 0.0, tolerance: float = PRECISION) -> int | None:
        """The same, where the first layer is not the random policy's value but the expected reward of one step."""
        layers: list[Values] = []

        def layer(k: int) -> Values:
            first = np.broadcast_to(self.expected, (self.table.horizon, *self.expected.shape))
            layers.append(self.backed_up(layers[-1]) if layers else first)
            return layers[-1]

        return self.first_solved(layer, tie, tolerance)

    def first_solved(self, layer: Callable[[int], Values], tie: float, tolerance: float) -> int | None:
        """The first k whose layer has only greedy policies that are optimal."""
        for k in range(1, self.table.horizon + 1):
            if self.greedy(layer(k), tie, tolerance).solves:
                return k
        return None

    def greedy_return(self, k: int, tie: float = TIE, lucky: bool = False) -> float:
        """The return of the greedy policy of Q^k that breaks its ties worst, or best if it is `lucky`."""
        q = self.q(k)
        margin = tie * max(np.abs(q).max(), 1.0)

        def choose(t: int, value: Values) -> Values:
            tied = q[t] >= q[t].max(-1, keepdims=True) - margin
            return np.where(tied, value, -math.inf).max(-1) if lucky else np.where(tied, value, math.inf).min(-1)

        return self.outset(choose(0, self.recursion(choose)[0]))

    # -- effective horizon ---------------------------------------------------------------------------------------------

    def samples(self, k: int) -> int | None:
        """m_k: the number of random continuations with which the greedy choices of k layers are the right ones.

        This is the simple bound for deterministic tables. None if no number is enough, because in a state that such
        choices may reach an action that is not optimal is as good as any. Raises ValueError if the table is not
        deterministic.
        """
        table = self.table
        if not table.deterministic:
            raise ValueError(f"table {table.name}: the effective horizon is bounded for deterministic tables only")
        q, most = self.q(k), 1
        reached: NDArray = np.asarray(table.start > 0)
        words = math.log(2 * table.horizon) + k * math.log(table.actions)
        spread = self.spread(k)
        for t in range(table.horizon):
            if not reached.any():
                break
            lacking = self.lacking(t, PRECISION)
            best_lacking = np.where(lacking, q[t], -math.inf).max(-1)
            gap = q[t].max(-1) - best_lacking
            if (gap[reached] <= 0).any():
                return None
            needed = 16 * spread[t].max(-1)[reached] / gap[reached] ** 2 * words
            most = max(most, int(np.ceil(needed).max()))
            executed = reached[:, None] & (q[t] > best_lacking[:, None])
            reached = self.successors(executed).max(1)
        return most

    def spread(self, k: int) -> Values:
        """A bound on the variance of returns [H, S, A] on which Q^k rests."""
        spread = (self.random - self.worst) * (self.best - self.worst)
        for _ in range(k - 1):
            below = np.append(spread.max(-1), np.zeros((len(spread), 1)), axis=1)  # [H, S + 1], 0 after the end
            spread = np.concatenate([below[1:, self.table.next_state[..., 0]], spread[-1:]])
        return spread

    def horizons(self) -> Iterator[float]:
        """H_k = k + log_A m_k by k, as long as k can still lower the effective horizon."""
        lowest = float(self.table.horizon)
        for k in range(1, self.table.horizon + 1):
            if k >= lowest:
                break
            m = self.samples(k)
            if m is not None:
                here = k + math.log(m) / math.log(self.table.actions) if self.table.actions > 1 else float(k)
                lowest = min(lowest, here)
                yield here

    def effective_horizon(self) -> float:
        """The least H_k, or the horizon if that is less."""
        return min([float(self.table.horizon), *self.horizons()])


def evaluate(
    table: Table, policy: NDArray, discount: float = 1.0, previous_action: bool = False
) -> NDArray[np.float64]:
    """The exact return [...] of policies that are given by the actions they choose.

    `policy` [..., H, S] or, where it does not depend on the time, [..., 1, S], has actions. Policies that see the last
    executed action have one more axis, [..., H, S, A + 1], whose last entry is for the first decision. Raises
    ValueError for other shapes.
    """
    policy, seen = np.asarray(policy), previous_action
    actions = policy if seen else policy[..., None]
    shape = (table.states, table.actions + 1 if seen else 1)
    if actions.ndim < 3 or actions.shape[-2:] != shape or actions.shape[-3] not in (1, table.horizon):
        raise ValueError(f"a policy of shape {list(policy.shape)} does not fit table {table.name}")
    actions = np.broadcast_to(actions, (*actions.shape[:-3], table.horizon, *actions.shape[-2:]))
    batch = actions.shape[:-3]
    probability, ended = table.probability, table.next_state < 0
    expected = (probability * table.reward).sum(-1)
    q = np.broadcast_to(expected, (*batch, *expected.shape))
    last = np.arange(table.actions)[None, :, None] if seen else 0  # the action that led to the next state
    for t in range(table.horizon - 1, 0, -1):
        here = actions[..., t, :, :]
        chosen = np.take_along_axis(q, here[..., :-1] if seen else here, -1)  # [..., S, last executed action or 1]
        value = (1 - table.sticky) * chosen[..., table.next_state, last]
        if table.sticky:
            value = value + table.sticky * q[..., table.next_state, np.arange(table.actions)[None, :, None]]
        q = expected + discount * (probability * np.where(ended, 0.0, value)).sum(-1)
    first = np.take_along_axis(q, actions[..., 0, :, -1:], -1)[..., 0]
    return first @ table.start
