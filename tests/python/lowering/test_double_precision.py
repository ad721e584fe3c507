"""Modules of float64 tensors: no number of theirs is rounded to float32 on the way."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steep import ORTModule

CASES = {
    "layer norm": lambda x: F.layer_norm(x / 50, (6,)),
    "statistics of a layer norm": lambda x: sum(
        part.detach() if i > 0 else part
        for i, part in enumerate(torch.native_layer_norm(x / 50, [6], None, None, 1e-5))
    ),
    "group norm": lambda x: F.group_norm(x / 50, 2),
    "instance norm": lambda x: F.instance_norm(x[None] / 50),
    "batch norm": lambda x: F.batch_norm(x / 50, None, None, None, None, True),
    "rms norm": lambda x: F.rms_norm(x / 50, (6,), eps=1e-5),
    "leaky relu": lambda x: F.leaky_relu(x, 0.1),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "softplus": lambda x: F.softplus(x, 0.7),
    "threshold": lambda x: F.threshold(x, 0.1, 0.3),
    "shrink": lambda x: F.hardshrink(x, 0.1) + F.softshrink(x, 0.1),
    "alpha": lambda x: torch.addmm(x, x, x.t() @ x, beta=0.3, alpha=0.7),
    "batched alpha": lambda x: torch.baddbmm(x[None], x[None], (x.t() @ x)[None], beta=0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.1) + torch.sub(x, x, alpha=0.1),
    "fill": lambda x: torch.full_like(x, 0.1) * x + x.new_full((6,), 0.7) * x,
    "masked fill": lambda x: x.masked_fill(x > 0, 0.1),
    "arange": lambda x: x * torch.arange(0, 0.6, 0.1, dtype=x.dtype),
    "clamp": lambda x: x.clamp(-0.3, 0.7) + F.hardtanh(x, -0.1, 0.1),
    "deg2rad": torch.deg2rad,
    "gelu": lambda x: F.gelu(x, approximate="tanh") + F.gelu(x),
    "attention": lambda x: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None]
    ),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=1.7, mode="linear"),
}


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def close(value, right, tolerance, name=""):
    torch.testing.assert_close(
        *(value, right),
        rtol=tolerance,
        atol=tolerance * float(right.abs().max()),
        msg=lambda m: f"{name}: {m}",
    )


def check(module, ours, *args, tolerance=1e-12):
    results = []
    for net in (module, ours):
        given = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
        y = net(*given)
        (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape).cos()).sum().backward()
        held = [p.grad for p in net.parameters()] + [b.clone() for b in net.buffers()]
        results.append([y, *(g.grad for g in given if g.requires_grad), *held])
    for right, value in zip(*results, strict=True):
        close(value, right, tolerance)


NUMBERS = {  # whose dtype is the default's
    "range": lambda: torch.arange(0, 0.3, 0.1),
    "range down": lambda: torch.arange(1, 0.27, -0.11),
    "ends": lambda: torch.linspace(0, 0.1, 3),
    "full": lambda: torch.full((2,), 0.1),
    "filled": lambda: torch.zeros(2).fill_(0.1),
    "sum": lambda: torch.ones(2) * 0.1 + torch.eye(2),
    "root": lambda: torch.arange(4) ** 0.5,
    "hann": lambda: torch.hann_window(5),
    "hamming": lambda: torch.hamming_window(5),
    "blackman": lambda: torch.blackman_window(5),
    "one": lambda: torch.hann_window(1) + torch.hamming_window(1),
}


class Numbers(nn.Module):
    def forward(self, x):
        return [x * 2, *(f() for f in NUMBERS.values())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_in_the_default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        right, made = (net(torch.ones(2)) for net in (Numbers(), ORTModule(Numbers())))
    finally:
        torch.set_default_dtype(torch.float32)
    digits = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2}[dtype]
    for name, a, b in zip(NUMBERS, made[1:], right[1:], strict=True):
        torch.testing.assert_close(
            a, b, rtol=digits, atol=digits, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_range_that_ends_at_a_fraction_of_an_extent():
    module = Of(lambda x: x.sum() * torch.arange(0, x.shape[0] * 0.3, 0.1))
    ours = ORTModule(module)
    for rows in (2, 3, 4):
        torch.testing.assert_close(ours(torch.ones(rows)), module(torch.ones(rows)))


class Every(nn.Module):
    """Each function of a table, of an argument of its own: one capture for all."""

    def forward(self, *args):
        return [f(x) for f, x in zip(CASES.values(), args, strict=True)]


def test_functions_of_doubles():
    torch.manual_seed(0)
    args = torch.randn(len(CASES), 4, 6, dtype=torch.float64)
    results = []
    for net in (Every(), ORTModule(Every(), fallback=None)):
        given = [a.clone().requires_grad_() for a in args]
        made = net(*given)
        sum(
            (y * torch.linspace(-1, 2, y.numel()).cos().view(y.shape)).sum() for y in made
        ).backward()
        results.append((made, [a.grad for a in given]))
    for of_torch, ours in zip(*results, strict=True):
        for name, right, value in zip(CASES, of_torch, ours, strict=True):
            close(value, right, 1e-12, name)


@pytest.mark.parametrize("function", [F.celu, F.hardsigmoid])
def test_functions_whose_slope_pytorch_rounds(function):
    module = Of(lambda x: function(x * 0.7))
    x = torch.linspace(-4, 4, 24, dtype=torch.float64)
    torch.testing.assert_close(
        ORTModule(module, fallback=None)(x), module(x), rtol=1e-12, atol=1e-12
    )


LAYERS = {
    "batch norm": lambda: nn.BatchNorm1d(6, momentum=0.3),
    "instance norm": lambda: nn.InstanceNorm1d(
        6, momentum=0.3, affine=True, track_running_stats=True
    ),
}


def test_second_derivatives_keep_the_digits():
    module = ORTModule(Of(lambda x: F.layer_norm(x, (5,), eps=0.1).square()), fallback=None)
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    results = []
    for net in (module.module, module):
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(slope.square().sum(), x)[0])
    torch.testing.assert_close(results[1], results[0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_running_statistics_of_doubles(name):
    torch.manual_seed(0)
    module = LAYERS[name]().double()
    ours = ORTModule(copy.deepcopy(module), fallback=None)
    for _ in range(2):
        check(module, ours, torch.randn(4, 6, 5, dtype=torch.float64))


BAGS = {
    "rows": (torch.randint(0, 10, (3, 4)),),
    "ragged": (torch.randint(0, 10, (9,)), torch.tensor([0, 3, 3, 7])),
    "ends": (torch.randint(0, 10, (6,)), torch.tensor([0, 0, 2, 6])),
}


@pytest.mark.parametrize(
    ("mode", "padding", "dtype"),
    [
        *((mode, -8, torch.float64) for mode in ("sum", "mean", "max")),
        *((mode, None, torch.float32) for mode in ("mean", "max")),
    ],
)
def test_bags_of_embeddings(mode, padding, dtype):
    torch.manual_seed(0)
    module = nn.EmbeddingBag(10, 5, mode=mode, padding_idx=padding, dtype=dtype)
    ours = ORTModule(copy.deepcopy(module), fallback=None)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    check(module, ours, *BAGS["rows"], tolerance=tolerance)
    if mode != "max":
        check(module, ours, *BAGS["ragged"], tolerance=tolerance)
        check(module, ours, *BAGS["ends"], tolerance=tolerance)


def test_weighted_bags():
    torch.manual_seed(0)
    module = nn.EmbeddingBag(10, 5, mode="sum", include_last_offset=True).double()
    ours = ORTModule(copy.deepcopy(module), fallback=None)
    ids, offsets = BAGS["ends"]
    check(module, ours, ids, offsets, torch.randn(6, dtype=torch.float64))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


# of a matrix whose rows change in number
OF_EXTENTS = {
    "product": lambda x: x * (x.shape[0] * 0.1),
    "root": lambda x: x / math.sqrt(x.shape[0]),
    "reciprocal": lambda x: x * (1 / x.shape[0]),
    "logarithm": lambda x: x * math.log(x.shape[0] + 1),
    "full": lambda x: x[0] * torch.full((4,), x.shape[0] * 0.1, dtype=x.dtype),
    "tensor": lambda x: torch.tensor(x.shape[0] * 0.1, dtype=x.dtype) * x,
    "length": lambda x: x[: int(x.shape[0] * 0.29)] * (x.shape[0] * 0.1),
    "result": lambda x: (x * 2, x.shape[0] * 0.1),
}
# of a matrix and a number
OF_NUMBERS = {
    "full": lambda x, v: x[0] * torch.full((4,), v, dtype=x.dtype),
    "full_like": lambda x, v: x * torch.full_like(x, v),
    "new_full": lambda x, v: x * x.new_full((4,), v),
    "fill_": lambda x, v: x * torch.zeros_like(x).fill_(v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
    "clamp": lambda x, v: x.clamp(-v, v),
    "powers": lambda x, v: x.abs() ** v + v**x,
    "alpha": lambda x, v: torch.add(x, x, alpha=v) + x.clone().sub_(x[0], alpha=v),
    "value": lambda x, v: torch.addcmul(x, x, x, value=v) + x.addcdiv(x, x + 1, value=v),
    "slope": lambda x, v: F.leaky_relu(x - 0.5, v),
    "linspace": lambda x, v: torch.linspace(0, v, 4, dtype=x.dtype) * x,
    "remainder": lambda x, v: x % v + x // v,
}


def same_digits(function, calls, dtype):
    ours, bound = ORTModule(Function(function)), 1e-14 if dtype == torch.float64 else 1e-6
    for x, *others in calls:
        expected, made = function(x, *others), ours(x, *others)
        if isinstance(expected, tuple):
            assert made[1] == expected[1]
            expected, made = expected[0], made[0]
        torch.testing.assert_close(made, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", OF_EXTENTS)
def test_floats_of_extents_are_pythons(name, dtype):
    calls = [(torch.rand(rows, 4).to(dtype),) for rows in (7, 10, 100, 29)]
    same_digits(OF_EXTENTS[name], calls, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_numbers_that_change_keep_their_digits(name, dtype):
    calls = [(torch.rand(7, 4).to(dtype), number) for number in (0.7, 0.1, 0.3)]
    same_digits(OF_NUMBERS[name], calls, dtype)
