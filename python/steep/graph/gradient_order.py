"""The order in which gradients arrive at parameters.

All gradients of a graph are ready at once, and PyTorch would add them to the parameters in any
order. Views of parameters enforce the order of PyTorch's own backward: autograd passes a view's
gradient on before that of an earlier view.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from steep.torch_internals.distributed import active_ddp_module
from steep.torch_internals.operators import HigherOrderOperator
from steep.torch_internals.tensors import has_hooks

# Calls that consist of several operations in PyTorch's backward: their last parameter gets its
# gradient first. For a single operation, the first parameter does.
_SEVERAL = {
    "bilinear",
    "gru",
    "linear",
    "multi_head_attention_forward",
    "rnn_relu",
    "rnn_tanh",
}


def in_gradient_order(graph: torch.fx.Graph, positions: Sequence[int]) -> list[int]:
    """Sort placeholders' positions: those whose gradients PyTorch completes last come first.

    A gradient is complete when backward has passed the parameter's first use.
    """
    places = {node: i for i, node in enumerate(graph.nodes)}
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]

    def key(i: int) -> tuple[int, int]:
        if i >= len(placeholders) or not placeholders[i].users:
            return len(places), i
        use = min(placeholders[i].users, key=places.__getitem__)
        operand = use.all_input_nodes.index(placeholders[i])
        name = getattr(use.target, "__name__", use.target)
        weights = use.args[2] if len(use.args) > 3 else ()
        if name == "lstm" and isinstance(weights, (list, tuple)) and placeholders[i] in weights:
            # each layer and direction is one oneDNN operation: two matrices, two biases
            layer, operand = divmod(weights.index(placeholders[i]), 4 if use.args[3] else 2)
            return places[use], 4 * layer - operand
        several = name in _SEVERAL
        several = several or isinstance(use.target, HigherOrderOperator)
        return places[use], operand if several else -operand

    return sorted(positions, key=key)


def views_in_gradient_order(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors, or views of them so that the last one gets its gradient first.

    Views are made only if somebody can observe the order. A hook that reads other parameters'
    gradients (``param_to_hook_all_reduce``) relies on later parameters having theirs already. A
    DistributedDataParallel lays its buckets out in the order in which gradients come, and PowerSGD
    draws numbers in the order of a bucket's parameters.
    """
    in_ddp = active_ddp_module() is not None
    return [p.view_as(p) if p.is_leaf and (in_ddp or has_hooks(p)) else p for p in parameters]
