"""Control flow, sequences and shapes that depend on data: values and gradients, as PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flow_models import check, model, rng_floats

from steep import InferenceSession, _steep
from steep.errors import DataError, ModelError

# --- shapes that depend on data ------------------------------------------------------------------

POSITIVE = model("""
g (double[n, m] x) => (double[k] y) {
  zero = Constant <value = double {0.0}> ()
  mask = Greater(x, zero)
  places = NonZero(mask)
  pairs = Transpose <perm = [1, 0]> (places)
  picked = GatherND(x, pairs)
  squares = Mul(picked, picked)
  y = Exp(squares)
}""")


@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (0, 3), (5, 2), (7, 7)])
def test_elements_picked_by_their_values(shape):
    check(POSITIVE, lambda x: (x[x > 0] ** 2).exp(), rng_floats(*shape))


def test_no_element_picked():
    check(POSITIVE, lambda x: (x[x > 0] ** 2).exp(), -np.ones((2, 3)))


def test_shapes_computed_from_values():
    text = model("""
    g (double[n] x, int64[1] k) => (double[a, b] y) {
      one = Constant <value = int64[1] {1}> ()
      minus = Constant <value = int64[1] {-1}> ()
      to = Concat <axis = 0> (k, minus)
      rows = Reshape(x, to)
      axis = Constant <value = int64[1] {1}> ()
      begin = Constant <value = int64[1] {0}> ()
      head = Slice(rows, begin, k, axis)
      wide = Concat <axis = 0> (k, k)
      y0 = Expand(head, wide)
      zero = Constant <value = int64 {0}> ()
      unit = Constant <value = int64 {1}> ()
      last = Squeeze(k)
      counts = Range(zero, last, unit)
      floats = Cast <to = 11> (counts)
      y = Mul(y0, floats)
    }""")

    def in_torch(x, k):
        n = int(k)
        rows = x.reshape(n, -1)[:, :n]
        return rows.expand(n, n) * torch.arange(n, dtype=torch.float64)

    check(text, in_torch, rng_floats(9), np.array([3]))
    check(text, in_torch, rng_floats(16), np.array([4]))
    check(text, in_torch, rng_floats(5), np.array([1]))


def test_compressed_rows_through_a_product():
    text = model("""
    g (double[n, 3] x, bool[c] keep, double[3, 2] w) => (double[k, 2] y) {
      rows = Compress <axis = 0> (x, keep)
      h = MatMul(rows, w)
      y = Tanh(h)
    }""")
    keep = np.array([True, False, True, True])
    check(text, lambda x, k, w: (x[k] @ w).tanh(), rng_floats(4, 3), keep, rng_floats(3, 2, seed=1))


def test_a_shape_that_cannot_be_is_an_error():
    text = model("""
    g (double[n] x, int64[m] to) => (double[a] y) { z = Reshape(x, to)  y = Neg(z) }""")
    with pytest.raises(Exception, match="Reshape"):
        _steep.run_model(text, [np.zeros(6), np.array([4, 4])])


# --- If ------------------------------------------------------------------------------------------

BRANCHES = model("""
g (double[n] x, double[n] w, bool c) => (double[m] y, double s) {
  a = Mul(x, w)
  y, s = If (c) <
    then_branch = one () => (double[n] p, double q) {
      e = Exp(a)
      p = Mul(e, w)
      q = ReduceSum <keepdims = 0> (x)
    },
    else_branch = two () => (double[k] p, double q) {
      p = Concat <axis = 0> (a, x)
      t = Tanh(p)
      q = ReduceSum <keepdims = 0> (t)
    }
  >
}""")


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("n", [4, 1, 0])
def test_either_branch(chosen, n):
    def in_torch(x, w, c):
        a = x * w
        if bool(c):
            return a.exp() * w, x.sum()
        p = torch.cat([a, x])
        return p, p.tanh().sum()

    check(BRANCHES, in_torch, rng_floats(n), rng_floats(n, seed=1), np.array(chosen))


def test_a_branch_chosen_by_shape_is_planned():
    text = model("""
    g (double[n] x) => (double[n] y) {
      n = Size(x)
      three = Constant <value = int64 {3}> ()
      many = Greater(n, three)
      y = If (many) <
        then_branch = one () => (double[n] p) { p = Exp(x) },
        else_branch = two () => (double[n] p) { p = Neg(x) }
      >
    }""")
    for n in (2, 5):
        check(text, lambda x: x.exp() if x.numel() > 3 else -x, rng_floats(n))


def test_branches_chosen_by_shape_read_what_is_theirs():
    text = model("""
    g (double[n] x, double[n] z) => (double[n] y) {
      n = Size(x)
      three = Constant <value = int64 {3}> ()
      many = Greater(n, three)
      y = If (many) <
        then_branch = one () => (double[n] p) { e = Exp(x)  p = Mul(e, z) },
        else_branch = two () => (double[n] p) { s = Sin(z)  p = Mul(s, x) }
      >
    }""")
    for n in (2, 5):
        check(
            text,
            lambda x, z: x.exp() * z if x.numel() > 3 else z.sin() * x,
            rng_floats(n),
            rng_floats(n, seed=1),
        )


def test_nested_branches():
    text = model("""
    g (double[n] x, bool a, bool b) => (double[n] y) {
      y = If (a) <
        then_branch = one () => (double[n] p) {
          q = If (b) <
            then_branch = deep () => (double[n] r) { r = Mul(x, x) },
            else_branch = flat () => (double[n] r) { r = Identity(x) }
          >
          p = Exp(q)
        },
        else_branch = two () => (double[n] p) { p = Neg(x) }
      >
    }""")
    for a in (True, False):
        for b in (True, False):
            check(
                text,
                lambda x, a, b: ((x * x) if b else x).exp() if a else -x,
                rng_floats(3),
                np.array(a),
                np.array(b),
            )


# --- Loop ----------------------------------------------------------------------------------------

RECURRENT = model("""
g (double[h] start, double[h, h] w, int64 trips) => (double[h] last, double[t, h] all) {
  yes = Constant <value = bool {1}> ()
  last, all = Loop (trips, yes, start) <
    body = step (int64 i, bool c, double[h] state) => (bool on, double[h] next, double[h] out) {
      on = Identity(c)
      f = Cast <to = 11> (i)
      zero = Constant <value = int64[1] {0}> ()
      row = Unsqueeze(state, zero)
      product = MatMul(row, w)
      flat = Squeeze(product, zero)
      moved = Add(flat, f)
      next = Tanh(moved)
      out = Mul(next, state)
    }
  >
}""")


def recurrent(start, w, trips):
    state, outs = start, []
    for i in range(int(trips)):
        after = (state @ w + i).tanh()
        outs.append(after * state)
        state = after
    return state, torch.stack(outs) if outs else torch.zeros(0, len(start), dtype=torch.float64)


@pytest.mark.parametrize("trips", [0, 1, 2, 7])
def test_loop_of_as_many_turns_as_are_fed(trips):
    # What gathers nothing has other extents in ONNX Runtime.
    exports = 2 if trips else 0
    inputs = rng_floats(3), rng_floats(3, 3, seed=1), np.array(trips)
    check(RECURRENT, recurrent, *inputs, exports=exports)


def test_loop_while_a_condition_holds():
    text = model("""
    g (double[n] x, double[n] w) => (double[n] y, double[t, n] all) {
      yes = Constant <value = bool {1}> ()
      y, all = Loop ( , yes, x) <
        body = step (int64 i, bool c, double[n] s) => (bool on, double[n] next, double[n] out) {
          next = Mul(s, w)
          out = Exp(next)
          size = ReduceL2 <keepdims = 0> (next)
          bound = Constant <value = double {0.1}> ()
          on = Greater(size, bound)
        }
      >
    }""")

    def in_torch(x, w):
        outs = []
        while True:
            x = x * w
            outs.append(x.exp())
            if x.norm() <= 0.1:
                return x, torch.stack(outs)

    check(text, in_torch, rng_floats(3) + 2, np.array([0.5, 0.6, 0.7]))
    check(text, in_torch, rng_floats(3), np.array([0.5, 0.6, 0.1]))


def test_a_carried_value_that_grows():
    text = model("""
    g (double[n] x, int64 trips) => (double[m] y) {
      y = Loop (trips, , x) <
        body = step (int64 i, bool c, double[n] s) => (bool on, double[k] next) {
          on = Identity(c)
          e = Sin(s)
          next = Concat <axis = 0> (s, e)
        }
      >
    }""")

    def in_torch(x, trips):
        for _ in range(int(trips)):
            x = torch.cat([x, x.sin()])
        return x

    for trips in (0, 1, 4):
        check(text, in_torch, rng_floats(2), np.array(trips), exports=1)


def test_a_slice_at_the_turn_of_the_loop():
    text = model("""
    g (double[n, m] x, int64 trips, double[m] s) => (double[m] y) {
      y = Loop (trips, , s) <
        body = step (int64 i, bool c, double[m] a) => (bool on, double[m] b) {
          on = Identity(c)
          zero = Constant <value = int64[1] {0}> ()
          one = Constant <value = int64[1] {1}> ()
          from = Unsqueeze(i, zero)
          to = Add(from, one)
          row = Slice(x, from, to, zero)
          flat = Squeeze(row, zero)
          p = Mul(flat, a)
          b = Cos(p)
        }
      >
    }""")

    def in_torch(x, trips, s):
        for i in range(int(trips)):
            s = (x[i] * s).cos()
        return s

    check(text, in_torch, rng_floats(5, 3), np.array(4), rng_floats(3, seed=2), exports=1)


def test_loops_and_branches_within_one_another():
    text = model("""
    g (double[n] x, double[n] w, int64 outer, int64 inner) => (double[n] y) {
      y = Loop (outer, , x) <
        body = big (int64 i, bool c, double[n] a) => (bool on, double[n] b) {
          on = Identity(c)
          two = Constant <value = int64 {2}> ()
          rest = Mod(i, two)
          odd = Cast <to = 9> (rest)
          b = If (odd) <
            then_branch = turn () => (double[n] t) {
              t = Loop (inner, , a) <
                body = small (int64 j, bool d, double[n] p) => (bool go, double[n] q) {
                  go = Identity(d)
                  m = Mul(p, w)
                  q = Add(m, x)
                }
              >
            },
            else_branch = stay () => (double[n] t) { t = Sin(a) }
          >
        }
      >
    }""")

    def in_torch(x, w, outer, inner):
        a = x
        for i in range(int(outer)):
            if i % 2:
                for _ in range(int(inner)):
                    a = a * w + x
            else:
                a = a.sin()
        return a

    for outer, inner in [(1, 3), (4, 2), (5, 0)]:
        check(
            text,
            in_torch,
            rng_floats(3),
            rng_floats(3, seed=1),
            np.array(outer),
            np.array(inner),
        )


def test_a_loop_without_end_is_stopped():
    text = model("""
    g (double[n] x) => (double[n] y) {
      yes = Constant <value = bool {1}> ()
      y = Loop ( , yes, x) <
        body = step (int64 i, bool c, double[n] s) => (bool on, double[n] next) {
          on = Identity(c)
          next = Neg(s)
        }
      >
    }""")
    with pytest.raises(DataError, match="too many iterations"):
        _steep.run_model(text, [np.ones(2)], max_iterations=100)


def test_a_loop_that_does_not_fit_its_body_is_refused():
    text = model("""
    g (double[n] x, int64 t) => (double[n] y) {
      y = Loop (t, , x) <
        body = step (int64 i, bool c) => (bool on, double[n] next) {
          on = Identity(c)
          next = Neg(x)
        }
      >
    }""")
    with pytest.raises(ModelError, match="do not match"):
        _steep.run_model(text, [np.ones(2), np.array(2)])


@pytest.mark.parametrize("trips", ["float t", "double[1] t", "bool t"])
def test_a_number_of_iterations_is_an_integer(trips):
    kind = trips.split(" ")[0].split("[")[0]
    for given in (trips, ""):  # fed, and known
        text = model(f"""
        g (double[n] x{given and ", " + given}) => (double[n] y) {{
          {"" if given else f"t = Constant <value = {kind} {{1}}> ()"}
          y = Loop (t, , x) <
            body = step (int64 i, bool c, double[n] s) => (bool on, double[n] next) {{
              on = Identity(c)
              next = Neg(s)
            }}
          >
        }}""")
        with pytest.raises(ModelError, match="an integer as trip count"):
            InferenceSession(text)


# --- Scan ----------------------------------------------------------------------------------------


def scan_model(in_axis, in_direction, out_axis, out_direction):
    shape = "t, h" if in_axis == 0 else "h, t"
    return model(f"""
    g (double[h] s, double[{shape}] x, double[h] w) => (double[h] last, double[c, d] all) {{
      last, all = Scan <
        num_scan_inputs = 1, scan_input_axes = [{in_axis}],
        scan_input_directions = [{in_direction}], scan_output_axes = [{out_axis}],
        scan_output_directions = [{out_direction}],
        body = step (double[h] p, double[h] v) => (double[h] q, double[h] o) {{
          m = Mul(p, w)
          t = Add(m, v)
          q = Tanh(t)
          o = Mul(q, v)
        }}
      > (s, x)
    }}""")


@pytest.mark.parametrize("in_axis", [0, 1, -1])
@pytest.mark.parametrize("in_direction", [0, 1])
@pytest.mark.parametrize("out_axis", [0, 1, -2])
@pytest.mark.parametrize("out_direction", [0, 1])
def test_scan_in_every_direction(in_axis, in_direction, out_axis, out_direction):
    def in_torch(s, x, w):
        slices = list(x.unbind(in_axis))
        outs = []
        for v in reversed(slices) if in_direction else slices:
            s = (s * w + v).tanh()
            outs.append(s * v)
        return s, torch.stack(outs[::-1] if out_direction else outs, out_axis)

    x = rng_floats(4, 3) if in_axis == 0 else rng_floats(3, 4)
    text = scan_model(in_axis, in_direction, out_axis, out_direction)
    check(text, in_torch, rng_floats(3, seed=1), x, rng_floats(3, seed=2))


def test_scan_over_nothing():
    text = scan_model(0, 0, 0, 0)
    check(
        text,
        lambda s, x, w: (s * 1, x * 1),
        rng_floats(3),
        np.zeros((0, 3)),
        rng_floats(3, seed=2),
        exports=0,  # ONNX Runtime wants a slice
    )


def test_scan_of_slices_of_different_lengths_is_an_error():
    text = model("""
    g (double[n] x, double[m] z) => (double[k] y) {
      y = Scan <num_scan_inputs = 2,
        body = step (double a, double b) => (double c) { c = Add(a, b) }> (x, z)
    }""")
    np.testing.assert_allclose(_steep.run_model(text, [np.ones(3), np.ones(3)])[0], np.full(3, 2.0))
    with pytest.raises(DataError, match="differ in length"):
        _steep.run_model(text, [np.ones(3), np.ones(2)])
