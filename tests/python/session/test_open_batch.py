"""Files that fix their number of rows: open where rows stay apart, else as they are."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import steep

RNG = np.random.default_rng(0)
ROWS = 4
LSTM = """lstm = LSTM<hidden_size=3>(t, wl, rl{states})
    l = Squeeze(lstm, one) o = Transpose<perm=[1, 0, 2]>(l) {last}"""


def number(values: np.ndarray, name: str) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(values, name)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


ZEROS = ", , , zeros, zeros"

CONSTANTS = {
    "w": floats(6, 5),
    "b": floats(5),
    "kernel": floats(4, 2, 3, 3),
    "square": floats(6, 6),
    "table": floats(9, 5),
    "places": floats(1, 3, 6),
    "rows_of_b": floats(ROWS, 5),
    "wl": floats(1, 12, 6),
    "rl": floats(1, 12, 3),
    "zeros": np.zeros((1, ROWS, 3), np.float32),
    "state": floats(1, ROWS, 3),
    "eighth": np.float32(0.125),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "none": np.array(0),
    "four": np.array([ROWS]),
    "as_4_6": np.array([ROWS, 6]),
    "as_4_any": np.array([ROWS, -1]),
    "as_any_6": np.array([-1, 6]),
    "as_12_6": np.array([3 * ROWS, 6]),
    "as_6_12": np.array([6, 3 * ROWS]),
    "as_4_3_2_3": np.array([ROWS, 3, 2, 3]),
    "as_4_3_any": np.array([ROWS, 3, -1]),
    "as_8_3_3": np.array([2 * ROWS, 3, 3]),
    "as_4_2_3_3": np.array([ROWS, 2, 3, 3]),
    "as_3_8_3": np.array([3, 2 * ROWS, 3]),
    "as_3_4_6": np.array([3, ROWS, 6]),
    "as_8_9": np.array([2 * ROWS, 9]),
    "as_4_1_6": np.array([ROWS, 1, 6]),
    "as_4_3_6": np.array([ROWS, 3, 6]),
    "any": np.array([-1]),
    "step": np.float32(0.02),
    "origin": np.uint8(120),
    "steps": np.linspace(0.01, 0.03, 6, dtype=np.float32),
    "origins": np.arange(100, 106, dtype=np.uint8),
    "steps_of_rows": np.linspace(0.01, 0.03, ROWS, dtype=np.float32),
    "packed": RNG.integers(-9, 9, (6, 5), np.int8),
    "steps_of_w": np.linspace(0.01, 0.03, 5, dtype=np.float32),
}

# Three axes: rows, 3, 6; four of images: rows, 2, 6, 6.
IMAGE, TOKENS, WORDS = [2, 6, 6], [3, 6], [3]
OPEN = {
    "dense": ([6], "p = MatMul(x, w) y = Add(p, b)"),
    "gemm": ([6], "p = Gemm(x, w, b) y = Softmax(p)"),
    "flattened": (IMAGE, "p = Conv(x, kernel) y = Flatten(p)"),
    "a constant shape": (IMAGE, "p = Conv(x, kernel) y = Reshape(p, as_4_any)"),
    "pooled": (IMAGE, "p = Conv(x, kernel) q = GlobalAveragePool(p) y = Reshape(q, as_4_any)"),
    "tokens as rows": (TOKENS, "r = Reshape(x, as_12_6) p = MatMul(r, w) q = Relu(p) "
                               "s = Reshape(q, as_4_any) y = Tanh(s)"),
    "tokens as any rows": (TOKENS, "r = Reshape(x, as_any_6) p = MatMul(r, square) "
                                   "y = Reshape(p, as_4_3_any)"),
    "heads": (TOKENS, "q = MatMul(x, square) r = Reshape(q, as_4_3_2_3) "
                      "t = Transpose<perm=[0, 2, 1, 3]>(r) k = Transpose<perm=[0, 2, 3, 1]>(r) "
                      "s = MatMul(t, k) a = Softmax(s) o = MatMul(a, t) "
                      "u = Transpose<perm=[0, 2, 1, 3]>(o) y = Reshape(u, as_4_3_any)"),
    "heads behind tokens": (TOKENS, "f = Transpose<perm=[1, 0, 2]>(x) q = MatMul(f, square) "
                                    "r = Reshape(q, as_3_8_3) t = Transpose<perm=[1, 0, 2]>(r) "
                                    "k = Transpose<perm=[0, 2, 1]>(t) s = MatMul(t, k) "
                                    "a = Softmax(s) o = MatMul(a, t) "
                                    "u = Transpose<perm=[1, 0, 2]>(o) v = Reshape(u, as_3_4_6) "
                                    "y = Transpose<perm=[1, 0, 2]>(v)"),
    "a shape that is read": (TOKENS, "q = MatMul(x, square) s = Shape(q) n = Gather(s, none) "
                                     "m = Unsqueeze(n, zero) c = Concat<axis=0>(m, any) "
                                     "y = Reshape(q, c)"),
    "an extent that stays": (TOKENS, "q = MatMul(x, square) e = Expand(q, as_4_3_6) "
                                     "y = ReduceMean<axes=[1], keepdims=0>(e)"),
    "an axis more": (TOKENS, "q = MatMul(x, square) u = Unsqueeze(q, one) y = Squeeze(u, one)"),
    "places": (TOKENS, "p = Add(x, places) q = MatMul(p, square) "
                       "y = LayerNormalization(q, ln)"),
    "a part": (TOKENS, "q = MatMul(x, square) y = Slice(q, zero, two, one)"),
    "einsum": (TOKENS, """y = Einsum<equation="bti,io->bto">(x, w)"""),
    "recurrent": (TOKENS, "t = Transpose<perm=[1, 0, 2]>(x) "
                          + LSTM.format(states="", last="y = Tanh(o)")),
    "recurrent from zeros": (TOKENS, "t = Transpose<perm=[1, 0, 2]>(x) "
                                     + LSTM.format(states=ZEROS, last="y = Tanh(o)")),
    "words": (WORDS, "e = Gather(table, x) y = MatMul(e, five)"),
    "quantised": ([6], "q = QuantizeLinear(x, step, origin) d = DequantizeLinear(q, step, origin) "
                       "y = MatMul(d, w)"),
    "quantised by column": ([6], "q = QuantizeLinear<axis=1>(x, steps, origins) "
                                 "d = DequantizeLinear<axis=1>(q, steps, origins) "
                                 "y = MatMul(d, w)"),
    "integers by column": (TOKENS, "q = QuantizeLinear(x, step, origin) "
                                   "t = Transpose<perm=[1, 0, 2]>(q) "
                                   "d = DequantizeLinear<axis=-1>(t, steps, origins) "
                                   "u = Transpose<perm=[1, 0, 2]>(d) y = MatMul(u, square)"),
    "quantised weights": ([6], "e = DequantizeLinear<axis=1>(packed, steps_of_w) "
                               "p = MatMul(x, e) y = Add(p, b)"),
    "scales from rows": ([6], "a = Abs(x) m = ReduceMax<axes=[1], keepdims=0>(a) "
                              "s = Mul(m, step) q = QuantizeLinear<axis=0>(x, s) "
                              "d = DequantizeLinear<axis=0>(q, s) y = MatMul(d, w)"),
}  # fmt: skip

# And why not. What mixes rows for 4 of them would, for others, give something else without a word.
STAY = {
    "softmax over rows": ([6], "p = MatMul(x, w) y = Softmax<axis=0>(p)", "Softmax", "mixes rows"),
    "mean of rows": ([6], "p = MatMul(x, w) m = ReduceMean<axes=[0], keepdims=1>(p) y = Sub(p, m)",
                     "ReduceMean", "mixes rows"),
    "mean of all": ([6], "p = MatMul(x, w) m = ReduceMean<keepdims=0>(p) y = Sub(p, m)",
                    "ReduceMean", "mixes rows"),
    "a constant for each row": ([6], "p = MatMul(x, w) y = Add(p, rows_of_b)", "Add",
                                "holds a number of rows"),
    "a sum over the number": ([6], "p = MatMul(x, w) s = Shape(x) n = Gather(s, none) "
                                   "f = Cast<to=1>(n) y = Div(p, f)", "Div",
                              "holds a number of rows"),
    "rows by rows": ([6], "t = Transpose(x) g = MatMul(x, t) p = MatMul(x, w) y = MatMul(g, p)",
                     "MatMul", "mixes rows"),
    "rows regrouped": (TOKENS, "r = Reshape(x, as_6_12) q = Softmax(r) s = Reshape(q, as_4_3_6) "
                               "y = MatMul(s, square)",
                       "Reshape", "mixes rows"),
    "tokens of all rows": (TOKENS, "q = MatMul(x, square) r = Reshape(q, as_12_6) "
                                   "s = Softmax<axis=0>(r) y = Reshape(s, as_4_3_any)", "Softmax",
                           "mixes rows"),
    "the first row": ([6], "p = MatMul(x, w) f = Slice(p, zero, one, zero) y = Sub(p, f)", "Slice",
                      "mixes rows"),
    "a state for each row": (TOKENS, "t = Transpose<perm=[1, 0, 2]>(x) "
                                     + LSTM.format(states=", , , state, state", last="y = Tanh(o)"),
                             "LSTM", "holds a number of rows"),
    "sorted rows": ([6], "p = MatMul(x, w) y, i = TopK<axis=0>(p, four)", "TopK", "mixes rows"),
    "added up along rows": ([6], "p = MatMul(x, w) y = CumSum(p, none)", "CumSum", "mixes rows"),
    "a scale for each row": ([6], "q = QuantizeLinear<axis=0>(x, steps_of_rows) "
                                  "d = DequantizeLinear<axis=0>(q, steps_of_rows) "
                                  "y = MatMul(d, w)", "steep.FakeQuantize",
                             "holds a number of rows"),
    "a scale of all rows": ([6], "a = Abs(x) m = ReduceMax<keepdims=0>(a) s = Mul(m, step) "
                                 "q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) "
                                 "y = MatMul(d, w)", "ReduceMax", "mixes rows"),
    "scales of other rows": ([6], "a = Abs(x) m = ReduceMax<axes=[0], keepdims=0>(a) "
                                  "s = Mul(m, step) q = QuantizeLinear(x, s) "
                                  "d = DequantizeLinear(q, s) y = MatMul(d, w)", "ReduceMax",
                             "mixes rows"),
}  # fmt: skip


def model(axes: list[int], nodes: str, rows: int = ROWS) -> onnx.ModelProto:
    """One input, x [rows, axes…], of words where there is one axis of 3; one output, y."""
    kind = "int64" if axes == WORDS else "float"
    extents = ", ".join(map(str, [rows, *axes]))
    parsed = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g ({kind}[{extents}] x) => (float y)
        {{ {nodes} }}"""
    )
    parsed.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", 1, None))
    used = {name for node in parsed.graph.node for name in node.input}
    constants = CONSTANTS | {"ln": floats(6), "five": floats(5, 2)}
    parsed.graph.initializer.extend(number(v, k) for k, v in constants.items() if k in used)
    return parsed


