"""steep.check: every obstacle to training, with its way to the loss and what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep


def model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """From x and the weight w to y; all are [n, 4]."""
    graph = helper.make_graph(
        nodes,
        "checked",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "c", "t"]),
            helper.make_tensor_value_info("kernel", TensorProto.FLOAT, ["c", 1, "k"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "c", "t"])],
        [numpy_helper.from_array(np.ones(1, np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)], ir_version=8)


SCALE = helper.make_node("Mul", ["x", "w"], ["h"], "scale")
# Without known channels ONNX does not say what it is made of.
PEAK = helper.make_node("CausalConvWithState", ["h", "kernel"], ["p", "state"], "peak")
MIX = helper.make_node("Add", ["p", "x"], ["m"], "mix")
OUT = helper.make_node("Tanh", ["m"], ["y"], "out")


def test_nothing_stands_in_the_way() -> None:
    assert steep.check(model(SCALE, helper.make_node("Tanh", ["h"], ["y"]))) == []


@pytest.mark.parametrize("loss", ["", "mse"])
def test_an_operator_without_a_gradient(loss: str) -> None:
    found = steep.check(model(SCALE, PEAK, MIX, OUT), loss=loss)
    gradient = found[0]
    assert (gradient.op, gradient.node) == ("CausalConvWithState", "peak")
    assert gradient.path.startswith("peak → mix → out → ")
    assert "no gradient" in gradient.what and "docs/add_an_op.md" in gradient.remedy
    assert "peak" in repr(gradient)
    assert steep.check(model(SCALE, PEAK, MIX, OUT), frozen=["w"]) != []  # nothing is left to train


def test_what_cannot_be_imported_is_an_obstacle() -> None:
    foreign = helper.make_node("Gadget", ["h"], ["y"], "odd", domain="nowhere")
    (obstacle,) = steep.check(model(SCALE, foreign))
    assert obstacle.op == "nowhere.Gadget" and obstacle.node == "odd"
    assert "nowhere" in obstacle.remedy


def test_a_loss_that_is_not_there_is_an_obstacle() -> None:
    (obstacle,) = steep.check(model(SCALE, helper.make_node("Tanh", ["h"], ["y"])), output="z")
    assert "z" in repr(obstacle) and "y" in obstacle.what


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(steep.IoError):
        steep.check(tmp_path / "none.onnx")
