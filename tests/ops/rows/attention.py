"""steep.Attention and its gradient."""

import math

import torch
from torch.nn.functional import scaled_dot_product_attention

from .row import bools, floats, ints, table

ROWS, row = table()

SEED = ints(17, 3)
MASKED = -3.0  # finite, so that a masked element still counts


def heads(x, perm):
    return x if perm is None else x.permute(perm)


def scores(q, k, bias, keep, scale, masked, causal):
    s = q @ k.mT * scale
    if keep is not None:
        s = torch.where(keep, s, masked)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -math.inf)
    return s if bias is None else s + bias


def attention(q, k, v, bias=None, keep=None, seed=None, **attrs):
    """steep.Attention without dropout; PyTorch's own fused attention where that can say it."""
    q, k, v = (heads(x, attrs.get(f"perm_{n}")) for n, x in (("q", q), ("k", k), ("v", v)))
    scale, causal = attrs.get("scale", 1.0), bool(attrs.get("causal", 0))
    s = scores(q, k, bias, keep, scale, attrs.get("masked", -math.inf), causal)
    if keep is None and not (causal and bias is not None):
        mask = None if bias is None else bias.expand(s.shape)
        y = scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)
    else:
        y = torch.softmax(s, -1) @ v
    most = s.amax(-1)
    return heads(y, attrs.get("perm_y")), most, torch.exp(s - most[..., None]).sum(-1)


def attention_grad(dy, q, k, v, y, most, total, bias=None, keep=None, seed=None, **attrs):
    """The formula, with y and the rows' maxima and sums as free inputs."""
    dy, q, k, v = (
        heads(x, attrs.get(f"perm_{n}")) for n, x in zip("dqkv", (dy, q, k, v), strict=True)
    )
    if attrs.get("perm_y"):
        y = y.permute(torch.argsort(torch.tensor(attrs["perm_y"])).tolist())
    scale, causal = attrs.get("scale", 1.0), bool(attrs.get("causal", 0))
    s = scores(q, k, bias, keep, scale, attrs.get("masked", -math.inf), causal)
    p = torch.exp(s - most[..., None]) / total[..., None]
    ds = p * (dy @ v.mT - (dy * y).sum(-1, keepdim=True))
    if keep is not None:
        ds = torch.where(keep, ds, 0)
    dq, dk, dv = scale * ds @ k, scale * ds.mT @ q, p.mT @ dy
    return tuple(
        heads(d, attrs.get(f"perm_d{n}")) for n, d in zip("qkv", (dq, dk, dv), strict=True)
    )


def both(q, k, v, bias=None, keep=None, random=False, note="", **attrs):
    """A row for the operator and one for its gradient; q, k, v: [batch, head, row, column]."""
    attrs = {"scale": 0.5, **attrs}
    if random:
        attrs |= {"ratio": 0.3, "stream": 4}

    def layout(shape, perm):
        """The operand's shape, of which perm makes heads."""
        at = attrs.get(perm, [0, 1, 2, 3])
        return floats(*(shape[at.index(axis)] for axis in range(4)))

    y = (*q[:3], v[3])
    made = [y[axis] for axis in attrs.get("perm_y", [0, 1, 2, 3])]
    operands = [layout(q, "perm_q"), layout(k, "perm_k"), layout(v, "perm_v")]
    extras = [bias, keep, SEED if random else None]
    while extras and extras[-1] is None:
        extras.pop()
    row(
        "steep.Attention",
        *operands,
        *extras,
        outputs=3,
        attrs=attrs,
        note=note,
        torch=None if random else lambda *x, attrs=attrs: attention(*x, **attrs),
    )
    gradient_attrs = attrs | (
        {f"perm_d{n}": [2, 0, 1, 3] for n in "qkv"} | {"perm_dy": [0, 2, 1, 3]}
        if "perm_q" in attrs
        else {}
    )
    row(
        "steep.AttentionGrad",
        floats(*((y[0], y[2], y[1], y[3]) if "perm_q" in attrs else y)),
        *operands,
        floats(*made),
        floats(*y[:3], low=0.0, high=1.0),
        floats(*y[:3], low=1.0, high=3.0),
        *extras,
        outputs=3,
        attrs=gradient_attrs,
        note=note,
        torch=None
        if random
        else lambda *x, attrs=gradient_attrs: attention_grad(
            *x, **{"perm_d": attrs.get("perm_dy"), **attrs}
        ),
    )


TINY = {"q": (1, 1, 3, 2), "k": (1, 1, 4, 2), "v": (1, 1, 4, 3)}
both(**TINY)
both(**TINY, random=True)
both(**TINY, causal=1)
both(q=(2, 2, 3, 5), k=(2, 2, 3, 5), v=(2, 2, 3, 5), causal=1, random=True)
both(**TINY, bias=floats(3, 4))
both(**TINY, bias=floats(4))
both(q=(2, 2, 3, 2), k=(2, 2, 5, 2), v=(2, 2, 5, 2), bias=floats(2, 1, 1, 5))
both(q=(2, 2, 3, 2), k=(2, 2, 5, 2), v=(2, 2, 5, 2), bias=floats(2, 3, 1))
both(q=(2, 2, 3, 2), k=(2, 2, 5, 2), v=(2, 2, 5, 2), keep=bools(2, 1, 3, 5), masked=MASKED)
both(q=(2, 1, 3, 2), k=(2, 1, 5, 2), v=(2, 1, 5, 2), keep=bools(3, 1), masked=MASKED)
both(
    q=(2, 2, 3, 2),
    k=(2, 2, 5, 2),
    v=(2, 2, 5, 2),
    bias=floats(1, 2, 3, 5),
    keep=bools(3, 5),
    masked=MASKED,
    random=True,
)
both(
    q=(2, 3, 4, 2),
    k=(2, 3, 5, 2),
    v=(2, 3, 5, 2),
    perm_q=[0, 2, 1, 3],
    perm_k=[1, 2, 0, 3],
    perm_v=[0, 1, 2, 3],
    perm_y=[2, 0, 1, 3],
)
both(q=(0, 1, 3, 2), k=(0, 1, 4, 2), v=(0, 1, 4, 3))
