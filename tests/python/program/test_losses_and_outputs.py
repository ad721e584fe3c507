"""Losses of the program on outputs and labels that suit them, and that do not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from steep_program import built, steep

import steep as package

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (60, 3)).astype(np.float32)
LABELS = np.argmax(X @ RNG.normal(0, 1, (3, 4)), axis=1)
CROSS_ENTROPY = ("--loss", "softmax_cross_entropy")


def save(path: Path, text: str, outputs: str = "float[n,4] y") -> Path:
    """A model of three numbers a row; `text`: what comes after the scores `s`."""
    weights = ", ".join(f"{0.1 * (i % 5) - 0.2:.1f}" for i in range(12))
    model = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n,3] x) => ({outputs})
        <float[3,4] w = {{{weights}}}, float low = {{0.01}}, float high = {{1}},
         float[3,1] v = {{0.1, -0.2, 0.3}}>
        {{ s = MatMul(x, w) {text} }}"""
    onnx.save(onnx.parser.parse_model(model), path)
    return path


@pytest.mark.parametrize("loss", ["binary_cross_entropy", "binary_cross_entropy_with_logits"])
def test_labels_of_two_classes_are_0_to_1(tmp_path: Path, loss: str) -> None:
    model = save(tmp_path / "m.onnx", "t = MatMul(x, v) y = Sigmoid(t)", "float[n,1] y")
    for value in (-1, 1.5, np.nan):
        labels = np.ones((60, 1), np.float32)
        labels[7] = value
        np.savez(tmp_path / "d.npz", x=X, label=labels)
        words = ("--data", tmp_path / "d.npz", "--loss", loss)
        for command in ("train", "eval", "lr-find"):
            said = steep(command, model, *words, code=3)
            assert "not from 0 to 1" in said and f"{value:g} in row 7" in said
        session = package.TrainingSession(model, loss=loss)
        for call in (session.step, session.eval):
            with pytest.raises(package.DataError, match="not from 0 to 1"):
                call(X, labels)
    labels = np.linspace(0, 1, 60).reshape(60, 1)
    assert np.isfinite(package.TrainingSession(model, loss=loss).step(X, labels).loss)


@pytest.mark.parametrize(
    ("loss", "tail", "said"),
    [
        ("nll", "Softmax", "holds probabilities"),
        ("nll", "Identity", "Choose softmax_cross_entropy, which takes scores"),
        ("nll", "LogSoftmax", ""),
        ("binary_cross_entropy", "Identity", "Choose binary_cross_entropy_with_logits"),
        ("binary_cross_entropy", "Sigmoid", ""),
        ("softmax_cross_entropy", "Softmax", ""),
        ("softmax_cross_entropy", "Sigmoid", "--output"),
    ],
)
def test_outputs_that_do_not_suit_the_loss(tmp_path: Path, loss: str, tail: str, said: str) -> None:
    model = save(tmp_path / "m.onnx", f"y = {tail}(s)")
    labels = LABELS if loss != "binary_cross_entropy" else np.ones((60, 4), np.float32)
    np.savez(tmp_path / "d.npz", x=np.abs(X) / 10, label=labels)
    words = ("--data", tmp_path / "d.npz", "--loss", loss)
    for command in ("train", "eval", "lr-find"):
        process = subprocess.run(
            [built("steep"), command, str(model), *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
        )
        text = process.stdout
        assert ("warning: " in text) == bool(said) and said in text, (command, text)


def test_a_clipped_softmax_is_spoken_of(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", "p = Softmax(s) y = Clip(p, low, high)")
    np.savez(tmp_path / "d.npz", x=X, label=LABELS)
    words = (tmp_path / "m.onnx", "--data", tmp_path / "d.npz", *CROSS_ENTROPY)
    for command in ("train", "eval", "lr-find"):
        said = steep(command, *words)
        assert "warning: " in said and "--output s." in said
        assert "warning: " not in steep(command, *words, "--output", "s")
    assert "--output s." in json.loads(steep("eval", *words, "--json"))["warnings"][0]


def test_the_only_output_of_floats_is_trained_on(tmp_path: Path) -> None:
    outputs = "int64[n] class, float[n,4] y"
    save(tmp_path / "m.onnx", "y = Identity(s) class = ArgMax<axis=1, keepdims=0>(y)", outputs)
    np.savez(tmp_path / "d.npz", x=X, label=LABELS)
    words = ("--data", tmp_path / "d.npz", *CROSS_ENTROPY)
    said = steep(
        "train", tmp_path / "m.onnx", *words, "--validation-split", 0.5, "--metric", "accuracy"
    )
    assert "on output 'y', the only one of floats" in said
    for command in ("eval", "lr-find"):
        assert "on output 'y'" in steep(command, tmp_path / "m.onnx", *words)
    assert "on output" not in steep("eval", tmp_path / "m.onnx", *words, "--output", "y")


def test_one_score_is_no_choice_of_classes(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "t = MatMul(x, v) y = Sigmoid(t)", "float[n,1] y")
    np.savez(tmp_path / "d.npz", x=X, label=LABELS % 2)
    said = steep("train", model, "--data", tmp_path / "d.npz", *CROSS_ENTROPY, code=3)
    assert "choose the loss binary_cross_entropy_with_logits or binary_cross_entropy" in said


def test_a_binary_loss_of_scores_names_the_other(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "t = MatMul(x, v) y = Identity(t)", "float[n,1] y")
    np.savez(tmp_path / "d.npz", x=-10 * np.abs(X), label=np.ones((60, 1), np.float32))
    words = ("--data", tmp_path / "d.npz", "--loss", "binary_cross_entropy")
    said = steep("train", model, *words, "--lr", 10, "--epochs", 20, code=None)
    assert "choose the loss binary_cross_entropy_with_logits" in said.split("steep: ")[1]


def test_predictions_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """A normalisation in training mode reads running statistics, with a loss and without one."""
    text = "y, rm, rv = BatchNormalization<training_mode=1>(s, g, b, m, q)"
    model = save(tmp_path / "m.onnx", text)
    proto = onnx.load(model)
    for name, value in {"g": 1.5, "b": 0.1, "m": 0.2, "q": 2}.items():
        row = np.full(4, value, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(row, name))
    onnx.save(proto, model)
    np.savez(tmp_path / "d.npz", x=X, label=LABELS)
    found = []
    for command in (
        ("predict", model, "--batch", 7),
        ("predict", model, "--batch", 60),
        ("eval", model, "--batch", 7),
        ("eval", model, "--batch", 60, *CROSS_ENTROPY, "--output", "y", "--label-array", "label"),
    ):
        out = tmp_path / "o.npz"
        steep(*command, "--data", tmp_path / "d.npz", "--out", out)
        found.append(np.load(out)["y"])
    weights = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    wanted = (X @ weights.reshape(3, 4) - 0.2) / np.sqrt(2 + 1e-5) * 1.5 + 0.1
    for values in found:
        np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-5)
