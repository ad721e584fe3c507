"""Operators where people lean on their details: a table of patterns (patterns.py)."""

import math

import torch
import torch.nn.functional as F
from capture_patterns import WIDTH, Fn, rows, sequences
from patterns import Pattern

INTS = torch.tensor([[-7, -3, -1, 0, 2, 5], [7, 3, 1, -2, -5, 4]])
EDGES = torch.tensor([[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], [-0.0, 0.0, 0.49, -0.51, 3.0, -3.0]])


def of(function, calls=None):
    """Return a pattern of a function of the layer's result and of its argument."""
    return Pattern(lambda: Fn(lambda m, x: function(m.layer(x), x)), calls or rows(3, 5))


def also(function, *calls):
    """Return a pattern of a function of the layer's result, and of other arguments."""
    return Pattern(lambda: Fn(lambda m, x, *others: function(m.layer(x), *others)), calls)


def chunks_written(y, x):
    z = x.detach() * 1
    a, b = z.chunk(2, 1)
    a.mul_(2)
    b += a
    return a, b, z * y


def split_written(y, x):
    z = x.detach() * 1
    for i, part in enumerate(z.split([1, 2, 3], 1)):
        part.add_(i)
    return z * y


def unbind_written(y, x):
    z = x.detach().clone()
    for i, column in enumerate(z.unbind(1)):
        column.mul_(i)
    return z * y


def select_written(y, x):
    z = y.clone()
    z.select(1, 2).copy_(x[:, 0])
    z.narrow(1, 3, 2).zero_()
    z.t()[0].neg_()
    z[..., -1] = 3
    return z


def mask_written(y, x):
    z = y.clone()
    z[x > 0] = 0.5
    z[0, [1, 3]] += 2
    z[:, ::2] *= x[:, 1::2]
    return z


def read_before_written(y, x):
    z = y * 1
    before = z[:, :2] * 3
    view = z[:, :2]
    z.add_(1)
    return before, view * 2, z


def written_after_use(y, x):
    z = y.clone()
    a = z.exp().sum()
    z.zero_()
    return a + z.sum()


def outs(y, x):
    x = x.detach()
    out = torch.empty(x.shape)
    torch.add(x, 1, out=out)
    torch.mul(out, 2, out=out)
    part = torch.zeros(x.shape[0], WIDTH)
    torch.sum(x, 0, out=part[0])
    return y * out, part


def foreach(y, x):
    a, b = torch._foreach_mul([y, x], 2.0)
    torch._foreach_add_([a, b], [x, x])
    return a, b


def loops_of_cat(y, x):
    all_of = y.new_zeros(0, WIDTH)
    for row in y[:2]:
        all_of = torch.cat([all_of, row[None]])
    return all_of


