"""Slices, gathers and scatters."""

import numpy as np
import torch

from .row import apart, exactly, floats, integer, ints, table

ROWS, row = table()

BIG = 2**62
SLICES = [
    ((5,), [1], [4], None, None),
    ((4, 5), [1, 0], [3, 4], None, None),
    ((4, 5), [1], [-1], [1], None),
    ((4, 5), [0, 1], [BIG, BIG], [0, -1], [2, 3]),
    ((4, 5), [-1], [-BIG], [0], [-1]),
    ((4, 5), [3, -2], [0, 0], [0, 1], [-2, -1]),
    ((4, 5), [2], [2], [0], None),
    ((4, 5), [-100], [100], [1], [1]),
    ((0, 5), [0], [3], [0], None),
    ((33,), [31], [0], [0], [-3]),
    ((2, 3, 4), [0, 1, 1], [1, 3, 2], [-1, 1, 0], None),
    ((2, 3, 4, 2), [0], [2], [2], [2]),
]


def sliced(x, starts, ends, axes=None, steps=None):
    axes = range(len(starts)) if axes is None else axes.tolist()
    steps = [1] * len(starts) if steps is None else steps.tolist()
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes, steps, strict=True):
        places = list(range(*slice(start, end, step).indices(x.shape[axis])))
        x = x.index_select(axis, torch.tensor(places, dtype=torch.int64))
    return x


for _x, _starts, _ends, _axes, _steps in SLICES:
    _more = [ints(v) if v is not None else None for v in (_axes, _steps)]
    while _more and _more[-1] is None:
        _more.pop()
    row("Slice", floats(*_x), ints(_starts), ints(_ends), *_more, torch=sliced, note=str(_starts))
    _y = np.zeros(_x)
    _y = sliced(
        torch.zeros(_x),
        *[None if m is None else torch.tensor(m) for m in (ints(_starts), ints(_ends), *_more)],
    )
    row(
        "steep.SliceGrad",
        floats(*_y.shape),
        ints(list(_x)),
        ints(_starts),
        ints(_ends),
        *_more,
        note=str(_starts),
    )


def gathered(x, i, axis=0):
    axis %= x.dim()
    picked = x.index_select(axis, (i.reshape(-1) % max(x.shape[axis], 1)).long())
    return picked.reshape(x.shape[:axis] + i.shape + x.shape[axis + 1 :])


GATHERS = [
    ((4, 3), ints(0, 2, 2), 0),
    ((4, 3), ints([[1, -1], [0, 1]]), 1),
    ((4, 3), integer(-2), 0),
    ((2, 3, 4), ints([[3, 0, 3]]), -1),
    ((2, 3, 4), integer(1), 1),
    ((4, 3), np.zeros((0,), np.int64), 0),
    ((4, 3), np.array([3, 1], np.int32), 0),
    ((5,), ints([[0], [4]]), 0),
    ((4, 0), ints(1, 1), 0),
    ((4, 3), integer(1), -1),
    ((2, 3, 4, 2), ints([[2, 0], [-3, 1]]), 1),
]
for _x, _i, _axis in GATHERS:
    row(
        "Gather",
        floats(*_x),
        _i,
        attrs={"axis": _axis},
        torch=lambda x, i, a=_axis: gathered(x, i, a),
        note=str(_i.dtype),
    )
    _y = gathered(torch.zeros(_x), torch.tensor(_i), _axis)
    row(
        "steep.GatherGrad",
        floats(*_y.shape),
        _i,
        ints(list(_x)),
        attrs={"axis": _axis},
        note=f"{_x}{_i.dtype}",
    )
    row(
        "steep.GatherGrad",
        floats(*_y.shape),
        _i,
        ints(list(_x)),
        floats(*_x),
        attrs={"axis": _axis},
        note=f"{_x}{_i.dtype} base",
    )

ELEMENTS = [
    ((3, 3), ints([[0, 1, 2], [2, 2, 0]]), 0),
    ((3, 3), ints([[1, 0], [-1, -1], [0, 0]]), 1),
    ((4,), ints(3, 3, 0), 0),
    ((2, 3), np.zeros((0, 3), np.int64), 0),
    ((3, 3), np.array([[0, 1, 2]], np.int32), 0),
    ((1,), ints(0, -1, 0), 0),
    ((2, 3, 2), ints([[[1, 0]], [[-2, -1]]]), 0),
    ((2, 3, 4), ints([[[3, 3, -1], [0, 1, 2]]]), -1),
    ((2, 2, 3, 2), ints([[[[2, 0], [1, 1], [0, -1], [2, 2]]]]), 2),
    ((3, 0), np.zeros((2, 0), np.int64), 0),
]
DISTINCT = [
    ((3, 3), ints([[0, 1, 2], [2, 0, 0]]), 0),
    ((3, 3), ints([[1, 0], [-1, -2], [0, 2]]), 1),
    ((4,), ints(3, -4), 0),
]
REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def positive(i, extent):
    return torch.where(i < 0, i + extent, i).long()


