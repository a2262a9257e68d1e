r"""OfflineRL-Kit's MOPO as a peer: trained on the same data, evaluated in the same environments, stored in our tables.

    git clone https://github.com/yihaosun1124/OfflineRL-Kit          # results: commit e3ce697
    python -m benchmarks.offlinerl_kit --code OfflineRL-Kit --dataset local/hopper-medium-replay-v0 --seeds 0:3
    python single_file/mopo.py --dataset local/hopper-medium-replay-v0 --seeds 0:3 --total-steps 20000 --rollouts 5000 \
      --eval-every 2000 --compile --threads 1 --out runs/mopo_ours
    python -m benchmarks.report runs/mopo_peer runs/mopo_ours --references d4rl --title "MOPO beside OfflineRL-Kit's" \
      --out results/mopo_vs_offlinerl_kit

The networks, the ensemble and its training, the rollouts, the buffers and the updates are the library's, with the
values of its own command (`run_example/run_mopo.py`) and those that it suggests for the dataset, which are the defaults
of `single_file/mopo.py` too. The loop around them is that of its trainer. The number of rollouts, and the number of
epochs over which the actor's rate falls, are smaller than there, and the same for both. One process trains the seeds
one after the other. Its random numbers are others than ours, and it trains in float32 without a compiler; no other
difference is known.
"""

import importlib
import random
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor

from algos.arguments import Count, Several, check
from algos.cli import parse_seeds, run_command
from algos.data import Dataset, load
from algos.errors import UserError
from algos.evaluate import Evaluator, maker
from algos.run_folder import folder_name
from benchmarks.peer_run import facts_of, new_folder, store
from benchmarks.plain_models import HOPPER, random_data

# the steps of a rollout and lambda that its command suggests
SUGGESTED = {
    "halfcheetah-medium": (5, 0.5), "hopper-medium": (5, 5.0), "walker2d-medium": (5, 0.5),
    "halfcheetah-medium-replay": (5, 0.5), "hopper-medium-replay": (5, 2.5), "walker2d-medium-replay": (1, 2.5),
    "halfcheetah-medium-expert": (5, 2.5), "hopper-medium-expert": (5, 5.0), "walker2d-medium-expert": (1, 2.5),
}  # fmt: skip
EPOCH = 1_000  # updates
BATCH, REAL = 256, 12  # rows of a batch, and those of the dataset: 5%
RETAIN = 5  # epochs whose rollouts are kept
WARM_UP = 20  # batches of the ensemble before its speed is measured


@dataclass(kw_only=True)
class Args:
    code: Path
    """folder of a clone of OfflineRL-Kit"""
    dataset: str = "local/hopper-medium-replay-v0"
    """a dataset for which the library suggests hyperparameters: medium, medium-replay or medium-expert of HalfCheetah,
    Hopper or Walker2d"""
    seeds: tuple[str, ...] = ("0:3",)
    """seeds, each of which is a training run: numbers and ranges"""
    total_steps: Count = 20_000
    """gradient updates of each seed, in epochs of 1,000"""
    rollouts: Count = 5_000
    """rollouts of the model in an epoch"""
    eval_every: Count = 2_000
    """updates between evaluations"""
    eval_episodes: Several = 10
    """deterministic episodes per evaluation"""
    threads: Several = 1
    """threads for torch"""
    out: Path = Path("runs/mopo_peer")
    """results go to OUT/<dataset>/offlinerl_kit_mopo/default/"""


def suggested(dataset: str) -> tuple[int, float]:
    """The steps of a rollout and lambda for a dataset; raises UserError where the library suggests none."""
    name = re.sub(r"-v\d+$", "", dataset.rsplit("/", 1)[-1])
    if name not in SUGGESTED:
        raise UserError(f"--dataset takes data of {', '.join(SUGGESTED)}, got {dataset}")
    return SUGGESTED[name]


