"""Losses over class scores."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from .row import floats, table

ROWS, row = table()

LOSSES = [
    ((4, 5), {}, False),
    ((4, 5), {"reduction": "sum"}, True),
    ((4, 5), {"reduction": "none"}, False),
    ((4, 5), {"ignore_index": 1}, False),
    ((4, 5), {"ignore_index": -100}, True),
    ((4, 5), {"ignore_index": 1, "reduction": "none"}, True),
    ((4, 5), {"ignore_index": 1, "reduction": "sum"}, True),
    ((2, 3, 4), {"ignore_index": 1}, True),
    ((2, 3, 2, 2), {}, False),
    ((2, 3, 4), {"reduction": "none"}, True),
    ((1, 1), {}, False),
    ((1, 33), {}, True),
    ((7, 2), {"ignore_index": 0, "reduction": "none"}, False),
    ((2, 3, 2, 1, 2), {}, True),
    ((3, 17), {"ignore_index": 3}, False),
    ((0, 3), {"reduction": "sum"}, False),
    ((0, 3), {"reduction": "none"}, True),
]


def labels_for(shape, attrs, dtype=np.int64):
    rows = shape[:1] + shape[2:]
    labels = (np.arange(math.prod(rows)) * 3 % shape[1]).reshape(rows)
    if attrs.get("ignore_index", 0) < 0 and labels.size:
        labels.flat[1] = attrs["ignore_index"]
    return labels.astype(dtype)


def torch_attrs(attrs):
    return {
        "reduction": attrs.get("reduction", "mean"),
        "ignore_index": attrs.get("ignore_index", -1000),
    }


for _x, _attrs, _weighted in LOSSES:
    _t = labels_for(_x, _attrs)
    _w = (floats(_x[1], low=0.3),) if _weighted else ()
    _frozen = (2,) if _weighted else ()

    def entropy(x, t, w=None, attrs=_attrs):
        return F.cross_entropy(x, t.long(), w if w is None else w.detach(), **torch_attrs(attrs))

    def entropy_and_log_prob(x, t, w=None, f=entropy):
        return f(x, t, w), x.log_softmax(1)

    row(
        "SoftmaxCrossEntropyLoss",
        floats(*_x),
        _t,
        *_w,
        attrs=_attrs,
        torch=entropy,
        frozen=_frozen,
        reference=_x[0] > 0,
    )
    row(
        "SoftmaxCrossEntropyLoss",
        floats(*_x),
        _t,
        *_w,
        attrs=_attrs,
        torch=entropy_and_log_prob,
        outputs=2,
        frozen=_frozen,
        reference=_x[0] > 0,
        note="log_prob",
    )
    row(
        "NegativeLogLikelihoodLoss",
        floats(*_x),
        _t,
        *_w,
        attrs=_attrs,
        frozen=_frozen,
        reference=_x[0] > 0,
        torch=lambda x, t, w=None, attrs=_attrs: F.nll_loss(
            x, t, w if w is None else w.detach(), **torch_attrs(attrs)
        ),
    )
    if len(_x) == 2:
        for _dtype in (np.int64, np.int32):
            row(
                "steep.SoftmaxCrossEntropy",
                floats(*_x),
                _t.astype(_dtype),
                *_w,
                attrs=_attrs,
                outputs=3,
                frozen=_frozen,
                note=np.dtype(_dtype).name,
                torch=lambda x, t, w=None, f=entropy: (
                    f(x, t, w),
                    x.logsumexp(1),
                    torch.zeros(x.shape[0], dtype=x.dtype),
                ),
            )
        _d = floats(*(_x[:1] if _attrs.get("reduction") == "none" else ()))
        row(
            "steep.SoftmaxCrossEntropyGrad",
            _d,
            floats(*_x),
            _t,
            floats(_x[0]),
            floats(_x[0]),
            *_w,
            attrs=_attrs,
            frozen=(5,) if _weighted else (),
        )

# Scores of classes 3 to 7 of 11: rows 1 and 3 have labels in other parts.
for _attrs in ({"reduction": "none"}, {"reduction": "none", "ignore_index": 4}):
    _part = _attrs | {"first": 3, "classes": 11}
    _t = np.array([3, 0, 7, 10, 4, 5])

    def entropy_of_part(x, t, attrs=_attrs):
        inside = (t >= 3) & (t < 8)
        own = x.gather(1, torch.where(inside, t - 3, 0)[:, None])[:, 0]
        loss = x.logsumexp(1) - torch.where(inside, own, 0)
        loss = torch.where(t == attrs.get("ignore_index", -1), 0, loss)
        return loss, x.logsumexp(1), torch.zeros(x.shape[0], dtype=x.dtype)

    row(
        "steep.SoftmaxCrossEntropy",
        floats(6, 5),
        _t,
        attrs=_part,
        outputs=3,
        torch=entropy_of_part,
        note="part",
    )
    row(
        "steep.SoftmaxCrossEntropyGrad",
        floats(6),
        floats(6, 5),
        _t,
        floats(6),
        floats(6),
        attrs=_part,
        note="part",
    )
