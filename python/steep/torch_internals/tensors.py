"""What PyTorch knows of a tensor and does not offer: its memory, versions, views and hooks."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from operator import attrgetter
from typing import Any

import torch

__all__ = ["has_hooks", "is_view", "set_hooks", "storage_id", "version_of"]

is_view: Callable[[torch.Tensor], bool] = torch.Tensor._is_view

version_of: Callable[[torch.Tensor], int] = attrgetter("_version")
"""Counts the writes to a tensor's memory."""


def storage_id(tensor: torch.Tensor) -> int:
    """Return what names a tensor's memory; one without values has such a name, too."""
    return int(tensor.untyped_storage()._cdata)


def has_hooks(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has hooks on its gradient, or on a leaf's sum of them."""
    after: Any = getattr(tensor, "_post_accumulate_grad_hooks", None)
    return bool(tensor._backward_hooks or after)


def set_hooks(tensor: torch.Tensor, hooks: MutableMapping[int, Any]) -> None:
    """Give a result of autograd hooks, as ``Tensor.register_hook`` does with the first of them."""
    assert tensor.grad_fn is not None
    tensor._backward_hooks = hooks  # type: ignore[assignment]
    tensor.grad_fn._register_hook_dict(tensor)
