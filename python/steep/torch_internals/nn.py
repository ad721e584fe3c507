"""PyTorch's modules."""

from __future__ import annotations

import torch
from torch import (
    _native_multi_head_attention as native_multi_head_attention,
    _transformer_encoder_layer_fwd as transformer_encoder_layer,
)
from torch.nn._reduction import legacy_get_string as legacy_reduction
from torch.nn.modules import activation
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.module import _has_any_global_hook as has_any_global_hook
from torch.nn.modules.transformer import _detect_is_causal_mask as detect_is_causal_mask

__all__ = [
    "BatchNorm",
    "check_input_dim",
    "detect_is_causal_mask",
    "has_any_global_hook",
    "is_make_fx_tracing",
    "legacy_reduction",
    "native_multi_head_attention",
    "transformer_encoder_layer",
]


def is_make_fx_tracing() -> bool:
    """Replace the function that ``nn.MultiheadAttention`` calls, in releases without it."""
    return False


is_make_fx_tracing = getattr(activation, "_is_make_fx_tracing", is_make_fx_tracing)


def check_input_dim(norm: BatchNorm, input: torch.Tensor) -> None:
    """Raise ValueError, as batch normalisation does, if the number of dimensions is wrong."""
    norm._check_input_dim(input)
