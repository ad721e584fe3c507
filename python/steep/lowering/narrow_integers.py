"""Operators on booleans and small integers, which ONNX defines for fewer types than PyTorch.

PyTorch adds booleans and raises int8 to a power. Here such operators work on wider integers; their
results are cast back, and so wrap around or become booleans as in PyTorch. ONNX's convolutions and
pools take no whole numbers but those of 8 bits in a maximum, and its interpolation does not round
them as PyTorch does: PyTorch runs these calls.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import torch
from onnxscript import ir

from steep.torch_internals.operators import OpOverload, name_of

_WIDER = {
    ir.DataType.BOOL: (ir.DataType.INT32, ir.DataType.INT64),
    ir.DataType.INT8: (ir.DataType.INT32, ir.DataType.INT64),
    ir.DataType.UINT8: (ir.DataType.INT32, ir.DataType.INT64),
    ir.DataType.INT16: (ir.DataType.INT32, ir.DataType.INT64),
    ir.DataType.UINT16: (ir.DataType.INT32, ir.DataType.INT64),
    ir.DataType.INT32: (ir.DataType.INT64,),
    ir.DataType.UINT32: (ir.DataType.INT64,),
}


_OF_EIGHT_BITS = (torch.int8, torch.uint8)


def windows_of_integers(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Yield the convolutions, pools and interpolations of whole numbers that ONNX does not have.

    Each node's ``meta["val"]`` is a fake tensor, with its dtype.
    """
    for node in graph.nodes:
        name = name_of(node.target) if isinstance(node.target, OpOverload) else ""
        if name.startswith(("conv", "avg_pool", "max_pool", "upsample_", "_upsample_bi")):
            dtype = node.all_input_nodes[0].meta["val"].dtype
            allowed = _OF_EIGHT_BITS if name.startswith("max_pool") else ()
            if not (dtype.is_floating_point or dtype.is_complex or dtype in allowed):
                yield node


def widen_integers(model: ir.Model) -> None:
    """Insert casts around the nodes whose operator does not accept their integer type, in place."""
    version = model.opset_imports.get("", 1)
    dtypes: dict[Any, Any] = {}  # types of values to which the exporter gives none
    for node in list(model.graph.all_nodes()):
        schema = _schema(node.op_type, version) if node.domain in ("", "ai.onnx") else None
        if schema is None:
            continue
        kinds: dict[str, ir.DataType] = {}
        for name, value in _pair_with_types(schema.inputs, node.inputs):
            if value is not None and (kind := value.dtype or dtypes.get(value)) is not None:
                kinds.setdefault(name, kind)
        for name, value in _pair_with_types(schema.outputs, node.outputs):
            dtypes[value] = value.dtype or kinds.get(name)
        if node.op_type == "Constant" and "value" in node.attributes:
            dtypes[node.outputs[0]] = node.attributes["value"].value.dtype
        elif node.op_type == "Cast":
            dtypes[node.outputs[0]] = ir.DataType(node.attributes["to"].value)
        for name, kind in kinds.items():
            if (wide := _wider(schema, name, kind)) is not None:
                _compute_in(wide, node, schema, name, kind=kind)


def _compute_in(
    wide: ir.DataType,
    node: ir.Node,
    schema: onnx.defs.OpSchema,
    variable: str,
    *,
    kind: ir.DataType,
) -> None:
    """Cast the operands of a type variable from ``kind`` to ``wide``, and the results back."""
    for i, (name, value) in enumerate(_pair_with_types(schema.inputs, node.inputs)):
        if name == variable and value is not None:
            cast = ir.node("Cast", [value], {"to": wide})
            node.graph.insert_before(node, cast)
            node.replace_input_with(i, cast.outputs[0])
    for name, value in _pair_with_types(schema.outputs, node.outputs):
        if name == variable:
            cast = ir.node("Cast", [value], {"to": kind})
            (result,) = cast.outputs
            result.shape, result.dtype, value.dtype = value.shape, kind, wide
            node.graph.insert_after(node, cast)
            ir.convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
            cast.replace_input_with(0, value)


@functools.cache
def _schema(op: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op, version)
    except onnx.defs.SchemaError:
        return None


def _pair_with_types(
    formal: Sequence[onnx.defs.OpSchema.FormalParameter], values: Sequence[ir.Value]
) -> list[tuple[str, ir.Value]]:
    """Return the values with their type variables; the last formal parameter may be variadic."""
    return [(formal[min(i, len(formal) - 1)].type_str, v) for i, v in enumerate(values)]


def _wider(schema: onnx.defs.OpSchema, variable: str, kind: ir.DataType) -> ir.DataType | None:
    constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    types = constraints.get(variable, [variable])
    if kind not in _WIDER or _text(kind) in types:
        return None
    return next((wide for wide in _WIDER[kind] if _text(wide) in types), None)


def _text(kind: ir.DataType) -> str:
    return f"tensor({kind.name.lower()})"
