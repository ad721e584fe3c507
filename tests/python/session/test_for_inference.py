"""Models rewritten for running: what folds, what stays, and that the outputs are the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import steep

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (6, 2, 5, 5)).astype(np.float32)
ROWS = RNG.normal(0, 1, (6, 3)).astype(np.float32)


def statistics(channels: int, prefix: str = "") -> dict[str, np.ndarray]:
    return {
        f"{prefix}scale": RNG.uniform(0.5, 1.5, channels).astype(np.float32),
        f"{prefix}bias": RNG.normal(0, 0.3, channels).astype(np.float32),
        f"{prefix}mean": RNG.normal(0, 0.3, channels).astype(np.float32),
        f"{prefix}variance": RNG.uniform(0.5, 1.5, channels).astype(np.float32),
    }


def normalise(source: str, result: str = "y", prefix: str = "", **attrs) -> onnx.NodeProto:
    names = [f"{prefix}{n}" for n in ("scale", "bias", "mean", "variance")]
    return helper.make_node("BatchNormalization", [source, *names], [result], **attrs)


def model(nodes, x, weights, opset=17, outputs=("y",), shape=None) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape or ["n", *x.shape[1:]])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None) for y in outputs],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=imports, ir_version=8)
    )


def in_onnxruntime(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, {"x": x})


def ops(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


def rewritten(proto: onnx.ModelProto, x: np.ndarray) -> onnx.ModelProto:
    """The model for inference, whose outputs are those of `proto` here and in ONNX Runtime."""
    made = steep.model_for_inference(proto)
    onnx.checker.check_model(made, full_check=True)
    wanted = in_onnxruntime(proto, x)
    for found in (steep.InferenceSession(made).run(None, {"x": x}), in_onnxruntime(made, x)):
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return made


def conv(group: int = 1, bias: bool = False):
    weights = {"w": RNG.normal(0, 0.3, (4, 2 // group, 3, 3)).astype(np.float32)}
    if bias:
        weights["b"] = RNG.normal(0, 0.3, 4).astype(np.float32)
    return helper.make_node("Conv", ["x", *weights], ["c"], group=group, pads=[1] * 4), weights


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
def test_conv(group: int, bias: bool) -> None:
    node, weights = conv(group, bias)
    proto = model([node, normalise("c", epsilon=1e-3)], X, {**weights, **statistics(4)})
    made = rewritten(proto, X)
    assert ops(made) == ["Conv"]
    assert [t.name for t in made.graph.initializer] == ["c/weight", "c/bias"]
    assert [v.name for v in made.graph.value_info] == []


@pytest.mark.parametrize(
    "attrs,bias",
    [
        ({}, None),
        ({}, (4,)),
        ({"transB": 1, "alpha": 0.5}, (1, 4)),
        ({"beta": 2.0}, (4,)),
        ({"transB": 1, "beta": 0.5}, ()),
    ],
)
def test_gemm(attrs, bias) -> None:
    weights = {"w": RNG.normal(0, 1, (4, 3) if attrs.get("transB") else (3, 4)).astype(np.float32)}
    if bias is not None:
        weights["b"] = np.asarray(RNG.normal(0, 1, bias), np.float32)
    nodes = [helper.make_node("Gemm", ["x", *weights], ["c"], **attrs), normalise("c")]
    assert ops(rewritten(model(nodes, ROWS, {**weights, **statistics(4)}), ROWS)) == ["Gemm"]


def test_matmul() -> None:
    weights = {"w": RNG.normal(0, 1, (3, 4)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["c"]), normalise("c")]
    assert ops(rewritten(model(nodes, ROWS, {**weights, **statistics(4)}), ROWS)) == ["Gemm"]


def test_a_product_of_batches_stays() -> None:
    x = RNG.normal(0, 1, (2, 4, 3)).astype(np.float32)
    weights = {"w": RNG.normal(0, 1, (3, 4)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["c"]), normalise("c")]
    made = rewritten(model(nodes, x, {**weights, **statistics(4)}), x)
    assert ops(made) == ["MatMul", "BatchNormalization"]


def test_weights_that_two_read_are_not_spoilt() -> None:
    node, weights = conv()
    other = helper.make_node("Conv", ["x", "w"], ["z"], pads=[1] * 4)
    proto = model(
        [node, other, normalise("c")], X, {**weights, **statistics(4)}, outputs=["y", "z"]
    )
    made = rewritten(proto, X)
    assert ops(made) == ["Conv", "Conv"]
    assert "w" in [t.name for t in made.graph.initializer]


@pytest.mark.parametrize("why", ["another reader", "an output", "an input may replace it"])
def test_what_stays(why: str) -> None:
    node, weights = conv()
    proto = model([node, normalise("c")], X, {**weights, **statistics(4)})
    if why == "another reader":
        proto.graph.node.append(helper.make_node("Relu", ["c"], ["z"]))
        proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    elif why == "an output":
        proto.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, None))
    else:
        proto.graph.input.append(helper.make_tensor_value_info("mean", TensorProto.FLOAT, [4]))
    made = steep.model_for_inference(proto)
    assert ops(made) == ops(proto)
    assert [t.name for t in made.graph.initializer] == [t.name for t in proto.graph.initializer]


def test_one_after_the_other() -> None:
    node, weights = conv()
    weights["v"] = RNG.normal(0, 0.3, (3, 4, 1, 1)).astype(np.float32)
    nodes = [
        node,
        normalise("c", "n"),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"]),
        normalise("d", "e", "second_"),
        normalise("e", "y", "third_"),
    ]
    weights |= {**statistics(4), **statistics(3, "second_"), **statistics(3, "third_")}
    assert ops(rewritten(model(nodes, X, weights), X)) == ["Conv", "Relu", "Conv"]


def test_a_normalisation_folds_whose_statistics_are_read() -> None:
    node, weights = conv()
    training = normalise("c", training_mode=1)
    training.output.extend(["running_mean", "running_variance"])
    proto = model([node, training], X, {**weights, **statistics(4)}, outputs=["y", "running_mean"])
    assert ops(steep.model_for_inference(proto)) == ["Conv", "Identity"]


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("training", [False, True])
def test_a_trained_model(opset: int, training: bool, tmp_path) -> None:
    node, weights = conv(bias=True)
    batch = normalise("c", "n", **({"training_mode": 1} if training and opset >= 14 else {}))
    if training:
        batch.output.extend(["m", "v"] if opset >= 14 else ["m", "v", "sm", "sv"])
    dropout = [helper.make_node("Dropout", ["r"], ["k"])]
    if opset >= 12:
        dropout[0].input.extend(["ratio", "mode"])
        weights |= {"ratio": np.array(0.5, np.float32), "mode": np.array(True)}
    nodes = [
        node,
        batch,
        helper.make_node("Relu", ["n"], ["r"]),
        *dropout,
        helper.make_node("GlobalAveragePool", ["k"], ["g"]),
        helper.make_node("Flatten", ["g"], ["y"]),
    ]
    proto = model(nodes, X, {**weights, **statistics(4)}, opset)
    del proto.graph.value_info[:]
    session = steep.TrainingSession(proto, loss="softmax_cross_entropy", optimizer="sgd", lr=0.1)
    labels = RNG.integers(0, 4, 6)
    for _ in range(3):
        session.step(X, labels)
    wanted = np.from_dlpack(session.eval(X, labels).outputs[0])
    session.export_onnx(tmp_path / "deployed.onnx", for_inference=True)
    made = onnx.load(tmp_path / "deployed.onnx")
    assert ops(made) == ["Conv", "Relu", "Identity", "GlobalAveragePool", "Flatten"]
    assert made == onnx.load_from_string(session.export_onnx_bytes(for_inference=True))
    assert made == steep.model_for_inference(session.export_onnx_bytes())
    for found in (steep.InferenceSession(made).run(None, {"x": X}), in_onnxruntime(made, X)):
        np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-5)
    assert "BatchNormalization" in ops(onnx.load_from_string(session.export_onnx_bytes()))


def test_double_precision_and_external_data(tmp_path) -> None:
    node, weights = conv()
    weights = {k: v.astype(np.float64) for k, v in {**weights, **statistics(4)}.items()}
    proto = model([node, normalise("c")], X, weights)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del proto.graph.value_info[:]
    wanted = steep.InferenceSession(proto).run(None, {"x": X.astype(np.float64)})[0]
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights", size_threshold=0)
    made = steep.model_for_inference(path)
    assert ops(made) == ["Conv"]
    found = steep.InferenceSession(made).run(None, {"x": X.astype(np.float64)})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(steep.ModelError):
        steep.model_for_inference(b"\xff\xff\xff")


@pytest.mark.parametrize("opset", [9, 13, 14, 17])
@pytest.mark.parametrize("read", ["output", "node"])
def test_running_statistics_that_are_read_stay_as_they_are(opset: int, read: str) -> None:
    results = ["y", "mean_now", "variance_now"]
    mode = {"training_mode": 1} if opset >= 14 else {}
    node = helper.make_node(
        "BatchNormalization", ["x", "scale", "bias", "mean", "variance"], results, **mode
    )
    nodes = [node]
    if read == "node":
        nodes += [helper.make_node("Identity", [n], [n + "_read"]) for n in results[1:]]
        results = ["y", "mean_now_read", "variance_now_read"]
    weights = statistics(2)
    proto = model(nodes, X, weights, opset=opset, outputs=results)
    for output in proto.graph.output[1:]:  # before opset 14 nothing infers it
        if not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.dim.add().dim_value = 2
    made = steep.model_for_inference(proto)
    onnx.checker.check_model(made, full_check=True)
    at = [w[:, None, None] for w in weights.values()]
    y = (X - at[2]) / np.sqrt(at[3] + 1e-5) * at[0] + at[1]
    for got in (in_onnxruntime(made, X), steep.InferenceSession(made).run(None, {"x": X})):
        np.testing.assert_allclose(got[0], y, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got[1], weights["mean"])
        np.testing.assert_allclose(got[2], weights["variance"])


def test_statistics_of_a_batch_that_are_read_are_refused() -> None:
    node = helper.make_node(
        "BatchNormalization",
        ["x", "scale", "bias", "mean", "variance"],
        ["y", "m", "v", "saved_mean", "saved_variance"],
    )
    proto = model([node], X, statistics(2), opset=9, outputs=("y", "saved_mean"))
    with pytest.raises(steep.ModelError, match="reads batch statistics"):
        steep.model_for_inference(proto)


@pytest.mark.parametrize("where", ["branch", "function"])
def test_training_mode_ends_in_bodies_and_functions(where: str) -> None:
    inner = normalise("x", "r", training_mode=1)
    inner.output.extend(["m", "v"])
    drop = helper.make_node("Dropout", ["r", "ratio", "on"], ["z"])
    weights = {**statistics(2), "ratio": np.array(0.5, np.float32), "on": np.array(True)}
    if where == "branch":
        bodies = {}
        for name in ("then_branch", "else_branch"):
            again = [onnx.NodeProto.FromString(n.SerializeToString()) for n in (inner, drop)]
            for n in again:
                n.input[:] = [name + i if i == "r" else i for i in n.input]
                n.output[:] = [name + o for o in n.output]
            end = helper.make_tensor_value_info(name + "z", TensorProto.FLOAT, None)
            bodies[name] = helper.make_graph(again, name, [], [end])
        nodes = [helper.make_node("If", ["on"], ["y"], **bodies)]
        proto = model(nodes, X, weights)
    else:
        names = list(weights)
        proto = model([helper.make_node("Identity", ["x"], ["y"])], X, weights)
        proto.graph.node[0].CopyFrom(helper.make_node("norm", ["x", *names], ["y"], domain="own"))
        imports = [helper.make_opsetid("", 17)]
        function = helper.make_function("own", "norm", ["x", *names], ["z"], [inner, drop], imports)
        proto.functions.append(function)
        proto.opset_import.append(helper.make_opsetid("own", 1))
    made = steep.model_for_inference(proto)
    at = [weights[k][:, None, None] for k in ("scale", "bias", "mean", "variance")]
    want = (X - at[2]) / np.sqrt(at[3] + 1e-5) * at[0] + at[1]
    np.testing.assert_allclose(in_onnxruntime(made, X)[0], want, rtol=1e-4, atol=1e-5)
