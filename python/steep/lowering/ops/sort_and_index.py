"""Operators that select by order or position, in ONNX, with PyTorch's gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxscript.function_libs.torch_lib.ops.core import (
    aten_roll,
    aten_scatter_reduce,
    aten_topk,
)

from steep.lowering.ops.cumulative import known_length
from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.steep_nodes import steep_node, with_gradient_of
from steep.lowering.ops.stop_gradient import detach
from steep.lowering.ops.values import (
    Extents,
    Number,
    Operator,
    Pair,
    Translation,
    Value,
    ints,
    is_nan,
    number,
)
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload, aten


def _extreme(find: Operator) -> Pair:
    """Return ``max`` or ``min`` along an axis; the whole gradient goes to the returned index."""

    def extreme(self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        if not self.shape:
            return opset18.Identity(self), opset18.Constant(value_int=0)
        indices = find(self, axis=dim, keepdims=1)
        values = opset18.GatherElements(self, indices, axis=dim)
        if keepdim:
            return values, indices
        return opset18.Squeeze(values, ints(dim)), opset18.Squeeze(indices, ints(dim))

    return extreme


def _extremes(reduce: Operator) -> Operator:
    """Return ``amax`` or ``amin``; along all axes by default."""

    def extremes(self: Value, dim: Sequence[int] = (), keepdim: bool = False) -> Value:
        return reduce(self, ints(*dim) if dim else None, keepdims=int(keepdim))

    return extremes


def _roll(self: Value, shifts: Extents, dims: Sequence[int] = ()) -> Value:
    """Roll elements along axes; if a shift is symbolic, by two slices along each axis."""
    shifts = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    if all(isinstance(s, int) for s in shifts):
        return aten_roll(self, shifts, dims)
    x = self if dims else opset18.Reshape(self, ints(-1))
    for shift, dim in zip(shifts, dims or [0], strict=True):
        end = opset18.Shape(x, start=dim, end=dim + 1 or None)
        by = opset18.Reshape(shift, ints(1)) if isinstance(shift, ir.Value) else ints(shift)
        first = opset18.Mod(opset18.Neg(by), end)
        tail = opset18.Slice(x, first, end, ints(dim))
        x = opset18.Concat(tail, opset18.Slice(x, ints(0), first, ints(dim)), axis=dim)
    return x if dims else opset18.Reshape(x, opset18.Shape(self))


def _int64(value: int) -> Value:
    return opset18.Constant(value_int=value)


def _median(self: Value) -> Value:
    """Return the lower median of all elements, or NaN; equal elements share its gradient."""
    flat = opset18.Reshape(self, ints(-1))
    count = opset18.Shape(flat)
    half = opset18.Div(opset18.Add(count, ints(1)), ints(2))
    lower, _ = opset18.TopK(detach(flat), half, largest=0)
    value = opset18.Squeeze(opset18.Slice(lower, ints(-1), opset18.Shape(lower)), ints(0))
    zero = number(0, self)
    hits = opset18.Equal(flat, value)
    if self.dtype is None or self.dtype.is_floating_point():
        nans = is_nan(flat)
        spoilt = opset18.Cast(opset18.ReduceMax(opset18.Cast(nans, to=6), keepdims=0), to=9)
        value = opset18.Where(spoilt, number(math.nan, self), value)
        hits = opset18.Where(spoilt, nans, hits)
    shares = opset18.CastLike(opset18.ReduceSum(opset18.Cast(hits, to=7), keepdims=0), self)
    distances = opset18.Where(hits, opset18.Sub(flat, value), zero)
    return opset18.Add(value, opset18.Div(opset18.ReduceSum(distances, keepdims=0), shares))


def _place(find: Operator) -> Operator:
    """Return ``argmax`` or ``argmin``; among all elements by default."""

    def place(self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is not None and self.shape:
            return find(self, axis=dim, keepdims=int(keepdim))
        index = find(opset18.Reshape(self, ints(-1)), axis=0, keepdims=0)
        return opset18.Reshape(index, ints(*[1] * len(self.shape))) if keepdim else index

    return place


def _index_fill(self: Value, dim: int, index: Value, value: Number) -> Value:
    """Fill the rows that ``index`` names; it may name a row repeatedly."""
    x = self if self.shape else opset18.Reshape(self, ints(1))
    rank, axis = max(len(self.shape), 1), dim % max(len(self.shape), 1)
    extent = opset18.Shape(x, start=axis, end=axis + 1)
    index = opset18.Reshape(opset18.Cast(index, to=ir.DataType.INT64), ints(-1))
    ones = opset18.Expand(_int64(1), opset18.Shape(index))
    mask = opset18.ScatterElements(opset18.Expand(_int64(0), extent), index, ones, axis=0)
    mask = opset18.Cast(mask, to=ir.DataType.BOOL)
    if others := [i for i in range(rank) if i != axis]:
        mask = opset18.Unsqueeze(mask, ints(*others))
    value = opset18.CastLike(value, x) if isinstance(value, ir.Value) else number(value, x)
    result = opset18.Where(mask, value, x)
    return result if self.shape else opset18.Reshape(result, opset18.Shape(self))


def _sort(self: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    """Sort by TopK, which is stable and treats NaN as the largest."""
    if not self.shape:
        return opset18.Identity(self), opset18.Constant(value_int=0)
    count = opset18.Shape(self, start=dim, end=dim + 1 or None)
    of_bools = self.dtype == ir.DataType.BOOL
    operand = opset18.Cast(self, to=ir.DataType.INT32) if of_bools else self
    values, indices = opset18.TopK(operand, count, axis=dim, largest=int(descending))
    return opset18.Cast(values, to=ir.DataType.BOOL) if of_bools else values, indices


def _topk(
    self: Value, k: int | Value, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    """Return the k largest elements; among equal ones, PyTorch's algorithm decides the order."""
    if not self.shape:
        return opset18.Identity(self), opset18.Constant(value_int=0)
    if not isinstance(k, int):
        values, indices = aten_topk(self, k, dim, largest, sorted)
        return values, indices
    half = self.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    operand = opset18.Cast(self, to=ir.DataType.FLOAT) if half else self
    values, indices = steep_node(
        "TopK", [operand], 2, k=k, axis=dim, largest=largest, sorted=sorted
    )
    return opset18.Cast(values, to=self.dtype) if half else values, indices


