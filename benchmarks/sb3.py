r"""Stable-Baselines3's SAC, TD3, PPO, TRPO and DQN as peers: trained, evaluated and stored as this project's.

    for task in HalfCheetah-v5 Hopper-v5; do
      python -m benchmarks.sb3 sac --env-id $task
      python single_file/sac.py --env-id $task --seeds 0:3 --total-steps 50000 --critic-lr 3e-4 --temperature-lr 3e-4 \
        --actor-delay 1 --eval-every 5000 --threads 1 --variant sb3_settings --out runs/proof
    done
    python -m benchmarks.report runs/peers runs/proof --references d4rl --out results/sac_vs_sb3

    python -m benchmarks.sb3 td3 --env-id HalfCheetah-v5 --total-steps 20000 --learning-starts 2500 \
      --eval-every 2500 --out runs/td3_vs_sb3
    python single_file/td3.py --env-id HalfCheetah-v5 --seeds 0:3 --total-steps 20000 --learning-starts 2500 \
      --eval-every 2500 --threads 1 --out runs/td3_vs_sb3
    python -m benchmarks.report runs/td3_vs_sb3 --references d4rl --formats png \
      --title "TD3 beside Stable-Baselines3's" --out results/td3_vs_sb3

    for task in HalfCheetah-v5 Hopper-v5; do
      python -m benchmarks.sb3 ppo --env-id $task --total-steps 1000000 --eval-every 50000 --out runs/on_policy_peers
    done

    for task in HalfCheetah-v5 Hopper-v5; do
      python -m benchmarks.sb3 trpo --env-id $task --seeds 0:5 --total-steps 500000 --eval-every 50000 \
        --out runs/trpo_vs_sb3
    done
    settings="--bootstrap-limits --slack 1 --curvature-every 1 --variant sb3_settings"
    python single_file/trpo.py --env-id HalfCheetah-v5 --delta 0.06 --damping 0.6 $settings --seeds 0:5 \
      --total-steps 500000 --threads 1 --out runs/trpo_vs_sb3
    python single_file/trpo.py --env-id Hopper-v5 --delta 0.03 --damping 0.3 $settings --seeds 0:5 \
      --total-steps 500000 --threads 1 --out runs/trpo_vs_sb3
    python -m benchmarks.report runs/trpo_vs_sb3 --references d4rl --formats png --no-page \
      --title "TRPO beside Stable-Baselines3's" \
      --purpose "TRPO of this project and of sb3-contrib, with the same trust region." --out results/trpo_vs_sb3

    for task in CartPole-v1 Acrobot-v1; do
      python -m benchmarks.sb3 dqn --env-id $task --seeds 0:10 --total-steps 100000 --eval-every 10000 \
        --out runs/dqn_vs_sb3
      python single_file/dqn.py --env-id $task --seeds 0:10 --total-steps 100000 --eval-every 10000 --threads 1 \
        --out runs/dqn_vs_sb3
    done
    python -m benchmarks.report runs/dqn_vs_sb3 --formats png --title "DQN beside Stable-Baselines3's" \
      --purpose "DQN of this project and Stable-Baselines3's, with the hyperparameters of the former." \
      --out results/dqn_vs_sb3

One process trains the seeds one after the other.

Hyperparameters of SAC are the library's defaults (networks 2 x 256, batch 256, replay 1M, learning rate 3e-4 for all
three parts, one update per step) except for the random start, which is that of `single_file/sac.py`. The runs of
`single_file/sac.py` take the same values, and two differences remain: sac.py squashes the log standard deviation, as
CleanRL does, and draws an action for the temperature; Stable-Baselines3 clamps it and uses the action that was drawn
for the actor.

Hyperparameters of TD3 are the defaults of `single_file/td3.py`. They replace the library's own learning rate of 1e-3,
its networks of 400 and 300 units, and its lack of exploration noise. Two differences remain: the library also adds the
exploration noise to the actions of the random start, and its critics see actions scaled to [-1, 1].

Hyperparameters of PPO are those of `single_file/ppo.py`, which are mostly the library's own; it gets the
clipping of values, the annealing, and half the weight of the value's loss, which is the whole squared error there and
half of it here. Observations and rewards are normalised by its `VecNormalize`, and evaluation uses these statistics as
they are. Two differences remain: it bootstraps where a time limit ends an episode, and its loss of a clipped value
leaves out the maximum with the loss of the value itself.

TRPO is that of the library's second package, sb3-contrib, with the defaults of `single_file/trpo.py` and normalised as
PPO is. Its divergence is the mean over the dimensions of an action where ours is the sum, so that its delta of 0.01 and
damping of 0.1 are 0.06 and 0.6 here for the six of HalfCheetah, and 0.03 and 0.3 for the three of Hopper. It bootstraps
where a time limit ends an episode, its curvature comes from every sample, and its line search accepts divergences below
delta. The runs of `single_file/trpo.py` do the same. Two differences remain: the divergence of its line search is
KL(new || old), ours is KL(old || new), and Adam's epsilon for the critic is 1e-5 there and 1e-8 here.

Hyperparameters of DQN are the defaults of `single_file/dqn.py`, which says how they differ from the library's own.
"""

