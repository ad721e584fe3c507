"""Losses by name: equal to PyTorch's of that name, gradients included."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import steep

torch = pytest.importorskip("torch")
F = torch.nn.functional
RNG = np.random.default_rng(0)
ROWS, CLASSES = 7, 4
X = RNG.normal(0, 2, (ROWS, 3)).astype(np.float32)
W = RNG.normal(0, 1, (3, CLASSES)).astype(np.float32)
TARGET = RNG.normal(0, 2, (ROWS, CLASSES)).astype(np.float32)
SHARES = RNG.uniform(0, 1, (ROWS, CLASSES)).astype(np.float32)
LABELS = np.array([0, 3, 1, 2, 2, 0, 1])
WEIGHTS = (1.0, 2.5, 0.0, 0.5)


def model(tail: str = "Identity(z)", dtype: str = "float") -> onnx.ModelProto:
    made = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g ({dtype}[n,3] x) => ({dtype}[n,{CLASSES}] y) {{ z = MatMul(x, w)  y = {tail} }}""")
    kind = {"float": np.float32, "double": np.float64}[dtype]
    made.graph.initializer.append(onnx.numpy_helper.from_array(W.astype(kind), "w"))
    return made


def of_torch(loss, tail=lambda z: z, dtype=torch.float32):
    w = torch.tensor(W, dtype=dtype, requires_grad=True)
    value = loss(tail(torch.tensor(X, dtype=dtype) @ w))
    value.backward()
    return value.item(), w.grad.numpy()


def check(options, labels, loss, tail=None, of_tail=lambda z: z):
    for dtype, kind, name in (
        (torch.float32, np.float32, "float"),
        (torch.float64, np.float64, "double"),
    ):
        made = model(tail or "Identity(z)", name)
        session = steep.TrainingSession(made, optimizer="sgd", **options)
        x = X.astype(kind)
        fed = labels.astype(kind) if labels.dtype == np.float32 else labels
        received, gradients = session.gradients(x, fed)
        target = torch.tensor(fed)
        expected, slope = of_torch(lambda y, t=target: loss(y, t), of_tail, dtype)
        assert received == pytest.approx(expected, rel=1e-5)
        assert session.eval(x, fed).loss == pytest.approx(expected, rel=1e-5)
        np.testing.assert_allclose(gradients["w"].numpy(), slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("delta", [0.3, 1.0, 2.5])
def test_huber(delta):
    options = {"loss": "huber", "huber_delta": delta}
    check(options, TARGET, lambda y, t: F.huber_loss(y, t, delta=delta))


def test_l1():
    check({"loss": "l1"}, TARGET, F.l1_loss)


def test_l1_has_no_slope_at_zero():
    session = steep.TrainingSession(model(), loss="l1", optimizer="sgd")
    _, gradients = session.gradients(np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32))
    assert not np.any(gradients["w"].numpy())


@pytest.mark.parametrize("labels", [SHARES, (SHARES > 0.5).astype(np.float32)])
def test_binary_cross_entropy_of_probabilities(labels):
    options = {"loss": "binary_cross_entropy"}
    check(options, labels, F.binary_cross_entropy, "Sigmoid(z)", torch.sigmoid)


def test_binary_cross_entropy_of_scores():
    options = {"loss": "binary_cross_entropy_with_logits"}
    check(options, SHARES, F.binary_cross_entropy_with_logits)


