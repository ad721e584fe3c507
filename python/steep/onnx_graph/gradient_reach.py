"""Which inputs a gradient can reach; others have no part in backward, as in PyTorch."""

from __future__ import annotations

import onnx

from steep._steep import STOP_GRADIENT_KEY
from steep.onnx_graph.traverse import read_by

_WITHOUT_GRADIENT = {
    *("Shape", "Size", "NonZero", "ArgMax", "ArgMin", "IsNaN", "IsInf"),
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor"),
}


def find_gradient_reach(graph: onnx.GraphProto) -> set[str]:
    """Return the names of values from which a gradient path leads to a result.

    May contain too many: only names are considered, not dtypes.
    """
    names = {output.name for output in graph.output}
    for node in reversed(graph.node):
        if names.isdisjoint(node.output) or _stops(node):
            continue
        names.update(read_by(node))
    return names


def results_of_results(graph: onnx.GraphProto) -> dict[int, list[int]]:
    """Return, by result, which other results are computed from it along gradient paths.

    May contain too many: only names are considered, not dtypes.
    """
    own = {output.name: 1 << i for i, output in enumerate(graph.output)}
    before: dict[str, int] = {}  # by value, a bit for each result that it is computed from
    for node in graph.node:
        bits = 0
        if not _stops(node):
            for name in read_by(node):
                bits |= before.get(name, 0) | own.get(name, 0)
        before.update(dict.fromkeys(node.output, bits))
    later: dict[int, list[int]] = {}
    for j, output in enumerate(graph.output):
        bits = before.get(output.name, 0)
        for i in range(len(graph.output)):
            if bits >> i & 1:
                later.setdefault(i, []).append(j)
    return later


def last_results_first(graph: onnx.GraphProto) -> list[int]:
    """Return the positions of results in the order of PyTorch's backward: last computed first."""
    places: dict[str, int] = {}
    for place, node in enumerate(graph.node):
        is_copy = node.op_type == "Identity" and node.input[0] in places
        at = places[node.input[0]] if is_copy else place
        places.update(dict.fromkeys(node.output, at))
    names = [output.name for output in graph.output]
    return sorted(range(len(names)), key=lambda i: (-places.get(names[i], -1), -i))


def _stops(node: onnx.NodeProto) -> bool:
    standard = node.domain in ("", "ai.onnx")
    if standard and node.op_type in _WITHOUT_GRADIENT:
        return True
    return any(p.key == STOP_GRADIENT_KEY for p in node.metadata_props)
