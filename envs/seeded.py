"""R x N environments from R seeds, as tensors with the run axis first, on the training device."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import Tensor

from envs.make import find_spec, make_vec, vector_of
from envs.mujoco import MujocoVectorEnv
from envs.seeding import sub_seed
from envs.tabular.vector import TabularVectorEnv
from envs.task import Episode, Finite, Task, check_bounds, within


class Transition(NamedTuple):
    """One step of all environments.

    Where an episode ended, `next_obs` is its true last observation and never the first one of the next episode.
    """

    obs: Tensor  # [R, N, O]
    action: Tensor  # [R, N, A], or in the shape in which it was sent if it is discrete
    reward: Tensor  # [R, N]
    next_obs: Tensor  # [R, N, O]
    terminated: Tensor  # [R, N] 1.0 where the task ended the episode
    truncated: Tensor  # [R, N] 1.0 where a time limit ended the episode
    begun: Tensor  # [R, N] 1.0 where the next observation to act on is the first of an episode
    valid: NDArray[np.bool_] | None  # [R, N] False where the step was nothing but a reset; None: all steps are valid


class SeededEnvs:
    """N environments for each of R seeds: those of a Gymnasium id, or R·N objects of your own, seed by seed.

    `obs` [R, N, O] are the observations to act on next. A step is `send(action)`, which waits for the action only, and
    `receive()`, which steps the environments and returns the transition: between the two, a GPU can be given work.
    `take_ended` gives the episodes that ended. The environments of a run depend on its seed alone; runs with the same
    seed see the same episodes as long as they act alike.

    Both of Gymnasium's automatic resets are handled: with same-step resets, next_obs is the final observation; with
    next-step resets, the step that only resets is marked as not valid.

    `task` has the sizes and bounds. `restarted` says whether the present episodes were begun by `reset` and not by a
    step: it is True until the next `receive`, and False after `load_state_dict`.

    `actions` is "continuous", "discrete" or "any"; with `every_step_valid`, environments with next-step resets are
    refused, for algorithms that cannot leave out a step; `dtype` is the precision of all tensors, by default torch's
    default one; further arguments go to `make_vec`. Raises ValueError where observations are not a box, actions are of
    the other kind, whole numbers in a box or not bounded, a reset gives an observation that is not finite, or a vector
    environment does not say how it resets.
    """

    def __init__(
        self,
        env: str | Sequence[gym.Env],
        seeds: Sequence[int],
        envs_per_run: int = 1,
        device: torch.device | str = "cpu",
        *,
        actions: str = "continuous",
        every_step_valid: bool = False,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ):
        self.seeds, self.runs, self.envs_per_run = list(seeds), len(seeds), envs_per_run
        self.device = torch.device(device)
        count = self.runs * envs_per_run
        if isinstance(env, str):
            env_id = env
            self.venv = make_vec(env, count, autoreset_mode=AutoresetMode.SAME_STEP, **kwargs)
        else:
            if len({id(e) for e in env}) != count:
                twice = ", some of which are the same object" if len(env) == count else ""
                need = f"{count} environments are needed, {envs_per_run} for each seed"
                raise ValueError(f"{need}, and {len(env)} given{twice}")
            env_id = env[0].spec.id if env[0].spec else type(env[0].unwrapped).__name__
            self.venv = vector_of(env, AutoresetMode.SAME_STEP)
        mode = self.venv.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(
                f"{env_id} must say how it resets: set metadata['autoreset_mode'] of its vector environment to "
                f"AutoresetMode.SAME_STEP or NEXT_STEP of gymnasium.vector, not {mode}"
            )
        self.next_step_reset = mode == AutoresetMode.NEXT_STEP
        if every_step_valid and self.next_step_reset:
            raise ValueError(f"{env_id} spends a step on every reset, and this algorithm cannot leave such steps out")
        obs_space, act_space = self.venv.single_observation_space, self.venv.single_action_space
        if not isinstance(obs_space, gym.spaces.Box):
            raise ValueError(
                f"{env_id} has {type(obs_space).__name__} observations; this needs a Box of numbers, or what Gymnasium "
                "can flatten to one"
            )
        self.discrete = isinstance(act_space, gym.spaces.Discrete)
        kind = type(act_space).__name__
        if actions == "continuous" and not isinstance(act_space, gym.spaces.Box):
            raise ValueError(f"{env_id} has {kind} actions; this needs continuous ones (a Box)")
        if actions == "discrete" and not self.discrete:
            way = ", which levels make, such as --levels -1 0 1" if "levels" in kwargs and kind == "Box" else ""
            raise ValueError(f"{env_id} has {kind} actions; this needs a finite number of them (Discrete){way}")
        self.dtype = dtype or torch.get_default_dtype()
        self.obs_size = int(np.prod(obs_space.shape))
        low: tuple[float, ...] = ()
        high: tuple[float, ...] = ()
        if isinstance(act_space, gym.spaces.Discrete):
            self.act_size, self.first_action = int(act_space.n), int(act_space.start)
        elif isinstance(act_space, gym.spaces.Box):
            check_bounds(env_id, act_space)
            low, high = (tuple(bound.ravel().astype(float).tolist()) for bound in (act_space.low, act_space.high))
            self.act_size = len(low)
        else:
            raise ValueError(f"{env_id} has {kind} actions; this needs continuous or discrete ones (Box or Discrete)")
        # [A]; empty if discrete
        self.action_low, self.action_high = (torch.tensor(b, dtype=self.dtype, device=self.device) for b in (low, high))
        limit = limit_of(env if isinstance(env, str) else env[0].spec, kwargs.get("max_episode_steps"))
        self.task = Task(env_id, tuple(obs_space.shape), self.act_size, self.discrete, low, high, limit)
        # one host buffer for a whole step, so that it is one copy to the device
        self.host = torch.empty(self.venv.num_envs, 2 * self.obs_size + 4, dtype=self.dtype)
        if self.device.type == "cuda":
            self.host = self.host.pin_memory()
        self.rewards, self.observations = Finite(env_id, "a reward"), Finite(env_id, "an observation")
        self.totals = np.zeros(self.venv.num_envs)
        self.lengths = np.zeros(self.venv.num_envs, np.int64)
        self.done = np.zeros(self.venv.num_envs, bool)
        self._ended: list[Episode] = []
        self.reset()

    def reset(self, purpose: str = "train", *numbers: int) -> None:
        """Starts new episodes, with seeds that depend only on the run's seed, the environment and the arguments."""
        self.purpose, self.numbers, self.restarts = purpose, numbers, 0
        self._begin(purpose, *numbers)

    def restart(self) -> None:
        """Starts new episodes everywhere, which depend on the last `reset` and the number of restarts since then only.

        So the episodes of a run do not depend on how long those of others were.
        """
        self.restarts += 1
        if isinstance(self.venv.unwrapped, TabularVectorEnv):
            self.venv.unwrapped.random.leap()  # thousands of seeds would take as long as whole episodes
            self._begin(None)
        else:
            self._begin(f"{self.purpose} again", *self.numbers, self.restarts)

    def _begin(self, purpose: str | None, *numbers: int) -> None:
        """Starts new episodes, without new seeds if there is no purpose."""
        seeds = None
        if purpose is not None:
            seeds = [sub_seed(s, purpose, n, *numbers) % 2**31 for s in self.seeds for n in range(self.envs_per_run)]
        obs, _ = self.venv.reset(seed=seeds)  # type: ignore[arg-type]  # vector environments take lists
        if not np.isfinite(obs).all():
            raise ValueError(
                f"{self.task.env_id} starts with observations that are not finite, so it cannot be learned"
            )
        self.restarted = True
        self.totals[:], self.lengths[:], self.done[:] = 0, 0, False
        obs = torch.as_tensor(obs.reshape(self.venv.num_envs, -1), dtype=self.dtype)
        self.obs = obs.to(self.device).view(self.runs, self.envs_per_run, -1)

    def send(self, action: Tensor) -> None:
        """Takes the actions to the host: [R, N, A] or, if they are discrete, int64 [R, N] or [R, N, 1] from 0 on.

        NaN, which a run may send after it diverged, becomes 0, and what rounding took out of the bounds comes back.
        """
        # an action of this device has waited for the copy of the last step, which `receive` writes over
        self.action = action = action.to(self.device)
        space: Any = self.venv.action_space
        host = torch.nan_to_num(action).cpu().numpy().reshape(space.shape).astype(space.dtype, copy=False)
        self.host_action = host + self.first_action if self.discrete else within(host, space)

    def receive(self, counted: Tensor | None = None) -> Transition:
        """Steps the environments with the actions that were sent.

        Where `counted` [R, N] is False, an episode that ends is not among those of `take_ended`.
        """
        obs, reward, terminated, truncated, infos = self.venv.step(self.host_action)
        self.restarted = False
        self.rewards.check(reward)
        self.observations.check(obs)
        n, size = self.venv.num_envs, self.obs_size
        done = terminated | truncated
        host = self.host.numpy()
        host[:, size : 2 * size] = obs.reshape(n, -1)
        host[:, :size] = host[:, size : 2 * size]
        if not self.next_step_reset:
            for i in np.flatnonzero(done):
                host[i, :size] = infos["final_obs"][i].ravel()
        games = infos.get("final_info", {}).get("game_return")
        begun = done if games is None else done & ~np.isnan(games)  # after a lost life, a game goes on
        host[:, -4], host[:, -3], host[:, -2], host[:, -1] = reward, terminated, truncated, begun
        valid = ~self.done if self.next_step_reset else None
        self._count(reward, begun if counted is None else begun & counted.cpu().numpy().ravel(), valid, games)
        self.done = done

        if self.device.type == "cuda":
            on_device = self.host.to(self.device, non_blocking=True)
        else:
            on_device = self.host.clone()
        on_device = on_device.view(self.runs, self.envs_per_run, -1)
        before, self.obs = self.obs, on_device[..., size : 2 * size]
        return Transition(
            before,
            self.action,
            on_device[..., -4],
            on_device[..., :size],
            on_device[..., -3],
            on_device[..., -2],
            on_device[..., -1],
            None if valid is None or valid.all() else valid.reshape(self.runs, self.envs_per_run),
        )

    def step(self, action: Tensor, counted: Tensor | None = None) -> Transition:
        """`send` and `receive` in one."""
        self.send(action)
        return self.receive(counted)

    def _count(self, reward: NDArray, done: NDArray, valid: NDArray | None, games: NDArray | None) -> None:
        """Adds a step to the totals and lengths, and keeps the episodes that it ended.

        `games` [R N] comes from `envs.atari`: the return of a whole game where one ended. A step in which a life is
        lost is counted like any other, so that a game's length is the length of all its lives.
        """
        self.totals += reward
        self.lengths += 1 if valid is None else valid
        if games is not None:
            self.totals[done] = games[done]
        ids = np.flatnonzero(done)
        self._ended += [Episode(int(i) // self.envs_per_run, float(self.totals[i]), int(self.lengths[i])) for i in ids]
        self.totals[ids], self.lengths[ids] = 0, 0

    def take_ended(self) -> list[Episode]:
        """All episodes that ended since the last call, in the order in which they ended."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def resumable(self) -> bool:
        """Whether the state of the environments can be saved, which is so for the batched MuJoCo tasks and tables."""
        return isinstance(self.venv.unwrapped, MujocoVectorEnv | TabularVectorEnv)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that `load_state_dict` needs, but for ended episodes: take these before the state is saved."""
        state = {"totals": self.totals, "lengths": self.lengths, "done": self.done, "obs": self.obs.cpu().numpy()}
        state["restarts"] = np.array(self.restarts)
        venv = self.venv.unwrapped
        if isinstance(venv, MujocoVectorEnv | TabularVectorEnv):
            state |= {f"venv.{name}": array for name, array in venv.get_state().items()}
        return {name: torch.tensor(array) for name, array in state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continues exactly where `state_dict` was taken; only for environments that are `resumable`.

        Ended episodes that were not taken yet are dropped. Raises ValueError for tensors of other shapes or types.
        """
        for name, now in self.state_dict().items():
            saved = state.get(name, now)
            if name != "venv.generators" and (saved.shape, saved.dtype) != (now.shape, now.dtype):  # text of any length
                raise ValueError(f"{name} must have the shape {tuple(now.shape)} and the type {now.dtype}")
        arrays = {name: tensor.numpy() for name, tensor in state.items()}
        venv = self.venv.unwrapped
        assert isinstance(venv, MujocoVectorEnv | TabularVectorEnv)
        venv.set_state({name[5:]: array for name, array in arrays.items() if name.startswith("venv.")})
        self.totals[:], self.lengths[:], self.done[:] = arrays["totals"], arrays["lengths"], arrays["done"]
        self.obs = state["obs"].to(self.device)
        self.restarts = int(arrays.get("restarts", 0))
        self.restarted, self._ended = False, []

    def close(self) -> None:
        self.venv.close()


def limit_of(env: str | EnvSpec | None, max_episode_steps: int | None = None) -> int:
    """The number of steps after which a task, an id or a specification, cuts its episodes; 0 if it never does.

    `max_episode_steps` is the argument with which the environment was made, if there was one.
    """
    spec = find_spec(env) if isinstance(env, str) else env
    if spec is None:
        return 0
    limit = max((spec.max_episode_steps if max_episode_steps is None else max_episode_steps) or 0, 0)
    if spec.id.startswith("dm_control"):  # dm_control has limits of its own that Gymnasium does not see
        return min(limit or 1000, 1000)
    return limit
