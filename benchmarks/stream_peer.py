r"""The authors' own Stream AC, Q and SARSA as peers: streaming-drl, on the same tasks, stored in the same tables.

    git clone https://github.com/mohmdelsayed/streaming-drl            # results: commit 407dca7
    python -m benchmarks.stream_peer ac --code streaming-drl --out runs/stream_ac_vs_official
    python single_file/stream_ac.py --env-id HalfCheetah-v5 --seeds 0:5 --total-steps 60000 --eval-every 5000 \
      --out runs/stream_ac_vs_official
    python -m benchmarks.report runs/stream_ac_vs_official --references d4rl --score mean --formats png --no-page \
      --title "Stream AC beside its official code" --out results/stream_ac_vs_official

    for algorithm in q sarsa; do
      for task in CartPole-v1 Acrobot-v1; do
        python -m benchmarks.stream_peer $algorithm --code streaming-drl --env-id $task --seeds 0:5 \
          --total-steps 50000 --eval-every 2500 --out runs/stream_${algorithm}_vs_official
        python single_file/stream_q.py --target $algorithm --variant $algorithm --env-id $task --seeds 0:10 \
          --total-steps 50000 --eval-every 2500 --out runs/stream_${algorithm}_vs_official
      done
      python -m benchmarks.report runs/stream_${algorithm}_vs_official --score mean --formats png --no-page \
        --title "Stream ${algorithm^^} beside its official code" --out results/stream_${algorithm}_vs_official
    done

One process trains the seeds one after the other. Networks, traces, steps and statistics are those of the official code,
with its own hyperparameters, and the loop is that of its script; no difference from single_file/stream_ac.py is known
on MuJoCo, and single_file/stream_q.py says what differs from its own. As in the official scripts of Q and SARSA,
episodes run up to 10,000 steps on every task. The score is the return of the training episodes, which are counted at
the next multiple of --eval-every, as there; where no episode ended, the last ones count again. A policy that gives NaN
ends this command; in our scripts it ends its own seed only.
"""

import importlib
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import torch
import tyro

from algos.arguments import Count, Several, check
from algos.cli import parse_seeds, run_command
from algos.errors import UserError
from algos.run_folder import folder_name
from benchmarks.peer_run import new_folder, store
from benchmarks.timing import check_actions
from envs import find_spec

DISCOUNT, ENTROPY, EXPLORATION = 0.99, 0.01, 0.05
LIMIT = 10_000  # steps of an episode in the scripts of Q and SARSA
CODE = {  # module and class
    "ac": ("stream_ac_continuous", "StreamAC"),
    "q": ("stream_q", "StreamQ"),
    "sarsa": ("stream_sarsa", "StreamSARSA"),
}


@dataclass(kw_only=True)
class Args:
    algorithm: Annotated[Literal["ac", "q", "sarsa"], tyro.conf.Positional]
    """the algorithm: ac needs continuous actions, q and sarsa discrete ones"""
    code: Path
    """folder of a clone of streaming-drl"""
    env_id: str = "HalfCheetah-v5"
    """Gymnasium id; ac needs a task with a time limit"""
    seeds: tuple[str, ...] = ("0:5",)
    """seeds, each of which is a training run: numbers and ranges"""
    total_steps: Count = 60_000
    """environment steps of each seed"""
    eval_every: Count = 5_000
    """environment steps over which the returns of training episodes make one score"""
    threads: Several = 1
    """threads for torch"""
    out: Path = Path("runs/stream_vs_official")
    """results go to OUT/<env>/official_stream_<algorithm>/default/"""


def wrapped(args: Args, wrappers: Any, time_wrapper: Any) -> gym.Env:
    """The task in the official script's wrappers, in its order."""
    env = gym.make(args.env_id) if args.algorithm == "ac" else gym.make(args.env_id, max_episode_steps=LIMIT)
    env = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.FlattenObservation(env))
    env = gym.wrappers.ClipAction(env) if args.algorithm == "ac" else env
    env = wrappers.NormalizeObservation(wrappers.ScaleReward(env, gamma=DISCOUNT))
    return time_wrapper.AddTimeInfo(env)