def fed(axes: list[int], rows: int) -> np.ndarray:
    if axes == WORDS:
        return RNG.integers(0, 9, (rows, *axes))
    return RNG.normal(0, 1, (rows, *axes)).astype(np.float32)


def outputs(session: steep.TrainingSession, x: np.ndarray) -> np.ndarray:
    return np.array(session.eval(x).outputs[0])


@pytest.mark.parametrize("name", OPEN)
def test_open(name: str) -> None:
    axes, nodes = OPEN[name]
    proto = model(axes, nodes)
    session = steep.TrainingSession(proto, loss="mse", optimizer="sgd", lr=0.1)
    assert session.batch_note == (
        "the file fixes batches of 4 rows, on which nothing in it depends: batches of any size are "
        "taken"
    )
    as_it_is = steep.InferenceSession(proto)
    x = fed(axes, 11)
    # With 4 rows it is the file's model, and any other number gives what the same rows give there.
    for begin in (0, 4, 7):
        part = x[begin : begin + ROWS]
        (expected,) = as_it_is.run(None, {"x": part})
        np.testing.assert_allclose(outputs(session, part), expected, atol=1e-6)
        np.testing.assert_allclose(
            outputs(session, x)[begin : begin + ROWS], expected, rtol=1e-5, atol=1e-5
        )
    assert np.isfinite(session.step(x, np.zeros_like(outputs(session, x))).loss)


