"""PyTorch's optimizers."""

from __future__ import annotations

from torch.optim import Optimizer

__all__ = ["has_step_hooks", "note_step"]


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Return whether ``step()`` of an optimizer has hooks."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def note_step(optimizer: Optimizer) -> None:
    """Tell PyTorch's schedules that ``step()`` was called; they warn if it was not."""
    optimizer._opt_called = True  # type: ignore[attr-defined]
