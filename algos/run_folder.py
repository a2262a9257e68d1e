"""The folder of a run: its lock, its identity and configuration, and its tables."""

import contextlib
import functools
import hashlib
import inspect
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from algos import cli
from algos.arguments import flag, incidental
from algos.checkpoint import Checkpoints, write_atomically, written_aside
from algos.cli import RunArgs
from algos.errors import UserError, warn
from algos.folders import check_usable, checked_part, holder, nearest
from algos.stored import FINISHED, Config, parsed, read_table, writing
from envs.make import source_of

FILES = (".csv", ".hdf5", ".h5", ".npz")
# config.json has these entries for each process
ORIGIN = ("commit", "script_digest", "environment_digest", "versions", "device")
MOST_TOLD = 4  # entries in which two runs differ
MARGIN = 64 << 20  # bytes of disk that a run needs besides its checkpoints


def script_of(kind: type) -> Path | None:
    """The file that defines a class of arguments; None if no file does, as in a notebook."""
    try:
        return Path(inspect.getfile(kind))
    except (OSError, TypeError):
        return None


def digest_of_file(path: Path | None) -> str | None:
    """The digest of a file of code, as config.json holds it; None if there is none, or if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path else None
    except OSError:
        return None


class RunFolder:
    """OUT/<task>/<algorithm>/<variant>/, which one process at a time may write to.

    Raises UserError if it holds a run of another configuration, or the same run and `--resume` is not given.
    """

    def __init__(self, args: RunArgs, algorithm: str, identity: dict[str, Any], facts: dict[str, Any]):
        self.args, self.algorithm, self.identity, self.facts = args, algorithm, identity, facts
        self.script = cli.script or script_of(type(args))  # a script may take the arguments of another one
        self.script_digest = digest_of_file(self.script)
        self.environment_digest = digest_of_file(source_of(args.env_id))
        self.path = folder_of(args, algorithm)
        self.checkpoints = Checkpoints(self.path / "checkpoint")
        self.told: set[str] = set()  # the files whose change was warned of
        self.earlier: dict[str, Any] = {}  # the configuration that an earlier process left, if there is one
        if os.path.exists(self.path):
            with self.claimed():
                self.earlier = self.configuration()
        else:
            check_usable(self.path)

    @property
    def finished(self) -> bool:
        """Whether an earlier process finished the run."""
        return self.earlier.get("status") in FINISHED

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Holds the lock; raises UserError if another process does, or if the folder cannot be used."""
        lock = FileLock(self.path / ".lock")  # most systems drop it when the process ends, however it ends
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0.3)  # another process that only looks has it for a moment
            write_atomically(self.path / ".writable", b"")
            (self.path / ".writable").unlink()
        except Timeout:
            who = holder(self.path / ".lock")
            raise UserError(f"--out: another process is training in {self.path}; wait for it, or end it{who}") from None
        except OSError as error:
            lock.release()
            raise UserError(f"--out: cannot use {self.path}: {error}") from None
        try:
            yield
        finally:
            lock.release()

    def configuration(self) -> dict[str, Any]:
        """The folder's configuration, {} if it has none; raises UserError if this run cannot go on with it."""
        path = self.path / "config.json"
        if not os.path.lexists(path):
            if self.checkpoints.folder.is_dir() and any(self.checkpoints.folder.glob("[!.]*")):
                raise UserError(
                    f"--out: {self.path} has checkpoints and no config.json that tells whose they are: remove it, or "
                    "choose another --out or --variant"
                )
            return {}
        try:
            config = parsed(path, Config)
            theirs, status = config["identity"] | config.get("facts", {}), config["status"]
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"--out: {path} is not a run's ({error}); choose another --out or --variant") from None
        early = {"table": self.facts.get("table")}  # early runs do not say in which table they learned
        if entries := differing(self.identity | self.facts, theirs, defaults(type(self.args)) | early):
            advice = {
                "total_steps": "a run keeps the length that it began with; choose another --out or --variant",
                "seeds": "for more seeds of the same algorithm, take another --out, and a report of both folders joins "
                "them; another --variant is an algorithm of its own",
            }.get(" ".join(name for name, *_ in entries), "choose another --out or --variant")
            raise UserError(f"--out: {self.path} holds a run with another configuration ({told(entries)}); {advice}")
        if not self.args.resume:
            raise UserError(
                f"--out: {self.path} holds this run already ({status}): continue it with --resume, or choose another "
                "--out or --variant"
            )
        for name, file in (
            ("script_digest", f"{self.algorithm}.py"), ("environment_digest", f"the file of {self.args.env_id}"),
        ):  # fmt: skip
            then, now = config.get(name), getattr(self, name)
            if then and now and then != now and name not in self.told:
                self.told.add(name)
                finished = "its results stay those of the file as it was"
                what = finished if status in FINISHED else "the run goes on with what it is now"
                warn(f"{file} has changed since {self.path} was written; {what}")
        return config

    def check_space(self, nbytes: int) -> None:
        """Raises UserError if the disk lacks room for three checkpoints of this size, one of them in the making."""
        there = sum(path.stat().st_size for path in self.checkpoints.folder.glob("*") if path.is_file())
        need, free = 3 * nbytes + MARGIN - there, shutil.disk_usage(nearest(self.path)).free
        if need > free:
            raise UserError(
                f"--out: checkpoints in {self.path} need {need / 2**30:.1f} GiB of disk, where {free / 2**30:.1f} "
                "GiB are free: make room, train fewer seeds at once, or keep a smaller replay"
            )

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Turns an error of writing into a UserError."""
        return writing(self.path, "; --resume goes on from the last checkpoint")

    def write_table(self, name: str, frame: pd.DataFrame) -> None:
        """Replaces a table."""
        write_atomically(self.path / name, parquet_bytes(frame))

    def read_table(self, name: str, columns: Sequence[str], varied: Sequence[str]) -> pd.DataFrame:
        """A table with these columns and varied hyperparameters; raises UserError if it is missing or damaged."""
        try:
            return read_table(self.path / name, columns, varied)
        except UserError as error:
            raise UserError(f"{error}; remove the run's folder and start again") from None

    def write_config(self, config: dict[str, Any]) -> None:
        """Writes config.json: the given entries, and everything that tells where the results come from.

        `before` lists the origins of what earlier processes did, where they had other code or another machine.
        """
        config = {
            "algorithm": self.algorithm,
            "identity": self.identity,
            "facts": self.facts,
            "script_digest": self.script_digest,
            "environment_digest": self.environment_digest,
            "versions": versions(),
            "commit": git_commit(self.script),
            "date": time.strftime("%Y-%m-%d"),
        } | config
        before, then = list(self.earlier.get("before", [])), {name: self.earlier.get(name) for name in ORIGIN}
        begun = self.earlier.get("step") or self.earlier.get("phase_seconds")
        if begun and then != {name: config[name] for name in ORIGIN}:
            before.append({"until": self.earlier.get("step", 0), **then})
        write_atomically(self.path / "config.json", json.dumps(config | {"before": before}, indent=2).encode())

    def size(self) -> int:
        """Bytes of all files, but for those that another command takes away meanwhile."""
        total = 0
        for place, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(os.path.join(place, name)).st_size
        return total


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    """The bytes of a table, each page of which has a checksum."""
    return frame.to_parquet(None, index=False, write_page_checksum=True)


def folder_of(args: RunArgs, algorithm: str) -> Path:
    """The folder of a run; raises UserError for names that cannot be a part of a path."""
    task = checked_part(flag(args.TASK), folder_name(args.task))
    return Path(args.out) / task / checked_part("algorithm", algorithm) / checked_part("--variant", args.variant)


def folder_name(task: str) -> str:
    """A task's name as a part of a path; for a file, it is the name of the file."""
    return Path(task).stem if Path(task).suffix in FILES else task.replace("/", "-").replace(":", "-")


