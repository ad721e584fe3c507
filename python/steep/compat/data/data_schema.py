"""Converts nested data to a list of tensors and a schema, and back."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from steep.errors import DataError


class PrimitiveType:
    """Functions for Python numbers."""

    @staticmethod
    def is_primitive_type(value: object) -> bool:
        """Return whether it is exactly an int, a bool or a float; subclasses do not count."""
        return type(value) in (int, bool, float)

    @staticmethod
    def get_tensor(value: float, device: torch.device | str | None) -> torch.Tensor:
        """Return the number as a tensor without dimensions."""
        return torch.tensor(value, device=device)

    @staticmethod
    def get_primitive_dtype(value: float) -> str:
        """Return its type as text; for a bool, with its value."""
        return f"{type(value)}_{value}" if isinstance(value, bool) else str(type(value))


@dataclasses.dataclass(eq=True)
class TensorStub:
    """Stands for a tensor in a schema.

    Attributes:
        tensor_idx: its index in the list.
        name: the keys and indices that lead to it, joined by "_".
        dtype: its dtype as text.
        shape: not used.
        shape_dims: number of dimensions.
    """

    tensor_idx: int
    name: str | None = None
    dtype: str | None = None
    shape: Any = None
    shape_dims: int | None = None


ORTModelInputOutputType: Any = (
    str | int | bool | float | np.ndarray | torch.Tensor | Sequence[Any] | Mapping[str, Any] | None
)
ORTModelInputOutputSchemaType: Any = (
    str | int | bool | float | np.ndarray | TensorStub | Sequence[Any] | Mapping[str, Any] | None
)


def extract_data_and_schema(
    data: object, constant_as_tensor: bool = False, device: torch.device | str | None = None
) -> tuple[list[torch.Tensor], Any]:
    """Take the tensors out of nested data, depth first, with keys in sorted order.

    >>> extract_data_and_schema({"b": x, "a": [y, None]})
    ([y, x], {"a": [TensorStub(0, …), None], "b": TensorStub(1, …)})

    Args:
        data: tensors, None, text, numbers and arrays, in lists, tuples, named tuples and dicts.
        constant_as_tensor: convert numbers to tensors too.
        device: device of these tensors.

    Returns:
        The tensors, and the data with a ``TensorStub`` in place of each. Other values do not
        change.

    Raises:
        DataError: the data contains a value of another kind.

    Warns:
        UserWarning: the data contains text, a number or an array, which a graph may treat as a
            constant.
    """
    tensors: list[torch.Tensor] = []

    def stub(tensor: torch.Tensor, dtype: str, name: str) -> TensorStub:
        tensors.append(tensor)
        return TensorStub(len(tensors) - 1, name, dtype, shape_dims=tensor.dim())

    def visit(value: Any, name: str) -> Any:
        def visit_part(key: object, part: object) -> Any:
            return visit(part, f"{name}_{key}" if name else str(key))

        if value is None:
            return None
        if isinstance(value, torch.Tensor):
            return stub(value, str(value.dtype), name)
        number = PrimitiveType.is_primitive_type(value)
        if number or isinstance(value, (str, np.ndarray)):
            warnings.warn(
                f"{name or 'the data'} is of {type(value)}: a graph may take it for a constant",
                stacklevel=3,
            )
            if number and constant_as_tensor:
                dtype = PrimitiveType.get_primitive_dtype(value)
                return stub(PrimitiveType.get_tensor(value, device), dtype, name)
            return value
        if isinstance(value, Sequence):
            return _sequence(type(value), [visit_part(i, part) for i, part in enumerate(value)])
        if isinstance(value, Mapping):
            parts = {key: visit_part(key, part) for key, part in sorted(value.items())}
            return _mapping(value, parts)
        raise DataError(
            "Nested data holds a value of another kind.",
            node=name,
            expected="tensors, None, text, numbers, arrays; lists, tuples and dicts of such",
            received=str(type(value)),
        )

    schema = visit(data, "")
    return tensors, schema


def unflatten_data_using_schema(data: Sequence[torch.Tensor], schema: object) -> Any:
    """Put tensors in the places of a schema.

    Raises:
        DataError: a place has no tensor, or the schema contains a value of another kind.
    """
    if isinstance(schema, TensorStub):
        place = schema.tensor_idx
        if not 0 <= place < len(data) or not isinstance(data[place], torch.Tensor):
            raise DataError(
                "A schema entry has no tensor.",
                node=schema.name or "",
                expected=f"a tensor as number {place} of the list",
                received=f"{len(data)} entries: {', '.join(type(t).__name__ for t in data)}",
            )
        return data[place]
    plain = schema is None or isinstance(schema, (str, np.ndarray))
    if plain or PrimitiveType.is_primitive_type(schema):
        return schema
    if isinstance(schema, Sequence):
        parts = [unflatten_data_using_schema(data, part) for part in schema]
        return _sequence(type(schema), parts)
    if isinstance(schema, Mapping):
        return _mapping(
            schema,
            {key: unflatten_data_using_schema(data, part) for key, part in schema.items()},
        )
    raise DataError("A schema holds a value of another kind.", received=str(type(schema)))


def _sequence(kind: Any, parts: list[Any]) -> Any:
    return kind._make(parts) if hasattr(kind, "_make") else kind(parts)


def _mapping(like: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    if type(like) is dict:
        return parts
    result: Any = copy.copy(like)  # keeps the instance's other attributes
    for key, part in parts.items():
        result[key] = part
    return result
