"""What an exported graph holds for, beside the arguments: the attributes of a module's parts.

Whatever stands in the ``__dict__`` of a module decides, with the code, what it computes: numbers,
strings, lists, dicts and objects with such, tensors that are no buffers, functions, hooks; which
parameters are one; and the globals that a ``forward`` names. They are read before each call. Not
seen are the globals of functions that forward calls, closures, what hides behind ``__slots__``, and
what lies deeper than four objects within one another.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

PLAIN = (bool, int, float, str, type(None))
Attributes = tuple[tuple[torch.nn.Module, str, object], ...]
"""The module, the name, and the value in a form that is compared by content where it can be."""

_TABLES = frozenset({"_parameters", "_buffers"})
_CONTAINERS = frozenset({dict, OrderedDict, list, tuple, set})
_IMMUTABLE = (*PLAIN, complex, bytes, torch.dtype, torch.device, torch.Size)
_DEPTH = 4  # of objects within objects
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


class Same:
    """An object that equals itself alone; held, so that no other gets its identity."""

    __slots__ = ("value", "version")

    def __init__(self, value: object, version: int = 0) -> None:
        self.value, self.version = value, version

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Same) and self.value is other.value and self.version == other.version
        )

    def __hash__(self) -> int:
        return hash((id(self.value), self.version))

    def __repr__(self) -> str:
        return f"a {type(self.value).__name__}"


def read_attributes(
    module: torch.nn.Module, but: Collection[tuple[torch.nn.Module, str]] = frozenset()
) -> Attributes:
    """Return what an export of the module holds for, leaving out ``but`` (module, name).

    Empty containers, such as the tables of hooks that nobody registered, are left out.
    """
    found: list[tuple[torch.nn.Module, str, object]] = []
    memo: dict[int, object] = {}
    order: dict[int, int] = {}  # of the tensors in tables: which of them are one
    classes: set[type] = set()
    for m in module.modules():
        if type(m) not in classes:
            classes.add(type(m))
            for name, value in _globals_of(type(m)):
                found.append((m, f"global {name}", _frozen(value, memo, 0)))
        for name, value in vars(m).items():
            kind = type(value)
            if kind in _CONTAINERS and not value:
                continue  # most of what a module has
            if name in _TABLES:
                ties = tuple((k, order.setdefault(id(t), len(order))) for k, t in value.items())
                found.append((m, name, ties))
            elif name == "_modules":
                found.append((m, name, tuple(value)))
            elif not but or (m, name) not in but:
                found.append((m, name, value if kind in PLAIN else _frozen(value, memo, 0)))
    return tuple(found)


def _globals_of(kind: type) -> Iterator[tuple[str, object]]:
    """Yield the data, not the functions and classes, among the globals that forward names."""
    forward = getattr(kind, "forward", None)
    code = getattr(forward, "__code__", None)
    if forward is None or code is None:
        return
    scope = forward.__globals__
    for name in code.co_names:
        value = scope.get(name)
        if value is not None and isinstance(value, (*PLAIN, torch.Tensor, dict, list, tuple)):
            yield name, value


def name_attribute(module: torch.nn.Module, part: torch.nn.Module, name: str) -> str:
    """Return the path of an attribute of a part of the module."""
    prefix = next((p for p, m in module.named_modules() if m is part), "")
    return f"{prefix}.{name}".lstrip(".")


def changed_by_forward(before: Attributes, after: Attributes) -> list[tuple[torch.nn.Module, str]]:
    """Return what is no number or string and differs.

    What a hook composes of parameters before each use is none of it: ``weight``, of
    ``weight_orig`` when it is pruned, of ``weight_g`` and ``weight_v`` under weight_norm.
    """
    known = set(before)
    return [
        (m, name)
        for m, name, value in after
        if type(value) not in PLAIN
        and (m, name, value) not in known
        and not any(parameter.startswith(f"{name}_") for parameter in m._parameters)
    ]


def _frozen(value: Any, memo: dict[int, object], depth: int) -> object:
    if isinstance(value, _IMMUTABLE):
        return type(value), value
    if isinstance(value, torch.Tensor):
        return Same(value, 0 if value.is_inference() else value._version)
    if depth > _DEPTH or isinstance(value, (torch.nn.Module, *_CODE)):
        return Same(value)
    key = id(value)
    if key in memo:
        return memo[key]
    memo[key] = Same(value)  # what it holds may hold it
    frozen: object
    if isinstance(value, Mapping):
        frozen = tuple(
            (_frozen(k, memo, depth + 1), _frozen(v, memo, depth + 1)) for k, v in value.items()
        )
    elif isinstance(value, (list, tuple)):
        frozen = tuple(_frozen(v, memo, depth + 1) for v in value)
    elif isinstance(value, (set, frozenset)):
        frozen = frozenset(_frozen(v, memo, depth + 1) for v in value)
    elif hasattr(value, "__dict__"):
        frozen = (Same(value), _frozen(vars(value), memo, depth + 1))
    else:
        frozen = Same(value)
    memo[key] = frozen
    return frozen
