"""com.microsoft.MatMulNBits: run, differentiated, and trained by adapters beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from steep_program import steep as program

import steep

RNG = np.random.default_rng(0)
K, N, BLOCK = 40, 6, 16
X = RNG.normal(0, 1, (7, 3, K)).astype(np.float32)
Y = RNG.normal(0, 1, (7, 3, N)).astype(np.float32)


def model_of(
    arrays: dict[str, Any], inputs: tuple[str, ...] = ("x", "w", "s"), **attributes: Any
) -> onnx.ModelProto:
    attributes = {"K": K, "N": N, "bits": 4, "block_size": BLOCK} | attributes
    nodes = [
        helper.make_node(
            "MatMulNBits", inputs, ["h"], name="mm", domain="com.microsoft", **attributes
        ),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "t", extent])
        for name, extent in (("x", K), ("y", N))
    )
    tensors = [numpy_helper.from_array(v, k) for k, v in arrays.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def arrays_of(bits: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(bits)
    return {
        "w": rng.integers(0, 256, (N, 3, BLOCK * bits // 8), np.uint8),
        "s": rng.uniform(0.01, 0.05, (N, 3)).astype(np.float32),
        "z": rng.integers(0, 256, (N, -(-3 * bits // 8)), np.uint8),
        "b": np.ones(N, np.float32),
    }


FULL = ("x", "w", "s", "z", "", "b")


def by_onnxruntime(model: onnx.ModelProto, x: np.ndarray = X) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def session(model: onnx.ModelProto, **options: Any) -> steep.TrainingSession:
    settings = {"loss": "mse", "optimizer": "adamw", "lr": 0.05, "lora_rank": 2}
    return steep.TrainingSession(model, **(settings | options))


@pytest.mark.parametrize("inputs", [("x", "w", "s"), FULL], ids=["plain", "full"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_adapters_beside_packed_numbers(bits: int, inputs: tuple[str, ...]) -> None:
    arrays = {k: v for k, v in arrays_of(bits).items() if k in inputs}
    model = model_of(arrays, inputs, bits=bits)
    own = session(model)
    assert own.adapted_names == ["w"]
    assert {k: v.numpy().shape for k, v in own.weights().items()} == {
        "w.lora_A": (K, 2),
        "w.lora_B": (2, N),
    }
    start = own.eval(X, Y)
    np.testing.assert_allclose(start.outputs[0].numpy(), by_onnxruntime(model), 1e-4, 1e-5)
    losses = [own.step(X, Y).loss for _ in range(10)]
    assert losses[-1] < losses[0] == pytest.approx(start.loss)
    here = own.eval(X).outputs[0].numpy()
    for merge in (True, False):  # never merged: the sum has no packed form
        made = onnx.load_from_string(own.export_onnx_bytes(merge_adapters=merge))
        stays = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
        for name, value in arrays.items():
            np.testing.assert_array_equal(stays[name], value)
        np.testing.assert_allclose(by_onnxruntime(made), here, 1e-4, 1e-5)
    again = steep.TrainingSession(made, loss="mse", trainable=["*.lora_*"])
    assert again.eval(X, Y).loss == pytest.approx(own.eval(X, Y).loss)


def test_gradients_are_those_beside_floats() -> None:
    """The same product with the numbers as floats."""
    arrays = {k: v for k, v in arrays_of().items() if k in ("w", "s")}
    own = session(model_of(arrays))
    numbers = np.stack([arrays["w"] & 15, arrays["w"] >> 4], -1).reshape(N, 3, BLOCK)
    floats = (numbers.astype(np.float32) - 8) * arrays["s"][:, :, None]
    plain = model_of({"w": floats.reshape(N, -1)[:, :K].T.copy()})
    plain.graph.node[0].CopyFrom(helper.make_node("MatMul", ["x", "w"], ["h"]))
    other = session(plain)
    for _ in range(5):
        assert own.step(X, Y).loss == pytest.approx(other.step(X, Y).loss, rel=1e-5)


def test_a_file_of_onnxruntimes_quantiser(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    arrays = {
        "up": rng.normal(0, 0.3, (K, 32)).astype(np.float32),
        "down": rng.normal(0, 0.3, (32, N)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "down"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "t", extent])
        for name, extent in (("x", K), ("y", N))
    )
    tensors = [numpy_helper.from_array(v, k) for k, v in arrays.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    quantiser = MatMulNBitsQuantizer(plain, block_size=16, is_symmetric=False, accuracy_level=4)
    quantiser.process()
    model = quantiser.model.model
    assert [n.op_type for n in model.graph.node].count("MatMulNBits") == 2
    path, data, out = tmp_path / "m.onnx", tmp_path / "d.npz", tmp_path / "o.onnx"
    onnx.save(model, path)
    np.savez(data, x=X, label=Y)
    assert "can be trained" in program("check", path, "--loss", "mse", "--lora", 2)
    text = program(
        *("train", path, "--data", data, "--loss", "mse", "--epochs", 5, "--lr", 0.05),
        *("--lora", 2, "--targets", "*down*", "--out", out),
    )
    assert "adapters of rank 2: down" in text
    made = onnx.load(out)
    before = {t.name: t for t in model.graph.initializer}
    assert all(t == before[t.name] for t in made.graph.initializer if t.name in before)
    ours = steep.InferenceSession(out).run(None, {"x": X})[0]
    assert not np.allclose(ours, by_onnxruntime(model), atol=1e-2)
    for node in made.graph.node:  # ONNX Runtime makes int8 of x with accuracy_level = 4
        kept = [a for a in node.attribute if a.name != "accuracy_level"]
        del node.attribute[:]
        node.attribute.extend(kept)
    np.testing.assert_allclose(ours, by_onnxruntime(made), 1e-4, 1e-5)


def test_check_counts_adapters() -> None:
    arrays = {k: v for k, v in arrays_of().items() if k in ("w", "s")}
    assert steep.check(model_of(arrays), loss="mse") != []
    assert steep.check(model_of(arrays), loss="mse", lora_rank=2) == []
    (obstacle,) = steep.check(model_of(arrays), loss="mse", lora_rank=2, lora_targets=["s"])
    assert obstacle.node == "s" and "right operand" in obstacle.what


def test_numbers_stay_packed_in_memory() -> None:
    extent = 256
    arrays = {
        "w": np.random.default_rng(1).integers(0, 256, (extent, 16, 8), np.uint8),
        "s": np.full((extent, 16), 0.01, np.float32),
    }
    model = model_of(arrays, K=extent, N=extent)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = extent
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = extent
    own = session(model)
    x = np.ones((1, 1, extent), np.float32)
    assert own.plan(x, x).constant_bytes < arrays["w"].size
    with pytest.raises(steep.ModelError, match="quantised weights beside adapters"):
        own.save_artifact("unwritten", (x, x))


def test_without_adapters_scales_are_not_weights() -> None:
    for zero in ({}, {"z": np.full((N, 3), 7.5, np.float32)}):
        arrays = {k: v for k, v in arrays_of().items() if k != "z"} | zero
        inputs = tuple(n if n in {"x", *arrays} else "" for n in FULL)
        own = session(model_of(arrays, inputs), lora_rank=0)
        assert own.parameter_names == ["b"]
        assert {c.name for c in own.left_out} >= {"s", *zero}
        losses = [own.step(X, Y).loss for _ in range(5)]
        assert losses[-1] < losses[0]


BIG = 2**62
HOSTILE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"K": 0}, {}, "K of 1 to"),
    ({"K": -1}, {}, "K of 1 to"),
    ({"N": BIG}, {}, "N of 1 to"),
    ({"K": BIG, "block_size": BIG}, {}, "K of 1 to"),
    ({"K": 2**30}, {}, "B "),
    ({"N": 2**30}, {}, "B "),
    ({"K": 49}, {}, "B "),
    ({"block_size": 0}, {}, "block_size of 16 to"),
    ({"block_size": 24}, {}, "a power of 2 as block_size"),
    ({"block_size": 2**30}, {}, "B "),
    ({"bits": 3}, {}, "bits of 2, 4 or 8"),
    ({"bits": 0}, {}, "bits of 2, 4 or 8"),
    ({"bits": 8}, {}, "B "),
    ({"bits": 4.0}, {}, "bits"),
    ({"weight_prepacked": 1}, {}, "weight_prepacked = 0"),
    ({"more": 1}, {}, "more"),
    ({}, {"w": np.zeros((N, 24), np.uint8)}, "B "),
    ({}, {"w": np.zeros((N, 3, 8), np.int8)}, "uint8"),
    ({}, {"w": np.zeros((), np.uint8)}, "B "),
    ({}, {"s": np.zeros((N, 2), np.float32)}, "scales "),
    ({}, {"s": np.zeros((N, 3), np.float16)}, "float32"),
    ({}, {"s": np.zeros((N, 3), np.int32)}, "float32"),
    ({}, {"z": np.zeros((N, 3), np.uint8)}, "zero_points "),
    ({}, {"z": np.zeros((N, 2), np.int32)}, "uint8 or float32"),
    ({}, {"g": np.zeros(39, np.int32)}, "g_idx "),
    ({}, {"g": np.zeros(K, np.int64)}, "int32"),
    ({}, {"b": np.zeros((1, N), np.float32)}, "bias "),
    ({}, {"b": np.zeros(1, np.float32)}, "bias "),
]


@pytest.mark.parametrize(("attributes", "arrays", "says"), HOSTILE)
def test_what_does_not_fit_is_refused(
    attributes: dict[str, Any], arrays: dict[str, Any], says: str
) -> None:
    arrays = arrays_of() | arrays
    inputs = ("x", "w", "s", "z", "g" if "g" in arrays else "", "b")
    model = model_of(arrays, inputs, **attributes)
    for open_model in (steep.InferenceSession, session):
        with pytest.raises(steep.ModelError):
            open_model(model)
    with pytest.raises(steep.ModelError) as caught:
        steep.InferenceSession(model)
    text = str(caught.value)
    assert says in text and caught.value.node == "mm", text
    with pytest.raises(steep.ModelError):
        session(model, lora_targets=["w"])


@pytest.mark.parametrize("group", [-1, 3, 2**31 - 1])
def test_a_group_that_does_not_exist(group: int) -> None:
    arrays = arrays_of() | {"g": np.full(K, group, np.int32)}
    model = model_of(arrays, ("x", "w", "s", "z", "g", "b"))
    with pytest.raises(steep.Error):
        steep.InferenceSession(model).run(None, {"x": X})
    with pytest.raises(steep.Error):
        session(model).step(X, Y)


def test_weights_that_have_no_one_extent() -> None:
    arrays = {k: v for k, v in arrays_of().items() if k in ("w", "s")}
    twice = model_of(arrays)
    other = helper.make_node(
        *("MatMulNBits", ["v", "w", "s"], ["u"], "other", "", "com.microsoft"),
        **{"K": K - 1, "N": N, "bits": 4, "block_size": BLOCK},
    )
    twice.graph.input.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, ["n", K - 1]))
    twice.graph.output.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, ["n", N]))
    twice.graph.node.append(other)
    read = model_of(arrays)
    read.graph.node.append(helper.make_node("Cast", ["w"], ["c"], name="read", to=1))
    read.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, None))
    left = model_of(arrays, ("w", "x", "s"))
    for model, says in (
        (twice, "is multiplied as two matrices"),
        (read, "is an output|is read by 'read'"),
        (left, "no right operand|has 3 axes"),
    ):
        with pytest.raises(steep.ModelError, match=says):
            session(model, lora_targets=["w"], output="y")
