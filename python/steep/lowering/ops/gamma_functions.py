"""The logarithm of the gamma function and its derivatives, and the inverse error function.

All are computed in float64, whatever the dtype of the tensor. Source of the series: NIST Digital
Library of Mathematical Functions, sections 5.5, 5.11 and 5.15.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.steep_nodes import with_slopes
from steep.lowering.ops.stop_gradient import detach
from steep.lowering.ops.values import Translation, Value, number
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload

_SHIFT = 10
"""The asymptotic series are evaluated at this number and above; smaller arguments are raised."""

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""The Bernoulli numbers B2, B4, …"""

# Rational approximations of erf⁻¹ for |x| <= 0.7 and above, the lowest power first: about three
# digits, which two of Newton's steps turn into sixteen.
_NEAR = (0.886226899, -1.645349621, 0.914624893, -0.140543331)
_UNDER_NEAR = (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801)
_FAR = (-1.970840454, -1.624906493, 3.429567803, 1.641345311)
_UNDER_FAR = (1.0, 3.543889200, 1.637067800)


def _lgamma(self: Value) -> Value:
    """ln |Γ(x)|; infinite at 0, at negative integers and at ±∞."""
    x = _in_float64(self)
    is_mirrored = opset18.LessOrEqual(x, number(0, x))
    z = opset18.Where(is_mirrored, opset18.Sub(number(1, x), x), x)
    small, w = _raise_small(z)
    factors = opset18.Where(small, z, number(1, x))
    product = factors
    for k in range(1, _SHIFT):
        product = opset18.Mul(product, opset18.Add(factors, number(k, x)))
    product = opset18.Where(small, product, number(1, x))
    half = opset18.Sub(w, number(0.5, x))
    leading = opset18.Sub(opset18.Mul(half, opset18.Log(w)), w)
    terms = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)]
    series = opset18.Div(_polynomial(terms, _inverse_square(w)), w)
    series = opset18.Add(series, number(0.5 * math.log(2 * math.pi), x))
    value = opset18.Sub(opset18.Add(leading, series), opset18.Log(product))
    sine = opset18.Abs(opset18.Sin(opset18.Mul(number(math.pi, x), _to_nearest_integer(x))))
    reflection = opset18.Sub(opset18.Sub(number(math.log(math.pi), x), opset18.Log(sine)), value)
    value = opset18.Where(is_mirrored, reflection, value)
    infinite = opset18.Equal(opset18.Abs(x), number(math.inf, x))
    value = opset18.Where(infinite, number(math.inf, x), value)
    return with_slopes(detach(opset18.CastLike(value, self)), (self, _digamma(self)))


def _digamma(self: Value) -> Value:
    """The derivative of ln Γ(x); NaN at negative integers, and -∞ at 0, +∞ at -0."""
    x = _in_float64(self)
    zero = number(0, x)
    is_mirrored = opset18.Less(x, zero)
    z = opset18.Where(is_mirrored, opset18.Sub(number(1, x), x), x)
    small, w = _raise_small(z)
    terms = [-b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]
    inverse = _inverse_square(w)
    value = opset18.Add(
        opset18.Sub(opset18.Log(w), opset18.Div(number(0.5, x), w)),
        opset18.Mul(inverse, _polynomial(terms, inverse)),
    )
    value = opset18.Sub(value, _sum_of_powers(z, small, 1))
    place = _to_nearest_integer(x)
    tangent = opset18.Tan(opset18.Mul(number(math.pi, x), place))
    reflection = opset18.Sub(value, opset18.Div(number(math.pi, x), tangent))
    pole = opset18.Equal(opset18.Abs(place), zero)
    value = opset18.Where(is_mirrored, reflection, value)
    value = opset18.Where(opset18.And(is_mirrored, pole), number(math.nan, x), value)
    slope = opset18.CastLike(_trigamma_of(x), self)
    return with_slopes(detach(opset18.CastLike(value, self)), (self, slope))


def _trigamma_of(x: Value) -> Value:
    """The derivative of ``_digamma``, of a float64 tensor; differentiable as it is written."""
    is_mirrored = opset18.Less(x, number(0.5, x))
    z = opset18.Where(is_mirrored, opset18.Sub(number(1, x), x), x)
    small, w = _raise_small(z)
    inverse = _inverse_square(w)
    value = opset18.Add(
        opset18.Add(opset18.Reciprocal(w), opset18.Mul(number(0.5, x), inverse)),
        opset18.Div(opset18.Mul(inverse, _polynomial(_BERNOULLI, inverse)), w),
    )
    value = opset18.Add(value, _sum_of_powers(z, small, 2))
    place = opset18.Where(is_mirrored, _to_nearest_integer(x), number(0.5, x))
    ratio = opset18.Div(number(math.pi, x), opset18.Sin(opset18.Mul(number(math.pi, x), place)))
    return opset18.Where(is_mirrored, opset18.Sub(opset18.Mul(ratio, ratio), value), value)


