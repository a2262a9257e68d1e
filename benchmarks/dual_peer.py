r"""The official code of f-DVL, XQL and ReCOIL as peers: on the same data, evaluated as ours, stored in our tables.

    git clone https://github.com/hari-sikchi/DVL                # run at commit 4b7cf11
    git clone https://github.com/Div99/XQL                      # dff09af
    git clone https://github.com/chufanchen/ReCOIL              # c88ba6d, which keeps the authors' commits
    pip install jax==0.4.35 flax==0.10.2 optax==0.2.4 tensorflow-probability==0.25.0 ml_collections
    python -m benchmarks.dual_peer f_dvl --code DVL
    python single_file/f_dvl.py --dataset local/hopper-medium-replay-v0 --batch-size 256 --seeds 0:5 \
      --total-steps 20000 --eval-every 2500 --compile --threads 1 --out runs/dual_peer
    python -m benchmarks.report runs/dual_peer --algorithms f_dvl official_f_dvl --references d4rl --formats png \
      --no-page --title "f-DVL beside its official code" --out results/f_dvl_vs_official

XQL is the same with `xql`. For ReCOIL, whose data are others, our script gets `--batch-size 256 --scale 3`.

Networks, losses, optimizers and updates are those of the official code in JAX, with its configuration for MuJoCo. The
size of batches and what its scripts take as flags are what our scripts have where they get the arguments in `SETTINGS`.
Data, the scale of rewards and the choice of expert trajectories are ours, which follow the official code; minibatches
are drawn as there, with other random numbers. One process trains the seeds one after the other.
"""

import importlib
import inspect
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

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
from benchmarks.peer_run import facts_of, limit_threads, new_folder, store

LEARNERS = {"f_dvl": "learner", "xql": "learner", "recoil": "learner_imitate"}
# by method: the dataset, and arguments of our script that are not its defaults
SETTINGS: dict[str, dict[str, Any]] = {
    "f_dvl": {"dataset": "local/hopper-medium-replay-v0", "batch_size": 256},
    "xql": {"dataset": "local/hopper-medium-replay-v0"},
    "recoil": {"dataset": "local/hopper-random-v0", "batch_size": 256, "scale": 3.0},
}


@dataclass(kw_only=True)
class Args:
    method: Annotated[Literal["f_dvl", "xql", "recoil"], tyro.conf.Positional]
    """the algorithm"""
    code: Path
    """folder of a clone of its official code"""
    seeds: tuple[str, ...] = ("0:5",)
    """seeds, each of which is a training run: numbers and ranges"""
    total_steps: Count = 20_000
    """gradient updates of each seed"""
    eval_every: Count = 2_500
    """updates between evaluations"""
    eval_episodes: Several = 10
    """deterministic episodes per evaluation"""
    threads: Several = 1
    """threads for torch; XLA has one thread with 1, and otherwise as many as there are cores"""
    out: Path = Path("runs/dual_peer")
    """results go to OUT/<dataset>/official_METHOD/default/"""


@dataclass(frozen=True)
class Flags:
    """The options of their command lines that the official updates read."""

    max_clip: float = 7.0
    sample_random_times: int = 0
    noise: bool = False
    noise_std: float = 0.1
    num_v_updates: int = 1
    f: str = "chi-square"
    grad_pen: bool = False
    lambda_gp: float = 1.0
    log_loss: bool = False


class Transitions(NamedTuple):
    """A minibatch, whose fields are those of the official code."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    masks: np.ndarray
    next_observations: np.ndarray
    is_expert: np.ndarray | None = None


def official(code: Path, method: str) -> tuple[Any, dict[str, Any]]:
    """The official learner, and its configuration for MuJoCo.

    It was written for earlier versions of JAX and Flax, which had other names for one function, gave parameters in
    frozen dictionaries, and let a compiled function name static arguments that it lacks.
    """
    if not (code / "offline" / f"{LEARNERS[method]}.py").is_file():
        raise UserError(f"--code {code} has no offline/{LEARNERS[method]}.py: give a clone of {method}'s official code")
    sys.path.insert(0, str(code / "offline"))
    try:
        import flax
        import jax

        jit = jax.jit

        def compiled(function: Any, static_argnames: Any = (), **more: Any) -> Any:
            names, known = np.atleast_1d(static_argnames).tolist(), inspect.signature(function).parameters
            return jit(function, static_argnames=[name for name in names if name in known], **more)

        jax.jit, jax.tree_map = compiled, jax.tree_util.tree_map
        jax.tree_multimap = jax.tree_map
        flax.config.update("flax_return_frozendict", method != "recoil")  # that copy of the code is of a later time
        module = importlib.import_module(LEARNERS[method])
        return module.Learner, dict(importlib.import_module("configs.mujoco_config").get_config())
    except (ImportError, AttributeError) as error:
        raise UserError(f"the code in {code} lacks a package, or its version: {error}") from None


def flags_of(method: str, ours: Any) -> tuple[float, Flags]:
    """The official `temp` and the other flags that do what our script's arguments do."""
    if method == "f_dvl":
        return ours.optimism, Flags()
    if method == "recoil":
        return ours.scale, Flags(max_clip=ours.clip)
    return ours.beta, Flags(
        max_clip=ours.clip,
        sample_random_times=ours.random_actions,
        noise=ours.noise > 0,
        noise_std=ours.noise,
        num_v_updates=ours.value_updates,
    )


