"""PyTorch's elementwise functions in ONNX, with PyTorch's results at the edges of their domains.

The exporter's translations agree with PyTorch inside a function's domain. This file has the
functions that differ at the ends of the domain, at ties, at zero or for small numbers: in values
or, more often, in gradients.
"""

from __future__ import annotations

import math

import torch
from onnxscript.function_libs.torch_lib.ops.core import (
    aten_isclose,
    aten_isfinite,
    aten_linspace,
    aten_trunc,
)

from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.steep_nodes import with_changes, with_gradient_of, with_slopes
from steep.lowering.ops.stop_gradient import detach
from steep.lowering.ops.values import (
    Number,
    Operator,
    Slopes,
    Translation,
    Value,
    ints,
    is_nan,
    number,
)
from steep.patching.torch_versions import (
    CLAMP_IS_FLAT_AT_BOUNDS,
    SOFTSHRINK_ROUNDS_ITS_ENDS,
    operators,
)
from steep.torch_internals.operators import OpOverload


def _infinite(x: Value) -> Value:
    return opset18.Equal(opset18.Abs(x), number(math.inf, x))


def _clamp(self: Value, min: Number | None = None, max: Number | None = None) -> Value:
    """Clamp by numbers; a bound that is NaN is the result.

    The gradient is 0 at NaN; at both bounds it is 1, and 0 since PyTorch 2.14.
    """
    bounds = (min, max)
    plain = not any(isinstance(b, ir.Value) or (b is not None and math.isnan(b)) for b in bounds)
    if not plain and not CLAMP_IS_FLAT_AT_BOUNDS:
        return _clamp_by_tensors(self, min, max)
    low, high = (_to_value(b, self) for b in bounds)
    result = opset18.Clip(self, low, high) if plain else _clamp_between(self, low, high)
    if not CLAMP_IS_FLAT_AT_BOUNDS or (self.dtype is not None and self.dtype.is_integer()):
        return result
    zero = number(0, self)
    source = self if low is None else opset18.Where(opset18.Greater(self, low), self, zero)
    if high is not None:
        source = opset18.Where(opset18.Less(self, high), source, zero)
    return with_gradient_of(detach(result), source)


def _to_value(bound: Number | None, like: Value) -> Value | None:
    if bound is None:
        return None
    return opset18.CastLike(bound, like) if isinstance(bound, ir.Value) else number(bound, like)


def _clamp_between(x: Value, low: Value | None, high: Value | None) -> Value:
    for end, beyond in ((low, opset18.Less), (high, opset18.Greater)):
        if end is not None:
            x = opset18.Where(opset18.Or(beyond(x, end), is_nan(end)), end, x)
    return x


def _clamp_by_tensors(self: Value, min: Number | None = None, max: Number | None = None) -> Value:
    """Clamp by one or two tensors; the gradients are those of the installed PyTorch."""
    low, high = _to_value(min, self), _to_value(max, self)
    result = _clamp_between(self, low, high)
    if self.dtype is not None and self.dtype.is_integer():
        return result
    slopes = _slopes_of_shared_ties if CLAMP_IS_FLAT_AT_BOUNDS else _slopes_of_ties
    zero, source = number(0, self), None
    for value, where in slopes(self, low, high):
        part = opset18.Where(where, value, zero)
        source = part if source is None else opset18.Add(source, part)
    return with_gradient_of(detach(result), source)


def _slopes_of_ties(x: Value, low: Value | None, high: Value | None) -> Slopes:
    """Return pairs (tensor, mask of its gradient), before PyTorch 2.14.

    Source: PyTorch's ``clamp_backward_min_max``. A bound gets the gradient where the number is
    beyond it. The lower bound gets it only where it is less than the upper one; where the bounds
    are reversed the upper one always gets it.
    """
    inside, ends = opset18.Equal(x, x), []
    for end, beyond in ((low, opset18.Less), (high, opset18.Greater)):
        if end is not None:
            inside = opset18.And(inside, opset18.Not(opset18.Or(beyond(x, end), is_nan(end))))
            ends.append((end, beyond(x, end)))
    if low is not None and high is not None:
        (_, below), (_, above) = ends
        ends = [
            (low, opset18.And(below, opset18.Less(low, high))),
            (high, opset18.Or(above, opset18.Less(high, low))),
        ]
    return [(x, inside), *ends]


