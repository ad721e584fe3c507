"""Writes an untrained MLP and scikit-learn's digits, split into training and test rows.

python make_model.py FOLDER  →  FOLDER/digits.onnx, FOLDER/digits_train.npz, FOLDER/digits_test.npz
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def mlp(sizes: list[int], seed: int = 0) -> onnx.ModelProto:
    """Linear layers with ReLU between them: `x` [rows, sizes[0]] → `logits` [rows, sizes[-1]]."""
    random = np.random.default_rng(seed)
    nodes, initializers, value = [], [], "x"
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        bound = 1 / np.sqrt(inputs)
        for name, shape in ((f"fc{i}.weight", (outputs, inputs)), (f"fc{i}.bias", (outputs,))):
            array = random.uniform(-bound, bound, shape).astype(np.float32)
            initializers.append(numpy_helper.from_array(array, name))
        last = i == len(sizes) - 2
        result = "logits" if last else f"fc{i}"
        operands = [value, f"fc{i}.weight", f"fc{i}.bias"]
        nodes.append(helper.make_node("Gemm", operands, [result], f"fc{i}", transB=1))
        if not last:
            nodes.append(helper.make_node("Relu", [result], [f"relu{i}"], f"relu{i}"))
        value = f"relu{i}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", sizes[0]])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", sizes[-1]])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def digits(seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Training and test rows: `x` in [0, 1], `label` in 0..9."""
    from sklearn.datasets import load_digits

    x, label = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, label = (x[order] / 16).astype(np.float32), label[order].astype(np.int64)
    return {"x": x[360:], "label": label[360:]}, {"x": x[:360], "label": label[:360]}


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(mlp([64, 64, 10]), folder / "digits.onnx")
    train, test = digits()
    np.savez(folder / "digits_train.npz", **train)
    np.savez(folder / "digits_test.npz", **test)
    print(f"wrote digits.onnx, digits_train.npz and digits_test.npz to {folder}")
