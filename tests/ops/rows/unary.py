"""Operators of one input, element by element."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from .row import SHAPES, bools, exactly, floats, table

ROWS, row = table()


def unary(
    op: str, function, attrs=None, *, low=-2.0, high=2.0, away=(), margin=0.05, **more
) -> None:
    for shape in SHAPES:
        x = floats(*shape, low=low, high=high, away=away, margin=margin)
        row(op, x, attrs=attrs or {}, torch=function, **more)


unary("Neg", torch.neg)
unary("Abs", torch.abs, away=(0,))
unary("Sqrt", torch.sqrt, low=0.1)
unary("Exp", torch.exp)
unary("Log", torch.log, low=0.1)
unary("Erf", torch.erf)
unary("Tanh", torch.tanh)
unary("Sigmoid", torch.sigmoid)
unary("Relu", torch.relu, away=(0,))
unary("LeakyRelu", F.leaky_relu, away=(0,))
unary("LeakyRelu", lambda x: F.leaky_relu(x, 0.25), {"alpha": 0.25}, away=(0,))
unary("Elu", F.elu, away=(0,))
unary("Elu", lambda x: F.elu(x, 1.5), {"alpha": 1.5}, away=(0,))
unary("Selu", F.selu, away=(0,))
unary("Celu", F.celu, away=(0,))
unary("Celu", lambda x: F.celu(x, 2.0), {"alpha": 2.0}, away=(0,))
unary("Softplus", F.softplus)
unary("Softsign", F.softsign, away=(0,))
unary("HardSigmoid", lambda x: (0.2 * x + 0.5).clamp(0, 1), low=-4, high=4, away=(-2.5, 2.5))
unary(
    "HardSigmoid",
    lambda x: (0.25 * x + 0.375).clamp(0, 1),
    {"alpha": 0.25, "beta": 0.375},
    low=-4,
    high=4,
    away=(-1.5, 2.5),
)
unary("HardSwish", F.hardswish, low=-4, high=4, away=(-3, 3))
unary("Mish", F.mish)
unary("Reciprocal", torch.reciprocal, away=(0,), margin=0.3)
unary("Sin", torch.sin)
unary("Cos", torch.cos)
unary("Tan", torch.tan, low=-1.2, high=1.2)
unary("Asin", torch.asin, low=-0.9, high=0.9)
unary("Acos", torch.acos, low=-0.9, high=0.9)
unary("Atan", torch.atan)
unary("Sinh", torch.sinh)
unary("Cosh", torch.cosh)
unary("Asinh", torch.asinh)
unary("Acosh", torch.acosh, low=1.2, high=4)
unary("Atanh", torch.atanh, low=-0.9, high=0.9)
unary("ThresholdedRelu", lambda x: F.threshold(x, 1.0, 0), away=(1,))
unary("ThresholdedRelu", lambda x: F.threshold(x, 0.5, 0), {"alpha": 0.5}, away=(0.5,))
unary("Gelu", F.gelu)
unary("Gelu", lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"})
unary("Identity", lambda x: x)
unary("Sign", torch.sign, away=(0,))
unary("Floor", torch.floor, away=(-2, -1, 0, 1, 2))
unary("Ceil", torch.ceil, away=(-2, -1, 0, 1, 2))
unary("Round", torch.round, away=(-1.5, -0.5, 0.5, 1.5))
row(
    "Round",
    exactly([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]),
    torch=torch.round,
    smooth=False,
    note="to even",
)
SPECIAL_NUMBERS = [math.nan, 0.0, -0.0, 1.5, math.inf, -math.inf]
SPECIAL = exactly(SPECIAL_NUMBERS)
row("IsInf", SPECIAL, attrs={"detect_negative": 0}, torch=torch.isposinf, smooth=False)
row("IsInf", SPECIAL, attrs={"detect_positive": 0}, torch=torch.isneginf, smooth=False)
for _shape in SHAPES:
    _x = exactly(np.resize(SPECIAL_NUMBERS, _shape))
    row("IsNaN", _x, torch=torch.isnan, smooth=False)
    row("IsInf", _x, torch=torch.isinf, smooth=False)
    row("Not", bools(*_shape), torch=torch.logical_not)

# At kinks the slope is PyTorch's choice.
for _op, _f in (("Abs", torch.abs), ("Relu", torch.relu), ("Sign", torch.sign), ("Selu", F.selu)):
    row(_op, exactly([-1.0, 0.0, 1.0]), torch=_f, smooth=False, note="kink")
row("LeakyRelu", exactly([-1.0, 0.0, 1.0]), torch=F.leaky_relu, smooth=False, note="kink")
row("HardSwish", exactly([-4.0, 4.0]), torch=F.hardswish, note="flat and straight")
row("HardSigmoid", exactly([-2.5, 2.5]), torch=lambda x: x * 0 + (x > 0), smooth=False, note="kink")
for _dtype in (np.int32, np.int64):
    row("Neg", np.array([3, -4, 0], _dtype), torch=torch.neg)
    row("Abs", np.array([3, -4, 0], _dtype), torch=torch.abs)
    row("Sign", np.array([3, -4, 0], _dtype), torch=torch.sign)
