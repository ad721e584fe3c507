"""A function of PyTorch's own, replaced for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put ``value`` in the place of a function of PyTorch's own.

    For all threads. Raises AttributeError where this version of PyTorch has no such function.
    """
    getattr(owner, name)
    own = name in vars(owner)  # otherwise it is inherited, and is to be again
    before = vars(owner).get(name)
    try:
        setattr(owner, name, value)
        yield
    finally:
        if own:
            setattr(owner, name, before)
        elif name in vars(owner):
            delattr(owner, name)
