"""Low-rank adapters of weights that bodies of If, Loop and Scan multiply by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from steep_program import steep as program

import steep

RNG = np.random.default_rng(0)
N, T, WIDTH = 6, 5, 8
X = RNG.normal(0, 1, (N, T, WIDTH)).astype(np.float32)
Y = RNG.normal(0, 1, (N, T, WIDTH)).astype(np.float32)
RANK = 2
node = helper.make_node


def matrix(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.4, (WIDTH, WIDTH)).astype(np.float32)


def value(name: str, kind: int = TensorProto.FLOAT, shape: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def proto(nodes: list[onnx.NodeProto], arrays: dict[str, Any]) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in arrays.items()]
    x, y = (value(name, shape=["n", T, WIDTH]) for name in "xy")
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def body(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    arrays: dict[str, np.ndarray] | None = None,
) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(v, k) for k, v in (arrays or {}).items()]
    return helper.make_graph(nodes, "body", inputs, outputs, tensors)


def condition(of: str, output: str) -> list[onnx.NodeProto]:
    return [
        node("ReduceSum", [of], [f"{output}/sum"], keepdims=0),
        node("Greater", [f"{output}/sum", "zero"], [output]),
    ]


def branches(own: dict[str, str]) -> onnx.ModelProto:
    """x · w or tanh(x · v), by the sum of x. `own`: the initializers of the else branch."""
    then = body([node("MatMul", ["x", "w"], ["inner"], name="inner")], [], [value("inner")])
    other = body(
        [
            node("MatMul", ["x", own["v"]], ["inner"], name="inner"),
            node("Tanh", ["inner"], ["t"]),
        ],
        [],
        [value("t")],
        {own["v"]: matrix(2)},
    )
    if own.get("then"):
        then.initializer.append(numpy_helper.from_array(matrix(3), own["then"]))
        then.node[0].input[1] = own["then"]
    choice = node("If", ["yes"], ["y"], name="if", then_branch=then, else_branch=other)
    arrays = {"zero": np.float32(0)} | ({} if own.get("then") else {"w": matrix(1)})
    return proto([*condition("x", "yes"), choice], arrays)


def loop(*, quantised: bool = False) -> onnx.ModelProto:
    """Three times h = tanh(h · w), then h · head."""
    inside = [
        node("Identity", ["go"], ["on"]),
        node("MatMul", ["h", "w"], ["p"], name="step"),
        node("Tanh", ["p"], ["next"]),
    ]
    arrays: dict[str, Any] = {"w": matrix(1), "head": matrix(2), "times": np.int64(3)}
    arrays |= {"start": np.array(True)}
    if quantised:
        inside[1].input[1] = "d"
        inside.insert(0, node("DequantizeLinear", ["w", "s"], ["d"], axis=1))
        arrays["w"] = np.random.default_rng(3).integers(-9, 9, (WIDTH, WIDTH), np.int8)
        arrays["s"] = np.full(WIDTH, 0.05, np.float32)
    parts = body(
        inside,
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("h")],
        [value("on", TensorProto.BOOL, []), value("next")],
    )
    nodes = [
        node("Loop", ["times", "start", "x"], ["last"], name="loop", body=parts),
        node("MatMul", ["last", "head"], ["y"]),
    ]
    return proto(nodes, arrays)


def unrolled(factor: int = 3) -> onnx.ModelProto:
    nodes, h = [], "x"
    for i in range(factor):
        nodes += [node("MatMul", [h, "w"], [f"p{i}"]), node("Tanh", [f"p{i}"], [f"h{i}"])]
        h = f"h{i}"
    nodes.append(node("MatMul", [h, "head"], ["y"]))
    return proto(nodes, {"w": matrix(1), "head": matrix(2)})


def scan() -> onnx.ModelProto:
    """h = tanh(h · w + x · v) along the second axis."""
    nodes = [
        node("MatMul", ["h", "w"], ["p"]),
        node("MatMul", ["part", "v"], ["q"]),
        node("Add", ["p", "q"], ["r"]),
        node("Tanh", ["r"], ["next"]),
        node("Identity", ["next"], ["out"]),
    ]
    parts = body(nodes, [value("h"), value("part")], [value("next"), value("out")])
    turn = {"perm": [1, 0, 2]}
    start = [
        node("ReduceMean", ["x", "one"], ["first"], keepdims=0),
        node("Transpose", ["x"], ["parts"], **turn),
        node("Scan", ["first", "parts"], ["last", "all"], "scan", num_scan_inputs=1, body=parts),
        node("Transpose", ["all"], ["y"], **turn),
    ]
    return proto(start, {"w": matrix(1), "v": matrix(2), "one": np.array([1])})


def nested() -> onnx.ModelProto:
    """A branch in a loop: each multiplies by a Constant of its own, and both by w."""
    sides = []
    for seed, name in ((4, "a"), (5, "b")):
        nodes = [
            node("Constant", [], [name], value=numpy_helper.from_array(matrix(seed))),
            node("MatMul", ["h", name], ["m"]),
            node("MatMul", ["m", "w"], ["n"]),
            node("Tanh", ["n"], ["o"]),
        ]
        sides.append(body(nodes, [], [value("o")]))
    inside = [
        node("Identity", ["go"], ["on"]),
        *condition("h", "up"),
        node("If", ["up"], ["next"], name="turn", then_branch=sides[0], else_branch=sides[1]),
    ]
    parts = body(
        inside,
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("h")],
        [value("on", TensorProto.BOOL, []), value("next")],
    )
    arrays = {"w": matrix(1), "times": np.int64(3), "start": np.array(True), "zero": np.float32(0)}
    return proto([node("Loop", ["times", "start", "x"], ["y"], name="loop", body=parts)], arrays)


HIDES = "a name that hides another"  # which ONNX forbids: its reference reads the outer one
MODELS: dict[str, tuple[onnx.ModelProto, list[str]]] = {
    "branches": (branches({"v": "v"}), ["w", "v"]),
    "one name twice": (
        branches({"v": "w", "then": "w"}),
        ["if/else_branch/w", "if/then_branch/w"],
    ),
    HIDES: (branches({"v": "w"}), ["w", "if/else_branch/w"]),
    "loop": (loop(), ["w", "head"]),
    "scan": (scan(), ["w", "v"]),
    "nested": (nested(), ["w", "b", "a"]),
}


def session(model: onnx.ModelProto, **options: Any) -> steep.TrainingSession:
    settings = {"loss": "mse", "optimizer": "adamw", "lr": 0.03, "lora_rank": RANK}
    return steep.TrainingSession(model, **(settings | options))


def by_reference(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return np.asarray(ReferenceEvaluator(model).run(None, {"x": x})[0])


def inside(model: onnx.ModelProto, *path: str) -> onnx.GraphProto:
    """The body in these attributes: each of the first node that has it."""
    graph = model.graph
    for name in path:
        graph = next(a.g for n in graph.node for a in n.attribute if a.name == name)
    return graph


def count(graph: onnx.GraphProto) -> int:
    inner = (a.g for n in graph.node for a in n.attribute if a.HasField("g"))
    return len(graph.node) + sum(map(count, inner))


@pytest.mark.parametrize("alpha", [None, 3.0])
@pytest.mark.parametrize("kind", MODELS)
def test_merged_and_apart_compute_the_same(kind: str, alpha: float | None) -> None:
    model, names = MODELS[kind]
    own = session(model, lora_alpha=alpha)
    assert own.adapted_names == names
    assert {*own.parameter_names} == {f"{w}.lora_{m}" for w in names for m in "AB"}
    plain = steep.InferenceSession(model).run(None, {"x": X})[0]
    np.testing.assert_allclose(own.eval(X, Y).outputs[0].numpy(), plain, 1e-5, 1e-6)
    losses = [own.step(sign * X, Y).loss for _ in range(6) for sign in (1, -1)]
    assert losses[-2] < losses[0] and losses[-1] < losses[1]
    weights = own.weights()
    assert all(weights[f"{w}.lora_B"].numpy().any() for w in names)
    merged = onnx.load_from_string(own.export_onnx_bytes())
    apart = onnx.load_from_string(own.export_onnx_bytes(merge_adapters=False))
    assert count(merged.graph) == count(model.graph) < count(apart.graph)
    for x in (X, -X):
        here = own.eval(x).outputs[0].numpy()
        assert not np.allclose(here, steep.InferenceSession(model).run(None, {"x": x})[0], 1e-2)
        for made in (merged, apart):
            np.testing.assert_allclose(
                steep.InferenceSession(made).run(None, {"x": x})[0], here, 1e-4, 1e-5
            )
            if kind != HIDES:
                np.testing.assert_allclose(by_reference(made, x), here, 1e-4, 1e-5)
    again = steep.TrainingSession(apart, loss="mse", trainable=["*.lora_*"])
    assert again.eval(X, Y).loss == pytest.approx(own.eval(X, Y).loss, rel=1e-5)


def test_a_loop_trains_as_its_steps_do() -> None:
    own, other = session(loop()), session(unrolled())
    for _ in range(6):
        assert own.step(X, Y).loss == pytest.approx(other.step(X, Y).loss, rel=1e-5)
    for name, found in own.weights().items():
        np.testing.assert_allclose(found.numpy(), other.weights()[name].numpy(), 1e-3, 1e-5)


def test_a_quantised_base_in_a_body() -> None:
    model = loop(quantised=True)
    own = session(model, lora_targets=["w"])
    losses = [own.step(X, Y).loss for _ in range(6)]
    assert losses[-1] < losses[0]
    made = onnx.load_from_string(own.export_onnx_bytes())
    assert model.graph.initializer[0] in list(made.graph.initializer)
    np.testing.assert_allclose(by_reference(made, X), own.eval(X).outputs[0].numpy(), 1e-4, 1e-5)


def test_what_a_body_does_otherwise_is_named() -> None:
    added = loop()
    inside(added, "body").node.append(node("Neg", ["w"], ["spare"], name="turned"))
    with pytest.raises(steep.ModelError, match=r"w is read by 'turned' \(Neg\)"):
        session(added, lora_targets=["w"])
    left = branches({"v": "v"})
    inside(left, "else_branch").node[0].input[:] = ["v", "v"]
    with pytest.raises(steep.ModelError, match="v is read by 'inner'"):
        session(left, lora_targets=["v"])
    given = branches({"v": "v"})
    inside(given, "then_branch").output[0].name = "w"
    with pytest.raises(steep.ModelError, match=r"w is an output of a body of 'if' \(If\)"):
        session(given, lora_targets=["w"])
    with pytest.raises(steep.ModelError, match="There is no such initializer"):
        session(loop(), lora_targets=["step"])
    carried = loop()
    carried.graph.node[0].input.append("w")
    with pytest.raises(steep.ModelError, match=r"w is read by 'loop' \(Loop\)"):
        session(carried, lora_targets=["w"])
    taken = loop()
    inside(taken, "body").node[1].output[0] = "w.lora_A"
    inside(taken, "body").node[2].input[0] = "w.lora_A"
    with pytest.raises(steep.ModelError, match=r"has an adapter in the file, 'w\.lora_A'"):
        session(taken, lora_targets=["w"])


def test_the_program(tmp_path: Path) -> None:
    path, data, out = tmp_path / "m.onnx", tmp_path / "d.npz", tmp_path / "o.onnx"
    onnx.save(nested(), path)
    np.savez(data, x=X, label=Y)
    assert "can be trained" in program("check", path, "--loss", "mse", "--lora", RANK)
    words = ("train", path, "--data", data, "--loss", "mse", "--epochs", 3, "--lr", 0.01)
    text = program(*words, "--lora", RANK, "--out", out)
    assert f"adapters of rank {RANK}: w, b, a" in text
    before, after = (
        [
            numpy_helper.to_array(inside(m, "body", name).node[0].attribute[0].t)
            for name in ("then_branch", "else_branch")
        ]
        for m in (nested(), onnx.load(out))
    )
    assert not np.array_equal(before, after)
