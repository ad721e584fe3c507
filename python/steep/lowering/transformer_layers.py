"""PyTorch's fused kernels of transformer layers, which no exporter knows, as operators.

In ``eval()`` without gradients, ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` call
one fused kernel for the whole layer. It treats masks differently from the other path: every nonzero
entry hides a key, even a finite number that the other path adds to the scores; and the result for a
query without any key is NaN.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

_OF_KEYS = 1
"""The type of a mask over keys, [rows, keys].

Other masks have all axes of the scores, or the last two.
"""


def attend(  # noqa: PLR0917, as ATen has it
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``torch._native_multi_head_attention``, self-attention only.

    Args:
        query, key, value: the same tensor, [rows, places, embed_dim].
        mask: true or nonzero entries hide a key; its shape depends on ``mask_type``.

    Returns the result, [rows, places, embed_dim], and the weights, [rows, places, places], for each
    head in a second axis if not averaged; None without ``need_weights``.
    """
    rows, places = query.shape[:2]
    width = embed_dim // num_head
    q, k, v = (
        t.reshape(rows, places, num_head, width).transpose(1, 2)
        for t in F.linear(query, qkv_weight, qkv_bias).split(embed_dim, -1)
    )
    scores = q * (1 / math.sqrt(width)) @ k.transpose(-2, -1)
    if mask is not None:
        is_hidden = mask.to(torch.bool)
        if mask_type == _OF_KEYS:
            is_hidden = is_hidden.reshape(rows, 1, 1, places)
        scores = scores.masked_fill(is_hidden, -math.inf)
    weights = scores.softmax(-1)
    context = (weights @ v).transpose(1, 2).reshape(rows, places, embed_dim)
    result = F.linear(context, proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, weights.sum(1) / num_head if average_attn_weights else weights


def encode(  # noqa: PLR0917, as ATen has it
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """``torch._transformer_encoder_layer_fwd``."""

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    weights = qkv_weight, qkv_bias, proj_weight, proj_bias
    x, _ = attend(
        *(x, x, x, embed_dim, num_heads, *weights, mask), need_weights=False, mask_type=mask_type
    )
    x = (x + src).to(x.dtype)  # PyTorch adds in place: under autocast the sum has 16 bits
    if not norm_first:
        x = norm(x, norm_weight_1, norm_bias_1)
    inner = norm(x, norm_weight_2, norm_bias_2) if norm_first else x
    activation = F.gelu if use_gelu else F.relu
    inner = activation(F.linear(inner, ffn_weight_1, ffn_bias_1))
    inner = F.linear(inner, ffn_weight_2, ffn_bias_2)
    x = (inner + x).to(inner.dtype)
    return x if norm_first else norm(x, norm_weight_2, norm_bias_2)
