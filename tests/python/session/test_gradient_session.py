"""GradientSession: forward and backward apart, by the caller's gradients."""

from __future__ import annotations

import gc
import json
import threading

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(0, 1, shape).astype(np.float32)


def value(name: str, shape=None, dtype=TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, weights=None) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(v, k) for k, v in (weights or {}).items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def linear(rows="rows", weight=None, bias=None) -> onnx.ModelProto:
    """y = x w + z, with x [rows, 3], w [3, 1] and z [1]."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "z"], ["y"]),
    ]
    weights = {
        "w": np.ones((3, 1), np.float32) if weight is None else weight,
        "z": np.zeros(1, np.float32) if bias is None else bias,
    }
    return model(nodes, [value("x", [rows, 3])], [value("y", [rows, 1])], weights)


def tanh_layer() -> tuple[onnx.ModelProto, np.ndarray]:
    """y = tanh(x w): its backward reads x, w and y."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Tanh", ["xw"], ["y"]),
    ]
    w = floats(3, 2)
    return model(nodes, [value("x", ["n", 3])], [value("y", ["n", 2])], {"w": w}), w


def tanh_gradients(x, w, dy):
    dxw = dy * (1 - np.tanh(x @ w) ** 2)
    return dxw @ w.T, x.T @ dxw


def close(received, expected):
    np.testing.assert_allclose(np.asarray(received), expected, rtol=1e-5, atol=1e-6)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("by_name", [True, False])
def test_a_linear_layer(by_name):
    session = steep.GradientSession(linear(), wrt=["x", "w", "z"])
    (y,), run = session.forward({"x": X} if by_name else [X])
    close(y, [[3], [12]])
    ones = np.ones((2, 1), np.float32)
    gradients = session.backward(run, {"y": ones} if by_name else [ones])
    assert list(gradients) == sorted(["x", "w", "z"])
    close(gradients["x"], np.ones((2, 3)))
    close(gradients["w"], [[3], [5], [7]])
    close(gradients["z"], [2])


@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_several_runs_wait_for_their_backward(order, borrow):
    proto, w = tanh_layer()
    session = steep.GradientSession(proto, wrt=["x", "w"], borrow=borrow)
    xs = [floats(rows, 3) for rows in (1, 4, 2)]
    dys = [floats(rows, 2) for rows in (1, 4, 2)]
    runs = [session.forward({"x": x})[1] for x in xs]
    for i in order:
        received = session.backward(runs[i], {"y": dys[i]})
        dx, dw = tanh_gradients(xs[i], w, dys[i])
        close(received["x"], dx)
        close(received["w"], dw)


def test_what_is_written_before_backward_does_not_matter():
    proto, w = tanh_layer()
    bound = w.copy()
    session = steep.GradientSession(proto, wrt=["x", "w"])
    session.bind_weights({"w": bound})
    for _ in range(3):
        x, dy = floats(4, 3), floats(4, 2)
        dx, dw = tanh_gradients(x, w, dy)
        (y,), run = session.forward({"x": x})
        x[:] = 7
        bound[:] = 7
        np.asarray(y)[:] = 7
        received = session.backward(run, {"y": dy})
        close(received["x"], dx)
        close(received["w"], dw)
        bound[:] = w


