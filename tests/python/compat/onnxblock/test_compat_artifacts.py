"""Files of on-device training under the old names: what they hold, and what is refused."""

import json
import os

import numpy as np
import on_device
import onnx
import pytest
from on_device import NAMES, checked, mlp, opened, write

import steep
from steep.compat import NotOffered, state_file
from steep.compat.on_device.training_state import CheckpointState
from steep.compat.onnxblock import artifacts, blocks, losses as block_losses
from steep.compat.onnxblock.models import read_mark

LossType, OptimType = artifacts.LossType, artifacts.OptimType


def inputs(model):
    return [value.name for value in model.graph.input]


def outputs(model):
    return [value.name for value in model.graph.output]


def test_the_files_are_models_and_a_checkpoint(tmp_path):
    write(tmp_path, prefix="a_", nominal_checkpoint=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a_checkpoint",
        "a_eval_model.onnx",
        "a_nominal_checkpoint",
        "a_optimizer_model.onnx",
        "a_training_model.onnx",
    ]
    write(tmp_path)
    checked(tmp_path)
    training = onnx.load(tmp_path / "training_model.onnx")
    assert inputs(training) == ["x", "labels", *NAMES]
    assert not training.graph.initializer
    assert read_mark(training) == {"kind": "training", "parameters": NAMES}
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    for name, value in on_device.weights().items():
        assert np.array_equal(state.parameters[name].data, value)


