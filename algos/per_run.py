"""A hyperparameter that has a value of its own in each run."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class PerRun:
    """A number for each of R runs, which takes part in arithmetic like the single number that it stands for.

    Beside a tensor [R], [R, B] or [R, E, B] it broadcasts over all axes but the first, in the tensor's precision;
    beside plain numbers and tensors without axes it stays a PerRun. It may be an argument of torch's functions, such as
    a bound of `clamp`. So `discount * value`, or `torch.where(x > 0, tau, 1 - tau)`, reads the same whether a
    hyperparameter differs between runs or not. Without a `device`, a tensor of values stays where it is.
    """

    def __init__(self, values: Sequence[float] | Tensor, device: torch.device | str | None = None):
        self.values = torch.as_tensor(values, dtype=torch.float64, device=device)  # [R]
        self.numbers = None if isinstance(values, Tensor) else [float(value) for value in values]

    def tolist(self) -> list[float]:
        """The values on the host, without a copy from the device if they came from there."""
        return self.values.tolist() if self.numbers is None else list(self.numbers)

    def __repr__(self) -> str:
        return f"PerRun({self.tolist()})"

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Applies a function of torch to tensors and values per run."""
        kwargs = kwargs or {}
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if not any(x.dim() for x in tensors):
            return PerRun(function(*map(bare, args), **{name: bare(x) for name, x in kwargs.items()}))
        dtype, axes = torch.get_default_dtype(), 1
        for x in tensors:
            dtype = x.dtype if x.is_floating_point() else dtype
            axes = x.dim() if x.dim() > axes else axes
        arguments = [spread(x, dtype, axes) for x in args]
        return function(*arguments, **{name: spread(x, dtype, axes) for name, x in kwargs.items()})

    def __add__(self, other: Any) -> Any:
        return torch.add(self, other)  # type: ignore[call-overload]

    def __sub__(self, other: Any) -> Any:
        return torch.sub(self, other)  # type: ignore[call-overload]

    def __rsub__(self, other: Any) -> Any:
        return torch.add(torch.neg(self), other)  # type: ignore[arg-type]

    def __mul__(self, other: Any) -> Any:
        return torch.mul(self, other)  # type: ignore[arg-type]

    def __truediv__(self, other: Any) -> Any:
        return torch.div(self, other)  # type: ignore[arg-type]

    def __rtruediv__(self, other: Any) -> Any:
        return torch.mul(torch.reciprocal(self), other)  # type: ignore[arg-type]

    def __pow__(self, other: Any) -> Any:
        return torch.pow(self, other)  # type: ignore[call-overload]

    def __rpow__(self, other: Any) -> Any:
        return torch.pow(other, self)  # type: ignore[call-overload]

    def __bool__(self) -> bool:
        raise TypeError(f"{self} differs between runs, so that it cannot decide for all of them")

    def __float__(self) -> float:
        raise TypeError(f"{self} differs between runs, so that it is no single number")

    def __eq__(self, other: object) -> bool:
        raise TypeError(f"{self} differs between runs: compare its values")

    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return torch.neg(self)  # type: ignore[arg-type]

    __radd__ = __add__
    __rmul__ = __mul__

    def __lt__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Tensor) else bool(self)  # the tensor compares then, run by run

    __le__ = __gt__ = __ge__ = __lt__


def per_run(x: Tensor, like: Tensor) -> Tensor:
    """x [R] as a tensor [R, 1, ...] with as many axes as `like`."""
    return x.view(-1, *[1] * (like.dim() - 1))


def numbers(values: Any, count: int) -> list[float]:
    """A number for each of `count` runs, from one number for all or one for each."""
    if isinstance(values, PerRun) or (isinstance(values, Tensor) and values.dim()):
        return values.tolist()
    return [float(values)] * count


def bare(x: Any) -> Any:
    return x.values if isinstance(x, PerRun) else x


def spread(x: Any, dtype: torch.dtype, axes: int) -> Any:
    return x.values.to(dtype).view(-1, *[1] * (axes - 1)) if isinstance(x, PerRun) else x
