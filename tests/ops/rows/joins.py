"""Joining and cutting."""

import torch

from .row import floats, ints, table

ROWS, row = table()

for _shapes, _axis in (
    ([(2, 3), (2, 1)], 1),
    ([(2, 3), (4, 3)], 0),
    ([(2, 3), (2, 2), (2, 1)], -1),
    ([(2, 3)], 0),
    ([(2, 0), (2, 3)], 1),
    ([(3,), (2,)], 0),
    ([(2, 3, 4), (2, 1, 4)], 1),
    ([(2, 2, 1, 3), (2, 2, 2, 3)], -2),
    ([(0, 3), (0, 3)], 0),
    ([(1,)] * 5, 0),
):
    row(
        "Concat",
        *[floats(*s) for s in _shapes],
        attrs={"axis": _axis},
        torch=lambda *x, a=_axis: torch.cat(x, a),
    )
row("Concat", ints(1, 2), ints(3), attrs={"axis": 0}, torch=lambda *x: torch.cat(x))
for _x, _sizes, _axis in (
    ((4, 3), (1, 3), 0),
    ((4, 6), (2, 1, 3), -1),
    ((4, 3), (4,), 0),
    ((4, 3), (0, 4), 0),
    ((5,), (1, 1, 3), 0),
    ((2, 3, 4), (1, 2), 1),
    ((2, 2, 5, 3), (4, 1), -2),
    ((0, 4), (2, 2), 1),
    ((0, 4), (0, 0), 0),
):
    row(
        "Split",
        floats(*_x),
        ints(list(_sizes)),
        attrs={"axis": _axis},
        outputs=len(_sizes),
        torch=lambda x, s, a=_axis: x.split(s.tolist(), a),
    )
row(
    "Split",
    floats(2, 6),
    attrs={"axis": 1, "num_outputs": 3},
    outputs=3,
    torch=lambda x: x.split(2, 1),
)
row(
    "Split",
    floats(2, 5),
    attrs={"axis": 1, "num_outputs": 3},
    outputs=3,
    torch=lambda x: x.split(2, 1),
    note="uneven",
)
row(
    "Split",
    floats(2, 6),
    ints(2, 3, 1),
    attrs={"axis": 1},
    outputs=3,
    torch=lambda x, s: x.split(s.tolist(), 1),
    seeded=(1,),
    note="one gradient",
)