def _slopes_of_shared_ties(x: Value, low: Value | None, high: Value | None) -> Slopes:
    """Return pairs (tensor, mask of its gradient), since PyTorch 2.14.

    Source: PyTorch's ``clamp_backward_min_max``. Where the number equals a bound, both get half of
    the gradient, if the lower bound is less than the upper one. A single bound has the gradients of
    a maximum or minimum: 1 for both operands at NaN.
    """
    half, two = number(0.5, x), low is not None and high is not None
    parts, outside = [], None
    for end, beyond in ((low, opset18.Less), (high, opset18.Greater)):
        if end is None:
            continue
        past, tie = beyond(x, end), opset18.Equal(x, end)
        if two:
            tie = opset18.And(tie, opset18.Less(low, high))
            at_end = opset18.And(past, opset18.LessOrEqual(low, high))
            if end is high:
                at_end = opset18.Or(at_end, opset18.Less(high, low))
        else:
            at_end = opset18.Or(past, opset18.Or(is_nan(x), is_nan(end)))
        parts += [(end, at_end), (opset18.Mul(end, half), tie), (opset18.Mul(x, half), tie)]
        out = opset18.Or(past, tie)
        outside = out if outside is None else opset18.Or(outside, out)
    return [(x, opset18.Not(outside)), *parts]


def _hardshrink(self: Value, lambd: float = 0.5) -> Value:
    """0 between both ends, including the ends; gradient 0 at NaN."""
    return _without_slope(_within(self, number(lambd, self)), self, self)


def _within(x: Value, width: Value) -> Value:
    low = opset18.Neg(width)
    return opset18.And(opset18.GreaterOrEqual(x, low), opset18.LessOrEqual(x, width))


def _without_slope(where: Value, x: Value, otherwise: Value) -> Value:
    """Return 0 at ``where``, else ``otherwise``, with gradient 1 but for NaN, where it is 0."""
    zero = number(0, x)
    result = opset18.Where(where, zero, otherwise)
    flat = opset18.Or(where, is_nan(x))
    return with_gradient_of(detach(result), opset18.Where(flat, zero, x))


def _softshrink(self: Value, lambd: float = 0.5) -> Value:
    """Softshrink; the gradient is 0 between both ends, including the ends, and at NaN.

    For 16-bit tensors PyTorch rounds the ends for the gradient; for the result only since 2.14.
    """
    is_half = self.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    if is_half and not SOFTSHRINK_ROUNDS_ITS_ENDS:
        result = opset18.CastLike(
            _softshrink(opset18.Cast(self, to=ir.DataType.FLOAT), lambd), self
        )
        inside = opset18.Or(_within(self, number(lambd, self)), is_nan(self))
        return with_gradient_of(detach(result), opset18.Where(inside, number(0, self), self))
    width = number(lambd, self)
    below = opset18.Less(self, number(0, self))
    difference = opset18.Where(below, opset18.Add(self, width), opset18.Sub(self, width))
    return _without_slope(_within(self, width), self, difference)


def _hardtanh(self: Value, min_val: float = -1, max_val: float = 1) -> Value:
    """Hardtanh; the gradient is 0 at both ends and at NaN, as in PyTorch's vectorized code."""
    low, high = number(min_val, self), number(max_val, self)
    above = opset18.GreaterOrEqual(self, high)
    below = opset18.LessOrEqual(self, low)
    result = opset18.Where(below, low, opset18.Where(above, high, self))
    if self.dtype is not None and self.dtype.is_integer():
        return result
    inside = opset18.And(opset18.Less(self, high), opset18.Greater(self, low))
    return with_gradient_of(detach(result), opset18.Where(inside, self, number(0, self)))


def _relu6(self: Value) -> Value:
    return _hardtanh(self, 0, 6)


def _logarithm(base: float) -> Operator:
    """Return ``log2`` or ``log10``, computed in float64, so that powers of the base are exact."""

    def logarithm(self: Value) -> Value:
        x = opset18.Cast(self, to=ir.DataType.DOUBLE)
        y = opset18.Div(opset18.Log(x), number(math.log(base), x))
        whole = self.dtype is not None and not self.dtype.is_floating_point()
        return opset18.Cast(y, to=ir.DataType.FLOAT) if whole else opset18.CastLike(y, self)

    return logarithm


