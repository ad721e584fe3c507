"""Steps in several parts: accumulate=True and apply_gradients()."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (16, 4)).astype(np.float32)
Y = RNG.normal(0, 1, (16, 3)).astype(np.float32)
CLASSES = RNG.integers(0, 3, 16)
IGNORED = np.where(np.arange(16) % 5 < 2, -1, CLASSES)


def model(dtype=np.float32) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(1)
    weights = {
        "w1": rng.normal(0, 0.5, (4, 5)),
        "w2": rng.normal(0, 0.5, (5, 3)),
        "b": rng.normal(0, 0.5, 3),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "w2"], ["o"]),
        helper.make_node("Add", ["o", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, ["n", 4])],
        [helper.make_tensor_value_info("y", kind, ["n", 3])],
        [numpy_helper.from_array(v.astype(dtype), k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sessions(dtype=np.float32, **options):
    return tuple(steep.TrainingSession(model(dtype), **options) for _ in range(2))


def same_weights(one, other, tolerance=1e-6):
    for name, value in one.weights().items():
        np.testing.assert_allclose(
            np.asarray(other.weights()[name]), value, rtol=0, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "mse", "optimizer": "sgd", "lr": 0.1},
        {"loss": "mse", "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "clip_norm": 0.1},
        {"loss": "mse", "optimizer": "adam", "lr": 0.01, "grad_norm": True},
        {"loss": "mse", "optimizer": "adamw", "weight_decay": 0.1, "check_finite": True},
        {"loss": "mse", "optimizer": "lamb", "schedule": "linear", "total_steps": 10},
        {"loss": "mse", "optimizer": "sgd", "groups": [(["b"], {"lr_multiplier": 0.1})]},
    ],
)
def test_four_parts_are_a_step_of_their_batch(options):
    whole, parts = sessions(**options)
    for _ in range(3):
        expected = whole.step(X, Y)
        losses = []
        for i in range(0, 16, 4):
            part = parts.step(X[i : i + 4], Y[i : i + 4], accumulate=True)
            losses.append(part.loss)
            assert part.step == expected.step - 1
        assert parts.accumulated == 4
        received = parts.apply_gradients()
        assert parts.accumulated == 0
        assert received.step == expected.step and received.lr == pytest.approx(expected.lr)
        assert received.loss == pytest.approx(expected.loss, abs=1e-6)
        assert received.loss == pytest.approx(np.mean(losses), abs=1e-6)
        assert received.grad_norm == pytest.approx(expected.grad_norm, abs=1e-6)
        same_weights(whole, parts)


def test_labels_that_are_ignored_do_not_count():
    options = {"loss": "softmax_cross_entropy", "ignore_index": -1, "optimizer": "sgd", "lr": 0.5}
    whole, parts = sessions(**options)
    expected = whole.step(x=X, label=IGNORED)
    for i in range(0, 16, 4):
        parts.step(x=X[i : i + 4], label=IGNORED[i : i + 4], accumulate=True)
    assert parts.apply_gradients().loss == pytest.approx(expected.loss, abs=1e-6)
    same_weights(whole, parts)


def test_a_part_whose_labels_are_all_ignored_adds_nothing():
    options = {"loss": "softmax_cross_entropy", "ignore_index": -1, "optimizer": "sgd", "lr": 0.5}
    for more in ({}, {"check_finite": True}, {"step_outputs": ["y"]}):
        whole, parts = sessions(**options, **more)
        expected = whole.step(X, IGNORED)
        nothing = parts.step(X[:2], IGNORED[:2], accumulate=True)
        assert np.isnan(nothing.loss) and not nothing.skipped
        assert [o.shape for o in nothing.outputs] == ([(2, 3)] if "step_outputs" in more else [])
        assert parts.accumulated == 0
        parts.step(X[2:], IGNORED[2:], accumulate=True)
        assert parts.apply_gradients().loss == pytest.approx(expected.loss, abs=1e-6)
        same_weights(whole, parts)


def test_sums_of_two_sessions_can_be_combined():
    whole, one = sessions(loss="mse", optimizer="sgd", lr=0.1)
    other = steep.TrainingSession(model(), loss="mse", optimizer="sgd", lr=0.1)
    none = one.accumulated_gradients()
    assert (none.parts, none.weight, none.weighs) == (0, 0, False)
    assert not any(np.asarray(s).any() for s in none.sums.values())
    expected = whole.step(X, Y)
    other.step(X, Y, accumulate=True)
    theirs = other.accumulated_gradients()
    assert (theirs.parts, theirs.weight) == (1, 1) and theirs.loss == pytest.approx(expected.loss)
    for name, gradient in theirs.sums.items():
        np.asarray(none.sums[name])[...] = 3 * np.asarray(gradient)
    one.set_accumulated(3, 3 * theirs.loss)
    assert one.accumulated == 1
    result = one.apply_gradients()
    assert result.step == 1 and result.loss == pytest.approx(expected.loss, abs=1e-6)
    same_weights(whole, one)
    assert not any(np.asarray(s).any() for s in one.accumulated_gradients().sums.values())
    for weight in (0, -1, np.nan, np.inf):
        with pytest.raises(steep.DataError, match="out of range"):
            one.set_accumulated(weight, 0)


def test_float64():
    whole, parts = sessions(np.float64, loss="mse", optimizer="sgd", lr=0.1)
    whole.step(X, Y)
    for i in range(0, 16, 4):
        parts.step(X[i : i + 4], Y[i : i + 4], accumulate=True)
    parts.apply_gradients()
    same_weights(whole, parts, 1e-9)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision(precision):
    whole, parts = sessions(loss="mse", optimizer="sgd", lr=0.1, precision=precision)
    whole.step(X, Y)
    for i in range(0, 16, 4):
        parts.step(X[i : i + 4], Y[i : i + 4], accumulate=True)
    parts.apply_gradients()
    same_weights(whole, parts, 2e-3)


def test_float16_weights_have_whole_sums():
    whole, parts = sessions(np.float16, loss="mse", optimizer="sgd", lr=0.1)
    x, y = X.astype(np.float16), Y.astype(np.float16)
    whole.step(x, y)
    for i in range(0, 16, 4):
        parts.step(x[i : i + 4], y[i : i + 4], accumulate=True)
    parts.apply_gradients()
    same_weights(whole, parts, 2e-3)


def test_no_weight_changes_before():
    session, _ = sessions(loss="mse", optimizer="sgd", lr=0.1)
    before = {name: np.array(w) for name, w in session.weights().items()}
    session.step(X, Y, accumulate=True)
    for name, value in session.weights().items():
        np.testing.assert_array_equal(value, before[name])


def test_steps_and_checkpoints_wait(tmp_path):
    session, other = sessions(loss="mse", optimizer="sgd", lr=0.1)
    session.save_checkpoint(tmp_path / "before")
    with pytest.raises(steep.DataError, match="no accumulated gradients to apply"):
        session.apply_gradients()
    session.step(X, Y, accumulate=True)
    with pytest.raises(steep.DataError, match="step"):
        session.step(X, Y)
    with pytest.raises(steep.DataError, match="save_checkpoint"):
        session.save_checkpoint(tmp_path / "waiting")
    session.drop_gradients()
    session.step(X, Y, accumulate=False)
    other.step(X, Y)
    same_weights(session, other)
    session.step(X, Y, accumulate=True)
    session.load_checkpoint(tmp_path / "before")
    assert session.accumulated == 0


def test_a_part_that_is_refused_adds_nothing():
    session, other = sessions(loss="mse", optimizer="sgd", lr=0.1)
    session.step(X, Y, accumulate=True)
    with pytest.raises(steep.DataError, match="loss"):
        session.step(X * np.float32(np.nan), Y, accumulate=True)
    with pytest.raises(steep.ShapeError):
        session.step(X[:, :2], Y, accumulate=True)
    with pytest.raises(steep.DataError, match="not both"):
        session.step(X, label=Y, accumulate=True)
    assert session.accumulated == 1
    session.apply_gradients()
    other.step(X, Y)
    same_weights(session, other)


def test_parts_that_overflow_are_left_out():
    session, other = sessions(loss="mse", optimizer="sgd", lr=0.1, precision="fp16")
    session.step(X, Y, accumulate=True)
    skipped = session.step(X * 60, Y * 3e5, accumulate=True)
    assert skipped.skipped and session.accumulated == 1
    assert session.loss_scale == skipped.loss_scale / 2
    session.apply_gradients()
    other.step(X, Y)
    same_weights(session, other, 1e-4)


def test_a_step_whose_parts_all_overflow_is_skipped():
    session, other = sessions(loss="mse", optimizer="sgd", lr=0.1, precision="fp16")
    parts = [session.step(X * 60, Y * 3e5, accumulate=True) for _ in range(2)]
    result = session.apply_gradients()
    assert result.skipped and result.step == 0 and session.step_count == 0
    assert result.loss == pytest.approx(np.mean([part.loss for part in parts]))
    assert session.loss_scale == parts[0].loss_scale / 4
    same_weights(session, other)
    with pytest.raises(steep.DataError, match=r"(?s)no accumulated gradients.*received: none"):
        session.apply_gradients()
    session.step(X * 60, Y * 3e5, accumulate=True)
    session.step(X, Y)  # nothing waits
    with pytest.raises(steep.DataError, match=r"(?s)no accumulated gradients.*received: none"):
        session.apply_gradients()


def test_dropout_is_drawn_for_each_part():
    on = {"ratio": np.array(0.5, np.float32), "training": np.array(True)}
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["xw"]),
        helper.make_node("Dropout", ["xw", "ratio", "training"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
    ]
    weights = {"w": np.ones(100, np.float32), **on}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [100])],
        [
            helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [100]),
        ],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session, plain = (
        steep.TrainingSession(
            proto, output="loss", optimizer="sgd", trainable=["w"], step_outputs=["y"], lr=0.0
        )
        for _ in range(2)
    )
    x = np.ones(100, np.float32)
    drawn = [np.array(session.step(x, accumulate=True).outputs[0]) for _ in range(3)]
    session.apply_gradients()
    assert not np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[1], drawn[2])
    for expected in drawn:
        np.testing.assert_array_equal(plain.step(x).outputs[0], expected)
