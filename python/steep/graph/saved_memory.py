"""Which tensors of a captured graph PyTorch's autograd saves for backward, and in whose memory.

Backward in the engine reads other values than PyTorch's does: the original of a copy, the operands
of what is computed again, results beside operands. Somebody may write to an argument before
backward: visibly if PyTorch's does not read it, and by ``.data`` or NumPy in any case. Therefore
two facts are needed: which memory PyTorch's autograd saves without a copy, and which part of it our
backward reads in the same way (operands of products). Of everything else our backward reads copies.
"""

from __future__ import annotations

import inspect
import logging
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.graph import Node

from steep.graph.autograd_reach import history
from steep.lowering.aliasing import memory_named
from steep.torch_internals.pytree import tree_leaves
from steep.torch_internals.tensors import storage_id

log = logging.getLogger("steep")

# Their gradients are products with the operands, in the engine as in PyTorch.
_PRODUCTS = {
    F.linear,
    torch.addmm,
    torch.bmm,
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
    torch.matmul,
    torch.mm,
    torch.mv,
    operator.matmul,
    "addmm",
    "bmm",
    "matmul",
    "mm",
    "mv",
}

# What is read of others: of all but these arguments they make products, or copies of rows.
_READ_OTHERWISE: dict[Any, Sequence[str]] = {
    F.embedding: ("input",),
    F.multi_head_attention_forward: (
        *("bias_k", "bias_v", "static_k", "static_v"),
        *("attn_mask", "key_padding_mask"),
    ),
}


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
            memory.update(storage_id(t) for t in _kept_by(node))
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


def operands_of_products(graph: torch.fx.Graph) -> set[int]:
    """Return the keys of the memory that a graph reads only as operands of products.

    Or as rows of an embedding, whose gradient does not read them.
    """
    placed: set[int] = set()
    others: set[int] = set()
    for n in graph.nodes:
        example = n.meta.get("example_value")
        if n.op == "placeholder":
            placed |= _memory_of(example)
        elif n.op == "output" or not (example is None or _has_tensors(example)):
            continue  # a number, such as an extent
        elif n.target not in _PRODUCTS:
            read = set().union(*(_memory_of(t.meta.get("example_value")) for t in _read_by(n)))
            others |= read - _memory_of(example)  # a view reads nothing
    return placed - others


def _read_by(n: torch.fx.Node) -> Iterable[torch.fx.Node]:
    """Return what an operation reads otherwise than as operands of products."""
    read: list[torch.fx.Node] = n.all_input_nodes
    names = _READ_OTHERWISE.get(n.target)
    if names is None:
        return read
    given = inspect.signature(n.target).bind(*n.args, **n.kwargs).arguments  # type: ignore[arg-type]
    return [t for name in names if isinstance(t := given.get(name), torch.fx.Node)]


def _has_tensors(example: object) -> bool:
    return any(isinstance(t, torch.Tensor) for t in tree_leaves(example))


def _memory_of(example: object) -> set[int]:
    return {m for t in tree_leaves(example) if (m := memory_named(t)) is not None}
