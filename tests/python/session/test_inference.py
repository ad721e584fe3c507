"""InferenceSession: ONNX Runtime's interface over Steep's engine."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def model(dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """y = Relu(x · w) and its sum over the last axis; x is [batch, 4]."""
    np_dtype = helper.tensor_dtype_to_np_dtype(dtype)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
            helper.make_node("Relu", ["h"], ["y"], "rectifier"),
            helper.make_node("ReduceSum", ["y", "axes"], ["total"], "sum", keepdims=0),
        ],
        "layer",
        [helper.make_tensor_value_info("x", dtype, ["batch", 4])],
        [
            helper.make_tensor_value_info("y", dtype, ["batch", 3]),
            helper.make_tensor_value_info("total", dtype, ["batch"]),
        ],
        [
            numpy_helper.from_array(WEIGHT.astype(np_dtype), "w"),
            numpy_helper.from_array(np.array([-1], np.int64), "axes"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    proto.producer_name, proto.model_version, proto.doc_string = "a test", 7, "one layer"
    helper.set_model_props(proto, {"author": "nobody"})
    return proto


def one_node(op: str, names: list[str], types: list[int], out: int, **attrs) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attrs)],
        op,
        [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, types, strict=True)],
        [helper.make_tensor_value_info("y", out, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)


def test_results_are_those_of_onnx_runtime(x: np.ndarray) -> None:
    theirs = onnxruntime.InferenceSession(model().SerializeToString())
    ours = steep.InferenceSession(model(), providers=["CPUExecutionProvider"])
    for batch in (5, 1, 3):
        for names in (None, ["total", "y"], ["y"]):
            got = ours.run(names, {"x": x[:batch]})
            wanted = theirs.run(names, {"x": x[:batch]})
            assert len(got) == len(wanted)
            for a, b in zip(got, wanted, strict=True):
                assert isinstance(a, np.ndarray) and a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_what_is_said_of_the_model_is_what_onnx_runtime_says() -> None:
    theirs = onnxruntime.InferenceSession(model().SerializeToString())
    ours = steep.InferenceSession(model())
    for a, b in (
        (ours.get_inputs(), theirs.get_inputs()),
        (ours.get_outputs(), theirs.get_outputs()),
    ):
        assert [(i.name, i.type, i.shape) for i in a] == [(i.name, i.type, i.shape) for i in b]
    for field in ("producer_name", "graph_name", "version", "description", "custom_metadata_map"):
        a, b = getattr(ours.get_modelmeta(), field), getattr(theirs.get_modelmeta(), field)
        assert a == b, field
    assert ours.get_providers() == ["CPUExecutionProvider"]


def test_a_model_comes_as_path_bytes_or_proto(tmp_path: Path, x: np.ndarray) -> None:
    path = tmp_path / "layer.onnx"
    onnx.save(model(), path, save_as_external_data=True, size_threshold=0)
    results = [
        steep.InferenceSession(m).run(["y"], {"x": x})[0]
        for m in (path, str(path), model().SerializeToString(), model())
    ]
    for y in results[1:]:
        np.testing.assert_array_equal(y, results[0])


def test_results_outlive_the_session_and_later_runs(x: np.ndarray) -> None:
    session = steep.InferenceSession(model())
    first = session.run(["y"], {"x": x})[0]
    copy = first.copy()
    for _ in range(3):
        session.run(["y"], {"x": -x})
    del session
    np.testing.assert_array_equal(first, copy)


def test_dropout_is_the_identity(x: np.ndarray) -> None:
    graph = one_node("Dropout", ["x"], [TensorProto.FLOAT], TensorProto.FLOAT)
    np.testing.assert_array_equal(steep.InferenceSession(graph).run(None, {"x": x})[0], x)


def test_bfloat16_goes_in_and_out_as_ml_dtypes() -> None:
    graph = one_node("Neg", ["x"], [TensorProto.BFLOAT16], TensorProto.BFLOAT16)
    x = np.array([1.5, -2, 0], ml_dtypes.bfloat16)
    (y,) = steep.InferenceSession(graph).run(None, {"x": x})
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y.astype(np.float32), [-1.5, 2, 0])


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int64", "bool"])
def test_inputs_have_the_dtype_of_the_model(dtype) -> None:
    graph = one_node("Neg", ["x"], [TensorProto.FLOAT], TensorProto.FLOAT)
    x = np.array([0, 1, 3], dtype)
    (y,) = steep.InferenceSession(graph).run(None, {"x": x})
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, -x.astype(np.float32))


@pytest.mark.parametrize(
    ("feed", "error", "words"),
    [
        ({}, steep.DataError, ("missing", "x", "float32[batch, 4]")),
        ({"x": 0, "z": 0}, steep.DataError, ("no such input", "z")),
        (
            {"x": np.zeros((2, 4), ml_dtypes.float8_e5m2)},
            steep.ShapeError,
            ("x", "float8_e5m2[2, 4]", "Convert"),
        ),
        ({"x": np.full((2, 4), 1e39)}, steep.DataError, ("x", "float32", "1e+39")),
        ({"x": np.zeros(4, np.float32)}, steep.ShapeError, ("x", "rank", "float32[4]")),
        ({"x": np.zeros((2, 5), np.float32)}, steep.ShapeError, ("x", "axis 1", "[2, 5]")),
        ({"x": "text"}, steep.DataError, ("x",)),
    ],
)
def test_a_wrong_feed_names_the_input_and_the_remedy(feed, error, words) -> None:
    with pytest.raises(error) as caught:
        steep.InferenceSession(model()).run(None, feed)
    for word in words:
        assert word in str(caught.value)


def test_wrong_outputs_and_providers_are_refused(x: np.ndarray) -> None:
    with pytest.raises(steep.DataError, match="no such output") as caught:
        steep.InferenceSession(model()).run(["z"], {"x": x})
    assert caught.value.expected == "y, total"
    with pytest.raises(steep.ProviderError, match="CPUExecutionProvider"):
        steep.InferenceSession(model(), providers=["CUDAExecutionProvider"])
    both = ["CUDAExecutionProvider", ("CPUExecutionProvider", {})]
    steep.InferenceSession(model(), providers=both)


def test_one_symbol_has_one_extent() -> None:
    graph = helper.make_graph(
        [helper.make_node("Concat", ["a", "b"], ["y"], axis=1)],
        "pair",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in "ab"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    feed = {"a": np.zeros((2, 2), np.float32), "b": np.zeros((3, 2), np.float32)}
    with pytest.raises(steep.ShapeError):
        steep.InferenceSession(proto).run(None, feed)


def test_options(tmp_path: Path, x: np.ndarray) -> None:
    wanted = steep.InferenceSession(model()).run(None, {"x": x})
    options = steep.SessionOptions()
    options.graph_optimization_level = steep.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = steep.InferenceSession(model(), options)
    for a, b in zip(session.run(None, {"x": x}), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    # Unfused: every operator of the model is there.
    events = json.loads(Path(session.end_profiling()).read_text())["traceEvents"]
    assert {e["args"].get("op") for e in events} >= {"MatMul", "Relu", "ReduceSum"}
    with pytest.raises(steep.DataError):
        session.end_profiling()
    assert session.get_session_options() is options


def test_an_option_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="intra_op_threads"):
        steep.SessionOptions().intra_op_threads = 1  # type: ignore[attr-defined]


def test_a_log_level_that_is_not_there_is_refused() -> None:
    options = steep.SessionOptions()
    options.log_severity_level = 5
    with pytest.raises(steep.DataError, match="-1 to 4"):
        steep.InferenceSession(model(), options)


def test_check_finite_names_the_node() -> None:
    graph = one_node("Log", ["x"], [TensorProto.FLOAT], TensorProto.FLOAT)
    options = steep.SessionOptions()
    options.check_finite = True
    with pytest.raises(steep.DataError) as caught:
        steep.InferenceSession(graph, options).run(None, {"x": np.array([-1], np.float32)})
    assert caught.value.op == "Log"


def test_threads_take_turns(x: np.ndarray) -> None:
    session = steep.InferenceSession(model())
    feeds = [x * i for i in range(32)]
    wanted = [session.run(["y"], {"x": f})[0] for f in feeds]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda f: session.run(["y"], {"x": f})[0], feeds))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_reshape_never_reaches_beyond_its_input() -> None:
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], "fixed")],
        "fixed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([35, 16, 100]), "shape")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = steep.InferenceSession(proto)
    (y,) = session.run(None, {"x": np.ones((160, 350), np.float32)})
    assert y.shape == (35, 16, 100)
    with pytest.raises(steep.ShapeError) as caught:
        session.run(None, {"x": np.ones((2, 8), np.float32)})
    assert caught.value.node == "fixed" and "[2, 8]" in caught.value.received


def test_a_plan(x: np.ndarray) -> None:
    session = steep.InferenceSession(model())
    plan = session.plan({"x": x})
    assert plan.kernels > 0 and plan.parameter_bytes == 0 < plan.constant_bytes
    assert plan.peak_bytes == plan.arena_bytes + plan.output_bytes + plan.constant_bytes
    assert session.plan({"x": np.concatenate([x, x])}).peak_bytes > plan.peak_bytes
    with pytest.raises(steep.DataError):
        session.plan({})
