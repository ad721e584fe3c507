"""What surrounds a capture by Dynamo; what is captured is in test_patterns.py."""

import copy
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from capture_patterns import WIDTH, Fn  # noqa: E402
from everyday_patterns import PATTERNS  # noqa: E402
from patterns import assert_same  # noqa: E402
from torch import nn  # noqa: E402

from steep import ModelError, ORTModule  # noqa: E402
from steep.dynamo import captured_module, recompiles  # noqa: E402
from steep.lowering.ops.recurrent import KERNELS  # noqa: E402
from steep.patching.substitution import replaces  # noqa: E402


@pytest.fixture(autouse=True)
def start_anew():
    torch._dynamo.reset()


# Of these PyTorch runs an operation, between parts in the engine.
IN_PARTS = {"hook on a tensor"}


def new():
    return nn.Parameter(torch.randn(WIDTH))


@pytest.mark.parametrize("name", sorted(IN_PARTS))
def test_one_graph_is_asked_for(name):
    make, calls = PATTERNS[name]
    with pytest.raises(ModelError, match=r"\w+_patterns\.py"):
        ORTModule(make(), fallback=None)(*calls[0])


def test_what_decides_on_values_is_no_one_graph():
    make, calls = PATTERNS["early"]
    with pytest.raises(ModelError, match="does not become one graph"):
        ORTModule(make(), fallback=None)(*calls[0])


def test_nothing_in_the_engine_is_an_error():
    net = ORTModule(Fn(lambda m, x: x.tolist()), fallback="parts")
    with pytest.raises(ModelError, match="No part of the module Fn ran in the engine"):
        net(torch.ones(2, WIDTH))
    whole = ORTModule(Fn(lambda m, x: x.tolist()), fallback="torch")
    assert whole(torch.ones(1, 2)) == [[1, 1]]
    assert whole.fallback_calls == 1


EMPTY = {
    "identity": lambda m, x: x,
    "a function": lambda m, x: passed_on(x),
    "several": lambda m, x: {"x": x, "shape": [*x.shape], "none": None},
    "an attribute": lambda m, x: setattr(m, "rows", len(x)) or x,
}


def passed_on(x):
    return x


