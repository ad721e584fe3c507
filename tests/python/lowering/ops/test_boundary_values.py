"""Functions at their edges: ties, zeros, ends of domains, tiny numbers. Slopes are PyTorch's."""

import copy

import pytest
import torch
import torch.nn.functional as F
from results_and_gradients import run
from torch import nn

from steep import ORTModule

# of [N, 6] small integers
TIES = {
    "max": lambda x: torch.max(x, 1),
    "min": lambda x: torch.min(x, 1, keepdim=True),
    "median": torch.median,
    "sort": lambda x: torch.sort(x, 1, descending=True),
    "topk": lambda x: [*torch.topk(x, 2, 1), *torch.topk(x, 5, 1, largest=False)],
    "topk of few": lambda x: torch.topk(x.repeat(1, 40), 3, sorted=False),
    "topk of columns": lambda x: torch.topk(x, 3, 0, largest=False, sorted=False),
    "cumprod": lambda x: torch.cumprod(x, 1),
    "cummax": lambda x: torch.cummax(x, 1),
    "cummin": lambda x: torch.cummin(x, 1),
    "clamp": lambda x: torch.clamp(x, -1, 1) + torch.clamp(x, min=torch.zeros(6, dtype=x.dtype)),
    "relu6": lambda x: F.relu6(x * 6) + F.relu6(x),
    "hardtanh": F.hardtanh,
    "sinc": torch.sinc,
    "atan2": lambda x: torch.atan2(x + 0.5, x) + torch.atan2(x[:, :1] + 0.5, x * 2),
    "hypot": lambda x: torch.hypot(x, x.flip(1) * 2 + 1),
    "norms": lambda x: [torch.linalg.norm(x * (x[:, :1] > 0), n, 1) for n in (1, 2, 3, torch.inf)],
    "adaptive max pool": lambda x: [
        F.adaptive_max_pool1d(x[:, None], 1),
        F.adaptive_max_pool2d(x.view(-1, 1, 2, 3), 1),
        F.adaptive_max_pool3d(x.view(-1, 1, 1, 2, 3), 1),
        F.adaptive_max_pool2d(x.view(-1, 1, 2, 3), (1, 3)),
    ],
    "distances of equals": lambda x: torch.cdist(
        x, x.detach() * 1, compute_mode="use_mm_for_euclid_dist"
    ),
    "variance beside a large mean": lambda x: [(x + 1e4).var(1), *torch.var_mean(x + 1e4, 1)],
    "roots of extremes": lambda x: [
        x.clamp(max=0).max().sqrt() + x.clamp(min=0).min().sqrt(),
        (torch.linalg.vector_norm(x, torch.inf, 1) - 2).abs().sqrt(),
    ],
    "norm of zeros": lambda x: (x * 0).norm(3, dim=1) + (x * 0).norm(dim=1),
    "std": lambda x: torch.std(x * (x[:, :1] > 0), 1),
    "std_mean": lambda x: torch.std_mean(x, 1, correction=0),
    "bce": lambda x: F.binary_cross_entropy((x / 2 + 0.5).clamp(0, 1), (x > 0).to(x.dtype)),
    "bce, reduced not": lambda x: F.binary_cross_entropy(
        x / 4 + 0.5, x.detach().sign().abs(), torch.arange(6).to(x.dtype), reduction="none"
    ),
    "scatter mean": lambda x: (x * 2).scatter_reduce(1, (x > 0).long(), x, "mean"),
    "scatter mean of others": lambda x: (x * 2).scatter_reduce(
        1, (x > 0).long(), x, "mean", include_self=False
    ),
    "scatter amax": lambda x: (x * 2).scatter_reduce(1, (x > 0).long(), x, "amax"),
    "scatter amin of others": lambda x: x.scatter_reduce(
        1, (x > 0).long(), x.flip(0), "amin", include_self=False
    ),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([0, 5, 0, 3]), x[0, 1] * 2),
    "index_fill of one": lambda x: (
        x[0, 0].index_fill(0, torch.tensor(0), 3) + x.index_fill(0, torch.tensor(1), 3)
    ),
    "logaddexp": lambda x: torch.logaddexp(x * 100, x.flip(1) * 99 + 0.5),
    "logaddexp2": lambda x: torch.logaddexp2(x * 200, x[:, :1] * 99 + 0.5),
    "remainder": lambda x: [torch.remainder(x + 0.3, 2.5), torch.remainder(x + 0.3, -2.5)],
    "remainder of tensors": lambda x: torch.remainder(x + 0.3, x.flip(1) + 0.7),
    "xlogy": lambda x: torch.xlogy(x, x.roll(1, 1)),
    "entr": torch.special.entr,
    "searchsorted": lambda x: x * torch.searchsorted(x.detach().sort(1)[0], x.detach(), right=True),
    "bucketize": lambda x: x * torch.bucketize(x.detach(), torch.tensor([-1, 0, 1]).to(x.dtype)),
    "log sigmoid": lambda x: F.logsigmoid(x * 50),
    "tiny": lambda x: torch.log1p(x * 1e-9) + torch.expm1(x * 1e-9),
    "log1p": lambda x: torch.log1p(x.clamp(min=0)),
    "expm1": torch.expm1,
}


