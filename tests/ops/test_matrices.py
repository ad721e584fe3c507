"""Linear algebra beyond the rows: sizes of several blocks, and operands that do not fit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from nodes import evaluate, gradients
from onnx import helper
from rows.linear_algebra import positive
from rows.row import Row

import steep


def run(op, inputs, outputs=1, **attrs):
    return evaluate(Row(op, (), attrs, outputs), list(inputs))


def close(ours, theirs, dtype):
    tolerance = 1e-9 if dtype == np.float64 else 1e-4
    theirs = np.asarray(theirs)
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max())


def large(n, *stack, dtype):
    rng = np.random.default_rng(n)
    a = rng.uniform(-1, 1, (*stack, n, n)) / n + np.roll(np.eye(n), n // 3, 0)
    return a.astype(dtype), rng.uniform(-1, 1, (*stack, n, 150)).astype(dtype)


@pytest.fixture(autouse=True)
def one_thread():
    """What PyTorch factorises by several threads waits for ever where these get no processor."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


both = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@both
@pytest.mark.parametrize("bits", range(8))
def test_large_triangles(dtype, bits):
    upper, transpose, unit = bits & 1, bits >> 1 & 1, bits >> 2
    a, b = large(203, dtype=dtype)
    a = np.roll(a, -(203 // 3), 0)
    (ours,) = run("steep.TriangularSolve", [a, b], upper=upper, transpose=transpose, unit=unit)
    a = torch.tensor(a).mT if transpose else torch.tensor(a)
    way = {"upper": upper != transpose, "unitriangular": bool(unit)}
    close(ours, torch.linalg.solve_triangular(a, torch.tensor(b), **way), dtype)


@both
@pytest.mark.parametrize("upper", [0, 1])
def test_large_systems_by_a_factor(dtype, upper):
    a, b = large(203, dtype=dtype)
    a = np.roll(a, -(203 // 3), 0)
    (ours,) = run("steep.CholeskySolve", [a, b], upper=upper)
    close(ours, torch.cholesky_solve(torch.tensor(b), torch.tensor(a), bool(upper)), dtype)


def test_zeros_on_a_diagonal_divide_as_in_torch():
    a = np.diag([2.0, 0.0, 4.0])
    a[2, 1] = 1
    b = np.ones((3, 1))
    (ours,) = run("steep.TriangularSolve", [a, b])
    theirs = torch.linalg.solve_triangular(torch.tensor(a), torch.tensor(b), upper=False)
    np.testing.assert_array_equal(ours, theirs)


@both
@pytest.mark.parametrize("stack", [(), (3,)])
def test_large_positive_matrices(dtype, stack):
    a, _ = large(203, *stack, dtype=dtype)
    a = a @ a.swapaxes(-1, -2)
    (ours,) = run("steep.Cholesky", [a])
    close(ours, torch.linalg.cholesky(torch.tensor(a)), dtype)
    assert not np.triu(ours, 1).any()


def indefinite(bad):
    """A stack of matrices of which [1, 0] and [1, 2] have no factor, in their leading minor 2."""
    a = np.tile(np.diag([4.0, 9.0, 5.0]), (2, 3, 1, 1))
    a[..., 2, :2] = a[..., :2, 2] = 1
    a[1, ::2, 1, 1] = bad
    return a


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_matrices_that_are_not_positive(bad):
    a = indefinite(bad)
    with pytest.raises(steep.DataError, match=r"minor 2 of matrix \[1, 0\]") as error:
        run("steep.Cholesky", [a])
    assert error.value.op == "steep.Cholesky"
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.cholesky(torch.tensor(a))
    factor, info = run("steep.Cholesky", [a], outputs=2, check=0)
    theirs = torch.linalg.cholesky_ex(torch.tensor(a))
    np.testing.assert_array_equal(info, theirs.info)
    np.testing.assert_allclose(factor, theirs.L, rtol=1e-12, atol=1e-12)


def test_the_gradient_of_a_factor_is_that_of_central_differences():
    """Of matrices that stay symmetric: of others, the upper triangle would not be read."""
    rng = np.random.default_rng(0)
    a = positive(2, 4, 4)(rng)
    seed = rng.uniform(-1, 1, a.shape)
    row = Row("steep.Cholesky", ())
    found = gradients(row, [a], [seed])[0]
    for i, j in np.ndindex(4, 4):
        step = np.zeros((4, 4))
        step[i, j] += 0.5e-6
        step[j, i] += 0.5e-6
        above, below = (run("steep.Cholesky", [a + sign * step])[0] for sign in (1, -1))
        slope = ((above - below) * seed).sum((1, 2)) / 2e-6
        np.testing.assert_allclose(found[:, i, j], slope, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(found[:, i, j], found[:, j, i], rtol=1e-12)


@both
@pytest.mark.parametrize("stack", [(), (3,)])
def test_large_systems(dtype, stack):
    a, b = large(203, *stack, dtype=dtype)
    x, info = run("steep.Solve", [a, b], outputs=2)
    close(x, torch.linalg.solve(torch.tensor(a), torch.tensor(b)), dtype)
    assert not info.any()
    seed = np.ones_like(b)
    found = gradients(Row("steep.Solve", ()), [a, b], [seed])
    leaves = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)
    torch.linalg.solve(*leaves).backward(torch.tensor(seed))
    for i, leaf in enumerate(leaves):
        close(found[i], leaf.grad, dtype)


@both
def test_a_decomposition_of_several_panels_is_that_of_torch(dtype):
    a = np.random.default_rng(3).uniform(-1, 1, (2, 133, 133)).astype(dtype)
    lu, pivots, info = run("steep.LU", [a], outputs=3)
    theirs = torch.linalg.lu_factor_ex(torch.tensor(a))
    np.testing.assert_array_equal(pivots + 1, theirs.pivots)
    np.testing.assert_array_equal(info, theirs.info)
    close(lu, theirs.LU, dtype)


def test_determinants_beyond_what_floats_hold():
    a = np.stack([np.eye(300) * 1e9, np.roll(np.eye(300), 1, 0) * 1e-9]).astype(np.float32)
    sign, logarithm = run("steep.SlogDet", [a], outputs=2)
    theirs = torch.linalg.slogdet(torch.tensor(a))
    np.testing.assert_array_equal(sign, theirs.sign)
    np.testing.assert_allclose(logarithm, theirs.logabsdet, rtol=1e-6)


def test_matrices_that_are_singular():
    a = np.tile(np.diag([3.0, 2.0, 1.0]), (2, 2, 1, 1))
    a[1, 0, 1] = a[1, 0, 0] * 2
    b = np.ones((3, 1))
    with pytest.raises(steep.DataError, match=r"pivot 2 of matrix \[1, 0\]") as error:
        run("steep.Solve", [a, b])
    assert error.value.op == "steep.LU"
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.solve(torch.tensor(a), torch.tensor(b))
    _, info = run("steep.Solve", [a, b], outputs=2, check=0)
    theirs = torch.linalg.solve_ex(torch.tensor(a), torch.tensor(b)).info
    np.testing.assert_array_equal(info, theirs)


def test_a_decomposition_is_differentiated_by_what_reads_it_alone():
    with pytest.raises(steep.ModelError, match="A matrix decomposition has no gradient"):
        gradients(Row("steep.LU", (), {}, 3), [np.eye(3)], [np.eye(3), None, None])


def refused(op, *shapes, dtype=np.float32, **attrs):
    with pytest.raises(steep.ShapeError) as error:
        run(op, [np.ones(s, dtype) for s in shapes], **attrs)
    assert error.value.op == op


def test_operands_that_do_not_fit():
    refused("steep.TriangularSolve", (3, 2), (3, 2))
    refused("steep.TriangularSolve", (3, 3), (2, 2))
    refused("steep.TriangularSolve", (3, 3), (3,))
    refused("steep.TriangularSolve", (2, 3, 3), (5, 3, 1))
    refused("steep.TriangularSolve", (3, 3))
    refused("steep.TriangularSolve", (3, 3), (3, 3), dtype=np.int64)
    refused("steep.Cholesky", (3, 2))
    refused("steep.Cholesky", (3,))
    refused("steep.CholeskySolve", (3, 3), (2, 2))
    refused("steep.Solve", (3, 3), (2, 2))
    refused("steep.SlogDet", (3, 2))
    refused("steep.LUSolve", (3, 3), (3, 3), (3,), (3, 2))  # pivots of floats
    refused("steep.LUSlogDet", (3, 3), (3, 3))


def one_node(op, outputs=1, dtype=onnx.TensorProto.FLOAT, inputs="ab", **attrs):
    names = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), names, domain="steep", **attrs)],
        "one",
        [helper.make_tensor_value_info(n, dtype, ["n", n]) for n in "ab"],
        [helper.make_tensor_value_info(n, dtype, None) for n in names],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("steep", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


IN_FILES = (
    *("TriangularSolve", "Cholesky", "CholeskySolve", "Solve", "SlogDet"),
    *("LU", "LUSolve", "LUSlogDet", "SafeSoftmax", "TopK", "CumProd", "Recurrence"),
)


def test_files_hold_what_captures_say_and_no_other_operator_of_ours():
    a, b = large(7, dtype=np.float32)
    session = steep.InferenceSession(one_node("TriangularSolve", upper=1))
    (x,) = session.run(None, {"a": a + np.eye(7, dtype=np.float32), "b": b})
    assert x.shape == b.shape
    for model in (
        one_node("TriangularSolve", outputs=2),
        one_node("TriangularSolve", upper="yes"),
        one_node("TriangularSolve", dtype=onnx.TensorProto.INT64),
        *(one_node(op, inputs=()) for op in IN_FILES),
        *(one_node(op, inputs=[""]) for op in IN_FILES),
        *(one_node(op, inputs="ab" * 4) for op in IN_FILES),
        *(one_node(op, outputs=7) for op in IN_FILES),
        one_node("SafeSoftmax", inputs="a", dtype=onnx.TensorProto.INT64),
        one_node("Recurrence", dtype=onnx.TensorProto.INT64),
        one_node("Recurrence", axis=2),
        one_node("Recurrence", axis=-1),
        one_node("CumProd", inputs="a", axis=2),
        one_node("CumProd", inputs="a", dtype=onnx.TensorProto.BOOL),
        one_node("SumTo"),
        one_node("MatMul"),
        one_node("Nothing"),
    ):
        with pytest.raises((steep.ModelError, steep.ShapeError)):
            steep.InferenceSession(model)
