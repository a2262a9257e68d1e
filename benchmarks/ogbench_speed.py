"""Updates per second of OGBench's own code, for `benchmarks.throughput goal_conditioned`, without this project's.

    PYTHONPATH=ogbench/impls python benchmarks/ogbench_speed.py gcivl --hidden 512 --batch-size 1024 --updates 20

It runs in an environment of its own with jax, flax, optax, distrax and ml_collections, on a clone of OGBench's
repository. As in that code's own loop, a batch is drawn on the host and handed to the compiled update.
"""

import argparse
import importlib
import time
from typing import Any

import numpy as np


def count(word: str) -> int:
    """A whole number of at least 1."""
    if (number := int(word)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", choices=("gcbc", "gcivl", "gciql", "crl", "qrl", "hiql"))
    parser.add_argument("--hidden", type=count, default=512, help="width of the three hidden layers")
    parser.add_argument("--batch-size", type=count, default=1024)
    parser.add_argument("--warm-up", type=count, default=3, help="updates before the clock starts")
    parser.add_argument("--updates", type=count, default=20, help="updates that are timed")
    args = parser.parse_args()
    try:
        import jax

        datasets = importlib.import_module("utils.datasets")
        module = importlib.import_module(f"agents.{args.agent}")
    except ImportError as error:
        parser.exit(2, f"error: PYTHONPATH or the environment lacks a part of OGBench's code: {error}\n")
    config = module.get_config()
    config.batch_size = args.batch_size
    for name in ("actor_hidden_dims", "value_hidden_dims"):
        if name in config:
            config[name] = (args.hidden,) * 3

    rng = np.random.default_rng(0)
    episodes, rows = 200, 500
    last = np.zeros((episodes, rows), np.float32)
    last[:, -1] = 1
    terminals = last.copy()
    terminals[:, -2] = 1  # the compact form: the last two rows of an episode
    arrays = {
        "observations": rng.standard_normal((episodes * rows, 2)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (episodes * rows, 2)).astype(np.float32),
        "terminals": terminals.ravel(),
        "valids": 1 - last.ravel(),
    }
    data = getattr(datasets, config["dataset_class"])(datasets.Dataset.create(**arrays), config)
    example = data.sample(1)
    kind: Any = next(v for k, v in vars(module).items() if isinstance(v, type) and k.endswith("Agent"))
    agent = kind.create(0, example["observations"], example["actions"], config)
    started = 0.0
    for update in range(args.warm_up + args.updates):
        if update == args.warm_up:
            jax.block_until_ready(agent.network.params)
            started = time.perf_counter()
        agent, _ = agent.update(data.sample(args.batch_size))
    jax.block_until_ready(agent.network.params)
    print(args.updates / (time.perf_counter() - started))


if __name__ == "__main__":
    main()
