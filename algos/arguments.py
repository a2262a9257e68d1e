"""Types of arguments that say which values they take; `check` refuses others."""

import math
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from algos.errors import UserError


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both included unless `above` or `below` exclude the lower or the upper one."""

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return (self.low < value if self.above else self.low <= value) and (
            value < self.high if self.below else value <= self.high
        )

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"be {'above' if self.above else 'at least'} {self.low:g}"
        return f"lie in {'(' if self.above else '['}{self.low:g}, {self.high:g}{')' if self.below else ']'}"


Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
Step = Annotated[float, Range(0, 1, above=True)]  # of an average
Rate = Annotated[float, Range(0, above=True)]  # of learning
Share = Annotated[float, Range(0, 1, below=True)]  # of units that dropout leaves out
Widths = Annotated[tuple[int, ...], Range(1)]

# arguments that may be left out, to be filled in before an algorithm sees them
AUTO: Any = None
if TYPE_CHECKING:
    AutoCount = int
    AutoFraction = float
    AutoNatural = int
    AutoRate = float
    AutoShare = float
else:
    AutoCount, AutoFraction, AutoNatural, AutoRate = Count | None, Fraction | None, Natural | None, Rate | None
    AutoShare = Share | None


def check(args: Any) -> None:
    """Raises UserError for the first field of a dataclass that is out of the range in its type."""
    for name, hint in get_type_hints(type(args), include_extras=True).items():
        value = getattr(args, name)
        if NoneType in get_args(hint) and value is not None:  # an argument that may be left out
            hint = next(kind for kind in get_args(hint) if kind is not NoneType)
        if get_origin(hint) is not Annotated:
            continue
        for bounds in get_args(hint)[1:]:
            if isinstance(bounds, Range) and value == () != getattr(type(args), name):  # a default () means something
                raise UserError(f"--{name.replace('_', '-')} takes at least one number")
            for number in value if isinstance(value, tuple) else [value]:
                if isinstance(bounds, Range) and number not in bounds:
                    raise UserError(f"--{name.replace('_', '-')} must {bounds}, got {number}")
