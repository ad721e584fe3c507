"""Calls that PyTorch's kernels refuse, though its meta functions accept them in a trace."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from steep.lowering.products import OF_ONE_DTYPE
from steep.torch_internals.operators import aten

_SUBTRACTIONS = {aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Tensor, aten.rsub.Scalar}


def refused_by_kernels(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, str]]:
    """Yield the calls of an ATen graph for which PyTorch would raise an error, and why.

    Each node's ``meta["val"]`` is a fake tensor, with its dtype.
    """
    for node in graph.nodes:
        dtypes = [_dtype(n) for n in node.all_input_nodes]
        kinds = {d for d in dtypes if d not in (None, torch.bool)}
        if getattr(node.target, "overloadpacket", None) in OF_ONE_DTYPE and len(kinds) > 1:
            yield node, f"a product of {' and '.join(sorted(str(d)[6:] for d in kinds))}"
        elif node.target in _SUBTRACTIONS and torch.bool in dtypes:
            yield node, "a subtraction of booleans"


def _dtype(node: torch.fx.Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
