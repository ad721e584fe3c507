"""Normalisations of images."""

import torch.nn.functional as F

from .row import exactly, floats, table

ROWS, row = table()

EPSILON = 2.0**-6
BOUNDS = -0.5, 0.75
SHAPES = [
    (2, 1, 1),
    (3, 4),
    (1, 2, 5),
    (2, 3, 9),
    (1, 1, 7, 1),
    (2, 3, 4, 4),
    (4, 2, 1, 9),
    (3, 1, 2, 5),
    (2, 2, 2, 3, 4),
    (1, 3, 1, 2, 1),
]
EMPTY = [(0, 4), (0, 2, 3), (2, 3, 0), (2, 0, 3), (0, 1, 2, 9), (0, 2, 2, 1, 3)]


def batch_norm(x, scale, bias, epsilon=EPSILON):
    axes = [i for i in range(x.dim()) if i != 1]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    mean, variance = x.mean(axes), x.var(axes, unbiased=False)
    unit = (x - mean.view(shape)) * (variance.view(shape) + epsilon).rsqrt()
    return unit * scale.view(shape) + bias.view(shape), mean, variance


def batch_norm_grad(dy, x, scale, mean, variance):
    axes = [i for i in range(x.dim()) if i != 1]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    inv = (variance + EPSILON).rsqrt()
    unit = (x - mean.view(shape)) * inv.view(shape)
    along = unit * (dy * unit).mean(axes).view(shape)
    dx = (scale * inv).view(shape) * (dy - dy.mean(axes).view(shape) - along)
    return dx, (dy * unit).sum(axes), dy.sum(axes)


def activate(y, name):
    return F.relu(y) if name == "Relu" else y.clamp(*BOUNDS)


def activated(x, scale, bias, name):
    y, mean, variance = batch_norm(x, scale, bias)
    return activate(y, name), mean, variance


def activated_grad(dy, x, scale, mean, variance, bias, name):
    y = inference(x, scale, bias, mean, variance)
    low, high = (0, float("inf")) if name == "Relu" else BOUNDS
    return batch_norm_grad(dy * ((y > low) & (y < high)), x, scale, mean, variance)


def inference(x, scale, bias, mean, variance):
    scale, bias, mean, variance = (
        v.reshape(-1, *[1] * (x.dim() - 2)) for v in (scale, bias, mean, variance)
    )
    return (x - mean) * (variance + EPSILON).rsqrt() * scale + bias


def training(x, scale, bias, mean, variance, momentum):
    y, m, v = batch_norm(x, scale, bias)
    if x.numel() == 0:  # nothing to learn from; ONNX's reference has NaN
        return y, mean, variance
    return y, mean * momentum + m * (1 - momentum), variance * momentum + v * (1 - momentum)


def instance_norm(x, scale, bias):
    axes, shape = tuple(range(2, x.dim())), [-1, *[1] * (x.dim() - 2)]
    variance = x.var(axes, unbiased=False, keepdim=True)
    unit = (x - x.mean(axes, True)) * (variance + EPSILON).rsqrt()
    return unit * scale.view(shape) + bias.view(shape)


def group_norm(x, scale, bias, groups):
    if x.numel() == 0:  # PyTorch has NaN for the gradient of scale where planes are empty
        return x * scale.view(1, -1, *[1] * (x.dim() - 2)) + bias.view(1, -1, *[1] * (x.dim() - 2))
    return F.group_norm(x, groups, scale, bias, EPSILON)


