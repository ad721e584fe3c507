"""``F.huber_loss`` of several float dtypes: the losses have the dtype of its input."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F

from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dispatch import fake_impls
from steep.torch_internals.operators import OpOverload, aten, decomposition_table, decompositions

_OPERATOR = aten.huber_loss.default
_WHY = (
    "Tracers take the dtype of Huber losses to be the wider of both operands'; it is the input's."
)
FAKE = Substitution(fake_impls, "op_implementations_dict", _WHY, absent=True, key=_OPERATOR)
# for symbolic extents
DECOMPOSITION = Substitution(decompositions, "decomposition_table", _WHY, key=_OPERATOR)


@replaces(FAKE, DECOMPOSITION)
def huber_losses() -> Iterator[None]:
    """Tell tracers the dtype of Huber losses."""
    theirs = decomposition_table[_OPERATOR]

    def decomposed(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        losses: torch.Tensor = theirs(input, *args, **kwargs)
        return losses.to(input.dtype)

    with substitute({FAKE: _empty, DECOMPOSITION: decomposed}):
        yield


def _empty(  # noqa: PLR0917, as ATen has it
    mode: AbstractContextManager[object],
    operator: OpOverload,
    input: torch.Tensor,
    target: torch.Tensor,
    reduction: int = 1,
    delta: float = 1,
) -> torch.Tensor:
    shape = () if reduction else torch.broadcast_shapes(input.shape, target.shape)
    with mode:
        return input.new_empty(shape)


def huber_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``F.huber_loss``; operands of several dtypes are compared in the widest, and then rounded."""
    bound = inspect.signature(F.huber_loss).bind(*args, **kwargs)
    bound.apply_defaults()
    input, target, reduction, delta, weight = bound.arguments.values()
    if input.dtype == target.dtype:
        return F.huber_loss(*args, **kwargs)
    widest = torch.promote_types(input.dtype, target.dtype)
    losses = F.huber_loss(input.to(widest), target.to(widest), "none", delta).to(input.dtype)
    if weight is not None:
        losses = losses * weight
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()
