"""PyTorch's optimizers."""

from __future__ import annotations

from torch.optim import Optimizer, lr_scheduler

__all__ = ["has_own_step", "has_step_hooks", "note_step"]


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Return whether ``step()`` of an optimizer has hooks."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def has_own_step(optimizer: Optimizer) -> bool:
    """Return whether ``step`` of an optimizer was replaced, other than by PyTorch's schedules.

    These replace it by a function that counts calls.
    """
    step = vars(optimizer).get("step")
    function = getattr(step, "__func__", step)
    while getattr(getattr(function, "__code__", None), "co_filename", "") == lr_scheduler.__file__:
        function = function.__wrapped__
    return function is not None and function is not type(optimizer).step


def note_step(optimizer: Optimizer) -> None:
    """Tell PyTorch's schedules that ``step()`` was called; they warn if it was not."""
    optimizer._opt_called = True  # type: ignore[attr-defined]
