"""Makes a fork wait while another thread captures a module.

A child process does not have that thread: the tracer's lock would stay held, and PyTorch would stay
patched. If the wait is too long, the child refuses to capture, with an error.

PyTorch's autograd is started, too, by the import of this file: before anything is captured, each
file that a tracer or ``ORTModule`` asks first imports it. It needs no private part of PyTorch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import torch

from steep.errors import ModelError

WAIT = 30.0
"""Longest wait of a fork for captures, in seconds."""

loading = threading.RLock()
"""Held while a thread imports the capture modules: a child could not finish that import."""

tracing = threading.RLock()
"""Held while PyTorch traces for ``public_capture``: its tracers change state of all threads."""

_OURS = ("loading", "tracing")
_TRACER = "torch._dynamo.convert_frame"  # a capture holds its compile_lock


class _Fork:
    """State of the fork in progress, and of the fork that made this process."""

    def __init__(self) -> None:
        self.locks: list[Any] = []
        self.torn = False  # another thread was capturing when this process was forked


_fork = _Fork()


def refuse_to_capture() -> None:
    """Raise ModelError in a process that was forked while another thread captured."""
    if _fork.torn:
        raise ModelError(
            "This process was forked while another thread captured a module.",
            expected=f"a capture that ends within {WAIT:.0f} s",
            received="one that the fork could not wait for",
            remedy="fork before the first call or after it, or start the process by spawn "
            '(multiprocessing.get_context("spawn"))',
        )


def _wait() -> None:
    end = time.monotonic() + WAIT
    _fork.locks = []
    tracer = getattr(sys.modules.get(_TRACER), "compile_lock", None)
    for lock in (loading, tracing, tracer):
        if lock is not None and lock.acquire(timeout=max(0.0, end - time.monotonic())):
            _fork.locks.append(lock)


def _go_on() -> None:
    for lock in _fork.locks:
        lock.release()
    _fork.locks = []


def _enter_child() -> None:
    locks = _fork.locks
    _go_on()
    tracer: Any = sys.modules.get(_TRACER)
    for name in _OURS:
        if globals()[name] not in locks:
            globals()[name] = threading.RLock()
            _fork.torn = True
    if hasattr(tracer, "compile_lock") and tracer.compile_lock not in locks:
        tracer.compile_lock = threading.RLock()
        _fork.torn = True


def _start_autograd() -> None:
    """Run a backward, at whose first time in a process autograd starts a thread for each GPU.

    A capture has one GPU too many on a machine without any: for PyTorch's build for CUDA, tensors
    without data need it. With a thread for it, no backward would run in a forked child.
    """
    with torch.inference_mode(False), torch.enable_grad():
        one = torch.ones((), device="cpu", requires_grad=True)
        torch.autograd.grad(one.clone(), one)


_start_autograd()
os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_enter_child)