def test_every_runtime_evaluates_and_updates(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    state, module, optimizer = opened(write(tmp_path))
    ((x, y),) = on_device.batches(1)
    fed = {"x": x, "labels": y, **{name: p.data for name, p in state.parameters}}
    (loss,) = ort.InferenceSession(tmp_path / "eval_model.onnx").run(None, fed)
    np.testing.assert_allclose(module.eval()(x, y), loss, rtol=1e-6)
    module.train()(x, y)
    update = ort.InferenceSession(tmp_path / "optimizer_model.onnx")
    fed = {i.name: np.zeros(i.shape, np.float32) for i in update.get_inputs()}
    fed |= {"learning_rate": np.array(0.1, np.float32), "step": np.array(1)}
    for name, p in state.parameters:
        fed |= {name: p.data, f"{name}_grad": p.grad}
    names = [output.name for output in update.get_outputs()]
    wanted = dict(zip(names, update.run(None, fed), strict=True))
    optimizer.set_learning_rate(0.1)
    optimizer.step()
    for name, p in state.parameters:
        np.testing.assert_allclose(p.data, wanted[f"updated/{name}"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", list(LossType))
def test_every_loss_is_pytorchs(tmp_path, loss):
    torch = pytest.importorskip("torch")
    _, module, _ = opened(write(tmp_path, loss=loss))
    rng = np.random.default_rng(2)
    x = rng.standard_normal((5, 8)).astype(np.float32)
    y = rng.integers(0, 4, 5) if loss is LossType.CrossEntropyLoss else rng.random((5, 4))
    y = y if y.dtype == np.int64 else y.astype(np.float32)
    w = {name: torch.tensor(v) for name, v in on_device.weights().items()}
    hidden = torch.relu(torch.tensor(x) @ w["fc1.weight"].T + w["fc1.bias"])
    scores = hidden @ w["fc2.weight"].T + w["fc2.bias"]
    wanted = getattr(torch.nn, loss.name)()(scores, torch.tensor(y))
    for mode in (True, False):
        got = module.train(mode)(x, y)
        assert got.shape == () and got.dtype == np.float32
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_outputs_beside_the_loss_and_what_the_loss_reads(tmp_path):
    write(tmp_path, additional_output_names=["scores", "h"], loss_input_names=["scores"])
    _, module, _ = opened(tmp_path)
    ((x, y),) = on_device.batches(1)
    loss, scores, hidden = module(x, y)
    assert (loss.shape, scores.shape, hidden.shape) == ((), (12, 4), (12, 16))
    assert module.output_names()[1:] == ["scores", "h"]
    same = module.eval()(x, y)
    np.testing.assert_allclose(same[1], scores, rtol=1e-6)


def test_without_a_loss_the_first_output_is_it(tmp_path):
    model = mlp()
    model.graph.node.append(onnx.helper.make_node("ReduceMean", ["scores"], ["mean"], keepdims=0))
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info("mean", 1, []))
    write(tmp_path, model, loss=None)
    _, module, _ = opened(tmp_path)
    assert module.input_names() == ["x"]
    assert module(np.ones((2, 8), np.float32)).shape == ()
    with pytest.raises(steep.ShapeError, match="exactly one element"):
        write(tmp_path, loss=None)


def test_frozen_parameters_and_constants(tmp_path):
    write(tmp_path, requires_grad=NAMES[2:], frozen_params=NAMES[:1])
    training = onnx.load(tmp_path / "training_model.onnx")
    assert [tensor.name for tensor in training.graph.initializer] == ["fc1.bias"]
    state, module, optimizer = opened(tmp_path)
    assert [(n, p.requires_grad) for n, p in state.parameters] == [
        ("fc2.weight", True),
        ("fc2.bias", True),
        ("fc1.weight", False),
    ]
    ((x, y),) = on_device.batches(1)
    before = module(x, y)
    assert state.parameters["fc1.weight"].grad is None
    # A frozen parameter is no constant of what is compiled.
    state.parameters["fc1.weight"].data = np.zeros((16, 8), np.float32)
    assert module(x, y) != before
    optimizer.step()
    assert not state.parameters["fc1.weight"].data.any()


def test_evaluation_has_neither_dropout_nor_statistics_of_the_batch(tmp_path, caplog):
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
    g (float[n, 4] x) => (float[n, 4] y)
    <float[4] scale = {1, 1, 1, 1}, float[4] shift = {0, 0, 0, 0},
     float[4] mean = {0, 0, 0, 0}, float[4] var = {1, 1, 1, 1},
     float half = {0.5}, bool yes = {1}> {
        b, m, v = BatchNormalization <training_mode = 1, momentum: float = 0.5>
            (x, scale, shift, mean, var)
        y, mask = Dropout <seed = 1> (b, half, yes)
    }""")
    # old files list initializers among the inputs
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(n, 1, [4]) for n in ("mean", "scale")
    )
    model.graph.input.append(onnx.helper.make_tensor_value_info("half", 1, []))
    # guides name all initializers
    trained = ["scale", "shift", "mean"]
    options = {"requires_grad": trained, "additional_output_names": ["y"]}
    with caplog.at_level("WARNING", "steep"):
        write(tmp_path, model, LossType.MSELoss, **options)
    assert "follow the batches: ['mean']" in caplog.text
    with pytest.raises(steep.DataError, match="running statistics"):
        write(tmp_path, model, LossType.MSELoss, requires_grad=["mean"])
    checked(tmp_path)
    state, module, _ = opened(tmp_path)
    nodes = onnx.load(tmp_path / "eval_model.onnx").graph.node
    (dropout,) = [node for node in nodes if node.op_type == "Dropout"]
    assert list(dropout.input) == ["b"]  # for other runtimes
    assert module.input_names() == module.eval().input_names() == ["x", "target"]
    module.train()
    x = np.random.default_rng(3).standard_normal((64, 4)).astype(np.float32) + 2
    _, y = module(x, x)
    assert 0.3 < (y == 0).mean() < 0.7
    # momentum 0.5 of where they began and the batch's
    np.testing.assert_allclose(state.parameters["mean"].data, x.mean(0) / 2, rtol=1e-5)
    mean, var = state.parameters["mean"].data, state.parameters["var"].data
    _, y = module.eval()(x, x)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5)


def model_data(path):
    model = onnx.load(path, load_external_data=False)
    entries = model.graph.initializer[0].external_data
    return next(entry.value for entry in entries if entry.key == "location")


def test_a_model_of_a_path_with_data_beside_it(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(mlp(), path, save_as_external_data=True, size_threshold=0)
    write(tmp_path, str(path))
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert np.array_equal(state.parameters["fc1.bias"].data, on_device.weights()["fc1.bias"])
    with pytest.raises(steep.DataError, match="give the model's path"):
        write(tmp_path, onnx.load(path, load_external_data=False))
    (tmp_path / model_data(path)).unlink()
    with pytest.raises(steep.IoError, match="data beside"):
        write(tmp_path, path)


class Halved(blocks.Block):
    def build(self, scores):
        loss = block_losses.MSELoss()(scores)
        return blocks.Mul()(loss, blocks.Constant(0.5)())


def test_a_loss_of_blocks(tmp_path):
    _, whole, _ = opened(write(tmp_path, loss=LossType.MSELoss))
    x, y = np.ones((3, 8), np.float32), np.ones((3, 4), np.float32)
    wanted = whole(x, y) / 2
    _, module, _ = opened(write(tmp_path, loss=Halved()))
    np.testing.assert_allclose(module(x, y), wanted, rtol=1e-6)


def renamed(name):
    """The model with fc1.bias under another name, which stays trained."""
    model = mlp()
    model.graph.node[0].input[2] = model.graph.initializer[1].name = name
    return model


class Apart(blocks.Block):
    def build(self, scores):
        return blocks.ReduceMean()("x")


apart = Apart()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"ort_format": True}, NotOffered, "ONNX models"),
        ({"custom_op_library": "ops.so"}, NotOffered, "register_op"),
        ({"loss": "mse"}, steep.DataError, "LossType.MSELoss"),
        ({"optimizer": "adamw"}, steep.DataError, "OptimType.AdamW"),
        ({"requires_grad": None}, steep.DataError, "fc1.weight, fc1.bias"),
        ({"requires_grad": "fc1.weight"}, steep.DataError, "list of str"),
        ({"requires_grad": ["fc1.wieght"]}, steep.ModelError, "fc1.weight"),
        ({"frozen_params": ["fc1.bias"]}, steep.DataError, "fc1.bias"),
        ({"additional_output_names": ["score"]}, steep.ModelError, "scores"),
        ({"loss_input_names": ["nothing"]}, steep.ModelError, "nothing"),
        ({"model": mlp(opset=11)}, steep.ModelError, "version_converter"),
        ({"model": renamed("step")}, steep.DataError, "rename the initializer"),
        ({"model": renamed("fc2.bias_grad")}, steep.DataError, "rename the initializer"),
        ({"loss": apart}, steep.ModelError, "does not depend"),
        ({"model": 3}, steep.DataError, "ModelProto"),
        ({"model": "missing.onnx"}, steep.IoError, "missing.onnx"),
    ],
)
def test_what_is_refused_leaves_no_file(tmp_path, options, error, words):
    if "model" in options and hasattr(options["model"], "graph"):
        names = [tensor.name for tensor in options["model"].graph.initializer]
        options = {"requires_grad": names, **options}
    with pytest.raises(error, match=words):
        write(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_folders_and_files_that_cannot_be_written(tmp_path):
    with pytest.raises(steep.IoError, match="artifact_directory"):
        write(tmp_path / "missing")
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(steep.IoError, match="checkpoint"):
        write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_the_state_comes_back_as_it_was():
    state = state_file.TrainingState(
        {
            "w": np.arange(6, dtype=np.float64).reshape(2, 3),
            "n": np.array(3),
            "e": np.zeros((0, 2)),
        },
        ["w"],
        {"epoch": -3, "loss": 0.1, "nan": float("inf"), "name": "ü\n"},
        state_file.OptimizerState(7, 0.1, 0.3, {"m/w": np.ones((2, 3), np.float32)}),
    )
    back = state_file.decode(state_file.encode(state, with_optimizer=True), "there")
    assert back.trained == ["w"] and back.properties == state.properties
    assert {n: a.tolist() for n, a in back.values.items()} == {
        n: a.tolist() for n, a in state.values.items()
    }
    assert (back.optimizer.step, back.optimizer.lr, back.optimizer.initial_lr) == (7, 0.1, 0.3)
    assert back.optimizer.moments["m/w"].dtype == np.float32
    assert state_file.decode(state_file.encode(state, False), "there").optimizer is None


def test_a_checkpoint_is_a_safetensors_file_if_requested(tmp_path):
    write(tmp_path)
    assert (tmp_path / "checkpoint").read_bytes()[4:8] == b"ODTC"
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    CheckpointState.save_checkpoint(state, tmp_path / "other", file_format="safetensors")
    content = (tmp_path / "other").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    entry = header["parameter/fc1.bias"]
    assert (entry["dtype"], entry["shape"]) == ("F32", [16])


def test_every_damaged_byte_is_seen():
    state = state_file.TrainingState({"w": np.arange(3, dtype=np.float32)}, ["w"], {"a": 1})
    content = state_file.encode(state, with_optimizer=False)
    for i in range(len(content)):
        broken = bytearray(content)
        broken[i] ^= 1
        with pytest.raises(steep.CheckpointError):
            state_file.decode(bytes(broken), "there")
    for size in range(0, len(content), 7):
        with pytest.raises(steep.CheckpointError):
            state_file.decode(content[:size], "there")


def test_files_that_are_no_checkpoint(tmp_path):
    load = CheckpointState.load_checkpoint
    with pytest.raises(steep.IoError, match="missing"):
        load(tmp_path / "missing")
    (tmp_path / "old").write_bytes(b"\x14\0\0\0ODTC" + bytes(64))
    with pytest.raises(steep.CheckpointError, match="damaged"):
        load(tmp_path / "old")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(steep.CheckpointError, match="not a regular file"):
        load(tmp_path / "fifo")
    (tmp_path / "session").mkdir()
    (tmp_path / "session/manifest.json").write_text("{}")
    with pytest.raises(steep.CheckpointError, match="TrainingSession"):
        load(tmp_path / "session")
    with pytest.raises(steep.CheckpointError, match="the buffer"):
        CheckpointState.from_buffer(b"")
