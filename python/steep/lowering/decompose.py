"""Decomposes calls of operators without an ONNX translation, as PyTorch defines them.

PyTorch's exporter traces the whole graph a second time for this, builds tables of two thousand
operators, and replaces all composite operators meanwhile. That took half of a small graph's
capture; few graphs have more than a call or two to decompose.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from steep.torch_internals.autograd import DisableTorchFunction, set_grad_enabled
from steep.torch_internals.dispatch import (
    FunctionalTensorMode,
    detect_fake_mode,
    dispatch_functionalize,
)
from steep.torch_internals.operators import (
    OpOverload,
    aten,
    can_decompose,
    decomposition_table,
    is_composite_but_unsafe,
    schema_of,
)
from steep.torch_internals.pytree import tree_flatten, tree_unflatten

log = logging.getLogger("steep")


def decompose(
    graph_module: torch.fx.GraphModule, has_translation: Callable[[OpOverload], bool]
) -> None:
    """Decompose, in place, each call of an operator that has no ONNX translation.

    ``has_translation`` returns whether an operator has one. Calls without a decomposition, or whose
    decomposition cannot be traced, stay as they are. Nodes have their fake results in
    ``meta["val"]``, before and after; the new nodes keep the origin of the call.
    """
    for module in graph_module.modules():  # branches are nested graphs
        if isinstance(module, torch.fx.GraphModule):
            for node in list(module.graph.nodes):
                if node.target is set_grad_enabled:  # stop_gradient.py has handled it
                    module.graph.erase_node(node)
                else:
                    _take_apart(module, node, has_translation)
            module.graph.eliminate_dead_code()
            module.recompile()


def _take_apart(
    within: torch.fx.GraphModule, node: torch.fx.Node, has_translation: Callable[[OpOverload], bool]
) -> None:
    rule = _rule(node.target, has_translation)
    if rule is None:
        return
    flat, spec = tree_flatten((node.args, node.kwargs))
    values = [x.meta["val"] if isinstance(x, torch.fx.Node) else x for x in flat]
    moving = [i for i, x in enumerate(flat) if isinstance(x, torch.fx.Node)]

    def call(*operands: object) -> object:
        now = dict(enumerate(values)) | dict(zip(moving, operands, strict=True))
        args, kwargs = tree_unflatten(list(now.values()), spec)
        with DisableTorchFunction():  # modes would intercept the composite operator
            results = rule(*args, **kwargs)
        return list(results) if isinstance(results, (list, tuple)) else results

    examples = [values[i] for i in moving]
    functional = dispatch_functionalize(call, FunctionalTensorMode(pre_dispatch=True, export=True))
    # PyTorch cannot functionalize views of prims, which some decompositions use (var, keepdim)
    for written_out in (functional, call):
        try:
            with torch.no_grad(), detect_fake_mode(examples) or contextlib.nullcontext():
                parts = make_fx(written_out, pre_dispatch=True)(*examples)
            break
        except Exception as e:  # noqa: BLE001 - of any rule; the operator is refused later
            log.debug("%s stays whole: %s", node.target, e)
    else:
        return
    if written_out is call and not all(_is_said(n, has_translation) for n in parts.graph.nodes):
        return  # the operator is refused later, by its name
    if all(n.target is not node.target for n in parts.graph.nodes):
        for part in _replace(within, node, parts, [flat[i] for i in moving]):
            _take_apart(within, part, has_translation)


def _is_said(node: torch.fx.Node, has_translation: Callable[[OpOverload], bool]) -> bool:
    """Return whether a call has a translation or a decomposition, and mutates nothing."""
    if not isinstance(node.target, OpOverload):
        return True
    is_covered = has_translation(node.target) or _rule(node.target, has_translation) is not None
    return is_covered and not schema_of(node.target).is_mutable


def _rule(
    target: object, has_translation: Callable[[OpOverload], bool]
) -> Callable[..., Any] | None:
    """Return a function that computes an operator by others; None if the call stays as it is."""
    if not isinstance(target, OpOverload):
        return None
    unsafe = is_composite_but_unsafe(target)  # such as dropout, whose translation draws no numbers
    other_name = target.overloadpacket in _OTHER_NAMES
    if has_translation(target) and not unsafe and not other_name:
        return None
    if can_decompose(target):
        rule: Callable[..., Any] = target.decompose
        return rule
    return _OWN.get(target) or _core().get(target) or _decompositions.get(target)


def _diagonal_scatter(
    input: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """Return a copy of ``input`` with another diagonal; PyTorch's rule mutates a view."""
    if src.shape[-1] == 0:
        return input.clone()
    rows, columns = (torch.arange(input.shape[d]) for d in (dim1, dim2))
    on_it = columns == rows[:, None] + offset
    places = (rows + min(offset, 0)).clamp(0, src.shape[-1] - 1)
    values = src.index_select(-1, places).unsqueeze(-1)  # one value per row
    last = (-2, -1)
    result = torch.where(on_it, values, input.movedim((dim1, dim2), last))
    return result.movedim(last, (dim1, dim2))


