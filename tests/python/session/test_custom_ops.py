"""Operators of the user's own: registered, differentiated, exported, refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from custom_functions import (
    F32,
    HEAD,
    ROUND,
    STRAIGHT,
    arrays,
    nothing_stays,
    numbers,
    parse,
    rounded_layer,
    run,
)
from onnx.reference import ReferenceEvaluator

import steep

__all__ = ["nothing_stays"]


def test_a_session_trains_by_the_gradient_that_is_given() -> None:
    x, t = arrays()
    with steep.register_op(ROUND, STRAIGHT):
        session = steep.TrainingSession(rounded_layer(), loss="mse", optimizer="sgd", lr=0.1)
        w = numbers(session.weights())["w"]
        for _ in range(4):
            _, gradients = session.gradients(x, t)
            expected = 2 * x.T @ (x @ np.round(w) - t) / t.size
            np.testing.assert_allclose(np.array(gradients["w"]), expected, rtol=1e-4, atol=1e-6)
            session.step(x, t)
            w = w - F32(0.1) * expected
    np.testing.assert_allclose(numbers(session.weights())["w"], w, rtol=1e-5, atol=1e-6)


def test_without_a_gradient_the_body_is_differentiated() -> None:
    with steep.register_op(HEAD + "Cube (x) => (y) { s = Mul (x, x)  y = Mul (s, x) }"):
        model = parse("g (float[N] x) => (float[N] y) { y = my.Cube (x) }")
        y, dx = run(steep.grad(model, wrt=["x"]), x=F32([1, 2, -3]), grad_y=F32([1, 1, 2]))
    np.testing.assert_array_equal(y, [1, 8, -27])
    np.testing.assert_array_equal(dx, [3, 12, 54])


@pytest.mark.parametrize("form", ["text", "proto", "bytes", "onnxscript"])
def test_functions_come_in_many_forms(form: str) -> None:
    function: Any = ROUND
    if form in ("proto", "bytes"):
        function = onnx.parser.parse_function(ROUND)
    if form == "bytes":
        function = function.SerializeToString()
    if form == "onnxscript":
        onnxscript = pytest.importorskip("onnxscript")
        op = onnxscript.opset18

        @onnxscript.script(onnxscript.values.Opset("my", 1), default_opset=op)
        def Round(x):
            return op.Round(x)

        function = Round
    with steep.register_op(function, STRAIGHT) as registration:
        assert registration.names == ("my.Round",)
        assert steep.register_op(ROUND, STRAIGHT).names == ()  # the same already
        assert steep.check(rounded_layer(), loss="mse") == []
        (y,) = run(rounded_layer(), x=np.eye(3, dtype=F32))
        np.testing.assert_array_equal(y, [[1, -1], [0, 3], [-2, 0]])
    (obstacle,) = steep.check(rounded_layer(), loss="mse")
    assert obstacle.op == "my.Round"


def test_second_derivatives_are_those_of_the_given_gradient() -> None:
    # y = x², with a gradient of 3·y·x·dy; so is the derivative of y in it
    square = HEAD + "Square (x) => (y) { y = Mul (x, x) }"
    given = (
        HEAD
        + """SquareGrad (x, y, dy) => (dx) {
        k = Constant <value_float = 3.0> ()
        s = Mul (y, x)  t = Mul (s, dy)  dx = Mul (t, k) }"""
    )
    x = F32([1, 2, -3])
    with steep.register_op(square, given):
        first = steep.grad(parse("g (float[N] x) => (float[N] y) { y = my.Square (x) }"), ["x"])
    second = steep.grad(first, ["x"], ["grad_x"])
    fed = {"x": x, "grad_y": np.ones_like(x)}
    (_, dx) = run(first, **fed)
    np.testing.assert_allclose(dx, 3 * x**3)
    (_, ddx) = run(second, **fed, grad_grad_x=np.ones_like(x))
    # d(3·y·x)/dx = 3·y + 3·x·(dy/dx), and dy/dx = 3·y·x
    np.testing.assert_allclose(ddx, 3 * x**2 + 9 * x**4)


def test_models_of_gradients_run_elsewhere() -> None:
    two = HEAD + "Two (x, k, z) => (a, b) { a = Mul (x, z)  b = Sub (x, z) }"
    given = HEAD + (
        'TwoGrad (x, k, z, a, b, da, db) => (dx, "", dz)'
        " { t = Mul (da, b)  dx = Add (t, db)  dz = Mul (db, a) }"
    )
    model = parse(
        "g (float[N, 3] x, float[3] z, int64[2] k) => (float[N, 3] y)"
        " { a, b = my.Two (x, k, z)  c = my.Round (a)  y = Add (c, b) }"
    )
    with steep.register_op(two, given), steep.register_op(ROUND, STRAIGHT):
        gradients = steep.grad(model, ["x", "z"])
    onnx.checker.check_model(gradients, full_check=True)
    x, dy = arrays(1)[0], arrays(2)[0]
    z = F32([0.5, -1.25, 3])
    fed = {"x": x, "z": z, "k": np.int64([0, 1]), "grad_y": dy}
    y, dx, dz = run(gradients, **fed)
    np.testing.assert_allclose(y, np.round(x * z) + x - z, rtol=1e-6)
    np.testing.assert_allclose(dx, dy * (x - z) + dy, rtol=1e-5)
    np.testing.assert_allclose(dz, (dy * x * z).sum(0), rtol=1e-4)
    for mine, other in zip((y, dx, dz), ReferenceEvaluator(gradients).run(None, fed), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    twice = steep.grad(gradients, ["x"], ["grad_x"])
    fed["grad_grad_x"] = np.ones_like(x)
    fed = {i.name: fed[i.name] for i in twice.graph.input}
    for mine, other in zip(
        run(twice, **fed), ReferenceEvaluator(twice).run(None, fed), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_bodies_of_control_flow_call_them() -> None:
    model = parse(
        """g (float[N, 3] x, bool c, int64 n) => (float[N, 3] y) {
        a = If (c) <then_branch = t () => (float[N, 3] u) { u = my.Round (x) },
                    else_branch = e () => (float[N, 3] v) { v = Neg (x) }>
        y = Loop (n, , a) <body = b (int64 i, bool d, float[N, 3] s) => (bool f, float[N, 3] r) {
            f = Identity (d)  q = my.Round (s)  r = Add (q, s) }> }"""
    )
    x = arrays(3)[0]
    with steep.register_op(ROUND, STRAIGHT):
        gradients = steep.grad(model, ["x"])
    for taken in (True, False):
        a = np.round(x) if taken else -x
        y = a
        for _ in range(3):
            y = np.round(y) + y
        fed = {"x": x, "c": np.array(taken), "n": np.array(3), "grad_y": np.ones_like(x)}
        got, dx = run(gradients, **fed)
        np.testing.assert_allclose(got, y, rtol=1e-5)
        np.testing.assert_array_equal(dx, np.full_like(x, 8 if taken else -8))


def test_bfloat16_steps_use_the_given_gradient() -> None:
    x, t = arrays(4)
    with steep.register_op(ROUND, STRAIGHT):
        settings = {"loss": "mse", "optimizer": "sgd", "lr": 0.05}
        wide = steep.TrainingSession(rounded_layer(), **settings)
        narrow = steep.TrainingSession(rounded_layer(), precision="bf16", **settings)
    before = numbers(wide.weights())["w"]
    for _ in range(3):
        wide.step(x, t)
        narrow.step(x, t)
    after, near = (numbers(s.weights())["w"] for s in (wide, narrow))
    assert np.abs(after - before).min() > 1e-3
    np.testing.assert_allclose(near, after, atol=0.02)


def test_exports_keep_node_and_function(tmp_path: Path) -> None:
    x, t = arrays(5)
    inside = parse(
        "g (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>"
        " { [mine] r = my.Round (w)  y = MatMul (x, r) }",
        HEAD + "Round (a) => (b) { b = Round (a) }",
    )
    with steep.register_op(ROUND, STRAIGHT):
        for model in (rounded_layer(), inside):
            session = steep.TrainingSession(model, loss="mse", optimizer="sgd", lr=0.2)
            session.step(x, t)
            for for_inference in (False, True):
                session.export_onnx(tmp_path / "out.onnx", for_inference)
                out = onnx.load(tmp_path / "out.onnx")
                assert out.graph.node == model.graph.node
                assert out.functions == model.functions
                again = steep.InferenceSession(tmp_path / "out.onnx").run(None, {"x": x})
                np.testing.assert_array_equal(again[0], np.array(session.eval(x).outputs[0]))
    # a file that holds the function needs nobody who knows it
    steep.InferenceSession(tmp_path / "out.onnx")
    floor = HEAD + "Round (x) => (y) { y = Floor (x) }"
    with (
        steep.register_op(floor),
        pytest.raises(steep.ModelError, match="differs from the registered function"),
    ):
        steep.InferenceSession(tmp_path / "out.onnx")


def test_sessions_keep_what_they_were_made_with() -> None:
    x, t = arrays(6)
    with steep.register_op(ROUND, STRAIGHT):
        session = steep.TrainingSession(rounded_layer(), loss="mse", optimizer="sgd", lr=0.1)
        one = steep.InferenceSession(rounded_layer().SerializeToString())
    with steep.register_op(HEAD + "Round (x) => (y) { y = Neg (x) }"):
        w = numbers(session.weights())["w"]
        session.step(x, t)
        assert np.abs(numbers(session.weights())["w"] - w).max() > 0
        np.testing.assert_allclose(one.run(None, {"x": x})[0], x @ np.round(w), rtol=1e-5)
        np.testing.assert_allclose(run(rounded_layer(), x=x)[0], x @ -w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "gradient", "says", "node", "op"),
    [
        ("Round (x) => (y) { y = Round (x)", None, "cannot be parsed", "", ""),
        (3, None, "not a function", "", ""),
        (b"\x00\x01", None, "not a function", "", ""),
        (ROUND.replace('"my",', '"ai.onnx.ml",'), None, "reserved", "ai.onnx.ml.Round", ""),
        (ROUND.replace('"my",', '"steep",'), None, "reserved", "steep.Round", ""),
        (HEAD + "F (x) => (y) { [n] y = Nothing (x) }", None, "my.F", "n", "Nothing"),
        (HEAD + "F (x) => (y) { y = my.Nothing (x) }", None, "my.F", "y", "my.Nothing"),
        (HEAD + "F (x) => (y) { y = Neg (x) }", HEAD + "G (x, y, dy) => (dx)"
         " { [n] dx = Nothing (dy) }", "gradient of my.F", "n", "Nothing"),
        (HEAD + "F (x) => (y) { y = my.F (x) }", None, "calls itself", "my.F", ""),
        (HEAD + "F (x) => (y) { y = Neg (x) }", HEAD + "G (x, y, dy) => (dx)"
         " { dx = my.F (dy) }", "calls itself", "my.F", ""),
        (ROUND, HEAD + "G (x, dy) => (dx) { dx = Neg (dy) }", "number of inputs", "my.Round", ""),
    ],
)  # fmt: skip
def test_bad_functions_are_refused(
    function: Any, gradient: Any, says: str, node: str, op: str
) -> None:
    with pytest.raises(steep.ModelError) as caught:
        steep.register_op(function, gradient)
    assert says in caught.value.what
    assert (caught.value.node, caught.value.op) == (node, op)
    assert caught.value.expected or caught.value.received


def test_another_body_of_the_same_name_is_refused() -> None:
    with steep.register_op(ROUND, STRAIGHT):
        for function, gradient in (
            (ROUND, None),
            (ROUND.replace("Round (x) }", "Floor (x) }"), STRAIGHT),
        ):
            with pytest.raises(steep.ModelError, match="already") as caught:
                steep.register_op(function, gradient)
            assert caught.value.node == "my.Round"


def test_nodes_and_gradients_that_do_not_fit_are_refused() -> None:
    wide = HEAD + "G (x, y, dy) => (dx) { dx = Cast <to = 11> (dy) }"
    flat = HEAD + "G (x, y, dy) => (dx) { dx = ReduceSum <keepdims = 0> (dy) }"
    for gradient, received in ((wide, "float64"), (flat, "float32[]")):
        with steep.register_op(ROUND, gradient), pytest.raises(steep.ModelError) as caught:
            steep.TrainingSession(rounded_layer(), loss="mse")
        assert (caught.value.node, caught.value.op) == ("r", "my.Round")
        assert received in caught.value.received
    with steep.register_op(HEAD + "Round <k> (x) => (y) { y = Elu <alpha: float = @k> (x) }"):
        with pytest.raises(steep.ModelError, match="no default") as caught:
            steep.InferenceSession(rounded_layer().SerializeToString())
        assert (caught.value.node, caught.value.expected) == ("r", "k")


@pytest.mark.parametrize("made", ["Transpose (dy)", "Concat <axis = 0> (dy, dy)"])
def test_gradients_whose_shape_is_seen_late_are_refused(made: str) -> None:
    """Once the extents of a call are known; a model of gradients has no such sum either."""
    model = parse(
        "g (float[n,k] x) => (float[n,k] y) <float[3] w = {1, 2, 3}>"
        " { q = Mul (x, w) y = my.Round (q) }"
    )
    x = np.ones((2, 3), np.float32)
    with steep.register_op(ROUND, HEAD + f"G (x, y, dy) => (dx) {{ dx = {made} }}"):
        session = steep.TrainingSession(model, loss="mse")
        with pytest.raises(steep.ModelError, match="another shape") as caught:
            session.step(x, x)
        assert caught.value.op == "my.Round"
        assert "[2, 3]" in caught.value.expected
        gradients = steep.grad(model, ["w"], ["y"])
        with pytest.raises(steep.Error):
            steep.InferenceSession(gradients).run(None, {"x": x, "grad_y": x})


def test_threads_may_register() -> None:
    failures = []

    def work(i: int) -> None:
        model = parse(f"g (float[2] x) => (float[2] y) {{ y = my.F{i} (x) }}")
        for _ in range(20):
            with steep.register_op(HEAD + f"F{i} (x) => (y) {{ y = Neg (x) }}"):
                if run(model, x=F32([1, 2]))[0].tolist() != [-1, -2]:
                    failures.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- optimizers -----------------------------------------------------------------------------------