def identity(args: RunArgs, algorithm: str, seeds: list[int], device: str) -> dict[str, Any]:
    """The arguments and other choices that determine the results of a run, in the types of JSON."""
    left_out = incidental(type(args))
    chosen = {name: value for name, value in asdict(args).items() if name not in left_out}
    chosen |= {"seeds": seeds, "device": device, "algorithm": algorithm}
    return as_json(chosen)


def as_json(values: dict[str, Any]) -> dict[str, Any]:
    """The values in the types of JSON, as they are read from a file."""
    return json.loads(json.dumps(values, default=str))


def defaults(args_type: type[RunArgs]) -> dict[str, Any]:
    """The defaults of a script's arguments, in the types of JSON."""
    return as_json({field.name: field.default for field in fields(args_type)})


def differing(ours: dict[str, Any], theirs: dict[str, Any], absent: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """The entries in which two identities differ: name, their value and ours.

    Digests, of which other entries may be a part, count if nothing else differs. Where an entry is missing, because an
    earlier version had no such argument, it is as in `absent`. A file of data that has moved does not count.
    """
    names = sorted(set(ours) | set(theirs))
    pairs = {name: [identity.get(name, absent.get(name)) for identity in (theirs, ours)] for name in names}
    found = [(name, there, here) for name, (there, here) in pairs.items() if there != here and not moved(there, here)]
    return [entry for entry in found if not entry[0].endswith("digest")] or found


def moved(there: Any, here: Any) -> bool:
    """Whether two paths are of one file of data, by its name, which is no longer where it was."""
    both = isinstance(there, str) and isinstance(here, str) and here.endswith(FILES)
    return both and os.path.basename(there) == os.path.basename(here) and not os.path.lexists(there)


def told(entries: list[tuple[str, Any, Any]]) -> str:
    """The first entries in which a run that is there differs from the one that is wanted, in words."""
    words = [f"{name}: {there} there, {here} here" for name, there, here in entries[:MOST_TOLD]]
    return "; ".join(words) + (f"; and {len(entries) - MOST_TOLD} more" if len(entries) > MOST_TOLD else "")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that determine results."""
    installed = {"python": platform.python_version()}
    packages = (
        "torch", "gymnasium", "mujoco", "numpy", "seedbed", "dm_control", "shimmy", "minatar", "minigrid", "ale-py",
        "ogbench", "gymnasium-robotics",
    )  # fmt: skip
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


@functools.cache
def git_commit(script: Path | None = None) -> str | None:
    """The commit of this code, with a + if it was changed since or lacks the script; None outside a checkout.

    After the +, a digest of the changes tells one uncommitted state from another.
    """

    def git(*words: str) -> str:
        here = Path(__file__).resolve().parent  # perhaps another user's, as in a container
        command = ["git", "-C", str(here), "-c", f"safe.directory={here.parent}", *words]
        found = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True, timeout=10)
        return found.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # or it lies in a checkout of something else
        commit = git("describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
        if commit.endswith("+"):
            changes = git("diff-index", "-p", "--full-index", "--no-ext-diff", "HEAD", "--", ":(top)*.py")
            commit += hashlib.sha256(changes.encode()).hexdigest()[:6]
    except (OSError, subprocess.SubprocessError):
        return None
    try:
        if script and "+" not in commit:
            git("ls-files", "--error-unmatch", str(script.resolve()))
    except (OSError, subprocess.SubprocessError):
        return f"{commit}+"
    return commit


def write_progress(folder: Path, progress: dict[str, Any]) -> None:
    """Writes down how far a run is, for the process that started it."""
    # an error is no matter here, as the next checkpoint reports a full disk
    with contextlib.suppress(OSError), written_aside(folder / "progress.json") as part:
        part.write_text(json.dumps(progress), encoding="utf-8")
