"""Divisions, floor divisions and remainders in ONNX, rounded as in PyTorch."""

from __future__ import annotations

from onnxscript.function_libs.torch_lib.ops.core import (
    aten_div_mode,
    aten_floor_divide,
    aten_trunc,
)

from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.steep_nodes import with_slopes
from steep.lowering.ops.stop_gradient import detach
from steep.lowering.ops.values import Number, Translation, Value, number
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload


def _tensors(self: Number, other: Number) -> tuple[Value, Value, Value]:
    """Return two operands, one of which may be a number, as tensors, and a 0 of their dtype."""
    like = self if isinstance(self, ir.Value) else other
    self, other = (v if isinstance(v, ir.Value) else number(v, like) for v in (self, other))
    return self, other, number(0, like)


def _of_whole_numbers(x: Value) -> bool:
    return x.dtype is not None and x.dtype.is_integer()


def _rest(self: Value, other: Value, zero: Value) -> tuple[Value, Value]:
    """Return the remainder of truncated division, and where its sign is not the divisor's."""
    rest = opset18.Mod(self, other, fmod=1)
    against = opset18.Xor(opset18.Less(rest, zero), opset18.Less(other, zero))
    return rest, opset18.And(opset18.Not(opset18.Equal(rest, zero)), against)


def _remainder(self: Value, other: Value) -> Value:
    """The remainder of floor division, which has the sign of the divisor."""
    self, other, zero = _tensors(self, other)
    if _of_whole_numbers(self):
        return opset18.Mod(self, other)
    rest, moves = _rest(self, other, zero)
    result = opset18.Where(moves, opset18.Add(rest, other), rest)
    return _of_quotient(result, self, other, detach(_floor_divide(self, other)))


def _fmod(self: Value, other: Value) -> Value:
    """The remainder of truncated division, which has the sign of the dividend."""
    self, other, _ = _tensors(self, other)
    rest = opset18.Mod(self, other, fmod=1)
    if _of_whole_numbers(self):
        return rest
    return _of_quotient(rest, self, other, detach(aten_trunc(opset18.Div(self, other))))


def _of_quotient(rest: Value, x: Value, y: Value, times: Value) -> Value:
    """Return the remainder of x / y with gradients 1 and minus the whole quotient ``times``."""
    return with_slopes(detach(rest), (x, number(1, x)), (y, opset18.Neg(times)))


def _floor_divide(self: Value, other: Value) -> Value:
    """Floor division as Python's ``//``: 1 // 0.1 is 9; its gradient is 0.

    ⌊a / b⌋ differs if the quotient is rounded up to a whole number.
    """
    self, other, zero = _tensors(self, other)
    if _of_whole_numbers(self):
        return _floor_divide_integers(self, other)
    rest, moves = _rest(self, other, zero)
    times = opset18.Div(opset18.Sub(self, rest), other)
    one, half = number(1, zero), number(0.5, zero)
    times = opset18.Where(moves, opset18.Sub(times, one), times)
    whole = opset18.Floor(times)  # times is whole, but for rounding errors
    whole = opset18.Where(
        opset18.Greater(opset18.Sub(detach(times), whole), half), opset18.Add(whole, one), whole
    )
    by_zero = opset18.Equal(other, zero)
    return opset18.Where(by_zero, opset18.Floor(opset18.Div(self, other)), whole)


def _floor_divide_integers(self: Value, other: Value) -> Value:
    """Floor division of integers; the least integer by -1 gives itself, as in PyTorch.

    The processor's division would trap there.
    """
    if not self.dtype.is_signed():
        return aten_floor_divide(self, other)
    one = number(1, self)
    negates = opset18.Equal(other, opset18.Neg(one))
    by = opset18.Where(negates, one, other)
    by.dtype = self.dtype
    return opset18.Where(negates, opset18.Neg(self), aten_floor_divide(self, by))


def _divide(self: Value, other: Value, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return _floor_divide(self, other)
    self, other, _ = _tensors(self, other)
    if rounding_mode == "trunc" and _of_whole_numbers(self):
        return opset18.Div(self, other)  # not in float32, which is exact only below 2²⁴
    return aten_div_mode(self, other, rounding_mode)


AS_IN_TORCH: dict[OpOverload, Translation] = operators(
    {
        "aten.div.Tensor_mode": _divide,
        "aten.div.Scalar_mode": _divide,
        "aten.floor_divide.default": _floor_divide,
        "aten.floor_divide.Scalar": _floor_divide,
        "aten.fmod.Tensor": _fmod,
        "aten.fmod.Scalar": _fmod,
        "aten.remainder.Tensor": _remainder,
        "aten.remainder.Scalar": _remainder,
        "aten.remainder.Scalar_Tensor": _remainder,
    }
)
"""Translations by operator."""
