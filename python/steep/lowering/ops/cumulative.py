"""Products and cumulative functions in ONNX, with PyTorch's gradients.

PyTorch has several formulas for the gradients of products. The zeros among all factors decide which
one it uses, and they differ for NaN and infinities.
"""

from __future__ import annotations

import math

from onnxscript.function_libs.torch_lib.ops.core import aten_prod, aten_prod_dim_int

from steep.lowering.ops.elementwise import log_of_sum
from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.steep_nodes import steep_node
from steep.lowering.ops.stop_gradient import detach, slope_or_again
from steep.lowering.ops.values import Operator, Pair, Translation, Value, ints, is_nan, number
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload


def known_length(x: Value, dim: int) -> int:
    """Return the extent of an axis; raises NotImplementedError if it is not known."""
    extent = x.shape[dim]
    if not isinstance(extent, int):
        raise NotImplementedError("the length of a scan must be known")
    return extent


def _shift(x: Value, by: int, dim: int, fill: Value, back: bool = False) -> Value:
    """Return x shifted along an axis by ``by``, padded with the scalar ``fill`` in front.

    ``back``: shifted to the front, and padded at the end.
    """
    part = (ints(by), ints(2**31)) if back else (ints(0), ints(-by))
    rest = opset18.Slice(x, *part, ints(dim))
    empty = opset18.Slice(x, ints(0), ints(by), ints(dim))
    padding = opset18.Expand(fill, opset18.Shape(empty))
    return opset18.Concat(*((rest, padding) if back else (padding, rest)), axis=dim)


def _int64(value: int) -> Value:
    return opset18.Constant(value_int=value)


def _is_float(x: Value) -> bool:
    return x.dtype is None or bool(x.dtype.is_floating_point())


_NARROW = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.BOOL)


def _cast(x: Value, dtype: int | None) -> Value:
    if dtype in (-1, None):
        return x
    result = opset18.Cast(x, to=dtype)
    result.dtype, result.shape = ir.DataType(dtype), x.shape
    return result


def _products(x: Value, dim: int, **order: int) -> Value:
    """Return cumulative products; ``reverse`` and ``exclusive`` are as for ONNX's CumProd."""
    if x.dtype in _NARROW:  # the operator takes integers of 32 and 64 bits
        wide = steep_node("CumProd", [_cast(x, ir.DataType.INT64)], axis=dim, **order)[0]
        return _cast(wide, x.dtype)
    return steep_node("CumProd", [x], axis=dim, **order)[0]


def _sums_to_the_end(x: Value, dim: int) -> Value:
    return opset18.CumSum(x, _int64(dim), reverse=1)


def _count(mask: Value, axes: Value | None = None) -> Value:
    """Return the number of true elements, of all or along axes, which are kept."""
    numbers = opset18.Cast(mask, to=ir.DataType.INT64)
    return opset18.ReduceSum(numbers, axes, keepdims=int(axes is not None))


def _cumprod(self: Value, dim: int, *, dtype: int | None = -1) -> Value:
    """Return cumulative products, with the gradients of ``cumprod_backward``."""
    x = _cast(self, dtype)
    if not self.shape or self.shape[dim] == 1:
        return opset18.Identity(x)
    dim %= len(self.shape)
    return _running_products(x, dim) if _is_float(x) else _products(x, dim)


def _running_products(x: Value, dim: int) -> Value:
    y = detach(_products(x, dim))
    (gradient,) = steep_node("GradientOf", [y])
    zero, one = number(0, x), number(1, x)
    vanishes = opset18.Equal(x, zero)
    # masks: before the first zero, at it, and between it and the second zero
    zeros = opset18.CumSum(opset18.Cast(vanishes, to=ir.DataType.INT64), _int64(dim))
    before, one_zero = opset18.Equal(zeros, _int64(0)), opset18.Equal(zeros, _int64(1))
    first = opset18.And(vanishes, one_zero)
    between = opset18.And(one_zero, opset18.Not(vanishes))
    weights = opset18.Where(before, opset18.Mul(y, gradient), zero)
    of_first = opset18.Mul(
        opset18.ReduceSum(
            opset18.Mul(
                _products(opset18.Where(between, x, one), dim),
                opset18.Where(one_zero, gradient, zero),
            ),
            ints(dim),
            keepdims=1,
        ),
        _shift(y, 1, dim, one),
    )
    slopes = opset18.Where(
        before,
        opset18.Div(_sums_to_the_end(weights, dim), x),
        opset18.Where(first, of_first, zero),
    )
    again = _slopes_of_running_products(
        x, gradient, dim, opset18.Greater(_count(vanishes), _int64(0))
    )
    return steep_node("WithGradient", [y, x, slope_or_again(slopes, again), gradient], outputs=1)[0]


