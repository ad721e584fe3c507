"""Functions whose gradients are PyTorch's own formulas, in ONNX, also at and near zero."""

from __future__ import annotations

import math

from steep.lowering.ops.elementwise import logaddexp
from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.steep_nodes import with_slopes
from steep.lowering.ops.stop_gradient import detach
from steep.lowering.ops.values import Translation, Value, number
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload

# Chebyshev coefficients, in 2t - 1, of ln(erfc(x) exp(x²) / t), with t = 2 / (2 + x) in [0, 1].
# Source of the form: Numerical Recipes, 3rd edition, section 6.2.2.
_ERFC = (
    *(-0.6513268598908547, 0.6419697923564902, 0.01947647320418584, -0.009561514786808632),
    *(-0.0009465953444820369, 0.0003668394978527614, 4.252332480690777e-05),
    *(-2.027857811253424e-05, -1.624290004647026e-06, 1.303655835580523e-06),
    *(1.562644172206614e-08, -8.523809591492654e-08, 6.529054439098851e-09),
    *(5.059343495551469e-09, -9.91364156493033e-10, -2.273651222931836e-10),
    *(9.646791102015527e-11, 2.394038083039115e-12, -6.886027526497553e-12),
    *(8.944879273090725e-13, 3.130921399342958e-13, -1.127082236136725e-13),
    *(3.810905255189232e-16, 7.106097613609237e-15, -1.523028201457104e-15),
    *(-9.457494571291233e-17, 1.210237189224279e-16, -2.816663087747177e-17),
)


def _erfc(self: Value) -> Value:
    """Complementary error function, by a Chebyshev series in float64.

    In float32 1 - erf(x) is 0 from x = 4 upward.
    """
    x = opset18.Cast(self, to=ir.DataType.DOUBLE)
    zero, one, two = (number(n, x) for n in (0, 1, 2))
    size = opset18.Abs(x)
    t = opset18.Div(two, opset18.Add(two, size))
    at = opset18.Sub(opset18.Mul(two, t), one)
    twice = opset18.Mul(two, at)
    before, last = opset18.Mul(zero, t), number(_ERFC[-1], x)
    for c in _ERFC[-2:0:-1]:  # Clenshaw's recurrence
        sum_ = opset18.Sub(opset18.Mul(twice, last), before)
        before, last = last, opset18.Add(sum_, number(c, x))
    series = opset18.Add(opset18.Sub(opset18.Mul(at, last), before), number(_ERFC[0], x))
    bell = opset18.Neg(opset18.Mul(x, x))
    value = opset18.Mul(t, opset18.Exp(opset18.Add(bell, series)))
    value = opset18.Where(opset18.Less(x, zero), opset18.Sub(two, value), value)
    slope = opset18.Mul(number(-2 / math.sqrt(math.pi), x), opset18.Exp(bell))
    return with_slopes(detach(opset18.CastLike(value, self)), (self, opset18.CastLike(slope, self)))


def _sinc(self: Value) -> Value:
    """sin(πx) / (πx), 1 at 0; the gradient is 0 where πx² is 0."""
    one, pi = number(1, self), number(math.pi, self)
    zero = opset18.Equal(self, number(0, self))
    angle = opset18.Mul(opset18.Where(zero, one, self), pi)
    value = opset18.Where(zero, one, opset18.Div(opset18.Sin(angle), angle))
    angle = opset18.Mul(self, pi)
    change = opset18.Sub(opset18.Mul(angle, opset18.Cos(angle)), opset18.Sin(angle))
    square = opset18.Mul(opset18.Mul(self, self), pi)
    flat = opset18.Equal(square, number(0, self))
    slope = opset18.Div(change, opset18.Where(flat, one, square))
    return with_slopes(detach(value), (self, opset18.Where(flat, number(0, self), slope)))


def _entr(self: Value) -> Value:
    """-x ln x, 0 at 0, and -∞ below 0; the gradient -1 - ln x is infinite at 0, and NaN below."""
    zero, one = number(0, self), number(1, self)
    below = opset18.Where(opset18.Less(self, zero), number(-math.inf, self), self)
    inside = opset18.Greater(self, zero)
    x = opset18.Where(inside, self, one)
    value = opset18.Where(inside, opset18.Neg(opset18.Mul(x, opset18.Log(x))), below)
    slope = opset18.Neg(opset18.Add(one, opset18.Log(self)))
    return with_slopes(detach(value), (self, slope))


def _logaddexp2(self: Value, other: Value) -> Value:
    base = number(math.log(2), self)
    return opset18.Div(logaddexp(opset18.Mul(self, base), opset18.Mul(other, base)), base)


AS_IN_TORCH: dict[OpOverload, Translation] = operators(
    {
        "aten.erfc.default": _erfc,
        "aten.sinc.default": _sinc,
        "aten.special_erfc.default": _erfc,
        "aten.special_sinc.default": _sinc,
        "aten.logaddexp2.default": _logaddexp2,
        "aten.special_entr.default": _entr,
    }
)
"""Translations by operator."""
