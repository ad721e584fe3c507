"""Products of rows in groups, with one matrix per group."""

from __future__ import annotations

from steep.lowering.ops.onnx_script import opset18
from steep.lowering.ops.steep_nodes import steep_node
from steep.lowering.ops.values import Translation, Value


def grouped_product(input: Value, weight: Value, offsets: Value) -> Value:
    """Return input[S, K] · weight[G, K, N], [S, N], with one matrix per group of rows.

    Rows from ``offsets[g - 1]`` to ``offsets[g]`` are multiplied by ``weight[g]``. Rows after the
    last offset are zero.
    """
    ends = opset18.Cast(offsets, to=7)
    return steep_node("GroupedMatMul", [input, weight, ends])[0]


WITH_BACKWARD: dict[str, Translation] = {"transformers::grouped_mm_fallback": grouped_product}
"""Translations of operators of libraries; the library's backward is the derivative."""
