"""Adds a module's tensors to its ONNX graph as initializers."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import torch

from steep.onnx_graph.traverse import bodies_of


def embed_weights(
    proto: onnx.ModelProto, states: Mapping[str, str], module: torch.nn.Module
) -> onnx.ModelProto:
    """Replace inputs by initializers with a module's tensors; return the changed model.

    ``states`` maps inputs to names of the module's tensors. Inputs for one tensor, such as tied
    weights, become one initializer.
    """
    tensors: dict[str, torch.Tensor] = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    graph = proto.graph
    first: dict[int, str] = {}
    same: dict[str, str] = {}
    for value in [v for v in graph.input if v.name in states]:
        graph.input.remove(value)
        tensor = tensors[states[value.name]]
        same[value.name] = first.setdefault(id(tensor), value.name)
        if same[value.name] == value.name:
            kind = value.type.tensor_type.elem_type
            content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            graph.initializer.add(
                name=value.name, data_type=kind, dims=tensor.shape, raw_data=content.tobytes()
            )
    rename(graph, same)
    return proto


def with_states(model: onnx.ModelProto, names: Mapping[str, str]) -> onnx.ModelProto:
    """Return a copy in which some inputs are initializers without data.

    ``names`` maps these inputs to the initializers' names.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for value in [v for v in result.graph.input if v.name in names]:
        result.graph.input.remove(value)
        tensor_type = value.type.tensor_type
        dims = [d.dim_value for d in tensor_type.shape.dim]
        result.graph.initializer.add(
            name=names[value.name], data_type=tensor_type.elem_type, dims=dims
        )
    rename(result.graph, names)
    return result


def rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename the values that nodes read, also inside the bodies of nodes."""
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = names.get(name, name)
        for body in bodies_of(node):
            rename(body, names)
