"""The rows of com.microsoft's operators against ONNX Runtime's own kernels."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from nodes import evaluate, one_node
from onnxruntime.capi import onnxruntime_pybind11_state
from rows import ROWS as ALL
from rows.contrib import ALONE
from rows.row import Row

from steep import _steep

# Which it has in ONNX's own domain.
OF_ONNX = ("LayerNormalization", "SimplifiedLayerNormalization")

# Whose types ONNX Runtime does not infer.
UNTOLD = {("MultiHeadAttention", "y3")}


def operator_of(name: str) -> str:
    return name.rpartition(".")[2]


def operator(row: Row) -> str:
    return operator_of(row.op)


ROWS = [r for r in ALL if r.op.startswith("com.microsoft.") and r.note != ALONE]


def in_onnxruntime(row: Row, arrays: list[np.ndarray | None]) -> list[np.ndarray]:
    model = one_node(row, arrays)
    model.ir_version = 10
    (node,) = model.graph.node
    if operator(row) in OF_ONNX:
        node.domain = ""
    del model.opset_import[:]
    model.opset_import.extend(
        [onnx.helper.make_opsetid("", 16), onnx.helper.make_opsetid("com.microsoft", 1)]
    )
    for output in model.graph.output:
        if (operator(row), output.name) not in UNTOLD:
            output.ClearField("type")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    fed = {f"x{i}": x for i, x in enumerate(arrays) if x is not None}
    return session.run(None, {i.name: fed[i.name] for i in session.get_inputs()})


@pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])
def test_forward_is_that_of_onnxruntime(row: Row) -> None:
    arrays = row.arrays(np.float32)
    for i, (ours, theirs) in enumerate(
        zip(evaluate(row, arrays), in_onnxruntime(row, arrays), strict=True)
    ):
        assert ours.dtype == theirs.dtype, i
        assert ours.shape == theirs.shape, i
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5, err_msg=f"output {i}")


SCHEMAS = {
    schema.name: schema
    for schema in onnxruntime_pybind11_state.get_all_operator_schema()
    if schema.domain == "com.microsoft"
}


@pytest.mark.parametrize("op", _steep.contrib_operators())
def test_signature_is_that_of_onnxruntime(op: str) -> None:
    """No input, output or attribute is passed over, and defaults are the same."""
    schema = SCHEMAS.get(operator_of(op))
    if schema is None:
        pytest.skip("ONNX Runtime has it in ONNX's domain, or in its package for training")
    ours = _steep.contrib_signature(schema.name)
    assert ours["inputs"] == [
        i.name + ("?" if str(i.option).endswith("Optional") else "") for i in schema.inputs
    ]
    assert ours["outputs"] == len(schema.outputs)
    assert sorted(ours["attributes"]) == sorted(schema.attributes)
    for name, attribute in schema.attributes.items():
        default = attribute._default_value
        if not default:
            continue
        value = onnx.helper.get_attribute_value(onnx.AttributeProto.FromString(default))
        wanted = value.decode() if isinstance(value, bytes) else value
        assert ours["attributes"][name] == pytest.approx(wanted), name


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_attributes_may_be_numbers_without_a_text_form(number: float) -> None:
    x, two = np.ones((2, 3, 3, 3), np.float32), np.full((3, 3), 2, np.float32)
    with np.errstate(all="ignore"):
        cases = {
            "FusedGemm": ([two, two], {"alpha": number}, number),
            "FusedConv": ([x, x], {"activation": "LeakyRelu", "activation_params": [number]}, 27),
            "SkipLayerNormalization": (
                [two, two, two[0]],
                {"epsilon": number},
                0 / np.sqrt(np.float32(number)),
            ),
            "SkipSimplifiedLayerNormalization": (
                *([two, two, two[0]], {"epsilon": number}),
                8 / np.sqrt(16 + np.float32(number)),
            ),
        }
    for op, (inputs, attrs, wanted) in cases.items():
        (y,) = evaluate(Row(f"com.microsoft.{op}", tuple(inputs), attrs), list(inputs))
        np.testing.assert_array_equal(y, np.full_like(y, wanted), err_msg=op)
