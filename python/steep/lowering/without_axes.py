"""Gives tensors without dimensions an axis, for operators along axes.

PyTorch accepts axis 0 and -1 of such a tensor, ONNX does not.
"""

from __future__ import annotations

import contextlib

import torch

from steep.torch_internals.dispatch import detect_fake_mode
from steep.torch_internals.operators import OpOverload, aten

_ALONG_AXES = {
    *(aten.all, aten.amax, aten.amin, aten.aminmax, aten.flip, aten.prod),
    *(aten.std, aten.std_mean, aten.var, aten.var_mean),
    *(aten.scatter, aten.scatter_add, aten.scatter_reduce),
}


def give_axes(graph_module: torch.fx.GraphModule) -> None:
    """Unsqueeze operands without dimensions of such calls, and squeeze their results, in place.

    Nodes have their fake results in ``meta["val"]``, before and after.
    """
    for module in graph_module.modules():  # branches are nested graphs
        if isinstance(module, torch.fx.GraphModule):
            calls = filter(_is_along_axis, module.graph.nodes)
            without = [node for node in calls if not _tensor(node.args[0]).dim()]
            for node in without:
                _give_axis(module.graph, node)
            if without:
                module.recompile()


def _is_along_axis(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.overloadpacket in _ALONG_AXES


def _tensor(node: torch.fx.Node) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


def _give_axis(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    unsqueezed: dict[torch.fx.Node, torch.fx.Node] = {}
    with detect_fake_mode([_tensor(node.args[0])]) or contextlib.nullcontext():
        for operand in node.all_input_nodes:
            value = operand.meta.get("val")
            if isinstance(value, torch.Tensor) and not value.dim():
                with graph.inserting_before(node):
                    row = graph.call_function(aten.unsqueeze.default, (operand, 0))
                row.meta = {**node.meta, "val": value.unsqueeze(0)}
                unsqueezed[operand] = row
        node.args = torch.fx.map_arg(node.args, lambda n: unsqueezed.get(n, n))
        node.kwargs = torch.fx.map_arg(node.kwargs, lambda n: unsqueezed.get(n, n))
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        results = node.target(*args, **kwargs)  # type: ignore[operator]
    node.meta["val"] = results
    for part in [node] if isinstance(results, torch.Tensor) else list(node.users):
        value = results if part is node else results[part.args[1]]
        part.meta["val"] = value
        if value.dim():
            with graph.inserting_after(part):
                scalar = graph.call_function(aten.squeeze.dim, (part, 0))
            scalar.meta = {**node.meta, "val": value.squeeze(0)}
            part.replace_all_uses_with(scalar, delete_user_cb=lambda user, s=scalar: user is not s)
