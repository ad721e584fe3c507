"""Clipping by value, averages of weights, and names by pattern."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (8, 3)).astype(np.float32)
Y = RNG.normal(0, 3, (8, 2)).astype(np.float32)


def model() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    weights = {
        "encoder.w": rng.normal(0, 0.5, (3, 4)).astype(np.float32),
        "head.w": rng.normal(0, 0.5, (4, 2)).astype(np.float32),
        "head.b": np.zeros(2, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "encoder.w"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "head.w"], ["o"]),
        helper.make_node("Add", ["o", "head.b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(**options) -> steep.TrainingSession:
    return steep.TrainingSession(model(), **({"loss": "mse", "optimizer": "sgd"} | options))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        arrays = {t.name: numpy_helper.to_array(t).copy() for t in model().graph.initializer}
        self.values = torch.nn.ParameterList(torch.tensor(arrays[k]) for k in sorted(arrays))

    def forward(self, x):
        encoder, bias, head = self.values
        return torch.tanh(x @ encoder) @ head + bias


NAMES = ("encoder.w", "head.b", "head.w")


def of_torch(steps, clip=None, momentum=0.0, norm=None):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    average.update_parameters(net)  # begins at the weights
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(torch.tensor(X)), torch.tensor(Y)).backward()
        if norm:
            torch.nn.utils.clip_grad_norm_(net.parameters(), norm)
        if clip:
            torch.nn.utils.clip_grad_value_(net.parameters(), clip)
        optimizer.step()
        average.update_parameters(net)
    return net, average.module


def same(received, net) -> None:
    for name, value in zip(NAMES, net.values, strict=True):
        np.testing.assert_allclose(
            np.asarray(received[name]), value.detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("parts", [False, True])
def test_clip_value_is_pytorchs(parts):
    own = session(lr=0.1, momentum=0.9, clip_value=0.05)
    for _ in range(5):
        if parts:
            own.step(X[:4], Y[:4], accumulate=True)
            own.step(X[4:], Y[4:], accumulate=True)
            own.apply_gradients()
        else:
            own.step(X, Y)
    net, _ = of_torch(5, clip=0.05, momentum=0.9)
    same(own.weights(), net)
    unclipped, _ = of_torch(5, momentum=0.9)
    assert not np.allclose(own.weights()["head.b"].numpy(), unclipped.values[1].detach().numpy())


@pytest.mark.parametrize("parts", [False, True])
def test_gradients_are_clipped_by_norm_and_then_by_value(parts):
    own = session(lr=0.1, clip_norm=0.2, clip_value=0.1)
    for _ in range(5):
        own.step(X, Y, accumulate=parts)
        if parts:
            own.apply_gradients()
    net, _ = of_torch(5, clip=0.1, norm=0.2)
    same(own.weights(), net)
    for left_out in ({"clip": 0.1}, {"norm": 0.2}):
        other, _ = of_torch(5, **left_out)
        assert not np.allclose(own.weights()["head.b"].numpy(), other.values[1].detach().numpy())


@pytest.mark.parametrize("parts", [False, True])
def test_averages_are_pytorchs(parts, tmp_path):
    own = session(lr=0.1, ema_decay=0.9)
    before = own.eval(X, Y).loss
    for _ in range(5):
        own.step(X, Y, accumulate=parts)
        if parts:
            own.apply_gradients()
    net, average = of_torch(5)
    same(own.weights(), net)
    state = own.optimizer_state()
    same({name: state[f"ema/{name}"] for name in NAMES}, average)
    expected = torch.nn.functional.mse_loss(average(torch.tensor(X)), torch.tensor(Y)).item()
    assert own.eval(X, Y).loss == pytest.approx(expected, rel=1e-5) != pytest.approx(before)
    own.export_onnx(tmp_path / "a.onnx")
    exported = onnx.load(tmp_path / "a.onnx").graph.initializer
    same({t.name: numpy_helper.to_array(t) for t in exported}, average)


def test_averages_are_in_checkpoints(tmp_path):
    one = session(lr=0.1, ema_decay=0.9)
    for _ in range(3):
        one.step(X, Y)
    one.save_checkpoint(tmp_path / "c")
    other = session(lr=0.1, ema_decay=0.9)
    other.load_checkpoint(tmp_path / "c")
    for s in (one, other):
        s.step(X, Y)
    assert one.eval(X, Y).loss == other.eval(X, Y).loss
    with pytest.raises(steep.CheckpointError):
        session(lr=0.1).load_checkpoint(tmp_path / "c")


def test_averages_begin_anew_at_weights_that_are_set():
    own = session(lr=0.1, ema_decay=0.9)
    own.step(X, Y)
    weights = {name: np.asarray(value) + 1 for name, value in own.weights().items()}
    own.set_weights(weights)
    state = own.optimizer_state()
    for name in NAMES:
        np.testing.assert_array_equal(np.asarray(state[f"ema/{name}"]), weights[name])


def test_averages_of_halves_are_float32():
    halves = copy.deepcopy(model())
    for tensor in halves.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*halves.graph.input, *halves.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    own = steep.TrainingSession(halves, loss="mse", optimizer="sgd", lr=0.1, ema_decay=0.5)
    mean = np.asarray(own.weights()["head.b"]).astype(np.float32)
    for _ in range(3):
        own.step(X, Y)
        mean = 0.5 * mean + 0.5 * np.asarray(own.weights()["head.b"]).astype(np.float32)
    received = np.asarray(own.optimizer_state()["ema/head.b"])
    assert received.dtype == np.float32
    np.testing.assert_allclose(received, mean, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"clip_value": -1.0}, "clip_value is out of range"),
        ({"clip_value": float("nan")}, "clip_value is out of range"),
        ({"ema_decay": 1.0}, "ema_decay is out of range"),
        ({"ema_decay": -0.1}, "ema_decay is out of range"),
        ({"frozen": ["decoder.*"]}, "no such initializer"),
        ({"trainable": ["*.c"]}, "no such initializer"),
        ({"groups": [(["decoder.*"], {"lr_multiplier": 0.1})]}, "no such initializer"),
        ({"groups": [(["head.*"], {}), (["*.b"], {})]}, "named twice"),
        ({"frozen": ["*"]}, "does not depend on any trained parameter"),
    ],
)
def test_options_that_do_not_fit(options, text):
    with pytest.raises(steep.ModelError, match=text):
        session(**options)


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({"frozen": ["encoder.*"]}, ["head.w", "head.b"]),
        ({"frozen": ["*.w"]}, ["head.b"]),
        ({"frozen": ["h*d.*", "nothing*"][:1]}, ["encoder.w"]),
        ({"trainable": ["head.*"]}, ["head.w", "head.b"]),
        ({"trainable": ["*"], "frozen": ["head.b"]}, ["encoder.w", "head.w"]),
    ],
)
def test_patterns(options, trained):
    assert session(**options).parameter_names == trained


def test_rates_by_pattern():
    by_pattern = session(lr=0.1, groups=[(["head.*"], {"lr_multiplier": 0.1})])
    by_name = session(lr=0.1, groups=[(["head.w", "head.b"], {"lr_multiplier": 0.1})])
    for s in (by_pattern, by_name):
        s.step(X, Y)
    for name in NAMES:
        np.testing.assert_array_equal(
            by_pattern.weights()[name].numpy(), by_name.weights()[name].numpy()
        )
