"""Functions whose slopes are formulas of PyTorch's own, in ONNX: at zero and beside it."""

from __future__ import annotations

import math
from typing import Any

from onnxscript import opset18

from steep.lowering.ops.elementwise import logaddexp, number
from steep.lowering.ops.steep_nodes import with_slopes
from steep.lowering.ops.stop_gradient import fixed
from steep.patching.torch_versions import operators


def _sinc(self: Any) -> Any:
    """sin(πx) / (πx); 1 at 0. The slope is 0 where πx² is."""
    one, pi = number(1, self), number(math.pi, self)
    zero = opset18.Equal(self, number(0, self))
    angle = opset18.Mul(opset18.Where(zero, one, self), pi)
    value = opset18.Where(zero, one, opset18.Div(opset18.Sin(angle), angle))
    angle = opset18.Mul(self, pi)
    change = opset18.Sub(opset18.Mul(angle, opset18.Cos(angle)), opset18.Sin(angle))
    square = opset18.Mul(opset18.Mul(self, self), pi)
    flat = opset18.Equal(square, number(0, self))
    slope = opset18.Div(change, opset18.Where(flat, one, square))
    return with_slopes(fixed(value), (self, opset18.Where(flat, number(0, self), slope)))


def _entr(self: Any) -> Any:
    """-x ln x; 0 at 0, and -∞ below. The slope, -1 - ln x, is infinite at 0, and none below."""
    zero, one = number(0, self), number(1, self)
    below = opset18.Where(opset18.Less(self, zero), number(-math.inf, self), self)
    inside = opset18.Greater(self, zero)
    x = opset18.Where(inside, self, one)
    value = opset18.Where(inside, opset18.Neg(opset18.Mul(x, opset18.Log(x))), below)
    slope = opset18.Neg(opset18.Add(one, opset18.Log(self)))
    return with_slopes(fixed(value), (self, slope))


def _logaddexp2(self: Any, other: Any) -> Any:
    base = number(math.log(2), self)
    return opset18.Div(logaddexp(opset18.Mul(self, base), opset18.Mul(other, base)), base)


AS_IN_TORCH: dict[Any, Any] = operators(
    {
        "aten.sinc.default": _sinc,
        "aten.special_sinc.default": _sinc,
        "aten.logaddexp2.default": _logaddexp2,
        "aten.special_entr.default": _entr,
    }
)
"""Translations by operator."""
