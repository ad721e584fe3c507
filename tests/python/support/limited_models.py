"""ONNX models whose steps keep much of forward, to be trained within limits of memory."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import steep


def made(
    nodes: list[Any], result: str, extents: tuple[Any, ...], weights: dict[str, Any]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, extents[0])],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, extents[1])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def dropout(value: str, result: str) -> Any:
    return helper.make_node("Dropout", [value, "ratio", "on"], [result], name=result)


SWITCHES = {"ratio": np.array(0.3, "f4"), "on": np.array(True)}


def layers() -> tuple[onnx.ModelProto, tuple[Any, Any]]:
    """Products, tanh and dropout, whose random numbers are drawn again."""
    random = np.random.default_rng(0)
    weights: dict[str, Any] = dict(SWITCHES)
    nodes, value = [], "x"
    for i in range(6):
        weights[f"w{i}"] = random.normal(0, 0.2, (48, 48)).astype("f4")
        nodes += [
            helper.make_node("MatMul", [value, f"w{i}"], [f"product{i}"], name=f"product{i}"),
            helper.make_node("Tanh", [f"product{i}"], [f"tanh{i}"], name=f"tanh{i}"),
            dropout(f"tanh{i}", f"dropout{i}"),
        ]
        value = f"dropout{i}"
    arrays = random.normal(size=(2, 256, 48)).astype("f4")
    return made(nodes, value, (("rows", 48),) * 2, weights), (arrays[0], arrays[1])


def attention() -> tuple[onnx.ModelProto, tuple[Any, Any]]:
    """Attention of one head, with skips, layer normalisations and dropout."""
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {**SWITCHES, "root": np.array(16**-0.5, "f4")}
    nodes, value = [], "x"
    for i in range(3):
        for name in "qkv":
            weights[f"{name}{i}.w"] = random.normal(0, 0.3, (16, 16)).astype("f4")
            nodes.append(helper.make_node("MatMul", [value, f"{name}{i}.w"], [f"{name}{i}"]))
        weights[f"scale{i}"], weights[f"bias{i}"] = np.ones((2, 16), "f4")
        nodes += [
            helper.make_node("Transpose", [f"k{i}"], [f"kt{i}"], perm=[0, 2, 1]),
            helper.make_node("MatMul", [f"q{i}", f"kt{i}"], [f"qk{i}"]),
            helper.make_node("Mul", [f"qk{i}", "root"], [f"scores{i}"]),
            helper.make_node("Softmax", [f"scores{i}"], [f"parts{i}"], axis=-1),
            dropout(f"parts{i}", f"dropped{i}"),
            helper.make_node("MatMul", [f"dropped{i}", f"v{i}"], [f"mixed{i}"]),
            helper.make_node("Add", [value, f"mixed{i}"], [f"sum{i}"]),
            helper.make_node(
                "LayerNormalization", [f"sum{i}", f"scale{i}", f"bias{i}"], [f"norm{i}"]
            ),
        ]
        value = f"norm{i}"
    arrays = random.normal(size=(2, 6, 24, 16)).astype("f4")
    return made(nodes, value, (("rows", 24, 16),) * 2, weights), (arrays[0], arrays[1])


def convolutions() -> tuple[onnx.ModelProto, tuple[Any, Any]]:
    """Batch normalisations in training mode, whose running statistics a step writes."""
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {}
    nodes, value, channels = [], "x", 3
    for i in range(4):
        weights[f"w{i}"] = random.normal(0, 0.2, (6, channels, 3, 3)).astype("f4")
        own = {name: f"{name}{i}" for name in ("scale", "bias", "mean", "variance")}
        for name, spelled in own.items():
            weights[spelled] = np.full(6, name in ("scale", "variance"), "f4")
        nodes += [
            helper.make_node("Conv", [value, f"w{i}"], [f"conv{i}"], pads=[1, 1, 1, 1]),
            helper.make_node(
                "BatchNormalization",
                [f"conv{i}", *own.values()],
                [f"norm{i}", f"new_mean{i}", f"new_variance{i}"],
                training_mode=1,
            ),
            helper.make_node("Relu", [f"norm{i}"], [f"relu{i}"]),
        ]
        value, channels = f"relu{i}", 6
    x = random.normal(size=(6, 3, 16, 16)).astype("f4")
    return made(nodes, value, (("rows", 3, 16, 16), ("rows", 6, 16, 16)), weights), (
        x,
        random.normal(size=(6, 6, 16, 16)).astype("f4"),
    )


def gated() -> tuple[onnx.ModelProto, tuple[Any, Any]]:
    """Gated layers with skips, wider inside than between."""
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {}
    nodes, value = [], "x"
    for i in range(5):
        for name, extents in {"g": (24, 64), "u": (24, 64), "d": (64, 24)}.items():
            weights[f"w{i}.{name}"] = random.normal(0, 0.2, extents).astype("f4")
        nodes += [
            helper.make_node("MatMul", [value, f"w{i}.g"], [f"gate{i}"]),
            helper.make_node("Sigmoid", [f"gate{i}"], [f"share{i}"]),
            helper.make_node("Mul", [f"gate{i}", f"share{i}"], [f"silu{i}"]),
            helper.make_node("MatMul", [value, f"w{i}.u"], [f"up{i}"]),
            helper.make_node("Mul", [f"silu{i}", f"up{i}"], [f"inside{i}"]),
            helper.make_node("MatMul", [f"inside{i}", f"w{i}.d"], [f"down{i}"]),
            helper.make_node("Add", [value, f"down{i}"], [f"out{i}"]),
        ]
        value = f"out{i}"
    arrays = random.normal(size=(2, 128, 24)).astype("f4")
    return made(nodes, value, (("rows", 24),) * 2, weights), (arrays[0], arrays[1])


def down_and_up() -> tuple[onnx.ModelProto, tuple[Any, Any]]:
    """Convolutions on smaller and smaller images and back, which read the larger ones again."""
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {}
    nodes: list[Any] = []

    def conv(value: str, name: str, channels: int, to: int) -> str:
        weights[f"w.{name}"] = random.normal(0, 0.2, (to, channels, 3, 3)).astype("f4")
        nodes.append(helper.make_node("Conv", [value, f"w.{name}"], [f"c.{name}"], pads=[1] * 4))
        nodes.append(helper.make_node("Tanh", [f"c.{name}"], [name]))
        return name

    window: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    value, kept = conv("x", "begin", 3, 4), []
    for i in range(2):
        kept.append(value)
        nodes.append(helper.make_node("AveragePool", [value], [f"small{i}"], **window))
        value = conv(f"small{i}", f"down{i}", 4, 4)
    for i in range(2):
        weights[f"w.large{i}"] = random.normal(0, 0.3, (4, 4, 2, 2)).astype("f4")
        parts = [f"large{i}", kept.pop()]
        nodes.append(helper.make_node("ConvTranspose", [value, f"w.large{i}"], parts[:1], **window))
        nodes.append(helper.make_node("Concat", parts, [f"both{i}"], axis=1))
        value = conv(f"both{i}", f"up{i}", 8, 4)
    arrays = [random.normal(size=(4, c, 16, 16)).astype("f4") for c in (3, 4)]
    extents = ("rows", 3, 16, 16), ("rows", 4, 16, 16)
    return made(nodes, value, extents, weights), (arrays[0], arrays[1])


MODELS: dict[str, Callable[[], tuple[onnx.ModelProto, tuple[Any, Any]]]] = {
    "layers": layers,
    "attention": attention,
    "convolutions": convolutions,
    "gated": gated,
    "down_and_up": down_and_up,
}


def figures(error: steep.OutOfMemoryError) -> tuple[int, int, int]:
    """The limit, the least that would do, and what a run takes without one, of an error."""
    limit, least, plain = map(int, re.findall(r"(\d+) bytes?\b", str(error)))
    return limit, least, plain


def budgets(least: int, plain: int, count: int) -> list[int]:
    """So many limits from what is needed without one down to the least."""
    return [least + (plain - least) * i // (count - 1) for i in reversed(range(count))]


def falls(values: list[float]) -> bool:
    return all(a >= b for a, b in itertools.pairwise(values))
