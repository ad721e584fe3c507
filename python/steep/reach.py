"""Which inputs of a model a gradient can reach: others have no part in backward, as in PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx

_WITHOUT_GRADIENT = {
    *("Shape", "Size", "NonZero", "ArgMax", "ArgMin", "IsNaN", "IsInf"),
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor"),
}


def reached(model: bytes, inputs: Sequence[str]) -> set[str]:
    """Return those of ``inputs`` that a result depends on, but for what stops gradients.

    One too many may be among them: this looks at names, at no types.
    """
    graph = onnx.load_from_string(model).graph
    needed = {output.name for output in graph.output}
    for node in reversed(graph.node):
        if needed.isdisjoint(node.output) or _stops(node):
            continue
        needed.update(_read_by(node))
    return needed.intersection(inputs)


def _stops(node: onnx.NodeProto) -> bool:
    standard = node.domain in ("", "ai.onnx")
    if standard and node.op_type in _WITHOUT_GRADIENT:
        return True
    return any(p.key == "steep.stop_gradient" for p in node.metadata_props)


def _read_by(node: onnx.NodeProto) -> Iterable[str]:
    """Return what a node reads, its bodies included."""
    yield from node.input
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                yield from _read_by(inner)
            yield from (output.name for output in body.output)
