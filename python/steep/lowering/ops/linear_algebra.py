"""Linear algebra by the engine's own operators, which ONNX does not have."""

from __future__ import annotations

import math

from steep.lowering.ops.onnx_script import ir, opset18
from steep.lowering.ops.steep_nodes import steep_node, with_gradient_of
from steep.lowering.ops.stop_gradient import detach, slope_or_again
from steep.lowering.ops.values import Translation, Value, number
from steep.patching.torch_versions import operators
from steep.torch_internals.operators import OpOverload


def _transpose(matrices: Value, *like: Value) -> Value:
    """Return the transposes of a stack of matrices.

    Pass ``like``, tensors of the same rank, if ``matrices`` was computed here: such values have no
    known shape.
    """
    axes = list(range(max(len(t.shape) for t in like or (matrices,))))
    return opset18.Transpose(matrices, perm=[*axes[:-2], axes[-1], axes[-2]])


def _triangular(a: Value, b: Value, **flags: bool) -> Value:
    return steep_node("TriangularSolve", [a, b], **flags)[0]


def _solve_triangular(
    self: Value, B: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    """Return X in A X = B, or in X A = B (``left`` is false)."""
    if left:
        return _triangular(self, B, upper=upper, unit=unitriangular)
    x = _triangular(self, _transpose(B), upper=upper, unit=unitriangular, transpose=True)
    return _transpose(x, self, B)


def _triangular_solve(
    self: Value, A: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Value, Value]:
    """Return X in op(A) X = B, and a copy of A."""
    x = _triangular(A, self, upper=upper, transpose=transpose, unit=unitriangular)
    return x, opset18.Identity(A)


def _cholesky(self: Value, upper: bool = False) -> Value:
    return _factor(self, upper, 1, check=True)[0]


def _cholesky_ex(
    self: Value, upper: bool = False, check_errors: bool = False
) -> tuple[Value, Value]:
    """Return the factors, and per matrix 0 or the order of its first minor that is not positive."""
    factor, info = _factor(self, upper, 2, check=check_errors)
    return factor, info


def _factor(self: Value, upper: bool, outputs: int, **flags: bool) -> list[Value]:
    """Return the factor and the further outputs of the operator."""
    factor, *info = steep_node("Cholesky", [_transpose(self) if upper else self], outputs, **flags)
    return [_transpose(factor, self) if upper else factor, *info]


def _cholesky_solve(self: Value, input2: Value, upper: bool = False) -> Value:
    """Return X in A X = ``self``; ``input2`` is the Cholesky factor of A."""
    return steep_node("CholeskySolve", [input2, self], upper=upper)[0]


def _cholesky_inverse(self: Value, upper: bool = False) -> Value:
    return steep_node("CholeskySolve", [self, _identity(self)], upper=upper)[0]


def _identity(squares: Value) -> Value:
    """Return an identity matrix with the size and dtype of a stack of matrices."""
    size = opset18.Shape(squares, start=-1)
    zeros = opset18.ConstantOfShape(opset18.Concat(size, size, axis=0))
    return opset18.CastLike(opset18.EyeLike(zeros), squares)


def _solve(A: Value, B: Value, left: bool = True) -> Value:
    return _solution(A, B, left, 1, check=True)[0]


def _solve_ex(
    A: Value, B: Value, left: bool = True, check_errors: bool = False
) -> tuple[Value, Value]:
    """Return X in A X = B or X A = B, and for each A 0 or the position of its first zero pivot."""
    x, info = _solution(A, B, left, 2, check=check_errors)
    return x, info


def _solution(A: Value, B: Value, left: bool, outputs: int, **flags: bool) -> list[Value]:
    """Return X and the further outputs of the operator."""
    if _are_vectors(A, B):
        last = opset18.Constant(value_ints=[-1])
        x, *info = steep_node("Solve", [A, opset18.Unsqueeze(B, last)], outputs, **flags)
        return [opset18.Squeeze(x, last), *info]
    if left:
        return steep_node("Solve", [A, B], outputs, **flags)
    x, *info = steep_node("Solve", [_transpose(A), _transpose(B)], outputs, **flags)
    return [_transpose(x, A, B), *info]


def _are_vectors(A: Value, B: Value) -> bool:
    """Return whether the right-hand side is one vector per matrix, which the shapes decide."""
    if len(B.shape) == 1 or len(B.shape) != len(A.shape) - 1:
        return len(B.shape) == 1
    pairs = list(zip(A.shape, B.shape, strict=False))
    if any(isinstance(n, ir.SymbolicDim) and n.value is None for pair in pairs for n in pair):
        raise NotImplementedError(
            "the shapes do not show whether the right-hand side is a vector or a matrix"
        )
    return all(a == b for a, b in pairs)


def _inverse(A: Value) -> Value:
    return steep_node("Solve", [A, _identity(A)], check=True)[0]


def _inverse_ex(A: Value, check_errors: bool = False) -> tuple[Value, Value]:
    x, info = steep_node("Solve", [A, _identity(A)], 2, check=check_errors)
    return x, info


def _slogdet(A: Value) -> tuple[Value, Value]:
    """Return the signs of determinants, and the logarithms of their magnitudes.

    PyTorch factorizes the transposed matrices, since LAPACK stores matrices by columns. For
    singular matrices the order decides which gradients are infinite.
    """
    sign, logarithm = steep_node("SlogDet", [_transpose(A)], 2)
    return sign, logarithm


def _det(A: Value) -> Value:
    """Return determinants, with the gradient det(A) · A⁻ᵀ.

    As in PyTorch's backward, the gradient is 0 for matrices with a zero pivot, even if their
    cofactors are not 0, and NaN if the determinant is not finite. For second derivatives PyTorch
    uses cofactors, and so does this. The gradient of a 1×1 matrix is 1.
    """
    if A.shape[-1] == 1:
        return opset18.Det(A)
    transpose = _transpose(A)
    info = steep_node("LU", [transpose], 3, check=False)[2]
    info.dtype = ir.DataType.INT32
    zero, none = number(0.0, A), number(math.nan, A)
    singular = opset18.Not(opset18.Equal(info, number(0, info)))
    det = opset18.Where(singular, zero, detach(opset18.Det(transpose)))
    finite = opset18.Less(opset18.Abs(det), number(math.inf, A))
    of_cofactors = opset18.Where(finite, number(1.0, A), none)
    scale = slope_or_again(opset18.Where(singular, zero, of_cofactors), of_cofactors)
    return with_gradient_of(detach(det), opset18.Mul(opset18.Det(A), detach(scale)))


def _logdet(self: Value) -> Value:
    sign, logarithm = _slogdet(self)
    negative = opset18.Less(sign, number(0.0, self))
    return opset18.Where(negative, number(math.nan, self), logarithm)


AS_IN_TORCH: dict[OpOverload, Translation] = operators(
    {
        "aten.cholesky.default": _cholesky,
        "aten.cholesky_inverse.default": _cholesky_inverse,
        "aten.cholesky_solve.default": _cholesky_solve,
        "aten.linalg_cholesky.default": _cholesky,
        "aten.linalg_cholesky_ex.default": _cholesky_ex,
        "aten.det.default": _det,
        "aten.inverse.default": _inverse,
        "aten.linalg_det.default": _det,
        "aten._linalg_det.default": lambda A: (_det(A), A, A),
        "aten.linalg_inv.default": _inverse,
        "aten.linalg_inv_ex.default": _inverse_ex,
        "aten.linalg_slogdet.default": _slogdet,
        "aten.linalg_solve.default": _solve,
        "aten.linalg_solve_ex.default": _solve_ex,
        "aten.logdet.default": _logdet,
        "aten.slogdet.default": _slogdet,
        "aten.linalg_solve_triangular.default": _solve_triangular,
        "aten.triangular_solve.default": _triangular_solve,
    }
)
"""Translations by operator."""
