"""Modules of float16 and bfloat16 under ORTModule, compared with PyTorch's own results."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from steep import ORTModule

LONG = 70_000  # infinite in float16


class Extremes(torch.nn.Module):
    """Counts and squares pass 65,504 on the way; results do not."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(
            [
                torch.nn.InstanceNorm1d(2),
                torch.nn.GroupNorm(1, 2),
                torch.nn.BatchNorm1d(2),
                torch.nn.LayerNorm(35_000),
            ]
        )

    def forward(self, places, a, b, c, d, e, f, g, h, i, j, k, m, *great):
        return (
            a.mean(),
            b.sum() / b.numel(),
            c.nanmean(),
            (d * d).mean(),
            F.mse_loss(e * 40, torch.zeros_like(e)),
            F.kl_div(f.view(-1, 1), torch.full_like(f, 0.5).view(-1, 1), reduction="batchmean"),
            torch.var_mean(g)[0],
            (h * 200).var(),
            i.norm(p=3),
            j.logsumexp(0),
            torch.zeros(4, dtype=k.dtype).scatter_reduce(0, places, k, "mean", include_self=False),
            F.cross_entropy(m.view(-1, 2), places[::2] % 2),
            *(norm(x.view(1, 2, -1) * 400) for norm, x in zip(self.norms, great, strict=True)),
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_extremes_are_those_of_pytorch(dtype):
    """Results, and gradients, each of an argument of its own."""
    torch.manual_seed(0)
    x, noise = torch.randn(LONG).to(dtype), torch.randn(LONG).to(dtype)
    places = torch.randint(0, 4, (LONG,))
    net = Extremes().to(dtype)
    results, gradients = [], []
    for module in (net, ORTModule(copy.deepcopy(net))):
        arguments = [x.clone().requires_grad_() for _ in range(16)]
        made = module(places, *arguments)
        # so great that a hundred thousandth is a number, where there is one result
        seeds = [noise.view_as(y) if y.dim() > 2 else torch.full_like(y, 100) for y in made]
        torch.autograd.backward(made, seeds)
        results.append(made)
        gradients.append([a.grad for a in arguments])
    share = 2**-8 if dtype == torch.float16 else 2**-5
    for theirs, ours in zip(
        results[0] + tuple(gradients[0]), results[1] + tuple(gradients[1]), strict=True
    ):
        assert ours.dtype == theirs.dtype
        size = theirs.float().abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=share, atol=share * size)


class Numbers(torch.nn.Module):
    """Sums, powers and remainders round a number to the tensor's type; products do not."""

    def forward(self, x):
        return {
            "sum": x + 1.7,
            "difference": 1.7 - x,
            "scaled sum": torch.add(x, x.flip(0), alpha=1.7),
            "sum with a tensor of no dimension": x + torch.tensor(1.7),
            "product": x * 1.7,
            "quotient": x / 1.7,
            "of a number": 1.7 / x,
            "power": (x / 100) ** 1.7,
            "of a power": 1.7 ** (x / 100),
            "remainder": x % 1.7,
            "fmod": torch.fmod(x, 0.1),
            "power of no dimension": (x / 100) ** torch.tensor(1.7),
            "of a power of no dimension": torch.tensor(1.7) ** (x / 100),
            "lerp": torch.lerp(x, x.flip(0), 0.3),
            "lerp by a tensor": torch.lerp(x, x.flip(0), x.roll(1)),
            "addcmul": torch.addcmul(x, x, x.flip(0), value=1.7),
            "addcmul of one": torch.addcmul(x, x, x.flip(0)),
            "addcdiv": torch.addcdiv(x, x.roll(1), x.flip(0), value=1.7),
            "addcdiv of one": torch.addcdiv(x, x.roll(1), x.flip(0)),
            "addcdiv_": (x * 1).addcdiv_(x.roll(1), x.flip(0), value=1.7),
            "margin": F.margin_ranking_loss(
                x, x.flip(0), torch.ones_like(x), margin=1.7, reduction="none"
            ),
        }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_numbers_beside_tensors_are_rounded_as_in_pytorch(dtype):
    torch.manual_seed(0)
    x = (torch.randn(4000) * 100).abs().to(dtype) + 1
    right, found = Numbers()(x), ORTModule(Numbers())(x)
    assert [name for name, y in right.items() if not torch.equal(y, found[name])] == []


