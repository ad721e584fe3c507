"""Operators of ai.onnx.ml, of scikit-learn's files: results, gradients, exports and faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import steep

Floats = npt.NDArray[np.float32]

ML = "ai.onnx.ml"
X = np.random.default_rng(3).normal(size=(7, 4)).astype(np.float32)
X[2] = 0
W = np.random.default_rng(4).normal(size=(3, 4)).astype(np.float32)
B = np.array([0.3, -0.2, 0.1], np.float32)
VECTORS = np.random.default_rng(5).normal(size=(6, 4)).astype(np.float32)
KERNEL = {"support_vectors": VECTORS.ravel().tolist(), "kernel_params": [0.3, 0.5, 3.0]}


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=op, domain=ML, **attributes)


def model(nodes: list[onnx.NodeProto], outputs: dict[str, Any], opset: int = 18) -> onnx.ModelProto:
    """``outputs``: the element type of each, or a whole type."""
    infos = [
        helper.make_tensor_value_info(name, kind, None)
        if isinstance(kind, int)
        else helper.make_value_info(name, kind)
        for name, kind in outputs.items()
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, infos),
        opset_imports=[helper.make_opsetid(ML, 1), helper.make_opsetid("", opset)],
        ir_version=8,
    )


def one(op: str, outputs: tuple[str, ...] = ("y",), **attributes: Any) -> onnx.ModelProto:
    types = {name: TensorProto.INT64 if name == "label" else TensorProto.FLOAT for name in outputs}
    return model([node(op, ["x"], list(outputs), **attributes)], types)


def classifier(transform: str, w: Floats = W, b: Floats = B, **attributes: Any) -> onnx.ModelProto:
    classes = attributes.pop("classlabels_ints", list(range(3, 3 + len(b))))
    return one(
        "LinearClassifier",
        ("label", "y"),
        coefficients=w.ravel().tolist(),
        intercepts=b.tolist(),
        classlabels_ints=classes,
        post_transform=transform,
        **attributes,
    )


MIRRORED = (np.stack([-W[0], W[0]]), np.array([-0.3, 0.3], np.float32))

CASES = {
    "regressor": one("LinearRegressor", coefficients=W[0].tolist(), intercepts=[0.5]),
    "regressor of three": one(
        "LinearRegressor", coefficients=W.ravel().tolist(), intercepts=B.tolist(), targets=3
    ),
    "scores": classifier("NONE"),
    "softmax": classifier("SOFTMAX"),
    "logistic": classifier("LOGISTIC"),
    "two": classifier("LOGISTIC", *MIRRORED),
    "two, scores": classifier("NONE", *MIRRORED),
    "two, softmax": classifier("SOFTMAX", *MIRRORED),
    "two rows": classifier("LOGISTIC", W[:2], B[:2]),
    "one row": classifier("LOGISTIC", W[:1], B[:1], classlabels_ints=[5, 8]),
    "scaler": one("Scaler", offset=[*B.tolist(), 1.0], scale=[2.0, 3.0, 0.5, 1.0]),
    "scaler of one": one("Scaler", offset=[0.5], scale=[2.0]),
    "L1": one("Normalizer", norm="L1"),
    "L2": one("Normalizer", norm="L2"),
    "binarizer": one("Binarizer", threshold=0.2),
    "imputer": one("Imputer", imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=0.0),
    "vectorizer": model(
        [node("FeatureVectorizer", ["x", "x"], ["y"], inputdimensions=[4, 4])],
        {"y": TensorProto.FLOAT},
    ),
    **{
        f"SVMRegressor, {kernel}": one(
            "SVMRegressor",
            coefficients=[1.0, -0.5, 0.25, 0.5, -1.0, 2.0],
            rho=[0.5],
            n_supports=6,
            kernel_type=kernel,
            **KERNEL,
        )
        for kernel in ("LINEAR", "POLY", "SIGMOID", "RBF")
    },
    **{
        f"SVMClassifier, {kernel}": one(
            "SVMClassifier",
            ("label", "y"),
            coefficients=np.linspace(-1, 1.5, 12).tolist(),
            rho=[0.5, -0.25, 0.1],
            vectors_per_class=[1, 3, 2],
            classlabels_ints=[4, 6, 9],
            kernel_type=kernel,
            **KERNEL,
        )
        for kernel in ("LINEAR", "RBF")
    },
    "SVMClassifier of two": one(
        "SVMClassifier",
        ("label", "y"),
        coefficients=np.linspace(-1, 1.5, 6).tolist(),
        rho=[0.5],
        vectors_per_class=[4, 2],
        classlabels_ints=[4, 6],
        kernel_type="LINEAR",
        **KERNEL,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_reference(name: str) -> None:
    expected = ReferenceEvaluator(CASES[name]).run(None, {"x": X})
    session = steep.InferenceSession(CASES[name].SerializeToString())
    for ours, theirs in zip(session.run(None, {"x": X}), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_the_greatest_number_normalizes_as_in_onnxruntime() -> None:
    (y,) = steep.InferenceSession(one("Normalizer", norm="MAX").SerializeToString()).run(
        None, {"x": X}
    )
    greatest = X.max(axis=1, keepdims=True)
    np.testing.assert_allclose(y, X / np.where(greatest == 0, 1, greatest), rtol=1e-6)


def test_nan_is_imputed() -> None:
    x = X.copy()
    x[1, 2] = np.nan
    file = one("Imputer", imputed_value_floats=[9.0], replaced_value_float=float("nan"))
    (y,) = steep.InferenceSession(file.SerializeToString()).run(None, {"x": x})
    assert y[1, 2] == 9 and np.isfinite(y).all()


def pipeline(transform: str, w: Floats, b: Floats, strings: bool = False) -> onnx.ModelProto:
    """What skl2onnx writes of a scaled logistic regression."""
    names = ["ant", "bee", "cat"][: len(b)]
    classes = (
        {"classlabels_strings": names} if strings else {"classlabels_ints": [0, 1, 2][: len(b)]}
    )
    key = "classlabels_strings" if strings else "classlabels_int64s"
    value = names if strings else [0, 1, 2][: len(b)]
    label = TensorProto.STRING if strings else TensorProto.INT64
    keys = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    return model(
        [
            node("Scaler", ["x"], ["scaled"], offset=[0.1] * 4, scale=[1.5] * 4),
            node(
                "LinearClassifier",
                ["scaled"],
                ["label", "raw"],
                coefficients=w.ravel().tolist(),
                intercepts=b.tolist(),
                post_transform=transform,
                **classes,
            ),
            helper.make_node("Identity", ["label"], ["output_label"]),
            node("Normalizer", ["raw"], ["probabilities"], norm="L1"),
            node("ZipMap", ["probabilities"], ["output_probability"], **{key: value}),
        ],
        {
            "output_label": label,
            "output_probability": helper.make_sequence_type_proto(
                helper.make_map_type_proto(label, keys)
            ),
        },
        opset=9,
    )


@pytest.mark.parametrize("strings", [False, True])
@pytest.mark.parametrize(
    ("transform", "w", "b"),
    [("SOFTMAX", W, B), ("LOGISTIC", W, B), ("LOGISTIC", *MIRRORED), ("SOFTMAX", *MIRRORED)],
)
def test_a_classifier_trains_as_in_pytorch(
    transform: str, w: Floats, b: Floats, strings: bool, recwarn: pytest.WarningsRecorder
) -> None:
    torch = pytest.importorskip("torch")
    file = pipeline(transform, w, b, strings)
    session = steep.TrainingSession(
        file.SerializeToString(), loss="softmax_cross_entropy", optimizer="sgd", lr=0.5
    )
    assert session.parameter_names == [
        "LinearClassifier.coefficients",
        "LinearClassifier.intercepts",
    ]
    assert {left.name for left in session.left_out} == {"Scaler.offset", "Scaler.scale"}
    assert not recwarn.list
    mirrored = w is MIRRORED[0]
    weight = torch.tensor(w[1:] if mirrored else w, requires_grad=True)
    bias = torch.tensor(b[1:] if mirrored else b, requires_grad=True)
    labels = np.arange(7) % len(b)
    optimizer = torch.optim.SGD([weight, bias], lr=0.5)
    for step in range(3):
        s = (torch.tensor(X) - 0.1) * 1.5 @ weight.T + bias
        s = torch.cat([-s, s], 1) if mirrored else s
        p = torch.sigmoid(s) if transform == "LOGISTIC" else torch.softmax(s, 1)
        p = p / p.sum(1, keepdim=True)
        loss = torch.nn.functional.nll_loss(p.log(), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # By name too: the file has a value "label" of its own.
        result = session.step(x=X, label=labels) if step else session.step(X, labels)
        assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    trained = session.weights()
    np.testing.assert_allclose(
        trained["LinearClassifier.coefficients"], weight.detach().numpy(), rtol=1e-4, atol=1e-5
    )


def test_the_file_keeps_its_form(tmp_path: Path) -> None:
    """Trained numbers are in the attributes; labels and ZipMap stay."""
    file = pipeline("LOGISTIC", *MIRRORED)
    session = steep.TrainingSession(
        file.SerializeToString(), loss="softmax_cross_entropy", optimizer="sgd", lr=0.5
    )
    session.step(X, np.arange(7) % 2)
    session.export_onnx(tmp_path / "trained.onnx")
    trained = onnx.load(tmp_path / "trained.onnx")
    row = np.asarray(session.weights()["LinearClassifier.coefficients"]).ravel()
    attributes = {a.name: a for a in trained.graph.node[1].attribute}
    np.testing.assert_array_equal(attributes["coefficients"].floats, np.concatenate([-row, row]))
    attributes["coefficients"].floats[:] = MIRRORED[0].ravel().tolist()
    attributes["intercepts"].floats[:] = MIRRORED[1].tolist()
    assert trained == file
    again = steep.TrainingSession(tmp_path / "trained.onnx", loss="softmax_cross_entropy")
    kept = np.asarray(again.weights()["LinearClassifier.coefficients"])
    np.testing.assert_array_equal(kept.ravel(), row)


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("SVM", "regressor", "scores"))])
def test_gradients_are_slopes(name: str) -> None:
    file = CASES[name].SerializeToString()
    op = CASES[name].graph.node[0].op_type
    bias = "rho" if op.startswith("SVM") else "intercepts"
    session = steep.GradientSession(file, wrt=[f"{op}.coefficients", f"{op}.{bias}"], outputs=["y"])
    (y,), run = session.forward([X])
    dy = np.random.default_rng(6).normal(size=np.shape(y)).astype(np.float32)
    gradients = session.backward(run, [dy])
    start = {weight: np.array(value) for weight, value in session.weights().items()}
    assert set(gradients) == set(start)
    for weight, gradient in gradients.items():
        direction = np.random.default_rng(7).normal(size=start[weight].shape).astype(np.float32)
        sums = []
        for side in (-1e-2, 1e-2):
            session.set_weights({weight: start[weight] + side * direction})
            (shifted,), _ = session.forward([X])
            sums.append(float((np.asarray(shifted, np.float64) * dy).sum()))
        session.set_weights({weight: start[weight]})
        slope = (sums[1] - sums[0]) / 2e-2  # exact: the results are linear in the weights
        assert float((np.asarray(gradient) * direction).sum()) == pytest.approx(
            slope, rel=2e-3, abs=2e-3
        )


TREES = one(
    "TreeEnsembleRegressor",
    nodes_treeids=[0],
    nodes_nodeids=[0],
    nodes_featureids=[0],
    nodes_modes=["LEAF"],
    nodes_values=[0.0],
    nodes_truenodeids=[0],
    nodes_falsenodeids=[0],
    target_ids=[0],
    target_nodeids=[0],
    target_treeids=[0],
    target_weights=[1.0],
    n_targets=1,
)
SVM = {"kernel_type": "LINEAR", "support_vectors": [1.0] * 8, "classlabels_ints": [0, 1]}


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (one("LinearRegressor", coefficients=[1.0] * 5, targets=3), "multiple of 3"),
        (one("LinearRegressor", coefficients=[1.0] * 4, targets=0), "coefficients"),
        (one("LinearRegressor", coefficients=[1.0] * 4, targets=-(2**63)), "coefficients"),
        (one("LinearRegressor", coefficients=[1.0] * 4, targets=2**62), "coefficients"),
        (one("LinearRegressor", intercepts=[1.0]), "coefficients"),
        (one("LinearRegressor", coefficients=[1.0] * 4, intercepts=[1.0, 2.0]), "intercepts"),
        (one("LinearRegressor", coefficients=[1.0] * 6), "x"),
        (one("LinearRegressor", coefficients=[1.0] * 4, post_transform="PROBIT"), "PROBIT"),
        (classifier("SOFTMAX", classlabels_ints=[1]), "too few classes"),
        (classifier("SOFTMAX", classlabels_ints=[1, 2]), "intercepts"),
        (classifier("SOFTMAX", classlabels_ints=list(range(100000))), "coefficients"),
        (classifier("SOFTMAX_ZERO"), "SOFTMAX_ZERO"),
        (classifier("NONE", W[:1], B[:1], classlabels_ints=[0, 1]), "single row"),
        (one("Scaler", offset=[1.0] * 3, scale=[1.0] * 3), "3 columns"),
        (one("Scaler", offset=[1.0] * 3, scale=[1.0] * 4), "do not fit"),
        (one("Scaler", scale=[1.0]), "no offset"),
        (one("Normalizer", norm="L7"), "norm is unknown"),
        (one("Imputer", imputed_value_int64s=[1]), "floats"),
        (one("FeatureVectorizer", inputdimensions=[4, 4]), "inputdimensions"),
        (one("SVMRegressor", coefficients=[1.0], rho=[0.0], n_supports=2), "support vectors"),
        (one("SVMRegressor", coefficients=[1.0], n_supports=0), "rho"),
        (
            one("SVMRegressor", coefficients=[1.0] * 2, rho=[0.0], n_supports=2, one_class=1,
                support_vectors=[1.0] * 8),
            "one-class",
        ),
        (
            one("SVMRegressor", coefficients=[1.0] * 2, rho=[0.0], n_supports=2,
                support_vectors=[1.0] * 8, kernel_type="RBF"),
            "kernel",
        ),
        (
            one("SVMClassifier", ("label", "y"), coefficients=[1.0, -1.0], rho=[0.0],
                vectors_per_class=[2**62, 2**62], **SVM),
            "impossible number",
        ),
        (
            one("SVMClassifier", ("label", "y"), coefficients=[1.0, -1.0], rho=[0.0],
                vectors_per_class=[1, 1], prob_a=[1.0], prob_b=[1.0], **SVM),
            "probabilities",
        ),
        (
            one("SVMClassifier", ("label", "y"), coefficients=[1.0, -1.0], rho=[0.0, 1.0],
                vectors_per_class=[1, 1], **SVM),
            "rho",
        ),
        (
            one("SVMClassifier", ("label", "y"), coefficients=[1.0, -1.0] * 399,
                rho=[0.0] * 79800, vectors_per_class=[1, 1] + [0] * 398,
                **{**SVM, "classlabels_ints": list(range(400))}),
            "too large",
        ),
        (TREES, "no gradient"),
    ],
)  # fmt: skip
def test_faults_are_named(file: onnx.ModelProto, says: str) -> None:
    with pytest.raises((steep.ModelError, steep.ShapeError), match=says) as caught:
        steep.TrainingSession(file.SerializeToString(), loss="mse", output="y")
    assert file.graph.node[0].op_type in str(caught.value)