@pytest.mark.parametrize("function", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("fallback", ["parts", None])
def test_a_module_without_an_operation(function, fallback):
    net = ORTModule(Fn(function), fallback=fallback)
    for rows in (2, 2, 3):
        x = torch.ones(rows, WIDTH, requires_grad=True)
        result = net(x)
        assert (result["x"] if isinstance(result, dict) else result) is x
    assert not net.report().graphs


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * 3


def test_other_threads_notice_nothing_of_a_capture():
    """A function with a backward of its own works there as ever."""
    done, turns, refused = threading.Event(), [], []

    def work():
        while not done.is_set():
            x = torch.ones(3, requires_grad=True)
            try:
                Tripled.apply(x.tanh() * x).sum().backward()
            except Exception as e:
                refused.append(e)
            turns.append(x.grad)

    with ThreadPoolExecutor(1) as other:
        running = other.submit(work)
        for k in range(3):
            ORTModule(Fn(lambda m, x, k=k: torch.tanh(m.layer(x)) * (k + 2)))(torch.ones(2, WIDTH))
        done.set()
        running.result()
    assert turns and refused == []
    x = torch.ones(3, requires_grad=True)
    Tripled.apply(x.tanh() * x).sum().backward()
    assert all(torch.equal(x.grad, g) for g in turns)


def test_too_many_graphs_are_said(monkeypatch):
    monkeypatch.setattr(recompiles, "MOST_GRAPHS", 3)
    module = Fn(lambda m, x, f: getattr(torch, f)(m.layer(x)))
    net, parts = ORTModule(module, fallback=None), ORTModule(module)
    x = torch.randn(2, WIDTH)
    for function in ("tanh", "relu", "sin"):
        net(x, function), parts(x, function)
    with pytest.raises(ModelError, match="too many graphs"):
        net(x, "cos")
    assert torch.equal(net(x, "relu"), net(x, "relu"))
    torch.testing.assert_close(parts(x, "cos"), module(x, "cos"))
    assert len(parts.report().graphs) == 4  # the layer is one by itself


def test_modes_and_precisions_have_graphs_of_their_own():
    inner = Fn(lambda m, x: m.drop(m.layer(x)), drop=nn.Dropout(0.5))
    net = ORTModule(inner)
    x = torch.randn(64, WIDTH)
    assert (net(x) == 0).any()
    net.eval()
    assert not (net(x) == 0).any()
    with torch.no_grad():
        assert not net(x).requires_grad
    with torch.inference_mode():
        assert net(x).is_inference() or not net(x).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert net(x).dtype == inner(x).dtype == torch.bfloat16
    wide = net(x)
    assert wide.dtype == torch.float32
    net.precision = "bf16"
    assert not torch.equal(net(x), wide)


def test_a_frozen_parameter_gets_no_gradient():
    net = ORTModule(Fn(lambda m, x: m.layer(x)))
    net(torch.randn(2, WIDTH)).sum().backward()
    net.zero_grad()
    net.layer.weight.requires_grad_(False)
    net(torch.randn(2, WIDTH)).sum().backward()
    assert net.layer.weight.grad is None
    assert net.layer.bias.grad is not None


def test_equal_gradients_may_be_changed_one_by_one():
    torch.manual_seed(0)
    module = Fn(lambda m, x: (m.layer(x) + m.a + m.b + m.c).pow(2), **{n: new() for n in "abc"})
    net = ORTModule(copy.deepcopy(module))
    x = torch.randn(3, WIDTH)
    for m in (module, net):
        m(x).sum().backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
    assert_same([p.grad for p in net.parameters()], [p.grad for p in module.parameters()])


def test_second_derivatives():
    net = ORTModule(Fn(lambda m, x: torch.tanh(m.layer(x)))).double()
    x = torch.randn(2, WIDTH, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(net, (x,))
    assert torch.autograd.gradgradcheck(net, (x,))


def test_threads_and_copies():
    module = Fn(lambda m, x: torch.tanh(m.layer(x)))
    net = ORTModule(module)
    x = torch.randn(3, WIDTH)
    expected = module(x)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: net(x), range(32)):
            assert_same([found], [expected])
    for other in (
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(ORTModule(nn.Linear(2, 2)))),
    ):
        assert other.state_dict().keys() == other.module.state_dict().keys()
    assert_same([copy.deepcopy(net)(x)], [expected])


def test_threads_capture_one_after_the_other(monkeypatch):
    inside, deepest = [], []

    @replaces(*KERNELS.values())
    def keep_recurrent_layers():
        inside.append(None)
        deepest.append(len(inside))
        time.sleep(0.05)
        yield
        inside.pop()

    monkeypatch.setattr(captured_module, "keep_recurrent_layers", keep_recurrent_layers)
    nets = [ORTModule(Fn(lambda m, x: torch.tanh(m.layer(x)))) for _ in range(4)]
    x = torch.randn(3, WIDTH)
    with ThreadPoolExecutor(4) as pool:
        for net, found in zip(nets, pool.map(lambda net: net(x), nets), strict=True):
            assert_same([found], [net.module(x)])
    assert set(deepest) == {1}


def test_an_export_within_a_capture():
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    net = ORTModule(nn.Sequential(ORTModule(inner), inner[0]))
    x = torch.randn(2, WIDTH)
    assert_same([net(x)], [inner[0](inner(x))])


def test_numbers_of_a_list_may_change():
    module = Fn(
        lambda m, x: m.layer(x) * torch.tensor([[m.shift, 2.0, 3], [m.shift, 1, m.shift]])[0, 0]
    )
    module.shift = 0.5
    net = ORTModule(copy.deepcopy(module))
    x = torch.randn(2, WIDTH)
    for value in (0.5, 1.5, -2.5, 7.0):
        module.shift = net.module.shift = value
        torch.testing.assert_close(net(x), module(x))
    assert len(net.report().graphs) == 2
