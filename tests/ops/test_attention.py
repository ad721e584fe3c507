"""steep.Attention over many tiles, in bfloat16, with rows that are masked, on 1 and 2 threads."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from steep import _steep

SEED = np.array([5, 7], np.int64)
INFINITY = float("inf")

# batch, heads, queries, keys, width, width of values: one tile, several, and odd ends of each
SHAPES = [
    (2, 2, 35, 35, 100, 100),
    (2, 2, 128, 128, 64, 64),
    (1, 2, 300, 77, 20, 33),
    (1, 1, 130, 201, 17, 64),
]


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def problem(shape, bias=False, keep=False, dropout=False, **attrs):
    """Attributes, q k v, masks and dy."""
    b, h, sq, sk, d, dv = shape
    rng = np.random.default_rng(0)
    q, k, v = floats(rng, b, h, sq, d), floats(rng, b, h, sk, d), floats(rng, b, h, sk, dv)
    dy = floats(rng, b, h, sq, dv)
    attrs = {"scale": d**-0.5, **attrs} | ({"ratio": 0.3, "stream": 4} if dropout else {})
    masks = [
        floats(rng, h, sq, sk) if bias else None,
        rng.random((b, 1, sq, sk)) > 0.3 if keep else None,
        SEED if dropout else None,
    ]
    return attrs, [q, k, v], masks, dy


def forward(attrs, qkv, masks, decomposed=False):
    return _steep.evaluate_node("steep.Attention", [*qkv, *masks], attrs, 3, decomposed)


def gradient(attrs, qkv, masks, dy, y, most, total, decomposed=False):
    inputs = [dy, *qkv, y, most, total, *masks]
    return _steep.evaluate_node("steep.AttentionGrad", inputs, attrs, 3, decomposed)


def assert_close(ours, theirs, tolerance=4e-5):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("bias,keep,dropout,causal", [*itertools.product([0, 1], repeat=4)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tiles_agree_with_the_decomposition(shape, bias, keep, dropout, causal):
    # One masked value is finite, so that a masked score still counts.
    attrs, qkv, masks, dy = problem(shape, bias, keep, dropout, causal=causal, masked=-2.0)
    results = forward(attrs, qkv, masks, decomposed=True)
    assert_close(forward(attrs, qkv, masks), results)
    state = (dy, *results)
    assert_close(
        gradient(attrs, qkv, masks, *state), gradient(attrs, qkv, masks, *state, decomposed=True)
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dropout_drops_what_the_operator_drops(shape):
    attrs, (q, k, v), masks, _ = problem(shape, dropout=True)
    keep = _steep.evaluate_node(
        "steep.DropoutMask",
        [np.zeros((*q.shape[:3], k.shape[2]), np.float32), SEED],
        {"ratio": 0.3, "stream": 4},
        1,
        False,
    )[0]
    # Values that count keys, so that each dropped one shows in y: one key at a time.
    for j in (0, 1, k.shape[2] // 2, k.shape[2] - 1):
        one = np.zeros_like(v)
        one[:, :, j] = 1
        y, *_ = forward(attrs, [q, k, one], masks)
        np.testing.assert_array_equal(y[..., 0] != 0, keep[..., j])


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bfloat16_is_rounded_once(shape, dropout):
    attrs, qkv, masks, dy = problem(shape, bias=True, dropout=dropout)
    half = [x.astype(ml_dtypes.bfloat16) for x in qkv]
    wide = [x.astype(np.float32) for x in half]
    y, *state = forward(attrs, half, masks)
    wanted, *wanted_state = forward(attrs, wide, masks)
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y, wanted.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(state, wanted_state)
    dy = dy.astype(ml_dtypes.bfloat16)
    ours = gradient(attrs, half, masks, dy, y, *state)
    theirs = gradient(attrs, wide, masks, dy.astype(np.float32), y.astype(np.float32), *state)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b.astype(ml_dtypes.bfloat16))
    assert_close(ours, gradient(attrs, half, masks, dy, y, *state, decomposed=True), 2e-2)


@pytest.mark.parametrize("masked", [-INFINITY, -3.0e38])
@pytest.mark.parametrize("shape", [(1, 2, 5, 6, 4, 4), (1, 1, 140, 150, 16, 16)], ids=str)
@pytest.mark.parametrize("how", ["keep", "bias"])
@pytest.mark.parametrize("zero", [None, "zero_nan", "zero_shut"])
def test_rows_masked_as_a_whole(shape, how, masked, zero):
    """Masked by infinity such a row is NaN, or 0 if asked; by a finite number, a plain mean."""
    attrs, qkv, _, dy = problem(shape, masked=masked, **({zero: 1} if zero else {}))
    sq, sk = shape[2:4]
    keep = np.tril(np.ones((sq, sk), bool))
    keep[1] = False
    keep[sq - 2] = False
    masks = [np.where(keep, 0, masked).astype(np.float32), None, None]
    if how == "keep":
        masks = [None, keep, None]
    ours, theirs = forward(attrs, qkv, masks), forward(attrs, qkv, masks, decomposed=True)
    assert_close(ours, theirs)
    infinite = masked == -INFINITY
    row = ours[0][0, 0, 1]
    if infinite:
        assert (row == 0).all() if zero else np.isnan(row).all()
    else:
        np.testing.assert_allclose(row, qkv[2][0, 0].mean(0), atol=1e-5)
    if zero or not infinite:
        grads = gradient(attrs, qkv, masks, dy, *theirs)
        assert all(np.isfinite(g).all() for g in grads)
        if infinite:
            assert (grads[0][0, 0, 1] == 0).all()
        assert_close(grads, gradient(attrs, qkv, masks, dy, *theirs, decomposed=True))


def hidden_blocks(queries, keys):
    """Masks, True where a query sees a key, that hide blocks of 64 × 64 as a whole."""
    i, j = np.arange(queries)[:, None], np.arange(keys)[None]
    causal = i >= j
    documents = i // 50 == j // 50
    return {
        "everything is seen": causal | True,
        "causal": causal,
        "window": causal & (i - j < 40),
        "window to both sides": np.abs(i - j) < 70,
        "documents": documents,
        "documents, causal": documents & causal,
        "the first tokens and a window": causal & ((j < 3) | (i - j < 20)),
        "padded": (j < keys - 100) & (i >= 0),
        "padded in front": (j >= 100) & (i >= 0),
        "queries that see nothing": causal & (i // 64 != 1),
        "nothing is seen": causal & False,
    }


@pytest.mark.parametrize("masked", [-INFINITY, -3.0e38, -1e30, -64.0])
@pytest.mark.parametrize("how", ["keep", "bias", "both"])
@pytest.mark.parametrize("queries,keys", [(300, 300), (130, 257), (64, 128)])
@pytest.mark.parametrize("mask", hidden_blocks(1, 1))
def test_hidden_blocks(mask, queries, keys, how, masked):
    """Blocks that are left out count for nothing, and blocks that count are not left out."""
    shape = (2, 2, queries, keys, 8, 8)
    seen = hidden_blocks(queries, keys)[mask]
    attrs, qkv, _, dy = problem(shape, masked=masked, zero_shut=1)
    added = np.where(seen, 0, masked).astype(np.float32)
    # Another mask for the second sequence: blocks are told apart by it.
    keep = np.stack([seen, np.ones_like(seen)])[:, None]
    masks = {
        "keep": [None, keep, None],
        "bias": [added, None, None],
        "both": [np.stack([added, np.zeros_like(added)])[:, None], seen, None],
    }[how]
    theirs = forward(attrs, qkv, masks, decomposed=True)
    assert_close(forward(attrs, qkv, masks), theirs)
    grads = gradient(attrs, qkv, masks, dy, *theirs)
    assert_close(grads, gradient(attrs, qkv, masks, dy, *theirs, decomposed=True))


@pytest.mark.parametrize("low", [-INFINITY, -3.0e38])
def test_hidden_blocks_are_not_read(low):
    """What is hidden changes no bit, be it NaN: the kernels compute nothing of such blocks."""
    attrs, (q, k, v), _, dy = problem((1, 2, 256, 256, 16, 16))
    seen = hidden_blocks(256, 256)["window"]
    seen[:, 64:128] = False  # keys of a whole block
    seen[np.arange(256), np.arange(256) // 128 * 128] = True
    masks = [np.where(seen, 0, low).astype(np.float32), None, None]
    results = forward(attrs, [q, k, v], masks)
    grads = gradient(attrs, [q, k, v], masks, dy, *results)
    for x in (k, v):
        x[:, :, 64:128] = np.nan
    for a, b in zip(forward(attrs, [q, k, v], masks), results, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(gradient(attrs, [q, k, v], masks, dy, *results), grads, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (grads[1][:, :, 64:128] == 0).all() and (grads[2][:, :, 64:128] == 0).all()


def test_a_mask_with_nan_hides_nothing():
    attrs, qkv, *_ = problem((1, 1, 130, 130, 4, 4))
    bias = np.full((130, 130), -INFINITY, np.float32)
    bias[:, 0] = 0
    bias[3, 100] = np.nan
    masks = [bias, None, None]
    ours, theirs = forward(attrs, qkv, masks), forward(attrs, qkv, masks, decomposed=True)
    assert np.isnan(ours[0][0, 0, 3]).all()
    assert_close(ours[:1], theirs[:1])


@pytest.mark.parametrize("zero_shut", [0, 1])
def test_an_infinite_score_is_nan_as_in_softmax(zero_shut):
    attrs, (q, k, v), masks, _ = problem((1, 1, 3, 4, 2, 2), zero_shut=zero_shut)
    k[0, 0, 1] = np.inf
    q = np.abs(q)
    assert_close(
        forward(attrs, [q, k, v], masks)[:1], forward(attrs, [q, k, v], masks, decomposed=True)[:1]
    )


PRINT_BITS = """
import zlib
import numpy as np
from test_attention import SHAPES, forward, gradient, problem
for shape in [*SHAPES, (3, 1, 600, 90, 8, 8)]:
    attrs, qkv, masks, dy = problem(shape, True, True, True, causal=1, masked=-2.0)
    results = forward(attrs, qkv, masks)
    for x in (*results, *gradient(attrs, qkv, masks, dy, *results)):
        print(zlib.crc32(np.ascontiguousarray(x).tobytes()))
"""


def test_bits_do_not_depend_on_the_number_of_threads():
    def bits(threads):
        return subprocess.run(
            [sys.executable, "-c", PRINT_BITS],
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_DYNAMIC": "false"},
            cwd=os.path.dirname(__file__),
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    one = bits(1)
    assert len(one.split()) == 30
    assert bits(2) == one
    assert bits(3) == one
