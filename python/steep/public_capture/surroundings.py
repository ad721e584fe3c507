"""What ``ORTModule`` checks before a call, by public interfaces; see ``module/surroundings.py``."""

from __future__ import annotations

from typing import Any

import torch

from steep.public_capture.captured_module import CapturedModule

__all__ = ["CapturedModule", "has_any_global_hook", "only_observed", "refuse_transforms"]


def has_any_global_hook() -> bool:
    """Return False: PyTorch has no public interface for this."""
    return False


def refuse_transforms() -> None:
    """Do nothing: ``torch.compile`` raises for transforms that it does not support."""


def only_observed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an exporter traces this call, which computes nothing."""
    return bool(torch.jit.is_tracing() or torch.compiler.is_exporting())
