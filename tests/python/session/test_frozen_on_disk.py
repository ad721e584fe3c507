"""Frozen weights that stay in the model's file (``offload="frozen"``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep

pytestmark = pytest.mark.filterwarnings("ignore:Several layers read")
WIDTH, LAYERS, BLOCK = 128, 6, 32
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1, 4, WIDTH)).astype(np.float32)
Y = RNG.normal(size=(1, 4, WIDTH)).astype(np.float32)
DTYPES = {"INT4": 0.5, "INT8": 1, "FLOAT": 4}  # bytes of a number


def net(kind: str, rows: int = WIDTH) -> onnx.ModelProto:
    """Layers tanh(x · W), where the last one has the weight of the first, too."""
    nodes, tensors, last = [], [], "x"
    for i in range(LAYERS):
        name = f"w{i}"
        if kind == "FLOAT":
            values = RNG.normal(0, 0.1, (rows, WIDTH)).astype(np.float32)
            tensors.append(numpy_helper.from_array(values, name))
        else:
            count = rows * WIDTH // (2 if kind == "INT4" else 1)
            numbers = RNG.integers(0, 256, count, np.uint8).tobytes()
            dtype = getattr(TensorProto, kind)
            tensors.append(helper.make_tensor(name, dtype, [rows, WIDTH], numbers, raw=True))
            scales = RNG.uniform(0.001, 0.002, (rows // BLOCK, WIDTH)).astype(np.float32)
            tensors.append(numpy_helper.from_array(scales, f"s{i}"))
    for i in [*range(LAYERS), 0]:
        weight = f"w{i}"
        if kind != "FLOAT":
            weight = f"d{len(nodes)}"
            how = {"axis": 0, "block_size": BLOCK}
            nodes.append(helper.make_node("DequantizeLinear", [f"w{i}", f"s{i}"], [weight], **how))
        nodes.append(helper.make_node("MatMul", [last, weight], [f"h{len(nodes)}"]))
        last = nodes[-1].output[0]
        nodes.append(helper.make_node("Tanh", [last], [f"t{len(nodes)}"]))
        last = nodes[-1].output[0]
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, WIDTH]) for n in "xy")
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def saved(folder: Path, kind: str) -> Path:
    path = folder / "model.onnx"
    onnx.save(net(kind), path, save_as_external_data=True, location="model.data")
    return path


def session(model: Any, **options: Any) -> steep.TrainingSession:
    settings: dict[str, Any] = {"loss": "mse", "optimizer": "adamw", "lr": 0.05, "lora_rank": 2}
    return steep.TrainingSession(model, **(settings | options))


def trained(own: steep.TrainingSession) -> list[bytes]:
    for _ in range(3):
        own.step(X, Y)
    names = [*own.parameter_names, *own.optimizer_state_names]
    return [np.array(own.state(name)).tobytes() for name in names]


@pytest.mark.parametrize("limit", ["", "least"])
@pytest.mark.parametrize("kind", DTYPES)
def test_results_are_the_same_bits(kind: str, limit: str, tmp_path: Path) -> None:
    path = saved(tmp_path, kind)
    plain = session(path, memory_limit=limit)
    frozen = session(path, memory_limit=limit, offload="frozen")
    assert trained(plain) == trained(frozen)
    np.testing.assert_array_equal(
        np.asarray(plain.eval(X).outputs[0]), np.asarray(frozen.eval(X).outputs[0])
    )
    for options in ({}, {"merge_adapters": False}):
        assert plain.export_onnx_bytes(**options) == frozen.export_onnx_bytes(**options)


@pytest.mark.parametrize("kind", DTYPES)
def test_a_weight_takes_memory_while_it_is_used(kind: str, tmp_path: Path) -> None:
    path = saved(tmp_path, kind)
    plain = session(path, memory_limit="least").plan(X, Y)
    frozen = session(path, memory_limit="least", offload="frozen").plan(X, Y)
    one = int(DTYPES[kind] * WIDTH * WIDTH)
    assert plain.run_bytes - frozen.run_bytes >= (LAYERS - 2) * one


def test_checkpoints_go_from_one_to_the_other(tmp_path: Path) -> None:
    path = saved(tmp_path, "INT4")
    first, second = session(path, offload="frozen"), session(path)
    first.step(X, Y)
    first.save_checkpoint(tmp_path / "checkpoint")
    second.load_checkpoint(tmp_path / "checkpoint")
    assert trained(first) == trained(second)


def test_a_file_that_changes_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path, "INT4")
    data = tmp_path / "model.data"
    before = data.read_bytes()
    own = session(path, offload="frozen")
    own.step(X, Y)
    weights = trained(own)
    with data.open("r+b") as file:
        file.write(before[:1])
    with pytest.raises(steep.DataError, match="was written to while its weights were in use"):
        own.step(X, Y)
    own = session(path, offload="frozen")
    with data.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(steep.DataError, match="shorter than at first"):
        own.step(X, Y)
    assert weights


def test_a_file_that_is_replaced_stays_readable(tmp_path: Path) -> None:
    path = saved(tmp_path, "INT4")
    plain, frozen = session(path), session(path, offload="frozen")
    other = tmp_path / "other"
    other.write_bytes(b"another file")
    other.rename(tmp_path / "model.data")
    assert trained(plain) == trained(frozen)


def test_a_failed_step_changes_no_weight(tmp_path: Path) -> None:
    path = saved(tmp_path, "INT4")
    own = session(path, offload="frozen")
    own.step(X, Y)
    before = np.array(own.state("w0.lora_B")).tobytes()
    (tmp_path / "model.data").write_bytes((tmp_path / "model.data").read_bytes())
    with pytest.raises(steep.DataError):
        own.step(X, Y)
    assert np.array(own.state("w0.lora_B")).tobytes() == before


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, "FLOAT")
    with pytest.raises(steep.ModelError, match="No weight can stay in its file"):
        session(net("INT4"), offload="frozen")
    with pytest.raises(steep.ModelError, match="no lora_rank"):
        session(path, offload="frozen", lora_rank=0)
    with pytest.raises(steep.ModelError, match="no offload_folder"):
        session(path, offload="frozen", offload_folder=tmp_path)
    with pytest.raises(steep.ModelError, match="An artifact cannot hold"):
        session(path, offload="frozen").save_artifact(tmp_path / "unwritten", (X, Y))


@pytest.mark.parametrize("offload", ["moments", "frozen"])
@pytest.mark.parametrize("kind", DTYPES)
def test_a_frozen_weight_is_no_state_of_the_training(
    kind: str, offload: str, tmp_path: Path
) -> None:
    own = session(saved(tmp_path, kind), offload=offload)
    for name in ("w0", "s0"):
        with pytest.raises(steep.ModelError, match="no such parameter or moment"):
            own.state(name)
