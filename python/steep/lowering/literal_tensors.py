"""Tensors that forward makes from numbers: ``torch.tensor`` and the legacy constructors.

Traced with fake values, tensors of legacy constructors (``torch.FloatTensor([2])``) would have no
values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from steep.torch_internals.operators import tensor_of_refs
from steep.torch_internals.pytree import tree_leaves

_Nested: TypeAlias = "float | torch.Tensor | Sequence[_Nested]"

_OLD = {
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16,
    torch.BFloat16Tensor: torch.bfloat16,
    torch.LongTensor: torch.int64,
    torch.IntTensor: torch.int32,
    torch.ShortTensor: torch.int16,
    torch.CharTensor: torch.int8,
    torch.ByteTensor: torch.uint8,
    torch.BoolTensor: torch.bool,
}


def literal_for(node: torch.fx.Node) -> Callable[..., Any] | None:
    """Return a function that makes the tensor of a call from numbers; None for other calls."""
    if node.op != "call_function":
        return None
    if node.target is tensor_of_refs:
        return _tensor_of
    if node.target not in (*_OLD, torch.Tensor) or node.kwargs or not node.args:
        return None
    make: Callable[..., Any] | None = None
    if len(node.args) == 1 and isinstance(node.args[0], (list, tuple)):
        make = _tensor_of
    elif all(isinstance(n, (int, torch.fx.Node)) for n in node.args) and not _reads_tensor(node):
        make = torch.empty  # the arguments are extents
    if make is not None:
        dtype = _OLD.get(node.target, torch.get_default_dtype())
        return functools.wraps(make)(functools.partial(make, dtype=dtype))
    return None


def _reads_tensor(node: torch.fx.Node) -> bool:
    return any(isinstance(n.meta["example_value"], torch.Tensor) for n in node.all_input_nodes)


def _tensor_of(data: _Nested, *, dtype: torch.dtype | None = None, **_: object) -> torch.Tensor:
    """Return ``torch.tensor(data)``; some of the numbers may be tensors without dimensions."""
    if dtype is None:
        dtypes = {n.dtype if isinstance(n, torch.Tensor) else type(n) for n in tree_leaves(data)}
        if dtypes & {float, torch.float64, torch.SymFloat}:
            dtype = torch.get_default_dtype()
        else:
            dtype = torch.bool if dtypes == {bool} else torch.int64

    def build(value: _Nested) -> torch.Tensor:
        if isinstance(value, (list, tuple)):
            return torch.stack([build(v) for v in value])
        if isinstance(value, torch.Tensor):
            return value.to(dtype)
        return torch.full((), value, dtype=dtype)

    return build(data)
