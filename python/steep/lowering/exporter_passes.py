"""Passes over an ATen graph that correct calls which PyTorch's exporter translates wrongly.

Nodes have their fake results in ``meta["val"]``, before and after.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import Argument

from steep.patching.torch_versions import CLAMP_IS_FLAT_AT_BOUNDS
from steep.torch_internals.operators import OpOverload, aten, schema_of


def say_dtypes(graph: torch.fx.Graph) -> None:
    """Make dtypes explicit that a call takes from the default dtype.

    The exporter would use float32 for them, and count the steps of a range in float32. The bounds
    of a range that are fractions of extents become constants.
    """
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if not isinstance(node.target, OpOverload) or not isinstance(value, torch.Tensor):
            continue
        operands = [n.meta.get("val") for n in node.all_input_nodes]
        takes = any(a.name == "dtype" and a.kwarg_only for a in schema_of(node.target).arguments)
        if takes and not any(isinstance(v, torch.Tensor) for v in operands):
            if node.kwargs.get("dtype") is None:
                node.update_kwarg("dtype", value.dtype)
            node.args = tuple(_bind(a) if node.target in _RANGES else a for a in node.args)


_SUMS = {
    *(aten.sum, aten.mean, aten.nansum, aten.prod, aten.cumsum, aten.cumprod),
    *(aten.norm, aten.linalg_vector_norm),
}


def cast_first(graph: torch.fx.Graph) -> None:
    """Cast operands of sums to the ``dtype`` of the call; the exporter casts the sum instead."""
    for node in list(graph.nodes):
        if getattr(node.target, "overloadpacket", None) not in _SUMS:
            continue
        parameters = [a for a in schema_of(node.target).arguments if a.name == "dtype"]
        dtype = node.kwargs.get("dtype")
        if parameters and dtype is not None:
            _cast_operand(graph, node, node.args[0], dtype)


def promote_operands(graph: torch.fx.Graph) -> None:
    """Cast operands of powers and of special functions to the result's dtype.

    ONNX's Pow has the type of its base. The exporter's table of promotions knows ``erfc``, but not
    ``special_erfc``.
    """
    for node in list(graph.nodes):
        packet = getattr(node.target, "overloadpacket", None)
        value = node.meta.get("val")
        special = packet is aten.polygamma or str(packet).startswith("aten.special_")
        if not isinstance(value, torch.Tensor) or not (special or packet is aten.pow):
            continue
        if special and not value.dtype.is_floating_point:
            continue
        for operand in node.all_input_nodes:
            tensor = operand.meta.get("val")
            if isinstance(tensor, torch.Tensor):
                _cast_operand(graph, node, operand, value.dtype)


_SEARCHES = {aten.searchsorted.Tensor, aten.bucketize.Tensor}


def promote_searched(graph: torch.fx.Graph) -> None:
    """Cast what a search compares to the common dtype, as PyTorch's kernels do."""
    for node in list(graph.nodes):
        if node.target in _SEARCHES:
            operands = node.args[:2]
            dtype = torch.result_type(*(operand.meta["val"] for operand in operands))
            for operand in operands:
                _cast_operand(graph, node, operand, dtype)


_CLAMPS = {aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default}


def promote_clamped(graph: torch.fx.Graph) -> None:
    """Cast operand and bounds of a clamp to the result's dtype.

    The exporter refuses mixed dtypes.
    """
    for node in list(graph.nodes):
        if node.target in _CLAMPS:
            dtype = node.meta["val"].dtype
            kind = float if dtype.is_floating_point else int
            _cast_operand(graph, node, node.args[0], dtype)
            operand, *bounds = node.args
            node.args = (operand, *(_of_kind(kind, b) for b in bounds))
            node.kwargs = {name: _of_kind(kind, b) for name, b in node.kwargs.items()}


def clamps_by_numbers(graph: torch.fx.Graph) -> dict[str, tuple[Any, Any, Any]]:
    """Return the clamps by numbers, if their gradients differ from those of clamps by tensors.

    The exporter's pass makes tensors of the numbers; ``restore`` undoes that. The keys are names of
    nodes, the values (target, args, kwargs). Operands have their dtypes already.
    """
    clamps = (n for n in graph.nodes if CLAMP_IS_FLAT_AT_BOUNDS and n.target in _CLAMPS)
    return {n.name: (n.target, n.args, n.kwargs) for n in clamps}


