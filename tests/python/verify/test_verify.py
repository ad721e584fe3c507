"""verify=True: the first step of a graph also runs in PyTorch, and must agree."""

import copy
import gc
import logging
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from onnxscript import opset18  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from steep import ModelError, ORTModule, VerificationError  # noqa: E402
from steep.dynamo import backend  # noqa: E402
from steep.lowering import to_onnx  # noqa: E402
from steep.verify import compare, replay_random, verified_graph  # noqa: E402

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def start_anew(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setenv("STEEP_CACHE", "off")  # it knows no translation of a test's


@pytest.fixture
def compared(monkeypatch):
    """Counts steps that PyTorch runs as well, weakly."""
    steps = weakref.WeakSet()
    steps.count = 0

    class Counted(verified_graph.Step):
        def __init__(self, *args):
            super().__init__(*args)
            steps.add(self)
            steps.count += 1

    monkeypatch.setattr(verified_graph, "Step", Counted)
    return steps


@pytest.fixture
def translate(monkeypatch):
    """Says an operator in other words."""

    def say(target, translation):
        registry = copy.copy(to_onnx._registry())
        registry.functions = {name: [*known] for name, known in registry.functions.items()}
        registry.register_op(target, translation)
        monkeypatch.setattr(to_onnx, "_registry", lambda: registry)

    return say


def _constant(x):
    y = opset18.Identity(x)
    y.producer().metadata_props["steep.stop_gradient"] = ""
    return y


def _times(x, factor):
    return opset18.Mul(x, opset18.CastLike(opset18.Constant(value_float=factor), x))


def slightly_more(x):
    return _times(opset18.Tanh(x), 1.01)


def wrong_slope(x):
    slope = _times(opset18.Sub(x, _constant(x)), 0.5)
    return opset18.Add(_constant(opset18.Tanh(x)), slope)


def small():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 4))


