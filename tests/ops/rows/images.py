"""Resizing, sampling and rearranging of images."""

import functools
import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F

from .row import exactly, floats, ints, table

ROWS, row = table()


def resize(x, sizes, note="", grown=(), torch=None, reference=True, **attrs):
    row(
        "Resize",
        floats(*x),
        None,
        None,
        ints(*sizes),
        attrs=attrs,
        note=note,
        reference=reference,
        single=attrs["mode"] == "cubic",
        torch=torch and (lambda t, *_: torch(t)),
    )
    axes = attrs.get("axes", list(range(len(x))))
    y = list(grown or x)
    for axis, size in zip(axes, sizes, strict=True):
        y[axis] = y[axis] if grown else size
    row("steep.ResizeGrad", floats(*y), ints(*x), None, None, ints(*sizes), attrs=attrs, note=note)


HOW = (
    "half_pixel",
    "asymmetric",
    "align_corners",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
)
for _how in HOW:
    for _mode in ("nearest", "linear", "cubic"):
        _attrs = {"mode": _mode, "coordinate_transformation_mode": _how}
        resize((1, 2, 4, 3), (1, 2, 7, 5), **_attrs)
        resize((1, 1, 5, 6), (1, 1, 3, 1), **_attrs)
for _nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    resize((2, 6), (2, 9), mode="nearest", nearest_mode=_nearest)
    resize((1, 1, 2, 4), (1, 1, 4, 2), mode="nearest", nearest_mode=_nearest)
for _mode, _size in itertools.product(("linear", "cubic"), ((3, 2), (5, 9), (8, 4))):
    resize((1, 1, 7, 6), (1, 1, *_size), mode=_mode, antialias=1)
    resize((1, 1, 7, 6), (1, 1, *_size), mode=_mode, antialias=1, exclude_outside=1)
resize((1, 1, 4, 4), (1, 1, 6, 7), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5)
resize((2, 2, 4, 6), (5, 3), mode="linear", axes=[2, 3])
resize((2, 2, 4, 6), (3, 5), mode="linear", axes=[3, 2], reference=False)
resize((1, 1, 4, 6), (1, 1, 4, 6), mode="linear", note="unchanged")
for _policy, _grown in (("not_larger", (1, 1, 6, 9)), ("not_smaller", (1, 1, 8, 12))):
    resize(
        (1, 1, 4, 6),
        (8, 9),
        mode="linear",
        axes=[2, 3],
        keep_aspect_ratio_policy=_policy,
        grown=_grown,
    )
resize(
    (2, 3, 4, 5),
    (2, 3, 8, 7),
    mode="linear",
    note="torch",
    torch=lambda x: F.interpolate(x, (8, 7), mode="bilinear"),
)
resize(
    (1, 2, 6, 5),
    (1, 2, 3, 9),
    mode="cubic",
    note="torch",
    torch=lambda x: F.interpolate(x, (3, 9), mode="bicubic"),
)
resize(
    (1, 2, 6, 5),
    (1, 2, 3, 4),
    mode="linear",
    antialias=1,
    exclude_outside=1,
    note="torch",
    torch=lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True),
)
resize(
    (1, 2, 3, 4, 2),
    (1, 2, 6, 5, 3),
    mode="linear",
    note="torch",
    torch=lambda x: F.interpolate(x, (6, 5, 3), mode="trilinear"),
)
resize(
    (1, 2, 3, 4),
    (1, 2, 7, 8),
    mode="nearest",
    coordinate_transformation_mode="asymmetric",
    nearest_mode="floor",
    note="torch",
    torch=lambda x: F.interpolate(x, (7, 8), mode="nearest"),
)
for _mode, _in_torch in (("nearest", "nearest-exact"), ("linear", "bilinear")):
    resize(
        (0, 2, 4, 3),
        (0, 2, 7, 5),
        mode=_mode,
        torch=lambda x, m=_in_torch: F.interpolate(x, (7, 5), mode=m),
    )
    resize((2, 0, 4, 3), (2, 0, 7, 5), mode=_mode)
    resize((1, 1, 4, 3), (1, 1, 0, 5), mode=_mode)
