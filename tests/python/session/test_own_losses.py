"""Losses given as ONNX models: their value and gradient are those of the same loss in PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import steep

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
ROWS, CLASSES = 7, 4
X = RNG.normal(0, 2, (ROWS, 3)).astype(np.float32)
W = RNG.normal(0, 1, (3, CLASSES)).astype(np.float32)
TARGET = RNG.normal(0, 2, (ROWS, CLASSES)).astype(np.float32)
LABELS = np.array([0, 3, 1, 2, 2, 0, 1])

FOCAL = """<ir_version: 10, opset_import: ["": 18]>
focal (float[rows, classes] scores, int64[rows] labels) => (float loss)
<float gamma = {2.0}, int64[1] last = {1}> {
    logs = LogSoftmax <axis = 1> (scores)
    column = Unsqueeze (labels, last)
    log_p = GatherElements <axis = 1> (logs, column)
    p = Exp (log_p)
    one = Constant <value_float = 1.0> ()
    rest = Sub (one, p)
    weight = Pow (rest, gamma)
    weighted = Mul (weight, log_p)
    mean = ReduceMean <keepdims = 0> (weighted)
    loss = Neg (mean)
}"""


def focal_loss(scores, labels):
    log_p = torch.log_softmax(scores, 1).gather(1, labels[:, None])
    return (-((1 - log_p.exp()) ** 2) * log_p).mean()


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def model() -> onnx.ModelProto:
    made = parsed(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[n,3] x) => (float[n,{CLASSES}] y) {{ y = MatMul(x, w) }}""")
    made.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    return made


def expected(loss, labels):
    w = torch.tensor(W, requires_grad=True)
    value = loss(torch.tensor(X) @ w, torch.tensor(labels))
    value.backward()
    return value.item(), w.grad.numpy()


@pytest.mark.parametrize("form", ["path", "text", "bytes", "proto"])
def test_a_loss_of_class_numbers(form, tmp_path):
    path = tmp_path / "focal.onnx"
    onnx.save(parsed(FOCAL), path)
    loss = {
        "path": path,
        "text": str(path),
        "bytes": path.read_bytes(),
        "proto": parsed(FOCAL),
    }[form]
    session = steep.TrainingSession(model(), loss=loss, optimizer="sgd", lr=0.1)
    path.unlink()  # a session reads it once
    value, slope = expected(focal_loss, LABELS)
    received, gradients = session.gradients(X, LABELS)
    assert received == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(gradients["w"].numpy(), slope, rtol=1e-4, atol=1e-6)
    assert session.eval(X, LABELS.astype(np.int32)).loss == pytest.approx(value, rel=1e-5)
    assert session.step(X, LABELS).loss == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(session.weights()["w"].numpy(), W - 0.1 * slope, rtol=1e-4)
    assert [i.name for i in session.input_info()] == ["x", "label"]


def test_a_loss_with_a_function_of_its_own_and_parts():
    text = """<ir_version: 10, opset_import: ["": 18, "my": 1]>
    charbonnier (float[a, b] y, float[a, b] t) => (float loss) {
        d = my.Distance (y, t)
        loss = ReduceMean <keepdims = 0> (d)
    }
    <domain: "my", opset_import: ["": 18]>
    Distance (y, t) => (d) {
        error = Sub (y, t)
        squared = Mul (error, error)
        one = Constant <value_float = 1.0> ()
        shifted = Add (squared, one)
        d = Sqrt (shifted)
    }"""
    session = steep.TrainingSession(model(), loss=parsed(text), optimizer="sgd", lr=0.1)
    value, slope = expected(lambda y, t: ((y - t) ** 2 + 1).sqrt().mean(), TARGET)
    for _ in range(2):
        assert session.step(X, TARGET, accumulate=True).loss == pytest.approx(value, rel=1e-5)
    session.apply_gradients()
    np.testing.assert_allclose(session.weights()["w"].numpy(), W - 0.1 * slope, rtol=1e-4)


def test_fit_and_check_take_it():
    session = steep.TrainingSession(model(), loss=parsed(FOCAL), optimizer="adamw", lr=0.1)
    history = session.fit((X, LABELS), epochs=5, batch=ROWS, validation=(X, LABELS))
    assert history.epochs[-1].validation_loss < history.epochs[0].validation_loss
    assert steep.check(model(), loss=parsed(FOCAL)) == []
    wrong = parsed(FOCAL.replace("Neg", "NeverThere"))
    assert "NeverThere" in str(steep.check(model(), loss=wrong)[0])


