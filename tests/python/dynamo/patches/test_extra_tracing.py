"""Graphs go on where Dynamo would cut them, and end where it fails."""

import copy
import warnings

import numpy
import pytest
import torch
import torch.nn.functional as F
from compared_functions import Fn, calls, check
from torch import nn

from steep import ModelError, ORTModule
from steep.patching.torch_versions import RELEASE

X = torch.linspace(-1, 2, 12).view(2, 6)


def options_of_a_loss(y, x):
    """As heads of transformers leave padding out."""
    loss = nn.CrossEntropyLoss()
    labels = x.detach().argmax(1)
    return loss(y, torch.where(x[:, 0] > 0, labels, torch.tensor(loss.ignore_index)))


def some_rows(y, x):
    some = x[:, 0] > 0
    labels = x.detach().argmax(1)[some]
    weight = torch.linspace(1, 2, y.shape[1])
    loss = nn.CrossEntropyLoss(weight=weight, ignore_index=2)
    return loss(y[some], labels), F.nll_loss(y[some].log_softmax(1), labels, reduction="sum")


def leaf_within(y, x):
    z = x.detach()[:, None]
    z.requires_grad = True
    return torch.utils.checkpoint.checkpoint(lambda t: t * y[:, None], z, use_reentrant=False)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, c):
        ctx.save_for_backward(a, b)
        return a * b + c

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        return dy * b * 2, dy * a * 3, dy


FUNCTIONS = {
    "a function of one tensor twice": lambda y, x: Product.apply(y, y, x) + Product.apply(x, y, x),
    "NumPy calculates": lambda y, x: y * numpy.sqrt(x.shape[1]) + numpy.log(2.0),
    "NumPy's numbers are Python's": lambda y, x: y * float(numpy.sqrt(x.shape[1])),
    "options of a loss": options_of_a_loss,
    "some rows": some_rows,
    "leaf within": leaf_within,
    "leaf in a result": lambda y, x: y * 2 + torch.zeros_like(y).requires_grad_(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph(name):
    torch.manual_seed(0)
    check(Fn(FUNCTIONS[name]), calls(torch.float32, 5, 7), "engine")


class Moving(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.kept = nn.Linear(6, 6), nn.Buffer(torch.ones(6), persistent=False)

    def forward(self, x):
        self.kept = self.kept.to(x.device)
        return self.layer(x) * self.kept


def test_a_buffer_assigned_anew():
    net = ORTModule(Moving(), fallback=None)
    torch.testing.assert_close(net(X), net.layer(X))
    assert {*net.state_dict()} == {"layer.weight", "layer.bias"}


def test_a_leaf_that_is_returned_has_its_gradient():
    def leaf(y, x):
        z = (x.detach() * 3).requires_grad_()
        return y, z, (z * y.detach()).sum()

    net = ORTModule(Fn(leaf))
    y, z, total = net(torch.ones(2, 6))
    total.backward()
    assert z.is_leaf and torch.equal(z.grad, y.detach())


def test_gradients_enabled_where_the_caller_disables_them():
    class Enabling(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            y = self.layer(x)
            if y.sum() > 0:  # a graph of its own follows
                y = y + 1
            with torch.enable_grad():
                return y * torch.sigmoid(self.layer(y))

    torch.manual_seed(0)
    module = Enabling()
    with torch.no_grad():
        found, expected = ORTModule(copy.deepcopy(module))(X), module(X)
    assert found.requires_grad and expected.requires_grad
    torch.testing.assert_close(found, expected)


def test_a_warning_is_said_when_the_graph_is_made():
    def warns(y, x):
        warnings.warn("of old", FutureWarning, stacklevel=2)
        return y * 2

    net = ORTModule(Fn(warns), fallback=None)
    with pytest.warns(FutureWarning, match="of old"):
        net(torch.ones(2, 6))
    net(torch.ones(2, 6))


def test_what_the_tracer_fails_at_runs_in_pytorch():
    def gathers(y, x):
        return y.sum() * torch.combinations(x.detach()[0][x[0] > 0]).sum()

    x = torch.randn(3, 6)
    module = Fn(gathers)
    torch.testing.assert_close(ORTModule(module)(x), module(x))
    said = "cannot run in the engine" if RELEASE >= (2, 14) else "one graph"
    with pytest.raises(ModelError, match=said):
        ORTModule(module, fallback=None)(x)


def test_a_wrong_shape_is_said_as_pytorch_says_it():
    net = ORTModule(Fn(lambda y, x: y @ y))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        net(torch.ones(2, 6))
    with pytest.raises(ModelError, match="one graph"):
        ORTModule(Fn(lambda y, x: y @ y), fallback=None)(torch.ones(2, 6))
