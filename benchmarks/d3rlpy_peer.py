r"""d3rlpy's IQL and TD3+BC as peers: on the same data, evaluated in the same environments, stored in the same tables.

    python -m benchmarks.d3rlpy_peer iql --seeds 0:3 --out runs/iql_peer
    python single_file/iql.py --dataset local/halfcheetah-medium-replay-v0 --seeds 0:3 --total-steps 20000 \
      --eval-every 5000 --decay none --threads 1 --compile --variant d3rlpy_settings --out runs/iql_ours
    python -m benchmarks.report runs/iql_peer runs/iql_ours --references d4rl --out results/iql_vs_d3rlpy

results/iql_medium_expert is the same comparison on local/halfcheetah-medium-expert-v0, with --eval-every 10000. It has
two seeds of d3rlpy with 60,000 updates and three of iql.py with 100,000; --mix reports them as far as both go.

    python -m benchmarks.d3rlpy_peer td3_bc --dataset local/halfcheetah-medium-expert-v0 --seeds 0:5 \
      --total-steps 10000 --eval-every 2500 --out runs/td3_bc_vs_d3rlpy
    python single_file/td3_bc.py --dataset local/halfcheetah-medium-expert-v0 --seeds 0:5 --total-steps 10000 \
      --eval-every 2500 --threads 1 --compile --out runs/td3_bc_vs_d3rlpy
    python -m benchmarks.report runs/td3_bc_vs_d3rlpy --references d4rl --formats png --no-page \
      --title "TD3+BC beside d3rlpy's" --out results/td3_bc_vs_d3rlpy

Because these five seeds of each seemed to decide, that report has more, of processes of their own with other folders:
--seeds 5:10 of d3rlpy, and --seeds 5:15 of td3_bc.py.

One process trains the seeds one after the other. IQL's settings are those of its paper for locomotion, which are
`single_file/iql.py`'s too: expectile 0.7, temperature 3, weights of at most 100, learning rates 3e-4, batches of 256,
rewards scaled to a range of returns of 1,000. d3rlpy differs in five ways: the actor's learning rate is constant (as
`--decay none` makes it in iql.py), weights begin uniform and not orthogonal, the policy's standard deviation begins at
0.22 and not at 1, critics and value take one step together, so that the critics' target has the value from before this
step, and the last transition of a truncated episode is left out. TD3+BC's settings are the library's own and those of
its paper; there, the last transitions are left out too, also of the statistics by which observations are standardised,
and the actor and the targets move in odd updates, and in `single_file/td3_bc.py` in even ones.
"""

import contextlib
import importlib.util
import io
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from torch import Tensor

from algos.arguments import Count, Several, check
from algos.cli import parse_seeds, run_command
from algos.data import Dataset, load
from algos.errors import UserError
from algos.evaluate import Evaluator, maker
from algos.run_folder import folder_name
from benchmarks.peer_run import facts_of, new_folder, store

BATCH = 256
REWARDS = {"iql": "range", "td3_bc": "none"}


@dataclass(kw_only=True)
class Args:
    method: Annotated[Literal["iql", "td3_bc"], tyro.conf.Positional]
    """the algorithm"""
    dataset: str = "local/halfcheetah-medium-replay-v0"
    """a dataset of locomotion"""
    seeds: tuple[str, ...] = ("0:3",)
    """seeds, each of which is a training run: numbers and ranges"""
    total_steps: Count = 20_000
    """gradient updates of each seed"""
    eval_every: Count = 5_000
    """updates between evaluations"""
    eval_episodes: Several = 10
    """deterministic episodes per evaluation"""
    threads: Several = 1
    """threads for torch"""
    out: Path = Path("runs/d3rlpy")
    """results go to OUT/<dataset>/d3rlpy_METHOD/default/"""


def learner_and_buffer(method: str, data: Dataset, seed: int) -> tuple[Any, Any]:
    """The library's learner, and the data in its form."""
    import d3rlpy

    action, reward, terminated = (part[data.index].numpy() for part in (data.action, data.reward, data.terminated))
    cut = np.zeros(len(data))
    cut[data.trajectories()[:, 1] - 1] = 1
    with contextlib.redirect_stdout(io.StringIO()):
        d3rlpy.seed(seed)
        buffer = d3rlpy.dataset.MDPDataset(
            data.obs[data.index].numpy(), action, reward[:, None], terminated, cut * (terminated == 0)
        )
        if method == "iql":
            config = d3rlpy.algos.IQLConfig(batch_size=BATCH)
        else:
            scaler = d3rlpy.preprocessing.StandardObservationScaler()
            scaler.fit_with_transition_picker(buffer.episodes, buffer.transition_picker)
            config = d3rlpy.algos.TD3PlusBCConfig(batch_size=BATCH, observation_scaler=scaler)
        learner = config.create(device="cpu:0")
        learner.build_with_dataset(buffer)
    return learner, buffer


def main(args: Args) -> None:
    check(args)
    seeds = parse_seeds(args.seeds)
    if importlib.util.find_spec("d3rlpy") is None:
        raise UserError("d3rlpy is missing: pip install -e '.[peers]'")
    torch.set_num_threads(args.threads)
    data = load(args.dataset)
    if data.env_id is None:
        raise UserError(f"--dataset {args.dataset} names no environment to evaluate in")
    data.scale_rewards(REWARDS[args.method])
    data.fit_actions(-1, 1)
    folder = new_folder(args.out / folder_name(args.dataset) / (name := f"d3rlpy_{args.method}") / "default")
    rows = []
    for seed in seeds:
        learner, buffer = learner_and_buffer(args.method, data, seed)
        evaluator = Evaluator(maker(data.env_id, **data.env_options), [seed], args.eval_episodes)

        def policy(obs: Tensor, learner: Any = learner) -> Tensor:
            return torch.from_numpy(learner.predict(obs[0].numpy())).clamp(-1, 1)[None]

        seconds = 0.0
        for step in range(args.total_steps + 1):
            if step:
                started = time.perf_counter()
                learner.update(buffer.sample_transition_batch(BATCH))
                seconds += time.perf_counter() - started
            if step % args.eval_every == 0 or step == args.total_steps:
                (scores,) = evaluator(policy, step)
                rows += [(seed, step, i, score.total, score.length) for i, score in enumerate(scores)]
                mean = np.mean([score.total for score in scores])
                print(f"{args.dataset} seed {seed} update {step} return {mean:.1f} {seconds:.0f} s", flush=True)
        evaluator.close()
        facts = facts_of(data, args.dataset)
        store(folder, name, vars(args), rows, ["d3rlpy"], finished=seed == seeds[-1], **facts)


if __name__ == "__main__":
    run_command(main)