def test_an_output_that_is_an_input():
    proto = model(
        [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Mul", ["x", "x"], ["y"])],
        [value("x", [3])],
        [value("same", [3]), value("y", [3])],
    )
    session = steep.GradientSession(proto, wrt=["x"])
    x = floats(3)
    (same, _), run = session.forward({"x": x})
    np.asarray(same)[:] = 0
    close(session.backward(run, {"y": np.ones(3, np.float32)})["x"], 2 * x)


def test_two_threads():
    proto, w = tanh_layer()
    session = steep.GradientSession(proto, wrt=["x", "w"])
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            x = rng.normal(0, 1, (3, 3)).astype(np.float32)
            dy = rng.normal(0, 1, (3, 2)).astype(np.float32)
            _, run = session.forward({"x": x})
            received = session.backward(run, {"y": dy})
            dx, dw = tanh_gradients(x, w, dy)
            if not (
                np.allclose(received["x"], dx, atol=1e-5)
                and np.allclose(received["w"], dw, atol=1e-5)
            ):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_backward_for_each_run():
    session = steep.GradientSession(linear(), wrt=["w"])
    ones = np.ones((2, 1), np.float32)
    session.forward([X])
    _, run = session.forward([X])
    session.backward(run, [ones])
    with pytest.raises(steep.DataError, match="Backward of this run was done already") as error:
        session.backward(run, [ones])
    assert error.value.node == "run 1" and "forward()" in error.value.remedy


def test_a_run_of_another_session():
    one, other = (steep.GradientSession(linear(), wrt=["w"]) for _ in range(2))
    _, run = one.forward([X])
    with pytest.raises(steep.DataError, match="another session"):
        other.backward(run, [np.ones((2, 1), np.float32)])


def test_a_run_outlives_its_session():
    session = steep.GradientSession(linear(), wrt=["w"])
    _, run = session.forward([X])
    del session
    gc.collect()
    del run


@pytest.mark.parametrize(
    ("gradient", "received"),
    [
        (np.ones((3, 1), np.float32), r"float32\[3, 1\]"),
        (np.ones(2, np.float32), r"float32\[2\]"),
        (np.ones((3, 1), np.float64), r"float32\[3, 1\]"),
        (np.ones((2, 1), ml_dtypes.float8_e5m2), r"float8_e5m2\[2, 1\]"),
    ],
    ids=["extent", "rank", "extent of float64", "float8"],
)
def test_a_gradient_of_another_type(gradient, received):
    session = steep.GradientSession(linear(), wrt=["w"])
    _, run = session.forward([X])
    with pytest.raises(steep.ShapeError, match=received) as error:
        session.backward(run, {"y": gradient})
    assert error.value.node == "y"
    assert "float32[2, 1]" in error.value.expected
    close(session.backward(run, [np.ones((2, 1), np.float32)])["w"], [[3], [5], [7]])


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64"])
def test_gradients_of_outputs_are_converted(dtype):
    session = steep.GradientSession(linear(), wrt=["w", "x"])
    dy = np.array([[1], [-2]], dtype)
    results = []
    for given in (dy, dy.astype(np.float32)):
        _, run = session.forward([X])
        results.append(session.backward(run, {"y": given}))
    for name, ours in results[0].items():
        assert np.asarray(ours).dtype == np.float32
        np.testing.assert_array_equal(ours, results[1][name])
    _, run = session.forward([X])
    with pytest.raises(steep.DataError, match=r"1e\+39") as error:
        session.backward(run, [np.full((2, 1), 1e39)])
    assert error.value.node == "y"
    close(session.backward(run, [np.ones((2, 1))])["w"], [[3], [5], [7]])


def test_weights_that_are_no_floats():
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    weights = {"q": np.ones((3, 1), np.int8), "scale": np.float32(0.5)}
    made = model(nodes, [value("x", ["n", 3])], [value("y", ["n", 1])], weights)
    with pytest.raises(steep.ModelError, match="not a float") as error:
        steep.GradientSession(made, wrt=["q"])
    assert error.value.node == "q" and error.value.received == "int8[3, 1]"


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int64"])
def test_inputs_have_the_dtype_of_the_model(dtype):
    session = steep.GradientSession(linear(), wrt=["w", "x"])
    x = np.array([[1, -2, 3], [0, 5, -6]], dtype)
    dy = {"y": np.ones((2, 1), np.float32)}
    results = []
    for fed in (x, x.astype(np.float32)):
        outputs, run = session.forward({"x": fed})
        results.append([*outputs, *session.backward(run, dy).values()])
    for ours, exact in zip(*results, strict=True):
        assert np.asarray(ours).dtype == np.float32
        np.testing.assert_array_equal(ours, exact)


@pytest.mark.parametrize(
    ("inputs", "kind", "text"),
    [
        ({}, steep.DataError, "missing"),
        ({"x": X, "t": X}, steep.DataError, "no such input"),
        ({"x": X.astype(ml_dtypes.float8_e5m2)}, steep.ShapeError, "float8_e5m2"),
        ({"x": np.full((2, 3), 1e39)}, steep.DataError, r"1e\+39"),
        ({"x": X[:, :2]}, steep.ShapeError, r"float32\[2, 2\]"),
        ({"x": X, "w": X}, steep.ShapeError, "A weight"),
        ([], steep.DataError, "one array for each"),
        (X, steep.DataError, "by name, or a list"),
        ({"x": "text"}, steep.DataError, "x"),
    ],
)
def test_inputs_that_do_not_fit(inputs, kind, text):
    session = steep.GradientSession(linear(), wrt=["w"])
    for call in (session.forward, session.eval):
        with pytest.raises(kind, match=text):
            call(inputs)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"wrt": []}, "There is nothing"),
        ({"wrt": ["v"]}, "no such float input"),
        ({"wrt": ["w", "w"]}, "twice"),
        ({"wrt": ["w"], "outputs": ["t"]}, "no such output"),
    ],
)
def test_names_that_are_not_there(options, text):
    with pytest.raises(steep.ModelError, match=text):
        steep.GradientSession(linear(), **options)


