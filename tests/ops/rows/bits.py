"""Operations on bits."""

import numpy as np
import torch

from .row import SHAPES, table

ROWS, row = table()


def numbers(dtype, *shape):
    """A fixed, irregular pattern over the type's whole range."""
    info = np.iinfo(dtype)
    span = int(info.max) - int(info.min) + 1
    values = [int(info.min) + (i * 0x9E3779B97F4A7C15) % span for i in range(int(np.prod(shape)))]
    return np.array(values, dtype).reshape(shape)


def small(dtype, *shape):
    count = int(np.prod(shape))
    return (np.arange(count) % (np.iinfo(dtype).bits + 1)).astype(dtype).reshape(shape)


TYPES = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64)
PAIRS = [
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((), (2, 3)),
    ((), ()),
    ((5,), (1,)),
    ((33,), (33,)),
    ((2, 1, 4), (3, 1)),
    ((1, 5), (4, 1)),
    ((0, 3), (1, 3)),
    ((2, 0, 3), ()),
]
for _type in TYPES:
    _name = np.dtype(_type).name
    for _a, _b in PAIRS if _type is np.int32 else PAIRS[1:2]:
        for _op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
            row(_op, numbers(_type, *_a), np.asarray(~numbers(_type, *_b), _type), note=_name)
    for _a in SHAPES if _type is np.int32 else [(3, 5)]:
        row("BitwiseNot", numbers(_type, *_a), note=_name)
    if np.issubdtype(_type, np.unsignedinteger):
        for _direction in ("LEFT", "RIGHT"):
            for _a, _b in [*PAIRS, ((4, 9), (9,))] if _type is np.uint32 else [((4, 9), (9,))]:
                row(
                    "BitShift",
                    numbers(_type, *_a),
                    small(_type, *_b),
                    attrs={"direction": _direction},
                    note=_name,
                )
for _a in SHAPES:
    row(
        "BitCast",
        np.resize(np.array([1.5, -0.0, np.inf], np.float32), _a).view(np.int32),
        attrs={"to": 1},
        reference=False,
        torch=lambda x: x.view(torch.float32),
    )
