"""Gradients that stop: an operator of ours, which ONNX says as an Identity with metadata."""

from __future__ import annotations

import onnx
import torch
from onnxscript import ir, opset18

from steep._steep import STOP_GRADIENT_KEY
from steep.lowering.ops.values import Translation, Value
from steep.torch_internals.operators import OpOverload

_AGAIN = "steep.slope_or_again"
_OPERATORS = torch.library.Library("steep", "DEF")
_OPERATORS.define("stop_gradient(Tensor x) -> Tensor")
_OPERATORS.impl("stop_gradient", lambda x: x.detach().clone(), "CompositeExplicitAutograd")
# by default autograd would note that it has no derivative, and the result would need a gradient
_OPERATORS.impl("stop_gradient", torch.library.fallthrough_kernel, "Autograd")


def stop_gradient(input: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor of any shape and dtype, which no gradient reaches."""
    if not input.dtype.is_floating_point:
        return input
    stopped: torch.Tensor = torch.ops.steep.stop_gradient(input)
    return stopped


def fixed(x: Value) -> Value:
    """Return an ONNX value that no gradient reaches: an Identity with metadata, standard ONNX."""
    y = opset18.Identity(x)
    y.producer().metadata_props[STOP_GRADIENT_KEY] = ""
    return y


def slope_or_again(slope: Value, again: Value) -> Value:
    """Return an ONNX value: ``slope``, but ``again`` in a gradient that is differentiated again.

    For slopes of which PyTorch has another formula with ``create_graph=True``.
    """
    always = opset18.Cast(opset18.Constant(value_int=1), to=ir.DataType.BOOL)
    y = opset18.Where(always, slope, again)
    y.producer().metadata_props[_AGAIN] = ""
    return y


def take_again(graph: onnx.GraphProto) -> None:
    """Take the other one of each ``slope_or_again``, in place; a singular matrix is an error.

    PyTorch solves systems for the slopes of ``slogdet`` then.
    """
    for node in graph.node:
        if (node.domain, node.op_type) == ("steep", "SlogDet"):
            node.attribute.append(onnx.helper.make_attribute("check", 1))
        if any(p.key == _AGAIN for p in node.metadata_props):
            again = node.input[2]  # alone: the other one may be infinite, which no mask undoes
            node.op_type = "Identity"
            del node.input[:]
            node.input.append(again)


TRANSLATIONS: dict[OpOverload, Translation] = {torch.ops.steep.stop_gradient.default: fixed}
"""For torch.onnx.export of what torch.export captured."""
