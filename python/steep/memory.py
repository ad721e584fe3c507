"""Which tensors of a captured graph share memory, and what writes to it."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor


def memory_of(node: torch.fx.Node) -> int | None:
    """Return what names the memory of a tensor; None within transforms of functions."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or is_functorch_wrapped_tensor(value):
        return None
    return int(value.untyped_storage()._cdata)


_IN_PLACE = re.compile(r"i(add|sub|mul|truediv|floordiv|mod|pow|and|or|xor)|setitem|\w*[a-z0-9]_")


def written_by(n: torch.fx.Node) -> torch.fx.Node | None:
    """Return the tensor that a call changes in place, and gives; None where it gives several."""
    written = all_written_by(n)
    return written[0] if len(written) == 1 else None


def all_written_by(n: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the tensors that a call changes in place."""
    if not n.op.startswith("call_"):
        return []
    name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
    given: Any = []
    if "out" in n.kwargs:
        given = n.kwargs["out"]
    elif n.args and _IN_PLACE.fullmatch(name):
        given = n.args[0]
    targets = given if isinstance(given, (tuple, list)) else [given]
    return [t for t in targets if isinstance(t, torch.fx.Node)]  # or a number