def _polygamma(n: int, self: Value) -> Value:
    """The n-th derivative of ``_digamma``, for n of 0 and 1."""
    if n == 0:
        return _digamma(self)
    if n != 1:
        raise NotImplementedError(f"polygamma of order {n}")
    return opset18.CastLike(_trigamma_of(_in_float64(self)), self)


def _in_float64(self: Value) -> Value:
    """Return the tensor in float64. Raises NotImplementedError for integers."""
    if self.dtype is None or not self.dtype.is_floating_point():
        raise NotImplementedError("a function of the gamma family, of an integer")
    return opset18.Cast(self, to=ir.DataType.DOUBLE)


def _raise_small(z: Value) -> tuple[Value, Value]:
    """Return where z is small, and z where it is large, z + 10 elsewhere."""
    small = opset18.Less(z, number(_SHIFT, z))
    return small, opset18.Where(small, opset18.Add(z, number(_SHIFT, z)), z)


def _sum_of_powers(z: Value, small: Value, power: int) -> Value:
    """Return the sum of 1 / (z + k)ⁿ for k of 0 … 9 where z is small; 0 elsewhere."""
    base = opset18.Where(small, z, number(1, z))
    total = number(0, z)
    for k in range(_SHIFT):
        term = opset18.Reciprocal(opset18.Add(base, number(k, z)) if k else base)
        total = opset18.Add(total, opset18.Mul(term, term) if power == 2 else term)
    return opset18.Where(small, total, number(0, z))


def _to_nearest_integer(x: Value) -> Value:
    """Return x less the nearest integer: exact, and of period 1."""
    return opset18.Sub(x, detach(opset18.Round(x)))


def _inverse_square(w: Value) -> Value:
    inverse = opset18.Reciprocal(w)
    return opset18.Mul(inverse, inverse)


def _polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """Return the polynomial in x, by Horner's rule; the lowest power comes first."""
    *lower, highest = coefficients
    value = number(highest, x)
    for c in reversed(lower):
        value = opset18.Add(opset18.Mul(value, x), number(c, x))
    return value


def _erfinv(self: Value) -> Value:
    """The inverse of erf: ±∞ at ±1, NaN beyond."""
    x = _in_float64(self)
    one = number(1, x)
    size = opset18.Abs(x)
    near = opset18.LessOrEqual(size, number(0.7, x))
    inner = opset18.Where(near, x, number(0, x))
    square = opset18.Mul(inner, inner)
    low = opset18.Div(
        opset18.Mul(inner, _polynomial(_NEAR, square)), _polynomial(_UNDER_NEAR, square)
    )
    beyond = opset18.GreaterOrEqual(size, one)
    outer = opset18.Where(opset18.Or(near, beyond), number(0.75, x), size)
    half = opset18.Div(opset18.Sub(one, outer), number(2, x))
    root = opset18.Sqrt(opset18.Neg(opset18.Log(half)))
    high = opset18.Div(_polynomial(_FAR, root), _polynomial(_UNDER_FAR, root))
    y = opset18.Where(near, low, opset18.Mul(opset18.Sign(x), high))
    scale = number(2 / math.sqrt(math.pi), x)
    for _ in range(2):  # Newton's method
        slope = opset18.Mul(scale, opset18.Exp(opset18.Neg(opset18.Mul(y, y))))
        y = opset18.Sub(y, opset18.Div(opset18.Sub(opset18.Erf(y), x), slope))
    end = opset18.Where(opset18.Equal(size, one), number(math.inf, x), number(math.nan, x))
    y = opset18.Where(beyond, opset18.Mul(opset18.Sign(x), end), y)
    y = opset18.Where(opset18.Equal(x, x), y, x)
    value = detach(opset18.CastLike(y, self))
    slope = opset18.Mul(
        number(math.sqrt(math.pi) / 2, self), opset18.Exp(opset18.Mul(value, value))
    )
    return with_slopes(value, (self, slope))


GAMMA: dict[OpOverload, Translation] = operators(
    {
        "aten.lgamma.default": _lgamma,
        "aten.special_gammaln.default": _lgamma,
        "aten.digamma.default": _digamma,
        "aten.special_digamma.default": _digamma,
        "aten.special_psi.default": _digamma,
        "aten.polygamma.default": _polygamma,
        "aten.special_polygamma.default": _polygamma,
        "aten.erfinv.default": _erfinv,
        "aten.special_erfinv.default": _erfinv,
    }
)
"""Translations by operator."""
