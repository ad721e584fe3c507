"""TrainingSession: ONNX in, arrays in, trained ONNX out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from session_models import linear

import steep


def data(n=32, features=10, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype(np.float32)
    return x, (x @ np.arange(features, dtype=np.float32)[:, None] + 3).astype(np.float32)


def test_linear_regression_finds_its_weights(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(linear(), path)
    session = steep.TrainingSession(path, loss="mse", optimizer="sgd", lr=0.1)
    assert [i.name for i in session.input_info()] == ["x", "label"]
    assert session.parameter_names == ["w", "b"]
    x, y = data()
    for _ in range(300):
        result = session.step(x, y)
    assert result.loss < 1e-4 and result.step == 300 and float(result) == result.loss
    weights = {k: v.numpy() for k, v in session.weights().items()}
    np.testing.assert_allclose(weights["w"][:, 0], np.arange(10), atol=0.02)
    np.testing.assert_allclose(weights["b"], [3], atol=0.02)
    session.export_onnx(tmp_path / "trained.onnx")
    trained = {
        i.name: numpy_helper.to_array(i)
        for i in onnx.load(tmp_path / "trained.onnx").graph.initializer
    }
    np.testing.assert_array_equal(trained["w"], weights["w"])


def test_matches_numpy_sgd_and_named_inputs():
    session = steep.TrainingSession(linear(), loss="mse", optimizer="sgd", lr=0.05)
    w = session.weights()["w"].numpy().astype(np.float64)
    b = session.weights()["b"].numpy().astype(np.float64)
    x, y = data()
    for _ in range(5):
        error = x @ w + b - y
        loss = session.step(x=x, label=y).loss
        assert loss == pytest.approx(np.mean(error**2), rel=1e-5)
        w -= 0.05 * 2 * x.T @ error / len(x)
        b -= 0.05 * 2 * error.mean(0)
    np.testing.assert_allclose(session.weights()["w"].numpy(), w, rtol=1e-4, atol=1e-5)


def test_gradients_evaluation_and_outputs():
    session = steep.TrainingSession(linear().SerializeToString(), loss="mse", step_outputs=["y"])
    x, y = data(7)
    loss, gradients = session.gradients(x, y)
    w = session.weights()["w"].numpy()
    np.testing.assert_allclose(
        gradients["w"].numpy(), 2 * x.T @ (x @ w - y) / len(x), rtol=1e-4, atol=1e-4
    )
    result = session.eval(x)
    assert result.loss is None
    np.testing.assert_allclose(result.outputs[0].numpy(), x @ w, rtol=1e-4, atol=1e-5)
    assert session.eval(x, y).loss == pytest.approx(loss, rel=1e-6)
    step = session.step(x, y)
    np.testing.assert_allclose(step.outputs[0].numpy(), x @ w, rtol=1e-4, atol=1e-5)


def test_checkpoint_resumes_bit_for_bit(tmp_path):
    def fresh():
        return steep.TrainingSession(linear(), loss="mse", optimizer="adamw", lr=0.01)

    x, y = data()
    a = fresh()
    for _ in range(5):
        a.step(x, y)
    a.save_checkpoint(tmp_path / "c", '{"epoch": 1}')
    expected = [a.step(x, y).loss for _ in range(5)]
    b = fresh()
    assert json.loads(b.load_checkpoint(tmp_path / "c")) == {"epoch": 1}
    assert [b.step(x, y).loss for _ in range(5)] == expected


def test_checkpoints_at_places_that_are_none(tmp_path, monkeypatch):
    session = steep.TrainingSession(linear(), loss="mse")
    for call in (session.save_checkpoint, session.load_checkpoint):
        with pytest.raises(steep.Error, match="cannot have this path"):
            call("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(steep.IoError, match="not replaced"):
        session.save_checkpoint(".")
    assert list(tmp_path.iterdir()) == [] and os.getcwd() == str(tmp_path)


def test_checkpoint_of_another_number_of_threads_warns(tmp_path, caplog):
    code = (
        "import sys, steep\n"
        "s = steep.TrainingSession(sys.argv[1], loss='mse')\n"
        "s.save_checkpoint(sys.argv[2])"
    )
    (tmp_path / "m.onnx").write_bytes(linear().SerializeToString())
    for threads in ("7", None):
        subprocess.run(
            [sys.executable, "-c", code, tmp_path / "m.onnx", tmp_path / "c"],
            env={**os.environ, "OMP_NUM_THREADS": threads} if threads else None,
            check=True,
        )
        caplog.clear()
        session = steep.TrainingSession(tmp_path / "m.onnx", loss="mse")
        assert session.load_checkpoint(tmp_path / "c") == "{}"
        said = [
            r.getMessage() for r in caplog.records if r.name == "steep" and r.levelname == "WARNING"
        ]
        if threads:
            assert len(said) == 1 and "saved with 7 threads" in said[0]


def test_files_replace_files_only(tmp_path):
    session = steep.TrainingSession(linear(), loss="mse")
    (tmp_path / "link").symlink_to("/dev/null")
    for target in ("/dev/null", tmp_path / "link", tmp_path):
        with pytest.raises(steep.IoError, match=r"a device|a folder"):
            session.export_onnx(target)
        session.start_profile()
        with pytest.raises(steep.IoError, match=r"a device|a folder"):
            session.write_profile(target)
        with pytest.raises(steep.IoError):
            session.save_checkpoint("/dev/null")
    assert Path("/dev/null").is_char_device()
    assert [p.name for p in tmp_path.iterdir()] == ["link"]


def test_groups_schedule_and_state():
    session = steep.TrainingSession(
        linear(),
        loss="mse",
        optimizer="sgd",
        momentum=0.9,
        lr=0.1,
        groups=[(["b"], {"lr_multiplier": 0.0})],
        schedule="linear",
        warmup_steps=2,
        total_steps=10,
        clip_norm=1.0,
    )
    x, y = data()
    rates = [session.step(x, y).lr for _ in range(3)]
    assert rates == pytest.approx([0.05, 0.1, 0.1])
    np.testing.assert_array_equal(session.weights()["b"].numpy(), [0])
    assert session.step(x, y).grad_norm > 1
    moments = {k: v.numpy() for k, v in session.optimizer_state().items()}
    assert set(moments) == set(session.optimizer_state_names)
    session.set_optimizer_state({k: np.zeros_like(v) for k, v in moments.items()})
    session.set_weights({"w": np.ones((10, 1), np.float32)})
    assert session.state("w").numpy().sum() == 10


@pytest.mark.parametrize(
    "inputs, kind, text",
    [
        (lambda x, y: (x,), steep.DataError, "label"),
        (lambda x, y: (x, y, y), steep.DataError, "2"),
        (lambda x, y: (x > 0, y > 0, y > 0), steep.DataError, "2"),
        (lambda x, y: (x.astype(np.float64) + 1e300, y), steep.DataError, "at element 0"),
        (lambda x, y: (x[:, :4], y), steep.ShapeError, "x"),
        (lambda x, y: (x, y[:5]), steep.ShapeError, ""),
        (lambda x, y: ("text", y), steep.DataError, "str"),
        (lambda x, y: (x, y * np.float32("nan")), steep.DataError, "NaN in row 0"),
    ],
)
def test_bad_inputs_leave_weights_alone(inputs, kind, text):
    session = steep.TrainingSession(linear(), loss="mse", optimizer="sgd", lr=0.1)
    x, y = data()
    before = session.weights()["w"].numpy().copy()
    with pytest.raises((steep.DataError, steep.ShapeError), match=text or None) as e:
        session.step(*inputs(x, y))
    assert isinstance(e.value, (kind, ValueError))
    np.testing.assert_array_equal(session.weights()["w"].numpy(), before)
    session.step(x, y)


def test_bad_models(tmp_path):
    with pytest.raises(steep.ModelError):
        steep.TrainingSession(b"not a model", loss="mse")
    with pytest.raises(steep.IoError) as e:
        steep.TrainingSession(tmp_path / "missing.onnx", loss="mse")
    assert isinstance(e.value, OSError)
    with pytest.raises(steep.ModelError, match="nowhere"):
        steep.TrainingSession(linear(), loss="mse", trainable=["nowhere"])
    with pytest.raises(steep.ModelError, match="momentum"):
        steep.TrainingSession(linear(), loss="mse", groups=[(["w"], {"momentum": 1})])
    for groups in ([["w"], ["b", "w"]], [["w", "w"]]):
        with pytest.raises(steep.ModelError, match="named twice"):
            steep.TrainingSession(linear(), loss="mse", groups=[(names, {}) for names in groups])
    assert steep.check(linear()) == []


def test_weights_given_beside_the_model_are_trained_where_they_lie(tmp_path):
    whole = linear()
    bare = onnx.ModelProto.FromString(whole.SerializeToString())
    arrays = {i.name: numpy_helper.to_array(i).copy() for i in bare.graph.initializer}
    for initializer in bare.graph.initializer:
        initializer.ClearField("raw_data")
    settings = {"loss": "mse", "optimizer": "sgd", "lr": 0.05}
    session = steep.TrainingSession(bare, weights=arrays, **settings)
    twin = steep.TrainingSession(whole, **settings)
    for seed in range(3):
        assert session.step(*data(seed=seed)).loss == twin.step(*data(seed=seed)).loss
    for name, expected in twin.weights().items():
        np.testing.assert_array_equal(arrays[name], expected.numpy())
    session.export_onnx(tmp_path / "trained.onnx")
    twin.export_onnx(tmp_path / "twin.onnx")
    assert (tmp_path / "trained.onnx").read_bytes() == (tmp_path / "twin.onnx").read_bytes()


def test_weights_that_are_given_must_fit():
    arrays = {"w": np.zeros((10, 1), np.float32)}
    with pytest.raises(steep.ModelError, match="no such initializer"):
        steep.TrainingSession(linear(), loss="mse", weights={"v": arrays["w"]})
    with pytest.raises(steep.ModelError, match="wrong type or shape"):
        steep.TrainingSession(linear(), loss="mse", weights={"w": np.zeros((9, 1), np.float32)})
    frozen = steep.TrainingSession(linear(), loss="mse", frozen=["w"], weights=arrays)
    frozen.step(*data())
    np.testing.assert_array_equal(arrays["w"], 0)
    exported = onnx.ModelProto.FromString(frozen.export_onnx_bytes())
    np.testing.assert_array_equal(numpy_helper.to_array(exported.graph.initializer[0]), 0)


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (read_only, "read-only"),
        (lambda a: np.repeat(a, 2, axis=1)[:, ::2], "strides of"),
        (lambda a: np.broadcast_to(a, a.shape), "read-only"),
    ],
)
def test_weights_that_cannot_be_written_are_refused(spoil, says):
    arrays = {"w": spoil(np.ones((10, 1), np.float32)), "b": np.ones(1, np.float32)}
    with pytest.raises(steep.DataError, match=says) as caught:
        steep.TrainingSession(linear(), loss="mse", weights=arrays)
    assert caught.value.node == "w" and "numpy.array(w" in caught.value.remedy
    # Nobody writes to what is not trained.
    frozen = steep.TrainingSession(linear(), loss="mse", weights=arrays, frozen=["w"])
    frozen.step(*data())
    np.testing.assert_array_equal(arrays["w"], 1)
    assert arrays["b"] != 1


def test_dlpack_says_what_is_read_only():
    class Exporter:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    good, bad = np.ones((10, 1), np.float32), read_only(np.ones((10, 1), np.float32))
    steep.TrainingSession(linear(), loss="mse", weights={"w": Exporter(good)}).step(*data())
    assert (good != 1).any()
    with pytest.raises(steep.DataError, match="read-only"):
        steep.TrainingSession(linear(), loss="mse", weights={"w": Exporter(bad)})
    # A tensor that was made from such an array has bytes of its own.
    tensor = steep.Tensor(bad)
    steep.TrainingSession(linear(), loss="mse", weights={"w": tensor}).step(*data())
    np.testing.assert_array_equal(bad, 1)


def classifier(*, loss_inside=False, extra=(), outputs=(), opset=17):
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["logits"]),
        *extra,
    ]
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, ["n", 4])]
    if loss_inside:
        inputs.append(value("target", TensorProto.INT64, ["n"]))
        nodes.append(
            helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "target", "cw"], ["loss"])
        )
    known = {
        "logits": value("logits", TensorProto.FLOAT, ["n", 3]),
        "loss": value("loss", TensorProto.FLOAT, []),
        "right": value("right", TensorProto.BOOL, ["n"]),
        "p": value("p", TensorProto.FLOAT, ["n", 3]),
    }
    graph = helper.make_graph(
        nodes,
        "classifier",
        inputs,
        [known[name] for name in outputs],
        [
            numpy_helper.from_array(rng.normal(size=(4, 3)).astype(np.float32), "w"),
            numpy_helper.from_array(np.zeros(3, np.float32), "b"),
            numpy_helper.from_array(np.arange(1, 4, dtype=np.float32), "cw"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


CLASSES = (np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0]))


def test_an_inference_export_has_no_loss_and_no_labels():
    model = classifier(loss_inside=True, outputs=["logits", "loss"])
    session = steep.TrainingSession(model, optimizer="sgd", lr=0.1)
    assert session.parameter_names == ["w", "b"]
    (left_out,) = session.left_out
    assert (left_out.name, left_out.reason) == ("cw", "weighs the loss")
    session.step(*CLASSES)
    exported = onnx.ModelProto.FromString(session.export_onnx_bytes(for_inference=True))
    onnx.checker.check_model(exported, full_check=True)
    assert [i.name for i in exported.graph.input] == ["x"]
    assert [o.name for o in exported.graph.output] == ["logits"]
    assert [i.name for i in exported.graph.initializer] == ["w", "b"]
    assert [n.op_type for n in exported.graph.node] == ["MatMul", "Add"]
    (logits,) = steep.InferenceSession(exported.SerializeToString()).run(None, {"x": CLASSES[0]})
    np.testing.assert_array_equal(logits, session.eval(*CLASSES).outputs[0].numpy())
    whole = onnx.ModelProto.FromString(session.export_onnx_bytes())
    assert [o.name for o in whole.graph.output] == ["logits", "loss"]


def test_outputs_that_read_the_labels_go_too_and_one_must_be_left():
    accuracy = [
        helper.make_node("ArgMax", ["logits"], ["best"], axis=1, keepdims=0),
        helper.make_node("Equal", ["best", "target"], ["right"]),
    ]
    model = classifier(loss_inside=True, extra=accuracy, outputs=["right", "logits", "loss"])
    named = steep.TrainingSession(model, label="target")
    exported = onnx.ModelProto.FromString(named.export_onnx_bytes(for_inference=True))
    assert [o.name for o in exported.graph.output] == ["logits"]
    assert [i.name for i in exported.graph.input] == ["x"]
    bare = steep.TrainingSession(classifier(loss_inside=True, outputs=["loss"]))
    with pytest.raises(steep.ModelError, match="no output") as caught:
        bare.export_onnx_bytes(for_inference=True)
    assert caught.value.node == "loss" and "for_inference=False" in caught.value.remedy


@pytest.mark.parametrize("opset", [11, 17])
def test_a_softmax_before_softmax_cross_entropy_is_left_out_of_the_loss(opset):
    softmax = [helper.make_node("Softmax", ["logits"], ["p"], axis=1)]
    models = [classifier(extra=softmax, outputs=["p"], opset=opset)]
    models.append(classifier(outputs=["logits"], opset=opset))
    sessions = [steep.TrainingSession(m, loss="softmax_cross_entropy") for m in models]
    x = np.random.default_rng(0).normal(size=(6, 4))
    losses = [s.step(x.astype(np.float32), [0] * 6).loss for s in sessions]
    assert losses[0] == pytest.approx(losses[1])
    assert sessions[0].warnings == []


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_sixteen_bit_overflow_is_named(precision):
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
            helper.make_node("Mul", ["h", "w"], ["square"], name="too_much"),
            helper.make_node("Cast", ["square"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["f", "v"], ["y"]),
        ],
        "half",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        [
            numpy_helper.from_array(np.full(4, 300, np.float16), "w"),
            numpy_helper.from_array(rng.normal(size=(4, 1)).astype(np.float32), "v"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = steep.TrainingSession(
        model,
        loss="mse",
        trainable=["w", "v"],
        optimizer="sgd",
        lr=1e-9,
        precision=precision,
        loss_scale=1.0,
        check_finite=True,
    )
    y = np.zeros((2, 1), np.float32)
    session.step(np.ones((2, 4), np.float32), y)
    before = {k: v.numpy() for k, v in session.weights().items()}
    with pytest.raises(steep.DataError, match="no weight was changed") as caught:
        session.step(np.full((2, 4), 300, np.float32), y)
    assert caught.value.node == "too_much", str(caught.value)
    for name, weight in session.weights().items():
        np.testing.assert_array_equal(weight.numpy(), before[name])


FLOATS = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in ("float16", "bfloat16", "float32", "float64")
}


@pytest.mark.parametrize("own", FLOATS)
def test_arrays_of_any_type_become_the_models(own):
    """The gradient of the sum of w x is x: as the model has it, rounded once."""
    dtype = FLOATS[own]
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "w"], ["p"]),
            helper.make_node("ReduceSum", ["p"], ["loss"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, [6])],
        [helper.make_tensor_value_info("loss", kind, [1])],
        [numpy_helper.from_array(np.ones(6, dtype), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = steep.TrainingSession(model, trainable=["w"], optimizer="sgd")
    numbers = [1, -0.0, 3.0009765625000004, -60000, 3e-7, np.inf]  # the third is next to a tie
    for x in [np.array(numbers, other) for other in FLOATS.values()] + [
        np.array([1, 0, 3, 100, 7, -9], np.int8),
        np.array([1, 0, 1, 1, 0, 0], bool),
    ]:
        _, gradients = session.gradients(x)
        np.testing.assert_array_equal(gradients["w"].numpy(), x.astype(np.float64).astype(dtype))
    if own != "float64":
        with pytest.raises(steep.DataError, match="at element 1"):
            session.gradients(np.array([1, 1e39, 1, 1, 1, 1]))


OF_FOUR_ROWS = np.array([1, 0, 2, 1])


@pytest.mark.parametrize(
    "labels",
    [
        OF_FOUR_ROWS[:, None],
        OF_FOUR_ROWS.astype(np.float32),
        OF_FOUR_ROWS.astype(np.float16)[:, None],
    ]
    + [np.eye(3, dtype=kind)[OF_FOUR_ROWS] for kind in (bool, np.int64, np.float32, np.float16)],
)
def test_classes_in_any_form(labels):
    session = steep.TrainingSession(linear(outputs=3), loss="softmax_cross_entropy")
    x = data()[0][:4]
    right = session.gradients(x, OF_FOUR_ROWS)
    other = session.gradients(x, labels)
    assert other[0] == right[0] == session.eval(x=x, label=labels).loss
    np.testing.assert_array_equal(other[1]["w"].numpy(), right[1]["w"].numpy())


@pytest.mark.parametrize(
    "labels, text",
    [
        (OF_FOUR_ROWS + 0.5, "1.5 at element 0"),
        (OF_FOUR_ROWS * np.nan, "nan at element 0"),
        (np.full((4, 3), 1 / 3), "0 times 1 and 0 times 0 in row 0"),
        (np.ones((4, 3)), "3 times 1"),
        (np.zeros((4, 3)), "0 times 1 and 3 times 0"),
        (np.eye(4)[OF_FOUR_ROWS], "rank|shape|[Ll]abel"),
    ],
)
def test_labels_that_name_no_class(labels, text):
    session = steep.TrainingSession(linear(outputs=3), loss="softmax_cross_entropy")
    with pytest.raises((steep.DataError, steep.ShapeError), match=text):
        session.step(data()[0][:4], labels)


def test_labels_with_an_axis_more_or_less():
    loss = "binary_cross_entropy_with_logits"
    session = steep.TrainingSession(linear(), loss=loss, optimizer="sgd")
    x, y = data()
    y = (y > 0).astype(np.float32)
    right = session.gradients(x, y)
    for labels in (y[:, 0], y[:, 0] > 0, y[:, :, None], y.astype(np.float16)):
        other = session.gradients(x, labels)
        assert other[0] == right[0]
        np.testing.assert_array_equal(other[1]["w"].numpy(), right[1]["w"].numpy())


def test_labels_that_would_broadcast_are_refused():
    """As in PyTorch: [n] and [n, 1] are [n, n], another loss than is meant."""
    session = steep.TrainingSession(linear(), loss="mse", optimizer="sgd")
    x, y = data()
    for labels, remedy in ((y[:, 0], "labels\\[:, None\\]"), (y[:, :, None], "last axis off")):
        with pytest.raises(steep.ShapeError, match=remedy):
            session.gradients(x, labels)
