"""Shapes, and the same elements under another shape or repeated."""

import math

import numpy as np
import torch

from .row import SHAPES, floats, ints, table

ROWS, row = table()

for _shape in SHAPES:
    row("Shape", floats(*_shape), torch=lambda x: torch.tensor(x.shape, dtype=torch.int64))
    row("Size", floats(*_shape), torch=lambda x: torch.tensor(x.numel()))
row("Shape", floats(2, 3, 4), attrs={"start": 1}, torch=lambda x: torch.tensor([3, 4]))
row("Shape", floats(2, 3, 4), attrs={"start": -2, "end": -1}, torch=lambda x: torch.tensor([3]))

for _x, _to in (
    ((2, 6), (3, 4)),
    ((2, 6), (-1,)),
    ((2, 6), (0, -1, 2)),
    ((1,), ()),
    ((0, 3), (3, 0, 5)),
    ((2, 3), (3, -1)),
    ((), (1, 1)),
    ((6,), (1, 2, 3)),
    ((2, 3, 4), (6, 4)),
    ((2, 3, 4, 5), (0, 0, 20)),
    ((0, 3), (0, 7)),
):
    row(
        "Reshape",
        floats(*_x),
        ints(list(_to)),
        attrs={"allowzero": int(0 in _x)},
        torch=lambda x, s, to=_to: x.reshape(
            [x.shape[i] if d == 0 and x.numel() else d for i, d in enumerate(to)]
        ),
    )
for _axes, _thin, _full in (
    ((0, -1), (3,), (1, 3, 1)),
    ((0,), (3, 1), (1, 3, 1)),
    ((0, -1), (3, 2), (1, 3, 2, 1)),
    ((0,), (), (1,)),
    ((0, 1), (), (1, 1)),
    ((1,), (0, 2), (0, 1, 2)),
    ((0, 2), (1, 0), (1, 1, 1, 0)),
    ((-1,), (2, 3, 4), (2, 3, 4, 1)),
    ((2, 0), (5,), (1, 5, 1)),
    ((1, -1), (2, 3), (2, 1, 3, 1)),
):
    row("Squeeze", floats(*_full), ints(list(_axes)), torch=lambda x, a, to=_thin: x.reshape(to))
    row("Unsqueeze", floats(*_thin), ints(list(_axes)), torch=lambda x, a, to=_full: x.reshape(to))
row("Squeeze", floats(1, 3, 1), torch=lambda x: x.reshape(3))
row("Squeeze", floats(1, 1), torch=lambda x: x.reshape(()))
for _x, _axis in (
    *(((2, 3, 4), axis) for axis in (0, 1, 2, 3, -1)),
    ((), 0),
    ((5,), 0),
    ((5,), 1),
    ((2, 3, 4, 5), 2),
    ((1, 1), 1),
    ((0, 3), 1),
    ((2, 0, 3), 2),
):
    row(
        "Flatten",
        floats(*_x),
        attrs={"axis": _axis},
        torch=lambda x, a=_axis: x.reshape(
            math.prod(x.shape[:a]), math.prod(x.shape[a:]) if x.dim() else 1
        ),
        reference=0 not in _x,  # it reshapes to -1
    )
for _x, _to in (
    ((3, 1), (2, 1, 4)),
    ((3, 1), (3, 4)),
    ((), (2, 3)),
    ((1, 3), (1, 1)),
    ((1, 3), (0, 3)),
    ((3,), (3,)),
    ((1,), ()),
    ((2, 1, 4), (3, 1)),
    ((1, 1), (5, 6)),
    ((0, 1), (0, 4)),
    ((2, 3, 1, 2), (1, 5, 1)),
):
    row(
        "Expand",
        floats(*_x),
        ints(list(_to)),
        torch=lambda x, s, to=_to: x.expand(torch.broadcast_shapes(x.shape, to)),
    )
for _x, _perm in (
    ((2, 3, 4), (2, 0, 1)),
    ((2, 3), (1, 0)),
    ((2, 3), (0, 1)),
    ((0, 3), (1, 0)),
    ((2, 3, 4, 5), (0, 2, 1, 3)),
    ((5,), (0,)),
    ((1, 4, 1), (2, 1, 0)),
    ((17, 19), (1, 0)),
    ((2, 3, 4, 5), (3, 1, 2, 0)),
    ((2, 1, 3, 2, 2), (4, 0, 3, 1, 2)),
):
    row(
        "Transpose", floats(*_x), attrs={"perm": list(_perm)}, torch=lambda x, p=_perm: x.permute(p)
    )
row("Transpose", floats(2, 3, 4), torch=lambda x: x.permute(2, 1, 0))
row("Transpose", floats(), torch=lambda x: x)
for _x, _n in (
    ((2, 3), (2, 1)),
    ((2, 3), (1, 3)),
    ((3,), (0,)),
    ((0, 2), (2, 2)),
    ((2, 1, 2), (1, 2, 3)),
    ((1,), (7,)),
    ((4,), (1,)),
    ((2, 3), (0, 2)),
    ((1, 2, 1, 3), (2, 1, 3, 1)),
):
    row("Tile", floats(*_x), ints(list(_n)), torch=lambda x, r: x.repeat(tuple(r.tolist())))
row("Tile", floats(), np.zeros(0, np.int64), torch=lambda x, r: x)
