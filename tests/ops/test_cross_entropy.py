"""Cross entropy's errors against float64 beside PyTorch's: confident, undecided and wrong rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from nodes import evaluate, gradients
from onnx import TensorProto, helper
from rows.row import Row

import steep
from steep import _steep

LOSS = [("SoftmaxCrossEntropyLoss", ["x", "t"], "y", {})]
FORMS = {
    "one": LOSS,
    "likelihood": [
        ("LogSoftmax", ["x"], "l", {"axis": 1}),
        ("NegativeLogLikelihoodLoss", ["l", "t"], "y", {}),
    ],
    "picked": [
        ("LogSoftmax", ["x"], "l", {"axis": 1}),
        ("GatherElements", ["l", "column"], "p", {"axis": 1}),
        ("ReduceMean", ["p"], "m", {"keepdims": 0}),
        ("Neg", ["m"], "y", {}),
    ],
}


def model(form):
    inputs = [("x", TensorProto.FLOAT, ["n", "c"]), ("t", TensorProto.INT64, ["n"])]
    nodes = [helper.make_node("Unsqueeze", ["t", "one"], ["column"])] * (form == "picked")
    nodes += [helper.make_node(op, i, [y], **attrs) for op, i, y, attrs in FORMS[form]]
    graph = helper.make_graph(
        nodes,
        "loss",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [onnx.numpy_helper.from_array(np.array([1]), "one")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def rows(classes, margin, offset):
    """Scores whose label is above all others together by `margin`."""
    rng = np.random.default_rng(classes)
    n = 64 if classes < 10000 else 8
    labels = rng.integers(0, classes, n)
    x = rng.normal(0, 1, (n, classes))
    there = np.arange(n), labels
    x[there] = -np.inf
    x[there] = np.log(np.exp(x).sum(1)) + margin
    return (x + offset).astype(np.float32), labels


def in_torch(x, labels, dtype):
    x = torch.tensor(x, dtype=dtype, requires_grad=True)
    loss = F.cross_entropy(x, torch.tensor(labels))
    loss.backward()
    return np.float64(loss.detach()), x.grad.double().numpy()


def loss_of(x, labels):
    """In float64, where PyTorch adds 50,256 scores of 1e-13 to 1 and loses digits of them."""
    above = x.astype(np.float64) - x[np.arange(len(labels)), labels].astype(np.float64)[:, None]
    above[np.arange(len(labels)), labels] = -np.inf
    return np.log1p(np.exp(above).sum(1)).mean()


def in_steep(form, x, labels):
    file = model(form).SerializeToString()
    (loss,) = _steep.run_model(file, [x, labels])
    (dx,) = _steep.model_gradients(file, [x, labels], [np.ones((), np.float32)], ["x"])
    return loss, dx


def exported(x, labels):
    gradients = steep.grad(model("one").SerializeToString(), wrt=["x"], outputs=["y"])
    return steep.InferenceSession(gradients).run(None, {"x": x, "t": labels})


@pytest.mark.parametrize("offset", [0, 1e4])
@pytest.mark.parametrize("margin", [18.4, 12.2, 6.9, 2.3, 0, -20])
@pytest.mark.parametrize("classes", [2, 10, 1000, 50257])
def test_errors_are_no_larger_than_those_of_torch(classes, margin, offset):
    x, labels = rows(classes, margin, offset)
    _, slope = in_torch(x, labels, torch.float64)
    wanted = loss_of(x, labels)
    theirs, their_slope = in_torch(x, labels, torch.float32)
    there = np.arange(len(labels)), labels

    def errors(loss, dx):
        off = np.abs(dx - slope)
        return abs(float(loss) - wanted), off[there].max(), np.linalg.norm(off)

    for form in [*FORMS, "exported"]:
        found = exported(x, labels) if form == "exported" else in_steep(form, x, labels)
        # One rounding more than theirs is luck.
        luck = 1e-7 * wanted, 1e-7 / len(labels), 2e-7 * np.linalg.norm(slope)
        if form == "picked":
            luck = 1e-7 * max(wanted, 1), *luck[1:]
        mine, other = errors(*found), errors(theirs, their_slope)
        assert all(m <= o + more for m, o, more in zip(mine, other, luck, strict=True)), form
        if form != "picked":  # theirs are an absolute 1e-8 and more
            assert errors(*found)[0] <= 1e-6 * wanted, form
            assert errors(*found)[1] <= 3e-6 * np.abs(slope[there]).max() + 1e-15 * offset, form


def test_second_derivatives():
    x = torch.randn(4, 5, dtype=torch.float64)
    v = torch.randn(4, 5, dtype=torch.float64)
    t = torch.tensor([0, 3, 4, 1])
    first = steep.grad(model("one").SerializeToString(), wrt=["x"], outputs=["y"])
    second = steep.grad(first, wrt=["x"], outputs=[first.graph.output[1].name])
    session = steep.InferenceSession(second)
    fed = {"x": x, "t": t, "grad_grad_x": v}
    feed = {k: a.float().numpy() if a.is_floating_point() else a.numpy() for k, a in fed.items()}
    hessian = torch.autograd.functional.hessian(lambda x: F.cross_entropy(x, t), x)
    found = session.run(None, feed)[-1]
    np.testing.assert_allclose(found, torch.einsum("ijkl,kl", hessian, v), atol=1e-6)


@pytest.mark.parametrize("attrs", [{}, {"ignore_index": 1}, {"reduction": "sum"}])
def test_scores_without_a_kernel_of_their_type(attrs) -> None:
    scores, labels = rows(7, 0.5, 0.0)
    labels = labels.astype(np.int64)
    found = []
    for dtype in (np.float16, np.float32):
        given = [scores.astype(np.float16).astype(dtype), labels]
        row = Row("SoftmaxCrossEntropyLoss", tuple(given), attrs)
        (y,) = evaluate(row, given)
        slopes = gradients(row, given, [np.ones((), dtype)], [0])[0]
        assert y.dtype == slopes.dtype == dtype
        found.append((y, slopes))
    for narrow, wide in zip(*found, strict=True):
        np.testing.assert_allclose(narrow, wide, rtol=4e-3, atol=2e-3)


def test_fewer_weights_than_classes_are_refused() -> None:
    given = [np.ones((2, 3), np.float32), np.array([0, 2]), np.ones(1, np.float32)]
    with pytest.raises(steep.DataError, match="out of range"):
        evaluate(Row("SoftmaxCrossEntropyLoss", tuple(given)), given)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decomposed", [False, True])
def test_a_part_without_probability(dtype, decomposed) -> None:
    """Of classes 3 to 7 of 11: rows 0 and 1 have their label elsewhere, row 2 in this part."""
    x = np.full((4, 5), -np.inf, dtype)
    x[1, 2], x[3] = 0.5, 0.25
    row = Row(
        "steep.SoftmaxCrossEntropy",
        (x, np.array([0, 9, 4, 5])),
        {"reduction": "none", "first": 3, "classes": 11},
        outputs=3,
    )
    losses, sums, rest = evaluate(row, list(row.inputs), decomposed)
    np.testing.assert_allclose(sums, [-np.inf, 0.5, -np.inf, 0.25 + np.log(5)], rtol=1e-6)
    np.testing.assert_array_equal(losses[:2], sums[:2])
    assert np.isfinite(rest).all()
