"""Which inputs a gradient can reach: others have no part in backward, as in PyTorch."""

from __future__ import annotations

import onnx

from steep.onnx_graph.traverse import read_by

_WITHOUT_GRADIENT = {
    *("Shape", "Size", "NonZero", "ArgMax", "ArgMin", "IsNaN", "IsInf"),
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor"),
}


def reached(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all that a result depends on, but for what stops gradients.

    One too many may be among them: this looks at names, at no types.
    """
    needed = {output.name for output in graph.output}
    for node in reversed(graph.node):
        if needed.isdisjoint(node.output) or _stops(node):
            continue
        needed.update(read_by(node))
    return needed


def _stops(node: onnx.NodeProto) -> bool:
    standard = node.domain in ("", "ai.onnx")
    if standard and node.op_type in _WITHOUT_GRADIENT:
        return True
    return any(p.key == "steep.stop_gradient" for p in node.metadata_props)
