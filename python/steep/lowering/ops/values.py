"""Types of the arguments and results of translations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from onnxscript import ir

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
