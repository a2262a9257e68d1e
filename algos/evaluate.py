"""Evaluation: deterministic episodes of every seed, all at once, in environments of their own."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from envs import make_vec
from envs.mujoco import TASKS
from envs.seeding import sub_seed

LONGEST = 100_000  # steps after which an episode without a time limit is cut


class Evaluator:
    """`episodes` episodes of each of R seeds; each evaluation starts from fresh states that depend on seed and step."""

    def __init__(self, env_id: str, seeds: Sequence[int], episodes: int, device: torch.device):
        self.seeds, self.episodes, self.device = seeds, episodes, device
        self.dtype = torch.get_default_dtype()
        # without automatic resets, a finished MuJoCo episode costs nothing more
        mode = AutoresetMode.DISABLED if env_id in TASKS else AutoresetMode.SAME_STEP
        self.venv = make_vec(env_id, len(seeds) * episodes, autoreset_mode=mode)

    @torch.no_grad()
    def __call__(self, policy: Callable[[Tensor], Tensor], step: int) -> tuple[np.ndarray, np.ndarray]:
        """Runs a policy, obs [R, episodes, O] -> action [R, episodes, A]: returns and lengths, each [R, episodes]."""
        shape = (len(self.seeds), self.episodes)
        seeds = [sub_seed(s, "evaluation", step, e) % 2**31 for s in self.seeds for e in range(self.episodes)]
        obs, _ = self.venv.reset(seed=seeds)  # type: ignore[arg-type]  # vector environments take lists
        totals, lengths, running = np.zeros(len(seeds)), np.zeros(len(seeds), int), np.ones(len(seeds), bool)
        while running.any() and lengths.max() < LONGEST:
            tensor = torch.as_tensor(obs.reshape(*shape, -1), dtype=self.dtype).to(self.device)
            action = torch.nan_to_num(policy(tensor)).cpu().numpy()
            action = action.reshape(self.venv.action_space.shape).astype(self.venv.action_space.dtype, copy=False)
            obs, reward, terminated, truncated, _ = self.venv.step(action)
            totals += np.where(running, reward, 0.0)
            lengths += running
            running &= ~(terminated | truncated)
        return totals.reshape(shape), lengths.reshape(shape)

    def close(self) -> None:
        self.venv.close()
