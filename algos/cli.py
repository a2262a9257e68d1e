"""Command lines: the arguments that every script has, seeds, settings of a grid, and errors in one sentence."""

import contextlib
import difflib
import inspect
import io
import itertools
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_origin, get_type_hints

import gymnasium as gym
import torch
import tyro

from algos.arguments import Count, FewOrNone, Incidental, check, check_number, flag, ranges, tunable
from algos.device import choose_device
from algos.env_options import options_of
from algos.errors import UserError, warn
from algos.folders import check_usable, checked_part
from algos.help_text import readable_help, wrapped
from algos.memory import is_lack_of_memory, limit_memory
from algos.per_run import PerRun
from algos.signals import ended_by_signals
from envs import find_spec, make_vec
from envs.make import TABULAR

PLAIN = {  # Python's words on a value, and plain ones
    r"invalid literal for int\(\) with base 10: ('[^']*')": r"\1 is no whole number in digits",
    r"could not convert string to float: ('[^']*')": r"\1 is no number",
    r"Could not find valid parse for arguments: \[('.*')\]": r"\1 does not fit; spaces separate values",
}
Setting = dict[str, float]  # hyperparameter -> value
script: Path | None = None  # the file of the script that runs, if it was started by its command line


@dataclass(kw_only=True)
class RunArgs:
    """Arguments of every script."""

    TASK: ClassVar[str] = "env_id"  # the argument that names the task
    STEPS: ClassVar[str] = "environment steps"  # the unit of steps, for figures
    TF32: ClassVar[bool] = True  # whether a GPU may round factors of products, for speed
    ACTIONS: ClassVar[str] = "continuous"  # environments have continuous, discrete or any; empty: none are needed

    env_id: str = "HalfCheetah-v5"
    """Gymnasium id of a task with continuous actions; `module:Name-v0` imports a module first"""
    seeds: tuple[str, ...] = ("0",)
    """seeds, each of which is a training run, all at once: `0 1 2`, or a range such as `0:10` (0 to 9)"""
    vary: tuple[str, ...] = ()
    """hyperparameters that take several values, such as `critic_lr=1e-4,3e-4 tau=0.005,0.01` where a script has these:
    every combination of values is trained with every seed, all at once"""
    total_steps: Count = 1_000_000
    """environment steps of each run"""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto takes CUDA where there is one"""
    compile: bool = False
    """compile the update on a CPU too, which needs a C++ compiler and a minute or two; on CUDA it is always compiled"""
    eager: bool = False
    """neither compile nor capture the update, on any device: for debugging"""
    bf16: bool = False
    """with --compile on a CPU: compute hidden layers of updates and of ensembles in bfloat16, which is faster; weights
    and sums stay in float32. A processor without instructions for bfloat16 computes everything in float32, and on a
    GPU it changes nothing; where no hidden layer has 4,096 weights, it is refused"""
    threads: Incidental[FewOrNone] = 0
    """CPU threads of torch and of physics; 0: one for each core, in torch without the cores that other processes use"""
    eval_every: Count = 10_000
    """environment steps between evaluations, which also take place before the first and after the last"""
    eval_episodes: FewOrNone = 10
    """deterministic episodes of each run at an evaluation, each in an environment of its own, all at once; 0: the score
    is that of the training episodes. Tables are evaluated exactly, whatever the number above 0"""
    stop_when_solved: bool = False
    """on tables (ids `tabular/…`): end each run at the first evaluation after step 0 at which its policy lacks at most
    5% of the difference between the best return and that of random actions"""
    log_every: Count = 1_000
    """environment steps over which training metrics are averaged"""
    checkpoint_every: Incidental[Count] = 50_000
    """environment steps between checkpoints, and at most a quarter of an hour; where writing one takes over 5 seconds,
    they come less often, and take at most a twentieth of the time"""
    out: Incidental[Path] = Path("runs")
    """results go to OUT/<task>/<algorithm>/<variant>/"""
    variant: str = "default"
    """name of this set of hyperparameters, the last part of the folder"""
    resume: Incidental[bool] = False
    """continue from the folder's last checkpoint, if there is one"""
    quiet: Incidental[bool] = False
    """print nothing but warnings and errors"""

    @property
    def task(self) -> str:
        """The name of the task: the environment's id, or the argument that `TASK` names."""
        return getattr(self, self.TASK)

    @property
    def env_options(self) -> dict[str, Any]:
        """The arguments of the environment that are not its own defaults."""
        return {}

    def check_task(self) -> None:
        """Raises UserError if there is no such task."""
        check_env_id(self.env_id)

    def check_ready(self) -> None:
        """Raises UserError if something has to be made before this can run, or if arguments do not fit together."""
        if self.stop_when_solved and not (self.task.startswith(TABULAR) and self.eval_episodes):
            raise UserError(
                f"--stop-when-solved works for ids {TABULAR}… only, which are evaluated exactly, and not with "
                f"--eval-episodes 0; got {self.task}"
            )

    def without_effect(self) -> dict[str, str]:
        """Some of the arguments that change nothing because of the others, each with the words that say when.

        `--vary` refuses them, and a run warns of those whose values are not their defaults.
        """
        return {}


