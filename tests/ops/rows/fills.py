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
        n = x.shape[axis]
        at = torch.arange(-int(pads[i]), n + int(pads[i + len(pads) // 2]))
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

for _upper, _k in itertools.product((0, 1), (None, -1, 0, 2)):
    row(
        "Trilu",
        floats(2, 3, 4),
        *([] if _k is None else [integer(_k)]),
        attrs={"upper": _upper},
        note=f"k {_k}",
        torch=lambda x, k=0, u=_upper: (torch.triu if u else torch.tril)(x, int(k)),
    )
row("Trilu", floats(0, 3), torch=torch.triu)

for _exclusive, _reverse, _axis in itertools.product((0, 1), (0, 1), (0, -1)):

    def running(x, a, exclusive=_exclusive, reverse=_reverse):
        a = int(a)
        y = x.flip(a) if reverse else x
        y = y.cumsum(a) - (y if exclusive else 0)
        return y.flip(a) if reverse else y

    row(
        "CumSum",
        floats(3, 4),
        integer(_axis),
        attrs={"exclusive": _exclusive, "reverse": _reverse},
        torch=running,
        note=f"axis {_axis}",
    )
row("CumSum", floats(0, 4), integer(1), torch=lambda x, a: x)
row("CumSum", ints([[1, 2], [3, 4]]), integer(0), torch=lambda x, a: x.cumsum(0))

row(
    "OneHot",
    ints(0, 2, -1),
    integer(3),
    exactly([-1.0, 2.0]),
    torch=lambda i, d, v: v[0] + (v[1] - v[0]) * F.one_hot(i % 3, 3),
)
row(
    "OneHot",
    ints([[0, 1], [3, 7]]),
    integer(4),
    exactly([0.0, 1.0]),
    attrs={"axis": 0},
    note="beyond depth",
    torch=lambda i, d, v: v[0] + (v[1] - v[0]) * (i[None] == torch.arange(4)[:, None, None]),
)
row("OneHot", ints(1, 0), integer(2), ints(0, 1), torch=lambda i, d, v: F.one_hot(i, 2))

row("Range", integer(2), integer(9), integer(3), torch=lambda a, b, c: torch.arange(2, 9, 3))
row("Range", integer(5), integer(-1), integer(-2), torch=lambda a, b, c: torch.arange(5, -1, -2))
row("Range", integer(3), integer(3), integer(1), torch=lambda a, b, c: torch.arange(0))
row("ConstantOfShape", ints(2, 3), torch=lambda s: torch.zeros(2, 3))
row(
    "ConstantOfShape",
    ints(2, 3),
    attrs={"value": np.array([7], np.int64)},
    torch=lambda s: torch.full((2, 3), 7),
)
row(
    "ConstantOfShape",
    np.zeros(0, np.int64),
    attrs={"value": np.array([1.5], np.float32)},
    torch=lambda s: torch.tensor(1.5),
)
row("ConstantOfShape", ints(0, 3), torch=lambda s: torch.zeros(0, 3))
for _k in (-1, 0, 1):
    row(
        "EyeLike",
        floats(3, 4),
        attrs={"k": _k, "dtype": 1},
        torch=lambda x, k=_k: torch.ones(3, 4).tril(k).triu(k),
    )
row("EyeLike", ints([[1, 2], [3, 4]]), torch=lambda x: torch.eye(2, dtype=torch.int64))