def test_a_dynamic_batch():
    session = steep.GradientSession(linear(), wrt=["w"])
    for rows in (1, 5, 2, 5):
        x, dy = floats(rows, 3), floats(rows, 1)
        (y,), run = session.forward([x])
        assert y.shape == (rows, 1)
        close(session.backward(run, [dy])["w"], x.T @ dy)


def several_outputs() -> onnx.ModelProto:
    """An integer output, one without a gradient, a scalar, and an unused input."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
        helper.make_node("ArgMax", ["y"], ["best"], axis=0, keepdims=0),
        helper.make_node("Log", ["x"], ["log"]),
    ]
    outputs = [
        value("best", [], TensorProto.INT64),
        value("y", [3]),
        value("loss", []),
        value("log", [3]),
    ]
    inputs = [value("x", [3]), value("spare", [2])]
    return model(nodes, inputs, outputs, {"w": np.array([1, 2, 3], np.float32)})


def test_integer_outputs_and_unused_inputs():
    session = steep.GradientSession(several_outputs(), wrt=["spare", "w"])
    assert session.differentiable == [False, True, True, False]
    x = np.array([3, 2, 0], np.float32)
    for _ in range(2):
        (best, y, loss, _), run = session.forward({"x": x, "spare": np.ones(2, np.float32)})
        assert np.asarray(best).dtype == np.int64 and int(np.asarray(best)) == 1
        close(y, [3, 4, 0])
        close(loss, 7)
        one = np.ones((), np.float32)
        for name in ("best", "log", "nothing"):
            with pytest.raises(steep.DataError, match=name):
                session.backward(run, {name: one})
        received = session.backward(run, [None, np.array([1, 0, 2], np.float32), one, None])
        close(received["w"], [6, 2, 0])
        close(received["spare"], [0, 0])


def test_an_output_without_a_gradient_has_no_part():
    # zeros instead would be NaN here: 0 * (1 / 0)
    session = steep.GradientSession(several_outputs(), wrt=["x"])
    feed = {"x": np.zeros(3, np.float32), "spare": np.ones(2, np.float32)}
    for _ in range(2):
        _, run = session.forward(feed)
        close(session.backward(run, {"y": np.ones(3, np.float32)})["x"], [1, 2, 3])
        _, run = session.forward(feed)
        close(session.backward(run, {"loss": np.ones((), np.float32)})["x"], [1, 2, 3])


def test_outputs_that_are_chosen():
    session = steep.GradientSession(several_outputs(), wrt=["w"], outputs=["loss"])
    (loss,), run = session.forward({"x": X[1], "spare": np.ones(2, np.float32)})
    close(loss, X[1] @ [1, 2, 3])
    close(session.backward(run)["w"], X[1])


def test_gradients_may_be_left_out_of_one_number_alone():
    session = steep.GradientSession(linear(), wrt=["w"])
    _, run = session.forward([X])
    with pytest.raises(steep.DataError, match="No output has a gradient"):
        session.backward(run)
    _, run = session.forward([X[:1]])
    close(session.backward(run)["w"], X[:1].T)


def test_no_output_that_depends_on_wrt():
    proto = model([helper.make_node("Shape", ["x"], ["y"])], [value("x", ["n"])],
                  [value("y", [1], TensorProto.INT64)])  # fmt: skip
    with pytest.raises(steep.ModelError, match="No output depends"):
        steep.GradientSession(proto, wrt=["x"])


def test_an_operator_without_a_gradient():
    state = ["mixed", "next"]
    nodes = [
        helper.make_node("CausalConvWithState", ["x", "kernel"], state, "peak"),
        helper.make_node("Add", ["mixed", "x"], ["y"]),
    ]
    shape = ["n", "channels", "t"]  # without known channels ONNX does not say what it is made of
    inputs = [value("x", shape), value("kernel", [None, None, None])]
    graph = helper.make_graph(nodes, "net", inputs, [value("y", shape)])
    proto = helper.make_model(graph)
    session = steep.GradientSession(proto, wrt=["x"])
    with pytest.raises(steep.ModelError, match="CausalConvWithState"):
        _, run = session.forward([floats(1, 3, 4), floats(3, 1, 2)])
        session.backward(run, [floats(1, 3, 4)])


def test_weights_by_name():
    session = steep.GradientSession(linear(), wrt=["x", "z", "w"])
    assert [w.name for w in session.weight_info()] == ["z", "w"]
    dy = np.ones((2, 1), np.float32)
    _, before = session.forward([X])
    session.set_weights({"w": np.full((3, 1), 2, np.float32)})
    (y,), after = session.forward([X])
    close(y, [[6], [24]])
    close(session.backward(before, [dy])["x"], np.ones((2, 3)))
    close(session.backward(after, [dy])["x"], np.full((2, 3), 2))
    close(session.weights()["w"], np.full((3, 1), 2))
    (y,), _ = session.forward({"x": X, "z": np.ones(1, np.float32)})
    close(y, [[7], [25]])
    close(session.eval([X])[0], [[6], [24]])
    with pytest.raises(steep.ModelError, match="no such weight"):
        session.set_weights({"w": np.ones((3, 1), np.float32), "x": X})
    with pytest.raises(steep.ShapeError, match="w"):
        session.set_weights({"z": np.ones(1, np.float32), "w": X})
    close(session.weights()["z"], [0])


def test_weights_in_one_buffer():
    session = steep.GradientSession(linear(), wrt=["w", "z"])
    assert session.weight_count == 4
    flat = np.asarray(session.flatten(session.weights())).copy()
    close(flat, [1, 1, 1, 0])
    session.bind_flat(flat)
    _, run = session.forward([X])
    gradients = session.backward(run, [np.ones((2, 1), np.float32)])
    flat -= 0.5 * np.asarray(session.flatten(gradients))
    close(session.eval([X])[0], X @ np.array([[-0.5], [-1.5], [-2.5]]) - 1)
    with pytest.raises(steep.ShapeError, match="4"):
        session.bind_flat(np.ones(5, np.float32))
    with pytest.raises(steep.DataError, match="contiguous"):
        session.bind_flat(np.ones(8, np.float32)[::2])


def test_a_run_left_alone_frees_its_memory():
    proto, _ = tanh_layer()
    session = steep.GradientSession(proto, wrt=["w"])
    x = np.ones((1 << 16, 3), np.float32)

    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    for _ in range(3):
        session.forward([x])
    gc.collect()
    before = resident()
    for _ in range(100):  # 100 × 0.75 MiB of inputs alone
        session.forward([x])
    assert resident() - before < 20 << 20


def dropout() -> onnx.ModelProto:
    on = {"ratio": np.array(0.5, np.float32), "training": np.array(True)}
    nodes = [helper.make_node("Dropout", ["x", "ratio", "training"], ["y"])]
    return model(nodes, [value("x", ["n"])], [value("y", ["n"])], on)


def test_dropout_is_drawn_anew_and_kept_for_backward():
    session = steep.GradientSession(dropout(), wrt=["x"], seed=3)
    x = np.ones(1000, np.float32)
    seen = []
    for _ in range(3):
        (y,), run = session.forward([x])
        seen.append(np.asarray(y).copy())
        close(session.backward(run, [x])["x"], seen[-1])
    assert 300 < (seen[0] == 0).sum() < 700
    assert not np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[1], seen[2])
    again = steep.GradientSession(dropout(), wrt=["x"], seed=3)
    close(again.forward([x])[0][0], seen[0])
    close(session.eval([x])[0], x)


def test_running_statistics_are_not_evaluated():
    names = ["scale", "bias", "mean", "variance"]
    weights = {name: np.ones(3, np.float32) for name in names}
    node = helper.make_node(
        "BatchNormalization", ["x", *names], ["y", "mean_now", "variance_now"], training_mode=1
    )
    outputs = [value("y", ["n", 3]), value("mean_now", [3]), value("variance_now", [3])]
    proto = model([node], [value("x", ["n", 3])], outputs, weights)
    session = steep.GradientSession(proto, wrt=["scale"])
    (_, mean, _), _ = session.forward([X])
    close(mean, 0.9 + 0.1 * X.mean(0))
    with pytest.raises(steep.ModelError, match="statistics"):
        session.eval([X])


def test_plan_dump_and_profile(tmp_path):
    made, w = tanh_layer()
    session = steep.GradientSession(made, wrt=["x", "w"])
    x = floats(5, 3)
    plan = session.plan({"x": x})
    assert plan.parameter_bytes == w.nbytes and plan.kernels > 2
    parts = (plan.parameter_bytes, plan.arena_bytes, plan.output_bytes, plan.constant_bytes)
    assert plan.peak_bytes == sum(parts)
    assert (
        session.plan([x]).peak_bytes == plan.peak_bytes < session.plan([floats(50, 3)]).peak_bytes
    )

    text = session.dump([x], html=tmp_path / "plan.html")
    assert "MatMul" in text and "float32[5, 2]" in text
    assert (tmp_path / "plan.html").read_text().startswith("<!DOCTYPE html>")
    assert session.dump([x], passes=True).startswith("# specialised")
    with pytest.raises(steep.ShapeError):
        session.plan([floats(5, 4)])
    with pytest.raises(steep.DataError, match="plan takes one array"):
        session.plan([x, x])

    with session.profile(tmp_path / "trace.json"):
        (y,), run = session.forward([x])
        session.backward(run, [np.ones_like(np.asarray(y))])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len([e for e in events if e["ph"] == "X"]) >= plan.kernels


def test_a_plan_with_dropout():
    nodes = [helper.make_node("Dropout", ["x", "ratio", "training"], ["y"])]
    weights = {"ratio": np.float32(0.5), "training": np.bool_(True)}
    made = model(nodes, [value("x", [4, 8])], [value("y", [4, 8])], weights)
    session = steep.GradientSession(made, wrt=["x"])
    assert session.plan([floats(4, 8)]).kernels > 0
    assert "Dropout" in session.dump([floats(4, 8)])
