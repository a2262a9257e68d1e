"""The files that a run of another library leaves, in the form of this project's own runs."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from algos.checkpoint import write_atomically
from algos.data import Dataset
from algos.errors import UserError
from algos.folders import writable
from algos.run_folder import git_commit, parquet_bytes, versions

COLUMNS = ("seed", "step", "episode", "return", "length")


def facts_of(data: Dataset, name: str, alone: Dataset | None = None) -> dict[str, Any]:
    """What config.json says of a run on a dataset, which the command calls `name`.

    Where others were joined to it, `data` are all of them, and `alone` is the dataset without them.
    """
    digests = {"digest": data.digest} | ({} if alone is None else {"dataset_digest": alone.digest})
    return {
        "task": name,
        "env_id": data.env_id,
        "steps": "gradient updates",
        "facts": digests | {"evaluated_in": data.env_id},
    }


def limit_threads(threads: int) -> None:
    """Lets torch use so many threads, and XLA one, or as many as there are cores; call it before JAX is imported."""
    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={str(threads > 1).lower()}"
    torch.set_num_threads(threads)


def new_folder(folder: Path) -> Path:
    """The folder of a run, which is made; raises UserError if it holds one already, or cannot be written to."""
    if os.path.lexists(folder / "config.json"):
        raise UserError(
            f"--out: {folder} holds a run already, finished or not, and no peer goes on with one: remove it, or take "
            "another --out, as for other seeds"
        )
    return writable(folder)


def head_of(folder: Path) -> str | None:
    """The commit of a clone of somebody's repository; None where git does not know its files."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", ".")  # a plain folder in another checkout has no commit of its own
        return git("rev-parse", "--short=12", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return None


def store(
    folder: Path,
    algorithm: str,
    args: dict[str, Any],
    rows: Sequence[tuple],
    libraries: Sequence[str],
    columns: Sequence[str] = COLUMNS,
    *,
    finished: bool,
    **facts: Any,
) -> None:
    """Writes the evaluation episodes `rows` and the configuration of a run, whose `facts` stand in config.json.

    `args` are the arguments of the command, of which the place of the peer's code is left out; `libraries` are packages
    whose versions are recorded.
    """
    write_atomically(folder / "eval.parquet", parquet_bytes(pd.DataFrame(rows, columns=list(columns))))
    kept = {name: str(value) if isinstance(value, Path) else value for name, value in args.items() if name != "code"}
    config = {
        "algorithm": algorithm,
        "variant": "default",
        "status": "finished" if finished else "running",
        "step": args["total_steps"],
        "args": kept,
        "versions": versions() | {name: version(name) for name in libraries},
        "commit": git_commit(),
        "code_commit": head_of(args["code"]) if args.get("code") else None,  # of the peer's own code
        "device": platform.processor() or platform.machine(),
        **facts,
    }
    write_atomically(folder / "config.json", json.dumps(config, indent=2).encode())