def learning_data(method: str, ours: Any) -> tuple[dict[str, Any], Dataset, list[Transitions]]:
    """What config.json says of the data, the data, and the transitions in them that a method learns from.

    ReCOIL's data are the dataset and the expert's, of which it learns from two parts: the mixed and the labelled one.
    """
    data = load(ours.dataset)
    if method != "recoil":
        data.scale_rewards(ours.reward)
        data.fit_actions(-1, 1)
        return facts_of(data, ours.dataset), data, [transitions(data)]
    dataset, expert, others = data, load(ours.expert_dataset), len(data)
    hidden, labelled = expert.transitions_of(ours.expert_trajectories), min(ours.expert_transitions, len(expert))
    data = data.joined(expert.first(max(hidden, labelled)))
    data.fit_actions(-1, 1)
    is_expert = (np.arange(others + hidden) >= others).astype(np.float32)
    mixed = transitions(data.part(np.arange(others + hidden)))._replace(is_expert=is_expert)
    of_expert = transitions(data.part(np.arange(others, others + labelled)))
    return facts_of(data, ours.dataset, dataset), data, [mixed, of_expert]


def transitions(data: Dataset) -> Transitions:
    """All transitions of a dataset."""
    batch = data.gather(torch.arange(len(data)))
    parts = (batch.obs, batch.action, batch.reward, 1 - batch.terminated, batch.next_obs)
    return Transitions(*(part.numpy() for part in parts))


def chosen(source: Transitions, indices: np.ndarray) -> Transitions:
    """The transitions with these indices."""
    return Transitions._make(None if part is None else part[indices] for part in source)


def main(args: Args) -> None:
    check(args)
    seeds = parse_seeds(args.seeds)
    limit_threads(args.threads)
    make, config = official(args.code, args.method)
    ours = importlib.import_module(f"single_file.{args.method}").Args(**SETTINGS[args.method])
    temp, flags = flags_of(args.method, ours)
    facts, data, sources = learning_data(args.method, ours)
    name = f"official_{args.method}"
    folder = new_folder(args.out / folder_name(ours.dataset) / name / "default")
    rows: list[tuple] = []
    for seed in seeds:
        random, example = np.random.default_rng(seed), chosen(sources[0], np.zeros(1, int))
        learner = make(
            seed, example.observations, example.actions, max_steps=args.total_steps, loss_temp=temp, double_q=True,
            vanilla=False, args=flags, **config,
        )  # fmt: skip
        evaluator = Evaluator(maker(str(data.env_id), **data.env_options), [seed], args.eval_episodes)

        def policy(obs: Tensor, learner: Any = learner) -> Tensor:
            actions = learner.sample_actions(np.asarray(obs[0], np.float32), temperature=0.0)
            return torch.from_numpy(np.array(actions))[None]

        seconds = 0.0
        for step in range(args.total_steps + 1):
            if step:
                started = time.perf_counter()
                batches = [chosen(part, random.integers(len(part.rewards), size=ours.batch_size)) for part in sources]
                learner.update(*batches)
                seconds += time.perf_counter() - started
            if step % args.eval_every == 0 or step == args.total_steps:
                (scores,) = evaluator(policy, step)
                rows += [(seed, step, i, score.total, score.length) for i, score in enumerate(scores)]
                mean = np.mean([score.total for score in scores])
                print(f"{ours.dataset} seed {seed} update {step} return {mean:.1f} {seconds:.0f} s", flush=True)
        evaluator.close()
        store(
            folder, name, vars(args) | {"temp": temp, "batch_size": ours.batch_size} | asdict(flags), rows,
            ["jax", "flax", "optax", "tensorflow-probability"], finished=seed == seeds[-1],
            **facts,
        )  # fmt: skip


if __name__ == "__main__":
    run_command(main)
