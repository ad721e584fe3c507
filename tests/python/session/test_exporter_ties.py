"""Weights that exporters merge or copy: training says so, and says nothing of others."""

from __future__ import annotations

import warnings

import numpy as np
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

import steep

RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((4, 3)).astype(np.float32)
ONES, ZEROS = np.ones(3, np.float32), np.zeros(3, np.float32)

CASES: dict[str, tuple[str, dict[str, np.ndarray], list[str]]] = {
    "normalisations that share": (
        "a = LayerNormalization(x, one, zero) y = LayerNormalization(a, one, zero)",
        {"one": ONES, "zero": ZEROS},
        ["'one', 'zero' as one weight"],
    ),
    "biases that share": (
        "p = Gemm(x, w, zero) r = Relu(p) y = Gemm(r, v, zero)",
        {"w": TABLE[:3], "v": TABLE[1:], "zero": ZEROS},
        ["'zero' as one weight"],
    ),
    "a variance that is a gain": (
        "y = BatchNormalization(x, one, zero, zero, one)",
        {"one": ONES, "zero": ZEROS},
        ["'one', 'zero' as one weight"],
    ),
    "a transposed weight": (
        "p = MatMul(x, w) y = MatMul(p, folded)",
        {"w": np.ascontiguousarray(TABLE.T), "folded": TABLE},
        ["'folded' is the transpose of 'w'"],
    ),
    "a transposed square": (
        "p = MatMul(x, w) y = MatMul(p, folded)",
        {"w": TABLE[:3], "folded": np.ascontiguousarray(TABLE[:3].T)},
        ["'folded' is the transpose of 'w'"],
    ),
    "a table of words and a head": (
        "p = MatMul(x, w) e = Gather(table, at) s = Add(p, e) y = Gemm<transB=1>(s, head)",
        {"w": TABLE[:3], "table": TABLE, "head": TABLE.copy(), "at": np.array([1])},
        ["'head' is a copy of 'table'"],
    ),
    # these are no doubt intended
    "trained weights that are shared": (
        "a = LayerNormalization(x, gain, bias) y = LayerNormalization(a, gain, bias)",
        {"gain": TABLE[0], "bias": TABLE[1]},
        [],
    ),
    "new layers that are copies": (
        "p = MatMul(x, w) y = MatMul(p, v)",
        {"w": TABLE[:3], "v": TABLE[:3].copy()},
        [],
    ),
    "new weights read once": (
        "a = LayerNormalization(x, one, zero) y = LayerNormalization(a, one2, zero2)",
        {"one": ONES, "zero": ZEROS, "one2": ONES.copy(), "zero2": ZEROS.copy()},
        [],
    ),
    "zeros of both shapes": (
        "p = MatMul(x, w) y = MatMul(p, v)",
        {"w": np.zeros((3, 2), np.float32), "v": np.zeros((2, 3), np.float32)},
        [],
    ),
}


def model_of(body: str, initializers: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[n,3] x) => (float[n,c] y) {{ {body} }}'
    )
    for name, array in initializers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize(("body", "initializers", "expected"), CASES.values(), ids=CASES)
def test_doubtful_ties(body: str, initializers: dict[str, np.ndarray], expected: list[str]) -> None:
    model = model_of(body, initializers)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        session = steep.TrainingSession(model, loss="mse")
    for found in (session.warnings, [str(w.message) for w in seen]):
        assert len(found) == len(expected)
        for text, part in zip(found, expected, strict=True):
            assert part in text and "optimize=False" in text


def test_a_frozen_copy_is_not_warned_of() -> None:
    body, initializers, _ = CASES["a table of words and a head"]
    session = steep.TrainingSession(model_of(body, initializers), loss="mse", frozen=["table"])
    assert session.warnings == []