def _slopes_of_running_products(x: Value, gradient: Value, dim: int, some: Value) -> Value:
    """Return the formula for second derivatives: with zeros, products of all other factors.

    ``some``: whether any factor is zero. The branch that is not selected is computed with factors
    1, and has no gradient.
    """
    zero, one = number(0, x), number(1, x)
    plain = opset18.Where(some, one, x)
    of_plain = opset18.Where(some, zero, gradient)
    quotient = opset18.Div(
        _sums_to_the_end(opset18.Mul(_products(plain, dim), of_plain), dim), plain
    )
    factors, of_factors = opset18.Where(some, x, one), opset18.Where(some, gradient, zero)
    (sums,) = steep_node(
        "Recurrence",
        [of_factors, _shift(factors, 1, dim, zero, back=True)],
        axis=dim,
        reverse=True,
    )
    others = opset18.Mul(_products(factors, dim, exclusive=1), sums)
    # zero times infinity is NaN, in any order
    of_kind = []
    for kind in (opset18.Equal(x, zero), opset18.Equal(opset18.Abs(x), number(math.inf, x))):
        own = opset18.Cast(kind, to=ir.DataType.INT64)
        of_kind.append(opset18.Greater(_count(kind, ints(dim)), own))
    others = opset18.Where(opset18.And(*of_kind), number(math.nan, x), others)
    return opset18.Where(some, others, quotient)


def _prod(self: Value, dtype: int | None = -1) -> Value:
    x = _cast(self, dtype)
    if not _is_float(x):
        return aten_prod(self, dtype)
    if not self.shape:
        return opset18.Identity(x)
    flat = opset18.Reshape(x, ints(-1))
    flat.dtype = x.dtype
    return opset18.Squeeze(_product(flat, 0, of_all=True), ints(0))


def _prod_along(self: Value, dim: int, keepdim: bool = False, dtype: int | None = -1) -> Value:
    x = _cast(self, dtype)
    if not _is_float(x):
        return aten_prod_dim_int(self, dim, keepdim, dtype)
    if not self.shape:
        return opset18.Identity(x)
    dim %= len(self.shape)
    y = _product(x, dim)
    return y if keepdim else opset18.Squeeze(y, ints(dim))


def _product(x: Value, dim: int, of_all: bool = False) -> Value:
    """Return products along an axis, which is kept, with the gradients of ``prod_backward``.

    If any factor is zero, a gradient is the product of the factors before and after it; else it is
    a quotient. ``of_all``: the product of all elements, whose gradient is 0 for two zeros or more.
    """
    y = detach(opset18.ReduceProd(x, ints(dim), keepdims=1))
    (gradient,) = steep_node("GradientOf", [y])
    zero, one = number(0, x), number(1, x)
    zeros = _count(opset18.Equal(x, zero))
    some = opset18.Greater(zeros, _int64(0))
    parts = opset18.Mul(_products(x, dim, exclusive=1), _products(x, dim, exclusive=1, reverse=1))
    slopes = opset18.Mul(gradient, opset18.Where(some, parts, opset18.Div(y, x)))
    if of_all:
        slopes = opset18.Where(opset18.Greater(zeros, _int64(1)), zero, slopes)
    # The branch that is not selected is computed with factors 1, and has no gradient.
    plain, factors = opset18.Where(some, one, x), opset18.Where(some, x, one)
    quotient = opset18.Div(opset18.ReduceProd(plain, ints(dim), keepdims=1), plain)
    parts = opset18.Mul(
        _running_products(_shift_alike(factors, dim, False), dim),
        _flip(_running_products(_flip(_shift_alike(factors, dim, True), dim), dim), dim),
    )
    again = opset18.Mul(gradient, opset18.Where(some, parts, quotient))
    return steep_node("WithGradient", [y, x, slope_or_again(slopes, again), gradient], outputs=1)[0]


