"""Booleans and small integers: every function of them is PyTorch's, by value and dtype."""

import math

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from steep import ORTModule  # noqa: E402

# of two matrices [N, 6], and an index [N, 6] into columns
FUNCTIONS = {
    "add": lambda x, y, i: x + y,
    "add a number": lambda x, y, i: x + 1,
    "add, scaled": lambda x, y, i: torch.add(x, y, alpha=3),
    "sub": lambda x, y, i: x - y,
    "mul": lambda x, y, i: x * y,
    "floor_divide": lambda x, y, i: x // (y + 1),
    "truncated": lambda x, y, i: torch.div(x, y + 1, rounding_mode="trunc"),
    "divide": lambda x, y, i: x / 3,
    "remainder": lambda x, y, i: x % 3,
    "fmod": lambda x, y, i: torch.fmod(x, 3),
    "pow": lambda x, y, i: x**2,
    "pow by a tensor": lambda x, y, i: x ** y.abs().clamp(max=3),
    "pow of a number": lambda x, y, i: 2 ** y.abs().clamp(max=3),
    "negative powers": lambda x, y, i: [
        (x % 3 - 1) ** (y % 5 - 2),
        (x % 3 - 1) ** (i - 2),
        0 ** (y % 5 - 2),
        (-1) ** (i - 2),
    ],
    "neg": lambda x, y, i: -x,
    "abs": lambda x, y, i: x.abs(),
    "sign": lambda x, y, i: x.sign(),
    "square": lambda x, y, i: x.square(),
    "and": lambda x, y, i: x & y,
    "not": lambda x, y, i: ~x,
    "logical": lambda x, y, i: [x.logical_not(), torch.logical_xor(x, y)],
    "shift": lambda x, y, i: [x << 1, x >> 1],
    "maximum": lambda x, y, i: [torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y)],
    "order": lambda x, y, i: [x < y, x >= y, x == y, x != 1, x > 0.5],
    "clamp": lambda x, y, i: x.clamp(0, 1),
    "relu": lambda x, y, i: F.relu(x),
    "sum": lambda x, y, i: [x.sum(), x.sum(1), x.sum(0, dtype=x.dtype)],
    "prod": lambda x, y, i: [x.prod(1), x.prod()],
    "mean": lambda x, y, i: x.mean(1, dtype=torch.float32),
    "amax": lambda x, y, i: [x.amax(1), x.amin(0), x.max(), x.min()],
    "max with places": lambda x, y, i: x.max(1).values,
    "argmax": lambda x, y, i: [x.amax(1), x.float().argmax(1)],
    "any": lambda x, y, i: [x.any(1), x.all()],
    "cumsum": lambda x, y, i: [x.cumsum(1), x.cumprod(1)],
    "cumprod in its dtype": lambda x, y, i: x.cumprod(1, dtype=x.dtype),
    "cummax": lambda x, y, i: x.cummax(1).values,
    "sort": lambda x, y, i: [*torch.sort(x, dim=1, stable=True)],
    "topk": lambda x, y, i: [*torch.topk(x, 3, 1)],
    "matmul": lambda x, y, i: x @ y.t(),
    "einsum": lambda x, y, i: torch.einsum("ij,kj->ik", x, y),
    "where": lambda x, y, i: torch.where(x > y, x, y),
    "masked_fill": lambda x, y, i: x.masked_fill(y > 0, 1),
    "gather": lambda x, y, i: x.gather(1, i),
    "scatter": lambda x, y, i: x.scatter(1, i, y),
    "scatter_add": lambda x, y, i: x.scatter_add(1, i, y),
    "scatter_reduce": lambda x, y, i: [
        x.scatter_reduce(1, i, y, how) for how in ("sum", "prod", "amax", "amin")
    ],
    "index_add": lambda x, y, i: x.index_add(0, i[:, 0] % 5, y),
    "triu": lambda x, y, i: [x.triu(), x.tril(1)],
    "moved": lambda x, y, i: [x.roll(1, 1), x.flip(0), x.repeat(2, 1), x.t(), x[:, ::2]],
    "joined": lambda x, y, i: [torch.cat([x, y]), torch.stack([x, y]), F.pad(x, (1, 1))],
    "diff": lambda x, y, i: x.diff(dim=1),
    "one_hot": lambda x, y, i: F.one_hot(i, 6),
    "count_nonzero": lambda x, y, i: x.count_nonzero(1),
    "unary in float": lambda x, y, i: [x.exp(), x.sigmoid(), x.sqrt().nan_to_num()],
    "with floats": lambda x, y, i: [x * 0.5, x + torch.ones(6), x == 1.0],
    "bucketize": lambda x, y, i: torch.bucketize(x, torch.arange(3).to(x.dtype)),
    "isin": lambda x, y, i: torch.isin(x, torch.tensor([1, 2]).to(x.dtype)),
}
DTYPES = [torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def arguments(dtype, rows):
    draw = torch.Generator().manual_seed(rows)
    low = 0 if dtype in (torch.bool, torch.uint8) else -9
    high = 2 if dtype == torch.bool else 120
    x, y = (torch.randint(low, high, (rows, 6), generator=draw).to(dtype) for _ in range(2))
    return x, y, torch.randint(0, 6, (rows, 6), generator=draw)


class Every(torch.nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, x, y, i):
        return [f(x, y, i) for f in self.functions]


def runs(function, given):
    if function is FUNCTIONS["shift"] and given[0].dtype == torch.bool:
        return False  # PyTorch's tracer raises where PyTorch does not
    try:
        function(*given)
    except (RuntimeError, NotImplementedError):
        return False
    return True


MORE = {torch.int16, torch.int32}  # as int8 and int64


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(d, marks=pytest.mark.matrix if d in MORE else ()) for d in DTYPES],
    ids=str,
)
def test_functions_of_integers(dtype):
    known = {n: f for n, f in FUNCTIONS.items() if runs(f, arguments(dtype, 5))}
    assert len(known) > 30
    every = Every(list(known.values()))
    ours = ORTModule(every)
    for rows in (5, 8):
        given = arguments(dtype, rows)
        for name, right, made in zip(known, every(*given), ours(*given), strict=True):
            torch.testing.assert_close(
                *(torch.utils._pytree.tree_leaves(v) for v in (made, right)),
                rtol=1e-6,
                atol=1e-6,
                msg=lambda m, name=name: f"{name}: {m}",
            )
    left = [o for g in ours.report().graphs for o in g.in_torch]
    assert ours.report().graphs and not left, left