class Every(nn.Module):
    """Each function, of an argument of its own: one capture for all."""

    def forward(self, *args):
        none = torch.zeros(6, dtype=args[0].dtype)  # rows are of 6, at every capture
        return [f(x + none) for f, x in zip(TIES.values(), args, strict=True)]


@pytest.mark.parametrize(("dtype", "extents"), [(torch.float32, (5, 8)), (torch.float64, (5,))])
def test_functions_at_their_edges(dtype, extents):
    torch.manual_seed(0)
    ours = ORTModule(Every(), fallback=None)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for rows in extents:
        args = torch.randint(-2, 3, (len(TIES), rows, 6)).to(dtype)
        expected, made = run(Every(), args), run(ours, args)
        for name, rights, values in zip(TIES, expected, made, strict=True):
            for right, value in zip(rights, values, strict=True):
                torch.testing.assert_close(
                    value,
                    right,
                    rtol=tolerance,
                    atol=tolerance * float(right.nan_to_num(0, 0, 0).abs().max()),
                    equal_nan=True,
                    msg=lambda m, name=name, right=right, value=value: (
                        f"{name}: {m}{right} {value}"
                    ),
                )


# of x and y, all pairs of numbers that are none, infinite and others
SPECIAL = {
    "clamp": lambda x, y: torch.clamp(x, -1, 1),
    "clamp by NaN": lambda x, y: torch.clamp(x, min=float("nan")),
    "clamp by tensors": lambda x, y: torch.clamp(x, y, y + 1),
    "clamp by a tensor": lambda x, y: [torch.clamp_max(x, y[i]) for i in range(8)],
    "hardtanh": lambda x, y: F.hardtanh(x) + F.relu6(x),
    "maximum": lambda x, y: [torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y)],
    "max": lambda x, y: [*torch.max(y.view(8, 8), 0), *torch.min(x.view(8, 8), 0), y.max()],
    "cummax": lambda x, y: [*torch.cummax(y, 0), *torch.cummin(y.view(8, 8), 0)],
    "median": lambda x, y: [y.median(), y[~y.isnan()].median(), (x == 0).long().median()],
    "sort": lambda x, y: [*torch.sort(y, stable=True), torch.sort(y, descending=True)[0]],
    "searchsorted": lambda x, y: [torch.bucketize(y, torch.arange(-1.0, 1), right=True)],
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "pow": torch.pow,
    "remainder": lambda x, y: [torch.fmod(x, y), torch.remainder(x, y)],
    "log1p": lambda x, y: torch.log1p(y),
    "expm1": lambda x, y: torch.expm1(y),
    "sinc": lambda x, y: torch.sinc(y),
    "soft": lambda x, y: [F.softplus(y), F.logsigmoid(y), F.silu(y)],
    # PyTorch's gelu is NaN at ∞ in whole vectors of AVX-512, and ∞ behind them; NaN at -∞ in both.
    "softer": lambda x, y: [F.gelu(y.clamp(max=9)), F.mish(y)],
    "logsumexp": lambda x, y: torch.logsumexp(y.view(8, 8), 0),
    "logaddexp": lambda x, y: [torch.logaddexp(x, y), torch.logaddexp2(x, y)],
    "softmax": lambda x, y: torch.softmax(y.view(8, 8)[1:7], 0),
    "norms": lambda x, y: [torch.linalg.norm(y.view(8, 8), n, 0) for n in (1, 2, 3, torch.inf)],
    "std": lambda x, y: y.view(8, 8).std(0),
    "xlogy": lambda x, y: [torch.xlogy(x, y), torch.special.xlogy(x, 0.0), torch.xlogy(0, y)],
    "nan_to_num": lambda x, y: torch.nan_to_num(y),
    "sums": lambda x, y: [y.view(8, 8).sum(0), y.view(8, 8).prod(0), y.nansum()],
    "order": lambda x, y: [x < y, x >= y, x == y, x != y, torch.sign(y), torch.heaviside(x, y)],
}


class Special(nn.Module):
    def forward(self, x, y):
        return [f(x, y) for f in SPECIAL.values()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_are_none_and_infinite(dtype):
    numbers = torch.tensor([float("nan"), -torch.inf, -1, -0.0, 0, 1, 2.5, torch.inf], dtype=dtype)
    x, y = (t.reshape(-1) for t in torch.meshgrid(numbers, numbers, indexing="ij"))
    ours = ORTModule(Special(), fallback="parts")
    for name, *found in zip(SPECIAL, Special()(x, y), ours(x, y), strict=True):
        for right, value in zip(*map(torch.utils._pytree.tree_leaves, found), strict=True):
            torch.testing.assert_close(
                value, right, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}"
            )


class Quotients(nn.Module):
    def forward(self, a, b):
        return {
            "floor": torch.div(a, b, rounding_mode="floor"),
            "trunc": torch.div(a, b, rounding_mode="trunc"),
            "//": a // b,
            "// 0.1": a // 0.1,
            "7 //": 7 // b,
            "%": a % b,
            "% 0.3": a % 0.3,
            "fmod": torch.fmod(a, b),
            "fmod 0.3": torch.fmod(a, 0.3),
            "0.3 %": 0.3 % b,
        }


