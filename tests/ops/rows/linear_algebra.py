"""Systems of equations and decompositions of stacks of matrices."""

import numpy as np
import torch

from .row import exactly, floats, table

ROWS, row = table()

# Of matrices, and of right-hand sides.
SYSTEMS = (
    ((3, 3), (3, 2)),
    ((1, 1), (1, 1)),
    ((2, 3, 3), (2, 3, 2)),
    ((3, 3), (2, 3, 1)),
    ((2, 1, 4, 4), (3, 4, 2)),
    ((2, 3, 3), (3, 2)),
    ((5, 5), (5, 70)),
    ((0, 0), (0, 2)),
    ((3, 3), (3, 0)),
    ((0, 3, 3), (0, 3, 2)),
    ((6, 6), (6, 1)),
    ((1, 2, 2, 2), (3, 1, 2, 2)),
)


def regular(*shape, turned=1):
    """Matrices far from singular ones, whose largest entries are not on the diagonal."""

    def make(rng):
        n = shape[-1]
        return rng.uniform(-1, 1, shape) + (n + 1) * np.roll(np.eye(n), turned, 0)

    return make


def positive(*shape, turned=1):
    """Symmetric matrices that are positive-definite."""
    half = regular(*shape, turned=turned)

    def make(rng):
        a = half(rng)
        return a @ a.swapaxes(-1, -2) / shape[-1]

    return make


def triangular(a, b, upper=0, transpose=0, unit=0):
    upper = bool(upper) != bool(transpose)
    a = a.mT if transpose else a
    return torch.linalg.solve_triangular(a, b, upper=upper, unitriangular=bool(unit))


def decomposed(a):
    """Both factors in one matrix, and with whom each row was swapped, counted from 0."""
    lu, pivots, info = torch.linalg.lu_factor_ex(a.detach())
    return lu, pivots.long() - 1, info


def swaps(*shape):
    """Some rows are swapped with one below."""
    n = shape[-1]
    pivots = np.broadcast_to(np.minimum(np.arange(n) + np.arange(n) % 3, n - 1), shape[:-1])
    return np.ascontiguousarray(pivots, np.int64)


def solved(a, lu, pivots, b, transpose=0):
    return torch.linalg.lu_solve(lu.detach(), pivots.int() + 1, b, adjoint=bool(transpose))


def sign_and_logarithm(a, lu, pivots):
    diagonal = lu.detach().diagonal(dim1=-2, dim2=-1)
    swapped = (pivots != torch.arange(pivots.shape[-1])).sum(-1) % 2
    return diagonal.sign().prod(-1) * (1 - 2 * swapped), diagonal.abs().log().sum(-1)


for _i, (_a, _b) in enumerate(SYSTEMS):
    for _bits in range(8) if _i in {0, 4} else (_i % 8,):
        _attrs = {"upper": _bits & 1, "transpose": _bits >> 1 & 1, "unit": _bits >> 2}
        row(
            "steep.TriangularSolve",
            regular(*_a, turned=0),
            floats(*_b),
            attrs=_attrs,
            torch=lambda a, b, given=_attrs: triangular(a, b, **given),
        )
    row(
        "steep.CholeskySolve",
        regular(*_a, turned=0),
        floats(*_b),
        attrs={"upper": _i % 2},
        torch=lambda a, b, upper=bool(_i % 2): torch.cholesky_solve(b, a, upper),
        smooth=False,  # the gradient is that of a whole matrix
    )

    row(
        "steep.LUSolve",
        floats(*_a),
        regular(*_a, turned=0),
        swaps(*_a),
        floats(*_b),
        attrs={"transpose": _i % 2},
        frozen=(0, 1),  # the gradient of the matrix is had by steep.Solve
        torch=lambda a, lu, pivots, b, how=_i % 2: solved(a, lu, pivots, b, how),
    )
    row(
        "steep.Solve",
        regular(*_a),
        floats(*_b),
        outputs=2,
        torch=torch.linalg.solve_ex,
    )

for _a in {a: None for a, _ in SYSTEMS} | {(4, 4): None, (2, 0, 3, 3): None, (33, 33): None}:
    row(
        "steep.Cholesky",
        positive(*_a),
        outputs=2,
        torch=torch.linalg.cholesky_ex,
        smooth=False,  # the gradient is that of a symmetric matrix
    )
    row("steep.LU", regular(*_a), outputs=3, seeded=(), torch=decomposed)
    row("steep.SlogDet", regular(*_a), outputs=2, torch=lambda a: tuple(torch.linalg.slogdet(a)))
    row(
        "steep.LUSlogDet",
        floats(*_a),
        regular(*_a, turned=0),
        swaps(*_a),
        outputs=2,
        frozen=(0, 1),  # the gradient of the matrix is had by steep.SlogDet
        torch=sign_and_logarithm,
    )

for _name, _a in {
    "zeros": np.zeros((3, 3)),
    "of rank 1": np.outer([1.0, 2, 4], [8.0, -4, 2]),
    "one of two": np.stack([np.eye(2), np.diag([0.0, 1.0])]),
}.items():
    _singular = {"attrs": {"check": 0}, "outputs": 3, "seeded": (), "note": _name}
    row("steep.LU", exactly(_a), torch=decomposed, **_singular)
row(
    "steep.SlogDet",
    exactly(np.diag([3.0, 0.0, 2.0])),
    outputs=2,
    seeded=(),
    note="singular",
    torch=lambda a: tuple(torch.linalg.slogdet(a.detach())),
)
