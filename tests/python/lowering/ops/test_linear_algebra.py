"""Linear algebra of PyTorch runs in the engine, gradients and second ones included."""

import copy

import pytest
import torch
from torch import nn

from steep import DataError, ORTModule

SIZE = 3
LA = torch.linalg


class Fn(nn.Module):
    """A function of a regular matrix, its parameter, and of stacks of right-hand sides."""

    def __init__(self, function):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(SIZE, SIZE).double() + 4 * torch.eye(SIZE).double())
        self.function = function

    def forward(self, b):
        return self.function(self.matrix, b)


def derivatives(module, b):
    """The result, its gradients, and those of a function of these."""
    b = b.clone().requires_grad_()
    y = module(b)
    sources = (b, *module.parameters())
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    first = torch.autograd.grad((y.sin() * weights).sum(), sources, create_graph=True,
                                materialize_grads=True)  # fmt: skip
    total = sum((g * g.detach().cos()).sum() + g.square().sum() for g in first)
    return y.detach(), *first, *torch.autograd.grad(total, sources, materialize_grads=True)


TRIANGULAR = {
    "lower": lambda a, b: LA.solve_triangular(a, b, upper=False),
    "upper": lambda a, b: LA.solve_triangular(a, b, upper=True),
    "unit": lambda a, b: LA.solve_triangular(a, b, upper=False, unitriangular=True),
    "right": lambda a, b: LA.solve_triangular(a, b.mT, upper=True, left=False),
    "right, unit": lambda a, b: LA.solve_triangular(
        a, b.mT, upper=False, left=False, unitriangular=True
    ),
    "stacks": lambda a, b: LA.solve_triangular(a * b[..., :1].cos(), b[:1], upper=False),
    "triangular_solve": lambda a, b: torch.triangular_solve(b, a, transpose=True)[0],
}


def positive(a):
    return a @ a.mT + torch.eye(SIZE, dtype=a.dtype)


def jittered(a, b):
    """As Gaussian processes do it: of what has no factor, nothing is raised."""
    factor, info = LA.cholesky_ex(positive(a) - (b[0, 0, 0] > 0) * a[:1] ** 2)
    return factor * (info == 0), info * b.sum()


CHOLESKY = {
    "cholesky": lambda a, b: LA.cholesky(positive(a)) @ b,
    "upper": lambda a, b: LA.cholesky(positive(a) + a, upper=True) @ b,
    "old": lambda a, b: torch.cholesky(positive(a * b[:, :, :1]), upper=True),
    "no check": lambda a, b: jittered(a, b)[0],
    "info": lambda a, b: jittered(a, b)[1],
    "cholesky_solve": lambda a, b: torch.cholesky_solve(b, LA.cholesky(positive(a))),
    "cholesky_solve of any matrix": lambda a, b: torch.cholesky_solve(b, a),
    "cholesky_solve, upper": lambda a, b: torch.cholesky_solve(b, a, upper=True),
    "cholesky_inverse": lambda a, b: torch.cholesky_inverse(a, upper=True) @ b,
    "cholesky_inverse of stacks": lambda a, b: torch.cholesky_inverse(a * b[:, :, :1]),
    "normal distribution": lambda a, b: torch.distributions.MultivariateNormal(
        b[0, :, 0], positive(a), validate_args=False
    ).log_prob(b.mT),
}


GENERAL = {
    "solve": LA.solve,
    "right": lambda a, b: LA.solve(a, b.mT, left=False),
    "vector": lambda a, b: LA.solve(a, b[0, :, 0]),
    "vectors": lambda a, b: LA.solve(a * b[:, :, :1].cos().square(), b[:, :, 0]),
    "a matrix for all": lambda a, b: LA.solve(a + 0.1 * b[:, :, :1], b[0]),
    "stacks": lambda a, b: LA.solve(a + 0.1 * b[:, None, :, :1], b[:1]),
    "solve_ex": lambda a, b: LA.solve_ex(a, b)[0],
    "info": lambda a, b: LA.solve_ex(a, b).result * (LA.inv_ex(a).info + 1),
    "inv": lambda a, b: LA.inv(a) @ b,
    "inverse of stacks": lambda a, b: torch.inverse(a + 0.1 * b[:, :, :1]),
    "inv_ex": lambda a, b: LA.inv_ex(a).inverse @ b,
    "slogdet": lambda a, b: torch.stack(LA.slogdet(a + 0.1 * b[:, :, :1])),
    "slogdet, old": lambda a, b: torch.slogdet(-a).logabsdet * b.sum(),
    "logdet": lambda a, b: torch.logdet(a + 0.1 * b[:, :, :1]),
    "logdet of a negative one": lambda a, b: torch.logdet(-a) + b.sum(),
    "det": lambda a, b: LA.det(a) * b,
    "matrix_power": lambda a, b: LA.matrix_power(a, -2) @ b,
    "tensorsolve": lambda a, b: LA.tensorsolve(a, b[0, :, 0]),
    "cayley": lambda a, b: LA.solve(torch.eye(SIZE) + a - a.mT, torch.eye(SIZE) - a + a.mT) @ b,
}