def _selu(self: Value) -> Value:
    return opset18.Selu(self, alpha=1.6732632423543772, gamma=1.0507009873554805)


def _celu(self: Value, alpha: float = 1) -> Value:
    if self.dtype == ir.DataType.FLOAT and alpha > 0:  # ONNX's Celu supports float32 only
        return opset18.Celu(self, alpha=alpha)
    scale, zero = number(alpha, self), number(0, self)
    below = opset18.LessOrEqual(self, zero)
    inside = opset18.Div(opset18.Where(below, self, zero), scale)
    return opset18.Where(below, opset18.Mul(scale, _expm1(inside)), self)


def _hardsigmoid(self: Value) -> Value:
    return opset18.HardSigmoid(self, alpha=1 / 6, beta=0.5)


def _log_sigmoid(self: Value) -> Value:
    return opset18.Neg(opset18.Softplus(opset18.Neg(self)))


def log1p(self: Value) -> Value:
    """ln(1 + x): 2 artanh(x / (2 + x)) where x is small."""
    small = opset18.Less(opset18.Abs(self), number(0.5, self))
    near = opset18.Where(small, self, number(0, self))
    far = opset18.Where(small, number(0, self), self)
    two = number(2, self)
    ratio = opset18.Div(near, opset18.Add(two, near))
    return opset18.Where(
        small,
        opset18.Mul(two, opset18.Atanh(ratio)),
        opset18.Log(opset18.Add(number(1, self), far)),
    )


def _expm1(self: Value) -> Value:
    """eˣ - 1: tanh(x / 2) (eˣ + 1) where x is small."""
    small = opset18.Less(opset18.Abs(self), number(0.5, self))
    near = opset18.Where(small, self, number(0, self))
    far = opset18.Where(small, number(0, self), self)
    one = number(1, self)
    slope = opset18.Tanh(opset18.Mul(near, number(0.5, self)))
    return opset18.Where(
        small,
        opset18.Mul(slope, opset18.Add(opset18.Exp(near), one)),
        opset18.Sub(opset18.Exp(far), one),
    )


def _atan2(self: Value, other: Value) -> Value:
    """Return the angle of (x, y) = (other, self); 0 at the origin.

    Gradients are those of PyTorch's formula, also where squares are 0 or infinite. The quotient is
    at most 1 in magnitude: -x / y is used near the y axis. If both operands are infinite, their
    signs decide.
    """
    diagonal = opset18.And(_infinite(self), _infinite(other))
    y, x = (opset18.Where(diagonal, opset18.Sign(v), v) for v in (self, other))
    zero, one, half = number(0, y), number(1, y), number(math.pi / 2, y)
    flat = opset18.GreaterOrEqual(opset18.Abs(x), opset18.Abs(y))
    origin = opset18.And(opset18.Equal(x, zero), opset18.Equal(y, zero))
    below = opset18.Or(opset18.Less(y, zero), opset18.Less(opset18.Reciprocal(y), zero))
    half = opset18.Where(below, opset18.Neg(half), half)
    behind = opset18.Or(
        opset18.Less(x, zero),
        opset18.And(opset18.Equal(x, zero), opset18.Less(opset18.Reciprocal(x), zero)),
    )
    turn = opset18.Where(behind, opset18.Add(half, half), zero)
    over = opset18.Where(flat, opset18.Where(origin, zero, y), opset18.Neg(x))
    under = opset18.Where(flat, opset18.Where(origin, one, x), y)
    angle = opset18.Add(opset18.Where(flat, turn, half), opset18.Atan(opset18.Div(over, under)))
    square = opset18.Add(opset18.Mul(self, self), opset18.Mul(other, other))
    none = opset18.Equal(square, zero)
    share = opset18.Where(none, zero, opset18.Reciprocal(opset18.Where(none, one, square)))
    return with_slopes(
        detach(angle),
        (self, opset18.Mul(other, share)),
        (other, opset18.Mul(opset18.Neg(self), share)),
    )


