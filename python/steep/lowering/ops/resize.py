"""Resizing of images in ONNX, with exactly the pixels that PyTorch selects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import onnx
from onnxscript.function_libs.torch_lib.ops import nn
from onnxscript.function_libs.torch_lib.ops.core import aten_grid_sampler

from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.stop_gradient import detach
from steep.lowering.ops.values import Extents, Operator, Translation, Value, ints, number
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload

_FLOAT = ir.DataType.FLOAT


def _extents(x: Value, scales: Sequence[float]) -> Value:
    """Return ⌊extent · scale⌋, in float64, of each axis after the second; 1-D int64."""
    double = onnx.TensorProto.DOUBLE
    factors = opset18.Constant(value=onnx.helper.make_tensor("", double, [len(scales)], scales))
    before = opset18.Cast(opset18.Shape(x, start=2), to=double)
    return opset18.Cast(opset18.Floor(opset18.Mul(before, factors)), to=ir.DataType.INT64)


def _repeats(before: int | ir.SymbolicDim, after: int | Value) -> bool:
    """Return whether each pixel is repeated equally often, also with float32 index arithmetic.

    False if an extent is not known.
    """
    if not isinstance(before, int) or not isinstance(after, int) or after % before:
        return False
    i = numpy.arange(after)
    indices = numpy.float32(before) / numpy.float32(after) * i.astype(numpy.float32)
    return bool((indices.astype(numpy.int64) == i // (after // before)).all())


_REPEATED = {1, 2, 3, 4, 8, 16, 32}  # scales for which PyTorch's float32 indices are exact


def _nearest(
    input: Value, output_size: Extents | None = None, scale_factors: Sequence[float] | None = None
) -> Value:
    """Return ``upsample_nearest…d``, by Gather where ONNX's Resize may select a neighbour.

    The index is ⌊i · step⌋ in float32, at most the last; step is 1 / scale, or the quotient of the
    extents where no scale is given.
    """
    if scale_factors is not None:
        if _REPEATED.issuperset(scale_factors):
            return nn.aten_upsample_nearestnd_vec(input, None, list(scale_factors))
        extents = _extents(input, scale_factors)
    else:
        assert output_size is not None  # PyTorch passes one of the two
        if all(map(_repeats, input.shape[2:], output_size)):
            return nn.aten_upsample_nearestnd_vec(input, output_size, None)
        extents = opset18.Cast(output_size, to=ir.DataType.INT64)
    for i in range(len(input.shape) - 2):
        last = opset18.Shape(input, start=i + 2, end=i + 3)
        count = opset18.Gather(extents, opset18.Constant(value_int=i), axis=0)
        if scale_factors is not None:
            step = opset18.Constant(value_float=float(1 / numpy.float64(scale_factors[i])))
        else:
            step = opset18.Div(opset18.Cast(last, to=_FLOAT), opset18.Cast(count, to=_FLOAT))
        first, by = (opset18.Constant(value_int=n) for n in (0, 1))
        places = opset18.Cast(opset18.Range(first, count, by), to=_FLOAT)
        index = opset18.Cast(opset18.Floor(opset18.Mul(places, step)), to=ir.DataType.INT64)
        index = opset18.Min(index, opset18.Sub(last, ints(1)))
        input = opset18.Gather(input, index, axis=i + 2)
    return input


def _smooth(mode: str, onnx_operator: Operator) -> Operator:
    """Return ``upsample_….vec``; aligned corners refer to the rounded output extents.

    ONNX uses the extents before rounding.
    """

    def resize(
        self: Value,
        output_size: Extents | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> Value:
        if scale_factors is None or not align_corners:
            return onnx_operator(self, output_size, align_corners, scale_factors)
        extents = _extents(self, scale_factors)
        return nn._aten_upsample_output_size(self, extents, mode, "align_corners")

    return resize


def _antialias(onnx_operator: Operator) -> Operator:
    """Return ``_upsample_…_aa``; it refuses aligned corners, for which the filter differs."""

    def resize(
        self: Value, output_size: Extents, align_corners: bool, *scales: float | None
    ) -> Value:
        if align_corners:
            raise NotImplementedError("interpolation with antialias and align_corners")
        return onnx_operator(self, output_size, align_corners, *scales)

    return resize


def _sample(
    input: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Value:
    """Return ``grid_sample``; in nearest mode it reflects a coordinate, then rounds it.

    ONNX rounds first, which gives another element half-way between two.
    """
    nearest, border, reflection = 1, 1, 2
    if (interpolation_mode, padding_mode) == (nearest, reflection):
        grid = _nearest_of_reflected(input, grid, align_corners)
        padding_mode, align_corners = border, True
    return aten_grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners)


def _nearest_of_reflected(input: Value, grid: Value, align_corners: bool) -> Value:
    """Return a grid at the elements that PyTorch selects: -1 is the first, 1 the last element.

    Source: ``compute_source_index`` in ATen's GridSampler.h.
    """
    # the grid's last axis starts with the image's last axis
    axes = ints(*range(len(input.shape) - 1, 1, -1))
    size = opset18.CastLike(opset18.Gather(opset18.Shape(input), axes), grid)
    zero, one, half = (number(n, grid) for n in (0, 1, 0.5))
    last, place = opset18.Sub(size, one), opset18.Add(detach(grid), one)
    if align_corners:
        low, span = zero, last
        place = opset18.Mul(opset18.Mul(place, half), last)
    else:
        low, span = opset18.Neg(half), size
        place = opset18.Mul(opset18.Sub(opset18.Mul(place, size), one), half)
    alone = opset18.Equal(span, zero)
    span = opset18.Where(alone, one, span)
    way = opset18.Abs(opset18.Sub(place, low))
    turns, rest = opset18.Floor(opset18.Div(way, span)), opset18.Mod(way, span, fmod=1)
    even = opset18.Equal(opset18.Mod(turns, number(2, grid), fmod=1), zero)
    place = opset18.Add(opset18.Where(even, rest, opset18.Sub(span, rest)), low)
    place = opset18.Round(opset18.Max(opset18.Min(place, last), zero))
    steps = opset18.Max(last, one)
    return opset18.Sub(opset18.Div(opset18.Mul(number(2, grid), place), steps), one)


AS_IN_TORCH: dict[OpOverload, Translation] = operators(
    {
        "aten.grid_sampler.default": _sample,
        "aten.grid_sampler_2d.default": _sample,
        "aten.upsample_nearest1d.vec": _nearest,
        "aten.upsample_nearest2d.vec": _nearest,
        "aten.upsample_nearest3d.vec": _nearest,
        "aten.upsample_bilinear2d.vec": _smooth("linear", nn.aten_upsample_bilinear2d_vec),
        "aten.upsample_trilinear3d.vec": _smooth("linear", nn.aten_upsample_trilinear3d_vec),
        "aten.upsample_bicubic2d.vec": _smooth("cubic", nn.aten_upsample_bicubic2d_vec),
        "aten._upsample_bilinear2d_aa.default": _antialias(nn.aten__upsample_bilinear2d_aa),
        "aten._upsample_bicubic2d_aa.default": _antialias(nn.aten__upsample_bicubic2d_aa),
    }
)
"""Translations by operator."""
