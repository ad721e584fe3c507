"""The gamma family and the inverse error function: values, gradients of two orders, integers."""

import math

import pytest
import torch
from torch import nn

from steep import ORTModule

FUNCTIONS = {
    "lgamma": torch.lgamma,
    "gammaln": torch.special.gammaln,
    "digamma": torch.digamma,
    "psi": torch.special.psi,
    "polygamma": lambda x: [torch.polygamma(0, x), torch.special.polygamma(1, x)],
    "multigammaln": lambda x: torch.special.multigammaln(x.abs() + 3, 3),
    "erfinv": lambda x: [torch.erfinv(x), torch.special.erfinv(x / 7)],
    "beta": lambda x: torch.distributions.Beta(x.abs() + 0.5, x.abs() + 1.5).entropy(),
}
# No negative integer: PyTorch's trigamma is a large number of rounding there, ours is infinite.
NUMBERS = (
    *(-0.5, -0.7, -1.5, -2.25, -100.3, 0.7, 0.5, 1.0, 1.5, 2.0, 3.0, 6.0, 0.99, -0.99),
    *(9.99, 10.0, 10.01, 170.0, 4e4, 1e-30, -1e-30),
)
# PyTorch's own polygamma has errors of 1e-8 in float64, and of 4e-5 below zero in float32.
ERRORS = {torch.float64: 3e-8, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def outcome(net, x, orders):
    """Return the results, and the gradients of that many orders."""
    x = x.clone().requires_grad_()
    made = net(x)
    made = list(made) if isinstance(made, (list, tuple)) else [made]
    last = sum(y.sum() for y in made)
    for _ in range(orders):
        (last,) = torch.autograd.grad(last.sum(), x, create_graph=True)
        made.append(last)
    return [y.detach() for y in made]


def functions():
    """Return each function in whole precision, and two in halves; the rest is in the matrix."""
    for name in FUNCTIONS:
        for dtype in ERRORS:
            often = dtype.itemsize > 2 or name in ("lgamma", "erfinv")
            yield pytest.param(name, dtype, marks=() if often else pytest.mark.matrix)


@pytest.mark.parametrize("name,dtype", [*functions()], ids=str)
def test_values_and_gradients_are_pytorchs(name, dtype):
    narrow = dtype in (torch.float16, torch.bfloat16)
    numbers = [x for x in NUMBERS if not narrow or 0.1 < abs(x) < 200]
    x = torch.tensor(numbers, dtype=dtype)
    orders = 2 if dtype == torch.float64 else 1
    expected = outcome(Of(FUNCTIONS[name]), x, orders)
    found = outcome(ORTModule(Of(FUNCTIONS[name]), fallback=None), x, orders)
    for value, right in zip(found, expected, strict=True):
        assert value.dtype == right.dtype
        torch.testing.assert_close(
            value, right, rtol=ERRORS[dtype], atol=1e-2 * ERRORS[dtype], equal_nan=True
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_poles_and_ends(dtype):
    numbers = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, -2.0]
    x = torch.tensor(numbers, dtype=dtype)
    for function in (torch.lgamma, torch.erfinv):
        expected = outcome(Of(function), x, 1)
        found = outcome(ORTModule(Of(function), fallback=None), x, 1)
        torch.testing.assert_close(found, expected, equal_nan=True)
    found = ORTModule(Of(torch.digamma), fallback=None)(x)
    torch.testing.assert_close(found, torch.digamma(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_integers_become_floats(dtype):
    """``special_erfc`` of integers was an integer until it was cast."""
    special = torch.special

    def functions(x):
        return [
            *(special.erfc(x), special.erf(x), special.expm1(x), special.log1p(x)),
            *(special.sinc(x), special.entr(x), special.logit(x), special.xlogy(x, x)),
            *(special.xlog1py(x, x), special.gammaln(x), special.psi(x), special.erfinv(x)),
            *(special.polygamma(1, x), special.expit(x), special.exp2(x), special.ndtr(x)),
        ]

    x = torch.tensor([0, 1, 2, 3, 5, 7]).to(dtype)
    expected, found = functions(x), ORTModule(Of(functions), fallback=None)(x)
    for value, right in zip(found, expected, strict=True):
        assert value.dtype == right.dtype == torch.float32
        torch.testing.assert_close(value, right, equal_nan=True)


def test_orders_that_are_not_there_are_pytorchs():
    net, x = Of(lambda x: torch.polygamma(2, x) + x.exp()), torch.tensor([1.0, 2.5])
    torch.testing.assert_close(ORTModule(net)(x), net(x))
