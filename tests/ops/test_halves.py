"""float16 and bfloat16: every operator, and extremes, against float64 of the same rounded inputs.

At extremes counts, sums and squares pass 65,504, the greatest number of float16, on the way; most
results do not.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from nodes import TABLE, evaluate, gradients, is_float, one_node
from onnx import helper
from rows import ROWS
from rows.row import Row

import steep

BF16 = ml_dtypes.bfloat16
LONG = 70_000  # infinite in float16
LARGEST = 65_504

each_half = pytest.mark.parametrize("half", [np.float16, BF16], ids=["f16", "bf16"])

# Of these the kernels say themselves that they take float32 and float64.
WHOLE_ONLY = {
    *("steep.Cholesky", "steep.CholeskySolve", "steep.LU", "steep.LUSlogDet", "steep.LUSolve"),
    *("steep.SlogDet", "steep.Solve", "steep.TriangularSolve"),
}
# Runs between plans; has a result that is nothing but what rounding took from another.
OTHERWISE = {"Range", "steep.SoftmaxCrossEntropy"}
STEPS = {f"steep.{kind}" for kind in ("SGD", "Adam", "Lamb", "NAdam", "RAdam", "Adagrad")}
STEPS |= {f"steep.{kind}" for kind in ("Adadelta", "RMSprop", "Adamax", "Assign", "GlobalNorm")}
STEPS |= {"steep.Adafactor", "steep.Muon"}


def a_row_of_each_operator():
    found = {}
    for row in ROWS:
        if row.op not in TABLE or row.double or row.op in WHOLE_ONLY | OTHERWISE:
            continue
        arrays = row.arrays(np.float32)
        if any(is_float(x) and callable(m) for x, m in zip(arrays, row.inputs, strict=True)):
            size = max(x.size for x in arrays if is_float(x))
            if size > 1:
                found.setdefault(row.op, row)
    return list(found.values())


def is_half_or_float(x):
    return x is not None and (is_float(x) or x.dtype == BF16)


def in_double(x):
    return x.astype(np.float64) if is_half_or_float(x) else x


def assert_near(ours, wanted, half, what, share=0.3):
    """Up to a few roundings of the result, or of a share of the results' size."""
    assert (ours is None) == (wanted is None), what
    if wanted is None or not is_float(wanted) or wanted.size == 0:
        return
    eps = 2.0**-10 if half is np.float16 else 2.0**-7
    size = np.sqrt(np.nanmean(np.square(np.where(np.isinf(wanted), 0, wanted))))
    error = np.abs(ours.astype(np.float64) - wanted)
    with np.errstate(invalid="ignore"):
        same = (ours == wanted) | (np.isnan(ours) & np.isnan(wanted))
        if half is np.float16:
            same |= np.isinf(ours) & (np.abs(wanted) > LARGEST) & ((ours > 0) == (wanted > 0))
        near = error <= 10 * eps * (np.abs(wanted) + share * size) + 1e-7
    assert (same | near).all(), f"{what}: {np.max(np.where(same, 0, error))}"


def check(row, half, seed, arrays):
    """Forward and gradient in `half` and in float64."""
    wide = [in_double(x) for x in arrays]
    ours, wanted = evaluate(row, arrays), evaluate(row, wide)
    for i, (y, w) in enumerate(zip(ours, wanted, strict=True)):
        assert_near(y, w, half, f"output {i}")
    if row.op in STEPS or TABLE[row.op]["stops_gradient"]:
        return
    rng = np.random.default_rng(1)
    seeds = [
        (seed * rng.uniform(0.5, 1, y.shape)).astype(y.dtype)
        if is_half_or_float(y) and (row.seeded is None or i in row.seeded)
        else None
        for i, y in enumerate(ours)
    ]
    wrt = [i for i, x in enumerate(arrays) if is_half_or_float(x) and i not in row.frozen]
    ours = gradients(row, arrays, seeds, wrt)
    wanted = gradients(row, wide, [in_double(s) for s in seeds], wrt)
    for i in wrt:
        assert_near(ours[i], wanted[i], half, f"gradient {i}")


