"""Steep's own operators."""

import math

import numpy as np
import onnx
import torch

from .row import SHAPES, apart, floats, ints, table

ROWS, row = table()


def products(x, axis, exclusive=0, reverse=0):
    x = x.flip(axis) if reverse else x
    if exclusive and x.shape[axis]:
        x = torch.cat(
            [torch.ones_like(x.narrow(axis, 0, 1)), x.narrow(axis, 0, x.shape[axis] - 1)], axis
        )
    y = x.cumprod(axis)
    return y.flip(axis) if reverse else y


for _x, _to in (
    ((2, 3), (3,)),
    ((2, 3), (2, 1)),
    ((2, 3), ()),
    ((2, 3), (1, 1)),
    ((2, 3), (2, 3)),
    ((4, 2, 3), (2, 1)),
    ((0, 3), (3,)),
    ((3, 0), (3, 1)),
    ((2, 3, 4, 5), (3, 1, 5)),
    ((), ()),
    ((33,), (1,)),
):
    row(
        "steep.SumTo",
        floats(*_x),
        ints(list(_to)),
        note=str(_to),
        torch=lambda x, s, to=_to: x.sum_to_size(to) if to else x.sum(),
    )

for _shape in SHAPES:
    for _approximate in ("none", "tanh"):
        row(
            "steep.GeluGrad",
            floats(*_shape),
            floats(*_shape, low=-9, high=9),
            attrs={"approximate": _approximate},
            torch=lambda dy, x, how=_approximate: torch.ops.aten.gelu_backward(
                dy, x, approximate=how
            ),
        )

for _shape in SHAPES:  # whose slope is not its gradient
    row("steep.StopGradient", floats(*_shape), torch=lambda x: x.detach(), smooth=False)

for _x, _axis in [((2, 3, 4), 1), ((3, 70), 1), *[(_shape, -1) for _shape in SHAPES if _shape]]:
    row(
        "steep.SafeSoftmax",
        floats(*_x),
        attrs={"axis": _axis},
        torch=lambda x, a=_axis: torch.ops.aten._safe_softmax(x, a),
    )

for _x, _axis, _flags in [
    ((2, 3, 4), 1, {}),
    ((5,), 0, {"reverse": 1}),
    ((3, 4), 1, {"exclusive": 1}),
    ((3, 4), -2, {"exclusive": 1, "reverse": 1}),
    ((0, 3), 1, {}),
    ((3, 0), 1, {}),
    ((1,), 0, {}),
    ((2, 1, 3, 2), 2, {"reverse": 1}),
    ((4, 1), 0, {}),
    ((17, 2), 0, {"exclusive": 1}),
    ((2, 0, 3), 0, {}),
    ((33,), 0, {}),
]:
    row(
        "steep.CumProd",
        floats(*_x),
        attrs={"axis": _axis, **_flags},
        torch=lambda x, a=_axis, f=_flags: products(x, a, **f),
    )

for _x, _k, _axis, _flags in [
    ((3, 9), 4, 1, {}),
    ((3, 9), 9, 1, {"largest": 0}),
    ((130,), 2, 0, {}),  # by partial_sort, as k · 64 ≤ n
    ((130,), 2, 0, {"largest": 0}),
    ((5, 3, 4), 3, 0, {}),
    ((2, 6, 4), 1, 1, {"sorted": 0}),
    ((2, 0, 4), 0, 1, {}),
    ((0, 5), 2, 1, {}),
    ((7,), 0, -1, {}),
    ((2, 3, 8), 5, -1, {"largest": 0}),
    ((1,), 1, 0, {}),
    ((4, 33), 7, -1, {}),
]:
    row(
        "steep.TopK",
        apart(*_x),
        attrs={"k": _k, "axis": _axis, **_flags},
        outputs=2,
        torch=lambda x, k=_k, a=_axis, f=_flags: torch.topk(x, k, a, f.get("largest", 1) != 0),
    )

for _x, _rows in [
    ((5, 3), [0, 2, 4]),
    ((5, 3), [0, 1, 2, 3, 4]),
    ((7,), [3]),
    ((4, 2, 33), [1, 3]),
    ((3, 0), [2]),
    ((6, 4), []),
    ((0, 4), []),
    ((1,), [0]),
    ((33, 1), [0, 7, 8, 32]),
    ((3, 0, 2), [0, 1]),
    ((2, 1, 3, 5), [1]),
    ((130, 5), list(range(3, 130, 2))),
]:
    _i = ints(_rows)
    row("steep.TakeRows", floats(*_x), _i, torch=lambda x, i: x[i])
    row(
        "steep.PutRows",
        floats(len(_rows), *_x[1:]),
        _i,
        ints(list(_x)),
        torch=lambda y, i, s: y.new_zeros(s.tolist()).index_copy(0, i, y),
    )

SEED = ints(17, 3)
for _extents, _rows, _row in [
    ([2, 3], [0, 2, 5], 9),
    ([2, 3], [0, 1, 2, 3, 4, 5], 9),
    ([7], [6], 1),
    ([7], [], 4),
    ([0, 3], [], 4),
    ([4, 25], [0, 3, 99], 33),
    ([4, 25], [1, 2], 0),
    ([1, 1], [0], 5),
    ([3, 2, 2], [0, 5, 6, 11], 2),
    ([5], [0, 1, 2, 3, 4], 17),
]:
    row(
        "steep.DropoutRows",
        floats(len(_rows), _row),
        ints(_rows),
        ints(_extents),
        SEED,
        attrs={"ratio": 0.4, "stream": 2},
    )
