"""Prepares a graph that Dynamo captured for lowering."""

from __future__ import annotations

import torch

from steep.lowering.literal_tensors import literal_for
from steep.lowering.ops.autograd_function import Interpreter
from steep.torch_internals.autograd import get_data_attr
from steep.torch_internals.operators import aten

OF_DATA = "steep.data"
"""Key of a node's meta: this ``detach()`` stands for ``.data``."""


def copy_graph(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a copy whose graph may be changed; PyTorch keeps the original."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    for node in list(graph.nodes):
        if node.target is torch.ops.higher_order.tag_activation_checkpoint:
            node.target = _run_checkpointed
            node.kwargs = {}
        elif node.target is get_data_attr:
            node.target = torch.detach  # keep_semantics() handles detach
            node.meta[OF_DATA] = True
        elif (literal := literal_for(node)) is not None:
            node.target = literal
        elif node.target is aten._assert_scalar.default:  # it cannot fail
            graph.erase_node(node)
    return torch.fx.GraphModule(graph_module, graph)


def _run_checkpointed(body: torch.fx.GraphModule, *args: object) -> object:
    """Run a checkpointed region as plain operations: the engine plans recomputation itself."""
    return Interpreter(copy_graph(body)).run(*args)  # copy_graph: regions may be nested


def take_sizes_from_tensors(graph: torch.fx.Graph) -> list[int]:
    """Replace placeholders that are extents of tensors; return the positions of the rest."""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    where: dict[str, tuple[torch.fx.Node, int]] = {}
    for node in placeholders:
        value = node.meta["example_value"]
        if isinstance(value, torch.Tensor):
            for axis, extent in enumerate(value.shape):
                if isinstance(extent, torch.SymInt):
                    where.setdefault(str(extent), (node, axis))
    positions = []
    with graph.inserting_after(placeholders[-1] if placeholders else None):
        for i, node in enumerate(placeholders):
            value = node.meta["example_value"]
            if not isinstance(value, torch.SymInt) or str(value) not in where:
                positions.append(i)
                continue
            size = graph.call_function(aten.sym_size.int, where[str(value)])
            size.meta["example_value"] = value
            node.replace_all_uses_with(size)
            graph.erase_node(node)
    return positions
