"""Rewrites of operators that users call by ATen's names, for results beside the first one.

PyTorch differentiates the first result of these operators. The others are statistics that its
formulas of derivatives read; a user who reads them gets numbers without a gradient. Which operators
these are stands in PyTorch's ``derivatives.yaml``: those whose formulas use the gradient of the
first result only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from steep.lowering.ops.stop_gradient import stop_gradient
from steep.torch_internals.operators import OpOverload, aten
from steep.torch_internals.pytree import tree_map_only

_FIRST_DIFFERENTIABLE = (
    *("native_layer_norm", "native_batch_norm"),
    *("_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
    *("_batch_norm_impl_index", "_batch_norm_with_update", "_batch_norm_with_update_functional"),
    *("log_sigmoid_forward", "_weight_norm_interface"),
)
# The exporters leave their other results empty, or wrong.
_WITHOUT_RESULTS = (
    *("_ctc_loss", "_embedding_bag", "_linalg_det", "_pack_padded_sequence"),
    *("_scaled_dot_product_flash_attention_for_cpu", "multilabel_margin_loss_forward"),
    *("nll_loss_forward", "nll_loss2d_forward"),
)


def _named(names: tuple[str, ...]) -> list[Callable[..., Any]]:
    """Return the functions of these names of ``torch`` and ``torch.ops.aten``, as far as found.

    No overloads: a transform's expansion calls these, and a second derivative of it goes through
    the statistics. ``call_by_name`` changes the overloads that a user calls.
    """
    return [
        function
        for name in names
        for function in (getattr(torch, name, None), getattr(aten, name, None))
        if function is not None
    ]


def _first_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    def rewrite(*args: object, **kwargs: object) -> tuple[torch.Tensor, ...]:
        first, *others = function(*args, **kwargs)
        return first, *tree_map_only(torch.Tensor, stop_gradient, others)

    return rewrite


def _native_dropout(
    input: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.native_dropout``, also where it drops all: ONNX's ratio is below 1."""
    if p == 1 and train is not False:
        return input * torch.zeros((), dtype=input.dtype), torch.zeros_like(input) != 0
    result, mask = torch.native_dropout(input, p, train)
    return result, mask


SEVERAL_RESULTS: dict[Any, Callable[..., Any]] = {
    **{f: _first_differentiable(f) for f in _named(_FIRST_DIFFERENTIABLE)},
    **dict.fromkeys(_named(("native_dropout",)), _native_dropout),
}
"""Rewrites by function."""

WITHOUT_RESULTS = _named(_WITHOUT_RESULTS)
"""Functions with further results that ONNX cannot express."""


def call_by_name(graph: torch.fx.Graph) -> None:
    """Let a captured graph call these operators by name, where a user called an overload."""
    for n in graph.nodes:
        packet = n.target.overloadpacket if isinstance(n.target, OpOverload) else None
        if packet in SEVERAL_RESULTS or packet in WITHOUT_RESULTS:
            n.target = packet
