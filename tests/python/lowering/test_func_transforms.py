"""``torch.func`` within a module: written out in operators, with gradients through all of it."""

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.func import functional_call, grad, grad_and_value, jacrev, vjp, vmap  # noqa: E402

from steep import ModelError, ORTModule  # noqa: E402

WIDTH = 6


class Fn(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 1)
        self.norm = nn.LayerNorm(WIDTH)
        self.conv = nn.Conv1d(1, 2, 3, padding=1)
        self.function = function

    def forward(self, x):
        return self.function(self, x)

    def energy(self, x):
        return self.out(torch.tanh(self.layer(x))).sum()


def of_activation(act):
    return lambda m, x: grad(lambda v: m.out(act(m.layer(v))).sum())(x)


def narrow(function):
    def within(m, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function(m, x)

    return within


def adapted(m, x):
    """A step of an inner optimizer, as meta-learning takes it."""

    def loss(weights):
        return functional_call(m.layer, weights, (x,)).tanh().square().sum()

    weights = dict(m.layer.named_parameters())
    slopes = grad(loss)(weights)
    return functional_call(m.layer, {k: w - 0.1 * slopes[k] for k, w in weights.items()}, (x,))


def ensemble(m, x):
    weights = m.layer.weight * torch.arange(1.0, 4).view(3, 1, 1)
    return vmap(F.linear, in_dims=(None, 0, None))(x, weights, m.layer.bias)


FUNCTIONS = {
    "a layer for each row": lambda m, x: vmap(m.layer)(x),
    "along another axis": lambda m, x: vmap(m.layer, in_dims=0, out_dims=1)(x),
    "several layers": lambda m, x: vmap(lambda row: m.norm(m.layer(torch.relu(m.layer(row)))))(x),
    "a convolution": lambda m, x: vmap(lambda row: m.conv(row[None]))(x),
    "an ensemble": ensemble,
    "one within another": lambda m, x: vmap(lambda a: vmap(lambda b: (m.layer(b) * a).sum())(x))(x),
    "in bfloat16": narrow(lambda m, x: vmap(lambda row: m.layer(row).softmax(0))(x)),
    "slope": lambda m, x: grad(m.energy)(x),
    "slope of each row": lambda m, x: vmap(grad(m.energy))(x),
    "slope and value": lambda m, x: sum(grad_and_value(m.energy)(x)),
    "slope of a slope": lambda m, x: grad(lambda v: grad(m.energy)(v).square().sum())(x),
    "slope of clamp": of_activation(lambda v: v.clamp(-0.5, 0.5) * v),
    "slope of gelu": of_activation(F.gelu),
    "slope of softmax": of_activation(lambda v: v.softmax(-1)),
    "slope of layer norm": lambda m, x: grad(lambda v: m.norm(m.layer(v)).square().sum())(x),
    "slope of rows taken": of_activation(lambda v: v[:, torch.tensor([0, 1, 1, 2, 3, 4])] ** 2),
    "product with a jacobian": lambda m, x: vjp(lambda v: torch.tanh(m.layer(v)), x)[1](x)[0],
    "jacobian": lambda m, x: jacrev(lambda v: torch.tanh(m.layer(v)))(x[0]),
    "laplacian": lambda m, x: vmap(lambda row: jacrev(grad(m.energy))(row).diagonal().sum())(x),
    "adapted weights": adapted,
    "two slopes": lambda m, x: grad(m.energy)(x) * m.norm(x) + grad(m.energy)(m.layer(x)),
}


def run(net, x):
    x = x.clone().requires_grad_()
    net.zero_grad()
    y = net(x)
    (y * torch.linspace(-1, 2, y.numel()).view(y.shape)).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in net.parameters())]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_holds_the_transform_and_its_gradients(name):
    torch.manual_seed(0)
    module = Fn(FUNCTIONS[name])
    ours = ORTModule(copy.deepcopy(module), fallback=None)
    near = {"rtol": 2e-2, "atol": 2e-2} if "bfloat16" in name else {"rtol": 1e-4, "atol": 1e-5}
    for rows in (3, 4):
        x = torch.randn(rows, WIDTH)
        for right, value in zip(run(module, x), run(ours, x), strict=True):
            assert (right is None) == (value is None)
            if right is not None:
                torch.testing.assert_close(value, right, **near)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: grad(lambda v: (m.layer(v).tanh().detach() * m.layer(v)).sum())(x),
        lambda m, x: torch.func.jvp(m.layer, (x,), (x,))[1],
    ],
)
def test_what_cannot_be_written_out_is_an_error(function):
    with pytest.raises(ModelError):
        ORTModule(Fn(function))(torch.ones(2, WIDTH))


@pytest.mark.parametrize("offset", [-5, -1, 0, 2])
def test_diagonals_are_written(offset):
    def written(m, x):
        z = m.layer(x)[:, :, None] * x[:, None]
        z.diagonal(offset, 2, 1).copy_(m.layer(x)[:, : WIDTH - abs(offset)].sin())
        return z.squeeze((1, 2)).unsqueeze(0).squeeze((0, 1))

    torch.manual_seed(0)
    module = Fn(written)
    ours = ORTModule(copy.deepcopy(module), fallback=None)
    for rows in (3, 4):
        x = torch.randn(rows, WIDTH)
        for right, value in zip(run(module, x), run(ours, x), strict=True):
            if right is not None:
                torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-5)


def written_in_parts(m, x):
    y = torch.zeros_like(x)
    y[:, 0] += m.layer(x)[:, 2].abs()
    y[0] = y[1].clone() * x[0]
    y[:, 1:3].mul_(x[:, :2])
    y[:, 0] += x[:, 1]
    return m.out(y.sin()).sum()


def test_writes_to_parts_within_a_transform():
    """Their gradients write to places of memory (``as_strided_scatter``)."""
    torch.manual_seed(0)
    module = Fn(lambda m, x: grad(lambda v: written_in_parts(m, v))(x))
    ours = ORTModule(copy.deepcopy(module), fallback=None)
    for rows in (3, 4, 5):
        x = torch.randn(rows, WIDTH)
        for right, value in zip(run(module, x), run(ours, x), strict=True):
            if right is not None:
                torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-5)
    assert all(not graph.in_torch for graph in ours.report().graphs)


def test_a_batch_of_gradients():
    """``is_grads_batched``, vectorized Jacobians and Hessians, and vmap within vmap."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    start, weights = torch.randn(2, 4), torch.randn(5, 3, 2, 2)

    def all_of(module):
        x = start.clone().requires_grad_()
        y, wanted = module(x), [x, *net.parameters()]

        def backward(g):
            return torch.autograd.grad(y, wanted, g, retain_graph=True)

        jacobian = torch.autograd.functional.jacobian(module, start, vectorize=True)
        hessian = torch.autograd.functional.hessian(
            lambda x: module(x).square().sum(), start, vectorize=True
        )
        within = torch.vmap(torch.vmap(backward))(weights)
        last = torch.autograd.grad(y, wanted, weights[0], is_grads_batched=True)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(y, wanted, weights[0], is_grads_batched=True)
        return [jacobian, hessian, *within, *last]

    ours = ORTModule(net)
    torch.testing.assert_close(all_of(ours), all_of(net))
    assert all(not graph.in_torch for graph in ours.report().graphs)
