"""Context managers that restore states of PyTorch and of loggers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from steep.torch_internals.autograd import (
    enter_dual_level,
    exit_dual_level,
    pop_saved_tensors_default_hooks,
    push_saved_tensors_default_hooks,
    saved_tensors_hooks_disable,
    saved_tensors_hooks_enable,
    saved_tensors_hooks_why_disabled,
    top_saved_tensors_default_hooks,
)
from steep.torch_internals.functorch import (
    get_dynamic_layer_stack_depth,
    pop_dynamic_layer_stack_and_undo_to_depth,
)


@contextlib.contextmanager
def without_transforms() -> Iterator[None]:
    """Leave, at the end, the function transforms (grad, vmap) that a failure left open.

    Also restores whether saved-tensor hooks are allowed, which transforms forbid.
    """
    depth, forward_mode = get_dynamic_layer_stack_depth(), _in_forward_mode()
    why_no_hooks = saved_tensors_hooks_why_disabled()
    try:
        yield
    finally:
        if not forward_mode and _in_forward_mode():
            exit_dual_level(level=0)
        pop_dynamic_layer_stack_and_undo_to_depth(depth)
        if why_no_hooks is None:
            saved_tensors_hooks_enable()
        else:
            saved_tensors_hooks_disable(why_no_hooks)


@contextlib.contextmanager
def without_hooks() -> Iterator[None]:
    """Disable this thread's saved-tensor hooks inside the ``with`` block."""
    hooks: list[Any] = []
    top: Any = top_saved_tensors_default_hooks
    try:
        while (pair := top(True)) is not None:
            pop_saved_tensors_default_hooks()
            hooks.append(pair)
        yield
    finally:
        for pair in reversed(hooks):
            push_saved_tensors_default_hooks(*pair)


def _in_forward_mode() -> bool:
    """Return whether the only level of forward-mode derivatives is in use."""
    try:
        enter_dual_level()
    except RuntimeError:  # PyTorch allows one level only
        return True
    exit_dual_level(level=0)
    return False


@contextlib.contextmanager
def silence_loggers(*packages: str) -> Iterator[None]:
    """Silence the loggers of packages below the level CRITICAL."""
    loggers = _loggers(*packages)
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _loggers(*packages: str) -> list[logging.Logger]:
    """Return the loggers of packages, and those below them that have levels of their own.

    All others take their parents' level. To set a level costs a look at every logger of the
    process: with those of all of PyTorch a twentieth of a second for each capture.
    """
    loggers = {package: logging.getLogger(package) for package in packages}
    for name, logger in logging.root.manager.loggerDict.items():
        if (
            isinstance(logger, logging.Logger)
            and logger.level != logging.NOTSET
            and name.split(".")[0] in packages
        ):
            loggers[name] = logger
    return list(loggers.values())
