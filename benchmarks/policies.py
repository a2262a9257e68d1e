"""Makes one of the policies of the recipes (benchmarks/recipes/policies) from a training run of SAC.

    python single_file/sac.py --env-id Hopper-v5 --total-steps 150000 --compile --threads 1 --out runs/policies
    python -m benchmarks.policies runs/policies/Hopper-v5/sac/default --name hopper-medium

It takes the run's newest checkpoint, or the one of --step if that is still there. The policy of antmaze's recipes is
made in the same way, and its speed is measured and printed too:

    python single_file/sac.py --env-id envs.ant_direction:AntDirection-v0 --total-steps 400000 --out runs/policies
    RUN=runs/policies/envs.ant_direction-AntDirection-v0/sac/default
    python -m benchmarks.policies $RUN --name ant-direction-expert
"""

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from safetensors import SafetensorError
from safetensors.torch import save_file

from algos.arguments import Natural, check
from algos.cli import run_command
from algos.errors import UserError, describe
from algos.run_folder import as_json
from algos.stored import EVAL, Config, read_json, read_table
from benchmarks.recipes.antmaze import speed
from benchmarks.recipes.checkpoint import actor_tensors
from benchmarks.recipes.locomotion import POLICIES, TRAINED_IN, Policy
from benchmarks.suite import ROOT, as_words, load_args
from envs import make_vec

# arguments of a run that the policy's command does not repeat: they do not change the policy, or it sets them itself
NOT_REPEATED = (
    "total_steps", "out", "variant", "resume", "quiet", "checkpoint_every", "eval_every", "eval_episodes", "log_every",
    "keep_replay",
)  # fmt: skip


@dataclass
class Args:
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """folder of a run of sac.py"""
    name: str
    """task and quality of the policy, such as hopper-medium"""
    seed: Natural | None = None
    """seed of the run whose policy is taken; by default the first"""
    step: Natural | None = None
    """step of the checkpoint that is taken; by default the newest"""


def main(args: Args) -> None:
    check(args)
    task, _, quality = args.name.rpartition("-")
    if task not in TRAINED_IN or quality not in ("medium", "expert"):
        raise UserError(f"--name must be a task and a quality, such as hopper-medium, got {args.name!r}")
    if not (args.run / "config.json").exists():
        raise UserError(f"there is no run in {args.run}")
    config = read_json(args.run / "config.json", Config)
    steps = sorted(int(p.stem) for p in (args.run / "checkpoint").glob("*.json") if p.stem.isdecimal())
    if not steps:
        raise UserError(f"the run in {args.run} has no checkpoint yet")
    try:
        step = steps[-1] if args.step is None else args.step
        path = args.run / "checkpoint" / f"{step:012d}.safetensors"
        frame = read_table(args.run / "eval.parquet", EVAL)
        if config["algorithm"] != "sac" or config["env_id"] != TRAINED_IN[task]:
            raise ValueError(f"it is {config['algorithm']} on {config['env_id']}")
        if words := config["identity"].get("env_option"):
            raise ValueError(f"its environment has other options, {' '.join(words)}")
        if config.get("varied"):
            raise ValueError(f"its runs differ in {', '.join(config['varied'])}, too")
        seeds = config["identity"]["seeds"]
        row = seeds.index(seeds[0] if args.seed is None else args.seed)
        tensors = actor_tensors(path, row)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise UserError(
            f"{args.run} is no run of sac.py that has such a seed and checkpoint ({describe(error)})"
        ) from None
    venv = make_vec(config["env_id"])
    low, high = (np.asarray(b, np.float32) for b in (venv.single_action_space.low, venv.single_action_space.high))  # type: ignore[attr-defined]
    venv.close()
    tensors |= {"mean": torch.tensor((high + low) / 2), "scale": torch.tensor((high - low) / 2)}
    usual = as_json(asdict(load_args(ROOT / "single_file" / "sac.py")()))
    flags = {"env_id": config["env_id"], "seeds": seeds, "threads": config["args"]["threads"]}
    flags |= {k: v for k, v in config["args"].items() if k not in (*NOT_REPEATED, *flags) and v != usual.get(k)}
    flags["device"] = config["identity"]["device"]
    flags = {name: tuple(value) if isinstance(value, list) else value for name, value in flags.items()}
    words = [word for name, value in flags.items() for word in as_words(name, value)]
    near = frame[(frame["seed"] == seeds[row]) & (frame["step"] <= step)]
    last = near[near["step"] == near["step"].max()]
    if last.empty:
        raise UserError(f"{args.run} has no evaluation of seed {seeds[row]} up to step {step:,}")
    training = {
        "command": shlex.join(["python", "single_file/sac.py", *words, "--total-steps", str(step)]),
        "flags": words,
        "run": row,
        "env_id": config["env_id"],
        "seed": seeds[row],
        "steps": step,
        "return": round(float(last["return"].mean()), 1),
        "return_at": int(last["step"].iloc[0]),
        "episodes": len(last),
        "commit": config["commit"],
        "versions": config["versions"],
    }
    POLICIES.mkdir(exist_ok=True)
    place = POLICIES / f"{args.name}.safetensors"
    save_file(tensors, place, {"facts": json.dumps(training)})
    if task == "ant-direction":
        training["speed"] = round(speed(Policy(place)), 3)
        save_file(tensors, place, {"facts": json.dumps(training)})
        print(f"{args.name}: {training['speed']} m/s towards its direction")
    print(f"{args.name}: return {training['return']:,} after {step:,} steps, in {POLICIES}")


if __name__ == "__main__":
    run_command(main)
