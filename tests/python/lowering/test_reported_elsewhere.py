"""What users of PyTorch's compilers reported: in-place calls, scatters, strides of memory."""

import copy

import pytest

torch = pytest.importorskip("torch")

from module_pairs import assert_same_gradients  # noqa: E402
from torch import nn  # noqa: E402

from steep import ModelError, ORTModule  # noqa: E402

ROW_INDEX = torch.tensor([[0], [2]])
INDEX = torch.tensor([[0, 1, 1, 0], [2, 2, 0, 1]])
SELF = torch.tensor([[1.0, 2, 0], [2, 2, 3]])
SOURCE = torch.tensor([[1.0, 2, 2, 0], [3, 3, float("nan"), 2]])


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.5))
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors) * self.weight


class DoublesItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        g *= 2
        return g


def assert_same(function, *tensors, of_weight=True):
    module = Applied(function)
    nets = module, ORTModule(copy.deepcopy(module))
    results = []
    for net in nets:
        given = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
        y = net(*given)
        y.nan_to_num().square().sum().backward()
        results.append([y, *(t.grad for t in given)])
    torch.testing.assert_close(results[1], results[0], equal_nan=True)
    if of_weight:
        assert_same_gradients(*nets)


@pytest.mark.parametrize("source", [torch.ones(2, 4), torch.rand(3, 2)], ids=["wide", "long"])
def test_what_is_scattered_may_be_larger_than_the_index(source):
    source = source.clone()  # without a gradient, which PyTorch refuses
    for scatter in ("scatter", "scatter_add"):
        assert_same(lambda x, s=scatter: getattr(x, s)(1, ROW_INDEX, source), SELF)
    assert_same(lambda x: x.scatter_reduce(1, ROW_INDEX, source, "mean"), SELF)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("how", ["amax", "amin"])
def test_extremes_that_are_not_numbers(how, include_self):
    def reduce(x, s):
        return (x * 1).scatter_reduce(1, INDEX, s * 1, how, include_self=include_self)

    assert_same(reduce, SELF, SOURCE, of_weight=False)  # the weight's gradient is NaN


def test_a_backward_that_writes_its_gradient():
    assert_same(lambda x: DoublesItsGradient.apply(x.sin()), SELF)


def test_the_remainder_of_a_number_has_no_derivative():
    net, x = (
        ORTModule(Applied(lambda x: (x * 2).sin() + 5.3 % x)),
        torch.rand(3, requires_grad=True),
    )
    with pytest.raises(RuntimeError, match="remainder is not implemented"):
        net(x + 1).sum().backward()


@pytest.mark.parametrize("write", ["relu", "silu", "add", "rows"])
def test_writes_to_the_result_of_a_dropout(write):
    def forward(x):
        y = nn.functional.dropout(x, 0.5)
        if write == "add":
            y.add_(1)
        elif write == "rows":
            y[0] = 0
        else:
            y = getattr(nn.functional, write)(y, inplace=True)
        return y

    net, x = ORTModule(Applied(forward), fallback=None), torch.rand(40, 5, requires_grad=True)
    y = net(x)
    (y * 1.0).sum().backward()
    kept = x.grad != 0
    assert 0.3 < kept[1:].float().mean() < 0.7  # one mask for both
    inner = forward(torch.zeros(40, 5))  # what a dropped element becomes
    torch.testing.assert_close(y[~kept], (inner * 1.5)[~kept])


def test_results_of_the_engine_that_pytorch_writes():
    def forward(x):
        y = x.tanh() * 2
        y.bernoulli_(0.0)  # PyTorch runs it: random numbers by values of the graph
        return y + x

    assert_same(forward, SELF)


def test_as_strided_of_memory_in_an_unknown_order():
    x = torch.arange(100.0).reshape(2, 5, 2, 5).to(memory_format=torch.channels_last)
    with pytest.raises(ModelError, match=r"call contiguous\(\)"):
        ORTModule(Applied(lambda x: torch.roll(x, -1, 0).as_strided((5, 10), (4, 1), 0)))(x)
    assert_same(lambda x: torch.roll(x, -1, 0).contiguous().as_strided((5, 10), (4, 1)), x)
