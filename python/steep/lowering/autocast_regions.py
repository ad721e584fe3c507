"""Replaces autocast regions within forward by casts, since a program has one precision.

In a region whose autocast differs from that around the call, operands of products are cast to the
region's dtype. In a region without autocast, inside a call with autocast, products become float64:
the engine narrows float32 products, but not float64.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Mapping

import torch

from steep.lowering.aliasing import all_written_by, memory_of
from steep.lowering.capture_context import CaptureContext
from steep.lowering.products import NARROWED
from steep.torch_internals.autograd import enter_autocast, exit_autocast
from steep.torch_internals.dispatch import FakeTensor, detect_fake_mode
from steep.torch_internals.operators import OpOverload, aten
from steep.torch_internals.pytree import tree_leaves

_NARROW = (torch.bfloat16, torch.float16)
_BOUNDS = {enter_autocast, exit_autocast}
_CASTS = {aten._to_copy, aten.to, aten.type_as, aten.copy, aten.copy_}


Regions = Mapping[str, torch.dtype | None]
"""The dtype of autocast by name of operation; None for operations without autocast."""


def regions_of(graph: torch.fx.Graph, context: CaptureContext) -> Regions:
    """Return the operations in regions whose autocast differs from that around the call."""
    around = context.autocast
    stack = [around]
    regions: dict[str, torch.dtype | None] = {}
    entries: set[torch.fx.Node] = set()
    for n in graph.nodes:
        if n.target is enter_autocast:
            device, dtype, enabled, *_ = n.args
            if device == "cpu":
                entries.add(n)
                stack.append((dtype or context.autocast_dtype) if enabled else None)
        elif n.target is exit_autocast:
            if n.args[0] in entries:
                stack.pop()
        elif n.op.startswith("call_") and stack[-1] != around:
            regions[n.name] = stack[-1]
    return regions


def write_casts(
    graph: torch.fx.Graph,
    of: Regions,
    origin: Callable[[torch.fx.Node], torch.fx.Node | None],
) -> None:
    """Insert casts into an ATen graph, and remove the nodes that enter and leave regions.

    ``origin`` maps a node to its node in the captured graph; ``of`` is the result of ``regions_of``
    for that graph. ``meta["val"]`` is updated for the casts.
    """
    for n in reversed(graph.nodes):
        if n.target in _BOUNDS:
            graph.erase_node(n)
    if not of:
        return
    for n in list(graph.nodes):
        # casts change the metadata that it asserts
        if n.target is aten._assert_tensor_metadata.default:
            graph.erase_node(n)
            continue
        made_from = origin(n) if isinstance(n.target, OpOverload) else None
        if made_from is None or made_from.name not in of or n.target.overloadpacket in _CASTS:
            continue
        region = of[made_from.name]
        product = n.target.overloadpacket in NARROWED
        if product:
            _cast_operands(n, torch.float64 if region is None else region)
        elif _is(n, torch.float32) and any(_is(i, *_NARROW) for i in n.all_input_nodes):
            _cast_operands(n, torch.float32)
        if product and region is None:
            _cast_result(n)
    _propagate(graph, origin)


def _propagate(
    graph: torch.fx.Graph, origin: Callable[[torch.fx.Node], torch.fx.Node | None]
) -> None:
    """Update ``meta["val"]``; operands become float32 again where a cast to it was lost."""
    for n in list(graph.nodes):
        if isinstance(n.target, OpOverload):
            narrow = any(_is(i, *_NARROW) for i in n.all_input_nodes)
            made_from = origin(n) if narrow and n.target.overloadpacket not in _CASTS else None
            if made_from is not None and not _reads_narrow(made_from):
                _cast_operands(n, torch.float32)
        if isinstance(n.target, OpOverload) or n.target is operator.getitem:
            args, kwargs = torch.fx.map_arg((n.args, n.kwargs), lambda i: i.meta["val"])
            with detect_fake_mode(args) or contextlib.nullcontext():
                n.meta["val"] = n.target(*args, **kwargs)


def _is(n: torch.fx.Node, *dtypes: torch.dtype) -> bool:
    values = tree_leaves(n.meta.get("val"))
    return any(isinstance(t, torch.Tensor) and t.dtype in dtypes for t in values)


def _reads_narrow(captured: torch.fx.Node) -> bool:
    """Return whether an operation reads 16 bits in PyTorch: no ``float()`` is lost before it.

    The trace has no autocast, so ``float()`` of a product is a cast of float32 there, and left out.
    """
    values = tree_leaves([i.meta.get("example_value") for i in captured.all_input_nodes])
    return any(isinstance(t, torch.Tensor) and t.dtype in _NARROW for t in values)


def _cast_operands(n: torch.fx.Node, dtype: torch.dtype) -> None:
    with n.graph.inserting_before(n):
        for operand in dict.fromkeys(n.all_input_nodes):
            value = operand.meta.get("val")
            if isinstance(value, torch.Tensor) and value.dtype in (torch.float32, *_NARROW):
                n.replace_input_with(operand, _cast(operand, value, dtype, n))


def _cast_result(n: torch.fx.Node) -> None:
    value = n.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return
    with n.graph.inserting_after(n):
        cast = _cast(n, value, torch.float32, n)
    n.replace_all_uses_with(cast, lambda user: user is not cast)


def _cast(
    operand: torch.fx.Node, value: FakeTensor, dtype: torch.dtype, like: torch.fx.Node
) -> torch.fx.Node:
    cast = like.graph.call_function(aten._to_copy.default, (operand,), {"dtype": dtype})
    with value.fake_mode:
        cast.meta = {**like.meta, "val": value.to(dtype)}
    return cast


def narrow_arguments(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Return 16-bit arguments, which autocast in another module made.

    Raises RuntimeError: forward writes into one.
    """
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    narrow = [n for n in placeholders if getattr(n.meta["example_value"], "dtype", None) in _NARROW]
    for n in graph.nodes:
        memories = {memory_of(t) for t in all_written_by(n)}
        if any(memory_of(f) in memories for f in narrow):
            raise RuntimeError("forward writes into an argument that autocast made narrow")
    return narrow


def widen(graph: torch.fx.Graph, narrow: list[torch.fx.Node]) -> None:
    """Read the arguments as float32: the engine itself narrows operands as autocast does."""
    for node in narrow:
        with graph.inserting_after(node):
            wide = graph.call_method("float", (node,))
        node.replace_all_uses_with(wide, lambda user, wide=wide: user is not wide)