PATTERNS = {
    # written
    "chunks written": of(chunks_written),
    "split written": of(split_written),
    "unbind written": of(unbind_written),
    "select written": of(select_written),
    "mask written": of(mask_written),
    "read before written": of(read_before_written),
    "written after use": of(written_after_use),
    "out": of(outs),
    "foreach": of(foreach),
    "cat in a loop": of(loops_of_cat),
    "index_add": of(lambda y, x: y.index_add(1, torch.tensor([1, 1, 4]), x[:, :3], alpha=-2)),
    "index_copy": of(lambda y, x: y.index_copy(0, torch.tensor([1, 0]), x[:2])),
    "index_fill": of(lambda y, x: y.index_fill(1, torch.tensor([-1, 2]), 7.0)),
    "index_reduce": of(lambda y, x: y.index_reduce(1, torch.tensor([0, 0, 2]), x[:, :3], "amax")),
    "scatter_reduce": of(
        lambda y, x: [
            y.scatter_reduce(1, torch.zeros(x.shape, dtype=torch.int64), x, how, include_self=own)
            for how in ("sum", "mean", "amax", "amin")
            for own in (True, False)
        ]
    ),
    "put_": of(lambda y, x: y.clone().put_(torch.tensor([0, 7, -1]), torch.ones(3))),
    "put_ that adds": of(
        lambda y, x: y.clone().put_(torch.tensor([0, 0, -1]), y.flatten()[:3], accumulate=True)
    ),
    "index_put that adds": of(
        lambda y, x: y.clone().index_put_(
            (torch.tensor([0, 0, 1]), torch.tensor([-1, 5, 2])), y[0, :3], accumulate=True
        )
    ),
    "masked_scatter": of(lambda y, x: y.masked_scatter(x > 0, x * 10)),
    "take": of(lambda y, x: (y.take(torch.tensor([0, -1, 7])), y.take_along_dim(x.argsort(1), 1))),
    "slice scatter": of(
        lambda y, x: (y.slice_scatter(x[:, :2], 1, 1, 5, 2), y.select_scatter(x[0], 0, -1))
    ),
    # order and sums
    "cumsum": of(lambda y, x: (y.cumsum(1), y.flip(1).cumsum(1).flip(1), y.cumprod(1))),
    "logcumsumexp": of(lambda y, x: (y * 30).logcumsumexp(1) / 30),
    "logsumexp": of(lambda y, x: (y.logsumexp((0, 1)), (y * math.inf).logsumexp(1))),
    "cummax": of(lambda y, x: y.cummax(1)),
    "min and max": of(lambda y, x: (y.min(1), y.max(), y.aminmax(dim=1), y.amax((0, 1)))),
    "ties": of(
        lambda y, x: (F.relu(y).amax(1), F.relu(y).max(), torch.maximum(y, y), torch.fmin(y, y))
    ),
    "median and mode": of(lambda y, x: (y.median(1), y.kthvalue(2, 1), y.nanmedian())),
    "quantile": of(lambda y, x: torch.quantile(y, torch.tensor([0.0, 0.3, 1.0]), 1)),
    "sort is stable": of(
        lambda y, x: torch.sort((y * 2).round(), stable=True, dim=1, descending=True)
    ),
    "topk smallest": of(lambda y, x: y.topk(3, 1, largest=False, sorted=True)),
    "prod": of(lambda y, x: (y.prod(1), F.relu(y).prod(1), y.prod())),
    "var": of(lambda y, x: (y.var(1, correction=0), y.std(), y.var(correction=2), y[:1].var(0))),
    "norms": of(
        lambda y, x: (y.norm(), y.norm(1, 1), y.norm(math.inf, 0), y.norm(3), y.renorm(2, 0, 0.5))
    ),
    "nansum": of(
        lambda y, x: ((y / x.relu()).nansum(1), (y.log()).nanmean(), y.log().nan_to_num())
    ),
    "count_nonzero": of(lambda y, x: (y, (x > 0).count_nonzero(1), x.round().count_nonzero())),
    "trapezoid": of(lambda y, x: (torch.trapezoid(y, dx=0.5), y.diff(dim=1), y.diff(n=2, dim=0))),
    # moved
    "roll": of(lambda y, x: (y.roll(2), y.roll((1, -2), (0, 1)), y.rot90(), y.rot90(-1, (1, 0)))),
    "repeat": of(
        lambda y, x: (
            y.repeat_interleave(2, 1),
            y.repeat(2, 1, 3),
            y.tile(2),
            y.repeat_interleave(torch.tensor([0, 2, 1, 1, 0, 3]), 1),
        )
    ),
    "movedim": of(lambda y, x: (y[None].movedim(0, -1), y.swapaxes(0, 1), y.unflatten(1, (2, -1)))),
    "stacks": of(
        lambda y, x: (
            torch.hstack([y, x]),
            torch.vstack([y, x]),
            torch.vstack([y[0], x]),
            torch.dstack([y, x]),
            torch.hstack([y[0, 0], x[0]]),
            torch.atleast_3d(y[0]),
        )
    ),
    "triangles": of(
        lambda y, x: (y.triu(1), y.tril(-1), y @ torch.tril_indices(6, 6)[0, :6].float())
    ),
    "meshgrid": of(lambda y, x: torch.meshgrid(y[0], y[:, 0], indexing="ij")),
    "tensor_split": of(lambda y, x: (*y.tensor_split(4, 1), *y.hsplit([1, 4]))),
    "broadcast": of(lambda y, x: torch.broadcast_tensors(y[:, :1], y[:1])),
    "bucketize": of(lambda y, x: (y, torch.bucketize(x, torch.linspace(-1, 1, 5), right=True))),
    "one_hot": of(lambda y, x: y * F.one_hot(x.argmax(1), WIDTH)),
    "no rows at all": of(
        lambda y, x: (
            *(y, y.sum(0), y.prod(0), torch.cat([y, x]), y.softmax(1), (y > 0).all(0)),
            *((y > 0).any(), (y > 0).any(0), (y > 0).any((0, 1)), x.any(1, keepdim=True)),
            *((y > 0).any(()), (x > 9).any(), y[x > 9].any(), y[0:1].sum().any()),
        ),
        rows(2, 0, 3),
    ),
    "no columns": of(
        lambda y, x: (y[:, :0].sum(1), y[:, 6:] @ x[:, :0].t(), y[:, :0].logsumexp(1))
    ),
    "no dimensions": Pattern(
        lambda: Fn(lambda m, x, s: (m.layer(x) * s, s.sum(), s.view(1), s.exp(), s.softmax(0))),
        [(torch.randn(n, WIDTH), torch.tensor(0.3 * n)) for n in (2, 3)],
    ),
    # numbers
    "stacks of mixed types": of(
        lambda y, x: (
            torch.cat([y, (x > 0), x.argsort(1)], 1),
            torch.stack([x > 0, x.round().int()]),
            torch.cat([y, x.double()]),
        )
    ),
    "integers clamped": also(
        lambda y, i: (
            [
                y * c.sum()
                for n in (i, i.int(), i.abs().to(torch.uint8))
                for c in (
                    *(n.clamp(1.5, 3.5), n.clamp(min=1.5), n.clamp(max=2.5), n.clamp(0, 2.5)),
                    *(n.clamp(1.5, 3), n.clamp(True, 3), n.clip(0.5), n.clamp(1, math.inf)),
                    *(n.clamp_min(0.5), n.clamp_max(1.5), n.clamp(2), n.bool().clamp(0.5, 1)),
                )
            ]
            + [i.clamp(-1.5, 2.5), i.clamp(max=2.5), i.int().clamp(True, 3), y.clamp(0, 0.5)]
        ),
        (torch.randn(2, WIDTH), INTS),
        (torch.randn(2, WIDTH), INTS.flip(0)),
    ),
    "slopes that are not drawn": of(
        lambda y, x: (
            *(F.rrelu(y), F.rrelu(y, 0.1, 0.5), F.rrelu(y * 1, inplace=True)),
            *(torch.rrelu(y, 0.2, 0.3, False), torch.rrelu_(y * 1, 0.2, 0.3, False)),
            *(F.alpha_dropout(y, 0.3, False), F.alpha_dropout(y, 0.0)),
            *(F.feature_alpha_dropout(y, 0.3, False), torch.feature_dropout(y, 0.3, False)),
            F.dropout2d(y.view(-1, 2, 3, 1), 0.0, True),
        )
    ),
    "promotion": Pattern(
        lambda: Fn(
            lambda m, x, i: (
                m.layer(x) * i,
                i + 1.5,
                i / 2,
                i * True,
                (x > 0) + 1,
                (x > 0) * 2.5,
                i.to(torch.uint8) + i.to(torch.int8),
                torch.tensor(2.5) + i,
                x.half() + torch.tensor(1.5, dtype=torch.float64),
                (i > 0) + (i < 3),
                i.sum(dtype=torch.int32),
                (x > 0).sum(),
                i.float().double() + x,
            )
        ),
        [(torch.randn(2, WIDTH), INTS), (torch.randn(2, WIDTH), INTS.flip(0))],
    ),
    "division of integers": Pattern(
        lambda: Fn(
            lambda m, x, i, n: (
                m.layer(x),
                i // 3,
                i // -3,
                i % 3,
                i % -3,
                i.fmod(-3),
                torch.div(i, n, rounding_mode="floor"),
                torch.div(i, n, rounding_mode="trunc"),
                i / n,
                i.remainder(n),
                i % n,
                7 // n,
                7 % n,
                torch.gcd(i, n),
            )
        ),
        [
            (torch.randn(2, WIDTH), INTS, n)
            for n in (torch.tensor([2, -2, 3, -3, 1, 4]), INTS.neg().clamp(min=1))
        ],
    ),
    "division of floats": also(
        lambda y, e: (
            y.detach() // 0.7,
            y % 0.7,
            y % -0.7,
            y.fmod(0.7),
            torch.div(y, -0.3, rounding_mode="trunc"),
            torch.div(y, e, rounding_mode="floor"),
            e.remainder(1.5),
            e / 0,
            e.detach() // 1,
            y.true_divide(3),
        ),
        (torch.randn(2, WIDTH), EDGES),
    ),
    "rounding": also(
        lambda y, e: (
            y,
            e.round(),
            e.round(decimals=1),
            e.floor(),
            e.ceil(),
            e.trunc(),
            e.frac(),
            e.int(),
            e.long(),
            e.bool(),
            e.sign(),
            e.sgn(),
            e.signbit(),
            torch.copysign(torch.ones(WIDTH), e),
        ),
        (torch.randn(2, WIDTH), EDGES),
        (torch.randn(2, WIDTH), EDGES * 1e8),
    ),
    "bits": also(
        lambda y, i: (y, i & 6, i | 1, i ^ 5, ~i, i << 2, i >> 1, (i > 0) & (i < 4), ~(i > 0)),
        (torch.randn(2, WIDTH), INTS),
        (torch.randn(2, WIDTH), INTS.flip(0)),
    ),
    "powers": also(
        lambda y, i: (
            y**2,
            y**3,
            2**y,
            i**2,
            y.abs() ** 0.5,
            y.pow(i.abs() % 3),  # more, and training would not stay finite
            (-2) ** i.abs(),
            y**0,
            (y * 0) ** 2,
        ),
        (torch.randn(2, WIDTH), INTS),
    ),
    "where and numbers": of(
        lambda y, x: (
            torch.where(x > 0, y, 0),
            torch.where(x > 0, 1, 2),
            torch.where(x > 0, 1.5, 2),
            torch.where(x > 0, x.argsort(1), y),
            y.where(x > 0, torch.tensor(3, dtype=torch.float64)),
        )
    ),
    "where of nan": of(lambda y, x: torch.where(y > 0, y.clamp(min=1e-3).log(), torch.zeros(()))),
    "nan and infinity": also(
        lambda y, e: (
            y * e,
            e.isnan(),
            e.isfinite(),
            e.nan_to_num(1, 2, 3),
            e.relu(),
            e.max(1),
            e.clamp(-1, 1),
            torch.fmax(y, e),
            torch.maximum(y, e),
            e.argmax(1),
            e == e,
            e.sum(),
            F.softmax(e, 1),
            e.sigmoid(),
            e.tanh(),
        ),
        (torch.randn(1, 6), torch.tensor([[math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0]])),
    ),
    "comparisons": also(
        lambda y, i: (
            y,
            i == 2.0,
            i < 2.5,
            i.eq(i.float()),
            (i > 0) < (i > 1),
            torch.isclose(y, y + 1e-7),
            y.equal(y),
        ),
        (torch.randn(2, WIDTH), INTS),
    ),
    "narrow types": also(
        lambda y, i: (
            y,
            i.to(torch.int8) * 100,
            i.to(torch.uint8),
            (y.abs() * 100).to(torch.uint8),
            i.short() ** 3,
            i.to(torch.int8).sum(),
            y.half(),
            y.bfloat16() + 1,
            y.bfloat16().float(),
            i.to(torch.uint8) - 10,
        ),
        (torch.rand(2, WIDTH), INTS),
    ),
    "lerp": of(
        lambda y, x: (
            torch.lerp(y, x, 0.3),
            torch.lerp(y, x, x.sigmoid()),
            y.addcmul(x, x, value=-2),
            y.addcdiv(x, x.exp()),
        )
    ),
    "special": of(
        lambda y, x: (
            torch.erf(y),
            torch.erfc(y),
            torch.special.erfinv(y.tanh() * 0.9),
            torch.lgamma(y.exp()),
            torch.digamma(y.exp()),
            torch.special.expit(y),
            torch.logit(y.sigmoid(), 1e-3),
            torch.special.i0(y),
            torch.special.entr(y.exp()),
            torch.logaddexp(y, x),
        )
    ),
    # products
    "einsum with an ellipsis": of(
        lambda y, x: (
            torch.einsum("...i,...j->...ij", y, x),
            torch.einsum("bii->b", y[:, :, None] * x[:, None]),
            torch.einsum("bti,i", y, x[0, 0]) if y.dim() == 3 and 0 else y,
        ),
    ),
    "tensordot": of(
        lambda y, x: (
            torch.tensordot(y, x, 1) if x.shape[0] == x.shape[1] else y,
            torch.tensordot(y, x, ([1], [1])),
            torch.tensordot(y, x, 0).sum(),
        )
    ),
    "alpha and beta": of(
        lambda y, x: (
            torch.addmm(x[:, :1], y, x.t(), beta=0.5, alpha=2),
            torch.addmm(torch.full((1,), math.nan), y, x.t(), beta=0),
            torch.addmv(x[:, 0], y, x[0], alpha=-1),
            torch.addr(torch.full((x.shape[0], WIDTH), math.inf), y[:, 0], x[0], beta=0),
            torch.add(y, x, alpha=3),
            torch.rsub(y, x, alpha=2),
        )
    ),
    "baddbmm": of(
        lambda y, x: (
            torch.baddbmm(torch.full((1, 1, 1), math.nan), y, x.mT, beta=0, alpha=0.5),
            torch.baddbmm(x[:, :, :1], y, x.mT, beta=-1),
            torch.addbmm(x[0, :, :1], y, x.mT),
        ),
        sequences(3, 5),
    ),
    "products of vectors": of(
        lambda y, x: (
            y[0] @ x[0],
            y @ x[0],
            y[0] @ x.t(),
            torch.outer(y[0], x[0]),
            torch.linalg.multi_dot([y, x.t(), y]),
            torch.cross(y[:, :3], x[:, 3:], 1),
        )
    ),
    "cdist": of(
        lambda y, x: (torch.cdist(y, x), torch.cdist(y, x, 1), torch.cdist(y, y), F.pdist(y))
    ),
    "inverse": of(
        lambda y, x: (
            torch.linalg.inv(y[:2, :2] + 3 * torch.eye(2)),
            torch.linalg.det(y[:2, :2]),
            torch.linalg.solve(torch.eye(6) * 2 + 0, y.t()),
        )
    ),
    "activations": of(
        lambda y, x: (
            [
                f(y * 4)
                for f in (
                    *(F.gelu, F.silu, F.mish, F.softplus, F.softsign, F.hardswish, F.hardsigmoid),
                    *(
                        F.hardtanh,
                        F.relu6,
                        F.elu,
                        F.selu,
                        F.celu,
                        F.leaky_relu,
                        F.logsigmoid,
                        F.tanhshrink,
                    ),
                    *(F.softshrink, F.hardshrink, F.glu, torch.square, torch.rsqrt, torch.sinc),
                )
            ]
            + [
                F.gelu(y, approximate="tanh"),
                F.softplus(y, 3, 1),
                F.threshold(y, 0.1, 9),
                F.rrelu(y),
            ]
        )
    ),
    "complex": of(lambda y, x: torch.view_as_real(torch.view_as_complex(y.view(-1, 3, 2)) * 1j)),
    "fft": of(lambda y, x: (torch.fft.rfft(y).abs(), torch.fft.irfft(torch.fft.rfft(y), n=6))),
}