# A region that only the run knows; outside of the image lies a constant.
for _mode, _roi in (
    ("linear", [0.0, 0.0, 0.25, 0.5, 1.0, 1.0, 0.75, 1.0]),
    ("linear", [0.0, 0.0, -0.25, 0.1, 1.0, 1.0, 1.5, 0.9]),
    ("nearest", [0.0, 0.0, 0.1, 0.3, 1.0, 1.0, 0.6, 0.8]),
    ("cubic", [0.0, 0.0, 0.25, 0.5, 1.0, 1.0, 0.75, 1.0]),
    ("linear", [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]),
):
    for _y in ((1, 2, 3, 4), (1, 2, 4, 5), (1, 2, 1, 7)):
        row(
            "Resize",
            floats(1, 2, 4, 5),
            exactly(_roi),
            None,
            ints(*_y),
            attrs={
                "mode": _mode,
                "coordinate_transformation_mode": "tf_crop_and_resize",
                "extrapolation_value": 3.0,
            },
            frozen=(1,),
            single=_mode == "cubic",
            note=str(_roi),
        )
        row(
            "steep.ResizeGrad",
            floats(*_y),
            ints(1, 2, 4, 5),
            exactly(_roi),
            None,
            ints(*_y),
            attrs={"mode": _mode, "coordinate_transformation_mode": "tf_crop_and_resize"},
            frozen=(2,),
            note=str(_roi),
        )


def grid(x, points, high=1.3, **attrs):
    """Points may lie outside, but neither on an element nor half-way between two."""
    n, _, *extents = x
    mode = attrs.get("mode", "linear")
    align = attrs.get("align_corners", 0)

    def places(rng):
        g = rng.uniform(-high, high, (n, *points, len(extents)))
        for i, extent in enumerate(reversed(extents)):
            at = (g[..., i] + 1) / 2 * (extent - 1) if align else ((g[..., i] + 1) * extent - 1) / 2
            at = np.floor(at) + 0.08 + 0.34 * (at - np.floor(at))
            if align and extent > 1:
                g[..., i] = at / (extent - 1) * 2 - 1
            elif not align:
                g[..., i] = (2 * at + 1) / extent - 1
        return g

    modes = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}

    def sample(t, g, a=attrs):
        return F.grid_sample(
            t, g, modes[a.get("mode", "linear")], a.get("padding_mode", "zeros"), bool(align)
        )

    # The reference brings far points of cubic sampling to the border first; PyTorch and ONNX
    # Runtime have the border for each tap. Steep does as they do.
    far = mode == "cubic" and attrs.get("padding_mode") == "border" and high >= 0.8
    planar = len(extents) > 1  # PyTorch does not sample vectors
    row(
        "GridSample",
        floats(*x),
        places,
        attrs=attrs,
        torch=sample if planar else None,
        # The reference divides by the extent less 1.
        reference=not (
            far or (align and 1 in extents and attrs.get("padding_mode") == "reflection")
        ),
        single=True,
        note=f"within {high}",
    )

    def gradient(dy, t, g):
        with torch.enable_grad():
            t, g = t.detach().requires_grad_(), g.detach().requires_grad_()
            return torch.autograd.grad(sample(t, g), (t, g), dy)

    add = functools.partial(
        row,
        "steep.GridSampleGrad",
        floats(n, x[1], *points),
        floats(*x),
        places,
        attrs=attrs,
        outputs=2,
    )
    add(seeded=(), torch=gradient if planar else None, note=f"within {high}")
    if x == (1, 2, 5, 4):
        add(note=f"twice, within {high}")


for _mode, _padding, _align in itertools.product(
    ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
):
    _attrs = {"mode": _mode, "padding_mode": _padding, "align_corners": _align}
    grid((2, 3, 4, 5), (2, 3), **_attrs)
    grid((1, 2, 5, 4), (2, 2), high=0.5, **_attrs)
    if _mode != "cubic":
        grid((1, 2, 3, 4, 5), (2, 1, 3), **_attrs)
for _x, _points in (
    ((2, 2, 5), (3,)),
    ((1, 1, 1), (1,)),
    ((1, 1, 1, 1), (2, 2)),
    ((1, 3, 1, 4), (1, 5)),
    ((3, 1, 6, 2), (1, 1)),
    ((1, 1, 2, 1, 3), (1, 2, 2)),
    ((2, 1, 2, 2, 2), (3, 1, 1)),
    ((0, 2, 3, 4), (2, 2)),
    ((2, 0, 3, 4), (2, 2)),
    ((1, 2, 3, 4), (0, 3)),
):
    for _mode, _padding in (("linear", "zeros"), ("nearest", "border"), ("linear", "reflection")):
        grid(_x, _points, mode=_mode, padding_mode=_padding)
        grid(_x, _points, mode=_mode, padding_mode=_padding, align_corners=1)
