"""Lazy modules draw the weights that they draw in eager mode, and are captured then."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from steep import ORTModule  # noqa: E402


class Later(nn.Module):
    """Its second layer runs, and gets its shape, from the fourth call on."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.calls = nn.LazyLinear(4), nn.LazyLinear(4), 0

    def forward(self, x):
        self.calls += 1
        y = self.first(x)
        return self.second(torch.dropout(y, 0.5, True)) if self.calls > 3 else y


NETS = {
    "linear": (lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)), (3, 5)),
    "alone": (lambda: nn.LazyLinear(4), (3, 5)),
    "behind dropouts": (
        lambda: nn.Sequential(nn.Dropout(), nn.LazyLinear(4), nn.Dropout(), nn.LazyLinear(2)),
        (3, 5),
    ),
    "convolutions": (
        lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.LazyConv2d(2, 3)),
        (2, 3, 6, 6),
    ),
}


@pytest.mark.parametrize(("make", "shape"), NETS.values(), ids=NETS)
def test_weights_and_later_draws(make, shape):
    results = []
    for wrap in (lambda m: m, ORTModule):
        torch.manual_seed(3)
        module = make()
        net, x = wrap(module), torch.randn(shape)
        y = net(x)
        y.sum().backward()
        weights = [p.detach() for p in module.parameters()]
        results.append([y.detach(), *weights, torch.rand(2), module.eval() and net(x).detach()])
    torch.testing.assert_close(results[1], results[0])
    assert len(net.report().graphs) == 1


def test_layer_that_runs_later():
    net = ORTModule(Later())
    for _ in range(3):
        assert net(torch.ones(3, 5)).shape == (3, 4)
    assert net.report().graphs  # a call is captured if the last one gave no shape
    for _ in range(3):
        assert net(torch.ones(3, 5)).shape == (3, 4)


def test_first_call_with_one_graph():
    net = ORTModule(nn.Sequential(nn.LazyLinear(4), nn.ReLU()), fallback=None)
    for _ in range(2):
        net(torch.ones(3, 5)).sum().backward()
    assert len(net.report().graphs) == 1
