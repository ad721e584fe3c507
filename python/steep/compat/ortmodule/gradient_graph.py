"""``export_gradient_graph``: writes the gradients of a module and a loss as an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from steep._steep import write_file
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

    Its inputs are the input and the labels; its outputs the loss, and ``grad_NAME`` for each
    parameter. Its operators are ONNX's own.

    Args:
        model: the module; the file computes what it computes in evaluation mode.
        loss_fn: called with the module's result and the labels.
        example_input, example_labels: examples of the model's inputs.
        gradient_graph_path: path of the file.
        opset_version: opset of the exporter; at least 18, and by default its own.

    Raises:
        ModelError: the module cannot be exported, or has no gradient in ONNX.
        IoError: the file cannot be written.
    """
    net = WithLoss(model, loss_fn, predictions=False)
    opset = None if opset_version is None else max(opset_version, 18)
    proto = export(net, [example_input, example_labels], opset=opset)
    names = {i.name: i.name.removeprefix("module.model.") for i in proto.graph.initializer}
    for initializer in proto.graph.initializer:
        initializer.name = names[initializer.name]
    rename(proto.graph, names)
    in_graph = set(names.values())
    trained = [n for n, p in model.named_parameters() if p.requires_grad and n in in_graph]
    gradients = grad(proto, wrt=trained, outputs=[proto.graph.output[0].name])
    write_file(os.fspath(gradient_graph_path), gradients.SerializeToString())
