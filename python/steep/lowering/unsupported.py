"""Refuses captured graphs with inputs, outputs or writes that the engine does not support."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from steep.lowering.aliasing import all_written_by, called_name, memory_named, memory_of
from steep.lowering.autocast_regions import Regions
from steep.lowering.capture_context import CaptureContext
from steep.lowering.extents import hint
from steep.lowering.lower import cannot_lower, raise_together
from steep.lowering.products import NARROWED_FUNCTIONS
from steep.torch_internals.functorch import autograd_function_apply, is_functorch_wrapped_tensor
from steep.torch_internals.operators import aten
from steep.torch_internals.pytree import tree_leaves


def refuse_complex(graph: torch.fx.Graph, results: Sequence[torch.fx.Node]) -> None:
    """Raise CannotLower if complex numbers are inputs or results of the engine.

    ``results`` are the engine's results. The exporter represents complex tensors with another
    shape.
    """
    ancestors: set[torch.fx.Node] = set()
    stack = [*results, *(n for n in graph.nodes if not n.users and n.op.startswith("call_"))]
    while stack:
        if (n := stack.pop()) not in ancestors:
            ancestors.add(n)
            stack += n.all_input_nodes
    arguments = [n for n in graph.nodes if n.op == "placeholder" and _is_complex(n)]
    at = [user for n in arguments for user in _readers(n) if user in ancestors]
    at += [n for n in results if _is_complex(n)]
    reason = "an input or result of the graph is complex"
    remedy = "take and return torch.view_as_real(…)"
    raise_together([cannot_lower(reason, n, remedy) for n in at])


def _readers(n: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the operations that read a tensor, or an extent of it."""
    extents = [u for u in n.users if u.target is aten.sym_size.int]
    readers = [u for u in n.users if u not in extents] + [r for u in extents for r in u.users]
    return [r for r in dict.fromkeys(readers) if r.op != "output"]


def _is_complex(n: torch.fx.Node) -> bool:
    value = n.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.is_complex()


def refuse_histories(
    graph: torch.fx.Graph, results: Sequence[torch.fx.Node], context: CaptureContext
) -> None:
    """Raise CannotLower if forward requests a gradient that this call cannot give."""
    for n in graph.nodes:
        if n.target == "requires_grad_" and n.args[0].op == "placeholder":
            reason = "forward calls requires_grad_() on a tensor from outside the graph"
            raise cannot_lower(reason, n, "call it before forward")
    if context.grad_mode:
        return
    for n in results:
        value = n.meta["example_value"]
        if isinstance(value, torch.Tensor) and value.requires_grad:
            reason = "forward enables gradients, which its caller disables"
            raise cannot_lower(reason, n, "enter torch.enable_grad() around the call")


def refuse_sparse(graph: torch.fx.Graph) -> None:
    """Raise CannotLower if the gradient of an embedding must be sparse.

    The engine's gradients are dense, which optimizers for sparse gradients do not accept.
    """
    reason = "(sparse=True) asks for a sparse gradient, and the engine's are dense"
    refusals = [
        cannot_lower(f"{n.target.__name__}{reason}", n, "leave out sparse=True")
        for n in graph.nodes
        if n.target in (F.embedding, F.embedding_bag) and _gives_sparse(n)
    ]
    raise_together(refusals)


def _gives_sparse(n: torch.fx.Node) -> bool:
    arguments = inspect.signature(n.target).bind(*n.args, **n.kwargs).arguments  # type: ignore[arg-type]
    return bool(arguments.get("sparse")) and arguments["weight"].meta["example_value"].requires_grad


_WITHOUT_DERIVATIVE = {
    **dict.fromkeys((operator.floordiv, operator.ifloordiv, torch.floor_divide), "floor_divide"),
    **dict.fromkeys(("floor_divide", "floor_divide_", "__floordiv__"), "floor_divide"),
    **dict.fromkeys((torch.heaviside, "heaviside", "heaviside_"), "heaviside"),
    **dict.fromkeys((torch.unique, torch.unique_consecutive), "unique"),
    **dict.fromkeys(("unique", "unique_consecutive"), "unique"),
}
"""Functions and methods for which PyTorch raises in backward: the operator's name."""
_REMAINDERS = (operator.mod, torch.remainder)


def refuse_without_derivative(graph: torch.fx.Graph) -> None:
    """Raise CannotLower if a gradient reaches an operator that has no derivative in PyTorch.

    The engine would silently return no gradient.
    """
    refusals = [
        cannot_lower(f"PyTorch has no derivative of {name}", n, "detach() what needs no gradient")
        for n in graph.nodes
        if n.op.startswith("call_") and (name := _without_derivative(n))
        if _needs_gradient(n) and any(u.op == "output" or _needs_gradient(u) for u in n.users)
    ]
    raise_together(refusals)


