"""The loop of on-device training under the old names, beside PyTorch's."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import on_device
import pytest
from checkout import ROOT, SUPPORT
from on_device import NAMES, batches, opened, write

import steep
from steep.compat.inference.ort_value import OrtValue
from steep.compat.on_device.training_module import Module
from steep.compat.on_device.training_optimizer import LinearLRScheduler, Optimizer
from steep.compat.on_device.training_state import CheckpointState
from steep.compat.onnxblock import artifacts, optimizers as block_optimizers

PATH = str(ROOT / "python")
SGD = artifacts.OptimType.SGD


def net(torch, seed=0):
    """The same model in PyTorch."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    with torch.no_grad():
        for p, value in zip(model.parameters(), on_device.weights(seed).values(), strict=True):
            p.copy_(torch.tensor(value))
    return model


def agree(state, model, rtol=1e-5, atol=1e-6):
    for p, (name, mine) in zip(model.parameters(), state.parameters, strict=True):
        np.testing.assert_allclose(mine.data, p.detach(), rtol=rtol, atol=atol, err_msg=name)


def train(module, optimizer, data):
    losses = []
    for x, y in data:
        module.train()
        losses.append(float(module(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_the_loop_of_the_guide_is_pytorchs(tmp_path, kind):
    torch = pytest.importorskip("torch")
    write(tmp_path, optimizer=artifacts.OptimType[kind])
    state, module, optimizer = opened(tmp_path)
    assert optimizer.get_learning_rate() == 1e-3
    optimizer.set_learning_rate(0.05)
    model = net(torch)
    if kind == "SGD":
        torch_optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    else:
        torch_optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, eps=1e-6, weight_decay=0)
    for step, (x, y) in enumerate(batches(8), 1):
        if kind == "AdamW":  # whose epsilon stands beside the root that is not corrected
            torch_optimizer.param_groups[0]["eps"] = 1e-6 / np.sqrt(1 - 0.999**step)
        loss = torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y))
        module.train()
        np.testing.assert_allclose(module(x, y), loss.item(), rtol=2e-5)
        loss.backward()
        for p, (_, mine) in zip(model.parameters(), state.parameters, strict=True):
            np.testing.assert_allclose(mine.grad, p.grad, rtol=1e-4, atol=1e-5)
        torch_optimizer.step()
        optimizer.step()
        torch_optimizer.zero_grad()
        module.lazy_reset_grad()
        module.eval()
        loss = torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y))
        np.testing.assert_allclose(module(x, y), loss.item(), rtol=2e-5)
    agree(state, model, rtol=1e-3, atol=1e-4)


def test_gradients_add_up_until_they_are_reset(tmp_path):
    torch = pytest.importorskip("torch")
    state, module, optimizer = opened(write(tmp_path, optimizer=SGD))
    optimizer.set_learning_rate(0.1)
    model = net(torch)
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches(7)):
        module.train()(x, y)
        torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y)).backward()
        if i % 3 == 1:  # an evaluation in between leaves gradients as they are
            module.eval()(x, y)
            optimizer.step()
            update.step()
        if i % 3 == 2:  # not reset with the step before: once more with all so far
            optimizer.step()
            update.step()
            module.lazy_reset_grad()
            update.zero_grad()
    agree(state, model)
    for p, (_, mine) in zip(model.parameters(), state.parameters, strict=True):
        np.testing.assert_allclose(mine.grad, p.grad, rtol=1e-4, atol=1e-6)


def test_a_sum_that_was_not_finite_is_over_with_the_reset(tmp_path):
    state, module, _ = opened(write(tmp_path, loss=artifacts.LossType.MSELoss))
    x, y = np.ones((2, 8), np.float32), np.ones((2, 4), np.float32)
    wanted = module(x, y) and state.parameters["fc2.bias"].grad
    module(x, y * 1e19)  # a finite loss, 1e38; its gradients are as large
    module(x, y * -1e19)
    module.lazy_reset_grad()
    module(x, y)
    assert np.array_equal(state.parameters["fc2.bias"].grad, wanted)
    with pytest.raises(steep.DataError, match="loss of step"):
        module(x * np.nan, y)
    module(x, y)
    np.testing.assert_allclose(state.parameters["fc2.bias"].grad, 2 * wanted, rtol=1e-6)


