"""One node on its own: its results and its gradients.

An operator that Steep knows is a node of a graph. One that is taken apart at import is a model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper
from rows.row import Row

import steep
from steep import _steep

TABLE = {row["name"]: row for row in _steep.op_table()}


def is_float(x: np.ndarray | None) -> bool:
    return x is not None and np.issubdtype(x.dtype, np.floating)


def one_node(row: Row, arrays: list[np.ndarray | None]) -> onnx.ModelProto:
    """A model at the newest opset: floats are inputs x0, x1 …, all others initializers."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(arrays)]
    outputs = [f"y{i}" for i in range(row.outputs)]
    attrs = {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
        for k, v in row.attrs.items()
    }
    domain, _, op = row.op.rpartition(".")
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, domain=domain, **attrs)],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in zip(names, arrays, strict=True)
            if x is not None and is_float(x)
        ],
        # Everybody infers the types; the checker only wants one.
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs],
        [
            numpy_helper.from_array(x, n)
            for n, x in zip(names, arrays, strict=True)
            if x is not None and not is_float(x)
        ],
    )
    opsets = {"": onnx.defs.onnx_opset_version(), **({domain: 1} if domain else {})}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets.items()])


def evaluate(
    row: Row, arrays: list[np.ndarray | None], decomposed: bool = False
) -> list[np.ndarray]:
    if row.op in TABLE:
        return _steep.evaluate_node(row.op, arrays, row.attrs, row.outputs, decomposed)
    assert not decomposed
    model = one_node(row, arrays).SerializeToString()
    return _steep.run_model(model, [x for x in arrays if is_float(x)])


def evaluator(
    row: Row, arrays: list[np.ndarray | None]
) -> Callable[[list[np.ndarray | None]], list[np.ndarray]]:
    """`evaluate` of other floats of these shapes, again and again: of one model, if it is one."""
    if row.op in TABLE:
        return lambda others: evaluate(row, others)
    session = steep.InferenceSession(one_node(row, arrays))
    return lambda others: session.run(
        None, {f"x{i}": x for i, x in enumerate(others) if is_float(x)}
    )


def gradients(
    row: Row,
    arrays: list[np.ndarray | None],
    seeds: list[np.ndarray | None],
    wrt: list[int] | None = None,
) -> dict[int, np.ndarray | None]:
    """By number of the input, those of `wrt` or of all floats; `seeds` has one entry an output."""
    if wrt is None:
        wrt = [i for i, x in enumerate(arrays) if is_float(x)]
    if row.op in TABLE:
        found = _steep.node_gradients(row.op, arrays, row.attrs, row.outputs, seeds, wrt)
    elif all(s is None for s in seeds):
        found = [None] * len(wrt)
    else:
        model = one_node(row, arrays).SerializeToString()
        fed = [x for x in arrays if is_float(x)]
        found = _steep.model_gradients(model, fed, seeds, [f"x{i}" for i in wrt])
    return dict(zip(wrt, found, strict=True))
