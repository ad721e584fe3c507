"""What ORTModule cannot run it refuses, naming the node; what it runs it runs rightly."""

import functools
import logging

import pytest

torch = pytest.importorskip("torch")

from test_ort_module import (  # noqa: E402
    Net,
    assert_close,
    assert_same_gradients,
    pair,
    seed,  # noqa: F401
)

import steep  # noqa: E402

ORTModule = functools.partial(steep.ORTModule, exporter="torch.onnx")


class BranchOnSum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x, gate):
        return self.linear(x) if gate.sum() > 0 else -self.linear(x)


def test_trace_notices_another_value_of_what_it_dropped():
    torch_net, net = pair(BranchOnSum(), exporter="torch.onnx")
    x = torch.randn(2, 3)
    for gate in (torch.ones(2), -torch.ones(2), torch.ones(2), 5 * torch.ones(2)):
        assert_close(net(x, gate), torch_net(x, gate))
    assert net.export_report.exporter == "tracing"
    assert "GuardOnDataDependent" in net.export_report.reason
    assert len(net.export_reports) == 2


def test_trace_notices_an_extent_that_it_fixed():
    class Fixed(torch.nn.Module):
        def forward(self, x):
            return x * float(len(x)) + torch.ones(int(x.shape[0]), 1)

    torch_net, net = pair(Fixed(), exporter="tracing")
    for n in (2, 5, 2):
        x = torch.randn(n, 3)
        assert_close(net(x), torch_net(x))
    assert len(net.export_reports) == 2


# --- refusals -------------------------------------------------------------------------------------


class Mystery(torch.nn.Module):
    """With an operator that only its author knows. (PyTorch takes it for zeros.)"""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(3))

    def forward(self, x):
        own = torch.onnx.ops.symbolic(
            "mine::Mystery", (x.detach(),), dtype=x.dtype, shape=x.shape, version=1
        )
        return (self.weight @ x + own).sum()


def test_what_cannot_run_raises_and_names_the_node():
    net = ORTModule(Mystery())
    with pytest.raises(steep.Error, match="Mystery") as e:
        net(torch.randn(3, 3))
    assert isinstance(e.value, (steep.ModelError, steep.ProviderError))
    assert net.fallback_calls == 0


def test_fallback_is_opted_in_and_counted(caplog):
    torch_net, net = pair(Mystery(), fallback="torch", exporter="torch.onnx")
    x = torch.randn(3, 3)
    with caplog.at_level(logging.WARNING, "steep"):
        for m in (torch_net, net):
            m(x).backward()
            m(x).backward()
    assert net.fallback_calls == 2
    assert "PyTorch instead" in caplog.text
    assert_same_gradients(torch_net, net)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen += x.sum(0)
        return x * self.seen


def test_written_buffers_are_refused_not_ignored():
    net = ORTModule(Counting())
    with pytest.raises(steep.ModelError, match="seen"):
        net(torch.randn(4, 3) + 5)
    assert not net.seen.any()


def test_a_module_that_no_exporter_takes_says_so_and_prints_nothing(capfd):
    linear = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 3))
    with pytest.raises(steep.ModelError, match=r"torch\.export: .*buffer .*; tracing: "):
        ORTModule(linear)(torch.randn(2, 3))
    assert capfd.readouterr() == ("", "")


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        ORTModule(lambda x: x)
    with pytest.raises(ValueError, match="fallback"):
        ORTModule(Net(), fallback="numpy")
    with pytest.raises(ValueError, match="exporter"):
        ORTModule(Net(), exporter="magic")
    net = ORTModule(Net())
    with pytest.raises(TypeError, match="argument: 'x'"):
        net()
    with pytest.raises(steep.DataError, match="object"):
        net(object())
    net(torch.randn(2, 6))  # and still works


def test_index_out_of_range_leaves_all_usable():
    torch_net, net = pair(torch.nn.Embedding(5, 3))
    for bad in (5, -6, 2**40):
        with pytest.raises(steep.DataError) as e:
            net(torch.tensor([0, bad]))
        assert e.value.op
    ids = torch.tensor([0, 4])
    assert_close(net(ids), torch_net(ids))
