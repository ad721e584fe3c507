"""Whether a run is compared with PyTorch's, how two values differ, and how much they may."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import torch

from steep.errors import ModelError

TOLERANCES = {
    torch.float64: 1e-6,  # attributes of ONNX are float32
    torch.float32: 1e-4,
    torch.float16: 3e-2,
    torch.bfloat16: 1e-1,
}
"""Of the largest entry; a graph has that of the narrowest type that it computes in."""

LEAST_SCALE = 0.1  # of the largest gradient of the graph: many are zero but for rounding


def wanted(verify: bool | None, *, unasked: bool = False) -> bool:
    """Return what was asked for: by an argument, else by ``STEEP_VERIFY``. Raises ModelError."""
    if verify is not None:
        return verify
    chosen = os.environ.get("STEEP_VERIFY", "")
    if chosen not in ("", "0", "1"):
        raise ModelError(
            "An environment variable has a value that is not supported.",
            node="STEEP_VERIFY",
            expected="0 or 1",
            received=chosen,
        )
    return chosen == "1" if chosen else unasked


@dataclasses.dataclass(frozen=True)
class Difference:
    """The largest difference of two tensors, relative to the largest entry that is expected."""

    relative: float
    expected: str
    received: str


def difference(
    received: Any, expected: Any, least: float = 0.0, *, overflows: bool = False
) -> Difference | None:
    """Compare two values; ``least`` is the smallest number to be relative to. None: equal.

    With ``overflows``, entries that are not finite are ignored.
    """
    if not isinstance(expected, torch.Tensor):
        if not isinstance(expected, (bool, int, float)):
            return None
        expected, received = torch.tensor(expected), torch.tensor(received)
    e, r = expected.detach(), received.detach()
    if e.shape != r.shape or e.dtype != r.dtype:
        return Difference(
            math.inf, f"{e.dtype}{list(e.shape)}"[6:], f"{r.dtype}{list(r.shape)}"[6:]
        )
    if expected.requires_grad and not received.requires_grad and least == 0:
        return Difference(math.inf, "a result that has a gradient", "one that has none")
    if e.dtype.is_complex:
        e, r = torch.view_as_real(e), torch.view_as_real(r)
    same = (e == r) | (e.isnan() & r.isnan())
    if overflows:
        same |= ~(e.isfinite() & r.isfinite())
    if same.all():
        return None
    e, r = e.double(), r.double()
    gap = (e - r).abs().masked_fill(same, 0).nan_to_num(nan=math.inf, posinf=math.inf)
    worst = int(gap.argmax())
    relative = float(gap.flatten()[worst]) / max(
        largest_of(e), least, torch.finfo(torch.float32).tiny
    )
    where = [int(i) for i in torch.unravel_index(torch.tensor(worst), e.shape)]
    there = f" at {where}" if where else ""
    return Difference(
        relative, f"{e.flatten()[worst]:.7g}{there}", f"{r.flatten()[worst]:.7g}{there}"
    )


def largest_of(tensor: torch.Tensor) -> float:
    """Return the largest absolute value of the finite entries; 0 where there is none."""
    finite = tensor.detach().double().nan_to_num(0.0, 0.0, 0.0).abs()
    return float(finite.max()) if finite.numel() else 0.0
