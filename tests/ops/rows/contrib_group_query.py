"""GroupQueryAttention of com.microsoft."""

import numpy as np
import torch

from .contrib import ALONE, int32, of_contrib, rms_norm, rotary
from .row import floats, ints, table

ROWS, _row = table()
row = of_contrib(_row)

HUGE = float("inf")


def places(past, lengths, count):
    """Where the queries of each row stand, and what of held keys is new."""
    before = (lengths + 1 - count).clamp(min=0)[:, None]
    return before, before + torch.arange(count)


def held(past, new, before, total):
    """Old ones up to `before` of a row, then new ones, in a buffer of `total`."""
    if past is None:
        return new
    old, slots = past.shape[2], torch.arange(max(total, past.shape[2]))
    behind = slots - before
    source = torch.where(behind < 0, slots, (behind + old).clamp(max=old + new.shape[2] - 1))
    both = torch.cat([past, new], 2)
    found = torch.stack([row[:, s] for row, s in zip(both, source, strict=True)])
    blank = behind + old >= old + new.shape[2]
    return found.masked_fill(blank[:, None, :, None], 0.0)


def grouped(
    *tensors,
    num_heads,
    kv_num_heads,
    do_rotary=0,
    rotary_interleaved=0,
    local_window_size=HUGE,
    causal=1,
    scale=0.0,
    softcap=0.0,
    smooth_softmax=0,
    **epsilons,
):
    q, k, v, old_k, old_v, lengths, total, cos, sin, positions, bias, sink = tensors[:12]
    norms = tensors[14:16] if len(tensors) > 14 else (None, None)
    count, total = q.shape[1], int(total)
    if k is None:
        size = q.shape[2] // (num_heads + 2 * kv_num_heads)
        q, k, v = q.split([num_heads * size, kv_num_heads * size, kv_num_heads * size], 2)
    size = q.shape[2] // num_heads
    q, k, v = (x.unflatten(2, (-1, size)).transpose(1, 2) for x in (q, k, v))
    before, now = places(old_k, lengths.long().flatten(), count)
    for name, norm in zip("qk", norms, strict=True):
        if norm is not None:
            epsilon = epsilons.get(f"{name}_norm_epsilon", epsilons.get("qk_norm_epsilon", 1e-6))
            q, k = (
                rms_norm(x, norm, epsilon=epsilon)[0] if which == name else x
                for which, x in zip("qk", (q, k), strict=True)
            )
    if do_rotary:
        if positions is None:
            where = now
        elif old_k is None or total == count:
            where = (positions.flatten()[0] + torch.arange(count)).expand(q.shape[0], -1)
        else:
            where = positions
        turn = {"interleaved": rotary_interleaved, "rotary_embedding_dim": 2 * cos.shape[1]}
        q, k = (rotary(x, where, cos, sin, **turn) for x in (q, k))
    all_k, all_v = held(old_k, k, before, total), held(old_v, v, before, total)
    keys = all_k.shape[2] if old_k is None else total
    repeats = num_heads // kv_num_heads
    seen_k, seen_v = (x[:, :, :keys].repeat_interleave(repeats, 1) for x in (all_k, all_v))
    scores = q @ seen_k.mT * (scale or size**-0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    final = lengths.long().flatten()[:, None, None]
    at = torch.minimum(now[:, :, None], final)
    times = torch.arange(keys)
    visible = (
        (times <= at) & (times > now[:, :, None] - local_window_size) if causal else times <= final
    )
    scores = scores.masked_fill(~visible[:, None], -HUGE)
    if bias is not None:
        scores = scores + bias
    if smooth_softmax == 1 or sink is not None:
        extra = torch.zeros(num_heads, dtype=q.dtype) if sink is None else sink
        column = extra[None, :, None, None].expand(q.shape[0], -1, count, 1)
        shares = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
    else:
        shares = torch.softmax(scores, -1).nan_to_num()
    return (shares @ seen_v).transpose(1, 2).flatten(2), all_k, all_v


def group(
    q,
    lengths,
    total,
    k=None,
    past=None,
    rotary=None,
    positions=None,
    bias=None,
    sink=None,
    norm=None,
    note="",
    outputs=3,
    **attrs,
):
    attrs = {"num_heads": 2, "kv_num_heads": 1, **attrs}
    caches = [None if rotary is None else floats(*rotary)] * 2
    row(
        "GroupQueryAttention",
        floats(*q),
        *[None if k is None else floats(*k)] * 2,
        *[None if past is None else floats(*past)] * 2,
        int32(*lengths),
        np.array(total, np.int32),
        *caches,
        positions,
        None if bias is None else floats(*bias),
        None if sink is None else floats(sink),
        *(() if norm is None else (None, None, floats(norm), floats(norm))),
        attrs=attrs,
        note=note,
        outputs=outputs,
        torch=lambda *t: grouped(*t, **attrs)[:outputs],
    )


ONE, NEW = (1, 3, 32), (1, 3, 16)
group(ONE, [2], 3, NEW)
group((1, 3, 64), [2], 3)
group(ONE, [2], 3, NEW, outputs=1, scale=0.5, softcap=0.75)
group((2, 3, 32), [2, 1], 3, (2, 3, 16))
group((2, 3, 32), [2, 0], 3, (2, 3, 16), causal=0)
group((2, 3, 16), [2, 1], [3], (2, 3, 16), num_heads=2, kv_num_heads=2)
group((1, 4, 48), [3], 4, (1, 4, 24), num_heads=6, kv_num_heads=3, local_window_size=2)
group((2, 3, 32), [2, 1], 3, (2, 3, 16), local_window_size=1)
group(ONE, [2], 3, NEW, bias=(1, 2, 3, 3), softcap=1.5)
group(ONE, [2], 3, NEW, smooth_softmax=1)
group(ONE, [2], 3, NEW, sink=2, local_window_size=2)
group((2, 1, 32), [4, 2], 5, (2, 1, 16), (2, 1, 4, 16))
group(ONE, [4], 5, NEW, (1, 1, 2, 16), bias=(1, 1, 3, 5))
group(ONE, [4], 5, NEW, (1, 1, 2, 16), local_window_size=2)
group((1, 1, 8), [1], 2, (1, 1, 8), (1, 1, 1, 8), num_heads=1)
for _interleaved in (0, 1):
    group(ONE, [2], 3, NEW, rotary=(6, 8), do_rotary=1, rotary_interleaved=_interleaved)
group(
    (2, 3, 32), [2, 1], 3, (2, 3, 16), rotary=(9, 8), positions=ints([[3, 4, 5]] * 2), do_rotary=1
)
group(ONE, [4], 5, NEW, (1, 1, 2, 16), (9, 8), do_rotary=1)
group(ONE, [4], 5, NEW, (1, 1, 2, 16), (9, 8), ints([[2, 7, 4]]), do_rotary=1)
group((1, 2, 64), [1], 2, rotary=(4, 8), do_rotary=1)
group((1, 1, 32), [3], 4, (1, 1, 16), (1, 1, 6, 16))
# Which ONNX Runtime's kernel for the CPU refuses.
group(ONE, [2], 3, NEW, norm=16, note=ALONE)
group((1, 3, 64), [2], 3, norm=16, rotary=(6, 8), do_rotary=1, q_norm_epsilon=0.5, note=ALONE)
group((2, 2, 8), [3, 1], 4, (2, 2, 4), (2, 1, 2, 4), note=ALONE)
group((0, 3, 32), [], 3, (0, 3, 16), note=ALONE)
