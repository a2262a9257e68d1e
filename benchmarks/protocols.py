"""What must be the same in runs for their scores to be compared."""

import contextlib
import functools
import itertools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from algos.cli import RunArgs
from algos.data import is_file
from algos.run_folder import defaults, differing
from algos.stream import time_limit
from benchmarks.scores import family_name, label
from benchmarks.suite import ROOT, load_args
from envs.atari import is_game
from envs.make import OGBENCH, ROBOTICS, find_spec, plain_id

DATA = ("dataset", "expert_dataset")  # arguments that may be paths, each machine's own
PACKAGES = {"MinAtar/": "minatar", "MiniGrid-": "minigrid", "dm_control/": "dm_control", "ALE/": "ale-py"}


def protocol(config: dict[str, Any]) -> dict[str, Any]:
    """Everything that must be the same for scores on a task to be compared."""
    arguments = config.get("identity") or config.get("args", {})
    versions, data = config.get("versions", {}), config.get("facts", {})
    package = package_of(data.get("evaluated_in") or config.get("env_id", ""))
    return {
        "score": "success" if config.get("score") == "success" else "return",
        "steps": arguments.get("total_steps"),
        "evaluation episodes": arguments.get("eval_episodes"),
        "steps between evaluations": arguments.get("eval_every"),
        "Gymnasium": versions.get("gymnasium"),
        "MuJoCo": versions.get("mujoco"),
        "environment": data.get("evaluated_in"),
        "options of the environment": options_in_words(config) or None,
        "data": data.get("dataset_digest", data.get("digest")),
    } | ({package: versions[package]} if package in versions else {})  # runs of earlier versions do not tell it


def package_of(env_id: str) -> str:
    """The package that makes a task, besides Gymnasium and MuJoCo; empty where these do."""
    name = plain_id(env_id)
    if is_game(name):
        return "ale-py"
    if re.match(OGBENCH, name):
        return "ogbench"
    if name.startswith(ROBOTICS):
        return "gymnasium-robotics"
    return next((package for start, package in PACKAGES.items() if name.startswith(start)), "")


def options_in_words(config: dict[str, Any]) -> str:
    """The options of a run's environment as words of --env-option, in the order of the alphabet.

    A time limit that a streaming script has as an argument, or by default, is one of them, if it is not the task's own.
    """
    arguments = config.get("identity") or config.get("args", {})
    words = list(arguments.get("env_option", ()))
    if (wanted := arguments.get("max_episode_steps")) is not None:
        words += [f"{name}={value}" for name, value in time_limit(config["env_id"], wanted).items()]
    if any(word.startswith("max_episode_steps=") for word in words):
        with contextlib.suppress(ValueError, ModuleNotFoundError):  # a task that is not installed here
            own = find_spec(config["env_id"]).max_episode_steps
            words = [word for word in words if word != f"max_episode_steps={own}"]
    return " ".join(sorted(words))


def differences(sources: list[dict[str, Any]]) -> list[str]:
    """How runs on a task differ where they must not, a phrase for each difference."""
    found = []
    by_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for config in sources:
        by_task[config["task"]].append(config)
    for task, configs in sorted(by_task.items()):
        protocols = [protocol(config) for config in configs]
        for name in dict.fromkeys(itertools.chain.from_iterable(protocols)):
            groups: dict[Any, set[str]] = defaultdict(set)
            for config, found_in in zip(configs, protocols, strict=True):
                if name in found_in:
                    groups[found_in[name]].add(family_name(config))
            if len(groups) > 1:
                parts = [f"{value} ({', '.join(sorted(names))})" for value, names in groups.items()]
                found.append(f"{name} on {task}: {' but '.join(parts)}")
        same: dict[str, dict[str, Any]] = {}
        for config in configs:
            known = ("seeds", "device", "vary", "total_steps", "eval_episodes", "eval_every")
            rest = {name: value for name, value in config.get("identity", {}).items() if name not in known}
            rest |= config.get("facts", {})  # such as a dataset's digest
            rest |= {name: Path(rest[name]).name for name in DATA if is_file(rest.get(name) or "")}
            first = same.setdefault(label(config), rest)
            if entries := differing(rest, first, defaults_of(config.get("algorithm", ""))):
                name, earlier, later = entries[0]
                found.append(f"{label(config)} on {task}: {name}: {earlier} but {later}")
    return found


@functools.cache
def args_of(algorithm: str) -> type[RunArgs] | None:
    """The class of a shipped script's arguments; None for others."""
    script = ROOT / "single_file" / f"{algorithm}.py"
    return load_args(script) if script in (ROOT / "single_file").glob("*.py") else None


@functools.cache
def defaults_of(algorithm: str) -> dict[str, Any]:
    """The defaults of a shipped script's arguments; of others, nothing is known."""
    args_type = args_of(algorithm)
    return defaults(args_type) if args_type else {}
