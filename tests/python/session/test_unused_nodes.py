"""What the wanted outputs do not read, inputs with a default, and data of another type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from steep_program import steep as program

import steep

W = np.arange(6, dtype=np.float32).reshape(3, 2)
X = np.array([[1, 2, 3], [0, 1, -1]], np.float32)


def node(op, inputs, outputs, domain="", **attrs):
    return helper.make_node(op, inputs, outputs, name=f"the {op}", domain=domain, **attrs)


def info(name, *shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes=(), inputs=(), outputs=(), opsets=(("", 18),), functions=(), ir_version=8):
    graph = helper.make_graph(
        [node("MatMul", ["x", "w"], ["y"]), *nodes],
        "g",
        [info("x", "n", 3), *inputs],
        [info("y", "n", 2), *outputs],
        [numpy_helper.from_array(W, "w")],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*o) for o in opsets],
        functions=functions,
        ir_version=ir_version,
    )


def with_labels(**more):
    """Beside the scores y: labels by operators that nobody knows, from an input of their own."""
    nodes = [
        node("Relu", ["y"], ["r"]),
        node("TreeEnsembleRegressor", ["r", "z"], ["s"], "ai.onnx.ml"),
        node("Relu", ["s"], ["label"]),
    ]
    opsets = ("", 18), ("ai.onnx.ml", 3)
    return model(nodes, [info("z", "n")], [info("label", "n", 2)], opsets, **more)


SGD = {"loss": "mse", "optimizer": "sgd", "lr": 0.1}


def test_opsets_may_be_imported_twice():
    y = steep.InferenceSession(model(opsets=[("", 18), ("", 18), ("ai.onnx", 18)])).run(
        None, {"x": X}
    )
    np.testing.assert_array_equal(y[0], X @ W)
    with pytest.raises(steep.ModelError, match="two versions of a domain") as refused:
        steep.InferenceSession(model(opsets=[("", 18), ("", 17)]))
    assert 'domain "" at 18 and 17' in str(refused.value)


def test_training_leaves_out_what_the_loss_does_not_read(tmp_path):
    file = with_labels()
    session = steep.TrainingSession(file, output="y", label="t", **SGD)
    assert [i.name for i in session.input_info()] == ["x", "t"]
    other = steep.TrainingSession(model(), label="t", **SGD)
    assert session.step(X, X[:, :2]).loss == other.step(X, X[:, :2]).loss
    for for_inference in (False, True):
        out = tmp_path / "out.onnx"
        session.export_onnx(str(out), for_inference=for_inference)
        written = onnx.load(out)
        assert [n.op_type for n in written.graph.node] == [n.op_type for n in file.graph.node]
        assert [o.name for o in written.graph.output] == ["y", "label"]
        trained = numpy_helper.to_array(written.graph.initializer[0])
        np.testing.assert_array_equal(trained, session.weights()["w"].numpy())


def test_what_the_loss_reads_is_refused_by_name():
    for options in ({"output": "label"}, {"output": "y", "step_outputs": ["label"]}):
        with pytest.raises(steep.ModelError, match="TreeEnsembleRegressor") as refused:
            steep.TrainingSession(with_labels(), **options, **SGD)
        assert "'label'" in str(refused.value)
    only = with_labels()
    del only.graph.output[0]
    with pytest.raises(steep.ModelError, match="has an operator that Steep does not know"):
        steep.TrainingSession(only, **SGD)


def test_a_loss_that_is_left_out_is_not_replaced_by_another_output():
    file = with_labels()
    file.graph.output[1].name = file.graph.node[-1].output[0] = "loss"
    with pytest.raises(steep.ModelError, match="'loss'"):
        steep.TrainingSession(file, **SGD)


def test_inference_and_gradients_need_what_they_are_asked_for():
    session = steep.InferenceSession(with_labels())
    assert [o.name for o in session.get_outputs()] == ["y"]
    np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], X @ W)
    for names in (["label"], None):
        with pytest.raises(steep.ModelError, match="TreeEnsembleRegressor"):
            session.run(names, {"x": X})
    steep.grad(with_labels(), wrt=["w"], outputs=["y"])
    for outputs in (["label"], []):
        with pytest.raises(steep.ModelError, match="TreeEnsembleRegressor"):
            steep.grad(with_labels(), wrt=["w"], outputs=outputs)


def test_functions_and_branches_that_hold_unknown_operators_are_left_out():
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    bad = helper.make_function(
        "mine",
        "Bad",
        ["a"],
        ["b"],
        [node("TreeEnsembleRegressor", ["a"], ["b"], "ai.onnx.ml")],
        opsets,
    )
    branch = helper.make_graph(
        [node("Bad", ["y"], ["b"], "mine")], "branch", [], [info("b", None, None)]
    )
    nodes = [
        node("IsNaN", ["y"], ["nan"]),
        node("Cast", ["nan"], ["f"], to=TensorProto.FLOAT),
        node("ReduceMax", ["f"], ["m"], keepdims=0),
        node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
        node("If", ["c"], ["label"], then_branch=branch, else_branch=branch),
    ]
    file = model(
        nodes, (), [info("label", None, None)], (("", 18), ("mine", 1), ("ai.onnx.ml", 3)), [bad]
    )
    (y,) = steep.InferenceSession(file).run(["y"], {"x": X})
    np.testing.assert_array_equal(y, X @ W)


def test_check_names_what_is_left_out(tmp_path):
    onnx.save(with_labels(), tmp_path / "model.onnx")
    said = program("check", tmp_path / "model.onnx", "--loss", "mse", "--output", "y")
    assert "can be trained: 6 parameters" in said
    tree = "the TreeEnsembleRegressor (ai.onnx.ml.TreeEnsembleRegressor)"
    assert f"kept in the file and not trained: {tree}" in said
    assert steep.check(with_labels(), loss="mse", output="y") == []
    (obstacle,) = steep.check(with_labels(), loss="mse", output="label")
    assert obstacle.op == "ai.onnx.ml.TreeEnsembleRegressor"


@pytest.mark.parametrize("ir_version", [3, 8])
def test_inputs_with_a_default(ir_version):
    file = model(inputs=[info("w", 3, 2)], ir_version=ir_version)
    session = steep.InferenceSession(file)
    assert [i.name for i in session.get_inputs()] == ["x"]
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X @ W)
    if ir_version == 3:  # there, every initializer is an input too
        assert session.get_overridable_initializers() == []
        with pytest.raises(steep.DataError, match="no such input"):
            session.run(None, {"x": X, "w": W})
    else:
        (weight,) = session.get_overridable_initializers()
        assert (weight.name, weight.type, weight.shape) == ("w", "tensor(float)", [3, 2])
        for other in (2 * W, 3 * W):
            np.testing.assert_array_equal(session.run(None, {"x": X, "w": other})[0], X @ other)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], X @ W)
        with pytest.raises(steep.ShapeError, match="float8_e5m2"):
            session.run(None, {"x": X, "w": W.astype(ml_dtypes.float8_e5m2)})
    trained = steep.TrainingSession(file, label="t", **SGD)
    assert trained.parameter_names == ["w"]
    assert [i.name for i in trained.input_info()] == ["x", "t"]


def test_a_default_that_shapes_depend_on():
    file = model(
        [node("Reshape", ["y", "shape"], ["r"])],
        [info("shape", 2, dtype=TensorProto.INT64)],
        [info("r", None, None)],
    )
    file.graph.initializer.append(numpy_helper.from_array(np.array([1, 4]), "shape"))
    session = steep.InferenceSession(file)
    assert session.run(["r"], {"x": X})[0].shape == (1, 4)
    assert session.run(["r"], {"x": X, "shape": np.array([4, 1])})[0].shape == (4, 1)


def test_training_takes_data_as_numpy_makes_it():
    def session():
        options = {"optimizer": "sgd", "lr": 0.1, "label": "t"}
        return steep.TrainingSession(model(), loss="softmax_cross_entropy", **options)

    labels = np.array([1, 0])
    wanted = session().step(X, labels).loss
    for x, t in (
        (X.astype(np.float64), labels.astype(np.int32)),
        (X.astype(np.int8), labels.astype(np.uint8)),
    ):
        assert session().step(x, t).loss == session().step(x=x, t=t).loss == wanted
        assert session().eval(x, t).loss == session().eval(x=x, t=t).loss == wanted
        assert session().gradients(x, t)[0] == wanted
    assert session().step(X, labels.astype(np.float64)).loss == wanted
    with pytest.raises(steep.DataError, match=r"0\.5"):
        session().step(X, labels * 0.5)
    with pytest.raises(steep.DataError, match="18446744073709551615"):
        session().step(X, np.array([1, 2**64 - 1], np.uint64))
