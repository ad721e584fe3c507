"""Second derivatives where rules branch on values: factors of 0, kinks, ties, norms of 0.

A first derivative that is right at such a point may have lost terms of the next one: the rule's
other branch. Against PyTorch, by what can be differentiated twice there.
"""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nodes import is_float, one_node
from onnx import TensorProto, helper
from rows.row import exactly, integer, ints, table

import steep
from steep import _steep

ROWS, row = table()


def product(x, axis=0):
    """Of factors one by one: PyTorch's own product loses terms, too."""
    return functools.reduce(operator.mul, x.unbind(axis))


def running(x, axis=0):
    return torch.stack([product(x[: i + 1]) for i in range(len(x))])


FACTORS = ([2, 3, 0, 0], [2, 0, 3, 4], [0, 0, 0, 5], [1, 2, 3, 4], [0, 0], [0])
for _x in FACTORS:
    row("ReduceProd", exactly(_x), attrs={"keepdims": 0}, torch=product, note=str(_x))
    row("CumProd", exactly(_x), integer(0), torch=lambda x, a: running(x), note=str(_x))
row(
    "ReduceProd",
    exactly([[2, 0, 3], [0, 0, 5], [4, 5, 6]]),
    ints(1),
    torch=lambda x, a: product(x, 1)[:, None],
)
row(
    "ReduceProd",
    exactly([[2, 0, 3], [4, 5, 6]]),
    attrs={"keepdims": 0},
    torch=lambda x: product(x.reshape(-1)),
)
row(
    "CumProd",
    exactly([2, 0, 3, 0]),
    integer(0),
    attrs={"exclusive": 1, "reverse": 1},
    torch=lambda x, a: torch.stack([x[1] * x[2] * x[3], x[2] * x[3], x[3], x[3] * 0 + 1]),
)
for _x, _u in (([2, 0, 3], [0, 4]), ([0, 2, 3], [0, 0]), ([2, 5, 0], [0, 6]), ([0, 1, 1], [2, 3])):
    # Twice into element 0: x0 u0 u1.
    row(
        "ScatterElements",
        exactly(_x),
        ints(0, 0),
        exactly(_u),
        attrs={"reduction": "mul"},
        torch=lambda x, i, u: torch.stack([x[0] * u[0] * u[1], x[1], x[2]]),
        note=f"{_x} {_u}",
    )
    row(
        "ScatterND",
        exactly(_x),
        ints([[0], [0]]),
        exactly(_u),
        attrs={"reduction": "mul"},
        torch=lambda x, i, u: torch.stack([x[0] * u[0] * u[1], x[1], x[2]]),
        note=f"{_x} {_u}",
    )
row("Pow", exactly([2, 3, 0.5]), exactly([0, 0, 0]), torch=lambda x, e: torch.exp(e * torch.log(x)))
row("Pow", exactly([0, 0, -2, 0]), exactly([2, 3, 2, 4]), torch=torch.pow, note="base", frozen=(1,))
row("Mul", exactly([0, 0, 2]), exactly([0, 3, 0]), torch=torch.mul)
row("Div", exactly([0, 0]), exactly([1, -2]), torch=torch.div)
row("MatMul", exactly([[0, 0], [1, 0]]), exactly([[0, 2], [0, 0]]), torch=torch.matmul)
row("Det", exactly([[0, 0], [0, 3]]), torch=lambda x: x[0, 0] * x[1, 1] - x[0, 1] * x[1, 0])
row("Det", exactly([[0, 0], [0, 0]]), torch=lambda x: x[0, 0] * x[1, 1] - x[0, 1] * x[1, 0])

KINK = [-1, 0, 0, 1]
for _op, _f in {
    "Abs": torch.abs,
    "Relu": torch.relu,
    "LeakyRelu": F.leaky_relu,
    "Elu": F.elu,
    "Selu": F.selu,
    "Celu": F.celu,
    "Softsign": F.softsign,
    "Softplus": F.softplus,
    "Gelu": F.gelu,
    "Mish": F.mish,
    "Sqrt": torch.sqrt,
}.items():
    row(_op, exactly([0, 1, 4] if _op == "Sqrt" else KINK), torch=_f)
row("Elu", exactly(KINK), attrs={"alpha": 1.5}, torch=lambda x: F.elu(x, 1.5))
row("Celu", exactly(KINK), attrs={"alpha": 2.0}, torch=lambda x: F.celu(x, 2.0))
row("HardSwish", exactly([-4, 0, 1, 4]), torch=F.hardswish)
row("ThresholdedRelu", exactly([0, 1, 2]), torch=lambda x: F.threshold(x, 1.0, 0))
row(
    "Clip",
    exactly([-2, -1, 0, 1, 2]),
    exactly(-1),
    exactly(1),
    torch=lambda x, a, b: torch.minimum(torch.maximum(x, a), b),
    frozen=(1, 2),
)
for _op, _f in (("Max", torch.maximum), ("Min", torch.minimum)):
    row(_op, exactly([1, 2, 3]), exactly([1, 3, 2]), torch=_f)
