"""Pooling of regions of images."""

import itertools
import math

import numpy as np
import torch

from .row import apart, exactly, floats, ints, table

ROWS, row = table()

ROIS = exactly([[0.3, 0.4, 3.1, 4.2], [1.2, 0.7, 4.6, 2.9], [-1.4, 2.3, 7.7, 5.8]])
for _mode, _sampling, _how in itertools.product(
    ("avg", "max"), (0, 2), ("half_pixel", "output_half_pixel")
):
    _attrs = {
        "mode": _mode,
        "sampling_ratio": _sampling,
        "coordinate_transformation_mode": _how,
        "output_height": 2,
        "output_width": 3,
        "spatial_scale": 0.75,
    }
    row("RoiAlign", apart(2, 2, 4, 5), ROIS, ints(1, 0, 1), attrs=_attrs, frozen=(1,))
    row(
        "steep.RoiAlignGrad",
        floats(3, 2, 2, 3),
        apart(2, 2, 4, 5),
        ROIS,
        ints(1, 0, 1),
        attrs=_attrs,
        frozen=(2,),
    )
for _x, _boxes, _images, _out in (
    ((1, 1, 1, 1), [[0.1, 0.2, 0.8, 0.9]], [0], (1, 1)),
    ((1, 1, 5, 4), [[0.3, 0.4, 3.1, 4.2]], [0], (1, 1)),
    ((1, 3, 2, 7), [[1.3, 0.4, 6.1, 1.2], [0.2, 0.3, 2.2, 0.8]], [0, 0], (1, 4)),
    ((3, 1, 6, 2), [[0.3, 0.4, 1.1, 5.2], [0.2, 1.3, 0.9, 2.7]], [2, 1], (3, 1)),
    ((2, 2, 3, 3), [[0.2, 0.3, 1.7, 2.6]] * 4, [1, 1, 0, 1], (2, 2)),
    ((2, 1, 4, 4), [[-3.2, -2.3, -1.7, -1.6], [6.2, 1.3, 7.7, 2.6]], [0, 1], (2, 2)),  # outside
    ((2, 3, 4, 5), [[0.6, 0.7, 3.3, 2.9]], [1], (4, 5)),
    ((2, 2, 3, 4), [], [], (2, 3)),
    ((0, 2, 3, 4), [], [], (2, 3)),
    ((1, 0, 3, 4), [[0.6, 0.7, 2.3, 1.9]], [0], (2, 3)),
):
    _places = exactly(np.reshape(_boxes, (-1, 4)))
    for _mode, _sampling in (("avg", 0), ("avg", 3), ("max", 0), ("max", 2)):
        _attrs = {
            "mode": _mode,
            "sampling_ratio": _sampling,
            "output_height": _out[0],
            "output_width": _out[1],
        }
        row("RoiAlign", apart(*_x), _places, ints(_images), attrs=_attrs, frozen=(1,))
        row(
            "steep.RoiAlignGrad",
            floats(len(_boxes), _x[1], *_out),
            apart(*_x),
            _places,
            ints(_images),
            attrs=_attrs,
            frozen=(2,),
        )
BINS = [[1, 0, 0, 3, 3], [0, 1, 1, 4, 2], [1, 2, 0, 9, 5]]


def max_roi_pool(x, regions, pooled_shape, spatial_scale=1.0):
    """Of each region [image, left, top, right, bottom] a grid of bins, which may overlap."""
    bins = []
    for image, *sides in regions.tolist():
        left, top, right, bottom = (math.floor(s * spatial_scale + 0.5) for s in sides)
        for (i, rows), (j, columns) in itertools.product(
            *([(i, count) for i in range(count)] for count in pooled_shape)
        ):
            height, width = max(bottom - top + 1, 1) / rows, max(right - left + 1, 1) / columns
            y0, y1 = math.floor(i * height) + top, math.ceil((i + 1) * height) + top
            x0, x1 = math.floor(j * width) + left, math.ceil((j + 1) * width) + left
            part = x[int(image), :, max(y0, 0) : max(y1, 0), max(x0, 0) : max(x1, 0)].flatten(1)
            bins.append(part.amax(1) if part.shape[1] else 0 * x[0].sum((1, 2)))
    flat = torch.stack(bins) if bins else x.sum() * x.new_zeros(0, x.shape[1])
    shape = len(regions), *pooled_shape, x.shape[1]
    return flat.reshape(shape).permute(0, 3, 1, 2)


for _x, _boxes, _attrs in (
    ((2, 2, 4, 5), BINS, {"pooled_shape": [2, 3]}),
    ((2, 2, 4, 5), BINS, {"pooled_shape": [1, 1], "spatial_scale": 0.5}),
    ((2, 2, 4, 5), BINS, {"pooled_shape": [3, 2], "spatial_scale": 1.0}),
    ((1, 1, 1, 1), [[0, 0, 0, 0, 0]], {"pooled_shape": [1, 1]}),
    ((1, 1, 1, 1), [[0, 0, 0, 0, 0]], {"pooled_shape": [2, 2]}),  # all bins are the one element
    ((1, 3, 2, 7), [[0, 1, 0, 5, 1], [0, 0, 1, 2, 1]], {"pooled_shape": [1, 4]}),
    ((3, 1, 6, 2), [[2, 0, 1, 1, 4]], {"pooled_shape": [4, 1]}),
    ((2, 1, 3, 3), [[1, 5, 5, 8, 8], [0, -4, -4, -2, -2]], {"pooled_shape": [2, 2]}),  # outside
    ((1, 2, 3, 4), [[0, 3, 2, 1, 1]] * 5, {"pooled_shape": [1, 2]}),  # it ends before it begins
    ((2, 2, 3, 4), [], {"pooled_shape": [2, 3]}),
    ((0, 2, 3, 4), [], {"pooled_shape": [2, 3]}),
    ((1, 0, 3, 4), [[0, 1, 0, 2, 2]], {"pooled_shape": [2, 1]}),
):
    _places = exactly(np.reshape(_boxes, (-1, 5)))
    row(
        "MaxRoiPool",
        apart(*_x),
        _places,
        attrs=_attrs,
        frozen=(1,),
        reference=False,  # there is none
        torch=lambda x, r, a=_attrs: max_roi_pool(x, r, **a),
    )
    row(
        "steep.MaxRoiPoolGrad",
        floats(len(_boxes), _x[1], *_attrs["pooled_shape"]),
        apart(*_x),
        _places,
        attrs=_attrs,
        frozen=(2,),
    )
