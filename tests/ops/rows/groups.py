"""Products of groups of rows, each with a matrix of its own."""

import torch

from .row import floats, ints, table

ROWS, row = table()

# Where the groups end, the number of rows, and the extents of the products.
GROUPS = (
    ([2, 5], 5, 4, 3),
    ([0, 3, 3, 6], 8, 3, 5),
    ([4], 4, 1, 1),
    ([1, 2, 3], 3, 2, 33),
    ([0, 0], 3, 2, 2),
    ([0, 0], 0, 3, 2),
    ([2, 4], 4, 0, 3),
    ([2, 4], 4, 3, 0),
    ([7, 40], 40, 17, 9),
    ([5, 5, 5, 6, 9], 10, 8, 16),
    ([33], 35, 5, 4),
)


def pairs(offsets):
    """Begin and end of each group."""
    ends = offsets.tolist()
    return zip([0, *ends], ends, strict=False)


def product(x, w, offsets, transposed=False):
    w = w.mT if transposed else w
    parts = [x[b:e] @ m for (b, e), m in zip(pairs(offsets), w, strict=True)]
    return torch.cat([*parts, x.new_zeros(len(x) - int(offsets[-1]), w.shape[2])])


def outer_product(a, b, offsets):
    return torch.stack([a[begin:end].mT @ b[begin:end] for begin, end in pairs(offsets)])


for _ends, _rows, _k, _n in GROUPS:
    _count = len(_ends)
    row(
        "steep.GroupedMatMul", floats(_rows, _k), floats(_count, _k, _n), ints(_ends), torch=product
    )
    row(
        "steep.GroupedMatMul",
        floats(_rows, _k),
        floats(_count, _n, _k),
        ints(_ends),
        attrs={"transposed": 1},
        torch=lambda x, w, ends: product(x, w, ends, True),
    )
    row(
        "steep.GroupedOuterProduct",
        floats(_rows, _k),
        floats(_rows, _n),
        ints(_ends),
        torch=outer_product,
    )
