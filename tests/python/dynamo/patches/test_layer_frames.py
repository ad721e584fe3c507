"""PyTorch's own layers, called by functions that decide on values in a loop: each is captured."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from steep import ORTModule  # noqa: E402
from steep.dynamo import recompiles  # noqa: E402

WIDTH = 8


class Decides(nn.Module):
    def forward(self, x):
        return x.tanh() if x.sum() > 0 else x * 2


class Loop(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
            if x.abs().sum() < 1e-6:
                break
        return x


class Attends(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)


def layers():
    torch.manual_seed(1)
    return [
        nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(5),
        nn.LSTM(WIDTH, WIDTH, batch_first=True),
        nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0, batch_first=True),
        Attends(WIDTH, 2, batch_first=True),
        nn.GRU(WIDTH, WIDTH, batch_first=True),
        nn.Conv1d(5, 5, 3, padding=1),
        nn.LayerNorm(WIDTH),
        nn.PReLU(),
        nn.Linear(WIDTH, 3),
    ]


def run(net, x):
    x = x.clone().requires_grad_()
    net.zero_grad()
    y = net(x)
    (y * torch.linspace(-1, 2, y.numel()).view(y.shape)).sum().backward()
    return [
        y.detach(),
        x.grad,
        *(p.grad for p in net.parameters()),
        *map(torch.clone, net.buffers()),
    ]


MODULES = {
    "in Sequential": lambda: nn.Sequential(layers()[0], Decides(), layers()[1], layers()[3]),
    "in a loop": lambda: Loop(*layers()),
}


@pytest.mark.parametrize("name", MODULES)
def test_each_layer_runs_in_the_engine(name):
    torch._dynamo.reset()
    module = MODULES[name]()
    ours = ORTModule(copy.deepcopy(module))
    for rows in (3, 4, 2):
        x = torch.randn(rows, 5, WIDTH)
        for right, value in zip(run(module, x), run(ours, x), strict=True):
            torch.testing.assert_close(value, right, rtol=1e-4, atol=2e-5)
    report = ours.report()
    assert report.share == 1
    assert "100.0% of the products and convolutions of these graphs" in str(report)
    places = [graph.place.rpartition("/")[2].partition(":")[0] for graph in report.graphs]
    expected = {"linear.py", "batchnorm.py", "transformer.py"}
    if name == "in a loop":
        expected |= {"rnn.py", "conv.py", "normalization.py", "activation.py"}
    assert expected <= {*places}


def test_a_layer_may_become_more_graphs_than_a_function_of_the_user(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(recompiles, "MOST_GRAPHS", 2)
    net = ORTModule(nn.Sequential(*(nn.Linear(n, n + 1) for n in range(2, 6)), Decides()))
    run(net, torch.randn(2, 2))
    assert len(net.report().graphs) > 4
