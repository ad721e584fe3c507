"""What forward writes beside autograd: averages, clipped weights, by .data or without gradients."""

import copy

import pytest

torch = pytest.importorskip("torch")

from capture_patterns import WIDTH  # noqa: E402
from patterns import assert_same  # noqa: E402

from steep import ORTModule  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self, write):
        super().__init__()
        self.layer, self.other = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.write = write

    def forward(self, x):
        y = self.layer(x)
        with torch.no_grad():
            self.write(self, y)
        with torch.no_grad():
            z = self.other(x)
        return (torch.tanh(y) * z + self.mean).sum()


def pairs(m):
    return zip(m.other.parameters(), m.layer.parameters(), strict=True)


def average_data(m, y):
    for p, q in pairs(m):
        p.data.mul_(0.9).add_(q.data, alpha=0.1)


def average(m, y):
    for p, q in pairs(m):
        p.mul_(0.9).add_(q, alpha=0.1)


def copy_data(m, y):
    for p, q in pairs(m):
        p.data.copy_(0.9 * p.data + 0.1 * q.data)


WRITES = {
    "buffer, mul_": lambda m, y: m.mean.data.mul_(0.9).add_(y.mean(0) * 0.1),
    "buffer, copy_": lambda m, y: m.mean.data.copy_(y.mean(0)),
    "buffer, lerp_": lambda m, y: m.mean.data.lerp_(y.mean(0), 0.1),
    "parameters, data": average_data,
    "parameters, copy_": copy_data,
    "parameters": average,
    "clipped": lambda m, y: m.other.weight.data.clamp_(-0.1, 0.1),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_without_gradients_is_left_to_pytorch(name):
    torch.manual_seed(0)
    torch_net = Net(WRITES[name])
    net = ORTModule(copy.deepcopy(torch_net))
    for _ in range(2):
        x = torch.randn(3, WIDTH)
        found, expected = [], []
        for m, values in ((net, found), (torch_net, expected)):
            m.zero_grad()
            y = m(x)
            y.backward()
            values += [y.detach(), m.mean, *m.parameters(), *(p.grad for p in m.parameters())]
        assert_same(
            [None if t is None else t.detach() for t in found],
            [None if t is None else t.detach() for t in expected],
        )
    assert any(r.operators for r in net.report().graphs)


def test_the_mode_of_gradients_is_as_before_where_pytorchs_part_raises():
    def write(m, y):
        m.mean.data.mul_(0.9).view(-1)[torch.tensor([99])].add_(1)

    net = ORTModule(Net(write))
    with pytest.raises((RuntimeError, IndexError)):
        net(torch.randn(3, WIDTH))
    assert torch.is_grad_enabled()