def _shift_alike(x: Value, dim: int, back: bool) -> Value:
    return _shift(x, 1, dim, number(1, x), back)


def _flip(x: Value, dim: int) -> Value:
    return opset18.Slice(x, ints(-1), ints(-(2**31)), ints(dim), ints(-1))


def _cumulative_extreme(not_beyond: Operator) -> Pair:
    """Return ``cummax`` or ``cummin``, by doubling; the last of equal values wins, and NaN wins."""

    def extreme(self: Value, dim: int) -> tuple[Value, Value]:
        if not self.shape:
            return opset18.Identity(self), opset18.Constant(value_int=0)
        length, value = known_length(self, dim), detach(self)
        axes = [i for i in range(len(self.shape)) if i != dim % len(self.shape)]
        index = ints(*range(length))
        if axes:
            index = opset18.Expand(opset18.Unsqueeze(index, ints(*axes)), opset18.Shape(self))
        step = 1
        while step < length:
            before = _shift(value, step, dim, number(0, value))
            earlier = _shift(index, step, dim, _int64(-1))
            stays = opset18.Or(
                opset18.Or(not_beyond(before, value), is_nan(value)),
                opset18.Less(earlier, _int64(0)),
            )
            value = opset18.Where(stays, value, before)
            index = opset18.Where(stays, index, earlier)
            step *= 2
        return opset18.GatherElements(self, index, axis=dim), index

    return extreme


def _logcumsumexp(self: Value, dim: int) -> Value:
    """Return the logarithms of sums of the first 1, 2, … exponentials, by doubling."""
    if not self.shape:
        return opset18.Identity(self)
    x, length, step = self, known_length(self, dim), 1
    while step < length:
        x, step = log_of_sum(x, _shift(x, step, dim, number(-math.inf, self))), 2 * step
    return _with_slopes_of_sums(self, x, dim % len(self.shape))


def _with_slopes_of_sums(x: Value, value: Value, dim: int) -> Value:
    """Return ``value`` with the gradient Σ g exp(x - y) over later elements, by a recurrence.

    PyTorch computes the same with logarithms, with larger rounding errors. Its special cases apply
    here too: terms with an infinite y, or a NaN gradient, are left out.
    """
    y = detach(value)
    (gradient,) = steep_node("GradientOf", [y])
    zero = number(0, x)
    has_sign = opset18.Or(opset18.Greater(gradient, zero), opset18.Less(gradient, zero))
    counts = opset18.And(has_sign, opset18.Not(opset18.Equal(y, number(math.inf, x))))
    following = _shift(y, 1, dim, number(math.inf, x), back=True)
    distance = opset18.Where(opset18.Equal(y, following), zero, opset18.Sub(y, following))
    inputs = [opset18.Where(counts, gradient, zero), opset18.Exp(distance)]
    (sums,) = steep_node("Recurrence", inputs, axis=dim, reverse=True)
    slopes = opset18.Mul(sums, opset18.Exp(opset18.Sub(x, y)))
    return steep_node("WithGradient", [y, x, slopes, gradient], outputs=1)[0]


AS_IN_TORCH: dict[OpOverload, Translation] = operators(
    {
        "aten.cummax.default": _cumulative_extreme(opset18.LessOrEqual),
        "aten.cummin.default": _cumulative_extreme(opset18.GreaterOrEqual),
        "aten.cumprod.default": _cumprod,
        "aten.logcumsumexp.default": _logcumsumexp,
        "aten.prod.default": _prod,
        "aten.prod.dim_int": _prod_along,
    }
)
"""Translations by operator."""
