"""Types of the arguments and results of translations, and constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx

from steep.lowering.ops.onnx_script import ir, opset18

if TYPE_CHECKING:
    Value: TypeAlias = ir.Value
else:
    # PyTorch's exporter evaluates the annotations of translations. It refuses ir.Value, which has
    # a property `dtype`, and takes a parameter of type Any for a tensor of any dtype.
    Value = Any

Number: TypeAlias = Value | float
"""A number: a constant of the captured graph, or a value that it computes."""

Extents: TypeAlias = Sequence[int | Value]
"""Extents of axes; those that change between calls are int64 values."""

Slopes: TypeAlias = list[tuple[Value, Value]]
"""Pairs (tensor, boolean mask of its shape where the result's gradient flows to it)."""

Operator: TypeAlias = Callable[..., Value]
"""A function that adds nodes and returns their result: ``opset18.Add``, or a translation."""

Pair: TypeAlias = Callable[..., tuple[Value, Value]]
"""A translation with two results."""

Translation: TypeAlias = Callable[..., Value | tuple[Value, ...] | Sequence[Value]]
"""A translation with one result or several."""


def number(value: float, like: Value) -> Value:
    """Return a constant without dimensions, with the dtype of ``like``."""
    kind = like.dtype if like.dtype is not None else ir.DataType.DOUBLE
    constant = opset18.Constant(value=onnx.helper.make_tensor("", int(kind), [], [value]))
    if like.dtype is None:
        return opset18.CastLike(constant, like)
    constant.dtype = kind  # for translations that depend on it
    return constant


def ints(*values: int) -> Value:
    """Return a constant of dtype int64 with one dimension."""
    return opset18.Constant(value_ints=list(values))


def is_nan(x: Value) -> Value:
    """Return a mask of the NaN elements, for any dtype."""
    return opset18.Not(opset18.Equal(x, x))
