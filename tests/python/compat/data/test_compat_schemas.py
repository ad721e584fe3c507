"""Nested data as tensors and a schema, maps of types, and functions for a trainer's checkpoints."""

import collections

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402
from steep.compat.data import data_schema, type_names  # noqa: E402
from steep.compat.optim.configs import AdamConfig  # noqa: E402
from steep.compat.trainer import checkpoints as trainer_checkpoints  # noqa: E402
from steep.compat.trainer.described_trainer import ORTTrainer  # noqa: E402

Pair = collections.namedtuple("Pair", "first second")
extract, restore = data_schema.extract_data_and_schema, data_schema.unflatten_data_using_schema


def test_tensors_are_taken_out_and_put_back():
    a, b, c = torch.ones(2, 3), torch.zeros(1), torch.tensor(3)
    ordered = collections.OrderedDict(z=c, y=None)
    data = {"two": Pair(a, [b, None]), "one": (ordered,)}
    tensors, schema = extract(data)
    assert [t is u for t, u in zip(tensors, (c, a, b), strict=True)] == [True] * 3
    stub = schema["two"].first
    assert (stub.tensor_idx, stub.name, stub.dtype, stub.shape_dims) == (
        1,
        "two_0",
        "torch.float32",
        2,
    )
    assert schema == extract(data)[1] != extract({"two": a})[1]
    back = restore([t + 1 for t in tensors], schema)
    assert isinstance(back["two"], Pair) and type(back["one"]) is tuple
    assert list(back["one"][0]) == ["z", "y"] and back["one"][0]["y"] is None
    assert torch.equal(back["two"].second[0], b + 1) and torch.equal(back["one"][0]["z"], c + 1)
    assert type(back["one"][0]) is collections.OrderedDict and data["one"][0]["z"] is c


def test_numbers_text_and_arrays_stay_or_become_tensors():
    array = np.ones(2)
    with pytest.warns(UserWarning, match="constant"):
        tensors, schema = extract([1, 2.5, True, "text", array])
    assert tensors == [] and schema[:4] == [1, 2.5, True, "text"] and schema[4] is array
    assert restore([], schema)[4] is array
    with pytest.warns(UserWarning, match="0_k"):
        tensors, schema = extract([{"k": True}], constant_as_tensor=True)
    assert tensors == [torch.tensor(True)] and schema[0]["k"].dtype == "<class 'bool'>_True"
    assert not data_schema.PrimitiveType.is_primitive_type(np.float64(1))


def test_what_does_not_fit_a_schema():
    with pytest.raises(steep.DataError, match="key_0"):
        extract({"key": [object()]})
    tensors, schema = extract([torch.ones(1), torch.ones(2)])
    with pytest.raises(steep.DataError, match="number 1 of the list"):
        restore(tensors[:1], schema)
    with pytest.raises(steep.DataError, match="NoneType"):
        restore([None, None], schema)


def test_types_have_the_numbers_of_onnx():
    for name, dtype, number in (
        ("Float", torch.float32, onnx.TensorProto.FLOAT),
        ("Long", torch.int64, onnx.TensorProto.INT64),
        ("BFloat16", torch.bfloat16, onnx.TensorProto.BFLOAT16),
    ):
        assert type_names.pytorch_type_to_onnx_dtype(name) == number
        assert type_names.pytorch_type_to_onnx_dtype(dtype) == number
        assert type_names.onnx_dtype_to_pytorch_dtype(number) is dtype
        assert type_names.pytorch_scalar_type_to_pytorch_dtype(name) is dtype
    with pytest.raises(steep.DataError, match="Float"):
        type_names.pytorch_type_to_onnx_dtype("float")
    with pytest.raises(steep.DataError, match="type"):
        type_names.onnx_dtype_to_pytorch_dtype(99)


def trainer():
    torch.manual_seed(0)
    description = {
        "inputs": [("x", ["n", 3]), ("y", ["n", 2])],
        "outputs": [("loss", [], True), ("out", ["n", 2])],
    }
    return ORTTrainer(torch.nn.Linear(3, 2), description, AdamConfig(lr=0.1), torch.nn.MSELoss())


@pytest.mark.filterwarnings("ignore:experimental_:DeprecationWarning")
def test_functions_for_checkpoints_of_a_trainer(tmp_path):
    x, y = torch.ones(4, 3), torch.ones(4, 2)
    ours, again, bare = trainer(), trainer(), trainer()
    ours.train_step(x, y)
    trainer_checkpoints.experimental_save_checkpoint(ours, tmp_path, checkpoint_state_dict={"a": 1})
    trainer_checkpoints.experimental_save_checkpoint(ours, tmp_path, checkpoint_state_dict={"a": 2})
    assert trainer_checkpoints.experimental_load_checkpoint(again, tmp_path) == {"a": 2}
    weights = trainer_checkpoints.aggregate_checkpoints([tmp_path / "ORT_checkpoint.ort.pt"])
    assert torch.equal(weights["weight"], ours.model.weight)
    state = trainer_checkpoints.experimental_state_dict(ours, include_optimizer_state=False)
    trainer_checkpoints.experimental_load_state_dict(bare, state)
    assert torch.equal(bare.model.weight, ours.model.weight)
    assert ours.train_step(x, y)[0] == again.train_step(x, y)[0] == bare.train_step(x, y)[0]
    assert torch.equal(again.model.weight, ours.model.weight)
    assert not torch.equal(bare.model.weight, ours.model.weight)  # whose moments began anew
    state = trainer_checkpoints.experimental_state_dict(ours)
    trainer_checkpoints.experimental_load_state_dict(bare, state)
    ours.train_step(x, y)
    bare.train_step(x, y)
    assert torch.equal(bare.model.weight, ours.model.weight)


def test_mistakes_with_checkpoints_are_named(tmp_path):
    with pytest.warns(DeprecationWarning, match="ORTTrainer.state_dict"):
        trainer_checkpoints.experimental_state_dict(trainer())
    with pytest.raises(steep.DataError, match="Linear"):
        trainer_checkpoints.experimental_state_dict(torch.nn.Linear(1, 1))
    for paths in ("a.pt", ["a.pt", "b.pt"], []):
        with pytest.raises(steep.DataError, match="list of 1 path"):
            trainer_checkpoints.aggregate_checkpoints(paths)
    with pytest.raises(FileNotFoundError):
        trainer_checkpoints.aggregate_checkpoints([tmp_path / "a.pt"])
    (tmp_path / "a.pt").write_bytes(b"no archive")
    with pytest.raises(steep.CheckpointError, match="not a checkpoint of an ORTTrainer"):
        trainer_checkpoints.aggregate_checkpoints([tmp_path / "a.pt"])
    with (
        pytest.warns(DeprecationWarning, match="save_checkpoint"),
        pytest.raises(steep.IoError, match="create it first"),
    ):
        trainer_checkpoints.experimental_save_checkpoint(trainer(), tmp_path / "none")
