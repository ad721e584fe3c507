"""Poolings."""

import itertools
import math

import torch
import torch.nn.functional as F

from .row import apart, exactly, floats, ints, table

ROWS, row = table()


def windows(x, attrs, fill):
    """x padded with `fill` and seen as [batch, channel, output..., tap]; also which taps are x."""
    kernel = attrs["kernel_shape"]
    rank = len(kernel)
    strides = attrs.get("strides", [1] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    pads = attrs.get("pads", [0] * (2 * rank))
    pairs, extents = [], []
    for i in range(rank):
        n, s = x.shape[i + 2], strides[i]
        reach = (kernel[i] - 1) * dilations[i] + 1
        begin, end = pads[i], pads[rank + i]
        if attrs.get("auto_pad", "NOTSET").startswith("SAME"):
            total = max(0, (-(-n // s) - 1) * s + reach - n)
            begin = total // 2 if attrs["auto_pad"] == "SAME_UPPER" else total - total // 2
            end = total - begin
        room = n + begin + end - reach
        out = room // s + 1
        if attrs.get("ceil_mode"):
            out = -(-room // s) + 1
            if (out - 1) * s >= n + begin:
                out -= 1
        # 0: outside; 1: padding; 2: x. Beyond the padding lies nothing that counts.
        beyond = max(0, (out - 1) * s + reach - (n + begin + end))
        pairs.append((begin, end, beyond))
        extents.append(out)
    flat = [p for begin, end, beyond in reversed(pairs) for p in (begin, end + beyond)]
    filled = F.pad(x, flat, value=fill)
    kind = F.pad(torch.full_like(x, 2), [p for b, e, _ in reversed(pairs) for p in (b, e)], value=1)
    kind = F.pad(kind, [p for _, _, beyond in reversed(pairs) for p in (0, beyond)], value=0)
    taps = []
    for tap in itertools.product(*map(range, kernel)):
        at = [slice(None), slice(None)]
        for t, d, e, s in zip(tap, dilations, extents, strides, strict=True):
            at.append(slice(t * d, t * d + (e - 1) * s + 1, s))
        taps.append((filled[tuple(at)], kind[tuple(at)]))
    return torch.stack([t for t, _ in taps], -1), torch.stack([k for _, k in taps], -1)


def average_pool(x, **attrs):
    taps, kind = windows(x, attrs, 0)
    return taps.sum(-1) / (kind >= (1 if attrs.get("count_include_pad") else 2)).sum(-1)


def max_pool(x, **attrs):
    taps, _ = windows(x, attrs, -torch.inf)
    return taps.max(-1).values  # its gradient goes to the first


GEOMETRIES = [
    ((1, 1, 4), {"kernel_shape": [2]}),
    ((2, 3, 7), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((1, 2, 4, 5), {"kernel_shape": [2, 3]}),
    ((2, 1, 5, 4), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ((1, 1, 5, 6), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 2, 6, 6), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1}),
    ((1, 1, 6, 5), {"kernel_shape": [2, 2], "dilations": [2, 3]}),
    ((1, 1, 5, 5), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 1, 5, 6), {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 1, 5, 5), {"kernel_shape": [3, 3], "auto_pad": "VALID"}),
    ((1, 2, 3, 4, 3), {"kernel_shape": [2, 2, 2], "strides": [1, 2, 1]}),
    ((2, 2, 3, 3), {"kernel_shape": [3, 3]}),
    ((0, 2, 3, 3), {"kernel_shape": [2, 2]}),
]


def out_shape(x, attrs):
    return tuple(windows(torch.zeros(x), attrs, 0)[0].shape[:-1])


for _x, _attrs in GEOMETRIES:
    _y = out_shape(_x, _attrs)
    # The reference spreads what ceil_mode adds over both ends.
    _reference = "ceil_mode" not in _attrs and 0 not in _x
    row(
        "MaxPool",
        apart(*_x),
        attrs=_attrs,
        # Nor does it put the odd pad of SAME_LOWER where its AveragePool does.
        reference=_reference and _attrs.get("auto_pad") != "SAME_LOWER",
        torch=lambda x, a=_attrs: max_pool(x, **a),
    )
    row(
        "steep.MaxPoolGrad",
        floats(*_y),
        apart(*_x),
        attrs=_attrs,
        torch=lambda dy, x, a=_attrs: torch.autograd.grad(
            max_pool(x if x.requires_grad else x.requires_grad_(), **a), x, dy, create_graph=True
        )[0],
    )
    for _count in (0, 1):
        _counted = {**_attrs, "count_include_pad": _count}
        row(
            "AveragePool",
            floats(*_x),
            attrs=_counted,
            reference=_reference and "dilations" not in _attrs,
            torch=lambda x, a=_counted: average_pool(x, **a),
        )
        row("steep.AveragePoolGrad", floats(*_y), ints(*_x), attrs=_counted)
    row(
        "steep.SumPool",
        floats(*_x),
        attrs=_attrs,
        torch=lambda x, a=_attrs: windows(x, a, 0)[0].sum(-1),
    )
    row("steep.SumPoolGrad", floats(*_y), ints(*_x), attrs=_attrs)
    for _p in (1, 2, 3):
        row(
            "LpPool",
            floats(*_x, away=(0,)),
            attrs={**_attrs, "p": _p},
            reference=False,
            torch=lambda x, a=_attrs, p=_p: (windows(x, a, 0)[0].abs() ** p).sum(-1) ** (1 / p),
        )

# Channels below, at and past oneDNN's vectors, pads that differ from side to side, larger windows.
for _x, _attrs in (
    ((1, 1, 30), {"kernel_shape": [5], "strides": [2], "pads": [2, 1]}),
    ((1, 33, 14, 14), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 17, 9, 8), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [2, 0, 1, 1]}),
    ((3, 16, 12, 12), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((1, 2, 20, 20), {"kernel_shape": [17, 17], "strides": [3, 3]}),
    ((2, 18, 4, 5, 6), {"kernel_shape": [2, 3, 3], "strides": [2, 1, 2], "pads": [0, 1, 1] * 2}),
):
    _more = {"reference": False, "smooth": False}
    row("MaxPool", apart(*_x), attrs=_attrs, torch=lambda x, a=_attrs: max_pool(x, **a), **_more)
    for _count in (0, 1):
        _counted = {**_attrs, "count_include_pad": _count}
        row(
            "AveragePool",
            floats(*_x),
            attrs=_counted,
            torch=lambda x, a=_counted: average_pool(x, **a),
            **_more,
        )

row(
    "MaxPool",
    exactly([[[[1.0, 1.0, 0.0], [1.0, 1.0, 2.0], [0.0, 2.0, 2.0]]]]),
    attrs={"kernel_shape": [2, 2]},
    smooth=False,
    torch=lambda x: F.max_pool2d(x, 2, 1),
    note="ties",
)
row(
    "MaxPool",
    exactly([[[1.0, torch.nan, 0.0, 3.0]]]),
    attrs={"kernel_shape": [2]},
    smooth=False,
    reference=False,
    torch=lambda x: F.max_pool1d(x, 2, 1),
    note="NaN",
)
for _order in (0, 1):
    for _x, _attrs in (((2, 2, 4, 6), {"kernel_shape": [2, 2], "strides": [2, 2]}),):
        row(
            "MaxPool",
            apart(*_x),
            attrs={**_attrs, "storage_order": _order},
            outputs=2,
            torch=lambda x: (F.max_pool2d(x, 2, 2), None),
        )


def unpool(x, kernel, strides, pad=0, more=0):
    """`more`: by how much output_shape is larger than what was pooled, on each spatial axis."""
    rank = len(kernel)
    within = [(x[i + 2] - 1) * strides[i] - 2 * pad + kernel[i] for i in range(rank)]
    plane = math.prod(within)
    # The last element is the largest of each window, so that no two windows share theirs.
    image = torch.arange(float(plane)).expand(*x[:2], plane).reshape(*x[:2], *within)
    pool, inverse = getattr(F, f"max_pool{rank}d"), getattr(F, f"max_unpool{rank}d")
    places = pool(image, kernel, strides, pad, return_indices=True)[1]
    firsts = torch.arange(x[0] * x[1]).reshape(*x[:2], *[1] * rank) * plane  # ONNX counts from x's
    row(
        "MaxUnpool",
        floats(*x),
        (places + firsts).numpy(),
        *([ints(*x[:2], *(e + more for e in within))] if more else []),
        attrs={"kernel_shape": kernel, "strides": strides, "pads": [pad] * (2 * rank)},
        torch=lambda t, *_: F.pad(
            inverse(t, places, kernel, strides, pad, within), [0, more] * rank
        ),
    )


unpool((1, 1, 2, 2), [2, 2], [2, 2])
unpool((1, 1, 2, 2), [2, 2], [2, 2], more=1)
unpool((2, 1, 3), [2], [2])
unpool((1, 1, 2), [3], [2], pad=1)
unpool((1, 1, 1), [1], [1])
unpool((3, 1, 4), [3], [2])
unpool((2, 3, 1, 2), [2, 3], [2, 3])
unpool((2, 1, 3, 2), [2, 1], [1, 2], more=2)
unpool((1, 2, 2, 3), [3, 3], [2, 2], pad=1, more=1)
unpool((1, 2, 2, 1, 3), [2, 2, 2], [2, 2, 2])
unpool((0, 2, 3), [2], [2])
unpool((0, 1, 2, 2), [2, 2], [2, 2], more=1)

row(
    "MaxUnpool",
    floats(1, 2, 3),
    ints([[[1, 2, 5], [6, 9, 10]]]),
    attrs={"kernel_shape": [2], "strides": [2]},
)

for _x in (
    (3, 2),
    (1, 1, 1),
    (2, 3, 4),
    (3, 1, 7),
    (2, 2, 3, 4),
    (2, 3, 1, 1),
    (1, 1, 6, 5),
    (1, 2, 2, 3, 2),
    (2, 1, 1, 2, 1, 3),
    (0, 3),
    (0, 2, 3, 3),
    (2, 0, 3),
):
    _axes = tuple(range(2, len(_x)))
    row(
        "GlobalAveragePool",
        floats(*_x),
        reference=0 not in _x,
        torch=lambda x, a=_axes: x.mean(a, True) if a else x,
    )
    row(
        "GlobalMaxPool",
        apart(*_x),
        reference=len(_x) == 4,  # it knows no other rank
        torch=lambda x, a=_axes: x.amax(a, True) if a else x,
    )
    for _p in (1, 2, 3):
        row(
            "GlobalLpPool",
            floats(*_x, away=(0,)),
            attrs={"p": _p},
            reference=False,
            torch=lambda x, a=_axes, p=_p: (x.abs() ** p).sum(a, True) ** (1 / p) if a else x.abs(),
        )
row(
    "GlobalMaxPool",
    exactly([[[1.0, 2.0, 2.0]]]),
    smooth=False,
    reference=False,
    torch=lambda x: F.adaptive_max_pool1d(x, 1),
    note="ties",
)
# The mean of nothing is not a number; the largest of nothing is an error, in test_bad_indices.py.
row("GlobalAveragePool", floats(2, 3, 0), torch=lambda x: x.mean(2, True))
for _p in (1, 2, 3):
    row(
        "GlobalLpPool",
        floats(2, 3, 0),
        attrs={"p": _p},
        reference=False,
        torch=lambda x: x.sum(2, True),
    )
