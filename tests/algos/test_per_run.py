"""A hyperparameter per run is, run by run, the plain number in its place."""

import pytest
import torch
import torch.nn.functional as F

from algos.per_run import PerRun, per_run

NUMBERS = [0.3, 2.0, 7.5]
SHAPES = [(3,), (3, 5), (3, 2, 5)]
OPERATIONS = {
    "x + p": lambda x, p: x + p, "p + x": lambda x, p: p + x, "x - p": lambda x, p: x - p, "p - x": lambda x, p: p - x,
    "x * p": lambda x, p: x * p, "p * x": lambda x, p: p * x, "x / p": lambda x, p: x / p, "p / x": lambda x, p: p / x,
    "1 - p": lambda x, p: (1 - p) * x, "-p": lambda x, p: x * -p, "p / 2 + 1": lambda x, p: (p / 2 + 1) * x,
    "2 / p": lambda x, p: x * (2 / p), "p * p": lambda x, p: p * p * x, "p + p - p": lambda x, p: (p + p - p) * x,
    "where": lambda x, p: torch.where(x > 0, p, 1 - p) * x.square(),
    "clamp max": lambda x, p: x.clamp(max=p), "clamp min": lambda x, p: x.clamp(min=p),
    "clamp both": lambda x, p: x.clamp(-p, p), "exp": lambda x, p: (p * x).exp().clamp(max=100.0),
    "softplus": lambda x, p: F.softplus(x) * p, "lerp": lambda x, p: (1 - p) * x + p * x.square(),
    "in place": lambda x, p: x.clone().mul_(p).add_(1 - p),
    "add_ of a product": lambda x, p: x.clone().add_((1 - p) * x),
    "maximum": lambda x, p: torch.maximum(x, p * torch.ones_like(x)), "pow": lambda x, p: x.abs().pow(2) ** 0.5 * p,
    "p < x": lambda x, p: (p < x) * x + (p <= x), "p > x": lambda x, p: (p > x) * x + (p >= x),
    "p ** 3": lambda x, p: x * p**3, "3 ** p": lambda x, p: x * 3**p,
}  # fmt: skip

# One operation between the tensor and the number; elsewhere the number is rounded to the tensor's precision later or
# earlier, and torch divides a number by a tensor by way of its reciprocal.
EXACT = ("x + p", "p + x", "x - p", "x * p", "p * x", "-p", "clamp max", "clamp min", "clamp both", "maximum")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPERATIONS)
def test_it_computes_what_each_number_does(name, dtype, shape):
    rounding = {} if name in EXACT else {"atol": 0, "rtol": 1e-6 if dtype == torch.float32 else 1e-14}
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    together = OPERATIONS[name](x, PerRun(NUMBERS))
    assert together.dtype == dtype and together.shape == shape
    for run, number in enumerate(NUMBERS):
        torch.testing.assert_close(
            together[run], OPERATIONS[name](x[run], number).to(dtype), **rounding or {"atol": 0, "rtol": 0}
        )


def test_beside_plain_numbers_it_stays_one():
    p = PerRun([0.5, 2.0])
    for expression, values in (
        (1 - p, [0.5, -1.0]), (p - 1, [-0.5, 1.0]), (3 * p, [1.5, 6.0]), (p / 2, [0.25, 1.0]), (1 / p, [2.0, 0.5]),
        (-p, [-0.5, -2.0]), (p**2, [0.25, 4.0]), (4**p, [2.0, 16.0]),
        (p * p, [0.25, 4.0]), (p + 1, [1.5, 3.0]), (0.99 * p * 0.5, [0.2475, 0.99]),
    ):  # fmt: skip
        assert isinstance(expression, PerRun) and expression.tolist() == pytest.approx(values)


def test_in_place_it_changes_the_tensor_itself():
    x = torch.ones(2, 3)
    assert x.mul_(PerRun([2.0, 3.0])) is x and x.tolist() == [[2.0] * 3, [3.0] * 3]


def test_gradients_flow_through_the_tensors_beside_it():
    x = torch.ones(2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad((PerRun([2.0, 3.0]) * x.square()).sum(), x)
    assert gradient.tolist() == [[4.0] * 3, [6.0] * 3]


def test_beside_integers_and_flags_it_takes_the_default_precision():
    flags = torch.tensor([[True, False], [True, True]])
    out = torch.where(flags, PerRun([0.25, 0.5]), 0.0)
    assert out.dtype == torch.float32 and out.tolist() == [[0.25, 0], [0.5, 0.5]]


def test_a_tensor_gets_as_many_axes_as_another():
    assert per_run(torch.tensor([1.0, 2.0]), torch.zeros(2, 3, 4)).shape == (2, 1, 1)


def test_it_is_shown_with_its_values():
    assert repr(PerRun([1.0, 2.5])) == "PerRun([1.0, 2.5])"


def test_it_decides_for_all_runs_nowhere():
    with pytest.raises(TypeError, match="cannot decide"):
        bool(PerRun([0.0, 0.0]))
    with pytest.raises(TypeError, match="differs between runs"):
        PerRun([0.0, 0.0]) == 0  # noqa: B015
    for decide in (lambda p: p > 0, lambda p: p <= 0, lambda p: max(p, 1.0), float):
        with pytest.raises(TypeError, match=r"PerRun\(\[0\.0, 0\.0\]\) differs between runs, so that it"):
            decide(PerRun([0.0, 0.0]))


def test_beside_a_tensor_without_axes_it_stays_one():
    product = PerRun([1.0, 2.0]) * torch.tensor(3.0)
    assert isinstance(product, PerRun) and product.tolist() == [3.0, 6.0]
    assert torch.equal(product * torch.ones(2, 2), torch.tensor([[3.0, 3.0], [6.0, 6.0]]))
