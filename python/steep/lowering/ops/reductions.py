"""Norms, deviations, extremes and losses in ONNX.

Their gradients at zero, at ties and at NaN are PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from steep.lowering.ops.elementwise import log1p
from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.steep_nodes import steep_node, with_gradient_of
from steep.lowering.ops.stop_gradient import detach
from steep.lowering.ops.values import Operator, Translation, Value, is_nan, number
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload


def _root(square: Value) -> Value:
    """Return the square root; its gradient is 0 at 0."""
    zero = opset18.Equal(square, number(0, square))
    root = opset18.Sqrt(opset18.Where(zero, number(1, square), square))
    return opset18.Where(zero, number(0, square), root)


def _of_difference(loss: Callable[[Value, float], Value]) -> Operator:
    """Return a loss of ``self - target``; reduction is 0 (none), 1 (mean) or 2 (sum)."""

    def translation(
        self: Value, target: Value, reduction: int = 1, width: float = 1, **kw: float
    ) -> Value:
        losses = loss(opset18.Sub(self, target), float(kw.get("beta", kw.get("delta", width))))
        if reduction == 0:
            return losses
        reduce = opset18.ReduceMean if reduction == 1 else opset18.ReduceSum
        return reduce(losses, keepdims=0)

    return translation


def _smooth_l1(difference: Value, beta: float) -> Value:
    """d² / 2β within ±β, else |d| - β / 2, where d may be infinite."""
    if beta == 0:
        return opset18.Abs(difference)
    square, beyond, far = _parts_of_huber(difference, beta)
    near = opset18.Div(square, number(2 * beta, difference))
    return opset18.Where(beyond, opset18.Sub(far, number(beta / 2, difference)), near)


def _huber(difference: Value, delta: float) -> Value:
    """d² / 2 within ±δ, else δ (|d| - δ / 2), where d may be infinite."""
    square, beyond, far = _parts_of_huber(difference, delta)
    far = opset18.Mul(opset18.Sub(far, number(delta / 2, far)), number(delta, far))
    return opset18.Where(beyond, far, opset18.Mul(square, number(0.5, square)))


def _parts_of_huber(difference: Value, width: float) -> tuple[Value, Value, Value]:
    """Return d² (0 beyond ±width), the mask of elements beyond ±width, and |d|.

    NaN counts as within.
    """
    size = opset18.Abs(difference)
    beyond = opset18.GreaterOrEqual(size, number(width, difference))
    inside = opset18.Where(beyond, number(0, difference), difference)
    return opset18.Mul(inside, inside), beyond, size


def extreme_in_shares(
    reduce: Value, x: Value, axes: Value, keepdims: int, multiplies: bool = False
) -> Value:
    """Return the extreme along axes; elements equal to it share its gradient, also NaN.

    ``multiplies``: other elements get 0 times the gradient, which is NaN if that is infinite.
    """
    value = detach(reduce(x, axes, keepdims=1))
    hits = opset18.Or(opset18.Equal(x, value), opset18.And(is_nan(x), is_nan(value)))
    count = opset18.ReduceSum(opset18.Cast(hits, to=ir.DataType.INT64), axes, keepdims=keepdims)
    if multiplies:
        extremes = opset18.Mul(x, opset18.CastLike(hits, x))
    else:
        extremes = opset18.Where(hits, x, number(0, x))
    total = opset18.ReduceSum(extremes, axes, keepdims=keepdims)
    source = opset18.Div(total, opset18.CastLike(count, x))
    return with_gradient_of(detach(reduce(x, axes, keepdims=keepdims)), source)


def _extreme_of_all(reduce: Operator, of_two: Operator) -> Operator:
    """Return ``max`` or ``min`` of all elements; for no elements PyTorch and the engine raise."""

    def extreme(self: Value) -> Value:
        if 0 in self.shape:
            raise NotImplementedError("max or min of a tensor without elements")
        floating = self.dtype is None or self.dtype.is_floating_point()
        value = extreme_in_shares(reduce, self, None, 0) if floating else reduce(self, keepdims=0)
        if all(isinstance(n, int) for n in self.shape) or self.dtype == ir.DataType.BOOL:
            return value
        flat = opset18.Reshape(self, opset18.Constant(value_ints=[-1]))
        # an error if there are no elements
        first = opset18.Gather(flat, opset18.Constant(value_int=0), axis=0)
        result = of_two(value, first)
        return with_gradient_of(detach(result), value) if floating else result

    return extreme


def _any(self: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Value:
    """Return whether any element is true; False for no elements."""
    truth = opset18.Cast(self, to=ir.DataType.BOOL)
    dims = [dim] if isinstance(dim, int) else dim
    if not self.shape or (dims is not None and len(dims) == 0):
        return truth
    axes = opset18.Constant(value_ints=list(dims)) if dims else None
    greatest = opset18.ReduceMax(
        opset18.Cast(truth, to=ir.DataType.INT32), axes, keepdims=int(bool(keepdim))
    )
    return opset18.Greater(greatest, opset18.Constant(value=ir.tensor(0, ir.DataType.INT32)))


_LEAST_SPREAD = 9.999999960041972e-13  # float32's 1e-12


def _binary_cross_entropy(
    self: Value, target: Value, weight: Value | None = None, reduction: int = 1
) -> Value:
    """Binary cross entropy; as in PyTorch, logarithms are at least -100.

    The denominator p (1 - p) of the gradient is at least 1e-12.
    """
    zero, one, least = number(0, self), number(1, self), number(-100, self)
    spread = detach(opset18.Mul(self, opset18.Sub(one, self)))
    inside = opset18.Greater(spread, number(_LEAST_SPREAD, self))

    def loss(log_p: Value, log_q: Value) -> Value:
        rest = opset18.Sub(one, target)
        return opset18.Neg(opset18.Add(opset18.Mul(target, log_p), opset18.Mul(rest, log_q)))

    p = opset18.Where(inside, self, number(0.5, self))
    within = loss(opset18.Log(p), log1p(opset18.Neg(p)))
    probability = detach(self)
    at_end = loss(
        opset18.Max(opset18.Log(probability), least),
        opset18.Max(opset18.Log(opset18.Sub(one, probability)), least),
    )
    slope = opset18.Div(opset18.Sub(probability, detach(target)), number(_LEAST_SPREAD, self))
    change = opset18.Sub(
        opset18.Where(inside, zero, self), opset18.Where(inside, zero, probability)
    )
    losses = opset18.Where(inside, within, opset18.Add(at_end, opset18.Mul(slope, change)))
    if weight is not None:
        losses = opset18.Mul(losses, weight)
    if reduction == 0:
        return losses
    reduce = opset18.ReduceMean if reduction == 1 else opset18.ReduceSum
    return reduce(losses, keepdims=0)


def _norm(
    self: Value,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: int = -1,
) -> Value:
    """(Σ|x|ⁿ)^(1/n), with gradient 0 where the norm is 0."""
    x = opset18.Cast(self, to=dtype) if dtype not in (-1, None) else self
    if not self.shape:
        x, dim = opset18.Unsqueeze(x, opset18.Constant(value_ints=[0])), [0]
        keepdim = False  # there is no axis to keep
    axes = opset18.Constant(value_ints=list(dim)) if dim else None
    flags = {"keepdims": int(bool(keepdim))}
    size = opset18.Abs(x)
    if ord in (1, 2):
        reduce = opset18.ReduceL1 if ord == 1 else opset18.ReduceL2
        return reduce(x, axes, **flags)
    if math.isinf(ord):
        reduce = opset18.ReduceMax if ord > 0 else opset18.ReduceMin
        return extreme_in_shares(reduce, size, axes, flags["keepdims"], True)  # PyTorch multiplies
    zero, one = number(0, x), number(1, x)
    at_zero = opset18.Equal(x, zero)
    if ord == 0:
        return opset18.ReduceSum(opset18.Where(at_zero, zero, one), axes, **flags)
    power = opset18.Pow(opset18.Where(at_zero, one, size), number(ord, x))
    # if another element is NaN, the gradient at 0 is NaN
    none = opset18.Mul(x, zero) if ord > 0 else number(math.inf, x)
    power = opset18.Where(at_zero, none, power)
    total = opset18.ReduceSum(power, axes, **flags)
    none = opset18.Equal(total, zero)
    root = opset18.Pow(opset18.Where(none, one, total), number(1 / ord, x))
    return opset18.Where(none, zero, root)


def _deviation(
    self: Value,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Value:
    """Standard deviation, with gradient 0 where it is 0; computed in float64, as in PyTorch."""
    return _deviation_and_mean(self, dim, correction=correction, keepdim=keepdim)[0]


def _deviation_and_mean(
    self: Value,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:
    wide = opset18.Cast(self, to=ir.DataType.DOUBLE)
    wide.shape = self.shape
    variance, mean = _variance_and_mean(wide, dim, correction=correction, keepdim=keepdim)
    return opset18.CastLike(_root(variance), self), opset18.CastLike(mean, self)


def _variance_and_mean(
    self: Value,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:
    axes = opset18.Constant(value_ints=list(dim or range(len(self.shape))))
    flags = {"keepdims": int(bool(keepdim))}
    deviations = opset18.Sub(self, opset18.ReduceMean(self, axes, keepdims=1))
    total = opset18.ReduceSum(opset18.Mul(deviations, deviations), axes, **flags)
    count = opset18.ReduceProd(opset18.Gather(opset18.Shape(self), axes), keepdims=0)
    fewer = number(1 if correction is None else correction, self)
    freedom = opset18.Max(opset18.Sub(opset18.CastLike(count, self), fewer), number(0, self))
    return opset18.Div(total, freedom), opset18.ReduceMean(self, axes, **flags)


def _variance(
    self: Value, dim: Value = None, *, correction: float | None = None, keepdim: bool = False
) -> Value:
    """Variance, computed in float64, as in PyTorch; the gradient is PyTorch's formula."""
    wide = opset18.Cast(self, to=ir.DataType.DOUBLE)
    wide.shape = self.shape
    value, _ = _variance_and_mean(wide, dim, correction=correction, keepdim=True)
    value = detach(opset18.CastLike(value, self))
    (gradient,) = steep_node("GradientOf", [value])
    axes = opset18.Constant(value_ints=list(dim or range(len(self.shape))))
    count = opset18.ReduceProd(opset18.Gather(opset18.Shape(self), axes), keepdims=0)
    fewer = number(1 if correction is None else correction, self)
    freedom = opset18.Max(opset18.Sub(opset18.CastLike(count, self), fewer), number(0, self))
    factor = opset18.Mul(opset18.Div(number(2, self), freedom), gradient)
    deviations = opset18.Sub(self, opset18.ReduceMean(self, axes, keepdims=1))
    slopes = opset18.Mul(factor, deviations)
    result = steep_node("WithGradient", [value, self, slopes, gradient], outputs=1)[0]
    return result if keepdim else opset18.Squeeze(result, axes)


