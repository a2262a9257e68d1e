r"""The authors' own Stream AC as a peer: streaming-drl, on the same tasks, stored in the same tables.

    git clone https://github.com/mohmdelsayed/streaming-drl            # results: commit 407dca7
    python -m benchmarks.stream_peer --code streaming-drl
    python single_file/stream_ac.py --env-id HalfCheetah-v5 --seeds 0:5 --total-steps 60000 --eval-every 5000 \
      --out runs/stream_ac_vs_official
    python -m benchmarks.report runs/stream_ac_vs_official --references d4rl --score mean --formats png --no-page \
      --title "Stream AC beside its official code" --out results/stream_ac_vs_official

One process trains the seeds one after the other, as that code does. Networks, traces, steps and statistics are those of
the official code, with its own hyperparameters, and the loop is that of its script; no difference from
single_file/stream_ac.py is known on MuJoCo. The score is the return of the training episodes, which are counted at the
next multiple of --eval-every, as there; where no episode ended, this command stores no score, and stream_ac.py its last
one again. A policy that gives NaN ends this command; in stream_ac.py it ends its own seed only.
"""

import importlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from algos.arguments import Count, Several, check
from algos.cli import parse_seeds, run_command
from algos.errors import UserError
from algos.folders import writable
from algos.run_folder import folder_name
from benchmarks.peer_run import store
from benchmarks.timing import check_actions
from envs import find_spec

DISCOUNT, ENTROPY = 0.99, 0.01


@dataclass(kw_only=True)
class Args:
    code: Path
    """folder of a clone of streaming-drl"""
    env_id: str = "HalfCheetah-v5"
    """Gymnasium id of a task with continuous actions and a time limit"""
    seeds: tuple[str, ...] = ("0:5",)
    """seeds, each of which is a training run: numbers and ranges"""
    total_steps: Count = 60_000
    """environment steps of each seed"""
    eval_every: Count = 5_000
    """environment steps over which the returns of training episodes make one score"""
    threads: Several = 1
    """threads for torch"""
    out: Path = Path("runs/stream_ac_vs_official")
    """results go to OUT/<env>/official_stream_ac/default/"""


def wrapped(env_id: str, wrappers: Any, time_wrapper: Any) -> gym.Env:
    """The task in the official script's wrappers, in its order."""
    env: gym.Env = gym.wrappers.FlattenObservation(gym.make(env_id))
    env = gym.wrappers.ClipAction(gym.wrappers.RecordEpisodeStatistics(env))
    env = wrappers.NormalizeObservation(wrappers.ScaleReward(env, gamma=DISCOUNT))
    return time_wrapper.AddTimeInfo(env)


def train(env: gym.Env, agent: Any, seed: int, total_steps: int) -> list[tuple[int, float, int]]:
    """Step at the end, return and length of each training episode."""
    episodes = []
    state, _ = env.reset(seed=seed)
    for step in range(1, total_steps + 1):
        action = agent.sample_action(state)
        next_state, reward, terminated, truncated, info = env.step(action)
        agent.update_params(state, action, reward, next_state, terminated or truncated, ENTROPY)
        state = next_state
        if terminated or truncated:
            episodes.append((step, float(info["episode"]["r"]), int(info["episode"]["l"])))
            state, _ = env.reset()
    return episodes


def table(seed: int, episodes: list[tuple[int, float, int]], every: int, total_steps: int) -> list[tuple]:
    """The rows of a seed's training episodes, at the next multiple of `every` or at the last step."""
    rows, counts = [], dict[int, int]()
    for step, total, length in episodes:
        at = min(-(-step // every) * every, total_steps)
        counts[at] = counts.get(at, -1) + 1
        rows.append((seed, at, counts[at], total, length))
    return rows


def main(args: Args) -> None:
    check(args)
    seeds = parse_seeds(args.seeds)
    check_actions(args.env_id)
    if not find_spec(args.env_id).max_episode_steps:
        raise UserError(f"--env-id {args.env_id} has no time limit, and the official code needs one")
    if not (args.code / "stream_ac_continuous.py").is_file():
        raise UserError(f"--code {args.code} has no stream_ac_continuous.py: give a clone of streaming-drl")
    torch.set_num_threads(args.threads)
    sys.path.insert(0, str(args.code))
    names = ("stream_ac_continuous", "normalization_wrappers", "time_wrapper")
    try:
        script, *wrappers = map(importlib.import_module, names)
    except ImportError as error:
        raise UserError(f"the code in {args.code} lacks a part or a package: {error}") from None
    folder = writable(args.out / folder_name(args.env_id) / "official_stream_ac" / "default")
    rows: list[tuple] = []
    for seed in seeds:
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002  the official script does
        env = wrapped(args.env_id, *wrappers)
        sizes = [space.shape[0] for space in (env.observation_space, env.action_space) if space.shape]
        agent = script.StreamAC(*sizes, gamma=DISCOUNT)
        started = time.perf_counter()
        episodes = train(env, agent, seed, args.total_steps)
        env.close()
        rows += table(seed, episodes, args.eval_every, args.total_steps)
        last = np.mean([total for _, total, _ in episodes[-10:]]) if episodes else float("nan")
        seconds = time.perf_counter() - started
        print(f"{args.env_id} seed {seed}: {last:.1f} in the last episodes, {seconds:.0f} s", flush=True)
        settings = {name: value for name, value in vars(args).items() if name != "code"} | {"eval_episodes": 0}
        store(folder, "official_stream_ac", settings, rows, [], finished=seed == seeds[-1], env_id=args.env_id)


if __name__ == "__main__":
    run_command(main)
