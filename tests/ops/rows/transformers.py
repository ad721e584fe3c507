"""ONNX's operators for transformers, which are taken apart into others."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from onnx import parser

from .row import bools, exactly, floats, ints, table

ROWS, row = table()

# --- Attention -----------------------------------------------------------------------------------


def split_heads(x, count):
    """[batch, row, heads × column] → [batch, head, row, column]"""
    return x if x.dim() == 4 else x.unflatten(2, (count, -1)).transpose(1, 2)


def bias_of(scores, mask, offset, causal=0, left=-1, right=-1, lengths=None):
    """What is added to the scores: −∞ where a query may not look."""
    rows, columns = scores.shape[-2:]
    bias = torch.zeros(scores.shape, dtype=scores.dtype)
    if mask is not None:
        mask = F.pad(
            mask,
            (0, columns - mask.shape[-1]),
            value=False if mask.dtype == torch.bool else -math.inf,
        )
        bias = bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else bias + mask
    ahead = torch.arange(columns) - (torch.arange(rows)[:, None] + offset)
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    if causal:
        hidden = hidden | (ahead > 0)
    if left >= 0:
        hidden = hidden | (-ahead > left)
    if right >= 0:
        hidden = hidden | (ahead > right)
    if lengths is not None:
        hidden = hidden | (torch.arange(columns) >= lengths.view(-1, 1, 1, 1))
    return bias.masked_fill(hidden, -math.inf)


def attention(q, k, v, mask=None, past_k=None, past_v=None, lengths=None, *, outputs=1, **attrs):
    """By PyTorch's own fused attention where that can say it."""
    flat = q.dim() == 3
    heads, kv_heads = attrs.get("q_num_heads", q.shape[1]), attrs.get("kv_num_heads", k.shape[1])
    q, k, v = split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)
    offset = 0
    if past_k is not None:
        offset = past_k.shape[2]
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    elif lengths is not None:
        offset = lengths.view(-1, 1, 1, 1) - q.shape[2]
    scale = attrs.get("scale", q.shape[-1] ** -0.5)
    wide_k, wide_v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    raw = q @ wide_k.mT * scale
    cap = attrs.get("softcap", 0.0)
    capped = cap * torch.tanh(raw / cap) if cap else raw
    bias = bias_of(
        raw,
        mask,
        offset,
        attrs.get("is_causal", 0),
        attrs.get("left_window_size", -1),
        attrs.get("right_window_size", -1),
        lengths,
    )
    blind = (bias == -math.inf).all(-1, keepdim=True)
    p = torch.softmax(torch.where(blind, 0, capped + bias), -1).masked_fill(blind, 0)
    if cap or blind.any() or q.shape[2] == 0:
        y = p @ wide_v
    else:
        y = F.scaled_dot_product_attention(q, k, v, bias, scale=scale, enable_gqa=True)
    if flat:
        y = y.transpose(1, 2).flatten(2)
    looked = [raw, capped, capped + bias, p][attrs.get("qk_matmul_output_mode", 0)]
    return (y, k, v, looked)[:outputs]


def attend(q, k, v, *more, outputs=1, smooth=True, note="", **attrs):
    # The root of any other scale is rounded to single precision.
    attrs = attrs if q[-1] == 16 else {"scale": 0.25, **attrs}
    # ONNX's reference gives the capped scores where the raw ones are asked for.
    raw_and_capped = outputs == 4 and not attrs.get("qk_matmul_output_mode") and "softcap" in attrs
    # It wants a largest of all keys, and elements to tell heads from.
    empty = 0 in k[1:] or (len(q) == 3 and 0 in q)
    row(
        "Attention",
        *(floats(*x) for x in (q, k, v)),
        *more,
        attrs=attrs,
        outputs=outputs,
        smooth=smooth,
        reference=not raw_and_capped and not empty,
        note=note,
        torch=lambda *x: attention(*x, outputs=outputs, **attrs),
    )


def positive(*shape):
    return floats(*shape, low=0.1, high=1.0)


