"""Writes the seeds of step_fuzz: a tiny model for each operator in the tables of tests/ops.

usage: python tests/fuzz/make_seeds.py [FOLDER]

Its first float operand is x·w, with w the trained weight; other operands are initializers. The loss
is the mean of the results, plus that of x·w, so that no operator keeps the weight from the loss.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "ops"))

from rows import ROWS  # noqa: E402
from rows.row import Row  # noqa: E402

LARGEST = 1500  # bytes of a seed


def is_float(x: np.ndarray | None) -> bool:
    return x is not None and np.issubdtype(x.dtype, np.floating)


def mean(value: str, name: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Cast", [value], [f"{name}_f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", [f"{name}_f"], [name], keepdims=0),
    ]


def seed(row: Row) -> onnx.ModelProto:
    arrays = row.arrays(np.float64 if row.double else np.float32)
    names = ["" if x is None else f"x{i}" for i, x in enumerate(arrays)]
    outputs = [f"y{i}" for i in range(row.outputs)]
    attrs = {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
        for k, v in row.attrs.items()
    }
    first = next((i for i, x in enumerate(arrays) if is_float(x)), None)
    x = np.ones(2, np.float32) if first is None else arrays[first]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    product = "h" if first is None else names[first]
    nodes = [helper.make_node("Mul", ["x", "w"], [product])]
    domain, _, op = row.op.rpartition(".")
    nodes.append(helper.make_node(op, names, outputs, name="op", domain=domain, **attrs))
    for i, name in enumerate([product, *outputs]):
        nodes += mean(name, f"m{i}")
    terms = [f"m{i}" for i in range(len(outputs) + 1)]
    nodes.append(helper.make_node("Sum", terms, ["loss"]))
    given = enumerate(zip(names, arrays, strict=True))
    constants = {n: a for i, (n, a) in given if n and i != first}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.ones(x.shape, x.dtype), "w")]
        + [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", min(onnx.defs.onnx_opset_version(), 26))]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, producer_name="")


def main() -> None:
    """The smallest seed of each operator, of matrices and more where there is one."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "corpus" / "step"
    folder.mkdir(parents=True, exist_ok=True)
    best: dict[str, tuple[bool, int, bytes]] = {}
    for row in ROWS:
        of_ours = "." in row.op and not row.op.startswith("com.microsoft.")
        if of_ours or any(x is not None and 0 in np.shape(x) for x in row.arrays(np.float32)):
            continue
        made = seed(row)
        flat = len(made.graph.input[0].type.tensor_type.shape.dim) < 2
        data = made.SerializeToString()
        if len(data) <= LARGEST:
            best[row.op] = min(best.get(row.op, (True, LARGEST + 1, b"")), (flat, len(data), data))
    for op, (_, _, data) in best.items():
        (folder / f"{op}.onnx").write_bytes(data)
    print(f"{len(best)} seeds, {sum(size for _, size, _ in best.values())} bytes")


if __name__ == "__main__":
    main()