def _hypot(self: Value, other: Value) -> Value:
    """√(x² + y²), without overflow; infinite if an operand is infinite, even beside NaN.

    The gradients are quotients by the result: NaN at the origin and for infinite operands.
    """
    infinite = opset18.Or(_infinite(self), _infinite(other))
    largest = opset18.Max(opset18.Abs(self), opset18.Abs(other))
    none = opset18.Or(opset18.Equal(largest, number(0, self)), infinite)
    scale = opset18.Where(none, number(1, self), largest)
    x, y = opset18.Div(self, scale), opset18.Div(other, scale)
    square = opset18.Add(opset18.Mul(x, x), opset18.Mul(y, y))
    length = opset18.Mul(scale, opset18.Sqrt(square))
    length = detach(opset18.Where(infinite, number(math.inf, self), length))
    return with_slopes(
        length, (self, opset18.Div(self, length)), (other, opset18.Div(other, length))
    )


def _item(self: Value) -> Value:
    """Return the number in a one-element tensor: a bool, int64, float64 for float64, or float32."""
    dtype = ir.DataType.INT64
    if self.dtype == ir.DataType.BOOL:
        dtype = ir.DataType.BOOL
    elif self.dtype.is_floating_point():
        dtype = ir.DataType.DOUBLE if self.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    return opset18.Cast(opset18.Squeeze(opset18.Reshape(self, ints(-1)), ints(0)), to=dtype)


def _times_logarithm(logarithm: Operator, pole: float) -> Operator:
    """Return x ln y or x ln(1 + y), with its pole at y = 0 or -1.

    Source of the gradients: PyTorch's ``derivatives.yaml``. That of x is the same function of the
    gradient: 0 where the gradient is 0, even at the pole and below, where the logarithm is none.
    """

    def product(x: Value, y: Value) -> Value:
        none = opset18.And(opset18.Equal(x, number(0, x)), opset18.Not(is_nan(y)))
        return opset18.Where(none, number(0, x), opset18.Mul(x, logarithm(y)))

    def differentiable(x: Value, y: Value, order: int) -> Value:
        if order == 0:
            return product(x, y)
        none = opset18.Equal(x, number(0, x))
        flat = opset18.And(none, opset18.LessOrEqual(y, number(pole, y)))
        over = opset18.Sub(y, number(pole, y)) if pole else y

        def changes(g: Value) -> list[tuple[Value, Value]]:
            of_x = opset18.Where(flat, number(0, x), differentiable(g, y, order - 1))
            return [(x, of_x), (y, opset18.Div(opset18.Mul(g, x), over))]

        return with_changes(detach(product(x, y)), changes)

    def translation(self: Number, other: Number) -> Value:
        x = self if isinstance(self, ir.Value) else number(self, other)
        y = other if isinstance(other, ir.Value) else number(other, self)
        return differentiable(x, y, order=2)

    return translation


_xlogy, _xlog1py = _times_logarithm(opset18.Log, 0), _times_logarithm(log1p, -1)


def _logit(self: Value, eps: float | None = None) -> Value:
    """ln(x / (1 - x)), with a NaN gradient where it is NaN, and an infinite one at 0 and 1.

    With ``eps`` the gradient is 0 at NaN, as in PyTorch's vectorized code.
    """
    one = number(1, self)
    if eps is None or eps < 0:
        outside = opset18.Or(opset18.Less(self, number(0, self)), opset18.Greater(self, one))
        x = opset18.Mul(self, opset18.Where(outside, number(math.nan, self), one))
    else:
        low, high = number(eps, self), number(1 - eps, self)
        x = opset18.Where(opset18.Greater(self, high), high, self)
        x = opset18.Where(opset18.Less(self, low), low, x)
        x = opset18.Where(is_nan(self), number(math.nan, self), x)
    rest = opset18.Sub(one, x)
    at_zero, at_one = opset18.Equal(x, number(0, x)), opset18.Equal(x, one)
    at_end = opset18.Or(at_zero, at_one)
    left = opset18.Where(at_zero, x, one)
    right = opset18.Where(at_one, rest, one)
    odds = opset18.Div(opset18.Where(at_end, one, x), opset18.Where(at_end, one, rest))
    ends = opset18.Sub(opset18.Log(left), opset18.Log(right))
    return opset18.Where(at_end, ends, opset18.Log(odds))


def _softmax(onnx_operator: Operator) -> Operator:
    """Return ``softmax`` or ``log_softmax``; the operand is first cast to ``dtype``, if given."""

    def softmax(self: Value, dim: int, dtype: int | None = -1) -> Value:
        x = self if dtype in (-1, None) else opset18.Cast(self, to=dtype)
        if self.shape:
            return onnx_operator(x, axis=dim)
        axis = opset18.Constant(value_ints=[0])
        return opset18.Squeeze(onnx_operator(opset18.Unsqueeze(x, axis), axis=0), axis)

    return softmax


