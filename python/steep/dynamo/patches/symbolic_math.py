"""Functions of ``math`` for symbolic numbers, where PyTorch has none.

A function that reads the value of a symbol specialises the graph to that value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.experimental.sym_node import SymNode

from steep.torch_internals.fx import make_opaque_unary_fn


def _opaque(name: str) -> type[sympy.Function]:
    """Return an opaque SymPy function: symbolic reasoning knows only its values and its range."""
    function: type[sympy.Function] = make_opaque_unary_fn(name)
    function.__name__ = f"math.{name}"  # the name in guards
    return function


Number: TypeAlias = float | torch.SymInt | torch.SymFloat

_EXP, _LOG = _opaque("exp"), _opaque("log")


def _apply(
    function: type[sympy.Function], values: Callable[[float], float], number: Number
) -> Number:
    if not isinstance(number, (torch.SymInt, torch.SymFloat)):
        return values(number)
    of = torch.sym_float(number).node
    if not of.has_hint():  # the number depends on a tensor's values
        return values(float(number))
    hint = values(float(of.hint))
    return torch.SymFloat(SymNode(function(of.expr), of.shape_env, float, hint))


def exp(number: Number) -> Number:
    """Return ``math.exp`` of a number or a symbol."""
    return _apply(_EXP, math.exp, number)


def log(number: Number) -> Number:
    """Return ``math.log`` of a number or a symbol."""
    return _apply(_LOG, math.log, number)


def log_to_base(number: Number, base: Number) -> Number:
    """Return ``math.log`` to a base: a quotient of logarithms, as Python computes it."""
    return log(number) / log(base)


def power(base: Number, exponent: Number) -> Number:
    """Return ``math.pow`` of numbers or symbols."""
    if isinstance(base, (int, float)) and isinstance(exponent, (int, float)):
        return math.pow(base, exponent)
    return torch.sym_float(base) ** torch.sym_float(exponent)


def absolute(number: Number) -> Number:
    """Return ``math.fabs`` of a number or a symbol."""
    return abs(torch.sym_float(number))


def degrees(radians: Number) -> Number:
    """Return ``math.degrees`` of a number or a symbol."""
    return torch.sym_float(radians) * (180.0 / math.pi)


_OURS: dict[tuple[Any, int], Callable[..., Any]] = {
    (math.exp, 1): exp,
    (math.log, 1): log,
    (math.log, 2): log_to_base,
    (math.pow, 2): power,
    (math.fabs, 1): absolute,
    (math.degrees, 1): degrees,
}

_PYTORCHS = {
    function
    for name, function in vars(math).items()
    if hasattr(torch, f"_sym_{name}") or name in ("ceil", "floor", "radians", "trunc")
}


def function_for(function: object, count: int) -> Callable[..., Any] | None:
    """Return the symbolic form of a function of ``math`` with ``count`` arguments, or None."""
    return _OURS.get((function, count))


def takes_symbols(function: object) -> bool:
    """Return whether PyTorch itself evaluates a function of ``math`` with symbols."""
    return function in _PYTORCHS
