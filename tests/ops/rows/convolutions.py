"""Convolutions, transposed convolutions and the products that are their gradients."""

import torch
import torch.nn.functional as F

from .row import floats, ints, table

ROWS, row = table()


def pads_of(attrs, rank):
    pads = attrs.get("pads", [0] * (2 * rank))
    return [(pads[i], pads[rank + i]) for i in range(rank)]


def padded(x, pairs):
    return F.pad(x, [p for pair in reversed(pairs) for p in pair])


def conv(x, w, b=None, **attrs):
    rank = w.dim() - 2
    run = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    strides = attrs.get("strides", [1] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    pairs = pads_of(attrs, rank)
    if attrs.get("auto_pad", "NOTSET").startswith("SAME"):
        pairs = []
        for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True):
            total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            less, more = total // 2, total - total // 2
            pairs.append((less, more) if attrs["auto_pad"] == "SAME_UPPER" else (more, less))
    return run(padded(x, pairs), w, b, strides, 0, dilations, attrs.get("group", 1))


def conv_transpose(x, w, b=None, **attrs):
    """The gradient of the convolution, cut and padded to the wanted extents."""
    rank = w.dim() - 2
    run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    strides = attrs.get("strides", [1] * rank)
    more = attrs.get("output_padding", [0] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    y = run(x, w, None, strides, 0, 0, attrs.get("group", 1), dilations)
    y = padded(y, [(0, m) for m in more])
    pairs = pads_of(attrs, rank)
    if "output_shape" in attrs or attrs.get("auto_pad", "NOTSET").startswith("SAME"):
        wanted = attrs.get("output_shape") or [
            n * s for n, s in zip(x.shape[2:], strides, strict=True)
        ]
        pairs = []
        for have, want in zip(y.shape[2:], wanted, strict=True):
            total = have - want
            less, rest = total // 2, total - total // 2
            upper = attrs.get("auto_pad") == "SAME_UPPER"
            pairs.append((less, rest) if upper else (rest, less))
    y = padded(y, [(-a, -b) for a, b in pairs])
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def both(x, w, bias=False, note="", reference=True, **attrs):
    """A row for Conv and one for each of its gradients, which are linear in both operands."""
    operands = [floats(*x), floats(*w), *([floats(w[0])] if bias else [])]
    row(
        "Conv",
        *operands,
        attrs=attrs,
        note=note,
        reference=reference,
        torch=lambda *t, a=attrs: conv(*t, **a),
    )
    y = conv(torch.zeros(x), torch.zeros(w), **attrs).shape

    def transposed(dy, other, _, a=attrs, form=""):
        """d <dy, conv> / d the operand that is missing, itself differentiable."""
        x_or_w = torch.zeros(x if form == "x" else w, dtype=dy.dtype, requires_grad=True)
        pair = (x_or_w, other) if form == "x" else (other, x_or_w)
        return torch.autograd.grad(conv(*pair, **a), x_or_w, dy, create_graph=True)[0]

    row(
        "steep.ConvGradInput",
        floats(*y),
        floats(*w),
        ints(*x),
        attrs=attrs,
        note=note,
        torch=lambda *t, f=transposed: f(*t, form="x"),
    )
    row(
        "steep.ConvGradWeight",
        floats(*y),
        floats(*x),
        ints(*w),
        attrs=attrs,
        note=note,
        torch=lambda *t, f=transposed: f(*t, form="w"),
    )


both((1, 1, 3), (1, 1, 1))
# one tap: one product of copies, and one for each row of the batch
both((2, 2, 3), (3, 2, 1), bias=True)
both((2, 1, 4, 4), (2, 1, 1, 1), bias=True)
both((2, 3, 7), (4, 3, 3), bias=True)
both((2, 3, 8), (3, 1, 3), group=3, strides=[2], pads=[2, 1])
# wide dilations: the gradient of x as that over a plane, and where rows are not whole
both((1, 2, 24), (4, 1, 3), group=2, dilations=[8], pads=[8, 8])
both((1, 2, 32), (2, 2, 3), dilations=[8], pads=[16, 0])
both((1, 2, 24), (2, 2, 3), dilations=[8], pads=[4, 12])
both((1, 1, 4, 5), (1, 1, 3, 3), pads=[1, 1, 1, 1])
both((2, 4, 6, 5), (6, 4, 3, 2), bias=True, strides=[2, 1], pads=[1, 0, 1, 1])
both((2, 4, 5, 5), (6, 2, 2, 3), bias=True, group=2, dilations=[2, 1])
both((1, 4, 6, 6), (4, 1, 3, 3), group=4, strides=[2, 2], pads=[1, 1, 1, 1])
# without a kernel of oneDNN for the gradient of the window
both((2, 3, 10, 19), (3, 1, 7, 7), group=3, pads=[3, 3, 3, 3])
both((1, 2, 9, 33), (4, 1, 5, 2), bias=True, group=2, strides=[2, 1], dilations=[1, 3])
both((2, 2, 3, 3), (2, 1, 7, 7), group=2, pads=[3, 3, 3, 3])
both((1, 2, 5, 6), (3, 2, 3, 2), auto_pad="SAME_UPPER", strides=[2, 2])
both((1, 2, 5, 6), (3, 2, 3, 2), auto_pad="SAME_LOWER", strides=[2, 2], bias=True)
both((1, 2, 5, 4), (3, 2, 3, 2), auto_pad="SAME_UPPER", dilations=[2, 1])
both((1, 2, 5, 6), (3, 2, 3, 3), auto_pad="VALID", bias=True)
both((1, 2, 6, 6), (2, 2, 2, 2), strides=[4, 4])  # elements that no window sees
both((2, 2, 4, 3, 5), (3, 2, 2, 3, 2), pads=[1, 0, 0, 0, 1, 1], bias=True, strides=[1, 1, 2])
both((1, 17, 4, 4), (18, 17, 3, 3), pads=[1, 1, 1, 1], note="odd channels")
both((0, 2, 5, 5), (3, 2, 3, 3), bias=True, reference=False)
both((2, 2, 1, 1), (3, 2, 1, 1))


def transpose(x, w, bias=False, reference=True, **attrs):
    group = attrs.get("group", 1)
    row(
        "ConvTranspose",
        floats(*x),
        floats(*w),
        *([floats(w[1] * group)] if bias else []),
        attrs=attrs,
        reference=reference,
        torch=lambda *t, a=attrs: conv_transpose(*t, **a),
    )


transpose((1, 1, 3), (1, 1, 3), bias=True)
transpose((2, 3, 4), (3, 2, 3), strides=[2], pads=[1, 0])
transpose((1, 2, 3, 3), (2, 3, 3, 3), bias=True)
transpose((1, 2, 3, 4), (2, 3, 2, 2), strides=[2, 2], bias=True)
transpose((1, 2, 3, 3), (2, 3, 3, 3), strides=[3, 2], output_padding=[1, 1])
transpose((1, 2, 3), (2, 3, 3), strides=[2], dilations=[4], output_padding=[3], reference=False)
transpose(
    (1, 4, 3, 3),
    (4, 2, 2, 3),
    group=2,
    strides=[2, 1],
    dilations=[4, 3],
    output_padding=[3, 2],
    pads=[1, 2, 1, 3],
    bias=True,
    reference=False,
)
transpose((1, 2, 3, 3), (2, 3, 3, 3), strides=[3, 2], output_shape=[10, 8], output_padding=[1, 1])
transpose(
    (1, 2, 3, 3), (2, 1, 3, 3), strides=[3, 2], output_shape=[7, 6], bias=True, reference=False
)
transpose((1, 2, 3, 3), (2, 1, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER")
transpose((1, 2, 3, 3), (2, 1, 4, 4), strides=[2, 1], auto_pad="SAME_LOWER")
transpose((1, 4, 3, 3), (4, 2, 3, 2), group=2, dilations=[2, 2], bias=True, reference=False)
transpose((1, 2, 3, 3), (2, 2, 3, 3), pads=[1, 2, 1, 2], strides=[2, 2])
transpose((1, 2, 2, 3, 2), (2, 3, 2, 2, 3), bias=True, strides=[1, 2, 1])
transpose((0, 2, 3, 3), (2, 3, 3, 3), bias=True, reference=False)
