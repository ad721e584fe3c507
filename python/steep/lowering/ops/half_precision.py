"""Operators of float16 and bfloat16, as PyTorch computes them: in float32, rounded at the end.

A number next to such a tensor (a count, an epsilon, a 0-dimensional integer tensor) stays float32
in PyTorch, but ONNX requires the tensor's dtype: 70,000 is infinite in float16. And operators that
ONNX composes of several steps (a variance, a norm) round once, not at each step.
"""

from __future__ import annotations

import math

import torch
from torch.fx.node import Argument

from steep.torch_internals.operators import OpOverload, aten
from steep.torch_internals.pytree import tree_map

_HALVES = (torch.float16, torch.bfloat16)
_WIDER = (torch.float32, torch.float64)
_CAST = torch.ops.prims.convert_element_type.default
_WITH_NUMBERS = {
    *(aten.mul, aten.div, aten.true_divide),
}
"""Operators that use a number unrounded.

Sums, powers and remainders round it to the tensor's dtype.
"""
_SUMS = {aten.add, aten.sub, aten.rsub}
_ROUND_NUMBERS = _SUMS | {aten.pow}
_IN_STEPS = {
    *(aten.var, aten.std, aten.var_mean, aten.std_mean, aten.norm, aten.renorm),
    *(aten.linalg_vector_norm, aten.linalg_matrix_norm, aten.dist, aten.pairwise_distance),
    *(aten.cdist, aten._cdist_forward, aten._euclidean_dist, aten.cosine_similarity),
    *(
        aten.logsumexp,
        aten.logaddexp,
        aten.logaddexp2,
        aten.logcumsumexp,
        aten.scatter_reduce,
        aten.index_reduce,
        aten.segment_reduce,
    ),
    *(aten.mse_loss, aten.l1_loss, aten.smooth_l1_loss, aten.huber_loss, aten.kl_div),
    *(aten.binary_cross_entropy, aten.binary_cross_entropy_with_logits, aten.nanmean),
    *(aten.soft_margin_loss, aten.multi_margin_loss, aten.cross_entropy_loss),
    *(aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional),
    *(aten._native_batch_norm_legit_no_training, aten.native_layer_norm, aten.layer_norm),
    *(aten.native_group_norm, aten.group_norm, aten.instance_norm, aten.rms_norm),
    *(aten.addmm, aten.addmv, aten.addbmm, aten.baddbmm, aten.floor_divide),
    *(aten.addcmul, aten.addcdiv, aten.lerp, aten.pow),
    *(aten.elu, aten.celu, aten.selu, aten.softplus, aten.mish, aten.silu, aten.glu),
    *(aten.gelu, aten.log_sigmoid, aten.expm1, aten.erfc, aten.special_erfc),
    aten.scaled_dot_product_attention,
    *(aten.rsqrt, aten.logit, aten.special_logit, aten.cumprod),
    *(aten.log1p, aten.sinc, aten.hypot, aten.atan2, aten.deg2rad),
    *(aten.special_entr, aten.special_expm1, aten.special_log1p, aten.special_sinc),
}


def compute_in_float32(graph_module: torch.fx.GraphModule) -> None:
    """Insert casts around such calls of a functional graph, in place.

    Nodes have their fake results in ``meta["val"]``, before and after.
    """
    for module in graph_module.modules():  # branches are nested graphs
        if isinstance(module, torch.fx.GraphModule):
            for node in list(module.graph.nodes):
                if _loses(node):
                    _round_numbers(node)
                    _keep_powers(node)
                    _widen(module.graph, node)
            module.recompile()