class Net(nn.Module):
    """Dropouts, attention, a buffer that forward writes."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.4), nn.BatchNorm1d(16))
        self.head = nn.Linear(16, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        y = x[None]
        x = x + self.attention(y, y, y, need_weights=False)[0][0]
        noise = torch.rand(x.shape[0], 1) + torch.empty(4).normal_() + torch.randn_like(x[:, :4])
        return self.head(F.dropout1d(self.body(x)[None], 0.2)[0]) + noise


def test_agrees_with_the_same_dropouts_and_writes_once(compared):
    module = Net()
    wrapped = ORTModule(module, verify=True)
    for rows in (5, 6, 7, 8):
        wrapped(torch.randn(rows, 8)).square().mean().backward()
    assert int(module.calls) == int(module.body[3].num_batches_tracked) == 4
    report = wrapped.report()
    assert [g.verified for g in report.graphs if not 0 < g.verified < 1e-5] == []
    assert compared.count == len(report.graphs) == 2
    assert "differs from PyTorch by at most" in str(report)
    gc.collect()
    assert not compared  # nothing is held


def test_randomness_is_as_without():
    draws = []
    for asked in (False, True):
        torch.manual_seed(3)
        net, x = small(), torch.randn(5, 8)
        y = ORTModule(net, verify=asked)(x)
        y.sum().backward()
        draws.append((y, net[0].weight.grad, torch.rand(())))
    for one, other in zip(*draws, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("translation", [slightly_more, wrong_slope])
def test_names_what_is_wrong(translate, translation):
    translate(aten.tanh.default, translation)
    wrapped = ORTModule(Net(), verify=True, fallback="torch")
    for _ in range(2):  # and again, until it is right
        with pytest.raises(VerificationError) as caught:
            wrapped(torch.randn(5, 8)).square().mean().backward()
        assert caught.value.node == "body.1 (Tanh)"
        assert caught.value.op.startswith("tanh (")
        assert caught.value.expected and caught.value.received
    assert ("computes a gradient" in str(caught.value)) == (translation is wrong_slope)
    assert wrapped.report().graphs[0].verified > 1e-3


def test_names_what_writes_a_buffer_wrong(translate):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.ones(3))

        def forward(self, x):
            self.seen.mul_(2)
            return x.exp()

    translate(aten.mul.Tensor, opset18.Add)
    wrapped = ORTModule(Counter(), verify=True)
    with pytest.raises(VerificationError, match="differs from PyTorch") as caught:
        wrapped(torch.ones(3))
    assert caught.value.op.startswith("mul_")


def test_environment_and_argument(monkeypatch, compared):
    monkeypatch.setenv("STEEP_VERIFY", "1")
    x = torch.randn(2, 4)
    ORTModule(nn.Linear(4, 4))(x)
    assert compared.count == 1
    ORTModule(nn.Linear(4, 4), verify=False)(x)
    assert compared.count == 1
    monkeypatch.setenv("STEEP_VERIFY", "yes")
    with pytest.raises(ModelError, match="STEEP_VERIFY"):
        ORTModule(nn.Linear(4, 4))(x)


def test_backend(compared):
    module = nn.Linear(4, 4)
    plain = torch.compile(module, backend=backend.backend)
    plain(torch.randn(2, 4))
    assert compared.count == 0
    torch._dynamo.reset()
    asked = torch.compile(module, backend=backend.backend, options={"verify": True})
    asked(torch.randn(2, 4)).sum().backward()
    assert compared.count == 1
    torch._dynamo.reset()
    with pytest.raises(Exception, match="has the option"):
        torch.compile(module, backend=backend.backend, options={"verfy": True})(torch.randn(2, 4))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return 3 * dy


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        y = self.first(x)
        y = torch.linalg.matrix_exp(y[:8].tanh()) @ y
        return self.last(y)


def test_parts_and_share():
    wrapped = ORTModule(Parts(), verify=True)
    wrapped(torch.randn(8, 8)).sum().backward()
    report = wrapped.report()
    (graph,) = report.graphs
    assert graph.in_torch
    assert graph.verified is not None
    assert graph.flops is not None
    here = 2 * 8 * 8 * (8 + 8 + 4)
    assert graph.flops[0] == here
    assert report.share == here / sum(graph.flops)


def test_without_gradients_and_narrow(compared):
    wrapped = ORTModule(small(), verify=True)
    with torch.no_grad():
        wrapped(torch.randn(5, 8))
    other = ORTModule(small(), verify=True)
    with torch.inference_mode():
        other(torch.randn(5, 8))
    assert other.report().graphs[0].verified < 1e-5
    with torch.autocast("cpu", torch.bfloat16):
        y = wrapped(torch.randn(5, 8))
    y.float().sum().backward()
    forward, narrow = wrapped.report().graphs
    assert forward.verified < 1e-5
    assert 1e-5 < narrow.verified < 0.1
    assert compared.count == 3


def test_second_derivatives(compared):
    wrapped = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), verify=True)
    x = torch.randn(3, 4, requires_grad=True)
    (dx,) = torch.autograd.grad(wrapped(x).sum(), x, create_graph=True)
    dx.square().sum().backward()
    assert wrapped.report().graphs[0].verified < 1e-5
    assert compared.count == 1
    assert x.grad is not None


def test_backward_twice_and_never():
    wrapped = ORTModule(nn.Linear(4, 4), verify=True)
    y = wrapped(torch.randn(2, 4)).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert wrapped.report().graphs[0].verified < 1e-5
    other = ORTModule(nn.Linear(4, 4), verify=True)
    other(torch.randn(2, 4))
    other(torch.randn(2, 4)).sum().backward()


def test_threads(compared):
    wrapped = ORTModule(small(), verify=True)

    def step(_):
        wrapped(torch.randn(5, 8)).sum().backward()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(step, range(4)))
    verified = [g.verified for g in wrapped.report().graphs]  # of which all but one may be unused
    assert 1 <= compared.count == sum(v is not None and v < 1e-5 for v in verified)


def test_says_what_it_cannot_compare(caplog, monkeypatch):
    monkeypatch.setattr(replay_random, "_masks_of", lambda graph, fed: [])
    wrapped = ORTModule(small(), verify=True)
    with caplog.at_level(logging.WARNING, logger="steep"):
        wrapped(torch.randn(3, 8))
    assert wrapped.report().graphs[0].verified is None
    assert "not verified: PyTorch has more dropouts" in caplog.text


def test_within_a_checkpoint(compared):
    wrapped = ORTModule(small(), verify=True)
    x = torch.randn(5, 8, requires_grad=True)
    checkpoint(wrapped, x, use_reentrant=False).sum().backward()
    assert wrapped.report().graphs[0].verified < 1e-5
    gc.collect()
    assert not compared


def test_scaled_losses_may_overflow():
    wrapped = ORTModule(small(), verify=True)
    with torch.autocast("cpu", torch.float16):
        y = wrapped(torch.randn(5, 8))
    (y.float().sum() * 2.0**18).backward()
    assert wrapped.report().graphs[0].verified is not None


def test_names_what_is_wrong_under_autocast(translate):
    translate(aten.tanh.default, lambda x: _times(opset18.Tanh(x), 2.0))
    wrapped = ORTModule(small(), verify=True)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(VerificationError) as caught:
        wrapped(torch.randn(5, 8))
    assert caught.value.node == "1 (Tanh)"
    torch._dynamo.reset()
    translate(aten.tanh.default, wrong_slope)
    wrapped = ORTModule(small(), verify=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = wrapped(torch.randn(5, 8))
    with pytest.raises(VerificationError) as caught:
        y.float().sum().backward()
    assert caught.value.node == "1 (Tanh)"


def test_dropouts_that_are_off():
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0), nn.Dropout(0.3), nn.Dropout(0.5))
    net[3].eval()
    net.append(nn.LSTM(8, 4, num_layers=2, dropout=0.2))
    wrapped = ORTModule(net, verify=True)
    wrapped(torch.randn(5, 3, 8))[0].sum().backward()
    assert wrapped.report().graphs[0].verified < 1e-5


class Overwrites(nn.Module):
    def forward(self, x):
        y = torch.exp(x)
        y.mul_(2)
        return y.cos()


def test_what_pytorch_refuses_is_said(caplog):
    wrapped = ORTModule(Overwrites(), verify=True)
    with caplog.at_level(logging.WARNING, logger="steep"):
        wrapped(torch.ones(3, requires_grad=True)).sum().backward()
    assert "changed in place" in caplog.text
    assert wrapped.report().graphs[0].verified is None


def test_gradients_are_compared_when_the_first_backward_comes(compared, translate):
    translate(aten.tanh.default, wrong_slope)
    wrapped = ORTModule(small(), verify=True)
    wrapped(torch.randn(5, 8))
    y = wrapped(torch.randn(5, 8))
    with pytest.raises(VerificationError):
        y.sum().backward()
    assert compared.count == 2


def test_rounding_is_measured(monkeypatch, translate):
    """With a tolerance that rounding exceeds, what PyTorch itself rounds decides."""
    monkeypatch.setitem(compare.TOLERANCES, torch.float32, 1e-12)
    monkeypatch.setattr(verified_graph, "ROUNDINGS", 100)
    wrapped = ORTModule(small(), verify=True)
    wrapped(torch.randn(5, 8)).sum().backward()
    assert wrapped.report().graphs[0].verified > 1e-12
    torch._dynamo.reset()
    translate(aten.tanh.default, slightly_more)
    with pytest.raises(VerificationError):
        ORTModule(small(), verify=True)(torch.randn(5, 8))
