"""What PyTorch's autograd keeps of a captured graph for backward, and where that lies.

Backward in the engine reads other values than PyTorch's does: the original of a copy, the operands
of what is computed again. Somebody may write to an argument before backward, if PyTorch's does not
read it. So it matters whose memory that keeps in place: of all else, backward reads copies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node

from steep.graph.autograd_reach import history
from steep.torch_internals.pytree import tree_leaves

log = logging.getLogger("steep")


def kept_memory(results: Sequence[object], inputs: Sequence[torch.Tensor]) -> set[int] | None:
    """Return what names the memory that autograd keeps between inputs and results.

    Memory is named as by ``aliasing.memory_of``; the tensors are Dynamo's, which have no values.
    None: unknown.
    """
    seen = {history(t) for t in inputs if t.requires_grad} | {None}
    stack = [history(result) for result in results]
    memory: set[int] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        try:
            memory.update(int(t.untyped_storage()._cdata) for t in _kept_by(node))
        except RuntimeError as e:  # as for what was written to since
            log.debug("backward reads copies of all inputs of a graph: %s", e)
            return None
        stack += [before for before, _ in getattr(node, "next_functions", ())]
    return memory


def _kept_by(node: Node) -> Iterator[torch.Tensor]:
    names = set(dir(node))
    # of numbers, which reading would bind, there is no raw one
    saved = [n for n in names if n.startswith("_saved_") and f"_raw{n}" in names]
    kept: list[Any] = [getattr(node, name) for name in saved]
    kept.append(getattr(node, "saved_tensors", None))  # of a torch.autograd.Function
    for value in tree_leaves(kept):
        if isinstance(value, torch.Tensor):
            yield value
