"""Types of what translations of operators take and give."""

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
"""A number that the captured graph holds, or one that it computes."""

Extents: TypeAlias = Sequence[int | Value]
"""Extents of axes: those that change between calls are values of int64."""

Slopes: TypeAlias = list[tuple[Value, Value]]
"""What a result has a slope to, and where it has one: values, and booleans of their shapes."""

Operator: TypeAlias = Callable[..., Value]
"""Adds nodes to the graph and returns their result: ``opset18.Add``, or a translation."""

Pair: TypeAlias = Callable[..., tuple[Value, Value]]
"""A translation of two results."""

Translation: TypeAlias = Callable[..., Value | tuple[Value, ...] | Sequence[Value]]
"""A translation of one result or several."""
