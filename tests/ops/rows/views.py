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
row("Squeeze", floats(1, 3, 1), ints(0, -1), torch=lambda x, a: x.reshape(3))
row("Squeeze", floats(1, 3, 1), ints(0), torch=lambda x, a: x.reshape(3, 1))
row("Squeeze", floats(1, 3, 1), torch=lambda x: x.reshape(3))
row("Squeeze", floats(1, 1), torch=lambda x: x.reshape(()))
row("Unsqueeze", floats(3, 2), ints(0, -1), torch=lambda x, a: x.reshape(1, 3, 2, 1))
row("Unsqueeze", floats(), ints(0), torch=lambda x, a: x.reshape(1))
row("Unsqueeze", floats(0, 2), ints(1), torch=lambda x, a: x.reshape(0, 1, 2))
for _axis in (0, 1, 2, 3, -1):
    row(
        "Flatten",
        floats(2, 3, 4),
        attrs={"axis": _axis},
        torch=lambda x, a=_axis: x.reshape(math.prod(x.shape[: a % 4 if a != -1 else 2]), -1),
    )
row("Flatten", floats(0, 3), torch=lambda x: x.reshape(0, 3))
for _x, _to in (
    ((3, 1), (2, 1, 4)),
    ((3, 1), (3, 4)),
    ((), (2, 3)),
    ((1, 3), (1, 1)),
    ((1, 3), (0, 3)),
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
):
    row("Tile", floats(*_x), ints(list(_n)), torch=lambda x, r: x.repeat(tuple(r.tolist())))
row("Tile", floats(), np.zeros(0, np.int64), torch=lambda x, r: x)