def restore(graph: torch.fx.Graph, calls: dict[str, tuple[Any, Any, Any]]) -> None:
    """Restore the calls that ``clamps_by_numbers`` returned."""
    for node in graph.nodes:
        if node.name in calls:
            node.target, node.args, node.kwargs = calls[node.name]


def _of_kind(kind: type, number: Argument) -> Argument:
    return kind(number) if isinstance(number, (bool, int, float)) else number


def _cast_operand(
    graph: torch.fx.Graph, node: torch.fx.Node, operand: torch.fx.Node, dtype: torch.dtype
) -> None:
    """Cast an operand of a call, a tensor, to ``dtype`` if it has another."""
    value = operand.meta["val"]
    if value.dtype != dtype:
        with graph.inserting_before(node):
            cast = graph.call_function(aten._to_copy.default, (operand,), {"dtype": dtype})
        cast.meta = {**node.meta, "val": value.to(dtype)}
        node.replace_input_with(operand, cast)


_WITH_TENSORS = {
    **{
        packet.Scalar: packet.Tensor
        for packet in (
            *(aten.add, aten.sub, aten.mul, aten.div, aten.remainder),
            *(aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor),
        )
    },
    aten.pow.Tensor_Scalar: aten.pow.Tensor_Tensor,
}


def make_extents_tensors(graph: torch.fx.Graph) -> None:
    """Replace symbolic extents by scalar tensors where the exporter needs a constant number."""
    for node in list(graph.nodes):
        number = node.args[1] if node.target in _WITH_TENSORS else None
        if isinstance(number, torch.fx.Node):
            value = node.meta["val"]
            with graph.inserting_before(node):
                tensor = graph.call_function(
                    aten.scalar_tensor.default, (number,), {"dtype": value.dtype}
                )
            tensor.meta = {**node.meta, "val": value.new_empty(())}
            node.target, node.args = _WITH_TENSORS[node.target], (node.args[0], tensor)


_RANGES = [getattr(aten.arange, o) for o in aten.arange.overloads()]


def _bind(argument: Argument) -> Argument:
    value = argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument
    return float(value) if isinstance(value, torch.SymFloat) else argument


def make_first_operands_tensors(graph: torch.fx.Graph) -> None:
    """Replace a number that is the first operand by a tensor without dimensions.

    The exporter's dtype promotion accepts no number there, such as in ``1.0 - mask`` with an
    integer mask.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        parameters = schema_of(node.target).arguments
        value = node.meta.get("val")
        if (
            node.args
            and type(node.args[0]) in (int, float)
            and isinstance(parameters[0].type, torch.TensorType)
            and isinstance(value, torch.Tensor)
            and value.dtype != torch.bool
        ):
            with graph.inserting_before(node):
                number = graph.call_function(
                    aten.full.default, ([], node.args[0]), {"dtype": value.dtype}
                )
            number.meta = {**node.meta, "val": value.new_empty(())}
            node.args = (number, *node.args[1:])


_SCATTERS = {
    *(aten.scatter.src, aten.scatter.reduce, aten.scatter_add.default, aten.scatter_reduce.two),
}


def trim_sources(graph: torch.fx.Graph) -> None:
    """Cut what is scattered to the extents of the index; ONNX's operator takes no larger tensor."""
    for node in list(graph.nodes):
        if node.target not in _SCATTERS:
            continue
        index, source = node.args[2], node.args[3]
        shapes = [t.meta["val"].shape for t in (index, source)]
        for axis, (wanted, there) in enumerate(zip(*shapes, strict=False)):
            if str(wanted) == str(there):
                continue
            with graph.inserting_before(node):
                end: Any = wanted
                if isinstance(wanted, torch.SymInt):
                    end = graph.call_function(aten.sym_size.int, (index, axis))
                    end.meta = {**node.meta, "val": wanted}
                cut = graph.call_function(aten.slice.Tensor, (source, axis, 0, end))
            value = source.meta["val"]
            cut.meta = {**node.meta, "val": value.narrow(axis, 0, wanted)}
            source = cut
        node.update_arg(3, source)


_ASSERTIONS = {
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
}


def drop_assertions(graph: torch.fx.Graph) -> None:
    """Remove assertions that guards check or that cannot fail, and nodes that nothing reads."""
    for node in list(graph.nodes):
        if node.target in _ASSERTIONS:
            graph.erase_node(node)
    graph.eliminate_dead_code()
