"""Operators of two inputs, element by element."""

import numpy as np
import torch

from .row import bools, exactly, floats, integer, ints, table

ROWS, row = table()

PAIRS = [
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((), (2, 3)),
    ((2, 3), ()),
    ((), ()),
    ((2, 1, 4), (3, 1)),
    ((33,), (1,)),  # a length on neither side of whole vectors
    ((1, 5), (4, 1)),
    ((2, 3, 1, 2), (1, 3, 2, 1)),
    ((0, 3), (1, 3)),
    ((2, 0, 3), ()),
]

for _a, _b in PAIRS:
    row("Add", floats(*_a), floats(*_b), torch=torch.add)
    row("Sub", floats(*_a), floats(*_b), torch=torch.sub)
    row("Mul", floats(*_a), floats(*_b), torch=torch.mul)
    row("Div", floats(*_a), floats(*_b, away=(0,), margin=0.3), torch=torch.div)
    row("Pow", floats(*_a, low=0.2), floats(*_b), torch=torch.pow)
    # a / b stays in (1.1, 1.8): away from where the quotient jumps
    row(
        "Mod",
        floats(*_a, low=2.2, high=2.7),
        floats(*_b, low=1.5, high=2.0),
        attrs={"fmod": 1},
        torch=torch.fmod,
    )
    row(
        "Mod",
        floats(*_a, low=-2.7, high=-2.2),
        floats(*_b, low=1.5, high=2.0),
        attrs={"fmod": 1},
        torch=torch.fmod,
        note="negative",
    )
    for _op, _f in (("Max", torch.maximum), ("Min", torch.minimum)):
        row(_op, floats(*_a), floats(*_b), torch=_f)
    for _op, _f in (
        ("Equal", torch.eq),
        ("Greater", torch.gt),
        ("GreaterOrEqual", torch.ge),
        ("Less", torch.lt),
        ("LessOrEqual", torch.le),
    ):
        row(_op, floats(*_a), floats(*_b), torch=_f)
    for _op, _f in (
        ("And", torch.logical_and),
        ("Or", torch.logical_or),
        ("Xor", torch.logical_xor),
    ):
        row(_op, bools(*_a), np.asarray(~bools(*_b)), torch=_f)

row(
    "Pow",
    exactly([-1.5, 2.0, 0.5]),
    exactly(2.0),
    torch=torch.pow,
    frozen=(1,),
    smooth=False,
    note="square of a negative",
)
row(
    "Pow",
    exactly([0.0, 0.0, 0.0, 2.0]),
    exactly([0.0, 1.0, 2.0, 0.0]),
    torch=torch.pow,
    smooth=False,
    note="zeros",
)
for _e in (0, 1, 2, 3):
    row("Pow", floats(2, 3), integer(_e), torch=lambda x, e: x ** int(e), note=f"constant {_e}")
row("Pow", floats(2, 3), ints(0, 2, 3), torch=torch.pow)
row("Pow", ints(2, 3, -2), ints(3, 0, 2), torch=torch.pow)
for _dtype in (np.int32, np.int64):
    _x, _y = np.array([7, -7, 6], _dtype), np.array([2, 2, -3], _dtype)
    row("Add", _x, _y, torch=torch.add)
    row("Sub", _x, _y, torch=torch.sub)
    row("Mul", _x, _y, torch=torch.mul)
    row(
        "Div",
        _x,
        _y,
        torch=lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        reference=False,
        note="to zero",
    )
    row("Mod", _x, _y, torch=torch.remainder)
    row("Mod", _x, _y, attrs={"fmod": 1}, torch=torch.fmod)
    row("Max", _x, _y, torch=torch.maximum)
    row("Min", _x, _y, torch=torch.minimum)
    row("Equal", _x, _x[::-1].copy(), torch=torch.eq)
    row("Greater", _x, _y, torch=torch.gt)
    row("GreaterOrEqual", _x, _y, torch=torch.ge)
    row("Less", _x, _y, torch=torch.lt)
    row("LessOrEqual", _x, _y, torch=torch.le)
row("Equal", bools(2, 3), bools(3), torch=torch.eq)