def _make_predicate(onnx_operator: Operator, of_integers: Operator) -> Operator:
    """Return a predicate for floats; for integers it is the constant ``of_integers``."""

    def decide(self: Value) -> Value:
        of_floats = self.dtype is None or self.dtype.is_floating_point()
        return onnx_operator(self) if of_floats else of_integers(self)

    return decide


def _is(value: float) -> Operator:
    """Return a predicate that compares elements with ``value`` in the tensor's own dtype.

    The exporter's translations cast float64 to float32 first, where 1e39 is infinite.
    """
    return lambda self: opset18.Equal(self, number(value, self))


def _whole(onnx_operator: Operator) -> Operator:
    """Return a rounding function that leaves integers unchanged."""
    return _make_predicate(onnx_operator, opset18.Identity)


def _sign(self: Value) -> Value:
    """Sign, with 0 for NaN."""
    return opset18.Where(is_nan(self), number(0, self), opset18.Sign(self))


def _signbit(self: Value) -> Value:
    """Whether the sign bit is set, as for -0."""
    zero = number(0, self)
    below = opset18.Less(self, zero)
    if self.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return below
    return opset18.Or(below, opset18.Less(opset18.Reciprocal(self), zero))


def _angle(self: Value) -> Value:
    """π below 0, else 0; NaN for NaN. The result is float32 for integers."""
    real = self.dtype is None or self.dtype.is_floating_point()
    x = self if real else opset18.Cast(self, to=ir.DataType.FLOAT)
    zero = number(0, x)
    return opset18.Where(
        is_nan(x), x, opset18.Where(opset18.Less(x, zero), number(math.pi, x), zero)
    )