PAIR = (1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 2)
SELF = [(2, 2, 3, 4)] * 3
attend((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1))
attend(*PAIR)
attend((1, 1, 2, 16), (1, 1, 3, 16), (1, 1, 3, 2), note="the default scale")
attend(*PAIR, is_causal=1)
attend(*SELF, is_causal=1)
attend((1, 1, 5, 2), (1, 1, 3, 2), (1, 1, 3, 2), is_causal=1, note="more queries than keys")
attend((0, 2, 3, 4), (0, 2, 5, 4), (0, 2, 5, 2), note="no batch")
attend((1, 2, 0, 4), (1, 2, 5, 4), (1, 2, 5, 2), note="no query")
attend((1, 2, 3, 4), (1, 2, 0, 4), (1, 2, 0, 2), note="no key")
attend((2, 4, 2, 2), (2, 2, 0, 2), (2, 2, 0, 3), is_causal=1, note="no key")
# Groups of heads share a key: grouped queries, and one key for all.
attend((2, 4, 2, 2), (2, 2, 3, 2), (2, 2, 3, 3))
attend((1, 3, 2, 2), (1, 1, 3, 2), (1, 1, 3, 2), is_causal=1)
# Heads side by side in the last axis.
attend((2, 3, 8), (2, 4, 8), (2, 4, 6), q_num_heads=2, kv_num_heads=2)
attend((1, 3, 8), (1, 3, 4), (1, 3, 6), q_num_heads=4, kv_num_heads=2, is_causal=1)
attend((1, 2, 3), (1, 2, 3), (1, 2, 1), q_num_heads=1, kv_num_heads=1, softcap=1.5)
attend((0, 3, 8), (0, 4, 8), (0, 4, 6), q_num_heads=2, kv_num_heads=2)
attend((2, 0, 8), (2, 4, 4), (2, 4, 6), q_num_heads=4, kv_num_heads=2)
attend((2, 3, 8), (2, 0, 8), (2, 0, 6), q_num_heads=2, kv_num_heads=2)
# Masks, of every shape that broadcasts.
for _mask in ((3, 5), (1, 5), (2, 3, 5), (1, 1, 3, 5), (1, 2, 1, 5), (5,)):
    attend(*PAIR, floats(*_mask))
attend(*PAIR, floats(3, 5), is_causal=1, note="causal too")
attend(*PAIR, floats(3, 2), smooth=False, note="a short mask hides the last keys")
attend(*PAIR, bools(3, 5) | np.eye(3, 5, dtype=bool))
attend(*PAIR, bools(1, 2, 3, 5) | np.eye(3, 5, dtype=bool), is_causal=1)
attend(*PAIR, np.tri(3, 5, 1, dtype=bool) & [[True], [False], [True]], note="one row sees nothing")
attend(*PAIR, exactly(np.where(bools(3, 5), -np.inf, 0.25)), smooth=False, note="-inf")
# Soft cap, and windows.
attend(*PAIR, softcap=2.0)
attend(*PAIR, floats(3, 5), softcap=0.5, scale=1.0)
attend(*SELF, left_window_size=1)
attend(*SELF, left_window_size=0, right_window_size=1)
attend(*SELF, floats(3, 3), left_window_size=1, is_causal=1)
# A cache inside, and one outside.
PAST = floats(2, 2, 4, 4), floats(2, 2, 4, 4)
attend(*SELF, None, *PAST, outputs=3)
attend(*SELF, None, *PAST, outputs=3, is_causal=1)
attend(*SELF, floats(3, 7), *PAST, outputs=3, softcap=3.0)
attend(*SELF, None, floats(2, 2, 0, 4), floats(2, 2, 0, 4), outputs=3, note="an empty past")
attend(
    (2, 1, 8),
    (2, 1, 4),
    (2, 1, 6),
    None,
    floats(2, 2, 3, 2),
    floats(2, 2, 3, 3),
    outputs=3,
    q_num_heads=4,
    kv_num_heads=2,
    is_causal=1,
)
attend((2, 2, 2, 4), (2, 2, 5, 4), (2, 2, 5, 3), None, None, None, ints(5, 3))
attend((2, 2, 2, 4), (2, 2, 5, 4), (2, 2, 5, 3), None, None, None, ints(4, 2), is_causal=1)
attend(
    (2, 2, 3, 4),
    (2, 2, 5, 4),
    (2, 2, 5, 3),
    None,
    None,
    None,
    ints(5, 2),
    is_causal=1,
    note="a row before the first key",
)
# The scores themselves.
for _mode in range(4):
    attend(
        *SELF,
        floats(3, 7),
        *PAST,
        outputs=4,
        softcap=2.0,
        qk_matmul_output_mode=_mode,
    )
# softmax_precision: in double whatever the inputs are.
attend(*PAIR, floats(3, 5), softmax_precision=11)


# --- RotaryEmbedding -----------------------------------------------------------------------------


def rotary(x, cos, sin, positions=None, interleaved=0, rotary_embedding_dim=0, num_heads=0):
    shape = x.shape
    x = split_heads(x, num_heads)
    width = rotary_embedding_dim or x.shape[-1]
    turned, kept = x[..., :width], x[..., width:]
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = cos * a - sin * b, sin * a + cos * b
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    y = torch.cat([turned, kept], -1)
    return y if len(shape) == 4 else y.transpose(1, 2).reshape(shape)