for _x in SHAPES + EMPTY:
    _c = _x[1]
    _operands = floats(*_x), floats(_c), floats(_c)
    _statistics = floats(_c), floats(_c, low=0.5)
    row(
        "steep.BatchNorm",
        *_operands,
        attrs={"epsilon": EPSILON},
        outputs=3,
        smooth=0 not in _x,  # the statistics of nothing are NaN
        torch=batch_norm,
    )
    row(
        "steep.BatchNormGrad",
        floats(*_x),
        floats(*_x),
        floats(_c),
        *_statistics,
        attrs={"epsilon": EPSILON},
        outputs=3,
        torch=batch_norm_grad,
    )
    for _name in ("Relu", "Clip", "Hardtanh"):
        _attrs = {"epsilon": EPSILON, "activation": _name, "low": BOUNDS[0], "high": BOUNDS[1]}
        row(
            "steep.BatchNorm",
            *_operands,
            attrs=_attrs,
            outputs=3,
            smooth=0 not in _x,
            torch=lambda *t, name=_name: activated(*t, name),
            note=_name,
        )
        row(
            "steep.BatchNormGrad",
            floats(*_x),
            floats(*_x),
            floats(_c),
            *_statistics,
            floats(_c),
            attrs=_attrs,
            outputs=3,
            torch=lambda *t, name=_name: activated_grad(*t, name),
            note=_name,
        )
    row(
        "BatchNormalization",
        *_operands,
        *_statistics,
        attrs={"epsilon": EPSILON},
        torch=inference,
    )
    row(
        "BatchNormalization",
        *_operands,
        *_statistics,
        attrs={"epsilon": EPSILON, "training_mode": 1, "momentum": 0.75},
        outputs=3,
        reference=0 not in _x,
        torch=lambda *t: training(*t, 0.75),
    )
    if len(_x) > 2:
        row(
            "InstanceNormalization",
            *_operands,
            attrs={"epsilon": EPSILON},
            torch=instance_norm,
        )
row(
    "steep.BatchNorm",
    exactly([[[1000.0, 1000.5, 999.5] * 3], [[1000.25, 1000.75, 999.0] * 3]]),
    floats(1),
    floats(1),
    attrs={"epsilon": EPSILON},
    outputs=3,
    seeded=(0,),
    torch=batch_norm,
    note="far from 0",
)

for _x, _groups in (
    ((2, 4), 2),
    ((3, 5), 5),
    ((1, 1, 6), 1),
    ((1, 4, 3), 4),
    ((2, 6, 1), 2),
    ((2, 6, 3, 4), 3),
    ((3, 2, 1, 5), 1),
    ((1, 3, 4, 3), 3),
    ((2, 4, 2, 2, 2), 1),
    ((0, 4), 2),
    ((0, 6, 2, 3), 3),
    ((2, 4, 0), 2),
):
    row(
        "GroupNormalization",
        floats(*_x),
        floats(_x[1]),
        floats(_x[1]),
        attrs={"num_groups": _groups, "epsilon": EPSILON, "stash_type": 11},
        reference=0 not in _x,
        torch=lambda *t, g=_groups: group_norm(*t, g),
    )

for _x, _axis in (
    ((1,), 0),
    ((5,), 0),
    ((2, 3), -1),
    ((7, 1), 0),
    ((4, 1), 1),
    ((2, 3, 4), 1),
    ((2, 3, 4), -3),
    ((1, 2, 3, 2), 2),
    ((2, 2, 1, 2, 3), 4),
    ((0,), 0),
    ((0, 3), -1),
    ((2, 0), 1),
    ((3, 0, 2), 0),
):
    for _p in (1, 2):
        row(
            "LpNormalization",
            floats(*_x, away=(0,)),
            attrs={"axis": _axis, "p": _p},
            reference=_p == 2,  # it forgets the sign
            torch=lambda x, a=_axis, p=_p: x / x.norm(p, a, True),
        )
row(
    "LpNormalization",
    exactly([[0.0, 0.0], [3.0, 4.0]]),
    attrs={"axis": 1},
    smooth=False,
    note="zeros",
)


def local_response(x, size, alpha, beta, bias):
    pads = [0, 0] * (x.dim() - 2) + [(size - 1) // 2, size // 2]
    square = F.pad(x * x, pads)
    mean = sum(square.narrow(1, i, x.shape[1]) for i in range(size)) / size
    return x / (bias + alpha * mean) ** beta


for _x, _size in (
    ((3, 4), 3),
    ((1, 1, 1), 1),
    ((1, 1, 4), 5),
    ((2, 5, 3), 3),
    ((3, 4, 1), 2),
    ((1, 5, 2, 2), 2),
    ((2, 3, 2, 2), 5),
    ((1, 7, 1, 3), 4),
    ((1, 4, 2, 1, 2), 3),
    ((0, 3, 2, 2), 3),
    ((2, 3, 0), 2),
    ((2, 0, 3), 3),
):
    row(
        "LRN",
        floats(*_x),
        attrs={"size": _size, "alpha": 0.5, "beta": 0.75, "bias": 1.5},
        reference=False,  # it looks at the first channels only
        torch=lambda x, s=_size: local_response(x, s, 0.5, 0.75, 1.5),
    )
