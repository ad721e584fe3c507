"""Padding, triangles, running sums and generators."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F

from .row import exactly, floats, integer, ints, table

ROWS, row = table()

for _x, _pads in (
    ((3,), [1, 2]),
    ((2, 3), [1, 0, 2, 1]),
    ((2, 3), [0, -1, 1, -1]),
    ((0, 3), [1, 0, 0, 0]),
    ((2, 3), [0, 0, 0, 0]),
):
    _half = len(_pads) // 2
    row(
        "Pad",
        floats(*_x),
        ints(_pads),
        note=str(_pads),
        reference=min(_pads) >= 0,  # it fails at negative pads
        torch=lambda x, p: F.pad(
            x, [v for a in reversed(range(x.dim())) for v in (int(p[a]), int(p[a + x.dim()]))]
        ),
    )
    row(
        "Pad",
        floats(*_x),
        ints(_pads),
        exactly(0.5),
        note=str(_pads),
        reference=min(_pads) >= 0,
        torch=lambda x, p, v: (
            F.pad(
                x - v,
                [w for a in reversed(range(x.dim())) for w in (int(p[a]), int(p[a + x.dim()]))],
            )
            + v
        ),
    )
row(
    "Pad",
    floats(2, 3),
    ints(1, 2),
    exactly(0.5),
    ints(-1),
    torch=lambda x, p, v, a: F.pad(x - v, (1, 2)) + v,
)
row("Pad", floats(2, 3), ints(1, 2), None, ints(1), torch=lambda x, p, v, a: F.pad(x, (1, 2)))


def repeated(x, pads, value=None, axes=None, mode="edge"):
    axes = range(x.dim()) if axes is None else axes.tolist()
    for i, axis in enumerate(axes):
        before, after = int(pads[i]), int(pads[i + len(pads) // 2])
        x = x.narrow(axis, max(-before, 0), x.shape[axis] - max(-before, 0) - max(-after, 0))
        n = x.shape[axis]
        at = torch.arange(-max(before, 0), n + max(after, 0))
        if mode == "edge":
            at = at.clamp(0, n - 1)
        elif mode == "wrap":
            at = at % n
        else:
            at = at % max(2 * (n - 1), 1)
            at = torch.minimum(at, (2 * (n - 1) - at).abs())
        x = x.index_select(axis, at)
    return x


for _mode in ("reflect", "edge", "wrap"):
    for _x, _pads in (
        ((5,), [2, 1]),
        ((2, 3), [1, 0, 0, 2]),
        ((2, 3), [0, -1, 1, 1]),
        ((4, 4), [-1, 2, 2, -1]),
        ((5,), [-2, 2]),
        ((2, 3, 4), [1, 1, 2, 0, 1, 3]),
        ((3, 3), [0, 0, 0, 0]),
        ((1, 2), [0, 1, 0, 1]),
        ((4, 0), [1, 0, 1, 0]),
    ):
        row(
            "Pad",
            floats(*_x),
            ints(_pads),
            attrs={"mode": _mode},
            note=str(_pads),
            reference=False,  # it lacks negative pads and repeats at most once
            torch=lambda x, p, m=_mode: repeated(x, p, mode=m),
        )
    row(
        "Pad",
        floats(2, 3),
        ints(2, 1),
        None,
        ints(-1),
        attrs={"mode": _mode},
        reference=False,
        torch=lambda x, p, v, a, m=_mode: repeated(x, p, v, a, m),
    )

for _x, _ks in (
    ((2, 3, 4), (None, -1, 0, 2)),
    ((3, 3), (None, 1)),
    ((1, 1), (0, 1)),
    ((1, 5), (2,)),
    ((5, 1), (-2,)),
    ((4, 2), (-5, 5)),
    ((2, 1, 3, 2), (1,)),
    ((0, 3), (None, -1)),
    ((3, 0), (0,)),
    ((0, 2, 2), (1,)),
):
    for _upper, _k in itertools.product((0, 1), _ks):
        row(
            "Trilu",
            floats(*_x),
            *([] if _k is None else [integer(_k)]),
            attrs={"upper": _upper},
            note=f"k {_k}",
            torch=lambda x, k=0, u=_upper: (torch.triu if u else torch.tril)(x, int(k)),
        )


def running(x, axis, exclusive=0, reverse=0):
    axis = int(axis)
    y = x.flip(axis) if reverse else x
    y = y.cumsum(axis) - (y if exclusive else 0)
    return y.flip(axis) if reverse else y


for _x, _axes in (
    ((3, 4), (0, -1)),
    ((1,), (0,)),
    ((5,), (-1,)),
    ((1, 3), (0,)),
    ((2, 3, 4), (1,)),
    ((2, 1, 3, 2), (-2,)),
    ((17, 2), (0,)),
    ((0, 4), (1,)),
    ((3, 0), (1,)),
    ((2, 0, 3), (2,)),
):
    for _axis, _exclusive, _reverse in itertools.product(_axes, (0, 1), (0, 1)):
        row(
            "CumSum",
            floats(*_x),
            integer(_axis),
            attrs={"exclusive": _exclusive, "reverse": _reverse},
            torch=lambda x, a, e=_exclusive, r=_reverse: running(x, a, e, r),
            note=f"axis {_axis}",
        )
row("CumSum", ints([[1, 2], [3, 4]]), integer(0), torch=lambda x, a: x.cumsum(0))


def one_hot(indices, depth, values, axis=-1):
    """Beyond depth, and below its negative, an index has no class."""
    classes = torch.arange(int(depth)).reshape([-1] + [1] * (-axis - 1))
    at = indices.unsqueeze(axis)
    return torch.where((at == classes) | (at + int(depth) == classes), values[1], values[0])


for _i, _depth, _axis in (
    (ints(0, 2, -1), 3, -1),
    (ints([[0, 1], [3, 7]]), 4, -3),
    (ints([[0, -5], [-4, 3]]), 4, -2),
    (ints([[1], [2]]), 3, -1),
    (ints(0), 1, -1),
    (ints([0, 1, 0, 0]), 2, -2),
    (ints([[[1], [2]], [[0], [4]]]), 5, -1),
    (ints([[2, 0, 1]]), 3, -2),
    (ints([]), 3, -1),
    (np.zeros((2, 0), np.int64), 3, -3),
    (np.zeros((0, 2), np.int64), 1, -2),
):
    row(
        "OneHot",
        _i,
        integer(_depth),
        exactly([-1.0, 2.0]),
        attrs={"axis": _axis},
        torch=lambda i, d, v, a=_axis: one_hot(i, d, v, a),
    )
row(
    "OneHot",
    ints([[0, 1], [3, 7]]),
    integer(4),
    exactly([0.0, 1.0]),
    attrs={"axis": 0},
    torch=lambda i, d, v: one_hot(i, d, v, -3),
)
row("OneHot", ints(1, 0), integer(2), ints(0, 1), torch=lambda i, d, v: F.one_hot(i, 2))
row("OneHot", ints(1, 0), ints([2]), ints(0, 1), torch=lambda i, d, v: F.one_hot(i, 2))
row(
    "OneHot",
    np.array([1, 0, 2], np.int32),
    integer(3),
    ints(0, 1),
    torch=lambda i, d, v: F.one_hot(i.long(), 3),
)

for _start, _limit, _delta in (
    (2, 9, 3),
    (5, -1, -2),
    (3, 3, 1),
    (3, 1, 1),
    (0, 1, 1),
    (0, 3, 2),
    (-2, 2, 1),
    (0, 5, 1),
    (7, 0, -1),
    (0, 8, 1),
    (-9, 8, 1),
    (0, 64, 2),
    (0, 330, 10),
):
    row(
        "Range",
        *map(integer, (_start, _limit, _delta)),
        torch=lambda *x: torch.arange(*x) if (x[1] - x[0]) * x[2] > 0 else torch.arange(0),
    )
for _start, _limit, _delta in (
    (0.0, 1.0, 0.25),
    (1.5, -1.0, -0.5),
    (0.0, 1.0, 0.75),
    (2.0, 2.0, 1),
):
    row(
        "Range",
        *map(exactly, (_start, _limit, _delta)),
        smooth=False,
        note=f"{_start} to {_limit} by {_delta}",
        torch=lambda *x: torch.arange(*(v.item() for v in x), dtype=x[0].dtype),
    )

for _shape in (
    [],
    [1],
    [5],
    [2, 3],
    [1, 1],
    [2, 1, 3],
    [2, 3, 2, 2],
    [1, 1, 1, 1, 4],
    [0],
    [0, 3],
    [2, 0, 3],
):
    row("ConstantOfShape", ints(_shape), torch=lambda s: torch.zeros(s.tolist()))
    for _value in (np.array([7], np.int64), np.array([1.5], np.float32), np.array([True])):
        row(
            "ConstantOfShape",
            ints(_shape),
            attrs={"value": _value},
            torch=lambda s, v=_value: torch.tensor(v[0]).expand(s.tolist()),
        )

for _x, _k in (
    ((3, 4), -1),
    ((3, 4), 0),
    ((3, 4), 1),
    ((1, 1), 0),
    ((1, 5), 2),
    ((5, 1), -4),
    ((4, 2), 0),
    ((4, 4), 7),
    ((4, 4), -7),
    ((2, 9), 3),
    ((0, 0), 0),
    ((0, 3), 1),
    ((3, 0), -1),
):
    row(
        "EyeLike",
        floats(*_x),
        attrs={"k": _k, "dtype": 1},
        torch=lambda x, k=_k: torch.ones(x.shape).tril(k).triu(k),
    )
row("EyeLike", floats(3, 4), torch=lambda x: torch.eye(3, 4, dtype=x.dtype))
row("EyeLike", ints([[1, 2], [3, 4]]), torch=lambda x: torch.eye(2, dtype=torch.int64))
