"""Which tensors of a captured graph share memory, and what writes to it."""

from __future__ import annotations

import re

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
    """Return the tensor that a call changes in place."""
    if not n.op.startswith("call_"):
        return None
    name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
    if "out" in n.kwargs:
        target = n.kwargs["out"]
    elif n.args and _IN_PLACE.fullmatch(name):
        target = n.args[0]
    else:
        return None
    return target if isinstance(target, torch.fx.Node) else None  # or a number
