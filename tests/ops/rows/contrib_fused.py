"""Operators of com.microsoft that optimisers put for several, on processors other than the CPU."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from .contrib import ACTIVATIONS as OF_CONV, ALONE, OF_GEMM, PARAMETERS, SMOOTH, of_contrib
from .row import floats, ints, table

ROWS, _row = table()


def row(op, *inputs, **more):
    """ONNX Runtime's package for the CPU has no kernel of any."""
    of_contrib(_row)(op, *inputs, note=ALONE, **more)


# --- GELU and biases -----------------------------------------------------------------------------

for _x in [(2, 3, 4), (1, 1, 2), (3, 5, 8), (2, 1, 6), (4, 2, 2), (1, 7, 4), (1, 2, 32), (5, 2, 4)]:
    _bias = floats(_x[-1])
    row("BiasAdd", floats(*_x), _bias, floats(*_x), torch=lambda x, b, s: x + b + s)
    row(
        "BiasSplitGelu",
        *(floats(*_x), _bias),
        torch=lambda x, b: (x + b).chunk(2, -1)[0] * F.gelu((x + b).chunk(2, -1)[1]),
    )
for _x in [(0, 3, 4), (2, 0, 4)]:
    row("BiasAdd", floats(*_x), floats(4), floats(*_x), torch=lambda x, b, s: x + b + s)
    row("BiasSplitGelu", floats(*_x), floats(4), torch=lambda x, b: (x + b)[..., :2])


def fast(x, w, b=None):
    return F.gelu(x @ w if b is None else x @ w + b, approximate="tanh")


for _x, _w in (
    *(((2, 3), (3, 4)), ((2, 2, 3), (3, 5)), ((1, 1), (1, 1)), ((4, 2), (2, 7)), ((0, 2), (2, 3))),
    *(((1, 5), (5, 1)), ((3, 1, 2), (2, 2))),
):
    row("GemmFastGelu", floats(*_x), floats(*_w), torch=fast)
    row("GemmFastGelu", floats(*_x), floats(*_w), floats(_w[-1]), torch=fast)

# --- products and convolutions -------------------------------------------------------------------


def product(a, b, activation, **attrs):
    more, function = OF_GEMM[activation]

    def multiplied(x, y):
        x, y = (x.mT if attrs.get("transA") else x), (y.mT if attrs.get("transB") else y)
        return function(attrs.get("alpha", 1.0) * (x @ y))

    row(
        "FusedMatMulActivation",
        *(floats(*a), floats(*b)),
        attrs={"activation": activation, **more, **attrs},
        smooth=activation in SMOOTH,
        torch=multiplied,
    )


for _activation in (a for a in OF_GEMM if a):
    product((2, 3), (3, 4), _activation, alpha=0.5)
product((2, 3, 2), (2, 3, 5), "Tanh", transA=1)
product((2, 3, 2), (4, 2), "Tanh", transB=1)
product((1, 1), (1, 1), "Sigmoid")
product((5, 2), (2, 3), "Elu")
product((2, 7), (7, 2), "Softplus")
product((4, 4), (4, 4), "Tanh")
product((1, 3), (3, 16), "Tanh")
product((6, 2), (2, 1), "Tanh")
product((0, 3), (3, 4), "Tanh")


def convolve(op, x, w, biased=False, added=None, activation="", **attrs):
    more = {"activation_params": PARAMETERS[activation]} if activation in PARAMETERS else {}

    def convolution(x, w, b=None, z=None):
        pad = attrs.get("pads", [0, 0, 0, 0])[:2]
        y = F.conv2d(
            *(x.movedim(3, 1), w, b, attrs.get("strides", 1), pad),
            *(attrs.get("dilations", 1), attrs.get("group", 1)),
        ).movedim(1, 3)
        y = y if z is None else y + z
        return OF_CONV[activation](y) if activation else y

    row(
        op,
        *(floats(*x), floats(*w), floats(w[0]) if biased else None),
        *(() if added is None else (floats(*added),)),
        attrs={**({"activation": activation} if activation else {}), **more, **attrs},
        smooth=activation in SMOOTH,
        torch=convolution,
    )


for _op in ("NhwcConv", "NhwcFusedConv"):
    convolve(_op, (2, 4, 5, 3), (2, 3, 3, 3), True)
    convolve(_op, (1, 5, 4, 4), (4, 2, 2, 3), group=2, strides=[2, 1])
    convolve(_op, (1, 3, 3, 1), (2, 1, 2, 2), pads=[1, 1, 1, 1])
    convolve(_op, (1, 6, 6, 2), (1, 2, 3, 3), dilations=[2, 2], auto_pad="VALID")
    convolve(_op, (3, 2, 7, 1), (2, 1, 1, 3))
    convolve(_op, (1, 1, 1, 1), (1, 1, 1, 1))
    convolve(_op, (1, 3, 4, 2), (3, 2, 3, 3), kernel_shape=[3, 3])
    convolve(_op, (2, 2, 2, 5), (1, 5, 1, 1), True)
    convolve(_op, (1, 4, 2, 3), (5, 3, 2, 2))
    convolve(_op, (0, 4, 4, 3), (2, 3, 3, 3))
for _activation in OF_CONV:
    convolve("NhwcFusedConv", (1, 4, 4, 2), (3, 2, 3, 3), True, (1, 2, 2, 3), _activation)

# --- group normalization -------------------------------------------------------------------------