import importlib.util
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import torch
import tyro

from algos.arguments import Count, Natural, Several, check
from algos.cli import parse_seeds, run_command
from algos.errors import UserError
from algos.run_folder import folder_name
from benchmarks.peer_run import COLUMNS, new_folder, store
from benchmarks.timing import check_actions

RANDOM_START = {"sac": 5_000, "td3": 25_000, "ppo": 0, "trpo": 0, "dqn": 0}  # steps, as in single_file/


@dataclass
class Args:
    algorithm: Annotated[Literal["sac", "td3", "ppo", "trpo", "dqn"], tyro.conf.Positional]
    """the algorithm"""
    env_id: str = "HalfCheetah-v5"
    """Gymnasium id"""
    seeds: tuple[str, ...] = ("0:3",)
    """seeds, each of which is a training run: numbers and ranges"""
    total_steps: Count = 50_000
    """environment steps of each seed"""
    eval_every: Count = 5_000
    """environment steps between evaluations"""
    eval_episodes: Several = 10
    """deterministic episodes per evaluation"""
    learning_starts: Natural | None = None
    """uniformly random steps before learning; as in this project's script if not given: 5000 for sac, 25000 for td3"""
    threads: Several = 1
    """threads for torch"""
    out: Path = Path("runs/peers")
    """results go to OUT/<env>/sb3_<algorithm>/default/"""