def _without_derivative(n: torch.fx.Node) -> str | None:
    """Return the name of an operator that has no derivative in PyTorch, else None."""
    if n.target in _REMAINDERS and not isinstance(n.args[0], torch.fx.Node):
        return "the remainder of a number"
    return _WITHOUT_DERIVATIVE.get(n.target)


def _needs_gradient(n: torch.fx.Node) -> bool:
    values = tree_leaves(n.meta.get("example_value"))
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)


def refuse_writes_of_backward(graph_module: torch.fx.GraphModule) -> None:
    """Raise CannotLower if the backward of a torch.autograd.Function writes to earlier tensors.

    The engine would do this write in forward, even if no backward follows, or two. It does not
    write to gradients either.
    """
    reason = "a torch.autograd.Function writes a tensor in its backward"
    refusals = [
        cannot_lower(reason, n, "write it after backward, or in a hook")
        for n in graph_module.graph.nodes
        if _writes_in_backward(graph_module, n)
    ]
    raise_together(refusals)


def _writes_in_backward(within: torch.fx.GraphModule, n: torch.fx.Node) -> bool:
    """Return whether such a function is here or in a nested graph."""
    inner = [getattr(within, i.target, None) for i in n.all_input_nodes if i.op == "get_attr"]  # type: ignore[arg-type]
    graphs = [g for g in inner if isinstance(g, torch.fx.GraphModule)]
    if n.target is not autograd_function_apply:
        return any(_writes_in_backward(g, each) for g in graphs for each in g.graph.nodes)
    _, backward = (g.graph for g in graphs)
    before = {n for n in backward.nodes if n.op in ("placeholder", "get_attr")}
    memory = {memory_of(n) for n in before} - {None}
    targets = [t for n in backward.nodes for t in all_written_by(n)]
    return any(t in before or memory_of(t) in memory for t in targets)


def refuse_mixed_products(graph: torch.fx.Graph, of: Regions, context: CaptureContext) -> None:
    """Raise CannotLower for a product of several float dtypes without autocast.

    ``of`` are the regions of autocast within the graph. PyTorch's kernels raise for such a product;
    ``function_rewrites.REWRITES`` would cast the operands.
    """
    refusals = [
        cannot_lower(f"a product of {' and '.join(sorted(types))}", n)
        for n in graph.nodes
        if of.get(n.name, context.autocast) is None
        and _is_product(n)
        and len(types := _floating_types(n)) > 1
    ]
    raise_together(refusals)


def _is_product(n: torch.fx.Node) -> bool:
    target = getattr(torch.Tensor, n.target, None) if n.op == "call_method" else n.target
    return target is operator.matmul or (n.op.startswith("call_") and target in NARROWED_FUNCTIONS)


def _floating_types(n: torch.fx.Node) -> set[str]:
    values = [i.meta.get("example_value") for i in n.all_input_nodes]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    return {str(t.dtype)[6:] for t in tensors if t.dtype.is_floating_point}


def refuse_overlaps(graph: torch.fx.Graph) -> None:
    """Raise CannotLower if a call writes to a part of what it reads: ``x[1:] += x[:-1]``.

    PyTorch raises an error (at::assert_no_partial_overlap); in a graph the call would read the old
    values.
    """
    refusals = [
        cannot_lower("a call writes to a part of the memory that it reads", n)
        for n in graph.nodes
        for target in all_written_by(n)
        if any(_overlap_in_part(_place(n, target), other) for other in _values_read(n, target))
    ]
    raise_together(refusals)


_ROW_MAJOR = {"contiguous", "linear", "matmul", "bmm", "mm", "addmm"}  # their results are


def refuse_unsure_strides(graph: torch.fx.Graph) -> None:
    """Raise CannotLower for ``as_strided`` of a result whose place in memory PyTorch may choose.

    A tracer takes such results for row-major where kernels keep the order of their operands (roll
    of a channels-last tensor). They agree if all operands are row-major.
    """
    name_of = {n: called_name(n) for n in graph.nodes}
    if "as_strided" not in name_of.values():
        return
    sure: dict[torch.fx.Node, bool] = {}
    refusals = []
    for n, name in name_of.items():
        if name == "as_strided" and not sure[n.args[0]]:
            reason = "as_strided reads memory in an order that is unknown before the run"
            refusals.append(cannot_lower(reason, n, "call contiguous() on its argument"))
        tensors = [i for i in n.all_input_nodes if memory_of(i) is not None]
        shared = [i for i in tensors if memory_of(i) == memory_of(n)]
        if n.op in ("placeholder", "get_attr") or name in _ROW_MAJOR:
            sure[n] = True
        elif shared or name in ("reshape", "flatten"):
            sure[n] = all(sure[i] for i in shared or tensors)
        else:
            sure[n] = all(sure[i] and _is_row_major(i.meta["example_value"]) for i in tensors)
    raise_together(refusals)


