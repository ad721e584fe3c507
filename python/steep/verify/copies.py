"""Copies of a graph's arguments, for a run in PyTorch. Uses public interfaces only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def copies_of(arguments: Sequence[Any]) -> list[Any]:
    """Return copies of the tensors that are autograd leaves, each with memory of its own."""
    return [
        t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
        for t in arguments
    ]


def wide(value: object) -> Any:
    """Return a copy that is an autograd leaf; floating-point tensors become float64."""
    if not isinstance(value, torch.Tensor):
        return value
    floats = value.dtype.is_floating_point
    copy = value.detach().to(torch.float64 if floats else value.dtype, copy=True)
    return copy.requires_grad_(value.requires_grad)


def or_zero(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Return a gradient; zeros with the shape of ``like`` for None."""
    return torch.zeros_like(like) if gradient is None else gradient
