"""Nested arguments and results of a module ↔ a flat list of tensors.

A structure is a hashable description of everything but the tensors: where they stand in lists,
tuples, dicts, named tuples and dataclasses (such as the outputs of ``transformers``), and every
number, string or None beside them. Two calls with equal structures can share one exported graph.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Any, Union

import torch

from steep.errors import DataError, ModelError

Structure = Union["Leaf", "Constant", "Sequence", "Keyed", "Opaque"]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A tensor."""


@dataclasses.dataclass(frozen=True)
class Constant:
    """A value that is part of the structure. Compared with its type: 1, 1.0 and True differ."""

    kind: type
    value: Any


@dataclasses.dataclass(frozen=True)
class Sequence:
    """A list, tuple or named tuple."""

    kind: type
    items: tuple[Structure, ...]


@dataclasses.dataclass(frozen=True)
class Keyed:
    """A mapping or dataclass."""

    kind: type
    keys: tuple[Any, ...]
    items: tuple[Structure, ...]


@dataclasses.dataclass(frozen=True)
class Opaque:
    """A result that cannot be rebuilt; only its place is kept."""

    kind: type
    path: str


class Missing:
    """Stands for a result that the graph does not carry. Raises when it is used."""

    def __init__(self, kind: type, path: str) -> None:
        self.__dict__.update(_kind=kind, _path=path)

    def __bool__(self) -> bool:
        raise self._error()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copy, pickle and inspect probe
            raise AttributeError(name)
        raise self._error()

    def __getitem__(self, key: object) -> Any:
        raise self._error()

    def __repr__(self) -> str:
        return f"<{self._path}: a {self._kind.__name__}, not carried by the exported graph>"

    def _error(self) -> ModelError:
        return ModelError(
            "A result of the module is not carried by the exported graph.",
            node=self._path,
            expected="tensors, numbers, None, lists, tuples, dicts, dataclasses",
            received=f"a {self._kind.__name__}",
            remedy="return its tensors, or switch it off (a key-value cache: use_cache=False)",
        )


_CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    enum.Enum,
    slice,
    range,
    torch.dtype,
    torch.device,
    torch.Size,
)


def flatten(value: Any, *, results: bool = False) -> tuple[list[torch.Tensor], Structure]:
    """Split a value into its tensors and its structure.

    With ``results``, an object of an unknown class becomes an ``Opaque``; otherwise it raises
    DataError.
    """
    tensors: list[torch.Tensor] = []
    return tensors, _flatten(value, tensors, "", results)


def _flatten(value: Any, out: list[torch.Tensor], path: str, results: bool) -> Structure:
    if isinstance(value, torch.Tensor):
        out.append(value)
        return _LEAF
    if value is None:
        return _NONE
    kind = type(value)
    if isinstance(value, _CONSTANTS):
        return Constant(kind, value)
    if dataclasses.is_dataclass(value) or isinstance(value, Mapping):
        pairs = list(_items(value))
        return Keyed(
            kind,
            tuple(key for key, _ in pairs),
            tuple(_flatten(item, out, f"{path}.{key}", results) for key, item in pairs),
        )
    if isinstance(value, (list, tuple)):
        return Sequence(
            kind, tuple(_flatten(item, out, f"{path}.{i}", results) for i, item in enumerate(value))
        )
    if results:
        return Opaque(kind, path.lstrip(".") or "result")
    raise DataError(
        "An argument of the module is of a class that cannot be taken apart.",
        node=path.lstrip("."),
        expected="tensors, numbers, strings, None, lists, tuples, dicts, dataclasses",
        received=f"a {kind.__module__}.{kind.__qualname__}",
    )


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(
        value, Mapping
    ):  # the outputs of `transformers` are both; absent fields are no items
        yield from value.items()
    else:
        for field in dataclasses.fields(value):
            if field.init:
                yield field.name, getattr(value, field.name)


def unflatten(structure: Structure, tensors: list[torch.Tensor]) -> Any:
    """Rebuild a value from its structure and tensors."""
    return _unflatten(structure, iter(tensors))


def _unflatten(structure: Structure, tensors: Iterator[torch.Tensor]) -> Any:
    match structure:
        case Leaf():
            return next(tensors)
        case Constant(_, value):
            return value
        case Sequence(kind, items):
            values = [_unflatten(item, tensors) for item in items]
            return kind(*values) if hasattr(kind, "_fields") else kind(values)
        case Keyed(kind, keys, items):
            pairs = [(k, _unflatten(i, tensors)) for k, i in zip(keys, items, strict=True)]
            return kind(**dict(pairs)) if dataclasses.is_dataclass(kind) else kind(pairs)
        case Opaque(kind, path):
            return Missing(kind, path)


def tensor_paths(structure: Structure, path: str = "") -> list[str]:
    """Names of the tensors by their place, such as ``batch.labels`` or ``xs.0``."""
    match structure:
        case Leaf():
            return [path]
        case Sequence(_, items):
            return [p for i, s in enumerate(items) for p in tensor_paths(s, f"{path}.{i}")]
        case Keyed(_, keys, items):
            return [
                p
                for k, s in zip(keys, items, strict=True)
                for p in tensor_paths(s, f"{path}.{k}" if path else str(k))
            ]
        case _:
            return []


_LEAF = Leaf()
_NONE = Constant(type(None), None)
