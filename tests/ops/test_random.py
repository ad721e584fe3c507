"""Operators that draw: their distributions, and that equal seeds draw equal numbers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from steep import _steep

COUNT = 20_000


def draw(node: str, *inputs: np.ndarray, declared: str = "") -> np.ndarray:
    text = f'<ir_version: 10, opset_import: ["" : 22]> g ({declared}) => (float[] y) {{ {node} }}'
    (y,) = _steep.run_model(parser.parse_model(text).SerializeToString(), list(inputs))
    return y


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_bernoulli(p: float) -> None:
    x = np.full(COUNT, p, np.float32)
    y = draw("y = Bernoulli <seed = 3.0> (x)", x, declared="float[n] x")
    assert set(np.unique(y)) <= {0.0, 1.0}
    assert y.mean() == pytest.approx(p, abs=0.02)


@pytest.mark.parametrize("like", [False, True])
def test_normal(like: bool) -> None:
    attrs = "mean = 2.0, scale = 0.5, seed = 1.0"
    if like:
        x = np.zeros((100, COUNT // 100), np.float32)
        y = draw(f"y = RandomNormalLike <{attrs}> (x)", x, declared="float[a, b] x")
        assert y.shape == x.shape
    else:
        y = draw(f"y = RandomNormal <{attrs}, shape = [{COUNT}]> ()")
    assert y.mean() == pytest.approx(2, abs=0.02)
    assert y.std() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("like", [False, True])
def test_uniform(like: bool) -> None:
    attrs = "low = -1.0, high = 3.0, seed = 1.0"
    if like:
        x = np.zeros(COUNT, np.float32)
        y = draw(f"y = RandomUniformLike <{attrs}> (x)", x, declared="float[n] x")
    else:
        y = draw(f"y = RandomUniform <{attrs}, shape = [{COUNT}]> ()")
    assert y.min() >= -1 and y.max() < 3
    np.testing.assert_allclose(np.quantile(y, [0.25, 0.5, 0.75]), [0, 1, 2], atol=0.1)


def test_multinomial() -> None:
    p = np.array([[0.5, 0.125, 0.375], [0.0, 1.0, 0.0]], np.float32)
    with np.errstate(divide="ignore"):
        logits = np.log(p)
    y = draw(
        f"y = Multinomial <sample_size = {COUNT}, seed = 1.0> (x)", logits, declared="float[n, k] x"
    )
    assert y.dtype == np.int32 and y.shape == (2, COUNT)
    for row, wanted in zip(y, p, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / COUNT, wanted, atol=0.02)


def test_equal_seeds_draw_equal_numbers() -> None:
    two, three = (draw(f"y = RandomUniform <seed = {s}.0, shape = [9]> ()") for s in (2, 3))
    again = draw("y = RandomUniform <seed = 2.0, shape = [9]> ()")
    np.testing.assert_array_equal(two, again)
    assert (two != three).any()
