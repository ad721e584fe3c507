"""Private facts about tensors: memory, versions, views and hooks."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from operator import attrgetter
from typing import Any

import torch

__all__ = ["has_hooks", "is_view", "set_hooks", "storage_id", "version_of"]

is_view: Callable[[torch.Tensor], bool] = torch.Tensor._is_view

version_of: Callable[[torch.Tensor], int] = attrgetter("_version")
"""Return the number of writes to a tensor's memory."""


def storage_id(tensor: torch.Tensor) -> int:
    """Return a key for a tensor's memory; also for fake tensors."""
    return int(tensor.untyped_storage()._cdata)


def has_hooks(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has hooks on its gradient, or post-accumulate hooks."""
    after: Any = getattr(tensor, "_post_accumulate_grad_hooks", None)
    return bool(tensor._backward_hooks or after)


def set_hooks(tensor: torch.Tensor, hooks: MutableMapping[int, Any]) -> None:
    """Set the hooks of a result of autograd, as the first ``Tensor.register_hook`` does."""
    assert tensor.grad_fn is not None
    tensor._backward_hooks = hooks  # type: ignore[assignment]
    tensor.grad_fn._register_hook_dict(tensor)