@each_half
@pytest.mark.parametrize("row", [pytest.param(r, id=r.op) for r in a_row_of_each_operator()])
def test_every_operator_is_that_of_float64(row, half):
    arrays = [
        x.astype(half) if is_float(x) and callable(m) else x
        for x, m in zip(row.arrays(np.float32), row.inputs, strict=True)
    ]
    check(row, half, 1.0, arrays)


def normal(*shape, scale=1.0):
    return (scale * np.random.default_rng(len(shape)).standard_normal(shape)).clip(
        -4 * scale, 4 * scale
    )


def signs(*shape):
    return np.sign(normal(*shape) + 1e-9)


def extreme(op, *inputs, seed=1.0, outputs=1, seeded=None, note="", **attrs):
    row = Row(op, inputs, attrs, outputs=outputs, seeded=seeded)
    return pytest.param(row, seed, id=f"{op}-{note or 'long'}-{len(attrs)}-{inputs[0].ndim}")


AXIS_1 = np.array([1], np.int64)
LABELS = np.random.default_rng(0).integers(0, 4, LONG)
PLANE = (1, 1, 250, 280)
EXTREMES = [
    *(
        extreme(op, normal(LONG, scale=0.5), keepdims=0)
        for op in ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")
    ),
    # so that a hundred thousandth of it is a number
    extreme("ReduceMean", normal(LONG), keepdims=0, seed=100),
    extreme("ReduceMean", normal(2, LONG), AXIS_1, seed=100, note="axis"),
    extreme("ReduceMean", normal(LONG, scale=8000), keepdims=0, seed=100, note="great"),
    extreme("ReduceLogSum", np.abs(normal(LONG)) * 0.5 + 0.1, keepdims=0, seed=100),
    extreme("ReduceMax", np.ones(LONG), keepdims=0, seed=100),
    extreme("ReduceMin", np.ones(LONG), keepdims=0, seed=100),
    extreme("ReduceProd", signs(LONG), keepdims=0),
    extreme("ReduceL2", normal(2, 200, scale=5000) / 10, AXIS_1, note="great"),
    extreme("GlobalAveragePool", normal(*PLANE), seed=100),
    extreme("GlobalMaxPool", normal(*PLANE)),
    extreme("GlobalLpPool", normal(*PLANE), p=2),
    extreme("LpPool", normal(1, 1, 20, 20, scale=1000), kernel_shape=[4, 4], p=2, note="great"),
    extreme("AveragePool", normal(*PLANE), kernel_shape=[250, 280], seed=100),
    *(
        case
        for scale in (1, 400, 8000)
        for case in (
            extreme(
                "InstanceNormalization",
                normal(1, 2, 35_000, scale=scale),
                np.ones(2),
                np.zeros(2),
                note=f"{scale}",
                seed=scale,
            ),
            extreme(
                "GroupNormalization",
                normal(1, 2, 35_000, scale=scale),
                np.ones(2),
                np.zeros(2),
                num_groups=1,
                note=f"{scale}",
                seed=scale,
            ),
            extreme(
                "MeanVarianceNormalization",
                normal(2, 2, 50, 700, scale=scale),
                note=f"{scale}",
                seed=scale,
            ),
            extreme(
                "LayerNormalization",
                normal(2, 35_000, scale=scale),
                np.ones(35_000),
                np.zeros(35_000),
                outputs=3,
                seeded=(0,),
                note=f"{scale}",
                seed=scale,
            ),
            extreme(
                "BatchNormalization",
                normal(35_000, 2, scale=scale),
                np.ones(2),
                np.zeros(2),
                np.zeros(2),
                np.ones(2),
                outputs=3,
                seeded=(0,),
                training_mode=1,
                momentum=0.9999,
                note=f"{scale}",
                seed=scale,
            ),
            extreme("LpNormalization", normal(2, 200, scale=scale), note=f"{scale}", seed=scale),
            extreme("LRN", normal(1, 8, 10, scale=scale), size=3, note=f"{scale}", seed=scale),
        )
    ),
    extreme("Softmax", normal(LONG), seed=100),
    extreme("LogSoftmax", normal(LONG)),
    extreme("CumSum", normal(LONG, scale=0.01), np.array(0, np.int64)),
    extreme("Mean", *[np.full(9, 40_000.0)] * 3),
    extreme("Sum", np.full(9, 40_000.0), np.full(9, 40_000.0), np.full(9, -40_000.0)),
    *(
        extreme(op, scores, labels, seed=seed, reduction=reduction, note=reduction)
        for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
        for scores, labels, reduction, seed in (
            (normal(LONG, 4), LABELS, "mean", 100),
            (normal(1000, 4), LABELS[:1000], "sum", 1),
            (normal(LONG, 4), LABELS, "none", 1),
        )
    ),
    *(
        extreme(op, normal(LONG, 4), LABELS, np.array([1, 2, 1, 0.5]), seed=100, note="weights")
        for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
    ),
    extreme("SoftmaxCrossEntropyLoss", normal(LONG, 4), LABELS, seed=100, ignore_index=1),
    extreme("Einsum", normal(2, LONG, scale=0.1), normal(2, LONG), equation="ij,ij->i"),
    extreme("Expand", normal(3), np.array([LONG, 3], np.int64), seed=0.01),
    extreme("Tile", normal(3), np.array([LONG], np.int64), seed=0.01),
    extreme("Add", normal(LONG, 1), normal(1), seed=0.01),
    extreme("Mul", normal(LONG, 1), normal(1), seed=0.01),
]


