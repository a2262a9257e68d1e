"""Types of arguments: the values that they take, whether they may differ between runs, and defaults by domain."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from algos.errors import UserError
from algos.per_run import PerRun

T = TypeVar("T")
MOST_NUMBERS = 1_000  # of one argument, such as the widths of layers
LARGEST = 2**53  # up to here, float64 has all whole numbers


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both included unless `above` or `below` exclude the lower or the upper one.

    `why` is added to the sentence that refuses a number.
    """

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False
    why: str = ""

    def __contains__(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return (self.low < value if self.above else self.low <= value) and (
            value < self.high if self.below else value <= self.high
        )

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"be {'above' if self.above else 'at least'} {self.low:g}"
        if self.high == self.low:
            return f"be {self.low:g}"
        return f"lie in {'(' if self.above else '['}{self.low:g}, {self.high:g}{')' if self.below else ']'}"


class MayVary:
    """Marks a hyperparameter that changes no shape and no control flow, so that it may differ between runs."""


class ChangesNoResult:
    """Marks an argument that changes results by rounding at most: a run may be resumed with another value of it."""


Tunable = Annotated[T, MayVary()]
Incidental = Annotated[T, ChangesNoResult()]

Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
# numbers of things that take memory each, with bounds that nobody needs to go beyond
Size = Annotated[int, Range(1, 1_000_000)]  # of a batch
Several = Annotated[int, Range(1, 10_000)]
FewOrNone = Annotated[int, Range(0, 10_000)]
NotNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, above=True)]
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(0, 1, above=True)]
FractionBelowOne = Annotated[float, Range(0, 1, below=True)]
OpenFraction = Annotated[float, Range(0, 1, above=True, below=True)]
Levels = Annotated[tuple[float, ...], Range(-1, 1)]
Widths = Annotated[tuple[int, ...], Range(1, 100_000)]


def flag(name: str) -> str:
    """The name of an argument on the command line."""
    return f"--{name.replace('_', '-')}"


def tunable(args_type: type) -> list[str]:
    """The names of the hyperparameters that may differ between runs."""
    return marked(args_type, MayVary)


def incidental(args_type: type) -> set[str]:
    """The names of the arguments that do not identify a run: those marked here or in a class that this one extends."""
    return {name for base in args_type.__mro__ for name in marked(base, ChangesNoResult)}


def marked(args_type: type, mark: type) -> list[str]:
    """The names of the arguments whose type has a mark."""
    hints = get_type_hints(args_type, include_extras=True)
    return [name for name, hint in hints.items() if any(isinstance(extra, mark) for extra in get_args(hint)[1:])]


def check(args: Any) -> None:
    """Raises UserError for the first field of a dataclass that is out of the range in its type."""
    for name, hint in get_type_hints(type(args), include_extras=True).items():
        value = getattr(args, name)
        if value is None or isinstance(value, PerRun):  # the numbers of the latter were checked one by one
            continue
        for bounds in ranges(hint):
            if value == () != getattr(type(args), name):  # an empty tuple may be the default, and then has a meaning
                raise UserError(f"{flag(name)} takes at least one number")
            if isinstance(value, tuple) and len(value) > MOST_NUMBERS:
                raise UserError(f"{flag(name)} takes at most {MOST_NUMBERS:,} numbers, got {len(value):,}")
            for number in value if isinstance(value, tuple) else [value]:
                check_number(name, number, bounds)


def ranges(hint: Any) -> list[Range]:
    """The ranges in a type."""
    if get_origin(hint) is Union:  # such as Count | None
        return [bounds for part in get_args(hint) for bounds in ranges(part)]
    return [extra for extra in get_args(hint)[1:] if isinstance(extra, Range)] if get_origin(hint) is Annotated else []


def check_number(name: str, number: float, bounds: Range) -> None:
    """Raises UserError if a number is out of an argument's range, or a whole number is 2^53 or more."""
    if isinstance(number, int) and abs(number) >= LARGEST:
        bound = "below 2^53" if number > 0 else "above -2^53"
        raise UserError(f"{flag(name)} must be {bound}, got {number}")
    if number not in bounds:
        raise UserError(f"{flag(name)} must {bounds}, got {number}" + (f": {bounds.why}" if bounds.why else ""))


# -- defaults by domain ------------------------------------------------------------------------------------------------


def by_domain(default: T, **domains: T) -> T:
    """A default with another value where the task's name, one of its words or its domain is a key of `domains`.

    It behaves like the plain number or text `default`, except as a key of a dict, and `--help` shows all of its values.
    `for_domain` replaces it by the value for the task.
    """
    kind = type(default)

    def show(_: Any) -> str:
        return ", ".join([str(default), *(f"{domain} {value}" for domain, value in domains.items())])

    # tyro remembers what it found for a default by its hash, and would take the plain number for this one
    members = {"__str__": show, "__repr__": show, "__hash__": object.__hash__, "domains": domains, "default": default}
    return type("ByDomain", (kind,), members)(default)


def for_domain(args: Any, words: Iterable[str]) -> None:
    """Replaces each default by domain in a dataclass by its value for the first of the words that it knows."""
    words = list(words)
    for field in fields(args):
        value = getattr(args, field.name)
        if type(value).__name__ == "ByDomain":
            known = [value.domains[word] for word in words if word in value.domains]
            setattr(args, field.name, known[0] if known else value.default)


def decided(args: Any, words: Sequence[str]) -> dict[str, str]:
    """The word that decided on a default of a dataclass, for each argument that has the value of one."""
    found = {}
    for field in fields(args):
        domains = getattr(field.default, "domains", {})
        word = next((word for word in words if word in domains), None)
        if word is not None and getattr(args, field.name) == domains[word]:
            found[field.name] = word
    return found