def _as_strided_scatter(
    input: torch.Tensor,
    src: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """Return a copy of ``input`` with ``src`` at places of its memory.

    ``torch.func.grad`` writes it where a function changes a part of a tensor in place. PyTorch's
    rule calls an operator that mutates a view.
    """
    place = 0 if storage_offset is None else storage_offset - input.storage_offset()
    if not input.is_contiguous():
        raise NotImplementedError("memory that is not contiguous")
    spans = sorted((s, n) for n, s in zip(size, stride, strict=True) if n != 1)
    if any(s <= sum(t * (n - 1) for t, n in spans[:i]) for i, (s, _) in enumerate(spans)):
        raise NotImplementedError("places that overlap")
    index = torch.full([1] * len(size), place, dtype=torch.int64)
    for axis, (n, s) in enumerate(zip(size, stride, strict=True)):
        across = [n if i == axis else 1 for i in range(len(size))]
        index = index + s * torch.arange(n).reshape(across)
    return input.reshape(-1).scatter(0, index.reshape(-1), src.reshape(-1)).reshape(input.shape)


def _max_pool_to(target: OpOverload, axes: int) -> Callable[..., Any]:
    """Return ``adaptive_max_pool…d``, whose gradient goes to the first of equal values.

    For one window, PyTorch's rule computes ``amax``, whose gradient equal values share.
    """

    def pool(input: torch.Tensor, output_size: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        if any(n != 1 for n in output_size):
            result: tuple[torch.Tensor, torch.Tensor] = _decompositions[target](input, output_size)
            return result
        values, indices = input.flatten(-axes).max(-1, keepdim=True)
        shape = [*input.shape[:-axes], *[1] * axes]
        return values.view(shape), indices.view(shape)

    return pool


_OWN: dict[Any, Callable[..., Any]] = {
    aten.adaptive_max_pool2d.default: _max_pool_to(aten.adaptive_max_pool2d.default, 2),
    aten.adaptive_max_pool3d.default: _max_pool_to(aten.adaptive_max_pool3d.default, 3),
    aten.as_strided_scatter.default: _as_strided_scatter,
    aten.diagonal_scatter.default: _diagonal_scatter,
}

# Other names of operators, such as torch.multiply. The exporter translates them, but promotes
# dtypes only under the operators' own names: 1 / 2 of whole numbers would be 0.
_OTHER_NAMES = {
    *(aten.concat, aten.concatenate, aten.divide, aten.multiply, aten.subtract, aten.true_divide),
    *(aten.greater, aten.greater_equal, aten.less, aten.less_equal),
}

_decompositions: dict[Any, Callable[..., Any]] = decomposition_table
"""PyTorch's own table, not a copy: libraries add to it."""


def is_of_others(target: OpOverload) -> bool:
    """Return whether a package other than PyTorch registered a decomposition of an operator."""
    rule = _decompositions.get(target)
    return rule is not None and str(rule.__module__).split(".")[0] != "torch"


@functools.cache
def _core() -> dict[Any, Callable[..., Any]]:
    return dict(torch.export.default_decompositions().items())


def _replace(
    within: torch.fx.GraphModule,
    node: torch.fx.Node,
    parts: torch.fx.GraphModule,
    operands: list[torch.fx.Node],
) -> list[torch.fx.Node]:
    """Replace a node by the nodes of a graph of its operands."""
    parts.graph.eliminate_dead_code()
    for constant in parts.graph.find_nodes(op="get_attr"):
        name = f"{node.name}_{constant.target}"
        within.register_buffer(name, getattr(parts, constant.target))
        constant.target = name
    copies = dict(zip(parts.graph.find_nodes(op="placeholder"), operands, strict=True))
    with within.graph.inserting_before(node):
        results = within.graph.graph_copy(parts.graph, copies)
    nodes = [part for origin, part in copies.items() if origin.op != "placeholder"]
    for part in nodes:
        part.meta |= {k: v for k, v in node.meta.items() if k != "val"}
    if isinstance(results, torch.fx.Node):
        node.replace_all_uses_with(results)
    else:
        for user in list(node.users):  # each user is a getitem
            user.replace_all_uses_with(results[user.args[1]])
            within.graph.erase_node(user)
    within.graph.erase_node(node)
    return nodes