row(
    "GridSample",
    floats(1, 1, 3, 3),
    exactly([[[[np.nan, 0.0], [np.inf, 0.0], [0.3, -np.inf], [1e30, 0.1]]]]),
    attrs={"mode": "linear"},
    smooth=False,
    reference=False,
    frozen=(1,),
    torch=lambda x, g: (x * 0).sum() * torch.zeros(1, 1, 1, 4),  # all lie outside
    note="not finite",
)

for _x, _size in (
    ((1, 1, 1, 1), 1),
    ((1, 4, 1, 1), 2),
    ((2, 8, 2, 3), 2),
    ((3, 4, 1, 5), 2),
    ((1, 9, 2, 1), 3),
    ((1, 18, 1, 2), 3),
    ((1, 16, 2, 1), 4),
    ((2, 3, 2, 2), 1),
    ((0, 4, 2, 3), 2),
    ((2, 0, 2, 3), 2),
    ((2, 8, 0, 3), 2),
):
    row(
        "DepthToSpace",
        floats(*_x),
        attrs={"blocksize": _size, "mode": "CRD"},
        # PyTorch's gradient fails where there are no elements.
        torch=None if 0 in _x else lambda x, s=_size: F.pixel_shuffle(x, s),
    )
    row("DepthToSpace", floats(*_x), attrs={"blocksize": _size})
for _x, _size in (
    ((1, 1, 1, 1), 1),
    ((2, 3, 1, 5), 1),
    ((1, 1, 2, 2), 2),
    ((2, 3, 4, 6), 2),
    ((3, 2, 2, 4), 2),
    ((1, 2, 3, 6), 3),
    ((1, 1, 9, 3), 3),
    ((2, 1, 4, 8), 4),
    ((0, 2, 4, 2), 2),
    ((2, 0, 2, 4), 2),
    ((2, 1, 0, 4), 2),
):
    row("SpaceToDepth", floats(*_x), attrs={"blocksize": _size})
    row(
        "SpaceToDepth",
        floats(*_x),
        attrs={"blocksize": _size, "mode": "CRD"},
        torch=None if 0 in _x else lambda x, s=_size: F.pixel_unshuffle(x, s),
    )


def col2im(batch, channels, image, block, strides=(1, 1), pads=(0, 0), dilations=(1, 1)):
    how = block, dilations, pads, strides
    count = F.unfold(torch.zeros(1, 1, *image), *how).shape[-1]
    row(
        "Col2Im",
        floats(batch, channels * math.prod(block), count),
        ints(*image),
        ints(*block),
        attrs={"strides": [*strides], "pads": [*pads, *pads], "dilations": [*dilations]},
        torch=lambda x, *_: F.fold(x, image, *how),
    )


col2im(1, 1, (5, 5), (1, 5))
col2im(1, 1, (1, 1), (1, 1))
col2im(3, 2, (2, 6), (1, 1))
col2im(2, 2, (3, 4), (3, 4))
col2im(1, 3, (4, 3), (2, 2), strides=(2, 2), pads=(1, 1))
col2im(2, 1, (5, 1), (3, 1), strides=(2, 1))
col2im(1, 1, (3, 7), (2, 3), strides=(1, 3), pads=(1, 2), dilations=(2, 1))
col2im(0, 2, (3, 4), (2, 2))
row(
    "Col2Im",
    floats(2, 8, 6),
    ints(4, 5),
    ints(2, 2),
    attrs={"strides": [2, 2], "pads": [0, 1, 0, 0]},
    torch=lambda x, *_: F.fold(x, (4, 6), (2, 2), stride=2)[..., 1:],
)
row(
    "Col2Im",
    floats(1, 12, 8),
    ints(5, 6),
    ints(2, 3),
    attrs={"dilations": [1, 2], "strides": [1, 1]},
    torch=lambda x, *_: F.fold(x, (5, 6), (2, 3), dilation=(1, 2)),
)
# PyTorch folds images only.
row("Col2Im", floats(1, 8, 4), ints(3, 3, 2), ints(2, 2, 2))
row("Col2Im", floats(2, 6, 4), ints([6]), ints([3]))
row("Col2Im", floats(1, 4, 3), ints([5]), ints([2]), attrs={"strides": [2], "pads": [1, 0]})


