"""Results lie in memory as eager PyTorch's do: strides, and what depends on them."""

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from steep import ORTModule  # noqa: E402

LAST = torch.channels_last


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


RESULTS = {
    "convolution": lambda m, x: m.conv(x),
    "elementwise": lambda m, x: x.relu() + 1,
    "norm": lambda m, x: m.norm(m.conv(x)).tanh(),
    "pool": lambda m, x: F.max_pool2d(x, 2),
    "mean over pixels": lambda m, x: F.adaptive_avg_pool2d(x, 1),
    "channels": lambda m, x: torch.cat([x, x], 1),
    "permuted": lambda m, x: m.conv(x).permute(0, 2, 3, 1),
    "transposed, then computed": lambda m, x: x.transpose(1, 3) * 2,
    "to channels last": lambda m, x: m.conv(x).to(memory_format=LAST),
    "to contiguous": lambda m, x: m.conv(x).contiguous(),
    "like": lambda m, x: torch.zeros_like(x),
    "resized": lambda m, x: F.interpolate(x, scale_factor=2),
    "matrix": lambda m, x: torch.linalg.inv(x[0, 0, :4, :4] + 9 * torch.eye(4)),
    "two that share memory": lambda m, x: (y := m.conv(x), y.permute(0, 2, 3, 1)),
    "of one channel": lambda m, x: x.sum(1, keepdim=True),
    "written": lambda m, x: m.conv(x).add_(1),
    "asked": lambda m, x: m.conv(x) * (2 if m.conv(x).is_contiguous(memory_format=LAST) else 3),
    "behind a break": lambda m, x: m.conv(x) * float(m.conv(x).sum() > 0) + x.mean(),
}


@pytest.mark.parametrize("function", RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize("form", [torch.contiguous_format, LAST])
def test_strides(function, form):
    torch.manual_seed(0)
    module = Net(function)
    net = ORTModule(copy.deepcopy(module))
    for rows in (2, 3, 5):
        x = torch.randn(rows, 3, 6, 5).contiguous(memory_format=form)
        results, gradients = [], []
        for each in (module, net):
            each.zero_grad()
            got = each(x.clone().requires_grad_())
            results.append(got if isinstance(got, tuple) else (got,))
            if got[0].requires_grad:
                results[-1][0].square().sum().backward()
            gradients.append([p.grad for p in each.parameters()])
        assert [y.stride() for y in results[1]] == [y.stride() for y in results[0]]
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(gradients[1], gradients[0])


def test_what_depends_on_strides():
    net = ORTModule(Net(lambda m, x: m.conv(x)))
    y = net(torch.randn(2, 3, 4, 4).contiguous(memory_format=LAST))
    assert y.is_contiguous(memory_format=LAST)
    assert y.permute(0, 2, 3, 1).view(-1).shape == (128,)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        y.view(-1)
    z = y * 1
    y.detach().zero_()
    assert z.ne(0).any()


def test_default_device():
    net = ORTModule(Net(lambda m, x: m.conv(x)))
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=LAST)
    expected = net(x)
    with torch.device("meta"):
        assert torch.equal(net(x), expected)


def test_write_to_a_result_before_backward():
    """A result that backward reads, in another layout, is saved as any other."""
    net = ORTModule(Net(lambda m, x: m.conv(x).exp()))
    y = net(torch.randn(2, 3, 4, 4).contiguous(memory_format=LAST))
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
