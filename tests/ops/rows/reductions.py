"""Reductions, and positions of extremes."""

import numpy as np
import torch

from .row import apart, exactly, floats, ints, table

ROWS, row = table()

AXES = [
    ((2, 3, 4), None, {}),
    ((2, 3, 4), None, {"keepdims": 0}),
    ((2, 3, 4), [1], {}),
    ((2, 3, 4), [0, -1], {"keepdims": 0}),
    ((2, 3, 4), [-1], {"keepdims": 0}),
    ((2, 3, 4), [], {"noop_with_empty_axes": 1}),
    ((33,), [0], {}),
    ((2, 3, 4, 5), [1, 3], {}),
    ((2, 3, 1, 5), [-2], {"keepdims": 0}),
    ((), None, {"keepdims": 0}),
    ((3, 0), [0], {}),
]


def reduction(op, function, make=floats, **more):
    """`function(x, dim, keepdim)`, with dim a list of axes."""
    for shape, axes, attrs in AXES:

        def run(x, a=None, attrs=attrs):
            if attrs.get("noop_with_empty_axes") and (a is None or len(a) == 0):
                dims = None
            else:
                dims = list(range(x.dim())) if a is None else a.tolist()
            keep = bool(attrs.get("keepdims", 1))
            if dims is None:  # each element by itself
                return function(x[None], [0], False)
            return function(x, dims, keep) if dims else function(x[None], [0], False)

        row(
            op,
            make(*shape),
            *([] if axes is None else [ints(axes)]),
            attrs=attrs,
            torch=run,
            note=str(axes),
            reference=not attrs.get("noop_with_empty_axes"),
            **more,
        )


def product(x, dims, keep):
    for d in sorted((d % x.dim() for d in dims), reverse=True):
        x = x.prod(d, keepdim=keep)
    return x


def nonzero(*shape):
    return floats(*shape, away=(0,))


def positives(*shape):
    return floats(*shape, low=0.2)


reduction("ReduceSum", lambda x, d, k: x.sum(d, k))
reduction("ReduceMean", lambda x, d, k: x.mean(d, k))
reduction("ReduceMax", lambda x, d, k: x.amax(d, k), apart)
reduction("ReduceMin", lambda x, d, k: x.amin(d, k), apart)
reduction("ReduceProd", product, nonzero)
reduction("ReduceL1", lambda x, d, k: x.abs().sum(d, k), nonzero)
reduction("ReduceL2", lambda x, d, k: x.square().sum(d, k).sqrt(), nonzero)
reduction("ReduceSumSquare", lambda x, d, k: x.square().sum(d, k))
reduction("ReduceLogSumExp", torch.logsumexp)
reduction("ReduceLogSum", lambda x, d, k: x.sum(d, k).log(), positives)
_x = exactly([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 0.0, 5.0]])
row("ReduceMax", _x, ints(1), torch=lambda x, a: x.amax(1, True), smooth=False, note="ties")
row("ReduceMin", _x, ints(1), torch=lambda x, a: x.amin(1, True), smooth=False, note="ties")
row(
    "ReduceProd",
    exactly([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0], [4.0, 5.0, 6.0]]),
    ints(1),
    note="zeros",
    torch=lambda x, a: x.prod(1, True),
)
row(
    "ReduceL2",
    exactly([[0.0, 0.0], [3.0, 4.0]]),
    ints(1),
    smooth=False,
    note="zero",
    torch=lambda x, a: torch.linalg.vector_norm(x, dim=1, keepdim=True),
)
row(
    "ReduceL1",
    exactly([[0.0, -1.0]]),
    ints(1),
    smooth=False,
    note="zero",
    torch=lambda x, a: x.abs().sum(1, True),
)
for _op, _f in (
    ("ReduceSum", torch.sum),
    ("ReduceProd", torch.prod),
    ("ReduceMax", torch.amax),
    ("ReduceMin", torch.amin),
):
    row(_op, ints([[1, 2, 3], [4, 5, 6]]), ints(1), torch=lambda x, a, f=_f: f(x, 1, keepdim=True))
for _op, _f in (("ArgMax", torch.argmax), ("ArgMin", torch.argmin)):
    for _x, _axis, _keep in (
        ((3, 4), 0, 1),
        ((3, 4), 1, 0),
        ((3, 4), -1, 1),
        ((1,), 0, 0),
        ((33,), 0, 1),
        ((2, 3, 4), 1, 0),
        ((2, 1, 3), 1, 1),
        ((2, 3, 4, 2), -3, 1),
        ((0, 3), 1, 0),
        ((3, 0), 0, 1),
    ):
        row(
            _op,
            apart(*_x),
            attrs={"axis": _axis, "keepdims": _keep},
            torch=lambda x, f=_f, a=_axis, k=_keep: f(x, a, keepdim=bool(k)),
        )
    row(
        _op,
        exactly([2.0, 1.0, 2.0, 1.0]),
        attrs={"keepdims": 0},
        smooth=False,
        note="first",
        torch=lambda x, f=_f: f(x, 0),
    )
    row(
        _op,
        exactly([2.0, 1.0, 2.0, 1.0]),
        attrs={"keepdims": 0, "select_last_index": 1},
        smooth=False,
        torch=lambda x, f=_f: 3 - f(x.flip(0), 0),
    )


def hardmax(x, axis=-1):
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, True), 1) if x.numel() else x * 0


for _x, _axis in (
    ((1,), -1),
    ((33,), 0),
    ((5,), 0),
    ((2, 3), 1),
    ((2, 3), 0),
    ((3, 1), -1),
    ((2, 3, 4), 1),
    ((2, 3, 4), -3),
    ((2, 1, 3, 2), 2),
    ((0, 3), 1),
    ((3, 0), 1),
    ((3, 0), 0),
):
    row("Hardmax", apart(*_x), attrs={"axis": _axis}, torch=lambda x, a=_axis: hardmax(x, a))
row(
    "Hardmax", exactly([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]), smooth=False, torch=hardmax, note="ties"
)
row("Hardmax", exactly([1.0, np.nan, 3.0, np.nan]), smooth=False, torch=hardmax, note="NaN")
