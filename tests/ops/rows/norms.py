"""Normalisations of images."""

import torch.nn.functional as F

from .row import exactly, floats, table

ROWS, row = table()

EPSILON = 2.0**-6
SHAPES = [(2, 1, 1), (3, 4), (1, 2, 5), (2, 3, 9), (2, 3, 4, 4), (4, 2, 1, 9), (2, 2, 2, 3, 4)]


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


def inference(x, scale, bias, mean, variance):
    scale, bias, mean, variance = (
        v.reshape(-1, *[1] * (x.dim() - 2)) for v in (scale, bias, mean, variance)
    )
    return (x - mean) * (variance + EPSILON).rsqrt() * scale + bias


def training(x, scale, bias, mean, variance, momentum):
    y, m, v = batch_norm(x, scale, bias)
    return y, mean * momentum + m * (1 - momentum), variance * momentum + v * (1 - momentum)


for _x in SHAPES:
    _c = _x[1]
    _operands = floats(*_x), floats(_c), floats(_c)
    _statistics = floats(_c), floats(_c, low=0.5)
    row(
        "steep.BatchNorm",
        *_operands,
        attrs={"epsilon": EPSILON},
        outputs=3,
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
        torch=lambda *t: training(*t, 0.75),
    )
    if len(_x) > 2:
        row(
            "InstanceNormalization",
            *_operands,
            attrs={"epsilon": EPSILON},
            torch=lambda x, s, b: (
                batch_norm(
                    x.reshape(1, -1, *x.shape[2:]),
                    s.new_ones(x.shape[0] * x.shape[1]),
                    b.new_zeros(x.shape[0] * x.shape[1]),
                )[0].reshape(x.shape)
                * s.view(-1, *[1] * (x.dim() - 2))
                + b.view(-1, *[1] * (x.dim() - 2))
            ),
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
row(
    "BatchNormalization",
    floats(0, 2, 3),
    floats(2),
    floats(2),
    floats(2),
    floats(2, low=0.5),
    attrs={"epsilon": EPSILON},
    torch=inference,
)

for _x, _groups in (((2, 4), 2), ((1, 4, 3), 4), ((2, 6, 3, 4), 3), ((2, 4, 2, 2, 2), 1)):
    row(
        "GroupNormalization",
        floats(*_x),
        floats(_x[1]),
        floats(_x[1]),
        attrs={"num_groups": _groups, "epsilon": EPSILON, "stash_type": 11},
        torch=lambda x, s, b, g=_groups: F.group_norm(x, g, s, b, EPSILON),
    )

for _x, _axis in (((5,), 0), ((2, 3), -1), ((2, 3, 4), 1), ((2, 3, 4), -3), ((1, 2, 3, 2), 2)):
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
    square = F.pad((x * x).flatten(2).unsqueeze(1), (0, 0, (size - 1) // 2, size // 2))
    mean = F.avg_pool2d(square, (size, 1), 1).reshape(x.shape)
    return x / (bias + alpha * mean) ** beta


for _x, _size in (
    ((1, 1, 1), 1),
    ((2, 5, 3), 3),
    ((1, 5, 2, 2), 2),
    ((2, 3, 2, 2), 5),
    ((1, 4, 2, 1, 2), 3),
):
    row(
        "LRN",
        floats(*_x),
        attrs={"size": _size, "alpha": 0.5, "beta": 0.75, "bias": 1.5},
        reference=False,  # it looks at the first channels only
        torch=lambda x, s=_size: local_response(x, s, 0.5, 0.75, 1.5),
    )
