"""Rewrites PyTorch functions so that they return a view, their argument or a copy, as in PyTorch.

Exporters may return another of the three. A later write by forward would then reach the wrong
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor]


def _meshgrid(*tensors: Tensors, indexing: str = "ij") -> tuple[torch.Tensor, ...]:
    """``torch.meshgrid``, whose results are views."""
    vectors = _as_list(tensors)
    order = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        order[:2] = 1, 0
    shape = [vectors[i].numel() for i in order]
    return tuple(
        t.view([-1 if i == order[at] else 1 for i in range(len(shape))]).expand(shape)
        for at, t in enumerate(vectors)
    )


def _broadcast_tensors(*tensors: Tensors) -> list[torch.Tensor]:
    """``torch.broadcast_tensors``, whose results are views."""
    operands = _as_list(tensors)
    shape = torch.broadcast_shapes(*(t.shape for t in operands))
    return [t.expand(shape) for t in operands]


def _as_list(tensors: Sequence[Tensors]) -> Sequence[torch.Tensor]:
    """Return the tensors of a call, which takes them as several arguments or as one list."""
    first = tensors[0] if len(tensors) == 1 else None
    return first if isinstance(first, (list, tuple)) else tensors


def _at_least(axes: dict[int, tuple[int, ...]]) -> Callable[..., Any]:
    """Return ``torch.atleast_…d``, whose results are views; ``axes`` are those to add, by rank."""

    def of_one(t: torch.Tensor) -> torch.Tensor:
        for axis in axes.get(t.dim(), ()):
            t = t.unsqueeze(axis)
        return t

    def rewrite(*tensors: Tensors) -> Tensors:
        if len(tensors) != 1:
            return tuple(map(of_one, tensors))
        (operand,) = tensors
        return (
            tuple(map(of_one, operand)) if isinstance(operand, (list, tuple)) else of_one(operand)
        )

    return rewrite


def _type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``Tensor.type_as``: returns the tensor itself if it has that dtype."""
    return self if self.dtype == other.dtype else self.to(other.dtype)


def _channel_shuffle(input: torch.Tensor, groups: int) -> torch.Tensor:
    """``F.channel_shuffle``: returns a copy also for one group."""
    return input.clone() if groups == 1 else torch.channel_shuffle(input, groups)


def _sum_to_size(self: torch.Tensor, *size: int | Sequence[int]) -> torch.Tensor:
    """``Tensor.sum_to_size``: returns the tensor itself if it has that size."""
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return self if tuple(shape) == tuple(self.shape) else self.sum_to_size(*size)


VIEWS: dict[Any, Callable[..., Any]] = {
    torch.broadcast_tensors: _broadcast_tensors,
    torch.atleast_1d: _at_least({0: (0,)}),
    torch.atleast_2d: _at_least({0: (0, 0), 1: (0,)}),
    torch.atleast_3d: _at_least({0: (0, 0, 0), 1: (0, 2), 2: (2,)}),
    torch.Tensor.type_as: _type_as,
    torch.channel_shuffle: _channel_shuffle,
    torch.meshgrid: _meshgrid,
    torch.Tensor.sum_to_size: _sum_to_size,
}
"""Rewrites by function."""
