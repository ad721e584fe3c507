"""Products of com.microsoft whose weights are packed in bytes."""

import numpy as np
import torch

from .contrib import ALONE, int32, of_contrib
from .row import floats, table

ROWS, _row = table()
row = of_contrib(_row)


def numbers_of(packed, bits, count):
    """The first `count` numbers of each row of bytes; the lowest bits come first."""
    rows = packed.reshape(-1, packed.shape[-1])
    parts = [(rows >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return torch.stack(parts, -1).reshape(len(rows), -1)[:, :count]


def nbits(a, n, bits, block, zeros="", groups=None, bias=False, flat=False, note=""):
    k = a[-1]
    blocks = -(-k // block)
    rng = np.random.default_rng(n * k + bits)
    packed = rng.integers(0, 256, (n, blocks, block * bits // 8), np.uint8)
    points = {
        "": None,
        "packed": rng.integers(0, 256, (n, -(-blocks * bits // 8)), np.uint8),
        "floats": floats(n, blocks, low=0, high=2**bits - 1),
    }[zeros]
    if flat and zeros == "packed":
        points = points.reshape(-1)

    def product(x, b, scales, zero=None, group=None, shift=None):
        q = numbers_of(b.reshape(n, -1), bits, blocks * block).to(x.dtype)
        if zero is None:
            zero = torch.full((n, blocks), 2.0 ** (bits - 1), dtype=x.dtype)
        elif not zero.dtype.is_floating_point:
            zero = numbers_of(zero.reshape(n, -1), bits, blocks).to(x.dtype)
        if group is None:
            group = torch.arange(blocks).repeat_interleave(block)
        group = group[:k].long()
        scales, zero = scales.reshape(n, blocks)[:, group], zero.reshape(n, blocks)[:, group]
        y = x @ ((q[:, :k] - zero) * scales).T
        return y if shift is None else y + shift

    row(
        "MatMulNBits",
        floats(*a),
        packed,
        floats(*((n * blocks,) if flat else (n, blocks)), low=0.05, high=0.2),
        points,
        None if groups is None else int32(*groups),
        floats(n) if bias else None,
        attrs={"K": k, "N": n, "bits": bits, "block_size": block},
        torch=product,
        note=note,
    )


for _bits in (2, 4, 8):
    nbits((3, 32), 5, _bits, 16)
    nbits((2, 3, 40), 4, _bits, 16, "packed", bias=True)
    nbits((3, 48), 3, _bits, 16, "floats", note=ALONE if _bits != 4 else "")
nbits((1, 70), 2, 4, 32, "packed", flat=True)
nbits((4, 16), 1, 4, 16)
nbits((0, 16), 3, 4, 16)
nbits((2, 128), 7, 4, 128, bias=True)
nbits((2, 33), 3, 4, 16, groups=[i % 3 for i in range(33)])
# ONNX Runtime 1.32 computes otherwise with both, even where g_idx says what holds without it.
nbits((2, 33), 3, 4, 16, "packed", groups=[min(i // 11, 2) for i in range(48)], note=ALONE)