def check_code(flag: str, folder: Path | None) -> None:
    """Raises UserError, which names the flag, if its folder is no clone of the library."""
    if folder is None or not (folder / "offlinerlkit").is_dir():
        raise UserError(f"{flag} takes the folder of a clone of OfflineRL-Kit, with offlinerlkit in it, got {folder}")


def make_importable(folder: Path) -> None:
    """Lets the library be imported from the folder of its clone."""
    sys.path.insert(0, str(folder))
    for name in ("gym", "gym.envs", "gym.envs.mujoco"):  # the library names parts of it that are not used here
        sys.modules.setdefault(name, MagicMock())


def ensemble(obs_size: int, act_size: int, env_id: str, penalty: float) -> Any:
    """The library's ensemble of seven networks, untrained."""
    part, decays = importlib.import_module, [2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4]
    modules, utils = part("offlinerlkit.modules"), "offlinerlkit.utils"
    model = modules.EnsembleDynamicsModel(obs_size, act_size, [200] * 4, 7, 5, weight_decays=decays)
    return part("offlinerlkit.dynamics").EnsembleDynamics(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-3),
        part(f"{utils}.scaler").StandardScaler(),
        part(f"{utils}.termination_fns").get_termination_fn(task=env_id.lower()),
        penalty_coef=penalty,
    )


