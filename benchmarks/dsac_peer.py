r"""The authors' own DSAC-T as a peer: DSAC-v2, on the same tasks, evaluated as this project's, stored in its tables.

    git clone https://github.com/Jingliang-Duan/DSAC-v2
    git -C DSAC-v2 checkout 77263e3               # the last commit with the loss of the published results
    python -m benchmarks.dsac_peer --code DSAC-v2
    python -m benchmarks.report runs/dsac_t_vs_official results/mujoco_short --tasks HalfCheetah-v5 \
      --algorithms dsac_t official_dsac_t --mix --references d4rl --formats png --no-page \
      --title "DSAC-T beside its official code" --out results/dsac_t_vs_official

Our runs are those of the suite mujoco_short, which are evaluated twice as often; --mix says so.

One process trains the seeds one after the other. Networks, losses, updates and replay are those of the official code,
with its own hyperparameters but for one environment step per update, where its scripts take 20. One difference remains:
single_file/dsac_t.py updates with the transitions up to the one before the current step.
"""

import importlib
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from algos.arguments import Count, Several, check
from algos.cli import parse_seeds, run_command
from algos.errors import UserError
from algos.evaluate import Evaluator, maker
from algos.run_folder import folder_name
from benchmarks.peer_run import COLUMNS, new_folder, store
from benchmarks.timing import check_actions

BATCH_SIZE, BUFFER_SIZE = 256, 1_000_000


@dataclass(kw_only=True)
class Args:
    code: Path
    """folder of a clone of DSAC-v2"""
    env_id: str = "HalfCheetah-v5"
    """Gymnasium id"""
    seeds: tuple[str, ...] = ("0:3",)
    """seeds, each of which is a training run: numbers and ranges"""
    total_steps: Count = 50_000
    """environment steps of each seed"""
    learning_starts: Count = 10_000
    """steps with the initial policy before learning"""
    eval_every: Count = 5_000
    """environment steps between evaluations"""
    eval_episodes: Several = 10
    """deterministic episodes per evaluation"""
    threads: Several = 1
    """threads for torch"""
    out: Path = Path("runs/dsac_t_vs_official")
    """results go to OUT/<env>/official_dsac_t/default/"""


def settings(env: gym.Env) -> dict[str, Any]:
    """The arguments of the official script for MuJoCo, as far as agent and replay read them."""
    space: Any = env.action_space
    return {
        "trainer": "off_serial_trainer", "seed": 0, "cnn_shared": False, "action_type": "continu",
        "obsv_dim": env.observation_space.shape[0], "action_dim": space.shape[0],  # type: ignore[index]
        "action_high_limit": space.high.astype("float32"), "action_low_limit": space.low.astype("float32"),
        "value_func_name": "ActionValueDistri", "value_func_type": "MLP", "value_hidden_sizes": [256] * 3,
        "value_hidden_activation": "gelu", "value_output_activation": "linear",
        "policy_func_name": "StochaPolicy", "policy_func_type": "MLP", "policy_hidden_sizes": [256] * 3,
        "policy_hidden_activation": "gelu", "policy_output_activation": "linear",
        "policy_act_distribution": "TanhGaussDistribution", "policy_min_log_std": -20, "policy_max_log_std": 0.5,
        "value_learning_rate": 1e-4, "policy_learning_rate": 1e-4, "alpha_learning_rate": 3e-4,
        "gamma": 0.99, "tau": 0.005, "auto_alpha": True, "alpha": 0.2, "delay_update": 2,
        "buffer_max_size": BUFFER_SIZE, "additional_info": {},
    }  # fmt: skip


def official(code: Path) -> tuple[Any, Any]:
    """The modules of agent and replay; the code asks for Gym, in whose place it gets Gymnasium."""
    limit: Any = types.ModuleType("gym.wrappers.time_limit")
    limit.TimeLimit = gym.wrappers.TimeLimit
    sys.modules |= {"gym": gym, "gym.core": gym.core, "gym.wrappers": gym.wrappers, "gym.wrappers.time_limit": limit}
    sys.path.insert(0, str(code))
    try:
        return importlib.import_module("dsac_v2"), importlib.import_module("training.replay_buffer")
    except ImportError as error:
        raise UserError(f"the code in {code} lacks a part or a package: {error}") from None


@torch.no_grad()
def distribution(agent: Any, obs: Tensor) -> Any:
    """The policy's distributions of actions for observations [N, O]."""
    return agent.networks.create_action_distributions(agent.networks.policy(obs))


def main(args: Args) -> None:
    check(args)
    seeds = parse_seeds(args.seeds)
    check_actions(args.env_id)
    if not (args.code / "dsac_v2.py").is_file():
        raise UserError(f"--code {args.code} has no dsac_v2.py: give a clone of DSAC-v2")
    torch.set_num_threads(args.threads)
    module, replay = official(args.code)
    folder = new_folder(args.out / folder_name(args.env_id) / "official_dsac_t" / "default")
    rows: list[tuple] = []
    for seed in seeds:
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002  the official code draws from it
        env: gym.Env = gym.wrappers.FlattenObservation(gym.make(args.env_id))
        agent, buffer = module.DSAC_V2(**settings(env)), replay.ReplayBuffer(**settings(env))
        evaluator = Evaluator(maker(args.env_id), [seed], args.eval_episodes)

        def policy(obs: Tensor, agent: Any = agent) -> Tensor:
            return distribution(agent, obs[0]).mode()[None]

        obs, _ = env.reset(seed=seed)
        started, evaluating = time.perf_counter(), 0.0
        for step in range(args.total_steps + 1):
            if step:
                drawn = distribution(agent, torch.from_numpy(obs.astype("float32"))[None]).sample()
                action, log_prob = (x[0].numpy() for x in drawn)
                next_obs, reward, terminated, truncated, _ = env.step(action)
                buffer.store(obs, {}, action, reward, next_obs, terminated, log_prob, {})
                obs = env.reset()[0] if terminated or truncated else next_obs
                if step > args.learning_starts:
                    agent.local_update(buffer.sample_batch(BATCH_SIZE), step - args.learning_starts - 1)
            if step % args.eval_every == 0 or step == args.total_steps:
                before = time.perf_counter()
                (scores,) = evaluator(policy, step)
                evaluating += time.perf_counter() - before
                seconds = time.perf_counter() - started - evaluating
                rows += [(seed, step, i, score.total, score.length, seconds) for i, score in enumerate(scores)]
                mean = np.mean([score.total for score in scores])
                print(f"{args.env_id} seed {seed} step {step} return {mean:.1f} {seconds:.0f} s", flush=True)
        evaluator.close()
        env.close()
        store(
            folder, "official_dsac_t", vars(args), rows, [], (*COLUMNS, "seconds"),
            finished=seed == seeds[-1], env_id=args.env_id,
        )  # fmt: skip


if __name__ == "__main__":
    run_command(main)
