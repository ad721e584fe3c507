"""Operators of com.microsoft that exporters wrote for what ONNX could not say, or says since."""

import numpy as np
import torch
import torch.nn.functional as F

from .contrib import ALONE, int32, of_contrib
from .row import SHAPES, exactly, floats, integer, ints, table

ROWS, _row = table()
row = of_contrib(_row)

# --- that ONNX has since -------------------------------------------------------------------------

for _shape in SHAPES:
    row("SampleOp", floats(*_shape), torch=lambda x: x.clone())
    row("ExpandDims", floats(*_shape), np.array(0, np.int32), torch=lambda x, _: x.unsqueeze(0))
row("ExpandDims", floats(2, 3), np.array([-1], np.int32), torch=lambda x, _: x.unsqueeze(-1))
row("ExpandDims", floats(2, 3), np.array(-2, np.int32), torch=lambda x, _: x.unsqueeze(-2))

for _x, _places in (
    ((3, 4), [[0, 1], [2, 3]]),
    ((3, 4), [[1], [1]]),
    ((2, 3, 4), [[0, 1], [1, 0]]),
    ((2, 3, 4), [[[0, 1]], [[1, -1]]]),
    ((5,), [[0], [4], [0]]),
    ((1, 7), [[0, 6]]),
    ((2, 3, 4), [[1, 2, 3], [0, 0, 0]]),
    ((4, 2), [[3]]),
    ((3, 33), [[2]]),
    ((0, 3), np.zeros((0, 1))),
):
    for _kind in (np.int32, np.int64) if _x == (3, 4) else (np.int64,):
        row(
            "GatherND",
            floats(*_x),
            np.asarray(_places, _kind),
            torch=lambda x, i: x[tuple(i.long().unbind(-1))],
        )


def sampled(x, grid, **attrs):
    row(
        "GridSample",
        floats(*x),
        floats(*grid, low=-1.2, high=1.2),
        attrs=attrs,
        smooth=attrs.get("mode") == "bicubic",
        torch=lambda a, b: F.grid_sample(
            *(a, b, attrs.get("mode", "bilinear"), attrs.get("padding_mode", "zeros")),
            align_corners=bool(attrs.get("align_corners", 0)),
        ),
    )


sampled((2, 3, 4, 5), (2, 3, 2, 2))
for _mode in ("bilinear", "nearest", "bicubic"):
    for _padding in ("zeros", "border", "reflection"):
        sampled((1, 2, 4, 3), (1, 2, 3, 2), mode=_mode, padding_mode=_padding, align_corners=1)
sampled((1, 1, 3, 3), (1, 1, 1, 2))
sampled((1, 1, 1, 1), (1, 2, 2, 2))
sampled((2, 1, 5, 2), (2, 1, 4, 2))
sampled((1, 3, 2, 2), (1, 4, 4, 2))
sampled((1, 4, 6, 3), (1, 1, 3, 2))
sampled((2, 2, 2, 2), (2, 2, 1, 2))
sampled((1, 1, 7, 1), (1, 3, 2, 2))
sampled((0, 2, 3, 3), (0, 2, 2, 2))
sampled((1, 1, 4, 4), (1, 1, 7, 2))


def padded(x, pads, value=None, mode="constant"):
    half = len(pads) // 2
    if mode != "constant":  # PyTorch pads the last axes alone
        assert not any(n for i, n in enumerate(pads) if i % half < half - 1)
    turned = [n for i in reversed(range(half)) for n in (pads[i], pads[i + half])]
    name = {"edge": "replicate"}.get(mode, mode)
    row(
        "Pad",
        floats(*x),
        ints(*pads) if len(x) != 4 else ints([list(pads)]),
        None if value is None else exactly(value),
        attrs={"mode": mode},
        torch=lambda t, _, v: F.pad(
            t,
            turned if mode == "constant" else turned[:2],
            name,
            **({} if name != "constant" or v is None else {"value": v.item()}),
        ),
        # PyTorch takes a number.
        frozen=() if value is None else (2,),
        smooth=value is None,
    )


padded((2, 3), (0, 2, 0, 0))
padded((2, 3), (1, 0, 0, 2), 0.5)
padded((2, 3), (1, 0, 0, 2), [0.5])
padded((3, 4), (-1, 0, 0, -2))
padded((1, 2, 5), (0, 0, 2, 0, 0, 3), mode="reflect")
padded((3, 5), (0, 2, 0, 3), mode="edge")
padded((1, 1, 2, 3), (0, 0, 1, 1, 0, 0, 1, 1))
padded((4,), (3, 1))
padded((1, 1), (0, 1, 1, 0))
padded((33,), (0, 1))
padded((2, 1, 3), (1, 0, 0, 0, 0, 0))
padded((0, 3), (0, 1, 0, 1))

