"""Models of bfloat16: no array of a vocabulary's size is copied to float32."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

import steep

TOKENS, WORDS, WIDTH = 512, 50257, 256
SCORES, TABLE, MIB = TOKENS * WORDS * 2, WORDS * WIDTH * 2, 1 << 20


def language_model() -> onnx.ModelProto:
    """Scores of the words from an embedding by the same table."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("Tanh", ["x"], ["h"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "turned"], ["scores"]),
    ]
    raw = np.random.default_rng(0).integers(0, 64, TABLE, np.uint8).tobytes()
    table = helper.make_tensor("table", TensorProto.BFLOAT16, [WORDS, WIDTH], raw, True)
    graph = helper.make_graph(
        nodes,
        "model",
        [info("ids", TensorProto.INT64, [1, TOKENS])],
        [info("scores", TensorProto.BFLOAT16, [1, TOKENS, WORDS])],
        [table],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_a_step_holds_scores_and_gradients_in_bfloat16() -> None:
    session = steep.TrainingSession(
        language_model(),
        loss="softmax_cross_entropy",
        optimizer="adamw",
        state_precision="int8",
        master_weights=False,
        stochastic_rounding=True,
    )
    ids = np.zeros((1, TOKENS), np.int64)
    # 16 MiB are for the sums of the product that makes the table's gradient.
    assert session.plan(ids, ids).arena_bytes < SCORES + TABLE + 20 * MIB
