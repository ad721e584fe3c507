"""Files that are no models of anything: a typed error that can be read, wherever it is found."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import steep

HEAD = '<ir_version: 10, opset_import: ["": 18]> '


def with_text(model: onnx.ModelProto, old: bytes, new: bytes) -> bytes:
    """`new`, of the same length, in the place of `old`."""
    assert len(old) == len(new)
    serialised = model.SerializeToString()
    assert old in serialised
    return serialised.replace(old, new)


@pytest.mark.parametrize(
    ("text", "inits"),
    [
        ('g (float[2,3] x) => (float[a,b] y) { y = Pad <mode="quux"> (x, p) }', {"p": [0] * 4}),
        ('g (float[2,3] x) => (float[a,b] y) { y = Einsum <equation="quux"> (x) }', {}),
        ('g (float[2,3] x) => (float[a,b] y) { y = Gelu <approximate="quux"> (x) }', {}),
        (
            "g (float[1,4,2,2] x) => (float[a,b,c,d] y)"
            ' { y = DepthToSpace <blocksize=2, mode="quux"> (x) }',
            {},
        ),
        (
            'g (float[2,3] x) => (float[a,b] y) { y = ScatterND <reduction="quux"> (x, i, x) }',
            {"i": [[0], [1]]},
        ),
    ],
    ids=["Pad", "Einsum", "Gelu", "DepthToSpace", "ScatterND"],
)
def test_attributes_that_are_no_text(text, inits) -> None:
    model = onnx.parser.parse_model(HEAD.replace("18", "20") + text)
    for name, values in inits.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(values), name))
    serialised = with_text(model, b"quux", b"\xff\xfe\xfdx")
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    with pytest.raises(steep.Error) as error:
        steep.InferenceSession(serialised).run(None, {"x": np.zeros(shape, np.float32)})
    assert not isinstance(error.value, steep.InternalError)


def test_a_domain_that_is_no_text() -> None:
    function = helper.make_function(
        "quux",
        "F",
        ["x"],
        ["y"],
        [helper.make_node("Relu", ["x"], ["y"])],
        [helper.make_opsetid("", 18)],
    )
    before = steep._steep.registered_ops()
    with pytest.raises(steep.ModelError, match="UTF-8"):
        steep.register_op(function.SerializeToString().replace(b"quux", b"\xff\xfe\xfdx"))
    assert steep._steep.registered_ops() == before


def test_a_determinant_of_nothing_in_a_step() -> None:
    d = onnx.TensorProto.FLOAT16
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "w"], ["z"]),
            helper.make_node("Det", ["z"], ["d"]),
            helper.make_node("Mul", ["d", "k"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", d, [0, 0])],
        [helper.make_tensor_value_info("y", d, [])],
        [
            numpy_helper.from_array(np.zeros((0, 0), np.float16), "w"),
            numpy_helper.from_array(np.float16(2), "k"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = steep.TrainingSession(model, loss="mse", optimizer="sgd")
    assert session.step(np.zeros((0, 0), np.float16), np.float16(1)).loss == 1


def test_a_spectrum_of_no_samples() -> None:
    for more, extents in (("", "1,0"), (", , n", "1,0"), ("", "b,s"), (", , n", "b,s")):
        model = onnx.parser.parse_model(
            HEAD + f"g (float[{extents},1] x) => (float[a,c,d,2] y) <int64 step = {{2}}, "
            f"int64 n = {{4}}> {{ y = STFT (x, step{more}) }}"
        )
        x = np.zeros((1, 0, 1), np.float32)
        try:
            gradients = steep.grad(model, ["x"], ["y"])
            (y,) = steep.InferenceSession(model).run(None, {"x": x})
            feed = {"x": x, "grad_y": np.ones_like(y)}
            assert steep.InferenceSession(gradients).run(["grad_x"], feed)[0].shape == x.shape
        except steep.Error as error:
            assert not isinstance(error, steep.InternalError)


def test_a_spectrum_that_does_not_say_its_sides_has_one() -> None:
    model = onnx.parser.parse_model(
        HEAD + "g (float[1,16,1] x) => (float[a,c,d,2] y) <int64 step = {2}, int64 n = {8}>"
        " { y = STFT (x, step, , n) }"
    )
    session = steep.InferenceSession(model)
    assert session.run(None, {"x": np.ones((1, 16, 1), np.float32)})[0].shape == (1, 5, 5, 2)
    (_, grad_y) = steep.InferenceSession(steep.grad(model, ["x"], ["y"])).get_inputs()
    assert list(grad_y.shape) == [1, 5, 5, 2]


def test_axes_of_a_transposition_that_are_too_few() -> None:
    model = onnx.parser.parse_model(
        HEAD + "g (float[2,3] x) => (float[3] y) <float[2,3] w = {1,2,3,4,5,6}>"
        " { z = Mul (x, w) y = Transpose <perm = [1]> (z) }"
    )
    with pytest.raises(steep.ShapeError, match="perm"):
        steep.TrainingSession(model, loss="mse", optimizer="sgd")
