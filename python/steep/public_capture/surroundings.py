"""What ``ORTModule`` asks of PyTorch at a call; ``module/surroundings.py`` knows more."""

from __future__ import annotations

from typing import Any

import torch

from steep.public_capture.captured_module import CapturedModule

__all__ = ["CapturedModule", "has_any_global_hook", "only_observed", "refuse_transforms"]


def has_any_global_hook() -> bool:
    """Return False: PyTorch does not say."""
    return False


def refuse_transforms() -> None:
    """Do nothing: ``torch.compile`` refuses what it does not follow."""


def only_observed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether this call computes nothing: an exporter looks on."""
    return bool(torch.jit.is_tracing() or torch.compiler.is_exporting())