def _variance_and_mean_of(
    self: Value, dim: Value = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    axes = opset18.Constant(value_ints=list(dim or range(len(self.shape))))
    mean = opset18.ReduceMean(self, axes, keepdims=int(bool(keepdim)))
    return _variance(self, dim, correction=correction, keepdim=keepdim), mean


def _distances(x1: Value, x2: Value) -> Value:
    """Return the distances of vectors [..., P, M] and [..., R, M], by one matrix product.

    The shape is [..., P, R]. Gradients are PyTorch's formula: 0 where the distance is 0.
    """
    of_rows, last = opset18.Constant(value_ints=[-1]), len(x1.shape)

    def squares(x: Value) -> Value:
        return opset18.ReduceSum(opset18.Mul(x, x), of_rows, keepdims=1)

    def transpose(x: Value) -> Value:
        return opset18.Transpose(x, perm=[*range(last - 2), last - 1, last - 2])

    ones = [opset18.Expand(number(1, x), opset18.Shape(squares(x))) for x in (x1, x2)]
    left = opset18.Concat(opset18.Mul(x1, number(-2, x1)), squares(x1), ones[0], axis=-1)
    right = opset18.Concat(x2, ones[1], squares(x2), axis=-1)
    square = opset18.MatMul(left, transpose(right))
    zero = number(0, x1)
    negative = opset18.Less(square, zero)
    y = detach(opset18.Sqrt(opset18.Where(negative, zero, square)))
    (gradient,) = steep_node("GradientOf", [y])
    none = opset18.Equal(y, zero)
    one = number(1, x1)
    ratio = opset18.Where(none, zero, opset18.Div(gradient, opset18.Where(none, one, y)))
    by_columns = transpose(ratio)
    slopes = [
        opset18.Sub(
            opset18.Mul(x, opset18.ReduceSum(share, of_rows, keepdims=1)),
            opset18.MatMul(share, others),
        )
        for x, share, others in ((x1, ratio, x2), (x2, by_columns, x1))
    ]
    return steep_node("WithGradient", [y, x1, x2, *slopes, gradient], outputs=1)[0]


AS_IN_TORCH: dict[OpOverload, Translation] = operators(
    {
        "aten.smooth_l1_loss.default": _of_difference(_smooth_l1),
        "aten.huber_loss.default": _of_difference(_huber),
        "aten.any.default": _any,
        "aten.any.dim": _any,
        "aten.any.dims": _any,
        "aten.max.default": _extreme_of_all(opset18.ReduceMax, opset18.Max),
        "aten.min.default": _extreme_of_all(opset18.ReduceMin, opset18.Min),
        "aten.binary_cross_entropy.default": _binary_cross_entropy,
        "aten.linalg_vector_norm.default": _norm,
        "aten.std.correction": _deviation,
        "aten.std_mean.correction": _deviation_and_mean,
        "aten.var.correction": _variance,
        "aten.var_mean.correction": _variance_and_mean_of,
        "aten._euclidean_dist.default": _distances,
    }
)
"""Translations by operator."""
