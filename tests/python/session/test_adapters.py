"""Low-rank adapters: which weights get them, what they compute, and how they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from steep_program import steep as program

import steep

Nodes = list[onnx.NodeProto]
RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (6, 5, 8)).astype(np.float32)
Y = RNG.normal(0, 1, (6, 5, 4)).astype(np.float32)
RANK = 3


def proto(
    nodes: Nodes,
    arrays: dict[str, Any],
    features: tuple[int, int] = (8, 4),
    opset: int = 21,
    ends: int = TensorProto.FLOAT,
    batch: tuple[str | int, ...] = ("n", "t"),
) -> onnx.ModelProto:
    tensors = [
        v if isinstance(v, TensorProto) else numpy_helper.from_array(v, k)
        for k, v in arrays.items()
    ]
    x, y = (
        helper.make_tensor_value_info(name, ends, [*batch, n])
        for name, n in zip("xy", features, strict=True)
    )
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def matrix(rows: int, columns: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.5, (rows, columns)).astype(np.float32)


def two_layers() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "body.w"], ["h"]),
        helper.make_node("Add", ["h", "body.b"], ["hb"]),
        helper.make_node("Tanh", ["hb"], ["t"]),
        helper.make_node("MatMul", ["t", "head.w"], ["y"]),
    ]
    arrays = {"body.w": matrix(8, 6), "body.b": np.ones(6, np.float32), "head.w": matrix(6, 4, 2)}
    return proto(nodes, arrays)


def session(model: onnx.ModelProto, **options: Any) -> steep.TrainingSession:
    settings = {"loss": "mse", "optimizer": "adamw", "lr": 0.05, "lora_rank": RANK}
    return steep.TrainingSession(model, **(settings | options))


def arrays_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def written(own: steep.TrainingSession, **options: bool) -> onnx.ModelProto:
    model = onnx.load_from_string(own.export_onnx_bytes(**options))
    onnx.checker.check_model(model, full_check=True)
    return model


def trained(model: onnx.ModelProto, steps: int = 4, **options: Any) -> steep.TrainingSession:
    own = session(model, **options)
    for _ in range(steps):
        own.step(X, Y)
    return own


def by_reference(model: onnx.ModelProto, x: np.ndarray = X) -> np.ndarray:
    return np.asarray(ReferenceEvaluator(model).run(None, {"x": x})[0])


def test_they_compute_what_a_graph_written_by_hand_computes() -> None:
    own = session(two_layers(), lora_alpha=6, seed=5)
    start = {k: v.numpy().copy() for k, v in own.weights().items()}
    nodes = [
        helper.make_node("MatMul", ["x", "body.w"], ["h0"]),
        helper.make_node("MatMul", ["x", "body.w.lora_A"], ["a0"]),
        helper.make_node("Mul", ["a0", "scale"], ["s0"]),
        helper.make_node("MatMul", ["s0", "body.w.lora_B"], ["b0"]),
        helper.make_node("Add", ["h0", "b0"], ["h"]),
        helper.make_node("Add", ["h", "body.b"], ["hb"]),
        helper.make_node("Tanh", ["hb"], ["t"]),
        helper.make_node("MatMul", ["t", "head.w"], ["h1"]),
        helper.make_node("MatMul", ["t", "head.w.lora_A"], ["a1"]),
        helper.make_node("Mul", ["a1", "scale"], ["s1"]),
        helper.make_node("MatMul", ["s1", "head.w.lora_B"], ["b1"]),
        helper.make_node("Add", ["h1", "b1"], ["y"]),
    ]
    arrays = arrays_of(two_layers()) | start | {"scale": np.float32(2)}
    other = session(proto(nodes, arrays), lora_rank=0, trainable=["*.lora_*"])
    assert {*own.parameter_names} == {*other.parameter_names} == {*start}
    for _ in range(6):
        assert own.step(X, Y).loss == pytest.approx(other.step(X, Y).loss, rel=1e-6)
    for name, value in own.weights().items():
        np.testing.assert_allclose(value.numpy(), other.weights()[name].numpy(), rtol=1e-5)


def test_initial_values_are_the_authors() -> None:
    weights = {k: v.numpy() for k, v in session(two_layers()).weights().items()}
    assert {k: v.shape for k, v in weights.items()} == {
        "body.w.lora_A": (8, RANK),
        "body.w.lora_B": (RANK, 6),
        "head.w.lora_A": (6, RANK),
        "head.w.lora_B": (RANK, 4),
    }
    for name, value in weights.items():
        bound = len(value) ** -0.5
        if name.endswith("A"):
            assert bound / 2 < np.abs(value).max() <= bound and abs(value.mean()) < bound / 2
        else:
            assert not value.any()
    again = session(two_layers()).weights()
    other = session(two_layers(), seed=1).weights()
    np.testing.assert_array_equal(again["head.w.lora_A"].numpy(), weights["head.w.lora_A"])
    assert not np.array_equal(other["head.w.lora_A"].numpy(), weights["head.w.lora_A"])
    plain = session(two_layers(), lora_rank=0).eval(X, Y)
    assert session(two_layers()).eval(X, Y).loss == plain.loss  # B is zero


def test_gradients_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    own = trained(two_layers(), lora_alpha=1.5)
    arrays = arrays_of(two_layers()) | {k: v.numpy() for k, v in own.weights().items()}
    values = {k: torch.tensor(v, requires_grad="lora" in k) for k, v in arrays.items()}

    def product(x: Any, name: str) -> Any:
        adapter = x @ values[f"{name}.lora_A"] @ values[f"{name}.lora_B"]
        return x @ values[name] + 1.5 / RANK * adapter

    hidden = torch.tanh(product(torch.tensor(X), "body.w") + values["body.b"])
    torch.nn.functional.mse_loss(product(hidden, "head.w"), torch.tensor(Y)).backward()
    _, gradients = own.gradients(X, Y)
    assert len(gradients) == 4
    for name, gradient in gradients.items():
        np.testing.assert_allclose(
            gradient.numpy(), values[name].grad.numpy(), rtol=1e-4, atol=1e-6
        )


def test_only_adapters_are_trained_and_have_states() -> None:
    own = trained(two_layers())
    assert own.adapted_names == ["body.w", "head.w"]
    assert {*own.parameter_names} == {f"{w}.lora_{m}" for w in own.adapted_names for m in "AB"}
    assert len(own.optimizer_state_names) == 2 * 4
    plan = own.plan(X, Y)
    elements = RANK * (8 + 6 + 6 + 4)
    assert (plan.parameter_bytes, plan.optimizer_bytes) == (4 * elements, 8 * elements)
    apart = arrays_of(written(own, merge_adapters=False))
    for name, value in arrays_of(two_layers()).items():
        np.testing.assert_array_equal(apart[name], value)
    more = trained(two_layers(), trainable=["body.b"])
    assert {*more.parameter_names} - {*own.parameter_names} == {"body.b"}
    assert not np.array_equal(arrays_of(written(more))["body.b"], np.ones(6, np.float32))
    head = trained(two_layers(), trainable=["head.*"])
    assert head.adapted_names == ["body.w"] and "head.w" in head.parameter_names


def products() -> dict[str, onnx.ModelProto]:
    """Ways to multiply by a weight [8, 4]."""
    w, v = matrix(8, 4), matrix(4, 8)
    flat = {"batch": ("n",)}
    gemm = {"alpha": 0.5, "beta": 2.0}

    def node(op: str, inputs: list[str], output: str = "y", **attributes: Any) -> Any:
        return helper.make_node(op, inputs, [output], **attributes)

    bias = {"b": np.ones(4, np.float32)}
    turned = node("Transpose", ["w"], "v", perm=[1, 0])
    default = node("Transpose", ["w"], "v")
    shared = [
        node("MatMul", ["x", "w"], "p"),
        node("Identity", ["w"], "same"),
        node("MatMul", ["x", "same"], "q"),
        node("Mul", ["p", "q"]),
    ]
    constant = node("Constant", [], "w", value=numpy_helper.from_array(w))
    doubles = [
        node("Cast", ["x"], "d", to=TensorProto.DOUBLE),
        node("MatMul", ["d", "w"], "p"),
        node("Cast", ["p"], to=TensorProto.FLOAT),
    ]
    return {
        "MatMul": proto([node("MatMul", ["x", "w"])], {"w": w}),
        "Gemm": proto([node("Gemm", ["x", "w", "b"], **gemm)], {"w": w} | bias, **flat),
        "Gemm, transB": proto(
            [node("Gemm", ["x", "w", "b"], transB=1, **gemm)], {"w": v} | bias, **flat
        ),
        "Gemm, transA": proto(
            [node("Transpose", ["x"], "xt"), node("Gemm", ["xt", "w"], transA=1, alpha=2.0)],
            {"w": w},
            **flat,
        ),
        "Transpose": proto([turned, node("MatMul", ["x", "v"])], {"w": v}),
        "Transpose, twice": proto([default, node("Gemm", ["x", "v"], transB=1)], {"w": w}, **flat),
        "two products": proto(shared, {"w": w}),
        "Constant": proto([constant, node("MatMul", ["x", "w"])], {}),
        "float64": proto(doubles, {"w": w.astype(np.float64)}),
        "opset 13": proto([node("MatMul", ["x", "w"])], {"w": w}, opset=13),
    }


@pytest.mark.parametrize("alpha", [None, 4.5])
@pytest.mark.parametrize("kind", products())
def test_merged_and_apart_compute_the_same(kind: str, alpha: float | None) -> None:
    model = products()[kind]
    flat = len(model.graph.input[0].type.tensor_type.shape.dim) == 2
    x, y = (X[:, 0], Y[:, 0]) if flat else (X, Y)
    own = session(model, lora_alpha=alpha)
    before = own.eval(x, y)
    np.testing.assert_allclose(before.outputs[0].numpy(), by_reference(model, x), 1e-4, 1e-4)
    losses = [own.step(x, y).loss for _ in range(8)]
    assert losses[-1] < losses[0] == pytest.approx(before.loss)
    here = own.eval(x).outputs[0].numpy()
    merged, apart = written(own), written(own, merge_adapters=False)
    for other in (merged, apart):
        np.testing.assert_allclose(by_reference(other, x), here, 1e-4, 1e-5)
        outputs = steep.InferenceSession(other.SerializeToString()).run(None, {"x": x})
        np.testing.assert_allclose(np.asarray(outputs[0]), here, 1e-4, 1e-5)
    assert [n.op_type for n in merged.graph.node] == [n.op_type for n in model.graph.node]
    assert {t.name for t in apart.graph.initializer} >= {"w.lora_A", "w.lora_B"}


def quantised(kind: int, block: int = 0) -> onnx.ModelProto:
    numbers = np.random.default_rng(3).integers(-7, 8, (8, 4))
    packed = helper.make_tensor("w", kind, [8, 4], numbers.flatten())
    scale = np.full((8 // block, 4) if block else 4, 0.1, np.float32)
    how = {"axis": 0, "block_size": block} if block else {"axis": 1}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], **how),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    return proto(nodes, {"w": packed, "s": scale})


@pytest.mark.parametrize("block", [0, 4])
@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT8"])
def test_a_quantised_base_stays_packed(kind: str, block: int) -> None:
    model = quantised(getattr(TensorProto, kind), block)
    own = session(model)
    losses = [own.step(X, Y).loss for _ in range(8)]
    assert losses[-1] < losses[0]
    assert {*own.parameter_names} == {"w.lora_A", "w.lora_B"}
    for made in (written(own), written(own, merge_adapters=False)):
        stays = {t.name: t for t in made.graph.initializer}
        assert stays["w"] == model.graph.initializer[0]
        np.testing.assert_allclose(by_reference(made), own.eval(X).outputs[0].numpy(), 1e-4, 1e-5)


def test_a_quantised_base_is_unpacked_in_each_run() -> None:
    """Nothing is folded from it: no plan has a constant of its floats."""
    extent = 256
    packed = np.random.default_rng(3).integers(-9, 9, (extent, extent), np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    arrays = {"w": packed, "s": np.full(extent, 0.01, np.float32)}
    own = session(proto(nodes, arrays, (extent, extent)))
    x = np.ones((1, 1, extent), np.float32)
    assert own.plan(x, x).constant_bytes < packed.size
    with pytest.raises(steep.ModelError, match="quantised weights beside adapters"):
        own.save_artifact("unwritten", (x, x))


def test_an_int4_base_takes_half_a_byte_a_number() -> None:
    """Equal numbers of 4 and 8 bits: the same step, in less memory."""
    extent, layers = 256, 8
    numbers = np.random.default_rng(3).integers(-8, 8, (layers, extent, extent))
    nodes, last = [], "x"
    for i in range(layers):
        y = "y" if i + 1 == layers else f"y{i}"
        nodes.append(helper.make_node("DequantizeLinear", [f"w{i}", "s"], [f"d{i}"], axis=1))
        nodes.append(helper.make_node("MatMul", [last, f"d{i}"], [y]))
        last = y
    x = np.random.default_rng(4).normal(0, 1, (1, 1, extent)).astype(np.float32)
    losses, run_bytes = [], []
    for kind in (TensorProto.INT4, TensorProto.INT8):
        arrays = {"s": np.full(extent, 0.01, np.float32)}
        for i in range(layers):
            values = numbers[i].flatten()
            arrays[f"w{i}"] = helper.make_tensor(f"w{i}", kind, [extent, extent], values)
        own = session(proto(nodes, arrays, (extent, extent)))
        run_bytes.append(own.plan(x, x).run_bytes)
        losses.append([own.step(x, x).loss for _ in range(4)])
    assert losses[0] == losses[1]
    saved = layers * extent**2 // 2
    assert run_bytes[1] - run_bytes[0] > saved - 2 * extent**2  # one is unpacked at a time


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_weights_of_16_bits(kind: str) -> None:
    dtype = np.float16 if kind == "float16" else ml_dtypes.bfloat16
    ends = TensorProto.FLOAT16 if kind == "float16" else TensorProto.BFLOAT16
    w = matrix(8, 4).astype(dtype)
    model = proto([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": w}, ends=ends)
    x, y = X.astype(dtype), Y.astype(dtype)
    own = session(model)
    losses = [own.step(x, y).loss for _ in range(8)]
    assert losses[-1] < losses[0]
    a, b = (own.weights()[f"w.lora_{m}"].numpy().astype(np.float64) for m in "AB")
    merged = arrays_of(written(own))["w"]
    assert merged.dtype == dtype
    expected = (w.astype(np.float64) + a @ b).astype(dtype)
    np.testing.assert_array_equal(merged.astype(np.float32), expected.astype(np.float32))
    wide = [
        helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    cast = trained(proto(wide, {"w": w}))  # A and B have the product's type, and do not fit into w
    assert cast.weights()["w.lora_A"].numpy().dtype == np.float32
    assert {"w.lora_A", "w.lora_B"} <= {*arrays_of(written(cast))}


def test_averages_are_merged(tmp_path: Path) -> None:
    own = trained(two_layers(), ema_decay=0.5)
    state = own.optimizer_state()
    a, b = (state[f"ema/head.w.lora_{m}"].numpy() for m in "AB")
    expected = arrays_of(two_layers())["head.w"] + a @ b
    np.testing.assert_allclose(arrays_of(written(own))["head.w"], expected, 1e-5)


def test_checkpoints_hold_adapters_alone(tmp_path: Path) -> None:
    one = trained(two_layers(), seed=3)
    one.save_checkpoint(tmp_path / "c")
    held = b"".join(p.read_bytes() for p in sorted((tmp_path / "c").rglob("*")) if p.is_file())
    assert b"body.w.lora_A" in held and b'"body.w"' not in held
    other = session(two_layers())
    other.load_checkpoint(tmp_path / "c")
    for s in (one, other):
        s.step(X, Y)
    for name, value in one.weights().items():
        np.testing.assert_array_equal(value.numpy(), other.weights()[name].numpy())
    assert written(one) == written(other)
    for options in ({"lora_rank": 2}, {"lora_rank": 0}, {"lora_targets": ["head.w"]}):
        with pytest.raises(steep.CheckpointError):
            session(two_layers(), **options).load_checkpoint(tmp_path / "c")


def test_weights_from_outside_and_external_data(tmp_path: Path) -> None:
    expected = trained(two_layers())
    path = tmp_path / "m.onnx"
    onnx.save(two_layers(), path, save_as_external_data=True, location="d", size_threshold=0)
    own = steep.TrainingSession(path, loss="mse", lr=0.05, lora_rank=RANK)
    arrays = arrays_of(two_layers())
    bare = two_layers()
    for tensor in bare.graph.initializer:
        tensor.ClearField("raw_data")
    fed = session(bare, weights={k: v.copy() for k, v in arrays.items()})
    for s in (own, fed):
        for _ in range(4):
            s.step(X, Y)
    assert arrays_of(written(own)).keys() == arrays.keys()
    for s in (own, fed):
        for merge in (True, False):
            made = arrays_of(written(s, merge_adapters=merge))
            for name, value in arrays_of(written(expected, merge_adapters=merge)).items():
                np.testing.assert_array_equal(made[name], value)
    own.export_onnx(tmp_path / "apart.onnx", merge_adapters=False)
    again = steep.TrainingSession(tmp_path / "apart.onnx", loss="mse", trainable=["*.lora_*"])
    assert {*again.parameter_names} == {*own.parameter_names}  # goes on from the file
    assert again.eval(X, Y).loss == own.eval(X, Y).loss


def test_for_inference_folds_what_was_merged() -> None:
    statistics = {k: np.ones(4, np.float32) * i for i, k in enumerate("abcd", 1)}
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["g"]),
        helper.make_node("BatchNormalization", ["g", *"abcd"], ["y"]),
    ]
    model = proto(nodes, {"w": matrix(8, 4)} | statistics, batch=("n",))
    own = session(model)
    for _ in range(4):
        own.step(X[:, 0], Y[:, 0])
    folded = written(own, for_inference=True)
    assert [n.op_type for n in folded.graph.node] == ["Gemm"]
    here = own.eval(X[:, 0]).outputs[0].numpy()
    np.testing.assert_allclose(by_reference(folded, X[:, 0]), here, 1e-4, 1e-5)


def tied() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Cast", ["x"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["h"]),
        helper.make_node("Transpose", ["table"], ["v"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    return proto(nodes, {"table": matrix(9, 5), "w": matrix(5, 5)}, (4, 9))


def test_targets() -> None:
    both = session(two_layers(), lora_targets=["body.*", "head.w"]).adapted_names
    assert both == ["body.w", "head.w"]
    assert session(two_layers(), lora_targets=["*"]).adapted_names == both
    assert session(two_layers(), lora_targets=["h*"]).adapted_names == ["head.w"]
    assert session(two_layers(), frozen=["head.*"]).adapted_names == ["body.w"]
    assert session(tied()).adapted_names == ["w"]
    bad: list[tuple[onnx.ModelProto, dict[str, Any], str]] = [
        (two_layers(), {"lora_targets": ["none"]}, "no such initializer"),
        (two_layers(), {"lora_targets": ["none*"]}, "no name has this pattern"),
        (two_layers(), {"lora_targets": ["body.b"]}, "body.b is no matrix, but has 1 axis"),
        (two_layers(), {"lora_targets": ["*.b"]}, "body.b is no matrix"),
        (two_layers(), {"lora_targets": ["head.w"], "frozen": ["head.w"]}, "itself, or frozen"),
        (two_layers(), {"frozen": ["*"]}, "No weight can have an adapter"),
        (two_layers(), {"frozen": ["*.lora_A"]}, "One half of an adapter is frozen"),
        (two_layers(), {"lora_rank": 5}, r"at most 4: the weight is \[6, 4\]"),
        (two_layers(), {"lora_rank": -1}, "out of range"),
        (two_layers(), {"lora_alpha": 0.0}, "out of range"),
        (two_layers(), {"lora_alpha": float("nan")}, "out of range"),
        (two_layers(), {"lora_rank": 0, "lora_targets": ["*"]}, "but no rank"),
        (two_layers(), {"lora_rank": 0, "lora_alpha": 1.0}, "but no rank"),
        (tied(), {"lora_targets": ["table"]}, r"is read by 'e' \(Gather\)"),
    ]
    for model, options, says in bad:
        with pytest.raises(steep.ModelError, match=says):
            session(model, **options)
    apart = written(session(two_layers()), merge_adapters=False)
    with pytest.raises(steep.ModelError, match="has an adapter in the file"):
        session(apart, lora_targets=["head.w"])


def odd_uses() -> dict[str, tuple[onnx.ModelProto, str]]:
    """Models with a weight w that cannot have an adapter, and the reason."""
    w = {"w": matrix(8, 8)}

    def made(*nodes: Any, **more: Any) -> onnx.ModelProto:
        return proto(list(nodes), w | more, (8, 8))

    node = helper.make_node
    output = made(node("MatMul", ["x", "w"], ["y"]))
    output.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [8, 8]))
    return {
        "left": (made(node("MatMul", ["w", "x"], ["y"])), "is no right operand"),
        "both": (
            made(node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "w"], ["y"])),
            r"is read by 'y' \(Add\)",
        ),
        "turned": (
            made(
                node("MatMul", ["x", "w"], ["p"]),
                node("Transpose", ["w"], ["v"], perm=[1, 0]),
                node("MatMul", ["p", "v"], ["y"]),
            ),
            "both as it is and transposed",
        ),
        "an output": (output, "is an output of the model"),
        "three axes": (
            proto([node("MatMul", ["x", "w"], ["y"])], {"w": np.ones((1, 8, 4), np.float32)}),
            "has 3 axes",
        ),
    }


@pytest.mark.parametrize("kind", odd_uses())
def test_weights_that_cannot_have_adapters(kind: str) -> None:
    model, says = odd_uses()[kind]
    with pytest.raises(steep.ModelError, match=says):
        session(model, lora_targets=["w"])
    with pytest.raises(steep.ModelError, match=says):
        session(model)


def test_a_product_that_the_loss_does_not_need() -> None:
    model = two_layers()
    model.graph.node.append(helper.make_node("MatMul", ["x", "spare"], ["z"]))
    model.graph.initializer.append(numpy_helper.from_array(matrix(8, 5), "spare"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", "t", 5]))
    own = trained(model, output="y")
    assert own.adapted_names == ["body.w", "head.w"]
    assert any(c.name == "spare" and "does not depend" in c.reason for c in own.left_out)
    assert "spare.lora_A" not in arrays_of(written(own, merge_adapters=False))
    np.testing.assert_array_equal(arrays_of(written(own))["spare"], matrix(8, 5))


def test_groups_name_adapters() -> None:
    own = session(two_layers(), groups=[(["*.lora_B"], {"lr_multiplier": 0.0})])
    own.step(X, Y)
    own.step(X, Y)
    assert not own.weights()["head.w.lora_B"].numpy().any()


def test_the_program(tmp_path: Path) -> None:
    path, data = tmp_path / "m.onnx", tmp_path / "d.npz"
    onnx.save(two_layers(), path)
    np.savez(data, x=X, label=Y)
    out = tmp_path / "o.onnx"
    words = ("train", path, "--data", data, "--loss", "mse", "--epochs", 5, "--lr", 0.05)
    text = program(*words, "--lora", RANK, "--lora-alpha", 6, "--targets", "*.w", "--out", out)
    assert f"adapters of rank {RANK}: body.w, head.w" in text
    assert text.index("step planned: ") < text.index("epoch 1/5")
    merged = onnx.load(out)
    assert arrays_of(merged).keys() == arrays_of(two_layers()).keys()
    assert not np.array_equal(arrays_of(merged)["head.w"], arrays_of(two_layers())["head.w"])
    program(*words, "--lora", RANK, "--lora-alpha", 6, "--lora-apart", "--out", out)
    np.testing.assert_allclose(by_reference(onnx.load(out)), by_reference(merged), 1e-4, 1e-5)
    for name, value in arrays_of(two_layers()).items():
        np.testing.assert_array_equal(arrays_of(onnx.load(out))[name], value)
    run = tmp_path / "run"
    program(*words, "--lora", RANK, "--checkpoint", run)
    program(*words[:-4], "--epochs", 6, "--lora", RANK, "--resume", run, "--out", out)
    for wrong, code in (
        (("--targets", "*"), 2),
        (("--lora-alpha", 2), 2),
        (("--lora", 0), 2),
        (("--lora", RANK, "--lora-apart"), 2),
        (("--lora-apart", "--out", out), 2),
        (("--lora", RANK, "--targets", "none"), None),
        (("--lora", 5), None),
    ):
        program(*words, *wrong, code=code)
    planned = program("plan", path, "--loss", "mse", "--shape", "x=6,5,8", "--lora", RANK)
    assert "step planned: " in planned
