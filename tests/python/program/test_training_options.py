"""The program's options of training, its data of all kinds, and `predict`, `info` and `diff`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from steep_program import built, steep, weights

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (60, 3)).astype(np.float32)
LABELS = np.argmax(X @ RNG.normal(0, 1, (3, 4)), axis=1)
Y = (X @ np.array([[1], [-2], [0.5]]) + 1).astype(np.float32)


def save(path: Path, outputs: int, tail: str = "Identity", rows: str | int = "n") -> Path:
    arrays = {
        "w": np.random.default_rng(1).normal(0, 0.1, (3, outputs)).astype(np.float32),
        "b": np.zeros(outputs, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node(tail, ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, outputs])],
        [numpy_helper.from_array(v, k) for k, v in arrays.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    np.savez(tmp_path / "d.npz", x=X, label=LABELS)
    return save(tmp_path / "classes.onnx", 4)


@pytest.fixture
def line(tmp_path: Path) -> Path:
    np.savez(tmp_path / "d.npz", x=X, label=Y)
    return save(tmp_path / "line.onnx", 1)


SGD = ("--optimizer", "sgd", "--lr", 0.1)


def train(model: Path, *words: object, code: int = 0) -> str:
    loss = () if "--loss" in words else ("--loss", "mse")
    data = () if "--data" in words else ("--data", model.with_name("d.npz"))
    return steep("train", model, *data, *loss, *SGD, *words, code=code)


def reports(text: str, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["report"] == kind]


def outputs_of(model: Path, x: np.ndarray = X) -> np.ndarray:
    return ReferenceEvaluator(onnx.load(model)).run(None, {"x": x})[0]


def test_reports_in_json(classifier: Path) -> None:
    words = ("--loss", "softmax_cross_entropy", "--validation-split", 0.25, "--epochs", 3)
    text = train(classifier, *words, "--metric", "accuracy,f1,top2", "--json")
    epochs = reports(text, "epoch")
    assert [e["epoch"] for e in epochs] == [1, 2, 3]
    assert all(0 <= e[k] <= 1 for e in epochs for k in ("accuracy", "f1", "top2"))
    assert all(e["accuracy"] <= e["top2"] and e["validation_loss"] > 0 for e in epochs)
    notes = " ".join(n["text"] for n in reports(text, "note"))
    assert "on 45 rows" in notes and "15 rows of" in notes


def test_the_split_is_the_seeds_and_the_last_rows_without_shuffling(line: Path) -> None:
    words = ("--validation-split", 0.5, "--epochs", 1, "--json")
    losses = [
        reports(train(line, *words, *more), "epoch")[0]["validation_loss"]
        for more in ((), (), ("--seed", 1))
    ]
    assert losses[0] == losses[1] != losses[2]
    out = line.with_name("o.onnx")
    text = train(line, *words, "--no-shuffle", "--out", out)
    expected = float(np.mean((outputs_of(out, X[30:]) - Y[30:]) ** 2))
    assert reports(text, "epoch")[0]["validation_loss"] == pytest.approx(expected, rel=1e-4)


def test_a_split_that_leaves_no_rows(line: Path) -> None:
    for part in (0, 0.001, 0.999, 1):
        code = 0 if part == 0 else 3
        text = train(line, "--validation-split", part, code=code)
        assert code == 0 or "leaves no rows" in text
    words = ("--validation", line.with_name("d.npz"), "--validation-split", 0.5)
    assert "excludes" in train(line, *words, code=2)


def test_early_stopping_exports_the_best_epoch(line: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(2).normal(0, 1, Y.shape).astype(np.float32)
    np.savez(tmp_path / "v.npz", x=X, label=Y + 2 * noise)
    words = ("--validation", tmp_path / "v.npz", "--epochs", 200, "--json", "--batch", 4)
    run, out = tmp_path / "run", tmp_path / "best.onnx"
    text = train(line, *words, "--early-stopping", 3, "--checkpoint", run, "--out", out)
    assert "stopped early: 3 epochs without" in text
    held = [e["validation_loss"] for e in reports(text, "epoch")]
    best = int(np.argmin(held))
    assert len(held) == best + 4 < 200
    assert f"the best epoch was {best + 1}," in text
    plain = tmp_path / "plain.onnx"
    train(line, *words[:2], "--epochs", best + 1, "--batch", 4, "--out", plain)
    for name, value in weights(plain).items():
        np.testing.assert_array_equal(value, weights(out)[name])
    again = tmp_path / "again.onnx"  # from the checkpoint of the best epoch, too
    train(line, "--epochs", best + 1, "--batch", 4, "--resume", f"{run}.best", "--out", again)
    for name, value in weights(plain).items():
        np.testing.assert_array_equal(value, weights(again)[name])
    text = train(line, *words, "--early-stopping", 3, "--resume", run, "--out", again)
    assert not reports(text, "epoch") and "raise --early-stopping to train on" in text
    for name, value in weights(plain).items():
        np.testing.assert_array_equal(value, weights(again)[name])


def test_early_stopping_without_a_validation_loss_that_is_a_number(
    line: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "v.npz", x=np.where(X > 2, np.inf, X), label=Y)
    words = ("--validation", tmp_path / "v.npz", "--early-stopping", 2, "--json")
    run, out = tmp_path / "run", tmp_path / "last.onnx"
    train(line, "--epochs", 3, "--checkpoint", run)
    text = train(line, *words, "--epochs", 20, "--resume", run, "--out", out)
    assert [e["epoch"] for e in reports(text, "epoch")] == [4, 5]
    assert "stopped early: 2 epochs without a validation loss that is a number" in text
    assert "these are the weights of the last one" in text
    plain = tmp_path / "plain.onnx"
    train(line, "--epochs", 5, "--out", plain)
    for name, value in weights(plain).items():
        np.testing.assert_array_equal(value, weights(out)[name])


def test_options_that_need_others(line: Path) -> None:
    for words in (("--early-stopping", 2), ("--metric", "r2")):
        assert "requires" in train(line, *words, code=2)
    for words in (("--label-smoothing", 0.1), ("--class-weights", "1,2"), ("--huber-delta", 2)):
        assert "requires" in train(line, *words, code=2)


def test_class_weights_of_a_list_or_a_file(classifier: Path, tmp_path: Path) -> None:
    def trained(words: object, code: int = 0) -> Any:
        loss = ("--loss", "softmax_cross_entropy", "--class-weights", words)
        text = train(classifier, *loss, "--out", tmp_path / "o.onnx", code=code)
        return text if code else weights(tmp_path / "o.onnx")

    expected = trained("1,2,0.5,0")
    (tmp_path / "w.txt").write_text("1 2\r\n.5, 0\n")
    np.save(tmp_path / "w.npy", np.array([1, 2, 0.5, 0]))
    for file in ("w.txt", "w.npy"):
        for name, value in trained(tmp_path / file).items():
            np.testing.assert_array_equal(value, expected[name])
    train(classifier, "--loss", "softmax_cross_entropy", "--out", tmp_path / "p.onnx")
    assert not np.array_equal(weights(tmp_path / "p.onnx")["w"], expected["w"])
    wrong: dict[str, tuple[object, int, str]] = {
        "three": ("1,2,3", 3, "There is not one weight for each class"),
        "negative": ("1,-2,3,4", 2, "of at least 0"),
        "no file": (tmp_path / "none.txt", 2, "or a file of them"),
        "zeros": ("0,0,0,0", 3, "All class weights are 0"),
        "a hole": ("1,,2,3", 2, "or a file of them"),
    }
    for text, says in (
        ("1 2\n3 four\n", "in row 2.\n  expected: "),
        ("1 2\n3 four\n", "'four' as number 4"),
        ("1 2 -3 4", "'-3' as number 3"),
        ("1 2 inf 4", "'inf' as number 3"),
        ("", "has no class weights"),
        ("\0\1", "wrong class weight in row 1"),
    ):
        file = tmp_path / f"{len(wrong)}.txt"
        file.write_text(text)
        wrong[file.name] = (file, 3, says)
    for array in (np.ones((2, 2)), np.array([1, np.nan, 2, 3])):
        file = tmp_path / f"{len(wrong)}.npy"
        np.save(file, array)
        wrong[file.name] = (file, 3, "class weight")
    for name, (words, code, says) in wrong.items():
        assert says in trained(words, code), name


def test_metrics_of_eval(classifier: Path, tmp_path: Path) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    scores = outputs_of(classifier)
    words = ("--data", tmp_path / "d.npz", "--json", "--loss")
    text = steep(
        "eval", classifier, *words, "softmax_cross_entropy", "--metric", "accuracy,f1,top2"
    )
    (report,) = reports(text, "eval")
    said = scores.argmax(1)
    assert report["accuracy"] == pytest.approx(metrics.accuracy_score(LABELS, said))
    assert report["f1"] == pytest.approx(metrics.f1_score(LABELS, said, average="macro"))
    top = metrics.top_k_accuracy_score(LABELS, scores, k=2)
    assert report["top2"] == pytest.approx(top)
    target = RNG.normal(0, 1, (60, 4)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=X, label=target)
    (report,) = reports(steep("eval", classifier, *words, "l1", "--metric", "r2"), "eval")
    assert report["r2"] == pytest.approx(metrics.r2_score(target, scores), rel=1e-4)


@pytest.mark.parametrize("tail", ["Identity", "Sigmoid"])
def test_binary_metrics_know_probabilities(tmp_path: Path, tail: str) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    model = save(tmp_path / "m.onnx", 1, tail)
    labels = (Y > 1).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=X, label=labels)
    said = outputs_of(model) > (0.5 if tail == "Sigmoid" else 0)
    losses = ["binary_cross_entropy_with_logits"]
    losses += ["binary_cross_entropy"] if tail == "Sigmoid" else []
    for loss in losses:
        words = ("--data", tmp_path / "d.npz", "--loss", loss, "--metric", "accuracy,f1", "--json")
        (report,) = reports(steep("eval", model, *words), "eval")
        assert report["accuracy"] == pytest.approx(metrics.accuracy_score(labels, said))
        assert report["f1"] == pytest.approx(metrics.f1_score(labels, said))


def test_metrics_that_do_not_suit(line: Path, tmp_path: Path) -> None:
    words = ("eval", line, "--data", tmp_path / "d.npz")
    assert "does not suit" in steep(*words, "--loss", "mse", "--metric", "accuracy", code=3)
    assert "expected accuracy" in steep(*words, "--loss", "mse", "--metric", "acuracy", code=2)
    assert "mean 'accuracy'?" in steep(*words, "--loss", "mse", "--metric", "acuracy", code=2)
    assert "expected accuracy" in steep(*words, "--loss", "mse", "--metric", "top0", code=2)
    classes = save(tmp_path / "classes.onnx", 4)
    np.savez(tmp_path / "d.npz", x=X, label=LABELS)
    words = ("eval", classes, "--data", tmp_path / "d.npz", "--loss", "softmax_cross_entropy")
    assert "top4 is 1 for any outputs" in steep(*words, "--metric", "top4", code=3)


def test_accumulated_batches_are_a_larger_batch(line: Path, tmp_path: Path) -> None:
    common = ("--no-shuffle", "--epochs", 3, "--momentum", 0.9, "--schedule", "linear")
    train(line, *common, "--batch", 20, "--out", tmp_path / "a.onnx")
    words = ("--batch", 5, "--accumulate", 4, "--metrics", tmp_path / "m.csv")
    text = train(line, *common, *words, "--out", tmp_path / "b.onnx")
    assert "3 steps an epoch" in text
    assert len((tmp_path / "m.csv").read_text().splitlines()) == 1 + 9
    for name, value in weights(tmp_path / "a.onnx").items():
        np.testing.assert_allclose(value, weights(tmp_path / "b.onnx")[name], rtol=1e-4, atol=1e-6)


def test_the_last_step_of_an_epoch_has_fewer_parts(line: Path, tmp_path: Path) -> None:
    words = ("--batch", 8, "--accumulate", 3, "--epochs", 4)  # 8 batches: 3, 3 and 2
    whole, parts, run = (tmp_path / n for n in ("whole.onnx", "parts.onnx", "run"))
    assert "3 steps an epoch" in train(line, *words, "--out", whole)
    train(line, *words[:-1], 2, "--checkpoint", run)
    train(line, *words, "--resume", run, "--out", parts)
    for name, value in weights(whole).items():
        np.testing.assert_array_equal(value, weights(parts)[name])
    other = ("--batch", 8, "--accumulate", 2, "--epochs", 4)
    assert "other data or batches" in train(line, *other, "--resume", run, code=4)


def test_rates_and_frozen_weights_by_pattern(line: Path, tmp_path: Path) -> None:
    out, before = tmp_path / "o.onnx", weights(line)
    train(line, "--freeze", "w*", "--out", out)
    np.testing.assert_array_equal(weights(out)["w"], before["w"])
    assert np.any(weights(out)["b"] != before["b"])
    train(line, "--rate", "w*=0", "--out", out)
    np.testing.assert_array_equal(weights(out)["w"], before["w"])
    train(line, "--rate", "*=0.01", "--out", out)
    other = tmp_path / "p.onnx"
    steep(
        *("train", line, "--data", tmp_path / "d.npz", "--loss", "mse", "--optimizer", "sgd"),
        *("--lr", 0.01, "--out", other),
    )
    for name, value in weights(other).items():
        np.testing.assert_allclose(value, weights(out)[name], rtol=1e-6)
    for wrong in ("w", "=0.1", "w=", "w=x", "w=-1", "w=nan"):
        assert "--rate cannot be read" in train(line, "--rate", wrong, code=3)
    assert "no such initializer" in train(line, "--rate", "q*=0.1", code=3)


def test_averages_are_exported(line: Path, tmp_path: Path) -> None:
    train(line, "--ema", 0.99, "--out", tmp_path / "a.onnx")
    train(line, "--out", tmp_path / "b.onnx")
    assert np.any(weights(tmp_path / "a.onnx")["w"] != weights(tmp_path / "b.onnx")["w"])


def test_threads(line: Path) -> None:
    assert "epoch 1/1" in train(line, "--threads", 1)
    assert "--threads" in train(line, "--threads", 0, code=2)


def table(path: Path, rows: slice = slice(None)) -> Path:
    lines = ["a,b,c,y"]
    for x, y in zip(X[rows], Y[rows], strict=True):
        lines.append(",".join(repr(float(v)) for v in (*x, *y)))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_csv_and_several_files(line: Path, tmp_path: Path) -> None:
    train(line, "--out", tmp_path / "a.onnx")
    whole = table(tmp_path / "t.csv")
    one, two = table(tmp_path / "1.csv", slice(25)), table(tmp_path / "2.csv", slice(25, None))
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "label.npy", np.asfortranarray(Y))
    np.savez(tmp_path / "1.npz", x=X[:25], label=Y[:25])
    np.savez(tmp_path / "2.npz", x=X[25:], label=Y[25:])
    for words in (
        (whole,),
        (whole, "--map", "x=a,b,c", "--label-array", "y"),
        (one, two),
        (tmp_path / "x.npy", tmp_path / "label.npy"),
        (tmp_path / "1.npz", tmp_path / "2.npz"),
    ):
        train(line, "--data", *words, "--out", tmp_path / "b.onnx")
        for name, value in weights(tmp_path / "a.onnx").items():
            np.testing.assert_array_equal(value, weights(tmp_path / "b.onnx")[name], str(words))


def test_files_that_do_not_go_together(line: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "1.npz", x=X, label=Y)
    np.savez(tmp_path / "2.npz", x=X)
    np.savez(tmp_path / "3.npz", x=X[:, :2], label=Y)
    first = tmp_path / "1.npz"
    assert "shares some arrays" in train(line, "--data", first, tmp_path / "2.npz", code=3)
    said = train(line, "--data", first, tmp_path / "3.npz", code=3)
    assert "Array 'x' of" in said and "3.npz cannot be joined with that of" in said
    assert "received: float64" in said or "received: float32" in said
    assert "rename one" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,c,y\n1,2,3,4\n1,,3,4\n", "an empty cell in row 3, column 'b'"),
        ("a,b,c,y\n1,2,three,4\n", "no number in row 2, column 'c'"),
        ("a,b,c,y\n1,2,3\n", "too few cells in row 2"),
        ("a,b,c,y\n1,2,3,4,5\n", "too many cells in row 2"),
        ("a,b,b,y\n1,2,3,4\n", "a name twice in row 1, column 3"),
        ("a,b,,y\n1,2,3,4\n", "no name in row 1, column 3"),
        ("1.5,2,3,4\n1,2,3,4\n", "a number for a name in row 1, column 1"),
        ("1.5,2,3,4\n1,2,3,4\n", "sed -i '1i c1,c2,c3,c4'"),
        ("0.5,2,3,y\n1,2,3,4\n", "a number for a name in row 1, column 1"),
        ("a\tb\tc\ty\n1\t2\t3\t4\n", "separated by tabs"),
        ("day,a,b,c,y\nMonday,1,2,3,4\n", "leave the column out: --map"),
        ("a,b,c,d,y\n1,2,3,4,5\n", "Name the 3 columns to read: --map x="),
        ("a,b,c,y\n", "has no rows"),
        ("", "has no rows"),
        ('a,b,c,y\n1,2,"3,4\n', "a quote in row 2 that does not end"),
        ("a;b\n1;2\n", "Separate cells with commas"),
    ],
)
def test_tables_that_cannot_be_read(line: Path, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    received = train(line, "--data", tmp_path / "t.csv", code=3)
    assert said in received and "t.csv" in received


def test_columns_that_are_no_numbers(line: Path, tmp_path: Path) -> None:
    train(line, "--out", tmp_path / "a.onnx")
    rows = table(tmp_path / "t.csv").read_text().splitlines()
    texts = [f"{i},2020-01-0{i % 9},{row}" for i, row in enumerate(rows[1:])]
    texts[5] = "5,," + texts[5].split(",", 2)[2]
    (tmp_path / "t.csv").write_text("\n\n".join([",day," + rows[0], *texts]) + "\n")
    words = ("--data", tmp_path / "t.csv", "--map", "x=a,b,c", "--out", tmp_path / "b.onnx")
    said = train(line, *words)
    assert "'day' not read: '2020-01-00' is no number" in said
    assert "'' not read: a first column without a name" in said
    for name, value in weights(tmp_path / "a.onnx").items():
        np.testing.assert_array_equal(value, weights(tmp_path / "b.onnx")[name])


def test_true_and_false_are_labels(tmp_path: Path) -> None:
    text = "a,b,c,y\n" + "".join(f"{x[0]},{x[1]},{x[2]},{x[0] > 0}\n" for x in X)
    (tmp_path / "t.csv").write_text(text)
    model = save(tmp_path / "m.onnx", 2)
    words = ("--data", tmp_path / "t.csv", "--loss", "softmax_cross_entropy")
    assert "label from 'y' int64[60]" in train(model, *words)


def test_validation_has_the_columns_of_the_data(line: Path, tmp_path: Path) -> None:
    whole = table(tmp_path / "t.csv")
    cells = [row.split(",") for row in whole.read_text().splitlines()]
    other = tmp_path / "v.csv"

    def losses(*words: object) -> list[float]:
        text = train(line, "--data", whole, "--validation", other, "--json", *words)
        return [e["validation_loss"] for e in reports(text, "epoch")]

    other.write_text("\n".join(",".join(row) for row in cells))
    expected = losses()
    for order in ((2, 0, 1, 3), (3, 1, 0, 2)):
        other.write_text("\n".join(",".join(row[k] for k in order) for row in cells))
        assert losses() == expected
    other.write_text(
        "\n".join(",".join([*row, row[0] if i else "d"]) for i, row in enumerate(cells))
    )
    assert losses() == expected
    np.savez(tmp_path / "v.npz", x=X, label=Y)
    other = tmp_path / "v.npz"
    assert losses() == expected
    other = tmp_path / "v.csv"
    for names, lacks in ((["a", "b", "d", "y"], "c"), (["a", "b", "c", "target"], "y")):
        other.write_text("\n".join(",".join(row) for row in [names, *cells[1:]]))
        said = train(line, "--data", whole, "--validation", other, code=3)
        assert f"v.csv has no column '{lacks}', which --data has" in said


def test_the_label_is_no_feature(line: Path, tmp_path: Path) -> None:
    words = ("--data", table(tmp_path / "t.csv"), "--out", tmp_path / "o.npz")
    assert "not used: 'y'" in steep("predict", line, *words)
    np.testing.assert_allclose(np.load(tmp_path / "o.npz")["y"], outputs_of(line), rtol=1e-5)
    assert "not used: 'y'" in steep("eval", line, *words)


def test_eval_of_a_checkpoint_with_averages(line: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "o.onnx"
    train(line, "--ema", 0.9, "--epochs", 3, "--checkpoint", run, "--out", out)
    words = ("--data", tmp_path / "d.npz", "--loss", "mse", "--json")
    of_run = steep("eval", line, *words, "--optimizer", "sgd", "--checkpoint", run)
    assert json.loads(of_run) == json.loads(steep("eval", out, *words))


def test_predict(line: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=X, unused=Y)
    words = ("--data", tmp_path / "new.npz", "--out", tmp_path / "y.npz", "--batch", 7)
    text = steep("predict", line, *words)
    assert "rows 60" in text and "not used: 'unused'" in text
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], outputs_of(line), rtol=1e-5)
    assert "--out" in steep("predict", line, *words[:2], code=2)


def test_info_and_diff(line: Path, classifier: Path, tmp_path: Path) -> None:
    text = steep("info", line)
    for said in ("input   x", "output  y", "2 initializers of 4 elements", "MatMul", "opset 17"):
        assert said in text
    assert "no difference" in steep("diff", line, line)
    train(line, "--data", table(tmp_path / "t.csv"), "--freeze", "b", "--out", tmp_path / "t.onnx")
    text = steep("diff", line, tmp_path / "t.onnx", code=1)
    assert "! initializer w  differs by" in text and "of 3 elements" in text
    assert "initializer b" not in text
    text = steep("diff", line, classifier, code=1)
    assert "! output y" in text and "! initializer w  float32[3, 1] and float32[3, 4]" in text
    paths = [tmp_path / "zeros.onnx", tmp_path / "other.onnx"]
    steep("diff", line, paths[0], code=4)
    for values, said in (
        ((np.nan, 0, 1), "by nan at most, in 2 of 3 elements"),
        ((-0.0, 0, 0), "in the bits of zeros"),
    ):
        for path, row in zip(paths, [(0, 0, 0), values], strict=True):
            model = onnx.load(line)
            w = np.array([[number] for number in row], np.float32)
            model.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
            onnx.save(model, path)
        assert said in steep("diff", *paths, code=1)
    assert "no difference" in steep("diff", paths[1], paths[1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--loss", "softmax_crossentropy"), "did you mean 'softmax_cross_entropy'"),
        (("--loss", "softmax"), "did you mean 'softmax_cross_entropy'"),
        (("--loss", "binary"), "NAME.onnx"),  # of two losses
        (("--optimizer", "adm"), "did you mean 'adam'"),
        (("--precision", "bf61"), "did you mean 'bf16'"),
        (("--schedule", "cosin"), "did you mean 'cosine'"),
        (("--disable-pass", "recompyte"), "did you mean 'recompute'"),
    ],
)
def test_values_that_are_misspelt(line: Path, words: tuple[str, str], said: str) -> None:
    command = ("train", line, "--data", line.with_name("d.npz"))
    loss = () if words[0] == "--loss" else ("--loss", "mse")
    assert said in steep(*command, *loss, *words, code=2)


# --- data in folders, and larger than memory ------------------------------------------------------


def test_a_folder_stands_for_its_files(line: Path, tmp_path: Path) -> None:
    train(line, "--out", tmp_path / "a.onnx")
    folder = tmp_path / "parts"
    folder.mkdir()
    for i, part in enumerate(np.array_split(np.arange(60), 3)):
        np.savez(folder / f"{i}.npz", x=X[part], label=Y[part])
    (folder / "README").write_text("no data")
    words = ("--loss", "mse", *SGD, "--out", tmp_path / "b.onnx")
    assert "and 2 more" in steep("train", line, "--data", folder, *words)
    for name, value in weights(tmp_path / "a.onnx").items():
        np.testing.assert_array_equal(value, weights(tmp_path / "b.onnx")[name])
    (tmp_path / "none").mkdir()
    text = steep("train", line, "--data", tmp_path / "none", *words, code=3)
    assert "a folder without files of data" in text


@pytest.fixture
def large(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    x = random.normal(0, 1, (200_000, 3)).astype(np.float32)
    return x, (x @ np.array([[1], [-2], [0.5]])).astype(np.float32)


LITTLE = ("--max-bytes", "2M")  # the numbers have 3.2 MB


@pytest.mark.parametrize("words", [(), ("--no-shuffle",), ("--validation-split", 0.3)])
def test_data_larger_than_memory(
    line: Path, tmp_path: Path, large: tuple[np.ndarray, np.ndarray], words: tuple[object, ...]
) -> None:
    x, y = large
    common = (*SGD, "--loss", "mse", "--batch", 1000, *words)
    np.savez(tmp_path / "d.npz", x=x, label=y)
    steep("train", line, "--data", tmp_path / "d.npz", *common, "--out", tmp_path / "a.onnx")
    expected = weights(tmp_path / "a.onnx")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "label.npy", y)
    for files in (["d.npz"], ["x.npy", "label.npy"]):
        data = [word for name in files for word in ("--data", tmp_path / name)]
        out = ("--out", tmp_path / "b.onnx")
        text = steep("train", line, *data, *common, *LITTLE, *out)
        assert "read as it is used, since it is large" in text
        for name, value in weights(tmp_path / "b.onnx").items():
            np.testing.assert_array_equal(value, expected[name])


def test_large_data_of_another_dtype(
    line: Path, tmp_path: Path, large: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = large
    np.save(tmp_path / "x.npy", np.round(x * 20).astype(np.int8))
    np.savez(tmp_path / "small.npz", x=np.round(x * 20), label=y)
    np.save(tmp_path / "label.npy", y)
    words = ("--loss", "mse", *SGD[:2], "--lr", 1e-4, "--batch", 1000)
    parts = ("--data", tmp_path / "x.npy", "--data", tmp_path / "label.npy", *LITTLE)
    assert "large" in steep("train", line, *parts, *words, "--out", tmp_path / "a.onnx")
    steep("train", line, "--data", tmp_path / "small.npz", *words, "--out", tmp_path / "b.onnx")
    for name, value in weights(tmp_path / "a.onnx").items():
        np.testing.assert_array_equal(value, weights(tmp_path / "b.onnx")[name])
    out = ("--out", tmp_path / "p.npz")
    steep("predict", line, "--data", tmp_path / "x.npy", "--max-bytes", "2M", *out)
    predicted = np.load(tmp_path / "p.npz")["y"]
    np.testing.assert_allclose(
        predicted,
        outputs_of(line, np.round(x * 20).astype(np.int8).astype(np.float32)),
        rtol=1e-5,
        atol=1e-5,
    )


def test_large_data_that_cannot_be_mapped(
    line: Path, tmp_path: Path, large: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = large
    words = ("--loss", "mse", *SGD, *LITTLE)
    for name, arrays in {
        "compressed": {"x": x, "label": y},
        "columns": {"x": np.asfortranarray(x), "label": y},
        "swapped": {"x": x.astype(">f4"), "label": y},
    }.items():
        save_as = np.savez_compressed if name == "compressed" else np.savez
        save_as(tmp_path / "d.npz", **arrays)
        text = steep("train", line, "--data", tmp_path / "d.npz", *words, code=3)
        assert "max_bytes" in text, name
    np.savez(tmp_path / "d.npz", x=x, label=y)
    whole = (tmp_path / "d.npz").read_bytes()
    wrong = whole.replace(b"(200000, 3)", b"(900000, 3)")
    for damage in (
        whole[:-100],
        whole[: len(whole) // 2],
        wrong,
    ):
        (tmp_path / "d.npz").write_bytes(damage)
        assert "steep: " in steep("train", line, "--data", tmp_path / "d.npz", *words, code=3)


def test_a_file_that_shrinks_while_it_is_read(
    line: Path, tmp_path: Path, large: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = large
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "label.npy", y)
    data = ("--data", tmp_path / "x.npy", "--data", tmp_path / "label.npy")
    command = (built("steep"), "train", line, *data, "--loss", "mse", *SGD, *LITTLE)
    words = [*map(str, command), "--epochs", "100000"]
    with subprocess.Popen(
        words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as run:
        assert run.stdout is not None
        while "epoch 1/" not in run.stdout.readline():
            assert run.poll() is None
        os.truncate(tmp_path / "x.npy", 4096)
        assert "became shorter" in run.stdout.read()
        assert run.wait(60) == 4