def _isclose(
    self: Value, other: Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Value:
    """``isclose``; for integers PyTorch computes the tolerance in float32."""
    if self.dtype is None or self.dtype.is_floating_point():
        return aten_isclose(self, other, rtol, atol, equal_nan)
    x, y = (opset18.Cast(v, to=ir.DataType.FLOAT) for v in (self, other))
    bound = opset18.Add(number(atol, x), opset18.Abs(opset18.Mul(number(rtol, x), y)))
    near = opset18.LessOrEqual(opset18.Abs(opset18.Sub(x, y)), bound)
    return opset18.Or(opset18.Equal(self, other), near)


def _heaviside(self: Value, values: Value) -> Value:
    """1 above 0, ``values`` at 0, else 0, also for NaN."""
    zero = number(0, self)
    step = opset18.Where(opset18.Greater(self, zero), number(1, self), zero)
    return opset18.Where(opset18.Equal(self, zero), values, step)


def log_of_sum(self: Value, other: Value) -> Value:
    """ln(eˣ + eʸ), computed from the larger operand; equal to it if it is infinite.

    An infinite result has gradient 1 with respect to the operand it equals, and 0 to the other.
    """
    larger = detach(opset18.Max(self, other))
    infinite, zero = _infinite(larger), number(0, self)
    parts = [
        opset18.Exp(
            opset18.Sub(opset18.Where(infinite, zero, v), opset18.Where(infinite, zero, larger))
        )
        for v in (self, other)
    ]
    sum_ = opset18.Add(larger, opset18.Log(opset18.Add(*parts)))
    at_end = opset18.Where(opset18.GreaterOrEqual(self, other), self, other)
    return opset18.Where(infinite, at_end, sum_)


def logaddexp(self: Value, other: Value) -> Value:
    """ln(eˣ + eʸ) with gradients 1 / (1 + e^(y - x)): NaN where both operands are infinite."""
    one = number(1, self)

    def share(x: Value, y: Value) -> Value:
        return opset18.Reciprocal(opset18.Add(one, opset18.Exp(opset18.Sub(y, x))))

    return with_slopes(
        detach(log_of_sum(self, other)),
        (self, share(self, other)),
        (other, share(other, self)),
    )


def _lerp(self: Value, end: Value, weight: Value) -> Value:
    """x + w (y - x), computed from the nearer end; gradients are those of PyTorch's formula."""
    way, one = opset18.Sub(end, self), number(1, self)
    rest = opset18.Sub(one, weight)
    near = opset18.Less(opset18.Abs(weight), number(0.5, self))
    value = opset18.Where(
        near,
        opset18.Add(self, opset18.Mul(weight, way)),
        opset18.Sub(end, opset18.Mul(way, rest)),
    )
    return with_slopes(detach(value), (self, rest), (end, weight), (weight, way))


_LONGEST = 2**16  # most points in a constant: 256 KiB of float32
_OF_POINTS = {ir.DataType.FLOAT: torch.float32, ir.DataType.DOUBLE: torch.float64}


def _linspace(start: Number, end: Number, steps: Number, dtype: int = -1, **more: object) -> Value:
    """``linspace``: a constant of PyTorch's values if all arguments are known.

    PyTorch computes blocks of a vector, which rounds differently from ONNX.
    """
    is_constant = all(type(v) in (int, float) for v in (start, end, steps))
    kind = _OF_POINTS.get(ir.DataType(dtype)) if dtype not in (-1, None) else None
    if not is_constant or kind is None or steps > _LONGEST:
        return aten_linspace(start, end, steps, dtype, **more)
    return opset18.Constant(value=ir.tensor(torch.linspace(start, end, steps, dtype=kind).numpy()))


AS_IN_TORCH: dict[OpOverload, Translation] = operators(
    {
        "aten.clamp.default": _clamp,
        "aten.clamp.Tensor": _clamp_by_tensors,
        "aten.clamp_min.default": _clamp,
        "aten.clamp_min.Tensor": _clamp_by_tensors,
        "aten.clamp_max.default": lambda self, max: _clamp(self, None, max),
        "aten.clamp_max.Tensor": lambda self, max: _clamp_by_tensors(self, None, max),
        "aten.hardtanh.default": _hardtanh,
        "aten.relu6.default": _relu6,
        "aten.selu.default": _selu,
        "aten.celu.default": _celu,
        "aten.log2.default": _logarithm(2),
        "aten.log10.default": _logarithm(10),
        "aten.hardsigmoid.default": _hardsigmoid,
        "aten.log_sigmoid.default": _log_sigmoid,
        "aten.log1p.default": log1p,
        "aten.special_log1p.default": log1p,
        "aten.expm1.default": _expm1,
        "aten.special_expm1.default": _expm1,
        "aten.logit.default": _logit,
        "aten.special_logit.default": _logit,
        "aten.softmax.int": _softmax(opset18.Softmax),
        "aten.log_softmax.int": _softmax(opset18.LogSoftmax),
        "aten.ceil.default": _whole(opset18.Ceil),
        "aten.floor.default": _whole(opset18.Floor),
        "aten.round.default": _whole(opset18.Round),
        "aten.trunc.default": _whole(aten_trunc),
        "aten.isnan.default": _make_predicate(opset18.IsNaN, is_nan),
        "aten.isinf.default": _make_predicate(opset18.IsInf, is_nan),
        "aten.isposinf.default": _make_predicate(_is(math.inf), is_nan),
        "aten.isneginf.default": _make_predicate(_is(-math.inf), is_nan),
        "aten.isfinite.default": _make_predicate(
            aten_isfinite, lambda self: opset18.Equal(self, self)
        ),
        "aten.atan2.default": _atan2,
        "aten.hypot.default": _hypot,
        "aten.linspace.default": _linspace,
        "aten.logaddexp.default": logaddexp,
        "aten.lerp.Tensor": _lerp,
        "aten.xlogy.Tensor": _xlogy,
        "aten.xlogy.Scalar_Self": _xlogy,
        "aten.xlogy.Scalar_Other": _xlogy,
        "aten.special_xlogy.default": _xlogy,
        "aten.special_xlogy.self_scalar": _xlogy,
        "aten.special_xlogy.other_scalar": _xlogy,
        "aten.special_xlog1py.default": _xlog1py,
        "aten.special_xlog1py.self_scalar": _xlog1py,
        "aten.special_xlog1py.other_scalar": _xlog1py,
        "aten.hardshrink.default": _hardshrink,
        "aten.softshrink.default": _softshrink,
        "aten._local_scalar_dense.default": _item,
        "aten.sign.default": _sign,
        "aten.signbit.default": _signbit,
        "aten.angle.default": _angle,
        "aten.isclose.default": _isclose,
        "aten.heaviside.default": _heaviside,
    }
)
"""Translations by operator."""
