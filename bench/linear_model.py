"""The smallest model worth training, as an ONNX inference file: y = x·W + b."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def linear_model(features: int = 10, targets: int = 1) -> bytes:
    """Serialised ONNX: `x` float32[batch, features] → `y` float32[batch, targets], weights zero."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["xW"]),
            helper.make_node("Add", ["xW", "b"], ["y"]),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", targets])],
        [
            numpy_helper.from_array(np.zeros((features, targets), np.float32), "W"),
            numpy_helper.from_array(np.zeros(targets, np.float32), "b"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