@pytest.mark.parametrize("name", OPEN)
def test_open_from_one_row(name: str) -> None:
    """With one row, all that would broadcast to others, or mix them, looks as if it did not."""
    axes, nodes = OPEN[name]
    if "as_" in nodes or "zeros" in nodes:
        pytest.skip("its constants are of four rows")
    proto = model(axes, nodes, 1)
    session = steep.TrainingSession(proto, loss="mse", optimizer="sgd", lr=0.1)
    assert "batches of 1 row, on which nothing" in session.batch_note
    as_it_is = steep.InferenceSession(proto)
    x = fed(axes, 5)
    expected = np.concatenate([as_it_is.run(None, {"x": x[i : i + 1]})[0] for i in range(5)])
    np.testing.assert_allclose(outputs(session, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", STAY)
def test_stay(name: str) -> None:
    axes, nodes, op, why = STAY[name]
    proto = model(axes, nodes)
    session = steep.TrainingSession(proto, loss="mse", optimizer="sgd", lr=0.1)
    assert session.batch_note.startswith(
        f"the file fixes batches of 4 rows, and no others are taken, since {op} '"
    )
    assert session.batch_note.endswith(why)
    x = fed(axes, ROWS)
    (expected,) = steep.InferenceSession(proto).run(None, {"x": x})
    np.testing.assert_allclose(outputs(session, x), expected, atol=1e-6)
    assert np.isfinite(session.step(x, np.zeros_like(expected)).loss)
    for rows in (1, 3, 8):
        with pytest.raises(steep.ShapeError):
            session.eval(fed(axes, rows))


@pytest.mark.parametrize(
    "nodes",
    [
        "s = Softmax<axis=0>(x) y = MatMul(s, w)",
        "t = Transpose(x) g = MatMul(x, t) p = MatMul(x, w) y = MatMul(g, p)",
        "m = ReduceMean<axes=[0], keepdims=1>(x) d = Sub(x, m) y = MatMul(d, w)",
        "v = Squeeze(x) p = MatMul(v, w) y = Unsqueeze(p, zero)",
        "t = Transpose(x) d = Add(x, t) y = MatMul(d, square)",
        "c = CumSum(x, none) y = MatMul(c, w)",
    ],
)
def test_one_row_that_would_meet_others(nodes: str) -> None:
    session = steep.TrainingSession(model([6], nodes, 1), loss="mse", optimizer="sgd", lr=0.1)
    assert "batches of 1 row, and no others are taken" in session.batch_note


def in_blocks(scales: str, rows: int = ROWS) -> onnx.ModelProto:
    """Each row is quantised in two blocks of three."""
    nodes = f"""{scales} q = QuantizeLinear<axis=1, block_size=3>(x, s)
        d = DequantizeLinear<axis=1, block_size=3>(q, s) y = MatMul(d, w)"""
    proto = model([6], nodes, rows)
    proto.opset_import[0].version, proto.ir_version = 21, 10
    extra = {"parts": np.array([rows, 2, 3]), "last": np.array([2])}
    used = {name for node in proto.graph.node for name in node.input}
    extra["constant"] = np.full((rows, 2), 0.02, np.float32)
    proto.graph.initializer.extend(number(v, k) for k, v in extra.items() if k in used)
    return proto


@pytest.mark.parametrize("rows", [ROWS, 1])
def test_blocks_of_rows(rows: int) -> None:
    each = in_blocks(
        "r = Reshape(x, parts) a = Abs(r) m = ReduceMax<keepdims=0>(a, last) s = Mul(m, step)", rows
    )
    session = steep.TrainingSession(each, loss="mse", optimizer="sgd", lr=0.1)
    assert "on which nothing" in session.batch_note, session.batch_note
    as_it_is = steep.InferenceSession(each)
    x = fed([6], 8)
    expected = [as_it_is.run(None, {"x": x[i : i + rows]})[0] for i in range(0, 8, rows)]
    np.testing.assert_allclose(outputs(session, x), np.concatenate(expected), 1e-5, 1e-5)
    fixed = steep.TrainingSession(
        in_blocks("s = Identity(constant)", rows), loss="mse", optimizer="sgd", lr=0.1
    )
    assert fixed.batch_note.endswith("holds a number of rows")


def test_several_inputs() -> None:
    def with_inputs(inputs: str) -> onnx.ModelProto:
        proto = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float[4, 5] y)
            {{ m = Mul(x, z) y = MatMul(m, w) }}"""
        )
        proto.graph.initializer.append(number(CONSTANTS["w"], "w"))
        return proto

    def note(inputs: str) -> str:
        return steep.TrainingSession(
            with_inputs(inputs), loss="mse", optimizer="sgd", lr=0.1
        ).batch_note

    assert "any size" in note("float[4, 6] x, float[4, 1] z")
    assert note("float[4, 6] x, float[1, 6] z") == ""  # of different numbers: which is it?
    assert note("float[4, 6] x, float[n, 6] z") == ""
    assert "mixes rows" in note("float[6, 6] x, float[6] z")


def test_a_loss_within_is_of_the_batch_that_it_fixes() -> None:
    proto = model([6], "p = MatMul(x, w) s = ReduceSum<keepdims=0>(p) y = Mul(s, eighth)")
    session = steep.TrainingSession(proto, optimizer="sgd", lr=0.1)
    assert session.batch_note == ""
    with pytest.raises(steep.ShapeError):
        session.step(fed([6], 8))


def test_what_is_exported_is_the_file(tmp_path) -> None:
    proto = model([6], OPEN["dense"][1])
    session = steep.TrainingSession(proto, loss="mse", optimizer="sgd", lr=0.1)
    session.step(fed([6], 7), np.zeros((7, 5), np.float32))
    session.export_onnx(tmp_path / "o.onnx")
    written = onnx.load(tmp_path / "o.onnx")
    assert written.graph.input[0].type.tensor_type.shape.dim[0].dim_value == ROWS


def reshaped(inside: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 18]>
    g (float[n, 4] x) => (float[n, 2] y)
    <float[4, 2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, int64[3] s = {{8, 2, 2}}, int64[2] t = {{8, 4}}> {{
        [there] h = Reshape (x, s)
        k = {inside}
        [back] u = Reshape (k, t)
        y = MatMul (u, w)
    }}""")


