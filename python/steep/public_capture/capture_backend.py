"""What ``module/capture_protocol.py`` asks for, by public interfaces."""

from __future__ import annotations

from typing import Any

import torch

from steep.dynamo import forks  # noqa: F401  starts autograd before a capture
from steep.public_capture.compiled_module import CompiledModule as make_captured_module

__all__ = ["has_any_global_hook", "make_captured_module", "only_observed", "refuse_transforms"]


def has_any_global_hook() -> bool:
    """Return False: PyTorch has no public interface for this."""
    return False


def refuse_transforms() -> None:
    """Do nothing: ``torch.compile`` raises for transforms that it does not support."""


def only_observed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an exporter traces this call, which computes nothing."""
    return bool(torch.jit.is_tracing() or torch.compiler.is_exporting())
