"""The settings of a run's hyperparameters from the words of `--vary`."""

import math
from dataclasses import fields, replace
from itertools import product
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from algos.arguments import check
from algos.errors import UserError


def settings(args: Any) -> list[dict[str, float]]:
    """Every combination of the values of `--vary`, the last named hyperparameter changing fastest; [{}] without any.

    `("a=1,2", "b=3,4")` -> [{a: 1, b: 3}, {a: 1, b: 4}, {a: 2, b: 3}, {a: 2, b: 4}]. Raises UserError for an argument
    that is unknown or is not a number, for values that are none or out of its range, and for repeated ones.
    """
    numbers = varying(type(args))
    values: dict[str, list[float]] = {}
    for word in args.vary:
        name, _, text = word.partition("=")
        if name not in numbers:
            raise UserError(f"--vary: {name!r} may not vary; {', '.join(numbers)} may")
        if name in values:
            raise UserError(f"--vary names {name} twice")
        try:
            values[name] = [float(number) for number in text.split(",")]
        except ValueError:
            raise UserError(f"--vary takes name=value,value with numbers, got {word!r}") from None
        if not all(map(math.isfinite, values[name])):
            raise UserError(f"--vary takes finite numbers, got {word!r}")
        if len(set(values[name])) < len(values[name]):
            raise UserError(f"--vary: the values of {name} must differ from each other, got {text}")
    combinations = [dict(zip(values, numbers, strict=True)) for numbers in product(*values.values())]
    for setting in combinations:
        check(replace(args, **setting))
    return combinations


def varying(args_type: Any) -> list[str]:
    """The arguments that are numbers."""
    hints = get_type_hints(args_type, include_extras=True)
    return [field.name for field in fields(args_type) if float in _kinds(hints[field.name])]


def _kinds(hint: Any) -> set[Any]:
    if get_origin(hint) is Annotated:
        return {get_args(hint)[0]}
    return {hint, *(kind for option in get_args(hint) for kind in _kinds(option))}