def test_a_reshape_inside_of_an_open_batch_is_opened():
    session = steep.TrainingSession(reshaped("Relu (h)"), loss="mse", optimizer="sgd", lr=0.0)
    assert "8 rows" in session.batch_note and "any size" in session.batch_note
    x, y = floats(8, 4), floats(8, 2)
    whole = session.step(x, y).loss
    parts = [session.step(x[i : i + 2], y[i : i + 2]).loss for i in range(0, 8, 2)]
    assert np.mean(parts) == pytest.approx(whole, rel=1e-5)
    weights = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    assert whole == pytest.approx(((np.maximum(x, 0) @ weights - y) ** 2).mean(), rel=1e-5)


def test_a_reshape_inside_that_stays_is_named_before_the_first_step():
    session = steep.TrainingSession(reshaped("Softmax <axis = 0> (h)"), loss="mse")
    assert "Reshape 'there' holds it" in session.batch_note
    assert "Softmax 'k' mixes rows" in session.batch_note
    assert session.input_info()[0].shape == (8, 4)
    session.step(floats(8, 4), floats(8, 2))
    with pytest.raises(steep.ShapeError, match=r"float32\[8, 4\]"):
        session.step(floats(4, 4), floats(4, 2))
    with pytest.raises(steep.DataError, match="Reshape 'there'"):
        session.fit((floats(8, 4), floats(8, 2)), batch=4)


def test_an_open_batch_without_such_a_reshape_has_no_note():
    made = reshaped("Relu (h)")
    made.graph.initializer[1].CopyFrom(number(np.array([-1, 2, 2]), "s"))
    made.graph.initializer[2].CopyFrom(number(np.array([-1, 4]), "t"))
    assert steep.TrainingSession(made, loss="mse").batch_note == ""
