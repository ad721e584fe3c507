"""Casts to an integer of numbers that it cannot hold, whose result ONNX does not define."""

from __future__ import annotations

import platform

from onnxscript.function_libs.torch_lib.ops.core import aten__to_copy

from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.values import Translation, Value, number
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload

_IS_X86 = platform.machine() in ("x86_64", "AMD64")
_TRUNCATED = {
    *(ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32),
    ir.DataType.INT64,
}


def cast(x: Value, kind: ir.DataType | int) -> Value:
    """Cast to a dtype; a number out of an integer's range, or NaN, becomes the same as in PyTorch.

    ONNX does not define this case. On x86, PyTorch's result is the least int32 or int64, of which
    smaller integers take the low bits.
    """
    real = x.dtype is not None and x.dtype.is_floating_point()
    if kind not in _TRUNCATED or not real or not _IS_X86:
        return aten__to_copy(x, kind)
    wide = kind if kind == ir.DataType.INT64 else ir.DataType.INT32
    end = 2.0**63 if kind == ir.DataType.INT64 else 2.0**31
    least = number(-end, x)
    holds = opset18.And(opset18.GreaterOrEqual(x, least), opset18.Less(x, number(end, x)))
    whole = opset18.Cast(opset18.Where(holds, x, least), to=wide)
    return whole if kind == wide else opset18.Cast(whole, to=kind)


def _to_copy(self: Value, dtype: int = -1, **options: object) -> Value:
    return opset18.Identity(self) if dtype in (-1, None) else cast(self, dtype)


AS_IN_TORCH: dict[OpOverload, Translation] = operators(
    {"aten._to_copy.default": _to_copy, "prims.convert_element_type.default": _to_copy}
)
"""Translations by operator."""
