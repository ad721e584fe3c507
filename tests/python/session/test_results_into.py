"""Results that sessions write to arrays of the caller."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from numpy.lib.stride_tricks import as_strided
from onnx import numpy_helper
from session_models import linear

import steep

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 10)).astype(np.float32)
Y = RNG.normal(size=(6, 1)).astype(np.float32)


def empty(*shape, dtype=np.float32):
    return np.full(shape, 7, dtype)


def training(**options):
    return steep.TrainingSession(linear(), loss="mse", step_outputs=["y"], **options)


def two_outputs():
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[n, 4] x) => (float[n, 3] y, bool[n, 3] positive) {
            y = MatMul(x, w)
            positive = Greater(y, zero)
        }"""
    )
    w = RNG.normal(size=(4, 3)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(w, "w"))
    made.graph.initializer.append(numpy_helper.from_array(np.float32(0), "zero"))
    return made, w


def strided():
    return empty(6, 4)[:, 1:2]


def of_torch():
    return pytest.importorskip("torch").full((6, 1), 7.0)


def leaf_of_torch():
    return pytest.importorskip("torch").full((6, 1), 7.0, requires_grad=True)


def numbers(array):
    return np.asarray(array.detach() if hasattr(array, "detach") else array)


@pytest.mark.parametrize(
    "make",
    [lambda: empty(6, 1), strided, of_torch, leaf_of_torch, lambda: steep.Tensor(empty(6, 1))],
    ids=["numpy", "strided", "torch", "leaf", "tensor"],
)
def test_outputs_of_every_session(make):
    into = make()
    (result,) = steep.InferenceSession(linear()).run(None, {"x": X}, out={"y": into})
    assert result is into
    expected = steep.InferenceSession(linear()).run(None, {"x": X})[0]
    np.testing.assert_array_equal(numbers(into), expected)

    gradient = steep.GradientSession(linear(), wrt=["w"])
    for call in (gradient.eval, lambda x, out: gradient.forward(x, out=out)[0]):
        into = make()
        outputs = call([X], out={"y": into})
        np.testing.assert_array_equal(numbers(into), expected)
        np.testing.assert_array_equal(outputs[0], expected)

    ours, into = training(), make()
    assert ours.eval(X, Y, out={"y": into}).loss is not None
    np.testing.assert_array_equal(numbers(into), expected)
    assert ours.eval(x=X, out={"y": into}).loss is None

    into = make()
    ours.bind_outputs({"y": into})
    for _ in range(3):
        before = ours.eval(X).outputs[0]
        result = ours.step(X, Y)
        np.testing.assert_array_equal(numbers(into), result.outputs[0])
        np.testing.assert_allclose(numbers(into), before, rtol=1e-5, atol=1e-6)
    last = numbers(into).copy()
    ours.bind_outputs({})
    ours.step(X, Y)
    np.testing.assert_array_equal(numbers(into), last)
    assert "step" not in ours.__dict__  # the engine's own again


def test_bound_before_the_first_step_and_accumulated():
    ours, into = training(), empty(6, 1)
    ours.bind_outputs({"y": into})
    ours.step(X, Y, accumulate=True)
    np.testing.assert_array_equal(into, ours.eval(X).outputs[0])
    assert ours.step_count == 0 and ours.accumulated == 1


@pytest.mark.parametrize(
    "move",
    [
        lambda t: t.resize_(1_000_000),
        lambda t: t.untyped_storage().resize_(0),
        lambda t: setattr(t, "data", t.clone()),
        lambda t: t.resize_(3, 1),
    ],
    ids=["grown", "freed", "replaced", "shrunk"],
)
def test_a_bound_tensor_whose_memory_moves(move):
    ours, into = training(), of_torch()
    ours.bind_outputs({"y": into})
    ours.step(X, Y)
    move(into)
    with pytest.raises(steep.DataError, match="moved or freed"):
        ours.step(X, Y)
    assert ours.step_count == 1
    ours.bind_outputs({"y": of_torch()})
    ours.step(X, Y)


