"""Functions at the ends of each floating-point type: near its largest and its least numbers."""

import math

import pytest
import torch
import torch.nn.functional as F

from steep import ORTModule

FUNCTIONS = {
    "gelu": lambda x: F.gelu(x / 8),  # 2x is infinite in PyTorch's vectors of AVX-512
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mish": F.mish,
    "silu": F.silu,
    "elu": F.elu,
    "elu, alpha": lambda x: F.elu(x, 2.0),
    "celu": F.celu,
    "celu, alpha": lambda x: F.celu(x, 2.0),
    "selu": F.selu,
    "softplus": F.softplus,
    "hardswish": lambda x: F.hardswish(x / 8),  # 6x is infinite in some of PyTorch's vectors
    "hardsigmoid": F.hardsigmoid,
    "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sinc": torch.sinc,
    "entr": torch.special.entr,
    "powers": lambda x: [x**e for e in (0.5, -0.5, 1.5, 2, 3, -1)],
    "powers by tensors": lambda x: [torch.pow(x, torch.full_like(x, e)) for e in (0, 0.5, 2)],
    "atan2": lambda x: torch.atan2(x, x.detach().flip(0)),
    "hypot": lambda x: torch.hypot(x, torch.full_like(x, 1e-3)),
    "logaddexp": lambda x: torch.logaddexp(x, x.detach() / 2),
    "nan_to_num": torch.nan_to_num,
    "asked": lambda x: [torch.where(a, x, 7) for a in (x.isinf(), x.isposinf(), x.isneginf())],
}
# Whose slopes PyTorch computes in steps of 16 bits, which overflow or cancel, and Steep does not.
FLOAT32_ALONE = {"sinc", "atan2", "hypot", "softsign"}


def numbers(dtype):
    """Of both signs, from half of the largest to the least that is not 0."""
    info = torch.finfo(dtype)
    sizes = [info.max * s for s in (1, 0.75, 0.5, 0.25)]
    sizes += [1e100, 1e39, 1e20, 1e4, 100.0, 40.0, 20.0, 10.0, 3.0, 0.5, 1e-3]
    sizes += [info.tiny * s for s in (2, 1, 0.5)] + [info.smallest_normal * info.eps]
    sizes = [s for s in sizes if s <= info.max]
    return torch.tensor([math.copysign(s, t) for s in sizes for t in (1, -1)], dtype=dtype)


class Each(torch.nn.Module):
    """The functions, each of an argument of its own: one capture for all."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *arguments):
        return [f(x) for f, x in zip(self.functions, arguments, strict=True)]


def outcome(net, names, x):
    """Return, by function, its results and the gradient of its argument."""
    given = [x.clone().requires_grad_() for _ in names]
    made = [y if isinstance(y, list) else [y] for y in net(*given)]
    results = [y for some in made for y in some]
    torch.autograd.backward(results, [torch.full_like(y, 0.75) for y in results])
    return {n: [*ys, g.grad] for n, ys, g in zip(names, made, given, strict=True)}


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_numbers_at_the_ends_of_a_type(dtype):
    narrow = dtype in (torch.float16, torch.bfloat16)
    names = [n for n in FUNCTIONS if not narrow or n not in FLOAT32_ALONE]
    functions = [FUNCTIONS[n] for n in names]
    x, info = numbers(dtype), torch.finfo(dtype)
    expected = outcome(Each(functions), names, x)
    found = outcome(ORTModule(Each(functions), fallback=None), names, x)
    # PyTorch has 1/6 in float32
    share = {torch.float64: 1e-7, torch.float32: 1e-4}.get(dtype, 2 * info.eps)
    for name in names:
        for right, value in zip(expected[name], found[name], strict=True):
            torch.testing.assert_close(
                value.double(),
                right.double(),
                rtol=share,
                atol=share * 0.01 if narrow or dtype == torch.float32 else 1e-15,
                equal_nan=True,
                msg=lambda m, n=name, r=right, v=value: f"{n}: {m}\n{x}\n{r}\n{v}",
            )


def test_deviations_of_numbers_whose_squares_do_not_fit():
    rows = [[1e19, 2e19, -1e19, 3e18], [1e30, 2e30, 3e30, -1e30], [1e-30, 3e-30, 2e-30, 0]]
    functions = [lambda x: x.std(1), lambda x: torch.std_mean(x, 1, correction=0)[0]]
    x = torch.tensor(rows)
    expected = outcome(Each(functions), (0, 1), x.double())
    found = outcome(ORTModule(Each(functions), fallback=None), (0, 1), x)
    for name, rights in expected.items():
        for value, right in zip(found[name], rights, strict=True):
            torch.testing.assert_close(value.double(), right, rtol=1e-5, atol=0)


def test_norms_of_layers_whose_squares_do_not_fit():
    """They are float64's. PyTorch's are the bias alone, or NaN, by the size."""
    sizes = torch.tensor([1.0, 3e19, 1e25, 1e38]).view(4, 1)
    x = torch.randn(4, 21, generator=torch.Generator().manual_seed(0)).clamp(-1.5, 1.5) * sizes
    functions = [lambda x: F.layer_norm(x, (21,)) * torch.arange(21).to(x.dtype)]
    expected = outcome(Each(functions), (0,), x.double())[0]
    found = outcome(ORTModule(Each(functions), fallback=None), (0,), x)[0]
    for value, right, scale in zip(found, expected, (1, sizes), strict=True):
        torch.testing.assert_close(value.double() * scale, right * scale, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_the_tail_of_erfc(dtype):
    """It is to be right beside the result, however small that is; the slopes likewise."""
    info = torch.finfo(dtype)
    x = torch.linspace(-4, 9 if dtype.itemsize > 2 else 3, 200).to(dtype)
    expected = outcome(Each([torch.erfc]), ["erfc"], x.double())["erfc"]
    found = outcome(ORTModule(Each([torch.erfc]), fallback=None), ["erfc"], x)["erfc"]
    for value, right in zip(found, expected, strict=True):
        near = right.abs() > info.tiny
        torch.testing.assert_close(
            value.double()[near], right[near], rtol=max(4 * info.eps, 1e-13), atol=0
        )