def make_agent(args: Args, script: Any, env: gym.Env) -> Any:
    """An agent of the official code with its script's hyperparameters."""
    agent, (size,) = getattr(script, CODE[args.algorithm][1]), env.observation_space.shape or (1,)
    if isinstance(env.action_space, gym.spaces.Discrete):
        settings = {"total_steps": args.total_steps, "exploration_fraction": EXPLORATION}
        return agent(size, env.action_space.n, gamma=DISCOUNT, **settings)
    return agent(size, *(env.action_space.shape or ()), gamma=DISCOUNT)


def train(algorithm: str, env: gym.Env, agent: Any, seed: int, total_steps: int) -> list[tuple[int, float, int]]:
    """Step at the end, return and length of each training episode."""
    episodes, last = [], ENTROPY  # argument of an update; that of Q says whether its action was not greedy
    state, _ = env.reset(seed=seed)
    next_action = agent.sample_action(state) if algorithm == "sarsa" else None
    for step in range(1, total_steps + 1):
        action = agent.sample_action(state) if next_action is None else next_action
        if algorithm == "q":
            action, last = action
        next_state, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        if algorithm == "sarsa":  # the next episode too begins with the action that is drawn here
            next_action = agent.sample_action(next_state)
            agent.update_params(state, action, reward, next_state, next_action, done)
        else:
            agent.update_params(state, action, reward, next_state, done, last)
        state = next_state
        if done:
            episodes.append((step, float(info["episode"]["r"]), int(info["episode"]["l"])))
            state, _ = env.reset()
    return episodes


def table(seed: int, episodes: list[tuple[int, float, int]], every: int, total_steps: int) -> list[tuple]:
    """The rows of a seed's training episodes, at the next multiple of `every` or at the last step.

    Where none ended, the last ones count again.
    """
    ended = defaultdict[int, list[tuple[float, int]]](list)
    for step, total, length in episodes:
        ended[min(-(-step // every) * every, total_steps)].append((total, length))
    rows, latest = [], list[tuple[float, int]]()
    for at in [*range(every, total_steps, every), total_steps]:
        latest = ended[at] or latest
        rows += [(seed, at, number, *episode) for number, episode in enumerate(latest)]
    return rows


def main(args: Args) -> None:
    check(args)
    seeds = parse_seeds(args.seeds)
    check_actions(args.env_id, "continuous" if args.algorithm == "ac" else "discrete")
    if args.algorithm == "ac" and not find_spec(args.env_id).max_episode_steps:
        raise UserError(f"--env-id {args.env_id} has no time limit, and the official code needs one")
    module, _ = CODE[args.algorithm]
    if not (args.code / f"{module}.py").is_file():
        raise UserError(f"--code {args.code} has no {module}.py: give a clone of streaming-drl")
    torch.set_num_threads(args.threads)
    sys.path.insert(0, str(args.code))
    try:
        script, *wrappers = map(importlib.import_module, (module, "normalization_wrappers", "time_wrapper"))
    except ImportError as error:
        raise UserError(f"the code in {args.code} lacks a part or a package: {error}") from None
    name = f"official_stream_{args.algorithm}"
    folder = new_folder(args.out / folder_name(args.env_id) / name / "default")
    rows: list[tuple] = []
    for seed in seeds:
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002  the official script does
        env = wrapped(args, *wrappers)
        agent = make_agent(args, script, env)
        started = time.perf_counter()
        episodes = train(args.algorithm, env, agent, seed, args.total_steps)
        env.close()
        rows += table(seed, episodes, args.eval_every, args.total_steps)
        last = np.mean([total for _, total, _ in episodes[-10:]]) if episodes else float("nan")
        seconds = time.perf_counter() - started
        print(f"{args.env_id} seed {seed}: {last:.1f} in the last episodes, {seconds:.0f} s", flush=True)
        settings = vars(args) | {"eval_episodes": 0, "max_episode_steps": 0 if args.algorithm == "ac" else LIMIT}
        store(folder, name, settings, rows, [], finished=seed == seeds[-1], env_id=args.env_id)


if __name__ == "__main__":
    run_command(main)