def test_outputs_over_borrowed_inputs():
    """Backward reads the inputs."""
    x, dy = X[:, :1].copy(), np.ones((6, 1), np.float32)
    made = linear(features=1)
    borrowed = steep.GradientSession(made, wrt=["w"], borrow=True)
    with pytest.raises(steep.DataError, match="memory that backward reads"):
        borrowed.forward([x], out={"y": x})
    copied = steep.GradientSession(made, wrt=["w"])
    _, run = copied.forward([x], out={"y": x})
    gradient = copied.backward(run, [dy])["w"].numpy()
    np.testing.assert_allclose(gradient, X[:, :1].sum(keepdims=True), rtol=1e-5)


def test_some_of_several_outputs():
    made, w = two_outputs()
    x = RNG.normal(size=(5, 4)).astype(np.float32)
    session = steep.InferenceSession(made)
    y, positive = session.run(None, {"x": x})
    into = empty(5, 3, dtype=bool)
    results = session.run(None, {"x": x}, out={"positive": into})
    np.testing.assert_array_equal(results[0], y)
    assert results[1] is into and np.array_equal(into, positive)
    results = session.run(["positive", "y"], {"x": x}, out={"positive": into})
    assert results[0] is into
    np.testing.assert_array_equal(results[1], y)
    with pytest.raises(steep.DataError, match="no result of this name") as error:
        session.run(["y"], {"x": x}, out={"positive": into})
    assert error.value.expected == "y"
    np.testing.assert_allclose(y, x @ w, rtol=1e-5)


def test_gradients_by_name_and_in_one_buffer():
    session = steep.GradientSession(linear(), wrt=["x", "w", "b"])
    dy = np.ones((6, 1), np.float32)

    def backward(**options):
        _, run = session.forward([X])
        return session.backward(run, [dy], **options)

    expected = {name: np.array(t.numpy()) for name, t in backward().items()}
    into = {"w": empty(10, 1), "x": empty(6, 10)}
    results = backward(out=into)
    for name, array in into.items():
        np.testing.assert_array_equal(array, expected[name])
    np.testing.assert_array_equal(results["b"], expected["b"])

    flat = empty(13)[1:12]
    backward(out=flat)
    np.testing.assert_array_equal(flat, session.flatten(expected))
    torch = pytest.importorskip("torch")
    vector = torch.zeros(11)
    backward(out=vector)
    np.testing.assert_array_equal(vector.numpy(), flat)

    ours = training()
    loss, gradients = ours.gradients(X, Y)
    vector = empty(11)
    into = {"b": empty(1)}
    for out in (vector, into):
        again, same = ours.gradients(X, Y, out=out)
        assert again == loss and list(same) == list(gradients)
    parts = [gradients[name].numpy().ravel() for name in ours.parameter_names]
    np.testing.assert_array_equal(vector, np.concatenate(parts))
    np.testing.assert_array_equal(into["b"], gradients["b"])


