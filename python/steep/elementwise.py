"""PyTorch's functions of an element, as it defines them at their edges, in ONNX.

The exporter's words agree with PyTorch inside of a function's domain. Here are those that do not at
its ends, at ties, at zero or where a number is small: in values or, more often, in slopes.
"""

from __future__ import annotations

from typing import Any

import onnx
import torch
from onnxscript import ir, opset18


def number(value: float, like: Any) -> Any:
    """Return a constant of no dimension, of the dtype of a tensor."""
    kind = like.dtype if like.dtype is not None else ir.DataType.DOUBLE
    made = opset18.Constant(value=onnx.helper.make_tensor("", int(kind), [], [value]))
    return made if like.dtype is not None else opset18.CastLike(made, like)


def _clamp(self: Any, min: Any = None, max: Any = None) -> Any:
    """Slope 1 at both ends."""
    bounds = [b if isinstance(b, ir.Value | None) else number(b, self) for b in (min, max)]
    if all(b is None or b.shape == () for b in bounds):
        return opset18.Clip(self, *(b if b is None else opset18.CastLike(b, self) for b in bounds))
    for bound, beyond in zip(bounds, (opset18.Less, opset18.Greater), strict=True):
        if bound is not None:
            end = opset18.CastLike(bound, self)
            self = opset18.Where(beyond(self, end), end, self)
    return self


def _hardtanh(self: Any, min_val: float = -1, max_val: float = 1) -> Any:
    """Slope 0 at both ends."""
    low, high = number(min_val, self), number(max_val, self)
    lower = opset18.Where(opset18.GreaterOrEqual(self, high), high, self)
    return opset18.Where(opset18.LessOrEqual(self, low), low, lower)


def _relu6(self: Any) -> Any:
    return _hardtanh(self, 0, 6)


def _selu(self: Any) -> Any:
    return opset18.Selu(self, alpha=1.6732632423543772, gamma=1.0507009873554805)


def _celu(self: Any, alpha: float = 1) -> Any:
    if self.dtype == ir.DataType.FLOAT:  # ONNX's has no other
        return opset18.Celu(self, alpha=alpha)
    scale = number(alpha, self)
    return opset18.Mul(scale, opset18.Elu(opset18.Div(self, scale)))


def _hardsigmoid(self: Any) -> Any:
    return opset18.HardSigmoid(self, alpha=1 / 6, beta=0.5)


aten = torch.ops.aten

AS_IN_TORCH: dict[Any, Any] = {
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.clamp_min.default: _clamp,
    aten.clamp_min.Tensor: _clamp,
    aten.clamp_max.default: lambda self, max: _clamp(self, None, max),
    aten.clamp_max.Tensor: lambda self, max: _clamp(self, None, max),
    aten.hardtanh.default: _hardtanh,
    aten.relu6.default: _relu6,
    aten.selu.default: _selu,
    aten.celu.default: _celu,
    aten.hardsigmoid.default: _hardsigmoid,
}
"""Translations by operator."""