def test_binary_cross_entropy_at_the_ends():
    """Probabilities of exactly 0 and 1: logarithms are -100, slopes are bounded."""
    made = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[n,1] x) => (float[n,1] y) <float[1] w = {1}> { y = Mul(x, w) }""")
    session = steep.TrainingSession(
        made, loss="binary_cross_entropy", optimizer="sgd", trainable=["w"]
    )
    for p in (0.0, 1.0, 1e-8, 1e-30, 1 - 6e-8):
        for t in (0.0, 0.25, 1.0):
            x, label = (np.array([[v]], np.float32) for v in (p, t))
            w = torch.ones(1, requires_grad=True)
            expected = F.binary_cross_entropy(torch.tensor(x) * w, torch.tensor(label))
            expected.backward()
            received, gradients = session.gradients(x, label)
            assert received == pytest.approx(expected.item(), rel=1e-5), (p, t)
            assert gradients["w"].numpy()[0] == pytest.approx(w.grad.item(), rel=1e-4), (p, t)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weights", [(), WEIGHTS])
@pytest.mark.parametrize("ignored", [None, 2])
def test_cross_entropy(smoothing, weights, ignored):
    def loss(y, t):
        w = torch.tensor(weights, dtype=y.dtype) if weights else None
        index = -100 if ignored is None else ignored
        return F.cross_entropy(y, t, w, ignore_index=index, label_smoothing=smoothing)

    options = {"loss": "softmax_cross_entropy", "ignore_index": ignored}
    options |= {"class_weights": weights, "label_smoothing": smoothing}
    check(options, LABELS, loss)


@pytest.mark.parametrize("weights", [(), WEIGHTS])
@pytest.mark.parametrize("ignored", [None, 2])
@pytest.mark.parametrize("tail", ["LogSoftmax(z)", "Identity(z)"])
def test_nll(weights, ignored, tail):
    def loss(y, t):
        w = torch.tensor(weights, dtype=y.dtype) if weights else None
        return F.nll_loss(y, t, w, ignore_index=-100 if ignored is None else ignored)

    options = {"loss": "nll", "ignore_index": ignored, "class_weights": weights}
    of_tail = (lambda z: z.log_softmax(-1)) if tail.startswith("Log") else (lambda z: z)
    check(options, LABELS, loss, tail, of_tail)


@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "nll"])
@pytest.mark.parametrize(
    "labels", [np.eye(CLASSES)[LABELS], np.eye(CLASSES, dtype=np.int32)[LABELS], LABELS * 1.0]
)
def test_one_hot_and_float_labels(loss, labels):
    session = steep.TrainingSession(model(), loss=loss, class_weights=WEIGHTS)
    assert session.eval(X, labels).loss == session.eval(X, LABELS).loss


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_parts_weigh_as_their_labels_do(smoothing):
    """Accumulated parts of unequal weight are one step of their batch, smoothed or not."""
    options = {"loss": "softmax_cross_entropy", "label_smoothing": smoothing, "optimizer": "sgd"}
    options |= {"class_weights": WEIGHTS, "lr": 0.5}
    whole, parts = (steep.TrainingSession(model(), **options) for _ in range(2))
    expected = whole.step(X, LABELS)
    parts.step(X[:2], LABELS[:2], accumulate=True)
    parts.step(X[2:], LABELS[2:], accumulate=True)
    assert parts.apply_gradients().loss == pytest.approx(expected.loss, rel=1e-5)
    np.testing.assert_allclose(
        parts.weights()["w"].numpy(), whole.weights()["w"].numpy(), rtol=1e-5, atol=1e-6
    )


def test_classes_on_the_last_of_three_axes():
    made = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[n,t,3] x) => (float[n,t,{CLASSES}] y) {{ y = MatMul(x, w) }}""")
    made.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    x, labels = X[:6].reshape(2, 3, 3), LABELS[:6].reshape(2, 3)
    options = {"loss": "softmax_cross_entropy", "label_smoothing": 0.3, "class_weights": WEIGHTS}
    session = steep.TrainingSession(made, **options)
    y = torch.tensor(X[:6] @ W)
    expected = F.cross_entropy(
        y, torch.tensor(LABELS[:6]), torch.tensor(WEIGHTS), label_smoothing=0.3
    )
    assert session.eval(x, labels).loss == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loss": "hubert"}, "Did you mean huber"),
        ({"loss": "huber", "huber_delta": 0.0}, "huber_delta is out of range"),
        ({"loss": "huber", "huber_delta": float("nan")}, "huber_delta is out of range"),
        ({"loss": "mse", "huber_delta": 2.0}, "no huber_delta"),
        ({"loss": "softmax_cross_entropy", "label_smoothing": 1.1}, "label_smoothing is out of"),
        ({"loss": "nll", "label_smoothing": 0.1}, "no label_smoothing"),
        ({"loss": "nll", "class_weights": (1, -1, 1, 1)}, "class_weights is out of range"),
        ({"loss": "mse", "class_weights": (1, 1, 1, 1)}, "no class_weights"),
        ({"loss": "softmax_cross_entropy", "class_weights": (1, 2)}, "4 class weights"),
    ],
)
def test_options_that_do_not_fit(options, text):
    with pytest.raises((steep.ModelError, steep.ShapeError), match=text):
        steep.TrainingSession(model(), **options)


@pytest.mark.parametrize(
    "nodes",
    [
        "n = Mul (s, minus)  e = Exp (n)  a = Add (e, one)  y = Reciprocal (a)",
        "n = Neg (s)  e = Exp (n)  a = Add (one, e)  y = Div (one, a)",
    ],
)
def test_a_sigmoid_in_parts_has_a_finite_gradient(nodes: str) -> None:
    """Where its power overflows, that of the parts is 0 · infinity: skl2onnx's SGDClassifier."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n,1] x) => (float[n,1] y)
        <float[1,1] w = {{100}}, float one = {{1}}, float minus = {{-1}}>
        {{ s = MatMul (x, w)  {nodes} }}"""
    session = steep.TrainingSession(
        onnx.parser.parse_model(text), loss="mse", optimizer="sgd", lr=1000.0
    )
    x = np.array([[-10], [0.01], [10]], np.float32)
    session.step(x, np.array([[0], [0.5], [1]], np.float32))
    assert np.isfinite(session.weights()["w"].numpy()).all()
    assert session.weights()["w"].numpy() != 100
