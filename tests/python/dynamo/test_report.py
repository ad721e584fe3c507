"""What became of a module is said: its graphs, why there are several, what PyTorch runs."""

import logging
import re

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from steep import ModelError, ORTModule  # noqa: E402


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.factor = [1.0]

    def forward(self, x):
        y = self.first(x) * self.factor[0]
        if y.sum() > 0:
            y = y + 1
        return self.second(y)


class Solving(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        y = self.layer(x)
        return torch.linalg.matrix_exp(y.T @ y).sum()


def test_what_lies_between_graphs_is_said_once(caplog, capfd):
    net = ORTModule(Deciding())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            net(torch.ones(2, 3)).sum().backward()
            net(-torch.ones(2, 3)).sum().backward()
    (said,) = [r.getMessage() for r in caplog.records]
    assert re.search(r"a branch on the values of a tensor \(.*test_report\.py:23\)", said)
    report = net.report()
    assert len(report.graphs) >= 2 and not report.whole
    assert any("test_report.py:23" in why for why in report.breaks)
    assert "PyTorch runs code between two graphs" in str(report)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(
        ModelError,
        match=r"one graph.*\n.*a branch on the values of a tensor \(.*test_report\.py:23\)",
    ):
        ORTModule(Deciding(), fallback=None)(torch.ones(2, 3))


def test_an_operation_that_pytorch_runs_is_said_once(caplog):
    net = ORTModule(Solving())
    with caplog.at_level(logging.WARNING):
        for rows in (4, 5, 6):
            net(torch.randn(rows, 3)).backward()
    (said,) = [r.getMessage() for r in caplog.records]
    assert re.search(r"no operator for aten\.linalg_matrix_exp.* \(.*test_report\.py:35\)", said)
    first, again = net.report().graphs
    assert first.in_torch and first.operators > 3 and not first.because
    assert "size mismatch at index 0. expected 4, actual 5" in again.because
    assert not net.report().whole


def test_a_whole_module(tmp_path, monkeypatch):
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path / "cache"))
    for cached in (False, True):
        torch._dynamo.reset()
        net = ORTModule(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
        net(torch.randn(2, 3)).sum().backward()
        (graph,) = net.report().graphs
        assert graph.cached is cached and graph.training and net.report().whole
        assert ("from the cache" in str(net.report())) is cached


def test_encoders_of_pytorch_s_are_one_graph():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    net = ORTModule(encoder, fallback=None)
    x = torch.randn(5, 2, 8)
    for mask in (nn.Transformer.generate_square_subsequent_mask(5), torch.zeros(5, 5)):
        torch.testing.assert_close(net(x, mask), encoder(x, mask), rtol=1e-4, atol=1e-5)
    assert len(net.report().graphs) == 1 and net.report().whole