class Curves(torch.nn.Module):
    """Functions that ONNX spells out in steps, or whose slopes are differences."""

    def forward(self, *xs):
        functions = (
            lambda x: F.softplus(x, 0.7),
            lambda x: F.softplus(x, 3.0, 2.0),
            F.elu,
            lambda x: F.elu(x, 1.3),
            F.celu,
            lambda x: F.celu(x, 0.7),
            F.selu,
            F.silu,
            F.gelu,
            lambda x: F.gelu(x, approximate="tanh"),
            lambda x: F.softshrink(x, 0.3),
            lambda x: F.hardshrink(x, 0.3),
            torch.deg2rad,
        )
        return [f(x) for f, x in zip(functions, xs, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_curves_are_rounded_once(dtype):
    """Results and gradients; of one in ten the last digit may differ, where float32's does."""
    torch.manual_seed(0)
    values = [(torch.randn(4000) * 3).to(dtype) for _ in range(13)]
    found = []
    for module in (Curves(), ORTModule(Curves(), fallback=None)):
        xs = [x.clone().requires_grad_() for x in values]
        made = module(*xs)
        torch.autograd.backward(made, [x.flip(0) for x in values])
        found.append([*made, *(x.grad for x in xs)])
    unit = torch.finfo(dtype).eps
    for right, value in zip(*found, strict=True):
        assert (right != value).float().mean() < 0.1
        torch.testing.assert_close(value, right, rtol=2 * unit, atol=1e-5)


# of [rows, 8] numbers from -8 to 8, some of them small
NEAR = {
    "sinc": torch.sinc,
    "softsign": F.softsign,
    "asinh": torch.asinh,
    "acosh": lambda x: torch.acosh(x.abs() + 1.5),
    "atanh": lambda x: torch.atanh(x / 9),
    "norm of order 3": lambda x: x.norm(3, 1),
    "norm of order 1.5": lambda x: x.norm(1.5, 1),
    "std": lambda x: x.std(1),
    "var": lambda x: x.var(1),
    "soft margin": lambda x: F.soft_margin_loss(x, x.detach().sign(), reduction="none"),
    "third root": lambda x: x.abs() ** (1 / 3),
    "power of 2.5": lambda x: x.abs() ** 2.5,
    "rsqrt": lambda x: x.abs().rsqrt(),
    "logit": lambda x: torch.logit(x.abs() / 40 + 0.03125),
    "cumprod": lambda x: x.cumprod(1),
    "erfc": torch.erfc,
    "asin": lambda x: torch.asin(x / 9),
    "logsumexp": lambda x: x.logsumexp(1),
    "hypot": lambda x: torch.hypot(x, x.detach().flip(1)),
}


class EachOf(torch.nn.Module):
    def forward(self, *xs):
        return [f(x) for f, x in zip(NEAR.values(), xs, strict=True)]


def slopes_of_each(net, x):
    given = [x.clone().requires_grad_() for _ in NEAR]
    results = net(*given)
    torch.autograd.backward(results, [torch.full_like(y, 0.75) for y in results])
    return [g.grad for g in given]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_slopes_are_as_near_to_the_exact_ones_as_pytorchs(dtype):
    torch.manual_seed(0)
    x = torch.cat([torch.randn(20, 8) * 3, torch.randn(8, 8) * 0.125]).clamp(-8, 8).to(dtype)
    x[x.abs() < 0.01] = 0.5
    exact = slopes_of_each(EachOf(), x.double())
    pytorch = slopes_of_each(EachOf(), x)
    found = slopes_of_each(ORTModule(EachOf(), fallback=None), x)
    info = torch.finfo(dtype)
    for name, right, theirs, ours in zip(NEAR, exact, pytorch, found, strict=True):
        unit = info.eps * right.abs().clamp(min=0.01)
        errors = [(((y.double() - right) / unit) ** 2).mean().sqrt() for y in (ours, theirs)]
        assert errors[0] <= errors[1] * 1.05 + 0.02, (name, errors)
