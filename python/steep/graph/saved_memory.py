"""Which tensors of a captured graph PyTorch's autograd saves for backward, and in whose memory.

The engine's backward reads other values than PyTorch's: the original of a copy, the operands of
recomputed values, or results in place of operands. User code may write to an argument before
backward: PyTorch permits this if its own backward does not read the argument, and cannot detect it
by ``.data`` or NumPy. So two facts are needed: which memory PyTorch's autograd saves without a
copy, and which of it the engine's backward reads in the same way (operands of products). The
engine's backward reads copies of everything else.
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

# The gradients of these are products with the operands, in the engine as in PyTorch.
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

# Functions that use their arguments in products, or copy rows; except the arguments listed here.
_READ_OTHERWISE: dict[Any, Sequence[str]] = {
    F.embedding: ("input",),
    F.multi_head_attention_forward: (
        *("bias_k", "bias_v", "static_k", "static_v"),
        *("attn_mask", "key_padding_mask"),
    ),
}


def saved_memory(results: Sequence[object], inputs: Sequence[torch.Tensor]) -> set[int] | None:
    """Return keys of the memory that autograd saves between inputs and results.

    Keys are those of ``aliasing.memory_of``; the tensors are Dynamo's fake tensors. None: unknown.
    """
    visited = {history(t) for t in inputs if t.requires_grad} | {None}
    stack = [history(result) for result in results]
    memory: set[int] = set()
    while stack:
        node = stack.pop()
        if node in visited:
            continue
        visited.add(node)
        try:
            memory.update(storage_id(t) for t in _kept_by(node))
        except RuntimeError as e:  # such as for a tensor that was written to since
            log.debug("backward reads copies of all inputs of a graph: %s", e)
            return None
        stack += [before for before, _ in getattr(node, "next_functions", ())]
    return memory


def _kept_by(node: Node) -> Iterator[torch.Tensor]:
    names = set(dir(node))
    # saved numbers have no raw attribute; reading one would add a guard on it
    attributes = [n for n in names if n.startswith("_saved_") and f"_raw{n}" in names]
    values: list[Any] = [getattr(node, name) for name in attributes]
    values.append(getattr(node, "saved_tensors", None))  # of a torch.autograd.Function
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor):
            yield value


def operands_of_products(graph: torch.fx.Graph) -> set[int]:
    """Return keys of the memory that a graph reads only as operands of products.

    Rows of an embedding count too: its gradient does not read them.
    """
    memory: set[int] = set()
    others: set[int] = set()
    for n in graph.nodes:
        example = n.meta.get("example_value")
        if n.op == "placeholder":
            memory |= _memory_of(example)
        elif n.op == "output" or not (example is None or _has_tensors(example)):
            continue  # a number, such as an extent
        elif n.target not in _PRODUCTS:
            sources = set().union(*(_memory_of(t.meta.get("example_value")) for t in _read_by(n)))
            others |= sources - _memory_of(example)  # a view reads no values
    return memory - others


def _read_by(n: torch.fx.Node) -> Iterable[torch.fx.Node]:
    """Return the nodes that an operation reads other than as operands of products."""
    operands: list[torch.fx.Node] = n.all_input_nodes
    names = _READ_OTHERWISE.get(n.target)
    if names is None:
        return operands
    arguments = inspect.signature(n.target).bind(*n.args, **n.kwargs).arguments  # type: ignore[arg-type]
    return [t for name in names if isinstance(t := arguments.get(name), torch.fx.Node)]


def _has_tensors(example: object) -> bool:
    return any(isinstance(t, torch.Tensor) for t in tree_leaves(example))


def _memory_of(example: object) -> set[int]:
    return {m for t in tree_leaves(example) if (m := memory_named(t)) is not None}
