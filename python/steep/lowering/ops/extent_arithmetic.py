"""Numbers that a graph computes from extents.

- Integers via floats: ``int(0.29 * x.shape[0])``. Python's floats are float64, and so are these.
  The exporter uses float32, in which 0.29 · 100 is 29 and not slightly less.
- Quotients of integers are rounded down, as in Python: ``-(-n // 4)`` is the ceiling of n / 4.
  ONNX's Div rounds towards zero, and so does the exporter.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.values import Number, Operator, Value
from steep.torch_internals.operators import sym_sqrt


def _double(x: Number) -> Value:
    if isinstance(x, ir.Value):
        return opset18.Cast(x, to=ir.DataType.DOUBLE)
    return opset18.Constant(value=ir.tensor(float(x), ir.DataType.DOUBLE))


def _of_doubles(onnx_operator: Operator) -> Operator:
    def calculate(*operands: Number) -> Value:
        return onnx_operator(*map(_double, operands))

    return calculate


_OPERATORS: dict[Callable[..., object], Operator] = {
    torch.sym_float: opset18.Identity,
    operator.add: opset18.Add,
    operator.sub: opset18.Sub,
    operator.mul: opset18.Mul,
    operator.truediv: opset18.Div,
    operator.neg: opset18.Neg,
    sym_sqrt: opset18.Sqrt,
}


def _mark(function: Callable[..., object]) -> Callable[..., object]:
    """Return a wrapper of ``function``, which marks calls in a graph that compute in float64."""

    def in_float64(*operands: object) -> object:
        return function(*operands)

    return in_float64


def _floor_divide(self: Number, other: Number) -> Value:
    return opset18.Div(opset18.Sub(self, opset18.Mod(self, other)), other)


_IN_FLOAT64 = {function: _mark(function) for function in _OPERATORS}
_TO_FLOAT64 = {
    _IN_FLOAT64[function]: _of_doubles(onnx_operator)
    for function, onnx_operator in _OPERATORS.items()
}
OF_INTEGERS: dict[Callable[..., object], Operator] = {operator.floordiv: _floor_divide}
TRANSLATIONS = _TO_FLOAT64 | OF_INTEGERS


def count_in_float64(graph: torch.fx.Graph) -> None:
    """Compute floats in float64 if they only become integers; changes the graph in place."""
    for node in reversed(list(graph.nodes)):
        if (
            node.target in _IN_FLOAT64
            and isinstance(node.meta.get("val"), torch.SymFloat)
            and all(_counts(user) for user in node.users)
        ):
            node.target = _IN_FLOAT64[node.target]


def _counts(user: torch.fx.Node) -> bool:
    return user.target in _TO_FLOAT64 or isinstance(user.meta.get("val"), torch.SymInt)
