"""Sequences and optionals at run time: values and gradients, as PyTorch's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from flow_models import check, model, rng_floats

import steep
from steep import _steep
from steep.errors import DataError


def test_a_sequence_gathered_in_a_loop():
    text = model("""
    g (double[n] x, int64 trips) => (double[m] y, double[n] second) {
      none = SequenceEmpty <dtype = 11> ()
      all, last = Loop (trips, , none, x) <
        body = step (int64 i, bool c, seq(double[n]) s, double[n] v)
            => (bool on, seq(double[n]) t, double[n] u) {
          on = Identity(c)
          u = Sin(v)
          p = Mul(u, x)
          t = SequenceInsert(s, p)
        }
      >
      y = ConcatFromSequence <axis = 0> (all)
      one = Constant <value = int64 {1}> ()
      second = SequenceAt(all, one)
    }""")

    def in_torch(x, trips):
        v, outs = x, []
        for _ in range(int(trips)):
            v = v.sin()
            outs.append(v * x)
        return torch.cat(outs), outs[1]

    check(text, in_torch, rng_floats(3), np.array(4), exports=1)


def test_pieces_of_computed_sizes():
    text = model("""
    g (double[n, 2] x, int64[k] sizes, int64 at) => (double[m, 2] y, double[p, 2] z) {
      pieces = SplitToSequence <axis = 0> (x, sizes)
      y = SequenceAt(pieces, at)
      fewer = SequenceErase(pieces, at)
      more = SequenceInsert(fewer, y)
      q = ConcatFromSequence <axis = 0> (more)
      z = Exp(q)
    }""")

    def in_torch(x, sizes, at):
        pieces = list(x.split(sizes.tolist()))
        y = pieces.pop(int(at))
        return y, torch.cat([*pieces, y]).exp()

    for at in (0, 2, -1, -2):
        check(text, in_torch, rng_floats(6, 2), np.array([1, 3, 2]), np.array(at))


def test_rows_stacked_again():
    text = model("""
    g (double[n, m] x, int64 at) => (double[m, n] y) {
      rows = SplitToSequence <axis = 0, keepdims = 0> (x)
      r = SequenceAt(rows, at)
      e = Exp(r)
      more = SequenceInsert(rows, e, at)
      y = ConcatFromSequence <axis = -1, new_axis = 1> (more)
    }""")

    def in_torch(x, at):
        rows = list(x.unbind(0))
        rows.insert(int(at), rows[int(at)].exp())
        return torch.stack(rows, -1)

    for at in (0, 1, 2):
        check(text, in_torch, rng_floats(3, 2), np.array(at))


def test_sequences_and_optionals_as_inputs_and_outputs():
    text = model("""
    g (seq(float[n]) s, optional(float[n]) o) => (seq(float[n]) t, bool there, int64 n) {
      at = Constant <value = int64 {0}> ()
      x = SequenceAt(s, at)
      t = SequenceInsert(s, x)
      there = OptionalHasElement(o)
      n = SequenceLength(t)
    }""")
    items = [np.ones(2, np.float32), np.zeros(3, np.float32)]
    t, there, n = _steep.run_model(text, [items, None])
    assert [x.tolist() for x in t] == [[1, 1], [0, 0, 0], [1, 1]]
    assert (bool(there), int(n)) == (False, 3)
    assert _steep.run_model(text, [items, items[0]])[1]
    with pytest.raises(DataError, match="out of range"):
        _steep.run_model(text, [[], None])
    for wrong in (items[0], None, [np.ones(2)], [[items[0]]]):
        with pytest.raises(DataError, match="wrong kind"):
            _steep.run_model(text, [wrong, None])


def test_an_empty_optional_has_no_element():
    text = model("""
    g (optional(float[n]) o) => (float[n] y) { y = OptionalGetElement(o) }""")
    np.testing.assert_array_equal(_steep.run_model(text, [np.ones(2, np.float32)])[0], [1, 1])
    with pytest.raises(DataError, match="optional is empty"):
        _steep.run_model(text, [None])


def test_a_body_that_onnx_copies_keeps_its_constants():
    text = model("""
    g (seq(float[n]) s) => (seq(float[n]) t) {
      t = SequenceMap (s) <
        body = plus (float[n] x) => (float[n] y) <float[2] d = {1, 2}> {
          c = Constant <value = float[2] {10, 20}> ()
          e = Add (c, d)
          y = Add (x, e)
        }
      >
    }""")
    (t,) = _steep.run_model(text, [[np.zeros(2, np.float32), np.ones(2, np.float32)]])
    assert [x.tolist() for x in t] == [[11, 22], [12, 23]]


def test_gradients_of_models_with_sequence_and_optional_inputs() -> None:
    head = '<ir_version: 10, opset_import: ["": 18]> '
    items = [np.array([1, 2], np.float32), np.array([3, -4], np.float32)]
    ones = np.ones((2, 2), np.float32)
    joined = onnx.parser.parse_model(
        head + "g (seq(float[2]) s) => (float[k,2] y) <float[2] w = {1, 2}>"
        " { c = ConcatFromSequence <axis = 0, new_axis = 1> (s) y = Mul (c, w) }"
    )
    gradients = steep.InferenceSession(steep.grad(joined, ["w", "s"], ["y"]))
    dw, ds = gradients.run(["grad_w", "grad_s"], {"s": items, "grad_y": ones})
    assert dw.tolist() == [4, -2]
    assert [d.tolist() for d in ds] == [[1, 2], [1, 2]]
    with pytest.raises(steep.ModelError, match="takes tensors only"):
        steep.TrainingSession(joined, loss="mse")
    assert [o.node for o in steep.check(joined, loss="mse")] == ["s"]
    chosen = onnx.parser.parse_model(
        head + "g (float[2] x, optional(float[2]) o) => (float[2] y) <float[2] w = {1, 2}>"
        " { there = OptionalHasElement (o) y = If (there) <"
        " then_branch = a () => (r) { e = OptionalGetElement (o) p = Mul (e, w) r = Mul (p, x) },"
        " else_branch = b () => (r) { r = Mul (x, w) }> }"
    )
    gradients = steep.InferenceSession(steep.grad(chosen, ["w", "x"], ["y"]))
    for o, dw, dx in ((items[1], [3, -8], [3, -8]), (None, [1, 2], [1, 2])):
        feed = {"x": items[0], "o": o, "grad_y": ones[0]}
        found = gradients.run(["grad_w", "grad_x"], feed)
        assert [d.tolist() for d in found] == [dw, dx]


HANDED_ON = {
    "a sequence": """
        s = SequenceConstruct(w, v)
        handed_on = SequenceAt(s, i)""",
    "a loop without an iteration": """
        handed_on = Loop (i, , w) <
          body = same (int64 trip, bool c, float[2, 1] before) => (bool on, float[2, 1] after) {
            on = Identity(c)
            after = Neg(before)
          }
        >""",
}


@pytest.mark.parametrize("how", HANDED_ON)
def test_results_are_no_weights(how):
    """A weight that such a node hands on is copied: results stay, and may be written to."""
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[rows, 2] x, int64 i) => (float[rows, 1] y, float[2, 1] handed_on)
    <float[2, 1] w = {{1, 2}}, float[2, 1] v = {{3, 4}}> {{{HANDED_ON[how]}
        y = MatMul(x, w)
    }}"""
    parsed = onnx.parser.parse_model(text)
    x, y, i = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32), np.array(0, np.int64)
    inference = steep.InferenceSession(parsed)
    for _ in range(2):
        result = np.asarray(inference.run(["handed_on"], {"x": x, "i": i})[0])
        np.testing.assert_array_equal(result, [[1], [2]])
        result[...] = 7
    session = steep.TrainingSession(
        parsed,
        loss="mse",
        output="y",
        optimizer="sgd",
        lr=0.1,
        trainable=["w"],
        step_outputs=["handed_on"],
    )
    outputs = session.step(x=x, i=i, label=y).outputs[0]
    np.testing.assert_array_equal(outputs.numpy(), [[1], [2]])  # before the update
    evaluated = session.eval(x=x, i=i, label=y).outputs[1].numpy()
    weight = session.state("w").numpy()
    before = np.array(weight)
    np.testing.assert_array_equal(evaluated, before)
    evaluated[...] = 7
    np.testing.assert_array_equal(weight, before)
