"""Other operators of ONNX's that are taken apart into simpler ones."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F

from .row import SHAPES, exactly, floats, ints, table

ROWS, row = table()

DOUBLE = 11  # ONNX's number of float64
EPSILON = 2.0**-6

# --- gates ---------------------------------------------------------------------------------------

for _x in SHAPES:
    row("Swish", floats(*_x), torch=F.silu)
    row("SwiGLU", floats(*_x), floats(*_x), torch=lambda a, b: F.silu(a) * b)
for _alpha in (0.5, 2.0, -1.0, 0.0):
    row(
        "Swish",
        floats(2, 3),
        attrs={"alpha": _alpha},
        torch=lambda x, a=_alpha: x * torch.sigmoid(a * x),
    )
    row(
        "SwiGLU",
        floats(2, 3),
        floats(2, 3),
        attrs={"alpha": _alpha},
        torch=lambda x, y, a=_alpha: x * torch.sigmoid(a * x) * y,
    )
row("Swish", exactly([-1000.0, -90.0, 90.0, 1000.0]), smooth=False, torch=F.silu, note="far out")


def shrink(x, bias=0.0, lambd=0.5):
    """PyTorch's two shrinkings are Shrink with bias 0 and with bias lambd."""
    if bias == lambd:
        return F.softshrink(x, lambd)
    if bias == 0:
        return F.hardshrink(x, lambd)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0 * x))


for _x in SHAPES:
    row("Shrink", floats(*_x, away=(-0.5, 0.5)), torch=shrink)
for _bias, _lambd in ((0.75, 0.75), (0.0, 1.0), (0.5, 1.0), (-0.25, 0.25)):
    row(
        "Shrink",
        floats(3, 4, away=(-_lambd, _lambd)),
        attrs={"bias": _bias, "lambd": _lambd},
        torch=lambda x, b=_bias, e=_lambd: shrink(x, b, e),
    )
for _bias in (0.0, 0.5):
    row(
        "Shrink",
        exactly([-0.5, 0.5, 0.0]),
        attrs={"bias": _bias},
        smooth=False,
        torch=lambda x, b=_bias: shrink(x, b),
        note="kinks",
    )

# --- normalisations ------------------------------------------------------------------------------

for _x, _axis, _scale in (
    ((5,), -1, (5,)),
    ((1,), 0, (1,)),
    ((2, 3), -1, (3,)),
    ((2, 3), 0, (2, 3)),
    ((2, 3), 1, (1,)),
    ((2, 3, 4), -1, (4,)),
    ((2, 3, 4), 1, (3, 4)),
    ((2, 3, 4), -2, (3, 1)),
    ((2, 3, 4), 0, (4,)),
    ((2, 3, 4), 2, ()),
    ((0, 4), -1, (4,)),
    ((2, 1, 2, 3), 1, (1, 2, 3)),
):
    row(
        "RMSNormalization",
        floats(*_x),
        floats(*_scale),
        attrs={"axis": _axis, "epsilon": EPSILON, "stash_type": DOUBLE},
        reference=False,  # it computes in single precision only
        torch=lambda x, s, a=_axis: F.rms_norm(x, x.shape[a:], None, EPSILON) * s,
    )
    row(
        "RMSNormalization",
        floats(*_x),
        floats(*_scale),
        attrs={"axis": _axis, "epsilon": EPSILON},
        single=True,
        smooth=False,
    )
row(
    "RMSNormalization",
    exactly([[0.0, 0.0], [1e-4, 0.0]]),
    floats(2),
    attrs={"stash_type": DOUBLE},
    reference=False,
    smooth=False,
    torch=lambda x, s: F.rms_norm(x, (2,), s, 1e-5),
    note="next to 0",
)


def mean_variance(x, axes=(0, 2, 3)):
    return (x - x.mean(axes, True)) / (x.std(axes, unbiased=False, keepdim=True) + 1e-9)


for _x, _axes in (
    ((2, 3, 2, 2), None),
    ((1, 1, 2, 2), None),
    ((3, 2, 1, 4), None),
    ((5,), [0]),
    ((2, 3), [1]),
    ((2, 3), [0, 1]),
    ((2, 3), [-1]),
    ((4, 1, 3), [0, 2]),
    ((2, 3, 4), [1]),
    ((2, 3, 4), [-3, -1]),
    ((3, 2, 2, 2, 2), [0, 2, 3, 4]),
    ((0, 2, 3, 3), None),
    ((2, 0, 3, 3), None),
    ((2, 3, 0), [0, 2]),
    ((2, 0), [1]),
):
    row(
        "MeanVarianceNormalization",
        floats(*_x),
        attrs={} if _axes is None else {"axes": _axes},
        reference=False,  # its constants are single, whatever x is
        torch=lambda x, a=_axes: mean_variance(x, a or (0, 2, 3)),
    )
row(
    "MeanVarianceNormalization",
    exactly(1000 + np.arange(8.0).reshape(2, 1, 2, 2) / 4),
    reference=False,  # it subtracts squares, of which nothing is left in single precision
    smooth=False,
    torch=mean_variance,
    note="far from 0",
)
row(
    "MeanVarianceNormalization",
    exactly(np.full((2, 2, 1, 2), 3.0)),
    reference=False,
    smooth=False,
    torch=mean_variance,
    note="constant",
)