for _x, _i, _axis in ELEMENTS:
    row(
        "GatherElements",
        floats(*_x),
        _i,
        attrs={"axis": _axis},
        torch=lambda x, i, a=_axis: x.gather(a, positive(i, x.shape[a])),
        note=str(_i.dtype),
        # the reference wants the extents of all other axes to be equal
        reference=np.delete(_i.shape, _axis).tolist() == np.delete(_x, _axis).tolist(),
    )
    for _how, _name in REDUCE.items():
        row(
            "ScatterElements",
            apart(*_x),
            _i,
            floats(*_i.shape, away=(0,)),
            attrs={"axis": _axis, "reduction": _how},
            note=str(_i.dtype),
            torch=lambda x, i, u, a=_axis, h=_name: x.scatter_reduce(
                a, positive(i, x.shape[a]), u, h
            ),
        )
for _x, _i, _axis in DISTINCT:
    row(
        "ScatterElements",
        floats(*_x),
        _i,
        floats(*_i.shape),
        attrs={"axis": _axis},
        torch=lambda x, i, u, a=_axis: x.scatter(a, positive(i, x.shape[a]), u),
    )
row(
    "ScatterElements",
    exactly([0.0, 2.0, 0.0, 3.0]),
    ints(0, 0, 1, 3),
    exactly([5.0, 4.0, 0.0, 2.0]),
    attrs={"reduction": "mul"},
    note="zeros",
    torch=lambda x, i, u: torch.stack([x[0] * u[0] * u[1], x[1] * u[2], x[2], x[3] * u[3]]),
)
row(
    "ScatterElements",
    exactly([1.0, 2.0]),
    ints(0, 0, 1),
    exactly([1.0, 1.0, 1.0]),
    attrs={"reduction": "max"},
    torch=lambda x, i, u: x.scatter_reduce(0, i, u, "amax"),
    smooth=False,
    note="ties",
)


def gathered_nd(x, i, batch=0):
    if batch == 0:
        i = i % torch.tensor(x.shape[: i.shape[-1]]).clamp(min=1)
        return x[tuple(i.unbind(-1))]
    return torch.stack([gathered_nd(a, b, batch - 1) for a, b in zip(x, i, strict=True)])


def scattered_nd(x, i, u, how):
    x = x.clone()
    flat = i.reshape(-1, i.shape[-1])
    updates = u.reshape(len(flat), *x.shape[i.shape[-1] :])
    parts = {}
    for index, update in zip(flat.tolist(), updates, strict=True):
        place = tuple(a % d for a, d in zip(index, x.shape, strict=False))
        old = parts.get(place, x[place])
        parts[place] = {
            "none": lambda o, n: n,
            "add": torch.add,
            "mul": torch.mul,
            "max": torch.maximum,
            "min": torch.minimum,
        }[how](old, update)
    for place, value in parts.items():
        mask = torch.zeros(x.shape, dtype=torch.bool)
        mask[place] = True
        full = torch.zeros_like(x)
        full[place] = value
        x = torch.where(mask, full, x)
    return x


TUPLES = [
    ((3, 4), ints([[0, 1], [2, 3], [0, 1]])),
    ((3, 4), ints([[1], [-1]])),
    ((2, 3, 4), ints([[[0, 1]], [[1, 2]]])),
    ((3, 4), np.zeros((0, 2), np.int64)),
    ((5,), ints([[4], [0], [4]])),
    ((5,), ints([-1])),
    ((3, 4), ints([2, -4])),
    ((2, 3, 2), ints([[1, 2, 0], [0, 0, 1]])),
    ((2, 3, 2, 2), ints([[1, -1], [0, 0]])),
    ((3, 0), ints([[1], [2]])),
]
for _x, _i in TUPLES:
    row("GatherND", floats(*_x), _i, torch=gathered_nd)
    _u = _i.shape[:-1] + _x[_i.shape[-1] :]
    _distinct = len({tuple(t) for t in _i.reshape(-1, _i.shape[-1]).tolist()}) == _i[..., 0].size
    for _how in ["none"] * _distinct + ["add", "mul"] + ["max", "min"] * _distinct:
        row(
            "ScatterND",
            floats(*_x),
            _i,
            floats(*_u, away=(0,)),
            attrs={"reduction": _how},
            torch=lambda x, i, u, h=_how: scattered_nd(x, i, u, h),
        )
row(
    "GatherND",
    floats(2, 3, 4),
    ints([[1], [2]]),
    attrs={"batch_dims": 1},
    torch=lambda x, i: gathered_nd(x, i, 1),
)
row(
    "GatherND",
    floats(2, 3, 4),
    ints([[[1], [0]], [[2], [2]]]),
    attrs={"batch_dims": 1},
    torch=lambda x, i: gathered_nd(x, i, 1),
)
row(
    "GatherND",
    floats(2, 3, 4),
    np.arange(6).reshape(2, 3, 1) % 4,
    attrs={"batch_dims": 2},
    torch=lambda x, i: gathered_nd(x, i, 2),
)
