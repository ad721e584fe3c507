"""ONNX's operator Attention in a training step."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import helper

import steep

LENGTH, WIDTH = 48, 32


def session(dtype: str, mask: str) -> tuple[steep.TrainingSession, list[Any]]:
    """Return a session, and a batch in which one query has no key if the mask is fed."""
    fed = mask == "fed"
    causal = f"q_num_heads=4, kv_num_heads=4, is_causal={int(mask == 'causal')}"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 23]>
        g ({dtype}[2, {LENGTH}, {WIDTH}] x{f", {dtype}[{LENGTH}, {LENGTH}] m" * fed})
        => ({dtype}[2, {LENGTH}, {WIDTH}] y) {{
            q = MatMul(x, w)
            k = MatMul(x, u)
            y = Attention <{causal}> (q, k, x{", m" * fed})
        }}""")
    kind = model.graph.input[0].type.tensor_type.elem_type
    numpy = helper.tensor_dtype_to_np_dtype(kind)
    random = np.random.default_rng(0)
    for name in ("w", "u"):
        raw = random.normal(0, 0.2, (WIDTH, WIDTH)).astype(numpy).tobytes()
        model.graph.initializer.append(helper.make_tensor(name, kind, [WIDTH, WIDTH], raw, True))
    x = random.normal(size=(2, LENGTH, WIDTH)).astype(numpy)
    m = np.zeros((LENGTH, LENGTH), numpy)
    m[3] = -np.inf
    options = {} if dtype == "float" else {"master_weights": False}
    made = steep.TrainingSession(model, loss="mse", optimizer="sgd", lr=0.5, **options)
    return made, [x, m, x] if fed else [x, x]


@pytest.mark.parametrize("dtype", ["float", "bfloat16", "float16"])
@pytest.mark.parametrize("mask", ["none", "causal", "fed"])
def test_it_runs_in_tiles(dtype: str, mask: str) -> None:
    """Also in 16 bits, and with a mask that is known only when it is fed."""
    made, batch = session(dtype, mask)
    text = made.dump(*batch)
    assert "steep.Attention(" in text and "steep.AttentionGrad(" in text
    assert "Softmax(" not in text


@pytest.mark.parametrize("mask", ["none", "causal", "fed"])
def test_16_bits_are_rounded_once(mask: str) -> None:
    """Scores and probabilities are float32, as in PyTorch: a step is that of float32, rounded."""
    (whole, _), (half, narrow) = session("float", mask), session("bfloat16", mask)
    whole.set_weights({k: np.array(v).astype(np.float32) for k, v in half.weights().items()})
    wide = [np.asarray(a).astype(np.float32) for a in narrow]
    exact, found = whole.eval(*wide), half.eval(*narrow)
    difference = np.abs(np.array(found.outputs[0]).astype(np.float32) - np.array(exact.outputs[0]))
    assert difference.max() < 0.03
    before = {k: np.array(v).astype(np.float32) for k, v in half.weights().items()}
    whole.step(*wide), half.step(*narrow)
    for name, weight in half.weights().items():
        after = np.array(weight).astype(np.float32)
        assert np.isfinite(after).all()
        assert np.abs(after - np.array(whole.weights()[name])).max() < 2e-3
        assert (after != before[name]).any()
