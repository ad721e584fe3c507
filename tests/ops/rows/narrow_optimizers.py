"""Optimizer steps whose moments have 8 bits; tests/ops/test_narrow_moments.py has those of 16."""

from functools import partial

import numpy as np
import torch
from narrow_floats import BLOCK, halves, narrow, random_words, widen

from .optimizers import ADAM, LR, SCALE, SHAPES, lamb, torch_adam, torch_sgd
from .row import integer, table

ROWS, row = table()

SEED, RUN, STREAM = 1 << 35 | 7, 3, -(1 << 30) - 2
FORMS = (np.int8, np.uint8)


def _in_torch(in_torch, count, param, grad, lr, step, scale, *rest, **attrs):
    """The update in float32 by PyTorch, on moments that NumPy widens and narrows."""
    pairs = zip(rest[:count], rest[count : 2 * count], strict=True)
    moments = [torch.tensor(widen(m.numpy(), s.numpy())) for m, s in pairs]
    new, *states = in_torch(param, grad, lr, step, scale, *moments, **attrs)
    words = random_words(SEED, RUN, STREAM, param.numel())
    kept = [narrow(m.numpy(), FORMS[i], halves(words, second=i == 1)) for i, m in enumerate(states)]
    return new, *(torch.tensor(part) for parts in zip(*kept, strict=True) for part in parts)


def narrow_step(op, in_torch, count, shape, attrs, scale=None):
    rng = np.random.default_rng(sum(shape) + count)
    param, grad = (rng.uniform(-2, 2, shape).astype(np.float32) for _ in range(2))
    before = [narrow(rng.uniform(-2 if i == 0 else 0, 2, shape), FORMS[i]) for i in range(count)]
    row(
        op,
        param,
        grad,
        LR,
        integer(5),
        scale,
        *(part for parts in zip(*before, strict=True) for part in parts),
        np.array([SEED, RUN]),
        attrs={**attrs, "stream": STREAM},
        outputs=1 + 2 * count,
        smooth=False,
        torch=partial(_in_torch, in_torch, count, **attrs),
    )


SGD = {"momentum": 0.875, "weight_decay": 0.125}
for _shape in (*SHAPES, (3, BLOCK), (1500,)):
    narrow_step("steep.NarrowSGD", torch_sgd, 1, _shape, SGD, SCALE)
    narrow_step("steep.NarrowLamb", lamb, 2, _shape, {**ADAM, "weight_decay": 0.125})
    for _decoupled in (0, 1, 2):
        _attrs = {**ADAM, "weight_decay": 0.125, "decoupled": _decoupled}
        narrow_step("steep.NarrowAdam", torch_adam, 2, _shape, _attrs, SCALE)
