"""Element by element: any number of inputs, choices, clipping and casts."""

import numpy as np
import torch

from .row import SHAPES, bools, exactly, floats, integer, ints, table

ROWS, row = table()

for _shapes in (
    [(2, 3)],
    [()],
    [(), ()],
    [(5,), (1,)],
    [(33,), (33,), (33,)],
    [(2, 3), (3,), ()],
    [(2, 1), (1, 3), (2, 3), (3,)],
    [(2, 1, 4), (3, 1)],
    [(1, 2, 1, 3), (4, 1, 2, 1), (3,)],
    [(0, 3), (3,)],
    [(2, 0), (1, 1), ()],
):
    _in = [floats(*s) for s in _shapes]
    row("Sum", *_in, torch=lambda *x: sum(x[1:], x[0]))
    row(
        "Mean",
        *_in,
        torch=lambda *x: sum(x[1:], x[0]) / len(x),
        # the reference adds in place, to the first input
        reference=np.broadcast_shapes(*_shapes) == _shapes[0],
    )
    row("Max", *_in, torch=lambda *x: torch.stack(torch.broadcast_tensors(*x)).amax(0), note="n")
    row("Min", *_in, torch=lambda *x: torch.stack(torch.broadcast_tensors(*x)).amin(0), note="n")
_ties = [exactly([1.0, 2.0, 3.0]), exactly([1.0, 2.0, 4.0]), exactly([1.0, 0.0, 4.0])]
row("Max", *_ties, torch=lambda *x: torch.stack(x).amax(0), smooth=False, note="ties")
row("Min", *_ties, torch=lambda *x: torch.stack(x).amin(0), smooth=False, note="ties")
row("Max", *_ties[:2], torch=torch.maximum, smooth=False, note="ties")

for _c, _a, _b in (
    ((2, 3), (2, 3), (2, 3)),
    ((3,), (2, 3), ()),
    ((2, 1), (3,), (2, 3)),
    ((), (3,), (2, 1)),
    ((0, 3), (3,), (1, 1)),
    ((), (), ()),
    ((33,), (33,), (33,)),
    ((2, 1, 4), (3, 1), (1,)),
    ((1, 5), (4, 1), ()),
    ((2, 0), (), (2, 1)),
):
    row("Where", bools(*_c), floats(*_a), floats(*_b), torch=torch.where)
row("Where", bools(3), ints(1, 2, 3), ints(4, 5, 6), torch=torch.where)

for _shape in SHAPES:
    _x = floats(*_shape, away=(-1, 1))
    row("Clip", _x, exactly(-1.0), exactly(1.0), torch=torch.clamp)
    row("Clip", _x, None, exactly(1.0), torch=lambda x, low, high: torch.clamp(x, max=high))
    row("Clip", _x, exactly(-1.0), None, torch=lambda x, low, high: torch.clamp(x, min=low))
row("Clip", floats(3), None, None, torch=lambda x, low, high: x)
row(
    "Clip",
    exactly([-1.0, 0.5, 1.0]),
    exactly(-1.0),
    exactly(1.0),
    torch=torch.clamp,
    smooth=False,
    note="kink",
)
row(
    "Clip",
    floats(4),
    exactly(1.0),
    exactly(-1.0),
    torch=torch.clamp,
    note="low above high",
    reference=False,
)
row("Clip", ints(-5, 0, 5), integer(-2), integer(3), torch=torch.clamp)

for _x, _slope in (
    ((2, 3), (3,)),
    ((2, 3), ()),
    ((2, 3, 4), (3, 1)),
    ((0, 3), (3,)),
    ((2, 3), (2, 3)),
    ((), ()),
    ((5,), (1,)),
    ((33,), (33,)),
    ((2, 3, 2, 2), (3, 1, 1)),
    ((2, 0, 3), (1, 3)),
):
    row(
        "PRelu",
        floats(*_x, away=(0,)),
        floats(*_slope),
        torch=lambda x, a: torch.where(x > 0, x, a * x),
    )

for _shape in SHAPES:
    row("Cast", floats(*_shape), attrs={"to": 11}, torch=lambda x: x.double())
    row(
        "CastLike",
        floats(*_shape),
        np.zeros(1, np.float64),
        torch=lambda x, y: x.double(),
        frozen=(1,),
    )
row("Cast", floats(2, 3), attrs={"to": 11}, torch=lambda x: x.double())
row("Cast", floats(2, 3), attrs={"to": 1}, torch=lambda x: x.float(), smooth=False)
row("Cast", floats(2, 3), attrs={"to": 7}, torch=lambda x: x.long(), smooth=False)
row("Cast", floats(2, 3), attrs={"to": 9}, torch=lambda x: x.bool(), smooth=False)
row("Cast", ints(1, 0, -3), attrs={"to": 1}, torch=lambda x: x.float())
row("Cast", bools(2, 3), attrs={"to": 11}, torch=lambda x: x.double())
row("CastLike", floats(2, 3), np.zeros((), np.float64), torch=lambda x, y: x.double(), frozen=(1,))
row("CastLike", floats(2, 3), np.zeros(1, np.int32), torch=lambda x, y: x.int(), smooth=False)
row("CastLike", ints(1, 0, -3), np.zeros((), np.float32), torch=lambda x, y: x.float(), frozen=(1,))
