"""Attention and MultiHeadAttention of com.microsoft."""

import math

import numpy as np
import torch

from .contrib import ALONE, int32, of_contrib
from .row import floats, table

ROWS, _row = table()
row = of_contrib(_row)

# --- attention -----------------------------------------------------------------------------------


def masks(scores, mask, bias, unidirectional, filtered, past=0):
    rows, keys = scores.shape[-2:]
    if unidirectional:
        ahead = torch.arange(keys) > torch.arange(rows)[:, None] + past
        scores = scores.masked_fill(ahead, -math.inf)
    if bias is not None:
        scores = scores + bias
    if mask is None or (mask.dim() == 2 and mask.shape[1] == 1):
        return scores
    batch, places = scores.shape[0], torch.arange(keys)
    if mask.dim() == 1:
        seen = places < mask[:batch, None]  # behind 3 · batch + 2 stand sums, too
        if len(mask) == 2 * batch:
            seen = seen & (places >= mask[batch:, None])
    elif mask.dim() == 4:
        seen = mask[:, 0, keys - rows : keys, :keys] > 0
    else:
        seen = mask > 0
    seen = seen[:, None, None] if seen.dim() == 2 else seen[:, None]
    return scores + torch.where(seen, 0.0, filtered)


def attend(q, k, v, mask=None, bias=None, *, past=None, **options):
    """Of heads [B, heads, rows, columns]; and what is held, and the scores."""
    scale, unidirectional, filtered = (
        options.get(name, otherwise)
        for name, otherwise in (("scale", 0.0), ("unidirectional", 0), ("filtered", -10000.0))
    )
    old = 0
    if past is not None:
        old = past[0].shape[2]
        k, v = (torch.cat(pair, 2) for pair in zip(past, (k, v), strict=True))
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    scores = masks(scores, mask, bias, unidirectional, filtered, old)
    y = torch.softmax(scores, -1) @ v
    return y.transpose(1, 2).flatten(2), k, v, scores