def rotate(x, cache, positions=None, note="", **attrs):
    row(
        "RotaryEmbedding",
        floats(*x),
        floats(*cache),
        floats(*cache),
        *([] if positions is None else [positions]),
        attrs=attrs,
        note=note,
        torch=lambda *t: rotary(*t, **attrs),
    )


for _interleaved in (0, 1):
    rotate((1, 1, 1, 2), (1, 1, 1), interleaved=_interleaved)
    rotate((2, 3, 4, 6), (2, 4, 3), interleaved=_interleaved)
    rotate((2, 3, 4, 6), (7, 3), ints([[0, 6, 2, 2], [1, 1, 1, 0]]), interleaved=_interleaved)
    rotate((2, 2, 3, 6), (2, 3, 2), rotary_embedding_dim=4, interleaved=_interleaved)
    rotate((2, 3, 8), (2, 3, 2), num_heads=2, interleaved=_interleaved)
    rotate(
        (1, 3, 12),
        (5, 1),
        ints([[4, 0, 4]]),
        num_heads=2,
        rotary_embedding_dim=2,
        interleaved=_interleaved,
    )
    rotate((3, 1, 2, 4), (3, 2, 2), interleaved=_interleaved)
    rotate((1, 4, 12), (1, 4, 6), num_heads=1, interleaved=_interleaved)
    rotate((2, 5, 1, 4), (3, 2), ints([[2], [0]]), interleaved=_interleaved)
rotate((0, 2, 3, 4), (0, 3, 2), note="no batch")
rotate((2, 2, 0, 4), (2, 0, 2), note="no row")
rotate((0, 3, 8), (0, 3, 2), num_heads=2)
rotate((2, 0, 8), (2, 0, 2), num_heads=2)
rotate((0, 3, 8), (5, 2), np.zeros((0, 3), np.int64), num_heads=2)


# --- LinearAttention -----------------------------------------------------------------------------


def linear_attention(
    q, k, v, state=None, decay=None, beta=None, *, q_num_heads, kv_num_heads, scale=0.0, **_
):
    """One token after the other."""
    group = q_num_heads // kv_num_heads
    q, k, v = (
        split_heads(q, q_num_heads),
        split_heads(k, kv_num_heads),
        split_heads(v, kv_num_heads),
    )
    if state is None:
        state = q.new_zeros(q.shape[0], kv_num_heads, k.shape[-1], v.shape[-1])
    if decay is not None:
        decay = split_heads(decay, kv_num_heads)
    if beta is not None:
        beta = split_heads(beta, beta.shape[-1])
    outputs = []
    for t in range(q.shape[2]):
        update = v[:, :, t]
        if decay is not None:
            state = state * torch.exp(decay[:, :, t])[..., None]
        if beta is not None:
            update = beta[:, :, t] * (update - torch.einsum("bhdm,bhd->bhm", state, k[:, :, t]))
        state = state + k[:, :, t, :, None] * update[..., None, :]
        read = state.repeat_interleave(group, 1)
        outputs.append(torch.einsum("bhd,bhdm->bhm", q[:, :, t], read))
    nothing = q.new_zeros(q.shape[0], q_num_heads, 0, v.shape[-1])
    y = torch.stack(outputs, 2) if outputs else nothing
    y = y * (scale or q.shape[-1] ** -0.5)
    return y.transpose(1, 2).flatten(2), state


def remember(rule, batch, tokens, heads, kv_heads, wide, out, state=False, decay=0, beta=0, **more):
    """`decay`, `beta`: columns a head; of beta, 0.5 stands for one for all heads."""
    attrs = {"q_num_heads": heads, "kv_num_heads": kv_heads, "update_rule": rule, **more}
    extras = [
        floats(batch, kv_heads, wide, out) if state else None,
        floats(batch, tokens, kv_heads * decay, low=-1.0, high=0.0) if decay else None,
        floats(batch, tokens, int(beta * kv_heads) or 1, low=0.0, high=1.0) if beta else None,
    ]
    while extras and extras[-1] is None:
        extras.pop()
    row(
        "LinearAttention",
        floats(batch, tokens, heads * wide),
        floats(batch, tokens, kv_heads * wide, low=-0.5, high=0.5),
        floats(batch, tokens, kv_heads * out),
        *extras,
        attrs=attrs,
        outputs=2,
        within_single=True,
        torch=lambda *t: linear_attention(*t, **attrs),
    )


