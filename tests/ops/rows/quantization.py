"""Quantising, reading back, and products of quantised numbers."""

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

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
    ((1,), (1,), {"axis": 0}),
    ((5, 1, 2), (), {}),
    ((2, 3, 1, 2), (2,), {"axis": -1}),
    ((0, 4), (0, 2), {"axis": 1, "block_size": 2}),
    ((2, 0), (), {}),
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


def fake(x, scale, zero, low, high, axis=None, block=0):
    if axis is None:
        return torch.fake_quantize_per_tensor_affine(x, scale.item(), int(zero), low, high)
    if block:  # along the last axis: each block is a row of its own
        y = fake(x.reshape(-1, block), scale.flatten(), zero.flatten(), low, high, 0)
        return y.reshape(x.shape)
    return torch.fake_quantize_per_channel_affine(
        x, scale.detach().float(), zero.int(), axis % x.dim(), low, high
    )


for _number, _type in ((2, np.uint8), (3, np.int8)):
    _info = np.iinfo(_type)
    for _x, _s, _axis, _block in (
        ((3, 4), (), None, 0),
        ((3, 4), (4,), 1, 0),
        ((3, 4), (3,), 0, 0),
        ((2, 3, 2), (3,), 1, 0),
        ((), (), None, 0),
        ((1,), (1,), 0, 0),
        ((5,), (5,), -1, 0),
        ((2, 1, 3, 2), (1,), 1, 0),
        ((1, 2, 2, 3), (3,), -1, 0),
        ((2, 6), (2, 3), 1, 2),
        ((2, 1, 3), (2, 1, 1), -1, 3),
        ((0,), (), None, 0),
        ((0, 4), (4,), 1, 0),
    ):
        row(
            "steep.FakeQuantize",
            floats(*_x, low=-90, high=90),
            scales(*_s),
            zeros(_type, *_s),
            attrs={
                "output_dtype": _number,
                "dtype": 1,
                "axis": 1 if _axis is None else _axis,
                "block_size": _block,
            },
            smooth=False,
            note=f"{_type.__name__}{_x}{_s}",
            torch=lambda x, s, z, i=_info, a=_axis, b=_block: fake(
                x.float(), s, z, int(i.min), int(i.max), a, b
            ),
        )


def quantised(dtype, *shape):
    """Numbers all over the range of an 8-bit type."""
    count = int(np.prod(shape))
    return (np.arange(count) * 53 + 20).astype(np.uint8).view(dtype).reshape(shape)


def centred(x, zero=None, axis=None):
    """Numbers less their zero point, of which a vector has one an extent of `axis`."""
    if zero is None:
        return x.double()
    if zero.dim() and axis is not None:
        zero = zero.reshape([-1 if i == axis % x.dim() else 1 for i in range(x.dim())])
    return x.double() - zero.double()


def requantised(sums, scale, zero):
    info = torch.iinfo(zero.dtype)
    return torch.clamp(torch.round(sums * scale + zero), info.min, info.max).to(zero.dtype)


def integer_matmul(a, b, a_zero=None, b_zero=None):
    rows = None if a_zero is None or a_zero.dim() != 1 else -2
    return (centred(a, a_zero, rows) @ centred(b, b_zero)).int()


def quantised_matmul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
    rows = -2 if a_zero.dim() else None
    a_scale = a_scale[:, None] if a_scale.dim() else a_scale
    sums = centred(a, a_zero, rows) @ centred(b, b_zero)
    return requantised(sums, a_scale * b_scale / y_scale, y_zero)


