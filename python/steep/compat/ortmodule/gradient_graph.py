"""``export_gradient_graph``: writes the gradients of a module and a loss as an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch

from steep._steep import write_file
from steep.errors import DataError, counted
from steep.export.module_to_onnx import export
from steep.onnx_graph.initializers import rename
from steep.session.gradient import grad
from steep.trainers.loss_module import WithLoss


def export_gradient_graph(  # noqa: PLR0917 (ONNX Runtime's order)
    model: torch.nn.Module,
    loss_fn: Callable[[Any, Any], Any],
    example_input: torch.Tensor,
    example_labels: torch.Tensor,
    gradient_graph_path: str | os.PathLike[str],
    opset_version: int | None = None,
) -> None:
    """Write an ONNX model of a loss and its gradients with respect to the trained parameters.

    Its inputs are "input", "labels" and the parameters, by name; its outputs "output", "loss", and
    NAME_grad for each trained parameter. Its operators are ONNX's own.

    Args:
        model: the module; the file computes what it computes in evaluation mode.
        loss_fn: called with the module's result, one tensor, and the labels.
        example_input, example_labels: examples of the model's inputs.
        gradient_graph_path: path of the file.
        opset_version: opset of the exporter; at least 18, and by default its own.

    Raises:
        DataError: the module's result is not one tensor.
        ModelError: the module cannot be exported, or has no gradient in ONNX.
        IoError: the file cannot be written.
    """
    net = WithLoss(model, loss_fn, predictions=True)
    opset = None if opset_version is None else max(opset_version, 18)
    proto = export(net, [example_input, example_labels], opset=opset)
    graph = proto.graph
    if len(graph.output) != 2:
        raise DataError(
            "A gradient graph needs a module with one result.",
            expected="a tensor",
            received=counted(len(graph.output) - 1, "tensor"),
        )
    names = {i.name: i.name.removeprefix("module.model.") for i in graph.initializer}
    for initializer in graph.initializer:
        initializer.name = names[initializer.name]
    rename(graph, names)
    for value, name in zip(graph.input, ["input", "labels"], strict=True):
        rename(graph, {value.name: name})
        value.name = name
    parameters = {name: p.requires_grad for name, p in model.named_parameters()}
    in_graph = [i.name for i in graph.initializer]
    trained = [name for name in parameters if parameters[name] and name in in_graph]
    loss, output = (value.name for value in graph.output)
    gradients = grad(proto, wrt=trained, outputs=[loss])
    _name_outputs(gradients.graph, graph.output[1], [output, loss], trained)
    _feed_parameters(gradients.graph, list(parameters))
    write_file(os.fspath(gradient_graph_path), gradients.SerializeToString())


def _name_outputs(
    graph: onnx.GraphProto,
    result: onnx.ValueInfoProto,
    values: Sequence[str],
    trained: Sequence[str],
) -> None:
    """Make a graph's outputs "output", "loss" and the gradients."""
    by_gradient = [value.name for value in graph.output[1:]]
    infos = [result, *graph.output]
    names = ["output", "loss", *(f"{name}_grad" for name in trained)]
    outputs = []
    for info, value, name in zip(infos, [*values, *by_gradient], names, strict=True):
        output = onnx.ValueInfoProto()
        output.CopyFrom(info)
        output.name = name
        outputs.append(output)
        graph.node.append(onnx.helper.make_node("Identity", [value], [name]))
    del graph.output[:]
    graph.output.extend(outputs)


def _feed_parameters(graph: onnx.GraphProto, parameters: Sequence[str]) -> None:
    """Replace parameters among a graph's initializers by inputs."""
    initializers = {i.name: i for i in graph.initializer}
    for name in [name for name in parameters if name in initializers]:
        weight = initializers[name]
        graph.initializer.remove(weight)
        graph.input.append(onnx.helper.make_tensor_value_info(name, weight.data_type, weight.dims))
