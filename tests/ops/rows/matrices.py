"""Matrix products, softmax, normalisation."""

import torch
import torch.nn.functional as F

from .row import exactly, floats, table

ROWS, row = table()

MATRICES = [
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((2, 1, 2, 3), (4, 3, 2)),
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((3,), (5, 3, 4)),
    ((2, 3), (3,)),
    ((5, 2, 3), (3,)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
    ((0, 2, 3), (3, 2)),
]
for _a, _b in MATRICES:
    row("MatMul", floats(*_a), floats(*_b), torch=torch.matmul)
for _x, _axis in (
    ((2, 3), -1),
    ((2, 3), 0),
    ((2, 3, 4), 1),
    ((5,), 0),
    ((1,), 0),
    ((3, 1), -1),
    ((2, 33), 1),
    ((17, 2), 0),
    ((2, 1, 3, 4), -2),
    ((0, 3), 1),
    ((3, 0), 1),
    ((2, 0, 3), 2),
):
    row("Softmax", floats(*_x), attrs={"axis": _axis}, torch=lambda x, a=_axis: x.softmax(a))
    row("LogSoftmax", floats(*_x), attrs={"axis": _axis}, torch=lambda x, a=_axis: x.log_softmax(a))
    row(
        "steep.SoftmaxGrad",
        floats(*_x),
        floats(*_x),
        attrs={"axis": _axis},
        torch=lambda d, y, a=_axis: y * (d - (d * y).sum(a, True)),
    )
row(
    "Softmax",
    exactly([[1000.0, 999.0], [-1000.0, -1002.0]]),
    torch=lambda x: x.softmax(-1),
    note="large",
)
row(
    "LogSoftmax",
    exactly([[1000.0, 999.0], [-1000.0, -1002.0]]),
    torch=lambda x: x.log_softmax(-1),
    note="large",
)


def layer_norm(x, scale, bias=None, axis=-1, epsilon=1e-5):
    dims = list(range(axis % x.dim(), x.dim()))
    mean = x.mean(dims, True)
    inv_std = (x.var(dims, unbiased=False, keepdim=True) + epsilon).rsqrt()
    y = (x - mean) * inv_std * scale
    return y if bias is None else y + bias, mean, inv_std


# stash_type 11: statistics in double, so that differences of them mean something.
for _x, _axis in (
    ((4, 6), -1),
    ((2, 3, 8), -1),
    ((2, 3, 4), 1),
    ((3, 4), 0),
    ((0, 4), -1),
    ((3, 1), -1),
    ((5,), 0),
    ((2, 33), 1),
    ((2, 1, 3, 4), -2),
    ((2, 1, 3, 4), 0),
):
    _n = _x[_axis % len(_x) :]
    for _bias in ((), (floats(*_n),)):
        row(
            "LayerNormalization",
            floats(*_x),
            floats(*_n),
            *_bias,
            outputs=3,
            reference=False,
            double=True,
            attrs={"axis": _axis, "epsilon": 2.0**-10, "stash_type": 11},
            torch=lambda *x, a=_axis: layer_norm(*x, axis=a, epsilon=2.0**-10),
        )
    _s = _x[: _axis % len(_x)] + (1,) * len(_n)
    row(
        "steep.LayerNormalizationGrad",
        floats(*_x),
        floats(*_x),
        floats(*_n),
        floats(*_s),
        floats(*_s, low=0.5),
        attrs={"axis": _axis % len(_x)},
        outputs=3,
    )
row(
    "LayerNormalization",
    floats(2, 3, 8),
    floats(8),
    floats(8),
    outputs=3,
    reference=False,  # it keeps statistics in the input's dtype, whatever stash_type says
    seeded=(0,),
    torch=lambda x, s, b: (F.layer_norm(x, (8,), s, b, 1e-5), None, None),
)
