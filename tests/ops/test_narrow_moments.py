"""Optimizer steps with moments in 16 and 8 bits, bit by bit: NumPy rounds what float32 computes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from narrow_floats import halves, narrow, narrow_bf16, random_words, widen

from steep import _steep

SEED, RUN, STREAM = 11, 5, -(1 << 30) - 1
LR, STEP = np.array(0.01, np.float32), np.array(4)
SIZES = (0, 1, 3, 255, 256, 257, 1023, 1024, 1025, 20_011)
ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01, "decoupled": 1}
OPS = {
    "Adam": (ADAM, 2),
    "SGD": ({"momentum": 0.9, "nesterov": 1}, 1),
}
FORMS = ("bfloat16", "int8")
each_form = pytest.mark.parametrize("form", FORMS)


def kept(moments, form, words=None):
    """Moments, then scales, as the engine keeps them; without words rounded to nearest."""
    if form == "bfloat16":
        noise = [0x8000 if words is None else halves(words, i == 1) for i in range(len(moments))]
        rounded = [
            narrow_bf16(m, np.broadcast_to(n, m.shape)) for m, n in zip(moments, noise, strict=True)
        ]
        return [*rounded, *(None for _ in moments)]
    noise = [None if words is None else halves(words, i == 1) for i in range(len(moments))]
    types = (np.int8, np.uint8)
    pairs = [narrow(m, types[i], noise[i]) for i, m in enumerate(moments)]
    return [*(codes for codes, _ in pairs), *(scales for _, scales in pairs)]


def widened(states, count):
    if states[count] is None:
        return [m.astype(np.float32) for m in states[:count]]
    return [widen(m, s) for m, s in zip(states[:count], states[count:], strict=True)]


def check(op, form, param, grad, moments, scale=None):
    """One step of the narrow operator against that of the wide one."""
    attrs, count = OPS[op]
    before = kept(moments, form)
    numbers = [param, grad, LR, STEP, scale]
    wide = _steep.evaluate_node(
        f"steep.{op}", [*numbers, *widened(before, count)], attrs, 1 + count, False
    )
    words = random_words(SEED, RUN, STREAM, param.size)
    wanted = [wide[0], *(a for a in kept(wide[1:], form, words) if a is not None)]
    found = _steep.evaluate_node(
        f"steep.Narrow{op}",
        [*numbers, *before, np.array([SEED, RUN])],
        {**attrs, "stream": STREAM},
        len(wanted),
        False,
    )
    for i, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        if i == 0 and op == "Adam":  # its correction of v is a part of two numbers
            np.testing.assert_allclose(ours, theirs, rtol=3e-7, atol=3e-9)
        else:
            assert bits(ours) == bits(theirs), f"output {i}"


def bits(array):
    """Its bytes, all NaN being one."""
    if array.dtype == np.float32:
        array = np.where(np.isnan(array), np.float32(np.nan), array)
    return array.tobytes()


def numbers_of(size, decades=6):
    """Numbers of many magnitudes within each block."""
    rng = np.random.default_rng(size)
    made = rng.standard_normal((3, size)) * 10.0 ** rng.uniform(-decades, 0, (3, size))
    return made.astype(np.float32)


@each_form
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", OPS)
def test_a_step_is_that_of_float32_and_rounds_as_numpy_does(op, size, form):
    param, grad, m = numbers_of(size)
    moments = [m, m * m][: OPS[op][1]]
    check(op, form, param, grad, moments)
    check(op, form, param, grad, moments, scale=np.array(0.5, np.float32))


@each_form
@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e-18, 1e12, 1e18])
def test_magnitudes_of_all_exponents(factor, form):
    param, grad, m = numbers_of(1500)
    with np.errstate(over="ignore"):
        v = np.minimum((m * np.float32(factor)) ** 2, np.float32(3e38))
    check("Adam", form, param, grad * np.float32(factor), [m * np.float32(factor), v])


@each_form
def test_infinity_and_nan_stay_where_they_are(form):
    param, grad, m = numbers_of(1500)
    grad[[3, 700]], grad[[4, 1499]], grad[256] = np.nan, np.inf, -np.inf
    check("Adam", form, param, grad, [m, m * m])
    check("SGD", form, param, grad, [m])
    m[9], m[10], m[11] = np.nan, np.inf, -np.inf
    check("Adam", form, param, grad, [m, m * m])
    grad[512:768] = np.inf  # a block of nothing else
    check("Adam", form, param, grad, [m, m * m])


def test_moments_of_zeros_may_have_a_scale_of_zero():
    """As they are before the first step."""
    param, grad, _ = numbers_of(1500)
    codes, scales = np.zeros(1500, np.int8), np.zeros(6, np.float32)
    states = [codes, codes.astype(np.uint8), scales, scales]
    first = np.array(1)
    zeros = np.zeros(1500, np.float32)
    wide = _steep.evaluate_node(
        "steep.Adam", [param, grad, LR, first, None, zeros, zeros], ADAM, 3, False
    )
    seed = np.array([SEED, RUN])
    attrs = {**ADAM, "stream": STREAM}
    operands = [param, grad, LR, first, None, *states, seed]
    found = _steep.evaluate_node("steep.NarrowAdam", operands, attrs, 5, False)
    words = random_words(SEED, RUN, STREAM, 1500)
    np.testing.assert_allclose(found[0], wide[0], rtol=3e-7, atol=3e-9)
    wanted = kept(wide[1:], "int8", words)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found[1:], wanted, strict=True))


def test_rounding_is_right_on_average():
    """Changes of less than a unit in the last place add up: v moves by a thousandth a step."""
    size, runs = 256, 400
    v = np.linspace(0.5, 1, size, dtype=np.float32)
    before = kept([np.zeros(size, np.float32), v], "int8")
    start = widened(before, 2)[1]
    zeros = np.zeros(size, np.float32)
    attrs = {**ADAM, "stream": STREAM}
    total = np.zeros(size)
    for run in range(runs):
        seed = np.array([SEED, run])
        operands = [zeros, zeros, LR, STEP, None, *before, seed]
        found = _steep.evaluate_node("steep.NarrowAdam", operands, attrs, 5, False)
        total += widen(found[2], found[4])
    share = 1 - total.sum() / runs / start.sum()
    assert share == pytest.approx(1e-3, rel=0.2)  # to nearest it would be 0


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_numbers_that_are_codes_keep_their_value(dtype):
    x = numbers_of(5000)[0]
    x = np.abs(x) if dtype == np.uint8 else x
    once = widen(*narrow(x, dtype))
    assert widen(*narrow(once, dtype)).tobytes() == once.tobytes()
    large = np.abs(x) > 2.0**-12 * np.repeat(np.abs(x).reshape(-1, 250).max(1), 250)
    assert np.abs(once[large] / x[large] - 1).max() <= 1 / 16


@each_form
@pytest.mark.parametrize("wide_gradient", [False, True])
@pytest.mark.parametrize("stream", [0, -7])
@pytest.mark.parametrize("op", OPS)
def test_a_parameter_of_bfloat16_is_updated_in_float32(op, stream, wide_gradient, form):
    """And rounded to nearest, or at random by words of a stream of its own."""
    size, half = 2_500, ml_dtypes.bfloat16
    attrs, count = OPS[op]
    param, grad, m = numbers_of(size)
    param[7] = np.nan
    param, grad = param.astype(half), grad.astype(np.float32 if wide_gradient else half)
    before = kept([m, m * m][:count], form)
    rest = [LR, STEP, None, *before, np.array([SEED, RUN])]
    attrs = {**attrs, "stream": STREAM}
    operands = [param.astype(np.float32), grad.astype(np.float32), *rest]
    outputs = 1 + sum(a is not None for a in before)
    wide = _steep.evaluate_node(f"steep.Narrow{op}", operands, attrs, outputs, False)
    attrs["param_stream"] = stream
    found = _steep.evaluate_node(f"steep.Narrow{op}", [param, grad, *rest], attrs, outputs, False)
    noise = halves(random_words(SEED, RUN, stream, size), False)
    wanted = narrow_bf16(wide[0], noise) if stream else wide[0].astype(half)
    assert found[0].dtype == half and np.isnan(found[0][7])
    numbers = ~np.isnan(wide[0])
    assert found[0][numbers].tobytes() == wanted[numbers].tobytes()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found[1:], wide[1:], strict=True))
