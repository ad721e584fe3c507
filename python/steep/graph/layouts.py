"""The order in which a result's dimensions lie in memory, such as channels last."""

from __future__ import annotations

import torch

from steep.lowering.extents import hint

Layout = tuple[int, ...] | None
"""A tensor's dimensions, the outermost in memory first; None if it is contiguous."""


def layout_of(example: object) -> Layout:
    """Return the layout of PyTorch's result; None also for one with gaps, or without a layout.

    The engine's results are contiguous. Only a view of a larger tensor has gaps, or holds elements
    twice (``expand``).
    """
    if not isinstance(example, torch.Tensor) or example.layout is not torch.strided:
        return None
    extents = [hint(n) for n in example.shape]
    strides = [hint(s) for s in example.stride()]
    if strides == _strides(extents, range(len(extents))) or 0 in extents:
        return None
    order = sorted(range(len(extents)), key=lambda d: (-strides[d], -extents[d]))
    return tuple(order) if strides == _strides(extents, order) else None


def laid_out(result: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return a contiguous result, or else a copy of it in this layout."""
    if layout is None:
        return result
    empty = torch.empty_permuted(result.shape, layout, dtype=result.dtype, device=result.device)
    return empty.copy_(result)


def _strides(extents: list[int], order: tuple[int, ...] | list[int] | range) -> list[int]:
    strides, step = [1] * len(extents), 1
    for d in reversed(order):
        strides[d] = step
        step *= extents[d]
    return strides
