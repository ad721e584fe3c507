"""Which inputs PyTorch's autograd reaches from the results of a captured graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.graph import Node


def find_reach(results: Sequence[object], inputs: Sequence[torch.Tensor]) -> list[set[int]]:
    """Return, for each result, the positions of the inputs that autograd reaches from it.

    These include inputs whose gradients are always zero, for example through ``floor``.
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


def history(value: object) -> Node | None:
    """Return the autograd node that receives a tensor's gradient; None if there is none."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    return value.grad_fn or torch.autograd.graph.get_gradient_edge(value).node
