"""Quantising, reading back, and products of quantised numbers."""

import ml_dtypes
import numpy as np
import torch

from .row import floats, table

ROWS, row = table()

INTEGERS = (np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.int4, ml_dtypes.uint4)
FLOATS = (
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz,
)
GRANULARITIES = [
    ((3, 4), (), {}),
    ((3, 4), (1,), {"axis": 0}),
    ((3, 4), (4,), {"axis": 1}),
    ((3, 4), (3,), {"axis": -2}),
    ((2, 3, 2), (3,), {"axis": 1}),
    ((2, 6), (2, 3), {"axis": 1, "block_size": 2}),
    ((4, 5), (2, 5), {"axis": 0, "block_size": 2}),
    ((0, 4), (4,), {"axis": 1}),
    ((), (), {}),
]


def scales(*shape):
    return np.linspace(0.25, 0.75, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def zeros(dtype, *shape):
    return np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 3, dtype)


for _type in INTEGERS:
    for _x, _s, _attrs in GRANULARITIES if _type in (np.int8, np.uint8) else GRANULARITIES[2:6:3]:
        _note = f"{np.dtype(_type).name}{_x}{_s}"
        row(
            "QuantizeLinear",
            floats(*_x, low=-60, high=60),
            scales(*_s),
            zeros(_type, *_s),
            attrs=_attrs,
            note=_note,
            smooth=False,
        )
        row(
            "DequantizeLinear",
            np.asarray(np.arange(int(np.prod(_x))).reshape(_x) % 7, _type),
            floats(*_s, low=0.5),
            zeros(_type, *_s),
            attrs=_attrs,
            note=_note,
            reference=False,  # it computes in single precision
        )
for _type in FLOATS:
    row(
        "QuantizeLinear",
        floats(3, 4, low=-900, high=900),
        scales(),
        np.zeros((), _type),
        note=np.dtype(_type).name,
        smooth=False,
    )
    row(
        "DequantizeLinear",
        np.linspace(-3, 3, 12).reshape(3, 4).astype(_type),
        floats(4, low=0.5),
        note=np.dtype(_type).name,
        reference=False,
    )


def fake(x, scale, zero, low, high, axis=None):
    if axis is None:
        return torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero), low, high)
    return torch.fake_quantize_per_channel_affine(
        x, scale.detach().float(), zero.int(), axis, low, high
    )


for _number, _type in ((2, np.uint8), (3, np.int8)):
    _info = np.iinfo(_type)
    for _x, _s, _axis in (
        ((3, 4), (), None),
        ((3, 4), (4,), 1),
        ((3, 4), (3,), 0),
        ((2, 3, 2), (3,), 1),
    ):
        row(
            "steep.FakeQuantize",
            floats(*_x, low=-90, high=90),
            scales(*_s),
            zeros(_type, *_s),
            attrs={"output_dtype": _number, "dtype": 1, "axis": 1 if _axis is None else _axis},
            smooth=False,
            note=f"{_type.__name__}{_x}{_s}",
            torch=lambda x, s, z, i=_info, a=_axis: fake(
                x.float(), s, z, int(i.min), int(i.max), a
            ),
        )

A, B = np.arange(12, dtype=np.uint8).reshape(4, 3) * 20, np.arange(6, dtype=np.int8).reshape(3, 2)
row("MatMulInteger", A, B)
row("MatMulInteger", A, B, np.array(12, np.uint8), np.array(-3, np.int8))
row("MatMulInteger", A, B, np.array([[1], [2], [3], [4]], np.uint8), np.array([1, -2], np.int8))
row("MatMulInteger", A.reshape(2, 2, 3), B, np.array(7, np.uint8))
row("MatMulInteger", A[:0], B)
for _a, _b in ((A, B), (A.reshape(2, 2, 3), np.stack([B, B + 5]))):
    row(
        "QLinearMatMul",
        _a,
        np.array(0.02, np.float32),
        np.array(100, np.uint8),
        _b,
        np.array(0.3, np.float32),
        np.array(2, np.int8),
        np.array(0.1, np.float32),
        np.array(20, np.uint8),
    )

X = (np.arange(50, dtype=np.uint8) * 5).reshape(1, 2, 5, 5)
W = (np.arange(36, dtype=np.int8) - 18).reshape(2, 2, 3, 3)
CENTRE, SKEW = np.array(100, np.uint8), np.array(-3, np.int8)
for _attrs in ({}, {"pads": [1, 1, 1, 1]}, {"strides": [2, 2]}, {"pads": [0, 1, 0, 1]}):
    row("ConvInteger", X, np.abs(W).astype(np.uint8), CENTRE, attrs=_attrs)
    row(
        "QLinearConv",
        X,
        np.array(0.02, np.float32),
        CENTRE,
        W,
        np.array([0.3, 0.2], np.float32),
        np.array([2, -1], np.int8),
        np.array(0.7, np.float32),
        np.array(120, np.uint8),
        attrs=_attrs,
    )
    row(
        "QLinearConv",
        X,
        np.array(0.02, np.float32),
        CENTRE,
        W,
        np.array(0.3, np.float32),
        SKEW,
        np.array(0.7, np.float32),
        np.array(120, np.uint8),
        np.array([5, -70], np.int32),
        attrs=_attrs,
    )
