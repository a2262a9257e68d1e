"""Recipes for offline data of MuJoCo's locomotion tasks, with D4RL's definitions, in Gymnasium's v5 environments.

| quality | data |
|---|---|
| random | uniformly random actions (D4RL takes an untrained policy) |
| medium | actions sampled from a policy whose training stopped at about a third of the return of D4RL's expert |
| expert | actions sampled from a policy that was trained for long |
| medium-expert | medium, then expert, half each (where D4RL's medium ends with an episode, the last one is cut here) |
| medium-replay | all transitions that the training of the medium policy saw until it stopped |

The policies are this project's own (SAC), in `policies/`, each with the command that trained it. They are not D4RL's,
and neither is the data: `python -m benchmarks.collect --list` gives their returns. HalfCheetah's expert is weak, so
that the medium policy returns more than a third of it. On one machine, a seed gives the same bytes each time.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from algos.run_folder import folder_name
from benchmarks.recipes.trajectory import Trajectory
from envs import SeededEnvs
from envs.make import make_vec
from envs.seeding import sub_seed

TASKS = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "walker2d": "Walker2d-v5"}
TRAINED_IN = TASKS | {"ant-direction": "envs.ant_direction:AntDirection-v0"}  # where policies that ship are trained
QUALITIES = ("random", "medium", "medium-replay", "medium-expert", "expert")
POLICIES = Path(__file__).with_name("policies")
LANES = 10  # environments that are stepped at once; each makes its share of the data


class Policy:
    """A trained actor of SAC: squashed Gaussian actions within the bounds of its environment.

    `training` says how it was trained (command, seed, steps, commit, versions), and what it returned in its evaluation.
    """

    def __init__(self, path: Path):
        with safe_open(path, "pt") as file:
            self.training: dict[str, Any] = json.loads(file.metadata()["facts"])
            self.tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118

    @torch.no_grad()
    def sample(self, obs: NDArray, noise: NDArray) -> NDArray[np.float32]:
        """Actions [N, A] for obs [N, O], sampled with standard normal noise [N, A]."""
        x, t = torch.as_tensor(obs, dtype=torch.float32), self.tensors
        for layer in range(len(t) // 2 - 2):
            x = torch.relu(x @ t[f"weight.{layer}"] + t[f"bias.{layer}"])
        mean, log_std = (x @ t[f"weight.{layer + 1}"] + t[f"bias.{layer + 1}"]).chunk(2, -1)
        std = (-5 + 3.5 * (torch.tanh(log_std) + 1)).exp()
        action: Tensor = torch.tanh(mean + std * torch.as_tensor(noise, dtype=torch.float32))
        return (action * t["scale"] + t["mean"]).numpy()


def shipped_policy(task: str, quality: str) -> Policy:
    """The policy of this project for a task, of quality medium or expert; FileNotFoundError says how to make it."""
    path = POLICIES / f"{task}-{quality}.safetensors"
    if not path.exists():
        env_id, out = TRAINED_IN[task], Path("runs/policies")
        raise FileNotFoundError(
            f"there is no policy {path.stem} yet; make it: python single_file/sac.py --env-id {env_id} --total-steps "
            f"400000 --out {out} && python -m benchmarks.policies {out / folder_name(env_id)}/sac/default "
            f"--name {path.stem}"
        )
    return Policy(path)


def locomotion(task: str, quality: str, seed: int, steps: int) -> Iterator[Trajectory]:
    """Trajectories with `steps` steps in all; the last one of each lane is cut.

    Raises ValueError where there is no such task or quality, and for medium-replay, which takes a training run.
    """
    if task not in TASKS or quality not in QUALITIES or quality == "medium-replay":
        raise ValueError(f"there is no such recipe: {task}-{quality}")
    if quality == "medium-expert":
        if steps < 2:
            raise ValueError("medium-expert data has at least two steps, one of each policy")
        first = locomotion(task, "medium", seed, steps - steps // 2)
        return itertools.chain(first, locomotion(task, "expert", seed, steps // 2))
    policy = None if quality == "random" else shipped_policy(task, quality)
    return rollouts(TASKS[task], policy, f"{task}-{quality}", seed, steps)


def rollouts(env_id: str, policy: Policy | None, purpose: str, seed: int, steps: int) -> Iterator[Trajectory]:
    """Trajectories of a policy, or of uniformly random actions where it is None, in the order of their first steps.

    In the order of their last steps, the first ones would be the shortest of those that began together.
    """
    lanes = min(LANES, steps)
    venv = make_vec(env_id, lanes, autoreset_mode=AutoresetMode.SAME_STEP)
    low, high = venv.single_action_space.low, venv.single_action_space.high  # type: ignore[attr-defined]
    rng = np.random.default_rng(sub_seed(seed, f"{purpose} actions"))
    quota = np.full(lanes, steps // lanes) + (np.arange(lanes) < steps % lanes)
    seeds: Any = [sub_seed(seed, f"{purpose} resets", i) % 2**31 for i in range(lanes)]
    obs, _ = venv.reset(seed=seeds)
    tapes: list[list[tuple]] = [[] for _ in range(lanes)]
    # trajectories that are not given yet, by first step and lane; None while they go on
    begun: dict[tuple[int, int], Trajectory | None] = {(0, i): None for i in range(lanes)}
    try:
        for step in range(1, int(quota.max()) + 1):
            if policy:
                action = policy.sample(obs, rng.standard_normal((lanes, len(low))))
            else:
                action = rng.uniform(low, high, (lanes, len(low))).astype(np.float32)
            qpos, qvel = states_of(venv)
            after, reward, terminated, truncated, infos = venv.step(action)
            for i in np.flatnonzero(quota >= step).tolist():
                ended = terminated[i] or truncated[i]
                tapes[i].append((obs[i], action[i], reward[i], qpos[i], qvel[i]))
                if ended or step == quota[i]:
                    last = infos["final_obs"][i] if ended else after[i]
                    begun[step - len(tapes[i]), i] = trajectory_of(tapes[i], last, bool(terminated[i]))
                    tapes[i] = []
                    if step < quota[i]:
                        begun[step, i] = None
            for first, trajectory in list(begun.items()):
                if trajectory is None:
                    break
                del begun[first]
                yield trajectory
            obs = after
    finally:
        venv.close()


def states_of(venv: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The simulator's qpos [N, …] and qvel [N, …] at present, of environments that are stepped as one batch."""
    return venv.physics.fields.qpos.copy(), venv.physics.fields.qvel.copy()