ANOTHER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import on_device, test_compat_training_api as here
folder = Path(sys.argv[1])
state, module, optimizer = on_device.opened(folder, "middle")
here.train(module, optimizer, on_device.batches(6)[3:])
here.CheckpointState.save_checkpoint(state, folder / "end", include_optimizer_state=True)
"""


def test_a_checkpoint_in_the_middle_goes_on_in_another_process(tmp_path):
    state, module, optimizer = opened(write(tmp_path))
    optimizer.set_learning_rate(0.01)
    data = batches(6)
    train(module, optimizer, data[:3])
    state.properties["epoch"] = 1
    CheckpointState.save_checkpoint(state, tmp_path / "middle", include_optimizer_state=True)
    train(module, optimizer, data[3:])
    CheckpointState.save_checkpoint(state, tmp_path / "whole", include_optimizer_state=True)
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER, tmp_path, PATH, SUPPORT, Path(__file__).parent],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "end").read_bytes() == (tmp_path / "whole").read_bytes()


def test_without_the_optimizers_state_it_begins_anew(tmp_path):
    state, module, optimizer = opened(write(tmp_path))
    optimizer.set_learning_rate(0.01)
    train(module, optimizer, batches(2))
    CheckpointState.save_checkpoint(state, tmp_path / "bare")
    CheckpointState.save_checkpoint(state, tmp_path / "full", include_optimizer_state=True)
    bare, _, fresh = opened(tmp_path, "bare")
    assert fresh.get_learning_rate() == 1e-3 and bare._content.optimizer.step == 0
    full, _, going = opened(tmp_path, "full")
    assert going.get_learning_rate() == 0.01 and full._content.optimizer.step == 2
    for name, p in state.parameters:
        assert np.array_equal(bare.parameters[name].data, p.data)
    write(tmp_path, optimizer=SGD)
    with pytest.raises(steep.CheckpointError, match="moments of another optimizer"):
        opened(tmp_path, "full")


def test_the_exported_model_is_for_inference(tmp_path):
    state, module, optimizer = opened(write(tmp_path))
    data = batches(3)
    train(module, optimizer, data)
    module.export_model_for_inferencing(tmp_path / "out.onnx", ["scores"])
    x = data[0][0]
    w = {name: p.data for name, p in state.parameters}
    hidden = np.maximum(x @ w["fc1.weight"].T + w["fc1.bias"], 0)
    wanted = hidden @ w["fc2.weight"].T + w["fc2.bias"]
    session = steep.InferenceSession(str(tmp_path / "out.onnx"))
    assert [i.name for i in session.get_inputs()] == ["x"]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-5, atol=1e-6)
    module.export_model_for_inferencing(tmp_path / "hidden.onnx", ["r"])
    ort = pytest.importorskip("onnxruntime")
    (got,) = ort.InferenceSession(tmp_path / "out.onnx").run(None, {"x": x})
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    (got,) = ort.InferenceSession(tmp_path / "hidden.onnx").run(None, {"x": x})
    np.testing.assert_allclose(got, hidden, rtol=1e-5, atol=1e-6)


def test_buffers_of_parameters(tmp_path):
    write(tmp_path, requires_grad=NAMES[2:], frozen_params=NAMES[:2], nominal_checkpoint=True)
    state, module, _ = opened(tmp_path)
    assert module.get_parameters_size() == 4 * 16 + 4
    assert module.get_parameters_size(False) == 4 * 16 + 4 + 16 * 8 + 16
    every = module.get_contiguous_parameters()
    values = np.concatenate([p.data.ravel() for _, p in state.parameters])
    assert np.array_equal(every.numpy(), values)
    trained = module.get_contiguous_parameters(trainable_only=True).numpy()
    module.copy_buffer_to_parameters(trained * 2)
    assert np.array_equal(state.parameters["fc2.weight"].data.ravel(), 2 * values[:64])
    with pytest.raises(steep.ShapeError, match=r"float32\[68\]"):
        module.copy_buffer_to_parameters(every)
    # a nominal checkpoint waits for all of them
    _, nominal, _ = opened(tmp_path, "nominal_checkpoint")
    ((x, y),) = batches(1)
    for call in (lambda: nominal(x, y), nominal.get_contiguous_parameters):
        with pytest.raises(steep.DataError, match="nominal"):
            call()
    with pytest.raises(steep.DataError, match="nominal"):
        nominal.copy_buffer_to_parameters(trained)
    nominal.copy_buffer_to_parameters(every, trainable_only=False)
    module.copy_buffer_to_parameters(every, trainable_only=False)
    assert nominal(x, y) == module(x, y)


def test_gradients_before_the_first_call(tmp_path):
    state, _, _ = opened(write(tmp_path))
    for _, p in state.parameters:
        np.testing.assert_array_equal(p.grad, np.zeros_like(p.data))
        assert p.grad.dtype == p.data.dtype
    alone = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert alone["fc1.bias"].grad is None


def test_parameters_and_properties_are_read_and_written(tmp_path):
    state, module, _ = opened(write(tmp_path))
    assert len(state.parameters) == 4 and "fc1.bias" in state and "epoch" not in state
    assert state["fc1.bias"].requires_grad
    np.testing.assert_array_equal(state["fc1.bias"].grad, np.zeros(16, np.float32))
    ((x, y),) = batches(1)
    before = module(x, y)
    state["fc1.bias"] = np.full(16, 3, np.float32)
    assert module(x, y) != before and module.eval()(x, y) != before
    copied = state.parameters["fc1.bias"].data
    copied[:] = 0
    assert state.parameters["fc1.bias"].data[0] == 3
    state["epoch"] = 4
    state.properties["best"], state.properties["name"] = 0.1, "mlp"
    assert list(state.properties) == [("epoch", 4), ("best", 0.1), ("name", "mlp")]
    for wrong in (True, None, [1], 2**63, np.ones(2)):
        with pytest.raises(steep.DataError, match="property"):
            state.properties["wrong"] = wrong
    with pytest.raises(KeyError, match="fc1"):
        state.parameters["fc3.bias"]
    with pytest.raises(KeyError, match="epoch"):
        state["nothing"]
    for wrong in (np.zeros(15, np.float32), np.zeros(16)):
        with pytest.raises(steep.ShapeError, match=r"float32\[16\]"):
            state.parameters["fc1.bias"].data = wrong


def test_two_modules_of_one_state_share_its_parameters(tmp_path):
    state, first, optimizer = opened(write(tmp_path, optimizer=SGD))
    second = Module(tmp_path / "training_model.onnx", state)
    ((x, y),) = batches(1)
    assert first(x, y) == second(x, y)
    optimizer.step()
    assert first(x, y) == second(x, y)


def test_calls_from_several_threads_add_up(tmp_path):
    state, module, _ = opened(write(tmp_path))
    data = batches(4, n=64)
    for x, y in data:
        module(x, y)
    wanted = state.parameters["fc1.weight"].grad
    for _ in range(5):
        module.lazy_reset_grad()
        threads = [threading.Thread(target=module, args=batch) for batch in data]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        grad = state.parameters["fc1.weight"].grad
        np.testing.assert_allclose(grad, wanted, rtol=1e-4, atol=1e-6)


def test_the_linear_schedule(tmp_path):
    _, module, optimizer = opened(write(tmp_path))
    scheduler = LinearLRScheduler(optimizer, 2, 6, 0.5)
    rates = [optimizer.get_learning_rate()]
    ((x, y),) = batches(1)
    for _ in range(7):
        module(x, y)
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    assert rates == [0, 0.25, 0.5, 0.375, 0.25, 0.125, 0, 0]
    with pytest.raises(steep.DataError, match="warmup_step_count"):
        LinearLRScheduler(optimizer, 3, 2, 0.5)


def test_dropout_goes_on_where_the_checkpoint_was(tmp_path):
    import onnx

    model = on_device.mlp()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.5, np.float32), "half"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
    node = onnx.helper.make_node("Dropout", ["r", "half", "yes"], ["dropped"])
    model.graph.node.insert(2, node)
    model.graph.node[3].input[0] = "dropped"
    state, module, _ = opened(write(tmp_path, model, optimizer=SGD))
    ((x, y),) = batches(1)
    first, second = module(x, y), module(x, y)
    assert first != second
    CheckpointState.save_checkpoint(state, tmp_path / "checkpoint")
    third = module(x, y)
    assert third not in (first, second)
    again, module, _ = opened(tmp_path)
    assert module(x, y) == third
    # modules of a state draw from one stream
    other = Module(tmp_path / "training_model.onnx", again)
    assert other(x, y) not in (first, second, third)


def test_an_optimizer_of_blocks_clips_and_decays(tmp_path):
    torch = pytest.importorskip("torch")
    clip = block_optimizers.ClipGradNorm(0.05)
    write(tmp_path, optimizer=block_optimizers.AdamW(eps=0.01, weight_decay=0.5, clip_grad=clip))
    state, module, optimizer = opened(tmp_path)
    optimizer.set_learning_rate(0.1)  # so that it shows when decay comes, and where epsilon stands
    model = net(torch)
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    for t, (x, y) in enumerate(batches(4), 1):
        train(module, optimizer, [(x, y)])
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y)).backward()
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05) > 0.05
        rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        with torch.no_grad():
            for p, (m, v) in zip(model.parameters(), moments, strict=True):
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                p.sub_(rate * m / (v.sqrt() + 0.01))
                p.mul_(1 - 0.1 * 0.5)
    agree(state, model, rtol=1e-4, atol=1e-5)


def test_float64_parameters(tmp_path):
    from onnx import TensorProto, numpy_helper

    model = on_device.mlp()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)
        )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    state, module, optimizer = opened(write(tmp_path, model))
    ((x, y),) = batches(1)
    losses = train(module, optimizer, [(x.astype(np.float64), y)] * 3)
    assert losses[2] < losses[1] < losses[0]
    assert state.parameters["fc1.bias"].data.dtype == np.float64
    with pytest.raises(steep.DataError, match="float32"):
        module.get_contiguous_parameters()


def test_integers_and_floats_of_another_width_are_converted_in_both_modes(tmp_path):
    _, module, _ = opened(write(tmp_path))
    ((x, y),) = batches(1)
    wanted = module(x, y)
    for mode in (True, False):
        module.train(mode)
        assert np.allclose(module(x.astype(np.float64), y.astype(np.int32)), wanted)
        result = module(*map(OrtValue.ortvalue_from_numpy, (x, y)))
        assert isinstance(result, OrtValue) and np.allclose(result.numpy(), wanted)
        assert isinstance(module(steep.Tensor(x), y), np.ndarray)


@pytest.mark.parametrize("of", ["x", "labels"])
def test_numbers_that_do_not_fit_are_refused_in_both_modes(tmp_path, of):
    _, module, _ = opened(write(tmp_path))
    ((x, y),) = batches(1)
    if of == "x":
        x = x.astype(np.float64)
        x[1, 2] = 1e39
    else:
        y = y.astype(np.uint64)
        y[1] = 2**64 - 1
    for mode in (True, False):
        module.train(mode)
        with pytest.raises(steep.DataError, match="does not suit the model's input"):
            module(x, y)


def test_values_in_a_shell():
    array = np.ones((2, 3), np.float32)
    value = OrtValue.ortvalue_from_numpy(array)
    assert (value.shape(), value.data_type(), value.element_type()) == ([2, 3], "tensor(float)", 1)
    value.update_inplace(array * 2)
    assert array[0, 0] == 2 and value.data_ptr() == array.ctypes.data
    assert value.numpy() is not array and np.array_equal(np.from_dlpack(value), array)
    session = steep.InferenceSession(on_device.mlp())
    x = OrtValue.ortvalue_from_numpy(np.ones((2, 8), np.float32))
    assert np.array_equal(session.run(None, {"x": x})[0], session.run(None, {"x": x.numpy()})[0])
    turned = OrtValue.ortvalue_from_numpy(array.T)
    assert np.array_equal(turned.numpy(), array.T) and turned.data_ptr() != array.ctypes.data
    for kind in (np.int64, 7):
        zeros = OrtValue.ortvalue_from_shape_and_type([4], kind)
        assert zeros.data_type() == "tensor(int64)" and not zeros.numpy().any()
    with pytest.raises(steep.ShapeError, match=r"float32\[2, 3\]"):
        value.update_inplace(np.ones(3, np.float32))
    for wrong in (
        lambda: OrtValue.ortvalue_from_numpy(array, "cuda"),
        lambda: OrtValue.ortvalue_from_numpy("text"),
        lambda: OrtValue.ortvalue_from_shape_and_type([1], "nothing"),
        lambda: OrtValue.ortvalue_from_shape_and_type([1], 999),
    ):
        with pytest.raises(steep.DataError):
            wrong()


def calls(module, x, y):
    yield (x[:, :7], y), steep.ShapeError, r"float32\[n, 8\]"
    yield (x,), steep.ShapeError, "2 inputs: x, labels"
    yield (x, y, y), steep.ShapeError, "2 inputs: x, labels"
    yield (x, y[:5]), steep.Error, "5"
    yield (x, y.astype(np.float32)), steep.ShapeError, "labels"
    yield (x, y + 9), steep.DataError, "labels from 0 to 3"


@pytest.mark.parametrize("mode", [True, False])
def test_wrong_inputs_are_named_in_both_modes(tmp_path, mode):
    state, module, _ = opened(write(tmp_path))
    ((x, y),) = batches(1)
    wanted = module(x, y)
    module.train(mode)
    for given, error, words in calls(module, x, y):
        with pytest.raises(error, match=words):
            module(*given)
    gradient = state.parameters["fc2.bias"].grad
    np.testing.assert_allclose(module(x, y), wanted, rtol=1e-6)
    factor = 2 if mode else 1  # calls that were refused added nothing
    np.testing.assert_allclose(state.parameters["fc2.bias"].grad, factor * gradient, rtol=1e-6)


def test_a_step_without_gradients_is_refused(tmp_path):
    state, module, optimizer = opened(write(tmp_path))
    ((x, y),) = batches(1)
    module.eval()(x, y)
    with pytest.raises(steep.DataError, match=r"module\.train\(\)"):
        optimizer.step()
    module.train()(x, y)
    optimizer.step()
    module.lazy_reset_grad()
    with pytest.raises(steep.DataError, match="since the last one"):
        optimizer.step()
    assert state._content.optimizer.step == 1


def test_files_that_do_not_belong_together(tmp_path):
    write(tmp_path)
    (tmp_path / "less").mkdir()
    write(tmp_path / "less", requires_grad=NAMES[2:])
    load, training = CheckpointState.load_checkpoint, tmp_path / "training_model.onnx"
    state, less = load(tmp_path / "checkpoint"), load(tmp_path / "less/checkpoint")
    with pytest.raises(steep.CheckpointError, match="no fc1"):
        Module(training, less)
    with pytest.raises(steep.ModelError, match="check the order"):
        Module(tmp_path / "eval_model.onnx", state)
    with pytest.raises(steep.IoError, match="nothing"):
        Module(tmp_path / "nothing.onnx", state)
    with pytest.raises(steep.ModelError, match="not an ONNX model"):
        Module(tmp_path / "checkpoint", state)
    with pytest.raises(steep.DataError, match="CheckpointState"):
        Module(training, str(tmp_path / "checkpoint"))
    with pytest.raises(steep.DataError, match="cpu"):
        Module(training, state, device="cuda")
    module = Module(training, state)
    with pytest.raises(steep.DataError, match="eval_model_uri"):
        module.eval()(np.ones((2, 8), np.float32), np.zeros(2, np.int64))
    with pytest.raises(steep.ModelError, match="model of optimizer"):
        Optimizer(training, module)
    with pytest.raises(steep.ModelError, match=r"no fc1\.weight"):
        Optimizer(tmp_path / "less/optimizer_model.onnx", module)
    with pytest.raises(steep.DataError, match="needs a Module"):
        Optimizer(tmp_path / "optimizer_model.onnx", state)
    _, module, optimizer = opened(tmp_path)
    with pytest.raises(steep.DataError, match="out of range"):
        optimizer.set_learning_rate(float("nan"))
    for names, words in ((["score"], "scores"), ([], "list of names"), ("scores", "list of names")):
        with pytest.raises(steep.Error, match=words):
            module.export_model_for_inferencing(tmp_path / "out.onnx", names)
    assert not (tmp_path / "out.onnx").exists()
