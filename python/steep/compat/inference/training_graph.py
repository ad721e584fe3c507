"""A training graph: forward, a YieldOp that waits for the outputs' gradients, and the gradients.

Its inputs are the model's inputs and the weights, its outputs the gradients. Between YieldOp and
the gradients is one node, ``steep.training.Gradient``. The file does not contain backward: the
engine generates it when it compiles, once for each set of outputs that have a gradient.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import helper

DOMAIN = "steep.training"
_YIELD = "YieldOp"


def build(
    forward: onnx.ModelProto, differentiable: Sequence[str], wrt: Sequence[str]
) -> onnx.ModelProto:
    """Return the training graph of a model.

    Args:
        forward: the model; all values that are to have a gradient must be inputs of it.
        differentiable: its outputs that may have a gradient.
        wrt: names of inputs; the outputs of the result are their gradients, NAME_grad.
    """
    model = onnx.ModelProto()
    model.CopyFrom(forward)
    graph = model.graph
    outputs = [output.name for output in graph.output]
    inputs = {info.name: info for info in graph.input}
    without = [i for i, name in enumerate(outputs) if name not in differentiable]
    gradients = [f"{name}_grad" for name in outputs if name in differentiable]
    attributes = {"full_shape_outputs": list(range(len(outputs)))}
    if without:
        attributes["non_differentiable_outputs"] = without
    waiting = helper.make_node(
        _YIELD, outputs, gradients, _YIELD, domain="com.microsoft", **attributes
    )
    names = [f"{name}_grad" for name in wrt]
    backward = helper.make_node("Gradient", gradients, names, "Gradient", domain=DOMAIN, wrt=wrt)
    graph.node.extend([waiting, backward])
    info_names = {info.name for info in [*graph.value_info, *graph.input]}
    graph.value_info.extend(info for info in graph.output if info.name not in info_names)
    del graph.output[:]
    for name in wrt:
        info = graph.output.add()
        info.CopyFrom(inputs[name])
        info.name = f"{name}_grad"
    domains = {opset.domain for opset in model.opset_import}
    model.opset_import.extend(
        helper.make_opsetid(domain, 1)
        for domain in ("com.microsoft", DOMAIN)
        if domain not in domains
    )
    return model


def read(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> onnx.ModelProto | None:
    """Return the training graph in a file or its bytes; None for other models."""
    if isinstance(source, onnx.ModelProto):
        model = source
    elif not mentions(source, [DOMAIN]):
        return None
    elif isinstance(source, bytes):
        model = onnx.load_model_from_string(source)
    else:
        model = onnx.load(source)
    return model if any(_waits(node) for node in model.graph.node) else None


def mentions(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, words: Sequence[str]
) -> bool:
    """Return whether one of the words is anywhere in a model's bytes, such as names of operators.

    False for a file that cannot be read: the session raises the error.
    """
    if isinstance(source, onnx.ModelProto):
        source = source.SerializeToString()
    if isinstance(source, bytes):
        return any(word.encode() in source for word in words)
    path = Path(source)
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(word.encode()) >= 0 for word in words)


def wrt_of(training: onnx.ModelProto) -> dict[str, str]:
    """Return, by name of a gradient, the input that it belongs to."""
    (node,) = (n for n in training.graph.node if n.domain == DOMAIN)
    (names,) = ([s.decode() for s in a.strings] for a in node.attribute if a.name == "wrt")
    return dict(zip(node.output, names, strict=True))


def differentiable_of(training: onnx.ModelProto) -> list[str]:
    """Return the outputs of forward that have a gradient, in order."""
    waiting = _waiting(training)
    without = {
        i for a in waiting.attribute if a.name == "non_differentiable_outputs" for i in a.ints
    }
    return [name for i, name in enumerate(waiting.input) if i not in without]


def forward_of(training: onnx.ModelProto) -> onnx.ModelProto:
    """Return the forward model of a training graph."""
    model = onnx.ModelProto()
    model.CopyFrom(training)
    outputs = list(_waiting(training).input)
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.extend(
        node for node in training.graph.node if not _waits(node) and node.domain != DOMAIN
    )
    info_of = {info.name: info for info in [*training.graph.value_info, *training.graph.input]}
    model.graph.output.extend(info_of[name] for name in outputs)
    return model


def _waits(node: onnx.NodeProto) -> bool:
    return bool(node.op_type == _YIELD and node.domain == "com.microsoft")


def _waiting(training: onnx.ModelProto) -> onnx.NodeProto:
    (node,) = (n for n in training.graph.node if _waits(n))
    return node
