"""Systems of equations and decompositions of stacks of matrices."""

import numpy as np
import torch

from .row import floats, table

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

for _a in {a: None for a, _ in SYSTEMS} | {(4, 4): None, (2, 0, 3, 3): None, (33, 33): None}:
    row(
        "steep.Cholesky",
        positive(*_a),
        outputs=2,
        torch=torch.linalg.cholesky_ex,
        smooth=False,  # the gradient is that of a symmetric matrix
    )
