"""Weights that stand inside of branches and loops: trained, named, left out and exported."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import steep

F = np.float32
X = np.array([[1, 2], [3, -1]], F)
BRANCHES = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,2] x, bool c) => (float[n,2] y) <float[2] o = {0.5, 1}> {
 p = If <
  then_branch = a () => (float[n,2] r) <float[2,2] THEN = {1,2,3,4}> { r = MatMul(x, THEN) },
  else_branch = b () => (float[n,2] s) <float[2,2] ELSE = {-1,0,2,1}> { s = MatMul(x, ELSE) }>(c)
 y = Add(p, o) }"""
LOOP = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,2] x, int64 k) => (float[n,2] y) {
 y = Loop <body = b (int64 i, bool t, float[n,2] s) => (bool u, float[n,2] r)
   <float[2,2] w = {1,2,3,4}> { u = Identity(t) r = MatMul(s, w) }>(k, , x) }"""
NESTED = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,2] x, bool c, int64 k) => (float[n,2] y) {
 y = Loop <body = b (int64 i, bool t, float[n,2] s) => (bool u, float[n,2] r) {
   u = Identity(t)
   r = If <then_branch = d () => (float[n,2] q) <float[2,2] w = {1,2,3,4}> { q = MatMul(s, w) },
           else_branch = e () => (float[n,2] z) { z = Identity(s) }>(c) }>(k, , x) }"""


def weights(session: steep.TrainingSession) -> dict[str, np.ndarray]:
    return {n: np.asarray(w) for n, w in session.weights().items()}


def stored(model: onnx.ModelProto) -> list[np.ndarray]:
    """Arrays of initializers within bodies, in order."""

    def of(graph: onnx.GraphProto, outermost: bool) -> list[np.ndarray]:
        found = [] if outermost else [numpy_helper.to_array(t) for t in graph.initializer]
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    found += of(attribute.g, False)
        return found

    return of(model.graph, True)


@pytest.mark.parametrize(
    ("text", "names", "called", "feeds"),
    [
        (BRANCHES, "THEN ELSE", "o THEN ELSE", {"c": np.array(True)}),
        (
            BRANCHES.replace("THEN", "w").replace("ELSE", "w"),
            "w w",
            "o p/then_branch/w p/else_branch/w",
            {"c": np.array(False)},
        ),
        (LOOP, "w", "w", {"k": np.array(2)}),
        (NESTED, "w", "w", {"c": np.array(True), "k": np.array(2)}),
    ],
)
def test_are_trained_as_weights_around_would_be(
    text: str, names: str, called: str, feeds: dict[str, np.ndarray]
) -> None:
    model = onnx.parser.parse_model(text)
    session = steep.TrainingSession(model, loss="mse", optimizer="sgd", lr=1e-3)
    assert session.parameter_names == called.split()
    assert steep.check(model, loss="mse") == []
    arrays = [X, *feeds.values(), np.zeros_like(X)]
    before = weights(session)
    loss, gradients = session.gradients(*arrays)
    moved = {n: before[n] - 1e-3 * np.asarray(gradients[n]) for n in before}
    assert any(np.abs(moved[n] - before[n]).max() > 0 for n in called.split() if n != "o")
    session.step(*arrays)
    for name, want in moved.items():
        np.testing.assert_allclose(weights(session)[name], want, rtol=1e-6)
    # Differences of the loss itself.
    for name in called.split():
        shifted = dict(before)
        shifted[name] = before[name] + np.array(1e-2, F)
        session.set_weights(shifted)
        other = session.eval(*arrays).loss
        session.set_weights({**before, name: before[name] - np.array(1e-2, F)})
        less = session.eval(*arrays).loss
        want = np.asarray(gradients[name]).sum()
        np.testing.assert_allclose((other - less) / 2e-2, want, rtol=2e-2, atol=1e-3)
    session.set_weights(moved)
    assert loss > 0
    for made in (session.export_onnx_bytes(), session.export_onnx_bytes(for_inference=True)):
        exported = onnx.load_from_string(made)
        got = steep.InferenceSession(exported).run(None, {"x": X, **feeds})[0]
        want = session.eval(*arrays[:-1]).outputs[0]
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)
        inner = [n for n in called.split() if n != "o"]
        for array, name in zip(stored(exported), inner, strict=True):
            np.testing.assert_array_equal(array, moved[name])
    assert len(stored(model)) == len(names.split())


def test_what_stays_inside_is_said_and_can_be_named() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[n,2] x, int64 k) => (float[n,2] y) <float[2,2] v = {1,0,0,1}, float[2] mu = {9, 9},
       float[2] va = {1, 1}> {
     h = MatMul(x, v)
     y = Loop <body = b (int64 i, bool t, float[n,2] s) => (bool u, float[n,2] r)
       <float[2] mean = {0, 1}, float[2] var = {1, 4}, float[2] ga = {1, 2}, float[2] be = {0, 0}> {
        u = Identity(t)
        c = Constant <value = float[2] {0.5, 0.25}> ()
        m = Mul(s, c)
        q = BatchNormalization(m, ga, be, mu, va)
        r = BatchNormalization(q, ga, be, mean, var) }>(k, , h) }""")
    session = steep.TrainingSession(model, loss="mse", optimizer="sgd", lr=0.1)
    assert session.parameter_names == ["v", "ga", "be"]
    left = {left.name: left.reason for left in session.left_out}
    assert left["c"] == "is a Constant node, inside of a branch or loop"
    assert "setting of BatchNormalization" in left["mean"] and "setting" in left["var"]
    assert "setting" in left["mu"] and "setting" in left["va"]  # they stand outside
    named = steep.TrainingSession(model, loss="mse", optimizer="sgd", lr=0.1, trainable=["c"])
    named.step(X, np.array(1), np.zeros_like(X))
    moved = weights(named)["c"]
    assert np.abs(moved - [0.5, 0.25]).min() > 0
    exported = onnx.load_from_string(named.export_onnx_bytes())
    got = steep.InferenceSession(exported).run(None, {"x": X, "k": np.array(1)})[0]
    want = named.eval(X, np.array(1)).outputs[0]
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)
    gradient = steep.grad(model, wrt=["c", "ga"], outputs=["y"])
    feeds = {"x": X, "k": np.array(1), "grad_y": np.ones_like(X)}
    for array in steep.InferenceSession(gradient).run(["grad_c", "grad_ga"], feeds):
        assert np.abs(np.asarray(array)).max() > 0


def test_constants_of_the_graph_that_bodies_read_are_trained_when_named() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[n,2] x, bool c) => (float[n,2] y) {
     k = Constant <value = float[2] {0.5, 0.25}> ()
     y = If <then_branch = a () => (float[n,2] r) { r = Mul(x, k) },
             else_branch = b () => (float[n,2] s) { s = Add(x, k) }>(c) }""")
    session = steep.TrainingSession(model, loss="mse", optimizer="sgd", lr=0.1, trainable=["k"])
    session.step(X, np.array(True), np.zeros_like(X))
    want = np.array([0.5, 0.25]) * (1 - 0.1 * 2 / 4 * (X**2).sum(0))
    np.testing.assert_allclose(weights(session)["k"], want, rtol=1e-6)
