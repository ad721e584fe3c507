"""``register_graph_optimizer``: registers functions that rewrite the graphs of ``ORTModule``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import onnx

Function = TypeVar("Function", bound=Callable[[Any], None])


@dataclass(frozen=True)
class _Registration:
    function: Callable[[Any], None]
    modules: frozenset[str]
    devices: frozenset[str]
    priority: int


_registrations: list[_Registration] = []


def register_graph_optimizer(
    target_modules: str = "all", devices: str = "all", priority: int = 0
) -> Callable[[Function], Function]:
    """Decorate a function that changes a captured graph, an ``onnx.GraphProto``, in place.

    It runs once on each graph that an ``ORTModule`` of ``steep.compat`` captures from then on,
    before the graph is differentiated.

    Args:
        target_modules: names of wrapped modules' classes, joined by "|", or "all".
        devices: "cpu" or "all"; for other devices, the function does not run.
        priority: the highest runs first; of equal ones, the one that was registered first.

    A call of an ORTModule raises ModelError if the function changes the names of inputs or outputs,
    and any error of the function.
    """

    def register(function: Function) -> Function:
        modules, kinds = (frozenset(names.split("|")) for names in (target_modules, devices))
        _registrations.append(_Registration(function, modules, kinds, priority))
        return function

    return register


def optimizers_of(module: str) -> list[Callable[[Any], Any]]:
    """Return, in order, the functions that change a ModelProto of a module of this class."""
    matches = [
        r for r in _registrations if r.modules & {"all", module} and r.devices & {"all", "cpu"}
    ]
    matches.sort(key=lambda r: -r.priority)
    return [functools.partial(_change_graph, r.function) for r in matches]


def _change_graph(function: Callable[[onnx.GraphProto], Any], model: onnx.ModelProto) -> None:
    function(model.graph)
