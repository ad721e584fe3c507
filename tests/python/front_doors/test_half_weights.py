"""Weights of float16 and bfloat16: a float32 copy of each, float32 moments, and what is finite."""

from __future__ import annotations

import subprocess

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from steep_program import built

import steep

HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
KINDS = ["adam", "adamw", "transformers_adamw", "nadam", "radam", "adagrad", "adadelta"]
KINDS += ["rmsprop", "adamax", "lamb", "sgd", "adafactor", "muon"]
each_half = pytest.mark.parametrize("half", HALVES.values(), ids=HALVES.keys())


def linear(dtype, w):
    """y = x w, all of one dtype."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", kind, ["rows", w.shape[0]])],
        [helper.make_tensor_value_info("y", kind, ["rows", w.shape[1]])],
        [helper.make_tensor("w", kind, w.shape, w.astype(dtype).tobytes(), raw=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def weight():
    return np.random.default_rng(0).uniform(0.5, 1, (4, 3)).astype(np.float32)


def batch(dtype, seed=1):
    """x, and half of what the model makes of it."""
    x = np.random.default_rng(seed).uniform(-1, 1, (8, 4)).astype(np.float32)
    return x.astype(dtype), (x @ weight() / 2).astype(dtype)


def session(dtype, **options):
    return steep.TrainingSession(linear(dtype, weight()), loss="mse", **options)


def exported(s):
    (tensor,) = onnx.load_from_string(s.export_onnx_bytes()).graph.initializer
    return tensor


@each_half
@pytest.mark.parametrize("kind", KINDS)
def test_training_is_that_of_float32(kind, half):
    """By rounding; the very file type is exported, and moments are float32."""
    halves, whole = session(half, optimizer=kind), session(np.float32, optimizer=kind)
    for seed in range(20):
        halves.step(*batch(half, seed))
        whole.step(*batch(np.float32, seed))
    state = halves.optimizer_state()
    assert {t.dtype for t in state.values()} == {"float32"}
    ours, theirs = state["master/w"].numpy(), whole.weights()["w"].numpy()
    moved = np.abs(theirs - weight()).max()
    np.testing.assert_allclose(ours, theirs, atol=0.15 * moved + 2e-3)
    assert exported(halves).data_type == helper.np_dtype_to_tensor_dtype(np.dtype(half))
    np.testing.assert_array_equal(halves.weights()["w"].numpy(), ours.astype(half))


@each_half
def test_small_updates_add_up(half):
    """Each is a tenth of what the weight resolves."""
    rate = 0.1 * float(ml_dtypes.finfo(half).eps)
    kept = session(half, optimizer="sgd", lr=rate)
    lost = session(half, optimizer="sgd", lr=rate, master_weights=False)
    x = np.ones((1, 4), half)
    y = np.zeros((1, 3), half)
    for _ in range(30):
        kept.step(x, y)
        lost.step(x, y)
    assert (kept.weights()["w"].numpy() != weight().astype(half)).any()
    assert set(lost.optimizer_state()) == set()
    moved = np.abs(
        weight().astype(half).astype(np.float32) - kept.weights()["w"].numpy().astype(np.float32)
    )
    assert (moved > 0).mean() > 0.9


def test_stochastic_rounding_is_right_on_average():
    half = ml_dtypes.bfloat16
    w = np.ones((1, 4096), np.float32)
    options = {"optimizer": "sgd", "lr": 1.0, "master_weights": False, "stochastic_rounding": True}
    s = steep.TrainingSession(linear(half, w), loss="mse", **options)
    # The gradient is 2 (1 - y) / 4096 = 2⁻¹⁰: a quarter of the distance to the next number below 1.
    s.step(np.ones((1, 1), half), np.full((1, 4096), -1.0, half))
    after = s.weights()["w"].numpy().astype(np.float64)
    assert set(np.unique(after)) == {1 - 2.0**-8, 1}
    assert abs((after < 1).mean() - 0.25) < 0.03
    with pytest.raises(steep.ModelError, match="cannot be used with master weights"):
        session(half, stochastic_rounding=True)


@each_half
@pytest.mark.parametrize("masters", [True, False], ids=["masters", "without"])
def test_checkpoints_go_on_bit_for_bit(tmp_path, half, masters):
    options = {"lr": 1e-4, "master_weights": masters}
    options["stochastic_rounding"] = not masters
    first = session(half, **options)
    for seed in range(3):
        first.step(*batch(half, seed))
    first.save_checkpoint(tmp_path / "c")
    second = session(half, **options)
    second.load_checkpoint(tmp_path / "c")
    for s in (first, second):
        for seed in range(3, 6):
            s.step(*batch(half, seed))
    for name, value in {**first.weights(), **first.optimizer_state()}.items():
        same = {**second.weights(), **second.optimizer_state()}[name]
        assert value.numpy().tobytes() == same.numpy().tobytes(), name
    with pytest.raises(steep.CheckpointError, match="another model or optimizer"):
        session(half, lr=1e-4, master_weights=not masters).load_checkpoint(tmp_path / "c")


@each_half
def test_weights_that_are_set_count(half):
    """Their copy goes on from them."""
    s = session(half, optimizer="sgd", lr=1e-2)
    s.step(*batch(half))
    s.set_weights({"w": np.full((4, 3), 2, half)})
    s.step(np.zeros((1, 4), half), np.zeros((1, 3), half))  # no gradient
    assert (s.weights()["w"].numpy() == 2).all()
    assert (s.optimizer_state()["master/w"].numpy() == 2).all()


def test_an_update_that_is_not_finite_is_said():
    half = np.float16
    x, y = batch(half)
    s = session(half, optimizer="sgd", lr=1e7, check_finite=True)
    with pytest.raises(steep.DataError, match="update of step 1 left a weight that is not finite"):
        s.step(x, y)
    assert s.step_count == 0
    with pytest.raises(steep.DataError, match="weights are inconsistent"):
        s.export_onnx_bytes()
    blind = session(half, optimizer="sgd", lr=1e7)
    blind.step(x, y)
    with pytest.raises(steep.DataError, match="not finite before this step"):
        blind.step(x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_trainers_keep_copies_of_parameters(tmp_path, dtype):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3).to(dtype)
    before = net.weight.detach().clone()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)
    trainer = steep.trainer(net, torch.nn.MSELoss(), optimizer)
    x, y = torch.randn(8, 4).to(dtype), torch.randn(8, 3).to(dtype)
    for _ in range(3):
        trainer.step(x, y)
    master = optimizer.state[net.weight]["master"]
    assert master.dtype == torch.float32
    assert ((master - before.float()).abs() > 1e-5).all()
    assert torch.equal(master.to(dtype), net.weight)
    with torch.no_grad():
        net.weight.fill_(1.0)
    trainer.step(x, y)
    assert (master - 1).abs().max() < 3e-5
    trainer.save_checkpoint(tmp_path / "c")
    at = [p.detach().clone() for p in net.parameters()]
    trainer.step(x, y)
    later = [master.clone(), *(p.detach().clone() for p in net.parameters())]
    trainer.load_checkpoint(tmp_path / "c")
    assert all(torch.equal(a, b) for a, b in zip(at, net.parameters(), strict=True))
    trainer.step(x, y)
    now = [optimizer.state[net.weight]["master"], *net.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(later, now, strict=True))


def test_the_program_trains_float16(tmp_path):
    onnx.save(linear(np.float16, weight()), tmp_path / "m.onnx")
    x, y = batch(np.float16)
    np.savez(tmp_path / "d.npz", x=x, label=y)
    command = [built("steep"), "train", "m.onnx", "--data", "d.npz", "--loss", "mse"]
    done = subprocess.run(
        [*command, "--epochs", "3", "--batch", "4", "--out", "t.onnx"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (tensor,) = onnx.load(tmp_path / "t.onnx").graph.initializer
    assert tensor.data_type == TensorProto.FLOAT16
    values = onnx.numpy_helper.to_array(tensor)
    assert np.isfinite(values).all()
    assert (values != weight().astype(np.float16)).any()


def test_the_program_writes_no_weights_that_are_not_finite(tmp_path):
    onnx.save(linear(np.float16, weight()), tmp_path / "m.onnx")
    x, y = batch(np.float16)
    np.savez(tmp_path / "d.npz", x=x, label=y)
    command = [built("steep"), "train", "m.onnx", "--data", "d.npz", "--loss", "mse", "--lr", "1e7"]
    done = subprocess.run(
        [*command, "--optimizer", "sgd", "--epochs", "1", "--batch", "8", "--out", "t.onnx"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "weights after step 1 are not finite" in done.stderr
    assert not (tmp_path / "t.onnx").exists()


def test_weights_that_the_file_has_infinite_may_stay_so():
    w = weight()
    w[0, 0] = -np.inf
    s = steep.TrainingSession(linear(np.float32, w), loss="mse", check_finite=True)
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(steep.DataError, match="no weight was changed"):
        s.step(x, x[:, :3])