def check(function):
    torch.manual_seed(0)
    module = Fn(function)
    net = ORTModule(copy.deepcopy(module), fallback=None)
    for count in (2, 5):
        b = torch.randn(count, SIZE, 4, dtype=torch.float64)
        for found, right in zip(derivatives(net, b), derivatives(module, b), strict=True):
            torch.testing.assert_close(found, right, rtol=1e-8, atol=1e-9, equal_nan=True)
    assert not any(graph.in_torch for graph in net.report().graphs)


def each(cases, *often):
    """All cases, slow but for these."""
    slow = pytest.mark.slow
    names = [n if n in often else pytest.param(n, marks=slow) for n in cases]
    return pytest.mark.parametrize("name", names)


@each(TRIANGULAR, "lower", "right, unit", "stacks")
def test_triangular_systems(name):
    check(TRIANGULAR[name])


@each(CHOLESKY, "upper", "info", "cholesky_solve", "cholesky_solve of any matrix")
def test_positive_matrices(name):
    check(CHOLESKY[name])


def test_a_matrix_that_is_not_positive():
    net = ORTModule(Fn(lambda a, b: LA.cholesky(a * b[:, :1, :1])), fallback=None)
    with torch.no_grad():
        net.matrix.copy_(torch.diag(torch.tensor([3.0, 4.0, 5.0])))
    net(torch.ones(2, 1, 1, dtype=torch.float64))
    for kind in (DataError, LA.LinAlgError):
        with pytest.raises(kind, match=r"minor 1 of matrix \[1\]"):
            net(torch.tensor([1.0, -1.0], dtype=torch.float64).view(2, 1, 1))


@each(GENERAL, "right", "vectors", "inv_ex", "slogdet", "logdet of a negative one")
def test_systems(name):
    check(GENERAL[name])


@pytest.mark.parametrize("function", [LA.inv, lambda a: LA.solve(a, torch.ones(SIZE).double())])
def test_a_matrix_that_is_singular(function):
    net = ORTModule(Fn(lambda a, b: function(a * b)), fallback=None)
    net(torch.ones(SIZE, SIZE, dtype=torch.float64))
    for kind in (DataError, LA.LinAlgError):
        with pytest.raises(kind, match="pivot 1 of the matrix is zero"):
            net(torch.zeros(SIZE, SIZE, dtype=torch.float64))


SINGULAR = {
    "of one": [[0]],
    "zeros": [[0, 0], [0, 0]],
    "rank 1": [[1, 2], [2, 4]],
    "a row of zeros": [[0, 0], [1, 2]],
    "a column of zeros": [[0, 1], [0, 2]],
    "a zero on the diagonal": [[1, 0, 0], [0, 0, 0], [0, 0, 2]],
    "rank 2": [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
    "none is a number": [[torch.nan, 1], [1, 2]],
    "regular": [[4, 1], [1, 3]],
}


class OfEach(nn.Module):
    """A function of each of several matrices: one capture for all."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *matrices):
        return [self.function(a) for a in matrices]


def slopes(module, matrices):
    """Return results, and the gradients of matrices."""
    given = [a.clone().requires_grad_() for a in matrices]
    results = [y for ys in module(*given) for y in (ys if isinstance(ys, tuple) else (ys,))]
    sum((y * 2.5).sum() for y in results if y.requires_grad).backward()
    return results, [a.grad for a in given]


@pytest.mark.parametrize("function", [torch.det, torch.logdet, torch.slogdet])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_slopes_at_singular_matrices_are_pytorchs(function, dtype):
    matrices = [torch.tensor(rows, dtype=dtype) for rows in SINGULAR.values()]
    right = slopes(OfEach(function), matrices)
    found = slopes(ORTModule(OfEach(function), fallback=None), matrices)
    torch.testing.assert_close(found[0], right[0], equal_nan=True)
    for name, a, b in zip(SINGULAR, found[1], right[1], strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("function", [torch.det, torch.logdet, torch.slogdet])
def test_slopes_at_singular_matrices_that_are_differentiated_again(function):
    """Cofactors, or an error: other formulas than without ``create_graph``, in PyTorch too."""
    for name, rows in SINGULAR.items():
        matrix = torch.tensor(rows, dtype=torch.float64)
        torch._dynamo.reset()  # each size is fixed
        made = []
        for net in (OfEach(function), ORTModule(OfEach(function), fallback=None)):
            a = matrix.clone().requires_grad_()
            (y,) = net(a)
            y = y[1] if isinstance(y, tuple) else y
            try:
                (slope,) = torch.autograd.grad(y * 2.5, a, create_graph=True)
                made.append(slope.detach())
            except LA.LinAlgError as e:
                made.append(e)
        right, found = made
        assert isinstance(found, LA.LinAlgError) == isinstance(right, LA.LinAlgError), name
        if not isinstance(right, LA.LinAlgError):
            torch.testing.assert_close(
                found, right, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
            )
