"""Adds nodes of the engine's own domain ``steep`` to what PyTorch's exporter records."""

from __future__ import annotations

from collections.abc import Sequence

import onnxscript
from onnxscript import ir, opset18

from steep.lowering.ops.values import Value
from steep.torch_internals.exporter import SymbolicTensor, building


def steep_node(op: str, inputs: Sequence[Value], count: int = 1, **attributes: int) -> list[Value]:
    """Add a node ``steep.op``; return its ``count`` results, which have neither dtype nor shape."""
    recorder: building.OpRecorder = onnxscript.evaluator.default()
    results = [SymbolicTensor(recorder.opset) for _ in range(count)]
    node_attributes = [ir.AttrInt64(name, int(value)) for name, value in attributes.items()]
    recorder.nodes.append(
        ir.Node("steep", op, list(inputs), node_attributes, outputs=results, version=1)
    )
    return list(results)


def with_gradient_of(value: Value, source: Value) -> Value:
    """Return ``value`` with the gradient of ``source``, which has the same shape.

    ``value`` must be from ``detach``: without a gradient of its own.
    """
    (gradient,) = steep_node("GradientOf", [value])
    return steep_node("WithGradient", [value, source, gradient, gradient], outputs=1)[0]


def with_slopes(value: Value, *parts: tuple[Value, Value]) -> Value:
    """Return ``value`` with gradients g · slope for each pair (tensor, slope) in ``parts``.

    Tensors and slopes are broadcast to the shape of ``value``, which must be from ``detach``.
    Second derivatives are those of the slopes.
    """
    (gradient,) = steep_node("GradientOf", [value])
    shape = opset18.Shape(value)
    tensors = [opset18.Expand(x, shape) for x, _ in parts]
    changes = [opset18.Mul(gradient, slope) for _, slope in parts]
    return steep_node("WithGradient", [value, *tensors, *changes, gradient], outputs=1)[0]