for _range in ((0, 5), (3, -2, -1), (2, 9, 3), (5, 5), (1, 2), (0, 33), (-4, 0), (0, 16, 5)):
    for _kind in (np.int32, np.int64):
        row(
            "Range",
            *(np.array(n, _kind) for n in _range),
            torch=lambda *t: torch.arange(*(int(n) for n in t), dtype=t[0].dtype),
        )
row("Range", ints(1), ints(7), ints(2), torch=lambda *t: torch.arange(1, 7, 2))
for _range in ((0.0, 2.0, 0.25), (1.0, 5.0)):
    row(
        "Range",
        *map(exactly, _range),
        seeded=(),
        note=str(_range),
        torch=lambda *t, r=_range: torch.arange(*r, dtype=t[0].dtype),
    )

for _shape in [s for s in SHAPES if len(s) > 1] + [(3, 3), (5, 2), (1, 7), (33, 4), (2, 2)]:
    row("Trilu", floats(*_shape), torch=torch.triu)
    row(
        "Trilu",
        floats(*_shape),
        integer(-1),
        attrs={"upper": 0},
        torch=lambda x, k: torch.tril(x, -1),
    )
row("Trilu", floats(4, 5), integer(1), torch=lambda x, k: torch.triu(x, 1))


def unique(x):
    values, first, where, counts = np.unique(
        x.detach().numpy(), return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return tuple(map(torch.tensor, (values[order], rank[where].astype(np.int64), counts[order])))


for _values in (
    *([2, 1, 1, 3, 4, 3], [5], [1, 1], [3, 2, 1], [0, 1, 0, 1, 2], list(range(16)), [7] * 9),
    *([2, 1, 2, 1, 1, 1, 3], [1, 2, 3, 4], []),
):
    row("Unique", exactly(_values), outputs=3, seeded=(), torch=unique)

# --- that it could not say -----------------------------------------------------------------------

for _metric in ("euclidean", "sqeuclidean"):
    for _a, _b, _columns in (
        *((3, 4, 2), (1, 1, 1), (2, 5, 7), (6, 2, 3), (1, 33, 2), (4, 4, 4), (16, 1, 2)),
        *((2, 2, 16), (3, 1, 5), (0, 3, 2), (5, 5, 1)),
    ):
        row(
            "CDist",
            floats(_a, _columns),
            floats(_b, _columns),
            attrs={"metric": _metric},
            torch=lambda a, b, m=_metric: (
                torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
                ** (1 if m == "euclidean" else 2)
            ),
        )
row("CDist", floats(3, 2), floats(2, 2), torch=lambda a, b: ((a[:, None] - b) ** 2).sum(-1))


def dominant(*shape):
    """Far from singular."""
    return lambda rng: rng.uniform(-0.5, 0.5, shape) + 2 * np.eye(shape[-1])


for _shape in (
    *((2, 2), (1, 1), (3, 3), (2, 3, 3), (4, 1, 1), (1, 2, 2, 2), (5, 5), (2, 1, 4, 4)),
    *((3, 2, 2), (0, 2, 2), (8, 8)),
):
    row("Inverse", dominant(*_shape), torch=torch.linalg.inv)


def unfolded(x, dim, size, step=1):
    row(
        "UnfoldTensor",
        floats(*x),
        attrs={"dim": dim, "size": size, "step": step},
        torch=lambda t: t.unfold(dim, size, step),
    )


unfolded((2, 7), -1, 3)
unfolded((2, 7), 0, 1)
unfolded((2, 7, 3), 1, 2, 2)
unfolded((5,), 0, 5)
unfolded((33,), 0, 4, 5)
unfolded((2, 3, 4, 5), -2, 2)
unfolded((2, 3, 4, 5), 3, 5, 3)
unfolded((1, 1), 1, 1)
unfolded((6, 2), 0, 2, 3)
unfolded((0, 4), 1, 2)


def forward(x, axes):
    if not x.numel():
        return x.new_zeros(*x.shape[:-1], x.shape[-1] // 2 + 1, 2)
    return torch.view_as_real(torch.fft.rfftn(x, dim=axes))


def backward(x, axes):
    if not x.numel():
        return x.new_zeros(*x.shape[:-2], 2 * x.shape[-2] - 2)
    return torch.fft.irfftn(torch.complex(x[..., 0], x[..., 1]), dim=axes)


for _x, _axes in (
    *(
        ((8,), 1),
        ((2, 4), 1),
        ((1, 2), 1),
        ((3, 16), 1),
        ((2, 1, 6), 1),
        ((4, 6), 2),
        ((2, 3, 4), 2),
    ),
    *(((2, 3, 4), 3), ((2, 2, 3, 2), 3), ((0, 4), 1), ((1, 10), 1)),
):
    _last = tuple(range(-_axes, 0))
    _more = {"attrs": {"signal_ndim": _axes}, "note": ALONE}
    row("Rfft", floats(*_x), torch=lambda x, a=_last: forward(x, a), **_more)
    _half = floats(*_x[:-1], _x[-1] // 2 + 1, 2)
    row("Irfft", _half, torch=lambda x, a=_last: backward(x, a), **_more)


def cropped(x, boxes, images, size, outside=0.0):
    def crops(t, rois, index, _size):
        n, high, wide = len(rois), *size
        y1, x1, y2, x2 = (c[:, None] for c in rois.unbind(1))

        def along(a, b, count):
            share = torch.arange(count) / max(count - 1, 1) if count > 1 else torch.tensor([0.5])
            return a + (b - a) * share.to(a)

        y, x_ = along(y1, y2, high), along(x1, x2, wide)
        grid = torch.stack(
            [x_[:, None].expand(n, high, wide), y[:, :, None].expand(n, high, wide)], -1
        )
        found = F.grid_sample(
            t[index.long()], 2 * grid - 1, padding_mode="border", align_corners=True
        )
        within = ((y >= 0) & (y <= 1))[:, :, None] & ((x_ >= 0) & (x_ <= 1))[:, None]
        return torch.where(within[:, None], found, outside)

    row(
        "CropAndResize",
        floats(*x),
        exactly(boxes),
        int32(*images),
        int32(*size),
        attrs={"extrapolation_value": outside},
        torch=crops,
    )


BOXES = [[0.11, 0.07, 0.83, 0.61], [0.9, 0.8, 0.17, 0.23]]
cropped((2, 3, 5, 4), BOXES, [1, 0], (3, 2))
cropped((2, 3, 5, 4), BOXES, [0, 0], (1, 2))
cropped((1, 1, 6, 7), BOXES[:1], [0], (4, 1), 0.5)
cropped((1, 2, 3, 3), [[-0.31, 0.13, 1.27, 0.81]], [0], (4, 3), 2.5)
cropped((1, 2, 3, 3), BOXES, [0, 0], (2, 5))
cropped((3, 1, 4, 4), [*BOXES, BOXES[0]], [2, 0, 1], (2, 2))
cropped((1, 1, 2, 2), BOXES[1:], [0], (7, 7))
cropped((1, 4, 9, 3), BOXES[:1], [0], (1, 1))
cropped((2, 2, 4, 5), BOXES, [1, 1], (3, 3))
cropped((1, 1, 3, 2), np.zeros((0, 4)), [], (2, 2))


def transposed(x, w, pads=None, biased=False, **attrs):
    def convolution(x, w, p=None, b=None):
        y = F.conv_transpose2d(
            *(x, w, b, attrs.get("strides", 1), 0, attrs.get("output_padding", 0)),
            *(attrs.get("group", 1), attrs.get("dilations", 1)),
        )
        if p is None:
            return y
        top, left, bottom, right = p.tolist()
        return y[:, :, top : y.shape[2] - bottom, left : y.shape[3] - right]

    row(
        "ConvTransposeWithDynamicPads",
        *(floats(*x), floats(*w), None if pads is None else ints(*pads)),
        floats(w[1] * attrs.get("group", 1)) if biased else None,
        attrs=attrs,
        torch=convolution,
    )


transposed((1, 2, 3, 3), (2, 3, 2, 2), (0, 0, 0, 0))
transposed((1, 2, 3, 3), (2, 3, 3, 3), (1, 0, 1, 2), True)
transposed((2, 1, 4, 3), (1, 1, 3, 3), (1, 1, 1, 1), strides=[2, 2], output_padding=[1, 1])
transposed((1, 4, 2, 2), (4, 1, 2, 3), (0, 1, 1, 0), group=2)
transposed((1, 1, 3, 4), (1, 2, 2, 2), (1, 1, 0, 0), dilations=[2, 2])
transposed((1, 1, 1, 1), (1, 1, 1, 1), (0, 0, 0, 0))
transposed((3, 2, 2, 2), (2, 2, 3, 3), (1, 1, 1, 1), True, strides=[1, 2])
transposed((1, 3, 5, 1), (3, 1, 2, 2), (2, 0, 0, 0))
transposed((1, 1, 7, 2), (1, 1, 4, 2), (0, 0, 3, 1), kernel_shape=[4, 2])
transposed((0, 2, 3, 3), (2, 3, 2, 2), (0, 0, 0, 0))