NOT_HELD = (
    *(math.nan, -math.inf, math.inf, -1e30, 1e30, -1.5, -0.5, -200.0, 255.0, 256.0, 300.0, -129.0),
    *(40000.0, 70000.0, -(2.0**31), 2.0**31, -2147483904.0, 3e9, 2.0**63, -1e19),
)


class Cast(torch.nn.Module):
    def forward(self, x):
        written = torch.ones(len(x), dtype=torch.int16)
        written[1:] = x[1:]
        return [*(x.to(kind) * 1 for kind in DTYPES), x.long(), x.type(torch.int32), written]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_numbers_that_an_integer_does_not_hold_are_pytorchs(dtype):
    x = torch.tensor(NOT_HELD, dtype=torch.float64).to(dtype)
    for given in (x, x[:3], x.repeat(5)[:97]):
        ours = ORTModule(Cast(), fallback=None)
        torch.testing.assert_close(ours(given), Cast()(given), rtol=0, atol=0)


class Windows(torch.nn.Module):
    """Convolutions, pools and interpolations [1, 2, 4, 4] of whole numbers, beside a product."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        results = [F.max_pool2d(x, 2), F.conv2d(x, x.reshape(2, 2, 2, 4)), x.float() @ self.weight]
        if x.dtype == torch.uint8:
            kinds = ("nearest", "bilinear", "bicubic")
            results += [F.interpolate(x, scale_factor=2, mode=mode) for mode in kinds]
        return results


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_windows_of_integers_are_pytorchs(dtype):
    draw = torch.Generator().manual_seed(1)
    ours = ORTModule(Windows())
    for _ in range(2):
        x = torch.randint(0, 120, (1, 2, 4, 4), generator=draw).to(dtype)
        torch.testing.assert_close(ours(x), Windows()(x), rtol=0, atol=0)
    assert ours.report().graphs  # the product runs in the engine
