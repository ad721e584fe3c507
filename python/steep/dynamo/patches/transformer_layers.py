"""Transformer layers without gradients, where ``torch.compile`` differs from eager PyTorch.

In ``eval()`` without gradients, ``nn.TransformerEncoder`` drops padding: it makes a nested tensor
of the rows, and fills their ends with 0 afterwards. ``torch.compile`` keeps the padding's values.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn

from steep.dynamo.patches.followed_functions import follow
from steep.lowering.transformer_layers import attend, encode
from steep.patching.substitution import Substitution, replaces, substitute
from steep.torch_internals.dynamo import trace_rules
from steep.torch_internals.nn import (
    is_make_fx_tracing,
    native_multi_head_attention,
    transformer_encoder_layer,
)

FORWARD = Substitution(
    nn.TransformerEncoder,
    "forward",
    "Where nothing needs a gradient, padding ends as 0; `torch.compile` would keep its values.",
)
TRACING = Substitution(
    trace_rules,
    "get_torch_obj_rule_map",
    "Attention without gradients would be computed otherwise than without a compiler: a query "
    "without any key is not a number.",
    absent=True,
    key=is_make_fx_tracing,
)
ATTEND = Substitution(
    trace_rules,
    "get_torch_obj_rule_map",
    "One kernel for attention without gradients, which has no ONNX operator; Dynamo takes the "
    "weights that nobody asks for to be a tensor.",
    absent=True,
    key=native_multi_head_attention,
)
ENCODE = Substitution(
    trace_rules,
    "get_torch_obj_rule_map",
    "One kernel for a layer without gradients, which has no ONNX operator; Dynamo does not know "
    "its type under autocast.",
    absent=True,
    key=transformer_encoder_layer,
)

_plain = nn.TransformerEncoder.forward


@replaces(FORWARD, TRACING, ATTEND, ENCODE)
def layers_as_in_eager() -> Iterator[None]:
    """Give captured transformer layers the results that they have in eager PyTorch."""
    with substitute(
        {
            FORWARD: _forward,
            TRACING: follow(_never),
            ATTEND: follow(attend),
            ENCODE: follow(encode),
        }
    ):
        yield


def drops_padding(frame: FrameType) -> bool:
    """Return whether a frame is an encoder's own forward, and it makes a nested tensor.

    If the caller of the encoder is captured, ``layers_as_in_eager`` replaces that forward.
    """
    if frame.f_code is not _plain.__code__:
        return False
    scope = frame.f_locals
    return _makes_nested(
        scope["self"],
        scope["src"],
        scope.get("mask"),
        scope.get("src_key_padding_mask"),
    )


def _forward(
    self: nn.TransformerEncoder,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> torch.Tensor:
    # another thread may run an encoder while this one captures
    capturing = torch.compiler.is_dynamo_compiling()
    if not capturing or not _makes_nested(self, src, mask, src_key_padding_mask):
        return _plain(self, src, mask, src_key_padding_mask, is_causal)
    padding: Any = src_key_padding_mask  # not None: see _makes_nested
    visible = padding.logical_not()
    first = torch.arange(visible.shape[1], device=visible.device) < visible.sum(1, keepdim=True)
    if getattr(self, "mask_check", True):
        # if any padding is not at the end of its row, PyTorch makes no nested tensor
        stays = first | (first != visible).any()
    else:
        padding, stays = first.logical_not(), first
    stays = stays.unsqueeze(-1)
    x = torch.where(stays, src, 0)
    for layer in self.layers:
        x = layer(x, src_key_padding_mask=padding, is_causal=is_causal is True)
    x = torch.where(stays, x, 0)
    return x if self.norm is None else self.norm(x)


def _makes_nested(
    self: nn.TransformerEncoder,
    src: torch.Tensor,
    mask: torch.Tensor | None,
    padding: torch.Tensor | None,
) -> bool:
    """Return whether an encoder makes a nested tensor if all padding is at the ends of rows."""
    layer: Any = self.layers[0]
    attention = layer.self_attn
    possible = (
        torch.backends.mha.get_fastpath_enabled()
        and getattr(self, "use_nested_tensor", False)
        and not layer.training
        and src.dim() == 3
        and padding is not None
        and mask is None
        and not src.is_nested
        and not torch.is_autocast_enabled()
    )
    if not possible:
        return False
    parts = (attention.out_proj, layer.norm1, layer.norm2, layer.linear1, layer.linear2)
    tensors = [src, attention.in_proj_weight, attention.in_proj_bias]
    tensors += [t for part in parts for t in (part.weight, part.bias)]
    if torch.overrides.has_torch_function(tensors):
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


def _never() -> bool:
    return False
