"""Evaluation: episodes of every seed, all at once, in environments of their own."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from envs import make_vec
from envs.mujoco import TASKS
from envs.seeding import sub_seed

LONGEST = 100_000  # steps after which an episode without a time limit is cut
Foresee = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
TAIL = 0.05  # weight of the unseen rest of a return from which on the return does not count as observed


class Evaluator:
    """`episodes` episodes of each of R seeds; each evaluation starts from fresh states that depend on seed and step."""

    def __init__(
        self,
        env_id: str,
        seeds: Sequence[int],
        episodes: int,
        device: torch.device,
        threads: int | None = None,
        **options: Any,
    ):
        self.seeds, self.episodes, self.device = seeds, episodes, device
        self.dtype = torch.get_default_dtype()
        # without automatic resets, a finished MuJoCo episode costs nothing more
        mode = AutoresetMode.DISABLED if env_id in TASKS else AutoresetMode.SAME_STEP
        self.venv = make_vec(env_id, len(seeds) * episodes, autoreset_mode=mode, threads=threads, **options)

    @torch.no_grad()
    def __call__(self, policy: Callable[[Tensor], Tensor], step: int) -> tuple[np.ndarray, np.ndarray]:
        """Runs a policy, obs [R, episodes, O] -> action [R, episodes, A]: returns and lengths, each [R, episodes]."""
        shape = (len(self.seeds), self.episodes)
        totals, lengths = np.zeros(shape), np.zeros(shape, int)
        for reward, running, _ in self._rollout(policy, "evaluation", step):
            totals += reward
            lengths += running
        return totals, lengths

    @torch.no_grad()
    def values(self, foresee: Foresee, discount: float, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Predicted action values against the discounted returns that followed: means over visited states, each [R].

        `foresee` maps obs [R, episodes, O] and standard normal noise [R, episodes, A] to an action, the value predicted
        for it, and what the value counts at this state besides the reward (an entropy bonus, or zeros). The return is
        r_t + discount (bonus_t+1 + r_t+1 + discount (bonus_t+2 + ...)). A state whose return is cut by the time limit
        counts only where the unseen rest weighs at most 5%; a seed without such a state gets NaN.
        """
        rngs = [np.random.default_rng(sub_seed(s, "value", step)) for s in self.seeds]
        act_size = int(np.prod(self.venv.single_action_space.shape or (1,)))
        foreseen = []

        def act(obs: Tensor) -> Tensor:
            noise = np.stack([rng.standard_normal((self.episodes, act_size)) for rng in rngs])
            action, *value_and_bonus = foresee(obs, torch.as_tensor(noise, dtype=self.dtype).to(self.device))
            foreseen.append(torch.stack(value_and_bonus))
            return action

        reward, running, terminated = (np.stack(x) for x in zip(*self._rollout(act, "value", step), strict=True))
        predicted, bonus = torch.stack(foreseen).double().cpu().numpy().swapaxes(0, 1)  # each [T, R, episodes]
        observed, counts = np.zeros_like(reward), running.copy()
        total, tail, goes_on = np.zeros(reward.shape[1:]), np.ones(reward.shape[1:]), np.zeros(reward.shape[1:], bool)
        for t in range(len(reward) - 1, -1, -1):
            following = np.where(goes_on, bonus[t + 1] + total, 0.0) if t + 1 < len(reward) else 0.0
            observed[t] = total = reward[t] + discount * following
            tail = np.where(terminated[t], 0.0, discount * np.where(goes_on, tail, 1.0))
            counts[t] &= tail <= TAIL
            goes_on = running[t]
        means = np.full((2, len(self.seeds)), np.nan)
        for run in range(len(self.seeds)):  # one by one: a sum over all would round by the number of runs
            if (own := counts[:, run]).any():
                means[:, run] = predicted[:, run][own].mean(), observed[:, run][own].mean()
        return means[0], means[1]

    def _rollout(
        self, act: Callable[[Tensor], Tensor], purpose: str, step: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """One episode in every environment: yields reward, whether the episode was going on, and terminated.

        Each is [R, episodes]; rewards are 0 after an episode's end.
        """
        shape = (len(self.seeds), self.episodes)
        seeds = [sub_seed(s, purpose, step, e) % 2**31 for s in self.seeds for e in range(self.episodes)]
        obs, _ = self.venv.reset(seed=seeds)  # type: ignore[arg-type]  # vector environments take lists
        running = np.ones(shape, bool)
        for _ in range(LONGEST):
            tensor = torch.as_tensor(obs.reshape(*shape, -1), dtype=self.dtype).to(self.device)
            action = torch.nan_to_num(act(tensor)).cpu().numpy()
            action = action.reshape(self.venv.action_space.shape).astype(self.venv.action_space.dtype, copy=False)
            obs, reward, terminated, truncated, _ = self.venv.step(action)
            terminated, truncated = terminated.reshape(shape), truncated.reshape(shape)
            yield np.where(running, reward.reshape(shape), 0.0), running.copy(), terminated & running
            running &= ~(terminated | truncated)
            if not running.any():
                return

    def close(self) -> None:
        self.venv.close()