@dataclass(kw_only=True)
class EnvArgs(RunArgs):
    """Arguments of scripts that learn in an environment."""

    env_option: tuple[str, ...] = ()
    """options of the environment, in learning and in evaluation, such as `terminate_when_unhealthy=false
    max_episode_steps=500`"""

    @property
    def env_options(self) -> dict[str, Any]:
        return options_of(self.env_option)

    def check_task(self) -> None:
        super().check_task()
        if (name := "max_episode_steps") in self.env_options and hasattr(self, name):
            raise UserError(f"--env-option {name}: use {flag(name)} instead")


Args = TypeVar("Args", bound=RunArgs)


MOST_SEEDS = 10_000  # that one process may train


def parse_seeds(words: tuple[str, ...]) -> list[int]:
    """`("0", "5:8")` -> [0, 5, 6, 7].

    Raises UserError for other words, for too many seeds, and for seeds that are repeated or out of range.
    """
    seeds: list[int] = []
    for word in map(str, words):
        try:
            first, colon, last = word.partition(":")
            found = range(int(first or 0), int(last)) if colon else range(int(word), int(word) + 1)
        except ValueError:
            raise UserError(f"--seeds takes whole numbers or a range such as 0:10, got {word[:40]!r}") from None
        if not found:
            raise UserError(f"--seeds names no seed: {word!r}")
        if found[0] < 0:
            raise UserError(f"--seeds must not be negative, got {found[0]}")
        if found[-1] >= 2**63:
            raise UserError(f"--seeds must be below 2^63, got {found[-1]}")
        if found.stop - found.start + len(seeds) > MOST_SEEDS:
            raise UserError(
                f"--seeds takes at most {MOST_SEEDS:,} seeds, which one process trains at once, and {word!r} has "
                f"{found.stop - found.start:,}: split them"
            )
        seeds += found
    if not seeds:
        raise UserError("--seeds names no seed")
    if len(set(seeds)) < len(seeds):
        repeated = min(seed for seed, count in Counter(seeds).items() if count > 1)
        raise UserError(f"--seeds must differ from each other, got {repeated} twice")
    return seeds


def settings(args: RunArgs) -> list[Setting]:
    """Every combination of the values in `--vary`, the last hyperparameter changing fastest; [{}] if nothing varies.

    Raises UserError for a word that is not `name=v1,v2`, for a hyperparameter that may not vary or is named twice, and
    for values that are repeated or out of range.
    """
    hints = get_type_hints(type(args), include_extras=True)
    grid: dict[str, list[float]] = {}
    for word in args.vary:
        name, equals, values = word.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not (name and equals and values):
            raise UserError(f"--vary takes words such as critic_lr=1e-4,3e-4, got {word!r}")
        known = tunable(type(args))
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UserError(
                f"--vary: {name} cannot differ between runs, only {', '.join(known) or 'nothing'} can{hint}"
            )
        if when := args.without_effect().get(name):
            raise UserError(f"--vary: {name} changes nothing {when}, and all of its values would train the same run")
        if name in grid:
            raise UserError(f"--vary names {name} twice")
        try:
            grid[name] = [float(value) for value in values.split(",")]
        except ValueError:
            raise UserError(f"--vary {name} takes numbers with commas between them, got {values!r}") from None
        for number in grid[name]:
            if not math.isfinite(number):
                raise UserError(f"--vary {name} takes finite numbers, got {values!r}")
            for bounds in ranges(hints[name]):
                check_number(name, number, bounds)
        if repeated := [number for number, count in Counter(grid[name]).items() if count > 1]:
            raise UserError(f"--vary {name} has the value {repeated[0]:g} twice")
    runs = math.prod(map(len, grid.values())) * len(parse_seeds(args.seeds))
    if runs > MOST_SEEDS:
        raise UserError(
            f"--vary makes {runs:,} runs with these seeds, and one process trains at most {MOST_SEEDS:,}: split them"
        )
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def with_settings(args: Args, seeds: list[int], device: torch.device | str = "cpu") -> tuple[Args, list[int]]:
    """The arguments as agents take them, and the seed of each of the R = settings · seeds runs; settings vary slowest.

    A hyperparameter that varies becomes a `PerRun` with the value of each run.
    """
    grid = settings(args)
    values: dict[str, Any] = {}
    for name in grid[0]:
        values[name] = PerRun([setting[name] for setting in grid for _ in seeds], device)
    return replace(args, **values), seeds * len(grid)


