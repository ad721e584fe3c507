"""Adds nodes of the engine's own domain ``steep`` to what PyTorch's exporter records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from steep.lowering.ops.onnx_script import evaluator, exporter, ir, opset18
from steep.lowering.ops.values import Value


def steep_node(op: str, inputs: Sequence[Value], count: int = 1, **attributes: int) -> list[Value]:
    """Add a node ``steep.op``; return its ``count`` results, which have neither dtype nor shape."""
    recorder: exporter.building.OpRecorder = evaluator.default()
    results = [exporter.SymbolicTensor(recorder.opset) for _ in range(count)]
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
    return with_changes(value, lambda g: [(x, opset18.Mul(g, slope)) for x, slope in parts])


def with_changes(value: Value, changes: Callable[[Value], Sequence[tuple[Value, Value]]]) -> Value:
    """Return ``value`` with the gradient of each tensor of the pairs that ``changes`` returns.

    ``changes`` gets the gradient of ``value``, and the gradients have the shape of ``value``, to
    which the tensors are broadcast. ``value`` must be from ``detach``.
    """
    (gradient,) = steep_node("GradientOf", [value])
    shape = opset18.Shape(value)
    pairs = changes(gradient)
    tensors = [opset18.Expand(x, shape) for x, _ in pairs]
    inputs = [value, *tensors, *(change for _, change in pairs), gradient]
    return steep_node("WithGradient", inputs, outputs=1)[0]
