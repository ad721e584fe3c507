"""Writes an untrained linear model y = x·weight + bias and data to fit it to.

python make_model.py FOLDER  →  FOLDER/linear.onnx, FOLDER/linear.npz
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def linear_model(features: int) -> onnx.ModelProto:
    """The model, with zeros for weights: `x` [rows, features] → `y` [rows, 1]."""
    weight = numpy_helper.from_array(np.zeros((features, 1), np.float32), "weight")
    bias = numpy_helper.from_array(np.zeros(1, np.float32), "bias")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weight"], ["product"], "matmul"),
            helper.make_node("Add", ["product", "bias"], ["y"], "add"),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [weight, bias],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def linear_data(rows: int, features: int, seed: int = 0) -> dict[str, np.ndarray]:
    """x and labels = x·weight + bias, without noise."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, features)).astype(np.float32)
    weight = np.arange(1, features + 1, dtype=np.float32).reshape(-1, 1) / features
    return {"x": x, "label": x @ weight + np.float32(0.5), "weight": weight}


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(linear_model(10), folder / "linear.onnx")
    np.savez(folder / "linear.npz", **linear_data(256, 10))
    print(f"wrote {folder / 'linear.onnx'} and {folder / 'linear.npz'}")
