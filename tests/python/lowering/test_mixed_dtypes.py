"""Operands of two dtypes: results have PyTorch's dtype and values, computed in that dtype."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steep import ORTModule


def functions(x, y):
    """``y`` has fractions, or is a number of another dtype without dimensions."""
    return [
        *(x + y, x - y, x * y, x / (y + 1), torch.remainder(x, y + 1), torch.fmod(x, y + 1)),
        *(x**y, torch.pow(x, y), torch.float_power(x, y), x**0.5, 2**x, 2.5**x),
        *(torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.where(x > y, x, y)),
        *(torch.add(x, y, alpha=2), torch.special.xlogy(x, y + 1), torch.clamp(x, min=y)),
        *(x < y, x == y, torch.floor_divide(x, y + 1), torch.cat([x, y.expand(x.shape)])),
        # other names of operators
        *(torch.multiply(x, y), torch.subtract(x, y, alpha=2), torch.divide(x, y + 1)),
        *(torch.true_divide(x, y + 1), torch.divide(x, y + 1, rounding_mode="floor")),
        *(torch.greater(x, y), torch.greater_equal(x, y), torch.less(x, y), torch.less_equal(x, y)),
        *(torch.concat([x, y.expand(x.shape)]), torch.concatenate([y.expand(x.shape), x])),
        *(torch.multiply(x, 2.5), torch.subtract(x, 0.5), torch.divide(x, 2), torch.less(x, 2.5)),
        *(torch.divide(x, x + 1), torch.true_divide(x, 2), torch.multiply(x > 1, y)),
    ]


class Of(nn.Module):
    def forward(self, x, y):
        return functions(x, y)


F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
I64, I32, I16, I8 = torch.int64, torch.int32, torch.int16, torch.int8
PAIRS = [(I64, F32), (I32, F64), (I8, F16), (I16, I64), (I64, I8), (F32, F64), (F16, F32)]


@pytest.mark.parametrize("of_x, of_y", PAIRS, ids=lambda dtype: str(dtype)[6:])
def test_results_are_pytorchs(of_x, of_y):
    x = torch.tensor([0, 1, 2, 3, 5, 7]).to(of_x)
    several = torch.tensor([0.5, 1.5, 2.5, 3, 6, 1]).to(of_y)
    for y in (several, several[1]):
        found, expected = ORTModule(Of())(x, y), functions(x, y)
        for i, (value, right) in enumerate(zip(found, expected, strict=True)):
            assert value.dtype == right.dtype, i
            torch.testing.assert_close(
                value, right, equal_nan=True, msg=lambda m, i=i: f"function {i}: {m}"
            )


class Search(nn.Module):
    """Positions in a sequence of one dtype, of values of another."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, sequence, values):
        sides = [torch.searchsorted(sequence, values, right=right) for right in (False, True)]
        return *sides, torch.bucketize(values, sequence), self.scale * 2


def searched():
    """Return each dtype beside float32, and four other pairs; the rest is in the matrix."""
    others = {(torch.bool, F64), (torch.uint8, I8), (I32, F16), (F16, I64)}
    for sequence in (torch.bool, torch.uint8, I32, F32, F64, F16):
        for values in (F32, F64, F16, I64, I8):
            often = F32 in (sequence, values) or (sequence, values) in others
            yield pytest.param(sequence, values, marks=() if often else pytest.mark.matrix)


@pytest.mark.parametrize("sequence,values", [*searched()], ids=str)
def test_searches_compare_in_the_common_dtype(sequence, values):
    ordered = torch.tensor([0, 0, 1, 1, 5]).to(sequence).sort().values
    several = torch.tensor([0.75, -3.0, 2.0, 0.0, 5.5, 1.0]).to(values)
    net, module = ORTModule(Search()), Search()
    for y in (several, several[0], several[1]):
        for found, right in zip(net(ordered, y)[:3], module(ordered, y)[:3], strict=True):
            torch.testing.assert_close(found, right)


class Huber(nn.Module):
    """Huber losses, in the input's dtype whatever the target's."""

    def forward(self, x, y):
        weighted = F.huber_loss(x, y, weight=torch.linspace(0, 1, x.numel()))
        losses = [F.huber_loss(x, y, kind, 0.5) for kind in ("none", "mean", "sum")]
        return [*losses, losses[0] * 2, weighted]


@pytest.mark.parametrize(
    "of_x, of_y", [(F16, BF16), (BF16, F16), (F16, F32), (F32, BF16), (F32, F64)], ids=str
)
def test_huber_losses_have_the_inputs_dtype(of_x, of_y):
    net = ORTModule(Huber(), fallback=None)
    for n in (4, 7):
        x, y = torch.randn(n).to(of_x), torch.randn(n).to(of_y)
        for value, right in zip(net(x, y), Huber()(x, y), strict=True):
            assert value.dtype == right.dtype
            torch.testing.assert_close(value, right)
