"""Losses on what is a probability already: each spelling is warned of."""

from __future__ import annotations

import warnings

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
        ("y = Softmax(z)", CE),
        ("p = Softmax(z) c = Cast<to=1>(p) y = Clip(c, low, high)", CE),
        ("p = Softmax(z) a = Max(p, low) y = Min(high, a)", CE),
        ("p = Sigmoid(q) r = Sub(one, p) y = Concat<axis=1>(r, p)", CE),
        ("p = Sigmoid(q) r = Sub(unity, p) k = Concat<axis=1>(r, p) y = Cast<to=1>(k)", CE),
        ("p = Sigmoid(z) s = ReduceSum(p) y = Div(p, s)", CE),
        ("y = Sigmoid(z)", CE),
        ("y = Sigmoid(z)", BCE),
        ("p = Sigmoid(z) c = Identity(p) y = Clip(c, low, high)", BCE),
        ("y = Softmax(z)", BCE),
    ],
)
def test_probabilities_under_a_loss_of_scores(tail: str, loss: str) -> None:
    with pytest.warns(UserWarning, match="bounds the loss"):
        session(tail, loss)


@pytest.mark.parametrize(
    ("tail", "loss"),
    [
        ("y = Identity(z)", CE),
        ("y = LogSoftmax(z)", CE),
        ("y = Clip(z, low, high)", BCE),
        ("r = Sub(one, q) y = Concat<axis=1>(r, z)", "mse"),
        ("p = Sigmoid(z) y = Mul(p, z)", CE),
        ("y = Softmax(z)", "mse"),
        ("p = Sigmoid(q) y = Concat<axis=1>(p, q)", CE),
        ("p = Exp(z) s = ReduceMax(p) y = Div(p, s)", CE),
    ],
)
def test_scores_are_not_warned_of(tail: str, loss: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session(tail, loss, 3 if "r, z" in tail else 2)