def _loses(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    halves = [v.dtype for v in _tensors(node) if v.dtype in _HALVES]
    packet = node.target.overloadpacket
    if halves and packet in _SUMS:
        return bool(node.kwargs.get("alpha", 1) != 1)
    if not halves or packet not in _IN_STEPS | _WITH_NUMBERS:
        return False
    # matrix products stay in 16 bits
    if packet in {aten.addmm, aten.addmv, aten.addbmm, aten.baddbmm}:
        return any(node.kwargs.get(name, 1) != 1 for name in ("alpha", "beta"))
    return (
        packet in _IN_STEPS
        or node.kwargs.get("rounding_mode") == "floor"
        or any(not _is_held(x, halves[0]) for x in (*node.args, *node.kwargs.values()))
    )


def _round_numbers(node: torch.fx.Node) -> None:
    """Round numbers to the tensors' dtype where PyTorch does: in powers and scaled sums."""
    if node.target.overloadpacket not in _ROUND_NUMBERS:  # type: ignore[union-attr]
        return
    dtype = next(v.dtype for v in _tensors(node) if v.dtype in _HALVES)

    def round_number(x: Argument) -> Argument:
        if isinstance(x, float):
            return torch.tensor(x, dtype=dtype).item()
        value = x.meta.get("val") if isinstance(x, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.dtype not in _WIDER:
            return x
        with node.graph.inserting_before(node):  # a tensor without dimensions
            cast = node.graph.call_function(_CAST, (x, dtype))
        cast.meta = {**node.meta, "val": value.to(dtype)}
        return cast

    node.args = tuple(map(round_number, node.args))
    node.kwargs = {name: round_number(x) for name, x in node.kwargs.items()}


def _keep_powers(node: torch.fx.Node) -> None:
    """Make the exponent of a float16 power a tensor.

    PyTorch computes such powers of float16 without square roots, other than for wider dtypes.
    """
    if node.target is not aten.pow.Tensor_Scalar or _tensors(node)[0].dtype != torch.float16:
        return
    if node.args[1] in (0.5, -0.5, 1.5):
        with node.graph.inserting_before(node):
            options = {"dtype": torch.float32}
            exponent = node.graph.call_function(aten.full.default, ([], node.args[1]), options)
        exponent.meta = {**node.meta, "val": torch.full([], node.args[1])}
        node.target, node.args = aten.pow.Tensor_Tensor, (node.args[0], exponent)


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return [v for v in values if isinstance(v, torch.Tensor)]


def _is_held(x: Argument, dtype: torch.dtype) -> bool:
    """Return whether this dtype represents an operand exactly."""
    value = x.meta.get("val") if isinstance(x, torch.fx.Node) else x
    if isinstance(value, torch.Tensor):
        return value.dtype in _HALVES or value.dtype == torch.bool
    if isinstance(value, (int, float)):
        return torch.tensor(value, dtype=dtype).item() == value or math.isnan(value)
    return not isinstance(value, (torch.SymInt, torch.SymFloat))


def _widen(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    casts: dict[torch.fx.Node, torch.fx.Node] = {}

    def wide(x: torch.fx.Node) -> torch.fx.Node:
        value = x.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype not in _HALVES:
            return x
        if x not in casts:
            with graph.inserting_before(node):
                casts[x] = graph.call_function(_CAST, (x, torch.float32))
            casts[x].meta = {**node.meta, "val": value.to(torch.float32)}
        return casts[x]

    def narrow(result: torch.fx.Node) -> None:
        value = result.meta["val"]
        if not isinstance(value, torch.Tensor) or value.dtype not in _HALVES:
            return
        result.meta = {**result.meta, "val": value.to(torch.float32)}
        with graph.inserting_after(result):
            back = graph.call_function(_CAST, (result, value.dtype))
        back.meta = {**result.meta, "val": value}
        result.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)

    node.args = torch.fx.map_arg(node.args, wide)
    kwargs = {k: torch.float32 if v in _HALVES else v for k, v in node.kwargs.items()}
    node.kwargs = torch.fx.map_arg(kwargs, wide)
    if isinstance(node.meta["val"], torch.Tensor):
        return narrow(node)
    for item in list(node.users):  # each user is a getitem
        narrow(item)
    node.meta["val"] = tree_map(
        lambda v: v.to(torch.float32) if getattr(v, "dtype", None) in _HALVES else v,
        node.meta["val"],
    )