def trajectory_of(tape: list[tuple], last: NDArray, terminated: bool) -> Trajectory:
    """The trajectory of the recorded steps (obs, action, reward, qpos, qvel), the last of which led to `last`."""
    *columns, qpos, qvel = zip(*tape, strict=True)
    obs, action, reward = (np.array(column, np.float32) for column in columns)
    end = np.zeros(len(reward), bool)
    end[-1] = True
    obs = np.concatenate([obs, np.asarray(last, np.float32)[None]])
    infos = {"qpos": np.array(qpos), "qvel": np.array(qvel)}
    return Trajectory(obs, action, reward, end & terminated, end & (not terminated), infos)


def replayed(rows: NDArray[np.float32], env_id: str, seed: int) -> Iterator[Trajectory]:
    """The trajectories in the rows [T, O + A + 1 + O + 1] of the replay buffer of a run, from its first step on.

    An episode was cut where the next observation of a row is not the observation of the row after it. The actions are
    taken once more, in the environment of this seed, to know the states of the simulator. Raises ValueError if they
    lead elsewhere.
    """
    envs = SeededEnvs(env_id, [seed])
    obs, action, reward, after, terminated = np.split(
        rows, np.cumsum([envs.obs_size, envs.act_size, 1, envs.obs_size]), 1
    )
    states: list[tuple[NDArray, NDArray]] = []
    try:
        for seen, chosen in zip(obs, action, strict=True):
            if (envs.obs.numpy().reshape(-1) != seen).any():
                raise ValueError(f"the run cannot be repeated: step {len(states):,} leads elsewhere on this machine")
            states.append(states_of(envs.venv))
            envs.send(torch.from_numpy(chosen)[None, None])
            envs.receive()
    finally:
        envs.close()
    qpos, qvel = (np.concatenate(column) for column in zip(*states, strict=True))
    cut = np.append((after[:-1] != obs[1:]).any(1), True)
    first = 0
    for last in np.flatnonzero(cut | (terminated[:, 0] > 0)).tolist():
        part = slice(first, last + 1)
        end = np.zeros(last + 1 - first, bool)
        end[-1] = True
        done = bool(terminated[last, 0])
        whole, infos = np.concatenate([obs[part], after[last : last + 1]]), {"qpos": qpos[part], "qvel": qvel[part]}
        yield Trajectory(whole, action[part], reward[part, 0], end & done, end & (not done), infos)
        first = last + 1
