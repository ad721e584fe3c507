"""Copies of a graph's arguments, for PyTorch to run it too. Knows public interfaces alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def copies_of(arguments: Sequence[Any]) -> list[Any]:
    """Return copies that are autograd leaves. The graph writes to none that share memory."""
    return [
        t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
        for t in arguments
    ]


def wide(value: object) -> Any:
    """Return a copy that is an autograd leaf, of float64 if it is of floats."""
    if not isinstance(value, torch.Tensor):
        return value
    floats = value.dtype.is_floating_point
    made = value.detach().to(torch.float64 if floats else value.dtype, copy=True)
    return made.requires_grad_(value.requires_grad)


def or_zero(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Return a gradient; where none flows it is zero."""
    return torch.zeros_like(like) if gradient is None else gradient