TIES = [[1, 3, 3], [2, 2, 2]]
row("ReduceMax", exactly(TIES), ints(1), torch=lambda x, a: x.amax(1, True))
row("ReduceMin", exactly(TIES), ints(1), torch=lambda x, a: x.amin(1, True))
row("ReduceLogSumExp", exactly(TIES), ints(1), torch=lambda x, a: x.logsumexp(1, True))
row("ReduceL1", exactly([[0, -1], [0, 0]]), ints(1), torch=lambda x, a: x.abs().sum(1, True))
row(
    "ReduceL2",
    exactly([[0, 0], [3, 4], [0, 5]]),
    ints(1),
    torch=lambda x, a: torch.linalg.vector_norm(x, dim=1, keepdim=True),
)
row(
    "Where",
    np.array([True, False]),
    exactly([0, 0]),
    exactly([0, 0]),
    torch=torch.where,
)


def weights(y, number):
    return np.random.default_rng(number).uniform(-1, 1, y.shape).astype(y.dtype)


def by_torch(row, arrays, dy, places):
    """Gradients of Σ weights · gradients of Σ dy · y, for the inputs at `places`."""
    tensors = [torch.tensor(x) for x in arrays]
    for i in places:
        tensors[i].requires_grad_()
    wanted = [tensors[i] for i in places]
    y = row.torch(*tensors)
    tensors_of = {"create_graph": True, "allow_unused": True}
    first = torch.autograd.grad((y * torch.tensor(dy)).sum(), wanted, **tensors_of)
    sums = [
        (g * torch.tensor(weights(arrays[i], k))).sum()
        for k, (g, i) in enumerate(zip(first, places, strict=True))
        if g is not None and g.requires_grad
    ]
    if not sums:
        return [np.zeros(x.shape) for x in wanted]
    second = torch.autograd.grad(sum(sums), wanted, allow_unused=True)
    return [
        np.zeros(x.shape) if g is None else g.numpy(force=True)
        for g, x in zip(second, wanted, strict=True)
    ]


def model_of(row, arrays, y):
    model = one_node(row, arrays)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y0", TensorProto.DOUBLE, y.shape))
    return model


def written(row, arrays, dy, places, times=2):
    """Of a model of gradients of a model of gradients."""
    wrt = [f"x{i}" for i in places]
    model = steep.grad(model_of(row, arrays, dy), wrt, ["y0"])
    feed = {f"x{i}": x for i, x in enumerate(arrays) if is_float(x)} | {"grad_y0": dy}
    for _ in range(times - 1):
        outputs = [o.name for o in model.graph.output][-len(wrt) :]
        model = steep.grad(model, wrt, outputs)
        for k, (name, i) in enumerate(zip(outputs, places, strict=True)):
            feed[f"grad_{name}"] = weights(arrays[i], k)
    names = [o.name for o in model.graph.output][-len(wrt) :]
    known = {i.name for i in model.graph.input}
    session = steep.InferenceSession(model)
    return session.run(names, {n: x for n, x in feed.items() if n in known})


def run_twice(row, arrays, dy, places):
    """Of a model of gradients, by the engine's own operators."""
    wrt = [f"x{i}" for i in places]
    model = steep.grad(model_of(row, arrays, dy), wrt, ["y0"])
    feed = {f"x{i}": x for i, x in enumerate(arrays) if is_float(x)} | {"grad_y0": dy}
    outputs = [o.name for o in model.graph.output]
    seeds = [None] * (len(outputs) - len(wrt)) + [
        weights(arrays[i], k) for k, i in enumerate(places)
    ]
    fed = [feed[i.name] for i in model.graph.input]
    try:
        found = _steep.model_gradients(model.SerializeToString(), fed, seeds, wrt)
    except steep.DataError as error:  # no gradient: nothing waits for a backward run
        assert "waits for it" in str(error)
        found = [None] * len(wrt)
    return [
        np.zeros_like(arrays[i]) if g is None else g for g, i in zip(found, places, strict=True)
    ]


@pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])
def test_second_derivative_at_a_special_point(row) -> None:
    arrays = row.arrays(np.float64)
    places = [i for i, x in enumerate(arrays) if is_float(x) and i not in row.frozen]
    y = row.torch(*map(torch.tensor, arrays)).numpy()
    # A scalar's gradient is 1.
    dy = weights(y, 9) if y.ndim else np.ones_like(y)
    wanted = by_torch(row, arrays, dy, places)
    for way in (written, run_twice):
        for i, ours, theirs in zip(places, way(row, arrays, dy, places), wanted, strict=True):
            np.testing.assert_allclose(
                ours, theirs, rtol=1e-7, atol=1e-12, err_msg=f"input {i}, {way.__name__}"
            )


def test_third_derivative_of_a_product() -> None:
    """d³ of x0 x1 x2 x3 at (0, 0, 0, 5)."""
    made = ROWS[0].__class__("ReduceProd", (exactly([0, 0, 0, 5]),), {"keepdims": 0})
    x = np.array([0.0, 0, 0, 5])
    (found,) = written(made, [x], np.ones(()), [0], times=3)
    t = torch.tensor(x, requires_grad=True)
    slope = product(t)
    for k in range(3):
        (g,) = torch.autograd.grad(slope, t, create_graph=True)
        slope = (g * torch.tensor(weights(x, 0))).sum() if k < 2 else slope
    np.testing.assert_allclose(found, g.detach().numpy())
