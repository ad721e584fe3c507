"""Checkpoints of ONNX Runtime's format: read, written, and damaged."""

import contextlib
import logging
import os
import sys

import numpy as np
import old_checkpoints as old
import on_device
import pytest
from old_checkpoints import Writer
from onnx import helper

import steep
from steep.compat import state_file
from steep.compat.checkpoint import files
from steep.compat.on_device.training_state import CheckpointState
from steep.compat.onnxblock import artifacts, checkpoints

W = np.arange(6, dtype=np.float32).reshape(2, 3)
load = CheckpointState.load_checkpoint


def train(module, optimizer, data):
    losses = []
    for x, y in data:
        losses.append(float(module.train()(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


def kept(state):
    """What a training goes on with, comparable."""
    optimizer = state.optimizer
    moments = optimizer and {n: a.tobytes() for n, a in optimizer.moments.items()}
    return (
        {n: (a.dtype, a.shape, a.tobytes()) for n, a in state.values.items()},
        (state.trained, state.nominal, state.draws, repr(sorted(state.properties.items()))),
        optimizer and (optimizer.step, optimizer.lr, optimizer.initial_lr, moments),
    )


def old_artifacts(folder):
    model, data = old.model_and_data()
    artifacts.generate_artifacts(
        model,
        requires_grad=old.TRAINED,
        frozen_params=["fc1.weight"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    return data


def test_a_file_of_the_old_package_goes_on_as_there(tmp_path):
    data = old_artifacts(tmp_path)
    (tmp_path / "three").write_bytes(old.THREE)
    state, module, optimizer = on_device.opened(tmp_path, "three")
    assert list(state.properties) == [("epoch", 3), ("best", 0.5), ("name", "mlp ü")]
    assert not state.parameters["fc1.weight"].requires_grad
    assert state._content.optimizer.step == 3
    assert optimizer.get_learning_rate() == 0.001  # as there: the format has no present rate
    optimizer.set_learning_rate(old.RATE)
    np.testing.assert_allclose(train(module, optimizer, data[3:]), old.LOSSES, rtol=1e-5)


def test_a_nominal_file_of_the_old_package_takes_its_shapes_from_the_model(tmp_path):
    data = old_artifacts(tmp_path)
    (tmp_path / "nominal").write_bytes(old.NOMINAL)
    _, module, _ = on_device.opened(tmp_path)
    _, nominal, _ = on_device.opened(tmp_path, "nominal")
    with pytest.raises(steep.DataError, match="nominal"):
        nominal(*data[0])
    nominal.copy_buffer_to_parameters(module.get_contiguous_parameters(), trainable_only=False)
    assert nominal(*data[0]) == module(*data[0])


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
@pytest.mark.parametrize("file_format", [None, "onnxruntime", "safetensors"])
def test_three_steps_and_two_are_five(tmp_path, kind, file_format):
    on_device.write(tmp_path, optimizer=artifacts.OptimType[kind])
    state, module, optimizer = on_device.opened(tmp_path)
    optimizer.set_learning_rate(0.01)
    data = on_device.batches(5)
    train(module, optimizer, data[:3])
    state.properties["best"] = 0.1
    CheckpointState.save_checkpoint(state, tmp_path / "middle", True, file_format)
    wanted = train(module, optimizer, data[3:])
    again, module, optimizer = on_device.opened(tmp_path, "middle")
    assert optimizer.get_learning_rate() == 0.01 and again.properties["best"] == 0.1
    assert train(module, optimizer, data[3:]) == wanted
    assert kept(again._content) == kept(state._content)


def test_a_file_of_another_writer(tmp_path):
    w = Writer()
    kinds = ["f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"]
    arrays = {f"p{k}": np.array([[0, 1], [1, 0]], k) for k in kinds}
    arrays["bf16"] = np.array([1.5, -2], helper.tensor_dtype_to_np_dtype(16))
    arrays["scalar"], arrays["empty"] = np.array(7), np.zeros((0, 2))
    tensors = [w.tensor(n, a) for n, a in arrays.items()]
    group = w.group([("w", {"momentum0": W, "momentum1": W * 2})])
    bag = w.bag([("i", -(2**63)), ("z", 0)], [("f", 0.25)], [("s", "ü\n"), ("e", "")])
    (tmp_path / "c").write_bytes(w.file([w.tensor("w", W)], tensors, [group], bag))
    held = load(tmp_path / "c")._content
    assert held.trained == ["w"] and held.properties == {
        "i": -(2**63), "z": 0, "f": 0.25, "s": "ü\n", "e": ""
    }  # fmt: skip
    for name, array in {"w": W, **arrays}.items():
        assert held.values[name].dtype == array.dtype and held.values[name].flags.writeable
        assert np.array_equal(held.values[name], array)
    assert (held.optimizer.step, held.optimizer.initial_lr) == (3, 0.25)
    assert np.array_equal(held.optimizer.moments["momentum1/w"], W * 2)
    back = files.decode(files.encode(held, True, "onnxruntime"), "there")
    assert kept(back) == kept(held)
    with pytest.raises(steep.DataError, match="dtype"):
        files.encode(held, True, "safetensors")


def everything():
    made = state_file.TrainingState({"w": W, "b": W[0]}, ["w"], {"a": 1, "f": 0.1, "s": "x"})
    made.optimizer = state_file.OptimizerState(7, 0.1, 0.3, {"momentum0/w": W, "momentum1/w": W})
    made.draws = 5
    return made


def test_every_damage_to_a_file_of_ours_is_an_error_or_changes_nothing():
    state = everything()
    content = files.encode(state, True, "onnxruntime")
    wanted = kept(files.decode(content, "there"))
    assert wanted == kept(state)
    for i in range(len(content)):
        for mask in (1, 0x80, 0xFF):
            broken = bytearray(content)
            broken[i] ^= mask
            with pytest.raises(steep.CheckpointError) as error:
                files.decode(bytes(broken), "there")
            assert error.value.node == "there" and error.value.remedy
        with pytest.raises(steep.CheckpointError):
            files.decode(content[:i], "there")
    with pytest.raises(steep.CheckpointError, match="seal"):
        files.decode(content + b"more", "there")


@pytest.mark.parametrize("file_format", ["onnxruntime", "safetensors"])
@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1e-3])
def test_a_rate_that_no_optimizer_takes_is_refused(file_format, rate):
    state = everything()
    state.optimizer.lr = rate
    content = files.encode(state, True, file_format)
    with pytest.raises(steep.CheckpointError, match="learning rate"):
        files.decode(content, "c")


class Huge(float):
    """A number whose text in hexadecimal is beyond float64."""

    def hex(self):
        return "0x1p99999"


def test_a_rate_beyond_float64_is_refused():
    state = everything()
    state.optimizer.lr = Huge(1)
    content = files.encode(state, True, "safetensors")
    with pytest.raises(steep.CheckpointError, match="header that does not fit"):
        files.decode(content, "c")


def test_every_damage_to_a_file_without_a_digest_is_an_error_or_a_state():
    w = Writer()
    group = w.group([("w", {"momentum0": W[0]})])
    bag = w.bag([("i", 1)], [("f", 0.25)], [("s", "x")])
    content = w.file([w.tensor("w", W[0])], [], [group], bag)
    whole, refused = kept(files.decode(content, "there")), 0
    for i in range(len(content)):
        for mask in (1, 0xFF):
            broken = bytearray(content)
            broken[i] ^= mask
            try:
                assert len(files.decode(bytes(broken), "there").values) <= 1
            except steep.CheckpointError as error:
                refused += 1
                assert error.expected and error.received and error.remedy
        with contextlib.suppress(steep.CheckpointError):  # the last bytes only fill a word
            assert kept(files.decode(content[:i], "there")) == whole and i > len(content) - 8
    assert refused > len(content) / 2


def one(**fields):
    """A file of one tensor that does not fit."""
    w = Writer()
    return w.file([w.tensor("w", fields.pop("array", W), **fields)])


def grouped(*groups, **fields):
    w = Writer()
    return w.file([w.tensor("w", W)], groups=[w.group(*g, **fields) for g in groups])


def twice():
    w = Writer()
    return w.file([w.tensor("w", W)], [w.tensor("w", W)])


def bagged(**kinds):
    w = Writer()
    return w.file(bag=w.bag(**kinds))


def shared():
    """Names that differ, and one vector of values for all of them."""
    w = Writer()
    raw = w.at(w.builder.CreateByteVector(bytes(1 << 16)))
    dims = w.at(w.builder.CreateNumpyVector(np.array([1 << 16])))
    return w.file(
        [w.table(7, s0=w.text(f"w{i}"), s2=dims, s3=("Int32", 2, 0), s4=raw) for i in range(99)]
    )


DAMAGED = {
    "string tensor": (lambda: one(code=old.STRING), "tensor of strings"),
    "undefined": (lambda: one(code=0), "data type 0"),
    "unknown": (lambda: one(code=99), "data type 99"),
    "short": (lambda: one(raw=bytes(20)), "24 bytes"),
    "long": (lambda: one(raw=bytes(28)), "24 bytes"),
    "none": (lambda: one(raw=b""), "24 bytes"),
    "negative": (lambda: one(dims=[-2, -3]), "extents of 0 or more"),
    "rank": (lambda: one(dims=[1] * 1000), "up to 32 extents"),
    "huge": (lambda: one(dims=[2**62, 2**62]), "max_bytes"),
    "zero and huge": (lambda: one(array=np.zeros(0), dims=[0, 2**62, 2**62]), "extents"),
    "truth": (lambda: one(array=np.array([2], np.uint8), code=9), "0 or 1"),
    "external": (lambda: one(external=0), "no file of data"),
    "names": (twice, "'w' twice"),
    "overlap": (shared, "overlap"),
    "version": (lambda: Writer().file(version=3), "1 or 2"),
    "no version": (lambda: Writer().file(version=0), "1 or 2"),
    "groups": (lambda: grouped(([],), ([],)), "2 groups"),
    "group": (lambda: grouped(([],), name="group1"), "group1"),
    "step": (lambda: grouped(([],), step=-1), "a count"),
    "rate": (lambda: grouped(([],), rate=float("nan")), "finite"),
    "parameters": (lambda: grouped(([("w", {}), ("w", {})],)), "'w' twice"),
    "properties": (lambda: bagged(ints=[("a", 1)], strings=[("a", "")]), "'a' twice"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_what_does_not_fit_is_an_error_that_names_the_field(kind):
    make, words = DAMAGED[kind]
    with pytest.raises(steep.CheckpointError, match=words) as error:
        files.decode(make(), "there")
    assert (error.value.node, bool(error.value.op)) == ("there", True)


def test_more_values_than_the_limit_are_refused(monkeypatch):
    limits = steep.Limits(max_bytes=1 << 20)
    monkeypatch.setattr("steep.compat.checkpoint.reader.Limits", lambda: limits)
    w = Writer()
    content = w.file([w.tensor("w", np.zeros(0, "f4"), dims=[1 << 19])], flags=(1, 0))
    with pytest.raises(steep.CheckpointError, match="max_bytes"):
        files.decode(content, "there")


def external(flags=(0, 1), offset=64, size=6):
    w = Writer()
    big = w.tensor("w", np.arange(size, dtype=np.float32), external=offset)
    return w.file([big], [w.tensor("b", W)], flags=flags)


def test_data_in_a_file_beside(tmp_path):
    path, data = tmp_path / "c", tmp_path / "c.data"
    path.write_bytes(external())
    data.write_bytes(bytes(64) + W.tobytes())
    state = load(path)
    assert np.array_equal(state.parameters["w"].data, W.reshape(-1))
    assert np.array_equal(state.parameters["b"].data, W)
    with pytest.raises(steep.CheckpointError, match="load_checkpoint"):
        CheckpointState.from_buffer(path.read_bytes())
    for wrong in ({"offset": 68}, {"offset": 2**62}, {"size": 7}):
        path.write_bytes(external(**wrong))
        with pytest.raises(steep.CheckpointError, match="external_data_offset"):
            load(path)
    path.write_bytes(external())
    (tmp_path / "other").write_bytes(data.read_bytes())
    data.unlink()
    with pytest.raises(steep.CheckpointError, match="no such file"):
        load(path)
    data.symlink_to(tmp_path / "other")
    assert np.array_equal(load(path).parameters["w"].data, W.reshape(-1))


def test_data_outside_of_the_folder_is_not_read(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "c").write_bytes(external())
    (tmp_path / "secret").write_bytes(bytes(64) + W.tobytes())
    (inside / "c.data").symlink_to("../secret")
    with pytest.raises(steep.CheckpointError, match="in the checkpoint's folder"):
        load(inside / "c")
    (inside / "c.data").unlink()
    os.mkfifo(inside / "c.data")
    with pytest.raises(steep.CheckpointError, match="not a regular file"):
        load(inside / "c")
    (inside / "c.data").unlink()
    (inside / "c.data").symlink_to("c.data")
    with pytest.raises((steep.IoError, steep.CheckpointError)):
        load(inside / "c")


def test_without_flatbuffers(tmp_path, monkeypatch, caplog):
    state = CheckpointState(everything())
    CheckpointState.save_checkpoint(state, tmp_path / "old", True)
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(steep.Error, match="pip install flatbuffers") as error:
        load(tmp_path / "old")
    assert isinstance(error.value, ImportError)
    with pytest.raises(steep.Error, match="pip install flatbuffers"):
        CheckpointState.save_checkpoint(state, tmp_path / "new", True, "onnxruntime")
    assert not (tmp_path / "new").exists()
    with caplog.at_level(logging.WARNING, "steep"):
        CheckpointState.save_checkpoint(state, tmp_path / "new", True)
    assert "pip install flatbuffers" in caplog.text
    assert kept(load(tmp_path / "new")._content) == kept(state._content)


def test_what_the_old_format_cannot_hold_is_saved_as_safetensors(tmp_path, caplog, monkeypatch):
    state = CheckpointState(everything())
    state._content.optimizer.moments["total"] = W
    save = CheckpointState.save_checkpoint
    with pytest.raises(steep.DataError, match="momentum0/P"):
        save(state, tmp_path / "c", True, "onnxruntime")
    save(state, tmp_path / "c", True)
    assert "total" in caplog.text
    assert kept(load(tmp_path / "c")._content) == kept(state._content)
    monkeypatch.setattr("steep.compat.checkpoint.writer._MOST_BYTES", 1000)
    with pytest.raises(steep.DataError, match="1000 bytes"):
        save(state, tmp_path / "c", False, "onnxruntime")
    with pytest.raises(steep.DataError, match="file_format"):
        save(state, tmp_path / "c", False, "hdf5")


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    state = CheckpointState(everything())
    CheckpointState.save_checkpoint(state, tmp_path / "c", True)
    before = (tmp_path / "c").read_bytes()
    state.properties["a"] = 2
    (tmp_path / "folder").mkdir()
    with pytest.raises(steep.IoError):
        CheckpointState.save_checkpoint(state, tmp_path / "folder", True)

    def cut(array):
        raise steep.DataError("no memory")

    monkeypatch.setattr("steep.compat.checkpoint.schema.code_of", cut)
    with pytest.raises(steep.DataError):
        CheckpointState.save_checkpoint(state, tmp_path / "c", True, "onnxruntime")
    assert (tmp_path / "c").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "folder"]


def test_the_parameters_of_an_old_file_go_into_a_model(tmp_path):
    model, _ = old.model_and_data()
    (tmp_path / "three").write_bytes(old.THREE)
    checkpoints.load_checkpoint_to_model(tmp_path / "three", model)
    value = next(t for t in model.graph.initializer if t.name == "fc2.bias")
    held = files.load(tmp_path / "three").values["fc2.bias"]
    assert np.array_equal(np.frombuffer(value.raw_data, np.float32), held)