PRODUCTS = [
    ((4, 3), (3, 2)),
    ((2, 2, 3), (2, 3, 2)),
    ((2, 2, 3), (3, 2)),
    ((2, 1, 2, 3), (3, 3, 1)),
    ((1, 1), (1, 1)),
    ((1, 7), (7, 1)),
    ((3,), (3,)),
    ((3,), (3, 2)),
    ((2, 4, 3), (3,)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
    ((0, 2, 3), (3, 2)),
]
for _a, _b in PRODUCTS:
    A, B = quantised(np.uint8, *_a), quantised(np.int8, *_b)
    for _zeros in ((), (np.array(12, np.uint8), np.array(-3, np.int8))):
        row("MatMulInteger", A, B, *_zeros, torch=integer_matmul)
    row(
        "QLinearMatMul",
        A,
        np.array(0.02, np.float32),
        np.array(100, np.uint8),
        B,
        np.array(0.3, np.float32),
        np.array(2, np.int8),
        np.array(0.7, np.float32),
        np.array(20, np.uint8),
        torch=quantised_matmul,
    )
A, B = quantised(np.uint8, 4, 3), quantised(np.int8, 3, 2)
ROW_ZEROS, COLUMN_ZEROS = np.array([1, 2, 3, 4], np.uint8), np.array([1, -2], np.int8)
row("MatMulInteger", A, B, ROW_ZEROS[:, None], COLUMN_ZEROS, torch=integer_matmul)
row(
    "MatMulInteger",
    A,
    B,
    ROW_ZEROS,
    COLUMN_ZEROS,
    reference=False,  # it takes zero points of rows for those of columns
    torch=integer_matmul,
)
row("MatMulInteger", A.reshape(2, 2, 3), B, np.array(7, np.uint8), torch=integer_matmul)
row(
    "QLinearMatMul",
    A,
    np.array([0.02, 0.03, 0.01, 0.05], np.float32),
    ROW_ZEROS,
    B,
    np.array([0.3, 0.2], np.float32),
    COLUMN_ZEROS,
    np.array(0.7, np.float32),
    np.array(-20, np.int8),
    reference=False,
    torch=quantised_matmul,
)


def convolved(x, w, strides=None, pads=None, dilations=None, group=1):
    spatial = x.dim() - 2
    pads = pads or [0] * (2 * spatial)
    x = F.pad(x, [v for i in reversed(range(spatial)) for v in (pads[i], pads[i + spatial])])
    convolve = [F.conv1d, F.conv2d, F.conv3d][spatial - 1]
    return convolve(x, w, None, strides or 1, 0, dilations or 1, group)


def integer_conv(x, w, x_zero=None, w_zero=None, **attrs):
    return convolved(centred(x, x_zero), centred(w, w_zero, 0), **attrs).int()


def quantised_conv(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias=None, **attrs):
    sums = convolved(centred(x, x_zero), centred(w, w_zero, 0), **attrs)
    channels = [-1] + [1] * (x.dim() - 2)
    sums = sums if bias is None else sums + bias.reshape(channels)
    scale = x_scale * w_scale / y_scale
    return requantised(sums, scale.reshape(channels) if scale.dim() else scale, y_zero)


CENTRE, SKEW = np.array(100, np.uint8), np.array(-3, np.int8)
CONVOLUTIONS = [
    ((1, 2, 5, 5), (2, 2, 3, 3), {}),
    ((1, 2, 5, 5), (2, 2, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 2, 5, 5), (2, 2, 3, 3), {"strides": [2, 2]}),
    ((1, 2, 5, 5), (2, 2, 3, 3), {"pads": [0, 1, 0, 1]}),
    ((1, 1, 1), (1, 1, 1), {}),
    ((3, 1, 4), (2, 1, 2), {}),
    ((2, 4, 6), (4, 1, 3), {"group": 4, "pads": [0, 2]}),
    ((2, 4, 3, 4), (6, 2, 2, 1), {"group": 2, "strides": [1, 2]}),
    ((1, 1, 5, 6), (3, 1, 2, 2), {"dilations": [2, 3]}),
    ((2, 3, 1, 4), (2, 3, 1, 1), {}),
    ((1, 2, 3, 2, 3), (2, 2, 2, 2, 1), {}),
    ((0, 2, 4, 4), (3, 2, 3, 3), {}),
]
for _x, _w, _attrs in CONVOLUTIONS:
    X, W = quantised(np.uint8, *_x), quantised(np.int8, *_w)
    row(
        "ConvInteger",
        X,
        W.view(np.uint8),
        CENTRE,
        attrs=_attrs,
        torch=lambda *x, a=_attrs: integer_conv(*x, **a),
    )
    _channels = np.arange(_w[0])
    for _w_scale, _w_zero, _bias in (
        ((0.3 - _channels * 0.02).astype(np.float32), (2 - _channels * 3).astype(np.int8), ()),
        (np.array(0.3, np.float32), SKEW, ((5 - _channels * 75).astype(np.int32),)),
    ):
        row(
            "QLinearConv",
            X,
            np.array(0.02, np.float32),
            CENTRE,
            W,
            _w_scale,
            _w_zero,
            np.array(4.7, np.float32),
            np.array(120, np.uint8),
            *_bias,
            attrs=_attrs,
            reference=not _w_scale.ndim or len(_x) == 4,  # its scales of channels are for images
            torch=lambda *x, a=_attrs: quantised_conv(*x, **a),
        )
row(
    "ConvInteger",
    quantised(np.int8, 2, 2, 3),
    quantised(np.int8, 3, 2, 2),
    SKEW,
    np.array([2, -1, 7], np.int8),
    reference=False,
    torch=integer_conv,
)
