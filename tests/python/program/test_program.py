"""The `steep` program, run as a user runs it."""

import csv
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from steep_program import EXAMPLES, built, linear, output_of, steep, train, weights


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "linear.onnx"
    onnx.save(linear.linear_model(10), path)
    np.savez_compressed(tmp_path / "linear.npz", **linear.linear_data(256, 10))
    return path


def test_help_names_every_command() -> None:
    text = steep("--help")
    for command in ("train", "eval", "predict", "check", "dump", "info", "diff"):
        assert command in text
        assert "Example" in steep(command, "--help")
    assert steep("--version").startswith("steep ")
    steep("fly", code=2)
    steep("train", code=2)


def test_train_fits_and_exports(model: Path, tmp_path: Path) -> None:
    out, metrics = tmp_path / "trained.onnx", tmp_path / "metrics.csv"
    text = train(model, "--epochs", 30, "--out", out, "--metrics", metrics)
    assert "epoch 30/30" in text
    data = linear.linear_data(256, 10)
    y = ReferenceEvaluator(onnx.load(out)).run(None, {"x": data["x"]})[0]
    np.testing.assert_allclose(y, data["label"], atol=1e-4)
    rows = list(csv.DictReader(metrics.open()))
    assert [int(r["step"]) for r in rows] == list(range(1, 30 * 8 + 1))
    assert float(rows[-1]["loss"]) < 1e-6 < float(rows[0]["loss"])
    assert "rows 256" in steep(
        "eval", out, "--data", tmp_path / "linear.npz", "--loss", "mse", "--out", tmp_path / "y.npz"
    )
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], y, atol=1e-6)


def test_other_names_dtypes_and_orders(model: Path, tmp_path: Path) -> None:
    data = linear.linear_data(256, 10)
    np.savez(
        tmp_path / "other.npz",
        features=np.asfortranarray(data["x"], np.float64),
        target=data["label"].astype(">f4"),
    )
    options = ("--loss", "mse", "--optimizer", "sgd", "--lr", 0.1, "--out", tmp_path / "a.onnx")
    words = ("train", model, "--data", tmp_path / "other.npz", *options)
    assert "no array for input 'x'" in steep(*words, code=3)
    steep(*words, "--map", "x=features")
    train(model, "--out", tmp_path / "b.onnx")
    for name, value in weights(tmp_path / "a.onnx").items():
        np.testing.assert_array_equal(value, weights(tmp_path / "b.onnx")[name])


def test_resume_after_each_epoch_is_bit_exact(model: Path, tmp_path: Path) -> None:
    options = ("--optimizer", "adamw", "--batch", 48, "--seed", 3)
    whole = ("--schedule", "cosine", "--warmup-steps", 2, "--total-steps", 24)
    train(model, *options, *whole, "--epochs", 4, "--out", tmp_path / "whole.onnx")
    run = tmp_path / "run"
    for epochs in (1, 2, 4):
        resume = ("--resume", run) if run.exists() else ()
        train(model, *options, *whole, "--epochs", epochs, "--checkpoint", run, *resume)
    train(model, *options, *whole, "--epochs", 4, "--resume", run, "--out", tmp_path / "parts.onnx")
    for name, value in weights(tmp_path / "whole.onnx").items():
        np.testing.assert_array_equal(value, weights(tmp_path / "parts.onnx")[name])
    other = ("--optimizer", "adamw", "--batch", 32, "--seed", 3, *whole)
    assert "other data or batches" in train(model, *other, "--resume", run, code=4)