def device_of(args: RunArgs) -> torch.device:
    """The device to train on; raises UserError if there is no such device, or if it cannot do what is asked."""
    device = choose_device(args.device)
    if args.bf16 and (args.eager or (device.type == "cpu" and not args.compile)):
        needed = [*(["leave out --eager"] if args.eager else []), *(["add --compile"] if not args.compile else [])]
        raise UserError(f"--bf16 works only in updates that are compiled: {' and '.join(needed)}")
    return device


def check_script_name(algorithm: str, file: Path | None = None) -> None:
    """Raises UserError if a script, by default the one that was started, calls its run by another name than its own.

    That is the name of its file, or of the package whose __main__.py it is.
    """
    file = file or script
    if file and (stem := file.parent.name if file.stem == "__main__" else file.stem) != algorithm:
        raise UserError(
            f"{file} calls its run {algorithm!r}, and results are stored and policies are found again by the name of "
            f"the script: call it {stem!r}"
        )


def check_clone(script: Path) -> None:
    """Warns if a script of one clone of this repository runs with the packages of another one, which is installed."""
    clone, root = script.resolve().parent.parent, Path(__file__).resolve().parents[1]
    if clone != root and (clone / "algos" / "cli.py").is_file():
        warn(f"{script} runs with the code of {root}, not with that of {clone}: pip install -e {clone}")


def check_env_id(env_id: str, flag: str = "--env-id") -> None:
    """Raises UserError, with the closest names, if Gymnasium does not know the id, or if it needs another package."""
    try:
        find_spec(env_id)
    except (ModuleNotFoundError, ValueError) as error:
        raise UserError(f"{flag}: {error}") from None


def env_error(error: Exception) -> UserError:
    """The error of an environment's id, or of the argument with which its message begins."""
    return UserError(f"{error}" if str(error).startswith("--") else f"--env-id: {error}")


@contextlib.contextmanager
def env_errors(env_id: str, optional: bool = False) -> Iterator[None]:
    """Turns errors in making environments into a UserError; `optional` if an argument chose options of them."""
    check_env_id(env_id)
    name = f"--env-option: {env_id} with these options" if optional else f"--env-id {env_id}"
    try:
        yield
    except ValueError as error:
        raise UserError(f"--env-option: {error}") if optional else env_error(error) from None
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise UserError(f"{name} needs a package that is not installed: {error}") from None
    except UserError:
        raise
    except Exception as error:  # an environment's own code may raise anything
        unknown = re.search(r"unexpected keyword argument '(\w+)' was raised from .* kwargs \(.*'\1'", str(error))
        if optional and unknown:  # Gymnasium names what the constructor was given
            raise UserError(f"--env-option: {env_id} has no option {unknown[1]}") from None
        reason = " ".join(str(error).split()) or "without a message"
        raise UserError(f"{name} cannot be made: its code raised {type(error).__name__}, {reason}") from None


def check_options(env_id: str, options: dict[str, Any]) -> None:
    """Raises UserError, which names --env-option, if an environment cannot be made or stepped with these options.

    What goes wrong in the same way without them is no fault of theirs.
    """
    if not options:
        return
    try:
        _try_out(env_id, options)
    except UserError as error:
        try:
            _try_out(env_id, {})
        except UserError as plain:
            flags = r"^--env-(id|option):? | with these options"
            if re.sub(flags, "", str(plain)) == re.sub(flags, "", str(error)):
                raise plain from None
        raise error from None


def _try_out(env_id: str, options: dict[str, Any]) -> None:
    with env_errors(env_id, bool(options)):
        venv = make_vec(env_id, 1, **options)
        venv.reset(seed=0)
        venv.action_space.seed(0)
        venv.step(venv.action_space.sample())
        venv.close()