def as_half(x, half):
    return x.astype(half) if is_float(x) else x


@each_half
@pytest.mark.parametrize(("row", "seed"), EXTREMES)
def test_extremes_are_those_of_float64(row, seed, half):
    check(row, half, seed, [as_half(x, half) for x in row.inputs])


EXPORTED = ("ReduceMean", "GlobalAveragePool", "InstanceNormalization", "MeanVarianceNormalization")


@pytest.mark.parametrize(("row", "seed"), [p for p in EXTREMES if p.values[0].op in EXPORTED])
def test_exported_gradients_are_those_of_float64(row, seed):
    """Of float16, of a file of ONNX's operators alone."""
    arrays = [as_half(x, np.float16) for x in row.inputs]
    model = one_node(row, arrays)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    file = steep.grad(model, wrt=["x0"], outputs=["y0"])
    (y,) = evaluate(row, arrays)
    feeds = {f"x{i}": x for i, x in enumerate(arrays) if is_float(x)}
    feeds["grad_y0"] = dy = as_half(normal(*y.shape, scale=seed) + 2 * seed, np.float16)
    fed = {i.name: feeds[i.name] for i in file.graph.input}
    if "grad_y0" not in fed:  # of a scalar
        dy = np.ones(y.shape, np.float16)
    (dx,) = steep.InferenceSession(file).run([file.graph.output[-1].name], fed)
    wanted = gradients(row, [in_double(x) for x in arrays], [in_double(dy)], [0])[0]
    assert_near(dx, wanted, np.float16, "gradient")


@each_half
def test_losses_of_sessions_are_float32(half):
    """Of 70,000 elements, whose squares pass 65,504."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(half))
    x, y = (helper.make_tensor_value_info(n, kind, ["n", 1]) for n in "xy")
    w = helper.make_tensor("w", kind, [1, 1], np.ones(1, half).tobytes(), raw=True)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    s = steep.TrainingSession(model, loss="mse", optimizer="sgd")
    zeros = np.zeros((LONG, 1), half)
    gradient = s.gradients(np.full((LONG, 1), 8, half), zeros)[1]["w"]
    np.testing.assert_allclose(gradient.numpy().astype(np.float64), 128, rtol=0.02)
    assert s.step(np.full((LONG, 1), 304, half), zeros).loss == 304**2
