"""Powers with a constant exponent, some of which PyTorch computes as square roots.

And powers of whole numbers: PyTorch's result for 0 to a negative power is 0.
"""

from __future__ import annotations

from onnxscript.function_libs.torch_lib.ops.core import (
    aten_pow,
    aten_pow_scalar,
    aten_pow_tensor_scalar,
)

from steep.lowering.ops.onnx_script import opset18
from steep.lowering.ops.steep_nodes import with_gradient_of, with_slopes
from steep.lowering.ops.stop_gradient import detach
from steep.lowering.ops.values import Number, Translation, Value, number
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload


def _power(self: Value, exponent: Number) -> Value:
    """A power by a number; for ±0.5 a square root, which differs for -∞ (NaN) and -0 (-0).

    The gradient of a power of 1.5 is also computed by a square root.
    """
    if exponent == 0.5 and self.dtype is not None and self.dtype.is_floating_point():
        return opset18.Sqrt(self)
    power = aten_pow_tensor_scalar(self, exponent)
    if exponent == -0.5 and self.dtype is not None and self.dtype.is_floating_point():
        return with_gradient_of(detach(opset18.Reciprocal(opset18.Sqrt(self))), power)
    if exponent == 1.5 and self.dtype is not None and self.dtype.is_floating_point():
        return with_slopes(
            detach(power), (self, opset18.Mul(number(1.5, self), opset18.Sqrt(self)))
        )
    return power


def _are_whole(*values: Value) -> bool:
    return all(v.dtype is not None and v.dtype.is_integer() for v in values)


def _power_of_tensors(self: Value, exponent: Value) -> Value:
    if _are_whole(self, exponent):
        has_none = opset18.And(
            opset18.Equal(self, number(0, self)), opset18.Less(exponent, number(0, exponent))
        )
        self = opset18.Where(has_none, number(2, self), self)  # 2 to a negative power is 0
    return aten_pow(self, exponent)


def _power_of_number(self: Number, exponent: Value) -> Value:
    if _are_whole(exponent) and self == 0:
        zeros = opset18.Equal(exponent, number(0, exponent))
        return opset18.CastLike(zeros, exponent)  # 0 to the power 0 is 1
    return aten_pow_scalar(self, exponent)


AS_IN_TORCH: dict[OpOverload, Translation] = operators(
    {
        "aten.pow.Tensor_Scalar": _power,
        "aten.pow.Tensor_Tensor": _power_of_tensors,
        "aten.pow.Scalar": _power_of_number,
    }
)
"""Translations by operator."""