def ensemble_rate(folder: Path, steps: int) -> float:
    """Steps per second of the library's ensemble on batches of 256 random transitions of Hopper, an epoch at most."""
    make_importable(folder)
    data, (obs_size, act_size) = random_data(HOPPER), HOPPER
    rows = data.gather(torch.arange(len(data)))
    inputs = torch.cat([rows.obs, rows.action], -1).numpy()
    targets = torch.cat([rows.next_obs - rows.obs, rows.reward[:, None]], -1).numpy()
    dynamics = ensemble(obs_size, act_size, "Hopper-v5", 0.0)
    dynamics.scaler.fit(inputs)
    members = np.random.default_rng(0).integers(len(data), size=(7, len(data)))
    inputs, targets = dynamics.scaler.transform(inputs)[members], targets[members]
    steps = min(steps, len(data) // BATCH)
    dynamics.learn(inputs[:, : WARM_UP * BATCH], targets[:, : WARM_UP * BATCH], BATCH)
    started = time.perf_counter()
    dynamics.learn(inputs[:, : steps * BATCH], targets[:, : steps * BATCH], BATCH)
    return steps / (time.perf_counter() - started)


class Silent:
    """The library's logger, of which its ensemble needs a folder only."""

    def __init__(self, folder: str):
        self.model_dir = folder

    def log(self, *_: Any, **__: Any) -> None: ...

    logkv = set_timestep = dumpkvs = log


class Peer:
    """The library's MOPO with one seed, on a dataset: rollouts of `length` steps, and a weight of the `penalty`."""

    def __init__(self, args: Args, data: Dataset, seed: int, length: int, penalty: float):
        part, mlp = importlib.import_module, importlib.import_module("offlinerlkit.nets").MLP
        modules = part("offlinerlkit.modules")
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  the library draws from it
        torch.manual_seed(seed)
        obs, act, hidden = data.obs_size, data.act_size, [256, 256]

        def adam(module: Any, lr: float) -> Any:
            return torch.optim.Adam(module.parameters(), lr=lr)

        backbone = mlp(input_dim=obs, hidden_dims=hidden)
        dist = modules.TanhDiagGaussian(backbone.output_dim, act, unbounded=True, conditioned_sigma=True, max_mu=1.0)
        actor = modules.ActorProb(backbone, dist, "cpu")
        critics = [modules.Critic(mlp(input_dim=obs + act, hidden_dims=hidden), "cpu") for _ in range(2)]
        log_alpha = torch.zeros(1, requires_grad=True)
        actor_adam = adam(actor, 1e-4)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(actor_adam, args.total_steps // EPOCH)
        self.dynamics = ensemble(obs, act, str(data.env_id), penalty)
        self.policy = part("offlinerlkit.policy").MOPOPolicy(
            self.dynamics, actor, *critics, actor_adam, *(adam(critic, 3e-4) for critic in critics),
            alpha=(-act, log_alpha, torch.optim.Adam([log_alpha], lr=1e-4)),
        )  # fmt: skip
        size = args.rollouts * length * RETAIN
        make, kinds = part("offlinerlkit.buffer").ReplayBuffer, (np.float32, act, np.float32)
        self.real, self.fake = make(len(data), (obs,), *kinds), make(size, (obs,), *kinds)
        rows = data.gather(torch.arange(len(data)))
        self.real.load_dataset(
            {
                "observations": rows.obs.numpy(),
                "next_observations": rows.next_obs.numpy(),
                "actions": rows.action.numpy(),
                "rewards": rows.reward.numpy(),
                "terminals": rows.terminated.numpy(),
            }
        )
        self.start = (args.rollouts, length)

    def fit(self) -> None:
        """Trains the ensemble."""
        with tempfile.TemporaryDirectory() as folder:
            self.dynamics.train(self.real.sample_all(), Silent(folder), max_epochs_since_update=5)

    def update(self, step: int) -> None:
        """The update with this number, counted from 1; before the first one of an epoch, its rollouts."""
        count, length = self.start
        if (step - 1) % EPOCH == 0:
            if step == 1:
                self.policy.train()
            else:
                self.schedule.step()
            obs = self.real.sample(count)["observations"].numpy()
            rows, _ = self.policy.rollout(obs, length)
            self.fake.add_batch(**rows)
        self.policy.learn({"real": self.real.sample(REAL), "fake": self.fake.sample(BATCH - REAL)})

    def act(self, obs: Tensor) -> Tensor:
        """Deterministic actions for observations [1, N, O]."""
        self.policy.eval()
        action = torch.from_numpy(self.policy.select_action(obs[0].numpy(), deterministic=True))
        self.policy.train()
        return action[None]


def main(args: Args) -> None:
    check(args)
    seeds = parse_seeds(args.seeds)
    if args.total_steps % EPOCH:
        raise UserError(f"--total-steps must be a multiple of {EPOCH:,}, got {args.total_steps:,}")
    check_code("--code", args.code)
    torch.set_num_threads(args.threads)
    length, penalty = suggested(args.dataset)
    data = load(args.dataset)
    if data.env_id is None:
        raise UserError(f"--dataset {args.dataset} names no environment to evaluate in")
    data.fit_actions(-1, 1)
    make_importable(args.code)
    folder = new_folder(args.out / folder_name(args.dataset) / "offlinerl_kit_mopo" / "default")
    rows = []
    for seed in seeds:
        started = time.perf_counter()
        peer = Peer(args, data, seed, length, penalty)
        peer.fit()
        print(f"{args.dataset} seed {seed} ensemble {time.perf_counter() - started:.0f} s", flush=True)
        evaluator = Evaluator(maker(data.env_id, **data.env_options), [seed], args.eval_episodes)
        for step in range(args.total_steps + 1):
            if step:
                peer.update(step)
            if step % args.eval_every == 0 or step == args.total_steps:
                (scores,) = evaluator(peer.act, step)
                rows += [(seed, step, i, score.total, score.length) for i, score in enumerate(scores)]
                mean, seconds = np.mean([score.total for score in scores]), time.perf_counter() - started
                print(f"{args.dataset} seed {seed} update {step} return {mean:.1f} {seconds:.0f} s", flush=True)
        evaluator.close()
        store(
            folder,
            "offlinerl_kit_mopo",
            vars(args),
            rows,
            [],
            finished=seed == seeds[-1],
            **facts_of(data, args.dataset),
        )


if __name__ == "__main__":
    run_command(main)
