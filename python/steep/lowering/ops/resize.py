"""Images of other extents, in ONNX: the pixel that PyTorch takes is the pixel that is taken."""

from __future__ import annotations

from typing import Any

import numpy
import onnx
import torch
from onnxscript import ir, opset18
from onnxscript.function_libs.torch_lib.ops import nn

from steep.lowering.ops.elementwise import ints

_FLOAT = ir.DataType.FLOAT


def _extents(x: Any, scales: Any) -> Any:
    """Return ⌊extent · scale⌋, in float64, of each axis behind the second; 1-D int64."""
    double = onnx.TensorProto.DOUBLE
    factors = opset18.Constant(value=onnx.helper.make_tensor("", double, [len(scales)], scales))
    before = opset18.Cast(opset18.Shape(x, start=2), to=double)
    return opset18.Cast(opset18.Floor(opset18.Mul(before, factors)), to=ir.DataType.INT64)


def _repeats(before: Any, after: Any) -> bool:
    """Whether all pixels are repeated as often, by float32's quotient of two known extents too."""
    if not isinstance(before, int) or not isinstance(after, int) or after % before:
        return False
    i = numpy.arange(after)
    taken = numpy.float32(before) / numpy.float32(after) * i.astype(numpy.float32)
    return bool((taken.astype(numpy.int64) == i // (after // before)).all())


_REPEATED = {1, 2, 3, 4, 8, 16, 32}  # by which PyTorch divides exactly enough


def _nearest(input: Any, output_size: Any = None, scale_factors: Any = None) -> Any:
    """Return ``upsample_nearest…d``, by indices where Resize may take a neighbour.

    The index is ⌊i · step⌋ in float32, at most the last; step is 1 / scale, or the quotient of the
    extents where no scale is given.
    """
    if scale_factors is not None:
        if _REPEATED.issuperset(scale_factors):
            return nn.aten_upsample_nearestnd_vec(input, None, list(scale_factors))
        wanted = _extents(input, scale_factors)
    else:
        if all(map(_repeats, input.shape[2:], output_size)):
            return nn.aten_upsample_nearestnd_vec(input, output_size, None)
        wanted = opset18.Cast(output_size, to=ir.DataType.INT64)
    for i in range(len(input.shape) - 2):
        last = opset18.Shape(input, start=i + 2, end=i + 3)
        count = opset18.Gather(wanted, opset18.Constant(value_int=i), axis=0)
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


def _smooth(mode: str, word: Any) -> Any:
    """Return ``upsample_….vec``: corners that are aligned are those of the extents that come out.

    ONNX has them of extents before they are rounded.
    """

    def resized(self: Any, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
        if scale_factors is None or not align_corners:
            return word(self, output_size, align_corners, scale_factors)
        wanted = _extents(self, scale_factors)
        return nn._aten_upsample_output_size(self, wanted, mode, "align_corners")

    return resized


def _antialiased(word: Any) -> Any:
    """Return ``_upsample_…_aa``; with corners that are aligned its filter is another."""

    def resized(self: Any, output_size: Any, align_corners: bool, *scales: float | None) -> Any:
        if align_corners:
            raise NotImplementedError("interpolation with antialias and align_corners")
        return word(self, output_size, align_corners, *scales)

    return resized


aten = torch.ops.aten

AS_IN_TORCH: dict[Any, Any] = {
    aten.upsample_nearest1d.vec: _nearest,
    aten.upsample_nearest2d.vec: _nearest,
    aten.upsample_nearest3d.vec: _nearest,
    aten.upsample_bilinear2d.vec: _smooth("linear", nn.aten_upsample_bilinear2d_vec),
    aten.upsample_trilinear3d.vec: _smooth("linear", nn.aten_upsample_trilinear3d_vec),
    aten.upsample_bicubic2d.vec: _smooth("cubic", nn.aten_upsample_bicubic2d_vec),
    aten._upsample_bilinear2d_aa.default: _antialiased(nn.aten__upsample_bilinear2d_aa),
    aten._upsample_bicubic2d_aa.default: _antialiased(nn.aten__upsample_bicubic2d_aa),
}
"""Translations by operator."""