def _is_row_major(t: torch.Tensor) -> bool:
    """Return whether a tensor is contiguous, without adding a guard on it."""
    expected = 1
    for extent, step in zip(map(hint, t.shape[::-1]), map(hint, t.stride()[::-1]), strict=True):
        if extent > 1 and step != expected:
            return False
        expected *= max(extent, 1)
    return True


def refuse_lost_writes(graph: torch.fx.Graph) -> None:
    """Raise CannotLower for a write through a view that PyTorch's tracer does not invert correctly.

    If elements of a view share memory (``x.expand(3, 4)[0]``), it adds the old and the new values.
    It sets elements between windows (``x.unfold(0, 2, 3)``) to zero.
    """
    refusals = [
        cannot_lower("a call writes through a view whose elements overlap or skip some", n)
        for n in graph.nodes
        for target in all_written_by(n)
        if any(_is_unfold(v) or _has_overlap(v) for v in _seen_through(target))
    ]
    raise_together(refusals)


def _seen_through(n: torch.fx.Node | None) -> Iterator[torch.fx.Node]:
    """Yield a tensor, the tensor that it is a view of, and so on."""
    memory = None if n is None else memory_of(n)
    while n is not None:
        yield n
        sources = [i for i in n.all_input_nodes if i.meta.get("example_value") is not None]
        of_memory = (i for i in sources if _is_several(i) or memory_of(i) == memory)
        n = next(of_memory, None)


def _is_several(n: torch.fx.Node) -> bool:
    return isinstance(n.meta.get("example_value"), (tuple, list))


def _is_unfold(n: torch.fx.Node) -> bool:
    return n.target in ("unfold", torch.Tensor.unfold)


def _has_overlap(n: torch.fx.Node) -> bool:
    """Return whether two elements of a tensor may share memory."""
    t = n.meta.get("example_value")
    if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
        return False
    if is_functorch_wrapped_tensor(t):
        return False
    reach = 0
    for step, extent in sorted(zip(map(hint, t.stride()), map(hint, t.shape), strict=True)):
        if extent > 1 and step <= reach:
            return True
        reach += step * max(extent - 1, 0)
    return False


def _values_read(n: torch.fx.Node, target: torch.fx.Node) -> list[Any]:
    memory = memory_named(target.meta.get("example_value"))
    values = [i.meta.get("example_value") for i in n.all_input_nodes if i is not target]
    return [v for v in values if memory is not None and memory_named(v) == memory]


def _place(n: torch.fx.Node, target: torch.fx.Node) -> torch.Tensor:
    """Return the part of a tensor that a call writes; for ``x[…] = y`` that is ``x[…]``."""
    value: torch.Tensor = target.meta["example_value"]
    if n.target is not operator.setitem:
        return value
    index = n.args[1] if isinstance(n.args[1], tuple) else (n.args[1],)
    numbers = [e for i in index for e in ((i.start, i.stop, i.step) if type(i) is slice else (i,))]
    if all(i is None or i is Ellipsis or type(i) is int for i in numbers):
        return value[index]
    return value


def _overlap_in_part(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Return whether two dense tensors of one memory overlap in part; False if one is not dense."""
    if not (_is_dense(target) and _is_dense(source)):
        return False
    (a, a_end), (b, b_end) = _byte_range(target), _byte_range(source)
    return (a, a_end) != (b, b_end) and a < b_end and b < a_end


def _is_dense(t: torch.Tensor) -> bool:
    """Return whether the elements fill a range of memory, without overlaps or gaps."""
    expected = 1
    for step, extent in sorted(zip(map(hint, t.stride()), map(hint, t.shape), strict=True)):
        if extent > 1 and step != expected:
            return False
        expected *= max(extent, 1)
    return True


def _byte_range(t: torch.Tensor) -> tuple[int, int]:
    """Return the byte offsets of a dense tensor's first element and of the end of its last."""
    first = hint(t.storage_offset()) * t.element_size()
    count = 1
    for extent in map(hint, t.shape):
        count *= extent
    return first, first + count * t.element_size()
