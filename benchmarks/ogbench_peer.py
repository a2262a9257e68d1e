r"""OGBench's own methods as peers: trained on the same data, evaluated in the same mazes, stored in our tables.

    git clone https://github.com/seohongpark/ogbench                  # results: commit 1d41409
    pip install jax flax optax distrax ml_collections
    for method in gcivl hiql gcbc; do                                 # or crl, gciql, qrl
      python -m benchmarks.ogbench_peer $method --code ogbench/impls --out runs/$method
      python single_file/$method.py --dataset local/pointmaze-medium-navigate-v0 --seeds 0:3 --total-steps 40000 \
        --hidden 256 256 256 --batch-size 256 --eval-every 4000 --eval-episodes 20 --compile --threads 1 \
        --out runs/$method
      python -m benchmarks.report runs/$method --references success --score three --title "$method beside OGBench's" \
        --out results/${method}_vs_ogbench
    done

The stored comparison of CRL is a quarter as long: both got `--total-steps 10000 --eval-every 2000`.

Networks, goals and updates are those of the official code in JAX. Width, batch and number of updates are smaller than
there, and the same for both; all else is as in the official commands for the navigate data of point mazes up to the
large one, and so are our defaults. One process trains the seeds one after the other.
"""

import importlib
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from torch import Tensor

from algos.arguments import Count, Several, Size, check
from algos.cli import parse_seeds, run_command
from algos.data import Dataset, is_file
from algos.errors import UserError
from algos.evaluate import Evaluator
from algos.goal_data import check_goals, load_states
from algos.run_folder import folder_name
from benchmarks.peer_run import facts_of, limit_threads, new_folder, store
from envs.goals import make_goal_vec

PLACES = (
    "pointmaze-medium-navigate",
    "pointmaze-large-navigate",
)  # the official commands for them set nothing but alphas
ALPHAS = {"gciql": 0.003, "crl": 0.03, "qrl": 0.0003}  # where these are not the defaults of the official code


@dataclass(kw_only=True)
class Args:
    method: Annotated[Literal["gcbc", "gcivl", "gciql", "crl", "qrl", "hiql"], tyro.conf.Positional]
    """the method"""
    code: Path
    """folder impls of a clone of OGBench"""
    dataset: str = "local/pointmaze-medium-navigate-v0"
    """navigate data of the medium or the large point maze"""
    seeds: tuple[str, ...] = ("0:3",)
    """seeds, each of which is a training run: numbers and ranges"""
    total_steps: Count = 40_000
    """gradient updates of each seed"""
    hidden: Size = 256
    """width of the three hidden layers"""
    batch_size: Size = 256
    """transitions per update"""
    eval_every: Count = 4_000
    """updates between evaluations"""
    eval_episodes: Several = 20
    """deterministic episodes of each task per evaluation"""
    threads: Several = 1
    """threads for torch; XLA has one thread with 1, and otherwise as many as there are cores"""
    out: Path = Path("runs/ogbench_peer")
    """results go to OUT/<dataset>/ogbench_<method>/default/"""


def compact(data: Dataset) -> dict[str, np.ndarray]:
    """A dataset in OGBench's compact form: all states of an episode, of which the last one has no action of its own."""
    rows, index, sizes = data.rows.numpy(), data.index.numpy(), (data.obs_size, data.obs_size + data.act_size)
    parts, terminals, valids = [], [], []
    for first, end in data.trajectories():
        part = rows[index[first] : index[end - 1] + 2]
        parts.append(part)
        ends = np.zeros(len(part), np.float32)
        ends[-2:] = 1
        terminals.append(ends)
        valids.append((np.arange(len(part)) < len(part) - 1).astype(np.float32))
    observations, actions, _ = np.split(np.concatenate(parts).astype(np.float32), sizes, axis=1)
    return {
        "observations": observations,
        "actions": actions,
        "terminals": np.concatenate(terminals),
        "valids": np.concatenate(valids),
    }


def main(args: Args) -> None:
    check(args)
    seeds = parse_seeds(args.seeds)
    if is_file(args.dataset) or not any(place in args.dataset for place in PLACES):
        raise UserError(f"--dataset takes data of {' or '.join(PLACES)}, got {args.dataset}")
    if not (args.code / "agents").is_dir():
        raise UserError(f"--code {args.code} has no folder agents: give the folder impls of a clone of OGBench")
    limit_threads(args.threads)
    sys.path.insert(0, str(args.code))
    try:
        import jax

        datasets, module = importlib.import_module("utils.datasets"), importlib.import_module(f"agents.{args.method}")
    except ImportError as error:
        raise UserError(f"OGBench's code lacks a package: {error}") from None
    data = load_states(args.dataset)
    tasks = check_goals(str(data.env_id), args.dataset)
    folder = new_folder(args.out / folder_name(args.dataset) / f"ogbench_{args.method}" / "default")
    arrays = datasets.Dataset.create(**compact(data))
    config = module.get_config()
    config.batch_size, config.actor_hidden_dims, config.value_hidden_dims = args.batch_size, *[(args.hidden,) * 3] * 2
    if args.method in ALPHAS:
        config.alpha = ALPHAS[args.method]
    kind: Any = next(v for k, v in vars(module).items() if isinstance(v, type) and k.endswith("Agent"))
    rows, key = [], jax.random.PRNGKey(0)  # without temperature, nothing is drawn from it
    for seed in seeds:
        np.random.seed(seed)  # noqa: NPY002  the official code draws from it
        sampler = getattr(datasets, config["dataset_class"])(arrays, config)
        example = sampler.sample(1)
        agent = kind.create(seed, example["observations"], example["actions"], config)
        make = partial(make_goal_vec, str(data.env_id), threads=args.threads)
        evaluator = Evaluator(make, [seed], args.eval_episodes, tasks=tasks, goals=True)

        def policy(obs: Tensor, goal: Tensor) -> Tensor:
            states, goals = (np.asarray(x[0], np.float32) for x in (obs, goal))
            actions = agent.sample_actions(states, goals, seed=key, temperature=0.0)  # noqa: B023  called in its turn
            return torch.from_numpy(np.array(actions))[None]

        started = time.perf_counter()
        for step in range(args.total_steps + 1):
            if step:
                agent, _ = agent.update(sampler.sample(args.batch_size))
            if step % args.eval_every == 0 or step == args.total_steps:
                (scores,) = evaluator(policy, step)
                rows += [
                    (seed, step, score.task, i % args.eval_episodes, score.total, score.length, score.success)
                    for i, score in enumerate(scores)
                ]
                rate, seconds = 100 * np.mean([bool(s.success) for s in scores]), time.perf_counter() - started
                print(f"{args.dataset} seed {seed} update {step} success {rate:.1f}% {seconds:.0f} s", flush=True)
        evaluator.close()
        store(
            folder,
            f"ogbench_{args.method}",
            vars(args),
            rows,
            ["jax", "flax", "optax", "distrax"],
            ("seed", "step", "task", "episode", "return", "length", "success"),
            finished=seed == seeds[-1],
            score="success",
            **facts_of(data, args.dataset),
        )


if __name__ == "__main__":
    run_command(main)
