"""The values that a node of an ONNX graph reads, also in the bodies of branches and loops."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, and names that are read or returned inside its bodies."""
    yield from filter(None, node.input)
    for body in bodies_of(node):
        for inner in body.node:
            yield from read_by(inner)
        yield from (output.name for output in body.output)
