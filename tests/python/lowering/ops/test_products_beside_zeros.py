"""Slopes of products and running sums beside zeros, NaN and infinities, and theirs in turn."""

import itertools
import math

import pytest
import torch

from steep import ORTModule

NAN, INF = math.nan, math.inf

# PyTorch's formulas depend on whether there is a zero among all factors.
ROWS = {
    "numbers": (1.0, 2.0, -1.5, 0.5),
    "zeros": (0.0, -0.0, 1.0, -2.0),
    "infinite, no zeros": (1.0, 2.0, -1.5, NAN, INF, -INF),
    "all kinds": (0.0, -0.0, 2.0, -1.5, NAN, INF, -INF),
}

FUNCTIONS = {
    "prod along an axis": lambda x: x.prod(1),
    "prod, kept": lambda x: x.prod(1, keepdim=True),
    "prod along the first axis": lambda x: x[:6].prod(0),
    "prod of all, two zeros or none": lambda x: x[0].prod(),
    "prod of all": lambda x: x.view(-1)[-3:].prod(),
    "prod of one": lambda x: x[:, :1].prod(1),
    "cumprod": lambda x: x.cumprod(1),
    "cumprod along the first axis": lambda x: x[:6].cumprod(0),
    "cumprod of one": lambda x: x[:, :1].cumprod(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "logcumsumexp of one": lambda x: x[:, :1].logcumsumexp(1),
}


class Of(torch.nn.Module):
    def forward(self, *xs):
        none = torch.zeros(3, dtype=xs[0].dtype)  # rows are of 3, at every capture
        return [f(x + none) for f, x in zip(FUNCTIONS.values(), xs, strict=True)]


def seeds(ys, by):
    """Numbers around 1, of both signs in a few places."""
    return [torch.arange(y.numel()).mul(by).cos().add(0.9).view(y.shape).to(y.dtype) for y in ys]


def slopes(net, x, order):
    xs = [x.clone().requires_grad_() for _ in FUNCTIONS]
    results = net(*xs)
    first = torch.autograd.grad(results, xs, seeds(results, 1.3), create_graph=order > 1)
    if order == 1:
        return list(zip(results, first, strict=True))
    curved = [g for g in first if g.requires_grad]
    second = torch.autograd.grad(curved, xs, seeds(curved, 0.7), allow_unused=True)
    second = [torch.zeros_like(x) if h is None else h for x, h in zip(xs, second, strict=True)]
    return list(zip(results, first, second, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_slopes_are_pytorchs(dtype):
    ours = ORTModule(Of(), fallback=None)
    for kind, numbers in ROWS.items():
        orders = (1, 2) if kind in ("numbers", "zeros") else (1,)
        x = torch.tensor(list(itertools.product(numbers, repeat=3)), dtype=dtype)
        for order in orders:
            rights, values = slopes(Of(), x, order), slopes(ours, x, order)
            for name, right, found in zip(FUNCTIONS, rights, values, strict=True):
                for r, f in zip(right, found, strict=True):
                    torch.testing.assert_close(
                        f,
                        r,
                        rtol=1e-5 if order == 1 else 1e-3,
                        atol=1e-5,
                        equal_nan=True,
                        msg=lambda m, n=name, k=kind, o=order: f"{n}, {k}, order {o}: {m}",
                    )