# --- Gemm ----------------------------------------------------------------------------------------


def gemm(a, b, c=None, alpha=1.0, beta=1.0, transA=0, transB=0):
    a, b = a.T if transA else a, b.T if transB else b
    y = alpha * (a @ b)
    return y if c is None else y + beta * c


for _a, _b, _more, _attrs in (
    ((1, 1), (1, 1), [], {}),
    ((2, 3), (3, 4), [], {}),
    ((2, 3), (3, 4), [(2, 4)], {}),
    ((2, 3), (3, 4), [(4,)], {}),
    ((2, 3), (3, 4), [(2, 1)], {"beta": 0.5}),
    ((2, 3), (3, 4), [(1, 4)], {"alpha": 2.0}),
    ((2, 3), (3, 4), [()], {"alpha": 0.25, "beta": -1.5}),
    ((3, 2), (3, 4), [(4,)], {"transA": 1}),
    ((2, 3), (4, 3), [(4,)], {"transB": 1}),
    ((3, 2), (4, 3), [(2, 4)], {"transA": 1, "transB": 1, "alpha": 0.5}),
    ((2, 3), (3, 4), [(4,)], {"beta": 0.0}),
    ((0, 3), (3, 4), [(4,)], {}),
    ((2, 0), (0, 4), [(4,)], {}),
):
    row(
        "Gemm",
        floats(*_a),
        floats(*_b),
        *(floats(*c) for c in _more),
        attrs=_attrs,
        torch=lambda *t, a=_attrs: gemm(*t, **a),
    )

# --- CenterCropPad -------------------------------------------------------------------------------


def center(x, shape, axes=None):
    for axis, size in zip(axes or range(x.dim()), shape.tolist(), strict=True):
        cut = x.shape[axis] - size
        if cut > 0:
            x = x.narrow(axis, cut // 2, size)
        elif cut < 0:
            pad = [0] * (2 * x.dim())
            at = 2 * (x.dim() - 1 - axis % x.dim())
            pad[at : at + 2] = [-cut // 2, -cut - -cut // 2]
            x = F.pad(x, pad)
    return x


for _x, _shape, _axes in (
    ((5,), [3], None),
    ((5,), [2], None),
    ((3,), [5], None),
    ((3,), [6], None),
    ((1,), [1], None),
    ((2, 3), [4, 1], None),
    ((4, 5), [2, 8], None),
    ((2, 3, 4), [6], [1]),
    ((2, 3, 4), [1, 7], [2, 0]),
    ((2, 3, 4), [2, 2], [-1, -2]),
    ((2, 0), [2, 2], None),
    ((2, 3), [0, 2], None),
):
    row(
        "CenterCropPad",
        floats(*_x),
        ints(_shape),
        attrs={} if _axes is None else {"axes": _axes},
        torch=lambda x, s, a=_axes: center(x, s, a),
    )

# --- others --------------------------------------------------------------------------------------


def dynamic(x):
    """Only the scale is differentiable: the largest and the smallest element move it."""
    reach = torch.cat([x.flatten(), x.new_zeros(1)])
    low, high = reach.min(), reach.max()
    scale = (torch.where(high == low, 1, high - low) / 255).to(x.dtype)
    zero = torch.round(torch.clamp(-low / scale, 0, 255))
    y = torch.clamp(torch.round(x / scale) + zero, 0, 255)
    return y.to(torch.uint8), scale, zero.to(torch.uint8)


for _values in (
    [[-1.0, 2.0, 0.5]],
    [[0.25, 2.0], [0.9, 0.5]],
    [-3.0, -0.5],
    1.5,
    [-2.0],
    [[1.0], [-4.0], [0.7]],
    [[[-1.0, 0.25]], [[3.0, 0.75]]],
    [[[[2.0, -0.5]]]],
    np.linspace(-3, 9.1, 17),
    [0.0, 0.0, 0.0],
    [],
    np.zeros((2, 0)),
):
    _x = np.asarray(_values)
    row(
        "DynamicQuantizeLinear",
        exactly(_values),
        outputs=3,
        single=True,
        within_single=True,
        reference=_x.size > 0,  # it wants a largest element
        torch=dynamic,
        note=str(_x.tolist()),
    )

WINDOWS = {
    "HannWindow": torch.hann_window,
    "HammingWindow": lambda *a, **k: torch.hamming_window(*a, alpha=25 / 46, beta=21 / 46, **k),
    "BlackmanWindow": torch.blackman_window,
}
for _op, _window in WINDOWS.items():
    for _size, _periodic in itertools.product((0, 1, 2, 3, 4, 5, 8, 10, 17, 64), (0, 1)):
        row(
            _op,
            np.array(_size, np.int64),
            attrs={"periodic": _periodic},
            single=True,
            within_single=True,
            # PyTorch makes an exception of one element: 1. ONNX's formulas do not.
            torch=None
            if _size == 1
            else lambda n, p=_periodic, f=_window: f(int(n), periodic=bool(p)),
        )
