"""A tensor in the place of a number, or of an extent: as in PyTorch, whoever runs it."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from capture_patterns import WIDTH, Fn  # noqa: E402
from patterns import Pattern, compare_calls  # noqa: E402

import steep  # noqa: E402
from steep.dynamo import backend  # noqa: E402

FUNCTIONS = {
    "narrow": lambda y, t: y.narrow(0, t, 2),
    "narrow, of an item": lambda y, t: y.narrow(0, 1, t.item()),
    "narrow_copy": lambda y, t: torch.narrow_copy(y, 0, t.item(), 2),
    "select": lambda y, t: y.select(0, t),
    "select, calculated": lambda y, t: y.select(0, t * 1),
    "slice": lambda y, t: y[t : t + 2],
    "slice, from the end": lambda y, t: y[-t:],
    "index": lambda y, t: y[t],
    "tensor_split": lambda y, t: y.tensor_split(t),
    "split": lambda y, t: y.split(t),
    "split, of items": lambda y, t: y.split([int(t), y.shape[0] - int(t)]),
    "arange": lambda y, t: torch.arange(t) * y.sum(),
    "linspace": lambda y, t: torch.linspace(0, 1, t) * y.sum(),
    "zeros": lambda y, t: torch.zeros(t, 2) + y.sum(),
    "eye": lambda y, t: torch.eye(t) * y.sum(),
    "repeat": lambda y, t: y.repeat(t, 1),
    "expand": lambda y, t: y.unsqueeze(0).expand(t + 1, -1, -1),
    "reshape": lambda y, t: y.reshape(t, -1),
    "unflatten": lambda y, t: y.unflatten(0, (t, -1)),
    "roll": lambda y, t: y.roll(t, 0),
    "topk": lambda y, t: y.topk(t)[0],
    "kthvalue": lambda y, t: y.kthvalue(t)[0],
    "unfold": lambda y, t: y.unfold(0, t, 1),
    "pad": lambda y, t: F.pad(y, (0, t)),
    "clamp": lambda y, t: y.clamp(-t, t),
    "repeat_interleave": lambda y, t: y.repeat_interleave(t, 0),
    "masked_select": lambda y, t: y.masked_select(y.detach() > t - 2),
}

# where the value says how much there is, and is asked for in the midst of a graph
LEAVES_PARTS = ("narrow", "select")


def pattern(function):
    calls = [(torch.randn(6, WIDTH), torch.tensor(n)) for n in (1, 1, 3, 2)]
    return Pattern(lambda: Fn(lambda m, x, t: function(m.layer(x), t)), calls)


@pytest.fixture(autouse=True)
def start_anew():
    torch._dynamo.reset()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_module(name):
    compare_calls(pattern(FUNCTIONS[name]), lambda m: steep.ORTModule(m, fallback="parts"))


@pytest.mark.parametrize("name", ["narrow", "arange", "zeros", "topk"])
def test_backend(name):
    compare_calls(pattern(FUNCTIONS[name]), lambda m: torch.compile(m, backend=backend.backend))


@pytest.mark.parametrize("name", LEAVES_PARTS)
def test_the_layer_stays_in_the_engine(name):
    net = steep.ORTModule(Fn(lambda m, x, t: FUNCTIONS[name](m.layer(x), t)))
    net(torch.randn(6, WIDTH), torch.tensor(1))
    (graph,) = net.report().graphs
    assert graph.operators
    assert graph.in_torch
