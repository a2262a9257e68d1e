"""What files with agents have in common: tensors, and JSON that says whose they are."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter
from safetensors import safe_open
from torch import Tensor

from algos.arguments import check, incidental
from algos.cli import parse_seeds
from algos.errors import UserError
from algos.per_run import PerRun
from envs import Task

T = TypeVar("T")
SHOWN = 6  # runs that an error lists
WIDEST = 4096  # layers up to this width are believed, even where no tensor of the file is as wide


def description(agent: Any) -> dict[str, Any]:
    """The agent's class, its runs (seed and setting), its task and its arguments, in the types of JSON."""
    left_out = {"vary", "seeds", *incidental(type(agent.args))}
    args = {name: value for name, value in vars(agent.args).items() if name not in left_out}
    varied = {name: value.tolist() for name, value in args.items() if isinstance(value, PerRun)}
    values = [dict(zip(varied, row, strict=True)) for row in zip(*varied.values(), strict=True)] or [{}] * agent.runs
    return {
        "algorithm": type(agent).__name__,
        "runs": [{"seed": seed, **setting} for seed, setting in zip(agent.seeds, values, strict=True)],
        "task": asdict(agent.task),
        "args": {n: v for n, v in args.items() if not isinstance(v, Path | PerRun)},
    }


def contents(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file and what it says of them; raises whatever reading a damaged file raises."""
    with safe_open(path, "pt") as file:
        texts = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dictionary
    return tensors, {name: json.loads(text) for name, text in texts.items()}


def chosen(path: str | Path, runs: list[dict[str, Any]], wanted: dict[str, Any]) -> int:
    """The number of the run with the wanted seed and hyperparameters; raises UserError unless exactly one run fits."""
    fitting = [number for number, key in enumerate(runs) if wanted.items() <= key.items()]
    if len(fitting) == 1:
        return fitting[0]
    if unknown := [name for name in wanted if runs and name not in runs[0]]:
        raise UserError(f"{path} holds runs that differ in {', '.join(runs[0])}, and not in {unknown[0]}")
    listed = [runs[number] for number in fitting] or runs
    held = "; ".join(", ".join(f"{name} {value}" for name, value in key.items()) for key in listed[:SHOWN])
    held += f"; and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    raise UserError(f"{path} holds {held}: {'say which' if fitting else f'there is none with {wanted}'}")


def checked(kind: type[T], values: dict[str, Any]) -> T:
    """An object of a dataclass from values of JSON; raises TypeError for other names and ValueError for other types."""
    if unknown := set(values) - {field.name for field in fields(kind)}:  # type: ignore[arg-type]
        raise TypeError(f"{kind.__name__} has no {min(unknown)}")
    return TypeAdapter(kind).validate_json(json.dumps(values), strict=True)


def check_values(args: Any, task: Task, seeds: list[Any], state: dict[str, Tensor], widest: int = 0) -> None:
    """Raises ValueError for what no agent has, and for one that is larger than the tensors that a file has for it.

    Layers up to `widest` are believed.
    """
    try:
        check(args)
        parse_seeds(tuple(map(str, dict.fromkeys(seeds))))
    except UserError as error:
        raise ValueError(str(error)) from None
    bounds = [(low, high) for low, high in zip(task.low, task.high, strict=True) if low < high]
    if len(bounds) != (0 if task.discrete else task.act_size):
        raise ValueError(f"the bounds of {task.act_size} actions are {task.low} and {task.high}")
    hidden = getattr(args, "hidden", ())
    largest = max((size for tensor in state.values() for size in tensor.shape), default=0)
    if strange := [size for size in (*hidden, *task.obs_shape, task.act_size) if size > max(largest, widest)]:
        raise ValueError(f"no tensor has a size of {strange[0]}")
    if len(hidden) > max(len(state), 8 if widest else 0):
        raise ValueError(f"it has {len(hidden)} layers, and {len(state)} tensors")
