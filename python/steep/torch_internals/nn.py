"""PyTorch's modules."""

from __future__ import annotations

from torch.nn._reduction import legacy_get_string as legacy_reduction
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.module import _has_any_global_hook as has_any_global_hook

__all__ = ["BatchNorm", "has_any_global_hook", "legacy_reduction"]
