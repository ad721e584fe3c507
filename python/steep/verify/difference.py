"""Whether to compare a run with PyTorch's, how two values differ, and which tolerance applies."""

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
"""Largest allowed difference, relative to the largest entry.

A graph has the tolerance of the narrowest dtype that it computes in.
"""

# times the graph's largest gradient: many gradients are zero but for rounding errors
LEAST_SCALE = 0.1


def should_verify(verify: bool | None, *, unasked: bool = False) -> bool:
    """Return whether to verify: the argument, else ``STEEP_VERIFY``, else ``unasked``.

    Raises ModelError: ``STEEP_VERIFY`` is neither 0 nor 1.
    """
    if verify is not None:
        return verify
    setting = os.environ.get("STEEP_VERIFY", "")
    if setting not in ("", "0", "1"):
        raise ModelError(
            "An environment variable has a value that is not supported.",
            node="STEEP_VERIFY",
            expected="0 or 1",
            received=setting,
            remedy="correct the variable, or unset it",
        )
    return setting == "1" if setting else unasked


@dataclasses.dataclass(frozen=True)
class Difference:
    """The largest difference of two tensors, relative to the largest expected entry."""

    relative: float
    expected: str
    received: str


def difference(
    received: Any, expected: Any, least: float = 0.0, *, overflows: bool = False
) -> Difference | None:
    """Compare two values; None: equal.

    Args:
        received: the engine's value.
        expected: PyTorch's value; values other than tensors and numbers count as equal.
        least: the smallest number that the difference is relative to.
        overflows: ignore entries that are not finite.
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
    """Return the largest absolute value of the finite entries; 0 if there are none."""
    finite = tensor.detach().double().nan_to_num(0.0, 0.0, 0.0).abs()
    return float(finite.max()) if finite.numel() else 0.0
