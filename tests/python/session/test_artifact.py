"""``TrainingSession.save_artifact``: what it takes, and what it refuses."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep


def classifier(path: Path, middle: str = "Relu") -> Path:
    random = np.random.default_rng(0)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node(middle, ["h"], ["logits"]),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [
            helper.make_tensor_value_info("h", TensorProto.FLOAT, ["rows", 3]),
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 3]),
        ],
        [numpy_helper.from_array(random.normal(size=(4, 3)).astype(np.float32), "w")],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def trained(model: Path, output: str) -> steep.TrainingSession:
    return steep.TrainingSession(
        model, loss="softmax_cross_entropy", output=output, optimizer="sgd"
    )


def batch(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((rows, 4), np.float32), np.zeros(rows, np.int64)


def test_batches_of_several_shapes_are_one_file(tmp_path: Path) -> None:
    model = classifier(tmp_path / "model.onnx")
    session = trained(model, "logits")
    session.save_artifact(tmp_path / "one.steep", batch(8))
    session.save_artifact(tmp_path / "two.steep", batch(8), batch(1)[:1])
    one, two = ((tmp_path / f"{name}.steep").read_bytes() for name in ("one", "two"))
    assert one.startswith(b"STEEPART") and two.startswith(b"STEEPART")
    assert len(one) < len(two) < 2 * len(one)  # weights are in it once


def test_labels_in_other_forms_are_taken_as_step_takes_them(tmp_path: Path) -> None:
    model = classifier(tmp_path / "model.onnx")
    session = trained(model, "logits")
    x, labels = batch(8)
    session.save_artifact(tmp_path / "plain.steep", (x, labels))
    session.save_artifact(tmp_path / "other.steep", (x, labels.astype(np.int32)[:, None]))
    assert (tmp_path / "plain.steep").read_bytes() == (tmp_path / "other.steep").read_bytes()


def test_what_an_artifact_cannot_hold_is_named(tmp_path: Path) -> None:
    model = classifier(tmp_path / "model.onnx", "Hardmax")
    session = trained(model, "h")
    path = tmp_path / "no.steep"
    x = batch(8)[0]
    with pytest.raises(steep.ModelError, match=r"(?s)cannot hold a node of this operator.*Hardmax"):
        session.save_artifact(path, (x,))
    with pytest.raises(steep.DataError, match="needs the shapes of a batch"):
        session.save_artifact(path)
    assert not path.exists()
    session = trained(classifier(tmp_path / "other.onnx"), "logits")
    with pytest.raises(steep.IoError):
        session.save_artifact(tmp_path / "nowhere" / "a.steep", (x,))
