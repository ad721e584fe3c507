"""Losses on what is a probability already: each spelling is warned of."""

from __future__ import annotations

import re
import warnings

import numpy as np
import onnx.parser
import pytest

import steep

CE, BCE = "softmax_cross_entropy", "binary_cross_entropy_with_logits"


def session(tail: str, loss: str, columns: int = 2) -> steep.TrainingSession:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[n,3] x) => (float[n,{columns}] y) <float[3,2] w = {{1,2,3,4,5,6}}, float one = {{1}},
       float[3,1] v = {{1,2,3}}, float low = {{1e-7}}, float high = {{0.9999}},
       float[1] unity = {{1}}>
    {{ z = MatMul(x, w)  q = MatMul(x, v)  {tail} }}""")
    return steep.TrainingSession(model, loss=loss, optimizer="sgd")


@pytest.mark.parametrize(
    ("tail", "loss"),
    [
        ("y = Softmax<axis=0>(z)", CE),
        ("p = Softmax(z) c = Cast<to=1>(p) y = Clip(c, low, high)", CE),
        ("p = Softmax(z) a = Max(p, low) y = Min(high, a)", CE),
        ("p = Sigmoid(z) s = ReduceSum(p) y = Div(p, s)", CE),
        ("p = Sigmoid(z) y = LpNormalization<axis=1, p=1>(p)", CE),
        ("l = LogSoftmax(z) c = Cast<to=1>(l) p = Exp(c) y = Clip(p, low, high)", CE),
        ("p = Sigmoid(z) s = ReduceSum(p) t = Add(s, low) y = Div(p, t)", CE),
        ("p = Sigmoid(z) s = ReduceSum(p) u = Add(low, p) t = Add(s, low) y = Div(u, t)", CE),
        ("p = Softmax(z) r = Softmax(x) k = Softmax<axis=0>(z) y = Mean(p, k)", CE),
        ("p = Softmax(z) r = Mul(p, low) s = Sigmoid(z) t = Add(s, r) y = Div(t, high)", CE),
        ("n = Neg(z) e = Exp(n) d = Add(e, unity) y = Reciprocal(d)", CE),
        ("n = Neg(z) e = Exp(n) d = Add(one, e) y = Div(one, d)", BCE),
        ("y = Sigmoid(z)", CE),
        ("p = Sigmoid(z) c = Identity(p) y = Clip(c, low, high)", BCE),
        ("y = Softmax(z)", BCE),
    ],
)
def test_probabilities_under_a_loss_of_scores(tail: str, loss: str) -> None:
    with pytest.warns(UserWarning, match="bounds the loss"):
        session(tail, loss)


def test_a_cross_entropy_of_one_class() -> None:
    with pytest.warns(UserWarning, match="of one class is 0 .* binary_cross_entropy_with_logits"):
        session("y = Identity(q)", CE, columns=1)


@pytest.mark.parametrize(
    ("tail", "loss"),
    [
        ("y = Identity(z)", CE),
        ("p = Sigmoid(q) r = Sub(one, p) y = Concat<axis=1>(r, p)", CE),
        ("p = Sigmoid(q) r = Sub(unity, p) k = Concat<axis=1>(r, p) y = Cast<to=1>(k)", CE),
        ("p = LogSoftmax(z) y = Exp(p)", CE),
        ("y = LogSoftmax(z)", CE),
        ("y = Clip(z, low, high)", BCE),
        ("r = Sub(one, q) y = Concat<axis=1>(r, z)", "mse"),
        ("p = Sigmoid(z) y = Mul(p, z)", CE),
        ("y = Softmax(z)", "mse"),
        ("y = Softmax(z)", CE),
        ("y = Sigmoid(z)", BCE),
        ("p = Sigmoid(q) y = Concat<axis=1>(p, q)", CE),
        ("p = Exp(z) s = ReduceMax(p) y = Div(p, s)", CE),
        ("y = Exp(z)", CE),
        ("y = LpNormalization<axis=1>(z)", CE),
        ("p = Softmax(z) y = Add(p, z)", CE),
        ("p = Softmax(z) y = Div(p, high)", CE),
        ("s = ReduceSum(z) t = Add(s, low) p = Sigmoid(z) y = Div(p, t)", CE),
    ],
)
def test_scores_are_not_warned_of(tail: str, loss: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session(tail, loss, 3 if "r, z" in tail else 2)


@pytest.mark.parametrize(
    ("tail", "loss"),
    [
        ("y = Softmax(z)", CE),
        ("p = Softmax<axis=1>(z) y = Identity(p)", CE),
        ("y = Sigmoid(z)", BCE),
        ("h = Cast<to=11>(z) p = Sigmoid(h) y = Cast<to=1>(p)", BCE),
    ],
)
def test_a_loss_of_scores_finds_them_behind_probabilities(tail: str, loss: str) -> None:
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    label = np.arange(6) % 2 if loss == CE else (x[:, :2] > 0).astype(np.float32)
    ours, scores = session(tail, loss), session("y = Identity(z)", loss)
    for _ in range(3):
        assert ours.step(x, label).loss == pytest.approx(scores.step(x, label).loss, rel=1e-6)
    np.testing.assert_allclose(ours.weights()["w"], scores.weights()["w"], rtol=1e-6)
    # what it returns stays what the file says
    returned = ours.eval(x, label).outputs[0]
    assert np.all((np.asarray(returned) > 0) & (np.asarray(returned) < 1))


def test_a_value_within_the_model_can_be_trained_on() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[n,3] x) => (int64[n] best) <float[3,2] w = {1,2,3,4,5,6}>
    { z = MatMul(x, w)  p = Softmax(z)  best = ArgMax<axis=1, keepdims=0>(p) }""")
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    losses = [
        steep.TrainingSession(model, loss=CE, output=name, optimizer="sgd").step(x, [0] * 6).loss
        for name in ("p", "z")
    ]
    assert losses[0] == pytest.approx(losses[1])
    with pytest.raises(steep.ModelError, match="another float value of the model"):
        steep.TrainingSession(model, loss=CE, output="q")


@pytest.mark.parametrize(
    ("tail", "loss", "said"),
    [
        ("y = Softmax(z)", "nll", "holds probabilities"),
        ("p = Softmax(z) y = Clip(p, low, high)", "nll", "holds probabilities"),
        ("y = Identity(z)", "nll", "takes log-probabilities.*Choose softmax_cross_entropy"),
        ("y = Add(z, one)", "nll", "takes log-probabilities.*Choose softmax_cross_entropy"),
        ("y = Identity(z)", "binary_cross_entropy", "Choose binary_cross_entropy_with_logits"),
        ("y = LogSoftmax(z)", "nll", ""),
        ("p = Softmax(z) y = Log(p)", "nll", ""),
        ("e = ReduceLogSumExp<axes=[1]>(z) y = Sub(z, e)", "nll", ""),
        ("y = Sigmoid(z)", "binary_cross_entropy", ""),
        ("y = Clip(z, low, high)", "binary_cross_entropy", ""),
    ],
)
def test_other_losses_of_probabilities(tail: str, loss: str, said: str) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        session(tail, loss)
    assert len(seen) == bool(said)
    assert all(re.search(said, str(w.message)) for w in seen)
