"""The operators' rows on another device: by its kernels, and what falls to the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from each_row import each_row
from nodes import TABLE, evaluate, gradients, is_float
from rows import ROWS

import steep
from steep import _steep

MIRROR = Path(__file__).parents[2] / "build" / "release" / "mirror" / "libmirror.so"
# Random numbers are drawn by run; loops and the like have their own tests.
CHOSEN = [r for r in ROWS if not r.double and r.op in TABLE]


@pytest.fixture(scope="module")
def mirror():
    assert MIRROR.exists(), "examples/provider is not built: run `make build`"
    name = steep.register_provider(MIRROR)
    yield [_steep.ProviderChoice(name, {"memory_mb": "256"})]
    _steep.set_default_providers([])


def seeds(row, outputs):
    rng = np.random.default_rng(1)
    return [
        rng.uniform(-1, 1, y.shape).astype(y.dtype)
        if is_float(y) and (row.seeded is None or i in row.seeded)
        else None
        for i, y in enumerate(outputs)
    ]


def results(row, arrays, providers):
    _steep.set_default_providers(providers)
    try:
        outputs = evaluate(row, arrays)
        wanted = [i for i, x in enumerate(arrays) if is_float(x) and i not in row.frozen]
        given = seeds(row, outputs)
        backward = TABLE[row.op]["has_vjp"] and wanted and any(s is not None for s in given)
        found = gradients(row, arrays, given, wanted) if backward else {}
        return outputs, list(found.values())
    finally:
        _steep.set_default_providers([])


@each_row(CHOSEN)
def test_a_row_on_another_device(row, mirror):
    arrays = row.arrays(np.float32)
    here, there = results(row, arrays, []), results(row, arrays, mirror)
    for a, b in zip(here, there, strict=True):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None)
            if x is None:
                continue
            assert x.shape == y.shape
            if is_float(x):
                np.testing.assert_allclose(y, x, rtol=2e-5, atol=2e-5)
            else:
                np.testing.assert_array_equal(y, x)
