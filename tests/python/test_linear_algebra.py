"""Linear algebra of PyTorch runs in the engine, gradients and second ones included."""

import copy

import pytest
import torch
from torch import nn

from steep import ORTModule

SIZE = 3
LA = torch.linalg


class Fn(nn.Module):
    """A function of a regular matrix, its parameter, and of stacks of right-hand sides."""

    def __init__(self, function):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(SIZE, SIZE).double() + 4 * torch.eye(SIZE).double())
        self.function = function

    def forward(self, b):
        return self.function(self.matrix, b)


def derivatives(module, b):
    """The result, its gradients, and those of a function of these."""
    b = b.clone().requires_grad_()
    y = module(b)
    sources = (b, *module.parameters())
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    first = torch.autograd.grad((y.sin() * weights).sum(), sources, create_graph=True,
                                materialize_grads=True)  # fmt: skip
    total = sum((g * g.detach().cos()).sum() + g.square().sum() for g in first)
    return y.detach(), *first, *torch.autograd.grad(total, sources, materialize_grads=True)


TRIANGULAR = {
    "lower": lambda a, b: LA.solve_triangular(a, b, upper=False),
    "upper": lambda a, b: LA.solve_triangular(a, b, upper=True),
    "unit": lambda a, b: LA.solve_triangular(a, b, upper=False, unitriangular=True),
    "right": lambda a, b: LA.solve_triangular(a, b.mT, upper=True, left=False),
    "right, unit": lambda a, b: LA.solve_triangular(
        a, b.mT, upper=False, left=False, unitriangular=True
    ),
    "stacks": lambda a, b: LA.solve_triangular(a * b[..., :1].cos(), b[:1], upper=False),
    "triangular_solve": lambda a, b: torch.triangular_solve(b, a, transpose=True)[0],
}


def check(function):
    torch.manual_seed(0)
    module = Fn(function)
    net = ORTModule(copy.deepcopy(module), fallback=None)
    for count in (2, 5):
        b = torch.randn(count, SIZE, 4, dtype=torch.float64)
        for found, right in zip(derivatives(net, b), derivatives(module, b), strict=True):
            torch.testing.assert_close(found, right, rtol=1e-8, atol=1e-9)
    assert not any(graph.in_torch for graph in net.report().graphs)


@pytest.mark.parametrize("name", TRIANGULAR)
def test_triangular_systems(name):
    check(TRIANGULAR[name])