def test_resume_says_that_the_number_of_threads_is_another(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    train(model, "--checkpoint", run)
    assert "warning" not in train(model, "--resume", run)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "warning: the checkpoint was saved with 1 thread" in train(model, "--resume", run)


def test_files_replace_files_only(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out.onnx").symlink_to("/dev/null")
    for option in ("--out", "--profile", "--metrics"):
        assert "it is a device" in train(model, option, "/dev/null", code=4)
        text = train(model, option, tmp_path / "out.onnx", code=4)
        assert "out.onnx (a link to /dev/null): it is a device" in text
    assert Path("/dev/null").is_char_device()
    (tmp_path / "link.onnx").symlink_to("trained.onnx")
    text = train(model, "--out", tmp_path / "link.onnx")
    assert f"link.onnx (a link to {tmp_path / 'trained.onnx'})" in text
    assert (tmp_path / "link.onnx").is_symlink() and weights(tmp_path / "trained.onnx")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_saves_and_resumes_bit_exactly(
    model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    options = ("--data", tmp_path / "linear.npz", "--loss", "mse", "--optimizer", "adam")
    words = [built("steep"), "train", model, *options, "--batch", 1, "--epochs", 4000]
    words += ["--metrics", tmp_path / "metrics.csv"]
    with subprocess.Popen(
        [*map(str, words), "--checkpoint", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        metrics = tmp_path / "metrics.csv"
        deadline = time.monotonic() + 60
        while not metrics.exists() or metrics.stat().st_size < 2000:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        text = process.stdout.read()
        assert process.wait(60) == 130, text
    assert "resume with:" in text and f"--resume {tmp_path / 'run'}" in text
    done = len(metrics.read_text().splitlines()) - 1
    assert f"stopped after step {done}" in text
    epochs = done // 256 + 1
    words[words.index("--epochs") + 1] = epochs
    words[-1] = tmp_path / "whole.csv"
    subprocess.run([*map(str, words)], check=True, capture_output=True)
    words[-1] = tmp_path / "metrics.csv"
    subprocess.run([*map(str, words), "--resume", str(tmp_path / "run")], check=True)
    assert metrics.read_text() == (tmp_path / "whole.csv").read_text()


def test_errors_are_plain(model: Path, tmp_path: Path) -> None:
    for text in (
        steep("train", tmp_path / "none.onnx", "--data", tmp_path / "linear.npz", code=4),
        steep("train", model, "--data", tmp_path / "none.npz", "--loss", "mse", code=4),
        steep("train", model, "--data", model, "--loss", "mse", code=3),
        train(model, "--train", "wieght", code=3),
        train(model, "--resume", tmp_path / "none", code=4),
        train(model, "--freeze", "weight,bias", code=3),
    ):
        assert text.rsplit("steep: ", 1)[-1] and "terminate" not in text and "0x" not in text
    assert "weight" in train(model, "--train", "wieght", code=3).split("expected:")[1]


def test_check_says_what_can_be_trained(model: Path) -> None:
    assert "can be trained: 11 parameters in 2 tensors" in steep("check", model)
    assert "one step:" in steep("check", model, "--loss", "mse", "--shape", "x=32,10")


def test_what_is_trained_and_what_is_not_is_printed(tmp_path: Path) -> None:
    proto = linear.linear_model(10)
    proto.graph.node.insert(0, helper.make_node("Sub", ["x", "mean"], ["centred"]))
    proto.graph.node[1].input[0] = "centred"
    proto.graph.node.append(helper.make_node("Sigmoid", ["y"], ["p"]))
    proto.graph.node.append(helper.make_node("Clip", ["p", "low"], ["above"]))
    proto.graph.output[0].name = "above"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1e-7), "low"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(10, np.float32), "mean"))
    path = tmp_path / "linear.onnx"
    onnx.save(proto, path)
    data = linear.linear_data(32, 10)
    np.savez(tmp_path / "linear.npz", x=data["x"], label=(data["label"] > 0).astype(np.float32))
    loss = ("--loss", "binary_cross_entropy_with_logits")
    checked = steep("check", path, *loss)
    trained = steep("train", path, "--data", tmp_path / "linear.npz", *loss)
    assert "trained: weight, bias" in trained
    for text in (checked, trained):
        assert "not trained: mean (shifts or scales an input)" in text
        assert "applies Sigmoid itself" in text
    assert "mean" not in steep("check", path, *loss, "--train", "weight").split("warning")[0]


def test_check_lists_every_obstacle(tmp_path: Path) -> None:
    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "c", "t"])

    kernel = helper.make_tensor_value_info("k", TensorProto.FLOAT, ["c", 1, "k"])
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "w"], ["a"], "scale"),
            helper.make_node("CausalConvWithState", ["a", "k"], ["b", "state"], "first"),
            helper.make_node("CausalConvWithState", ["c", "k"], ["d", "other"], "second"),
            helper.make_node("Mul", ["x", "w2"], ["c"], "square"),
            helper.make_node("Mul", ["b", "d"], ["y"], "product"),
        ],
        "obstacles",
        [info("x"), kernel],
        [info("y")],
        [
            onnx.numpy_helper.from_array(np.ones(1, np.float32), "w"),
            onnx.numpy_helper.from_array(np.ones(1, np.float32), "w2"),
        ],
    )
    graph.node.sort(key=lambda n: ["scale", "first", "square", "second", "product"].index(n.name))
    path = tmp_path / "obstacles.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)]), path)
    text = steep("check", path, code=1)
    assert "cannot be trained: 2 obstacles" in text
    for part in ("CausalConvWithState", "first", "second", "needed by", "remedy"):
        assert part in text


def test_dump_shows_graph_and_plan(model: Path) -> None:
    assert "MatMul" in steep("dump", model)
    text = steep("dump", model, "--loss", "mse", "--optimizer", "sgd", "--shape", "x=32,10")
    assert "steep.SGD" in text and "float32[32, 10]" in text


def run_example(name: str, folder: Path) -> str:
    script = EXAMPLES / name / "make_model.py"
    subprocess.run([sys.executable, script, folder], check=True, capture_output=True)
    return output_of(built(f"examples/{name}"), folder)


def test_linear_regression_in_cpp(tmp_path: Path) -> None:
    assert "final loss" in run_example("linear_regression", tmp_path)


def test_digits_in_cpp(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    text = run_example("digits_mlp", tmp_path)
    assert float(text.split("test accuracy ")[1]) >= 0.95
    test = np.load(tmp_path / "digits_test.npz")
    logits = ReferenceEvaluator(onnx.load(tmp_path / "digits_trained.onnx")).run(
        None, {"x": test["x"]}
    )[0]
    assert (logits.argmax(1) == test["label"]).mean() >= 0.95


@pytest.mark.parametrize("name", ["linear_regression", "digits_mlp"])
def test_cpp_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / name / "main.cpp").read_text().splitlines()) < 40
