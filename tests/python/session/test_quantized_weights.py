"""Files with weights of integers: which train, as with PyTorch's fake_quantize, and which not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import steep

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7)}
TYPES = {"int8": np.int8, "uint8": np.uint8, "int4": ml_dtypes.int4}
X = np.random.default_rng(3).standard_normal((16, 3), dtype=np.float32) * 2
T = np.random.default_rng(4).standard_normal((16, 2), dtype=np.float32)


def written(nodes, tensors):
    inout = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantised",
        inout[:1],
        inout[1:],
        [numpy_helper.from_array(t, n) for n, t in tensors],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(proto)
    return proto.SerializeToString()


def qdq(dtype="int8", *, per_channel=True, scales=(0.125, 0.25)):
    """x → fake quantised to int8 → MatMul(w1) → Add(b); w1 in integers, with a few at the ends."""
    low, high = RANGES[dtype]
    scale = np.array(scales if per_channel else scales[0], np.float32)
    zero = np.array([1, 0] if per_channel else 1, np.int32).astype(TYPES[dtype])
    w = np.array([[low, 2], [high, 3], [1, high - 1]]).astype(TYPES[dtype])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w1", "s", "z"], ["w1d"], axis=1),
        helper.make_node("MatMul", ["xd", "w1d"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    return written(
        nodes,
        [
            ("xs", np.float32(0.02)),
            ("xz", np.int8(3)),
            ("w1", w),
            ("s", scale),
            ("z", zero),
            ("b", np.array([0.5, -0.5], np.float32)),
        ],
    )


def session(model, **options):
    return steep.TrainingSession(model, loss="mse", optimizer="sgd", **{"lr": 0.05, **options})


def stored(model, name="w1"):
    (tensor,) = (t for t in onnx.load_from_string(model).graph.initializer if t.name == name)
    return numpy_helper.to_array(tensor)


def fake(w, scale, zero, low, high):
    if scale.ndim == 0:
        return torch.fake_quantize_per_tensor_affine(w, float(scale), int(zero), low, high)
    return torch.fake_quantize_per_channel_affine(
        w, torch.tensor(scale), torch.tensor(zero.astype(np.int32)), 1, low, high
    )


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", RANGES)
def test_a_named_weight_trains_as_with_fake_quantize(dtype, per_channel):
    model = qdq(dtype, per_channel=per_channel)
    low, high = RANGES[dtype]
    scale, zero = stored(model, "s"), stored(model, "z")
    mine = session(model, trainable=["w1", "b"])
    assert mine.parameter_names == ["w1", "b"]
    values = ((stored(model).astype(np.float64) - zero.astype(np.float64)) * scale).astype("f4")
    np.testing.assert_array_equal(mine.weights()["w1"], values)

    w = torch.tensor(values, requires_grad=True)
    b = torch.tensor(stored(model, "b"), requires_grad=True)
    sgd = torch.optim.SGD([w, b], lr=0.05)
    for _ in range(20):
        sgd.zero_grad()
        x = torch.fake_quantize_per_tensor_affine(torch.tensor(X), 0.02, 3, -128, 127)
        loss = torch.nn.functional.mse_loss(
            x @ fake(w, scale, zero, low, high) + b, torch.tensor(T)
        )
        assert mine.step(X, T).loss == pytest.approx(loss.item(), rel=1e-5)
        loss.backward()
        sgd.step()
    np.testing.assert_allclose(mine.weights()["w1"], w.detach(), rtol=1e-4, atol=1e-5)
    assert not np.array_equal(mine.weights()["w1"], values)


@pytest.mark.parametrize("dtype", RANGES)
def test_the_export_has_rounded_weights_with_which_training_computed(dtype):
    model = qdq(dtype)
    mine = session(model, trainable=["w1"])
    for _ in range(20):
        mine.step(X, T)
    exported = mine.export_onnx_bytes()
    onnx.checker.check_model(onnx.load_from_string(exported))
    assert stored(exported).dtype == stored(model).dtype
    assert not np.array_equal(stored(exported), stored(model))
    for name in ("s", "z", "b"):
        np.testing.assert_array_equal(stored(exported, name), stored(model, name))
    (y,) = steep.InferenceSession(exported).run(None, {"x": X})
    np.testing.assert_array_equal(y, mine.eval(X).outputs[0].numpy())


def test_an_untrained_weight_is_exported_bit_for_bit():
    for dtype in RANGES:
        model = qdq(dtype)
        exported = session(model, trainable=["w1"]).export_onnx_bytes()
        np.testing.assert_array_equal(stored(exported), stored(model))


def test_blocks_have_their_own_scales():
    scale = np.array([[0.5, 0.25], [0.125, 1]], np.float32)
    w = np.array([[-3, 2], [7, -8], [1, 4]]).astype(ml_dtypes.int4)
    nodes = [
        helper.make_node("DequantizeLinear", ["w1", "s"], ["w1d"], axis=0, block_size=2),
        helper.make_node("MatMul", ["x", "w1d"], ["y"]),
    ]
    model = written(nodes, [("w1", w), ("s", scale)])
    mine = session(model, trainable=["w1"])
    values = w.astype(np.float32) * scale[[0, 0, 1]]
    np.testing.assert_array_equal(mine.weights()["w1"], values)
    np.testing.assert_array_equal(stored(mine.export_onnx_bytes()), w)
    mine.set_weights({"w1": values + scale[[0, 0, 1]] * np.float32(0.75)})
    wanted = np.clip(w.astype(np.int32) + 1, -8, 7)
    np.testing.assert_array_equal(stored(mine.export_onnx_bytes()).astype(np.int32), wanted)


def test_biases_of_int32_are_rounded_only_in_the_file():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("DequantizeLinear", ["bias", "s"], ["b"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    tensors = [
        ("w", np.ones((3, 2), np.float32)),
        ("bias", np.array([70000, -5], np.int32)),
        ("s", np.float32(0.0078125)),
    ]
    mine = session(written(nodes, tensors), trainable=["bias"])
    mine.step(X, T)
    wanted = np.rint(mine.weights()["bias"] / np.float64(0.0078125))
    np.testing.assert_array_equal(stored(mine.export_onnx_bytes(), "bias"), wanted)
    assert wanted[0] != 70000


def test_a_pattern_selects_weights_of_integers_too():
    assert session(qdq(), trainable=["*"]).parameter_names == ["w1", "b"]
    assert session(qdq(), trainable=["*"], frozen=["w1"]).parameter_names == ["b"]


def test_weights_of_integers_are_listed_when_they_are_not_trained():
    mine = session(qdq())
    assert mine.parameter_names == ["b"]
    reasons = {left.name: left.reason for left in mine.left_out}
    assert reasons["w1"] == "is quantised to int8; name it to train it"
    assert "z" not in reasons
    assert steep.check(qdq(), loss="mse") == []
    assert steep.check(qdq(), loss="mse", trainable=["w1"]) == []


def test_a_named_weight_that_no_gradient_reaches_is_listed():
    nodes = [
        helper.make_node("DequantizeLinear", ["w1", "s"], ["w1d"]),
        helper.make_node("MatMul", ["x", "w1d"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "s"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "t"], ["r"]),
        helper.make_node("Add", ["r", "b"], ["y"]),
    ]
    tensors = [("w1", np.ones((3, 2), np.int8)), ("s", np.float32(0.5)), ("t", np.float32(0.25))]
    model = written(nodes, [*tensors, ("b", np.zeros(2, np.float32))])
    mine = session(model, trainable=["w1", "b"])
    assert mine.parameter_names == ["b"]
    assert [left.name for left in mine.left_out] == ["w1"]
    assert "no path" in mine.left_out[0].reason


def test_a_checkpoint_has_the_float_values(tmp_path):
    first = session(qdq(), trainable=["w1"])
    first.step(X, T)
    first.save_checkpoint(tmp_path / "run")
    second = session(qdq(), trainable=["w1"])
    second.load_checkpoint(tmp_path / "run")
    assert first.step(X, T).loss == second.step(X, T).loss
    np.testing.assert_array_equal(first.weights()["w1"], second.weights()["w1"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"trainable": ["w1", "s"]}, "cannot be trained beside the integers"),
        ({"trainable": ["z"]}, "Only float initializers, and integers that DequantizeLinear reads"),
        (
            {"trainable": ["w1"], "lora_rank": 1, "lora_targets": ["w1d"]},
            "stays packed beside adapters|no such",
        ),
    ],
)
def test_names_that_cannot_be_trained(options, text):
    with pytest.raises(steep.ModelError, match=text):
        session(qdq(), **options)


@pytest.mark.parametrize("option", ["trainable", "frozen"])
def test_the_name_of_the_dequantised_values_leads_to_the_integers(option):
    with pytest.raises(steep.ModelError, match="another name") as error:
        session(qdq(), **{option: ["w1d"]})
    assert error.value.node == "w1d" and "'w1'" in error.value.expected
    assert "Name 'w1'" in error.value.remedy
    assert "'w1'" in str(steep.check(qdq(), loss="mse", **{option: ["w1d"]})[0])


def test_a_weight_that_is_not_finite_is_not_exported():
    mine = session(qdq(), trainable=["w1"])
    mine.set_weights({"w1": np.full((3, 2), np.nan, np.float32)})
    with pytest.raises(steep.DataError, match="cannot be quantised"):
        mine.export_onnx_bytes()


@pytest.mark.parametrize("scale", [0.0, -0.0, np.nan, np.inf])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_scale_by_which_nothing_can_be_quantised(scale, per_channel):
    model = qdq(per_channel=per_channel, scales=(scale, 0.25))
    with pytest.raises(steep.ModelError, match="by which nothing can be quantised") as error:
        session(model, trainable=["w1"])
    assert error.value.node == "w1"


def test_a_negative_scale():
    """ONNX divides by it, as by any other; so do training and export."""
    mine = session(qdq(scales=(-0.125, 0.25)), trainable=["w1"])
    before = mine.weights()["w1"]
    mine.step(X, T)
    trained = mine.weights()["w1"]
    assert np.isfinite(trained).all() and not np.array_equal(trained, before)
    zero, scale = np.array([1, 0]), np.array([-0.125, 0.25], np.float32)
    expected = np.clip(np.rint(trained / scale) + zero, -128, 127)
    np.testing.assert_array_equal(stored(mine.export_onnx_bytes()), expected)


def operators(kind):
    zero = ("z", np.uint8(128))
    if kind == "MatMulInteger":
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["h"], ["q", "qs", "qz"], name="dynamic"),
            helper.make_node("MatMulInteger", ["q", "w1", "qz"], ["i"], name="product"),
            helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["f", "qs"], ["p"]),
        ]
        more = []
    else:
        nodes = [
            helper.make_node("QuantizeLinear", ["h", "s", "z"], ["q"]),
            helper.make_node(
                "QLinearMatMul", ["q", "s", "z", "w1", "s", "z", "s", "z"], ["i"], name="product"
            ),
            helper.make_node("DequantizeLinear", ["i", "s", "z"], ["p"]),
        ]
        more = [("s", np.float32(0.05)), zero]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        *nodes,
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    tensors = [
        ("w0", np.eye(3, dtype=np.float32)),
        ("w1", np.full((3, 2), 130, np.uint8)),
        ("b", np.zeros(2, np.float32)),
        *more,
    ]
    return written(nodes, tensors)


@pytest.mark.parametrize("kind", ["MatMulInteger", "QLinearMatMul"])
def test_quantised_operators_are_refused_with_the_remedy(kind):
    model = operators(kind)
    wanted = f"(?s){kind}.*have no gradient.*Convert the model to QDQ.*float original"
    with pytest.raises(steep.ModelError, match=wanted):
        session(model)
    (obstacle,) = steep.check(model, loss="mse")
    assert "quantised operators have no gradient" in obstacle.what
    assert "QDQ" in obstacle.remedy
    with pytest.raises(steep.ModelError, match="Convert the model to QDQ"):
        session(model, trainable=["w0"])
    with pytest.raises(steep.ModelError, match=f"uint8.*is an operand of {kind}"):
        session(model, trainable=["w1"])
    behind = session(model, trainable=["b"])
    assert behind.parameter_names == ["b"]
    behind.step(X, T)


def test_gradients_with_respect_to_integers_are_refused_with_their_type():
    with pytest.raises(steep.ModelError, match=r"(?s)it has no gradient.*int8\[3, ?2\]"):
        steep.GradientSession(qdq(), wrt=["w1"])
    with pytest.raises(steep.ModelError, match=r"(?s)Only floats have gradients.*int8\[3, ?2\]"):
        steep.grad(qdq(), wrt=["w1"])