def split_heads(x, heads):
    return x.unflatten(2, (heads, x.shape[-1] // heads)).transpose(1, 2)


def self_attention(
    x, w, b=None, mask=None, past=None, bias=None, *, num_heads, qkv_hidden_sizes=None, **attrs
):
    sizes = qkv_hidden_sizes or [w.shape[1] // 3] * 3
    parts = (x @ w if b is None else x @ w + b).split(sizes, -1)
    options = {{"mask_filter_value": "filtered"}.get(k, k): a for k, a in attrs.items()}
    y, k, v, _ = attend(
        *(split_heads(p, num_heads) for p in parts), mask, bias, past=past, **options
    )
    return y, None if k.shape != v.shape else torch.stack([k, v])


def attention(
    x, columns, mask=None, bias=None, biased=True, note="", past=None, outputs=1, **attrs
):
    row(
        "Attention",
        *(floats(*x), floats(x[-1], columns, low=-0.5, high=0.5)),
        *(floats(columns) if biased else None, mask, None if past is None else floats(*past)),
        None if bias is None else floats(*bias),
        attrs=attrs,
        note=note,
        outputs=outputs,
        torch=lambda *t: self_attention(*t, **attrs)[:outputs],
    )


LENGTHS = int32(3, 1)
ENDS_AND_STARTS = int32(3, 2, 1, 0)
PADDED = np.array([[1, 1, 1], [1, 0, 0]], np.int32)
EACH = np.array([[[1, 0, 0], [1, 1, 0], [0, 1, 1]], [[1, 1, 1], [0, 0, 1], [1, 0, 1]]], np.int32)
attention((2, 3, 4), 12, num_heads=2)
attention((2, 3, 4), 12, num_heads=2, biased=False)
attention((1, 1, 2), 3, num_heads=1)
attention((2, 3, 4), 10, num_heads=2, qkv_hidden_sizes=[4, 4, 2])
attention((2, 3, 5), 18, num_heads=3, scale=0.25)
attention((2, 3, 4), 12, num_heads=2, unidirectional=1)
for _mask in (LENGTHS, ENDS_AND_STARTS, PADDED, EACH):
    attention((2, 3, 4), 12, _mask, num_heads=2)
attention((2, 3, 4), 12, PADDED, num_heads=2, unidirectional=1, mask_filter_value=-3.0)
attention((2, 3, 4), 12, int32([1], [0]), num_heads=2, note="a column is no mask")
attention((2, 3, 4), 12, None, (2, 2, 3, 3), num_heads=2)
attention((2, 3, 4), 12, PADDED, (1, 1, 3, 3), num_heads=2, unidirectional=1)
attention((1, 5, 16), 48, num_heads=4)
attention((4, 2, 3), 6, num_heads=1)
attention((1, 2, 8), 24, num_heads=8)
attention((0, 3, 4), 12, num_heads=2)
attention((2, 0, 4), 12, num_heads=2)
attention((2, 3, 4), 12, int32(3, 1, 0, 3, 6, 0, 3, 6), num_heads=2)
attention((2, 3, 4), 12, None, outputs=2, num_heads=2, note="present alone")
OLD = {"past": (2, 2, 2, 2, 2), "outputs": 2, "num_heads": 2}
attention((2, 3, 4), 12, **OLD)
attention((2, 3, 4), 12, unidirectional=1, **OLD)
attention((2, 1, 4), 12, unidirectional=1, **OLD)
FIVE = np.array([[1, 1, 1, 1, 0], [0, 1, 1, 0, 0]], np.int32)
attention((2, 3, 4), 12, FIVE, unidirectional=1, **OLD)
attention((2, 3, 4), 12, int32(4, 2), **OLD)
attention((2, 3, 4), 12, int32(4, 2, 1, 0), **OLD)
attention((2, 3, 4), 12, int32(4, 2, 1, 0), (1, 2, 3, 5), note=ALONE, **OLD)
attention((2, 3, 4), 12, np.stack([FIVE, FIVE[::-1], FIVE], 1), **OLD)
attention((2, 3, 4), 12, **{**OLD, "past": (2, 2, 2, 0, 2)})
# ONNX Runtime's kernel for the CPU has no such masks.
SQUARES = np.tril(np.ones((2, 1, 6, 6), np.int32), 1)
attention((2, 3, 4), 12, SQUARES, num_heads=2, note=ALONE)
attention((2, 3, 4), 12, SQUARES, unidirectional=1, note=ALONE, **OLD)


def multi_head(
    q, k=None, v=None, b=None, mask=None, bias=None, old_k=None, old_v=None, *, num_heads, **attrs
):
    options = {{"mask_filter_value": "filtered"}.get(n, n): a for n, a in attrs.items()}
    if k is None:
        parts = list(q.unbind(3))
    elif v is None:
        parts = [q.unflatten(2, (num_heads, -1)), *k.unbind(3)]
    else:
        parts = [x if x.dim() == 4 else x.unflatten(2, (num_heads, -1)) for x in (q, k, v)]
    ready = [False, *(v is not None and x.dim() == 4 for x in (k, v))]
    widths = [num_heads * x.shape[-1] for x in parts]
    biases = [0, 0, 0] if b is None else b.split(widths)
    heads = []
    for x, d, done in zip(parts, biases, ready, strict=True):
        if done:
            heads.append(x)
        else:
            heads.append((x if b is None else x + d.view(num_heads, -1)).transpose(1, 2))
    past = None if old_k is None else (old_k, old_v)
    return attend(*heads, mask, bias, past=past, **options)


def multi(q, k=None, v=None, b=None, mask=None, bias=None, note="", past=None, outputs=1, **attrs):
    given = [None if shape is None else floats(*shape) for shape in (k, v, b)]
    row(
        "MultiHeadAttention",
        *(floats(*q), *given, mask, None if bias is None else floats(*bias)),
        *(() if past is None else (floats(*shape) for shape in past)),
        attrs={"num_heads": 2, **attrs},
        note=note,
        outputs=outputs,
        torch=lambda *t: multi_head(*t, num_heads=2, **attrs)[:outputs],
    )


TRIPLE = (2, 3, 4), (2, 3, 4), (2, 3, 4)
multi(*TRIPLE)
multi(*TRIPLE, (12,))
multi(*TRIPLE, unidirectional=1, scale=0.25)
for _mask in (LENGTHS, PADDED, EACH):
    multi(*TRIPLE, None, _mask)
multi(*TRIPLE, (12,), PADDED, (2, 2, 3, 3), mask_filter_value=-5.0)
multi(*TRIPLE, None, None, (1, 1, 3, 3), unidirectional=1)
multi((2, 5, 4), (2, 3, 4), (2, 3, 6), (14,), PADDED)
multi((2, 5, 4), (2, 2, 3, 2), (2, 2, 3, 3), note=ALONE)
multi((2, 5, 4), (2, 2, 3, 2), (2, 2, 3, 2), (12,))
multi((2, 3, 2, 3, 4), note=ALONE)
multi((2, 3, 2, 3, 4), None, None, (24,), note=ALONE)
multi((2, 5, 4), (2, 3, 2, 2, 2), note=ALONE)
multi((1, 1, 2), (1, 1, 2), (1, 1, 2))
# There the last query sees all keys.
multi((1, 4, 8), (1, 6, 8), (1, 6, 8), unidirectional=1, note=ALONE)
multi((1, 6, 8), (1, 4, 8), (1, 4, 8), unidirectional=1)
multi((3, 2, 16), (3, 2, 16), (3, 2, 16))
multi((0, 3, 4), (0, 3, 4), (0, 3, 4))
multi((2, 0, 4), (2, 3, 4), (2, 3, 4))
multi(*TRIPLE, None, int32(3, 1, 0, 3, 6, 0, 3, 6))
multi((2, 5, 4), (2, 3, 4), (2, 3, 6), (14,), PADDED, (1, 1, 5, 3), outputs=4)
multi(*TRIPLE, outputs=3, note="held")
HELD = {"past": ((2, 2, 2, 2), (2, 2, 2, 2)), "outputs": 4}
multi(*TRIPLE, **HELD)
multi(*TRIPLE, (12,), FIVE, (2, 2, 3, 5), unidirectional=1, **{**HELD, "outputs": 3})
multi(*TRIPLE, None, int32(4, 2), **HELD)
multi((2, 1, 4), (2, 1, 4), (2, 1, 6), note=ALONE, **{**HELD, "past": ((2, 2, 3, 2), (2, 2, 3, 3))})
multi(*TRIPLE, **{**HELD, "past": ((2, 2, 0, 2), (2, 2, 0, 2))})
