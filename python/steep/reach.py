"""Which inputs a gradient can reach: others have no part in backward, as in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import torch

from steep.bodies import read_by

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


def connected(results: Sequence[object], inputs: Sequence[torch.Tensor]) -> list[set[int]]:
    """Return, for each result, at which places the inputs are that PyTorch's autograd reaches.

    It does so where no gradient can differ from zero, too: by ``floor``, or a step's side.
    """
    at: dict[object, set[int]] = {}
    for i, tensor in enumerate(inputs):
        if tensor.requires_grad:
            at.setdefault(history(tensor), set()).add(i)
    reached_from: dict[object, set[int]] = {}
    for result in results:
        stack = [history(result)]
        while stack:
            node = stack[-1]
            before = () if node in at else [n for n, _ in getattr(node, "next_functions", ())]
            if new := [n for n in before if n is not None and n not in reached_from]:
                stack += new
                continue
            stack.pop()
            reached_from[node] = set(at.get(node, ())).union(
                *(reached_from[n] for n in before if n is not None)
            )
    return [reached_from[history(result)] for result in results]


def history(value: object) -> Any:
    """Return the node of autograd whose gradient a tensor's is; None where it has none."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    return value.grad_fn or torch.autograd.graph.get_gradient_edge(value).node
