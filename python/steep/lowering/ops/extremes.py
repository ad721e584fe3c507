"""``torch.fmax`` and ``fmin``, whose gradients differ between releases of PyTorch."""

from __future__ import annotations

from steep.lowering.ops.onnx_script import opset18
from steep.lowering.ops.steep_nodes import with_gradient_of
from steep.lowering.ops.stop_gradient import detach
from steep.lowering.ops.values import Operator, Translation, Value, is_nan, number
from steep.patching.torch_versions import (
    FMAX_HAS_SLOPES_BESIDE_NAN,
    FMAX_SHARES_TIES,
    operators,
)
from steep.torch_internals.operators import OpOverload


def _ignoring_nan(wins: Operator) -> Operator:
    """Return ``fmax`` or ``fmin``: NaN only if both operands are.

    ``wins`` compares the operands. The gradients at ties and beside NaN are those of the installed
    PyTorch.
    """

    def extreme(self: Value, other: Value) -> Value:
        first = opset18.Or(wins(self, other), is_nan(other))
        result = opset18.Where(first, self, other)
        if not FMAX_SHARES_TIES or (self.dtype is not None and self.dtype.is_integer()):
            return result
        both = opset18.Add(self, other)
        tie = opset18.Equal(self, other)
        source = opset18.Where(tie, opset18.Mul(both, number(0.5, self)), result)
        if FMAX_HAS_SLOPES_BESIDE_NAN:
            source = opset18.Where(opset18.Or(is_nan(self), is_nan(other)), both, source)
        return with_gradient_of(detach(result), source)

    return extreme


AS_IN_TORCH: dict[OpOverload, Translation] = operators(
    {
        "aten.fmax.default": _ignoring_nan(opset18.GreaterOrEqual),
        "aten.fmin.default": _ignoring_nan(opset18.LessOrEqual),
    }
)
