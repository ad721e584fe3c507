"""Each row of rows.py against ONNX's reference, PyTorch, central differences and decompositions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from each_row import each_row
from nodes import TABLE, evaluate, evaluator, gradients, is_float, one_node
from onnx.reference import ReferenceEvaluator
from rows import ROWS
from rows.bfloat16 import NARROW_ROWS
from rows.row import Row

from steep import _steep

EPS = 1e-6
ALONE = 8  # elements of an input that move alone
TOGETHER = 2  # directions in which all of them move
# Adam and its like read lr and a gradient scale in single precision whatever the parameters are.
TOLERANCE = {np.float32: {"rtol": 2e-5, "atol": 2e-5}, np.float64: {"rtol": 1e-6, "atol": 1e-8}}
STEPS = (
    *("steep.SGD", "steep.Adam", "steep.Lamb", "steep.NAdam", "steep.RAdam", "steep.Adagrad"),
    *("steep.Adadelta", "steep.RMSprop", "steep.Adamax", "steep.GlobalNorm", "steep.Assign"),
    *("steep.Adafactor", "steep.Muon"),
    *("steep.NarrowAdam", "steep.NarrowLamb", "steep.NarrowSGD"),
)

# On subgraphs and sequences: whole models in tests/python/session/test_control_flow.py.
FLOW = {
    "ConcatFromSequence",
    "If",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SplitToSequence",
    "steep.Loop",
    "steep.SequenceExtents",
    "steep.SumOf",
    "steep.ZerosLike",
    "Loop",
    "Scan",
    "SequenceMap",
}

# What the rows cannot say, and why.
WITHOUT_ROWS = {
    **dict.fromkeys(
        ["steep.CheckedRows", "steep.CountedRows"],
        "which rows count: tests/autodiff/read_rows_test.cc",
    ),
    "steep.ReadFile": "a file: tests/python/session/test_frozen_on_disk.py",
    "steep.Deliver": "hands gradients to a function: tests/parallel/divided_gradients_test.cc",
    **dict.fromkeys(
        (
            "Bernoulli",
            "Multinomial",
            "RandomNormal",
            "RandomNormalLike",
            "RandomUniform",
            "RandomUniformLike",
        ),
        "random: test_random.py; a draw has no gradient",
    ),
    **dict.fromkeys(
        ["ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"],
        "refused: images and strings",
    ),
    **dict.fromkeys(
        [f"ai.onnx.preview.training.{n}" for n in ("Adagrad", "Adam", "Gradient", "Momentum")],
        "optimizers, and gradients themselves: tests/conformance, "
        "tests/python/session/test_grad.py",
    ),
    "steep.RecurrentWithTrace": "keep_trace makes it of LSTM, GRU and RNN, whose rows of gradients "
    "run it; tests/kernels/recurrent_test.cc compares the bits",
    "Constant": "no input",
    **dict.fromkeys(
        ["steep.CheckedGradient", "steep.GradientOf", "steep.WithGradient"],
        "of a captured graph: tests/python/lowering/ops/test_autograd_function.py, "
        "tests/python/session/test_custom_ops.py",
    ),
    "Dropout": "steep.Dropout or nothing at import",
    "steep.Claimed": "what plug-ins fuse: tests/providers",
}

# Whose inputs and results always hold something.
WITHOUT_EMPTY = {"MelWeightMatrix"}  # ONNX's inference refuses 0 bins

# Where onnx.reference itself fails, on a scalar.
REFERENCE_FAILS = {"Softsign-"}

both_precisions = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])


def rows(condition):
    """Makes a check of a row a test for each operator, of its rows that meet the condition."""
    return each_row([r for r in ROWS if condition(r)])


def seeds(row, outputs):
    """A gradient for each output that is to have one."""
    rng = np.random.default_rng(1)
    return [
        rng.uniform(-1, 1, y.shape).astype(y.dtype)
        if is_float(y) and (row.seeded is None or i in row.seeded)
        else None
        for i, y in enumerate(outputs)
    ]


def in_torch(row, arrays, requires_grad=False):
    tensors = []
    for x in arrays:
        t = None if x is None else torch.tensor(x)
        tensors.append(t.requires_grad_(requires_grad) if is_float(x) else t)
    results = row.torch(*tensors)
    return tensors, list(results) if isinstance(results, (tuple, list)) else [results]


def assert_same(ours, theirs, what, **tolerance):
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape, what
    np.testing.assert_allclose(
        ours.astype(np.float64), theirs.astype(np.float64), err_msg=what, **tolerance
    )


def onnx_operators():
    """The names of all operators that ONNX defines today but for those of ai.onnx.ml."""
    schemas = [s for s in onnx.defs.get_all_schemas() if s.domain != "ai.onnx.ml"]
    return {".".join(filter(None, [s.domain, s.name])) for s in schemas if not s.deprecated}


def test_every_op_has_a_row_and_every_row_an_op():
    named = {r.op for r in ROWS}
    known = TABLE.keys() | onnx_operators() | set(_steep.contrib_operators())
    assert sorted(known - named - FLOW - WITHOUT_ROWS.keys()) == [], "operators without a row"
    assert sorted(named - known) == [], "rows of operators that nobody knows"
    assert sorted((FLOW | WITHOUT_ROWS.keys()) & named) == [], "listed as without a row"


@pytest.mark.parametrize("op", sorted({r.op for r in ROWS}))
def test_every_op_has_ten_shapes(op):
    """Of its inputs and outputs together, and one of them without a single element."""
    shapes = set()
    for row in (r for r in ROWS if r.op == op):
        arrays = row.arrays(np.float64 if row.double else np.float32)
        tensors = [*arrays, *evaluate(row, arrays)]
        shapes.add(tuple(None if x is None else x.shape for x in tensors))
    assert len(shapes) >= 10, f"rows of {len(shapes)} different shapes"
    empty = any(0 in shape for case in shapes for shape in case if shape is not None)
    assert empty == (op not in WITHOUT_EMPTY), "rows of empty inputs or results"


def test_names_of_rows_are_unique():
    names = [r.name for r in ROWS]
    assert sorted({n for n in names if names.count(n) > 1}) == []


def test_every_op_says_what_becomes_of_its_gradient():
    optimizers = set(STEPS)
    silent = [
        name
        for name, op in TABLE.items()
        if not (op["has_vjp"] or op["has_decompose"] or op["stops_gradient"])
    ]
    assert sorted(set(silent) - optimizers) == []


@both_precisions
@rows(lambda r: r.reference and not r.op.startswith("steep.") and r.name not in REFERENCE_FAILS)
def test_forward_is_that_of_the_onnx_reference(row, dtype):
    arrays = row.arrays(dtype)
    inputs = {f"x{i}": x for i, x in enumerate(arrays) if is_float(x)}
    evaluator = ReferenceEvaluator(one_node(row, arrays))
    try:
        wanted = evaluator.run(None, inputs)
    except TypeError as error:  # some of its operators refuse scalars; PyTorch has the say there
        assert row.torch is not None, f"neither the reference nor PyTorch checks this row: {error}"
        return
    for i, (ours, theirs) in enumerate(zip(evaluate(row, arrays), wanted, strict=True)):
        assert ours.dtype == np.asarray(theirs).dtype
        tolerance = TOLERANCE[np.float32 if row.single or row.within_single else dtype]
        assert_same(ours, theirs, f"output {i}", **tolerance)


@both_precisions
@rows(lambda r: r.torch is not None)
def test_forward_is_that_of_torch(row, dtype):
    arrays = row.arrays(dtype)
    _, wanted = in_torch(row, arrays)
    tolerance = TOLERANCE[np.float32 if row.op in STEPS or row.within_single else dtype]
    for i, (ours, theirs) in enumerate(zip(evaluate(row, arrays), wanted, strict=True)):
        if theirs is not None:
            assert_same(ours, theirs.detach(), f"output {i}", **tolerance)


@both_precisions
@rows(lambda r: r.torch is not None and r.op not in STEPS)
def test_gradient_is_that_of_torch(row, dtype):
    arrays = row.arrays(dtype)
    if not any(map(is_float, arrays)):
        return
    tensors, results = in_torch(row, arrays, requires_grad=True)
    grads = seeds(row, evaluate(row, arrays))
    scalar = sum(
        (y * torch.tensor(d).to(y.dtype)).sum()
        for y, d in zip(results, grads, strict=True)
        if d is not None and y is not None and y.requires_grad
    )
    if torch.is_tensor(scalar):
        scalar.backward()
    for i, ours in gradients(row, arrays, grads).items():
        theirs = tensors[i].grad
        if i in row.frozen:
            continue
        if ours is None or theirs is None:
            for known in (ours, None if theirs is None else theirs.numpy()):
                assert known is None or not known.any(), f"input {i}: {known}"
        else:
            assert ours.dtype == arrays[i].dtype
            tolerance = TOLERANCE[np.float32 if row.within_single else dtype]
            assert_same(ours, theirs, f"gradient of input {i}", **tolerance)


def directions(shape):
    """Ways for the elements of an array to move: each alone, or of many some, and then all."""
    rng = np.random.default_rng(0)
    count = int(np.prod(shape))
    for place in rng.permutation(count)[:ALONE]:
        way = np.zeros(count)
        way[place] = 1
        yield way.reshape(shape)
    for _ in range(TOGETHER if count > ALONE else 0):
        yield rng.choice([-1.0, 1.0], shape)


@rows(lambda r: r.smooth and not r.within_single)
def test_gradient_is_that_of_central_differences(row):
    arrays = row.arrays(np.float64)
    run = evaluator(row, arrays)
    grads = seeds(row, run(arrays))
    if not any(map(is_float, arrays)) or all(d is None for d in grads):
        return

    def value(i, x):
        outputs = run([*arrays[:i], x, *arrays[i + 1 :]])
        return sum((y * d).sum() for y, d in zip(outputs, grads, strict=True) if d is not None)

    for i, ours in gradients(row, arrays, grads).items():
        x = arrays[i]
        if i in row.frozen or x.dtype != np.float64:
            continue
        found = np.zeros_like(x) if ours is None else ours
        assert found.shape == x.shape
        for way in directions(x.shape):
            wanted = (value(i, x + EPS * way) - value(i, x - EPS * way)) / (2 * EPS)
            moved = f"gradient of input {i} along {np.flatnonzero(way)}"
            np.testing.assert_allclose(
                (found * way).sum(), wanted, rtol=1e-3, atol=1e-5, err_msg=moved
            )


@rows(lambda r: TABLE.get(r.op, {}).get("stops_gradient"))
def test_ops_that_stop_gradients_give_none(row):
    arrays = row.arrays(np.float64)
    grads = seeds(row, evaluate(row, arrays))
    assert all(g is None for g in gradients(row, arrays, grads).values())


# Taken apart only with more operands than a row has: tests/passes/deep_graphs_test.cc.
VARIADIC = ("Max", "Min", "Sum")


@both_precisions
@rows(lambda r: TABLE.get(r.op, {}).get("has_decompose") and r.op not in VARIADIC)
def test_kernel_agrees_with_decomposition(row, dtype):
    arrays = row.arrays(dtype)
    pairs = zip(evaluate(row, arrays), evaluate(row, arrays, decomposed=True), strict=True)
    tolerance = TOLERANCE[np.float32 if row.op in STEPS else dtype]
    for i, (fused, parts) in enumerate(pairs):
        assert fused.dtype == parts.dtype
        assert_same(fused, parts, f"output {i}", **tolerance)


@pytest.mark.parametrize("narrow_row", NARROW_ROWS, ids=[r.name for r in NARROW_ROWS])
def test_mixed_precision_is_that_of_the_wide_decomposition(narrow_row):
    row = narrow_row
    arrays = row.arrays()
    ours = evaluate(row, arrays)
    wanted = evaluate(row, arrays, decomposed=True)
    for i, (y, theirs) in enumerate(zip(ours, wanted, strict=True)):
        assert y.dtype == theirs.dtype
        narrow = y.dtype == ml_dtypes.bfloat16
        # A sum in another order may round to the neighbour.
        tolerance = {"rtol": 2**-7, "atol": 1e-4} if narrow else {"rtol": 2e-5, "atol": 2e-5}
        if max(a.size for a in arrays if a is not None) > 1 << 20:  # thousands of terms a sum
            tolerance["atol"] = 1e-3
        assert_same(y, theirs, f"output {i}", **tolerance)


@pytest.mark.parametrize("op", ["Conv", "steep.ConvGradInput", "steep.ConvGradWeight"])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("extents", [(9,), (7, 6), (4, 5, 3)])
def test_convolutions_may_round_what_they_read(op, group, extents) -> None:
    """Where the processor multiplies bfloat16 they do; what they sum and write is float32."""
    rng = np.random.default_rng(0)
    kernel = (3,) * len(extents)
    x = rng.uniform(-2, 2, (2, 16 * group, *extents)).astype(np.float32)
    w = rng.uniform(-2, 2, (16 * group, 16, *kernel)).astype(np.float32)
    dy = rng.uniform(-2, 2, (2, 16 * group, *extents)).astype(np.float32)
    read, shape = {
        "Conv": ([x, w], None),
        "steep.ConvGradInput": ([dy, w], x.shape),
        "steep.ConvGradWeight": ([dy, x], w.shape),
    }[op]
    given = [] if shape is None else [np.array(shape, np.int64)]
    attrs = {"group": group, "pads": [1] * 2 * len(extents), "kernel_shape": list(kernel)}

    def run(operands, **more):
        return evaluate(Row(op, (), {**attrs, **more}), [*operands, *given])[0]

    narrow = run(read, allow_bf16=1)
    rounded = run([v.astype(ml_dtypes.bfloat16).astype(np.float32) for v in read])
    wide = run(read)
    assert narrow.dtype == np.float32
    assert np.allclose(narrow, rounded, rtol=1e-5, atol=1e-4) or (narrow == wide).all()
    np.testing.assert_allclose(narrow, wide, rtol=0.02, atol=0.02 * np.abs(wide).max())
