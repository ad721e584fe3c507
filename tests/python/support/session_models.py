"""Models that sessions train and run."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def linear(features=10, outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(features, outputs)).astype(np.float32)
    b = np.zeros(outputs, np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["xw"], name="product"),
            helper.make_node("Add", ["xw", "b"], ["y"], name="sum"),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", outputs])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model