def group_norm(x, scale, shift, skip=None, bias=None, *, groups, last=1, activation=0, **more):
    front = (lambda t: t.movedim(-1, 1)) if last else (lambda t: t)
    if skip is not None:
        if skip.dim() == 2:
            skip = skip[:, None, None] if last else skip[:, :, None, None]
        x = x + skip
        x = x if bias is None else x + (bias if last else bias[:, None, None])
    y = F.group_norm(front(x), groups, scale, shift, more.get("epsilon", 1e-5))
    y = F.silu(y) if activation else y
    return (y.movedim(1, -1) if last else y), x


def normalize(x, groups, skip=None, bias=False, outputs=1, **more):
    last = more.get("last", 1)
    channels = x[-1] if last else x[1]
    attrs = {"groups": groups, "activation": more.get("activation", 0)}
    attrs |= {} if last else {"channels_last": 0}
    attrs |= {"epsilon": more["epsilon"]} if "epsilon" in more else {}
    row(
        "GroupNorm" if skip is None else "SkipGroupNorm",
        *(floats(*x), floats(channels), floats(channels)),
        *(() if skip is None else (floats(*skip),)),
        *((floats(channels),) if bias else ()),
        attrs=attrs,
        outputs=outputs,
        torch=lambda *t: group_norm(*t, groups=groups, **more)[:outputs],
    )


for _skip in (False, True):
    for _x, _groups in (
        *(((2, 3, 3, 4), 2), ((1, 2, 2, 6), 3), ((2, 4, 1, 3), 1), ((1, 3, 3, 4), 4)),
        *(((3, 2, 2, 2), 1), ((1, 5, 2, 8), 2), ((2, 2, 2, 16), 4), ((1, 1, 7, 4), 2)),
    ):
        normalize(_x, _groups, _x if _skip else None)
    normalize((0, 3, 3, 4), 2, (0, 3, 3, 4) if _skip else None)
    normalize((2, 4, 3, 2), 2, (2, 4, 3, 2) if _skip else None, last=0)
    normalize((2, 4, 3, 2), 2, (2, 4, 3, 2) if _skip else None, last=0, activation=1, epsilon=0.5)
    normalize((2, 3, 2, 4), 2, (2, 3, 2, 4) if _skip else None, activation=1)
normalize((2, 3, 2, 4), 2, (2, 1, 1, 4), True, 2)
normalize((2, 3, 2, 4), 2, (2, 4), True, 2, activation=1)
normalize((2, 4, 3, 2), 2, (2, 4), True, 2, last=0)
normalize((2, 4, 3, 2), 1, (2, 4, 1, 1), True, last=0)

# --- softmax and dropout -------------------------------------------------------------------------


def softmax(x, bias, axis, inner):
    first = axis % len(x)
    row(
        "BiasSoftmax",
        *(floats(*x), floats(*bias)),
        attrs={"axis": axis, "is_inner_broadcast": inner},
        torch=lambda a, b: torch.softmax((a + b).flatten(first), -1).unflatten(-1, a.shape[first:]),
    )


softmax((2, 3, 4, 4), (2, 1, 1, 4), 3, 1)
softmax((2, 3, 4, 4), (1, 1, 4, 4), -1, 0)
softmax((2, 3, 4, 4), (4, 4), 3, 0)
softmax((2, 3, 4), (1, 3, 4), 1, 0)
softmax((2, 3), (2, 3), 1, 1)
softmax((1, 2, 5), (1, 2, 5), 2, 1)
softmax((4, 1), (1,), 1, 0)
softmax((2, 2, 33), (2, 1, 33), -1, 1)
softmax((1, 1, 2, 2), (1, 1, 1, 2), 2, 0)
softmax((3, 7), (7,), 0, 0)
softmax((0, 3, 4), (4,), 2, 0)

HALF = np.array(0.5, np.float32)
for _x in [(2, 3), (5,), (2, 3, 4), (1, 1), (33,), (0, 3), (4, 16), (2, 1, 3, 5), (3, 1), (1, 7)]:
    row("BitmaskDropout", floats(*_x), torch=lambda x: x.clone())
    for _op in ("BiasDropout", "BitmaskBiasDropout"):
        row(_op, floats(*_x), floats(_x[-1]), torch=lambda x, b: x + b)
        row(
            *(_op, floats(*_x), floats(*_x), floats(*_x), HALF),
            torch=lambda x, b, r, _: x + b + r,
        )
row(
    *("BiasDropout", floats(2, 3), floats(3), None, HALF, np.array(False)),
    outputs=2,
    torch=lambda x, b, *_: (x + b, torch.ones_like(x, dtype=torch.bool)),
)

# --- relative positions --------------------------------------------------------------------------


def positions(buckets, heads, length, most, both=0):
    def bias(table, queries, keys):
        far = torch.arange(length) - torch.arange(length)[:, None]
        count = buckets // 2 if both else buckets
        exact = count // 2
        distance = far.abs()
        steps = torch.log(distance.clamp(min=1).float() / exact) / math.log(most / exact)
        beyond = exact + (steps * (count - exact)).long()
        index = torch.where(distance < exact, distance, beyond.clamp(max=count - 1))
        if both:
            index = index + count * (far > 0)
        return table.reshape(heads, buckets)[:, index].unsqueeze(0)

    row(
        "RelativePositionBias",
        *(floats(buckets, heads), ints(length), ints(length)),
        attrs={"max_distance": most, **({"is_bidirectional": 1} if both else {})},
        torch=bias,
    )


positions(8, 2, 5, 6)
positions(8, 2, 11, 10, 1)
positions(32, 1, 9, 128, 1)
positions(4, 3, 7, 5)
positions(4, 1, 6, 3, 1)
positions(16, 2, 12, 20)
positions(2, 1, 3, 4)
positions(6, 5, 1, 8)
positions(12, 2, 4, 9, 1)
positions(8, 4, 2, 6)
positions(8, 2, 0, 6)
