"""Keeps all digits of a module's Python numbers, for float64 tensors.

ONNX stores float attributes in float32, and the exporter makes float32 constants that it casts. The
digits of attributes go into metadata, which the engine reads; constants become float64 before the
cast.
"""

from __future__ import annotations

import contextlib
import struct

import onnxscript
from onnx_ir.passes.common import InlinePass
from onnxscript import ir

from steep._steep import DIGITS_KEY
from steep.patching.signals import deliver_signals
from steep.patching.substitution import Substitution, substitute
from steep.torch_internals.exporter import building

CREATE_CONSTANT = Substitution(
    building,
    "_get_or_create_constant",
    "The exporter rounds Python numbers to float32; here their digits are kept.",
)

_CONSTANT = DIGITS_KEY + "value"  # metadata key of a Constant node
_make_constant = building._get_or_create_constant


def constants_with_digits() -> contextlib.AbstractContextManager[None]:
    """Store the Python number in the metadata of each constant that the exporter makes."""
    return substitute({CREATE_CONSTANT: _constant})


def _constant(
    farm: dict[tuple[object, ir.DataType], ir.Value],
    number: object,
    dtype: ir.DataType,
    opset: onnxscript.values.Opset,
) -> ir.Value:
    deliver_signals()  # the exporter calls this for about every operator
    value = _make_constant(farm, number, dtype, opset)
    if dtype == ir.DataType.FLOAT and _is_rounded(number):
        value.producer().metadata_props[_CONSTANT] = repr(number)
    return value


def keep_digits(model: ir.Model) -> None:
    """Restore all digits in a model with float64 tensors.

    The model must have been exported under ``constants_with_digits()``.
    """
    graph = model.graph
    values = [*graph.inputs, *(v for node in graph.all_nodes() for v in node.outputs)]
    if all(value.dtype != ir.DataType.DOUBLE for value in values):
        return
    InlinePass()(model)  # so that numbers passed to functions become constants
    for node in list(graph.all_nodes()):
        if node.op_type in ("Cast", "CastLike") and (number := _number(node.inputs[0])) is not None:
            tensor = ir.tensor(number, ir.DataType.DOUBLE)
            exact = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])
            graph.insert_before(node, exact)
            node.replace_input_with(0, exact.outputs[0])
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.FLOAT and _is_rounded(attribute.value):
                node.metadata_props[DIGITS_KEY + name] = repr(attribute.value)


def _number(value: ir.Value | None) -> float | None:
    """Return the Python number from which a float32 constant was made; None for other values."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "Constant":
        return None
    if text := node.metadata_props.get(_CONSTANT):
        return float(text)
    (attribute,) = node.attributes.values()
    return attribute.value if attribute.name == "value_float" else None


def _is_rounded(number: object) -> bool:
    """Return whether float32 would round the number."""
    if not isinstance(number, float):
        return False
    try:
        return bool(struct.unpack("f", struct.pack("f", number))[0] != number)
    except OverflowError:
        return True
