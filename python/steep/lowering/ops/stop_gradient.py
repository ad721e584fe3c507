"""An operator that stops gradients; in ONNX an Identity with metadata."""

from __future__ import annotations

import onnx
import torch

from steep._steep import STOP_GRADIENT_KEY
from steep.errors import InstallationError
from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.values import Translation, Value
from steep.torch_internals.operators import OpOverload

_AGAIN = "steep.slope_or_again"
try:
    _OPERATORS = torch.library.Library("steep", "DEF")
except RuntimeError as error:
    raise InstallationError(
        "PyTorch has Steep's operators already, from an earlier import in this process.",
        node="steep",
        expected="one import: no later code takes steep's modules from sys.modules",
        received=str(error),
        remedy="start a new process; importlib.reload and deleted modules cannot undo an import",
    ) from None
_OPERATORS.define("stop_gradient(Tensor x) -> Tensor")
_OPERATORS.impl("stop_gradient", lambda x: x.detach().clone(), "CompositeExplicitAutograd")
# otherwise autograd would record a node without a derivative, and the result would need a gradient
_OPERATORS.impl("stop_gradient", torch.library.fallthrough_kernel, "Autograd")


def stop_gradient(input: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same values, shape and dtype, without a gradient."""
    if not input.dtype.is_floating_point:
        return input
    result: torch.Tensor = torch.ops.steep.stop_gradient(input)
    return result


def detach(x: Value) -> Value:
    """Return an ONNX value without a gradient: an Identity with metadata (standard ONNX)."""
    y = opset18.Identity(x)
    y.producer().metadata_props[STOP_GRADIENT_KEY] = ""
    return y


def slope_or_again(slope: Value, again: Value) -> Value:
    """Return a value that is ``slope`` in a gradient, and ``again`` in second derivatives.

    For operators whose gradient has another formula in PyTorch with ``create_graph=True``.
    """
    always = opset18.Cast(opset18.Constant(value_int=1), to=ir.DataType.BOOL)
    y = opset18.Where(always, slope, again)
    y.producer().metadata_props[_AGAIN] = ""
    return y


def take_again(graph: onnx.GraphProto) -> None:
    """Select ``again`` in each ``slope_or_again``, in place, for second derivatives.

    Also makes a singular matrix an error in ``slogdet``: PyTorch solves systems for its gradient
    then.
    """
    for node in graph.node:
        if (node.domain, node.op_type) == ("steep", "SlogDet"):
            node.attribute.append(onnx.helper.make_attribute("check", 1))
        if any(p.key == _AGAIN for p in node.metadata_props):
            again = node.input[2]  # drop the slope: it may be infinite, and 0 · ∞ is NaN
            node.op_type = "Identity"
            del node.input[:]
            node.input.append(again)


TRANSLATIONS: dict[OpOverload, Translation] = {torch.ops.steep.stop_gradient.default: detach}
"""Translations by operator, for ``torch.onnx.export`` of a program of ``torch.export``."""