def evaluate(model, env_id: str, seed: int, episodes: int) -> list[tuple[float, int]]:
    """(return, length) of `episodes` deterministic episodes, reset from `seed`, `seed + 1`, ..."""
    env, rows = gym.make(env_id), []
    statistics = model.get_vec_normalize_env()
    normalise = statistics.normalize_obs if statistics else lambda obs: obs
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        total, length, done = 0.0, 0, False
        while not done:
            action, _ = model.predict(normalise(obs), deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, length, done = total + float(reward), length + 1, terminated or truncated
        rows.append((total, length))
    env.close()
    return rows


def make_ppo(env_id: str, seed: int, total_steps: int = 1_000_000) -> Any:
    """The library's PPO with the hyperparameters of `single_file/ppo.py` and its `VecNormalize`."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    class Counted(VecNormalize):
        """Counts the steps."""

        steps = 0

        def step_wait(self) -> Any:
            self.steps += 1
            return super().step_wait()

    env = Counted(DummyVecEnv([lambda: gym.make(env_id)]), gamma=0.99)

    def rate(_: float) -> float:  # its own progress starts anew at every call of `learn`
        return 3e-4 * max(0.0, 1 - (env.steps - 2048) / total_steps)

    return PPO(
        "MlpPolicy", env, learning_rate=rate, n_steps=2048, batch_size=64, n_epochs=10, gamma=0.99, gae_lambda=0.95,
        clip_range=0.2, clip_range_vf=0.2, vf_coef=0.25, max_grad_norm=0.5, seed=seed, device="cpu",
    )  # fmt: skip


def make_trpo(args: Args, seed: int) -> Any:
    """The library's TRPO with the hyperparameters of `single_file/trpo.py` and its `VecNormalize`."""
    from sb3_contrib import TRPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    script = importlib.import_module("single_file.trpo")
    ours = script.Args()
    return TRPO(
        "MlpPolicy", VecNormalize(DummyVecEnv([lambda: gym.make(args.env_id)]), gamma=ours.discount),
        learning_rate=ours.critic_lr, n_steps=ours.horizon, batch_size=ours.batch_size, gamma=ours.discount,
        cg_max_steps=ours.cg_steps, cg_damping=ours.damping, line_search_shrinking_factor=0.5,
        line_search_max_iter=script.TRIALS, n_critic_updates=ours.critic_epochs, gae_lambda=ours.trace,
        target_kl=ours.delta, seed=seed, device="cpu",
    )  # fmt: skip


def make_dqn(args: Args, seed: int) -> Any:
    """The library's DQN with the hyperparameters of `single_file/dqn.py`."""
    from stable_baselines3 import DQN

    ours = importlib.import_module("single_file.dqn").Args()
    model = DQN(
        "MlpPolicy", gym.make(args.env_id), learning_rate=ours.lr, buffer_size=ours.buffer_size,
        learning_starts=args.learning_starts, batch_size=ours.batch_size, tau=ours.tau, gamma=ours.discount,
        train_freq=ours.train_every, target_update_interval=ours.target_every, max_grad_norm=ours.max_norm, seed=seed,
    )  # fmt: skip

    def epsilon(_: float) -> float:  # its own progress starts anew at every call of `learn`
        share = min(model.num_timesteps / (ours.exploration * args.total_steps), 1.0)
        return ours.epsilon_start + (ours.epsilon_end - ours.epsilon_start) * share

    model.exploration_schedule = epsilon
    return model


def make_model(args: Args, seed: int) -> Any:
    """The library's agent, which has not learned yet; those of SAC and TD3 begin with uniformly random actions."""
    if args.algorithm == "ppo":
        return make_ppo(args.env_id, seed, args.total_steps)
    if args.algorithm == "trpo":
        return make_trpo(args, seed)
    if args.algorithm == "dqn":
        return make_dqn(args, seed)
    from stable_baselines3 import SAC, TD3
    from stable_baselines3.common.noise import NormalActionNoise

    env = gym.make(args.env_id)
    if args.algorithm == "sac":
        return SAC("MlpPolicy", env, learning_starts=args.learning_starts, seed=seed)
    (size,) = env.action_space.shape or (1,)
    return TD3(
        "MlpPolicy", env, learning_rate=3e-4, batch_size=256, train_freq=1, gradient_steps=1, seed=seed,
        learning_starts=args.learning_starts, action_noise=NormalActionNoise(np.zeros(size), np.full(size, 0.1)),
        policy_kwargs={"net_arch": [256, 256]},
    )  # fmt: skip


def main(args: Args) -> None:
    check(args)
    seeds = parse_seeds(args.seeds)
    check_actions(args.env_id, "discrete" if args.algorithm == "dqn" else "continuous")
    if args.learning_starts and args.algorithm in ("ppo", "trpo"):
        raise UserError(f"--learning-starts is for sac, td3 and dqn: {args.algorithm} has no random start")
    packages = ["stable_baselines3", *(["sb3_contrib"] if args.algorithm == "trpo" else [])]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{package} is missing: pip install -e '.[peers]'")
    if args.learning_starts is None:
        args = replace(args, learning_starts=RANDOM_START[args.algorithm])
    torch.set_num_threads(args.threads)
    algorithm = f"sb3_{args.algorithm}"
    folder = new_folder(args.out / folder_name(args.env_id) / algorithm / "default")
    rows = []
    for seed in seeds:
        started, evaluating = time.perf_counter(), 0.0
        model = make_model(args, seed)
        for step in [*range(0, args.total_steps, args.eval_every), args.total_steps]:
            if step:
                model.learn(step - model.num_timesteps, reset_num_timesteps=False)
            before = time.perf_counter()
            results = evaluate(model, args.env_id, 1_000_000 + 1_000 * seed, args.eval_episodes)
            evaluating += time.perf_counter() - before
            seconds = time.perf_counter() - started - evaluating
            rows += [(seed, step, i, ret, length, seconds) for i, (ret, length) in enumerate(results)]
            mean = np.mean([ret for ret, _ in results])
            print(f"{args.env_id} seed {seed} step {step} return {mean:.1f} {seconds:.0f} s", flush=True)
        store(
            folder, algorithm, vars(args), rows, packages, (*COLUMNS, "seconds"),
            finished=seed == seeds[-1], env_id=args.env_id,
        )  # fmt: skip


if __name__ == "__main__":
    run_command(main)
