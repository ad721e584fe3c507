"""Runs an ONNX model, and the model of its gradients: python run.py."""

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import steep


def model() -> ModelProto:
    """Make y = tanh(x · w), for any number of rows."""
    weight = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def main() -> None:
    """Print y, and the gradients of its sum."""
    session = steep.InferenceSession(model())
    for arg in session.get_inputs() + session.get_outputs():
        print(f"{arg.name}: {arg.type}{arg.shape}")
    x = np.ones((2, 4), np.float32)
    (y,) = session.run(None, {"x": x})
    print("y", y, sep="\n")

    gradients = steep.InferenceSession(steep.grad(model(), wrt=["x", "w"]))
    dx, dw = gradients.run(["grad_x", "grad_w"], {"x": x, "grad_y": np.ones_like(y)})
    print("gradient of y's sum with respect to x", dx, "and to w", dw, sep="\n")


if __name__ == "__main__":
    main()