for _x, _ratio in zip([(4, 33), *SHAPES], 11 * [0.1, 0.25, 0.5], strict=False):
    row("steep.Dropout", floats(*_x), SEED, attrs={"ratio": _ratio, "stream": 2})
    row("steep.DropoutMask", floats(*_x), SEED, attrs={"ratio": _ratio, "stream": 2}, smooth=False)


def product_with_everything(
    a, b, bias=None, addend=None, perm_a=None, perm_b=None, perm_y=None, alpha=1.0, activation=""
):
    a = a.permute(perm_a) if perm_a else a
    b = b.permute(perm_b) if perm_b else b
    y = torch.matmul(a, b) * alpha
    y = y if bias is None else y + bias
    y = torch.relu(y) if activation else y
    y = y.permute(perm_y) if perm_y else y
    return y if addend is None else y + addend


for _a, _b, _bias, _attrs in (
    ((2, 3), (3, 4), False, {}),
    ((2, 3), (3, 4), True, {"activation": "Relu"}),
    ((2, 3), (4, 3), True, {"perm_b": [1, 0]}),
    ((3, 2), (3, 4), False, {"perm_a": [1, 0], "alpha": 0.125}),
    ((3, 2), (4, 3), False, {"perm_a": [1, 0], "perm_b": [1, 0], "perm_y": [1, 0]}),
    ((5, 2, 3), (3, 4), True, {}),
    ((5, 2, 3), (1, 3, 4), False, {"perm_y": [1, 0, 2]}),
    (
        (2, 5, 3, 4),
        (2, 6, 3, 4),
        False,
        {"perm_a": [0, 2, 1, 3], "perm_b": [0, 2, 3, 1], "alpha": 0.5},
    ),
    ((2, 3, 5, 6), (2, 6, 3, 4), False, {"perm_b": [0, 2, 1, 3], "perm_y": [0, 2, 1, 3]}),
    ((1, 2, 2, 3, 2), (2, 1, 2, 2, 3), True, {}),
    ((0, 3), (3, 4), True, {}),
    ((2, 0), (0, 4), True, {}),
):
    row(
        "steep.MatMul",
        floats(*_a),
        floats(*_b),
        *([floats(_b[_attrs.get("perm_b", range(len(_b)))[-1]])] if _bias else []),
        attrs=_attrs,
        torch=lambda *x, attrs=_attrs: product_with_everything(*x, **attrs),
    )

for _a, _b, _y, _bias, _attrs in (
    ((2, 3), (3, 4), (2, 4), False, {}),
    ((65, 70), (70, 66), (65, 66), False, {}),  # past what small loops take
    ((70, 65), (70, 66), (65, 66), False, {"perm_a": [1, 0]}),
    ((70, 65), (70, 66), (66, 65), False, {"perm_a": [1, 0], "perm_y": [1, 0]}),
    ((5, 2, 3), (3, 4), (5, 2, 4), False, {}),
    ((2, 3), (3, 4), (2, 4), True, {"alpha": 0.5, "activation": "Relu"}),
    ((0, 3), (3, 4), (0, 4), False, {}),
    ((2, 0), (0, 4), (2, 4), False, {}),
):
    row(
        "steep.MatMul",
        floats(*_a),
        floats(*_b),
        floats(_y[-1]) if _bias else None,
        floats(*_y),
        attrs=_attrs,
        torch=lambda *x, attrs=_attrs: product_with_everything(*x, **attrs),
        note="addend",
    )

for _a, _b in (
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((2, 1, 4), (3, 1)),
    ((), (5,)),
    ((0, 3), (1, 3)),
    ((), ()),
):
    row(
        "steep.Fused",
        floats(*_a),
        floats(*_b),
        torch=lambda a, b: torch.tanh(a * b + a),
        attrs={"body": [("Mul", [0, 1]), ("Add", [2, 0]), ("Tanh", [3])]},
        reference=False,
    )
    row(
        "steep.Fused",
        floats(*_a),
        floats(*_b),
        outputs=2,
        note="two results",
        reference=False,
        torch=lambda a, b: (torch.exp(a + b), torch.exp(a + b) - b),
        attrs={"body": [("Add", [0, 1]), ("Exp", [2]), ("Sub", [3, 1])]},
    )

for _whole, _part, _axis, _start in (
    ((2, 5), (2, 2), 1, 0),
    ((2, 5), (2, 2), -1, 3),
    ((4, 3, 2), (1, 3, 2), 0, 2),
    ((1, 70), (1, 33), 1, 20),
    ((2, 3), (2, 3), 1, 0),
    ((2, 0), (2, 0), 1, 0),
    ((0, 3), (0, 1), 1, 1),
    ((9,), (4,), 0, 5),
    ((2, 3, 4, 5), (2, 3, 2, 5), 2, 1),
    ((3, 4), (3, 0), 1, 2),
    ((17, 2), (16, 2), 0, 1),
):
    row(
        "steep.SetPart",
        floats(*_whole),
        floats(*_part),
        attrs={"axis": _axis, "start": _start},
        torch=lambda x, p, a=_axis, i=_start: x.slice_scatter(p, a, i, i + p.shape[a]),
    )

for _shape in ((), (1,), (5,), (0,), (33,), (2, 3), (2, 0), (4, 4), (3, 1, 5), (2, 2, 2), (70, 3)):
    _count = math.prod(_shape)
    row(
        "steep.Unpack",
        (np.arange((_count + 1) // 2) * 37 % 256).astype(np.uint8),
        attrs={"dtype": int(onnx.TensorProto.UINT4), "shape": list(_shape)},
        reference=False,
        torch=lambda x, n=_count, to=_shape: (
            torch.stack([x & 15, x >> 4], -1).flatten()[:n].reshape(to)
        ),
    )