def _sorted_stably(
    self: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    return _sort(self, dim, descending)


_COMPARED = 4096


def _searchsorted(
    sorted_sequence: Value,
    self: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """Return the numbers of smaller elements (``right``: smaller or equal), by comparing with all.

    Raises NotImplementedError for sequences longer than ``_COMPARED``, and for a ``sorter``.
    """
    if sorter is not None or known_length(sorted_sequence, -1) > _COMPARED:
        raise NotImplementedError("the sorted sequence is too long to compare all elements")
    follows = opset18.Greater if right or side == "right" else opset18.GreaterOrEqual
    row = sorted_sequence
    if len(row.shape) > 1:
        row = opset18.Unsqueeze(row, ints(-2))
    # all elements are lower than NaN
    lower = opset18.Not(follows(row, opset18.Unsqueeze(self, ints(-1))))
    kind = 6 if out_int32 else 7
    return opset18.ReduceSum(opset18.Cast(lower, to=kind), ints(-1), keepdims=0)


def _scatter_reduce(  # noqa: PLR0917, as ATen has it
    self: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool = True
) -> Value:
    """``scatter_reduce``: means, and the gradients of extremes; the exporter does the rest.

    Without ``include_self``, a mean is that of the scattered elements only.
    """
    if reduce != "mean":
        result = aten_scatter_reduce(self, dim, index, src, reduce, include_self)
        is_float = self.dtype is None or self.dtype.is_floating_point()
        if reduce not in {"amax", "amin"} or not is_float or not self.shape:
            return result
        return _with_shares(result, self, dim, index, src, include_self)
    if not self.shape:
        raise NotImplementedError
    zero, one = number(0, self), number(1, self)
    hits = opset18.ScatterElements(
        opset18.Expand(zero, opset18.Shape(self)),
        index,
        opset18.Expand(one, opset18.Shape(index)),
        axis=dim,
        reduction="add",
    )
    no_hits = opset18.Equal(hits, zero)
    base = self if include_self else opset18.Where(no_hits, self, zero)
    count = opset18.Add(hits, one) if include_self else opset18.Where(no_hits, one, hits)
    total = opset18.ScatterElements(base, index, src, axis=dim, reduction="add")
    if self.dtype is None or self.dtype.is_floating_point():
        return opset18.Div(total, count)
    # PyTorch's floor division of integers
    quotient = opset18.Div(total, count)
    rest = opset18.Sub(total, opset18.Mul(quotient, count))
    return opset18.Where(opset18.Less(rest, zero), opset18.Sub(quotient, one), quotient)


def _with_shares(  # noqa: PLR0917, as ATen has it
    result: Value, self: Value, dim: int, index: Value, src: Value, include_self: bool
) -> Value:
    """Return the scattered extremes with PyTorch's gradients: equal elements share alike.

    Without ``include_self``, an element of ``self`` that equals the extreme still counts as a
    share, but gets no gradient. Source: ``scatter_reduce_backward`` in
    torch/csrc/autograd/FunctionsManual.cpp.
    """
    result = detach(result)
    is_result = opset18.CastLike(opset18.Equal(self, result), self)
    hits = opset18.Equal(src, opset18.GatherElements(result, index, axis=dim))
    is_picked = opset18.CastLike(hits, self)
    add = {"axis": dim, "reduction": "add"}
    sharers = opset18.ScatterElements(is_result, index, is_picked, **add)
    shares = sharers
    if not include_self:  # before the division: there may be no sharer of a result that is NaN
        ones = opset18.Expand(number(1, self), opset18.Shape(self))
        none = opset18.Expand(number(0, self), opset18.Shape(index))
        is_left = opset18.ScatterElements(ones, index, none, axis=dim)
        is_result = opset18.Mul(is_result, is_left)
        shares = opset18.Where(opset18.Equal(is_left, number(1, self)), sharers, ones)
    of_self = opset18.Div(opset18.Mul(self, is_result), shares)
    of_src = opset18.Div(
        opset18.Mul(src, is_picked), opset18.GatherElements(sharers, index, axis=dim)
    )
    return with_gradient_of(result, opset18.ScatterElements(of_self, index, of_src, **add))


AS_IN_TORCH: dict[OpOverload, Translation] = operators(
    {
        "aten.amax.default": _extremes(opset18.ReduceMax),
        "aten.amin.default": _extremes(opset18.ReduceMin),
        "aten.argmax.default": _place(opset18.ArgMax),
        "aten.argmin.default": _place(opset18.ArgMin),
        "aten.max.dim": _extreme(opset18.ArgMax),
        "aten.min.dim": _extreme(opset18.ArgMin),
        "aten.median.default": _median,
        "aten.sort.default": _sort,
        "aten.sort.stable": _sorted_stably,
        "aten.scatter_reduce.two": _scatter_reduce,
        "aten.searchsorted.Tensor": _searchsorted,
        "aten.topk.default": _topk,
        "aten.roll.default": _roll,
        "aten.index_fill.int_Scalar": _index_fill,
        "aten.index_fill.int_Tensor": _index_fill,
    }
)
"""Translations by operator."""

REFUSED = {
    aten.multi_margin_loss.default,
    aten.multilabel_margin_loss.default,
    aten.special_erfcx.default,
    aten.special_log_ndtr.default,
}
"""Operators that the exporter translates wrongly: gradients at margins, ignored labels, tails."""
