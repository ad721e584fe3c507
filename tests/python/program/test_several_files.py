"""Arrays that lie in several files: larger than memory, and of several types."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from steep_program import steep, weights

SGD = ("--optimizer", "sgd", "--lr", 0.1)
LITTLE = ("--max-bytes", "2M")


def numbers() -> tuple[np.ndarray, np.ndarray]:
    """3.2 MB."""
    x = np.random.default_rng(3).normal(0, 1, (200_000, 3)).astype(np.float32)
    return x, (x @ np.array([[1], [-2], [0.5]])).astype(np.float32)


def save(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), path)
    return path


@pytest.fixture
def line(tmp_path: Path) -> Path:
    text = """g (float[n, 3] x) => (float[n, 1] y) <float[3, 1] w = {0.1, 0.2, 0.3}>
        { y = MatMul(x, w) }"""
    return save(tmp_path / "line.onnx", text)


@pytest.mark.parametrize("words", [(), ("--no-shuffle",), ("--validation-split", 0.3)])
def test_several_files_larger_than_memory(
    line: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    x, y = numbers()
    common = (*SGD, "--loss", "mse", "--batch", 1000, *words)
    np.savez(tmp_path / "whole.npz", x=x, label=y)
    steep("train", line, "--data", tmp_path / "whole.npz", *common, "--out", tmp_path / "a.onnx")
    (tmp_path / "parts").mkdir()
    for i, rows in enumerate(np.array_split(np.arange(len(x)), 7)):  # each is smaller than memory
        wide = np.float64 if i == 3 else np.float32
        np.savez(tmp_path / "parts" / f"{i}.npz", x=x[rows].astype(wide), label=y[rows])
    out = ("--out", tmp_path / "b.onnx")
    text = steep("train", line, "--data", tmp_path / "parts", *common, *LITTLE, *out)
    assert "x from 'x' float32[200000, 3]" in text and "since it is large" in text
    for name, value in weights(tmp_path / "a.onnx").items():
        np.testing.assert_array_equal(value, weights(tmp_path / "b.onnx")[name])
    out = ("--out", tmp_path / "p.npz")
    steep("predict", line, "--data", tmp_path / "parts", "--max-bytes", "4M", *out)
    np.testing.assert_allclose(
        np.load(tmp_path / "p.npz")["y"], x @ weights(line)["w"], rtol=1e-5, atol=1e-5
    )


def test_large_labels_of_several_files_are_checked(tmp_path: Path) -> None:
    text = """g (float[n, 3] x) => (float[n, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
        { y = MatMul(x, w) }"""
    model = save(tmp_path / "classes.onnx", text)
    classes = np.zeros(300_000, np.int64)
    classes[200_001] = 7
    words = ("--loss", "softmax_cross_entropy", *SGD, "--max-bytes", "3M")
    for i in range(3):
        part = slice(100_000 * i, 100_000 * (i + 1))
        np.savez(tmp_path / f"{i}.npz", x=np.zeros((100_000, 3), np.float32), label=classes[part])
    data = [word for i in range(3) for word in ("--data", tmp_path / f"{i}.npz")]
    said = steep("train", model, *data, *words, code=3)
    assert "7 in row 1, where rows count from 0" in said
    assert f"array 'label' of {tmp_path / '2.npz'}" in said


def test_numbers_of_several_types_stay_exact(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", "g (int64[n] x) => (int64[n] y) { y = Identity(x) }")
    np.savez(tmp_path / "1.npz", x=np.array([2**53 + 1, -(2**60) - 1]))
    np.savez(tmp_path / "2.npz", x=np.array([3, 4], np.int8))
    (tmp_path / "3.csv").write_text("x\n1.5\n2.5\n")
    words = ("predict", tmp_path / "m.onnx", "--out", tmp_path / "p.npz", "--data")
    steep(*words, tmp_path / "1.npz", tmp_path / "2.npz")
    assert np.load(tmp_path / "p.npz")["y"].tolist() == [2**53 + 1, -(2**60) - 1, 3, 4]
    said = steep(*words, tmp_path / "1.npz", tmp_path / "3.csv", code=3)
    assert f"x of {tmp_path / '3.csv'}" in said and "received: float64" in said


def test_a_run_does_not_go_on_with_other_rows(line: Path, tmp_path: Path) -> None:
    x, y = (a[:100] for a in numbers())
    for name, rows in ("a", slice(0, 50)), ("b", slice(50, 100)):
        np.savez(tmp_path / f"{name}.npz", x=x[rows], label=y[rows])
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    common = (*SGD, "--loss", "mse", "--batch", 10, "--validation-split", 0.3)
    run = tmp_path / "run"
    steep("train", line, "--data", a, b, *common, "--checkpoint", run)
    again = ("--epochs", 2, "--resume", run)
    text = steep("train", line, "--data", b, a, *common, *again, code=4)
    assert "other rows" in text and "the same files in the same order" in text
    np.savez(a, x=x[:50] + 1, label=y[:50])
    np.savez(b, x=x[50:], label=y[50:] + 1)
    assert "other rows" in steep("train", line, "--data", a, b, *common, *again, code=4)
    np.savez(a, x=x[:50], label=y[:50])
    y[50] += 1  # corrected
    np.savez(b, x=x[50:].astype(np.float64), label=y[50:])
    steep("train", line, "--data", a, b, *common, *again)
    y[50] -= 1
    y[95:] += 1
    np.savez(b, x=x[50:], label=y[50:])
    text = steep("train", line, "--data", a, b, *common, "--epochs", 3, "--resume", run)
    assert "of 64 rows that were compared are others than in the run" in text


def test_a_run_that_goes_on_says_which_options_are_others(line: Path, tmp_path: Path) -> None:
    x, y = (a[:40] for a in numbers())
    np.savez(tmp_path / "a.npz", x=x, label=y)
    words = ("train", line, "--data", tmp_path / "a.npz", *SGD, "--loss", "mse", "--batch", 10)
    run = tmp_path / "run"
    steep(*words, "--schedule", "cosine", "--checkpoint", run)
    same = steep(*words, "--schedule", "cosine", "--resume", run)
    assert "are others than" not in same
    text = steep(*words, "--schedule", "cosine", "--resume", run, "--epochs", 2, "--clip-norm", 1)
    said = "options are others than in the checkpoint: clip_norm 0 → 1, total_steps 4 → 8"
    assert text.count(said) == 1
    assert "clip_norm" in steep(*words, "--clip-norm", 1, "--resume", run, "--epochs", 2)