remember("linear", 1, 1, 1, 1, 1, 1)
remember("linear", 2, 3, 2, 2, 3, 2)
remember("linear", 2, 3, 2, 1, 2, 3, state=True, scale=0.5)
remember("gated", 1, 4, 2, 2, 2, 2, decay=1)
remember("gated", 2, 2, 4, 2, 3, 2, state=True, decay=3)
remember("delta", 1, 4, 1, 1, 3, 2, beta=1)
remember("delta", 2, 3, 2, 2, 2, 2, state=True, beta=0.5)
remember("gated_delta", 2, 3, 2, 2, 2, 3, decay=1, beta=1)
remember("gated_delta", 1, 4, 4, 2, 2, 2, state=True, decay=2, beta=1, scale=1.0)
remember("gated_delta", 1, 3, 2, 2, 2, 2, state=True, decay=2, beta=0.5, chunk_size=2)
remember("linear", 0, 3, 2, 2, 2, 3)
remember("gated_delta", 0, 2, 2, 1, 2, 2, state=True, decay=1, beta=1)
remember("linear", 2, 0, 2, 2, 2, 3)
remember("gated_delta", 1, 0, 4, 2, 2, 3, state=True, decay=2, beta=1)


# --- CausalConvWithState -------------------------------------------------------------------------


def causal_conv(x, w, bias=None, past=None, activation="none"):
    if past is None:
        past = x.new_zeros(*x.shape[:2], w.shape[2] - 1)
    padded = torch.cat([past, x], 2)
    y = F.conv1d(padded, w, bias, groups=x.shape[1])
    return (y if activation == "none" else F.silu(y)), padded[..., x.shape[2] :]


def convolve(x, taps, *more, note="", **attrs):
    row(
        "CausalConvWithState",
        floats(*x),
        floats(x[1], 1, taps),
        *more,
        attrs=attrs,
        outputs=2,
        within_single="activation" in attrs,
        note=note,
        torch=lambda *t: causal_conv(*t, **attrs),
    )


convolve((1, 1, 1), 1)
convolve((2, 3, 4), 1)
convolve((2, 3, 4), 3)
convolve((1, 2, 2), 5, note="longer than the input")
convolve((2, 3, 4), 3, floats(3))
convolve((2, 3, 4), 3, None, floats(2, 3, 2))
convolve((2, 3, 1), 4, floats(3), floats(2, 3, 3))
convolve((2, 3, 4), 2, activation="silu")
convolve((2, 3, 4), 2, floats(3), activation="swish")
convolve((1, 2, 5), 3, floats(2), floats(1, 2, 2), activation="silu")
convolve((0, 2, 3), 2, note="no batch")


# --- FlexAttention -------------------------------------------------------------------------------


def body(text):
    """A body of attributes: rank 4 in, rank 4 out, in the precision of softmax."""
    return parser.parse_graph(f"g (double[b, h, q, k] s) => (double[b, h, q, k] t) {{ {text} }}")


def flex(q, k, v, score=None, prob=None, scale=None):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    p = torch.softmax(score(s) if score else s, -1)
    return (prob(p) if prob else p) @ v


CAP = "c = Constant <value = double {2.0}> () d = Div (s, c) e = Tanh (d) t = Mul (e, c)"
SQUARE = "t = Mul (s, s)"
for _q, _k, _v in (
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
    ((2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4)),
    ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 2)),
    ((2, 4, 2, 2), (2, 2, 3, 2), (2, 2, 3, 3)),
    ((1, 3, 2, 2), (1, 1, 3, 2), (1, 1, 3, 2)),
    ((1, 1, 5, 1), (1, 1, 1, 1), (1, 1, 1, 2)),
    ((3, 1, 1, 2), (3, 1, 4, 2), (3, 1, 4, 1)),
    ((1, 6, 1, 3), (1, 2, 2, 3), (1, 2, 2, 1)),
    ((0, 2, 2, 2), (0, 2, 3, 2), (0, 2, 3, 2)),
    ((1, 2, 0, 2), (1, 2, 3, 2), (1, 2, 3, 2)),
    ((1, 4, 3, 2), (1, 2, 0, 2), (1, 2, 0, 1)),
):
    row(
        "ai.onnx.preview.FlexAttention",
        floats(*_q),
        floats(*_k),
        floats(*_v),
        reference=_k[2] > 0,  # it wants a largest of all keys
        torch=flex,
    )
    row(
        "ai.onnx.preview.FlexAttention",
        floats(*_q),
        floats(*_k),
        floats(*_v),
        attrs={
            "scale": 0.25,
            "softmax_precision": 11,
            "score_mod": body(CAP),
            "prob_mod": body(SQUARE),
        },
        reference=False,  # it hands its bodies on to nobody
        torch=lambda q, k, v: flex(
            q, k, v, lambda s: 2 * torch.tanh(s / 2), torch.square, scale=0.25
        ),
        double=True,
    )