def test_half_precision():
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (bfloat16[n, 4] x) => (bfloat16[n, 4] y) { y = Identity(x) }"""
    )
    x = RNG.normal(size=(5, 4)).astype(ml_dtypes.bfloat16)
    into = empty(5, 4, dtype=ml_dtypes.bfloat16)
    steep.InferenceSession(made).run(None, {"x": x}, out={"y": into})
    np.testing.assert_array_equal(into, x)
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(5, 4, dtype=torch.bfloat16)
    steep.InferenceSession(made).run(None, {"x": x}, out={"y": tensor})
    np.testing.assert_array_equal(tensor.float().numpy(), x.astype(np.float32))


def read_only():
    array = empty(6, 1)
    array.flags.writeable = False
    return array


def negated():
    torch = pytest.importorskip("torch")
    return torch.zeros(6, 1, dtype=torch.complex64).conj().imag


def transposed():
    return pytest.importorskip("torch").zeros(6, 2)[:, :1]


@pytest.mark.parametrize(
    ("out", "kind", "text"),
    [
        (lambda: {"z": empty(6, 1)}, steep.DataError, "no result of this name"),
        (lambda: {"y": read_only()}, steep.DataError, "read-only"),
        (lambda: {"y": transposed()}, steep.DataError, "not contiguous"),
        (lambda: {"y": [[1.0]] * 6}, steep.DataError, "a list"),
        (lambda: {"y": bytes(24)}, steep.DataError, "bytes"),
        (lambda: {"y": memoryview(bytes(24))}, steep.DataError, "read-only"),
        (lambda: {"y": np.float32(1)}, steep.DataError, "float32"),
        (lambda: {"y": None}, steep.DataError, "NoneType"),
        (lambda: {"y": "text"}, steep.DataError, "a str"),
        (lambda: {"y": object()}, steep.DataError, "cannot be used"),
        (lambda: {"y": empty(6, 1, dtype=np.float64)}, steep.ShapeError, r"float64\[6, 1\]"),
        (lambda: {"y": empty(6)}, steep.ShapeError, r"float32\[6\]"),
        (lambda: {"y": empty(6, 2)}, steep.ShapeError, r"float32\[6, 2\]"),
        (lambda: {"y": empty(5, 1)}, steep.ShapeError, r"float32\[5, 1\]"),
        (lambda: {"y": empty(6, 1, dtype=">f4")}, steep.ShapeError, r">f4\[6, 1\]"),
        (lambda: {"y": as_strided(empty(1), (6, 1), (0, 4))}, steep.DataError, "share memory"),
        (lambda: {"y": as_strided(empty(6), (6, 1), (2, 4))}, steep.DataError, "share memory"),
        (lambda: {"y": negated()}, steep.DataError, "not contiguous"),
    ],
)
def test_arrays_that_cannot_be_written(out, kind, text):
    gradient = steep.GradientSession(linear(), wrt=["w"])
    ours = training()

    def step():
        ours.bind_outputs(out())
        ours.step(X, Y)

    for call in (
        lambda: steep.InferenceSession(linear()).run(None, {"x": X}, out=out()),
        lambda: gradient.eval([X], out=out()),
        lambda: gradient.forward([X], out=out()),
        lambda: ours.eval(X, out=out()),
        step,
    ):
        with pytest.raises(kind, match=text):
            call()


def test_arrays_for_gradients_that_cannot_be_written():
    session = steep.GradientSession(linear(), wrt=["w", "b"])
    _, run = session.forward([X])
    dy = [np.ones((6, 1), np.float32)]
    buffer = empty(20)
    for out, kind, text in (
        (empty(10), steep.ShapeError, r"\[11\]"),
        (empty(22)[::2], steep.DataError, "contiguous"),
        (empty(11, dtype=np.float64), steep.ShapeError, "float64"),
        ({"x": empty(6, 10)}, steep.DataError, "no result of this name"),
        ({"w": buffer[:10, None], "b": buffer[9:10]}, steep.DataError, "the memory of 'w'"),
        (3.0, steep.DataError, "a float"),
    ):
        with pytest.raises(kind, match=text):
            session.backward(run, dy, out=out)
    session.backward(run, dy, out={"w": buffer[:10, None], "b": buffer[10:11]})


def test_an_input_with_the_name_out():
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[n, 10] out) => (float[n, 1] y) { y = MatMul(out, w) }"""
    )
    made.graph.initializer.append(numpy_helper.from_array(np.ones((10, 1), np.float32), "w"))
    ours = steep.TrainingSession(made, loss="mse")
    np.testing.assert_allclose(ours.eval(out=X).outputs[0], X.sum(1, keepdims=True), rtol=1e-4)