def cli(main: Callable[[Any], None]) -> None:
    """Runs a script's `main(args)` with arguments from the command line; its module's docstring is the help text."""
    if script:  # a script runs already, and imports this one, as policies are read
        return

    def checked(args: RunArgs) -> None:
        global script
        if "--vary" in sys.argv and not args.vary:
            raise UserError("--vary names no hyperparameter: it takes words such as critic_lr=1e-4,3e-4")
        given = {word.partition("=")[0].replace("_", "-") for word in sys.argv[1:] if word.startswith("--")}
        for word in args.vary:
            name = flag(word.partition("=")[0].removeprefix("--"))
            if name in given:
                raise UserError(f"--vary {word}: {name} sets it too: keep one of them")
        check_all(args)  # before data is loaded, which may take long
        if device_of(args).type == "cpu":
            limit_memory()
        script = Path(main.__code__.co_filename)
        check_clone(script)
        try:
            main(args)
        finally:
            script = None

    report_errors(lambda: checked(parsed(main)))


def run_command(main: Callable[[Any], None]) -> None:
    """Runs the `main(args)` of a command that trains nothing, in the same way."""
    report_errors(lambda: main(parsed(main)))


def parsed(main: Callable[[Any], None]) -> Any:
    """The arguments of the command line as `main` takes them; raises UserError for words that are none of them."""
    said, module = io.StringIO(), inspect.getmodule(main)
    assert module
    args_type = get_type_hints(main)["args"]
    if "__dataclass_fields__" not in vars(args_type):
        raise UserError(
            f"{module.__file__}: {args_type.__name__} lacks @dataclass, without which its own arguments do not count"
        )
    given = Counter(word.partition("=")[0].replace("_", "-") for word in sys.argv[1:])
    for name, hint in get_type_hints(args_type).items():
        if get_origin(hint) is tuple and given[flag(name)] > 1:  # a flag with one value takes the last
            raise UserError(f"{flag(name)} is given twice, and only the last would count: give all values after one")
    prog = f"python -m {module.__spec__.name}" if module.__spec__ else f"python {sys.argv[0]}"
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(wrapped(module.__doc__ or ""), end="\n\n")
    try:
        with contextlib.redirect_stderr(said), readable_help(args_type):
            return tyro.cli(args_type, prog=prog, description="")
    except SystemExit as end:
        if not end.code:  # --help
            raise
    # tyro draws a box with a title, the problem, perhaps an explanation, and where to find help, with lines between; in
    # colours where the output is a terminal
    plain = re.sub(r"\x1b\[[\d;]*m", "", said.getvalue()).translate(dict.fromkeys(map(ord, "│╭╮╰╯"), " "))
    _, *lines = plain.splitlines()
    *parts, _ = filter(str.strip, re.split(r"\n *[-─]{9,} *\n", "\n".join(["", *lines, ""])))
    sentences = (" ".join(part.split()).rstrip(".") for part in parts)
    kept = (sentence for sentence in sentences if not sentence.startswith("Argument helptext"))
    # without tyro's explanations of similar arguments
    problem = "; ".join(re.sub(r"^((?:Perhaps|Arguments similar).*?): (--[\w-]+).*", r"\1: \2", one) for one in kept)
    for pattern, words in PLAIN.items():
        problem = re.sub(pattern, words, problem)
    raise UserError(f"{problem[:500]}{'…' if len(problem) > 500 else ''}; --help explains all arguments")


def check_all(args: RunArgs) -> None:
    """Raises UserError for the first argument that is wrong."""
    check(args)
    parse_seeds(args.seeds)
    settings(args)
    device_of(args)
    checked_part("--variant", args.variant)
    check_usable(args.out)
    args.check_task()
    args.check_ready()


def report_errors(command: Callable[[], None]) -> None:
    """Runs a command, and turns a UserError into one printed sentence and exit code 2, and a signal into 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that a terminal cannot show is no error
            stream.reconfigure(errors="backslashreplace")
    try:
        with ended_by_signals():
            command()
            if sys.stdout:  # which may be closed
                sys.stdout.flush()
    except KeyboardInterrupt as interruption:
        print(str(interruption) or "interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        reason = " ".join(str(error).split()) or "out of memory"
        print(
            f"error: there is not enough memory for this; take fewer seeds or smaller sizes ({reason})", file=sys.stderr
        )
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader of the output, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:  # files that cannot be read or written, full disks
        reason = " ".join((error.strerror or str(error)).split()) or type(error).__name__
        where = f"cannot use {error.filename}: " if error.filename else ""
        print(f"error: {where}{reason}", file=sys.stderr)
        raise SystemExit(2) from None