def test_a_checkpoint_belongs_to_its_loss(tmp_path):
    session = steep.TrainingSession(model(), loss=parsed(FOCAL), optimizer="sgd")
    session.save_checkpoint(tmp_path / "c")
    steep.TrainingSession(model(), loss=parsed(FOCAL), optimizer="sgd").load_checkpoint(
        tmp_path / "c"
    )
    other = parsed(FOCAL.replace("{2.0}", "{3.0}"))
    with pytest.raises(steep.CheckpointError):
        steep.TrainingSession(model(), loss=other, optimizer="sgd").load_checkpoint(tmp_path / "c")


def test_a_loss_keeps_the_data_that_its_file_had(tmp_path):
    """The data beside the file are read once: later graphs of the session have the same loss."""
    loss = parsed(FOCAL)
    gamma = next(t for t in loss.graph.initializer if t.name == "gamma")
    gamma.raw_data = np.array([2.0], np.float32).tobytes()
    gamma.ClearField("float_data")
    path = tmp_path / "focal.onnx"
    onnx.save(loss, path, save_as_external_data=True, location="focal.data", size_threshold=0)
    session = steep.TrainingSession(model(), loss=path, optimizer="sgd")
    given = steep.TrainingSession(model(), loss=parsed(FOCAL), optimizer="sgd")
    (tmp_path / "focal.data").write_bytes(b"")
    for rows in (ROWS, 3):
        loss_value = session.step(X[:rows], LABELS[:rows]).loss
        assert loss_value == given.step(X[:rows], LABELS[:rows]).loss
    session.save_checkpoint(tmp_path / "c")
    with pytest.raises(steep.ModelError, match="gamma"):
        steep.TrainingSession(model(), loss=path, optimizer="sgd")


def loss_of(inputs: str, body: str, result: str = "float loss") -> onnx.ModelProto:
    return parsed(f"""<ir_version: 10, opset_import: ["": 18]>
    own ({inputs}) => ({result}) {{ {body} }}""")


TAKES = "float[rows, 4] y, float[rows, 4] t"


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (loss_of("float[a, b] y", "loss = ReduceMean <keepdims = 0> (y)"), "2 inputs"),
        (loss_of(TAKES, "loss = Sub (y, t)", "float[rows, 4] loss"), "one float element"),
        (
            loss_of("float[rows, 5] y, float[rows, 5] t", "d = Sub (y, t) loss = ReduceMean (d)"),
            "such scores",
        ),
        (loss_of("double[a, b] y, double[a, b] t", "loss = ReduceMean (y)"), "such scores"),
        (
            loss_of(
                TAKES,
                "r = RandomNormalLike (y) d = Sub (r, t) e = Sub (d, y) "
                "loss = ReduceMean <keepdims = 0> (e)",
            ),
            "random",
        ),
        (b"none", "own loss|model"),
        ("nowhere.onnx", "nowhere.onnx"),
        ("mean_squared", "NAME.onnx"),
    ],
)
def test_what_is_no_loss(loss, text):
    with pytest.raises(steep.Error, match=text):
        steep.TrainingSession(model(), loss=loss)


def test_an_option_of_another_loss_is_refused():
    with pytest.raises(steep.ModelError, match="huber_delta"):
        steep.TrainingSession(model(), loss=parsed(FOCAL), huber_delta=2.0)


def test_scores_of_a_loss_may_be_an_inner_value():
    made = parsed("""<ir_version: 8, opset_import: ["": 17]>
    g (float[n,3] x) => (float[n,4] p) { y = MatMul(x, w)  p = Softmax(y) }""")
    made.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    session = steep.TrainingSession(made, loss=parsed(FOCAL), output="y")
    value, _ = expected(focal_loss, LABELS)
    assert session.eval(X, LABELS).loss == pytest.approx(value, rel=1e-5)


def test_a_loss_keeps_its_own_constants():
    """A large constant of the loss is no parameter, whatever its name."""
    nodes = [
        helper.make_node("Mul", ["y", "w"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "t"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["loss"], keepdims=0),
    ]
    kind = TensorProto.FLOAT
    scale = RNG.uniform(1, 2, CLASSES).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "scaled",
        [helper.make_tensor_value_info(n, kind, ["n", CLASSES]) for n in "yt"],
        [helper.make_tensor_value_info("loss", kind, [])],
        [onnx.numpy_helper.from_array(scale, "w")],
    )
    own = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = steep.TrainingSession(model(), loss=own, optimizer="sgd")
    assert session.parameter_names == ["w"]
    value, slope = expected(lambda y, t: ((y * torch.tensor(scale) - t) ** 2).mean(), TARGET)
    received, gradients = session.gradients(X, TARGET)
    assert received == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(gradients["w"].numpy(), slope, rtol=1e-4, atol=1e-6)
