"""Extents of a captured graph: numbers, or symbols for extents that vary."""

from __future__ import annotations

import torch


def hint(number: int | torch.SymInt) -> int:
    """Return the value that an extent had at the capture, without adding a guard on it."""
    value = number.node.hint if isinstance(number, torch.SymInt) else number
    return 1 if value is None else int(value)  # None: the extent depends on tensor values
