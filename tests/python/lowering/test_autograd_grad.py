"""``torch.autograd.grad`` within forward: derivatives of derivatives, as PyTorch's."""

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.autograd import grad  # noqa: E402

from steep import ORTModule  # noqa: E402


def penalty(m, x):
    y = m.layer(x)
    (g,) = grad(m.out(y.tanh()).sum(), y, create_graph=True)
    return g.square().sum() + y.sum()


def of_an_argument(m, x):
    x = x.detach().requires_grad_()
    (g,) = grad(m.out(m.layer(x).tanh()).sum(), x, create_graph=True)
    return g.square().sum()


def laplacian(m, x):
    x = x.detach().requires_grad_()
    u = m.out(m.layer(x).tanh())
    (g,) = grad(u.sum(), x, create_graph=True)
    (h,) = grad(g[:, 0].sum(), x, create_graph=True)
    return (h[:, 0] + u[:, 0]).square().mean()


def of_two(m, x):
    y, z = m.layer(x), m.other(x)
    g, h = grad((y * z.sin()).sum(), (y, z), create_graph=True)
    return (g * h).sum()


def with_seeds(m, x):
    y = m.layer(x)
    (g,) = grad(y.tanh(), y, grad_outputs=m.other(x), create_graph=True)
    return g.sum()


def of_a_weight(m, x):
    (g,) = grad(m.out(m.layer(x).tanh()).sum(), m.layer.weight, create_graph=True)
    return F.linear(x, m.layer.weight - 0.1 * g).square().sum()


def held_constant(m, x):
    y = m.layer(x)
    (g,) = grad(y.tanh().sum(), y, retain_graph=True)
    return (g * y).sum()


WRITTEN_OUT = [penalty, of_an_argument, laplacian, of_two, with_seeds, of_a_weight, held_constant]


def of_dropout(m, x):
    y = m.layer(x)
    z = F.dropout(y, 0.5) * m.other(x)
    (g,) = grad(z.sum(), y, create_graph=True)
    return (g * z).sum() + m.other(x).sum()


def one_leads_to_the_other(m, x):
    y = m.layer(x)
    z = y.tanh()
    g, h = grad((z * y).sum(), (y, z), create_graph=True)
    return (g * h).sum() + m.other(x).sum()


def consumed(m, x):
    y = m.layer(x)
    (g,) = grad(y.tanh().sum(), y)
    return g.sum() + m.other(x).sum()


PYTORCHS = [of_dropout, one_leads_to_the_other, consumed]


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.other, self.out = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)
        self.function = function

    def forward(self, x):
        return self.function(self, self.other(x).tanh())


@pytest.mark.parametrize("function", [*WRITTEN_OUT, *PYTORCHS], ids=lambda f: f.__name__)
def test_a_derivative_within_forward(function):
    torch.manual_seed(0)
    net = Net(function)
    ours = ORTModule(copy.deepcopy(net), fallback=None if function in WRITTEN_OUT else "parts")
    for rows in (2, 4):
        x = torch.randn(rows, 3)
        found = []
        for m in (net, ours):
            torch.manual_seed(1)
            m.zero_grad()
            loss = m(x)
            loss.backward()
            found.append([loss.detach(), *(p.grad for p in m.parameters())])
        for right, value in zip(*found, strict=True):
            assert (right is None) == (value is None)
            if right is not None:
                torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-5)
