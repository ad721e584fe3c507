"""Scaled dot-product attention as PyTorch computes it.

The exporter's translation accepts four axes only. It also lets a query without any key attend to
all keys; PyTorch returns 0 there (a row of the mask that is all False, or all -inf).
"""

from __future__ import annotations

from onnxscript.function_libs.torch_lib.ops.nn import (
    _attention_repeat_kv_for_group_query,
    _attention_scale,
    _causal_attention_mask,
)

from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.steep_nodes import steep_node
from steep.lowering.ops.values import Number, Translation, Value
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload


def _attention(  # noqa: PLR0917, as ATen has it
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Number | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Return softmax(query keyᵀ · scale + mask) value, with dropout of the softmax, […, L, Ev].

    ``query`` is […, L, E], ``key`` […, S, E], ``value`` […, S, Ev], each of two axes or more;
    ``attn_mask``, bool or float, broadcasts to […, L, S].
    """
    if scale is None:
        scale = _attention_scale(query)
    elif not isinstance(scale, ir.Value):
        scale = opset18.Constant(value_float=float(scale))
    scale = opset18.CastLike(scale, query)
    root = opset18.Sqrt(opset18.Abs(scale))
    of_keys = opset18.Mul(root, opset18.Sign(scale))  # scale may be negative
    axes = list(range(len(key.shape)))  # before Mul, whose result has no known shape
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        key, value = _for_every_head(query, key, value)
    transpose = opset18.Transpose(key, perm=[*axes[:-2], axes[-1], axes[-2]])
    scores = opset18.MatMul(opset18.Mul(query, root), opset18.Mul(transpose, of_keys))
    if attn_mask is not None:
        weights = _safe(opset18.Add(scores, _to_summand(attn_mask, query)), -1, query.dtype)
    else:
        if is_causal:
            scores = opset18.Add(scores, _causal_attention_mask(query, key))
        weights = opset18.Softmax(scores, axis=-1)
    if dropout_p != 0:
        weights, _ = opset18.Dropout(weights, dropout_p)
    return opset18.MatMul(weights, value)


def _for_every_head(query: Value, key: Value, value: Value) -> tuple[Value, Value]:
    """Repeat keys and values of fewer heads (third axis from the end) for all query heads."""
    if len(query.shape) == 4:
        pair: tuple[Value, Value] = _attention_repeat_kv_for_group_query(query, key, value)
        return pair
    heads, of_keys = query.shape[-3], key.shape[-3]
    if not isinstance(heads, int) or not isinstance(of_keys, int):
        raise NotImplementedError("the number of heads is not known")
    head = opset18.Constant(value_ints=[i * of_keys // heads for i in range(heads)])
    axis = len(query.shape) - 3
    return opset18.Gather(key, head, axis=axis), opset18.Gather(value, head, axis=axis)


def _to_summand(mask: Value, like: Value) -> Value:
    """Return the mask as a summand of the scores: 0 where a boolean mask is True, else -inf."""
    if mask.dtype != ir.DataType.BOOL:
        return mask
    nothing, hidden_score = (opset18.Constant(value_float=v) for v in (0.0, float("-inf")))
    return opset18.CastLike(opset18.Where(mask, nothing, hidden_score), like)


def _safe(scores: Value, axis: int, dtype: ir.DataType | None) -> Value:
    """Return the softmax with the given dtype, and 0 for rows that contain only -inf."""
    (result,) = steep_node("SafeSoftmax", [scores], axis=axis)
    result.dtype = dtype
    return result


def _safe_softmax(self: Value, dim: int, dtype: int = -1) -> Value:
    if dtype == -1:
        return _safe(self, dim, self.dtype)
    return _safe(opset18.Cast(self, to=dtype), dim, ir.DataType(dtype))


ATTENTION: dict[OpOverload, Translation] = operators(
    {
        "aten._safe_softmax.default": _safe_softmax,
        "aten.scaled_dot_product_attention.default": _attention,
    }
)
"""Translations by operator."""