def deform_conv(x, w, offset, bias=None, mask=None, **attrs):
    """One tap after the other, sampled by PyTorch."""
    n, channels, height, width = x.shape
    outputs, _, kh, kw = w.shape
    oh, ow = offset.shape[2:]
    moved, groups = attrs["offset_group"], attrs.get("group", 1)
    (sh, sw), (dh, dw) = attrs.get("strides", (1, 1)), attrs.get("dilations", (1, 1))
    top, left = attrs.get("pads", (0, 0))[:2]
    shifts = offset.reshape(n, moved, kh * kw, 2, oh, ow)
    images = x.reshape(n * moved, channels // moved, height, width)
    taps = []
    for k in range(kh * kw):
        y = torch.arange(oh, dtype=x.dtype)[:, None] * sh - top + k // kw * dh + shifts[:, :, k, 0]
        z = torch.arange(ow, dtype=x.dtype)[None] * sw - left + k % kw * dw + shifts[:, :, k, 1]
        grid = torch.stack([(2 * z + 1) / width - 1, (2 * y + 1) / height - 1], -1)
        tap = F.grid_sample(images, grid.flatten(0, 1), align_corners=False)
        if mask is not None:
            tap = tap * mask.reshape(n * moved, kh * kw, 1, oh, ow)[:, k]
        taps.append(tap.reshape(n, groups, channels // groups, oh, ow))
    weights = w.reshape(groups, outputs // groups, channels // groups, kh * kw)
    y = torch.einsum("goik,kngihw->ngohw", weights, torch.stack(taps))
    y = y.reshape(n, outputs, oh, ow)
    return y if bias is None else y + bias.reshape(-1, 1, 1)


def deform(x, w, out, offset_group=1, bias=False, mask=False, **attrs):
    taps = w[2] * w[3]
    attrs = {"offset_group": offset_group, **attrs}
    offset = floats(x[0], offset_group * taps * 2, *out, low=0.1, high=0.4)
    extras = [floats(w[0]) if bias else None]
    extras.append(floats(x[0], offset_group * taps, *out) if mask else None)
    while extras and extras[-1] is None:
        extras.pop()
    row(
        "DeformConv",
        floats(*x),
        floats(*w),
        offset,
        *extras,
        attrs=attrs,
        single=True,
        reference=1 not in x[2:],  # it divides by the extent less 1
        torch=lambda *t, a=attrs: deform_conv(*t, **a),
    )


deform((1, 1, 3, 3), (1, 1, 2, 2), (2, 2))
deform((2, 2, 4, 5), (3, 2, 2, 3), (4, 4), bias=True, pads=[1, 0, 0, 1])
deform((1, 4, 4, 4), (2, 2, 2, 2), (2, 2), group=2, offset_group=2, strides=[2, 2], mask=True)
deform((1, 2, 5, 5), (2, 2, 2, 2), (3, 3), dilations=[2, 2], bias=True, mask=True)
deform((1, 1, 1, 1), (1, 1, 1, 1), (1, 1))
deform((3, 2, 2, 3), (4, 2, 1, 1), (2, 3), mask=True)
deform((1, 3, 1, 6), (2, 3, 1, 3), (1, 4), bias=True)
deform((2, 1, 5, 2), (1, 1, 3, 1), (2, 2), strides=[2, 1])
deform((1, 6, 3, 3), (3, 2, 2, 2), (2, 2), group=3, offset_group=2, bias=True)
deform((0, 2, 3, 4), (2, 2, 2, 2), (2, 3), bias=True, mask=True)


def affine_grid(size, align, theta, _):
    if 0 in size:  # PyTorch refuses
        return theta.sum() * torch.zeros(size[0], *size[2:], len(size) - 2)
    return F.affine_grid(theta, list(size), bool(align))


for _size, _align in itertools.product(
    (
        (1, 1, 1, 1),
        (1, 1, 2, 3),
        (2, 3, 4, 2),
        (3, 1, 1, 5),
        (1, 2, 7, 1),
        (4, 1, 3, 3),
        (2, 1, 2, 3, 4),
        (1, 2, 3, 2, 2),
        (3, 1, 1, 2, 1),
        (0, 3, 2, 3),
        (2, 3, 0, 4),
        (0, 1, 2, 1, 3),
    ),
    (0, 1),
):
    _rank = len(_size) - 2
    row(
        "AffineGrid",
        floats(_size[0], _rank, _rank + 1),
        ints(*_size),
        attrs={"align_corners": _align},
        reference=False,  # in single precision; and it divides by zero where an extent is 1
        torch=None
        if _align and 1 in _size[2:] and 0 not in _size
        else functools.partial(affine_grid, _size, _align),
    )
