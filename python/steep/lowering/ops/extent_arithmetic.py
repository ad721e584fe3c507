"""Integers that a graph calculates of extents by way of floats: ``int(0.29 * x.shape[0])``.

Python's floats are of float64, and so are these; the exporter's are of float32, where
0.29 · 100 is 29 and not a little less.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from onnxscript import ir, opset18

from steep.lowering.ops.values import Number, Operator, Value
from steep.torch_internals.operators import sym_sqrt


def _double(x: Number) -> Value:
    if isinstance(x, ir.Value):
        return opset18.Cast(x, to=ir.DataType.DOUBLE)
    return opset18.Constant(value=ir.tensor(float(x), ir.DataType.DOUBLE))


def _of_doubles(word: Operator) -> Operator:
    def calculated(*operands: Number) -> Value:
        return word(*map(_double, operands))

    return calculated


_WORDS: dict[Callable[..., object], Operator] = {
    torch.sym_float: opset18.Identity,
    operator.add: opset18.Add,
    operator.sub: opset18.Sub,
    operator.mul: opset18.Mul,
    operator.truediv: opset18.Div,
    operator.neg: opset18.Neg,
    sym_sqrt: opset18.Sqrt,
}


def _named(function: Callable[..., object]) -> Callable[..., object]:
    """Return a new function that replaces another one in a graph."""

    def in_float64(*operands: object) -> object:
        return function(*operands)

    return in_float64


_IN_FLOAT64 = {function: _named(function) for function in _WORDS}
TRANSLATIONS = {_IN_FLOAT64[function]: _of_doubles(word) for function, word in _WORDS.items()}


def count_in_float64(graph: torch.fx.Graph) -> None:
    """Let the floats of a graph be of float64, in place, that become integers and nothing else."""
    for node in reversed(list(graph.nodes)):
        if (
            node.target in _IN_FLOAT64
            and isinstance(node.meta.get("val"), torch.SymFloat)
            and all(_counts(user) for user in node.users)
        ):
            node.target = _IN_FLOAT64[node.target]


def _counts(user: torch.fx.Node) -> bool:
    return user.target in TRANSLATIONS or isinstance(user.meta.get("val"), torch.SymInt)