_INF = float("inf")
QUOTIENTS = {
    # of ⌊a / b⌋ the first three are 10, 30 and 0
    **dict.fromkeys(
        (torch.float32, torch.float64, torch.float16, torch.bfloat16),
        (
            (1, 6, -1, -1, 5, -7, 7, -7.5, 0, 3, 5, 1, -1, 0, _INF),
            (0.1, 0.2, _INF, 0.1, _INF, 3, -3, 2.5, 2, -1.5, 0, _INF, -_INF, 0, 2),
        ),
    ),
    # of which float32 has not all digits
    torch.int64: ((2**31 + 1, -(2**31) - 1, 2**40 + 7, 7, -7, 7), (3, 3, 5, 3, 3, -3)),
    torch.int32: ((2**30 + 1, -(2**30) - 1, 2**25 + 7, 7, -7, 7), (3, 3, 5, 3, 3, -3)),
    torch.int8: ((7, -7, 7, -7, 127), (3, 3, -3, -3, 2)),
    torch.uint8: ((7, 255, 8), (3, 2, 8)),
}


@pytest.mark.parametrize("dtype", QUOTIENTS, ids=str)
def test_quotients_are_whole(dtype):
    a, b = (torch.tensor(numbers, dtype=dtype) for numbers in QUOTIENTS[dtype])
    right, found = Quotients()(a, b), ORTModule(Quotients())(a, b)
    for name, value in right.items():
        torch.testing.assert_close(
            found[name], value, equal_nan=True, rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}"
        )


class OfTheLeast(nn.Module):
    def forward(self, a, b):
        return a // b, a // -1, torch.div(a, b, rounding_mode="floor"), a % b, torch.fmod(a, b)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_the_least_integer_by_minus_one(dtype):
    info = torch.iinfo(dtype)
    a = torch.tensor([info.min, info.min + 1, info.max, info.min, 7], dtype=dtype)
    b = torch.tensor([-1, -1, -1, 3, -2], dtype=dtype)
    for found, right in zip(ORTModule(OfTheLeast())(a, b), OfTheLeast()(a, b), strict=True):
        assert found.dtype == right.dtype and torch.equal(found, right)


class Points(nn.Module):
    def forward(self, x):
        of_ten = torch.linspace(-3.3, 10, 2011)
        wide = torch.linspace(0.1, -7, 77, dtype=torch.float64)
        return of_ten, torch.bucketize(of_ten, torch.linspace(-100, 100, 77)), wide * x


def test_points_are_pytorchs_to_the_bit():
    x = torch.ones(1)
    for found, right in zip(ORTModule(Points())(x), Points()(x), strict=True):
        assert torch.equal(found, right)


class Smaller(nn.Module):
    def forward(self, x):
        return [
            F.interpolate(x, scale_factor=s, mode=mode, antialias=True)
            for mode in ("bilinear", "bicubic")
            for s in (0.5, (0.3, 1.7), 2)
        ]


@pytest.mark.parametrize("extent", [7, 8, 10])
def test_a_step_of_an_image_is_the_scales_inverse(extent):
    x = torch.arange(extent**2.0).view(1, 1, extent, extent) ** 1.3
    for found, right in zip(ORTModule(Smaller())(x), Smaller()(x), strict=True):
        torch.testing.assert_close(found, right)


class Places(nn.Module):
    def forward(self, x):
        return torch.nonzero(x), torch.argwhere(x * 2)


@pytest.mark.parametrize("extents", [(0,), (3, 0), (2, 3)])
def test_places_in_nothing(extents):
    x = torch.ones(extents)
    for found, right in zip(ORTModule(Places())(x), Places()(x), strict=True):
        assert found.tolist() == right.tolist() and found.shape == right.shape


@pytest.mark.parametrize(
    "loss",
    [
        lambda y: F.multi_margin_loss(y, torch.arange(y.shape[0])),
        lambda y: F.multilabel_margin_loss(
            y,
            torch.cat(
                [torch.arange(y.shape[0])[:, None], y.new_full((y.shape[0], 5), -1).long()], 1
            ),
        ),
        lambda y: torch.special.erfcx(y.abs() * 30).sum(),
        lambda y: torch.special.log_ndtr(y.abs() * -30).sum(),
    ],
    ids=["multi margin", "multilabel margin", "scaled tail", "logarithm of a tail"],
)
def test_what_the_exporter_says_otherwise_is_pytorchs(loss):
    torch.manual_seed(0)
    net = nn.Linear(6, 6)
    ours = copy.deepcopy(net)

    class Loss(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return loss(self.layer(x))

    x = torch.randn(4, 6)
    Loss(net)(x).backward()
    ORTModule(Loss(ours))(x).backward()
    # PyTorch's own slopes of the tail are right to 2e-4
    torch.testing.assert_close(ours.weight.grad, net.weight.grad, rtol=1e-3, atol=1e-5)
